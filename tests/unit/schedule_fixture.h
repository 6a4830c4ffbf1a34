/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_fixture.h - making and reading pipeline schedules in tests. */
#ifndef SCHEDULE_FIXTURE_H
#define SCHEDULE_FIXTURE_H

#include <pf/error.h>
#include <pf/schedule.h>

#include "tap.h"

#include <stdio.h>
#include <string.h>

static inline struct pf_schedule *schedule_of(enum pf_schedule_kind kind, int p, int v, int m)
{
    const struct pf_schedule_options o = {kind, p, v, m};
    struct pf_schedule *s = NULL;

    if (pf_schedule_new(&o, &s) != 0) {
        ok(false, "a schedule %s p=%d v=%d m=%d: %s", pf_schedule_name(kind), p, v, m,
           pf_error_message());
    }
    return s;
}

/* With forwards of 1, and backwards of 2 in halves. */
static inline double bubble_of(const struct pf_schedule *s)
{
    struct pf_sched_cost costs[64];
    struct pf_sched_timeline *t = NULL;
    double bubble = -1;

    for (int i = 0; i < 64; i++) {
        costs[i] = (struct pf_sched_cost){1, 2, 1, 1};
    }
    if (pf_schedule_time(s, &(struct pf_sched_costs){.chunks = costs}, &t) == 0) {
        bubble = t->bubble;
    }
    pf_sched_timeline_free(t);
    return bubble;
}

/* The computing steps of a stage: "F0 I0 W0 B1"; with several chunks "F0.2", micro-batch first. */
static inline void describe(const struct pf_schedule *s, int stage, char *text, size_t size)
{
    size_t at = 0;

    text[0] = '\0';
    for (int i = 0; i < s->stages[stage].n_steps && at < size; i++) {
        const struct pf_sched_step *const step = &s->stages[stage].steps[i];
        if (step->kind > PF_SCHED_BACKWARD_WEIGHT) {
            continue;
        }
        at += (size_t)snprintf(text + at, size - at, "%s%c%d", at ? " " : "", "FBIW"[step->kind],
                               step -> micro);
        if (s->vpp > 1 && at < size) {
            at += (size_t)snprintf(text + at, size - at, ".%d", step->chunk);
        }
    }
}

#endif
