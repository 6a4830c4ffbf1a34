/* SPDX-License-Identifier: Apache-2.0 */
/* Placements whose numbers are written down: by hand from the conventions, or copied from what
 * megatron-core wrote. */
#include <pf/error.h>
#include <pf/placement.h>

#include "placed.h"
#include "tap.h"

#include <stdlib.h>

static int64_t row_of(const struct placed *p, int layer, enum pf_slot slot)
{
    return pf_table_find(p->table, layer, slot) - p->table->rows;
}

static struct placed must_place(const struct pf_model_spec *spec, const char *layout)
{
    struct placed p;

    if (place_spec(spec, layout, &p) != 0) {
        ok(false, "'%s': %s", layout, pf_error_message());
        exit(done());
    }
    return p;
}

/* What a rank has of a row: "[0,10)x[0,16) [20,30)x[0,16)", with ":lo-hi" behind a box of which it has a
 * range. */
static const char *text_of(const struct placed *p, int64_t row, enum pf_role role, int rank)
{
    static char text[1024];
    struct pf_local_shard mine[PF_TABLE_MAX_BOXES];
    const int n = pf_placement_local(p->place, row, role, rank, mine);
    size_t at = 0;

    text[0] = '\0';
    for (int s = 0; s < n; s++) {
        const struct pf_box *const box = &mine[s].box;
        for (int d = 0; d < box->n_dims; d++) {
            at += (size_t)snprintf(text + at, sizeof text - at, "%s[%lld,%lld)",
                                   d > 0   ? "x"
                                   : s > 0 ? " "
                                           : "",
                                   (long long)box->lo[d], (long long)box->hi[d]);
        }
        if (mine[s].range_hi - mine[s].range_lo < pf_box_count(box)) {
            at += (size_t)snprintf(text + at, sizeof text - at, ":%lld-%lld",
                                   (long long)mine[s].range_lo, (long long)mine[s].range_hi);
        }
    }
    return text;
}

static void has(const struct placed *p, int64_t row, enum pf_role role, int rank, const char *want)
{
    const char *const got = text_of(p, row, role, rank);

    ok(strcmp(got, want) == 0, "%s of '%s' at rank %d: %s", pf_role_name(role),
       p->table->rows[row].name, rank, *want ? want : "nothing");
    if (strcmp(got, want) != 0) {
        printf("# got: %s\n", got);
    }
}

/* Turn a row of an unplaced table into something else, and place that. */
static int place_edited(const struct pf_model_spec *spec, const char *layout, enum pf_slot slot,
                        const struct pf_tensor_row *as, struct placed *p)
{
    memset(p, 0, sizeof *p);
    PF_TRY(pf_parallel_parse(layout, &p->par));
    PF_TRY(pf_parallel_resolve(&p->par, spec, 0, &p->mesh));
    PF_TRY(pf_table_new(spec, &p->mesh, &p->table));
    struct pf_tensor_row *const row = &p->table->rows[row_of(p, 0, slot)];
    row->n_dims = as->n_dims;
    memcpy(row->shape, as->shape, sizeof row->shape);
    memcpy(row->cut, as->cut, sizeof row->cut);
    return pf_placement_new(p->table, &p->par, &p->place);
}

/* Megatron-core 0.16.1, 4 query heads in 2 groups, heads of 8, 20 columns: the chunks in the .metadata of
 * fixtures/megatron/dist-llama-tp2 are linear_qkv (64,16): (0,0)+(32,16), (32,0)+(32,16); linear_fc1
 * (40,16), gate above up: (0,0)+(10,16), (20,0)+(10,16) of rank 0, (10,0), (30,0) of rank 1; linear_proj
 * (16,32): (0,0)+(16,16), (0,16)+(16,16). */
