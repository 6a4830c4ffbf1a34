/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/table.h>

#include <pf/error.h>
#include <pf/mem.h>
#include <pf/str.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A dimension has a meaning, and the meaning decides its size and how it may be cut. */
enum dim {
    DIM_ONE,
    DIM_HIDDEN,
    DIM_VOCAB,
    DIM_POSITION,
    DIM_QUERY,
    DIM_KEY,
    DIM_QKV,
    DIM_HEAD,
    DIM_VALUE,       /* what all heads give to the output projection */
    DIM_Q_LATENT,    /* latent attention: of the queries */
    DIM_KV_LATENT,   /* of keys and values */
    DIM_KV_LATENT_R, /* the same, and the rotated part of the key that all heads share */
    DIM_KEY_VALUE,   /* each head's key part without positions, and its value */
    DIM_FFN,
    DIM_EXPERTS,
    DIM_EXPERT_FFN,
    DIM_SHARED_FFN
};

enum kind {
    KIND_EMBED,    /* dims as written */
    KIND_LINEAR,   /* dims {out, in}, turned round where the family stores [in, out] */
    KIND_RESIDUAL, /* a linear that writes into the residual stream */
    KIND_NORM,     /* starts at one */
    KIND_BIAS,     /* starts at zero */
};

/* One kind of row; where the families' names differ, `gpt2` is the odd one out, and other_names has
 * the rest. NULL: no such row. A '#' stands for the number of the expert. */
struct rule {
    enum pf_slot slot;
    const char *gpt2, *others;
    enum kind kind;
    int n_dims;
    enum dim dims[2];
};

static const struct rule before_layers[] = {
    {PF_SLOT_EMBED,
     "transformer.wte.weight",
     "model.embed_tokens.weight",
     KIND_EMBED,
     2,
     {DIM_VOCAB, DIM_HIDDEN}},
    {PF_SLOT_POS_EMBED, "transformer.wpe.weight", NULL, KIND_EMBED, 2, {DIM_POSITION, DIM_HIDDEN}},
};

