/* SPDX-License-Identifier: Apache-2.0 */
/* A schedule's timeline as SVG. */
#include "schedule_internal.h"

#include <pf/chart.h>
#include <pf/error.h>
#include <pf/str.h>

#include <string.h>

/* Pixels. */
enum { LEFT = 64, TOP = 44, ROW = 28, BAR = 24, BELOW = 56, RIGHT = 16, LEAST_WIDTH = 900 };
#define STEP_WIDTH 16.0 /* of the shortest step */
#define MOST_WIDTH 20000.0

static const char style[] =
    "<style>text{font:12px sans-serif;fill:#222}.name{fill:#fff;text-anchor:middle}"
    ".tick{text-anchor:middle}.back{fill:#eee}.grid{stroke:#ccc}"
    ".F0{fill:#2f6db3}.F1{fill:#6a9fd8}.B0{fill:#2e8b57}.B1{fill:#66b98a}"
    ".I0{fill:#2e8b57}.I1{fill:#66b98a}.W0{fill:#a0522d}.W1{fill:#cd853f}</style>\n";

struct svg {
    const struct pf_schedule *s;
    const struct pf_sched_timeline *t;
    struct pf_str *to;
    double scale; /* pixels a unit of time */
};

static double width_of(const struct svg *g)
{
    const double wide = g->t->total / sched_shortest(g->s, g->t) * STEP_WIDTH;

    return wide < LEAST_WIDTH ? LEAST_WIDTH : wide > MOST_WIDTH ? MOST_WIDTH : wide;
}

static void append_step(const struct svg *g, int stage, int i)
{
    const struct pf_sched_step *const step = &g->s->stages[stage].steps[i];
    const struct pf_sched_span *const span = &g->t->spans[stage][i];
    const double x = LEFT + span->start * g->scale, w = (span->end - span->start) * g->scale;
    const int y = TOP + stage * ROW;
    char label[24];

    (void)sched_label(g->s, step, label);
    pf_str_appendf(
        g->to,
        "<rect class=\"%c%d\" x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" "
        "stroke=\"#fff\"><title>%s of micro-batch %d, chunk %d: %g to %g</title></rect>\n",
        label[0], step->chunk / g->s->n_stages % 2, x, y, w, BAR, pf_sched_kind_name(step->kind),
        step->micro, step->chunk, span->start, span->end);
    if (w >= 8 * (double)strlen(label + 1)) { /* the colour says which kind it is */
        pf_str_appendf(g->to, "<text class=\"name\" x=\"%.2f\" y=\"%d\">%s</text>\n", x + w / 2,
                       y + 16, label + 1);
    }
}

static void append_stage(const struct svg *g, int stage)
{
    const struct pf_sched_list *const list = &g->s->stages[stage];

    pf_str_appendf(g->to,
                   "<text x=\"8\" y=\"%d\">stage %d</text>\n<rect class=\"back\" x=\"%d\" y=\"%d\" "
                   "width=\"%.2f\" height=\"%d\"/>\n",
                   TOP + stage * ROW + 16, stage, LEFT, TOP + stage * ROW, g->t->total * g->scale,
                   BAR);
    for (int i = 0; i < list->n_steps; i++) {
        if (sched_is_compute(list->steps[i].kind)) {
            append_step(g, stage, i);
        }
    }
}

static void append_axis(const struct svg *g, int bottom)
{
    double ticks[PF_CHART_MAX_TICKS];
    const int n = pf_chart_ticks(0, g->t->total, PF_CHART_MAX_TICKS, ticks);

    for (int i = 0; i < n; i++) {
        const double x = LEFT + ticks[i] * g->scale;
        pf_str_appendf(g->to,
                       "<line class=\"grid\" x1=\"%.2f\" x2=\"%.2f\" y1=\"%d\" y2=\"%d\"/>\n"
                       "<text class=\"tick\" x=\"%.2f\" y=\"%d\">%g</text>\n",
                       x, x, bottom, bottom + 5, x, bottom + 18, ticks[i]);
    }
}

/* What the colours of the kinds in use mean. */
static void append_legend(const struct svg *g, int y)
{
    static const struct {
        char letter;
        const char *name;
    } kinds[] = {
        {'F', "forward"}, {'B', "backward"}, {'I', "input gradients"}, {'W', "weight gradients"}};
    bool used[4] = {false};
    int x = LEFT;

    for (int i = 0; i < g->s->stages[0].n_steps; i++) {
        const enum pf_sched_kind kind = g->s->stages[0].steps[i].kind;
        if (sched_is_compute(kind)) {
            used[kind] = true;
        }
    }
    for (int kind = 0; kind < 4; kind++) {
        if (used[kind]) {
            pf_str_appendf(g->to,
                           "<rect class=\"%c0\" x=\"%d\" y=\"%d\" width=\"12\" height=\"12\"/>\n"
                           "<text x=\"%d\" y=\"%d\">%s</text>\n",
                           kinds[kind].letter, x, y - 10, x + 18, y, kinds[kind].name);
            x += 140;
        }
    }
}

int pf_schedule_svg(const struct pf_schedule *schedule, const struct pf_sched_timeline *timeline,
                    const char *title, struct pf_str *to)
{
    struct svg g = {.s = schedule, .t = timeline, .to = to};
    const double width = width_of(&g);
    const int bottom = TOP + schedule->n_stages * ROW;

    g.scale = width / timeline->total;
    pf_str_appendf(to,
                   "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%d\" "
                   "viewBox=\"0 0 %.0f %d\">\n<title>",
                   LEFT + width + RIGHT, bottom + BELOW, LEFT + width + RIGHT, bottom + BELOW);
    pf_chart_append_xml(to, title);
    pf_str_append(to, "</title>\n");
    pf_str_append(to, style);
    pf_str_append(to, "<text x=\"8\" y=\"24\">");
    pf_chart_append_xml(to, title);
    pf_str_append(to, "</text>\n");
    for (int stage = 0; stage < schedule->n_stages; stage++) {
        append_stage(&g, stage);
    }
    append_axis(&g, bottom);
    append_legend(&g, bottom + 44);
    pf_str_append(to, "</svg>\n");
    return pf_str_error(to);
}
