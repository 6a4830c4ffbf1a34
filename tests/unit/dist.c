/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors over meshes of several dimensions: what ranks hold, and what reshaping, transposing and
 * multiplying do to it, against dense tensors. */
#include <pf/dist.h>
#include <pf/error.h>

#include "tap.h"

#include <string.h>

#define CELLS 64 /* at most so many elements */

static struct pf_dist on_222(int a, int b, int c)
{
    return (struct pf_dist){3, {2, 2, 2}, {a, b, c}};
}

static void coords_of(int rank, int coord[3])
{
    for (int i = 0; i < 3; i++) {
        coord[i] = rank >> (2 - i) & 1;
    }
}

/* Linear indices of the elements of a box, in the order of the rank's memory. */
static int indices_of(const struct pf_box *box, const int64_t *shape, int64_t out[CELLS])
{
    const int64_t n = pf_box_count(box);

    for (int64_t k = 0; k < n; k++) {
        int64_t rest = k, stride = 1;
        out[k] = 0;
        for (int d = box->n_dims - 1; d >= 0; d--) {
            const int64_t extent = box->hi[d] - box->lo[d];
            out[k] += (box->lo[d] + rest % extent) * stride;
            rest /= extent;
            stride *= shape[d];
        }
    }
    return (int)n;
}

static void hold(const struct pf_dist *dist, int n_dims, const int64_t *shape, const int *coord,
                 int64_t lo, int64_t hi)
{
    struct pf_box box = {0};

    ok(pf_dist_local(dist, n_dims, shape, coord, &box) == 0 && box.lo[0] == lo && box.hi[0] == hi,
       "coordinates %d, %d hold rows %lld to %lld", coord[0], coord[1], (long long)lo,
       (long long)hi);
}

/* 10 rows over 2 x 4, both along rows: halves of 5, each in parts of 2, 1, 1, 1. */
static void slices_by_hand(void)
{
    const struct pf_dist rows = {2, {2, 4}, {0, 0}}, one = {2, {2, 4}, {PF_DIST_REPLICATE, 0}};
    const int64_t shape[] = {10, 3};

    hold(&rows, 2, shape, (int[]){0, 0}, 0, 2);
    hold(&rows, 2, shape, (int[]){0, 3}, 4, 5);
    hold(&rows, 2, shape, (int[]){1, 0}, 5, 7);
    hold(&rows, 2, shape, (int[]){1, 1}, 7, 8);
    hold(&one, 2, shape, (int[]){1, 1}, 3, 6);
    hold(&one, 2, shape, (int[]){0, 3}, 8, 10);
}

static bool same_box(const struct pf_box *a, const struct pf_box *b)
{
    return memcmp(a->lo, b->lo, sizeof a->lo) == 0 && memcmp(a->hi, b->hi, sizeof a->hi) == 0;
}

/* The distinct slices of all ranks tile the tensor, and each is held as often as copies are asked for. */
static void r45_slices_tile(void)
{
    static const int64_t shapes[][2] = {{8, 8}, {5, 3}, {1, 7}, {2, 1}};
    int wrong = 0, n = 0;

    for (int s = 0; s < 4; s++) {
        for (int code = 0; code < 27; code++, n++) {
            const struct pf_dist dist =
                on_222(code % 3 - 1, code / 3 % 3 - 1, code / 9 - 1); /* copied, rows, columns */
            const struct pf_box whole = {2, {0, 0}, {shapes[s][0], shapes[s][1]}};
            struct pf_box distinct[8];
            struct pf_cover cover = {.kind = PF_COVER_HOLE};
            size_t n_distinct = 0;
            for (int rank = 0; rank < 8; rank++) {
                struct pf_box mine = {0};
                int coord[3];
                bool is_copy = false;
                coords_of(rank, coord);
                wrong += pf_dist_local(&dist, 2, shapes[s], coord, &mine) != 0;
                for (size_t k = 0; k < n_distinct; k++) {
                    is_copy = is_copy || same_box(&distinct[k], &mine);
                }
                if (!is_copy) {
                    distinct[n_distinct++] = mine;
                }
            }
            wrong += pf_cover_check(&whole, distinct, n_distinct, &cover) != 0 ||
                     cover.kind != PF_COVER_EXACT;
        }
    }
    ok(wrong == 0, "r45_slices_tile: %d placements on a mesh of 2 x 2 x 2, even sizes or not", n);
}

