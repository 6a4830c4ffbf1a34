#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What is wrong with a config is said once, by one rank, whatever the number of ranks, and all end with
# the same status.
set -u
. "$PF_ROOT/tests/tap.sh"
mpirun="$PF_ROOT/scripts/mpirun-here"

cat >config.json <<'JSON'
{ "model_name_or_path": "model.json", "model": {}, "input_dir": "a.txt", "output_dir": "out" }
JSON

one_line() # RANKS STATUS PATTERN CLAIM WORD...
{
    local ranks=$1 want=$2 pattern=$3 claim=$4
    shift 4
    if [ "$ranks" = 1 ]; then
        "$PF_BIN/pf-train" config.json "$@" >out.txt 2>err.txt
    else
        $mpirun -n "$ranks" "$PF_BIN/pf-train" config.json "$@" >out.txt 2>err.txt
    fi
    is $? "$want" "$claim: $ranks ranks end with status $want"
    is "$(grep -c '^pf-train:' err.txt)" 1 "$claim: said once" 
    grep -q "^pf-train: \(rank 0: \)\?.*$pattern" err.txt
    ok $? "$claim: by rank 0, and clearly" "$(cat err.txt)"
}

for n in 1 2; do
    one_line $n 2 "'model' contradicts model_name_or_path of line 1" r48_two_models
    one_line $n 2 "'bf16' contradicts dtype 'float16'" r48_dtype_twice model=null bf16=true dtype=float16
    one_line $n 7 "'context_parallel_size' = 2 cannot be done" "a layout that this build lacks" \
        model=null context_parallel_degree=2
    one_line $n 3 "global_train_batch_size 3 is not a multiple" "an impossible batch" \
        model=null global_train_batch_size=3 per_device_train_batch_size=2
done

# Ranks whose configs differ find out before they train.
cat >differ.sh <<'SH'
#!/bin/sh
[ "${OMPI_COMM_WORLD_RANK:-0}" = 0 ] || set -- "$@" seed=7
exec "$PF_BIN/pf-train" "$@"
SH
chmod +x differ.sh
cp "$PF_ROOT/tests/fixtures/hf/llama/config.json" model.json
$mpirun -n 2 ./differ.sh config.json model=null from_scratch=true max_steps=1 max_seq_length=8 \
    input_dir='synthetic:markov?vocab=64&order=1' >out.txt 2>err.txt
is $? 6 "ranks with different configs end with status 6"
grep -q "^pf-train: .*the config.* rank 1" err.txt
ok $? "and rank 1 is named as the one that differs" "$(cat err.txt)"
[ ! -e out/metrics.jsonl ]
ok $? "before anything is written"
done_testing
