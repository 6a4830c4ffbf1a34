/* SPDX-License-Identifier: Apache-2.0 */
/* data_test.h - files in a scratch directory, opened and read, for the tests of lib/data. */
#ifndef DATA_TEST_H
#define DATA_TEST_H

#include <pf/data.h>
#include <pf/error.h>
#include <pf/file.h>
#include <pf/mem.h>
#include <pf/str.h>

#include "tap.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_SEQ 64

static char scratch[] = "/tmp/pf-data-XXXXXX";

static inline void scratch_begin(void)
{
    if (!mkdtemp(scratch)) {
        printf("Bail out! no scratch directory\n");
        exit(1);
    }
}

static inline void scratch_end(void)
{
    if (pf_rmtree(scratch) != 0) {
        printf("# %s stays behind\n", scratch);
    }
}

/* A path below the scratch directory; valid until the next but seven. */
static inline const char *at(const char *name)
{
    static char paths[8][256];
    static int next;
    char *const path = paths[next++ % 8];

    snprintf(path, sizeof paths[0], "%s/%s", scratch, name);
    return path;
}

static inline void put(const char *name, const char *text)
{
    if (pf_file_write_atomic(at(name), text, strlen(text)) != 0) {
        ok(false, "write %s: %s", name, pf_error_message());
    }
}

/* A text file of n bytes that never repeats a pair of neighbouring 4-byte groups soon. */
static inline void put_numbers(const char *name, int n)
{
    struct pf_str s;

    pf_str_init(&s);
    for (int i = 0; s.len < (size_t)n; i++) {
        pf_str_appendf(&s, "%06d ", i);
    }
    s.text[n] = '\0';
    put(name, s.text);
    pf_str_release(&s);
}

static inline struct pf_data_options options_for(const char *input, int64_t seq)
{
    return (struct pf_data_options){
        .input = input, .tokenizer = "bytes", .seq = seq, .vocab_size = 259, .seed = 42};
}

static inline struct pf_data *open_data(const struct pf_data_options *options)
{
    struct pf_data *data = NULL;

    if (pf_data_open(options, &data) != 0) {
        ok(false, "open '%s': %s", options->input, pf_error_message());
        printf("Bail out! no data\n");
        exit(1);
    }
    return data;
}

struct sequence {
    int32_t ids[MAX_SEQ], targets[MAX_SEQ], first_key[MAX_SEQ];
};

static inline struct sequence read_at(struct pf_data *data, int64_t position)
{
    struct sequence s;

    memset(&s, 0xee, sizeof s);
    if (pf_data_read(data, position, s.ids, s.targets, s.first_key) != 0) {
        ok(false, "read %lld: %s", (long long)position, pf_error_message());
    }
    return s;
}

static inline bool same(const struct sequence *a, const struct sequence *b, int64_t seq)
{
    const size_t n = (size_t)seq * sizeof(int32_t);

    return memcmp(a->ids, b->ids, n) == 0 && memcmp(a->targets, b->targets, n) == 0 &&
           memcmp(a->first_key, b->first_key, n) == 0;
}

/* Which window of a numbers file a sequence is: its bytes are found in the text. */
static inline int64_t window_of(const struct sequence *s, const char *text, int64_t seq)
{
    for (int64_t i = 0; text[i * seq]; i++) {
        bool equal = true;
        for (int64_t k = 0; k < seq && equal; k++) {
            equal = s->ids[k] == (unsigned char)text[i * seq + k];
        }
        if (equal) {
            return i;
        }
    }
    return -1;
}

static inline char *read_text(const char *name)
{
    char *text = NULL;
    size_t n;

    if (pf_file_read_all(at(name), 0, &text, &n) != 0) {
        ok(false, "read %s", name);
    }
    return text;
}

/* Opening must fail with that code and a message that has these words. */
static inline void refuses(const struct pf_data_options *options, int code, const char *words)
{
    struct pf_data *data = NULL;
    const int err = pf_data_open(options, &data);
    const bool right = err == code && !data && strstr(pf_error_message(), words);

    if (!ok(right, "'%s' is refused: %s", options->input ? options->input : "NULL", words)) {
        printf("# code %d, message: %s\n", err, pf_error_message());
    }
    pf_data_free(data);
}

static inline const char *fixture(const char *name)
{
    static const char *const roots[] = {"tests/fixtures", "../shared/fixtures"};
    static char path[256];

    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", roots[i], name);
        if (pf_path_exists(path)) {
            return path;
        }
    }
    return NULL;
}

#endif
