/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's part of the model: its chunks of layers, and the sums that make its gradients whole. */
#include "train_internal.h"

#include <pf/error.h>
#include <pf/mem.h>

#include <string.h>

/* Rows whose gradients neighbouring tensor-parallel ranks each have a part of. */
struct grad_sum {
    struct pf_comm *ranks;
    int n_ranks; /* 0: not needed */
    int64_t *rows;
    int64_t n_rows;
};

struct train_part {
    struct pf_model_chunk *chunks;
    int n_chunks;
    struct grad_sum sums[2]; /* over all tensor-parallel ranks; over those with one key head */
    float *packed;           /* [n_packed] */
    int64_t n_packed;
};

int train_stage_chunks(const struct pf_trainer *t, int stage, struct pf_model_chunk *chunks_out)
{
    const int64_t *const starts = pf_placement_starts(t->place);
    const int n = t->par.degree[PF_AXIS_PP] * t->par.vpp;
    int n_mine = 0;

    for (int c = 0; c < n; c++) {
        if (pf_parallel_stage_of(&t->par, c) == stage) {
            chunks_out[n_mine++] = (struct pf_model_chunk){.first_layer = starts[c],
                                                           .end_layer = starts[c + 1],
                                                           .embed = c == 0,
                                                           .head = c == n - 1};
        }
    }
    return n_mine;
}

/* The group of n neighbouring tensor-parallel ranks that this one is in. */
static int neighbours(struct pf_trainer *t, int n, struct pf_comm **group_out)
{
    const int n_ranks = pf_comm_size(t->world);
    int *const part = pf_calloc_array((size_t)n_ranks, sizeof *part);

    if (!part) {
        return PF_ENOMEM;
    }
    for (int r = 0; r < n_ranks; r++) {
        int coord[PF_AXIS_COUNT];
        pf_mesh_coords(&t->table->mesh, r, coord);
        coord[PF_AXIS_TP] -= coord[PF_AXIS_TP] % n;
        part[r] = pf_mesh_rank(&t->table->mesh, coord);
    }
    const int err = pf_comm_partition(t->world, part, "key_heads", group_out);
    pf_free(part);
    return err;
}

/* The groups over which gradients are summed: all tensor-parallel ranks, and those that share a key
 * head. */
static int find_ranks(struct pf_trainer *t, struct train_part *part)
{
    const int n_tp = t->par.degree[PF_AXIS_TP];
    const int shared = n_tp > t->spec.n_kv_heads ? (int)(n_tp / t->spec.n_kv_heads) : 1;

    if (n_tp > 1) {
        part->sums[0] = (struct grad_sum){.ranks = t->groups.tp, .n_ranks = n_tp};
    }
    if (shared > 1 && shared < n_tp) {
        part->sums[1].n_ranks = shared;
        return neighbours(t, shared, &part->sums[1].ranks);
    }
    return 0;
}

static int find_rows(const struct pf_trainer *t, struct grad_sum *sum)
{
    const int n_tp = t->par.degree[PF_AXIS_TP];

    sum->rows = pf_calloc_array((size_t)t->table->n_rows + 1, sizeof *sum->rows);
    if (!sum->rows) {
        return PF_ENOMEM;
    }
    for (int64_t i = 0; i < t->table->n_rows && sum->n_ranks > 0; i++) {
        if (t->layout->grad_at[i] >= 0 && t->table->rows[i].tied_to < 0 &&
            pf_model_grad_ranks(t->table, &t->table->rows[i], n_tp, t->config->sequence_parallel) ==
                sum->n_ranks) {
            sum->rows[sum->n_rows++] = i;
        }
    }
    return 0;
}

static int64_t packed_size(const struct pf_trainer *t, const struct grad_sum *sum)
{
    int64_t n = 0;

    for (int64_t i = 0; i < sum->n_rows; i++) {
        n += t->layout->count[sum->rows[i]];
    }
    return n;
}

int train_part_new(struct pf_trainer *t)
{
    struct train_part *const part = pf_alloc(sizeof *part);

    if (!part) {
        return PF_ENOMEM;
    }
    t->part = part;
    *part = (struct train_part){.n_chunks = t->par.vpp};
    part->chunks = pf_calloc_array((size_t)t->par.vpp, sizeof *part->chunks);
    if (!part->chunks) {
        return PF_ENOMEM;
    }
    part->n_chunks = train_stage_chunks(t, t->groups.stage, part->chunks);
    return train_plans_alone(t) ? 0 : find_ranks(t, part);
}

