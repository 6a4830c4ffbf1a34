/* SPDX-License-Identifier: Apache-2.0 */
/* chart_internal.h - what the two ways to draw a curve share. */
#ifndef CHART_INTERNAL_H
#define CHART_INTERNAL_H

#include <pf/chart.h>

struct chart_range {
    double x_lo, x_hi, y_lo, y_hi;
    bool is_empty; /* no point */
};

/* Of the drawn points: y is the logarithm where the curve has one. y_lo < y_hi, x_lo <= x_hi. */
struct chart_range chart_range_of(const struct pf_chart_curve *curve);

/* y as it is drawn; NAN: a gap. */
double chart_y(const struct pf_chart_curve *curve, double y);

/* The number at a height, back from its logarithm, in few digits. */
void chart_label(const struct pf_chart_curve *curve, double y, char text_out[32]);

#endif