/* What a rank holds before and after a reshape are the same elements in the same order. */
static int reshape_faults(int code, int n_in, const int64_t *in, int n_out, const int64_t *out,
                          int *n_kept)
{
    const int base = n_in + 1;
    struct pf_dist x = on_222(code % base - 1, code / base % base - 1, code / base / base - 1), y,
                   z;
    const struct pf_dist before = x;
    int faults = pf_dist_reshape(&x, n_in, in, n_out, out, &y) != 0;

    for (int i = 0; i < 3; i++) {
        faults += x.place[i] != before.place[i] && x.place[i] != PF_DIST_REPLICATE;
    }
    *n_kept += memcmp(&x, &before, sizeof x) == 0 && code > 0;
    for (int rank = 0; rank < 8; rank++) {
        int64_t a[CELLS], b[CELLS];
        struct pf_box from = {0}, to = {0};
        int coord[3];
        coords_of(rank, coord);
        faults += pf_dist_local(&x, n_in, in, coord, &from) != 0 ||
                  pf_dist_local(&y, n_out, out, coord, &to) != 0;
        const int n = indices_of(&from, in, a);
        faults += n != indices_of(&to, out, b) || memcmp(a, b, (size_t)n * sizeof a[0]) != 0;
    }
    /* and back */
    struct pf_dist again = y;
    faults += pf_dist_reshape(&again, n_out, out, n_in, in, &z) != 0 ||
              memcmp(&again, &y, sizeof y) != 0 || memcmp(&z, &x, sizeof x) != 0;
    return faults;
}

static void r45_reshape_moves_nothing(void)
{
    static const struct {
        int n_in;
        int64_t in[3];
        int n_out;
        int64_t out[3];
    } cases[] = {{2, {8, 6}, 3, {8, 2, 3}}, {2, {8, 6}, 1, {48}},      {3, {4, 2, 6}, 2, {8, 6}},
                 {2, {6, 8}, 2, {8, 6}},    {3, {1, 8, 4}, 2, {8, 4}}, {2, {8, 4}, 3, {2, 4, 4}}};
    int faults = 0, n = 0, n_kept = 0;

    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        const int base = cases[c].n_in + 1;
        for (int code = 0; code < base * base * base; code++, n++) {
            faults += reshape_faults(code, cases[c].n_in, cases[c].in, cases[c].n_out, cases[c].out,
                                     &n_kept);
        }
    }
    ok(faults == 0 && n_kept > 60,
       "r45_reshape_moves_nothing: %d reshapes, %d with their cuts kept, there and back", n,
       n_kept);
}

static void reshapes_by_hand(void)
{
    struct pf_dist x = on_222(0, PF_DIST_REPLICATE, PF_DIST_PARTIAL), y;

    ok(pf_dist_reshape(&x, 2, (int64_t[]){4, 6}, 3, (int64_t[]){4, 2, 3}, &y) == 0 &&
           y.place[0] == 0 && x.place[0] == 0 && y.place[2] == PF_DIST_PARTIAL,
       "rows stay cut where the columns alone are split, a sum stays partial");
    x = on_222(1, PF_DIST_REPLICATE, PF_DIST_REPLICATE);
    ok(pf_dist_reshape(&x, 2, (int64_t[]){4, 6}, 3, (int64_t[]){4, 2, 3}, &y) == 0 &&
           y.place[0] == 1 && x.place[0] == 1,
       "columns in two are heads in two");
    x = on_222(1, PF_DIST_REPLICATE, PF_DIST_REPLICATE);
    ok(pf_dist_reshape(&x, 2, (int64_t[]){4, 6}, 1, (int64_t[]){24}, &y) == 0 &&
           y.place[0] == PF_DIST_REPLICATE && x.place[0] == PF_DIST_REPLICATE,
       "cut columns do not stay cut when rows and columns become one");
    x = on_222(0, 0, PF_DIST_REPLICATE);
    ok(pf_dist_reshape(&x, 1, (int64_t[]){24}, 2, (int64_t[]){2, 12}, &y) == 0 &&
           x.place[0] == PF_DIST_REPLICATE && y.place[1] == PF_DIST_REPLICATE,
       "four parts are no cut of two rows");
    ok(pf_dist_reshape(&x, 1, (int64_t[]){24}, 1, (int64_t[]){23}, &y) == PF_EINVAL, "%s",
       pf_error_message());
}

/* Dense products --------------------------------------------------------------------------------- */

static int64_t x_at(int64_t i, int64_t k)
{
    return 3 * i - 5 * k + 1;
}

static int64_t y_at(int64_t k, int64_t j)
{
    return 7 * k + 2 * j - 4;
}

/* What a rank has of a value along the mesh dimensions where it is a sum: 3 and -2 times it. */
static int64_t share(const struct pf_dist *dist, const int coord[3])
{
    int64_t weight = 1;

    for (int i = 0; i < 3; i++) {
        weight *= dist->place[i] != PF_DIST_PARTIAL ? 1 : coord[i] ? -2 : 3;
    }
    return weight;
}

