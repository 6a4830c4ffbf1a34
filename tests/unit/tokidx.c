/* SPDX-License-Identifier: Apache-2.0 */
/* Megatron token files: what megatron-core wrote is read, every broken pair is refused, what is
 * written is what megatron-core writes. */
#include <pf/error.h>
#include <pf/file.h>
#include <pf/mem.h>
#include <pf/safetensors.h>
#include <pf/tokidx.h>

#include "tap.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FIXTURES "tests/fixtures/megatron-data/"

static char directory[] = "/tmp/pf-tokidx-XXXXXX";

static char *join(const char *a, const char *b)
{
    char *text = pf_asprintf("%s%s", a, b);

    if (!text) {
        abort();
    }
    return text;
}

/* An int64 tensor of PREFIX.expected.safetensors; free with pf_free. */
static int64_t *expected(const struct pf_st *st, const char *name, int64_t *n_out)
{
    const struct pf_st_tensor *t = st ? pf_st_find(st, name) : NULL;
    int64_t *values = t ? pf_alloc(t->end - t->begin) : NULL;

    if (!values || t->dtype != PF_DTYPE_I64 ||
        pf_st_read(st, t, 0, t->end - t->begin, values) != 0) {
        pf_free(values);
        return NULL;
    }
    *n_out = (int64_t)((t->end - t->begin) / 8);
    return values;
}

static bool sequences_match(const struct pf_tokidx *t, const int64_t *lengths, int64_t n)
{
    int64_t at = 0;

    if (pf_tokidx_n_sequences(t) != n) {
        return false;
    }
    for (int64_t i = 0; i < n; i++) {
        if (pf_tokidx_sequence_start(t, i) != at) {
            return false;
        }
        for (int64_t k = at; k < at + lengths[i]; k++) {
            if (pf_tokidx_sequence_of(t, k) != i) {
                return false;
            }
        }
        at += lengths[i];
    }
    return pf_tokidx_sequence_start(t, n) == at && pf_tokidx_n_tokens(t) == at;
}

static bool documents_match(const struct pf_tokidx *t, const int64_t *documents, int64_t n)
{
    if (pf_tokidx_n_documents(t) != n - 1) {
        return false;
    }
    for (int64_t d = 0; d + 1 < n; d++) {
        int64_t first, end;
        pf_tokidx_document(t, d, &first, &end);
        if (first != documents[d] || end != documents[d + 1]) {
            return false;
        }
    }
    return true;
}

/* Every range of a few lengths, wide and narrow. */
static bool tokens_match(const struct pf_tokidx *t, const int64_t *tokens, int64_t n)
{
    int64_t *wide = pf_calloc_array((size_t)n, sizeof *wide);
    int32_t *narrow = pf_calloc_array((size_t)n, sizeof *narrow);
    bool same = wide && narrow && pf_tokidx_read(t, 0, n, wide) == 0 &&
                memcmp(wide, tokens, (size_t)n * sizeof *wide) == 0 &&
                pf_tokidx_read_i32(t, 0, n, narrow) == 0;

    for (int64_t i = 0; same && i < n; i++) {
        same = narrow[i] == tokens[i];
    }
    for (int64_t length = 0; same && length < n; length = 3 * length + 1) {
        for (int64_t first = 0; same && first + length <= n; first += 7) {
            same = pf_tokidx_read(t, first, first + length, wide) == 0 &&
                   memcmp(wide, tokens + first, (size_t)length * sizeof *wide) == 0;
        }
    }
    pf_free(wide);
    pf_free(narrow);
    return same;
}

