/* SPDX-License-Identifier: Apache-2.0 */
/* --plan: what a run will be, and what it will need, from the same numbers that the run uses. */
#include <pf/train.h>

#include "train_internal.h"

#include <pf/error.h>
#include <pf/json.h>
#include <pf/mem.h>
#include <pf/traffic.h>

#include <inttypes.h>
#include <string.h>

/* Micro-batches of a schedule that are drawn; a longer one is cut. */
#define DRAWN_STEPS 32

/* Stages whose memory is printed side by side. */
#define STAGES_A_LINE 5

enum { N_MEMORY_MAX = 24 };

/* One purpose of memory. */
struct memory_row {
    const char *name;
    size_t bytes;
};

/* What a rank of a pipeline stage holds: all of a stage hold as much. */
struct stage_plan {
    struct memory_row rows[N_MEMORY_MAX];
    int n_rows;
    size_t total_bytes;
    struct pf_traffic traffic; /* of a training step; nothing where none is made */
};

struct plan {
    int64_t n_parameters, n_trained;
    int n_stages, stage;       /* stage: this rank's */
    struct stage_plan *stages; /* [n_stages]; the same rows in each */
    double bubble;             /* of a training step */
};

static void add_memory(struct stage_plan *stage, const char *name, size_t bytes)
{
    stage->rows[stage->n_rows++] = (struct memory_row){name, bytes};
    stage->total_bytes += bytes;
}

static size_t floats(int64_t n)
{
    return (size_t)n * sizeof(float);
}

/* The first rank of a stage. */
static int rank_of_stage(const struct pf_trainer *t, int stage)
{
    const int coord[PF_AXIS_COUNT] = {[PF_AXIS_PP] = stage};

    return pf_mesh_rank(&t->table->mesh, coord);
}

static int stage_of_rank(const struct pf_trainer *t, int rank)
{
    int coord[PF_AXIS_COUNT];

    pf_mesh_coords(&t->table->mesh, rank, coord);
    return coord[PF_AXIS_PP];
}

static int add_state(const struct pf_trainer *t, int number, struct stage_plan *stage)
{
    const bool narrow = t->config->dtype != PF_DTYPE_F32, trains = !t->config->eval_only;
    struct pf_layout *layout;

    PF_TRY(pf_layout_new(t->place, rank_of_stage(t, number), &layout));
    add_memory(stage, "parameters", floats(layout->param_elements));
    add_memory(stage, "stored_weights", narrow ? (size_t)layout->param_elements * 2 : 0);
    add_memory(stage, "gradients", trains ? floats(layout->grad_elements) : 0);
    add_memory(stage, "moments", trains ? 2 * floats(layout->grad_reduced_elements) : 0);
    pf_layout_free(layout);
    return 0;
}

/* Both models count where evaluation has a batch of its own. Buffers of boundaries are of the model's
 * dtype. */
static int add_stage_models(struct pf_trainer *t, int number, struct pf_model_chunk *chunks,
                            struct stage_plan *stage)
{
    const struct pf_config *const c = t->config;
    const int n_chunks = train_stage_chunks(t, number, chunks);
    const size_t row = (size_t)t->spec.hidden * pf_dtype_bytes(c->dtype);
    struct pf_sched_facts facts[2];
    struct pf_model_plan sum = {0};
    size_t boundaries = 0, sampling;

    PF_TRY(train_schedule_facts(t, number, &facts[0], &facts[1]));
    for (int eval = 0; eval < 2; eval++) {
        struct pf_model_options options = train_model_options(t, !eval);
        const int n_tp = options.sequence_parallel ? options.n_tp : 1;
        const size_t n_rows = (size_t)(options.batch * options.seq / n_tp);
        struct pf_model_plan one;
        options.chunks = chunks;
        options.n_chunks = n_chunks;
        options.n_live = facts[eval].n_slots;
        if (eval ? train_has_eval_model(c) : !c->eval_only) {
            PF_TRY(pf_model_plan(&t->spec, &options, &one));
            sum.activation_bytes += one.activation_bytes;
            sum.work_bytes += one.work_bytes;
            sum.logits_bytes += one.logits_bytes;
        }
        if (eval ? train_wants_eval(c) : !c->eval_only) {
            boundaries += train_pipe_bytes(&facts[eval], n_rows * row);
        }
    }
    add_memory(stage, "activations", sum.activation_bytes);
    add_memory(stage, "work", sum.work_bytes);
    add_memory(stage, "logits", sum.logits_bytes);
    add_memory(stage, "boundaries", boundaries);
    PF_TRY(train_sample_bytes(t, chunks, n_chunks, &facts[1], &sampling));
    add_memory(stage, "sampling", sampling);
    return 0;
}

