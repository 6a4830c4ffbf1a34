/* SPDX-License-Identifier: Apache-2.0 */
/* Which elements lie on which rank: proved by index-valued tensors for every family and a sample of
 * layouts, against the ranks' memory, and against numbers written down by hand. */
#include <pf/error.h>
#include <pf/placement.h>
#include <pf/rng.h>

#include "placed.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>

static const char *const folders[] = {
    "gpt2",    "llama",     "llama-tied",      "qwen2",       "qwen3",       "ernie4_5",
    "mixtral", "qwen3_moe", "qwen3_moe-mixed", "deepseek_v3", "ernie4_5_moe"};
#define N_FOLDERS (sizeof folders / sizeof folders[0])

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
            const int64_t index = index_of(row, &shard->box, k);
            if (index >= 0 && index < n) {
                seen[index]++;
            } else {
                faults++;
            }
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

/* Are the boxes of whole pieces a tiling, as the copy engine will ask? */
static int64_t faults_of_cover(const struct placed *p, int64_t i, const struct pf_shard_list *all)
{
    const struct pf_tensor_row *const row = &p->table->rows[i];
    struct pf_box whole = {.n_dims = row->n_dims}, *const boxes =
                                                       calloc((size_t)all->n + 1, sizeof *boxes);
    struct pf_cover cover = {.kind = PF_COVER_HOLE};
    int err = 1;

    for (int d = 0; d < row->n_dims; d++) {
        whole.hi[d] = row->shape[d];
    }
    for (int64_t s = 0; s < all->n && boxes; s++) {
        boxes[s] = all->items[s].box;
    }
    if (boxes) {
        err = pf_cover_check(&whole, boxes, (size_t)all->n, &cover);
    }
    free(boxes);
    return row->tied_to < 0 && (err != 0 || cover.kind != PF_COVER_EXACT);
}

/* Who needs an element, said by what it is for ---------------------------------------------------- */

/* Does a rank with these query heads look at key head g? */
static bool looks_at(const struct pf_model_spec *s, int64_t tp, int64_t t, int64_t g)
{
    for (int64_t h = 0; h < s->n_heads; h++) {
        if (h / (s->n_heads / tp) == t && h / (s->n_heads / s->n_kv_heads) == g) {
            return true;
        }
    }
    return false;
}

/* Is row (or column) x of what an output or input dimension counts tp rank t's? */
static bool computes(const struct pf_model_spec *s, enum pf_slot slot, int64_t tp, int64_t t,
                     int64_t x)
{
    const int64_t each = s->n_heads / tp, d = s->head_dim;
    const int64_t value = s->mla.kv_rank > 0 ? s->mla.v_dim : d;

    switch (slot) {
    case PF_SLOT_EMBED:
    case PF_SLOT_HEAD_W:
    case PF_SLOT_HEAD_B:
        return x / ((s->vocab_size + tp - 1) / tp) == t;
    case PF_SLOT_QKV_W:
    case PF_SLOT_QKV_B:
        return x % (s->n_heads * d) / d / each == t;
    case PF_SLOT_Q_W:
    case PF_SLOT_Q_B:
    case PF_SLOT_Q_B_W:
        return x / d / each == t;
    case PF_SLOT_K_W:
    case PF_SLOT_K_B:
    case PF_SLOT_V_W:
    case PF_SLOT_V_B:
        return looks_at(s, tp, t, x / d);
    case PF_SLOT_KV_B_W:
        return x / (s->mla.nope_dim + value) / each == t;
    case PF_SLOT_O_W:
        return x / value / each == t;
    case PF_SLOT_GATE_W:
    case PF_SLOT_GATE_B:
    case PF_SLOT_UP_W:
    case PF_SLOT_UP_B:
    case PF_SLOT_DOWN_W:
        return x / (s->ffn / tp) == t;
    case PF_SLOT_SHARED_GATE_W:
    case PF_SLOT_SHARED_GATE_B:
    case PF_SLOT_SHARED_UP_W:
    case PF_SLOT_SHARED_UP_B:
    case PF_SLOT_SHARED_DOWN_W:
        return x / (s->moe.expert_ffn * s->moe.n_shared_experts / tp) == t;
    default:
        return true;
    }
}

/* The dimension that is counted: of what writes into the residual stream the input's, else the
 * output's. */
