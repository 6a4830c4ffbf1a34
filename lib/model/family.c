/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/family.h>

#include <pf/error.h>
#include <pf/json.h>

#include <math.h>
#include <string.h>

/*
 * A reader asks for one key after the other and looks for a fault once, at the end: after the first
 * fault every question is answered with its default and the record stays as it is.
 */
struct reader {
    const struct pf_json *config;
    int err;
};

/* A family. The numbers are what transformers takes for absent keys; 0 in kv_heads means as many as
 * heads, in head_dim hidden / heads. */
struct family {
    const char *architecture;
    void (*read)(struct reader *r, const struct family *family, struct pf_model_spec *spec);
    int64_t kv_heads, head_dim, max_positions, padding_id;
    double theta, norm_eps;
    bool tied_head;
};

static void read_gpt2(struct reader *r, const struct family *family, struct pf_model_spec *spec);
static void read_llama(struct reader *r, const struct family *family, struct pf_model_spec *spec);
static void read_qwen2(struct reader *r, const struct family *family, struct pf_model_spec *spec);
static void read_qwen3(struct reader *r, const struct family *family, struct pf_model_spec *spec);
static void read_ernie(struct reader *r, const struct family *family, struct pf_model_spec *spec);
static void read_mixtral(struct reader *r, const struct family *family, struct pf_model_spec *spec);
static void read_qwen3_moe(struct reader *r, const struct family *family,
                           struct pf_model_spec *spec);
static void read_deepseek(struct reader *r, const struct family *family,
                          struct pf_model_spec *spec);
static void read_ernie_moe(struct reader *r, const struct family *family,
                           struct pf_model_spec *spec);

static const struct family families[PF_FAMILY_COUNT] = {
    [PF_FAMILY_GPT2] = {"GPT2LMHeadModel", read_gpt2, 0, 0, 1024, -1, 0, 1e-5, true},
    [PF_FAMILY_LLAMA] = {"LlamaForCausalLM", read_llama, 0, 0, 2048, -1, 1e4, 1e-6, false},
    [PF_FAMILY_QWEN2] = {"Qwen2ForCausalLM", read_qwen2, 32, 0, 32768, -1, 1e4, 1e-6, false},
    [PF_FAMILY_QWEN3] = {"Qwen3ForCausalLM", read_qwen3, 32, 128, 32768, -1, 1e4, 1e-6, false},
    [PF_FAMILY_ERNIE4_5] = {"Ernie4_5ForCausalLM", read_ernie, 2, 128, 131072, 0, 5e5, 1e-5, true},
    [PF_FAMILY_MIXTRAL] = {"MixtralForCausalLM", read_mixtral, 8, 0, 131072, -1, 1e6, 1e-5, false},
    [PF_FAMILY_QWEN3_MOE] = {"Qwen3MoeForCausalLM", read_qwen3_moe, 4, 0, 32768, -1, 1e4, 1e-6,
                             false},
    [PF_FAMILY_DEEPSEEK_V3] = {"DeepseekV3ForCausalLM", read_deepseek, 0, 0, 4096, -1, 1e4, 1e-6,
                               false},
    [PF_FAMILY_ERNIE4_5_MOE] = {"Ernie4_5_MoeForCausalLM", read_ernie_moe, 4, 0, 131072, 0, 5e5,
                                1e-5, true},
};

const char *pf_family_architecture(enum pf_family family)
{
    return families[family].architecture;
}

/* Asking --------------------------------------------------------------------------------------- */

/* Refuse a setting that pf does not compute. */
static void refuse(struct reader *r, const struct pf_json *node, const char *what)
{
    if (!r->err) {
        r->err = pf_fail(PF_ENOTSUP, "'%s' %s, which pf does not compute ('%s' line %d)",
                         pf_json_path(node), what, pf_json_name(node), pf_json_line(node));
    }
}

