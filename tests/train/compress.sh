#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compressed checkpoints of a run: on one rank and on four, killed in the middle of a save, resumed
# with and without compression. They hold what a plain run's hold, by pf-inspect and by the Python
# reader, and take less room.
set -u
. "$PF_ROOT/tests/tap.sh"
in_memory
killer=$PF_BUILD/tests/preload/killer.so
reader=$PF_ROOT/scripts/read-checkpoint
inspect=$PF_BIN/pf-inspect

cat >config.json <<'JSON'
{ "model": { "model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 160,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2 },
  "from_scratch": true, "seed": 5, "input_dir": "synthetic:markov?vocab=256&order=1&seed=2",
  "max_seq_length": 12, "global_train_batch_size": 4, "per_device_train_batch_size": 1,
  "max_steps": 12, "learning_rate": 3e-3, "dtype": "bfloat16",
  "logging_steps": 1, "save_steps": 4, "threads": 1 }
JSON
if ! "$PF_BIN/pf-train" --version -v | grep -q '+ZSTD'; then
    "$PF_BIN/pf-train" config.json output_dir=out save_compress=zstd >log 2>&1
    is $? 7 "save_compress in a build without zstd is refused with exit 7"
    skip "compressed checkpoints" "this build has no zstd"
    done_testing
fi

train() # OUT [WORD...]
{
    local out=$1
    shift
    $launch "$PF_BIN/pf-train" config.json output_dir="$out" resume_from_checkpoint=auto "$@" \
        >"$out.log" 2>&1 </dev/null
}
same() # A B CLAIM
{
    "$inspect" diff "$1" "$2" >diff.txt 2>&1 && python3 "$reader" "$1" "$2" >reader.txt 2>&1
    ok $? "$3" "$(head -n 5 diff.txt)" "$(tail -n 3 reader.txt)"
}
size_of() { cat "$1"/*.safetensors | wc -c; }

for ranks in 1 4; do
    launch=
    [ $ranks = 1 ] || launch="$PF_ROOT/scripts/mpirun-here -n $ranks"
    rm -rf plain zip
    train plain
    ok $? "$ranks ranks: a plain run" "$(tail -n 3 plain.log)"
    train zip save_compress=zstd
    ok $? "$ranks ranks: a compressed one" "$(tail -n 3 zip.log)"
    same plain/checkpoint-000012 zip/checkpoint-000012 "$ranks ranks: the two hold the same"
    a=$(size_of plain/checkpoint-000012) b=$(size_of zip/checkpoint-000012)
    [ $((b * 100)) -lt $((a * 90)) ]
    ok $? "$ranks ranks: $((b * 100 / a)) % of the bytes"
    "$inspect" verify -q zip
    ok $? "$ranks ranks: pf-inspect verify finds nothing"
    cmp -s plain/hf/model.safetensors zip/hf/model.safetensors
    ok $? "$ranks ranks: and the weights exported at the end are the same"
    is "$("$inspect" hash -q plain/checkpoint-000008)" "$("$inspect" hash -q zip/checkpoint-000008)" \
        "$ranks ranks: pf-inspect hash says so too"
    while read -r path at; do
        [ $ranks = 1 ] || [ "$at" = 3 ] || continue
        rm -rf killed
        KILL_CALLS="write pwrite fsync rename" KILL_PATH=$path KILL_AT=$at LD_PRELOAD=$killer \
            train killed save_compress=zstd
        is $? 137 "$ranks ranks: killed at call $at on $path"
        "$inspect" verify -q killed
        ok $? "$ranks ranks: what is there is whole"
        train killed save_compress=$([ "$at" = 2 ] && echo none || echo zstd)
        ok $? "$ranks ranks: resumed" "$(tail -n 3 killed.log)"
        same plain/checkpoint-000012 killed/checkpoint-000012 "$ranks ranks: and equal to a run that was not killed"
    done <<'LIST'
staging-checkpoint-000008 2
staging-checkpoint-000008/weights 3
staging-checkpoint-000008/manifest 1
LIST
done

"$inspect" cat zip/checkpoint-000012 "model.layers.1.mlp.down_proj.weight:3:5,7:9" >a.txt 2>&1 &&
    "$inspect" cat plain/checkpoint-000012 "model.layers.1.mlp.down_proj.weight:3:5,7:9" >b.txt 2>&1 &&
    cmp -s a.txt b.txt
ok $? "pf-inspect cat reads a part of a piece" "$(cat a.txt)"
"$inspect" scan zip/checkpoint-000012 >a.txt 2>&1
ok $? "pf-inspect scan reads all" "$(head -n 3 a.txt)"
done_testing
