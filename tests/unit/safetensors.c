/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors: the verdicts of the reference parser, one by one; damage never passes and never
 * crashes; what is written is what the reference library writes. */
#include <pf/error.h>
#include <pf/file.h>
#include <pf/mem.h>
#include <pf/safetensors.h>
#include <pf/str.h>

#include "tap.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CORPUS "tests/fixtures/safetensors-headers.tsv"
#define REFERENCE "tests/fixtures/safetensors/reference.safetensors"

static char directory[] = "/tmp/pf-safetensors-XXXXXX";

/* A name in the scratch directory; valid until the next call but one. */
static const char *scratch(const char *name)
{
    static char paths[2][128];
    static int which;

    which = !which;
    snprintf(paths[which], sizeof paths[which], "%s/%s", directory, name);
    return paths[which];
}

static void write_file(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");

    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) {
        ok(false, "cannot write %s", path);
        exit(done());
    }
}

/* What pf_st_open does, without a file. */
static int parse_image(const void *bytes, size_t n, struct pf_st **st_out)
{
    size_t header_bytes;

    PF_TRY(pf_st_check_prefix(bytes, n < 64 ? n : 64, n, "image", &header_bytes));
    return pf_st_parse((const char *)bytes + 8, header_bytes, n, "image", st_out);
}

static bool passes(const void *bytes, size_t n)
{
    struct pf_st *st = NULL;
    const int err = parse_image(bytes, n, &st);

    pf_st_close(st);
    return err == 0;
}

static void put_length(struct pf_str *s, uint64_t n)
{
    for (int i = 0; i < 8; i++) {
        pf_str_append_char(s, (char)(n >> 8 * i));
    }
}

/* A file with this header and data_bytes zeros. */
static void make_file(struct pf_str *s, const char *header, size_t data_bytes)
{
    pf_str_clear(s);
    put_length(s, strlen(header));
    pf_str_append(s, header);
    for (size_t i = 0; i < data_bytes; i++) {
        pf_str_append_char(s, '\0');
    }
}

static bool header_passes(const char *header, size_t data_bytes)
{
    struct pf_str s;

    pf_str_init(&s);
    make_file(&s, header, data_bytes);
    const bool yes = passes(s.text, s.len);
    pf_str_release(&s);
    return yes;
}

/* The corpus. ------------------------------------------------------------------------------- */

static void append_unescaped(struct pf_str *s, const char *text)
{
    for (; *text; text++) {
        if (text[0] == '\\' && text[1] == 'x') {
            const char hex[] = {text[2], text[3], '\0'};
            pf_str_append_char(s, (char)strtol(hex, NULL, 16));
            text += 3;
        } else {
            text += text[0] == '\\';
            pf_str_append_char(s, *text);
        }
    }
}

/* Case 089, too long for the table. */
static void append_many_ones(struct pf_str *s)
{
    pf_str_append(s, "{\"a\":{\"dtype\":\"F32\",\"shape\":[1");
    for (int i = 1; i < 5000; i++) {
        pf_str_append(s, ",1");
    }
    pf_str_append(s, "],\"data_offsets\":[0,4]}}");
}

static void build_case(char *const *column, struct pf_str *s)
{
    pf_str_clear(s);
    if (strcmp(column[1], "-") != 0) {
        put_length(s, strtoull(column[1], NULL, 10));
    }
    if (strncmp(column[0], "089_", 4) == 0) {
        append_many_ones(s);
    } else {
        append_unescaped(s, column[2]);
    }
    for (long i = strtol(column[3], NULL, 10); i > 0; i--) {
        pf_str_append_char(s, '\0');
    }
}

static bool is_stricter(const char *name)
{
    static const char *const prefixes[] = {"018_", "019_", "061_", "069_"};

    for (size_t i = 0; i < 4; i++) {
        if (pf_str_starts_with(name, prefixes[i])) {
            return true;
        }
    }
    return false;
}