static void megatron_cuts(void)
{
    static const struct pf_tensor_row qkv = {
        .n_dims = 2,
        .shape = {64, 16},
        .cut = {{PF_CUT_QKV_GROUPS, PF_AXIS_TP, 8, 4}, {.view = PF_CUT_NONE, .unit = 1}}};
    static const struct pf_tensor_row fc1 = {
        .n_dims = 2,
        .shape = {40, 16},
        .cut = {{PF_CUT_GATE_UP, PF_AXIS_TP, 1, 0}, {.view = PF_CUT_NONE, .unit = 1}}};
    struct pf_model_spec s = small("llama", 2, 2);
    struct placed p;

    s.n_heads = 4;
    s.head_dim = 8;
    s.ffn = 20;
    ok(place_edited(&s, "tp=2", PF_SLOT_Q_W, &qkv, &p) == 0, "groups of heads are placed");
    has(&p, row_of(&p, 0, PF_SLOT_Q_W), PF_ROLE_WEIGHT, 0, "[0,32)x[0,16)");
    has(&p, row_of(&p, 0, PF_SLOT_Q_W), PF_ROLE_WEIGHT, 1, "[32,64)x[0,16)");
    has(&p, row_of(&p, 0, PF_SLOT_O_W), PF_ROLE_WEIGHT, 1, "[0,16)x[16,32)");
    release(&p);
    /* Four ranks for two groups: one query head each, and copies of key and value (rows 16 to 32 of a
     * group of 32). */
    ok(place_edited(&s, "tp=4", PF_SLOT_Q_W, &qkv, &p) == 0, "more ranks than groups");
    has(&p, row_of(&p, 0, PF_SLOT_Q_W), PF_ROLE_WEIGHT, 0, "[0,8)x[0,16) [16,32)x[0,16)");
    has(&p, row_of(&p, 0, PF_SLOT_Q_W), PF_ROLE_WEIGHT, 1, "[8,16)x[0,16) [16,32)x[0,16)");
    has(&p, row_of(&p, 0, PF_SLOT_Q_W), PF_ROLE_WEIGHT, 3, "[40,48)x[0,16) [48,64)x[0,16)");
    release(&p);
    ok(place_edited(&s, "tp=2", PF_SLOT_UP_W, &fc1, &p) == 0, "gate over up is placed");
    has(&p, row_of(&p, 0, PF_SLOT_UP_W), PF_ROLE_WEIGHT, 0, "[0,10)x[0,16) [20,30)x[0,16)");
    has(&p, row_of(&p, 0, PF_SLOT_UP_W), PF_ROLE_WEIGHT, 1, "[10,20)x[0,16) [30,40)x[0,16)");
    release(&p);
}

/* Does rank t of d have element x of a view? Said by what is computed: query heads in blocks, the key head
 * that a query head looks at, gate columns with their up columns. */
static bool view_has(const struct pf_cut *cut, int64_t size, int64_t d, int64_t t, int64_t x)
{
    const int64_t head = x / cut->unit, heads = size / cut->unit, a = cut->n_q_heads;
    const int64_t g = (heads - a) / 2, r = g > 0 ? a / g : 0;

    if (cut->view == PF_CUT_GATE_UP) {
        return head % (heads / 2) / (heads / 2 / d) == t;
    }
    if (cut->view == PF_CUT_KV_HEADS) {
        return d <= heads ? head / (heads / d) == t : t / (d / heads) == head;
    }
    const int64_t group = cut->view == PF_CUT_QKV_GROUPS ? head / (r + 2) : (head - a) % g;
    const bool query = cut->view == PF_CUT_QKV_GROUPS ? head % (r + 2) < r : head < a;
    const int64_t q = cut->view == PF_CUT_QKV_GROUPS ? group * r + head % (r + 2) : head;
    if (query) {
        return q / (a / d) == t;
    }
    return d <= g ? group / (g / d) == t : t / (d / g) == group;
}

