/* SPDX-License-Identifier: Apache-2.0 */
/* Windows of files, taken in order by threads: filled, hashed in turn, written. */
#include "engine_internal.h"
#include "job_internal.h"

#include <pf/digest.h>
#include <pf/file.h>
#include <pf/mem.h>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOVED_INTERVAL_NS 100000000
#define MAX_BATCH 4096 /* transfers, each of some 300 bytes */

struct window {
    struct ckpt_output *output;
    uint64_t lo, hi;
    size_t first, end; /* of a compressed file: the blocks */
};

/* The job while it runs. What is not constant is read and written under the lock. */
struct run {
    struct ckpt_job *job;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t next_part;         /* of the first file that nobody has begun */
    struct ckpt_output *last; /* whose windows are being taken; NULL: begin another */
    int n_running;
    bool direct; /* worth trying */
    int err;     /* of the first thread that failed, with its message */
    char *message;
    uint64_t written;
    struct worker *workers; /* [job->threads] */
};

/* Parts by file -----------------------------------------------------------------------------------
 */

int ckpt_part_file(const struct pf_ckpt *ckpt, const struct ckpt_part *part)
{
    return ckpt->tensors[part->tensor].pieces[part->piece].file;
}

int ckpt_plan_by_file(struct ckpt_plan *plan)
{
    const size_t n = (size_t)plan->n_parts;
    size_t *at = pf_calloc_array((size_t)plan->ckpt->n_files + 1, sizeof *at);
    struct ckpt_part *sorted = pf_calloc_array(n, sizeof *sorted);

    if (!at || !sorted) {
        pf_free(at);
        pf_free(sorted);
        return PF_ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        at[ckpt_part_file(plan->ckpt, &plan->parts[i]) + 1]++;
    }
    for (int64_t f = 0; f < plan->ckpt->n_files; f++) {
        at[f + 1] += at[f];
    }
    for (size_t i = 0; i < n; i++) {
        sorted[at[ckpt_part_file(plan->ckpt, &plan->parts[i])]++] = plan->parts[i];
    }
    pf_free(at);
    pf_free(plan->parts);
    plan->parts = sorted;
    return 0;
}

/* How many parts from the first on lie in its file. */
static size_t count_parts(const struct ckpt_plan *plan, size_t first)
{
    const int file = ckpt_part_file(plan->ckpt, &plan->parts[first]);
    size_t end = first;

    while (end < (size_t)plan->n_parts && ckpt_part_file(plan->ckpt, &plan->parts[end]) == file) {
        end++;
    }
    return end - first;
}

/* Windows -----------------------------------------------------------------------------------------
 */

/* What a thread has of its own. */
struct worker {
    struct run *run;
    struct window now;       /* output NULL: none; read and written under the lock */
    uint8_t *block, *buffer; /* buffer: in block, aligned */
    struct ckpt_io io;
    struct ckpt_encoder encoder; /* of compressed files */
};

/* Begin the next file that is not done yet; NULL in r->last if there is none. Locked. */
static int begin_next(struct run *r)
{
    const struct ckpt_plan *plan = r->job->plan;

    r->last = NULL;
    while (!r->last && r->next_part < (size_t)plan->n_parts) {
        const struct ckpt_part *parts = &plan->parts[r->next_part];
        const size_t n = count_parts(plan, r->next_part);
        r->next_part += n;
        if (plan->ckpt->files[ckpt_part_file(plan->ckpt, parts)].digest[0] == '\0') {
            PF_TRY(ckpt_output_open(r->job, parts, n, r->direct, &r->last));
        }
    }
    return 0;
}