/* Multiply on every rank what it has, then sum over the mesh dimensions where the result is partial. */
static int product_faults(const struct pf_dist *x, const struct pf_dist *y, const struct pf_dist *z,
                          const int64_t mkn[3])
{
    const int64_t xs[] = {mkn[0], mkn[1]}, ys[] = {mkn[1], mkn[2]}, zs[] = {mkn[0], mkn[2]};
    int faults = 0;

    for (int rank = 0; rank < 8; rank++) {
        int coord[3];
        struct pf_box mine = {0};
        coords_of(rank, coord);
        faults += pf_dist_local(z, 2, zs, coord, &mine) != 0;
        for (int64_t i = mine.lo[0]; i < mine.hi[0]; i++) {
            for (int64_t j = mine.lo[1]; j < mine.hi[1]; j++) {
                int64_t sum = 0, want = 0;
                for (int other = 0; other < 8; other++) {
                    int at[3];
                    struct pf_box a = {0}, b = {0};
                    bool in_sum = true;
                    coords_of(other, at);
                    for (int d = 0; d < 3; d++) {
                        in_sum = in_sum && (z->place[d] == PF_DIST_PARTIAL || at[d] == coord[d]);
                    }
                    if (!in_sum) {
                        continue;
                    }
                    faults += pf_dist_local(x, 2, xs, at, &a) || pf_dist_local(y, 2, ys, at, &b);
                    faults += a.lo[1] != b.lo[0] || a.hi[1] != b.hi[0];
                    faults += i < a.lo[0] || i >= a.hi[0] || j < b.lo[1] || j >= b.hi[1];
                    for (int64_t k = a.lo[1]; k < a.hi[1]; k++) {
                        sum += share(x, at) * x_at(i, k) * share(y, at) * y_at(k, j);
                    }
                }
                for (int64_t k = 0; k < mkn[1]; k++) {
                    want += x_at(i, k) * y_at(k, j);
                }
                faults += sum != want;
            }
        }
    }
    return faults;
}

static void r46_products_are_dense(void)
{
    static const int64_t sizes[][3] = {{4, 4, 4}, {3, 5, 2}};
    int faults = 0, n = 0;

    for (int s = 0; s < 2; s++) {
        for (int code = 0; code < 4096; code += s == 0 ? 1 : 7, n++) {
            struct pf_dist x = on_222(code % 4 - 2, code / 4 % 4 - 2, code / 16 % 4 - 2);
            struct pf_dist y = on_222(code / 64 % 4 - 2, code / 256 % 4 - 2, code / 1024 - 2), z;
            faults += pf_dist_matmul(&x, &y, &z) != 0;
            faults += product_faults(&x, &y, &z, sizes[s]);
        }
    }
    ok(faults == 0, "r46_products_are_dense: %d pairs of placements on a mesh of 2 x 2 x 2", n);
}

static void r46_products_by_hand(void)
{
    /* columns of the first, rows of the second: a partial sum; rows and copies: rows; copies, columns */
    struct pf_dist x = on_222(1, 0, PF_DIST_REPLICATE), y = on_222(0, PF_DIST_REPLICATE, 1), z;

    ok(pf_dist_matmul(&x, &y, &z) == 0 && z.place[0] == PF_DIST_PARTIAL && z.place[1] == 0 &&
           z.place[2] == 1,
       "r46_products_by_hand: the three cuts of a product");
    x = on_222(0, PF_DIST_PARTIAL, PF_DIST_PARTIAL);
    y = on_222(1, PF_DIST_PARTIAL, PF_DIST_REPLICATE);
    ok(pf_dist_matmul(&x, &y, &z) == 0 && y.place[0] == PF_DIST_REPLICATE && z.place[0] == 0 &&
           y.place[1] == PF_DIST_REPLICATE && z.place[1] == PF_DIST_PARTIAL &&
           z.place[2] == PF_DIST_PARTIAL,
       "r46_products_by_hand: the second gives way, and is summed where both are sums");
    y.mesh[0] = 4;
    ok(pf_dist_matmul(&x, &y, &z) == PF_EINVAL, "%s", pf_error_message());
}

static void r46_transpose_permutes(void)
{
    const struct pf_dist x = on_222(2, PF_DIST_PARTIAL, 0);
    struct pf_dist y;

    ok(pf_dist_transpose(&x, 3, (int[]){2, 0, 1}, &y) == 0 && y.place[0] == 0 &&
           y.place[1] == PF_DIST_PARTIAL && y.place[2] == 1,
       "r46_transpose_permutes: a cut goes with its dimension");
    ok(pf_dist_transpose(&x, 3, (int[]){2, 0, 2}, &y) == PF_EINVAL, "%s", pf_error_message());
    ok(pf_dist_transpose(&x, 2, (int[]){1, 0}, &y) == PF_EINVAL, "%s", pf_error_message());
}

int main(void)
{
    slices_by_hand();
    r45_slices_tile();
    r45_reshape_moves_nothing();
    reshapes_by_hand();
    r46_products_are_dense();
    r46_products_by_hand();
    r46_transpose_permutes();
    return done();
}
