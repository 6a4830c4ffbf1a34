/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a checkpoint. */
#include "command.h"

#include <pf/error.h>
#include <pf/str.h>

#include <inttypes.h>
#include <string.h>

static bool is_listed(const struct pf_ckpt_tensor *t, const char *glob)
{
    return !glob || pf_glob_match(glob, t->name);
}

/* The files of a tensor's pieces, each once, in the order of the pieces. */
static int files_of(const struct pf_ckpt *ckpt, const struct pf_ckpt_tensor *t,
                    struct pf_str_list *names)
{
    for (int64_t p = 0; p < t->n_pieces; p++) {
        const char *name = ckpt->files[t->pieces[p].file].name;
        bool seen = false;
        for (size_t i = 0; !seen && i < names->n; i++) {
            seen = strcmp(names->items[i], name) == 0;
        }
        if (!seen) {
            PF_TRY(pf_str_list_append(names, name));
        }
    }
    return 0;
}

static int add_files(struct table *table, const struct pf_ckpt *ckpt,
                     const struct pf_ckpt_tensor *t)
{
    struct pf_str_list names = {0};
    int err = files_of(ckpt, t, &names);

    if (!err && names.n > 0) {
        err = append_printable(&table->cell, names.items[0]);
    }
    if (!err && names.n > 1) {
        err = pf_str_appendf(&table->cell, " and %zu more", names.n - 1);
    }
    pf_str_list_release(&names);
    return err ? err : table_end_cell(table);
}

static int add_tensor(struct table *table, const struct pf_ckpt *ckpt,
                      const struct pf_ckpt_tensor *t)
{
    PF_TRY(table_add_text(table, t->name));
    PF_TRY(table_add_text(table, pf_role_name(t->role)));
    PF_TRY(table_add_text(table, pf_dtype_name(t->dtype)));
    PF_TRY(append_shape(&table->cell, t));
    PF_TRY(table_end_cell(table));
    PF_TRY(pf_str_appendf(&table->cell, "%" PRIu64, pf_inspect_tensor_bytes(t)));
    PF_TRY(table_end_cell(table));
    PF_TRY(table_add_i64(table, t->n_pieces));
    return add_files(table, ckpt, t);
}

static int list_text(const struct pf_ckpt *ckpt, const char *glob)
{
    static const char *const heads[] = {"NAME",  "ROLE",   "DTYPE", "SHAPE",
                                        "BYTES", "PIECES", "FILES"};
    struct table table;
    int err = 0;

    table_init(&table, "lllrrrl");
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        PF_TRY_GOTO(table_add_text(&table, heads[i]), out);
    }
    for (int64_t i = 0; i < ckpt->n_tensors; i++) {
        if (is_listed(&ckpt->tensors[i], glob)) {
            PF_TRY_GOTO(add_tensor(&table, ckpt, &ckpt->tensors[i]), out);
        }
    }
    table_print(&table);
out:
    table_release(&table);
    return err;
}

static void json_piece(struct pf_json_out *out, const struct pf_ckpt *ckpt,
                       const struct pf_ckpt_piece *p)
{
    const bool whole = p->range_lo == 0 && p->range_hi == pf_box_count(&p->box);

    pf_json_out_object_begin(out);
    pf_json_out_key(out, "box");
    pf_json_out_array_begin(out);
    for (int d = 0; d < p->box.n_dims; d++) {
        pf_json_out_array_begin(out);
        pf_json_out_i64(out, p->box.lo[d]);
        pf_json_out_i64(out, p->box.hi[d]);
        pf_json_out_array_end(out);
    }
    pf_json_out_array_end(out);
    if (!whole) {
        member_integers(out, "range", (const int64_t[]){p->range_lo, p->range_hi}, 2);
    }
    pf_json_out_member_string(out, "file", ckpt->files[p->file].name);
    member_u64(out, "offset_bytes", p->offset);
    if (p->codec != PF_CKPT_PLAIN) {
        pf_json_out_member_string(out, "codec", "zstd");
        member_u64(out, "stored_bytes", p->stored_bytes);
    }
    pf_json_out_object_end(out);
}

static void json_tensor(struct pf_json_out *out, const struct pf_ckpt *ckpt,
                        const struct pf_ckpt_tensor *t)
{
    pf_json_out_object_begin(out);
    pf_json_out_member_string(out, "name", t->name);
    pf_json_out_member_string(out, "role", pf_role_name(t->role));
    pf_json_out_member_string(out, "dtype", pf_dtype_name(t->dtype));
    member_integers(out, "shape", t->shape, t->n_dims);
    member_u64(out, "bytes", pf_inspect_tensor_bytes(t));
    pf_json_out_key(out, "pieces");
    pf_json_out_array_begin(out);
    for (int64_t p = 0; p < t->n_pieces; p++) {
        json_piece(out, ckpt, &t->pieces[p]);
    }
    pf_json_out_array_end(out);
    pf_json_out_object_end(out);
}

static int list_json(struct options *o, const struct pf_ckpt *ckpt, const char *glob)
{
    struct document d;

    document_begin(&d, o, 0);
    member_checkpoint(&d.out, o->paths[0], ckpt);
    pf_json_out_key(&d.out, "tensors");
    pf_json_out_array_begin(&d.out);
    for (int64_t i = 0; i < ckpt->n_tensors; i++) {
        if (is_listed(&ckpt->tensors[i], glob)) {
            json_tensor(&d.out, ckpt, &ckpt->tensors[i]);
        }
    }
    pf_json_out_array_end(&d.out);
    return document_end(&d, o);
}

int command_ls(struct options *o, char **operands)
{
    const char *glob = operands[1];
    struct pf_ckpt *ckpt;
    int64_t n = 0;
    int err;

    PF_TRY(pf_ckpt_open(operands[0], &ckpt));
    for (int64_t i = 0; i < ckpt->n_tensors; i++) {
        n += is_listed(&ckpt->tensors[i], glob);
    }
    if (glob && n == 0) {
        err = pf_fail(PF_EDIFFER, "no tensor of '%s' is called '%s'", operands[0], glob);
    } else {
        err = o->shared.json ? list_json(o, ckpt, glob) : list_text(ckpt, glob);
    }
    pf_ckpt_free(ckpt);
    return err;
}
