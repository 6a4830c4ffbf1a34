/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/spec.h>

#include <pf/error.h>

#include <math.h>

static const char *const family_names[PF_FAMILY_COUNT] = {
    [PF_FAMILY_GPT2] = "gpt2",
    [PF_FAMILY_LLAMA] = "llama",
    [PF_FAMILY_QWEN2] = "qwen2",
    [PF_FAMILY_QWEN3] = "qwen3",
    [PF_FAMILY_ERNIE4_5] = "ernie4_5",
    [PF_FAMILY_MIXTRAL] = "mixtral",
    [PF_FAMILY_QWEN3_MOE] = "qwen3_moe",
    [PF_FAMILY_DEEPSEEK_V3] = "deepseek_v3",
    [PF_FAMILY_ERNIE4_5_MOE] = "ernie4_5_moe",
};

const char *pf_family_name(enum pf_family family)
{
    return family_names[family];
}

/* One size of the model with the name it has in config.json. Sizes stay below 2^31, so that the
 * product of two always fits. */
static int check_size(const char *key, int64_t value, int64_t most)
{
    if (value < 1 || value > most) {
        return pf_fail(PF_EINVAL, "'%s' is %lld, must be from 1 to %lld", key, (long long)value,
                       (long long)most);
    }
    return 0;
}

static int check_sizes(const struct pf_model_spec *spec)
{
    const bool gpt2 = spec->family == PF_FAMILY_GPT2;
    const int64_t most = INT32_MAX;

    PF_TRY(check_size("vocab_size", spec->vocab_size, most));
    PF_TRY(check_size(gpt2 ? "n_embd" : "hidden_size", spec->hidden, most));
    PF_TRY(check_size(gpt2 ? "n_layer" : "num_hidden_layers", spec->n_layers, PF_SPEC_MAX_LAYERS));
    PF_TRY(check_size(gpt2 ? "n_head" : "num_attention_heads", spec->n_heads, most));
    PF_TRY(check_size("num_key_value_heads", spec->n_kv_heads, most));
    PF_TRY(check_size("head_dim", spec->head_dim, most));
    PF_TRY(check_size(gpt2 ? "n_inner" : "intermediate_size", spec->ffn, most));
    return check_size(gpt2 ? "n_positions" : "max_position_embeddings", spec->max_positions, most);
}

static int check_heads(const struct pf_model_spec *spec)
{
    const bool gpt2 = spec->family == PF_FAMILY_GPT2;

    if (spec->n_heads % spec->n_kv_heads != 0) {
        return pf_fail(PF_EINVAL,
                       "'num_attention_heads' %lld is not a multiple of 'num_key_value_heads' %lld",
                       (long long)spec->n_heads, (long long)spec->n_kv_heads);
    }
    if (gpt2 && spec->n_heads * spec->head_dim != spec->hidden) {
        return pf_fail(PF_EINVAL, "'n_embd' %lld is not a multiple of 'n_head' %lld",
                       (long long)spec->hidden, (long long)spec->n_heads);
    }
    if (spec->rope.kind != PF_ROPE_NONE &&
        (spec->rope.dim < 2 || spec->rope.dim % 2 != 0 || spec->rope.dim > spec->head_dim)) {
        return pf_fail(PF_EINVAL,
                       "rotary positions turn pairs: %lld elements of a head of %lld cannot turn",
                       (long long)spec->rope.dim, (long long)spec->head_dim);
    }
    return 0;
}

/* The largest weights must have a size that int64_t holds, in bytes too. */
static int check_products(const struct pf_model_spec *spec)
{
    const int64_t most = INT64_MAX / 16 / (spec->n_layers + 2);
    const int64_t heads = spec->n_heads + 2 * spec->n_kv_heads;
    int64_t attention = 0, ffn = 0, vocab = 0;

    if (__builtin_mul_overflow(heads, spec->head_dim, &attention) ||
        __builtin_mul_overflow(attention, spec->hidden, &attention) || attention > most / 4 ||
        __builtin_mul_overflow(spec->ffn, spec->hidden, &ffn) || ffn > most / 8 ||
        __builtin_mul_overflow(spec->vocab_size, spec->hidden, &vocab) || vocab > most / 4) {
        return pf_fail(PF_EINVAL, "the model is too large to count its elements");
    }
    return 0;
}

static int check_probability(const char *what, double p)
{
    if (!(p >= 0.0 && p < 1.0)) {
        return pf_fail(PF_EINVAL, "%s dropout is %g, must be from 0 to below 1", what, p);
    }
    return 0;
}

