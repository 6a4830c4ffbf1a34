/* SPDX-License-Identifier: Apache-2.0 */
/* Whole training steps: checked on a short sequence, measured, and taken apart by op. */
#include "bench_internal.h"

#include <pf/error.h>
#include <pf/file.h>
#include <pf/json.h>
#include <pf/mem.h>
#include <pf/model.h>
#include <pf/time.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WATCHED_STEPS = 3, CHECKED_STEPS = 2, MIN_STEPS = 3 };

struct session {
    const struct pf_bench_step_options *options;
    struct pf_bench_record *record;
    struct pf_comm *world;
    struct bench_trainer t;
    struct pf_bench_case *c;
    int n_steps, n_warmup;
    double flop;
};

/* The case ------------------------------------------------------------------------------------- */

/* Flop of a step over all ranks. */
static double step_flop(const struct session *s)
{
    const struct pf_config *const c = &s->t.config;
    const double of_one = pf_model_step_flops(pf_trainer_spec(s->t.trainer),
                                              c->per_device_train_batch_size, c->max_seq_length);

    return of_one * (double)c->global_train_batch_size / (double)c->per_device_train_batch_size;
}

static int describe(struct session *s)
{
    const struct pf_config *const config = &s->t.config;
    const char *const base = pf_path_base(s->options->config);
    struct pf_bench_case *c;

    PF_TRY(pf_bench_add_case(s->record, &c));
    (void)snprintf(c->what, sizeof c->what, "%.*s",
                   pf_str_ends_with(base, ".json") ? (int)strlen(base) - 5 : (int)strlen(base),
                   base);
    (void)snprintf(c->dtype, sizeof c->dtype, "%s", pf_dtype_name(config->dtype));
    (void)snprintf(
        c->shape, sizeof c->shape, "%lldx%lldx%lld",
        (long long)(config->global_train_batch_size / config->per_device_train_batch_size),
        (long long)config->per_device_train_batch_size, (long long)config->max_seq_length);
    (void)snprintf(c->name, sizeof c->name, "step %.60s %s %.40s", c->what, c->dtype, c->shape);
    const struct pf_kernel_row *const gemm =
        pf_ops_chosen(pf_trainer_ops(s->t.trainer), PF_OP_GEMM, config->dtype);
    (void)snprintf(c->kernel, sizeof c->kernel, "%s", gemm ? gemm->variant : "");
    c->unit = PF_BENCH_TOKEN;
    c->is_step = true;
    c->flop = s->flop;
    c->work = (double)(config->global_train_batch_size * config->max_seq_length);
    s->c = c;
    return 0;
}

static void describe_environment(struct session *s)
{
    const struct pf_ops *const ops = pf_trainer_ops(s->t.trainer);
    struct pf_bench_env *const env = &s->record->env;

    env->n_threads = pf_ops_threads(ops);
    env->n_ranks = pf_comm_size(s->world);
    (void)snprintf(env->device, sizeof env->device, "%s", s->t.config.device);
    (void)snprintf(env->isa, sizeof env->isa, "%s", pf_ops_isa(ops));
    (void)snprintf(env->library, sizeof env->library, "%s", pf_ops_library(ops));
}

/* The check ------------------------------------------------------------------------------------- */

