/* SPDX-License-Identifier: Apache-2.0 */
/* ranks: 1 2 3 4 */
/*
 * What every communicator promises, run on each backend: as a plain program on `self`, under mpirun
 * on `mpi`. Data are computable at any rank, so each rank checks its results against a calculation
 * of its own; all ranks then agree, and rank 0 prints.
 *
 * Floats are compared bit by bit: sums are taken in rank order, whatever the chunking. Staging is
 * made small, so that the larger sizes need several rounds.
 */
#include <pf/comm.h>
#include <pf/dtype.h>
#include <pf/error.h>
#include <pf/mem.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "world.h"

static int size;

static uint32_t mix(uint32_t x)
{
    x = (x ^ x >> 16) * 0x45d9f3bu;
    x = (x ^ x >> 16) * 0x45d9f3bu;
    return x ^ x >> 16;
}

/* Element i of rank r as 8 bytes of the dtype. Floats have very different magnitudes, so that the
 * order of a sum shows in its last bits. */
static void element(enum pf_comm_dtype dtype, int r, size_t i, void *to)
{
    const uint32_t x = mix((uint32_t)r * 7919u + (uint32_t)i);
    const double f = ldexp((double)(int32_t)x, (int)(x % 37) - 50);
    const float f32 = (float)f;
    const uint16_t bf16 = pf_bf16_from_f32(f32), f16 = pf_f16_from_f32(f32 * 0x1p-20f);
    const uint64_t u64 = (uint64_t)x << 29 ^ x;

    switch (dtype) {
    case PF_COMM_F32:
        memcpy(to, &f32, 4);
        break;
    case PF_COMM_F64:
        memcpy(to, &f, 8);
        break;
    case PF_COMM_BF16:
        memcpy(to, &bf16, 2);
        break;
    case PF_COMM_F16:
        memcpy(to, &f16, 2);
        break;
    case PF_COMM_I32:
        memcpy(to, &x, 4);
        break;
    case PF_COMM_U8:
        memcpy(to, &x, 1);
        break;
    default:
        memcpy(to, &u64, 8);
    }
}

#define FLOAT_STEP(a, b, op)                                                                       \
    ((op) == 0 ? (a) + (b) : (op) == 1 ? ((a) >= (b) ? (a) : (b)) : ((a) <= (b) ? (a) : (b)))
#define INT_STEP(a, b, op)                                                                         \
    ((op) == 3   ? ((a) | (b))                                                                     \
     : (op) == 0 ? (a) + (b)                                                                       \
     : (op) == 1 ? ((a) > (b) ? (a) : (b))                                                         \
                 : ((a) < (b) ? (a) : (b)))
#define EXPECT(type, step, acc_type)                                                               \
    {                                                                                              \
        type x;                                                                                    \
        acc_type acc = 0;                                                                          \
        for (int r = 0; r < n; r++) {                                                              \
            element(dtype, ranks ? ranks[r] : r, i, &x);                                           \
            acc = r == 0 ? x : (acc_type)step(acc, (acc_type)x, (int)op);                          \
        }                                                                                          \
        x = (type)acc;                                                                             \
        memcpy(to, &x, sizeof x);                                                                  \
    }

