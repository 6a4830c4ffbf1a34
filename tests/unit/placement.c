/* SPDX-License-Identifier: Apache-2.0 */
/* Which elements lie on which rank: proved by index-valued tensors for every family and a sample of
 * layouts, against the ranks' memory, and against numbers written down by hand. */
#include <pf/error.h>
#include <pf/mem.h>
#include <pf/placement.h>

#include "model_fixture.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>

static const char *const folders[] = {
    "gpt2",    "llama",     "llama-tied",      "qwen2",       "qwen3",       "ernie4_5",
    "mixtral", "qwen3_moe", "qwen3_moe-mixed", "deepseek_v3", "ernie4_5_moe"};
#define N_FOLDERS (sizeof folders / sizeof folders[0])

/* A model in a layout. */
struct placed {
    struct pf_model_spec spec;
    struct pf_parallel par;
    struct pf_mesh mesh;
    struct pf_table *table;
    struct pf_placement *place;
};

static int place_spec(const struct pf_model_spec *spec, const char *layout, struct placed *p)
{
    memset(p, 0, sizeof *p);
    p->spec = *spec;
    PF_TRY(pf_parallel_parse(layout, &p->par));
    PF_TRY(pf_parallel_resolve(&p->par, spec, 0, &p->mesh));
    PF_TRY(pf_table_new(spec, &p->mesh, &p->table));
    return pf_placement_new(p->table, &p->par, &p->place);
}

static void release(struct placed *p)
{
    pf_placement_free(p->place);
    pf_table_free(p->table);
    p->place = NULL;
    p->table = NULL;
}

/* Index-valued tensors ------------------------------------------------------------------------- */

/* The linear index in the tensor of element k of a box, row-major in both. */
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

/* How often do the distinct pieces hold each element? Anything but once is a fault. */
static int64_t faults_of_union(const struct placed *p, int64_t i, const struct pf_shard_list *all)
{
    const struct pf_tensor_row *const row = &p->table->rows[i];
    const int64_t n = pf_tensor_row_count(row);
    unsigned char *const seen = calloc((size_t)n, 1);
    int64_t faults = seen ? 0 : 1;

    for (int64_t s = 0; s < all->n && seen; s++) {
        const struct pf_shard *const shard = &all->items[s];
        faults += shard->range_lo >= shard->range_hi || shard->range_lo < 0 ||
                  shard->range_hi > pf_box_count(&shard->box);
        for (int64_t k = shard->range_lo; k < shard->range_hi; k++) {
            seen[index_of(row, &shard->box, k)]++;
        }
    }
    for (int64_t k = 0; k < n && seen; k++) {
        faults += seen[k] != (row->tied_to < 0);
    }
    free(seen);
    return faults;
}

static bool same_piece(const struct pf_shard *a, const struct pf_local_shard *b)
{
    bool same = a->range_lo == b->range_lo && a->range_hi == b->range_hi;

    for (int d = 0; d < a->box.n_dims; d++) {
        same = same && a->box.lo[d] == b->box.lo[d] && a->box.hi[d] == b->box.hi[d];
    }
    return same;
}

/* What each rank says that it has, against whom the pieces say that they lie on. */
static int64_t faults_of_holders(const struct placed *p, int64_t i, enum pf_role role,
                                 const struct pf_shard_list *all)
{
    const int world = pf_mesh_size(&p->mesh);
    int64_t faults = 0, n_held = 0, n_counted = 0;

    for (int rank = 0; rank < world; rank++) {
        struct pf_local_shard mine[PF_TABLE_MAX_BOXES];
        const int n = pf_placement_local(p->place, i, role, rank, mine);
        for (int k = 0; k < n; k++) {
            int64_t found = 0;
            for (int64_t s = 0; s < all->n; s++) {
                found += same_piece(&all->items[s], &mine[k]) &&
                         pf_rank_set_has(&p->mesh, &all->items[s].holders, rank);
            }
            faults += found != 1;
        }
        n_held += n;
    }
    for (int64_t s = 0; s < all->n; s++) {
        const struct pf_rank_set *const set = &all->items[s].holders;
        const int64_t n = pf_rank_set_count(&p->mesh, set);
        n_counted += n;
        for (int64_t k = 0; k < n; k++) {
            const int rank = pf_rank_set_at(&p->mesh, set, k);
            faults +=
                !pf_rank_set_has(&p->mesh, set, rank) || rank < pf_rank_set_at(&p->mesh, set, 0);
        }
    }
    return faults + (n_held != n_counted);
}

