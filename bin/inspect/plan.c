/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of a run before it is started: which layers lie on which stage, and the bytes of weights and
 * optimizer on each rank. */
#include "command.h"

#include <pf/config.h>
#include <pf/error.h>
#include <pf/log.h>
#include <pf/mem.h>
#include <pf/parallelize.h>
#include <pf/placement.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define WORLD_MAX (1 << 20)

struct plan {
    struct pf_json *config;
    struct pf_model_spec spec;
    enum pf_dtype dtype; /* of the weights */
    struct pf_parallel par;
    struct pf_mesh mesh;
    struct pf_table *table;
    struct pf_placement *place;
    int64_t n_parameters, n_tensors;
    struct stage *stages; /* [pp] */
};

/* A stage's ranks, and the one of them that holds most. */
struct stage {
    int n_ranks, largest;
    int64_t most;
};

/* Bytes of one rank's buffers. */
struct bytes {
    int64_t weights, masters, moments;
};

static int64_t total(const struct bytes *b)
{
    return b->weights + b->masters + b->moments;
}

/* Sizes ------------------------------------------------------------------------------------------ */

static struct bytes bytes_of(const struct plan *plan, int rank)
{
    const int64_t width = (int64_t)pf_dtype_bytes(plan->dtype);
    struct bytes b = {
        .weights = width * pf_placement_buffer(plan->place, PF_ROLE_WEIGHT, rank),
        .moments = 4 * (pf_placement_buffer(plan->place, PF_ROLE_MOMENT1, rank) +
                        pf_placement_buffer(plan->place, PF_ROLE_MOMENT2, rank)),
    };

    if (plan->dtype != PF_DTYPE_F32) { /* else the weights are the masters */
        b.masters = 4 * pf_placement_buffer(plan->place, PF_ROLE_MASTER, rank);
    }
    return b;
}

static int sum_stages(struct plan *plan)
{
    const int world = pf_mesh_size(&plan->mesh);
    int coord[PF_AXIS_COUNT];

    plan->stages = pf_calloc_array((size_t)plan->par.degree[PF_AXIS_PP], sizeof *plan->stages);
    if (!plan->stages) {
        return PF_ENOMEM;
    }
    for (int rank = 0; rank < world; rank++) {
        const struct bytes b = bytes_of(plan, rank);
        pf_mesh_coords(&plan->mesh, rank, coord);
        struct stage *const stage = &plan->stages[coord[PF_AXIS_PP]];
        if (stage->n_ranks++ == 0 || total(&b) > stage->most) {
            stage->largest = rank;
            stage->most = total(&b);
        }
    }
    return 0;
}

/* Reading --------------------------------------------------------------------------------------- */

static int read_dtype(const struct pf_json *config, struct plan *plan)
{
    const char *name = NULL;
    bool bf16 = false, fp16 = false;

    PF_TRY(pf_json_string(config, "torch_dtype", "float32", &name));
    PF_TRY(pf_json_string(config, "dtype", name, &name));
    PF_TRY(pf_json_bool(config, "bf16", false, &bf16));
    PF_TRY(pf_json_bool(config, "fp16", false, &fp16));
    name = bf16 ? "bfloat16" : fp16 ? "float16" : name;
    if (pf_dtype_from_torch_name(name, &plan->dtype) != 0 ||
        (plan->dtype != PF_DTYPE_F32 && plan->dtype != PF_DTYPE_BF16 &&
         plan->dtype != PF_DTYPE_F16)) {
        return pf_fail(PF_EUSAGE, "weights are float32, bfloat16 or float16, not '%s'", name);
    }
    return 0;
}

static int read_config(const struct options *o, const char *path, struct plan *plan)
{
    PF_TRY(pf_json_parse_file(path, &plan->config));
    PF_TRY(pf_json_expect(plan->config, PF_JSON_OBJECT));
    PF_TRY(config_model(plan->config, &plan->spec));
    PF_TRY(read_dtype(plan->config, plan));
    return o->layout ? pf_parallel_parse(o->layout, &plan->par)
                     : pf_parallel_read(plan->config, &plan->par);
}

