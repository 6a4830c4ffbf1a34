/* SPDX-License-Identifier: Apache-2.0 */
/* Where a change of layout is made: the staging directory, its journals, and the step out of it. */
#include "reshard_internal.h"

#include <pf/digest.h>
#include <pf/file.h>
#include <pf/json.h>
#include <pf/log.h>
#include <pf/mem.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define JOURNAL_PREFIX "journal-"
#define JOURNAL_FORMAT "pf-reshard-journal"
#define JOURNAL_MAX_BYTES ((size_t)1 << 30)

/* The source's files ------------------------------------------------------------------------------
 */

static int stamp(const char *path, struct reshard_stamp *stamp_out)
{
    struct stat st;

    if (stat(path, &st) != 0) {
        return pf_fail_errno(PF_EIO, "cannot open '%s'", path);
    }
    *stamp_out = (struct reshard_stamp){
        .bytes = (uint64_t)st.st_size,
        .inode = (uint64_t)st.st_ino,
        .mtime_s = st.st_mtim.tv_sec,
        .mtime_ns = st.st_mtim.tv_nsec,
        .ctime_s = st.st_ctim.tv_sec,
        .ctime_ns = st.st_ctim.tv_nsec,
    };
    return 0;
}

int reshard_stamp_all(const struct pf_ckpt *src, struct reshard_stamp **stamps_out)
{
    struct reshard_stamp *stamps = pf_calloc_array((size_t)src->n_files, sizeof *stamps);
    int err = stamps ? 0 : PF_ENOMEM;

    for (int64_t f = 0; !err && f < src->n_files; f++) {
        char *path = ckpt_file_path(src, (int)f);
        err = path ? stamp(path, &stamps[f]) : PF_ENOMEM;
        pf_free(path);
    }
    if (err) {
        pf_free(stamps);
        return err;
    }
    *stamps_out = stamps;
    return 0;
}

int reshard_stamp_check(const struct pf_ckpt *src, const struct reshard_stamp *stamps)
{
    int err = 0;

    for (int64_t f = 0; !err && f < src->n_files; f++) {
        char *path = ckpt_file_path(src, (int)f);
        struct reshard_stamp now = {.bytes = 0};
        if (!path) {
            return PF_ENOMEM;
        }
        if (stamp(path, &now) != 0 || memcmp(&now, &stamps[f], sizeof now) != 0) {
            err = pf_fail(PF_EFORMAT, "'%s' was changed while it was read", path);
        }
        pf_free(path);
    }
    return err;
}

/* Whose staging directory it is ------------------------------------------------------------------
 */

static void add_i64(struct pf_digest_state *state, int64_t value)
{
    pf_digest_update(state, &value, sizeof value);
}

static void add_text(struct pf_digest_state *state, const char *text)
{
    pf_digest_update(state, text, strlen(text) + 1);
}

static void add_source(struct pf_digest_state *state, const struct pf_ckpt *src,
                       const struct reshard_stamp *stamps)
{
    add_text(state, src->digest);
    add_i64(state, src->step);
    for (int64_t f = 0; f < src->n_files; f++) {
        add_text(state, src->files[f].name);
        add_i64(state, (int64_t)stamps[f].bytes);
        add_i64(state, stamps[f].mtime_s);
        add_i64(state, stamps[f].mtime_ns);
    }
}

static void add_target(struct pf_digest_state *state, const struct pf_ckpt *ckpt)
{
    for (int64_t t = 0; t < ckpt->n_tensors; t++) {
        const struct pf_ckpt_tensor *tensor = &ckpt->tensors[t];
        add_text(state, tensor->name);
        add_i64(state, tensor->role);
        add_i64(state, tensor->dtype);
        for (int64_t p = 0; p < tensor->n_pieces; p++) {
            const struct pf_ckpt_piece *piece = &tensor->pieces[p];
            for (int d = 0; d < piece->box.n_dims; d++) {
                add_i64(state, piece->box.lo[d]);
                add_i64(state, piece->box.hi[d]);
            }
            add_i64(state, piece->range_lo);
            add_i64(state, piece->range_hi);
            add_i64(state, (int64_t)piece->codec);
            add_text(state, ckpt->files[piece->file].name);
        }
    }
}

static int digest_plan(struct reshard_staging *s, const struct pf_ckpt *src,
                       const struct reshard_stamp *stamps, const struct ckpt_plan *plan)
{
    struct pf_digest_state *state;

    PF_TRY(pf_digest_new(&state));
    add_source(state, src, stamps);
    add_target(state, plan->ckpt);
    const struct pf_digest digest = pf_digest_result(state);
    pf_digest_hex(&digest, s->plan_digest);
    pf_digest_free(state);
    return 0;
}

