/* SPDX-License-Identifier: Apache-2.0 */
/* Digests that do not depend on format or layout. */
#include "command.h"

#include <pf/error.h>

#include <stdio.h>

static int hash_text(const struct pf_inspect_digests *digests)
{
    struct table table;
    int err = 0;

    table_init(&table, "lll");
    for (int64_t i = 0; i < digests->n; i++) {
        PF_TRY_GOTO(table_add_text(&table, digests->lines[i].hex), out);
        PF_TRY_GOTO(table_add_text(&table, pf_role_name(digests->lines[i].tensor->role)), out);
        PF_TRY_GOTO(table_add_text(&table, digests->lines[i].tensor->name), out);
    }
    table_print(&table);
    printf("%s  all\n", digests->overall);
out:
    table_release(&table);
    return err;
}

static int hash_json(struct options *o, const struct pf_ckpt *ckpt,
                     const struct pf_inspect_digests *digests)
{
    struct document d;

    document_begin(&d, o, 0);
    member_checkpoint(&d.out, o->paths[0], ckpt);
    pf_json_out_member_bool(&d.out, "weights_only", o->weights_only);
    pf_json_out_member_string(&d.out, "algorithm", "XXH3-128");
    pf_json_out_key(&d.out, "tensors");
    pf_json_out_array_begin(&d.out);
    for (int64_t i = 0; i < digests->n; i++) {
        pf_json_out_object_begin(&d.out);
        pf_json_out_member_string(&d.out, "name", digests->lines[i].tensor->name);
        pf_json_out_member_string(&d.out, "role", pf_role_name(digests->lines[i].tensor->role));
        pf_json_out_member_string(&d.out, "digest", digests->lines[i].hex);
        pf_json_out_object_end(&d.out);
    }
    pf_json_out_array_end(&d.out);
    pf_json_out_member_string(&d.out, "digest", digests->overall);
    return document_end(&d, o);
}

int command_hash(struct options *o, char **operands)
{
    struct pf_ckpt *ckpt;
    struct pf_inspect_digests digests = {0};
    struct pf_progress bar;
    const struct pf_inspect_progress progress = progress_start(&bar, o, "hashing");

    PF_TRY(pf_ckpt_open(operands[0], &ckpt));
    int err = pf_inspect_hash(ckpt, o->weights_only, &progress, &digests);
    pf_progress_finish(&bar);
    if (!err) {
        err = o->shared.json ? hash_json(o, ckpt, &digests) : hash_text(&digests);
    }
    pf_inspect_digests_release(&digests);
    pf_ckpt_free(ckpt);
    return err;
}
