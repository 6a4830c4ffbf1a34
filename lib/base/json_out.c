/* SPDX-License-Identifier: Apache-2.0 */
/* Writing JSON, piece by piece, with every number read back to the same bits. */
#include <pf/json.h>

#include <pf/error.h>
#include <pf/mem.h>

#include "base_internal.h"

#include <math.h>
#include <string.h>

/* Strings keep their blanks; what stands between tokens goes. */
char *pf_json_print(const struct pf_json *node)
{
    size_t len, n = 0;
    const char *const source = pf_json_source(node, &len);
    char *const text = pf_alloc(len + 1);
    bool in_string = false;

    for (size_t i = 0; text && i < len; i++) {
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
    size_t len;

    if (type != PF_JSON_ARRAY && type != PF_JSON_OBJECT) {
        begin_value(out);
        const char *const source = pf_json_source(node, &len);
        pf_str_append_bytes(out->to, source, len);
        return;
    }
    begin_level(out, type == PF_JSON_OBJECT);
    for (size_t i = 0; i < pf_json_n(node); i++) {
        if (type == PF_JSON_OBJECT) {
            pf_json_out_key(out, pf_json_key(node, i));
        }
        pf_json_out_node(out, pf_json_child(node, i));
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