int reshard_staging_init(struct reshard_staging *s, const struct pf_ckpt *src,
                         const struct reshard_stamp *stamps, const struct ckpt_plan *plan,
                         const struct pf_reshard *job)
{
    size_t n = strlen(job->dst);

    *s = (struct reshard_staging){.lock_fd = -1, .journal_fd = -1};
    while (n > 1 && job->dst[n - 1] == '/') {
        n--;
    }
    s->dst = pf_strndup(job->dst, n);
    s->parent = s->dst ? pf_path_dir(s->dst) : NULL;
    if (!s->parent) {
        return PF_ENOMEM;
    }
    const char *const name = pf_path_base(s->dst);
    if (*name == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
        return pf_fail(PF_EUSAGE, "'%s' is no name for a new directory", job->dst);
    }
    char *const hidden = pf_asprintf("%s%s", CKPT_STAGING_PREFIX, name);
    s->path = hidden ? pf_path_join(s->parent, hidden) : NULL;
    pf_free(hidden);
    return s->path ? digest_plan(s, src, stamps, plan) : PF_ENOMEM;
}

void reshard_staging_release(struct reshard_staging *s)
{
    (void)pf_close(s->lock_fd, NULL);
    (void)pf_close(s->journal_fd, NULL);
    pf_free(s->dst);
    pf_free(s->parent);
    pf_free(s->path);
    pf_free(s->journal_path);
}

/* The directory -----------------------------------------------------------------------------------
 */

static int check_dst(const struct reshard_staging *s)
{
    struct pf_str_list names = {0};
    struct stat st;

    if (lstat(s->dst, &st) != 0) {
        return errno == ENOENT ? 0 : pf_fail_errno(PF_EIO, "cannot open '%s'", s->dst);
    }
    if (!S_ISDIR(st.st_mode)) {
        return pf_fail(PF_EREFUSED, "'%s' exists and is no directory", s->dst);
    }
    PF_TRY(pf_dir_list(s->dst, &names));
    const bool empty = names.n == 0;
    pf_str_list_release(&names);
    return empty ? 0 : pf_fail(PF_EREFUSED, "'%s' exists and is not empty", s->dst);
}

static bool is_journal(const char *name)
{
    return pf_str_starts_with(name, JOURNAL_PREFIX);
}

static int list_journals(const struct reshard_staging *s, struct pf_str_list *paths)
{
    struct pf_str_list names = {0};
    int err = 0;

    PF_TRY(pf_dir_list(s->path, &names));
    for (size_t i = 0; !err && i < names.n; i++) {
        if (is_journal(names.items[i])) {
            char *const path = pf_path_join(s->path, names.items[i]);
            err = path ? pf_str_list_append(paths, path) : PF_ENOMEM;
            pf_free(path);
        }
    }
    pf_str_list_release(&names);
    return err;
}

int reshard_staging_prepare(struct reshard_staging *s, bool resume)
{
    PF_TRY(check_dst(s));
    PF_TRY(pf_mkdirs(s->parent));
    if (mkdir(s->path, 0777) == 0) {
        const int err = pf_dir_lock(s->path, 0, &s->lock_fd);
        s->made = err == 0;
        if (err != 0) {
            (void)rmdir(s->path);
        }
        return err;
    }
    if (errno != EEXIST || !pf_path_is_dir(s->path)) {
        return pf_fail_errno(PF_EIO, "cannot make the directory '%s'", s->path);
    }
    if (!resume) {
        return pf_fail(PF_EREFUSED,
                       "'%s' is left from an earlier run: give --resume to complete it, or remove "
                       "it",
                       s->path);
    }
    return pf_dir_lock(s->path, 0, &s->lock_fd);
}

/* Journals ----------------------------------------------------------------------------------------
 */

static int compare_file_name(const void *name, const void *file)
{
    return strcmp(name, ((const struct pf_ckpt_file *)file)->name);
}

/* A plan names its files in byte order. */
static int64_t find_file(const struct pf_ckpt *ckpt, const char *name)
{
    const struct pf_ckpt_file *const found = ckpt->n_files > 0
                                                 ? bsearch(name, ckpt->files, (size_t)ckpt->n_files,
                                                           sizeof *ckpt->files, compare_file_name)
                                                 : NULL;

    return found ? found - ckpt->files : -1;
}

