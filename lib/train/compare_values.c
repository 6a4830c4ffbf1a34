/* SPDX-License-Identifier: Apache-2.0 */
/* How far two runs are apart. */
#include <pf/compare.h>

#include <pf/ckpt.h>
#include <pf/error.h>
#include <pf/file.h>
#include <pf/history.h>
#include <pf/mem.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Elements of a tensor that are read at once. */
#define CHUNK ((int64_t)1 << 20)

static void keep_worst(struct pf_compare_row *row, double difference, const char *where)
{
    if (difference > row->difference || isnan(difference)) {
        row->difference = isnan(difference) ? INFINITY : difference;
        snprintf(row->where, sizeof row->where, "%s", where);
    }
}

/* Both NaN (a step of fp16 that overflowed) is no difference. */
static double relative(double a, double b)
{
    if (isnan(a) && isnan(b)) {
        return 0;
    }
    return a == b ? 0 : fabs(a - b) / fmax(fabs(a), 1e-300);
}

static int compare_metrics(const char *one, const char *two, struct pf_compare *report)
{
    struct pf_history a = {0}, b = {0};
    char where[64];
    int err = pf_history_read(one, &a);

    err = err ? err : pf_history_read(two, &b);
    if (!err && a.n_points != b.n_points) {
        err = pf_fail(PF_EINVAL, "'%s' logged %lld steps and '%s' %lld", one, (long long)a.n_points,
                      two, (long long)b.n_points);
    }
    report->steps = err ? 0 : a.n_points;
    for (int64_t i = 0; !err && i < a.n_points; i++) {
        const double loss = relative(a.values[PF_HISTORY_LOSS][i], b.values[PF_HISTORY_LOSS][i]);
        snprintf(where, sizeof where, "step %lld", (long long)a.step[i]);
        if (i == 0) {
            keep_worst(&report->rows[PF_COMPARE_FIRST_LOSS], loss, where);
        }
        keep_worst(&report->rows[PF_COMPARE_LOSS], loss, where);
        keep_worst(&report->rows[PF_COMPARE_NORM],
                   relative(a.values[PF_HISTORY_GRAD_NORM][i], b.values[PF_HISTORY_GRAD_NORM][i]),
                   where);
    }
    pf_history_release(&a);
    pf_history_release(&b);
    return err;
}

/* Rows [first, end) of the first dimension. */
static struct pf_box rows_of(const struct pf_ckpt_tensor *tensor, int64_t first, int64_t end)
{
    struct pf_box box = pf_ckpt_whole(tensor);

    if (box.n_dims > 0) {
        box.lo[0] = first;
        box.hi[0] = end;
    }
    return box;
}

/* Sums of squares of a tensor of one run, and of its difference from the other's. */
struct squares {
    double of, between;
};

static void add_squares(const float *a, const float *b, int64_t n, struct squares *s)
{
    for (int64_t i = 0; i < n; i++) {
        const double x = a[i], d = x - b[i];
        s->of += x * x;
        s->between += d * d;
    }
}

static int compare_tensor(const struct pf_ckpt *one, const struct pf_ckpt *two,
                          const struct pf_ckpt_tensor *a, const struct pf_ckpt_tensor *b,
                          struct squares *s)
{
    const struct pf_box whole = pf_ckpt_whole(a);
    const int64_t n_rows = a->n_dims > 0 ? a->shape[0] : 1;
    const int64_t width = n_rows > 0 ? pf_box_count(&whole) / n_rows : 0;
    const int64_t most = width > 0 && width < CHUNK ? CHUNK / width : 1;
    float *const x = pf_calloc_array(2 * (size_t)(most * width) + 1, sizeof *x);
    int err = x ? 0 : PF_ENOMEM;

    for (int64_t first = 0, end; first < n_rows && width > 0 && !err; first = end) {
        end = first + most < n_rows ? first + most : n_rows;
        const struct pf_box box = rows_of(a, first, end);
        float *const y = x + most * width;
        err = pf_ckpt_read_box(one, a, &box, PF_DTYPE_F32, x);
        err = err ? err : pf_ckpt_read_box(two, b, &box, PF_DTYPE_F32, y);
        add_squares(x, y, err ? 0 : (end - first) * width, s);
    }
    pf_free(x);
    return err;
}

