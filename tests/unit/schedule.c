/* SPDX-License-Identifier: Apache-2.0 */
/* Pipeline schedules: every legal one is proved and has its published figures, broken ones are named. */
#include "schedule_fixture.h"

#include <pf/mem.h>

#include <math.h>

#define MAX_STAGES 8
#define MAX_MICRO 32
#define MAX_VPP 4

static bool has_one_chunk(enum pf_schedule_kind kind)
{
    return kind == PF_SCHEDULE_1F1B || kind == PF_SCHEDULE_ZERO_BUBBLE;
}

static int min_of(int a, int b)
{
    return a < b ? a : b;
}

static int max_of(int a, int b)
{
    return a > b ? a : b;
}

/* Figures ---------------------------------------------------------------------------------------- */

/* Total time as published (pf/schedule.h). */
static double total_of(enum pf_schedule_kind kind, int p, int v, int m,
                       const struct pf_sched_cost *c)
{
    const double input = c->backward_input, weight = c->backward_weight;
    const double turn = c->forward + (kind == PF_SCHEDULE_EVAL ? 0 : c->backward);

    if (kind == PF_SCHEDULE_ZERO_BUBBLE) {
        return m * (c->forward + input + weight) + (p - 1) * (c->forward + input) -
               (min_of(m, p) - 1) * weight;
    }
    return turn * (v * max_of(m, p) + min_of(m, p) - 1);
}

/* Most alive on a stage. */
static int peak_of(enum pf_schedule_kind kind, int p, int v, int m, int stage)
{
    const int n_groups = max_of(1, m / p), group = (m + n_groups - 1) / n_groups;

    switch (kind) {
    case PF_SCHEDULE_1F1B:
        return min_of(m, p - stage);
    case PF_SCHEDULE_F_THEN_B:
        return m * v;
    case PF_SCHEDULE_INTERLEAVED:
        return v == 1 ? min_of(m, p - stage)
                      : min_of(m * v, 2 * (p - stage - 1) + (v - 1) * group + 1);
    case PF_SCHEDULE_ZERO_BUBBLE:
        return min_of(m, p);
    case PF_SCHEDULE_BALANCED:
        return m * (v - 1) + min_of(m, p - stage);
    default:
        return 1;
    }
}

/* Time with given costs of all chunks against the formula. */
static bool is_timed(const struct pf_schedule *s, enum pf_schedule_kind kind,
                     const struct pf_sched_cost *cost)
{
    struct pf_sched_cost costs[MAX_STAGES * MAX_VPP];
    struct pf_sched_timeline *t = NULL;
    const double total = total_of(kind, s->n_stages, s->vpp, s->n_micro, cost);
    const double work =
        (cost->forward + (kind == PF_SCHEDULE_EVAL ? 0 : cost->backward)) * s->vpp * s->n_micro;

    for (int i = 0; i < pf_schedule_n_chunks(s); i++) {
        costs[i] = *cost;
    }
    if (pf_schedule_time(s, &(struct pf_sched_costs){.chunks = costs}, &t) != 0) {
        return false;
    }
    const bool holds = t->total == total && fabs(t->bubble - (1 - work / total)) < 1e-12;
    pf_sched_timeline_free(t);
    return holds;
}

static bool has_its_figures(const struct pf_schedule *s, enum pf_schedule_kind kind)
{
    const int p = s->n_stages, v = s->vpp, m = s->n_micro;
    struct pf_sched_facts facts[MAX_STAGES];

    if (pf_schedule_check(s, facts) != 0) {
        printf("# %s\n", pf_error_message());
        return false;
    }
    for (int r = 0; r < p; r++) {
        if (facts[r].peak_live != peak_of(kind, p, v, m, r) ||
            facts[r].n_slots != facts[r].peak_live) {
            printf("# stage %d: peak %d, %d slots, not %d\n", r, facts[r].peak_live,
                   facts[r].n_slots, peak_of(kind, p, v, m, r));
            return false;
        }
    }
    return is_timed(s, kind, &(struct pf_sched_cost){1, 2, 1, 1}) &&
           is_timed(s, kind, &(struct pf_sched_cost){2, 5, 3, 2});
}

