/* SPDX-License-Identifier: Apache-2.0 */
/* The pipeline of a run before it is started: what each stage does when, its bubble, what it holds. */
#include "command.h"

#include <pf/error.h>
#include <pf/file.h>
#include <pf/mem.h>
#include <pf/parallel.h>
#include <pf/schedule.h>
#include <pf/term.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct pipeline {
    struct pf_json *config; /* NULL: none was given */
    bool has_model;
    struct pf_model_spec spec;
    struct pf_parallel par;
    struct pf_schedule_options options;
    struct pf_sched_cost unit;   /* of a chunk of weight 1 */
    const char *weights_are;     /* where the weights come from */
    double *weights;             /* [n_chunks] */
    struct pf_sched_cost *costs; /* [n_chunks] */
    struct pf_schedule *schedule;
    struct pf_sched_facts *facts; /* [n_stages] */
    struct pf_sched_timeline *timeline;
};

static int n_chunks(const struct pipeline *p)
{
    return p->options.n_stages * p->options.vpp;
}

/* Options ---------------------------------------------------------------------------------------- */

/* Numbers separated by commas; the caller frees. */
static int read_numbers(const char *option, const char *text, double **values_out, size_t *n_out)
{
    struct pf_str_list words = {0};
    double *values = NULL;
    int err = pf_str_split(text, ',', true, &words);

    if (!err) {
        values = pf_calloc_array(words.n, sizeof *values);
        err = values ? 0 : PF_ENOMEM;
    }
    for (size_t i = 0; !err && i < words.n; i++) {
        if (pf_parse_f64(words.items[i], &values[i]) != 0 || !(values[i] >= 0) ||
            !(values[i] <= 1e12)) {
            pf_error_clear();
            err = pf_fail(PF_EUSAGE, "'%s' holds '%s': must be numbers from 0 to 1e12" SEE_HELP,
                          option, words.items[i]);
        }
    }
    *n_out = words.n;
    pf_str_list_release(&words);
    if (err) {
        pf_free(values);
        return err;
    }
    *values_out = values;
    return 0;
}

static int read_costs(const struct options *o, struct pipeline *p)
{
    double *values = NULL;
    size_t n = 0;

    p->unit = (struct pf_sched_cost){1, 2, 1, 1};
    if (!o->costs) {
        return 0;
    }
    PF_TRY(read_numbers("--costs", o->costs, &values, &n));
    if (n == 2) {
        p->unit = (struct pf_sched_cost){values[0], values[1], values[1] / 2, values[1] / 2};
    } else if (n == 3) {
        p->unit = (struct pf_sched_cost){values[0], values[1] + values[2], values[1], values[2]};
    }
    pf_free(values);
    if (n != 2 && n != 3) {
        return pf_fail(PF_EUSAGE, "'--costs' has 2 or 3 numbers, not %zu" SEE_HELP, n);
    }
    return p->unit.forward > 0 && p->unit.backward > 0
               ? 0
               : pf_fail(PF_EUSAGE, "'--costs': a forward and a backward take time" SEE_HELP);
}

static int kind_of(const char *name, enum pf_schedule_kind *kind_out)
{
    const char *names[PF_SCHEDULE_COUNT];

    for (int i = 0; i < PF_SCHEDULE_COUNT; i++) {
        names[i] = pf_schedule_name((enum pf_schedule_kind)i);
        if (strcmp(name, names[i]) == 0) {
            *kind_out = (enum pf_schedule_kind)i;
            return 0;
        }
    }
    const char *const nearest = pf_nearest(name, names, PF_SCHEDULE_COUNT);
    return pf_fail(PF_EUSAGE, "there is no schedule '%s'%s%s%s" SEE_HELP, name,
                   nearest ? "; did you mean '" : "", nearest ? nearest : "", nearest ? "'?" : "");
}

/* The configuration ------------------------------------------------------------------------------ */

static bool names_model(const struct pf_json *config)
{
    return pf_json_get(config, "model_type") || pf_json_get(config, "model") ||
           pf_json_get(config, "model_name_or_path");
}

