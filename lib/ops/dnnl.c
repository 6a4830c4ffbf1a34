/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dnnl.c - GEMM through oneDNN's matmul primitive; the only file that names dnnl.h.
 *
 * A primitive is made for each distinct shape, kept in a hash table that only grows, and run with
 * the caller's pointers; its scratchpad is one buffer of the library state, as large as the hungriest
 * primitive needs. So after the first step, which meets every shape, nothing is allocated.
 *
 * oneDNN takes its thread count from OpenMP when a primitive is made and when it runs: each call sets
 * the calling thread's omp_set_num_threads to ctx->n_threads, and leaves it so. With that fixed, and
 * the instruction set, its results are the same from run to run.
 *
 * The instruction set is a property of the process, fixed before oneDNN's first primitive: the first
 * pf_dnnl_open decides, and a later one that asks for another gets no library.
 *
 * The rows "dnnl_widen" take bf16 and fp16 through fp32: matrices are widened into buffers of the
 * library state, multiplied, and the product is rounded once. That is how oneDNN serves fp16 where
 * the CPU has no fp16 arithmetic, and faster for bf16 where its dot product runs at half the fp32
 * rate.
 *
 * Source: oneDNN's C API, 2.x (operation descriptors) and 3.x (opaque memory descriptors).
 */
#include "ops_internal.h"

#include <pf/dtype.h>
#include <pf/error.h>
#include <pf/mem.h>

#include <dnnl.h>

#include <omp.h>
#include <stdio.h>
#include <string.h>

/* What differs between the two APIs: who owns a memory descriptor, and how it is passed. */
#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t desc_ref;
#define DESC_REF(d) (d)
#define DESC_NONE NULL
#else
typedef const dnnl_memory_desc_t *desc_ref;
#define DESC_REF(d) (&(d))
#define DESC_NONE                                                                                  \
    {                                                                                              \
        .ndims = 0                                                                                 \
    }
#endif

/* What a primitive depends on; compared as bytes, so made from zeroed memory. */
struct key {
    int64_t m, n, k, lda, ldb, ldc;
    int dtype, c_dtype;
    int trans_a, trans_b, accumulate, bias;
};

enum { A, B, C, BIAS, SCRATCHPAD, N_MEMORIES };

static const int argument_of[N_MEMORIES] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST,
                                            DNNL_ARG_BIAS, DNNL_ARG_SCRATCHPAD};

struct entry {
    struct key key;
    dnnl_primitive_t primitive;
    dnnl_memory_t memory[N_MEMORIES]; /* BIAS and SCRATCHPAD may be NULL */
    struct entry *next;               /* in its bucket */
};

#define N_BUCKETS 1024

/* pf's own kernels of the instruction set that the library is bound to. */
struct own {
    pf_widen_fn *widen;
    pf_narrow_fn *narrow;
    pf_kernel_fn gemm, act_fwd;
};

struct library {
    struct own f32, bf16, f16;
    bool multiplies_bf16;
    float *wide; /* room for widened matrices */
    size_t wide_floats;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    void *scratchpad;
    size_t scratchpad_bytes;
    struct entry *buckets[N_BUCKETS];
};

#define TRY_DNNL(call, what)                                                                       \
    do {                                                                                           \
        const dnnl_status_t status_ = (call);                                                      \
        if (status_ != dnnl_success) {                                                             \
            return pf_fail(PF_EDEVICE, "oneDNN cannot %s: status %d", (what), (int)status_);       \
        }                                                                                          \
    } while (0)

static int desc_make(dnnl_memory_desc_t *desc, dnnl_dim_t rows, dnnl_dim_t columns,
                     dnnl_data_type_t type, dnnl_dim_t row_stride, dnnl_dim_t column_stride)
{
    const dnnl_dims_t dims = {rows, columns}, strides = {row_stride, column_stride};

#if DNNL_VERSION_MAJOR >= 3
    TRY_DNNL(dnnl_memory_desc_create_with_strides(desc, 2, dims, type, strides),
             "describe a matrix");
#else
    TRY_DNNL(dnnl_memory_desc_init_by_strides(desc, 2, dims, type, strides), "describe a matrix");
#endif
    return 0;
}

