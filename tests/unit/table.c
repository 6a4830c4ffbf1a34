/* SPDX-License-Identifier: Apache-2.0 */
/* The tensor table: against the files that transformers wrote, and against its own promises about
 * order, ties, freezing, decay, and the parts that ranks hold. */
#include <pf/error.h>
#include <pf/json.h>
#include <pf/table.h>

#include "model_fixture.h"
#include "tap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const folders[] = {"gpt2",
                                      "llama",
                                      "llama-tied",
                                      "qwen2",
                                      "qwen3",
                                      "ernie4_5",
                                      "mixtral",
                                      "qwen3_moe",
                                      "qwen3_moe-mixed",
                                      "deepseek_v3",
                                      "deepseek_v3-yarn",
                                      "ernie4_5_moe"};
#define N_FOLDERS (sizeof folders / sizeof folders[0])

static struct pf_table *table_of_spec(const struct pf_model_spec *spec, int tp)
{
    struct pf_mesh mesh;
    struct pf_table *table = NULL;

    if (pf_mesh_init(&mesh, tp, (int[]){1, 1, 1, 1, tp}, 1, false) != 0 ||
        pf_table_new(spec, &mesh, &table) != 0) {
        ok(false, "a table is made: %s", pf_error_message());
        exit(done());
    }
    return table;
}

static struct pf_table *table_of(const char *folder, int tp)
{
    const struct pf_model_spec spec = fixture_spec(folder, "config.json");

    return table_of_spec(&spec, tp);
}

/* The JSON header of the folder's model: a file of its own where the clone has no weights. */
static struct pf_json *header_of(const char *folder)
{
    struct pf_json *header = NULL;
    unsigned char prefix[8];
    char path[256];

    snprintf(path, sizeof path, HF_FIXTURES "%s/model.header.json", folder);
    if (pf_json_parse_file(path, &header) == 0) {
        return header;
    }
    snprintf(path, sizeof path, HF_FIXTURES "%s/model.safetensors", folder);
    FILE *file = fopen(path, "rb");
    if (file && fread(prefix, 1, 8, file) == 8) {
        const size_t n = prefix[0] + 256u * prefix[1] + 65536u * prefix[2];
        char *text = malloc(n);
        if (text && fread(text, 1, n, file) == n) {
            (void)pf_json_parse_text(text, n, path, &header);
        }
        free(text);
    }
    if (file) {
        fclose(file);
    }
    return header;
}

static bool same_shape(const struct pf_tensor_row *row, const struct pf_json *entry)
{
    const struct pf_json *shape = pf_json_get(entry, "shape");

    if (!shape || pf_json_n(shape) != (size_t)row->n_dims) {
        return false;
    }
    for (int d = 0; d < row->n_dims; d++) {
        int64_t size = -1;
        if (pf_json_as_i64(pf_json_child(shape, (size_t)d), &size) != 0 || size != row->shape[d]) {
            return false;
        }
    }
    return true;
}

static void names_and_shapes_are_the_files(void)
{
    for (size_t f = 0; f < N_FOLDERS; f++) {
        struct pf_table *table = table_of(folders[f], 1);
        struct pf_json *header = header_of(folders[f]);
        int64_t n_stored = 0, wrong = 0;
        for (int64_t i = 0; i < table->n_rows; i++) {
            const struct pf_tensor_row *row = &table->rows[i];
            const struct pf_json *entry = pf_json_get(header, row->name);
            n_stored += row->tied_to < 0;
            if (row->tied_to < 0 ? !entry || !same_shape(row, entry) : entry != NULL) {
                printf("# %s\n", row->name);
                wrong++;
            }
        }
        const size_t n_entries = pf_json_n(header) - (pf_json_get(header, "__metadata__") != NULL);
        ok(wrong == 0, "%s: each row is in the file with its shape", folders[f]);
        ok((size_t)n_stored == n_entries, "%s: each tensor of the file is a row (%d of %d)",
           folders[f], (int)n_stored, (int)n_entries);
        pf_json_free(header);
        pf_table_free(table);
    }
}

