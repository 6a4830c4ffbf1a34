/* SPDX-License-Identifier: Apache-2.0 */
/* A record as a JSON document, and back. Keys are never positional; units stand beside numbers. */
#include <pf/bench.h>

#include <pf/error.h>
#include <pf/json.h>
#include <pf/mem.h>
#include <pf/ops.h>
#include <pf/time.h>
#include <pf/version.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PROGRAM "pf-bench"

/* Writing --------------------------------------------------------------------------------------- */

static void member_text(struct pf_json_out *out, const char *key, const char *text)
{
    pf_json_out_member_string(out, key, *text ? text : NULL);
}

/* 0 means unknown. */
static void member_known(struct pf_json_out *out, const char *key, double value)
{
    pf_json_out_member_f64(out, key, value > 0 ? value : NAN);
}

static void print_failure(struct pf_json_out *out, const struct pf_bench_record *r, int err)
{
    bool is_numeric = false;

    pf_json_out_key(out, "error");
    if (!err) {
        pf_json_out_null(out);
        return;
    }
    for (int i = 0; i < r->n_failures; i++) {
        is_numeric |= err == PF_EDIFFER && r->failures[i].is_numeric;
    }
    pf_json_out_object_begin(out);
    pf_json_out_member_string(out, "kind", is_numeric ? "numeric" : pf_error_kind(err));
    member_text(out, "message", pf_error_message());
    pf_json_out_member_i64(out, "exit", pf_error_exit_status(err));
    pf_json_out_object_end(out);
}

static void print_failures(struct pf_json_out *out, const struct pf_bench_record *r)
{
    pf_json_out_key(out, "failures");
    pf_json_out_array_begin(out);
    for (int i = 0; i < r->n_failures; i++) {
        pf_json_out_object_begin(out);
        pf_json_out_member_string(out, "kind", r->failures[i].is_numeric ? "numeric" : "differ");
        pf_json_out_member_string(out, "message", r->failures[i].text);
        pf_json_out_object_end(out);
    }
    pf_json_out_array_end(out);
}

static void print_environment(struct pf_json_out *out, const struct pf_bench_env *env)
{
    pf_json_out_key(out, "environment");
    pf_json_out_object_begin(out);
    pf_json_out_key(out, "fingerprint");
    pf_json_out_object_begin(out);
    pf_json_out_member_string(out, "cpu", env->cpu);
    pf_json_out_member_string(out, "cpu_isa", env->cpu_isa);
    pf_json_out_member_string(out, "device", env->device);
    pf_json_out_member_i64(out, "cpus", env->n_cpus);
    pf_json_out_member_i64(out, "threads", env->n_threads);
    pf_json_out_member_i64(out, "ranks", env->n_ranks);
    pf_json_out_object_end(out);
    pf_json_out_member_string(out, "isa", env->isa);
    member_text(out, "library", env->library);
    pf_json_out_member_string(out, "build", env->build);
    member_text(out, "system", env->system);
    pf_json_out_key(out, "variables");
    pf_json_out_array_begin(out);
    for (size_t i = 0; i < env->variables.n; i++) {
        pf_json_out_string(out, env->variables.items[i]);
    }
    pf_json_out_array_end(out);
    pf_json_out_object_end(out);
}

static void print_limits(struct pf_json_out *out, const struct pf_bench_record *r)
{
    pf_json_out_key(out, "limits");
    pf_json_out_object_begin(out);
    member_known(out, "fma_f32_flop_per_second", r->limits.f32_flops);
    member_known(out, "fma_bf16_flop_per_second", r->limits.bf16_flops);
    member_known(out, "gemm_f32_flop_per_second", r->gemm_f32);
    member_known(out, "gemm_bf16_flop_per_second", r->gemm_bf16);
    member_known(out, "triad_byte_per_second", r->limits.triad_bytes);
    member_known(out, "copy_byte_per_second", r->limits.copy_bytes);
    member_known(out, "triad_array_bytes", r->limits.triad_array_bytes);
    pf_json_out_object_end(out);
}

