/* SPDX-License-Identifier: Apache-2.0 */
/* One value of a key: read and checked by the type that its row of the table gives, and put into its
 * field. */
#include "config_internal.h"

#include <pf/error.h>
#include <pf/json.h>
#include <pf/mem.h>
#include <pf/str.h>

#include <stddef.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(enum pf_lr_kind) == sizeof(int), "an enum field is read as int");

/* Values ---------------------------------------------------------------------------------------- */

void config_value_release(struct config_value *v)
{
    pf_free(v->text);
    pf_str_list_release(&v->words);
    pf_free(v->items);
}

static int check_range(const struct pf_key *key, const struct pf_json *node, double x)
{
    if (key->min >= key->max || (x >= key->min && x <= key->max)) {
        return 0;
    }
    if (key->max >= 2147483647.0 && x < key->min) {
        return pf_json_fail(node, "must be at least %g", key->min);
    }
    return pf_json_fail(node, "must be between %.10g and %.10g", key->min, key->max);
}

static int read_choice(const struct pf_key *key, const struct pf_json *node, struct config_value *v)
{
    const char *text;
    char all[256] = "";

    PF_TRY(pf_json_as_string(node, &text));
    for (int i = 0; key->choices[i]; i++) {
        if (strcmp(key->choices[i], text) == 0) {
            v->choice = i;
            return 0;
        }
        const size_t len = strlen(all);
        snprintf(all + len, sizeof all - len, "%s'%s'", i ? ", " : "", key->choices[i]);
    }
    return pf_json_fail(node, "must be %s%s, not '%s'", key->choices[1] ? "one of " : "", all,
                        text);
}

/* Words stand between blanks or commas ("logits,grads"). */
static int split_words(const char *text, struct pf_str_list *words)
{
    struct pf_str_list parts = {0};
    char *const blanks = pf_strdup(text);
    int err = blanks ? 0 : PF_ENOMEM;

    for (size_t i = 0; blanks && blanks[i]; i++) {
        blanks[i] = blanks[i] == ',' ? ' ' : blanks[i];
    }
    if (!err) {
        err = pf_str_split(blanks, ' ', true, &parts);
    }

    for (size_t i = 0; !err && i < parts.n; i++) {
        if (*parts.items[i]) {
            err = pf_str_list_append(words, parts.items[i]);
        }
    }
    pf_str_list_release(&parts);
    pf_free(blanks);
    return err;
}

int config_value_read_words(const struct pf_json *node, struct config_value *v)
{
    const char *text;

    if (pf_json_type(node) == PF_JSON_STRING) {
        PF_TRY(pf_json_as_string(node, &text));
        return split_words(text, &v->words);
    }
    if (pf_json_type(node) != PF_JSON_ARRAY) {
        return pf_json_fail(node, "must be an array of strings or a string of words, not %s",
                            pf_json_type_name(pf_json_type(node)));
    }
    for (size_t i = 0; i < pf_json_n(node); i++) {
        PF_TRY(pf_json_as_string(pf_json_child(node, i), &text));
        PF_TRY(pf_str_list_append(&v->words, text));
    }
    return 0;
}

/* A list of numbers; one number stands for a list of it. */
static int read_numbers(const struct pf_key *key, const struct pf_json *node,
                        struct config_value *v)
{
    const bool is_one = pf_json_type(node) == PF_JSON_NUMBER;
    const size_t n = is_one ? 1 : pf_json_n(node);

    if (!is_one) {
        PF_TRY(pf_json_expect(node, PF_JSON_ARRAY));
    }
    v->items = pf_calloc_array(n + 1, sizeof(double));
    if (!v->items) {
        return PF_ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        const struct pf_json *const item = is_one ? node : pf_json_child(node, i);
        double x;
        PF_TRY(pf_json_as_f64(item, &x));
        PF_TRY(check_range(key, item, x));
        if (key->type == PF_KEY_F64_LIST) {
            ((double *)v->items)[i] = x;
        } else {
            PF_TRY(pf_json_as_i64(item, &((int64_t *)v->items)[i]));
        }
    }
    v->n = (int64_t)n;
    return 0;
}

