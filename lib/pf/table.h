/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.h - the tensor table: one row for each logical tensor of a model, made by one pure function
 * from (spec, mesh). What a rank allocates, what the optimizer updates, what decays, how a gradient
 * is reduced, what a checkpoint piece is called are all read off these rows and decided nowhere
 * else. A model family adds rows, a parallel mode adds a way to cut; no third place changes.
 *
 * The decoder also reads it: a layer has a q bias exactly if the table has a row for that slot.
 *
 * Rows stand in the order of the model (embedding, layers from the first, final norm, head); this
 * is also the order of the fused buffers within a layer. A tied head has a row of its own with tied_to set: it
 * owns no storage, but a gradient accumulator (the sum of both uses is formed once, in this order:
 * embedding use, then head use).
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
    PF_SLOT_Q_A_W, /* latent attention: into the queries' latent, its norm, and out of it */
    PF_SLOT_Q_A_B,
    PF_SLOT_Q_A_NORM_W,
    PF_SLOT_Q_B_W,
    PF_SLOT_KV_A_W, /* into the latent of keys and values, and the shared rotated key */
    PF_SLOT_KV_A_B,
    PF_SLOT_KV_A_NORM_W,
    PF_SLOT_KV_B_W, /* out of it: of each head the key's part, then the value */
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
    PF_SLOT_ROUTER_W,      /* [experts, hidden] */
    PF_SLOT_ROUTER_BIAS,   /* added to scores for the choice alone; no gradient */
    PF_SLOT_EXPERT_GATE_W, /* one row for each expert; expert by expert, these three */
    PF_SLOT_EXPERT_UP_W,
    PF_SLOT_EXPERT_DOWN_W,
    PF_SLOT_SHARED_GATE_W, /* the experts that see every token, side by side */
    PF_SLOT_SHARED_GATE_B,
    PF_SLOT_SHARED_UP_W,
    PF_SLOT_SHARED_UP_B,
    PF_SLOT_SHARED_DOWN_W,
    PF_SLOT_SHARED_DOWN_B,
    PF_SLOT_FINAL_NORM_W,
    PF_SLOT_FINAL_NORM_B,
    PF_SLOT_HEAD_W,
    PF_SLOT_HEAD_B,
    PF_SLOT_COUNT
};

enum pf_init_kind { PF_INIT_NORMAL, PF_INIT_ZEROS, PF_INIT_ONES };

/*
 * How one dimension of n elements is cut over the d ranks of an axis of the mesh; rank coordinate t
 * of the axis gets
 *   NONE        everything, like every other rank
 *   BLOCK       units [t*m/d, (t+1)*m/d) of the m = n / unit (equal blocks where d divides m)
 *   KV_HEADS    the same, whole heads of `unit` elements; with more ranks than heads, the one head
 *               t*m/d: neighbours hold copies of it
 *   QKV         three blocks, q of n_q_heads heads, then k and v of equal size: of q as BLOCK, of k
 *               and v as KV_HEADS (gpt2's c_attn)
 *   QKV_GROUPS  one group for each key head: its query heads, its key head, its value head; blocks
 *               of groups. With more ranks than groups, the ranks of a group share its query heads
 *               as BLOCK and each has a copy of key and value (Megatron's linear_qkv)
 *   GATE_UP     two halves of equal size, gate and up: of each as BLOCK, so that a rank's gate
 *               columns meet its up columns
 *   VOCAB       [t*c, (t+1)*c) with c = ceil(n / d), clipped to n: what is beyond is padding, which
 *               only memory knows
 *   EXPERTS     as BLOCK over the ep coordinate (pf/mesh.h), whatever `axis` says: all experts of a
 *               layer in one tensor
 * Over one rank nothing is cut, whatever the view: the tensor is one box, as it lies in its file.
 * Attention needs a rank's query heads to find their key heads there: that holds exactly when d
 * divides the query heads and either d divides the key heads or they divide d, a constraint for
 * whoever accepts layouts (pf/parallel.h). The arithmetic here works, and covers every element, for
 * any d.
 */
enum pf_cut_view {
    PF_CUT_NONE,
    PF_CUT_BLOCK,
    PF_CUT_KV_HEADS,
    PF_CUT_QKV,
    PF_CUT_QKV_GROUPS,
    PF_CUT_GATE_UP,
    PF_CUT_VOCAB,
    PF_CUT_EXPERTS
};

