/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one file that knows cJSON. cJSON decodes strings and numbers; a scanner of our own goes over
 * the text first, because cJSON takes more than JSON (leading zeros, bad UTF-8, "\u0000") and keeps
 * neither lines nor columns. The scanner's nodes and cJSON's items come in the same order, which
 * ties them together.
 */
#include <pf/json.h>

#include <pf/error.h>
#include <pf/file.h>
#include <pf/mem.h>

#include "base_internal.h"

#include <cjson/cJSON.h>

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_MAX_DEPTH 128
#define DEFAULT_MAX_BYTES ((size_t)256 << 20)
#define MAX_NUMBER_LEN 63 /* what cJSON's buffer holds */
#define NO_PARENT SIZE_MAX

struct pf_json {
    struct doc *doc;
    const cJSON *item;
    size_t parent, position; /* node number, and which child of it this is */
    size_t offset, len;      /* of the value in the text */
    size_t key_offset;       /* of a member's key; else offset */
    size_t n_children;
    const struct pf_json **children; /* in the order of the text */
    const struct pf_json **by_key;   /* members sorted by key, then by position */
    int line;
};

struct doc {
    struct pf_json *nodes; /* in the order of the text; [0] is the root */
    size_t n_nodes, capacity;
    const struct pf_json **links; /* what children and by_key point into */
    cJSON *root;
    char *text, *name;
    size_t len;
    int error_code;
    bool is_not_a_file;
};

static void doc_free(struct doc *doc)
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

/* --- the scanner --- */

struct scanner {
    struct doc *doc;
    size_t at;
    int line;
    int depth, max_depth;
};

static int bad_at(const struct doc *doc, size_t at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static int bad_at(const struct doc *doc, size_t at, const char *format, ...)
{
    char what[160];
    int line = 1, column = 1;
    va_list args;

    for (size_t i = 0; i < at && i < doc->len; i++) {
        if (doc->text[i] == '\n') {
            line++;
            column = 1;
        } else {
            column += (doc->text[i] & 0xc0) != 0x80; /* count characters, not bytes */
        }
    }
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return pf_fail(doc->error_code, "bad JSON in '%s' at line %d column %d: %s", doc->name, line,
                   column, what);
}

/* The next byte, 0 at the end. A NUL in the text is an error wherever it stands, as 0 is. */
static unsigned char peek(const struct scanner *s)
{
    return s->at < s->doc->len ? (unsigned char)s->doc->text[s->at] : 0;
}

static int expected(const struct scanner *s, const char *what)
{
    if (s->at >= s->doc->len) {
        return bad_at(s->doc, s->at, "expected %s, not the end of the text", what);
    }
    const unsigned char c = peek(s);
    if (c > 0x20 && c < 0x7f) {
        return bad_at(s->doc, s->at, "expected %s, not '%c'", what, c);
    }
    return bad_at(s->doc, s->at, "expected %s, not byte 0x%02x", what, c);
}

static void skip_blanks(struct scanner *s)
{
    for (;; s->at++) {
        const unsigned char c = peek(s);
        if (c == '\n') {
            s->line++;
        } else if (c != ' ' && c != '\t' && c != '\r') {
            return;
        }
    }
}

/* Four hexadecimal digits at an offset, or -1. */
static int hex4(const struct doc *doc, size_t at)
{
    int value = 0;

    for (size_t i = at; i < at + 4; i++) {
        const char c = i < doc->len ? doc->text[i] : 0;
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) {
            return -1;
        }
        value = value * 16 + digit;
    }
    return value;
}

