/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lies between the computing steps of a schedule: messages and their buffers.
 *
 * A receive is posted one computing step before the one that uses it, so that data come in while the
 * stage computes, and earlier where its message is sent earlier: before the first step that begins
 * after the sending. Then nobody waits for a receive to be posted, a stage that a message reaches long
 * before its use (chunks of one stage, many micro-batches) has a buffer for it, and deadlock is
 * impossible: whatever a step waits for is posted by steps that lie earlier in one common order, that
 * of the clock below. The clock's costs only place receives; other costs in a real run make other
 * times, not another order.
 */
#include "schedule_internal.h"

#include <pf/error.h>
#include <pf/mem.h>

#include <string.h>

enum { FWD, BWD, N_WAYS };

/* A stage sends from so many buffers in turn, so that a transfer may last until the one after the
 * next is written. */
#define SEND_BUFFERS 2

struct pool {
    int n_send, n_sent; /* the first n_send buffers are for sending */
    int n;
    int *free_buffers, n_free; /* a stack of the others */
};

struct work {
    struct pf_schedule *s;
    int n_chunks;
    int64_t *end[N_WAYS]; /* [piece] when its forward, its (input) backward ends; -1: not yet */
    int *buffer[N_WAYS];  /* [piece] what holds its input, the gradient of its output */
    int64_t *start;       /* [computing step of this stage] */
    struct pool pools[N_WAYS];
    struct pf_sched_list from, to; /* computing steps of this stage; its list */
};

/* The clock ---------------------------------------------------------------------------------------
 */

static int way_of(enum pf_sched_kind kind)
{
    return sched_is_backwards(kind) ? BWD : FWD;
}

/* The chunk whose result a computing step takes in; -1 if it takes none. */
static int source_of(const struct work *w, const struct pf_sched_step *step)
{
    if (step->kind == PF_SCHED_FORWARD) {
        return step->chunk - 1;
    }
    return step->kind == PF_SCHED_BACKWARD_WEIGHT || step->chunk == w->n_chunks - 1
               ? -1
               : step->chunk + 1;
}

/* The chunk that takes a computing step's result. */
static int target_of(const struct work *w, const struct pf_sched_step *step)
{
    if (step->kind == PF_SCHED_FORWARD) {
        return step->chunk == w->n_chunks - 1 ? -1 : step->chunk + 1;
    }
    return step->kind == PF_SCHED_BACKWARD_WEIGHT ? -1 : step->chunk - 1;
}

/* When the result that a step takes in was made; 0 if it takes none, -1: not yet. */
static int64_t made_at(const struct work *w, const struct pf_sched_step *step)
{
    const int source = source_of(w, step);

    return source < 0 ? 0 : w->end[way_of(step->kind)][sched_piece(w->s, step->micro, source)];
}

/* Run a stage as far as it goes; `done` and `now` are its. */
static void advance(struct work *w, const struct pf_sched_list *list, int *done, int64_t *now)
{
    for (; *done < list->n_steps; ++*done) {
        const struct pf_sched_step *const step = &list->steps[*done];
        const int64_t ready = made_at(w, step);
        if (ready < 0) {
            return;
        }
        *now = (ready > *now ? ready : *now) + (step->kind == PF_SCHED_BACKWARD ? 2 : 1);
        if (step->kind != PF_SCHED_BACKWARD_WEIGHT) {
            w->end[way_of(step->kind)][sched_piece(w->s, step->micro, step->chunk)] = *now;
        }
    }
}

static int run_clock(struct work *w)
{
    const int p = w->s->n_stages;
    int *const done = pf_calloc_array((size_t)p, sizeof *done);
    int64_t *const now = pf_calloc_array((size_t)p, sizeof *now);
    bool moves = done && now;
    int n_left = p;

    while (moves && n_left > 0) {
        moves = false;
        n_left = 0;
        for (int stage = 0; stage < p; stage++) {
            const int before = done[stage];
            advance(w, &w->s->stages[stage], &done[stage], &now[stage]);
            moves = moves || done[stage] > before;
            n_left += done[stage] < w->s->stages[stage].n_steps;
        }
    }
    const int err = !done || !now ? PF_ENOMEM
                    : n_left > 0  ? pf_fail(PF_EBUG, "a generated schedule cannot run")
                                  : 0;
    pf_free(done);
    pf_free(now);
    return err;
}

/* When each computing step of w->from starts. */
static void find_starts(struct work *w)
{
    int64_t now = 0;

    for (int i = 0; i < w->from.n_steps; i++) {
        const struct pf_sched_step *const step = &w->from.steps[i];
        const int64_t ready = made_at(w, step);
        w->start[i] = ready > now ? ready : now;
        now = w->start[i] + (step->kind == PF_SCHED_BACKWARD ? 2 : 1);
    }
}

/* Buffers -----------------------------------------------------------------------------------------
 */

static int take(struct pool *pool)
{
    return pool->n_free > 0 ? pool->free_buffers[--pool->n_free] : pool->n++;
}

static void give_back(struct pool *pool, int buffer)
{
    pool->free_buffers[pool->n_free++] = buffer;
}

static bool is_remote(const struct work *w, const struct pf_sched_step *step, int chunk)
{
    return chunk >= 0 &&
           pf_schedule_stage_of(w->s, chunk) != pf_schedule_stage_of(w->s, step->chunk);
}

