/* SPDX-License-Identifier: Apache-2.0 */
/* What the numbers of each tensor are like, and what a narrower dtype would lose. */
#include "command.h"

#include <pf/error.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* Text --------------------------------------------------------------------------------------------
 */

static int add_number(struct table *table, double x)
{
    PF_TRY(isnan(x) ? pf_str_append(&table->cell, "-") : pf_str_appendf(&table->cell, "%.5g", x));
    return table_end_cell(table);
}

/* "exact", "rel 0.0039", "2 to inf, 7 to 0, rel 0.5" */
static int add_cast(struct table *table, const struct pf_inspect_scan *s,
                    const struct pf_inspect_cast *cast)
{
    struct pf_str *const cell = &table->cell;

    if (!s->has_casts) {
        pf_str_append(cell, "-");
    } else if (cast->n_changed == 0) {
        pf_str_append(cell, "exact");
    } else {
        if (cast->n_overflow > 0) {
            pf_str_appendf(cell, "%" PRId64 " to inf", cast->n_overflow);
        }
        if (cast->n_underflow > 0) {
            pf_str_appendf(cell, "%s%" PRId64 " to 0", cell->len ? ", " : "", cast->n_underflow);
        }
        if (cast->max_rel > 0) {
            pf_str_appendf(cell, "%srel %.2g", cell->len ? ", " : "", cast->max_rel);
        }
    }
    return table_end_cell(table);
}

static int add_notes(struct table *table, const struct pf_inspect_scan *s)
{
    struct pf_str *const cell = &table->cell;

    if (s->n_nan + s->n_inf > 0) {
        pf_str_append(cell, "NOT FINITE, first at ");
        append_index(cell, s->first_bad, s->tensor->n_dims);
    } else if (s->n_elements > 0 && s->n_zero == s->n_elements) {
        pf_str_append(cell, "all zero");
    } else if (s->is_constant) {
        pf_str_append(cell, "constant");
    }
    return table_end_cell(table);
}

static int add_scan(struct table *table, const struct pf_inspect_scan *s)
{
    PF_TRY(table_add_text(table, s->tensor->name));
    PF_TRY(table_add_text(table, pf_role_name(s->tensor->role)));
    PF_TRY(table_add_text(table, pf_dtype_name(s->tensor->dtype)));
    PF_TRY(append_shape(&table->cell, s->tensor));
    PF_TRY(table_end_cell(table));
    if (!s->was_read) {
        for (int i = 0; i < 10; i++) {
            PF_TRY(table_add_text(table, "-"));
        }
        return table_add_text(table, "not read: elements narrower than a byte");
    }
    PF_TRY(table_add_i64(table, s->n_nan));
    PF_TRY(table_add_i64(table, s->n_inf));
    PF_TRY(table_add_i64(table, s->n_zero));
    PF_TRY(table_add_i64(table, s->n_denormal));
    PF_TRY(add_number(table, s->min));
    PF_TRY(add_number(table, s->max));
    PF_TRY(add_number(table, s->absmax));
    PF_TRY(add_number(table, s->rms));
    PF_TRY(add_cast(table, s, &s->to_bf16));
    PF_TRY(add_cast(table, s, &s->to_f16));
    return add_notes(table, s);
}

static void print_verdict(const struct pf_inspect_scans *scans)
{
    int64_t n_elements = 0, n_unread = 0;

    for (int64_t i = 0; i < scans->n; i++) {
        n_elements += scans->lines[i].was_read ? scans->lines[i].n_elements : 0;
        n_unread += !scans->lines[i].was_read;
    }
    printf("%" PRId64 " %s, %" PRId64 " elements: ", scans->n, scans->n == 1 ? "tensor" : "tensors",
           n_elements);
    if (scans->n_bad_tensors == 0) {
        printf("no NaN, no infinity");
    } else {
        printf("%" PRId64 " NaN, %" PRId64 " infinite, in %" PRId64 " of the tensors", scans->n_nan,
               scans->n_inf, scans->n_bad_tensors);
    }
    if (n_unread > 0) {
        printf("; %" PRId64 " not read", n_unread);
    }
    puts("");
}

static int scan_text(const struct pf_inspect_scans *scans)
{
    static const char *const heads[] = {"NAME",   "ROLE", "DTYPE",    "SHAPE",  "NAN",
                                        "INF",    "ZERO", "DENORMAL", "MIN",    "MAX",
                                        "ABSMAX", "RMS",  "AS BF16",  "AS F16", "NOTES"};
    struct table table;
    int err = 0;

    table_init(&table, "lllrrrrrrrrrlll");
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        PF_TRY_GOTO(table_add_text(&table, heads[i]), out);
    }
    for (int64_t i = 0; i < scans->n; i++) {
        PF_TRY_GOTO(add_scan(&table, &scans->lines[i]), out);
    }
    table_print(&table);
    print_verdict(scans);
