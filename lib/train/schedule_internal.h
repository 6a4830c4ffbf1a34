/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_internal.h - the parts of lib/train's schedules. */
#ifndef SCHEDULE_INTERNAL_H
#define SCHEDULE_INTERNAL_H

#include <pf/schedule.h>

#include <stdint.h>

/* Kinds of steps, in groups. */
bool sched_is_compute(enum pf_sched_kind kind);
bool sched_is_send(enum pf_sched_kind kind);
bool sched_is_backwards(enum pf_sched_kind kind); /* of the backward pool and channels */

/* A number for each (micro-batch, chunk of the model). */
static inline int64_t sched_piece(const struct pf_schedule *s, int micro, int chunk)
{
    return (int64_t)chunk * s->n_micro + micro;
}

/*
 * The lists of a schedule hold computing steps alone: give them their messages and buffers.
 * Errors: PF_ENOMEM; PF_EBUG if the computing steps themselves cannot all run.
 */
int sched_add_messages(struct pf_schedule *schedule);

/* Check the list of each stage by itself; facts: [n_stages]. Errors: those of pf_schedule_check. */
int sched_check_stages(const struct pf_schedule *schedule, struct pf_sched_facts *facts);

/* "schedule of stage 1, step 4: ..." */
int sched_fault(int stage, int step, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* "F3", "W12"; with several chunks a letter for the stage's chunk behind: "F3b". Returns the length. */
int sched_label(const struct pf_schedule *s, const struct pf_sched_step *step, char label[24]);

/* The time of the shortest computing step that takes any. */
double sched_shortest(const struct pf_schedule *s, const struct pf_sched_timeline *timeline);

#endif