static int add_models(struct pf_trainer *t, int number, struct stage_plan *stage)
{
    struct pf_model_chunk *const chunks = pf_calloc_array((size_t)t->par.vpp, sizeof *chunks);
    const int err = chunks ? add_stage_models(t, number, chunks, stage) : PF_ENOMEM;

    pf_free(chunks);
    return err;
}

static int add_traffic(struct pf_trainer *t, int number, struct stage_plan *stage)
{
    struct pf_model_options options = train_model_options(t, true);
    struct pf_model_chunk *const chunks = pf_calloc_array((size_t)t->par.vpp, sizeof *chunks);
    struct pf_sched_facts facts, eval_facts;

    if (!chunks) {
        return PF_ENOMEM;
    }
    options.chunks = chunks;
    options.n_chunks = train_stage_chunks(t, number, chunks);
    int err = train_schedule_facts(t, number, &facts, &eval_facts);
    options.split_backward = facts.peak_split > 0;
    if (!err) {
        err = pf_traffic_of(t->place, t->schedule, &options, rank_of_stage(t, number),
                            &stage->traffic);
    }
    pf_free(chunks);
    return err;
}

static void add_batches(const struct pf_trainer *t, struct stage_plan *stage)
{
    const struct pf_reader_options train = train_reader_options(t, true),
                                   eval = train_reader_options(t, false);

    add_memory(stage, "batches",
               pf_reader_bytes(&train) +
                   (train_wants_eval(t->config) ? pf_reader_bytes(&eval) : 0));
}

/* What is the same on every stage. tables: what a rank holds before it is built, communicators, tables,
 * kernels. */
static void add_others(struct pf_trainer *t, size_t tables, struct stage_plan *stage)
{
    const size_t measured_in = pf_ops_scratch_bytes(t->ops); /* 0 where a cache file chose */
    const size_t scratch = (size_t)pf_ops_threads(t->ops) * PF_GEMM_SCRATCH_FLOATS * sizeof(float);

    add_memory(stage, "tables_and_staging", tables);
    /* A registry of its own measures the peak, and has gone before the run's takes its scratch, unless
     * that has it from choosing kernels. */
    add_memory(stage, "measuring",
               train_peak_bytes(t) + measured_in + train_profile_measuring_bytes(t));
    add_memory(stage, "scratch", scratch);
}

static int plan_stage(struct pf_trainer *t, int number, struct stage_plan *stage)
{
    PF_TRY(add_state(t, number, stage));
    PF_TRY(add_models(t, number, stage));
    add_batches(t, stage);
    add_memory(stage, "profiling", train_profile_bytes(t));
    return t->config->eval_only ? 0 : add_traffic(t, number, stage);
}

static void count_parameters(const struct pf_trainer *t, struct plan *plan)
{
    for (int64_t i = 0; i < t->table->n_rows; i++) {
        const struct pf_tensor_row *const row = &t->table->rows[i];
        const int64_t n = row->tied_to < 0 ? pf_tensor_row_count(row) : 0;
        plan->n_parameters += n;
        plan->n_trained += row->frozen ? 0 : n;
    }
}