static int64_t faults_of_view(const struct pf_cut *cut, int64_t size, int d)
{
    struct pf_tensor_row row = {.n_dims = 1, .shape = {size}, .tied_to = -1};
    struct pf_table table = {
        .n_rows = 1, .rows = &row, .mesh = {.degree = {1, 1, 1, 1, d}, .ep = 1}};
    int64_t faults = 0;

    row.cut[0] = *cut;
    for (int rank = 0; rank < d; rank++) {
        struct pf_box boxes[PF_TABLE_MAX_BOXES];
        const int n = pf_table_local_boxes(&table, &row, rank, boxes);
        for (int64_t x = 0; x < size; x++) {
            int held = 0;
            for (int b = 0; b < n; b++) {
                held += x >= boxes[b].lo[0] && x < boxes[b].hi[0];
            }
            faults += held != view_has(cut, size, d, rank, x);
        }
    }
    return faults;
}

/* Weights' rows and biases alike, for every number of ranks that heads and key heads allow. */
static void views_are_what_is_computed(void)
{
    static const enum pf_cut_view views[] = {PF_CUT_QKV, PF_CUT_QKV_GROUPS, PF_CUT_KV_HEADS,
                                             PF_CUT_GATE_UP};
    int64_t faults = 0, n = 0;

    for (int v = 0; v < 4; v++) {
        for (int64_t g = 1; g <= 16; g *= 2) {
            for (int d = 1; d <= 16; d *= 2, n++) {
                const bool heads = views[v] != PF_CUT_GATE_UP && views[v] != PF_CUT_KV_HEADS;
                const struct pf_cut cut = {views[v], PF_AXIS_TP, heads ? 3 : 2, heads ? 16 : 0};
                const int64_t size = heads                         ? (16 + 2 * g) * 3
                                     : views[v] == PF_CUT_KV_HEADS ? g * 2
                                                                   : 2 * 2 * 16 * g;
                faults += faults_of_view(&cut, size, d);
            }
        }
    }
    ok(faults == 0, "%lld fused and replicated views give each rank what it computes with",
       (long long)n);
}

/* 8 query heads, 2 key heads of 4: key head g lies on ranks g tp/2 to (g + 1) tp/2 - 1. */
static void key_heads(void)
{
    struct pf_model_spec s = small("qwen2", 2, 2);
    struct placed p = must_place(&s, "tp=2");

    has(&p, row_of(&p, 0, PF_SLOT_K_W), PF_ROLE_WEIGHT, 1, "[4,8)x[0,16)");
    release(&p);
    p = must_place(&s, "tp=8");
    has(&p, row_of(&p, 0, PF_SLOT_K_W), PF_ROLE_WEIGHT, 3, "[0,4)x[0,16)");
    has(&p, row_of(&p, 0, PF_SLOT_K_W), PF_ROLE_WEIGHT, 4, "[4,8)x[0,16)");
    has(&p, row_of(&p, 0, PF_SLOT_V_B), PF_ROLE_WEIGHT, 7, "[4,8)");
    has(&p, row_of(&p, 0, PF_SLOT_Q_B), PF_ROLE_WEIGHT, 7, "[28,32)");
    struct pf_shard_list all = {0};
    ok(pf_placement_shards(p.place, row_of(&p, 0, PF_SLOT_K_W), PF_ROLE_WEIGHT, &all) == 0 &&
           all.n == 2 && all.items[0].holders.plane_lo == 0 && all.items[0].holders.plane_hi == 4 &&
           pf_rank_set_count(&p.mesh, &all.items[1].holders) == 4 &&
           pf_rank_set_at(&p.mesh, &all.items[1].holders, 0) == 4,
       "two distinct pieces, four copies of each");
    pf_shard_list_release(&all);
    release(&p);
}

