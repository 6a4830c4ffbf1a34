/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chart.h - curves as text for a terminal, and as SVG for a page.
 *
 * A curve is a row of points whose x does not fall; a y that is not finite is a gap. Of many points
 * few columns are made: each is the mean of the points that fall in it, and in SVG the range of them
 * is a band behind the line. Columns without a point lie on the line between their neighbours.
 *
 *     const struct pf_chart_curve loss = {.title = "loss", .n = n, .x = step, .y = loss_of};
 *     PF_TRY(pf_chart_text(&text, &loss, &(struct pf_chart_style){.width = 80, .height = 8}));
 *
 * All functions are local and deterministic: the same points give the same text.
 */
#ifndef PF_CHART_H
#define PF_CHART_H

#include <pf/str.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pf_chart_curve {
    const char *title; /* "loss" */
    size_t n;
    const double *x, *y; /* n of each; x in rising order */
    bool log;            /* draw the logarithm of y; points of y <= 0 are gaps then */
};

/* One column: of the points in it. mean is NAN where the whole curve has no point. */
struct pf_chart_column {
    double mean, min, max; /* of y, or of log10 y */
    int64_t n;             /* points; 0: mean lies between the neighbours */
};

/* Spread a curve over n_columns > 0 columns of equal width from its first to its last x. */
void pf_chart_columns(const struct pf_chart_curve *curve, int n_columns,
                      struct pf_chart_column *columns_out);

/* Is a logarithm the better scale: all y that are finite above 0, the largest over 50 times the
 * median? */
bool pf_chart_wants_log(const double *y, size_t n);

#define PF_CHART_MAX_TICKS 12

/* Round numbers (1, 2 or 5 times a power of ten apart) in [lo, hi]: at most n_most (2 or more, up to
 * PF_CHART_MAX_TICKS). Returns how many; 0 unless lo < hi. */
int pf_chart_ticks(double lo, double hi, int n_most, double ticks_out[PF_CHART_MAX_TICKS]);

struct pf_chart_style {
    int width, height; /* characters in all (at least 24), lines of the curve (at least 1) */
    bool unicode;      /* block characters in eighths; else ASCII */
};

/* Append the curve as lines of text: its title, the curve, an x axis. A curve without a point gives
 * its title and "no values". */
int pf_chart_text(struct pf_str *to, const struct pf_chart_curve *curve,
                  const struct pf_chart_style *style);

enum pf_chart_mark_kind {
    PF_CHART_DOT,  /* a value of its own at (x, y), such as an evaluation */
    PF_CHART_TICK, /* something that happened at x, such as a save */
    PF_CHART_LINE, /* a break at x, such as a resume */
};

struct pf_chart_mark {
    enum pf_chart_mark_kind kind;
    double x, y;
    char label[96]; /* shown when pointed at */
};

/*
 * Append the curve as one <svg> element of a fixed viewBox that fits its container. It carries no
 * colours but classes: "pf-chart" on the element, "grid", "band", "line", "dot", "tick", "break",
 * "label" within; the page's style sheet says the rest. Marks outside the curve's x are left out; dots
 * count for the range of y.
 * Source: Scalable Vector Graphics 1.1, W3C.
 */
int pf_chart_svg(struct pf_str *to, const struct pf_chart_curve *curve,
                 const struct pf_chart_mark *marks, size_t n_marks);

/* Append text with the five characters that XML gives a meaning, and control characters, replaced. */
int pf_chart_append_xml(struct pf_str *to, const char *text);

#endif