static const struct rule in_layer[] = {
    {PF_SLOT_NORM1_W, "ln_1.weight", "input_layernorm.weight", KIND_NORM, 1, {DIM_HIDDEN}},
    {PF_SLOT_NORM1_B, "ln_1.bias", "input_layernorm.bias", KIND_BIAS, 1, {DIM_HIDDEN}},
    {PF_SLOT_QKV_W, "attn.c_attn.weight", NULL, KIND_LINEAR, 2, {DIM_QKV, DIM_HIDDEN}},
    {PF_SLOT_QKV_B, "attn.c_attn.bias", NULL, KIND_BIAS, 1, {DIM_QKV}},
    {PF_SLOT_Q_W, NULL, "self_attn.q_proj.weight", KIND_LINEAR, 2, {DIM_QUERY, DIM_HIDDEN}},
    {PF_SLOT_Q_B, NULL, "self_attn.q_proj.bias", KIND_BIAS, 1, {DIM_QUERY}},
    {PF_SLOT_K_W, NULL, "self_attn.k_proj.weight", KIND_LINEAR, 2, {DIM_KEY, DIM_HIDDEN}},
    {PF_SLOT_K_B, NULL, "self_attn.k_proj.bias", KIND_BIAS, 1, {DIM_KEY}},
    {PF_SLOT_V_W, NULL, "self_attn.v_proj.weight", KIND_LINEAR, 2, {DIM_KEY, DIM_HIDDEN}},
    {PF_SLOT_V_B, NULL, "self_attn.v_proj.bias", KIND_BIAS, 1, {DIM_KEY}},
    {PF_SLOT_Q_A_W, NULL, "self_attn.q_a_proj.weight", KIND_LINEAR, 2, {DIM_Q_LATENT, DIM_HIDDEN}},
    {PF_SLOT_Q_A_B, NULL, "self_attn.q_a_proj.bias", KIND_BIAS, 1, {DIM_Q_LATENT}},
    {PF_SLOT_Q_A_NORM_W, NULL, "self_attn.q_a_layernorm.weight", KIND_NORM, 1, {DIM_Q_LATENT}},
    {PF_SLOT_Q_B_W, NULL, "self_attn.q_b_proj.weight", KIND_LINEAR, 2, {DIM_QUERY, DIM_Q_LATENT}},
    {PF_SLOT_KV_A_W,
     NULL,
     "self_attn.kv_a_proj_with_mqa.weight",
     KIND_LINEAR,
     2,
     {DIM_KV_LATENT_R, DIM_HIDDEN}},
    {PF_SLOT_KV_A_B, NULL, "self_attn.kv_a_proj_with_mqa.bias", KIND_BIAS, 1, {DIM_KV_LATENT_R}},
    {PF_SLOT_KV_A_NORM_W, NULL, "self_attn.kv_a_layernorm.weight", KIND_NORM, 1, {DIM_KV_LATENT}},
    {PF_SLOT_KV_B_W,
     NULL,
     "self_attn.kv_b_proj.weight",
     KIND_LINEAR,
     2,
     {DIM_KEY_VALUE, DIM_KV_LATENT}},
    {PF_SLOT_Q_NORM_W, NULL, "self_attn.q_norm.weight", KIND_NORM, 1, {DIM_HEAD}},
    {PF_SLOT_K_NORM_W, NULL, "self_attn.k_norm.weight", KIND_NORM, 1, {DIM_HEAD}},
    {PF_SLOT_O_W,
     "attn.c_proj.weight",
     "self_attn.o_proj.weight",
     KIND_RESIDUAL,
     2,
     {DIM_HIDDEN, DIM_VALUE}},
    {PF_SLOT_O_B, "attn.c_proj.bias", "self_attn.o_proj.bias", KIND_BIAS, 1, {DIM_HIDDEN}},
    {PF_SLOT_NORM2_W, "ln_2.weight", "post_attention_layernorm.weight", KIND_NORM, 1, {DIM_HIDDEN}},
    {PF_SLOT_NORM2_B, "ln_2.bias", "post_attention_layernorm.bias", KIND_BIAS, 1, {DIM_HIDDEN}},
    {PF_SLOT_GATE_W, NULL, "mlp.gate_proj.weight", KIND_LINEAR, 2, {DIM_FFN, DIM_HIDDEN}},
    {PF_SLOT_GATE_B, NULL, "mlp.gate_proj.bias", KIND_BIAS, 1, {DIM_FFN}},
    {PF_SLOT_UP_W, "mlp.c_fc.weight", "mlp.up_proj.weight", KIND_LINEAR, 2, {DIM_FFN, DIM_HIDDEN}},
    {PF_SLOT_UP_B, "mlp.c_fc.bias", "mlp.up_proj.bias", KIND_BIAS, 1, {DIM_FFN}},
    {PF_SLOT_DOWN_W,
     "mlp.c_proj.weight",
     "mlp.down_proj.weight",
     KIND_RESIDUAL,
     2,
     {DIM_HIDDEN, DIM_FFN}},
    {PF_SLOT_DOWN_B, "mlp.c_proj.bias", "mlp.down_proj.bias", KIND_BIAS, 1, {DIM_HIDDEN}},
    {PF_SLOT_ROUTER_W, NULL, "mlp.gate.weight", KIND_LINEAR, 2, {DIM_EXPERTS, DIM_HIDDEN}},
    {PF_SLOT_ROUTER_BIAS, NULL, "mlp.gate.e_score_correction_bias", KIND_BIAS, 1, {DIM_EXPERTS}},
};

