/* SPDX-License-Identifier: Apache-2.0 */
/* What the history of a run amounts to. */
#include <pf/history.h>

#include <pf/error.h>
#include <pf/mem.h>

#include <math.h>
#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double mean(const double *x, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++) {
        sum += x[i];
    }
    return sum / (double)n;
}

/* room: for n_points numbers. */
static struct pf_history_range range_of(const struct pf_history *h, enum pf_history_value value,
                                        double *room)
{
    struct pf_history_range r = {NAN, NAN, NAN, NAN, NAN, NAN, -1, -1};
    int64_t n = 0;

    for (int64_t i = 0; i < h->n_points; i++) {
        const double y = h->values[value][i];
        if (!isfinite(y)) {
            continue;
        }
        if (!(y >= r.min)) {
            r.min = y;
            r.min_step = (int64_t)h->step[i];
        }
        if (!(y <= r.max)) {
            r.max = y;
            r.max_step = (int64_t)h->step[i];
        }
        room[n++] = y;
    }
    if (n > 0) {
        const int64_t tenth = n / 10 > 1 ? n / 10 : 1;
        r.first = room[0];
        r.last = room[n - 1];
        r.recent = mean(room + n - tenth, tenth);
        qsort(room, (size_t)n, sizeof *room, compare);
        r.median = n % 2 ? room[n / 2] : (room[n / 2 - 1] + room[n / 2]) / 2;
    }
    return r;
}

static void sum_steps(const struct pf_history *h, struct pf_history_summary *s)
{
    double seconds = 0, tokens = 0;
    int64_t n = 0;

    s->first_step = h->n_points ? (int64_t)h->step[0] : -1;
    s->last_step = h->n_points ? (int64_t)h->step[h->n_points - 1] : -1;
    const int64_t n_steps = h->n_points ? s->last_step - s->first_step + 1 : 0;
    s->has_all_steps = n_steps == h->n_points;
    for (int64_t i = 0; i < h->n_points; i++) {
        const double step_seconds = h->values[PF_HISTORY_STEP_SECONDS][i];
        s->n_not_finite += !isfinite(h->values[PF_HISTORY_LOSS][i]) ||
                           !isfinite(h->values[PF_HISTORY_GRAD_NORM][i]);
        if (isfinite(step_seconds) && isfinite(h->tokens[i])) {
            seconds += step_seconds;
            tokens += h->tokens[i];
            n++;
        }
    }
    s->step_seconds = n ? seconds * (double)n_steps / (double)n : NAN;
    s->tokens = n ? tokens * (double)n_steps / (double)n : NAN;
}

static void sum_save(const struct pf_history_event *e, struct pf_history_summary *s)
{
    s->n_saves++;
    s->save_seconds += isnan(e->seconds) ? 0 : e->seconds;
    s->stall_seconds += isnan(e->stall) ? 0 : e->stall;
}

static void sum_event(const struct pf_history_event *e, struct pf_history_summary *s)
{
    switch (e->kind) {
    case PF_HISTORY_START:
        s->n_resumes += e->step >= 0;
        s->end = NULL;
        break;
    case PF_HISTORY_SAVE:
        sum_save(e, s);
        break;
    case PF_HISTORY_EVAL:
        s->n_evals++;
        s->last_eval = e;
        s->best_eval = !s->best_eval || e->loss < s->best_eval->loss ? e : s->best_eval;
        break;
    case PF_HISTORY_WARNING:
        s->n_warnings++;
        break;
    case PF_HISTORY_FAULT:
        s->n_faults++;
        break;
    case PF_HISTORY_END:
        s->end = e;
        break;
    case PF_HISTORY_OTHER:
        break;
    }
}

int pf_history_summarise(const struct pf_history *history, struct pf_history_summary *summary_out)
{
    struct pf_history_summary s = {.first_step = -1};
    double *const room = pf_calloc_array((size_t)history->n_points, sizeof *room);

    if (!room) {
        return PF_ENOMEM;
    }
    for (int v = 0; v < PF_HISTORY_N_VALUES; v++) {
        s.values[v] = range_of(history, (enum pf_history_value)v, room);
    }
    pf_free(room);
    sum_steps(history, &s);
    for (int64_t i = 0; i < history->n_events; i++) {
        sum_event(&history->events[i], &s);
    }
    *summary_out = s;
    return 0;
}

struct pf_chart_curve pf_history_curve(const struct pf_history *history,
                                       enum pf_history_value value)
{
    static const char *const titles[PF_HISTORY_N_VALUES] = {
        [PF_HISTORY_LOSS] = "loss",
        [PF_HISTORY_GRAD_NORM] = "gradient norm",
        [PF_HISTORY_LEARNING_RATE] = "learning rate",
        [PF_HISTORY_TOKENS_PER_SECOND] = "tokens a second",
        [PF_HISTORY_STEP_SECONDS] = "seconds a step",
        [PF_HISTORY_MFU] = "share of peak (MFU)",
    };
    const size_t n = (size_t)history->n_points;
    const bool may_be_log = value == PF_HISTORY_LOSS || value == PF_HISTORY_GRAD_NORM;

    return (struct pf_chart_curve){
        .title = titles[value],
        .n = n,
        .x = history->step,
        .y = history->values[value],
        .log = may_be_log && pf_chart_wants_log(history->values[value], n),
    };
}
