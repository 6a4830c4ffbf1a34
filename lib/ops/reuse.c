/* SPDX-License-Identifier: Apache-2.0 */
/* How much of a device is its own, and how much it takes from others. */
#include <pf/ops.h>

#include <pf/error.h>

#include <stdio.h>
#include <string.h>

struct pf_ops_reuse pf_ops_count_reuse(const struct pf_ops *ops)
{
    struct pf_ops_reuse reuse = {0};

    for (int i = 0; i < pf_ops_n_choices(ops); i++) {
        const struct pf_ops_choice choice = pf_ops_choice_at(ops, i);
        const char *const variant = choice.variant;
        if (choice.product) {
            continue; /* a pair is counted once */
        }
        reuse.n_pairs++;
        if (strcmp(variant, "ref") == 0) {
            reuse.n_reference++;
        } else if (strncmp(variant, "dnnl", 4) == 0) {
            reuse.n_library++;
        } else {
            reuse.n_own++;
        }
    }
    return reuse;
}

void pf_ops_version(char *text_out, size_t text_bytes)
{
    struct pf_ops *ops;

    if (pf_ops_open(NULL, &ops) != 0) {
        snprintf(text_out, text_bytes, "not usable: %s", pf_error_message());
        pf_error_clear();
        return;
    }
    const struct pf_ops_reuse reuse = pf_ops_count_reuse(ops);
    const char *library = pf_ops_library(ops);
    snprintf(text_out, text_bytes, "%s, %d %s%s%s; %d of %d ops own, %d library, %d reference",
             pf_ops_isa(ops), pf_ops_threads(ops), pf_ops_threads(ops) == 1 ? "thread" : "threads",
             *library ? ", " : "", library, reuse.n_own, reuse.n_pairs, reuse.n_library,
             reuse.n_reference);
    pf_ops_free(ops);
}