/* 10 tokens over 3 ranks are 4, 4 and 2: head, its bias, and what the optimizer has of them. */
static void vocabulary(void)
{
    struct pf_model_spec s = small("llama", 4, 2);
    struct placed p;

    s.vocab_size = 10;
    s.n_heads = s.n_kv_heads = 6;
    s.head_bias = true;
    p = must_place(&s, "tp=3,sharding=2");
    has(&p, row_of(&p, -1, PF_SLOT_EMBED), PF_ROLE_WEIGHT, 1, "[4,8)x[0,16)");
    has(&p, row_of(&p, -1, PF_SLOT_EMBED), PF_ROLE_WEIGHT, 2, "[8,10)x[0,16)");
    has(&p, row_of(&p, -1, PF_SLOT_HEAD_B), PF_ROLE_WEIGHT, 2, "[8,10)");
    has(&p, row_of(&p, -1, PF_SLOT_EMBED), PF_ROLE_MOMENT2, 2, "[8,10)x[0,16)");
    has(&p, row_of(&p, -1, PF_SLOT_EMBED), PF_ROLE_MOMENT2, 5, "");
    has(&p, row_of(&p, -1, PF_SLOT_HEAD_B), PF_ROLE_MASTER, 5, "[8,10)");
    ok(pf_placement_buffer(p.place, PF_ROLE_WEIGHT, 0) ==
               pf_placement_buffer(p.place, PF_ROLE_WEIGHT, 2) &&
           pf_placement_buffer(p.place, PF_ROLE_MASTER, 0) ==
               pf_placement_buffer(p.place, PF_ROLE_MASTER, 5),
       "ranks with padding have as much memory as the others");
    release(&p);
}

/*
 * One layer of small("llama"), 4 key heads, in a bucket: embedding 208 elements, norm 16, q 512 from
 * element 224, k 256 from 736, v 256, o 512, norm 16, gate, up and down 384 each, norm 16, head 208:
 * 3152 in all, 788 for each of four ranks, which 800 is the next multiple of 16 to.
 */
static void slices(void)
{
    const struct pf_model_spec s = small("llama", 4, 1);
    struct placed p = must_place(&s, "sharding=4,stage=1");

    has(&p, row_of(&p, 0, PF_SLOT_Q_W), PF_ROLE_MASTER, 0, "[0,32)x[0,16)");
    has(&p, row_of(&p, 0, PF_SLOT_Q_W), PF_ROLE_MASTER, 1, "");
    has(&p, row_of(&p, 0, PF_SLOT_K_W), PF_ROLE_MOMENT1, 0, "[0,16)x[0,16):0-64");
    has(&p, row_of(&p, 0, PF_SLOT_K_W), PF_ROLE_MOMENT1, 1, "[0,16)x[0,16):64-256");
    has(&p, row_of(&p, 0, PF_SLOT_K_W), PF_ROLE_WEIGHT, 3, "[0,16)x[0,16)");
    has(&p, row_of(&p, -1, PF_SLOT_HEAD_W), PF_ROLE_EMA, 3, "[0,13)x[0,16)");
    ok(pf_placement_buffer(p.place, PF_ROLE_MASTER, 3) == 800 &&
           pf_placement_buffer(p.place, PF_ROLE_WEIGHT, 3) == 3152,
       "a rank has 800 elements of state and all 3152 of weights");
    release(&p);
    /* tp=2 halves all but the norms, and 13 tokens are 7 and 6: 112 + 16 + 256 + 128 + 128 + 256 + 16 +
     * 3 * 192 + 16 + 112 = 1616, in parts of 816; o is elements 640 to 896. */
    p = must_place(&s, "tp=2,sharding=2,stage=2");
    has(&p, row_of(&p, 0, PF_SLOT_V_W), PF_ROLE_MASTER, 0, "[0,8)x[0,16)");
    has(&p, row_of(&p, 0, PF_SLOT_O_W), PF_ROLE_MASTER, 1, "[0,16)x[16,32):0-176");
    has(&p, row_of(&p, 0, PF_SLOT_O_W), PF_ROLE_MASTER, 2, "[0,16)x[0,16):176-256");
    has(&p, row_of(&p, 0, PF_SLOT_NORM2_W), PF_ROLE_MASTER, 0, "");
    has(&p, row_of(&p, 0, PF_SLOT_NORM2_W), PF_ROLE_MASTER, 3, "[0,16)");
    has(&p, row_of(&p, 0, PF_SLOT_GATE_W), PF_ROLE_MASTER, 3, "[12,24)x[0,16)");
    release(&p);
    /* In stage 3 the embedding is a bucket, 208 in parts of 64, and the layer, 2720 in parts of 688: k is
     * elements 528 to 784 of it. */
    p = must_place(&s, "sharding=4,stage=3");
    has(&p, row_of(&p, -1, PF_SLOT_EMBED), PF_ROLE_WEIGHT, 0, "[0,13)x[0,16):0-64");
    has(&p, row_of(&p, -1, PF_SLOT_EMBED), PF_ROLE_WEIGHT, 3, "[0,13)x[0,16):192-208");
    has(&p, row_of(&p, 0, PF_SLOT_K_W), PF_ROLE_WEIGHT, 0, "[0,16)x[0,16):0-160");
    has(&p, row_of(&p, 0, PF_SLOT_K_W), PF_ROLE_MOMENT2, 1, "[0,16)x[0,16):160-256");
    release(&p);
}

