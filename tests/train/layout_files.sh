#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a run leaves behind under a layout, against one process: logits, hidden states and gradients of dumps, text
# that the model writes, checkpoints, the exported model. To the bit where only the pipeline cuts the model, else
# within rounding; and a run that another layout resumes goes on as the unbroken one.
set -u
. "$PF_ROOT/tests/tap.sh"
for i in $(seq 300); do echo "the $i quick brown fox jumps over the lazy dog number $i."; done >text.txt
cat >config.json <<'JSON'
{ "model": { "model_type": "llama", "vocab_size": 259, "hidden_size": 48, "intermediate_size": 96,
             "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2,
             "tie_word_embeddings": true },
  "from_scratch": true, "input_dir": "text.txt", "tokenizer": "bytes", "max_steps": 6, "max_seq_length": 32,
  "per_device_train_batch_size": 1, "global_train_batch_size": 8, "learning_rate": 1e-2, "save_steps": 3,
  "sample_prompt": "the ", "sample_steps": 3, "sample_tokens": 12, "sample_temperature": 1,
  "dump": "logits,hidden,grads", "dump_steps": [1, 4], "logging_steps": 1, "threads": 1 }
JSON
train() # RANKS OUT WORD...
{
    local n=$1 out=$2
    shift 2
    "$PF_ROOT/scripts/mpirun-here" -n "$n" "$PF_BIN/pf-train" config.json output_dir="$out" "$@" >out.txt 2>err.txt
}
texts()
{
    python3 -c 'import json, sys
for line in map(json.loads, open(sys.argv[1] + "/metrics.jsonl")):
    if line.get("event") == "sample":
        print(line["step"], line["text"].encode("unicode_escape").decode())' "$1"
}
# losses A B TOLERANCE: of steps 4 to 6, relative
losses()
{
    python3 -c 'import json, sys
def read(d):
    lines = map(json.loads, open(d + "/metrics.jsonl"))
    return [l["loss"] for l in lines if l.get("step", 0) > 3 and "loss" in l and "event" not in l]
a, b = read(sys.argv[1]), read(sys.argv[2])
assert len(a) == len(b) == 3, (a, b)
assert all(abs(x - y) <= float(sys.argv[3]) * x for x, y in zip(a, b)), (a, b)' "$@"
}
# same OUT TOLERANCE CLAIM: everything that a run left, with 0 to the bit
same()
{
    local out=$1 tolerance=$2 claim=$3 bad='' file
    for file in logits hidden grads; do
        for step in 000001 000004; do
            "$PF_BIN/pf-inspect" diff --rtol "$tolerance" --atol "$tolerance" "one/dump/step-$step/$file.safetensors" \
                "$out/dump/step-$step/$file.safetensors" >diff.txt 2>&1 || bad="$bad $file of $step: $(tail -n 1 diff.txt);"
        done
    done
    is "$bad" '' "$claim: dumps"
    is "$(texts "$out")" "$(texts one)" "$claim: the text that it writes"
    [ "$tolerance" = 0 ] || tolerance=1e-5
    losses one "$out" "$tolerance" 2>bad.txt
    ok $? "$claim: losses" "$(tail -n 1 bad.txt)"
}

train 1 one
ok $? "one process" "$(tail -n 3 err.txt)"
is "$(texts one | wc -l)" 2 "writes two texts"

tp=tensor_model_parallel_size pp=pipeline_model_parallel_size vpp=virtual_pipeline_model_parallel_size
first=num_layers_in_first_pipeline_stage
train 2 pp2 $pp=2 $first=2
ok $? "two stages of 2 and 3 layers" "$(tail -n 3 err.txt)"
same pp2 0 "two stages"
"$PF_BIN/pf-inspect" diff one/checkpoint-000006 pp2/checkpoint-000006 >diff.txt 2>&1
ok $? "two stages: the last checkpoint is identical" "$(tail -n 1 diff.txt)"
cmp -s one/hf/model.safetensors pp2/hf/model.safetensors
ok $? "two stages: so is the exported model"
train 2 vpp2 $pp=2 $vpp=2 pp_seg_method=0:1:3:4
ok $? "two stages of two chunks" "$(tail -n 3 err.txt)"
same vpp2 0 "two chunks a stage"
train 2 tp2 $tp=2
ok $? "two tensor-parallel ranks" "$(tail -n 3 err.txt)"
same tp2 1e-4 "two tensor-parallel ranks"
train 4 mixed $tp=2 $pp=2 $first=3 sequence_parallel=true
ok $? "tensor, sequence and pipeline parallel" "$(tail -n 3 err.txt)"
same mixed 1e-4 "tensor, sequence and pipeline parallel"

# The stages keep what they are to send; rank 0 takes it all, also when its disk is full.
for file in logits hidden grads; do
    FAULT_PATHS=$file.safetensors FAULT_AT=3 FAULT_HOW=ENOSPC FAULT_RANK=0 LD_PRELOAD=$PF_BUILD/tests/preload/faults.so \
        train 2 full $pp=2 $first=2 max_steps=1
    is $? 4 "a disk that is full while a dump of $file is written ends the run with status 4"
    grep '^pf-train: ' err.txt | grep -c 'No space left on device' | grep -qx 1
    ok $? "a full disk: said once" "$(tail -n 3 err.txt)"
    [ ! -e full/dump/step-000001 ]
    ok $? "a full disk: nothing half written has the name of a dump"
done

# Into other layouts, from what any wrote at step 3.
resume() # RANKS OUT FROM TOLERANCE WORD...
{
    local n=$1 out=$2 from=$3 tolerance=$4
    shift 4
    train "$n" "$out" resume_from_checkpoint="$from/checkpoint-000003" "$@"
    ok $? "$out: is resumed" "$(tail -n 3 err.txt)"
    losses one "$out" "$tolerance" 2>bad.txt
    ok $? "$out: goes on as one process without a break" "$(tail -n 1 bad.txt)"
}
resume 2 one-to-pp2 one 0 $pp=2 $first=1
resume 1 pp2-to-one pp2 0
resume 4 one-to-mixed one 1e-5 $tp=2 $pp=2 $first=2
resume 2 mixed-to-dp2 mixed 1e-5
is "$(ls mixed/checkpoint-000003 | wc -l)" 9 "four ranks wrote their parts"
done_testing
