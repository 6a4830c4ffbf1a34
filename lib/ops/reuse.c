/* SPDX-License-Identifier: Apache-2.0 */
/* How much of a device is its own, and how much it takes from others. */
#include <pf/ops.h>

#include <string.h>

struct pf_ops_reuse pf_ops_count_reuse(const struct pf_ops *ops)
{
    struct pf_ops_reuse reuse = {.n_pairs = pf_ops_n_choices(ops)};

    for (int i = 0; i < reuse.n_pairs; i++) {
        const char *variant = pf_ops_choice_at(ops, i).variant;
        if (strcmp(variant, "ref") == 0) {
            reuse.n_reference++;
        } else if (strcmp(variant, "dnnl") == 0) {
            reuse.n_library++;
        } else {
            reuse.n_own++;
        }
    }
    return reuse;
}
