/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copy engine: boxes wanted against pieces stored.
 *
 * A range of a box's elements is first cut into atoms: boxes whose elements are consecutive in the
 * range. After that there are only boxes: each wanted atom is intersected with each stored atom,
 * the intersections are proved to tile the wanted atom, and then copied run by run through a
 * buffer.
 */
#include "ckpt_internal.h"

#include <pf/file.h>
#include <pf/mem.h>

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define BUFFER_BYTES ((size_t)1 << 20)
/* Read what lies between two runs along with them where the runs are at least this part of it. */
#define WORTH_READING_THROUGH 8

/* Atoms -------------------------------------------------------------------------------------------
 */

struct cutter {
    const struct pf_box *box;
    int64_t inner[PF_BOX_MAX_DIMS]; /* elements of one index of dimension d */
    struct ckpt_atom *atoms;
    int n;
    int64_t at;
};

/* Emit the box of indices [first, last) of dimension d, full in the dimensions after it, the ones
 * before as in prefix. */
static void emit(struct cutter *c, const struct pf_box *prefix, int d, int64_t first, int64_t last)
{
    struct ckpt_atom *atom = &c->atoms[c->n];

    if (first >= last) {
        return;
    }
    *atom = (struct ckpt_atom){.box = *prefix, .at = c->at};
    atom->box.lo[d] = c->box->lo[d] + first;
    atom->box.hi[d] = c->box->lo[d] + last;
    c->at += (last - first) * c->inner[d];
    c->n++;
}

/* Cut [lo, hi) of the elements below prefix, whose dimensions from d on are still whole. */
static void cut(struct cutter *c, const struct pf_box *prefix, int d, int64_t lo, int64_t hi)
{
    if (lo >= hi) {
        return;
    }
    const int64_t inner = c->inner[d], head = lo / inner, tail = hi / inner;
    struct pf_box below = *prefix;

    if (lo % inner == 0 && hi % inner == 0) {
        emit(c, prefix, d, head, tail);
        return;
    }
    if (lo % inner != 0) {
        below.lo[d] = c->box->lo[d] + head;
        below.hi[d] = below.lo[d] + 1;
        cut(c, &below, d + 1, lo % inner, tail == head ? hi % inner : inner);
        if (tail == head) {
            return;
        }
    }
    emit(c, prefix, d, head + (lo % inner != 0), tail);
    below.lo[d] = c->box->lo[d] + tail;
    below.hi[d] = below.lo[d] + 1;
    cut(c, &below, d + 1, 0, hi % inner);
}

int ckpt_atoms(const struct pf_box *box, int64_t lo, int64_t hi,
               struct ckpt_atom atoms_out[CKPT_MAX_ATOMS])
{
    struct cutter c = {.box = box, .atoms = atoms_out};

    if (lo >= hi) {
        return 0;
    }
    if (lo == 0 && hi == pf_box_count(box)) {
        atoms_out[0] = (struct ckpt_atom){.box = *box};
        return 1;
    }
    int64_t inner = 1;
    for (int d = box->n_dims - 1; d >= 0; d--) {
        c.inner[d] = inner;
        inner *= box->hi[d] - box->lo[d];
    }
    cut(&c, box, 0, lo, hi);
    return c.n;
}

/* Proof -------------------------------------------------------------------------------------------
 */

static void format_at(const struct pf_box *whole, const int64_t *at, char text[160])
{
    size_t n = 0;

    text[n++] = '[';
    for (int d = 0; d < whole->n_dims; d++) {
        const int wrote = snprintf(text + n, 150 - n, "%s%lld", d ? "," : "", (long long)at[d]);
        n += wrote > 0 && (size_t)wrote < 150 - n ? (size_t)wrote : 0;
    }
    text[n++] = ']';
    text[n] = '\0';
}

static int report_cover(struct ckpt_report *report, const struct pf_ckpt_tensor *tensor, int code,
                        const char *where, const struct pf_box *whole, const struct pf_cover *cover)
{
    char at[160];

    format_at(whole, cover->at, at);
    switch (cover->kind) {
    case PF_COVER_EXACT:
        return 0;
    case PF_COVER_HOLE:
        return ckpt_fault(report, code, "hole", "element %s of '%s' (%s) is missing in '%s'", at,
                          tensor->name, pf_role_name(tensor->role), where);
    case PF_COVER_OVERLAP:
        return ckpt_fault(report, code, "overlap", "element %s of '%s' (%s) is twice in '%s'", at,
                          tensor->name, pf_role_name(tensor->role), where);
    case PF_COVER_OUTSIDE:
        return ckpt_fault(report, code, "outside", "a piece of '%s' (%s) lies outside it in '%s'",
                          tensor->name, pf_role_name(tensor->role), where);
    }
    return pf_fail(PF_EBUG, "unknown kind of cover");
}

