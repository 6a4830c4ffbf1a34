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

    table_init(&table, "ll");
    for (int64_t i = 0; i < n; i++) {
        PF_TRY_GOTO(table_add_text(&table, faults[i].kind), out);
        PF_TRY_GOTO(table_add_text(&table, faults[i].message), out);
    }
    table_print(&table);
    if (pf_ckpt_faults_count(faults, n) == 0) {
        printf("no fault in %s\n", path);
    }
out:
    table_release(&table);
    return err;
}

/* The faults, or what is only noted. */
static void add_array(struct pf_json_out *out, const char *key, const struct pf_ckpt_fault *faults,
                      int64_t n, bool notes)
{
    pf_json_out_key(out, key);
    pf_json_out_array_begin(out);
    for (int64_t i = 0; i < n; i++) {
        if ((faults[i].code == 0) != notes) {
            continue;
        }
        pf_json_out_object_begin(out);
        pf_json_out_member_string(out, "kind", faults[i].kind);
        if (!notes) {
            pf_json_out_member_string(out, "error", pf_error_kind(faults[i].code));
        }
        pf_json_out_member_string(out, "message", faults[i].message);
        pf_json_out_object_end(out);
    }
    pf_json_out_array_end(out);
}

static int verify_json(struct options *o, const char *path, const struct pf_ckpt_fault *faults,
                       int64_t n, int verdict)
{
    struct document d;

    document_begin(&d, o, verdict);
    pf_json_out_member_string(&d.out, "path", path);
    add_array(&d.out, "faults", faults, n, false);
    add_array(&d.out, "notes", faults, n, true);
    return document_end(&d, o);
}

/* PF_EINCOMPLETE where all that is wrong is that something is missing. */
static int judge(const char *path, const struct pf_ckpt_fault *faults, int64_t n)
{
    const int64_t n_faults = pf_ckpt_faults_count(faults, n);
    bool incomplete = true;

    if (n_faults == 0) {
        return 0;
    }
    for (int64_t i = 0; i < n; i++) {
        incomplete &= faults[i].code == PF_EINCOMPLETE || faults[i].code == 0;
    }
    return pf_fail(incomplete ? PF_EINCOMPLETE : PF_EFORMAT, "%" PRId64 " %s in '%s'", n_faults,
                   n_faults == 1 ? "fault" : "faults", path);
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
    if (!err && pf_ckpt_faults_count(faults, n) == 0) {
        err = verify_model(operands[0], &faults, &n);
    }
    if (!err) {
        const int verdict = judge(operands[0], faults, n);
        err = o->shared.json ? verify_json(o, operands[0], faults, n, verdict)
                             : verify_text(operands[0], faults, n);
        err = err ? err : verdict;
    }
    pf_ckpt_faults_free(faults, n);
    return err;
}
