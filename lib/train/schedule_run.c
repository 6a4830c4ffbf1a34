/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All stages of a schedule together, run against a clock: what proves that nobody waits for ever, and
 * what gives the bubble.
 *
 * A transfer ends only when both sides have posted it. A stage is stuck until then, and no longer:
 * what stages have posted never turns back, so the order in which they are looked at here changes
 * neither whether they end nor the times.
 */
#include "schedule_internal.h"

#include <pf/error.h>
#include <pf/mem.h>

#define NOT_YET (-1.0)

/* Of the transfers to one (micro-batch, chunk) in one direction. */
struct message {
    double sent, received;    /* when each side posted it */
    int send_turn, recv_turn; /* which of its channel it is, for each side */
};

struct actor {
    int step; /* the next */
    double now;
    struct message **fwd, **bwd; /* [buffer] the transfer under way, or NULL */
};

struct run {
    const struct pf_schedule *s;
    const struct pf_sched_costs *costs;
    struct pf_sched_span *const *spans;
    double *busy;
    struct message *messages[2]; /* [backwards][piece] */
    int *sends, *receives; /* [channel] posted so far; (from * n_stages + to) * 2 + backwards */
    struct actor *actors;
};

/* Posting ---------------------------------------------------------------------------------------- */

static int *channel_of(const struct run *r, const struct pf_sched_step *step, int stage)
{
    const int peer = pf_schedule_peer(r->s, step);
    const bool send = sched_is_send(step->kind);
    const int64_t from = send ? stage : peer, to = send ? peer : stage;

    return &(send ? r->sends
                  : r->receives)[(from * r->s->n_stages + to) * 2 + sched_is_backwards(step->kind)];
}

/* Kept under the chunk that receives. */
static struct message *message_of(const struct run *r, const struct pf_sched_step *step)
{
    const int chunk = step->kind == PF_SCHED_SEND_FWD   ? step->chunk + 1
                      : step->kind == PF_SCHED_SEND_BWD ? step->chunk - 1
                                                        : step->chunk;

    return &r->messages[sched_is_backwards(step->kind)][sched_piece(r->s, step->micro, chunk)];
}

static int post(struct run *r, int stage, const struct pf_sched_step *step)
{
    struct actor *const a = &r->actors[stage];
    struct message *const m = message_of(r, step);
    const bool send = sched_is_send(step->kind);
    const int buffer = send ? step->in : step->out;

    *(send ? &m->sent : &m->received) = a->now;
    *(send ? &m->send_turn : &m->recv_turn) = (*channel_of(r, step, stage))++;
    (sched_is_backwards(step->kind) ? a->bwd : a->fwd)[buffer] = m;
    if (m->sent >= 0 && m->received >= 0 && m->send_turn != m->recv_turn) {
        return sched_fault(stage, a->step,
                           "%s of micro-batch %d in chunk %d is message %d of its channel on this "
                           "side and %d on that of stage %d",
                           pf_sched_kind_name(step->kind), step->micro, step->chunk,
                           send ? m->send_turn : m->recv_turn, send ? m->recv_turn : m->send_turn,
                           pf_schedule_peer(r->s, step));
    }
    r->spans[stage][a->step] = (struct pf_sched_span){a->now, a->now};
    return 0;
}

/* Computing -------------------------------------------------------------------------------------- */

static double cost_of(const struct run *r, const struct pf_sched_step *step)
{
    const struct pf_sched_cost *const c = &r->costs->chunks[step->chunk];

    switch (step->kind) {
    case PF_SCHED_FORWARD:
        return c->forward;
    case PF_SCHED_BACKWARD:
        return c->backward;
    case PF_SCHED_BACKWARD_INPUT:
        return c->backward_input;
    default:
        return c->backward_weight;
    }
}

/* Wait for the transfer of a buffer; false if that cannot end yet. */
static bool wait_for(const struct run *r, struct message **transfers, int buffer, double *time)
{
    const struct message *const m = buffer < 0 ? NULL : transfers[buffer];

    if (!m) {
        return true;
    }
    if (m->sent < 0 || m->received < 0) {
        return false;
    }
    const double end = (m->sent > m->received ? m->sent : m->received) + r->costs->message;
    *time = end > *time ? end : *time;
    return true;
}

static bool compute(struct run *r, int stage, const struct pf_sched_step *step)
{
    struct actor *const a = &r->actors[stage];
    struct message **const transfers = sched_is_backwards(step->kind) ? a->bwd : a->fwd;
    double start = a->now;

    if (!wait_for(r, transfers, step->in, &start) || !wait_for(r, transfers, step->out, &start)) {
        return false;
    }
    if (step->in >= 0) {
        transfers[step->in] = NULL;
    }
    if (step->out >= 0) {
        transfers[step->out] = NULL;
    }
    a->now = start + cost_of(r, step);
    r->busy[stage] += cost_of(r, step);
    r->spans[stage][a->step] = (struct pf_sched_span){start, a->now};
    return true;
}

