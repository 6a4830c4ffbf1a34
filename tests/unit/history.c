/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.jsonl read back and summed up: resumes, gaps, cut lines, nulls, strangers. */
#include "scratch.h"
#include "tap.h"

#include <pf/error.h>
#include <pf/history.h>

#include <math.h>
#include <string.h>

#define START                                                                                      \
    "{\"event\":\"start\",\"schema\":1,\"world_size\":2,\"mesh\":{\"dp\":2,\"tp\":1},"             \
    "\"parameters\":1500000,\"total_steps\":10,\"resumed_from\":null}\n"

/* A history of this text, of a directory of its own; n_points -1 where it cannot be read. */
static struct pf_history history(const char *text)
{
    static int n;
    struct pf_history h;

    (void)pf_mkdirs(at("%d", ++n));
    put_text(at("%d/metrics.jsonl", n), text);
    if (pf_history_read(at("%d", n), &h) != 0) {
        h = (struct pf_history){.n_points = -1};
    }
    return h;
}

static struct pf_history_summary summary(const struct pf_history *h)
{
    struct pf_history_summary s = {.first_step = -7};

    (void)pf_history_summarise(h, &s);
    return s;
}

/* The text of a row, NULL if it is not there; in static memory. */
static const char *row(const struct pf_history *h, const char *name)
{
    static char text[512];
    const struct pf_history_summary s = summary(h);
    struct pf_str_list rows = {0};
    const char *found = NULL;

    if (pf_history_rows(h, &s, &rows) == 0) {
        for (size_t i = 0; i + 1 < rows.n; i += 2) {
            if (strcmp(rows.items[i], name) == 0) {
                snprintf(text, sizeof text, "%s", rows.items[i + 1]);
                found = text;
            }
        }
    }
    pf_str_list_release(&rows);
    return found ? found : "(none)";
}

static void a_whole_run(void)
{
    struct pf_history h = history(
        START "{\"step\":1,\"loss\":4,\"grad_norm\":2,\"learning_rate\":0.1,\"tokens\":100,"
              "\"tokens_per_second\":50,\"step_seconds\":2,\"mfu\":0.5,\"peak_memory_bytes\":7}\n"
              "{\"step\":2,\"loss\":2,\"grad_norm\":8,\"learning_rate\":0.2,\"tokens\":100,"
              "\"tokens_per_second\":100,\"step_seconds\":1,\"mfu\":0.25,\"peak_memory_bytes\":9}\n"
              "{\"event\":\"eval\",\"step\":2,\"loss\":2.5,\"seconds\":1}\n"
              "{\"event\":\"save\",\"step\":2,\"seconds\":3,\"stall_seconds\":1,\"bytes\":5}\n"
              "{\"step\":3,\"loss\":3,\"grad_norm\":4,\"tokens\":100,\"step_seconds\":1}\n"
              "{\"event\":\"eval\",\"step\":3,\"loss\":2.75,\"seconds\":1}\n"
              "{\"event\":\"end\",\"step\":3,\"reason\":\"done\"}\n");
    const struct pf_history_summary s = summary(&h);
    const struct pf_history_range *const loss = &s.values[PF_HISTORY_LOSS];

    ok(h.n_points == 3 && h.n_events == 5 && h.world_size == 2 && h.parameters == 1500000 &&
           h.peak_memory_bytes == 9 && !h.is_cut,
       "points, events and what the start says");
    ok(s.first_step == 1 && s.last_step == 3 && s.has_all_steps && s.tokens == 300 &&
           s.step_seconds == 4,
       "steps, tokens, seconds");
    ok(loss->first == 4 && loss->last == 3 && loss->min == 2 && loss->min_step == 2 &&
           loss->max == 4 && loss->median == 3 && loss->recent == 3,
       "the range of the loss");
    ok(s.values[PF_HISTORY_MFU].median == 0.375 && s.values[PF_HISTORY_MFU].last == 0.25,
       "a value that a point lacks is passed over");
    ok(s.n_evals == 2 && s.best_eval->step == 2 && s.last_eval->step == 3 && s.n_saves == 1 &&
           s.save_seconds == 3 && s.stall_seconds == 1 && s.n_resumes == 0,
       "evaluations and saves");
    ok(s.end && strcmp(s.end->text, "done") == 0, "the end and its reason");
    ok(strcmp(row(&h, "layout"), "2 ranks: dp=2") == 0, "layout: %s", row(&h, "layout"));
    ok(strcmp(row(&h, "model"), "1.5 M parameters") == 0, "model: %s", row(&h, "model"));
    ok(strcmp(row(&h, "steps"), "1 to 3 of 10") == 0, "steps: %s", row(&h, "steps"));
    ok(strcmp(row(&h, "saves"),
              "1, 3 s each, of which training stood still for 1 s (20 % of the time)") == 0,
       "saves: %s", row(&h, "saves"));
    pf_history_release(&h);
    pf_history_release(&h);
    ok(h.n_points == 0, "released twice is fine");
}

