/* SPDX-License-Identifier: Apache-2.0 */
/* Curves as SVG: a line, a band of what lies around it, ticks, marks. */
#include "chart_internal.h"

#include <pf/error.h>
#include <pf/mem.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Of the viewBox, and of the curve in it. */
#define WIDTH 720
#define HEIGHT 230
#define LEFT 66
#define RIGHT 708
#define TOP 10
#define BOTTOM 202
#define MAX_COLUMNS 320

int pf_chart_append_xml(struct pf_str *to, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '&':
            pf_str_append(to, "&amp;");
            break;
        case '<':
            pf_str_append(to, "&lt;");
            break;
        case '>':
            pf_str_append(to, "&gt;");
            break;
        case '"':
            pf_str_append(to, "&quot;");
            break;
        case '\'':
            pf_str_append(to, "&#39;");
            break;
        default:
            pf_str_append_char(to, (unsigned char)*text < 0x20 || *text == 0x7f ? ' ' : *text);
        }
    }
    return pf_str_error(to);
}

struct svg {
    struct pf_str *to;
    const struct pf_chart_curve *curve;
    struct chart_range range;
};

static double x_at(const struct svg *s, double x)
{
    const double width = s->range.x_hi - s->range.x_lo;

    return width > 0 ? LEFT + (x - s->range.x_lo) / width * (RIGHT - LEFT) : (LEFT + RIGHT) / 2.0;
}

static double y_at(const struct svg *s, double y)
{
    return BOTTOM - (y - s->range.y_lo) / (s->range.y_hi - s->range.y_lo) * (BOTTOM - TOP);
}

static bool is_inside(const struct svg *s, const struct pf_chart_mark *m)
{
    return m->x >= s->range.x_lo && m->x <= s->range.x_hi &&
           (m->kind != PF_CHART_DOT || !isnan(chart_y(s->curve, m->y)));
}

/* Dots count, and a little air above and below. */
static void widen_range(struct svg *s, const struct pf_chart_mark *marks, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (marks[i].kind == PF_CHART_DOT && is_inside(s, &marks[i])) {
            s->range.y_lo = fmin(s->range.y_lo, chart_y(s->curve, marks[i].y));
            s->range.y_hi = fmax(s->range.y_hi, chart_y(s->curve, marks[i].y));
        }
    }
    const double air = 0.04 * (s->range.y_hi - s->range.y_lo);
    s->range.y_lo -= air;
    s->range.y_hi += air;
}

/* Grid ------------------------------------------------------------------------------------------- */

/* 1, 2 and 5 times the powers of ten between two logarithms; powers alone where they are many. */
static int log_ticks(double lo, double hi, double ticks_out[PF_CHART_MAX_TICKS])
{
    static const double digits[] = {1, 2, 5};
    const bool all = hi - lo < 2.5;
    const int stride = 1 + (int)((hi - lo) / 8);
    int n = 0;

    for (int e = (int)floor(lo); e <= (int)ceil(hi); e += stride) {
        for (int k = 0; k < (all ? 3 : 1); k++) {
            const double at = e + log10(digits[k]);
            if (at >= lo && at <= hi && n < PF_CHART_MAX_TICKS) {
                ticks_out[n++] = at;
            }
        }
    }
    return n;
}

