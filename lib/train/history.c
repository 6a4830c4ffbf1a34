/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.jsonl read back, line by line. */
#include <pf/history.h>

#include <pf/error.h>
#include <pf/file.h>
#include <pf/json.h>
#include <pf/mem.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RUN_BYTES ((size_t)64 << 20)

static const char *const value_names[PF_HISTORY_N_VALUES] = {
    [PF_HISTORY_LOSS] = "loss",
    [PF_HISTORY_GRAD_NORM] = "grad_norm",
    [PF_HISTORY_LEARNING_RATE] = "learning_rate",
    [PF_HISTORY_TOKENS_PER_SECOND] = "tokens_per_second",
    [PF_HISTORY_STEP_SECONDS] = "step_seconds",
    [PF_HISTORY_MFU] = "mfu",
};

static const char *const kind_names[] = {
    [PF_HISTORY_START] = "start",     [PF_HISTORY_SAVE] = "save",   [PF_HISTORY_EVAL] = "eval",
    [PF_HISTORY_WARNING] = "warning", [PF_HISTORY_FAULT] = "fault", [PF_HISTORY_END] = "end",
};

const char *pf_history_value_name(enum pf_history_value value)
{
    return value_names[value];
}

/* Room ------------------------------------------------------------------------------------------ */

/* Is there room for item n, where room doubles at each power of two? */
static bool is_full(int64_t n)
{
    return (n & (n - 1)) == 0;
}

static int grow(double **items, int64_t n)
{
    double *const grown = pf_realloc_array(*items, n > 0 ? 2 * (size_t)n : 1, sizeof *grown);

    if (!grown) {
        return PF_ENOMEM;
    }
    *items = grown;
    return 0;
}

static int grow_points(struct pf_history *h)
{
    if (!is_full(h->n_points)) {
        return 0;
    }
    PF_TRY(grow(&h->step, h->n_points));
    PF_TRY(grow(&h->tokens, h->n_points));
    for (int v = 0; v < PF_HISTORY_N_VALUES; v++) {
        PF_TRY(grow(&h->values[v], h->n_points));
    }
    return 0;
}

static int grow_events(struct pf_history *h)
{
    if (!is_full(h->n_events)) {
        return 0;
    }
    struct pf_history_event *const grown =
        pf_realloc_array(h->events, h->n_events > 0 ? 2 * (size_t)h->n_events : 1, sizeof *grown);
    if (!grown) {
        return PF_ENOMEM;
    }
    h->events = grown;
    return 0;
}

/* Lines ----------------------------------------------------------------------------------------- */

/* A resume has cut the file back, but another program may have written it: steps that run again
 * replace those that are there. */
static void drop_from(struct pf_history *h, double step)
{
    while (h->n_points > 0 && h->step[h->n_points - 1] >= step) {
        h->n_points--;
    }
}

static int read_point(struct pf_history *h, const struct pf_json *line)
{
    int64_t step, memory;

    PF_TRY(pf_json_need_i64(line, "step", &step));
    drop_from(h, (double)step);
    PF_TRY(grow_points(h));
    h->step[h->n_points] = (double)step;
    PF_TRY(pf_json_f64(line, "tokens", NAN, &h->tokens[h->n_points]));
    for (int v = 0; v < PF_HISTORY_N_VALUES; v++) {
        PF_TRY(pf_json_f64(line, value_names[v], NAN, &h->values[v][h->n_points]));
    }
    PF_TRY(pf_json_i64(line, "peak_memory_bytes", -1, &memory));
    h->peak_memory_bytes = memory > h->peak_memory_bytes ? memory : h->peak_memory_bytes;
    h->n_points++;
    return 0;
}

static enum pf_history_kind kind_of(const char *name)
{
    for (int k = 0; k < PF_HISTORY_OTHER; k++) {
        if (strcmp(name, kind_names[k]) == 0) {
            return (enum pf_history_kind)k;
        }
    }
    return PF_HISTORY_OTHER;
}

