/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checker against a machine that executes lists as pf/schedule.h says, in a random order of
 * stages, with every transfer as late as its waits allow. What the checker admits must run to the
 * right sums there; what is broken must be refused with its stage and step.
 */
#include "schedule_fixture.h"

#include <pf/mem.h>

#include <stdint.h>

#define MAX_P 4
#define MAX_PIECES 64
#define MAX_BUFFERS 68
#define MAX_STEPS 512

/* The machine ------------------------------------------------------------------------------------ */

/* Values stand for activations and gradients: who made them, out of what. */
static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15u)) * 0xbf58476d1ce4e5b9u;

    return (x ^ (x >> 29)) * 0x94d049bb133111ebu;
}

struct transfer {
    bool posted[2], done; /* by the sender, by the receiver */
    uint64_t *from, *to;
};

struct stage {
    int step;
    uint64_t slots[MAX_BUFFERS], buffers[2][MAX_BUFFERS]; /* forward, backward */
    struct transfer *under_way[2][MAX_BUFFERS];
};

struct machine {
    const struct pf_schedule *s;
    struct stage stages[MAX_P];
    struct transfer transfers[MAX_P][MAX_P][2]
                             [MAX_PIECES]; /* from, to, way, place in the channel */
    int n_posted[MAX_P][MAX_P][2][2];      /* and by which side */
    uint64_t sums[MAX_P * 4];              /* [chunk] weight gradients */
    uint64_t draw;
};

static void finish(struct transfer *t)
{
    if (!t->done) {
        *t->to = *t->from;
        t->done = true;
    }
}

/* False: the wait cannot end yet. */
static bool wait_for(struct stage *st, int way, int buffer)
{
    struct transfer **const t = buffer < 0 ? NULL : &st->under_way[way][buffer];

    if (!t || !*t) {
        return true;
    }
    if (!(*t)->posted[0] || !(*t)->posted[1]) {
        return false;
    }
    finish(*t);
    *t = NULL;
    return true;
}

static void post(struct machine *m, int stage, const struct pf_sched_step *step)
{
    const bool send = step->kind == PF_SCHED_SEND_FWD || step->kind == PF_SCHED_SEND_BWD;
    const int way = step->kind == PF_SCHED_SEND_BWD || step->kind == PF_SCHED_RECV_BWD;
    const int peer = pf_schedule_peer(m->s, step), side = send ? 0 : 1;
    const int from = send ? stage : peer, to = send ? peer : stage;
    const int buffer = send ? step->in : step->out;
    struct transfer *const t = &m->transfers[from][to][way][m->n_posted[from][to][way][side]++];

    t->posted[side] = true;
    *(send ? &t->from : &t->to) = &m->stages[stage].buffers[way][buffer];
    m->stages[stage].under_way[way][buffer] = t;
}

static void compute(struct machine *m, struct stage *st, const struct pf_sched_step *step)
{
    const int way = step->kind != PF_SCHED_FORWARD;
    const uint64_t input =
        step->in < 0 ? mix((uint64_t)step->micro, (uint64_t)way) : st->buffers[way][step->in];
    uint64_t *const slot = &st->slots[step->live];

    if (step->kind == PF_SCHED_BACKWARD_WEIGHT) {
        m->sums[step->chunk] = mix(m->sums[step->chunk], *slot);
        return;
    }
    if (step->in >= 0) {
        st->buffers[way][step->in] = 0; /* free: nothing may rely on it */
    }
    *slot = way ? mix(*slot, input) : mix(input, (uint64_t)step->chunk);
    if (step->out >= 0) {
        st->buffers[way][step->out] = mix(*slot, 5);
    }
    if (step->kind == PF_SCHED_BACKWARD) {
        m->sums[step->chunk] = mix(m->sums[step->chunk], *slot);
    }
}

/* False: the stage waits. */
static bool advance(struct machine *m, int stage)
{
    struct stage *const st = &m->stages[stage];
    const struct pf_sched_list *const list = &m->s->stages[stage];

    if (st->step == list->n_steps) {
        return false;
    }
    const struct pf_sched_step *const step = &list->steps[st->step];
    const int way = step->kind != PF_SCHED_FORWARD;
    if (step->kind > PF_SCHED_BACKWARD_WEIGHT) {
        post(m, stage, step);
    } else if (!wait_for(st, way, step->in) || !wait_for(st, way, step->out)) {
        return false;
    } else {
        compute(m, st, step);
    }
    st->step++;
    return true;
}