/* For each expert of a layer that has them. */
static const struct rule in_expert[] = {
    {PF_SLOT_EXPERT_GATE_W,
     NULL,
     "mlp.experts.#.gate_proj.weight",
     KIND_LINEAR,
     2,
     {DIM_EXPERT_FFN, DIM_HIDDEN}},
    {PF_SLOT_EXPERT_UP_W,
     NULL,
     "mlp.experts.#.up_proj.weight",
     KIND_LINEAR,
     2,
     {DIM_EXPERT_FFN, DIM_HIDDEN}},
    {PF_SLOT_EXPERT_DOWN_W,
     NULL,
     "mlp.experts.#.down_proj.weight",
     KIND_RESIDUAL,
     2,
     {DIM_HIDDEN, DIM_EXPERT_FFN}},
};

/* And behind them, the experts that see every token, as one of their common width. */
static const struct rule shared_experts[] = {
    {PF_SLOT_SHARED_GATE_W,
     NULL,
     "mlp.shared_experts.gate_proj.weight",
     KIND_LINEAR,
     2,
     {DIM_SHARED_FFN, DIM_HIDDEN}},
    {PF_SLOT_SHARED_GATE_B,
     NULL,
     "mlp.shared_experts.gate_proj.bias",
     KIND_BIAS,
     1,
     {DIM_SHARED_FFN}},
    {PF_SLOT_SHARED_UP_W,
     NULL,
     "mlp.shared_experts.up_proj.weight",
     KIND_LINEAR,
     2,
     {DIM_SHARED_FFN, DIM_HIDDEN}},
    {PF_SLOT_SHARED_UP_B, NULL, "mlp.shared_experts.up_proj.bias", KIND_BIAS, 1, {DIM_SHARED_FFN}},
    {PF_SLOT_SHARED_DOWN_W,
     NULL,
     "mlp.shared_experts.down_proj.weight",
     KIND_RESIDUAL,
     2,
     {DIM_HIDDEN, DIM_SHARED_FFN}},
    {PF_SLOT_SHARED_DOWN_B, NULL, "mlp.shared_experts.down_proj.bias", KIND_BIAS, 1, {DIM_HIDDEN}},
};

/* What a family calls otherwise than `others`. */
static const struct {
    enum pf_family family;
    enum pf_slot slot;
    const char *name;
} other_names[] = {
    {PF_FAMILY_MIXTRAL, PF_SLOT_ROUTER_W, "block_sparse_moe.gate.weight"},
    {PF_FAMILY_MIXTRAL, PF_SLOT_EXPERT_GATE_W, "block_sparse_moe.experts.#.w1.weight"},
    {PF_FAMILY_MIXTRAL, PF_SLOT_EXPERT_UP_W, "block_sparse_moe.experts.#.w3.weight"},
    {PF_FAMILY_MIXTRAL, PF_SLOT_EXPERT_DOWN_W, "block_sparse_moe.experts.#.w2.weight"},
    {PF_FAMILY_ERNIE4_5_MOE, PF_SLOT_ROUTER_BIAS, "mlp.moe_statics.e_score_correction_bias"},
};

static const struct rule after_layers[] = {
    {PF_SLOT_FINAL_NORM_W,
     "transformer.ln_f.weight",
     "model.norm.weight",
     KIND_NORM,
     1,
     {DIM_HIDDEN}},
    {PF_SLOT_FINAL_NORM_B, "transformer.ln_f.bias", "model.norm.bias", KIND_BIAS, 1, {DIM_HIDDEN}},
    {PF_SLOT_HEAD_W, "lm_head.weight", "lm_head.weight", KIND_EMBED, 2, {DIM_VOCAB, DIM_HIDDEN}},
    {PF_SLOT_HEAD_B, "lm_head.bias", "lm_head.bias", KIND_BIAS, 1, {DIM_VOCAB}},
};

#define N_OF(array) (int)(sizeof(array) / sizeof((array)[0]))

static bool has_experts(const struct pf_model_spec *spec, int layer)
{
    return layer >= 0 && spec->moe.n_experts > 0 && spec->moe.layer_is_moe[layer];
}