static int check_numbers(const struct pf_model_spec *spec)
{
    const bool gpt2 = spec->family == PF_FAMILY_GPT2;

    if (!(spec->norm_eps >= 0.0 && spec->norm_eps < 1.0)) {
        return pf_fail(PF_EINVAL, "'%s' is %g, must be from 0 to below 1",
                       gpt2 ? "layer_norm_epsilon" : "rms_norm_eps", spec->norm_eps);
    }
    if (!(spec->init_std > 0.0 && isfinite(spec->init_std))) {
        return pf_fail(PF_EINVAL, "'initializer_range' is %g, must be above 0", spec->init_std);
    }
    PF_TRY(check_probability("embedding", spec->embed_dropout));
    PF_TRY(check_probability("attention", spec->attention_dropout));
    PF_TRY(check_probability("residual", spec->residual_dropout));
    if (spec->padding_id < -1 || spec->padding_id >= spec->vocab_size) {
        return pf_fail(PF_EINVAL, "'pad_token_id' %lld is outside the vocabulary of %lld",
                       (long long)spec->padding_id, (long long)spec->vocab_size);
    }
    return 0;
}

static int check_rope(const struct pf_rope_spec *rope)
{
    if (rope->kind == PF_ROPE_NONE) {
        return 0;
    }
    if (!(rope->theta > 1.0 && isfinite(rope->theta))) {
        return pf_fail(PF_EINVAL, "'rope_theta' is %g, must be above 1", rope->theta);
    }
    if (rope->kind == PF_ROPE_DEFAULT) {
        return 0;
    }
    if (!(rope->factor > 0.0 && isfinite(rope->factor))) {
        return pf_fail(PF_EINVAL, "rotary 'factor' is %g, must be above 0", rope->factor);
    }
    if (rope->kind == PF_ROPE_LLAMA3 &&
        !(rope->low_freq_factor > 0.0 && rope->high_freq_factor > rope->low_freq_factor)) {
        return pf_fail(PF_EINVAL, "'high_freq_factor' %g must be above 'low_freq_factor' %g",
                       rope->high_freq_factor, rope->low_freq_factor);
    }
    if (rope->kind == PF_ROPE_YARN &&
        !(rope->beta_slow > 0.0 && rope->beta_fast > 0.0 && rope->attention_factor >= 0.0)) {
        return pf_fail(PF_EINVAL, "yarn's beta_fast, beta_slow and factors must be above 0");
    }
    if (rope->kind != PF_ROPE_LINEAR) {
        PF_TRY(check_size("original_max_position_embeddings", rope->original_max_positions,
                          INT32_MAX));
    }
    return 0;
}

/* Experts are listed one by one, so their number over all layers has a bound. */
#define EXPERTS_MAX (1 << 20)

static int check_moe(const struct pf_model_spec *spec)
{
    const struct pf_moe_spec *const moe = &spec->moe;
    int64_t size;

    if (moe->n_experts == 0) {
        return 0;
    }
    PF_TRY(check_size("number of experts", moe->n_experts, EXPERTS_MAX / spec->n_layers));
    PF_TRY(check_size("width of an expert", moe->expert_ffn, INT32_MAX));
    if (moe->n_shared_experts < 0 || moe->n_shared_experts > EXPERTS_MAX ||
        __builtin_mul_overflow(moe->expert_ffn * (moe->n_shared_experts + 1), spec->hidden,
                               &size) ||
        size > INT64_MAX / 16 / EXPERTS_MAX) {
        return pf_fail(PF_EINVAL, "%lld shared experts, or experts as wide as %lld, are too many",
                       (long long)moe->n_shared_experts, (long long)moe->expert_ffn);
    }
    if (moe->top_k < 1 || moe->top_k > moe->n_experts) {
        return pf_fail(PF_EINVAL, "%lld experts of %lld cannot be chosen for a token",
                       (long long)moe->top_k, (long long)moe->n_experts);
    }
    if (moe->n_groups < 1 || moe->n_experts % moe->n_groups != 0 || moe->top_groups < 1 ||
        moe->top_groups > moe->n_groups) {
        return pf_fail(PF_EINVAL, "%lld experts cannot form %lld groups of which %lld are chosen",
                       (long long)moe->n_experts, (long long)moe->n_groups,
                       (long long)moe->top_groups);
    }
    return 0;
}

static int check_latent(const struct pf_model_spec *spec)
{
    const struct pf_mla_spec *const mla = &spec->mla;
    const int64_t most = 1 << 20; /* heads times width times width of a latent fits */

    if (mla->kv_rank == 0) {
        return 0;
    }
    PF_TRY(check_size("kv_lora_rank", mla->kv_rank, most));
    PF_TRY(check_size("qk_nope_head_dim", mla->nope_dim, most));
    PF_TRY(check_size("qk_rope_head_dim", mla->rope_dim, most));
    PF_TRY(check_size("v_head_dim", mla->v_dim, most));
    PF_TRY(check_size("num_attention_heads", spec->n_heads, 1 << 16));
    return mla->q_rank == 0 ? 0 : check_size("q_lora_rank", mla->q_rank, most);
}

int pf_spec_check(const struct pf_model_spec *spec)
{
    PF_TRY(check_sizes(spec));
    PF_TRY(check_heads(spec));
    PF_TRY(check_products(spec));
    PF_TRY(check_numbers(spec));
    PF_TRY(check_rope(&spec->rope));
    PF_TRY(check_latent(spec));
    return check_moe(spec);
}
