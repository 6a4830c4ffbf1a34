/* SPDX-License-Identifier: Apache-2.0 */
/* A layout said by a parallelize_plan: the same table as the model's own, or another where it says so. */
#include <pf/error.h>
#include <pf/json.h>
#include <pf/parallelize.h>
#include <pf/placement.h>

#include "placed.h"
#include "tap.h"

#include <stdlib.h>

#define LLAMA_MP                                                                                   \
    "\"model.embed_tokens\": \"RowWiseParallel\","                                                 \
    "\"model.layers.*.self_attn.[qkv]_proj\": \"ColWiseParallel\","                                \
    "\"model.layers.*.self_attn.o_proj\": [\"RowWiseParallel\", \"SequenceParallelEnd\"],"         \
    "\"model.layers.*.mlp.(gate|up)_proj\": {\"ColWiseParallel\": {\"gather_output\": false}},"    \
    "\"model.layers.*.mlp.down_proj\": {\"RowWiseParallel\": {\"is_input_parallel\": true}},"      \
    "\"lm_head.weight\": \"ColWiseParallel\""

#define GPT2_MP                                                                                    \
    "\"transformer.wte\": \"RowWiseParallel\", \"transformer.h.*.c_attn\": \"ColWiseParallel\","   \
    "\"transformer.h.*.attn.c_proj\": \"RowWiseParallel\","                                        \
    "\"transformer.h.*.c_fc\": \"ColWiseParallel\", \"transformer.h.*.mlp.c_proj\": "              \
    "\"RowWiseParallel\""

static struct pf_json *parsed(const char *text)
{
    struct pf_json *doc = NULL;

    if (pf_json_parse_text(text, strlen(text), "plan", &doc) != 0) {
        ok(false, "%s is read: %s", text, pf_error_message());
        exit(done());
    }
    return doc;
}

static struct pf_table *table_in(const struct pf_model_spec *spec, const char *layout)
{
    struct pf_table *table = NULL;
    struct pf_parallel par;
    struct pf_mesh mesh;

    if (pf_parallel_parse(layout, &par) != 0 || pf_parallel_resolve(&par, spec, 0, &mesh) != 0 ||
        pf_table_new(spec, &mesh, &table) != 0) {
        ok(false, "a table: %s", pf_error_message());
        exit(done());
    }
    return table;
}

/* The first note, or how it failed. */
static const char *apply(const char *plan, struct pf_table *table, int *err_out)
{
    static char said[512];
    struct pf_str_list notes = {0};
    struct pf_json *doc = parsed(plan);

    *err_out = pf_parallelize_table(doc, table, &notes);
    snprintf(said, sizeof said, "%s",
             *err_out      ? pf_error_message()
             : notes.n > 0 ? notes.items[0]
                           : "");
    pf_str_list_release(&notes);
    pf_json_free(doc);
    return said;
}

static bool same_cuts(const struct pf_table *a, const struct pf_table *b)
{
    for (int64_t i = 0; i < a->n_rows; i++) {
        for (int d = 0; d < a->rows[i].n_dims; d++) {
            const struct pf_cut *const x = &a->rows[i].cut[d], *const y = &b->rows[i].cut[d];
            if (x->view != y->view || (x->view != PF_CUT_NONE && x->unit != y->unit)) {
                printf("# %s\n", a->rows[i].name);
                return false;
            }
        }
    }
    return true;
}

static void plans_give_the_models_own_table(void)
{
    static const struct {
        const char *folder, *plan;
    } cases[] = {{"llama", "{\"mp_config\": {\"parallelize_plan\": {" LLAMA_MP "}}}"},
                 {"llama-tied", "{" LLAMA_MP "}"},
                 {"qwen2", "{" LLAMA_MP "}"},
                 {"qwen3", "{" LLAMA_MP "}"},
                 {"gpt2", "{" GPT2_MP "}"}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct pf_model_spec spec = small(cases[i].folder, 2, 2);
        spec.tied_head = spec.tied_head && strcmp(cases[i].folder, "qwen2") != 0;
        struct pf_table *own = table_in(&spec, "tp=4"), *planned = table_in(&spec, "tp=4");
        int err;
        const char *const said = apply(cases[i].plan, planned, &err);
        ok(err == 0 && *said == '\0' && same_cuts(own, planned),
           "%s: a plan of columns and rows is the model's own table %s", cases[i].folder, said);
        pf_table_free(own);
        pf_table_free(planned);
    }
}

