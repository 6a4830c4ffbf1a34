/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.h - measurements that a program can branch on: one record of cases, and verdicts on it.
 *
 * A record holds where it was measured (struct pf_bench_env), the limits of the machine in that run,
 * and cases: what was called, whether its result was right, every sample of its time, the same for a
 * rival that was measured in turn with it. Tables and JSON are printed from it, and it can be read
 * back, so that an old record is a baseline for a new one.
 *
 *     struct pf_bench_record record;
 *     PF_TRY(pf_bench_record_init(&record, "ops", n_threads));
 *     PF_TRY_GOTO(pf_bench_ops(&options, &record), out);
 *     PF_TRY_GOTO(pf_bench_compare(&record, &old, 1.05, false), out);
 *     PF_TRY_GOTO(pf_bench_print_json(&record, 0, &text), out);
 *     err = pf_bench_verdict(&record);
 *     out: pf_bench_record_release(&record);
 *
 * Time. A sample is the mean of as many calls in a row as last half a millisecond; contestants take
 * their samples in turn. The samples of a case are taken in several passes over all cases, so that
 * what disturbs the machine for a second spoils a part of many cases instead of all of one. What
 * runs at the speed of memory finds its arrays in no cache: calls go round copies of them that
 * together are twice the last level cache.
 *
 * Work is pf_op_work's (pf/ops.h): flop of products and attention, bytes of everything else.
 *
 * All functions are local and blocking, but for pf_bench_step, which is collective.
 */
#ifndef PF_BENCH_H
#define PF_BENCH_H

#include <pf/comm.h>
#include <pf/dtype.h>
#include <pf/kernel.h>
#include <pf/limits.h>
#include <pf/str.h>

#include <stdbool.h>
#include <stdint.h>

#define PF_BENCH_SCHEMA 1
#define PF_BENCH_NAME_MAX 128

/* Times of calls, in the order in which they were taken. */
struct pf_bench_samples {
    double *seconds; /* of one call, [n] */
    int n, capacity;
    int64_t calls_per_sample;
    int64_t warmup_calls; /* before the first sample of each pass, all together */
    double warmup_seconds;
};

struct pf_bench_stats {
    int n; /* 0: the others are NaN */
    double median, min, max, q1, q3;
    double spread; /* (q3 - q1) / median */
};

/* Statistics of n numbers; quartiles interpolate linearly between neighbours (Hyndman and Fan 1996,
 * number 7). PF_ENOMEM. */
int pf_bench_stats(const double *values, int n, struct pf_bench_stats *stats_out);

enum pf_bench_unit { PF_BENCH_FLOP, PF_BENCH_BYTE, PF_BENCH_TOKEN };

/* "flop", "byte", "token", and of a rate "GFLOP/s", "GB/s", "token/s" with the factor to it. */
const char *pf_bench_unit_name(enum pf_bench_unit unit);
const char *pf_bench_rate_name(enum pf_bench_unit unit, double *per_second_out);

enum pf_bench_verdict {
    PF_BENCH_NOT_COMPARED,
    PF_BENCH_SAME,
    PF_BENCH_FASTER,
    PF_BENCH_SLOWER,
    PF_BENCH_UNCLEAR, /* the medians differ by more than is allowed, the samples do not */
    PF_BENCH_NEW,     /* the baseline does not have it */
};
const char *pf_bench_verdict_name(enum pf_bench_verdict verdict);

/* What one op takes of a training step that is not among the samples. */
struct pf_bench_part {
    int64_t calls;
    double seconds, flop, bytes; /* in one step, all calls together */
};

struct pf_bench_case {
    char name[PF_BENCH_NAME_MAX]; /* the key: "gemm F32 1024x1152x384:nt" */
    char what[64], dtype[8], shape[64];
    char kernel[32]; /* that serves; of a step, what serves its products */
    enum pf_bench_unit unit;
    double work;         /* of one call, in units */
    double limit;        /* units per second, 0: none known */
    char limit_name[32]; /* "fma F32", "triad", "gemm BF16" */
    bool is_cold;        /* its arrays were in no cache */

