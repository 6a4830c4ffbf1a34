/* SPDX-License-Identifier: Apache-2.0 */
/* Sums, digests and differences of checkpoints: the library under pf-inspect. */
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

/* A checkpoint of these tensors, opened. Each has a directory of its own. */
static struct pf_ckpt *checkpoint(const struct pf_ckpt_live *live, int64_t n, const char *state)
{
    static int count;
    struct pf_ckpt_saved saved;
    struct pf_ckpt *ckpt = NULL;
    char *dir = pf_asprintf("%s/%d", scratch_dir, count++);
    const struct pf_ckpt_save save = {.output_dir = dir, .step = 7, .state_json = state};

    if (pf_ckpt_save(NULL, &save, live, n, &saved) != 0 || pf_ckpt_open(dir, &ckpt) != 0) {
        printf("Bail out! %s\n", pf_error_message());
        exit(1);
    }
    pf_free(dir);
    return ckpt;
}

/* A piece of a matrix. */
static struct pf_ckpt_live piece(const char *name, enum pf_dtype dtype, const int64_t shape[2],
                                 const int64_t lo[2], const int64_t hi[2], void *data)
{
    struct pf_ckpt_live live = {.name = name, .dtype = dtype, .n_dims = 2, .data = data};

    memcpy(live.shape, shape, 2 * sizeof shape[0]);
    if (pf_box_init(&live.box, 2, lo, hi) != 0) {
        printf("Bail out! bad box\n");
        exit(1);
    }
    return live;
}

static struct pf_ckpt_live row(const char *name, enum pf_role role, enum pf_dtype dtype, int64_t n,
                               void *data)
{
    struct pf_ckpt_live live =
        piece(name, dtype, (int64_t[]){1, n}, (int64_t[]){0, 0}, (int64_t[]){1, n}, data);
    live.role = role;
    return live;
}

/* One row of floats as a checkpoint of its own. */
static struct pf_ckpt *floats(float *x, int64_t n)
{
    const struct pf_ckpt_live live = row("w", PF_ROLE_WEIGHT, PF_DTYPE_F32, n, x);

    return checkpoint(&live, 1, NULL);
}

static struct pf_inspect_diff diff_of(const struct pf_ckpt *a, const struct pf_ckpt *b,
                                      struct pf_inspect_tolerance tolerance)
{
    struct pf_inspect_diff diff = {0};

    if (pf_inspect_diff(a, b, false, &tolerance, NULL, &diff) != 0) {
        printf("# %s\n", pf_error_message());
        diff.n_items = -1;
    }
    return diff;
}

/* How many of n floats differ; the values of the first item. */
static int64_t n_differ(float *x, float *y, int64_t n, struct pf_inspect_tolerance tolerance,
                        struct pf_inspect_values *values_out)
{
    struct pf_ckpt *a = floats(x, n), *b = floats(y, n);
    struct pf_inspect_diff diff = diff_of(a, b, tolerance);
    const struct pf_inspect_values none = {0};
    const struct pf_inspect_values values = diff.n_items > 0 ? diff.items[0].values : none;

    pf_inspect_diff_release(&diff);
    pf_ckpt_free(a);
    pf_ckpt_free(b);
    if (values_out) {
        *values_out = values;
    }
    return values.n_differ;
}

static const struct pf_inspect_tolerance exact = PF_INSPECT_EXACT;

static struct pf_inspect_tolerance with(double rel, double abs, int64_t ulp)
{
    return (struct pf_inspect_tolerance){.rel = rel, .abs = abs, .ulp = ulp};
}

static float from_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

