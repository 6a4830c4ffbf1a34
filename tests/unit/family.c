/* SPDX-License-Identifier: Apache-2.0 */
/* Model families: the configurations that transformers wrote, in both spellings; defaults; and what
 * is refused, with the words a person gets. */
#include <pf/error.h>
#include <pf/family.h>
#include <pf/json.h>

#include "model_fixture.h"
#include "tap.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

static const char *const folders[] = {"gpt2",
                                      "llama",
                                      "llama-tied",
                                      "qwen2",
                                      "qwen3",
                                      "ernie4_5",
                                      "mixtral",
                                      "qwen3_moe",
                                      "qwen3_moe-mixed",
                                      "deepseek_v3",
                                      "deepseek_v3-yarn",
                                      "ernie4_5_moe"};

/* Parse a configuration written here; its code. */
static int read_text(const char *text, struct pf_model_spec *spec_out)
{
    struct pf_json *config = NULL;
    int err = pf_json_parse_text(text, strlen(text), "config.json", &config);

    if (!err) {
        err = pf_family_read_config(config, spec_out);
    }
    pf_json_free(config);
    return err;
}

/* A configuration of a family with only the keys that pf asks for, and `more`. */
static int read_with(const char *model_type, const char *more, struct pf_model_spec *spec_out)
{
    char text[2048];

    snprintf(text, sizeof text,
             "{\"model_type\": \"%s\", \"vocab_size\": 100, \"hidden_size\": 64, "
             "\"num_hidden_layers\": 4, \"num_attention_heads\": 32, \"intermediate_size\": 96, "
             "\"n_embd\": 64, \"n_layer\": 4, \"n_head\": 32%s%s}",
             model_type, more[0] ? ", " : "", more);
    return read_text(text, spec_out);
}

static void refused(int code, const char *model_type, const char *more, const char *words)
{
    struct pf_model_spec spec = {.n_layers = 77};
    const int err = read_with(model_type, more, &spec);

    ok(err == code && strstr(pf_error_message(), words) && spec.n_layers == 77,
       "%s with %s is refused: %s", model_type, more, err ? pf_error_message() : "it is not");
}

static void both_spellings_give_one_spec(void)
{
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        const struct pf_model_spec new = fixture_spec(folders[i], "config.json");
        const struct pf_model_spec old = fixture_spec(folders[i], "config.v4.json");
        ok(new.n_layers > 0 && memcmp(&new, &old, sizeof new) == 0,
           "%s: both spellings give the same spec", folders[i]);
    }
}

static void dense_fixtures(void)
{
    struct pf_model_spec s = fixture_spec("gpt2", "config.json");

    ok(s.family == PF_FAMILY_GPT2 && s.hidden == 48 && s.ffn == 192 && s.head_dim == 12 &&
           s.n_kv_heads == 4 && s.max_positions == 64 && s.rope.kind == PF_ROPE_NONE,
       "gpt2: sizes");
    ok(s.norm == PF_NORM_LAYER && s.act == PF_SPEC_ACT_GELU_TANH && !s.gated && s.fused_qkv &&
           s.linear_in_out && s.learned_positions && s.tied_head && s.q_bias && s.mlp_bias &&
           s.padding_id == -1 && s.attention_dropout == 0.0,
       "gpt2: structure");
    s = fixture_spec("llama", "config.json");
    ok(s.n_heads == 8 && s.n_kv_heads == 4 && s.head_dim == 8 && s.ffn == 96 && !s.tied_head &&
           s.gated && s.act == PF_SPEC_ACT_SILU && !s.q_bias && !s.mlp_bias && !s.qk_norm &&
           s.rope.theta == 10000.0 && s.rope.dim == 8 && !s.rope.pairs_adjacent &&
           fabs(s.attention_scale - 1.0 / sqrt(8.0)) < 1e-15,
       "llama");
    s = fixture_spec("llama-tied", "config.json");
    ok(s.tied_head && s.rope.kind == PF_ROPE_LLAMA3 && s.rope.factor == 8.0 &&
           s.rope.original_max_positions == 64 && s.rope.high_freq_factor == 4.0,
       "llama-tied: llama3 scaling");
    s = fixture_spec("qwen2", "config.json");
    ok(s.q_bias && s.k_bias && s.v_bias && !s.o_bias && s.head_dim == 12 && s.tied_head,
       "qwen2: q, k, v bias, derived head width");
    s = fixture_spec("qwen3", "config.json");
    ok(s.qk_norm && s.head_dim == 16 && s.rope.dim == 16 && !s.q_bias, "qwen3: q/k norm");
    s = fixture_spec("ernie4_5", "config.json");
    ok(s.rope.pairs_adjacent && s.padding_id == 0 && s.tied_head && s.rope.theta == 500000.0 &&
           !s.head_bias,
       "ernie4_5: neighbouring pairs turn, row 0 is padding");
}

