/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reshard.h - a checkpoint in another layout: any that pf reads becomes a pf checkpoint whose files
 * are those that the ranks of another job would have written.
 *
 *     struct pf_ckpt *src;
 *     PF_TRY(pf_ckpt_open("run/checkpoint-000500", &src));
 *     PF_TRY(pf_placement_new(table, &par, &place));
 *     const struct pf_reshard job = {.table = table, .place = place, .dst = "out", .threads = 2,
 *                                    .dtype = PF_DTYPE_COUNT, .max_memory = 1 << 30};
 *     PF_TRY(pf_reshard_run(NULL, src, &job, &report));
 *
 * Everything is planned before the first byte moves: which tensors, which pieces, in which file, from
 * where. The pieces of the target are proved to tile every tensor, those of the source were when it
 * was opened. Then files are written window by window (lib/ckpt/job_internal.h), each by one process,
 * its digest taken on the way; ranks of a communicator share the files. A file that is compressed is made
 * again from its start when a run is resumed; others go on where they were.
 *
 * It is all written in a staging directory beside dst, ".staging-NAME". There every process keeps a
 * journal of the files that are whole and synced, with their digests. When the last one is, the
 * manifest is written and the directory renamed; so under the final name there is nothing or all.
 */
#ifndef PF_RESHARD_H
#define PF_RESHARD_H

#include <pf/ckpt.h>
#include <pf/placement.h>

/* The phases of the work, for progress. */
enum pf_reshard_phase {
    PF_RESHARD_CHECK_SOURCE, /* verify */
    PF_RESHARD_CHECK_FILES,  /* resume: what an earlier run finished */
    PF_RESHARD_COPY,
    PF_RESHARD_CHECK_RESULT, /* verify */
};

struct pf_reshard {
    const struct pf_table *table;
    const struct pf_placement *place; /* of that table */
    const char *dst;
    const char *config_json; /* of the result; NULL: the source's */
    /* Names under which the source holds the embedding, NULL: its own; and a tensor of the source that
     * is not wanted (a head equal to the embedding it is tied to), NULL: none. */
    const char *embed_from, *drop;
    bool weights_only; /* leave masters, moments, averages, scalars and trainer state out */
    /* F32, BF16, F16: floating weights become this; PF_DTYPE_COUNT: keep. A master is what weights are
     * then made from, and where weights of F32 become narrower, it is kept as one. */
    enum pf_dtype dtype;
    enum pf_ckpt_codec codec; /* how the pieces of the result are stored */
    size_t max_memory;        /* bytes of a process */
    int threads;              /* of a process, at least 1 */
    bool dry_run, resume, verify;
    /* How far it is: bytes of this process. May be NULL. Called by the calling thread. */
    void (*progress)(void *context, enum pf_reshard_phase phase, uint64_t done, uint64_t total);
    void *context;
};

struct pf_reshard_report {
    int64_t n_tensors, n_pieces, n_files; /* of the target */
    int64_t n_kept_fp32;          /* weights that dtype does not reach: they must stay F32 */
    int64_t n_files_kept;         /* finished by the run that this one resumes */
    uint64_t bytes_kept;          /* of files that it had begun */
    uint64_t bytes_read, n_reads; /* of the source's tensors, by all processes */
    uint64_t bytes_written;       /* files of tensors */
    uint64_t target_bytes;        /* the same with what was there already; of a dry run that would
                                     compress: the most */
    uint64_t peak_memory_bytes;   /* of the process with most */
    uint64_t window_bytes;        /* what a thread moves at a time */
    int threads;                  /* of a process; fewer than asked where memory is short */
    double seconds;
    int64_t step;
};

/*
 * Do it. Collective over comm (NULL: this process alone): all ranks give the same arguments and end
 * with the same outcome. With dry_run nothing is written, and the report says what would be, the peak
 * of memory as it was here, which the copy does not exceed.
 *
 * Errors: PF_EREFUSED (dst is there and not empty; a staging directory is there without resume, or is
 * that of another job; max_memory is less than the plan alone needs), PF_EFORMAT (a tensor that is no
 * part of the model, or has another shape; a digest of the source is wrong, with verify; the source
 * changed meanwhile), PF_EINCOMPLETE (the model has a tensor that the source has not), PF_ENOTSUP
 * (elements that are not converted, a codec that is not in this build), PF_EIO, PF_ENOMEM. After PF_EIO the staging directory stays where a
 * file in it is finished, so that resume can go on; after other errors nothing is left.
 */
int pf_reshard_run(struct pf_comm *comm, const struct pf_ckpt *src, const struct pf_reshard *job,
                   struct pf_reshard_report *report_out);

#endif
