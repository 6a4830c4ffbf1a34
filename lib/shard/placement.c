/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/placement.h>

#include <pf/error.h>
#include <pf/mem.h>

#include "shard_internal.h"

#include <string.h>

/* Making --------------------------------------------------------------------------------------- */

int shard_n_slices(const struct pf_placement *place, int kind)
{
    return kind == SHARD_PLAIN ? place->n_slices : place->n_expert_slices;
}

static int row_kind(const struct pf_table *table, const struct pf_tensor_row *row)
{
    if (row->expert >= 0) {
        return SHARD_EXPERTS_0 +
               (int)(row->expert * (int64_t)table->mesh.ep / table->spec.moe.n_experts);
    }
    for (int d = 0; d < row->n_dims; d++) {
        if (row->cut[d].view == PF_CUT_EXPERTS) {
            return SHARD_FUSED_EXPERTS;
        }
    }
    return SHARD_PLAIN;
}

/* The chunk of a layer; of what is outside the layers the first or the last. */
static int row_chunk(const struct pf_placement *place, const struct pf_tensor_row *row)
{
    int lo = 0, hi = place->n_chunks - 1;

    if (row->layer < 0) {
        return row->slot == PF_SLOT_EMBED || row->slot == PF_SLOT_POS_EMBED ? lo : hi;
    }
    while (lo < hi) { /* the last that does not start behind it */
        const int mid = (lo + hi + 1) / 2;
        if (place->starts[mid] <= row->layer) {
            lo = mid;
        } else {
            hi = mid - 1;
        }
    }
    return lo;
}

/* Ranks must have parts of one size, or buckets would be cut in different places. */
static int check_cut(const struct pf_table *table, const struct pf_tensor_row *row, int d)
{
    const struct pf_cut *const cut = &row->cut[d];
    const bool experts = cut->view == PF_CUT_EXPERTS, expert_row = row_kind(table, row) > 0;
    const int64_t degree = experts ? table->mesh.ep : table->mesh.degree[PF_AXIS_TP];
    const int64_t unit = cut->unit > 0 ? cut->unit : 1, n = row->shape[d] / unit;
    int64_t blocks = n;

    if (cut->view == PF_CUT_NONE || degree == 1 || (cut->view == PF_CUT_VOCAB && d == 0)) {
        return 0;
    }
    if (cut->view == PF_CUT_VOCAB || (!experts && (expert_row || cut->axis != PF_AXIS_TP))) {
        return pf_fail(PF_EINVAL, "dimension %d of '%s' cannot be cut so", d, row->name);
    }
    if (cut->view == PF_CUT_QKV || cut->view == PF_CUT_QKV_GROUPS) {
        blocks = cut->n_q_heads;
    } else if (cut->view == PF_CUT_GATE_UP) {
        blocks = n / 2;
    } else if (cut->view == PF_CUT_KV_HEADS && degree % n == 0) {
        return 0;
    }
    if (n * unit != row->shape[d] || blocks % degree != 0) {
        return pf_fail(PF_EINVAL, "%s=%lld does not divide the %lld parts of dimension %d of '%s'",
                       experts ? "ep" : "tp", (long long)degree, (long long)blocks, d, row->name);
    }
    return 0;
}

static int fill_rows(struct pf_placement *place)
{
    const struct pf_table *const table = place->table;

    for (int64_t i = 0; i < table->n_rows; i++) {
        const struct pf_tensor_row *const row = &table->rows[i];
        struct shard_row_place *const at = &place->rows[i];
        for (int d = 0; d < row->n_dims; d++) {
            PF_TRY(check_cut(table, row, d));
        }
        at->chunk = row_chunk(place, row);
        at->stage = pf_parallel_stage_of(&place->par, at->chunk);
        at->kind = row_kind(table, row);
    }
    return 0;
}

/* Are options and mesh those that resolving them gives? */
static int check_resolved(const struct pf_table *table, const struct pf_parallel *par)
{
    struct pf_parallel again = *par;
    struct pf_mesh mesh;

    PF_TRY(pf_parallel_resolve(&again, &table->spec, pf_mesh_size(&table->mesh), &mesh));
    bool same = again.stage == par->stage && again.vpp == par->vpp && again.ep == par->ep &&
                again.bucket_bytes == par->bucket_bytes && mesh.ep == table->mesh.ep &&
                mesh.pp_first == table->mesh.pp_first;
    for (int a = 0; a < PF_AXIS_COUNT; a++) {
        same = same && mesh.degree[a] == table->mesh.degree[a] && par->degree[a] == mesh.degree[a];
    }
    return same ? 0 : pf_fail(PF_EINVAL, "the table was made for another mesh than the layout's");
}

