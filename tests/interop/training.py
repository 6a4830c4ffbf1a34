# SPDX-License-Identifier: Apache-2.0
"""Ten steps of AdamW live against torch.optim.AdamW, with frozen tensors, tensors without decay,
accumulation and ignored labels; and learning rates against transformers' schedules."""
import math
from fnmatch import fnmatchcase

import torch
import transformers
from safetensors.torch import load_file

import pf
import reference as ref
from tap import done, figure, ok

STEPS, B, S, VOCAB = 10, 4, 16, 97
LLAMA = dict(model_type="llama", vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
             tie_word_embeddings=False, attention_bias=True)
GPT2 = dict(model_type="gpt2", vocab_size=VOCAB, n_embd=48, n_layer=2, n_head=4, n_positions=64,
            attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)


def data(seed=4):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, VOCAB, (STEPS, B, S), generator=g)
    labels = ids.clone()
    labels[2, 0, 4:] = -100
    labels[6, :3, : S // 2] = -100
    return ids, labels


def groups_of(model, keys):
    """Parameters by weight decay, those that are frozen left out."""
    exclude, groups = keys.get("weight_decay_exclude"), {keys["weight_decay"]: [], 0.0: []}
    for name, p in model.named_parameters():
        p.requires_grad_(not any(fnmatchcase(name, g) for g in keys.get("freeze", [])))
        keeps = p.dim() < 2 if exclude is None else any(fnmatchcase(name, g) for g in exclude)
        if p.requires_grad:
            groups[0.0 if keeps else keys["weight_decay"]].append(p)
    return [dict(params=params, weight_decay=decay) for decay, params in groups.items()]


def reach(p, state, rate, t, beta2):
    """How far a gradient that is off by GRADS of its tensor's size moves each weight in this step: Adam
    divides by the size of the element's own gradient, so where that is rounding noise, by a rate. A
    gradient that was never anything but 0 is exact."""
    size = (state["exp_avg_sq"] / (1 - beta2 ** (t + 1))).sqrt()
    moved = (2 * ref.GRADS * p.grad.pow(2).mean().sqrt() / size).clamp(max=2)
    return rate * torch.where(size > 0, moved, 0.0)


def torch_run(model, ids, labels, rates, keys):
    """The same run with torch.optim.AdamW. Returns a row (loss, norm) a step, and by name the state of
    the optimizer and the sum of reaches."""
    optimizer = torch.optim.AdamW(groups_of(model, keys), lr=0.0, betas=(keys["adam_beta1"], keys["adam_beta2"]),
                                  eps=keys["adam_epsilon"], foreach=False, fused=False)
    trained = [p for p in model.parameters() if p.requires_grad]
    log, slack = [], {p: 0.0 for p in trained}
    for t in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rates[t]
        optimizer.zero_grad()
        loss = model(input_ids=ids[t], labels=labels[t], use_cache=False).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, keys["max_grad_norm"] or math.inf, foreach=False)
        optimizer.step()
        slack = {p: slack[p] + reach(p, optimizer.state[p], rates[t], t, keys["adam_beta2"]) for p in trained}
        log.append((loss.item(), norm.item()))
    names = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return log, {k: optimizer.state[p] for k, p in names.items()}, {k: slack[p] for k, p in names.items()}


def final_weights(name, run, wide, slack, start):
    """Against torch in float64: within what right gradients may do, and frozen ones untouched."""
    mine, worst = load_file(run.out / "hf/model.safetensors"), (0.0, "")
    for key, p in wide.named_parameters():
        if not p.requires_grad:
            ok(torch.equal(mine[key], start[key]), f"{name}: '{key}' is frozen, bit for bit")
            continue
        off = (mine[key].double() - p).abs()
        worst = max(worst, ((off / (5e-6 + slack[key])).max().item(), key))
    figure("ten steps of AdamW", "weights/bound", worst[0])
    ok(worst[0] <= 1, f"{name}: final weights, worst at {worst[0]:.2f} of the bound ({worst[1]})")


def moments(name, run, state):
    stored = load_file(run.out / f"checkpoint-{STEPS:06d}/optim-00000.safetensors")
    pairs = [(stored.pop(f"{key}.{mine}", None), s[theirs], f"{key}.{mine}") for key, s in state.items()
             for mine, theirs in (("moment1", "exp_avg"), ("moment2", "exp_avg_sq"))]
    missing = [key for got, _, key in pairs if got is None]
    ok(not missing and not stored, f"{name}: moments of the trained tensors and no others",
       f"missing {missing}", f"too many {list(stored)}")
    worst = max((ref.relative(got, want), key) for got, want, key in pairs if got is not None)
    figure("ten steps of AdamW", "moments_f32", worst[0])
    ok(worst[0] <= ref.GRADS, f"{name}: {len(pairs)} moments, worst {worst[0]:.1e} ({worst[1]})")