static void test_layouts(void)
{
    enum { ROWS = 6, COLUMNS = 5, N = ROWS * COLUMNS };
    const int64_t shape[] = {ROWS, COLUMNS};
    float all[N], left[ROWS * 2], right[ROWS * 3];

    for (int i = 0; i < N; i++) {
        all[i] = (float)i;
        const int r = i / COLUMNS, c = i % COLUMNS;
        *(c < 2 ? &left[r * 2 + c] : &right[r * 3 + c - 2]) = (float)i;
    }
    const struct pf_ckpt_live whole =
        piece("w", PF_DTYPE_F32, shape, (int64_t[]){0, 0}, (int64_t[]){ROWS, COLUMNS}, all);
    struct pf_ckpt_live cut[3] = {
        piece("w", PF_DTYPE_F32, shape, (int64_t[]){0, 0}, (int64_t[]){ROWS, 2}, left),
        piece("w", PF_DTYPE_F32, shape, (int64_t[]){0, 2}, (int64_t[]){ROWS, COLUMNS}, right),
    };
    cut[2] = cut[1];
    cut[1].range_hi = 7;
    cut[2].range_lo = 7;
    cut[2].range_hi = ROWS * 3;
    cut[2].data = right + 7;
    struct pf_ckpt *a = checkpoint(&whole, 1, NULL), *b = checkpoint(cut, 3, NULL);
    struct pf_inspect_digests x, y;
    struct pf_inspect_diff diff = diff_of(a, b, exact);

    ok(b->tensors[0].n_pieces == 3, "a tensor in three pieces, two of them ranges of a box");
    ok(diff.n_items == 0 && diff.n_same == 1 && diff.n_within == 0,
       "the same tensor in one piece and in three is identical");
    pf_inspect_diff_release(&diff);
    ok(pf_inspect_hash(a, false, NULL, &x) == 0 && pf_inspect_hash(b, false, NULL, &y) == 0 &&
           strcmp(x.lines[0].hex, y.lines[0].hex) == 0 && strcmp(x.overall, y.overall) == 0,
       "and has the same digest");
    pf_inspect_digests_release(&x);
    pf_inspect_digests_release(&y);
    pf_ckpt_free(b);
    right[17] = 0.5F;
    b = checkpoint(cut, 3, NULL);
    diff = diff_of(a, b, exact);
    ok(diff.n_items == 1 && diff.items[0].kind == PF_INSPECT_VALUES &&
           diff.items[0].values.n_differ == 1 && diff.items[0].values.first[0] == 5 &&
           diff.items[0].values.first[1] == 4 && diff.items[0].values.max_abs == 28.5,
       "one element changed in the last piece is found at its index in the whole");
    ok(diff.n_items == 1 && strcmp(diff.items[0].values.first_a, "29") == 0 &&
           strcmp(diff.items[0].values.first_b, "0.5") == 0,
       "and both its values are given");
    pf_inspect_diff_release(&diff);
    pf_ckpt_free(a);
    pf_ckpt_free(b);
}

static void test_bits(void)
{
    struct pf_inspect_values v;
    float plus = 0.0F, minus = -0.0F;
    float quiet = from_bits(0x7fc00000), payload = from_bits(0x7fc00001);
    struct pf_inspect_tolerance equal = exact, differ = exact;

    equal.nan = PF_INSPECT_NAN_EQUAL;
    differ.nan = PF_INSPECT_NAN_DIFFER;
    ok(n_differ(&plus, &minus, 1, exact, &v) == 1 && v.max_abs == 0 && v.max_ulp == 0,
       "+0 and -0 differ by their bits, though by no amount");
    ok(n_differ(&plus, &minus, 1, with(-1, -1, 0), NULL) == 0 &&
           n_differ(&plus, &minus, 1, with(-1, 0, -1), NULL) == 0,
       "any tolerance, even 0, admits +0 against -0");
    ok(n_differ(&quiet, &quiet, 1, exact, NULL) == 0, "a NaN is itself by its bits");
    ok(n_differ(&quiet, &payload, 1, exact, &v) == 1 && v.n_nan == 1 &&
           strcmp(v.first_b, "nan (0x7fc00001)") == 0,
       "NaNs of different payload differ, and the payload is shown");
    ok(n_differ(&quiet, &payload, 1, equal, NULL) == 0, "nan equal: any two NaNs are the same");
    ok(n_differ(&quiet, &quiet, 1, differ, NULL) == 1, "nan differ: not even itself");
    ok(n_differ(&quiet, &plus, 1, equal, &v) == 1 && v.n_nan == 1 && v.max_abs == 0,
       "a NaN against a number differs under every policy and spoils no maximum");
    ok(n_differ(&quiet, &plus, 1, with(1e9, 1e9, INT64_MAX), NULL) == 1,
       "no tolerance admits a NaN against a number");
}