static int fill(struct pf_placement *place)
{
    const struct pf_mesh *const mesh = &place->table->mesh;
    const int n = pf_parallel_chunks(&place->par, &place->table->spec, place->starts);

    if (n < 0) {
        return n;
    }
    place->n_chunks = n;
    place->n_slices = mesh->degree[PF_AXIS_SHARDING];
    place->n_expert_slices = mesh->degree[PF_AXIS_SHARDING] * mesh->degree[PF_AXIS_TP] / mesh->ep;
    place->rows = pf_calloc_array((size_t)place->table->n_rows, sizeof *place->rows);
    place->stages = pf_calloc_array((size_t)mesh->degree[PF_AXIS_PP], sizeof *place->stages);
    if (!place->rows || !place->stages) {
        return PF_ENOMEM;
    }
    PF_TRY(fill_rows(place));
    PF_TRY(shard_fill_buckets(place));
    return place->par.whole_params ? shard_assign_owners(place) : 0;
}

int pf_placement_new(const struct pf_table *table, const struct pf_parallel *par,
                     struct pf_placement **place_out)
{
    PF_TRY(check_resolved(table, par));
    struct pf_placement *const place = pf_alloc(sizeof *place);
    if (!place) {
        return PF_ENOMEM;
    }
    memset(place, 0, sizeof *place);
    place->table = table;
    place->par = *par;
    const int err = fill(place);
    if (err) {
        pf_placement_free(place);
        return err;
    }
    *place_out = place;
    return 0;
}

void pf_placement_free(struct pf_placement *place)
{
    if (place) {
        pf_free(place->buckets);
        pf_free(place->rows);
        pf_free(place->stages);
        pf_free(place->owned);
        pf_free(place);
    }
}

bool pf_placement_is_sliced(const struct pf_placement *place, enum pf_role role)
{
    switch (role) {
    case PF_ROLE_WEIGHT:
        return place->par.stage == 3;
    case PF_ROLE_MASTER:
    case PF_ROLE_MOMENT1:
    case PF_ROLE_MOMENT2:
    case PF_ROLE_EMA:
        return place->par.stage >= 1;
    case PF_ROLE_BUFFER:
    case PF_ROLE_SCALAR:
    case PF_ROLE_COUNT:
        break;
    }
    return false;
}

int pf_placement_chunk(const struct pf_placement *place, int64_t row)
{
    return place->rows[row].chunk;
}

const struct pf_table *pf_placement_table(const struct pf_placement *place)
{
    return place->table;
}

const struct pf_parallel *pf_placement_parallel(const struct pf_placement *place)
{
    return &place->par;
}

const int64_t *pf_placement_starts(const struct pf_placement *place)
{
    return place->starts;
}

/* Distinct pieces ------------------------------------------------------------------------------ */

void pf_shard_list_release(struct pf_shard_list *list)
{
    pf_free(list->items);
    *list = (struct pf_shard_list){0};
}

static int push(struct pf_shard_list *list, const struct pf_shard *shard)
{
    if (list->n == list->room) {
        const int64_t room = list->room > 0 ? 2 * list->room : 16;
        struct pf_shard *const grown = pf_realloc_array(list->items, (size_t)room, sizeof *grown);
        if (!grown) {
            return PF_ENOMEM;
        }
        list->items = grown;
        list->room = room;
    }
    list->items[list->n++] = *shard;
    return 0;
}

/* The part of a box that slice k of its bucket has; the box begins at element `at` of the bucket. */
static bool slice_of(const struct shard_bucket *bucket, int64_t at, int64_t count, int64_t k,
                     int64_t *lo_out, int64_t *hi_out)
{
    const int64_t lo = k * bucket->part - at, hi = lo + bucket->part;

    *lo_out = lo > 0 ? lo : 0;
    *hi_out = hi < count ? hi : count;
    return *lo_out < *hi_out;
}

/* The pieces of one box: itself, or its slices. */
static int push_box(const struct pf_placement *place, int64_t row, bool sliced, int64_t at,
                    struct pf_shard *shard, struct pf_shard_list *list)
{
    const struct shard_row_place *const where = &place->rows[row];
    const struct shard_bucket *const bucket = &place->buckets[where->bucket];
    const int64_t count = pf_box_count(&shard->box);

