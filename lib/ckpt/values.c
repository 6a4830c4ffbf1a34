/* SPDX-License-Identifier: Apache-2.0 */
/* Values of a tensor: what a user names, its elements in slices, and an element as text. */
#include "ckpt_internal.h"

#include <pf/inspect.h>
#include <pf/mem.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SLICE_BYTES ((int64_t)1 << 20)

/* Names -------------------------------------------------------------------------------------------
 */

/* The tensor called NAME or NAME.ROLE; NULL (and 0) if there is none. */
static int find_tensor(const struct pf_ckpt *ckpt, const char *name,
                       const struct pf_ckpt_tensor **tensor_out)
{
    const struct pf_ckpt_tensor *found = pf_ckpt_find(ckpt, name, PF_ROLE_WEIGHT);
    const char *const dot = strrchr(name, '.');
    int n = found != NULL;
    enum pf_role role;

    for (int r = PF_ROLE_WEIGHT + 1; !(found && found->role == PF_ROLE_WEIGHT) && r < PF_ROLE_COUNT;
         r++) {
        const struct pf_ckpt_tensor *const t = pf_ckpt_find(ckpt, name, (enum pf_role)r);
        n += t != NULL;
        found = t ? t : found;
    }
    if (n > 1) {
        return pf_fail(PF_EREFUSED, "'%s' is there in %d roles: add one, as in '%s.%s'", name, n,
                       name, pf_role_name(found->role));
    }
    if (n == 0 && dot && pf_role_parse(dot + 1, &role) == 0) {
        char *const stem = pf_strndup(name, (size_t)(dot - name));
        if (!stem) {
            return PF_ENOMEM;
        }
        found = pf_ckpt_find(ckpt, stem, role);
        pf_free(stem);
    }
    pf_error_clear(); /* of a last part that is no role */
    *tensor_out = found;
    return 0;
}

static int fail_unknown(const struct pf_ckpt *ckpt, const char *text)
{
    const char **const names = pf_calloc_array((size_t)ckpt->n_tensors, sizeof *names);
    const char *nearest;
    int err;

    if (!names) {
        return PF_ENOMEM;
    }
    for (int64_t i = 0; i < ckpt->n_tensors; i++) {
        names[i] = ckpt->tensors[i].name;
    }
    nearest = pf_nearest(text, names, (size_t)ckpt->n_tensors);
    err = nearest
              ? pf_fail(PF_EDIFFER, "no tensor is called '%s'; did you mean '%s'?", text, nearest)
              : pf_fail(PF_EDIFFER, "no tensor is called '%s'", text);
    pf_free(names);
    return err;
}

/* Boxes -------------------------------------------------------------------------------------------
 */

/* One bound; an empty text stands for by_default. Below 0: from the end. */
static int parse_bound(const char *text, int64_t size, int64_t by_default, int64_t *bound_out)
{
    int64_t value = by_default;

    if (*text) {
        PF_TRY(pf_parse_i64(text, &value));
        value += value < 0 ? size : 0;
    }
    *bound_out = value;
    return 0;
}

/* "lo:hi" or "index" of dimension d. */
static int parse_item(char *item, int d, struct pf_inspect_selection *s)
{
    const int64_t size = s->tensor->shape[d];
    char *const colon = strchr(item, ':');
    int64_t lo, hi;
    int err;

    if (colon) {
        *colon = '\0';
        err = parse_bound(item, size, 0, &lo);
        err = err ? err : parse_bound(colon + 1, size, size, &hi);
        *colon = ':';
    } else {
        err = *item ? parse_bound(item, size, 0, &lo) : PF_EUSAGE;
        hi = err ? 0 : lo + (lo < INT64_MAX);
    }
    if (err) {
        return pf_fail(PF_EUSAGE, "'%s' is no index and no lo:hi of dimension %d", item, d);
    }
    if (lo < 0 || hi > size || lo > hi) {
        return pf_fail(PF_EUSAGE, "'%s' reaches outside dimension %d of '%s', which has %" PRId64,
                       item, d, s->tensor->name, size);
    }
    s->single[d] = !colon;
    s->box.lo[d] = lo;
    s->box.hi[d] = hi;
    return 0;
}

static int parse_box(const char *text, struct pf_inspect_selection *s)
{
    struct pf_str_list items = {0};
    int err = 0;

    PF_TRY(pf_str_split(text, ',', true, &items));
    if (items.n > (size_t)s->tensor->n_dims) {
        err = pf_fail(PF_EUSAGE, "'%s' has %zu dimensions, '%s' has %d", text, items.n,
                      s->tensor->name, s->tensor->n_dims);
    }
    for (size_t i = 0; !err && i < items.n; i++) {
        err = parse_item(items.items[i], (int)i, s);
    }
    pf_str_list_release(&items);
    return err;
}