/* Slots of attention: a latent takes the place of keys and values, perhaps of queries too. */
static bool has_attention_row(const struct pf_model_spec *spec, enum pf_slot slot)
{
    const bool latent = spec->mla.kv_rank > 0, q_latent = spec->mla.q_rank > 0;
    const bool apart = !spec->fused_qkv && !latent;

    switch (slot) {
    case PF_SLOT_QKV_W:
        return spec->fused_qkv;
    case PF_SLOT_QKV_B:
        return spec->fused_qkv && spec->q_bias;
    case PF_SLOT_Q_W:
        return apart || (latent && !q_latent);
    case PF_SLOT_K_W:
    case PF_SLOT_V_W:
        return apart;
    case PF_SLOT_Q_B:
        return apart && spec->q_bias;
    case PF_SLOT_K_B:
        return apart && spec->k_bias;
    case PF_SLOT_V_B:
        return apart && spec->v_bias;
    case PF_SLOT_Q_NORM_W:
    case PF_SLOT_K_NORM_W:
        return spec->qk_norm;
    case PF_SLOT_Q_A_W:
    case PF_SLOT_Q_A_NORM_W:
    case PF_SLOT_Q_B_W:
        return latent && q_latent;
    case PF_SLOT_Q_A_B:
        return latent && q_latent && spec->q_bias;
    case PF_SLOT_KV_A_B:
        return latent && spec->k_bias;
    default: /* KV_A_W, KV_A_NORM_W, KV_B_W */
        return latent;
    }
}

/* Slots of the feed-forward part. */
static bool has_ffn_row(const struct pf_model_spec *spec, int layer, enum pf_slot slot)
{
    const bool experts = has_experts(spec, layer);
    const bool shared = experts && spec->moe.n_shared_experts > 0;

    switch (slot) {
    case PF_SLOT_GATE_W:
        return !experts && spec->gated;
    case PF_SLOT_GATE_B:
        return !experts && spec->gated && spec->mlp_bias;
    case PF_SLOT_UP_W:
    case PF_SLOT_DOWN_W:
        return !experts;
    case PF_SLOT_UP_B:
    case PF_SLOT_DOWN_B:
        return !experts && spec->mlp_bias;
    case PF_SLOT_ROUTER_BIAS:
        return experts && spec->moe.correction_bias;
    case PF_SLOT_SHARED_GATE_W:
    case PF_SLOT_SHARED_UP_W:
    case PF_SLOT_SHARED_DOWN_W:
        return shared;
    case PF_SLOT_SHARED_GATE_B:
    case PF_SLOT_SHARED_UP_B:
    case PF_SLOT_SHARED_DOWN_B:
        return shared && spec->mlp_bias;
    default: /* the router and the experts */
        return experts;
    }
}

/* Does a model have this row in this layer? */
static bool has_row(const struct pf_model_spec *spec, int layer, enum pf_slot slot)
{
    if (slot >= PF_SLOT_QKV_W && slot <= PF_SLOT_K_NORM_W) {
        return has_attention_row(spec, slot);
    }
    if (slot >= PF_SLOT_GATE_W && slot <= PF_SLOT_SHARED_DOWN_B) {
        return has_ffn_row(spec, layer, slot);
    }
    switch (slot) {
    case PF_SLOT_POS_EMBED:
        return spec->learned_positions;
    case PF_SLOT_NORM1_B:
    case PF_SLOT_NORM2_B:
    case PF_SLOT_FINAL_NORM_B:
        return spec->norm == PF_NORM_LAYER;
    case PF_SLOT_O_B:
        return spec->o_bias;
    case PF_SLOT_HEAD_B:
        return spec->head_bias;
    default:
        return true;
    }
}

