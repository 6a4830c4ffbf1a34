# SPDX-License-Identifier: Apache-2.0
"""What transformers and torch compute, and how far pf is from it.

Everything is eager attention on one CPU thread. `reference` runs a model in float32, as it is loaded,
or in float64 throughout: transformers computes rotary frequencies, norms and softmaxes in float32
whatever the model's dtype, so `Double` turns each float32 that the model code names into float64.
"""
import os

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TRANSFORMERS_VERBOSITY="error",
                  TOKENIZERS_PARALLELISM="false")

import copy

import torch
import transformers
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM

import pf
from tap import figure, ok

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()

# Those that the README of the Hugging Face fixtures derives, for two float32 implementations.
LOSS, LOGITS, GRADS, LOG = 1e-6, 5e-5, 2e-5, 5e-6


def load(folder, dtype=torch.float32):
    """from_pretrained, with every weight there and none left over but the buffers of old files."""
    model, info = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=dtype,
                                                       output_loading_info=True)
    wrong = [f"{kind} {what}" for kind, names in info.items() for what in names
             if not str(what).endswith((".masked_bias", ".attn.bias", ".inv_freq"))]
    if wrong:
        raise ValueError(f"{folder}: {wrong}")
    return model


def build(config, seed=1):
    """A model of this config (a dict with model_type) with weights far from their defaults: norms
    around 1, biases and matrices large enough to be seen."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), attn_implementation="eager")
    g = torch.Generator().manual_seed(seed)
    for name, p in sorted(model.named_parameters()):
        noise = torch.randn(p.shape, generator=g)
        if p.dim() >= 2:
            p.data.copy_(0.15 * noise)
        else:
            p.data.copy_(0.2 * noise + (0.0 if name.endswith("bias") else 1.0))
    return model


def save(model, **how):
    folder = pf.scratch("model")
    model.save_pretrained(folder, **how)
    return folder


def batch(vocab, b=2, s=24, seed=7):
    """Token ids [B,S] without 0, which some configs call padding; labels with some -100."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, vocab, (b, s), generator=g)
    labels = ids.clone()
    labels[0, : s // 3] = -100
    labels[-1, s // 2] = -100
    return ids, labels


class Double(TorchFunctionMode):
    """float64 wherever the code says float32; an operation that escapes is an error."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        def wide(x):
            return torch.float64 if x is torch.float32 else x

        args = [wide(a) for a in args]
        kwargs = {k: wide(v) for k, v in (kwargs or {}).items()}
        out = (torch.Tensor.double if func is torch.Tensor.float else func)(*args, **kwargs)
        if isinstance(out, torch.Tensor) and out.dtype == torch.float32:
            raise TypeError(f"{func} made a float32 tensor")
        return out


def widened(model):
    """The same model in float64, its rotary frequencies computed anew."""
    config = copy.deepcopy(model.config)
    config.tie_word_embeddings = model.lm_head.weight is model.get_input_embeddings().weight
    state = {k: v.double() for k, v in model.state_dict().items()}
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Double():
            wide = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float64)
    finally:
        torch.set_default_dtype(before)
    wide.load_state_dict(state)
    return wide


def reference(model, ids, labels, double=False):
    """Loss, logits [B,S,V] and gradients by name of one step. The model's dropouts must be 0."""
    model = (widened(model) if double else model).train()
    model.zero_grad(set_to_none=True)
    if double:
        with Double():
            out = model(input_ids=ids, labels=labels, use_cache=False)
            out.loss.backward()
    else:
        out = model(input_ids=ids, labels=labels, use_cache=False)
        out.loss.backward()
    grads = {k: p.grad.detach() for k, p in model.named_parameters()}
    return out.loss.item(), out.logits.detach(), grads


def relative(got, want):
    """|got - want| / |want| in L2."""
    got, want = got.double(), want.double()
    norm = want.norm().item()
    return (got - want).norm().item() / (norm if norm > 0 else 1.0)


def distance(got, want):
    """Relative distance of losses, largest difference of logits, worst gradient and its name."""
    loss = abs(got[0] / want[0] - 1)
    logits = (got[1].double() - want[1].double()).abs().max().item()
    if got[2].keys() != want[2].keys():
        return loss, logits, float("inf"), f"other names: {sorted(got[2].keys() ^ want[2].keys())}"
    worst = max((relative(got[2][k], want[2][k]), k) for k in want[2])
    return loss, logits, *worst


def within(d):
    return d[0] <= LOSS and d[1] <= LOGITS and d[2] <= GRADS


def of_run(run):
    """The same three of a run of pf that dumped its first step."""
    return run.steps()[0]["loss"], run.dump("logits")["logits"], run.dump("grads")


def text(d):
    return f"loss {d[0]:.1e}, logits {d[1]:.1e}, gradients {d[2]:.1e} ({d[3]})"


def compare(name, group, model, folder, ids, labels, double=False, **keys):
    """Run one step of pf on the folder and hold it against transformers' model: in float32, or, for
    double, in float64 (float32 is measured too, and reported). Returns the run, None if it failed."""
    run = pf.one_step(folder, ids, labels, **keys)
    if not ok(run.status == 0, f"{name}: pf trains on it", run.log):
        return None
    mine = of_run(run)
    plain = distance(mine, reference(model, ids, labels))
    exact = reference(model, ids, labels, double=True)
    wide = distance(mine, exact)
    for kind, a, b in zip(("loss", "logits", "grads"), plain, wide):
        figure(group, kind + "_f32", a)
        figure(group, kind + "_f64", b)
    judged, against = (wide, "float64") if double else (plain, "transformers")
    ok(within(judged), f"{name}: against {against} {text(judged)}", f"float32: {text(plain)}",
       f"float64: {text(wide)}",
       f"float32 from float64: {text(distance(reference(model, ids, labels), exact))}")
    return run


def export_is(name, run, model, ids):
    """What pf exported loads, and its logits are those of the model it was made from, to the bit."""
    try:
        back = load(run.out / "hf")
    except (ValueError, OSError) as e:
        ok(False, f"{name}: transformers loads the export", e)
        return
    with torch.no_grad():
        same = torch.equal(back.eval()(input_ids=ids).logits, model.eval()(input_ids=ids).logits)
    ok(same, f"{name}: the export gives transformers the same logits, bit for bit")
