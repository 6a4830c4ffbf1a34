/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors the result of a change of layout has, from what, and where their pieces lie. */
#include "reshard_internal.h"

#include <pf/mem.h>

#include <stdlib.h>
#include <string.h>

/* Rows of the table by name -----------------------------------------------------------------------
 */

struct named {
    const char *name;
    int64_t row;
};

struct index {
    struct named *all;
    size_t n;
};

static int compare_named(const void *a, const void *b)
{
    return strcmp(((const struct named *)a)->name, ((const struct named *)b)->name);
}

static int index_rows(const struct pf_table *table, struct index *index)
{
    index->n = (size_t)table->n_rows;
    index->all = pf_calloc_array(index->n, sizeof *index->all);
    if (!index->all) {
        return PF_ENOMEM;
    }
    for (size_t i = 0; i < index->n; i++) {
        index->all[i] = (struct named){table->rows[i].name, (int64_t)i};
    }
    qsort(index->all, index->n, sizeof *index->all, compare_named);
    return 0;
}

static int64_t find_row(const struct index *index, const char *name)
{
    const struct named key = {.name = name};
    const struct named *const found =
        bsearch(&key, index->all, index->n, sizeof *index->all, compare_named);

    return found ? found->row : -1;
}

/* Targets -----------------------------------------------------------------------------------------
 */

struct chooser {
    const struct pf_ckpt *src;
    const struct pf_reshard *job;
    struct index index;
    struct reshard_wanted *w;
};

static const char *embed_name(const struct pf_table *table)
{
    const struct pf_tensor_row *const row = pf_table_find(table, -1, PF_SLOT_EMBED);

    return row ? row->name : NULL;
}

/* The name that a source's tensor has in the result; NULL: it is left out. */
static const char *target_name(const struct chooser *c, const char *name)
{
    const struct pf_reshard *const job = c->job;

    if (job->embed_from && strcmp(name, job->embed_from) == 0) {
        return embed_name(job->table);
    }
    return job->drop && strcmp(name, job->drop) == 0 ? NULL : name;
}

static int check_row(const struct chooser *c, const struct pf_ckpt_tensor *t, int64_t row)
{
    const struct pf_tensor_row *const r = &c->job->table->rows[row];
    bool same = t->n_dims == r->n_dims;

    for (int d = 0; same && d < t->n_dims; d++) {
        same = t->shape[d] == r->shape[d];
    }
    return same ? 0
                : pf_fail(PF_EFORMAT,
                          "'%s' (%s) in '%s' has not the shape that the model's config "
                          "says",
                          t->name, pf_role_name(t->role), c->src->dir);
}

static void add_target(struct chooser *c, const char *name, enum pf_role role, enum pf_dtype dtype,
                       const struct pf_ckpt_tensor *from, int64_t row)
{
    c->w->targets[c->w->n++] = (struct reshard_target){name, role, dtype, from, row};
}

/* A weight; where its dtype changes, made from its master, or becoming one. */
static int add_weight(struct chooser *c, const struct pf_ckpt_tensor *t, const char *name,
                      int64_t row)
{
    const struct pf_ckpt_tensor *const master = pf_ckpt_find(c->src, t->name, PF_ROLE_MASTER);
    const struct pf_ckpt_tensor *const moment = pf_ckpt_find(c->src, t->name, PF_ROLE_MOMENT1);
    const enum pf_dtype to = c->job->dtype;
    const bool changes = to != PF_DTYPE_COUNT && pf_dtype_is_float(t->dtype) && to != t->dtype;
    const bool keeps = changes && c->job->table->rows[row].keep_fp32 && to != PF_DTYPE_F32;

    c->w->n_kept_fp32 += keeps;
    if (!changes || keeps) {
        add_target(c, name, t->role, t->dtype, t, row);
        return 0;
    }
    add_target(c, name, t->role, to, master ? master : t, row);
    if (moment && !master && t->dtype == PF_DTYPE_F32 && to != PF_DTYPE_F32 &&
        !c->job->weights_only) {
        add_target(c, name, PF_ROLE_MASTER, PF_DTYPE_F32, t, row);
    }
    return 0;
}

