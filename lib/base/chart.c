/* SPDX-License-Identifier: Apache-2.0 */
/* Curves as text: columns of points, round ticks, block characters. */
#include "chart_internal.h"

#include <pf/error.h>
#include <pf/mem.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double chart_y(const struct pf_chart_curve *curve, double y)
{
    if (!isfinite(y) || (curve->log && y <= 0)) {
        return NAN;
    }
    return curve->log ? log10(y) : y;
}

void chart_label(const struct pf_chart_curve *curve, double y, char text_out[32])
{
    const double value = curve->log ? pow(10, y) : y;

    (void)snprintf(text_out, 32, fabs(value) >= 10000 && fabs(value) < 1e7 ? "%.0f" : "%.4g",
                   value);
}

struct chart_range chart_range_of(const struct pf_chart_curve *curve)
{
    struct chart_range r = {INFINITY, -INFINITY, INFINITY, -INFINITY, true};

    for (size_t i = 0; i < curve->n; i++) {
        const double y = chart_y(curve, curve->y[i]);
        if (!isnan(y)) {
            r.x_lo = fmin(r.x_lo, curve->x[i]);
            r.x_hi = fmax(r.x_hi, curve->x[i]);
            r.y_lo = fmin(r.y_lo, y);
            r.y_hi = fmax(r.y_hi, y);
            r.is_empty = false;
        }
    }
    if (!r.is_empty && !(r.y_hi > r.y_lo)) { /* a constant runs through the middle */
        const double half = r.y_lo == 0 ? 1 : fabs(r.y_lo) * 0.1;
        r.y_lo -= half;
        r.y_hi += half;
    }
    return r;
}

/* Columns -----------------------------------------------------------------------------------------
 */

/* Columns without points: on the line between the ones beside them. */
static void fill_gaps(struct pf_chart_column *columns, int n)
{
    int before = -1;

    for (int c = 0; c < n; c++) {
        if (columns[c].n == 0) {
            continue;
        }
        for (int k = before + 1; k < c; k++) {
            const double share = before < 0 ? 1 : (double)(k - before) / (c - before);
            const double from = before < 0 ? columns[c].mean : columns[before].mean;
            columns[k].mean = from + share * (columns[c].mean - from);
            columns[k].min = columns[k].max = columns[k].mean;
        }
        before = c;
    }
    for (int k = before + 1; k < n && before >= 0; k++) {
        columns[k] = columns[before];
        columns[k].n = 0;
    }
}

void pf_chart_columns(const struct pf_chart_curve *curve, int n_columns,
                      struct pf_chart_column *columns_out)
{
    const struct chart_range r = chart_range_of(curve);