static void print_stats(struct pf_json_out *out, const struct pf_bench_stats *s)
{
    pf_json_out_member_i64(out, "n", s->n);
    pf_json_out_member_f64(out, "median", s->median);
    pf_json_out_member_f64(out, "min", s->min);
    pf_json_out_member_f64(out, "max", s->max);
    pf_json_out_member_f64(out, "q1", s->q1);
    pf_json_out_member_f64(out, "q3", s->q3);
    pf_json_out_member_f64(out, "spread", s->spread);
}

/* Statistics and, where there are some, the samples behind them. */
static void print_times(struct pf_json_out *out, const char *key, const struct pf_bench_stats *s,
                        const struct pf_bench_samples *samples)
{
    pf_json_out_key(out, key);
    if (s->n == 0) {
        pf_json_out_null(out);
        return;
    }
    pf_json_out_object_begin(out);
    print_stats(out, s);
    if (samples) {
        pf_json_out_member_i64(out, "calls_per_sample", samples->calls_per_sample);
        pf_json_out_member_i64(out, "warmup_calls", samples->warmup_calls);
        pf_json_out_member_f64(out, "warmup_seconds", samples->warmup_seconds);
        pf_json_out_key(out, "samples");
        pf_json_out_array_begin(out);
        for (int i = 0; i < samples->n; i++) {
            pf_json_out_f32(out, (float)samples->seconds[i]);
        }
        pf_json_out_array_end(out);
    }
    pf_json_out_object_end(out);
}

static void print_check(struct pf_json_out *out, const struct pf_bench_case *c)
{
    pf_json_out_key(out, "check");
    if (!c->checked) {
        pf_json_out_null(out);
        return;
    }
    pf_json_out_object_begin(out);
    pf_json_out_member_bool(out, "ok", c->right);
    pf_json_out_member_f64(out, "error", c->error);
    pf_json_out_member_f64(out, "tolerance", c->tolerance);
    pf_json_out_object_end(out);
}

static void print_rate(struct pf_json_out *out, const struct pf_bench_case *c)
{
    double unit;
    const char *const name = pf_bench_rate_name(c->unit, &unit);
    const double rate = c->stats.n ? c->work / c->stats.median : NAN;

    pf_json_out_member_f64(out, "rate", rate / unit);
    pf_json_out_member_string(out, "rate_unit", name);
    member_text(out, "limit_name", c->limit_name);
    /* The limit of a training step is one of arithmetic, whatever its own unit. */
    pf_json_out_member_string(out, "limit_unit",
                              pf_bench_unit_name(c->is_step ? PF_BENCH_FLOP : c->unit));
    member_known(out, "limit_per_second", c->limit);
    const double work = c->is_step ? c->flop : c->work;
    member_known(out, "percent_of_limit",
                 c->stats.n && c->limit > 0 ? 100 * work / c->stats.median / c->limit : 0);
}

static void print_parts(struct pf_json_out *out, const struct pf_bench_case *c)
{
    pf_json_out_key(out, "parts");
    pf_json_out_array_begin(out);
    for (int op = 0; op < PF_OP_COUNT; op++) {
        const struct pf_bench_part *const part = &c->parts[op];
        if (part->calls > 0) {
            pf_json_out_object_begin(out);
            pf_json_out_member_string(out, "op", pf_op_name((enum pf_op)op));
            pf_json_out_member_i64(out, "calls", part->calls);
            pf_json_out_member_f64(out, "seconds", part->seconds);
            pf_json_out_member_f64(out, "flop", part->flop);
            pf_json_out_member_f64(out, "bytes", part->bytes);
            pf_json_out_object_end(out);
        }
    }
    pf_json_out_array_end(out);
}

static void print_step(struct pf_json_out *out, const struct pf_bench_case *c)
{
    if (!c->is_step) {
        return;
    }
    pf_json_out_key(out, "step");
    pf_json_out_object_begin(out);
    pf_json_out_member_f64(out, "flop", c->flop);
    pf_json_out_member_f64(out, "flop_per_second", c->stats.n ? c->flop / c->stats.median : NAN);
    pf_json_out_member_f64(out, "last_loss", c->loss);
    member_known(out, "parts_step_seconds", c->parts_seconds);
    print_parts(out, c);
    pf_json_out_object_end(out);
}

