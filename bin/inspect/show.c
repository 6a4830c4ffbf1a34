/* SPDX-License-Identifier: Apache-2.0 */
/* What a checkpoint is: format, model, step, layout, sizes. */
#include "command.h"

#include <pf/error.h>
#include <pf/json.h>
#include <pf/mem.h>
#include <pf/str.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void print_model(const struct model *m)
{
    char text[320];
    const struct pf_model_spec *s = &m->spec;

    if (!m->config) {
        return;
    }
    snprintf(text, sizeof text, "%s (%s)", m->architecture ? m->architecture : "unknown",
             m->type ? m->type : "no model_type");
    print_field("architecture", text);
    if (!m->understood) {
        snprintf(text, sizeof text, "not understood: %s", m->why_not);
        print_field("model", text);
        return;
    }
    snprintf(text, sizeof text,
             "%" PRId64 " layers, hidden %" PRId64 ", %" PRId64 " heads (%" PRId64
             " key/value) of %" PRId64 ", ffn %" PRId64 ", vocabulary %" PRId64 ", head %s",
             s->n_layers, s->hidden, s->n_heads, s->n_kv_heads, s->head_dim, s->ffn, s->vocab_size,
             s->tied_head ? "tied" : "not tied");
    print_field("model", text);
}

/* {"dp":2,"tp":1} as "dp=2 tp=1"; values that are no scalars are left out. */
static int print_members(const char *name, const char *json)
{
    struct pf_json *doc = NULL;
    struct pf_str text;
    int err = 0;

    pf_str_init(&text);
    if (json) {
        PF_TRY_GOTO(pf_json_parse_text(json, strlen(json), name, &doc), out);
    }
    for (size_t i = 0; i < pf_json_n(doc); i++) {
        size_t len;
        const struct pf_json *child = pf_json_child(doc, i);
        const char *source = pf_json_source(child, &len);
        if (pf_json_type(child) != PF_JSON_ARRAY && pf_json_type(child) != PF_JSON_OBJECT) {
            pf_str_appendf(&text, "%s%s=%.*s", text.len ? " " : "", pf_json_key(doc, i), (int)len,
                           source);
        }
    }
    PF_TRY_GOTO(pf_str_error(&text), out);
    if (text.len > 0) {
        print_field(name, text.text);
    }
out:
    pf_json_free(doc);
    pf_str_release(&text);
    return err;
}

static int add_sum(struct table *t, const char *what, const char *name,
                   const struct pf_inspect_sum *sum)
{
    char bytes[24];

    if (sum->n_tensors == 0) {
        return 0;
    }
    PF_TRY(table_add_text(t, what));
    PF_TRY(table_add_text(t, name));
    pf_str_appendf(&t->cell, "%" PRId64 " %s", sum->n_tensors,
                   sum->n_tensors == 1 ? "tensor" : "tensors");
    PF_TRY(table_end_cell(t));
    pf_str_appendf(&t->cell, "%" PRId64 " elements", sum->n_elements);
    PF_TRY(table_end_cell(t));
    return table_add_text(t, pf_format_bytes((double)sum->bytes, bytes));
}

static int print_sums(const struct pf_inspect_summary *s)
{
    struct table t;
    int err = 0;

    table_init(&t, "llrrr");
    for (int r = 0; r < PF_ROLE_COUNT; r++) {
        PF_TRY_GOTO(add_sum(&t, "role        ", pf_role_name((enum pf_role)r), &s->by_role[r]),
                    out);
    }
    for (int d = 0; d < PF_DTYPE_COUNT; d++) {
        PF_TRY_GOTO(add_sum(&t, "dtype       ", pf_dtype_name((enum pf_dtype)d), &s->by_dtype[d]),
                    out);
    }
    table_print(&t);
out:
    table_release(&t);
    return err;
}

static int show_text(const struct options *o, const struct pf_ckpt *ckpt, const struct model *m,
                     const struct pf_inspect_summary *s)
{
    char stored[24], files[24];

    print_field("path", o->paths[0]);
    if (strcmp(ckpt->format, "pf") == 0 && strcmp(ckpt->dir, o->paths[0]) != 0) {
        print_field("checkpoint", ckpt->dir);
    }
    print_field("format", ckpt->format);
    if (ckpt->step >= 0) {
        printf("%-14s%" PRId64 "\n", "step", ckpt->step);
    }
    print_model(m);
    PF_TRY(print_members("layout", ckpt->mesh_json));
    PF_TRY(print_members("state", ckpt->state_json));
    printf("%-14s%" PRId64 "\n", "parameters", s->by_role[PF_ROLE_WEIGHT].n_elements);
    printf("%-14s%" PRId64 " in %" PRId64 " pieces\n", "tensors", s->all.n_tensors, s->n_pieces);
    printf("%-14s%" PRId64 ", %s; tensors %s\n", "files", ckpt->n_files,
           pf_format_bytes((double)s->file_bytes, files),
           pf_format_bytes((double)s->all.bytes, stored));
    return print_sums(s);
}