/* A pf.json whose kernels are all the reference's. */
static int write_reference_choices(const struct pf_ops *ops, const char *path)
{
    struct pf_json_out out;
    struct pf_str text;

    pf_str_init(&text);
    pf_json_out_init(&out, &text, 0);
    pf_json_out_object_begin(&out);
    pf_json_out_key(&out, "kernels");
    pf_json_out_object_begin(&out);
    pf_json_out_member_i64(&out, "threads", pf_ops_threads(ops));
    pf_json_out_member_string(&out, "isa", pf_ops_isa(ops));
    pf_json_out_member_string(&out, "library", pf_ops_library(ops));
    pf_json_out_key(&out, "chosen");
    pf_json_out_array_begin(&out);
    for (int i = 0; i < pf_ops_n_choices(ops); i++) {
        const struct pf_ops_choice choice = pf_ops_choice_at(ops, i);
        if (choice.product) {
            continue; /* its pair's row serves both */
        }
        pf_json_out_object_begin(&out);
        pf_json_out_member_string(&out, "op", pf_op_name(choice.op));
        pf_json_out_member_string(&out, "dtype", pf_dtype_name(choice.dtype));
        pf_json_out_member_string(&out, "variant", "ref");
        pf_json_out_object_end(&out);
    }
    pf_json_out_array_end(&out);
    pf_json_out_object_end(&out);
    pf_json_out_object_end(&out);
    int err = pf_json_out_finish(&out);
    err = err ? err : pf_file_write_atomic(path, text.text, text.len);
    pf_str_release(&text);
    return err;
}

/* The user's overrides, then these. */
static int open_short(struct session *s, int64_t seq, const char *kernels_from,
                      struct bench_trainer *t)
{
    enum { N_OWN = 8 };
    const struct pf_bench_step_options *const o = s->options;
    const char **const all = pf_calloc_array((size_t)o->n_overrides + N_OWN, sizeof *all);
    const int64_t vocab = pf_trainer_spec(s->t.trainer)->vocab_size;
    char text[4][64];
    char *const from = kernels_from ? pf_asprintf("kernels_from=%s", kernels_from) : NULL;
    int n = o->n_overrides, err = all && (from || !kernels_from) ? 0 : PF_ENOMEM;

    if (!err) {
        (void)snprintf(text[0], sizeof text[0], "max_seq_length=%lld", (long long)seq);
        (void)snprintf(text[1], sizeof text[1], "max_steps=%d", CHECKED_STEPS);
        (void)snprintf(text[2], sizeof text[2], "input_dir=synthetic:markov?vocab=%lld&order=1",
                       (long long)(vocab < 64 ? vocab : 64));
        (void)snprintf(text[3], sizeof text[3], "global_train_batch_size=%d",
                       pf_comm_size(s->world));
        for (int i = 0; i < o->n_overrides; i++) {
            all[i] = o->overrides[i];
        }
        for (int i = 0; i < 4; i++) {
            all[n++] = text[i];
        }
        all[n++] = "per_device_train_batch_size=1";
        all[n++] = "gradient_accumulation_steps=null";
        all[n++] = "tokenizer=null";
        if (from) {
            all[n++] = from;
        }
        err = bench_trainer_open(o->config, all, n, s->world, t);
    }
    pf_free(from);
    pf_free(all);
    return err;
}

/* Loss and gradient norm of each step, in turn. */
static int run_short(struct session *s, int64_t seq, const char *kernels_from,
                     double result[2 * CHECKED_STEPS])
{
    struct bench_trainer t;
    struct pf_step_report report;
    int err = open_short(s, seq, kernels_from, &t);

    err = err ? err : pf_trainer_build(t.trainer);
    for (int i = 0; !err && i < CHECKED_STEPS; i++) {
        err = pf_trainer_step(t.trainer, &report);
        if (!err) {
            result[2 * i] = report.loss;
            result[2 * i + 1] = report.grad_norm;
        }
    }
    bench_trainer_close(&t);
    return err;
}

/* As long as the plain reference needs a few seconds. */
static int64_t short_seq(const struct session *s)
{
    const double per_token = s->flop / s->c->work;
    const int64_t most = s->t.config.max_seq_length < 16 ? s->t.config.max_seq_length : 16;
    const double n = 2e9 / per_token;

    return n < 2 ? 2 : n > (double)most ? most : (int64_t)n;
}

/* DESIGN section 5: what reorders a sum agrees to 1e-5 in fp32; in 16 bits to 1e-2. A gradient norm
 * is a sum of squares of such differences over all weights, and the second step's follows an update
 * that divides by their size: ten times that. */
