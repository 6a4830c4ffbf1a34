/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/str.h>

#include <pf/error.h>
#include <pf/mem.h>

#include "base_internal.h"

#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <fnmatch.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- growing string --- */

static char empty_text[1];

void pf_str_init(struct pf_str *s)
{
    *s = (struct pf_str){.text = empty_text};
}

/* Room for n more bytes and the NUL. */
static int reserve(struct pf_str *s, size_t n)
{
    size_t need, capacity = s->capacity ? s->capacity : 64;

    if (!pf_add_size(s->len + 1, n, &need)) {
        return s->err = pf_fail(PF_ENOMEM, "out of memory: a string of %zu bytes", n);
    }
    if (need <= s->capacity) {
        return 0;
    }
    while (capacity < need) {
        capacity = capacity > SIZE_MAX / 2 ? need : 2 * capacity;
    }
    char *const grown = pf_realloc_array(s->capacity ? s->text : NULL, capacity, 1);
    if (!grown) {
        return s->err = PF_ENOMEM;
    }
    s->text = grown;
    s->capacity = capacity;
    return 0;
}

int pf_str_append(struct pf_str *s, const char *text)
{
    return pf_str_append_bytes(s, text, strlen(text));
}

int pf_str_append_bytes(struct pf_str *s, const void *bytes, size_t n)
{
    PF_TRY(reserve(s, n));
    if (n > 0) {
        memcpy(s->text + s->len, bytes, n);
    }
    s->len += n;
    s->text[s->len] = '\0';
    return 0;
}

int pf_str_append_char(struct pf_str *s, char c)
{
    return pf_str_append_bytes(s, &c, 1);
}

int pf_str_appendf(struct pf_str *s, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    const int err = pf_str_vappendf(s, format, args);
    va_end(args);
    return err;
}

int pf_str_vappendf(struct pf_str *s, const char *format, va_list args)
{
    va_list again;

    va_copy(again, args);
    const int len = vsnprintf(NULL, 0, format, again);
    va_end(again);
    PF_ASSERT(len >= 0);
    PF_TRY(reserve(s, (size_t)len));
    vsnprintf(s->text + s->len, (size_t)len + 1, format, args);
    s->len += (size_t)len;
    return 0;
}

int pf_str_error(const struct pf_str *s)
{
    return s->err;
}

void pf_str_clear(struct pf_str *s)
{
    s->len = 0;
    s->err = 0;
    if (s->capacity) {
        s->text[0] = '\0';
    }
}

char *pf_str_steal(struct pf_str *s)
{
    if (s->err) {
        pf_str_release(s);
        return NULL;
    }
    char *const text = s->capacity ? s->text : pf_strdup("");
    pf_str_init(s);
    return text;
}

void pf_str_release(struct pf_str *s)
{
    if (s->capacity) {
        pf_free(s->text);
    }
    pf_str_init(s);
}

/* --- lists --- */

/* Capacity follows from n: powers of two, so that no field is needed for it. */
static int list_take(struct pf_str_list *list, char *item)
{
    const bool is_full = list->n == 0 || (list->n >= 8 && (list->n & (list->n - 1)) == 0);

    if (item && is_full) {
        char **const grown =
            pf_realloc_array(list->items, list->n ? 2 * list->n : 8, sizeof *list->items);
        if (!grown) {
            pf_free(item);
            return PF_ENOMEM;
        }
        list->items = grown;
    }
    if (!item) {
        return PF_ENOMEM;
    }
    list->items[list->n++] = item;
    return 0;
}

int pf_str_list_append(struct pf_str_list *list, const char *item)
{
    return list_take(list, pf_strdup(item));
}

void pf_str_list_release(struct pf_str_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        pf_free(list->items[i]);
    }
    pf_free(list->items);
    *list = (struct pf_str_list){0};
}

static void trim_range(const char **begin, const char **end)
{
    while (*begin < *end && isspace((unsigned char)**begin)) {
        (*begin)++;
    }
    while (*begin < *end && isspace((unsigned char)(*end)[-1])) {
        (*end)--;
    }
}

int pf_str_split(const char *text, char separator, bool trim, struct pf_str_list *list_out)
{
    struct pf_str_list list = {0};
    const char *begin = text, *end = text + strlen(text);
    int err = 0;

    if (trim) {
        trim_range(&begin, &end);
    }
    for (const char *stop; begin < end || (list.n > 0 && begin == end); begin = stop + 1) {
        stop = memchr(begin, separator, (size_t)(end - begin));
        stop = stop ? stop : end;
        const char *from = begin, *to = stop;
        if (trim) {
            trim_range(&from, &to);
        }
        PF_TRY_GOTO(list_take(&list, pf_strndup(from, (size_t)(to - from))), out);
    }
    *list_out = list;
    return 0;
out:
    pf_str_list_release(&list);
    return err;
}

bool pf_str_starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

