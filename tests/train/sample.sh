#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# sample_steps and sample_prompt: a model that has learned a text writes it, the same again for the same seed, on
# any number of ranks; the run that is interrupted by it trains as another.
set -u
. "$PF_ROOT/tests/tap.sh"
for i in $(seq 400); do printf 'one two three. '; done >text.txt
cat >config.json <<'JSON'
{ "model": { "model_type": "llama", "vocab_size": 257, "hidden_size": 48, "intermediate_size": 96,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2 },
  "from_scratch": true, "input_dir": "text.txt", "tokenizer": "bytes", "output_dir": "out", "max_steps": 80,
  "max_seq_length": 32, "per_device_train_batch_size": 8, "learning_rate": 1e-2, "warmup_steps": 8,
  "logging_steps": -1, "save_steps": -1, "threads": 1 }
JSON
# The texts of a run, a line each, as STEP TEXT.
texts()
{
    python3 -c 'import json, sys
for line in map(json.loads, open(sys.argv[1] + "/metrics.jsonl")):
    if line.get("event") == "sample":
        print(line["step"], line["text"].encode("unicode_escape").decode())' "$1"
}
train()
{
    "$PF_BIN/pf-train" config.json "$@" >out.txt 2>err.txt </dev/null
}

train sample_steps=40 sample_prompt='one t' sample_temperature=0 sample_tokens=60
ok $? "80 steps that write every 40" "$(tail -n 3 err.txt)"
is "$(texts out | cut -d' ' -f1 | tr '\n' ' ')" "40 80 " "write at step 40 and at the end"
is "$(texts out | tail -n 1 | cut -d' ' -f2-)" "wo three. one two three. one two three. one two three. one t" \
    "what was learned, beyond the length of a training sequence"
grep -qx 'pf-train:   | one two three. one two three. one two three. one two three. one t' err.txt
ok $? "a person sees it after the prompt" "$(tail -n 3 err.txt)"
train output_dir=plain
cmp -s plain/hf/model.safetensors out/hf/model.safetensors
ok $? "the weights are those of a run that writes nothing"
is "$(texts plain)" "" "which a run does not unless asked"

eval=(eval_only=true model=null model_name_or_path=plain/hf from_scratch=false sample_temperature=2 sample_tokens=40)
train "${eval[@]}" sample_prompt=one output_dir=a
ok $? "eval_only writes as well" "$(tail -n 3 err.txt)"
train "${eval[@]}" sample_prompt=one output_dir=b
is "$(texts a)" "$(texts b)" "drawn text is the same for the same seed"
"$PF_ROOT/scripts/mpirun-here" -n 2 "$PF_BIN/pf-train" config.json "${eval[@]}" sample_prompt=one output_dir=c \
    >out.txt 2>err.txt </dev/null
is "$(texts c)" "$(texts a)" "and on two ranks" "$(tail -n 3 err.txt)"
train "${eval[@]}" sample_prompt=one seed=7 output_dir=d
[ -n "$(texts d)" ] && [ "$(texts d)" != "$(texts a)" ]
ok $? "another seed gives another"
train "${eval[@]}" sample_steps=1 sample_temperature=0 output_dir=e dtype=bfloat16
ok $? "without a prompt a newline is continued, in bfloat16 too" "$(tail -n 3 err.txt)"
grep -q '"event":"sample".*"prompt":"\\n"' e/metrics.jsonl
ok $? "as the event says"

# A document's end ends the text.
mkdir docs
for i in $(seq 60); do printf 'abcdefg' >docs/$i.txt; done
train input_dir=docs max_steps=60 output_dir=ends sample_prompt=ab sample_temperature=0
is "$(texts ends)" "60 cdefg" "text ends where a document does" "$(tail -n 3 err.txt)"

"$PF_BIN/pf-train" --plan config.json sample_steps=9 sample_prompt=abc >plan.txt 2>&1
grep -q '^sample     every 9 steps and at the end rank 0 writes up to 120 tokens, each by a forward of 32: .* GFLOP a text$' \
    plan.txt && grep -q '^ *sampling  ' plan.txt
ok $? "the plan says what it costs" "$(cat plan.txt)"
train tokenizer=null sample_prompt=a 'input_dir=synthetic:markov?vocab=64&order=1'
is $? 2 "no tokenizer, no text"
grep -q "'sample_prompt' needs tokenizer \"bytes\"" err.txt
ok $? "is said so" "$(cat err.txt)"
sed 's/"vocab_size": 257/"vocab_size": 128/' config.json >small.json
"$PF_BIN/pf-train" small.json sample_prompt=$'\xc3\xa9' output_dir=f >out.txt 2>err.txt
is $? 3 "a prompt outside the vocabulary"
grep -q "sample_prompt has byte 195, but the model's vocabulary is 128 tokens" err.txt
ok $? "is said so" "$(cat err.txt)"
done_testing
