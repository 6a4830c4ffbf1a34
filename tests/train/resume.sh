#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# r15_killed_and_resumed: a run that is killed and resumed equals one that was not, bit for bit: every family, killed in a
# step, in the middle of a save, and between the rename of a checkpoint and the change of `latest`.
# Compared are step, loss, grad_norm, learning_rate and tokens of every step, and the last checkpoint
# by pf-inspect diff and by a reader in Python that was written from the format's description alone.
set -u
. "$PF_ROOT/tests/tap.sh"
killer=$PF_BUILD/tests/preload/killer.so
reader=$PF_ROOT/scripts/read-checkpoint

# Metric lines of a run without what depends on the clock.
lines_of()
{
    python3 - "$1/metrics.jsonl" <<'PY'
import json, sys
for line in open(sys.argv[1]):
    d = json.loads(line)
    if "event" not in d:
        print(*(repr(d[k]) for k in ("step", "loss", "grad_norm", "learning_rate", "tokens")))
PY
}

train() # OUT [WORD...]: 12 steps, a checkpoint every 4
{
    local out=$1
    shift
    $launch "$PF_BIN/pf-train" config.json output_dir="$out" resume_from_checkpoint=auto "$@" \
        >"$out.log" 2>&1 </dev/null
}

# A model of the family with dropout where it has any, so that random numbers are resumed too.
config_of()
{
    sed 's/_pdrop": 0.0/_pdrop": 0.1/' "$PF_ROOT/tests/fixtures/hf/$1/config.json" >model.json
    cat >config.json <<JSON
{ "model_name_or_path": "model.json", "from_scratch": true, "seed": 5,
  "input_dir": "synthetic:markov?vocab=64&order=1&seed=2", "max_seq_length": 24,
  "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 12,
  "learning_rate": 3e-3, "lr_scheduler_type": "cosine", "warmup_steps": 2,
  "logging_steps": 1, "save_steps": 4, "threads": 1 }
JSON
}

family() # NAME RANKS
{
    local name=$1 ranks=$2 call path at label
    launch=
    [ "$ranks" = 1 ] || launch="$PF_ROOT/scripts/mpirun-here -n $ranks"
    rm -rf ./*
    config_of "$name"
    train whole
    ok $? "$name: 12 steps on $ranks ranks" "$(tail -n 3 whole.log)"
    lines_of whole >whole.txt
    is "$(wc -l <whole.txt)" 12 "$name: a line for each step"
    # what KILL_AT-th CALL on a PATH: the steps' lines; the second save's files; its `latest`.
    while read -r call path at label; do
        KILL_CALLS=$call KILL_PATH=$path KILL_AT=$at LD_PRELOAD=$killer train killed
        status=$?
        ok $((status == 137 ? 0 : 1)) "$name: killed $label" "status $status" "$(tail -n 3 killed.log)"
        train killed
        ok $? "$name: resumed after a kill $label" "$(tail -n 3 killed.log)"
        lines_of killed >killed.txt
        cmp -s whole.txt killed.txt
        ok $? "r15_killed_and_resumed: $name killed $label: every step's numbers are the same" "$(diff whole.txt killed.txt | head -n 4)"
        "$PF_BIN/pf-inspect" diff whole/checkpoint-000012 killed/checkpoint-000012 >diff.txt 2>&1
        ok $? "r15_killed_and_resumed: $name killed $label: pf-inspect diff finds nothing" "$(head -n 5 diff.txt)"
        python3 "$reader" whole/checkpoint-000012 killed/checkpoint-000012 >reader.txt 2>&1
        ok $? "r15_killed_and_resumed: $name killed $label: the Python reader says identical" "$(tail -n 3 reader.txt)"
        rm -rf killed
    done <<'EOF'
write metrics.jsonl 8 in step 6
pwrite staging-checkpoint-000008 3 in the middle of a save
rename latest 2 before latest
EOF
}

for f in gpt2 llama qwen2 qwen3 ernie4_5; do
    family $f 1
done
family llama-tied 2
done_testing