/* Is this role carried over? A master that the weight itself becomes is not. */
static bool is_carried(const struct chooser *c, const struct pf_ckpt_tensor *t)
{
    if (t->role == PF_ROLE_BUFFER) {
        return true;
    }
    if (c->job->weights_only) {
        return false;
    }
    return !(t->role == PF_ROLE_MASTER && c->job->dtype == PF_DTYPE_F32);
}

static int add_tensor(struct chooser *c, const struct pf_ckpt_tensor *t)
{
    const char *const name = target_name(c, t->name);
    const int64_t row = name ? find_row(&c->index, name) : -1;

    if (!name) {
        return 0;
    }
    if (pf_dtype_bytes(t->dtype) == 0) {
        return pf_fail(PF_ENOTSUP, "'%s' has elements of %d bits, which this build does not read",
                       t->name, pf_dtype_bits(t->dtype));
    }
    if (row >= 0 && t->role != PF_ROLE_BUFFER && t->role != PF_ROLE_SCALAR) {
        PF_TRY(check_row(c, t, row));
    }
    if (t->role == PF_ROLE_WEIGHT) {
        if (row < 0 || c->job->table->rows[row].tied_to >= 0) {
            return pf_fail(PF_EFORMAT, "'%s' in '%s' is no part of the model", t->name,
                           c->src->dir);
        }
        return add_weight(c, t, name, row);
    }
    if (is_carried(c, t)) {
        add_target(c, name, t->role, t->dtype, t, row);
    }
    return 0;
}

/* Every row needs its weight. */
static int check_complete(const struct chooser *c)
{
    const struct pf_table *const table = c->job->table;
    bool *const there = pf_calloc_array((size_t)table->n_rows, sizeof *there);
    int err = 0;

    if (!there) {
        return PF_ENOMEM;
    }
    for (size_t i = 0; i < c->w->n; i++) {
        if (c->w->targets[i].role == PF_ROLE_WEIGHT) {
            there[c->w->targets[i].row] = true;
        }
    }
    for (int64_t i = 0; !err && i < table->n_rows; i++) {
        if (!there[i] && table->rows[i].tied_to < 0) {
            err = pf_fail(PF_EINCOMPLETE, "'%s' has no '%s'", c->src->dir, table->rows[i].name);
        }
    }
    pf_free(there);
    return err;
}

