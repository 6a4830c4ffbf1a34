/* SPDX-License-Identifier: Apache-2.0 */
/* How two checkpoints differ. */
#include "command.h"

#include <pf/error.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* What is unequal about a pair, apart from its values. */
static int append_change(struct pf_str *to, const struct pf_ckpt_tensor *a,
                         const struct pf_ckpt_tensor *b)
{
    if (a->role != b->role) {
        pf_str_appendf(to, "role %s -> %s; ", pf_role_name(a->role), pf_role_name(b->role));
    }
    if (a->dtype != b->dtype) {
        pf_str_appendf(to, "dtype %s -> %s; ", pf_dtype_name(a->dtype), pf_dtype_name(b->dtype));
    }
    if (a->n_dims != b->n_dims || memcmp(a->shape, b->shape, sizeof a->shape) != 0) {
        pf_str_append(to, "shape ");
        append_shape(to, a);
        pf_str_append(to, " -> ");
        append_shape(to, b);
        pf_str_append(to, "; ");
    }
    return pf_str_error(to);
}

static int append_values(struct pf_str *to, const struct pf_inspect_values *v)
{
    if (!v->compared) {
        return 0;
    }
    if (v->n_differ == 0) {
        return pf_str_append(to, "values equal; ");
    }
    pf_str_appendf(to, "%" PRId64 " of %" PRId64 " differ, first ", v->n_differ, v->n_elements);
    append_index(to, v->first, v->n_dims);
    pf_str_appendf(to, " %s -> %s; ", v->first_a, v->first_b);
    if (v->measured) {
        pf_str_appendf(to, "max abs %.6g, max rel %.6g, ", v->max_abs, v->max_rel);
        if (v->max_ulp >= 0) {
            pf_str_appendf(to, "max ulp %" PRId64 ", ", v->max_ulp);
        }
        pf_str_appendf(to, "%" PRId64 " NaN; ", v->n_nan);
    }
    return pf_str_error(to);
}

static int append_item(struct pf_str *to, const struct pf_inspect_diff *diff,
                       const struct pf_inspect_item *item)
{
    const struct pf_ckpt_tensor *t = item->a ? item->a : item->b;

    switch (item->kind) {
    case PF_INSPECT_ONLY_A:
    case PF_INSPECT_ONLY_B:
        pf_str_appendf(to, "%s ", pf_dtype_name(t->dtype));
        return append_shape(to, t);
    case PF_INSPECT_STEP:
        return pf_str_appendf(to, "%" PRId64 " -> %" PRId64, diff->step_a, diff->step_b);
    case PF_INSPECT_STATE:
        PF_TRY(append_printable(to, item->text_a ? item->text_a : "nothing"));
        PF_TRY(pf_str_append(to, " -> "));
        return append_printable(to, item->text_b ? item->text_b : "nothing");
    default:
        PF_TRY(append_change(to, item->a, item->b));
        PF_TRY(append_values(to, &item->values));
        to->len -= pf_str_ends_with(to->text, "; ") ? 2 : 0;
        to->text[to->len] = '\0';
        return 0;
    }
}

static int add_item(struct table *table, const struct pf_inspect_diff *diff,
                    const struct pf_inspect_item *item)
{
    const struct pf_ckpt_tensor *t = item->a ? item->a : item->b;
    const char *name = t ? t->name : item->path && *item->path ? item->path : "-";

    PF_TRY(table_add_text(table, pf_inspect_kind_name(item->kind)));
    PF_TRY(table_add_text(table, t ? pf_role_name(t->role) : "-"));
    PF_TRY(table_add_text(table, name));
    PF_TRY(append_item(&table->cell, diff, item));
    return table_end_cell(table);
}

static int diff_text(const struct pf_inspect_diff *diff)
{
    struct table table;
    int err = 0;

    table_init(&table, "llll");
    for (int64_t i = 0; i < diff->n_items; i++) {
        PF_TRY_GOTO(add_item(&table, diff, &diff->items[i]), out);
    }
    table_print(&table);
    if (diff->n_items > 0) {
        printf("%" PRId64 " %s; ", diff->n_items,
               diff->n_items == 1 ? "difference" : "differences");
    }
    printf("%s: %" PRId64 " %s",
           diff->n_items > 0    ? "the same"
           : diff->n_within > 0 ? "the same within the tolerance"
                                : "identical",
           diff->n_same, diff->n_same == 1 ? "tensor" : "tensors");
    if (diff->n_within > 0) {
        printf(", %" PRId64 " of them not bit for bit", diff->n_within);
    }
    puts(diff->state_compared && diff->n_items == 0 ? " and the trainer state" : "");
out:
    table_release(&table);
    return err;
}

static void json_side(struct pf_json_out *out, const char *key, const struct pf_ckpt_tensor *t)
{
    pf_json_out_key(out, key);
    if (!t) {
        pf_json_out_null(out);
        return;
    }
    pf_json_out_object_begin(out);
    pf_json_out_member_string(out, "role", pf_role_name(t->role));
    pf_json_out_member_string(out, "dtype", pf_dtype_name(t->dtype));
    member_integers(out, "shape", t->shape, t->n_dims);
    pf_json_out_object_end(out);
}

static void json_values(struct pf_json_out *out, const struct pf_inspect_values *v)
{
    pf_json_out_key(out, "values");
    if (!v->compared) {
        pf_json_out_null(out);
        return;
    }
    pf_json_out_object_begin(out);
    pf_json_out_member_i64(out, "elements", v->n_elements);
    pf_json_out_member_i64(out, "differ", v->n_differ);
    if (v->n_differ > 0) {
        pf_json_out_member_i64(out, "nan", v->n_nan);
        member_integers(out, "first_index", v->first, v->n_dims);
        pf_json_out_member_string(out, "first_a", v->first_a);
        pf_json_out_member_string(out, "first_b", v->first_b);
    }
    if (v->measured) {
        pf_json_out_member_f64(out, "max_abs", v->max_abs);
        pf_json_out_member_f64(out, "max_rel", v->max_rel);
        member_count(out, "max_ulp", v->max_ulp);
    }
    pf_json_out_object_end(out);
}

