/* SPDX-License-Identifier: Apache-2.0 */
/* What a checkpoint amounts to: counts and bytes by role and dtype, and the digest of each tensor. */
#include "ckpt_internal.h"

#include <pf/inspect.h>
#include <pf/mem.h>

#include <string.h>

uint64_t pf_inspect_tensor_bytes(const struct pf_ckpt_tensor *tensor)
{
    const struct pf_box whole = pf_ckpt_whole(tensor);
    size_t bytes = 0;

    /* Readers admit only shapes whose bytes fit, in whole bytes. */
    PF_ASSERT(pf_dtype_array_bytes(tensor->dtype, pf_box_count(&whole), &bytes) == 0);
    return bytes;
}

static void add(struct pf_inspect_sum *sum, int64_t n_elements, uint64_t bytes)
{
    sum->n_tensors++;
    sum->n_elements += n_elements;
    sum->bytes += bytes;
}

void pf_inspect_summarise(const struct pf_ckpt *ckpt, struct pf_inspect_summary *summary_out)
{
    struct pf_inspect_summary s = {.n_pieces = 0};

    for (int64_t i = 0; i < ckpt->n_tensors; i++) {
        const struct pf_ckpt_tensor *t = &ckpt->tensors[i];
        const struct pf_box whole = pf_ckpt_whole(t);
        const int64_t n_elements = pf_box_count(&whole);
        const uint64_t bytes = pf_inspect_tensor_bytes(t);
        add(&s.all, n_elements, bytes);
        add(&s.by_role[t->role], n_elements, bytes);
        add(&s.by_dtype[t->dtype], n_elements, bytes);
        s.n_pieces += t->n_pieces;
    }
    for (int64_t f = 0; f < ckpt->n_files; f++) {
        s.file_bytes += ckpt->files[f].bytes;
    }
    *summary_out = s;
}

/* Digests -----------------------------------------------------------------------------------------
 */

static bool is_wanted(const struct pf_ckpt_tensor *t, bool weights_only)
{
    return !weights_only || t->role == PF_ROLE_WEIGHT;
}

static int hash_each(const struct pf_ckpt *ckpt, bool weights_only,
                     const struct pf_inspect_progress *progress, struct pf_inspect_digests *digests)
{
    uint64_t total = 0, done = 0;

    for (int64_t i = 0; i < ckpt->n_tensors; i++) {
        const bool wanted = is_wanted(&ckpt->tensors[i], weights_only);
        total += wanted ? pf_inspect_tensor_bytes(&ckpt->tensors[i]) : 0;
    }
    for (int64_t i = 0; i < ckpt->n_tensors; i++) {
        const struct pf_ckpt_tensor *t = &ckpt->tensors[i];
        if (!is_wanted(t, weights_only)) {
            continue;
        }
        struct pf_inspect_digest *line = &digests->lines[digests->n];
        PF_TRY(pf_ckpt_tensor_digest(ckpt, t, line->hex));
        line->tensor = t;
        digests->n++;
        done += pf_inspect_tensor_bytes(t);
        if (progress) {
            progress->report(progress->context, done, total);
        }
    }
    return 0;
}

static int hash_lines(struct pf_inspect_digests *digests)
{
    struct pf_digest_state *state;

    PF_TRY(pf_digest_new(&state));
    for (int64_t i = 0; i < digests->n; i++) {
        pf_digest_update(state, digests->lines[i].hex, PF_DIGEST_HEX_BYTES - 1);
        pf_digest_update(state, "\n", 1);
    }
    const struct pf_digest digest = pf_digest_result(state);
    pf_digest_hex(&digest, digests->overall);
    pf_digest_free(state);
    return 0;
}

int pf_inspect_hash(const struct pf_ckpt *ckpt, bool weights_only,
                    const struct pf_inspect_progress *progress,
                    struct pf_inspect_digests *digests_out)
{
    struct pf_inspect_digests digests = {.n = 0};
    int err;

    digests.lines = pf_calloc_array((size_t)ckpt->n_tensors, sizeof *digests.lines);
    if (!digests.lines) {
        return PF_ENOMEM;
    }
    PF_TRY_GOTO(hash_each(ckpt, weights_only, progress, &digests), out);
    PF_TRY_GOTO(hash_lines(&digests), out);
    *digests_out = digests;
    return 0;
out:
    pf_inspect_digests_release(&digests);
    return err;
}

void pf_inspect_digests_release(struct pf_inspect_digests *digests)
{
    pf_free(digests->lines);
    digests->lines = NULL;
    digests->n = 0;
}
