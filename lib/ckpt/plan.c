/* SPDX-License-Identifier: Apache-2.0 */
/* From what all ranks hold: the checkpoint that will be, and who writes what of it. */
#include "plan_internal.h"

#include <pf/mem.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Pieces, and who writes them ---------------------------------------------------------------------
 */

struct candidate {
    const struct ckpt_item *items; /* the same piece, by rank; or one item of a set of ranks */
    size_t n;
    int64_t n_holders;
    int64_t tensor;
    uint64_t bytes;
    int writer;
    size_t number; /* in the order of tensors and boxes */
};

struct candidates {
    struct candidate *all;
    size_t n;
    const struct pf_mesh *mesh; /* of the sets */
};

static bool is_optimizer(enum pf_role role)
{
    return role != PF_ROLE_WEIGHT && role != PF_ROLE_BUFFER;
}

static int check_same_tensor(const struct ckpt_item *x, const struct ckpt_item *y)
{
    if (x->dtype == y->dtype && ckpt_same_shape(x, y)) {
        return 0;
    }
    return pf_fail(PF_EDISAGREE, "'%s' (%s) has one shape or dtype on rank %d, another on rank %d",
                   x->name, pf_role_name(x->role), x->rank, y->rank);
}

/* Add the tensor of items[0..n) to the plan and its pieces to the candidates. */
static int add_tensor(struct ckpt_plan *plan, struct candidates *c, const struct ckpt_item *items,
                      size_t n)
{
    struct pf_ckpt_tensor *tensor;
    size_t end;

    PF_TRY(ckpt_add_tensor(plan->ckpt, items[0].name, items[0].role, items[0].dtype,
                           items[0].n_dims, items[0].shape, &tensor));
    for (size_t i = 0; i < n; i = end) {
        PF_TRY(check_same_tensor(&items[0], &items[i]));
        for (end = i + 1; end < n && ckpt_compare_piece(&items[i], &items[end]) == 0; end++) {
            PF_TRY(check_same_tensor(&items[0], &items[end]));
        }
        const int64_t count = items[i].range_hi - items[i].range_lo;
        if (count > 0) {
            struct candidate *const one = &c->all[c->n];
            *one = (struct candidate){.items = &items[i],
                                      .n = end - i,
                                      .tensor = plan->ckpt->n_tensors - 1,
                                      .number = c->n++};
            one->bytes = (uint64_t)count * pf_dtype_bytes(tensor->dtype);
            one->n_holders =
                items[i].set ? pf_rank_set_count(c->mesh, items[i].set) : (int64_t)one->n;
        }
    }
    return 0;
}

static int find_candidates(struct ckpt_plan *plan, const struct ckpt_item *items, size_t n,
                           struct candidates *c)
{
    size_t end;

    c->all = pf_calloc_array(n, sizeof *c->all);
    if (!c->all) {
        return PF_ENOMEM;
    }
    for (size_t i = 0; i < n; i = end) {
        end = i + 1;
        while (end < n && ckpt_compare_tensor(&items[i], &items[end]) == 0) {
            end++;
        }
        PF_TRY(add_tensor(plan, c, &items[i], end - i));
    }
    return 0;
}

static int holder(const struct candidates *c, const struct candidate *one, int64_t i)
{
    return one->items->set ? pf_rank_set_at(c->mesh, one->items->set, i) : one->items[i].rank;
}

static bool has_choice(const struct candidate *c)
{
    return c->items->set ? c->n_holders > 1 : c->items[0].rank != c->items[c->n - 1].rank;
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
        for (int64_t j = 0; j < one->n_holders; j++) {
            const int rank = holder(c, one, j);
            const bool lower = rank < one->writer;
            const bool better =
                lower ? load[rank] <= load[one->writer] : load[rank] < load[one->writer];
            one->writer = better ? rank : one->writer;
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

    while (!c->items->set && c->items[i].rank != c->writer) {
        i++;
    }
    plan->parts[plan->n_parts++] = (struct ckpt_part){c->tensor, piece, c->items[i].live};
    return 0;
}

static int add_pieces(struct ckpt_plan *plan, const struct candidates *c, int first_rank,
                      int end_rank, int size, const int *file_of)
{
    plan->parts = pf_calloc_array(c->n, sizeof *plan->parts);
    if (!plan->parts) {
        return PF_ENOMEM;
    }
    for (size_t i = 0; i < c->n; i++) {
        const struct candidate *one = &c->all[i];
        const struct ckpt_item *item = &one->items[0];
        struct pf_ckpt_tensor *tensor = &plan->ckpt->tensors[one->tensor];
        const int file = file_of[(is_optimizer(tensor->role) ? 0 : size) + one->writer];
        const struct pf_ckpt_piece piece = {.box = *item->box,
                                            .range_lo = item->range_lo,
                                            .range_hi = item->range_hi,
                                            .file = file};
        PF_TRY(ckpt_add_piece(tensor, &piece));
        if (one->writer >= first_rank && one->writer < end_rank) {
            PF_TRY(add_part(plan, one, tensor->n_pieces - 1));
        }
    }
    return 0;
}

static int make(struct ckpt_plan *plan, const struct ckpt_items *items, int first_rank,
                int end_rank, int size)
{
    struct candidates c = {.mesh = items->mesh};
    int *file_of = pf_calloc_array(2 * (size_t)size, sizeof *file_of);
    int err = file_of ? 0 : PF_ENOMEM;

    if (!err) {
        err = find_candidates(plan, items->all, items->n, &c);
    }
    if (!err) {
        err = balance(&c, size);
    }
    if (!err) {
        err = name_files(plan, &c, size, file_of);
    }
    if (!err) {
        err = add_pieces(plan, &c, first_rank, end_rank, size, file_of);
    }
    for (int64_t i = 0; !err && i < plan->ckpt->n_tensors; i++) {
        err = ckpt_check_tiling(NULL, &plan->ckpt->tensors[i], PF_EINVAL, plan->ckpt->dir);
    }
    pf_free(c.all);
    pf_free(file_of);
    return err;
}

int ckpt_plan_of_items(const struct ckpt_items *items, int first_rank, int end_rank, int size,
                       const char *where, struct ckpt_plan *plan_out)
{
    *plan_out = (struct ckpt_plan){.ckpt = ckpt_new("pf", where)};
    return plan_out->ckpt ? make(plan_out, items, first_rank, end_rank, size) : PF_ENOMEM;
}

int ckpt_plan_make(struct pf_comm *comm, const struct pf_ckpt_live *live, int64_t n_live,
                   struct ckpt_plan *plan_out)
{
    const int rank = ckpt_comm_rank(comm), size = ckpt_comm_size(comm);
    struct ckpt_items items;

    *plan_out = (struct ckpt_plan){.ckpt = NULL};
    int err = ckpt_items_gather(comm, live, n_live, &items);
    if (!err) {
        err = ckpt_agree(
            comm, ckpt_plan_of_items(&items, rank, rank + 1, size, "the live state", plan_out));
    }
    ckpt_items_release(&items);
    return err;
}

void ckpt_plan_compress(struct ckpt_plan *plan)
{
    for (int64_t t = 0; t < plan->ckpt->n_tensors; t++) {
        struct pf_ckpt_tensor *const tensor = &plan->ckpt->tensors[t];
        for (int64_t p = 0; p < tensor->n_pieces; p++) {
            tensor->pieces[p].codec = PF_CKPT_ZSTD;
        }
    }
}

void ckpt_plan_release(struct ckpt_plan *plan)
{
    pf_ckpt_free(plan->ckpt);
    pf_free(plan->parts);
    pf_free(plan->file_rank);
}