static void test_tolerances(void)
{
    struct pf_inspect_values v;
    float x[] = {1, 100, -1e-30F, INFINITY}, y[] = {1, 101, 1e-30F, INFINITY};
    float big = FLT_MAX, infinite = INFINITY, one = 1, next = nextafterf(1, 2);

    ok(n_differ(x, y, 4, exact, &v) == 2 && v.max_abs == 1 && v.max_rel == 2,
       "the largest absolute and relative difference come from different elements");
    ok(n_differ(x, y, 4, with(-1, 1e-20, -1), NULL) == 1,
       "an absolute tolerance admits small ones");
    ok(n_differ(x, y, 4, with(0.01, -1, -1), NULL) == 1,
       "a relative tolerance admits large ones, not a change of sign");
    ok(n_differ(x, y, 4, with(0.01, 1e-20, -1), NULL) == 0, "the two add up");
    ok(n_differ(x, y, 4, with(0.009, -1, -1), NULL) == 2, "a tolerance is not exceeded unseen");
    ok(n_differ(&one, &next, 1, exact, &v) == 1 && v.max_ulp == 1, "neighbours are 1 ulp apart");
    ok(n_differ(&one, &next, 1, with(-1, -1, 1), NULL) == 0 &&
           n_differ(&one, &next, 1, with(-1, -1, 0), NULL) == 1,
       "ulp 1 admits neighbours, ulp 0 does not");
    ok(n_differ(&big, &infinite, 1, with(1, 1, 5), &v) == 1 && v.max_ulp == 1 && isinf(v.max_abs) &&
           isinf(v.max_rel),
       "an infinity is near nothing, though its bits are");
    float a[] = {from_bits(0x80000001)}, b[] = {from_bits(0x00000001)};
    ok(n_differ(a, b, 1, exact, &v) == 1 && v.max_ulp == 2, "ulps are counted through zero");
}

static void test_shapes_and_dtypes(void)
{
    float x[] = {1, 2, 3, 4};
    uint16_t bf16[] = {0x3f80, 0x4000, 0x4040, 0x4080};
    int32_t ints[] = {1, -2, 3, 4}, others[] = {1, -2, 3, -5};
    struct pf_ckpt_live live[] = {
        row("w", PF_ROLE_WEIGHT, PF_DTYPE_F32, 4, x),
        row("w", PF_ROLE_WEIGHT, PF_DTYPE_F32, 3, x),
        row("w", PF_ROLE_WEIGHT, PF_DTYPE_BF16, 4, bf16),
        row("w", PF_ROLE_BUFFER, PF_DTYPE_F32, 4, x),
        row("w", PF_ROLE_WEIGHT, PF_DTYPE_I32, 4, ints),
        row("w", PF_ROLE_WEIGHT, PF_DTYPE_I32, 4, others),
    };
    struct pf_ckpt *c[6];

    for (int i = 0; i < 6; i++) {
        c[i] = checkpoint(&live[i], 1, NULL);
    }
    struct pf_inspect_diff d = diff_of(c[0], c[1], exact);
    ok(d.n_items == 1 && d.items[0].kind == PF_INSPECT_SHAPE && !d.items[0].values.compared,
       "another shape is a difference, and no values are compared");
    pf_inspect_diff_release(&d);
    d = diff_of(c[0], c[2], exact);
    ok(d.n_items == 1 && d.items[0].kind == PF_INSPECT_DTYPE && d.items[0].values.compared &&
           d.items[0].values.n_differ == 0 && d.items[0].values.max_ulp == -1,
       "another dtype is a difference though all numbers are equal");
    pf_inspect_diff_release(&d);
    bf16[1] = 0x4001;
    pf_ckpt_free(c[2]);
    c[2] = checkpoint(&live[2], 1, NULL);
    d = diff_of(c[0], c[2], exact);
    ok(d.n_items == 1 && d.items[0].values.n_differ == 1 && d.items[0].values.max_abs == 0.015625,
       "the numbers of two floating dtypes are compared");
    pf_inspect_diff_release(&d);
    d = diff_of(c[0], c[3], exact);
    ok(d.n_items == 1 && d.items[0].kind == PF_INSPECT_ROLE && d.items[0].a && d.items[0].b,
       "one name with two roles is one difference of role");
    pf_inspect_diff_release(&d);
    d = diff_of(c[0], c[4], exact);
    ok(d.n_items == 1 && d.items[0].kind == PF_INSPECT_DTYPE && !d.items[0].values.compared,
       "floats and integers are not compared as numbers");
    pf_inspect_diff_release(&d);
    d = diff_of(c[4], c[5], with(9, 9, 9));
    ok(d.n_items == 1 && d.items[0].values.n_differ == 1 && d.items[0].values.first[1] == 3 &&
           strcmp(d.items[0].values.first_a, "4") == 0 &&
           strcmp(d.items[0].values.first_b, "-5") == 0 && !d.items[0].values.measured,
       "integers are compared exactly whatever the tolerance");
    pf_inspect_diff_release(&d);
    for (int i = 0; i < 6; i++) {
        pf_ckpt_free(c[i]);
    }
}

