/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mem.h - counted allocation and checked arithmetic on sizes.
 *
 * Everything that pf allocates itself goes through here, so that "no allocation inside a step" is a
 * number that a test can read, and the peak a figure that metrics can report. Foreign libraries
 * (MPI, oneDNN) are not counted.
 *
 * Memory is aligned to 64 bytes (one cache line, one AVX-512 vector) and zeroed. Free it with
 * pf_free, never with free. The counters are exact and shared by all threads.
 *
 *     float *x = pf_calloc_array(n, sizeof *x);
 *     if (!x)
 *             return PF_ENOMEM;      // the record is written already
 *     ...
 *     pf_free(x);
 *
 * All functions are local and safe to call from any thread.
 */
#ifndef PF_MEM_H
#define PF_MEM_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PF_MEM_ALIGN 64

/* Zeroed memory of that many bytes (0 gives a unique pointer as well), or NULL with a record
 * (PF_ENOMEM) that names the size. Large blocks come from the kernel untouched: zeroing costs
 * nothing until first use. */
void *pf_alloc(size_t bytes);

/* pf_alloc of n * size bytes; an overflow is reported as being out of memory. */
void *pf_calloc_array(size_t n, size_t size);

/*
 * Change the size of a block from this header (NULL: a new one), keeping its content; what is added
 * is zeroed. Returns the block, perhaps moved, or NULL with a record, the old one then still valid.
 */
void *pf_realloc_array(void *block, size_t n, size_t size);

/* Copies of a string; NULL with a record when memory is out. pf_strdup(NULL) is NULL. */
char *pf_strdup(const char *text);
char *pf_strndup(const char *text, size_t max_bytes);

/* printf into new memory; NULL with a record when memory is out. */
char *pf_asprintf(const char *format, ...) __attribute__((format(printf, 1, 2)));
char *pf_vasprintf(const char *format, va_list args) __attribute__((format(printf, 1, 0)));

/* Free a block from this header. NULL is fine; errno is preserved. */
void pf_free(void *block);

/* How many allocations (and moves by pf_realloc_array) were made since the program started. */
int64_t pf_mem_n_allocs(void);

/* Bytes asked for and not yet freed, now and at most so far. */
size_t pf_mem_live_bytes(void);
size_t pf_mem_peak_bytes(void);

/* Start the peak again from what is live now. */
void pf_mem_reset_peak(void);

/* Products and sums of sizes: true and *out set if it fits, else false and *out left alone. */
bool pf_mul_size(size_t a, size_t b, size_t *out);
bool pf_add_size(size_t a, size_t b, size_t *out);
bool pf_mul_i64(int64_t a, int64_t b, int64_t *out);
bool pf_add_i64(int64_t a, int64_t b, int64_t *out);

/* Checked casts, for narrowing at the borders (MPI counts, BLAS sizes, on-disk fields). 0, or
 * PF_EINVAL with a record that gives the value; *out is set only on success. */
int pf_to_int(int64_t value, int *out);
int pf_to_i32(int64_t value, int32_t *out);
int pf_to_u32(int64_t value, uint32_t *out);
int pf_to_size(int64_t value, size_t *out);
int pf_size_to_i64(size_t value, int64_t *out);
int pf_u64_to_i64(uint64_t value, int64_t *out);

#endif
