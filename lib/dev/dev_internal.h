/* SPDX-License-Identifier: Apache-2.0 */
/* dev_internal.h - the members of the device table. */
#ifndef PF_DEV_INTERNAL_H
#define PF_DEV_INTERNAL_H

#include <pf/dev.h>

/* lib/dev/cpu.c: host memory from pf/mem.h, so that it is counted; everything happens at once. */
extern const struct pf_dev_ops pf_dev_cpu;

#endif
