/* SPDX-License-Identifier: Apache-2.0 */
/*
 * limits.h - how fast this processor could be at best: what a measured rate is a percentage of.
 *
 * Two limits matter to kernels. Arithmetic: multiply-adds on registers alone, nothing loaded or
 * stored, enough of them in flight to hide their latency. Memory: the streaming triad a = b + s*c
 * over arrays that no cache holds, written past the caches where the instruction set can. Both are
 * measured, because neither follows from a data sheet on a virtual machine, and in the same run as
 * what they are compared with, because such machines change from minute to minute.
 *
 *     struct pf_limits limits = {0};
 *     PF_TRY(pf_limits_measure(2, "avx512", &limits));
 *     ... measure something ...
 *     PF_TRY(pf_limits_measure(2, "avx512", &limits));      // keeps the better of both
 *     percent = 100 * rate / limits.f32_flops;
 *
 * Source: the triad is that of McCalpin's STREAM; its bytes are counted as there: two reads and one
 * write an element. All functions are local.
 */
#ifndef PF_LIMITS_H
#define PF_LIMITS_H

#include <pf/dtype.h>

struct pf_limits {
    double f32_flops;         /* per second, a multiply-add is two; 0: not measured */
    double bf16_flops;        /* the dot product of bf16 pairs into fp32; 0: this CPU has none */
    double triad_bytes;       /* per second */
    double copy_bytes;        /* per second, read and written bytes both counted */
    double triad_array_bytes; /* size of each array */
};

/*
 * Measure with n_threads threads and no instruction set above isa (a name of pf/ops.h, such as "avx512bf16"),
 * and raise each field of *limits_inout that was beaten. Takes some tenths of a second and three
 * arrays of the size of the last level cache (at least 32 MiB each), freed again. Errors: PF_EUSAGE for an unknown isa,
 * PF_EINVAL for a thread count below 1, PF_ENOMEM.
 */
int pf_limits_measure(int n_threads, const char *isa, struct pf_limits *limits_inout);

/* The arithmetic limit of a product of this dtype with fp32 sums: the better of its own instruction
 * and of fp32's after unpacking. */
double pf_limits_flops(const struct pf_limits *limits, enum pf_dtype dtype);

/* Bytes of the last level cache that this thread's CPU can use, 32 MiB where the system does not say.
 * From sysfs where there is one: sysconf(_SC_LEVEL3_CACHE_SIZE) counts all caches of an AMD package. */
double pf_limits_cache_bytes(void);

#endif