static void print_rival(struct pf_json_out *out, const struct pf_bench_case *c)
{
    pf_json_out_key(out, "rival");
    if (!c->rival[0]) {
        pf_json_out_null(out);
        return;
    }
    pf_json_out_object_begin(out);
    pf_json_out_member_string(out, "name", c->rival);
    print_times(out, "seconds", &c->rival_stats, &c->rival_time);
    print_times(out, "ratio", &c->ratio, NULL);
    pf_json_out_object_end(out);
}

static void print_baseline(struct pf_json_out *out, const struct pf_bench_case *c)
{
    pf_json_out_key(out, "baseline");
    if (c->verdict == PF_BENCH_NOT_COMPARED) {
        pf_json_out_null(out);
        return;
    }
    pf_json_out_object_begin(out);
    pf_json_out_member_string(out, "verdict", pf_bench_verdict_name(c->verdict));
    member_known(out, "slowdown", c->slowdown);
    print_times(out, "seconds", &c->baseline, NULL);
    pf_json_out_object_end(out);
}

static void print_case(struct pf_json_out *out, const struct pf_bench_case *c)
{
    pf_json_out_object_begin(out);
    pf_json_out_member_string(out, "name", c->name);
    pf_json_out_member_string(out, c->is_step ? "config" : "op", c->what);
    pf_json_out_member_string(out, "dtype", c->dtype);
    pf_json_out_member_string(out, "shape", c->shape);
    member_text(out, "kernel", c->kernel);
    print_check(out, c);
    pf_json_out_member_f64(out, "work", c->work);
    pf_json_out_member_string(out, "work_unit", pf_bench_unit_name(c->unit));
    pf_json_out_member_string(out, "cache", c->is_cold ? "cold" : "warm");
    print_times(out, "seconds", &c->stats, &c->time);
    print_rate(out, c);
    print_step(out, c);
    print_rival(out, c);
    print_baseline(out, c);
    pf_json_out_object_end(out);
}

int pf_bench_print_json(const struct pf_bench_record *r, int err, struct pf_str *text)
{
    char time[PF_TIME_ISO_BYTES];
    struct pf_json_out out;

    pf_json_out_init(&out, text, 2);
    pf_json_out_object_begin(&out);
    pf_json_out_member_i64(&out, "schema", PF_BENCH_SCHEMA);
    pf_json_out_member_string(&out, "program", PROGRAM);
    pf_json_out_member_string(&out, "version", pf_version_string());
    member_text(&out, "command", r->command);
    pf_json_out_member_bool(&out, "ok", err == 0);
    print_failure(&out, r, err);
    pf_json_out_member_string(&out, "started", pf_time_iso_at(r->started, time));
    pf_json_out_member_f64(&out, "seconds", r->seconds);
    print_environment(&out, &r->env);
    print_limits(&out, r);
    member_text(&out, "against", r->rival);
    pf_json_out_key(&out, "cases");
    pf_json_out_array_begin(&out);
    for (int i = 0; i < r->n_cases; i++) {
        print_case(&out, &r->cases[i]);
    }
    pf_json_out_array_end(&out);
    print_failures(&out, r);
    pf_json_out_object_end(&out);
    return pf_json_out_finish(&out);
}

/* Reading --------------------------------------------------------------------------------------- */

static int read_text(const struct pf_json *node, const char *key, char *to, size_t bytes)
{
    const char *text;

    PF_TRY(pf_json_string(node, key, "", &text));
    (void)snprintf(to, bytes, "%s", text);
    return 0;
}

#define READ_TEXT(node, key, to) PF_TRY(read_text((node), (key), (to), sizeof(to)))

static int read_environment(const struct pf_json *doc, struct pf_bench_env *env)
{
    const struct pf_json *env_node, *node;

    PF_TRY(pf_json_need(doc, "environment", &env_node));
    PF_TRY(pf_json_need(env_node, "fingerprint", &node));
    READ_TEXT(node, "cpu", env->cpu);
    READ_TEXT(node, "cpu_isa", env->cpu_isa);
    READ_TEXT(node, "device", env->device);
    PF_TRY(pf_json_int(node, "cpus", 0, &env->n_cpus));
    PF_TRY(pf_json_int(node, "threads", 0, &env->n_threads));
    PF_TRY(pf_json_int(node, "ranks", 1, &env->n_ranks));
    READ_TEXT(env_node, "isa", env->isa);
    READ_TEXT(env_node, "library", env->library);
    READ_TEXT(env_node, "build", env->build);
    READ_TEXT(env_node, "system", env->system);
    const struct pf_json *const variables = pf_json_get(env_node, "variables");
    for (size_t i = 0; i < pf_json_n(variables); i++) {
        const char *text;
        PF_TRY(pf_json_as_string(pf_json_child(variables, i), &text));
        PF_TRY(pf_str_list_append(&env->variables, text));
    }
    return 0;
}

