/* SPDX-License-Identifier: Apache-2.0 */
/* pf-inspect: say what a checkpoint holds, whether it is whole, how two differ. See pf-inspect(1). */
#include <pf/ckpt.h>
#include <pf/comm.h>
#include <pf/error.h>
#include <pf/family.h>
#include <pf/inspect.h>
#include <pf/json.h>
#include <pf/mem.h>
#include <pf/ops.h>
#include <pf/opts.h>
#include <pf/progress.h>
#include <pf/str.h>
#include <pf/tool.h>
#include <pf/version.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define SCHEMA 1
#define SEE_HELP "; see 'pf-inspect --help'"

struct options {
    struct pf_opts_shared shared;
    const char *command;
    const char *paths[2]; /* as they were given */
    double rel, abs;      /* NAN: not given */
    int64_t ulp;          /* INT64_MIN: not given */
    const char *nan;
    bool weights_only;
    bool answered; /* the JSON document is out */
};

/* Text --------------------------------------------------------------------------------------------
 */

/* Names come from files: nothing in them may move the cursor or end a line. */
static int append_printable(struct pf_str *to, const char *text)
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

static int append_shape(struct pf_str *to, const struct pf_ckpt_tensor *t)
{
    pf_str_append_char(to, '[');
    for (int d = 0; d < t->n_dims; d++) {
        pf_str_appendf(to, "%s%" PRId64, d ? "," : "", t->shape[d]);
    }
    return pf_str_append_char(to, ']');
}

/* Cells of a table, row by row, printed in columns; the last one is not padded. */
struct table {
    const char *columns; /* 'l' or 'r' for each */
    struct pf_str_list cells;
    struct pf_str cell; /* the one being made */
};

static void table_init(struct table *t, const char *columns)
{
    *t = (struct table){.columns = columns};
    pf_str_init(&t->cell);
}

static int end_cell(struct table *t)
{
    PF_TRY(pf_str_error(&t->cell));
    PF_TRY(pf_str_list_append(&t->cells, t->cell.text));
    pf_str_clear(&t->cell);
    return 0;
}

static int add_text(struct table *t, const char *text)
{
    PF_TRY(append_printable(&t->cell, text));
    return end_cell(t);
}

static int add_i64(struct table *t, int64_t value)
{
    PF_TRY(pf_str_appendf(&t->cell, "%" PRId64, value));
    return end_cell(t);
}

static void print_table(const struct table *t)
{
    const size_t n_columns = strlen(t->columns);
    size_t width[16] = {0};

    for (size_t i = 0; i < t->cells.n; i++) {
        const size_t len = strlen(t->cells.items[i]);
        width[i % n_columns] = len > width[i % n_columns] ? len : width[i % n_columns];
    }
    for (size_t i = 0; i < t->cells.n; i++) {
        const size_t c = i % n_columns;
        const bool last = c + 1 == n_columns;
        const int pad = (int)(width[c] - strlen(t->cells.items[i]));
        printf("%s%*s%s%*s%s", c ? "  " : "", t->columns[c] == 'r' ? pad : 0, "", t->cells.items[i],
               t->columns[c] == 'l' && !last ? pad : 0, "", last ? "\n" : "");
    }
}

static void table_release(struct table *t)
{
    pf_str_list_release(&t->cells);
    pf_str_release(&t->cell);
}

/* JSON --------------------------------------------------------------------------------------------
 */

struct document {
    struct pf_str text;
    struct pf_json_out out;
};

/* Open the document; err says how the program will end. */
static void document_begin(struct document *d, const struct options *o, int err)
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

static int document_end(struct document *d, struct options *o)
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

static void member_u64(struct pf_json_out *out, const char *key, uint64_t value)
{
    pf_json_out_key(out, key);
    pf_json_out_u64(out, value);
}

static void member_raw(struct pf_json_out *out, const char *key, const char *json)
{
    pf_json_out_key(out, key);
    if (json) {
        pf_json_out_raw(out, json);
    } else {
        pf_json_out_null(out);
    }
}

/* -1 stands for what is not there. */
static void member_count(struct pf_json_out *out, const char *key, int64_t value)
{
    if (value >= 0) {
        pf_json_out_member_i64(out, key, value);
    } else {
        member_raw(out, key, NULL);
    }
}

static void member_integers(struct pf_json_out *out, const char *key, const int64_t *values, int n)
{
    pf_json_out_key(out, key);
    pf_json_out_array_begin(out);
    for (int i = 0; i < n; i++) {
        pf_json_out_i64(out, values[i]);
    }
    pf_json_out_array_end(out);
}

/* Which checkpoint it is; the directory may be another than the path that was given. */
static void member_checkpoint(struct pf_json_out *out, const char *path, const struct pf_ckpt *ckpt)
{
    pf_json_out_member_string(out, "path", path);
    pf_json_out_member_string(out, "directory", ckpt->dir);
    pf_json_out_member_string(out, "format", ckpt->format);
    member_count(out, "step", ckpt->step);
}