bool pf_str_ends_with(const char *text, const char *suffix)
{
    const size_t len = strlen(text), suffix_len = strlen(suffix);

    return len >= suffix_len && memcmp(text + len - suffix_len, suffix, suffix_len) == 0;
}

bool pf_glob_match(const char *pattern, const char *name)
{
    return fnmatch(pattern, name, 0) == 0;
}

/* --- numbers --- */

int pf_parse_i64(const char *text, int64_t *value_out)
{
    const char *digits = text[0] == '-' ? text + 1 : text;
    char *end;

    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (!isdigit((unsigned char)digits[0]) || *end != '\0') {
        return pf_fail(PF_EUSAGE, "'%s' is not an integer", text);
    }
    if (errno == ERANGE) {
        return pf_fail(PF_EUSAGE, "'%s' is out of range", text);
    }
    *value_out = value;
    return 0;
}

int pf_parse_u64(const char *text, uint64_t *value_out)
{
    char *end;

    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end != '\0') {
        return pf_fail(PF_EUSAGE, "'%s' is not a non-negative integer", text);
    }
    if (errno == ERANGE) {
        return pf_fail(PF_EUSAGE, "'%s' is out of range", text);
    }
    *value_out = value;
    return 0;
}

static locale_t c_locale;
static pthread_once_t c_locale_once = PTHREAD_ONCE_INIT;

static void make_c_locale(void)
{
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

double pf_base_strtod(const char *text, char **end_out)
{
    pthread_once(&c_locale_once, make_c_locale);
    return c_locale ? strtod_l(text, end_out, c_locale) : strtod(text, end_out);
}

/* Does "%.*g" stand for a locale's own decimal separator? Put the point back. */
static void restore_point(char *text)
{
    for (; *text; text++) {
        if (*text == ',') {
            *text = '.';
        }
    }
}

void pf_base_format_f64(double x, char *buf, size_t buf_bytes)
{
    for (int digits = DBL_DIG; digits <= DBL_DECIMAL_DIG; digits++) {
        snprintf(buf, buf_bytes, "%.*g", digits, x);
        restore_point(buf);
        if (pf_base_strtod(buf, NULL) == x) {
            return;
        }
    }
}

void pf_base_format_f32(float x, char *buf, size_t buf_bytes)
{
    for (int digits = FLT_DIG; digits <= FLT_DECIMAL_DIG; digits++) {
        snprintf(buf, buf_bytes, "%.*g", digits, (double)x);
        restore_point(buf);
        /* A reader may parse a float or round a double: both must arrive. */
        if (strtof(buf, NULL) == x && (float)pf_base_strtod(buf, NULL) == x) {
            return;
        }
    }
}

/* printf and its locales would write a NaN's sign. */
static const char *format_special(double x, char buf[32])
{
    snprintf(buf, 32, "%s", isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
    return buf;
}

const char *pf_format_f64(double x, char buf[32])
{
    if (!isfinite(x)) {
        return format_special(x, buf);
    }
    pf_base_format_f64(x, buf, 32);
    return buf;
}

const char *pf_format_f32(float x, char buf[32])
{
    if (!isfinite(x)) {
        return format_special((double)x, buf);
    }
    pf_base_format_f32(x, buf, 32);
    return buf;
}

/* The length of a JSON-like decimal number at the start of text, 0 if there is none. */
static size_t number_length(const char *text)
{
    const char *p = text + (*text == '-' || *text == '+');
    const char *const digits = p;
    size_t n_digits;

    p += strspn(p, "0123456789");
    n_digits = (size_t)(p - digits);
    if (*p == '.') {
        const size_t n = strspn(p + 1, "0123456789");
        n_digits += n;
        p += 1 + n;
    }
    if (n_digits == 0) {
        return 0;
    }
    if (*p == 'e' || *p == 'E') {
        const size_t sign = p[1] == '-' || p[1] == '+', n = strspn(p + 1 + sign, "0123456789");
        if (n == 0) {
            return 0;
        }
        p += 1 + sign + n;
    }
    return (size_t)(p - text);
}

int pf_parse_f64(const char *text, double *value_out)
{
    const size_t len = number_length(text);

    if (len == 0 || text[len] != '\0') {
        return pf_fail(PF_EUSAGE, "'%s' is not a number", text);
    }
    const double value = pf_base_strtod(text, NULL);
    if (!isfinite(value)) {
        return pf_fail(PF_EUSAGE, "'%s' is out of range", text);
    }
    *value_out = value;
    return 0;
}

int pf_parse_bool(const char *text, bool *value_out)
{
    static const char *const words[] = {"false", "true", "0", "1", "no", "yes", "off", "on"};

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(text, words[i]) == 0) {
            *value_out = i % 2 == 1;
            return 0;
        }
    }
    return pf_fail(PF_EUSAGE, "'%s' is neither true nor false", text);
}

