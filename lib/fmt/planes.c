/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of numbers as byte planes. Source: pf/planes.h. */
#include "zstd_frame.h"

#include <pf/error.h>
#include <pf/mem.h>
#include <pf/planes.h>

#include <string.h>

/* Elements taken apart at a time: a count that is known lets the compiler use vectors. */
#define STRIDE 64
/* A plane is judged by so many bytes of it, in runs from all over. */
#define SAMPLE_RUNS 16
#define SAMPLE_RUN 256

struct pf_planes {
    struct zstd_frames *frames;
    uint8_t *scratch; /* a block, plane after plane */
};

bool pf_planes_is_built(void)
{
    return zstd_is_built();
}

const char *pf_planes_version(void)
{
    return zstd_version();
}

int pf_planes_new(struct pf_planes **planes_out)
{
    struct pf_planes *const p = pf_alloc(sizeof *p);
    int err = p ? zstd_frames_new(&p->frames) : PF_ENOMEM;

    if (!err) {
        p->scratch = pf_alloc(PF_PLANES_BLOCK_BYTES);
        err = p->scratch ? 0 : PF_ENOMEM;
    }
    if (err) {
        pf_planes_free(p);
        return err;
    }
    *planes_out = p;
    return 0;
}

void pf_planes_free(struct pf_planes *planes)
{
    if (planes) {
        zstd_frames_free(planes->frames);
        pf_free(planes->scratch);
        pf_free(planes);
    }
}

/* Elements ----------------------------------------------------------------------------------------
 */

static size_t width_of(enum pf_dtype dtype)
{
    return dtype == PF_DTYPE_C64 ? 4 : pf_dtype_bytes(dtype);
}

static bool is_rotated(enum pf_dtype dtype)
{
    return pf_dtype_is_float(dtype) || dtype == PF_DTYPE_C64;
}

size_t pf_planes_least(enum pf_dtype dtype, size_t n_bytes)
{
    const size_t w = width_of(dtype);

    return n_bytes > 0 ? w * (sizeof(uint32_t) + 1) : 0;
}

size_t pf_planes_bound(enum pf_dtype dtype, size_t n_bytes)
{
    return width_of(dtype) * sizeof(uint32_t) + n_bytes;
}

/* With n and rotate known where it is called, these become vector code. */
#define INLINE static inline __attribute__((always_inline))

/* n <= STRIDE elements of W bytes at src to the planes, which are `plane` bytes apart. */
#define SPLIT(W, TYPE)                                                                             \
    INLINE void split_##W(const uint8_t *src, uint8_t *dst, size_t plane, size_t n, bool rotate)   \
    {                                                                                              \
        TYPE v[STRIDE] = {0};                                                                      \
        uint8_t bytes[STRIDE];                                                                     \
        memcpy(v, src, n *W);                                                                      \
        if (rotate) {                                                                              \
            for (int i = 0; i < STRIDE; i++) {                                                     \
                v[i] = (TYPE)(v[i] << 1 | v[i] >> (8 * W - 1));                                    \
            }                                                                                      \
        }                                                                                          \
        for (int k = 0; k < W; k++) {                                                              \
            for (int i = 0; i < STRIDE; i++) {                                                     \
                bytes[i] = (uint8_t)(v[i] >> (8 * k));                                             \
            }                                                                                      \
            memcpy(dst + (size_t)k * plane, bytes, n);                                             \
        }                                                                                          \
    }

/* The reverse; plane k is at planes[k] + at. */
#define JOIN(W, TYPE)                                                                              \
    INLINE void join_##W(const uint8_t *const *planes, size_t at, uint8_t *dst, size_t n,          \
                         bool rotate)                                                              \
    {                                                                                              \
        TYPE v[STRIDE] = {0};                                                                      \
        uint8_t bytes[STRIDE] = {0};                                                               \
        for (int k = 0; k < W; k++) {                                                              \
            memcpy(bytes, planes[k] + at, n);                                                      \
            for (int i = 0; i < STRIDE; i++) {                                                     \
                v[i] = (TYPE)(v[i] | (TYPE)bytes[i] << (8 * k));                                   \
            }                                                                                      \
        }                                                                                          \
        if (rotate) {                                                                              \
            for (int i = 0; i < STRIDE; i++) {                                                     \
                v[i] = (TYPE)(v[i] >> 1 | v[i] << (8 * W - 1));                                    \
            }                                                                                      \
        }                                                                                          \
        memcpy(dst, v, n *W);                                                                      \
    }

