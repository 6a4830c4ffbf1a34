/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.h - the tensor table: one row for each logical tensor of a model, made by one pure function
 * from (spec, mesh). What a rank allocates, what the optimizer updates, what decays, how a gradient is
 * reduced, what a checkpoint piece is called are all read off these rows and decided nowhere else.
 * A model family adds rows, a parallel mode adds a way to cut; no third place changes.
 *
 * The decoder also reads it: a layer has a q bias exactly if the table has a row for that slot.
 *
 * Rows stand in the order of the model (embedding, layers from the first, final norm, head); this is
 * also the order of the fused buffers. A tied head has a row of its own with tied_to set: it owns no
 * storage, but a gradient accumulator (the sum of both uses is formed once, in this order: embedding
 * use, then head use).
 *
 *     struct pf_table *t;
 *     PF_TRY(pf_table_new(&spec, &mesh, &t));
 *     const struct pf_tensor_row *q = pf_table_find(t, 3, PF_SLOT_Q_W);    NULL: the model has none
 *     pf_table_free(t);
 *
 * All functions local, thread-safe on a const table.
 */
#ifndef PF_TABLE_H
#define PF_TABLE_H

#include <pf/box.h>
#include <pf/dtype.h>
#include <pf/mesh.h>
#include <pf/spec.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a tensor is for. The decoder asks by (layer, slot). */
enum pf_slot {
    PF_SLOT_EMBED,
    PF_SLOT_POS_EMBED,
    PF_SLOT_NORM1_W, /* before attention */
    PF_SLOT_NORM1_B,
    PF_SLOT_QKV_W, /* fused: q, k, v blocks side by side along the output dimension */
    PF_SLOT_QKV_B,
    PF_SLOT_Q_W,
    PF_SLOT_Q_B,
    PF_SLOT_K_W,
    PF_SLOT_K_B,
    PF_SLOT_V_W,
    PF_SLOT_V_B,
    PF_SLOT_Q_NORM_W,
    PF_SLOT_K_NORM_W,
    PF_SLOT_O_W,
    PF_SLOT_O_B,
    PF_SLOT_NORM2_W, /* before the feed-forward part */
    PF_SLOT_NORM2_B,
    PF_SLOT_GATE_W,
    PF_SLOT_GATE_B,
    PF_SLOT_UP_W, /* also the only input projection where the feed-forward part is not gated */
    PF_SLOT_UP_B,
    PF_SLOT_DOWN_W,
    PF_SLOT_DOWN_B,
    PF_SLOT_FINAL_NORM_W,
    PF_SLOT_FINAL_NORM_B,
    PF_SLOT_HEAD_W,
    PF_SLOT_HEAD_B,
    PF_SLOT_COUNT
};

enum pf_init_kind { PF_INIT_NORMAL, PF_INIT_ZEROS, PF_INIT_ONES };

/* How one dimension is cut over an axis of the mesh. */
enum pf_cut_view {
    PF_CUT_NONE,
    PF_CUT_BLOCK,    /* equal contiguous blocks */
    PF_CUT_KV_HEADS, /* whole key/value heads; replicated when there are more ranks than heads */
    PF_CUT_QKV,      /* fused q, k, v blocks, each cut by heads */
    PF_CUT_VOCAB,    /* rows of the vocabulary, padded to a multiple of the degree */
};

struct pf_cut {
    enum pf_cut_view view;
    enum pf_axis axis;
};

#define PF_TENSOR_NAME_MAX 128
#define PF_TENSOR_MAX_DIMS 4

struct pf_tensor_row {
    char name[PF_TENSOR_NAME_MAX]; /* the Hugging Face name */
    enum pf_slot slot;
    int layer;  /* -1: outside the layers */
    int expert; /* -1: not an expert's */
    int n_dims;
    int64_t shape[PF_TENSOR_MAX_DIMS]; /* global, unpadded, as the Hugging Face file has it */
    struct pf_cut cut[PF_TENSOR_MAX_DIMS];
    bool in_out;     /* a linear weight stored [in, out] */
    int tied_to;     /* row index whose storage this row uses, or -1 */
    bool no_decay;   /* fewer than two dimensions */
    bool keep_fp32;  /* never stored in a narrower dtype */
    bool frozen;     /* no gradient, no update (config key freeze) */
    enum pf_init_kind init;
    double init_std;
};

struct pf_table {
    int64_t n_rows;
    struct pf_tensor_row *rows;
    struct pf_mesh mesh;
};

/*
 * Build the table of a model. Returns 0; PF_EINVAL naming the constraint when the spec is impossible
 * (heads not divisible by kv heads, hidden by heads where head_dim is derived, ...); PF_ENOTSUP for a
 * family or an axis that this build does not train yet (it names it); PF_ENOMEM.
 * Initialisation as transformers: normal(0, init_std) for matrices and embeddings, zeros for biases,
 * ones for norms; gpt2's c_proj weights have init_std / sqrt(2 * n_layers).
 */
int pf_table_new(const struct pf_model_spec *spec, const struct pf_mesh *mesh,
                 struct pf_table **table_out);
void pf_table_free(struct pf_table *table);

/* The row of (layer, slot), layer -1 outside the layers; NULL if the model has none. */
const struct pf_tensor_row *pf_table_find(const struct pf_table *table, int layer,
                                          enum pf_slot slot);

/* The row with this name, NULL if none. */
const struct pf_tensor_row *pf_table_find_name(const struct pf_table *table, const char *name);

/* Elements of a row's global tensor. */
int64_t pf_tensor_row_count(const struct pf_tensor_row *row);

/*
 * The part of a row's tensor that a rank holds, in logical coordinates: one box for plain blocks,
 * several for fused views. boxes_out has room for PF_TABLE_MAX_BOXES. Returns how many (0: the rank
 * holds nothing of it).
 */
#define PF_TABLE_MAX_BOXES 4
int pf_table_local_boxes(const struct pf_table *table, const struct pf_tensor_row *row, int rank,
                         struct pf_box boxes_out[PF_TABLE_MAX_BOXES]);

/* Mark rows whose name matches a glob of the list as frozen. Returns how many rows each glob met in
 * n_met_out[i] (NULL: do not tell). */
int pf_table_freeze(struct pf_table *table, const char *const *globs, int n_globs, int *n_met_out);

/* Set no_decay from globs instead of the default (weight_decay_exclude). */
int pf_table_exclude_decay(struct pf_table *table, const char *const *globs, int n_globs,
                           int *n_met_out);

/*
 * Where each row lies in this rank's fused buffers, in elements from their start. Every tensor
 * starts at a multiple of PF_LAYOUT_ALIGN elements, so that offsets (and the bits of libraries that
 * care) do not depend on neighbours.
 */
#define PF_LAYOUT_ALIGN 16
struct pf_layout {
    int64_t n_rows;
    int64_t *param_at; /* [n_rows]; a tied row has its owner's */
    int64_t *grad_at;  /* [n_rows]; a tied row has its own; -1: frozen */
    int64_t *count;    /* [n_rows] local elements */
    int64_t param_elements; /* whole buffer, padding included */
    int64_t grad_elements;
    int64_t grad_reduced_elements; /* the leading part that is reduced and stepped; the accumulators
                                      of tied rows lie behind it and are folded in first */
};
int pf_layout_new(const struct pf_table *table, int rank, struct pf_layout **layout_out);
void pf_layout_free(struct pf_layout *layout);

#endif