static void box_is(const struct pf_table *table, int layer, enum pf_slot slot, int rank,
                   int64_t lo0, int64_t hi0, int64_t lo1, int64_t hi1)
{
    const struct pf_tensor_row *const row = pf_table_find(table, layer, slot);
    struct pf_box boxes[PF_TABLE_MAX_BOXES];
    const int n = pf_table_local_boxes(table, row, rank, boxes);

    ok(n == 1 && boxes[0].lo[0] == lo0 && boxes[0].hi[0] == hi0 &&
           (row->n_dims == 1 || (boxes[0].lo[1] == lo1 && boxes[0].hi[1] == hi1)),
       "rank %d has [%lld,%lld)x[%lld,%lld) of '%s'", rank, (long long)lo0, (long long)hi0,
       (long long)lo1, (long long)hi1, row->name);
}

/* Paddle stores [in, out] and cuts dimension 1 by columns; here [out, in], so it is dimension 0. */
static void other_plans_cut_otherwise(void)
{
    struct pf_model_spec spec = small("qwen2", 2, 2); /* hidden 16, q 32 rows, ffn 24, tied */
    struct pf_table *table = table_in(&spec, "tp=2");
    int err;
    const char *said = apply("{\"model.embed_tokens\": \"ColWiseParallel\","
                             "\"model.layers.1.self_attn.q_proj\": \"RowWiseParallel\","
                             "\"model.layers.*.mlp.up_proj\": \"ColWiseParallel\"}",
                             table, &err);

    ok(err == 0 && *said == '\0', "a plan that is not the model's %s", said);
    box_is(table, -1, PF_SLOT_EMBED, 1, 0, 13, 8, 16);
    box_is(table, -1, PF_SLOT_HEAD_W, 1, 0, 13, 8, 16);
    box_is(table, 1, PF_SLOT_Q_W, 1, 0, 32, 8, 16);
    box_is(table, 1, PF_SLOT_Q_B, 1, 0, 32, 0, 0);
    box_is(table, 0, PF_SLOT_Q_W, 1, 0, 32, 0, 16);
    box_is(table, 0, PF_SLOT_UP_W, 1, 12, 24, 0, 16);
    box_is(table, 0, PF_SLOT_GATE_W, 1, 0, 24, 0, 16);
    pf_table_free(table);
}

static void says(const char *folder, const char *plan, int want, const char *message)
{
    struct pf_model_spec spec = small(folder, 2, 4);
    struct pf_table *table = table_in(&spec, "tp=2");
    int err;
    const char *const said = apply(plan, table, &err);

    if (!ok(err == want && strcmp(said, message) == 0, "%s", message)) {
        printf("# %d: %s\n", err, said);
    }
    pf_table_free(table);
}