/* All stages ------------------------------------------------------------------------------------- */

static int advance(struct run *r, int stage)
{
    const struct pf_sched_list *const list = &r->s->stages[stage];
    struct actor *const a = &r->actors[stage];

    for (; a->step < list->n_steps; a->step++) {
        const struct pf_sched_step *const step = &list->steps[a->step];
        if (!sched_is_compute(step->kind)) {
            PF_TRY(post(r, stage, step));
        } else if (!compute(r, stage, step)) {
            return 0;
        }
    }
    return 0;
}

static int fail_stuck(const struct run *r)
{
    for (int stage = 0; stage < r->s->n_stages; stage++) {
        const struct pf_sched_list *const list = &r->s->stages[stage];
        const struct actor *const a = &r->actors[stage];
        if (a->step == list->n_steps) {
            continue;
        }
        const struct pf_sched_step *const step = &list->steps[a->step];
        double time = 0;
        const bool input =
            !wait_for(r, sched_is_backwards(step->kind) ? a->bwd : a->fwd, step->in, &time);
        return sched_fault(
            stage, a->step, "deadlock: %s of micro-batch %d in chunk %d waits for ever for %s",
            pf_sched_kind_name(step->kind), step->micro, step->chunk,
            input ? "its input to be sent" : "its output buffer to be received from");
    }
    return 0;
}

/* What was posted at the end and has no other side: nobody computes with it, but the wait at the end
 * of the list would not end. */
static int check_transfers(const struct run *r)
{
    for (int stage = 0; stage < r->s->n_stages; stage++) {
        const struct pf_sched_list *const list = &r->s->stages[stage];
        for (int i = 0; i < list->n_steps; i++) {
            const struct pf_sched_step *const step = &list->steps[i];
            if (sched_is_compute(step->kind)) {
                continue;
            }
            const struct message *const m = message_of(r, step);
            if (m->sent < 0 || m->received < 0) {
                return sched_fault(stage, i, "%s of micro-batch %d in chunk %d has no other side",
                                   pf_sched_kind_name(step->kind), step->micro, step->chunk);
            }
        }
    }
    return 0;
}

static int run_all(struct run *r)
{
    const int p = r->s->n_stages;
    bool moves = true, stuck = true;

    while (moves && stuck) {
        moves = stuck = false;
        for (int stage = 0; stage < p; stage++) {
            struct actor *const a = &r->actors[stage];
            const int before = a->step;
            PF_TRY(advance(r, stage));
            moves = moves || a->step > before;
            stuck = stuck || a->step < r->s->stages[stage].n_steps;
        }
    }
    return stuck ? fail_stuck(r) : check_transfers(r);
}

static int allocate_actor(const struct pf_schedule *s, int stage, struct actor *a)
{
    const struct pf_sched_list *const list = &s->stages[stage];
    int most = 0;

    for (int i = 0; i < list->n_steps; i++) {
        const struct pf_sched_step *const step = &list->steps[i];
        most = step->in > most ? step->in : most;
        most = step->out > most ? step->out : most;
    }
    a->fwd = pf_calloc_array((size_t)most + 1, sizeof *a->fwd);
    a->bwd = pf_calloc_array((size_t)most + 1, sizeof *a->bwd);
    return a->fwd && a->bwd ? 0 : PF_ENOMEM;
}

static int allocate(struct run *r)
{
    const size_t p = (size_t)r->s->n_stages;
    const size_t n_pieces = (size_t)pf_schedule_n_chunks(r->s) * (size_t)r->s->n_micro;

    r->sends = pf_calloc_array(2 * p * p, sizeof *r->sends);
    r->receives = pf_calloc_array(2 * p * p, sizeof *r->receives);
    r->actors = pf_calloc_array(p, sizeof *r->actors);
    for (int way = 0; way < 2; way++) {
        r->messages[way] = pf_calloc_array(n_pieces, sizeof *r->messages[way]);
        for (size_t i = 0; r->messages[way] && i < n_pieces; i++) {
            r->messages[way][i] = (struct message){.sent = NOT_YET, .received = NOT_YET};
        }
    }
    if (!r->sends || !r->receives || !r->actors || !r->messages[0] || !r->messages[1]) {
        return PF_ENOMEM;
    }
    for (int stage = 0; stage < r->s->n_stages; stage++) {
        PF_TRY(allocate_actor(r->s, stage, &r->actors[stage]));
    }
    return 0;
}

static int run_lists(const struct pf_schedule *s, const struct pf_sched_costs *costs,
                     struct pf_sched_timeline *t)
{
    struct run r = {.s = s, .costs = costs, .spans = t->spans, .busy = t->busy};
    int err = allocate(&r);

