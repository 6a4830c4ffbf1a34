/* SPDX-License-Identifier: Apache-2.0 */
/* pf-train: train a model as a config says. See pf-train(1). */
#include <pf/comm.h>
#include <pf/compare.h>
#include <pf/config.h>
#include <pf/error.h>
#include <pf/file.h>
#include <pf/json.h>
#include <pf/log.h>
#include <pf/ops.h>
#include <pf/opts.h>
#include <pf/str.h>
#include <pf/tool.h>
#include <pf/train.h>
#include <pf/version.h>

#include <stdio.h>
#include <string.h>

static const char usage[] = "pf-train [options] CONFIG.json [key=value ...]\n"
                            "mpirun -n N pf-train [options] CONFIG.json [key=value ...]\n"
                            "pf-train --compare-layout LAYOUT CONFIG.json [key=value ...]\n"
                            "pf-train --stop DIR";

struct options {
    struct pf_opts_shared shared;
    bool plan, check, supervise;
    const char *stop, *compare_layout, *launch;
    int64_t steps;
    double tolerance;
};

static int show_plan(struct pf_trainer *trainer, const struct options *o, struct pf_comm *world)
{
    if (o->check) {
        PF_TRY(pf_trainer_check(trainer));
    }
    return pf_comm_rank(world) == 0 ? pf_trainer_print_plan(trainer, o->shared.json, stdout) : 0;
}

static int train(struct pf_trainer *trainer, const struct options *o)
{
    if (o->shared.json) {
        pf_trainer_copy_metrics(trainer, stdout);
    }
    if (!o->shared.no_progress && !o->shared.quiet) {
        pf_trainer_show_progress(trainer);
    }
    PF_TRY(pf_trainer_build(trainer));
    return pf_trainer_run(trainer);
}

/* Everything that all ranks do together. */
static int run(struct pf_config *config, const struct options *o, struct pf_comm *world)
{
    struct pf_trainer *trainer = NULL;
    int err;

    /* One process plans for as many ranks as the config's degrees make. */
    const bool alone = (o->plan || o->check) && pf_comm_size(world) == 1;
    const int n_ranks = alone ? pf_config_ranks(config) : pf_comm_size(world);
    PF_TRY(pf_comm_all_agree(world, pf_config_resolve(config, n_ranks), NULL));
    PF_TRY(pf_trainer_new(config, world, &trainer));
    err = o->plan || o->check ? show_plan(trainer, o, world) : train(trainer, o);
    pf_trainer_free(trainer);
    return err;
}

/* Read the config, join the other ranks, run. Ends the job where something fails in it. */
static int start(const struct options *o, int argc, char **argv)
{
    struct pf_config config = {.comm_timeout = 300};
    struct pf_comm *world = NULL;

    PF_TRY(pf_trainer_hold_signals());
    int err = pf_config_read(argv[1], (const char *const *)argv + 2, argc - 2, &config);
    if (!err && pf_path_is_file(argv[1])) { /* a pipe could not be read again */
        err = pf_trainer_wait_passively(&config);
    }
    const struct pf_comm_options comm = {.timeout_s = config.comm_timeout};

    /* A rank that cannot read its config joins all the same, so that one message tells of it. */
    const int joined = pf_comm_init(NULL, NULL, &comm, &world);
    if (joined) {
        pf_config_release(&config);
        return joined;
    }
    pf_log_set_rank(pf_comm_rank(world), pf_comm_size(world));
    err = pf_comm_all_agree(world, err, NULL);
    if (!err) {
        err = run(&config, o, world);
    }
    pf_config_release(&config);
    if (!err) {
        err = pf_comm_finalize(world);
    }
    if (err) {
        if (pf_comm_is_shared(world) && pf_comm_speaks(world)) {
            pf_log_error_shared(NULL, "%s", pf_error_message());
        } else if (pf_comm_speaks(world)) {
            pf_log_error(NULL, "%s", pf_error_message());
        }
        pf_comm_fail(world, err);
    }
    return 0;
}

static void print_comparison(const struct pf_compare *r, const char *layout)
{
    printf("%s: %d ranks and one process, %lld steps\n", layout, r->n_ranks, (long long)r->steps);
    for (int i = 0; i < PF_COMPARE_N_ROWS; i++) {
        const struct pf_compare_row *const row = &r->rows[i];

        printf("%-22s %9.2e %s%s%s\n", row->what, row->difference,
               row->tolerance <= 0                 ? "not judged"
               : row->difference <= row->tolerance ? "ok"
                                                   : "TOO FAR",
               *row->where ? ", most at " : "", row->where);
    }
    printf("%s\n", r->identical ? "weights are identical to the bit"
                   : r->within  ? "the same within the tolerance"
                                : "they differ");
}