/* The first line says for which plan the others are. */
static int read_first(const struct reshard_staging *s, const struct pf_json *doc, const char *path)
{
    const char *format, *plan;

    PF_TRY(pf_json_need_string(doc, "format", &format));
    PF_TRY(pf_json_need_string(doc, "plan", &plan));
    if (strcmp(format, JOURNAL_FORMAT) != 0) {
        return pf_json_fail(doc, "is no journal of pf-reshard");
    }
    if (strcmp(plan, s->plan_digest) != 0) {
        return pf_fail(PF_EREFUSED,
                       "'%s' belongs to another job, or the source was changed since: remove '%s'",
                       path, s->path);
    }
    return 0;
}

/* {"file":NAME,"bytes":N,"xxh3_128":HEX}, a whole file, or with "begun" in the place of "bytes". */
static int read_file_line(const struct pf_json *doc, struct pf_ckpt *ckpt,
                          struct ckpt_prefix *prefixes)
{
    const struct pf_json *const begun = pf_json_get(doc, "begun");
    const struct pf_json *bytes;
    const char *name, *hex;
    struct pf_digest digest;

    PF_TRY(pf_json_need_string(doc, "file", &name));
    PF_TRY(pf_json_need_string(doc, "xxh3_128", &hex));
    PF_TRY(begun ? 0 : pf_json_need(doc, "bytes", &bytes));
    const int64_t f = find_file(ckpt, name);
    if (f < 0 || pf_digest_parse(hex, &digest) != 0) {
        return pf_json_fail(doc, "names no file of this job with its digest");
    }
    PF_TRY(
        pf_json_as_u64(begun ? begun : bytes, begun ? &prefixes[f].bytes : &ckpt->files[f].bytes));
    pf_digest_hex(&digest, begun ? prefixes[f].digest : ckpt->files[f].digest);
    return 0;
}

/* Lines that are whole; a kill may have cut the last one. */
static int read_lines(const struct reshard_staging *s, const char *path, char *text,
                      struct pf_ckpt *ckpt, struct ckpt_prefix *prefixes)
{
    const struct pf_json_options options = {.name = path, .error_code = PF_EFORMAT};
    bool first = true;
    char *end;

    for (char *line = text; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        struct pf_json *doc;
        PF_TRY(pf_json_parse_text_with(line, (size_t)(end - line), &options, &doc));
        const int err = first ? read_first(s, doc, path) : read_file_line(doc, ckpt, prefixes);
        pf_json_free(doc);
        PF_TRY(err);
        first = false;
    }
    return 0;
}

int reshard_journal_read(const struct reshard_staging *s, struct ckpt_plan *plan,
                         struct ckpt_prefix *prefixes)
{
    struct pf_str_list paths = {0};
    int err = list_journals(s, &paths);

    for (size_t i = 0; !err && i < paths.n; i++) {
        char *text = NULL;
        size_t len;
        err = pf_file_read_all(paths.items[i], JOURNAL_MAX_BYTES, &text, &len);
        err = err ? err : read_lines(s, paths.items[i], text, plan->ckpt, prefixes);
        pf_free(text);
    }
    pf_str_list_release(&paths);
    return err;
}

int reshard_remove_unfinished(const struct reshard_staging *s, const struct ckpt_plan *plan,
                              const struct ckpt_prefix *prefixes, int64_t first, int64_t end)
{
    for (int64_t f = first; f < end; f++) {
        if (plan->ckpt->files[f].digest[0] != '\0' || prefixes[f].bytes > 0) {
            continue;
        }
        char *const path = pf_path_join(s->path, plan->ckpt->files[f].name);
        if (!path) {
            return PF_ENOMEM;
        }
        const bool gone = unlink(path) == 0 || errno == ENOENT;
        const int err = gone ? 0 : pf_fail_errno(PF_EIO, "cannot remove '%s'", path);
        pf_free(path);
        PF_TRY(err);
    }
    return 0;
}

static int add_line(const struct reshard_staging *s, struct pf_str *text)
{
    pf_str_append_char(text, '\n');
    PF_TRY(pf_str_error(text));
    PF_TRY(pf_write_full(s->journal_fd, text->text, text->len, s->journal_path));
    return pf_fsync(s->journal_fd, s->journal_path);
}

/* The journal of a run before is left as it is: a new one, beside it, takes its turn. */
int reshard_journal_open(struct reshard_staging *s, int rank)
{
    struct pf_json_out out;
    struct pf_str text;
    int err;

    for (int n = 0; s->journal_fd < 0; n++) {
        pf_free(s->journal_path);
        s->journal_path = pf_asprintf("%s/" JOURNAL_PREFIX "%05d-%d", s->path, rank, n);
        PF_TRY(s->journal_path ? 0 : PF_ENOMEM);
        if (!pf_path_exists(s->journal_path)) {
            PF_TRY(pf_open(s->journal_path, O_WRONLY | O_CREAT | O_EXCL, &s->journal_fd));
        }
    }
    pf_str_init(&text);
    pf_json_out_init(&out, &text, 0);
    pf_json_out_object_begin(&out);
    pf_json_out_member_string(&out, "format", JOURNAL_FORMAT);
    pf_json_out_member_string(&out, "plan", s->plan_digest);
    pf_json_out_object_end(&out);
    err = pf_json_out_finish(&out);
    err = err ? err : add_line(s, &text);
    err = err ? err : pf_fsync_path(s->path);
    pf_str_release(&text);
    return err;
}