    shard->range_lo = 0;
    shard->range_hi = count;
    shard->holders.slice_lo = 0;
    shard->holders.slice_hi = shard_n_slices(place, where->kind);
    if (!sliced || place->par.whole_params) {
        if (sliced) {
            shard->holders.slice_lo = where->owner;
            shard->holders.slice_hi = where->owner + 1;
        }
        return push(list, shard);
    }
    at += where->offset;
    for (int64_t k = at / bucket->part;
         slice_of(bucket, at, count, k, &shard->range_lo, &shard->range_hi); k++) {
        shard->holders.slice_lo = (int)k;
        shard->holders.slice_hi = (int)k + 1;
        PF_TRY(push(list, shard));
    }
    return 0;
}

static int row_boxes(const struct pf_placement *place, int64_t row, int plane,
                     struct pf_box boxes_out[PF_TABLE_MAX_BOXES])
{
    const int coord[PF_AXIS_COUNT] = {[PF_AXIS_TP] = plane};

    return shard_row_boxes(place->table, &place->table->rows[row], coord, plane, boxes_out);
}

/* Who has a row, as far as it does not depend on the plane's coordinate. */
static struct pf_rank_set row_holders(const struct pf_placement *place, int64_t row)
{
    const struct shard_row_place *const where = &place->rows[row];
    struct pf_rank_set set = {
        .experts = where->kind != SHARD_PLAIN, .n_stages = 1, .stage = {where->stage, 0}};

    if (place->buckets[where->bucket].tied) {
        const int last = pf_parallel_stage_of(&place->par, place->n_chunks - 1);
        if (last != where->stage) {
            set.n_stages = 2;
            set.stage[1] = last;
        }
    }
    return set;
}

/* The coordinates of the plane that have parts of a row, as an interval, and how many of them differ:
 * 1 where all have the same. */
static void row_planes(const struct pf_placement *place, int64_t row, int *lo_out, int *hi_out,
                       bool *alike_out)
{
    const struct pf_tensor_row *const r = &place->table->rows[row];
    const int kind = place->rows[row].kind;

    *lo_out = kind >= SHARD_EXPERTS_0 ? kind - SHARD_EXPERTS_0 : 0;
    *hi_out = kind >= SHARD_EXPERTS_0       ? *lo_out + 1
              : kind == SHARD_FUSED_EXPERTS ? place->table->mesh.ep
                                            : place->table->mesh.degree[PF_AXIS_TP];
    *alike_out = true;
    for (int d = 0; d < r->n_dims; d++) {
        *alike_out = *alike_out && r->cut[d].view == PF_CUT_NONE;
    }
}

/* A box that neighbours on the plane have as well grows its holders instead of being listed again. */
struct run {
    struct pf_box box;
    int64_t first, end; /* its pieces in the list */
};

static int push_plane(const struct pf_placement *place, int64_t row, bool sliced, int plane,
                      struct pf_shard *shard, struct run runs[PF_TABLE_MAX_BOXES],
                      struct pf_shard_list *list)
{
    struct pf_box boxes[PF_TABLE_MAX_BOXES];
    const int n = row_boxes(place, row, plane, boxes);
    int64_t at = 0;

    for (int i = 0; i < n; i++) {
        struct run *const run = &runs[i];
        if (run->end > run->first && pf_box_equal(&run->box, &boxes[i])) {
            for (int64_t k = run->first; k < run->end; k++) {
                list->items[k].holders.plane_hi = plane + 1;
            }
        } else {
            run->first = list->n;
            run->box = shard->box = boxes[i];
            shard->holders.plane_lo = plane;
            shard->holders.plane_hi = plane + 1;
            PF_TRY(push_box(place, row, sliced, at, shard, list));
            run->end = list->n;
        }
        at += pf_box_count(&boxes[i]);
    }
    return 0;
}

int pf_placement_shards(const struct pf_placement *place, int64_t row, enum pf_role role,
                        struct pf_shard_list *list)
{
    const bool sliced = pf_placement_is_sliced(place, role);
    struct run runs[PF_TABLE_MAX_BOXES] = {0};
    int lo, hi;
    bool alike;

    list->n = 0;
    if (place->table->rows[row].tied_to >= 0) {
        return 0;
    }
    struct pf_shard shard = {.holders = row_holders(place, row)};
    row_planes(place, row, &lo, &hi, &alike);
    for (int plane = lo; plane < (alike ? lo + 1 : hi); plane++) {
        PF_TRY(push_plane(place, row, sliced, plane, &shard, runs, list));
    }
    for (int64_t i = 0; i < list->n && alike; i++) {
        list->items[i].holders.plane_hi = hi;
    }
    return 0;
}

/* One rank ------------------------------------------------------------------------------------- */