static int print_comparison_json(const struct pf_compare *r, const char *layout)
{
    struct pf_str text;
    struct pf_json_out out;

    pf_str_init(&text);
    pf_json_out_init(&out, &text, 2);
    pf_json_out_object_begin(&out);
    pf_json_out_member_i64(&out, "schema", 1);
    pf_json_out_member_string(&out, "layout", layout);
    pf_json_out_member_i64(&out, "ranks", r->n_ranks);
    pf_json_out_member_i64(&out, "steps", r->steps);
    pf_json_out_member_bool(&out, "within", r->within);
    pf_json_out_member_bool(&out, "identical", r->identical);
    pf_json_out_key(&out, "rows");
    pf_json_out_array_begin(&out);
    for (int i = 0; i < PF_COMPARE_N_ROWS; i++) {
        pf_json_out_object_begin(&out);
        pf_json_out_member_string(&out, "what", r->rows[i].what);
        pf_json_out_member_f64(&out, "difference", r->rows[i].difference);
        pf_json_out_member_f64(&out, "tolerance", r->rows[i].tolerance);
        pf_json_out_member_string(&out, "where", r->rows[i].where);
        pf_json_out_object_end(&out);
    }
    pf_json_out_array_end(&out);
    pf_json_out_object_end(&out);
    const int err = pf_json_out_finish(&out);
    if (!err) {
        puts(text.text);
    }
    pf_str_release(&text);
    return err;
}

static int compare(const struct options *o, int argc, char **argv)
{
    const struct pf_compare_options options = {.config = argv[1],
                                               .words = (const char *const *)argv + 2,
                                               .n_words = argc - 2,
                                               .layout = o->compare_layout,
                                               .launch = o->launch,
                                               .steps = o->steps,
                                               .tolerance = o->tolerance,
                                               .quiet = !o->shared.verbose};
    struct pf_compare report;

    PF_TRY(pf_compare_layout(&options, &report));
    if (o->shared.json) {
        PF_TRY(print_comparison_json(&report, o->compare_layout));
    } else {
        print_comparison(&report, o->compare_layout);
    }
    return report.within ? 0
                         : pf_fail(PF_EDIFFER, "'%s' trains another model than one process",
                                   o->compare_layout);
}

static int choose(const struct options *o, int argc, char **argv)
{
    if (o->supervise || (o->launch && !o->compare_layout)) {
        return pf_fail(PF_ENOTSUP, "--supervise is not in this build");
    }
    if (o->stop) {
        return argc == 1 ? pf_trainer_ask_stop(o->stop)
                         : pf_fail(PF_EUSAGE, "--stop takes no config; see 'pf-train --help'");
    }
    if (argc < 2) {
        return pf_fail(PF_EUSAGE, "give a config; see 'pf-train --help'");
    }
    return o->compare_layout ? compare(o, argc, argv) : start(o, argc, argv);
}

int main(int argc, char **argv)
{
    struct options o = {0};
    bool done;
    const struct pf_opt table[] = {
        {0, "plan", NULL, "print layout, memory, traffic, schedule; start nothing", PF_OPT_FLAG,
         &o.plan},
        {0, "check", NULL, "as --plan, and open the data and the checkpoint to be resumed",
         PF_OPT_FLAG, &o.check},
        {0, "stop", "DIR", "ask the run in DIR to save and end", PF_OPT_STRING, &o.stop},
        {0, "compare-layout", "LAYOUT",
         "train as one process and as a layout (tp=2,pp=2), and compare", PF_OPT_STRING,
         &o.compare_layout},
        {0, "steps", "N", "so many, to compare a layout (10)", PF_OPT_I64, &o.steps},
        {0, "tolerance", "X", "relative, to compare a layout (1e-5 in float32, else 1e-2)",
         PF_OPT_F64, &o.tolerance},
        {0, "launch", "COMMAND", "what starts the ranks, to compare a layout (mpirun)",
         PF_OPT_STRING, &o.launch},
        {0, "supervise", NULL, "not in this build", PF_OPT_FLAG, &o.supervise},
        PF_OPTS_SHARED(&o.shared),
    };

    pf_tool_start("pf-train");
    pf_version_add_row("comm", pf_comm_version);
    pf_version_add_row("kernels", pf_ops_version);
    int err = pf_tool_options(table, PF_OPTS_N(table), usage, &o.shared, &argc, argv, &done);
    if (!err && !done) {
        err = choose(&o, argc, argv);
    }
    return pf_tool_finish(err);
}