/* The tensor that text begins with, up to its end or to a ':' after which *box_out points. */
static int find_prefix(const struct pf_ckpt *ckpt, char *text,
                       const struct pf_ckpt_tensor **tensor_out, const char **box_out)
{
    char *colon = text;

    PF_TRY(find_tensor(ckpt, text, tensor_out));
    while (!*tensor_out && (colon = strchr(colon, ':'))) { /* a name may hold ':' itself */
        *colon = '\0';
        const int err = find_tensor(ckpt, text, tensor_out);
        *colon++ = ':';
        PF_TRY(err);
        *box_out = colon;
    }
    return 0;
}

int pf_inspect_select(const struct pf_ckpt *ckpt, const char *text,
                      struct pf_inspect_selection *selection_out)
{
    struct pf_inspect_selection s = {.tensor = NULL};
    char *const copy = pf_strdup(text);
    const char *box = NULL;
    int err = copy ? find_prefix(ckpt, copy, &s.tensor, &box) : PF_ENOMEM;

    if (!err && !s.tensor) {
        copy[strcspn(copy, ":")] = '\0';
        err = fail_unknown(ckpt, copy);
    } else if (!err) {
        s.box = pf_ckpt_whole(s.tensor);
        err = box ? parse_box(box, &s) : 0;
    }
    pf_free(copy);
    if (!err) {
        *selection_out = s;
    }
    return err;
}

/* Elements ----------------------------------------------------------------------------------------
 */

int pf_inspect_each_value(const struct pf_ckpt *ckpt, const struct pf_inspect_selection *selection,
                          int (*take)(void *context, const void *data, int64_t n), void *context)
{
    const struct pf_ckpt_tensor *const t = selection->tensor;
    const int64_t count = pf_box_count(&selection->box);
    struct ckpt_want want = {.box = selection->box, .range_hi = count, .dtype = t->dtype};
    const size_t width = pf_dtype_bytes(t->dtype);
    int err;

    PF_TRY(ckpt_prove(ckpt, t, &want)); /* refuses elements narrower than a byte */
    const int64_t slice = SLICE_BYTES / (int64_t)width;
    want.dst = pf_alloc((size_t)SLICE_BYTES);
    err = want.dst ? 0 : PF_ENOMEM;
    for (int64_t at = 0; !err && at < count; at += slice) {
        want.range_lo = at;
        want.range_hi = count - at < slice ? count : at + slice;
        err = ckpt_copy(ckpt, t, &want);
        err = err ? err : take(context, want.dst, want.range_hi - at);
    }
    pf_free(want.dst);
    return err;
}

static void format_integer(enum pf_dtype dtype, const unsigned char *bytes,
                           char text_out[PF_INSPECT_TEXT_BYTES])
{
    const size_t width = pf_dtype_bytes(dtype);
    const uint64_t sign = (uint64_t)1 << (8 * width - 1);
    uint64_t bits = 0;

    for (size_t k = width; k-- > 0;) {
        bits = bits << 8 | bytes[k];
    }
    switch (dtype) {
    case PF_DTYPE_I8:
    case PF_DTYPE_I16:
    case PF_DTYPE_I32:
    case PF_DTYPE_I64:
        snprintf(text_out, PF_INSPECT_TEXT_BYTES, "%" PRId64, (int64_t)((bits ^ sign) - sign));
        return;
    default:
        snprintf(text_out, PF_INSPECT_TEXT_BYTES, "%" PRIu64, bits);
        return;
    }
}

static void format_complex(const float parts[2], char text_out[PF_INSPECT_TEXT_BYTES])
{
    char real[32], imaginary[32];

    pf_format_f32(parts[0], real);
    pf_format_f32(parts[1], imaginary);
    snprintf(text_out, PF_INSPECT_TEXT_BYTES, "%s%s%si", real, *imaginary == '-' ? "" : "+",
             imaginary);
}

const char *pf_inspect_format(enum pf_dtype dtype, const void *element,
                              char text_out[PF_INSPECT_TEXT_BYTES])
{
    float single[2];
    double wide;

    PF_ASSERT(pf_dtype_bytes(dtype) > 0);
    if (dtype == PF_DTYPE_F64) {
        memcpy(&wide, element, sizeof wide);
        return pf_format_f64(wide, text_out);
    }
    if (pf_dtype_is_float(dtype)) {
        (void)pf_dtype_convert(dtype, element, PF_DTYPE_F32, single, 1);
        return pf_format_f32(single[0], text_out);
    }
    if (pf_dtype_is_f8(dtype)) {
        return pf_format_f32(pf_f32_from_f8(dtype, *(const uint8_t *)element), text_out);
    }
    if (dtype == PF_DTYPE_BOOL) {
        snprintf(text_out, PF_INSPECT_TEXT_BYTES, "%s",
                 *(const uint8_t *)element ? "true" : "false");
    } else if (dtype == PF_DTYPE_C64) {
        memcpy(single, element, sizeof single);
        format_complex(single, text_out);
    } else {
        format_integer(dtype, element, text_out);
    }
    return text_out;
}