/* A value that says which element of which tensor it is. */
static int64_t value_of(int64_t row, int64_t index)
{
    return (row << 32) + index + 1;
}

/* Fill a rank's buffer, then read it back: every element is where it was put, inside the buffer, and
 * on nobody else's place. */
static int64_t faults_of_memory(const struct placed *p, enum pf_role role, int rank)
{
    const int64_t n = pf_placement_buffer(p->place, role, rank);
    int64_t *const memory = calloc((size_t)n + 1, sizeof *memory), faults = memory ? 0 : 1;

    for (int pass = 0; pass < 2 && memory; pass++) {
        for (int64_t i = 0; i < p->table->n_rows; i++) {
            struct pf_local_shard mine[PF_TABLE_MAX_BOXES];
            const int n_mine = pf_placement_local(p->place, i, role, rank, mine);
            for (int s = 0; s < n_mine; s++) {
                const int64_t length = mine[s].range_hi - mine[s].range_lo;
                if (mine[s].at < 0 || mine[s].at + length > n) {
                    faults++;
                    continue;
                }
                for (int64_t k = 0; k < length; k++) {
                    int64_t *const cell = &memory[mine[s].at + k];
                    const int64_t value = value_of(
                        i, index_of(&p->table->rows[i], &mine[s].box, mine[s].range_lo + k));
                    faults += pass == 0 ? *cell != 0 : *cell != value;
                    *cell = value;
                }
            }
        }
    }
    free(memory);
    return faults;
}

static int64_t faults_of_layout(const struct placed *p)
{
    static const enum pf_role roles[] = {PF_ROLE_WEIGHT, PF_ROLE_MOMENT1};
    struct pf_shard_list all = {0};
    int64_t faults = 0;

    for (int r = 0; r < 2; r++) {
        for (int64_t i = 0; i < p->table->n_rows; i++) {
            faults += pf_placement_shards(p->place, i, roles[r], &all) != 0;
            faults += faults_of_union(p, i, &all);
            faults += faults_of_holders(p, i, roles[r], &all);
        }
        for (int rank = 0; rank < pf_mesh_size(&p->mesh); rank++) {
            faults += faults_of_memory(p, roles[r], rank);
        }
    }
    pf_shard_list_release(&all);
    return faults;
}

static const char *const layouts[] = {
    "tp=1",
    "tp=2,dp=2",
    "tp=4,sharding=2",
    "tp=2,sharding=3,stage=2,bucket=4K",
    "tp=2,sharding=2,stage=3",
    "sharding=4,stage=1,whole_params=true",
    "pp=2,tp=2,sharding=2,segments=uniform,bucket=1K",
    "pp=3,sharding=2,stage=3,segments=uniform,order=pp_first",
    "pp=2,vpp=2,cp=2,sharding=2",
    "pp=2,vpp=2,dual=true,sharding=2,segments=0:1:3:4",
    "pp=2,sharding=5,whole_params=true,segments=uniform",
    "tp=2,sharding=2,ep=4,stage=1",
    "tp=2,sharding=2,ep=2,stage=3,cp=2",
    "sharding=4,ep=2,pp=2,whole_params=true",
};
#define N_LAYOUTS (sizeof layouts / sizeof layouts[0])

static void layouts_are_exact(void)
{
    for (size_t f = 0; f < N_FOLDERS; f++) {
        struct pf_model_spec spec = fixture_spec(folders[f], "config.json");
        int64_t faults = 0;
        spec.n_layers = 4;
        spec.moe.layer_is_moe[3] = spec.moe.n_experts > 0;
        for (size_t l = 0; l < N_LAYOUTS; l++) {
            struct placed p;
            const bool no_experts = strstr(layouts[l], "ep=") && spec.moe.n_experts == 0;
            const int err = place_spec(&spec, layouts[l], &p);
            if (no_experts) {
                faults += err != PF_EINVAL;
            } else if (err != 0) {
                printf("# %s: %s\n", layouts[l], pf_error_message());
                faults++;
            } else {
                const int64_t more = faults_of_layout(&p);
                if (more > 0) {
                    printf("# %s: %lld faults\n", layouts[l], (long long)more);
                }
                faults += more;
            }
            release(&p);
        }
        ok(faults == 0,
           "%s: in %d layouts every element lies once among distinct pieces, and in "
           "each rank's memory where it is read",
           folders[f], (int)N_LAYOUTS);
    }
}

int main(void)
{
    layouts_are_exact();
    return done();
}
