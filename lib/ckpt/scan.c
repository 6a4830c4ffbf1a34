/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the elements of a tensor are like: NaN, infinity, zero, range, and what a narrower dtype would
 * lose. A tensor is read in slices; a slice is cut into parts, which threads look at; what they find
 * is added up in the order of the parts, so that the sums are the same for any number of threads.
 */
#include "ckpt_internal.h"

#include <pf/inspect.h>
#include <pf/mem.h>

#include <math.h>
#include <string.h>

#define PART ((int64_t)1 << 13)
#define PARTS_OF_SLICE 32
#define SLICE (PART * PARTS_OF_SLICE)

/* A sum of squares as sum * 4^exponent, so that no square leaves the range of a double. */
struct squares {
    double sum;
    int exponent;
};

/* What one part has to say. */
struct finding {
    int64_t n_nan, n_inf, n_zero, n_denormal;
    int64_t first_bad; /* number of the element in the part; -1: none */
    bool is_constant;
    double min, max;
    struct squares squares;
    int64_t n_finite;
    struct pf_inspect_cast to_bf16, to_f16;
};

struct scanner {
    enum pf_dtype dtype;
    size_t width;         /* of an element */
    int numbers_each;     /* 2 for C64 */
    bool is_floating;     /* F8 and C64 too */
    enum pf_dtype number; /* F32 or F64: the floating dtype that holds every number */
    double least_normal;
    float decoded[256];     /* F8 only */
    unsigned char first[8]; /* the bits of the tensor's first element */
    unsigned char *raw;     /* SLICE elements */
};

/* Numbers -----------------------------------------------------------------------------------------
 */

static void scanner_init(struct scanner *s, enum pf_dtype dtype)
{
    s->dtype = dtype;
    s->width = pf_dtype_bytes(dtype);
    s->numbers_each = dtype == PF_DTYPE_C64 ? 2 : 1;
    s->is_floating = pf_dtype_is_float(dtype) || pf_dtype_is_f8(dtype) || dtype == PF_DTYPE_C64;
    s->number = s->is_floating && dtype != PF_DTYPE_F64 ? PF_DTYPE_F32 : PF_DTYPE_F64;
    s->least_normal = pf_dtype_least_normal(dtype);
    for (int b = 0; b < 256 && pf_dtype_is_f8(dtype); b++) {
        s->decoded[b] = pf_f32_from_f8(dtype, (uint8_t)b);
    }
}

/* An integer of 1, 2, 4 or 8 bytes, little-endian. */
static double integer_at(enum pf_dtype dtype, const unsigned char *raw, size_t width)
{
    uint64_t bits = 0;

    for (size_t k = width; k-- > 0;) {
        bits = bits << 8 | raw[k];
    }
    if (dtype == PF_DTYPE_BOOL) {
        return bits != 0;
    }
    if (dtype == PF_DTYPE_I8 || dtype == PF_DTYPE_I16 || dtype == PF_DTYPE_I32 ||
        dtype == PF_DTYPE_I64) {
        const uint64_t sign = (uint64_t)1 << (8 * width - 1);
        return (double)(int64_t)((bits ^ sign) - sign);
    }
    return (double)bits;
}

/* n numbers as F32 where that holds them all (*single), and always as F64. */
static void load(const struct scanner *s, const unsigned char *raw, int64_t n, float *single,
                 double *wide)
{
    const size_t count = (size_t)n;

    if (s->number == PF_DTYPE_F64) {
        if (s->is_floating) {
            memcpy(wide, raw, count * sizeof *wide);
            return;
        }
        for (size_t i = 0; i < count; i++) {
            wide[i] = integer_at(s->dtype, raw + i * s->width, s->width);
        }
        return;
    }
    if (pf_dtype_is_float(s->dtype)) {
        (void)pf_dtype_convert(s->dtype, raw, PF_DTYPE_F32, single, count); /* always possible */
    } else if (s->dtype == PF_DTYPE_C64) {
        memcpy(single, raw, count * sizeof *single);
    } else {
        for (size_t i = 0; i < count; i++) {
            single[i] = s->decoded[raw[i]];
        }
    }
    for (size_t i = 0; i < count; i++) {
        wide[i] = (double)single[i];
    }
}

/* Parts -------------------------------------------------------------------------------------------
 */

static void count_kinds(const struct scanner *s, const double *x, int64_t n, struct finding *f)
{
    f->min = INFINITY;
    f->max = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) {
            f->first_bad = f->n_nan + f->n_inf == 0 ? i / s->numbers_each : f->first_bad;
            f->n_nan += isnan(x[i]);
            f->n_inf += !isnan(x[i]);
            continue;
        }
        f->n_zero += x[i] == 0;
        f->n_denormal += fabs(x[i]) < s->least_normal && x[i] != 0;
        f->min = x[i] < f->min ? x[i] : f->min;
        f->max = x[i] > f->max ? x[i] : f->max;
    }
    f->n_finite = n - f->n_nan - f->n_inf;
}

