/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole tensors at rank 0, whatever the layout. Rank 0 names a row; every distinct piece of it is sent
 * by the lowest rank that holds it. The others serve until rank 0 says that it is through, so whatever
 * becomes of what rank 0 does with a tensor, nobody waits for a wish that does not come.
 */
#include "train_internal.h"

#include <pf/error.h>
#include <pf/mem.h>

#include <string.h>

/* Bytes of one message, besides the tensor itself all that rank 0 needs. */
#define CHUNK_BYTES ((int64_t)1 << 22)

/* What rank 0 sends instead of a row: it is through. */
#define NO_MORE (-1)

void train_gather_init(struct train_gather *g, struct pf_trainer *t,
                       const struct train_buffer *from)
{
    *g = (struct train_gather){.t = t, .from = *from};
}

void train_gather_release(struct train_gather *g)
{
    pf_shard_list_release(&g->pieces);
    pf_free(g->whole);
    pf_free(g->chunk);
    *g = (struct train_gather){0};
}

static int lowest_holder(const struct train_gather *g, const struct pf_shard *piece)
{
    return pf_rank_set_at(&g->t->table->mesh, &piece->holders, 0);
}

/* Where this rank has a piece that it holds. */
static const uint8_t *find_mine(const struct train_gather *g, int64_t row,
                                const struct pf_shard *piece)
{
    struct pf_local_shard parts[PF_TABLE_MAX_BOXES];
    const int n =
        pf_placement_local(g->t->place, row, g->from.role, pf_comm_rank(g->t->world), parts);
    int k = 0;

    while (k < n &&
           (parts[k].range_lo != piece->range_lo || !pf_box_equal(&parts[k].box, &piece->box))) {
        k++;
    }
    PF_ASSERT(k < n);
    return (const uint8_t *)g->from.data + (size_t)parts[k].at * pf_dtype_bytes(g->from.dtype);
}

/* Is the tensor one piece, and rank 0's? Then it need not be copied. */
static bool is_there(const struct train_gather *g)
{
    return g->pieces.n == 1 && lowest_holder(g, g->pieces.items) == 0;
}

/* Everything that may fail before bytes move. */
static int prepare(struct train_gather *g, int64_t row)
{
    const size_t bytes =
        (size_t)pf_tensor_row_count(&g->t->table->rows[row]) * pf_dtype_bytes(g->from.dtype);

    PF_TRY(pf_placement_shards(g->t->place, row, g->from.role, &g->pieces));
    if (pf_comm_rank(g->t->world) != 0 || is_there(g)) {
        return 0;
    }
    if (!g->chunk) {
        g->chunk = pf_alloc((size_t)CHUNK_BYTES);
    }
    if (g->whole_bytes < bytes) {
        pf_free(g->whole);
        g->whole = pf_alloc(bytes);
        g->whole_bytes = g->whole ? bytes : 0;
    }
    return g->chunk && g->whole ? 0 : PF_ENOMEM;
}

/* Put elements [lo, hi) of a piece's box where they belong. */
static void put(struct train_gather *g, int64_t row, const struct pf_box *box, int64_t lo,
                int64_t hi, const uint8_t *data)
{
    const int64_t *const shape = g->t->table->rows[row].shape;
    const size_t size = pf_dtype_bytes(g->from.dtype);
    int64_t at, n;

    for (int64_t i = lo; i < hi; i += n) {
        n = pf_box_run(box, shape, i, &at);
        n = n < hi - i ? n : hi - i;
        memcpy(g->whole + (size_t)at * size, data + (size_t)(i - lo) * size, (size_t)n * size);
    }
}

/* One piece from its lowest holder, in messages of bounded size. */
static int move(struct train_gather *g, int64_t row, const struct pf_shard *piece)
{
    const size_t size = pf_dtype_bytes(g->from.dtype);
    const int64_t step = CHUNK_BYTES / (int64_t)size;
    const int rank = pf_comm_rank(g->t->world), holder = lowest_holder(g, piece);
    const uint8_t *data = rank == holder ? find_mine(g, row, piece) : g->chunk;

    if (rank == 0 && holder == 0) {
        put(g, row, &piece->box, piece->range_lo, piece->range_hi, data);
        return 0;
    }
    if (rank != 0 && rank != holder) {
        return 0;
    }
    for (int64_t lo = piece->range_lo; lo < piece->range_hi; lo += step) {
        const int64_t hi = piece->range_hi - lo < step ? piece->range_hi : lo + step;
        const size_t bytes = (size_t)(hi - lo) * size;
        if (rank == holder) {
            PF_TRY(pf_comm_send(g->t->world, data + (size_t)(lo - piece->range_lo) * size, bytes, 0,
                                0));
            continue;
        }
        PF_TRY(pf_comm_recv(g->t->world, g->chunk, bytes, holder, 0));
        put(g, row, &piece->box, lo, hi, g->chunk);
    }
    return 0;
}

static int gather(struct train_gather *g, int64_t row)
{
    PF_TRY(pf_comm_all_agree(g->t->world, prepare(g, row), NULL));
    if (is_there(g)) {
        return 0;
    }
    for (int64_t i = 0; i < g->pieces.n; i++) {
        PF_TRY(move(g, row, &g->pieces.items[i]));
    }
    return 0;
}

int train_gather_fetch(struct train_gather *g, int64_t row, const void **data_out)
{
    int64_t wish = row;
    int err = pf_comm_broadcast(g->t->world, &wish, sizeof wish, 0);

    err = err ? err : gather(g, row);
    g->over = err != 0; /* agreed by all, or no exchange is possible any more */
    if (!err) {
        *data_out = is_there(g) ? find_mine(g, row, g->pieces.items) : g->whole;
    }
    return err;
}

int train_gather_end(struct train_gather *g)
{
    int64_t wish = NO_MORE;

    return g->over ? 0 : pf_comm_broadcast(g->t->world, &wish, sizeof wish, 0);
}

int train_gather_serve(struct train_gather *g)
{
    for (;;) {
        int64_t row;
        PF_TRY(pf_comm_broadcast(g->t->world, &row, sizeof row, 0));
        if (row == NO_MORE) {
            return 0;
        }
        PF_TRY(gather(g, row));
    }
}
