/* SPDX-License-Identifier: Apache-2.0 */
/* A change of layout: plan, stage, copy, commit. */
#include "reshard_internal.h"

#include <pf/digest.h>
#include <pf/file.h>
#include <pf/json.h>
#include <pf/log.h>
#include <pf/mem.h>
#include <pf/time.h>

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/* A process without any of pf's own memory, and what libraries ask for besides. */
#define BASE_BYTES ((size_t)12 << 20)
#define WINDOW_MIN ((size_t)256 << 10)
#define WINDOW_MAX ((size_t)8 << 20)
#define CODED_WINDOW_MIN (PF_PLANES_BLOCK_BYTES + ((size_t)64 << 10))
#define HASH_BYTES ((size_t)1 << 20)

struct resharder {
    struct pf_comm *comm;
    int rank, size;
    const struct pf_ckpt *src;
    const struct pf_reshard *job;
    struct reshard_wanted wanted;
    struct ckpt_plan plan;
    struct ckpt_prefix *prefixes; /* by file: what an earlier run began */
    struct reshard_stamp *stamps;
    struct reshard_staging staging;
    int64_t *file_end;       /* by rank: its files are those from the end of the rank before */
    uint64_t moved, to_move; /* progress */
    enum pf_reshard_phase phase;
    struct pf_reshard_report report;
};

static int64_t first_file(const struct resharder *r, int rank)
{
    return rank > 0 ? r->file_end[rank - 1] : 0;
}

/* Progress ----------------------------------------------------------------------------------------
 */

static void begin_phase(struct resharder *r, enum pf_reshard_phase phase, uint64_t total)
{
    r->phase = phase;
    r->moved = 0;
    r->to_move = total;
}

static void tell(struct resharder *r, uint64_t done)
{
    r->moved = done;
    if (r->job->progress) {
        r->job->progress(r->job->context, r->phase, done, r->to_move);
    }
}

static void moved(void *context, uint64_t bytes)
{
    tell(context, bytes);
}

/* The plan ----------------------------------------------------------------------------------------
 */

static uint64_t piece_bytes(const struct pf_ckpt_tensor *t, const struct pf_ckpt_piece *p)
{
    return (uint64_t)(p->range_hi - p->range_lo) * pf_dtype_bytes(t->dtype);
}

/* Share the files out, in their order: a process gets those whose middle lies in its part of all the
 * bytes. Neighbours in the target are often neighbours in the source. */
static int share_files(struct resharder *r)
{
    const struct pf_ckpt *ckpt = r->plan.ckpt;
    uint64_t *bytes = pf_calloc_array((size_t)ckpt->n_files, sizeof *bytes);
    double total = 0, before = 0;

    r->file_end = pf_calloc_array((size_t)r->size, sizeof *r->file_end);
    if (!bytes || !r->file_end) {
        pf_free(bytes);
        return PF_ENOMEM;
    }
    for (int64_t t = 0; t < ckpt->n_tensors; t++) {
        for (int64_t p = 0; p < ckpt->tensors[t].n_pieces; p++) {
            const struct pf_ckpt_piece *piece = &ckpt->tensors[t].pieces[p];
            bytes[piece->file] += piece_bytes(&ckpt->tensors[t], piece);
            total += (double)piece_bytes(&ckpt->tensors[t], piece);
        }
    }
    for (int64_t f = 0; f < ckpt->n_files; f++) {
        const double middle = before + (double)bytes[f] / 2;
        int rank = (int)(middle / (total > 0 ? total : 1) * r->size);
        rank = rank < r->size ? rank : r->size - 1;
        for (int q = rank; q < r->size; q++) {
            r->file_end[q] = f + 1;
        }
        before += (double)bytes[f];
    }
    pf_free(bytes);
    return 0;
}

/* Keep the parts of this process's files. */
static int keep_mine(struct resharder *r)
{
    struct ckpt_plan *plan = &r->plan;
    int64_t n = 0;

    for (int64_t i = 0; i < plan->n_parts; i++) {
        const struct ckpt_part *part = &plan->parts[i];
        const int file = plan->ckpt->tensors[part->tensor].pieces[part->piece].file;
        if (file >= first_file(r, r->rank) && file < r->file_end[r->rank]) {
            plan->parts[n++] = *part;
        }
    }
    plan->n_parts = n;
    return ckpt_plan_by_file(plan);
}

