/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints: saved, loaded, re-laid, read from Hugging Face directories. Each sample stands beside one
 * of what the disk alone does, and one of a rival, taken in turn: a disk has moods.
 */
#include "bench_internal.h"

#include <pf/digest.h>
#include <pf/error.h>
#include <pf/file.h>
#include <pf/mem.h>
#include <pf/reshard.h>
#include <pf/time.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_BYTES ((uint64_t)1 << 30)
#define SOURCE_LAYOUT "tp=2,pp=2"
#define TARGET_LAYOUT "tp=1,sharding=4"

enum { REPEAT = 7, LEAST_SAMPLES = 3, HF_FILES = 4 };

/* What a case is held against: the disk, or memory, which one thread reads, or all copy. */
enum bound { BOUND_WRITE, BOUND_READ, BOUND_BOTH, BOUND_COPY, BOUND_LOOK };
static const char *const bound_names[] = {"direct write", "direct read", "direct read+write",
                                          "copy", "copy, 1 thread"};

struct session {
    const struct pf_bench_ckpt_options *options;
    struct pf_bench_record *record;
    int n_threads;
    char *dir;                          /* scratch, removed at the end */
    char *run, *saved, *cut, *out, *hf; /* in it: checkpoints */
    char *flat, *limit, *fio_flat, *fio_out;
    struct bench_state state, weights; /* in the same memory */
    struct bench_layout source, target;
    uint8_t *memory, *got;
    size_t memory_bytes;
    bool has_saved, has_hf, has_flat, has_fio_flat;
    struct bench_fio fio;
    bool against_fio;
    struct bench_python python;
    struct pf_limits one; /* of one thread */
    struct pf_digest digest;
    struct bench_codec codec;
    char (*digests)[PF_DIGEST_HEX_BYTES]; /* of the Hugging Face files, as they were loaded */
};

/* Of what bytes: a run's state, weights as Hugging Face has them, made-up weights in memory. */
enum of { OF_STATE, OF_WEIGHTS, OF_CODEC };

struct ckpt_case {
    const char *name;
    enum bound bound;
    bool is_cold;
    enum of of;
    int (*prepare)(struct session *s, bool first); /* before a sample; NULL: nothing */
    int (*run)(struct session *s);
    int (*check)(struct session *s, bool *right_out); /* what the last run made */
};

/* Preparing ------------------------------------------------------------------------------------- */

/* From the page cache to the disk, and out of it. */
static int drop_file(const char *path)
{
    int fd;

    PF_TRY(pf_open(path, O_RDONLY, &fd));
    const int err = pf_fsync(fd, path);
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    (void)pf_close(fd, NULL);
    return err;
}

static int each_file(const char *dir, int (*act)(const char *path))
{
    struct pf_str_list names = {0};
    int err = pf_dir_list(dir, &names);

    for (size_t i = 0; !err && i < names.n; i++) {
        char *const path = pf_path_join(dir, names.items[i]);
        err = path ? act(path) : PF_ENOMEM;
        pf_free(path);
    }
    pf_str_list_release(&names);
    return err;
}

static int read_file(const char *path)
{
    struct pf_digest digest;

    return pf_digest_file(path, &digest);
}

static int save(struct session *s)
{
    const struct pf_ckpt_save save = {
        .output_dir = s->run, .step = 1, .config_json = s->state.config_json};

    bench_state_point(&s->state, s->memory);
    return pf_ckpt_save(NULL, &save, s->state.live, s->state.n_live, NULL);
}

/* The checkpoint that loading and re-laying start from. */
static int need_saved(struct session *s)
{
    if (!s->has_saved) {
        PF_TRY(pf_path_exists(s->run) ? pf_rmtree(s->run) : 0);
        PF_TRY(save(s));
        s->has_saved = true;
    }
    return 0;
}

static int prepare_save(struct session *s, bool first)
{
    (void)first;
    s->has_saved = false;
    return pf_path_exists(s->run) ? pf_rmtree(s->run) : 0;
}

static int forget(struct session *s)
{
    pf_free(s->got);
    s->got = NULL;
    return 0;
}

