/* SPDX-License-Identifier: Apache-2.0 */
/* Counted allocation and checked arithmetic. */
#include <pf/error.h>
#include <pf/mem.h>

#include "tap.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

static void blocks_are_aligned_and_zero(void)
{
    int bad = 0;

    for (size_t n = 0; n < 300; n += 7) {
        unsigned char *const p = pf_alloc(n);
        bad += !p || (uintptr_t)p % PF_MEM_ALIGN != 0;
        for (size_t i = 0; p && i < n; i++) {
            bad += p[i] != 0;
            p[i] = 0xff;
        }
        pf_free(p);
    }
    ok(bad == 0, "blocks of 0 to 300 bytes are aligned and zero");
}

static void counters_follow(void)
{
    const size_t live = pf_mem_live_bytes();
    const int64_t n = pf_mem_n_allocs();

    pf_mem_reset_peak();
    char *const a = pf_alloc(1000), *const b = pf_calloc_array(100, 20);
    ok(pf_mem_live_bytes() == live + 3000, "live bytes are those asked for");
    ok(pf_mem_n_allocs() == n + 2, "allocations are counted");
    pf_free(a);
    ok(pf_mem_live_bytes() == live + 2000 && pf_mem_peak_bytes() == live + 3000,
       "the peak stays when a block goes");
    pf_free(b);
    pf_mem_reset_peak();
    ok(pf_mem_peak_bytes() == live, "and starts again when asked");
}

static void growing_keeps_content(void)
{
    unsigned char *p = pf_realloc_array(NULL, 3, 1);

    memcpy(p, "abc", 3);
    p = pf_realloc_array(p, 100, 1);
    ok(p && memcmp(p, "abc\0\0", 5) == 0 && p[99] == 0, "what is added is zero");
    p = pf_realloc_array(p, 2, 1);
    ok(p && memcmp(p, "ab", 2) == 0, "shrinking keeps the front");
    pf_free(p);
}

static void failures_are_recorded(void)
{
    ok(!pf_calloc_array(SIZE_MAX / 2, 3) && strstr(pf_error_message(), "out of memory"),
       "a product that overflows: '%s'", pf_error_message());
    ok(!pf_alloc(SIZE_MAX - 10), "a size near the end of the address space");
    errno = 42;
    pf_free(NULL);
    pf_free(pf_alloc(5));
    ok(errno == 42, "freeing preserves errno");
}

static void strings(void)
{
    char *const a = pf_strdup("hello"), *const b = pf_strndup("hello", 2),
                *const c = pf_asprintf("%s-%d", "x", 7);

    ok(strcmp(a, "hello") == 0 && strcmp(b, "he") == 0 && strcmp(c, "x-7") == 0, "copies");
    ok(pf_strdup(NULL) == NULL, "no string, no copy");
    pf_free(a);
    pf_free(b);
    pf_free(c);
}

static void casts_are_checked(void)
{
    int i = 5;
    uint32_t u = 5;
    size_t s = 5;
    int64_t w = 5;

    ok(pf_to_int(INT_MAX, &i) == 0 && i == INT_MAX && pf_to_int((int64_t)INT_MAX + 1, &i) != 0 &&
           pf_to_int((int64_t)INT_MIN - 1, &i) == PF_EINVAL && i == INT_MAX,
       "int64 to int: '%s'", pf_error_message());
    ok(pf_to_u32(UINT32_MAX, &u) == 0 && pf_to_u32(-1, &u) == PF_EINVAL && u == UINT32_MAX, "u32");
    ok(pf_to_size(-1, &s) == PF_EINVAL && s == 5, "a negative size is refused");
    ok(pf_u64_to_i64(UINT64_MAX, &w) == PF_EINVAL && w == 5, "2^64-1 does not fit int64");
    ok(pf_mul_size(1 << 20, 1 << 20, &s) && s == (size_t)1 << 40 && !pf_mul_size(SIZE_MAX, 2, &s) &&
           !pf_add_size(SIZE_MAX, 1, &s) && s == (size_t)1 << 40,
       "products and sums of sizes");
    ok(!pf_mul_i64(INT64_MIN, -1, &w) && !pf_add_i64(INT64_MAX, 1, &w) && w == 5, "and of int64");
}

int main(void)
{
    blocks_are_aligned_and_zero();
    counters_follow();
    growing_keeps_content();
    failures_are_recorded();
    strings();
    casts_are_checked();
    return done();
}