out:
    table_release(&table);
    return err;
}

/* JSON --------------------------------------------------------------------------------------------
 */

static void json_cast(struct pf_json_out *out, const char *key, const struct pf_inspect_scan *s,
                      const struct pf_inspect_cast *cast)
{
    pf_json_out_key(out, key);
    if (!s->has_casts) {
        pf_json_out_null(out);
        return;
    }
    pf_json_out_object_begin(out);
    pf_json_out_member_i64(out, "changed", cast->n_changed);
    pf_json_out_member_i64(out, "overflow", cast->n_overflow);
    pf_json_out_member_i64(out, "underflow", cast->n_underflow);
    pf_json_out_member_f64(out, "max_rel", cast->max_rel);
    pf_json_out_object_end(out);
}

static void json_numbers(struct pf_json_out *out, const struct pf_inspect_scan *s)
{
    pf_json_out_member_i64(out, "nan", s->n_nan);
    pf_json_out_member_i64(out, "inf", s->n_inf);
    if (s->n_nan + s->n_inf > 0) {
        member_integers(out, "first_not_finite", s->first_bad, s->tensor->n_dims);
    }
    pf_json_out_member_i64(out, "zero", s->n_zero);
    pf_json_out_member_i64(out, "denormal", s->n_denormal);
    pf_json_out_member_bool(out, "constant", s->is_constant);
    pf_json_out_member_f64(out, "min", s->min);
    pf_json_out_member_f64(out, "max", s->max);
    pf_json_out_member_f64(out, "absmax", s->absmax);
    pf_json_out_member_f64(out, "rms", s->rms);
    json_cast(out, "as_bf16", s, &s->to_bf16);
    json_cast(out, "as_f16", s, &s->to_f16);
}

static void json_scan(struct pf_json_out *out, const struct pf_inspect_scan *s)
{
    pf_json_out_object_begin(out);
    pf_json_out_member_string(out, "name", s->tensor->name);
    pf_json_out_member_string(out, "role", pf_role_name(s->tensor->role));
    pf_json_out_member_string(out, "dtype", pf_dtype_name(s->tensor->dtype));
    member_integers(out, "shape", s->tensor->shape, s->tensor->n_dims);
    pf_json_out_member_bool(out, "read", s->was_read);
    pf_json_out_member_i64(out, "elements", s->n_elements);
    if (s->was_read) {
        json_numbers(out, s);
    }
    pf_json_out_object_end(out);
}

static int scan_json(struct options *o, const struct pf_ckpt *ckpt,
                     const struct pf_inspect_scans *scans, int verdict)
{
    struct document d;

    document_begin(&d, o, verdict);
    member_checkpoint(&d.out, o->paths[0], ckpt);
    pf_json_out_member_bool(&d.out, "weights_only", o->weights_only);
    pf_json_out_member_i64(&d.out, "nan", scans->n_nan);
    pf_json_out_member_i64(&d.out, "inf", scans->n_inf);
    pf_json_out_member_i64(&d.out, "bad_tensors", scans->n_bad_tensors);
    pf_json_out_key(&d.out, "tensors");
    pf_json_out_array_begin(&d.out);
    for (int64_t i = 0; i < scans->n; i++) {
        json_scan(&d.out, &scans->lines[i]);
    }
    pf_json_out_array_end(&d.out);
    return document_end(&d, o);
}

static int scan_opened(struct options *o, const struct pf_ckpt *ckpt, const char *glob)
{
    struct pf_inspect_scans scans = {0};
    struct pf_progress bar;
    const struct pf_inspect_progress progress = progress_start(&bar, o, "scanning");

    int err = pf_inspect_scan(ckpt, glob, o->weights_only, &progress, &scans);
    pf_progress_finish(&bar);
    PF_TRY(err);
    const int verdict = scans.n_bad_tensors > 0 ? PF_EDIFFER : 0;
    if (glob && scans.n == 0) {
        err = pf_fail(PF_EDIFFER, "no tensor of '%s' is called '%s'", o->paths[0], glob);
    } else {
        err = o->shared.json ? scan_json(o, ckpt, &scans, verdict) : scan_text(&scans);
    }
    pf_inspect_scans_release(&scans);
    return err ? err : verdict;
}

int command_scan(struct options *o, char **operands)
{
    struct pf_ckpt *ckpt;

    PF_TRY(pf_ckpt_open(operands[0], &ckpt));
    const int err = scan_opened(o, ckpt, operands[1]);
    pf_ckpt_free(ckpt);
    return err;
}
