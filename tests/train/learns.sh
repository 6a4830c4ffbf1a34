#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A model learns what there is to learn and no more: on a Markov source whose entropy is known exactly,
# the loss after training lies within 2 % of it.
set -u
. "$PF_ROOT/tests/tap.sh"
cat >config.json <<'JSON'
{ "model": { "model_type": "llama", "vocab_size": 12, "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
    "initializer_range": 0.06 },
  "from_scratch": true, "max_seq_length": 64, "per_device_train_batch_size": 16,
  "input_dir": "synthetic:markov?vocab=12&order=2&seed=1",
  "eval_input_dir": "synthetic:markov?vocab=12&order=2&seed=1&stream=1&tokens=65536",
  "per_device_eval_batch_size": 16, "learning_rate": 5e-3, "warmup_steps": 20,
  "lr_scheduler_type": "cosine", "weight_decay": 0.01, "max_steps": 500, "logging_steps": 100,
  "save_steps": -1, "threads": 1, "output_dir": "out" }
JSON
"$PF_BIN/pf-train" config.json >log 2>&1
ok $? "training runs" "$(tail -n 3 log)"
python3 - <<'PY'
import json, sys
entropy = loss = None
for line in open("out/metrics.jsonl"):
    d = json.loads(line)
    if d.get("event") == "start":
        entropy = d["data_entropy"]
    if d.get("event") == "eval":
        loss = d["loss"]
print(f"# entropy {entropy:.4f}, loss on fresh data {loss:.4f}, above it by {100 * (loss / entropy - 1):.2f} %")
sys.exit(not -0.005 < loss / entropy - 1 < 0.02)
PY
ok $? "the loss is within 2 % of the entropy"
entropy=$(python3 -c 'import json; print("%.8f" % json.loads(open("out/metrics.jsonl").readline())["data_entropy"])')
grep -q "entropy $entropy" log
ok $? "the entropy is printed"
done_testing