/* The result at element i of a reduction over ranks[0..n) (NULL: 0..n-1), one rank after another. */
static void expected(enum pf_comm_dtype dtype, enum pf_comm_op op, const int *ranks, int n,
                     size_t i, void *to)
{
    switch (dtype) {
    case PF_COMM_F32:
        EXPECT(float, FLOAT_STEP, float)
        break;
    case PF_COMM_F64:
        EXPECT(double, FLOAT_STEP, double)
        break;
    case PF_COMM_I64: { /* sums wrap: add as unsigned */
        if (op == PF_COMM_SUM) {
            EXPECT(uint64_t, INT_STEP, uint64_t)
        } else {
            EXPECT(int64_t, INT_STEP, int64_t)
        }
        break;
    }
    case PF_COMM_U64:
        EXPECT(uint64_t, INT_STEP, uint64_t)
        break;
    case PF_COMM_I32: {
        if (op == PF_COMM_SUM) {
            EXPECT(uint32_t, INT_STEP, uint32_t)
        } else {
            EXPECT(int32_t, INT_STEP, int32_t)
        }
        break;
    }
    case PF_COMM_U8:
        EXPECT(uint8_t, INT_STEP, uint8_t)
        break;
    default: {
        uint16_t x;
        float acc = 0;
        for (int r = 0; r < n; r++) {
            element(dtype, ranks ? ranks[r] : r, i, &x);
            const float f = dtype == PF_COMM_F16 ? pf_f32_from_f16(x) : pf_f32_from_bf16(x);
            acc = r == 0 ? f : FLOAT_STEP(acc, f, (int)op);
        }
        x = dtype == PF_COMM_F16 ? pf_f16_from_f32(acc) : pf_bf16_from_f32(acc);
        memcpy(to, &x, 2);
    }
    }
}

static void fill(void *buf, enum pf_comm_dtype dtype, int r, size_t n, size_t first)
{
    const size_t width = pf_comm_dtype_bytes(dtype);

    for (size_t i = 0; i < n; i++) {
        element(dtype, r, first + i, (char *)buf + i * width);
    }
}

static bool matches(const void *buf, enum pf_comm_dtype dtype, enum pf_comm_op op, const int *ranks,
                    int n_ranks, size_t n, size_t first)
{
    const size_t width = pf_comm_dtype_bytes(dtype);
    char want[8];

    for (size_t i = 0; i < n; i++) {
        expected(dtype, op, ranks, n_ranks, first + i, want);
        if (memcmp((const char *)buf + i * width, want, width) != 0) {
            pf_fail(PF_EDIFFER, "dtype %d op %d count %zu: element %zu", (int)dtype, (int)op, n, i);
            return false;
        }
    }
    return true;
}

/* 0, 1, odd, one line, what fits the staging of 4 ranks, and more than that by a bit. */
static const size_t counts[] = {0, 1, 2, 17, 64, 255, 1031, 4096, 30011};
#define N_COUNTS (sizeof counts / sizeof counts[0])
#define MAX_COUNT 30011
#define MAX_RANKS 16

static char send_buf[MAX_RANKS * MAX_COUNT * 8], recv_buf[MAX_RANKS * MAX_COUNT * 8];

static bool applies(enum pf_comm_dtype dtype, enum pf_comm_op op)
{
    return op != PF_COMM_BOR || (dtype != PF_COMM_F32 && dtype != PF_COMM_F64 &&
                                 dtype != PF_COMM_BF16 && dtype != PF_COMM_F16);
}

static bool all_reduce_once(enum pf_comm_dtype dtype, enum pf_comm_op op, size_t n)
{
    fill(recv_buf, dtype, rank, n, 0);
    return pf_comm_all_reduce(world, recv_buf, n, dtype, op) == 0 &&
           matches(recv_buf, dtype, op, NULL, size, n, 0);
}

static bool reduce_once(enum pf_comm_dtype dtype, enum pf_comm_op op, size_t n)
{
    const int root = (int)(n % (size_t)size);
    const size_t bytes = n * pf_comm_dtype_bytes(dtype);

    fill(recv_buf, dtype, rank, n, 0);
    memcpy(send_buf, recv_buf, bytes);
    if (pf_comm_reduce(world, recv_buf, n, dtype, op, root) != 0) {
        return false;
    }
    return rank == root ? matches(recv_buf, dtype, op, NULL, size, n, 0)
                        : memcmp(send_buf, recv_buf, bytes) == 0;
}

static bool reduce_scatter_once(enum pf_comm_dtype dtype, enum pf_comm_op op, size_t n,
                                bool in_place)
{
    const size_t row = n * pf_comm_dtype_bytes(dtype);
    char *const to = in_place ? send_buf + (size_t)rank * row : recv_buf;

    fill(send_buf, dtype, rank, n * (size_t)size, 0);
    return pf_comm_reduce_scatter(world, send_buf, to, n, dtype, op) == 0 &&
           matches(to, dtype, op, NULL, size, n, (size_t)rank * n);
}