static void resumed_runs(void)
{
    struct pf_history h =
        history(START "{\"step\":1,\"loss\":4}\n{\"step\":2,\"loss\":3}\n{\"step\":3,\"loss\":9}\n"
                      "{\"event\":\"fault\",\"step\":3,\"text\":\"rank 1 died\"}\n"
                      "{\"event\":\"start\",\"schema\":1,\"world_size\":4,\"resumed_from\":2}\n"
                      "{\"step\":3,\"loss\":2}\n");
    const struct pf_history_summary s = summary(&h);

    ok(h.n_points == 3 && s.values[PF_HISTORY_LOSS].max == 4 && s.n_resumes == 1 &&
           h.world_size == 4,
       "steps that ran again replace the old ones");
    ok(!s.end && s.n_faults == 1, "a fault, and no end");
    ok(strcmp(row(&h, "resumed"), "at step 2") == 0 && strstr(row(&h, "state"), "no end") != NULL,
       "where it was resumed, and that it may still run");
    ok(strcmp(row(&h, "faults"), "at step 3: rank 1 died") == 0, "faults: %s", row(&h, "faults"));
    pf_history_release(&h);
    h = history(START "{\"event\":\"end\",\"step\":0,\"reason\":\"signal\"}\n" START);
    ok(!summary(&h).end, "an end before the last start is not the end");
    pf_history_release(&h);
}

static void odd_lines(void)
{
    struct pf_history h =
        history(START "{\"step\":10,\"loss\":null,\"tokens\":8,\"step_seconds\":1}\n"
                      "{\"step\":20,\"loss\":1,\"grad_norm\":1,\"tokens\":8,"
                      "\"step_seconds\":3}\n{\"step\":30,\"lo");
    const struct pf_history_summary s = summary(&h);

    ok(h.is_cut && h.n_points == 2, "a last line without its end is left out");
    ok(s.n_not_finite == 1 && s.values[PF_HISTORY_LOSS].first == 1, "null is not a number");
    ok(!s.has_all_steps && s.tokens == 8 * 11 && s.step_seconds == 2 * 11,
       "of steps not logged tokens and time are estimated");
    ok(strncmp(row(&h, "tokens"), "about ", 6) == 0, "and said to be: %s", row(&h, "tokens"));
    ok(strstr(row(&h, "steps"), "NOT FINITE in 1") != NULL, "%s", row(&h, "steps"));
    pf_history_release(&h);
    h = history(START "{\"event\":\"comet\",\"step\":4,\"path\":\"sky\",\"tail\":{}}\n\n");
    ok(h.n_events == 2 && h.events[1].kind == PF_HISTORY_OTHER &&
           strcmp(row(&h, "also"), "comet at step 4: sky") == 0,
       "an event of another version is kept by its name");
    ok(summary(&h).last_step == -1 && strcmp(row(&h, "steps"), "none logged") == 0, "no step yet");
    pf_history_release(&h);
    h = history(START "{\"event\":\"warning\",\"step\":1,\"text\":\"a\"}\n"
                      "{\"event\":\"warning\",\"step\":2,\"text\":\"b\"}\n"
                      "{\"event\":\"warning\",\"step\":3,\"text\":\"c\"}\n"
                      "{\"event\":\"warning\",\"step\":4,\"text\":\"d\"}\n"
                      "{\"event\":\"warning\",\"step\":5,\"text\":\"e\"}\n"
                      "{\"event\":\"warning\",\"step\":6,\"text\":\"f\"}\n");
    ok(strncmp(row(&h, "warnings"), "6, the last ones: at step 2: b; ", 31) == 0, "%s",
       row(&h, "warnings"));
    pf_history_release(&h);
}

static void failures(void)
{
    static const struct {
        const char *text, *words;
        int code;
    } cases[] = {
        {"", "holds no whole line", PF_EINCOMPLETE},
        {"{\"step\":1}", "holds no whole line", PF_EINCOMPLETE},
        {START "{\"step\":1,}\n{\"step\":2}\n", "line 2", PF_EFORMAT},
        {START "[1]\n", "line 2", PF_EFORMAT},
        {START "{\"loss\":1}\n", "'step'", PF_EFORMAT},
        {START "{\"step\":\"one\"}\n", "must be an integer", PF_EFORMAT},
        {"{\"event\":\"start\",\"schema\":2}\n", "schema 2", PF_ENOTSUP},
    };
    struct pf_history h;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put_text(at("bad.jsonl"), cases[i].text);
        const int err = pf_history_read(at("bad.jsonl"), &h);
        ok(err == cases[i].code && strstr(pf_error_message(), cases[i].words), "%s",
           pf_error_message());
    }
    (void)pf_mkdirs(at("empty"));
    ok(pf_history_read(at("empty"), &h) == PF_EINCOMPLETE, "%s", pf_error_message());
    ok(pf_history_read(at("nowhere"), &h) == PF_EIO, "%s", pf_error_message());
}

static void options(void)
{
    (void)pf_mkdirs(at("o"));
    put_text(at("o/metrics.jsonl"), START);
    put_text(at("o/pf.json"), "{\"kernels\":{\"threads\":2},\"options\":{\"dtype\":\"float32\","
                              "\"model\":null}}");
    struct pf_history h;
    ok(pf_history_read(at("o"), &h) == 0, "a run with its pf.json");
    char *dtype = pf_history_option(&h, "options.dtype"),
         *threads = pf_history_option(&h, "kernels.threads"),
         *model = pf_history_option(&h, "options.model"), *none = pf_history_option(&h, "x.y");
    ok(dtype && strcmp(dtype, "float32") == 0 && threads && strcmp(threads, "2") == 0 && !model &&
           !none,
       "options by their path");
    ok(strcmp(row(&h, "numbers"), "float32, threads a rank: 2") == 0, "%s", row(&h, "numbers"));
    pf_free(dtype);
    pf_free(threads);
    pf_history_release(&h);
    put_text(at("o/pf.json"), "{");
    ok(pf_history_read(at("o"), &h) == PF_EFORMAT, "a damaged pf.json: %s", pf_error_message());
}

int main(void)
{
    scratch_make();
    a_whole_run();
    resumed_runs();
    odd_lines();
    failures();
    options();
    scratch_remove();
    return done();
}