static int read_config(const struct options *o, const char *path, struct pipeline *p)
{
    pf_parallel_init(&p->par);
    if (path) {
        PF_TRY(pf_json_parse_file(path, &p->config));
        PF_TRY(pf_json_expect(p->config, PF_JSON_OBJECT));
        p->has_model = names_model(p->config);
    }
    if (p->has_model) {
        PF_TRY(config_model(p->config, &p->spec));
    }
    if (o->layout) {
        return pf_parallel_parse(o->layout, &p->par);
    }
    return p->config ? pf_parallel_read(p->config, &p->par) : 0;
}

/* Stages and chunks. With a model its layers decide whether the layout can be. */
static int read_layout(const struct options *o, struct pipeline *p)
{
    struct pf_mesh mesh;

    if (o->world < 0 || o->world > INT32_MAX) {
        return pf_fail(PF_EUSAGE, "'--world' is from 1 to %d" SEE_HELP, INT32_MAX);
    }
    if (o->world > 0 && !p->has_model) {
        return pf_fail(PF_EUSAGE, "'--world' needs a config with a model" SEE_HELP);
    }
    if (p->par.dual) {
        return pf_fail(PF_ENOTSUP, "this build has no DualPipeV schedule");
    }
    if (p->has_model) {
        PF_TRY(pf_parallel_resolve(&p->par, &p->spec, (int)o->world, &mesh));
    }
    p->options.n_stages = p->par.degree[PF_AXIS_PP] > 0 ? p->par.degree[PF_AXIS_PP] : 1;
    p->options.vpp = p->par.vpp > 0 ? p->par.vpp : 1;
    return 0;
}

static int read_kind(const struct options *o, struct pipeline *p)
{
    struct pf_schedule_keys keys = {.mode = PF_SCHEDULE_1F1B};

    if (o->schedule) {
        return kind_of(o->schedule, &p->options.kind);
    }
    if (p->config) {
        PF_TRY(pf_schedule_read_keys(p->config, &keys));
    }
    return pf_schedule_choose(&keys, p->options.vpp, &p->options.kind);
}

/* A whole batch dealt to the data-parallel ranks, in micro-batches. */
static int divide_batch(const struct pipeline *p, int64_t batch, int64_t *n_out)
{
    const int dp = p->par.degree[PF_AXIS_DP] * p->par.degree[PF_AXIS_SHARDING];
    int64_t each = 0, per_round = 0;

    PF_TRY(pf_json_i64(p->config, "per_device_train_batch_size", 8, &each));
    if (dp < 1) {
        return pf_fail(PF_EUSAGE, "how many micro-batches global_train_batch_size makes depends on "
                                  "the ranks: give '--micro-batches'" SEE_HELP);
    }
    if (each < 1 || !pf_mul_i64(each, dp, &per_round) || batch % per_round != 0) {
        return pf_fail(PF_EINVAL,
                       "global_train_batch_size %" PRId64 " is not a multiple of "
                       "per_device_train_batch_size %" PRId64 " x %d data-parallel ranks",
                       batch, each, dp);
    }
    *n_out = batch / per_round;
    return 0;
}

static int read_micro_batches(const struct options *o, struct pipeline *p)
{
    int64_t n = o->micro_batches, batch = -1;

    if (n < 0) {
        return pf_fail(PF_EUSAGE, "'--micro-batches' is from 1 on" SEE_HELP);
    }
    if (n == 0 && p->config) {
        PF_TRY(pf_json_i64(p->config, "gradient_accumulation_steps", 0, &n));
        PF_TRY(pf_json_i64(p->config, "global_train_batch_size", -1, &batch));
    }
    if (n == 0 && batch >= 0) {
        PF_TRY(divide_batch(p, batch, &n));
    } else if (n == 0) {
        n = 1;
    }
    if (n < 1 || n > PF_SCHEDULE_MAX_PIECES) {
        return pf_fail(PF_EINVAL, "%" PRId64 " micro-batches are none or too many", n);
    }
    p->options.n_micro = (int)n;
    return 0;
}

/* Costs ------------------------------------------------------------------------------------------ */

