/* SPDX-License-Identifier: Apache-2.0 */
/* table.c - the reference kernels: every op, for every dtype that training uses. */
#include "ref.h"

extern const struct pf_kernel_row pf_kernels_ref[];
extern const size_t pf_kernels_ref_n;

#define ROWS(op, name)                                                                             \
    {op, PF_DTYPE_F32, "ref", 0, pf_ref_##name##_f32},                                             \
        {op, PF_DTYPE_BF16, "ref", 0, pf_ref_##name##_bf16},                                       \
    {                                                                                              \
        op, PF_DTYPE_F16, "ref", 0, pf_ref_##name##_f16                                            \
    }

const struct pf_kernel_row pf_kernels_ref[] = {
    ROWS(PF_OP_GEMM, gemm),
    ROWS(PF_OP_EMBED_FWD, embed_fwd),
    ROWS(PF_OP_EMBED_BWD, embed_bwd),
    ROWS(PF_OP_RMSNORM_FWD, rmsnorm_fwd),
    ROWS(PF_OP_RMSNORM_BWD, rmsnorm_bwd),
    ROWS(PF_OP_LAYERNORM_FWD, layernorm_fwd),
    ROWS(PF_OP_LAYERNORM_BWD, layernorm_bwd),
    ROWS(PF_OP_ROPE, rope),
    ROWS(PF_OP_ATTENTION_FWD, attention_fwd),
    ROWS(PF_OP_ATTENTION_BWD, attention_bwd),
    ROWS(PF_OP_GLU_FWD, glu_fwd),
    ROWS(PF_OP_GLU_BWD, glu_bwd),
    ROWS(PF_OP_ACT_FWD, act_fwd),
    ROWS(PF_OP_ACT_BWD, act_bwd),
    ROWS(PF_OP_BIAS_GRAD, bias_grad),
    ROWS(PF_OP_ADD, add),
    ROWS(PF_OP_SCALE, scale),
    ROWS(PF_OP_DROPOUT, dropout),
    ROWS(PF_OP_CROSS_ENTROPY, cross_entropy),
    ROWS(PF_OP_VOCAB_CE_FWD, vocab_ce_fwd),
    ROWS(PF_OP_VOCAB_CE_BWD, vocab_ce_bwd),
    ROWS(PF_OP_ADAMW, adamw),
};

const size_t pf_kernels_ref_n = sizeof pf_kernels_ref / sizeof pf_kernels_ref[0];