static void json_item(struct pf_json_out *out, const struct pf_inspect_diff *diff,
                      const struct pf_inspect_item *item)
{
    const struct pf_ckpt_tensor *t = item->a ? item->a : item->b;

    pf_json_out_object_begin(out);
    pf_json_out_member_string(out, "kind", pf_inspect_kind_name(item->kind));
    if (t) {
        pf_json_out_member_string(out, "name", t->name);
        json_side(out, "a", item->a);
        json_side(out, "b", item->b);
        json_values(out, &item->values);
    } else if (item->kind == PF_INSPECT_STEP) {
        pf_json_out_member_i64(out, "a", diff->step_a);
        pf_json_out_member_i64(out, "b", diff->step_b);
    } else {
        pf_json_out_member_string(out, "path", item->path);
        member_raw(out, "a", item->text_a);
        member_raw(out, "b", item->text_b);
    }
    pf_json_out_object_end(out);
}

static void json_input(struct pf_json_out *out, const char *key, const char *path,
                       const struct pf_ckpt *ckpt, int64_t n_tensors)
{
    pf_json_out_key(out, key);
    pf_json_out_object_begin(out);
    member_checkpoint(out, path, ckpt);
    pf_json_out_member_i64(out, "tensors", n_tensors);
    pf_json_out_object_end(out);
}

static int diff_json(struct options *o, const struct pf_ckpt *a, const struct pf_ckpt *b,
                     const struct pf_inspect_diff *diff, int verdict)
{
    struct document d;

    document_begin(&d, o, verdict);
    json_input(&d.out, "a", o->paths[0], a, diff->n_tensors_a);
    json_input(&d.out, "b", o->paths[1], b, diff->n_tensors_b);
    pf_json_out_member_f64(&d.out, "rtol", o->rel);
    pf_json_out_member_f64(&d.out, "atol", o->abs);
    member_count(&d.out, "ulp", o->ulp);
    pf_json_out_member_string(&d.out, "nan", o->nan ? o->nan : "bits");
    pf_json_out_member_bool(&d.out, "weights_only", o->weights_only);
    pf_json_out_member_bool(&d.out, "state_compared", diff->state_compared);
    pf_json_out_member_bool(&d.out, "identical", diff->n_items == 0 && diff->n_within == 0);
    pf_json_out_member_i64(&d.out, "same_tensors", diff->n_same);
    pf_json_out_member_i64(&d.out, "same_within_tolerance", diff->n_within);
    pf_json_out_key(&d.out, "differences");
    pf_json_out_array_begin(&d.out);
    for (int64_t i = 0; i < diff->n_items; i++) {
        json_item(&d.out, diff, &diff->items[i]);
    }
    pf_json_out_array_end(&d.out);
    return document_end(&d, o);
}

static int tolerance_of(const struct options *o, struct pf_inspect_tolerance *t_out)
{
    static const char *const policies[] = {"bits", "equal", "differ"};
    struct pf_inspect_tolerance t = PF_INSPECT_EXACT;

    if (o->rel < 0 || o->abs < 0 || (o->ulp < 0 && o->ulp != INT64_MIN)) {
        return pf_fail(PF_EUSAGE, "a tolerance is negative" SEE_HELP);
    }
    t.rel = isnan(o->rel) ? -1 : o->rel;
    t.abs = isnan(o->abs) ? -1 : o->abs;
    t.ulp = o->ulp == INT64_MIN ? -1 : o->ulp;
    for (int i = 0; o->nan && i < 3; i++) {
        if (strcmp(o->nan, policies[i]) == 0) {
            t.nan = (enum pf_inspect_nan)i;
            *t_out = t;
            return 0;
        }
    }
    if (o->nan) {
        return pf_fail(PF_EUSAGE, "option '--nan': '%s' is not bits, equal or differ" SEE_HELP,
                       o->nan);
    }
    *t_out = t;
    return 0;
}

static int diff_opened(struct options *o, const struct pf_ckpt *a, const struct pf_ckpt *b)
{
    struct pf_inspect_diff diff = {0};
    struct pf_inspect_tolerance tolerance;
    struct pf_progress bar;
    const struct pf_inspect_progress progress = progress_start(&bar, o, "comparing");

    PF_TRY(tolerance_of(o, &tolerance));
    int err = pf_inspect_diff(a, b, o->weights_only, &tolerance, &progress, &diff);
    pf_progress_finish(&bar);
    PF_TRY(err);
    const int verdict = diff.n_items > 0 ? PF_EDIFFER : 0;
    err = o->shared.json ? diff_json(o, a, b, &diff, verdict) : diff_text(&diff);
    pf_inspect_diff_release(&diff);
    return err ? err : verdict;
}

int command_diff(struct options *o, char **operands)
{
    struct pf_inspect_tolerance tolerance;
    struct pf_ckpt *a = NULL, *b = NULL;
    int err;

    PF_TRY_GOTO(tolerance_of(o, &tolerance), out);
    PF_TRY_GOTO(pf_ckpt_open(operands[0], &a), out);
    PF_TRY_GOTO(pf_ckpt_open(operands[1], &b), out);
    err = diff_opened(o, a, b);
out:
    pf_ckpt_free(a);
    pf_ckpt_free(b);
    return err;
}