static void every_schedule(enum pf_schedule_kind kind)
{
    int n = 0, n_good = 0;

    for (int p = 1; p <= MAX_STAGES; p++) {
        for (int v = 1; v <= (has_one_chunk(kind) ? 1 : MAX_VPP); v++) {
            for (int m = 1; m <= MAX_MICRO; m++) {
                struct pf_schedule *const s = schedule_of(kind, p, v, m);
                const bool good = s && has_its_figures(s, kind);
                n++;
                n_good += good;
                if (!good) {
                    printf("# not so: %s p=%d v=%d m=%d\n", pf_schedule_name(kind), p, v, m);
                }
                pf_schedule_free(s);
            }
        }
    }
    ok(n > 0 && n_good == n,
       "r33_schedules_proved_peak_and_bubble_as_published: %s, %d of %d (p <= %d, m <= %d, v <= "
       "%d)",
       pf_schedule_name(kind), n_good, n, MAX_STAGES, MAX_MICRO, has_one_chunk(kind) ? 1 : MAX_VPP);
}

/* PERF.md B2 in its own words: bubbles as parts of the whole, memory in units of 1F1B's. */
static void published_table(void)
{
    const int p = 8, m = 32, v = 4;
    struct pf_sched_facts one[8], many[8], zero[8];
    struct pf_schedule *const a = schedule_of(PF_SCHEDULE_1F1B, p, 1, m);
    struct pf_schedule *const b = schedule_of(PF_SCHEDULE_INTERLEAVED, p, v, m);
    struct pf_schedule *const c = schedule_of(PF_SCHEDULE_ZERO_BUBBLE, p, 1, m);

    ok(fabs(bubble_of(a) - 7.0 / 39) < 1e-12,
       "1F1B, p=8, m=32: the bubble is (p-1)/(m+p-1) = 7/39");
    ok(fabs(bubble_of(b) / (1 - bubble_of(b)) - 7.0 / 128) < 1e-12,
       "interleaved, v=4: the bubble is (p-1)/(v m) = 7/128 of the ideal time");
    ok(fabs(bubble_of(c) / (1 - bubble_of(c)) - 7.0 / 96) < 1e-12,
       "r35_zero_bubble_as_published: ZB-H1's bubble is a third of 1F1B's, 7/96 of the ideal time");
    ok(pf_schedule_check(a, one) == 0 && pf_schedule_check(b, many) == 0 &&
           pf_schedule_check(c, zero) == 0,
       "all three are proved");
    ok(one[0].peak_live == 8 && many[0].peak_live == 8 * 4 + 7,
       "interleaved holds 1 + (p-1)/(p v) of 1F1B's activations");
    ok(zero[0].peak_live == 8 && zero[7].peak_live == 8,
       "ZB-H1 holds no more than 1F1B's first stage");
    pf_schedule_free(a);
    pf_schedule_free(b);
    pf_schedule_free(c);
}

/* Row 34: live activations nearly the same on all stages. */
static void balanced_is_level(void)
{
    const int p = 4, v = 2, m = 8;
    struct pf_sched_facts level[4], other[4];
    struct pf_schedule *const a = schedule_of(PF_SCHEDULE_BALANCED, p, v, m);
    struct pf_schedule *const b = schedule_of(PF_SCHEDULE_INTERLEAVED, p, v, m);

    ok(pf_schedule_check(a, level) == 0 && pf_schedule_check(b, other) == 0, "both are proved");
    ok(level[0].peak_live == 12 && level[3].peak_live == 9 && other[0].peak_live == 11 &&
           other[3].peak_live == 5,
       "r34_balanced_memory_is_level: p=4 v=2 m=8, largest over smallest is %d/%d, interleaved "
       "%d/%d",
       level[0].peak_live, level[3].peak_live, other[0].peak_live, other[3].peak_live);
    ok(level[0].fwd_buffers > other[0].fwd_buffers && level[0].fwd_buffers > level[1].fwd_buffers,
       "its first stage queues what comes back: %d forward buffers, the next %d; interleaved %d",
       level[0].fwd_buffers, level[1].fwd_buffers, other[0].fwd_buffers);
    pf_schedule_free(a);
    pf_schedule_free(b);
}