static int read_limits(const struct pf_json *doc, struct pf_bench_record *r)
{
    const struct pf_json *const node = pf_json_get(doc, "limits");

    if (!node) {
        return 0;
    }
    PF_TRY(pf_json_f64(node, "fma_f32_flop_per_second", 0, &r->limits.f32_flops));
    PF_TRY(pf_json_f64(node, "fma_bf16_flop_per_second", 0, &r->limits.bf16_flops));
    PF_TRY(pf_json_f64(node, "gemm_f32_flop_per_second", 0, &r->gemm_f32));
    PF_TRY(pf_json_f64(node, "gemm_bf16_flop_per_second", 0, &r->gemm_bf16));
    PF_TRY(pf_json_f64(node, "triad_byte_per_second", 0, &r->limits.triad_bytes));
    PF_TRY(pf_json_f64(node, "copy_byte_per_second", 0, &r->limits.copy_bytes));
    return pf_json_f64(node, "triad_array_bytes", 0, &r->limits.triad_array_bytes);
}

/* Absent or null: no samples. */
static int read_times(const struct pf_json *node, struct pf_bench_samples *samples,
                      struct pf_bench_stats *stats)
{
    const struct pf_json *const list = pf_json_get(node, "samples");
    const size_t n = pf_json_n(list);

    if (n > 0) {
        samples->seconds = pf_calloc_array(n, sizeof *samples->seconds);
        if (!samples->seconds) {
            return PF_ENOMEM;
        }
    }
    for (size_t i = 0; i < n; i++) {
        const struct pf_json *const item = pf_json_child(list, i);
        PF_TRY(pf_json_as_f64(item, &samples->seconds[i]));
        if (samples->seconds[i] <= 0) {
            return pf_json_fail(item, "must be above 0");
        }
    }
    PF_TRY(pf_to_int((int64_t)n, &samples->n));
    samples->capacity = samples->n;
    if (node && pf_json_type(node) == PF_JSON_OBJECT) {
        PF_TRY(pf_json_i64(node, "calls_per_sample", 1, &samples->calls_per_sample));
        PF_TRY(pf_json_i64(node, "warmup_calls", 0, &samples->warmup_calls));
        PF_TRY(pf_json_f64(node, "warmup_seconds", 0, &samples->warmup_seconds));
    }
    return pf_bench_stats(samples->seconds, samples->n, stats);
}

static int read_unit(const struct pf_json *node, enum pf_bench_unit *unit_out)
{
    const char *name;

    PF_TRY(pf_json_need_string(node, "work_unit", &name));
    for (int u = PF_BENCH_FLOP; u <= PF_BENCH_TOKEN; u++) {
        if (strcmp(name, pf_bench_unit_name((enum pf_bench_unit)u)) == 0) {
            *unit_out = (enum pf_bench_unit)u;
            return 0;
        }
    }
    return pf_json_fail(pf_json_get(node, "work_unit"), "is no unit of this version: '%s'", name);
}

static int read_check(const struct pf_json *node, struct pf_bench_case *c)
{
    const struct pf_json *const check = pf_json_get(node, "check");

    if (!check || pf_json_type(check) == PF_JSON_NULL) {
        return 0;
    }
    c->checked = true;
    PF_TRY(pf_json_need_bool(check, "ok", &c->right));
    PF_TRY(pf_json_f64(check, "error", NAN, &c->error));
    return pf_json_f64(check, "tolerance", NAN, &c->tolerance);
}

