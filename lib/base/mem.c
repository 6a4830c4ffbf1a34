/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/mem.h>

#include <pf/error.h>

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Aligning leaves slack behind a block; AddressSanitizer is told that nobody may touch it. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#define FORBID(from, bytes) __asan_poison_memory_region((from), (bytes))
#define ALLOW(from, bytes) __asan_unpoison_memory_region((from), (bytes))
#else
#define FORBID(from, bytes) ((void)(from), (void)(bytes))
#define ALLOW(from, bytes) ((void)(from), (void)(bytes))
#endif

/* Stands right before each block. calloc's own block starts up to PF_MEM_ALIGN - 1 bytes earlier.
 */
struct header {
    char *raw;
    size_t bytes;
};

_Static_assert(sizeof(struct header) <= PF_MEM_ALIGN, "the header fits before an aligned block");

static atomic_int_fast64_t n_allocs;
static atomic_size_t live_bytes, peak_bytes;

static void count_alloc(size_t bytes)
{
    const size_t live = atomic_fetch_add(&live_bytes, bytes) + bytes;
    size_t peak = atomic_load(&peak_bytes);

    while (live > peak && !atomic_compare_exchange_weak(&peak_bytes, &peak, live)) {
    }
    atomic_fetch_add(&n_allocs, 1);
}

/* Blocks from here on are worth huge pages: fewer faults at first use, fewer misses of the TLB. */
#define HUGE_BLOCK ((size_t)8 << 20)
#define HUGE_PAGE ((uintptr_t)2 << 20)

