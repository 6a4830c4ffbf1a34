/* SPDX-License-Identifier: Apache-2.0 */
/* table.c - the kernels of one instruction set, as the registry finds them (lib/ops). */
#include <pf/kernel.h>

#define PF_GLUE2(a, b) a##b
#define PF_GLUE(a, b) PF_GLUE2(a, b)
#define PF_ISA_TABLE PF_GLUE(pf_kernels_cpu_, PF_ISA)
#define PF_ISA_COUNT PF_GLUE(PF_ISA_TABLE, _n)

extern const struct pf_kernel_row PF_ISA_TABLE[];
extern const size_t PF_ISA_COUNT;

const struct pf_kernel_row PF_ISA_TABLE[] = {{.variant = ""}};
const size_t PF_ISA_COUNT = 0;