static void fixture_is_read(const char *name, const char *ending)
{
    char *prefix = join(FIXTURES, name), *path = join(prefix, ending),
         *answers = join(prefix, ".expected.safetensors");
    struct pf_tokidx *t = NULL;
    struct pf_st *st = NULL;
    int64_t n_tokens = -1, n_lengths = -1, n_documents = -1;

    const bool opened = pf_tokidx_open(path, &t) == 0 && pf_st_open(answers, &st) == 0;
    int64_t *tokens = expected(st, "tokens", &n_tokens),
            *lengths = expected(st, "sequence_lengths", &n_lengths),
            *documents = expected(st, "document_indices", &n_documents);
    if (ok(opened && tokens && lengths && documents, "%s%s opens", name, ending)) {
        ok(sequences_match(t, lengths, n_lengths), "%s: its %d sequences are those expected", name,
           (int)n_lengths);
        ok(documents_match(t, documents, n_documents), "%s: so are its documents", name);
        ok(tokens_match(t, tokens, n_tokens), "%s: so are its %d tokens", name, (int)n_tokens);
        ok(pf_tokidx_read(t, 0, n_tokens + 1, tokens) == PF_EINVAL &&
               pf_tokidx_read(t, -1, 1, tokens) == PF_EINVAL &&
               pf_tokidx_read(t, 2, 1, tokens) == PF_EINVAL,
           "%s: ranges outside are refused", name);
    }
    pf_free(tokens);
    pf_free(lengths);
    pf_free(documents);
    pf_st_close(st);
    pf_tokidx_close(t);
    pf_free(answers);
    pf_free(path);
    pf_free(prefix);
}

static void empty_set_is_read(void)
{
    struct pf_tokidx *t = NULL;
    int64_t none;

    ok(pf_tokidx_open(FIXTURES "none", &t) == 0 && pf_tokidx_n_sequences(t) == 0 &&
           pf_tokidx_n_documents(t) == 0 && pf_tokidx_n_tokens(t) == 0 &&
           pf_tokidx_read(t, 0, 0, &none) == 0,
       "a set without documents is a set");
    pf_tokidx_close(t);
}

static void broken_pair(const char *name, const char *verdict, const char *fault)
{
    char *prefix = join(FIXTURES "broken/", name);
    struct pf_tokidx *t = NULL;
    const int err = pf_tokidx_open(prefix, &t);

    if (strcmp(verdict, "reject") == 0) {
        ok(err == PF_EFORMAT || err == PF_ENOTSUP || err == PF_EINCOMPLETE, "refused: %s", fault);
        printf("# %s\n", pf_error_message());
    } else {
        int64_t token;
        ok(err == PF_EFORMAT || (err == 0 && pf_tokidx_read(t, 402, 403, &token) == 0),
           "refused or readable: %s", fault);
    }
    pf_tokidx_close(t);
    pf_free(prefix);
}

/* The value of `"key": "value"` after *at, which moves behind it; NULL if there is none. */
static char *next_value(char **at, const char *key)
{
    char *found = strstr(*at, key), *value = found ? strchr(found + strlen(key), '"') : NULL,
         *end = value ? strchr(value + 1, '"') : NULL;

    if (!end) {
        return NULL;
    }
    *end = '\0';
    *at = end + 1;
    return value + 1;
}

static void broken_pairs_are_refused(void)
{
    char *text = NULL, *at, *name;
    size_t n_bytes;
    int n_cases = 0;

    if (!ok(pf_file_read_all(FIXTURES "broken/cases.json", 0, &text, &n_bytes) == 0,
            "the table of broken pairs is there")) {
        return;
    }
    at = text;
    while ((name = next_value(&at, "\"file\":"))) {
        const char *fault = next_value(&at, "\"fault\":"),
                   *verdict = next_value(&at, "\"verdict\":");
        if (!fault || !verdict) {
            break;
        }
        broken_pair(name, verdict, fault);
        n_cases++;
    }
    ok(n_cases == 32, "%d broken pairs were tried", n_cases);
    pf_free(text);
}

static void older_layout_is_named(void)
{
    struct pf_tokidx *t = NULL;

    ok(pf_tokidx_open(FIXTURES "broken/magic_old.idx", &t) == PF_ENOTSUP &&
           strstr(pf_error_message(), "TNTIDX"),
       "the older layout is named");
    ok(pf_tokidx_open(FIXTURES "broken/bin_missing", &t) == PF_EINCOMPLETE &&
           pf_tokidx_open(FIXTURES "absent", &t) == PF_EINCOMPLETE,
       "a missing half is an incomplete set");
}