static int scan_escape(struct scanner *s)
{
    const size_t start = s->at++;
    const unsigned char c = peek(s);

    if (c != 'u') {
        if (c == 0 || !strchr("\"\\/bfnrt", c)) {
            return bad_at(s->doc, start, "unknown escape");
        }
        s->at++;
        return 0;
    }
    const int unit = hex4(s->doc, s->at + 1);
    s->at += 5;
    if (unit < 0) {
        return bad_at(s->doc, start, "\\u needs four hexadecimal digits");
    }
    if (unit == 0) {
        return bad_at(s->doc, start, "\\u0000 in a string");
    }
    if (unit < 0xd800 || unit > 0xdfff) {
        return 0;
    }
    const bool has_second = unit < 0xdc00 && s->at + 1 < s->doc->len &&
                            s->doc->text[s->at] == '\\' && s->doc->text[s->at + 1] == 'u';
    const int second = has_second ? hex4(s->doc, s->at + 2) : -1;
    if (second < 0xdc00 || second > 0xdfff) {
        return bad_at(s->doc, start, "half of a surrogate pair");
    }
    s->at += 6;
    return 0;
}

static int scan_string(struct scanner *s)
{
    const size_t start = s->at++;

    while (peek(s) != '"') {
        const unsigned char c = peek(s);
        if (s->at >= s->doc->len) {
            return bad_at(s->doc, start, "string without an end");
        }
        if (c < 0x20) {
            return bad_at(s->doc, s->at, "control character 0x%02x in a string", c);
        }
        if (c == '\\') {
            PF_TRY(scan_escape(s));
            continue;
        }
        const size_t n =
            pf_utf8_length((const unsigned char *)s->doc->text + s->at, s->doc->len - s->at);
        if (n == 0) {
            return bad_at(s->doc, s->at, "invalid UTF-8");
        }
        s->at += n;
    }
    s->at++;
    return 0;
}

static size_t skip_digits(struct scanner *s)
{
    const size_t start = s->at;

    while (peek(s) >= '0' && peek(s) <= '9') {
        s->at++;
    }
    return s->at - start;
}

static int scan_number(struct scanner *s)
{
    const size_t start = s->at;

    s->at += peek(s) == '-';
    const bool leading_zero = peek(s) == '0';
    const size_t n_whole = skip_digits(s);
    if (n_whole == 0) {
        return expected(s, "a digit");
    }
    if (leading_zero && n_whole > 1) {
        return bad_at(s->doc, start, "number with a leading zero");
    }
    if (peek(s) == '.') {
        s->at++;
        if (skip_digits(s) == 0) {
            return expected(s, "a digit");
        }
    }
    if (peek(s) == 'e' || peek(s) == 'E') {
        s->at++;
        s->at += peek(s) == '-' || peek(s) == '+';
        if (skip_digits(s) == 0) {
            return expected(s, "a digit");
        }
    }
    char digits[MAX_NUMBER_LEN + 1] = {0};
    if (s->at - start > MAX_NUMBER_LEN) {
        return bad_at(s->doc, start, "number of more than %d characters", MAX_NUMBER_LEN);
    }
    memcpy(digits, s->doc->text + start, s->at - start);
    return isfinite(pf_base_strtod(digits, NULL))
               ? 0
               : bad_at(s->doc, start, "number out of the range of a double");
}

static int scan_word(struct scanner *s, const char *word)
{
    const size_t len = strlen(word);

    if (s->doc->len - s->at < len || memcmp(s->doc->text + s->at, word, len) != 0) {
        return expected(s, "a value");
    }
    s->at += len;
    return 0;
}

static int add_node(struct doc *doc, const struct pf_json *node)
{
    if (doc->n_nodes == doc->capacity) {
        const size_t capacity = doc->capacity ? 2 * doc->capacity : 64;
        struct pf_json *const grown = pf_realloc_array(doc->nodes, capacity, sizeof *grown);
        if (!grown) {
            return PF_ENOMEM;
        }
        doc->nodes = grown;
        doc->capacity = capacity;
    }
    doc->nodes[doc->n_nodes++] = *node;
    return 0;
}

static int scan_value(struct scanner *s, struct pf_json node);