static int64_t dim_size(const struct pf_model_spec *spec, enum dim dim)
{
    switch (dim) {
    case DIM_ONE:
        return 1;
    case DIM_HIDDEN:
        return spec->hidden;
    case DIM_VOCAB:
        return spec->vocab_size;
    case DIM_POSITION:
        return spec->max_positions;
    case DIM_QUERY:
        return spec->n_heads * spec->head_dim;
    case DIM_KEY:
        return spec->n_kv_heads * spec->head_dim;
    case DIM_QKV:
        return (spec->n_heads + 2 * spec->n_kv_heads) * spec->head_dim;
    case DIM_HEAD:
        return spec->head_dim;
    case DIM_VALUE:
        return spec->n_heads * (spec->mla.kv_rank > 0 ? spec->mla.v_dim : spec->head_dim);
    case DIM_Q_LATENT:
        return spec->mla.q_rank;
    case DIM_KV_LATENT:
        return spec->mla.kv_rank;
    case DIM_KV_LATENT_R:
        return spec->mla.kv_rank + spec->mla.rope_dim;
    case DIM_KEY_VALUE:
        return spec->n_heads * (spec->mla.nope_dim + spec->mla.v_dim);
    case DIM_FFN:
        return spec->ffn;
    case DIM_EXPERTS:
        return spec->moe.n_experts;
    case DIM_EXPERT_FFN:
        return spec->moe.expert_ffn;
    case DIM_SHARED_FFN:
        return spec->moe.expert_ffn * spec->moe.n_shared_experts;
    }
    return 0;
}

static struct pf_cut dim_cut(const struct pf_model_spec *spec, enum dim dim)
{
    struct pf_cut cut = {.view = PF_CUT_NONE, .axis = PF_AXIS_TP, .unit = 1};

    switch (dim) {
    case DIM_VOCAB:
        cut.view = PF_CUT_VOCAB;
        break;
    case DIM_QUERY:
        cut.view = PF_CUT_BLOCK;
        cut.unit = spec->head_dim;
        break;
    case DIM_KEY:
        cut.view = PF_CUT_KV_HEADS;
        cut.unit = spec->head_dim;
        break;
    case DIM_QKV:
        cut.view = PF_CUT_QKV;
        cut.unit = spec->head_dim;
        cut.n_q_heads = spec->n_heads;
        break;
    case DIM_VALUE:
    case DIM_KEY_VALUE:
        cut.view = PF_CUT_BLOCK;
        cut.unit = dim_size(spec, dim) / spec->n_heads;
        break;
    case DIM_FFN:
    case DIM_SHARED_FFN:
        cut.view = PF_CUT_BLOCK;
        break;
    default: /* every rank computes with all of it */
        break;
    }
    return cut;
}

static void set_init(const struct pf_model_spec *spec, enum kind kind, struct pf_tensor_row *row)
{
    row->init = kind == KIND_NORM   ? PF_INIT_ONES
                : kind == KIND_BIAS ? PF_INIT_ZEROS
                                    : PF_INIT_NORMAL;
    if (row->init == PF_INIT_NORMAL) {
        row->init_std = spec->init_std;
    }
    if (kind == KIND_RESIDUAL && spec->family == PF_FAMILY_GPT2) {
        row->init_std = spec->init_std / sqrt(2.0 * (double)spec->n_layers);
    }
}

static const char *rule_name(const struct pf_model_spec *spec, const struct rule *rule)
{
    for (int i = 0; i < N_OF(other_names); i++) {
        if (other_names[i].family == spec->family && other_names[i].slot == rule->slot) {
            return other_names[i].name;
        }
    }
    return spec->family == PF_FAMILY_GPT2 ? rule->gpt2 : rule->others;
}

static void set_name(const struct pf_model_spec *spec, const char *name, struct pf_tensor_row *row)
{
    const char *const number = strchr(name, '#');
    const char *const layers = spec->family == PF_FAMILY_GPT2 ? "transformer.h" : "model.layers";

    if (row->layer < 0) {
        snprintf(row->name, sizeof row->name, "%s", name);
    } else if (!number) {
        snprintf(row->name, sizeof row->name, "%s.%d.%s", layers, row->layer, name);
    } else {
        snprintf(row->name, sizeof row->name, "%s.%d.%.*s%d%s", layers, row->layer,
                 (int)(number - name), name, row->expert, number + 1);
    }
}