/* What the sums must be: each chunk's micro-batches in their order. */
static uint64_t right_sum(const struct pf_schedule *s, int chunk)
{
    uint64_t sum = 0;

    for (int micro = 0; micro < s->n_micro; micro++) {
        uint64_t made[MAX_P * 4], x = mix((uint64_t)micro, 0);
        for (int c = 0; c < pf_schedule_n_chunks(s); c++) {
            made[c] = mix(x, (uint64_t)c);
            x = mix(made[c], 5);
        }
        x = mix((uint64_t)micro, 1);
        for (int c = pf_schedule_n_chunks(s) - 1; c >= chunk; c--) {
            made[c] = mix(made[c], x);
            x = mix(made[c], 5);
        }
        sum = mix(sum, made[chunk]);
    }
    return sum;
}

static bool sums_are_right(const struct machine *m)
{
    bool right = true;

    for (int c = 0; c < pf_schedule_n_chunks(m->s) && !m->s->forward_only; c++) {
        right = right && m->sums[c] == right_sum(m->s, c);
    }
    return right;
}

static bool all_ended(const struct machine *m)
{
    bool ended = true;

    for (int r = 0; r < m->s->n_stages; r++) {
        ended = ended && m->stages[r].step == m->s->stages[r].n_steps;
    }
    return ended;
}

/* Run to the end, or until no stage can go on. */
static bool executes(const struct pf_schedule *s, uint64_t draw)
{
    static struct machine m;
    const int p = s->n_stages;

    memset(&m, 0, sizeof m);
    m.s = s;
    m.draw = draw;
    for (int n_stuck = 0; n_stuck < p;) {
        m.draw = mix(m.draw, 7);
        const int first = (int)(m.draw >> 33) % p;
        n_stuck = 0;
        while (n_stuck < p && !advance(&m, (first + n_stuck) % p)) {
            n_stuck++;
        }
    }
    return all_ended(&m) && sums_are_right(&m);
}

/* What is generated ------------------------------------------------------------------------------ */

static void generated_lists_execute(void)
{
    int n = 0, n_right = 0;

    for (int kind = 0; kind < PF_SCHEDULE_COUNT; kind++) {
        const bool one = kind == PF_SCHEDULE_1F1B || kind == PF_SCHEDULE_ZERO_BUBBLE;
        for (int i = 0; i < MAX_P * (one ? 1 : 3) * 9; i++) {
            struct pf_schedule *const s =
                schedule_of((enum pf_schedule_kind)kind, 1 + i % MAX_P,
                            1 + i / MAX_P % (one ? 1 : 3), 1 + i / MAX_P / (one ? 1 : 3));
            for (uint64_t draw = 0; draw < 4; draw++) {
                n++;
                n_right += executes(s, draw);
            }
            pf_schedule_free(s);
        }
    }
    ok(n_right == n, "generated lists run in any order of stages to the same sums: %d of %d",
       n_right, n);
}

/* What is broken --------------------------------------------------------------------------------- */

struct tally {
    int n, n_refused, n_unnamed, n_admitted_wrong;
};

static bool names_a_step(const struct pf_schedule *s)
{
    int stage = -1, step = -1;

    return sscanf(pf_error_message(), "schedule of stage %d, step %d: ", &stage, &step) == 2 &&
           stage >= 0 && stage < s->n_stages && step >= 0 && step <= s->stages[stage].n_steps;
}

/* Judge a changed schedule; what is admitted must run. */
static bool judge(const struct pf_schedule *s, struct tally *tally)
{
    struct pf_sched_facts facts[MAX_P];
    const int err = pf_schedule_check(s, facts);

    tally->n++;
    tally->n_refused += err == PF_EINVAL;
    if (err) {
        tally->n_unnamed += err != PF_EINVAL || !names_a_step(s);
        return false;
    }
    tally->n_admitted_wrong += !executes(s, (uint64_t)tally->n);
    return true;
}

/* The list of one stage, changed while `edit` is open. */
struct edit {
    struct pf_schedule *s;
    struct pf_sched_list *list, whole;
    struct pf_sched_step steps[MAX_STEPS + 1];
    int stage;
};

static void edit_open(struct edit *e, struct pf_schedule *s, int stage)
{
    *e =
        (struct edit){.s = s, .list = &s->stages[stage], .whole = s->stages[stage], .stage = stage};
    memcpy(e->steps, e->whole.steps, (size_t)e->whole.n_steps * sizeof *e->steps);
    e->list->steps = e->steps;
}

