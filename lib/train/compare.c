/* SPDX-License-Identifier: Apache-2.0 */
/* Running a config twice, and the verdict. */
#include <pf/compare.h>

#include <pf/config.h>
#include <pf/error.h>
#include <pf/file.h>
#include <pf/mem.h>
#include <pf/parallel.h>
#include <pf/str.h>

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define STEPS 10

extern char **environ;

struct compare {
    const struct pf_compare_options *options;
    struct pf_parallel par;
    int n_ranks;
    int64_t steps, micro_batches; /* micro_batches: of one process alone */
    enum pf_dtype dtype;
    char program[4096]; /* this one */
    char *dir, *one, *two;
};

/* Words of a command line; the first error stays. */
struct command {
    struct pf_str_list words;
    int err;
};

static void add(struct command *c, const char *word)
{
    c->err = c->err ? c->err : pf_str_list_append(&c->words, word);
}

static void add_owned(struct command *c, char *word)
{
    if (word) {
        add(c, word);
    } else {
        c->err = PF_ENOMEM;
    }
    pf_free(word);
}

static void add_number(struct command *c, const char *key, int64_t value)
{
    add_owned(c, pf_asprintf("%s=%lld", key, (long long)value));
}

/* Keys that the comparison sets itself, whatever the user's words say. */
static const char *const own_keys[] = {
    "output_dir",
    "max_steps",
    "logging_steps",
    "save_steps",
    "save_hf_steps",
    "eval_steps",
    "eval_only",
    "sample_steps",
    "sample_prompt",
    "dump",
    "dump_steps",
    "profile_steps",
    "trace_steps",
    "resume_from_checkpoint",
    "gradient_accumulation_steps",
    "tensor_model_parallel_size",
    "tensor_parallel_degree",
    "pipeline_model_parallel_size",
    "pipeline_parallel_degree",
    "virtual_pipeline_model_parallel_size",
    "virtual_pp_degree",
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "pp_seg_method",
    "parallelize_plan",
    "kernels_from",
};

static bool is_own(const char *word)
{
    for (size_t i = 0; i < sizeof own_keys / sizeof own_keys[0]; i++) {
        const size_t n = strlen(own_keys[i]);
        if (strncmp(word, own_keys[i], n) == 0 && word[n] == '=') {
            return true;
        }
    }
    return false;
}

static bool has_threads(const struct pf_compare_options *o)
{
    for (int i = 0; i < o->n_words; i++) {
        if (strncmp(o->words[i], "threads=", 8) == 0) {
            return true;
        }
    }
    return false;
}

static void add_common(const struct compare *c, struct command *command, const char *dir)
{
    const struct pf_compare_options *const o = c->options;

    add(command, c->program);
    add(command, o->quiet ? "-q" : "--no-progress");
    add(command, o->config);
    for (int i = 0; i < o->n_words; i++) {
        if (!is_own(o->words[i])) {
            add(command, o->words[i]);
        }
    }
    if (!has_threads(o)) {
        add(command, "threads=1");
    }
    add_owned(command, pf_asprintf("output_dir=%s", dir));
    add_number(command, "max_steps", c->steps);
    static const char *const same[] = {
        "logging_steps=1", "save_steps=-1",    "save_hf_steps=-1",   "eval_steps=-1",
        "eval_only=false", "sample_steps=-1",  "sample_prompt=null", "dump=grads",
        "dump_steps=[1]",  "profile_steps=[]", "trace_steps=[]",     "resume_from_checkpoint=null"};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        add(command, same[i]);
    }
}

/* One process: what the ranks see is one after the other. */
static void command_one(const struct compare *c, struct command *command)
{
    add_common(c, command, c->one);
    add_number(command, "gradient_accumulation_steps", c->micro_batches);
    static const char *const alone[] = {"tensor_model_parallel_size=-1",
                                        "pipeline_model_parallel_size=-1",
                                        "virtual_pipeline_model_parallel_size=1",
                                        "num_layers_in_first_pipeline_stage=-1",
                                        "num_layers_in_last_pipeline_stage=-1",
                                        "pp_seg_method=null",
                                        "parallelize_plan=null"};
    for (size_t i = 0; i < sizeof alone / sizeof alone[0]; i++) {
        add(command, alone[i]);
    }
}

/* Open MPI asks for this of root, who started this program too. */
static void allow_root(void)
{
    if (geteuid() == 0) {
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    }
}

static void command_two(const struct compare *c, struct command *command)
{
    const struct pf_parallel *const p = &c->par;

    if (c->options->launch) {
        struct pf_str_list words = {0};
        command->err =
            command->err ? command->err : pf_str_split(c->options->launch, ' ', true, &words);
        for (size_t i = 0; i < words.n; i++) {
            if (*words.items[i]) {
                add(command, words.items[i]);
            }
        }
        pf_str_list_release(&words);
    } else {
        allow_root();
        add(command, "mpirun");
        add(command, "--oversubscribe");
        add(command, "--bind-to");
        add(command, "none");
        add(command, "-n");
        add_owned(command, pf_asprintf("%d", c->n_ranks));
    }
    add_common(c, command, c->two);
    add_owned(command, pf_asprintf("kernels_from=%s/pf.json", c->one));
    add_number(command, "gradient_accumulation_steps", c->micro_batches / p->degree[PF_AXIS_DP]);
    add_number(command, "tensor_model_parallel_size", p->degree[PF_AXIS_TP]);
    add_number(command, "pipeline_model_parallel_size", p->degree[PF_AXIS_PP]);
    add_number(command, "virtual_pipeline_model_parallel_size", p->vpp);
    add_number(command, "num_layers_in_first_pipeline_stage",
               p->first_layers > 0 ? p->first_layers : -1);
    add_number(command, "num_layers_in_last_pipeline_stage",
               p->last_layers > 0 ? p->last_layers : -1);
    if (*p->segments) {
        add_owned(command, pf_asprintf("pp_seg_method=%s", p->segments));
    }
}

