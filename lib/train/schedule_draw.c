/* SPDX-License-Identifier: Apache-2.0 */
/* A schedule's timeline as lines of text. */
#include "schedule_internal.h"

#include <pf/error.h>
#include <pf/mem.h>
#include <pf/str.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Beyond so many lines nobody follows a drawing: an overview says more. */
#define MOST_LINES 64
#define PREFIX 5 /* "  12 " */

/* Of F, B, I, W; a stage's chunks alternate between two shades. */
static const char letters[] = "FBIW", fills[] = "-==~";
static const char *const colours[2][4] = {{"44", "42", "46", "45"}, {"104", "102", "106", "105"}};

struct drawing {
    const struct pf_schedule *s;
    const struct pf_sched_timeline *t;
    const struct pf_sched_style *style;
    struct pf_str *to;
    bool overview;
    double columns_per_time;
    int n_columns;       /* of the whole drawing */
    char *text;          /* [n_columns] of one stage */
    signed char *colour; /* [n_columns] kind * 2 + shade, or -1 */
};

int sched_label(const struct pf_schedule *s, const struct pf_sched_step *step, char label[24])
{
    const int local = step->chunk / s->n_stages;
    const int n = snprintf(label, 24, "%c%d", letters[step->kind], step->micro);

    if (s->vpp > 1 && local < 26) {
        label[n] = (char)('a' + local);
        label[n + 1] = '\0';
        return n + 1;
    }
    return n;
}

double sched_shortest(const struct pf_schedule *s, const struct pf_sched_timeline *timeline)
{
    double shortest = timeline->total;

    for (int stage = 0; stage < s->n_stages; stage++) {
        for (int i = 0; i < s->stages[stage].n_steps; i++) {
            const struct pf_sched_span *const span = &timeline->spans[stage][i];
            const double length = span->end - span->start;
            shortest = length > 0 && length < shortest ? length : shortest;
        }
    }
    return shortest;
}

/* The shortest step gets so many columns; false where that takes too many lines. */
static bool fits(struct drawing *d, int width, int columns)
{
    const double wide = ceil(d->t->total / sched_shortest(d->s, d->t) * columns);

    if (ceil(wide / width) * (d->s->n_stages + 1) > MOST_LINES) {
        return false;
    }
    d->n_columns = (int)wide;
    return true;
}

/* So wide that each name fits, or a letter for each step, or what the width gives. */
static void scale(struct drawing *d, int width)
{
    const struct pf_sched_step longest = {.micro = d->s->n_micro - 1};
    char label[24];

    d->overview = !fits(d, width, sched_label(d->s, &longest, label) + 1);
    if (d->overview && !fits(d, width, 1)) {
        d->n_columns = width;
    }
    d->columns_per_time = d->n_columns / d->t->total;
}

static void put(struct drawing *d, const struct pf_sched_step *step,
                const struct pf_sched_span *span)
{
    const int from = (int)lround(span->start * d->columns_per_time);
    const int to = (int)lround(span->end * d->columns_per_time);
    char label[24];
    const int n = sched_label(d->s, step, label);

    for (int c = from; c < to && c < d->n_columns; c++) {
        d->text[c] = d->overview ? letters[step->kind] : fills[step->kind];
        d->colour[c] = (signed char)(step->kind * 2 + step->chunk / d->s->n_stages % 2);
    }
    if (!d->overview && n <= to - from) {
        memcpy(d->text + from, label, (size_t)n);
    }
}

static void fill_stage(struct drawing *d, int stage)
{
    const struct pf_sched_list *const list = &d->s->stages[stage];

    memset(d->text, '.', (size_t)d->n_columns);
    memset(d->colour, -1, (size_t)d->n_columns);
    for (int i = 0; i < list->n_steps; i++) {
        if (sched_is_compute(list->steps[i].kind)) {
            put(d, &list->steps[i], &d->t->spans[stage][i]);
        }
    }
}

/* Columns [from, to) of the stage that was filled in. */
static void append_line(struct drawing *d, int stage, int from, int to)
{
    pf_str_appendf(d->to, "%*d ", PREFIX - 1, stage);
    for (int c = from, end; c < to; c = end) {
        for (end = c + 1; end < to && d->colour[end] == d->colour[c]; end++) {
        }
        const bool coloured = d->style->colour && d->colour[c] >= 0;
        if (coloured) {
            pf_str_appendf(d->to, "\033[30;%sm", colours[d->colour[c] % 2][d->colour[c] / 2]);
        }
        pf_str_append_bytes(d->to, d->text + c, (size_t)(end - c));
        pf_str_append(d->to, coloured ? "\033[0m" : "");
    }
    pf_str_append_char(d->to, '\n');
}

int pf_schedule_draw(const struct pf_schedule *schedule, const struct pf_sched_timeline *timeline,
                     const struct pf_sched_style *style, struct pf_str *to)
{
    struct drawing d = {.s = schedule, .t = timeline, .style = style, .to = to};
    const int width = style->width - PREFIX;

    scale(&d, width);
    d.text = pf_alloc((size_t)d.n_columns);
    d.colour = pf_alloc((size_t)d.n_columns);
    for (int from = 0; d.text && d.colour && from < d.n_columns; from += width) {
        pf_str_append(to, from > 0 ? "\n" : "");
        for (int stage = 0; stage < schedule->n_stages; stage++) {
            fill_stage(&d, stage);
            append_line(&d, stage, from, from + width < d.n_columns ? from + width : d.n_columns);
        }
    }
    const int err = d.text && d.colour ? pf_str_error(to) : PF_ENOMEM;
    pf_free(d.text);
    pf_free(d.colour);
    return err;
}
