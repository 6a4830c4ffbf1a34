/* SPDX-License-Identifier: Apache-2.0 */
/* The meaning of a safetensors header: sizes, cover, unique names; and the table that finds them.
 */
#include "st_internal.h"

#include <pf/error.h>
#include <pf/mem.h>

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

int pf_st_compare_text(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    const int order = memcmp(a, b, a_bytes < b_bytes ? a_bytes : b_bytes);

    return order ? order : (a_bytes > b_bytes) - (a_bytes < b_bytes);
}

const char *pf_st_tensor_size(enum pf_dtype dtype, int n_dims, const uint64_t *shape,
                              uint64_t *bytes_out)
{
    uint64_t bits = 1;

    for (int d = 0; d < n_dims; d++) {
        if (__builtin_mul_overflow(bits, shape[d], &bits)) {
            return "has more than 2^64 elements";
        }
    }
    if (__builtin_mul_overflow(bits, (uint64_t)pf_dtype_bits(dtype), &bits)) {
        return "has more than 2^64 bits";
    }
    if (bits % 8 != 0) {
        return "does not fill whole bytes";
    }
    *bytes_out = bits / 8;
    return NULL;
}

static int check_size(const struct pf_st *st, const struct pf_st_tensor *t)
{
    uint64_t bytes;
    const char *fault = pf_st_tensor_size(t->dtype, t->n_dims, t->shape, &bytes);

    if (fault) {
        return pf_fail(PF_EFORMAT, "'%s': tensor '%.200s' %s", st->path, t->name, fault);
    }
    if (t->end < t->begin || t->end - t->begin != bytes) {
        return pf_fail(PF_EFORMAT,
                       "'%s': tensor '%.200s' needs %llu bytes, its data_offsets are [%llu, %llu]",
                       st->path, t->name, (unsigned long long)bytes, (unsigned long long)t->begin,
                       (unsigned long long)t->end);
    }
    return 0;
}

/* By range; equal ranges (empty tensors, or an overlap) by name, as qsort is not stable. */
static int compare_ranges(const void *a, const void *b)
{
    const struct pf_st_tensor *x = a, *y = b;

    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    if (x->end != y->end) {
        return x->end < y->end ? -1 : 1;
    }
    return pf_st_compare_text(x->name, x->name_bytes, y->name, y->name_bytes);
}

/* Most writers store tensors in the order of their data. */
static void sort_tensors(struct pf_st *st)
{
    for (size_t i = 1; i < st->n_tensors; i++) {
        if (compare_ranges(&st->tensors[i - 1], &st->tensors[i]) > 0) {
            qsort(st->tensors, st->n_tensors, sizeof *st->tensors, compare_ranges);
            return;
        }
    }
}

static int check_cover(const struct pf_st *st)
{
    const uint64_t data_bytes = st->file_bytes - st->data_offset;
    uint64_t at = 0;

    for (size_t i = 0; i < st->n_tensors; i++) {
        const struct pf_st_tensor *t = &st->tensors[i];
        if (t->begin != at) {
            return pf_fail(PF_EFORMAT,
                           "'%s': %s before tensor '%.200s': it begins at %llu, not %llu", st->path,
                           t->begin < at ? "an overlap" : "a hole", t->name,
                           (unsigned long long)t->begin, (unsigned long long)at);
        }
        at = t->end;
    }
    if (at != data_bytes) {
        return pf_fail(
            PF_EFORMAT,
            "'%s': the file should have %llu bytes of data after its header, it has %llu", st->path,
            (unsigned long long)at, (unsigned long long)data_bytes);
    }
    return 0;
}

