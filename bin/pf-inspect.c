/* SPDX-License-Identifier: Apache-2.0 */
/* pf-inspect: say what a checkpoint holds, whether it is whole, how two differ. See pf-inspect(1). */
#include "inspect/command.h"

#include <pf/comm.h>
#include <pf/error.h>
#include <pf/ops.h>
#include <pf/tool.h>
#include <pf/version.h>

#include <math.h>
#include <stdio.h>

enum {
    TAKES_TOLERANCE = 1,
    TAKES_WEIGHTS_ONLY = 2,
    TAKES_HTML = 4,
    TAKES_LAYOUT = 8,
    TAKES_SCHEDULE = 16
};

static const struct command {
    const char *name;
    int (*run)(struct options *o, char **operands); /* NULL: not in this build */
    int n_least, n_most;
    int takes;
} commands[] = {
    {"show", command_show, 1, 1, 0},
    {"ls", command_ls, 1, 2, 0},
    {"verify", command_verify, 1, 1, 0},
    {"repair", command_repair, 1, 1, 0},
    {"hash", command_hash, 1, 1, TAKES_WEIGHTS_ONLY},
    {"diff", command_diff, 2, 2, TAKES_TOLERANCE | TAKES_WEIGHTS_ONLY},
    {"run", command_run, 1, 1, TAKES_HTML},
    {"ops", command_ops, 0, 0, 0},
    {"env", command_env, 0, 1, 0},
    {"scan", command_scan, 1, 2, TAKES_WEIGHTS_ONLY},
    {"cat", command_cat, 2, 2, 0},
    {"globals", NULL, 0, 0, 0},
    {"plan", command_plan, 1, 1, TAKES_LAYOUT},
    {"schedule", command_schedule, 0, 1, TAKES_LAYOUT | TAKES_SCHEDULE},
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

static const char usage[] =
    "pf-inspect [options] COMMAND ...\n"
    "show PATH         what it is: format, model, step, layout, sizes\n"
    "ls PATH [GLOB]    its tensors: name, role, dtype, shape, bytes, pieces, files\n"
    "verify PATH       everything that is wrong with it; reads every byte\n"
    "repair DIR        restore the one lost file of a checkpoint that has a parity file\n"
    "hash PATH         digests of its tensors, whatever the format and layout\n"
    "diff A B          how two differ, whatever their formats and layouts\n"
    "scan PATH [GLOB]  NaN, infinity, zeros, constants, range, what a cast would lose\n"
    "cat PATH TENSOR   its values; of a box with TENSOR:0:4,:,3\n"
    "run DIR           a run summed up, its curves drawn\n"
    "ops               the kernel registry: who serves which op, why\n"
    "env [DIR]         what is slow or missing on this machine and how to mend it;\n"
    "                  with DIR also how fast it is written\n"
    "plan CONFIG       the layout of a run: layers and memory of each rank\n"
    "schedule CONFIG   the pipeline of a run: what each stage does when, its bubble\n"
    "globals: not in this build\n"
    "PATH is a checkpoint of pf, the directory of a run, a Hugging Face directory,\n"
    "or a .safetensors file";

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
    const bool tolerance = !isnan(o->rel) || !isnan(o->abs) || o->ulp != INT64_MIN || o->nan;

    if (tolerance && !(command->takes & TAKES_TOLERANCE)) {
        return pf_fail(PF_EUSAGE, "'%s' takes no tolerance; 'diff' does" SEE_HELP, command->name);
    }
    if (o->weights_only && !(command->takes & TAKES_WEIGHTS_ONLY)) {
        return pf_fail(PF_EUSAGE,
                       "'%s' takes no '--weights-only'; 'hash', 'scan' and 'diff' do" SEE_HELP,
                       command->name);
    }
    if ((o->world != 0 || o->layout) && !(command->takes & TAKES_LAYOUT)) {
        return pf_fail(
            PF_EUSAGE,
            "'%s' takes no '--world' and no '--layout'; 'plan' and 'schedule' do" SEE_HELP,
            command->name);
    }
    if ((o->schedule || o->costs || o->factors || o->svg || o->micro_batches != 0) &&
        !(command->takes & TAKES_SCHEDULE)) {
        return pf_fail(PF_EUSAGE, "'%s' takes no option of a schedule; 'schedule' does" SEE_HELP,
                       command->name);
    }
    if (o->html && !(command->takes & TAKES_HTML)) {
        return pf_fail(PF_EUSAGE, "'%s' takes no '--html'; 'run' does" SEE_HELP, command->name);
    }
    return 0;
}

