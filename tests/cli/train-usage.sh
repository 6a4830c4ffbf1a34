#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pf-train's help, version, plan and check, stopping a run, and what it says to a mistake.
set -u
. "$PF_ROOT/tests/tap.sh"
train=$PF_BIN/pf-train

# refuses STATUS WORDS [ARG...]: fails with that status and one line that holds the words; no output.
refuses()
{
    local status=$1 words=$2 got
    shift 2
    "$train" "$@" >out.txt 2>err.txt
    got=$?
    if [ $got = "$status" ] && [ ! -s out.txt ] && [ "$(wc -l <err.txt)" = 1 ] &&
        grep -qF -- "$words" err.txt && grep -q '^pf-train: ' err.txt; then
        ok 0 "exit $status: pf-train $*"
    else
        ok 1 "exit $status: pf-train $*" "exit $got" "$(cat err.txt)" "wanted: $words"
    fi
}

# Claims about the JSON document in a file.
json()
{
    python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); assert eval("(" + sys.argv[2] + ")"), d' "$1" "$2"
}

cat >config.json <<'JSON'
{ "model": { "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2 },
  "from_scratch": true, "input_dir": "synthetic:markov?vocab=64&order=1&tokens=4096", "output_dir": "out",
  "max_steps": 3, "max_seq_length": 16, "per_device_train_batch_size": 2,
  "gradient_accumulation_steps": 3, "save_steps": -1, "threads": 1 }
JSON

"$train" --help >out.txt 2>err.txt
is $? 0 "--help: exit 0"
[ ! -s err.txt ]
ok $? "--help: nothing on stderr"
for word in 'usage: pf-train' mpirun --plan --check '--stop DIR' --compare-layout --supervise --launch \
    --json --no-progress --quiet --verbose --version; do
    grep -qF -- "$word" out.txt
    ok $? "--help tells of $word"
done
cp out.txt long.txt
"$train" -h >out.txt
cmp -s out.txt long.txt
ok $? "-h is --help"
is "$("$train" --version)" "pf-train 0.1.0" "--version"
"$train" -V -v >out.txt
for word in features compiler flags comm kernels; do
    grep -q "^  $word " out.txt
    ok $? "-V -v tells of $word"
done

refuses 2 "give a config; see 'pf-train --help'"
refuses 2 "'--plam'" --plam config.json
refuses 2 "'max_steps' is not key=value" config.json max_steps
refuses 2 "--stop takes no config" --stop out config.json
refuses 2 "'nowhere' is not the output_dir of a run" --stop nowhere
refuses 2 "unknown word 'tq' in a layout: did you mean 'tp'?" --compare-layout tq=2 config.json
refuses 7 "--supervise is not in this build" --supervise --launch 'mpirun -n 2' config.json
refuses 2 "unknown device 'none'" --plan config.json device=none
refuses 7 "cuda" --plan config.json device=cuda
for family in mixtral qwen3_moe ernie4_5_moe; do
    refuses 7 "$family needs experts, which this build does not train yet" --plan config.json model=null \
        "model_name_or_path=$PF_ROOT/tests/fixtures/hf/$family/config.json"
done
refuses 7 "deepseek_v3 needs experts" --plan config.json model=null \
    "model_name_or_path=$PF_ROOT/tests/fixtures/hf/deepseek_v3/config.json"

"$train" --plan config.json >plan.txt 2>err.txt
is $? 0 "--plan: exit 0"
[ ! -s err.txt ] && [ ! -e out ]
ok $? "--plan: says nothing else and starts nothing" "$(cat err.txt)"
for words in 'model      llama: 2 layers, hidden 32, 4 heads (2 of keys)' \
    'layout     1 rank: dp=1 sharding=1 pp=1 cp=1 tp=1' \
    'batch      2 sequences x 3 micro-batches x 1 data-parallel ranks = 6 sequences a step, of 16 tokens: 96' \
    'length     3 steps' 'schedule   1F1B, at most 1 micro-batch alive' \
    'stage 0: F0 B0 F1 B1 F2 B2' 'gemm=' 'activations' 'total'; do
    grep -qF -- "$words" plan.txt
    ok $? "--plan prints: $words" "$(cat plan.txt)"
done
"$train" --plan --json config.json pipeline_schedule_mode=FThenB >plan.json
json plan.json 'd["schema"] == 1 and d["schedule"]["mode"] == "FThenB" and
    d["schedule"]["peak_live_micro_batches"] == 3 and
    d["schedule"]["stages"] == ["F0 F1 F2 B0 B1 B2"] and d["batch"]["global_sequences"] == 6 and
    d["memory"]["total_bytes"] == sum(v for k, v in d["memory"].items() if k != "total_bytes") and
    d["memory"]["parameters_bytes"] >= 4 * d["parameters"] and d["total_steps"] == 3'
ok $? "--plan --json is one document with the same in it" "$(cat plan.json)"
"$PF_ROOT/scripts/mpirun-here" -n 2 "$train" --plan --json config.json >plan.json 2>err.txt
json plan.json 'd["world_size"] == 2 and d["mesh"]["dp"] == 2 and d["batch"]["global_sequences"] == 12'
ok $? "under mpirun one rank prints it, for all" "$(cat plan.json err.txt)"
"$train" --plan config.json pipeline_model_parallel_size=2 >plan.txt 2>err.txt
for words in 'bubble 25.0%' 'traffic    sent in a step by each rank' 'stage 1: pp 12.0 KiB, '; do
    grep -qF -- "$words" plan.txt
    ok $? "--plan of two stages prints: $words" "$(cat plan.txt err.txt)"
done

"$train" --plan --json config.json max_steps=-1 >plan.json
json plan.json 'd["total_steps"] is None'
ok $? "--plan does not count the steps of an epoch"
"$train" --check --json config.json max_steps=-1 >plan.json
json plan.json 'd["total_steps"] == 43'
ok $? "--check does: 256 sequences, 6 a step"
"$train" --check config.json 'eval_input_dir=synthetic:markov?vocab=64&order=1&stream=1&tokens=320' >plan.txt
grep -q '^data       synthetic:markov.*: 4096 tokens' plan.txt && grep -q '^evaluation synthetic:markov.*: 320 tokens' plan.txt
ok $? "and tells what the data are" "$(cat plan.txt)"
refuses 4 "none.txt" --check config.json input_dir=none.txt tokenizer=bytes
[ ! -e out ]
ok $? "--check makes no output_dir"

"$train" --json config.json >lines.txt 2>err.txt
is $? 0 "a run with --json ends well"
cmp -s lines.txt out/metrics.jsonl
ok $? "and prints the lines of metrics.jsonl"
"$train" --json config.json output_dir=piped logging_steps=1 2>err2.txt | head -n 1 >out.txt
is "${PIPESTATUS[0]} $(wc -l <out.txt) $(grep -c '"loss"' piped/metrics.jsonl)" "0 1 3" \
    "a reader that goes away does not end the run" "$(cat err2.txt)"
python3 -c 'import os, subprocess, sys
r, w = os.pipe()
os.close(r)
sys.exit(subprocess.call(sys.argv[1:], stdout=w))' "$train" --json config.json output_dir=unread 2>err2.txt
is "$? $(tail -n 1 unread/metrics.jsonl | grep -c '"reason":"done"')" "0 1" "nor one that was never there"
is "$(grep -c 'nobody reads the output any more' err2.txt)" 1 "but a person is told, once"
if [ -e /dev/full ]; then
    "$train" -q --json config.json output_dir=full >/dev/full 2>err2.txt
    is "$? $(cat err2.txt)" "4 pf-train: cannot write metrics to the output: No space left on device" \
        "a full disk under the output does"
else
    skip "a full disk under the output" "no /dev/full"
fi
grep -q 'step *3/3  loss' err.txt
ok $? "a person sees a line for the last step" "$(cat err.txt)"
"$train" -q config.json output_dir=quiet >out.txt 2>err.txt
[ ! -s out.txt ] && [ ! -s err.txt ]
ok $? "-q: neither output nor messages" "$(cat err.txt)"

# A stop: the run saves, ends with 0, says why, and can go on.
"$train" config.json output_dir=long max_steps=1000000 logging_steps=-1 >out.txt 2>err.txt &
run=$!
for _ in $(seq 100); do
    [ -s long/metrics.jsonl ] && break
    sleep 0.1
done
"$train" --stop long
is $? 0 "--stop: exit 0"
wait $run
is $? 0 "the run that was asked to stop ends with 0"
tail -n 1 long/metrics.jsonl | grep -q '"event":"end".*"reason":"signal"'
ok $? "its last line says why" "$(tail -n 1 long/metrics.jsonl)"
[ -s long/latest ] && [ ! -e long/stop ]
ok $? "it saved, and took the wish away"
"$train" config.json output_dir=long max_steps=1000000 logging_steps=-1 resume_from_checkpoint=auto \
    >out.txt 2>err.txt &
run=$!
for _ in $(seq 100); do
    [ "$(grep -c '"event":"start"' long/metrics.jsonl)" = 2 ] && break
    sleep 0.1
done
kill -TERM $run
wait $run
is $? 0 "SIGTERM does the same to the run that went on"
"$train" --check config.json output_dir=long resume_from_checkpoint=auto >plan.txt
grep -qE '^resume     long/checkpoint-[0-9]+, after step [0-9]+$' plan.txt
ok $? "--check says where a resumed run begins" "$(cat plan.txt)"
done_testing
