/* SPDX-License-Identifier: Apache-2.0 */
/* dnnl.c - oneDNN behind the op registry; the only file that names dnnl.h. */
#include "ops_internal.h"

#include <dnnl.h>

#include <stdio.h>

const struct pf_kernel_row pf_kernels_dnnl[] = {{.variant = ""}};
const size_t pf_kernels_dnnl_n = 0;

int pf_dnnl_open(int n_threads, const char *isa, void **library_out)
{
    (void)n_threads;
    (void)isa;
    *library_out = NULL;
    return 0;
}

void pf_dnnl_close(void *library)
{
    (void)library;
}

const char *pf_dnnl_version(void)
{
    static char text[64];
    const dnnl_version_t *v = dnnl_version();

    (void)snprintf(text, sizeof text, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    return text;
}