static int make_plan(struct pf_trainer *t, struct plan *plan)
{
    const size_t held = pf_mem_live_bytes() - pf_ops_scratch_bytes(t->ops);

    PF_TRY(train_schedule_facts(t, t->groups.stage, &t->facts, &t->eval_facts));
    *plan = (struct plan){.n_stages = t->table->mesh.degree[PF_AXIS_PP],
                          .stage = stage_of_rank(t, pf_comm_rank(t->world))};
    count_parameters(t, plan);
    PF_TRY(pf_schedule_bubble(t->schedule, &plan->bubble));
    plan->stages = pf_calloc_array((size_t)plan->n_stages, sizeof *plan->stages);
    if (!plan->stages) {
        return PF_ENOMEM;
    }
    for (int i = 0; i < plan->n_stages; i++) {
        PF_TRY(plan_stage(t, i, &plan->stages[i]));
    }
    const size_t built = t->layout ? plan->stages[plan->stage].total_bytes : 0;
    for (int i = 0; i < plan->n_stages; i++) {
        /* One process that plans for many has no transport yet. */
        add_others(t,
                   (held > built ? held - built : 0) +
                       (train_plans_alone(t) ? PF_COMM_STAGING_BYTES : 0),
                   &plan->stages[i]);
    }
    return 0;
}

/* Text ------------------------------------------------------------------------------------------ */

static int n_chunks(const struct pf_trainer *t)
{
    return t->par.degree[PF_AXIS_PP] * t->par.vpp;
}

/* The computing steps of a list: F and B with the micro-batch; I and W where backward is split. */
static void draw_stage(const struct pf_sched_list *list, struct pf_str *text)
{
    static const char letters[] = {[PF_SCHED_FORWARD] = 'F',
                                   [PF_SCHED_BACKWARD] = 'B',
                                   [PF_SCHED_BACKWARD_INPUT] = 'I',
                                   [PF_SCHED_BACKWARD_WEIGHT] = 'W'};
    int n = 0;

    for (int i = 0; i < list->n_steps; i++) {
        const struct pf_sched_step *const step = &list->steps[i];
        if (step->live < 0) {
            continue;
        }
        if (n++ < DRAWN_STEPS) {
            pf_str_appendf(text, "%s%c%d", n > 1 ? " " : "", letters[step->kind], step->micro);
        }
    }
    if (n > DRAWN_STEPS) {
        pf_str_appendf(text, " ... (%d steps)", n);
    }
}

static void text_model(const struct pf_trainer *t, const struct plan *plan, struct pf_str *text)
{
    const struct pf_model_spec *const s = &t->spec;

    pf_str_appendf(text,
                   "model      %s: %" PRId64 " layers, hidden %" PRId64 ", %" PRId64
                   " heads (%" PRId64 " of keys), ffn %" PRId64 ", vocabulary %" PRId64 "%s\n",
                   pf_family_name(s->family), s->n_layers, s->hidden, s->n_heads, s->n_kv_heads,
                   s->ffn, s->vocab_size, s->tied_head ? ", tied head" : "");
    pf_str_appendf(text,
                   "           %" PRId64 " parameters, %" PRId64 " of them trained, stored as %s\n",
                   plan->n_parameters, plan->n_trained, pf_dtype_torch_name(t->config->dtype));
}

static void text_layout(const struct pf_trainer *t, struct pf_str *text)
{
    pf_str_appendf(text, "layout     %d %s:", pf_mesh_size(&t->table->mesh),
                   pf_mesh_size(&t->table->mesh) == 1 ? "rank" : "ranks");
    for (int a = 0; a < PF_AXIS_COUNT; a++) {
        pf_str_appendf(text, " %s=%d", pf_axis_name((enum pf_axis)a), t->table->mesh.degree[a]);
    }
    pf_str_append(text, "\n");
}

