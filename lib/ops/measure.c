/* SPDX-License-Identifier: Apache-2.0 */
/* measure.c - which kernel of gemm is fastest here, measured once and kept in a cache file. */
#include <pf/ops.h>

#include "config.h"

#include <pf/dev.h>
#include <pf/error.h>
#include <pf/file.h>
#include <pf/json.h>
#include <pf/mem.h>
#include <pf/str.h>
#include <pf/time.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* One product that fits the caches: 0.2 GFLOP. */
enum { M = 256, N = 512, K = 768, MAX_CANDIDATES = 8, MIN_ROUNDS = 3, MAX_ROUNDS = 16 };

/* Seconds for all rounds of one dtype after the least number. */
#define BUDGET 0.07

/* A less preferred row must take less than this share of the time. */
#define MARGIN 0.8

/* Where the two shortest times of a kernel differ more, others use the machine: nothing is known. */
#define NOISE 1.15

static const enum pf_dtype dtypes[] = {PF_DTYPE_F32, PF_DTYPE_BF16, PF_DTYPE_F16};
enum { N_DTYPES = sizeof dtypes / sizeof dtypes[0] };

struct candidate {
    const char *variant;
    double seconds, second; /* the two shortest times */
};

/* Usable rows down to pf's own best; the rows below it are the same code with older instructions. */
static int list_candidates(const struct pf_ops *ops, enum pf_dtype dtype,
                           struct candidate list[MAX_CANDIDATES])
{
    struct pf_ops_row row;
    int n = 0;

    for (int i = 0; n < MAX_CANDIDATES && pf_ops_row(ops, PF_OP_GEMM, dtype, i, &row); i++) {
        if (!row.usable) {
            continue;
        }
        list[n++] = (struct candidate){row.kernel->variant, 1e9, 1e9};
        if (strncmp(row.kernel->variant, "dnnl", 4) != 0) {
            break;
        }
    }
    return n;
}

static void fill(enum pf_dtype dtype, size_t n, void *x)
{
    for (size_t i = 0; i < n; i++) { /* never zeros: some units are faster on them */
        const float value = (float)(i % 251) * 0.01f - 1.0f;
        if (dtype == PF_DTYPE_F32) {
            ((float *)x)[i] = value;
        } else {
            ((uint16_t *)x)[i] =
                dtype == PF_DTYPE_BF16 ? pf_bf16_from_f32(value) : pf_f16_from_f32(value);
        }
    }
}

static void take_time(struct candidate *c, double seconds)
{
    if (seconds < c->seconds) {
        c->second = c->seconds;
        c->seconds = seconds;
    } else if (seconds < c->second) {
        c->second = seconds;
    }
}

/* Time the candidates in turn; the first round may compile kernels. */
static int time_candidates(struct pf_ops *ops, enum pf_dtype dtype, const struct pf_gemm_args *args,
                           struct candidate *list, int n)
{
    const double started = pf_time_monotonic();

    for (int round = 0; round < MAX_ROUNDS; round++) {
        if (round >= MIN_ROUNDS && pf_time_monotonic() - started > BUDGET) {
            break;
        }
        for (int i = 0; i < n; i++) {
            PF_TRY(pf_ops_choose(ops, PF_OP_GEMM, dtype, list[i].variant));
            const double t = pf_time_monotonic();
            PF_TRY(pf_op_gemm(ops, dtype, args));
            take_time(&list[i], pf_time_monotonic() - t);
        }
    }
    return 0;
}

static bool is_quiet(const struct candidate *list, int n)
{
    bool quiet = true;

    for (int i = 0; i < n; i++) {
        quiet = quiet && list[i].second <= NOISE * list[i].seconds;
    }
    return quiet;
}

/* The most preferred one if the times say nothing. */
static const char *fastest(const struct candidate *list, int n)
{
    int best = 0;

    for (int i = 1; i < n && is_quiet(list, n); i++) {
        if (list[i].seconds < MARGIN * list[best].seconds) {
            best = i;
        }
    }
    return list[best].variant;
}

/* *quiet_out turns false if the times of this dtype say nothing. */
static int measure_dtype(struct pf_ops *ops, enum pf_dtype dtype, bool *quiet_out)
{
    struct candidate list[MAX_CANDIDATES];
    const int n = list_candidates(ops, dtype, list);
    const size_t a = (size_t)M * K, b = (size_t)N * K, c = (size_t)M * N;

    if (n < 2) {
        return 0;
    }
    const size_t bytes = pf_dtype_bytes(dtype);
    char *const room = pf_alloc((a + b + c) * bytes);
    if (!room) {
        return PF_ENOMEM;
    }
    fill(dtype, a + b, room);
    const struct pf_gemm_args args = {.m = M,
                                      .n = N,
                                      .k = K,
                                      .a = room,
                                      .lda = K,
                                      .b = room + a * bytes,
                                      .ldb = K,
                                      .trans_b = true,
                                      .c = room + (a + b) * bytes,
                                      .ldc = N,
                                      .c_dtype = dtype};
    const char *const before = pf_ops_chosen(ops, PF_OP_GEMM, dtype)->variant;
    const int err = time_candidates(ops, dtype, &args, list, n);
    pf_free(room);
    *quiet_out = *quiet_out && is_quiet(list, n);
    (void)pf_ops_choose(ops, PF_OP_GEMM, dtype, err ? before : fastest(list, n));
    return err;
}

