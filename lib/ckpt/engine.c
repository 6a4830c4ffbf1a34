/* SPDX-License-Identifier: Apache-2.0 */
/* The copy: transfers, their order, the reads that serve them. */
#include "engine_internal.h"

#include <pf/file.h>
#include <pf/mem.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER_BYTES ((size_t)1 << 20)
/* What lies between two runs is read along with them where it is no longer than this (a page costs
 * the disk as much as a part of it), or where the runs are shorter than this, so that a read of each is
 * dear, and at least a fourth of all. */
#define SMALL_BYTES 4096
#define WORTH_READING_THROUGH 4

/* Transfers ---------------------------------------------------------------------------------------
 */

/* A dense box of elements somewhere. */
struct side {
    const struct pf_box *box;
    size_t bytes; /* of an element */
};

static void strides(const struct pf_box *box, int64_t stride_out[PF_BOX_MAX_DIMS])
{
    int64_t stride = 1;

    for (int d = box->n_dims - 1; d >= 0; d--) {
        stride_out[d] = stride;
        stride *= box->hi[d] - box->lo[d];
    }
}

static int64_t position(const struct pf_box *box, const int64_t *stride, const int64_t *at)
{
    int64_t sum = 0;

    for (int d = 0; d < box->n_dims; d++) {
        sum += (at[d] - box->lo[d]) * stride[d];
    }
    return sum;
}

/* One more dimension around what t does already: part of the run where that is so on both sides,
 * part of the outermost loop where it goes on at that loop's pace, else a loop. */
static void add_dimension(struct ckpt_transfer *t, int64_t n, int64_t from_step, int64_t to_step)
{
    const int64_t from = (int64_t)pf_dtype_bytes(t->from), to = (int64_t)pf_dtype_bytes(t->to);
    struct ckpt_loop *outer = t->n_loops > 0 ? &t->loops[t->n_loops - 1] : NULL;

    if (n == 1) {
        return;
    }
    if (!outer && from_step == t->run * from && to_step == t->run * to) {
        t->run *= n;
    } else if (outer && from_step == outer->n * outer->from_step &&
               to_step == outer->n * outer->to_step) {
        outer->n *= n;
    } else {
        t->loops[t->n_loops++] = (struct ckpt_loop){n, from_step, to_step};
    }
}

/* Where it ends, and whether its gaps are worth reading over. */
static void measure(struct ckpt_transfer *t)
{
    int64_t span = t->run * (int64_t)pf_dtype_bytes(t->from);

    t->through = true;
    for (int l = 0; l < t->n_loops; l++) {
        const int64_t step = t->loops[l].from_step;
        t->through = t->through && (step - span <= SMALL_BYTES ||
                                    (span < SMALL_BYTES && span >= step / WORTH_READING_THROUGH));
        span += (t->loops[l].n - 1) * step;
    }
    t->end = t->offset + (uint64_t)span;
    t->upto = t->end;
}

/* What two dense boxes have in common; false if nothing. t has dtypes, and in offset and dst where the
 * boxes begin. */
static bool find_transfer(struct ckpt_transfer *t, const struct pf_box *stored,
                          const struct pf_box *wanted)
{
    const int64_t from = (int64_t)pf_dtype_bytes(t->from), to = (int64_t)pf_dtype_bytes(t->to);
    int64_t from_stride[PF_BOX_MAX_DIMS], to_stride[PF_BOX_MAX_DIMS];
    struct pf_box common;

    if (!pf_box_intersect(stored, wanted, &common)) {
        return false;
    }
    strides(stored, from_stride);
    strides(wanted, to_stride);
    t->offset += (uint64_t)(position(stored, from_stride, common.lo) * from);
    t->dst += position(wanted, to_stride, common.lo) * to;
    t->run = 1;
    for (int d = common.n_dims - 1; d >= 0; d--) {
        add_dimension(t, common.hi[d] - common.lo[d], from_stride[d] * from, to_stride[d] * to);
    }
    measure(t);
    return true;
}