/* One number for each stage or for each chunk. */
static int weights_given(const struct options *o, struct pipeline *p)
{
    double *values = NULL, sum = 0;
    size_t n = 0;
    const size_t n_stages = (size_t)p->options.n_stages;

    PF_TRY(read_numbers("--factors", o->factors, &values, &n));
    const bool fits = n == n_stages || n == (size_t)n_chunks(p);
    for (int c = 0; fits && c < n_chunks(p); c++) {
        p->weights[c] = values[n == n_stages ? (size_t)c % n_stages : (size_t)c];
        sum += p->weights[c];
    }
    pf_free(values);
    if (!fits) {
        return pf_fail(PF_EUSAGE,
                       "'--factors' has %zu numbers: give one for each of %d stages or %d "
                       "chunks" SEE_HELP,
                       n, p->options.n_stages, n_chunks(p));
    }
    p->weights_are = "as given";
    return sum > 0 ? 0 : pf_fail(PF_EUSAGE, "'--factors' are all 0" SEE_HELP);
}

/* By layers, 1 on the average. */
static int weights_of_model(struct pipeline *p)
{
    int64_t starts[PF_PARALLEL_MAX_CHUNKS + 1];
    const int n = pf_parallel_chunks(&p->par, &p->spec, starts);

    if (n < 0) {
        return n;
    }
    for (int c = 0; c < n; c++) {
        p->weights[c] = (double)(starts[c + 1] - starts[c]) * n / (double)p->spec.n_layers;
    }
    p->weights_are = "by layers";
    return 0;
}

static int make_costs(const struct options *o, struct pipeline *p)
{
    const size_t n = (size_t)n_chunks(p);

    p->weights = pf_calloc_array(n, sizeof *p->weights);
    p->costs = pf_calloc_array(n, sizeof *p->costs);
    if (!p->weights || !p->costs) {
        return PF_ENOMEM;
    }
    p->weights_are = "the same";
    for (size_t c = 0; c < n; c++) {
        p->weights[c] = 1;
    }
    if (o->factors) {
        PF_TRY(weights_given(o, p));
    } else if (p->has_model) {
        PF_TRY(weights_of_model(p));
    }
    for (size_t c = 0; c < n; c++) {
        const double w = p->weights[c];
        p->costs[c] =
            (struct pf_sched_cost){p->unit.forward * w, p->unit.backward * w,
                                   p->unit.backward_input * w, p->unit.backward_weight * w};
    }
    return 0;
}

static int make(const struct options *o, const char *path, struct pipeline *p)
{
    PF_TRY(read_costs(o, p));
    PF_TRY(read_config(o, path, p));
    PF_TRY(read_layout(o, p));
    PF_TRY(read_kind(o, p));
    PF_TRY(read_micro_batches(o, p));
    PF_TRY(pf_schedule_new(&p->options, &p->schedule));
    PF_TRY(make_costs(o, p));
    p->facts = pf_calloc_array((size_t)p->options.n_stages, sizeof *p->facts);
    if (!p->facts) {
        return PF_ENOMEM;
    }
    PF_TRY(pf_schedule_check(p->schedule, p->facts));
    return pf_schedule_time(p->schedule, &(struct pf_sched_costs){.chunks = p->costs},
                            &p->timeline);
}

/* Text ------------------------------------------------------------------------------------------- */

static const char *plural(int n)
{
    return n == 1 ? "" : "s";
}

/* "VPP, 4 stages of 2 chunks, 8 micro-batches" */
static int append_title(struct pf_str *to, const struct pipeline *p)
{
    const struct pf_schedule_options *const s = &p->options;

    return pf_str_appendf(to, "%s, %d stage%s of %d chunk%s, %d micro-batch%s",
                          pf_schedule_name(s->kind), s->n_stages, plural(s->n_stages), s->vpp,
                          plural(s->vpp), s->n_micro, s->n_micro == 1 ? "" : "es");
}

static double share_idle(const struct pipeline *p, int stage)
{
    return 1 - p->timeline->busy[stage] / p->timeline->total;
}

static int print_head(const struct pipeline *p)
{
    struct pf_str line;

    pf_str_init(&line);
    append_title(&line, p);
    print_field("schedule", pf_str_error(&line) ? "" : line.text);
    pf_str_clear(&line);
    pf_str_appendf(&line,
                   "forward %g, backward %g (input gradients %g, weight gradients %g); "
                   "chunks weigh %s",
                   p->unit.forward, p->unit.backward, p->unit.backward_input,
                   p->unit.backward_weight, p->weights_are);
    print_field("costs", pf_str_error(&line) ? "" : line.text);
    pf_str_clear(&line);
    pf_str_appendf(&line, "%g, bubble %.4g %%", p->timeline->total, 100 * p->timeline->bubble);
    print_field("time", pf_str_error(&line) ? "" : line.text);
    const int err = pf_str_error(&line);
    pf_str_release(&line);
    return err;
}