static void desc_drop(dnnl_memory_desc_t *desc)
{
#if DNNL_VERSION_MAJOR >= 3
    if (*desc) {
        (void)dnnl_memory_desc_destroy(*desc);
        *desc = NULL;
    }
#else
    (void)desc;
#endif
}

static dnnl_data_type_t type_of(int dtype)
{
    return dtype == PF_DTYPE_BF16 ? dnnl_bf16 : dnnl_f32;
}

static struct key key_of(enum pf_dtype dtype, const struct pf_gemm_args *g)
{
    struct key key;

    memset(&key, 0, sizeof key);
    key.m = g->m;
    key.n = g->n;
    key.k = g->k;
    key.lda = g->lda;
    key.ldb = g->ldb;
    key.ldc = g->ldc;
    key.dtype = dtype;
    key.c_dtype = g->c_dtype;
    key.trans_a = g->trans_a;
    key.trans_b = g->trans_b;
    key.accumulate = g->accumulate;
    key.bias = g->bias != NULL;
    return key;
}

/* FNV-1a over the words of the key. */
static size_t bucket_of(const struct key *key)
{
    const unsigned char *byte = (const unsigned char *)key;
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < sizeof *key; i++) {
        h = (h ^ byte[i]) * 0x100000001b3u;
    }
    return (size_t)((h ^ (h >> 32)) % N_BUCKETS);
}

/* Scratchpad by the caller, and c added to where the key says so. */
static int attributes_make(const struct key *key, dnnl_primitive_attr_t attr)
{
    dnnl_post_ops_t post = NULL;
    dnnl_status_t status;

    TRY_DNNL(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user),
             "set the scratchpad mode");
    if (!key->accumulate) {
        return 0;
    }
    TRY_DNNL(dnnl_post_ops_create(&post), "make a post-op");
#if DNNL_VERSION_MAJOR >= 3
    status = dnnl_post_ops_append_sum(post, 1.0f, 0, dnnl_data_type_undef);
#else
    status = dnnl_post_ops_append_sum(post, 1.0f);
#endif
    if (status == dnnl_success) {
        status = dnnl_primitive_attr_set_post_ops(attr, post);
    }
    (void)dnnl_post_ops_destroy(post);
    TRY_DNNL(status, "accumulate");
    return 0;
}

static int primitive_desc_make(const struct library *lib, const struct key *key,
                               const dnnl_memory_desc_t desc[N_MEMORIES],
                               const_dnnl_primitive_attr_t attr, dnnl_primitive_desc_t *pd_out)
{
    const desc_ref bias = key->bias ? DESC_REF(desc[BIAS]) : NULL;
#if DNNL_VERSION_MAJOR >= 3
    TRY_DNNL(dnnl_matmul_primitive_desc_create(pd_out, lib->engine, desc[A], desc[B], bias, desc[C],
                                               attr),
             "multiply these matrices");
#else
    dnnl_matmul_desc_t matmul;

    TRY_DNNL(dnnl_matmul_desc_init(&matmul, &desc[A], &desc[B], bias, &desc[C]),
             "describe a product");
    TRY_DNNL(dnnl_primitive_desc_create(pd_out, &matmul, attr, lib->engine, NULL),
             "multiply these matrices");
#endif
    return 0;
}

static int reserve_scratchpad(struct library *lib, size_t bytes)
{
    if (bytes > lib->scratchpad_bytes) {
        void *grown = pf_alloc(bytes);
        if (!grown) {
            return PF_ENOMEM;
        }
        pf_free(lib->scratchpad);
        lib->scratchpad = grown;
        lib->scratchpad_bytes = bytes;
    }
    return 0;
}

static int memories_make(struct library *lib, const struct key *key,
                         const dnnl_memory_desc_t desc[N_MEMORIES], dnnl_primitive_desc_t pd,
                         struct entry *entry)
{
    const desc_ref pad = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    const size_t pad_bytes = pad ? dnnl_memory_desc_get_size(pad) : 0;

