# SPDX-License-Identifier: Apache-2.0
"""Rotary scaling of llama: linear, yarn, llama3, in both spellings of config.json, with sequences
longer than the original length. There are no golden files of linear and of llama's yarn: this is
where they are proved."""
import json

import torch

import pf
import reference as ref
from tap import done, ok

BODY = dict(model_type="llama", vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=256,
            tie_word_embeddings=False, attention_dropout=0.0)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64)
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=64)
CASES = {
    "plain": dict(rope_type="default", rope_theta=500000.0),
    "linear 2": dict(rope_type="linear", rope_theta=10000.0, factor=2.0),
    "linear 4": dict(rope_type="linear", rope_theta=1000.0, factor=4.0),
    "linear, integer factor": dict(rope_type="linear", rope_theta=10000, factor=3),
    "yarn": YARN,
    "yarn, attention_factor": YARN | dict(attention_factor=1.3),
    "yarn, beta_fast and beta_slow": YARN | dict(beta_fast=8.0, beta_slow=0.25),
    "yarn, not truncated": YARN | dict(truncate=False),
    "yarn, not truncated, narrow ramp": YARN | dict(truncate=False, beta_fast=2.0, beta_slow=1.5),
    "yarn, mscale": YARN | dict(mscale=0.8, mscale_all_dim=0.4),
    "yarn, mscale alone": YARN | dict(mscale=0.8),
    "yarn, nulls": YARN | dict(attention_factor=None, beta_fast=None, beta_slow=None, mscale=None),
    "yarn, factor below 1.1": YARN | dict(factor=1.05),
    "yarn, no original length": {k: v for k, v in YARN.items() if k != "original_max_position_embeddings"},
    "yarn, theta 100": YARN | dict(rope_theta=100.0),
    "yarn, factor null": YARN | dict(factor=None),
    "llama3": LLAMA3,
    "llama3, wide band": LLAMA3 | dict(low_freq_factor=0.5, high_freq_factor=12.0),
    "llama3, no original length": {k: v for k, v in LLAMA3.items() if k != "original_max_position_embeddings"},
}


def rewrite(folder, **changes):
    """The same folder with keys of config.json set, or, where None, removed; "null" is null."""
    other = pf.scratch("respelled")
    other.mkdir()
    (other / "model.safetensors").symlink_to(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text()) | changes
    config = {k: v for k, v in config.items() if v is not None or k not in changes}
    config = {k: None if v == "null" else v for k, v in config.items()}
    (other / "config.json").write_text(json.dumps(config))
    return other


def older(folder, rope, kind_key):
    """The spelling of transformers 4: rope_theta beside rope_scaling."""
    scaling = {kind_key if k == "rope_type" else k: v for k, v in rope.items() if k != "rope_theta"}
    return rewrite(folder, rope_parameters=None, rope_theta=rope["rope_theta"],
                   rope_scaling=scaling, torch_dtype="float32", dtype=None)


def logits_of(model, ids):
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits


def same_as(name, folder, ids, model, run):
    """Another spelling: the same bits as the first one, in transformers and in pf."""
    again = pf.one_step(folder, ids)
    ok(torch.equal(logits_of(ref.load(folder), ids), logits_of(model, ids)),
       f"{name}: transformers takes it for the same")
    ok(again.status == 0 and torch.equal(again.dump("logits")["logits"], run.dump("logits")["logits"]),
       f"{name}: so does pf", again.log)


def in_both_spellings(name, rope, seed):
    model = ref.build(BODY | dict(rope_parameters=dict(rope)), seed)
    folder = ref.save(model)
    # save_pretrained fills in what was left out: say again what this case says.
    folder = rewrite(folder, rope_parameters=rope)
    model = ref.load(folder)
    ids, _ = ref.batch(BODY["vocab_size"], 1, 160, seed)
    run = ref.compare(name, "rotary scaling, 160 positions", model, folder, ids, ids)
    if run:
        ref.export_is(name, run, model, ids)
        same_as(f"{name}, transformers 4", older(folder, rope, "type"), ids, model, run)