static void missing(struct reader *r, const struct pf_json *object, const char *key)
{
    const char *const path = pf_json_path(object);

    if (!r->err) {
        r->err = pf_fail(PF_EINVAL, "'%s%s%s' is missing from '%s'", path, path[0] ? "." : "", key,
                         pf_json_name(object));
    }
}

/* A member that is there and not null. */
static const struct pf_json *present(const struct pf_json *object, const char *key)
{
    const struct pf_json *const node = pf_json_get(object, key);

    return node && pf_json_type(node) != PF_JSON_NULL ? node : NULL;
}

/* Members or elements; none of what is absent. */
static size_t n_children(const struct pf_json *node)
{
    return node ? pf_json_n(node) : 0;
}

/* The same under either of two names; alias may be NULL. */
static const struct pf_json *present_as(const struct pf_json *object, const char *key,
                                        const char *alias)
{
    const struct pf_json *const node = present(object, key);

    return node || !alias ? node : present(object, alias);
}

static int64_t value_i64(struct reader *r, const struct pf_json *node, int64_t by_default)
{
    int64_t value = by_default;

    if (!r->err && node) {
        r->err = pf_json_as_i64(node, &value);
    }
    return value;
}

static double value_f64(struct reader *r, const struct pf_json *node, double by_default)
{
    double value = by_default;

    if (!r->err && node) {
        r->err = pf_json_as_f64(node, &value);
    }
    return value;
}

static int64_t read_i64(struct reader *r, const char *key, int64_t by_default)
{
    return value_i64(r, present(r->config, key), by_default);
}

static int64_t need_i64(struct reader *r, const char *key, const char *alias)
{
    const struct pf_json *const node = present_as(r->config, key, alias);

    if (!node) {
        missing(r, r->config, key);
    }
    return value_i64(r, node, 0);
}

static double read_f64(struct reader *r, const char *key, double by_default)
{
    return value_f64(r, present(r->config, key), by_default);
}

static bool read_bool(struct reader *r, const char *key, bool by_default)
{
    bool value = by_default;

    if (!r->err) {
        r->err = pf_json_bool(r->config, key, by_default, &value);
    }
    return value;
}

static const char *value_string(struct reader *r, const struct pf_json *node,
                                const char *by_default)
{
    const char *value = by_default;

    if (!r->err && node) {
        r->err = pf_json_as_string(node, &value);
    }
    return value;
}

/* Groups of keys that families share ----------------------------------------------------------- */

static const struct {
    const char *name;
    enum pf_spec_act act;
} activations[] = {
    {"silu", PF_SPEC_ACT_SILU},          {"swish", PF_SPEC_ACT_SILU},
    {"gelu_new", PF_SPEC_ACT_GELU_TANH}, {"gelu_pytorch_tanh", PF_SPEC_ACT_GELU_TANH},
    {"gelu", PF_SPEC_ACT_GELU_ERF},      {"relu", PF_SPEC_ACT_RELU},
};

static enum pf_spec_act read_act(struct reader *r, const char *key, const char *by_default)
{
    const struct pf_json *const node = present(r->config, key);
    const char *const name = value_string(r, node, by_default);

    for (size_t i = 0; i < sizeof activations / sizeof activations[0]; i++) {
        if (strcmp(activations[i].name, name) == 0) {
            return activations[i].act;
        }
    }
    refuse(r, node, "is an activation other than silu, gelu, gelu_new, gelu_pytorch_tanh, relu");
    return PF_SPEC_ACT_SILU;
}

static const struct {
    const char *name;
    enum pf_rope_kind kind;
} rope_kinds[] = {
    {"default", PF_ROPE_DEFAULT},
    {"linear", PF_ROPE_LINEAR},
    {"llama3", PF_ROPE_LLAMA3},
    {"yarn", PF_ROPE_YARN},
};

static enum pf_rope_kind read_rope_kind(struct reader *r, const struct pf_json *object)
{
    const struct pf_json *const node = present_as(object, "rope_type", "type");
    const char *const name = value_string(r, node, "default");