    PF_TRY(reserve_scratchpad(lib, pad_bytes));
    for (int i = 0; i < SCRATCHPAD; i++) {
        if (i == BIAS && !key->bias) {
            continue;
        }
        TRY_DNNL(
            dnnl_memory_create(&entry->memory[i], DESC_REF(desc[i]), lib->engine, DNNL_MEMORY_NONE),
            "wrap a matrix");
    }
    if (pad_bytes > 0) {
        TRY_DNNL(dnnl_memory_create(&entry->memory[SCRATCHPAD], pad, lib->engine, DNNL_MEMORY_NONE),
                 "wrap its scratchpad");
    }
    return 0;
}

static int descs_make(const struct key *key, dnnl_memory_desc_t desc[N_MEMORIES])
{
    const dnnl_data_type_t type = type_of(key->dtype);

    PF_TRY(desc_make(&desc[A], key->m, key->k, type, key->trans_a ? 1 : key->lda,
                     key->trans_a ? key->lda : 1));
    PF_TRY(desc_make(&desc[B], key->k, key->n, type, key->trans_b ? 1 : key->ldb,
                     key->trans_b ? key->ldb : 1));
    PF_TRY(desc_make(&desc[C], key->m, key->n, type_of(key->c_dtype), key->ldc, 1));
    return key->bias ? desc_make(&desc[BIAS], 1, key->n, type, key->n, 1) : 0;
}

/* Fill entry's primitive and memories. */
static int entry_build(struct library *lib, struct entry *entry)
{
    dnnl_memory_desc_t desc[N_MEMORIES] = {DESC_NONE};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    int err = 0;

    PF_TRY_GOTO(descs_make(&entry->key, desc), out);
    if (dnnl_primitive_attr_create(&attr) != dnnl_success) {
        err = pf_fail(PF_EDEVICE, "oneDNN cannot make attributes");
        goto out;
    }
    PF_TRY_GOTO(attributes_make(&entry->key, attr), out);
    PF_TRY_GOTO(primitive_desc_make(lib, &entry->key, desc, attr, &pd), out);
    PF_TRY_GOTO(memories_make(lib, &entry->key, desc, pd, entry), out);
    if (dnnl_primitive_create(&entry->primitive, pd) != dnnl_success) {
        err = pf_fail(PF_EDEVICE, "oneDNN cannot make a primitive");
    }
out:
    if (pd) {
        (void)dnnl_primitive_desc_destroy(pd);
    }
    if (attr) {
        (void)dnnl_primitive_attr_destroy(attr);
    }
    for (int i = 0; i < N_MEMORIES; i++) {
        desc_drop(&desc[i]);
    }
    return err;
}

static void entry_free(struct entry *entry)
{
    for (int i = 0; i < N_MEMORIES; i++) {
        if (entry->memory[i]) {
            (void)dnnl_memory_destroy(entry->memory[i]);
        }
    }
    if (entry->primitive) {
        (void)dnnl_primitive_destroy(entry->primitive);
    }
    pf_free(entry);
}

static int entry_find(struct library *lib, const struct key *key, struct entry **entry_out)
{
    struct entry **bucket = &lib->buckets[bucket_of(key)];

    for (struct entry *e = *bucket; e; e = e->next) {
        if (memcmp(&e->key, key, sizeof *key) == 0) {
            *entry_out = e;
            return 0;
        }
    }

    struct entry *entry = pf_alloc(sizeof *entry);
    if (!entry) {
        return PF_ENOMEM;
    }
    entry->key = *key;
    const int err = entry_build(lib, entry);
    if (err) {
        entry_free(entry);
        return err;
    }
    entry->next = *bucket;
    *bucket = entry;
    *entry_out = entry;
    return 0;
}

static int execute(struct library *lib, const struct entry *entry, const struct pf_gemm_args *g)
{
    /* oneDNN's interface has no const; it writes to C and the scratchpad alone. */
    void *const data[N_MEMORIES] = {(void *)(uintptr_t)g->a, (void *)(uintptr_t)g->b, g->c,
                                    (void *)(uintptr_t)g->bias, lib->scratchpad};
    dnnl_exec_arg_t args[N_MEMORIES];
    int n = 0;

    for (int i = 0; i < N_MEMORIES; i++) {
        if (entry->memory[i]) {
            TRY_DNNL(dnnl_memory_set_data_handle(entry->memory[i], data[i]), "take a pointer");
            args[n++] = (dnnl_exec_arg_t){argument_of[i], entry->memory[i]};
        }
    }
    TRY_DNNL(dnnl_primitive_execute(entry->primitive, lib->stream, n, args), "run a product");
    TRY_DNNL(dnnl_stream_wait(lib->stream), "finish a product");
    return 0;
}

