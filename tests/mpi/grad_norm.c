/* SPDX-License-Identifier: Apache-2.0 */
/* ranks: 1 4 8 */
/*
 * SYSTEMS row 29: the sum of squares of a gradient over layouts is to the bit that of a single
 * process. Gradients are made from the index of an element in its tensor; what is padding, or another
 * kind's, is NaN, so that counting it shows. One process plays all ranks of many layouts; several do
 * the layouts of their number, with real reductions.
 */
#include <pf/error.h>
#include <pf/grad_norm.h>
#include <pf/mem.h>

#include <math.h>
#include <string.h>

#include "placed.h"
#include "world.h"

static int size;

/* The gradient of element `index` of row i: magnitudes that a float sum would mix up. */
static float value_of(int64_t i, int64_t index)
{
    const uint32_t x = (uint32_t)(i * 7919 + index) * 2654435761u;

    return ldexpf((float)(int32_t)x, (int)(x >> 8) % 40 - 50);
}

static int64_t index_of(const struct pf_tensor_row *row, const struct pf_box *box, int64_t k)
{
    int64_t index = 0, stride = 1;

    for (int d = row->n_dims - 1; d >= 0; d--) {
        const int64_t extent = box->hi[d] - box->lo[d];
        index += (box->lo[d] + k % extent) * stride;
        k /= extent;
        stride *= row->shape[d];
    }
    return index;
}

/* The single process: every element of every trained tensor once. */
static struct pf_exactsum whole_sum(const struct pf_table *table)
{
    struct pf_exactsum sum;

    pf_exactsum_init(&sum);
    for (int64_t i = 0; i < table->n_rows; i++) {
        const struct pf_tensor_row *const row = &table->rows[i];
        for (int64_t k = 0; k < pf_tensor_row_count(row) && row->tied_to < 0 && !row->frozen; k++) {
            const float x = value_of(i, k);
            pf_exactsum_add_squares_f32(&sum, &x, 1);
        }
    }
    pf_exactsum_normalise(&sum);
    return sum;
}

/* A rank's gradient buffer. */
static float *gradient_of(const struct placed *p, enum pf_role role, int r)
{
    const int64_t n = pf_placement_buffer(p->place, role, r);
    float *const grads = pf_calloc_array((size_t)n + 1, sizeof *grads);

    for (int64_t k = 0; grads && k < n; k++) {
        grads[k] = NAN;
    }
    for (int64_t i = 0; grads && i < p->table->n_rows; i++) {
        struct pf_local_shard local[PF_TABLE_MAX_BOXES];
        const int n_local = pf_placement_local(p->place, i, role, r, local);
        for (int s = 0; s < n_local; s++) {
            for (int64_t k = local[s].range_lo; k < local[s].range_hi; k++) {
                grads[local[s].at + k - local[s].range_lo] =
                    value_of(i, index_of(&p->table->rows[i], &local[s].box, k));
            }
        }
    }
    return grads;
}

static bool same_sum(struct pf_exactsum a, const struct pf_exactsum *b)
{
    pf_exactsum_normalise(&a);
    a.n_pending = b->n_pending;
    return memcmp(&a, b, sizeof a) == 0;
}

/* All ranks of a layout, one after the other; split: those of each replica by themselves. */
static bool played_ranks_agree(const struct placed *p, enum pf_role role, bool split,
                               const struct pf_exactsum *want)
{
    const int n_copies = split ? p->mesh.degree[PF_AXIS_DP] * p->mesh.degree[PF_AXIS_CP] : 1;
    struct pf_exactsum sums[8];
    bool holds = true;

    for (int i = 0; i < n_copies; i++) {
        pf_exactsum_init(&sums[i]);
    }
    for (int r = 0; r < pf_mesh_size(&p->mesh) && holds; r++) {
        struct pf_grad_norm *norm = NULL;
        float *const grads = gradient_of(p, role, r);
        struct pf_exactsum sum;
        int at[PF_AXIS_COUNT];
        pf_mesh_coords(&p->mesh, r, at);
        holds = grads && pf_grad_norm_new(p->place, role, r, split, &norm) == 0;
        if (holds) {
            pf_grad_norm_local(norm, grads, 1, &sum);
            pf_exactsum_merge(
                &sums[split ? at[PF_AXIS_DP] * p->mesh.degree[PF_AXIS_CP] + at[PF_AXIS_CP] : 0],
                &sum);
        }
        pf_grad_norm_free(norm);
        pf_free(grads);
    }
    for (int i = 0; i < n_copies; i++) {
        holds = same_sum(sums[i], want) && holds;
    }
    return holds;
}

