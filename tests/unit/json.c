/* SPDX-License-Identifier: Apache-2.0 */
/* JSON: what is refused, where the message points, what getters take, and what is written. */
#include <pf/error.h>
#include <pf/json.h>
#include <pf/mem.h>

#include "tap.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct pf_json *parse(const char *text)
{
    struct pf_json *doc = NULL;

    if (pf_json_parse_text(text, strlen(text), "c.json", &doc) != 0) {
        printf("# %s\n", pf_error_message());
    }
    return doc;
}

/* Refused, with this line and column and these words. */
static bool refuses(const char *text, size_t len, int line, int column, const char *words)
{
    struct pf_json *doc = NULL;
    char place[64];

    snprintf(place, sizeof place, "at line %d column %d: ", line, column);
    const int err = pf_json_parse_text(text, len, "c.json", &doc);
    const char *const message = pf_error_message();
    const bool good = err == PF_EUSAGE && !doc && strstr(message, "bad JSON in 'c.json'") &&
                      strstr(message, place) && strstr(message, words);
    if (!good) {
        printf("# got %d '%s'\n", err, message);
    }
    pf_json_free(doc);
    return good;
}

static void faults_are_placed(void)
{
    static const struct {
        const char *text;
        int line, column;
        const char *words;
    } cases[] = {
        {"", 1, 1, "end of the text"},
        {"  \n ", 2, 2, "end of the text"},
        {"{\"a\": 1,\n  \"b\" 2}", 2, 7, "expected ':'"},
        {"{\"a\": 1\n \"b\": 2}", 2, 2, "expected ',' or '}'"},
        {"[1, 2,]", 1, 7, "expected a value"},
        {"{\"a\": 1,}", 1, 9, "expected a key"},
        {"[1 2]", 1, 4, "expected ',' or ']'"},
        {"{'a': 1}", 1, 2, "expected a key"},
        {"{a: 1}", 1, 2, "expected a key"},
        {"[1] x", 1, 5, "end of the text, not 'x'"},
        {"{} {}", 1, 4, "end of the text"},
        {"// c\n1", 1, 1, "expected a value"},
        {"[01]", 1, 2, "leading zero"},
        {"[-]", 1, 3, "digit"},
        {"[1.]", 1, 4, "digit"},
        {"[.5]", 1, 2, "expected a value"},
        {"[+1]", 1, 2, "expected a value"},
        {"[1e]", 1, 4, "digit"},
        {"[NaN]", 1, 2, "expected a value"},
        {"[Infinity]", 1, 2, "expected a value"},
        {"[1e999]", 1, 2, "range of a double"},
        {"[0x10]", 1, 3, "expected ','"},
        {"[tru]", 1, 2, "expected a value"},
        {"[truex]", 1, 6, "expected ','"},
        {"[\"abc", 1, 2, "string without an end"},
        {"[\"a\tb\"]", 1, 4, "control character"},
        {"[\"\\x\"]", 1, 3, "unknown escape"},
        {"[\"\\u12g4\"]", 1, 3, "hexadecimal"},
        {"[\"\\u12", 1, 3, "hexadecimal"},
        {"[\"\\u0000\"]", 1, 3, "\\u0000"},
        {"[\"\\ud800\"]", 1, 3, "surrogate"},
        {"[\"\\udc00\\ud800\"]", 1, 3, "surrogate"},
        {"[\"\\ud800\\u0041\"]", 1, 3, "surrogate"},
        {"[\"\xff\"]", 1, 3, "UTF-8"},
        {"[\"\xc0\xaf\"]", 1, 3, "UTF-8"},
        {"[\"\xed\xa0\x80\"]", 1, 3, "UTF-8"},
        {"[\"\xf4\x90\x80\x80\"]", 1, 3, "UTF-8"},
        {"[\"\xe2\x82", 1, 3, "UTF-8"},
        {"\xef\xbb\xbf{}", 1, 1, "0xef"},
        {"{\"a\": 1, \"b\": {\"c\": 1, \"c\": 2}}", 1, 24, "'c' stands twice"},
        {"{\"a\": 1,\n\"\\u0061\": 2}", 2, 1, "'a' stands twice"},
        {"[\"\xc3\xa4\xc3\xb6\", x]", 1, 8, "not 'x'"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ok(refuses(cases[i].text, strlen(cases[i].text), cases[i].line, cases[i].column,
                   cases[i].words),
           "%s", pf_error_message());
    }
    ok(refuses("[1]\0", 4, 1, 4, "byte 0x00") || refuses("[1]\0", 4, 1, 4, "end"),
       "a NUL after the value");
    ok(refuses("[1\0]", 4, 1, 3, "byte 0x00"), "a NUL inside");
}

static void limits(void)
{
    char deep[301], number[101];
    struct pf_json *doc = NULL;

    memset(deep, '[', 300);
    deep[300] = '\0';
    ok(refuses(deep, 300, 1, 129, "nested more than 128 deep"), "129 levels are refused");
    memset(deep + 128, ']', 128);
    ok(pf_json_parse_text(deep, 256, "d", &doc) == 0, "128 levels are fine");
    pf_json_free(doc);
    memset(number, '1', 100);
    number[100] = '\0';
    ok(refuses(number, 100, 1, 1, "more than 63"), "a number of 100 digits is refused");
    ok(pf_json_parse_text(number, 63, "d", &doc) == 0, "one of 63 is fine");
    pf_json_free(doc);
}

static const char config[] = "{\n"
                             "  \"steps\": 200, \"rate\": 1e-3,\n"
                             "  \"mesh\": {\"dp\": 2,\n"
                             "           \"tp\": 4},\n"
                             "  \"files\": [\"a\", {\"n\": 9007199254740993}, -1, 2e3],\n"
                             "  \"on\": true, \"none\": null, \"Steps\": 1,\n"
                             "  \"big\": 18446744073709551615, \"half\": 0.5,\n"
                             "  \"euro\": \"\\u20ac \\ud83d\\ude00 \\\"\\\\\\/\\n\"\n"
                             "}\n";

static void walking(void)
{
    struct pf_json *const doc = parse(config);
    const struct pf_json *const n = pf_json_find(doc, "files[1].n");
    size_t len;

    ok(doc && pf_json_type(doc) == PF_JSON_OBJECT && pf_json_n(doc) == 10, "ten members");
    ok(strcmp(pf_json_key(doc, 2), "mesh") == 0 &&
           pf_json_child(doc, 2) == pf_json_get(doc, "mesh") && !pf_json_child(doc, 10),
       "in the order of the text");
    ok(n && strcmp(pf_json_path(n), "files[1].n") == 0 && pf_json_line(n) == 5, "path and line");
    ok(pf_json_line(pf_json_find(doc, "mesh.tp")) == 4, "the line of a key");
    ok(strcmp(pf_json_path(doc), "") == 0, "the root has no path");
    ok(!pf_json_get(doc, "step") && !pf_json_get(n, "x") && !pf_json_get(NULL, "x") &&
           !pf_json_find(doc, "files[9]") && !pf_json_find(doc, "mesh.dp.x"),
       "what is not there is NULL");
    ok(strncmp(pf_json_source(n, &len), "9007199254740993", 16) == 0 && len == 16, "source text");
    pf_json_free(doc);
}

static void numbers(void)
{
    struct pf_json *const doc = parse(config);
    int64_t i = 5;
    uint64_t u = 5;
    double x = 0;

    ok(pf_json_as_i64(pf_json_get(doc, "steps"), &i) == 0 && i == 200, "an integer");
    ok(pf_json_as_i64(pf_json_find(doc, "files[3]"), &i) == 0 && i == 2000, "2e3 is integral");
    ok(pf_json_as_i64(pf_json_find(doc, "files[1].n"), &i) == PF_EUSAGE && i == 2000,
       "beyond 2^53 is refused: %s", pf_error_message());
    ok(pf_json_as_i64(pf_json_get(doc, "half"), &i) == PF_EUSAGE, "a half is no integer: %s",
       pf_error_message());
    ok(pf_json_as_u64(pf_json_get(doc, "big"), &u) == 0 && u == UINT64_MAX, "2^64-1 is exact");
    ok(pf_json_as_u64(pf_json_find(doc, "files[2]"), &u) == PF_EUSAGE &&
           pf_json_as_u64(pf_json_find(doc, "files[3]"), &u) == PF_EUSAGE && u == UINT64_MAX,
       "as_u64 takes plain digits only");
    ok(pf_json_as_f64(pf_json_get(doc, "rate"), &x) == 0 && x == 1e-3, "a float");
    pf_json_free(doc);
}

static void members_with_defaults(void)
{
    struct pf_json *const doc = parse(config);
    int64_t i = 0;
    int n = 0;
    bool on = false;
    double x = 0;
    const char *text = NULL;

    ok(pf_json_i64(doc, "absent", 7, &i) == 0 && i == 7 && pf_json_i64(doc, "none", 8, &i) == 0 &&
           i == 8,
       "absent and null give the default");
    ok(pf_json_int(doc, "steps", 1, &n) == 0 && n == 200 && pf_json_f64(doc, "steps", 1, &x) == 0 &&
           x == 200 && pf_json_bool(doc, "on", false, &on) == 0 && on &&
           pf_json_string(doc, "euro", NULL, &text) == 0 &&
           strcmp(text, "\xe2\x82\xac \xf0\x9f\x98\x80 \"\\/\n") == 0,
       "values of each type, escapes decoded");
    ok(pf_json_bool(doc, "steps", false, &on) == PF_EUSAGE &&
           strcmp(pf_error_message(),
                  "'steps' must be a boolean, not a number ('c.json' line 2)") == 0,
       "a wrong type: %s", pf_error_message());
    ok(pf_json_int(doc, "big", 1, &n) == PF_EUSAGE && n == 200, "an int that does not fit");
    ok(pf_json_need_i64(pf_json_get(doc, "mesh"), "pp", &i) == PF_EUSAGE &&
           strcmp(pf_error_message(), "'mesh' has no 'pp' ('c.json' line 3)") == 0,
       "a missing member: %s", pf_error_message());
    ok(pf_json_need_string(doc, "none", &text) == PF_EUSAGE, "null is missing: %s",
       pf_error_message());
    ok(pf_json_i64(pf_json_get(doc, "files"), "x", 1, &i) == PF_EUSAGE, "members of an array: %s",
       pf_error_message());
    pf_json_free(doc);
}

static void unknown_keys(void)
{
    static const char *const known[] = {"max_steps", "mesh"};
    struct pf_json *const doc = parse("{\"mesh\": 1,\n\"max_step\": 2}");
    struct pf_json *const far = parse("{\"whatever\": 1}");

    ok(pf_json_refuse_unknown(doc, known, 2) == PF_EUSAGE &&
           strcmp(pf_error_message(), "'max_step' is not known; did you mean 'max_steps'? "
                                      "('c.json' line 2)") == 0,
       "%s", pf_error_message());
    ok(pf_json_refuse_unknown(far, known, 2) == PF_EUSAGE &&
           !strstr(pf_error_message(), "did you mean"),
       "%s", pf_error_message());
    pf_json_free(doc);
    pf_json_free(far);
}

static void options(void)
{
    const struct pf_json_options o = {
        .name = "m.json", .error_code = PF_EFORMAT, .allow_duplicates = true, .max_depth = 2};
    struct pf_json *doc = NULL;
    int64_t i = 0;

    ok(pf_json_parse_text_with("{\"a\":1,\"b\":0,\"a\":2}", 19, &o, &doc) == 0 &&
           pf_json_i64(doc, "a", 0, &i) == 0 && i == 2 && pf_json_n(doc) == 3,
       "duplicates allowed: the last wins, all can be walked");
    ok(pf_json_expect(doc, PF_JSON_ARRAY) == PF_EFORMAT, "the document's code: %s",
       pf_error_message());
    pf_json_free(doc);
    ok(pf_json_parse_text_with("[[[1]]]", 7, &o, &doc) == PF_EFORMAT, "%s", pf_error_message());
    ok(pf_json_parse_file("/nonexistent/x.json", &doc) == PF_EIO, "%s", pf_error_message());
}

static void large_objects(void)
{
    struct pf_str text;
    struct pf_json *doc = NULL;
    int bad = 0;

    pf_str_init(&text);
    pf_str_append(&text, "{");
    for (int i = 0; i < 5000; i++) {
        pf_str_appendf(&text, "%s\"k%d\":[%d]", i ? "," : "", i * 7919 % 5000, i);
    }
    pf_str_append(&text, "}");
    ok(pf_json_parse_text(text.text, text.len, "big", &doc) == 0, "5000 keys");
    for (int i = 0; doc && i < 5000; i++) {
        char key[16];
        int64_t value = -1;
        snprintf(key, sizeof key, "k%d", i * 7919 % 5000);
        bad += pf_json_as_i64(pf_json_child(pf_json_get(doc, key), 0), &value) != 0 || value != i;
    }
    ok(bad == 0, "each is found");
    pf_json_free(doc);
    pf_str_release(&text);
}

static void writing(void)
{
    struct pf_str s;
    struct pf_json_out j;

    pf_str_init(&s);
    pf_json_out_init(&j, &s, 0);
    pf_json_out_object_begin(&j);
    pf_json_out_member_i64(&j, "n", INT64_MIN);
    pf_json_out_key(&j, "u");
    pf_json_out_u64(&j, UINT64_MAX);
    pf_json_out_key(&j, "list");
    pf_json_out_array_begin(&j);
    pf_json_out_f64(&j, 0.1);
    pf_json_out_f32(&j, 0.1f);
    pf_json_out_f64(&j, NAN);
    pf_json_out_f32(&j, -INFINITY);
    pf_json_out_bool(&j, true);
    pf_json_out_null(&j);
    pf_json_out_raw(&j, "{}");
    pf_json_out_array_end(&j);
    pf_json_out_key(&j, "empty");
    pf_json_out_object_begin(&j);
    pf_json_out_object_end(&j);
    pf_json_out_member_string(&j, "t\"", "a\\\n\x01\xff\xe2\x82\xac");
    pf_json_out_object_end(&j);
    ok(pf_json_out_finish(&j) == 0 &&
           strcmp(s.text, "{\"n\":-9223372036854775808,\"u\":18446744073709551615,"
                          "\"list\":[0.1,0.1,null,null,true,null,{}],\"empty\":{},"
                          "\"t\\\"\":\"a\\\\\\n\\u0001\xef\xbf\xbd\xe2\x82\xac\"}") == 0,
       "%s", s.text);
    pf_str_release(&s);
}

static void indenting_and_printing(void)
{
    struct pf_json *const doc = parse("{ \"a\" : [ 1.50, {} ],\n\t\"b c\" : \"x \\\" y\" }");
    char *const compact = pf_json_print(doc), *const part = pf_json_print(pf_json_get(doc, "a"));
    struct pf_str s;
    struct pf_json_out j;

    ok(strcmp(compact, "{\"a\":[1.50,{}],\"b c\":\"x \\\" y\"}") == 0, "compact: %s", compact);
    ok(strcmp(part, "[1.50,{}]") == 0, "a part: %s", part);
    pf_str_init(&s);
    pf_json_out_init(&j, &s, 2);
    pf_json_out_node(&j, doc);
    ok(pf_json_out_finish(&j) == 0 &&
           strcmp(s.text, "{\n  \"a\": [\n    1.50,\n    {}\n  ],\n  \"b c\": \"x \\\" y\"\n}") ==
               0,
       "indented");
    pf_str_release(&s);
    pf_free(compact);
    pf_free(part);
    pf_json_free(doc);
}

static bool f64_returns(double x)
{
    struct pf_str s;
    struct pf_json_out j;

    pf_str_init(&s);
    pf_json_out_init(&j, &s, 0);
    pf_json_out_f64(&j, x);
    const double back = strtod(s.text, NULL);
    pf_str_release(&s);
    return memcmp(&back, &x, sizeof x) == 0;
}

static bool f32_returns(float x)
{
    struct pf_str s;
    struct pf_json_out j;

    pf_str_init(&s);
    pf_json_out_init(&j, &s, 0);
    pf_json_out_f32(&j, x);
    const float back = strtof(s.text, NULL), by_double = (float)strtod(s.text, NULL);
    const bool is_short = s.len <= 15;
    pf_str_release(&s);
    return memcmp(&back, &x, sizeof x) == 0 && memcmp(&by_double, &x, sizeof x) == 0 && is_short;
}

static void digits_give_the_number_back(void)
{
    unsigned seed = 1;
    int bad = 0;

    bad += !f64_returns(0.0) + !f64_returns(-0.0) + !f64_returns(DBL_MAX) + !f64_returns(5e-324) +
           !f64_returns(0.1) + !f64_returns(1e23) + !f32_returns(FLT_MAX) + !f32_returns(1e-45f);
    for (int i = 0; i < 20000; i++) {
        const uint64_t high = (uint64_t)(unsigned)rand_r(&seed), low = (unsigned)rand_r(&seed);
        const uint64_t bits = high << 33 ^ low;
        const uint32_t half = (uint32_t)(bits >> 20);
        double x;
        float f;
        memcpy(&x, &bits, sizeof x);
        memcpy(&f, &half, sizeof f);
        bad += isfinite(x) && !f64_returns(x);
        bad += isfinite(f) && !f32_returns(f);
    }
    ok(bad == 0, "20000 doubles and floats come back");
}

int main(void)
{
    faults_are_placed();
    limits();
    walking();
    numbers();
    members_with_defaults();
    unknown_keys();
    options();
    large_objects();
    writing();
    indenting_and_printing();
    digits_give_the_number_back();
    return done();
}
