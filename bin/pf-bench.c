/* SPDX-License-Identifier: Apache-2.0 */
/* pf-bench: measure ops, training steps and checkpoints, with a verdict. See pf-bench(1). */
#include "bench/command.h"

#include <pf/comm.h>
#include <pf/error.h>
#include <pf/log.h>
#include <pf/ops.h>
#include <pf/tool.h>
#include <pf/version.h>

#include <math.h>
#include <stdlib.h>

/* Options that not every command takes. */
enum {
    TAKES_OPS = 1,
    TAKES_STEPS = 2,
    TAKES_EFFORT = 4,
    TAKES_BASELINE = 8,
    TAKES_CKPT = 16,
    TAKES_RIVAL = 32
};

static const struct command {
    const char *name;
    int (*run)(struct options *o, int n, char **operands); /* NULL: not in this build */
    int n_least, n_most;
    int takes;
} commands[] = {
    {"ops", command_ops, 0, 64, TAKES_OPS | TAKES_RIVAL | TAKES_EFFORT | TAKES_BASELINE},
    {"step", command_step, 1, 64, TAKES_STEPS | TAKES_EFFORT | TAKES_BASELINE},
    {"compare", command_compare, 2, 2, 0},
    {"ckpt", command_ckpt, 0, 64, TAKES_CKPT | TAKES_RIVAL | TAKES_EFFORT | TAKES_BASELINE},
    {"comm", NULL, 0, 0, 0},
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

static const char usage[] =
    "pf-bench [options] COMMAND ...\n"
    "ops [NAME]        single ops: those named (globs are allowed), or all\n"
    "step CONFIG       whole training steps of a config; key=value words may follow\n"
    "compare OLD NEW   two records that --json wrote\n"
    "ckpt [NAME]       checkpoints: saved, loaded, re-laid\n"
    "comm: not in this build";

static int find_command(const char *name, const struct command **command_out)
{
    const char *names[N_COMMANDS];
    size_t i = 0;

    for (size_t k = 0; k < N_COMMANDS; k++) {
        names[k] = commands[k].name;
    }
    PF_TRY(pf_tool_find_command(name, names, N_COMMANDS, &i));
    *command_out = &commands[i];
    return 0;
}

/* An option that a command would not look at is a mistake. */
static int check_options(const struct options *o, const struct command *command)
{
    const struct {
        const char *name;
        bool given;
        int needs;
    } given[] = {
        {"--device", o->device != NULL, TAKES_OPS},
        {"--dtype", o->dtypes.n > 0, TAKES_OPS},
        {"--shape", o->shape != NULL, TAKES_OPS},
        {"--model", o->model != NULL, TAKES_OPS},
        {"--against", o->against != NULL, TAKES_RIVAL},
        {"--kernel", o->kernel != NULL, TAKES_OPS},
        {"--threads", o->threads >= 0, TAKES_RIVAL},
        {"--min-ratio", !isnan(o->min_ratio), TAKES_RIVAL},
        {"--bytes", o->bytes > 0, TAKES_CKPT},
        {"--dir", o->dir != NULL, TAKES_CKPT},
        {"--steps", o->steps >= 0, TAKES_STEPS},
        {"--warmup", o->warmup >= 0, TAKES_EFFORT},
        {"--repeat", o->repeat >= 0, TAKES_EFFORT},
        {"--seconds", !isnan(o->seconds), TAKES_EFFORT},
        {"--list", o->list, TAKES_EFFORT},
        {"--baseline", o->baseline != NULL, TAKES_BASELINE},
    };

    for (size_t i = 0; i < sizeof given / sizeof given[0]; i++) {
        if (given[i].given && !(command->takes & given[i].needs)) {
            return pf_fail(PF_EUSAGE, "'%s' takes no '%s'" SEE_HELP, command->name, given[i].name);
        }
    }
    return 0;
}

static int check_range(const char *name, int64_t value, int64_t least, int64_t most)
{
    if (value == -1 || (value >= least && value <= most)) {
        return 0;
    }
    return pf_fail(PF_EUSAGE, "%s is %lld, not from %lld to %lld" SEE_HELP, name, (long long)value,
                   (long long)least, (long long)most);
}

/* A threshold that could never be missed, or never be looked at, is a mistake too. */
static int check_values(struct options *o, const struct command *command)
{
    const bool compares = o->baseline || command->run == command_compare;

    PF_TRY(check_range("--warmup", o->warmup, 0, 100000));
    PF_TRY(check_range("--repeat", o->repeat, 1, 100000));
    PF_TRY(check_range("--steps", o->steps, 1, 1000000));
    PF_TRY(check_range("--threads", o->threads, 1, 4096));
    if (!isnan(o->seconds) && !(o->seconds > 0 && o->seconds <= 86400)) {
        return pf_fail(PF_EUSAGE, "--seconds is %g, not above 0" SEE_HELP, o->seconds);
    }
    if (!isnan(o->min_ratio) && !(o->min_ratio > 0 && o->against)) {
        return pf_fail(PF_EUSAGE, "--min-ratio needs --against and a number above 0" SEE_HELP);
    }
    if (!isnan(o->max_slowdown) && !(o->max_slowdown >= 1 && compares)) {
        return pf_fail(
            PF_EUSAGE,
            "--max-slowdown needs 'compare' or --baseline, and a number from 1" SEE_HELP);
    }
    if (o->force && !compares) {
        return pf_fail(PF_EUSAGE, "--force needs 'compare' or --baseline" SEE_HELP);
    }
    o->max_slowdown = isnan(o->max_slowdown) ? 1.05 : o->max_slowdown;
    return 0;
}

static int run(struct options *o, int argc, char **argv)
{
    const struct command *command = NULL;

    if (argc < 2) {
        return pf_fail(PF_EUSAGE, "give a command" SEE_HELP);
    }
    PF_TRY(find_command(argv[1], &command));
    if (!command->run) {
        return pf_fail(PF_ENOTSUP, "'%s' is not in this build", command->name);
    }
    if (argc - 2 < command->n_least || argc - 2 > command->n_most) {
        return pf_fail(PF_EUSAGE, "'%s' takes %s, not %d" SEE_HELP, command->name,
                       command->run == command_compare ? "two records"
                       : command->run == command_step  ? "a config"
                                                       : "at most 64 names",
                       argc - 2);
    }
    PF_TRY(check_options(o, command));
    PF_TRY(check_values(o, command));
    return command->run(o, argc - 2, argv + 2);
}

int main(int argc, char **argv)
{
    struct options o = {.max_slowdown = NAN,
                        .min_ratio = NAN,
                        .seconds = NAN,
                        .warmup = -1,
                        .repeat = -1,
                        .steps = -1,
                        .threads = -1};
    bool done;
    const struct pf_opt table[] = {
        {0, "device", "NAME", "ops: where (cpu)", PF_OPT_STRING, &o.device},
        {0, "dtype", "DTYPE", "ops: of arrays; may be given again (float32 and bfloat16)",
         PF_OPT_STRING_LIST, &o.dtypes},
        {0, "shape", "SHAPES", "ops: such as 1024x384x1536 for gemm", PF_OPT_STRING, &o.shape},
        {0, "model", "CONFIG", "ops: the shapes of a training config", PF_OPT_STRING, &o.model},
        {0, "against", "RIVAL", "ops: onednn, openblas; ckpt: fio, safetensors; in turn",
         PF_OPT_STRING, &o.against},
        {0, "kernel", "NAME", "ops: which serves (those of a run)", PF_OPT_STRING, &o.kernel},
        {0, "threads", "N", "how many (the CPUs of this process; ckpt: twice that)", PF_OPT_I64,
         &o.threads},
        {0, "bytes", "SIZE", "ckpt: of a checkpoint (1Gi)", PF_OPT_BYTES, &o.bytes},
        {0, "dir", "DIR", "ckpt: where; a scratch directory in it (TMPDIR, /tmp)", PF_OPT_STRING,
         &o.dir},
        {0, "steps", "N", "step: how many (20)", PF_OPT_I64, &o.steps},
        {0, "warmup", "N", "calls before samples of a case (2; step: 3)", PF_OPT_I64, &o.warmup},
        {0, "repeat", "N", "samples of a case (as --seconds allow)", PF_OPT_I64, &o.repeat},
        {0, "seconds", "S", "time for the samples of a case (0.5; step: no bound)", PF_OPT_F64,
         &o.seconds},
        {0, "baseline", "FILE", "an older record, measured in the same job", PF_OPT_STRING,
         &o.baseline},
        {0, "max-slowdown", "X", "fail if a case takes X times as long as before (1.05)",
         PF_OPT_F64, &o.max_slowdown},
        {0, "min-ratio", "X", "fail if a case is not X times as fast as its rival", PF_OPT_F64,
         &o.min_ratio},
        {0, "force", NULL, "compare records of different environments", PF_OPT_FLAG, &o.force},
        {0, "list", NULL, "print the names of the cases, measure nothing", PF_OPT_FLAG, &o.list},
        {0, "markdown", NULL, "the table as Markdown", PF_OPT_FLAG, &o.markdown},
        PF_OPTS_LOUDNESS(&o.shared),
        {0, "json", "FILE", "the record as JSON; - is stdout, instead of the table", PF_OPT_STRING,
         &o.json},
        PF_OPTS_ASIDE(&o.shared),
    };

    pf_tool_start("pf-bench");
    pf_version_add_row("comm", pf_comm_version);
    pf_version_add_row("kernels", pf_ops_version);
    int err = pf_tool_options(table, PF_OPTS_N(table), usage, &o.shared, &argc, argv, &done);
    if (o.shared.quiet == 0 && o.shared.verbose == 0 && !getenv("PF_LOG")) {
        pf_log_set_level(PF_LOG_WARN); /* what a training run tells of itself is no news here */
    }
    if (!err && !done) {
        err = run(&o, argc, argv);
    }
    if (err && o.json && !o.answered) {
        answer_failure(&o, err);
    }
    return pf_tool_finish(err);
}
