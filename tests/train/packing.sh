#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packed documents, ragged batches and reading ahead, in whole runs: neither the batch, the number of
# ranks nor a thread changes what is trained on, and faults in the data are told where they matter.
set -u
. "$PF_ROOT/tests/tap.sh"
cat >config.json <<'JSON'
{ "model": { "model_type": "llama", "vocab_size": 257, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64 },
  "from_scratch": true, "input_dir": "docs.jsonl", "tokenizer": "bytes", "max_seq_length": 32,
  "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "learning_rate": 3e-3,
  "max_steps": 12, "logging_steps": 1, "save_steps": -1, "threads": 1 }
JSON
awk 'BEGIN { for (i = 0; i < 60; i++) {
    text = ""
    for (k = 0; k < (i * 7) % 41; k++) text = text sprintf("%c", 97 + (i * 5 + k * k) % 26)
    printf "{\"id\": %d, \"text\": \"%s\"}\n", i, text } }' >docs.jsonl

train() # OUT [WORD...]
{
    local out=$1
    shift
    "$PF_BIN/pf-train" config.json output_dir="$out" "$@" >"$out.log" 2>&1 </dev/null
}

# Largest relative difference of a key over the steps (or, with an event's name, those events); "same"
# if the bits are equal.
compare() # A B KEY [EVENT]
{
    python3 - "$@" <<'PY'
import json, sys
a, b, key, event = (sys.argv[1:] + [None])[:4]
def read(out):
    return [d[key] for d in map(json.loads, open(out + "/metrics.jsonl")) if d.get("event") == event]
x, y = read(a), read(b)
worst = max(abs(p / q - 1) for p, q in zip(x, y)) if len(x) == len(y) and x else 1
print("same" if x == y and x else worst)
PY
}
within() # VALUE BOUND
{
    python3 -c "import sys; v = sys.argv[1]; sys.exit(not (v == 'same' or float(v) <= float(sys.argv[2])))" "$1" "$2"
}

# Ragged steps of packed epochs: whatever the batch and the ranks, the same documents in a step.
epochs="max_steps=-1 num_train_epochs=2.5 packing=true global_train_batch_size=4"
# shellcheck disable=SC2086  # words
train whole $epochs per_device_train_batch_size=4
ok $? "two and a half epochs of packed documents" "$(tail -n 3 whole.log)"
# shellcheck disable=SC2086
train parts $epochs per_device_train_batch_size=1
ok $? "the same in micro-batches of one window" "$(tail -n 3 parts.log)"
# shellcheck disable=SC2086
"$PF_ROOT/scripts/mpirun-here" -n 2 "$PF_BIN/pf-train" config.json output_dir=ranks $epochs \
    per_device_train_batch_size=2 dataloader_num_workers=1 >ranks.log 2>&1 </dev/null
ok $? "the same on two ranks that read ahead" "$(tail -n 3 ranks.log)"
for other in parts ranks; do
    is "$(compare whole $other tokens)" same "r40_ragged_packed: as many targets in each step ($other)"
    d=$(compare whole $other loss)
    within "$d" 5e-6
    ok $? "r40_ragged_packed: losses of one big batch within $d ($other)"
done
"$PF_BIN/pf-train" --plan --json config.json output_dir=plan packing=true >plan.json 2>/dev/null
ok $? "a packed run has a plan"
grep -q 'packed into [0-9]* sequences, [0-9.]* % full' whole.log
ok $? "and says how full its windows are" "$(grep 'data:' whole.log)"

# Ragged evaluation: 7 windows in batches of 7, of 3, and of 2 on two ranks.
tr -d '"{}' <docs.jsonl | head -c 230 >eval.txt
for b in 7 3; do
    train eval$b eval_only=true eval_input_dir=eval.txt per_device_eval_batch_size=$b
    ok $? "seven windows evaluated in batches of $b" "$(tail -n 3 eval$b.log)"
done
"$PF_ROOT/scripts/mpirun-here" -n 2 "$PF_BIN/pf-train" config.json output_dir=eval2 eval_only=true \
    eval_input_dir=eval.txt per_device_eval_batch_size=2 >eval2.log 2>&1 </dev/null
