/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The native format. First half: the manifest, its own digest, and the files' sizes, which is what
 * decides whether a directory is a checkpoint. Second half: the headers of the files, against which
 * every piece is checked and from which it gets its offset. Source: pf-checkpoint(5).
 */
#include "frames_internal.h"

#include <pf/digest.h>
#include <pf/file.h>
#include <pf/json.h>
#include <pf/mem.h>

#include <stdlib.h>
#include <string.h>

struct manifest {
    struct pf_ckpt *ckpt; /* tensors in the order of the text */
    struct pf_json *doc;
    const char **entries; /* of every piece in that order; belong to doc */
    size_t n_entries;
};

static void release(struct manifest *m)
{
    pf_json_free(m->doc);
    pf_free(m->entries);
    pf_ckpt_free(m->ckpt);
}

/* Digest of the manifest itself -------------------------------------------------------------------
 */

static int check_own_digest(struct ckpt_report *report, const char *path, const char *text,
                            size_t len, char own_out[PF_DIGEST_HEX_BYTES])
{
    const size_t before = sizeof CKPT_TAIL_BEFORE - 1, after = sizeof CKPT_TAIL_AFTER - 1;
    const char *tail = len >= CKPT_TAIL_BYTES ? text + len - CKPT_TAIL_BYTES : NULL;
    char hex[PF_DIGEST_HEX_BYTES];

    if (!tail || memcmp(tail, CKPT_TAIL_BEFORE, before) != 0 ||
        memcmp(tail + before + 32, CKPT_TAIL_AFTER, after) != 0) {
        return ckpt_fault(report, PF_EFORMAT, "manifest-digest",
                          "'%s' does not end in its digest: it is cut short or was edited", path);
    }
    const struct pf_digest digest = pf_digest_of(text, len - CKPT_TAIL_BYTES);
    pf_digest_hex(&digest, hex);
    if (memcmp(tail + before, hex, 32) != 0) {
        return ckpt_fault(report, PF_EFORMAT, "manifest-digest",
                          "'%s' was changed: its digest is %s, it says %.32s", path, hex,
                          tail + before);
    }
    memcpy(own_out, hex, sizeof hex);
    return 0;
}

/* Members -----------------------------------------------------------------------------------------
 */

static int read_file(struct pf_ckpt *ckpt, const struct pf_json *node)
{
    const char *const known[] = {"name", "bytes", "xxh3_128"};
    const char *name, *hex;
    const struct pf_json *bytes_node;
    struct pf_digest digest;
    uint64_t bytes;

    PF_TRY(pf_json_expect(node, PF_JSON_OBJECT));
    PF_TRY(pf_json_refuse_unknown(node, known, 3));
    PF_TRY(pf_json_need_string(node, "name", &name));
    PF_TRY(pf_json_need(node, "bytes", &bytes_node));
    PF_TRY(pf_json_as_u64(bytes_node, &bytes));
    PF_TRY(pf_json_need_string(node, "xxh3_128", &hex));
    if (pf_digest_parse(hex, &digest) != 0) {
        return pf_json_fail(node, "has no digest of 32 hexadecimal digits");
    }
    if (ckpt->n_files > 0 && strcmp(ckpt->files[ckpt->n_files - 1].name, name) >= 0) {
        return pf_json_fail(node, "does not come after the file before it in byte order");
    }
    return ckpt_add_file(ckpt, name, bytes, hex, NULL);
}

static int compare_file_name(const void *name, const void *file)
{
    return strcmp(name, ((const struct pf_ckpt_file *)file)->name);
}

static int find_file(const struct pf_ckpt *ckpt, const struct pf_json *node, int *file_out)
{
    const char *name;

    PF_TRY(pf_json_need_string(node, "file", &name));
    const struct pf_ckpt_file *file = ckpt->n_files > 0
                                          ? bsearch(name, ckpt->files, (size_t)ckpt->n_files,
                                                    sizeof *ckpt->files, compare_file_name)
                                          : NULL;
    if (!file) {
        return pf_json_fail(node, "names the file '%s', which is not among the files", name);
    }
    *file_out = (int)(file - ckpt->files);
    return 0;
}

static int read_pair(const struct pf_json *node, int64_t *lo_out, int64_t *hi_out)
{
    PF_TRY(pf_json_expect(node, PF_JSON_ARRAY));
    if (pf_json_n(node) != 2) {
        return pf_json_fail(node, "must be a pair [from, to]");
    }
    PF_TRY(pf_json_as_i64(pf_json_child(node, 0), lo_out));
    return pf_json_as_i64(pf_json_child(node, 1), hi_out);
}