    for (size_t i = 0; i < sizeof rope_kinds / sizeof rope_kinds[0]; i++) {
        if (strcmp(rope_kinds[i].name, name) == 0) {
            return rope_kinds[i].kind;
        }
    }
    refuse(r, node, "is a rotary scaling other than default, linear, llama3, yarn");
    return PF_ROPE_DEFAULT;
}

static double need_rope_f64(struct reader *r, const struct pf_json *object, const char *key)
{
    const struct pf_json *const node = present(object, key);

    if (!node) {
        missing(r, object, key);
    }
    return value_f64(r, node, 1.0);
}

/* A number for which transformers takes 0 and null to mean the default. */
static double rope_f64_or(struct reader *r, const struct pf_json *object, const char *key,
                          double by_default)
{
    const double value = value_f64(r, present(object, key), by_default);

    return value == 0.0 ? by_default : value;
}

static void read_yarn(struct reader *r, const struct pf_json *object, struct pf_model_spec *spec)
{
    struct pf_rope_spec *const rope = &spec->rope;
    const struct pf_json *const given = present(object, "attention_factor");

    rope->beta_fast = rope_f64_or(r, object, "beta_fast", 32.0);
    rope->beta_slow = rope_f64_or(r, object, "beta_slow", 1.0);
    rope->mscale = value_f64(r, present(object, "mscale"), 0.0);
    rope->mscale_all_dim = value_f64(r, present(object, "mscale_all_dim"), 0.0);
    rope->attention_factor = value_f64(r, given, 0.0);
    if (given && !r->err && !(rope->attention_factor > 0.0)) {
        r->err = pf_fail(PF_EINVAL, "'%s' is %g, must be above 0", pf_json_path(given),
                         rope->attention_factor);
    }
    rope->truncate = true;
    if (!r->err) {
        r->err = pf_json_bool(object, "truncate", true, &rope->truncate);
    }
}

/* What scales the frequencies. A null factor of yarn means the ratio of the two lengths. */
static void read_rope_scaling(struct reader *r, const struct pf_json *object,
                              struct pf_model_spec *spec)
{
    struct pf_rope_spec *const rope = &spec->rope;
    const struct pf_json *outer = present(r->config, "original_max_position_embeddings");

    if (rope->kind == PF_ROPE_DEFAULT) {
        return;
    }
    if (rope->kind != PF_ROPE_LINEAR) {
        outer = outer ? outer : present(object, "original_max_position_embeddings");
        rope->original_max_positions = value_i64(r, outer, spec->max_positions);
    }
    if (rope->kind == PF_ROPE_YARN && pf_json_get(object, "factor") && !present(object, "factor")) {
        rope->factor = (double)spec->max_positions / (double)rope->original_max_positions;
    } else {
        rope->factor = need_rope_f64(r, object, "factor");
    }
    if (rope->kind == PF_ROPE_LLAMA3) {
        rope->low_freq_factor = need_rope_f64(r, object, "low_freq_factor");
        rope->high_freq_factor = need_rope_f64(r, object, "high_freq_factor");
    }
    if (rope->kind == PF_ROPE_YARN) {
        read_yarn(r, object, spec);
    }
}

static void refuse_partial_rope(struct reader *r, const struct pf_json *object)
{
    const struct pf_json *part = present(object, "partial_rotary_factor");

    part = part ? part : present(r->config, "partial_rotary_factor");
    if (part && value_f64(r, part, 1.0) != 1.0) {
        refuse(r, part, "turns a part of each head");
    }
    for (size_t i = 0; i < n_children(object); i++) {
        if (pf_json_type(pf_json_child(object, i)) == PF_JSON_OBJECT) {
            refuse(r, pf_json_child(object, i), "gives layers rotary parameters of their own");
        }
    }
}

/* transformers 4 has rope_theta beside rope_scaling (null: none); 5 has both in rope_parameters. An
 * old key in a new file wins, as there. */
