/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the options of a run by the table of config_keys.c: what was said about each key, which
 * statement wins, and what contradicts another. */
#include <pf/config.h>

#include "config_internal.h"

#include <pf/error.h>
#include <pf/json.h>
#include <pf/mem.h>

#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum origin { ORIGIN_NONE, ORIGIN_FILE, ORIGIN_COMMAND_LINE };

/* What was said about one key. */
struct given {
    const struct pf_json *value;
    const struct pf_json *where; /* the member to name in messages: value's own, or an old form */
    enum origin origin;
};

struct reading {
    struct pf_config *config;
    struct given *given;   /* [pf_n_keys] */
    struct pf_json **docs; /* everything that nodes belong to */
    size_t n_docs;
};

/* The table ------------------------------------------------------------------------------------- */

int config_key_find(const char *name)
{
    for (size_t i = 0; i < pf_n_keys; i++) {
        if (strcmp(pf_keys[i].name, name) == 0) {
            return (int)i;
        }
    }
    return -1;
}

size_t config_key_index(const char *name)
{
    const int i = config_key_find(name);

    PF_ASSERT(i >= 0);
    return (size_t)i;
}

static const char *canonical(const char *name)
{
    for (size_t i = 0; i < pf_n_key_aliases; i++) {
        if (strcmp(pf_key_aliases[i].old, name) == 0) {
            return pf_key_aliases[i].name;
        }
    }
    return name;
}

int config_note(struct pf_config *config, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    char *const note = pf_vasprintf(format, args);
    va_end(args);
    if (!note) {
        return PF_ENOMEM;
    }
    const int err = pf_str_list_append(&config->notes, note);
    pf_free(note);
    return err;
}

/* Documents of one reading ---------------------------------------------------------------------- */

static int keep_doc(struct reading *r, struct pf_json *doc)
{
    struct pf_json **const docs =
        pf_realloc_array(r->docs, r->n_docs + 1, sizeof(struct pf_json *));

    if (!docs) {
        pf_json_free(doc);
        return PF_ENOMEM;
    }
    r->docs = docs;
    r->docs[r->n_docs++] = doc;
    return 0;
}

/* A node with the value of a JSON text, which lives as long as the reading. */
static int node_from(struct reading *r, const char *text, const struct pf_json **node_out)
{
    struct pf_json *doc;

    PF_TRY(pf_json_parse_text(text, strlen(text), "default", &doc));
    PF_TRY(keep_doc(r, doc));
    *node_out = doc;
    return 0;
}

static bool same_node(const struct pf_json *a, const struct pf_json *b)
{
    double x, y;

    if (pf_json_type(a) != pf_json_type(b)) {
        return false;
    }
    if (pf_json_type(a) == PF_JSON_NUMBER) {
        return pf_json_as_f64(a, &x) == 0 && pf_json_as_f64(b, &y) == 0 && x == y;
    }
    char *const left = pf_json_print(a), *const right = pf_json_print(b);
    const bool same = left && right && strcmp(left, right) == 0;
    pf_free(left);
    pf_free(right);
    return same;
}

/* Is it the default, or a value that means the same? */
static int is_default(struct reading *r, const struct pf_key *key, const struct pf_json *node,
                      bool *same_out)
{
    const struct pf_json *other;

    PF_TRY(node_from(r, key->by_default, &other));
    bool same = same_node(node, other);
    if (!same && key->same_as_default) {
        PF_TRY(node_from(r, key->same_as_default, &other));
        for (size_t i = 0; i < pf_json_n(other); i++) {
            same = same || same_node(node, pf_json_child(other, i));
        }
    }
    *same_out = same;
    return 0;
}

/* Collecting ------------------------------------------------------------------------------------ */

/* Note one statement about a key. null takes a statement back; the command line wins over the file,
 * and its last word over the others; two different statements of the file are a contradiction. */
static int put(struct reading *r, size_t key, const struct pf_json *value,
               const struct pf_json *where, enum origin origin)
{
    struct given *const g = &r->given[key];

    if (pf_json_type(value) == PF_JSON_NULL) {
        if (origin == ORIGIN_COMMAND_LINE) {
            *g = (struct given){0};
        }
        return 0;
    }
    if (g->origin == ORIGIN_FILE && origin == ORIGIN_FILE && !same_node(g->value, value)) {
        return pf_json_fail(where, "contradicts what line %d says about '%s'",
                            pf_json_line(g->where), pf_keys[key].name);
    }
    *g = (struct given){.value = value, .where = where, .origin = origin};
    return 0;
}

