/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The native format written: files into a staging directory, hashed on the way; the manifest last;
 * then the commit. Source: pf-checkpoint(5).
 */
#include "plan_internal.h"

#include <pf/digest.h>
#include <pf/file.h>
#include <pf/json.h>
#include <pf/log.h>
#include <pf/mem.h>
#include <pf/time.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK_BYTES ((uint64_t)4 << 20) /* written and hashed while it is in the cache */

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

/* One file ----------------------------------------------------------------------------------------
 */

/* A part and its number in the safetensors writer. */
struct slot {
    const struct pf_ckpt_live *live;
    size_t i;
    uint64_t offset;
};

struct file_writer {
    struct pf_st_writer *st;
    struct pf_digest_state *digest;
    struct slot *slots;
    size_t n;
    const char *path;
};

static int add_entry(struct file_writer *w, const struct pf_ckpt_tensor *tensor,
                     const struct pf_ckpt_piece *piece, const struct pf_ckpt_live *live)
{
    const struct pf_box *box = &piece->box;
    uint64_t shape[PF_BOX_MAX_DIMS];
    int n_dims = box->n_dims;
    struct pf_str name;
    int err;

    for (int d = 0; d < n_dims; d++) {
        shape[d] = (uint64_t)(box->hi[d] - box->lo[d]);
    }
    if (piece->range_lo != 0 || piece->range_hi != pf_box_count(box)) {
        shape[0] = (uint64_t)(piece->range_hi - piece->range_lo);
        n_dims = 1;
    }
    pf_str_init(&name);
    err = ckpt_entry_name(&name, tensor->name, tensor->role, box, tensor->shape, piece->range_lo,
                          piece->range_hi);
    if (!err) {
        w->slots[w->n].live = live;
        err = pf_st_writer_add_tensor(w->st, name.text, tensor->dtype, n_dims, shape,
                                      &w->slots[w->n++].i);
    }
    pf_str_release(&name);
    return err;
}

static int compare_slots(const void *a, const void *b)
{
    const struct slot *x = a, *y = b;

    if (x->offset != y->offset) {
        return x->offset < y->offset ? -1 : 1;
    }
    return x->i < y->i ? -1 : x->i > y->i;
}

/* Hash the length and the header, which `begin` has written except for the length itself. */
static int hash_header(struct file_writer *w, uint64_t data_offset)
{
    uint64_t n = data_offset - 8;
    uint8_t *header = pf_alloc((size_t)data_offset);
    int fd, err;

    if (!header) {
        return PF_ENOMEM;
    }
    PF_TRY_GOTO(pf_open(w->path, O_RDONLY, &fd), out);
    err = pf_pread_full(fd, header, (size_t)data_offset, 0, w->path);
    pf_close(fd, NULL);
    for (int i = 0; i < 8; i++, n >>= 8) {
        header[i] = (uint8_t)(n & 0xff);
    }
    pf_digest_update(w->digest, header, (size_t)data_offset);
out:
    pf_free(header);
    return err;
}

static int write_slot(struct file_writer *w, const struct slot *slot)
{
    const uint64_t bytes = pf_st_writer_tensor_bytes(w->st, slot->i);
    const uint8_t *data = slot->live->data;

    for (uint64_t done = 0; done < bytes; done += CHUNK_BYTES) {
        const uint64_t n = bytes - done < CHUNK_BYTES ? bytes - done : CHUNK_BYTES;
        pf_digest_update(w->digest, data + done, (size_t)n);
        PF_TRY(pf_st_writer_write(w->st, slot->i, done, data + done, n));
    }
    return 0;
}

/* Write what add_entry has described; in the order of the file, so that its digest comes along. */
static int write_slots(struct file_writer *w)
{
    PF_TRY(pf_st_writer_begin(w->st, w->path));
    for (size_t i = 0; i < w->n; i++) {
        w->slots[i].offset = pf_st_writer_offset(w->st, w->slots[i].i);
    }
    qsort(w->slots, w->n, sizeof *w->slots, compare_slots);
    PF_TRY(hash_header(w, w->slots[0].offset));
    for (size_t i = 0; i < w->n; i++) {
        PF_TRY(write_slot(w, &w->slots[i]));
    }
    return pf_st_writer_finish(w->st, true);
}

static int fill_file(struct file_writer *w, const struct ckpt_plan *plan, int file,
                     const struct pf_ckpt_live *live)
{
    PF_TRY(pf_st_writer_add_metadata(w->st, "format", "pt"));
    for (int64_t i = 0; i < plan->n_parts; i++) {
        const struct ckpt_part *part = &plan->parts[i];
        const struct pf_ckpt_tensor *tensor = &plan->ckpt->tensors[part->tensor];
        const struct pf_ckpt_piece *piece = &tensor->pieces[part->piece];
        if (piece->file == file) {
            PF_TRY(add_entry(w, tensor, piece, &live[part->live]));
        }
    }
    return write_slots(w);
}

