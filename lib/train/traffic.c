/* SPDX-License-Identifier: Apache-2.0 */
/* Traffic of a step, from the same lists, placements and walks that the step is run from. */
#include <pf/traffic.h>

#include <pf/error.h>
#include <pf/exactsum.h>
#include <pf/layout.h>

#include <stdio.h>

static const char *const names[PF_TRAFFIC_COUNT] = {
    [PF_TRAFFIC_TP] = "tp",     [PF_TRAFFIC_KEY_HEADS] = "key_heads",
    [PF_TRAFFIC_PP] = "pp",     [PF_TRAFFIC_ENDS] = "ends",
    [PF_TRAFFIC_DP] = "dp",     [PF_TRAFFIC_LOSS] = "loss",
    [PF_TRAFFIC_DATA] = "data", [PF_TRAFFIC_WORLD] = "world",
};

const char *pf_traffic_name(enum pf_traffic_group group)
{
    return names[group];
}

/* Over how many tensor-parallel ranks a key head lies, where not over all or one. */
static int key_head_ranks(const struct pf_model_spec *spec, int n_tp)
{
    const int n = n_tp > spec->n_kv_heads ? (int)(n_tp / spec->n_kv_heads) : 1;

    return n < n_tp ? n : 1;
}

static void set_ranks(const struct pf_table *table, bool is_end, struct pf_traffic_row *rows)
{
    const int *const degree = table->mesh.degree;
    const int data = degree[PF_AXIS_DP] * degree[PF_AXIS_SHARDING];

    rows[PF_TRAFFIC_TP].n_ranks = degree[PF_AXIS_TP];
    rows[PF_TRAFFIC_KEY_HEADS].n_ranks = key_head_ranks(&table->spec, degree[PF_AXIS_TP]);
    rows[PF_TRAFFIC_PP].n_ranks = degree[PF_AXIS_PP];
    rows[PF_TRAFFIC_ENDS].n_ranks = degree[PF_AXIS_PP] > 1 && is_end ? 2 : 1;
    rows[PF_TRAFFIC_DATA].n_ranks = data;
    rows[PF_TRAFFIC_DP].n_ranks = data * degree[PF_AXIS_CP];
    rows[PF_TRAFFIC_LOSS].n_ranks = data * degree[PF_AXIS_CP] * degree[PF_AXIS_PP];
    rows[PF_TRAFFIC_WORLD].n_ranks = pf_mesh_size(&table->mesh);
}

/* The passes of this stage's list, and its messages. */
static void add_schedule(const struct pf_table *table, const struct pf_schedule *schedule,
                         int stage, const struct pf_model_options *options,
                         struct pf_traffic_row *rows)
{
    static const enum pf_model_pass passes[PF_SCHED_KIND_COUNT] = {
        [PF_SCHED_FORWARD] = PF_MODEL_FORWARD,
        [PF_SCHED_BACKWARD] = PF_MODEL_BACKWARD,
        [PF_SCHED_BACKWARD_INPUT] = PF_MODEL_BACKWARD,
        [PF_SCHED_BACKWARD_WEIGHT] = PF_MODEL_BACKWARD_WEIGHTS};
    const struct pf_sched_list *const list = &schedule->stages[stage];
    const int64_t n_rows =
        options->batch * options->seq / (options->sequence_parallel ? options->n_tp : 1);
    const uint64_t boundary =
        (uint64_t)(n_rows * table->spec.hidden) * pf_dtype_bytes(options->dtype);

    for (int i = 0; i < list->n_steps; i++) {
        const struct pf_sched_step *const step = &list->steps[i];
        if (step->live >= 0) {
            /* Chunks go round the stages (pf_schedule_stage_of). */
            pf_model_traffic(&table->spec, table, options, step->chunk / schedule->n_stages,
                             passes[step->kind], rows[PF_TRAFFIC_TP].bytes);
        } else if (step->kind == PF_SCHED_SEND_FWD || step->kind == PF_SCHED_SEND_BWD) {
            rows[PF_TRAFFIC_PP].bytes[PF_COMM_SEND] += boundary;
        }
    }
}

