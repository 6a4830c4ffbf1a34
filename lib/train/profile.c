/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the time of a step goes. profile_steps: a table by op and by phase, on stderr and as
 * profile-STEP.json (rank 0). trace_steps: every call and phase as a time line, trace-STEP.rankN.json, in
 * the JSON form that Perfetto and chrome://tracing open (each rank). The buffers are made at build, so
 * that a watched step allocates no more than another. Source of the trace: "Trace Event Format",
 * complete events ("ph":"X"), times in microseconds.
 */
#include "train_internal.h"

#include <pf/error.h>
#include <pf/json.h>
#include <pf/limits.h>
#include <pf/log.h>
#include <pf/mem.h>
#include <pf/time.h>

#include <stdio.h>
#include <string.h>

/* A row of the table for each op, and for the products by what is transposed. */
enum { N_KINDS = PF_OP_COUNT + 4 };

static const char *const gemm_names[] = {"gemm_nn", "gemm_nt", "gemm_tn", "gemm_tt"};
static const char *const phase_names[PHASE_COUNT] = {
    [PHASE_OTHER] = "other",     [PHASE_READ] = "read_data",      [PHASE_CLEAR] = "clear_grads",
    [PHASE_FORWARD] = "forward", [PHASE_BACKWARD] = "backward",   [PHASE_REDUCE] = "reduce",
    [PHASE_NORM] = "norm",       [PHASE_OPTIMIZER] = "optimizer", [PHASE_EVALUATE] = "evaluate",
    [PHASE_SAVE] = "save",       [PHASE_SAMPLE] = "sample",
};

struct row {
    int64_t calls;
    double seconds, flop, bytes;
};

struct phase_time {
    double seconds, in_ops;
};

/* Something on the time line. */
struct slice {
    double started, ended;
    struct pf_op_work work;
    const char *variant; /* NULL: a phase */
    int kind;            /* of an op, or enum train_phase */
};

struct profile {
    struct pf_limits limits;
    struct slice *slices; /* [capacity]; NULL without trace_steps */
    int64_t capacity, n_slices, n_lost;
    struct row rows[N_KINDS];
    struct phase_time phases[PHASE_COUNT];
    enum train_phase phase;
    double phase_started, step_started;
    double step_seconds, mfu;
    bool on, in_step, tables, traces;
};

static bool listed(const int64_t *steps, int64_t n, int64_t step)
{
    for (int64_t i = 0; i < n; i++) {
        if (steps[i] == step) {
            return true;
        }
    }
    return false;
}

static bool is_wanted(const struct pf_config *c)
{
    return !c->eval_only && c->n_profile_steps + c->n_trace_steps > 0;
}

/* Room that calls leave for the phases that come after them. */
#define PHASE_ROOM 64

/* More than the calls of a step, so that a time line is whole: the decoder makes fewer than sixty a
 * layer and micro-batch with recomputation, and the head six a chunk of 64 tokens or more. What does
 * not fit, of a long evaluation, is counted. */
static int64_t slice_capacity(const struct pf_trainer *t)
{
    const struct pf_config *const c = t->config;

    if (c->eval_only || c->n_trace_steps == 0) {
        return 0;
    }
    const int64_t chunks = c->per_device_train_batch_size * c->max_seq_length / 64 + 1;
    return c->gradient_accumulation_steps * (64 * t->spec.n_layers + 6 * chunks + 32) +
           2 * t->table->n_rows + 1024;
}

size_t train_profile_bytes(const struct pf_trainer *t)
{
    return is_wanted(t->config)
               ? sizeof(struct profile) + (size_t)slice_capacity(t) * sizeof(struct slice)
               : 0;
}

size_t train_profile_measuring_bytes(const struct pf_trainer *t)
{
    const size_t array = (size_t)pf_limits_cache_bytes(), least = (size_t)32 << 20;

    return is_wanted(t->config) && t->config->n_profile_steps > 0
               ? 3 * (array > least ? array : least)
               : 0;
}

int train_profile_new(struct pf_trainer *t)
{
    if (!is_wanted(t->config)) {
        return 0;
    }
    struct profile *const p = pf_alloc(sizeof *p);
    if (!p) {
        return PF_ENOMEM;
    }
    t->profile = p;
    p->capacity = slice_capacity(t);
    if (p->capacity > 0) {
        p->slices = pf_calloc_array((size_t)p->capacity, sizeof *p->slices);
        PF_TRY(p->slices ? 0 : PF_ENOMEM);
    }
    /* Every rank measures, at the same time: memory is shared in the step too. */
    return t->config->n_profile_steps > 0
               ? pf_limits_measure(pf_ops_threads(t->ops), pf_ops_isa(t->ops), &p->limits)
               : 0;
}

void train_profile_free(struct pf_trainer *t)
{
    if (t->profile) {
        pf_free(t->profile->slices);
    }
    pf_free(t->profile);
    t->profile = NULL;
}

