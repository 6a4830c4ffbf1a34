/* SPDX-License-Identifier: Apache-2.0 */
/*
 * traffic.h - what one rank exchanges in a training step, by group of ranks, told without running: the
 * figures of --plan. Evaluation, checkpoints and the start are not of a step. Local, allocates only
 * where it says so.
 */
#ifndef PF_TRAFFIC_H
#define PF_TRAFFIC_H

#include <pf/comm.h>
#include <pf/json.h>
#include <pf/model.h>
#include <pf/placement.h>
#include <pf/schedule.h>
#include <pf/str.h>

#include <stdint.h>

/* By what the group is for; several may be one communicator (pf/groups.h). */
enum pf_traffic_group {
    PF_TRAFFIC_TP, /* sums and shares inside layers, norm gradients, the loss of a cut head */
    PF_TRAFFIC_KEY_HEADS, /* gradients of key heads that several tensor-parallel ranks hold */
    PF_TRAFFIC_PP,        /* between stages */
    PF_TRAFFIC_ENDS,      /* the gradient of a tied weight, of first and last stage */
    PF_TRAFFIC_DP,        /* gradients, over dp, sharding and cp */
    PF_TRAFFIC_LOSS,      /* the sum of the loss */
    PF_TRAFFIC_DATA,      /* the count of tokens */
    PF_TRAFFIC_WORLD,     /* the gradient's norm, and the peak of memory */
    PF_TRAFFIC_COUNT
};

/* "tp", "key_heads", ... */
const char *pf_traffic_name(enum pf_traffic_group group);

struct pf_traffic_row {
    int n_ranks;                        /* of the group; 1: nothing goes anywhere */
    uint64_t bytes[PF_COMM_KIND_COUNT]; /* as pf_comm_stats counts them; receives are not counted */
};

struct pf_traffic {
    struct pf_traffic_row rows[PF_TRAFFIC_COUNT];
};

/*
 * Of a rank of the placement's mesh. options: those of its model, with the chunks of its stage in the
 * order of the model; schedule: of the training step. PF_ENOMEM.
 */
int pf_traffic_of(const struct pf_placement *place, const struct pf_schedule *schedule,
                  const struct pf_model_options *options, int rank, struct pf_traffic *traffic_out);

/* Bytes that the rank sends in a group (pf_comm_sent_bytes). */
uint64_t pf_traffic_sent(const struct pf_traffic_row *row);

/* One line: "tp 1.5 MiB, pp 64.0 KiB", or "none". An object: for each group of more than one rank its
 * ranks, sent_bytes, and the bytes of each kind. */
void pf_traffic_text(const struct pf_traffic *traffic, struct pf_str *to);
void pf_traffic_json(const struct pf_traffic *traffic, struct pf_json_out *out);

#endif