static int compare_targets(const void *a, const void *b)
{
    const struct reshard_target *x = a, *y = b;

    if (x->role != y->role) {
        return x->role < y->role ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

static int choose(struct chooser *c)
{
    c->w->targets = pf_calloc_array(2 * (size_t)c->src->n_tensors, sizeof *c->w->targets);
    if (!c->w->targets) {
        return PF_ENOMEM;
    }
    for (int64_t i = 0; i < c->src->n_tensors; i++) {
        PF_TRY(add_tensor(c, &c->src->tensors[i]));
    }
    PF_TRY(check_complete(c));
    qsort(c->w->targets, c->w->n, sizeof *c->w->targets, compare_targets);
    return 0;
}

/* Pieces ------------------------------------------------------------------------------------------
 */

/* Of which shards the pieces of a target are made. */
struct span {
    size_t first, n;
};

static int append_shards(struct pf_shard_list *all, const struct pf_shard_list *some)
{
    if (all->n + some->n > all->room) {
        const int64_t room = 2 * (all->n + some->n);
        struct pf_shard *const grown =
            pf_realloc_array(all->items, (size_t)room, sizeof *all->items);
        if (!grown) {
            return PF_ENOMEM;
        }
        all->items = grown;
        all->room = room;
    }
    if (some->n > 0) {
        memcpy(all->items + all->n, some->items, (size_t)some->n * sizeof *some->items);
    }
    all->n += some->n;
    return 0;
}

/* What no row says where to put: whole, at rank 0. */
static int whole_shard(const struct pf_ckpt_tensor *t, struct pf_shard_list *one)
{
    struct pf_shard_list list = {.n = 1};

    pf_shard_list_release(one);
    list.items = pf_alloc(sizeof *list.items);
    if (!list.items) {
        return PF_ENOMEM;
    }
    list.room = 1;
    list.items[0].box = pf_ckpt_whole(t);
    list.items[0].range_hi = pf_box_count(&list.items[0].box);
    *one = list;
    return 0;
}

static int place_targets(struct reshard_wanted *w, const struct pf_reshard *job, struct span *spans)
{
    struct pf_shard_list one = {.n = 0};
    int err = 0;

    for (size_t i = 0; !err && i < w->n; i++) {
        const struct reshard_target *const t = &w->targets[i];
        const bool by_row = t->row >= 0 && job->table->rows[t->row].n_dims == t->from->n_dims;
        err = by_row ? pf_placement_shards(job->place, t->row, t->role, &one) : 0;
        if (!err && (!by_row || one.n == 0)) {
            err = whole_shard(t->from, &one);
        }
        spans[i] = (struct span){(size_t)w->shards.n, (size_t)one.n};
        err = err ? err : append_shards(&w->shards, &one);
    }
    pf_shard_list_release(&one);
    return err;
}

static struct ckpt_item item_of(const struct reshard_target *t, const struct pf_shard *shard,
                                const struct pf_mesh *mesh)
{
    struct ckpt_item item = {.name = t->name,
                             .role = t->role,
                             .dtype = t->dtype,
                             .n_dims = t->from->n_dims,
                             .shape = t->from->shape,
                             .box = &shard->box,
                             .range_lo = shard->range_lo,
                             .range_hi = shard->range_hi,
                             .live = -1};

    if (shard->holders.n_stages > 0) {
        item.set = &shard->holders;
        item.rank = pf_rank_set_at(mesh, item.set, 0);
    }
    return item;
}

static int make_items(struct reshard_wanted *w, const struct pf_mesh *mesh,
                      const struct span *spans)
{
    w->items.all = pf_calloc_array((size_t)w->shards.n, sizeof *w->items.all);
    w->from = pf_calloc_array(w->n, sizeof *w->from);
    if (!w->items.all || !w->from) {
        return PF_ENOMEM;
    }
    for (size_t i = 0; i < w->n; i++) {
        for (size_t s = 0; s < spans[i].n; s++) {
            w->items.all[w->items.n++] =
                item_of(&w->targets[i], &w->shards.items[spans[i].first + s], mesh);
        }
        w->from[i] = w->targets[i].from;
    }
    w->items.mesh = mesh;
    ckpt_items_sort(&w->items);
    return 0;
}

int reshard_want(const struct pf_ckpt *src, const struct pf_reshard *job,
                 struct reshard_wanted *wanted_out)
{
    struct chooser c = {.src = src, .job = job, .w = wanted_out};
    struct span *spans = NULL;
    int err;

    *wanted_out = (struct reshard_wanted){.n = 0};
    PF_TRY_GOTO(index_rows(job->table, &c.index), out);
    PF_TRY_GOTO(choose(&c), out);
    spans = pf_calloc_array(wanted_out->n, sizeof *spans);
    PF_TRY_GOTO(spans ? 0 : PF_ENOMEM, out);
    PF_TRY_GOTO(place_targets(wanted_out, job, spans), out);
    err = make_items(wanted_out, &job->table->mesh, spans);
out:
    pf_free(spans);
    pf_free(c.index.all);
    return err;
}

void reshard_wanted_release(struct reshard_wanted *w)
{
    pf_free(w->targets);
    pf_shard_list_release(&w->shards);
    ckpt_items_release(&w->items);
    pf_free(w->from);
}