static int counted_dim(const struct pf_tensor_row *row)
{
    const bool down = row->slot == PF_SLOT_O_W || row->slot == PF_SLOT_DOWN_W ||
                      row->slot == PF_SLOT_SHARED_DOWN_W;

    return row->n_dims == 2 && down != row->in_out;
}

/* Is layer l (or, before and behind, -1 and n_layers) at the stage? */
static bool has_layer(const struct placed *p, int stage, int64_t l)
{
    const int64_t *const starts = pf_placement_starts(p->place);
    const int n = p->par.degree[PF_AXIS_PP] * p->par.vpp;

    for (int c = 0; c < n; c++) {
        const bool mine = pf_parallel_stage_of(&p->par, c) == stage;
        const bool inside = (l >= starts[c] && l < starts[c + 1]) || (l < 0 && c == 0) ||
                            (l == p->spec.n_layers && c == n - 1);
        if (mine && inside) {
            return true;
        }
    }
    return false;
}

static bool stage_needs(const struct placed *p, const struct pf_tensor_row *row, int stage)
{
    const bool first = row->slot == PF_SLOT_EMBED || row->slot == PF_SLOT_POS_EMBED;

    if (row->layer >= 0) {
        return has_layer(p, stage, row->layer);
    }
    return has_layer(p, stage, first ? -1 : p->spec.n_layers) ||
           (row->slot == PF_SLOT_EMBED && p->spec.tied_head &&
            has_layer(p, stage, p->spec.n_layers));
}

/* Does a rank need element `index` of a row to compute? */
static bool needs(const struct placed *p, const struct pf_tensor_row *row, int rank, int64_t index)
{
    const int64_t x = row->n_dims == 1 || counted_dim(row) == 1
                          ? index % row->shape[row->n_dims - 1]
                          : index / row->shape[1];
    int at[PF_AXIS_COUNT];

    pf_mesh_coords(&p->mesh, rank, at);
    if (!stage_needs(p, row, at[PF_AXIS_PP])) {
        return false;
    }
    if (row->expert >= 0) {
        const int plane = at[PF_AXIS_SHARDING] * p->mesh.degree[PF_AXIS_TP] + at[PF_AXIS_TP];
        return row->expert / (p->spec.moe.n_experts / p->mesh.ep) == plane % p->mesh.ep;
    }
    return computes(&p->spec, row->slot, p->mesh.degree[PF_AXIS_TP], at[PF_AXIS_TP], x);
}

/* Which ranks form the group over which a row's state is cut: the same but for sharding, of experts
 * the same but for what divides the plane by ep. */
static int64_t group_of(const struct placed *p, const struct pf_tensor_row *row, int rank)
{
    int at[PF_AXIS_COUNT];
    pf_mesh_coords(&p->mesh, rank, at);
    const int tp = p->mesh.degree[PF_AXIS_TP];
    const int64_t plane = row->expert >= 0
                              ? (at[PF_AXIS_SHARDING] * tp + at[PF_AXIS_TP]) % p->mesh.ep
                              : at[PF_AXIS_TP];

    return ((at[PF_AXIS_DP] * 1000LL + at[PF_AXIS_PP]) * 1000 + at[PF_AXIS_CP]) * 1000 + plane;
}