static void rows_are_found(void)
{
    struct pf_table *table = table_of("qwen2", 1);
    const struct pf_tensor_row *row = pf_table_find(table, 2, PF_SLOT_V_B);

    ok(row && strcmp(row->name, "model.layers.2.self_attn.v_proj.bias") == 0 && row->layer == 2,
       "a row is found by layer and slot");
    ok(row == pf_table_find_name(table, "model.layers.2.self_attn.v_proj.bias"), "and by name");
    ok(!pf_table_find(table, 2, PF_SLOT_O_B) && !pf_table_find(table, 3, PF_SLOT_V_B) &&
           !pf_table_find_name(table, "model.layers.3.self_attn.v_proj.bias"),
       "what the model does not have is not found");
    ok(row && pf_tensor_row_count(row) == 24, "a row counts its elements");
    pf_table_free(table);
}

static void rows_stand_in_model_order(void)
{
    struct pf_table *table = table_of("gpt2", 1);
    int wrong = 0;

    for (int64_t i = 1; i < table->n_rows; i++) {
        const struct pf_tensor_row *a = &table->rows[i - 1], *b = a + 1;
        if (a->layer >= 0 && b->layer >= 0) {
            wrong += a->layer > b->layer || (a->layer == b->layer && a->slot >= b->slot);
        }
    }
    ok(wrong == 0, "layers ascend, and slots within them");
    ok(table->rows[0].slot == PF_SLOT_EMBED && table->rows[1].slot == PF_SLOT_POS_EMBED &&
           table->rows[2].layer == 0 && table->rows[table->n_rows - 1].slot == PF_SLOT_HEAD_W &&
           table->rows[table->n_rows - 2].slot == PF_SLOT_FINAL_NORM_B,
       "embeddings come first, final norm and head last");
    pf_table_free(table);
}

static void flags_follow_the_family(void)
{
    struct pf_table *table = table_of("gpt2", 1);
    int wrong = 0, in_out = 0;

    for (int64_t i = 0; i < table->n_rows; i++) {
        wrong += table->rows[i].no_decay != (table->rows[i].n_dims < 2);
        in_out += table->rows[i].in_out;
    }
    ok(wrong == 0, "vectors do not decay, matrices do");
    ok(in_out == 3 * 4, "gpt2's four linear weights of a layer are stored [in, out]");
    const struct pf_tensor_row *proj = pf_table_find(table, 1, PF_SLOT_DOWN_W);
    ok(proj->init == PF_INIT_NORMAL && fabs(proj->init_std - 0.02 / sqrt(6.0)) < 1e-15,
       "gpt2's residual projections start narrower");
    ok(pf_table_find(table, 1, PF_SLOT_QKV_W)->init_std == 0.02 &&
           pf_table_find(table, 1, PF_SLOT_NORM2_W)->init == PF_INIT_ONES &&
           pf_table_find(table, 1, PF_SLOT_NORM2_B)->init == PF_INIT_ZEROS,
       "other weights start normal, norms at one, biases at zero");
    pf_table_free(table);
    table = table_of("llama", 1);
    ok(pf_table_find(table, 0, PF_SLOT_O_W)->init_std == 0.02, "llama's projections do not");
    pf_table_free(table);
}

static void globs_freeze(void)
{
    struct pf_table *table = table_of("qwen2", 1);
    const char *globs[] = {"*.layers.0.*", "*.nothing.*", "lm_head.*"};
    int met[3] = {-1, -1, -1}, in_layer = 0, wrong = 0;

    ok(pf_table_freeze(table, globs, 3, met) == 0, "globs are applied");
    for (int64_t i = 0; i < table->n_rows; i++) {
        const struct pf_tensor_row *row = &table->rows[i];
        const bool want =
            row->layer == 0 || row->slot == PF_SLOT_HEAD_W || row->slot == PF_SLOT_EMBED;
        in_layer += row->layer == 0;
        wrong += row->frozen != want;
    }
    ok(wrong == 0, "what they meet is frozen, and a tied pair by either name");
    ok(met[0] == in_layer && met[1] == 0 && met[2] == 1, "each glob tells how many names it met");
    pf_table_free(table);
}