/* Members up to the closing character; `self` is the container's node number. */
static int scan_members(struct scanner *s, size_t self, char closer)
{
    const bool is_object = closer == '}';
    size_t n = 0;

    s->at++;
    skip_blanks(s);
    if (peek(s) == closer) {
        s->at++;
        return 0;
    }
    for (;; n++) {
        struct pf_json child = {.parent = self, .position = n, .key_offset = s->at};
        child.line = s->line;
        if (is_object) {
            if (peek(s) != '"') {
                return expected(s, "a key in double quotes");
            }
            PF_TRY(scan_string(s));
            skip_blanks(s);
            if (peek(s) != ':') {
                return expected(s, "':'");
            }
            s->at++;
            skip_blanks(s);
        }
        PF_TRY(scan_value(s, child));
        skip_blanks(s);
        if (peek(s) == closer) {
            s->at++;
            s->doc->nodes[self].n_children = n + 1;
            return 0;
        }
        if (peek(s) != ',') {
            return expected(s, is_object ? "',' or '}'" : "',' or ']'");
        }
        s->at++;
        skip_blanks(s);
    }
}

static int scan_container(struct scanner *s, size_t self, char closer)
{
    if (++s->depth > s->max_depth) {
        return bad_at(s->doc, s->at, "nested more than %d deep", s->max_depth);
    }
    PF_TRY(scan_members(s, self, closer));
    s->depth--;
    return 0;
}

static int scan_value(struct scanner *s, struct pf_json node)
{
    const size_t self = s->doc->n_nodes;
    const unsigned char c = peek(s);

    node.doc = s->doc;
    node.offset = s->at;
    PF_TRY(add_node(s->doc, &node));
    switch (c) {
    case '{':
        PF_TRY(scan_container(s, self, '}'));
        break;
    case '[':
        PF_TRY(scan_container(s, self, ']'));
        break;
    case '"':
        PF_TRY(scan_string(s));
        break;
    case 't':
        PF_TRY(scan_word(s, "true"));
        break;
    case 'f':
        PF_TRY(scan_word(s, "false"));
        break;
    case 'n':
        PF_TRY(scan_word(s, "null"));
        break;
    default:
        if (c != '-' && (c < '0' || c > '9')) {
            return expected(s, "a value");
        }
        PF_TRY(scan_number(s));
    }
    s->doc->nodes[self].len = s->at - s->doc->nodes[self].offset;
    return 0;
}

static int scan_document(struct doc *doc, int max_depth)
{
    struct scanner s = {.doc = doc, .line = 1, .max_depth = max_depth};

    skip_blanks(&s);
    const struct pf_json root = {.parent = NO_PARENT, .key_offset = s.at, .line = s.line};
    PF_TRY(scan_value(&s, root));
    skip_blanks(&s);
    return s.at == doc->len ? 0 : expected(&s, "the end of the text");
}

/* --- the tree --- */

/* Give each node its item; returns how many nodes the item and what is below it took. */
static size_t pair_items(struct doc *doc, size_t number, const cJSON *item)
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

static int link_children(struct doc *doc)
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

static int refuse_duplicates(const struct doc *doc, const struct pf_json *object)
{
    const struct pf_json *first = NULL;

    for (size_t i = 1; i < object->n_children; i++) {
        const struct pf_json *const member = object->by_key[i];
        if (strcmp(object->by_key[i - 1]->item->string, member->item->string) == 0 &&
            (!first || member->position < first->position)) {
            first = member;
        }
    }
    return first ? bad_at(doc, first->key_offset, "key '%s' stands twice", first->item->string) : 0;
}

static int sort_members(struct doc *doc, bool allow_duplicates)
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

