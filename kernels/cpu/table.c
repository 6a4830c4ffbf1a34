/* SPDX-License-Identifier: Apache-2.0 */
/* table.c - the kernels of one instruction set, as the registry finds them (lib/ops). */
#include "cpu.h"

#define PF_ISA_TABLE PF_CPU_GLUE(pf_kernels_cpu, PF_ISA)
#define PF_ISA_COUNT PF_CPU_GLUE(PF_ISA_TABLE, n)
#define PF_ISA_TEXT2(isa) #isa
#define PF_ISA_TEXT(isa) PF_ISA_TEXT2(isa)

#if defined(__AVX512F__)
#define PREFERENCE 30
#elif defined(__AVX2__)
#define PREFERENCE 20
#else
#define PREFERENCE 10
#endif

#define ROW(op, name) {op, PF_DTYPE_F32, PF_ISA_TEXT(PF_ISA), PREFERENCE, PF_CPU(name)}

extern const struct pf_kernel_row PF_ISA_TABLE[];
extern const size_t PF_ISA_COUNT;

const struct pf_kernel_row PF_ISA_TABLE[] = {
    ROW(PF_OP_GEMM, gemm),
};
const size_t PF_ISA_COUNT = sizeof PF_ISA_TABLE / sizeof PF_ISA_TABLE[0];