static bool layers_are(const struct pf_model_spec *s, const char *want)
{
    for (int64_t i = 0; i < s->n_layers; i++) {
        if (s->moe.layer_is_moe[i] != (want[i] == 'x')) {
            return false;
        }
    }
    return strlen(want) == (size_t)s->n_layers;
}

static void expert_fixtures(void)
{
    struct pf_model_spec s = fixture_spec("mixtral", "config.json");

    ok(s.moe.n_experts == 4 && s.moe.top_k == 2 && s.moe.expert_ffn == 40 &&
           s.moe.normalise_top_k && layers_are(&s, "xx") && s.head_dim == 12,
       "mixtral");
    s = fixture_spec("qwen3_moe-mixed", "config.json");
    ok(s.moe.n_experts == 4 && layers_are(&s, ".x.x") && s.moe.expert_ffn == 24 && s.qk_norm &&
           s.moe.aux_loss_coef == 0.02,
       "qwen3_moe-mixed: dense and expert layers");
    s = fixture_spec("deepseek_v3", "config.json");
    ok(s.mla.q_rank == 24 && s.mla.kv_rank == 16 && s.mla.v_dim == 12 && s.head_dim == 24 &&
           s.rope.dim == 8 && s.rope.pairs_adjacent && layers_are(&s, ".xx") &&
           s.moe.score == PF_ROUTER_SIGMOID && s.moe.n_groups == 2 && s.moe.correction_bias &&
           s.moe.scaling_factor == 2.5,
       "deepseek_v3: latent attention, grouped sigmoid router");
    s = fixture_spec("deepseek_v3-yarn", "config.json");
    ok(s.rope.kind == PF_ROPE_YARN && s.rope.beta_fast == 4.0 && s.rope.truncate &&
           fabs(s.attention_scale - pow(0.1 * log(8.0) + 1.0, 2.0) / sqrt(24.0)) < 1e-15,
       "deepseek_v3-yarn: the softmax is sharpened");
    s = fixture_spec("ernie4_5_moe", "config.json");
    ok(s.moe.n_experts == 8 && s.moe.n_shared_experts == 2 && layers_are(&s, ".xx") &&
           s.moe.normalise_floor == 1e-12 && s.head_dim == 12 && s.tied_head,
       "ernie4_5_moe");
}

static void absent_keys_have_the_defaults_of_transformers(void)
{
    struct pf_model_spec s;

    ok(read_with("gpt2", "", &s) == 0 && s.embed_dropout == 0.1 && s.attention_dropout == 0.1 &&
           s.residual_dropout == 0.1 && s.max_positions == 1024 && s.norm_eps == 1e-5 &&
           s.tied_head && s.ffn == 256 && s.act == PF_SPEC_ACT_GELU_TANH && s.init_std == 0.02,
       "gpt2");
    ok(read_with("llama", "", &s) == 0 && s.n_kv_heads == 32 && s.head_dim == 2 &&
           s.max_positions == 2048 && s.norm_eps == 1e-6 && s.rope.theta == 1e4 &&
           s.rope.kind == PF_ROPE_DEFAULT && !s.tied_head && s.padding_id == -1 &&
           s.attention_dropout == 0.0,
       "llama");
    ok(read_with("qwen2", "", &s) == 0 && s.max_positions == 32768 && s.head_dim == 2, "qwen2");
    ok(read_with("qwen3", "", &s) == 0 && s.head_dim == 128 && s.rope.theta == 1e4, "qwen3");
    ok(read_with("qwen3", "\"head_dim\": null, \"num_key_value_heads\": null", &s) == 0 &&
           s.head_dim == 2 && s.n_kv_heads == 32,
       "a null head_dim is hidden / heads");
    ok(read_with("ernie4_5", "", &s) == 0 && s.n_kv_heads == 2 && s.head_dim == 128 &&
           s.padding_id == 0 && s.tied_head && s.rope.theta == 5e5 && s.norm_eps == 1e-5 &&
           s.max_positions == 131072,
       "ernie4_5");
    ok(read_text("{\"model_type\": \"gpt2\", \"vocab_size\": 9, \"hidden_size\": 8, "
                 "\"num_hidden_layers\": 1, \"num_attention_heads\": 2}",
                 &s) == 0 &&
           s.ffn == 32 && s.head_dim == 4,
       "gpt2 under the general names");
}

