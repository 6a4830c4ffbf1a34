#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An independent reader of pf checkpoints, written from pf-checkpoint(5) alone.

usage: read_checkpoint.py DIR [DIR2]
Checks all that the page promises and prints a line for each tensor, "role name dtype shape sha256",
and the step and state. With DIR2 says whether the two are identical. Exit: 0 good (and identical),
1 different, 3 damaged. Digests are computed by libxxhash; without it a notice says so."""
import ctypes, ctypes.util, hashlib, json, os, pathlib, re, struct, sys
from math import prod

ROLES = ["weight", "master", "moment1", "moment2", "ema", "buffer", "scalar"]
BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
        "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
        "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64}
MEMBERS = ["format", "schema", "step", "previous", "config", "mesh", "options", "state", "files",
           "tensors", "manifest_xxh3_128"]
TAIL = re.compile(rb'"manifest_xxh3_128": "([0-9a-f]{32})"\n}\n\Z')

class Damaged(Exception):
    pass

class Hash(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]

try:
    XXH3 = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0").XXH3_128bits
    XXH3.restype, XXH3.argtypes = Hash, [ctypes.c_char_p, ctypes.c_size_t]
except (OSError, AttributeError):
    XXH3 = None
    print("notice: no libxxhash here, digests are not checked", file=sys.stderr)

def check(holds, what):
    if not holds:
        raise Damaged(what)

def check_digest(data, says, what):
    if XXH3:
        digest = XXH3(data, len(data))
        check("%016x%016x" % (digest.high, digest.low) == says, what + ": digest")

def once(pairs):
    check(len({k for k, _ in pairs}) == len(pairs), "a member twice in one object")
    return dict(pairs)

def is_int(x):
    return isinstance(x, int) and not isinstance(x, bool) and x >= 0

def read_safetensors(path, name):
    data = pathlib.Path(path).read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    check(8 + n <= len(data), name + ": header too long")
    header = json.loads(data[8:8 + n].decode(), object_pairs_hook=once)
    check(header.pop("__metadata__", None) == {"format": "pt"}, name + ": metadata")
    body, entries, at = data[8 + n:], {}, 0
    for key, e in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        lo, hi = e["data_offsets"]
        check(lo == at, "%s: '%s' does not follow the entry before" % (name, key))
        check((hi - lo) * 8 == prod(e["shape"]) * BITS[e["dtype"]], "%s: '%s': size" % (name, key))
        entries[key], at = (e["dtype"], e["shape"], body[lo:hi]), hi
    check(at == len(body), name + ": bytes after the last entry")
    return data, entries

def read_manifest(path):
    data = pathlib.Path(path, "manifest.json").read_bytes()
    tail = TAIL.search(data)
    check(tail and tail.start() == len(data) - 58, "manifest: end")
    check_digest(data[:-58], tail.group(1).decode(), "manifest")
    m = json.loads(data.decode(), object_pairs_hook=once)
    check(sorted(m) == sorted(MEMBERS) and list(m)[-1] == MEMBERS[-1], "manifest: members")
    check(m["format"] == "pf-checkpoint" and m["schema"] == 1, "manifest: format or schema")
    check(is_int(m["step"]) and re.fullmatch("[0-9a-f]{32}|None", str(m["previous"])), "manifest: types")
    check(all(isinstance(m[k], dict) for k in MEMBERS[4:8]), "manifest: types")
    return m

def read_files(path, m):
    names, files = [f["name"] for f in m["files"]], {}
    check(names == sorted(set(names), key=str.encode), "files: order")
    check(sorted(names + ["manifest.json"]) == sorted(os.listdir(path)), "files: not those there")
    for f in m["files"]:
        check(sorted(f) == ["bytes", "name", "xxh3_128"], "files: members")
        check(re.fullmatch(r"(weights|optim)-\d{5}\.safetensors", f["name"]), "files: " + f["name"])
        data, files[f["name"]] = read_safetensors(os.path.join(path, f["name"]), f["name"])
        check(len(data) == f["bytes"], f["name"] + ": size")
        check_digest(data, f["xxh3_128"], f["name"])
    return files

def runs(box, shape, first, last):
    """The elements first..last of a box as (number in the range, place in the tensor, length)."""
    extents = [hi - lo for lo, hi in box]
    inner = next((d for d in range(len(box), 0, -1) if extents[d:] != shape[d:]), 0)
    row = prod(extents[inner:])
    for r in range(first // row, (last + row - 1) // row):
        at, i, stride = 0, r * row, 1
        for (lo, _), extent, dim in zip(reversed(box), reversed(extents), reversed(shape)):
            at, i, stride = at + (lo + i % extent) * stride, i // extent, stride * dim
        lo, hi = max(first, r * row), min(last, (r + 1) * row)
        yield lo - first, at + lo - r * row, hi - lo

def read_tensor(t, files):
    check(sorted(t) == ["dtype", "name", "pieces", "role", "shape"], "tensors: members")
    what, shape, size = "%s %s" % (t["role"], t["name"]), t["shape"], BITS[t["dtype"]] // 8
    check(len(shape) <= 8 and all(is_int(d) for d in shape), what + ": shape")
    whole, seen = bytearray(prod(shape) * size), bytearray(prod(shape))
    for p in t["pieces"]:
        box, extents = p["box"], [hi - lo for lo, hi in p["box"]]
        check(sorted(set(p) - {"range"}) == ["box", "file", "tensor"], what + ": piece")
        check(len(box) == len(shape) and all(is_int(lo) and is_int(hi) and lo < hi <= d
              for (lo, hi), d in zip(box, shape)), what + ": box")
        first, last = p.get("range", [0, prod(extents)])
        check(is_int(first) and is_int(last) and first < last <= prod(extents), what + ": range")
        check("range" not in p or last - first < prod(extents), what + ": range of all")
        entry = t["name"] + ("" if t["role"] == "weight" else "." + t["role"])
        if "range" in p or extents != shape:
            entry += "@" + ",".join("%d:%d" % (lo, hi) for lo, hi in box)
        entry += "#%d:%d" % (first, last) if "range" in p else ""
        kind = "weights-" if t["role"] in ("weight", "buffer") else "optim-"
        check(p["tensor"] == entry and p["file"].startswith(kind), what + ": entry name or file")
        dtype, stored, data = files[p["file"]].pop(entry, (None, None, b""))
        check(dtype == t["dtype"], what + ": dtype of its entry, or no entry")
        check(stored == ([last - first] if "range" in p else extents), what + ": shape of its entry")
        for i, at, n in runs(box, shape, first, last):
            check(not any(seen[at:at + n]), what + ": an element twice")
            seen[at:at + n] = b"\1" * n
            whole[at * size:(at + n) * size] = data[i * size:(i + n) * size]
    check(all(seen), what + ": a hole")
    return "%s %s %s %s" % (what, t["dtype"], shape, hashlib.sha256(whole).hexdigest())

def read_checkpoint(path):
    m = read_manifest(path)
    files = read_files(path, m)
    keys = [(ROLES.index(t["role"]), t["name"].encode()) for t in m["tensors"]]
    check(all(a < b for a, b in zip(keys, keys[1:])), "tensors: order")
    lines = sorted(read_tensor(t, files) for t in m["tensors"])
    check(not any(files.values()), "entries that no piece names")
    return lines + ["step %d" % m["step"], "state " + json.dumps(m["state"], sort_keys=True)]

if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    try:
        contents = [read_checkpoint(path) for path in sys.argv[1:]]
    except (Damaged, OSError, ValueError, KeyError, TypeError, IndexError, struct.error) as e:
        print("damaged: %s: %s" % (type(e).__name__, e), file=sys.stderr)
        sys.exit(3)
    print("\n".join(contents[0]))
    for line in sorted(set(contents[0]) ^ set(contents[-1])):
        print("different: " + line, file=sys.stderr)
    sys.exit(int(contents[0] != contents[-1]))