/* The same in two parts, with another collective between them. */
static void sums_in_two_parts(void)
{
    static char staging[(MAX_RANKS - 1) * MAX_COUNT * 8];
    bool same = true;

    for (int dtype = 0; dtype < PF_COMM_DTYPE_COUNT; dtype++) {
        for (size_t i = 0; i < N_COUNTS; i++) {
            const size_t n = counts[i], bytes = n * pf_comm_dtype_bytes(dtype);
            char *const mine = send_buf + (size_t)rank * bytes;
            struct pf_comm_sum sum;
            int64_t between = rank;
            fill(send_buf, dtype, rank, n * (size_t)size, 0);
            same = same &&
                   pf_comm_reduce_scatter_begin(world, send_buf, staging, n, dtype, &sum) == 0 &&
                   pf_comm_all_reduce(world, &between, 1, PF_COMM_I64, PF_COMM_MAX) == 0 &&
                   pf_comm_reduce_scatter_end(&sum, mine) == 0 && between == size - 1 &&
                   matches(mine, dtype, PF_COMM_SUM, NULL, size, n, (size_t)rank * n);
        }
    }
    all_ok(same, "a reduce_scatter that is begun and ended later: the same bits");
}

static void r65_reductions(void)
{
    bool all_reduce = true, reduce = true, scatter = true, in_place = true;

    for (int dtype = 0; dtype < PF_COMM_DTYPE_COUNT; dtype++) {
        for (int op = 0; op < PF_COMM_OP_COUNT; op++) {
            for (size_t i = 0; applies(dtype, op) && i < N_COUNTS; i++) {
                all_reduce = all_reduce_once(dtype, op, counts[i]) && all_reduce;
                reduce = reduce_once(dtype, op, counts[i]) && reduce;
                scatter = reduce_scatter_once(dtype, op, counts[i], false) && scatter;
                in_place = reduce_scatter_once(dtype, op, counts[i], true) && in_place;
            }
        }
    }
    all_ok(all_reduce, "all_reduce: every dtype, op and size, bit by bit in rank order");
    all_ok(reduce, "reduce: the same at the root, other buffers untouched");
    all_ok(scatter, "reduce_scatter: the same by rows");
    all_ok(in_place, "reduce_scatter in place");
}

/* The same elements in a call of another length, at another offset, with more staging. */
static void bits_do_not_depend_on_chunks(void)
{
    const size_t n = 20011, first = 3, part = 777;
    float *all = (float *)recv_buf, *some = (float *)send_buf;

    fill(all, PF_COMM_F32, rank, n, 0);
    fill(some, PF_COMM_F32, rank, part, first);
    bool same = pf_comm_all_reduce(world, all, n, PF_COMM_F32, PF_COMM_SUM) == 0 &&
                pf_comm_all_reduce(world, some, part, PF_COMM_F32, PF_COMM_SUM) == 0 &&
                memcmp(all + first, some, part * sizeof *all) == 0;
    fill(some, PF_COMM_F32, rank, n, 0);
    same = same && pf_comm_reserve(world, (size_t)1 << 20) == 0 &&
           pf_comm_all_reduce(world, some, n, PF_COMM_F32, PF_COMM_SUM) == 0 &&
           memcmp(all, some, n * sizeof *all) == 0;
    all_ok(same, "bits depend on neither length, offset nor staging");
}

static void nan_wins(void)
{
    float x[2] = {rank == size - 1 ? NAN : 1.0f, (float)rank};
    int err = pf_comm_all_reduce(world, x, 2, PF_COMM_F32, PF_COMM_MAX);
    bool holds = err == 0 && isnan(x[0]) && x[1] == (float)(size - 1);

    x[0] = rank == 0 ? NAN : 1.0f;
    err = pf_comm_all_reduce(world, x, 1, PF_COMM_F32, PF_COMM_MIN);
    all_ok(holds && err == 0 && isnan(x[0]), "MAX and MIN of floats keep a NaN of any rank");
}

