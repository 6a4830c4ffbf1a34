/* SPDX-License-Identifier: Apache-2.0 */
/* The summary of a run in words: rows of a name and a text. */
#include <pf/history.h>

#include <pf/error.h>
#include <pf/json.h>
#include <pf/mem.h>

#include <math.h>
#include <string.h>

struct rows {
    const struct pf_history *h;
    const struct pf_history_summary *s;
    struct pf_str_list *list;
    struct pf_str text; /* of the row being made */
};

/* End a row; without text there is none. */
static int end_row(struct rows *r, const char *name)
{
    PF_TRY(pf_str_error(&r->text));
    if (r->text.len > 0) {
        PF_TRY(pf_str_list_append(r->list, name));
        PF_TRY(pf_str_list_append(r->list, r->text.text));
        pf_str_clear(&r->text);
    }
    return 0;
}

/* Numbers --------------------------------------------------------------------------------------- */

/* 49744, 124.4 M, 7.616 G */
static void append_count(struct pf_str *to, double n)
{
    static const char *const units[] = {"M", "G", "T"};
    int u = -1;

    for (; u < 2 && fabs(n) >= (u < 0 ? 1e6 : 1e3); u++) {
        n /= u < 0 ? 1e6 : 1e3;
    }
    if (u < 0) {
        pf_str_appendf(to, "%.0f", n);
    } else {
        pf_str_appendf(to, "%.4g %s", n, units[u]);
    }
}

/* Four digits, or all before the point. */
static void append_number(struct pf_str *to, double x)
{
    pf_str_appendf(to, fabs(x) >= 1e4 && fabs(x) < 1e9 ? "%.0f" : "%.4g", x);
}

/* 0.004 s, 12.3 s, 3 min 20 s, 2 h 5 min */
static void append_seconds(struct pf_str *to, double seconds)
{
    const double whole = floor(seconds + 0.5);

    if (seconds < 60) {
        pf_str_appendf(to, "%.3g s", seconds);
    } else if (whole < 3600) {
        pf_str_appendf(to, "%.0f min %.0f s", floor(whole / 60), fmod(whole, 60));
    } else {
        pf_str_appendf(to, "%.0f h %.0f min", floor(whole / 3600), floor(fmod(whole, 3600) / 60));
    }
}

/* An option of pf.json after a separator, if it is there. */
static void append_option(struct rows *r, const char *before, const char *path, const char *after)
{
    char *const value = pf_history_option(r->h, path);

    if (value && *value) {
        pf_str_appendf(&r->text, "%s%s%s%s", r->text.len ? ", " : "", before, value, after);
    }
    pf_free(value);
}

/* Rows ------------------------------------------------------------------------------------------ */

static int add_model(struct rows *r)
{
    append_option(r, "", "options.model_name_or_path", "");
    if (r->h->parameters >= 0) {
        pf_str_append(&r->text, r->text.len ? ", " : "");
        append_count(&r->text, (double)r->h->parameters);
        pf_str_append(&r->text, " parameters");
    }
    PF_TRY(end_row(r, "model"));
    append_option(r, "", "options.input_dir", "");
    if (r->h->global_batch >= 0) {
        pf_str_appendf(&r->text, "%s%lld sequences a step", r->text.len ? ", " : "",
                       (long long)r->h->global_batch);
    }
    append_option(r, "of ", "options.max_seq_length", "");
    return end_row(r, "data");
}