/* Write one file of the plan under dir and put its size and digest into the plan. */
static int write_file(const struct ckpt_plan *plan, int file, const char *dir,
                      const struct pf_ckpt_live *live)
{
    struct pf_ckpt_file *entry = &plan->ckpt->files[file];
    char *path = pf_path_join(dir, entry->name);
    struct file_writer w = {.path = path};
    int err = path ? 0 : PF_ENOMEM;

    w.slots = pf_calloc_array((size_t)plan->n_parts, sizeof *w.slots);
    err = w.slots ? err : PF_ENOMEM;
    err = err ? err : pf_st_writer_new(&w.st);
    err = err ? err : pf_digest_new(&w.digest);
    err = err ? err : fill_file(&w, plan, file, live);
    err = err ? err : pf_st_writer_file_bytes(w.st, &entry->bytes);
    if (!err) {
        const struct pf_digest digest = pf_digest_result(w.digest);
        pf_digest_hex(&digest, entry->digest);
    }
    pf_st_writer_free(w.st);
    pf_digest_free(w.digest);
    pf_free(w.slots);
    pf_free(path);
    return err;
}

/* The manifest ------------------------------------------------------------------------------------
 */

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

/* All before the files: can be made, and refused, before a byte is written. */
static int print_head(struct pf_str *text, const struct pf_ckpt_save *save, const char *previous)
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

