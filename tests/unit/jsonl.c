/* SPDX-License-Identifier: Apache-2.0 */
/* jsonl.c - texts of lines, read from anywhere in them. What is refused is tested with data.c. */
#include <pf/jsonl.h>

#include <pf/error.h>
#include <pf/str.h>

#include "scratch.h"
#include "tap.h"

static struct pf_jsonl *open_text(const char *text, size_t n)
{
    struct pf_jsonl *j = NULL;

    put(at("x.jsonl"), text, n);
    if (pf_jsonl_open(at("x.jsonl"), &j) != 0) {
        ok(false, "open: %s", pf_error_message());
    }
    return j;
}

static void every_escape_is_resolved(void)
{
    static const char text[] = "{\"text\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0000\\u0041\\u00E4\\u20ac"
                               "\\uD83D\\uDE00\xe2\x82\xac\"}";
    static const unsigned char want[] = "\"\\/\b\f\n\r\t\0A\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\xe2"
                                        "\x82\xac";
    const int64_t n = sizeof want - 1;
    struct pf_jsonl *j = open_text(text, sizeof text - 1);
    bool right = pf_jsonl_n_documents(j) == 1 && pf_jsonl_start(j, 1) == n;

    for (int64_t from = 0; from < n; from++) {
        for (int64_t to = from; to <= n; to++) {
            unsigned char bytes[32];
            right &= pf_jsonl_read(j, 0, from, (size_t)(to - from), bytes) == 0 &&
                     memcmp(bytes, want + from, (size_t)(to - from)) == 0;
        }
    }
    ok(right, "every escape is resolved, and any range of the text is read");
    pf_jsonl_close(j);
}

/* A text of n bytes with an escape every few; its line goes to s. */
static void add_long(struct pf_str *s, unsigned char *want, size_t n)
{
    pf_str_append(s, "{\"x\":1,\"text\":\"");
    for (size_t i = 0; i < n;) {
        const unsigned draw = (unsigned)(i * 2654435761u >> 7);
        if (draw % 5 == 0 && i + 4 <= n) {
            pf_str_append(s, "\\ud83d\\ude00");
            memcpy(want + i, "\xf0\x9f\x98\x80", 4);
            i += 4;
        } else {
            pf_str_append_char(s, (char)('a' + draw % 26));
            want[i++] = (unsigned char)('a' + draw % 26);
        }
    }
    pf_str_append(s, "\"}\n");
}

static void long_texts_are_read_from_anywhere(void)
{
    enum { N = 300000, BIG = 3 << 20 };
    unsigned char *want = pf_alloc(BIG), *bytes = pf_alloc(BIG);
    struct pf_str s;
    bool right = true;

    pf_str_init(&s);
    pf_str_append(&s, "{\"text\":\"short\"}\n");
    add_long(&s, want, N);
    pf_str_append(&s, "{\"text\":\"after\"}\n");
    struct pf_jsonl *j = open_text(s.text, s.len);
    right &= pf_jsonl_n_documents(j) == 3 && pf_jsonl_start(j, 2) == N + 5;
    for (int64_t from = 0; from + 5000 < N; from += 4999) {
        right &= pf_jsonl_read(j, 1, from, 5000, bytes) == 0 && !memcmp(bytes, want + from, 5000);
    }
    right &= pf_jsonl_read(j, 1, 0, N, bytes) == 0 && memcmp(bytes, want, N) == 0;
    ok(right, "a long text is read from anywhere in it");
    ok(pf_jsonl_read(j, 2, 1, 4, bytes) == 0 && memcmp(bytes, "fter", 4) == 0,
       "and the one after it");
    pf_jsonl_close(j);
    pf_str_clear(&s);
    add_long(&s, want, BIG);
    j = open_text(s.text, s.len);
    ok(pf_jsonl_read(j, 0, 0, BIG, bytes) == 0 && memcmp(bytes, want, BIG) == 0,
       "a line longer than the first buffer is read too");
    pf_jsonl_close(j);
    pf_str_release(&s);
    pf_free(want);
    pf_free(bytes);
}

static void a_file_that_changes_is_an_error(void)
{
    unsigned char bytes[8];
    struct pf_jsonl *j = open_text("{\"text\":\"abcdefgh\"}", 19);

    put_text(at("x.jsonl"), "{\"text\":\"abc\"}     ");
    const int quote = pf_jsonl_read(j, 0, 0, 8, bytes);
    put_text(at("x.jsonl"), "{\"te");
    const int cut = pf_jsonl_read(j, 0, 0, 8, bytes);
    ok(quote == PF_EFORMAT && cut == PF_EFORMAT, "a file that changes under a reader is an error");
    pf_jsonl_close(j);
}

int main(void)
{
    scratch_make();
    every_escape_is_resolved();
    long_texts_are_read_from_anywhere();
    a_file_that_changes_is_an_error();
    scratch_remove();
    return done();
}