/* "4 ranks: dp=2 tp=2"; degrees of 1 say nothing. */
static int add_layout(struct rows *r)
{
    const char *const mesh = r->h->mesh_json;
    struct pf_json *doc = NULL;
    int64_t degree;

    if (r->h->world_size >= 0) {
        pf_str_appendf(&r->text, "%lld %s", (long long)r->h->world_size,
                       r->h->world_size == 1 ? "rank" : "ranks");
    }
    if (mesh && r->text.len > 0) {
        PF_TRY(pf_json_parse_text(mesh, strlen(mesh), "mesh", &doc));
    }
    for (size_t i = 0, n = 0; i < pf_json_n(doc); i++) {
        if (pf_json_as_i64(pf_json_child(doc, i), &degree) != 0) {
            pf_error_clear();
        } else if (degree > 1) {
            pf_str_appendf(&r->text, "%s%s=%lld", n++ ? " " : ": ", pf_json_key(doc, i),
                           (long long)degree);
        }
    }
    pf_json_free(doc);
    PF_TRY(end_row(r, "layout"));
    append_option(r, "", "options.dtype", "");
    append_option(r, "kernels ", "kernels.isa", "");
    append_option(r, "", "kernels.library", "");
    append_option(r, "threads a rank: ", "kernels.threads", "");
    return end_row(r, "numbers");
}

static int add_steps(struct rows *r)
{
    const struct pf_history_summary *const s = r->s;

    if (s->last_step < 0) {
        pf_str_append(&r->text, "none logged");
    } else {
        pf_str_appendf(&r->text, "%lld to %lld", (long long)s->first_step, (long long)s->last_step);
        if (r->h->total_steps >= 0) {
            pf_str_appendf(&r->text, " of %lld", (long long)r->h->total_steps);
        }
        pf_str_append(&r->text, s->has_all_steps ? "" : ", not all of them logged");
    }
    if (s->n_not_finite > 0) {
        pf_str_appendf(&r->text, "; LOSS OR NORM NOT FINITE in %lld", (long long)s->n_not_finite);
    }
    PF_TRY(end_row(r, "steps"));
    if (s->end) {
        pf_str_appendf(&r->text, "ended: %s", s->end->text ? s->end->text : "no reason given");
    } else {
        pf_str_append(&r->text, "no end: it is still running, or was killed");
    }
    pf_str_append(&r->text, r->h->is_cut ? " (the last line is cut short)" : "");
    return end_row(r, "state");
}

static int add_amounts(struct rows *r)
{
    const struct pf_history_summary *const s = r->s;
    const char *const about = s->has_all_steps ? "" : "about ";

    if (!isnan(s->tokens)) {
        pf_str_append(&r->text, about);
        append_count(&r->text, s->tokens);
        PF_TRY(end_row(r, "tokens"));
        pf_str_append(&r->text, about);
        append_seconds(&r->text, s->step_seconds);
        pf_str_append(&r->text, " in steps");
    }
    if (s->n_saves > 0 && !isnan(s->tokens)) {
        pf_str_append(&r->text, ", ");
        append_seconds(&r->text, s->stall_seconds);
        pf_str_append(&r->text, " stalled by saves");
    }
    return end_row(r, "time");
}

static int add_loss(struct rows *r)
{
    const struct pf_history_range *const loss = &r->s->values[PF_HISTORY_LOSS];

    if (!isnan(loss->first)) {
        pf_str_appendf(&r->text,
                       "%.5g at first, %.5g at last, least %.5g at step %lld, last tenth %.5g",
                       loss->first, loss->last, loss->min, (long long)loss->min_step, loss->recent);
    }
    PF_TRY(end_row(r, "loss"));
    if (!isnan(r->h->data_entropy) && !isnan(loss->recent)) {
        pf_str_appendf(&r->text, "%.5g is the entropy of the data; last tenth of the loss %+.3g",
                       r->h->data_entropy, loss->recent - r->h->data_entropy);
    }
    return end_row(r, "floor");
}

static int add_range(struct rows *r, enum pf_history_value value, const char *name, double scale,
                     const char *unit)
{
    const struct pf_history_range *const v = &r->s->values[value];

    if (isnan(v->median)) {
        return 0;
    }
    pf_str_append(&r->text, "median ");
    append_number(&r->text, v->median * scale);
    pf_str_appendf(&r->text, "%s, largest ", unit);
    append_number(&r->text, v->max * scale);
    pf_str_appendf(&r->text, "%s at step %lld, last ", unit, (long long)v->max_step);
    append_number(&r->text, v->last * scale);
    pf_str_append(&r->text, unit);
    return end_row(r, name);
}

