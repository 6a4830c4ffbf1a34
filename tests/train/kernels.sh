#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The choice of kernels is recorded, with a row of its own for weight gradients where that differs,
# and taken again; records from before there were such rows are still read.
set -u
. "$PF_ROOT/tests/tap.sh"
cat >config.json <<'JSON'
{ "model": { "model_type": "gpt2", "vocab_size": 32, "n_embd": 16, "n_layer": 1, "n_head": 2,
    "n_positions": 16 },
  "from_scratch": true, "max_seq_length": 16, "per_device_train_batch_size": 2,
  "input_dir": "synthetic:markov?vocab=32&order=1&seed=1", "max_steps": 2, "logging_steps": 1,
  "save_steps": 1, "threads": 1 }
JSON
: "${XDG_CACHE_HOME:=$PWD/cache}"
export XDG_CACHE_HOME

train() # OUT [WORD...]
{
    local out=$1
    shift
    "$PF_BIN/pf-train" config.json output_dir="$out" "$@" >"$out.log" 2>&1
}

# gemm's rows of a record for float32: variant, or product=variant.
rows() # PF.JSON
{
    python3 - "$1" <<'PY'
import json, sys
for row in json.load(open(sys.argv[1]))["kernels"]["chosen"]:
    if row["op"] == "gemm" and row["dtype"] == "F32":
        print((row["product"] + "=" if "product" in row else "") + row["variant"])
PY
}

# A record with these rows for gemm and float32.
record() # FROM TO VARIANT [GRADIENT]
{
    python3 - "$@" <<'PY'
import json, sys
run = json.load(open(sys.argv[1]))
rows = [r for r in run["kernels"]["chosen"] if r["op"] != "gemm" or r["dtype"] != "F32"]
row = {"op": "gemm", "dtype": "F32"}
rows.append({**row, "variant": sys.argv[3]})
if len(sys.argv) > 4:
    rows.append({**row, "product": "gradient", "variant": sys.argv[4]})
run["kernels"]["chosen"] = rows
json.dump(run, open(sys.argv[2], "w"))
PY
}

train first
ok $? "a run of its own choice" "$(tail -n 3 first.log)"
record first/pf.json old.json generic
train old kernels_from=old.json
ok $? "a record without a row for gradients is read" "$(tail -n 3 old.log)"
is "$(rows old/pf.json)" generic "and its row serves every product"
record first/pf.json new.json generic ref
train new kernels_from=new.json
ok $? "one with such a row is read" "$(tail -n 3 new.log)"
is "$(rows new/pf.json | paste -sd ' ')" "generic gradient=ref" "and written again"
is "$(grep -c 'not be bit-identical' new.log)" 0 "with nothing to warn of"
"$PF_BIN/pf-train" --plan config.json output_dir=plan kernels_from=new.json >plan.log 2>&1
is "$(grep -o 'gemm_gradient=ref' plan.log)" gemm_gradient=ref "the plan shows it"

newest=$(ls -d new/checkpoint-* | tail -n 1)
train again resume_from_checkpoint="$newest" max_steps=3
ok $? "a checkpoint's run goes on" "$(tail -n 3 again.log)"
is "$(rows again/pf.json | paste -sd ' ')" "generic gradient=ref" "with the kernels of its record"

record first/pf.json odd.json generic abacus
train odd kernels_from=odd.json
ok $? "a row that does not serve here stops nothing" "$(tail -n 3 odd.log)"
is "$(grep -c 'not be bit-identical' odd.log)" 1 "but is said"
"$PF_ROOT/scripts/mpirun-here" -n 2 "$PF_BIN/pf-train" config.json output_dir=two \
    kernels_from=new.json per_device_train_batch_size=1 >two.log 2>&1 </dev/null
status=$?
if grep -q 'not in this build' two.log; then
    skip "two ranks take the same rows" "no MPI in this build"
else
    ok $status "two ranks take the same rows" "$(tail -n 3 two.log)"
fi
done_testing