/* Long work ---------------------------------------------------------------------------------------
 */

static void on_progress(void *context, uint64_t done, uint64_t total)
{
    struct pf_progress *p = context;

    p->total = total;
    pf_progress_update(p, done);
}

static struct pf_inspect_progress start_progress(struct pf_progress *p, const struct options *o,
                                                 const char *title)
{
    pf_progress_init(p, title, PF_PROGRESS_BYTES, 0,
                     !o->shared.no_progress && o->shared.quiet == 0);
    return (struct pf_inspect_progress){on_progress, p};
}

/* show --------------------------------------------------------------------------------------------
 */

/* The configuration, as far as pf understands it. */
struct model {
    struct pf_json *config; /* NULL: none */
    const char *architecture, *type;
    bool understood, causal_lm; /* the class is the one whose tensors pf knows */
    struct pf_model_spec spec;
    char why_not[256];
};

static int read_model(const struct pf_ckpt *ckpt, struct model *m)
{
    const struct pf_json_options options = {.name = "config.json", .error_code = PF_EFORMAT};
    const char *json = ckpt->config_json;

    *m = (struct model){.architecture = NULL};
    if (!json || strcmp(json, "{}") == 0) {
        return 0;
    }
    PF_TRY(pf_json_parse_text_with(json, strlen(json), &options, &m->config));
    const struct pf_json *first = pf_json_find(m->config, "architectures[0]");
    if (pf_json_string(m->config, "model_type", NULL, &m->type) != 0 ||
        (first && pf_json_as_string(first, &m->architecture) != 0)) {
        pf_error_clear();
    }
    m->understood = pf_family_read_config(m->config, &m->spec) == 0;
    if (m->understood) {
        const char *class = pf_family_architecture(m->spec.family);
        m->architecture = m->architecture ? m->architecture : class;
        m->causal_lm = strcmp(m->architecture, class) == 0;
    } else {
        snprintf(m->why_not, sizeof m->why_not, "%s", pf_error_message());
        pf_error_clear();
    }
    return 0;
}

static void print_field(const char *name, const char *text)
{
    struct pf_str line;

    pf_str_init(&line);
    append_printable(&line, text);
    printf("%-14s%s\n", name, line.text);
    pf_str_release(&line);
}

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
    PF_TRY(add_text(t, what));
    PF_TRY(add_text(t, name));
    pf_str_appendf(&t->cell, "%" PRId64 " %s", sum->n_tensors,
                   sum->n_tensors == 1 ? "tensor" : "tensors");
    PF_TRY(end_cell(t));
    pf_str_appendf(&t->cell, "%" PRId64 " elements", sum->n_elements);
    PF_TRY(end_cell(t));
    return add_text(t, pf_format_bytes((double)sum->bytes, bytes));
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
    print_table(&t);
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

static int show(struct options *o, char **operands)
{
    struct pf_ckpt *ckpt;
    struct model model;
    struct pf_inspect_summary summary;

    PF_TRY(pf_ckpt_open(operands[0], &ckpt));
    int err = read_model(ckpt, &model);
    if (!err) {
        pf_inspect_summarise(ckpt, &summary);
        err = o->shared.json ? show_json(o, ckpt, &model, &summary)
                             : show_text(o, ckpt, &model, &summary);
    }
    pf_json_free(model.config);
    pf_ckpt_free(ckpt);
    return err;
}

/* ls ----------------------------------------------------------------------------------------------
 */

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
    return err ? err : end_cell(table);
}

static int add_tensor(struct table *table, const struct pf_ckpt *ckpt,
                      const struct pf_ckpt_tensor *t)
{
    PF_TRY(add_text(table, t->name));
    PF_TRY(add_text(table, pf_role_name(t->role)));
    PF_TRY(add_text(table, pf_dtype_name(t->dtype)));
    PF_TRY(append_shape(&table->cell, t));
    PF_TRY(end_cell(table));
    PF_TRY(pf_str_appendf(&table->cell, "%" PRIu64, pf_inspect_tensor_bytes(t)));
    PF_TRY(end_cell(table));
    PF_TRY(add_i64(table, t->n_pieces));
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
        PF_TRY_GOTO(add_text(&table, heads[i]), out);
    }
    for (int64_t i = 0; i < ckpt->n_tensors; i++) {
        if (is_listed(&ckpt->tensors[i], glob)) {
            PF_TRY_GOTO(add_tensor(&table, ckpt, &ckpt->tensors[i]), out);
        }
    }
    print_table(&table);
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

static int list(struct options *o, char **operands)
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

/* verify ------------------------------------------------------------------------------------------
 */

