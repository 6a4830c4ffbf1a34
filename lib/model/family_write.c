/* SPDX-License-Identifier: Apache-2.0 */
/* The config.json of a spec, as transformers reads it. */
#include <pf/family.h>

#include <pf/error.h>
#include <pf/json.h>
#include <pf/mem.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A number that transformers declares as a float, which some of its versions refuse without a point
 * ("factor": 8). */
static void member_float(struct pf_json_out *j, const char *key, double value)
{
    char text[32];

    if (value != floor(value) || fabs(value) >= 1e15) {
        pf_json_out_member_f64(j, key, value);
        return;
    }
    snprintf(text, sizeof text, "%lld.0", (long long)value);
    pf_json_out_key(j, key);
    pf_json_out_raw(j, text);
}

static const char *act_name(const struct pf_model_spec *spec)
{
    switch (spec->act) {
    case PF_SPEC_ACT_SILU:
        return "silu";
    case PF_SPEC_ACT_GELU_TANH:
        return spec->family == PF_FAMILY_GPT2 ? "gelu_new" : "gelu_pytorch_tanh";
    case PF_SPEC_ACT_GELU_ERF:
        return "gelu";
    case PF_SPEC_ACT_RELU:
        break;
    }
    return "relu";
}

static void write_gpt2(const struct pf_model_spec *spec, struct pf_json_out *j)
{
    pf_json_out_member_string(j, "activation_function", act_name(spec));
    member_float(j, "attn_pdrop", spec->attention_dropout);
    member_float(j, "embd_pdrop", spec->embed_dropout);
    member_float(j, "layer_norm_epsilon", spec->norm_eps);
    pf_json_out_member_i64(j, "n_embd", spec->hidden);
    pf_json_out_member_i64(j, "n_head", spec->n_heads);
    pf_json_out_member_i64(j, "n_inner", spec->ffn);
    pf_json_out_member_i64(j, "n_layer", spec->n_layers);
    pf_json_out_member_i64(j, "n_positions", spec->max_positions);
    member_float(j, "resid_pdrop", spec->residual_dropout);
    pf_json_out_member_bool(j, "scale_attn_weights",
                            spec->head_dim == 1 || spec->attention_scale != 1.0);
}

static void write_yarn(const struct pf_rope_spec *rope, struct pf_json_out *j)
{
    member_float(j, "beta_fast", rope->beta_fast);
    member_float(j, "beta_slow", rope->beta_slow);
    if (rope->attention_factor > 0.0) {
        member_float(j, "attention_factor", rope->attention_factor);
    }
    if (rope->mscale > 0.0) {
        member_float(j, "mscale", rope->mscale);
    }
    if (rope->mscale_all_dim > 0.0) {
        member_float(j, "mscale_all_dim", rope->mscale_all_dim);
    }
    pf_json_out_member_bool(j, "truncate", rope->truncate);
}

static void write_rope(const struct pf_rope_spec *rope, struct pf_json_out *j)
{
    member_float(j, "rope_theta", rope->theta);
    pf_json_out_key(j, "rope_scaling");
    if (rope->kind == PF_ROPE_DEFAULT) {
        pf_json_out_null(j);
        return;
    }
    pf_json_out_object_begin(j);
    pf_json_out_member_string(j, "rope_type",
                              rope->kind == PF_ROPE_LINEAR   ? "linear"
                              : rope->kind == PF_ROPE_LLAMA3 ? "llama3"
                                                             : "yarn");
    member_float(j, "factor", rope->factor);
    if (rope->kind != PF_ROPE_LINEAR) {
        pf_json_out_member_i64(j, "original_max_position_embeddings", rope->original_max_positions);
    }
    if (rope->kind == PF_ROPE_LLAMA3) {
        member_float(j, "low_freq_factor", rope->low_freq_factor);
        member_float(j, "high_freq_factor", rope->high_freq_factor);
    }
    if (rope->kind == PF_ROPE_YARN) {
        write_yarn(rope, j);
    }
    pf_json_out_object_end(j);
}

static void write_biases(const struct pf_model_spec *spec, struct pf_json_out *j)
{
    switch (spec->family) {
    case PF_FAMILY_LLAMA:
        pf_json_out_member_bool(j, "mlp_bias", spec->mlp_bias);
        pf_json_out_member_bool(j, "attention_bias", spec->q_bias);
        break;
    case PF_FAMILY_QWEN3:
        pf_json_out_member_bool(j, "attention_bias", spec->q_bias);
        break;
    case PF_FAMILY_ERNIE4_5:
        pf_json_out_member_bool(j, "use_bias", spec->q_bias);
        break;
    default:
        break;
    }
}

