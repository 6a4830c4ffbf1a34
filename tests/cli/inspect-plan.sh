#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pf-inspect plan: stages, layers and bytes of a layout; what is impossible is refused.
set -u
. "$PF_ROOT/tests/tap.sh"
inspect=$PF_BIN/pf-inspect
hf=$PF_ROOT/tests/fixtures/hf

refuses() # STATUS WORDS [ARG...]: that status, one line on stderr with the words, nothing on stdout
{
    local status=$1 words=$2 got
    shift 2
    "$inspect" "$@" >out 2>err
    got=$?
    if [ $got = "$status" ] && [ ! -s out ] && [ "$(wc -l <err)" = 1 ] && grep -qF -- "$words" err; then
        ok 0 "exit $status: pf-inspect $*"
    else
        ok 1 "exit $status: pf-inspect $*" "exit $got" "$(cat err)" "wanted: $words"
    fi
}

json() # PYTHON-EXPRESSION CLAIM: about the document in out
{
    python3 -c 'import json, sys; d = json.load(open("out")); assert eval("(" + sys.argv[1] + ")"), d' "$1"
    ok $? "$2" "$(head -c 2000 out)"
}

# llama: 3 layers, hidden 64, 8 heads and 4 key heads of 8, ffn 96, vocabulary 259, head not tied
cat >run.json <<JSON
{ "model_name_or_path": "$hf/llama/config.json", "dtype": "bfloat16", "tensor_model_parallel_size": 2,
  "pipeline_parallel_degree": 2, "pp_seg_method": "0:2", "sharding": "stage1", "sharding_parallel_size": 2 }
JSON
"$inspect" plan run.json --world 8 >out 2>err
is "$? $(cat err)" "0 " "a run's config: exit 0, nothing on stderr"
grep -qx 'layout        dp=1,sharding=2,pp=2,cp=1,tp=2,vpp=1,ep=1,stage=1,segments=0:2' out
ok $? "the layout, completed" "$(cat out)"
grep -q '^ *0  *4 .*  embedding,0-1$' out && grep -q '^ *1  *4 .*  2,head$' out
ok $? "the layers of each stage" "$(cat out)"

"$inspect" --json plan run.json --world 8 >out
# A layer on one of two tp ranks: norms 2 x 64; q, o 32 x 64 each; k, v 16 x 64; gate, up, down 48 x 64:
# 15488 elements. The vocabulary in two is 130 rows: 8320 with padding. Stage 0 has two layers and the
# embedding, stage 1 a layer, the norm of 64 and the head.
json 'd["model_type"] == "llama" and d["world_size"] == 8 and d["parameters"] == 125760' "model and ranks"
json 'd["chunks"] == [{"stage": 0, "first_layer": 0, "layers": 2}, {"stage": 1, "first_layer": 2, "layers": 1}]' \
    "chunks"
json '[r["pp"] for r in d["ranks"]] == [0, 0, 1, 1] * 2 and [r["tp"] for r in d["ranks"]] == [0, 1] * 4 and
      [r["sharding"] for r in d["ranks"]] == [0] * 4 + [1] * 4' "the coordinates of each rank"
json 'all(r["weight_bytes"] == 2 * (39296 if r["pp"] == 0 else 23872) for r in d["ranks"])' "bytes of weights"
json 'all(r["master_bytes"] == (39296 if r["pp"] == 0 else 23872) * 4 / 2 and
          r["moment_bytes"] == 2 * r["master_bytes"] for r in d["ranks"])' "and of the optimizer, cut in two"

"$inspect" --json plan "$hf/deepseek_v3/config.json" --layout tp=2,sharding=4,ep=8,stage=3 >out 2>err
is "$? $(cat err)" "0 " "a model's config with a layout: exit 0"
json 'd["world_size"] == 8 and d["dtype"] == "float32" and all(r["master_bytes"] == 0 for r in d["ranks"])' \
    "fp32 weights are their own masters"
printf '{"model": %s, "bf16": true}' "$(cat "$hf/qwen3/config.json")" >inline.json
"$inspect" --json plan inline.json --world 3 >out
json 'd["layout"] == "dp=3,sharding=1,pp=1,cp=1,tp=1,vpp=1,ep=1,stage=0" and d["dtype"] == "bfloat16"' \
    "an inline model, data parallel where nothing else is asked for"
"$inspect" --json plan run.json --layout tp=8 --world 16 >out
json 'd["layout"].startswith("dp=2,") and d["chunks"] == [{"stage": 0, "first_layer": 0, "layers": 3}]' \
    "--layout takes the place of the config's layout"

# A plan cuts what it names and nothing else: gate and up of 96 x 64, in 3 layers, are halved.
cat >plan.json <<JSON
{ "model_name_or_path": "$hf/llama/config.json", "tensor_model_parallel_size": 2, "parallelize_plan": {
    "mp_config": { "parallelize_plan": { "model.layers.*.mlp.(gate|up)_proj": "ColWiseParallel", "foo": "RowWiseParallel" } },
    "dp_config": { "sharding_level": 1 } } }
JSON
"$inspect" --json plan plan.json --world 4 >out 2>err
is "$? $(cat err)" "0 pf-inspect: warning: 'foo' of the plan meets no tensor" "a parallelize_plan, and what of it meets nothing"
json 'd["layout"].endswith("tp=2,vpp=1,ep=1,stage=1") and
      all(r["weight_bytes"] == 4 * (125760 - 3 * 96 * 64) for r in d["ranks"])' "its cuts and its stage are in the layout"

refuses 3 "ep=3 does not divide 8 experts" plan "$hf/qwen3_moe/config.json" --layout ep=3
refuses 3 "tp=3 does not divide 8 attention heads" plan "$hf/llama/config.json" --layout tp=3
refuses 3 "is not the number of ranks, 7" plan run.json --layout dp=2,tp=2 --world 7
refuses 3 "does not divide the number of ranks, 6" plan run.json --world 6
refuses 2 "unknown word 'tpp' in a layout" plan run.json --layout tpp=2
refuses 2 "--world is from 1 to 1048576" plan run.json --world -1
refuses 2 "takes no '--world' and no '--layout'" show --world 2 "$hf/qwen3"
refuses 2 "'plan' takes 1 operand" plan
refuses 4 "nowhere.json" plan nowhere.json
echo '{"max_steps": 3}' >empty.json
refuses 2 "'empty.json' does not say which model" plan empty.json
echo '{"model_type": "bert"}' >bert.json
refuses 7 "unknown model_type 'bert'" plan bert.json
done_testing
