/* SPDX-License-Identifier: Apache-2.0 */
/* measure.c - which kernel of gemm is fastest here, measured once and kept in a cache file. */
#include <pf/ops.h>

#include "config.h"
#include "ops_internal.h"

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

enum { MAX_CANDIDATES = 8, MAX_ROUNDS = 24 };

/* A less preferred row must take less than this share of the time. */
#define MARGIN 0.97

/* Where the two shortest times of a kernel differ more, others use the machine: nothing is known. */
#define NOISE 1.05

static const enum pf_dtype dtypes[] = {PF_DTYPE_F32, PF_DTYPE_BF16, PF_DTYPE_F16};
enum { N_DTYPES = sizeof dtypes / sizeof dtypes[0], N_KINDS = PF_OPS_PRODUCT_COUNT };

/* A product of each kind, which fits the caches: 0.2 GFLOP, so that each candidate gets a few tries. */
static const struct probe {
    int64_t m, n, k;
    bool trans_a, trans_b;
} probes[PF_OPS_PRODUCT_COUNT] = {
    [PF_OPS_PRODUCT_OTHER] = {256, 512, 768, false, true},
    [PF_OPS_PRODUCT_LONG] = {256, 256, 1536, false, true},
    [PF_OPS_PRODUCT_INPUT] = {256, 512, 768, false, false},
    [PF_OPS_PRODUCT_INPUT_LONG] = {256, 256, 1536, false, false},
    [PF_OPS_PRODUCT_GRADIENT] = {512, 512, 384, true, false},
};

/* Until when one pair of dtype and kind may be measured. */
struct span {
    double (*clock)(void);
    double end;
};

struct candidate {
    const char *variant;
    double seconds, second; /* the two shortest times */
};

/* Usable rows of libraries, and pf's own best; its others are the same code with older instructions. */
static int list_candidates(const struct pf_ops *ops, enum pf_dtype dtype,
                           struct candidate list[MAX_CANDIDATES])
{
    struct pf_ops_row row;
    bool has_own = false;
    int n = 0;

