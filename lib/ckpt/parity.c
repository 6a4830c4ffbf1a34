/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parity of a checkpoint's files: a file whose byte i is the exclusive or of the bytes i of all of
 * them, those that are shorter counting as zeros from their ends on. Any one file is then the exclusive or
 * of the others and the parity. Source: pf-checkpoint(5).
 */
#include "plan_internal.h"

#include <pf/digest.h>
#include <pf/file.h>
#include <pf/log.h>
#include <pf/mem.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PART_BYTES ((uint64_t)4 << 20)
#define ASIDE_PREFIX ".restoring-"
#define ENTRY_NAME "parity"

/* Exclusive or ------------------------------------------------------------------------------------
 */

/* A file to take part: its bytes from `offset` on, `bytes` of them. */
struct member {
    char *path;
    uint64_t offset, bytes;
};

struct mixer {
    struct member *members;
    size_t n;
    uint8_t *mixed, *part; /* PART_BYTES each */
};

static void mixer_release(struct mixer *m)
{
    for (size_t i = 0; i < m->n; i++) {
        pf_free(m->members[i].path);
    }
    pf_free(m->members);
    pf_free(m->mixed);
    pf_free(m->part);
}

/* All files of ckpt but one (-1: all), in dir. Release also after a failure. */
static int mixer_init(struct mixer *m, const struct pf_ckpt *ckpt, const char *dir, int64_t but)
{
    *m = (struct mixer){.members = pf_calloc_array((size_t)ckpt->n_files + 1, sizeof *m->members)};
    m->mixed = pf_alloc((size_t)PART_BYTES);
    m->part = pf_alloc((size_t)PART_BYTES);
    if (!m->members || !m->mixed || !m->part) {
        return PF_ENOMEM;
    }
    for (int64_t f = 0; f < ckpt->n_files; f++) {
        if (f != but) {
            struct member *const one = &m->members[m->n++];
            one->path = pf_path_join(dir, ckpt->files[f].name);
            one->bytes = ckpt->files[f].bytes;
            PF_TRY(one->path ? 0 : PF_ENOMEM);
        }
    }
    return 0;
}

static int mix_in(struct mixer *m, const struct member *one, uint64_t lo, uint64_t n)
{
    const uint64_t left = one->bytes > lo ? one->bytes - lo : 0;
    const size_t take = (size_t)(left < n ? left : n);
    int fd;

    if (take == 0) {
        return 0;
    }
    PF_TRY(pf_open(one->path, O_RDONLY, &fd));
    const int err = pf_pread_full(fd, m->part, take, one->offset + lo, one->path);
    (void)pf_close(fd, NULL);
    for (size_t i = 0; !err && i < take; i++) {
        m->mixed[i] ^= m->part[i];
    }
    return err;
}

/* Bytes lo..lo+n into m->mixed, n <= PART_BYTES. */
static int mix(struct mixer *m, uint64_t lo, uint64_t n)
{
    int err = 0;

    memset(m->mixed, 0, (size_t)n);
    for (size_t i = 0; !err && i < m->n; i++) {
        err = mix_in(m, &m->members[i], lo, n);
    }
    return err;
}

/* Writing -----------------------------------------------------------------------------------------
 */

static uint64_t longest(const struct pf_ckpt *ckpt)
{
    uint64_t most = 0;

    for (int64_t f = 0; f < ckpt->n_files; f++) {
        most = ckpt->files[f].bytes > most ? ckpt->files[f].bytes : most;
    }
    return most;
}

/* The head of a parity file of so many bytes; freed with pf_free. */
static int make_head(uint64_t bytes, uint8_t **head_out, size_t *n_out)
{
    struct pf_st_writer *st = NULL;
    int err;

    PF_TRY(pf_st_writer_new(&st));
    err = pf_st_writer_add_metadata(st, "format", "pt");
    err = err ? err : pf_st_writer_add_tensor(st, ENTRY_NAME, PF_DTYPE_U8, 1, &bytes, NULL);
    err = err ? err : pf_st_writer_head(st, head_out, n_out);
    pf_st_writer_free(st);
    return err;
}

/* Rank 0: the file, with its head alone. */
static int begin_file(const char *path, const uint8_t *head, size_t n_head)
{
    int fd;

    PF_TRY(pf_open(path, O_WRONLY | O_CREAT | O_EXCL, &fd));
    int err = pf_pwrite_full(fd, head, n_head, 0, path);
    const int close_err = pf_close(fd, path);
    return err ? err : close_err;
}

