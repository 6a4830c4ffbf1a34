#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cut a safetensors file into shards with an index, as huggingface_hub lays them out.

usage: shards.py MODEL.safetensors DIR N          N shards, tensors dealt in the order of their names
       shards.py --copy NAME FROM TO [xor]        put a tensor of FROM into TO too; xor: other bytes"""
import json, os, struct, sys

def read(path):
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    body = data[8 + n:]
    return {k: (e["dtype"], e["shape"], body[slice(*e["data_offsets"])]) for k, e in header.items()}

def write(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))

if sys.argv[1] == "--copy":
    name, source, to = sys.argv[2:5]
    tensors, new = read(to), read(source)[name]
    if sys.argv[5:] == ["xor"]:
        new = (new[0], new[1], bytes(b ^ 1 for b in new[2]))
    tensors[name] = new
    write(to, tensors)
else:
    tensors, out, n = read(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    os.makedirs(out, exist_ok=True)
    names = sorted(tensors)
    where = {name: "model-%05d-of-%05d.safetensors" % (i * n // len(names) + 1, n)
             for i, name in enumerate(names)}
    for shard in sorted(set(where.values())):
        write(os.path.join(out, shard), {k: tensors[k] for k in names if where[k] == shard})
    index = {"metadata": {"total_size": sum(len(t[2]) for t in tensors.values())},
             "weight_map": where}
    with open(os.path.join(out, "model.safetensors.index.json"), "w") as f:
        json.dump(index, f, indent=1)
