/* SPDX-License-Identifier: Apache-2.0 */
/* What tensor-parallel ranks exchange inside a layer. */
#include "model_internal.h"

#include <pf/error.h>

static bool is_alone(const struct pf_model *model)
{
    return model->options.n_tp == 1;
}

bool model_is_first(const struct pf_model *model)
{
    return model->options.tp_rank == 0;
}

bool model_shares_rows(const struct pf_model *model)
{
    return !is_alone(model) && model->options.sequence_parallel;
}

static enum pf_comm_dtype comm_dtype(const struct pf_model *model)
{
    return model->dtype == PF_DTYPE_F32    ? PF_COMM_F32
           : model->dtype == PF_DTYPE_BF16 ? PF_COMM_BF16
                                           : PF_COMM_F16;
}

int model_sum(struct pf_model *model, void *x, void **sum_out)
{
    const size_t n = (size_t)(model->dims.n_rows * model->spec->hidden);
    const enum pf_comm_dtype dtype = comm_dtype(model);

    *sum_out = x;
    if (is_alone(model)) {
        return 0;
    }
    if (!model_shares_rows(model)) {
        return pf_comm_all_reduce(model->options.tp, x, n, dtype, PF_COMM_SUM);
    }
    *sum_out = model_at(model, x, model->dims.first_row * model->spec->hidden);
    return pf_comm_reduce_scatter(model->options.tp, x, *sum_out, n, dtype, PF_COMM_SUM);
}

/* A sum in two parts is cut into as many equal slices as there are ranks. */
static size_t slice_of(const struct pf_model *model)
{
    return (size_t)(model->n_tokens * model->spec->hidden) / (size_t)model->options.n_tp;
}

int model_sum_begin(struct pf_model *model, void *x)
{
    if (!model->work.staging) {
        return 0;
    }
    return pf_comm_reduce_scatter_begin(model->options.tp, x, model->work.staging, slice_of(model),
                                        comm_dtype(model), &model->sum);
}

int model_sum_end(struct pf_model *model, void *x, void **sum_out)
{
    const size_t slice = slice_of(model);
    void *const mine = model_at(model, x, (int64_t)slice * model->options.tp_rank);

    if (!model->work.staging) {
        return model_sum(model, x, sum_out);
    }
    PF_TRY(pf_comm_reduce_scatter_end(&model->sum, mine));
    *sum_out = model_shares_rows(model) ? mine : x;
    return model_shares_rows(model)
               ? 0
               : pf_comm_all_gather(model->options.tp, mine, x, slice * model->element);
}

int model_share(struct pf_model *model, const void *x, const void **full_out)
{
    *full_out = x;
    if (!model_shares_rows(model)) {
        return 0;
    }
    *full_out = model->work.full;
    return pf_comm_all_gather(model->options.tp, x, model->work.full,
                              (size_t)(model->dims.n_rows * model->spec->hidden) * model->element);
}

int pf_model_grad_ranks(const struct pf_table *table, const struct pf_tensor_row *row, int n_tp,
                        bool sequence_parallel)
{
    const int64_t n_kv = table->spec.n_kv_heads;

    switch (row->slot) {
    case PF_SLOT_NORM1_W:
    case PF_SLOT_NORM1_B:
    case PF_SLOT_NORM2_W:
    case PF_SLOT_NORM2_B:
    case PF_SLOT_FINAL_NORM_W:
    case PF_SLOT_FINAL_NORM_B:
        return sequence_parallel ? n_tp : 1;
    case PF_SLOT_Q_NORM_W:
    case PF_SLOT_K_NORM_W:
        return n_tp;
    case PF_SLOT_K_W:
    case PF_SLOT_K_B:
    case PF_SLOT_V_W:
    case PF_SLOT_V_B:
        return n_tp > n_kv ? (int)(n_tp / n_kv) : 1;
    default:
        return 1;
    }
}