static int verify_text(const char *path, const struct pf_ckpt_fault *faults, int64_t n)
{
    struct table table;
    int err = 0;

    if (n == 0) {
        printf("no fault in %s\n", path);
        return 0;
    }
    table_init(&table, "ll");
    for (int64_t i = 0; i < n; i++) {
        PF_TRY_GOTO(add_text(&table, faults[i].kind), out);
        PF_TRY_GOTO(add_text(&table, faults[i].message), out);
    }
    print_table(&table);
out:
    table_release(&table);
    return err;
}

static int verify_json(struct options *o, const char *path, const struct pf_ckpt_fault *faults,
                       int64_t n, int verdict)
{
    struct document d;

    document_begin(&d, o, verdict);
    pf_json_out_member_string(&d.out, "path", path);
    pf_json_out_key(&d.out, "faults");
    pf_json_out_array_begin(&d.out);
    for (int64_t i = 0; i < n; i++) {
        pf_json_out_object_begin(&d.out);
        pf_json_out_member_string(&d.out, "kind", faults[i].kind);
        pf_json_out_member_string(&d.out, "error", pf_error_kind(faults[i].code));
        pf_json_out_member_string(&d.out, "message", faults[i].message);
        pf_json_out_object_end(&d.out);
    }
    pf_json_out_array_end(&d.out);
    return document_end(&d, o);
}

/* PF_EINCOMPLETE where all that is wrong is that something is missing. */
static int judge(const char *path, const struct pf_ckpt_fault *faults, int64_t n)
{
    bool incomplete = true;

    if (n == 0) {
        return 0;
    }
    for (int64_t i = 0; i < n; i++) {
        incomplete &= faults[i].code == PF_EINCOMPLETE;
    }
    return pf_fail(incomplete ? PF_EINCOMPLETE : PF_EFORMAT, "%" PRId64 " %s in '%s'", n,
                   n == 1 ? "fault" : "faults", path);
}

/* What can be said only of a checkpoint that is otherwise whole. */
static int verify_model(const char *path, struct pf_ckpt_fault **faults, int64_t *n)
{
    struct pf_ckpt *ckpt;
    struct model model;

    PF_TRY(pf_ckpt_open(path, &ckpt));
    int err = read_model(ckpt, &model);
    if (!err && model.understood && model.causal_lm) {
        err = pf_inspect_check_model(ckpt, &model.spec, faults, n);
    }
    pf_json_free(model.config);
    pf_ckpt_free(ckpt);
    return err;
}

static int verify(struct options *o, char **operands)
{
    struct pf_ckpt_fault *faults = NULL;
    int64_t n = 0;
    struct pf_progress bar;
    const struct pf_inspect_progress progress = start_progress(&bar, o, "verifying");

    int err = pf_inspect_verify(operands[0], &progress, &faults, &n);
    pf_progress_finish(&bar);
    if (!err && n == 0) {
        err = verify_model(operands[0], &faults, &n);
    }
    PF_TRY(err);
    const int verdict = judge(operands[0], faults, n);
    err = o->shared.json ? verify_json(o, operands[0], faults, n, verdict)
                         : verify_text(operands[0], faults, n);
    pf_ckpt_faults_free(faults, n);
    return err ? err : verdict;
}

/* hash --------------------------------------------------------------------------------------------
 */

static int hash_text(const struct pf_inspect_digests *digests)
{
    struct table table;
    int err = 0;

    table_init(&table, "lll");
    for (int64_t i = 0; i < digests->n; i++) {
        PF_TRY_GOTO(add_text(&table, digests->lines[i].hex), out);
        PF_TRY_GOTO(add_text(&table, pf_role_name(digests->lines[i].tensor->role)), out);
        PF_TRY_GOTO(add_text(&table, digests->lines[i].tensor->name), out);
    }
    print_table(&table);
    printf("%s  all\n", digests->overall);
out:
    table_release(&table);
    return err;
}

static int hash_json(struct options *o, const struct pf_ckpt *ckpt,
                     const struct pf_inspect_digests *digests)
{
    struct document d;

    document_begin(&d, o, 0);
    member_checkpoint(&d.out, o->paths[0], ckpt);
    pf_json_out_member_bool(&d.out, "weights_only", o->weights_only);
    pf_json_out_member_string(&d.out, "algorithm", "XXH3-128");
    pf_json_out_key(&d.out, "tensors");
    pf_json_out_array_begin(&d.out);
    for (int64_t i = 0; i < digests->n; i++) {
        pf_json_out_object_begin(&d.out);
        pf_json_out_member_string(&d.out, "name", digests->lines[i].tensor->name);
        pf_json_out_member_string(&d.out, "role", pf_role_name(digests->lines[i].tensor->role));
        pf_json_out_member_string(&d.out, "digest", digests->lines[i].hex);
        pf_json_out_object_end(&d.out);
    }
    pf_json_out_array_end(&d.out);
    pf_json_out_member_string(&d.out, "digest", digests->overall);
    return document_end(&d, o);
}

