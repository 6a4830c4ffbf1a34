/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/opts.h>

#include <pf/error.h>
#include <pf/str.h>

#include <string.h>

#define SEE_HELP " (see --help)"

static bool takes_value(const struct pf_opt *opt)
{
    return opt->type != PF_OPT_FLAG && opt->type != PF_OPT_COUNT;
}

static const struct pf_opt *find_long(const struct pf_opt *table, size_t n, const char *name,
                                      size_t len)
{
    for (size_t i = 0; i < n; i++) {
        const char *const candidate = table[i].long_name;
        if (candidate && strlen(candidate) == len && memcmp(candidate, name, len) == 0) {
            return &table[i];
        }
    }
    return NULL;
}

static const struct pf_opt *find_short(const struct pf_opt *table, size_t n, char name)
{
    for (size_t i = 0; i < n; i++) {
        if (table[i].short_name == name) {
            return &table[i];
        }
    }
    return NULL;
}

static int unknown_long(const struct pf_opt *table, size_t n, const char *name, size_t len)
{
    const char *names[256];
    char typed[64];
    size_t n_names = 0;

    for (size_t i = 0; i < n && n_names < sizeof names / sizeof names[0]; i++) {
        names[n_names++] = table[i].long_name;
    }
    snprintf(typed, sizeof typed, "%.*s", len < sizeof typed ? (int)len : 63, name);
    const char *const nearest = pf_nearest(typed, names, n_names);
    if (nearest) {
        return pf_fail(PF_EUSAGE, "unknown option '--%s'; did you mean '--%s'?" SEE_HELP, typed,
                       nearest);
    }
    return pf_fail(PF_EUSAGE, "unknown option '--%s'" SEE_HELP, typed);
}

static int append_to_list(struct pf_opt_list *list, const char *value)
{
    if (list->n == PF_OPT_LIST_MAX) {
        return pf_fail(PF_EUSAGE, "given more than %d times", PF_OPT_LIST_MAX);
    }
    list->items[list->n++] = value;
    return 0;
}

static int store_value(const struct pf_opt *opt, const char *value)
{
    switch (opt->type) {
    case PF_OPT_FLAG:
        *(bool *)opt->field = true;
        return 0;
    case PF_OPT_COUNT:
        ++*(int *)opt->field;
        return 0;
    case PF_OPT_STRING:
        *(const char **)opt->field = value;
        return 0;
    case PF_OPT_I64:
        return pf_parse_i64(value, opt->field);
    case PF_OPT_BYTES:
        return pf_parse_bytes(value, opt->field);
    case PF_OPT_F64:
        return pf_parse_f64(value, opt->field);
    case PF_OPT_STRING_LIST:
        return append_to_list(opt->field, value);
    }
    return pf_fail(PF_EBUG, "option table with an unknown type");
}

/* `spelled` is the option as the user wrote it. The parser's message says what is wrong with the
 * value; put the option before it. */
static int apply(const struct pf_opt *opt, const char *spelled, const char *value)
{
    char why[256];
    const int err = store_value(opt, value);

    if (err) {
        snprintf(why, sizeof why, "%s", pf_error_message());
        return pf_fail(err, "option '%s': %s" SEE_HELP, spelled, why);
    }
    return 0;
}

struct parser {
    const struct pf_opt *table;
    size_t n;
    int argc;
    char **argv;
    int at; /* the argument being read; advanced over values */
};

static int next_value(struct parser *p, const char *spelled, const char **value_out)
{
    if (p->at + 1 >= p->argc) {
        return pf_fail(PF_EUSAGE, "option '%s' needs a value" SEE_HELP, spelled);
    }
    *value_out = p->argv[++p->at];
    return 0;
}

