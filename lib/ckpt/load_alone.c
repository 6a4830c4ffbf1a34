/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading by one process for itself. Files are cut into windows, which threads take in order. What is in
 * the page cache already goes from there straight to where it is wanted; what is not is read past the
 * cache, several windows at a time, and put in its place from a buffer. Where a file has a digest, or
 * one is asked for, its windows are hashed in turn, while others are read.
 */
#include "engine_internal.h"
#include "load_internal.h"
#include "plan_internal.h"

#include <pf/dev.h>
#include <pf/file.h>
#include <pf/mem.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define WINDOW_BYTES ((size_t)4 << 20)
#define ALIGN ((size_t)4096)

/* More than read at a time: some wait for their turn to hash. */
enum { MOST_THREADS = 12, MOST_SEGMENTS = 64 };

/* A stored piece in the order of the files. */
struct ref {
    const struct pf_ckpt_tensor *tensor;
    const struct pf_ckpt_piece *piece;
    uint64_t lo, hi; /* in the file */
    const struct pf_ckpt_live *const *wants;
    size_t n_wants;
};

/* A file while it is read. */
struct file {
    char *path;
    int fd, direct;    /* direct: past the cache; -1: not open, not possible */
    size_t first, end; /* refs */
    uint8_t *map;      /* never touched; NULL: none */
    bool hashes, opened;
    uint64_t bytes, taken, hashed; /* the last two only grow */
    int64_t under_way;             /* windows */
    struct pf_digest_state *digest;
};

struct window {
    struct file *file;
    uint64_t lo, hi;
};

struct loader {
    const struct pf_ckpt *ckpt;
    bool verify;
    const struct pf_ckpt_live **wants; /* by tensor */
    struct ref *refs;
    size_t n_refs;
    struct file *files;
    char (*digests)[PF_DIGEST_HEX_BYTES]; /* NULL: not asked for */
    bool past_cache;
    pthread_mutex_t lock; /* for all below, and files' taken, hashed, under_way */
    pthread_cond_t changed;
    int64_t next; /* file */
    int err;
    char *message;
};

/* Bytes of a window that go to one place. */
struct segment {
    const struct ref *ref; /* NULL: nobody wants them */
    uint64_t lo, hi;
    uint8_t *to; /* where they are in the end, or in the buffer */
    bool placed; /* `to` is where they are wanted, dense and of the same dtype */
};

struct worker {
    struct loader *l;
    uint8_t *block, *buffer; /* buffer: in block, aligned */
    struct segment segments[MOST_SEGMENTS];
    int n;
};

/* The plan -------------------------------------------------------------------------------------- */

