/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dist.h - a tensor over a mesh of several dimensions, as automatic parallelism speaks of it: along each
 * dimension of the mesh the tensor is cut, copied, or a sum yet to be formed; and what reshaping,
 * transposing and multiplying do to that.
 *
 * A tensor dimension that several mesh dimensions cut is cut by the first of them, each part then by the
 * next. n elements in m parts: the first n mod m parts have one more. So what a rank holds depends on the
 * sizes of the mesh alone, and reordering its ranks moves no data.
 *
 *     struct pf_dist x = {2, {2, 4}, {0, PF_DIST_REPLICATE}};    rows cut in two, copied four times
 *     struct pf_box mine;
 *     PF_TRY(pf_dist_local(&x, 2, (int64_t[]){10, 6}, (int[]){1, 3}, &mine));        [5,10) x [0,6)
 *
 * Rules give the placement of the result, and that which the operands must have first: where an operand's
 * differs from what it was, it is gathered (cut to copied), sliced (copied to cut) or summed (partial to
 * copied).
 *
 * Plain values, nothing allocates, all functions local.
 * Source: PaddlePaddle documentation of Shard, Replicate, Partial and its SPMD rules.
 */
#ifndef PF_DIST_H
#define PF_DIST_H

#include <pf/box.h>

#include <stdint.h>

#define PF_DIST_MAX_MESH 6

enum { PF_DIST_REPLICATE = -1, PF_DIST_PARTIAL = -2 };

struct pf_dist {
    int n_mesh;
    int mesh[PF_DIST_MAX_MESH];
    int place
        [PF_DIST_MAX_MESH]; /* tensor dimension that this mesh dimension cuts, or one of the above */
};

/* What the rank at these coordinates of the mesh holds. PF_EINVAL: a dimension that the tensor does not
 * have, a coordinate outside the mesh, too many dimensions. The box may be empty. */
int pf_dist_local(const struct pf_dist *dist, int n_dims, const int64_t *shape, const int *coord,
                  struct pf_box *box_out);

/*
 * Reshape [shape_in] to [shape_out], row-major. A cut stays where the dimension that is cut leads the
 * dimensions that become one group of new ones: it then cuts the group's first new dimension. It needs
 * equal parts on both sides; otherwise the tensor is gathered along that mesh dimension. Partial stays.
 * in_out is changed to what the operand must be. PF_EINVAL: the numbers of elements differ.
 */
int pf_dist_reshape(struct pf_dist *in_out, int n_in, const int64_t *shape_in, int n_out,
                    const int64_t *shape_out, struct pf_dist *result_out);

/* Dimension d of the result is dimension perm[d] of the operand. PF_EINVAL: perm is no permutation. */
int pf_dist_transpose(const struct pf_dist *in, int n_dims, const int *perm,
                      struct pf_dist *result_out);

/*
 * [m, k] times [k, n]. Along each mesh dimension: m cut and the other copied gives m cut, n likewise; k cut
 * on both, or on one while the other is copied (it is sliced), gives a partial sum; a partial operand and a
 * copied one give a partial sum. Two cuts that contradict each other: the first operand keeps its own, the
 * second is gathered. Two partial ones: the second is summed; a partial and a cut one: the partial is.
 * PF_EINVAL: meshes differ, or a placement is of a dimension beyond the second.
 */
int pf_dist_matmul(struct pf_dist *x_in_out, struct pf_dist *y_in_out, struct pf_dist *result_out);

#endif
