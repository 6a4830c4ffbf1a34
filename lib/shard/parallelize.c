/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/parallelize.h>

#include <pf/error.h>
#include <pf/json.h>
#include <pf/mem.h>

#include "shard_internal.h"

#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parts of a plan -------------------------------------------------------------------------------- */

static bool is_inner(const struct pf_json *plan)
{
    return !pf_json_get(plan, "dp_config") && !pf_json_get(plan, "mp_config") &&
           !pf_json_get(plan, "pp_config");
}

/* A member of a member, NULL where there is none; members of other names are refused. */
static int find_part(const struct pf_json *plan, const char *part, const char *member,
                     const struct pf_json **node_out)
{
    static const char *const parts[] = {"dp_config", "mp_config", "pp_config"};
    const struct pf_json *const node = pf_json_get(plan, part);

    PF_TRY(pf_json_refuse_unknown(plan, parts, 3));
    *node_out = NULL;
    if (!node || pf_json_type(node) == PF_JSON_NULL) {
        return 0;
    }
    PF_TRY(pf_json_expect(node, PF_JSON_OBJECT));
    PF_TRY(pf_json_refuse_unknown(node, &member, 1));
    *node_out = pf_json_get(node, member);
    return 0;
}

/* Options ---------------------------------------------------------------------------------------- */

static int read_level(const struct pf_json *plan, struct pf_parallel *par)
{
    const struct pf_json *node = NULL;
    int64_t level = 0;

    PF_TRY(find_part(plan, "dp_config", "sharding_level", &node));
    if (!node) {
        return 0;
    }
    PF_TRY(pf_json_as_i64(node, &level));
    if (level < 0 || level > 3) {
        return pf_json_fail(node, "is %lld, must be from 0 to 3", (long long)level);
    }
    if (par->stage >= 0 && par->stage != level) {
        return pf_fail(PF_EREFUSED, "'%s' is %lld, but stage %d is asked for elsewhere",
                       pf_json_path(node), (long long)level, par->stage);
    }
    par->stage = (int)level;
    return 0;
}

/* The number behind the last dot of "model.layers.3", or -1. */
static int64_t layer_number(const char *name)
{
    const char *const dot = strrchr(name, '.');
    int64_t number = -1;

    if (!dot || pf_parse_i64(dot + 1, &number) != 0 || number > PF_SPEC_MAX_LAYERS) {
        pf_error_clear();
        return -1;
    }
    return number;
}

/* The layer that a chunk begins with because of one member of a split_spec. */
static int read_split(const struct pf_json *node, const char *name, int64_t *start_out)
{
    const int64_t layer = layer_number(name);
    const char *point = "";

    PF_TRY(pf_json_as_string(node, &point));
    if (layer < 0) {
        return pf_json_fail(node, "is no layer: its name ends in no number");
    }
    if (strcmp(point, "BEGINNING") != 0 && strcmp(point, "END") != 0) {
        return pf_json_fail(node, "is '%s', must be BEGINNING or END", point);
    }
    *start_out = layer + (point[0] == 'E');
    return 0;
}

static int compare_starts(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return x < y ? -1 : x > y;
}

static int set_segments(const struct pf_json *node, int64_t *starts, size_t n,
                        struct pf_parallel *par)
{
    size_t at = (size_t)snprintf(par->segments, sizeof par->segments, "0");

    qsort(starts, n, sizeof *starts, compare_starts);
    for (size_t i = 0; i < n && at < sizeof par->segments; i++) {
        at += (size_t)snprintf(par->segments + at, sizeof par->segments - at, ":%lld",
                               (long long)starts[i]);
    }
    return at < sizeof par->segments ? 0 : pf_json_fail(node, "splits at too many layers");
}

static int read_splits(const struct pf_json *node, struct pf_parallel *par)
{
    const size_t n = pf_json_n(node);
    int64_t *const starts = pf_calloc_array(n + 1, sizeof *starts);
    int err = starts ? 0 : PF_ENOMEM;

    for (size_t i = 0; i < n && !err; i++) {
        err = read_split(pf_json_child(node, i), pf_json_key(node, i), &starts[i]);
    }
    err = err ? err : set_segments(node, starts, n, par);
    pf_free(starts);
    return err;
}