static int hash(struct options *o, char **operands)
{
    struct pf_ckpt *ckpt;
    struct pf_inspect_digests digests = {0};
    struct pf_progress bar;
    const struct pf_inspect_progress progress = start_progress(&bar, o, "hashing");

    PF_TRY(pf_ckpt_open(operands[0], &ckpt));
    int err = pf_inspect_hash(ckpt, o->weights_only, &progress, &digests);
    pf_progress_finish(&bar);
    if (!err) {
        err = o->shared.json ? hash_json(o, ckpt, &digests) : hash_text(&digests);
    }
    pf_inspect_digests_release(&digests);
    pf_ckpt_free(ckpt);
    return err;
}

/* diff --------------------------------------------------------------------------------------------
 */

static int append_index(struct pf_str *to, const int64_t *at, int n_dims)
{
    pf_str_append_char(to, '[');
    for (int d = 0; d < n_dims; d++) {
        pf_str_appendf(to, "%s%" PRId64, d ? "," : "", at[d]);
    }
    return pf_str_append_char(to, ']');
}

/* What is unequal about a pair, apart from its values. */
static int append_change(struct pf_str *to, const struct pf_ckpt_tensor *a,
                         const struct pf_ckpt_tensor *b)
{
    if (a->role != b->role) {
        pf_str_appendf(to, "role %s -> %s; ", pf_role_name(a->role), pf_role_name(b->role));
    }
    if (a->dtype != b->dtype) {
        pf_str_appendf(to, "dtype %s -> %s; ", pf_dtype_name(a->dtype), pf_dtype_name(b->dtype));
    }
    if (a->n_dims != b->n_dims || memcmp(a->shape, b->shape, sizeof a->shape) != 0) {
        pf_str_append(to, "shape ");
        append_shape(to, a);
        pf_str_append(to, " -> ");
        append_shape(to, b);
        pf_str_append(to, "; ");
    }
    return pf_str_error(to);
}

static int append_values(struct pf_str *to, const struct pf_inspect_values *v)
{
    if (!v->compared) {
        return 0;
    }
    if (v->n_differ == 0) {
        return pf_str_append(to, "values equal; ");
    }
    pf_str_appendf(to, "%" PRId64 " of %" PRId64 " differ, first ", v->n_differ, v->n_elements);
    append_index(to, v->first, v->n_dims);
    pf_str_appendf(to, " %s -> %s; ", v->first_a, v->first_b);
    if (v->measured) {
        pf_str_appendf(to, "max abs %.6g, max rel %.6g, ", v->max_abs, v->max_rel);
        if (v->max_ulp >= 0) {
            pf_str_appendf(to, "max ulp %" PRId64 ", ", v->max_ulp);
        }
        pf_str_appendf(to, "%" PRId64 " NaN; ", v->n_nan);
    }
    return pf_str_error(to);
}

static int append_item(struct pf_str *to, const struct pf_inspect_diff *diff,
                       const struct pf_inspect_item *item)
{
    const struct pf_ckpt_tensor *t = item->a ? item->a : item->b;

    switch (item->kind) {
    case PF_INSPECT_ONLY_A:
    case PF_INSPECT_ONLY_B:
        pf_str_appendf(to, "%s ", pf_dtype_name(t->dtype));
        return append_shape(to, t);
    case PF_INSPECT_STEP:
        return pf_str_appendf(to, "%" PRId64 " -> %" PRId64, diff->step_a, diff->step_b);
    case PF_INSPECT_STATE:
        PF_TRY(append_printable(to, item->text_a ? item->text_a : "nothing"));
        PF_TRY(pf_str_append(to, " -> "));
        return append_printable(to, item->text_b ? item->text_b : "nothing");
    default:
        PF_TRY(append_change(to, item->a, item->b));
        PF_TRY(append_values(to, &item->values));
        to->len -= pf_str_ends_with(to->text, "; ") ? 2 : 0;
        to->text[to->len] = '\0';
        return 0;
    }
}

static int add_item(struct table *table, const struct pf_inspect_diff *diff,
                    const struct pf_inspect_item *item)
{
    const struct pf_ckpt_tensor *t = item->a ? item->a : item->b;
    const char *name = t ? t->name : item->path && *item->path ? item->path : "-";

    PF_TRY(add_text(table, pf_inspect_kind_name(item->kind)));
    PF_TRY(add_text(table, t ? pf_role_name(t->role) : "-"));
    PF_TRY(add_text(table, name));
    PF_TRY(append_item(&table->cell, diff, item));
    return end_cell(table);
}