static bool real_ranks_agree(const struct placed *p, enum pf_role role, bool split,
                             const struct pf_exactsum *want)
{
    struct pf_groups groups;
    struct pf_grad_norm *norm = NULL;
    struct pf_exactsum sum;
    float *const grads = gradient_of(p, role, rank);

    const bool holds = pf_groups_new(world, &p->mesh, &groups) == 0 && grads &&
                       pf_grad_norm_new(p->place, role, rank, split, &norm) == 0 &&
                       pf_grad_norm_sum(norm, &groups, grads, 1, &sum) == 0 && same_sum(sum, want);
    pf_grad_norm_free(norm);
    pf_free(grads);
    return holds;
}

static bool check(const char *folder, int64_t kv_heads, const char *layout, bool real)
{
    const struct pf_model_spec spec = small(folder, kv_heads, 4);
    struct placed p;
    bool holds = true;

    if (place_spec(&spec, layout, &p) != 0) {
        return false;
    }
    p.table->rows[2].frozen = true;
    const struct pf_exactsum want = whole_sum(p.table);
    for (int split = 0; split < 2; split++) {
        for (int sliced = 0; sliced < 2; sliced++) {
            const enum pf_role role = sliced ? PF_ROLE_MOMENT1 : PF_ROLE_WEIGHT;
            const bool right = real ? real_ranks_agree(&p, role, split, &want)
                                    : played_ranks_agree(&p, role, split, &want);
            if (!right) {
                pf_fail(PF_EDIFFER, "%s, %s, role %d, split %d", folder, layout, (int)role, split);
            }
            holds = right && holds;
        }
    }
    release(&p);
    return holds;
}

static const char *const dense[] = {"gpt2", "llama-tied", "qwen2"};
static const char *const moe[] = {"mixtral", "qwen3_moe", "qwen3_moe-mixed", "deepseek_v3",
                                  "ernie4_5_moe"};

static void r29_played(void)
{
    static const char *const layouts[] = {"tp=1",
                                          "dp=3",
                                          "tp=2",
                                          "tp=8",
                                          "tp=4,dp=2",
                                          "pp=4",
                                          "pp=2,vpp=2,tp=2",
                                          "pp=2,tp=4,dp=2",
                                          "sharding=2,stage=1",
                                          "sharding=4,stage=2,tp=2,dp=2",
                                          "sharding=2,stage=3,pp=2,cp=2",
                                          "sharding=3,stage=1,whole_params=true",
                                          "pp=2,tp=2,sharding=2,stage=1,order=pp_first"};
    static const char *const expert_layouts[] = {"ep=2,sharding=2",
                                                 "ep=4,tp=2,sharding=2,stage=1",
                                                 "ep=2,tp=2,sharding=2,stage=3,pp=2",
                                                 "ep=2,sharding=4,stage=2,dp=2",
                                                 "ep=8,sharding=8,stage=1,whole_params=true",
                                                 "ep=2,tp=2,dp=2,pp=2"};
    bool holds = true, experts = true;

    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        for (size_t f = 0; f < sizeof dense / sizeof dense[0]; f++) {
            holds = check(dense[f], 2, layouts[i], false) && holds;
        }
        experts = check(moe[i % 5], 8, layouts[i], false) && experts;
    }
    all_ok(holds, "r29_dense: every element once, in 13 layouts of 3 families");
    for (size_t i = 0; i < sizeof expert_layouts / sizeof expert_layouts[0]; i++) {
        for (size_t f = 0; f < sizeof moe / sizeof moe[0]; f++) {
            experts = check(moe[f], 8, expert_layouts[i], false) && experts;
        }
    }
    all_ok(experts, "r29_experts: the same in 6 layouts of experts and 5 families");
}

static void r29_real(void)
{
    static const char *const of4[] = {"tp=4",      "pp=4",
                                      "tp=2,pp=2", "dp=2,sharding=2,stage=1",
                                      "tp=2,cp=2", "ep=2,sharding=4,stage=1"};
    static const char *const of8[] = {"tp=2,pp=2,sharding=2,stage=2", "tp=2,pp=4", "tp=8",
                                      "ep=4,tp=2,sharding=2,stage=1,pp=2",
                                      "dp=2,cp=2,sharding=2,stage=3"};
    const char *const *const layouts = size == 4 ? of4 : of8;
    const size_t n = size == 4 ? sizeof of4 / sizeof of4[0] : sizeof of8 / sizeof of8[0];
    bool holds = true;

    for (size_t i = 0; i < n; i++) {
        if (!strstr(layouts[i], "ep=")) {
            holds = check("llama-tied", 2, layouts[i], true) && holds;
        }
        holds = check("qwen3_moe-mixed", 8, layouts[i], true) && holds;
    }
    all_ok(holds, "r29_reduced: the sum over real ranks is that of one process");
}

int main(int argc, char **argv)
{
    world_begin(argc, argv);
    size = pf_comm_size(world);
    if (size == 1) {
        r29_played();
    } else {
        r29_real();
    }
    return world_end();
}
