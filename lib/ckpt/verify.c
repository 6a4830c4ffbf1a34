/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that can be wrong with a checkpoint: the readers' checks, all of them, and every byte. */
#include "ckpt_internal.h"

#include <pf/digest.h>
#include <pf/file.h>
#include <pf/inspect.h>
#include <pf/mem.h>

#include <fcntl.h>
#include <math.h>
#include <string.h>

/* Bytes hashed at a time. */
#define PART_BYTES ((size_t)1 << 20)

/* A verification under way: what was found, and how far it is. */
struct verification {
    struct ckpt_report report;
    const struct pf_inspect_progress *progress;
    uint64_t done, total;
    int64_t n_bad; /* files of the checkpoint that are missing or damaged */
};

/* The digest of a file, telling how far it is. */
static int digest_file(struct verification *v, const char *path, uint64_t bytes,
                       struct pf_digest *digest_out)
{
    struct pf_digest_state *state = NULL;
    uint8_t *part = pf_alloc(PART_BYTES);
    int fd = -1, err = part ? pf_digest_new(&state) : PF_ENOMEM;

    err = err ? err : pf_open(path, O_RDONLY, &fd);
    for (uint64_t at = 0; !err && at < bytes; at += PART_BYTES) {
        const size_t n = bytes - at < PART_BYTES ? (size_t)(bytes - at) : PART_BYTES;
        err = pf_pread_full(fd, part, n, at, path);
        pf_digest_update(state, part, n);
        v->done += n;
        if (v->progress) {
            v->progress->report(v->progress->context, v->done, v->total);
        }
    }
    if (!err) {
        *digest_out = pf_digest_result(state);
    }
    pf_close(fd, NULL);
    pf_digest_free(state);
    pf_free(part);
    return err;
}

/* Read a file through: its digest against the manifest's, where that has one. */
static int verify_bytes(const struct pf_ckpt *ckpt, struct verification *v, int file)
{
    const struct pf_ckpt_file *f = &ckpt->files[file];
    char hex[PF_DIGEST_HEX_BYTES], *path = ckpt_file_path(ckpt, file);
    struct pf_digest digest;
    uint64_t bytes = 0;
    int err;

    if (!path) {
        return PF_ENOMEM;
    }
    /* Missing, unsafe, or of another length: noted already, and its bytes cannot be right. */
    if (strchr(f->name, '/') != NULL && f->digest[0] != '\0') {
        pf_free(path);
        return 0;
    }
    if (!pf_path_is_file(path) || pf_file_size(path, &bytes) != 0 || bytes != f->bytes) {
        pf_error_clear();
        pf_free(path);
        v->n_bad++;
        return 0;
    }
    err = digest_file(v, path, bytes, &digest);
    if (err != 0) {
        err = ckpt_fault_from(&v->report, err, "unreadable");
    } else if (f->digest[0] != '\0' && strcmp(pf_digest_hex(&digest, hex), f->digest) != 0) {
        v->n_bad++;
        err = ckpt_fault(&v->report, PF_EFORMAT, "digest",
                         "'%s' was changed: its digest is %s, the manifest says %s", path, hex,
                         f->digest);
    }
    pf_free(path);
    return err;
}

static int verify_files(const struct pf_ckpt *ckpt, struct verification *v)
{
    for (int64_t f = 0; f < ckpt->n_files; f++) {
        v->total += ckpt->files[f].bytes;
    }
    for (int64_t f = 0; f < ckpt->n_files; f++) {
        PF_TRY(verify_bytes(ckpt, v, (int)f));
    }
    return 0;
}