static int add_number(struct table *table, const char *format, double value)
{
    char text[48];

    (void)snprintf(text, sizeof text, format, value);
    return table_add_text(table, text);
}

static int add_stage(struct table *table, const struct pipeline *p, int stage)
{
    const struct pf_sched_facts *const f = &p->facts[stage];

    PF_TRY(table_add_i64(table, stage));
    PF_TRY(add_number(table, "%g", p->timeline->busy[stage]));
    PF_TRY(add_number(table, "%.1f %%", 100 * share_idle(p, stage)));
    PF_TRY(table_add_i64(table, f->peak_live));
    PF_TRY(table_add_i64(table, f->peak_split));
    PF_TRY(table_add_i64(table, f->fwd_buffers));
    return table_add_i64(table, f->bwd_buffers);
}

static int print_stages(const struct pipeline *p)
{
    static const char *const heads[] = {"STAGE", "BUSY",    "IDLE",   "LIVE",
                                        "SPLIT", "FWD-BUF", "BWD-BUF"};
    struct table table;
    int err = 0;

    table_init(&table, "rrrrrrr");
    for (size_t i = 0; i < sizeof heads / sizeof heads[0] && !err; i++) {
        err = table_add_text(&table, heads[i]);
    }
    for (int stage = 0; stage < p->options.n_stages && !err; stage++) {
        err = add_stage(&table, p, stage);
    }
    if (!err) {
        table_print(&table);
    }
    table_release(&table);
    return err;
}

static int print_drawing(const struct pipeline *p)
{
    const int width = pf_term_width(stdout);
    const struct pf_sched_style style = {.width = width < 24 ? 24 : width,
                                         .colour = pf_term_has_colour(stdout)};
    struct pf_str drawing;

    pf_str_init(&drawing);
    const int err = pf_schedule_draw(p->schedule, p->timeline, &style, &drawing);
    if (!err) {
        printf("\n%s\n", drawing.text);
        printf("F forward, B backward, I input gradients, W weight gradients, and the "
               "micro-batch%s; '.' idle\n",
               p->options.vpp > 1 ? "; a, b, ... the chunk of the stage" : "");
    }
    pf_str_release(&drawing);
    return err;
}

static int print_text(const struct pipeline *p)
{
    PF_TRY(print_head(p));
    PF_TRY(print_stages(p));
    return print_drawing(p);
}

/* SVG -------------------------------------------------------------------------------------------- */

static int write_svg(const struct options *o, const struct pipeline *p)
{
    struct pf_str title, svg;

    pf_str_init(&title);
    pf_str_init(&svg);
    append_title(&title, p);
    pf_str_appendf(&title, ": bubble %.4g %%", 100 * p->timeline->bubble);
    int err = pf_str_error(&title);
    err = err ? err : pf_schedule_svg(p->schedule, p->timeline, title.text, &svg);
    if (!err && strcmp(o->svg, "-") == 0) {
        fputs(svg.text, stdout);
    } else if (!err) {
        err = pf_file_write_atomic(o->svg, svg.text, svg.len);
    }
    pf_str_release(&title);
    pf_str_release(&svg);
    return err;
}

/* JSON ------------------------------------------------------------------------------------------- */

static void write_step(struct pf_json_out *out, const struct pipeline *p, int stage, int i)
{
    const struct pf_sched_step *const step = &p->schedule->stages[stage].steps[i];
    const struct pf_sched_span *const span = &p->timeline->spans[stage][i];
    const int peer = pf_schedule_peer(p->schedule, step);

    pf_json_out_object_begin(out);
    pf_json_out_member_string(out, "kind", pf_sched_kind_name(step->kind));
    pf_json_out_member_i64(out, "micro_batch", step->micro);
    pf_json_out_member_i64(out, "chunk", step->chunk);
    member_count(out, "peer", peer);
    member_count(out, "live_slot", step->live);
    member_count(out, "in_buffer", step->in);
    member_count(out, "out_buffer", step->out);
    pf_json_out_member_f64(out, "start", span->start);
    pf_json_out_member_f64(out, "end", span->end);
    pf_json_out_object_end(out);
}

