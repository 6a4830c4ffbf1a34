/* SPDX-License-Identifier: Apache-2.0 */
/* A run summed up: rows, curves in the terminal, a page of HTML. */
#include "command.h"

#include <pf/error.h>
#include <pf/file.h>
#include <pf/history.h>
#include <pf/term.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_CHART_WIDTH 120

static int print_curves(const struct pf_history *h)
{
    static const struct {
        enum pf_history_value value;
        int height;
    } shown[] = {
        {PF_HISTORY_LOSS, 9},
        {PF_HISTORY_GRAD_NORM, 4},
        {PF_HISTORY_LEARNING_RATE, 4},
        {PF_HISTORY_TOKENS_PER_SECOND, 4},
    };
    const int width = pf_term_width(stdout);
    struct pf_chart_style style = {.width = width < MAX_CHART_WIDTH ? width : MAX_CHART_WIDTH,
                                   .unicode = pf_term_is_unicode()};
    struct pf_str text;
    int err = 0;

    pf_str_init(&text);
    for (size_t i = 0; !err && i < sizeof shown / sizeof shown[0]; i++) {
        const struct pf_chart_curve curve = pf_history_curve(h, shown[i].value);
        style.height = shown[i].height;
        pf_str_append_char(&text, '\n');
        err = pf_chart_text(&text, &curve, &style);
    }
    if (!err) {
        fputs(text.text, stdout);
    }
    pf_str_release(&text);
    return err;
}

static int run_text(const struct options *o, const struct pf_history *h,
                    const struct pf_history_summary *s)
{
    struct pf_str_list rows = {0};
    int err = pf_history_rows(h, s, &rows);

    if (!err) {
        print_field("run", o->paths[0]);
    }
    for (size_t i = 0; !err && i + 1 < rows.n; i += 2) {
        print_field(rows.items[i], rows.items[i + 1]);
    }
    pf_str_list_release(&rows);
    return err ? err : print_curves(h);
}

/* JSON --------------------------------------------------------------------------------------------
 */

static void json_range(struct pf_json_out *out, const struct pf_history_summary *s,
                       enum pf_history_value value)
{
    const struct pf_history_range *const r = &s->values[value];

    pf_json_out_key(out, pf_history_value_name(value));
    pf_json_out_object_begin(out);
    pf_json_out_member_f64(out, "first", r->first);
    pf_json_out_member_f64(out, "last", r->last);
    pf_json_out_member_f64(out, "recent", r->recent);
    pf_json_out_member_f64(out, "median", r->median);
    pf_json_out_member_f64(out, "min", r->min);
    member_count(out, "min_step", r->min_step);
    pf_json_out_member_f64(out, "max", r->max);
    member_count(out, "max_step", r->max_step);
    pf_json_out_object_end(out);
}

static void json_event(struct pf_json_out *out, const struct pf_history_event *e)
{
    pf_json_out_object_begin(out);
    pf_json_out_member_string(out, "event", e->name);
    member_count(out, "step", e->step);
    if (e->text) {
        pf_json_out_member_string(out, "text", e->text);
    }
    if (!isnan(e->loss)) {
        pf_json_out_member_f64(out, "loss", e->loss);
    }
    if (!isnan(e->seconds)) {
        pf_json_out_member_f64(out, "seconds", e->seconds);
    }
    if (!isnan(e->stall)) {
        pf_json_out_member_f64(out, "stall_seconds", e->stall);
    }
    if (e->bytes >= 0) {
        pf_json_out_member_i64(out, "bytes", e->bytes);
    }
    pf_json_out_object_end(out);
}

static void json_head(struct pf_json_out *out, const struct options *o, const struct pf_history *h)
{
    pf_json_out_member_string(out, "path", o->paths[0]);
    pf_json_out_member_string(out, "metrics", h->path);
    member_count(out, "world_size", h->world_size);
    member_raw(out, "mesh", h->mesh_json);
    member_count(out, "parameters", h->parameters);
    member_count(out, "total_steps", h->total_steps);
    member_count(out, "global_batch_sequences", h->global_batch);
    pf_json_out_member_f64(out, "data_entropy", h->data_entropy);
    member_count(out, "peak_memory_bytes", h->peak_memory_bytes);
}

static int run_json(struct options *o, const struct pf_history *h,
                    const struct pf_history_summary *s)
{
    struct document d;

    document_begin(&d, o, 0);
    json_head(&d.out, o, h);
    pf_json_out_member_i64(&d.out, "logged_steps", h->n_points);
    member_count(&d.out, "first_step", s->first_step);
    member_count(&d.out, "last_step", s->last_step);
    pf_json_out_member_bool(&d.out, "has_all_steps", s->has_all_steps);
    pf_json_out_member_bool(&d.out, "is_cut", h->is_cut);
    pf_json_out_member_string(&d.out, "end", s->end ? s->end->text : NULL);
    pf_json_out_member_f64(&d.out, "tokens", s->tokens);
    pf_json_out_member_f64(&d.out, "steps_seconds", s->step_seconds);
    pf_json_out_member_i64(&d.out, "not_finite", s->n_not_finite);
    pf_json_out_member_i64(&d.out, "saves", s->n_saves);
    pf_json_out_member_f64(&d.out, "saves_seconds", s->save_seconds);
    pf_json_out_member_f64(&d.out, "saves_stall_seconds", s->stall_seconds);
    pf_json_out_member_i64(&d.out, "evals", s->n_evals);
    pf_json_out_member_f64(&d.out, "best_eval_loss", s->best_eval ? s->best_eval->loss : NAN);
    pf_json_out_member_i64(&d.out, "resumes", s->n_resumes);
    pf_json_out_member_i64(&d.out, "warnings", s->n_warnings);
    pf_json_out_member_i64(&d.out, "faults", s->n_faults);
    for (int v = 0; v < PF_HISTORY_N_VALUES; v++) {
        json_range(&d.out, s, (enum pf_history_value)v);
    }
    pf_json_out_key(&d.out, "events");
    pf_json_out_array_begin(&d.out);
    for (int64_t i = 0; i < h->n_events; i++) {
        json_event(&d.out, &h->events[i]);
    }
    pf_json_out_array_end(&d.out);
    member_raw(&d.out, "run", h->run_json);
    return document_end(&d, o);
}

/* The page ----------------------------------------------------------------------------------------
 */

/* To the file of --html, or to standard output for "-". */
static int write_page(struct options *o, const struct pf_history *h,
                      const struct pf_history_summary *s)
{
    struct pf_str page;

    pf_str_init(&page);
    int err = pf_history_page(h, s, o->paths[0], &page);
    err = err ? err : pf_str_error(&page);
    if (!err && strcmp(o->html, "-") == 0) {
        fputs(page.text, stdout);
    } else if (!err) {
        err = pf_file_write_atomic(o->html, page.text, page.len);
    }
    pf_str_release(&page);
    return err;
}

int command_run(struct options *o, char **operands)
{
    struct pf_history history;
    struct pf_history_summary summary;
    const bool page_only = o->html && strcmp(o->html, "-") == 0;

    if (page_only && o->shared.json) {
        return pf_fail(PF_EUSAGE, "'--html -' and '--json' cannot both have the output" SEE_HELP);
    }
    PF_TRY(pf_history_read(operands[0], &history));
    int err = pf_history_summarise(&history, &summary);
    if (!err && o->html) {
        err = write_page(o, &history, &summary);
    }
    if (!err && !page_only) {
        err = o->shared.json ? run_json(o, &history, &summary) : run_text(o, &history, &summary);
    }
    pf_history_release(&history);
    return err;
}
