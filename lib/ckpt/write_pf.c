/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saving: the files into a staging directory, the manifest last, then the commit. Source:
 * pf-checkpoint(5).
 */
#include "job_internal.h"

#include <pf/digest.h>
#include <pf/file.h>
#include <pf/log.h>
#include <pf/mem.h>
#include <pf/time.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of a file that are written and hashed at a time. */
#define WINDOW_BYTES ((size_t)8 << 20)
#define MOST_THREADS 4
/* So much takes a while to compress. */
#define CODED_LEAST ((uint64_t)32 << 20)

/* The save ----------------------------------------------------------------------------------------
 */

struct saver {
    struct pf_comm *comm;
    const struct pf_ckpt_save *save;
    const struct pf_ckpt_live *live;
    int64_t n_live;
    struct ckpt_plan plan;
    struct pf_str manifest; /* rank 0's */
    char name[48];          /* checkpoint-000500 */
    char *staging, *final, *removing, *latest;
    char *old_latest;  /* what `latest` says before */
    char previous[33]; /* digest of the checkpoint that it names */
    int lock_fd;       /* of the staging directory */
    bool staged, renamed;
    bool replaces; /* a whole checkpoint of this step is there: exchange the two */
};

static char *hidden(const char *dir, const char *prefix, const char *name)
{
    return pf_asprintf("%s/%s%s", dir, prefix, name);
}

static int name_paths(struct saver *s)
{
    const char *dir = s->save->output_dir;

    ckpt_step_name(s->save->step, s->name);
    s->staging = hidden(dir, CKPT_STAGING_PREFIX, s->name);
    s->removing = hidden(dir, CKPT_REMOVING_PREFIX, s->name);
    s->final = pf_path_join(dir, s->name);
    s->latest = pf_path_join(dir, CKPT_LATEST);
    return s->staging && s->removing && s->final && s->latest ? 0 : PF_ENOMEM;
}

/* What `latest` names now: what a reader will find in this checkpoint as its predecessor. */
static int read_previous(struct saver *s)
{
    const char *dir = s->save->output_dir;
    struct pf_ckpt *ckpt = NULL;
    int64_t step;

    PF_TRY(ckpt_read_latest_name(dir, &s->old_latest));
    if (s->old_latest && ckpt_parse_step_name(s->old_latest, &step)) {
        PF_TRY(ckpt_open_named(dir, s->old_latest, &ckpt));
    }
    if (ckpt) {
        memcpy(s->previous, ckpt->digest, sizeof s->previous);
    }
    pf_ckpt_free(ckpt);
    return 0;
}

/* May the final name be taken? A link is as much in the way as a file. */
static int look_at_final(struct saver *s)
{
    struct stat st;

    if (lstat(s->final, &st) != 0) {
        return 0; /* if it is more than absent, the rename will tell */
    }
    s->replaces = S_ISDIR(st.st_mode) && ckpt_is_complete(s->final);
    if (!S_ISDIR(st.st_mode) || (s->replaces && !s->save->replace)) {
        return pf_fail(PF_EREFUSED, "'%s' exists already", s->final);
    }
    return 0;
}

/* Rank 0, before anybody writes: everything that can be refused is refused here. */
static int prepare(struct saver *s)
{
    if (s->save->step < 0) {
        return pf_fail(PF_EINVAL, "cannot save the negative step %lld", (long long)s->save->step);
    }
    PF_TRY(pf_mkdirs(s->save->output_dir));
    PF_TRY(look_at_final(s));
    PF_TRY(read_previous(s));
    PF_TRY(ckpt_manifest_head(&s->manifest, s->save, s->previous));
    PF_TRY(ckpt_make_staging(s->staging, &s->lock_fd));
    s->staged = true;
    return look_at_final(s); /* another process may have saved this step meanwhile */
}

/* Threads, where there is much to write, so that some hash while others wait for the disk. */
static int write_my_files(struct saver *s)
{
    const bool coded = s->save->codec != PF_CKPT_PLAIN;
    const uint64_t least = coded ? CODED_LEAST : CKPT_DIRECT_LEAST;
    struct ckpt_job job = {.plan = &s->plan,
                           .dir = s->staging,
                           .live = s->live,
                           .threads = ckpt_job_bytes(&s->plan) < least ? 1 : MOST_THREADS,
                           .window_bytes = WINDOW_BYTES};

    PF_TRY(ckpt_plan_by_file(&s->plan));
    return ckpt_job_run(&job);
}

/* What a rank tells of its two files, optimizer and weights. */
struct told {
    uint64_t bytes[2];
    char digest[2][40];
};

