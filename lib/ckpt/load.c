/* SPDX-License-Identifier: Apache-2.0 */
/* Loading: live state as a writer. First proofs, on all ranks; then digests; then bytes. */
#include "plan_internal.h"

#include <pf/digest.h>
#include <pf/mem.h>

#include <string.h>

static int find(const struct pf_ckpt *ckpt, const struct pf_ckpt_live *live,
                const struct pf_ckpt_tensor **tensor_out, struct ckpt_want *want_out)
{
    const struct pf_ckpt_tensor *tensor = pf_ckpt_find(ckpt, live->name, live->role);

    if (!tensor) {
        return pf_fail(PF_EINCOMPLETE, "'%s' has no '%s' (%s)", ckpt->dir, live->name,
                       pf_role_name(live->role));
    }
    if (tensor->n_dims != live->n_dims ||
        memcmp(tensor->shape, live->shape, (size_t)live->n_dims * sizeof live->shape[0]) != 0) {
        return pf_fail(PF_EINVAL, "'%s' (%s) has another shape in '%s' than here", live->name,
                       pf_role_name(live->role), ckpt->dir);
    }
    PF_TRY(ckpt_live_want(live, want_out));
    *tensor_out = tensor;
    return 0;
}

static int each_live(const struct pf_ckpt *ckpt, const struct pf_ckpt_live *live, int64_t n_live,
                     int (*act)(const struct pf_ckpt *, const struct pf_ckpt_tensor *,
                                const struct ckpt_want *))
{
    for (int64_t i = 0; i < n_live; i++) {
        const struct pf_ckpt_tensor *tensor = NULL;
        struct ckpt_want want = {.dst = NULL};
        PF_TRY(find(ckpt, &live[i], &tensor, &want));
        PF_TRY(act(ckpt, tensor, &want));
    }
    return 0;
}

static int check_digest(const struct pf_ckpt *ckpt, int file)
{
    char hex[PF_DIGEST_HEX_BYTES], *path;
    struct pf_digest digest;
    int err;

    if (ckpt->files[file].digest[0] == '\0') {
        return 0;
    }
    path = ckpt_file_path(ckpt, file);
    err = path ? pf_digest_file(path, &digest) : PF_ENOMEM;
    if (!err && strcmp(pf_digest_hex(&digest, hex), ckpt->files[file].digest) != 0) {
        err = pf_fail(PF_EFORMAT, "'%s' was changed: its digest is %s, the manifest says %s", path,
                      hex, ckpt->files[file].digest);
    }
    pf_free(path);
    return err;
}

static int check_digests(const struct pf_ckpt *ckpt, int rank, int size)
{
    for (int64_t f = rank; f < ckpt->n_files; f += size) {
        PF_TRY(check_digest(ckpt, (int)f));
    }
    return 0;
}

int pf_ckpt_load(struct pf_comm *comm, const struct pf_ckpt *ckpt, struct pf_ckpt_live *live,
                 int64_t n_live, bool verify_digests)
{
    const int rank = ckpt_comm_rank(comm), size = ckpt_comm_size(comm);

    PF_TRY(ckpt_agree(comm, each_live(ckpt, live, n_live, ckpt_prove)));
    if (verify_digests) {
        PF_TRY(ckpt_agree(comm, check_digests(ckpt, rank, size)));
    }
    return ckpt_agree(comm, each_live(ckpt, live, n_live, ckpt_copy));
}