def other_spellings():
    """Keys in other places than usual, each against the plain spelling of the same thing."""
    for rope, changes in (
            (CASES["plain"], dict(rope_parameters=None, rope_theta=500000.0, rope_scaling="null")),
            (CASES["plain"], dict(rope_parameters=None, rope_theta=500000.0, rope_scaling={})),
            (CASES["plain"], dict(rope_parameters=dict(rope_type="default"), rope_theta=500000.0)),
            (CASES["linear 2"], dict(rope_parameters=dict(rope_type="linear", factor=2.0))),
            (CASES["linear 2"], dict(rope_parameters=CASES["plain"],
                                     rope_scaling=dict(rope_type="linear", factor=2.0))),
            (YARN, dict(rope_parameters=None, rope_theta=10000.0,
                        rope_scaling={k: v for k, v in YARN.items() if k != "rope_theta"})),
            (LLAMA3, dict(rope_parameters=LLAMA3 | dict(original_max_position_embeddings=256),
                          original_max_position_embeddings=64)),
            (YARN, dict(rope_parameters=YARN | dict(original_max_position_embeddings=256),
                        original_max_position_embeddings=64))):
        model = ref.build(BODY | dict(rope_parameters=dict(rope)), 4)
        folder = ref.save(model)
        ids, _ = ref.batch(BODY["vocab_size"], 1, 160, 4)
        run = pf.one_step(folder, ids)
        said = {k: v for k, v in changes.items() if v is not None}
        same_as(f"{rope['rope_type']} as {json.dumps(said)}", rewrite(folder, **changes), ids, model, run)


def at_long_positions():
    """Thousands of positions: transformers turns by float32 angles, whose error grows with the
    position, pf by angles in double."""
    for name, rope in (("plain", CASES["plain"]), ("linear 4", CASES["linear 4"]), ("yarn", YARN), ("llama3", LLAMA3)):
        model = ref.build(BODY | dict(max_position_embeddings=2048, rope_parameters=dict(rope)), 3)
        ids, _ = ref.batch(BODY["vocab_size"], 1, 1536, 3)
        ref.compare(f"{name}, 1536 positions", "rotary scaling, 1536 positions", model, ref.save(model),
                    ids, ids, double=True)


def differences_are_seen():
    """The comparison has teeth: the model of one case is not that of its neighbour."""
    for a, b in (("yarn", "yarn, not truncated"), ("yarn", "yarn, mscale"), ("linear 2", "plain"),
                 ("llama3", "llama3, wide band"), ("yarn", "yarn, beta_fast and beta_slow")):
        model = ref.build(BODY | dict(rope_parameters=dict(CASES[a])), 5)
        ids, _ = ref.batch(BODY["vocab_size"], 1, 160, 5)
        run = pf.one_step(rewrite(ref.save(model), rope_parameters=CASES[b]), ids)
        d = ref.distance(ref.of_run(run), ref.reference(model, ids, ids))
        ok(not ref.within(d) and d[2] > 100 * ref.GRADS, f"{b} instead of {a} is seen: {ref.text(d)}")


def refusals():
    """What transformers has and pf does not compute is refused by name, in both spellings."""
    folder = ref.save(ref.build(BODY))
    ids, _ = ref.batch(BODY["vocab_size"], 1, 8)
    other_kind = "is a rotary scaling other than default, linear, llama3, yarn"
    for says, rope in (
            ("turns a part of each head", CASES["plain"] | dict(partial_rotary_factor=0.5)),
            (other_kind, dict(rope_type="dynamic", rope_theta=1e4, factor=2.0)),
            (other_kind, dict(rope_type="longrope", rope_theta=1e4, factor=2.0,
                              short_factor=[1.0] * 16, long_factor=[2.0] * 16))):
        for key, spelling in (("rope_parameters", rewrite(folder, rope_parameters=rope)),
                              ("rope_scaling", older(folder, rope, "type"))):
            run = pf.one_step(spelling, ids)
            line = run.last_line()
            ok(run.status == 7 and says in line and key in line,
               f"{rope['rope_type']} in {key}: exit 7, '{says}'", run.log)
    run = pf.one_step(rewrite(folder, rope_parameters=dict(rope_type="linear", rope_theta=1e4)), ids)
    ok(run.status == 3 and "factor" in run.last_line(), f"linear without a factor: exit 3: {run.last_line()}")


for i, (case, parameters) in enumerate(CASES.items()):
    in_both_spellings(case, parameters, 10 + i)
other_spellings()
at_long_positions()
differences_are_seen()
refusals()
done()
