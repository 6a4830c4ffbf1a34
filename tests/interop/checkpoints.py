# SPDX-License-Identifier: Apache-2.0
"""pf's own checkpoints, opened with the safetensors library: of one rank and of three, stored in
float32 and in 16 bits, values equal to what pf exports to Hugging Face."""
import json

import torch
from safetensors import safe_open
from safetensors.torch import load_file

import pf
import reference as ref
from tap import done, ok

STORED = {"F32": torch.float32, "BF16": torch.bfloat16}


def bits(t):
    return t.contiguous().view(torch.uint8)


def assembled(folder):
    """Every tensor of a checkpoint by (name, role), put together from its pieces, and the entries of
    all files; safetensors does all the reading."""
    manifest = json.loads((folder / "manifest.json").read_text())
    files = {f["name"]: safe_open(folder / f["name"], "pt") for f in manifest["files"]}
    used, tensors = set(), {}
    for t in manifest["tensors"]:
        whole = torch.empty(t["shape"], dtype=STORED[t["dtype"]])
        for piece in t["pieces"]:
            used.add((piece["file"], piece["tensor"]))
            part = files[piece["file"]].get_tensor(piece["tensor"])
            box = tuple(slice(lo, hi) for lo, hi in piece["box"])
            if "range" in piece:
                cut = whole[box].flatten()
                cut[slice(*piece["range"])] = part
                part = cut.view(whole[box].shape)
            whole[box] = part
        tensors[t["name"], t["role"]] = whole
    return manifest, files, used, tensors


def check(name, ranks, **keys):
    run = pf.train(ranks, model=json.loads(pf.family_config("qwen3").read_text()), from_scratch=True,
                   input_dir="synthetic:markov?vocab=64&order=2&seed=1", max_seq_length=32,
                   global_train_batch_size=6, per_device_train_batch_size=2, max_steps=3, save_steps=3,
                   learning_rate=1e-2, **keys)
    if not ok(run.status == 0, f"{name}: pf trains and saves", run.log):
        return None
    manifest, files, used, tensors = assembled(run.out / "checkpoint-000003")
    ok(all(f.metadata() == {"format": "pt"} for f in files.values()), f"{name}: {len(files)} files open")
    entries = {(n, key) for n, f in files.items() for key in f.keys()}
    ok(entries == used, f"{name}: their {len(entries)} entries are the pieces of the manifest")
    exported = load_file(run.out / "hf/model.safetensors")
    kept = {key: t for (key, role), t in tensors.items() if role == "weight"}
    ok(kept.keys() == exported.keys() and all(torch.equal(bits(t), bits(exported[k])) for k, t in kept.items()),
       f"{name}: {len(kept)} weights equal the exported ones, bit for bit")
    roles = {role for _, role in tensors}
    ok(roles == {"weight", "moment1", "moment2"} | ({"master"} if keys else set()),
       f"{name}: roles {', '.join(sorted(roles))}")
    ok(all(torch.isfinite(t).all() for t in tensors.values()) and
       all((tensors[k, "moment2"] >= 0).all() for k in kept), f"{name}: all is finite")
    if "master" in roles:
        ok(all(torch.equal(bits(tensors[k, "master"].to(t.dtype)), bits(t)) for k, t in kept.items()),
           f"{name}: weights are the masters, rounded")
    return tensors


one = check("one rank", 1)
check("one rank, bfloat16", 1, dtype="bfloat16")
three = check("three ranks", 3)
if one and three:
    worst = max(ref.relative(three[key, "weight"], t) for (key, role), t in one.items() if role == "weight")
    ok(worst < 1e-4, f"three ranks: the weights of one rank, to {worst:.1e}")
done()