/* The first of the members that say in words what happened. */
static int read_text(const struct pf_json *line, char **text_out)
{
    static const char *const keys[] = {"text", "message", "reason", "path"};
    const char *text = NULL;

    for (size_t i = 0; !text && i < sizeof keys / sizeof keys[0]; i++) {
        PF_TRY(pf_json_string(line, keys[i], NULL, &text));
    }
    *text_out = pf_strdup(text);
    return text && !*text_out ? PF_ENOMEM : 0;
}

static int read_start(struct pf_history *h, const struct pf_json *line)
{
    const struct pf_json *const mesh = pf_json_get(line, "mesh");
    int64_t schema;

    PF_TRY(pf_json_i64(line, "schema", 1, &schema));
    if (schema != 1) {
        return pf_fail(PF_ENOTSUP, "'%s' has schema %lld; this build reads 1", h->path,
                       (long long)schema);
    }
    PF_TRY(pf_json_i64(line, "world_size", -1, &h->world_size));
    PF_TRY(pf_json_i64(line, "parameters", -1, &h->parameters));
    PF_TRY(pf_json_i64(line, "total_steps", -1, &h->total_steps));
    PF_TRY(pf_json_i64(line, "global_batch_sequences", -1, &h->global_batch));
    PF_TRY(pf_json_f64(line, "data_entropy", NAN, &h->data_entropy));
    pf_free(h->mesh_json);
    h->mesh_json = mesh ? pf_json_print(mesh) : NULL;
    return mesh && !h->mesh_json ? PF_ENOMEM : 0;
}

static int read_event(struct pf_history *h, const struct pf_json *line, const char *name)
{
    struct pf_history_event *e;

    PF_TRY(grow_events(h));
    e = &h->events[h->n_events];
    *e = (struct pf_history_event){.kind = kind_of(name), .name = pf_strdup(name)};
    h->n_events++; /* from here on it is released with the others */
    if (!e->name) {
        return PF_ENOMEM;
    }
    PF_TRY(read_text(line, &e->text));
    PF_TRY(pf_json_i64(line, e->kind == PF_HISTORY_START ? "resumed_from" : "step", -1, &e->step));
    PF_TRY(pf_json_f64(line, "loss", NAN, &e->loss));
    PF_TRY(pf_json_f64(line, "seconds", NAN, &e->seconds));
    PF_TRY(pf_json_f64(line, "stall_seconds", NAN, &e->stall));
    PF_TRY(pf_json_i64(line, "bytes", -1, &e->bytes));
    if (e->kind == PF_HISTORY_START) {
        drop_from(h, (double)(e->step + 1)); /* -1: a fresh start, all of them */
        return read_start(h, line);
    }
    return 0;
}

static int read_line(struct pf_history *h, const char *text, size_t len, int64_t number)
{
    const struct pf_json_options options = {
        .name = "the line", .error_code = PF_EFORMAT, .is_not_a_file = true};
    struct pf_json *line = NULL;
    const char *event = NULL;
    int err = pf_json_parse_text_with(text, len, &options, &line);

    err = err ? err : pf_json_expect(line, PF_JSON_OBJECT);
    err = err ? err : pf_json_string(line, "event", NULL, &event);
    if (!err) {
        err = event ? read_event(h, line, event) : read_point(h, line);
    }
    pf_json_free(line);
    if (err == PF_EFORMAT) {
        char why[256];
        (void)snprintf(why, sizeof why, "%s", pf_error_message());
        return pf_fail(PF_EFORMAT, "'%s' line %lld: %s", h->path, (long long)number, why);
    }
    return err;
}