/* Watching --------------------------------------------------------------------------------------- */

static int kind_of(const struct pf_ops_call *call)
{
    if (call->op != PF_OP_GEMM) {
        return (int)call->op;
    }
    const struct pf_gemm_args *const a = call->args;
    return PF_OP_COUNT + 2 * a->trans_a + a->trans_b;
}

static const char *kind_name(int kind)
{
    return kind < PF_OP_COUNT ? pf_op_name((enum pf_op)kind) : gemm_names[kind - PF_OP_COUNT];
}

static void add_slice(struct profile *p, const struct slice *slice)
{
    const int64_t room = slice->variant ? PHASE_ROOM : 0;

    if (p->n_slices < p->capacity - room) {
        p->slices[p->n_slices++] = *slice;
    } else {
        p->n_lost += p->capacity > 0;
    }
}

static void observe(void *context, const struct pf_ops_call *call)
{
    struct profile *const p = context;
    const struct slice slice = {.started = call->started,
                                .ended = call->ended,
                                .work = pf_op_work(call->op, call->dtype, call->args),
                                .variant = call->kernel->variant,
                                .kind = kind_of(call)};
    const double seconds = call->ended - call->started;

    p->phases[p->phase].in_ops += seconds;
    if (p->in_step) {
        struct row *const row = &p->rows[slice.kind];
        row->calls++;
        row->seconds += seconds;
        row->flop += slice.work.flop;
        row->bytes += slice.work.bytes;
    }
    add_slice(p, &slice);
}

void train_mark(struct pf_trainer *t, enum train_phase phase)
{
    struct profile *const p = t->profile;

    if (!p || !p->on) {
        return;
    }
    const double now = pf_time_monotonic();
    p->phases[p->phase].seconds += now - p->phase_started;
    add_slice(p, &(struct slice){.started = p->phase_started, .ended = now, .kind = (int)p->phase});
    p->phase = phase;
    p->phase_started = now;
}

void train_profile_begin(struct pf_trainer *t)
{
    const struct pf_config *const c = t->config;
    struct profile *const p = t->profile;

    if (!p) {
        return;
    }
    p->tables = listed(c->profile_steps, c->n_profile_steps, t->step + 1);
    p->traces = listed(c->trace_steps, c->n_trace_steps, t->step + 1);
    p->on = p->tables || p->traces;
    if (!p->on) {
        return;
    }
    memset(p->rows, 0, sizeof p->rows);
    memset(p->phases, 0, sizeof p->phases);
    p->n_slices = p->n_lost = 0;
    p->phase = PHASE_OTHER;
    p->in_step = true;
    p->step_started = p->phase_started = pf_time_monotonic();
    pf_ops_observe(t->ops, observe, p);
}

void train_profile_step(struct pf_trainer *t, const struct step_result *r)
{
    struct profile *const p = t->profile;

    if (p && p->on) {
        train_mark(t, PHASE_OTHER);
        p->in_step = false;
        p->step_seconds = r->seconds;
        p->mfu = train_mfu(t, r->seconds);
    }
}

/* The table -------------------------------------------------------------------------------------- */

static double in_ops(const struct profile *p)
{
    double sum = 0;

    for (int i = 0; i < N_KINDS; i++) {
        sum += p->rows[i].seconds;
    }
    return sum;
}

/* Rows in falling time. */
static int sort_rows(const struct profile *p, int order[N_KINDS])
{
    int n = 0;

    for (int i = 0; i < N_KINDS; i++) {
        int at = n;
        if (p->rows[i].calls == 0) {
            continue;
        }
        for (; at > 0 && p->rows[order[at - 1]].seconds < p->rows[i].seconds; at--) {
            order[at] = order[at - 1];
        }
        order[at] = i;
        n++;
    }
    return n;
}

/* Rate of a row, and the limit that it is held against: products by arithmetic, the rest by memory. */
static double rate_of(const struct row *row, double *per_second_out, const struct profile *p,
                      double peak_flops)
{
    const double seconds = row->seconds > 0 ? row->seconds : 1e-9;
    const double limit = row->flop > 0 ? peak_flops : p->limits.triad_bytes;

    *per_second_out = (row->flop > 0 ? row->flop : row->bytes) / seconds;
    return limit > 0 ? 100 * *per_second_out / limit : 0;
}

