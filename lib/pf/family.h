/* SPDX-License-Identifier: Apache-2.0 */
/*
 * family.h - model families: from a Hugging Face config.json to a spec, and back.
 *
 * A family is one row of a table in lib/model/family.c: its `model_type`, the name of its class in
 * transformers, a reader of its keys. Both spellings of the configuration are understood, that of
 * transformers 4 (torch_dtype, rope_theta with rope_scaling, num_experts) and that of transformers
 * 5 (dtype, rope_parameters, num_local_experts); where a file has both, transformers' order of
 * preference decides. Keys that do not touch the mathematics of training (use_cache, bos_token_id,
 * generation settings, pretraining_tp, ...) are not looked at; keys that do are honoured or refused
 * by name.
 *
 *     struct pf_json *config = NULL;
 *     struct pf_model_spec spec;
 *     PF_TRY(pf_json_parse_file("model/config.json", &config));
 *     PF_TRY_GOTO(pf_family_read_config(config, &spec), out);
 *     out: pf_json_free(config);
 *
 * Required keys: model_type, vocab_size and hidden_size, num_hidden_layers, num_attention_heads,
 * intermediate_size (gpt2: n_embd, n_layer, n_head; the general names are accepted there too, and
 * n_inner may be absent: 4 n_embd); for experts their number, how many are chosen, their width; for
 * deepseek_v3 the widths of its heads and latents. transformers has a default for these as well,
 * the size of some published model, which nobody who leaves the key out means; pf asks.
 *
 * Every other key that is absent (not merely null) has the value that transformers gives it:
 *
 *                        gpt2   llama   qwen2   qwen3  ernie4_5  mixtral q3_moe  ds_v3  ernie_moe
 *  num_key_value_heads  = heads = heads    32      32      2         8      4     = heads    4
 *  head_dim             H/heads H/heads H/heads   128     128     H/heads H/heads   -     H/heads
 *  max positions          1024    2048   32768   32768  131072   131072  32768   4096   131072
 *  rope_theta               -    10000   10000   10000  500000      1e6  10000  10000   500000
 *  norm epsilon           1e-5    1e-6    1e-6    1e-6   1e-5      1e-5   1e-6   1e-6    1e-5
 *  tie_word_embeddings    true   false   false   false   true     false  false  false    true
 *  pad_token_id             -     none    none    none     0       none   none   none      0
 *  activation         gelu_new    silu    silu    silu   silu      silu   silu   silu    silu
 *  dropout                 0.1       0       0       0     0         0      0      0       0
 *
 * A null head_dim means hidden/heads, a null num_key_value_heads means as many as heads.
 * initializer_range is 0.02, biases (attention_bias, mlp_bias, use_bias) are false, qwen2's q, k
 * and v biases are fixed by the family. A negative pad_token_id counts from the end, as
 * torch.nn.Embedding does; gpt2 has no padding row.
 *
 * Source: transformers 5.24.0, models/FAMILY/configuration_FAMILY.py and modeling_FAMILY.py,
 * modeling_rope_utils.py.
 *
 * All functions are local and safe to call from any thread.
 */
#ifndef PF_FAMILY_H
#define PF_FAMILY_H

#include <pf/dtype.h>
#include <pf/spec.h>
#include <pf/str.h>

#include <stdint.h>

struct pf_json;

/*
 * Read a configuration. *spec_out is set only on success, every byte of it, so that two equal
 * models give specs that memcmp calls equal. Reads all nine families, those too that this build
 * does not train (pf_table_new refuses them).
 *
 * Errors: PF_EINVAL for a missing required key, a value out of range, numbers that do not fit each
 * other (the line names keys and values); PF_ENOTSUP for another model_type (the known ones are
 * listed) and for a setting that pf does not compute (sliding windows, another rope type or
 * activation, ...); the document's own code for a value of the wrong type.
 */
int pf_family_read_config(const struct pf_json *config, struct pf_model_spec *spec_out);

/*
 * Append a config.json for the spec to `text`, indented, with a final newline: what a model that
 * was given inline is exported with (a config.json that was read is copied through instead). The
 * spelling is that of transformers 4, which 4 and 5 both read. dtype is that of the stored weights.
 * Reading it gives the same spec. PF_ENOTSUP for a dtype without torch name, PF_ENOMEM.
 */
int pf_family_write_config(const struct pf_model_spec *spec, enum pf_dtype dtype,
                           struct pf_str *text);

/*
 * A config with the dtype of stored weights and the tie as they are now: what files of these weights
 * must say, or a loader would round or tie again. The keys dtype and torch_dtype are changed where they
 * are there, tie_word_embeddings is set, others are kept as they are. *text_out is freed with pf_free.
 */
int pf_family_rewrite_config(const char *text, enum pf_dtype dtype, bool tied, char **text_out);

/* The name of the family's class in transformers: "LlamaForCausalLM". Static. */
const char *pf_family_architecture(enum pf_family family);

/*
 * Cosine and sine of every rotary angle: cos_out, sin_out: [n_positions, rope->dim / 2] fp32,
 * row-major, overwritten. Entry [t, i] belongs to position t and pair i, which is elements (2i,
 * 2i+1) or (i, i + dim/2) of the rotated part by rope->pairs_adjacent; for yarn both are multiplied
 * by the attention factor. A rope of kind PF_ROPE_NONE has no table (a bug to ask).
 *
 * Frequencies and angles are computed in double and rounded once, at the end. transformers rounds
 * the frequency to fp32 and the angle again, so its angles are off by up to 1.2e-7 of their size;
 * the tables here differ from its by that error, which is that of the reference and not of pf, and
 * lies inside the tolerances that the fixtures derive (they compare fp32 with fp64).
 *
 * Source: Su et al. 2021 (RoFormer) for the rotation; Chen et al. 2023 for linear scaling; Peng et
 * al. 2023 (YaRN) section 3; modeling_rope_utils.py of transformers 5.24.0 for llama3 and for what
 * the yarn keys mean.
 */
void pf_rope_tables(const struct pf_rope_spec *rope, int64_t n_positions, float *cos_out,
                    float *sin_out);

/* yarn's factor on cos and sin (1 for other kinds). */
double pf_rope_attention_factor(const struct pf_rope_spec *rope);

#endif