static void text_batch(const struct pf_trainer *t, struct pf_str *text)
{
    const struct pf_config *const c = t->config;

    pf_str_appendf(text,
                   "batch      %" PRId64 " sequences x %" PRId64
                   " micro-batches x %d data-parallel "
                   "ranks = %" PRId64 " sequences a step, of %" PRId64 " tokens: %" PRId64 "\n",
                   c->per_device_train_batch_size, c->gradient_accumulation_steps, t->dp_size,
                   c->global_train_batch_size, c->max_seq_length,
                   c->global_train_batch_size * c->max_seq_length);
    if (c->eval_only) {
        pf_str_append(text, "length     one evaluation\n");
    } else if (t->total_steps > 0 || c->max_steps > 0) {
        pf_str_appendf(text, "length     %" PRId64 " steps\n",
                       t->total_steps > 0 ? t->total_steps : c->max_steps);
    } else {
        pf_str_appendf(text, "length     %g epochs of the data (--check counts their steps)\n",
                       c->num_train_epochs);
    }
}

/* Where a run begins, and after --check (or build) what its data are. */
static void text_start(const struct pf_trainer *t, struct pf_str *text)
{
    if (t->resume) {
        pf_str_appendf(text, "resume     %s, after step %" PRId64 "\n", t->resume_path,
                       t->resume->step);
    }
    if (t->data && !t->config->eval_only) {
        pf_str_appendf(text, "data       %s\n", pf_data_describe(t->data));
    }
    if (t->eval_data) {
        pf_str_appendf(text, "evaluation %s\n", pf_data_describe(t->eval_data));
    }
}

static void text_sample(const struct pf_trainer *t, struct pf_str *text)
{
    const struct pf_config *const c = t->config;

    if (!train_wants_sample(c)) {
        return;
    }
    pf_str_append(text, "sample     ");
    if (c->sample_steps > 0 && !c->eval_only) {
        pf_str_appendf(text, "every %" PRId64 " steps and ", c->sample_steps);
    }
    pf_str_appendf(text,
                   "at the end rank 0 writes up to %" PRId64
                   " tokens, each by a forward of %" PRId64 ": %.3g GFLOP a text\n",
                   c->sample_tokens, train_sample_seq(t), train_sample_flops(t) / 1e9);
}

/* A chunk of layers of a stage, as "embedding, layers 0 to 3". */
static void text_chunk(const struct pf_trainer *t, int chunk, struct pf_str *text)
{
    const int64_t first = pf_placement_starts(t->place)[chunk],
                  end = pf_placement_starts(t->place)[chunk + 1];
    const char *comma = "";

    if (chunk == 0) {
        pf_str_append(text, "embedding");
        comma = ", ";
    }
    if (first + 1 == end) {
        pf_str_appendf(text, "%slayer %lld", comma, (long long)first);
        comma = ", ";
    } else if (first < end) {
        pf_str_appendf(text, "%slayers %lld to %lld", comma, (long long)first, (long long)end - 1);
        comma = ", ";
    }
    if (chunk == n_chunks(t) - 1) {
        pf_str_appendf(text, "%sfinal norm, head", comma);
    }
}

static void text_schedule(const struct pf_trainer *t, const struct plan *plan, struct pf_str *text)
{
    pf_str_appendf(text, "schedule   %s, at most %d micro-%s alive\n",
                   pf_schedule_name(t->schedule_kind), t->facts.peak_live,
                   t->facts.peak_live == 1 ? "batch" : "batches");
    if (plan->n_stages > 1 && !t->config->eval_only) {
        pf_str_appendf(
            text,
            "           bubble %.1f%%: stages idle, where backward takes twice as long as "
            "forward\n",
            100 * plan->bubble);
    }
    for (int i = 0; i < t->table->mesh.degree[PF_AXIS_PP]; i++) {
        const char *separator = "";
        pf_str_appendf(text, "           stage %d: ", i);
        for (int c = 0; c < n_chunks(t); c++) {
            if (pf_parallel_stage_of(&t->par, c) == i) {
                pf_str_append(text, separator);
                text_chunk(t, c, text);
                separator = "; ";
            }
        }
        pf_str_append(text, "\n");
    }
    for (int i = 0; i < t->schedule->n_stages; i++) {
        pf_str_appendf(text, "           stage %d: ", i);
        draw_stage(&t->schedule->stages[i], text);
        pf_str_append(text, "\n");
    }
}

