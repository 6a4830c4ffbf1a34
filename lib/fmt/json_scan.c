/* SPDX-License-Identifier: Apache-2.0 */
#include "json_scan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The length of the UTF-8 sequence at p, 0 if it is not valid. Source: Unicode, table 3-7. */
static size_t utf8_length(const unsigned char *p, const unsigned char *end)
{
    unsigned char low = 0x80, high = 0xbf;
    size_t n = *p < 0x80 ? 1 : *p < 0xc2 ? 0 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : *p < 0xf5 ? 4 : 0;

    if (n == 0 || (size_t)(end - p) < n) {
        return 0;
    }
    low = *p == 0xe0 ? 0xa0 : *p == 0xf0 ? 0x90 : low;
    high = *p == 0xed ? 0x9f : *p == 0xf4 ? 0x8f : high;
    for (size_t i = 1; i < n; i++) {
        if (p[i] < low || p[i] > high) {
            return 0;
        }
        low = 0x80;
        high = 0xbf;
    }
    return n;
}

size_t pf_scan_utf8(const void *bytes, size_t n)
{
    const unsigned char *start = bytes, *p = start, *end = start + n;

    while (p < end) {
        const size_t length = utf8_length(p, end);
        if (length == 0) {
            break;
        }
        p += length;
    }
    return (size_t)(p - start);
}

int pf_scan_init(struct pf_scan *s, const char *path, const char *where, const void *bytes,
                 size_t n_bytes, char *strings)
{
    struct pf_scan scan = {
        .path = path, .where = where, .start = bytes, .at = bytes, .strings = strings};
    const size_t n_valid = pf_scan_utf8(bytes, n_bytes);

    scan.end = scan.start + n_bytes;
    if (n_valid < n_bytes) {
        scan.at += n_valid;
        return PF_SCAN_FAIL(&scan, "not valid UTF-8");
    }
    *s = scan;
    return 0;
}