static int add_file(struct reshard_staging *s, const char *name, const char *key, uint64_t bytes,
                    const char *digest)
{
    struct pf_json_out out;
    struct pf_str text;
    int err;

    pf_str_init(&text);
    pf_json_out_init(&out, &text, 0);
    pf_json_out_object_begin(&out);
    pf_json_out_member_string(&out, "file", name);
    pf_json_out_key(&out, key);
    pf_json_out_u64(&out, bytes);
    pf_json_out_member_string(&out, "xxh3_128", digest);
    pf_json_out_object_end(&out);
    err = pf_json_out_finish(&out);
    err = err ? err : add_line(s, &text);
    pf_str_release(&text);
    return err;
}

int reshard_journal_add(struct reshard_staging *s, const struct pf_ckpt_file *file)
{
    return add_file(s, file->name, "bytes", file->bytes, file->digest);
}

int reshard_journal_add_begun(struct reshard_staging *s, const char *name,
                              const struct ckpt_prefix *prefix)
{
    return add_file(s, name, "begun", prefix->bytes, prefix->digest);
}

int reshard_journal_close(struct reshard_staging *s)
{
    const int fd = s->journal_fd;

    s->journal_fd = -1;
    return pf_close(fd, s->journal_path);
}

/* The end -----------------------------------------------------------------------------------------
 */

static int remove_journals(const struct reshard_staging *s)
{
    struct pf_str_list paths = {0};
    int err = list_journals(s, &paths);

    for (size_t i = 0; !err && i < paths.n; i++) {
        if (unlink(paths.items[i]) != 0) {
            err = pf_fail_errno(PF_EIO, "cannot remove '%s'", paths.items[i]);
        }
    }
    pf_str_list_release(&paths);
    return err;
}

/* What a run that was killed between its manifest and its last step left. */
static int remove_manifest(const struct reshard_staging *s)
{
    char *const path = pf_path_join(s->path, CKPT_MANIFEST);
    int err = path ? 0 : PF_ENOMEM;

    if (!err && unlink(path) != 0 && errno != ENOENT) {
        err = pf_fail_errno(PF_EIO, "cannot remove '%s'", path);
    }
    pf_free(path);
    return err;
}

int reshard_commit(struct reshard_staging *s, const struct pf_ckpt_save *save,
                   const struct ckpt_plan *plan)
{
    struct pf_str head;

    pf_str_init(&head);
    int err = remove_manifest(s);
    err = err ? err : ckpt_manifest_head(&head, save, "");
    err = err ? err : ckpt_manifest_write(&head, plan->ckpt, s->path);
    pf_str_release(&head);
    PF_TRY(err);
    PF_TRY(remove_journals(s));
    PF_TRY(pf_fsync_path(s->path));
    if (rename(s->path, s->dst) != 0) {
        return pf_fail_errno(PF_EIO, "cannot rename '%s' to '%s'", s->path, s->dst);
    }
    s->made = false;
    return pf_fsync_path(s->parent);
}

/* Is anything in the journals? */
static bool has_finished(const struct reshard_staging *s, struct ckpt_plan *plan,
                         struct ckpt_prefix *prefixes)
{
    if (reshard_journal_read(s, plan, prefixes) != 0) {
        return false;
    }
    for (int64_t f = 0; f < plan->ckpt->n_files; f++) {
        if (plan->ckpt->files[f].digest[0] != '\0' || prefixes[f].bytes > 0) {
            return true;
        }
    }
    return false;
}

void reshard_abandon(struct reshard_staging *s, struct ckpt_plan *plan,
                     struct ckpt_prefix *prefixes, int err)
{
    char *const message = pf_strdup(pf_error_message());

    if (s->lock_fd >= 0 && err == PF_EIO && has_finished(s, plan, prefixes)) {
        pf_log_info(NULL, "what is finished stays in '%s': --resume goes on from there", s->path);
    } else if (s->lock_fd >= 0 && s->made && pf_rmtree(s->path) != 0) {
        pf_log_debug("ckpt", "cannot remove '%s': %s", s->path, pf_error_message());
    }
    if (message && strcmp(message, pf_error_message()) != 0) {
        (void)pf_fail(err, "%s", message);
    }
    pf_free(message);
}