ok $? "and on two ranks" "$(tail -n 3 eval2.log)"
for b in 3 2; do
    is "$(compare eval7 eval$b tokens eval)" same "r40_ragged_eval: batches of $b count the same targets"
    d=$(compare eval7 eval$b loss eval)
    within "$d" 1e-6
    ok $? "r40_ragged_eval: batches of $b give the loss of one batch within $d"
done

# A thread that reads ahead: the same bits, over skipped steps, and from where a resume starts.
for packing in true false; do
    words="packing=$packing shuffle=true skip_data_intervals=[[3,4],[7,7]]"
    # shellcheck disable=SC2086
    train plain-$packing $words save_steps=5 && train ahead-$packing $words save_steps=5 \
        dataloader_num_workers=4 prefetch_factor=3
    ok $? "runs with and without reading ahead, packing $packing" "$(tail -n 3 ahead-$packing.log)"
    is "$(compare plain-$packing ahead-$packing loss)" same "reading ahead changes no loss, packing $packing"
    cmp -s plain-$packing/hf/model.safetensors ahead-$packing/hf/model.safetensors
    ok $? "and no weight"
    cp -R ahead-$packing again-$packing
    rm -rf again-$packing/checkpoint-0000{10,12} again-$packing/hf
    echo checkpoint-000005 >again-$packing/latest
    # shellcheck disable=SC2086
    train again-$packing $words save_steps=5 resume_from_checkpoint=auto dataloader_num_workers=1
    ok $? "a resume reads ahead too" "$(tail -n 3 again-$packing.log)"
    cmp -s plain-$packing/hf/model.safetensors again-$packing/hf/model.safetensors
    ok $? "from where the run stood: the same weights"
done

# A fault in the data is told by the step that needs it, whoever reads: window 21 holds a byte that the
# vocabulary lacks, so steps 1 to 5 of four windows are trained.
sed 's/"vocab_size": 257/"vocab_size": 128/' config.json >narrow.json
{ head -c 690 /dev/zero | tr '\0' a; printf '\303'; head -c 700 /dev/zero | tr '\0' a; } >wide.txt
for workers in 0 1; do
    "$PF_BIN/pf-train" narrow.json output_dir=wide$workers input_dir=wide.txt shuffle=false \
        dataloader_num_workers=$workers >wide$workers.log 2>&1 </dev/null
    is $? 3 "$workers workers: a token beyond the vocabulary ends the run"
    is "$(grep -c '"step":' wide$workers/metrics.jsonl)" 5 "$workers workers: after the steps before it"
    grep -q "^pf-train: token id 195 at position 690 of 'wide.txt' is not below vocab_size 128" wide$workers.log
    ok $? "$workers workers: and is named" "$(tail -n 2 wide$workers.log)"
done

# A stop finds the thread wherever it is.
"$PF_BIN/pf-train" config.json output_dir=stopped max_steps=100000 dataloader_num_workers=1 \
    logging_steps=-1 >stopped.log 2>&1 </dev/null &
pid=$!
for _ in $(seq 200); do
    grep -q '"step":1,' stopped/metrics.jsonl 2>/dev/null && break
    sleep 0.05
done
kill -USR1 $pid
wait $pid
is $? 0 "a run that reads ahead stops when asked" "$(tail -n 2 stopped.log)"
[ -e stopped/latest ]
ok $? "and has saved"

# Lines that are none.
printf '{"text":"a"}\n{"text":}\n' >bad.jsonl
train bad input_dir=bad.jsonl
is $? 3 "a line that is no JSON is refused"
grep -q "^pf-train: 'bad.jsonl': line 2 byte 8: expected a string" bad.log
ok $? "by file and line" "$(tail -n 2 bad.log)"
printf '{"messages":[{"role":"user","content":"a"}]}\n' >sft.jsonl
train sft input_dir=sft.jsonl
is $? 7 "lines of messages are not in this build"
grep -q "^pf-train: 'sft.jsonl': line 1 holds 'messages'" sft.log
ok $? "by file and line" "$(tail -n 2 sft.log)"
train both packing=true mask_documents=false
is $? 2 "packing without masks is a contradiction"
done_testing