static bool all_gather_once(size_t n)
{
    fill(send_buf, PF_COMM_U8, rank, n, 0);
    bool holds = pf_comm_all_gather(world, send_buf, recv_buf, n) == 0;
    for (int r = 0; r < size; r++) {
        holds = matches(recv_buf + (size_t)r * n, PF_COMM_U8, PF_COMM_SUM, &r, 1, n, 0) && holds;
    }
    return holds;
}

static bool all_gather_v_once(size_t n)
{
    size_t bytes[MAX_RANKS], offsets[MAX_RANKS], total = 0;

    for (int r = 0; r < size; r++) {
        bytes[r] = n * (size_t)(r + 1) / 2;
        offsets[r] = total;
        total += bytes[r] + 3;
    }
    fill(send_buf, PF_COMM_U8, rank, bytes[rank], 0);
    bool holds = pf_comm_all_gather_v(world, send_buf, recv_buf, bytes, offsets) == 0;
    for (int r = 0; r < size; r++) {
        holds =
            matches(recv_buf + offsets[r], PF_COMM_U8, PF_COMM_SUM, &r, 1, bytes[r], 0) && holds;
    }
    return holds;
}

static bool broadcast_once(size_t n)
{
    bool holds = true;

    for (int root = 0; root < size; root++) {
        fill(recv_buf, PF_COMM_U8, rank, n, 0);
        holds = pf_comm_broadcast(world, recv_buf, n, root) == 0 &&
                matches(recv_buf, PF_COMM_U8, PF_COMM_SUM, &root, 1, n, 0) && holds;
    }
    return holds;
}

static bool all_to_all_once(size_t n)
{
    fill(send_buf, PF_COMM_U8, rank, n * (size_t)size, 0);
    bool holds = pf_comm_all_to_all(world, send_buf, recv_buf, n) == 0;
    for (int r = 0; r < size; r++) {
        holds = matches(recv_buf + (size_t)r * n, PF_COMM_U8, PF_COMM_SUM, &r, 1, n,
                        (size_t)rank * n) &&
                holds;
    }
    return holds;
}

static void r65_movement(void)
{
    bool gather = true, gather_v = true, broadcast = true, exchange = true;

    for (size_t k = 0; k < N_COUNTS; k++) {
        gather = all_gather_once(counts[k]) && gather;
        gather_v = all_gather_v_once(counts[k]) && gather_v;
        broadcast = broadcast_once(counts[k]) && broadcast;
        exchange = all_to_all_once(counts[k]) && exchange;
    }
    all_ok(gather, "all_gather of every size");
    all_ok(gather_v, "all_gather_v of uneven sizes");
    all_ok(broadcast, "broadcast of every size from every root");
    all_ok(exchange, "all_to_all of every size");
}

static void large_broadcast(void)
{
    const size_t n = (size_t)3 * 1000 * 1000 + 1;
    const int root = size - 1;

    fill(recv_buf, PF_COMM_U8, rank, n, 0);
    all_ok(pf_comm_broadcast(world, recv_buf, n, root) == 0 &&
               matches(recv_buf, PF_COMM_U8, PF_COMM_SUM, &root, 1, n, 0),
           "a broadcast in several chunks");
}

/* Rank i sends i + 2*j + (n or 0) bytes to rank j: some pairs exchange nothing. */
static size_t uneven(int from, int to, size_t n)
{
    return (from + to) % 3 == 0 ? 0 : (size_t)(from + 2 * to) + n;
}