/* Give the next window; output NULL when there is none. Locked. */
static int take(struct run *r, struct window *w)
{
    *w = (struct window){.output = NULL};
    if (r->err != 0) {
        return 0;
    }
    if (!r->last) {
        PF_TRY(begin_next(r));
    }
    if (!r->last) {
        return 0;
    }
    struct ckpt_output *o = r->last;
    const uint64_t left = o->image.bytes - o->taken;
    *w = (struct window){.output = o, .lo = o->taken, .hi = o->taken + left};
    if (o->image.coded) {
        w->first = o->next_block;
        w->hi = w->lo + ckpt_coded_take(&o->image, r->job->plan->ckpt, w->first,
                                        r->job->window_bytes, &w->end);
        o->next_block = w->end;
    } else if (left > r->job->window_bytes) {
        w->hi = w->lo + r->job->window_bytes;
    }
    o->taken = w->hi;
    r->last = o->taken < o->image.bytes ? o : NULL;
    return 0;
}

/* Bytes a..b of the file, which lie in one entry, to dst: from memory now, or with the batch. */
static int fill_part(struct worker *k, const struct ckpt_entry *e, uint64_t a, uint64_t b,
                     uint8_t *dst)
{
    const struct ckpt_job *job = k->run->job;
    const struct pf_ckpt_tensor *tensor = &job->plan->ckpt->tensors[e->part->tensor];
    const struct pf_ckpt_piece *piece = &tensor->pieces[e->part->piece];
    const uint64_t bytes = pf_dtype_bytes(tensor->dtype);

    if (job->live) {
        const uint8_t *data = job->live[e->part->live].data;
        memcpy(dst, data + (a - e->offset), (size_t)(b - a));
        return 0;
    }
    const struct ckpt_want want = {.box = piece->box,
                                   .range_lo = piece->range_lo + (int64_t)((a - e->offset) / bytes),
                                   .range_hi = piece->range_lo + (int64_t)((b - e->offset) / bytes),
                                   .dtype = tensor->dtype,
                                   .dst = dst};
    return ckpt_io_want(&k->io, job->from[e->part->tensor], &want);
}

/* Entries are aligned to their elements, and windows to more, so no element is cut in two. */
static int fill(struct worker *k, const struct window *w)
{
    const struct ckpt_image *image = &w->output->image;

    if (!image->coded && w->lo < image->head_bytes) {
        const uint64_t end = w->hi < image->head_bytes ? w->hi : image->head_bytes;
        memcpy(k->buffer, image->head + w->lo, (size_t)(end - w->lo));
    }
    for (size_t i = ckpt_image_find(image, w->lo); i < image->n; i++) {
        const struct ckpt_entry *e = &image->entries[i];
        const uint64_t a = e->offset > w->lo ? e->offset : w->lo;
        const uint64_t b = e->offset + e->bytes < w->hi ? e->offset + e->bytes : w->hi;
        if (e->offset >= w->hi) {
            break;
        }
        if (a < b) {
            PF_TRY(fill_part(k, e, a, b, k->buffer + (a - w->lo)));
        }
        if (k->io.n >= MAX_BATCH) {
            PF_TRY(ckpt_io_run(&k->io));
        }
    }
    return k->run->job->live ? 0 : ckpt_io_run(&k->io);
}

/* Where the window's bytes are: where all of it is of one live piece, they are there already. Past the
 * page cache they must be in the worker's buffer, which is aligned. */
static int look_at(struct worker *k, const struct window *w, const uint8_t **bytes_out)
{
    const struct ckpt_image *image = &w->output->image;
    const struct pf_ckpt_live *live = k->run->job->live;
    const size_t i = ckpt_image_find(image, w->lo);

    if (live && !w->output->direct && i < image->n && image->entries[i].offset <= w->lo &&
        image->entries[i].offset + image->entries[i].bytes >= w->hi) {
        const struct ckpt_entry *e = &image->entries[i];
        *bytes_out = (const uint8_t *)live[e->part->live].data + (w->lo - e->offset);
        return 0;
    }
    *bytes_out = k->buffer;
    return fill(k, w);
}

/* Wait until all before the window is hashed; false if another thread has failed. */
static bool wait_turn(struct run *r, const struct window *w)
{
    pthread_mutex_lock(&r->lock);
    while (r->err == 0 && w->output->hashed != w->lo) {
        pthread_cond_wait(&r->changed, &r->lock);
    }
    const bool mine = r->err == 0;
    pthread_mutex_unlock(&r->lock);
    return mine;
}

