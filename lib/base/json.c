/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one file that knows cJSON. cJSON decodes strings and numbers; a scanner of our own
 * (json_scanner.c) goes over the text first, because cJSON takes more than JSON (leading zeros, bad
 * UTF-8, "\u0000") and keeps neither lines nor columns. The scanner's nodes and cJSON's items come in
 * the same order, which ties them together.
 */
#include <pf/json.h>

#include <pf/error.h>
#include <pf/file.h>
#include <pf/mem.h>

#include "json_internal.h"

#include <cjson/cJSON.h>

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_MAX_DEPTH 128
#define DEFAULT_MAX_BYTES ((size_t)256 << 20)

static void doc_free(struct pf_json_doc *doc)
{
    if (doc) {
        cJSON_Delete(doc->root);
        pf_free(doc->nodes);
        pf_free(doc->links);
        pf_free(doc->text);
        pf_free(doc->name);
        pf_free(doc);
    }
}

void pf_json_free(struct pf_json *doc)
{
    const int saved = errno;

    if (doc) {
        doc_free(doc->doc);
    }
    errno = saved;
}

/* --- the tree --- */

/* Give each node its item; returns how many nodes the item and what is below it took. */
static size_t pair_items(struct pf_json_doc *doc, size_t number, const cJSON *item)
{
    size_t n = 1;

    PF_ASSERT(number < doc->n_nodes);
    doc->nodes[number].item = item;
    for (const cJSON *child = item->child; child; child = child->next) {
        n += pair_items(doc, number + n, child);
    }
    return n;
}

static int compare_members(const void *a, const void *b)
{
    const struct pf_json *const x = *(const struct pf_json *const *)a,
                                *const y = *(const struct pf_json *const *)b;
    const int order = strcmp(x->item->string, y->item->string);

    return order ? order : (x->position > y->position) - (x->position < y->position);
}

static int link_children(struct pf_json_doc *doc)
{
    size_t used = 0;

    doc->links = pf_calloc_array(doc->n_nodes, 2 * sizeof *doc->links);
    if (!doc->links) {
        return PF_ENOMEM;
    }
    for (size_t i = 0; i < doc->n_nodes; i++) {
        struct pf_json *const node = &doc->nodes[i];
        const size_t n = node->n_children;
        node->children = doc->links + used;
        used += n;
        if (cJSON_IsObject(node->item)) {
            node->by_key = doc->links + used;
            used += n;
        }
        if (i > 0) {
            struct pf_json *const parent = &doc->nodes[node->parent];
            parent->children[node->position] = node;
            if (parent->by_key) {
                parent->by_key[node->position] = node;
            }
        }
    }
    return 0;
}

static int refuse_duplicates(const struct pf_json_doc *doc, const struct pf_json *object)
{
    const struct pf_json *first = NULL;

    for (size_t i = 1; i < object->n_children; i++) {
        const struct pf_json *const member = object->by_key[i];
        if (strcmp(object->by_key[i - 1]->item->string, member->item->string) == 0 &&
            (!first || member->position < first->position)) {
            first = member;
        }
    }
    return first ? pf_base_json_bad_at(doc, first->key_offset, "key '%s' stands twice",
                                       first->item->string)
                 : 0;
}

static int sort_members(struct pf_json_doc *doc, bool allow_duplicates)
{
    for (size_t i = 0; i < doc->n_nodes; i++) {
        struct pf_json *const node = &doc->nodes[i];
        if (!node->by_key || node->n_children < 2) {
            continue;
        }
        qsort(node->by_key, node->n_children, sizeof *node->by_key, compare_members);
        if (!allow_duplicates) {
            PF_TRY(refuse_duplicates(doc, node));
        }
    }
    return 0;
}

static int build_tree(struct pf_json_doc *doc, const struct pf_json_options *options)
{
    const int max_depth = options->max_depth ? options->max_depth : DEFAULT_MAX_DEPTH;

    PF_ASSERT(max_depth > 0 && max_depth <= 900);
    PF_TRY(pf_base_json_scan(doc, max_depth));
    doc->root = cJSON_ParseWithLength(doc->text, doc->len + 1);
    if (!doc->root) {
        /* The grammar was checked, so what is left to go wrong is memory. */
        return pf_fail(PF_ENOMEM, "out of memory: cannot parse '%s'", doc->name);
    }
    PF_ASSERT(pair_items(doc, 0, doc->root) == doc->n_nodes);
    PF_TRY(link_children(doc));
    return sort_members(doc, options->allow_duplicates);
}