static void uneven_exchange(void)
{
    size_t out[MAX_RANKS], out_at[MAX_RANKS], in[MAX_RANKS], in_at[MAX_RANKS];
    bool holds = true;

    for (size_t k = 0; k < N_COUNTS; k++) {
        size_t sent = 0, received = 0;
        for (int r = 0; r < size; r++) {
            out[r] = uneven(rank, r, counts[k]);
            in[r] = uneven(r, rank, counts[k]);
            out_at[r] = sent;
            in_at[r] = received;
            fill(send_buf + sent, PF_COMM_U8, rank * MAX_RANKS + r, out[r], 0);
            sent += out[r];
            received += in[r];
        }
        holds =
            pf_comm_all_to_all_v(world, send_buf, out, out_at, recv_buf, in, in_at) == 0 && holds;
        for (int r = 0; r < size; r++) {
            const int key = r * MAX_RANKS + rank;
            holds =
                matches(recv_buf + in_at[r], PF_COMM_U8, PF_COMM_SUM, &key, 1, in[r], 0) && holds;
        }
    }
    all_ok(holds, "all_to_all_v of uneven and empty blocks");
}

static void r65_messages(void)
{
    const int next = (rank + 1) % size, before = (rank + size - 1) % size;
    bool ring = true, pairs = true;

    for (size_t k = 0; k < N_COUNTS; k++) {
        const size_t n = counts[k];
        fill(send_buf, PF_COMM_U8, rank, 2 * n, 0);
        ring = pf_comm_group_start(world) == 0 && ring;
        ring = pf_comm_recv(world, recv_buf, n, before, 1) == 0 && ring;
        ring = pf_comm_send(world, send_buf, n, next, 1) == 0 && ring;
        ring = pf_comm_recv(world, recv_buf + n, n, before, 2) == 0 && ring;
        ring = pf_comm_send(world, send_buf + n, n, next, 2) == 0 && ring;
        ring = pf_comm_group_end(world) == 0 && ring;
        ring = matches(recv_buf, PF_COMM_U8, PF_COMM_SUM, &before, 1, 2 * n, 0) && ring;
        if (size > 1 && rank == 0) {
            pairs = pf_comm_send(world, send_buf, n, size - 1, 7) == 0 && pairs;
        } else if (size > 1 && rank == size - 1) {
            const int zero = 0;
            pairs = pf_comm_recv(world, recv_buf, n, 0, 7) == 0 && pairs;
            pairs = matches(recv_buf, PF_COMM_U8, PF_COMM_SUM, &zero, 1, n, 0) && pairs;
        }
    }
    all_ok(ring, "a ring of messages inside a group, also with oneself");
    all_ok(pairs, "send and recv of every size");
}

static void refusals(void)
{
    float x = 0;
    int list[2] = {0, 0};
    struct pf_comm *group = NULL;
    const uint64_t before = world->sequence;

    bool holds = pf_comm_all_reduce(world, &x, 1, PF_COMM_F32, PF_COMM_BOR) == PF_EINVAL &&
                 pf_comm_broadcast(world, &x, 4, size) == PF_EINVAL &&
                 pf_comm_all_reduce(world, &x, SIZE_MAX / 2, PF_COMM_F32, PF_COMM_SUM) == PF_EINVAL;
    holds = holds && pf_comm_send(world, &x, 4, rank, 0) == PF_EINVAL &&
            pf_comm_send(world, &x, 4, 0, PF_COMM_MAX_TAG + 1) == PF_EINVAL;
    holds = holds && pf_comm_split(world, list, 2, "twice", &group) == PF_EINVAL &&
            pf_comm_split(world, list, 0, "none", &group) == PF_EINVAL &&
            pf_comm_split(world, &size, 1, "outside", &group) == PF_EINVAL && !group;
    holds = holds && world->sequence == before;
    holds = holds && pf_comm_group_start(world) == 0 && pf_comm_barrier(world) == PF_EINVAL &&
            pf_comm_group_end(world) == 0;
    all_ok(holds, "impossible arguments are refused before anything is sent");
}