static bool same_shape(const struct pf_ckpt_tensor *a, const struct pf_ckpt_tensor *b)
{
    bool same = b && a->n_dims == b->n_dims;

    for (int d = 0; same && d < a->n_dims; d++) {
        same = a->shape[d] == b->shape[d];
    }
    return same;
}

static double distance(const struct squares *s)
{
    return s->between > 0 ? sqrt(s->between / fmax(s->of, 1e-300)) : s->between;
}

/* all: NULL, or the tensors as one vector. */
static int compare_opened(const struct pf_ckpt *one, const struct pf_ckpt *two,
                          struct pf_compare_row *row, struct pf_compare_row *all,
                          bool *identical_out)
{
    struct squares sum = {0};

    *identical_out = one->n_tensors == two->n_tensors;
    for (int64_t i = 0; i < one->n_tensors; i++) {
        const struct pf_ckpt_tensor *const a = &one->tensors[i], *const b = pf_ckpt_find(
                                                                     two, a->name, a->role);
        struct squares s = {0};
        if (!same_shape(a, b)) {
            return pf_fail(PF_EINVAL, "'%s' is not in both runs with one shape", a->name);
        }
        PF_TRY(compare_tensor(one, two, a, b, &s));
        *identical_out = *identical_out && s.between == 0;
        keep_worst(row, distance(&s), a->name);
        sum.of += s.of;
        sum.between += s.between;
    }
    if (all) {
        keep_worst(all, distance(&sum), "");
    }
    return 0;
}

static int compare_tensors(const char *one, const char *two, struct pf_compare_row *row,
                           struct pf_compare_row *all, bool *identical_out)
{
    struct pf_ckpt *a = NULL, *b = NULL;
    int err = pf_ckpt_open(one, &a);

    err = err ? err : pf_ckpt_open(two, &b);
    err = err ? err : compare_opened(a, b, row, all, identical_out);
    pf_ckpt_free(a);
    pf_ckpt_free(b);
    return err;
}

static int compare_parts(const char *one, const char *two, const char *name,
                         struct pf_compare_row *row, struct pf_compare_row *all,
                         bool *identical_out)
{
    char *const a = pf_path_join(one, name), *const b = pf_path_join(two, name);
    const int err = a && b ? compare_tensors(a, b, row, all, identical_out) : PF_ENOMEM;

    pf_free(a);
    pf_free(b);
    return err;
}

static void judge(double tolerance, bool float32, struct pf_compare *report)
{
    const double allowed[PF_COMPARE_N_ROWS] = {
        [PF_COMPARE_FIRST_LOSS] = tolerance,
        [PF_COMPARE_LOSS] = tolerance,
        [PF_COMPARE_NORM] = tolerance,
        [PF_COMPARE_ALL_GRADIENTS] = tolerance,
        [PF_COMPARE_GRADIENTS] = float32 ? 2 * tolerance : 0,
    };

    report->within = true;
    for (int i = 0; i < PF_COMPARE_N_ROWS; i++) {
        struct pf_compare_row *const row = &report->rows[i];
        row->tolerance = allowed[i];
        if (row->tolerance > 0 && !(row->difference <= row->tolerance)) {
            report->within = false;
        }
    }
}

int pf_compare_runs(const char *one, const char *two, double tolerance, bool float32,
                    struct pf_compare *report_out)
{
    struct pf_compare report = {
        .rows = {[PF_COMPARE_FIRST_LOSS] = {.what = "first loss"},
                 [PF_COMPARE_LOSS] = {.what = "losses"},
                 [PF_COMPARE_NORM] = {.what = "gradient norms"},
                 [PF_COMPARE_ALL_GRADIENTS] = {.what = "gradients of step 1"},
                 [PF_COMPARE_GRADIENTS] = {.what = "each of them"},
                 [PF_COMPARE_WEIGHTS] = {.what = "weights at the end"}}};
    bool same_gradients;

    PF_TRY(compare_metrics(one, two, &report));
    PF_TRY(compare_parts(one, two, "dump/step-000001/grads.safetensors",
                         &report.rows[PF_COMPARE_GRADIENTS], &report.rows[PF_COMPARE_ALL_GRADIENTS],
                         &same_gradients));
    PF_TRY(
        compare_parts(one, two, "hf", &report.rows[PF_COMPARE_WEIGHTS], NULL, &report.identical));
    judge(tolerance, float32, &report);
    *report_out = report;
    return 0;
}
