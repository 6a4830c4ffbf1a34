/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the time of a step goes. profile_steps: a table by op and by phase, on stderr and as
 * profile-STEP.json (rank 0). trace_steps: every call of an op or between ranks and every phase as a time
 * line in the JSON form that Perfetto and chrome://tracing open: trace-STEP.rankN.json of each rank, and
 * trace-STEP.json of all where there are several. The buffers are made at build, so
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
    const char *variant;        /* of an op */
    const struct pf_comm *comm; /* of a call between ranks, whose bytes are work.bytes */
    const char *at;             /* where that stands */
    int kind;                   /* of the op, enum pf_comm_kind, or enum train_phase */
    int peer;                   /* of a message; -1: none */
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
    const int64_t chunks = c->per_device_train_batch_size * c->max_seq_length / 64 + 1,
                  n_tp = t->par.degree[PF_AXIS_TP];
    /* Between ranks, a layer: at most 20 collectives, and of two sums in parts a message each way with
     * each other rank, which is waited for; a chunk of layers: two messages each way. */
    const int64_t in_layer = n_tp > 1 ? 20 + 2 * 4 * (n_tp - 1) : 0, in_chunk = 16;
    return c->gradient_accumulation_steps *
               ((64 + in_layer) * t->spec.n_layers + 7 * chunks + in_chunk * t->par.vpp + 32) +
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
    const int64_t room = slice->variant || slice->comm ? PHASE_ROOM : 0;

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