static void append_grid(const struct svg *s)
{
    const struct chart_range *const r = &s->range;
    double ticks[PF_CHART_MAX_TICKS];
    char label[32];

    int n = s->curve->log ? log_ticks(r->y_lo, r->y_hi, ticks)
                          : pf_chart_ticks(r->y_lo, r->y_hi, 6, ticks);
    for (int i = 0; i < n; i++) {
        chart_label(s->curve, ticks[i], label);
        pf_str_appendf(s->to,
                       "<path class=\"grid\" d=\"M%d %.1fH%d\"/>"
                       "<text class=\"label\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                       LEFT, y_at(s, ticks[i]), RIGHT, LEFT - 6, y_at(s, ticks[i]) + 4, label);
    }
    n = pf_chart_ticks(r->x_lo, r->x_hi, 9, ticks);
    for (int i = 0; i < n; i++) {
        pf_str_appendf(s->to,
                       "<path class=\"grid\" d=\"M%.1f %dV%d\"/>"
                       "<text class=\"label\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.10g"
                       "</text>\n",
                       x_at(s, ticks[i]), TOP, BOTTOM, x_at(s, ticks[i]), BOTTOM + 17, ticks[i]);
    }
}

/* Curve ------------------------------------------------------------------------------------------ */

/* Few points: each of them, with breaks at gaps. */
static void append_points(const struct svg *s)
{
    bool pen_down = false;

    pf_str_append(s->to, "<path class=\"line\" d=\"");
    for (size_t i = 0; i < s->curve->n; i++) {
        const double y = chart_y(s->curve, s->curve->y[i]);
        if (!isnan(y)) {
            pf_str_appendf(s->to, "%c%.1f %.1f", pen_down ? 'L' : 'M', x_at(s, s->curve->x[i]),
                           y_at(s, y));
        }
        pen_down = !isnan(y);
    }
    pf_str_append(s->to, "\"/>\n");
}

static void append_columns(const struct svg *s, const struct pf_chart_column *columns)
{
    const double width = (double)(RIGHT - LEFT) / MAX_COLUMNS;

    pf_str_append(s->to, "<path class=\"band\" d=\"");
    for (int c = 0; c < MAX_COLUMNS; c++) {
        pf_str_appendf(s->to, "%c%.1f %.1f", c ? 'L' : 'M', LEFT + (c + 0.5) * width,
                       y_at(s, columns[c].max));
    }
    for (int c = MAX_COLUMNS - 1; c >= 0; c--) {
        pf_str_appendf(s->to, "L%.1f %.1f", LEFT + (c + 0.5) * width, y_at(s, columns[c].min));
    }
    pf_str_append(s->to, "Z\"/>\n<path class=\"line\" d=\"");
    for (int c = 0; c < MAX_COLUMNS; c++) {
        pf_str_appendf(s->to, "%c%.1f %.1f", c ? 'L' : 'M', LEFT + (c + 0.5) * width,
                       y_at(s, columns[c].mean));
    }
    pf_str_append(s->to, "\"/>\n");
}

static int append_curve(const struct svg *s)
{
    struct pf_chart_column *columns;

    if (s->curve->n <= MAX_COLUMNS) {
        append_points(s);
        return 0;
    }
    columns = pf_calloc_array(MAX_COLUMNS, sizeof *columns);
    if (!columns) {
        return PF_ENOMEM;
    }
    pf_chart_columns(s->curve, MAX_COLUMNS, columns);
    append_columns(s, columns);
    pf_free(columns);
    return 0;
}

/* Marks ------------------------------------------------------------------------------------------ */

static void append_mark(const struct svg *s, const struct pf_chart_mark *m)
{
    const double x = x_at(s, m->x);

    switch (m->kind) {
    case PF_CHART_DOT:
        pf_str_appendf(s->to, "<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\">", x,
                       y_at(s, chart_y(s->curve, m->y)));
        break;
    case PF_CHART_TICK:
        pf_str_appendf(s->to, "<path class=\"tick\" d=\"M%.1f %dl-4 8h8z\">", x, BOTTOM - 4);
        break;
    case PF_CHART_LINE:
        pf_str_appendf(s->to, "<path class=\"break\" d=\"M%.1f %dV%d\">", x, TOP, BOTTOM);
        break;
    }
    pf_str_append(s->to, "<title>");
    pf_chart_append_xml(s->to, m->label);
    pf_str_appendf(s->to, "</title></%s>\n", m->kind == PF_CHART_DOT ? "circle" : "path");
}

int pf_chart_svg(struct pf_str *to, const struct pf_chart_curve *curve,
                 const struct pf_chart_mark *marks, size_t n_marks)
{
    struct svg s = {.to = to, .curve = curve, .range = chart_range_of(curve)};

    pf_str_appendf(to,
                   "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"pf-chart\" viewBox=\"0 0 %d "
                   "%d\" role=\"img\">\n<title>",
                   WIDTH, HEIGHT);
    pf_chart_append_xml(to, curve->title);
    pf_str_append(to, "</title>\n");
    if (s.range.is_empty) {
        pf_str_appendf(to, "<text class=\"label\" x=\"%d\" y=\"%d\">no values</text>\n", LEFT,
                       HEIGHT / 2);
    } else {
        widen_range(&s, marks, n_marks);
        append_grid(&s);
        PF_TRY(append_curve(&s));
    }
    for (size_t i = 0; i < n_marks && !s.range.is_empty; i++) {
        if (is_inside(&s, &marks[i])) {
            append_mark(&s, &marks[i]);
        }
    }
    return pf_str_append(to, "</svg>\n");
}
