# SPDX-License-Identifier: Apache-2.0
"""Settings of config.json one by one, and the forms in which weights lie on disk: made by transformers,
read by pf, compared live; then exported by pf and loaded by transformers again."""
import json

import torch
from safetensors.torch import load_file, save_file

import pf
import reference as ref
from tap import done, ok

COMMON = dict(vocab_size=97, hidden_size=48, intermediate_size=80, num_hidden_layers=2,
              num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
              bos_token_id=1, eos_token_id=2)
LLAMA = COMMON | dict(model_type="llama", tie_word_embeddings=False)
QWEN2 = COMMON | dict(model_type="qwen2", tie_word_embeddings=False)
QWEN3 = COMMON | dict(model_type="qwen3", head_dim=16, tie_word_embeddings=False)
ERNIE = COMMON | dict(model_type="ernie4_5", head_dim=16, tie_word_embeddings=True)
GPT2 = dict(model_type="gpt2", vocab_size=97, n_embd=48, n_layer=2, n_head=4, n_positions=64,
            attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=1, eos_token_id=2)

SETTINGS = {
    "llama": LLAMA,
    "llama tied": LLAMA | dict(tie_word_embeddings=True),
    "llama attention_bias": LLAMA | dict(attention_bias=True),
    "llama mlp_bias": LLAMA | dict(mlp_bias=True),
    "llama both biases, tied": LLAMA | dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "llama wide heads": LLAMA | dict(head_dim=20),
    "llama narrow heads": LLAMA | dict(head_dim=6),
    "llama one key head": LLAMA | dict(num_key_value_heads=1),
    "llama as many key heads": LLAMA | dict(num_key_value_heads=4),
    "llama 6 heads, 3 key heads": LLAMA | dict(num_attention_heads=6, num_key_value_heads=3),
    "llama gelu": LLAMA | dict(hidden_act="gelu"),
    "llama gelu_pytorch_tanh": LLAMA | dict(hidden_act="gelu_pytorch_tanh"),
    "llama relu": LLAMA | dict(hidden_act="relu"),
    "llama large epsilon": LLAMA | dict(rms_norm_eps=0.1),
    "llama padding": LLAMA | dict(pad_token_id=5),
    "llama padding, tied": LLAMA | dict(pad_token_id=5, tie_word_embeddings=True),
    "qwen2 untied": QWEN2,
    "qwen2 tied": QWEN2 | dict(tie_word_embeddings=True),
    "qwen2 windows switched off": QWEN2 | dict(sliding_window=8, use_sliding_window=False),
    "qwen3 untied": QWEN3,
    "qwen3 tied": QWEN3 | dict(tie_word_embeddings=True),
    "qwen3 attention_bias": QWEN3 | dict(attention_bias=True),
    "qwen3 one key head": QWEN3 | dict(num_key_value_heads=1),
    "ernie4_5 tied": ERNIE,
    "ernie4_5 untied": ERNIE | dict(tie_word_embeddings=False),
    "ernie4_5 use_bias": ERNIE | dict(use_bias=True),
    "ernie4_5 use_bias, untied": ERNIE | dict(use_bias=True, tie_word_embeddings=False),
    "ernie4_5 another padding": ERNIE | dict(pad_token_id=5),
    "gpt2": GPT2,
    "gpt2 untied": GPT2 | dict(tie_word_embeddings=False),
    "gpt2 n_inner": GPT2 | dict(n_inner=100),
    "gpt2 gelu": GPT2 | dict(activation_function="gelu"),
    "gpt2 relu": GPT2 | dict(activation_function="relu"),
    "gpt2 unscaled scores": GPT2 | dict(scale_attn_weights=False),
    "gpt2 full length": GPT2 | dict(n_positions=24),
}


def batch(seed=1):
    ids, labels = ref.batch(COMMON["vocab_size"], 2, 24, seed)
    ids[1, 3] = labels[1, 3] = 5  # the padding token of some settings
    return ids, labels


def setting(name, config, seed):
    model = ref.build(config, seed)
    ids, labels = batch(seed)
    run = ref.compare(name, "settings", model, ref.save(model), ids, labels)
    if run:
        ref.export_is(name, run, model, ids)


def write(config, tensors):
    """A folder with this config.json and these tensors, as they are."""
    folder = pf.scratch("written")
    folder.mkdir()
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    save_file({k: v.contiguous().clone() for k, v in tensors.items()}, folder / "model.safetensors",
              metadata={"format": "pt"})
    return folder


def parts(config, seed=2):
    """config.json and tensors of a model, as save_pretrained writes them."""
    folder = ref.save(ref.build(config, seed))
    return (folder / "config.json").read_text(), load_file(folder / "model.safetensors")


def on_disk(name, folder):
    """What transformers makes of the folder, pf makes too; the export says the same again."""
    model = ref.load(folder)
    ids, labels = batch(2)
    run = ref.compare(name, "forms on disk", model.float(), folder, ids, labels)
    if run:
        ref.export_is(name, run, model, ids)