/* Set aside the buffers that a stage sends from. */
static void make_pools(struct work *w)
{
    for (int way = 0; way < N_WAYS; way++) {
        struct pool *const pool = &w->pools[way];
        pool->n_send = pool->n_sent = pool->n_free = 0;
        for (int i = 0; i < w->from.n_steps && pool->n_send < SEND_BUFFERS; i++) {
            const struct pf_sched_step *const step = &w->from.steps[i];
            pool->n_send += way_of(step->kind) == way && is_remote(w, step, target_of(w, step));
        }
        pool->n = pool->n_send;
    }
}

/* Lists -------------------------------------------------------------------------------------------
 */

static void add(struct work *w, enum pf_sched_kind kind, const struct pf_sched_step *step, int in,
                int out)
{
    w->to.steps[w->to.n_steps++] = (struct pf_sched_step){
        .kind = kind, .micro = step->micro, .chunk = step->chunk, .live = -1, .in = in, .out = out};
}

/* Post the receives of one way that are due before computing step k. *next is the first step that was
 * not looked at yet. */
static void add_receives(struct work *w, int way, int k, int *next)
{
    for (; *next < w->from.n_steps; ++*next) {
        const struct pf_sched_step *const step = &w->from.steps[*next];
        if (way_of(step->kind) != way || !is_remote(w, step, source_of(w, step))) {
            continue;
        }
        if (*next > k + 1 && w->start[k + 1] <= made_at(w, step)) {
            return;
        }
        const int buffer = take(&w->pools[way]);
        w->buffer[way][sched_piece(w->s, step->micro, step->chunk)] = buffer;
        add(w, way == FWD ? PF_SCHED_RECV_FWD : PF_SCHED_RECV_BWD, step, -1, buffer);
    }
}

/* A computing step with its buffers, and the sending of its result. */
static void add_compute(struct work *w, const struct pf_sched_step *step)
{
    const int way = way_of(step->kind), target = target_of(w, step);
    struct pool *const pool = &w->pools[way];
    struct pf_sched_step *const added = &w->to.steps[w->to.n_steps++];

    *added = *step;
    if (source_of(w, step) >= 0) {
        added->in = w->buffer[way][sched_piece(w->s, step->micro, step->chunk)];
    }
    if (is_remote(w, step, target)) {
        added->out = pool->n_sent++ % pool->n_send;
        add(w, way == FWD ? PF_SCHED_SEND_FWD : PF_SCHED_SEND_BWD, step, added->out, -1);
    } else if (target >= 0) {
        added->out = take(pool);
        w->buffer[way][sched_piece(w->s, step->micro, target)] = added->out;
    }
    if (added->in >= 0) {
        give_back(pool, added->in);
    }
}

/* At most one receive and one send go with a computing step. */
static int rebuild(struct work *w, int stage)
{
    struct pf_sched_list *const list = &w->s->stages[stage];
    int next[N_WAYS] = {0};

    w->from = *list;
    w->to = (struct pf_sched_list){0};
    w->to.steps = pf_calloc_array(3 * (size_t)w->from.n_steps, sizeof *w->to.steps);
    if (!w->to.steps) {
        return PF_ENOMEM;
    }
    find_starts(w);
    make_pools(w);
    for (int k = 0; k < w->from.n_steps; k++) {
        add_receives(w, FWD, k, &next[FWD]);
        add_receives(w, BWD, k, &next[BWD]);
        add_compute(w, &w->from.steps[k]);
    }
    pf_free(list->steps);
    *list = w->to;
    return 0;
}

static int allocate(struct work *w)
{
    const size_t n_pieces = (size_t)w->n_chunks * (size_t)w->s->n_micro;
    const size_t most = 3 * (size_t)w->s->vpp * (size_t)w->s->n_micro;

    for (int way = 0; way < N_WAYS; way++) {
        w->end[way] = pf_calloc_array(n_pieces, sizeof *w->end[way]);
        w->buffer[way] = pf_calloc_array(n_pieces, sizeof *w->buffer[way]);
        w->pools[way].free_buffers = pf_calloc_array(most, sizeof(int));
        if (!w->end[way] || !w->buffer[way] || !w->pools[way].free_buffers) {
            return PF_ENOMEM;
        }
        memset(w->end[way], -1, n_pieces * sizeof *w->end[way]);
    }
    w->start = pf_calloc_array(most, sizeof *w->start);
    return w->start ? 0 : PF_ENOMEM;
}

int sched_add_messages(struct pf_schedule *schedule)
{
    struct work w = {.s = schedule, .n_chunks = pf_schedule_n_chunks(schedule)};
    int err = 0;

    PF_TRY_GOTO(allocate(&w), out);
    PF_TRY_GOTO(run_clock(&w), out);
    for (int stage = 0; stage < schedule->n_stages; stage++) {
        PF_TRY_GOTO(rebuild(&w, stage), out);
    }
out:
    for (int way = 0; way < N_WAYS; way++) {
        pf_free(w.end[way]);
        pf_free(w.buffer[way]);
        pf_free(w.pools[way].free_buffers);
    }
    pf_free(w.start);
    return err;
}