static void test_names(void)
{
    float x[] = {1, 2};
    struct pf_ckpt_live first[] = {row("a", PF_ROLE_WEIGHT, PF_DTYPE_F32, 2, x),
                                   row("b", PF_ROLE_WEIGHT, PF_DTYPE_F32, 2, x),
                                   row("b", PF_ROLE_MOMENT1, PF_DTYPE_F32, 2, x)};
    struct pf_ckpt_live second[] = {row("b", PF_ROLE_WEIGHT, PF_DTYPE_F32, 2, x),
                                    row("c", PF_ROLE_WEIGHT, PF_DTYPE_F32, 2, x)};
    struct pf_ckpt *a = checkpoint(first, 3, NULL), *b = checkpoint(second, 2, NULL);
    struct pf_inspect_diff d = diff_of(a, b, exact);

    ok(d.n_items == 3 && d.n_same == 1 && d.n_tensors_a == 3 && d.n_tensors_b == 2,
       "tensors of one side only are differences, the others are compared");
    ok(d.n_items == 3 && d.items[0].kind == PF_INSPECT_ONLY_A &&
           strcmp(d.items[0].a->name, "a") == 0 && d.items[1].kind == PF_INSPECT_ONLY_A &&
           d.items[1].a->role == PF_ROLE_MOMENT1 && d.items[2].kind == PF_INSPECT_ONLY_B &&
           strcmp(d.items[2].b->name, "c") == 0,
       "each is named with its side and role");
    pf_inspect_diff_release(&d);
    d = (struct pf_inspect_diff){0};
    ok(pf_inspect_diff(a, b, true, &exact, NULL, &d) == 0 && d.n_items == 2 && d.n_tensors_a == 2,
       "weights only: the moments are not looked at");
    pf_inspect_diff_release(&d);
    pf_ckpt_free(a);
    pf_ckpt_free(b);
}

static struct pf_inspect_diff diff_of_states(const char *x, const char *y)
{
    float w = 1;
    const struct pf_ckpt_live live = row("w", PF_ROLE_WEIGHT, PF_DTYPE_F32, 1, &w);
    struct pf_ckpt *a = checkpoint(&live, 1, x), *b = checkpoint(&live, 1, y);
    struct pf_inspect_diff d = diff_of(a, b, exact);

    pf_ckpt_free(a);
    pf_ckpt_free(b);
    return d;
}