static int diff_text(const struct pf_inspect_diff *diff)
{
    struct table table;
    int err = 0;

    table_init(&table, "llll");
    for (int64_t i = 0; i < diff->n_items; i++) {
        PF_TRY_GOTO(add_item(&table, diff, &diff->items[i]), out);
    }
    print_table(&table);
    if (diff->n_items > 0) {
        printf("%" PRId64 " %s; ", diff->n_items,
               diff->n_items == 1 ? "difference" : "differences");
    }
    printf("%s: %" PRId64 " %s",
           diff->n_items > 0    ? "the same"
           : diff->n_within > 0 ? "the same within the tolerance"
                                : "identical",
           diff->n_same, diff->n_same == 1 ? "tensor" : "tensors");
    if (diff->n_within > 0) {
        printf(", %" PRId64 " of them not bit for bit", diff->n_within);
    }
    puts(diff->state_compared && diff->n_items == 0 ? " and the trainer state" : "");
out:
    table_release(&table);
    return err;
}

static void json_side(struct pf_json_out *out, const char *key, const struct pf_ckpt_tensor *t)
{
    pf_json_out_key(out, key);
    if (!t) {
        pf_json_out_null(out);
        return;
    }
    pf_json_out_object_begin(out);
    pf_json_out_member_string(out, "role", pf_role_name(t->role));
    pf_json_out_member_string(out, "dtype", pf_dtype_name(t->dtype));
    member_integers(out, "shape", t->shape, t->n_dims);
    pf_json_out_object_end(out);
}

static void json_values(struct pf_json_out *out, const struct pf_inspect_values *v)
{
    pf_json_out_key(out, "values");
    if (!v->compared) {
        pf_json_out_null(out);
        return;
    }
    pf_json_out_object_begin(out);
    pf_json_out_member_i64(out, "elements", v->n_elements);
    pf_json_out_member_i64(out, "differ", v->n_differ);
    if (v->n_differ > 0) {
        pf_json_out_member_i64(out, "nan", v->n_nan);
        member_integers(out, "first_index", v->first, v->n_dims);
        pf_json_out_member_string(out, "first_a", v->first_a);
        pf_json_out_member_string(out, "first_b", v->first_b);
    }
    if (v->measured) {
        pf_json_out_member_f64(out, "max_abs", v->max_abs);
        pf_json_out_member_f64(out, "max_rel", v->max_rel);
        member_count(out, "max_ulp", v->max_ulp);
    }
    pf_json_out_object_end(out);
}

static void json_item(struct pf_json_out *out, const struct pf_inspect_diff *diff,
                      const struct pf_inspect_item *item)
{
    const struct pf_ckpt_tensor *t = item->a ? item->a : item->b;

    pf_json_out_object_begin(out);
    pf_json_out_member_string(out, "kind", pf_inspect_kind_name(item->kind));
    if (t) {
        pf_json_out_member_string(out, "name", t->name);
        json_side(out, "a", item->a);
        json_side(out, "b", item->b);
        json_values(out, &item->values);
    } else if (item->kind == PF_INSPECT_STEP) {
        pf_json_out_member_i64(out, "a", diff->step_a);
        pf_json_out_member_i64(out, "b", diff->step_b);
    } else {
        pf_json_out_member_string(out, "path", item->path);
        member_raw(out, "a", item->text_a);
        member_raw(out, "b", item->text_b);
    }
    pf_json_out_object_end(out);
}

static void json_input(struct pf_json_out *out, const char *key, const char *path,
                       const struct pf_ckpt *ckpt, int64_t n_tensors)
{
    pf_json_out_key(out, key);
    pf_json_out_object_begin(out);
    member_checkpoint(out, path, ckpt);
    pf_json_out_member_i64(out, "tensors", n_tensors);
    pf_json_out_object_end(out);
}

static int diff_json(struct options *o, const struct pf_ckpt *a, const struct pf_ckpt *b,
                     const struct pf_inspect_diff *diff, int verdict)
{
    struct document d;

    document_begin(&d, o, verdict);
    json_input(&d.out, "a", o->paths[0], a, diff->n_tensors_a);
    json_input(&d.out, "b", o->paths[1], b, diff->n_tensors_b);
    pf_json_out_member_f64(&d.out, "rtol", o->rel);
    pf_json_out_member_f64(&d.out, "atol", o->abs);
    member_count(&d.out, "ulp", o->ulp);
    pf_json_out_member_string(&d.out, "nan", o->nan ? o->nan : "bits");
    pf_json_out_member_bool(&d.out, "weights_only", o->weights_only);
    pf_json_out_member_bool(&d.out, "state_compared", diff->state_compared);
    pf_json_out_member_bool(&d.out, "identical", diff->n_items == 0 && diff->n_within == 0);
    pf_json_out_member_i64(&d.out, "same_tensors", diff->n_same);
    pf_json_out_member_i64(&d.out, "same_within_tolerance", diff->n_within);
    pf_json_out_key(&d.out, "differences");
    pf_json_out_array_begin(&d.out);
    for (int64_t i = 0; i < diff->n_items; i++) {
        json_item(&d.out, diff, &diff->items[i]);
    }
    pf_json_out_array_end(&d.out);
    return document_end(&d, o);
}