static void weigh(struct pf_bench_case *c, const double *got, const double *want)
{
    const double tolerance = strcmp(c->dtype, "F32") == 0 ? 1e-5 : 1e-2;

    c->checked = true;
    c->right = true;
    c->tolerance = tolerance;
    for (int i = 0; i < 2 * CHECKED_STEPS; i++) {
        const double allowed = i % 2 ? 10 * tolerance : tolerance;
        const double error = fabs(got[i] - want[i]) / (fabs(want[i]) + 1e-30);
        if (!(error / allowed <= c->error / c->tolerance)) {
            c->error = error;
            c->tolerance = allowed;
        }
        c->right = c->right && error <= allowed;
    }
}

static int check(struct session *s)
{
    double got[2 * CHECKED_STEPS], want[2 * CHECKED_STEPS];
    char *const path = pf_path_join(s->t.dir, "reference.json");
    const int64_t seq = short_seq(s);
    int err = path ? 0 : PF_ENOMEM;

    if (!err && pf_comm_rank(s->world) == 0) {
        err = write_reference_choices(pf_trainer_ops(s->t.trainer), path);
    }
    err = pf_comm_all_agree(s->world, err, NULL);
    err = err ? err : run_short(s, seq, NULL, got);
    err = err ? err : run_short(s, seq, path, want);
    pf_free(path);
    PF_TRY(err);
    weigh(s->c, got, want);
    return s->c->right
               ? 0
               : pf_bench_fail(s->record, true,
                               "wrong result: %s differs by %.2g from the reference on %lld "
                               "tokens, at most %.2g is rounding",
                               s->c->name, s->c->error, (long long)seq, s->c->tolerance);
}

/* Measuring ------------------------------------------------------------------------------------- */

static void tell(const struct session *s, int64_t done)
{
    if (s->options->progress) {
        s->options->progress(s->options->context, done, s->n_warmup + s->n_steps + WATCHED_STEPS);
    }
}

static void on_call(void *context, const struct pf_ops_call *call)
{
    struct pf_bench_part *const part = &((struct pf_bench_part *)context)[call->op];
    const struct pf_op_work work = pf_op_work(call->op, call->dtype, call->args);

    part->calls++;
    part->seconds += call->ended - call->started;
    part->flop += work.flop;
    part->bytes += work.bytes;
}

/* The fastest of some steps, taken apart: watching reads the clock twice a call, so its time is not a
 * sample. */
static int watch_steps(struct session *s)
{
    struct pf_bench_case *const c = s->c;
    struct pf_ops *const ops = pf_trainer_ops(s->t.trainer);
    struct pf_bench_part parts[PF_OP_COUNT];
    struct pf_step_report report;
    int err = 0;

    pf_ops_observe(ops, on_call, parts);
    for (int i = 0; !err && i < WATCHED_STEPS; i++) {
        memset(parts, 0, sizeof parts);
        err = pf_trainer_step(s->t.trainer, &report);
        if (!err && (i == 0 || report.seconds < c->parts_seconds)) {
            c->parts_seconds = report.seconds;
            memcpy(c->parts, parts, sizeof parts);
        }
    }
    pf_ops_observe(ops, NULL, NULL);
    return err;
}

/* All ranks stop after the same step: when the first of them has had enough. */
static int agree_on_end(struct session *s, double spent, int i, bool *end_out)
{
    int64_t end = i >= MIN_STEPS && spent > s->options->effort.seconds;

    *end_out = false;
    if (s->options->effort.seconds > 0) {
        PF_TRY(pf_comm_all_reduce(s->world, &end, 1, PF_COMM_I64, PF_COMM_MAX));
        *end_out = end != 0;
    }
    return 0;
}

static int time_steps(struct session *s)
{
    struct pf_bench_case *const c = s->c;
    const double started = pf_time_monotonic();
    struct pf_step_report report;
    bool end = false;

    for (int i = 0; i < s->n_steps && !end; i++) {
        PF_TRY(pf_trainer_step(s->t.trainer, &report));
        PF_TRY(bench_add_sample(&c->time, report.seconds));
        c->loss = report.loss;
        tell(s, s->n_warmup + i + 1);
        PF_TRY(agree_on_end(s, pf_time_monotonic() - started, i + 1, &end));
    }
    return 0;
}

