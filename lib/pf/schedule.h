/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule.h - a pipeline schedule is data: for each stage a list of small steps over micro-batches.
 *
 * A generator makes the lists, one executor (lib/train) runs any list, one checker proves what a list
 * must hold and computes its peak of live activations. With one stage two generators matter: 1F1B
 * (each backward right after its forward, one micro-batch alive) and F-then-B (all forwards first).
 * They give the same bits, since weight gradients are added in micro-batch order in both.
 *
 *     struct pf_schedule *s;
 *     PF_TRY(pf_schedule_new(PF_SCHEDULE_1F1B, 1, n_micro, &s));
 *     PF_TRY(pf_schedule_check(s, &facts));
 *     pf_schedule_free(s);
 *
 * Local, no I/O.
 */
#ifndef PF_SCHEDULE_H
#define PF_SCHEDULE_H

#include <pf/config.h>

enum pf_sched_kind { PF_SCHED_FORWARD, PF_SCHED_BACKWARD };

struct pf_sched_step {
    enum pf_sched_kind kind;
    int micro; /* micro-batch, from 0 */
    int live;  /* slot in which the activations of this micro-batch are kept */
};

struct pf_sched_list {
    int n_steps;
    struct pf_sched_step *steps;
};

struct pf_schedule {
    int n_stages, n_micro;
    struct pf_sched_list *stages; /* [n_stages] */
};

struct pf_sched_facts {
    int peak_live; /* most micro-batches alive at once on a stage */
    int n_slots;   /* live slots used: 1 + the highest */
};

/* Errors: PF_ENOTSUP for more than one stage, PF_ENOMEM. */
int pf_schedule_new(enum pf_schedule_kind kind, int n_stages, int n_micro,
                    struct pf_schedule **schedule_out);
void pf_schedule_free(struct pf_schedule *schedule);

/*
 * Prove that a schedule can run and gives the agreed sums: every micro-batch has one forward and one
 * backward, in this order and in one slot; forwards and backwards each come in micro-batch order
 * (the head adds its gradients in forward, everything else in backward); no slot is overwritten
 * before its backward. PF_EINVAL names stage, step and fault.
 */
int pf_schedule_check(const struct pf_schedule *schedule, struct pf_sched_facts *facts_out);

#endif