/* Run a command; its standard output goes nowhere. */
static int run(const char *what, const struct command *command)
{
    char **const argv = pf_calloc_array(command->words.n + 1, sizeof *argv);
    posix_spawn_file_actions_t actions;
    pid_t child;
    int status;

    if (!argv) {
        return PF_ENOMEM;
    }
    for (size_t i = 0; i < command->words.n; i++) {
        argv[i] = command->words.items[i];
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    const int failed = posix_spawnp(&child, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed) {
        const int err = pf_fail(PF_EIO, "cannot start '%s': %s", argv[0], strerror(failed));
        pf_free(argv);
        return err;
    }
    pf_free(argv);
    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) {
            return pf_fail_errno(PF_EIO, "cannot wait for a run");
        }
    }
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
    if (code == 0) {
        return 0;
    }
    /* Exit statuses of pf are tenths of its codes (pf/exit.h). */
    return pf_fail(code < 10 ? -10 * code : PF_ECOMM, "the run of %s ended with status %d", what,
                   code);
}

static int run_as(const struct compare *c, const char *what,
                  void (*fill)(const struct compare *, struct command *))
{
    struct command command = {0};

    fill(c, &command);
    const int err = command.err ? command.err : run(what, &command);
    pf_str_list_release(&command.words);
    return err;
}

/* What the config says that matters here. */
static int read_config(struct compare *c)
{
    const struct pf_compare_options *const o = c->options;
    struct pf_config config;
    int64_t world = 1;

    PF_TRY(pf_parallel_parse(o->layout, &c->par));
    for (int a = 0; a < PF_AXIS_COUNT; a++) {
        c->par.degree[a] = c->par.degree[a] > 0 ? c->par.degree[a] : 1;
        world *= c->par.degree[a];
    }
    c->par.vpp = c->par.vpp > 0 ? c->par.vpp : 1;
    if (world > INT32_MAX || world < 2) {
        return pf_fail(PF_EUSAGE, "'%s' has %lld ranks: there is nothing to compare", o->layout,
                       (long long)world);
    }
    if (c->par.degree[PF_AXIS_SHARDING] > 1 || c->par.degree[PF_AXIS_CP] > 1 || c->par.ep > 1) {
        return pf_fail(PF_ENOTSUP, "this build trains layouts of dp, tp, pp and vpp only");
    }
    PF_TRY(pf_config_read(o->config, o->words, o->n_words, &config));
    config.degree[PF_AXIS_TP] = config.degree[PF_AXIS_PP] = 0;
    int err = pf_config_resolve(&config, 1);
    c->n_ranks = (int)world;
    c->dtype = config.dtype;
    c->steps = o->steps > 0 ? o->steps : STEPS;
    c->steps = config.max_steps > 0 && config.max_steps < c->steps && o->steps == 0
                   ? config.max_steps
                   : c->steps;
    c->micro_batches = config.gradient_accumulation_steps;
    if (!err && c->micro_batches % c->par.degree[PF_AXIS_DP] != 0) {
        err = pf_fail(PF_EINVAL,
                      "dp=%d does not divide the %lld micro-batches of a step of one process",
                      c->par.degree[PF_AXIS_DP], (long long)c->micro_batches);
    }
    pf_config_release(&config);
    return err;
}

static int make_dirs(struct compare *c)
{
    const char *const tmp = getenv("TMPDIR");
    const ssize_t n = readlink("/proc/self/exe", c->program, sizeof c->program - 1);

    if (n < 0) {
        return pf_fail_errno(PF_EIO, "cannot tell where this program lies");
    }
    c->program[n] = '\0';
    c->dir = pf_asprintf("%s/pf-compare-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!c->dir) {
        return PF_ENOMEM;
    }
    if (!mkdtemp(c->dir)) {
        const int err = pf_fail_errno(PF_EIO, "cannot make '%s'", c->dir);
        pf_free(c->dir);
        c->dir = NULL;
        return err;
    }
    c->one = pf_path_join(c->dir, "one");
    c->two = pf_path_join(c->dir, "two");
    return c->one && c->two ? 0 : PF_ENOMEM;
}

static double tolerance_of(const struct compare *c)
{
    return c->options->tolerance > 0  ? c->options->tolerance
           : c->dtype == PF_DTYPE_F32 ? 1e-5
                                      : 1e-2;
}

int pf_compare_layout(const struct pf_compare_options *options, struct pf_compare *report_out)
{
    struct compare c = {.options = options};
    struct pf_compare report;
    int err = read_config(&c);

    err = err ? err : make_dirs(&c);
    err = err ? err : run_as(&c, "one process", command_one);
    err = err ? err : run_as(&c, "the layout", command_two);
    err = err ? err
              : pf_compare_runs(c.one, c.two, tolerance_of(&c), c.dtype == PF_DTYPE_F32, &report);
    if (c.dir) {
        const int removed = pf_rmtree(c.dir);
        err = err ? err : removed;
    }
    pf_free(c.dir);
    pf_free(c.one);
    pf_free(c.two);
    if (!err) {
        report.n_ranks = c.n_ranks;
        *report_out = report;
    }
    return err;
}