static int gemm(const struct pf_kctx *ctx, const struct pf_gemm_args *g, enum pf_dtype dtype)
{
    struct library *lib = ctx->library;
    struct entry *entry;

    if (omp_get_max_threads() != ctx->n_threads) {
        omp_set_num_threads(ctx->n_threads);
    }
    const struct key key = key_of(dtype, g);
    PF_TRY(entry_find(lib, &key, &entry));
    return execute(lib, entry, g);
}

/* Through fp32 ----------------------------------------------------------------------------------- */

/* Where the widened matrices lie: a, b, c (where it is narrow) and the bias. */
struct wide {
    float *a, *b, *c, *bias;
};

static size_t padded(int64_t rows, int64_t width)
{
    return ((size_t)rows * (size_t)width + 15) / 16 * 16;
}

static int reserve_wide(struct library *lib, const struct pf_gemm_args *g, struct wide *wide_out)
{
    const size_t a = padded(g->m, g->k), b = padded(g->k, g->n), c = padded(g->m, g->n);
    const size_t n = a + b + c + padded(1, g->n);

    if (n > lib->wide_floats) {
        float *grown = pf_calloc_array(n, sizeof *grown);
        if (!grown) {
            return PF_ENOMEM;
        }
        pf_free(lib->wide);
        lib->wide = grown;
        lib->wide_floats = n;
    }
    *wide_out = (struct wide){lib->wide, lib->wide + a, lib->wide + a + b, lib->wide + a + b + c};
    return 0;
}

static int gemm_widen(const struct pf_kctx *ctx, const struct pf_gemm_args *g, enum pf_dtype dtype)
{
    const struct library *const lib = ctx->library;
    const struct own *const convert = dtype == PF_DTYPE_BF16 ? &lib->bf16 : &lib->f16;
    struct pf_gemm_args f = *g;
    struct wide w;
    const bool narrow_c = g->c_dtype != PF_DTYPE_F32;
    const int64_t a_rows = g->trans_a ? g->k : g->m, b_rows = g->trans_b ? g->n : g->k;

    PF_TRY(reserve_wide(ctx->library, g, &w));
    f.lda = g->trans_a ? g->m : g->k;
    f.ldb = g->trans_b ? g->k : g->n;
    convert->widen(ctx, g->a, g->lda, a_rows, f.lda, w.a);
    convert->widen(ctx, g->b, g->ldb, b_rows, f.ldb, w.b);
    f.a = w.a;
    f.b = w.b;
    if (g->bias) {
        convert->widen(ctx, g->bias, g->n, 1, g->n, w.bias);
        f.bias = w.bias;
    }
    if (!narrow_c) {
        return gemm(ctx, &f, PF_DTYPE_F32);
    }
    f.c = w.c;
    f.ldc = g->n;
    f.c_dtype = PF_DTYPE_F32;
    if (g->accumulate) {
        convert->widen(ctx, g->c, g->ldc, g->m, g->n, w.c);
    }
    PF_TRY(gemm(ctx, &f, PF_DTYPE_F32));
    convert->narrow(ctx, w.c, g->m, g->n, g->c, g->ldc);
    return 0;
}

/* What comes with a product ------------------------------------------------------------------------ */

typedef int product_fn(const struct pf_kctx *ctx, const struct pf_gemm_args *g,
                       enum pf_dtype dtype);

static void *element(const void *x, int64_t i, enum pf_dtype dtype)
{
    return (char *)(uintptr_t)x + (size_t)i * pf_dtype_bytes(dtype);
}

/* The residual becomes what the product is added to: that keeps the one rounding. */
static void copy_residual(const struct pf_kctx *ctx, const struct pf_gemm_args *g, void *to,
                          int64_t ld, enum pf_dtype dtype)
{
#pragma omp parallel for num_threads(ctx->n_threads)
    for (int64_t i = 0; i < g->m; i++) {
        memcpy(element(to, i * ld, dtype), element(g->residual, i * g->ldr, dtype),
               (size_t)g->n * pf_dtype_bytes(dtype));
    }
}