static void read_rope(struct reader *r, const struct family *family, int64_t dim,
                      struct pf_model_spec *spec)
{
    const struct pf_json *object = present(r->config, "rope_scaling");
    const struct pf_json *theta = NULL;

    if (object && !r->err) {
        r->err = pf_json_expect(object, PF_JSON_OBJECT);
    }
    if (!object || n_children(object) == 0) {
        object = present(r->config, "rope_parameters");
    }
    if (object && !r->err) {
        r->err = pf_json_expect(object, PF_JSON_OBJECT);
    }
    if (r->err) {
        return;
    }
    theta = present(object, "rope_theta");
    spec->rope.theta =
        value_f64(r, theta ? theta : present(r->config, "rope_theta"), family->theta);
    spec->rope.dim = dim;
    spec->rope.kind = read_rope_kind(r, object);
    refuse_partial_rope(r, object);
    read_rope_scaling(r, object, spec);
}

static void read_padding(struct reader *r, const struct family *family, struct pf_model_spec *spec)
{
    const struct pf_json *const node = pf_json_get(r->config, "pad_token_id");

    spec->padding_id = -1;
    if (!node) {
        spec->padding_id = family->padding_id;
    } else if (pf_json_type(node) != PF_JSON_NULL) {
        const int64_t id = value_i64(r, node, 0);
        spec->padding_id = id < 0 ? id + spec->vocab_size : id;
        if (!r->err && (spec->padding_id < 0 || spec->padding_id >= spec->vocab_size)) {
            r->err = pf_fail(PF_EINVAL, "'pad_token_id' %lld is outside the vocabulary of %lld",
                             (long long)id, (long long)spec->vocab_size);
        }
    }
}

/* hidden / heads, where the file leaves the width of a head to that. */
static void derive_head_dim(struct reader *r, const char *hidden_key, const char *heads_key,
                            struct pf_model_spec *spec)
{
    if (r->err || spec->n_heads < 1) {
        return; /* pf_spec_check names it */
    }
    if (spec->hidden % spec->n_heads != 0) {
        r->err = pf_fail(PF_EINVAL, "'%s' %lld is not a multiple of '%s' %lld", hidden_key,
                         (long long)spec->hidden, heads_key, (long long)spec->n_heads);
        return;
    }
    spec->head_dim = spec->hidden / spec->n_heads;
}

static void read_heads(struct reader *r, const struct family *family, struct pf_model_spec *spec)
{
    const struct pf_json *const kv = pf_json_get(r->config, "num_key_value_heads");
    const struct pf_json *const width = pf_json_get(r->config, "head_dim");

    spec->n_heads = need_i64(r, "num_attention_heads", NULL);
    spec->n_kv_heads = spec->n_heads;
    if (kv ? pf_json_type(kv) != PF_JSON_NULL : family->kv_heads > 0) {
        spec->n_kv_heads = value_i64(r, kv, family->kv_heads);
    }
    if (width ? pf_json_type(width) != PF_JSON_NULL : family->head_dim > 0) {
        spec->head_dim = value_i64(r, width, family->head_dim);
    } else {
        derive_head_dim(r, "hidden_size", "num_attention_heads", spec);
    }
}

/* What every family but gpt2 has in common, heads and rotation left out. */
static void read_body(struct reader *r, const struct family *family, struct pf_model_spec *spec)
{
    spec->vocab_size = need_i64(r, "vocab_size", NULL);
    spec->hidden = need_i64(r, "hidden_size", NULL);
    spec->n_layers = need_i64(r, "num_hidden_layers", NULL);
    spec->ffn = need_i64(r, "intermediate_size", NULL);
    spec->max_positions = read_i64(r, "max_position_embeddings", family->max_positions);
    spec->norm = PF_NORM_RMS;
    spec->norm_eps = read_f64(r, "rms_norm_eps", family->norm_eps);
    spec->act = read_act(r, "hidden_act", "silu");
    spec->gated = true;
    spec->tied_head = read_bool(r, "tie_word_embeddings", family->tied_head);
    spec->init_std = read_f64(r, "initializer_range", 0.02);
    read_padding(r, family, spec);
}