static int read_box(const struct pf_json *node, const struct pf_ckpt_tensor *tensor,
                    struct pf_box *box_out)
{
    int64_t lo[PF_BOX_MAX_DIMS], hi[PF_BOX_MAX_DIMS];

    PF_TRY(pf_json_expect(node, PF_JSON_ARRAY));
    if (pf_json_n(node) != (size_t)tensor->n_dims) {
        return pf_json_fail(node, "must have one pair for each of %d dimensions", tensor->n_dims);
    }
    for (int d = 0; d < tensor->n_dims; d++) {
        PF_TRY(read_pair(pf_json_child(node, (size_t)d), &lo[d], &hi[d]));
    }
    if (pf_box_init(box_out, tensor->n_dims, lo, hi) != 0) {
        return pf_json_fail(node, "is no box");
    }
    for (int d = 0; d < tensor->n_dims; d++) {
        if (hi[d] > tensor->shape[d]) {
            return pf_json_fail(node, "lies outside its tensor");
        }
    }
    return 0;
}

static int add_entry_name(struct manifest *m, const char *entry)
{
    if ((m->n_entries & (m->n_entries - 1)) == 0) {
        const size_t room = m->n_entries > 0 ? 2 * m->n_entries : 1;
        const char **grown = pf_realloc_array(m->entries, room, sizeof *grown);
        if (!grown) {
            return PF_ENOMEM;
        }
        m->entries = grown;
    }
    m->entries[m->n_entries++] = entry;
    return 0;
}

static int read_codec(const struct pf_json *node, enum pf_ckpt_codec *codec_out)
{
    const char *codec;

    PF_TRY(pf_json_string(node, "codec", NULL, &codec));
    if (codec && strcmp(codec, "zstd") != 0) {
        return pf_json_fail(node, "has the unknown codec '%s'", codec);
    }
    *codec_out = codec ? PF_CKPT_ZSTD : PF_CKPT_PLAIN;
    return 0;
}

static int read_piece(struct manifest *m, struct pf_ckpt_tensor *tensor, const struct pf_json *node)
{
    const char *const known[] = {"box", "range", "file", "tensor", "codec"};
    const struct pf_json *box, *range;
    struct pf_ckpt_piece piece = {.offset = 0};
    const char *entry;

    PF_TRY(pf_json_expect(node, PF_JSON_OBJECT));
    PF_TRY(pf_json_refuse_unknown(node, known, 5));
    PF_TRY(pf_json_need(node, "box", &box));
    PF_TRY(read_box(box, tensor, &piece.box));
    piece.range_hi = pf_box_count(&piece.box);
    range = pf_json_get(node, "range");
    if (range) {
        const int64_t count = piece.range_hi;
        PF_TRY(read_pair(range, &piece.range_lo, &piece.range_hi));
        if (piece.range_lo < 0 || piece.range_lo >= piece.range_hi || piece.range_hi > count ||
            piece.range_hi - piece.range_lo == count) {
            return pf_json_fail(range, "is no part of the box's elements");
        }
    }
    if (piece.range_hi == 0) {
        return pf_json_fail(box, "is empty");
    }
    PF_TRY(find_file(m->ckpt, node, &piece.file));
    PF_TRY(pf_json_need_string(node, "tensor", &entry));
    PF_TRY(read_codec(node, &piece.codec));
    PF_TRY(add_entry_name(m, entry));
    PF_TRY(ckpt_add_piece(tensor, &piece));
    return 0;
}

static int read_shape(const struct pf_json *node, int *n_dims_out,
                      int64_t shape_out[PF_BOX_MAX_DIMS])
{
    const int64_t zero[PF_BOX_MAX_DIMS] = {0};
    struct pf_box box;

    PF_TRY(pf_json_expect(node, PF_JSON_ARRAY));
    const size_t n = pf_json_n(node);
    if (n > PF_BOX_MAX_DIMS) {
        return pf_json_fail(node, "has more than %d dimensions", PF_BOX_MAX_DIMS);
    }
    for (size_t d = 0; d < n; d++) {
        PF_TRY(pf_json_as_i64(pf_json_child(node, d), &shape_out[d]));
    }
    if (pf_box_init(&box, (int)n, zero, shape_out) != 0) {
        return pf_json_fail(node, "is no shape");
    }
    *n_dims_out = (int)n;
    return 0;
}

