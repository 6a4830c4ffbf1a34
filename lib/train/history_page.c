/* SPDX-License-Identifier: Apache-2.0 */
/* The history of a run as one page of HTML that loads nothing. */
#include <pf/history.h>

#include <pf/error.h>
#include <pf/json.h>
#include <pf/mem.h>
#include <pf/version.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char style[] =
    "<style>\n"
    ":root{color-scheme:light dark;--ink:#1c2430;--soft:#5c6878;--rule:#d9dee5;--paper:#fff;"
    "--line:#1f5fbf;--band:#1f5fbf33;--dot:#c2571a;--break:#a33a8f}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#e4e8ee;--soft:#9aa6b5;--rule:#37404c;"
    "--paper:#14181e;--line:#6ea8ff;--band:#6ea8ff33;--dot:#ff9d5c;--break:#e38fd2}}\n"
    "body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper);"
    "max-width:1480px;margin:0 auto;padding:1.5rem}\n"
    "h1{font-size:1.4rem;margin:0 0 1rem;overflow-wrap:anywhere}h2{font-size:1.05rem;"
    "margin:2rem 0 .5rem}\n"
    "table{border-collapse:collapse}th,td{text-align:left;vertical-align:top;"
    "padding:.2rem 1.2rem .2rem 0;border-bottom:1px solid var(--rule);overflow-wrap:anywhere}\n"
    "th{font-weight:600;color:var(--soft);white-space:nowrap}td.n,th.n{text-align:right;"
    "font-variant-numeric:tabular-nums}\n"
    ".curves{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr));"
    "gap:1rem 1.5rem;margin-top:1.5rem}figure{margin:0}figcaption{font-weight:600}\n"
    "footer,.key{color:var(--soft);font-size:.85rem;margin-top:.5rem}pre{overflow-x:auto;"
    "font-size:.85rem}\n"
    ".pf-chart{width:100%;height:auto;display:block}.grid{stroke:var(--rule);stroke-width:1}"
    ".band{fill:var(--band)}.line{fill:none;stroke:var(--line);stroke-width:1.6;"
    "stroke-linejoin:round}\n"
    ".dot{fill:var(--dot)}.tick{fill:var(--soft)}.break{stroke:var(--break);stroke-width:1.5;"
    "stroke-dasharray:5 4}.label{fill:var(--soft);font-size:12px}\n"
    "</style>\n";

/* Curves ---------------------------------------------------------------------------------------- */

/* What is to be seen beside a curve: evaluations on the loss, saves and resumes on all. */
static size_t collect_marks(const struct pf_history *h, enum pf_history_value value,
                            struct pf_chart_mark *marks)
{
    size_t n = 0;

    for (int64_t i = 0; i < h->n_events; i++) {
        const struct pf_history_event *const e = &h->events[i];
        struct pf_chart_mark *const m = &marks[n];
        m->x = (double)e->step;
        if (e->kind == PF_HISTORY_EVAL && value == PF_HISTORY_LOSS) {
            m->kind = PF_CHART_DOT;
            m->y = e->loss;
            (void)snprintf(m->label, sizeof m->label, "evaluation at step %lld: loss %.6g",
                           (long long)e->step, e->loss);
        } else if (e->kind == PF_HISTORY_SAVE) {
            m->kind = PF_CHART_TICK;
            (void)snprintf(m->label, sizeof m->label, "saved at step %lld in %.3g s",
                           (long long)e->step, e->seconds);
        } else if (e->kind == PF_HISTORY_START && e->step >= 0) {
            m->kind = PF_CHART_LINE;
            (void)snprintf(m->label, sizeof m->label, "resumed at step %lld", (long long)e->step);
        } else {
            continue;
        }
        n++;
    }
    return n;
}

static int append_curves(const struct pf_history *h, struct pf_str *page)
{
    static const enum pf_history_value shown[] = {
        PF_HISTORY_LOSS,          PF_HISTORY_GRAD_NORM,
        PF_HISTORY_LEARNING_RATE, PF_HISTORY_TOKENS_PER_SECOND,
        PF_HISTORY_MFU,
    };
    struct pf_chart_mark *const marks = pf_calloc_array((size_t)h->n_events, sizeof *marks);
    int err = marks ? 0 : PF_ENOMEM;

    pf_str_append(page, "<div class=\"curves\">\n");
    for (size_t i = 0; !err && i < sizeof shown / sizeof shown[0]; i++) {
        const struct pf_chart_curve curve = pf_history_curve(h, shown[i]);
        const size_t n = collect_marks(h, shown[i], marks);
        pf_str_appendf(page, "<figure><figcaption>%s%s</figcaption>\n", curve.title,
                       curve.log ? ", logarithmic" : "");
        err = pf_chart_svg(page, &curve, marks, n);
        pf_str_append(page, "</figure>\n");
    }
    pf_str_append(page, "</div>\n<p class=\"key\">Line: mean; band: range of the steps behind a "
                        "point. Dots: evaluations. Triangles: saves. Dashed: resumes. Across: "
                        "steps.</p>\n");
    pf_free(marks);
    return err ? err : pf_str_error(page);
}