/* Largest first to whom has least: q 0, o 1, gate 0, up 1, down 0 (1280), k 1 (1152), v 1 (1408),
 * embedding 0 (1488), head 1 (1616), norms 0 (1504, 1520, 1536). */
static void whole_parameters(void)
{
    const struct pf_model_spec s = small("llama", 4, 1);
    struct placed p = must_place(&s, "sharding=2,stage=1,whole_params=true");

    has(&p, row_of(&p, 0, PF_SLOT_Q_W), PF_ROLE_MASTER, 0, "[0,32)x[0,16)");
    has(&p, row_of(&p, 0, PF_SLOT_DOWN_W), PF_ROLE_MASTER, 0, "[0,16)x[0,24)");
    has(&p, row_of(&p, 0, PF_SLOT_V_W), PF_ROLE_MASTER, 1, "[0,16)x[0,16)");
    has(&p, row_of(&p, 0, PF_SLOT_V_W), PF_ROLE_MASTER, 0, "");
    has(&p, row_of(&p, -1, PF_SLOT_HEAD_W), PF_ROLE_MASTER, 1, "[0,13)x[0,16)");
    has(&p, row_of(&p, -1, PF_SLOT_FINAL_NORM_W), PF_ROLE_MASTER, 0, "[0,16)");
    ok(pf_placement_buffer(p.place, PF_ROLE_MASTER, 0) == 1536 &&
           pf_placement_buffer(p.place, PF_ROLE_MASTER, 1) == 1616,
       "1536 and 1616 elements");
    release(&p);
}

/* The embedding of a tied model, 208 elements in parts of 112, on the first and on the last stage. */
static void tied_weight(void)
{
    const struct pf_model_spec s = small("llama-tied", 4, 4);
    struct placed p = must_place(&s, "pp=4,sharding=2");
    const int64_t embed = row_of(&p, -1, PF_SLOT_EMBED), head = row_of(&p, -1, PF_SLOT_HEAD_W);

    /* ranks: sharding outside, pp inside */
    has(&p, embed, PF_ROLE_WEIGHT, 0, "[0,13)x[0,16)");
    has(&p, embed, PF_ROLE_WEIGHT, 1, "");
    has(&p, embed, PF_ROLE_WEIGHT, 7, "[0,13)x[0,16)");
    has(&p, embed, PF_ROLE_MOMENT1, 0, "[0,13)x[0,16):0-112");
    has(&p, embed, PF_ROLE_MOMENT1, 3, "[0,13)x[0,16):0-112");
    has(&p, embed, PF_ROLE_MOMENT1, 7, "[0,13)x[0,16):112-208");
    has(&p, head, PF_ROLE_WEIGHT, 7, "");
    ok(pf_placement_chunk(p.place, embed) == 0 && pf_placement_chunk(p.place, head) == 3,
       "the head is in the last chunk");
    release(&p);
    p = must_place(&s, "pp=2,vpp=2,dual=true");
    has(&p, embed, PF_ROLE_WEIGHT, 0, "[0,13)x[0,16)");
    has(&p, embed, PF_ROLE_WEIGHT, 1, "");
    release(&p);
}

