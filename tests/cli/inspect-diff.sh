#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pf-inspect diff and hash across formats: what is identical, and each way to differ, by its exit code.
set -u
. "$PF_ROOT/tests/tap.sh"
inspect=$PF_BIN/pf-inspect
model=$PF_ROOT/tests/fixtures/hf/qwen3
shared=$PF_ROOT/../shared/fixtures/hf

# differs STATUS WORDS CLAIM [ARG...]: diff ends so, its output holds the words, stderr is empty.
differs()
{
    local status=$1 words=$2 claim=$3 got
    shift 3
    "$inspect" diff "$@" >out 2>err
    got=$?
    if [ $got = "$status" ] && grep -qF -- "$words" out && [ ! -s err ]; then
        ok 0 "$claim"
    else
        ok 1 "$claim" "exit $got" "$(tail -n 4 out)" "$(cat err)"
    fi
}

# flip FILE OFFSET: the lowest bit of one byte.
flip()
{
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    printf "\\x$(printf %02x $((byte ^ 1)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

mkdir a && cp "$model/model.safetensors" "$model/config.json" a
cp -R a b
differs 0 "identical: 25 tensors" "a directory and its copy are identical" a b
differs 0 "identical: 25 tensors" "a directory and its file are identical" a b/model.safetensors
differs 0 "identical" "and whatever the NaN policy, there being none" --nan differ a b

# Little-endian, so the byte four before the end holds the lowest bits of the last element.
size=$(stat -c %s a/model.safetensors)
flip b/model.safetensors $((size - 4))
differs 1 "1 of " "one bit flipped in the values is one difference" a b
is "$(grep -c . out)" 2 "of one tensor"
grep -q "max ulp 1, 0 NaN" out
ok $? "of one ulp" "$(head -n 1 out)"
differs 0 "the same within the tolerance: 25 tensors, 1 of them not bit for bit" "--ulp 1 admits it" \
    --ulp 1 a b
differs 1 "1 of " "--ulp 0 does not" --ulp 0 a b
differs 0 "within the tolerance" "--rtol 1e-6 admits it" --rtol 1e-6 a b
differs 0 "within the tolerance" "--atol 1e-6 admits it" --atol 1e-6 a b
differs 1 "1 of " "--rtol 1e-9 does not" --rtol 1e-9 a b
differs 1 "25 differences" "ten steps of training change every tensor" a "$model/final.safetensors"
if command -v python3 >/dev/null; then
    "$inspect" diff --json a b >out 2>err
    is "$? $(python3 -c "
import json
d = json.load(open('out'))
i = d['differences'][0]
v = i['values']
print(d['ok'], d['error']['kind'], d['identical'], d['same_tensors'], len(d['differences']), i['kind'],
      v['differ'], v['max_ulp'], len(v['first_index']), 0 < v['max_rel'] < 2e-7, d['schema'])")" \
        "1 False differ False 24 1 values 1 1 1 True 1" "--json gives the same numbers and verdict"
    "$inspect" diff --json a a >out
    is "$? $(python3 -c "import json; d = json.load(open('out')); print(d['ok'], d['identical'])")" \
        "0 True True" "--json of two that are identical"
    python3 "$PF_ROOT/tests/cli/shards.py" a/model.safetensors s 3 && cp a/config.json s
    differs 0 "identical: 25 tensors" "one file and three shards are identical" a s
    python3 "$PF_ROOT/tests/cli/shards.py" b/model.safetensors t 4
    differs 1 "max ulp 1" "a bit flipped is found across other shards" s t
    # Missing and extra tensors, another shape, another dtype: one made from the other.
    python3 - <<'PY'
import json, struct
def put(name, header, body):
    h = json.dumps(header).encode()
    open(name, "wb").write(struct.pack("<Q", len(h)) + h + body)
def entry(dtype, shape, lo, hi):
    return {"dtype": dtype, "shape": shape, "data_offsets": [lo, hi]}
f = struct.pack("<4f", 1, 2, 3, 4)
nan = struct.pack("<4I", 0x3f800000, 0x7fc00000, 0x40400000, 0x40800000)
odd = struct.pack("<4I", 0x3f800000, 0x7fc00123, 0x40400000, 0x40800000)
put("f.safetensors", {"w": entry("F32", [4], 0, 16)}, f)
put("more.safetensors", {"w": entry("F32", [4], 0, 16), "x": entry("F32", [4], 16, 32)}, f + f)
put("shape.safetensors", {"w": entry("F32", [2, 2], 0, 16)}, f)
put("bf16.safetensors", {"w": entry("BF16", [4], 0, 8)}, struct.pack("<4H", 0x3f80, 0x4000, 0x4040, 0x4080))
put("nan.safetensors", {"w": entry("F32", [4], 0, 16)}, nan)
put("odd.safetensors", {"w": entry("F32", [4], 0, 16)}, odd)
put("f4.safetensors", {"w": entry("F4", [4], 0, 2)}, b"\0\1")
PY
    differs 1 "only-b  weight  x" "a tensor of B alone" f.safetensors more.safetensors
    differs 1 "only-a  weight  x" "a tensor of A alone" more.safetensors f.safetensors
    differs 1 "shape [4] -> [2,2]" "another shape" f.safetensors shape.safetensors
    differs 1 "dtype F32 -> BF16; values equal" "another dtype, equal numbers" \
        f.safetensors bf16.safetensors
    differs 1 "first [1] 2 -> nan (0x7fc00000)" "a NaN in the place of a number" \
        f.safetensors nan.safetensors
    differs 1 "first [1] nan (0x7fc00000) -> nan (0x7fc00123)" "NaNs of other payload" \
        nan.safetensors odd.safetensors
    differs 0 "within the tolerance" "are the same with --nan equal" --nan equal \
        nan.safetensors odd.safetensors
    differs 0 "identical" "a NaN is itself" nan.safetensors nan.safetensors
    differs 1 "1 of 4 differ" "not so with --nan differ" --nan differ nan.safetensors nan.safetensors
    "$inspect" diff f4.safetensors f4.safetensors >out 2>err
    is "$? $(grep -c "elements of 4 bits" err)" "7 1" "elements of 4 bits are not compared: exit 7"
else
    skip "shards, shapes, dtypes, NaNs" "no python3"
fi

# Checkpoints of pf: trained with a rate of 0, the weights are those of the directory.
train() # OUT STEPS [WORD...]
{
    local out=$1 steps=$2
    shift 2
    "$PF_BIN/pf-train" config.json "output_dir=$out" "max_steps=$steps" "$@" >"$out.log" 2>&1
}
cat >config.json <<'JSON'
{ "model_name_or_path": "a", "input_dir": "synthetic:markov?vocab=64&order=1&seed=2", "seed": 3,
  "max_seq_length": 16, "per_device_train_batch_size": 2, "max_steps": 2, "learning_rate": 0,
  "weight_decay": 0, "save_steps": 1, "threads": 1 }
JSON
if train still 2; then
    differs 0 "identical: 25 tensors" "r14_diff_pf: a checkpoint of pf has the weights of the directory" \
        --weights-only a still
    cmp -s <("$inspect" hash a) <("$inspect" hash --weights-only still/checkpoint-000001)
    ok $? "r14_hash_pf: and the same digests, the one of all too"
    differs 0 "identical: 25 tensors" "r14_diff_export: and so has its export" a still/hf
    differs 1 "only-b  moment1" "the optimizer is a difference without --weights-only" a still
    differs 1 "step    -        -" "two steps of one run differ" still/checkpoint-000001 still
    grep -q "^state  *-  *step  *1 -> 2" out
    ok $? "in the trainer state too, by the path of each member" "$(grep ^state out)"
    "$inspect" show still >out
    is "$(sed -n 's/^step *//p; s/^format *//p; s/^checkpoint *//p' out | tr '\n' ' ')" \
        "still/checkpoint-000002 pf 2 " "show follows a run to its newest checkpoint"
    cp -R still again
    differs 0 "identical: 75 tensors and the trainer state" "a copy of a run is identical" still again
    flip again/checkpoint-000002/optim-00000.safetensors \
        $(($(stat -c %s again/checkpoint-000002/optim-00000.safetensors) - 4))
    differs 1 "moment2" "a bit flipped in the optimizer is found" still again
    # Open MPI leaks; that is not what is tested here.
    if ASAN_OPTIONS=detect_leaks=0 "$PF_ROOT/scripts/mpirun-here" -n 2 "$PF_BIN/pf-train" config.json output_dir=two max_steps=1 \
        >two.log 2>&1; then
        ok "$([ -e two/checkpoint-000001/weights-00001.safetensors ]; echo $?)" "two ranks wrote files"
        differs 0 "identical: 25 tensors" "r14_diff_ranks: written by two ranks, the weights are the same" \
            --weights-only still two
        cmp -s <("$inspect" hash a) <("$inspect" hash --weights-only two)
        ok $? "r14_hash_ranks: and so are the digests"
        "$inspect" ls two 'lm_head.weight' >out
        is "$(awk 'NR > 1 { print $2 }' out | tr '\n' ' ')" "weight moment1 moment2 " \
            "ls shows a tensor in each of its roles"
    else
        ok 1 "two ranks train" "$(tail -n 3 two.log)"
    fi
else
    ok 1 "pf-train makes a checkpoint" "$(tail -n 3 still.log)"
fi

if [ -e "$shared/llama/bf16" ]; then
    differs 1 "dtype F32 -> BF16" "llama and its bf16 variant differ in dtype" "$shared/llama" \
        "$shared/llama/bf16"
    differs 0 "identical" "llama in one file and in shards is identical" "$shared/llama" \
        "$shared/llama/sharded"
else
    skip "llama against its variants" "no shared fixtures"
fi
done_testing