SPLIT(2, uint16_t)
SPLIT(4, uint32_t)
SPLIT(8, uint64_t)
JOIN(2, uint16_t)
JOIN(4, uint32_t)
JOIN(8, uint64_t)

/* All elements of W bytes: whole strides, and what is left over. */
#define WHOLE(W)                                                                                   \
    INLINE void split_all_##W(const uint8_t *src, size_t n, uint8_t *dst, bool rotate)             \
    {                                                                                              \
        size_t i = 0;                                                                              \
        for (; i + STRIDE <= n; i += STRIDE) {                                                     \
            split_##W(src + W * i, dst + i, n, STRIDE, rotate);                                    \
        }                                                                                          \
        split_##W(src + W * i, dst + i, n, n - i, rotate);                                         \
    }                                                                                              \
    INLINE void join_all_##W(const uint8_t *const *planes, size_t n, uint8_t *dst, bool rotate)    \
    {                                                                                              \
        size_t i = 0;                                                                              \
        for (; i + STRIDE <= n; i += STRIDE) {                                                     \
            join_##W(planes, i, dst + W * i, STRIDE, rotate);                                      \
        }                                                                                          \
        join_##W(planes, i, dst + W * i, n - i, rotate);                                           \
    }                                                                                              \
    static void split_either_##W(const uint8_t *src, size_t n, uint8_t *dst, bool rotate)          \
    {                                                                                              \
        if (rotate) {                                                                              \
            split_all_##W(src, n, dst, true);                                                      \
        } else {                                                                                   \
            split_all_##W(src, n, dst, false);                                                     \
        }                                                                                          \
    }                                                                                              \
    static void join_either_##W(const uint8_t *const *planes, size_t n, uint8_t *dst, bool rotate) \
    {                                                                                              \
        if (rotate) {                                                                              \
            join_all_##W(planes, n, dst, true);                                                    \
        } else {                                                                                   \
            join_all_##W(planes, n, dst, false);                                                   \
        }                                                                                          \
    }

WHOLE(2)
WHOLE(4)
WHOLE(8)

static void split(enum pf_dtype dtype, const uint8_t *src, size_t n, uint8_t *dst)
{
    const bool rotate = is_rotated(dtype);

    switch (width_of(dtype)) {
    case 2:
        split_either_2(src, n, dst, rotate);
        break;
    case 4:
        split_either_4(src, n, dst, rotate);
        break;
    case 8:
        split_either_8(src, n, dst, rotate);
        break;
    default:
        memcpy(dst, src, n);
        break;
    }
}

static void join(enum pf_dtype dtype, const uint8_t *const *planes, size_t n, uint8_t *dst)
{
    const bool rotate = is_rotated(dtype);

    switch (width_of(dtype)) {
    case 2:
        join_either_2(planes, n, dst, rotate);
        break;
    case 4:
        join_either_4(planes, n, dst, rotate);
        break;
    case 8:
        join_either_8(planes, n, dst, rotate);
        break;
    default:
        memcpy(dst, planes[0], n);
        break;
    }
}

/* Planes ------------------------------------------------------------------------------------------
 */

static void put_u32(uint8_t *to, size_t value)
{
    for (int i = 0; i < 4; i++, value >>= 8) {
        to[i] = (uint8_t)(value & 0xff);
    }
}

static size_t get_u32(const uint8_t *from)
{
    return (size_t)from[0] | (size_t)from[1] << 8 | (size_t)from[2] << 16 | (size_t)from[3] << 24;
}

struct sample {
    uint32_t count[256];
    uint32_t n;
};