static int activate(const struct pf_kctx *ctx, const struct pf_gemm_args *g, const void *x,
                    int64_t ldx, enum pf_dtype dtype, pf_kernel_fn act_fwd)
{
    const bool dense = ldx == g->n && g->ldc == g->n;
    const int64_t rows = dense ? 1 : g->m;

    for (int64_t i = 0; i < rows; i++) {
        const struct pf_act_fwd_args args = {.n = dense ? g->m * g->n : g->n,
                                             .act = g->act,
                                             .x = element(x, i * ldx, dtype),
                                             .y = element(g->c, i * g->ldc, dtype)};
        PF_TRY(act_fwd(ctx, &args));
    }
    return 0;
}

static int gemm_whole(const struct pf_kctx *ctx, const struct pf_gemm_args *g, enum pf_dtype dtype,
                      product_fn *product)
{
    const struct library *const lib = ctx->library;
    const struct own *const own = dtype == PF_DTYPE_F32    ? &lib->f32
                                  : dtype == PF_DTYPE_BF16 ? &lib->bf16
                                                           : &lib->f16;
    struct pf_gemm_args p = *g;

    if (g->k == 0) {
        return own->gemm(ctx, g); /* no product to make */
    }
    if (g->activate && g->pre) {
        p.c = g->pre;
        p.ldc = g->ldp;
    }
    if (g->residual) {
        p.accumulate = true;
        if (g->residual != p.c) {
            copy_residual(ctx, g, p.c, p.ldc, dtype);
        }
    }
    PF_TRY(product(ctx, &p, dtype));
    return g->activate ? activate(ctx, g, p.c, p.ldc, dtype, own->act_fwd) : 0;
}

static int gemm_bf16_widen(const struct pf_kctx *ctx, const void *args)
{
    return gemm_whole(ctx, args, PF_DTYPE_BF16, gemm_widen);
}

static int gemm_f16_widen(const struct pf_kctx *ctx, const void *args)
{
    return gemm_whole(ctx, args, PF_DTYPE_F16, gemm_widen);
}

static int gemm_f32(const struct pf_kctx *ctx, const void *args)
{
    return gemm_whole(ctx, args, PF_DTYPE_F32, gemm);
}

static int gemm_bf16(const struct pf_kctx *ctx, const void *args)
{
    return gemm_whole(ctx, args, PF_DTYPE_BF16, gemm);
}

const struct pf_kernel_row pf_kernels_dnnl[] = {
    {PF_OP_GEMM, PF_DTYPE_F32, "dnnl", 50, gemm_f32},
    {PF_OP_GEMM, PF_DTYPE_BF16, "dnnl", 50, gemm_bf16},
    {PF_OP_GEMM, PF_DTYPE_BF16, "dnnl_widen", 45, gemm_bf16_widen},
    {PF_OP_GEMM, PF_DTYPE_F16, "dnnl_widen", 45, gemm_f16_widen},
};
const size_t pf_kernels_dnnl_n = sizeof pf_kernels_dnnl / sizeof pf_kernels_dnnl[0];

/* Bind oneDNN in this process to isa; false if it is bound to another. The highest is no bound: what
 * lies above it only makes bf16 faster. */
static bool bind_isa(const char *isa)
{
    static char bound[16];
    const dnnl_cpu_isa_t most = strcmp(isa, "avx512") == 0 ? dnnl_cpu_isa_avx512_core
                                : strcmp(isa, "avx2") == 0 ? dnnl_cpu_isa_avx2
                                                           : dnnl_cpu_isa_sse41;

    if (bound[0]) {
        return strcmp(bound, isa) == 0;
    }
    if (strcmp(isa, "avx512bf16") != 0 && dnnl_set_max_cpu_isa(most) != dnnl_success) {
        return false;
    }
    (void)snprintf(bound, sizeof bound, "%s", isa);
    return true;
}

/* Can the library make products of this dtype? It depends on the CPU and on what holds it back. */
static bool has_products(struct library *lib, enum pf_dtype dtype)
{
    const struct pf_gemm_args small = {
        .m = 16, .n = 16, .k = 16, .lda = 16, .ldb = 16, .ldc = 16, .c_dtype = dtype};
    const struct key key = key_of(dtype, &small);
    struct entry *entry;
    const bool made = entry_find(lib, &key, &entry) == 0;

    if (!made) {
        pf_error_clear();
    }
    return made;
}