/* The parity file: is it as it was written, and is there something to restore from it? */
static int verify_parity(const struct pf_ckpt *ckpt, struct verification *v)
{
    char hex[PF_DIGEST_HEX_BYTES], *path;
    struct pf_digest digest;
    uint64_t bytes = 0;
    int err = 0;

    if (!ckpt->parity.name) {
        return 0;
    }
    path = pf_path_join(ckpt->dir, ckpt->parity.name);
    if (!path) {
        return PF_ENOMEM;
    }
    if (!pf_path_is_file(path) || pf_file_size(path, &bytes) != 0 || bytes != ckpt->parity.bytes) {
        pf_error_clear();
        err = ckpt_fault(&v->report, PF_EINCOMPLETE, "parity",
                         "'%s' is missing or has not its %llu bytes", path,
                         (unsigned long long)ckpt->parity.bytes);
    } else if ((err = digest_file(v, path, bytes, &digest)) != 0) {
        err = ckpt_fault_from(&v->report, err, "unreadable");
    } else if (strcmp(pf_digest_hex(&digest, hex), ckpt->parity.digest) != 0) {
        err = ckpt_fault(&v->report, PF_EFORMAT, "parity",
                         "'%s' was changed: its digest is %s, the manifest says %s", path, hex,
                         ckpt->parity.digest);
    } else if (v->n_bad == 1) {
        err = ckpt_fault(&v->report, 0, "restorable",
                         "one file of '%s' is missing or damaged: 'pf-inspect repair' restores it",
                         ckpt->dir);
    }
    pf_free(path);
    return err;
}

static bool is_listed(const struct pf_ckpt *ckpt, const char *name)
{
    for (int64_t f = 0; f < ckpt->n_files; f++) {
        if (strcmp(ckpt->files[f].name, name) == 0) {
            return true;
        }
    }
    return strcmp(name, CKPT_MANIFEST) == 0 ||
           (ckpt->parity.name && strcmp(name, ckpt->parity.name) == 0);
}

/* What else lies there is no part of the checkpoint, and readers leave it aside. */
static int note_extra(const struct pf_ckpt *ckpt, struct ckpt_report *report)
{
    struct pf_str_list names = {0};
    int err = 0;

    PF_TRY(pf_dir_list(ckpt->dir, &names));
    for (size_t i = 0; !err && i < names.n; i++) {
        if (!is_listed(ckpt, names.items[i])) {
            err = ckpt_fault(report, 0, "extra-file",
                             "'%s/%s' is there but the manifest does not name it", ckpt->dir,
                             names.items[i]);
        }
    }
    pf_str_list_release(&names);
    return err;
}

/* In a run's directory the name says the step. */
static int verify_step(const struct pf_ckpt *ckpt, struct ckpt_report *report)
{
    int64_t step;

    if (ckpt->step < 0 || !ckpt_parse_step_name(pf_path_base(ckpt->dir), &step) ||
        step == ckpt->step) {
        return 0;
    }
    return ckpt_fault(report, PF_EFORMAT, "manifest",
                      "'%s/%s' is of step %lld, which is not the directory's", ckpt->dir,
                      CKPT_MANIFEST, (long long)ckpt->step);
}

/* Compressed pieces ----------------------------------------------------------------------------- */

static int drop(void *context, const void *data, size_t bytes)
{
    (void)context, (void)data, (void)bytes;
    return 0;
}

/* The digests are right: then these are the bytes that were written, but were they well written? */
static int verify_frames(const struct pf_ckpt *ckpt, struct verification *v)
{
    int err = 0;

    for (int64_t i = 0; !err && i < ckpt->n_tensors; i++) {
        err = ckpt_tensor_is_coded(&ckpt->tensors[i])
                  ? ckpt_each_slice(ckpt, &ckpt->tensors[i], drop, NULL)
                  : 0;
        err = err ? ckpt_fault_from(&v->report, err, "frame") : 0;
    }
    return err;
}

/* Weights against masters ---------------------------------------------------------------------- */

/* A weight and its master as the weight's dtype, a part of each. */
struct pair {
    const struct pf_ckpt_tensor *weight, *master;
    void *stored, *rounded;
};

/* Not a number is not a number, whatever its payload. */
static bool is_same(enum pf_dtype dtype, const void *a, const void *b)
{
    const size_t n = pf_dtype_bytes(dtype);
    double x, y;

    return memcmp(a, b, n) == 0 ||
           (pf_dtype_convert(dtype, a, PF_DTYPE_F64, &x, 1) == 0 &&
            pf_dtype_convert(dtype, b, PF_DTYPE_F64, &y, 1) == 0 && isnan(x) && isnan(y));
}