int train_part_build(struct pf_trainer *t)
{
    struct train_part *const part = t->part;

    for (int s = 0; s < 2; s++) {
        PF_TRY(find_rows(t, &part->sums[s]));
        const int64_t n = packed_size(t, &part->sums[s]);
        part->n_packed = n > part->n_packed ? n : part->n_packed;
    }
    part->packed = pf_calloc_array((size_t)part->n_packed + 1, sizeof *part->packed);
    return part->packed ? 0 : PF_ENOMEM;
}

void train_part_free(struct pf_trainer *t)
{
    struct train_part *const part = t->part;

    if (part) {
        pf_free(part->sums[0].rows);
        pf_free(part->sums[1].rows);
        pf_free(part->packed);
        pf_free(part->chunks);
        pf_free(part);
        t->part = NULL;
    }
}

bool train_has_head(const struct pf_trainer *t, int chunk)
{
    return t->part->chunks[chunk].head;
}

void train_part_options(const struct pf_trainer *t, struct pf_model_options *options)
{
    options->chunks = t->part->chunks;
    options->n_chunks = t->part->n_chunks;
    options->n_tp = t->par.degree[PF_AXIS_TP];
    options->tp_rank = t->groups.coord[PF_AXIS_TP];
    options->tp = options->n_tp > 1 ? t->groups.tp : NULL;
    options->overlap_sums = t->config->sequence_parallel ? t->config->sp_async_reduce_scatter
                                                         : t->config->mp_async_allreduce;
    options->sequence_parallel = options->n_tp > 1 && t->config->sequence_parallel;
}

static int sum_rows(struct pf_trainer *t, const struct grad_sum *sum)
{
    float *const packed = t->part->packed;
    int64_t n = 0;

    for (int64_t i = 0; i < sum->n_rows; i++) {
        const int64_t row = sum->rows[i], count = t->layout->count[row];
        memcpy(packed + n, t->grads + t->layout->grad_at[row], (size_t)count * sizeof *packed);
        n += count;
    }
    if (n == 0) {
        return 0;
    }
    PF_TRY(pf_comm_all_reduce(sum->ranks, packed, (size_t)n, PF_COMM_F32, PF_COMM_SUM));
    n = 0;
    for (int64_t i = 0; i < sum->n_rows; i++) {
        const int64_t row = sum->rows[i], count = t->layout->count[row];
        memcpy(t->grads + t->layout->grad_at[row], packed + n, (size_t)count * sizeof *packed);
        n += count;
    }
    return 0;
}

/* A tied weight kept one accumulator for each use: form their sum, the embedding's use first. */
static int fold_tied(struct pf_trainer *t)
{
    for (int64_t i = 0; i < t->table->n_rows; i++) {
        const int owner = t->table->rows[i].tied_to;
        if (owner < 0 || t->layout->grad_at[owner] < 0) {
            continue;
        }
        float *const sum = t->grads + t->layout->grad_at[owner];
        const int64_t n = t->layout->count[owner];
        if (t->groups.n_stages > 1) {
            /* The two uses lie on the ends of the pipeline. */
            PF_TRY(pf_comm_all_reduce(t->groups.ends, sum, (size_t)n, PF_COMM_F32, PF_COMM_SUM));
        } else {
            const struct pf_add_args args = {
                .n = n, .a = sum, .b = t->grads + t->layout->grad_at[i], .y = sum};
            PF_TRY(pf_op_add(t->ops, PF_DTYPE_F32, &args));
        }
    }
    return 0;
}

int train_reduce_grads(struct pf_trainer *t)
{
    PF_TRY(fold_tied(t));
    PF_TRY(sum_rows(t, &t->part->sums[0]));
    PF_TRY(sum_rows(t, &t->part->sums[1]));
    return pf_comm_all_reduce(t->groups.dense_grads, t->grads,
                              (size_t)t->layout->grad_reduced_elements, PF_COMM_F32, PF_COMM_SUM);
}
