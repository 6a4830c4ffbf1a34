/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one file that knows libzstd. Source: RFC 8878; zstd.h. The mode of literals is an experimental
 * parameter, whose number and values have been the same since 1.4.0.
 */
#include "zstd_frame.h"

#include <pf/error.h>
#include <pf/mem.h>

#include "config.h"

#if PF_HAVE_ZSTD

#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>
#include <zstd_errors.h>

/* As far from looking for repetitions as levels go; the library takes the nearest it has. */
#define LEVEL_HUFFMAN (-100000)
#define LEVEL_REPEATS 1

struct zstd_frames {
    ZSTD_CCtx *encoder; /* made when first needed */
    ZSTD_DCtx *decoder;
    enum zstd_effort effort; /* what the encoder is set to */
};

bool zstd_is_built(void)
{
    return true;
}

const char *zstd_version(void)
{
    return ZSTD_versionString();
}

int zstd_frames_new(struct zstd_frames **frames_out)
{
    struct zstd_frames *const frames = pf_alloc(sizeof *frames);

    if (!frames) {
        return PF_ENOMEM;
    }
    *frames_out = frames;
    return 0;
}

void zstd_frames_free(struct zstd_frames *frames)
{
    if (frames) {
        ZSTD_freeCCtx(frames->encoder);
        ZSTD_freeDCtx(frames->decoder);
        pf_free(frames);
    }
}

static int set_effort(struct zstd_frames *f, enum zstd_effort effort)
{
    const bool huffman = effort == EFFORT_HUFFMAN;
    const bool made = f->encoder != NULL;

    if (made && f->effort == effort) {
        return 0;
    }
    f->encoder = made ? f->encoder : ZSTD_createCCtx();
    if (!f->encoder) {
        return pf_fail(PF_ENOMEM, "out of memory: cannot make a zstd encoder");
    }
    f->effort = effort;
    /* A frame that found no room is still begun. */
    (void)ZSTD_CCtx_reset(f->encoder, ZSTD_reset_session_only);
    const size_t level = ZSTD_CCtx_setParameter(f->encoder, ZSTD_c_compressionLevel,
                                                huffman ? LEVEL_HUFFMAN : LEVEL_REPEATS);
    const size_t literals =
        ZSTD_CCtx_setParameter(f->encoder, ZSTD_c_literalCompressionMode,
                               huffman ? (int)ZSTD_ps_enable : (int)ZSTD_ps_auto);
    return ZSTD_isError(level) || ZSTD_isError(literals)
               ? pf_fail(PF_ENOTSUP, "libzstd %s cannot be set as pf needs it", zstd_version())
               : 0;
}

int zstd_frame_encode(struct zstd_frames *frames, enum zstd_effort effort, const void *src,
                      size_t n, void *dst, size_t room, size_t *bytes_out)
{
    PF_TRY(set_effort(frames, effort));
    const size_t bytes = ZSTD_compress2(frames->encoder, dst, room, src, n);
    if (ZSTD_isError(bytes) && ZSTD_getErrorCode(bytes) == ZSTD_error_memory_allocation) {
        return pf_fail(PF_ENOMEM, "out of memory while compressing");
    }
    *bytes_out = ZSTD_isError(bytes) ? 0 : bytes;
    return 0;
}

int zstd_frame_decode(struct zstd_frames *frames, const void *src, size_t n_src, void *dst,
                      size_t n)
{
    frames->decoder = frames->decoder ? frames->decoder : ZSTD_createDCtx();
    if (!frames->decoder) {
        return pf_fail(PF_ENOMEM, "out of memory: cannot make a zstd decoder");
    }
    return ZSTD_findFrameCompressedSize(src, n_src) == n_src &&
                   ZSTD_decompressDCtx(frames->decoder, dst, n, src, n_src) == n
               ? 0
               : PF_EFORMAT;
}

#else

bool zstd_is_built(void)
{
    return false;
}

const char *zstd_version(void)
{
    return "not in this build";
}

int zstd_frames_new(struct zstd_frames **frames_out)
{
    (void)frames_out;
    return pf_fail(PF_ENOTSUP, "this build has no zstd, which compressed checkpoints need");
}

void zstd_frames_free(struct zstd_frames *frames)
{
    (void)frames;
}

int zstd_frame_encode(struct zstd_frames *frames, enum zstd_effort effort, const void *src,
                      size_t n, void *dst, size_t room, size_t *bytes_out)
{
    (void)frames, (void)effort, (void)src, (void)n, (void)dst, (void)room, (void)bytes_out;
    return pf_fail(PF_EBUG, "zstd without zstd");
}

int zstd_frame_decode(struct zstd_frames *frames, const void *src, size_t n_src, void *dst,
                      size_t n)
{
    (void)frames, (void)src, (void)n_src, (void)dst, (void)n;
    return pf_fail(PF_EBUG, "zstd without zstd");
}

#endif