/* To the next run; false after the last. */
static bool step(const struct ckpt_transfer *t, int64_t at[PF_BOX_MAX_DIMS], uint64_t *offset,
                 uint8_t **dst)
{
    for (int l = 0; l < t->n_loops; l++) {
        const struct ckpt_loop *loop = &t->loops[l];
        *offset += (uint64_t)loop->from_step;
        *dst += loop->to_step;
        if (++at[l] < loop->n) {
            return true;
        }
        at[l] = 0;
        *offset -= (uint64_t)(loop->n * loop->from_step);
        *dst -= loop->n * loop->to_step;
    }
    return false;
}

/* From memory, where offset is counted from bytes. */
static int run_in_memory(const struct ckpt_transfer *t, const uint8_t *bytes)
{
    int64_t at[PF_BOX_MAX_DIMS] = {0};
    uint64_t offset = t->offset;
    uint8_t *dst = t->dst;

    do {
        PF_TRY(pf_dtype_convert(t->from, bytes + offset, t->to, dst, (size_t)t->run));
    } while (step(t, at, &offset, &dst));
    return 0;
}

/* Pieces against wants ----------------------------------------------------------------------------
 */

/* Called with each transfer between a piece and a want. */
typedef int transfer_fn(void *context, const struct ckpt_transfer *t);

/* Ranges of one box are plain intervals. */
static int pair_ranges(const struct ckpt_transfer *start, const struct ckpt_want *piece,
                       const struct ckpt_want *want, transfer_fn *act, void *context)
{
    const int64_t lo = piece->range_lo > want->range_lo ? piece->range_lo : want->range_lo;
    const int64_t hi = piece->range_hi < want->range_hi ? piece->range_hi : want->range_hi;
    struct ckpt_transfer t = *start;

    if (lo >= hi) {
        return 0;
    }
    t.offset += (uint64_t)(lo - piece->range_lo) * pf_dtype_bytes(t.from);
    t.dst += (size_t)(lo - want->range_lo) * pf_dtype_bytes(t.to);
    t.run = hi - lo;
    measure(&t);
    return act(context, &t);
}

/* All that a stored piece and a want have in common. start: the file, and where the elements of both
 * begin. */
static int pair(const struct ckpt_transfer *start, const struct ckpt_want *piece,
                const struct ckpt_want *want, transfer_fn *act, void *context)
{
    struct ckpt_atom stored[CKPT_MAX_ATOMS], wanted[CKPT_MAX_ATOMS];
    struct pf_box common;

    if (pf_box_equal(&piece->box, &want->box)) {
        return pair_ranges(start, piece, want, act, context);
    }
    if (!pf_box_intersect(&piece->box, &want->box, &common)) {
        return 0;
    }
    const int n_stored = ckpt_atoms(&piece->box, piece->range_lo, piece->range_hi, stored);
    const int n_wanted = ckpt_atoms(&want->box, want->range_lo, want->range_hi, wanted);
    for (int s = 0; s < n_stored; s++) {
        for (int w = 0; w < n_wanted; w++) {
            struct ckpt_transfer t = *start;
            t.offset += (uint64_t)stored[s].at * pf_dtype_bytes(t.from);
            t.dst += (size_t)wanted[w].at * pf_dtype_bytes(t.to);
            if (find_transfer(&t, &stored[s].box, &wanted[w].box)) {
                PF_TRY(act(context, &t));
            }
        }
    }
    return 0;
}

static int scatter_one(void *context, const struct ckpt_transfer *t)
{
    return run_in_memory(t, context);
}

int ckpt_scatter(const struct pf_ckpt_tensor *tensor, const struct ckpt_want *piece,
                 const void *bytes, const struct ckpt_want *want)
{
    const struct ckpt_transfer start = {
        .file = -1, .from = tensor->dtype, .to = want->dtype, .dst = want->dst};

    return pair(&start, piece, want, scatter_one, (void *)(uintptr_t)bytes);
}

/* Files -------------------------------------------------------------------------------------------
 */