static void read_decoder(struct reader *r, const struct family *family, struct pf_model_spec *spec)
{
    read_body(r, family, spec);
    read_heads(r, family, spec);
    read_rope(r, family, spec->head_dim, spec);
    if (spec->head_dim > 0) {
        spec->attention_scale = 1.0 / sqrt((double)spec->head_dim);
    }
}

static void set_attention_bias(struct pf_model_spec *spec, bool bias)
{
    spec->q_bias = spec->k_bias = spec->v_bias = spec->o_bias = bias;
}

/* Every layer must see the whole past. window_needs_switch: sliding_window counts only if
 * use_sliding_window is true. */
static void refuse_windows(struct reader *r, bool window_needs_switch)
{
    const struct pf_json *const use = present(r->config, "use_sliding_window");
    const struct pf_json *const window = pf_json_get(r->config, "sliding_window");
    const struct pf_json *const layers = present(r->config, "layer_types");

    if (window_needs_switch && read_bool(r, "use_sliding_window", false) &&
        !(window && pf_json_type(window) == PF_JSON_NULL)) {
        refuse(r, use, "asks for sliding windows");
    }
    if (!window_needs_switch && window && pf_json_type(window) != PF_JSON_NULL) {
        refuse(r, window, "asks for sliding windows");
    }
    for (size_t i = 0; i < n_children(layers); i++) {
        const char *const kind = value_string(r, pf_json_child(layers, i), "full_attention");
        if (strcmp(kind, "full_attention") != 0) {
            refuse(r, pf_json_child(layers, i), "is another kind of layer than 'full_attention'");
        }
    }
}

/* Families ------------------------------------------------------------------------------------- */

static void refuse_true(struct reader *r, const char *key, const char *what)
{
    if (read_bool(r, key, false)) {
        refuse(r, pf_json_get(r->config, key), what);
    }
}

/* reorder_and_upcast_attn is not looked at: it asks for fp32 scores under mixed precision, which is
 * how pf always computes them. */
static void read_gpt2_attention(struct reader *r, struct pf_model_spec *spec)
{
    spec->n_kv_heads = spec->n_heads;
    derive_head_dim(r, "n_embd", "n_head", spec);
    spec->fused_qkv = spec->linear_in_out = spec->learned_positions = true;
    set_attention_bias(spec, true);
    spec->attention_scale = 1.0;
    if (read_bool(r, "scale_attn_weights", true) && spec->head_dim > 0) {
        spec->attention_scale = 1.0 / sqrt((double)spec->head_dim);
    }
    refuse_true(r, "scale_attn_by_inverse_layer_idx", "scales the scores by layer");
    refuse_true(r, "add_cross_attention", "adds an encoder");
}

static void read_gpt2(struct reader *r, const struct family *family, struct pf_model_spec *spec)
{
    const struct pf_json *const positions =
        present_as(r->config, "n_positions", "max_position_embeddings");

    spec->vocab_size = need_i64(r, "vocab_size", NULL);
    spec->hidden = need_i64(r, "n_embd", "hidden_size");
    spec->n_layers = need_i64(r, "n_layer", "num_hidden_layers");
    spec->n_heads = need_i64(r, "n_head", "num_attention_heads");
    spec->ffn = value_i64(r, present(r->config, "n_inner"), 4 * spec->hidden);
    spec->max_positions = value_i64(r, positions, family->max_positions);
    spec->norm = PF_NORM_LAYER;
    spec->norm_eps = read_f64(r, "layer_norm_epsilon", family->norm_eps);
    spec->act = read_act(r, "activation_function", "gelu_new");
    spec->mlp_bias = true;
    spec->tied_head = read_bool(r, "tie_word_embeddings", family->tied_head);
    spec->init_std = read_f64(r, "initializer_range", 0.02);
    spec->embed_dropout = read_f64(r, "embd_pdrop", 0.1);
    spec->attention_dropout = read_f64(r, "attn_pdrop", 0.1);
    spec->residual_dropout = read_f64(r, "resid_pdrop", 0.1);
    spec->padding_id = -1;
    read_gpt2_attention(r, spec);
}

