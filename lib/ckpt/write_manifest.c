/* SPDX-License-Identifier: Apache-2.0 */
/* The manifest written. Source: pf-checkpoint(5). */
#include "ckpt_internal.h"

#include <pf/digest.h>
#include <pf/file.h>
#include <pf/json.h>
#include <pf/mem.h>

#include <fcntl.h>
#include <string.h>

static void put_pair(struct pf_json_out *j, int64_t lo, int64_t hi)
{
    pf_json_out_array_begin(j);
    pf_json_out_i64(j, lo);
    pf_json_out_i64(j, hi);
    pf_json_out_array_end(j);
}

static int put_piece(struct pf_json_out *j, const struct pf_ckpt *ckpt,
                     const struct pf_ckpt_tensor *tensor, const struct pf_ckpt_piece *piece)
{
    struct pf_str name;

    pf_json_out_object_begin(j);
    pf_json_out_key(j, "box");
    pf_json_out_array_begin(j);
    for (int d = 0; d < piece->box.n_dims; d++) {
        put_pair(j, piece->box.lo[d], piece->box.hi[d]);
    }
    pf_json_out_array_end(j);
    if (piece->range_lo != 0 || piece->range_hi != pf_box_count(&piece->box)) {
        pf_json_out_key(j, "range");
        put_pair(j, piece->range_lo, piece->range_hi);
    }
    pf_json_out_member_string(j, "file", ckpt->files[piece->file].name);
    pf_str_init(&name);
    const int err = ckpt_entry_name(&name, tensor->name, tensor->role, &piece->box, tensor->shape,
                                    piece->range_lo, piece->range_hi);
    pf_json_out_member_string(j, "tensor", name.text);
    pf_str_release(&name);
    if (piece->codec != PF_CKPT_PLAIN) {
        pf_json_out_member_string(j, "codec", "zstd");
    }
    pf_json_out_object_end(j);
    return err;
}

static int put_tensor(struct pf_json_out *j, const struct pf_ckpt *ckpt,
                      const struct pf_ckpt_tensor *tensor)
{
    int err = 0;

    pf_json_out_object_begin(j);
    pf_json_out_member_string(j, "name", tensor->name);
    pf_json_out_member_string(j, "role", pf_role_name(tensor->role));
    pf_json_out_member_string(j, "dtype", pf_dtype_name(tensor->dtype));
    pf_json_out_key(j, "shape");
    pf_json_out_array_begin(j);
    for (int d = 0; d < tensor->n_dims; d++) {
        pf_json_out_i64(j, tensor->shape[d]);
    }
    pf_json_out_array_end(j);
    pf_json_out_key(j, "pieces");
    pf_json_out_array_begin(j);
    for (int64_t i = 0; !err && i < tensor->n_pieces; i++) {
        err = put_piece(j, ckpt, tensor, &tensor->pieces[i]);
    }
    pf_json_out_array_end(j);
    pf_json_out_object_end(j);
    return err;
}

static int put_file(struct pf_json_out *j, const struct pf_ckpt_file *file)
{
    pf_json_out_object_begin(j);
    pf_json_out_member_string(j, "name", file->name);
    pf_json_out_key(j, "bytes");
    pf_json_out_u64(j, file->bytes);
    pf_json_out_member_string(j, "xxh3_128", file->digest);
    pf_json_out_object_end(j);
    return 0;
}

/* An array with one line for each of its items. */
static int put_lines(struct pf_str *text, const struct pf_ckpt *ckpt, const char *key, bool files)
{
    const int64_t n = files ? ckpt->n_files : ckpt->n_tensors;

    pf_str_appendf(text, "  \"%s\": [", key);
    for (int64_t i = 0; i < n; i++) {
        struct pf_json_out j;
        pf_str_append(text, i > 0 ? ",\n    " : "\n    ");
        pf_json_out_init(&j, text, 0);
        PF_TRY(files ? put_file(&j, &ckpt->files[i]) : put_tensor(&j, ckpt, &ckpt->tensors[i]));
        PF_TRY(pf_json_out_finish(&j));
    }
    return pf_str_append(text, n > 0 ? "\n  ],\n" : "],\n");
}