static int put_text(struct reading *r, const char *key, const char *json,
                    const struct pf_json *where, enum origin origin)
{
    const struct pf_json *node;

    PF_TRY(node_from(r, json, &node));
    return put(r, config_key_index(key), node, where, origin);
}

/* A word of an option string that is not the name of a switch. */
static const char *switch_of(const char *option_string, const char *word)
{
    const bool pipeline = strcmp(option_string, "pipeline_parallel_config") == 0;

    if (strcmp(word, "delay_scale_loss") == 0) {
        return "pp_delay_scale_loss";
    }
    if (strcmp(word, "release_grads") == 0) {
        return pipeline ? "pp_release_grads" : "sd_release_grads";
    }
    return strcmp(word, "sharding_comm_overlap") == 0 ? "stage1_overlap" : word;
}

static int fail_switch(const struct pf_json *node, const char *word, const char *bare)
{
    const char **const names = pf_calloc_array(pf_n_keys, sizeof *names);

    for (size_t i = 0; names && i < pf_n_keys; i++) {
        names[i] = pf_keys[i].type == PF_KEY_BOOL ? pf_keys[i].name : NULL;
    }
    const char *const nearest = names ? pf_nearest(bare, names, pf_n_keys) : NULL;
    const int err = pf_json_fail(node, "holds '%s', which is no switch%s%s%s", word,
                                 nearest ? "; did you mean '" : "", nearest ? nearest : "",
                                 nearest ? "'?" : "");
    pf_free(names);
    return err;
}

static int put_switch(struct reading *r, const char *word, const struct pf_json *node,
                      enum origin origin)
{
    const bool off = pf_str_starts_with(word, "disable_");
    const char *const bare = off ? word + 8 : pf_str_starts_with(word, "enable_") ? word + 7 : word;
    const char *const name = switch_of(pf_json_path(node), bare);
    const int key = config_key_find(name);

    if (key < 0 || pf_keys[key].type != PF_KEY_BOOL) {
        return fail_switch(node, word, bare);
    }
    PF_TRY(config_note(r->config, "'%s' of %s is read as %s = %s", word, pf_json_path(node), name,
                       off ? "false" : "true"));
    return put_text(r, name, off ? "false" : "true", node, origin);
}

static int put_option_string(struct reading *r, const struct pf_json *node, enum origin origin)
{
    struct config_value v = {0};
    int err = config_value_read_words(node, &v);

    for (size_t i = 0; !err && i < v.words.n; i++) {
        err = put_switch(r, v.words.items[i], node, origin);
    }
    config_value_release(&v);
    return err;
}

/* "wsd:900", or the name of a scheduler. */
static int put_lr_scheduler(struct reading *r, const struct pf_json *node, enum origin origin)
{
    const char *text;
    char json[64];
    int64_t start;

    PF_TRY(pf_json_as_string(node, &text));
    if (!pf_str_starts_with(text, "wsd:")) {
        PF_TRY(config_note(r->config, "'lr_scheduler' is an old name of 'lr_scheduler_type'"));
        return put(r, config_key_index("lr_scheduler_type"), node, node, origin);
    }
    if (pf_parse_i64(text + 4, &start) != 0 || start < 0) {
        return pf_json_fail(node, "must be \"wsd:N\" with a step number, not '%s'", text);
    }
    PF_TRY(config_note(r->config,
                       "lr_scheduler '%s' is read as lr_scheduler_type wsd, wsd_decay_start %lld",
                       text, (long long)start));
    PF_TRY(put_text(r, "lr_scheduler_type", "\"wsd\"", node, origin));
    snprintf(json, sizeof json, "%lld", (long long)start);
    return put_text(r, "wsd_decay_start", json, node, origin);
}

static int put_member(struct reading *r, const char *written, const struct pf_json *node,
                      enum origin origin)
{
    const char *const name = canonical(written);

    if (name != written) {
        PF_TRY(config_note(r->config, "'%s' is an old name of '%s'", written, name));
    }
    if (pf_json_type(node) == PF_JSON_NULL) {
        return put(r, config_key_index(name), node, node, origin);
    }
    if (strcmp(name, "pipeline_parallel_config") == 0 ||
        strcmp(name, "sharding_parallel_config") == 0) {
        return put_option_string(r, node, origin);
    }
    if (strcmp(name, "lr_scheduler") == 0) {
        return put_lr_scheduler(r, node, origin);
    }
    return put(r, config_key_index(name), node, node, origin);
}