/* DESIGN section 8: with i = sharding tp_degree + tp, ep = i mod ep_degree, expert sharding = i div
 * ep_degree. tp=2, sharding=4, ep=4: ranks 0 to 7 have i = 0 to 7; rank 3 has ep 3, rank 6 has ep 2 and
 * expert sharding 1. 8 experts: two for each ep coordinate. */
static void experts(void)
{
    const struct pf_model_spec s = small("mixtral", 4, 2);
    struct placed p = must_place(&s, "tp=2,sharding=4,ep=4,stage=1");
    const int64_t e5 =
        pf_table_find_name(p.table, "model.layers.1.block_sparse_moe.experts.5.w1.weight") -
        p.table->rows;
    const int64_t router = row_of(&p, 1, PF_SLOT_ROUTER_W);
    struct pf_shard_list all = {0};

    has(&p, e5, PF_ROLE_WEIGHT, 2, "[0,3)x[0,16)");
    has(&p, e5, PF_ROLE_WEIGHT, 6, "[0,3)x[0,16)");
    has(&p, e5, PF_ROLE_WEIGHT, 3, "");
    has(&p, router, PF_ROLE_WEIGHT, 3, "[0,8)x[0,16)");
    /* An expert's three tensors are 48 each; 2 layers of 2 experts are 576 in two parts of 288: expert 5
     * of layer 1 is the last, 432 to 576. */
    has(&p, e5, PF_ROLE_MASTER, 2, "");
    has(&p, e5, PF_ROLE_MASTER, 6, "[0,3)x[0,16)");
    ok(pf_placement_shards(p.place, e5, PF_ROLE_MASTER, &all) == 0 && all.n == 1 &&
           all.items[0].holders.experts && pf_rank_set_count(&p.mesh, &all.items[0].holders) == 1 &&
           pf_rank_set_at(&p.mesh, &all.items[0].holders, 0) == 6 &&
           pf_rank_set_has(&p.mesh, &all.items[0].holders, 6) &&
           !pf_rank_set_has(&p.mesh, &all.items[0].holders, 2),
       "its holder is rank 6 alone");
    release(&p);
    /* ep = tp * sharding: one coordinate of expert sharding, so experts are whole; the rest is sliced. The
     * router is elements 1568 to 1696 of its layer's 1696, the last of four parts of 432. */
    p = must_place(&s, "tp=2,sharding=4,ep=8,stage=3");
    has(&p, e5, PF_ROLE_WEIGHT, 5, "[0,3)x[0,16)");
    has(&p, e5, PF_ROLE_MASTER, 5, "[0,3)x[0,16)");
    has(&p, e5, PF_ROLE_MASTER, 4, "");
    has(&p, router, PF_ROLE_MASTER, 5, "");
    has(&p, router, PF_ROLE_MASTER, 7, "[0,8)x[0,16)");
    pf_shard_list_release(&all);
    release(&p);
}

/* All experts of a layer in one tensor [8, 6, 16], as transformers 5 keeps them: two for each of four
 * coordinates; and its state over the two of expert sharding. */