/* Tables ---------------------------------------------------------------------------------------- */

static int append_rows(const struct pf_history *h, const struct pf_history_summary *s,
                       struct pf_str *page)
{
    struct pf_str_list rows = {0};
    int err = pf_history_rows(h, s, &rows);

    pf_str_append(page, "<table>\n");
    for (size_t i = 0; !err && i + 1 < rows.n; i += 2) {
        pf_str_appendf(page, "<tr><th>%s</th><td>", rows.items[i]);
        pf_chart_append_xml(page, rows.items[i + 1]);
        pf_str_append(page, "</td></tr>\n");
    }
    pf_str_append(page, "</table>\n");
    pf_str_list_release(&rows);
    return err ? err : pf_str_error(page);
}

static void append_cell(struct pf_str *page, double value, const char *format)
{
    char text[64] = "-";

    if (isfinite(value)) {
        (void)snprintf(text, sizeof text, format, value);
    }
    pf_str_appendf(page, "<td class=\"n\">%s</td>", text);
}

/* All events in their order; words where there are any. */
static void append_events(const struct pf_history *h, struct pf_str *page)
{
    pf_str_append(page, "<details><summary>Events</summary><table>\n<tr><th>event</th>"
                        "<th class=\"n\">step</th><th class=\"n\">loss</th>"
                        "<th class=\"n\">seconds</th><th class=\"n\">stall</th><th></th></tr>\n");
    for (int64_t i = 0; i < h->n_events; i++) {
        const struct pf_history_event *const e = &h->events[i];
        pf_str_append(page, "<tr><td>");
        pf_chart_append_xml(page, e->name);
        pf_str_append(page, "</td>");
        append_cell(page, e->step >= 0 ? (double)e->step : NAN, "%.0f");
        append_cell(page, e->loss, "%.6g");
        append_cell(page, e->seconds, "%.3g");
        append_cell(page, e->stall, "%.3g");
        pf_str_append(page, "<td>");
        pf_chart_append_xml(page, e->text ? e->text : "");
        pf_str_append(page, "</td></tr>\n");
    }
    pf_str_append(page, "</table></details>\n");
}

static int append_options(const struct pf_history *h, struct pf_str *page)
{
    struct pf_json *doc = NULL;
    struct pf_str text;
    struct pf_json_out out;
    int err = 0;

    if (!h->run_json) {
        return 0;
    }
    PF_TRY(pf_json_parse_text(h->run_json, strlen(h->run_json), "pf.json", &doc));
    const struct pf_json *const options = pf_json_get(doc, "options");
    pf_str_init(&text);
    pf_json_out_init(&out, &text, 2);
    pf_json_out_node(&out, options ? options : doc);
    err = pf_json_out_finish(&out);
    pf_str_append(page, "<details><summary>Options</summary><pre>");
    for (char *line = text.text;
         !err && *line;) { /* append_xml would make blanks of the newlines */
        char *const end = line + strcspn(line, "\n");
        const bool last = *end == '\0';
        *end = '\0';
        pf_chart_append_xml(page, line);
        pf_str_append_char(page, '\n');
        line = last ? end : end + 1;
    }
    pf_str_append(page, "</pre></details>\n");
    pf_str_release(&text);
    pf_json_free(doc);
    return err;
}

int pf_history_page(const struct pf_history *history, const struct pf_history_summary *summary,
                    const char *title, struct pf_str *page)
{
    pf_str_append(page, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                        "<meta name=\"viewport\" content=\"width=device-width\">\n<title>");
    pf_chart_append_xml(page, title);
    pf_str_append(page, "</title>\n");
    pf_str_append(page, style);
    pf_str_append(page, "</head><body>\n<h1>");
    pf_chart_append_xml(page, title);
    pf_str_append(page, "</h1>\n");
    PF_TRY(append_rows(history, summary, page));
    PF_TRY(append_curves(history, page));
    append_events(history, page);
    PF_TRY(append_options(history, page));
    return pf_str_appendf(page, "<footer>pf-inspect %s</footer>\n</body></html>\n",
                          pf_version_string());
}
