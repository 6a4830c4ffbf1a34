#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pf-reshard killed at every system call and resumed; every system call failing once; a source that
# changes; targets that cannot be written. Under the final name there is nothing or all of it, the
# source is never touched, and a run that is resumed writes what an undisturbed one does.
#   RESHARD_FAULTS=all: of two processes every call fails, not every tenth, and every allocation.
set -u
. "$PF_ROOT/tests/tap.sh"
in_memory
killer=$PF_BUILD/tests/preload/killer.so
faults=$PF_BUILD/tests/preload/faults.so
reshard=$PF_BIN/pf-reshard
case $PF_BUILD in */san-*)
    skip "kills and faults" "a preloaded library and the sanitizer do not go together"
    done_testing
    ;;
esac

cat >config.json <<'JSON'
{ "model": { "model_type": "llama", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": true },
  "from_scratch": true, "input_dir": "synthetic:markov?vocab=32&order=1&seed=2", "max_seq_length": 8,
  "per_device_train_batch_size": 1, "max_steps": 1, "save_steps": 1, "threads": 1, "output_dir": "out" }
JSON
"$PF_BIN/pf-train" -q config.json && cp -R out/checkpoint-000001 src
ok $? "a source is saved"
layout=tp=2,pp=2,sharding=2
go() { "$reshard" -q src dst --to $layout --threads 1 "$@"; }
go && mv dst clean
ok $? "an undisturbed run"

# broken: what is not as it must be after a run that did not end well
broken()
{
    [ ! -e dst ] || diff -r clean dst >/dev/null || echo "something else is under the final name"
    diff -r src out/checkpoint-000001 >/dev/null || echo "the source was touched"
}
fresh()
{
    rm -rf dst .staging-dst
}

KILL_COUNT=count KILL_PATH=dst LD_PRELOAD=$killer go
total=$(tr -dc 0-9 <count)
bad=0 resumed=0 kept=0
for ((n = 1; n <= total; n++)); do
    fresh
    KILL_AT=$n KILL_PATH=dst KILL_LOG=hit LD_PRELOAD=$killer go 2>/dev/null
    status=$?
    {
        [ $status = 137 ] || echo "status $status"
        broken
        if [ -e dst ]; then
            [ ! -e .staging-dst ] || echo "both are there"
        else
            go 2>err
            [ "$?" = 2 ] && grep -q "'.staging-dst' is left from an earlier run: give --resume" err ||
                [ ! -e .staging-dst ] || echo "not refused without --resume: $(cat err)"
            fresh_start=$([ -e dst ] && echo yes)
            [ -n "$fresh_start" ] || go --resume --json >json 2>err || echo "not resumed: $(cat err)"
            kept=$((kept + $(sed -n 's/.*"files_kept": \([0-9]*\),/\1/p' json)))
            diff -r clean dst >/dev/null || echo "the resumed one differs"
        fi
    } >what
    resumed=$((resumed + 1))
    [ -s what ] && { bad=$((bad + 1)); echo "# kill $n ($(tail -n 1 hit)):"; sed 's/^/#   /' what; }
done
is $bad 0 "killed at each of $total calls and resumed"
[ $kept -gt "$total" ]
ok $? "what was finished was kept ($kept files in $resumed runs)"

# A file that was finished and has changed since is made again, and said.
fresh
KILL_AT=$((total * 2 / 3)) KILL_PATH=dst LD_PRELOAD=$killer go 2>/dev/null
file=$(sed -n 's/.*"file":"\([^"]*\)".*/\1/p' .staging-dst/journal-* | head -n 1)
printf 'x' | dd of=".staging-dst/$file" bs=1 seek=9 conv=notrunc 2>/dev/null
"$reshard" src dst --to $layout --resume >/dev/null 2>err
is "$? $(grep -c "$file' was changed.*it is made again" err)" "0 1" "a finished file that has changed is made again"
diff -r clean dst >diff.txt
ok $? "and all is right" "$(head -n 3 diff.txt)"

# Another job's staging directory
fresh
KILL_AT=$((total * 2 / 3)) KILL_PATH=dst LD_PRELOAD=$killer go 2>/dev/null
"$reshard" src dst --to tp=2 --resume 2>err
is "$? $(grep -c "belongs to another job" err)" "2 1" "--resume of another layout is refused" "$(cat err)"
touch src/optim-00000.safetensors
"$reshard" src dst --to $layout --resume 2>err
is "$? $(grep -c "belongs to another job, or the source was changed since" err)" "2 1" "and of a source that was changed"
[ -e .staging-dst ] && [ ! -e dst ]
ok $? "which leaves it as it is"
rm -rf src && cp -R out/checkpoint-000001 src

# Two at once
fresh
mkdir .staging-dst
exec 9<.staging-dst
flock 9
"$reshard" src dst --to $layout --resume 2>err
is "$? $(cat err)" "2 pf-reshard: '.staging-dst' is in use by another run" "a staging directory that another process holds"
exec 9<&-

# Every call fails once.
FAULT_PATHS=$PWD/.staging-dst:$PWD/dst
export FAULT_PATHS
each() # HOW STRIDE RANK [WORD...]: the calls of a rank, of processes that WORD... starts
{
    local n bad=0 status total call how=$1 stride=$2 rank=$3
    shift 3
    fresh
    rm -f log
    FAULT_RANK=$rank FAULT_LOG=$PWD/log LD_PRELOAD=$faults "$@" "$reshard" -q src dst --to $layout
    total=$(wc -l <log)
    for ((n = 1 + RANDOM % stride; n <= total; n += stride)); do
        fresh
        rm -f hit
        FAULT_RANK=$rank FAULT_AT=$n FAULT_HOW=$how FAULT_LOG=$PWD/hit LD_PRELOAD=$faults "$@" "$reshard" src dst \
            --to $layout --threads 2 >/dev/null 2>err
        status=$?
        call=$(cat hit)
        {
            [ "$status" = 4 ] || echo "status $status"
            grep -E '^pf-reshard: (rank [0-9]+: )?cannot' err | grep -cE "dst.*': (No space left on device|Input/output error)\$" | grep -qx 1 ||
                echo "not one line with file and reason: $(cat err)"
            [ ! -e .staging-dst ] || grep -q -- "--resume goes on from there" err || echo "the rest is not named"
            broken
            [ -e dst ] || "$reshard" -q src dst --to $layout --resume 2>>err || echo "not resumed: $(tail -n 1 err)"
            diff -r clean dst >/dev/null || echo "the resumed one differs"
        } >what
        [ -s what ] && { bad=$((bad + 1)); echo "# call $n ($call):"; sed 's/^/#   /' what; }
    done
    is $bad 0 "$how at every ${stride}th of $total calls of rank $rank${*:+ of two}"
}
RANDOM=${FAULT_SEED:-1}
each ENOSPC 1 0
PF_DIRECT_IO=1 each EIO 1 0
for how in short EINTR; do
    for direct in 0 1; do
        fresh
        PF_DIRECT_IO=$direct FAULT_AT=some FAULT_HOW=$how LD_PRELOAD=$faults go 2>err && diff -r clean dst >/dev/null
        ok $? "$how: the run does not notice (PF_DIRECT_IO=$direct)" "$(cat err)"
    done
done

# The source fails at each opening and reading; and memory at each allocation.
stride=9
[ "${RESHARD_FAULTS:-}" != all ] || stride=1
# over N VARIABLE CLAIM: one fault after the other, up to the N-th
over()
{
    local n bad=0 status total=$1 variable=$2
    for ((n = 1; n <= total; n += stride)); do
        fresh
        env "$variable=$n" LD_PRELOAD="$faults" "$reshard" -q src dst --to $layout --threads 1 2>err
        status=$?
        {
            # What can be done without goes on; else it is one line, and one more of what is left. The
            # last allocations are for telling of a result that is in place.
            if [ $status = 0 ]; then
                [ -e dst ] || echo "nothing is there"
            else
                [ "$status" = 4 ] || echo "status $status"
                grep -v -- '--resume goes on from there' err | grep -c '^pf-reshard: ' | grep -qx 1 ||
                    echo "not one line: $(head -n 3 err)"
            fi
            broken
        } >what
        [ -s what ] && { bad=$((bad + 1)); echo "# $variable=$n:"; sed 's/^/#   /' what; }
    done
    is $bad 0 "$3 (1 to $total, every ${stride}th)"
}
fresh
rm -f log
export FAULT_PATHS=$PWD/src/ FAULT_CALLS="open read pread" FAULT_HOW=EIO
FAULT_LOG=$PWD/log LD_PRELOAD=$faults "$reshard" -q src dst --to $layout --threads 1
stride=$((stride > 3 ? 3 : stride)) over "$(wc -l <log)" FAULT_AT "the source fails once"
for how in short EINTR; do
    fresh
    FAULT_AT=some FAULT_HOW=$how LD_PRELOAD=$faults go 2>err && diff -r clean dst >/dev/null
    ok $? "$how of the source: the run does not notice" "$(cat err)"
done
unset FAULT_CALLS FAULT_HOW
FAULT_PATHS=$PWD/.staging-dst:$PWD/dst
fresh
FAULT_COUNT=$PWD/count LD_PRELOAD=$faults "$reshard" -q src dst --to $layout --threads 1
[ $stride = 1 ] || stride=61
over "$(cat count)" FAULT_MEMORY "an allocation fails"

# Where the result cannot be
unset FAULT_PATHS
refused() # STATUS PATTERN CLAIM DST
{
    "$reshard" -q src "$4" --to $layout 2>err
    local status=$?
    [ $status = "$1" ] && grep -v -- '--resume goes on from there' err | grep -c . | grep -qx 1 &&
        grep -qE "^pf-reshard: $2" err
    ok $? "$3" "exit $status" "$(cat err)"
}
mkdir elsewhere && ln -s elsewhere linked && ln -s nowhere dangling
refused 2 "'linked' exists and is no directory" "a link to a directory is not followed" linked
refused 2 "'dangling' exists and is no directory" "nor one to nothing" dangling
refused 2 "'elsewhere/..' is no name for a new directory" "a name that leads up is refused" elsewhere/..
is "$(ls elsewhere; ls -d nowhere .staging-linked .staging-dangling 2>/dev/null)" "" "and nothing was written"
"$reshard" -q src elsewhere/../dst2 --to $layout 2>err && diff -r clean dst2 >/dev/null
ok $? "a path with '..' on the way leads where it says" "$(cat err)"
if mkdir small && [ "$(id -u)" = 0 ] && mount -t tmpfs -o size=64k tmpfs small 2>/dev/null; then
    trap 'umount -l "${small:-}" 2>/dev/null; cd / && rm -rf "${tap_memory:-}"' EXIT
    small=$PWD/small
    refused 4 "cannot .*'small/.staging-dst/?.*': No space left on device" "a disk that is full" small/dst
    is "$(ls small)" "" "leaves nothing under the name"
    rm -rf small/.staging-dst && mount -o remount,ro small
    refused 4 "cannot .*'small/.*': Read-only file system" "a target that is read-only" small/dst
    umount -l small && small=
else
    skip "a disk that is full or read-only" "mounting a small file system is not permitted here"
fi

if command -v "${PF_MPIRUN:-mpirun}" >/dev/null; then
    export FAULT_PATHS=$PWD/.staging-dst:$PWD/dst
    stride=10
    [ "${RESHARD_FAULTS:-}" != all ] || stride=1
    each ENOSPC $stride 0 "$PF_ROOT/scripts/mpirun-here" -q -n 2
    each EIO $stride 1 "$PF_ROOT/scripts/mpirun-here" -q -n 2
    fresh
    unset FAULT_PATHS
    KILL_AT=12 KILL_CALLS=pwrite KILL_PATH=dst LD_PRELOAD=$killer "$PF_ROOT/scripts/mpirun-here" -q -n 2 \
        "$reshard" -q src dst --to $layout --threads 2 >/dev/null 2>&1
    [ -e .staging-dst ] && [ ! -e dst ]
    ok $? "two processes are killed"
    go --resume --json >json 2>err && diff -r clean dst >/dev/null
    ok $? "one goes on" "$(cat err)"
    [ "$(sed -n 's/.*"files_kept": \([0-9]*\),/\1/p' json)" -ge 4 ]
    ok $? "with what both had finished" "$(cat json)"
else
    skip "faults of two processes" "there is no mpirun here"
fi

fresh
TOUCH_FILE=$PWD/src/weights-00000.safetensors LD_PRELOAD=$PF_BUILD/tests/preload/toucher.so go 2>err
is "$? $(cat err)" "3 pf-reshard: 'src/weights-00000.safetensors' was changed while it was read" \
    "a source that changes meanwhile is refused at the end"
is "$(ls -d dst .staging-dst 2>/dev/null)" "" "and nothing is left"
done_testing
