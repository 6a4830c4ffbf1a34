#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pf-reshard: what it writes, says and refuses; a dry run's figures; memory and open files; processes.
set -u
. "$PF_ROOT/tests/tap.sh"
in_memory
reshard=$PF_BIN/pf-reshard
inspect=$PF_BIN/pf-inspect
reader=$PF_ROOT/scripts/read-checkpoint
mpirun=$PF_ROOT/scripts/mpirun-here

# fails STATUS PATTERN CLAIM ARG...: one line on stderr, nothing under the destination's name
fails()
{
    local status=$1 pattern=$2 claim=$3 got
    shift 3
    "$reshard" "$@" >stdout 2>stderr </dev/null
    got=$?
    [ $got = "$status" ] && [ "$(wc -l <stderr)" = 1 ] && grep -qE "^pf-reshard: $pattern" stderr
    ok $? "exit $status: $claim" "exit $got" "$(cat stderr)" "wanted: $pattern"
}
# field NAME: of the JSON on stdin
field()
{
    python3 -c 'import json, sys; d = json.load(sys.stdin)
for k in sys.argv[1].split("."): d = d[k]
print(d)' "$1"
}

cat >config.json <<'JSON'
{ "model": { "model_type": "qwen2", "vocab_size": 37, "hidden_size": 32, "intermediate_size": 24,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": true },
  "from_scratch": true, "input_dir": "synthetic:markov?vocab=32&order=1&seed=2", "max_seq_length": 8,
  "global_train_batch_size": 2, "per_device_train_batch_size": 1, "learning_rate": 1e-3,
  "dtype": "bfloat16", "max_steps": 3, "save_steps": 3, "threads": 1, "output_dir": "out" }
JSON
"$PF_BIN/pf-train" -q config.json
ok $? "a model is trained"
first=out/checkpoint-000003

# The six layouts of the row, each into each: parameters, masters and moments.
single= dp=dp=2 tp=tp=2 pp=pp=2 tpdp=tp=2,dp=2,sharding=2 tppp=tp=2,pp=2,dp=2,sharding=3,stage=2
want=$("$inspect" hash -q $first)
for a in "$single" "$dp" "$tp" "$pp" "$tpdp" "$tppp"; do
    rm -rf a && "$reshard" -q $first a --to "${a:-dp=1}" 2>err &&
        [ "$("$inspect" hash -q a)" = "$want" ]
    ok $? "r2_matrix: saved as '${a:-single}'" "$(cat err)"
    for b in "$single" "$dp" "$tp" "$pp" "$tpdp" "$tppp"; do
        rm -rf b && "$reshard" -q a b --to "${b:-dp=1}" 2>err && [ "$("$inspect" hash -q b)" = "$want" ]
        ok $? "r2_matrix: '${a:-single}' into '${b:-single}': every tensor the same" "$(cat err)"
    done
done
python3 "$reader" $first b >reader.txt 2>&1
ok $? "the Python reader says identical" "$(tail -n 2 reader.txt)"
"$inspect" verify -q b
ok $? "and pf-inspect verify finds nothing"
mv b big

# A dry run says what the run will do.
for layout in dp=1 tp=2,pp=2,sharding=2,stage=3; do
    rm -rf c
    "$reshard" big c --to $layout --json --dry-run >dry.json 2>err && [ ! -e c ] && [ ! -e .staging-c ]
    ok $? "--dry-run --to $layout writes nothing" "$(cat err)"
    "$reshard" big c --to $layout --json >run.json 2>err
    for key in tensors pieces files read_bytes reads written_bytes target_bytes window_bytes threads; do
        is "$(field $key <dry.json)" "$(field $key <run.json)" "its $key are those of the run"
    done
    python3 -c 'import json
a, b = (json.load(open(f))["peak_memory_bytes"] for f in ("dry.json", "run.json"))
print(a, b); exit(abs(a - b) > 0.02 * b)' >mem.txt
    ok $? "its peak of memory is within 2 % of the run's" "$(cat mem.txt)"
    is "$(cat c/*.safetensors | wc -c)" "$(field written_bytes <run.json)" "what is written is on disk"
done

# dtype and weights alone
"$reshard" -q big w --to tp=2 --weights-only
"$inspect" diff --weights-only $first w >diff.txt && is "$("$inspect" ls w | grep -cE ' (master|moment[12]) ')" 0 \
    "--weights-only: the weights and nothing else"
"$reshard" -q big f32 --to tp=2 --dtype float32 && "$inspect" verify -q f32
ok $? "--dtype float32: whole"
is "$("$inspect" ls f32 | grep -c ' master ')" 0 "the masters have become the weights"
"$reshard" -q f32 bf16 --to dp=1 --dtype bfloat16 && "$inspect" verify -q bf16
ok $? "--dtype bfloat16 of that: weights are the rounded masters"
is "$("$inspect" hash -q bf16)" "$want" "and all is as it was"

# From Hugging Face files and back
"$reshard" -q "$PF_ROOT/tests/fixtures/hf/qwen3" hf --to tp=2,pp=2,first_layers=1 2>err
"$inspect" diff --weights-only "$PF_ROOT/tests/fixtures/hf/qwen3" hf >diff.txt 2>&1
ok $? "a Hugging Face directory" "$(cat err diff.txt)"

"$reshard" -q "$PF_ROOT/tests/fixtures/hf/qwen3" hf16 --to dp=1 --dtype bfloat16
is "$(field config.dtype <hf16/manifest.json) $(field config.dtype <hf/manifest.json)" "bfloat16 float32" \
    "the config says the dtype of the weights"

# Compressed, from plain and from compressed, in part and whole, by one process and by several
if "$reshard" --version -v | grep -q '+ZSTD'; then
    "$reshard" -q big zip --to tp=2,pp=2,sharding=2,stage=2 --compress zstd --verify 2>err
    is "$("$inspect" hash -q zip)" "$want" "--compress zstd: the same tensors"
    grep -q '"codec":"zstd"' zip/manifest.json && "$inspect" verify -q zip
    ok $? "--compress zstd: the pieces are compressed, and whole" "$(cat err)"
    for layout in dp=1 tp=4,pp=2 dp=2,sharding=4,stage=3; do
        rm -rf z1 z2 && "$reshard" -q zip z1 --to $layout --verify 2>err &&
            "$reshard" -q zip z2 --to $layout --compress zstd --threads 3 2>>err &&
            [ "$("$inspect" hash -q z1)" = "$want" ] && [ "$("$inspect" hash -q z2)" = "$want" ]
        ok $? "--compress zstd: read again, into $layout" "$(cat err)"
    done
    python3 "$reader" $first z2 >reader.txt 2>&1
    ok $? "--compress zstd: the Python reader says identical" "$(tail -n 2 reader.txt)"
    "$reshard" big dry --to tp=2 --compress zstd --dry-run --json >dry.json 2>err &&
        "$reshard" big dry --to tp=2 --compress zstd --json >run.json 2>err &&
        [ "$(field target_bytes <dry.json)" -ge "$(field target_bytes <run.json)" ] &&
        [ "$(cat dry/*.safetensors | wc -c)" = "$(field target_bytes <run.json)" ]
    ok $? "--compress zstd: a dry run says the most that it may take" "$(cat err)"
    if command -v "${PF_MPIRUN:-mpirun}" >/dev/null; then
        "$mpirun" -n 2 "$reshard" -q big z3 --to tp=2,pp=2,sharding=2,stage=2 --compress zstd 2>err &&
            diff -r zip z3 >diff.txt
        ok $? "--compress zstd: two processes write what one writes" "$(cat err)"
    fi
    grep -q '"codec":"zstd"' z1/manifest.json
    is $? 1 "without --compress nothing is compressed"
else
    fails 7 "this build has no zstd" "no zstd" big n --to dp=1 --compress zstd
fi

# The layout of a config
echo '{"tensor_model_parallel_size": 2, "sharding": "stage2", "sharding_parallel_size": 2}' >layout.json
"$reshard" -q big d --config layout.json --world 8 2>err
is "$("$inspect" show --json d | field mesh.dp)" 2 "--config with --world: what is left is dp"

# Refusals
fails 2 "'a' exists and is not empty" "a destination with something in it" big a --to dp=1
touch file
fails 2 "'file' exists and is no directory" "a destination that is a file" big file --to dp=1
mkdir empty && "$reshard" -q big empty --to dp=1 && "$inspect" verify -q empty
ok $? "an empty directory is taken"
fails 2 "give the layout by one of --to and --config" "no layout" big n
fails 2 "--config needs --world" "no world" big n --config layout.json
fails 2 "unknown word 'tpp' in a layout: did you mean 'pp'" "an unknown axis" big n --to tpp=2
fails 3 "tp=3 does not divide 4 attention heads" "heads that do not divide" big n --to tp=3
fails 3 "sharding 1 \* pp 1 \* cp 1 \* tp 2 does not divide the number of ranks, 5" "a world that does not divide" big n --to tp=2 --world 5
fails 3 "ep=2 needs experts, and this qwen2 model has none" "experts of a model that has none" big n --to ep=2,sharding=2
fails 2 "--compress is zstd or none, not 'lzma'" "another compression" big n --to dp=1 --compress lzma
fails 2 "--dtype is float32, bfloat16 or float16, not 'int8'" "another dtype" big n --to dp=1 --dtype int8
fails 4 "cannot open 'nowhere': No such file" "no source" nowhere n --to dp=1
fails 3 "'.*' does not say which model it holds" "a file without a config" \
    "$PF_ROOT/tests/fixtures/hf/qwen3/model.safetensors" n --to dp=1
fails 2 "the plan alone takes [0-9]+ MiB: give --max-memory [0-9]+M" "too little memory" big n --to dp=1 --max-memory 1M
fails 4 "cannot .*'/proc/.*'" "a place that cannot be written" big /proc/n --to dp=1
fails 2 "'\.\.' is no name for a new directory" "a destination without a name" big .. --to dp=1
"$reshard" big n --to tp=3 --json >stdout 2>stderr
is "$(field error.exit <stdout) $(field error.kind <stdout) $(wc -l <stderr)" "3 invalid 1" "a failure is a document too"
cp -R big short && rm short/optim-00003.safetensors
fails 3 "'short/optim-00003.safetensors' is missing" "r2_incomplete: a file is missing" short n --to dp=1
cp -R big flipped
printf '\xff' | dd of=flipped/weights-00001.safetensors bs=1 seek=$(($(stat -c %s flipped/weights-00001.safetensors) - 3)) conv=notrunc 2>/dev/null
fails 3 "'flipped/weights-00001.safetensors' was changed: its digest" "--verify finds a changed byte" flipped n --to dp=1 --verify
is "$(ls -d n .staging-n 2>/dev/null)" "" "nothing is left of what failed"
cp -R big tail && head -c -4 big/optim-00000.safetensors >tail/optim-00000.safetensors
fails 3 "'tail/optim-00000.safetensors' has [0-9]+ bytes, the manifest says" "a file that is cut" tail n --to dp=1

# Processes share the work and change nothing.
if command -v "${PF_MPIRUN:-mpirun}" >/dev/null; then
    for n in 2 4; do
        rm -rf m && "$mpirun" -n $n "$reshard" -q big m --to tp=2,pp=4,sharding=2 --verify 2>err
        ok $? "$n processes" "$(cat err)"
        rm -rf one && "$reshard" -q big one --to tp=2,pp=4,sharding=2 && diff -r one m >diff.txt
        ok $? "they write what one writes" "$(head -n 3 diff.txt)"
    done
    "$mpirun" -q -n 2 "$reshard" flipped n --to dp=1 --verify 2>stderr
    is "$? $(grep -c '^pf-reshard:' stderr)" "3 1" "a failure of one is said once"
else
    skip "several processes" "there is no mpirun here"
fi

# Many files, few of them open; far from all memory.
"$reshard" -q big many --to sharding=2000 2>err
n=$(ls many | wc -l)
[ "$n" -gt 1000 ]
ok $? "$n files are written" "$(cat err)"
(ulimit -n 64 && "$reshard" -q many few --to dp=1 && "$inspect" diff -q big few) >err 2>&1
ok $? "and read with at most 64 descriptors" "$(cat err)"
done_testing