static void damaged_index_does_no_harm(void)
{
    char *idx = NULL;
    size_t n, n_cut = 0, n_wrong = 0;
    struct pf_tokidx *t = NULL;
    unsigned seed = 1;

    if (!ok(pf_file_read_all(FIXTURES "small.idx", 0, &idx, &n) == 0, "small.idx is there")) {
        return;
    }
    for (size_t k = 0; k < n; k++) {
        char *copy = malloc(k ? k : 1);
        if (copy) {
            memcpy(copy, idx, k);
            n_cut += pf_tokidx_parse(copy, k, 806, "cut", &t) != 0;
            free(copy);
        }
    }
    ok(n_cut == n, "each of %zu truncations is refused", n);
    for (int round = 0; round < 20000; round++) {
        const size_t at = (size_t)rand_r(&seed) % n;
        const char flip = (char)(1 << rand_r(&seed) % 8);
        idx[at] ^= flip;
        if (pf_tokidx_parse(idx, n, 806, "flipped", &t) == 0) {
            n_wrong += pf_tokidx_sequence_start(t, pf_tokidx_n_sequences(t)) > 806 * 11;
            pf_tokidx_close(t);
        }
        idx[at] ^= flip;
    }
    ok(n_wrong == 0, "flipped bits do no harm");
    pf_free(idx);
}

/* An index of two sequences of one token, with tokens of 8 bytes, at these pointers. */
static size_t make_wide(unsigned char *idx, int code, int first, int second)
{
    static const char head[] = "MMIDIDX\0\0\1\0\0\0\0\0\0\0";

    memset(idx, 0, 74);
    memcpy(idx, head, 17);
    idx[17] = (unsigned char)code;
    idx[18] = 2; /* sequences */
    idx[26] = 2; /* document entries */
    idx[34] = idx[38] = 1;
    idx[42] = (unsigned char)first;
    idx[50] = (unsigned char)second;
    idx[66] = 2;
    return 74;
}

static void write_pair(const char *prefix, const void *idx, size_t n_idx, const void *bin,
                       size_t n_bin)
{
    char *idx_path = join(prefix, ".idx"), *bin_path = join(prefix, ".bin");

    ok(pf_file_write_atomic(idx_path, idx, n_idx) == 0 &&
           pf_file_write_atomic(bin_path, bin, n_bin) == 0,
       "a pair is made by hand");
    pf_free(idx_path);
    pf_free(bin_path);
}

static void wide_tokens_are_checked(void)
{
    unsigned char idx[80], bin[16] = {0, 0, 0, 0, 0, 0, 0, 0x80, 5};
    char *prefix = join(directory, "/wide");
    struct pf_tokidx *t = NULL;
    int64_t wide[2] = {0, 0};
    int32_t narrow[2];

    write_pair(prefix, idx, make_wide(idx, 10, 0, 8), bin, sizeof bin);
    ok(pf_tokidx_open(prefix, &t) == 0 && pf_tokidx_read(t, 0, 1, wide) == PF_EFORMAT &&
           pf_tokidx_read(t, 1, 2, wide) == 0 && wide[0] == 5,
       "a u64 token of 2^63 is refused where it is read");
    pf_tokidx_close(t);
    write_pair(prefix, idx, make_wide(idx, 5, 8, 0), bin, sizeof bin);
    ok(pf_tokidx_open(prefix, &t) == 0 && pf_tokidx_read(t, 0, 2, wide) == 0 && wide[0] == 5 &&
           wide[1] == INT64_MIN,
       "sequences may lie in any order; i64 tokens keep their sign");
    ok(pf_tokidx_read_i32(t, 0, 2, narrow) == PF_EFORMAT &&
           pf_tokidx_read_i32(t, 0, 1, narrow) == 0,
       "what does not fit int32 is refused");
    char *bin_path = join(prefix, ".bin");
    ok(truncate(bin_path, 8) == 0 && pf_tokidx_read(t, 0, 1, wide) == PF_EFORMAT,
       "a .bin that shrinks while it is open gives an error");
    pf_tokidx_close(t);
    pf_free(bin_path);
    pf_free(prefix);
}