/* The stored boxes that meet `whole`, cut to it unless `uncut`; *boxes_out is freed with pf_free.
 */
static int stored_boxes(const struct pf_ckpt_tensor *tensor, const struct pf_box *whole, bool uncut,
                        struct pf_box **boxes_out, size_t *n_out)
{
    size_t n = 0, room = 0;

    for (int64_t i = 0; i < tensor->n_pieces; i++) {
        const struct pf_ckpt_piece *p = &tensor->pieces[i];
        const bool all = p->range_lo == 0 && p->range_hi == pf_box_count(&p->box);
        room += all ? 1 : CKPT_MAX_ATOMS;
    }
    struct pf_box *boxes = pf_calloc_array(room, sizeof *boxes);
    if (!boxes) {
        return PF_ENOMEM;
    }
    for (int64_t i = 0; i < tensor->n_pieces; i++) {
        const struct pf_ckpt_piece *p = &tensor->pieces[i];
        struct ckpt_atom atoms[CKPT_MAX_ATOMS];
        const int n_atoms = ckpt_atoms(&p->box, p->range_lo, p->range_hi, atoms);
        for (int a = 0; a < n_atoms; a++) {
            if (uncut) {
                boxes[n++] = atoms[a].box;
            } else {
                n += pf_box_intersect(whole, &atoms[a].box, &boxes[n]);
            }
        }
    }
    *boxes_out = boxes;
    *n_out = n;
    return 0;
}

static int check_cover(struct ckpt_report *report, const struct pf_ckpt_tensor *tensor, int code,
                       const char *where, const struct pf_box *whole, bool uncut)
{
    struct pf_cover cover;
    struct pf_box *boxes = NULL;
    size_t n = 0;
    int err;

    PF_TRY(stored_boxes(tensor, whole, uncut, &boxes, &n));
    err = pf_cover_check(whole, boxes, n, &cover);
    pf_free(boxes);
    if (err == PF_ENOMEM) {
        return pf_fail(PF_ENOMEM, "out of memory while checking the pieces of '%s'", tensor->name);
    }
    if (err != 0) {
        return ckpt_fault(report, PF_EFORMAT, "outside",
                          "a piece of '%s' (%s) in '%s' has another number of dimensions",
                          tensor->name, pf_role_name(tensor->role), where);
    }
    return report_cover(report, tensor, code, where, whole, &cover);
}

int ckpt_check_tiling(struct ckpt_report *report, const struct pf_ckpt_tensor *tensor, int code,
                      const char *where)
{
    const struct pf_box whole = pf_ckpt_whole(tensor);

    return check_cover(report, tensor, code, where, &whole, true);
}

static int check_want(const struct pf_ckpt_tensor *tensor, const struct ckpt_want *want)
{
    bool inside = want->box.n_dims == tensor->n_dims;

    for (int d = 0; inside && d < tensor->n_dims; d++) {
        inside = want->box.lo[d] >= 0 && want->box.lo[d] <= want->box.hi[d] &&
                 want->box.hi[d] <= tensor->shape[d];
    }
    if (!inside || want->range_lo < 0 || want->range_lo > want->range_hi ||
        want->range_hi > pf_box_count(&want->box)) {
        return pf_fail(PF_EINVAL, "what is wanted of '%s' lies outside it", tensor->name);
    }
    if (pf_dtype_bytes(tensor->dtype) == 0) {
        return pf_fail(PF_ENOTSUP, "'%s' has elements of %d bits, which this build does not read",
                       tensor->name, pf_dtype_bits(tensor->dtype));
    }
    if (want->dtype != tensor->dtype &&
        !(pf_dtype_is_float(want->dtype) && pf_dtype_is_float(tensor->dtype))) {
        return pf_fail(PF_ENOTSUP, "'%s' is %s and is not converted to %s", tensor->name,
                       pf_dtype_name(tensor->dtype), pf_dtype_name(want->dtype));
    }
    return 0;
}