static int share_files(struct saver *s)
{
    const int size = ckpt_comm_size(s->comm), rank = ckpt_comm_rank(s->comm);
    struct pf_ckpt *ckpt = s->plan.ckpt;
    struct told mine = {.bytes = {0}}, *all;
    int err;

    if (!s->comm) {
        return 0;
    }
    for (int64_t f = 0; f < ckpt->n_files; f++) {
        if (s->plan.file_rank[f] == rank) {
            const int k = pf_str_starts_with(ckpt->files[f].name, "weights");
            mine.bytes[k] = ckpt->files[f].bytes;
            memcpy(mine.digest[k], ckpt->files[f].digest, sizeof ckpt->files[f].digest);
        }
    }
    all = pf_calloc_array((size_t)size, sizeof *all);
    PF_TRY_GOTO(ckpt_agree(s->comm, all ? 0 : PF_ENOMEM), out);
    PF_TRY_GOTO(pf_comm_all_gather(s->comm, &mine, all, sizeof mine), out);
    for (int64_t f = 0; f < ckpt->n_files; f++) {
        const int k = pf_str_starts_with(ckpt->files[f].name, "weights");
        const struct told *from = &all[s->plan.file_rank[f]];
        ckpt->files[f].bytes = from->bytes[k];
        memcpy(ckpt->files[f].digest, from->digest[k], sizeof ckpt->files[f].digest);
    }
out:
    pf_free(all);
    return err;
}

static int replace_latest(const struct saver *s)
{
    char line[64];
    const int n = snprintf(line, sizeof line, "%s\n", s->name);

    return pf_file_write_atomic(s->latest, line, (size_t)n);
}

/* To its final name. What is whole there trades places with the new one, so that at no instant the
 * name has neither; what is not whole has nothing to lose. */
static int put_in_place(struct saver *s)
{
    if (s->replaces) {
        PF_TRY(pf_rename_exchange(s->staging, s->final));
        s->renamed = true;
        return 0;
    }
    if (pf_path_exists(s->final)) {
        PF_TRY(ckpt_remove(s->removing));
        PF_TRY(pf_rename_durable(s->final, s->removing));
    }
    if (rename(s->staging, s->final) != 0) {
        return pf_fail_errno(PF_EIO, "cannot rename '%s' to '%s'", s->staging, s->final);
    }
    s->renamed = true;
    return 0;
}

/* Rank 0, when every file is on disk. */
static int commit(struct saver *s)
{
    PF_TRY(ckpt_manifest_write(&s->manifest, s->plan.ckpt, s->staging));
    PF_TRY(put_in_place(s));
    PF_TRY(pf_fsync_path(s->save->output_dir));
    return replace_latest(s);
}

/* `latest` as it was before. */
static void restore_latest(const struct saver *s)
{
    char *now = NULL;

    if (ckpt_read_latest_name(s->save->output_dir, &now) != 0 || !now ||
        strcmp(now, s->name) != 0) {
        pf_free(now);
        return;
    }
    pf_free(now);
    if (!s->old_latest) {
        (void)unlink(s->latest);
        return;
    }
    char *line = pf_asprintf("%s\n", s->old_latest);
    if (line) {
        (void)pf_file_write_atomic(s->latest, line, strlen(line));
    }
    pf_free(line);
}

/* From the final name back to staging. */
static bool take_back(const struct saver *s)
{
    return s->replaces ? pf_rename_exchange(s->final, s->staging) == 0
                       : rename(s->final, s->staging) == 0;
}

/* Rank 0, after a failure: put back what was, as far as the system lets us; keep the record. */
static void undo(struct saver *s, int err)
{
    char *message = pf_strdup(pf_error_message());
    bool is_new_in_staging = s->staged;

    if (s->renamed) {
        is_new_in_staging = take_back(s);
    }
    if (s->renamed && is_new_in_staging) {
        restore_latest(s);
        (void)pf_fsync_path(s->save->output_dir);
    }
    if (is_new_in_staging && pf_rmtree(s->staging) != 0) {
        pf_log_debug("ckpt", "cannot remove '%s': %s", s->staging, pf_error_message());
    }
    if (message && strcmp(message, pf_error_message()) != 0) {
        (void)pf_fail(err, "%s", message);
    }
    pf_free(message);
}

/* After the commit ------------------------------------------------------------------------------
 */

/* Take a checkpoint away: off its final name first, so that a kill leaves no half one under it. */
static int remove_checkpoint(const char *output_dir, const char *name)
{
    char *path = pf_path_join(output_dir, name);
    char *removing = hidden(output_dir, CKPT_REMOVING_PREFIX, name);
    int err = path && removing ? ckpt_remove(removing) : PF_ENOMEM;

    err = err ? err : pf_rename_durable(path, removing);
    err = err ? err : ckpt_remove(removing);
    pf_free(path);
    pf_free(removing);
    return err;
}

