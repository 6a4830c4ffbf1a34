/* SPDX-License-Identifier: Apache-2.0 */
/* The limits of the processor: no figure is asserted, for machines differ; only that there are some. */
#include <pf/error.h>
#include <pf/limits.h>
#include <pf/ops.h>

#include "tap.h"

int main(void)
{
    struct pf_limits limits = {0}, again;

    ok(pf_limits_measure(1, pf_ops_best_isa(), &limits) == 0, "limits of this CPU are measured");
    ok(limits.f32_flops > 0 && limits.triad_bytes > 0 && limits.copy_bytes > 0,
       "all are above zero");
    printf("# fp32 %.1f, bf16 %.1f GFLOP/s; triad %.1f, copy %.1f GB/s\n", limits.f32_flops / 1e9,
           limits.bf16_flops / 1e9, limits.triad_bytes / 1e9, limits.copy_bytes / 1e9);
    again = limits;
    again.f32_flops = 1e30;
    ok(pf_limits_measure(1, "generic", &again) == 0 && again.f32_flops >= 1e30 &&
           again.triad_bytes >= limits.triad_bytes,
       "a second measurement keeps what was better");

    const struct pf_limits slow = {.f32_flops = 10, .bf16_flops = 5};
    const struct pf_limits fast = {.f32_flops = 10, .bf16_flops = 20};
    ok(pf_limits_flops(&slow, PF_DTYPE_BF16) >= 10 && pf_limits_flops(&fast, PF_DTYPE_BF16) >= 20 &&
           pf_limits_flops(&fast, PF_DTYPE_F16) <= 10 && pf_limits_flops(&fast, PF_DTYPE_F32) <= 10,
       "the limit of BF16 is the better of its instruction and of fp32 after unpacking");
    ok(pf_limits_cache_bytes() > 0, "the cache has a size");

    ok(pf_limits_measure(1, "sparc", &limits) == PF_EUSAGE,
       "an unknown instruction set is refused");
    ok(pf_limits_measure(0, "generic", &limits) == PF_EINVAL, "no thread is refused");
    return done();
}
