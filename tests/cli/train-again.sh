#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# An output_dir in which a run has been: what may be looked at, what is refused, what is kept, and what is told.
set -u
. "$PF_ROOT/tests/tap.sh"
train=$PF_BIN/pf-train
cat >config.json <<'JSON'
{ "model": { "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2 },
  "from_scratch": true, "input_dir": "synthetic:markov?vocab=64&order=1&tokens=4096", "output_dir": "out",
  "max_steps": 3, "max_seq_length": 16, "per_device_train_batch_size": 2, "save_steps": 2, "threads": 1 }
JSON

# refuses STATUS WORDS [ARG...]: fails with that status and one line that holds the words; no output.
refuses()
{
    local status=$1 words=$2 got
    shift 2
    "$train" "$@" >out.txt 2>err.txt
    got=$?
    if [ $got = "$status" ] && [ ! -s out.txt ] && [ "$(wc -l <err.txt)" = 1 ] && grep -qF -- "$words" err.txt; then
        ok 0 "exit $status: pf-train $*"
    else
        ok 1 "exit $status: pf-train $*" "exit $got" "$(cat err.txt)" "wanted: $words"
    fi
}

"$train" -q config.json 2>err.txt
ok $? "a run that saves" "$(cat err.txt)"
refuses 2 "'out' already holds checkpoints" config.json
refuses 2 "'out' already holds checkpoints" --check config.json
cp -R out before
"$train" --plan config.json >plan.txt 2>err.txt
is $? 0 "a plan writes nothing, so it may name a directory that holds checkpoints"
grep -q '^length     3 steps' plan.txt && [ ! -s err.txt ]
ok $? "and is the same plan" "$(cat plan.txt err.txt)"
"$train" --plan config.json resume_from_checkpoint=before >plan.txt 2>err.txt
is $? 0 "also one that would begin from another directory's checkpoint"
diff -r before out >diff.txt
ok $? "and nothing was written" "$(cat diff.txt)"

# Its checkpoint is a model to start from, as its export is; so is the directory itself.
for from in out/hf out/checkpoint-000003 out; do
    "$train" -q config.json model=null from_scratch=false model_name_or_path=$from output_dir=from-${from##*/} \
        max_steps=1 save_steps=-1 learning_rate=0 2>err.txt
    ok $? "a run that starts from $from" "$(cat err.txt)"
    cmp out/hf/model.safetensors from-${from##*/}/hf/model.safetensors >diff.txt 2>&1
    ok $? "... has its weights" "$(cat diff.txt)"
done
"$train" -q config.json model=null model_name_or_path=out/checkpoint-000003 output_dir=anew save_steps=-1 2>err.txt &&
    cmp out/hf/model.safetensors anew/hf/model.safetensors >diff.txt 2>&1
ok $? "from_scratch takes its architecture alone" "$(cat err.txt diff.txt)"
cp -R out/checkpoint-000003 torn && truncate -s -1 torn/manifest.json
refuses 3 "'torn/manifest.json' does not end in its digest" config.json model=null model_name_or_path=torn output_dir=new
rm torn/manifest.json
refuses 4 "cannot open 'torn/config.json': No such file or directory" config.json model=null model_name_or_path=torn \
    output_dir=new

# Nothing left to do.
"$train" config.json resume_from_checkpoint=auto max_steps=2 >out.txt 2>err.txt
is $? 0 "a resume behind max_steps ends with 0"
is "$(grep -c "step 3 of 2 is done already: nothing is trained" err.txt)" 1 "and says why nothing happens"
"$train" config.json resume_from_checkpoint=auto >out.txt 2>err.txt
is "$?:$(grep -c "step 3 of 3 is done already: nothing is trained" err.txt)" 0:1 "so does one of a run that is done"

# Without a checkpoint a run begins anew; what the one before wrote down is not lost.
"$train" -q config.json output_dir=plain save_steps=-1 2>err.txt
cp plain/metrics.jsonl first.jsonl
"$train" config.json output_dir=plain save_steps=-1 max_steps=2 2>err.txt
ok $? "a run without checkpoints may be started again" "$(cat err.txt)"
cmp first.jsonl plain/metrics-1.jsonl >diff.txt 2>&1
ok $? "the lines of the first are kept" "$(cat diff.txt)"
is "$(grep -c "the lines of an earlier run are kept as 'plain/metrics-1.jsonl'" err.txt)" 1 "a person is told where"
is "$(grep -c '"event":"start"' plain/metrics.jsonl)" 1 "and metrics.jsonl holds the new run alone"
"$train" -q config.json output_dir=plain save_steps=-1 2>err.txt
cmp -s first.jsonl plain/metrics-1.jsonl && [ "$(grep -c '"loss"' plain/metrics-2.jsonl)" = 2 ]
ok $? "a third run keeps both" "$(ls plain)"
printf '{"event":"start","schema":1}\n' >plain/metrics.jsonl
"$train" -q config.json output_dir=plain save_steps=-1 2>err.txt
[ ! -e plain/metrics-3.jsonl ]
ok $? "a run that made no step leaves nothing to keep" "$(ls plain)"

# What would fail at the end is found at the start.
in_the_way() # NAME WANTED COMMAND...: what the command makes as way/NAME is no WANTED
{
    local name=$1 wanted=$2
    shift 2
    rm -rf way && mkdir way && echo '{}' >way/pf.json
    "$@" "way/$name"
    refuses 2 "'way/$name' is in the way of a $wanted" config.json output_dir=way save_steps=-1
    is "$(find way -name metrics.jsonl -type f)" "" "by $1, which is found before anything is trained"
}
in_the_way hf directory touch
in_the_way hf directory ln -s "$PWD"
in_the_way latest file mkdir
in_the_way metrics.jsonl file mkfifo
"$PF_BIN/pf-inspect" run way >out.txt 2>err.txt
is "$? $(cat err.txt)" "4 pf-inspect: 'way/metrics.jsonl' is not a regular file" "pf-inspect run does not wait for it"

# Stopping what does not run.
refuses 2 "no run is active in 'out'" --stop out
[ ! -e out/stop ]
ok $? "--stop leaves nothing behind where no run is active" "$(ls out)"
done_testing
