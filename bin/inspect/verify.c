/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that is wrong with a checkpoint. */
#include "command.h"

#include <pf/error.h>

#include <inttypes.h>
#include <stdio.h>

static int verify_text(const char *path, const struct pf_ckpt_fault *faults, int64_t n)
{
    struct table table;
    int err = 0;

    if (n == 0) {
        printf("no fault in %s\n", path);
        return 0;
    }
    table_init(&table, "ll");
    for (int64_t i = 0; i < n; i++) {
        PF_TRY_GOTO(table_add_text(&table, faults[i].kind), out);
        PF_TRY_GOTO(table_add_text(&table, faults[i].message), out);
    }
    table_print(&table);
out:
    table_release(&table);
    return err;
}

static int verify_json(struct options *o, const char *path, const struct pf_ckpt_fault *faults,
                       int64_t n, int verdict)
{
    struct document d;

    document_begin(&d, o, verdict);
    pf_json_out_member_string(&d.out, "path", path);
    pf_json_out_key(&d.out, "faults");
    pf_json_out_array_begin(&d.out);
    for (int64_t i = 0; i < n; i++) {
        pf_json_out_object_begin(&d.out);
        pf_json_out_member_string(&d.out, "kind", faults[i].kind);
        pf_json_out_member_string(&d.out, "error", pf_error_kind(faults[i].code));
        pf_json_out_member_string(&d.out, "message", faults[i].message);
        pf_json_out_object_end(&d.out);
    }
    pf_json_out_array_end(&d.out);
    return document_end(&d, o);
}

/* PF_EINCOMPLETE where all that is wrong is that something is missing. */
static int judge(const char *path, const struct pf_ckpt_fault *faults, int64_t n)
{
    bool incomplete = true;

    if (n == 0) {
        return 0;
    }
    for (int64_t i = 0; i < n; i++) {
        incomplete &= faults[i].code == PF_EINCOMPLETE;
    }
    return pf_fail(incomplete ? PF_EINCOMPLETE : PF_EFORMAT, "%" PRId64 " %s in '%s'", n,
                   n == 1 ? "fault" : "faults", path);
}

/* What can be said only of a checkpoint that is otherwise whole. */
static int verify_model(const char *path, struct pf_ckpt_fault **faults, int64_t *n)
{
    struct pf_ckpt *ckpt;
    struct model model;

    PF_TRY(pf_ckpt_open(path, &ckpt));
    int err = model_read(ckpt, &model);
    if (!err && model.understood && model.causal_lm) {
        err = pf_inspect_check_model(ckpt, &model.spec, faults, n);
    }
    pf_json_free(model.config);
    pf_ckpt_free(ckpt);
    return err;
}

int command_verify(struct options *o, char **operands)
{
    struct pf_ckpt_fault *faults = NULL;
    int64_t n = 0;
    struct pf_progress bar;
    const struct pf_inspect_progress progress = progress_start(&bar, o, "verifying");

    int err = pf_inspect_verify(operands[0], &progress, &faults, &n);
    pf_progress_finish(&bar);
    if (!err && n == 0) {
        err = verify_model(operands[0], &faults, &n);
    }
    PF_TRY(err);
    const int verdict = judge(operands[0], faults, n);
    err = o->shared.json ? verify_json(o, operands[0], faults, n, verdict)
                         : verify_text(operands[0], faults, n);
    pf_ckpt_faults_free(faults, n);
    return err ? err : verdict;
}
