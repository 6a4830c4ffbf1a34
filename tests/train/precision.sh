#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Training in bfloat16 and float16 ends where float32 does; float16's loss scale reacts to overflow.
set -u
. "$PF_ROOT/tests/tap.sh"
cat >config.json <<'JSON'
{ "model": { "model_type": "llama", "vocab_size": 32, "hidden_size": 48, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "initializer_range": 0.06 },
  "from_scratch": true, "max_seq_length": 32, "per_device_train_batch_size": 8,
  "input_dir": "synthetic:markov?vocab=32&order=1&seed=1",
  "eval_input_dir": "synthetic:markov?vocab=32&order=1&seed=1&stream=1&tokens=8192",
  "learning_rate": 5e-3, "warmup_steps": 10, "lr_scheduler_type": "cosine", "max_steps": 200,
  "logging_steps": 1, "save_steps": -1, "threads": 1 }
JSON

train() # OUT [WORD...]
{
    local out=$1
    shift
    "$PF_BIN/pf-train" config.json output_dir="$out" "$@" >"$out.log" 2>&1
}

# Values of a key of the lines that have it and match a Python condition on the line d.
values() # OUT KEY CONDITION
{
    python3 - "$@" <<'PY'
import json, sys
for line in open(sys.argv[1] + "/metrics.jsonl"):
    d = json.loads(line)
    if sys.argv[2] in d and eval(sys.argv[3]):
        print(d[sys.argv[2]])
PY
}

for dtype in float32 bfloat16 float16; do
    train $dtype dtype=$dtype
    ok $? "200 steps in $dtype" "$(tail -n 3 $dtype.log)"
done
base=$(values float32 loss 'd.get("event") == "eval"')
for dtype in bfloat16 float16; do
    loss=$(values $dtype loss 'd.get("event") == "eval"')
    python3 -c "import sys; sys.exit(not abs($loss / $base - 1) < 0.01)"
    ok $? "$dtype ends within 1 % of float32 (loss $loss, float32 $base)"
done

# A scale so large that the first gradients overflow: steps are skipped until it is small enough.
train huge dtype=float16 scale_loss=1e9 max_steps=40
ok $? "float16 with a loss scale that overflows" "$(tail -n 3 huge.log)"
skipped=$(values huge text 'd["event"] == "warning"' | wc -l)
ok $((skipped > 2 && skipped < 30 ? 0 : 1)) "r25_overflow_skips_and_halves: $skipped steps were skipped"
is "$(values huge loss_scale '"event" not in d' | head -n 2 | python3 -c 'a, b = map(float, __import__("sys").stdin); print(a / b)')" \
    2.0 "r25_overflow_skips_and_halves: the scale halves at each"
is "$(values huge loss '"event" not in d and d["step"] <= 1')" \
    "$(values float16 loss '"event" not in d and d["step"] <= 1')" \
    "r25_overflow_skips_and_halves: the loss reported is not scaled"
"$PF_ROOT/scripts/mpirun-here" -n 2 "$PF_BIN/pf-train" config.json output_dir=two dtype=float16 \
    scale_loss=1e9 max_steps=40 per_device_train_batch_size=4 >two.log 2>&1 </dev/null
ok $? "r25_overflow_skips_and_halves: on two ranks" "$(tail -n 3 two.log)"
is "$(values two text 'd["event"] == "warning"' | wc -l)" "$skipped" \
    "r25_overflow_skips_and_halves: two ranks skip the same steps"

# A killed float16 run resumes with its scale and its masters.
for dtype in bfloat16 float16; do
    train whole-$dtype dtype=$dtype scale_loss=1e9 max_steps=20 save_steps=10
    train half-$dtype dtype=$dtype scale_loss=1e9 max_steps=20 save_steps=10
    rm -rf half-$dtype/checkpoint-000020 half-$dtype/hf
    echo checkpoint-000010 >half-$dtype/latest
    train half-$dtype dtype=$dtype scale_loss=1e9 max_steps=20 save_steps=10 resume_from_checkpoint=auto
    ok $? "$dtype resumes" "$(tail -n 3 half-$dtype.log)"
    "$PF_BIN/pf-inspect" diff whole-$dtype/checkpoint-000020 half-$dtype/checkpoint-000020 >diff 2>&1
    ok $? "r15_narrow_resume: $dtype, resumed at step 10, ends identical" "$(head -n 3 diff)"
done
done_testing