static void edit_close(struct edit *e)
{
    *e->list = e->whole;
}

static void must_refuse(struct edit *e, struct tally *tally, int step, const char *change)
{
    if (judge(e->s, tally)) {
        printf("# admitted: stage %d, step %d, a %s: %s\n", e->stage, step,
               pf_sched_kind_name(e->whole.steps[step].kind), change);
    }
}

static void remove_step(struct edit *e, int step)
{
    memmove(e->steps + step, e->steps + step + 1,
            (size_t)(e->list->n_steps - step - 1) * sizeof *e->steps);
    e->list->n_steps--;
}

static void leave_out(struct pf_schedule *s, struct tally *tally, int stage, int step)
{
    struct edit e;

    edit_open(&e, s, stage);
    remove_step(&e, step);
    must_refuse(&e, tally, step, "left out");
    edit_close(&e);
}

static void do_twice(struct pf_schedule *s, struct tally *tally, int stage, int step)
{
    struct edit e;

    edit_open(&e, s, stage);
    memmove(e.steps + step + 1, e.steps + step, (size_t)(e.list->n_steps - step) * sizeof *e.steps);
    e.list->n_steps++;
    must_refuse(&e, tally, step, "done twice");
    edit_close(&e);
}

/* Each number of a step, one up and one down. A forward-only list may use any slot. */
static void miscount(struct pf_schedule *s, struct tally *tally, int stage, int step)
{
    static const char *const names[] = {"micro-batch", "chunk", "live slot", "input", "output"};

    for (int i = 0; i < 10; i++) {
        struct edit e;
        edit_open(&e, s, stage);
        int *const numbers[] = {&e.steps[step].micro, &e.steps[step].chunk, &e.steps[step].live,
                                &e.steps[step].in, &e.steps[step].out};
        *numbers[i / 2] += i % 2 ? 1 : -1;
        if (!s->forward_only || i / 2 != 2) {
            must_refuse(&e, tally, step, names[i / 2]);
        }
        edit_close(&e);
    }
}

static void mistake(struct pf_schedule *s, struct tally *tally, int stage, int step)
{
    for (int kind = -1; kind <= PF_SCHED_KIND_COUNT; kind++) {
        struct edit e;
        edit_open(&e, s, stage);
        if (e.steps[step].kind != (enum pf_sched_kind)kind) {
            e.steps[step].kind = (enum pf_sched_kind)kind;
            must_refuse(&e, tally, step, "another kind");
        }
        edit_close(&e);
    }
}

static bool needs_order(const struct pf_sched_step *a, const struct pf_sched_step *b)
{
    return a->kind == b->kind && a->chunk == b->chunk;
}

/* Some steps may change places: a send with a forward, say. What is admitted is run. */
static void swap(struct pf_schedule *s, struct tally *tally, int stage, int i, int k)
{
    struct edit e;

    edit_open(&e, s, stage);
    e.steps[i] = e.whole.steps[k];
    e.steps[k] = e.whole.steps[i];
    if (needs_order(&e.steps[i], &e.steps[k])) {
        must_refuse(&e, tally, i, "out of order");
    } else {
        judge(s, tally);
    }
    edit_close(&e);
}

static void break_list(struct pf_schedule *s, int stage, struct tally *all, struct tally *swaps)
{
    const int n = s->stages[stage].n_steps;

    for (int i = 0; i < n; i++) {
        leave_out(s, all, stage, i);
        do_twice(s, all, stage, i);
        miscount(s, all, stage, i);
        mistake(s, all, stage, i);
        for (int k = i + 1; k < n && k < i + 6; k++) {
            swap(s, swaps, stage, i, k);
        }
    }
}

static void broken_lists_are_refused(enum pf_schedule_kind kind, int p, int v, int m)
{
    struct pf_schedule *const s = schedule_of(kind, p, v, m);
    struct tally all = {0}, swaps = {0};

    for (int stage = 0; stage < p; stage++) {
        break_list(s, stage, &all, &swaps);
    }
    ok(all.n > 0 && all.n_refused == all.n && all.n_unnamed == 0,
       "%s p=%d v=%d m=%d: steps left out, doubled, with a wrong number or of a wrong kind are "
       "refused with stage and step: %d of %d",
       pf_schedule_name(kind), p, v, m, all.n_refused - all.n_unnamed, all.n);
    ok(swaps.n_admitted_wrong == 0 && swaps.n_unnamed == 0 && swaps.n_refused > 0 &&
           swaps.n_refused < swaps.n,
       "of %d swaps %d are refused, and the others run to the same sums", swaps.n, swaps.n_refused);
    pf_schedule_free(s);
}