/* Elements lo to hi: *at_out is the first that differs, or hi. */
static int compare_part(const struct pf_ckpt *ckpt, const struct pair *p, int64_t lo, int64_t hi,
                        int64_t *at_out)
{
    const enum pf_dtype dtype = p->weight->dtype;
    const size_t n = pf_dtype_bytes(dtype);
    struct ckpt_want want = {.box = pf_ckpt_whole(p->weight),
                             .range_lo = lo,
                             .range_hi = hi,
                             .dtype = dtype,
                             .dst = p->stored};
    int64_t at = lo;

    PF_TRY(ckpt_copy(ckpt, p->weight, &want));
    want.dst = p->rounded;
    PF_TRY(ckpt_copy(ckpt, p->master, &want));
    while (at < hi && is_same(dtype, (const char *)p->stored + (size_t)(at - lo) * n,
                              (const char *)p->rounded + (size_t)(at - lo) * n)) {
        at++;
    }
    *at_out = at;
    return 0;
}

/* A restored run computes with the weight and trains the master: one must be the other rounded. */
static int verify_master(const struct pf_ckpt *ckpt, struct verification *v, const struct pair *p)
{
    const struct pf_box whole = pf_ckpt_whole(p->weight);
    const int64_t count = pf_box_count(&whole);
    const int64_t part = (int64_t)(PART_BYTES / sizeof(double));
    int64_t at = 0;

    for (int64_t lo = 0, hi; lo < count; lo = hi) {
        hi = count - lo < part ? count : lo + part;
        PF_TRY(compare_part(ckpt, p, lo, hi, &at));
        if (at < hi) {
            return ckpt_fault(&v->report, PF_EFORMAT, "weight-not-master",
                              "'%s' in '%s' is not its master rounded to %s, first at element %lld",
                              p->weight->name, ckpt->dir, pf_dtype_name(p->weight->dtype),
                              (long long)at);
        }
    }
    return 0;
}

static bool has_same_shape(const struct pf_ckpt_tensor *a, const struct pf_ckpt_tensor *b)
{
    bool same = a->n_dims == b->n_dims;

    for (int d = 0; same && d < a->n_dims; d++) {
        same = a->shape[d] == b->shape[d];
    }
    return same;
}

/* Of a checkpoint that is whole in all else. */
static int verify_masters(const struct pf_ckpt *ckpt, struct verification *v)
{
    struct pair p = {.stored = pf_alloc(PART_BYTES), .rounded = pf_alloc(PART_BYTES)};
    int err = p.stored && p.rounded ? 0 : PF_ENOMEM;

    for (int64_t i = 0; !err && i < ckpt->n_tensors; i++) {
        p.master = &ckpt->tensors[i];
        p.weight = p.master->role == PF_ROLE_MASTER
                       ? pf_ckpt_find(ckpt, p.master->name, PF_ROLE_WEIGHT)
                       : NULL;
        if (p.weight && !has_same_shape(p.weight, p.master)) {
            err = ckpt_fault(&v->report, PF_EFORMAT, "weight-not-master",
                             "'%s' in '%s' has another shape than its master", p.weight->name,
                             ckpt->dir);
        } else if (p.weight && pf_dtype_is_float(p.weight->dtype) &&
                   pf_dtype_is_float(p.master->dtype)) {
            err = verify_master(ckpt, v, &p);
        }
    }
    pf_free(p.stored);
    pf_free(p.rounded);
    return err;
}

static int64_t n_faults(const struct verification *v)
{
    return pf_ckpt_faults_count(v->report.faults, v->report.n);
}

static int verify_pf(const char *dir, struct verification *v)
{
    const int64_t n_before = n_faults(v);
    struct pf_ckpt *ckpt = NULL;
    int err = ckpt_read_pf(dir, &v->report, &ckpt);

    v->n_bad = 0;
    err = err ? err : verify_files(ckpt, v);
    err = err ? err : verify_parity(ckpt, v);
    if (!err && ckpt->step >= 0) { /* else there is no manifest to compare with */
        err = note_extra(ckpt, &v->report);
        err = err ? err : verify_step(ckpt, &v->report);
    }
    if (!err && n_faults(v) == n_before) {
        err = verify_frames(ckpt, v);
    }
    if (!err && n_faults(v) == n_before) {
        err = verify_masters(ckpt, v);
    }
    pf_ckpt_free(ckpt);
    return err;
}