static int print_rest(struct pf_str *text, const struct pf_ckpt *ckpt)
{
    char hex[PF_DIGEST_HEX_BYTES];

    PF_TRY(put_lines(text, ckpt, "files", true));
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

/* The save ----------------------------------------------------------------------------------------
 */

struct saver {
    struct pf_comm *comm;
    const struct pf_ckpt_save *save;
    const struct pf_ckpt_live *live;
    int64_t n_live;
    struct ckpt_plan plan;
    struct pf_str manifest; /* rank 0's */
    char name[48];          /* checkpoint-000500 */
    char *staging, *final, *removing, *latest;
    char *old_latest;  /* what `latest` says before */
    char previous[33]; /* digest of the checkpoint that it names */
    bool staged, renamed;
    bool replaces; /* a whole checkpoint of this step is there: exchange the two */
};

static char *hidden(const char *dir, const char *prefix, const char *name)
{
    return pf_asprintf("%s/%s%s", dir, prefix, name);
}

static int name_paths(struct saver *s)
{
    const char *dir = s->save->output_dir;

    ckpt_step_name(s->save->step, s->name);
    s->staging = hidden(dir, CKPT_STAGING_PREFIX, s->name);
    s->removing = hidden(dir, CKPT_REMOVING_PREFIX, s->name);
    s->final = pf_path_join(dir, s->name);
    s->latest = pf_path_join(dir, CKPT_LATEST);
    return s->staging && s->removing && s->final && s->latest ? 0 : PF_ENOMEM;
}

int ckpt_make_staging(const char *path)
{
    PF_TRY(ckpt_remove(path));
    if (mkdir(path, 0777) != 0) {
        return pf_fail_errno(PF_EIO, "cannot make the directory '%s'", path);
    }
    return 0;
}

/* What `latest` names now: what a reader will find in this checkpoint as its predecessor. */
static int read_previous(struct saver *s)
{
    const char *dir = s->save->output_dir;
    struct pf_ckpt *ckpt = NULL;
    int64_t step;

    PF_TRY(ckpt_read_latest_name(dir, &s->old_latest));
    if (s->old_latest && ckpt_parse_step_name(s->old_latest, &step)) {
        PF_TRY(ckpt_open_named(dir, s->old_latest, &ckpt));
    }
    if (ckpt) {
        memcpy(s->previous, ckpt->digest, sizeof s->previous);
    }
    pf_ckpt_free(ckpt);
    return 0;
}

/* May the final name be taken? A link is as much in the way as a file. */
static int look_at_final(struct saver *s)
{
    struct stat st;

    if (lstat(s->final, &st) != 0) {
        return 0; /* if it is more than absent, the rename will tell */
    }
    s->replaces = S_ISDIR(st.st_mode) && ckpt_is_complete(s->final);
    if (!S_ISDIR(st.st_mode) || (s->replaces && !s->save->replace)) {
        return pf_fail(PF_EREFUSED, "'%s' exists already", s->final);
    }
    return 0;
}

/* Rank 0, before anybody writes: everything that can be refused is refused here. */
static int prepare(struct saver *s)
{
    if (s->save->step < 0) {
        return pf_fail(PF_EINVAL, "cannot save the negative step %lld", (long long)s->save->step);
    }
    PF_TRY(pf_mkdirs(s->save->output_dir));
    PF_TRY(look_at_final(s));
    PF_TRY(read_previous(s));
    PF_TRY(print_head(&s->manifest, s->save, s->previous));
    PF_TRY(ckpt_make_staging(s->staging));
    s->staged = true;
    return 0;
}

static int write_my_files(struct saver *s)
{
    const int rank = ckpt_comm_rank(s->comm);

    for (int f = 0; f < s->plan.ckpt->n_files; f++) {
        if (s->plan.file_rank[f] == rank) {
            PF_TRY(write_file(&s->plan, f, s->staging, s->live));
        }
    }
    return 0;
}

/* What a rank tells of its two files, optimizer and weights. */
struct told {
    uint64_t bytes[2];
    char digest[2][40];
};

static int share_files(struct saver *s)
{
    const int size = ckpt_comm_size(s->comm), rank = ckpt_comm_rank(s->comm);
    struct pf_ckpt *ckpt = s->plan.ckpt;
    struct told mine = {.bytes = {0}}, *all;
    int err;

    if (!s->comm) {
        return 0;
    }
    for (int64_t f = 0; f < ckpt->n_files; f++) {
        if (s->plan.file_rank[f] == rank) {
            const int k = pf_str_starts_with(ckpt->files[f].name, "weights");
            mine.bytes[k] = ckpt->files[f].bytes;
            memcpy(mine.digest[k], ckpt->files[f].digest, sizeof ckpt->files[f].digest);
        }
    }
    all = pf_calloc_array((size_t)size, sizeof *all);
    PF_TRY_GOTO(ckpt_agree(s->comm, all ? 0 : PF_ENOMEM), out);
    PF_TRY_GOTO(pf_comm_all_gather(s->comm, &mine, all, sizeof mine), out);
    for (int64_t f = 0; f < ckpt->n_files; f++) {
        const int k = pf_str_starts_with(ckpt->files[f].name, "weights");
        const struct told *from = &all[s->plan.file_rank[f]];
        ckpt->files[f].bytes = from->bytes[k];
        memcpy(ckpt->files[f].digest, from->digest[k], sizeof ckpt->files[f].digest);
    }
out:
    pf_free(all);
    return err;
}

static int write_manifest(struct saver *s)
{
    char *path = pf_path_join(s->staging, CKPT_MANIFEST);
    int err = path ? 0 : PF_ENOMEM;

    err = err ? err : print_rest(&s->manifest, s->plan.ckpt);
    err = err ? err : write_synced(path, s->manifest.text, s->manifest.len);
    err = err ? err : pf_fsync_path(s->staging);
    pf_free(path);
    return err;
}

static int replace_latest(const struct saver *s)
{
    char line[64];
    const int n = snprintf(line, sizeof line, "%s\n", s->name);

    return pf_file_write_atomic(s->latest, line, (size_t)n);
}

/* To its final name. What is whole there trades places with the new one, so that at no instant the
 * name has neither; what is not whole has nothing to lose. */
static int put_in_place(struct saver *s)
{
    if (s->replaces) {
        PF_TRY(pf_rename_exchange(s->staging, s->final));
        s->renamed = true;
        return 0;
    }
    if (pf_path_exists(s->final)) {
        PF_TRY(ckpt_remove(s->removing));
        PF_TRY(pf_rename_durable(s->final, s->removing));
    }
    if (rename(s->staging, s->final) != 0) {
        return pf_fail_errno(PF_EIO, "cannot rename '%s' to '%s'", s->staging, s->final);
    }
    s->renamed = true;
    return 0;
}

/* Rank 0, when every file is on disk. */
static int commit(struct saver *s)
{
    PF_TRY(write_manifest(s));
    PF_TRY(put_in_place(s));
    PF_TRY(pf_fsync_path(s->save->output_dir));
    return replace_latest(s);
}

/* `latest` as it was before. */
static void restore_latest(const struct saver *s)
{
    char *now = NULL;

    if (ckpt_read_latest_name(s->save->output_dir, &now) != 0 || !now ||
        strcmp(now, s->name) != 0) {
        pf_free(now);
        return;
    }
    pf_free(now);
    if (!s->old_latest) {
        (void)unlink(s->latest);
        return;
    }
    char *line = pf_asprintf("%s\n", s->old_latest);
    if (line) {
        (void)pf_file_write_atomic(s->latest, line, strlen(line));
    }
    pf_free(line);
}

/* From the final name back to staging. */
static bool take_back(const struct saver *s)
{
    return s->replaces ? pf_rename_exchange(s->final, s->staging) == 0
                       : rename(s->final, s->staging) == 0;
}

/* Rank 0, after a failure: put back what was, as far as the system lets us; keep the record. */
static void undo(struct saver *s, int err)
{
    char *message = pf_strdup(pf_error_message());
    bool is_new_in_staging = s->staged;

    if (s->renamed) {
        is_new_in_staging = take_back(s);
    }
    if (s->renamed && is_new_in_staging) {
        restore_latest(s);
        (void)pf_fsync_path(s->save->output_dir);
    }
    if (is_new_in_staging && pf_rmtree(s->staging) != 0) {
        pf_log_debug("ckpt", "cannot remove '%s': %s", s->staging, pf_error_message());
    }
    if (message && strcmp(message, pf_error_message()) != 0) {
        (void)pf_fail(err, "%s", message);
    }
    pf_free(message);
}

/* After the commit ------------------------------------------------------------------------------
 */

/* Take a checkpoint away: off its final name first, so that a kill leaves no half one under it. */
static int remove_checkpoint(const char *output_dir, const char *name)
{
    char *path = pf_path_join(output_dir, name);
    char *removing = hidden(output_dir, CKPT_REMOVING_PREFIX, name);
    int err = path && removing ? ckpt_remove(removing) : PF_ENOMEM;

    err = err ? err : pf_rename_durable(path, removing);
    err = err ? err : ckpt_remove(removing);
    pf_free(path);
    pf_free(removing);
    return err;
}

/* Append the complete checkpoints of a later (or earlier) step than the one just written. */
static int append_others(const struct saver *s, const struct pf_str_list *names, bool later,
                         struct pf_str_list *others)
{
    int64_t step;

    for (size_t i = 0; i < names->n; i++) {
        if (!ckpt_parse_step_name(names->items[i], &step) || (step > s->save->step) != later ||
            strcmp(names->items[i], s->name) == 0) {
            continue;
        }
        char *path = pf_path_join(s->save->output_dir, names->items[i]);
        const bool whole = path && ckpt_is_complete(path);
        pf_free(path);
        if (whole) {
            PF_TRY(pf_str_list_append(others, names->items[i]));
        }
    }
    return 0;
}

/* The complete checkpoints but the one just written, oldest first. Those of later steps are of a
 * past that the run has left by going back: they were written before the earlier ones. */
static int list_others(const struct saver *s, struct pf_str_list *others)
{
    struct pf_str_list names = {0};
    int err;

    PF_TRY(ckpt_list_steps(s->save->output_dir, &names));
    err = append_others(s, &names, true, others);
    err = err ? err : append_others(s, &names, false, others);
    pf_str_list_release(&names);
    return err;
}

static int prune(const struct saver *s)
{
    struct pf_str_list others = {0};
    int err = 0;

    PF_TRY(ckpt_remove(s->removing));
    PF_TRY(ckpt_remove(s->staging)); /* what was replaced */
    if (s->save->total_limit <= 0) {
        return 0;
    }
    err = list_others(s, &others);
    const size_t keep = (size_t)s->save->total_limit - 1;
    for (size_t i = 0; !err && i + keep < others.n; i++) {
        err = remove_checkpoint(s->save->output_dir, others.items[i]);
    }
    pf_str_list_release(&others);
    return err;
}

static int run(struct saver *s)
{
    const bool first = ckpt_comm_rank(s->comm) == 0;

    PF_TRY(ckpt_agree(s->comm, name_paths(s)));
    PF_TRY(ckpt_plan_make(s->comm, s->live, s->n_live, &s->plan));
    PF_TRY(ckpt_agree(s->comm, first ? prepare(s) : 0));
    PF_TRY(ckpt_agree(s->comm, write_my_files(s)));
    PF_TRY(share_files(s));
    return ckpt_agree(s->comm, first ? commit(s) : 0);
}

int pf_ckpt_save(struct pf_comm *comm, const struct pf_ckpt_save *save,
                 const struct pf_ckpt_live *live, int64_t n_live, struct pf_ckpt_saved *saved_out)
{
    struct saver s = {.comm = comm, .save = save, .live = live, .n_live = n_live};
    const double start = pf_time_monotonic();

    pf_str_init(&s.manifest);
    const int err = run(&s);
    if (err != 0) {
        undo(&s, err);
    } else if (ckpt_comm_rank(comm) == 0 && prune(&s) != 0) {
        pf_log_warn("ckpt", "old checkpoints stay: %s", pf_error_message());
        pf_error_clear();
    }
    if (err == 0 && saved_out) {
        *saved_out = (struct pf_ckpt_saved){.bytes = 0};
        for (int64_t f = 0; f < s.plan.ckpt->n_files; f++) {
            saved_out->bytes += s.plan.ckpt->files[f].bytes;
        }
        saved_out->seconds = pf_time_monotonic() - start;
    }
    ckpt_plan_release(&s.plan);
    pf_str_release(&s.manifest);
    pf_free(s.staging);
    pf_free(s.final);
    pf_free(s.removing);
    pf_free(s.latest);
    pf_free(s.old_latest);
    return err;
}