/* Do the bytes of all elements have a number? Those narrower than a byte are not read. */
static bool has_bytes(enum pf_dtype dtype, int n_dims, const int64_t *shape)
{
    struct pf_box box = {.n_dims = n_dims};
    size_t bytes;

    for (int d = 0; d < n_dims; d++) {
        box.hi[d] = shape[d];
    }
    return pf_dtype_bytes(dtype) == 0 ||
           pf_dtype_array_bytes(dtype, pf_box_count(&box), &bytes) == 0;
}

static int read_tensor(struct manifest *m, const struct pf_json *node)
{
    const char *const known[] = {"name", "role", "dtype", "shape", "pieces"};
    const struct pf_json *shape_node, *pieces;
    const char *name, *role_name, *dtype_name;
    struct pf_ckpt_tensor *tensor;
    int64_t shape[PF_BOX_MAX_DIMS];
    enum pf_role role;
    enum pf_dtype dtype;
    int n_dims = 0;

    PF_TRY(pf_json_expect(node, PF_JSON_OBJECT));
    PF_TRY(pf_json_refuse_unknown(node, known, 5));
    PF_TRY(pf_json_need_string(node, "name", &name));
    PF_TRY(pf_json_need_string(node, "role", &role_name));
    PF_TRY(pf_json_need_string(node, "dtype", &dtype_name));
    if (pf_role_parse(role_name, &role) != 0) {
        return pf_json_fail(node, "has the unknown role '%s'", role_name);
    }
    if (pf_dtype_parse(dtype_name, &dtype) != 0) {
        return pf_json_fail(node, "has the unknown dtype '%s'", dtype_name);
    }
    PF_TRY(pf_json_need(node, "shape", &shape_node));
    PF_TRY(read_shape(shape_node, &n_dims, shape));
    PF_TRY(pf_json_need(node, "pieces", &pieces));
    PF_TRY(pf_json_expect(pieces, PF_JSON_ARRAY));
    if (!has_bytes(dtype, n_dims, shape)) {
        return pf_json_fail(shape_node, "is no shape");
    }
    PF_TRY(ckpt_add_tensor(m->ckpt, name, role, dtype, n_dims, shape, &tensor));
    for (size_t i = 0; i < pf_json_n(pieces); i++) {
        PF_TRY(read_piece(m, tensor, pf_json_child(pieces, i)));
    }
    return 0;
}

/* {"name":..., "bytes":..., "xxh3_128":...}, the same as one of the files. */
static int read_parity(struct manifest *m)
{
    const struct pf_json *const node = pf_json_get(m->doc, "parity");
    struct pf_ckpt *holder;
    int err;

    if (!node) {
        return 0;
    }
    holder = ckpt_new("pf", m->ckpt->dir);
    PF_TRY(holder ? 0 : PF_ENOMEM);
    err = read_file(holder, node);
    if (!err && strcmp(holder->files[0].name, CKPT_PARITY) != 0) {
        err = pf_json_fail(node, "has another name than '%s'", CKPT_PARITY);
    }
    if (!err) {
        m->ckpt->parity = holder->files[0];
        holder->n_files = 0;
    }
    pf_ckpt_free(holder);
    return err;
}

static int read_array(struct manifest *m, struct ckpt_report *report, const char *key)
{
    const struct pf_json *array;

    PF_TRY(pf_json_need(m->doc, key, &array));
    PF_TRY(pf_json_expect(array, PF_JSON_ARRAY));
    for (size_t i = 0; i < pf_json_n(array); i++) {
        const struct pf_json *node = pf_json_child(array, i);
        const int err = strcmp(key, "files") == 0 ? read_file(m->ckpt, node) : read_tensor(m, node);
        if (err != 0) {
            PF_TRY(ckpt_fault_from(report, err, "manifest"));
        }
    }
    return 0;
}

static int read_object(const struct manifest *m, const char *key, char **text_out)
{
    const struct pf_json *node;

    PF_TRY(pf_json_need(m->doc, key, &node));
    PF_TRY(pf_json_expect(node, PF_JSON_OBJECT));
    *text_out = pf_json_print(node);
    return *text_out ? 0 : PF_ENOMEM;
}

