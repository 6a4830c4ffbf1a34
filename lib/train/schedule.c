/* SPDX-License-Identifier: Apache-2.0 */
/* Generators: the order in which each stage computes. */
#include "schedule_internal.h"

#include <pf/error.h>
#include <pf/mem.h>

/* Names ------------------------------------------------------------------------------------------ */

const char *pf_schedule_name(enum pf_schedule_kind kind)
{
    static const char *const names[PF_SCHEDULE_COUNT] = {
        [PF_SCHEDULE_1F1B] = "1F1B",         [PF_SCHEDULE_F_THEN_B] = "FThenB",
        [PF_SCHEDULE_INTERLEAVED] = "VPP",   [PF_SCHEDULE_ZERO_BUBBLE] = "ZBH1",
        [PF_SCHEDULE_BALANCED] = "balanced", [PF_SCHEDULE_EVAL] = "eval",
    };

    return names[kind];
}

const char *pf_sched_kind_name(enum pf_sched_kind kind)
{
    static const char *const names[PF_SCHED_KIND_COUNT] = {
        [PF_SCHED_FORWARD] = "forward",
        [PF_SCHED_BACKWARD] = "backward",
        [PF_SCHED_BACKWARD_INPUT] = "backward_input",
        [PF_SCHED_BACKWARD_WEIGHT] = "backward_weight",
        [PF_SCHED_SEND_FWD] = "send_fwd",
        [PF_SCHED_RECV_FWD] = "recv_fwd",
        [PF_SCHED_SEND_BWD] = "send_bwd",
        [PF_SCHED_RECV_BWD] = "recv_bwd",
    };

    return names[kind];
}

bool sched_is_compute(enum pf_sched_kind kind)
{
    return kind <= PF_SCHED_BACKWARD_WEIGHT;
}

bool sched_is_send(enum pf_sched_kind kind)
{
    return kind == PF_SCHED_SEND_FWD || kind == PF_SCHED_SEND_BWD;
}

bool sched_is_backwards(enum pf_sched_kind kind)
{
    return kind != PF_SCHED_FORWARD && kind != PF_SCHED_SEND_FWD && kind != PF_SCHED_RECV_FWD;
}

int pf_schedule_n_chunks(const struct pf_schedule *schedule)
{
    return schedule->n_stages * schedule->vpp;
}

int pf_schedule_stage_of(const struct pf_schedule *schedule, int chunk)
{
    return chunk % schedule->n_stages;
}

int pf_schedule_peer(const struct pf_schedule *schedule, const struct pf_sched_step *step)
{
    switch (step->kind) {
    case PF_SCHED_SEND_FWD:
    case PF_SCHED_RECV_BWD:
        return pf_schedule_stage_of(schedule, step->chunk + 1);
    case PF_SCHED_RECV_FWD:
    case PF_SCHED_SEND_BWD:
        return pf_schedule_stage_of(schedule, step->chunk - 1);
    default:
        return -1;
    }
}

/* Orders ----------------------------------------------------------------------------------------- */

/* How one stage goes on: in groups of micro-batches, with some forwards before the first backward. */
struct course {
    int n_groups;
    int warm_up;
    int defer; /* ZERO_BUBBLE: backwards by which weight gradients lag; else -1 */
};

static int min_of(int a, int b)
{
    return a < b ? a : b;
}

static int max_of(int a, int b)
{
    return a > b ? a : b;
}

/* Groups differ in size by one at most, the larger ones come first. */
static int largest_group(const struct pf_schedule *s, int n_groups)
{
    return (s->n_micro + n_groups - 1) / n_groups;
}

static struct course course_of(const struct pf_schedule *s, enum pf_schedule_kind kind, int stage)
{
    const int p = s->n_stages, v = s->vpp, m = s->n_micro, after = p - stage - 1;
    const int n_groups = max_of(1, m / p);
    struct course c = {.n_groups = n_groups, .warm_up = min_of(m, after), .defer = -1};