static int refuse_unknown(const struct pf_json *doc)
{
    const char **const names = pf_calloc_array(pf_n_keys + pf_n_key_aliases, sizeof *names);

    if (!names) {
        return PF_ENOMEM;
    }
    for (size_t i = 0; i < pf_n_keys; i++) {
        names[i] = pf_keys[i].name;
    }
    for (size_t i = 0; i < pf_n_key_aliases; i++) {
        names[pf_n_keys + i] = pf_key_aliases[i].old;
    }
    const int err = pf_json_refuse_unknown(doc, names, pf_n_keys + pf_n_key_aliases);
    pf_free(names);
    return err;
}

static int put_document(struct reading *r, const struct pf_json *doc, enum origin origin)
{
    PF_TRY(pf_json_expect(doc, PF_JSON_OBJECT));
    PF_TRY(refuse_unknown(doc));
    for (size_t i = 0; i < pf_json_n(doc); i++) {
        PF_TRY(put_member(r, pf_json_key(doc, i), pf_json_child(doc, i), origin));
    }
    return 0;
}

/* {"key": value}: the value as JSON where it is JSON, else as a string. */
static int override_text(const char *word, struct pf_str *text)
{
    const char *const equals = strchr(word, '=');
    struct pf_json *value = NULL;
    struct pf_json_out out;

    if (!equals || equals == word) {
        return pf_fail(PF_EUSAGE, "'%s' is not key=value", word);
    }
    char *const name = pf_strndup(word, (size_t)(equals - word));
    if (!name) {
        return PF_ENOMEM;
    }
    pf_json_out_init(&out, text, 0);
    pf_json_out_object_begin(&out);
    pf_json_out_key(&out, name);
    pf_free(name);
    if (pf_json_parse_text(equals + 1, strlen(equals + 1), "command line", &value) == 0) {
        pf_json_out_node(&out, value);
        pf_json_free(value);
    } else {
        pf_error_clear();
        pf_json_out_string(&out, equals + 1);
    }
    pf_json_out_object_end(&out);
    return pf_json_out_finish(&out);
}

static int put_override(struct reading *r, const char *word)
{
    const struct pf_json_options options = {.name = "command line", .is_not_a_file = true};
    struct pf_json *doc = NULL;
    struct pf_str text;
    int err;

    pf_str_init(&text);
    PF_TRY_GOTO(override_text(word, &text), out);
    PF_TRY_GOTO(pf_json_parse_text_with(text.text, text.len, &options, &doc), out);
    PF_TRY_GOTO(keep_doc(r, doc), out);
    err = put_document(r, doc, ORIGIN_COMMAND_LINE);
out:
    pf_str_release(&text);
    return err;
}

/* Keys that say the same thing in different ways: one on the command line silences the file's. */
static void silence_overridden(struct reading *r)
{
    static const char *const groups[][4] = {
        {"dtype", "bf16", "fp16"},
        {"model", "model_name_or_path"},
        {"gradient_accumulation_steps", "global_train_batch_size"},
        {"warmup_steps", "warmup_ratio"},
    };

    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        enum origin top = ORIGIN_NONE;
        for (int k = 0; groups[i][k]; k++) {
            const enum origin o = r->given[config_key_index(groups[i][k])].origin;
            top = o > top ? o : top;
        }
        for (int k = 0; groups[i][k]; k++) {
            struct given *const g = &r->given[config_key_index(groups[i][k])];
            if (g->origin < top) {
                *g = (struct given){0};
            }
        }
    }
}

/* Setting --------------------------------------------------------------------------------------- */

static int set_default(struct reading *r, const struct pf_key *key)
{
    const struct pf_json *node;
    struct config_value v = {0};

    if (key->field == CONFIG_NO_FIELD) {
        return 0;
    }
    PF_TRY(node_from(r, key->by_default, &node));
    if (pf_json_type(node) == PF_JSON_NULL) {
        return 0; /* fields start as zeros */
    }
    int err = config_value_read(key, node, &v);
    if (!err) {
        err = config_value_store(r->config, key, node, &v);
    }
    config_value_release(&v);
    return err;
}