static int make_plan(struct resharder *r)
{
    const int n_ranks = pf_mesh_size(&r->job->table->mesh);

    PF_TRY(reshard_want(r->src, r->job, &r->wanted));
    PF_TRY(ckpt_plan_of_items(&r->wanted.items, 0, n_ranks, n_ranks, r->job->dst, &r->plan));
    PF_ASSERT(r->plan.ckpt->n_tensors == (int64_t)r->wanted.n);
    if (r->job->codec != PF_CKPT_PLAIN) {
        ckpt_plan_compress(&r->plan);
    }
    r->report.n_tensors = r->plan.ckpt->n_tensors;
    r->report.n_kept_fp32 = r->wanted.n_kept_fp32;
    for (int64_t t = 0; t < r->plan.ckpt->n_tensors; t++) {
        r->report.n_pieces += r->plan.ckpt->tensors[t].n_pieces;
    }
    r->report.n_files = r->plan.ckpt->n_files;
    r->prefixes = pf_calloc_array((size_t)r->plan.ckpt->n_files, sizeof *r->prefixes);
    PF_TRY(r->prefixes ? 0 : PF_ENOMEM);
    PF_TRY(share_files(r));
    PF_TRY(keep_mine(r));
    return reshard_stamp_all(r->src, &r->stamps);
}

/* Memory ------------------------------------------------------------------------------------------
 */

/* From the system's own account of this process; 0 where it gives none. */
static uint64_t peak_memory(void)
{
    char *text = NULL;
    size_t len;
    unsigned long long kib = 0;

    if (pf_file_read_all("/proc/self/status", 0, &text, &len) != 0) {
        pf_error_clear();
        return 0;
    }
    const char *const line = strstr(text, "VmHWM:");
    if (!line || sscanf(line, "VmHWM: %llu", &kib) != 1) {
        kib = 0;
    }
    pf_free(text);
    return (uint64_t)kib << 10;
}

/* Windows and threads that fit into what the plan leaves of the budget. A thread has a window and a
 * buffer for reads; what is compressed takes a window more, of a block at least, and either side's codec
 * its own. */
static int divide_memory(struct resharder *r, struct ckpt_job *copy)
{
    const bool coded = r->job->codec != PF_CKPT_PLAIN;
    const size_t window_min = coded ? CODED_WINDOW_MIN : WINDOW_MIN, parts = coded ? 3 : 2;
    const size_t codecs =
        (coded ? ckpt_frames_bytes() : 0) + (ckpt_is_coded(r->src) ? ckpt_frames_bytes() : 0);
    const size_t used = pf_mem_peak_bytes() + BASE_BYTES, least = parts * window_min + codecs;
    const size_t left = r->job->max_memory > used ? r->job->max_memory - used : 0;
    size_t threads = (size_t)r->job->threads;

    if (left < least) {
        return pf_fail(PF_EREFUSED, "the plan alone takes %zu MiB: give --max-memory %zuM or more",
                       used >> 20, ((used + least) >> 20) + 1);
    }
    threads = threads * least > left ? left / least : threads;
    size_t window = (left / threads - codecs) / parts;
    window = window > WINDOW_MAX ? WINDOW_MAX : window;
    copy->threads = (int)threads;
    copy->window_bytes = window / CKPT_WINDOW_ALIGN * CKPT_WINDOW_ALIGN;
    copy->buffer_bytes = copy->window_bytes;
    copy->max_open = threads < 16 ? (int)(32 / threads) : 1;
    r->report.threads = copy->threads;
    r->report.window_bytes = copy->window_bytes;
    return 0;
}

/* Hashing files -----------------------------------------------------------------------------------
 */