int ckpt_io_init(struct ckpt_io *io, const struct pf_ckpt *ckpt, size_t buffer_bytes, int max_open)
{
    *io = (struct ckpt_io){.ckpt = ckpt, .buffer_bytes = buffer_bytes};
    io->max_open = max_open < CKPT_IO_MAX_OPEN ? max_open : CKPT_IO_MAX_OPEN;
    for (int i = 0; i < CKPT_IO_MAX_OPEN; i++) {
        io->open[i].file = io->open[i].fd = -1;
    }
    io->buffer = pf_alloc(buffer_bytes);
    return io->buffer ? 0 : PF_ENOMEM;
}

static void close_file(struct ckpt_open_file *f)
{
    if (f->fd >= 0) {
        pf_close(f->fd, NULL);
    }
    pf_free(f->path);
    *f = (struct ckpt_open_file){.file = -1, .fd = -1};
}

void ckpt_io_release(struct ckpt_io *io)
{
    for (int i = 0; i < io->max_open; i++) {
        close_file(&io->open[i]);
    }
    ckpt_frames_release(&io->frames);
    pf_free(io->buffer);
    pf_free(io->transfers);
}

static int open_file(struct ckpt_io *io, int file)
{
    struct ckpt_open_file *f = &io->open[0];

    if (io->now && io->now->file == file) {
        return 0;
    }
    for (int i = 1; i < io->max_open && f->file != file; i++) {
        if (io->open[i].file == file || io->open[i].used < f->used) {
            f = &io->open[i];
        }
    }
    io->window_lo = io->window_hi = 0;
    io->now = NULL;
    if (f->file != file) {
        close_file(f);
        f->path = ckpt_file_path(io->ckpt, file);
        if (!f->path) {
            return PF_ENOMEM;
        }
        if (!io->dry) {
            PF_TRY(pf_open(f->path, O_RDONLY, &f->fd));
        }
        f->file = file;
    }
    f->used = ++io->clock;
    io->now = f;
    return 0;
}

static int read_bytes(struct ckpt_io *io, void *dst, size_t n, uint64_t offset)
{
    io->bytes_read += n;
    io->n_reads++;
    return io->dry ? 0 : pf_pread_full(io->now->fd, dst, n, offset, io->now->path);
}

/* n <= buffer_bytes bytes at offset, by way of the window; on a miss it is filled, but not beyond
 * upto. */
static int view(struct ckpt_io *io, uint64_t offset, size_t n, uint64_t upto,
                const uint8_t **view_out)
{
    if (offset < io->window_lo || offset + n > io->window_hi) {
        const uint64_t ahead = upto - offset;
        const size_t take = ahead > io->buffer_bytes ? io->buffer_bytes
                            : ahead < n              ? n
                                                     : (size_t)ahead;
        io->window_lo = io->window_hi = 0;
        PF_TRY(read_bytes(io, io->buffer, take, offset));
        io->window_lo = offset;
        io->window_hi = offset + take;
    }
    *view_out = io->buffer + (offset - io->window_lo);
    return 0;
}

/* The batch ---------------------------------------------------------------------------------------
 */

static int add_transfer(void *context, const struct ckpt_transfer *t)
{
    struct ckpt_io *io = context;

    if (io->n == io->room) {
        const size_t room = io->room > 0 ? 2 * io->room : 16;
        struct ckpt_transfer *grown = pf_realloc_array(io->transfers, room, sizeof *grown);
        if (!grown) {
            return PF_ENOMEM;
        }
        io->transfers = grown;
        io->room = room;
    }
    io->transfers[io->n++] = *t;
    return 0;
}

int ckpt_io_want(struct ckpt_io *io, const struct pf_ckpt_tensor *tensor,
                 const struct ckpt_want *want)
{
    for (int64_t i = 0; i < tensor->n_pieces; i++) {
        const struct pf_ckpt_piece *p = &tensor->pieces[i];
        const struct ckpt_want piece = {
            .box = p->box, .range_lo = p->range_lo, .range_hi = p->range_hi};
        struct ckpt_transfer start = {.file = p->file,
                                      .from = tensor->dtype,
                                      .to = want->dtype,
                                      .offset = p->offset,
                                      .dst = want->dst};
        if (p->codec != PF_CKPT_PLAIN) {
            start.tensor = tensor;
            start.piece = p;
            start.offset = 0;
        }
        PF_TRY(pair(&start, &piece, want, add_transfer, io));
    }
    return 0;
}