    bool checked, right;
    double error, tolerance; /* worst of the outputs relative to its tolerance's kind */
    struct pf_bench_samples time;
    struct pf_bench_stats stats;

    char rival[32]; /* "": none */
    struct pf_bench_samples rival_time;
    struct pf_bench_stats rival_stats, ratio; /* of the rival's time to ours, sample by sample */

    struct pf_bench_stats baseline;
    double slowdown; /* median to the baseline's */
    enum pf_bench_verdict verdict;

    /* of a training step */
    bool is_step;
    double flop, loss;                       /* of one step; of the last one */
    double parts_seconds;                    /* of the step that the parts are of */
    struct pf_bench_part parts[PF_OP_COUNT]; /* by enum pf_op */
};

/* Where it was measured. The first group is the fingerprint: records that differ in it are of
 * different machines. The second is told, for it is what one may want to compare. */
struct pf_bench_env {
    char cpu[64], cpu_isa[128], device[16];
    int n_cpus, n_threads, n_ranks;

    char isa[16], library[64], build[256], system[160];
    struct pf_str_list variables; /* "OMP_NUM_THREADS=2": what is set that libraries listen to */
};

struct pf_bench_failure {
    bool is_numeric; /* a wrong result, not a missed threshold */
    char text[256];
};

struct pf_bench_record {
    char command[16]; /* "ops", "step", "compare" */
    char rival[160];  /* its name and version, "" without */
    struct pf_bench_env env;
    struct pf_limits limits;
    double gemm_f32, gemm_bf16; /* flop per second of the best large product; 0: not measured */
    double started, seconds;    /* wall clock, duration */
    struct pf_bench_case *cases;
    int n_cases, case_capacity;
    struct pf_bench_failure *failures;
    int n_failures;
};

/* A record of this machine without cases. Release it also after an error. PF_EIO, PF_ENOMEM. */
int pf_bench_record_init(struct pf_bench_record *record, const char *command, int n_threads);
void pf_bench_record_release(struct pf_bench_record *record);

/* A new case at the end, all zero; it moves when another is added. PF_ENOMEM. */
int pf_bench_add_case(struct pf_bench_record *record, struct pf_bench_case **case_out);
const struct pf_bench_case *pf_bench_find(const struct pf_bench_record *record, const char *name);