/* Float32 rows only: the others are conversions of them. */
static void text_kernels(const struct pf_trainer *t, struct pf_str *text)
{
    const int n = pf_ops_n_choices(t->ops);
    int n_listed = 0;

    pf_str_appendf(text, "kernels    %s, %d %s a rank, %s\n          ", pf_ops_isa(t->ops),
                   pf_ops_threads(t->ops), pf_ops_threads(t->ops) == 1 ? "thread" : "threads",
                   pf_ops_library(t->ops));
    for (int i = 0; i < n; i++) {
        const struct pf_ops_choice choice = pf_ops_choice_at(t->ops, i);
        if (choice.dtype == PF_DTYPE_F32) {
            pf_str_appendf(text, "%s %s%s%s=%s",
                           n_listed && n_listed % 5 == 0 ? "\n          " : "",
                           pf_op_name(choice.op), choice.product ? "_" : "",
                           pf_ops_product_name(choice.product), choice.variant);
            n_listed++;
        }
    }
    pf_str_append(text, "\n");
}

/* Some of the stages, side by side. */
static void text_stages(const struct plan *plan, int lo, int hi, struct pf_str *text)
{
    const struct stage_plan *const first = &plan->stages[lo];
    char size[24];

    for (int i = 0; i < first->n_rows; i++) {
        size_t any = 0;
        for (int s = 0; s < plan->n_stages; s++) {
            any |= plan->stages[s].rows[i].bytes;
        }
        if (any > 0) {
            pf_str_appendf(text, "           %-20s", first->rows[i].name);
            for (int s = lo; s < hi; s++) {
                pf_str_appendf(text, " %12s",
                               pf_format_bytes((double)plan->stages[s].rows[i].bytes, size));
            }
            pf_str_append(text, "\n");
        }
    }
    pf_str_appendf(text, "           %-20s", "total");
    for (int s = lo; s < hi; s++) {
        pf_str_appendf(text, " %12s", pf_format_bytes((double)plan->stages[s].total_bytes, size));
    }
    pf_str_append(text, "\n");
}

static void text_memory(const struct plan *plan, struct pf_str *text)
{
    if (plan->n_stages == 1) {
        pf_str_append(text, "memory     of each rank\n");
        text_stages(plan, 0, 1, text);
        return;
    }
    for (int lo = 0; lo < plan->n_stages; lo += STAGES_A_LINE) {
        const int hi = plan->n_stages - lo < STAGES_A_LINE ? plan->n_stages : lo + STAGES_A_LINE;
        pf_str_appendf(text, "%-31s", lo == 0 ? "memory     of each rank of" : "");
        for (int s = lo; s < hi; s++) {
            pf_str_appendf(text, " %9s %2d", "stage", s);
        }
        pf_str_append(text, "\n");
        text_stages(plan, lo, hi, text);
    }
}

static void text_traffic(const struct pf_trainer *t, const struct plan *plan, struct pf_str *text)
{
    if (pf_mesh_size(&t->table->mesh) == 1 || t->config->eval_only) {
        return;
    }
    pf_str_append(text, "traffic    sent in a step by each rank\n");
    for (int s = 0; s < plan->n_stages; s++) {
        pf_str_appendf(text, "           stage %d: ", s);
        pf_traffic_text(&plan->stages[s].traffic, text);
        pf_str_append(text, "\n");
    }
}

static int print_text(const struct pf_trainer *t, const struct plan *plan, struct pf_str *text)
{
    text_model(t, plan, text);
    text_layout(t, text);
    text_batch(t, text);
    text_start(t, text);
    text_sample(t, text);
    text_schedule(t, plan, text);
    text_kernels(t, text);
    text_memory(plan, text);
    text_traffic(t, plan, text);
    return pf_str_error(text);
}

/* JSON ------------------------------------------------------------------------------------------ */