/* Takes text over (from pf_alloc, with a NUL after len bytes). */
static int parse_owned(char *text, size_t len, const char *name,
                       const struct pf_json_options *options, struct pf_json **doc_out)
{
    struct pf_json_doc *const doc = pf_alloc(sizeof *doc);
    int err = 0;

    if (!doc) {
        pf_free(text);
        return PF_ENOMEM;
    }
    doc->text = text;
    doc->len = len;
    doc->error_code = options->error_code ? options->error_code : PF_EUSAGE;
    doc->is_not_a_file = options->is_not_a_file;
    doc->name = pf_strdup(name);
    if (!doc->name) {
        err = PF_ENOMEM;
        goto out;
    }
    PF_TRY_GOTO(build_tree(doc, options), out);
    *doc_out = &doc->nodes[0];
    return 0;
out:
    doc_free(doc);
    return err;
}

static const struct pf_json_options default_options;

int pf_json_parse_file_with(const char *path, const struct pf_json_options *options,
                            struct pf_json **doc_out)
{
    const struct pf_json_options *const o = options ? options : &default_options;
    char *text;
    size_t len;

    PF_TRY(pf_file_read_all(path, o->max_bytes ? o->max_bytes : DEFAULT_MAX_BYTES, &text, &len));
    return parse_owned(text, len, o->name ? o->name : path, o, doc_out);
}

int pf_json_parse_text_with(const char *text, size_t len, const struct pf_json_options *options,
                            struct pf_json **doc_out)
{
    const struct pf_json_options *const o = options ? options : &default_options;
    char *const copy = pf_alloc(len + 1);

    if (!copy) {
        return PF_ENOMEM;
    }
    if (len > 0) {
        memcpy(copy, text, len);
    }
    return parse_owned(copy, len, o->name ? o->name : "text", o, doc_out);
}

int pf_json_parse_file(const char *path, struct pf_json **doc_out)
{
    return pf_json_parse_file_with(path, NULL, doc_out);
}

int pf_json_parse_text(const char *text, size_t len, const char *name_for_messages,
                       struct pf_json **doc_out)
{
    const struct pf_json_options options = {.name = name_for_messages};

    return pf_json_parse_text_with(text, len, &options, doc_out);
}

/* --- walking --- */

enum pf_json_type pf_json_type(const struct pf_json *node)
{
    const cJSON *const item = node->item;

    return cJSON_IsNull(item)     ? PF_JSON_NULL
           : cJSON_IsBool(item)   ? PF_JSON_BOOL
           : cJSON_IsNumber(item) ? PF_JSON_NUMBER
           : cJSON_IsString(item) ? PF_JSON_STRING
           : cJSON_IsArray(item)  ? PF_JSON_ARRAY
                                  : PF_JSON_OBJECT;
}

const char *pf_json_type_name(enum pf_json_type type)
{
    static const char *const names[] = {"null",     "a boolean", "a number",
                                        "a string", "an array",  "an object"};

    return names[type];
}

bool pf_json_is_integer(const struct pf_json *node)
{
    size_t len;
    const char *const source = pf_json_source(node, &len);

    return cJSON_IsNumber(node->item) && !memchr(source, '.', len) && !memchr(source, 'e', len) &&
           !memchr(source, 'E', len);
}