/* The cuts of a parallelize_plan, with a warning for what of it meets nothing. */
static int apply_cuts(struct plan *plan)
{
    struct pf_str_list notes = {0};
    const int err = pf_parallelize_config(plan->config, plan->table, &notes);

    for (size_t i = 0; i < notes.n && !err; i++) {
        pf_log_warn0("plan", "%s", notes.items[i]);
    }
    pf_str_list_release(&notes);
    return err;
}

static int make(const struct options *o, const char *path, struct plan *plan)
{
    if (o->world < 0 || o->world > WORLD_MAX) {
        return pf_fail(PF_EUSAGE, "--world is from 1 to %d" SEE_HELP, WORLD_MAX);
    }
    PF_TRY(read_config(o, path, plan));
    PF_TRY(pf_parallel_resolve(&plan->par, &plan->spec, (int)o->world, &plan->mesh));
    if (pf_mesh_size(&plan->mesh) > WORLD_MAX) {
        return pf_fail(PF_EINVAL, "a layout of %d ranks is too large to list",
                       pf_mesh_size(&plan->mesh));
    }
    PF_TRY(pf_table_new(&plan->spec, &plan->mesh, &plan->table));
    for (int64_t i = 0; i < plan->table->n_rows; i++) {
        const struct pf_tensor_row *const row = &plan->table->rows[i];
        plan->n_parameters += row->tied_to < 0 ? pf_tensor_row_count(row) : 0;
        plan->n_tensors += row->tied_to < 0;
    }
    if (!o->layout) {
        PF_TRY(apply_cuts(plan));
    }
    PF_TRY(pf_placement_new(plan->table, &plan->par, &plan->place));
    return sum_stages(plan);
}

/* Text -------------------------------------------------------------------------------------------- */

static int n_chunks(const struct plan *plan)
{
    return plan->par.degree[PF_AXIS_PP] * plan->par.vpp;
}

/* "embedding,0-3,8-11,head" */
static int append_layers(struct pf_str *to, const struct plan *plan, int stage)
{
    const int64_t *const starts = pf_placement_starts(plan->place);
    const size_t begin = to->len;

    for (int c = 0; c < n_chunks(plan); c++) {
        const int64_t lo = starts[c], hi = starts[c + 1];
        if (pf_parallel_stage_of(&plan->par, c) != stage) {
            continue;
        }
        if (c == 0) {
            pf_str_append(to, "embedding");
        }
        if (lo < hi) {
            pf_str_appendf(to, "%s%" PRId64, to->len > begin ? "," : "", lo);
        }
        if (lo < hi - 1) {
            pf_str_appendf(to, "-%" PRId64, hi - 1);
        }
        if (c == n_chunks(plan) - 1) {
            pf_str_appendf(to, "%shead", to->len > begin ? "," : "");
        }
    }
    return pf_str_error(to);
}

static int add_bytes(struct table *table, int64_t bytes)
{
    char text[24];

    return table_add_text(table, pf_format_bytes((double)bytes, text));
}

static int add_stage(struct table *table, const struct plan *plan, int stage)
{
    const struct bytes b = bytes_of(plan, plan->stages[stage].largest);

    PF_TRY(table_add_i64(table, stage));
    PF_TRY(table_add_i64(table, plan->stages[stage].n_ranks));
    PF_TRY(add_bytes(table, b.weights));
    PF_TRY(add_bytes(table, b.masters));
    PF_TRY(add_bytes(table, b.moments));
    PF_TRY(add_bytes(table, total(&b)));
    PF_TRY(append_layers(&table->cell, plan, stage));
    return table_end_cell(table);
}

static int print_head(const struct plan *plan)
{
    struct pf_str layout;
    char text[96];

    snprintf(text, sizeof text, "%s, %" PRId64 " parameters in %" PRId64 " tensors",
             pf_family_name(plan->spec.family), plan->n_parameters, plan->n_tensors);
    print_field("model", text);
    pf_str_init(&layout);
    const int err = pf_parallel_print(&plan->par, &layout);
    if (!err) {
        print_field("layout", layout.text);
    }
    pf_str_release(&layout);
    snprintf(text, sizeof text, "%d", pf_mesh_size(&plan->mesh));
    print_field("ranks", text);
    snprintf(text, sizeof text, "%s%s", pf_dtype_torch_name(plan->dtype),
             plan->dtype == PF_DTYPE_F32 ? "" : ", with fp32 masters");
    print_field("weights", text);
    return err;
}

