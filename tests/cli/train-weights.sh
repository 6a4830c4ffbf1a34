#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Weights that are not the model's, data that are not the run's, numbers that are none: nothing is filled in, left out
# or gone on with in silence (PITFALLS Q and S).
set -u
. "$PF_ROOT/tests/tap.sh"
train=$PF_BIN/pf-train
qwen=$PF_ROOT/tests/fixtures/hf/qwen3
cat >run.json <<'JSON'
{ "model_name_or_path": "model", "input_dir": "synthetic:markov?vocab=32", "max_seq_length": 16,
  "per_device_train_batch_size": 2, "max_steps": 2, "save_steps": -1, "threads": 1, "output_dir": "out" }
JSON
if ! command -v python3 >/dev/null; then
    skip "weights that are not the model's" "no python3"
    done_testing
fi

# edited EDIT: a model in which the Python statement has changed h, the header, of which norm is one name.
edited()
{
    rm -rf model && mkdir model && cp "$qwen/config.json" model
    python3 - "$qwen/model.safetensors" "$1" <<'PY'
import json, struct, sys
raw = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
h, data = json.loads(raw[8:8 + n]), raw[8 + n:]
norm = "model.norm.weight"
end = len(data)
more = data[h[norm]["data_offsets"][0]:h[norm]["data_offsets"][1]]
exec(sys.argv[2])
text = json.dumps(h).encode()
text += b" " * (-len(text) % 8)
open("model/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data)
PY
}
refuses() # STATUS WORDS CLAIM ARG...
{
    local status=$1 words=$2 claim=$3 got
    shift 3
    "$train" -q run.json "$@" >out.txt 2>err.txt
    got=$?
    [ $got = "$status" ] && [ "$(wc -l <err.txt)" = 1 ] && grep -qF -- "$words" err.txt
    ok $? "$claim" "exit $got" "$(cat err.txt)"
}
edited pass
"$train" -q run.json >out.txt 2>err.txt
ok $? "the model that is changed below trains" "$(cat err.txt)"
edited 'h["more"] = {**h[norm], "data_offsets": [end, end + len(more)]}; data += more'
refuses 3 "tensor 'more' is not part of this model" "a tensor that the model does not know"
edited 'h["model.norm2.weight"] = h.pop(norm)'
refuses 3 "tensor 'model.norm2.weight' is not part of this model" "a tensor under another name"
edited 'last = max((k for k in h if k != "__metadata__"), key=lambda k: h[k]["data_offsets"][1]);
data = data[:h.pop(last)["data_offsets"][0]]; open("gone", "w").write(last)'
refuses 3 "has no tensor '$(cat gone)'" "a tensor that is missing"
edited 'h[norm]["shape"] = [1] + h[norm]["shape"]'
refuses 3 "tensor 'model.norm.weight' does not have the shape that config.json says" "a tensor of another shape"
edited 'h.clear(); data = b""'
refuses 3 "'model' has no 'model.embed_tokens.weight'" "no tensor at all"

# Data and schedule.
edited pass
refuses 3 "lr_table has 1 entries, but the run has 2 steps" "a table of rates that ends before the run" \
    lr_scheduler_type=table 'lr_table=[1e-4]'
"$train" -q run.json output_dir=first save_steps=2 2>err.txt
"$train" run.json output_dir=first max_steps=3 resume_from_checkpoint=auto save_steps=-1 2>err.txt
is "$?:$(grep -c 'the data is not what' err.txt)" 0:0 "a resume with its own data says nothing of them"
"$train" run.json output_dir=first max_steps=3 resume_from_checkpoint=auto save_steps=-1 \
    'input_dir=synthetic:markov?vocab=32&seed=9' 2>err.txt
is "$?:$(grep -c 'the data is not what step 2 was trained on' err.txt)" 0:1 "one with other data does" "$(cat err.txt)"

# Numbers.
refuses 9 "not finite" "a loss or norm that is not finite ends the run" output_dir=wild learning_rate=1e6 adam_epsilon=1e-30 max_steps=50
[ ! -e wild/hf ] && [ -z "$(find wild -name 'checkpoint-*')" ]
ok $? "... and nothing of it is saved" "$(ls wild)"
"$train" run.json output_dir=half dtype=float16 scale_loss=1e30 2>err.txt
is "$?:$(grep -c '"event":"warning".*a gradient overflowed: step skipped' half/metrics.jsonl)" 0:2 \
    "float16: an overflow skips the step, and metrics.jsonl says so" "$(cat err.txt)"
done_testing