/* Into memory that is there already, as a run's is. */
static int prepare_load(struct session *s, bool first)
{
    (void)first;
    PF_TRY(need_saved(s));
    PF_TRY(forget(s));
    s->got = pf_alloc(s->memory_bytes);
    PF_TRY(s->got ? 0 : PF_ENOMEM);
    memset(s->got, 0x5a, s->memory_bytes);
    return each_file(s->saved, drop_file);
}

/* With the 1 GiB that pf-reshard takes where nothing is said, besides what this process has. */
static int relay(const char *from, const char *to, const struct bench_layout *layout, int n_threads)
{
    struct pf_reshard job = {.table = layout->table,
                             .place = layout->place,
                             .dst = to,
                             .dtype = PF_DTYPE_COUNT,
                             .max_memory = pf_mem_peak_bytes() + ((size_t)1 << 30),
                             .threads = n_threads};
    struct pf_reshard_report report;
    struct pf_ckpt *src = NULL;

    PF_TRY(pf_ckpt_open(from, &src));
    const int err = pf_reshard_run(NULL, src, &job, &report);
    pf_ckpt_free(src);
    return err;
}

static int prepare_reshard(struct session *s, bool first)
{
    if (first) {
        PF_TRY(need_saved(s));
        PF_TRY(relay(s->saved, s->cut, &s->source, s->n_threads));
    }
    PF_TRY(pf_path_exists(s->out) ? pf_rmtree(s->out) : 0);
    return each_file(s->cut, drop_file);
}

static int need_hf(struct session *s)
{
    if (s->has_hf) {
        return 0;
    }
    bench_state_point(&s->weights, s->memory);
    s->has_hf = true;
    return pf_hf_write(s->hf, s->weights.live, s->weights.n_live, PF_DTYPE_COUNT,
                       s->weights.config_json, NULL, s->weights.payload / HF_FILES);
}

static int prepare_hf_cold(struct session *s, bool first)
{
    (void)first;
    PF_TRY(need_hf(s));
    PF_TRY(forget(s));
    return each_file(s->hf, drop_file);
}

static int prepare_hf_warm(struct session *s, bool first)
{
    (void)first;
    PF_TRY(need_hf(s));
    PF_TRY(forget(s));
    return each_file(s->hf, read_file);
}

/* Running --------------------------------------------------------------------------------------- */

/* Where there is no memory yet, that its pages must be made is a part of loading. */
static int load(struct session *s, const char *path, struct bench_state *state, bool hash)
{
    struct pf_ckpt *ckpt = NULL;

    s->got = s->got ? s->got : pf_alloc(s->memory_bytes);
    PF_TRY(s->got ? 0 : PF_ENOMEM);
    bench_state_point(state, s->got);
    PF_TRY(pf_ckpt_open(path, &ckpt));
    pf_free(s->digests);
    s->digests = hash ? pf_calloc_array((size_t)ckpt->n_files, sizeof *s->digests) : NULL;
    const int err = hash && !s->digests ? PF_ENOMEM
                    : hash ? pf_ckpt_load_hashed(ckpt, state->live, state->n_live, s->digests)
                           : pf_ckpt_load(NULL, ckpt, state->live, state->n_live, true);
    pf_ckpt_free(ckpt);
    return err;
}

static int run_load(struct session *s)
{
    return load(s, s->saved, &s->state, false);
}

static int run_hf(struct session *s)
{
    return load(s, s->hf, &s->weights, true);
}

static int run_reshard(struct session *s)
{
    return relay(s->cut, s->out, &s->target, s->n_threads);
}

static int run_digest(struct session *s)
{
    s->digest = pf_digest_of(s->memory, (size_t)s->state.payload);
    return 0;
}

/* Checking -------------------------------------------------------------------------------------- */

/* Every byte of what was loaded. */
static bool is_same(const struct session *s, struct bench_state *state)
{
    for (int64_t i = 0; i < state->n_live; i++) {
        const struct pf_ckpt_live *const live = &state->live[i];
        const size_t n = (size_t)pf_box_count(&live->box) * pf_dtype_bytes(live->dtype);
        const size_t at = (size_t)((const uint8_t *)live->data - s->got);
        if (memcmp(live->data, s->memory + at, n) != 0) {
            return false;
        }
    }
    return true;
}

static int check_load(struct session *s, bool *right_out)
{
    *right_out = is_same(s, &s->state);
    return 0;
}

