/* SPDX-License-Identifier: Apache-2.0 */
/* reshard_internal.h - the parts of a change of layout: what is wanted, where it is staged. */
#ifndef RESHARD_INTERNAL_H
#define RESHARD_INTERNAL_H

#include "job_internal.h"

#include <pf/reshard.h>

/* A tensor of the result. */
struct reshard_target {
    const char *name;
    enum pf_role role;
    enum pf_dtype dtype;
    const struct pf_ckpt_tensor *from;
    int64_t row; /* -1: no row of the table; it lies whole on rank 0 */
};

struct reshard_wanted {
    struct reshard_target *targets; /* by role and name */
    size_t n;
    struct pf_shard_list shards;        /* of all targets, one after the other */
    struct ckpt_items items;            /* lead into targets and shards */
    const struct pf_ckpt_tensor **from; /* by target, which is by tensor of the plan */
    int64_t n_kept_fp32;
};

/* Decide which tensors the result has and where their pieces lie. Pure. Release also after failure. */
int reshard_want(const struct pf_ckpt *src, const struct pf_reshard *job,
                 struct reshard_wanted *wanted_out);
void reshard_wanted_release(struct reshard_wanted *w);

/* How a source's file looked, to see whether it changes. */
struct reshard_stamp {
    uint64_t bytes, inode;
    int64_t mtime_s, mtime_ns, ctime_s, ctime_ns;
};

int reshard_stamp_all(const struct pf_ckpt *src, struct reshard_stamp **stamps_out);
/* PF_EFORMAT naming the first file that is not as it was. */
int reshard_stamp_check(const struct pf_ckpt *src, const struct reshard_stamp *stamps);

/* The staging directory and the journals in it. */
struct reshard_staging {
    char *dst, *parent, *path; /* no slash at the end of dst */
    char plan_digest[33];      /* of source and target: whose staging directory it is */
    int lock_fd;               /* rank 0 */
    int journal_fd;
    char *journal_path;
    bool made; /* by this run; rank 0 */
};

/* Paths and digest; touches nothing. */
int reshard_staging_init(struct reshard_staging *s, const struct pf_ckpt *src,
                         const struct reshard_stamp *stamps, const struct ckpt_plan *plan,
                         const struct pf_reshard *job);
void reshard_staging_release(struct reshard_staging *s);

/* Rank 0: refuse what is in the way, make or take over the directory. */
int reshard_staging_prepare(struct reshard_staging *s, bool resume);

/* Read what earlier runs finished into the plan's files (length and digest), and what they began into
 * prefixes, by file; every rank. */
int reshard_journal_read(const struct reshard_staging *s, struct ckpt_plan *plan,
                         struct ckpt_prefix *prefixes);

/* Remove files of the plan that are there and neither finished nor begun, among those first..end. */
int reshard_remove_unfinished(const struct reshard_staging *s, const struct ckpt_plan *plan,
                              const struct ckpt_prefix *prefixes, int64_t first, int64_t end);

/* Open this rank's journal, and add a finished file to it, durably; or one of which so much is written and
 * synced. */
int reshard_journal_open(struct reshard_staging *s, int rank);
int reshard_journal_close(struct reshard_staging *s);
int reshard_journal_add(struct reshard_staging *s, const struct pf_ckpt_file *file);
int reshard_journal_add_begun(struct reshard_staging *s, const char *name,
                              const struct ckpt_prefix *prefix);

/* Rank 0: the manifest, the journals away, the final name. */
int reshard_commit(struct reshard_staging *s, const struct pf_ckpt_save *save,
                   const struct ckpt_plan *plan);

/* Rank 0, after a failure with err: what an earlier run made stays, and so does what is finished where
 * the disk was at fault; else away with it. Keeps the record. */
void reshard_abandon(struct reshard_staging *s, struct ckpt_plan *plan,
                     struct ckpt_prefix *prefixes, int err);

#endif
