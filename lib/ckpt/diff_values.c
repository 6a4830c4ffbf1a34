/* SPDX-License-Identifier: Apache-2.0 */
/* Two tensors element by element: bits first, then NaNs, then the tolerances. */
#include "ckpt_internal.h"
#include "diff_internal.h"

#include <pf/mem.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

int diff_buffers_init(struct diff_buffers *buffers_out)
{
    struct diff_buffers b = {
        .raw_a = pf_calloc_array(DIFF_CHUNK, sizeof(uint64_t)),
        .raw_b = pf_calloc_array(DIFF_CHUNK, sizeof(uint64_t)),
        .number_a = pf_calloc_array(DIFF_CHUNK, sizeof(double)),
        .number_b = pf_calloc_array(DIFF_CHUNK, sizeof(double)),
    };

    if (!b.raw_a || !b.raw_b || !b.number_a || !b.number_b) {
        diff_buffers_release(&b);
        return PF_ENOMEM;
    }
    *buffers_out = b;
    return 0;
}

void diff_buffers_release(struct diff_buffers *buffers)
{
    pf_free(buffers->raw_a);
    pf_free(buffers->raw_b);
    pf_free(buffers->number_a);
    pf_free(buffers->number_b);
    *buffers = (struct diff_buffers){0};
}

/* Elements ----------------------------------------------------------------------------------------
 */

struct comparison {
    const struct pf_ckpt_tensor *a, *b;
    const struct pf_inspect_tolerance *tolerance;
    const struct diff_buffers *buffers;
    struct pf_inspect_values *values;
    bool same_dtype, floating, bits_equal;
};

static uint64_t bits_at(const void *raw, size_t width, size_t i)
{
    uint8_t bytes[8] = {0};
    uint64_t bits = 0;

    memcpy(bytes, (const uint8_t *)raw + i * width, width);
    for (size_t k = width; k-- > 0;) {
        bits = bits << 8 | bytes[k];
    }
    return bits;
}

/* The number's place among all of its dtype, as magnitude and sign. */
static uint64_t magnitude(uint64_t bits, size_t width, bool *negative_out)
{
    const uint64_t sign = (uint64_t)1 << (8 * width - 1);

    *negative_out = (bits & sign) != 0;
    return bits & (sign - 1);
}

static int64_t ulp_distance(uint64_t x, uint64_t y, size_t width)
{
    bool x_negative, y_negative;
    const uint64_t m = magnitude(x, width, &x_negative), n = magnitude(y, width, &y_negative);
    const uint64_t distance = x_negative != y_negative ? m + n : m > n ? m - n : n - m;

    return distance > INT64_MAX ? INT64_MAX : (int64_t)distance;
}

static void describe(const struct pf_ckpt_tensor *t, const void *raw, size_t i, char text[64])
{
    const size_t width = pf_dtype_bytes(t->dtype);
    const uint64_t bits = bits_at(raw, width, i);
    const uint64_t sign = (uint64_t)1 << (8 * width - 1);
    double number;

    switch (t->dtype) {
    case PF_DTYPE_F16:
    case PF_DTYPE_BF16:
    case PF_DTYPE_F32:
    case PF_DTYPE_F64:
        (void)pf_dtype_convert(t->dtype, (const uint8_t *)raw + i * width, PF_DTYPE_F64, &number,
                               1);
        if (isnan(number)) {
            snprintf(text, 64, "nan (0x%0*llx)", (int)(2 * width), (unsigned long long)bits);
        } else {
            snprintf(text, 64, "%.*g", t->dtype == PF_DTYPE_F64 ? 17 : 9, number);
        }
        return;
    case PF_DTYPE_I8:
    case PF_DTYPE_I16:
    case PF_DTYPE_I32:
    case PF_DTYPE_I64:
        snprintf(text, 64, "%lld", (long long)((bits ^ sign) - sign));
        return;
    case PF_DTYPE_BOOL:
    case PF_DTYPE_U8:
    case PF_DTYPE_U16:
    case PF_DTYPE_U32:
    case PF_DTYPE_U64:
        snprintf(text, 64, "%llu", (unsigned long long)bits);
        return;
    default:
        snprintf(text, 64, "0x%0*llx", (int)(2 * width), (unsigned long long)bits);
        return;
    }
}

/* Element i of the slice, element `at` of the tensor, is different. */
static void note(const struct comparison *c, size_t i, int64_t at)
{
    struct pf_inspect_values *v = c->values;

    if (v->n_differ++ > 0) {
        return;
    }
    v->n_dims = c->a->n_dims;
    for (int d = c->a->n_dims - 1; d >= 0; d--) {
        v->first[d] = at % c->a->shape[d];
        at /= c->a->shape[d];
    }
    describe(c->a, c->buffers->raw_a, i, v->first_a);
    describe(c->b, c->buffers->raw_b, i, v->first_b);
}

/* Do the tolerances admit two numbers, neither of them NaN? */
static bool admits(const struct pf_inspect_tolerance *t, double x, double y, double distance,
                   int64_t ulp)
{
    const double larger = fmax(fabs(x), fabs(y));
    const bool measured = t->rel >= 0 || t->abs >= 0;

    if (isinf(x) || isinf(y)) {
        return false;
    }
    return (measured && distance <= fmax(t->abs, 0) + fmax(t->rel, 0) * larger) ||
           (t->ulp >= 0 && ulp >= 0 && ulp <= t->ulp);
}