static void set_shape(const struct pf_model_spec *spec, const struct rule *rule,
                      struct pf_tensor_row *row)
{
    row->n_dims = rule->n_dims;
    for (int d = 0; d < rule->n_dims; d++) {
        const enum dim dim = rule->dims[row->in_out ? rule->n_dims - 1 - d : d];
        row->shape[d] = dim_size(spec, dim);
        row->cut[d] = dim_cut(spec, dim);
    }
    if (rule->slot == PF_SLOT_ROUTER_BIAS && spec->family == PF_FAMILY_ERNIE4_5_MOE) {
        row->n_dims = 2; /* [1, E] */
        row->shape[1] = row->shape[0];
        row->shape[0] = dim_size(spec, DIM_ONE);
        row->cut[1] = row->cut[0];
    }
}

/* The router decides by small differences; its bias follows the load, not the loss. */
static void set_flags(const struct pf_model_spec *spec, const struct rule *rule,
                      struct pf_tensor_row *row)
{
    const bool fp32_router =
        spec->family == PF_FAMILY_DEEPSEEK_V3 || spec->family == PF_FAMILY_ERNIE4_5_MOE;

    row->no_decay = rule->n_dims < 2;
    row->frozen = rule->slot == PF_SLOT_ROUTER_BIAS;
    row->keep_fp32 = row->frozen || (rule->slot == PF_SLOT_ROUTER_W && fp32_router);
}

static void add_row(const struct pf_model_spec *spec, const struct rule *rule, int layer,
                    int expert, struct pf_table *table)
{
    const char *const name = rule_name(spec, rule);
    const bool linear = rule->kind == KIND_LINEAR || rule->kind == KIND_RESIDUAL;

    if (!has_row(spec, layer, rule->slot) || !name) {
        return;
    }
    struct pf_tensor_row *const row = &table->rows[table->n_rows++];
    *row =
        (struct pf_tensor_row){.slot = rule->slot, .layer = layer, .expert = expert, .tied_to = -1};
    row->in_out = linear && spec->linear_in_out;
    set_name(spec, name, row);
    set_shape(spec, rule, row);
    set_flags(spec, rule, row);
    set_init(spec, rule->kind, row);
    if (rule->slot == PF_SLOT_HEAD_W && spec->tied_head) {
        row->tied_to = (int)(pf_table_find(table, -1, PF_SLOT_EMBED) - table->rows);
    }
}

static void add_list(const struct pf_model_spec *spec, const struct rule *rules, int n, int layer,
                     int expert, struct pf_table *table)
{
    for (int i = 0; i < n; i++) {
        add_row(spec, &rules[i], layer, expert, table);
    }
}

static void add_rows(const struct pf_model_spec *spec, struct pf_table *table)
{
    add_list(spec, before_layers, N_OF(before_layers), -1, -1, table);
    for (int layer = 0; layer < (int)spec->n_layers; layer++) {
        const int experts = has_experts(spec, layer) ? (int)spec->moe.n_experts : 0;
        add_list(spec, in_layer, N_OF(in_layer), layer, -1, table);
        for (int e = 0; e < experts; e++) {
            add_list(spec, in_expert, N_OF(in_expert), layer, e, table);
        }
        add_list(spec, shared_experts, N_OF(shared_experts), layer, -1, table);
    }
    add_list(spec, after_layers, N_OF(after_layers), -1, -1, table);
}

/* No fewer than the rows that add_rows adds. */
static size_t count_rows(const struct pf_model_spec *spec)
{
    size_t n = (size_t)(N_OF(before_layers) + N_OF(after_layers));

    for (int layer = 0; layer < (int)spec->n_layers; layer++) {
        n += (size_t)(N_OF(in_layer) + N_OF(shared_experts));
        n += has_experts(spec, layer) ? (size_t)spec->moe.n_experts * (size_t)N_OF(in_expert) : 0;
    }
    return n;
}

