/* SPDX-License-Identifier: Apache-2.0 */
/* Command lines: every spelling of an option, what is refused, and the help text. */
#include <pf/error.h>
#include <pf/opts.h>
#include <pf/version.h>

#include "tap.h"

#include <stdlib.h>
#include <string.h>

struct fields {
    struct pf_opts_shared shared;
    bool dry_run;
    const char *to;
    int64_t threads;
    size_t max_memory;
    double rtol;
    struct pf_opt_list only;
};

#define MAX_ARGS 16

/* Parse words separated by blanks; operands are joined by '|' in *rest. */
static int parse(const char *line, struct fields *f, char rest[256])
{
    static char words[256];
    char *argv[MAX_ARGS + 2] = {(char[]){"prog"}};
    int argc = 1;
    const struct pf_opt table[] = {
        {'n', "dry-run", NULL, "write nothing", PF_OPT_FLAG, &f->dry_run},
        {'t', "to", "FORMAT", "target", PF_OPT_STRING, &f->to},
        {'j', "threads", "N", "threads", PF_OPT_I64, &f->threads},
        {0, "max-memory", "SIZE", "limit", PF_OPT_BYTES, &f->max_memory},
        {0, "rtol", "X", "tolerance", PF_OPT_F64, &f->rtol},
        {0, "only", "GLOB", "choose", PF_OPT_STRING_LIST, &f->only},
        PF_OPTS_SHARED(&f->shared),
    };

    *f = (struct fields){.threads = 1};
    snprintf(words, sizeof words, "%s", line);
    for (char *w = words, *save = NULL; (w = strtok_r(w, " ", &save)) && argc <= MAX_ARGS;
         w = NULL) {
        argv[argc++] = w;
    }
    const int err = pf_opts_parse(table, PF_OPTS_N(table), &argc, argv);
    rest[0] = '\0';
    for (int i = 1, n = 0; !err && i < argc; i++) {
        n += snprintf(rest + n, 256 - (size_t)n, "%s%s", i > 1 ? "|" : "", argv[i]);
    }
    return err;
}

static void spellings(void)
{
    struct fields f;
    char rest[256];

    ok(parse("--to=hf --threads 4 a b", &f, rest) == 0 && strcmp(f.to, "hf") == 0 &&
           f.threads == 4 && strcmp(rest, "a|b") == 0,
       "long options with = and with a blank");
    ok(parse("-thf -j 4 -nqqv", &f, rest) == 0 && strcmp(f.to, "hf") == 0 && f.threads == 4 &&
           f.dry_run && f.shared.quiet == 2 && f.shared.verbose == 1,
       "short options: glued, apart, bundled");
    ok(parse("-nt hf x", &f, rest) == 0 && f.dry_run && strcmp(f.to, "hf") == 0 &&
           strcmp(rest, "x") == 0,
       "a bundle whose last takes a value");
    ok(parse("a -n b --json c", &f, rest) == 0 && f.dry_run && f.shared.json &&
           strcmp(rest, "a|b|c") == 0,
       "operands between options keep their order");
    ok(parse("a -- -n --to -- b", &f, rest) == 0 && !f.dry_run &&
           strcmp(rest, "a|-n|--to|--|b") == 0,
       "-- ends options");
    ok(parse("- -n", &f, rest) == 0 && f.dry_run && strcmp(rest, "-") == 0, "- is an operand");
    ok(parse("--max-memory 1Gi --rtol=1e-3 --threads=-2", &f, rest) == 0 &&
           f.max_memory == (size_t)1 << 30 && f.rtol == 1e-3 && f.threads == -2,
       "typed values");
    ok(parse("--only a --only=b --only=", &f, rest) == 0 && f.only.n == 3 &&
           strcmp(f.only.items[1], "b") == 0 && *f.only.items[2] == '\0',
       "a list grows; an empty value is a value");
    ok(parse("--threads 1 --threads 2", &f, rest) == 0 && f.threads == 2, "the last one wins");
    ok(parse("", &f, rest) == 0 && f.threads == 1 && !f.to, "defaults stay");
    ok(parse("-hV --no-progress", &f, rest) == 0 && f.shared.help && f.shared.version &&
           f.shared.no_progress,
       "shared options");
    ok(parse("key=value -x=1", &f, rest) == PF_EUSAGE, "key=value is an operand, -x is unknown");
}