static void write_decoder(const struct pf_model_spec *spec, struct pf_json_out *j)
{
    if (spec->family != PF_FAMILY_ERNIE4_5) {
        member_float(j, "attention_dropout", spec->attention_dropout);
    }
    pf_json_out_member_i64(j, "head_dim", spec->head_dim);
    pf_json_out_member_string(j, "hidden_act", act_name(spec));
    pf_json_out_member_i64(j, "hidden_size", spec->hidden);
    pf_json_out_member_i64(j, "intermediate_size", spec->ffn);
    pf_json_out_member_i64(j, "max_position_embeddings", spec->max_positions);
    pf_json_out_member_i64(j, "num_attention_heads", spec->n_heads);
    pf_json_out_member_i64(j, "num_hidden_layers", spec->n_layers);
    pf_json_out_member_i64(j, "num_key_value_heads", spec->n_kv_heads);
    member_float(j, "rms_norm_eps", spec->norm_eps);
    write_biases(spec, j);
    write_rope(&spec->rope, j);
}

/* Token ids that generation uses are no part of a spec: null, lest transformers assume its own. */
static void write_ids(const struct pf_model_spec *spec, struct pf_json_out *j)
{
    pf_json_out_key(j, "bos_token_id");
    pf_json_out_null(j);
    pf_json_out_key(j, "eos_token_id");
    pf_json_out_null(j);
    pf_json_out_key(j, "pad_token_id");
    if (spec->padding_id >= 0) {
        pf_json_out_i64(j, spec->padding_id);
    } else {
        pf_json_out_null(j);
    }
}

int pf_family_write_config(const struct pf_model_spec *spec, enum pf_dtype dtype,
                           struct pf_str *text)
{
    const char *const torch_name = pf_dtype_torch_name(dtype);
    struct pf_json_out j;

    if (!torch_name) {
        return pf_fail(PF_ENOTSUP, "no Hugging Face name for weights of type %s",
                       pf_dtype_name(dtype));
    }
    if (spec->moe.n_experts > 0 || spec->mla.kv_rank > 0) {
        return pf_fail(PF_ENOTSUP, "no config.json is written for %s yet",
                       pf_family_name(spec->family));
    }
    pf_json_out_init(&j, text, 2);
    pf_json_out_object_begin(&j);
    pf_json_out_key(&j, "architectures");
    pf_json_out_array_begin(&j);
    pf_json_out_string(&j, pf_family_architecture(spec->family));
    pf_json_out_array_end(&j);
    pf_json_out_member_string(&j, "model_type", pf_family_name(spec->family));
    pf_json_out_member_i64(&j, "vocab_size", spec->vocab_size);
    write_ids(spec, &j);
    member_float(&j, "initializer_range", spec->init_std);
    pf_json_out_member_bool(&j, "tie_word_embeddings", spec->tied_head);
    if (spec->family == PF_FAMILY_GPT2) {
        write_gpt2(spec, &j);
    } else {
        write_decoder(spec, &j);
    }
    pf_json_out_member_string(&j, "torch_dtype", torch_name);
    pf_json_out_object_end(&j);
    PF_TRY(pf_json_out_finish(&j));
    return pf_str_append(text, "\n");
}

int pf_family_rewrite_config(const char *text, enum pf_dtype dtype, bool tied, char **text_out)
{
    struct pf_json *doc = NULL;
    struct pf_json_out out;
    struct pf_str s;
    int err;

    pf_str_init(&s);
    PF_TRY_GOTO(pf_json_parse_text(text, strlen(text), "model config", &doc), out);
    pf_json_out_init(&out, &s, 2);
    pf_json_out_object_begin(&out);
    for (size_t i = 0; i < pf_json_n(doc); i++) {
        const char *const key = pf_json_key(doc, i);
        if (strcmp(key, "dtype") == 0 || strcmp(key, "torch_dtype") == 0) {
            pf_json_out_member_string(&out, key, pf_dtype_torch_name(dtype));
        } else if (strcmp(key, "tie_word_embeddings") != 0) {
            pf_json_out_key(&out, key);
            pf_json_out_node(&out, pf_json_child(doc, i));
        }
    }
    pf_json_out_member_bool(&out, "tie_word_embeddings", tied);
    pf_json_out_object_end(&out);
    PF_TRY_GOTO(pf_json_out_finish(&out), out);
    pf_str_append_char(&s, '\n');
    *text_out = pf_str_steal(&s);
    err = *text_out ? 0 : PF_ENOMEM;
out:
    pf_str_release(&s);
    pf_json_free(doc);
    return err;
}