/* Ranks from high to low, so that the group's order is the list's, not the world's. */
static void groups_keep_the_order_of_their_list(void)
{
    int list[MAX_RANKS];
    struct pf_comm *group = NULL;

    for (int i = 0; i < size; i++) {
        list[i] = size - 1 - i;
    }
    bool holds = pf_comm_split(world, list, size, "reversed", &group) == 0 && group &&
                 pf_comm_rank(group) == size - 1 - rank && pf_comm_size(group) == size;
    fill(recv_buf, PF_COMM_F32, rank, 5000, 0);
    holds = holds && pf_comm_all_reduce(group, recv_buf, 5000, PF_COMM_F32, PF_COMM_SUM) == 0 &&
            matches(recv_buf, PF_COMM_F32, PF_COMM_SUM, list, size, 5000, 0);
    all_ok(holds, "a group sums in the order of its list");
}

/* Even and odd ranks, and each rank alone: members get a communicator, others NULL. */
static void groups_of_some(void)
{
    bool holds = true;

    for (int odd = 0; odd < 2 && odd < size; odd++) {
        int list[MAX_RANKS], n = 0;
        struct pf_comm *group = world;
        for (int r = odd; r < size; r += 2) {
            list[n++] = r;
        }
        holds = pf_comm_split(world, list, n, odd ? "odd" : "even", &group) == 0 && holds;
        holds = (group != NULL) == (rank % 2 == odd) && holds;
        if (group) {
            fill(recv_buf, PF_COMM_F32, rank, 3001, 0);
            holds = pf_comm_all_reduce(group, recv_buf, 3001, PF_COMM_F32, PF_COMM_SUM) == 0 &&
                    matches(recv_buf, PF_COMM_F32, PF_COMM_SUM, list, n, 3001, 0) && holds;
        }
    }
    for (int r = 0; r < size; r++) {
        struct pf_comm *alone = NULL;
        holds = pf_comm_split(world, &r, 1, "alone", &alone) == 0 && holds;
        holds = (alone != NULL) == (r == rank) && holds;
        holds = (!alone || (pf_comm_size(alone) == 1 && pf_comm_barrier(alone) == 0)) && holds;
    }
    all_ok(holds, "groups of some ranks, and of one");
}

/* SYSTEMS row 17: a thousand create and lookup cycles leave the count constant, and all ranks have
 * made the same groups in the same order. */
static void r17_groups_are_made_once_in_one_order(void)
{
    struct pf_comm *first = NULL, *again = NULL;
    int list[MAX_RANKS];
    bool holds = true;

    for (int i = 0; i < size; i++) {
        list[i] = i;
    }
    holds = pf_comm_split(world, list, size, "all", &first) == 0;
    const int count = pf_comm_count(world);
    const uint64_t hash = pf_comm_order_hash(world);
    for (int i = 0; i < 1000; i++) {
        const int one = i % size;
        holds = pf_comm_split(world, list, size, "all", &again) == 0 && again == first && holds;
        holds = pf_comm_split(world, &one, 1, "alone", &again) == 0 && holds;
    }
    holds = holds && pf_comm_count(world) == count && pf_comm_order_hash(world) == hash;
    holds = pf_comm_same(world, &hash, sizeof hash, "the order of groups") == 0 && holds;
    all_ok(holds, "r17_groups_are_made_once_in_one_order");
}

static void ranks_agree_on_an_outcome(void)
{
    int who = 7, err = pf_comm_all_agree(world, 0, &who);
    bool holds = err == 0 && who == -1;

    err = rank >= 1 ? pf_fail(PF_EIO, "disk of rank %d", rank) : 0;
    err = pf_comm_all_agree(world, err, &who);
    holds = holds && (size == 1 ? err == 0 : err == PF_EIO && who == 1);
    holds = holds && (size == 1 || strcmp(pf_error_message(), "rank 1: disk of rank 1") == 0);
    holds = holds && (size == 1 || pf_comm_speaks(world) == (rank == 0));
    all_ok(holds, "the lowest failing rank's fault becomes everybody's, rank 0 speaks");

    err = pf_comm_all_agree(world, pf_fail(PF_EUSAGE, "no such key"), &who);
    all_ok(err == PF_EUSAGE && who == 0 && strcmp(pf_error_message(), "no such key") == 0,
           "a fault that all share names no rank");

    pf_fail(PF_EIO, "my own");
    all_ok(pf_comm_speaks(world), "each rank speaks for a fault of its own");
}