    switch (kind) {
    case PF_SCHEDULE_F_THEN_B:
    case PF_SCHEDULE_EVAL:
        c.warm_up = m * v;
        break;
    case PF_SCHEDULE_INTERLEAVED:
        if (v > 1) {
            c.warm_up = min_of(m * v, 2 * after + (v - 1) * largest_group(s, n_groups));
        }
        break;
    case PF_SCHEDULE_BALANCED:
        c.n_groups = 1;
        c.warm_up += m * (v - 1);
        break;
    case PF_SCHEDULE_ZERO_BUBBLE:
        c.defer = stage;
        break;
    default:
        break;
    }
    return c;
}

/* The i-th (micro-batch, chunk of the stage) of the forwards. */
struct unit {
    int micro, local;
};

static struct unit unit_of(const struct pf_schedule *s, int n_groups, int i)
{
    const int size = s->n_micro / n_groups, n_large = s->n_micro % n_groups;
    const int in_large = n_large * (size + 1) * s->vpp;
    const bool large = i < in_large;
    const int n = large ? size + 1 : size, at = large ? i : i - in_large;
    const int first = (large ? 0 : n_large * (size + 1)) + at / (n * s->vpp) * n;
    const int within = at % (n * s->vpp);

    return (struct unit){first + within % n, within / n};
}

static void add(struct pf_sched_list *list, enum pf_sched_kind kind, int micro, int chunk)
{
    list->steps[list->n_steps++] = (struct pf_sched_step){
        .kind = kind, .micro = micro, .chunk = chunk, .live = -1, .in = -1, .out = -1};
}

static void add_forward(struct pf_schedule *s, int stage, const struct course *c, int i)
{
    const struct unit u = unit_of(s, c->n_groups, i);

    add(&s->stages[stage], PF_SCHED_FORWARD, u.micro, u.local * s->n_stages + stage);
}

/* The i-th backward: chunks in the opposite order. */
static void add_backward(struct pf_schedule *s, int stage, const struct course *c, int i)
{
    const struct unit u = unit_of(s, c->n_groups, i);
    const int chunk = (s->vpp - 1 - u.local) * s->n_stages + stage;
    struct pf_sched_list *const list = &s->stages[stage];

    if (c->defer < 0) {
        add(list, PF_SCHED_BACKWARD, u.micro, chunk);
        return;
    }
    add(list, PF_SCHED_BACKWARD_INPUT, u.micro, chunk);
    if (i >= c->defer) {
        add(list, PF_SCHED_BACKWARD_WEIGHT, i - c->defer, chunk);
    }
}

static void order_stage(struct pf_schedule *s, enum pf_schedule_kind kind, int stage)
{
    const struct course c = course_of(s, kind, stage);
    const int n = s->n_micro * s->vpp;

    for (int i = 0; i < c.warm_up; i++) {
        add_forward(s, stage, &c, i);
    }
    if (s->forward_only) {
        return;
    }
    for (int i = 0; i < n; i++) {
        if (c.warm_up + i < n) {
            add_forward(s, stage, &c, c.warm_up + i);
        }
        add_backward(s, stage, &c, i);
    }
    for (int i = max_of(0, n - c.defer); c.defer > 0 && i < n; i++) {
        add(&s->stages[stage], PF_SCHED_BACKWARD_WEIGHT, i, stage);
    }
}

/* Live slots ------------------------------------------------------------------------------------- */

/* Slots come from a stack, so that there are as many as are alive at once, and that a slot is used
 * again while it is warm. slot_of: [vpp * n_micro], free_slots: the same. */
static void give_slots(struct pf_schedule *s, int stage, int *slot_of, int *free_slots)
{
    struct pf_sched_list *const list = &s->stages[stage];
    int n_free = 0, n_slots = 0;

    for (int i = 0; i < list->n_steps; i++) {
        struct pf_sched_step *const step = &list->steps[i];
        int *const slot = &slot_of[sched_piece(s, step->micro, step->chunk / s->n_stages)];
        if (step->kind == PF_SCHED_FORWARD) {
            *slot = n_free > 0 ? free_slots[--n_free] : n_slots++;
        }
        step->live = *slot;
        if (s->forward_only || step->kind == PF_SCHED_BACKWARD ||
            step->kind == PF_SCHED_BACKWARD_WEIGHT) {
            free_slots[n_free++] = *slot;
        }
    }
}