static int tolerance_of(const struct options *o, struct pf_inspect_tolerance *t_out)
{
    static const char *const policies[] = {"bits", "equal", "differ"};
    struct pf_inspect_tolerance t = PF_INSPECT_EXACT;

    if (o->rel < 0 || o->abs < 0 || (o->ulp < 0 && o->ulp != INT64_MIN)) {
        return pf_fail(PF_EUSAGE, "a tolerance is negative" SEE_HELP);
    }
    t.rel = isnan(o->rel) ? -1 : o->rel;
    t.abs = isnan(o->abs) ? -1 : o->abs;
    t.ulp = o->ulp == INT64_MIN ? -1 : o->ulp;
    for (int i = 0; o->nan && i < 3; i++) {
        if (strcmp(o->nan, policies[i]) == 0) {
            t.nan = (enum pf_inspect_nan)i;
            *t_out = t;
            return 0;
        }
    }
    if (o->nan) {
        return pf_fail(PF_EUSAGE, "option '--nan': '%s' is not bits, equal or differ" SEE_HELP,
                       o->nan);
    }
    *t_out = t;
    return 0;
}

static int diff_opened(struct options *o, const struct pf_ckpt *a, const struct pf_ckpt *b)
{
    struct pf_inspect_diff diff = {0};
    struct pf_inspect_tolerance tolerance;
    struct pf_progress bar;
    const struct pf_inspect_progress progress = start_progress(&bar, o, "comparing");

    PF_TRY(tolerance_of(o, &tolerance));
    int err = pf_inspect_diff(a, b, o->weights_only, &tolerance, &progress, &diff);
    pf_progress_finish(&bar);
    PF_TRY(err);
    const int verdict = diff.n_items > 0 ? PF_EDIFFER : 0;
    err = o->shared.json ? diff_json(o, a, b, &diff, verdict) : diff_text(&diff);
    pf_inspect_diff_release(&diff);
    return err ? err : verdict;
}

static int diff(struct options *o, char **operands)
{
    struct pf_inspect_tolerance tolerance;
    struct pf_ckpt *a = NULL, *b = NULL;
    int err;

    PF_TRY_GOTO(tolerance_of(o, &tolerance), out);
    PF_TRY_GOTO(pf_ckpt_open(operands[0], &a), out);
    PF_TRY_GOTO(pf_ckpt_open(operands[1], &b), out);
    err = diff_opened(o, a, b);
out:
    pf_ckpt_free(a);
    pf_ckpt_free(b);
    return err;
}

/* ops ---------------------------------------------------------------------------------------------
 */

/* "dnnl > avx512 > ref; not avx2: CPU lacks avx2" */
static int append_order(struct pf_str *to, const struct pf_ops *ops, enum pf_op op,
                        enum pf_dtype dtype)
{
    struct pf_ops_row row;

    for (int i = 0; pf_ops_row(ops, op, dtype, i, &row); i++) {
        if (row.usable) {
            pf_str_appendf(to, "%s%s", to->len ? " > " : "", row.kernel->variant);
        }
    }
    for (int i = 0; pf_ops_row(ops, op, dtype, i, &row); i++) {
        if (!row.usable) {
            pf_str_appendf(to, "; not %s: %s", row.kernel->variant, row.why);
        }
    }
    return pf_str_error(to);
}

static int add_op(struct table *table, const struct pf_ops *ops, enum pf_op op, enum pf_dtype dtype)
{
    struct pf_ops_row row;
    const char *served = "nobody", *why = "no usable row";

    for (int i = 0; pf_ops_row(ops, op, dtype, i, &row); i++) {
        served = row.chosen ? row.kernel->variant : served;
        why = row.chosen ? row.why : why;
    }
    PF_TRY(add_text(table, pf_op_name(op)));
    PF_TRY(add_text(table, pf_dtype_name(dtype)));
    PF_TRY(add_text(table, served));
    PF_TRY(add_text(table, why));
    PF_TRY(append_order(&table->cell, ops, op, dtype));
    return end_cell(table);
}

static double reuse_rate(const struct pf_ops_reuse *r)
{
    return r->n_pairs ? (double)(r->n_library + r->n_reference) / r->n_pairs : 0;
}