#define OWN(isa, elem)                                                                             \
    {                                                                                              \
        pf_cpu_widen_##isa##_##elem, pf_cpu_narrow_##isa##_##elem, pf_cpu_gemm_##isa##_##elem,     \
            pf_cpu_act_fwd_##isa##_##elem                                                          \
    }

static void take_own(const char *isa, struct library *lib)
{
    static const struct own f32[] = {OWN(generic, f32), OWN(avx2, f32), OWN(avx512, f32),
                                     OWN(avx512, f32)};
    static const struct own bf16[] = {OWN(generic, bf16), OWN(avx2, bf16), OWN(avx512, bf16),
                                      OWN(avx512bf16, bf16)};
    static const struct own f16[] = {OWN(generic, f16), OWN(avx2, f16), OWN(avx512, f16),
                                     OWN(avx512, f16)};
    const int level = strcmp(isa, "avx512bf16") == 0 ? 3
                      : strcmp(isa, "avx512") == 0   ? 2
                      : strcmp(isa, "avx2") == 0     ? 1
                                                     : 0;

    lib->f32 = f32[level];
    lib->bf16 = bf16[level];
    lib->f16 = f16[level];
}

int pf_dnnl_open(int n_threads, const char *isa, void **library_out)
{
    struct library *lib;
    int err = 0;

    if (!bind_isa(isa)) {
        *library_out = NULL;
        return 0;
    }
    lib = pf_alloc(sizeof *lib);
    if (!lib) {
        return PF_ENOMEM;
    }
    take_own(isa, lib);
    omp_set_num_threads(n_threads);
    if (dnnl_engine_create(&lib->engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_stream_create(&lib->stream, lib->engine, dnnl_stream_default_flags) != dnnl_success) {
        err = pf_fail(PF_EDEVICE, "oneDNN has no CPU engine");
        pf_dnnl_close(lib);
        return err;
    }
    lib->multiplies_bf16 = has_products(lib, PF_DTYPE_BF16);
    *library_out = lib;
    return 0;
}

bool pf_dnnl_serves(const void *library, const struct pf_kernel_row *row)
{
    const struct library *lib = library;

    return row->fn != gemm_bf16 || lib->multiplies_bf16;
}

void pf_dnnl_close(void *library)
{
    struct library *lib = library;

    if (!lib) {
        return;
    }
    for (int i = 0; i < N_BUCKETS; i++) {
        for (struct entry *e = lib->buckets[i], *next; e; e = next) {
            next = e->next;
            entry_free(e);
        }
    }
    if (lib->stream) {
        (void)dnnl_stream_destroy(lib->stream);
    }
    if (lib->engine) {
        (void)dnnl_engine_destroy(lib->engine);
    }
    pf_free(lib->scratchpad);
    pf_free(lib->wide);
    pf_free(lib);
}

const char *pf_dnnl_version(void)
{
    static char text[64];
    const dnnl_version_t *v = dnnl_version();

    (void)snprintf(text, sizeof text, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    return text;
}

const char *pf_dnnl_isa(void)
{
    static char text[32];

    switch ((int)dnnl_get_effective_cpu_isa()) {
    case dnnl_cpu_isa_sse41:
        return "sse41";
    case dnnl_cpu_isa_avx:
        return "avx";
    case dnnl_cpu_isa_avx2:
        return "avx2";
    case dnnl_cpu_isa_avx2_vnni:
        return "avx2_vnni";
    case dnnl_cpu_isa_avx512_core:
        return "avx512_core";
    case dnnl_cpu_isa_avx512_core_vnni:
        return "avx512_core_vnni";
    case dnnl_cpu_isa_avx512_core_bf16:
        return "avx512_core_bf16";
    case dnnl_cpu_isa_avx512_core_amx:
        return "avx512_core_amx";
    default: /* newer than the versions that share these names */
        (void)snprintf(text, sizeof text, "0x%x", (unsigned)dnnl_get_effective_cpu_isa());
        return text;
    }
}
