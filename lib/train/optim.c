/* SPDX-License-Identifier: Apache-2.0 */
/* The norm of a gradient as an exact sum, and AdamW over the fused buffers. */
#include "train_internal.h"

#include <pf/error.h>
#include <pf/mem.h>

#include <math.h>

/* Elements between two looks at the accumulators' thread: large, so that merging costs nothing. */
#define NORM_BLOCK ((int64_t)1 << 16)

/* Sum of squares of this rank's share. Threads take blocks; exactness makes their order irrelevant. */
static void sum_squares(const float *x, int64_t n, int n_threads, struct pf_exactsum *sum)
{
    const int64_t n_blocks = (n + NORM_BLOCK - 1) / NORM_BLOCK;

    pf_exactsum_init(sum);
#pragma omp parallel num_threads(n_threads)
    {
        struct pf_exactsum mine;
        pf_exactsum_init(&mine);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < n_blocks; i++) {
            const int64_t at = i * NORM_BLOCK, left = n - at;
            pf_exactsum_add_squares_f32(&mine, x + at,
                                        (size_t)(left < NORM_BLOCK ? left : NORM_BLOCK));
        }
#pragma omp critical(pf_train_norm)
        pf_exactsum_merge(sum, &mine);
    }
}

/* Does this rank count a row, of which others have copies? */
static bool counts(const struct pf_trainer *t, int64_t i)
{
    const struct pf_tensor_row *const row = &t->table->rows[i];
    struct pf_shard_list list = {0};
    (void)row;
    (void)list;
    return t->layout->grad_at[i] >= 0 && row->tied_to < 0;
}

int train_grad_norm(struct pf_trainer *t, double scale, double *norm_out)
{
    struct pf_exactsum sum, one;
    pf_exactsum_init(&sum);
    const int tp = t->groups.coord[PF_AXIS_TP], n_tp = t->par.degree[PF_AXIS_TP];
    for (int64_t i = 0; i < t->table->n_rows; i++) {
        const struct pf_tensor_row *row = &t->table->rows[i];
        bool cut = false;
        for (int d = 0; d < row->n_dims; d++)
            cut = cut || row->cut[d].view != PF_CUT_NONE;
        int share = cut ? pf_model_grad_ranks(t->table, row, n_tp, false) : n_tp;
        if (!counts(t, i) || tp % share != 0)
            continue;
        if (row->slot == PF_SLOT_EMBED && t->groups.stage > 0)
            continue;
        sum_squares(t->grads + t->layout->grad_at[i], t->layout->count[i], pf_ops_threads(t->ops),
                    &one);
        pf_exactsum_merge(&sum, &one);
    }
    pf_exactsum_normalise(&sum);
    PF_TRY(
        pf_comm_all_reduce(t->groups.state, &sum, PF_EXACTSUM_N_WORDS, PF_COMM_I64, PF_COMM_SUM));
    *norm_out = sqrt(pf_exactsum_round(&sum)) * scale;
    return 0;
}

int train_update(struct pf_trainer *t, double lr, double grad_scale)
{
    const struct pf_config *const c = t->config;
    const double step = (double)t->updates; /* this one counted, from 1 */
    const double bias1 = 1 - pow(c->adam_beta1, step), bias2 = 1 - pow(c->adam_beta2, step);

    for (int64_t i = 0; i < t->table->n_rows; i++) {
        const struct pf_tensor_row *const row = &t->table->rows[i];
        const int64_t p = t->layout->param_at[i], g = t->layout->grad_at[i];
        if (row->tied_to >= 0 || g < 0) {
            continue;
        }
        const double decay = row->no_decay ? 0 : c->weight_decay;
        const struct pf_adamw_args args = {.n = t->layout->count[i],
                                           .grad_scale = (float)grad_scale,
                                           .decay_factor = (float)(1 - lr * decay),
                                           .beta2 = (float)c->adam_beta2,
                                           .one_minus_beta1 = (float)(1 - c->adam_beta1),
                                           .one_minus_beta2 = (float)(1 - c->adam_beta2),
                                           .eps = (float)c->adam_epsilon,
                                           .step_size = (float)(lr / bias1),
                                           .inv_sqrt_bias2 = (float)(1 / sqrt(bias2)),
                                           .grad = t->grads + g,
                                           .param = t->master + p,
                                           .moment1 = t->moment1 + g,
                                           .moment2 = t->moment2 + g,
                                           .weight_out = t->narrow ? t->narrow + p : NULL};
        PF_TRY(pf_op_adamw(t->ops, c->dtype, &args));
    }
    return 0;
}
