/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/schedule.h>

#include <pf/error.h>
#include <pf/mem.h>

static void generate_1f1b(struct pf_sched_list *list, int n_micro)
{
    for (int m = 0; m < n_micro; m++) {
        list->steps[list->n_steps++] = (struct pf_sched_step){PF_SCHED_FORWARD, m, 0};
        list->steps[list->n_steps++] = (struct pf_sched_step){PF_SCHED_BACKWARD, m, 0};
    }
}

static void generate_f_then_b(struct pf_sched_list *list, int n_micro)
{
    for (int m = 0; m < n_micro; m++) {
        list->steps[list->n_steps++] = (struct pf_sched_step){PF_SCHED_FORWARD, m, m};
    }
    for (int m = 0; m < n_micro; m++) {
        list->steps[list->n_steps++] = (struct pf_sched_step){PF_SCHED_BACKWARD, m, m};
    }
}

int pf_schedule_new(enum pf_schedule_kind kind, int n_stages, int n_micro,
                    struct pf_schedule **schedule_out)
{
    struct pf_schedule *s;

    if (n_stages != 1) {
        return pf_fail(PF_ENOTSUP, "this build has no schedule for %d pipeline stages", n_stages);
    }
    if (n_micro < 1) {
        return pf_fail(PF_EINVAL, "a schedule needs at least one micro-batch, not %d", n_micro);
    }
    s = pf_alloc(sizeof *s);
    if (!s) {
        return PF_ENOMEM;
    }
    s->n_stages = n_stages;
    s->n_micro = n_micro;
    s->stages = pf_calloc_array((size_t)n_stages, sizeof *s->stages);
    if (s->stages) {
        s->stages[0].steps = pf_calloc_array(2 * (size_t)n_micro, sizeof *s->stages[0].steps);
    }
    if (!s->stages || !s->stages[0].steps) {
        pf_schedule_free(s);
        return PF_ENOMEM;
    }
    if (kind == PF_SCHEDULE_1F1B) {
        generate_1f1b(&s->stages[0], n_micro);
    } else {
        generate_f_then_b(&s->stages[0], n_micro);
    }
    *schedule_out = s;
    return 0;
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

static int fault(int stage, int step, const char *what)
{
    return pf_fail(PF_EINVAL, "schedule of stage %d, step %d: %s", stage, step, what);
}

/* owner[slot]: the micro-batch alive there, or -1. */
static int check_stage(const struct pf_schedule *s, int stage, int *owner, int n_slots,
                       struct pf_sched_facts *facts)
{
    const struct pf_sched_list *const list = &s->stages[stage];
    int next_forward = 0, next_backward = 0, n_live = 0;

    for (int i = 0; i < list->n_steps; i++) {
        const struct pf_sched_step *const step = &list->steps[i];
        if (step->kind == PF_SCHED_FORWARD) {
            if (step->micro != next_forward++) {
                return fault(stage, i, "forwards are not in micro-batch order");
            }
            if (owner[step->live] >= 0) {
                return fault(stage, i,
                             "the slot still holds a micro-batch that waits for backward");
            }
            owner[step->live] = step->micro;
            n_live++;
        } else {
            if (step->micro != next_backward++) {
                return fault(stage, i, "backwards are not in micro-batch order");
            }
            if (owner[step->live] != step->micro) {
                return fault(stage, i, "backward of a micro-batch that is not in this slot");
            }
            owner[step->live] = -1;
            n_live--;
        }
        facts->peak_live = n_live > facts->peak_live ? n_live : facts->peak_live;
    }
    if (next_forward != s->n_micro || next_backward != s->n_micro) {
        return fault(stage, list->n_steps, "micro-batches are missing at the end");
    }
    facts->n_slots = n_slots > facts->n_slots ? n_slots : facts->n_slots;
    return 0;
}

static int slots_of(const struct pf_schedule *s, int stage, int *n_slots_out)
{
    const struct pf_sched_list *const list = &s->stages[stage];
    int n = 0;

    for (int i = 0; i < list->n_steps; i++) {
        const struct pf_sched_step *const step = &list->steps[i];
        if (step->live < 0 || step->live >= s->n_micro) {
            return fault(stage, i, "the live slot is out of range");
        }
        n = step->live >= n ? step->live + 1 : n;
    }
    *n_slots_out = n;
    return 0;
}

int pf_schedule_check(const struct pf_schedule *schedule, struct pf_sched_facts *facts_out)
{
    struct pf_sched_facts facts = {0};
    int err = 0;

    for (int stage = 0; !err && stage < schedule->n_stages; stage++) {
        int n_slots = 0;
        PF_TRY(slots_of(schedule, stage, &n_slots));
        int *const owner = pf_calloc_array((size_t)n_slots + 1, sizeof *owner);
        if (!owner) {
            return PF_ENOMEM;
        }
        for (int i = 0; i < n_slots; i++) {
            owner[i] = -1;
        }
        err = check_stage(schedule, stage, owner, n_slots, &facts);
        pf_free(owner);
    }
    if (!err) {
        *facts_out = facts;
    }
    return err;
}