static void skip_blanks(struct pf_scan *s)
{
    while (s->at < s->end &&
           (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r')) {
        s->at++;
    }
}

bool pf_scan_sees(struct pf_scan *s, char c)
{
    skip_blanks(s);
    return s->at < s->end && *s->at == (unsigned char)c;
}

/* Step over c if it stands here. */
static bool take(struct pf_scan *s, char c)
{
    const bool here = pf_scan_sees(s, c);

    s->at += here;
    return here;
}

int pf_scan_enter(struct pf_scan *s, char open)
{
    if (!pf_scan_sees(s, open)) {
        return PF_SCAN_FAIL(s, open == '{' ? "expected an object" : "expected an array");
    }
    if (s->depth == PF_SCAN_MAX_DEPTH) {
        return PF_SCAN_FAIL(s, "nested too deeply");
    }
    s->at++;
    s->depth++;
    return 0;
}

int pf_scan_item(struct pf_scan *s, char open, size_t *n_items, bool *more_out)
{
    if (take(s, open == '{' ? '}' : ']')) {
        s->depth--;
        *more_out = false;
        return 0;
    }
    if (*n_items > 0 && !take(s, ',')) {
        return PF_SCAN_FAIL(s, open == '{' ? "expected ',' or '}'" : "expected ',' or ']'");
    }
    ++*n_items;
    *more_out = true;
    return 0;
}

static int hex_value(unsigned char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The four digits after \u. */
static int scan_hex(struct pf_scan *s, unsigned *value_out)
{
    unsigned value = 0;

    for (int i = 0; i < 4; i++) {
        const int digit = s->at < s->end ? hex_value(*s->at) : -1;
        if (digit < 0) {
            return PF_SCAN_FAIL(s, "expected four hexadecimal digits after '\\u'");
        }
        value = value << 4 | (unsigned)digit;
        s->at++;
    }
    *value_out = value;
    return 0;
}

static void append_utf8(struct pf_scan *s, unsigned c)
{
    char *to = s->strings + s->n_strings;

    if (c < 0x80) {
        to[0] = (char)c;
        s->n_strings += 1;
    } else if (c < 0x800) {
        to[0] = (char)(0xc0 | c >> 6);
        to[1] = (char)(0x80 | (c & 0x3f));
        s->n_strings += 2;
    } else if (c < 0x10000) {
        to[0] = (char)(0xe0 | c >> 12);
        to[1] = (char)(0x80 | (c >> 6 & 0x3f));
        to[2] = (char)(0x80 | (c & 0x3f));
        s->n_strings += 3;
    } else {
        to[0] = (char)(0xf0 | c >> 18);
        to[1] = (char)(0x80 | (c >> 12 & 0x3f));
        to[2] = (char)(0x80 | (c >> 6 & 0x3f));
        to[3] = (char)(0x80 | (c & 0x3f));
        s->n_strings += 4;
    }
}

/* After \u: one code unit, or the two of a surrogate pair. */
static int scan_unicode_escape(struct pf_scan *s)
{
    unsigned c, low;

    PF_TRY(scan_hex(s, &c));
    if (c >= 0xd800 && c < 0xe000) {
        if (c >= 0xdc00 || s->end - s->at < 2 || s->at[0] != '\\' || s->at[1] != 'u') {
            return PF_SCAN_FAIL(s, "lone surrogate in a string");
        }
        s->at += 2;
        PF_TRY(scan_hex(s, &low));
        if (low < 0xdc00 || low >= 0xe000) {
            return PF_SCAN_FAIL(s, "lone surrogate in a string");
        }
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    append_utf8(s, c);
    return 0;
}

/* After the backslash. */
static int scan_escape(struct pf_scan *s)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char *name = NULL;

    if (s->at < s->end && *s->at != '\0') {
        name = strchr(names, *s->at);
    }
    if (name) {
        s->at++;
        append_utf8(s, (unsigned char)values[name - names]);
        return 0;
    }
    if (s->at < s->end && *s->at == 'u') {
        s->at++;
        return scan_unicode_escape(s);
    }
    return PF_SCAN_FAIL(s, "unknown escape in a string");
}

int pf_scan_string(struct pf_scan *s, struct pf_scan_text *text_out)
{
    const size_t first = s->n_strings;

    if (!take(s, '"')) {
        return PF_SCAN_FAIL(s, "expected a string");
    }
    while (s->at < s->end && *s->at != '"') {
        if (*s->at < 0x20) {
            return PF_SCAN_FAIL(s, "control character in a string");
        }
        if (*s->at != '\\') {
            s->strings[s->n_strings++] = (char)*s->at++;
            continue;
        }
        s->at++;
        PF_TRY(scan_escape(s));
    }
    if (s->at == s->end) {
        return PF_SCAN_FAIL(s, "unfinished string");
    }
    s->at++;
    *text_out = (struct pf_scan_text){s->strings + first, s->n_strings - first};
    s->strings[s->n_strings++] = '\0';
    return 0;
}

int pf_scan_key(struct pf_scan *s, struct pf_scan_text *key_out)
{
    PF_TRY(pf_scan_string(s, key_out));
    if (!take(s, ':')) {
        return PF_SCAN_FAIL(s, "expected ':'");
    }
    return 0;
}

static bool is_digit(const struct pf_scan *s)
{
    return s->at < s->end && *s->at >= '0' && *s->at <= '9';
}

int pf_scan_u64(struct pf_scan *s, uint64_t *value_out)
{
    uint64_t value = 0;

    skip_blanks(s);
    if (!is_digit(s)) {
        return PF_SCAN_FAIL(s, "expected a non-negative integer");
    }
    if (*s->at == '0' && s->end - s->at > 1 && s->at[1] >= '0' && s->at[1] <= '9') {
        return PF_SCAN_FAIL(s, "leading zero in a number");
    }
    for (; is_digit(s); s->at++) {
        if (__builtin_mul_overflow(value, (uint64_t)10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*s->at - '0'), &value)) {
            return PF_SCAN_FAIL(s, "integer of 2^64 or more");
        }
    }
    if (s->at < s->end && (*s->at == '.' || *s->at == 'e' || *s->at == 'E')) {
        return PF_SCAN_FAIL(s, "expected an integer");
    }
    *value_out = value;
    return 0;
}

/*
 * A number in parts: its leading significant digits as an integer, and the power of ten that makes
 * up for the point, the digits left out and the exponent. Enough to tell whether a double can
 * represent it, whatever its length and whatever the locale calls a decimal point.
 */
struct decimal {
    char digits[40];
    int n_digits;
    int64_t exponent;
};

static int scan_digits(struct pf_scan *s, struct decimal *d, bool after_point)
{
    if (!is_digit(s)) {
        return PF_SCAN_FAIL(s, "expected a digit");
    }
    for (; is_digit(s); s->at++) {
        const bool significant = d->n_digits > 0 || *s->at != '0';
        if (significant && d->n_digits < (int)sizeof d->digits) {
            d->digits[d->n_digits++] = (char)*s->at;
            d->exponent -= after_point;
        } else if (significant) {
            d->exponent += !after_point;
        } else {
            d->exponent -= after_point;
        }
    }
    return 0;
}

static int scan_exponent(struct pf_scan *s, struct decimal *d)
{
    const int64_t limit = 1000000000; /* beyond what the digits of a header can make up for */
    int64_t value = 0;
    bool negative = false;

    if (s->at < s->end && (*s->at == '+' || *s->at == '-')) {
        negative = *s->at++ == '-';
    }
    if (!is_digit(s)) {
        return PF_SCAN_FAIL(s, "expected a digit");
    }
    for (; is_digit(s); s->at++) {
        value = value < limit ? value * 10 + (*s->at - '0') : limit;
    }
    d->exponent += negative ? -value : value;
    return 0;
}

static bool is_representable(const struct decimal *d)
{
    char text[sizeof d->digits + 32];

    if (d->n_digits == 0) {
        return true;
    }
    snprintf(text, sizeof text, "%.*se%lld", d->n_digits, d->digits, (long long)d->exponent);
    return isfinite(strtod(text, NULL));
}

static int skip_number(struct pf_scan *s)
{
    struct decimal d = {.n_digits = 0};

    s->at += *s->at == '-';
    if (is_digit(s) && *s->at == '0') {
        s->at++;
        if (is_digit(s)) {
            return PF_SCAN_FAIL(s, "leading zero in a number");
        }
    } else {
        PF_TRY(scan_digits(s, &d, false));
    }
    if (s->at < s->end && *s->at == '.') {
        s->at++;
        PF_TRY(scan_digits(s, &d, true));
    }
    if (s->at < s->end && (*s->at == 'e' || *s->at == 'E')) {
        s->at++;
        PF_TRY(scan_exponent(s, &d));
    }
    return is_representable(&d) ? 0 : PF_SCAN_FAIL(s, "number out of range");
}

/* Strings that are dropped give their room back. */
static int skip_string(struct pf_scan *s, bool is_key)
{
    const size_t n_strings = s->n_strings;
    struct pf_scan_text text;

    PF_TRY(is_key ? pf_scan_key(s, &text) : pf_scan_string(s, &text));
    s->n_strings = n_strings;
    return 0;
}

/* Recursion ends at PF_SCAN_MAX_DEPTH. */
static int skip_items(struct pf_scan *s, char open)
{
    size_t n_items = 0;
    bool more;

    PF_TRY(pf_scan_enter(s, open));
    for (;;) {
        PF_TRY(pf_scan_item(s, open, &n_items, &more));
        if (!more) {
            return 0;
        }
        if (open == '{') {
            PF_TRY(skip_string(s, true));
        }
        PF_TRY(pf_scan_skip(s));
    }
}

static bool take_word(struct pf_scan *s, const char *word)
{
    const size_t n = strlen(word);

    if ((size_t)(s->end - s->at) < n || memcmp(s->at, word, n) != 0) {
        return false;
    }
    s->at += n;
    return true;
}

int pf_scan_skip(struct pf_scan *s)
{
    skip_blanks(s);
    if (s->at == s->end) {
        return PF_SCAN_FAIL(s, "expected a value");
    }
    if (*s->at == '{' || *s->at == '[') {
        return skip_items(s, (char)*s->at);
    }
    if (*s->at == '"') {
        return skip_string(s, false);
    }
    if (*s->at == '-' || is_digit(s)) {
        return skip_number(s);
    }
    if (take_word(s, "null") || take_word(s, "true") || take_word(s, "false")) {
        return 0;
    }
    return PF_SCAN_FAIL(s, "expected a value");
}

int pf_scan_finish(struct pf_scan *s)
{
    skip_blanks(s);
    return s->at == s->end ? 0 : PF_SCAN_FAIL(s, "text after the end of the value");
}