/* Each rank holds what it needs; where the role is sliced, each group does together, once. */
static int64_t faults_of_need(const struct placed *p, int64_t i, enum pf_role role)
{
    const struct pf_tensor_row *const row = &p->table->rows[i];
    const bool sliced = pf_placement_is_sliced(p->place, role);
    const int64_t n = pf_tensor_row_count(row);
    const int world = pf_mesh_size(&p->mesh);
    int *const held = calloc((size_t)n, sizeof *held);
    int64_t faults = held ? 0 : 1;

    for (int rank = 0; rank < world && held && row->tied_to < 0; rank++) {
        bool first = true;
        for (int other = 0; other < world; other++) {
            struct pf_local_shard mine[PF_TABLE_MAX_BOXES];
            if (other != rank && (!sliced || group_of(p, row, other) != group_of(p, row, rank))) {
                continue;
            }
            first = other >= rank;
            if (!first) {
                break; /* the group was looked at before */
            }
            const int n_mine = pf_placement_local(p->place, i, role, other, mine);
            for (int s = 0; s < n_mine; s++) {
                for (int64_t k = mine[s].range_lo; k < mine[s].range_hi; k++) {
                    const int64_t index = index_of(row, &mine[s].box, k);
                    held[index >= 0 && index < n ? index : 0]++;
                }
            }
        }
        for (int64_t k = 0; k < n; k++) {
            faults += first && held[k] != (needs(p, row, rank, k) ? 1 : 0);
            held[k] = 0;
        }
    }
    free(held);
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
            faults += faults_of_need(p, i, roles[r]);
            if (!pf_placement_is_sliced(p->place, roles[r])) {
                faults += faults_of_cover(p, i, &all);
            }
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
    "tp=8",
    "tp=8,sharding=2,stage=3,bucket=2K",
    "tp=2,sharding=3,stage=2,bucket=1K",
    "tp=2,sharding=2,stage=3",
    "sharding=4,stage=1,whole_params=true",
    "tp=2,sharding=4,stage=0,dp=2",
    "pp=2,tp=2,sharding=2,segments=uniform,bucket=500B",
    "pp=3,sharding=2,stage=3,segments=uniform,order=pp_first",
    "pp=2,vpp=2,cp=2,sharding=2",
    "pp=2,vpp=2,dual=true,sharding=2,segments=0:1:3:4",
    "pp=2,sharding=5,whole_params=true,segments=uniform",
    "pp=4,first_layers=1,last_layers=1,cp=3",
    "tp=2,sharding=2,ep=4,stage=1", /* ep = sharding * tp: experts' state is not cut */
    "tp=2,sharding=2,ep=2,stage=3,cp=2",
    "tp=4,sharding=2,ep=2,stage=2,order=pp_first,pp=2",
    "sharding=4,ep=2,pp=2,whole_params=true",
};
#define N_LAYOUTS (sizeof layouts / sizeof layouts[0])

static int64_t faults_of_text(const struct pf_model_spec *spec, const char *text)
{
    const bool no_experts = strstr(text, "ep=") && spec->moe.n_experts == 0;
    struct placed p;
    const int err = place_spec(spec, text, &p);
    int64_t faults = no_experts ? err != PF_EINVAL : err != 0;

    faults += err ? 0 : faults_of_layout(&p);
    if (faults > 0) {
        printf("# %s: %lld faults %s\n", text, (long long)faults, err ? pf_error_message() : "");
    }
    release(&p);
    return faults;
}

static void every_view_of_every_family_is_exact(void)
{
    for (size_t f = 0; f < N_FOLDERS; f++) {
        const struct pf_model_spec spec = small(folders[f], f % 2 ? 2 : 4, 4);
        int64_t faults = 0;
        for (size_t l = 0; l < N_LAYOUTS; l++) {
            faults += faults_of_text(&spec, layouts[l]);
        }
        ok(faults == 0,
           "%s: in %d layouts pieces tile every tensor, ranks have what they need, and each "
           "element "
           "its own place in memory",
           folders[f], (int)N_LAYOUTS);
    }
}

/* Random options ---------------------------------------------------------------------------------- */

static uint64_t draws;

static int64_t pick(int64_t n)
{
    return (int64_t)pf_rng_bounded(20261130, 0, draws++, (uint64_t)n);
}

/* Can a model be cut so? Said again, from the model's side: every rank has the same whole heads, with
 * the key heads they need, the same columns, the same experts, the same layers. */
static bool is_possible(const struct pf_model_spec *s, const struct pf_parallel *par)
{
    const int64_t tp = par->degree[PF_AXIS_TP], plane = tp * par->degree[PF_AXIS_SHARDING];
    const int64_t kv = s->n_kv_heads, chunks = (int64_t)par->degree[PF_AXIS_PP] * par->vpp;
    int64_t n_moe = 0;

    for (int64_t i = 0; i < s->n_layers && s->moe.n_experts > 0; i++) {
        n_moe += s->moe.layer_is_moe[i];
    }
    const bool dense = n_moe<s->n_layers, shared = n_moe> 0 && s->moe.n_shared_experts > 0;
    return s->n_heads % tp == 0 && (s->mla.kv_rank > 0 || kv % tp == 0 || tp % kv == 0) &&
           (!dense || s->ffn % tp == 0) &&
           (!shared || s->moe.expert_ffn * s->moe.n_shared_experts % tp == 0) &&
           plane % par->ep == 0 && (par->ep == 1 || n_moe > 0) &&
           (par->ep == 1 || s->moe.n_experts % par->ep == 0) &&
           (par->vpp == 1 || par->degree[PF_AXIS_PP] > 1) &&
           (par->segments[0] ? par->vpp == 1 : s->n_layers % chunks == 0) &&
           (!par->whole_params || par->stage == 1 || par->stage == 2);
}

