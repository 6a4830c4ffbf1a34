#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pf-reshard at full size, for scripts/check-long: 64 shards of 64 MiB and one tensor of 1 GiB in
# --max-memory 256M, 2,000 shards with 64 open files, 99,459 tensors placed on 16,384 ranks. The
# kernel's account of the process decides; times are told, not judged.
set -u
. "$PF_ROOT/tests/tap.sh"
reshard=$PF_BIN/pf-reshard
if [ -z "${RESHARD_LARGE:-}" ]; then
    skip "large checkpoints" "RESHARD_LARGE is not set"
    done_testing
    exit
fi
free=$(df -Pk . | awk 'NR == 2 { print $4 }')
if [ "$free" -lt 10000000 ]; then
    skip "large checkpoints" "less than 10 GB of disk"
    done_testing
    exit
fi

# make_hf DIR LAYERS HIDDEN INTERMEDIATE VOCAB TIED BYTES: a llama whose tensors are given out to shards of at
# least BYTES, in their order; numbers that tell one place from another.
make_hf()
{
    python3 - "$@" <<'PY'
import json, os, struct, sys
out, L, H, I, V, tied, least = sys.argv[1], *map(int, sys.argv[2:])
os.mkdir(out)
shapes = {"model.embed_tokens.weight": [V, H]}
for l in range(L):
    p = "model.layers.%d." % l
    shapes.update({p + "self_attn.%s_proj.weight" % n: [H, H] for n in "qkvo"})
    shapes.update({p + "mlp.gate_proj.weight": [I, H], p + "mlp.up_proj.weight": [I, H],
                   p + "mlp.down_proj.weight": [H, I], p + "input_layernorm.weight": [H],
                   p + "post_attention_layernorm.weight": [H]})
shapes["model.norm.weight"] = [H]
if not tied:
    shapes["lm_head.weight"] = [V, H]
size = lambda s: 2 * s[0] * (s[1] if len(s) > 1 else 1)
shards, now = [], []
for name, shape in shapes.items():
    now.append(name)
    if sum(size(shapes[n]) for n in now) >= least:
        shards.append(now)
        now = []
if now:
    shards[-1] += now
block, count = os.urandom(1 << 20), 0
where = {}
for i, names in enumerate(shards):
    file = "model-%05d-of-%05d.safetensors" % (i + 1, len(shards))
    at, header = 0, {}
    for n in names:
        header[n] = {"dtype": "BF16", "shape": shapes[n], "data_offsets": [at, at + size(shapes[n])]}
        at += size(shapes[n])
        where[n] = file
    text = json.dumps(header).encode()
    with open(os.path.join(out, file), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for a in range(0, at, 1 << 20):
            count += 1
            f.write((struct.pack("<Q", count) + block[8:])[:min(1 << 20, at - a)])
json.dump({"metadata": {"total_size": sum(map(size, shapes.values()))}, "weight_map": where},
          open(out + "/model.safetensors.index.json", "w"))
json.dump({"model_type": "llama", "vocab_size": V, "hidden_size": H, "intermediate_size": I,
           "num_hidden_layers": L, "num_attention_heads": 8, "num_key_value_heads": 8,
           "tie_word_embeddings": bool(tied)}, open(out + "/config.json", "w"))
print(len(shards))
PY
}

# measured FILE ARG...: the JSON of a run to FILE; on stdout its seconds and the kernel's peak in KiB
measured()
{
    python3 - "$@" <<'PY'
import resource, subprocess, sys, time
start = time.time()
run = subprocess.run(sys.argv[2:], stdout=open(sys.argv[1], "w"))
print("%.1f %d" % (time.time() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(run.returncode)
PY
}
number() { sed -n "s/.*\"$2\": \([0-9]*\).*/\1/p" "$1"; }

# in_budget WHAT LAYOUT: hf to out with --max-memory 256M
in_budget()
{
    local s kib peak
    read -r s kib < <(measured run.json "$reshard" -q hf out --to "$2" --max-memory 256M --json)
    [ -f out/manifest.json ]
    ok $? "$1, --to $2 --max-memory 256M ($s s)"
    [ "${kib:-999999999}" -lt $((320 * 1024)) ]
    ok $? "r8_bounded: at most $((kib / 1024)) MiB"
    peak=$(number run.json peak_memory_bytes)
    [ $((peak / 1024 * 100)) -gt $((kib * 95)) ] && [ $((peak / 1024 * 100)) -lt $((kib * 105)) ]
    ok $? "and says so: $((peak >> 20)) MiB"
    "$PF_BIN/pf-inspect" diff --weights-only hf out >diff.txt 2>&1
    ok $? "every bit is there" "$(head -n 3 diff.txt)"
    rm -rf out
}

n=$(make_hf hf 62 1024 9552 32768 0 64000000)
is "$n" 64 "a source of 64 shards of 64 MiB"
in_budget "64 shards" tp=2,pp=2
in_budget "64 shards" tp=4,sharding=3,stage=3
rm -rf hf

make_hf hf 1 1024 128 524288 1 1000000000 >/dev/null
in_budget "one tensor of 1 GiB" tp=2
rm -rf hf

n=$(make_hf hf 222 64 64 512 1 1)
is "$n" 2000 "a source of 2,000 shards"
(ulimit -n 64 && exec "$reshard" -q hf out --to tp=2,pp=2,sharding=2 --threads 8) >err 2>&1
ok $? "r8_bounded: 2,000 shards with at most 64 open files" "$(cat err)"
"$PF_BIN/pf-inspect" diff --weights-only hf out >diff.txt 2>&1
ok $? "every bit is there" "$(head -n 3 diff.txt)"
rm -rf hf out

# Headers alone: the bytes of the file are a hole.
python3 - "$PF_ROOT/tests/fixtures/hf/qwen3_moe/config.json" <<'PY'
import json, os, struct, sys
c = json.load(open(sys.argv[1]))
L, E, A, H, M = 128, 256, 64, 16, 8
c.update(num_hidden_layers=L, num_attention_heads=A, num_experts=E, num_local_experts=E,
         hidden_size=H, moe_intermediate_size=M)
D, K, V = c["head_dim"], c["num_key_value_heads"], c["vocab_size"]
t = {"model.embed_tokens.weight": [V, H], "model.norm.weight": [H], "lm_head.weight": [V, H]}
for l in range(L):
    p = "model.layers.%d." % l
    t.update({p + "input_layernorm.weight": [H], p + "post_attention_layernorm.weight": [H],
              p + "self_attn.q_proj.weight": [A * D, H], p + "self_attn.k_proj.weight": [K * D, H],
              p + "self_attn.v_proj.weight": [K * D, H], p + "self_attn.o_proj.weight": [H, A * D],
              p + "self_attn.q_norm.weight": [D], p + "self_attn.k_norm.weight": [D],
              p + "mlp.gate.weight": [E, H]})
    for e in range(E):
        q = p + "mlp.experts.%d." % e
        t.update({q + "gate_proj.weight": [M, H], q + "up_proj.weight": [M, H],
                  q + "down_proj.weight": [H, M]})
at, header = 0, {}
for name, shape in t.items():
    n = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
    header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n]}
    at += n
os.mkdir("hf")
json.dump(c, open("hf/config.json", "w"))
text = json.dumps(header).encode()
with open("hf/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text)
    f.truncate(8 + len(text) + at)
PY
for stage in 1 3; do
    read -r s kib < <(measured run.json "$reshard" -q hf out --dry-run --json \
        --to tp=8,pp=16,sharding=128,ep=64,stage=$stage)
    is "$(number run.json tensors)" 99459 \
        "99,459 tensors planned on 16,384 ranks, stage $stage ($s s, $((kib / 1024)) MiB)"
done
done_testing
