#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every system call of a save fails once: the run ends with status 4 and one line that names the
# file and the reason; what was saved before is untouched, nothing is left under a final name, and
# the next run resumes. One rank: each call, with no space and with an I/O error by turns; two ranks:
# every sixth call of each. Then writes that are cut short, and calls that a signal interrupts: the
# save must not notice.
#   SAVE_FAULTS=all for every call, both errors, each rank.
set -u
. "$PF_ROOT/tests/tap.sh"
in_memory
faults=$PF_BUILD/tests/preload/faults.so
train=$PF_BIN/pf-train
mpirun=$PF_ROOT/scripts/mpirun-here
all=${SAVE_FAULTS:-}
case $PF_BUILD in */san-*)
    skip "faults of a save" "a preloaded library and the sanitizer do not go together"
    done_testing
    ;;
esac

cat >config.json <<'JSON'
{ "model": { "model_type": "llama", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": true },
  "from_scratch": true, "input_dir": "synthetic:markov?vocab=32&order=1&seed=2", "max_seq_length": 8,
  "global_train_batch_size": 2, "per_device_train_batch_size": 1, "learning_rate": 1e-3,
  "max_steps": 1, "logging_steps": 1, "save_steps": 1, "threads": 1, "output_dir": "out" }
JSON
"$train" -q config.json && mv out base
ok $? "a first step is saved"
export FAULT_PATHS='staging-checkpoint:/out/latest:/out$'

# go_on [WORD...]: one step more and a save, on $ranks ranks
ranks=1
go_on()
{
    if [ $ranks = 1 ]; then
        "$train" -q config.json resume_from_checkpoint=auto max_steps=2 "$@"
    else
        "$mpirun" -n $ranks "$train" -q config.json resume_from_checkpoint=auto max_steps=2 "$@"
    fi
}
fresh()
{
    rm -rf out && cp -R base out
}

# wrong: says what is not as it must be after a fault at call "$1" that ended with status $2
wrong()
{
    local call=$1 status=$2 names latest
    latest=$(cat out/latest)
    names=$(cd out && echo checkpoint-*)
    [ "$status" = 4 ] || echo "status $status"
    grep -c '^pf-train: ' err | grep -qx 1 || echo "not one line: $(grep '^pf-train: ' err | head -n 3)"
    grep -qE "^pf-train: .*'(.*/)?out.*': (No space left on device|Input/output error)\$" err ||
        echo "not file and reason: $(head -n 1 err)"
    diff -r base/checkpoint-000001 out/checkpoint-000001 >/dev/null || echo "the old checkpoint changed"
    case $latest:$names in
    checkpoint-000001:checkpoint-000001) ;;
    "checkpoint-000002:checkpoint-000001 checkpoint-000002")
        # Only what failed after the save was acknowledged may leave it there.
        grep -q '"event":"save","step":2' out/metrics.jsonl || echo "an unacknowledged save stayed"
        ;;
    *) echo "latest is $latest, there is $names" ;;
    esac
    find out -name '.staging*' -o -name '.removing*' -o -name 'latest.tmp*' >left
    [ ! -s left ] || echo "leftovers: $(cat left)"
    "$PF_BIN/pf-inspect" verify -q out >/dev/null 2>&1 || echo "verify finds faults"
    (ranks=1 && go_on) >again 2>&1 || echo "not resumed: $(head -n 1 again)"
    cmp -s clean/checkpoint-000002/optim-00000.safetensors out/checkpoint-000002/optim-00000.safetensors ||
        [ $ranks != 1 ] || echo "the next run saved something else"
}

each() # STRIDE RANK HOW...: fails each STRIDE-th call of the rank, in one of the ways by turns
{
    local stride=$1 rank=$2 n=0 bad=0 status call
    shift 2
    fresh
    rm -f log
    FAULT_LOG=$PWD/log FAULT_RANK=$rank LD_PRELOAD=$faults go_on 2>err
    ok $? "a save on $ranks ranks" "$(cat err)"
    [ -d clean ] || cp -R out clean
    # A directory that is there need not be made.
    local total
    total=$(wc -l <log)
    for ((n = 1 + RANDOM % stride; n <= total; n += stride)); do
        [ "$(sed -n "${n}s,/.*/, ,p" log)" != "mkdir  out" ] || continue
        fresh
        rm -f hit
        FAULT_AT=$n FAULT_HOW=$1 FAULT_RANK=$rank FAULT_LOG=$PWD/hit LD_PRELOAD=$faults go_on \
            >stdout 2>err
        status=$?
        call=$(cat hit)
        wrong "$call" $status >what
        if [ -s what ]; then
            bad=$((bad + 1))
            echo "# call $n ($call, $1):"
            sed 's/^/#   /' what
        fi
        set -- "${@:2}" "$1"
    done
    is $bad 0 "rank $rank of $ranks: faults at $(((total + stride - 1) / stride)) of $total calls, each handled"
}
RANDOM=${FAULT_SEED:-1}
each 1 0 ENOSPC EIO
[ -z "$all" ] || each 1 0 EIO ENOSPC

# The export at the end: what was exported before stays whole.
fresh
rm -f log
export_paths='.new-hf:/out/hf'
FAULT_PATHS=$export_paths FAULT_LOG=$PWD/log LD_PRELOAD=$faults go_on 2>err
total=$(wc -l <log) bad=0
for ((n = 1; n <= total; n++)); do
    # One writing is as good as another.
    [ -n "$all" ] || [ $((n % 5)) = 0 ] || [ "$(sed -n "${n}s/ .*//p" log)" != pwrite ] || continue
    fresh
    FAULT_PATHS=$export_paths FAULT_AT=$n FAULT_HOW=ENOSPC LD_PRELOAD=$faults go_on 2>err
    status=$?
    [ "$status $(cat out/latest)" = "4 checkpoint-000002" ] && diff -r base/hf out/hf >/dev/null &&
        grep -qE "^pf-train: cannot .*'out/.*hf.*': No space left on device\$" err && [ "$(wc -l <err)" = 1 ] &&
        go_on 2>err && diff -r clean/hf out/hf >/dev/null &&
        [ -z "$(ls -d out/.new* out/.staging* 2>/dev/null)" ] || {
        bad=$((bad + 1))
        echo "# call $n ($(sed -n "${n}p" log)): status $status: $(head -n 2 err); $(ls -A out | tr '\n' ' ')"
    }
done
is $bad 0 "faults of an export: the save is there, the old export is whole, the next run exports"

same() # HOW CLAIM
{
    fresh
    rm -f hit
    FAULT_AT=some FAULT_HOW=$1 FAULT_LOG=$PWD/hit LD_PRELOAD=$faults go_on 2>err
    ok $? "$2: the run goes on" "$(cat err)"
    diff -r clean/checkpoint-000002 out/checkpoint-000002 >/dev/null
    ok $? "$2: the checkpoint has the same bytes ($(wc -l <hit) such calls)"
}
same short "writes cut short"
same EINTR "calls that a signal interrupts"

if ! command -v "${PF_MPIRUN:-mpirun}" >/dev/null; then
    skip "faults of two ranks" "there is no mpirun here"
    done_testing
fi
ranks=2
stride=6 # of each rank, so one in three
[ -z "$all" ] || stride=1
each $stride 1 ENOSPC EIO
each $stride 0 EIO ENOSPC
done_testing