static void draw_model(struct pf_model_spec *s)
{
    const char *const folder = folders[pick((int64_t)N_FOLDERS)];
    const int64_t kv_heads = (int64_t)1 << pick(4);
    const int64_t layers = 1 + pick(6), quarters = 1 + pick(8), halves = 1 + pick(2);

    *s = small(folder, kv_heads, layers);
    s->vocab_size = 1 + pick(20);
    s->ffn = 4 * quarters / halves;
    s->tied_head = pick(2);
    if (s->moe.n_experts > 0) {
        s->moe.n_experts = 4 + 2 * pick(3);
        s->moe.expert_ffn = 1 + pick(8);
        s->moe.layer_is_moe[0] = (uint8_t)pick(2);
    }
}

static void draw_options(struct pf_parallel *par)
{
    pf_parallel_init(par);
    par->degree[PF_AXIS_DP] = 1 + (int)pick(2);
    par->degree[PF_AXIS_SHARDING] = 1 + (int)pick(5);
    par->degree[PF_AXIS_PP] = 1 + (int)pick(3);
    par->degree[PF_AXIS_CP] = 1 + (int)(pick(4) == 0);
    par->degree[PF_AXIS_TP] = (int)(pick(4) ? 1 << pick(4) : 1 + pick(8));
    par->vpp = 1 + (int)(pick(3) ? 0 : pick(3));
    par->ep = (int)(pick(2) ? 1 : 1 + pick(8));
    par->stage = (int)pick(4);
    par->pp_first = pick(2);
    par->whole_params = pick(4) == 0;
    par->bucket_bytes = 64 << pick(8);
    snprintf(par->segments, sizeof par->segments, "%s", pick(3) ? "" : "uniform");
}

/* Options that make at most so many ranks; where they are possible the layout is exact. */
static void check_drawn(int64_t *n_possible, int64_t *n_wrong)
{
    struct placed p = {0};

    draw_model(&p.spec);
    do {
        draw_options(&p.par);
    } while (p.par.degree[0] * p.par.degree[1] * p.par.degree[2] * p.par.degree[3] *
                 p.par.degree[4] >
             64);
    const bool possible = is_possible(&p.spec, &p.par);
    const struct pf_parallel drawn = p.par;
    int err = pf_parallel_resolve(&p.par, &p.spec, 0, &p.mesh);
    if (err && possible && strstr(pf_error_message(), "leaves chunk")) {
        return; /* more chunks than layers */
    }
    if (!err) {
        err = pf_table_new(&p.spec, &p.mesh, &p.table);
    }
    if (!err) {
        err = pf_placement_new(p.table, &p.par, &p.place);
    }
    const int64_t faults = (err == 0) != possible ? 1 : err ? 0 : faults_of_layout(&p);
    if (faults > 0) {
        struct pf_str text;
        pf_str_init(&text);
        pf_parallel_print(&drawn, &text);
        printf("# %s, %lld layers, %lld key heads: %s: %lld faults %s\n",
               pf_family_name(p.spec.family), (long long)p.spec.n_layers,
               (long long)p.spec.n_kv_heads, text.text, (long long)faults,
               err ? pf_error_message() : "");
        pf_str_release(&text);
    }
    *n_wrong += faults > 0;
    *n_possible += possible;
    release(&p);
}

static void drawn_layouts_are_exact_or_refused(void)
{
    int64_t n_possible = 0, n_wrong = 0;

    for (int i = 0; i < 400; i++) {
        check_drawn(&n_possible, &n_wrong);
    }
    ok(n_wrong == 0 && n_possible > 50,
       "of 400 models and layouts drawn at random %lld are possible, and exact; the others are "
       "refused",
       (long long)n_possible);
}

int main(void)
{
    every_view_of_every_family_is_exact();
    drawn_layouts_are_exact_or_refused();
    return done();
}
