/* SPDX-License-Identifier: Apache-2.0 */
/* limits.c - multiply-adds on registers, and the streaming triad. */
#include <pf/limits.h>

#include <pf/error.h>
#include <pf/mem.h>
#include <pf/time.h>

#include <omp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Chains of dependent multiply-adds: more than latency times units on any CPU so far, and they fit
 * the 16 registers of AVX2 with two to spare. */
enum { N_CHAINS = 12, ROUNDS = 1 << 15 };

/* Each runs ROUNDS times N_CHAINS instructions and gives a number that depends on all of them. */
typedef float spin_fn(void);
/* a = b + 3c, or a copy of b where c is NULL, of n floats; n is a multiple of 16. */
typedef void stream_fn(float *a, const float *b, const float *c, size_t n);

/* x*A + B stays near B / (1 - A): no infinity, no subnormal. */
#define A 0.75f
#define B 0.3f

typedef float vec4 __attribute__((vector_size(16)));

static float spin_generic(void)
{
    vec4 x[N_CHAINS];

    for (int j = 0; j < N_CHAINS; j++) {
        x[j] = (vec4){(float)j, 1, 2, 3};
    }
    for (int i = 0; i < ROUNDS; i++) {
#pragma GCC unroll 16
        for (int j = 0; j < N_CHAINS; j++) {
            x[j] = x[j] * A + B;
        }
    }
    float sum = 0;
    for (int j = 0; j < N_CHAINS; j++) {
        sum += x[j][0];
    }
    return sum;
}

static void stream_generic(float *a, const float *b, const float *c, size_t n)
{
    if (!c) {
        memcpy(a, b, n * sizeof *a);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        a[i] = b[i] + 3 * c[i];
    }
}

#if defined(__x86_64__)
/* One such loop: `step` makes x[j] of x[j], a and b, which are of type `operand`. */
#define SPIN(name, isa, vec, prefix, operand, a_value, b_value, step)                              \
    __attribute__((target(isa))) static float name(void)                                           \
    {                                                                                              \
        const operand a = a_value, b = b_value;                                                    \
        vec x[N_CHAINS];                                                                           \
                                                                                                   \
        for (int j = 0; j < N_CHAINS; j++) {                                                       \
            x[j] = prefix##_set1_ps((float)j);                                                     \
        }                                                                                          \
        for (int i = 0; i < ROUNDS; i++) {                                                         \
            _Pragma("GCC unroll 16") for (int j = 0; j < N_CHAINS; j++)                            \
            {                                                                                      \
                x[j] = step(x[j], a, b);                                                           \
            }                                                                                      \
        }                                                                                          \
        for (int j = 1; j < N_CHAINS; j++) {                                                       \
            x[0] = prefix##_add_ps(x[0], x[j]);                                                    \
        }                                                                                          \
        return prefix##_cvtss_f32(x[0]);                                                           \
    }

SPIN(spin_avx2, "avx2,fma", __m256, _mm256, __m256, _mm256_set1_ps(A), _mm256_set1_ps(B),
     _mm256_fmadd_ps)
SPIN(spin_avx512, "avx512f", __m512, _mm512, __m512, _mm512_set1_ps(A), _mm512_set1_ps(B),
     _mm512_fmadd_ps)

/* x += a.b over pairs: grows by a constant, so fp32 holds it. */
#define PAIRS(first, second) _mm512_cvtne2ps_pbh(_mm512_set1_ps(first), _mm512_set1_ps(second))
SPIN(spin_bf16, "avx512f,avx512bf16", __m512, _mm512, __m512bh, PAIRS(A, B), PAIRS(A, B),
     _mm512_dpbf16_ps)

__attribute__((target("avx2,fma"))) static void stream_avx2(float *a, const float *b,
                                                            const float *c, size_t n)
{
    const __m256 s = _mm256_set1_ps(3);

    for (size_t i = 0; i < n; i += 8) {
        const __m256 y = _mm256_load_ps(b + i);
        _mm256_stream_ps(a + i, c ? _mm256_fmadd_ps(_mm256_load_ps(c + i), s, y) : y);
    }
    _mm_sfence();
}

__attribute__((target("avx512f"))) static void stream_avx512(float *a, const float *b,
                                                             const float *c, size_t n)
{
    const __m512 s = _mm512_set1_ps(3);

    for (size_t i = 0; i < n; i += 16) {
        const __m512 y = _mm512_load_ps(b + i);
        _mm512_stream_ps(a + i, c ? _mm512_fmadd_ps(_mm512_load_ps(c + i), s, y) : y);
    }
    _mm_sfence();
}
#endif

/* What an instruction set has; lanes are floats a multiply-add works on (pairs counted twice). */
struct unit {
    const char *isa;
    spin_fn *spin, *spin_bf16;
    int lanes, lanes_bf16;
    stream_fn *stream;
};

static int choose_unit(const char *isa, struct unit *unit_out)
{
    if (strcmp(isa, "generic") == 0) {
        *unit_out = (struct unit){isa, spin_generic, NULL, 4, 0, stream_generic};
        return 0;
    }
#if defined(__x86_64__)
    if (strcmp(isa, "avx2") == 0) {
        *unit_out = (struct unit){isa, spin_avx2, NULL, 8, 0, stream_avx2};
        return 0;
    }
    if (strcmp(isa, "avx512") == 0) {
        *unit_out = (struct unit){isa, spin_avx512, NULL, 16, 0, stream_avx512};
        return 0;
    }
    if (strcmp(isa, "avx512bf16") == 0) {
        *unit_out = (struct unit){isa, spin_avx512, spin_bf16, 16, 32, stream_avx512};
        return 0;
    }
#endif
    return pf_fail(PF_EUSAGE, "unknown instruction set '%s': generic, avx2, avx512 or avx512bf16",
                   isa);
}

