/* SPDX-License-Identifier: Apache-2.0 */
/* What each rank holds, told to all. */
#include "plan_internal.h"

#include <pf/mem.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ckpt_comm_rank(const struct pf_comm *comm)
{
    return comm ? pf_comm_rank(comm) : 0;
}

int ckpt_comm_size(const struct pf_comm *comm)
{
    return comm ? pf_comm_size(comm) : 1;
}

int ckpt_agree(struct pf_comm *comm, int err)
{
    return comm ? pf_comm_all_agree(comm, err, NULL) : err;
}

int ckpt_live_want(const struct pf_ckpt_live *live, struct ckpt_want *want_out)
{
    const int64_t zero[PF_BOX_MAX_DIMS] = {0};
    struct pf_box whole, box;

    if (pf_box_init(&whole, live->n_dims, zero, live->shape) != 0 ||
        live->box.n_dims != live->n_dims ||
        pf_box_init(&box, live->n_dims, live->box.lo, live->box.hi) != 0) {
        return pf_fail(PF_EINVAL, "the shape or box of '%s' (%s) is none", live->name,
                       pf_role_name(live->role));
    }
    for (int d = 0; d < live->n_dims; d++) {
        if (box.hi[d] > whole.hi[d]) {
            return pf_fail(PF_EINVAL, "the box of '%s' (%s) lies outside it", live->name,
                           pf_role_name(live->role));
        }
    }
    struct ckpt_want want = {
        .box = box, .range_lo = live->range_lo, .range_hi = live->range_hi, .dtype = live->dtype};
    const int64_t count = pf_box_count(&box);
    if (want.range_lo == 0 && want.range_hi == 0) {
        want.range_hi = count;
    }
    if (want.range_lo < 0 || want.range_lo > want.range_hi || want.range_hi > count) {
        return pf_fail(PF_EINVAL, "the range of '%s' (%s) lies outside its box", live->name,
                       pf_role_name(live->role));
    }
    want.dst = live->data;
    *want_out = want;
    return 0;
}

/* Descriptions, packed and gathered ---------------------------------------------------------------
 */

/* Sent between ranks of one program on machines of one kind: no format. */
struct wire {
    int32_t role, dtype, n_dims, name_bytes;
    int64_t shape[PF_BOX_MAX_DIMS];
    struct pf_box box;
    int64_t range_lo, range_hi;
};
_Static_assert(sizeof(struct wire) % 8 == 0, "descriptions follow each other aligned");

static int pack_one(struct pf_str *to, const struct pf_ckpt_live *live)
{
    struct ckpt_want want;
    struct wire w;
    size_t bytes;

    if (pf_dtype_array_bytes(live->dtype, 8, &bytes) != 0 || pf_dtype_bytes(live->dtype) == 0) {
        return pf_fail(PF_ENOTSUP, "'%s' has elements of %d bits, which are not saved", live->name,
                       pf_dtype_bits(live->dtype));
    }
    PF_TRY(ckpt_live_want(live, &want));
    memset(&w, 0, sizeof w);
    w.role = (int32_t)live->role;
    w.dtype = (int32_t)live->dtype;
    w.n_dims = live->n_dims;
    w.name_bytes = (int32_t)((strlen(live->name) / 8 + 1) * 8); /* with a NUL or more */
    memcpy(w.shape, live->shape, (size_t)live->n_dims * sizeof w.shape[0]);
    w.box = want.box;
    w.range_lo = want.range_lo;
    w.range_hi = want.range_hi;
    pf_str_append_bytes(to, &w, sizeof w);
    pf_str_append(to, live->name);
    for (size_t n = strlen(live->name); n < (size_t)w.name_bytes; n++) {
        pf_str_append_char(to, '\0');
    }
    return pf_str_error(to);
}

static int pack(const struct pf_ckpt_live *live, int64_t n_live, struct pf_str *to)
{
    for (int64_t i = 0; i < n_live; i++) {
        PF_TRY(pack_one(to, &live[i]));
    }
    return 0;
}

static void gathered_release(struct ckpt_gathered *g)
{
    pf_free(g->bytes);
    pf_free(g->n);
    pf_free(g->offset);
}

