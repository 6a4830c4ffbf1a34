#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A JSON plan as PaddlePaddle's parallelize() takes it: eight layouts of it train what one process trains;
# patterns that meet nothing, or that contradict each other, are named; a plan that this build does not
# compute with is refused.
set -u
. "$PF_ROOT/tests/tap.sh"
in_memory
cat >config.json <<'JSON'
{ "model": { "model_type": "llama", "vocab_size": 67, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 32 },
  "from_scratch": true, "input_dir": "synthetic:markov?vocab=64&order=1&seed=2", "max_seq_length": 16,
  "per_device_train_batch_size": 1, "global_train_batch_size": 4, "learning_rate": 1e-3,
  "max_steps": 4, "logging_steps": 1, "save_steps": -1, "threads": 1, "output_dir": "out" }
JSON
plan='{"mp_config":{"parallelize_plan":{
  "model.embed_tokens":"RowWiseParallel",
  "model.layers.*.self_attn.[qkv]_proj":"ColWiseParallel",
  "model.layers.*.self_attn.o_proj":"RowWiseParallel",
  "model.layers.*.mlp.(gate|up)_proj":"ColWiseParallel",
  "model.layers.*.mlp.down_proj":"RowWiseParallel",
  "lm_head":"ColWiseParallel"}},
  "pp_config":{"split_spec":"model.layers"}}'
losses()
{
    sed -nE 's/.*"step":([0-9]+),"loss":([^,]*),.*/\1 \2/p' "$1/metrics.jsonl"
}
run()
{
    local n=$1 dir=$2
    shift 2
    "$PF_ROOT/scripts/mpirun-here" -n "$n" "$PF_BIN/pf-train" -q config.json output_dir="$dir" "$@" \
        >/dev/null 2>err.txt </dev/null
}
run 1 whole
ok $? "one process, without a plan" "$(cat err.txt)"
tp=tensor_model_parallel_size pp=pipeline_model_parallel_size
while read -r n words; do
    # shellcheck disable=SC2086
    run "$n" two "parallelize_plan=$plan" $words &&
        join <(losses whole) <(losses two) | awk '{ d = ($2 - $3) / $2; if (d * d > 1e-10) bad = 1; n++ }
            END { exit bad || n != 4 }'
    ok $? "r44_plan: $n ranks, ${words:-alone}: the losses of one process" "$(cat err.txt)" "$(losses two)"
    rm -rf two
done <<WORDS
1
2 $tp=2
4 $tp=4
2 $tp=2 sequence_parallel=true
2 $pp=2
4 $pp=2 virtual_pipeline_model_parallel_size=2
4 $tp=2 $pp=2
4 $tp=2
WORDS
"$PF_BIN/pf-train" --plan config.json $tp=2 "parallelize_plan=${plan/lm_head/no_head}" >out.txt 2>err.txt
[ $? = 7 ] && grep -q "'lm_head.weight' is cut otherwise" err.txt && grep -q "no_head" err.txt
ok $? "r44_plan_unmatched: a pattern that meets nothing is named, and what it left whole" "$(cat err.txt)"
twice=${plan/'"lm_head"'/'"lm.head":"RowWiseParallel","lm_head"'}
"$PF_BIN/pf-train" --plan config.json $tp=2 "parallelize_plan=$twice" >out.txt 2>err.txt
[ $? = 0 ] && grep -q "lm_head" err.txt
ok $? "r44_plan_twice: of two that meet a tensor the last counts, and it is said" "$(cat err.txt)"
"$PF_BIN/pf-train" --plan config.json $tp=2 "parallelize_plan=${plan/'o_proj":"Row'/'o_proj":"Col'}" \
    >out.txt 2>err.txt
is $? 7 "r44_plan_other: a cut that this build does not compute with is refused"
shared=${plan/'o_proj":"RowWiseParallel"'/'o_proj":["RowWiseParallel","SequenceParallelEnd"]'}
"$PF_BIN/pf-train" --plan config.json $tp=2 "parallelize_plan=$shared" >out.txt 2>err.txt &&
    grep -q "key sequence_parallel" err.txt &&
    "$PF_BIN/pf-train" --plan config.json $tp=2 sequence_parallel=true "parallelize_plan=$shared" \
        >out.txt 2>err.txt && ! grep -q "key sequence_parallel" err.txt
ok $? "r44_plan_sequence: what asks for sequence parallelism is told which key that is" "$(cat err.txt)"
"$PF_BIN/pf-train" --plan config.json 'parallelize_plan={"dp_config":{"sharding_level":1}}' \
    sharding_parallel_size=1 >out.txt 2>err.txt
is $? 7 "r44_plan_sharding: and sharding, which this build does not train"
done_testing