/* The coordinates of a rank on the plane and among the slices of a kind. */
static void rank_coords(const struct pf_placement *place, int rank, int kind,
                        int coord_out[PF_AXIS_COUNT], int at_out[2])
{
    pf_mesh_coords(&place->table->mesh, rank, coord_out);
    at_out[0] = coord_out[PF_AXIS_TP];
    at_out[1] = coord_out[PF_AXIS_SHARDING];
    if (kind != SHARD_PLAIN) {
        pf_mesh_expert_coords(&place->table->mesh, coord_out, at_out);
    }
}

/* Elements of one kind in a rank's buffer of a role. */
static int64_t kind_elements(const struct pf_placement *place, bool sliced, int rank, int kind)
{
    int coord[PF_AXIS_COUNT], at[2];

    rank_coords(place, rank, kind, coord, at);
    const struct shard_stage *const stage = &place->stages[coord[PF_AXIS_PP]];
    if (sliced && place->par.whole_params) {
        const int lane_kind = kind >= SHARD_EXPERTS_0 ? SHARD_EXPERTS_0 + at[0] : kind;
        return place
            ->owned[coord[PF_AXIS_PP] * shard_n_lanes(place) + shard_lane(place, lane_kind, at[1])];
    }
    const int k = kind > SHARD_EXPERTS_0 ? SHARD_EXPERTS_0 : kind;
    return sliced ? stage->parts[k] : stage->whole[k];
}

int64_t pf_placement_buffer(const struct pf_placement *place, enum pf_role role, int rank)
{
    const bool sliced = pf_placement_is_sliced(place, role);

    return kind_elements(place, sliced, rank, SHARD_PLAIN) +
           kind_elements(place, sliced, rank, SHARD_FUSED_EXPERTS) +
           kind_elements(place, sliced, rank, SHARD_EXPERTS_0);
}

/* Where the rows of a kind begin in a rank's buffer. */
static int64_t kind_begin(const struct pf_placement *place, bool sliced, int rank, int kind)
{
    int64_t at = 0;

    for (int k = 0; k < kind && k < SHARD_EXPERTS_0; k++) {
        at += kind_elements(place, sliced, rank, k);
    }
    return at;
}

/* Cut the box out[0] of a rank down to its slice and find its place; `at` is the box's first element
 * in the row's memory. False: nothing is left. */
static bool place_box(const struct pf_placement *place, int64_t row, bool sliced, int slice,
                      int64_t at, struct pf_local_shard *out)
{
    const struct shard_row_place *const where = &place->rows[row];
    const struct shard_bucket *const bucket = &place->buckets[where->bucket];
    const int64_t count = pf_box_count(&out->box);

    out->range_lo = 0;
    out->range_hi = count;
    if (!sliced) {
        out->at = bucket->at + where->offset + at;
        return true;
    }
    if (place->par.whole_params) {
        out->at = where->own_at + at;
        return slice == where->owner;
    }
    at += where->offset;
    if (!slice_of(bucket, at, count, slice, &out->range_lo, &out->range_hi)) {
        return false;
    }
    out->at = bucket->part_at + at + out->range_lo - slice * bucket->part;
    return true;
}

int shard_local(const struct pf_placement *place, int64_t row, bool sliced, int rank,
                struct pf_local_shard out[PF_TABLE_MAX_BOXES])
{
    const int kind = place->rows[row].kind;
    struct pf_box boxes[PF_TABLE_MAX_BOXES];
    int coord[PF_AXIS_COUNT], at[2], n_out = 0;

    rank_coords(place, rank, kind, coord, at);
    if (place->table->rows[row].tied_to >= 0) {
        return 0;
    }
    const struct pf_rank_set set = row_holders(place, row);
    if (coord[PF_AXIS_PP] != set.stage[0] &&
        (set.n_stages < 2 || coord[PF_AXIS_PP] != set.stage[1])) {
        return 0;
    }
    if (kind >= SHARD_EXPERTS_0 && at[0] != kind - SHARD_EXPERTS_0) {
        return 0;
    }
    const int n = row_boxes(place, row, at[0], boxes);
    const int64_t begin = kind_begin(place, sliced, rank, kind);
    int64_t box_at = 0;
    for (int i = 0; i < n; i++) {
        out[n_out].box = boxes[i];
        if (place_box(place, row, sliced, at[1], box_at, &out[n_out])) {
            out[n_out++].at += begin;
        }
        box_at += pf_box_count(&boxes[i]);
    }
    return n_out;
}

int pf_placement_local(const struct pf_placement *place, int64_t row, enum pf_role role, int rank,
                       struct pf_local_shard out[PF_TABLE_MAX_BOXES])
{
    return shard_local(place, row, pf_placement_is_sliced(place, role), rank, out);
}
