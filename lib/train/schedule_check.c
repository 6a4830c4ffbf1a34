/* SPDX-License-Identifier: Apache-2.0 */
/* What the list of each stage must hold by itself. */
#include "schedule_internal.h"

#include <pf/error.h>
#include <pf/mem.h>

#include <stdarg.h>

enum content { EMPTY, FULL, SENDING };

/* What a buffer holds: the input of (or the gradient of the output of) a micro-batch and chunk. */
struct buffer {
    enum content content;
    int micro, chunk;
};

struct pool {
    const char *name;
    int n;
    struct buffer *buffers;
};

/* How far one chunk of the stage has come: the micro-batch whose turn it is. */
struct chunk {
    int forward, input, weight;
};

struct owner {
    bool taken;
    int micro, chunk;
};

struct stage {
    const struct pf_schedule *s;
    int stage, step; /* where we are */
    int n_chunks;    /* of the model */
    struct chunk *chunks;
    struct owner *slots;
    struct pool fwd, bwd;
    int n_live, n_split;
    struct pf_sched_facts facts;
};

int sched_fault(int stage, int step, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    char *const text = pf_vasprintf(format, args);
    va_end(args);
    if (!text) {
        return PF_ENOMEM;
    }
    const int err = pf_fail(PF_EINVAL, "schedule of stage %d, step %d: %s", stage, step, text);
    pf_free(text);
    return err;
}

#define FAULT(t, ...) sched_fault((t)->stage, (t)->step, __VA_ARGS__)

/* Order ------------------------------------------------------------------------------------------ */

static struct chunk *chunk_of(const struct stage *t, const struct pf_sched_step *step)
{
    return &t->chunks[step->chunk / t->s->n_stages];
}

static int take_turn(const struct stage *t, const struct pf_sched_step *step, int *turn)
{
    if (step->micro != *turn) {
        return FAULT(t, "%s of micro-batch %d in chunk %d, where it is the turn of %d",
                     pf_sched_kind_name(step->kind), step->micro, step->chunk, *turn);
    }
    ++*turn;
    return 0;
}

/* Each micro-batch once, in order, backward after forward: the counters say it all. */
static int check_turn(struct stage *t, const struct pf_sched_step *step)
{
    struct chunk *const c = chunk_of(t, step);

    if (t->s->forward_only && step->kind != PF_SCHED_FORWARD) {
        return FAULT(t, "a %s in a schedule of forwards", pf_sched_kind_name(step->kind));
    }
    if (step->kind == PF_SCHED_FORWARD) {
        return take_turn(t, step, &c->forward);
    }
    if (step->kind == PF_SCHED_BACKWARD_WEIGHT ? step->micro >= c->input
                                               : step->micro >= c->forward) {
        return FAULT(t, "%s of micro-batch %d in chunk %d before its %s",
                     pf_sched_kind_name(step->kind), step->micro, step->chunk,
                     step->kind == PF_SCHED_BACKWARD_WEIGHT ? "backward_input" : "forward");
    }
    if (step->kind != PF_SCHED_BACKWARD_WEIGHT) {
        PF_TRY(take_turn(t, step, &c->input));
    }
    return step->kind == PF_SCHED_BACKWARD_INPUT ? 0 : take_turn(t, step, &c->weight);
}

/* Live slots ------------------------------------------------------------------------------------- */

static void raise_to(int *most, int n)
{
    *most = n > *most ? n : *most;
}

static int take_slot(struct stage *t, const struct pf_sched_step *step, struct owner *slot)
{
    if (slot->taken) {
        return FAULT(t, "live slot %d still holds micro-batch %d of chunk %d", step->live,
                     slot->micro, slot->chunk);
    }
    *slot = (struct owner){!t->s->forward_only, step->micro, step->chunk};
    raise_to(&t->facts.peak_live, t->n_live + 1);
    t->n_live += !t->s->forward_only;
    return 0;
}

static int check_slot(struct stage *t, const struct pf_sched_step *step)
{
    struct owner *const slot = &t->slots[step->live];

    if (step->kind == PF_SCHED_FORWARD) {
        return take_slot(t, step, slot);
    }
    if (!slot->taken || slot->micro != step->micro || slot->chunk != step->chunk) {
        return FAULT(t, "live slot %d does not hold micro-batch %d of chunk %d", step->live,
                     step->micro, step->chunk);
    }
    t->n_split += step->kind == PF_SCHED_BACKWARD_INPUT;
    raise_to(&t->facts.peak_split, t->n_split);
    t->n_split -= step->kind == PF_SCHED_BACKWARD_WEIGHT;
    if (step->kind != PF_SCHED_BACKWARD_INPUT) {
        slot->taken = false;
        t->n_live--;
    }
    return 0;
}

