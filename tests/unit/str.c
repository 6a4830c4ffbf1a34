/* SPDX-License-Identifier: Apache-2.0 */
/* Strings, strict numbers, globs, suggestions. */
#include <pf/error.h>
#include <pf/mem.h>
#include <pf/str.h>

#include "tap.h"

#include <math.h>
#include <string.h>

static void growing(void)
{
    struct pf_str s;
    char *text;

    pf_str_init(&s);
    ok(s.len == 0 && s.text[0] == '\0', "starts empty");
    for (int i = 0; i < 1000; i++) {
        pf_str_appendf(&s, "%d,", i);
    }
    pf_str_append_char(&s, '!');
    ok(pf_str_error(&s) == 0 && s.len == 3891 && strlen(s.text) == s.len &&
           pf_str_ends_with(s.text, "998,999,!"),
       "1000 appends");
    pf_str_clear(&s);
    ok(s.len == 0 && s.text[0] == '\0', "cleared");
    pf_str_append(&s, "abc");
    text = pf_str_steal(&s);
    ok(strcmp(text, "abc") == 0 && s.len == 0, "stolen");
    pf_free(text);
    text = pf_str_steal(&s);
    ok(text && *text == '\0', "an empty string can be stolen too");
    pf_free(text);
    pf_str_release(&s);
    pf_str_release(&s);
}

static bool splits_into(const char *text, bool trim, size_t n, const char *joined)
{
    struct pf_str_list list;
    struct pf_str s;

    if (pf_str_split(text, ',', trim, &list) != 0) {
        return false;
    }
    pf_str_init(&s);
    for (size_t i = 0; i < list.n; i++) {
        pf_str_appendf(&s, "<%s>", list.items[i]);
    }
    const bool same = list.n == n && strcmp(s.text, joined) == 0;
    pf_str_release(&s);
    pf_str_list_release(&list);
    return same;
}

static void splitting(void)
{
    ok(splits_into("", false, 0, ""), "nothing has no items");
    ok(splits_into("a", false, 1, "<a>") && splits_into("a,b", false, 2, "<a><b>"), "items");
    ok(splits_into("a,,b,", false, 4, "<a><><b><>"), "empty items are kept");
    ok(splits_into(",", false, 2, "<><>"), "a lone separator");
    ok(splits_into("  a , b\t", true, 2, "<a><b>") && splits_into("  ", true, 0, ""), "trimmed");
    ok(splits_into("1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8", false, 17,
                   "<1><2><3><4><5><6><7><8><9><1><2><3><4><5><6><7><8>"),
       "a list grows");
}

static void globs(void)
{
    ok(pf_glob_match("model.*.weight", "model.layers.0.mlp.weight"), "* crosses dots");
    ok(pf_glob_match("*/b", "a/x/b") && pf_glob_match("?[0-9]", "a7"), "* crosses slashes");
    ok(!pf_glob_match("model", "model.x") && !pf_glob_match("A", "a"), "whole name, case counts");
}

static bool is_i64(const char *text, int64_t want)
{
    int64_t value = ~want;

    return pf_parse_i64(text, &value) == 0 && value == want;
}

static void integers_are_strict(void)
{
    static const char *const wrong[] = {"",    " 1",  "1 ", "+1",  "0x10", "1.0",
                                        "1e3", "abc", "-",  "--1", "1_0",  "9223372036854775808"};
    int64_t value = 77;
    uint64_t big = 0;
    int bad = 0;

    ok(is_i64("0", 0) && is_i64("-5", -5) && is_i64("9223372036854775807", INT64_MAX) &&
           is_i64("-9223372036854775808", INT64_MIN),
       "integers to the ends of int64");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        bad += pf_parse_i64(wrong[i], &value) != PF_EUSAGE;
    }
    ok(bad == 0 && value == 77, "everything else is refused: '%s'", pf_error_message());
    ok(pf_parse_u64("18446744073709551615", &big) == 0 && big == UINT64_MAX &&
           pf_parse_u64("-1", &big) == PF_EUSAGE,
       "unsigned");
}