static int read_head(struct manifest *m)
{
    const char *const known[] = {"format", "schema", "step",    "previous",
                                 "config", "mesh",   "options", "state",
                                 "files",  "parity", "tensors", "manifest_xxh3_128"};
    const char *format, *previous;
    struct pf_digest digest;
    int64_t schema;

    PF_TRY(pf_json_expect(m->doc, PF_JSON_OBJECT));
    PF_TRY(pf_json_need_string(m->doc, "format", &format));
    if (strcmp(format, "pf-checkpoint") != 0) {
        return pf_json_fail(m->doc, "is of the format '%s', not 'pf-checkpoint'", format);
    }
    PF_TRY(pf_json_need_i64(m->doc, "schema", &schema));
    if (schema != CKPT_SCHEMA) {
        return pf_fail(PF_ENOTSUP, "'%s' has schema %lld, this build reads %d",
                       pf_json_name(m->doc), (long long)schema, CKPT_SCHEMA);
    }
    PF_TRY(pf_json_refuse_unknown(m->doc, known, sizeof known / sizeof known[0]));
    PF_TRY(pf_json_need_i64(m->doc, "step", &m->ckpt->step));
    if (m->ckpt->step < 0) {
        return pf_json_fail(m->doc, "has a negative step");
    }
    PF_TRY(pf_json_string(m->doc, "previous", NULL, &previous));
    if (previous && pf_digest_parse(previous, &digest) != 0) {
        return pf_json_fail(m->doc, "has a 'previous' that is no digest");
    }
    if (previous) {
        pf_digest_hex(&digest, m->ckpt->previous);
    }
    return 0;
}

static int read_objects(struct manifest *m)
{
    PF_TRY(read_object(m, "config", &m->ckpt->config_json));
    PF_TRY(read_object(m, "mesh", &m->ckpt->mesh_json));
    PF_TRY(read_object(m, "options", &m->ckpt->run_json));
    return read_object(m, "state", &m->ckpt->state_json);
}

/* Note a failure of one part and go on with the next. */
#define PART(expr)                                                                                 \
    do {                                                                                           \
        const int part_err_ = (expr);                                                              \
        if (part_err_ != 0) {                                                                      \
            PF_TRY(ckpt_fault_from(report, part_err_, "manifest"));                                \
        }                                                                                          \
    } while (0)

static int read_members(struct manifest *m, struct ckpt_report *report)
{
    PART(read_head(m));
    PART(read_objects(m));
    PART(read_array(m, report, "files"));
    PART(read_parity(m));
    PART(read_array(m, report, "tensors"));
    return 0;
}

/* Files on disk -----------------------------------------------------------------------------------
 */

static const char *how_to_restore(const struct pf_ckpt *ckpt)
{
    return ckpt->parity.name ? "; 'pf-inspect repair' restores one file" : "";
}

static int check_file(const struct pf_ckpt *ckpt, struct ckpt_report *report, int64_t i)
{
    const struct pf_ckpt_file *file = &ckpt->files[i];
    uint64_t bytes = 0;
    bool there;

    if (strchr(file->name, '/')) {
        return ckpt_fault(report, PF_EFORMAT, "unsafe-path",
                          "'%s' names the file '%s', which is no plain name in its directory",
                          CKPT_MANIFEST, file->name);
    }
    const int64_t n_before = report ? report->n : 0;
    PF_TRY(ckpt_check_member(report, ckpt->dir, file->name, CKPT_MANIFEST, &there));
    if (report && report->n > n_before) {
        return 0;
    }
    if (!there) {
        return ckpt_fault(report, PF_EINCOMPLETE, "missing-file", "'%s/%s' is missing%s", ckpt->dir,
                          file->name, how_to_restore(ckpt));
    }
    char *path = ckpt_file_path(ckpt, (int)i);
    int err = path ? pf_file_size(path, &bytes) : PF_ENOMEM;
    pf_free(path);
    if (err != 0) {
        return ckpt_fault_from(report, err, "unreadable");
    }
    return bytes == file->bytes ? 0
                                : ckpt_fault(report, PF_EINCOMPLETE, "size",
                                             "'%s/%s' has %llu bytes, the manifest says %llu%s",
                                             ckpt->dir, file->name, (unsigned long long)bytes,
                                             (unsigned long long)file->bytes, how_to_restore(ckpt));
}