static int read_split_spec(const struct pf_json *plan, struct pf_parallel *par)
{
    const struct pf_json *node = NULL;
    struct pf_parallel own = *par;

    PF_TRY(find_part(plan, "pp_config", "split_spec", &node));
    if (!node || pf_json_type(node) == PF_JSON_STRING) {
        return 0; /* evenly, as without */
    }
    PF_TRY(pf_json_expect(node, PF_JSON_OBJECT));
    PF_TRY(read_splits(node, &own));
    if (par->segments[0] && strcmp(par->segments, own.segments) != 0) {
        return pf_fail(PF_EREFUSED, "'%s' is '%s', but segments '%s' are asked for elsewhere",
                       pf_json_path(node), own.segments, par->segments);
    }
    memcpy(par, &own, sizeof own);
    return 0;
}

int pf_parallelize_options(const struct pf_json *plan, struct pf_parallel *par)
{
    struct pf_parallel own = *par;

    PF_TRY(pf_json_expect(plan, PF_JSON_OBJECT));
    if (is_inner(plan)) {
        return 0;
    }
    PF_TRY(read_level(plan, &own));
    PF_TRY(read_split_spec(plan, &own));
    memcpy(par, &own, sizeof own);
    return 0;
}

/* Cuts ------------------------------------------------------------------------------------------- */

enum way { WAY_NONE, WAY_COLUMNS, WAY_ROWS };

/* What one word of a plan does to weights. */
static int read_word(const struct pf_json *node, const char *word, enum way *way)
{
    static const char *const others[] = {"SequenceParallelBegin", "SequenceParallelEnd",
                                         "SequenceParallelEnable", "SequenceParallelDisable"};
    const enum way own = strcmp(word, "ColWiseParallel") == 0   ? WAY_COLUMNS
                         : strcmp(word, "RowWiseParallel") == 0 ? WAY_ROWS
                                                                : WAY_NONE;

    if (own != WAY_NONE) {
        if (*way != WAY_NONE && *way != own) {
            return pf_json_fail(node, "cuts by columns and by rows");
        }
        *way = own;
        return 0;
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (strcmp(word, others[i]) == 0) {
            return 0;
        }
    }
    if (strcmp(word, "PrepareLayerInput") == 0 || strcmp(word, "PrepareLayerOutput") == 0) {
        return pf_fail(PF_ENOTSUP, "%s in '%s' runs Python code, which pf does not", word,
                       pf_json_path(node));
    }
    return pf_json_fail(node,
                        "'%s' is none of ColWiseParallel, RowWiseParallel, "
                        "SequenceParallelBegin, -End, -Enable, -Disable",
                        word);
}

/* {"ColWiseParallel": {"gather_output": false}} */
static int read_with_arguments(const struct pf_json *node, enum way *way)
{
    static const char *const arguments[] = {"gather_output", "is_input_parallel"};
    bool flag;

    if (pf_json_n(node) != 1) {
        return pf_json_fail(node, "must be one word with its arguments");
    }
    const struct pf_json *const given = pf_json_child(node, 0);
    PF_TRY(read_word(node, pf_json_key(node, 0), way));
    PF_TRY(pf_json_expect(given, PF_JSON_OBJECT));
    PF_TRY(pf_json_refuse_unknown(given, arguments, 2));
    PF_TRY(pf_json_bool(given, arguments[0], false, &flag));
    return pf_json_bool(given, arguments[1], true, &flag);
}

/* A word, a word with arguments, or a list of them. */
static int read_way(const struct pf_json *node, enum way *way)
{
    const char *word = "";

    if (pf_json_type(node) == PF_JSON_ARRAY) {
        for (size_t i = 0; i < pf_json_n(node); i++) {
            const struct pf_json *const child = pf_json_child(node, i);
            if (pf_json_type(child) == PF_JSON_ARRAY) {
                return pf_json_fail(child, "is a list in a list");
            }
            PF_TRY(read_way(child, way));
        }
        return 0;
    }
    if (pf_json_type(node) == PF_JSON_OBJECT) {
        return read_with_arguments(node, way);
    }
    PF_TRY(pf_json_as_string(node, &word));
    return read_word(node, word, way);
}