/* No save can replace it by rename, and readers do not see it. */
static int verify_latest_kind(const char *dir, struct ckpt_report *report)
{
    char *const path = pf_path_join(dir, CKPT_LATEST);
    int err = path ? 0 : PF_ENOMEM;

    if (path && pf_path_exists(path) && !pf_path_is_file(path)) {
        err = ckpt_fault(report, PF_EFORMAT, "latest", "'%s' is not a regular file", path);
    }
    pf_free(path);
    return err;
}

static int verify_latest(const char *dir, struct ckpt_report *report)
{
    char *name = NULL, *path = NULL;
    int64_t step;
    int err;

    PF_TRY(ckpt_read_latest_name(dir, &name));
    if (!name) { /* perhaps no save has been acknowledged yet */
        return verify_latest_kind(dir, report);
    }
    const bool named = ckpt_parse_step_name(name, &step);
    path = pf_path_join(dir, name);
    err = path ? 0 : PF_ENOMEM;
    if (!err && !(named && ckpt_is_complete(path))) {
        err = ckpt_fault(report, PF_EINCOMPLETE, "latest",
                         "'%s/%s' names '%s', which is no complete checkpoint", dir, CKPT_LATEST,
                         name);
    }
    pf_free(name);
    pf_free(path);
    return err;
}

static int verify_step_dir(const char *dir, const char *name, struct verification *v)
{
    char *path = pf_path_join(dir, name), *manifest = path ? pf_path_join(path, CKPT_MANIFEST) : 0;
    int err = manifest ? 0 : PF_ENOMEM;

    if (!err && pf_path_is_file(manifest)) {
        err = verify_pf(path, v);
    } else if (!err) {
        err = ckpt_fault(&v->report, PF_EINCOMPLETE, "missing-file", "'%s' is missing", manifest);
    }
    pf_free(path);
    pf_free(manifest);
    return err;
}

static int verify_run(const char *dir, struct verification *v)
{
    struct pf_str_list names = {0};
    int err = 0;

    PF_TRY(ckpt_list_steps(dir, &names));
    for (size_t i = 0; !err && i < names.n; i++) {
        err = verify_step_dir(dir, names.items[i], v);
    }
    pf_str_list_release(&names);
    return err ? err : verify_latest(dir, &v->report);
}

static int verify_hf(const char *path, bool is_dir, struct verification *v)
{
    struct pf_ckpt *ckpt = NULL;
    int err =
        is_dir ? ckpt_read_hf(path, &v->report, &ckpt) : ckpt_read_file(path, &v->report, &ckpt);

    err = err ? err : ckpt ? verify_files(ckpt, v) : 0;
    pf_ckpt_free(ckpt);
    return err;
}

int pf_inspect_verify(const char *path, const struct pf_inspect_progress *progress,
                      struct pf_ckpt_fault **faults_out, int64_t *n_faults_out)
{
    struct verification v = {.progress = progress};
    enum ckpt_layout layout;
    int err;

    PF_TRY(ckpt_detect(path, &layout));
    switch (layout) {
    case CKPT_LAYOUT_PF:
        err = verify_pf(path, &v);
        break;
    case CKPT_LAYOUT_RUN:
        err = verify_run(path, &v);
        break;
    default:
        err = verify_hf(path, layout == CKPT_LAYOUT_HF, &v);
        break;
    }
    if (err != 0) {
        pf_ckpt_faults_free(v.report.faults, v.report.n);
        return err;
    }
    *faults_out = v.report.faults;
    *n_faults_out = v.report.n;
    return 0;
}

int pf_ckpt_verify(const char *path, struct pf_ckpt_fault **faults_out, int64_t *n_faults_out)
{
    return pf_inspect_verify(path, NULL, faults_out, n_faults_out);
}