static int compare_refs(const void *a, const void *b)
{
    const struct ref *x = a, *y = b;

    if (x->piece->file != y->piece->file) {
        return x->piece->file < y->piece->file ? -1 : 1;
    }
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* Live pieces by their tensor; at: [n_tensors + 1]. */
static int sort_wants(struct loader *l, const struct pf_ckpt_live *live, int64_t n_live, size_t *at)
{
    int64_t *const tensor = pf_calloc_array((size_t)n_live, sizeof *tensor);

    l->wants = pf_calloc_array((size_t)n_live, sizeof *l->wants);
    if (!tensor || !l->wants) {
        pf_free(tensor);
        return PF_ENOMEM;
    }
    for (int64_t i = 0; i < n_live; i++) {
        tensor[i] = pf_ckpt_find(l->ckpt, live[i].name, live[i].role) - l->ckpt->tensors;
        at[tensor[i] + 1]++;
    }
    for (int64_t t = 0; t < l->ckpt->n_tensors; t++) {
        at[t + 1] += at[t];
    }
    for (int64_t i = n_live - 1; i >= 0; i--) {
        l->wants[--at[tensor[i] + 1]] = &live[i];
    }
    pf_free(tensor);
    return 0;
}

/* at[t + 1] is now where the wants of tensor t begin. */
static int make_refs(struct loader *l, const size_t *at, size_t n_wants)
{
    const struct pf_ckpt *const ckpt = l->ckpt;
    size_t n = 0;

    for (int64_t t = 0; t < ckpt->n_tensors; t++) {
        n += (size_t)ckpt->tensors[t].n_pieces;
    }
    l->refs = pf_calloc_array(n, sizeof *l->refs);
    if (!l->refs) {
        return PF_ENOMEM;
    }
    for (int64_t t = 0; t < ckpt->n_tensors; t++) {
        const struct pf_ckpt_tensor *const tensor = &ckpt->tensors[t];
        const size_t end = t + 1 < ckpt->n_tensors ? at[t + 2] : n_wants;
        for (int64_t p = 0; p < tensor->n_pieces; p++) {
            const struct pf_ckpt_piece *const piece = &tensor->pieces[p];
            const uint64_t bytes =
                (uint64_t)(piece->range_hi - piece->range_lo) * pf_dtype_bytes(tensor->dtype);
            l->refs[l->n_refs++] = (struct ref){.tensor = tensor,
                                                .piece = piece,
                                                .lo = piece->offset,
                                                .hi = piece->offset + bytes,
                                                .wants = &l->wants[at[t + 1]],
                                                .n_wants = end - at[t + 1]};
        }
    }
    if (n > 0) {
        qsort(l->refs, n, sizeof *l->refs, compare_refs);
    }
    return 0;
}

static int make_files(struct loader *l)
{
    const struct pf_ckpt *const ckpt = l->ckpt;
    size_t r = 0;

    l->files = pf_calloc_array((size_t)ckpt->n_files, sizeof *l->files);
    if (!l->files) {
        return PF_ENOMEM;
    }
    for (int64_t f = 0; f < ckpt->n_files; f++) {
        struct file *const file = &l->files[f];
        const bool known = ckpt->files[f].digest[0] != '\0';
        *file = (struct file){.fd = -1, .direct = -1, .first = r};
        while (r < l->n_refs && l->refs[r].piece->file == f) {
            file->bytes =
                l->refs[r].n_wants > 0 && l->refs[r].hi > file->bytes ? l->refs[r].hi : file->bytes;
            r++;
        }
        file->end = r;
        file->hashes = l->digests != NULL || (l->verify && known);
        file->bytes = file->hashes ? ckpt->files[f].bytes : file->bytes;
    }
    return 0;
}

/* Files ----------------------------------------------------------------------------------------- */

static void close_file(struct file *f)
{
    if (f->map) {
        (void)munmap(f->map, (size_t)f->bytes);
    }
    f->map = NULL;
    (void)pf_close(f->fd, NULL);
    (void)pf_close(f->direct, NULL);
    f->fd = f->direct = -1;
    pf_digest_free(f->digest);
    f->digest = NULL;
    pf_free(f->path);
    f->path = NULL;
}

/* Locked. */
static int open_file(struct loader *l, struct file *f)
{
    f->opened = true;
    f->path = ckpt_file_path(l->ckpt, (int)(f - l->files));
    PF_TRY(f->path ? 0 : PF_ENOMEM);
    PF_TRY(f->hashes ? pf_digest_new(&f->digest) : 0);
    PF_TRY(pf_open(f->path, O_RDONLY, &f->fd));
    if (l->past_cache && f->bytes > WINDOW_BYTES && sysconf(_SC_PAGESIZE) == (long)ALIGN) {
        /* Where there is no such thing, not. */
        f->direct = open(f->path, O_RDONLY | O_CLOEXEC | O_DIRECT);
        void *const map = mmap(NULL, (size_t)f->bytes, PROT_READ, MAP_SHARED, f->fd, 0);
        f->map = map == MAP_FAILED ? NULL : map;
    }
    return 0;
}

/* The digest of a file that is read to its end. */
static int end_file(struct loader *l, struct file *f)
{
    const int64_t i = f - l->files;
    const char *const want = l->ckpt->files[i].digest;
    char hex[PF_DIGEST_HEX_BYTES];

    if (!f->hashes) {
        return 0;
    }
    const struct pf_digest digest = pf_digest_result(f->digest);
    pf_digest_hex(&digest, hex);
    if (l->digests) {
        memcpy(l->digests[i], hex, sizeof hex);
    }
    if (l->verify && want[0] != '\0' && strcmp(hex, want) != 0) {
        return pf_fail(PF_EFORMAT, "'%s' was changed: its digest is %s, the manifest says %s",
                       f->path, hex, want);
    }
    return 0;
}

/* The first ref of a file that ends after an offset. */
static size_t ref_after(const struct loader *l, const struct file *f, uint64_t offset)
{
    size_t lo = f->first, hi = f->end;

    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (l->refs[mid].hi <= offset) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* Where reading goes on: what nobody wants is left out, unless it is hashed. */
static uint64_t skip_unwanted(const struct loader *l, const struct file *f, uint64_t offset)
{
    if (f->hashes) {
        return offset;
    }
    for (size_t i = ref_after(l, f, offset); i < f->end; i++) {
        if (l->refs[i].n_wants > 0) {
            return l->refs[i].lo > offset ? l->refs[i].lo : offset;
        }
    }
    return f->bytes;
}

/* Windows --------------------------------------------------------------------------------------- */

/* Does dst hold these elements of the piece, one after the other? *to_out: from lo on. */
static bool is_dense(const struct ref *r, uint64_t lo, uint8_t **to_out)
{
    const struct pf_ckpt_live *const live = r->wants[0];
    const struct pf_ckpt_piece *const p = r->piece;
    const uint64_t size = pf_dtype_bytes(r->tensor->dtype);
    const bool all = live->range_lo == 0 && live->range_hi == 0;
    const int64_t first = all ? 0 : live->range_lo, last = all ? p->range_hi : live->range_hi;

    if (r->n_wants != 1 || live->dtype != r->tensor->dtype || !pf_box_equal(&live->box, &p->box) ||
        p->range_lo < first || p->range_hi > last) {
        return false;
    }
    *to_out = (uint8_t *)live->data + (uint64_t)(p->range_lo - first) * size + (lo - r->lo);
    return true;
}

/* Bytes that nobody wants. */
static void add_gap(struct worker *k, const struct window *w, uint64_t lo, uint64_t hi)
{
    k->segments[k->n++] = (struct segment){.lo = lo, .hi = hi, .to = k->buffer + (lo - w->lo)};
}

static void add_segment(struct worker *k, const struct window *w, const struct ref *r, uint64_t lo,
                        uint64_t hi)
{
    if (r->n_wants == 0) {
        add_gap(k, w, lo, hi);
        return;
    }
    struct segment *const s = &k->segments[k->n++];
    *s = (struct segment){.ref = r, .lo = lo, .hi = hi, .to = k->buffer + (lo - w->lo)};
    s->placed = is_dense(r, lo, &s->to);
}

/* Cut a window into segments. It becomes shorter where it has too many. */
static void cut_window(struct worker *k, struct window *w)
{
    const struct file *const f = w->file;
    uint64_t at = w->lo;

    k->n = 0;
    for (size_t i = ref_after(k->l, f, w->lo); i < f->end && at < w->hi; i++) {
        const struct ref *const r = &k->l->refs[i];
        const uint64_t lo = r->lo > w->lo ? r->lo : w->lo, hi = r->hi < w->hi ? r->hi : w->hi;
        if (k->n > MOST_SEGMENTS - 2) {
            w->hi = at;
            return;
        }
        if (lo > at) {
            add_gap(k, w, at, lo < w->hi ? lo : w->hi);
        }
        if (lo < hi) {
            add_segment(k, w, r, lo, hi);
        }
        at = hi > at ? hi : at;
    }
    if (at < w->hi) {
        add_gap(k, w, at, w->hi);
    }
}

/* The next window of a file; no element is cut in two. Locked. */
static void next_window(struct worker *k, struct file *f, struct window *w)
{
    w->file = f;
    w->lo = skip_unwanted(k->l, f, f->taken);
    /* From a multiple of the alignment on, so that what is read past the cache is read once. */
    w->hi = (w->lo + WINDOW_BYTES) / ALIGN * ALIGN;
    w->hi = w->hi < f->bytes ? w->hi : f->bytes;
    const size_t i = ref_after(k->l, f, w->hi);
    if (w->hi < f->bytes && i < f->end && k->l->refs[i].lo < w->hi) {
        w->hi -= (w->hi - k->l->refs[i].lo) % pf_dtype_bytes(k->l->refs[i].tensor->dtype);
    }
    cut_window(k, w);
    f->taken = w->hi;
    f->under_way++;
}

/* Locked. */
static int take(struct worker *k, struct window *w)
{
    struct loader *const l = k->l;

    w->file = NULL;
    while (l->err == 0 && l->next < l->ckpt->n_files) {
        struct file *const f = &l->files[l->next];
        if (!f->opened && f->bytes > 0) {
            PF_TRY(open_file(l, f));
        }
        if (skip_unwanted(l, f, f->taken) < f->bytes) {
            next_window(k, f, w);
            return 0;
        }
        l->next++;
    }
    return 0;
}

/* Reading --------------------------------------------------------------------------------------- */

/* Is all of a window in the page cache? Asked of a mapping that nobody touches: a read that is told not
 * to wait (RWF_NOWAIT) has the system fetch what is missing all the same. Source: mincore(2). */
static bool is_cached(const struct window *w)
{
    const uint64_t lo = w->lo / ALIGN * ALIGN, n = (w->hi - lo + ALIGN - 1) / ALIGN;
    unsigned char there[WINDOW_BYTES / ALIGN + 2];

    if (!w->file->map || n > sizeof there ||
        mincore(w->file->map + lo, (size_t)(w->hi - lo), there) != 0) {
        return false;
    }
    for (uint64_t i = 0; i < n; i++) {
        if (!(there[i] & 1)) {
            return false;
        }
    }
    return true;
}

/* Straight to where it is wanted; false if that was cut short. */
static bool read_cached(struct worker *k, const struct window *w)
{
    struct iovec parts[MOST_SEGMENTS];

    for (int i = 0; i < k->n; i++) {
        parts[i].iov_base = k->segments[i].to;
        parts[i].iov_len = (size_t)(k->segments[i].hi - k->segments[i].lo);
    }
    return preadv(w->file->fd, parts, k->n, (off_t)w->lo) == (ssize_t)(w->hi - w->lo);
}

/* Past the cache where that can be; *bytes_out is where the byte at w->lo is. */
static int read_window(struct worker *k, const struct window *w, uint8_t **bytes_out)
{
    const struct file *const f = w->file;
    const uint64_t lo = w->lo / ALIGN * ALIGN, hi = (w->hi + ALIGN - 1) / ALIGN * ALIGN;
    ssize_t got = -1;

    if (f->direct >= 0) {
        do {
            got = pread(f->direct, k->buffer, (size_t)(hi - lo), (off_t)lo);
        } while (got < 0 && errno == EINTR);
    }
    if (got >= (ssize_t)(w->hi - lo)) {
        *bytes_out = k->buffer + (w->lo - lo);
        return 0;
    }
    *bytes_out = k->buffer;
    return pf_pread_full(f->fd, k->buffer, (size_t)(w->hi - w->lo), w->lo, f->path);
}

/* Give the elements of a segment to all who want any of them. */
static int scatter(const struct segment *s, const uint8_t *bytes)
{
    const struct ref *const r = s->ref;
    const uint64_t size = pf_dtype_bytes(r->tensor->dtype);
    const struct ckpt_want part = {
        .box = r->piece->box,
        .range_lo = r->piece->range_lo + (int64_t)((s->lo - r->lo) / size),
        .range_hi = r->piece->range_lo + (int64_t)((s->hi - r->lo) / size)};

    for (size_t i = 0; i < r->n_wants; i++) {
        struct ckpt_want want;
        PF_TRY(ckpt_live_want(r->wants[i], &want));
        want.dst = r->wants[i]->data;
        PF_TRY(ckpt_scatter(r->tensor, &part, bytes, &want));
    }
    return 0;
}

/* To where they are wanted, from a buffer that holds the window. */
static int place(const struct worker *k, const struct window *w, const uint8_t *bytes, bool all)
{
    for (int i = 0; i < k->n; i++) {
        const struct segment *const s = &k->segments[i];
        const uint8_t *const from = bytes + (s->lo - w->lo);
        if (s->placed) {
            memcpy(s->to, from, all ? (size_t)(s->hi - s->lo) : 0);
        } else if (s->ref) {
            PF_TRY(scatter(s, from));
        }
    }
    return 0;
}

/* Wait until all before the window is hashed; false if another thread has failed. */
static bool wait_turn(struct loader *l, const struct window *w)
{
    pthread_mutex_lock(&l->lock);
    while (l->err == 0 && w->file->hashed != w->lo) {
        pthread_cond_wait(&l->changed, &l->lock);
    }
    const bool mine = l->err == 0;
    pthread_mutex_unlock(&l->lock);
    return mine;
}

static void hash(struct worker *k, const struct window *w, const uint8_t *bytes)
{
    struct loader *const l = k->l;

    if (!w->file->hashes || !wait_turn(l, w)) {
        return;
    }
    if (bytes) {
        pf_digest_update(w->file->digest, bytes, (size_t)(w->hi - w->lo));
    } else {
        for (int i = 0; i < k->n; i++) {
            const struct segment *const s = &k->segments[i];
            pf_digest_update(w->file->digest, s->to, (size_t)(s->hi - s->lo));
        }
    }
    pthread_mutex_lock(&l->lock);
    w->file->hashed = w->hi;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

static int load_window(struct worker *k, const struct window *w)
{
    uint8_t *bytes = NULL;

    if ((w->file->direct < 0 || is_cached(w)) && read_cached(k, w)) {
        hash(k, w, NULL);
        return place(k, w, k->buffer, false);
    }
    PF_TRY(read_window(k, w, &bytes));
    hash(k, w, bytes);
    return place(k, w, bytes, true);
}

/* Threads --------------------------------------------------------------------------------------- */

/* Locked. Only the first failure counts. */
static void note_failure(struct loader *l, int err)
{
    if (err != 0 && l->err == 0) {
        l->err = err;
        l->message = pf_strdup(pf_error_message());
        pthread_cond_broadcast(&l->changed);
    }
}

/* After a window; true: there may be more. */
static bool work_once(struct worker *k)
{
    struct loader *const l = k->l;
    struct window w = {.file = NULL};

    pthread_mutex_lock(&l->lock);
    note_failure(l, take(k, &w));
    pthread_mutex_unlock(&l->lock);
    if (!w.file) {
        return false;
    }
    int err = load_window(k, &w);
    pthread_mutex_lock(&l->lock);
    note_failure(l, err);
    w.file->under_way--;
    if (w.file->under_way == 0 && skip_unwanted(l, w.file, w.file->taken) >= w.file->bytes) {
        note_failure(l, l->err ? 0 : end_file(l, w.file));
        close_file(w.file);
    }
    pthread_mutex_unlock(&l->lock);
    return true;
}

static void *thread_main(void *context)
{
    while (work_once(context)) {
    }
    return NULL;
}

static int worker_init(struct worker *k, struct loader *l)
{
    k->l = l;
    k->block = pf_alloc(WINDOW_BYTES + 3 * ALIGN);
    if (!k->block) {
        return PF_ENOMEM;
    }
    k->buffer = k->block + (ALIGN - (uintptr_t)k->block % ALIGN);
    return 0;
}

/* The caller's thread is one of them. */
static int run_workers(struct worker *workers, int n)
{
    pthread_t threads[MOST_THREADS];
    sigset_t all, before;
    int started = 0;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (started < n - 1 &&
           pthread_create(&threads[started], NULL, thread_main, &workers[started + 1]) == 0) {
        started++; /* fewer do it too */
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)thread_main(&workers[0]);
    for (int i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
    }
    return 0;
}

static int count_threads(const struct loader *l, int *n_out)
{
    struct pf_cpu_info cpu;
    uint64_t bytes = 0;

    for (int64_t f = 0; f < l->ckpt->n_files; f++) {
        bytes += l->files[f].bytes;
    }
    PF_TRY(pf_cpu_info(&cpu));
    const uint64_t windows = bytes / WINDOW_BYTES / 4 + 1;
    *n_out = 8 * cpu.n_cpus < MOST_THREADS ? 8 * cpu.n_cpus : MOST_THREADS;
    *n_out = windows < (uint64_t)*n_out ? (int)windows : *n_out;
    return 0;
}

static int load_all(struct loader *l)
{
    struct worker *workers = NULL;
    int n = 0, err = 0;

    PF_TRY(count_threads(l, &n));
    workers = pf_calloc_array((size_t)n, sizeof *workers);
    err = workers ? 0 : PF_ENOMEM;
    for (int i = 0; !err && i < n; i++) {
        err = worker_init(&workers[i], l);
    }
    err = err ? err : run_workers(workers, n);
    for (int i = 0; workers && i < n; i++) {
        pf_free(workers[i].block);
    }
    pf_free(workers);
    if (!err && l->err != 0) {
        err = l->message ? pf_fail(l->err, "%s", l->message) : l->err;
    }
    return err;
}

/* Files of which nothing is to be read have digests too. */
static int hash_empty(struct loader *l)
{
    const struct pf_digest digest = pf_digest_of("", 0);

    for (int64_t f = 0; l->digests && f < l->ckpt->n_files; f++) {
        if (l->files[f].bytes == 0) {
            (void)pf_digest_hex(&digest, l->digests[f]);
        }
    }
    return 0;
}

static int plan(struct loader *l, const struct pf_ckpt_live *live, int64_t n_live)
{
    size_t *const at = pf_calloc_array((size_t)l->ckpt->n_tensors + 2, sizeof *at);
    int err = at ? sort_wants(l, live, n_live, at) : PF_ENOMEM;

    err = err ? err : make_refs(l, at, (size_t)n_live);
    pf_free(at);
    PF_TRY(err);
    PF_TRY(make_files(l));
    return hash_empty(l);
}

int ckpt_load_alone(const struct pf_ckpt *ckpt, const struct pf_ckpt_live *live, int64_t n_live,
                    bool verify, char (*digests_out)[PF_DIGEST_HEX_BYTES])
{
    const char *const asked = getenv("PF_DIRECT_IO");
    struct loader l = {.ckpt = ckpt,
                       .verify = verify,
                       .digests = digests_out,
                       .past_cache = !(asked && strcmp(asked, "0") == 0)};

    pthread_mutex_init(&l.lock, NULL);
    pthread_cond_init(&l.changed, NULL);
    int err = plan(&l, live, n_live);
    err = err ? err : load_all(&l);
    for (int64_t f = 0; l.files && f < ckpt->n_files; f++) {
        close_file(&l.files[f]);
    }
    pthread_cond_destroy(&l.changed);
    pthread_mutex_destroy(&l.lock);
    pf_free(l.message);
    pf_free(l.wants);
    pf_free(l.refs);
    pf_free(l.files);
    return err;
}