static void globs_exclude_decay(void)
{
    struct pf_table *table = table_of("qwen3", 1);
    const char *globs[] = {"*embed*"};
    int met = 0, wrong = 0;

    ok(pf_table_exclude_decay(table, globs, 1, &met) == 0 && met == 1, "one name is met");
    for (int64_t i = 0; i < table->n_rows; i++) {
        wrong += table->rows[i].no_decay != (table->rows[i].slot == PF_SLOT_EMBED);
    }
    ok(wrong == 0, "then globs alone decide, not dimensions");
    ok(pf_table_exclude_decay(table, NULL, 0, NULL) == 0 && !table->rows[0].no_decay,
       "no globs: everything decays");
    pf_table_free(table);
}

static bool same_box(const struct pf_box *a, const struct pf_box *b)
{
    bool same = a->n_dims == b->n_dims;

    for (int d = 0; d < a->n_dims; d++) {
        same = same && a->lo[d] == b->lo[d] && a->hi[d] == b->hi[d];
    }
    return same;
}

/* Do the distinct boxes of all ranks tile the row? */
static bool tiles(const struct pf_table *table, const struct pf_tensor_row *row, int tp)
{
    struct pf_box whole = {.n_dims = row->n_dims}, all[64];
    struct pf_cover cover = {.kind = PF_COVER_HOLE};
    size_t n = 0;

    for (int d = 0; d < row->n_dims; d++) {
        whole.hi[d] = row->shape[d];
    }
    for (int rank = 0; rank < tp; rank++) {
        struct pf_box mine[PF_TABLE_MAX_BOXES];
        const int n_mine = pf_table_local_boxes(table, row, rank, mine);
        for (int i = 0; i < n_mine; i++) {
            bool is_copy = false;
            for (size_t j = 0; j < n; j++) {
                is_copy = is_copy || same_box(&all[j], &mine[i]);
            }
            if (!is_copy) {
                all[n++] = mine[i];
            }
        }
    }
    return pf_cover_check(&whole, all, n, &cover) == 0 && cover.kind == PF_COVER_EXACT;
}

static void local_boxes_tile(void)
{
    static const int degrees[] = {1, 2, 3, 4, 6, 8};

    for (size_t f = 0; f < N_FOLDERS; f++) {
        for (size_t k = 0; k < sizeof degrees / sizeof degrees[0]; k++) {
            struct pf_table *table = table_of(folders[f], degrees[k]);
            int64_t wrong = 0;
            for (int64_t i = 0; i < table->n_rows; i++) {
                wrong += !tiles(table, &table->rows[i], degrees[k]);
            }
            ok(wrong == 0, "%s: what %d ranks hold tiles every tensor", folders[f], degrees[k]);
            pf_table_free(table);
        }
    }
}

static struct pf_box only_box(const struct pf_table *table, int layer, enum pf_slot slot, int rank)
{
    struct pf_box boxes[PF_TABLE_MAX_BOXES] = {{.n_dims = 0}};
    const int n = pf_table_local_boxes(table, pf_table_find(table, layer, slot), rank, boxes);

    ok(n == 1, "one box");
    return boxes[0];
}

static void key_heads_are_replicated(void)
{
    struct pf_table *table = table_of("qwen3", 4); /* 4 query heads, 2 key heads of 16 */

    for (int rank = 0; rank < 4; rank++) {
        const struct pf_box q = only_box(table, 0, PF_SLOT_Q_W, rank);
        const struct pf_box k = only_box(table, 0, PF_SLOT_K_W, rank);
        const struct pf_box o = only_box(table, 0, PF_SLOT_O_W, rank);
        ok(q.lo[0] == 16 * rank && q.hi[0] == 16 * rank + 16 && q.lo[1] == 0 && q.hi[1] == 48,
           "rank %d of 4 has query head %d", rank, rank);
        ok(k.lo[0] == 16 * (rank / 2) && k.hi[0] == k.lo[0] + 16,
           "and a copy of the key head it uses");
        ok(o.lo[1] == q.lo[0] && o.hi[1] == q.hi[0] && o.hi[0] == 48,
           "and the columns of the output projection that its heads feed");
    }
    pf_table_free(table);
}