static int give_all_slots(struct pf_schedule *s)
{
    const size_t n = (size_t)s->n_micro * (size_t)s->vpp;
    int *const slot_of = pf_calloc_array(n, sizeof *slot_of);
    int *const free_slots = pf_calloc_array(n, sizeof *free_slots);

    for (int stage = 0; slot_of && free_slots && stage < s->n_stages; stage++) {
        give_slots(s, stage, slot_of, free_slots);
    }
    pf_free(slot_of);
    pf_free(free_slots);
    return slot_of && free_slots ? 0 : PF_ENOMEM;
}

/* The whole -------------------------------------------------------------------------------------- */

static int check_options(const struct pf_schedule_options *o, int vpp)
{
    if (o->n_stages < 1 || vpp < 1) {
        return pf_fail(PF_EINVAL, "%d stages of %d chunks are no pipeline", o->n_stages, vpp);
    }
    if (o->n_micro < 1) {
        return pf_fail(PF_EINVAL, "a schedule needs at least one micro-batch, not %d", o->n_micro);
    }
    if (vpp > 1 && (o->kind == PF_SCHEDULE_1F1B || o->kind == PF_SCHEDULE_ZERO_BUBBLE)) {
        return pf_fail(PF_EINVAL, "the schedule %s has one chunk on each stage, not %d",
                       pf_schedule_name(o->kind), vpp);
    }
    if ((double)o->n_stages * vpp * o->n_micro > PF_SCHEDULE_MAX_PIECES) {
        return pf_fail(PF_EINVAL,
                       "%d stages x %d chunks x %d micro-batches are too many to schedule: at most "
                       "%d",
                       o->n_stages, vpp, o->n_micro, PF_SCHEDULE_MAX_PIECES);
    }
    return 0;
}

static int order_all(struct pf_schedule *s, enum pf_schedule_kind kind)
{
    const size_t most = 3 * (size_t)s->n_micro * (size_t)s->vpp;

    s->stages = pf_calloc_array((size_t)s->n_stages, sizeof *s->stages);
    if (!s->stages) {
        return PF_ENOMEM;
    }
    for (int stage = 0; stage < s->n_stages; stage++) {
        s->stages[stage].steps = pf_calloc_array(most, sizeof *s->stages[stage].steps);
        if (!s->stages[stage].steps) {
            return PF_ENOMEM;
        }
        order_stage(s, kind, stage);
    }
    return 0;
}

int pf_schedule_new(const struct pf_schedule_options *options, struct pf_schedule **schedule_out)
{
    const int vpp = options->vpp == 0 ? 1 : options->vpp;
    struct pf_schedule *s;
    int err = 0;

    PF_TRY(check_options(options, vpp));
    s = pf_alloc(sizeof *s);
    if (!s) {
        return PF_ENOMEM;
    }
    s->n_stages = options->n_stages;
    s->vpp = vpp;
    s->n_micro = options->n_micro;
    s->forward_only = options->kind == PF_SCHEDULE_EVAL;
    PF_TRY_GOTO(order_all(s, options->kind), out);
    PF_TRY_GOTO(give_all_slots(s), out);
    PF_TRY_GOTO(sched_add_messages(s), out);
    *schedule_out = s;
    return 0;
out:
    pf_schedule_free(s);
    return err;
}

void pf_schedule_free(struct pf_schedule *schedule)
{
    if (!schedule) {
        return;
    }
    for (int i = 0; schedule->stages && i < schedule->n_stages; i++) {
        pf_free(schedule->stages[i].steps);
    }
    pf_free(schedule->stages);
    pf_free(schedule);
}
