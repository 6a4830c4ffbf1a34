/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/grad_norm.h>

#include <pf/error.h>
#include <pf/mem.h>

#include <string.h>

/* Elements of one piece of work: large, so that merging costs nothing. */
#define BLOCK ((int64_t)1 << 16)

struct block {
    int64_t at, n;
};

struct pf_grad_norm {
    bool split;
    int64_t elements;
    int64_t n_blocks, room;
    struct block *blocks;
};

static int push_block(struct pf_grad_norm *norm, struct block block)
{
    if (norm->n_blocks == norm->room) {
        const int64_t room = norm->room > 0 ? 2 * norm->room : 64;
        struct block *const grown = pf_realloc_array(norm->blocks, (size_t)room, sizeof *grown);
        if (!grown) {
            return PF_ENOMEM;
        }
        norm->blocks = grown;
        norm->room = room;
    }
    norm->blocks[norm->n_blocks++] = block;
    return 0;
}

static int push_range(struct pf_grad_norm *norm, int64_t at, int64_t n)
{
    norm->elements += n;
    while (n > 0) {
        const int64_t m = n < BLOCK ? n : BLOCK;
        PF_TRY(push_block(norm, (struct block){at, m}));
        at += m;
        n -= m;
    }
    return 0;
}

static bool same_piece(const struct pf_shard *shard, const struct pf_local_shard *local)
{
    bool same = shard->range_lo == local->range_lo && shard->range_hi == local->range_hi;

    for (int d = 0; d < shard->box.n_dims; d++) {
        same = same && shard->box.lo[d] == local->box.lo[d] && shard->box.hi[d] == local->box.hi[d];
    }
    return same;
}

/* This rank's share of a piece: equal parts for its holders in their order. With `split` holders at
 * other dp and cp coordinates do not count. */
static int push_share(struct pf_grad_norm *norm, const struct pf_mesh *mesh,
                      const struct pf_rank_set *holders, int rank,
                      const struct pf_local_shard *local)
{
    const int64_t count = pf_rank_set_count(mesh, holders), n = local->range_hi - local->range_lo;
    int64_t k = 0, mine = 0;
    int here[PF_AXIS_COUNT];

    pf_mesh_coords(mesh, rank, here);
    for (int64_t i = 0; i < count; i++) {
        const int holder = pf_rank_set_at(mesh, holders, i);
        int there[PF_AXIS_COUNT];
        pf_mesh_coords(mesh, holder, there);
        if (norm->split &&
            (there[PF_AXIS_DP] != here[PF_AXIS_DP] || there[PF_AXIS_CP] != here[PF_AXIS_CP])) {
            continue;
        }
        mine = holder == rank ? k : mine;
        k++;
    }
    const int64_t lo = n * mine / k, hi = n * (mine + 1) / k;
    return push_range(norm, local->at + lo, hi - lo);
}

static int push_row(struct pf_grad_norm *norm, const struct pf_placement *place,
                    const struct pf_mesh *mesh, int64_t row, enum pf_role role, int rank,
                    struct pf_shard_list *list)
{
    struct pf_local_shard local[PF_TABLE_MAX_BOXES];
    const int n = pf_placement_local(place, row, role, rank, local);

    if (n == 0) {
        return 0;
    }
    PF_TRY(pf_placement_shards(place, row, role, list));
    for (int i = 0; i < n; i++) {
        for (int64_t s = 0; s < list->n; s++) {
            if (same_piece(&list->items[s], &local[i])) {
                PF_TRY(push_share(norm, mesh, &list->items[s].holders, rank, &local[i]));
            }
        }
    }
    return 0;
}

int pf_grad_norm_new(const struct pf_placement *place, enum pf_role role, int rank, bool split,
                     struct pf_grad_norm **norm_out)
{
    const struct pf_table *const table = pf_placement_table(place);
    struct pf_grad_norm *const norm = pf_alloc(sizeof *norm);
    struct pf_shard_list list = {0};
    int err = norm ? 0 : PF_ENOMEM;

    if (norm) {
        norm->split = split;
    }
    for (int64_t i = 0; i < table->n_rows && !err; i++) {
        if (!table->rows[i].frozen) {
            err = push_row(norm, place, &table->mesh, i, role, rank, &list);
        }
    }
    pf_shard_list_release(&list);
    if (err) {
        pf_grad_norm_free(norm);
        return err;
    }
    *norm_out = norm;
    return 0;
}

void pf_grad_norm_free(struct pf_grad_norm *norm)
{
    if (norm) {
        pf_free(norm->blocks);
        pf_free(norm);
    }
}

int64_t pf_grad_norm_elements(const struct pf_grad_norm *norm)
{
    return norm->elements;
}

void pf_grad_norm_local(const struct pf_grad_norm *norm, const float *grads, int n_threads,
                        struct pf_exactsum *sum_out)
{
    struct pf_exactsum sum;

    pf_exactsum_init(&sum);
#pragma omp parallel num_threads(n_threads)
    {
        struct pf_exactsum mine;
        pf_exactsum_init(&mine);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < norm->n_blocks; i++) {
            const struct block b = norm->blocks[i];
            pf_exactsum_add_squares_f32(&mine, grads + b.at, (size_t)b.n);
        }
#pragma omp critical(pf_grad_norm)
        pf_exactsum_merge(&sum, &mine);
    }
    *sum_out = sum;
}

int pf_grad_norm_sum(const struct pf_grad_norm *norm, const struct pf_groups *groups,
                     const float *grads, int n_threads, struct pf_exactsum *sum_out)
{
    struct pf_comm *const along[] = {groups->tp, groups->sharding, groups->pp};
    struct pf_exactsum sum;

    pf_grad_norm_local(norm, grads, n_threads, &sum);
    for (size_t i = 0; i < (norm->split ? sizeof along / sizeof along[0] : 1); i++) {
        pf_exactsum_normalise(&sum);
        PF_TRY(pf_comm_all_reduce(norm->split ? along[i] : groups->world, &sum, PF_EXACTSUM_N_WORDS,
                                  PF_COMM_I64, PF_COMM_SUM));
    }
    *sum_out = sum;
    return 0;
}
