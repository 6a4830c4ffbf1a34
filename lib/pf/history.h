/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history.h - what happened in a run: its metrics.jsonl read back, summed up, and made a page.
 *
 * The file is the one that pf-train writes (INTERFACE: metrics.jsonl, schema 1): lines with "event",
 * and a line for each logged step. It may be that of a run that is still going on, was killed, or was
 * resumed any number of times; a last line without its end is left out. Members and events that this
 * build does not know are passed over or kept under their name.
 *
 *     struct pf_history h;
 *     PF_TRY(pf_history_read("out", &h));
 *     pf_history_summarise(&h, &summary);
 *     ...
 *     pf_history_release(&h);
 *
 * All functions are local. Memory grows with the number of lines.
 */
#ifndef PF_HISTORY_H
#define PF_HISTORY_H

#include <pf/chart.h>
#include <pf/str.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a line of a step holds. */
enum pf_history_value {
    PF_HISTORY_LOSS,
    PF_HISTORY_GRAD_NORM,
    PF_HISTORY_LEARNING_RATE,
    PF_HISTORY_TOKENS_PER_SECOND,
    PF_HISTORY_STEP_SECONDS,
    PF_HISTORY_MFU,
    PF_HISTORY_N_VALUES
};

enum pf_history_kind {
    PF_HISTORY_START, /* also of a resume: step is the one resumed from */
    PF_HISTORY_SAVE,
    PF_HISTORY_EVAL,
    PF_HISTORY_WARNING,
    PF_HISTORY_FAULT,
    PF_HISTORY_END,
    PF_HISTORY_OTHER,
};

struct pf_history_event {
    enum pf_history_kind kind;
    char *name;            /* the word in the file; owned */
    char *text;            /* text, reason or path; NULL: none; owned */
    int64_t step;          /* -1: none */
    double loss;           /* eval; NAN: none */
    double seconds, stall; /* eval, save; NAN: none */
    int64_t bytes;         /* save; -1: none */
};

struct pf_history {
    char *path; /* of the file */
    int64_t n_points;
    double *step;                        /* n_points of each; steps rise */
    double *tokens;                      /* NAN: not said */
    double *values[PF_HISTORY_N_VALUES]; /* NAN: null, or not said */
    int64_t peak_memory_bytes;           /* the largest; -1: not said */
    int64_t n_events;
    struct pf_history_event *events;
    bool is_cut; /* the last line lacks its end: somebody was writing, or was killed */
    /* Of the last start; -1, NAN, NULL: not said. */
    int64_t world_size, parameters, total_steps, global_batch;
    double data_entropy;
    char *mesh_json; /* owned */
    char *run_json;  /* pf.json beside it, NULL if there is none; owned */
};

/*
 * Read the metrics of a run: PATH is its output directory, or the file itself. Errors: PF_EIO,
 * PF_EFORMAT (a line, named by its number, that is no object of this form; a pf.json that is not
 * JSON), PF_EINCOMPLETE (a directory without metrics.jsonl, or one without a line).
 */
int pf_history_read(const char *path, struct pf_history *history_out);
void pf_history_release(struct pf_history *history);

/* "loss", "grad_norm", ...: as in the file. Static. */
const char *pf_history_value_name(enum pf_history_value value);

/* A value over the steps, to be drawn; points into the history. The loss and what is like it get a
 * logarithm where that shows more. */
struct pf_chart_curve pf_history_curve(const struct pf_history *history,
                                       enum pf_history_value value);

/* Over the points where the value is finite; NAN where there are none, and then the steps are -1. */
struct pf_history_range {
    double first, last, min, median, max;
    double recent; /* mean over the last tenth of the points, one at least */
    int64_t min_step, max_step;
};

struct pf_history_summary {
    int64_t first_step, last_step; /* -1: no step was logged */
    bool has_all_steps;            /* each step between them has a line */
    double tokens, step_seconds;   /* all steps; scaled up from those logged unless has_all_steps */
    struct pf_history_range values[PF_HISTORY_N_VALUES];
    int64_t n_not_finite; /* points whose loss or norm is null */
    int64_t n_saves, n_evals, n_resumes, n_warnings, n_faults;
    double save_seconds, stall_seconds; /* of all saves */
    const struct pf_history_event *best_eval, *last_eval,
        *end; /* NULL: none; end: of the last start */
};

/* PF_ENOMEM is its only error. What it gives points into the history. */
int pf_history_summarise(const struct pf_history *history, struct pf_history_summary *summary_out);

/* A member of pf.json by its path ("options.dtype"), as text without quotes; NULL: none. Free with
 * pf_free. */
char *pf_history_option(const struct pf_history *history, const char *path);

/* The summary for people: lines->items[2 i] is the name of row i ("loss"), lines->items[2 i + 1] its
 * text ("4.9 at first, ..."). Append to an empty list; the caller releases it, also after an error. */
int pf_history_rows(const struct pf_history *history, const struct pf_history_summary *summary,
                    struct pf_str_list *rows);

/*
 * Append a page that needs nothing else: the summary, the curves as SVG, saves, evaluations,
 * warnings and faults, and the options. title names the run.
 */
int pf_history_page(const struct pf_history *history, const struct pf_history_summary *summary,
                    const char *title, struct pf_str *page);

#endif
