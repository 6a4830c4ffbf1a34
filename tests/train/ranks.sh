#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Data-parallel ranks: agree with each other and with a rerun to the bit, see the data in one order
# whatever their number, and a checkpoint of one number of ranks resumes on another.
set -u
. "$PF_ROOT/tests/tap.sh"
cat >config.json <<'JSON'
{ "model": { "model_type": "qwen2", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2 },
  "from_scratch": true, "input_dir": "synthetic:markov?vocab=64&order=1&seed=2", "max_seq_length": 16,
  "per_device_train_batch_size": 1, "global_train_batch_size": 4, "learning_rate": 3e-3,
  "max_steps": 20, "logging_steps": 1, "save_steps": 10, "threads": 1, "resume_from_checkpoint": "auto" }
JSON

train() # RANKS OUT [WORD...]
{
    local ranks=$1 out=$2
    shift 2
    "$PF_ROOT/scripts/mpirun-here" -n "$ranks" "$PF_BIN/pf-train" config.json output_dir="$out" "$@" \
        >"$out.log" 2>&1 </dev/null
    ok $? "20 steps on $ranks ranks ($out)" "$(tail -n 3 "$out.log")"
}

# Largest relative difference of a key over the steps from FIRST on; "same" if the bits are equal.
compare() # A B KEY FIRST
{
    python3 - "$@" <<'PY'
import json, sys
a, b, key, first = sys.argv[1:]
def read(out):
    return {d["step"]: d[key] for d in map(json.loads, open(out + "/metrics.jsonl"))
            if "event" not in d and d["step"] >= int(first)}
x, y = read(a), read(b)
worst = max(abs(x[s] / y[s] - 1) for s in x) if x.keys() == y.keys() and x else 1
print("same" if x == y and x else worst)
PY
}
within() # VALUE BOUND
{
    python3 -c "import sys; v = sys.argv[1]; sys.exit(not (v == 'same' or float(v) <= float(sys.argv[2])))" "$1" "$2"
}

train 2 two
train 2 again
is "$(compare two again loss 1)" same "two ranks: a rerun gives the same losses"
cmp -s <(python3 "$PF_ROOT/scripts/read-checkpoint" two/checkpoint-000020) \
    <(python3 "$PF_ROOT/scripts/read-checkpoint" again/checkpoint-000020)
ok $? "two ranks: a rerun gives the same checkpoint"
train 1 one
train 4 four
d=$(compare one two loss 1)
within "$d" 5e-6
ok $? "r47_one_order_on_any_ranks: one rank and two see the same data: losses within $d"
d=$(compare one four loss 1)
within "$d" 5e-6
ok $? "r47_one_order_on_any_ranks: one rank and four see the same data: losses within $d"
is "$(compare one four tokens 1)" same "r47_one_order_on_any_ranks: the same targets at every step"

# Resume the checkpoint of step 10 on another number of ranks: the next ten losses.
for to in 1 4; do
    cp -R two "moved$to"
    rm -rf "moved$to/checkpoint-000020" "moved$to/hf"
    echo checkpoint-000010 >"moved$to/latest"
    train $to "moved$to"
    d=$(compare two "moved$to" loss 11)
    within "$d" 5e-6
    ok $? "r15_other_number_of_ranks: two ranks' checkpoint on $to: the next ten losses within $d"
done

# A ragged step (row 40): three sequences dealt to two ranks of two, the fourth is empty.
"$PF_ROOT/scripts/mpirun-here" -n 2 "$PF_BIN/pf-train" config.json output_dir=r2 max_steps=-1 \
    num_train_epochs=1 global_train_batch_size=4 per_device_train_batch_size=2 save_steps=-1 \
    "input_dir=synthetic:markov?vocab=64&order=1&seed=2&tokens=112" >r2.log 2>&1 </dev/null
ok $? "r40_ragged_step: an epoch of seven sequences in steps of four" "$(tail -n 3 r2.log)"
"$PF_BIN/pf-train" config.json output_dir=r1 max_steps=-1 num_train_epochs=1 \
    global_train_batch_size=4 per_device_train_batch_size=4 save_steps=-1 \
    "input_dir=synthetic:markov?vocab=64&order=1&seed=2&tokens=112" >r1.log 2>&1 </dev/null
ok $? "r40_ragged_step: the same as one batch" "$(tail -n 3 r1.log)"
is "$(compare r1 r2 tokens 1)" same "r40_ragged_step: the short step counts three sequences on either layout"
d=$(compare r1 r2 loss 1)
within "$d" 5e-6
ok $? "r40_ragged_step: and weighs every token the same: losses within $d"

# K micro-batches of B equal one batch of K*B (row 26), over three steps with one fused buffer.
"$PF_BIN/pf-train" config.json output_dir=k1 per_device_train_batch_size=8 global_train_batch_size=8 \
    max_steps=3 save_steps=-1 >k1.log 2>&1
"$PF_BIN/pf-train" config.json output_dir=k4 per_device_train_batch_size=2 global_train_batch_size=8 \
    max_steps=3 save_steps=-1 >k4.log 2>&1
for key in loss grad_norm; do
    d=$(compare k1 k4 $key 1)
    within "$d" 5e-6
    ok $? "r26_micro_batches_equal_one_batch: four micro-batches of two equal one batch of eight: $key within $d"
done

# Hugging Face in, two ranks, out again (row 14): a step at rate 0 changes nothing, bit for bit.
hf=$PF_ROOT/tests/fixtures/hf/qwen3
"$PF_ROOT/scripts/mpirun-here" -n 2 "$PF_BIN/pf-train" config.json output_dir=rt max_steps=1 \
    model=null model_name_or_path="$hf" from_scratch=false learning_rate=0 weight_decay=0 \
    save_steps=-1 global_train_batch_size=2 >rt.log 2>&1 </dev/null
ok $? "r14_through_two_ranks: a Hugging Face model through two ranks" "$(tail -n 3 rt.log)"
"$PF_BIN/pf-inspect" diff "$hf/model.safetensors" rt/hf >rt.diff 2>&1
ok $? "r14_through_two_ranks: comes out as it went in" "$(head -n 3 rt.diff)"
done_testing
