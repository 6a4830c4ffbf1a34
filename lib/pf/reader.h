/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader.h - the micro-batches of a step, read when they are needed or ahead of that by a thread.
 *
 * The sequences of a step stand at consecutive global positions, `first` and what follows, and are
 * dealt in blocks of `batch`: micro-batch m of rank r of n holds the positions
 * first + (m*n + r)*batch ... +batch-1. What a reader gives is a function of the data, the options and
 * `first` alone; whether a thread reads ahead changes when data are read, never what or in which order.
 *
 *     PF_TRY(pf_reader_new(data, &options, &reader));
 *     PF_TRY_GOTO(pf_reader_start(reader, first, end), out);
 *     for (; first < end; first += stride) {
 *             PF_TRY_GOTO(pf_reader_next(reader, first, &batches), out);
 *             ... batches[0 .. n_micro-1] ...
 *     }
 *     out: pf_reader_free(reader);
 *
 * With n_ahead > 0, from pf_reader_start until pf_reader_free the data handle is in use by the
 * reader's thread: nobody else may read from it (what does not change, its description, digest and
 * entropy, may be asked for). All memory is allocated by pf_reader_new. One thread calls these
 * functions, which are local.
 */
#ifndef PF_READER_H
#define PF_READER_H

#include <pf/data.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pf_reader;

/* One micro-batch: arrays [batch,S]. */
struct pf_reader_batch {
    int32_t *ids, *targets;         /* as pf_data_read gives them */
    int32_t *first_key, *positions; /* s - first_key; both NULL unless mask_documents */
    int64_t first_sequence;         /* global position of row 0 */
    int64_t n_targets;              /* that count */
};

struct pf_reader_options {
    int64_t seq;     /* S of the data */
    int64_t batch;   /* sequences of a micro-batch */
    int64_t n_micro; /* micro-batches of a step on each rank */
    int rank, n_ranks;
    bool mask_documents; /* fill first_key and positions */
    int64_t n_ahead;     /* steps that a thread reads ahead; 0: there is no thread */
};

/* data must outlive the reader. PF_ENOMEM. */
int pf_reader_new(struct pf_data *data, const struct pf_reader_options *options,
                  struct pf_reader **reader_out);

/* Ends the thread after the step that it is reading. NULL is fine. */
void pf_reader_free(struct pf_reader *reader);

/* Begin to read ahead, once, with the step at position `first`; steps at positions >= end are not
 * read ahead. Without a thread it does nothing. PF_EIO if the system gives no thread. */
int pf_reader_start(struct pf_reader *reader, int64_t first, int64_t end);

/*
 * The n_micro micro-batches of the step at position `first`, borrowed until the next call. Blocks
 * until they are read. The thread expects each step n_ranks*n_micro*batch positions after the one
 * before; another one is found all the same, and the reading ahead goes on from there. A fault is
 * reported by the call that asks for the step it lies in, and by no other.
 */
int pf_reader_next(struct pf_reader *reader, int64_t first,
                   const struct pf_reader_batch **batches_out);

/* What pf_reader_new allocates. */
size_t pf_reader_bytes(const struct pf_reader_options *options);

#endif
