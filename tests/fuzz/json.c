/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The JSON reader on anything. A text that it takes must survive printing and reading again, and
 * every getter must cope with every node. Without libFuzzer: files given as arguments are replayed;
 * with none, built-in seeds are mutated a fixed number of times, the same each run.
 */
#include <pf/error.h>
#include <pf/json.h>
#include <pf/mem.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void visit(const struct pf_json *node)
{
    int64_t i = 0;
    uint64_t u = 0;
    double x = 0;
    bool b = false;
    const char *s = NULL;

    (void)pf_json_as_i64(node, &i);
    (void)pf_json_as_u64(node, &u);
    (void)pf_json_as_f64(node, &x);
    (void)pf_json_as_bool(node, &b);
    (void)pf_json_as_string(node, &s);
    (void)pf_json_refuse_unknown(node, &s, 0);
    PF_ASSERT(pf_json_path(node) != NULL && pf_json_line(node) > 0);
    for (size_t c = 0; c < pf_json_n(node); c++) {
        const char *const key = pf_json_key(node, c);
        PF_ASSERT(!key || pf_json_get(node, key) == pf_json_child(node, c));
        visit(pf_json_child(node, c));
    }
}

static void must_survive(const struct pf_json *doc)
{
    struct pf_json *again = NULL;
    struct pf_json_out out;
    struct pf_str text;

    pf_str_init(&text);
    pf_json_out_init(&out, &text, 1);
    pf_json_out_node(&out, doc);
    PF_ASSERT(pf_json_out_finish(&out) == 0);
    PF_ASSERT(pf_json_parse_text(text.text, text.len, "again", &again) == 0);
    char *const first = pf_json_print(doc), *const second = pf_json_print(again);
    /* keys may be escaped another way, values are copied: lengths of values stay */
    PF_ASSERT(first && second && pf_json_n(doc) == pf_json_n(again));
    pf_free(first);
    pf_free(second);
    pf_json_free(again);
    pf_str_release(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pf_json *doc = NULL;
    const int err = pf_json_parse_text((const char *)data, size, "fuzz", &doc);

    if (err) {
        PF_ASSERT(err == PF_EUSAGE && !doc && strstr(pf_error_message(), "bad JSON in 'fuzz'"));
        return 0;
    }
    visit(doc);
    must_survive(doc);
    pf_json_free(doc);
    return 0;
}

#ifndef PF_LIBFUZZER

#define ITERATIONS 30000
#define MAX_BYTES 512

static const char *const seeds[] = {
    "{\"__metadata__\":{\"format\":\"pt\"},\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],"
    "\"data_offsets\":[0,24]}}",
    "{\"max_steps\": 200, \"learning_rate\": 1e-3, \"mesh\": {\"dp\": 2}, \"on\": true}",
    "[0, -1.5e+10, \"\\u20ac\\ud83d\\ude00\\n\", null, [[[]]], {}, \"\xc3\xa4\"]",
    " \t\r\n\"lonely\" ",
};

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Change, drop, double or insert bytes; insertions favour what the grammar knows. */
static size_t mutate(uint8_t *data, size_t size, uint64_t *state)
{
    static const char known[] = "{}[]\",:\\0123456789eE+-.tfnu \n\xc3\xff\x01";
    const uint64_t r = next_random(state);
    const size_t at = size ? (size_t)(r >> 8) % size : 0;
    const uint8_t byte =
        r & 128 ? (uint8_t)(r >> 40) : (uint8_t)known[(r >> 40) % (sizeof known - 1)];

    if (r % 4 == 0 && size > 0) {
        data[at] = byte;
    } else if (r % 4 == 1 && size > 0) {
        memmove(data + at, data + at + 1, size - at - 1);
        size--;
    } else if (r % 4 == 2 && size < MAX_BYTES) {
        memmove(data + at + 1, data + at, size - at);
        data[at] = byte;
        size++;
    } else if (size > 0 && size < MAX_BYTES / 2) {
        const size_t n = (size_t)(r >> 48) % (size - at) + 1;
        memmove(data + at + n, data + at, size - at);
        size += n;
    }
    return size;
}

static void fuzz_seeds(void)
{
    uint64_t state = 88172645463325252u;

    for (int i = 0; i < ITERATIONS; i++) {
        uint8_t data[MAX_BYTES];
        const char *const seed = seeds[(size_t)i % (sizeof seeds / sizeof seeds[0])];
        size_t size = strlen(seed);
        memcpy(data, seed, size);
        for (uint64_t n = next_random(&state) % 4; n > 0; n--) {
            size = mutate(data, size, &state);
        }
        /* An exact copy, so that a read beyond its end is seen by AddressSanitizer. */
        uint8_t *const exact = malloc(size ? size : 1);
        PF_ASSERT(exact);
        memcpy(exact, data, size);
        LLVMFuzzerTestOneInput(exact, size);
        free(exact);
    }
}

static int replay(const char *path)
{
    FILE *const file = fopen(path, "rb");
    static uint8_t data[1 << 20];

    if (!file) {
        printf("not ok - cannot open %s\n", path);
        return 1;
    }
    const size_t size = fread(data, 1, sizeof data, file);
    fclose(file);
    LLVMFuzzerTestOneInput(data, size);
    return 0;
}

int main(int argc, char **argv)
{
    int failed = 0;

    for (int i = 1; i < argc; i++) {
        failed |= replay(argv[i]);
        printf("%s %d - %s\n", failed ? "not ok" : "ok", i, argv[i]);
    }
    if (argc == 1) {
        fuzz_seeds();
        printf("ok 1 - %d mutations of %zu seeds\n", ITERATIONS, sizeof seeds / sizeof seeds[0]);
    }
    printf("1..%d\n", argc > 1 ? argc - 1 : 1);
    return failed;
}

#endif