static void replay_case(char *const *column, struct pf_str *s)
{
    const bool want = strcmp(column[5], "ACCEPT") == 0 && !is_stricter(column[0]);
    struct pf_st *st = NULL;

    build_case(column, s);
    const char *path = scratch("case.safetensors");
    write_file(path, s->text, s->len);
    const int err = pf_st_open(path, &st);
    pf_st_close(st);
    ok(s->len == strtoull(column[4], NULL, 10) && err == (want ? 0 : PF_EFORMAT) &&
           passes(s->text, s->len) == want,
       "%s: %s%s", column[0], want ? "accepted" : "refused",
       is_stricter(column[0]) ? ", unlike the reference" : "");
}

static void corpus_verdicts_match(void)
{
    char *text = NULL, *line, *rest;
    size_t n_bytes;
    int n_cases = 0;
    struct pf_str s;

    pf_str_init(&s);
    if (!ok(pf_file_read_all(CORPUS, 0, &text, &n_bytes) == 0, "the corpus is there")) {
        return;
    }
    strtok_r(text, "\n", &rest); /* the column heads */
    while ((line = strtok_r(NULL, "\n", &rest))) {
        char *column[7] = {0};
        for (int i = 0; i < 7; i++) {
            column[i] = strsep(&line, "\t");
        }
        replay_case(column, &s);
        n_cases++;
    }
    ok(n_cases >= 99, "%d cases were replayed", n_cases);
    pf_str_release(&s);
    pf_free(text);
}

/* Rules of which the corpus has no case. ------------------------------------------------------ */

