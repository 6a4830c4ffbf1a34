/* SPDX-License-Identifier: Apache-2.0 */
/* The registry of kernels: who serves which op, and why. */
#include "command.h"

#include <pf/error.h>
#include <pf/ops.h>

#include <stdio.h>

/* "dnnl > avx512 > ref; not avx2: CPU lacks avx2" */
static int append_order(struct pf_str *to, const struct pf_ops *ops, enum pf_op op,
                        enum pf_dtype dtype)
{
    struct pf_ops_row row;

    for (int i = 0; pf_ops_row(ops, op, dtype, i, &row); i++) {
        if (row.usable) {
            pf_str_appendf(to, "%s%s", to->len ? " > " : "", row.kernel->variant);
        }
    }
    for (int i = 0; pf_ops_row(ops, op, dtype, i, &row); i++) {
        if (!row.usable) {
            pf_str_appendf(to, "; not %s: %s", row.kernel->variant, row.why);
        }
    }
    return pf_str_error(to);
}

static int add_op(struct table *table, const struct pf_ops *ops, enum pf_op op, enum pf_dtype dtype)
{
    struct pf_ops_row row;
    const char *served = "nobody", *why = "no usable row";

    for (int i = 0; pf_ops_row(ops, op, dtype, i, &row); i++) {
        served = row.chosen ? row.kernel->variant : served;
        why = row.chosen ? row.why : why;
    }
    PF_TRY(table_add_text(table, pf_op_name(op)));
    PF_TRY(table_add_text(table, pf_dtype_name(dtype)));
    PF_TRY(table_add_text(table, served));
    PF_TRY(table_add_text(table, why));
    PF_TRY(append_order(&table->cell, ops, op, dtype));
    return table_end_cell(table);
}

static double reuse_rate(const struct pf_ops_reuse *r)
{
    return r->n_pairs ? (double)(r->n_library + r->n_reference) / r->n_pairs : 0;
}

static int ops_text(const struct pf_ops *ops)
{
    static const char *const heads[] = {"OP", "DTYPE", "SERVED BY", "WHY", "FALLBACK ORDER"};
    const struct pf_ops_reuse reuse = pf_ops_count_reuse(ops);
    const char *library = pf_ops_library(ops);
    struct pf_ops_row row;
    struct table table;
    int err = 0;

    table_init(&table, "lllll");
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        PF_TRY_GOTO(table_add_text(&table, heads[i]), out);
    }
    for (int op = 0; op < PF_OP_COUNT; op++) {
        for (int d = 0; d < PF_DTYPE_COUNT; d++) {
            if (pf_ops_row(ops, (enum pf_op)op, (enum pf_dtype)d, 0, &row)) {
                PF_TRY_GOTO(add_op(&table, ops, (enum pf_op)op, (enum pf_dtype)d), out);
            }
        }
    }
    table_print(&table);
    printf("\ndevice cpu, %s, %d %s%s%s\n", pf_ops_isa(ops), pf_ops_threads(ops),
           pf_ops_threads(ops) == 1 ? "thread" : "threads", *library ? ", " : "", library);
    printf("%d served: %d by kernels of the device, %d by a library, %d by the reference; "
           "reuse rate %.0f %%\n",
           reuse.n_pairs, reuse.n_own, reuse.n_library, reuse.n_reference,
           100 * reuse_rate(&reuse));
out:
    table_release(&table);
    return err;
}

static void json_op(struct pf_json_out *out, const struct pf_ops *ops, enum pf_op op,
                    enum pf_dtype dtype)
{
    const struct pf_kernel_row *chosen = pf_ops_chosen(ops, op, dtype);
    struct pf_ops_row row;

    if (!pf_ops_row(ops, op, dtype, 0, &row)) {
        return;
    }
    pf_json_out_object_begin(out);
    pf_json_out_member_string(out, "op", pf_op_name(op));
    pf_json_out_member_string(out, "dtype", pf_dtype_name(dtype));
    pf_json_out_member_string(out, "served_by", chosen ? chosen->variant : NULL);
    pf_json_out_key(out, "candidates");
    pf_json_out_array_begin(out);
    for (int i = 0; pf_ops_row(ops, op, dtype, i, &row); i++) {
        pf_json_out_object_begin(out);
        pf_json_out_member_string(out, "variant", row.kernel->variant);
        pf_json_out_member_i64(out, "preference", row.kernel->preference);
        pf_json_out_member_bool(out, "usable", row.usable);
        pf_json_out_member_bool(out, "chosen", row.chosen);
        pf_json_out_member_string(out, "why", row.why);
        pf_json_out_object_end(out);
    }
    pf_json_out_array_end(out);
    pf_json_out_object_end(out);
}

static int ops_json(struct options *o, const struct pf_ops *ops)
{
    const struct pf_ops_reuse reuse = pf_ops_count_reuse(ops);
    const char *library = pf_ops_library(ops);
    struct document d;

    document_begin(&d, o, 0);
    pf_json_out_member_string(&d.out, "device", "cpu");
    pf_json_out_member_string(&d.out, "isa", pf_ops_isa(ops));
    pf_json_out_member_i64(&d.out, "threads", pf_ops_threads(ops));
    pf_json_out_member_string(&d.out, "library", *library ? library : NULL);
    pf_json_out_key(&d.out, "ops");
    pf_json_out_array_begin(&d.out);
    for (int op = 0; op < PF_OP_COUNT; op++) {
        for (int dtype = 0; dtype < PF_DTYPE_COUNT; dtype++) {
            json_op(&d.out, ops, (enum pf_op)op, (enum pf_dtype)dtype);
        }
    }
    pf_json_out_array_end(&d.out);
    pf_json_out_member_i64(&d.out, "served", reuse.n_pairs);
    pf_json_out_member_i64(&d.out, "own", reuse.n_own);
    pf_json_out_member_i64(&d.out, "by_library", reuse.n_library);
    pf_json_out_member_i64(&d.out, "by_reference", reuse.n_reference);
    pf_json_out_member_f64(&d.out, "reuse_rate", reuse_rate(&reuse));
    return document_end(&d, o);
}

int command_ops(struct options *o, char **operands)
{
    struct pf_ops *ops;

    (void)operands;
    PF_TRY(pf_ops_open(NULL, &ops));
    const int err = o->shared.json ? ops_json(o, ops) : ops_text(ops);
    pf_ops_free(ops);
    return err;
}