static void ranks_compare_bytes(void)
{
    char text[100] = "the same";
    bool holds = pf_comm_same(world, text, sizeof text, "the text") == 0;

    text[99] = rank == size - 1 && size > 1;
    const int err = pf_comm_same(world, text, sizeof text, "the text");
    char want[100];
    snprintf(want, sizeof want, "the text differs between rank 0 and rank %d", size - 1);
    holds = holds &&
            (size == 1 ? err == 0 : err == PF_EDISAGREE && strcmp(pf_error_message(), want) == 0);
    const size_t n = rank == 0 ? 10 : 20;
    const int length = pf_comm_same(world, "01234567890123456789", n, "the length");
    holds = holds && length == (size == 1 ? 0 : PF_EDISAGREE);
    all_ok(holds, "ranks that hold other bytes are named");
}

/* A group whose lists differ between ranks is found before it is made. */
static void differing_lists_are_refused(void)
{
    const int list[2] = {size - 1, rank == 1 ? 1 : 0};
    struct pf_comm *group = NULL;

    if (size < 3) {
        if (rank == 0) {
            skip("differing lists are refused", "needs three ranks");
        }
        return;
    }
    const int count = pf_comm_count(world);
    const int err = pf_comm_split(world, list, 2, "crooked", &group);
    all_ok(err == PF_EDISAGREE && !group && pf_comm_count(world) == count,
           "differing lists are refused");
}

static void nothing_is_allocated_in_a_step(void)
{
    const int64_t before = pf_mem_n_allocs();
    bool holds = true;

    for (int i = 0; i < 3; i++) {
        holds = all_reduce_once(PF_COMM_F32, PF_COMM_SUM, MAX_COUNT) && holds;
        holds = pf_comm_all_agree(world, 0, NULL) == 0 && pf_comm_barrier(world) == 0 && holds;
    }
    all_ok(holds && pf_mem_n_allocs() == before, "collectives allocate nothing");
}

static void calls_are_counted(void)
{
    struct pf_comm_stats before, after;
    float x[3] = {0};

    pf_comm_stats(world, &before);
    const int err = pf_comm_all_reduce(world, x, 3, PF_COMM_F32, PF_COMM_SUM);
    pf_comm_stats(world, &after);
    all_ok(err == 0 && after.calls[PF_COMM_ALL_REDUCE] == before.calls[PF_COMM_ALL_REDUCE] + 1 &&
               after.bytes[PF_COMM_ALL_REDUCE] == before.bytes[PF_COMM_ALL_REDUCE] + 12 &&
               after.seconds[PF_COMM_ALL_REDUCE] > before.seconds[PF_COMM_ALL_REDUCE],
           "calls, bytes and seconds are counted");
}

int main(int argc, char **argv)
{
    const struct pf_comm_options options = {.timeout_s = 60, .staging_bytes = 1};

    if (pf_comm_init(&argc, &argv, &options, &world) != 0) {
        ok(false, "init: %s", pf_error_message());
        return done();
    }
    rank = pf_comm_rank(world);
    size = pf_comm_size(world);
    if (rank == 0) {
        printf("# backend %s, %d ranks\n", pf_comm_backend(world), size);
    }
    all_ok(pf_comm_local_size(world) == size && pf_comm_local_rank(world) == rank,
           "all ranks are on this host");
    r65_reductions();
    sums_in_two_parts();
    bits_do_not_depend_on_chunks();
    nan_wins();
    r65_movement();
    large_broadcast();
    uneven_exchange();
    r65_messages();
    refusals();
    groups_keep_the_order_of_their_list();
    groups_of_some();
    r17_groups_are_made_once_in_one_order();
    ranks_agree_on_an_outcome();
    ranks_compare_bytes();
    differing_lists_are_refused();
    nothing_is_allocated_in_a_step();
    calls_are_counted();
    return world_end();
}
