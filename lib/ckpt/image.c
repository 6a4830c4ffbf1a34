/* SPDX-License-Identifier: Apache-2.0 */
/* Files that will be: how their pieces are called and where they lie. Source: pf-checkpoint(5). */
#include "job_internal.h"

#include <pf/mem.h>

#include <stdlib.h>
#include <string.h>

/* Names of entries --------------------------------------------------------------------------------
 */

static bool is_whole(const struct pf_box *box, const int64_t *shape, int64_t range_lo,
                     int64_t range_hi)
{
    for (int d = 0; d < box->n_dims; d++) {
        if (box->lo[d] != 0 || box->hi[d] != shape[d]) {
            return false;
        }
    }
    return range_lo == 0 && range_hi == pf_box_count(box);
}

int ckpt_entry_name(struct pf_str *to, const char *name, enum pf_role role,
                    const struct pf_box *box, const int64_t *shape, int64_t range_lo,
                    int64_t range_hi)
{
    pf_str_append(to, name);
    if (role != PF_ROLE_WEIGHT) {
        pf_str_appendf(to, ".%s", pf_role_name(role));
    }
    if (is_whole(box, shape, range_lo, range_hi)) {
        return pf_str_error(to);
    }
    pf_str_append_char(to, '@');
    for (int d = 0; d < box->n_dims; d++) {
        pf_str_appendf(to, "%s%lld:%lld", d > 0 ? "," : "", (long long)box->lo[d],
                       (long long)box->hi[d]);
    }
    if (range_lo != 0 || range_hi != pf_box_count(box)) {
        pf_str_appendf(to, "#%lld:%lld", (long long)range_lo, (long long)range_hi);
    }
    return pf_str_error(to);
}

/* The image ---------------------------------------------------------------------------------------
 */

static int add_entry(struct pf_st_writer *st, const struct pf_ckpt_tensor *tensor,
                     const struct pf_ckpt_piece *piece)
{
    const struct pf_box *box = &piece->box;
    uint64_t shape[PF_BOX_MAX_DIMS];
    int n_dims = box->n_dims;
    struct pf_str name;
    int err;

    enum pf_dtype dtype = tensor->dtype;

    for (int d = 0; d < n_dims; d++) {
        shape[d] = (uint64_t)(box->hi[d] - box->lo[d]);
    }
    if (piece->range_lo != 0 || piece->range_hi != pf_box_count(box)) {
        shape[0] = (uint64_t)(piece->range_hi - piece->range_lo);
        n_dims = 1;
    }
    if (piece->codec != PF_CKPT_PLAIN) {
        shape[0] = piece->stored_bytes > 0
                       ? piece->stored_bytes
                       : ckpt_stored_bound(dtype, ckpt_piece_bytes(tensor, piece));
        n_dims = 1;
        dtype = PF_DTYPE_U8;
    }
    pf_str_init(&name);
    err = ckpt_entry_name(&name, tensor->name, tensor->role, box, tensor->shape, piece->range_lo,
                          piece->range_hi);
    err = err ? err : pf_st_writer_add_tensor(st, name.text, dtype, n_dims, shape, NULL);
    pf_str_release(&name);
    return err;
}

static int describe(struct pf_st_writer *st, const struct pf_ckpt *target,
                    const struct ckpt_part *parts, size_t n)
{
    PF_TRY(pf_st_writer_add_metadata(st, "format", "pt"));
    for (size_t i = 0; i < n; i++) {
        const struct pf_ckpt_tensor *tensor = &target->tensors[parts[i].tensor];
        PF_TRY(add_entry(st, tensor, &tensor->pieces[parts[i].piece]));
    }
    return 0;
}

static int compare_entries(const void *a, const void *b)
{
    const struct ckpt_entry *x = a, *y = b;

    if (x->offset != y->offset) {
        return x->offset < y->offset ? -1 : 1;
    }
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static void place(struct ckpt_image *image, const struct pf_st_writer *st, struct pf_ckpt *target,
                  const struct ckpt_part *parts)
{
    for (size_t i = 0; i < image->n; i++) {
        image->entries[i] = (struct ckpt_entry){&parts[i], pf_st_writer_offset(st, i),
                                                pf_st_writer_tensor_bytes(st, i)};
        target->tensors[parts[i].tensor].pieces[parts[i].piece].offset = image->entries[i].offset;
    }
    qsort(image->entries, image->n, sizeof *image->entries, compare_entries);
}

/* From the places in a file to those in the row of all elements, and to blocks. */
static int cut_blocks(struct ckpt_image *image, const struct pf_ckpt *target)
{
    uint64_t at = 0;
    size_t n = 0;

    for (size_t i = 0; i < image->n; i++) {
        const struct ckpt_part *part = image->entries[i].part;
        const struct pf_ckpt_tensor *tensor = &target->tensors[part->tensor];
        image->entries[i].offset = at;
        image->entries[i].bytes = ckpt_piece_bytes(tensor, &tensor->pieces[part->piece]);
        at += image->entries[i].bytes;
        n += ckpt_n_blocks(image->entries[i].bytes);
    }
    image->bytes = at;
    image->blocks = pf_calloc_array(n, sizeof *image->blocks);
    if (!image->blocks) {
        return PF_ENOMEM;
    }
    for (size_t i = 0; i < image->n; i++) {
        for (size_t b = 0; b < ckpt_n_blocks(image->entries[i].bytes); b++) {
            image->blocks[image->n_blocks++] = (struct ckpt_block){(uint32_t)i, (uint32_t)b, 0};
        }
    }
    return 0;
}

int ckpt_image_head(const struct pf_ckpt *target, const struct ckpt_part *parts, size_t n,
                    uint8_t **head_out, size_t *bytes_out)
{
    struct pf_st_writer *st = NULL;
    int err;

    PF_TRY(pf_st_writer_new(&st));
    err = describe(st, target, parts, n);
    err = err ? err : pf_st_writer_head(st, head_out, bytes_out);
    pf_st_writer_free(st);
    return err;
}

int ckpt_image_make(struct pf_ckpt *target, int file, const struct ckpt_part *parts, size_t n,
                    struct ckpt_image *image_out)
{
    struct pf_st_writer *st = NULL;
    int err = 0;

    *image_out = (struct ckpt_image){
        .parts = parts, .n = n, .entries = pf_calloc_array(n, sizeof(struct ckpt_entry))};
    if (!image_out->entries) {
        return PF_ENOMEM;
    }
    PF_TRY_GOTO(pf_st_writer_new(&st), out);
    PF_TRY_GOTO(describe(st, target, parts, n), out);
    PF_TRY_GOTO(pf_st_writer_head(st, &image_out->head, &image_out->head_bytes), out);
    PF_TRY_GOTO(pf_st_writer_file_bytes(st, &image_out->bytes), out);
    place(image_out, st, target, parts);
    target->files[file].bytes = image_out->bytes;
    image_out->coded =
        n > 0 && target->tensors[parts->tensor].pieces[parts->piece].codec != PF_CKPT_PLAIN;
    err = image_out->coded ? cut_blocks(image_out, target) : 0;
out:
    pf_st_writer_free(st);
    return err;
}

void ckpt_image_release(struct ckpt_image *image)
{
    pf_free(image->head);
    pf_free(image->entries);
    pf_free(image->blocks);
    *image = (struct ckpt_image){.n = 0};
}

size_t ckpt_image_find(const struct ckpt_image *image, uint64_t offset)
{
    size_t lo = 0, hi = image->n;

    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (image->entries[mid].offset + image->entries[mid].bytes <= offset) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}