static int read_rival(const struct pf_json *node, struct pf_bench_case *c)
{
    const struct pf_json *const rival = pf_json_get(node, "rival");

    if (!rival || pf_json_type(rival) == PF_JSON_NULL) {
        return 0;
    }
    READ_TEXT(rival, "name", c->rival);
    PF_TRY(read_times(pf_json_get(rival, "seconds"), &c->rival_time, &c->rival_stats));
    const struct pf_json *const ratio = pf_json_get(rival, "ratio");
    if (!ratio || pf_json_type(ratio) == PF_JSON_NULL) {
        return 0;
    }
    PF_TRY(pf_json_int(ratio, "n", 0, &c->ratio.n));
    PF_TRY(pf_json_f64(ratio, "median", NAN, &c->ratio.median));
    PF_TRY(pf_json_f64(ratio, "q1", NAN, &c->ratio.q1));
    return pf_json_f64(ratio, "q3", NAN, &c->ratio.q3);
}

static int read_step(const struct pf_json *node, struct pf_bench_case *c)
{
    const struct pf_json *const step = pf_json_get(node, "step");

    c->is_step = step != NULL;
    READ_TEXT(node, c->is_step ? "config" : "op", c->what);
    if (!step) {
        return 0;
    }
    PF_TRY(pf_json_f64(step, "flop", 0, &c->flop));
    return pf_json_f64(step, "last_loss", NAN, &c->loss);
}

static int read_case(const struct pf_json *node, struct pf_bench_record *r)
{
    struct pf_bench_case *c;
    const char *name;

    PF_TRY(pf_json_need_string(node, "name", &name));
    if (pf_bench_find(r, name)) {
        return pf_json_fail(node, "has the name of another case: '%s'", name);
    }
    PF_TRY(pf_bench_add_case(r, &c));
    READ_TEXT(node, "name", c->name);
    READ_TEXT(node, "dtype", c->dtype);
    READ_TEXT(node, "shape", c->shape);
    READ_TEXT(node, "kernel", c->kernel);
    READ_TEXT(node, "limit_name", c->limit_name);
    PF_TRY(pf_json_need_f64(node, "work", &c->work));
    PF_TRY(read_unit(node, &c->unit));
    PF_TRY(pf_json_f64(node, "limit_per_second", 0, &c->limit));
    PF_TRY(read_check(node, c));
    PF_TRY(read_step(node, c));
    PF_TRY(read_rival(node, c));
    return read_times(pf_json_get(node, "seconds"), &c->time, &c->stats);
}

static int check_kind(const struct pf_json *doc)
{
    const char *program;
    int64_t schema;

    PF_TRY(pf_json_expect(doc, PF_JSON_OBJECT));
    PF_TRY(pf_json_need_string(doc, "program", &program));
    PF_TRY(pf_json_need_i64(doc, "schema", &schema));
    if (strcmp(program, PROGRAM) != 0 || schema != PF_BENCH_SCHEMA) {
        return pf_fail(PF_EFORMAT,
                       "'%s' is of program '%s' with schema %lld, not of " PROGRAM
                       " with schema %d",
                       pf_json_name(doc), program, (long long)schema, PF_BENCH_SCHEMA);
    }
    return 0;
}

static int read_record(const struct pf_json *doc, struct pf_bench_record *r)
{
    const struct pf_json *cases;

    PF_TRY(check_kind(doc));
    READ_TEXT(doc, "command", r->command);
    READ_TEXT(doc, "against", r->rival);
    PF_TRY(read_environment(doc, &r->env));
    PF_TRY(read_limits(doc, r));
    PF_TRY(pf_json_need(doc, "cases", &cases));
    PF_TRY(pf_json_expect(cases, PF_JSON_ARRAY));
    for (size_t i = 0; i < pf_json_n(cases); i++) {
        PF_TRY(read_case(pf_json_child(cases, i), r));
    }
    return 0;
}

int pf_bench_read(const char *path, struct pf_bench_record *record_out)
{
    const struct pf_json_options options = {.name = path, .error_code = PF_EFORMAT};
    struct pf_json *doc = NULL;

    memset(record_out, 0, sizeof *record_out);
    PF_TRY(pf_json_parse_file_with(path, &options, &doc));
    const int err = read_record(doc, record_out);
    pf_json_free(doc);
    return err;
}