int pf_table_new(const struct pf_model_spec *spec, const struct pf_mesh *mesh,
                 struct pf_table **table_out)
{
    PF_TRY(pf_spec_check(spec));
    if (spec->fused_qkv != (spec->family == PF_FAMILY_GPT2)) {
        return pf_fail(PF_ENOTSUP, "%s has no names for its attention weights",
                       pf_family_name(spec->family));
    }
    struct pf_table *const table = pf_alloc(sizeof *table);
    if (!table) {
        return PF_ENOMEM;
    }
    table->mesh = *mesh;
    memcpy(&table->spec, spec, sizeof *spec);
    table->rows = pf_calloc_array(count_rows(spec), sizeof *table->rows);
    if (!table->rows) {
        pf_free(table);
        return PF_ENOMEM;
    }
    add_rows(spec, table);
    *table_out = table;
    return 0;
}

void pf_table_free(struct pf_table *table)
{
    if (table) {
        pf_free(table->rows);
        pf_free(table);
    }
}

const struct pf_tensor_row *pf_table_find(const struct pf_table *table, int layer,
                                          enum pf_slot slot)
{
    for (int64_t i = 0; i < table->n_rows; i++) {
        if (table->rows[i].slot == slot && table->rows[i].layer == layer) {
            return &table->rows[i];
        }
    }
    return NULL;
}

const struct pf_tensor_row *pf_table_find_name(const struct pf_table *table, const char *name)
{
    for (int64_t i = 0; i < table->n_rows; i++) {
        if (strcmp(table->rows[i].name, name) == 0) {
            return &table->rows[i];
        }
    }
    return NULL;
}

int64_t pf_tensor_row_count(const struct pf_tensor_row *row)
{
    int64_t count = 1;

    for (int d = 0; d < row->n_dims; d++) {
        count *= row->shape[d];
    }
    return count;
}

/* Which rows do the globs meet, under their own name or that of a row tied to them? met: [n_rows],
 * zeroed. */
static void match_rows(const struct pf_table *table, const char *const *globs, int n_globs,
                       int *n_met_out, bool *met)
{
    for (int g = 0; g < n_globs; g++) {
        int n = 0;
        for (int64_t i = 0; i < table->n_rows; i++) {
            if (pf_glob_match(globs[g], table->rows[i].name)) {
                met[i] = true;
                n++;
            }
        }
        if (n_met_out) {
            n_met_out[g] = n;
        }
    }
    for (int64_t i = 0; i < table->n_rows; i++) {
        const int owner = table->rows[i].tied_to;
        if (owner >= 0) {
            met[i] = met[owner] = met[i] || met[owner];
        }
    }
}

int pf_table_freeze(struct pf_table *table, const char *const *globs, int n_globs, int *n_met_out)
{
    bool *const met = pf_calloc_array((size_t)table->n_rows, sizeof *met);

    if (!met) {
        return PF_ENOMEM;
    }
    match_rows(table, globs, n_globs, n_met_out, met);
    for (int64_t i = 0; i < table->n_rows; i++) {
        table->rows[i].frozen = table->rows[i].frozen || met[i];
    }
    pf_free(met);
    return 0;
}

int pf_table_exclude_decay(struct pf_table *table, const char *const *globs, int n_globs,
                           int *n_met_out)
{
    bool *const met = pf_calloc_array((size_t)table->n_rows, sizeof *met);

    if (!met) {
        return PF_ENOMEM;
    }
    match_rows(table, globs, n_globs, n_met_out, met);
    for (int64_t i = 0; i < table->n_rows; i++) {
        table->rows[i].no_decay = met[i];
    }
    pf_free(met);
    return 0;
}