static int fail_refused(const struct pf_key *key, const struct given *g)
{
    char *const value = pf_json_print(g->value);
    const int err = pf_fail(PF_ENOTSUP, "'%s' = %s cannot be done: %s (%s)", key->name,
                            value ? value : "?", key->why, pf_json_place(g->where));

    pf_free(value);
    return err;
}

static int set_given(struct reading *r, size_t i)
{
    const struct pf_key *const key = &pf_keys[i];
    const struct given *const g = &r->given[i];
    struct config_value v = {0};
    bool same;
    int err;

    if (!g->value) {
        return 0;
    }
    PF_TRY(is_default(r, key, g->value, &same));
    r->config->given[i] = same ? 1 : 2;
    if (same && key->status == PF_KEY_REFUSED) {
        return 0; /* one of its ways to say "off" */
    }
    PF_TRY_GOTO(config_value_read(key, g->value, &v), out);
    if (key->status == PF_KEY_REFUSED ||
        (key->type == PF_KEY_ENUM && key->n_supported && v.choice >= key->n_supported)) {
        err = fail_refused(key, g);
        goto out;
    }
    if (key->field != CONFIG_NO_FIELD) {
        err = config_value_store(r->config, key, g->value, &v);
    }
out:
    config_value_release(&v);
    return err;
}

/* Where the other of two statements stands: "line 3", or "the command line". */
static const char *place_of(const struct given *g)
{
    static _Thread_local char place[32];

    if (g->origin == ORIGIN_COMMAND_LINE) {
        return "the command line";
    }
    (void)snprintf(place, sizeof place, "line %d", pf_json_line(g->where));
    return place;
}

/* bf16 and fp16 are old ways to give dtype. */
static int set_dtype(struct reading *r)
{
    const struct given *const bf16 = &r->given[config_key_index("bf16")],
                              *const fp16 = &r->given[config_key_index("fp16")],
                              *const dtype = &r->given[config_key_index("dtype")];
    bool is_bf16 = false, is_fp16 = false;

    if (bf16->value) {
        PF_TRY(pf_json_as_bool(bf16->value, &is_bf16));
    }
    if (fp16->value) {
        PF_TRY(pf_json_as_bool(fp16->value, &is_fp16));
    }
    if (!is_bf16 && !is_fp16) {
        return 0;
    }
    if (is_bf16 && is_fp16) {
        return pf_json_fail(fp16->where, "contradicts bf16 of %s", place_of(bf16));
    }
    const enum pf_dtype wanted = is_bf16 ? PF_DTYPE_BF16 : PF_DTYPE_F16;
    if (dtype->value && r->config->dtype != wanted) {
        return pf_json_fail(is_bf16 ? bf16->where : fp16->where, "contradicts dtype '%s' of %s",
                            pf_dtype_torch_name(r->config->dtype), place_of(dtype));
    }
    r->config->dtype = wanted;
    return 0;
}

static int set_all(struct reading *r)
{
    for (size_t i = 0; i < pf_n_keys; i++) {
        PF_TRY(set_default(r, &pf_keys[i]));
    }
    for (size_t i = 0; i < pf_n_keys; i++) {
        PF_TRY(set_given(r, i));
    }
    return set_dtype(r);
}

/* Contradictions -------------------------------------------------------------------------------- */

static const struct pf_json *where_of(const struct reading *r, const char *key)
{
    return r->given[config_key_index(key)].where;
}

static int check_model(const struct reading *r, const char *path)
{
    const struct pf_config *const c = r->config;

    if (c->model_name_or_path && c->model_json) {
        return pf_json_fail(where_of(r, "model"), "contradicts model_name_or_path of %s: give one",
                            place_of(&r->given[config_key_index("model_name_or_path")]));
    }
    if (!c->model_name_or_path && !c->model_json) {
        return pf_fail(PF_EUSAGE, "'%s' does not say which model: give model_name_or_path or model",
                       path);
    }
    if (!c->output_dir || !*c->output_dir) {
        return pf_fail(PF_EUSAGE, "'%s' does not say where results go: give output_dir", path);
    }
    if (!c->input_dir && !(c->eval_only && c->eval_input_dir)) {
        return pf_fail(PF_EUSAGE, "'%s' does not say what to train on: give input_dir", path);
    }
    return 0;
}