static void append_nested(struct pf_str *s, int levels)
{
    pf_str_append(s, "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":");
    for (int i = 0; i < levels; i++) {
        pf_str_append_char(s, '[');
    }
    for (int i = 0; i < levels; i++) {
        pf_str_append_char(s, ']');
    }
    pf_str_append(s, "}}");
}

static bool nesting_passes(int levels)
{
    struct pf_str s;

    pf_str_init(&s);
    append_nested(&s, levels);
    const bool yes = header_passes(s.text, 8);
    pf_str_release(&s);
    return yes;
}

#define TENSOR(name, shape, offsets)                                                               \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define WITH_FIELD(field)                                                                          \
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":" field "}}"

static void structure_is_strict(void)
{
    ok(nesting_passes(125) && !nesting_passes(126) && !nesting_passes(200),
       "arrays nest 125 deep in a tensor entry, not 126");
    ok(header_passes("{" TENSOR("__metadat\\u0061", "[2]", "[0,8]") "}", 8) &&
           !header_passes("{" TENSOR("__metadat\\u0061__", "[2]", "[0,8]") "}", 8),
       "an escaped __metadata__ is metadata");
    ok(!header_passes("{\"__metadata__\":{},\"__metadata__\":{}}", 0) &&
           !header_passes("{\"__metadata__\":null,\"__metadata__\":null}", 0) &&
           header_passes("{\"__metadata__\":null}", 0) &&
           !header_passes("{\"__metadata__\":nul}", 0) &&
           !header_passes("{\"__metadata__\":{\"a\":1}}", 0),
       "metadata is null or an object of strings, once");
    ok(!header_passes("{" TENSOR("a", "[2]", "[0,8]") "," TENSOR("\\u0061", "[2]", "[8,16]") "}",
                      16),
       "an escaped repetition of a name is refused");
    ok(!header_passes("{" TENSOR("a", "[2]", "[0,8,9]") "}", 8) &&
           !header_passes("{" TENSOR("a", "[2]", "[]") "}", 8) &&
           !header_passes("{" TENSOR("a", "[2]", "[8,0]") "}", 8) &&
           !header_passes("{" TENSOR("a", "[0]", "[8,0]") "}", 8),
       "data_offsets are two and not reversed");
    ok(header_passes(" \t\r\n{ \"a\" : { \"dtype\" : \"F\\u00332\" , \"shape\" : [ ] , "
                     "\"data_offsets\" : [ 0 , 4 ] } } \n",
                     4),
       "blanks are allowed between all tokens, escapes in a dtype");
    ok(!header_passes("{" TENSOR("a", "[2]", "[0,8]") "} \x0c", 8) && !header_passes("{\"a\"", 0) &&
           !header_passes("{\"a\":", 0) && !header_passes("{", 0) && !header_passes("\"", 0),
       "cut and continued JSON is refused");
}

static void ignored_fields_are_valid(void)
{
    static const char *const good[] = {
        "1e308",
        "-0",
        "0.0e99999999999",
        "1e-99999",
        "0e999",
        "17976931348623157e292",
        "true",
        "{\"y\":1,\"y\":[null,false,{}]}",
        "\"\\ud83d\\ude00 \\\" \\\\ \\/ \\b\\f\\n\\r\\t\"",
        "123456789012345678901234567890",
        "0.00000000000000000000000000000000000000000000000001e340",
    };
    static const char *const bad[] = {
        "1e309",
        "-1e999",
        "17976931348623159e292",
        "01",
        "-",
        "1.",
        ".5",
        "1e",
        "1e+",
        "+1",
        "NaN",
        "Infinity",
        "nul",
        "tru",
        "[1,]",
        "{\"y\":1,}",
        "{y:1}",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\udc00\"",
        "\"\\ud800\\u0041\"",
        "\"\t\"",
        "[",
        "1 2",
        "",
        "1000000000000000000000000000000000000000000000000000000000000000000000000000000000e230",
    };
    char header[512];

    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        snprintf(header, sizeof header, WITH_FIELD("%s"), good[i]);
        ok(header_passes(header, 8), "an unknown field may be %s", good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(header, sizeof header, WITH_FIELD("%s"), bad[i]);
        ok(!header_passes(header, 8), "an unknown field may not be %s", bad[i]);
    }
}

static void arithmetic_is_checked(void)
{
    ok(header_passes("{" TENSOR("a", "[0,4294967296,4294967296]", "[0,0]") "}", 0) &&
           !header_passes("{" TENSOR("a", "[4294967296,4294967296,0]", "[0,0]") "}", 0),
       "a product overflows from the left");
    ok(!header_passes("{" TENSOR("a", "[4611686018427387904]", "[0,0]") "}", 0) &&
           !header_passes("{" TENSOR("a", "[9223372036854775808]", "[0,0]") "}", 0) &&
           !header_passes("{" TENSOR("a", "[576460752303423488]", "[0,0]") "}", 0),
       "2^62, 2^63 and 2^59 elements of 32 bits do not wrap to no bytes");
    ok(!header_passes("{" TENSOR("a", "[18446744073709551616]", "[0,0]") "}", 0) &&
           !header_passes("{" TENSOR("a", "[99999999999999999999999]", "[0,0]") "}", 0),
       "2^64 is no dimension");
    ok(!header_passes("{" TENSOR("a", "[0]", "[18446744073709551615,18446744073709551615]") "}",
                      0) &&
           !header_passes("{" TENSOR("a", "[2]", "[18446744073709551608,0]") "}", 0) &&
           !header_passes("{" TENSOR("a", "[2]", "[9223372036854775807,9223372036854775815]") "}",
                          0),
       "offsets near 2^63 and 2^64 are outside");
    ok(header_passes("{" TENSOR("a", "[2]", "[0,8]") "," TENSOR("z", "[0]", "[8,8]") "}", 8) &&
           !header_passes("{" TENSOR("a", "[2]", "[0,8]") "," TENSOR("z", "[0]", "[4,4]") "}", 8) &&
           !header_passes("{" TENSOR("a", "[2]", "[0,8]") "," TENSOR("z", "[0]", "[9,9]") "}", 8),
       "an empty tensor lies on a boundary");
}

static bool open_says(const void *bytes, size_t n, const char *words)
{
    const char *path = scratch("other");
    struct pf_st *st = NULL;

    write_file(path, bytes, n);
    const int err = pf_st_open(path, &st);
    pf_st_close(st);
    const bool said = strstr(pf_error_message(), words) && strstr(pf_error_message(), path);
    if (!said) {
        printf("# message: %s\n", pf_error_message());
    }
    return err == PF_EFORMAT && said;
}

static void other_files_are_named(void)
{
    static const char zip[] = "PK\3\4\0\0\0\0\0\0\0\0\0\0\0\0",
                      pickle[] = "\x80\2}q\0(X\5\0\0\0abc", html[] = "<!DOCTYPE html><html>",
                      page[] = "\n<HTML><body>",
                      lfs[] = "version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
                      gguf[] = "GGUF\3\0\0\0\0\0\0\0", json[] = "{\"metadata\": {}}";

    ok(open_says(zip, sizeof zip, "a zip archive"), "a zip archive is called that");
    ok(open_says(pickle, sizeof pickle, "a Python pickle"), "a pickle is called that");
    ok(open_says(html, sizeof html, "an HTML page"), "an HTML page is called that");
    ok(open_says(page, sizeof page, "an HTML page"), "so it is in capitals, after a blank line");
    ok(open_says(lfs, sizeof lfs, "a git-lfs pointer"), "a git-lfs pointer is called that");
    ok(open_says(gguf, sizeof gguf, "a GGUF file"), "a GGUF file is called that");
    ok(open_says(json, sizeof json, "JSON text"), "JSON text is called that");
    ok(open_says("", 0, "0 bytes"), "an empty file is called that");
    ok(open_says("\x10\0\0\0\0\0\0\0{}", 10, "16 bytes, but 10 bytes in all"),
       "a short file is told with both lengths");
    struct pf_st *st = NULL;
    ok(pf_st_open(scratch("absent"), &st) == PF_EIO && pf_st_open(directory, &st) == PF_EIO,
       "a missing file and a directory are I/O errors");
}

/* Reading. -------------------------------------------------------------------------------------
 */

static void reference_is_read(void)
{
    struct pf_st *st;
    float value = 0;
    int8_t small[3] = {9, 9, 9};

    if (!ok(pf_st_open(REFERENCE, &st) == 0, "a file of the reference library opens")) {
        return;
    }
    ok(pf_st_n_tensors(st) == 28 && pf_st_n_metadata(st) == 1 &&
           strcmp(pf_st_find_metadata(st, "format"), "pt") == 0 &&
           !pf_st_find_metadata(st, "formal"),
       "28 tensors, one metadata entry");
    const struct pf_st_tensor *t = pf_st_find(st, "scalar");
    ok(t && t->n_dims == 0 && t->dtype == PF_DTYPE_F32 && pf_st_read(st, t, 0, 4, &value) == 0 &&
           value == 1.5F,
       "a scalar is read");
    t = pf_st_find(st, "i.i8");
    ok(t && pf_st_read(st, t, 1, 2, small) == 0 && small[0] == 1 && small[1] == 2 && small[2] == 9,
       "a part of a tensor is read, and no more");
    ok(pf_st_read(st, t, 2, 2, small) == PF_EINVAL &&
           pf_st_read(st, t, UINT64_MAX, 2, small) == PF_EINVAL &&
           pf_st_read(st, t, 3, 0, NULL) == 0,
       "a range outside the tensor is refused");
    t = pf_st_find(st, "w.f32");
    ok(t && t->n_dims == 2 && t->shape[0] == 3 && t->shape[1] == 5 && t->end - t->begin == 60,
       "a shape is read");
    ok(pf_st_find(st, "caf\xc3\xa9 \xe6\x9d\x83 \xf0\x9f\x98\x80") && pf_st_find(st, "") &&
           pf_st_find(st, "tab\t newline\n bell\x07 del\x7f \b\f\r") && !pf_st_find(st, "nobody"),
       "odd names are found, absent ones are not");
    pf_st_close(st);
}

static void names_hold_nul(void)
{
    struct pf_str s;
    struct pf_st *st = NULL;

    pf_str_init(&s);
    make_file(&s, "{" TENSOR("a\\u0000b", "[1]", "[0,4]") "," TENSOR("a", "[1]", "[4,8]") "}", 8);
    ok(parse_image(s.text, s.len, &st) == 0 && pf_st_find_bytes(st, "a\0b", 3) &&
           pf_st_find_bytes(st, "a\0b", 3)->name_bytes == 3 && pf_st_find(st, "a")->begin == 4,
       "a name with NUL inside is another name");
    char byte;
    ok(pf_st_read(st, pf_st_tensor(st, 0), 0, 1, &byte) == PF_EINVAL,
       "a header without a file has no data");
    pf_st_close(st);
    st = NULL;
    make_file(&s, "{\"__metadata__\":{\"b\":\"1\",\"a\":\"2\",\"b\":\"3\",\"\":\"4\",\"b\":\"5\"}}",
              0);
    ok(parse_image(s.text, s.len, &st) == 0 && pf_st_n_metadata(st) == 3 &&
           strcmp(pf_st_metadata(st, 1)->key, "a") == 0 &&
           strcmp(pf_st_find_metadata(st, "b"), "5") == 0 &&
           strcmp(pf_st_find_metadata(st, ""), "4") == 0,
       "metadata is sorted, of a repeated key the last value counts");
    pf_st_close(st);
    pf_str_release(&s);
}

static void shrunken_file_is_an_error(void)
{
    const char *path = scratch("shrinks.safetensors");
    struct pf_str s;
    struct pf_st *st = NULL;
    char data[8];

    pf_str_init(&s);
    make_file(&s, "{" TENSOR("a", "[2]", "[0,8]") "}", 8);
    write_file(path, s.text, s.len);
    ok(pf_st_open(path, &st) == 0 && truncate(path, (off_t)s.len - 1) == 0 &&
           pf_st_read(st, pf_st_tensor(st, 0), 0, 8, data) == PF_EFORMAT,
       "a file that shrinks while it is open gives an error");
    pf_st_close(st);
    pf_str_release(&s);
}

/* Damage. --------------------------------------------------------------------------------------
 */

static void truncations_are_refused(const char *image, size_t n)
{
    size_t n_passed = 0;

    for (size_t k = 0; k < n; k++) {
        char *copy = malloc(k + 1); /* of the exact size, so that a sanitizer sees every overrun */
        char *exact = copy ? realloc(copy, k ? k : 1) : NULL;
        if (!exact) {
            break;
        }
        memcpy(exact, image, k);
        n_passed += passes(exact, k);
        free(exact);
    }
    ok(passes(image, n) && n_passed == 0, "each of %zu truncations is refused", n);
}

static bool is_consistent(const struct pf_st *st)
{
    uint64_t at = 0;

    for (size_t i = 0; i < pf_st_n_tensors(st); i++) {
        const struct pf_st_tensor *t = pf_st_tensor(st, i);
        if (t->begin != at || t->end < t->begin ||
            pf_st_find_bytes(st, t->name, t->name_bytes) != t) {
            return false;
        }
        at = t->end;
    }
    return at == pf_st_file_bytes(st) - pf_st_data_offset(st);
}

static void flips_do_no_harm(const char *image, size_t n, size_t header_end)
{
    unsigned seed = 1;
    int n_accepted = 0, n_wrong = 0;
    const int n_rounds = 20000;
    char *copy = malloc(n);

    for (int round = 0; copy && round < n_rounds; round++) {
        struct pf_st *st = NULL;
        memcpy(copy, image, n);
        for (int flips = rand_r(&seed) % 3; flips >= 0; flips--) {
            copy[(size_t)rand_r(&seed) % header_end] ^= (char)(1 << rand_r(&seed) % 8);
        }
        const int err = parse_image(copy, n, &st);
        n_accepted += err == 0;
        n_wrong += err ? err != PF_EFORMAT : !is_consistent(st);
        pf_st_close(st);
    }
    free(copy);
    ok(n_wrong == 0 && n_accepted > 0 && n_accepted < n_rounds,
       "%d headers with flipped bits: refused, or (%d of them) still consistent", n_rounds,
       n_accepted);
}

static void damage_is_found(void)
{
    char *image;
    size_t n;
    struct pf_st *st = NULL;

    if (!ok(pf_file_read_all(REFERENCE, 0, &image, &n) == 0 && parse_image(image, n, &st) == 0,
            "the reference file is there")) {
        return;
    }
    truncations_are_refused(image, n);
    flips_do_no_harm(image, n, pf_st_data_offset(st));
    pf_st_close(st);
    pf_free(image);
}

/* Writing. -------------------------------------------------------------------------------------
 */

static bool same_files(const char *a, const char *b)
{
    char *x = NULL, *y = NULL;
    size_t n_x, n_y;
    const bool same = pf_file_read_all(a, 0, &x, &n_x) == 0 &&
                      pf_file_read_all(b, 0, &y, &n_y) == 0 && n_x == n_y && memcmp(x, y, n_x) == 0;

    pf_free(x);
    pf_free(y);
    return same;
}

/* Copy every tensor, described and written in orders of no meaning, a few bytes at a time. */
static int copy_file(const struct pf_st *st, const char *path, struct pf_st_writer *w)
{
    const size_t n = pf_st_n_tensors(st);
    size_t index[64];
    char bytes[7];

    for (size_t k = 0; k < n; k++) {
        const struct pf_st_tensor *t = pf_st_tensor(st, k * 5 % n);
        PF_TRY(
            pf_st_writer_add_tensor(w, t->name, t->dtype, t->n_dims, t->shape, &index[k * 5 % n]));
    }
    PF_TRY(pf_st_writer_add_metadata(w, "format", "pt"));
    PF_TRY(pf_st_writer_begin(w, path));
    for (size_t k = n; k-- > 0;) {
        const struct pf_st_tensor *t = pf_st_tensor(st, k);
        for (uint64_t at = 0, now; at < t->end - t->begin; at += now) {
            now = t->end - t->begin - at < sizeof bytes ? t->end - t->begin - at : sizeof bytes;
            PF_TRY(pf_st_read(st, t, at, now, bytes));
            PF_TRY(pf_st_writer_write(w, index[k], at, bytes, now));
        }
    }
    return pf_st_writer_finish(w, false);
}

static void reference_is_reproduced(void)
{
    const char *path = scratch("copy.safetensors");
    struct pf_st *st = NULL;
    struct pf_st_writer *w = NULL;

    ok(pf_st_open(REFERENCE, &st) == 0 && pf_st_writer_new(&w) == 0 &&
           copy_file(st, path, w) == 0 && same_files(path, REFERENCE),
       "a file of the reference library is written byte for byte");
    pf_st_writer_free(w);
    pf_st_close(st);
}

static void unfinished_file_is_refused(void)
{
    const char *path = scratch("unfinished.safetensors");
    struct pf_st_writer *w = NULL;
    struct pf_st *st = NULL;
    const float data[4] = {1, 2, 3, 4};
    uint64_t bytes = 0;
    size_t i;

    ok(pf_st_writer_new(&w) == 0 &&
           pf_st_writer_add_tensor(w, "a", PF_DTYPE_F32, 2, (uint64_t[]){2, 2}, &i) == 0 &&
           pf_st_writer_file_bytes(w, &bytes) == 0 &&
           pf_st_writer_add_tensor(w, "b", PF_DTYPE_F32, 0, NULL, NULL) == PF_EINVAL &&
           pf_st_writer_begin(w, path) == 0 && pf_st_writer_offset(w, i) + 16 == bytes &&
           pf_st_writer_tensor_bytes(w, i) == 16,
       "the layout is known before the file is written, and is then fixed");
    ok(pf_st_writer_write(w, i, 8, data, 9) == PF_EINVAL &&
           pf_st_writer_write(w, i + 1, 0, data, 4) == PF_EINVAL &&
           pf_st_writer_write(w, i, 4, data + 1, 12) == 0,
       "nothing is written outside a tensor");
    ok(pf_st_writer_finish(w, false) == PF_EBUG && strstr(pf_error_message(), "12 bytes") &&
           pf_st_open(path, &st) == PF_EFORMAT,
       "a file with bytes missing cannot be finished, and nobody can open it");
    ok(pf_st_writer_write(w, i, 0, data, 4) == 0 && pf_st_writer_finish(w, true) == 0 &&
           pf_st_open(path, &st) == 0 && pf_st_file_bytes(st) == bytes,
       "it can once they are written");
    pf_st_close(st);
    pf_st_writer_free(w);
}

static void save_is_atomic(void)
{
    const char *path = scratch("saved.safetensors");
    const uint64_t shape[1] = {2};
    const float old[2] = {1, 2}, new[2] = {3, 4};
    float got[2] = {0, 0};
    struct pf_st_source t = {"x", PF_DTYPE_F32, 1, shape, old};
    const struct pf_st_source twice[2] = {t, t};
    const struct pf_st_metadata m[2] = {{.key = "z", .value = "1"}, {.key = "a", .value = "\"\n"}};
    struct pf_st *st = NULL, *held = NULL;

    ok(pf_st_save(path, NULL, 0, &t, 1) == 0 && pf_st_open(path, &held) == 0, "a file is saved");
    t.data = new;
    ok(pf_st_save(path, m, 2, &t, 1) == 0 && pf_st_open(path, &st) == 0 &&
           pf_st_read(st, pf_st_find(st, "x"), 0, 8, got) == 0 && got[1] == 4 &&
           strcmp(pf_st_find_metadata(st, "a"), "\"\n") == 0,
       "and replaced");
    ok(pf_st_read(held, pf_st_find(held, "x"), 0, 8, got) == 0 && got[1] == 2,
       "whoever holds the old one still reads it");
    ok(pf_st_save(path, NULL, 0, twice, 2) == PF_EINVAL &&
           pf_st_read(st, pf_st_find(st, "x"), 0, 8, got) == 0 && got[1] == 4,
       "a save that fails leaves the file alone");
    ok(pf_st_save(path, NULL, 0, NULL, 0) == 0, "a file of no tensors can be saved");
    pf_st_close(st);
    pf_st_close(held);
    ok(pf_st_open(path, &st) == 0 && pf_st_n_tensors(st) == 0 && pf_st_file_bytes(st) == 16,
       "and read");
    pf_st_close(st);
    struct pf_str_list names = {0};
    ok(pf_dir_list(directory, &names) == 0, "the directory can be listed");
    for (size_t i = 0; i < names.n; i++) {
        ok(!strstr(names.items[i], ".tmp-"), "%s is nothing left aside", names.items[i]);
    }
    pf_str_list_release(&names);
}

static void impossible_tensors_are_refused(void)
{
    const char *path = scratch("never.safetensors");
    struct pf_st_writer *w = NULL;
    const uint64_t huge[2] = {UINT64_C(1) << 32, UINT64_C(1) << 32}, three[1] = {3},
                   large[1] = {UINT64_C(1) << 57};

    ok(pf_st_writer_new(&w) == 0 &&
           pf_st_writer_add_tensor(w, "a", PF_DTYPE_U8, 2, huge, NULL) == PF_EINVAL &&
           pf_st_writer_add_tensor(w, "a", PF_DTYPE_F4, 1, three, NULL) == PF_EINVAL &&
           pf_st_writer_add_tensor(w, "__metadata__", PF_DTYPE_U8, 1, three, NULL) == PF_EINVAL &&
           pf_st_writer_add_tensor(w, "\xff", PF_DTYPE_U8, 1, three, NULL) == PF_EINVAL &&
           pf_st_writer_add_metadata(w, "k", "\xc0\x80") == PF_EINVAL,
       "sizes that overflow or end inside a byte, reserved names and bad UTF-8 are refused");
    ok(pf_st_writer_add_tensor(w, "a", PF_DTYPE_U8, 1, three, NULL) == 0 &&
           pf_st_writer_add_tensor(w, "a", PF_DTYPE_F32, 1, three, NULL) == 0 &&
           pf_st_writer_begin(w, path) == PF_EINVAL && strstr(pf_error_message(), "'a'") &&
           !pf_path_exists(path),
       "a name given twice, with two dtypes, is refused before a file is made");
    pf_st_writer_free(w);
    w = NULL;
    ok(pf_st_writer_new(&w) == 0 && pf_st_writer_add_metadata(w, "k", "1") == 0 &&
           pf_st_writer_add_metadata(w, "k", "2") == 0 && pf_st_writer_begin(w, path) == PF_EINVAL,
       "so is a metadata key");
    pf_st_writer_free(w);
    w = NULL;
    bool added = pf_st_writer_new(&w) == 0;
    for (int i = 0; i < 64 && added; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        added = pf_st_writer_add_tensor(w, name, PF_DTYPE_F64, 1, large, NULL) == 0;
    }
    ok(added && pf_st_writer_begin(w, path) == PF_EINVAL && !pf_path_exists(path),
       "data that overflows is refused before a file is made");
    pf_st_writer_free(w);
}

/* 2^20 empty tensors whose header has `extra` bytes more than readers take: all names have one
 * length but the first, which makes up the rest. */
static int describe_many(struct pf_st_writer *w, int extra)
{
    const int n = 1 << 20,
              other = (int)strlen("\"\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},");
    const int room = PF_ST_HEADER_MAX_BYTES - 1 - n * other + extra, width = room / n;
    char *name = pf_alloc((size_t)(room % n + width) + 1);

    if (!name) {
        return PF_ENOMEM;
    }
    for (int i = 0; i < n; i++) {
        const int n_bytes = i == 0 ? width + room % n : width;
        memset(name, 'x', (size_t)n_bytes);
        name[n_bytes] = '\0';
        for (int k = 0, rest = i; k < 7; k++, rest /= 10) {
            name[k] = (char)('0' + rest % 10);
        }
        PF_TRY(pf_st_writer_add_tensor(w, name, PF_DTYPE_U8, 1, (uint64_t[]){0}, NULL));
    }
    pf_free(name);
    return 0;
}

static void header_limit_is_kept(void)
{
    const char *path = scratch("large.safetensors");
    struct pf_st_writer *w = NULL;
    struct pf_st *st = NULL;
    uint64_t bytes = 0;

    ok(pf_st_writer_new(&w) == 0 && describe_many(w, 1) == 0 &&
           pf_st_writer_begin(w, path) == PF_EINVAL && !pf_path_exists(path),
       "2^20 tensors with a header of 100,000,001 bytes: refused before a file is made");
    pf_st_writer_free(w);
    w = NULL;
    ok(pf_st_writer_new(&w) == 0 && describe_many(w, 0) == 0 &&
           pf_st_writer_file_bytes(w, &bytes) == 0 && bytes == 100000008 &&
           pf_st_writer_begin(w, path) == 0 && pf_st_writer_finish(w, false) == 0,
       "with a header of 100,000,000: written");
    pf_st_writer_free(w);
    size_t n_found = 0;
    const int err = pf_st_open(path, &st);
    for (size_t i = 0; !err && i < pf_st_n_tensors(st); i++) {
        n_found += pf_st_find(st, pf_st_tensor(st, i)->name) == pf_st_tensor(st, i);
    }
    ok(n_found == 1 << 20, "and read, each tensor found by its name");
    pf_st_close(st);
    unlink(path);
}

int main(void)
{
    if (!mkdtemp(directory)) {
        ok(false, "no scratch directory");
        return done();
    }
    corpus_verdicts_match();
    structure_is_strict();
    ignored_fields_are_valid();
    arithmetic_is_checked();
    other_files_are_named();
    reference_is_read();
    names_hold_nul();
    shrunken_file_is_an_error();
    damage_is_found();
    reference_is_reproduced();
    unfinished_file_is_refused();
    save_is_atomic();
    impossible_tensors_are_refused();
    header_limit_is_kept();
    pf_rmtree(directory);
    return done();
}
