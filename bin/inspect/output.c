/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands print: tables for people, JSON documents for programs, progress on stderr. */
#include "command.h"

#include <pf/error.h>
#include <pf/version.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SCHEMA 1

int append_printable(struct pf_str *to, const char *text)
{
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        const bool c1 = c[0] == 0xc2 && c[1] >= 0x80 && c[1] <= 0x9f;
        if (*c < 0x20 || *c == 0x7f || c1) {
            PF_TRY(pf_str_appendf(to, "\\x%02x", *c));
        } else {
            PF_TRY(pf_str_append_char(to, (char)*c));
        }
    }
    return 0;
}

int append_shape(struct pf_str *to, const struct pf_ckpt_tensor *t)
{
    pf_str_append_char(to, '[');
    for (int d = 0; d < t->n_dims; d++) {
        pf_str_appendf(to, "%s%" PRId64, d ? "," : "", t->shape[d]);
    }
    return pf_str_append_char(to, ']');
}

void table_init(struct table *t, const char *columns)
{
    *t = (struct table){.columns = columns};
    pf_str_init(&t->cell);
}

int table_end_cell(struct table *t)
{
    PF_TRY(pf_str_error(&t->cell));
    PF_TRY(pf_str_list_append(&t->cells, t->cell.text));
    pf_str_clear(&t->cell);
    return 0;
}

int table_add_text(struct table *t, const char *text)
{
    PF_TRY(append_printable(&t->cell, text));
    return table_end_cell(t);
}

int table_add_i64(struct table *t, int64_t value)
{
    PF_TRY(pf_str_appendf(&t->cell, "%" PRId64, value));
    return table_end_cell(t);
}

/* Columns that a text takes: bytes of UTF-8 that continue a character take none. */
static size_t width_of(const char *text)
{
    size_t n = 0;

    for (; *text; text++) {
        n += ((unsigned char)*text & 0xc0) != 0x80;
    }
    return n;
}

void table_print(const struct table *t)
{
    const size_t n_columns = strlen(t->columns);
    size_t width[16] = {0};

    for (size_t i = 0; i < t->cells.n; i++) {
        const size_t len = width_of(t->cells.items[i]);
        width[i % n_columns] = len > width[i % n_columns] ? len : width[i % n_columns];
    }
    for (size_t i = 0; i < t->cells.n; i++) {
        const size_t c = i % n_columns;
        const bool last = c + 1 == n_columns;
        const int pad = (int)(width[c] - width_of(t->cells.items[i]));
        printf("%s%*s%s%*s%s", c ? "  " : "", t->columns[c] == 'r' ? pad : 0, "", t->cells.items[i],
               t->columns[c] == 'l' && !last ? pad : 0, "", last ? "\n" : "");
    }
}

void table_release(struct table *t)
{
    pf_str_list_release(&t->cells);
    pf_str_release(&t->cell);
}

int append_index(struct pf_str *to, const int64_t *at, int n_dims)
{
    pf_str_append_char(to, '[');
    for (int d = 0; d < n_dims; d++) {
        pf_str_appendf(to, "%s%" PRId64, d ? "," : "", at[d]);
    }
    return pf_str_append_char(to, ']');
}

void print_field(const char *name, const char *text)
{
    struct pf_str line;

    pf_str_init(&line);
    append_printable(&line, text);
    printf("%-14s%s\n", name, line.text);
    pf_str_release(&line);
}

void document_begin(struct document *d, const struct options *o, int err)
{
    struct pf_json_out *out = &d->out;

    pf_str_init(&d->text);
    pf_json_out_init(out, &d->text, 2);
    pf_json_out_object_begin(out);
    pf_json_out_member_i64(out, "schema", SCHEMA);
    pf_json_out_member_string(out, "program", "pf-inspect");
    pf_json_out_member_string(out, "version", pf_version_string());
    pf_json_out_member_string(out, "command", o->command);
    pf_json_out_member_bool(out, "ok", err == 0);
    if (err) {
        const char *const message = pf_error_message();
        pf_json_out_key(out, "error");
        pf_json_out_object_begin(out);
        pf_json_out_member_string(out, "kind", pf_error_kind(err));
        pf_json_out_member_string(out, "message", *message ? message : NULL);
        pf_json_out_member_i64(out, "exit", pf_error_exit_status(err));
        pf_json_out_object_end(out);
    }
}

int document_end(struct document *d, struct options *o)
{
    pf_json_out_object_end(&d->out);
    const int err = pf_json_out_finish(&d->out);

    if (!err) {
        puts(d->text.text);
        o->answered = true;
    }
    pf_str_release(&d->text);
    return err;
}

int document_flush(struct document *d, struct options *o)
{
    PF_TRY(pf_str_error(&d->text));
    fputs(d->text.text, stdout);
    pf_str_clear(&d->text);
    o->answered = true;
    return 0;
}

void member_u64(struct pf_json_out *out, const char *key, uint64_t value)
{
    pf_json_out_key(out, key);
    pf_json_out_u64(out, value);
}

void member_raw(struct pf_json_out *out, const char *key, const char *json)
{
    pf_json_out_key(out, key);
    if (json) {
        pf_json_out_raw(out, json);
    } else {
        pf_json_out_null(out);
    }
}

void member_count(struct pf_json_out *out, const char *key, int64_t value)
{
    if (value >= 0) {
        pf_json_out_member_i64(out, key, value);
    } else {
        member_raw(out, key, NULL);
    }
}

void member_integers(struct pf_json_out *out, const char *key, const int64_t *values, int n)
{
    pf_json_out_key(out, key);
    pf_json_out_array_begin(out);
    for (int i = 0; i < n; i++) {
        pf_json_out_i64(out, values[i]);
    }
    pf_json_out_array_end(out);
}

void member_checkpoint(struct pf_json_out *out, const char *path, const struct pf_ckpt *ckpt)
{
    pf_json_out_member_string(out, "path", path);
    pf_json_out_member_string(out, "directory", ckpt->dir);
    pf_json_out_member_string(out, "format", ckpt->format);
    member_count(out, "step", ckpt->step);
}

static void on_progress(void *context, uint64_t done, uint64_t total)
{
    struct pf_progress *p = context;

    p->total = total;
    pf_progress_update(p, done);
}

struct pf_inspect_progress progress_start(struct pf_progress *p, const struct options *o,
                                          const char *title)
{
    pf_progress_init(p, title, PF_PROGRESS_BYTES, 0,
                     !o->shared.no_progress && o->shared.quiet == 0);
    return (struct pf_inspect_progress){on_progress, p};
}