static int read_pairs(const struct pf_key *key, const struct pf_json *node, struct config_value *v)
{
    const size_t n = pf_json_n(node);

    PF_TRY(pf_json_expect(node, PF_JSON_ARRAY));
    int64_t *const items = v->items = pf_calloc_array(2 * n + 1, sizeof *items);
    if (!items) {
        return PF_ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        const struct pf_json *const pair = pf_json_child(node, i);
        PF_TRY(pf_json_expect(pair, PF_JSON_ARRAY));
        if (pf_json_n(pair) != 2) {
            return pf_json_fail(pair, "must hold two integers, the first and the last");
        }
        for (size_t k = 0; k < 2; k++) {
            PF_TRY(pf_json_as_i64(pf_json_child(pair, k), &items[2 * i + k]));
            PF_TRY(check_range(key, pf_json_child(pair, k), (double)items[2 * i + k]));
        }
        if (items[2 * i] > items[2 * i + 1]) {
            return pf_json_fail(pair, "ends before it starts");
        }
    }
    v->n = (int64_t)(2 * n);
    return 0;
}

static int read_number(const struct pf_key *key, const struct pf_json *node, struct config_value *v)
{
    if (key->type == PF_KEY_F64) {
        PF_TRY(pf_json_as_f64(node, &v->f64));
        return check_range(key, node, v->f64);
    }
    if (key->type == PF_KEY_U64) {
        return pf_json_as_u64(node, &v->u64);
    }
    PF_TRY(pf_json_as_i64(node, &v->i64));
    return check_range(key, node, (double)v->i64);
}

static int read_text(const struct pf_key *key, const struct pf_json *node, struct config_value *v)
{
    const char *text;

    if (key->type == PF_KEY_OBJECT) {
        PF_TRY(pf_json_expect(node, PF_JSON_OBJECT));
        v->text = pf_json_print(node);
    } else {
        PF_TRY(pf_json_as_string(node, &text));
        v->text = pf_strdup(text);
    }
    return v->text ? 0 : PF_ENOMEM;
}

int config_value_read(const struct pf_key *key, const struct pf_json *node, struct config_value *v)
{
    switch (key->type) {
    case PF_KEY_BOOL:
        return pf_json_as_bool(node, &v->b);
    case PF_KEY_I64:
    case PF_KEY_INT:
    case PF_KEY_U64:
    case PF_KEY_F64:
        return read_number(key, node, v);
    case PF_KEY_STRING:
    case PF_KEY_OBJECT:
        return read_text(key, node, v);
    case PF_KEY_STRING_LIST:
        return config_value_read_words(node, v);
    case PF_KEY_I64_LIST:
    case PF_KEY_F64_LIST:
        return read_numbers(key, node, v);
    case PF_KEY_I64_PAIRS:
        return read_pairs(key, node, v);
    case PF_KEY_ENUM:
        return read_choice(key, node, v);
    }
    return 0;
}

/* Fields ---------------------------------------------------------------------------------------- */

const struct config_dump_word config_dump_words[] = {
    {"logits", PF_DUMP_LOGITS}, {"grads", PF_DUMP_GRADS}, {"hidden", PF_DUMP_HIDDEN}};
const size_t config_n_dump_words = sizeof config_dump_words / sizeof config_dump_words[0];

static const enum pf_dtype dtypes[] = {PF_DTYPE_F32, PF_DTYPE_BF16, PF_DTYPE_F16};