static int build_tree(struct doc *doc, const struct pf_json_options *options)
{
    const int max_depth = options->max_depth ? options->max_depth : DEFAULT_MAX_DEPTH;

    PF_ASSERT(max_depth > 0 && max_depth <= 900);
    PF_TRY(scan_document(doc, max_depth));
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
    struct doc *const doc = pf_alloc(sizeof *doc);
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
    if (node->parent == NO_PARENT) {
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

static int must_be_integer(const struct pf_json *node)
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
        return must_be_integer(node);
    }
    if (pf_json_is_integer(node)) {
        copy_number(node, digits);
        errno = 0;
        value = strtoll(digits, NULL, 10);
        if (errno == ERANGE || value < -limit || value > limit) {
            return must_be_integer(node);
        }
    } else {
        const double x = node->item->valuedouble;
        if (x != floor(x) || fabs(x) > (double)limit) {
            return must_be_integer(node);
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
        return must_be_integer(node);
    }
    copy_number(node, digits);
    errno = 0;
    const unsigned long long value = strtoull(digits, NULL, 10);
    if (digits[0] == '-' || errno == ERANGE) {
        return must_be_integer(node);
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

/* The member if it is there and not null. Asking a non-object for members is refused. */
static int find_member(const struct pf_json *object, const char *key,
                       const struct pf_json **member_out)
{
    PF_TRY(pf_json_expect(object, PF_JSON_OBJECT));
    const struct pf_json *const member = pf_json_get(object, key);
    *member_out = member && pf_json_type(member) != PF_JSON_NULL ? member : NULL;
    return 0;
}

int pf_json_i64(const struct pf_json *object, const char *key, int64_t by_default, int64_t *out)
{
    const struct pf_json *member;
    int64_t value = by_default;

    PF_TRY(find_member(object, key, &member));
    if (member) {
        PF_TRY(pf_json_as_i64(member, &value));
    }
    *out = value;
    return 0;
}

int pf_json_int(const struct pf_json *object, const char *key, int by_default, int *out)
{
    const struct pf_json *member;
    int64_t value = by_default;

    PF_TRY(find_member(object, key, &member));
    if (member) {
        PF_TRY(pf_json_as_i64(member, &value));
        if (value != (int)value) {
            return must_be_integer(member);
        }
    }
    *out = (int)value;
    return 0;
}

int pf_json_f64(const struct pf_json *object, const char *key, double by_default, double *out)
{
    const struct pf_json *member;
    double value = by_default;

    PF_TRY(find_member(object, key, &member));
    if (member) {
        PF_TRY(pf_json_as_f64(member, &value));
    }
    *out = value;
    return 0;
}

int pf_json_bool(const struct pf_json *object, const char *key, bool by_default, bool *out)
{
    const struct pf_json *member;
    bool value = by_default;

    PF_TRY(find_member(object, key, &member));
    if (member) {
        PF_TRY(pf_json_as_bool(member, &value));
    }
    *out = value;
    return 0;
}

int pf_json_string(const struct pf_json *object, const char *key, const char *by_default,
                   const char **out)
{
    const struct pf_json *member;
    const char *value = by_default;

    PF_TRY(find_member(object, key, &member));
    if (member) {
        PF_TRY(pf_json_as_string(member, &value));
    }
    *out = value;
    return 0;
}

int pf_json_need(const struct pf_json *object, const char *key, const struct pf_json **child_out)
{
    const struct pf_json *member;

    PF_TRY(find_member(object, key, &member));
    if (!member) {
        return pf_json_fail(object, "has no '%s'", key);
    }
    *child_out = member;
    return 0;
}

int pf_json_need_i64(const struct pf_json *object, const char *key, int64_t *out)
{
    const struct pf_json *member;

    PF_TRY(pf_json_need(object, key, &member));
    return pf_json_as_i64(member, out);
}

int pf_json_need_f64(const struct pf_json *object, const char *key, double *out)
{
    const struct pf_json *member;

    PF_TRY(pf_json_need(object, key, &member));
    return pf_json_as_f64(member, out);
}

int pf_json_need_bool(const struct pf_json *object, const char *key, bool *out)
{
    const struct pf_json *member;

    PF_TRY(pf_json_need(object, key, &member));
    return pf_json_as_bool(member, out);
}

int pf_json_need_string(const struct pf_json *object, const char *key, const char **out)
{
    const struct pf_json *member;

    PF_TRY(pf_json_need(object, key, &member));
    return pf_json_as_string(member, out);
}

int pf_json_refuse_unknown(const struct pf_json *object, const char *const *known, size_t n)
{
    PF_TRY(pf_json_expect(object, PF_JSON_OBJECT));
    for (size_t i = 0; i < pf_json_n(object); i++) {
        const char *const key = pf_json_key(object, i);
        size_t k = 0;
        while (k < n && strcmp(known[k], key) != 0) {
            k++;
        }
        if (k < n) {
            continue;
        }
        const char *const nearest = pf_nearest(key, known, n);
        return nearest ? pf_json_fail(pf_json_child(object, i), "is not known; did you mean '%s'?",
                                      nearest)
                       : pf_json_fail(pf_json_child(object, i), "is not known");
    }
    return 0;
}

/* --- writing --- */

/* Strings keep their blanks; what stands between tokens goes. */
char *pf_json_print(const struct pf_json *node)
{
    const char *const source = node->doc->text + node->offset;
    char *const text = pf_alloc(node->len + 1);
    size_t n = 0;
    bool in_string = false;

    for (size_t i = 0; text && i < node->len; i++) {
        const char c = source[i];
        if (in_string && c == '\\') {
            text[n++] = source[i++];
        } else if (c == '"') {
            in_string = !in_string;
        } else if (!in_string && (c == ' ' || c == '\t' || c == '\n' || c == '\r')) {
            continue;
        }
        text[n++] = source[i];
    }
    return text;
}

void pf_json_out_init(struct pf_json_out *out, struct pf_str *to, int indent)
{
    memset(out, 0, sizeof *out);
    out->to = to;
    out->indent = indent;
}

static void new_line(struct pf_json_out *out)
{
    if (out->indent > 0) {
        pf_str_appendf(out->to, "\n%*s", out->indent * out->depth, "");
    }
}

/* A comma and a new line where one belongs before the next key, or value that has none. */
static void separate(struct pf_json_out *out)
{
    if (out->after_key || out->depth == 0) {
        out->after_key = false;
        return;
    }
    bool *const has_items = &out->has_items[out->depth - 1];
    if (*has_items) {
        pf_str_append_char(out->to, ',');
    }
    *has_items = true;
    new_line(out);
}

/* A value may stand at the top, in an array, or after a key. */
static void begin_value(struct pf_json_out *out)
{
    PF_ASSERT(out->depth == 0 || !out->is_object[out->depth - 1] || out->after_key);
    separate(out);
}

static void begin_level(struct pf_json_out *out, bool is_object)
{
    begin_value(out);
    PF_ASSERT(out->depth < PF_JSON_OUT_MAX_DEPTH);
    pf_str_append_char(out->to, is_object ? '{' : '[');
    out->is_object[out->depth] = is_object;
    out->has_items[out->depth] = false;
    out->depth++;
}

static void end_level(struct pf_json_out *out, bool is_object)
{
    PF_ASSERT(out->depth > 0 && out->is_object[out->depth - 1] == is_object && !out->after_key);
    out->depth--;
    if (out->has_items[out->depth]) {
        new_line(out);
    }
    pf_str_append_char(out->to, is_object ? '}' : ']');
}

void pf_json_out_object_begin(struct pf_json_out *out)
{
    begin_level(out, true);
}

void pf_json_out_object_end(struct pf_json_out *out)
{
    end_level(out, true);
}

void pf_json_out_array_begin(struct pf_json_out *out)
{
    begin_level(out, false);
}

void pf_json_out_array_end(struct pf_json_out *out)
{
    end_level(out, false);
}

static void append_control(struct pf_str *to, unsigned char c)
{
    static const char names[] = "\b\f\n\r\t", letters[] = "bfnrt";
    const char *const name = memchr(names, c, sizeof names - 1);

    if (name) {
        pf_str_appendf(to, "\\%c", letters[name - names]);
    } else {
        pf_str_appendf(to, "\\u%04x", c);
    }
}

static void append_quoted(struct pf_str *to, const char *text)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t left = strlen(text);

    pf_str_append_char(to, '"');
    while (left > 0) {
        const size_t n = pf_utf8_length(p, left);
        if (n == 0) {
            pf_str_append(to, "\xef\xbf\xbd"); /* U+FFFD, the replacement character */
        } else if (*p < 0x20 || *p == 0x7f) {
            append_control(to, *p);
        } else {
            if (*p == '"' || *p == '\\') {
                pf_str_append_char(to, '\\');
            }
            pf_str_append_bytes(to, p, n);
        }
        p += n ? n : 1;
        left -= n ? n : 1;
    }
    pf_str_append_char(to, '"');
}

void pf_json_out_key(struct pf_json_out *out, const char *key)
{
    PF_ASSERT(out->depth > 0 && out->is_object[out->depth - 1] && !out->after_key);
    separate(out);
    append_quoted(out->to, key);
    pf_str_append(out->to, out->indent > 0 ? ": " : ":");
    out->after_key = true;
}

void pf_json_out_string(struct pf_json_out *out, const char *text)
{
    if (!text) {
        pf_json_out_null(out);
        return;
    }
    begin_value(out);
    append_quoted(out->to, text);
}

void pf_json_out_i64(struct pf_json_out *out, int64_t value)
{
    begin_value(out);
    pf_str_appendf(out->to, "%lld", (long long)value);
}

void pf_json_out_u64(struct pf_json_out *out, uint64_t value)
{
    begin_value(out);
    pf_str_appendf(out->to, "%llu", (unsigned long long)value);
}

void pf_json_out_f64(struct pf_json_out *out, double value)
{
    char digits[32] = "null";

    if (isfinite(value)) {
        pf_base_format_f64(value, digits, sizeof digits);
    }
    pf_json_out_raw(out, digits);
}

void pf_json_out_f32(struct pf_json_out *out, float value)
{
    char digits[32] = "null";

    if (isfinite(value)) {
        pf_base_format_f32(value, digits, sizeof digits);
    }
    pf_json_out_raw(out, digits);
}

void pf_json_out_bool(struct pf_json_out *out, bool value)
{
    pf_json_out_raw(out, value ? "true" : "false");
}

void pf_json_out_null(struct pf_json_out *out)
{
    pf_json_out_raw(out, "null");
}

void pf_json_out_raw(struct pf_json_out *out, const char *json)
{
    begin_value(out);
    pf_str_append(out->to, json);
}

void pf_json_out_node(struct pf_json_out *out, const struct pf_json *node)
{
    const enum pf_json_type type = pf_json_type(node);

    if (type != PF_JSON_ARRAY && type != PF_JSON_OBJECT) {
        begin_value(out);
        pf_str_append_bytes(out->to, node->doc->text + node->offset, node->len);
        return;
    }
    begin_level(out, type == PF_JSON_OBJECT);
    for (size_t i = 0; i < node->n_children; i++) {
        if (type == PF_JSON_OBJECT) {
            pf_json_out_key(out, pf_json_key(node, i));
        }
        pf_json_out_node(out, node->children[i]);
    }
    end_level(out, type == PF_JSON_OBJECT);
}

void pf_json_out_member_string(struct pf_json_out *out, const char *key, const char *text)
{
    pf_json_out_key(out, key);
    pf_json_out_string(out, text);
}

void pf_json_out_member_i64(struct pf_json_out *out, const char *key, int64_t value)
{
    pf_json_out_key(out, key);
    pf_json_out_i64(out, value);
}

void pf_json_out_member_f64(struct pf_json_out *out, const char *key, double value)
{
    pf_json_out_key(out, key);
    pf_json_out_f64(out, value);
}

void pf_json_out_member_f32(struct pf_json_out *out, const char *key, float value)
{
    pf_json_out_key(out, key);
    pf_json_out_f32(out, value);
}

void pf_json_out_member_bool(struct pf_json_out *out, const char *key, bool value)
{
    pf_json_out_key(out, key);
    pf_json_out_bool(out, value);
}

int pf_json_out_finish(struct pf_json_out *out)
{
    PF_ASSERT(out->depth == 0 && !out->after_key);
    return pf_str_error(out->to);
}