/* Read back with the digests of its files, and compared. */
static int check_dir(struct session *s, const char *path, bool *right_out)
{
    PF_TRY(forget(s));
    const int err = load(s, path, &s->state, false);
    *right_out = !err && is_same(s, &s->state);
    (void)forget(s);
    if (err == PF_EFORMAT || err == PF_EINCOMPLETE) {
        pf_error_clear();
        return 0;
    }
    return err;
}

static int check_save(struct session *s, bool *right_out)
{
    return check_dir(s, s->saved, right_out);
}

static int check_reshard(struct session *s, bool *right_out)
{
    return check_dir(s, s->out, right_out);
}

static int check_hf(struct session *s, bool *right_out)
{
    struct pf_ckpt *ckpt = NULL;
    int err = pf_ckpt_open(s->hf, &ckpt);

    *right_out = is_same(s, &s->weights);
    for (int64_t f = 0; !err && f < ckpt->n_files; f++) {
        char *const path = pf_path_join(s->hf, ckpt->files[f].name);
        char hex[PF_DIGEST_HEX_BYTES];
        struct pf_digest digest;
        err = path ? pf_digest_file(path, &digest) : PF_ENOMEM;
        *right_out = !err && *right_out && strcmp(pf_digest_hex(&digest, hex), s->digests[f]) == 0;
        pf_free(path);
    }
    pf_ckpt_free(ckpt);
    return err;
}

/* Any split gives the same digest. */
static int check_digest(struct session *s, bool *right_out)
{
    const size_t n = (size_t)s->state.payload, half = n / 3;
    struct pf_digest_state *parts;

    PF_TRY(pf_digest_new(&parts));
    pf_digest_update(parts, s->memory, half);
    pf_digest_update(parts, s->memory + half, n - half);
    const struct pf_digest result = pf_digest_result(parts);
    *right_out = pf_digest_equal(&s->digest, &result);
    pf_digest_free(parts);
    return 0;
}

static int prepare_codec(struct session *s, bool first)
{
    (void)first;
    return s->codec.planes ? 0 : bench_codec_open(&s->codec);
}

static int run_compress(struct session *s)
{
    return bench_codec_encode(&s->codec);
}

static int run_decompress(struct session *s)
{
    return bench_codec_decode(&s->codec);
}

static int check_codec(struct session *s, bool *right_out)
{
    *right_out = bench_codec_is_right(&s->codec);
    return 0;
}

static const struct ckpt_case all[] = {
    {"save", BOUND_WRITE, true, OF_STATE, prepare_save, save, check_save},
    {"load", BOUND_READ, true, OF_STATE, prepare_load, run_load, check_load},
    {"reshard", BOUND_BOTH, true, OF_STATE, prepare_reshard, run_reshard, check_reshard},
    {"hf-load-cold", BOUND_READ, true, OF_WEIGHTS, prepare_hf_cold, run_hf, check_hf},
    {"hf-load-warm", BOUND_COPY, false, OF_WEIGHTS, prepare_hf_warm, run_hf, check_hf},
    {"digest", BOUND_LOOK, true, OF_STATE, NULL, run_digest, check_digest},
    {"compress", BOUND_LOOK, true, OF_CODEC, prepare_codec, run_compress, check_codec},
    {"decompress", BOUND_LOOK, true, OF_CODEC, prepare_codec, run_decompress, check_codec},
};
enum { N_CASES = (int)(sizeof all / sizeof all[0]) };

/* What they are held against --------------------------------------------------------------------- */

static bool has_fio(const struct session *s, const struct ckpt_case *c)
{
    return s->against_fio && c->of == OF_STATE && c->bound < BOUND_COPY;
}

static bool has_python(const struct session *s, const struct ckpt_case *c)
{
    return s->python.touch && c->of == OF_WEIGHTS;
}

static uint64_t bytes_of(const struct session *s, const struct ckpt_case *c)
{
    return c->of == OF_WEIGHTS ? s->weights.payload
           : c->of == OF_CODEC ? s->codec.raw_bytes
                               : s->state.payload;
}

