/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json_scan.h - a strict JSON scanner for headers and lines whose numbers are 64-bit and whose bytes
 * are hostile. It builds no tree: the caller walks the text in one pass and says what it expects.
 *
 * Strict means RFC 8259 and no more: no comments, no trailing commas, no lone surrogates, no
 * control characters in strings, nesting below 128 levels, and numbers that a double can represent.
 * The text must be valid UTF-8, which pf_scan_init checks. Every failure is PF_EFORMAT and names
 * the path and the byte. Blanks before a token are skipped by the function that reads the token.
 */
#ifndef PF_FMT_JSON_SCAN_H
#define PF_FMT_JSON_SCAN_H

#include <pf/error.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How many objects and arrays may be open at once. */
#define PF_SCAN_MAX_DEPTH 127

struct pf_scan {
    const char *path, *where; /* for messages: "x.safetensors", "header" */
    const unsigned char *start, *at, *end;
    char *strings; /* unescaped text; no escape is shorter than what it stands for, and the quotes
                      leave room for the NUL, so the text's length + 1 suffices */
    size_t n_strings;
    int depth;
};

struct pf_scan_text {
    const char *at; /* NUL-terminated, in `strings` */
    size_t n_bytes;
};

#define PF_SCAN_FAIL(s, problem)                                                                   \
    pf_fail(PF_EFORMAT, "'%s': %s byte %zu: %s", (s)->path, (s)->where,                            \
            (size_t)((s)->at - (s)->start), problem)

/* How many of the n bytes, from the first, are valid UTF-8 (no overlong form, no surrogate, nothing
 * above U+10FFFF): n if all are. */
size_t pf_scan_utf8(const void *bytes, size_t n);

/* where: what the bytes are, for messages; kept. strings: room for n_bytes + 1. */
int pf_scan_init(struct pf_scan *s, const char *path, const char *where, const void *bytes,
                 size_t n_bytes, char *strings);

/* Enter an object '{' or array '['; then call pf_scan_item before each item: it reads the comma or
 * the closing character, counts items in *n_items (start with 0), and sets *more_out. */
int pf_scan_enter(struct pf_scan *s, char open);
int pf_scan_item(struct pf_scan *s, char open, size_t *n_items, bool *more_out);

int pf_scan_string(struct pf_scan *s, struct pf_scan_text *text_out);
/* A string and the colon after it. */
int pf_scan_key(struct pf_scan *s, struct pf_scan_text *key_out);
/* An integer below 2^64 in plain digits. */
int pf_scan_u64(struct pf_scan *s, uint64_t *value_out);
/* A value of any type, checked and dropped. */
int pf_scan_skip(struct pf_scan *s);
/* Whether a value starts with this character. */
bool pf_scan_sees(struct pf_scan *s, char c);
/* Nothing but blanks is left. */
int pf_scan_finish(struct pf_scan *s);

#endif