    if (!err) {
        err = run_all(&r);
    }
    for (int stage = 0; r.actors && stage < s->n_stages; stage++) {
        t->total = r.actors[stage].now > t->total ? r.actors[stage].now : t->total;
        pf_free(r.actors[stage].fwd);
        pf_free(r.actors[stage].bwd);
    }
    pf_free(r.actors);
    pf_free(r.sends);
    pf_free(r.receives);
    pf_free(r.messages[0]);
    pf_free(r.messages[1]);
    return err;
}

/* Timelines -------------------------------------------------------------------------------------- */

void pf_sched_timeline_free(struct pf_sched_timeline *timeline)
{
    if (!timeline) {
        return;
    }
    for (int i = 0; timeline->spans && i < timeline->n_stages; i++) {
        pf_free(timeline->spans[i]);
    }
    pf_free(timeline->spans);
    pf_free(timeline->busy);
    pf_free(timeline);
}

static struct pf_sched_timeline *timeline_new(const struct pf_schedule *s)
{
    struct pf_sched_timeline *const t = pf_alloc(sizeof *t);
    const size_t p = (size_t)s->n_stages;
    bool ok = t != NULL;

    if (ok) {
        t->n_stages = s->n_stages;
        t->busy = pf_calloc_array(p, sizeof *t->busy);
        t->spans = pf_calloc_array(p, sizeof *t->spans);
        ok = t->busy && t->spans;
    }
    for (int i = 0; ok && i < s->n_stages; i++) {
        t->spans[i] = pf_calloc_array((size_t)s->stages[i].n_steps, sizeof *t->spans[i]);
        ok = t->spans[i] != NULL;
    }
    if (!ok) {
        pf_sched_timeline_free(t);
    }
    return ok ? t : NULL;
}

/* Checked stage by stage already. */
static int run_checked(const struct pf_schedule *s, const struct pf_sched_costs *costs,
                       struct pf_sched_timeline **timeline_out)
{
    struct pf_sched_timeline *const t = timeline_new(s);
    double busy = 0;

    if (!t) {
        return PF_ENOMEM;
    }
    const int err = run_lists(s, costs, t);
    if (err) {
        pf_sched_timeline_free(t);
        return err;
    }
    for (int i = 0; i < s->n_stages; i++) {
        busy += t->busy[i];
    }
    t->bubble = 1 - busy / (s->n_stages * t->total);
    *timeline_out = t;
    return 0;
}

/* Of n chunks that are alike; NULL: no memory. */
static struct pf_sched_cost *unit_costs(size_t n)
{
    struct pf_sched_cost *const unit = pf_calloc_array(n, sizeof *unit);

    for (size_t i = 0; unit && i < n; i++) {
        unit[i] = (struct pf_sched_cost){1, 2, 1, 1};
    }
    return unit;
}

int pf_schedule_check(const struct pf_schedule *schedule, struct pf_sched_facts *facts_out)
{
    const size_t p = (size_t)schedule->n_stages, n = p * (size_t)schedule->vpp;
    struct pf_sched_facts *const facts = pf_calloc_array(p, sizeof *facts);
    struct pf_sched_cost *const unit = unit_costs(n);
    struct pf_sched_timeline *timeline = NULL;
    int err = facts && unit ? 0 : PF_ENOMEM;

    if (!err) {
        err = sched_check_stages(schedule, facts);
    }
    if (!err) {
        err = run_checked(schedule, &(struct pf_sched_costs){.chunks = unit}, &timeline);
    }
    for (size_t i = 0; !err && i < p; i++) {
        facts_out[i] = facts[i];
    }
    pf_sched_timeline_free(timeline);
    pf_free(unit);
    pf_free(facts);
    return err;
}

int pf_schedule_time(const struct pf_schedule *schedule, const struct pf_sched_costs *costs,
                     struct pf_sched_timeline **timeline_out)
{
    struct pf_sched_facts *const facts = pf_calloc_array((size_t)schedule->n_stages, sizeof *facts);
    int err = facts ? sched_check_stages(schedule, facts) : PF_ENOMEM;

    if (!err) {
        err = run_checked(schedule, costs, timeline_out);
    }
    pf_free(facts);
    return err;
}

int pf_schedule_bubble(const struct pf_schedule *schedule, double *bubble_out)
{
    struct pf_sched_cost *const unit = unit_costs((size_t)pf_schedule_n_chunks(schedule));
    struct pf_sched_timeline *timeline = NULL;
    const int err =
        unit ? pf_schedule_time(schedule, &(struct pf_sched_costs){.chunks = unit}, &timeline)
             : PF_ENOMEM;

    pf_free(unit);
    PF_TRY(err);
    *bubble_out = timeline->bubble;
    pf_sched_timeline_free(timeline);
    return 0;
}
