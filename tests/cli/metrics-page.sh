#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pf-metrics(5) names every event and member that a run with everything switched on writes.
set -u
. "$PF_ROOT/tests/tap.sh"
page=$PF_ROOT/man/pf-metrics.5
for i in $(seq 40); do printf 'one two three. '; done >text.txt
cat >config.json <<'JSON'
{ "model": { "model_type": "llama", "vocab_size": 257, "hidden_size": 16, "intermediate_size": 24,
             "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1 },
  "from_scratch": true, "input_dir": "text.txt", "tokenizer": "bytes", "output_dir": "out", "max_steps": 3,
  "eval_input_dir": "text.txt", "max_seq_length": 16, "per_device_train_batch_size": 2, "logging_steps": 1,
  "save_steps": 2, "threads": 1, "dtype": "float16", "scale_loss": 1e30, "sample_steps": 2, "sample_tokens": 2,
  "profile_steps": [2], "skip_data_intervals": [[3, 3]] }
JSON
"$PF_BIN/pf-train" config.json >log.txt 2>&1
ok $? "a run with everything switched on" "$(tail -n 3 log.txt)"

# Names of all members, deep ones too, and of the events.
names()
{
    python3 -c 'import json, sys
def names(x):
    if isinstance(x, dict):
        for k, v in x.items():
            if k in ("mesh", "kernels"):
                yield k
                continue
            yield k
            yield from names(v)
        if "event" in x:
            yield x["event"]
    elif isinstance(x, list):
        for v in x:
            yield from names(v)
print("\n".join(sorted({n for f in sys.argv[1:] for line in
      ([open(f).read()] if f.endswith(".json") else open(f)) for n in names(json.loads(line))})))' "$@"
}
is "$(names out/metrics.jsonl | grep -cxE 'start|eval|save|sample|export|warning|end')" 7 "it has every event"
# What the page prints as literal words, each on its own line.
literals=$(sed -nE 's/^\.(It )?Li (.*)/\2/p' "$page" | tr ' ,' '\n\n')
for name in $(names out/metrics.jsonl out/profile-000002.json); do
    grep -qx "$name" <<<"$literals"
    ok $? "the page tells of $name"
done
for phase in $(python3 -c 'import json
print(*(x["phase"] for x in json.load(open("out/profile-000002.json"))["phases"]))'); do
    grep -q "\b$phase\b" "$page"
    ok $? "and of phase $phase"
done
done_testing