/* Hash a file of dir; cold: from the disk, as far as the system does what it is asked. */
static int hash_file(struct resharder *r, const char *path, bool cold, uint8_t *buffer,
                     char hex_out[PF_DIGEST_HEX_BYTES])
{
    struct pf_digest_state *state = NULL;
    size_t n;
    int fd, err;

    PF_TRY(pf_open(path, O_RDONLY, &fd));
    PF_TRY_GOTO(pf_digest_new(&state), out);
    if (cold) {
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    }
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    do {
        PF_TRY_GOTO(pf_read_some(fd, buffer, HASH_BYTES, path, &n), out);
        pf_digest_update(state, buffer, n);
        tell(r, r->moved + n);
    } while (n > 0);
    const struct pf_digest digest = pf_digest_result(state);
    pf_digest_hex(&digest, hex_out);
out:
    pf_digest_free(state);
    (void)pf_close(fd, NULL);
    return err;
}

/* Does a file have the digest that is on record? */
static int check_file(struct resharder *r, const char *dir, const struct pf_ckpt_file *file,
                      bool cold, uint8_t *buffer, bool *same_out)
{
    char hex[PF_DIGEST_HEX_BYTES];
    char *const path = pf_path_join(dir, file->name);
    int err = path ? hash_file(r, path, cold, buffer, hex) : PF_ENOMEM;

    if (!err) {
        *same_out = strcmp(hex, file->digest) == 0;
        if (!*same_out) {
            err = pf_fail(PF_EFORMAT, "'%s' was changed: its digest is %s, it was %s", path, hex,
                          file->digest);
        }
    }
    pf_free(path);
    return err;
}

/* Files first..end in steps, those that have a digest. */
static int check_files(struct resharder *r, const struct pf_ckpt *ckpt, const char *dir,
                       int64_t first, int64_t end, int64_t step, bool cold)
{
    uint8_t *const buffer = pf_alloc(HASH_BYTES);
    bool same;
    int err = buffer ? 0 : PF_ENOMEM;

    for (int64_t f = first; !err && f < end; f += step) {
        err = ckpt->files[f].digest[0] != '\0'
                  ? check_file(r, dir, &ckpt->files[f], cold, buffer, &same)
                  : 0;
    }
    pf_free(buffer);
    return err;
}

static uint64_t sum_bytes(const struct pf_ckpt *ckpt, int64_t first, int64_t end, int64_t step)
{
    uint64_t sum = 0;

    for (int64_t f = first; f < end; f += step) {
        sum += ckpt->files[f].digest[0] != '\0' ? ckpt->files[f].bytes : 0;
    }
    return sum;
}

static int verify_source(struct resharder *r)
{
    begin_phase(r, PF_RESHARD_CHECK_SOURCE, sum_bytes(r->src, r->rank, r->src->n_files, r->size));
    return check_files(r, r->src, r->src->dir, r->rank, r->src->n_files, r->size, false);
}

static int verify_result(struct resharder *r)
{
    const int64_t first = first_file(r, r->rank), end = r->file_end[r->rank];

    begin_phase(r, PF_RESHARD_CHECK_RESULT, sum_bytes(r->plan.ckpt, first, end, 1));
    return check_files(r, r->plan.ckpt, r->staging.path, first, end, 1, true);
}

/* Going on ----------------------------------------------------------------------------------------
 */

/* Hash what an earlier run finished; what is not as the journal says is made again. */
static int verify_finished(struct resharder *r)
{
    const int64_t first = first_file(r, r->rank), end = r->file_end[r->rank];
    struct pf_ckpt *const ckpt = r->plan.ckpt;
    uint8_t *const buffer = pf_alloc(HASH_BYTES);
    int err = buffer ? 0 : PF_ENOMEM;

    begin_phase(r, PF_RESHARD_CHECK_FILES, sum_bytes(ckpt, first, end, 1));
    for (int64_t f = first; !err && f < end; f++) {
        bool same = false;
        if (ckpt->files[f].digest[0] == '\0') {
            continue;
        }
        err = check_file(r, r->staging.path, &ckpt->files[f], false, buffer, &same);
        if (err == PF_EFORMAT || err == PF_EIO) {
            pf_log_warn("ckpt", "%s: it is made again", pf_error_message());
            pf_error_clear();
            ckpt->files[f].digest[0] = '\0';
            err = 0;
        }
        r->report.n_files_kept += same;
    }
    pf_free(buffer);
    return err;
}