def live(name, config, **keys):
    keys = dict(learning_rate=2e-3, lr_scheduler_type="cosine", warmup_steps=3, min_lr=2e-4, weight_decay=0.1,
                adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-8, max_grad_norm=1.0) | keys
    narrow = ref.build(config, 8)
    wide, start = ref.widened(narrow), {k: v.clone() for k, v in narrow.state_dict().items()}
    ids, labels = data()
    run = pf.train(model_name_or_path=ref.save(narrow), input_dir=pf.write_batches(ids, labels),
                   max_seq_length=S, global_train_batch_size=B, per_device_train_batch_size=2,
                   max_steps=STEPS, save_steps=STEPS, **keys)
    if not ok(run.status == 0, f"{name}: ten steps", run.log):
        return
    rates = [line["learning_rate"] for line in run.steps()]
    log, state, _ = torch_run(narrow, ids, labels, rates, keys)
    with ref.Double():
        _, _, slack = torch_run(wide, ids, labels, rates, keys)
    off = [max(abs(line["loss"] / loss - 1), abs(line["grad_norm"] / norm - 1))
           for line, (loss, norm) in zip(run.steps(), log, strict=True)]
    figure("ten steps of AdamW", "log_f32", max(off))
    ok(max(off) <= ref.LOG, f"{name}: losses and norms, worst {max(off):.1e}")
    ok([line["tokens"] for line in run.steps()] == (labels[:, :, 1:] != -100).sum((1, 2)).tolist(),
       f"{name}: tokens of each step")
    final_weights(name, run, wide, slack, start)
    moments(name, run, state)


def transformers_rates(schedule, **keys):
    """A schedule of transformers with rate 1 at its peak: its rate after t steps is pf's of step t."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    scheduler, rates = schedule(optimizer, **keys), []
    for _ in range(STEPS):
        optimizer.step()
        scheduler.step()
        rates.append(scheduler.get_last_lr()[0])
    return rates


PEAK = 3e-3
T = transformers
LENGTH = dict(num_warmup_steps=3, num_training_steps=STEPS)
SCHEDULES = {
    "linear": (dict(lr_scheduler_type="linear", warmup_steps=3), T.get_linear_schedule_with_warmup, LENGTH),
    "linear, ratio": (dict(lr_scheduler_type="linear", warmup_ratio=0.21), T.get_linear_schedule_with_warmup,
                      LENGTH),
    "constant": (dict(lr_scheduler_type="constant", warmup_steps=3), T.get_constant_schedule_with_warmup,
                 dict(num_warmup_steps=3)),
    "cosine": (dict(lr_scheduler_type="cosine", warmup_steps=3), T.get_cosine_schedule_with_warmup, LENGTH),
    "cosine, 1.5 waves": (dict(lr_scheduler_type="cosine", warmup_steps=3, num_cycles=1.5),
                          T.get_cosine_schedule_with_warmup, LENGTH | dict(num_cycles=1.5)),
    "cosine, min_lr": (dict(lr_scheduler_type="cosine", warmup_steps=3, min_lr=1e-3),
                       T.get_cosine_with_min_lr_schedule_with_warmup, LENGTH | dict(min_lr=1e-3)),
    "polynomial": (dict(lr_scheduler_type="polynomial", warmup_steps=3, lr_end=1e-4, power=2.5),
                   T.get_polynomial_decay_schedule_with_warmup, LENGTH | dict(lr_end=1e-4, power=2.5)),
    "wsd": (dict(lr_scheduler_type="wsd", warmup_steps=2, wsd_decay_start=6), T.get_wsd_schedule,
            dict(num_warmup_steps=2, num_stable_steps=4, num_decay_steps=4, decay_type="linear")),
    "wsd, 1-sqrt": (dict(lr_scheduler_type="wsd", wsd_decay_start=4, decay_function="1-sqrt", min_lr=3e-4),
                    T.get_wsd_schedule,
                    dict(num_warmup_steps=0, num_stable_steps=4, num_decay_steps=6, decay_type="1-sqrt",
                         min_lr_ratio=0.1)),
}


def schedules():
    """Rates are transformers' to rounding; and a table of them gives the same run, bit for bit."""
    folder = ref.save(ref.build(LLAMA, 8))
    common = dict(model_name_or_path=folder, input_dir=pf.write_batches(*data()), max_seq_length=S,
                  per_device_train_batch_size=B, max_steps=STEPS, learning_rate=PEAK)
    for name, (keys, schedule, theirs) in SCHEDULES.items():
        run = pf.train(**common, **keys)
        if not ok(run.status == 0, f"{name}: ten steps", run.log):
            continue
        rates = [line["learning_rate"] for line in run.steps()]
        off = max(abs(a - b) for a, b in zip(rates, transformers_rates(schedule, **theirs), strict=True))
        ok(off <= 1e-15 * PEAK * STEPS, f"{name}: rates are transformers', off by {off:.1e}")
        table = pf.train(**common, lr_scheduler_type="table", lr_table=rates)
        ok(table.status == 0 and (table.out / "hf/model.safetensors").read_bytes() ==
           (run.out / "hf/model.safetensors").read_bytes(), f"{name}: as a table, the same weights", table.log)


live("llama", LLAMA)
live("llama, frozen and excluded", LLAMA, weight_decay=0.3,
     freeze=["model.embed_tokens.weight", "model.layers.0.mlp.*", "*.k_proj.bias"],
     weight_decay_exclude=["*norm.weight", "*.q_proj.*", "lm_head.*"])
live("llama, no clipping, other betas", LLAMA, max_grad_norm=0, adam_beta1=0.8, adam_beta2=0.99,
     adam_epsilon=1e-6, lr_scheduler_type="constant", warmup_steps=0, min_lr=0)
live("llama, everything decays", LLAMA, weight_decay_exclude=[], weight_decay=0.5, max_grad_norm=0.1,
     adam_epsilon=1e-7)
live("gpt2, tied", GPT2)
schedules()
done()