static int copy_set(const struct pf_tokidx *t, struct pf_tokidx_writer *w)
{
    int64_t tokens[1024];

    for (int64_t d = 0; d < pf_tokidx_n_documents(t); d++) {
        int64_t i, end;
        pf_tokidx_document(t, d, &i, &end);
        for (; i < end; i++) {
            const int64_t from = pf_tokidx_sequence_start(t, i),
                          to = pf_tokidx_sequence_start(t, i + 1);
            PF_TRY(pf_tokidx_read(t, from, to, tokens));
            PF_TRY(pf_tokidx_writer_add(w, tokens, (size_t)(to - from)));
        }
        PF_TRY(pf_tokidx_writer_end_document(w));
    }
    return pf_tokidx_writer_finish(w);
}

static bool same_files(const char *prefix_a, const char *prefix_b, const char *ending)
{
    char *a = join(prefix_a, ending), *b = join(prefix_b, ending), *x = NULL, *y = NULL;
    size_t n_x, n_y;
    const bool same = pf_file_read_all(a, 0, &x, &n_x) == 0 &&
                      pf_file_read_all(b, 0, &y, &n_y) == 0 && n_x == n_y && memcmp(x, y, n_x) == 0;

    pf_free(a);
    pf_free(b);
    pf_free(x);
    pf_free(y);
    return same;
}

static void copy_is_identical(const char *name, int token_bytes)
{
    char *source = join(FIXTURES, name), *slash = join(directory, "/"), *copy = join(slash, name);
    struct pf_tokidx *t = NULL;
    struct pf_tokidx_writer *w = NULL;

    ok(pf_tokidx_open(source, &t) == 0 && pf_tokidx_token_bytes(t) == token_bytes &&
           pf_tokidx_writer_new(copy, token_bytes, &w) == 0 && copy_set(t, w) == 0 &&
           same_files(source, copy, ".idx") && same_files(source, copy, ".bin"),
       "%s is written byte for byte as megatron-core wrote it", name);
    pf_tokidx_writer_free(w);
    w = NULL;
    ok(pf_tokidx_writer_new(copy, token_bytes, &w) == PF_EREFUSED, "and not overwritten");
    pf_tokidx_close(t);
    pf_free(source);
    pf_free(slash);
    pf_free(copy);
}

static void writer_refuses_nonsense(void)
{
    char *prefix = join(directory, "/nonsense"), *bin = join(prefix, ".bin");
    struct pf_tokidx_writer *w = NULL;

    ok(pf_tokidx_writer_new(prefix, 3, &w) == PF_EINVAL && pf_tokidx_writer_new(prefix, 2, &w) == 0,
       "tokens have 2 or 4 bytes");
    ok(pf_tokidx_writer_add(w, (int64_t[]){1, 65536}, 2) == PF_EINVAL &&
           pf_tokidx_writer_add(w, (int64_t[]){-1}, 1) == PF_EINVAL &&
           pf_tokidx_writer_add(w, (int64_t[]){0, 65535}, 2) == 0,
       "a token that does not fit is refused, not wrapped");
    ok(pf_tokidx_writer_finish(w) == PF_EINVAL && pf_path_exists(bin),
       "sequences after the last document are refused");
    pf_tokidx_writer_free(w);
    ok(!pf_path_exists(bin), "an unfinished .bin is removed");
    pf_free(bin);
    pf_free(prefix);
}

int main(void)
{
    if (!mkdtemp(directory)) {
        ok(false, "no scratch directory");
        return done();
    }
    fixture_is_read("u16", "");
    fixture_is_read("i32", ".bin");
    fixture_is_read("u16-modes", ".idx");
    fixture_is_read("small", "");
    empty_set_is_read();
    broken_pairs_are_refused();
    older_layout_is_named();
    damaged_index_does_no_harm();
    wide_tokens_are_checked();
    copy_is_identical("u16", 2);
    copy_is_identical("i32", 4);
    copy_is_identical("none", 2);
    writer_refuses_nonsense();
    pf_rmtree(directory);
    return done();
}