static void read_llama(struct reader *r, const struct family *family, struct pf_model_spec *spec)
{
    read_decoder(r, family, spec);
    set_attention_bias(spec, read_bool(r, "attention_bias", false));
    spec->mlp_bias = read_bool(r, "mlp_bias", false);
    spec->attention_dropout = read_f64(r, "attention_dropout", 0.0);
}

static void read_qwen2(struct reader *r, const struct family *family, struct pf_model_spec *spec)
{
    read_decoder(r, family, spec);
    spec->q_bias = spec->k_bias = spec->v_bias = true;
    spec->attention_dropout = read_f64(r, "attention_dropout", 0.0);
    refuse_windows(r, true);
}

static void read_qwen3(struct reader *r, const struct family *family, struct pf_model_spec *spec)
{
    read_decoder(r, family, spec);
    set_attention_bias(spec, read_bool(r, "attention_bias", false));
    spec->qk_norm = true;
    spec->attention_dropout = read_f64(r, "attention_dropout", 0.0);
    refuse_windows(r, true);
}

/* The class has no dropout, and its head no bias (that of ernie4_5_moe has). */
static void read_ernie(struct reader *r, const struct family *family, struct pf_model_spec *spec)
{
    const bool bias = read_bool(r, "use_bias", false);

    read_decoder(r, family, spec);
    spec->rope.pairs_adjacent = true;
    set_attention_bias(spec, bias);
    spec->mlp_bias = bias;
}

/* Layers in range of the spec's flags; another count is refused by pf_spec_check. */
static int64_t n_flagged(const struct pf_model_spec *spec)
{
    return spec->n_layers < PF_SPEC_MAX_LAYERS ? spec->n_layers : PF_SPEC_MAX_LAYERS;
}

static void set_moe(struct reader *r, struct pf_model_spec *spec)
{
    spec->moe.n_groups = spec->moe.top_groups = 1;
    spec->moe.score = PF_ROUTER_SOFTMAX;
    spec->moe.normalise_top_k = true;
    spec->moe.scaling_factor = 1.0;
    spec->moe.aux_loss_coef = read_f64(r, "router_aux_loss_coef", 0.001);
}

static void read_mixtral(struct reader *r, const struct family *family, struct pf_model_spec *spec)
{
    read_decoder(r, family, spec);
    spec->attention_dropout = read_f64(r, "attention_dropout", 0.0);
    refuse_windows(r, false);
    set_moe(r, spec);
    spec->moe.n_experts = need_i64(r, "num_local_experts", "num_experts");
    spec->moe.top_k = need_i64(r, "num_experts_per_tok", NULL);
    spec->moe.expert_ffn = spec->ffn;
    for (int64_t i = 0; i < n_flagged(spec); i++) {
        spec->moe.layer_is_moe[i] = 1;
    }
    if (read_f64(r, "router_jitter_noise", 0.0) != 0.0) {
        refuse(r, pf_json_get(r->config, "router_jitter_noise"), "adds noise to the router");
    }
}

static void read_qwen3_moe_layers(struct reader *r, struct pf_model_spec *spec)
{
    const struct pf_json *const dense = present(r->config, "mlp_only_layers");
    const int64_t step = read_i64(r, "decoder_sparse_step", 1);

    if (!r->err && step < 1) {
        r->err = pf_fail(PF_EINVAL, "'decoder_sparse_step' is %lld, must be at least 1",
                         (long long)step);
    }
    for (int64_t i = 0; i < n_flagged(spec) && !r->err; i++) {
        spec->moe.layer_is_moe[i] = (i + 1) % step == 0;
    }
    for (size_t i = 0; i < n_children(dense); i++) {
        const int64_t layer = value_i64(r, pf_json_child(dense, i), -1);
        if (layer >= 0 && layer < n_flagged(spec)) {
            spec->moe.layer_is_moe[layer] = 0;
        }
    }
}