def ties():
    """Tied by config, tied by the file, or not."""
    config, tensors = parts(LLAMA | dict(tie_word_embeddings=True))
    embed = tensors["model.embed_tokens.weight"]
    other = torch.randn(embed.shape, generator=torch.Generator().manual_seed(9)) * 0.15
    on_disk("tied, lm_head stored too", write(config, tensors | {"lm_head.weight": embed}))
    on_disk("tied config, another lm_head", write(config, tensors | {"lm_head.weight": other}))
    rest = {k: v for k, v in tensors.items() if k != "model.embed_tokens.weight"}
    on_disk("tied, lm_head alone", write(config, rest | {"lm_head.weight": embed}))


def names():
    """Names without the model's prefix, buffers of old files."""
    config, tensors = parts(GPT2)
    bare = {k.removeprefix("transformer."): v for k, v in tensors.items()}
    for i in range(2):
        bare[f"h.{i}.attn.bias"] = torch.ones(64, 64).tril()[None, None]
        bare[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    on_disk("gpt2 without prefix, with masks", write(config, bare))
    config, tensors = parts(LLAMA | dict(tie_word_embeddings=True))
    bare = {k.removeprefix("model."): v for k, v in tensors.items()}
    on_disk("llama without prefix", write(config, bare))
    for i in range(2):
        tensors[f"model.layers.{i}.self_attn.rotary_emb.inv_freq"] = torch.ones(6)
    on_disk("llama with inv_freq", write(config, tensors))


def shards_and_dtypes():
    model = ref.build(QWEN3, 5)
    folder = ref.save(model, max_shard_size="20KB")
    n = len(list(folder.glob("model-*.safetensors")))
    ok(n > 3, f"transformers writes {n} shards")
    on_disk("sharded", folder)
    for dtype in (torch.float16, torch.bfloat16):
        for name, c in (("llama", LLAMA), ("gpt2", GPT2), ("ernie4_5", ERNIE)):
            on_disk(f"{name} stored as {dtype}", ref.save(ref.build(c, 6).to(dtype)))
    config, tensors = parts(QWEN2)
    mixed = {k: v.to((torch.float32, torch.bfloat16, torch.float16)[i % 3])
             for i, (k, v) in enumerate(sorted(tensors.items()))}
    on_disk("three dtypes in one file", write(config, mixed))


def refused(name, folder, says, status=3):
    ids, _ = batch()
    run = pf.one_step(folder, ids)
    lines = run.log.strip().splitlines()
    ok(run.status == status and len(lines) == 1 and says in lines[0],
       f"{name}: exit {status}, one line with {says}", f"exit {run.status}", run.log)
    ok(not (run.out / "hf").exists(), f"{name}: nothing is exported")


def wrong_files():
    config, tensors = parts(LLAMA)
    down, embed = "model.layers.1.mlp.down_proj.weight", "model.embed_tokens.weight"

    def without(name):
        return {k: v for k, v in tensors.items() if k != name}

    refused("a missing tensor", write(config, without(down)), f"'{down}'")
    refused("no head, untied", write(config, without("lm_head.weight")), "'lm_head.weight'")
    refused("no embedding, untied", write(config, without(embed)), f"'{embed}'")
    refused("an extra tensor", write(config, tensors | {"model.extra.weight": torch.ones(3)}),
            "'model.extra.weight'")
    refused("a bias that the config denies",
            write(config, tensors | {"model.layers.0.self_attn.q_proj.bias": torch.ones(48)}),
            "'model.layers.0.self_attn.q_proj.bias'")
    refused("a third layer in a model of two",
            write(config, tensors | {"model.layers.2.mlp.down_proj.weight": tensors[down]}),
            "'model.layers.2.mlp.down_proj.weight'")
    refused("a transposed tensor", write(config, tensors | {down: tensors[down].T}), f"'{down}'")
    refused("integers for weights",
            write(config, tensors | {down: torch.ones(tensors[down].shape, dtype=torch.int32)}),
            f"'{down}'", 7)
    folder = ref.save(ref.build(LLAMA), max_shard_size="20KB")
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.rename(folder / "elsewhere")
    refused("a missing shard", folder, shard.name)


def other_computations():
    """Settings whose computation pf lacks are refused by name, never ignored."""
    ids, _ = batch()
    config, tensors = parts(QWEN2)
    for key, value in (("use_sliding_window", True), ("hidden_act", "quick_gelu"), ("model_type", "phi3")):
        changed = json.loads(config) | {key: value, "sliding_window": 8}
        run = pf.one_step(write(changed, tensors), ids)
        ok(run.status == 7 and len(run.log.strip().splitlines()) == 1 and key in run.log,
           f"{key} {value}: exit 7, one line with its name", run.log)


for i, (case, settings) in enumerate(SETTINGS.items()):
    setting(case, settings, 20 + i)
ties()
names()
shards_and_dtypes()
wrong_files()
other_computations()
done()
