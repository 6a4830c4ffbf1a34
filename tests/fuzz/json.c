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

#include "replay.h"

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

static const char *const seeds[] = {
    "{\"__metadata__\":{\"format\":\"pt\"},\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],"
    "\"data_offsets\":[0,24]}}",
    "{\"max_steps\": 200, \"learning_rate\": 1e-3, \"mesh\": {\"dp\": 2}, \"on\": true}",
    "[0, -1.5e+10, \"\\u20ac\\ud83d\\ude00\\n\", null, [[[]]], {}, \"\xc3\xa4\"]",
    " \t\r\n\"lonely\" ",
};

int main(int argc, char **argv)
{
    struct fuzz_seed list[sizeof seeds / sizeof seeds[0]];

    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++) {
        list[i] = (struct fuzz_seed){seeds[i], strlen(seeds[i])};
    }
    return fuzz_main(argc, argv, list, sizeof seeds / sizeof seeds[0]);
}

#endif