static void read_qwen3_moe(struct reader *r, const struct family *family,
                           struct pf_model_spec *spec)
{
    read_qwen3(r, family, spec);
    set_moe(r, spec);
    spec->moe.n_experts = need_i64(r, "num_experts", "num_local_experts");
    spec->moe.top_k = need_i64(r, "num_experts_per_tok", NULL);
    spec->moe.expert_ffn = need_i64(r, "moe_intermediate_size", NULL);
    spec->moe.normalise_top_k = read_bool(r, "norm_topk_prob", false);
    read_qwen3_moe_layers(r, spec);
}

/* A latent is turned into heads of a part without and a part with positions; only the latter turns.
 * yarn also sharpens the softmax: Source: yarn_apply_mscale of modeling_deepseek_v3.py. */
static void read_latent_attention(struct reader *r, const struct family *family,
                                  struct pf_model_spec *spec)
{
    struct pf_mla_spec *const mla = &spec->mla;

    spec->n_heads = need_i64(r, "num_attention_heads", NULL);
    spec->n_kv_heads = read_i64(r, "num_key_value_heads", spec->n_heads);
    if (!pf_json_get(r->config, "q_lora_rank")) {
        missing(r, r->config, "q_lora_rank"); /* null is an answer: no latent for queries */
    }
    mla->q_rank = read_i64(r, "q_lora_rank", 0);
    mla->kv_rank = need_i64(r, "kv_lora_rank", NULL);
    mla->nope_dim = need_i64(r, "qk_nope_head_dim", NULL);
    mla->rope_dim = need_i64(r, "qk_rope_head_dim", NULL);
    mla->v_dim = need_i64(r, "v_head_dim", NULL);
    spec->head_dim = mla->nope_dim + mla->rope_dim;
    read_rope(r, family, mla->rope_dim, spec);
    spec->rope.pairs_adjacent = read_bool(r, "rope_interleave", true);
    if (spec->head_dim > 0) {
        spec->attention_scale = 1.0 / sqrt((double)spec->head_dim);
    }
    if (spec->rope.mscale_all_dim > 0.0 && spec->rope.factor > 1.0) {
        const double m = 0.1 * spec->rope.mscale_all_dim * log(spec->rope.factor) + 1.0;
        spec->attention_scale *= m * m;
    }
}

static void read_deepseek_experts(struct reader *r, struct pf_model_spec *spec)
{
    struct pf_moe_spec *const moe = &spec->moe;
    const struct pf_json *const scoring = present(r->config, "scoring_func");
    const int64_t first = read_i64(r, "first_k_dense_replace", 3);

    moe->n_experts = need_i64(r, "n_routed_experts", "num_local_experts");
    moe->top_k = need_i64(r, "num_experts_per_tok", NULL);
    moe->expert_ffn = need_i64(r, "moe_intermediate_size", NULL);
    moe->n_shared_experts = read_i64(r, "n_shared_experts", 1);
    moe->n_groups = read_i64(r, "n_group", 8);
    moe->top_groups = read_i64(r, "topk_group", 4);
    moe->score = PF_ROUTER_SIGMOID;
    moe->normalise_top_k = read_bool(r, "norm_topk_prob", true);
    moe->correction_bias = true;
    moe->scaling_factor = read_f64(r, "routed_scaling_factor", 2.5);
    moe->normalise_floor = 1e-20;
    for (int64_t i = 0; i < n_flagged(spec); i++) {
        moe->layer_is_moe[i] = i >= first;
    }
    if (strcmp(value_string(r, scoring, "sigmoid"), "sigmoid") != 0) {
        refuse(r, scoring, "is another score than 'sigmoid'");
    }
}

