#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pf-inspect show, ls, hash and ops on every kind of checkpoint.
set -u
. "$PF_ROOT/tests/tap.sh"
inspect=$PF_BIN/pf-inspect
hf=$PF_ROOT/tests/fixtures/hf
shared=$PF_ROOT/../shared/fixtures/hf

# gives WANT-FILE CLAIM [ARG...]: exit 0, nothing on stderr, exactly this on stdout.
gives()
{
    local want=$1 claim=$2 got
    shift 2
    "$inspect" "$@" >out 2>err
    got=$?
    if [ $got = 0 ] && [ ! -s err ] && cmp -s out "$want"; then
        ok 0 "$claim"
    else
        ok 1 "$claim" "exit $got" "$(cat err)" "$(diff "$want" out | head -n 12)"
    fi
}

# A line of JSON of the last output.
json_is() # WANT PYTHON-EXPRESSION CLAIM
{
    is "$(python3 -c "import json; d = json.load(open('out')); print($2)" 2>&1)" "$1" "$3"
}

cp -R "$hf/qwen3" qwen3 && rm -f qwen3/[a-l]*.safetensors
cat >want <<'EOT'
path          qwen3
format        hf
architecture  Qwen3ForCausalLM (qwen3)
model         2 layers, hidden 48, 4 heads (2 key/value) of 16, ffn 64, vocabulary 131, head not tied
parameters    49744
tensors       25 in 25 pieces
files         1, 197 KiB; tensors 194 KiB
role          weight  25 tensors  49744 elements  194 KiB
dtype         F32     25 tensors  49744 elements  194 KiB
EOT
gives want "show says what a Hugging Face directory is" show qwen3
cp -R "$hf/gpt2" gpt2 && rm -f gpt2/g*.safetensors
"$inspect" show gpt2 >out 2>err
is $? 0 "show reads gpt2"
is "$(sed -n 's/^architecture *//p' out)" "GPT2LMHeadModel (gpt2)" "and names its architecture"
is "$(sed -n 's/^model .*head //p' out)" "tied" "and knows that its head is tied"

cat >want <<'EOT'
NAME                                            ROLE    DTYPE    SHAPE  BYTES  PIECES  FILES
model.layers.1.input_layernorm.weight           weight  F32       [48]    192       1  model.safetensors
model.layers.1.mlp.down_proj.weight             weight  F32    [48,64]  12288       1  model.safetensors
model.layers.1.mlp.gate_proj.weight             weight  F32    [64,48]  12288       1  model.safetensors
model.layers.1.mlp.up_proj.weight               weight  F32    [64,48]  12288       1  model.safetensors
model.layers.1.post_attention_layernorm.weight  weight  F32       [48]    192       1  model.safetensors
EOT
gives want "ls lists the tensors that a glob matches, aligned" ls qwen3 'model.layers.1.[imp]*'
is "$("$inspect" ls qwen3 | wc -l)" 26 "ls without a glob: a line each and the head"

# Digests computed here from the definition of pf-inspect(1), if there is an xxHash library.
"$inspect" hash qwen3 >single.txt
is "$(wc -l <single.txt)" 26 "hash: a line for each tensor and one for all"
cat >digest.py <<'PY'
import ctypes, ctypes.util, json, struct, sys
class H(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]
f = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0").XXH3_128bits
f.restype, f.argtypes = H, [ctypes.c_char_p, ctypes.c_size_t]
def xxh(b):
    h = f(b, len(b))
    return "%016x%016x" % (h.high, h.low)
data = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:8 + n])
header.pop("__metadata__", None)
lines = []
for name in sorted(header):
    e = header[name]
    lo, hi = e["data_offsets"]
    lines.append((xxh(b"%s\0weight\0%s\0" % (name.encode(), e["dtype"].encode()) +
                      struct.pack("<%dQ" % (1 + len(e["shape"])), len(e["shape"]), *e["shape"]) +
                      data[8 + n + lo:8 + n + hi]), name))
for digest, name in lines:
    print("%s  weight  %s" % (digest, name))
print("%s  all" % xxh("".join(d + "\n" for d, _ in lines).encode()))
PY
if python3 digest.py qwen3/model.safetensors >want 2>err; then
    gives want "hash is what its page says, computed by another program" hash qwen3
else
    skip "hash is what its page says" "no libxxhash: $(tail -n 1 err)"
fi
cmp -s single.txt <("$inspect" hash qwen3/model.safetensors)
ok $? "r14_hash_file: the file alone has the digests of its directory"

