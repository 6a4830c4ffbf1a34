/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint against the model of its config: a name or a shape that is off is a model that loads
 * with random weights somewhere. */
#include "ckpt_internal.h"

#include <pf/inspect.h>
#include <pf/mem.h>
#include <pf/mesh.h>
#include <pf/table.h>

#include <stdio.h>
#include <string.h>

/* "[3,4]" */
static const char *shape_text(const int64_t *shape, int n_dims, char text[160])
{
    size_t n = 0;

    text[n++] = '[';
    for (int d = 0; d < n_dims; d++) {
        n += (size_t)snprintf(text + n, 158 - n, "%s%lld", d ? "," : "", (long long)shape[d]);
        n = n > 157 ? 157 : n;
    }
    text[n++] = ']';
    text[n] = '\0';
    return text;
}

static bool is_stored(const struct pf_ckpt *ckpt, const struct pf_tensor_row *row)
{
    return pf_ckpt_find(ckpt, row->name, PF_ROLE_WEIGHT) != NULL;
}

/* A row that shares its storage may stand under either name. */
static bool may_be_missing(const struct pf_ckpt *ckpt, const struct pf_table *table, int64_t i)
{
    if (table->rows[i].tied_to >= 0) {
        return true; /* its owner is asked for */
    }
    for (int64_t k = 0; k < table->n_rows; k++) {
        if (table->rows[k].tied_to == i && is_stored(ckpt, &table->rows[k])) {
            return true;
        }
    }
    return false;
}

static int check_row(const struct pf_ckpt *ckpt, const struct pf_table *table, int64_t i,
                     struct ckpt_report *report)
{
    const struct pf_tensor_row *row = &table->rows[i];
    const struct pf_ckpt_tensor *t = pf_ckpt_find(ckpt, row->name, PF_ROLE_WEIGHT);
    char is[160], wanted[160];

    if (!t) {
        return may_be_missing(ckpt, table, i)
                   ? 0
                   : ckpt_fault(report, PF_EINCOMPLETE, "model-missing",
                                "the config's model has '%s', which is not there", row->name);
    }
    if (t->n_dims == row->n_dims &&
        memcmp(t->shape, row->shape, (size_t)row->n_dims * sizeof row->shape[0]) == 0) {
        return 0;
    }
    return ckpt_fault(report, PF_EFORMAT, "model-shape", "'%s' is %s, the config says %s",
                      row->name, shape_text(t->shape, t->n_dims, is),
                      shape_text(row->shape, row->n_dims, wanted));
}

static int check_table(const struct pf_ckpt *ckpt, const struct pf_table *table,
                       struct ckpt_report *report)
{
    for (int64_t i = 0; i < table->n_rows; i++) {
        PF_TRY(check_row(ckpt, table, i, report));
    }
    for (int64_t i = 0; i < ckpt->n_tensors; i++) {
        const struct pf_ckpt_tensor *t = &ckpt->tensors[i];
        if (t->role == PF_ROLE_WEIGHT && !pf_table_find_name(table, t->name)) {
            PF_TRY(ckpt_fault(report, PF_EFORMAT, "model-extra",
                              "'%s' is no tensor of the config's model", t->name));
        }
    }
    return 0;
}

int pf_inspect_check_model(const struct pf_ckpt *ckpt, const struct pf_model_spec *spec,
                           struct pf_ckpt_fault **faults, int64_t *n_faults)
{
    struct ckpt_report report = {.faults = *faults, .n = *n_faults};
    struct pf_table *table = NULL;
    const int one[PF_AXIS_COUNT] = {1, 1, 1, 1, 1};
    struct pf_mesh mesh;

    /* Their files come in several spellings (fused experts, scales, blocks behind the last layer), of
     * which the table has one. */
    if (spec->moe.n_experts > 0 || spec->mla.kv_rank > 0) {
        return 0;
    }
    PF_TRY(pf_mesh_init(&mesh, 1, one, 1, false));
    int err = pf_table_new(spec, &mesh, &table);
    if (err == PF_ENOTSUP || err == PF_EINVAL) {
        pf_error_clear();
        err = 0;
    } else if (!err) {
        err = check_table(ckpt, table, &report);
    }
    pf_table_free(table);
    *faults = report.faults;
    *n_faults = report.n;
    return err;
}