static void json_model(const struct pf_trainer *t, const struct plan *plan, struct pf_json_out *out)
{
    const struct pf_model_spec *const s = &t->spec;

    pf_json_out_key(out, "model");
    pf_json_out_object_begin(out);
    pf_json_out_member_string(out, "family", pf_family_name(s->family));
    pf_json_out_member_i64(out, "layers", s->n_layers);
    pf_json_out_member_i64(out, "hidden", s->hidden);
    pf_json_out_member_i64(out, "heads", s->n_heads);
    pf_json_out_member_i64(out, "kv_heads", s->n_kv_heads);
    pf_json_out_member_i64(out, "ffn", s->ffn);
    pf_json_out_member_i64(out, "vocabulary", s->vocab_size);
    pf_json_out_member_bool(out, "tied_head", s->tied_head);
    pf_json_out_object_end(out);
    pf_json_out_member_i64(out, "parameters", plan->n_parameters);
    pf_json_out_member_i64(out, "trained_parameters", plan->n_trained);
}

static void json_layout(const struct pf_trainer *t, struct pf_json_out *out)
{
    pf_json_out_member_i64(out, "world_size", pf_mesh_size(&t->table->mesh));
    pf_json_out_key(out, "mesh");
    pf_parallel_json(&t->par, out);
}

static void json_batch(const struct pf_trainer *t, struct pf_json_out *out)
{
    const struct pf_config *const c = t->config;

    pf_json_out_key(out, "batch");
    pf_json_out_object_begin(out);
    pf_json_out_member_i64(out, "per_device_sequences", c->per_device_train_batch_size);
    pf_json_out_member_i64(out, "accumulation", c->gradient_accumulation_steps);
    pf_json_out_member_i64(out, "data_parallel_ranks", t->dp_size);
    pf_json_out_member_i64(out, "global_sequences", c->global_train_batch_size);
    pf_json_out_member_i64(out, "sequence_tokens", c->max_seq_length);
    pf_json_out_object_end(out);
    pf_json_out_key(out, "total_steps");
    if (t->total_steps > 0 || c->max_steps > 0) {
        pf_json_out_i64(out, t->total_steps > 0 ? t->total_steps : c->max_steps);
    } else {
        pf_json_out_null(out);
    }
}

static void json_start(const struct pf_trainer *t, struct pf_json_out *out)
{
    if (t->resume) {
        pf_json_out_key(out, "resume");
        pf_json_out_object_begin(out);
        pf_json_out_member_string(out, "path", t->resume_path);
        pf_json_out_member_i64(out, "step", t->resume->step);
        pf_json_out_object_end(out);
    }
    if (t->data && !t->config->eval_only) {
        pf_json_out_member_string(out, "data", pf_data_describe(t->data));
    }
    if (t->eval_data) {
        pf_json_out_member_string(out, "evaluation_data", pf_data_describe(t->eval_data));
    }
}

static void json_sample(const struct pf_trainer *t, struct pf_json_out *out)
{
    if (!train_wants_sample(t->config)) {
        return;
    }
    pf_json_out_key(out, "sample");
    pf_json_out_object_begin(out);
    pf_json_out_member_i64(out, "tokens", t->config->sample_tokens);
    pf_json_out_member_i64(out, "forward_tokens", train_sample_seq(t));
    pf_json_out_member_f64(out, "flop", train_sample_flops(t));
    pf_json_out_object_end(out);
}

static int json_schedule(const struct pf_trainer *t, const struct plan *plan,
                         struct pf_json_out *out)
{
    const int64_t *const starts = pf_placement_starts(t->place);
    struct pf_str line;
    int err = 0;

    pf_str_init(&line);
    pf_json_out_key(out, "schedule");
    pf_json_out_object_begin(out);
    pf_json_out_member_string(out, "mode", pf_schedule_name(t->schedule_kind));
    pf_json_out_member_i64(out, "peak_live_micro_batches", t->facts.peak_live);
    pf_json_out_member_f64(out, "bubble", plan->bubble);
    pf_json_out_key(out, "segments");
    pf_json_out_array_begin(out);
    for (int c = 0; c < n_chunks(t); c++) {
        pf_json_out_object_begin(out);
        pf_json_out_member_i64(out, "stage", pf_parallel_stage_of(&t->par, c));
        pf_json_out_member_i64(out, "first_layer", starts[c]);
        pf_json_out_member_i64(out, "last_layer", starts[c + 1] - 1);
        pf_json_out_member_bool(out, "embedding", c == 0);
        pf_json_out_member_bool(out, "head", c == n_chunks(t) - 1);
        pf_json_out_object_end(out);
    }
    pf_json_out_array_end(out);
    pf_json_out_key(out, "stages");
    pf_json_out_array_begin(out);
    for (int i = 0; !err && i < t->schedule->n_stages; i++) {
        pf_str_clear(&line);
        draw_stage(&t->schedule->stages[i], &line);
        err = pf_str_error(&line);
        pf_json_out_string(out, line.text);
    }
    pf_json_out_array_end(out);
    pf_json_out_object_end(out);
    pf_str_release(&line);
    return err;
}