static int read_manifest(const char *dir, struct ckpt_report *report, bool look_at_files,
                         struct manifest *m)
{
    char *path = pf_path_join(dir, CKPT_MANIFEST), *text = NULL;
    const struct pf_json_options options = {.name = path, .error_code = PF_EFORMAT};
    size_t len;
    int err = 0;

    *m = (struct manifest){.ckpt = ckpt_new("pf", dir)};
    if (!path || !m->ckpt) {
        err = PF_ENOMEM;
        goto out;
    }
    err = pf_file_read_all(path, 0, &text, &len);
    if (err != 0) {
        err = ckpt_fault_from(report, err, "manifest");
        goto out;
    }
    PF_TRY_GOTO(check_own_digest(report, path, text, len, m->ckpt->digest), out);
    err = pf_json_parse_text_with(text, len, &options, &m->doc);
    if (err != 0) {
        err = ckpt_fault_from(report, err, "manifest");
        goto out;
    }
    PF_TRY_GOTO(read_members(m, report), out);
    for (int64_t i = 0; look_at_files && i < m->ckpt->n_files; i++) {
        PF_TRY_GOTO(check_file(m->ckpt, report, i), out);
    }
out:
    pf_free(path);
    pf_free(text);
    return err;
}

int ckpt_read_manifest(const char *dir, struct ckpt_report *report, struct pf_ckpt **ckpt_out)
{
    struct manifest m;
    const int err = read_manifest(dir, report, true, &m);

    if (err == 0) {
        *ckpt_out = m.ckpt;
        m.ckpt = NULL;
    }
    release(&m);
    return err;
}

int ckpt_read_manifest_alone(const char *dir, struct pf_ckpt **ckpt_out)
{
    struct manifest m;
    const int err = read_manifest(dir, NULL, false, &m);

    if (err == 0) {
        *ckpt_out = m.ckpt;
        m.ckpt = NULL;
    }
    release(&m);
    return err;
}

bool ckpt_is_complete(const char *dir)
{
    struct pf_ckpt *ckpt = NULL;
    const bool complete = ckpt_read_manifest(dir, NULL, &ckpt) == 0;

    pf_ckpt_free(ckpt);
    pf_error_clear();
    return complete;
}

/* Headers of the files ----------------------------------------------------------------------------
 */

/* A piece and the entry that should hold it, to be sorted by file and entry. */
struct ref {
    const char *entry;
    struct pf_ckpt_tensor *tensor;
    struct pf_ckpt_piece *piece;
};

static int compare_refs(const void *a, const void *b)
{
    const struct ref *x = a, *y = b;

    if (x->piece->file != y->piece->file) {
        return x->piece->file < y->piece->file ? -1 : 1;
    }
    return strcmp(x->entry, y->entry);
}

static int sort_refs(const struct manifest *m, struct ref **refs_out)
{
    struct ref *refs = pf_calloc_array(m->n_entries, sizeof *refs);
    size_t n = 0;

    if (!refs) {
        return PF_ENOMEM;
    }
    for (int64_t t = 0; t < m->ckpt->n_tensors; t++) {
        struct pf_ckpt_tensor *tensor = &m->ckpt->tensors[t];
        for (int64_t p = 0; p < tensor->n_pieces; p++, n++) {
            refs[n] = (struct ref){m->entries[n], tensor, &tensor->pieces[p]};
        }
    }
    PF_ASSERT(n == m->n_entries);
    qsort(refs, n, sizeof *refs, compare_refs);
    *refs_out = refs;
    return 0;
}

/* Does the entry have the piece's dtype and shape: the box's extents, or the range's length? A compressed
 * one is of bytes, as many as the blocks can take. */
static bool fits(const struct ref *ref, const struct pf_st_tensor *t)
{
    const struct pf_ckpt_piece *p = ref->piece;
    const struct pf_box *box = &p->box;

    if (p->codec != PF_CKPT_PLAIN) {
        const uint64_t bytes = ckpt_piece_bytes(ref->tensor, p);
        return t->dtype == PF_DTYPE_U8 && t->n_dims == 1 && bytes > 0 &&
               t->shape[0] >= ckpt_stored_least(ref->tensor->dtype, bytes) &&
               t->shape[0] <= ckpt_stored_bound(ref->tensor->dtype, bytes);
    }
    if (t->dtype != ref->tensor->dtype) {
        return false;
    }
    if (p->range_lo != 0 || p->range_hi != pf_box_count(box)) {
        return t->n_dims == 1 && t->shape[0] == (uint64_t)(p->range_hi - p->range_lo);
    }
    bool same = t->n_dims == box->n_dims;
    for (int d = 0; same && d < box->n_dims; d++) {
        same = t->shape[d] == (uint64_t)(box->hi[d] - box->lo[d]);
    }
    return same;
}