/* In its turn: keep the digest of what is hashed now and then, one at a time. */
static void mark(struct run *r, const struct window *w)
{
    struct ckpt_output *o = w->output;

    if (!r->job->begun || w->hi < o->next_mark || w->hi == o->image.bytes) {
        return;
    }
    const struct pf_digest digest = pf_digest_result(o->digest);
    pthread_mutex_lock(&r->lock);
    if (o->marked.bytes == 0) {
        o->marked.bytes = w->hi;
        pf_digest_hex(&digest, o->marked.digest);
        o->next_mark = w->hi + CKPT_PREFIX_BYTES;
    }
    pthread_mutex_unlock(&r->lock);
}

static void end_turn(struct run *r, const struct window *w)
{
    pthread_mutex_lock(&r->lock);
    w->output->hashed = w->hi;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

/* Compress, wait, and write where the blocks before them end. */
static int write_blocks(struct worker *k, const struct window *w)
{
    struct run *r = k->run;
    struct ckpt_output *o = w->output;
    struct ckpt_encoder *e = &k->encoder;

    PF_TRY(r->job->live ? 0 : fill(k, w));
    if (r->job->dry) {
        return 0;
    }
    PF_TRY(ckpt_coded_encode(e, &o->image, r->job->plan->ckpt, r->job->live, k->buffer, w->first,
                             w->end));
    if (!wait_turn(r, w)) {
        return 0;
    }
    const uint64_t at = ckpt_coded_place(e, o, r->job->plan->ckpt, w->first, w->end);
    end_turn(r, w);
    PF_TRY(pf_pwrite_full(o->fd, e->bytes, e->n, at, o->path));
    (void)sync_file_range(o->fd, (off_t)at, (off_t)e->n, SYNC_FILE_RANGE_WRITE);
    return 0;
}

static int write_window(struct worker *k, const struct window *w)
{
    struct run *r = k->run;
    const struct ckpt_output *o = w->output;
    const uint8_t *bytes = NULL;

    if (o->image.coded) {
        return write_blocks(k, w);
    }
    PF_TRY(look_at(k, w, &bytes));
    if (r->job->dry) {
        return 0;
    }
    if (!wait_turn(r, w)) {
        return 0;
    }
    pf_digest_update(o->digest, bytes, (size_t)(w->hi - w->lo));
    mark(r, w);
    end_turn(r, w);
    if (o->direct) {
        return ckpt_direct_write(o->fd, k->buffer, (size_t)(w->hi - w->lo), w->lo, o->path);
    }
    PF_TRY(pf_pwrite_full(o->fd, bytes, (size_t)(w->hi - w->lo), w->lo, o->path));
    /* Begin to bring it to the disk: the sync at the end then has little left to do. */
    (void)sync_file_range(o->fd, (off_t)w->lo, (off_t)(w->hi - w->lo), SYNC_FILE_RANGE_WRITE);
    return 0;
}

/* Threads -----------------------------------------------------------------------------------------
 */

/* Locked. Only the first failure counts. */
static void note_failure(struct run *r, int err)
{
    if (err != 0 && r->err == 0) {
        r->err = err;
        r->message = pf_strdup(pf_error_message());
    }
    if (err != 0) {
        pthread_cond_broadcast(&r->changed);
    }
}

/* Up to where everything is written, but for the window of k, which is counted as written. Locked. */
static uint64_t written_up_to(const struct worker *k)
{
    const struct run *r = k->run;
    const struct ckpt_output *o = k->now.output;
    uint64_t end = o->taken;

    for (int i = 0; i < r->job->threads; i++) {
        const struct worker *other = &r->workers[i];
        if (other != k && other->now.output == o && other->now.lo < end) {
            end = other->now.lo;
        }
    }
    return end;
}

/* Where the digest of a beginning was kept and all of it is written: sync it and tell. The window is not
 * accounted yet, so that nobody ends the file meanwhile. */
static int tell_begun(struct worker *k)
{
    struct run *r = k->run;
    struct ckpt_output *o = k->now.output;
    struct ckpt_prefix prefix = {.bytes = 0};
    int err;

    pthread_mutex_lock(&r->lock);
    if (r->err == 0 && o->marked.bytes > 0 && written_up_to(k) >= o->marked.bytes) {
        prefix = o->marked;
        o->marked.bytes = 0;
    }
    pthread_mutex_unlock(&r->lock);
    if (prefix.bytes == 0) {
        return 0;
    }
    PF_TRY(pf_fsync(o->fd, o->path));
    pthread_mutex_lock(&r->lock);
    err = r->job->begun(r->job->context, o->file, &prefix);
    pthread_mutex_unlock(&r->lock);
    return err;
}

/* After a window; with the last one of a file, what the end of a file needs. */
static void account(struct worker *k, int err)
{
    struct run *r = k->run;
    struct ckpt_output *o = k->now.output;
    const uint64_t n = k->now.hi - k->now.lo;

    err = err ? err : tell_begun(k);
    pthread_mutex_lock(&r->lock);
    note_failure(r, err);
    o->written += n;
    r->written += n;
    k->now.output = NULL;
    const bool last = o->written == o->image.bytes;
    const bool good = r->err == 0;
    pthread_mutex_unlock(&r->lock);
    if (!last) {
        return;
    }
    err = good ? ckpt_output_finish(r->job, o) : 0;
    pthread_mutex_lock(&r->lock);
    if (!err && good && r->err == 0 && r->job->done && !r->job->dry) {
        err = r->job->done(r->job->context, o->file);
    }
    note_failure(r, err);
    pthread_mutex_unlock(&r->lock);
    ckpt_output_free(o);
}

static bool work_once(struct worker *k)
{
    struct run *r = k->run;

    pthread_mutex_lock(&r->lock);
    note_failure(r, take(r, &k->now));
    const struct window w = k->now;
    pthread_mutex_unlock(&r->lock);
    if (!w.output) {
        return false;
    }
    account(k, write_window(k, &w));
    return true;
}

static int worker_init(struct worker *k, struct run *r)
{
    const struct ckpt_job *job = r->job;

    *k = (struct worker){.run = r};
    k->block = pf_alloc(job->window_bytes + 2 * CKPT_WINDOW_ALIGN);
    if (!k->block) {
        return PF_ENOMEM;
    }
    k->buffer = k->block + (CKPT_WINDOW_ALIGN - (uintptr_t)k->block % CKPT_WINDOW_ALIGN);
    if (job->source) {
        PF_TRY(ckpt_io_init(&k->io, job->source, job->buffer_bytes, job->max_open));
        k->io.dry = job->dry;
        /* In use from now on, so that the peak of memory does not depend on what is copied, and is that
         * of a dry run. */
        memset(k->block, 0, job->window_bytes + 2 * CKPT_WINDOW_ALIGN);
        memset(k->io.buffer, 0, job->buffer_bytes);
        PF_TRY(ckpt_is_coded(job->source) ? ckpt_frames_prepare(&k->io.frames) : 0);
    }
    return 0;
}

static void worker_release(struct worker *k)
{
    k->run->job->counts.bytes_read += k->io.bytes_read;
    k->run->job->counts.n_reads += k->io.n_reads;
    ckpt_io_release(&k->io);
    ckpt_encoder_release(&k->encoder);
    pf_free(k->block);
}

static void *thread_main(void *context)
{
    struct worker *k = context;
    struct run *r = k->run;

    while (work_once(k)) {
    }
    pthread_mutex_lock(&r->lock);
    r->n_running--;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static void tell(struct run *r)
{
    if (r->job->moved) {
        pthread_mutex_lock(&r->lock);
        const uint64_t written = r->written + r->job->counts.bytes_kept;
        pthread_mutex_unlock(&r->lock);
        r->job->moved(r->job->context, written);
    }
}

/* The caller's thread looks on. */
static void wait_for_threads(struct run *r)
{
    bool running = true;

    while (running) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += MOVED_INTERVAL_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_mutex_lock(&r->lock);
        if (r->n_running > 0) {
            (void)pthread_cond_timedwait(&r->changed, &r->lock, &until);
        }
        running = r->n_running > 0;
        pthread_mutex_unlock(&r->lock);
        tell(r);
    }
}

/* Signals stay with the caller's thread, whose handlers expect it. */
static int start_threads(struct run *r, struct worker *workers, pthread_t *threads, int *n_out)
{
    sigset_t all, before;
    int err = 0, n = 0;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; !err && n < r->job->threads; n++) {
        pthread_mutex_lock(&r->lock);
        r->n_running++;
        pthread_mutex_unlock(&r->lock);
        if (pthread_create(&threads[n], NULL, thread_main, &workers[n]) != 0) {
            err = pf_fail(PF_ENOMEM, "cannot start a thread");
            pthread_mutex_lock(&r->lock);
            r->n_running--;
            note_failure(r, err);
            pthread_mutex_unlock(&r->lock);
            break;
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    *n_out = n;
    return err;
}

static int run_threads(struct run *r, struct worker *workers)
{
    pthread_t *threads = pf_calloc_array((size_t)r->job->threads, sizeof *threads);
    int n = 0;

    if (!threads) {
        return PF_ENOMEM;
    }
    (void)start_threads(r, workers, threads, &n);
    wait_for_threads(r);
    for (int i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
    }
    pf_free(threads);
    return 0;
}

static int run_all(struct run *r, struct worker *workers)
{
    if (r->job->threads > 1) {
        return run_threads(r, workers);
    }
    while (work_once(workers)) {
        tell(r);
    }
    return 0;
}

/* The record of the thread that failed becomes the caller's. */
static int take_over_failure(struct run *r)
{
    if (r->err != 0 && r->message) {
        (void)pf_fail(r->err, "%s", r->message);
    }
    pf_free(r->message);
    return r->err;
}

uint64_t ckpt_job_bytes(const struct ckpt_plan *plan)
{
    uint64_t sum = 0;

    for (int64_t i = 0; i < plan->n_parts; i++) {
        const struct pf_ckpt_tensor *t = &plan->ckpt->tensors[plan->parts[i].tensor];
        const struct pf_ckpt_piece *p = &t->pieces[plan->parts[i].piece];
        if (plan->ckpt->files[p->file].digest[0] == '\0') {
            sum += (uint64_t)(p->range_hi - p->range_lo) * pf_dtype_bytes(t->dtype);
        }
    }
    return sum;
}

/* Asked by each process for itself: its first file gives the probe a name of its own. */
static bool is_direct_better(const struct ckpt_job *job)
{
    const struct ckpt_plan *plan = job->plan;

    if (job->dry || plan->n_parts == 0) {
        return false;
    }
    const char *name = plan->ckpt->files[ckpt_part_file(plan->ckpt, &plan->parts[0])].name;
    return ckpt_direct_is_better(job->dir, name, ckpt_job_bytes(plan));
}

int ckpt_job_run(struct ckpt_job *job)
{
    struct run r = {.job = job, .direct = is_direct_better(job)};
    struct worker *workers = pf_calloc_array((size_t)job->threads, sizeof *workers);
    int n = 0, err = workers ? 0 : PF_ENOMEM;

    r.workers = workers;

    job->counts = (struct ckpt_counts){.n_files = 0};
    pthread_mutex_init(&r.lock, NULL);
    pthread_cond_init(&r.changed, NULL);
    for (; !err && n < job->threads; n++) {
        err = worker_init(&workers[n], &r);
    }
    err = err ? err : run_all(&r, workers);
    for (int i = 0; i < n; i++) {
        worker_release(&workers[i]);
    }
    ckpt_output_free(r.last);
    pf_free(workers);
    job->counts.bytes_written = r.written;
    pthread_cond_destroy(&r.changed);
    pthread_mutex_destroy(&r.lock);
    return err ? err : take_over_failure(&r);
}
