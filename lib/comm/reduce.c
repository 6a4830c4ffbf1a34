/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of reductions: rank 0's value, then op with rank 1's, and so on, element by
 * element. Work goes in blocks that stay in the first-level cache, so memory is read and written
 * once however many ranks there are.
 */
#include "comm_internal.h"

#include <pf/dtype.h>

#include <math.h>
#include <string.h>

#define BLOCK 1024 /* elements */
#define UNROLL 16  /* a constant inner count lets the compiler use vectors at -O2 */

typedef void accumulate_fn(void *acc, const void *x, size_t n);

#define ACCUMULATE(name, type, result)                                                             \
    static void name(void *acc_bytes, const void *x_bytes, size_t n)                               \
    {                                                                                              \
        type *restrict acc = acc_bytes;                                                            \
        const type *restrict x = x_bytes;                                                          \
        size_t i = 0;                                                                              \
        for (; i + UNROLL <= n; i += UNROLL) {                                                     \
            for (size_t j = i; j < i + UNROLL; j++) {                                              \
                const type a = acc[j], b = x[j];                                                   \
                acc[j] = (type)(result);                                                           \
            }                                                                                      \
        }                                                                                          \
        for (size_t j = i; j < n; j++) {                                                           \
            const type a = acc[j], b = x[j];                                                       \
            acc[j] = (type)(result);                                                               \
        }                                                                                          \
    }

/* Signed sums wrap: they are added as unsigned. */
ACCUMULATE(sum_f32, float, a + b)
ACCUMULATE(sum_f64, double, a + b)
ACCUMULATE(sum_64, uint64_t, a + b)
ACCUMULATE(sum_32, uint32_t, a + b)
ACCUMULATE(sum_u8, uint8_t, a + b)
ACCUMULATE(max_f32, float, isnan(a) || a >= b ? a : b)
ACCUMULATE(max_f64, double, isnan(a) || a >= b ? a : b)
ACCUMULATE(max_i64, int64_t, a > b ? a : b)
ACCUMULATE(max_u64, uint64_t, a > b ? a : b)
ACCUMULATE(max_i32, int32_t, a > b ? a : b)
ACCUMULATE(max_u8, uint8_t, a > b ? a : b)
ACCUMULATE(min_f32, float, isnan(a) || a <= b ? a : b)
ACCUMULATE(min_f64, double, isnan(a) || a <= b ? a : b)
ACCUMULATE(min_i64, int64_t, a < b ? a : b)
ACCUMULATE(min_u64, uint64_t, a < b ? a : b)
ACCUMULATE(min_i32, int32_t, a < b ? a : b)
ACCUMULATE(min_u8, uint8_t, a < b ? a : b)
ACCUMULATE(bor_64, uint64_t, a | b)
ACCUMULATE(bor_32, uint32_t, a | b)
ACCUMULATE(bor_u8, uint8_t, a | b)

/* A BF16 or F16 block is accumulated as fp32 and rounded when all ranks are in. */
static const struct {
    size_t bytes;
    accumulate_fn *accumulate[PF_COMM_OP_COUNT];
} dtypes[PF_COMM_DTYPE_COUNT] = {
    [PF_COMM_F32] = {4, {sum_f32, max_f32, min_f32, NULL}},
    [PF_COMM_F64] = {8, {sum_f64, max_f64, min_f64, NULL}},
    [PF_COMM_I64] = {8, {sum_64, max_i64, min_i64, bor_64}},
    [PF_COMM_U64] = {8, {sum_64, max_u64, min_u64, bor_64}},
    [PF_COMM_I32] = {4, {sum_32, max_i32, min_i32, bor_32}},
    [PF_COMM_U8] = {1, {sum_u8, max_u8, min_u8, bor_u8}},
    [PF_COMM_BF16] = {2, {sum_f32, max_f32, min_f32, NULL}},
    [PF_COMM_F16] = {2, {sum_f32, max_f32, min_f32, NULL}},
};

size_t pf_comm_dtype_bytes(enum pf_comm_dtype dtype)
{
    return dtypes[dtype].bytes;
}

bool pf_comm_op_applies(enum pf_comm_dtype dtype, enum pf_comm_op op)
{
    return dtypes[dtype].accumulate[op] != NULL;
}

static void reduce_narrow_block(enum pf_dtype dtype, uint16_t *dst, const void *const *src, int n,
                                size_t at, size_t count, accumulate_fn *accumulate)
{
    float acc[BLOCK], x[BLOCK];

    pf_dtype_convert(dtype, (const uint16_t *)src[0] + at, PF_DTYPE_F32, acc, count);
    for (int r = 1; r < n; r++) {
        pf_dtype_convert(dtype, (const uint16_t *)src[r] + at, PF_DTYPE_F32, x, count);
        accumulate(acc, x, count);
    }
    pf_dtype_convert(PF_DTYPE_F32, acc, dtype, dst + at, count);
}

void pf_comm_reduce_ranks(void *dst, const void *const *src, int n, size_t count,
                          enum pf_comm_dtype dtype, enum pf_comm_op op)
{
    accumulate_fn *const accumulate = dtypes[dtype].accumulate[op];
    const size_t width = dtypes[dtype].bytes;
    _Alignas(64) unsigned char acc[BLOCK * 8];

    for (size_t at = 0; at < count; at += BLOCK) {
        const size_t m = count - at < BLOCK ? count - at : BLOCK;
        if (dtype == PF_COMM_BF16 || dtype == PF_COMM_F16) {
            reduce_narrow_block(dtype == PF_COMM_BF16 ? PF_DTYPE_BF16 : PF_DTYPE_F16, dst, src, n,
                                at, m, accumulate);
            continue;
        }
        memcpy(acc, (const char *)src[0] + at * width, m * width);
        for (int r = 1; r < n; r++) {
            accumulate(acc, (const char *)src[r] + at * width, m);
        }
        memcpy((char *)dst + at * width, acc, m * width);
    }
}
