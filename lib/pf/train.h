/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train.h - a training run, from a config to checkpoints, metrics and an exported model.
 *
 * A trainer is made in two phases. pf_trainer_new resolves everything and touches no large memory:
 * model spec, tensor table, schedule; what it decided can be printed (--plan) and, until the second
 * phase, changed: all that follows is read off the table and the schedule. pf_trainer_build allocates,
 * loads or initialises, opens data; a failure there leaves nothing half loaded, and ranks agree on
 * it. pf_trainer_run trains.
 *
 *     PF_TRY(pf_trainer_new(&config, world, &t));
 *     PF_TRY_GOTO(pf_trainer_build(t), out);
 *     PF_TRY_GOTO(pf_trainer_run(t), out);
 *     out: pf_trainer_free(t);
 *
 * One step (DESIGN section 3): the step's sequences are dealt to ranks and micro-batches: with
 * b sequences a micro-batch and n data-parallel ranks, micro-batch m of rank r holds the global
 * sequences (m*n + r)*b ... +b-1 of the step. The schedule runs; tied accumulators are folded; one
 * fused buffer is summed over ranks in rank order; the norm is an exact sum; AdamW updates. Loss and
 * token counts are summed exactly, so the loss does not depend on the layout beyond the bits of the
 * token losses themselves.
 */
#ifndef PF_TRAIN_H
#define PF_TRAIN_H

#include <pf/comm.h>
#include <pf/config.h>
#include <pf/ops.h>
#include <pf/schedule.h>
#include <pf/spec.h>
#include <pf/table.h>

#include <stdbool.h>
#include <stdio.h>

struct pf_trainer;

/*
 * Resolve a config for the ranks of world, which must outlive the trainer, as must config. Checks
 * that all ranks have the same config, build, instruction set and kernels (PF_EDISAGREE). Reads the
 * model's config.json and, where weights are to be loaded, the headers of its files. Collective.
 */
int pf_trainer_new(const struct pf_config *config, struct pf_comm *world,
                   struct pf_trainer **trainer_out);
void pf_trainer_free(struct pf_trainer *trainer);

/* What was decided; the table and the schedule may be changed until pf_trainer_build. */
const struct pf_model_spec *pf_trainer_spec(const struct pf_trainer *trainer);
struct pf_table *pf_trainer_table(struct pf_trainer *trainer);
struct pf_schedule *pf_trainer_schedule(struct pf_trainer *trainer);

/* Allocate, open data, load or initialise. Collective; ranks agree on the outcome. */
int pf_trainer_build(struct pf_trainer *trainer);

/* Train until the last step, or until a stop was asked for (then a checkpoint is saved first).
 * Collective. PF_ENUMERIC when the loss is not finite. */
int pf_trainer_run(struct pf_trainer *trainer);

/* What one step was. */
struct pf_step_report {
    double loss, grad_norm, seconds;
    int64_t tokens; /* targets, over all ranks */
};

/* One step and no more: nothing is logged, evaluated or saved. For measuring, between build and
 * free, instead of pf_trainer_run. Collective. PF_ENUMERIC as there. */
int pf_trainer_step(struct pf_trainer *trainer, struct pf_step_report *report_out);

/* The registry of ops of this rank, for watching its calls (pf_ops_observe); the trainer's. */
struct pf_ops *pf_trainer_ops(struct pf_trainer *trainer);

/*
 * Hold SIGTERM, SIGUSR1 and SIGINT back in this thread and all that it makes: pf_trainer_run looks for
 * them after each step, and then saves and ends. SIGINT outside of training, or a second time, ends
 * the process at once, as it does without this call; where it is ignored, it stays so. Call it first
 * and once, before MPI and the math library make threads. There is no handler (lib/train/signals.c).
 * Errors: PF_EIO.
 */
int pf_trainer_hold_signals(void);

/*
 * Where the ranks of this host have more threads than it has CPUs, start this process again with
 * OMP_WAIT_POLICY=passive, which OpenMP reads before main; else, where the user chose a policy, or
 * where /proc is missing, return 0. Local; call it before MPI starts, with a config that can be read
 * twice. Errors: PF_ENOMEM.
 */
int pf_trainer_wait_passively(const struct pf_config *config);

/* The resolved plan for people (--plan): layout, batch arithmetic, memory, traffic, schedule; as JSON with
 * json. Local; before or after build. */
int pf_trainer_print_plan(struct pf_trainer *trainer, bool json, FILE *to);

/* Also write each line of metrics.jsonl to this stream as it is made (--json). Call it before build;
 * only rank 0 has lines. The stream must outlive the trainer; where nobody reads it any more (EPIPE),
 * it is turned to /dev/null, and the run goes on. */
void pf_trainer_copy_metrics(struct pf_trainer *trainer, FILE *to);

/* Show on stderr how far the run is (rank 0; see pf/progress.h). Off unless this is called. */
void pf_trainer_show_progress(struct pf_trainer *trainer);

/* Open data and the checkpoint to be resumed without allocating a model (--check). */
int pf_trainer_check(struct pf_trainer *trainer);

/* Name of the file through which pf-train --stop asks a run in output_dir to stop. */
#define PF_STOP_FILE "stop"

/*
 * Leave that file for the run in output_dir, which looks for it after every step (--stop). PF_EUSAGE
 * where no run has been, PF_EREFUSED where none is active (none holds the directory); where the
 * filesystem has no locks that cannot be told, and the file is left. Local.
 */
int pf_trainer_ask_stop(const char *output_dir);

/* Values of one flat parameter buffer by row, for tests and tools: this rank's fp32 parameters of a
 * row, NULL before build and where the rank has none of it. */
const float *pf_trainer_param(const struct pf_trainer *trainer, const struct pf_tensor_row *row);

#endif