/* Costs ------------------------------------------------------------------------------------------ */

static struct pf_sched_timeline *timed(const struct pf_schedule *s, double second, double message)
{
    const struct pf_sched_cost costs[2] = {{1, 2, 1, 1}, {second, 2 * second, second, second}};
    struct pf_sched_timeline *t = NULL;

    ok(pf_schedule_time(s, &(struct pf_sched_costs){costs, message}, &t) == 0, "it is timed");
    return t;
}

static void costs_count(void)
{
    struct pf_schedule *const s = schedule_of(PF_SCHEDULE_1F1B, 2, 1, 4);
    struct pf_sched_timeline *t = timed(s, 2, 0);

    /* The second stage never waits: its first input after 1, then 4 x 6; then the first's backward. */
    ok(t->total == 1 + 24 + 2 && t->busy[0] == 12 && t->busy[1] == 24 &&
           fabs(t->bubble - (1 - 36.0 / 54)) < 1e-12,
       "a slow stage sets the time: total %g, bubble %g", t->total, t->bubble);
    pf_sched_timeline_free(t);
    t = timed(s, 1, 0.5);
    ok(t->total > 15 && t->busy[0] == 12, "messages take their time: total %g, not 15", t->total);
    pf_sched_timeline_free(t);
    pf_schedule_free(s);
}

/* Lists ------------------------------------------------------------------------------------------ */

/* The computing steps of a stage: "F0 F1 B0", with several chunks "F0.2", micro-batch before chunk. */
static bool reads(enum pf_schedule_kind kind, int p, int v, int m, int stage, const char *want)
{
    struct pf_schedule *const s = schedule_of(kind, p, v, m);
    char text[512];

    describe(s, stage, text, sizeof text);
    const bool same = strcmp(text, want) == 0;
    if (!same) {
        printf("# %s p=%d v=%d m=%d, stage %d: %s\n", pf_schedule_name(kind), p, v, m, stage, text);
    }
    pf_schedule_free(s);
    return same;
}

