/* SPDX-License-Identifier: Apache-2.0 */
/* table.c - the kernels of one instruction set and element type, as the registry finds them (lib/ops). */
#include "cpu.h"

#define PF_ISA_TABLE PF_CPU_GLUE(PF_CPU_GLUE(pf_kernels_cpu, PF_ISA), PF_ELEM)
#define PF_ISA_COUNT PF_CPU_GLUE(PF_ISA_TABLE, n)
#define PF_ISA_TEXT2(isa) #isa
#define PF_ISA_TEXT(isa) PF_ISA_TEXT2(isa)

#if defined(__AVX512BF16__)
#define PREFERENCE 35
#elif defined(__AVX512F__)
#define PREFERENCE 30
#elif defined(__AVX2__)
#define PREFERENCE 20
#else
#define PREFERENCE 10
#endif

#define ROW(op, name)                                                                              \
    {                                                                                              \
        op, ELEM_DTYPE, PF_ISA_TEXT(PF_ISA), PREFERENCE, PF_CPU(name)                              \
    }

extern const struct pf_kernel_row PF_ISA_TABLE[];
extern const size_t PF_ISA_COUNT;

const struct pf_kernel_row PF_ISA_TABLE[] = {
    ROW(PF_OP_GEMM, gemm),
    ROW(PF_OP_EMBED_FWD, embed_fwd),
    ROW(PF_OP_EMBED_BWD, embed_bwd),
    ROW(PF_OP_RMSNORM_FWD, rmsnorm_fwd),
    ROW(PF_OP_RMSNORM_BWD, rmsnorm_bwd),
    ROW(PF_OP_LAYERNORM_FWD, layernorm_fwd),
    ROW(PF_OP_LAYERNORM_BWD, layernorm_bwd),
    ROW(PF_OP_ROPE, rope),
    ROW(PF_OP_ATTENTION_FWD, attention_fwd),
    ROW(PF_OP_ATTENTION_BWD, attention_bwd),
    ROW(PF_OP_GLU_FWD, glu_fwd),
    ROW(PF_OP_GLU_BWD, glu_bwd),
    ROW(PF_OP_ACT_FWD, act_fwd),
    ROW(PF_OP_ACT_BWD, act_bwd),
    ROW(PF_OP_BIAS_GRAD, bias_grad),
    ROW(PF_OP_ADD, add),
    ROW(PF_OP_SCALE, scale),
    ROW(PF_OP_DROPOUT, dropout),
    ROW(PF_OP_CROSS_ENTROPY, cross_entropy),
    ROW(PF_OP_VOCAB_CE_FWD, vocab_ce_fwd),
    ROW(PF_OP_VOCAB_CE_BWD, vocab_ce_bwd),
    ROW(PF_OP_ADAMW, adamw),
};
const size_t PF_ISA_COUNT = sizeof PF_ISA_TABLE / sizeof PF_ISA_TABLE[0];
