/* SPDX-License-Identifier: Apache-2.0 */
/* A file of a job, from its beginning, or from where an earlier run came, to its end. */
#include "job_internal.h"

#include <pf/file.h>
#include <pf/log.h>
#include <pf/mem.h>

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define HASH_BYTES ((size_t)256 << 10)

void ckpt_output_free(struct ckpt_output *o)
{
    if (o) {
        (void)pf_close(o->fd, NULL);
        ckpt_image_release(&o->image);
        pf_digest_free(o->digest);
        pf_free(o->path);
        pf_free(o);
    }
}

int ckpt_output_hash(const struct ckpt_output *o, uint64_t n_bytes)
{
    uint8_t *const buffer = pf_alloc(HASH_BYTES);
    int fd = -1, err = buffer ? 0 : PF_ENOMEM;

    err = err ? err : pf_open(o->path, O_RDONLY, &fd);
    for (uint64_t at = 0; !err && at < n_bytes; at += HASH_BYTES) {
        const uint64_t left = n_bytes - at;
        const size_t n = left < HASH_BYTES ? (size_t)left : HASH_BYTES;
        err = pf_pread_full(fd, buffer, n, at, o->path);
        if (!err) {
            pf_digest_update(o->digest, buffer, n);
        }
    }
    (void)pf_close(fd, NULL);
    pf_free(buffer);
    return err;
}

/* Hash the beginning of a file; PF_EFORMAT if it is not what it was. */
static int hash_prefix(const struct ckpt_output *o, const struct ckpt_prefix *prefix)
{
    char hex[PF_DIGEST_HEX_BYTES];
    int err = ckpt_output_hash(o, prefix->bytes);

    const struct pf_digest digest = pf_digest_result(o->digest);
    if (!err && strcmp(pf_digest_hex(&digest, hex), prefix->digest) != 0) {
        err = pf_fail(PF_EFORMAT, "'%s' was changed: its first %llu bytes have another digest",
                      o->path, (unsigned long long)prefix->bytes);
    }
    return err;
}

/* Go on with a file that an earlier run began. Where that cannot be, it is removed, to be made new. */
static int output_continue(struct ckpt_output *o, const struct ckpt_prefix *prefix)
{
    int err = hash_prefix(o, prefix);

    err = err ? err : ckpt_direct_open(o->path, O_WRONLY, &o->direct, &o->fd);
    if (!err && ftruncate(o->fd, (off_t)prefix->bytes) != 0) {
        err = pf_fail_errno(PF_EIO, "cannot cut '%s' off", o->path);
    }
    if (!err) {
        o->taken = o->hashed = o->written = prefix->bytes;
        return 0;
    }
    if (err == PF_ENOMEM) {
        return err;
    }
    pf_log_warn("ckpt", "%s: it is made again", pf_error_message());
    pf_error_clear();
    pf_digest_reset(o->digest);
    (void)pf_close(o->fd, NULL);
    o->fd = -1;
    return unlink(o->path) == 0 || errno == ENOENT
               ? 0
               : pf_fail_errno(PF_EIO, "cannot remove '%s'", o->path);
}

static int output_begin(const struct ckpt_job *job, struct ckpt_output *o)
{
    const struct ckpt_prefix *const prefixes = job->prefixes;
    const char *const name = job->plan->ckpt->files[o->file].name;

    o->path = pf_path_join(job->dir, name);
    PF_TRY(o->path ? 0 : PF_ENOMEM);
    PF_TRY(pf_digest_new(&o->digest));
    if (prefixes && !o->image.coded && prefixes[o->file].bytes > 0 &&
        prefixes[o->file].bytes < o->image.bytes) {
        PF_TRY(output_continue(o, &prefixes[o->file]));
    }
    if (o->fd < 0) {
        PF_TRY(ckpt_direct_open(o->path, O_WRONLY | O_CREAT | O_EXCL, &o->direct, &o->fd));
    }
    o->next_mark = o->image.coded ? UINT64_MAX : o->taken + CKPT_PREFIX_BYTES;
    o->end = o->image.head_bytes;
    return 0;
}

int ckpt_output_open(struct ckpt_job *job, const struct ckpt_part *parts, size_t n, bool direct,
                     struct ckpt_output **output_out)
{
    struct pf_ckpt *target = job->plan->ckpt;
    struct ckpt_output *o = pf_alloc(sizeof *o);
    int err;

    if (!o) {
        return PF_ENOMEM;
    }
    *o = (struct ckpt_output){.file = ckpt_part_file(target, parts), .fd = -1};
    PF_TRY_GOTO(ckpt_image_make(target, o->file, parts, n, &o->image), out);
    o->direct = direct && !o->image.coded;
    job->counts.n_files++;
    job->counts.n_pieces += (int64_t)n;
    if (!job->dry) {
        PF_TRY_GOTO(output_begin(job, o), out);
    }
    job->counts.bytes_kept += o->taken;
    *output_out = o;
    return 0;
out:
    ckpt_output_free(o);
    return err;
}

int ckpt_output_finish(struct ckpt_job *job, struct ckpt_output *o)
{
    struct pf_ckpt_file *file = &job->plan->ckpt->files[o->file];

    if (job->dry) {
        return 0;
    }
    if (o->direct && ftruncate(o->fd, (off_t)o->image.bytes) != 0) {
        return pf_fail_errno(PF_EIO, "cannot make '%s' %llu bytes long", o->path,
                             (unsigned long long)o->image.bytes);
    }
    PF_TRY(o->image.coded ? ckpt_coded_finish(o, job->plan->ckpt) : 0);
    PF_TRY(pf_fsync(o->fd, o->path));
    const int fd = o->fd;
    o->fd = -1;
    PF_TRY(pf_close(fd, o->path));
    const struct pf_digest digest = pf_digest_result(o->digest);
    pf_digest_hex(&digest, file->digest);
    return 0;
}