static void fused_blocks_are_cut_by_heads(void)
{
    struct pf_table *table = table_of("gpt2", 2); /* 4 heads of 12: c_attn [48, 3 * 48] */
    struct pf_box boxes[PF_TABLE_MAX_BOXES];
    const struct pf_tensor_row *row = pf_table_find(table, 0, PF_SLOT_QKV_W);

    ok(pf_table_local_boxes(table, row, 1, boxes) == 3, "q, k and v are three boxes");
    ok(boxes[0].lo[1] == 24 && boxes[0].hi[1] == 48 && boxes[1].lo[1] == 72 &&
           boxes[1].hi[1] == 96 && boxes[2].lo[1] == 120 && boxes[2].hi[1] == 144 &&
           boxes[0].hi[0] == 48,
       "each the second half of its block, over all inputs");
    const struct pf_box up = only_box(table, 0, PF_SLOT_UP_W, 1);
    const struct pf_box down = only_box(table, 0, PF_SLOT_DOWN_W, 1);
    ok(up.lo[1] == 96 && up.hi[1] == 192 && up.hi[0] == 48 && down.lo[0] == 96 && down.hi[0] == 192,
       "weights stored [in, out] are cut along the right dimension");
    pf_table_free(table);
}

static void vocabulary_is_padded_in_memory_only(void)
{
    struct pf_table *table = table_of("qwen3", 4); /* 131 rows: 33 each, the last has 32 */
    const struct pf_box last = only_box(table, -1, PF_SLOT_EMBED, 3);

    ok(last.lo[0] == 99 && last.hi[0] == 131, "the last rank has what is left");
    pf_table_free(table);
}

static void impossible_and_unknown_models_are_refused(void)
{
    const struct pf_mesh mesh = {.degree = {1, 1, 1, 1, 1}, .ep = 1};
    struct pf_model_spec spec = fixture_spec("llama", "config.json");
    struct pf_table *table = NULL;

    spec.n_kv_heads = 3;
    ok(pf_table_new(&spec, &mesh, &table) == PF_EINVAL && !table &&
           strcmp(pf_error_message(),
                  "'num_attention_heads' 8 is not a multiple of 'num_key_value_heads' 3") == 0,
       "heads that do not divide are refused");
    spec.n_kv_heads = 4;
    spec.hidden = spec.ffn = INT32_MAX;
    ok(pf_table_new(&spec, &mesh, &table) == PF_EINVAL && !table,
       "a model beyond counting is refused");
    spec = fixture_spec("deepseek_v3", "config.json");
    spec.mla.v_dim = 0;
    ok(pf_table_new(&spec, &mesh, &table) == PF_EINVAL && !table &&
           strcmp(pf_error_message(), "'v_head_dim' is 0, must be from 1 to 1048576") == 0,
       "%s", pf_error_message());
    spec = fixture_spec("mixtral", "config.json");
    spec.moe.n_experts = 1 << 20;
    ok(pf_table_new(&spec, &mesh, &table) == PF_EINVAL && !table,
       "more experts than can be listed are refused");
    spec = fixture_spec("ernie4_5_moe", "config.json");
    spec.moe.expert_ffn = spec.hidden = INT32_MAX;
    ok(pf_table_new(&spec, &mesh, &table) == PF_EINVAL && !table, "so are experts beyond counting");
}

static void optional_rows_follow_the_spec(void)
{
    struct pf_model_spec spec = fixture_spec("llama", "config.json");

    spec.mlp_bias = spec.head_bias = spec.o_bias = true;
    struct pf_table *table = table_of_spec(&spec, 1);
    ok(pf_table_find(table, 0, PF_SLOT_GATE_B) && pf_table_find(table, 0, PF_SLOT_DOWN_B) &&
           pf_table_find(table, 0, PF_SLOT_O_B) && !pf_table_find(table, 0, PF_SLOT_Q_B),
       "biases are rows where the spec has them");
    ok(strcmp(pf_table_find(table, -1, PF_SLOT_HEAD_B)->name, "lm_head.bias") == 0,
       "so is the head's");
    pf_table_free(table);
}