/* The disk alone: as many bytes, in the same directions. */
static int time_disk(struct session *s, const struct ckpt_case *c, double *seconds_out)
{
    const bool reads = c->bound != BOUND_WRITE, writes = c->bound != BOUND_READ;
    const uint64_t bytes = s->state.payload;

    if (reads && !s->has_flat) {
        double unused;
        PF_TRY(bench_disk(NULL, s->flat, bytes, &unused));
        s->has_flat = true;
    }
    const int err =
        bench_disk(reads ? s->flat : NULL, writes ? s->limit : NULL, bytes, seconds_out);
    (void)unlink(s->limit);
    *seconds_out *= (double)bytes_of(s, c) / (double)bytes;
    return err;
}

static int time_fio(struct session *s, const struct ckpt_case *c, double *seconds_out)
{
    const bool reads = c->bound != BOUND_WRITE, writes = c->bound != BOUND_READ;
    const uint64_t bytes = s->state.payload;

    if (reads && !s->has_fio_flat) {
        double unused;
        PF_TRY(bench_fio(&s->fio, NULL, s->fio_flat, bytes, &unused));
        s->has_fio_flat = true;
    }
    const int err = bench_fio(&s->fio, reads ? s->fio_flat : NULL, writes ? s->fio_out : NULL,
                              bytes, seconds_out);
    (void)unlink(s->fio_out);
    return err;
}

static int time_rival(struct session *s, const struct ckpt_case *c, double *seconds_out)
{
    if (has_fio(s, c)) {
        return time_fio(s, c, seconds_out);
    }
    PF_TRY(each_file(s->hf, c->is_cold ? drop_file : read_file));
    return bench_python_load(&s->python, s->hf, seconds_out);
}

/* Measuring ------------------------------------------------------------------------------------- */

static int time_ours(struct session *s, const struct ckpt_case *c, bool first, double *seconds_out)
{
    PF_TRY(c->prepare ? c->prepare(s, first) : 0);
    const double start = pf_time_monotonic();
    PF_TRY(c->run(s));
    *seconds_out = pf_time_monotonic() - start;
    return 0;
}

static int check(struct session *s, const struct ckpt_case *c, struct pf_bench_case *to)
{
    to->checked = true;
    PF_TRY(c->check(s, &to->right));
    return to->right
               ? 0
               : pf_bench_fail(s->record, true, "wrong result: %s gave other bytes", to->name);
}

static int sample_once(struct session *s, const struct ckpt_case *c, struct pf_bench_case *to,
                       struct pf_bench_samples *bound)
{
    double seconds;

    PF_TRY(time_ours(s, c, false, &seconds));
    PF_TRY(bench_add_sample(&to->time, seconds));
    PF_TRY(forget(s));
    if (c->bound < BOUND_COPY) {
        PF_TRY(time_disk(s, c, &seconds));
        PF_TRY(bench_add_sample(bound, seconds));
    }
    if (to->rival[0]) {
        PF_TRY(time_rival(s, c, &seconds));
        PF_TRY(bench_add_sample(&to->rival_time, seconds));
    }
    return 0;
}

static int measure(struct session *s, const struct ckpt_case *c, struct pf_bench_case *to,
                   struct pf_bench_samples *bound)
{
    const struct pf_bench_effort *const e = &s->options->effort;
    const int warmup = e->warmup > 1 ? e->warmup : 1; /* the first is the one that is checked */
    const int most = e->repeat > 0 ? e->repeat : REPEAT;
    double seconds;

    to->time.calls_per_sample = to->rival_time.calls_per_sample = 1;
    for (int i = 0; i < warmup; i++) {
        PF_TRY(time_ours(s, c, i == 0, &seconds));
        to->time.warmup_calls++;
        to->time.warmup_seconds += seconds;
    }
    PF_TRY(check(s, c, to));
    const double start = pf_time_monotonic();
    for (int i = 0; to->right && i < most; i++) {
        const double spent = pf_time_monotonic() - start;
        if (e->seconds > 0 && i >= LEAST_SAMPLES && spent > e->seconds) {
            break;
        }
        PF_TRY(sample_once(s, c, to, bound));
    }
    return 0;
}

static int finish_case(struct session *s, const struct ckpt_case *c, struct pf_bench_case *to,
                       const struct pf_bench_samples *bound)
{
    struct pf_bench_stats disk;

    PF_TRY(pf_bench_stats(to->time.seconds, to->time.n, &to->stats));
    PF_TRY(pf_bench_stats(to->rival_time.seconds, to->rival_time.n, &to->rival_stats));
    PF_TRY(pf_bench_stats(bound->seconds, bound->n, &disk));
    /* A copy counts an array for each direction. */
    to->limit = c->bound == BOUND_COPY   ? s->record->limits.copy_bytes / 2
                : c->bound == BOUND_LOOK ? s->one.copy_bytes
                : disk.n > 0             ? to->work / disk.median
                                         : 0;
    return to->rival[0] ? bench_pair_up(to) : 0;
}

