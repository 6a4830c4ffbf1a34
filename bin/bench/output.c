/* SPDX-License-Identifier: Apache-2.0 */
/* A record for people, as a table, and for programs, as a document: both from the same struct. */
#include "command.h"

#include <pf/error.h>
#include <pf/file.h>
#include <pf/ops.h>
#include <pf/str.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Tables ---------------------------------------------------------------------------------------- */

#define MAX_COLUMNS 16

/* Cells, row by row; the first row is the head. */
struct table {
    int n_columns;
    bool right[MAX_COLUMNS]; /* aligned to the right */
    struct pf_str_list cells;
    int err;
};

static void add_column(struct table *t, const char *head, bool right)
{
    t->right[t->n_columns++] = right;
    t->err = t->err ? t->err : pf_str_list_append(&t->cells, head);
}

static void add_cell(struct table *t, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void add_cell(struct table *t, const char *format, ...)
{
    char text[256];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    t->err = t->err ? t->err : pf_str_list_append(&t->cells, text);
}

static void print_plain(const struct table *t)
{
    const size_t columns = (size_t)t->n_columns;
    size_t width[MAX_COLUMNS] = {0};

    for (size_t i = 0; i < t->cells.n; i++) {
        const size_t n = strlen(t->cells.items[i]);
        width[i % columns] = n > width[i % columns] ? n : width[i % columns];
    }
    for (size_t i = 0; i < t->cells.n; i++) {
        const size_t c = i % columns;
        const int pad = (int)(width[c] - strlen(t->cells.items[i]));
        const bool last = c + 1 == columns;
        printf("%s%*s%s%*s%s", c ? "  " : "", t->right[c] ? pad : 0, "", t->cells.items[i],
               t->right[c] || last ? 0 : pad, "", last ? "\n" : "");
    }
}

static void print_markdown(const struct table *t)
{
    const size_t columns = (size_t)t->n_columns;

    for (size_t i = 0; i < t->cells.n; i++) {
        printf("%s%s", i % columns ? " | " : "| ", t->cells.items[i]);
        if (i % columns + 1 < columns) {
            continue;
        }
        printf(" |\n");
        for (size_t c = 0; i < columns && c < columns; c++) {
            printf("%s%s", c ? "|" : "|", t->right[c] ? "---:" : "---");
        }
        printf("%s", i < columns ? "|\n" : "");
    }
}

#define NUMBER_BYTES 32

/* Four digits, more where they all stand before the point: 40000, never 4e+04. */
static const char *number(double x, char buf[NUMBER_BYTES])
{
    (void)snprintf(buf, NUMBER_BYTES, fabs(x) >= 9999.5 && fabs(x) < 1e15 ? "%.0f" : "%.4g", x);
    return buf;
}

/* "1.234 ms": three digits or four. */
static void add_time(struct table *t, double seconds)
{
    static const struct {
        double unit;
        const char *name;
    } units[] = {{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}};
    size_t i = 0;

    if (!isfinite(seconds)) {
        add_cell(t, "-");
        return;
    }
    while (i + 1 < sizeof units / sizeof units[0] && seconds < units[i].unit) {
        i++;
    }
    char digits[NUMBER_BYTES];
    add_cell(t, "%s %s", number(seconds / units[i].unit, digits), units[i].name);
}

static void add_percent(struct table *t, double share, int digits)
{
    if (isfinite(share)) {
        add_cell(t, "%.*f %%", digits, 100 * share);
    } else {
        add_cell(t, "-");
    }
}

/* The columns of a case ------------------------------------------------------------------------- */

static bool has_rival(const struct pf_bench_record *r)
{
    for (int i = 0; i < r->n_cases; i++) {
        if (r->cases[i].ratio.n > 0) {
            return true;
        }
    }
    return false;
}

static bool has_baseline(const struct pf_bench_record *r)
{
    for (int i = 0; i < r->n_cases; i++) {
        if (r->cases[i].verdict != PF_BENCH_NOT_COMPARED) {
            return true;
        }
    }
    return false;
}

static void add_heads(struct table *t, const struct pf_bench_record *r)
{
    add_column(t, "CASE", false);
    add_column(t, "KERNEL", false);
    add_column(t, "RIGHT", false);
    add_column(t, "MEDIAN", true);
    add_column(t, "MIN", true);
    add_column(t, "MAX", true);
    add_column(t, "SPREAD", true);
    add_column(t, "N", true);
    add_column(t, "RATE", true);
    add_column(t, "OF LIMIT", true);
    add_column(t, "LIMIT", false);
    if (has_rival(r)) {
        add_column(t, "RIVAL", true);
        add_column(t, "RATIO", true);
        add_column(t, "SPREAD", true);
    }
    if (has_baseline(r)) {
        add_column(t, "TIME/OLD", true);
        add_column(t, "VERDICT", false);
    }
}

static void add_rate(struct table *t, const struct pf_bench_case *c)
{
    double unit;
    const char *const name = pf_bench_rate_name(c->unit, &unit);
    const double work = c->is_step ? c->flop : c->work;
    const bool known = c->stats.n > 0;
    char rate[NUMBER_BYTES], flops[NUMBER_BYTES];

    if (!known) {
        add_cell(t, "-");
    } else if (c->is_step) {
        add_cell(t, "%s %s, %s GFLOP/s", number(c->work / c->stats.median, rate), name,
                 number(c->flop / c->stats.median / 1e9, flops));
    } else {
        add_cell(t, "%s %s", number(c->work / c->stats.median / unit, rate), name);
    }
    add_percent(t, known && c->limit > 0 ? work / c->stats.median / c->limit : NAN, 1);
    add_cell(t, "%s", c->limit_name[0] ? c->limit_name : "-");
}

static void add_row(struct table *t, const struct pf_bench_record *r, const struct pf_bench_case *c)
{
    add_cell(t, "%s", c->name);
    add_cell(t, "%s", c->kernel[0] ? c->kernel : "-");
    add_cell(t, "%s", !c->checked ? "-" : c->right ? "yes" : "NO");
    add_time(t, c->stats.n ? c->stats.median : NAN);
    add_time(t, c->stats.n ? c->stats.min : NAN);
    add_time(t, c->stats.n ? c->stats.max : NAN);
    add_percent(t, c->stats.n ? c->stats.spread : NAN, 1);
    add_cell(t, "%d", c->stats.n);
    add_rate(t, c);
    if (has_rival(r)) {
        const bool here = c->ratio.n > 0;
        add_time(t, here ? c->rival_stats.median : NAN);
        add_cell(t, here ? "%.3f" : "-", c->ratio.median);
        add_percent(t, here ? (c->ratio.q3 - c->ratio.q1) / c->ratio.median : NAN, 1);
    }
    if (has_baseline(r)) {
        add_cell(t, c->slowdown > 0 ? "%.3f" : "-", c->slowdown);
        add_cell(t, "%s", pf_bench_verdict_name(c->verdict));
    }
}

static void print_table(const struct options *o, struct table *t)
{
    if (!t->err && o->markdown) {
        print_markdown(t);
    } else if (!t->err) {
        print_plain(t);
    }
    pf_str_list_release(&t->cells);
}

/* What the ops take of a step. */
static void print_parts(const struct options *o, const struct pf_bench_case *c)
{
    struct table t = {0};
    double rest = c->parts_seconds;

    if (!c->is_step || c->parts_seconds <= 0) {
        return;
    }
    add_column(&t, "OP", false);
    add_column(&t, "CALLS", true);
    add_column(&t, "TIME", true);
    add_column(&t, "OF STEP", true);
    add_column(&t, "GFLOP/s", true);
    add_column(&t, "GB/s", true);
    for (int op = 0; op < PF_OP_COUNT; op++) {
        const struct pf_bench_part *const p = &c->parts[op];
        if (p->calls == 0) {
            continue;
        }
        add_cell(&t, "%s", pf_op_name((enum pf_op)op));
        add_cell(&t, "%" PRId64, p->calls);
        add_time(&t, p->seconds);
        add_percent(&t, p->seconds / c->parts_seconds, 1);
        add_cell(&t, p->flop > 0 ? "%.1f" : "-", p->flop / p->seconds / 1e9);
        add_cell(&t, "%.1f", p->bytes / p->seconds / 1e9);
        rest -= p->seconds;
    }
    add_cell(&t, "(rest)");
    add_cell(&t, "-");
    add_time(&t, rest);
    add_percent(&t, rest / c->parts_seconds, 1);
    add_cell(&t, "-");
    add_cell(&t, "-");
    printf("\n");
    print_table(o, &t);
}

static void print_where(const struct options *o, const struct pf_bench_record *r)
{
    const struct pf_bench_env *const e = &r->env;
    const struct pf_limits *const l = &r->limits;

    printf("%s%s, %d %s, %d %s, %s%s%s%s%s\n", o->markdown ? "\n" : "\n", e->cpu, e->n_cpus,
           e->n_cpus == 1 ? "CPU" : "CPUs", e->n_threads, e->n_threads == 1 ? "thread" : "threads",
           e->isa, e->library[0] ? ", " : "", e->library, r->rival[0] ? "; " : "", r->rival);
    if (l->f32_flops > 0) {
        printf("limits: fma F32 %.1f GFLOP/s", l->f32_flops / 1e9);
        if (l->bf16_flops > 0) {
            printf(", BF16 %.1f GFLOP/s", l->bf16_flops / 1e9);
        }
        if (r->gemm_f32 > 0) {
            printf("; gemm F32 %.1f GFLOP/s", r->gemm_f32 / 1e9);
        }
        if (r->gemm_bf16 > 0) {
            printf(", BF16 %.1f GFLOP/s", r->gemm_bf16 / 1e9);
        }
        printf("; triad %.1f GB/s, copy %.1f GB/s\n", l->triad_bytes / 1e9, l->copy_bytes / 1e9);
    }
}

static void print_record(const struct options *o, const struct pf_bench_record *r)
{
    struct table t = {0};

    add_heads(&t, r);
    for (int i = 0; i < r->n_cases; i++) {
        add_row(&t, r, &r->cases[i]);
    }
    print_table(o, &t);
    for (int i = 0; i < r->n_cases; i++) {
        print_parts(o, &r->cases[i]);
    }
    print_where(o, r);
    for (int i = 0; i < r->n_failures; i++) {
        printf("%s%s\n", o->markdown ? "- **failed**: " : "failed: ", r->failures[i].text);
    }
}

void print_names(const struct pf_bench_record *r)
{
    for (int i = 0; i < r->n_cases; i++) {
        printf("%s\n", r->cases[i].name);
    }
}

/* Documents ------------------------------------------------------------------------------------- */

static int write_document(struct options *o, const struct pf_bench_record *r, int err)
{
    struct pf_str text;

    if (!o->json) {
        return 0;
    }
    pf_str_init(&text);
    int failed = pf_bench_print_json(r, err, &text);
    failed = failed ? failed : pf_str_append_char(&text, '\n');
    if (!failed && strcmp(o->json, "-") == 0) {
        (void)fputs(text.text, stdout);
    } else if (!failed) {
        failed = pf_file_write_atomic(o->json, text.text, text.len);
    }
    pf_str_release(&text);
    o->answered = true;
    return failed;
}

void answer_failure(struct options *o, int err)
{
    struct pf_bench_record r;
    char message[512];

    (void)snprintf(message, sizeof message, "%s", pf_error_message());
    if (pf_bench_record_init(&r, "", 0) == 0) {
        (void)write_document(o, &r, err);
    }
    pf_bench_record_release(&r);
    (void)pf_fail(err, "%s", message);
}

static int compare_with(const struct options *o, struct pf_bench_record *r)
{
    struct pf_bench_record old = {.n_cases = 0};
    int err = pf_bench_read(o->baseline, &old);

    err = err ? err : pf_bench_compare(r, &old, o->max_slowdown, o->force);
    pf_bench_record_release(&old);
    return err;
}

int finish_record(struct options *o, struct pf_bench_record *r, int err)
{
    if (!err && o->list) {
        print_names(r);
        return 0;
    }
    if (!err && o->baseline) {
        err = compare_with(o, r);
    }
    if (!err && !isnan(o->min_ratio)) {
        err = pf_bench_require_ratio(r, o->min_ratio);
    }
    err = err ? err : pf_bench_verdict(r);
    if ((!err || err == PF_EDIFFER) && !(o->json && strcmp(o->json, "-") == 0)) {
        print_record(o, r);
    }
    const int failed = write_document(o, r, err);
    return err ? err : failed;
}

struct pf_bench_effort effort_of(const struct options *o)
{
    return (struct pf_bench_effort){.warmup = (int)o->warmup,
                                    .repeat = o->repeat > 0 ? (int)o->repeat : 0,
                                    .seconds = isnan(o->seconds) ? 0 : o->seconds};
}

void show_progress(void *context, int64_t done, int64_t total)
{
    struct options *const o = context;

    if (!o->progress_shown) {
        o->progress_shown = true;
        pf_progress_init(&o->progress, "measuring", PF_PROGRESS_COUNT, (uint64_t)total,
                         !o->shared.no_progress && o->shared.quiet == 0);
    }
    o->progress.total = (uint64_t)total;
    pf_progress_update(&o->progress, (uint64_t)done);
    if (done == total) {
        pf_progress_finish(&o->progress);
    }
}
