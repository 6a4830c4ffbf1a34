/* SPDX-License-Identifier: Apache-2.0 */
/*
 * str.h - a growing string, strict number parsing, globs, and "did you mean".
 *
 * struct pf_str: `text` is always NUL-terminated and never NULL; `len` counts the bytes before that
 * NUL. A failed append leaves the string as it was and is remembered in `err`, so that a long
 * series of appends can be checked once at its end with pf_str_error.
 *
 *     struct pf_str s;
 *     pf_str_init(&s);
 *     pf_str_append(&s, "tp=");
 *     pf_str_appendf(&s, "%d", tp);
 *     PF_TRY_GOTO(pf_str_error(&s), out);
 *     *name_out = pf_str_steal(&s);
 *     out: pf_str_release(&s);
 *
 * The parsers are strict: the whole text must be the number, without surrounding blanks.
 *
 * All functions are local; those on one struct pf_str need the caller's locking.
 */
#ifndef PF_STR_H
#define PF_STR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pf_str {
    char *text;      /* owned; a static "" before the first append */
    size_t len;      /* bytes before the NUL */
    size_t capacity; /* bytes allocated; 0 while text is the static one */
    int err;         /* the first failure of an append, or 0 */
};

/* Growing string. Each append returns 0 or PF_ENOMEM. */
void pf_str_init(struct pf_str *s);
int pf_str_append(struct pf_str *s, const char *text);
int pf_str_append_bytes(struct pf_str *s, const void *bytes, size_t n);
int pf_str_append_char(struct pf_str *s, char c);
int pf_str_appendf(struct pf_str *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
int pf_str_vappendf(struct pf_str *s, const char *format, va_list args)
    __attribute__((format(printf, 2, 0)));
int pf_str_error(const struct pf_str *s);

/* Make it empty and forget errors; the memory is kept. */
void pf_str_clear(struct pf_str *s);

/* Hand the text over (free with pf_free) and leave s empty. NULL with a record if memory is out or
 * an append had failed. */
char *pf_str_steal(struct pf_str *s);

/* Free it; s is as after pf_str_init. Preserves errno. */
void pf_str_release(struct pf_str *s);

/* Strings in a list, each owned by it. */
struct pf_str_list {
    char **items;
    size_t n;
};

/*
 * Split text at each separator character. Blanks around an item are dropped when `trim`; empty items
 * are kept ("a,,b" has three), but an empty text has none. Free with pf_str_list_release.
 */
int pf_str_split(const char *text, char separator, bool trim, struct pf_str_list *list_out);
int pf_str_list_append(struct pf_str_list *list, const char *item);
void pf_str_list_release(struct pf_str_list *list);

/* Bytes of the UTF-8 character at p, of which n can be read; 0 if it is none (overlong forms,
 * surrogates, beyond U+10FFFF). Source: RFC 3629. */
size_t pf_utf8_length(const unsigned char *p, size_t n);

bool pf_str_starts_with(const char *text, const char *prefix);
bool pf_str_ends_with(const char *text, const char *suffix);

/* Does the shell pattern (*, ?, [...]; '*' matches dots and slashes too) match the whole name? */
bool pf_glob_match(const char *pattern, const char *name);

/* Decimal integer with optional '-'. PF_EUSAGE with a record for anything else or an overflow. */
int pf_parse_i64(const char *text, int64_t *value_out);
int pf_parse_u64(const char *text, uint64_t *value_out);

/* Decimal floating number, '.' whatever the locale; no hexadecimal, "inf" or "nan"; overflow is
 * refused, underflow gives 0 or a subnormal. PF_EUSAGE with a record. */
int pf_parse_f64(const char *text, double *value_out);

/* "true", "false", "1", "0", "yes", "no", "on", "off". PF_EUSAGE with a record. */
int pf_parse_bool(const char *text, bool *value_out);

/*
 * A size: digits, an optional fraction ("1.5G"), and an optional unit: K M G T (powers of 1000),
 * Ki Mi Gi Ti (powers of 1024), each with an optional final B; B alone. The result must be a whole
 * number of bytes that fits size_t. PF_EUSAGE with a record.
 */
int pf_parse_bytes(const char *text, size_t *bytes_out);

/* "1.5 GiB", "812 B": for people, three digits or so. Returns buf, which has at least 24 bytes. */
const char *pf_format_bytes(double bytes, char buf[24]);

/* The fewest digits that read back to the same bits, '.' whatever the locale; "nan", "inf", "-inf".
 * Returns buf. */
const char *pf_format_f64(double x, char buf[32]);
const char *pf_format_f32(float x, char buf[32]);

/* Optimal string alignment distance: insertions, deletions, substitutions and swaps of neighbours
 * (each 1). Texts longer than 63 bytes are compared as if cut there.
 * Source: Damerau, "A technique for computer detection and correction of spelling errors", 1964. */
size_t pf_edit_distance(const char *a, const char *b);

/* The candidate nearest to a mistyped name, or NULL when none is near enough to be worth offering (a
 * third of the length, at least 1; case and '-' against '_' count little). NULL candidates are
 * skipped. */
const char *pf_nearest(const char *name, const char *const *candidates, size_t n);

#endif
