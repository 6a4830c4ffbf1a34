/* SPDX-License-Identifier: Apache-2.0 */
/* Scans, selections and values of tensors: the library under pf-inspect scan and cat. */
#include "scratch.h"
#include "tap.h"

#include <pf/ckpt.h>
#include <pf/error.h>
#include <pf/inspect.h>
#include <pf/mem.h>

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct pf_ckpt *checkpoint(const struct pf_ckpt_live *live, int64_t n)
{
    static int count;
    struct pf_ckpt_saved saved;
    struct pf_ckpt *ckpt = NULL;
    char *dir = pf_asprintf("%s/%d", scratch_dir, count++);
    const struct pf_ckpt_save save = {.output_dir = dir, .step = 1};

    if (pf_ckpt_save(NULL, &save, live, n, &saved) != 0 || pf_ckpt_open(dir, &ckpt) != 0) {
        printf("Bail out! %s\n", pf_error_message());
        exit(1);
    }
    pf_free(dir);
    return ckpt;
}

static struct pf_ckpt_live tensor(const char *name, enum pf_role role, enum pf_dtype dtype,
                                  int n_dims, const int64_t *shape, void *data)
{
    struct pf_ckpt_live live = {
        .name = name, .role = role, .dtype = dtype, .n_dims = n_dims, .data = data};
    const int64_t zero[PF_BOX_MAX_DIMS] = {0};

    memcpy(live.shape, shape, (size_t)n_dims * sizeof shape[0]);
    if (pf_box_init(&live.box, n_dims, zero, shape) != 0) {
        printf("Bail out! bad box\n");
        exit(1);
    }
    return live;
}

/* The scan of one vector; its tensor is gone, so only the numbers are to be looked at. */
static struct pf_inspect_scan scan_of(enum pf_dtype dtype, int64_t n, void *data)
{
    const struct pf_ckpt_live live = tensor("w", PF_ROLE_WEIGHT, dtype, 1, &n, data);
    struct pf_ckpt *ckpt = checkpoint(&live, 1);
    struct pf_inspect_scans scans = {0};
    struct pf_inspect_scan scan = {0};

    if (pf_inspect_scan(ckpt, NULL, false, NULL, &scans) == 0 && scans.n == 1) {
        scan = scans.lines[0];
    } else {
        printf("# %s\n", pf_error_message());
    }
    pf_inspect_scans_release(&scans);
    pf_ckpt_free(ckpt);
    return scan;
}

static void kinds(void)
{
    float x[] = {1, -3, 0, -0.0f, 0x1p-130f, NAN, INFINITY, -INFINITY, 2, NAN};
    const struct pf_inspect_scan s = scan_of(PF_DTYPE_F32, 10, x);

    ok(s.was_read && s.n_elements == 10 && s.n_nan == 2 && s.n_inf == 2 && s.n_zero == 2 &&
           s.n_denormal == 1,
       "NaN, infinities, zeros and denormals of both signs are counted");
    ok(s.min == -3 && s.max == 2 && s.absmax == 3 && s.first_bad[0] == 5,
       "the range is that of what is finite, and the first that is not is named");
    ok(fabs(s.rms - sqrt(14.0 / 6)) < 1e-15, "so is the root of the mean square: %.17g", s.rms);
    float all[] = {NAN, INFINITY};
    const struct pf_inspect_scan none = scan_of(PF_DTYPE_F32, 2, all);
    ok(isnan(none.min) && isnan(none.rms) && none.n_nan == 1, "nothing finite: no range");
}

static void casts(void)
{
    float x[] = {1,        1 + 0x1p-8f, 65504,      65520,     FLT_MAX,
                 0x1p-24f, 0x1p-25f,    0x1.8p-25f, 0x1p-149f, NAN};
    const struct pf_inspect_scan s = scan_of(PF_DTYPE_F32, 10, x);

    ok(s.to_f16.n_overflow == 2 && s.to_f16.n_underflow == 2,
       "float16: 65520 and more become infinite, 2^-25 and less zero");
    ok(s.to_f16.n_changed == 5 && s.to_f16.max_rel == 1.0 / 3,
       "and 1.5 x 2^-25 is rounded by a third: %g", s.to_f16.max_rel);
    ok(s.to_bf16.n_overflow == 1 && s.to_bf16.n_underflow == 1 &&
           s.to_bf16.max_rel == 0x1p-8 / (1 + 0x1p-8),
       "bfloat16: its largest number is below F32's, and a tie goes to even");
    uint16_t halves[] = {0x3c00, 0x3c01};
    const struct pf_inspect_scan h = scan_of(PF_DTYPE_F16, 2, halves);
    ok(h.has_casts && h.to_f16.n_changed == 0 && h.to_bf16.n_changed == 1,
       "float16 keeps itself and loses digits as bfloat16");
    double wide[] = {1 + 0x1p-11 + 0x1p-40, 1e300, 1e-300};
    const struct pf_inspect_scan w = scan_of(PF_DTYPE_F64, 3, wide);
    ok(w.to_f16.n_overflow == 1 && w.to_f16.n_underflow == 1 && w.to_f16.max_rel < 0x1p-11 &&
           w.to_f16.max_rel > 0x1.ffp-12,
       "F64 is rounded once, not by way of F32");
}