/* Buffers ---------------------------------------------------------------------------------------- */

static int must_be_none(const struct stage *t, int buffer, const char *which)
{
    return buffer < 0 ? 0
                      : FAULT(t, "names the buffer %d as its %s, which it has not", buffer, which);
}

/* A step reads what `chunk` is to get. */
static int read_buffer(struct stage *t, const struct pf_sched_step *step, struct pool *pool,
                       int chunk, enum content after)
{
    if (step->in < 0) {
        return FAULT(t, "has no buffer to read from");
    }
    struct buffer *const b = &pool->buffers[step->in];
    if (b->content != FULL || b->micro != step->micro || b->chunk != chunk) {
        return FAULT(t, "%s buffer %d does not hold what chunk %d gets for micro-batch %d",
                     pool->name, step->in, chunk, step->micro);
    }
    b->content = after;
    return 0;
}

/* A step writes what `chunk` is to get. Only a computing step waits until the buffer has been sent. */
static int write_buffer(struct stage *t, const struct pf_sched_step *step, struct pool *pool,
                        int chunk)
{
    if (step->out < 0) {
        return FAULT(t, "has no buffer to write to");
    }
    struct buffer *const b = &pool->buffers[step->out];
    if (b->content == FULL) {
        return FAULT(t, "%s buffer %d still holds what chunk %d gets for micro-batch %d",
                     pool->name, step->out, b->chunk, b->micro);
    }
    if (b->content == SENDING && !sched_is_compute(step->kind)) {
        return FAULT(t, "receives into %s buffer %d, which may not be sent yet", pool->name,
                     step->out);
    }
    *b = (struct buffer){FULL, step->micro, chunk};
    return 0;
}

static int check_compute_buffers(struct stage *t, const struct pf_sched_step *step)
{
    const bool forward = step->kind == PF_SCHED_FORWARD;
    struct pool *const pool = forward ? &t->fwd : &t->bwd;
    const bool weight = step->kind == PF_SCHED_BACKWARD_WEIGHT;
    const bool at_start = step->chunk == 0, at_end = step->chunk == t->n_chunks - 1;

    if (weight || (forward ? at_end : at_start)) {
        PF_TRY(must_be_none(t, step->out, "output"));
    } else {
        PF_TRY(write_buffer(t, step, pool, forward ? step->chunk + 1 : step->chunk - 1));
    }
    return weight || (forward ? at_start : at_end) ? must_be_none(t, step->in, "input")
                                                   : read_buffer(t, step, pool, step->chunk, EMPTY);
}

/* Messages --------------------------------------------------------------------------------------- */

static int check_message(struct stage *t, const struct pf_sched_step *step)
{
    const bool send = sched_is_send(step->kind);
    const bool next = step->kind == PF_SCHED_SEND_FWD || step->kind == PF_SCHED_RECV_BWD;
    const int other = next ? step->chunk + 1 : step->chunk - 1;
    struct pool *const pool = sched_is_backwards(step->kind) ? &t->bwd : &t->fwd;

    if (other < 0 || other >= t->n_chunks || pf_schedule_stage_of(t->s, other) == t->stage) {
        return FAULT(t, "%s of chunk %d, which has no such neighbour on another stage",
                     pf_sched_kind_name(step->kind), step->chunk);
    }
    if (send) {
        PF_TRY(must_be_none(t, step->out, "output"));
        return read_buffer(t, step, pool, other, SENDING);
    }
    PF_TRY(must_be_none(t, step->in, "input"));
    return write_buffer(t, step, pool, step->chunk);
}

/* One stage -------------------------------------------------------------------------------------- */

/* Numbers that name nothing; no honest list has more slots or buffers than pieces and two. */
static int check_range(const struct stage *t, const struct pf_sched_step *step)
{
    const int most = t->s->vpp * t->s->n_micro + 2;

    if ((unsigned)step->kind >= PF_SCHED_KIND_COUNT) {
        return FAULT(t, "there is no kind of step %d", (int)step->kind);
    }
    if (step->micro < 0 || step->micro >= t->s->n_micro) {
        return FAULT(t, "there is no micro-batch %d", step->micro);
    }
    if (step->chunk < 0 || step->chunk >= t->n_chunks ||
        pf_schedule_stage_of(t->s, step->chunk) != t->stage) {
        return FAULT(t, "chunk %d is not of this stage", step->chunk);
    }
    if (sched_is_compute(step->kind) ? step->live < 0 || step->live >= most : step->live != -1) {
        return FAULT(t, "the live slot %d is out of range", step->live);
    }
    return step->in < -1 || step->in >= most || step->out < -1 || step->out >= most
               ? FAULT(t, "a buffer is out of range: in %d, out %d", step->in, step->out)
               : 0;
}