/* The unit at the end of a size; 0 if it is none. */
static uint64_t unit_of(const char *text)
{
    static const char letters[] = "KMGT";
    uint64_t unit = 1;

    const char *const letter = *text ? strchr(letters, *text) : NULL;
    if (letter) {
        text++;
        const uint64_t base = *text == 'i' ? 1024 : 1000;
        text += *text == 'i';
        for (const char *l = letters; l <= letter; l++) {
            unit *= base;
        }
    }
    text += *text == 'B';
    return *text == '\0' ? unit : 0;
}

int pf_parse_bytes(const char *text, size_t *bytes_out)
{
    const size_t n_whole = strspn(text, "0123456789");
    const size_t n_fraction = text[n_whole] == '.' ? strspn(text + n_whole + 1, "0123456789") : 0;
    const size_t len = n_whole + (text[n_whole] == '.' ? 1 + n_fraction : 0);
    const uint64_t unit = unit_of(text + len);
    unsigned __int128 value = 0, scale = 1;

    if (n_whole == 0 || (text[n_whole] == '.' && n_fraction == 0) || unit == 0) {
        return pf_fail(PF_EUSAGE, "'%s' is not a size; write for example 512M or 1Gi", text);
    }
    /* 20 digits hold every size_t, and 10^20 * 2^40 stays below 2^127. */
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '.') {
            continue;
        }
        value = value * 10 + (unsigned)(text[i] - '0');
        scale *= i > n_whole ? 10 : 1;
        if (value > (unsigned __int128)UINT64_MAX || scale > (unsigned __int128)UINT64_MAX) {
            return pf_fail(PF_EUSAGE, "'%s' has too many digits", text);
        }
    }
    value *= unit;
    if (value % scale != 0) {
        return pf_fail(PF_EUSAGE, "'%s' is not a whole number of bytes", text);
    }
    if (value / scale > SIZE_MAX) {
        return pf_fail(PF_EUSAGE, "'%s' is out of range", text);
    }
    *bytes_out = (size_t)(value / scale);
    return 0;
}

const char *pf_format_bytes(double bytes, char buf[24])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t u = 0;

    while (bytes >= 1024 && u + 1 < sizeof units / sizeof units[0]) {
        bytes /= 1024;
        u++;
    }
    snprintf(buf, 24, u == 0 || bytes >= 100 ? "%.0f %s" : "%.1f %s", bytes, units[u]);
    return buf;
}

/* --- did you mean --- */

#define NAME_MAX_COMPARED 63

size_t pf_edit_distance(const char *a, const char *b)
{
    const size_t n = strnlen(a, NAME_MAX_COMPARED), m = strnlen(b, NAME_MAX_COMPARED);
    size_t rows[3][NAME_MAX_COMPARED + 1];
    size_t *before = rows[0], *last = rows[1], *now = rows[2];

    for (size_t j = 0; j <= m; j++) {
        last[j] = j;
        before[j] = 0;
    }
    for (size_t i = 1; i <= n; i++) {
        now[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = last[j - 1] + (a[i - 1] != b[j - 1]);
            best = last[j] + 1 < best ? last[j] + 1 : best;
            best = now[j - 1] + 1 < best ? now[j - 1] + 1 : best;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                before[j - 2] + 1 < best) {
                best = before[j - 2] + 1;
            }
            now[j] = best;
        }
        size_t *const spare = before;
        before = last;
        last = now;
        now = spare;
    }
    return last[m];
}

static void fold_name(const char *name, char folded[NAME_MAX_COMPARED + 1])
{
    size_t n = 0;

    for (; n < NAME_MAX_COMPARED && name[n]; n++) {
        folded[n] = name[n] == '-' ? '_' : (char)tolower((unsigned char)name[n]);
    }
    folded[n] = '\0';
}

const char *pf_nearest(const char *name, const char *const *candidates, size_t n)
{
    char folded[NAME_MAX_COMPARED + 1], other[NAME_MAX_COMPARED + 1];
    const char *nearest = NULL;

    fold_name(name, folded);
    size_t limit = strlen(folded) / 3 > 1 ? strlen(folded) / 3 : 1;
    for (size_t i = 0; i < n; i++) {
        if (!candidates[i]) {
            continue;
        }
        fold_name(candidates[i], other);
        const size_t distance = pf_edit_distance(folded, other);
        if (distance <= limit && (!nearest || distance < limit)) {
            nearest = candidates[i];
            limit = distance;
        }
    }
    return nearest;
}

size_t pf_utf8_length(const unsigned char *p, size_t n)
{
    const unsigned char c = p[0];
    const size_t len = c < 0x80                ? 1
                       : c >= 0xc2 && c < 0xe0 ? 2
                       : c >= 0xe0 && c < 0xf0 ? 3
                       : c >= 0xf0 && c < 0xf5 ? 4
                                               : 0;

    if (len == 0 || len > n) {
        return 0;
    }
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    const bool is_overlong = (c == 0xe0 && p[1] < 0xa0) || (c == 0xf0 && p[1] < 0x90);
    const bool is_outside = (c == 0xed && p[1] >= 0xa0) || (c == 0xf4 && p[1] >= 0x90);
    return is_overlong || is_outside ? 0 : len;
}