static int gather(struct pf_comm *comm, const struct pf_str *mine, struct ckpt_gathered *g)
{
    const size_t size = (size_t)ckpt_comm_size(comm);
    uint64_t n = mine->len;
    uint64_t *all = pf_calloc_array(size, sizeof *all);
    int err = 0;

    g->n = pf_calloc_array(size, sizeof *g->n);
    g->offset = pf_calloc_array(size, sizeof *g->offset);
    err = ckpt_agree(comm, all && g->n && g->offset ? 0 : PF_ENOMEM);
    if (!err && comm) {
        err = pf_comm_all_gather(comm, &n, all, sizeof n);
    } else if (!err) {
        all[0] = n;
    }
    for (size_t r = 0; !err && r < size; r++) {
        g->n[r] = (size_t)all[r];
        g->offset[r] = g->total;
        g->total += g->n[r];
    }
    pf_free(all);
    PF_TRY(err);
    g->bytes = pf_alloc(g->total);
    PF_TRY(ckpt_agree(comm, g->bytes ? 0 : PF_ENOMEM));
    if (comm) {
        return pf_comm_all_gather_v(comm, mine->text, g->bytes, g->n, g->offset);
    }
    memcpy(g->bytes, mine->text, mine->len);
    return 0;
}

/* Items -------------------------------------------------------------------------------------------
 */

static int compare_i64s(const int64_t *a, const int64_t *b, int n)
{
    for (int i = 0; i < n; i++) {
        if (a[i] != b[i]) {
            return a[i] < b[i] ? -1 : 1;
        }
    }
    return 0;
}

int ckpt_compare_tensor(const struct ckpt_item *x, const struct ckpt_item *y)
{
    return x->role != y->role ? (x->role < y->role ? -1 : 1) : strcmp(x->name, y->name);
}

int ckpt_compare_piece(const struct ckpt_item *x, const struct ckpt_item *y)
{
    int order = x->n_dims - y->n_dims;

    order = order ? order : compare_i64s(x->box->lo, y->box->lo, x->n_dims);
    order = order ? order : compare_i64s(x->box->hi, y->box->hi, x->n_dims);
    order = order ? order : compare_i64s(&x->range_lo, &y->range_lo, 1);
    return order ? order : compare_i64s(&x->range_hi, &y->range_hi, 1);
}

bool ckpt_same_shape(const struct ckpt_item *x, const struct ckpt_item *y)
{
    return x->n_dims == y->n_dims && compare_i64s(x->shape, y->shape, x->n_dims) == 0;
}

static int compare_items(const void *a, const void *b)
{
    const struct ckpt_item *x = a, *y = b;
    int order = ckpt_compare_tensor(x, y);

    order = order ? order : ckpt_compare_piece(x, y);
    order = order ? order : x->rank - y->rank;
    return order ? order : compare_i64s(&x->live, &y->live, 1);
}

void ckpt_items_sort(struct ckpt_items *items)
{
    if (items->n > 0) {
        qsort(items->all, items->n, sizeof *items->all, compare_items);
    }
}

static struct ckpt_item item_of(const struct wire *w, int rank, int64_t live)
{
    return (struct ckpt_item){.name = (const char *)(w + 1),
                              .role = (enum pf_role)w->role,
                              .dtype = (enum pf_dtype)w->dtype,
                              .n_dims = w->n_dims,
                              .shape = w->shape,
                              .box = &w->box,
                              .range_lo = w->range_lo,
                              .range_hi = w->range_hi,
                              .rank = rank,
                              .live = live};
}

static int unpack(const struct ckpt_gathered *g, int size, struct ckpt_items *items)
{
    items->all = pf_calloc_array(g->total / sizeof(struct wire), sizeof *items->all);
    if (!items->all) {
        return PF_ENOMEM;
    }
    for (int r = 0; r < size; r++) {
        size_t at = g->offset[r];
        for (int64_t live = 0; at < g->offset[r] + g->n[r]; live++) {
            const struct wire *w = (const void *)(g->bytes + at);
            items->all[items->n++] = item_of(w, r, live);
            at += sizeof *w + (size_t)w->name_bytes;
        }
    }
    ckpt_items_sort(items);
    return 0;
}

int ckpt_items_gather(struct pf_comm *comm, const struct pf_ckpt_live *live, int64_t n_live,
                      struct ckpt_items *items_out)
{
    struct pf_str mine;
    int err;

    *items_out = (struct ckpt_items){.n = 0};
    pf_str_init(&mine);
    PF_TRY_GOTO(ckpt_agree(comm, pack(live, n_live, &mine)), out);
    PF_TRY_GOTO(gather(comm, &mine, &items_out->gathered), out);
    err = ckpt_agree(comm, unpack(&items_out->gathered, ckpt_comm_size(comm), items_out));
out:
    pf_str_release(&mine);
    return err;
}

void ckpt_items_release(struct ckpt_items *items)
{
    pf_free(items->all);
    gathered_release(&items->gathered);
}
