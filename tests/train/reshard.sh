#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A run goes on from a checkpoint in any layout as from its own: bit for bit the same numbers and the
# same state, weights, masters, moments and trainer state.
set -u
. "$PF_ROOT/tests/tap.sh"
reshard=$PF_BIN/pf-reshard
reader=$PF_ROOT/scripts/read-checkpoint

# Metric lines of a run without what depends on the clock.
lines_of()
{
    python3 - "$1/metrics.jsonl" <<'PY'
import json, sys
for line in open(sys.argv[1]):
    d = json.loads(line)
    if "event" not in d:
        print(*(repr(d[k]) for k in ("step", "loss", "grad_norm", "learning_rate", "tokens")))
PY
}

train() # RANKS OUT [WORD...]
{
    local launch= out=$2
    [ "$1" = 1 ] || launch="$PF_ROOT/scripts/mpirun-here -q -n $1"
    shift 2
    $launch "$PF_BIN/pf-train" -q config.json output_dir="$out" "$@" 2>err </dev/null
}

family() # NAME DTYPE RANKS LAYOUT...
{
    local name=$1 dtype=$2 ranks=$3 layout
    shift 3
    rm -rf ./*
    cp "$PF_ROOT/tests/fixtures/hf/$name/config.json" model.json
    sed -i 's/"num_hidden_layers": [0-9]*/"num_hidden_layers": 4/; s/"n_layer": [0-9]*/"n_layer": 4/' model.json
    cat >config.json <<JSON
{ "model_name_or_path": "model.json", "from_scratch": true, "seed": 5, "dtype": "$dtype",
  "input_dir": "synthetic:markov?vocab=64&order=1&seed=2", "max_seq_length": 24,
  "global_train_batch_size": 4, "per_device_train_batch_size": 2, "max_steps": 8,
  "learning_rate": 3e-3, "lr_scheduler_type": "cosine", "warmup_steps": 2,
  "logging_steps": 1, "save_steps": 4, "threads": 1 }
JSON
    train "$ranks" whole
    ok $? "$name, $dtype, $ranks ranks: 8 steps" "$(cat err)"
    train "$ranks" own resume_from_checkpoint=whole/checkpoint-000004
    ok $? "goes on from its own checkpoint" "$(cat err)"
    lines_of own >own.txt
    is "$(wc -l <own.txt)" 4 "for four steps"
    for layout; do
        rm -rf laid next
        "$reshard" -q whole/checkpoint-000004 laid --to "$layout" 2>err
        ok $? "$layout" "$(cat err)"
        train "$ranks" next resume_from_checkpoint=laid
        ok $? "goes on from it" "$(cat err)"
        lines_of next >next.txt
        cmp -s own.txt next.txt
        ok $? "r2_resume_from_any_layout: every step's numbers are the same" "$(diff own.txt next.txt | head -n 4)"
        "$PF_BIN/pf-inspect" diff whole/checkpoint-000008 next/checkpoint-000008 >diff.txt 2>&1
        ok $? "r2_resume_from_any_layout: and the last checkpoint" "$(head -n 5 diff.txt)"
        python3 "$reader" whole/checkpoint-000008 next/checkpoint-000008 >reader.txt 2>&1
        ok $? "the Python reader says identical" "$(tail -n 3 reader.txt)"
    done
    # What several ranks saved, as one rank would have.
    rm -rf merged
    "$reshard" -q whole/checkpoint-000008 merged --to dp=1 && python3 "$reader" merged whole/checkpoint-000008 >reader.txt 2>&1
    ok $? "r1_merged: saved by $ranks, merged to one: the same" "$(tail -n 3 reader.txt)"
}

family llama float32 1 tp=2,pp=2,sharding=2 tp=4,pp=2,vpp=2,dp=2
family gpt2 bfloat16 1 tp=2,pp=2,sharding=2,stage=3
if command -v "${PF_MPIRUN:-mpirun}" >/dev/null; then
    family llama-tied bfloat16 2 tp=2,pp=2,sharding=2 sharding=5,stage=3,pp=4
else
    skip "two ranks" "there is no mpirun here"
fi
done_testing