static void extremes(void)
{
    double big[] = {1e300, -1e300, 1e300, 1e300}, small[] = {1e-320, 1e-320};
    const struct pf_inspect_scan b = scan_of(PF_DTYPE_F64, 4, big);
    const struct pf_inspect_scan t = scan_of(PF_DTYPE_F64, 2, small);

    ok(fabs(b.rms / 1e300 - 1) < 1e-15, "squares beyond a double: rms %g", b.rms);
    ok(fabs(t.rms / 1e-320 - 1) < 1e-3 && t.n_denormal == 2 && t.is_constant, "and below: rms %g",
       t.rms);
}

static void other_dtypes(void)
{
    int8_t bytes[] = {-128, 127, 0, 5};
    uint64_t longs[] = {0, UINT64_MAX};
    uint8_t f8[] = {0x7e, 0x7f, 0x01, 0x80}, bools[] = {1, 1, 1};
    float complex[] = {1, -2, NAN, 0};
    const struct pf_inspect_scan i = scan_of(PF_DTYPE_I8, 4, bytes);
    const struct pf_inspect_scan u = scan_of(PF_DTYPE_U64, 2, longs);
    const struct pf_inspect_scan f = scan_of(PF_DTYPE_F8_E4M3, 4, f8);
    const struct pf_inspect_scan b = scan_of(PF_DTYPE_BOOL, 3, bools);
    const struct pf_inspect_scan c = scan_of(PF_DTYPE_C64, 2, complex);

    ok(i.min == -128 && i.max == 127 && i.n_zero == 1 && !i.has_casts, "I8");
    ok(u.max == 0x1p64 && u.min == 0, "U64 as a double");
    ok(f.max == 448 && f.n_nan == 1 && f.n_denormal == 1 && f.n_zero == 1 && f.has_casts &&
           f.to_f16.n_changed == 0 && f.first_bad[0] == 1,
       "F8_E4M3 is decoded");
    ok(b.is_constant && b.min == 1, "BOOL");
    ok(c.n_nan == 1 && c.first_bad[0] == 1 && c.min == -2 && c.n_zero == 1,
       "C64 counts as two numbers, but its index is that of the element");
}

/* A tensor of many slices and parts, with its odd ones at their borders. */
static void long_tensors(void)
{
    enum { N = 1000003 };
    float *x = pf_calloc_array(N, sizeof *x);
    const int64_t odd[] = {8191, 8192, 262143, 262144, N - 1};
    double squares = 0;

    for (int64_t i = 0; i < N; i++) {
        x[i] = (float)(i % 1000) - 500;
        squares += (double)x[i] * (double)x[i];
    }
    const struct pf_inspect_scan plain = scan_of(PF_DTYPE_F32, N, x);
    ok(plain.min == -500 && plain.max == 499 && plain.n_zero == N / 1000 && !plain.is_constant &&
           fabs(plain.rms / sqrt(squares / N) - 1) < 1e-12,
       "a million elements: rms %.15g", plain.rms);
    for (int k = 0; k < 5; k++) {
        x[odd[k]] = INFINITY;
    }
    const struct pf_inspect_scan marked = scan_of(PF_DTYPE_F32, N, x);
    ok(marked.n_inf == 5 && marked.first_bad[0] == 8191, "what lies at a border is seen once");
    for (int64_t i = 0; i < N; i++) {
        x[i] = 0.5f;
    }
    const struct pf_inspect_scan same = scan_of(PF_DTYPE_F32, N, x);
    x[N - 1] = 0.25f;
    ok(same.is_constant && same.rms == 0.5 && !scan_of(PF_DTYPE_F32, N, x).is_constant,
       "constant until the last element");
    pf_free(x);
}

/* Selections --------------------------------------------------------------------------------------
 */

static struct pf_ckpt *shelf;
static float cube[2 * 3 * 4];