static void settings_reach_the_spec(void)
{
    struct pf_model_spec s;

    ok(read_with("llama", "\"attention_bias\": true, \"mlp_bias\": true, \"pad_token_id\": -1",
                 &s) == 0 &&
           s.q_bias && s.k_bias && s.v_bias && s.o_bias && s.mlp_bias && s.padding_id == 99,
       "llama: biases; a padding row counted from the end");
    ok(read_with("qwen3", "\"attention_bias\": true, \"attention_dropout\": 0.25", &s) == 0 &&
           s.o_bias && s.attention_dropout == 0.25,
       "qwen3: attention bias and dropout");
    ok(read_with("ernie4_5", "\"use_bias\": true", &s) == 0 && s.o_bias && s.mlp_bias &&
           !s.head_bias,
       "ernie4_5: use_bias");
    ok(read_with("gpt2",
                 "\"scale_attn_weights\": false, \"n_inner\": 80, "
                 "\"reorder_and_upcast_attn\": true, \"tie_word_embeddings\": false, "
                 "\"activation_function\": \"relu\"",
                 &s) == 0 &&
           s.attention_scale == 1.0 && s.ffn == 80 && !s.tied_head && s.act == PF_SPEC_ACT_RELU,
       "gpt2: unscaled scores, inner width, head of its own");
    ok(read_with("llama", "\"hidden_act\": \"gelu\"", &s) == 0 && s.act == PF_SPEC_ACT_GELU_ERF,
       "gelu is the exact one");
    ok(read_with("llama", "\"hidden_act\": \"gelu_pytorch_tanh\"", &s) == 0 &&
           s.act == PF_SPEC_ACT_GELU_TANH,
       "gelu_pytorch_tanh is not");
    ok(read_with("qwen2", "\"use_sliding_window\": false, \"sliding_window\": 4096", &s) == 0,
       "a window that is switched off is none");
}

static void rotary_spellings(void)
{
    struct pf_model_spec s;

    ok(read_with("llama",
                 "\"rope_theta\": 5000, \"rope_scaling\": {\"type\": \"linear\", "
                 "\"factor\": 2}",
                 &s) == 0 &&
           s.rope.kind == PF_ROPE_LINEAR && s.rope.theta == 5000.0 && s.rope.factor == 2.0,
       "version 4: type, theta outside");
    ok(read_with("llama",
                 "\"rope_theta\": 7, \"rope_parameters\": {\"rope_type\": \"yarn\", "
                 "\"rope_theta\": 8, \"factor\": 4.0, \"truncate\": false}",
                 &s) == 0 &&
           s.rope.kind == PF_ROPE_YARN && s.rope.theta == 8.0 && s.rope.beta_fast == 32.0 &&
           s.rope.beta_slow == 1.0 && s.rope.original_max_positions == 2048 && !s.rope.truncate,
       "version 5: theta inside wins, yarn's defaults, length from the model");
    ok(read_with("llama",
                 "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": null, "
                 "\"original_max_position_embeddings\": 512}",
                 &s) == 0 &&
           s.rope.factor == 4.0,
       "yarn: a null factor is the ratio of the lengths");
    ok(read_with("llama",
                 "\"original_max_position_embeddings\": 64, \"rope_scaling\": "
                 "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, "
                 "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 128}",
                 &s) == 0 &&
           s.rope.original_max_positions == 64,
       "a length beside the scaling wins over the one in it");
    ok(read_with("llama", "\"rope_scaling\": null", &s) == 0 && s.rope.kind == PF_ROPE_DEFAULT,
       "null is no scaling");
}