static int plan_text(const struct plan *plan)
{
    static const char *const heads[] = {"STAGE",   "RANKS", "WEIGHTS", "MASTERS",
                                        "MOMENTS", "TOTAL", "LAYERS"};
    struct table table;
    int err = 0;

    PF_TRY(print_head(plan));
    table_init(&table, "rrrrrrl");
    for (size_t i = 0; i < sizeof heads / sizeof heads[0] && !err; i++) {
        err = table_add_text(&table, heads[i]);
    }
    for (int stage = 0; stage < plan->par.degree[PF_AXIS_PP] && !err; stage++) {
        err = add_stage(&table, plan, stage);
    }
    if (!err) {
        table_print(&table);
        printf("bytes of the rank of the stage that holds most, padding included\n");
    }
    table_release(&table);
    return err;
}

/* JSON -------------------------------------------------------------------------------------------- */

static void write_chunks(struct pf_json_out *out, const struct plan *plan)
{
    const int64_t *const starts = pf_placement_starts(plan->place);

    pf_json_out_key(out, "chunks");
    pf_json_out_array_begin(out);
    for (int c = 0; c < n_chunks(plan); c++) {
        pf_json_out_object_begin(out);
        pf_json_out_member_i64(out, "stage", pf_parallel_stage_of(&plan->par, c));
        pf_json_out_member_i64(out, "first_layer", starts[c]);
        pf_json_out_member_i64(out, "layers", starts[c + 1] - starts[c]);
        pf_json_out_object_end(out);
    }
    pf_json_out_array_end(out);
}

static void write_rank(struct pf_json_out *out, const struct plan *plan, int rank)
{
    const struct bytes b = bytes_of(plan, rank);
    int coord[PF_AXIS_COUNT];

    pf_mesh_coords(&plan->mesh, rank, coord);
    pf_json_out_object_begin(out);
    pf_json_out_member_i64(out, "rank", rank);
    for (int a = 0; a < PF_AXIS_COUNT; a++) {
        pf_json_out_member_i64(out, pf_axis_name((enum pf_axis)a), coord[a]);
    }
    pf_json_out_member_i64(out, "weight_bytes", b.weights);
    pf_json_out_member_i64(out, "master_bytes", b.masters);
    pf_json_out_member_i64(out, "moment_bytes", b.moments);
    pf_json_out_object_end(out);
}

static int plan_json(struct options *o, const struct plan *plan)
{
    struct document d;
    struct pf_str layout;

    pf_str_init(&layout);
    (void)pf_parallel_print(&plan->par, &layout); /* its failure stays in the string */
    PF_TRY(pf_str_error(&layout));
    document_begin(&d, o, 0);
    pf_json_out_member_string(&d.out, "model_type", pf_family_name(plan->spec.family));
    pf_json_out_member_i64(&d.out, "parameters", plan->n_parameters);
    pf_json_out_member_i64(&d.out, "tensors", plan->n_tensors);
    pf_json_out_member_string(&d.out, "dtype", pf_dtype_torch_name(plan->dtype));
    pf_json_out_member_string(&d.out, "layout", layout.text);
    pf_json_out_member_i64(&d.out, "world_size", pf_mesh_size(&plan->mesh));
    write_chunks(&d.out, plan);
    pf_json_out_key(&d.out, "ranks");
    pf_json_out_array_begin(&d.out);
    for (int rank = 0; rank < pf_mesh_size(&plan->mesh); rank++) {
        write_rank(&d.out, plan, rank);
    }
    pf_json_out_array_end(&d.out);
    pf_str_release(&layout);
    return document_end(&d, o);
}

int command_plan(struct options *o, char **operands)
{
    struct plan plan = {.dtype = PF_DTYPE_F32};
    int err = make(o, operands[0], &plan);

    if (!err) {
        err = o->shared.json ? plan_json(o, &plan) : plan_text(&plan);
    }
    pf_free(plan.stages);
    pf_placement_free(plan.place);
    pf_table_free(plan.table);
    pf_json_free(plan.config);
    return err;
}