static int store_dump(struct pf_config *config, const struct pf_json *node,
                      const struct config_value *v)
{
    unsigned bits = 0;

    for (size_t i = 0; i < v->words.n; i++) {
        unsigned bit = 0;
        for (size_t k = 0; k < config_n_dump_words; k++) {
            bit |= strcmp(v->words.items[i], config_dump_words[k].word) == 0
                       ? config_dump_words[k].bit
                       : 0;
        }
        if (!bit) {
            return pf_json_fail(node, "may hold 'logits', 'grads' and 'hidden', not '%s'",
                                v->words.items[i]);
        }
        bits |= bit;
    }
    config->dump = bits;
    return 0;
}

void *config_field(const struct pf_config *config, const struct pf_key *key)
{
    return (char *)config + key->field;
}

bool config_is_dump(const struct pf_key *key)
{
    return key->field == offsetof(struct pf_config, dump);
}

bool config_is_number_list(const struct pf_key *key)
{
    return key->type == PF_KEY_I64_LIST || key->type == PF_KEY_F64_LIST ||
           key->type == PF_KEY_I64_PAIRS;
}

int config_choice(const struct pf_config *config, const struct pf_key *key)
{
    int choice = 0;

    if (key->field == offsetof(struct pf_config, dtype)) {
        while (dtypes[choice] != config->dtype) {
            choice++;
        }
    } else if (key->field == offsetof(struct pf_config, pp_first)) {
        choice = config->pp_first ? 1 : 0;
    } else {
        memcpy(&choice, config_field(config, key), sizeof choice);
    }
    return choice;
}

static void store_choice(struct pf_config *config, const struct pf_key *key, int choice)
{
    if (key->field == offsetof(struct pf_config, dtype)) {
        config->dtype = dtypes[choice];
    } else if (key->field == offsetof(struct pf_config, pp_first)) {
        config->pp_first = choice == 1;
    } else {
        memcpy(config_field(config, key), &choice, sizeof choice);
    }
}

/* A list field: a pointer, then a count. */
static void store_list(struct pf_config *config, const struct pf_key *key, struct config_value *v)
{
    void **const items = config_field(config, key);

    pf_free(*items);
    *items = v->items;
    v->items = NULL;
    memcpy((char *)items + sizeof *items, &v->n, sizeof v->n);
}

static void store_words(struct pf_config *config, const struct pf_key *key, struct config_value *v)
{
    struct pf_str_list *const list = config_field(config, key);

    pf_str_list_release(list);
    *list = v->words;
    v->words = (struct pf_str_list){0};
    if (key->field == offsetof(struct pf_config, weight_decay_exclude)) {
        config->has_weight_decay_exclude = true;
    }
}

static void store_text(struct pf_config *config, const struct pf_key *key, struct config_value *v)
{
    char **const text = config_field(config, key);

    pf_free(*text);
    *text = v->text;
    v->text = NULL;
}

int config_value_store(struct pf_config *config, const struct pf_key *key,
                       const struct pf_json *node, struct config_value *v)
{
    switch (key->type) {
    case PF_KEY_BOOL:
        memcpy(config_field(config, key), &v->b, sizeof v->b);
        break;
    case PF_KEY_I64:
        memcpy(config_field(config, key), &v->i64, sizeof v->i64);
        break;
    case PF_KEY_INT:
        return pf_to_int(v->i64, config_field(config, key));
    case PF_KEY_U64:
        memcpy(config_field(config, key), &v->u64, sizeof v->u64);
        break;
    case PF_KEY_F64:
        memcpy(config_field(config, key), &v->f64, sizeof v->f64);
        break;
    case PF_KEY_STRING:
    case PF_KEY_OBJECT:
        store_text(config, key, v);
        break;
    case PF_KEY_STRING_LIST:
        if (config_is_dump(key)) {
            return store_dump(config, node, v);
        }
        store_words(config, key, v);
        break;
    case PF_KEY_I64_LIST:
    case PF_KEY_F64_LIST:
    case PF_KEY_I64_PAIRS:
        store_list(config, key, v);
        break;
    case PF_KEY_ENUM:
        store_choice(config, key, v->choice);
        break;
    }
    return 0;
}