static int resolve_ref(struct ckpt_report *report, const struct pf_st *st, const struct ref *ref)
{
    const struct pf_st_tensor *t = pf_st_find(st, ref->entry);

    if (!t) {
        return ckpt_fault(report, PF_EFORMAT, "piece", "'%s' has no entry '%s' for '%s'",
                          pf_st_path(st), ref->entry, ref->tensor->name);
    }
    if (!fits(ref, t)) {
        return ckpt_fault(report, PF_EFORMAT, "piece",
                          "entry '%s' of '%s' has not the dtype and shape of its piece of '%s'",
                          ref->entry, pf_st_path(st), ref->tensor->name);
    }
    ref->piece->offset = pf_st_data_offset(st) + t->begin;
    ref->piece->stored_bytes = ref->piece->codec != PF_CKPT_PLAIN ? t->end - t->begin : 0;
    return 0;
}

static int compare_entry(const void *name, const void *ref)
{
    return strcmp(name, ((const struct ref *)ref)->entry);
}

static int check_entries(struct ckpt_report *report, const struct pf_st *st, const struct ref *refs,
                         size_t n)
{
    for (size_t i = 0; i < n; i++) {
        PF_TRY(resolve_ref(report, st, &refs[i]));
        if (i > 0 && strcmp(refs[i - 1].entry, refs[i].entry) == 0) {
            PF_TRY(ckpt_fault(report, PF_EFORMAT, "extra-entry",
                              "two pieces name the entry '%s' of '%s'", refs[i].entry,
                              pf_st_path(st)));
        }
    }
    for (size_t i = 0; i < pf_st_n_tensors(st); i++) {
        const char *name = pf_st_tensor(st, i)->name;
        if (n == 0 || !bsearch(name, refs, n, sizeof *refs, compare_entry)) {
            PF_TRY(ckpt_fault(report, PF_EFORMAT, "extra-entry",
                              "'%s' has the entry '%s', which the manifest does not name",
                              pf_st_path(st), name));
        }
    }
    return 0;
}

static int resolve_file(const struct manifest *m, struct ckpt_report *report, int file,
                        const struct ref *refs, size_t n)
{
    char *path = ckpt_file_path(m->ckpt, file);
    struct pf_st *st;
    int err;

    if (!path) {
        return PF_ENOMEM;
    }
    /* With a report a missing file has been noted already. */
    if (report && !pf_path_is_file(path)) {
        pf_free(path);
        return 0;
    }
    err = pf_st_open(path, &st);
    if (err != 0) {
        err = ckpt_fault_from(report, err, "header");
    } else {
        err = check_entries(report, st, refs, n);
        pf_st_close(st);
    }
    pf_free(path);
    return err;
}

static int resolve(const struct manifest *m, struct ckpt_report *report)
{
    struct ref *refs;
    size_t lo = 0;
    int err = 0;

    PF_TRY(sort_refs(m, &refs));
    for (int f = 0; !err && f < m->ckpt->n_files; f++) {
        size_t hi = lo;
        while (hi < m->n_entries && refs[hi].piece->file == f) {
            hi++;
        }
        const char *name = m->ckpt->files[f].name;
        if (!strchr(name, '/') && pf_path_is_safe_member(name)) {
            err = resolve_file(m, report, f, refs + lo, hi - lo);
        }
        lo = hi;
    }
    pf_free(refs);
    return err;
}

int ckpt_read_pf(const char *dir, struct ckpt_report *report, struct pf_ckpt **ckpt_out)
{
    struct manifest m;
    int err = read_manifest(dir, report, true, &m);

    if (err == 0) {
        err = resolve(&m, report);
    }
    for (int64_t i = 0; !err && i < (m.ckpt ? m.ckpt->n_tensors : 0); i++) {
        err = ckpt_check_tiling(report, &m.ckpt->tensors[i], PF_EFORMAT, dir);
    }
    if (err == 0) {
        err = ckpt_finish(m.ckpt, report);
    }
    if (err == 0) {
        *ckpt_out = m.ckpt;
        m.ckpt = NULL;
    }
    release(&m);
    return err;
}