static int ops_text(const struct pf_ops *ops)
{
    static const char *const heads[] = {"OP", "DTYPE", "SERVED BY", "WHY", "FALLBACK ORDER"};
    const struct pf_ops_reuse reuse = pf_ops_count_reuse(ops);
    const char *library = pf_ops_library(ops);
    struct pf_ops_row row;
    struct table table;
    int err = 0;

    table_init(&table, "lllll");
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        PF_TRY_GOTO(add_text(&table, heads[i]), out);
    }
    for (int op = 0; op < PF_OP_COUNT; op++) {
        for (int d = 0; d < PF_DTYPE_COUNT; d++) {
            if (pf_ops_row(ops, (enum pf_op)op, (enum pf_dtype)d, 0, &row)) {
                PF_TRY_GOTO(add_op(&table, ops, (enum pf_op)op, (enum pf_dtype)d), out);
            }
        }
    }
    print_table(&table);
    printf("\ndevice cpu, %s, %d %s%s%s\n", pf_ops_isa(ops), pf_ops_threads(ops),
           pf_ops_threads(ops) == 1 ? "thread" : "threads", *library ? ", " : "", library);
    printf("%d served: %d by kernels of the device, %d by a library, %d by the reference; "
           "reuse rate %.0f %%\n",
           reuse.n_pairs, reuse.n_own, reuse.n_library, reuse.n_reference,
           100 * reuse_rate(&reuse));
out:
    table_release(&table);
    return err;
}

static void json_op(struct pf_json_out *out, const struct pf_ops *ops, enum pf_op op,
                    enum pf_dtype dtype)
{
    const struct pf_kernel_row *chosen = pf_ops_chosen(ops, op, dtype);
    struct pf_ops_row row;

    if (!pf_ops_row(ops, op, dtype, 0, &row)) {
        return;
    }
    pf_json_out_object_begin(out);
    pf_json_out_member_string(out, "op", pf_op_name(op));
    pf_json_out_member_string(out, "dtype", pf_dtype_name(dtype));
    pf_json_out_member_string(out, "served_by", chosen ? chosen->variant : NULL);
    pf_json_out_key(out, "candidates");
    pf_json_out_array_begin(out);
    for (int i = 0; pf_ops_row(ops, op, dtype, i, &row); i++) {
        pf_json_out_object_begin(out);
        pf_json_out_member_string(out, "variant", row.kernel->variant);
        pf_json_out_member_i64(out, "preference", row.kernel->preference);
        pf_json_out_member_bool(out, "usable", row.usable);
        pf_json_out_member_bool(out, "chosen", row.chosen);
        pf_json_out_member_string(out, "why", row.why);
        pf_json_out_object_end(out);
    }
    pf_json_out_array_end(out);
    pf_json_out_object_end(out);
}

static int ops_json(struct options *o, const struct pf_ops *ops)
{
    const struct pf_ops_reuse reuse = pf_ops_count_reuse(ops);
    const char *library = pf_ops_library(ops);
    struct document d;

    document_begin(&d, o, 0);
    pf_json_out_member_string(&d.out, "device", "cpu");
    pf_json_out_member_string(&d.out, "isa", pf_ops_isa(ops));
    pf_json_out_member_i64(&d.out, "threads", pf_ops_threads(ops));
    pf_json_out_member_string(&d.out, "library", *library ? library : NULL);
    pf_json_out_key(&d.out, "ops");
    pf_json_out_array_begin(&d.out);
    for (int op = 0; op < PF_OP_COUNT; op++) {
        for (int dtype = 0; dtype < PF_DTYPE_COUNT; dtype++) {
            json_op(&d.out, ops, (enum pf_op)op, (enum pf_dtype)dtype);
        }
    }
    pf_json_out_array_end(&d.out);
    pf_json_out_member_i64(&d.out, "served", reuse.n_pairs);
    pf_json_out_member_i64(&d.out, "own", reuse.n_own);
    pf_json_out_member_i64(&d.out, "by_library", reuse.n_library);
    pf_json_out_member_i64(&d.out, "by_reference", reuse.n_reference);
    pf_json_out_member_f64(&d.out, "reuse_rate", reuse_rate(&reuse));
    return document_end(&d, o);
}

static int print_ops(struct options *o, char **operands)
{
    struct pf_ops *ops;

    (void)operands;
    PF_TRY(pf_ops_open(NULL, &ops));
    const int err = o->shared.json ? ops_json(o, ops) : ops_text(ops);
    pf_ops_free(ops);
    return err;
}

/* Commands ----------------------------------------------------------------------------------------
 */

enum { TAKES_TOLERANCE = 1, TAKES_WEIGHTS_ONLY = 2 };

