/* SPDX-License-Identifier: Apache-2.0 */
/* pf-reshard: a checkpoint in another parallel layout. See pf-reshard(1). */
#include "reshard/command.h"

#include <pf/dev.h>
#include <pf/error.h>
#include <pf/log.h>
#include <pf/tool.h>
#include <pf/version.h>

#include <string.h>

static const char usage[] =
    "pf-reshard [options] SRC DST --to tp=2,pp=2,vpp=2,ep=2,cp=1,sharding=2,stage=3\n"
    "pf-reshard [options] SRC DST --config CONFIG.json --world N\n"
    "mpirun -n N pf-reshard ...   N processes share the work\n"
    "SRC is any checkpoint that pf reads; DST becomes a pf checkpoint and must not\n"
    "exist, or be an empty directory";

#define DEFAULT_MEMORY ((size_t)1 << 30)
#define MOST_DEFAULT_THREADS 8
/* A process may have hours of copying left when another is done; mpirun ends the job when one dies. */
#define LONGEST_WAIT_S (30.0 * 24 * 3600)

/* The threads of a process where nothing is said: two for each CPU of its own, as half of them wait
 * for the disk. */
static int count_threads(const struct pf_comm *world, int64_t *threads)
{
    struct pf_cpu_info cpu;

    if (*threads != THREADS_UNSET) {
        return 0;
    }
    PF_TRY(pf_cpu_info(&cpu));
    *threads = 2 * cpu.n_cpus / pf_comm_local_size(world);
    *threads = *threads < 1 ? 1 : *threads > MOST_DEFAULT_THREADS ? MOST_DEFAULT_THREADS : *threads;
    return 0;
}

static int reshard(struct options *o, const struct setup *s, struct pf_comm *world)
{
    struct bar bar = {.enabled =
                          !o->shared.no_progress && !o->shared.quiet && pf_comm_rank(world) == 0};
    struct pf_reshard_report report = {.n_files = 0};
    const struct pf_reshard job = {
        .table = s->table,
        .place = s->place,
        .dst = o->dst,
        .config_json = s->config_json,
        .embed_from = s->embed_from,
        .drop = s->drop,
        .weights_only = o->weights_only,
        .dtype = s->dtype,
        .codec = o->compress && strcmp(o->compress, "zstd") == 0 ? PF_CKPT_ZSTD : PF_CKPT_PLAIN,
        .max_memory = o->max_memory,
        .threads = (int)o->threads,
        .dry_run = o->dry_run,
        .resume = o->resume,
        .verify = o->verify,
        .progress = bar_update,
        .context = &bar};

    const int err = pf_reshard_run(world, s->src, &job, &report);
    if (bar.begun) {
        pf_progress_finish(&bar.progress);
    }
    PF_TRY(err);
    return pf_comm_rank(world) == 0 ? print_result(o, s, &report, pf_comm_size(world)) : 0;
}

/* Everything that all ranks do together. */
static int run(struct options *o, struct pf_comm *world)
{
    struct setup s = {.src = NULL};
    int err = count_threads(world, &o->threads);

    err = err ? err : setup_make(o, &s);
    err = pf_comm_all_agree(world, err, NULL);
    err = err ? err : reshard(o, &s, world);
    setup_release(&s);
    return err;
}

/* With --json the failure is a document as well; the line on stderr remains. */
static void answer_failure(const struct options *o, struct pf_comm *world, int err)
{
    if (!pf_comm_speaks(world)) {
        return;
    }
    if (o->shared.json) {
        (void)print_failure(o, err);
    }
    if (pf_comm_is_shared(world)) {
        pf_log_error_shared(NULL, "%s", pf_error_message());
    } else {
        pf_log_error(NULL, "%s", pf_error_message());
    }
}

static int start(struct options *o)
{
    const struct pf_comm_options comm = {.timeout_s = LONGEST_WAIT_S};
    struct pf_comm *world = NULL;

    PF_TRY(pf_comm_init(NULL, NULL, &comm, &world));
    pf_log_set_rank(pf_comm_rank(world), pf_comm_size(world));
    int err = run(o, world);
    err = err ? err : pf_comm_finalize(world);
    if (err) {
        answer_failure(o, world, err);
        pf_comm_fail(world, err);
    }
    return 0;
}

static int choose(struct options *o, int argc, char **argv)
{
    if (argc != 3) {
        return pf_fail(PF_EUSAGE, "give a source and a destination" SEE_HELP);
    }
    o->src = argv[1];
    o->dst = argv[2];
    PF_TRY(setup_check(o));
    return start(o);
}

int main(int argc, char **argv)
{
    struct options o = {.max_memory = DEFAULT_MEMORY, .threads = THREADS_UNSET};
    bool done;
    const struct pf_opt table[] = {
        {0, "to", "LAYOUT", "degrees dp tp pp vpp cp ep sharding, and stage, of the target",
         PF_OPT_STRING, &o.to},
        {0, "config", "CONFIG", "the layout that a training config asks for", PF_OPT_STRING,
         &o.config},
        {0, "world", "N", "ranks of the target; without it as many as the degrees make", PF_OPT_I64,
         &o.world},
        {0, "weights-only", NULL, "leave optimizer and trainer state out", PF_OPT_FLAG,
         &o.weights_only},
        {0, "dtype", "DTYPE", "store weights as float32, bfloat16 or float16", PF_OPT_STRING,
         &o.dtype},
        {0, "max-memory", "SIZE", "most memory of a process (1Gi)", PF_OPT_BYTES, &o.max_memory},
        {0, "threads", "N", "of a process (two for each CPU, at most 8)", PF_OPT_I64, &o.threads},
        {0, "dry-run", NULL, "say what would be read and written, and how much memory it takes",
         PF_OPT_FLAG, &o.dry_run},
        {0, "resume", NULL, "complete what a run that was killed left", PF_OPT_FLAG, &o.resume},
        {0, "verify", NULL, "check the digests of the source before, of the result after",
         PF_OPT_FLAG, &o.verify},
        {0, "compress", "METHOD", "store tensors compressed: zstd, or none (none)", PF_OPT_STRING,
         &o.compress},
        PF_OPTS_SHARED(&o.shared),
    };

    pf_tool_start("pf-reshard");
    pf_version_add_row("comm", pf_comm_version);
    int err = pf_tool_options(table, PF_OPTS_N(table), usage, &o.shared, &argc, argv, &done);
    if (!err && !done) {
        err = choose(&o, argc, argv);
    }
    if (err && o.shared.json) {
        (void)print_failure(&o, err);
    }
    return pf_tool_finish(err);
}