static int warm_up(struct session *s)
{
    struct pf_bench_samples *const time = &s->c->time;
    struct pf_step_report report;

    time->calls_per_sample = 1;
    for (int i = 0; i < s->n_warmup; i++) {
        PF_TRY(pf_trainer_step(s->t.trainer, &report));
        time->warmup_calls++;
        time->warmup_seconds += report.seconds;
        tell(s, i + 1);
    }
    return 0;
}

/* Of all ranks: each measures while the others do, as they compute in a step. */
static int measure_limits(struct session *s)
{
    const struct pf_ops *const ops = pf_trainer_ops(s->t.trainer);
    struct pf_bench_record *const r = s->record;

    PF_TRY(pf_limits_measure(pf_ops_threads(ops), pf_ops_isa(ops), &r->limits));
    PF_TRY(bench_measure_gemm(ops, PF_DTYPE_F32, &r->gemm_f32));
    return s->t.config.dtype == PF_DTYPE_BF16
               ? bench_measure_gemm(ops, PF_DTYPE_BF16, &r->gemm_bf16)
               : 0;
}

static void set_limit(struct session *s)
{
    const struct pf_bench_record *const r = s->record;
    const bool narrow = r->gemm_bf16 > r->gemm_f32;

    s->c->limit = (narrow ? r->gemm_bf16 : r->gemm_f32) * pf_comm_size(s->world);
    (void)snprintf(s->c->limit_name, sizeof s->c->limit_name, "gemm %s", narrow ? "BF16" : "F32");
}

static int measure(struct session *s)
{
    PF_TRY(pf_trainer_build(s->t.trainer));
    PF_TRY(measure_limits(s));
    PF_TRY(warm_up(s));
    PF_TRY(time_steps(s));
    PF_TRY(measure_limits(s));
    set_limit(s);
    PF_TRY(watch_steps(s));
    tell(s, s->n_warmup + s->n_steps + WATCHED_STEPS);
    return pf_bench_stats(s->c->time.seconds, s->c->time.n, &s->c->stats);
}

/* As the user's config says, but for as many steps as are made here. */
static int open_whole(struct session *s)
{
    const struct pf_bench_step_options *const o = s->options;
    const char **const all = pf_calloc_array((size_t)o->n_overrides + 1, sizeof *all);
    char text[64];

    if (!all) {
        return PF_ENOMEM;
    }
    (void)snprintf(text, sizeof text, "max_steps=%d", s->n_warmup + s->n_steps + WATCHED_STEPS);
    for (int i = 0; i < o->n_overrides; i++) {
        all[i] = o->overrides[i];
    }
    all[o->n_overrides] = text;
    const int err = bench_trainer_open(o->config, all, o->n_overrides + 1, s->world, &s->t);
    pf_free(all);
    return err;
}

static int run(struct session *s)
{
    const struct pf_bench_step_options *const o = s->options;

    PF_TRY(open_whole(s));
    s->flop = step_flop(s);
    describe_environment(s);
    PF_TRY(describe(s));
    if (o->list) {
        return 0;
    }
    PF_TRY(check(s));
    return s->c->right ? measure(s) : 0;
}

int pf_bench_step(const struct pf_bench_step_options *options, struct pf_comm *world,
                  struct pf_bench_record *record)
{
    const struct pf_bench_effort *const e = &options->effort;
    const double started = pf_time_monotonic();
    struct session s = {.options = options, .record = record, .world = world};

    s.n_steps = options->n_steps > 0 ? options->n_steps : e->repeat > 0 ? e->repeat : 20;
    s.n_warmup = e->warmup >= 0 ? e->warmup : 3;
    const int err = run(&s);
    bench_trainer_close(&s.t);
    record->seconds = pf_time_monotonic() - started;
    return err;
}