static void raise_to(double *best, double value)
{
    *best = value > *best ? value : *best;
}

/* Results go here, so that no loop is found to be useless. */
static volatile float sink;

enum { SPIN_TRIES = 6, STREAM_TRIES = 4 };

static void measure_spin(spin_fn *spin, int lanes, int n_threads, double *flops)
{
    enum { CALLS = 4 };
    const double work = 2.0 * lanes * N_CHAINS * ROUNDS * CALLS * n_threads;

    for (int t = 0; t < SPIN_TRIES; t++) {
        const double started = pf_time_monotonic();
#pragma omp parallel num_threads(n_threads)
        for (int i = 0; i < CALLS; i++) {
            sink = spin();
        }
        raise_to(flops, work / (pf_time_monotonic() - started));
    }
}

struct streams {
    float *a, *b, *c;
    size_t n; /* floats in each, a multiple of 16 for each thread */
    int n_threads;
};

static void stream(const struct streams *s, stream_fn *fn, bool copy)
{
    const size_t part = s->n / (size_t)s->n_threads;

#pragma omp parallel num_threads(s->n_threads)
    {
        const size_t at = (size_t)omp_get_thread_num() * part;
        fn(s->a + at, s->b + at, copy ? NULL : s->c + at, part);
    }
}

/* Large pages where the system has some: fewer faults, and no misses of the TLB in the limit. */
static void ask_large_pages(void *block, size_t bytes)
{
    const uintptr_t page = 4096, begin = ((uintptr_t)block + page - 1) / page * page;

    (void)madvise((void *)begin, bytes - (size_t)(begin - (uintptr_t)block), MADV_HUGEPAGE);
}

/* Each thread touches its part first, so that the memory is near it. */
static void fill(const struct streams *s)
{
#pragma omp parallel for num_threads(s->n_threads) schedule(static)
    for (size_t i = 0; i < s->n; i++) {
        s->a[i] = 0.5f;
        s->b[i] = (float)(i % 251) * 0.01f;
        s->c[i] = (float)(i % 241) * 0.02f;
    }
}

static int measure_streams(const struct unit *unit, int n_threads, struct pf_limits *limits)
{
    const size_t step = 16 * (size_t)n_threads;
    struct streams s = {.n_threads = n_threads};
    const double cache = pf_limits_cache_bytes(), least = 32.0 * 1024 * 1024;
    const double wanted = (cache > least ? cache : least) / sizeof(float);
    int err = 0;

    s.n = (size_t)wanted / step * step;
    s.a = pf_calloc_array(s.n, sizeof(float));
    s.b = pf_calloc_array(s.n, sizeof(float));
    s.c = pf_calloc_array(s.n, sizeof(float));
    if (!s.a || !s.b || !s.c) {
        err = PF_ENOMEM;
        goto out;
    }
    ask_large_pages(s.a, s.n * sizeof(float));
    ask_large_pages(s.b, s.n * sizeof(float));
    ask_large_pages(s.c, s.n * sizeof(float));
    fill(&s);
    const double bytes = (double)s.n * sizeof(float);
    limits->triad_array_bytes = bytes;
    for (int t = 0; t < STREAM_TRIES; t++) {
        const double started = pf_time_monotonic();
        stream(&s, unit->stream, false);
        const double between = pf_time_monotonic();
        stream(&s, unit->stream, true);
        raise_to(&limits->triad_bytes, 3 * bytes / (between - started));
        raise_to(&limits->copy_bytes, 2 * bytes / (pf_time_monotonic() - between));
    }
    sink = s.a[s.n / 2];
out:
    pf_free(s.a);
    pf_free(s.b);
    pf_free(s.c);
    return err;
}

int pf_limits_measure(int n_threads, const char *isa, struct pf_limits *limits_inout)
{
    struct pf_limits limits = *limits_inout;
    struct unit unit = {.isa = NULL};

    PF_TRY(choose_unit(isa, &unit));
    if (n_threads < 1) {
        return pf_fail(PF_EINVAL, "thread count %d is not positive", n_threads);
    }
    measure_spin(unit.spin, unit.lanes, n_threads, &limits.f32_flops);
    if (unit.spin_bf16) {
        measure_spin(unit.spin_bf16, unit.lanes_bf16, n_threads, &limits.bf16_flops);
    }
    PF_TRY(measure_streams(&unit, n_threads, &limits));
    *limits_inout = limits;
    return 0;
}

double pf_limits_flops(const struct pf_limits *limits, enum pf_dtype dtype)
{
    const bool own = dtype == PF_DTYPE_BF16 && limits->bf16_flops > limits->f32_flops;

    return own ? limits->bf16_flops : limits->f32_flops;
}

/* Bytes of a cache of this CPU as Linux lists them ("32768K"), 0 where there is no such cache. */
static double listed_cache_bytes(int cpu, int index)
{
    char path[96];
    double kib = 0;

    (void)snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cache/index%d/size", cpu,
                   index);
    FILE *const file = fopen(path, "re");
    if (!file) {
        return 0;
    }
    if (fscanf(file, "%lfK", &kib) != 1) {
        kib = 0;
    }
    (void)fclose(file);
    return kib * 1024;
}

double pf_limits_cache_bytes(void)
{
    const int cpu = sched_getcpu();
    double largest = 0;

    for (int index = 0; cpu >= 0 && index < 8; index++) {
        raise_to(&largest, listed_cache_bytes(cpu, index));
    }
    if (largest > 0) {
        return largest;
    }
    const long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE), l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
    const long known = l3 > 0 ? l3 : l2;
    return known > 0 ? (double)known : 32.0 * 1024 * 1024;
}