/* What is summed after the last backward. */
static void add_gradients(const struct pf_table *table, const struct pf_layout *layout,
                          bool sequence_parallel, struct pf_traffic_row *rows)
{
    const int n_tp = table->mesh.degree[PF_AXIS_TP];

    for (int64_t i = 0; i < table->n_rows; i++) {
        const struct pf_tensor_row *const row = &table->rows[i];
        const uint64_t bytes = (uint64_t)layout->count[i] * sizeof(float);
        if (row->tied_to >= 0) {
            const int64_t owner = row->tied_to;
            if (layout->grad_at[owner] >= 0) {
                rows[PF_TRAFFIC_ENDS].bytes[PF_COMM_ALL_REDUCE] +=
                    (uint64_t)layout->count[owner] * sizeof(float);
            }
            continue;
        }
        const int n = pf_model_grad_ranks(table, row, n_tp, sequence_parallel);
        if (layout->grad_at[i] >= 0 && n > 1) {
            rows[n == n_tp ? PF_TRAFFIC_TP : PF_TRAFFIC_KEY_HEADS].bytes[PF_COMM_ALL_REDUCE] +=
                bytes;
        }
    }
    rows[PF_TRAFFIC_DP].bytes[PF_COMM_ALL_REDUCE] +=
        (uint64_t)layout->grad_reduced_elements * sizeof(float);
}

int pf_traffic_of(const struct pf_placement *place, const struct pf_schedule *schedule,
                  const struct pf_model_options *options, int rank, struct pf_traffic *traffic_out)
{
    const struct pf_table *const table = pf_placement_table(place);
    const uint64_t sum = sizeof(struct pf_exactsum);
    struct pf_traffic_row *const rows = traffic_out->rows;
    struct pf_layout *layout;
    int coord[PF_AXIS_COUNT];

    PF_TRY(pf_layout_new(place, rank, &layout));
    *traffic_out = (struct pf_traffic){0};
    pf_mesh_coords(&table->mesh, rank, coord);
    const int stage = coord[PF_AXIS_PP];
    set_ranks(table, stage == 0 || stage == schedule->n_stages - 1, rows);
    add_schedule(table, schedule, stage, options, rows);
    add_gradients(table, layout, options->sequence_parallel, rows);
    pf_layout_free(layout);
    rows[PF_TRAFFIC_LOSS].bytes[PF_COMM_ALL_REDUCE] = sum;
    rows[PF_TRAFFIC_DATA].bytes[PF_COMM_ALL_REDUCE] = sizeof(int64_t);
    rows[PF_TRAFFIC_WORLD].bytes[PF_COMM_ALL_REDUCE] = sum + sizeof(int64_t);
    return 0;
}

uint64_t pf_traffic_sent(const struct pf_traffic_row *row)
{
    uint64_t sent = 0;

    for (int kind = 0; kind < PF_COMM_KIND_COUNT; kind++) {
        sent += pf_comm_sent_bytes((enum pf_comm_kind)kind, row->bytes[kind], row->n_ranks);
    }
    return sent;
}

void pf_traffic_text(const struct pf_traffic *traffic, struct pf_str *to)
{
    const char *comma = "";
    char size[24];

    for (int g = 0; g < PF_TRAFFIC_COUNT; g++) {
        const uint64_t sent = pf_traffic_sent(&traffic->rows[g]);
        if (sent > 0) {
            pf_str_appendf(to, "%s%s %s", comma, names[g], pf_format_bytes((double)sent, size));
            comma = ", ";
        }
    }
    pf_str_append(to, comma[0] ? "" : "none");
}

void pf_traffic_json(const struct pf_traffic *traffic, struct pf_json_out *out)
{
    char name[64];

    pf_json_out_object_begin(out);
    for (int g = 0; g < PF_TRAFFIC_COUNT; g++) {
        const struct pf_traffic_row *const row = &traffic->rows[g];
        if (row->n_ranks <= 1) {
            continue;
        }
        pf_json_out_key(out, names[g]);
        pf_json_out_object_begin(out);
        pf_json_out_member_i64(out, "ranks", row->n_ranks);
        pf_json_out_member_i64(out, "sent_bytes", (int64_t)pf_traffic_sent(row));
        for (int kind = 0; kind < PF_COMM_KIND_COUNT; kind++) {
            if (row->bytes[kind] > 0) {
                snprintf(name, sizeof name, "%s_bytes", pf_comm_kind_name((enum pf_comm_kind)kind));
                pf_json_out_member_i64(out, name, (int64_t)row->bytes[kind]);
            }
        }
        pf_json_out_object_end(out);
    }
    pf_json_out_object_end(out);
}