static void print_ops(const struct pf_trainer *t)
{
    const struct profile *const p = t->profile;
    int order[N_KINDS];
    const int n = sort_rows(p, order);
    double rate;

    pf_log_info0(NULL, "  %-14s %8s %11s %6s %16s %9s", "op", "calls", "seconds", "share", "rate",
                 "of limit");
    for (int i = 0; i < n; i++) {
        const struct row *const row = &p->rows[order[i]];
        const double percent = rate_of(row, &rate, p, t->peak_flops);
        pf_log_info0(NULL, "  %-14s %8lld %11.6f %5.1f%% %8.1f %-7s %8.1f%%", kind_name(order[i]),
                     (long long)row->calls, row->seconds, 100 * row->seconds / p->step_seconds,
                     rate / 1e9, row->flop > 0 ? "GFLOP/s" : "GB/s", percent);
    }
    const double other = p->step_seconds - in_ops(p);
    pf_log_info0(NULL, "  %-14s %8s %11.6f %5.1f%%", "not in ops", "", other,
                 100 * other / p->step_seconds);
}

static void print_phases(const struct profile *p)
{
    pf_log_info0(NULL, "  %-14s %8s %11s %6s %16s", "phase", "", "seconds", "", "not in ops");
    for (int i = 0; i < PHASE_COUNT; i++) {
        const struct phase_time *const phase = &p->phases[i];
        if (phase->seconds > 0) {
            pf_log_info0(NULL, "  %-14s %8s %11.6f %6s %16.6f", phase_names[i], "", phase->seconds,
                         "", phase->seconds - phase->in_ops);
        }
    }
}

static void print_tables(const struct pf_trainer *t)
{
    const struct profile *const p = t->profile;

    pf_log_info0(NULL,
                 "profile of step %lld: %.6f s, mfu %.1f%%; limits %.1f GFLOP/s (gemm in %s), %.1f "
                 "GB/s (triad)",
                 (long long)t->step, p->step_seconds, 100 * p->mfu, t->peak_flops / 1e9,
                 pf_dtype_torch_name(t->config->dtype), p->limits.triad_bytes / 1e9);
    print_ops(t);
    print_phases(p);
}

static void json_ops(const struct pf_trainer *t, struct pf_json_out *out)
{
    const struct profile *const p = t->profile;
    int order[N_KINDS];
    const int n = sort_rows(p, order);
    double rate;

    pf_json_out_key(out, "ops");
    pf_json_out_array_begin(out);
    for (int i = 0; i < n; i++) {
        const struct row *const row = &p->rows[order[i]];
        const double percent = rate_of(row, &rate, p, t->peak_flops);
        pf_json_out_object_begin(out);
        pf_json_out_member_string(out, "op", kind_name(order[i]));
        pf_json_out_member_i64(out, "calls", row->calls);
        pf_json_out_member_f64(out, "seconds", row->seconds);
        pf_json_out_member_f64(out, "flop", row->flop);
        pf_json_out_member_f64(out, "bytes", row->bytes);
        pf_json_out_member_string(out, "unit", row->flop > 0 ? "flop" : "byte");
        pf_json_out_member_f64(out, "rate_per_second", rate);
        pf_json_out_member_f64(out, "percent_of_limit", percent);
        pf_json_out_object_end(out);
    }
    pf_json_out_array_end(out);
}

static void json_phases(const struct profile *p, struct pf_json_out *out)
{
    pf_json_out_key(out, "phases");
    pf_json_out_array_begin(out);
    for (int i = 0; i < PHASE_COUNT; i++) {
        if (p->phases[i].seconds > 0) {
            pf_json_out_object_begin(out);
            pf_json_out_member_string(out, "phase", phase_names[i]);
            pf_json_out_member_f64(out, "seconds", p->phases[i].seconds);
            pf_json_out_member_f64(out, "in_ops_seconds", p->phases[i].in_ops);
            pf_json_out_object_end(out);
        }
    }
    pf_json_out_array_end(out);
}

static int json_profile(const struct pf_trainer *t, struct pf_str *text)
{
    const struct profile *const p = t->profile;
    struct pf_json_out out;

    pf_json_out_init(&out, text, 2);
    pf_json_out_object_begin(&out);
    pf_json_out_member_i64(&out, "schema", 1);
    pf_json_out_member_i64(&out, "step", t->step);
    pf_json_out_member_i64(&out, "rank", pf_comm_rank(t->world));
    pf_json_out_member_i64(&out, "world_size", pf_comm_size(t->world));
    pf_json_out_member_f64(&out, "step_seconds", p->step_seconds);
    pf_json_out_member_f64(&out, "in_ops_seconds", in_ops(p));
    pf_json_out_member_f64(&out, "mfu", p->mfu);
    pf_json_out_key(&out, "limits");
    pf_json_out_object_begin(&out);
    pf_json_out_member_string(&out, "dtype", pf_dtype_torch_name(t->config->dtype));
    pf_json_out_member_f64(&out, "gemm_flop_per_second", t->peak_flops);
    pf_json_out_member_f64(&out, "triad_bytes_per_second", p->limits.triad_bytes);
    pf_json_out_object_end(&out);
    pf_json_out_key(&out, "kernels");
    train_print_kernels(t, &out);
    json_ops(t, &out);
    json_phases(p, &out);
    pf_json_out_object_end(&out);
    PF_TRY(pf_json_out_finish(&out));
    return pf_str_append_char(text, '\n');
}