/* Ask for huge pages where whole ones lie inside; a kernel without them changes nothing. */
static void prefer_huge_pages(char *raw, size_t bytes)
{
#ifdef MADV_HUGEPAGE
    const uintptr_t first = ((uintptr_t)raw + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    const uintptr_t end = ((uintptr_t)raw + bytes) / HUGE_PAGE * HUGE_PAGE;

    if (bytes >= HUGE_BLOCK) {
        const int saved = errno;
        (void)madvise((void *)first, end - first, MADV_HUGEPAGE);
        errno = saved;
    }
#else
    (void)raw;
    (void)bytes;
#endif
}

static struct header *header_of(void *block)
{
    return (struct header *)((char *)block - sizeof(struct header));
}

void *pf_alloc(size_t bytes)
{
    size_t raw_bytes;
    char *raw = NULL;

    /* calloc and not aligned_alloc with memset: fresh pages from the kernel are zero already. */
    if (pf_add_size(bytes, sizeof(struct header) + PF_MEM_ALIGN, &raw_bytes)) {
        raw = calloc(1, raw_bytes);
    }
    if (!raw) {
        pf_fail(PF_ENOMEM, "out of memory: cannot allocate %zu bytes", bytes);
        return NULL;
    }
    prefer_huge_pages(raw, raw_bytes);
    const uintptr_t first = (uintptr_t)raw + sizeof(struct header);
    char *const block = raw + sizeof(struct header) + (-first & (PF_MEM_ALIGN - 1));
    *header_of(block) = (struct header){raw, bytes};
    FORBID(block + bytes, (size_t)(raw + raw_bytes - (block + bytes)));
    count_alloc(bytes);
    return block;
}

void *pf_calloc_array(size_t n, size_t size)
{
    size_t bytes;

    if (!pf_mul_size(n, size, &bytes)) {
        pf_fail(PF_ENOMEM, "out of memory: cannot allocate %zu times %zu bytes", n, size);
        return NULL;
    }
    return pf_alloc(bytes);
}

void *pf_realloc_array(void *block, size_t n, size_t size)
{
    void *const grown = pf_calloc_array(n, size);

    if (grown && block) {
        const size_t old_bytes = header_of(block)->bytes, bytes = n * size;
        memcpy(grown, block, old_bytes < bytes ? old_bytes : bytes);
        pf_free(block);
    }
    return grown;
}

char *pf_strdup(const char *text)
{
    return text ? pf_strndup(text, strlen(text)) : NULL;
}

char *pf_strndup(const char *text, size_t max_bytes)
{
    const size_t len = strnlen(text, max_bytes);
    char *const copy = pf_alloc(len + 1);

    if (copy) {
        memcpy(copy, text, len);
    }
    return copy;
}

char *pf_asprintf(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    char *const text = pf_vasprintf(format, args);
    va_end(args);
    return text;
}

char *pf_vasprintf(const char *format, va_list args)
{
    va_list again;

    va_copy(again, args);
    const int len = vsnprintf(NULL, 0, format, again);
    va_end(again);
    PF_ASSERT(len >= 0);
    char *const text = pf_alloc((size_t)len + 1);
    if (text) {
        vsnprintf(text, (size_t)len + 1, format, args);
    }
    return text;
}

void pf_free(void *block)
{
    const int saved = errno;

    if (block) {
        struct header *const header = header_of(block);
        const size_t bytes = header->bytes;
        char *const raw_end = header->raw + bytes + sizeof *header + PF_MEM_ALIGN;
        atomic_fetch_sub(&live_bytes, bytes);
        ALLOW((char *)block + bytes, (size_t)(raw_end - ((char *)block + bytes)));
        free(header->raw);
    }
    errno = saved;
}

int64_t pf_mem_n_allocs(void)
{
    return atomic_load(&n_allocs);
}

size_t pf_mem_live_bytes(void)
{
    return atomic_load(&live_bytes);
}

size_t pf_mem_peak_bytes(void)
{
    return atomic_load(&peak_bytes);
}

void pf_mem_reset_peak(void)
{
    atomic_store(&peak_bytes, atomic_load(&live_bytes));
}

bool pf_mul_size(size_t a, size_t b, size_t *out)
{
    size_t product;

    if (__builtin_mul_overflow(a, b, &product)) {
        return false;
    }
    *out = product;
    return true;
}

bool pf_add_size(size_t a, size_t b, size_t *out)
{
    size_t sum;

    if (__builtin_add_overflow(a, b, &sum)) {
        return false;
    }
    *out = sum;
    return true;
}

bool pf_mul_i64(int64_t a, int64_t b, int64_t *out)
{
    int64_t product;

    if (__builtin_mul_overflow(a, b, &product)) {
        return false;
    }
    *out = product;
    return true;
}

bool pf_add_i64(int64_t a, int64_t b, int64_t *out)
{
    int64_t sum;

    if (__builtin_add_overflow(a, b, &sum)) {
        return false;
    }
    *out = sum;
    return true;
}

static int does_not_fit(int64_t value, const char *type)
{
    return pf_fail(PF_EINVAL, "%lld does not fit %s", (long long)value, type);
}

int pf_to_int(int64_t value, int *out)
{
    if (value < INT_MIN || value > INT_MAX) {
        return does_not_fit(value, "a C int");
    }
    *out = (int)value;
    return 0;
}

int pf_to_i32(int64_t value, int32_t *out)
{
    if (value < INT32_MIN || value > INT32_MAX) {
        return does_not_fit(value, "32 bits");
    }
    *out = (int32_t)value;
    return 0;
}

int pf_to_u32(int64_t value, uint32_t *out)
{
    if (value < 0 || value > UINT32_MAX) {
        return does_not_fit(value, "32 bits without sign");
    }
    *out = (uint32_t)value;
    return 0;
}

int pf_to_size(int64_t value, size_t *out)
{
    if (value < 0 || (uint64_t)value > SIZE_MAX) {
        return does_not_fit(value, "a size");
    }
    *out = (size_t)value;
    return 0;
}

int pf_size_to_i64(size_t value, int64_t *out)
{
    return pf_u64_to_i64(value, out);
}

int pf_u64_to_i64(uint64_t value, int64_t *out)
{
    if (value > INT64_MAX) {
        return pf_fail(PF_EINVAL, "%llu does not fit 63 bits", (unsigned long long)value);
    }
    *out = (int64_t)value;
    return 0;
}
