#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pf-reshard keeps to --max-memory: 256 MiB of tensors, one of them four times the budget, cut along
# both dimensions. The kernel's account of the process decides, and the report agrees with it.
set -u
. "$PF_ROOT/tests/tap.sh"
reshard=$PF_BIN/pf-reshard
case $PF_BUILD in */san-*)
    skip "memory" "a sanitizer takes memory of its own"
    done_testing
    ;;
esac
free=$(df -Pk . | awk 'NR == 2 { print $4 }')
if [ "$free" -lt 1500000 ]; then
    skip "memory" "less than 1.5 GB of disk"
    done_testing
fi

# A Hugging Face directory: an embedding of 256 MiB and a small layer, of random bytes.
python3 - <<'PY'
import json, os, struct
os.mkdir("hf")
H, V, I = 1024, 65536, 128
shapes = {"model.embed_tokens.weight": [V, H], "model.norm.weight": [H]}
layer = "model.layers.0."
for n in ("q", "k", "v", "o"):
    shapes[layer + "self_attn.%s_proj.weight" % n] = [H, H]
shapes.update({layer + "mlp.gate_proj.weight": [I, H], layer + "mlp.up_proj.weight": [I, H],
               layer + "mlp.down_proj.weight": [H, I], layer + "input_layernorm.weight": [H],
               layer + "post_attention_layernorm.weight": [H]})
at, header = 0, {}
for name in sorted(shapes):
    n = 4
    for d in shapes[name]:
        n *= d
    header[name] = {"dtype": "F32", "shape": shapes[name], "data_offsets": [at, at + n]}
    at += n
text = json.dumps(header).encode()
with open("hf/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text)
    block = os.urandom(1 << 20)
    for i in range(0, at, 1 << 20):
        f.write((struct.pack("<Q", i) + block[8:])[:min(1 << 20, at - i)])
json.dump({"model_type": "llama", "vocab_size": V, "hidden_size": H, "intermediate_size": I,
           "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 8,
           "tie_word_embeddings": True}, open("hf/config.json", "w"))
PY
# measured FILE ARG...: the JSON of a run to FILE, and the kernel's peak in KiB on stdout
measured()
{
    python3 - "$@" <<'PY'
import resource, subprocess, sys
out = subprocess.run(sys.argv[2:], stdout=open(sys.argv[1], "w"))
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(out.returncode)
PY
}
number() { sed -n "s/.*\"$2\": \([0-9]*\).*/\1/p" "$1"; }

for layout in tp=2 tp=4,sharding=3,stage=3; do
    rm -rf out back
    kib=$(measured run.json "$reshard" hf out --to $layout --max-memory 64M --threads 2 --json)
    ok $? "--to $layout --max-memory 64M"
    [ "$kib" -lt $((128 * 1024)) ]
    ok $? "r8_bounded: the process had at most $((kib / 1024)) MiB"
    peak=$(number run.json peak_memory_bytes)
    [ $((peak / 1024 * 100)) -gt $((kib * 95)) ] && [ $((peak / 1024 * 100)) -lt $((kib * 105)) ]
    ok $? "and says so: $((peak >> 20)) MiB"
    kib=$(measured back.json "$reshard" out back --to dp=1 --max-memory 64M --threads 2 --json)
    ok $? "and back"
    [ "$kib" -lt $((128 * 1024)) ]
    ok $? "r8_bounded: with at most $((kib / 1024)) MiB"
    "$PF_BIN/pf-inspect" diff --weights-only hf back >diff.txt 2>&1
    ok $? "every bit is there" "$(head -n 3 diff.txt)"
    PF_DIRECT_IO=$((tp = 1 - ${tp:-1})) "$reshard" -q hf other --to $layout && diff -r out other >diff.txt
    ok $? "through the page cache or past it ($tp), the same bytes" "$(cat diff.txt)"
    rm -rf other
done

# Compressed, and from compressed: a window more, and the codecs.
if "$reshard" --version -v | grep -q '+ZSTD'; then
    rm -rf out back
    kib=$(measured run.json "$reshard" hf out --to tp=2 --compress zstd --max-memory 64M --threads 2 --json)
    ok $? "--compress zstd --max-memory 64M"
    kib2=$(measured back.json "$reshard" out back --to dp=1 --compress zstd --max-memory 64M --threads 2 --json)
    ok $? "and from compressed to compressed"
    [ "$kib" -lt $((128 * 1024)) ] && [ "$kib2" -lt $((128 * 1024)) ]
    ok $? "r8_bounded: with at most $((kib / 1024)) and $((kib2 / 1024)) MiB"
    "$PF_BIN/pf-inspect" diff --weights-only hf back >diff.txt 2>&1
    ok $? "every bit is there" "$(head -n 3 diff.txt)"
    rm -rf out back
else
    skip "compressed" "this build has no zstd"
fi

# Killed in one long file, when the beginning has been synced and noted, the beginning is kept, or made again if it has changed.
killer=$PF_BUILD/tests/preload/killer.so
"$reshard" -q hf whole --to dp=1
go() { "$reshard" hf out --to dp=1 --threads 2 --max-memory 64M --json "$@"; }
for direct in 0 1; do
    for spoil in '' 1; do
        rm -rf out .staging-out
        PF_DIRECT_IO=$direct KILL_AT=2 KILL_CALLS=fsync KILL_PATH=staging-out/journal LD_PRELOAD=$killer go >/dev/null 2>&1
        is $? 137 "killed in a file of $(stat -c %s whole/weights-00000.safetensors) bytes (PF_DIRECT_IO=$direct)"
        [ -z "$spoil" ] ||
            printf 'x' | dd of=.staging-out/weights-00000.safetensors bs=1 seek=5000000 conv=notrunc 2>/dev/null
        PF_DIRECT_IO=$direct go --resume >run.json 2>err
        ok $? "resumed" "$(cat err)"
        kept=$(number run.json begun_kept_bytes)
        if [ -n "$spoil" ]; then
            is "$kept $(grep -c 'was changed: .* it is made again' err)" "0 1" "a beginning that has changed is made again"
        else
            [ "$kept" -ge $((128 << 20)) ]
            ok $? "the first $kept bytes were kept" "$(cat err)"
        fi
        diff -r whole out >diff.txt
        ok $? "the same bytes" "$(cat diff.txt)"
    done
done
done_testing