const struct pf_json *pf_json_get(const struct pf_json *node, const char *key)
{
    if (!node || !node->by_key) {
        return NULL;
    }
    /* The first member above the key; the one before it is the last with that key, if any is. */
    size_t low = 0, high = node->n_children;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (strcmp(node->by_key[middle]->item->string, key) <= 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    const bool is_found = low > 0 && strcmp(node->by_key[low - 1]->item->string, key) == 0;
    return is_found ? node->by_key[low - 1] : NULL;
}

const struct pf_json *pf_json_find(const struct pf_json *node, const char *path)
{
    while (node && *path) {
        char key[256], *end;
        path += *path == '.';
        if (*path == '[') {
            const unsigned long long i = strtoull(path + 1, &end, 10);
            node = *end == ']' && pf_json_type(node) == PF_JSON_ARRAY
                       ? pf_json_child(node, (size_t)i)
                       : NULL;
            path = *end ? end + 1 : end;
            continue;
        }
        const size_t len = strcspn(path, ".[");
        if (len >= sizeof key) {
            return NULL;
        }
        memcpy(key, path, len);
        key[len] = '\0';
        node = pf_json_get(node, key);
        path += len;
    }
    return node;
}

size_t pf_json_n(const struct pf_json *node)
{
    return node ? node->n_children : 0;
}

const char *pf_json_key(const struct pf_json *node, size_t i)
{
    return node->by_key && i < node->n_children ? node->children[i]->item->string : NULL;
}

const struct pf_json *pf_json_child(const struct pf_json *node, size_t i)
{
    return i < node->n_children ? node->children[i] : NULL;
}

int pf_json_line(const struct pf_json *node)
{
    return node->line;
}

const char *pf_json_name(const struct pf_json *node)
{
    return node->doc->name;
}

const char *pf_json_source(const struct pf_json *node, size_t *len_out)
{
    *len_out = node->len;
    return node->doc->text + node->offset;
}

#define PATH_BYTES 512
#define PATH_RING 8

/* Write the path of a node, leaving the end away where it does not fit; returns its length. */
static size_t write_path(const struct pf_json *node, char *buf)
{
    /* Callers have a node. */
    /* cppcheck-suppress ctunullpointer */
    if (node->parent == PF_JSON_NO_PARENT) {
        return 0;
    }
    const struct pf_json *const parent = &node->doc->nodes[node->parent];
    const size_t n = write_path(parent, buf), left = PATH_BYTES - n;
    const int written = parent->by_key
                            ? snprintf(buf + n, left, "%s%s", n ? "." : "", node->item->string)
                            : snprintf(buf + n, left, "[%zu]", node->position);
    return written < 0 || (size_t)written >= left ? PATH_BYTES - 1 : n + (size_t)written;
}

const char *pf_json_path(const struct pf_json *node)
{
    static _Thread_local char ring[PATH_RING][PATH_BYTES];
    static _Thread_local unsigned next;
    char *const buf = ring[next++ % PATH_RING];

    buf[write_path(node, buf)] = '\0';
    return buf;
}

const char *pf_json_place(const struct pf_json *node)
{
    static _Thread_local char ring[PATH_RING][PATH_BYTES];
    static _Thread_local unsigned next;
    char *const buf = ring[next++ % PATH_RING];

    if (node->doc->is_not_a_file) {
        snprintf(buf, PATH_BYTES, "%s", node->doc->name);
    } else {
        snprintf(buf, PATH_BYTES, "'%s' line %d", node->doc->name, node->line);
    }
    return buf;
}

/* --- values --- */

int pf_json_fail(const struct pf_json *node, const char *format, ...)
{
    char what[512];
    va_list args;

    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    const char *const path = pf_json_path(node);
    const char *const quote = *path ? "'" : "";
    return pf_fail(node->doc->error_code, "%s%s%s %s (%s)", quote, *path ? path : "the top level",
                   quote, what, pf_json_place(node));
}

int pf_json_expect(const struct pf_json *node, enum pf_json_type type)
{
    const enum pf_json_type got = pf_json_type(node);

    if (got != type) {
        return pf_json_fail(node, "must be %s, not %s", pf_json_type_name(type),
                            pf_json_type_name(got));
    }
    return 0;
}

int pf_base_json_must_be_integer(const struct pf_json *node)
{
    const enum pf_json_type got = pf_json_type(node);
    size_t len;
    const char *const source = pf_json_source(node, &len);

    if (got != PF_JSON_NUMBER) {
        return pf_json_fail(node, "must be an integer, not %s", pf_json_type_name(got));
    }
    return pf_json_fail(node, "must be an integer in range, not %.*s", (int)len, source);
}

/* The digits of a number as a string of its own. */
static void copy_number(const struct pf_json *node, char digits[MAX_NUMBER_LEN + 1])
{
    memcpy(digits, node->doc->text + node->offset, node->len);
    digits[node->len] = '\0';
}

int pf_json_as_i64(const struct pf_json *node, int64_t *value_out)
{
    const int64_t limit = INT64_C(1) << 53;
    char digits[MAX_NUMBER_LEN + 1];
    int64_t value;

    if (!cJSON_IsNumber(node->item)) {
        return pf_base_json_must_be_integer(node);
    }
    if (pf_json_is_integer(node)) {
        copy_number(node, digits);
        errno = 0;
        value = strtoll(digits, NULL, 10);
        if (errno == ERANGE || value < -limit || value > limit) {
            return pf_base_json_must_be_integer(node);
        }
    } else {
        const double x = node->item->valuedouble;
        if (x != floor(x) || fabs(x) > (double)limit) {
            return pf_base_json_must_be_integer(node);
        }
        value = (int64_t)x;
    }
    *value_out = value;
    return 0;
}

int pf_json_as_u64(const struct pf_json *node, uint64_t *value_out)
{
    char digits[MAX_NUMBER_LEN + 1];

    if (!pf_json_is_integer(node)) {
        return pf_base_json_must_be_integer(node);
    }
    copy_number(node, digits);
    errno = 0;
    const unsigned long long value = strtoull(digits, NULL, 10);
    if (digits[0] == '-' || errno == ERANGE) {
        return pf_base_json_must_be_integer(node);
    }
    *value_out = value;
    return 0;
}

int pf_json_as_f64(const struct pf_json *node, double *value_out)
{
    PF_TRY(pf_json_expect(node, PF_JSON_NUMBER));
    *value_out = node->item->valuedouble;
    return 0;
}

int pf_json_as_bool(const struct pf_json *node, bool *value_out)
{
    PF_TRY(pf_json_expect(node, PF_JSON_BOOL));
    *value_out = cJSON_IsTrue(node->item);
    return 0;
}

int pf_json_as_string(const struct pf_json *node, const char **value_out)
{
    PF_TRY(pf_json_expect(node, PF_JSON_STRING));
    *value_out = node->item->valuestring;
    return 0;
}
