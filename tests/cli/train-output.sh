#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What lies in output_dir before a run: nothing of the user's is lost, and two runs do not share one.
set -u
. "$PF_ROOT/tests/tap.sh"
train=$PF_BIN/pf-train
qwen=$PF_ROOT/tests/fixtures/hf/qwen3

cat >run.json <<'JSON'
{ "model_name_or_path": "model", "input_dir": "synthetic:markov?vocab=32", "max_seq_length": 16,
  "per_device_train_batch_size": 2, "max_steps": 2, "save_steps": -1, "threads": 1, "output_dir": "out" }
JSON
model() # DIR: a model with a tokenizer
{
    mkdir -p "$1" && cp "$qwen/config.json" "$qwen/model.safetensors" "$1" && echo '{}' >"$1/tokenizer.json"
}
model model

# refused WORDS CLAIM DIR ARG...: exit 2, one line with the words, and DIR is as it was.
refused()
{
    local words=$1 claim=$2 dir=$3 status before
    shift 3
    before=$(find "$dir" -type f -exec cksum {} + | sort)
    "$train" -q run.json "$@" >stdout 2>stderr
    status=$?
    if [ $status = 2 ] && [ "$(wc -l <stderr)" = 1 ] && grep -qF -- "$words" stderr &&
        [ "$(find "$dir" -type f -exec cksum {} + | sort)" = "$before" ]; then
        ok 0 "$claim"
    else
        ok 1 "$claim" "exit $status" "$(cat stderr)" "$(ls -R "$dir")"
    fi
}
refused "'model' holds a 'config.json' that is of no run" "output_dir must not be the model" model output_dir=model
model here/hf
refused "'here' holds a 'hf' that is of no run" "nor hold a directory hf that no run wrote" here \
    output_dir=here model_name_or_path=here/hf
for name in metrics.jsonl dump tb; do
    mkdir -p "has-$name/$name"
    touch "has-$name/$name/file"
    refused "'has-$name' holds a '$name' that is of no run" "nor a $name" "has-$name" "output_dir=has-$name"
done

"$train" -q run.json >stdout 2>stderr
ok $? "a run in a new output_dir" "$(cat stderr)"
echo old >out/hf/marker
"$train" -q run.json seed=2 >stdout 2>stderr
ok $? "the export of an earlier run is replaced" "$(cat stderr)"
[ ! -e out/hf/marker ] && [ -s out/hf/tokenizer.json ] && "$PF_BIN/pf-inspect" verify out/hf >verify.txt
ok $? "whole, tokenizer and all" "$(ls -A out/hf)"
is "$(ls -A out | tr '\n' ' ')" "config.json hf metrics-1.jsonl metrics.jsonl pf.json tb " \
    "and nothing else stays in output_dir, but the lines of the run before"

# A stop that was asked for in the last instant of a run must not end the next one.
: >out/stop
"$train" -q run.json >stdout 2>stderr
tail -n 1 out/metrics.jsonl | grep -q '"reason":"done"'
ok $? "a wish to stop that came after the end does not stop the next run" "$(tail -n 1 out/metrics.jsonl)"

# Two at once: the second waits a little for the first to go away, and then leaves it alone.
"$train" -q run.json output_dir=busy max_steps=1000000 save_steps=50 >stdout1 2>stderr1 &
first=$!
for _ in $(seq 100); do
    [ -s busy/latest ] && break
    sleep 0.1
done
"$train" -q run.json output_dir=busy max_steps=1000000 resume_from_checkpoint=auto comm_timeout=2 >stdout 2>stderr
is $? 2 "a second run in the same output_dir is refused"
is "$(cat stderr)" "pf-train: 'busy' is in use by another run" "and says why"
kill -TERM $first
wait $first
is $? 0 "the first one goes on, and ends well"
"$PF_BIN/pf-inspect" verify busy >verify.txt 2>&1
ok $? "what it saved is whole" "$(cat verify.txt)"
"$train" -q run.json output_dir=busy max_steps=1000000 resume_from_checkpoint=auto >stdout1 2>stderr1 &
first=$!
sleep 1
{ kill -KILL $first && wait $first; } 2>kill.txt
"$train" -q run.json output_dir=busy max_steps=1 resume_from_checkpoint=auto save_steps=-1 >stdout 2>stderr
is $? 0 "a run that was killed holds output_dir no longer"
done_testing