    for (int c = 0; c < n_columns; c++) {
        columns_out[c] = (struct pf_chart_column){.mean = NAN, .min = NAN, .max = NAN};
    }
    for (size_t i = 0; i < curve->n; i++) {
        const double y = chart_y(curve, curve->y[i]);
        if (isnan(y)) {
            continue;
        }
        const double share = r.x_hi > r.x_lo ? (curve->x[i] - r.x_lo) / (r.x_hi - r.x_lo) : 0;
        const int at = (int)(share * n_columns);
        struct pf_chart_column *const c = &columns_out[at < n_columns ? at : n_columns - 1];
        c->n++;
        c->mean = c->n == 1 ? y : c->mean + (y - c->mean) / (double)c->n;
        c->min = fmin(c->min, y); /* fmin passes over the first NAN */
        c->max = fmax(c->max, y);
    }
    fill_gaps(columns_out, n_columns);
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

bool pf_chart_wants_log(const double *y, size_t n)
{
    double *const sorted = pf_calloc_array(n, sizeof *sorted);
    size_t n_finite = 0;
    bool wants = false;

    for (size_t i = 0; sorted && i < n; i++) {
        if (isfinite(y[i])) {
            sorted[n_finite++] = y[i];
        }
    }
    if (n_finite > 0) {
        qsort(sorted, n_finite, sizeof *sorted, compare);
        wants = sorted[0] > 0 && sorted[n_finite - 1] > 50 * sorted[n_finite / 2];
    }
    pf_free(sorted);
    pf_error_clear(); /* without memory: no */
    return wants;
}

int pf_chart_ticks(double lo, double hi, int n_most, double ticks_out[PF_CHART_MAX_TICKS])
{
    static const double steps[] = {1, 2, 5};
    int n = 0;

    if (!(lo < hi) || !isfinite(hi - lo)) {
        return 0;
    }
    n_most = n_most > PF_CHART_MAX_TICKS ? PF_CHART_MAX_TICKS : n_most;
    for (int k = 3 * ((int)floor(log10(hi - lo)) - 2);; k++) {
        const int e = k >= 0 ? k / 3 : -((2 - k) / 3);
        const double step = steps[k - 3 * e] * pow(10, e);
        const double first = ceil(lo / step - 1e-9), last = floor(hi / step + 1e-9);
        if (last - first + 1 <= n_most) {
            for (double t = first; t <= last; t++) {
                ticks_out[n++] = t * step + 0.0; /* no -0 */
            }
            return n;
        }
    }
}

/* Text --------------------------------------------------------------------------------------------
 */

/* One cell of a column whose top lies `eighths` above the cell's foot. */
static const char *cell(int eighths, bool unicode)
{
    static const char *const blocks[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char *const ascii[] = {" ", ".", ".", ":", ":", ":", "#", "#", "#"};
    const int level = eighths < 0 ? 0 : eighths > 8 ? 8 : eighths;

    return unicode ? blocks[level] : ascii[level];
}

struct text_chart {
    const struct pf_chart_curve *curve;
    const struct pf_chart_style *style;
    struct chart_range range;
    struct pf_chart_column *columns;
    int n_columns, label_width;
    double y_lo, y_hi; /* of the means, which are what is drawn */
};

static void append_repeated(struct pf_str *to, const char *text, int n)
{
    for (int i = 0; i < n; i++) {
        pf_str_append(to, text);
    }
}

/* The lines from the top; the least mean is one eighth high. */
static void append_lines(struct pf_str *to, const struct text_chart *t)
{
    const int height = t->style->height;
    char label[32];

    for (int line = height - 1; line >= 0; line--) {
        const bool labelled =
            line == height - 1 || line == 0 || (height >= 5 && line == height / 2);
        const double share = height > 1 ? (double)line / (height - 1) : 1;
        chart_label(t->curve, t->y_lo + share * (t->y_hi - t->y_lo), label);
        pf_str_appendf(to, "%*s %s", t->label_width, labelled ? label : "",
                       t->style->unicode ? (labelled ? "┤" : "│") : "|");
        for (int c = 0; c < t->n_columns; c++) {
            const double part = (t->columns[c].mean - t->y_lo) / (t->y_hi - t->y_lo);
            const int top = 1 + (int)lround(part * (8 * height - 1));
            pf_str_append(to, cell(top - 8 * line, t->style->unicode));
        }
        while (to->len > 0 && to->text[to->len - 1] == ' ') { /* no blanks at the end of a line */
            to->text[--to->len] = '\0';
        }
        pf_str_append_char(to, '\n');
    }
}

static void append_axis(struct pf_str *to, const struct text_chart *t)
{
    char first[32], last[32];

    pf_str_appendf(to, "%*s %s", t->label_width, "", t->style->unicode ? "└" : "+");
    append_repeated(to, t->style->unicode ? "─" : "-", t->n_columns);
    (void)snprintf(first, sizeof first, "%.10g", t->range.x_lo);
    (void)snprintf(last, sizeof last, "%.10g", t->range.x_hi);
    const int room = t->n_columns - (int)strlen(first) - (int)strlen(last);
    pf_str_appendf(to, "\n%*s  %s%*s%s\n", t->label_width, "", first, room > 1 ? room : 1, "",
                   t->range.x_hi > t->range.x_lo ? last : "");
}

static int label_width(const struct text_chart *t)
{
    char label[32];
    int width = 0;

    for (int i = 0; i <= 2; i++) {
        chart_label(t->curve, t->y_lo + i * (t->y_hi - t->y_lo) / 2, label);
        width = (int)strlen(label) > width ? (int)strlen(label) : width;
    }
    return width > 9 ? width : 9; /* so that curves below each other stand in line */
}

static void find_heights(struct text_chart *t)
{
    t->y_lo = INFINITY;
    t->y_hi = -INFINITY;
    for (int c = 0; c < t->n_columns; c++) {
        t->y_lo = fmin(t->y_lo, t->columns[c].mean);
        t->y_hi = fmax(t->y_hi, t->columns[c].mean);
    }
    if (!(t->y_hi > t->y_lo)) {
        t->y_lo = t->range.y_lo;
        t->y_hi = t->range.y_hi;
    }
}

int pf_chart_text(struct pf_str *to, const struct pf_chart_curve *curve,
                  const struct pf_chart_style *style)
{
    struct text_chart t = {.curve = curve, .style = style, .range = chart_range_of(curve)};

    if (t.range.is_empty) {
        return pf_str_appendf(to, "%s: no values\n", curve->title);
    }
    t.n_columns = style->width > 24 ? style->width : 24;
    t.columns = pf_calloc_array((size_t)t.n_columns, sizeof *t.columns);
    if (!t.columns) {
        return PF_ENOMEM;
    }
    /* The labels depend on the columns, and they on the room that labels leave: narrow down once. */
    pf_chart_columns(curve, t.n_columns, t.columns);
    find_heights(&t);
    t.n_columns -= label_width(&t) + 2;
    t.n_columns = t.n_columns < 8 ? 8 : t.n_columns;
    pf_chart_columns(curve, t.n_columns, t.columns);
    find_heights(&t);
    t.label_width = label_width(&t);
    pf_str_appendf(to, "%s%s\n", curve->title, curve->log ? " (logarithmic)" : "");
    append_lines(to, &t);
    append_axis(to, &t);
    pf_free(t.columns);
    return pf_str_error(to);
}