/* The time line ---------------------------------------------------------------------------------- */

enum { THREAD_PHASES, THREAD_OPS };

static void json_name(struct pf_json_out *out, const char *what, int rank, int thread,
                      const char *name)
{
    pf_json_out_object_begin(out);
    pf_json_out_member_string(out, "name", what);
    pf_json_out_member_string(out, "ph", "M");
    pf_json_out_member_i64(out, "pid", rank);
    pf_json_out_member_i64(out, "tid", thread);
    pf_json_out_key(out, "args");
    pf_json_out_object_begin(out);
    pf_json_out_member_string(out, "name", name);
    pf_json_out_object_end(out);
    pf_json_out_object_end(out);
}

/* offset: from this process's clock to the wall clock, on which ranks of several hosts meet. */
static void json_slice(struct pf_json_out *out, const struct slice *s, int rank, double offset)
{
    const bool is_op = s->variant != NULL;

    pf_json_out_object_begin(out);
    pf_json_out_member_string(out, "name", is_op ? kind_name(s->kind) : phase_names[s->kind]);
    pf_json_out_member_string(out, "cat", is_op ? "op" : "phase");
    pf_json_out_member_string(out, "ph", "X");
    pf_json_out_member_f64(out, "ts", (s->started + offset) * 1e6);
    pf_json_out_member_f64(out, "dur", (s->ended - s->started) * 1e6);
    pf_json_out_member_i64(out, "pid", rank);
    pf_json_out_member_i64(out, "tid", is_op ? THREAD_OPS : THREAD_PHASES);
    if (is_op) {
        pf_json_out_key(out, "args");
        pf_json_out_object_begin(out);
        pf_json_out_member_string(out, "kernel", s->variant);
        pf_json_out_member_f64(out, "flop", s->work.flop);
        pf_json_out_member_f64(out, "bytes", s->work.bytes);
        pf_json_out_object_end(out);
    }
    pf_json_out_object_end(out);
}

static int json_trace(const struct pf_trainer *t, struct pf_str *text)
{
    const struct profile *const p = t->profile;
    const int rank = pf_comm_rank(t->world);
    const double offset = pf_time_wall() - pf_time_monotonic();
    struct pf_json_out out;
    char name[32];

    snprintf(name, sizeof name, "rank %d", rank);
    pf_json_out_init(&out, text, 0);
    pf_json_out_object_begin(&out);
    pf_json_out_member_string(&out, "displayTimeUnit", "ms");
    pf_json_out_key(&out, "otherData");
    pf_json_out_object_begin(&out);
    pf_json_out_member_i64(&out, "step", t->step);
    pf_json_out_member_i64(&out, "slices_lost", p->n_lost);
    pf_json_out_object_end(&out);
    pf_json_out_key(&out, "traceEvents");
    pf_json_out_array_begin(&out);
    json_name(&out, "process_name", rank, 0, name);
    json_name(&out, "thread_name", rank, THREAD_PHASES, "phases");
    json_name(&out, "thread_name", rank, THREAD_OPS, "ops");
    for (int64_t i = 0; i < p->n_slices; i++) {
        json_slice(&out, &p->slices[i], rank, offset);
    }
    pf_json_out_array_end(&out);
    pf_json_out_object_end(&out);
    PF_TRY(pf_json_out_finish(&out));
    return pf_str_append_char(text, '\n');
}

static int write_json(const struct pf_trainer *t, const char *name,
                      int (*print)(const struct pf_trainer *t, struct pf_str *text))
{
    char *const path = pf_path_join(t->config->output_dir, name);
    struct pf_str text;
    int err = path ? 0 : PF_ENOMEM;

    pf_str_init(&text);
    err = err ? err : print(t, &text);
    err = err ? err : pf_file_write_atomic(path, text.text, text.len);
    pf_str_release(&text);
    pf_free(path);
    return err;
}

int train_profile_end(struct pf_trainer *t)
{
    struct profile *const p = t->profile;
    const int rank = pf_comm_rank(t->world);
    char name[64];

    if (!p || !p->on) {
        return 0;
    }
    train_mark(t, PHASE_OTHER);
    p->on = false;
    pf_ops_observe(t->ops, NULL, NULL);
    if (p->tables && rank == 0) {
        print_tables(t);
        snprintf(name, sizeof name, "profile-%06lld.json", (long long)t->step);
        PF_TRY(write_json(t, name, json_profile));
    }
    if (p->traces) {
        snprintf(name, sizeof name, "trace-%06lld.rank%d.json", (long long)t->step, rank);
        PF_TRY(write_json(t, name, json_trace));
    }
    return 0;
}