/* Add what the record fails for, one line. PF_ENOMEM. */
int pf_bench_fail(struct pf_bench_record *record, bool is_numeric, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* 0, or PF_EDIFFER with the first wrong result, else the first failure, as its message. A record
 * without cases fails. */
int pf_bench_verdict(struct pf_bench_record *record);

/* The record as one JSON document: schema 1, documented in pf-bench(1). err is how the program will
 * end, with this thread's record for the message. */
int pf_bench_print_json(const struct pf_bench_record *record, int err, struct pf_str *text);

/* Read such a document. PF_EFORMAT for another kind of file or schema; cases without samples are
 * read as they are, for it is the comparison that they fail. Release the record also after an
 * error. */
int pf_bench_read(const char *path, struct pf_bench_record *record_out);

/*
 * Judge every case against the same case of an old record; failures are added to the new one. A
 * case is slower if its lower quartile is more than max_slowdown times the old upper quartile, or
 * even its fastest sample more than that times the old median, and in both cases its fastest
 * sample more than that times the old fastest: two runs of one program differ by the machine's mood,
 * and only what lies outside the spread of both is the program's. Failures: a slower case; one of
 * the old cases that is missing, or empty on either side, or wrong in the old; another unit or
 * work; another fingerprint, unless force.
 */
int pf_bench_compare(struct pf_bench_record *record, const struct pf_bench_record *old,
                     double max_slowdown, bool force);

/* Add a failure for each case whose ratio to its rival lies below least by more than two standard
 * errors of its median, and one if no case has a rival. */
int pf_bench_require_ratio(struct pf_bench_record *record, double least);

/* How long to measure. */
struct pf_bench_effort {
    int warmup;     /* calls before the first sample of a pass; -1: 2 (step: 3) */
    int repeat;     /* samples of a case; 0: as many as fit, at least 9 */
    double seconds; /* for the samples of a case where repeat is 0; 0: 0.5 (step: no bound) */
};

struct pf_bench_ops_options {
    const char *const *names; /* of ops, globs allowed; none: all that have a case */
    int n_names;
    const char *device;          /* NULL: cpu */
    const enum pf_dtype *dtypes; /* none: F32 and BF16 */
    int n_dtypes;
    const char *shapes;  /* "1024x1024x1024,512x512x512", NULL: the built-in ones */
    const char *model;   /* a training config whose shapes to take, or NULL */
    const char *against; /* "onednn", "openblas", or NULL */
    const char *
        kernel; /* the rows of this name serve where there are some; NULL: those that serve a run */
    int n_threads; /* 0: the CPUs this process may use */
    struct pf_bench_effort effort;
    bool list;                                                    /* add cases, measure nothing */
    void (*progress)(void *context, int64_t done, int64_t total); /* or NULL */
    void *context;
};

/*
 * Check and measure ops. Wrong results are failures of the record, and not measured. Errors:
 * PF_EUSAGE for an unknown op, dtype, shape, rival or kernel; PF_ENOTSUP for a device or rival that is not
 * here; what a kernel or the config returns.
 */
int pf_bench_ops(const struct pf_bench_ops_options *options, struct pf_bench_record *record);

struct pf_bench_step_options {
    const char *config;           /* path of a training config */
    const char *const *overrides; /* "key=value" */
    int n_overrides;
    int n_steps; /* 0: 20 */
    struct pf_bench_effort effort;
    bool list;
    void (*progress)(void *context, int64_t done, int64_t total);
    void *context;
};

/*
 * Measure whole training steps of a config: data, forward, backward, reduction, optimizer. Nothing
 * is saved; output_dir is a scratch directory, removed afterwards. First the same model, on one
 * short sequence, is held against itself with the reference's kernels: loss and gradient norm of
 * two steps. Collective; every rank of world gives the same arguments, and cases are the same on
 * all.
 */
int pf_bench_step(const struct pf_bench_step_options *options, struct pf_comm *world,
                  struct pf_bench_record *record);

struct pf_bench_ckpt_options {
    const char *const *names; /* of cases, globs allowed; none: all */
    int n_names;
    const char *dir; /* where its scratch directory is made; NULL: TMPDIR, else /tmp */
    uint64_t bytes;  /* of a checkpoint; 0: 1 GiB */
    const char
        *against;  /* "fio", "safetensors", "safetensors-mapped", "fio,safetensors"; or NULL */
    int n_threads; /* of a change of layout; 0: two for each CPU */
    struct pf_bench_effort effort; /* a pass is one call; repeat 0: 7, seconds 0: no bound */
    bool list;
    void (*progress)(void *context, int64_t done, int64_t total);
    void *context;
};

/*
 * Check and measure checkpoints of a made-up model: a save with digests, a load that checks them, a
 * change of layout, a load from a Hugging Face directory until every byte is in this process's memory
 * and hashed, cold and warm, and the digest alone. Each result is read back and compared first. Takes
 * twice `bytes` of memory and six times of disk. The limit is what the same disk does with as many
 * bytes, taken in turn. Errors: PF_EUSAGE for an unknown case or rival, PF_ENOTSUP for a rival that is
 * not here.
 */
int pf_bench_ckpt(const struct pf_bench_ckpt_options *options, struct pf_bench_record *record);

#endif