/* What the fixtures do not have: biases of latents and shared experts, queries without a latent. */
static void optional_rows_of_latents_and_experts(void)
{
    struct pf_model_spec spec = fixture_spec("deepseek_v3", "config.json");

    spec.q_bias = spec.k_bias = spec.o_bias = true;
    struct pf_table *table = table_of_spec(&spec, 1);
    const struct pf_tensor_row *row = pf_table_find(table, 1, PF_SLOT_KV_A_B);
    ok(row && strcmp(row->name, "model.layers.1.self_attn.kv_a_proj_with_mqa.bias") == 0 &&
           row->n_dims == 1 && row->shape[0] == 24 && pf_table_find(table, 1, PF_SLOT_Q_A_B) &&
           pf_table_find(table, 1, PF_SLOT_O_B) && !pf_table_find(table, 1, PF_SLOT_Q_B),
       "attention_bias concerns what leads into the latents and out of the heads");
    pf_table_free(table);
    spec.mla.q_rank = 0;
    table = table_of_spec(&spec, 1);
    row = pf_table_find(table, 0, PF_SLOT_Q_W);
    ok(row && row->shape[0] == 96 && row->shape[1] == 48 &&
           !pf_table_find(table, 0, PF_SLOT_Q_A_W) && !pf_table_find(table, 0, PF_SLOT_Q_A_B) &&
           !pf_table_find(table, 0, PF_SLOT_Q_B),
       "queries without a latent have one projection");
    pf_table_free(table);
    spec = fixture_spec("ernie4_5_moe", "config.json");
    spec.mlp_bias = true;
    table = table_of_spec(&spec, 1);
    row = pf_table_find(table, 1, PF_SLOT_SHARED_UP_B);
    ok(row && row->shape[0] == 48 && pf_table_find(table, 0, PF_SLOT_UP_B) &&
           !pf_table_find(table, 1, PF_SLOT_UP_B),
       "use_bias gives shared experts one, the others none");
    pf_table_free(table);
}

static void routers_stay_fp32(const char *folder, bool is_kept)
{
    struct pf_table *table = table_of(folder, 1);
    int wrong = 0, routers = 0;

    for (int64_t i = 0; i < table->n_rows; i++) {
        const struct pf_tensor_row *row = &table->rows[i];
        const bool bias = row->slot == PF_SLOT_ROUTER_BIAS, router = row->slot == PF_SLOT_ROUTER_W;
        wrong += row->keep_fp32 != (bias || (router && is_kept));
        wrong += row->frozen != bias || (bias && (!row->no_decay || row->init != PF_INIT_ZEROS));
        wrong += (row->expert >= 0) !=
                 (row->slot >= PF_SLOT_EXPERT_GATE_W && row->slot <= PF_SLOT_EXPERT_DOWN_W);
        routers += router;
    }
    ok(wrong == 0 && routers > 0, "%s: the router %s fp32, its bias does and takes no gradient",
       folder, is_kept ? "stays" : "need not stay");
    pf_table_free(table);
}

int main(void)
{
    names_and_shapes_are_the_files();
    rows_are_found();
    rows_stand_in_model_order();
    flags_follow_the_family();
    for (size_t f = 0; f < N_FOLDERS; f++) {
    }
    globs_freeze();
    globs_exclude_decay();
    local_boxes_tile();
    key_heads_are_replicated();
    fused_blocks_are_cut_by_heads();
    vocabulary_is_padded_in_memory_only();
    impossible_and_unknown_models_are_refused();
    optional_rows_follow_the_spec();
    optional_rows_of_latents_and_experts();
    routers_stay_fp32("mixtral", false);
    routers_stay_fp32("qwen3_moe", false);
    routers_stay_fp32("deepseek_v3", true);
    routers_stay_fp32("ernie4_5_moe", true);
    return done();
}