/* Append the complete checkpoints of a later (or earlier) step than the one just written. */
static int append_others(const struct saver *s, const struct pf_str_list *names, bool later,
                         struct pf_str_list *others)
{
    int64_t step;

    for (size_t i = 0; i < names->n; i++) {
        if (!ckpt_parse_step_name(names->items[i], &step) || (step > s->save->step) != later ||
            strcmp(names->items[i], s->name) == 0) {
            continue;
        }
        char *path = pf_path_join(s->save->output_dir, names->items[i]);
        const bool whole = path && ckpt_is_complete(path);
        pf_free(path);
        if (whole) {
            PF_TRY(pf_str_list_append(others, names->items[i]));
        }
    }
    return 0;
}

/* The complete checkpoints but the one just written, oldest first. Those of later steps are of a
 * past that the run has left by going back: they were written before the earlier ones. */
static int list_others(const struct saver *s, struct pf_str_list *others)
{
    struct pf_str_list names = {0};
    int err;

    PF_TRY(ckpt_list_steps(s->save->output_dir, &names));
    err = append_others(s, &names, true, others);
    err = err ? err : append_others(s, &names, false, others);
    pf_str_list_release(&names);
    return err;
}

static int prune(const struct saver *s)
{
    struct pf_str_list others = {0};
    int err = 0;

    PF_TRY(ckpt_remove(s->removing));
    PF_TRY(s->replaces ? ckpt_remove_staging(s->staging) : 0); /* what was replaced */
    if (s->save->total_limit <= 0) {
        return 0;
    }
    err = list_others(s, &others);
    const size_t keep = (size_t)s->save->total_limit - 1;
    for (size_t i = 0; !err && i + keep < others.n; i++) {
        err = remove_checkpoint(s->save->output_dir, others.items[i]);
    }
    pf_str_list_release(&others);
    return err;
}

static int check_codec(const struct saver *s)
{
    return s->save->codec == PF_CKPT_PLAIN || pf_planes_is_built()
               ? 0
               : pf_fail(PF_ENOTSUP, "this build has no zstd, so it saves nothing compressed");
}

static int run(struct saver *s)
{
    const bool first = ckpt_comm_rank(s->comm) == 0;

    PF_TRY(ckpt_agree(s->comm, name_paths(s)));
    PF_TRY(ckpt_agree(s->comm, check_codec(s)));
    PF_TRY(ckpt_plan_make(s->comm, s->live, s->n_live, &s->plan));
    if (s->save->codec != PF_CKPT_PLAIN) {
        ckpt_plan_compress(&s->plan);
    }
    PF_TRY(ckpt_agree(s->comm, first ? prepare(s) : 0));
    PF_TRY(ckpt_agree(s->comm, write_my_files(s)));
    PF_TRY(share_files(s));
    PF_TRY(s->save->parity ? ckpt_parity_write(s->comm, s->plan.ckpt, s->staging) : 0);
    return ckpt_agree(s->comm, first ? commit(s) : 0);
}

int pf_ckpt_save(struct pf_comm *comm, const struct pf_ckpt_save *save,
                 const struct pf_ckpt_live *live, int64_t n_live, struct pf_ckpt_saved *saved_out)
{
    struct saver s = {.comm = comm, .save = save, .live = live, .n_live = n_live, .lock_fd = -1};
    const double start = pf_time_monotonic();

    pf_str_init(&s.manifest);
    const int err = run(&s);
    if (err != 0) {
        undo(&s, err);
    } else if (ckpt_comm_rank(comm) == 0 && prune(&s) != 0) {
        pf_log_warn("ckpt", "old checkpoints stay: %s", pf_error_message());
        pf_error_clear();
    }
    if (err == 0 && saved_out) {
        *saved_out = (struct pf_ckpt_saved){.bytes = 0};
        for (int64_t f = 0; f < s.plan.ckpt->n_files; f++) {
            saved_out->bytes += s.plan.ckpt->files[f].bytes;
        }
        saved_out->seconds = pf_time_monotonic() - start;
    }
    (void)pf_close(s.lock_fd, NULL);
    ckpt_plan_release(&s.plan);
    pf_str_release(&s.manifest);
    pf_free(s.staging);
    pf_free(s.final);
    pf_free(s.removing);
    pf_free(s.latest);
    pf_free(s.old_latest);
    return err;
}
