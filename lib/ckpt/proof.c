/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Before the copy: boxes wanted against pieces stored.
 *
 * A range of a box's elements is first cut into atoms: boxes whose elements are consecutive in the
 * range. After that there are only boxes, and the intersections of a wanted one with the stored ones
 * are proved to tile it.
 */
#include "ckpt_internal.h"

#include <pf/mem.h>
#include <pf/planes.h>

#include <stdio.h>
#include <string.h>

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

bool ckpt_tensor_is_coded(const struct pf_ckpt_tensor *tensor)
{
    for (int64_t i = 0; i < tensor->n_pieces; i++) {
        if (tensor->pieces[i].codec != PF_CKPT_PLAIN) {
            return true;
        }
    }
    return false;
}

bool ckpt_is_coded(const struct pf_ckpt *ckpt)
{
    for (int64_t i = 0; i < ckpt->n_tensors; i++) {
        if (ckpt_tensor_is_coded(&ckpt->tensors[i])) {
            return true;
        }
    }
    return false;
}

int ckpt_prove(const struct pf_ckpt *ckpt, const struct pf_ckpt_tensor *tensor,
               const struct ckpt_want *want)
{
    struct ckpt_atom atoms[CKPT_MAX_ATOMS];

    PF_TRY(check_want(tensor, want));
    if (!pf_planes_is_built() && ckpt_tensor_is_coded(tensor)) {
        return pf_fail(PF_ENOTSUP, "'%s' in '%s' is compressed, and this build has no zstd",
                       tensor->name, ckpt->dir);
    }
    const int n = ckpt_atoms(&want->box, want->range_lo, want->range_hi, atoms);
    for (int i = 0; i < n; i++) {
        PF_TRY(check_cover(NULL, tensor, PF_EFORMAT, ckpt->dir, &atoms[i].box, false));
    }
    return 0;
}