static int measure_case(struct session *s, const struct ckpt_case *c, struct pf_bench_case *to)
{
    struct pf_bench_samples bound = {.n = 0};

    int err = measure(s, c, to, &bound);
    to->work = (double)bytes_of(s, c);
    if (c->of == OF_CODEC && !err) {
        (void)snprintf(to->kernel, sizeof to->kernel, "zstd, to %.1f %%",
                       100 * (double)s->codec.coded_bytes / to->work);
    }
    err = err ? err : finish_case(s, c, to, &bound);
    pf_free(bound.seconds);
    return err;
}

/* All of it ------------------------------------------------------------------------------------- */

/* A build without zstd has no case of compression. */
static bool is_wanted(const struct session *s, const struct ckpt_case *c)
{
    const struct pf_bench_ckpt_options *const o = s->options;

    if (c->of == OF_CODEC && !pf_planes_is_built()) {
        return false;
    }
    for (int i = 0; i < o->n_names; i++) {
        if (pf_glob_match(o->names[i], c->name)) {
            return true;
        }
    }
    return o->n_names == 0;
}

static int check_names(const struct session *s)
{
    const struct pf_bench_ckpt_options *const o = s->options;

    for (int i = 0; i < o->n_names; i++) {
        bool found = false;
        for (int k = 0; k < N_CASES; k++) {
            found |= pf_glob_match(o->names[i], all[k].name);
        }
        if (!found) {
            return pf_fail(PF_EUSAGE, "there is no case '%s': --list names them", o->names[i]);
        }
    }
    return 0;
}

static int name_rivals(struct session *s)
{
    struct pf_str_list names = {0};
    int err = s->options->against ? pf_str_split(s->options->against, ',', true, &names) : 0;

    for (size_t i = 0; !err && i < names.n; i++) {
        const char *const name = names.items[i];
        const bool is_mapped = strcmp(name, "safetensors-mapped") == 0;
        if (strcmp(name, "fio") == 0) {
            s->against_fio = true;
        } else if ((strcmp(name, "safetensors") == 0 || is_mapped) && !s->python.touch) {
            s->python.touch = is_mapped ? "read" : "write";
            s->python.name = is_mapped ? "safetensors-mapped" : "safetensors";
        } else {
            err = pf_fail(PF_EUSAGE,
                          "--against is fio, safetensors or safetensors-mapped, or fio and one of "
                          "them, not '%s'",
                          s->options->against);
        }
    }
    pf_str_list_release(&names);
    return err;
}

static int add_cases(struct session *s)
{
    for (int i = 0; i < N_CASES; i++) {
        struct pf_bench_case *to;
        if (!is_wanted(s, &all[i])) {
            continue;
        }
        PF_TRY(pf_bench_add_case(s->record, &to));
        (void)snprintf(to->name, sizeof to->name, "%s", all[i].name);
        (void)snprintf(to->what, sizeof to->what, "%s", all[i].name);
        (void)snprintf(to->limit_name, sizeof to->limit_name, "%s", bound_names[all[i].bound]);
        (void)snprintf(to->rival, sizeof to->rival, "%s",
                       has_fio(s, &all[i])      ? "fio"
                       : has_python(s, &all[i]) ? s->python.name
                                                : "");
        to->unit = PF_BENCH_BYTE;
        to->is_cold = all[i].is_cold;
    }
    return 0;
}

static const struct ckpt_case *case_of(const struct pf_bench_case *c)
{
    int i = 0;

    while (strcmp(all[i].name, c->what) != 0) {
        i++;
    }
    return &all[i];
}