    for (int i = 0; n < MAX_CANDIDATES && pf_ops_row(ops, PF_OP_GEMM, dtype, i, &row); i++) {
        const bool is_own = strncmp(row.kernel->variant, "dnnl", 4) != 0;
        if (row.usable && !(is_own && has_own)) {
            list[n++] = (struct candidate){row.kernel->variant, 1e9, 1e9};
            has_own = has_own || is_own;
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

static const char *serving(const struct pf_ops *ops, enum pf_dtype dtype, enum pf_ops_product kind)
{
    return pf_ops_chosen_product(ops, dtype, kind)->variant;
}

/* Time the candidates in turn (the first round may compile kernels), until the next product, if it
 * took as long as the longest so far, would end too late. */
static int time_candidates(struct pf_ops *ops, enum pf_dtype dtype, enum pf_ops_product kind,
                           const struct pf_gemm_args *args, struct span span,
                           struct candidate *list, int n)
{
    double longest = 0;

    for (int i = 0; i < MAX_ROUNDS * n; i++) {
        struct candidate *const c = &list[i % n];
        PF_TRY(pf_ops_choose_product(ops, dtype, kind, c->variant));
        const double started = span.clock();
        if (started + longest >= span.end) {
            break;
        }
        PF_TRY(pf_op_gemm(ops, dtype, args));
        const double seconds = span.clock() - started;
        longest = seconds > longest ? seconds : longest;
        take_time(c, seconds);
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

/* *quiet_out turns false if the times say nothing. */
static int measure_pair(struct pf_ops *ops, enum pf_dtype dtype, enum pf_ops_product kind,
                        struct span span, bool *quiet_out)
{
    struct candidate list[MAX_CANDIDATES];
    const int n = list_candidates(ops, dtype, list);
    const struct probe *const p = &probes[kind];
    const size_t a = (size_t)(p->m * p->k), b = (size_t)(p->n * p->k);
    const size_t bytes = pf_dtype_bytes(dtype);
    const bool gradient = kind == PF_OPS_PRODUCT_GRADIENT;

    if (n < 2) {
        return 0;
    }
    char *const room = pf_alloc((a + b) * bytes + (size_t)(p->m * p->n) * sizeof(float));
    if (!room) {
        return PF_ENOMEM;
    }
    fill(dtype, a + b, room);
    const struct pf_gemm_args args = {.m = p->m,
                                      .n = p->n,
                                      .k = p->k,
                                      .a = room,
                                      .lda = p->trans_a ? p->m : p->k,
                                      .trans_a = p->trans_a,
                                      .b = room + a * bytes,
                                      .ldb = p->trans_b ? p->k : p->n,
                                      .trans_b = p->trans_b,
                                      .c = room + (a + b) * bytes,
                                      .ldc = p->n,
                                      .c_dtype = gradient ? PF_DTYPE_F32 : dtype,
                                      .accumulate = gradient};
    const char *const before = serving(ops, dtype, kind);
    const int err = time_candidates(ops, dtype, kind, &args, span, list, n);
    pf_free(room);
    *quiet_out = *quiet_out && is_quiet(list, n);
    (void)pf_ops_choose_product(ops, dtype, kind, err ? before : fastest(list, n));
    return err;
}

/* Every pair gets the same time. */
static int measure_all(struct pf_ops *ops, double (*clock)(void), bool *quiet_out)
{
    const double started = clock();

    for (int i = 0; i < N_DTYPES * N_KINDS; i++) {
        const double share = (double)(i + 1) / (N_DTYPES * N_KINDS);
        const struct span span = {clock, started + share * PF_OPS_MEASURE_SECONDS};
        PF_TRY(measure_pair(ops, dtypes[i / N_KINDS], (enum pf_ops_product)(i % N_KINDS), span,
                            quiet_out));
    }
    return 0;
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

static const char *const kind_names[N_KINDS] = {"gemm", "gemm_long", "gemm_input",
                                                "gemm_input_long", "gemm_gradient"};

/* Every choice of the file, or PF_EFORMAT where it does not fit. */
static int apply_file(struct pf_ops *ops, const struct pf_json *doc, const char *key)
{
    const char *text;

    PF_TRY(pf_json_need_string(doc, "measured_on", &text));
    if (strcmp(text, key) != 0) {
        return pf_fail(PF_EFORMAT, "kernels of another machine");
    }
    for (int i = 0; i < N_DTYPES * N_KINDS; i++) {
        const enum pf_dtype dtype = dtypes[i / N_KINDS];
        const struct pf_json *const kind = pf_json_get(doc, kind_names[i % N_KINDS]);
        if (!kind) {
            return pf_fail(PF_EFORMAT, "'%s' is missing", kind_names[i % N_KINDS]);
        }
        PF_TRY(pf_json_need_string(kind, pf_dtype_name(dtype), &text));
        if (!is_candidate(ops, dtype, text)) {
            return pf_fail(PF_EFORMAT, "'%s' does not serve here", text);
        }
        PF_TRY(pf_ops_choose_product(ops, dtype, (enum pf_ops_product)(i % N_KINDS), text));
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
    for (int kind = 0; kind < N_KINDS; kind++) {
        pf_json_out_key(&out, kind_names[kind]);
        pf_json_out_object_begin(&out);
        for (int d = 0; d < N_DTYPES; d++) {
            pf_json_out_member_string(&out, pf_dtype_name(dtypes[d]),
                                      serving(ops, dtypes[d], (enum pf_ops_product)kind));
        }
        pf_json_out_object_end(&out);
    }
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
    return pf_ops_measure_by(ops, pf_time_monotonic);
}

int pf_ops_measure_by(struct pf_ops *ops, double (*clock)(void))
{
    if (pf_ops_by_table(ops) || !has_a_choice(ops)) {
        return 0;
    }
    char *const key = describe(ops), *const dir = key ? cache_dir() : NULL;
    char *const path = dir ? cache_path(dir, key) : NULL;
    bool quiet = true;
    int err = 0;

    pf_error_clear();
    if (!path || !read_cache(ops, path, key)) {
        err = measure_all(ops, clock, &quiet);
        if (path && !err && quiet) {
            write_cache(ops, dir, path, key);
        }
    }
    pf_free(path);
    pf_free(dir);
    pf_free(key);
    return err;
}
