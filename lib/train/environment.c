/* SPDX-License-Identifier: Apache-2.0 */
/* The environment of a run: rows, and variables that make libraries slow. */
#include "environment_internal.h"

#include <pf/dev.h>
#include <pf/error.h>
#include <pf/file.h>
#include <pf/mem.h>
#include <pf/str.h>

#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char *pf_env_verdict_name(enum pf_env_verdict verdict)
{
    static const char *const names[] = {"ok", "slow", "missing"};

    return names[verdict];
}

int env_add(struct env_look *look, const char *name, enum pf_env_verdict verdict, const char *mend,
            const char *format, ...)
{
    struct pf_env *const env = look->env;
    struct pf_env_row row = {.name = name, .verdict = verdict, .mend = pf_strdup(mend)};
    va_list args;

    PF_ASSERT(env->n < PF_ENV_MAX_ROWS);
    va_start(args, format);
    row.found = pf_vasprintf(format, args);
    va_end(args);
    if (!row.found || (mend && !row.mend)) {
        pf_free(row.found);
        pf_free(row.mend);
        return PF_ENOMEM;
    }
    env->rows[env->n++] = row;
    env->n_of[verdict]++;
    return 0;
}

char *env_read(const struct env_look *look, const char *path)
{
    char *const whole = pf_asprintf("%s%s", look->root, path), *text = NULL;
    size_t len = 0;

    if (!whole || pf_file_read_all(whole, (size_t)1 << 22, &text, &len) != 0) {
        pf_error_clear(); /* not there, or not for us: the same */
        text = NULL;
    }
    while (text && len > 0 && strchr(" \t\n", text[len - 1])) {
        text[--len] = '\0';
    }
    pf_free(whole);
    return text;
}

int64_t env_number_after(const char *text, const char *key)
{
    const size_t len = strlen(key);

    for (const char *line = text; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, len) == 0) {
            return strtoll(line + len, NULL, 10);
        }
    }
    return -1;
}

/* Variables ------------------------------------------------------------------------------------- */

/* When a variable that is set does harm. */
enum harm {
    ALWAYS,
    UNLESS_ALL,   /* a list of instruction sets: ALL and DEFAULT do not */
    UNLESS_FALSE, /* a switch: 0, false, off, no do not */
    IF_BELOW_CPUS,
    IF_ACTIVE,
    IF_REF,
    NEVER,
};

static const struct variable {
    const char *name;
    enum harm harm;
    const char *what; /* it does */
} variables[] = {
    {"DNNL_MAX_CPU_ISA", UNLESS_ALL, "keeps oneDNN from newer instructions"},
    {"ONEDNN_MAX_CPU_ISA", UNLESS_ALL, "keeps oneDNN from newer instructions"},
    {"DNNL_VERBOSE", UNLESS_FALSE, "has oneDNN write a line for each product"},
    {"ONEDNN_VERBOSE", UNLESS_FALSE, "has oneDNN write a line for each product"},
    {"OPENBLAS_CORETYPE", ALWAYS,
     "has OpenBLAS take the kernels of that processor, whatever this one is (pf does not use it, "
     "programs that it is compared with do)"},
    {"OPENBLAS_NUM_THREADS", NEVER, "concerns OpenBLAS, which pf does not use"},
    {"MKL_DEBUG_CPU_TYPE", ALWAYS, "has MKL take the kernels of another processor (not pf's)"},
    {"MKL_ENABLE_INSTRUCTIONS", ALWAYS, "keeps MKL from newer instructions (not pf's)"},
    {"MKL_CBWR", ALWAYS, "has MKL give up speed for equal bits (not pf's)"},
    {"MKL_NUM_THREADS", NEVER, "concerns MKL, which pf does not use"},
    {"MKL_THREADING_LAYER", NEVER, "concerns MKL, which pf does not use"},
    {"OMP_NUM_THREADS", NEVER, "is not followed: the key threads says how many a rank has"},
    {"OMP_THREAD_LIMIT", IF_BELOW_CPUS, "allows fewer threads than there are CPUs"},
    {"OMP_DYNAMIC", UNLESS_FALSE, "lets the number of threads change, and with it speed and bits"},
    {"OMP_PROC_BIND", UNLESS_FALSE,
     "binds the threads of every rank of a host to the same CPUs, unless mpirun binds ranks"},
    {"OMP_PLACES", NEVER, "says where threads are bound, if OMP_PROC_BIND binds them"},
    {"GOMP_CPU_AFFINITY", ALWAYS, "binds the threads of every rank of a host to the same CPUs"},
    {"OMP_WAIT_POLICY", IF_ACTIVE,
     "says whether waiting threads spin, which ranks beside them pay"},
    {"KMP_AFFINITY", NEVER, "concerns Intel's OpenMP, which pf does not use"},
    {"KMP_BLOCKTIME", NEVER, "concerns Intel's OpenMP, which pf does not use"},
    {"KMP_SETTINGS", NEVER, "concerns Intel's OpenMP, which pf does not use"},
    {"MALLOC_PERTURB_", UNLESS_FALSE, "has every block of memory filled"},
    {"PF_KERNELS", IF_REF,
     "ref lets only the reference kernels serve, which are plain C; table has none measured"},
};