/* The two halves of a 128-bit product, folded. */
static uint64_t fold(uint64_t a, uint64_t b)
{
    const unsigned __int128 product = (unsigned __int128)a * b;

    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Keyed, so that a file cannot be made whose names all fall into one slot. */
static uint64_t hash_name(const struct pf_st *st, const char *name, size_t n)
{
    uint64_t h = st->hash_key[0] ^ n;

    for (size_t i = 0; i < n; i += sizeof h) {
        uint64_t word = 0;
        memcpy(&word, name + i, n - i < sizeof word ? n - i : sizeof word);
        h = fold(h ^ word, st->hash_key[1]) + word;
    }
    return fold(h, st->hash_key[1]);
}

/* The slot of a name, or the free slot where it would be. */
static uint64_t find_slot(const struct pf_st *st, const char *name, size_t n)
{
    uint64_t slot = hash_name(st, name, n) & st->slot_mask;

    for (; st->slots[slot] != 0; slot = (slot + 1) & st->slot_mask) {
        const struct pf_st_tensor *t = &st->tensors[st->slots[slot] - 1];
        if (t->name_bytes == n && memcmp(t->name, name, n) == 0) {
            break;
        }
    }
    return slot;
}

static void choose_hash_key(struct pf_st *st)
{
    /* Where the kernel has no random bytes yet, an address must do. */
    if (getrandom(st->hash_key, sizeof st->hash_key, GRND_NONBLOCK) != sizeof st->hash_key) {
        st->hash_key[0] = (uint64_t)(uintptr_t)st;
        st->hash_key[1] = (uint64_t)(uintptr_t)&st * UINT64_C(0x9e3779b97f4a7c15);
    }
    st->hash_key[1] |= 1;
}

/* At most half full. */
static int build_table(struct pf_st *st)
{
    size_t n_slots = 4;

    while (n_slots < 2 * st->n_tensors) {
        n_slots *= 2;
    }
    st->slots = pf_calloc_array(n_slots, sizeof *st->slots);
    if (!st->slots) {
        return PF_ENOMEM;
    }
    st->slot_mask = n_slots - 1;
    choose_hash_key(st);
    for (size_t i = 0; i < st->n_tensors; i++) {
        const struct pf_st_tensor *t = &st->tensors[i];
        const uint64_t slot = find_slot(st, t->name, t->name_bytes);
        if (st->slots[slot] != 0) {
            return pf_fail(PF_EFORMAT, "'%s': two tensors are called '%.200s'", st->path, t->name);
        }
        st->slots[slot] = (uint32_t)(i + 1);
    }
    return 0;
}

/* All texts lie in one buffer in the order of the header, so of equal keys the later address is the
 * later entry. */
static int compare_metadata(const void *a, const void *b)
{
    const struct pf_st_metadata *x = a, *y = b;
    const int order = pf_st_compare_text(x->key, x->key_bytes, y->key, y->key_bytes);

    return order ? order : (x->key > y->key) - (x->key < y->key);
}

static bool same_key(const struct pf_st_metadata *a, const struct pf_st_metadata *b)
{
    return pf_st_compare_text(a->key, a->key_bytes, b->key, b->key_bytes) == 0;
}

static void sort_metadata(struct pf_st *st)
{
    struct pf_st_metadata *m = st->metadata;
    size_t n_kept = 0;

    if (st->n_metadata > 1) {
        qsort(m, st->n_metadata, sizeof *m, compare_metadata);
    }
    for (size_t i = 0; i < st->n_metadata; i++) {
        if (i + 1 == st->n_metadata || !same_key(&m[i], &m[i + 1])) {
            m[n_kept++] = m[i];
        }
    }
    st->n_metadata = n_kept;
}

int pf_st_check(struct pf_st *st)
{
    for (size_t i = 0; i < st->n_tensors; i++) {
        PF_TRY(check_size(st, &st->tensors[i]));
    }
    sort_tensors(st);
    PF_TRY(build_table(st)); /* before the cover, so that a repeated name is called that */
    PF_TRY(check_cover(st));
    sort_metadata(st);
    return 0;
}

size_t pf_st_n_tensors(const struct pf_st *st)
{
    return st->n_tensors;
}

const struct pf_st_tensor *pf_st_tensor(const struct pf_st *st, size_t i)
{
    PF_ASSERT(i < st->n_tensors);
    return &st->tensors[i];
}

const struct pf_st_tensor *pf_st_find_bytes(const struct pf_st *st, const char *name,
                                            size_t name_bytes)
{
    const uint32_t found = st->slots[find_slot(st, name, name_bytes)];

    return found ? &st->tensors[found - 1] : NULL;
}

const struct pf_st_tensor *pf_st_find(const struct pf_st *st, const char *name)
{
    return pf_st_find_bytes(st, name, strlen(name));
}

size_t pf_st_n_metadata(const struct pf_st *st)
{
    return st->n_metadata;
}

const struct pf_st_metadata *pf_st_metadata(const struct pf_st *st, size_t i)
{
    PF_ASSERT(i < st->n_metadata);
    return &st->metadata[i];
}

const char *pf_st_find_metadata(const struct pf_st *st, const char *key)
{
    const size_t key_bytes = strlen(key);
    size_t low = 0, high = st->n_metadata;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const struct pf_st_metadata *m = &st->metadata[middle];
        const int order = pf_st_compare_text(m->key, m->key_bytes, key, key_bytes);
        if (order == 0) {
            return m->value;
        }
        low = order < 0 ? middle + 1 : low;
        high = order < 0 ? high : middle;
    }
    return NULL;
}