static int make_dir(struct session *s)
{
    const char *const tmp = getenv("TMPDIR");
    const char *const at = s->options->dir ? s->options->dir : tmp && *tmp ? tmp : "/tmp";

    s->dir = pf_asprintf("%s/pf-bench-XXXXXX", at);
    PF_TRY(s->dir ? 0 : PF_ENOMEM);
    if (!mkdtemp(s->dir)) {
        const int err = pf_fail_errno(PF_EIO, "cannot make directory '%s'", s->dir);
        pf_free(s->dir);
        s->dir = NULL;
        return err;
    }
    s->run = pf_path_join(s->dir, "run");
    s->saved = pf_path_join(s->dir, "run/checkpoint-000001");
    s->cut = pf_path_join(s->dir, "cut");
    s->out = pf_path_join(s->dir, "out");
    s->hf = pf_path_join(s->dir, "hf");
    s->flat = pf_path_join(s->dir, "flat");
    s->limit = pf_path_join(s->dir, "limit");
    s->fio_flat = pf_path_join(s->dir, "fio-flat");
    s->fio_out = pf_path_join(s->dir, "fio-out");
    return s->run && s->saved && s->cut && s->out && s->hf && s->flat && s->limit && s->fio_flat &&
                   s->fio_out
               ? 0
               : PF_ENOMEM;
}

static int open_rivals(struct session *s)
{
    char *const text = s->record->rival;
    const size_t room = sizeof s->record->rival;

    if (s->against_fio) {
        PF_TRY(bench_fio_open(s->fio_out, s->state.payload, &s->fio));
        PF_TRY(bench_fio_describe(&s->fio, text, room));
    }
    if (s->python.touch) {
        size_t n = strlen(text);
        n += n > 0 ? (size_t)snprintf(text + n, room - n, "; ") : 0;
        PF_TRY(bench_python_describe(&s->python, text + n, room - n));
    }
    return 0;
}

static int make_all(struct session *s)
{
    const uint64_t bytes = s->options->bytes ? s->options->bytes : DEFAULT_BYTES;

    PF_TRY(make_dir(s));
    PF_TRY(bench_state_make(&s->state, bytes, false));
    PF_TRY(bench_state_make(&s->weights, bytes, true));
    PF_TRY(bench_layout_make(&s->source, &s->state, SOURCE_LAYOUT));
    PF_TRY(bench_layout_make(&s->target, &s->state, TARGET_LAYOUT));
    s->memory_bytes = s->state.bytes > s->weights.bytes ? s->state.bytes : s->weights.bytes;
    s->memory = pf_alloc(s->memory_bytes);
    PF_TRY(s->memory ? 0 : PF_ENOMEM);
    bench_fill_bits(s->memory, s->memory_bytes);
    return open_rivals(s);
}

static int run(struct session *s)
{
    struct pf_bench_record *const r = s->record;

    PF_TRY(check_names(s));
    PF_TRY(name_rivals(s));
    PF_TRY(add_cases(s));
    if (s->options->list) {
        return 0;
    }
    PF_TRY(make_all(s));
    PF_TRY(pf_limits_measure(1, r->env.isa, &s->one));
    PF_TRY(pf_limits_measure(r->env.n_cpus, r->env.isa, &r->limits));
    for (int i = 0; i < r->n_cases; i++) {
        if (s->options->progress) {
            s->options->progress(s->options->context, i, r->n_cases);
        }
        PF_TRY(measure_case(s, case_of(&r->cases[i]), &r->cases[i]));
    }
    if (s->options->progress) {
        s->options->progress(s->options->context, r->n_cases, r->n_cases);
    }
    return 0;
}

static void release(struct session *s)
{
    char *const paths[] = {s->run,  s->saved, s->cut,      s->out,     s->hf,
                           s->flat, s->limit, s->fio_flat, s->fio_out, s->dir};

    if (s->dir) {
        (void)pf_rmtree(s->dir);
    }
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        pf_free(paths[i]);
    }
    bench_layout_release(&s->source);
    bench_layout_release(&s->target);
    bench_state_release(&s->state);
    bench_state_release(&s->weights);
    bench_codec_close(&s->codec);
    pf_free(s->digests);
    pf_free(s->memory);
    pf_free(s->got);
}

int pf_bench_ckpt(const struct pf_bench_ckpt_options *options, struct pf_bench_record *record)
{
    const double started = pf_time_monotonic();
    struct session s = {.options = options, .record = record};

    s.n_threads = options->n_threads > 0 ? options->n_threads : 2 * record->env.n_cpus;
    const int err = run(&s);
    release(&s);
    record->seconds = pf_time_monotonic() - started;
    return err;
}
