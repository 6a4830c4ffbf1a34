/* SPDX-License-Identifier: Apache-2.0 */
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

/* Everybody's bytes, one rank after the other. */
struct gathered {
    uint8_t *bytes;
    size_t *n, *offset; /* by rank */
    size_t total;
};

static void gathered_release(struct gathered *g)
{
    pf_free(g->bytes);
    pf_free(g->n);
    pf_free(g->offset);
}

static int gather(struct pf_comm *comm, const struct pf_str *mine, struct gathered *g)
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

/* One live piece of one rank. */
struct item {
    const struct wire *w;
    const char *name;
    int rank;
    int64_t live;
};

static int compare_i64s(const int64_t *a, const int64_t *b, int n)
{
    for (int i = 0; i < n; i++) {
        if (a[i] != b[i]) {
            return a[i] < b[i] ? -1 : 1;
        }
    }
    return 0;
}

static int compare_tensor(const struct item *x, const struct item *y)
{
    return x->w->role != y->w->role ? (x->w->role < y->w->role ? -1 : 1) : strcmp(x->name, y->name);
}

/* Same tensor: by box, then by range. */
static int compare_piece(const struct item *x, const struct item *y)
{
    int order = x->w->n_dims - y->w->n_dims;

    order = order ? order : compare_i64s(x->w->box.lo, y->w->box.lo, x->w->n_dims);
    order = order ? order : compare_i64s(x->w->box.hi, y->w->box.hi, x->w->n_dims);
    order = order ? order : compare_i64s(&x->w->range_lo, &y->w->range_lo, 1);
    return order ? order : compare_i64s(&x->w->range_hi, &y->w->range_hi, 1);
}

static int compare_items(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    int order = compare_tensor(x, y);

    order = order ? order : compare_piece(x, y);
    order = order ? order : x->rank - y->rank;
    return order ? order : compare_i64s(&x->live, &y->live, 1);
}

static int unpack(const struct gathered *g, int size, struct item **items_out, size_t *n_out)
{
    const size_t room = g->total / sizeof(struct wire);
    struct item *items = pf_calloc_array(room, sizeof *items);
    size_t n = 0;

    if (!items) {
        return PF_ENOMEM;
    }
    for (int r = 0; r < size; r++) {
        size_t at = g->offset[r];
        for (int64_t live = 0; at < g->offset[r] + g->n[r]; live++) {
            const struct wire *w = (const void *)(g->bytes + at);
            items[n++] = (struct item){w, (const char *)(w + 1), r, live};
            at += sizeof *w + (size_t)w->name_bytes;
        }
    }
    if (n > 0) {
        qsort(items, n, sizeof *items, compare_items);
    }
    *items_out = items;
    *n_out = n;
    return 0;
}

/* Pieces, and who writes them ---------------------------------------------------------------------
 */

struct candidate {
    const struct item *items; /* the same piece, by rank */
    size_t n;
    int64_t tensor;
    uint64_t bytes;
    int writer;
    size_t number; /* in the order of tensors and boxes */
};

struct candidates {
    struct candidate *all;
    size_t n;
};

static bool is_optimizer(enum pf_role role)
{
    return role != PF_ROLE_WEIGHT && role != PF_ROLE_BUFFER;
}

static int check_same_tensor(const struct item *x, const struct item *y)
{
    if (x->w->dtype == y->w->dtype && x->w->n_dims == y->w->n_dims &&
        compare_i64s(x->w->shape, y->w->shape, x->w->n_dims) == 0) {
        return 0;
    }
    return pf_fail(PF_EDISAGREE, "'%s' (%s) has one shape or dtype on rank %d, another on rank %d",
                   x->name, pf_role_name((enum pf_role)x->w->role), x->rank, y->rank);
}

/* Add the tensor of items[0..n) to the plan and its pieces to the candidates. */
static int add_tensor(struct ckpt_plan *plan, struct candidates *c, const struct item *items,
                      size_t n)
{
    const struct wire *w = items[0].w;
    struct pf_ckpt_tensor *tensor;
    size_t end;

    PF_TRY(ckpt_add_tensor(plan->ckpt, items[0].name, (enum pf_role)w->role,
                           (enum pf_dtype)w->dtype, w->n_dims, w->shape, &tensor));
    for (size_t i = 0; i < n; i = end) {
        PF_TRY(check_same_tensor(&items[0], &items[i]));
        for (end = i + 1; end < n && compare_piece(&items[i], &items[end]) == 0; end++) {
            PF_TRY(check_same_tensor(&items[0], &items[end]));
        }
        const int64_t count = items[i].w->range_hi - items[i].w->range_lo;
        if (count > 0) {
            c->all[c->n] = (struct candidate){.items = &items[i],
                                              .n = end - i,
                                              .tensor = plan->ckpt->n_tensors - 1,
                                              .number = c->n};
            c->all[c->n++].bytes = (uint64_t)count * pf_dtype_bytes(tensor->dtype);
        }
    }
    return 0;
}

static int find_candidates(struct ckpt_plan *plan, const struct item *items, size_t n,
                           struct candidates *c)
{
    size_t end;

    c->all = pf_calloc_array(n, sizeof *c->all);
    if (!c->all) {
        return PF_ENOMEM;
    }
    for (size_t i = 0; i < n; i = end) {
        end = i + 1;
        while (end < n && compare_tensor(&items[i], &items[end]) == 0) {
            end++;
        }
        PF_TRY(add_tensor(plan, c, &items[i], end - i));
    }
    return 0;
}

static bool has_choice(const struct candidate *c)
{
    return c->items[0].rank != c->items[c->n - 1].rank;
}