if command -v python3 >/dev/null; then
    for n in 2 5; do
        python3 "$PF_ROOT/tests/cli/shards.py" qwen3/model.safetensors "shards$n" "$n"
        cp qwen3/config.json "shards$n"
        cmp -s single.txt <("$inspect" hash "shards$n")
        ok $? "r14_hash_shards: one file and $n shards have the same digests"
    done
    "$inspect" ls shards5 'model.norm.weight' >out
    grep -q 'model-00005-of-00005.safetensors$' out
    ok $? "ls names the shard of a tensor"
    "$inspect" --json show shards5 >out
    json_is "True hf None qwen3 2 49744 5 25 1" \
        "d['ok'], d['format'], d['step'], d['model']['family'], d['model']['layers'],
         d['parameters'], len(d['files']), d['roles']['weight']['tensors'], d['schema']" \
        "show --json says the same as the table"
    "$inspect" ls --json shards5 '*norm.weight' >out
    json_is "9 ['F32'] [[[0, 48]]]" \
        "len(d['tensors']), sorted({t['dtype'] for t in d['tensors']}),
         [p['box'] for t in d['tensors'] if t['name'] == 'model.norm.weight' for p in t['pieces']]" \
        "ls --json gives pieces as boxes"
    "$inspect" hash --json shards5 >out
    json_is "$(tail -n 1 single.txt | cut -d' ' -f1) 25" "d['digest'], len(d['tensors'])" \
        "hash --json gives the same digests"
    # A name may hold anything; a terminal gets it escaped.
    python3 - <<'PY'
import json, struct
name = "a\x1b[2Jb\nc"
h = json.dumps({name: {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}).encode()
open("evil.safetensors", "wb").write(struct.pack("<Q", len(h)) + h + b"\0\0\0\0")
PY
    "$inspect" ls evil.safetensors >out
    is "$(sed -n 's/ *weight.*//; 2p' out)" 'a\x1b[2Jb\x0ac' "control characters in names are escaped"
    ok "$(LC_ALL=C grep -q $'\x1b' out; echo $((1 - $?)))" "and no escape reaches the terminal"
    "$inspect" ls --json evil.safetensors >out
    json_is "True" "d['tensors'][0]['name'] == 'a\x1b[2Jb\nc'" "JSON carries the name as it is"
else
    skip "shards and JSON" "no python3"
fi

# The larger models lie beside the repository.
for family in llama llama-tied ernie4_5 qwen2; do
    if [ -e "$shared/$family/model.safetensors" ]; then
        "$inspect" show "$shared/$family" >out 2>err && grep -q "^architecture .*ForCausalLM" out
        ok $? "show understands $family" "$(cat err)"
    else
        skip "show understands $family" "no shared fixtures"
    fi
done
if [ -e "$shared/llama/sharded" ]; then
    cmp -s <("$inspect" hash "$shared/llama") <("$inspect" hash "$shared/llama/sharded")
    ok $? "r14_hash_llama: shards written by transformers have the digests of its single file"
else
    skip "r14_hash_llama: shards written by transformers" "no shared fixtures"
fi
if [ -e "$shared/gpt2/legacy" ]; then
    cmp -s <("$inspect" hash --weights-only "$shared/gpt2") \
        <("$inspect" hash --weights-only "$shared/gpt2/legacy")
    ok $? "r14_hash_legacy: old names and buffers do not change the digests of the weights"
else
    skip "r14_hash_legacy: old names" "no shared fixtures"
fi

# r66: the registry, its fallback order, its rate of reuse.
"$inspect" ops >out 2>err
is $? 0 "r66_ops: ops prints the registry"
ok "$([ "$(grep -cE '^(gemm|rope|adamw|cross_entropy) ' out)" -ge 4 ]; echo $?)" \
    "r66_ops_all: matrix products, rotary, AdamW and loss are in it"
is "$(awk 'NR > 1 && NF && $0 !~ /^device|reuse rate/ && $NF != "ref" && !/; not/' out | wc -l)" 0 \
    "r66_fallback_order: every op ends in the reference"
ok "$(grep -qE '^rmsnorm_fwd +F32 +[a-z0-9]+ +highest preference +([a-z0-9]+ > )*ref' out; echo $?)" \
    "r66_fallback_line: who serves, why, and who would in its place" "$(grep rmsnorm_fwd out)"
ok "$(grep -qE '^[0-9]+ served: .*reuse rate [0-9]+ %$' out; echo $?)" \
    "r66_reuse_rate: the rate of reuse is computed"
PF_KERNELS=ref "$inspect" ops >out
ok "$(grep -q 'reuse rate 100 %' out; echo $?)" \
    "r66_reference: with PF_KERNELS=ref the reference serves all"
ok "$(grep -q 'not generic: only the reference was asked for' out; echo $?)" \
    "r66_why_not: and it says why the others do not"
if command -v python3 >/dev/null; then
    "$inspect" ops --json >out
    json_is "True True True" \
        "sum(c['chosen'] for o in d['ops'] for c in o['candidates']) == d['served'],
         all(o['candidates'][-1]['variant'] == 'ref' for o in d['ops']),
         abs(d['reuse_rate'] - (d['by_library'] + d['by_reference']) / d['served']) < 1e-12" \
        "r66_json: the same as JSON, one chosen for each op and dtype"
fi
done_testing