static const struct command {
    const char *name;
    int (*run)(struct options *o, char **operands); /* NULL: not in this build */
    int n_least, n_most;
    int takes;
} commands[] = {
    {"show", show, 1, 1, 0},
    {"ls", list, 1, 2, 0},
    {"verify", verify, 1, 1, 0},
    {"hash", hash, 1, 1, TAKES_WEIGHTS_ONLY},
    {"diff", diff, 2, 2, TAKES_TOLERANCE | TAKES_WEIGHTS_ONLY},
    {"ops", print_ops, 0, 0, 0},
    {"scan", NULL, 0, 0, 0},
    {"cat", NULL, 0, 0, 0},
    {"globals", NULL, 0, 0, 0},
    {"plan", NULL, 0, 0, 0},
    {"schedule", NULL, 0, 0, 0},
    {"run", NULL, 0, 0, 0},
    {"env", NULL, 0, 0, 0},
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

static const char usage[] =
    "pf-inspect [options] COMMAND ...\n"
    "show PATH         what it is: format, model, step, layout, sizes\n"
    "ls PATH [GLOB]    its tensors: name, role, dtype, shape, bytes, pieces, files\n"
    "verify PATH       everything that is wrong with it; reads every byte\n"
    "hash PATH         digests of its tensors, whatever the format and layout\n"
    "diff A B          how two differ, whatever their formats and layouts\n"
    "ops               the kernel registry: who serves which op, why\n"
    "scan cat globals plan schedule run env: not in this build\n"
    "PATH is a checkpoint of pf, the directory of a run, a Hugging Face directory,\n"
    "or a .safetensors file";

static int find_command(const char *name, const struct command **command_out)
{
    const char *names[N_COMMANDS];

    for (size_t i = 0; i < N_COMMANDS; i++) {
        names[i] = commands[i].name;
        if (strcmp(name, names[i]) == 0) {
            *command_out = &commands[i];
            return 0;
        }
    }
    const char *nearest = pf_nearest(name, names, N_COMMANDS);
    if (nearest) {
        return pf_fail(PF_EUSAGE, "unknown command '%s'; did you mean '%s'?" SEE_HELP, name,
                       nearest);
    }
    return pf_fail(PF_EUSAGE, "unknown command '%s'" SEE_HELP, name);
}

/* An option that a command would not look at is a mistake. */
static int check_options(const struct options *o, const struct command *command)
{
    const bool tolerance = !isnan(o->rel) || !isnan(o->abs) || o->ulp != INT64_MIN || o->nan;

    if (tolerance && !(command->takes & TAKES_TOLERANCE)) {
        return pf_fail(PF_EUSAGE, "'%s' takes no tolerance; 'diff' does" SEE_HELP, command->name);
    }
    if (o->weights_only && !(command->takes & TAKES_WEIGHTS_ONLY)) {
        return pf_fail(PF_EUSAGE, "'%s' takes no '--weights-only'; 'hash' and 'diff' do" SEE_HELP,
                       command->name);
    }
    return 0;
}

static int run(struct options *o, int argc, char **argv)
{
    const struct command *command = NULL;
    char *operands[2] = {0};

    if (argc < 2) {
        return pf_fail(PF_EUSAGE, "give a command" SEE_HELP);
    }
    PF_TRY(find_command(argv[1], &command));
    o->command = command->name;
    if (!command->run) {
        return pf_fail(PF_ENOTSUP, "'%s' is not in this build", command->name);
    }
    if (argc - 2 < command->n_least || argc - 2 > command->n_most) {
        return pf_fail(PF_EUSAGE, "'%s' takes %d%s operand%s, not %d" SEE_HELP, command->name,
                       command->n_least, command->n_most > command->n_least ? " or 2" : "",
                       command->n_most == 1 ? "" : "s", argc - 2);
    }
    PF_TRY(check_options(o, command));
    for (int i = 2; i < argc; i++) {
        operands[i - 2] = argv[i];
        o->paths[i - 2] = argv[i];
    }
    return command->run(o, operands);
}

/* With --json the failure is a document as well; the line on stderr remains. */
static void answer_failure(struct options *o, int err)
{
    struct document d;

    document_begin(&d, o, err);
    (void)document_end(&d, o);
}

int main(int argc, char **argv)
{
    struct options o = {.rel = NAN, .abs = NAN, .ulp = INT64_MIN};
    bool done;
    const struct pf_opt table[] = {
        {0, "rtol", "X", "diff: admit |a - b| <= X max(|a|, |b|)", PF_OPT_F64, &o.rel},
        {0, "atol", "X", "diff: admit |a - b| <= X; the two add up", PF_OPT_F64, &o.abs},
        {0, "ulp", "N", "diff: admit N steps between floating numbers", PF_OPT_I64, &o.ulp},
        {0, "nan", "POLICY", "diff: two NaNs are the same by their bits, equal, or differ",
         PF_OPT_STRING, &o.nan},
        {0, "weights-only", NULL, "hash, diff: weights alone, no optimizer, no trainer state",
         PF_OPT_FLAG, &o.weights_only},
        PF_OPTS_SHARED(&o.shared),
    };

    pf_tool_start("pf-inspect");
    pf_version_add_row("comm", pf_comm_version);
    pf_version_add_row("kernels", pf_ops_version);
    int err = pf_tool_options(table, PF_OPTS_N(table), usage, &o.shared, &argc, argv, &done);
    if (!err && !done) {
        err = run(&o, argc, argv);
    }
    if (err && o.shared.json && !o.answered) {
        answer_failure(&o, err);
    }
    return pf_tool_finish(err);
}