int ckpt_prove(const struct pf_ckpt *ckpt, const struct pf_ckpt_tensor *tensor,
               const struct ckpt_want *want)
{
    struct ckpt_atom atoms[CKPT_MAX_ATOMS];

    PF_TRY(check_want(tensor, want));
    const int n = ckpt_atoms(&want->box, want->range_lo, want->range_hi, atoms);
    for (int i = 0; i < n; i++) {
        PF_TRY(check_cover(NULL, tensor, PF_EFORMAT, ckpt->dir, &atoms[i].box, false));
    }
    return 0;
}

/* Copy --------------------------------------------------------------------------------------------
 */

/* One file open at a time, and a window of it in memory. */
struct source {
    const struct pf_ckpt *ckpt;
    int file, fd;
    char *path;
    uint8_t *buffer;
    uint64_t window_lo, window_hi;
};

static void source_close(struct source *s)
{
    if (s->fd >= 0) {
        pf_close(s->fd, s->path);
    }
    pf_free(s->path);
    s->fd = -1;
    s->path = NULL;
    s->file = -1;
    s->window_lo = s->window_hi = 0;
}

static int source_open(struct source *s, int file)
{
    if (s->file == file) {
        return 0;
    }
    source_close(s);
    s->path = ckpt_file_path(s->ckpt, file);
    if (!s->path) {
        return PF_ENOMEM;
    }
    PF_TRY(pf_open(s->path, O_RDONLY, &s->fd));
    s->file = file;
    return 0;
}

/* n <= BUFFER_BYTES bytes at offset, by way of the window; on a miss reads up to ahead bytes. */
static int source_view(struct source *s, uint64_t offset, size_t n, size_t ahead,
                       const uint8_t **view_out)
{
    if (offset < s->window_lo || offset + n > s->window_hi) {
        const size_t take = ahead > BUFFER_BYTES ? BUFFER_BYTES : ahead < n ? n : ahead;
        s->window_lo = s->window_hi = 0;
        PF_TRY(pf_pread_full(s->fd, s->buffer, take, offset, s->path));
        s->window_lo = offset;
        s->window_hi = offset + take;
    }
    *view_out = s->buffer + (offset - s->window_lo);
    return 0;
}

/* A copy between two dense boxes of what they have in common. */
struct transfer {
    struct pf_box common;
    enum pf_dtype from, to;
    uint64_t offset; /* in the file, of the stored box's first element */
    uint8_t *dst;    /* of the wanted box's first element */
    int64_t from_stride[PF_BOX_MAX_DIMS], to_stride[PF_BOX_MAX_DIMS]; /* elements */
    int outer;   /* dimensions before it are stepped, the rest is one run on both sides */
    int64_t run; /* its elements */
};

static void strides(const struct pf_box *box, int64_t stride_out[PF_BOX_MAX_DIMS])
{
    int64_t stride = 1;

    for (int d = box->n_dims - 1; d >= 0; d--) {
        stride_out[d] = stride;
        stride *= box->hi[d] - box->lo[d];
    }
}

static void find_run(struct transfer *t, const struct pf_box *stored, const struct pf_box *wanted)
{
    t->outer = t->common.n_dims;
    t->run = 1;
    for (int d = t->common.n_dims - 1; d >= 0; d--) {
        const int64_t extent = t->common.hi[d] - t->common.lo[d];
        t->run *= extent;
        t->outer = d;
        if (extent != stored->hi[d] - stored->lo[d] || extent != wanted->hi[d] - wanted->lo[d]) {
            break;
        }
    }
}

/* Copy one run; `ahead` are the bytes worth reading from its start. */
static int copy_run(struct source *s, const struct transfer *t, uint64_t offset, uint8_t *dst,
                    size_t ahead)
{
    const size_t from = pf_dtype_bytes(t->from), to = pf_dtype_bytes(t->to);
    const int64_t chunk = (int64_t)(BUFFER_BYTES / from);

    if (t->from == t->to && (size_t)t->run * from >= BUFFER_BYTES) {
        return pf_pread_full(s->fd, dst, (size_t)t->run * from, offset, s->path);
    }
    for (int64_t done = 0; done < t->run; done += chunk) {
        const size_t n = (size_t)(t->run - done < chunk ? t->run - done : chunk);
        const size_t past = (size_t)done * from;
        const uint8_t *view;
        PF_TRY(source_view(s, offset + past, n * from, ahead > past ? ahead - past : 0, &view));
        PF_TRY(pf_dtype_convert(t->from, view, t->to, dst + (size_t)done * to, n));
    }
    return 0;
}

