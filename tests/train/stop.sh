#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Stopping, as pf-train(1) says it: SIGUSR1 to mpirun, SIGTERM at one rank, pf-train --stop from another shell, Ctrl-C:
# all ranks finish the step, save, and end with 0 and the reason; the checkpoint goes on where it was. And
# eval_only, which trains nothing.
set -u
. "$PF_ROOT/tests/tap.sh"
train=$PF_BIN/pf-train
cat >config.json <<'JSON'
{ "model": { "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2 },
  "from_scratch": true, "input_dir": "synthetic:markov?vocab=64&order=1&tokens=4096",
  "max_steps": 1000000, "max_seq_length": 16, "global_train_batch_size": 2, "per_device_train_batch_size": 1,
  "logging_steps": 1, "save_steps": -1, "threads": 1, "comm_timeout": 60 }
JSON
launch() # OUT: two ranks in the background; $run is mpirun. Returns when steps are being made.
{
    "$PF_ROOT/scripts/mpirun-here" -n 2 "$train" config.json output_dir="$1" >"$1.log" 2>&1 </dev/null &
    run=$!
    for _ in $(seq 300); do
        [ "$(grep -c '"step"' "$1/metrics.jsonl" 2>/dev/null)" -ge 3 ] 2>/dev/null && return
        sleep 0.1
    done
}
# The processes that run pf-train below mpirun.
ranks()
{
    pgrep -P "$run" -f pf-train
}
stopped() # OUT HOW: the run has ended as a stop ends it
{
    local out=$1 how=$2 status step
    wait "$run"
    status=$?
    is $status 0 "$how: mpirun ends with 0"
    tail -n 1 "$out/metrics.jsonl" | grep -q '"event":"end".*"reason":"signal"'
    ok $? "$how: the last line says end, reason signal" "$(tail -n 2 "$out/metrics.jsonl")" "$(tail -n 3 "$out.log")"
    step=$(sed -n '$s/.*"step":\([0-9]*\).*/\1/p' "$out/metrics.jsonl")
    is "$(cat "$out/latest")" "$(printf 'checkpoint-%06d' "$step")" "$how: the step that it names was saved"
    "$PF_BIN/pf-inspect" verify "$out/$(cat "$out/latest")" >verify.log 2>&1
    ok $? "$how: whole" "$(tail -n 2 verify.log)"
    grep -q "stopped after step $step of 1000000" "$out.log"
    ok $? "$how: a person is told" "$(tail -n 3 "$out.log")"
    [ ! -e "$out/hf" ] && [ ! -e "$out/stop" ]
    ok $? "$how: nothing is exported, the wish is gone"
}

launch usr1
kill -USR1 "$run"
stopped usr1 "SIGUSR1 to mpirun"

launch term
# shellcheck disable=SC2046
kill -TERM $(ranks | tail -n 1)
stopped term "SIGTERM at one rank"

launch file
"$train" --stop file
ok $? "pf-train --stop ends with 0"
stopped file "pf-train --stop"

# Ctrl-C without mpirun. A shell's background process ignores SIGINT, unless it is told not to.
alone() # OUT [key=value...]: one process in the background, $run; returns when steps are being made
{
    local out=$1
    shift
    env --default-signal=INT "$train" config.json output_dir="$out" "$@" >"$out.log" 2>&1 </dev/null &
    run=$!
    for _ in $(seq 300); do
        [ "$(grep -c '"step"' "$out/metrics.jsonl" 2>/dev/null)" -ge 3 ] 2>/dev/null && return
        sleep 0.1
    done
}
alone int
kill -INT "$run"
stopped int "SIGINT without mpirun"
is "$(grep -c 'saving and stopping after this step; Ctrl-C again ends at once' int.log)" 1 "and a person is told at once"

# Within a step, which here takes long, the second Ctrl-C is heard; so is the first where nothing is trained.
await() # PATTERN FILE
{
    for _ in $(seq 300); do
        grep -q "$1" "$2" 2>/dev/null && return
        sleep 0.1
    done
}
env --default-signal=INT "$train" config.json output_dir=twice per_device_train_batch_size=8 \
    global_train_batch_size=400000 >twice.log 2>&1 </dev/null &
run=$!
await '"event":"start"' twice/metrics.jsonl
kill -INT "$run"
await 'Ctrl-C again' twice.log
kill -INT "$run"
wait "$run"
is $? 130 "a second SIGINT ends the run by the signal" "$(tail -n 3 twice.log)"
is "$(grep -c '"step"' twice/metrics.jsonl):$(find twice -name 'checkpoint-*')" 0: "within the step, without a checkpoint"

alone held
holder=$run
env --default-signal=INT "$train" config.json output_dir=held resume_from_checkpoint=auto >waits.log 2>&1 </dev/null &
run=$!
await '^SigBlk:.*0000004202$' "/proc/$run/status" # it waits for the directory
kill -INT "$run"
wait "$run"
is $? 130 "one is enough for a run that has not begun to train" "$(cat waits.log)"
run=$holder
kill -INT "$run"
stopped held "SIGINT to the run that it waited for"

# The stopped run goes on, and equals one that was not stopped.
step=$(sed -n '$s/.*"step":\([0-9]*\).*/\1/p' usr1/metrics.jsonl)
more=(lr_scheduler_type=constant learning_rate=0 max_steps=$((step + 2)))
"$PF_ROOT/scripts/mpirun-here" -n 2 "$train" config.json output_dir=usr1 resume_from_checkpoint=auto \
    "${more[@]}" >again.log 2>&1 </dev/null
ok $? "a stopped run goes on" "$(tail -n 3 again.log)"
is "$(grep -c '"step":[0-9]*,"loss"' usr1/metrics.jsonl)" $((step + 2)) "every step is logged once"
tail -n 1 usr1/metrics.jsonl | grep -q '"event":"end".*"reason":"done"'
ok $? "and then the reason is done"

# eval_only: one evaluation of the weights that were exported, and nothing else.
"$train" config.json output_dir=eval eval_only=true model=null model_name_or_path=usr1/hf from_scratch=false \
    'eval_input_dir=synthetic:markov?vocab=64&order=1&stream=1&tokens=256' input_dir=none.txt >eval.log 2>&1
ok $? "eval_only, which does not open what is named for training" "$(tail -n 3 eval.log)"
is "$(grep -c 'data: synthetic:markov?vocab=64&order=1&stream=1&tokens=256:' eval.log)" 1 "and names what it measures"
is "$(grep -o '"event":"[a-z]*"' eval/metrics.jsonl | tr '\n' ' ')" '"event":"start" "event":"eval" "event":"end" ' \
    "starts, evaluates, ends"
grep -q '"event":"end".*"reason":"done"' eval/metrics.jsonl
ok $? "reason done"
is "$(ls eval | tr '\n' ' ')" "config.json metrics.jsonl pf.json tb " "saves and exports nothing"
done_testing