static bool is_bias(const char *name)
{
    return pf_str_ends_with(name, ".bias");
}

/* Does a pattern meet a row by its layer's or its own name? */
static bool meets(const regex_t *regex, const char *pattern, const char *name)
{
    const bool whole = pf_str_ends_with(pattern, "weight") || pf_str_ends_with(pattern, "bias");
    const char *const dot = strrchr(name, '.');
    regmatch_t at;
    char layer[PF_TENSOR_NAME_MAX];

    snprintf(layer, sizeof layer, "%s", name);
    if (!whole && dot && (strcmp(dot, ".weight") == 0 || is_bias(name))) {
        layer[dot - name] = '\0';
    }
    return regexec(regex, layer, 1, &at, 0) == 0 && at.rm_so == 0 &&
           (size_t)at.rm_eo == strlen(layer);
}

static int compile(const struct pf_json *node, const char *pattern, regex_t *regex_out)
{
    char *const anchored = pf_asprintf("^(%s)$", pattern);
    char why[128];

    if (!anchored) {
        return PF_ENOMEM;
    }
    const int err = shard_compile(anchored, 0, regex_out, why);
    pf_free(anchored);
    return err == PF_EUSAGE ? pf_json_fail(node, "%s", why) : err;
}

/* The dimension of a row that a way cuts, -1: none. Embeddings lie as [vocabulary, width], what a linear
 * layer gives out first unless it is stored the other way round. */
static int cut_dim(const struct pf_tensor_row *row, enum way way)
{
    const bool embedding = row->slot == PF_SLOT_EMBED || row->slot == PF_SLOT_POS_EMBED;

    if (way == WAY_NONE || (row->n_dims == 1 && (way == WAY_ROWS || !is_bias(row->name)))) {
        return -1;
    }
    if (row->n_dims == 1) {
        return 0;
    }
    return embedding || row->in_out ? way == WAY_COLUMNS : way == WAY_ROWS;
}

static int note(struct pf_str_list *notes, const char *format, const char *a, const char *b)
    __attribute__((format(printf, 2, 0)));
static int note(struct pf_str_list *notes, const char *format, const char *a, const char *b)
{
    char line[512];

    snprintf(line, sizeof line, format, a, b);
    return pf_str_list_append(notes, line);
}

/* Let one member of the plan say what it has to; ways: [n_rows], what was said before. */
static int apply_member(const struct pf_json *plan, size_t i, const struct pf_table *table,
                        enum way *ways, struct pf_str_list *notes)
{
    const struct pf_json *const node = pf_json_child(plan, i);
    const char *const pattern = pf_json_key(plan, i);
    enum way way = WAY_NONE;
    bool met = false;
    regex_t regex;
    int err = 0;

    PF_TRY(read_way(node, &way));
    PF_TRY(compile(node, pattern, &regex));
    for (int64_t r = 0; r < table->n_rows && !err; r++) {
        if (meets(&regex, pattern, table->rows[r].name)) {
            met = true;
            if (ways[r] != WAY_NONE && way != WAY_NONE && ways[r] != way) {
                err = note(notes, "'%s' is cut as '%s' says, the last pattern that meets it",
                           table->rows[r].name, pattern);
            }
            ways[r] = way != WAY_NONE ? way : ways[r];
        }
    }
    regfree(&regex);
    if (!met && !err) {
        err = note(notes, "'%s' of the plan meets no tensor%s", pattern, "");
    }
    return err;
}

static void cut_row(struct pf_tensor_row *row, int dim)
{
    for (int d = 0; d < row->n_dims; d++) {
        struct pf_cut *const cut = &row->cut[d];
        if (d != dim) {
            *cut = (struct pf_cut){.view = PF_CUT_NONE, .axis = PF_AXIS_TP, .unit = 1};
        } else if (cut->view == PF_CUT_NONE) {
            *cut = (struct pf_cut){.view = PF_CUT_BLOCK, .axis = PF_AXIS_TP, .unit = 1};
        }
    }
}