static int add_memory(struct rows *r)
{
    char bytes[24];

    if (r->h->peak_memory_bytes >= 0) {
        pf_str_appendf(&r->text, "%s at most on rank 0",
                       pf_format_bytes((double)r->h->peak_memory_bytes, bytes));
    }
    return end_row(r, "memory");
}

static int add_saves(struct rows *r)
{
    const struct pf_history_summary *const s = r->s;

    if (s->n_saves > 0) {
        pf_str_appendf(&r->text, "%lld, ", (long long)s->n_saves);
        append_seconds(&r->text, s->save_seconds / (double)s->n_saves);
        pf_str_append(&r->text, " each, of which training stood still for ");
        append_seconds(&r->text, s->stall_seconds / (double)s->n_saves);
        if (s->step_seconds > 0) {
            pf_str_appendf(&r->text, " (%.2g %% of the time)",
                           100 * s->stall_seconds / (s->step_seconds + s->stall_seconds));
        }
    }
    PF_TRY(end_row(r, "saves"));
    if (s->last_eval) {
        pf_str_appendf(&r->text, "%lld: loss %.5g at step %lld, least %.5g at step %lld",
                       (long long)s->n_evals, s->last_eval->loss, (long long)s->last_eval->step,
                       s->best_eval->loss, (long long)s->best_eval->step);
    }
    return end_row(r, "evaluations");
}

/* "at step 250", "2: at steps 100 and 250"; the words of what has words, the last ones only. */
static int add_events(struct rows *r, enum pf_history_kind kind, const char *name)
{
    enum { MOST = 5 };
    int64_t n = 0, seen = 0;

    for (int64_t i = 0; i < r->h->n_events; i++) {
        const struct pf_history_event *const e = &r->h->events[i];
        n += e->kind == kind && (kind != PF_HISTORY_START || e->step >= 0);
    }
    for (int64_t i = 0; i < r->h->n_events; i++) {
        const struct pf_history_event *const e = &r->h->events[i];
        if (e->kind != kind || (kind == PF_HISTORY_START && e->step < 0) || ++seen <= n - MOST) {
            continue;
        }
        if (r->text.len == 0 && n > 1) {
            pf_str_appendf(&r->text, "%lld%s: ", (long long)n, n > MOST ? ", the last ones" : "");
        } else if (r->text.len > 0) {
            pf_str_append(&r->text, "; ");
        }
        pf_str_appendf(&r->text, "%s%sat step %lld%s%s", kind == PF_HISTORY_OTHER ? e->name : "",
                       kind == PF_HISTORY_OTHER ? " " : "", (long long)e->step, e->text ? ": " : "",
                       e->text ? e->text : "");
    }
    return end_row(r, name);
}

static int add_all(struct rows *r)
{
    PF_TRY(add_model(r));
    PF_TRY(add_layout(r));
    PF_TRY(add_steps(r));
    PF_TRY(add_amounts(r));
    PF_TRY(add_loss(r));
    PF_TRY(add_range(r, PF_HISTORY_GRAD_NORM, "norm", 1, ""));
    PF_TRY(add_range(r, PF_HISTORY_LEARNING_RATE, "rate", 1, ""));
    PF_TRY(add_range(r, PF_HISTORY_TOKENS_PER_SECOND, "tokens/s", 1, ""));
    PF_TRY(add_range(r, PF_HISTORY_MFU, "mfu", 100, " %"));
    PF_TRY(add_memory(r));
    PF_TRY(add_saves(r));
    PF_TRY(add_events(r, PF_HISTORY_START, "resumed"));
    PF_TRY(add_events(r, PF_HISTORY_WARNING, "warnings"));
    PF_TRY(add_events(r, PF_HISTORY_FAULT, "faults"));
    return add_events(r, PF_HISTORY_OTHER, "also");
}

int pf_history_rows(const struct pf_history *history, const struct pf_history_summary *summary,
                    struct pf_str_list *rows)
{
    struct rows r = {.h = history, .s = summary, .list = rows};

    pf_str_init(&r.text);
    const int err = add_all(&r);
    pf_str_release(&r.text);
    return err;
}
