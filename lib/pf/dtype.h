/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dtype.h - element types: names, widths, and exact conversion between floating types.
 *
 * The enum holds every dtype of the safetensors format in the order by which its writers sort
 * tensors, so that `a < b` is that order. Arithmetic is done in F32 (and F64) only; BF16 and F16
 * are storage types, kept as uint16_t bit patterns.
 *
 * Conversions to a narrower type round to nearest, ties to even; overflow gives an infinity;
 * subnormals are kept on both sides; a NaN stays a NaN of the same sign, made quiet, with the upper
 * bits of its payload. (F64 to F32 is the processor's own, so it follows the thread's rounding mode,
 * which pf never changes.)
 *
 * Source: safetensors/src/tensor.rs (Dtype); IEEE 754-2019 section 4.3.1 for the rounding.
 *
 * All functions are local, pure, and safe to call from any thread.
 */
#ifndef PF_DTYPE_H
#define PF_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum pf_dtype {
    PF_DTYPE_BOOL,
    PF_DTYPE_F4,
    PF_DTYPE_F6_E2M3,
    PF_DTYPE_F6_E3M2,
    PF_DTYPE_U8,
    PF_DTYPE_I8,
    PF_DTYPE_F8_E5M2,
    PF_DTYPE_F8_E4M3,
    PF_DTYPE_F8_E8M0,
    PF_DTYPE_F8_E4M3FNUZ,
    PF_DTYPE_F8_E5M2FNUZ,
    PF_DTYPE_I16,
    PF_DTYPE_U16,
    PF_DTYPE_F16,
    PF_DTYPE_BF16,
    PF_DTYPE_I32,
    PF_DTYPE_U32,
    PF_DTYPE_F32,
    PF_DTYPE_C64,
    PF_DTYPE_F64,
    PF_DTYPE_I64,
    PF_DTYPE_U64,
    PF_DTYPE_COUNT, /* how many there are; not a dtype */
};

/* Width of one element in bits: 4, 6, 8, 16, 32 or 64. */
int pf_dtype_bits(enum pf_dtype dtype);

/* Width of one element in bytes, or 0 if it is not a whole number of bytes (F4, F6). */
size_t pf_dtype_bytes(enum pf_dtype dtype);

/* Bytes of n elements packed together. Returns 0, or PF_EINVAL if n is negative, the bits overflow
 * or do not fill whole bytes. Sets *bytes_out only on success; leaves no record. */
int pf_dtype_array_bytes(enum pf_dtype dtype, int64_t n, size_t *bytes_out);

/* The name in a safetensors header: "F32", "BF16", "F8_E4M3". Static. */
const char *pf_dtype_name(enum pf_dtype dtype);

/* The dtype of a safetensors name, matched exactly (case too). PF_EINVAL without a record if there
 * is none: the caller knows the file and tensor to name. */
int pf_dtype_parse(const char *name, enum pf_dtype *dtype_out);

/* The same for the names of torch and of Hugging Face configs: "float32", "bfloat16", "float16",
 * "float64", "int64", "uint8", "bool", "float8_e4m3fn", ...; a leading "torch." is accepted.
 * Source: the `torch_dtype` and `dtype` keys of transformers' config.json. */
int pf_dtype_from_torch_name(const char *name, enum pf_dtype *dtype_out);

/* The torch name, or NULL for a dtype that torch does not have (F6_*). Static. */
const char *pf_dtype_torch_name(enum pf_dtype dtype);

/* F16, BF16, F32 or F64: what pf_dtype_convert takes. */
bool pf_dtype_is_float(enum pf_dtype dtype);

/* F8_E5M2, F8_E4M3, F8_E8M0, F8_E4M3FNUZ or F8_E5M2FNUZ: what pf_f32_from_f8 takes. */
bool pf_dtype_is_f8(enum pf_dtype dtype);

/*
 * The number of an F8 bit pattern: exact, every F8 number is an F32. NaNs come without payload;
 * F8_E8M0 is 2 to the power of bits - 127, for scales.
 * Source: OCP 8-bit floating point specification 1.0 (E5M2, E4M3), OCP microscaling formats 1.0
 * (E8M0); Noune et al., "8-bit numerical formats for deep neural networks", 2022 (FNUZ: the bias is
 * one more, no infinity, the pattern of -0 is the NaN).
 */
float pf_f32_from_f8(enum pf_dtype dtype, uint8_t bits);

/* The least positive number of a floating dtype (F8 too) that has all its digits; numbers between it
 * and 0 are its subnormals. 0 for dtypes without any: integers, F8_E8M0. */
double pf_dtype_least_normal(enum pf_dtype dtype);

uint16_t pf_bf16_from_f32(float x);
float pf_f32_from_bf16(uint16_t bits);
uint16_t pf_f16_from_f32(float x);
float pf_f32_from_f16(uint16_t bits);

/*
 * Convert n elements. src and dst are packed, of any alignment, and do not overlap, or are the same
 * address where the widths are equal. Between F64 and a 16-bit type the value is rounded once, not
 * by way of F32. Equal dtypes of any kind are copied bit by bit.
 *
 * Returns 0, or PF_ENOTSUP (recorded) for two different dtypes of which one is not pf_dtype_is_float.
 */
int pf_dtype_convert(enum pf_dtype from, const void *src, enum pf_dtype to, void *dst, size_t n);

#ifdef __cplusplus
}
#endif

#endif
