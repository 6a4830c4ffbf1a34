#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pf-inspect scan and cat: what is wrong with the numbers of a checkpoint, and the numbers themselves.
set -u
. "$PF_ROOT/tests/tap.sh"
inspect=$PF_BIN/pf-inspect
model=$PF_ROOT/tests/fixtures/hf/qwen3

# gives STATUS WANT CLAIM [ARG...]: exit status and all of the output; nothing on stderr.
gives()
{
    local status=$1 want=$2 claim=$3 got
    shift 3
    "$inspect" "$@" >out 2>err
    got=$?
    if [ $got = "$status" ] && [ "$(cat out)" = "$want" ] && [ ! -s err ]; then
        ok 0 "$claim"
    else
        ok 1 "$claim" "exit $got" "$(cat out err)" "wanted: $want"
    fi
}
json_is() # WANT PYTHON-EXPRESSION CLAIM
{
    is "$(python3 -c "import json; d = json.load(open('out')); print($2)" 2>&1)" "$1" "$3"
}

"$inspect" scan "$model" >out 2>err
is $? 0 "scan of a sound model: exit 0"
is "$(tail -n 1 out)" "25 tensors, 49744 elements: no NaN, no infinity" "and its last line says so"
is "$(wc -l <out)" 27 "a line for each tensor"
"$inspect" scan "$model" '*norm.weight' >out
is "$(tail -n 1 out)" "9 tensors, 304 elements: no NaN, no infinity" "a glob chooses"
"$inspect" scan "$model" 'nothing*' >out 2>err
is "$? $(grep -c "no tensor of" err)" "1 1" "a glob that matches nothing: exit 1"

if ! command -v python3 >/dev/null; then
    skip "values" "no python3"
    done_testing
fi
python3 - <<'PY'
import json, struct
def put(name, tensors):
    header, body = {}, b""
    for key, (dtype, shape, data) in tensors.items():
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    h = json.dumps(header).encode()
    open(name, "wb").write(struct.pack("<Q", len(h)) + h + body)
f = lambda *x: struct.pack("<%df" % len(x), *x)
inf, nan = float("inf"), float("nan")
put("bad.safetensors", {
    "bad": ("F32", [2, 3], f(1, 2, 3, nan, -inf, 0)),
    "big": ("F32", [3], f(70000, 1e-9, 1.5)),
    "one": ("F32", [4], f(1, 1, 1, 1)),
    "zero": ("BF16", [2], b"\0\0\0\x80"),
    "ids": ("I64", [2], struct.pack("<2q", -5, 2**53 + 1)),
    "f4": ("F4", [4], b"\0\1"),
})
put("cube.safetensors", {"c": ("F32", [2, 2, 3], f(*range(12))),
                         "s": ("F64", [], struct.pack("<d", 0.1)),
                         "u": ("U8", [3], b"\0\7\xff"),
                         "e": ("F32", [0, 4], b""),
                         "n": ("F32", [3], f(nan, inf, -inf)),
                         "b": ("BOOL", [2], b"\1\0")})
PY
gives 1 "NAME  ROLE    DTYPE  SHAPE  NAN  INF  ZERO  DENORMAL    MIN         MAX      ABSMAX         RMS  AS BF16     AS F16            NOTES
bad   weight  F32    [2,3]    1    1     1         0      0           3           3      1.8708  exact       exact             NOT FINITE, first at [1,0]
big   weight  F32      [3]    0    0     0         0  1e-09       70000       70000       40415  rel 0.0032  1 to inf, 1 to 0  
f4    weight  F4       [4]    -    -     -         -      -           -           -           -  -           -                 not read: elements narrower than a byte
ids   weight  I64      [2]    0    0     0         0     -5  9.0072e+15  9.0072e+15  6.3691e+15  -           -                 
one   weight  F32      [4]    0    0     0         0      1           1           1           1  exact       exact             constant
zero  weight  BF16     [2]    0    0     2         0      0           0           0           0  exact       exact             all zero
6 tensors, 17 elements: 1 NaN, 1 infinite, in 1 of the tensors; 1 not read" \
    "scan tells NaN, infinity, constants, zeros, and what a cast loses: exit 1" scan bad.safetensors
"$inspect" scan --json bad.safetensors >out 2>err
is $? 1 "scan --json: exit 1 as well"
json_is "False differ 1 1 1 [1, 0] None" \
    "d['ok'], d['error']['kind'], d['nan'], d['inf'], d['bad_tensors'],
     d['tensors'][0]['first_not_finite'], d['tensors'][3]['as_f16']" "it gives the same counts"
json_is "{'changed': 2, 'overflow': 1, 'underflow': 1, 'max_rel': 0}" "d['tensors'][1]['as_f16']" \
    "and the casts in numbers"

gives 0 $'# [0,0:2,0:3]\n 0   1   2\n 3   4   5\n\n# [1,0:2,0:3]\n 6   7   8\n 9  10  11' \
    "cat prints a cube as matrices" cat cube.safetensors c
gives 0 $' 7   8\n10  11' "a box cuts it" cat cube.safetensors c:1,:,1:
gives 0 $'4\n10' "an index takes a dimension away" cat cube.safetensors c:0:2,1,-2
gives 0 0.1 "a scalar" cat cube.safetensors s
gives 0 $'0\n7\n255' "bytes" cat cube.safetensors u
gives 0 $'true\nfalse' "booleans" cat cube.safetensors b
gives 0 $'nan\ninf\n-inf' "what is not finite" cat cube.safetensors n
gives 0 "" "no elements" cat cube.safetensors e
"$inspect" cat --json cube.safetensors c:1,:,1: >out
json_is "True c F32 [2, 2, 3] [1, 0, 1] [2, 2, 3] [2, 2] [7, 8, 10, 11]" \
    "d['ok'], d['name'], d['dtype'], d['tensor_shape'], d['lo'], d['hi'], d['shape'], d['values']" \
    "cat --json says which box, its shape, its values"
"$inspect" cat --json cube.safetensors n >out
json_is "[None, None, None]" "d['values']" "JSON has null for what is not finite"
"$inspect" cat cube.safetensors nowhere >out 2>err
is "$? $(cat err)" "1 pf-inspect: no tensor is called 'nowhere'" "a name that is not there: exit 1"
"$inspect" cat cube.safetensors c:0,0,3 >out 2>err
is "$? $(cat err)" "2 pf-inspect: '3' reaches outside dimension 2 of 'c', which has 3" \
    "a box beyond the tensor: exit 2"
"$inspect" cat bad.safetensors f4 >out 2>err
is $? 7 "elements of 4 bits are not read: exit 7"

# Every value of a real tensor, whatever the number of shards: as another program reads it.
python3 - "$model/model.safetensors" >want <<'PY'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", data[:8])[0]
lo, hi = json.loads(data[8:8 + n])["lm_head.weight"]["data_offsets"]
print("\n".join(repr(x) for x in struct.unpack("<%df" % ((hi - lo) // 4), data[8 + n + lo:8 + n + hi])))
PY
python3 "$PF_ROOT/tests/cli/shards.py" "$model/model.safetensors" s 3
"$inspect" cat s lm_head.weight | tr -s ' \n' '\n' | sed '/^$/d' >out
is "$(python3 -c "
import struct
f = lambda p: [struct.pack('<f', float(x)) for x in open(p)]
print(f('out') == f('want'))")" True "the digits of cat give every bit back"
"$inspect" cat "$model" lm_head.weight 2>err | head -n 1 >/dev/null
ok "$([ -s err ]; echo $((1 - $?)))" "a reader that goes away is no error" "$(cat err)"
done_testing