static void unknown_settings_are_refused(void)
{
    refused(PF_ENOTSUP, "mamba", "",
            "unknown model_type 'mamba' in 'config.json' (known: gpt2, llama, qwen2, qwen3, "
            "ernie4_5, mixtral, qwen3_moe, deepseek_v3, ernie4_5_moe)");
    refused(PF_ENOTSUP, "qwen2", "\"use_sliding_window\": true", "'use_sliding_window'");
    refused(PF_ENOTSUP, "qwen3", "\"layer_types\": [\"full_attention\", \"sliding_attention\"]",
            "'layer_types[1]'");
    refused(PF_ENOTSUP, "llama", "\"hidden_act\": \"mish\"", "'hidden_act'");
    refused(PF_ENOTSUP, "llama", "\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}",
            "'rope_scaling.type'");
    refused(PF_ENOTSUP, "llama",
            "\"rope_parameters\": {\"rope_theta\": 1e4, \"partial_rotary_factor\": 0.5}",
            "'rope_parameters.partial_rotary_factor'");
    refused(PF_ENOTSUP, "llama",
            "\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 10000}}",
            "'rope_parameters.full_attention'");
    refused(PF_ENOTSUP, "gpt2", "\"scale_attn_by_inverse_layer_idx\": true",
            "'scale_attn_by_inverse_layer_idx'");
    refused(PF_ENOTSUP, "gpt2", "\"add_cross_attention\": true", "'add_cross_attention'");
}

static void impossible_values_are_refused(void)
{
    refused(PF_EINVAL, "llama", "\"num_key_value_heads\": 5",
            "'num_attention_heads' 32 is not a multiple of 'num_key_value_heads' 5");
    refused(PF_EINVAL, "llama", "\"head_dim\": 3", "3 elements of a head of 3 cannot turn");
    refused(PF_EINVAL, "llama", "\"head_dim\": 0", "'head_dim' is 0");
    refused(PF_EINVAL, "llama", "\"pad_token_id\": 100",
            "'pad_token_id' 100 is outside the vocabulary of 100");
    refused(PF_EUSAGE, "llama", "\"rope_scaling\": \"linear\"",
            "'rope_scaling' must be an object, not a string");
    refused(PF_EUSAGE, "llama", "\"rope_scaling\": []",
            "'rope_scaling' must be an object, not an array");
    refused(PF_EINVAL, "llama", "\"rope_scaling\": {\"type\": \"linear\"}",
            "'rope_scaling.factor' is missing from 'config.json'");
    refused(PF_EINVAL, "llama",
            "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
            "\"high_freq_factor\": 4}",
            "'high_freq_factor' 4 must be above 'low_freq_factor' 4");
    refused(PF_EINVAL, "llama", "\"rms_norm_eps\": -1e-5", "'rms_norm_eps' is -1e-05");
    refused(PF_EINVAL, "gpt2", "\"attn_pdrop\": 1.5", "attention dropout is 1.5");
    refused(PF_EUSAGE, "llama", "\"head_dim\": \"eight\"", "'head_dim'");
    refused(PF_EINVAL, "mixtral", "", "'num_local_experts' is missing from 'config.json'");
    refused(PF_EINVAL, "mixtral", "\"num_local_experts\": 2, \"num_experts_per_tok\": 3",
            "3 experts of 2 cannot be chosen");
}