static void floats_are_strict(void)
{
    static const char *const wrong[] = {"",   "nan", "inf", "0x1p3", "1e", "1e+",   "e5",  "1 ",
                                        " 1", "1,5", ".",   "1.2.3", "-",  "1e999", "--1", "1f"};
    double x = 0;
    int bad = 0;

    ok(pf_parse_f64("1e-3", &x) == 0 && x == 1e-3 && pf_parse_f64("-.5", &x) == 0 && x == -0.5 &&
           pf_parse_f64("3.", &x) == 0 && x == 3 && pf_parse_f64("+2E+2", &x) == 0 && x == 200,
       "numbers");
    ok(pf_parse_f64("1e-999", &x) == 0 && x == 0, "underflow is zero");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        bad += pf_parse_f64(wrong[i], &x) != PF_EUSAGE;
    }
    ok(bad == 0, "everything else is refused");
}

static bool is_bytes(const char *text, size_t want)
{
    size_t value = ~want;

    return pf_parse_bytes(text, &value) == 0 && value == want;
}

static void sizes_are_strict(void)
{
    static const char *const wrong[] = {"",
                                        "M",
                                        "1X",
                                        "1 M",
                                        "-1",
                                        "1k",
                                        "1.2",
                                        "1.",
                                        ".5K",
                                        "1KK",
                                        "1iB",
                                        "1Kib",
                                        "1M ",
                                        "1e3",
                                        "1Mi ",
                                        "18446744073709551616",
                                        "19000000000G"};
    size_t value = 77;
    int bad = 0;

    ok(is_bytes("0", 0) && is_bytes("512", 512) && is_bytes("7B", 7), "plain bytes");
    ok(is_bytes("512M", 512000000) && is_bytes("1Gi", (size_t)1 << 30) && is_bytes("2KB", 2000) &&
           is_bytes("2KiB", 2048) && is_bytes("1T", 1000000000000) &&
           is_bytes("3Ti", (size_t)3 << 40),
       "powers of 1000 and 1024");
    ok(is_bytes("1.5G", 1500000000) && is_bytes("0.5Ki", 512), "fractions");
    ok(is_bytes("18446744073709551615", SIZE_MAX), "the largest");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        bad += pf_parse_bytes(wrong[i], &value) != PF_EUSAGE;
    }
    ok(bad == 0 && value == 77, "everything else is refused: '%s'", pf_error_message());
}

static void sizes_for_people(void)
{
    char buf[24];

    ok(strcmp(pf_format_bytes(812, buf), "812 B") == 0, "%s", buf);
    ok(strcmp(pf_format_bytes(1.5 * (1 << 30), buf), "1.5 GiB") == 0, "%s", buf);
    ok(strcmp(pf_format_bytes(900.0 * (1 << 20), buf), "900 MiB") == 0, "%s", buf);
}

static void digits_that_read_back(void)
{
    char buf[32];

    ok(strcmp(pf_format_f32(0.1f, buf), "0.1") == 0, "0.1f is %s", buf);
    ok(strcmp(pf_format_f32(0x1.99999cp-4f, buf), "0.10000001") == 0, "the next one is %s", buf);
    ok(strcmp(pf_format_f64(0.1, buf), "0.1") == 0 && strcmp(pf_format_f64(-0.0, buf), "-0") == 0,
       "doubles too, and the sign of zero");
    ok(strcmp(pf_format_f64(0.1 + 0.2, buf), "0.30000000000000004") == 0, "0.1 + 0.2 is %s", buf);
    ok(strcmp(pf_format_f64(-NAN, buf), "nan") == 0 &&
           strcmp(pf_format_f32(-INFINITY, buf), "-inf") == 0,
       "what is not finite is a word");
}

static void suggestions(void)
{
    static const char *const keys[] = {"learning_rate", "max_steps", NULL, "output_dir", "tp", "pp",
                                       "save_steps"};
    const size_t n = sizeof keys / sizeof keys[0];

    ok(pf_edit_distance("kitten", "sitting") == 3 && pf_edit_distance("", "abc") == 3 &&
           pf_edit_distance("ab", "ba") == 1 && pf_edit_distance("x", "x") == 0,
       "edit distance, with swaps");
    ok(pf_nearest("learning_rat", keys, n) == keys[0], "a missing letter");
    ok(pf_nearest("Max-Steps", keys, n) == keys[1], "case and dash");
    ok(pf_nearest("saev_steps", keys, n) == keys[6], "a swap");
    ok(pf_nearest("weight_decay", keys, n) == NULL, "nothing near");
}

int main(void)
{
    growing();
    splitting();
    globs();
    integers_are_strict();
    floats_are_strict();
    sizes_are_strict();
    sizes_for_people();
    digits_that_read_back();
    suggestions();
    return done();
}
