/* SPDX-License-Identifier: Apache-2.0 */
/* The grammar of RFC 8259, byte by byte: what is wrong is named by line and column, what is right
 * becomes a node for each value, in the order of the text. */
#include "base_internal.h"
#include "json_internal.h"

#include <pf/error.h>
#include <pf/mem.h>
#include <pf/str.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct scanner {
    struct pf_json_doc *doc;
    size_t at;
    int line;
    int depth, max_depth;
};

int pf_base_json_bad_at(const struct pf_json_doc *doc, size_t at, const char *format, ...)
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
        return pf_base_json_bad_at(s->doc, s->at, "expected %s, not the end of the text", what);
    }
    const unsigned char c = peek(s);
    if (c > 0x20 && c < 0x7f) {
        return pf_base_json_bad_at(s->doc, s->at, "expected %s, not '%c'", what, c);
    }
    return pf_base_json_bad_at(s->doc, s->at, "expected %s, not byte 0x%02x", what, c);
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
static int hex4(const struct pf_json_doc *doc, size_t at)
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
            return pf_base_json_bad_at(s->doc, start, "unknown escape");
        }
        s->at++;
        return 0;
    }
    const int unit = hex4(s->doc, s->at + 1);
    s->at += 5;
    if (unit < 0) {
        return pf_base_json_bad_at(s->doc, start, "\\u needs four hexadecimal digits");
    }
    if (unit == 0) {
        return pf_base_json_bad_at(s->doc, start, "\\u0000 in a string");
    }
    if (unit < 0xd800 || unit > 0xdfff) {
        return 0;
    }
    const bool has_second = unit < 0xdc00 && s->at + 1 < s->doc->len &&
                            s->doc->text[s->at] == '\\' && s->doc->text[s->at + 1] == 'u';
    const int second = has_second ? hex4(s->doc, s->at + 2) : -1;
    if (second < 0xdc00 || second > 0xdfff) {
        return pf_base_json_bad_at(s->doc, start, "half of a surrogate pair");
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
            return pf_base_json_bad_at(s->doc, start, "string without an end");
        }
        if (c < 0x20) {
            return pf_base_json_bad_at(s->doc, s->at, "control character 0x%02x in a string", c);
        }
        if (c == '\\') {
            PF_TRY(scan_escape(s));
            continue;
        }
        const size_t n =
            pf_utf8_length((const unsigned char *)s->doc->text + s->at, s->doc->len - s->at);
        if (n == 0) {
            return pf_base_json_bad_at(s->doc, s->at, "invalid UTF-8");
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
        return pf_base_json_bad_at(s->doc, start, "number with a leading zero");
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
        return pf_base_json_bad_at(s->doc, start, "number of more than %d characters",
                                   MAX_NUMBER_LEN);
    }
    memcpy(digits, s->doc->text + start, s->at - start);
    return isfinite(pf_base_strtod(digits, NULL))
               ? 0
               : pf_base_json_bad_at(s->doc, start, "number out of the range of a double");
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

/* There is room: make_room. */
static int add_node(struct pf_json_doc *doc, const struct pf_json *node)
{
    if (doc->n_nodes == doc->capacity) {
        return pf_fail(PF_EBUG, "a text has more values than were counted");
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
        return pf_base_json_bad_at(s->doc, s->at, "nested more than %d deep", s->max_depth);
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

/* The end of a string that begins at text[i], or of the text. */
static size_t skip_string(const char *text, size_t len, size_t i)
{
    for (i++; i < len && text[i] != '"'; i++) {
        i += text[i] == '\\';
    }
    return i;
}

/* No text has more values than it has commas and opening brackets, and one. */
static size_t count_values(const char *text, size_t len)
{
    size_t n = 1;

    for (size_t i = 0; i < len; i++) {
        if (text[i] == '"') {
            i = skip_string(text, len, i);
        } else {
            n += text[i] == ',' || text[i] == '{' || text[i] == '[';
        }
    }
    return n;
}

/* Room for all of them at once: of a large text, growing would copy them again and again. */
static int make_room(struct pf_json_doc *doc)
{
    doc->capacity = count_values(doc->text, doc->len);
    doc->nodes = pf_calloc_array(doc->capacity, sizeof *doc->nodes);
    return doc->nodes ? 0 : PF_ENOMEM;
}

int pf_base_json_scan(struct pf_json_doc *doc, int max_depth)
{
    struct scanner s = {.doc = doc, .line = 1, .max_depth = max_depth};

    PF_TRY(make_room(doc));
    skip_blanks(&s);
    const struct pf_json root = {.parent = PF_JSON_NO_PARENT, .key_offset = s.at, .line = s.line};
    PF_TRY(scan_value(&s, root));
    skip_blanks(&s);
    return s.at == doc->len ? 0 : expected(&s, "the end of the text");
}