/* attention_bias concerns the projections into the latents and out of the heads. */
static void read_deepseek(struct reader *r, const struct family *family, struct pf_model_spec *spec)
{
    read_body(r, family, spec);
    read_latent_attention(r, family, spec);
    spec->q_bias = spec->k_bias = spec->o_bias = read_bool(r, "attention_bias", false);
    spec->attention_dropout = read_f64(r, "attention_dropout", 0.0);
    read_deepseek_experts(r, spec);
}

static void read_ernie_moe_layers(struct reader *r, struct pf_model_spec *spec)
{
    const int64_t first = read_i64(r, "moe_layer_start_index", 1);
    const int64_t interval = read_i64(r, "moe_layer_interval", 1);
    int64_t last = read_i64(r, "moe_layer_end_index", -1);

    last = last == -1 ? spec->n_layers - 1 : last;
    if (!r->err && interval < 1) {
        r->err = pf_fail(PF_EINVAL, "'moe_layer_interval' is %lld, must be at least 1",
                         (long long)interval);
    }
    for (int64_t i = 0; i < n_flagged(spec) && !r->err; i++) {
        spec->moe.layer_is_moe[i] = (i + 1) % interval == 0 && i >= first && i <= last;
    }
}

static void read_ernie_moe(struct reader *r, const struct family *family,
                           struct pf_model_spec *spec)
{
    struct pf_moe_spec *const moe = &spec->moe;

    read_ernie(r, family, spec);
    spec->head_bias = spec->mlp_bias;
    set_moe(r, spec);
    moe->n_experts = need_i64(r, "moe_num_experts", "num_experts");
    moe->top_k = need_i64(r, "moe_k", "num_experts_per_tok");
    moe->expert_ffn = need_i64(r, "moe_intermediate_size", NULL);
    moe->n_shared_experts = read_i64(r, "moe_num_shared_experts", 2);
    moe->correction_bias = true;
    moe->normalise_floor = read_f64(r, "moe_norm_min", 1e-12);
    read_ernie_moe_layers(r, spec);
}

/* The front ------------------------------------------------------------------------------------ */

static int fail_unknown(const char *model_type, const struct pf_json *config)
{
    struct pf_str known;

    pf_str_init(&known);
    for (int f = 0; f < PF_FAMILY_COUNT; f++) {
        pf_str_append(&known, f > 0 ? ", " : "");
        pf_str_append(&known, pf_family_name((enum pf_family)f));
    }
    pf_fail(PF_ENOTSUP, "unknown model_type '%s' in '%s' (known: %s)", model_type,
            pf_json_name(config), known.text);
    pf_str_release(&known);
    return PF_ENOTSUP;
}

static int find_family(struct reader *r, enum pf_family *family_out)
{
    const struct pf_json *const node = present(r->config, "model_type");
    const char *const name = value_string(r, node, "");

    if (!node) {
        missing(r, r->config, "model_type");
    }
    if (r->err) {
        return r->err;
    }
    for (int f = 0; f < PF_FAMILY_COUNT; f++) {
        if (strcmp(name, pf_family_name((enum pf_family)f)) == 0) {
            *family_out = (enum pf_family)f;
            return 0;
        }
    }
    return fail_unknown(name, r->config);
}

int pf_family_read_config(const struct pf_json *config, struct pf_model_spec *spec_out)
{
    struct reader r = {.config = config};
    struct pf_model_spec spec;
    enum pf_family family = PF_FAMILY_LLAMA;

    PF_TRY(pf_json_expect(config, PF_JSON_OBJECT));
    PF_TRY(find_family(&r, &family));
    memset(&spec, 0, sizeof spec); /* padding too: specs are compared as bytes */
    spec.family = family;
    families[family].read(&r, &families[family], &spec);
    PF_TRY(r.err);
    PF_TRY(pf_spec_check(&spec));
    memcpy(spec_out, &spec, sizeof spec);
    return 0;
}