static int check_ranges(struct stage *t, const struct pf_sched_list *list)
{
    struct pf_sched_facts *const f = &t->facts;

    for (t->step = 0; t->step < list->n_steps; t->step++) {
        const struct pf_sched_step *const step = &list->steps[t->step];
        PF_TRY(check_range(t, step));
        int *const buffers = sched_is_backwards(step->kind) ? &f->bwd_buffers : &f->fwd_buffers;
        raise_to(&f->n_slots, step->live + 1);
        raise_to(buffers, step->in + 1);
        raise_to(buffers, step->out + 1);
    }
    return 0;
}

static int check_step(struct stage *t, const struct pf_sched_step *step)
{
    if (!sched_is_compute(step->kind)) {
        return check_message(t, step);
    }
    PF_TRY(check_turn(t, step));
    PF_TRY(check_slot(t, step));
    return check_compute_buffers(t, step);
}

static int check_pool_end(const struct stage *t, const struct pool *pool)
{
    for (int i = 0; i < pool->n; i++) {
        const struct buffer *const b = &pool->buffers[i];
        if (b->content == FULL) {
            return FAULT(t, "%s buffer %d still holds what chunk %d gets for micro-batch %d",
                         pool->name, i, b->chunk, b->micro);
        }
    }
    return 0;
}

static int check_end(const struct stage *t)
{
    const int m = t->s->n_micro;

    for (int i = 0; i < t->s->vpp; i++) {
        const struct chunk *const c = &t->chunks[i];
        if (c->forward != m || (!t->s->forward_only && (c->input != m || c->weight != m))) {
            return FAULT(
                t, "of %d micro-batches chunk %d has %d forwards, %d backwards, %d of weights", m,
                i * t->s->n_stages + t->stage, c->forward, c->input, c->weight);
        }
    }
    PF_TRY(check_pool_end(t, &t->fwd));
    return check_pool_end(t, &t->bwd);
}

static int check_steps(struct stage *t, const struct pf_sched_list *list)
{
    for (t->step = 0; t->step < list->n_steps; t->step++) {
        PF_TRY(check_step(t, &list->steps[t->step]));
    }
    return check_end(t);
}

static int allocate(struct stage *t)
{
    t->fwd.n = t->facts.fwd_buffers;
    t->bwd.n = t->facts.bwd_buffers;
    t->chunks = pf_calloc_array((size_t)t->s->vpp, sizeof *t->chunks);
    t->slots = pf_calloc_array((size_t)t->facts.n_slots, sizeof *t->slots);
    t->fwd.buffers = pf_calloc_array((size_t)t->fwd.n, sizeof *t->fwd.buffers);
    t->bwd.buffers = pf_calloc_array((size_t)t->bwd.n, sizeof *t->bwd.buffers);
    return t->chunks && t->slots && t->fwd.buffers && t->bwd.buffers ? 0 : PF_ENOMEM;
}

static int check_stage(const struct pf_schedule *s, int stage, struct pf_sched_facts *facts_out)
{
    const struct pf_sched_list *const list = &s->stages[stage];
    struct stage t = {.s = s,
                      .stage = stage,
                      .n_chunks = pf_schedule_n_chunks(s),
                      .fwd = {.name = "forward"},
                      .bwd = {.name = "backward"}};
    int err = check_ranges(&t, list);

    if (!err) {
        err = allocate(&t);
    }
    if (!err) {
        err = check_steps(&t, list);
    }
    pf_free(t.chunks);
    pf_free(t.slots);
    pf_free(t.fwd.buffers);
    pf_free(t.bwd.buffers);
    *facts_out = t.facts;
    return err;
}

int sched_check_stages(const struct pf_schedule *schedule, struct pf_sched_facts *facts)
{
    for (int stage = 0; stage < schedule->n_stages; stage++) {
        PF_TRY(check_stage(schedule, stage, &facts[stage]));
    }
    return 0;
}