static int parse_long(struct parser *p, const char *arg)
{
    const size_t len = strcspn(arg + 2, "=");
    const struct pf_opt *const opt = find_long(p->table, p->n, arg + 2, len);
    const char *value = arg[2 + len] == '=' ? arg + 3 + len : NULL;
    char spelled[80];

    if (!opt) {
        return unknown_long(p->table, p->n, arg + 2, len);
    }
    snprintf(spelled, sizeof spelled, "--%s", opt->long_name);
    if (value && !takes_value(opt)) {
        return pf_fail(PF_EUSAGE, "option '%s' takes no value" SEE_HELP, spelled);
    }
    if (!value && takes_value(opt)) {
        PF_TRY(next_value(p, spelled, &value));
    }
    return apply(opt, spelled, value);
}

static int parse_short(struct parser *p, const char *arg)
{
    for (const char *c = arg + 1; *c; c++) {
        const struct pf_opt *const opt = find_short(p->table, p->n, *c);
        const char spelled[] = {'-', *c, '\0'};
        const char *value = NULL;
        if (!opt) {
            return pf_fail(PF_EUSAGE, "unknown option '%s'" SEE_HELP, spelled);
        }
        if (!takes_value(opt)) {
            PF_TRY(apply(opt, spelled, NULL));
            continue;
        }
        if (c[1] != '\0') {
            value = c + 1;
        } else {
            PF_TRY(next_value(p, spelled, &value));
        }
        return apply(opt, spelled, value);
    }
    return 0;
}

int pf_opts_parse(const struct pf_opt *table, size_t n, int *argc, char **argv)
{
    struct parser p = {.table = table, .n = n, .argc = *argc, .argv = argv};
    bool only_operands = false;
    int n_kept = 1;

    /* Operands move down over what has been read; nothing is written ahead of p.at. */
    for (p.at = 1; p.at < p.argc; p.at++) {
        char *const arg = argv[p.at];
        if (only_operands || arg[0] != '-' || arg[1] == '\0') {
            argv[n_kept++] = arg;
        } else if (strcmp(arg, "--") == 0) {
            only_operands = true;
        } else if (arg[1] == '-') {
            PF_TRY(parse_long(&p, arg));
        } else {
            PF_TRY(parse_short(&p, arg));
        }
    }
    if (n_kept < *argc) {
        argv[n_kept] = NULL;
    }
    *argc = n_kept;
    return 0;
}

/* "  -q, --quiet", "      --shard-size SIZE" */
static int format_row(const struct pf_opt *opt, char *buf, size_t buf_bytes)
{
    char name[3] = "";

    if (opt->short_name) {
        snprintf(name, sizeof name, "-%c", opt->short_name);
    }
    return snprintf(buf, buf_bytes, "  %2s%s %s%s%s%s", name,
                    opt->short_name && opt->long_name ? "," : " ", opt->long_name ? "--" : "",
                    opt->long_name ? opt->long_name : "", opt->arg ? " " : "",
                    opt->arg ? opt->arg : "");
}

static void print_usage(FILE *to, const char *usage_lines)
{
    const char *before = "usage: ";

    while (*usage_lines) {
        const size_t len = strcspn(usage_lines, "\n");
        fprintf(to, "%s%.*s\n", before, (int)len, usage_lines);
        usage_lines += len + (usage_lines[len] == '\n');
        before = "       ";
    }
}

#define HELP_COLUMN_MAX 32

void pf_opts_print_help(FILE *to, const char *usage_lines, const struct pf_opt *table, size_t n)
{
    char row[128];
    int column = 0;

    print_usage(to, usage_lines);
    fputs("\noptions:\n", to);
    for (size_t i = 0; i < n; i++) {
        const int width = format_row(&table[i], row, sizeof row) + 2;
        column = table[i].help && width > column && width <= HELP_COLUMN_MAX ? width : column;
    }
    for (size_t i = 0; i < n; i++) {
        if (!table[i].help) {
            continue;
        }
        const int width = format_row(&table[i], row, sizeof row);
        if (width + 2 > column) {
            fprintf(to, "%s\n%*s%s\n", row, column, "", table[i].help);
        } else {
            fprintf(to, "%-*s%s\n", column, row, table[i].help);
        }
    }
}