static bool numbers_match(const struct comparison *c, size_t i)
{
    const double x = c->buffers->number_a[i], y = c->buffers->number_b[i];
    const double distance = fabs(x - y), larger = fmax(fabs(x), fabs(y));
    const double ratio = isinf(larger) ? INFINITY : larger > 0 ? distance / larger : 0;
    struct pf_inspect_values *v = c->values;
    int64_t ulp = -1;

    if (c->same_dtype) {
        const size_t width = pf_dtype_bytes(c->a->dtype);
        ulp = ulp_distance(bits_at(c->buffers->raw_a, width, i),
                           bits_at(c->buffers->raw_b, width, i), width);
    }
    v->max_abs = fmax(v->max_abs, distance);
    v->max_rel = fmax(v->max_rel, ratio);
    v->max_ulp = ulp > v->max_ulp ? ulp : v->max_ulp;
    return admits(c->tolerance, x, y, distance, ulp);
}

/* Two elements of floating dtypes whose bits, or numbers, are not known to be equal. */
static void compare_floating(struct comparison *c, size_t i, int64_t at)
{
    const double x = c->buffers->number_a[i], y = c->buffers->number_b[i];
    const enum pf_inspect_nan nan = c->tolerance->nan;
    const size_t width = pf_dtype_bytes(c->a->dtype);
    const bool equal =
        c->same_dtype ? bits_at(c->buffers->raw_a, width, i) == bits_at(c->buffers->raw_b, width, i)
                      : (isnan(x) && isnan(y)) || (x == y && signbit(x) == signbit(y));

    c->bits_equal &= equal;
    if (isnan(x) || isnan(y)) {
        const bool same = isnan(x) && isnan(y) &&
                          (nan == PF_INSPECT_NAN_EQUAL || (nan == PF_INSPECT_NAN_BITS && equal));
        if (!same) {
            c->values->n_nan++;
            note(c, i, at);
        }
    } else if (!equal && !numbers_match(c, i)) {
        note(c, i, at);
    }
}

static int compare_slice(struct comparison *c, size_t n, int64_t at)
{
    const struct diff_buffers *b = c->buffers;
    const size_t width = pf_dtype_bytes(c->a->dtype);
    const bool bits_decide = c->tolerance->nan != PF_INSPECT_NAN_DIFFER || !c->floating;

    if (c->same_dtype && bits_decide && memcmp(b->raw_a, b->raw_b, n * width) == 0) {
        return 0;
    }
    if (!c->floating) {
        for (size_t i = 0; i < n; i++) {
            if (bits_at(b->raw_a, width, i) != bits_at(b->raw_b, width, i)) {
                c->bits_equal = false;
                note(c, i, at + (int64_t)i);
            }
        }
        return 0;
    }
    PF_TRY(pf_dtype_convert(c->a->dtype, b->raw_a, PF_DTYPE_F64, b->number_a, n));
    PF_TRY(pf_dtype_convert(c->b->dtype, b->raw_b, PF_DTYPE_F64, b->number_b, n));
    for (size_t i = 0; i < n; i++) {
        compare_floating(c, i, at + (int64_t)i);
    }
    return 0;
}

/* Tensors -----------------------------------------------------------------------------------------
 */

static struct ckpt_want want_all(const struct pf_ckpt_tensor *t, void *dst)
{
    struct ckpt_want want = {.box = pf_ckpt_whole(t), .dtype = t->dtype, .dst = dst};

    want.range_hi = pf_box_count(&want.box);
    return want;
}

int diff_values(const struct pf_ckpt *ckpt_a, const struct pf_ckpt_tensor *a,
                const struct pf_ckpt *ckpt_b, const struct pf_ckpt_tensor *b,
                const struct pf_inspect_tolerance *tolerance, const struct diff_buffers *buffers,
                const struct pf_inspect_progress *progress, uint64_t *done, uint64_t total,
                struct pf_inspect_values *values_out, bool *bits_equal_out)
{
    struct ckpt_want want_a = want_all(a, buffers->raw_a), want_b = want_all(b, buffers->raw_b);
    const int64_t count = want_a.range_hi;
    struct pf_inspect_values values = {
        .compared = true, .n_elements = count, .measured = pf_dtype_is_float(a->dtype)};
    struct comparison c = {.a = a,
                           .b = b,
                           .tolerance = tolerance,
                           .buffers = buffers,
                           .values = &values,
                           .same_dtype = a->dtype == b->dtype,
                           .floating = pf_dtype_is_float(a->dtype),
                           .bits_equal = true};

    values.max_ulp = c.same_dtype && c.floating ? 0 : -1;
    PF_TRY(ckpt_prove(ckpt_a, a, &want_a));
    PF_TRY(ckpt_prove(ckpt_b, b, &want_b));
    for (int64_t at = 0; at < count; at += (int64_t)DIFF_CHUNK) {
        const int64_t end = count - at < (int64_t)DIFF_CHUNK ? count : at + (int64_t)DIFF_CHUNK;
        want_a.range_lo = want_b.range_lo = at;
        want_a.range_hi = want_b.range_hi = end;
        PF_TRY(ckpt_copy(ckpt_a, a, &want_a));
        PF_TRY(ckpt_copy(ckpt_b, b, &want_b));
        PF_TRY(compare_slice(&c, (size_t)(end - at), at));
        *done += (uint64_t)(end - at) * pf_dtype_bytes(a->dtype);
        if (progress) {
            progress->report(progress->context, *done, total);
        }
    }
    *values_out = values;
    *bits_equal_out = c.bits_equal;
    return 0;
}