static int check_operands(const struct command *command, int n)
{
    char range[32];

    if (n >= command->n_least && n <= command->n_most) {
        return 0;
    }
    (void)snprintf(range, sizeof range, command->n_most > command->n_least ? "%d or %d" : "%d",
                   command->n_least, command->n_most);
    return pf_fail(PF_EUSAGE, "'%s' takes %s operand%s, not %d" SEE_HELP, command->name, range,
                   command->n_most == 1 && command->n_least == 1 ? "" : "s", n);
}

static int run(struct options *o, int argc, char **argv)
{
    const struct command *command = NULL;
    char *operands[2] = {0};

    if (argc < 2) {
        return pf_fail(PF_EUSAGE, "give a command" SEE_HELP);
    }
    PF_TRY(find_command(argv[1], &command));
    o->command = command->name;
    if (!command->run) {
        return pf_fail(PF_ENOTSUP, "'%s' is not in this build", command->name);
    }
    PF_TRY(check_operands(command, argc - 2));
    PF_TRY(check_options(o, command));
    for (int i = 2; i < argc; i++) {
        operands[i - 2] = argv[i];
        o->paths[i - 2] = argv[i];
    }
    return command->run(o, operands);
}

/* With --json the failure is a document as well; the line on stderr remains. */
static void answer_failure(struct options *o, int err)
{
    struct document d;

    document_begin(&d, o, err);
    (void)document_end(&d, o);
}

int main(int argc, char **argv)
{
    struct options o = {.rel = NAN, .abs = NAN, .ulp = INT64_MIN};
    bool done;
    const struct pf_opt table[] = {
        {0, "rtol", "X", "diff: admit |a - b| <= X max(|a|, |b|)", PF_OPT_F64, &o.rel},
        {0, "atol", "X", "diff: admit |a - b| <= X; the two add up", PF_OPT_F64, &o.abs},
        {0, "ulp", "N", "diff: admit N steps between floating numbers", PF_OPT_I64, &o.ulp},
        {0, "nan", "POLICY", "diff: two NaNs are the same by their bits, equal, or differ",
         PF_OPT_STRING, &o.nan},
        {0, "weights-only", NULL, "hash, scan, diff: weights alone, no optimizer, no trainer state",
         PF_OPT_FLAG, &o.weights_only},
        {0, "html", "FILE", "run: write a page with the curves as well; '-' is the output",
         PF_OPT_STRING, &o.html},
        {0, "world", "N", "plan, schedule: the number of ranks", PF_OPT_I64, &o.world},
        {0, "layout", "LAYOUT", "plan, schedule: tp=2,pp=2,... instead of the config's",
         PF_OPT_STRING, &o.layout},
        {0, "schedule", "KIND", "schedule: 1F1B, FThenB, VPP, ZBH1, balanced or eval",
         PF_OPT_STRING, &o.schedule},
        {0, "micro-batches", "N", "schedule: micro-batches of a step", PF_OPT_I64,
         &o.micro_batches},
        {0, "costs", "TIMES", "schedule: F,B or F,I,W: forward, backward or its two parts",
         PF_OPT_STRING, &o.costs},
        {0, "factors", "NUMBERS", "schedule: of each stage or chunk, 1,1,2,...", PF_OPT_STRING,
         &o.factors},
        {0, "svg", "FILE", "schedule: draw it as SVG as well; '-' is the output", PF_OPT_STRING,
         &o.svg},
        PF_OPTS_SHARED(&o.shared),
    };

    if (pf_comm_launched_rank() > 0) {
        return 0; /* under mpirun one rank answers, for all */
    }
    pf_tool_start("pf-inspect");
    pf_version_add_row("comm", pf_comm_version);
    pf_version_add_row("kernels", pf_ops_version);
    int err = pf_tool_options(table, PF_OPTS_N(table), usage, &o.shared, &argc, argv, &done);
    if (!err && !done) {
        err = run(&o, argc, argv);
    }
    if (err && o.shared.json && !o.answered) {
        answer_failure(&o, err);
    }
    return pf_tool_finish(err);
}
