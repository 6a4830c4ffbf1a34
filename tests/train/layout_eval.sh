#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Evaluation under every kind of layout: the loss of one process, alone (eval_only) and between steps,
# which it does not disturb; a hundred evaluations hold no more memory than ten.
set -u
. "$PF_ROOT/tests/tap.sh"
in_memory
cat >config.json <<'JSON'
{ "model": { "model_type": "gpt2", "vocab_size": 67, "n_embd": 32, "n_layer": 8, "n_head": 4,
    "n_positions": 32, "attn_pdrop": 0.1 },
  "from_scratch": true, "input_dir": "synthetic:markov?vocab=64&order=1&seed=2", "max_seq_length": 16,
  "eval_input_dir": "synthetic:markov?vocab=64&order=1&seed=2&stream=1&tokens=800",
  "per_device_train_batch_size": 1, "per_device_eval_batch_size": 3, "global_train_batch_size": 4,
  "learning_rate": 1e-3, "max_steps": 4, "logging_steps": 1, "save_steps": -1, "threads": 1 }
JSON
losses() # WHAT DIR: of steps, or of evaluations with their tokens
{
    case $1 in
    step) sed -nE 's/^\{"step":([0-9]+),"loss":([^,]*),.*/\1 \2/p' "$2/metrics.jsonl" ;;
    eval) sed -nE 's/.*"event":"eval","step":([0-9]+),"loss":([^,]*),.*"tokens":([0-9]+).*/\1:\3 \2/p' "$2/metrics.jsonl" ;;
    esac
}
run() # RANKS DIR key=value...
{
    local n=$1 dir=$2
    shift 2
    "$PF_ROOT/scripts/mpirun-here" -n "$n" "$PF_BIN/pf-train" -q config.json output_dir="$dir" "$@" \
        >/dev/null 2>err.txt </dev/null
}
near() # WHAT A B TOLERANCE
{
    [ -n "$(losses "$1" "$2")" ] &&
        diff <(losses "$1" "$2" | cut -d' ' -f1) <(losses "$1" "$3" | cut -d' ' -f1) >/dev/null &&
        join <(losses "$1" "$2" | sort) <(losses "$1" "$3" | sort) |
        awk -v t="$4" '{ d = ($2 - $3) / $2; if (d > t || -d > t) bad = 1 } END { exit bad }'
}
run 1 plain eval_steps=-1 && run 1 one eval_steps=2 && run 1 only eval_only=true
ok $? "one process, without evaluation and with it" "$(cat err.txt)"
[ "$(losses step plain)" = "$(losses step one)" ]
ok $? "r38_eval_alone: steps after an evaluation are those without it"
tp=tensor_model_parallel_size pp=pipeline_model_parallel_size
while read -r n tolerance words; do
    # shellcheck disable=SC2086
    run "$n" two eval_steps=2 $words && near eval one two "$tolerance" && near step one two "$tolerance"
    ok $? "r38_eval: $n ranks, $words" "$(cat err.txt)" "$(losses eval one)" "$(losses eval two)"
    # shellcheck disable=SC2086
    run "$n" three eval_only=true $words && near eval only three "$tolerance"
    ok $? "r38_eval_only: $n ranks, $words" "$(cat err.txt)"
    rm -rf two three
done <<WORDS
2 0 $pp=2
2 0 $pp=2 virtual_pipeline_model_parallel_size=2
4 0 $pp=4 pipeline_schedule_mode=ZBH1
2 1e-5 $tp=2
4 1e-5 $tp=2 $pp=2
8 1e-5 $tp=2 $pp=2
WORDS
few=0 many=0
run 2 few $pp=2 eval_steps=1 eval_iters=1 max_steps=10 &&
    few=$(grep -o '"peak_memory_bytes":[0-9]*' few/metrics.jsonl | tail -1 | cut -d: -f2) &&
    run 2 many $pp=2 eval_steps=1 eval_iters=1 max_steps=100 &&
    many=$(grep -o '"peak_memory_bytes":[0-9]*' many/metrics.jsonl | tail -1 | cut -d: -f2)
[ "$few" -gt 0 ] && [ "$many" -le $((few + 1048576)) ]
ok $? "r38_eval_growth: no more memory after 100 evaluations than after 10" "$few $many" "$(cat err.txt)"
done_testing