static void write_stage(struct pf_json_out *out, const struct pipeline *p, int stage)
{
    const struct pf_sched_facts *const f = &p->facts[stage];

    pf_json_out_object_begin(out);
    pf_json_out_member_i64(out, "stage", stage);
    pf_json_out_member_f64(out, "busy", p->timeline->busy[stage]);
    pf_json_out_member_f64(out, "idle_share", share_idle(p, stage));
    pf_json_out_member_i64(out, "peak_live", f->peak_live);
    pf_json_out_member_i64(out, "peak_split", f->peak_split);
    pf_json_out_member_i64(out, "live_slots", f->n_slots);
    pf_json_out_member_i64(out, "forward_buffers", f->fwd_buffers);
    pf_json_out_member_i64(out, "backward_buffers", f->bwd_buffers);
    pf_json_out_key(out, "steps");
    pf_json_out_array_begin(out);
    for (int i = 0; i < p->schedule->stages[stage].n_steps; i++) {
        write_step(out, p, stage, i);
    }
    pf_json_out_array_end(out);
    pf_json_out_object_end(out);
}

static void write_head(struct pf_json_out *out, const struct pipeline *p)
{
    pf_json_out_member_string(out, "schedule", pf_schedule_name(p->options.kind));
    pf_json_out_member_i64(out, "n_stages", p->options.n_stages);
    pf_json_out_member_i64(out, "chunks_per_stage", p->options.vpp);
    pf_json_out_member_i64(out, "micro_batches", p->options.n_micro);
    pf_json_out_key(out, "costs");
    pf_json_out_object_begin(out);
    pf_json_out_member_f64(out, "forward", p->unit.forward);
    pf_json_out_member_f64(out, "backward", p->unit.backward);
    pf_json_out_member_f64(out, "backward_input", p->unit.backward_input);
    pf_json_out_member_f64(out, "backward_weight", p->unit.backward_weight);
    pf_json_out_object_end(out);
    pf_json_out_key(out, "chunk_weights");
    pf_json_out_array_begin(out);
    for (int c = 0; c < n_chunks(p); c++) {
        pf_json_out_f64(out, p->weights[c]);
    }
    pf_json_out_array_end(out);
    pf_json_out_member_f64(out, "total", p->timeline->total);
    pf_json_out_member_f64(out, "bubble", p->timeline->bubble);
}

static int print_json(struct options *o, const struct pipeline *p)
{
    struct document d;

    document_begin(&d, o, 0);
    write_head(&d.out, p);
    pf_json_out_key(&d.out, "stages");
    pf_json_out_array_begin(&d.out);
    for (int stage = 0; stage < p->options.n_stages; stage++) {
        write_stage(&d.out, p, stage);
    }
    pf_json_out_array_end(&d.out);
    return document_end(&d, o);
}

/* The command ------------------------------------------------------------------------------------ */

static int check_request(const struct options *o, const char *path)
{
    if (!path && !o->layout) {
        return pf_fail(PF_EUSAGE, "'schedule' takes a config, or '--layout'" SEE_HELP);
    }
    if (o->svg && o->shared.json && strcmp(o->svg, "-") == 0) {
        return pf_fail(PF_EUSAGE, "'--svg -' and '--json' cannot both have the output" SEE_HELP);
    }
    return 0;
}

int command_schedule(struct options *o, char **operands)
{
    struct pipeline p = {.config = NULL};
    const bool svg_only = o->svg && strcmp(o->svg, "-") == 0;
    int err = check_request(o, operands[0]);

    err = err ? err : make(o, operands[0], &p);
    if (!err && o->svg) {
        err = write_svg(o, &p);
    }
    if (!err && !svg_only) {
        err = o->shared.json ? print_json(o, &p) : print_text(&p);
    }
    pf_sched_timeline_free(p.timeline);
    pf_schedule_free(p.schedule);
    pf_free(p.facts);
    pf_free(p.weights);
    pf_free(p.costs);
    pf_json_free(p.config);
    return err;
}