static void json_stage(const struct stage_plan *stage, struct pf_json_out *out)
{
    char name[64];

    for (int i = 0; i < stage->n_rows; i++) {
        snprintf(name, sizeof name, "%s_bytes", stage->rows[i].name);
        pf_json_out_member_i64(out, name, (int64_t)stage->rows[i].bytes);
    }
    pf_json_out_member_i64(out, "total_bytes", (int64_t)stage->total_bytes);
}

/* Of this rank, then of every rank with its place in the mesh. */
static void json_memory(const struct pf_trainer *t, const struct plan *plan,
                        struct pf_json_out *out)
{
    pf_json_out_key(out, "memory");
    pf_json_out_object_begin(out);
    json_stage(&plan->stages[plan->stage], out);
    pf_json_out_object_end(out);
    pf_json_out_key(out, "ranks");
    pf_json_out_array_begin(out);
    for (int r = 0; r < pf_mesh_size(&t->table->mesh); r++) {
        int coord[PF_AXIS_COUNT];
        pf_mesh_coords(&t->table->mesh, r, coord);
        pf_json_out_object_begin(out);
        pf_json_out_member_i64(out, "rank", r);
        for (int a = 0; a < PF_AXIS_COUNT; a++) {
            pf_json_out_member_i64(out, pf_axis_name((enum pf_axis)a), coord[a]);
        }
        json_stage(&plan->stages[coord[PF_AXIS_PP]], out);
        pf_json_out_object_end(out);
    }
    pf_json_out_array_end(out);
}

/* Of a rank of each stage. */
static void json_traffic(const struct plan *plan, struct pf_json_out *out)
{
    pf_json_out_key(out, "traffic");
    pf_json_out_array_begin(out);
    for (int s = 0; s < plan->n_stages; s++) {
        pf_traffic_json(&plan->stages[s].traffic, out);
    }
    pf_json_out_array_end(out);
}

static int print_json(const struct pf_trainer *t, const struct plan *plan, struct pf_str *text)
{
    struct pf_json_out out;

    pf_json_out_init(&out, text, 2);
    pf_json_out_object_begin(&out);
    pf_json_out_member_i64(&out, "schema", 1);
    json_layout(t, &out);
    json_model(t, plan, &out);
    json_batch(t, &out);
    json_start(t, &out);
    json_sample(t, &out);
    PF_TRY(json_schedule(t, plan, &out));
    pf_json_out_key(&out, "kernels");
    train_print_kernels(t, &out);
    json_memory(t, plan, &out);
    json_traffic(plan, &out);
    pf_json_out_object_end(&out);
    PF_TRY(pf_json_out_finish(&out));
    return pf_str_append_char(text, '\n');
}

int pf_trainer_print_plan(struct pf_trainer *trainer, bool json, FILE *to)
{
    struct pf_str text;
    struct plan plan = {0};
    int err;

    pf_str_init(&text);
    PF_TRY_GOTO(make_plan(trainer, &plan), out);
    err = json ? print_json(trainer, &plan, &text) : print_text(trainer, &plan, &text);
    if (!err && (fputs(text.text, to) < 0 || fflush(to) != 0)) {
        err = pf_fail_errno(PF_EIO, "cannot write the plan");
    }
out:
    pf_free(plan.stages);
    pf_str_release(&text);
    return err;
}