static void lists_as_drawn_in_the_papers(void)
{
    ok(reads(PF_SCHEDULE_1F1B, 4, 1, 6, 0, "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5") &&
           reads(PF_SCHEDULE_1F1B, 4, 1, 6, 3, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5"),
       "1F1B: p-r-1 forwards, then in turn");
    ok(reads(PF_SCHEDULE_F_THEN_B, 2, 1, 3, 1, "F0 F1 F2 B0 B1 B2"), "F-then-B");
    ok(reads(PF_SCHEDULE_ZERO_BUBBLE, 4, 1, 4, 0, "F0 F1 F2 F3 I0 W0 I1 W1 I2 W2 I3 W3") &&
           reads(PF_SCHEDULE_ZERO_BUBBLE, 4, 1, 4, 2, "F0 F1 I0 F2 I1 F3 I2 W0 I3 W1 W2 W3"),
       "ZB-H1: weight gradients of stage r lag r behind");
    ok(reads(PF_SCHEDULE_INTERLEAVED, 2, 2, 4, 0,
             "F0.0 F1.0 F0.2 F1.2 F2.0 B0.2 F3.0 B1.2 F2.2 B0.0 F3.2 B1.0 B2.2 B3.2 B2.0 B3.0"),
       "interleaved: Megatron's order");
    ok(reads(PF_SCHEDULE_INTERLEAVED, 2, 2, 3, 0,
             "F0.0 F1.0 F2.0 F0.2 F1.2 F2.2 B0.2 B1.2 B2.2 B0.0 B1.0 B2.0"),
       "interleaved, 3 micro-batches over 2 stages: one group of 3");
    ok(reads(PF_SCHEDULE_INTERLEAVED, 2, 2, 2, 0, "F0.0 F1.0 F0.2 F1.2 B0.2 B1.2 B0.0 B1.0"),
       "r32_interleaved_with_as_many_micro_batches_as_stages: the first stage runs F-then-B");
    ok(reads(PF_SCHEDULE_BALANCED, 2, 2, 3, 0,
             "F0.0 F1.0 F2.0 F0.2 F1.2 B0.2 F2.2 B1.2 B2.2 B0.0 B1.0 B2.0"),
       "balanced: m(v-1) + p-r-1 forwards, then in turn");
    ok(reads(PF_SCHEDULE_EVAL, 1, 2, 2, 0, "F0.0 F0.1 F1.0 F1.1"),
       "evaluation, both chunks on one stage");
}

/* Two chunks of one stage hand over in a buffer; two stages use all four channels. */
static void neighbours(void)
{
    struct pf_schedule *const alone = schedule_of(PF_SCHEDULE_INTERLEAVED, 1, 2, 2);
    struct pf_schedule *const pair = schedule_of(PF_SCHEDULE_INTERLEAVED, 2, 2, 2);
    int n[PF_SCHED_KIND_COUNT] = {0}, n_other = 0;

    for (int i = 0; i < alone->stages[0].n_steps; i++) {
        n_other += alone->stages[0].steps[i].kind > PF_SCHED_BACKWARD_WEIGHT;
    }
    ok(n_other == 0 && alone->stages[0].steps[0].out == alone->stages[0].steps[1].in &&
           alone->stages[0].steps[0].in == -1 && alone->stages[0].steps[1].out == -1,
       "one stage sends nothing: what a chunk writes the next one reads");
    for (int i = 0; i < pair->stages[0].n_steps; i++) {
        const struct pf_sched_step *const step = &pair->stages[0].steps[i];
        n[step->kind]++;
        n_other += pf_schedule_peer(pair, step) != (step->kind > PF_SCHED_BACKWARD_WEIGHT ? 1 : -1);
    }
    ok(n_other == 0 && n[PF_SCHED_SEND_FWD] == 4 && n[PF_SCHED_RECV_FWD] == 2 &&
           n[PF_SCHED_SEND_BWD] == 2 && n[PF_SCHED_RECV_BWD] == 4,
       "stage 0 of 2 sends activations and gradients to stage 1, and receives both");
    pf_schedule_free(alone);
    pf_schedule_free(pair);
}

/* Refusals --------------------------------------------------------------------------------------- */

static bool refused(enum pf_schedule_kind kind, int p, int v, int m, const char *why)
{
    const struct pf_schedule_options o = {kind, p, v, m};
    struct pf_schedule *s = NULL;

    return pf_schedule_new(&o, &s) == PF_EINVAL && !s && strstr(pf_error_message(), why);
}

static void impossible_options(void)
{
    ok(refused(PF_SCHEDULE_1F1B, 0, 1, 1, "0 stages"), "no stages");
    ok(refused(PF_SCHEDULE_INTERLEAVED, 2, -1, 1, "-1 chunks"), "less than no chunks");
    ok(refused(PF_SCHEDULE_1F1B, 2, 1, 0, "at least one micro-batch, not 0"), "no micro-batches");
    ok(refused(PF_SCHEDULE_1F1B, 2, 2, 4, "1F1B has one chunk on each stage, not 2"),
       "1F1B with two chunks");
    ok(refused(PF_SCHEDULE_ZERO_BUBBLE, 2, 3, 4, "ZBH1 has one chunk"), "ZB-H1 with three chunks");
    ok(refused(PF_SCHEDULE_F_THEN_B, 1 << 16, 1 << 16, 1 << 16, "too many"), "too much of all");
    ok(refused(PF_SCHEDULE_F_THEN_B, 4096, 1, 4097, "at most 16777216"), "one too many");
}

int main(void)
{
    for (int kind = 0; kind < PF_SCHEDULE_COUNT; kind++) {
        every_schedule((enum pf_schedule_kind)kind);
    }
    published_table();
    balanced_is_level();
    costs_count();
    lists_as_drawn_in_the_papers();
    neighbours();
    impossible_options();
    ok(pf_mem_live_bytes() == 0, "nothing is left behind");
    return done();
}