static void fused_experts(void)
{
    static const struct pf_tensor_row fused = {.n_dims = 3,
                                               .shape = {8, 6, 16},
                                               .cut = {{PF_CUT_EXPERTS, PF_AXIS_TP, 1, 0},
                                                       {.view = PF_CUT_NONE, .unit = 1},
                                                       {.view = PF_CUT_NONE, .unit = 1}}};
    const struct pf_model_spec s = small("mixtral", 4, 2);
    struct placed p;

    ok(place_edited(&s, "tp=2,sharding=4,ep=4,stage=1", PF_SLOT_ROUTER_W, &fused, &p) == 0,
       "all experts of a layer in one tensor");
    const int64_t row = row_of(&p, 0, PF_SLOT_ROUTER_W);
    has(&p, row, PF_ROLE_WEIGHT, 2, "[4,6)x[0,6)x[0,16)");
    has(&p, row, PF_ROLE_WEIGHT, 6, "[4,6)x[0,6)x[0,16)");
    has(&p, row, PF_ROLE_MOMENT1, 2, "[4,6)x[0,6)x[0,16):0-96");
    has(&p, row, PF_ROLE_MOMENT1, 6, "[4,6)x[0,6)x[0,16):96-192");
    release(&p);
}

/* 7 layers, first stage of 3: chunks of layers, and nothing elsewhere. */
static void stages(void)
{
    struct pf_model_spec s = small("qwen3", 4, 7);
    struct placed p = must_place(&s, "pp=3,first_layers=3");

    has(&p, row_of(&p, 2, PF_SLOT_NORM1_W), PF_ROLE_WEIGHT, 0, "[0,16)");
    has(&p, row_of(&p, 3, PF_SLOT_NORM1_W), PF_ROLE_WEIGHT, 0, "");
    has(&p, row_of(&p, 3, PF_SLOT_NORM1_W), PF_ROLE_WEIGHT, 1, "[0,16)");
    has(&p, row_of(&p, 5, PF_SLOT_NORM1_W), PF_ROLE_WEIGHT, 2, "[0,16)");
    has(&p, row_of(&p, -1, PF_SLOT_FINAL_NORM_W), PF_ROLE_WEIGHT, 2, "[0,16)");
    release(&p);
    s.n_layers = 12; /* chunk = layer div 2, stage = chunk mod 2 */
    p = must_place(&s, "pp=2,vpp=3");
    has(&p, row_of(&p, 5, PF_SLOT_NORM1_W), PF_ROLE_WEIGHT, 0, "[0,16)");
    has(&p, row_of(&p, 6, PF_SLOT_NORM1_W), PF_ROLE_WEIGHT, 1, "[0,16)");
    has(&p, row_of(&p, 10, PF_SLOT_NORM1_W), PF_ROLE_WEIGHT, 1, "[0,16)");
    release(&p);
}

/* What is frozen has buckets of its own, where it does not stand between what is stepped. */
static void frozen_rows(void)
{
    const struct pf_model_spec s = small("llama", 4, 1);
    static const char *const globs[] = {"*.q_proj.weight"};
    struct pf_local_shard mine[PF_TABLE_MAX_BOXES];
    struct placed p = must_place(&s, "sharding=4,stage=1");

    ok(pf_table_freeze(p.table, globs, 1, NULL) == 0, "the query projection is frozen");
    pf_placement_free(p.place);
    p.place = NULL;
    ok(pf_placement_new(p.table, &p.par, &p.place) == 0, "and placed again");
    /* 3152 - 512 = 2640 in parts of 672, 512 in parts of 128 behind; k at 224, v at 480 to 736 */
    has(&p, row_of(&p, 0, PF_SLOT_Q_W), PF_ROLE_MASTER, 3, "[0,32)x[0,16):384-512");
    has(&p, row_of(&p, 0, PF_SLOT_V_W), PF_ROLE_MASTER, 1, "[0,16)x[0,16):192-256");
    ok(pf_placement_buffer(p.place, PF_ROLE_MASTER, 0) == 800 &&
           pf_placement_local(p.place, row_of(&p, 0, PF_SLOT_V_W), PF_ROLE_MASTER, 1, mine) == 1 &&
           mine[0].at == 0,
       "a slice begins where the rank's memory does");
    release(&p);
}