/* A tied row and its owner are one tensor: either may be named, and both are cut alike. */
static int cut_tied(struct pf_table *table, int64_t r, const enum way *ways)
{
    struct pf_tensor_row *const row = &table->rows[r], *const owner = &table->rows[row->tied_to];
    const int by_row = cut_dim(row, ways[r]), by_owner = cut_dim(owner, ways[row->tied_to]);

    if (by_row >= 0 && by_owner >= 0 && by_row != by_owner) {
        return pf_fail(PF_EINVAL, "'%s' and '%s' are one tensor, which cannot be cut in two ways",
                       row->name, owner->name);
    }
    cut_row(row, by_row >= 0 ? by_row : by_owner);
    memcpy(owner->cut, row->cut, sizeof owner->cut);
    return 0;
}

static int cut_rows(struct pf_table *table, const enum way *ways)
{
    for (int64_t r = 0; r < table->n_rows; r++) {
        struct pf_tensor_row *const row = &table->rows[r];
        if (row->expert >= 0 && ways[r] != WAY_NONE) {
            return pf_fail(PF_ENOTSUP,
                           "'%s' is an expert's, which pf deals over ep and does not cut",
                           row->name);
        }
        if (row->tied_to >= 0) {
            PF_TRY(cut_tied(table, r, ways));
        } else {
            cut_row(row, cut_dim(row, ways[r]));
        }
    }
    return 0;
}

static int apply_plan(const struct pf_json *plan, struct pf_table *table, struct pf_str_list *notes)
{
    enum way *const ways = pf_calloc_array((size_t)table->n_rows + 1, sizeof *ways);
    int err = ways ? 0 : PF_ENOMEM;

    for (size_t i = 0; i < pf_json_n(plan) && !err; i++) {
        err = apply_member(plan, i, table, ways, notes);
    }
    err = err ? err : cut_rows(table, ways);
    pf_free(ways);
    return err;
}

/* Are the layers that split_spec names layers of the model? */
static int check_split(const struct pf_json *plan, const struct pf_table *table)
{
    const char *const list =
        table->spec.family == PF_FAMILY_GPT2 ? "transformer.h" : "model.layers";
    const struct pf_json *node = NULL;
    const char *name = "";

    PF_TRY(find_part(plan, "pp_config", "split_spec", &node));
    if (node && pf_json_type(node) == PF_JSON_STRING) {
        PF_TRY(pf_json_as_string(node, &name));
        return strcmp(name, list) == 0 ? 0
                                       : pf_fail(PF_EINVAL, "'%s' is '%s', the layers are '%s'",
                                                 pf_json_path(node), name, list);
    }
    for (size_t i = 0; i < pf_json_n(node); i++) {
        name = pf_json_key(node, i);
        if (strncmp(name, list, strlen(list)) != 0 || name[strlen(list)] != '.' ||
            layer_number(name) >= table->spec.n_layers) {
            return pf_fail(PF_EINVAL, "'%s' is none of the %lld layers '%s.N'", name,
                           (long long)table->spec.n_layers, list);
        }
    }
    return 0;
}

int pf_parallelize_table(const struct pf_json *plan, struct pf_table *table,
                         struct pf_str_list *notes)
{
    const struct pf_json *inner = plan;

    PF_TRY(pf_json_expect(plan, PF_JSON_OBJECT));
    if (!is_inner(plan)) {
        PF_TRY(check_split(plan, table));
        PF_TRY(find_part(plan, "mp_config", "parallelize_plan", &inner));
        if (!inner) {
            return 0;
        }
        PF_TRY(pf_json_expect(inner, PF_JSON_OBJECT));
    }
    return apply_plan(inner, table, notes);
}

int pf_parallelize_config(const struct pf_json *config, struct pf_table *table,
                          struct pf_str_list *notes)
{
    const struct pf_json *const plan = pf_json_get(config, "parallelize_plan");

    return plan && pf_json_type(plan) != PF_JSON_NULL ? pf_parallelize_table(plan, table, notes)
                                                      : 0;
}