/* After the staging directory is there, on every rank. */
static int take_over(struct resharder *r)
{
    PF_TRY(reshard_journal_read(&r->staging, &r->plan, r->prefixes));
    PF_TRY(verify_finished(r));
    return reshard_remove_unfinished(&r->staging, &r->plan, r->prefixes, first_file(r, r->rank),
                                     r->file_end[r->rank]);
}

/* The copy ----------------------------------------------------------------------------------------
 */

static int finished(void *context, int file)
{
    struct resharder *r = context;

    return reshard_journal_add(&r->staging, &r->plan.ckpt->files[file]);
}

static int begun(void *context, int file, const struct ckpt_prefix *prefix)
{
    struct resharder *r = context;

    return reshard_journal_add_begun(&r->staging, r->plan.ckpt->files[file].name, prefix);
}

static int copy_files(struct resharder *r, struct ckpt_job *copy)
{
    copy->plan = &r->plan;
    copy->dir = r->staging.path;
    copy->source = r->src;
    copy->from = r->wanted.from;
    copy->dry = r->job->dry_run;
    copy->moved = copy->dry ? NULL : moved;
    copy->prefixes = r->prefixes;
    copy->done = finished;
    copy->begun = copy->dry || r->job->codec != PF_CKPT_PLAIN ? NULL : begun;
    copy->context = r;
    begin_phase(r, PF_RESHARD_COPY, ckpt_job_bytes(&r->plan));
    const int err = ckpt_job_run(copy);
    r->report.bytes_read = copy->counts.bytes_read;
    r->report.n_reads = copy->counts.n_reads;
    r->report.bytes_written = copy->counts.bytes_written;
    r->report.bytes_kept = copy->counts.bytes_kept;
    return err;
}

/* Length and digest of every file to every rank. Each rank's files stand together. */
static int share_digests(struct resharder *r)
{
    struct pf_ckpt *const ckpt = r->plan.ckpt;
    const size_t n = (size_t)ckpt->n_files, size = (size_t)r->size;
    struct told {
        uint64_t bytes;
        char digest[40];
    } *all = pf_calloc_array(n, sizeof *all), *mine = pf_calloc_array(n, sizeof *mine);
    size_t *bytes = pf_calloc_array(size, sizeof *bytes), *at = pf_calloc_array(size, sizeof *at);
    int err;

    PF_TRY_GOTO(ckpt_agree(r->comm, all && mine && bytes && at ? 0 : PF_ENOMEM), out);
    for (int q = 0; q < r->size; q++) {
        at[q] = (size_t)first_file(r, q) * sizeof *all;
        bytes[q] = (size_t)(r->file_end[q] - first_file(r, q)) * sizeof *all;
    }
    for (int64_t f = first_file(r, r->rank), i = 0; f < r->file_end[r->rank]; f++, i++) {
        mine[i].bytes = ckpt->files[f].bytes;
        memcpy(mine[i].digest, ckpt->files[f].digest, sizeof ckpt->files[f].digest);
    }
    if (r->comm) {
        PF_TRY_GOTO(pf_comm_all_gather_v(r->comm, mine, all, bytes, at), out);
        for (size_t f = 0; f < n; f++) {
            ckpt->files[f].bytes = all[f].bytes;
            memcpy(ckpt->files[f].digest, all[f].digest, sizeof ckpt->files[f].digest);
        }
    }
out:
    pf_free(all);
    pf_free(mine);
    pf_free(bytes);
    pf_free(at);
    return err;
}

/* The result --------------------------------------------------------------------------------------
 */

static int mesh_json(const struct resharder *r, struct pf_str *text)
{
    struct pf_json_out out;

    pf_json_out_init(&out, text, 0);
    pf_parallel_json(pf_placement_parallel(r->job->place), &out);
    return pf_json_out_finish(&out);
}

static int commit(struct resharder *r)
{
    struct pf_str mesh;

    PF_TRY(reshard_stamp_check(r->src, r->stamps));
    pf_str_init(&mesh);
    int err = mesh_json(r, &mesh);
    const struct pf_ckpt_save save = {
        .step = r->report.step,
        .config_json = r->job->config_json ? r->job->config_json : r->src->config_json,
        .run_json = r->src->run_json,
        .state_json = r->job->weights_only ? NULL : r->src->state_json,
        .mesh_json = mesh.text,
    };
    err = err ? err : reshard_commit(&r->staging, &save, &r->plan);
    pf_str_release(&mesh);
    return err;
}