static bool is_word(const char *text, const char *const *words)
{
    for (; *words; words++) {
        if (strcasecmp(text, *words) == 0) {
            return true;
        }
    }
    return false;
}

static bool does_harm(const struct env_look *look, enum harm harm, const char *value)
{
    static const char *const all[] = {"all", "default", NULL};
    static const char *const no[] = {"0", "false", "off", "no", NULL};

    switch (harm) {
    case ALWAYS:
        return true;
    case UNLESS_ALL:
        return !is_word(value, all);
    case UNLESS_FALSE:
        return !is_word(value, no);
    case IF_BELOW_CPUS:
        return strtol(value, NULL, 10) < look->n_cpus;
    case IF_ACTIVE:
        return strcasecmp(value, "active") == 0;
    case IF_REF:
        return strcmp(value, "table") != 0;
    case NEVER:
        break;
    }
    return false;
}

int env_add_variables(struct env_look *look)
{
    int n_slow = 0;

    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const struct variable *const v = &variables[i];
        const char *const value = getenv(v->name);
        if (!value || !*value) {
            continue;
        }
        const bool slow = does_harm(look, v->harm, value);
        char *const mend = pf_asprintf("unset %s", v->name);
        const int err = !mend ? PF_ENOMEM
                              : env_add(look, v->name, slow ? PF_ENV_SLOW : PF_ENV_OK,
                                        slow ? mend : NULL, "'%s' %s", value, v->what);
        pf_free(mend);
        PF_TRY(err);
        n_slow += slow;
    }
    return n_slow ? 0 : env_add(look, "variables", PF_ENV_OK, NULL, "none forces slow kernels");
}

/* All ------------------------------------------------------------------------------------------- */

static int look_at_all(struct env_look *look, const struct pf_env_options *options)
{
    struct pf_cpu_info cpu;

    PF_TRY(pf_cpu_info(&cpu));
    look->n_cpus = cpu.n_cpus;
    PF_TRY(env_add_host(look));
    PF_TRY(env_add_software(look));
    PF_TRY(env_add_variables(look));
    return options && options->disk_dir ? env_add_disk(look, options->disk_dir) : 0;
}

int pf_env_look(const struct pf_env_options *options, struct pf_env *env_out)
{
    struct pf_env env = {.n = 0};
    struct env_look look = {.root = options && options->root ? options->root : "", .env = &env};
    const int err = look_at_all(&look, options);

    if (err) {
        pf_env_release(&env);
        return err;
    }
    *env_out = env;
    return 0;
}

void pf_env_release(struct pf_env *env)
{
    for (int i = 0; i < env->n; i++) {
        pf_free(env->rows[i].found);
        pf_free(env->rows[i].mend);
    }
    *env = (struct pf_env){.n = 0};
}
