#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A run that goes back: resume_from_checkpoint names an earlier checkpoint of an output_dir that
# holds later ones. When it reaches their steps it replaces them, each in one step: killed at any
# instant, the old or the new one is there, whole, and `latest` names a whole one.
set -u
. "$PF_ROOT/tests/tap.sh"
in_memory
killer=$PF_BUILD/tests/preload/killer.so
faults=$PF_BUILD/tests/preload/faults.so
train=$PF_BIN/pf-train
inspect=$PF_BIN/pf-inspect
case $PF_BUILD in */san-*)
    skip "a run that goes back" "a preloaded library and the sanitizer do not go together"
    done_testing
    ;;
esac

cat >config.json <<'JSON'
{ "model": { "model_type": "llama", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1 },
  "from_scratch": true, "input_dir": "synthetic:markov?vocab=32&order=1&seed=2", "max_seq_length": 8,
  "global_train_batch_size": 2, "per_device_train_batch_size": 1, "learning_rate": 1e-3, "lr_scheduler_type": "constant",
  "max_steps": 3, "logging_steps": 1, "save_steps": 1, "threads": 1, "output_dir": "out" }
JSON
"$train" -q config.json && mv out base
ok $? "three steps are saved"
fresh()
{
    rm -rf out && cp -R base out
}
back() # at another rate, so that what it saves differs
{
    $launch "$train" -q config.json resume_from_checkpoint=out/checkpoint-000001 learning_rate=2e-3 "$@"
}
launch=
equal()
{
    "$inspect" diff "$1" "$2" >/dev/null 2>&1
}
newest()
{
    "$inspect" show --json out | python3 -c 'import json, sys; print(json.load(sys.stdin)["step"])'
}

# What it must come to: the same in a directory that has only the first.
alone()
{
    rm -rf clean && fresh && rm -rf out/checkpoint-00000[23] && echo checkpoint-000001 >out/latest
    back && mv out clean
}
alone
ok $? "a run from the first checkpoint on"
equal base/checkpoint-000003 clean/checkpoint-000003
is $? 1 "at another rate the third is another"

fresh
back 2>err
ok $? "the same beside later checkpoints" "$(cat err)"
equal clean/checkpoint-000002 out/checkpoint-000002 &&
    equal clean/checkpoint-000003 out/checkpoint-000003
ok $? "has replaced them"
is "$(cat out/latest)" checkpoint-000003 "and latest"
is "$(ls -A out | tr '\n' ' ')" "$(ls -A base | tr '\n' ' ')" "and left nothing"
is "$(grep -c '"step":[23],"loss"' out/metrics.jsonl)" 2 "metrics.jsonl has each step once"

fresh
"$train" -q config.json 2>err
is $? 2 "a fresh run beside checkpoints is refused"
"$train" -q config.json resume_from_checkpoint=clean/checkpoint-000001 2>err
is $? 2 "and one that begins with another directory's"
grep -q "^pf-train: 'out' already holds checkpoints: set resume_from_checkpoint to one of them" err
ok $? "with advice" "$(cat err)"
ln -s out/checkpoint-000001 link
"$train" -q config.json resume_from_checkpoint=link output_dir="$PWD/out" max_steps=2 2>err
ok $? "one of its own by another path is its own" "$(cat err)"

# latest is the last that was saved, whatever its step.
fresh
back max_steps=2 2>err
is "$(cat out/latest)" checkpoint-000002 "after going back, latest is what was saved last"
is "$(newest)" 2 "and from there a run goes on, not from the later one that it left"
"$train" -q config.json resume_from_checkpoint=auto learning_rate=2e-3 2>err
equal clean/checkpoint-000003 out/checkpoint-000003
ok $? "auto goes on from there and replaces the rest" "$(cat err)"
fresh
back max_steps=2 save_total_limit=2 2>err
is "$(cd out && echo checkpoint-*)" "checkpoint-000001 checkpoint-000002" \
    "save_total_limit counts those that were left as the oldest"

# Where directories cannot be exchanged.
fresh
FAULT_AT=1 FAULT_HOW=EINVAL FAULT_PATHS=/out/ LD_PRELOAD=$faults back 2>err
is $? 4 "a filesystem that cannot exchange names: exit 4"
grep -qx "pf-train: cannot replace 'out/checkpoint-000002': its file system cannot exchange .*" err
ok $? "one line says what to do" "$(cat err)"
diff -r base/checkpoint-000002 out/checkpoint-000002 && [ -z "$(ls -d out/.s* 2>/dev/null)" ] &&
    [ "$(cat out/latest)" = checkpoint-000003 ]
ok $? "and all is as it was"

# Killed just before each rename (exchanges are renames), each sync of a directory, and each removal of
# what was replaced.
either() # STEP: old or new, and whole
{
    equal base/checkpoint-00000$1 out/checkpoint-00000$1 ||
        equal clean/checkpoint-00000$1 out/checkpoint-00000$1
}
either_export()
{
    diff -r base/hf out/hf >/dev/null || diff -r clean/hf out/hf >/dev/null
}
check_kill() # LABEL
{
    "$inspect" verify -q out >what 2>&1 || sed 's/^/# verify: /' what
    [ "$(cat what)" = "no fault in out" ] && either 1 && either 2 && either 3 && either_export &&
        [ -f out/latest ] && [ "$(newest)" -ge 2 ]
    local held=$?
    back >again 2>&1 && equal clean/checkpoint-000003 out/checkpoint-000003 &&
        [ "$(ls -A out | tr '\n' ' ')" = "$(ls -A base | tr '\n' ' ')" ]
    local again=$?
    [ $held = 0 ] && [ $again = 0 ] || {
        bad=$((bad + 1))
        echo "# $1: $(cat hit) (held $held, again $again)"
        head -n 2 again | sed 's/^/#   /'
        ls -A out | tr '\n' ' ' | sed 's/^/#   /'
    }
}
for calls in rename unlink; do
    kills=0 bad=0
    for ((n = 1; n < 40; n++)); do
        fresh
        rm -f hit
        KILL_CALLS=$calls KILL_PATH=out/ KILL_AT=$n KILL_LOG=$PWD/hit LD_PRELOAD=$killer back >log 2>&1
        [ $? = 137 ] || break
        kills=$((kills + 1))
        check_kill "$calls $n"
    done
    ok $((kills < 5)) "killed before each of $kills calls of $calls"
    is $bad 0 "each time old or new is whole, the export too, latest is right, and the run can be repeated"
done

if ! command -v "${PF_MPIRUN:-mpirun}" >/dev/null; then
    skip "two ranks" "there is no mpirun here"
    done_testing
fi
launch="$PF_ROOT/scripts/mpirun-here -n 2"
alone 2>err
ok $? "the same on two ranks" "$(cat err)"
bad=0
for at in 1 2; do
    fresh
    rm -f hit
    KILL_CALLS=rename KILL_PATH=staging-checkpoint KILL_AT=$at KILL_LOG=$PWD/hit LD_PRELOAD=$killer back >log 2>&1
    is $? 137 "two ranks, killed before exchange $at"
    check_kill "exchange $at of two ranks"
done
is $bad 0 "two ranks: old or new is whole, and the run can be repeated"
done_testing