/* The next index of the stepped dimensions, row-major; false after the last. */
static bool step(const struct transfer *t, int64_t at[PF_BOX_MAX_DIMS])
{
    for (int d = t->outer - 1; d >= 0; d--) {
        if (++at[d] < t->common.hi[d]) {
            return true;
        }
        at[d] = t->common.lo[d];
    }
    return false;
}

static int64_t position(const int64_t *at, const int64_t *lo, const int64_t *stride, int n_dims)
{
    int64_t sum = 0;

    for (int d = 0; d < n_dims; d++) {
        sum += (at[d] - lo[d]) * stride[d];
    }
    return sum;
}

static int copy_common(struct source *s, struct transfer *t, const struct pf_box *stored,
                       const struct pf_box *wanted)
{
    const size_t from = pf_dtype_bytes(t->from), to = pf_dtype_bytes(t->to);
    const int n_dims = t->common.n_dims;
    int64_t at[PF_BOX_MAX_DIMS] = {0}, last[PF_BOX_MAX_DIMS] = {0};

    find_run(t, stored, wanted);
    strides(stored, t->from_stride);
    strides(wanted, t->to_stride);
    for (int d = 0; d < n_dims; d++) {
        at[d] = t->common.lo[d];
        last[d] = t->common.hi[d] - 1;
    }
    const int64_t end = position(last, stored->lo, t->from_stride, n_dims) + 1;
    const int64_t pitch = t->outer > 0 ? t->from_stride[t->outer - 1] : t->run;
    const bool through = t->run >= pitch / WORTH_READING_THROUGH;
    do {
        const int64_t p = position(at, stored->lo, t->from_stride, n_dims);
        const int64_t q = position(at, wanted->lo, t->to_stride, n_dims);
        PF_TRY(copy_run(s, t, t->offset + (uint64_t)p * from, t->dst + (size_t)q * to,
                        (size_t)(through ? end - p : t->run) * from));
    } while (step(t, at));
    return 0;
}

static int copy_piece(struct source *s, const struct pf_ckpt_tensor *tensor,
                      const struct pf_ckpt_piece *piece, const struct ckpt_want *want,
                      const struct ckpt_atom *wanted)
{
    struct ckpt_atom stored[CKPT_MAX_ATOMS];
    const int n = ckpt_atoms(&piece->box, piece->range_lo, piece->range_hi, stored);
    const size_t from = pf_dtype_bytes(tensor->dtype), to = pf_dtype_bytes(want->dtype);

    for (int i = 0; i < n; i++) {
        struct transfer t = {.from = tensor->dtype, .to = want->dtype};
        if (!pf_box_intersect(&stored[i].box, &wanted->box, &t.common)) {
            continue;
        }
        t.offset = piece->offset + (uint64_t)stored[i].at * from;
        t.dst = (uint8_t *)want->dst + (size_t)wanted->at * to;
        PF_TRY(source_open(s, piece->file));
        PF_TRY(copy_common(s, &t, &stored[i].box, &wanted->box));
    }
    return 0;
}

int ckpt_copy(const struct pf_ckpt *ckpt, const struct pf_ckpt_tensor *tensor,
              const struct ckpt_want *want)
{
    struct source s = {.ckpt = ckpt, .file = -1, .fd = -1, .buffer = pf_alloc(BUFFER_BYTES)};
    struct ckpt_atom atoms[CKPT_MAX_ATOMS];
    int err = s.buffer ? 0 : PF_ENOMEM;

    const int n = ckpt_atoms(&want->box, want->range_lo, want->range_hi, atoms);
    for (int a = 0; !err && a < n; a++) {
        for (int64_t i = 0; !err && i < tensor->n_pieces; i++) {
            err = copy_piece(&s, tensor, &tensor->pieces[i], want, &atoms[a]);
        }
    }
    source_close(&s);
    pf_free(s.buffer);
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
    int err;

    want.range_hi = count;
    PF_TRY(ckpt_prove(ckpt, tensor, &want));
    const int64_t chunk = (int64_t)(BUFFER_BYTES / pf_dtype_bytes(tensor->dtype));
    want.dst = pf_alloc(BUFFER_BYTES);
    err = want.dst ? 0 : PF_ENOMEM;
    for (int64_t lo = 0; !err && lo < count; lo += chunk) {
        want.range_lo = lo;
        want.range_hi = count - lo < chunk ? count : lo + chunk;
        err = ckpt_copy(ckpt, tensor, &want);
        if (!err) {
            err = slice(context, want.dst,
                        (size_t)(want.range_hi - lo) * pf_dtype_bytes(tensor->dtype));
        }
    }
    pf_free(want.dst);
    return err;
}
