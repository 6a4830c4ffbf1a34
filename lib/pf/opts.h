/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opts.h - command lines: one table a tool drives parsing, --help, and the check of its man page.
 *
 * GNU rules: --name=value, --name value, -n value, -nvalue, bundled flags (-qv), "--" ends options,
 * a lone "-" is an operand, operands may stand between options. Names are not abbreviated. Without
 * an option the field keeps what the caller put there; the last of two wins.
 *
 *     struct pf_opts_shared shared = {0};
 *     bool dry_run = false;
 *     size_t max_memory = (size_t)1 << 30;
 *     const struct pf_opt table[] = {
 *             {0, "dry-run", NULL, "print the plan; write nothing", PF_OPT_FLAG, &dry_run},
 *             {0, "max-memory", "SIZE", "never use more (1Gi)", PF_OPT_BYTES, &max_memory},
 *             PF_OPTS_SHARED(&shared),
 *     };
 *     PF_TRY(pf_opts_parse(table, PF_OPTS_N(table), &argc, argv));
 *     // argv[1..argc) are the operands now
 *
 * All functions are local.
 */
#ifndef PF_OPTS_H
#define PF_OPTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum pf_opt_type {
    PF_OPT_FLAG,        /* bool: set to true */
    PF_OPT_COUNT,       /* int: one more each time */
    PF_OPT_STRING,      /* const char *: points into argv */
    PF_OPT_I64,         /* int64_t */
    PF_OPT_BYTES,       /* size_t: see pf_parse_bytes */
    PF_OPT_F64,         /* double */
    PF_OPT_STRING_LIST, /* struct pf_opt_list: grows by one each time */
};

struct pf_opt {
    char short_name;       /* 0: none */
    const char *long_name; /* without "--"; NULL: none */
    const char *arg;  /* name of the value in --help; NULL for FLAG and COUNT, and only there */
    const char *help; /* one line, lower case; NULL: not shown by --help */
    enum pf_opt_type type;
    void *field;
};

#define PF_OPT_LIST_MAX 64

struct pf_opt_list {
    const char *items[PF_OPT_LIST_MAX]; /* point into argv */
    size_t n;
};

#define PF_OPTS_N(table) (sizeof(table) / sizeof((table)[0]))

/* What every program understands. */
struct pf_opts_shared {
    bool help;
    bool version;
    int quiet;
    int verbose;
    bool json;
    bool no_progress;
};

/* The rows for it, to stand in a table. A program whose --json takes the name of a file has a row of
 * its own between the two parts. */
#define PF_OPTS_LOUDNESS(shared)                                                                   \
    {'q', "quiet", NULL, "only errors on stderr", PF_OPT_COUNT, &(shared)->quiet},                 \
    {                                                                                              \
        'v', "verbose", NULL, "more on stderr; again for more still", PF_OPT_COUNT,                \
            &(shared)->verbose                                                                     \
    }
#define PF_OPTS_ASIDE(shared)                                                                      \
    {0, "no-progress", NULL, "no progress on stderr", PF_OPT_FLAG, &(shared)->no_progress},        \
        {'V',         "version",         NULL, "print the version and exit; with -v in detail",    \
         PF_OPT_FLAG, &(shared)->version},                                                         \
    {                                                                                              \
        'h', "help", NULL, "print this help and exit", PF_OPT_FLAG, &(shared)->help                \
    }
#define PF_OPTS_SHARED(shared)                                                                     \
    PF_OPTS_LOUDNESS(shared),                                                                      \
        {0, "json", NULL, "result as JSON on stdout", PF_OPT_FLAG, &(shared)->json},               \
        PF_OPTS_ASIDE(shared)

/*
 * Read argv[1..*argc), set fields, and leave the operands in argv[1..*argc) in their order. Errors:
 * PF_EUSAGE, recorded, with the nearest name for an unknown option and a pointer to --help.
 */
int pf_opts_parse(const struct pf_opt *table, size_t n, int *argc, char **argv);

/* Print the usage lines (one string, lines separated by '\n', each put after "usage: " or below
 * it), then the table, aligned. */
void pf_opts_print_help(FILE *to, const char *usage_lines, const struct pf_opt *table, size_t n);

#endif
