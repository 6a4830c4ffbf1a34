/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/dist.h>

#include <pf/error.h>

#include <stdbool.h>

static int check(const struct pf_dist *dist, int n_dims)
{
    if (dist->n_mesh < 0 || dist->n_mesh > PF_DIST_MAX_MESH || n_dims < 0 ||
        n_dims > PF_BOX_MAX_DIMS) {
        return pf_fail(PF_EINVAL, "a mesh of %d dimensions and a tensor of %d", dist->n_mesh,
                       n_dims);
    }
    for (int i = 0; i < dist->n_mesh; i++) {
        if (dist->mesh[i] < 1 || dist->place[i] < PF_DIST_PARTIAL || dist->place[i] >= n_dims) {
            return pf_fail(
                PF_EINVAL,
                "mesh dimension %d of %d ranks cannot cut dimension %d of a tensor of %d", i,
                dist->mesh[i], dist->place[i], n_dims);
        }
    }
    return 0;
}

/* Part t of m of [lo, hi): the first ones have one more. */
static void cut(int64_t *lo, int64_t *hi, int64_t m, int64_t t)
{
    const int64_t n = *hi - *lo, each = n / m, more = n % m;

    *lo += t * each + (t < more ? t : more);
    *hi = *lo + each + (t < more);
}

int pf_dist_local(const struct pf_dist *dist, int n_dims, const int64_t *shape, const int *coord,
                  struct pf_box *box_out)
{
    struct pf_box box = {.n_dims = n_dims};

    PF_TRY(check(dist, n_dims));
    for (int d = 0; d < n_dims; d++) {
        box.hi[d] = shape[d];
    }
    for (int i = 0; i < dist->n_mesh; i++) {
        const int d = dist->place[i];
        if (coord[i] < 0 || coord[i] >= dist->mesh[i]) {
            return pf_fail(PF_EINVAL, "coordinate %d is outside mesh dimension %d of %d ranks",
                           coord[i], i, dist->mesh[i]);
        }
        if (d >= 0) {
            cut(&box.lo[d], &box.hi[d], dist->mesh[i], coord[i]);
        }
    }
    return pf_box_init(box_out, n_dims, box.lo, box.hi);
}

static bool multiply(int n, const int64_t *shape, int64_t *product_out)
{
    *product_out = 1;
    for (int d = 0; d < n; d++) {
        if (shape[d] < 1 || __builtin_mul_overflow(*product_out, shape[d], product_out)) {
            return false;
        }
    }
    return true;
}

/* The new dimension whose group begins with dimension d of the old shape, or -1: d does not lead. Groups
 * are the shortest runs of old and new dimensions with equal products; ones belong to no run. */
static int leads(int d, int n_in, const int64_t *in, int n_out, const int64_t *out)
{
    int i = 0, j = 0;

    while (i < n_in && j < n_out) {
        if (in[i] == 1 && i != d) {
            i++;
            continue;
        }
        if (out[j] == 1) {
            j++;
            continue;
        }
        const int first = i, to = j;
        int64_t a = in[i++], b = out[j++];
        while (a != b) { /* both end together, as the products of all are equal */
            if (a < b) {
                a *= in[i++];
            } else {
                b *= out[j++];
            }
        }
        if (d >= first && d < i) {
            return d == first ? to : -1;
        }
    }
    return -1;
}

/* How many parts all mesh dimensions together make of a tensor dimension. */
static int64_t parts_of(const struct pf_dist *dist, int d)
{
    int64_t parts = 1;

    for (int i = 0; i < dist->n_mesh; i++) {
        parts *= dist->place[i] == d ? dist->mesh[i] : 1;
    }
    return parts;
}

int pf_dist_reshape(struct pf_dist *in_out, int n_in, const int64_t *shape_in, int n_out,
                    const int64_t *shape_out, struct pf_dist *result_out)
{
    struct pf_dist in = *in_out, result = *in_out;
    int64_t a, b;

    PF_TRY(check(&in, n_in));
    if (n_out < 0 || n_out > PF_BOX_MAX_DIMS || !multiply(n_in, shape_in, &a) ||
        !multiply(n_out, shape_out, &b) || a != b) {
        return pf_fail(PF_EINVAL, "a tensor cannot take a shape of another number of elements");
    }
    for (int i = 0; i < in.n_mesh; i++) {
        const int d = in.place[i];
        if (d < 0) {
            continue;
        }
        const int to = leads(d, n_in, shape_in, n_out, shape_out);
        const int64_t parts = parts_of(in_out, d);
        if (to >= 0 && shape_in[d] % parts == 0 && shape_out[to] % parts == 0) {
            result.place[i] = to;
        } else {
            in.place[i] = result.place[i] = PF_DIST_REPLICATE;
        }
    }
    *in_out = in;
    *result_out = result;
    return 0;
}

int pf_dist_transpose(const struct pf_dist *in, int n_dims, const int *perm,
                      struct pf_dist *result_out)
{
    int to[PF_BOX_MAX_DIMS];
    struct pf_dist result = *in;

    PF_TRY(check(in, n_dims));
    for (int d = 0; d < n_dims; d++) {
        to[d] = -1;
    }
    for (int d = 0; d < n_dims; d++) {
        if (perm[d] < 0 || perm[d] >= n_dims || to[perm[d]] >= 0) {
            return pf_fail(PF_EINVAL, "dimension %d of a permutation of %d is wrong", d, n_dims);
        }
        to[perm[d]] = d;
    }
    for (int i = 0; i < in->n_mesh; i++) {
        result.place[i] = in->place[i] >= 0 ? to[in->place[i]] : in->place[i];
    }
    *result_out = result;
    return 0;
}

/* Of x: 0 is m, 1 is k. Of y: 0 is k, 1 is n. One mesh dimension. */
static int matmul_along(int *x, int *y)
{
    if (*x == PF_DIST_PARTIAL && *y != PF_DIST_REPLICATE) {
        *(*y == PF_DIST_PARTIAL ? y : x) = PF_DIST_REPLICATE;
    } else if (*y == PF_DIST_PARTIAL && *x >= 0) {
        *y = PF_DIST_REPLICATE;
    }
    if (*x == PF_DIST_PARTIAL || *y == PF_DIST_PARTIAL) {
        return PF_DIST_PARTIAL;
    }
    if (*x == 1 || (*x == PF_DIST_REPLICATE && *y == 0)) {
        *x = 1;
        *y = 0;
        return PF_DIST_PARTIAL;
    }
    if (*x == 0) {
        *y = PF_DIST_REPLICATE;
        return 0;
    }
    return *y; /* n cut, or both copied */
}

int pf_dist_matmul(struct pf_dist *x_in_out, struct pf_dist *y_in_out, struct pf_dist *result_out)
{
    struct pf_dist x = *x_in_out, y = *y_in_out, result = *x_in_out;

    PF_TRY(check(&x, 2));
    PF_TRY(check(&y, 2));
    for (int i = 0; i < x.n_mesh; i++) {
        if (y.n_mesh != x.n_mesh || y.mesh[i] != x.mesh[i]) {
            return pf_fail(PF_EINVAL, "the operands of a product lie on two meshes");
        }
        result.place[i] = matmul_along(&x.place[i], &y.place[i]);
    }
    *x_in_out = x;
    *y_in_out = y;
    *result_out = result;
    return 0;
}