/* Counts of all ranks, the highest peak of any. */
static int sum_report(struct resharder *r)
{
    struct pf_reshard_report *const report = &r->report;
    uint64_t sums[6] = {report->bytes_read,
                        report->n_reads,
                        report->bytes_written,
                        (uint64_t)report->n_files_kept,
                        0,
                        report->bytes_kept};

    report->peak_memory_bytes = peak_memory();
    for (int64_t f = first_file(r, r->rank); f < r->file_end[r->rank]; f++) {
        sums[4] += r->plan.ckpt->files[f].bytes;
    }
    if (r->comm) {
        PF_TRY(pf_comm_all_reduce(r->comm, sums, 6, PF_COMM_U64, PF_COMM_SUM));
        PF_TRY(
            pf_comm_all_reduce(r->comm, &report->peak_memory_bytes, 1, PF_COMM_U64, PF_COMM_MAX));
    }
    report->bytes_read = sums[0];
    report->n_reads = sums[1];
    report->bytes_written = sums[2];
    report->n_files_kept = (int64_t)sums[3];
    report->target_bytes = sums[4];
    report->bytes_kept = sums[5];
    return 0;
}

/* From a whole plan to the files, all but the last step. */
static int write_all(struct resharder *r, struct ckpt_job *copy)
{
    const bool first = r->rank == 0;

    PF_TRY(ckpt_agree(r->comm, first ? reshard_staging_prepare(&r->staging, r->job->resume) : 0));
    PF_TRY(ckpt_agree(r->comm, r->job->verify ? verify_source(r) : 0));
    PF_TRY(ckpt_agree(r->comm, take_over(r)));
    PF_TRY(ckpt_agree(r->comm, reshard_journal_open(&r->staging, r->rank)));
    PF_TRY(ckpt_agree(r->comm, copy_files(r, copy)));
    PF_TRY(ckpt_agree(r->comm, reshard_journal_close(&r->staging)));
    PF_TRY(ckpt_agree(r->comm, r->job->verify ? verify_result(r) : 0));
    return share_digests(r);
}

static int plan_all(struct resharder *r, struct ckpt_job *copy)
{
    if (r->job->codec != PF_CKPT_PLAIN && !pf_planes_is_built()) {
        return pf_fail(PF_ENOTSUP, "this build has no zstd, so it writes nothing compressed");
    }
    PF_TRY(make_plan(r));
    PF_TRY(reshard_staging_init(&r->staging, r->src, r->stamps, &r->plan, r->job));
    return divide_memory(r, copy);
}

static int run(struct resharder *r)
{
    struct ckpt_job copy = {.threads = 1};

    PF_TRY(ckpt_agree(r->comm, plan_all(r, &copy)));
    if (r->job->dry_run) {
        PF_TRY(ckpt_agree(r->comm, copy_files(r, &copy)));
        return sum_report(r);
    }
    PF_TRY(write_all(r, &copy));
    PF_TRY(sum_report(r));
    return ckpt_agree(r->comm, r->rank == 0 ? commit(r) : 0);
}

int pf_reshard_run(struct pf_comm *comm, const struct pf_ckpt *src, const struct pf_reshard *job,
                   struct pf_reshard_report *report_out)
{
    struct resharder r = {.comm = comm,
                          .rank = ckpt_comm_rank(comm),
                          .size = ckpt_comm_size(comm),
                          .src = src,
                          .job = job,
                          .staging = {.lock_fd = -1, .journal_fd = -1}};
    const double start = pf_time_monotonic();

    r.report.step = src->step >= 0 ? src->step : 0;
    const int err = run(&r);
    if (err != 0 && r.rank == 0 && !job->dry_run) {
        reshard_abandon(&r.staging, &r.plan, r.prefixes, err);
    }
    r.report.seconds = pf_time_monotonic() - start;
    if (err == 0) {
        *report_out = r.report;
    }
    reshard_staging_release(&r.staging);
    reshard_wanted_release(&r.wanted);
    ckpt_plan_release(&r.plan);
    pf_free(r.prefixes);
    pf_free(r.stamps);
    pf_free(r.file_end);
    return err;
}