/* Scaled so that the largest is near 1. */
static struct squares sum_squares(const double *x, int64_t n, double largest)
{
    struct squares sq = {0, 0};

    if (!(largest > 0) || isinf(largest)) { /* nothing finite but zeros */
        return sq;
    }
    sq.exponent = ilogb(largest);
    sq.exponent = sq.exponent < -1000 ? -1000 : sq.exponent; /* so that the scale is finite */
    const double scale = ldexp(1.0, -sq.exponent);
    for (int64_t i = 0; i < n; i++) {
        if (isfinite(x[i])) {
            sq.sum += (x[i] * scale) * (x[i] * scale);
        }
    }
    return sq;
}

static void add_squares(struct squares *to, struct squares add)
{
    if (add.sum == 0) {
        return;
    }
    if (to->sum == 0) {
        *to = add;
        return;
    }
    const int exponent = to->exponent > add.exponent ? to->exponent : add.exponent;
    to->sum = ldexp(to->sum, 2 * (to->exponent - exponent)) +
              ldexp(add.sum, 2 * (add.exponent - exponent));
    to->exponent = exponent;
}

/* Cast and back, and compare. */
static void look_at_cast(const struct scanner *s, enum pf_dtype to, const float *single,
                         const double *x, int64_t n, struct pf_inspect_cast *cast)
{
    const void *const from = s->number == PF_DTYPE_F32 ? (const void *)single : (const void *)x;
    uint16_t narrow[PART];
    float back[PART];

    if (s->dtype == to) {
        return;
    }
    (void)pf_dtype_convert(s->number, from, to, narrow, (size_t)n);
    (void)pf_dtype_convert(to, narrow, PF_DTYPE_F32, back, (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        const double y = (double)back[i];
        if (y == x[i] || !isfinite(x[i])) {
            continue;
        }
        cast->n_changed++;
        if (isinf(y)) {
            cast->n_overflow++;
        } else if (y == 0) {
            cast->n_underflow++;
        } else {
            cast->max_rel = fmax(cast->max_rel, fabs(y - x[i]) / fabs(x[i]));
        }
    }
}

/* Are the n elements at raw all like the tensor's first? */
static bool are_constant(const struct scanner *s, const unsigned char *raw, int64_t n)
{
    return memcmp(raw, s->first, s->width) == 0 &&
           memcmp(raw, raw + s->width, (size_t)(n - 1) * s->width) == 0;
}

/* n > 0 elements. */
static struct finding look_at(const struct scanner *s, const unsigned char *raw, int64_t n_elements)
{
    struct finding f = {.first_bad = -1, .is_constant = are_constant(s, raw, n_elements)};
    /* A C64 part is half as many elements. */
    const int64_t n = n_elements * s->numbers_each;
    float single[PART];
    double wide[PART];

    load(s, raw, n, single, wide);
    count_kinds(s, wide, n, &f);
    f.squares = sum_squares(wide, n, fmax(fabs(f.min), fabs(f.max)));
    if (s->is_floating) {
        look_at_cast(s, PF_DTYPE_BF16, single, wide, n, &f.to_bf16);
        look_at_cast(s, PF_DTYPE_F16, single, wide, n, &f.to_f16);
    }
    return f;
}

/* Tensors -----------------------------------------------------------------------------------------
 */

static void add_cast(struct pf_inspect_cast *to, const struct pf_inspect_cast *add)
{
    to->n_changed += add->n_changed;
    to->n_overflow += add->n_overflow;
    to->n_underflow += add->n_underflow;
    to->max_rel = fmax(to->max_rel, add->max_rel);
}

/* A tensor's scan under way. */
struct sum {
    struct pf_inspect_scan *scan;
    struct squares squares;
    int64_t n_finite;
};

/* at: number of the part's first element in the tensor. */
static void add_finding(struct sum *sum, const struct finding *f, int64_t at)
{
    struct pf_inspect_scan *const scan = sum->scan;

    if (f->first_bad >= 0 && scan->n_nan + scan->n_inf == 0) {
        int64_t rest = at + f->first_bad;
        for (int d = scan->tensor->n_dims - 1; d >= 0; d--) {
            scan->first_bad[d] = rest % scan->tensor->shape[d];
            rest /= scan->tensor->shape[d];
        }
    }
    scan->n_nan += f->n_nan;
    scan->n_inf += f->n_inf;
    scan->n_zero += f->n_zero;
    scan->n_denormal += f->n_denormal;
    scan->is_constant &= f->is_constant;
    if (f->n_finite > 0) {
        scan->min = fmin(scan->min, f->min); /* NAN at first, which fmin passes over */
        scan->max = fmax(scan->max, f->max);
    }
    sum->n_finite += f->n_finite;
    add_squares(&sum->squares, f->squares);
    add_cast(&scan->to_bf16, &f->to_bf16);
    add_cast(&scan->to_f16, &f->to_f16);
}

static void look_at_slice(const struct scanner *s, int64_t n, int64_t at, struct sum *sum)
{
    const int64_t part = PART / s->numbers_each;
    const int n_parts = (int)((n + part - 1) / part);
    struct finding findings[2 * PARTS_OF_SLICE];

#pragma omp parallel for schedule(dynamic, 1) if (n_parts > 2)
    for (int p = 0; p < n_parts; p++) {
        const int64_t from = p * part;
        findings[p] =
            look_at(s, s->raw + (size_t)from * s->width, n - from < part ? n - from : part);
    }
    for (int p = 0; p < n_parts; p++) {
        add_finding(sum, &findings[p], at + p * part);
    }
}

static void finish(struct sum *sum)
{
    struct pf_inspect_scan *const scan = sum->scan;

    if (sum->n_finite > 0) {
        scan->absmax = fmax(fabs(scan->min), fabs(scan->max));
        scan->rms = ldexp(sqrt(sum->squares.sum / (double)sum->n_finite), sum->squares.exponent);
    }
}

struct job {
    const struct pf_ckpt *ckpt;
    const struct pf_inspect_progress *progress;
    uint64_t done, total;
    struct scanner scanner;
};

static int scan_tensor(struct job *job, const struct pf_ckpt_tensor *t,
                       struct pf_inspect_scan *scan)
{
    struct scanner *const s = &job->scanner;
    struct ckpt_want want = {.box = pf_ckpt_whole(t), .dtype = t->dtype, .dst = s->raw};
    struct sum sum = {.scan = scan};

    *scan = (struct pf_inspect_scan){.tensor = t,
                                     .n_elements = pf_box_count(&want.box),
                                     .was_read = pf_dtype_bytes(t->dtype) > 0};
    scan->min = scan->max = scan->absmax = scan->rms = NAN;
    if (!scan->was_read) {
        return 0;
    }
    scanner_init(s, t->dtype);
    scan->has_casts = s->is_floating;
    scan->is_constant = scan->n_elements > 1;
    want.range_hi = scan->n_elements;
    PF_TRY(ckpt_prove(job->ckpt, t, &want));
    for (int64_t at = 0; at < scan->n_elements; at = want.range_hi) {
        want.range_lo = at;
        want.range_hi = scan->n_elements - at < SLICE ? scan->n_elements : at + SLICE;
        PF_TRY(ckpt_copy(job->ckpt, t, &want));
        if (at == 0) {
            memcpy(s->first, s->raw, s->width);
        }
        look_at_slice(s, want.range_hi - at, at, &sum);
        job->done += (uint64_t)(want.range_hi - at) * s->width;
        if (job->progress) {
            job->progress->report(job->progress->context, job->done, job->total);
        }
    }
    finish(&sum);
    return 0;
}

static bool is_wanted(const struct pf_ckpt_tensor *t, const char *glob, bool weights_only)
{
    return (!weights_only || t->role == PF_ROLE_WEIGHT) && (!glob || pf_glob_match(glob, t->name));
}

static int scan_each(struct job *job, const char *glob, bool weights_only,
                     struct pf_inspect_scans *scans)
{
    for (int64_t i = 0; i < job->ckpt->n_tensors; i++) {
        const struct pf_ckpt_tensor *const t = &job->ckpt->tensors[i];
        job->total += is_wanted(t, glob, weights_only) ? pf_inspect_tensor_bytes(t) : 0;
    }
    for (int64_t i = 0; i < job->ckpt->n_tensors; i++) {
        struct pf_inspect_scan *const scan = &scans->lines[scans->n];
        if (!is_wanted(&job->ckpt->tensors[i], glob, weights_only)) {
            continue;
        }
        PF_TRY(scan_tensor(job, &job->ckpt->tensors[i], scan));
        scans->n++;
        scans->n_nan += scan->n_nan;
        scans->n_inf += scan->n_inf;
        scans->n_bad_tensors += scan->n_nan + scan->n_inf > 0;
    }
    return 0;
}

int pf_inspect_scan(const struct pf_ckpt *ckpt, const char *glob, bool weights_only,
                    const struct pf_inspect_progress *progress, struct pf_inspect_scans *scans_out)
{
    struct job job = {.ckpt = ckpt, .progress = progress};
    struct pf_inspect_scans scans = {.n = 0};
    int err = PF_ENOMEM;

    scans.lines = pf_calloc_array((size_t)ckpt->n_tensors, sizeof *scans.lines);
    job.scanner.raw = pf_calloc_array((size_t)SLICE, sizeof(uint64_t));
    if (!scans.lines || !job.scanner.raw) {
        goto out;
    }
    PF_TRY_GOTO(scan_each(&job, glob, weights_only, &scans), out);
    *scans_out = scans;
    scans.lines = NULL;
out:
    pf_free(job.scanner.raw);
    pf_free(scans.lines);
    return err;
}

void pf_inspect_scans_release(struct pf_inspect_scans *scans)
{
    pf_free(scans->lines);
    scans->lines = NULL;
    scans->n = 0;
}