static void misuse(void)
{
    static const struct {
        const char *line, *message;
    } cases[] = {
        {"--thread 4", "unknown option '--thread'; did you mean '--threads'? (see --help)"},
        {"--frobnicate", "unknown option '--frobnicate' (see --help)"},
        {"-Z", "unknown option '-Z' (see --help)"},
        {"-nZ", "unknown option '-Z' (see --help)"},
        {"--to", "option '--to' needs a value (see --help)"},
        {"-nj", "option '-j' needs a value (see --help)"},
        {"--dry-run=yes", "option '--dry-run' takes no value (see --help)"},
        {"--threads four", "option '--threads': 'four' is not an integer (see --help)"},
        {"--rtol=x", "option '--rtol': 'x' is not a number (see --help)"},
        {"--max-memory=1X",
         "option '--max-memory': '1X' is not a size; write for example 512M or 1Gi (see --help)"},
        {"--=x", "unknown option '--' (see --help)"},
    };
    struct fields f;
    char rest[256];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ok(parse(cases[i].line, &f, rest) == PF_EUSAGE &&
               strcmp(pf_error_message(), cases[i].message) == 0,
           "%s -> %s", cases[i].line, pf_error_message());
    }
}

static void help_text(void)
{
    bool flag = false;
    const char *to = NULL;
    const struct pf_opt table[] = {
        {'n', "dry-run", NULL, "write nothing", PF_OPT_FLAG, &flag},
        {0, "to", "FORMAT", "target", PF_OPT_STRING, &to},
        {'x', NULL, NULL, "short only", PF_OPT_FLAG, &flag},
        {0, "hidden", NULL, NULL, PF_OPT_FLAG, &flag},
        {0, "a-very-long-option-name-that-needs-room", "VALUE", "below", PF_OPT_STRING, &to},
    };
    char text[1024] = "";
    FILE *const to_text = fmemopen(text, sizeof text, "w");

    pf_opts_print_help(to_text, "prog [options] A\nprog --check", table, PF_OPTS_N(table));
    fclose(to_text);
    ok(strcmp(text, "usage: prog [options] A\n"
                    "       prog --check\n"
                    "\n"
                    "options:\n"
                    "  -n, --dry-run    write nothing\n"
                    "      --to FORMAT  target\n"
                    "  -x               short only\n"
                    "      --a-very-long-option-name-that-needs-room VALUE\n"
                    "                   below\n") == 0,
       "help is aligned, hidden rows are left out");
}

static void describe_test_library(char *buf, size_t buf_bytes)
{
    snprintf(buf, buf_bytes, "1.2.3");
}

static void version_text(void)
{
    char text[2048] = "", want[64];
    FILE *to_text = fmemopen(text, sizeof text, "w");

    pf_version_print(to_text, "pf-x", false);
    fclose(to_text);
    snprintf(want, sizeof want, "pf-x %s\n", pf_version_string());
    ok(strcmp(text, want) == 0, "the short version is one line");
    pf_version_add_row("testlib", describe_test_library);
    to_text = fmemopen(text, sizeof text, "w");
    pf_version_print(to_text, "pf-x", true);
    fclose(to_text);
    ok(strstr(text, "features") && strstr(text, "compiler") && strstr(text, "testlib      1.2.3"),
       "the long one has features, compiler and added rows");
}

int main(void)
{
    spellings();
    misuse();
    help_text();
    version_text();
    return done();
}