/* What a group of one rank does goes nowhere. */
static void observe_comm(void *context, const struct pf_comm_call *call)
{
    if (pf_comm_size(call->comm) > 1) {
        add_slice(context, &(struct slice){.started = call->started,
                                           .ended = call->ended,
                                           .work = {.bytes = (double)call->bytes},
                                           .comm = call->comm,
                                           .at = call->at,
                                           .kind = (int)call->kind,
                                           .peer = call->peer});
    }
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
    pf_comm_observe(t->world, p->traces ? observe_comm : NULL, p);
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

enum { THREAD_PHASES, THREAD_OPS, THREAD_COMM };

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

static const char *slice_name(const struct slice *s)
{
    return s->variant ? kind_name(s->kind)
           : s->comm  ? pf_comm_kind_name((enum pf_comm_kind)s->kind)
                      : phase_names[s->kind];
}

static void json_op_args(struct pf_json_out *out, const struct slice *s)
{
    pf_json_out_member_string(out, "kernel", s->variant);
    pf_json_out_member_f64(out, "flop", s->work.flop);
    pf_json_out_member_f64(out, "bytes", s->work.bytes);
}

static void json_comm_args(struct pf_json_out *out, const struct slice *s)
{
    pf_json_out_member_string(out, "group", pf_comm_name(s->comm));
    pf_json_out_member_i64(out, "ranks", pf_comm_size(s->comm));
    pf_json_out_member_f64(out, "bytes", s->work.bytes);
    if (s->peer >= 0) {
        pf_json_out_member_i64(out, "peer", s->peer);
    }
    pf_json_out_member_string(out, "at", s->at);
}

/* offset: from this process's clock to the wall clock, on which ranks of several hosts meet. */
static void json_slice(struct pf_json_out *out, const struct slice *s, int rank, double offset)
{
    pf_json_out_object_begin(out);
    pf_json_out_member_string(out, "name", slice_name(s));
    pf_json_out_member_string(out, "cat", s->variant ? "op" : s->comm ? "comm" : "phase");
    pf_json_out_member_string(out, "ph", "X");
    pf_json_out_member_f64(out, "ts", (s->started + offset) * 1e6);
    pf_json_out_member_f64(out, "dur", (s->ended - s->started) * 1e6);
    pf_json_out_member_i64(out, "pid", rank);
    pf_json_out_member_i64(out, "tid",
                           s->variant ? THREAD_OPS
                           : s->comm  ? THREAD_COMM
                                      : THREAD_PHASES);
    if (s->variant || s->comm) {
        pf_json_out_key(out, "args");
        pf_json_out_object_begin(out);
        (s->variant ? json_op_args : json_comm_args)(out, s);
        pf_json_out_object_end(out);
    }
    pf_json_out_object_end(out);
}

/* The events of this rank, an array. */
static int json_events(const struct pf_trainer *t, struct pf_str *text)
{
    const struct profile *const p = t->profile;
    const int rank = pf_comm_rank(t->world);
    const double offset = pf_time_wall() - pf_time_monotonic();
    struct pf_json_out out;
    char name[32];

    snprintf(name, sizeof name, "rank %d", rank);
    pf_json_out_init(&out, text, 0);
    pf_json_out_array_begin(&out);
    json_name(&out, "process_name", rank, 0, name);
    json_name(&out, "thread_name", rank, THREAD_PHASES, "phases");
    json_name(&out, "thread_name", rank, THREAD_OPS, "ops");
    if (pf_comm_size(t->world) > 1) {
        json_name(&out, "thread_name", rank, THREAD_COMM, "between ranks");
    }
    for (int64_t i = 0; i < p->n_slices; i++) {
        json_slice(&out, &p->slices[i], rank, offset);
    }
    pf_json_out_array_end(&out);
    return pf_json_out_finish(&out);
}

static int json_trace(const struct pf_trainer *t, int64_t n_lost, const char *events,
                      struct pf_str *text)
{
    struct pf_json_out out;

    pf_json_out_init(&out, text, 0);
    pf_json_out_object_begin(&out);
    pf_json_out_member_string(&out, "displayTimeUnit", "ms");
    pf_json_out_key(&out, "otherData");
    pf_json_out_object_begin(&out);
    pf_json_out_member_i64(&out, "step", t->step);
    pf_json_out_member_i64(&out, "slices_lost", n_lost);
    pf_json_out_object_end(&out);
    pf_json_out_key(&out, "traceEvents");
    pf_json_out_raw(&out, events);
    pf_json_out_object_end(&out);
    PF_TRY(pf_json_out_finish(&out));
    return pf_str_append_char(text, '\n');
}

static int write_text(const struct pf_trainer *t, const char *name, const struct pf_str *text)
{
    char *const path = pf_path_join(t->config->output_dir, name);
    const int err = path ? pf_file_write_atomic(path, text->text, text->len) : PF_ENOMEM;

    pf_free(path);
    return err;
}

static int write_trace(const struct pf_trainer *t, const char *name, int64_t n_lost,
                       const char *events)
{
    struct pf_str text;

    pf_str_init(&text);
    int err = json_trace(t, n_lost, events, &text);
    err = err ? err : write_text(t, name, &text);
    pf_str_release(&text);
    return err;
}

/* Rank 0 appends the elements of another rank's array to its own. */
static int receive_events(struct pf_trainer *t, int from, struct pf_str *events)
{
    uint64_t bytes;

    PF_TRY(pf_comm_recv(t->world, &bytes, sizeof bytes, from, 0));
    char *const other = pf_alloc((size_t)bytes);
    int err = other ? 0 : PF_ENOMEM;
    err = err ? err : pf_comm_recv(t->world, other, (size_t)bytes, from, 0);
    if (!err) {
        events->text[events->len - 1] = ',';
        err = pf_str_append_bytes(events, other + 1, (size_t)bytes - 1);
    }
    pf_free(other);
    return err;
}

/* Events of all ranks to rank 0. */
static int gather_events(struct pf_trainer *t, struct pf_str *events)
{
    const uint64_t bytes = events->len;

    if (pf_comm_rank(t->world) > 0) {
        PF_TRY(pf_comm_send(t->world, &bytes, sizeof bytes, 0, 0));
        return pf_comm_send(t->world, events->text, events->len, 0, 0);
    }
    for (int r = 1; r < pf_comm_size(t->world); r++) {
        PF_TRY(receive_events(t, r, events));
    }
    return 0;
}

/* Each rank's time line, then that of all; every rank knows whether it went well. */
static int write_traces(struct pf_trainer *t, struct pf_str *events)
{
    const int rank = pf_comm_rank(t->world);
    int64_t n_lost = t->profile->n_lost;
    char name[64];

    snprintf(name, sizeof name, "trace-%06lld.rank%d.json", (long long)t->step, rank);
    int err = json_events(t, events);
    err = err ? err : write_trace(t, name, n_lost, events->text);
    PF_TRY(pf_comm_all_agree(t->world, err, NULL));
    if (pf_comm_size(t->world) == 1) {
        return 0;
    }
    PF_TRY(pf_comm_all_reduce(t->world, &n_lost, 1, PF_COMM_I64, PF_COMM_SUM));
    PF_TRY(gather_events(t, events));
    snprintf(name, sizeof name, "trace-%06lld.json", (long long)t->step);
    return pf_comm_all_agree(t->world, rank == 0 ? write_trace(t, name, n_lost, events->text) : 0,
                             NULL);
}

static int write_profile(const struct pf_trainer *t)
{
    struct pf_str text;
    char name[64];

    snprintf(name, sizeof name, "profile-%06lld.json", (long long)t->step);
    pf_str_init(&text);
    int err = json_profile(t, &text);
    err = err ? err : write_text(t, name, &text);
    pf_str_release(&text);
    return err;
}

int train_profile_end(struct pf_trainer *t)
{
    struct profile *const p = t->profile;
    struct pf_str events;
    int err = 0;

    if (!p || !p->on) {
        return 0;
    }
    train_mark(t, PHASE_OTHER);
    p->on = false;
    pf_ops_observe(t->ops, NULL, NULL);
    pf_comm_observe(t->world, NULL, NULL);
    if (p->tables && pf_comm_rank(t->world) == 0) {
        print_tables(t);
        err = write_profile(t);
    }
    if (!p->traces) {
        return err;
    }
    PF_TRY(pf_comm_all_agree(t->world, err, NULL));
    pf_str_init(&events);
    err = write_traces(t, &events);
    pf_str_release(&events);
    return err;
}