static void take_sample(const uint8_t *plane, size_t n, struct sample *s)
{
    const size_t apart = n / SAMPLE_RUNS;

    *s = (struct sample){.n = 0};
    for (size_t r = 0; r < SAMPLE_RUNS; r++) {
        const size_t at = n <= SAMPLE_RUNS * SAMPLE_RUN ? r * SAMPLE_RUN : r * apart;
        for (size_t i = at; i < n && i < at + SAMPLE_RUN; i++, s->n++) {
            s->count[plane[i]]++;
        }
    }
}

/*
 * Whether a plane is worth an attempt, and which. With p the shares of the byte values, the sum of
 * p^2 is 1/256 for noise (a little more in a sample); below 1.3/256 no code by frequency saves 4 %.
 */
static bool choose(const struct sample *s, enum zstd_effort *effort_out)
{
    uint64_t squares = 0;
    uint32_t most = 0;

    for (int b = 0; b < 256; b++) {
        squares += (uint64_t)s->count[b] * s->count[b];
        most = s->count[b] > most ? s->count[b] : most;
    }
    *effort_out = 2 * most > s->n ? EFFORT_REPEATS : EFFORT_HUFFMAN;
    return 10 * 256 * squares > (uint64_t)13 * s->n * s->n;
}

/* Store a plane of n bytes; *bytes_out < n: as a frame. */
static int store_plane(struct pf_planes *p, const uint8_t *plane, size_t n, uint8_t *dst,
                       size_t *bytes_out)
{
    enum zstd_effort effort;
    struct sample s;
    size_t bytes = 0;

    take_sample(plane, n, &s);
    if (choose(&s, &effort)) {
        PF_TRY(zstd_frame_encode(p->frames, effort, plane, n, dst, n - 1, &bytes));
    }
    if (bytes == 0) {
        memcpy(dst, plane, n);
        bytes = n;
    }
    *bytes_out = bytes;
    return 0;
}

int pf_planes_encode(struct pf_planes *planes, enum pf_dtype dtype, const void *src, size_t n_bytes,
                     void *dst, size_t *bytes_out)
{
    const size_t w = width_of(dtype), n = w > 0 ? n_bytes / w : 0;
    uint8_t *const out = dst;
    size_t at = w * sizeof(uint32_t);

    if (n == 0 || n_bytes % w != 0 || n_bytes > PF_PLANES_BLOCK_BYTES) {
        return pf_fail(PF_EINVAL, "%zu bytes of %s are no block", n_bytes, pf_dtype_name(dtype));
    }
    split(dtype, src, n, planes->scratch);
    for (size_t k = 0; k < w; k++) {
        size_t bytes = 0;
        PF_TRY(store_plane(planes, planes->scratch + k * n, n, out + at, &bytes));
        put_u32(out + k * sizeof(uint32_t), bytes);
        at += bytes;
    }
    *bytes_out = at;
    return 0;
}

/* Where each plane is: in src as it stands, or in the scratch, decoded. */
static int find_planes(struct pf_planes *p, const uint8_t *src, size_t n_src, size_t w, size_t n,
                       const uint8_t *planes_out[8])
{
    size_t at = w * sizeof(uint32_t);

    if (n_src < at) {
        return PF_EFORMAT;
    }
    for (size_t k = 0; k < w; k++) {
        const size_t bytes = get_u32(src + k * sizeof(uint32_t));
        if (bytes == 0 || bytes > n || bytes > n_src - at) {
            return PF_EFORMAT;
        }
        planes_out[k] = bytes == n ? src + at : p->scratch + k * n;
        if (bytes < n) {
            PF_TRY(zstd_frame_decode(p->frames, src + at, bytes, p->scratch + k * n, n));
        }
        at += bytes;
    }
    return at == n_src ? 0 : PF_EFORMAT;
}

int pf_planes_decode(struct pf_planes *planes, enum pf_dtype dtype, const void *src, size_t n_src,
                     void *dst, size_t n_bytes)
{
    const size_t w = width_of(dtype), n = w > 0 ? n_bytes / w : 0;
    const uint8_t *found[8];

    if (n == 0 || n_bytes % w != 0 || n_bytes > PF_PLANES_BLOCK_BYTES) {
        return PF_EFORMAT;
    }
    PF_TRY(find_planes(planes, src, n_src, w, n, found));
    join(dtype, found, n, dst);
    return 0;
}