struct pf_cut {
    enum pf_cut_view view;
    enum pf_axis axis;
    int64_t unit;      /* elements that stay together: the width of a head, or 1 */
    int64_t n_q_heads; /* QKV, QKV_GROUPS */
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
    bool in_out;    /* a linear weight stored [in, out] */
    int tied_to;    /* row index whose storage this row uses, or -1 */
    bool no_decay;  /* fewer than two dimensions */
    bool keep_fp32; /* never stored in a narrower dtype */
    bool frozen;    /* no gradient, no update (config key freeze, a router's bias) */
    enum pf_init_kind init;
    double init_std;
};

struct pf_table {
    int64_t n_rows;
    struct pf_tensor_row *rows;
    struct pf_mesh mesh;
    struct pf_model_spec spec; /* of the model that it is the table of */
};

/*
 * Build the table of a model. The cuts are filled in whatever the degrees are: they say how each
 * dimension would be cut over tp, and pf_table_local_boxes answers for the mesh given. Which
 * layouts this build trains is not decided here.
 *
 * Returns 0; PF_EINVAL when the spec is impossible (pf_spec_check, which see); PF_ENOTSUP where its
 * attention has no names; PF_ENOMEM. Free with pf_table_free. All nine families have tables; which of
 * them a build trains says pf_model_check.
 *
 * Initialisation as transformers: normal(0, init_std) for matrices and embeddings, zeros for
 * biases, ones for norms; gpt2's c_proj weights have init_std / sqrt(2 * n_layers). The embedding's
 * row spec->padding_id starts at zero, which is a property of the spec and not of the row.
 * Source: transformers 5.24.0, PreTrainedModel._init_weights and modeling_gpt2.py.
 *
 * Names and shapes are those of the family's safetensors files, experts one by one: FORMATS.md 2a to
 * 2e. Blocks behind the last layer that predict further tokens have no rows.
 */
int pf_table_new(const struct pf_model_spec *spec, const struct pf_mesh *mesh,
                 struct pf_table **table_out);
void pf_table_free(struct pf_table *table);

/* The row of (layer, slot), layer -1 outside the layers, of the first expert where each has one; NULL
 * if the model has none. Looks through the rows: ask once, outside the step. */
const struct pf_tensor_row *pf_table_find(const struct pf_table *table, int layer,
                                          enum pf_slot slot);

/* The row with this name, NULL if none. */
const struct pf_tensor_row *pf_table_find_name(const struct pf_table *table, const char *name);

/* Elements of a row's global tensor. */
int64_t pf_tensor_row_count(const struct pf_tensor_row *row);

/*
 * The part of a row's tensor that a rank holds, in logical coordinates: one box for plain blocks,
 * several for fused views, in the order in which they lie in the rank's memory. None is empty, none
 * overlap. boxes_out has room for PF_TABLE_MAX_BOXES. Returns how many (0: the rank holds nothing
 * of it). A tied row has the boxes of its owner.
 *
 * The distinct boxes of all ranks tile the tensor; the same box at several ranks is a copy. This
 * looks at the cuts alone: which rows a rank's pipeline stage has, which slice of a sharded state,
 * whose expert a row is, answers pf/placement.h.
 */
#define PF_TABLE_MAX_BOXES 4
int pf_table_local_boxes(const struct pf_table *table, const struct pf_tensor_row *row, int rank,
                         struct pf_box boxes_out[PF_TABLE_MAX_BOXES]);

/*
 * Mark rows whose name matches one of the globs (pf_glob_match) as frozen. A tied row and its owner
 * are one parameter with two names: either name freezes both. n_met_out[i] says how many names glob
 * i met (NULL: do not tell), so that a glob that met nothing can be reported. Returns 0 or
 * PF_ENOMEM.
 */
int pf_table_freeze(struct pf_table *table, const char *const *globs, int n_globs, int *n_met_out);

/* Set no_decay from globs (true where one matches, else false) instead of the default. Names and
 * n_met_out as for pf_table_freeze. Returns 0 or PF_ENOMEM. */
int pf_table_exclude_decay(struct pf_table *table, const char *const *globs, int n_globs,
                           int *n_met_out);

#endif
