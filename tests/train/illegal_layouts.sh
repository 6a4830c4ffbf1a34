#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Layouts that cannot be: one clear line, status 3 (7 for what this build lacks), nothing started; under
# mpirun rank 0 alone says so.
set -u
. "$PF_ROOT/tests/tap.sh"
cat >llama.json <<'JSON'
{"model_type":"llama","vocab_size":131,"hidden_size":32,"intermediate_size":42,
 "num_hidden_layers":6,"num_attention_heads":8,"num_key_value_heads":8,"head_dim":4,
 "max_position_embeddings":32}
JSON
sed 's/:42/:48/' llama.json >even.json
cat >config.json <<'JSON'
{"model_name_or_path":"even.json","from_scratch":true,"output_dir":"out","max_steps":2,
 "input_dir":"synthetic:markov?vocab=64&order=1&seed=3","max_seq_length":15,
 "per_device_train_batch_size":1,"gradient_accumulation_steps":4,"threads":1}
JSON

# refuse STATUS "WORDS OF THE LINE" key=value...
refuse()
{
    local status=$1 text=$2
    shift 2
    "$PF_BIN/pf-train" --plan config.json "$@" >out.txt 2>err.txt
    local got=$?
    [ $got = "$status" ] && [ "$(grep -c '^pf-train:' err.txt)" = 1 ] && grep -qF -- "$text" err.txt &&
        [ ! -s out.txt ] && [ ! -e out ]
    ok $? "$*: status $status, '$text'" "got $got" "$(cat err.txt)"
}
tp=tensor_model_parallel_size pp=pipeline_model_parallel_size
vpp=virtual_pipeline_model_parallel_size first=num_layers_in_first_pipeline_stage
last=num_layers_in_last_pipeline_stage odd=model_name_or_path=llama.json
refuse 3 "tp=3 does not divide 8 attention heads" $tp=3
refuse 3 "tp=5 does not divide" $tp=5
refuse 3 "tp=6 does not divide" $tp=6
refuse 3 "tp=7 does not divide" $tp=7
refuse 3 "tp=16 does not divide" $tp=16
refuse 3 "tp=4 does not divide" $tp=4 $odd
refuse 3 "tp=8 does not divide" $tp=8 $odd
refuse 3 "no multiple of 2 tensor-parallel ranks" $tp=2 sequence_parallel=true
refuse 3 "no multiple of 4 tensor-parallel ranks" $tp=4 sequence_parallel=true max_seq_length=6
refuse 3 "pp" $pp=4
refuse 3 "pp" $pp=5
refuse 3 "pp" $pp=7
refuse 3 "pp" $pp=12
refuse 3 "vpp=2 needs pp" $vpp=2
refuse 3 "vpp" $pp=2 $vpp=2
refuse 3 "vpp" $pp=3 $vpp=4
refuse 3 "first_layers" $first=1
refuse 3 "last_layers" $last=1
refuse 3 "layers" $pp=2 $first=9
refuse 3 "layers" $pp=2 $first=2 $last=2
refuse 3 "layers" $pp=3 $last=5
refuse 3 "segments" $pp=2 pp_seg_method=0:3:5
refuse 3 "segments" $pp=3 pp_seg_method=0:3
refuse 3 "leaves chunk 1 of 6 layers empty" $pp=3 pp_seg_method=0:3:3
refuse 3 "segments" $pp=2 pp_seg_method=0:7
refuse 3 "segments" $pp=2 pp_seg_method=1:3
refuse 3 "" $pp=2 pp_seg_method=layer:NoSuchLayer
refuse 3 "" $pp=4 pp_seg_method=layer:Decoder
refuse 3 "ZBH1 has one chunk" $pp=3 $vpp=2 pipeline_schedule_mode=ZBH1
refuse 3 "ZBH1 has one chunk" $pp=3 $vpp=2 split_backward=true
refuse 3 "recompute" $pp=2 pipeline_schedule_mode=ZBH1 recompute_granularity=full
refuse 3 "global_train_batch_size 6 is not a multiple" $tp=2 global_train_batch_size=6 \
    per_device_train_batch_size=4 gradient_accumulation_steps=null
refuse 7 "context_parallel_size" context_parallel_size=2
refuse 7 "sep_parallel_size" sep_parallel_size=2
refuse 7 "expert_model_parallel_size" expert_model_parallel_size=2
refuse 7 "sharding" sharding=stage1 sharding_parallel_size=2
refuse 7 "use_dualpipev" $pp=2 use_dualpipev=true

# The same under mpirun: one line of one rank, and no rank goes on.
for words in "$tp=4" "$tp=2 sequence_parallel=true" "$pp=2 $vpp=2" "$pp=3"; do
    # shellcheck disable=SC2086
    "$PF_ROOT/scripts/mpirun-here" -n 4 "$PF_BIN/pf-train" config.json $odd $words >out.txt 2>err.txt
    got=$?
    [ $got = 3 ] && [ "$(grep -c '^pf-train:' err.txt)" = 1 ] && [ ! -e out ]
    ok $? "4 ranks, $words: status 3, said once" "got $got" "$(grep '^pf' err.txt)"
done
done_testing