/* Without a choice first, then large ones, then as they come. */
static int compare_candidates(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    if (has_choice(x) != has_choice(y)) {
        return has_choice(x) ? 1 : -1;
    }
    if (x->bytes != y->bytes) {
        return x->bytes > y->bytes ? -1 : 1;
    }
    return x->number < y->number ? -1 : x->number > y->number;
}

static int compare_numbers(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    return x->number < y->number ? -1 : x->number > y->number;
}

static int balance(struct candidates *c, int size)
{
    uint64_t *load = pf_calloc_array((size_t)size, sizeof *load);

    if (!load) {
        return PF_ENOMEM;
    }
    if (c->n > 0) {
        qsort(c->all, c->n, sizeof *c->all, compare_candidates);
    }
    for (size_t i = 0; i < c->n; i++) {
        struct candidate *one = &c->all[i];
        one->writer = one->items[0].rank;
        for (size_t j = 1; j < one->n; j++) {
            const int rank = one->items[j].rank;
            one->writer = load[rank] < load[one->writer] ? rank : one->writer;
        }
        load[one->writer] += one->bytes;
    }
    if (c->n > 0) {
        qsort(c->all, c->n, sizeof *c->all, compare_numbers);
    }
    pf_free(load);
    return 0;
}

/* The plan ----------------------------------------------------------------------------------------
 */

/* Name the files that get something; file_of: [2][size], optimizer first, as their names sort. */
static int name_files(struct ckpt_plan *plan, const struct candidates *c, int size, int *file_of)
{
    for (int i = 0; i < 2 * size; i++) {
        file_of[i] = -1;
    }
    for (size_t i = 0; i < c->n; i++) {
        const bool optimizer = is_optimizer(plan->ckpt->tensors[c->all[i].tensor].role);
        file_of[(optimizer ? 0 : size) + c->all[i].writer] = 0;
    }
    plan->file_rank = pf_calloc_array(2 * (size_t)size, sizeof *plan->file_rank);
    if (!plan->file_rank) {
        return PF_ENOMEM;
    }
    for (int i = 0; i < 2 * size; i++) {
        char name[64];
        if (file_of[i] != 0) {
            continue;
        }
        snprintf(name, sizeof name, "%s-%05d.safetensors", i < size ? "optim" : "weights",
                 i % size);
        PF_TRY(ckpt_add_file(plan->ckpt, name, 0, NULL, &file_of[i]));
        plan->file_rank[file_of[i]] = i % size;
    }
    return 0;
}

static int add_part(struct ckpt_plan *plan, const struct candidate *c, int64_t piece)
{
    size_t i = 0;

    while (c->items[i].rank != c->writer) {
        i++;
    }
    plan->parts[plan->n_parts++] = (struct ckpt_part){c->tensor, piece, c->items[i].live};
    return 0;
}

static int add_pieces(struct ckpt_plan *plan, const struct candidates *c, int rank, int size,
                      const int *file_of)
{
    plan->parts = pf_calloc_array(c->n, sizeof *plan->parts);
    if (!plan->parts) {
        return PF_ENOMEM;
    }
    for (size_t i = 0; i < c->n; i++) {
        const struct candidate *one = &c->all[i];
        const struct wire *w = one->items[0].w;
        struct pf_ckpt_tensor *tensor = &plan->ckpt->tensors[one->tensor];
        const int file = file_of[(is_optimizer(tensor->role) ? 0 : size) + one->writer];
        const struct pf_ckpt_piece piece = {w->box, w->range_lo, w->range_hi, file, 0};
        PF_TRY(ckpt_add_piece(tensor, &piece));
        if (one->writer == rank) {
            PF_TRY(add_part(plan, one, tensor->n_pieces - 1));
        }
    }
    return 0;
}

static int make(struct ckpt_plan *plan, const struct item *items, size_t n, int rank, int size)
{
    struct candidates c = {0};
    int *file_of = pf_calloc_array(2 * (size_t)size, sizeof *file_of);
    int err = file_of ? 0 : PF_ENOMEM;

    if (!err) {
        err = find_candidates(plan, items, n, &c);
    }
    if (!err) {
        err = balance(&c, size);
    }
    if (!err) {
        err = name_files(plan, &c, size, file_of);
    }
    if (!err) {
        err = add_pieces(plan, &c, rank, size, file_of);
    }
    for (int64_t i = 0; !err && i < plan->ckpt->n_tensors; i++) {
        err = ckpt_check_tiling(NULL, &plan->ckpt->tensors[i], PF_EINVAL, "the live state");
    }
    pf_free(c.all);
    pf_free(file_of);
    return err;
}

int ckpt_plan_make(struct pf_comm *comm, const struct pf_ckpt_live *live, int64_t n_live,
                   struct ckpt_plan *plan_out)
{
    const int rank = ckpt_comm_rank(comm), size = ckpt_comm_size(comm);
    struct gathered g = {0};
    struct item *items = NULL;
    struct pf_str mine;
    size_t n = 0;
    int err;

    *plan_out = (struct ckpt_plan){.ckpt = ckpt_new("pf", "the live state")};
    pf_str_init(&mine);
    err = plan_out->ckpt ? pack(live, n_live, &mine) : PF_ENOMEM;
    PF_TRY_GOTO(ckpt_agree(comm, err), out);
    PF_TRY_GOTO(gather(comm, &mine, &g), out);
    err = unpack(&g, size, &items, &n);
    if (!err) {
        err = make(plan_out, items, n, rank, size);
    }
    err = ckpt_agree(comm, err);
out:
    pf_free(items);
    gathered_release(&g);
    pf_str_release(&mine);
    return err;
}

void ckpt_plan_release(struct ckpt_plan *plan)
{
    pf_ckpt_free(plan->ckpt);
    pf_free(plan->parts);
    pf_free(plan->file_rank);
}