/* The cache ------------------------------------------------------------------------------------- */

/* What the times depend on, as a line of text. NULL when memory is out. */
static char *describe(const struct pf_ops *ops)
{
    struct pf_cpu_info cpu;

    if (pf_cpu_info(&cpu) != 0) {
        return NULL;
    }
    return pf_asprintf("%s; %s; %d threads; %s; pf " PF_VERSION, cpu.model, pf_ops_isa(ops),
                       pf_ops_threads(ops), pf_ops_library(ops));
}

/* $XDG_CACHE_HOME/pf or $HOME/.cache/pf; NULL without either (relative paths do not count). */
static char *cache_dir(void)
{
    const char *const cache = getenv("XDG_CACHE_HOME"), *const home = getenv("HOME");

    if (cache && cache[0] == '/') {
        return pf_path_join(cache, "pf");
    }
    return home && home[0] == '/' ? pf_path_join(home, ".cache/pf") : NULL;
}

/* Source of the digest in the name: FNV-1a, 64 bits. */
static char *cache_path(const char *dir, const char *key)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (const char *c = key; *c; c++) {
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
    }
    char *const name = pf_asprintf("kernels-%016" PRIx64 ".json", hash);
    char *const path = name ? pf_path_join(dir, name) : NULL;
    pf_free(name);
    return path;
}

static bool is_candidate(const struct pf_ops *ops, enum pf_dtype dtype, const char *variant)
{
    struct candidate list[MAX_CANDIDATES];
    const int n = list_candidates(ops, dtype, list);

    for (int i = 0; i < n; i++) {
        if (strcmp(list[i].variant, variant) == 0) {
            return true;
        }
    }
    return false;
}

/* Every dtype's choice of the file, or PF_EFORMAT where it does not fit. */
static int apply_file(struct pf_ops *ops, const struct pf_json *doc, const char *key)
{
    const struct pf_json *const gemm = pf_json_get(doc, "gemm");
    const char *text;

    PF_TRY(pf_json_need_string(doc, "measured_on", &text));
    if (strcmp(text, key) != 0 || !gemm) {
        return pf_fail(PF_EFORMAT, "kernels of another machine");
    }
    for (int d = 0; d < N_DTYPES; d++) {
        PF_TRY(pf_json_need_string(gemm, pf_dtype_name(dtypes[d]), &text));
        if (!is_candidate(ops, dtypes[d], text)) {
            return pf_fail(PF_EFORMAT, "'%s' does not serve here", text);
        }
        PF_TRY(pf_ops_choose(ops, PF_OP_GEMM, dtypes[d], text));
    }
    return 0;
}

static bool read_cache(struct pf_ops *ops, const char *path, const char *key)
{
    struct pf_json *doc = NULL;
    bool found = false;

    if (pf_path_is_file(path) && pf_json_parse_file(path, &doc) == 0) {
        found = apply_file(ops, doc, key) == 0;
    }
    pf_json_free(doc);
    if (!found) {
        pf_error_clear();
    }
    return found;
}

static void write_cache(const struct pf_ops *ops, const char *dir, const char *path,
                        const char *key)
{
    struct pf_json_out out;
    struct pf_str text;

    pf_str_init(&text);
    pf_json_out_init(&out, &text, 2);
    pf_json_out_object_begin(&out);
    pf_json_out_member_string(&out, "measured_on", key);
    pf_json_out_key(&out, "gemm");
    pf_json_out_object_begin(&out);
    for (int d = 0; d < N_DTYPES; d++) {
        pf_json_out_member_string(&out, pf_dtype_name(dtypes[d]),
                                  pf_ops_chosen(ops, PF_OP_GEMM, dtypes[d])->variant);
    }
    pf_json_out_object_end(&out);
    pf_json_out_object_end(&out);
    if (pf_json_out_finish(&out) != 0 || pf_mkdirs(dir) != 0 ||
        pf_file_write_atomic(path, text.text, text.len) != 0) {
        pf_error_clear(); /* measured again next time */
    }
    pf_str_release(&text);
}

static bool has_a_choice(const struct pf_ops *ops)
{
    struct candidate list[MAX_CANDIDATES];
    bool any = false;

    for (int d = 0; d < N_DTYPES; d++) {
        any = any || list_candidates(ops, dtypes[d], list) > 1;
    }
    return any;
}

int pf_ops_measure(struct pf_ops *ops)
{
    if (!has_a_choice(ops)) {
        return 0;
    }
    char *const key = describe(ops), *const dir = key ? cache_dir() : NULL;
    char *const path = dir ? cache_path(dir, key) : NULL;
    bool quiet = true;
    int err = 0;

    pf_error_clear();
    if (!path || !read_cache(ops, path, key)) {
        for (int d = 0; d < N_DTYPES && !err; d++) {
            err = measure_dtype(ops, dtypes[d], &quiet);
        }
        if (path && !err && quiet) {
            write_cache(ops, dir, path, key);
        }
    }
    pf_free(path);
    pf_free(dir);
    pf_free(key);
    return err;
}