/* This rank's share of the parts: every size-th. */
static int write_share(struct mixer *m, const char *path, size_t n_head, uint64_t bytes, int rank,
                       int size)
{
    int fd, err = 0;

    PF_TRY(pf_open(path, O_WRONLY, &fd));
    for (uint64_t lo = (uint64_t)rank * PART_BYTES; !err && lo < bytes;
         lo += (uint64_t)size * PART_BYTES) {
        const uint64_t n = bytes - lo < PART_BYTES ? bytes - lo : PART_BYTES;
        err = mix(m, lo, n);
        err = err ? err : pf_pwrite_full(fd, m->mixed, (size_t)n, n_head + lo, path);
    }
    err = err ? err : pf_fsync(fd, path);
    const int close_err = pf_close(fd, err ? NULL : path);
    return err ? err : close_err;
}

static int finish_file(struct pf_ckpt *ckpt, const char *path, uint64_t bytes)
{
    struct pf_digest digest;

    PF_TRY(pf_digest_file(path, &digest));
    ckpt->parity = (struct pf_ckpt_file){.name = pf_strdup(CKPT_PARITY), .bytes = bytes};
    pf_digest_hex(&digest, ckpt->parity.digest);
    return ckpt->parity.name ? 0 : PF_ENOMEM;
}

int ckpt_parity_write(struct pf_comm *comm, struct pf_ckpt *ckpt, const char *dir)
{
    const int rank = ckpt_comm_rank(comm), size = ckpt_comm_size(comm);
    const uint64_t bytes = longest(ckpt);
    char *const path = pf_path_join(dir, CKPT_PARITY);
    struct mixer m;
    uint8_t *head = NULL;
    size_t n_head = 0;
    int err = mixer_init(&m, ckpt, dir, -1);

    err = err || path ? err : PF_ENOMEM;
    err = err ? err : make_head(bytes, &head, &n_head);
    PF_TRY_GOTO(ckpt_agree(comm, err), out);
    PF_TRY_GOTO(ckpt_agree(comm, rank == 0 ? begin_file(path, head, n_head) : 0), out);
    PF_TRY_GOTO(ckpt_agree(comm, write_share(&m, path, n_head, bytes, rank, size)), out);
    err = ckpt_agree(comm, rank == 0 ? finish_file(ckpt, path, n_head + bytes) : 0);
out:
    mixer_release(&m);
    pf_free(path);
    pf_free(head);
    return err;
}

/* Restoring ---------------------------------------------------------------------------------------
 */

/* Is a file there, with its length and its bytes? An error only where that cannot be told. */
static int look_at(const struct pf_ckpt *ckpt, const struct pf_ckpt_file *file, bool *good_out)
{
    char *const path = pf_path_join(ckpt->dir, file->name);
    char hex[PF_DIGEST_HEX_BYTES];
    struct pf_digest digest;
    uint64_t bytes = 0;
    int err = path ? 0 : PF_ENOMEM;

    *good_out = false;
    if (!err && pf_path_is_file(path)) {
        err = pf_file_size(path, &bytes);
        err = err || bytes != file->bytes ? err : pf_digest_file(path, &digest);
        *good_out =
            !err && bytes == file->bytes && strcmp(pf_digest_hex(&digest, hex), file->digest) == 0;
    }
    pf_free(path);
    return err;
}

/* Which files are damaged: how many, and the last of them; n_files stands for the parity. */
static int find_damaged(const struct pf_ckpt *ckpt, int64_t *n_out, int64_t *which_out)
{
    bool good;

    *n_out = 0;
    for (int64_t f = 0; f <= ckpt->n_files; f++) {
        PF_TRY(look_at(ckpt, f < ckpt->n_files ? &ckpt->files[f] : &ckpt->parity, &good));
        if (!good) {
            pf_log_info("ckpt", "'%s/%s' is damaged or missing", ckpt->dir,
                        f < ckpt->n_files ? ckpt->files[f].name : ckpt->parity.name);
            *which_out = f;
            ++*n_out;
        }
    }
    return 0;
}

/* The parity as one more member; its digest is right, so it is what a save wrote. */
static int add_parity(struct mixer *m, const struct pf_ckpt *ckpt)
{
    struct member *const one = &m->members[m->n];
    struct pf_st *st = NULL;
    char *const path = pf_path_join(ckpt->dir, ckpt->parity.name);

    int err = path ? pf_st_open(path, &st) : PF_ENOMEM;
    const struct pf_st_tensor *const t = err ? NULL : pf_st_find(st, ENTRY_NAME);
    if (!err && (!t || t->dtype != PF_DTYPE_U8 || t->end - t->begin != longest(ckpt))) {
        err = pf_fail(PF_EFORMAT, "'%s' is no parity of the files beside it", path);
    }
    if (err) {
        pf_st_close(st);
        pf_free(path);
        return err;
    }
    *one = (struct member){path, pf_st_data_offset(st) + t->begin, t->end - t->begin};
    m->n++;
    pf_st_close(st);
    return 0;
}