static int compare_transfers(const void *a, const void *b)
{
    const struct ckpt_transfer *x = a, *y = b;

    if (x->file != y->file) {
        return x->file < y->file ? -1 : 1;
    }
    const uint64_t x_at = x->piece ? x->piece->offset : x->offset;
    const uint64_t y_at = y->piece ? y->piece->offset : y->offset;
    if (x_at != y_at) {
        return x_at < y_at ? -1 : 1;
    }
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* How far a read that begins in one transfer may go on into those after it. */
static void join_neighbours(struct ckpt_io *io)
{
    for (size_t i = io->n - 1; i-- > 0;) {
        struct ckpt_transfer *t = &io->transfers[i];
        const struct ckpt_transfer *next = t + 1;
        if (!t->piece && !next->piece && t->through && next->through && next->file == t->file &&
            next->offset <= t->end + SMALL_BYTES && next->upto > t->upto) {
            t->upto = next->upto;
        }
    }
}

/* One run. What is longer than half the buffer goes past it, and so does what stands alone. */
static int copy_run(struct ckpt_io *io, const struct ckpt_transfer *t, uint64_t offset,
                    uint8_t *dst)
{
    const size_t from = pf_dtype_bytes(t->from), to = pf_dtype_bytes(t->to);
    const uint64_t upto = t->through ? t->upto : offset + (uint64_t)t->run * from;
    const int64_t chunk = (int64_t)(io->buffer_bytes / from);

    const bool past = !t->through || (size_t)t->run * from > io->buffer_bytes / 2;
    if (t->from == t->to && past && (offset < io->window_lo || offset >= io->window_hi)) {
        return read_bytes(io, dst, (size_t)t->run * from, offset);
    }
    for (int64_t done = 0; done < t->run; done += chunk) {
        const size_t n = (size_t)(t->run - done < chunk ? t->run - done : chunk);
        const uint8_t *bytes;
        PF_TRY(view(io, offset + (uint64_t)done * from, n * from, upto, &bytes));
        if (!io->dry) {
            PF_TRY(pf_dtype_convert(t->from, bytes, t->to, dst + (size_t)done * to, n));
        }
    }
    return 0;
}

static int read_frame(void *context, void *dst, size_t n, uint64_t offset, bool ahead)
{
    (void)ahead;
    return read_bytes(context, dst, n, offset);
}

/* A dry run knows the length of all blocks together only. */
static void count_block(struct ckpt_io *io, const struct ckpt_transfer *t, size_t number)
{
    struct ckpt_frames *const f = &io->frames;
    const uint64_t bytes = ckpt_piece_bytes(t->tensor, t->piece);

    if (f->piece != t->piece || f->number != number) {
        f->piece = t->piece;
        f->number = number;
        io->n_reads++;
        io->bytes_read += (uint64_t)((double)t->piece->stored_bytes *
                                     (double)ckpt_block_bytes(bytes, number) / (double)bytes);
    }
}

/* One run, out of the blocks that it lies in. */
static int copy_coded(struct ckpt_io *io, const struct ckpt_transfer *t, uint64_t offset,
                      uint8_t *dst)
{
    const size_t from = pf_dtype_bytes(t->from), to = pf_dtype_bytes(t->to);
    const uint64_t all = ckpt_piece_bytes(t->tensor, t->piece);
    uint64_t left = (uint64_t)t->run * from;

    while (left > 0) {
        const size_t number = (size_t)(offset / PF_PLANES_BLOCK_BYTES);
        const size_t in = (size_t)(offset % PF_PLANES_BLOCK_BYTES);
        size_t n = ckpt_block_bytes(all, number);
        const uint8_t *block;
        if (io->dry) {
            count_block(io, t, number);
        } else {
            PF_TRY(ckpt_frames_block(&io->frames, io->ckpt, t->tensor, t->piece, number, read_frame,
                                     io, &block, &n));
        }
        n = n - in < left ? n - in : (size_t)left;
        if (!io->dry) {
            PF_TRY(pf_dtype_convert(t->from, block + in, t->to, dst, n / from));
        }
        dst += n / from * to;
        offset += n;
        left -= n;
    }
    return 0;
}

static int run_transfer(struct ckpt_io *io, const struct ckpt_transfer *t)
{
    int64_t at[PF_BOX_MAX_DIMS] = {0};
    uint64_t offset = t->offset;
    uint8_t *dst = t->dst;

    PF_TRY(open_file(io, t->file));
    if (!t->piece && !t->through && !io->dry) {
        /* Many short reads: let the system fetch what they are in by long ones. */
        (void)posix_fadvise(io->now->fd, (off_t)offset, (off_t)(t->end - offset),
                            POSIX_FADV_WILLNEED);
    }
    do {
        PF_TRY(t->piece ? copy_coded(io, t, offset, dst) : copy_run(io, t, offset, dst));
    } while (step(t, at, &offset, &dst));
    return 0;
}

int ckpt_io_run(struct ckpt_io *io)
{
    int err = 0;

    if (io->n > 0) {
        qsort(io->transfers, io->n, sizeof *io->transfers, compare_transfers);
        join_neighbours(io);
    }
    for (size_t i = 0; !err && i < io->n; i++) {
        err = run_transfer(io, &io->transfers[i]);
    }
    io->n = 0;
    return err;
}

/* One want ----------------------------------------------------------------------------------------
 */

int ckpt_copy(const struct pf_ckpt *ckpt, const struct pf_ckpt_tensor *tensor,
              const struct ckpt_want *want)
{
    struct ckpt_io io;
    int err = ckpt_io_init(&io, ckpt, BUFFER_BYTES, 1);

    err = err ? err : ckpt_io_want(&io, tensor, want);
    err = err ? err : ckpt_io_run(&io);
    ckpt_io_release(&io);
    return err;
}

int pf_ckpt_read_box(const struct pf_ckpt *ckpt, const struct pf_ckpt_tensor *tensor,
                     const struct pf_box *box, enum pf_dtype dtype, void *dst)
{
    struct ckpt_want want = {.box = *box, .dtype = dtype, .dst = dst};

    want.range_hi = pf_box_count(box);
    PF_TRY(ckpt_prove(ckpt, tensor, &want));
    return ckpt_copy(ckpt, tensor, &want);
}

int ckpt_each_slice(const struct pf_ckpt *ckpt, const struct pf_ckpt_tensor *tensor,
                    int (*slice)(void *context, const void *data, size_t bytes), void *context)
{
    struct ckpt_want want = {.box = pf_ckpt_whole(tensor), .dtype = tensor->dtype};
    const int64_t count = pf_box_count(&want.box);
    struct ckpt_io io;
    int err;

    want.range_hi = count;
    PF_TRY(ckpt_prove(ckpt, tensor, &want));
    const int64_t chunk = (int64_t)(BUFFER_BYTES / pf_dtype_bytes(tensor->dtype));
    want.dst = pf_alloc(BUFFER_BYTES);
    err = ckpt_io_init(&io, ckpt, BUFFER_BYTES, 4);
    err = want.dst ? err : PF_ENOMEM;
    for (int64_t lo = 0; !err && lo < count; lo += chunk) {
        want.range_lo = lo;
        want.range_hi = count - lo < chunk ? count : lo + chunk;
        err = ckpt_io_want(&io, tensor, &want);
        err = err ? err : ckpt_io_run(&io);
        if (!err) {
            err = slice(context, want.dst,
                        (size_t)(want.range_hi - lo) * pf_dtype_bytes(tensor->dtype));
        }
    }
    ckpt_io_release(&io);
    pf_free(want.dst);
    return err;
}