static void mistakes_are_named(void)
{
    says("llama", "{\"llama.layers.*.q_proj\": \"ColWiseParallel\"}", 0,
         "'llama.layers.*.q_proj' of the plan meets no tensor");
    says(
        "llama",
        "{\"model.layers.*\": \"ColWiseParallel\", \"model.layers.0.mlp.up_proj\": "
        "\"RowWiseParallel\"}",
        0,
        "'model.layers.0.mlp.up_proj.weight' is cut as 'model.layers.0.mlp.up_proj' says, the last "
        "pattern that meets it");
    says("llama", "{\"lm_head\": \"ColumnParallel\"}", PF_EUSAGE,
         "'lm_head' 'ColumnParallel' is none of ColWiseParallel, RowWiseParallel, "
         "SequenceParallelBegin, -End, -Enable, -Disable ('plan' line 1)");
    says("llama", "{\"lm_head\": [\"ColWiseParallel\", \"RowWiseParallel\"]}", PF_EUSAGE,
         "'lm_head[1]' cuts by columns and by rows ('plan' line 1)");
    says("llama", "{\"lm_head\": {\"ColWiseParallel\": {\"gather\": true}}}", PF_EUSAGE,
         "'lm_head.ColWiseParallel.gather' is not known ('plan' line 1)");
    says("llama", "{\"model\": \"PrepareLayerInput\"}", PF_ENOTSUP,
         "PrepareLayerInput in 'model' runs Python code, which pf does not");
    says("llama", "{\"mp_config\": {}, \"tp_config\": {}}", PF_EUSAGE,
         "'tp_config' is not known; did you mean 'dp_config'? ('plan' line 1)");
    says("llama", "{\"pp_config\": {\"split_spec\": \"llama.layers\"}}", PF_EINVAL,
         "'pp_config.split_spec' is 'llama.layers', the layers are 'model.layers'");
    says("llama", "{\"pp_config\": {\"split_spec\": {\"model.layers.4\": \"END\"}}}", PF_EINVAL,
         "'model.layers.4' is none of the 4 layers 'model.layers.N'");
    says("qwen2", "{\"model.embed_tokens\": \"ColWiseParallel\", \"lm_head\": \"ColWiseParallel\"}",
         PF_EINVAL,
         "'lm_head.weight' and 'model.embed_tokens.weight' are one tensor, which cannot be cut in "
         "two ways");
    says(
        "mixtral", "{\"model.layers.0.*w1\": \"ColWiseParallel\"}", PF_ENOTSUP,
        "'model.layers.0.block_sparse_moe.experts.0.w1.weight' is an expert's, which pf deals over "
        "ep and does not cut");
}

static void options_are_read(const char *config, int want, const char *text)
{
    struct pf_json *doc = parsed(config);
    struct pf_parallel par;
    struct pf_str printed;

    pf_str_init(&printed);
    const int err = pf_parallel_read(doc, &par);
    if (!err) {
        pf_parallel_print(&par, &printed);
    }
    if (!ok(err == want && strcmp(err ? pf_error_message() : printed.text, text) == 0, "%s",
            text)) {
        printf("# %d: %s\n", err, err ? pf_error_message() : printed.text);
    }
    pf_str_release(&printed);
    pf_json_free(doc);
}

int main(void)
{
    plans_give_the_models_own_table();
    other_plans_cut_otherwise();
    mistakes_are_named();
    options_are_read("{\"pipeline_parallel_degree\": 3, \"parallelize_plan\": {\"dp_config\": "
                     "{\"sharding_level\": 2}, \"pp_config\": {\"split_spec\": "
                     "{\"model.layers.4\": \"BEGINNING\", \"model.layers.1\": \"END\"}}}}",
                     0, "pp=3,stage=2,segments=0:2:4");
    options_are_read("{\"parallelize_plan\": {" LLAMA_MP "}}", 0, "");
    options_are_read(
        "{\"parallelize_plan\": {\"dp_config\": {\"sharding_level\": 4}}}", PF_EUSAGE,
        "'parallelize_plan.dp_config.sharding_level' is 4, must be from 0 to 3 ('plan' "
        "line 1)");
    options_are_read("{\"sharding\": \"stage3\", \"parallelize_plan\": {\"dp_config\": "
                     "{\"sharding_level\": 1}}}",
                     PF_EREFUSED,
                     "'parallelize_plan.dp_config.sharding_level' is 1, but stage 3 is "
                     "asked for elsewhere");
    options_are_read("{\"parallelize_plan\": {\"pp_config\": {\"split_spec\": {\"model.layers\": "
                     "\"END\"}}}}",
                     PF_EUSAGE,
                     "'parallelize_plan.pp_config.split_spec.model.layers' is no layer: "
                     "its name ends in no number ('plan' line 1)");
    return done();
}