static void test_state(void)
{
    struct pf_inspect_diff d =
        diff_of_states("{\"n\":8,\"s\":\"x\",\"r\":[1,2]}", "{\"s\":\"x\",\"r\":[1,2],\"n\":8}");
    ok(d.n_items == 0 && d.state_compared, "a state in another order of its members is the same");
    pf_inspect_diff_release(&d);
    d = diff_of_states("{\"a\":{\"b\":[1,2]},\"n\":1e3}", "{\"a\":{\"b\":[1,3]},\"n\":1000}");
    ok(d.n_items == 1 && d.items[0].kind == PF_INSPECT_STATE &&
           strcmp(d.items[0].path, "a.b[1]") == 0 && strcmp(d.items[0].text_a, "2") == 0 &&
           strcmp(d.items[0].text_b, "3") == 0,
       "a difference deep in the state is given by its path");
    pf_inspect_diff_release(&d);
    d = diff_of_states("{\"n\":9007199254740993}", "{\"n\":9007199254740992}");
    ok(d.n_items == 1, "integers that a double cannot tell apart differ");
    pf_inspect_diff_release(&d);
    d = diff_of_states("{\"n\":1,\"only\":true}", "{\"n\":\"1\"}");
    ok(d.n_items == 2 && d.items[1].text_a && !d.items[1].text_b,
       "a member of another type, and one that is not there");
    pf_inspect_diff_release(&d);
}

/* No tensor is held whole, whatever its size. */
static void test_memory(void)
{
    enum { N = 6 << 20 }; /* 24 MiB */
    float *x = pf_calloc_array(N, sizeof *x);
    struct pf_ckpt *a, *b;
    struct pf_inspect_digests digests;

    if (!x) {
        ok(false, "memory for the test");
        return;
    }
    a = floats(x, N);
    x[N - 1] = 1;
    b = floats(x, N);
    pf_free(x);
    pf_mem_reset_peak();
    const size_t before = pf_mem_live_bytes();
    struct pf_inspect_diff d = diff_of(a, b, exact);
    ok(d.n_items == 1 && d.items[0].values.first[1] == N - 1, "a change at the very end is found");
    ok(pf_mem_peak_bytes() - before < (size_t)16 << 20, "a diff of 24 MiB takes less than 16 MiB");
    pf_inspect_diff_release(&d);
    pf_mem_reset_peak();
    ok(pf_inspect_hash(a, false, NULL, &digests) == 0 && pf_mem_peak_bytes() - before < (size_t)8
                                                                                            << 20,
       "a digest of 24 MiB takes less than 8 MiB");
    pf_inspect_digests_release(&digests);
    pf_ckpt_free(a);
    pf_ckpt_free(b);
}

static void test_summary(void)
{
    float x[] = {1, 2, 3};
    uint16_t h[] = {0, 0};
    struct pf_ckpt_live live[] = {row("a", PF_ROLE_WEIGHT, PF_DTYPE_F32, 3, x),
                                  row("b", PF_ROLE_WEIGHT, PF_DTYPE_BF16, 2, h),
                                  row("b", PF_ROLE_MASTER, PF_DTYPE_F32, 2, x)};
    struct pf_ckpt *a = checkpoint(live, 3, NULL);
    struct pf_inspect_summary s;

    pf_inspect_summarise(a, &s);
    ok(s.all.n_tensors == 3 && s.all.n_elements == 7 && s.all.bytes == 24 && s.n_pieces == 3 &&
           s.file_bytes > 24,
       "tensors, elements and bytes add up");
    ok(s.by_role[PF_ROLE_WEIGHT].n_elements == 5 && s.by_role[PF_ROLE_MASTER].bytes == 8 &&
           s.by_dtype[PF_DTYPE_BF16].n_tensors == 1 && s.by_dtype[PF_DTYPE_F32].bytes == 20,
       "by role and by dtype");
    pf_ckpt_free(a);
}

int main(void)
{
    scratch_make();
    test_layouts();
    test_bits();
    test_tolerances();
    test_shapes_and_dtypes();
    test_names();
    test_state();
    test_memory();
    test_summary();
    scratch_remove();
    return done();
}