static void json_sum(struct pf_json_out *out, const char *key, const struct pf_inspect_sum *sum)
{
    pf_json_out_key(out, key);
    pf_json_out_object_begin(out);
    pf_json_out_member_i64(out, "tensors", sum->n_tensors);
    pf_json_out_member_i64(out, "elements", sum->n_elements);
    member_u64(out, "bytes", sum->bytes);
    pf_json_out_object_end(out);
}

static void json_sums(struct pf_json_out *out, const struct pf_inspect_summary *s)
{
    pf_json_out_key(out, "roles");
    pf_json_out_object_begin(out);
    for (int r = 0; r < PF_ROLE_COUNT; r++) {
        if (s->by_role[r].n_tensors > 0) {
            json_sum(out, pf_role_name((enum pf_role)r), &s->by_role[r]);
        }
    }
    pf_json_out_object_end(out);
    pf_json_out_key(out, "dtypes");
    pf_json_out_object_begin(out);
    for (int d = 0; d < PF_DTYPE_COUNT; d++) {
        if (s->by_dtype[d].n_tensors > 0) {
            json_sum(out, pf_dtype_name((enum pf_dtype)d), &s->by_dtype[d]);
        }
    }
    pf_json_out_object_end(out);
}

static void json_model(struct pf_json_out *out, const struct model *m)
{
    pf_json_out_key(out, "model");
    if (!m->config) {
        pf_json_out_null(out);
        return;
    }
    pf_json_out_object_begin(out);
    pf_json_out_member_string(out, "architecture", m->architecture);
    pf_json_out_member_string(out, "family", m->type);
    pf_json_out_member_bool(out, "understood", m->understood);
    if (m->understood) {
        pf_json_out_member_i64(out, "layers", m->spec.n_layers);
        pf_json_out_member_i64(out, "hidden", m->spec.hidden);
        pf_json_out_member_i64(out, "heads", m->spec.n_heads);
        pf_json_out_member_i64(out, "kv_heads", m->spec.n_kv_heads);
        pf_json_out_member_i64(out, "head_dim", m->spec.head_dim);
        pf_json_out_member_i64(out, "ffn", m->spec.ffn);
        pf_json_out_member_i64(out, "vocab_size", m->spec.vocab_size);
        pf_json_out_member_bool(out, "tied_head", m->spec.tied_head);
    } else {
        pf_json_out_member_string(out, "why_not", m->why_not);
    }
    pf_json_out_object_end(out);
}

static void json_files(struct pf_json_out *out, const struct pf_ckpt *ckpt)
{
    pf_json_out_key(out, "files");
    pf_json_out_array_begin(out);
    for (int64_t i = 0; i < ckpt->n_files; i++) {
        const char *digest = ckpt->files[i].digest;
        pf_json_out_object_begin(out);
        pf_json_out_member_string(out, "name", ckpt->files[i].name);
        member_u64(out, "bytes", ckpt->files[i].bytes);
        pf_json_out_member_string(out, "xxh3_128", *digest ? digest : NULL);
        pf_json_out_object_end(out);
    }
    pf_json_out_array_end(out);
}

static int show_json(struct options *o, const struct pf_ckpt *ckpt, const struct model *m,
                     const struct pf_inspect_summary *s)
{
    struct document d;

    document_begin(&d, o, 0);
    member_checkpoint(&d.out, o->paths[0], ckpt);
    json_model(&d.out, m);
    pf_json_out_member_i64(&d.out, "parameters", s->by_role[PF_ROLE_WEIGHT].n_elements);
    pf_json_out_member_i64(&d.out, "tensors", s->all.n_tensors);
    pf_json_out_member_i64(&d.out, "pieces", s->n_pieces);
    member_u64(&d.out, "tensor_bytes", s->all.bytes);
    member_u64(&d.out, "file_bytes", s->file_bytes);
    json_sums(&d.out, s);
    json_files(&d.out, ckpt);
    member_raw(&d.out, "mesh", ckpt->mesh_json);
    member_raw(&d.out, "state", ckpt->state_json);
    member_raw(&d.out, "options", ckpt->run_json);
    member_raw(&d.out, "config", ckpt->config_json);
    return document_end(&d, o);
}

int command_show(struct options *o, char **operands)
{
    struct pf_ckpt *ckpt;
    struct model model;
    struct pf_inspect_summary summary;

    PF_TRY(pf_ckpt_open(operands[0], &ckpt));
    int err = model_read(ckpt, &model);
    if (!err) {
        pf_inspect_summarise(ckpt, &summary);
        err = o->shared.json ? show_json(o, ckpt, &model, &summary)
                             : show_text(o, ckpt, &model, &summary);
    }
    pf_json_free(model.config);
    pf_ckpt_free(ckpt);
    return err;
}
