/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/version.h>

#include <pf/error.h>

#include <config.h>

#include <string.h>

static struct {
    const char *name;
    pf_version_describe *describe;
} rows[PF_VERSION_MAX_ROWS];
static size_t n_rows;

static const struct {
    const char *name;
    bool is_built;
} features[] = {
    {"MPI", PF_HAVE_MPI},
    {"DNNL", PF_HAVE_DNNL},
    {"ZSTD", PF_HAVE_ZSTD},
};

#define N_FEATURES (sizeof features / sizeof features[0])

void pf_version_add_row(const char *name, pf_version_describe *describe)
{
    size_t i = 0;

    while (i < n_rows && strcmp(rows[i].name, name) != 0) {
        i++;
    }
    PF_ASSERT(i < PF_VERSION_MAX_ROWS);
    rows[i].name = name;
    rows[i].describe = describe;
    n_rows = i == n_rows ? n_rows + 1 : n_rows;
}

static void print_row(FILE *to, const char *name, const char *value)
{
    fprintf(to, "  %-12s %s\n", name, value);
}

void pf_version_print(FILE *to, const char *program, bool verbose)
{
    char value[256];
    size_t n = 0;

    fprintf(to, "%s %s\n", program, PF_VERSION);
    if (!verbose) {
        return;
    }
    for (size_t i = 0; i < N_FEATURES; i++) {
        n += (size_t)snprintf(value + n, sizeof value - n, "%s%s%s", i ? " " : "",
                              features[i].is_built ? "+" : "-", features[i].name);
    }
    print_row(to, "features", value);
    print_row(to, "compiler", PF_COMPILER);
    print_row(to, "flags", PF_FLAGS);
    for (size_t i = 0; i < n_rows; i++) {
        value[0] = '\0';
        rows[i].describe(value, sizeof value);
        print_row(to, rows[i].name, value);
    }
}

const char *pf_version_string(void)
{
    return PF_VERSION;
}

#define TEXT_OF(x) #x
#define EXPANDED(x) TEXT_OF(x)

const char *pf_version_build(void)
{
    return PF_VERSION " MPI=" EXPANDED(PF_HAVE_MPI) " DNNL=" EXPANDED(PF_HAVE_DNNL) " " PF_COMPILER
                                                                                    " " PF_FLAGS;
}