static void make_shelf(void)
{
    static float moment[2], colon[4];
    const int64_t shape[] = {2, 3, 4};
    const struct pf_ckpt_live live[] = {
        tensor("a.w", PF_ROLE_WEIGHT, PF_DTYPE_F32, 3, shape, cube),
        tensor("a.w", PF_ROLE_MOMENT1, PF_DTYPE_F32, 3, shape, cube),
        tensor("m", PF_ROLE_MOMENT1, PF_DTYPE_F32, 1, shape, moment),
        tensor("m", PF_ROLE_MOMENT2, PF_DTYPE_F32, 1, shape, moment),
        tensor("odd:0", PF_ROLE_WEIGHT, PF_DTYPE_F32, 1, shape + 2, colon),
    };

    for (int i = 0; i < 24; i++) {
        cube[i] = (float)i;
    }
    shelf = checkpoint(live, 5);
}

static int add(void *context, const void *data, int64_t n)
{
    double *sum = context;

    for (int64_t i = 0; i < n; i++) {
        float x;
        memcpy(&x, (const char *)data + i * 4, 4);
        sum[0] += (double)x;
        sum[1] += 1;
    }
    return 0;
}

/* "12 of weight": the sum of the selected elements and the role, or the kind of the error. */
static const char *select_sum(const char *text)
{
    static char answer[64];
    struct pf_inspect_selection s;
    double sum[2] = {0, 0};
    int err = pf_inspect_select(shelf, text, &s);

    err = err ? err : pf_inspect_each_value(shelf, &s, add, sum);
    if (err) {
        snprintf(answer, sizeof answer, "%s", pf_error_kind(err));
    } else {
        snprintf(answer, sizeof answer, "%g of %g %s", sum[0], sum[1],
                 pf_role_name(s.tensor->role));
    }
    return answer;
}

static void selections(void)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"a.w", "276 of 24 weight"},
        {"a.w:", "276 of 24 weight"},
        {"a.w.moment1", "276 of 24 moment1"},
        {"a.w:1", "210 of 12 weight"},
        {"a.w:-1", "210 of 12 weight"},
        {"a.w:0:1,:,3", "21 of 3 weight"},
        {"a.w:1,-2:,:2", "74 of 4 weight"},
        {"a.w: 1 , 2 , 3 ", "23 of 1 weight"},
        {"a.w:1:1", "0 of 0 weight"},
        {"a.w.moment1:0,0,1:3", "3 of 2 moment1"},
        {"odd:0", "0 of 4 weight"},
        {"odd:0:1:3", "0 of 2 weight"},
        {"m.moment2:0", "0 of 1 moment2"},
        {"m", "refused"},
        {"a.v", "differ"},
        {"a.w.master", "differ"},
        {"b:0", "differ"},
        {"a.w:2", "usage"},
        {"a.w:-3", "usage"},
        {"a.w:0:3", "usage"},
        {"a.w:1:0", "usage"},
        {"a.w:x", "usage"},
        {"a.w:0:1:2", "usage"},
        {"a.w:0,,0", "usage"},
        {"a.w:0,0,0,0", "usage"},
        {"a.w:99999999999999999999", "usage"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *const got = select_sum(cases[i].text);
        ok(strcmp(got, cases[i].want) == 0, "'%s': %s", cases[i].text, got);
    }
    (void)select_sum("a.v");
    ok(strstr(pf_error_message(), "did you mean 'a.w'?") != NULL, "%s", pf_error_message());
}

static void texts(void)
{
    char text[PF_INSPECT_TEXT_BYTES];
    const float third = 1 / 3.0f, pair[] = {1, -0.5f};
    const double tenth = 0.1;
    const uint16_t half = 0x3dcd;
    const int64_t least = INT64_MIN;
    const uint8_t yes = 1;

    ok(strcmp(pf_inspect_format(PF_DTYPE_F32, &third, text), "0.33333334") == 0, "F32 %s", text);
    ok(strcmp(pf_inspect_format(PF_DTYPE_F64, &tenth, text), "0.1") == 0, "F64 %s", text);
    ok(strcmp(pf_inspect_format(PF_DTYPE_BF16, &half, text), "0.100097656") == 0, "BF16 %s", text);
    ok(strcmp(pf_inspect_format(PF_DTYPE_I64, &least, text), "-9223372036854775808") == 0, "I64 %s",
       text);
    ok(strcmp(pf_inspect_format(PF_DTYPE_BOOL, &yes, text), "true") == 0, "BOOL %s", text);
    ok(strcmp(pf_inspect_format(PF_DTYPE_C64, pair, text), "1-0.5i") == 0, "C64 %s", text);
    ok(strcmp(pf_inspect_format(PF_DTYPE_F8_E8M0, &yes, text), "1.1754944e-38") == 0, "F8 %s",
       text);
}

int main(void)
{
    scratch_make();
    kinds();
    casts();
    extremes();
    other_dtypes();
    long_tensors();
    make_shelf();
    selections();
    texts();
    pf_ckpt_free(shelf);
    scratch_remove();
    return done();
}