static int read_lines(struct pf_history *h)
{
    char *line = NULL;
    size_t room = 0;
    int64_t number = 0;
    uint64_t bytes;
    ssize_t len;
    int err = 0;

    PF_TRY(pf_file_size(h->path, &bytes)); /* a FIFO would be waited for */
    FILE *const file = fopen(h->path, "re");
    if (!file) {
        return pf_fail_errno(PF_EIO, "cannot open '%s'", h->path);
    }
    while (!err && (len = getline(&line, &room, file)) > 0) {
        number++;
        h->is_cut = line[len - 1] != '\n';
        if (!h->is_cut && len > 1) {
            err = read_line(h, line, (size_t)len - 1, number);
        }
    }
    if (!err && ferror(file)) {
        err = pf_fail_errno(PF_EIO, "cannot read '%s'", h->path);
    }
    free(line); /* getline's own */
    (void)fclose(file);
    if (!err && h->n_points == 0 && h->n_events == 0) {
        err = pf_fail(PF_EINCOMPLETE, "'%s' holds no whole line", h->path);
    }
    return err;
}

/* Files ----------------------------------------------------------------------------------------- */

/* pf.json stands beside the metrics, if at all. */
static int read_run(struct pf_history *h)
{
    const struct pf_json_options options = {.error_code = PF_EFORMAT};
    char *const dir = pf_path_dir(h->path), *const path = dir ? pf_path_join(dir, "pf.json") : NULL;
    struct pf_json *doc = NULL;
    int err = path ? 0 : PF_ENOMEM;

    if (!err && pf_path_is_file(path)) {
        struct pf_json_options named = options;
        named.name = path;
        named.max_bytes = MAX_RUN_BYTES;
        err = pf_json_parse_file_with(path, &named, &doc);
        h->run_json = err ? NULL : pf_json_print(doc);
        err = err ? err : h->run_json ? 0 : PF_ENOMEM;
    }
    pf_json_free(doc);
    pf_free(dir);
    pf_free(path);
    return err;
}

static int find_file(const char *path, char **file_out)
{
    if (!pf_path_is_dir(path)) {
        *file_out = pf_strdup(path);
        return *file_out ? 0 : PF_ENOMEM;
    }
    char *const file = pf_path_join(path, "metrics.jsonl");
    if (!file) {
        return PF_ENOMEM;
    }
    if (!pf_path_exists(file)) {
        const int err =
            pf_fail(PF_EINCOMPLETE, "'%s' is no directory of a run: it has no metrics.jsonl", path);
        pf_free(file);
        return err;
    }
    *file_out = file;
    return 0;
}

int pf_history_read(const char *path, struct pf_history *history_out)
{
    struct pf_history h = {.peak_memory_bytes = -1,
                           .world_size = -1,
                           .parameters = -1,
                           .total_steps = -1,
                           .global_batch = -1,
                           .data_entropy = NAN};
    int err = find_file(path, &h.path);

    err = err ? err : read_lines(&h);
    err = err ? err : read_run(&h);
    if (err) {
        pf_history_release(&h);
        return err;
    }
    *history_out = h;
    return 0;
}

void pf_history_release(struct pf_history *history)
{
    for (int64_t i = 0; i < history->n_events; i++) {
        pf_free(history->events[i].name);
        pf_free(history->events[i].text);
    }
    for (int v = 0; v < PF_HISTORY_N_VALUES; v++) {
        pf_free(history->values[v]);
    }
    pf_free(history->events);
    pf_free(history->step);
    pf_free(history->tokens);
    pf_free(history->path);
    pf_free(history->mesh_json);
    pf_free(history->run_json);
    *history = (struct pf_history){.n_points = 0};
}

char *pf_history_option(const struct pf_history *history, const char *path)
{
    struct pf_json *doc = NULL;
    const char *text = NULL;
    char *answer = NULL;

    if (history->run_json &&
        pf_json_parse_text(history->run_json, strlen(history->run_json), "pf.json", &doc) == 0) {
        const struct pf_json *const node = pf_json_find(doc, path);
        if (node && pf_json_type(node) == PF_JSON_STRING && pf_json_as_string(node, &text) == 0) {
            answer = pf_strdup(text);
        } else if (node && pf_json_type(node) != PF_JSON_NULL) {
            answer = pf_json_print(node);
        }
    }
    pf_error_clear();
    pf_json_free(doc);
    return answer;
}