static void required_keys_are_named(void)
{
    static const char *const keys[] = {"vocab_size", "hidden_size", "num_hidden_layers",
                                       "num_attention_heads", "intermediate_size"};
    struct pf_model_spec spec;
    char text[512], words[128];

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        size_t n = (size_t)snprintf(text, sizeof text, "{\"model_type\": \"llama\"");
        for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
            if (k != i) {
                n += (size_t)snprintf(text + n, sizeof text - n, ", \"%s\": 4", keys[k]);
            }
        }
        snprintf(text + n, sizeof text - n, "}");
        snprintf(words, sizeof words, "'%s' is missing from 'config.json'", keys[i]);
        ok(read_text(text, &spec) == PF_EINVAL && strcmp(pf_error_message(), words) == 0, "%s",
           words);
    }
    ok(read_text("{\"model_type\": \"llama\", \"vocab_size\": 4, \"hidden_size\": 30, "
                 "\"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"intermediate_size\": 8}",
                 &spec) == PF_EINVAL &&
           strcmp(pf_error_message(),
                  "'hidden_size' 30 is not a multiple of 'num_attention_heads' 4") == 0,
       "a width that the heads do not divide is refused");
    ok(read_text("{\"vocab_size\": 4}", &spec) == PF_EINVAL &&
           strcmp(pf_error_message(), "'model_type' is missing from 'config.json'") == 0,
       "so is a model without family");
    ok(read_text("[1]", &spec) == PF_EUSAGE, "a config that is no object is refused");
    ok(read_text("{\"model_type\": \"llama\", \"vocab_size\": 4, \"hidden_size\": 8, "
                 "\"num_hidden_layers\": 2000, \"num_attention_heads\": 4, "
                 "\"intermediate_size\": 8}",
                 &spec) == PF_EINVAL &&
           strcmp(pf_error_message(), "'num_hidden_layers' is 2000, must be from 1 to 1024") == 0,
       "more layers than a spec holds are refused");
}

static bool survives_writing(const struct pf_model_spec *spec)
{
    struct pf_model_spec again;
    struct pf_str text;

    memset(&again, 0, sizeof again);
    pf_str_init(&text);
    const bool same = pf_family_write_config(spec, PF_DTYPE_BF16, &text) == 0 &&
                      read_text(text.text, &again) == 0 &&
                      memcmp(&again, spec, sizeof again) == 0 &&
                      strstr(text.text, "\"torch_dtype\": \"bfloat16\"") &&
                      strstr(text.text, pf_family_architecture(spec->family));
    if (!same) {
        printf("# %s\n%s\n", pf_error_message(), text.text);
    }
    pf_str_release(&text);
    return same;
}

static void written_configs_read_back(void)
{
    static const char *const more[][2] = {
        {"llama", "\"attention_bias\": true, \"mlp_bias\": true, \"pad_token_id\": 3, "
                  "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, \"mscale\": 0.7, "
                  "\"mscale_all_dim\": 1.1, \"truncate\": false}"},
        {"llama", "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 3.5}"},
        {"qwen3", "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, "
                  "\"attention_factor\": 1.25}, \"attention_bias\": true"},
        {"ernie4_5", "\"use_bias\": true, \"hidden_act\": \"gelu_pytorch_tanh\""},
        {"gpt2", "\"scale_attn_weights\": false, \"activation_function\": \"gelu\""},
    };
    struct pf_model_spec spec;
    struct pf_str text;

    for (size_t i = 0; i < 6; i++) {
        spec = fixture_spec(folders[i], "config.json");
        ok(survives_writing(&spec), "%s: written and read back", folders[i]);
    }
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
        ok(read_with(more[i][0], more[i][1], &spec) == 0 && survives_writing(&spec),
           "%s with %s: written and read back", more[i][0], more[i][1]);
    }
    pf_str_init(&text);
    spec = fixture_spec("mixtral", "config.json");
    ok(pf_family_write_config(&spec, PF_DTYPE_F32, &text) == PF_ENOTSUP && text.len == 0,
       "experts are not written");
    spec = fixture_spec("llama-tied", "config.json");
    ok(pf_family_write_config(&spec, PF_DTYPE_F32, &text) == 0 &&
           strstr(text.text, "\"factor\": 8.0,") && strstr(text.text, "\"n_embd\"") == NULL,
       "whole floats keep their point, which some readers ask for");
    pf_str_release(&text);
}

int main(void)
{
    both_spellings_give_one_spec();
    dense_fixtures();
    expert_fixtures();
    absent_keys_have_the_defaults_of_transformers();
    settings_reach_the_spec();
    rotary_spellings();
    unknown_settings_are_refused();
    impossible_values_are_refused();
    required_keys_are_named();
    written_configs_read_back();
    return done();
}
