/* SPDX-License-Identifier: Apache-2.0 */
/* The options of a run as JSON, and their comparison with those of the run that is resumed. */
#include <pf/config.h>

#include "config_internal.h"

#include <pf/error.h>
#include <pf/json.h>
#include <pf/mem.h>

#include <string.h>

static void print_text(struct pf_json_out *out, const struct pf_key *key, const char *text)
{
    if (!text) {
        pf_json_out_null(out);
    } else if (key->type == PF_KEY_OBJECT) {
        pf_json_out_raw(out, text);
    } else {
        pf_json_out_string(out, text);
    }
}

static void print_words(const struct pf_config *config, const struct pf_key *key,
                        struct pf_json_out *out)
{
    const struct pf_str_list *const list = config_field(config, key);

    if (list == &config->weight_decay_exclude && !config->has_weight_decay_exclude) {
        pf_json_out_null(out);
        return;
    }
    pf_json_out_array_begin(out);
    for (size_t i = 0; i < list->n; i++) {
        pf_json_out_string(out, list->items[i]);
    }
    pf_json_out_array_end(out);
}

static void print_dump(const struct pf_config *config, struct pf_json_out *out)
{
    pf_json_out_array_begin(out);
    for (size_t i = 0; i < config_n_dump_words; i++) {
        if (config->dump & config_dump_words[i].bit) {
            pf_json_out_string(out, config_dump_words[i].word);
        }
    }
    pf_json_out_array_end(out);
}

static void print_numbers(const struct pf_config *config, const struct pf_key *key,
                          struct pf_json_out *out)
{
    const char *const field = config_field(config, key);
    const void *items;
    int64_t n;

    memcpy(&items, field, sizeof items);
    memcpy(&n, field + sizeof items, sizeof n);
    pf_json_out_array_begin(out);
    for (int64_t i = 0; i < n; i++) {
        if (key->type == PF_KEY_F64_LIST) {
            pf_json_out_f64(out, ((const double *)items)[i]);
            continue;
        }
        if (key->type == PF_KEY_I64_PAIRS && i % 2 == 0) {
            pf_json_out_array_begin(out);
        }
        pf_json_out_i64(out, ((const int64_t *)items)[i]);
        if (key->type == PF_KEY_I64_PAIRS && i % 2 == 1) {
            pf_json_out_array_end(out);
        }
    }
    pf_json_out_array_end(out);
}

/* 0 stands for null where null is the default. */
static void print_count(const struct pf_key *key, int64_t n, struct pf_json_out *out)
{
    if (n == 0 && strcmp(key->by_default, "null") == 0) {
        pf_json_out_null(out);
    } else {
        pf_json_out_i64(out, n);
    }
}

static void print_value(const struct pf_config *config, const struct pf_key *key,
                        struct pf_json_out *out)
{
    const void *const field = config_field(config, key);

    switch (key->type) {
    case PF_KEY_BOOL:
        pf_json_out_bool(out, *(const bool *)field);
        break;
    case PF_KEY_I64:
        print_count(key, *(const int64_t *)field, out);
        break;
    case PF_KEY_INT:
        pf_json_out_i64(out, *(const int *)field);
        break;
    case PF_KEY_U64:
        pf_json_out_u64(out, *(const uint64_t *)field);
        break;
    case PF_KEY_F64:
        pf_json_out_f64(out, *(const double *)field);
        break;
    case PF_KEY_STRING:
    case PF_KEY_OBJECT:
        print_text(out, key, *(char *const *)field);
        break;
    case PF_KEY_STRING_LIST:
        if (config_is_dump(key)) {
            print_dump(config, out);
        } else {
            print_words(config, key, out);
        }
        break;
    case PF_KEY_I64_LIST:
    case PF_KEY_F64_LIST:
    case PF_KEY_I64_PAIRS:
        print_numbers(config, key, out);
        break;
    case PF_KEY_ENUM:
        pf_json_out_string(out, key->choices[config_choice(config, key)]);
        break;
    }
}

/* Keys that are another way to say a key of the table have no field and are not repeated. */
static bool is_printed(const struct pf_key *key)
{
    return key->status == PF_KEY_EFFECTIVE && key->field != CONFIG_NO_FIELD;
}

int pf_config_print(const struct pf_config *config, struct pf_str *json)
{
    struct pf_json_out out;

    pf_json_out_init(&out, json, 2);
    pf_json_out_object_begin(&out);
    for (size_t i = 0; i < pf_n_keys; i++) {
        if (is_printed(&pf_keys[i])) {
            pf_json_out_key(&out, pf_keys[i].name);
            print_value(config, &pf_keys[i], &out);
        }
    }
    pf_json_out_object_end(&out);
    return pf_json_out_finish(&out);
}

/* Resuming -------------------------------------------------------------------------------------- */

static char *value_text(const struct pf_json *node)
{
    return node ? pf_json_print(node) : pf_strdup("null");
}

/* The keys of which a change is allowed and worth a word. */
static bool is_data_path(const char *name)
{
    return strcmp(name, "input_dir") == 0 || strcmp(name, "split") == 0;
}

static int compare_key(const struct pf_key *key, const struct pf_json *old,
                       const struct pf_json *now, struct pf_str *note)
{
    char *const was = value_text(pf_json_get(old, key->name)), *const is = value_text(
                                                                   pf_json_get(now, key->name));
    int err = was && is ? 0 : PF_ENOMEM;

    if (!err && strcmp(was, is) != 0) {
        if (!key->may_change_on_resume) {
            err = pf_fail(PF_EREFUSED,
                          "'%s' is %s, but the run that is resumed has %s, and it may not change",
                          key->name, is, was);
        } else if (is_data_path(key->name)) {
            err = pf_str_appendf(note, "%s'%s' is %s, the run that is resumed has %s",
                                 note->len ? "; " : "", key->name, is, was);
        }
    }
    pf_free(was);
    pf_free(is);
    return err;
}

static int compare_all(const struct pf_json *old, const struct pf_json *now, struct pf_str *note)
{
    for (size_t i = 0; i < pf_n_keys; i++) {
        /* A key that the older build did not have had no other value than today's default. */
        if (is_printed(&pf_keys[i]) && pf_json_get(old, pf_keys[i].name)) {
            PF_TRY(compare_key(&pf_keys[i], old, now, note));
        }
    }
    return 0;
}

int pf_config_check_resume(const struct pf_config *config, const char *old_json, char **note_out)
{
    const struct pf_json_options options = {.name = "options of the checkpoint",
                                            .error_code = PF_EFORMAT};
    struct pf_json *old = NULL, *now = NULL;
    struct pf_str text, note;
    int err;

    pf_str_init(&text);
    pf_str_init(&note);
    PF_TRY_GOTO(pf_config_print(config, &text), out);
    PF_TRY_GOTO(pf_json_parse_text(text.text, text.len, "options", &now), out);
    PF_TRY_GOTO(pf_json_parse_text_with(old_json, strlen(old_json), &options, &old), out);
    /* The text of pf.json holds them one level down. */
    const struct pf_json *const inner = pf_json_get(old, "options");
    PF_TRY_GOTO(compare_all(inner ? inner : old, now, &note), out);
    PF_TRY_GOTO(pf_str_error(&note), out);
    char *const text_out = note.len ? pf_str_steal(&note) : NULL;
    *note_out = text_out;
out:
    pf_json_free(now);
    pf_json_free(old);
    pf_str_release(&text);
    pf_str_release(&note);
    return err;
}
