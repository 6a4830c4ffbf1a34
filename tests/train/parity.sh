#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The parity file of a checkpoint, of one rank and of four: each of its files, lost, cut short or
# flipped, is restored byte for byte; two are not; what has no parity is not. Readers need no parity.
set -u
. "$PF_ROOT/tests/tap.sh"
in_memory
inspect=$PF_BIN/pf-inspect
reader=$PF_ROOT/scripts/read-checkpoint

cat >config.json <<'JSON'
{ "model": { "model_type": "llama", "vocab_size": 257, "hidden_size": 48, "intermediate_size": 100,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2 },
  "from_scratch": true, "seed": 5, "input_dir": "synthetic:markov?vocab=256&order=1&seed=2",
  "max_seq_length": 8, "global_train_batch_size": 4, "per_device_train_batch_size": 1,
  "max_steps": 2, "learning_rate": 3e-3, "save_steps": 2, "threads": 1 }
JSON
fails() # STATUS PATTERN CLAIM ARG...
{
    local status=$1 pattern=$2 claim=$3 got
    shift 3
    "$inspect" "$@" >stdout 2>stderr
    got=$?
    [ $got = "$status" ] && grep -qE "$pattern" stderr
    ok $? "exit $status: $claim" "exit $got" "$(cat stderr)"
}
spoil() # HOW FILE
{
    case $1 in
    lost) rm "$2" ;;
    short) truncate -s -5 "$2" ;;
    long) printf x >>"$2" ;;
    flipped) printf 'x' | dd of="$2" bs=1 seek=$(($(stat -c %s "$2") - 3)) conv=notrunc 2>/dev/null ;;
    esac
}

for ranks in 1 4; do
    launch=
    [ $ranks = 1 ] || launch="$PF_ROOT/scripts/mpirun-here -n $ranks"
    rm -rf out
    $launch "$PF_BIN/pf-train" config.json output_dir=out save_parity=true >log 2>&1 </dev/null
    ok $? "$ranks ranks: a run with save_parity" "$(tail -n 3 log)"
    c=out/checkpoint-000002
    longest=$(stat -c %s $c/weights-* $c/optim-* | sort -n | tail -n 1)
    is "$(($(stat -c %s $c/parity.safetensors) - 160 < longest))" 1 "$ranks ranks: it is as long as the longest file"
    "$inspect" verify $c >out.txt 2>&1 && [ "$(cat out.txt)" = "no fault in $c" ]
    ok $? "$ranks ranks: verify finds nothing" "$(cat out.txt)"
    python3 "$reader" $c >good.txt 2>err
    ok $? "$ranks ranks: the Python reader reads it" "$(cat err)"
    cp -r $c whole
    for f in $(cd $c && ls -- *.safetensors); do
        for how in lost short long flipped; do
            [ $how = flipped ] || [ $ranks = 1 ] || continue
            spoil $how $c/"$f"
            fails 3 "" "$ranks ranks: $f $how is found" verify $c
            [ "$f" = parity.safetensors ] || { grep -q '^restorable' stdout && [ "$(grep -c "$f" stdout)" -ge 1 ]; }
            ok $? "and said to be restorable" "$(cat stdout)"
            "$inspect" repair $c >stdout 2>stderr && [ "$(cat stdout)" = "restored $c/$f" ] && diff -r whole $c >diff.txt
            ok $? "$ranks ranks: $f $how: restored byte for byte" "$(cat stdout stderr diff.txt)"
        done
    done
    rm -rf whole
done
is "$("$inspect" repair $c)" "nothing to restore in $c" "a whole checkpoint is left alone"
is "$("$inspect" repair --json $c | python3 -c 'import json, sys; d = json.load(sys.stdin); print(d["ok"], d["restored"])')" \
    "True None" "and --json says so"

rm $c/parity.safetensors
"$inspect" show $c >/dev/null && [ "$("$inspect" hash -q $c)" ] && python3 "$reader" $c >/dev/null 2>err
is $? 3 "without its parity file every reader of pf goes on; the Python reader, which checks all, tells"
"$inspect" repair -q $c >/dev/null && "$inspect" verify -q $c >/dev/null
ok $? "a lost parity file is made again"
rm $c/weights-00001.safetensors
fails 3 "weights-00001.safetensors' is missing; 'pf-inspect repair' restores one file" "opening names the way out" show $c
spoil flipped $c/optim-00002.safetensors
fails 3 "2 files of '$c' are damaged or missing; parity restores one" "two damaged files" repair $c
is "$(find $c -name '.*' -type f)" "" "and nothing is left aside"
rm -rf plain && "$PF_BIN/pf-train" config.json output_dir=plain >log 2>&1
rm plain/checkpoint-000002/weights-00000.safetensors
fails 3 "has no parity file to repair it from" "a checkpoint without parity" repair plain/checkpoint-000002
fails 2 "'out' is not the directory of one pf checkpoint" "the directory of a run" repair out

# A parity file or a manifest that lies restores nothing.
python3 - plain/checkpoint-000002/manifest.json <<'PY'
import sys
data = bytearray(open(sys.argv[1], "rb").read())
data[30] ^= 1
open(sys.argv[1], "wb").write(data)
PY
fails 3 "manifest.json' was changed" "a manifest that was changed" repair plain/checkpoint-000002
done_testing