/* "key": TEXT, one JSON object, on one line. */
static int put_object(struct pf_str *text, const char *key, const char *json)
{
    const struct pf_json_options options = {.name = key, .error_code = PF_EINVAL};
    const char *given = json ? json : "{}";
    struct pf_json *doc = NULL;
    char *compact = NULL;
    int err;

    PF_TRY(pf_json_parse_text_with(given, strlen(given), &options, &doc));
    PF_TRY_GOTO(pf_json_expect(doc, PF_JSON_OBJECT), out);
    compact = pf_json_print(doc);
    err = compact ? pf_str_appendf(text, "  \"%s\": %s,\n", key, compact) : PF_ENOMEM;
out:
    pf_free(compact);
    pf_json_free(doc);
    return err;
}

static int put_previous(struct pf_str *text, const char *previous)
{
    struct pf_json_out j;

    pf_str_append(text, "  \"previous\": ");
    pf_json_out_init(&j, text, 0);
    pf_json_out_string(&j, previous[0] ? previous : NULL);
    PF_TRY(pf_json_out_finish(&j));
    return pf_str_append(text, ",\n");
}

int ckpt_manifest_head(struct pf_str *text, const struct pf_ckpt_save *save, const char *previous)
{
    pf_str_append(text, "{\n  \"format\": \"pf-checkpoint\",\n");
    pf_str_appendf(text, "  \"schema\": %d,\n  \"step\": %lld,\n", CKPT_SCHEMA,
                   (long long)save->step);
    PF_TRY(put_previous(text, previous));
    PF_TRY(put_object(text, "config", save->config_json));
    PF_TRY(put_object(text, "mesh", save->mesh_json));
    PF_TRY(put_object(text, "options", save->run_json));
    return put_object(text, "state", save->state_json);
}

static int put_parity(struct pf_str *text, const struct pf_ckpt *ckpt)
{
    struct pf_json_out j;

    if (!ckpt->parity.name) {
        return 0;
    }
    pf_str_append(text, "  \"parity\": ");
    pf_json_out_init(&j, text, 0);
    PF_TRY(put_file(&j, &ckpt->parity));
    PF_TRY(pf_json_out_finish(&j));
    return pf_str_append(text, ",\n");
}

static int print_rest(struct pf_str *text, const struct pf_ckpt *ckpt)
{
    char hex[PF_DIGEST_HEX_BYTES];

    PF_TRY(put_lines(text, ckpt, "files", true));
    PF_TRY(put_parity(text, ckpt));
    PF_TRY(put_lines(text, ckpt, "tensors", false));
    PF_TRY(pf_str_append(text, "  "));
    const struct pf_digest digest = pf_digest_of(text->text, text->len);
    return pf_str_appendf(text, "%s%s%s", CKPT_TAIL_BEFORE, pf_digest_hex(&digest, hex),
                          CKPT_TAIL_AFTER);
}

static int write_synced(const char *path, const char *text, size_t len)
{
    int fd, err;

    PF_TRY(pf_open(path, O_WRONLY | O_CREAT | O_EXCL, &fd));
    err = pf_write_full(fd, text, len, path);
    const int close_err = pf_close(fd, err ? NULL : path);
    err = err ? err : close_err;
    return err ? err : pf_fsync_path(path);
}

int ckpt_manifest_write(struct pf_str *head, const struct pf_ckpt *ckpt, const char *dir)
{
    char *path = pf_path_join(dir, CKPT_MANIFEST);
    int err = path ? 0 : PF_ENOMEM;

    err = err ? err : print_rest(head, ckpt);
    err = err ? err : write_synced(path, head->text, head->len);
    err = err ? err : pf_fsync_path(dir);
    pf_free(path);
    return err;
}