/* 99,459 tensors on 16,384 ranks, without asking any rank: what the pieces of all rows in a role hold. */
static void many_tensors_on_many_ranks(void)
{
    struct pf_model_spec s = fixture_spec("qwen3_moe", "config.json");
    struct pf_shard_list all = {0};
    struct placed p;

    s.n_layers = 128;
    s.n_heads = 64;
    s.moe.n_experts = 256;
    for (int i = 0; i < 128; i++) {
        s.moe.layer_is_moe[i] = 1;
    }
    p = must_place(&s, "tp=8,pp=16,sharding=128,ep=64,stage=1");
    ok(p.table->n_rows == 99459 && pf_mesh_size(&p.mesh) == 16384, "99,459 tensors, 16,384 ranks");
    for (int r = PF_ROLE_WEIGHT; r <= PF_ROLE_MOMENT2; r++) {
        const bool sliced = r != PF_ROLE_WEIGHT;
        int64_t wrong = 0, n = 0;
        for (int64_t i = 0; i < p.table->n_rows; i++) {
            const struct pf_tensor_row *const row = &p.table->rows[i];
            /* a tensor of a layer lies on 1024 ranks, an expert's on 16 of them */
            const int64_t copies = row->expert >= 0 ? 16 : 128;
            int64_t elements = 0;
            wrong += pf_placement_shards(p.place, i, (enum pf_role)r, &all) != 0;
            for (int64_t k = 0; k < all.n; k++) {
                const struct pf_rank_set *const set = &all.items[k].holders;
                const int64_t tp = row->expert >= 0 ? 1 : set->plane_hi - set->plane_lo;
                elements += all.items[k].range_hi - all.items[k].range_lo;
                wrong += pf_rank_set_count(&p.mesh, set) != (sliced ? 1 : copies) * tp;
            }
            wrong += elements != pf_tensor_row_count(row);
            n += all.n;
        }
        ok(wrong == 0,
           "%s: %lld distinct pieces hold every element once, on as many ranks as they should",
           pf_role_name((enum pf_role)r), (long long)n);
    }
    pf_shard_list_release(&all);
    release(&p);
}

static void edited_tables_are_judged(void)
{
    const struct pf_model_spec s = small("llama", 4, 2);
    struct pf_tensor_row row = {
        .n_dims = 2, .shape = {12, 16}, .cut = {{PF_CUT_GATE_UP, PF_AXIS_TP, 1, 0}}};
    struct pf_parallel par;
    struct placed p;

    ok(place_edited(&s, "tp=4", PF_SLOT_UP_W, &row, &p) == PF_EINVAL &&
           strcmp(pf_error_message(), "tp=4 does not divide the 6 parts of dimension 0 of "
                                      "'model.layers.0.mlp.up_proj.weight'") == 0,
       "%s", pf_error_message());
    release(&p);
    row.cut[0] = (struct pf_cut){PF_CUT_BLOCK, PF_AXIS_CP, 1, 0};
    ok(place_edited(&s, "tp=4", PF_SLOT_UP_W, &row, &p) == PF_EINVAL &&
           strcmp(pf_error_message(),
                  "dimension 0 of 'model.layers.0.mlp.up_proj.weight' cannot be "
                  "cut so") == 0,
       "%s", pf_error_message());
    release(&p);
    p = must_place(&s, "tp=2");
    par = p.par;
    par.degree[PF_AXIS_TP] = 1;
    struct pf_placement *other = NULL;
    ok(pf_placement_new(p.table, &par, &other) == PF_EINVAL && !other, "%s", pf_error_message());
    par = p.par;
    par.stage = -1;
    ok(pf_placement_new(p.table, &par, &other) == PF_EINVAL && !other,
       "options that were not resolved are not taken");
    release(&p);
}

int main(void)
{
    megatron_cuts();
    views_are_what_is_computed();
    key_heads();
    vocabulary();
    slices();
    whole_parameters();
    tied_weight();
    experts();
    fused_experts();
    stages();
    frozen_rows();
    many_tensors_on_many_ranks();
    edited_tables_are_judged();
    return done();
}
