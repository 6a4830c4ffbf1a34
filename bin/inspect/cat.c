/* SPDX-License-Identifier: Apache-2.0 */
/* The values of a tensor, or of a box of it. */
#include "command.h"

#include <pf/error.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Nobody can be told more: the end of the program says why. */
#define STOPPED 1

/* Elements on their way out: rows of the last dimension that is not a single index, and above each
 * matrix of a larger box a line that says where it lies. */
struct printer {
    struct options *o;
    const struct pf_inspect_selection *selection;
    int row_dim, matrix_dim; /* the two last such dimensions; -1: none */
    int64_t n_done, row_length, n_rows;
    int width; /* of a column, grows */
    struct document *document;
};

/* Which dimensions make rows and matrices. */
static void lay_out(struct printer *p)
{
    const struct pf_inspect_selection *const s = p->selection;

    p->row_dim = p->matrix_dim = -1;
    p->row_length = p->n_rows = 1;
    for (int d = 0; d < s->tensor->n_dims; d++) {
        if (!s->single[d]) {
            p->matrix_dim = p->row_dim;
            p->row_dim = d;
            p->n_rows = p->row_length;
            p->row_length = s->box.hi[d] - s->box.lo[d];
        }
    }
    /* A vector, and a number, is written a value to a line. */
    if (p->matrix_dim < 0) {
        p->n_rows = p->row_length;
        p->row_length = 1;
    }
}

static bool has_planes(const struct printer *p)
{
    for (int d = 0; d < p->matrix_dim; d++) {
        if (!p->selection->single[d]) {
            return true;
        }
    }
    return false;
}

/* "# [3,0:2,:]": the matrix that element n_done begins. */
static void print_plane(const struct printer *p)
{
    const struct pf_inspect_selection *const s = p->selection;
    int64_t at[PF_BOX_MAX_DIMS], rest = p->n_done;

    for (int d = s->tensor->n_dims - 1; d >= 0; d--) {
        const int64_t size = s->box.hi[d] - s->box.lo[d];
        at[d] = s->box.lo[d] + rest % size;
        rest /= size;
    }
    printf("%s# [", p->n_done > 0 ? "\n" : "");
    for (int d = 0; d < s->tensor->n_dims; d++) {
        if (d == p->row_dim || d == p->matrix_dim) {
            printf("%s%" PRId64 ":%" PRId64, d ? "," : "", s->box.lo[d], s->box.hi[d]);
        } else {
            printf("%s%" PRId64, d ? "," : "", at[d]);
        }
    }
    puts("]");
}

/* The widest of them, so that columns stand in line; later slices may widen it. */
static void widen(struct printer *p, const unsigned char *data, int64_t n)
{
    const enum pf_dtype dtype = p->selection->tensor->dtype;
    char text[PF_INSPECT_TEXT_BYTES];

    for (int64_t i = 0; i < n; i++) {
        const int width =
            (int)strlen(pf_inspect_format(dtype, data + (size_t)i * pf_dtype_bytes(dtype), text));
        p->width = width > p->width ? width : p->width;
    }
}

static int take_text(void *context, const void *data, int64_t n)
{
    struct printer *const p = context;
    const enum pf_dtype dtype = p->selection->tensor->dtype;
    const bool planes = has_planes(p);
    char text[PF_INSPECT_TEXT_BYTES];

    if (p->row_length > 1) {
        widen(p, data, n);
    }
    for (int64_t i = 0; i < n; i++, p->n_done++) {
        const unsigned char *const element =
            (const unsigned char *)data + (size_t)i * pf_dtype_bytes(dtype);
        const bool last = (p->n_done + 1) % p->row_length == 0;
        if (planes && p->n_done % (p->row_length * p->n_rows) == 0) {
            print_plane(p);
        }
        printf("%*s%s", p->width, pf_inspect_format(dtype, element, text), last ? "\n" : "  ");
    }
    return ferror(stdout) ? STOPPED : 0;
}

static void json_element(struct pf_json_out *out, enum pf_dtype dtype, const unsigned char *element)
{
    char text[PF_INSPECT_TEXT_BYTES];

    pf_inspect_format(dtype, element, text);
    if (dtype == PF_DTYPE_C64) {
        pf_json_out_string(out, text);
    } else if (strcmp(text, "nan") == 0 || strcmp(text, "inf") == 0 || strcmp(text, "-inf") == 0) {
        pf_json_out_null(out);
    } else {
        pf_json_out_raw(out, text);
    }
}

static int take_json(void *context, const void *data, int64_t n)
{
    struct printer *const p = context;
    const enum pf_dtype dtype = p->selection->tensor->dtype;

    for (int64_t i = 0; i < n; i++) {
        json_element(&p->document->out, dtype,
                     (const unsigned char *)data + (size_t)i * pf_dtype_bytes(dtype));
    }
    PF_TRY(document_flush(p->document, p->o));
    return ferror(stdout) ? STOPPED : 0;
}

static void json_head(struct pf_json_out *out, const struct options *o, const struct pf_ckpt *ckpt,
                      const struct pf_inspect_selection *s)
{
    int64_t shape[PF_BOX_MAX_DIMS];
    int n = 0;

    for (int d = 0; d < s->tensor->n_dims; d++) {
        if (!s->single[d]) {
            shape[n++] = s->box.hi[d] - s->box.lo[d];
        }
    }
    member_checkpoint(out, o->paths[0], ckpt);
    pf_json_out_member_string(out, "name", s->tensor->name);
    pf_json_out_member_string(out, "role", pf_role_name(s->tensor->role));
    pf_json_out_member_string(out, "dtype", pf_dtype_name(s->tensor->dtype));
    member_integers(out, "tensor_shape", s->tensor->shape, s->tensor->n_dims);
    member_integers(out, "lo", s->box.lo, s->tensor->n_dims);
    member_integers(out, "hi", s->box.hi, s->tensor->n_dims);
    member_integers(out, "shape", shape, n);
}

static int cat_json(struct options *o, const struct pf_ckpt *ckpt,
                    const struct pf_inspect_selection *selection)
{
    struct document d;
    struct printer p = {.o = o, .selection = selection, .document = &d};

    document_begin(&d, o, 0);
    json_head(&d.out, o, ckpt, selection);
    pf_json_out_key(&d.out, "values");
    pf_json_out_array_begin(&d.out);
    const int err = pf_inspect_each_value(ckpt, selection, take_json, &p);
    if (err) {
        pf_str_release(&d.text);
        return err == STOPPED ? 0 : err;
    }
    pf_json_out_array_end(&d.out);
    return document_end(&d, o);
}

static int cat_opened(struct options *o, const struct pf_ckpt *ckpt, const char *text)
{
    struct pf_inspect_selection selection;

    PF_TRY(pf_inspect_select(ckpt, text, &selection));
    if (o->shared.json) {
        return cat_json(o, ckpt, &selection);
    }
    struct printer p = {.o = o, .selection = &selection};
    lay_out(&p);
    const int err = pf_inspect_each_value(ckpt, &selection, take_text, &p);
    return err == STOPPED ? 0 : err;
}

int command_cat(struct options *o, char **operands)
{
    struct pf_ckpt *ckpt;

    PF_TRY(pf_ckpt_open(operands[0], &ckpt));
    const int err = cat_opened(o, ckpt, operands[1]);
    pf_ckpt_free(ckpt);
    return err;
}
