/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/table.h>

#include <pf/error.h>
#include <pf/mem.h>
#include <pf/str.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A dimension has a meaning, and the meaning decides its size and how it may be cut. */
enum dim { DIM_HIDDEN, DIM_VOCAB, DIM_POSITION, DIM_QUERY, DIM_KEY, DIM_QKV, DIM_HEAD, DIM_FFN };

enum kind {
    KIND_EMBED,    /* dims as written */
    KIND_LINEAR,   /* dims {out, in}, turned round where the family stores [in, out] */
    KIND_RESIDUAL, /* a linear that writes into the residual stream */
    KIND_NORM,     /* starts at one */
    KIND_BIAS,     /* starts at zero */
};

/* One kind of row; where the families' names differ, `gpt2` is the odd one out. NULL: no such
 * row. */
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
    {PF_SLOT_Q_NORM_W, NULL, "self_attn.q_norm.weight", KIND_NORM, 1, {DIM_HEAD}},
    {PF_SLOT_K_NORM_W, NULL, "self_attn.k_norm.weight", KIND_NORM, 1, {DIM_HEAD}},
    {PF_SLOT_O_W,
     "attn.c_proj.weight",
     "self_attn.o_proj.weight",
     KIND_RESIDUAL,
     2,
     {DIM_HIDDEN, DIM_QUERY}},
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

/* Does a model have this row? */
static bool has_row(const struct pf_model_spec *spec, enum pf_slot slot)
{
    switch (slot) {
    case PF_SLOT_POS_EMBED:
        return spec->learned_positions;
    case PF_SLOT_NORM1_B:
    case PF_SLOT_NORM2_B:
    case PF_SLOT_FINAL_NORM_B:
        return spec->norm == PF_NORM_LAYER;
    case PF_SLOT_QKV_W:
        return spec->fused_qkv;
    case PF_SLOT_QKV_B:
        return spec->fused_qkv && spec->q_bias;
    case PF_SLOT_Q_W:
    case PF_SLOT_K_W:
    case PF_SLOT_V_W:
        return !spec->fused_qkv;
    case PF_SLOT_Q_B:
        return !spec->fused_qkv && spec->q_bias;
    case PF_SLOT_K_B:
        return !spec->fused_qkv && spec->k_bias;
    case PF_SLOT_V_B:
        return !spec->fused_qkv && spec->v_bias;
    case PF_SLOT_Q_NORM_W:
    case PF_SLOT_K_NORM_W:
        return spec->qk_norm;
    case PF_SLOT_O_B:
        return spec->o_bias;
    case PF_SLOT_GATE_W:
        return spec->gated;
    case PF_SLOT_GATE_B:
        return spec->gated && spec->mlp_bias;
    case PF_SLOT_UP_B:
    case PF_SLOT_DOWN_B:
        return spec->mlp_bias;
    case PF_SLOT_HEAD_B:
        return spec->head_bias;
    default:
        return true;
    }
}

static int64_t dim_size(const struct pf_model_spec *spec, enum dim dim)
{
    switch (dim) {
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
    case DIM_FFN:
        return spec->ffn;
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
    case DIM_FFN:
        cut.view = PF_CUT_BLOCK;
        break;
    case DIM_HIDDEN:
    case DIM_POSITION:
    case DIM_HEAD:
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

static void add_row(const struct pf_model_spec *spec, const struct rule *rule, int layer,
                    struct pf_table *table)
{
    const char *const name = spec->family == PF_FAMILY_GPT2 ? rule->gpt2 : rule->others;
    const bool linear = rule->kind == KIND_LINEAR || rule->kind == KIND_RESIDUAL;

    if (!has_row(spec, rule->slot) || !name) {
        return;
    }
    struct pf_tensor_row *const row = &table->rows[table->n_rows++];
    *row = (struct pf_tensor_row){
        .slot = rule->slot, .layer = layer, .expert = -1, .n_dims = rule->n_dims, .tied_to = -1};
    if (layer < 0) {
        snprintf(row->name, sizeof row->name, "%s", name);
    } else {
        snprintf(row->name, sizeof row->name, "%s.%d.%s",
                 spec->family == PF_FAMILY_GPT2 ? "transformer.h" : "model.layers", layer, name);
    }
    row->in_out = linear && spec->linear_in_out;
    for (int d = 0; d < rule->n_dims; d++) {
        const enum dim dim = rule->dims[row->in_out ? rule->n_dims - 1 - d : d];
        row->shape[d] = dim_size(spec, dim);
        row->cut[d] = dim_cut(spec, dim);
    }
    row->no_decay = rule->n_dims < 2;
    set_init(spec, rule->kind, row);
    if (rule->slot == PF_SLOT_HEAD_W && spec->tied_head) {
        row->tied_to = (int)(pf_table_find(table, -1, PF_SLOT_EMBED) - table->rows);
    }
}

static void add_rows(const struct pf_model_spec *spec, struct pf_table *table)
{
    for (int i = 0; i < N_OF(before_layers); i++) {
        add_row(spec, &before_layers[i], -1, table);
    }
    for (int layer = 0; layer < (int)spec->n_layers; layer++) {
        for (int i = 0; i < N_OF(in_layer); i++) {
            add_row(spec, &in_layer[i], layer, table);
        }
    }
    for (int i = 0; i < N_OF(after_layers); i++) {
        add_row(spec, &after_layers[i], -1, table);
    }
}

static int check_trainable(const struct pf_model_spec *spec)
{
    const char *const name = pf_family_name(spec->family);

    if (spec->moe.n_experts > 0) {
        return pf_fail(PF_ENOTSUP, "%s needs experts, which this build does not train yet", name);
    }
    if (spec->mla.kv_rank > 0) {
        return pf_fail(PF_ENOTSUP, "%s needs latent attention, which this build does not train yet",
                       name);
    }
    if (spec->fused_qkv != (spec->family == PF_FAMILY_GPT2)) {
        return pf_fail(PF_ENOTSUP, "%s has no names for its attention weights", name);
    }
    return 0;
}

int pf_table_new(const struct pf_model_spec *spec, const struct pf_mesh *mesh,
                 struct pf_table **table_out)
{
    PF_TRY(pf_spec_check(spec));
    PF_TRY(check_trainable(spec));

    const size_t most = (size_t)(N_OF(before_layers) + N_OF(after_layers)) +
                        (size_t)spec->n_layers * (size_t)N_OF(in_layer);
    struct pf_table *const table = pf_alloc(sizeof *table);
    if (!table) {
        return PF_ENOMEM;
    }
    table->mesh = *mesh;
    memcpy(&table->spec, spec, sizeof *spec);
    table->rows = pf_calloc_array(most, sizeof *table->rows);
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