/* The file's bytes into fd; PF_EFORMAT where they have not its digest. */
static int restore_into(struct mixer *m, const struct pf_ckpt_file *file, const uint8_t *head,
                        size_t n_head, int fd, const char *path)
{
    const uint64_t bytes = file->bytes - n_head;
    struct pf_digest_state *state = NULL;
    char hex[PF_DIGEST_HEX_BYTES];
    int err = pf_digest_new(&state);

    err = err ? err : pf_pwrite_full(fd, head, n_head, 0, path);
    if (!err) {
        pf_digest_update(state, head, n_head);
    }
    for (uint64_t lo = 0; !err && lo < bytes; lo += PART_BYTES) {
        const uint64_t n = bytes - lo < PART_BYTES ? bytes - lo : PART_BYTES;
        err = mix(m, lo, n);
        err = err ? err : pf_pwrite_full(fd, m->mixed, (size_t)n, n_head + lo, path);
        if (!err) {
            pf_digest_update(state, m->mixed, (size_t)n);
        }
    }
    if (!err) {
        const struct pf_digest digest = pf_digest_result(state);
        err =
            strcmp(pf_digest_hex(&digest, hex), file->digest) == 0
                ? pf_fsync(fd, path)
                : pf_fail(PF_EFORMAT, "'%s' cannot be restored: what comes out has another digest",
                          file->name);
    }
    pf_digest_free(state);
    return err;
}

/* Made aside, then put in its place. */
static int put_back(struct mixer *m, const struct pf_ckpt *ckpt, const struct pf_ckpt_file *file,
                    const uint8_t *head, size_t n_head)
{
    char *const aside = pf_asprintf("%s/" ASIDE_PREFIX "%s", ckpt->dir, file->name);
    char *const path = pf_path_join(ckpt->dir, file->name);
    int fd = -1, err;

    if (!aside || !path) {
        pf_free(aside);
        pf_free(path);
        return PF_ENOMEM;
    }
    err = pf_open(aside, O_WRONLY | O_CREAT | O_TRUNC, &fd);
    err = err ? err : restore_into(m, file, head, n_head, fd, aside);
    const int close_err = pf_close(fd, err ? NULL : aside);
    err = err ? err : close_err;
    err = err ? err : pf_rename_durable(aside, path);
    if (err) {
        (void)unlink(aside);
    }
    pf_free(aside);
    pf_free(path);
    return err;
}

static int restore(const struct pf_ckpt *ckpt, int64_t which)
{
    const bool is_parity = which == ckpt->n_files;
    const struct pf_ckpt_file *const file = is_parity ? &ckpt->parity : &ckpt->files[which];
    uint8_t *head = NULL;
    size_t n_head = 0;
    struct mixer m;
    int err = mixer_init(&m, ckpt, ckpt->dir, is_parity ? -1 : which);

    if (!err) {
        err = is_parity ? make_head(longest(ckpt), &head, &n_head) : add_parity(&m, ckpt);
    }
    if (!err && file->bytes < n_head) {
        err = pf_fail(PF_EFORMAT, "'%s' cannot be restored: it is too short", file->name);
    }
    err = err ? err : put_back(&m, ckpt, file, head, n_head);
    mixer_release(&m);
    pf_free(head);
    return err;
}

static int repair(const struct pf_ckpt *ckpt, char **restored_out)
{
    int64_t n = 0, which = 0;

    if (!ckpt->parity.name) {
        return pf_fail(PF_EINCOMPLETE, "'%s' has no parity file to repair it from", ckpt->dir);
    }
    PF_TRY(find_damaged(ckpt, &n, &which));
    *restored_out = NULL;
    if (n == 0) {
        return 0;
    }
    if (n > 1) {
        return pf_fail(PF_EFORMAT, "%lld files of '%s' are damaged or missing; parity restores one",
                       (long long)n, ckpt->dir);
    }
    PF_TRY(restore(ckpt, which));
    *restored_out = pf_strdup(which < ckpt->n_files ? ckpt->files[which].name : ckpt->parity.name);
    return *restored_out ? 0 : PF_ENOMEM;
}

int pf_ckpt_repair(const char *dir, char **restored_out)
{
    struct pf_ckpt *ckpt = NULL;
    enum ckpt_layout layout;

    PF_TRY(ckpt_detect(dir, &layout));
    if (layout != CKPT_LAYOUT_PF) {
        return pf_fail(PF_EUSAGE, "'%s' is not the directory of one pf checkpoint", dir);
    }
    PF_TRY(ckpt_read_manifest_alone(dir, &ckpt));
    const int err = repair(ckpt, restored_out);
    pf_ckpt_free(ckpt);
    return err;
}