/* Faults in words -------------------------------------------------------------------------------- */

static bool refused_with(const struct pf_schedule *s, const char *words)
{
    struct pf_sched_facts facts[MAX_P];
    const bool holds =
        pf_schedule_check(s, facts) == PF_EINVAL && strstr(pf_error_message(), words);

    if (!holds) {
        printf("# %s\n", pf_error_message());
    }
    return holds;
}

static int step_of(const struct pf_schedule *s, int stage, enum pf_sched_kind kind, int micro)
{
    int i = 0;

    while (s->stages[stage].steps[i].kind != kind || s->stages[stage].steps[i].micro != micro) {
        i++;
    }
    return i;
}

/* Each list is legal by itself: the first stage wants its first gradient before it gives the second
 * micro-batch, the second stage gives that gradient after it has the second micro-batch. */
static void deadlock(void)
{
    struct pf_schedule *const s = schedule_of(PF_SCHEDULE_F_THEN_B, 2, 1, 2);
    struct edit e;

    edit_open(&e, s, 0);
    const int to = step_of(s, 0, PF_SCHED_FORWARD, 1), from = step_of(s, 0, PF_SCHED_BACKWARD, 0);
    const struct pf_sched_step receive = e.steps[step_of(s, 0, PF_SCHED_RECV_BWD, 0)];
    const struct pf_sched_step moved[] = {receive, e.steps[from]};
    int n = 0;
    for (int i = 0; i < e.whole.n_steps; i++) {
        if (i == to) {
            memcpy(e.steps + n, moved, sizeof moved);
            n += 2;
        }
        if (i != from && memcmp(&e.whole.steps[i], &receive, sizeof receive) != 0) {
            e.steps[n++] = e.whole.steps[i];
        }
    }
    ok(refused_with(s, "schedule of stage 0, step ") &&
           refused_with(s, "deadlock: backward of micro-batch 0 in chunk 0 waits for ever for its "
                           "input to be sent"),
       "a deadlock: %s", pf_error_message());
    edit_close(&e);
    pf_schedule_free(s);
}

/* Receives in another order than sends: a tag for each channel would give the wrong data. */
static void crossing(void)
{
    struct pf_schedule *const s = schedule_of(PF_SCHEDULE_BALANCED, 2, 2, 4);
    struct edit e;
    int a, b;

    edit_open(&e, s, 0);
    a = step_of(s, 0, PF_SCHED_RECV_FWD, 0);
    b = step_of(s, 0, PF_SCHED_RECV_FWD, 1);
    e.steps[a] = e.whole.steps[b];
    e.steps[b] = e.whole.steps[a];
    ok(refused_with(s, "of its channel on this side and"), "crossing messages: %s",
       pf_error_message());
    edit_close(&e);
    pf_schedule_free(s);
}

static void lost_message(void)
{
    struct pf_schedule *const s = schedule_of(PF_SCHEDULE_1F1B, 2, 1, 1);
    struct edit e;

    edit_open(&e, s, 0);
    remove_step(&e, step_of(s, 0, PF_SCHED_SEND_FWD, 0));
    ok(refused_with(s, "forward buffer 0 still holds what chunk 1 gets for micro-batch 0"),
       "a send left out: %s", pf_error_message());
    edit_close(&e);
    pf_schedule_free(s);
}

int main(void)
{
    generated_lists_execute();
    broken_lists_are_refused(PF_SCHEDULE_1F1B, 4, 1, 5);
    broken_lists_are_refused(PF_SCHEDULE_F_THEN_B, 2, 2, 3);
    broken_lists_are_refused(PF_SCHEDULE_INTERLEAVED, 2, 2, 4);
    broken_lists_are_refused(PF_SCHEDULE_INTERLEAVED, 3, 2, 4);
    broken_lists_are_refused(PF_SCHEDULE_ZERO_BUBBLE, 3, 1, 5);
    broken_lists_are_refused(PF_SCHEDULE_BALANCED, 3, 2, 5);
    broken_lists_are_refused(PF_SCHEDULE_EVAL, 3, 2, 4);
    broken_lists_are_refused(PF_SCHEDULE_INTERLEAVED, 1, 2, 3);
    deadlock();
    crossing();
    lost_message();
    ok(pf_mem_live_bytes() == 0, "nothing is left behind");
    return done();
}