static int check_rates(const struct reading *r)
{
    const struct pf_config *const c = r->config;

    if (c->adam_beta1 >= 1) {
        return pf_json_fail(where_of(r, "adam_beta1"), "must be below 1");
    }
    if (c->adam_beta2 >= 1) {
        return pf_json_fail(where_of(r, "adam_beta2"), "must be below 1");
    }
    if (c->lr_scheduler_type == PF_LR_TABLE) {
        return c->n_lr_table > 0 ? 0
                                 : pf_json_fail(where_of(r, "lr_scheduler_type"),
                                                "is 'table', so lr_table must be given");
    }
    if (c->min_lr > c->learning_rate && where_of(r, "min_lr")) {
        return pf_json_fail(where_of(r, "min_lr"), "%g is above learning_rate %g", c->min_lr,
                            c->learning_rate);
    }
    return 0;
}

/* A packed window without masks would let documents see each other that chance has put together. */
static int check_packing(const struct reading *r)
{
    struct pf_config *const c = r->config;
    const struct pf_json *const where = where_of(r, "mask_documents");

    if (c->packing && !c->mask_documents && where && pf_json_type(where) == PF_JSON_BOOL) {
        return pf_json_fail(where, "is false, but packing keeps documents apart: leave out one");
    }
    c->mask_documents |= c->packing;
    return 0;
}

/* Text must be made of tokens. */
static int check_sample(const struct reading *r)
{
    const struct pf_config *const c = r->config;
    const char *const key = c->sample_steps > 0 ? "sample_steps" : "sample_prompt";

    if (c->sample_steps <= 0 && !c->sample_prompt) {
        return 0;
    }
    return c->tokenizer && strcmp(c->tokenizer, "bytes") == 0
               ? 0
               : pf_json_fail(where_of(r, key), "needs tokenizer \"bytes\" to make text of tokens");
}

static int check_contradictions(const struct reading *r, const char *path)
{
    const struct pf_config *const c = r->config;

    PF_TRY(check_model(r, path));
    PF_TRY(check_rates(r));
    PF_TRY(check_packing(r));
    PF_TRY(check_sample(r));
    if (c->max_steps == 0) {
        return pf_json_fail(where_of(r, "max_steps"), "must be -1 or at least 1");
    }
    return 0;
}

int pf_config_read(const char *path, const char *const *overrides, int n_overrides,
                   struct pf_config *config_out)
{
    struct pf_config config = {0};
    struct reading r = {.config = &config};
    struct pf_json *doc = NULL;
    int err = 0;

    r.given = pf_calloc_array(pf_n_keys, sizeof *r.given);
    config.given = pf_calloc_array(pf_n_keys, sizeof *config.given);
    if (!r.given || !config.given) {
        err = PF_ENOMEM;
        goto out;
    }
    PF_TRY_GOTO(pf_json_parse_file(path, &doc), out);
    PF_TRY_GOTO(keep_doc(&r, doc), out);
    PF_TRY_GOTO(put_document(&r, doc, ORIGIN_FILE), out);
    for (int i = 0; i < n_overrides; i++) {
        PF_TRY_GOTO(put_override(&r, overrides[i]), out);
    }
    silence_overridden(&r);
    PF_TRY_GOTO(set_all(&r), out);
    PF_TRY_GOTO(check_contradictions(&r, path), out);
    PF_TRY_GOTO(config_note_idle(&config), out);
out:
    for (size_t i = 0; i < r.n_docs; i++) {
        pf_json_free(r.docs[i]);
    }
    pf_free(r.docs);
    pf_free(r.given);
    if (err) {
        pf_config_release(&config);
    } else {
        *config_out = config;
    }
    return err;
}

void pf_config_release(struct pf_config *config)
{
    if (!config) {
        return;
    }
    for (size_t i = 0; i < pf_n_keys; i++) {
        const struct pf_key *const key = &pf_keys[i];
        if (key->field == CONFIG_NO_FIELD) {
            continue;
        }
        if (key->type == PF_KEY_STRING || key->type == PF_KEY_OBJECT) {
            pf_free(*(char **)config_field(config, key));
        } else if (key->type == PF_KEY_STRING_LIST && !config_is_dump(key)) {
            pf_str_list_release(config_field(config, key));
        } else if (config_is_number_list(key)) {
            pf_free(*(void **)config_field(config, key));
        }
    }
    pf_free(config->given);
    pf_str_list_release(&config->notes);
    memset(config, 0, sizeof *config);
}
