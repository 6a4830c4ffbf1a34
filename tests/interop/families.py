# SPDX-License-Identifier: Apache-2.0
"""Each family: trained from scratch by pf, exported, loaded by transformers, compared live."""
import json

import torch
from safetensors.torch import load_file

import pf
import reference as ref
from tap import done, figure, ok

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def trained(folder, std=0.15, **keys):
    """Some steps from scratch on synthetic data, with a checkpoint at the end. The weights start as
    large as those of the fixtures, since the tolerance of gradients was derived for such: with the
    0.02 that config.json asks for, attention is nearly uniform and its gradient the small difference
    of large numbers, worse by ten in any float32 program."""
    config = json.loads(pf.family_config(folder).read_text()) | dict(initializer_range=std)
    return pf.train(model=config, from_scratch=True,
                    input_dir="synthetic:markov?vocab=64&order=2&seed=1", max_seq_length=32,
                    per_device_train_batch_size=4, max_steps=5, learning_rate=1e-2, seed=3,
                    save_steps=5, **keys)


def vocab_of(folder):
    return json.loads(pf.family_config(folder).read_text())["vocab_size"]


def in_float32(folder):
    run = trained(folder)
    if not ok(run.status == 0, f"{folder}: pf trains from scratch", run.log):
        return
    model = ref.load(run.out / "hf")
    ids, labels = ref.batch(vocab_of(folder))
    again = ref.compare(folder, "families, float32", model, run.out / "hf", ids, labels)
    if again:
        ref.export_is(folder, again, model, ids)


def as_configured(folder):
    """From the very config.json of the fixture, and what that gives: loss and logits."""
    run = trained(folder, std=0.02)
    if not ok(run.status == 0, f"{folder}, initializer_range 0.02: pf trains from scratch", run.log):
        return
    ids, labels = ref.batch(vocab_of(folder))
    again = pf.one_step(run.out / "hf", ids, labels)
    d = ref.distance(ref.of_run(again), ref.reference(ref.load(run.out / "hf"), ids, labels))
    ok(d[0] <= ref.LOSS and d[1] <= ref.LOGITS,
       f"{folder}, initializer_range 0.02: loss {d[0]:.1e}, logits {d[1]:.1e}")
    for kind, value in zip(("loss_f32", "logits_f32", "grads_f32"), d):
        figure("families, weights of 0.02", kind, value)


def bits(t):
    return t.view(torch.int16) if t.dtype in DTYPES.values() else t.view(torch.int32)


def in_16_bits(folder, dtype):
    """Weights are stored in 16 bits: the same bits everywhere."""
    name = f"{folder} {dtype}"
    run = trained(folder, dtype=dtype, scale_loss=16)
    if not ok(run.status == 0, f"{name}: pf trains from scratch", run.log):
        return
    exported = load_file(run.out / "hf/model.safetensors")
    kept = load_file(run.out / "checkpoint-000005/weights-00000.safetensors")
    masters = load_file(run.out / "checkpoint-000005/optim-00000.safetensors")
    ok(all(t.dtype == DTYPES[dtype] for t in exported.values()), f"{name}: every tensor is stored so")
    ok(kept.keys() == exported.keys() and
       all(torch.equal(bits(kept[k]), bits(t)) for k, t in exported.items()),
       f"{name}: the export holds the weights of the checkpoint, bit for bit")
    ok(all(torch.equal(bits(masters[f"{k}.master"].to(DTYPES[dtype])), bits(t))
           for k, t in exported.items()), f"{name}: they are its masters as torch rounds them")
    model = ref.load(run.out / "hf", "auto")
    ok(all(p.dtype == DTYPES[dtype] for p in model.parameters()) and
       all(torch.equal(bits(p.data), bits(exported[k])) for k, p in model.named_parameters()),
       f"{name}: transformers holds the same bits")
    ids, labels = ref.batch(vocab_of(folder))
    arithmetic_of_16_bits(name, dtype, model, run.out / "hf", ids, labels)
    ref.compare(f"{name}, float32 arithmetic", f"families, {dtype} weights", model.float(), run.out / "hf",
                ids, labels)


def arithmetic_of_16_bits(name, dtype, model, folder, ids, labels):
    """Weights and activations in 16 bits: two such programs differ by their roundings, and so does
    each from float64. pf must not be farther from float64 than torch, but for chance: by a half in the
    mean of all logits, by double in the largest difference of a logit and in the worst gradient; its
    loss by one rounding at most."""
    run = pf.one_step(folder, ids, labels, dtype=dtype, scale_loss=16)
    if not ok(run.status == 0, f"{name}: pf computes in it", run.log):
        return
    mine, exact = ref.of_run(run), ref.reference(model, ids, labels, double=True)
    theirs = ref.reference(model, ids, labels)
    a, b = ref.distance(mine, exact), ref.distance(theirs, exact)
    mean_a, mean_b = [(x[1].double() - exact[1]).abs().mean().item() for x in (mine, theirs)]
    figure(f"families, {dtype} arithmetic", "mean_ratio", mean_a / mean_b)
    for kind, value in zip(("loss_f64", "logits_f64", "grads_f64"), a):
        figure(f"families, {dtype} arithmetic", kind, value)
    for kind, value in zip(("loss_f64", "logits_f64", "grads_f64"), b):
        figure(f"the same, torch in {dtype}", kind, value)
    ok(a[0] <= torch.finfo(DTYPES[dtype]).eps / 2 and a[1] <= 2 * b[1] and a[2] <= 2 * b[2] and
       mean_a <= 1.5 * mean_b, f"{name}: no farther from float64 than torch in {dtype}",
       f"pf: {ref.text(a)}, mean of logits {mean_a:.1e}", f"torch: {ref.text(b)}, {mean_b:.1e}")


for family in pf.FAMILIES:
    in_float32(family)
    as_configured(family)
    in_16_bits(family, "bfloat16")
in_16_bits("qwen3", "float16")
done()
