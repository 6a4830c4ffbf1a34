/* SPDX-License-Identifier: Apache-2.0 */
/* The differences of two checkpoints: which tensors belong together, then each pair, then the state. */
#include "ckpt_internal.h"
#include "diff_internal.h"

#include <pf/json.h>
#include <pf/mem.h>

#include <math.h>
#include <string.h>

static const char *const kind_names[] = {
    [PF_INSPECT_ONLY_A] = "only-a", [PF_INSPECT_ONLY_B] = "only-b", [PF_INSPECT_ROLE] = "role",
    [PF_INSPECT_SHAPE] = "shape",   [PF_INSPECT_DTYPE] = "dtype",   [PF_INSPECT_VALUES] = "values",
    [PF_INSPECT_STEP] = "step",     [PF_INSPECT_STATE] = "state",
};

const char *pf_inspect_kind_name(enum pf_inspect_kind kind)
{
    return kind_names[kind];
}

static int add_item(struct pf_inspect_diff *diff, const struct pf_inspect_item *item)
{
    const size_t n = (size_t)diff->n_items;

    /* Full where the count is a power of two: there may be as many as tensors. */
    if ((n & (n - 1)) == 0) {
        struct pf_inspect_item *grown =
            pf_realloc_array(diff->items, n > 0 ? 2 * n : 1, sizeof *grown);
        if (!grown) {
            return PF_ENOMEM;
        }
        diff->items = grown;
    }
    diff->items[diff->n_items++] = *item;
    return 0;
}

void pf_inspect_diff_release(struct pf_inspect_diff *diff)
{
    for (int64_t i = 0; i < diff->n_items; i++) {
        pf_free(diff->items[i].path);
        pf_free(diff->items[i].text_a);
        pf_free(diff->items[i].text_b);
    }
    pf_free(diff->items);
    diff->items = NULL;
    diff->n_items = 0;
}

/* Pairs -------------------------------------------------------------------------------------------
 */

struct pair {
    const struct pf_ckpt_tensor *a, *b; /* one of them may be NULL */
};

struct diff_job {
    const struct pf_ckpt *a, *b;
    int n_roles; /* roles below it are looked at; PF_ROLE_WEIGHT comes first */
    const struct pf_inspect_tolerance *tolerance;
    const struct pf_inspect_progress *progress;
    struct pair *pairs;
    int64_t n_pairs;
    struct diff_buffers buffers;
    uint64_t done, total;
    struct pf_inspect_diff diff;
};

/* Of the tensors of x with this name, the first whose role y does not have. */
static const struct pf_ckpt_tensor *first_unmatched(const struct diff_job *job,
                                                    const struct pf_ckpt *x,
                                                    const struct pf_ckpt *y, const char *name)
{
    for (int r = 0; r < job->n_roles; r++) {
        const struct pf_ckpt_tensor *t = pf_ckpt_find(x, name, (enum pf_role)r);
        if (t && !pf_ckpt_find(y, name, (enum pf_role)r)) {
            return t;
        }
    }
    return NULL;
}

/* The partner in y of a tensor of x: of the same name and role, or else, where each side has one
 * left over of this name, that one. */
static const struct pf_ckpt_tensor *partner(const struct diff_job *job, const struct pf_ckpt *x,
                                            const struct pf_ckpt_tensor *t, const struct pf_ckpt *y)
{
    const struct pf_ckpt_tensor *same = pf_ckpt_find(y, t->name, t->role);

    if (same || first_unmatched(job, x, y, t->name) != t) {
        return same;
    }
    return first_unmatched(job, y, x, t->name);
}

/* May the elements of two tensors be compared? */
static bool is_comparable(const struct pf_ckpt_tensor *a, const struct pf_ckpt_tensor *b)
{
    return a->n_dims == b->n_dims &&
           memcmp(a->shape, b->shape, (size_t)a->n_dims * sizeof a->shape[0]) == 0 &&
           (a->dtype == b->dtype || (pf_dtype_is_float(a->dtype) && pf_dtype_is_float(b->dtype)));
}

static void add_pair(struct diff_job *job, const struct pf_ckpt_tensor *a,
                     const struct pf_ckpt_tensor *b)
{
    job->pairs[job->n_pairs++] = (struct pair){a, b};
    job->total += a && b && is_comparable(a, b) ? pf_inspect_tensor_bytes(a) : 0;
}

static int make_pairs(struct diff_job *job)
{
    job->pairs =
        pf_calloc_array((size_t)job->a->n_tensors + (size_t)job->b->n_tensors, sizeof *job->pairs);
    if (!job->pairs) {
        return PF_ENOMEM;
    }
    for (int64_t i = 0; i < job->a->n_tensors; i++) {
        const struct pf_ckpt_tensor *t = &job->a->tensors[i];
        if ((int)t->role < job->n_roles) {
            add_pair(job, t, partner(job, job->a, t, job->b));
            job->diff.n_tensors_a++;
        }
    }
    for (int64_t i = 0; i < job->b->n_tensors; i++) {
        const struct pf_ckpt_tensor *t = &job->b->tensors[i];
        if ((int)t->role < job->n_roles) {
            job->diff.n_tensors_b++;
            if (!partner(job, job->b, t, job->a)) {
                add_pair(job, NULL, t);
            }
        }
    }
    return 0;
}

static int compare_pair(struct diff_job *job, const struct pair *pair)
{
    struct pf_inspect_item item = {.a = pair->a, .b = pair->b};
    bool bits_equal = true;

    if (!pair->a || !pair->b) {
        item.kind = pair->a ? PF_INSPECT_ONLY_A : PF_INSPECT_ONLY_B;
        return add_item(&job->diff, &item);
    }
    const bool same_shape = pair->a->n_dims == pair->b->n_dims &&
                            memcmp(pair->a->shape, pair->b->shape,
                                   (size_t)pair->a->n_dims * sizeof pair->a->shape[0]) == 0;
    if (is_comparable(pair->a, pair->b)) {
        PF_TRY(diff_values(job->a, pair->a, job->b, pair->b, job->tolerance, &job->buffers,
                           job->progress, &job->done, job->total, &item.values, &bits_equal));
    }
    if (pair->a->role != pair->b->role) {
        item.kind = PF_INSPECT_ROLE;
    } else if (!same_shape) {
        item.kind = PF_INSPECT_SHAPE;
    } else if (pair->a->dtype != pair->b->dtype) {
        item.kind = PF_INSPECT_DTYPE;
    } else if (item.values.n_differ > 0) {
        item.kind = PF_INSPECT_VALUES;
    } else {
        job->diff.n_same++;
        job->diff.n_within += !bits_equal;
        return 0;
    }
    return add_item(&job->diff, &item);
}

/* State -------------------------------------------------------------------------------------------
 */

static int add_state(struct pf_inspect_diff *diff, const struct pf_json *a, const struct pf_json *b)
{
    struct pf_inspect_item item = {
        .kind = PF_INSPECT_STATE,
        .path = pf_strdup(pf_json_path(a ? a : b)),
        .text_a = a ? pf_json_print(a) : NULL,
        .text_b = b ? pf_json_print(b) : NULL,
    };
    int err = item.path && (item.text_a || !a) && (item.text_b || !b) ? 0 : PF_ENOMEM;

    err = err ? err : add_item(diff, &item);
    if (err) {
        pf_free(item.path);
        pf_free(item.text_a);
        pf_free(item.text_b);
    }
    return err;
}

static bool scalars_equal(const struct pf_json *a, const struct pf_json *b)
{
    size_t len_a, len_b;
    const char *text_a = pf_json_source(a, &len_a), *text_b = pf_json_source(b, &len_b);
    const char *string_a, *string_b;
    double x, y;

    if (len_a == len_b && memcmp(text_a, text_b, len_a) == 0) {
        return true;
    }
    if (pf_json_type(a) == PF_JSON_STRING) {
        return pf_json_as_string(a, &string_a) == 0 && pf_json_as_string(b, &string_b) == 0 &&
               strcmp(string_a, string_b) == 0;
    }
    /* 1e3 is 1000; but two integers with other digits differ, also where a double cannot tell. */
    return pf_json_type(a) == PF_JSON_NUMBER && !(pf_json_is_integer(a) && pf_json_is_integer(b)) &&
           pf_json_as_f64(a, &x) == 0 && pf_json_as_f64(b, &y) == 0 && x == y &&
           signbit(x) == signbit(y);
}

/* NOLINTNEXTLINE(misc-no-recursion): as deep as the JSON, which the parser bounds */
static int compare_json(struct pf_inspect_diff *diff, const struct pf_json *a,
                        const struct pf_json *b)
{
    const enum pf_json_type type = pf_json_type(a);
    const size_t n = pf_json_n(a);

    if (type != pf_json_type(b) || (type == PF_JSON_ARRAY && n != pf_json_n(b))) {
        return add_state(diff, a, b);
    }
    if (type != PF_JSON_OBJECT && type != PF_JSON_ARRAY) {
        return scalars_equal(a, b) ? 0 : add_state(diff, a, b);
    }
    for (size_t i = 0; i < n; i++) {
        const struct pf_json *x = pf_json_child(a, i);
        const struct pf_json *y =
            type == PF_JSON_ARRAY ? pf_json_child(b, i) : pf_json_get(b, pf_json_key(a, i));
        PF_TRY(y ? compare_json(diff, x, y) : add_state(diff, x, NULL));
    }
    for (size_t i = 0; type == PF_JSON_OBJECT && i < pf_json_n(b); i++) {
        if (!pf_json_get(a, pf_json_key(b, i))) {
            PF_TRY(add_state(diff, NULL, pf_json_child(b, i)));
        }
    }
    return 0;
}

static int parse_state(const struct pf_ckpt *ckpt, struct pf_json **doc_out)
{
    const struct pf_json_options options = {.name = ckpt->dir, .error_code = PF_EFORMAT};

    return ckpt->state_json ? pf_json_parse_text_with(ckpt->state_json, strlen(ckpt->state_json),
                                                      &options, doc_out)
                            : 0;
}

static int compare_state(struct diff_job *job)
{
    struct pf_json *a = NULL, *b = NULL;
    int err;

    job->diff.state_compared = job->a->state_json && job->b->state_json;
    PF_TRY_GOTO(parse_state(job->a, &a), out);
    PF_TRY_GOTO(parse_state(job->b, &b), out);
    if (a && b) {
        err = compare_json(&job->diff, a, b);
    } else if ((a && pf_json_n(a) > 0) || (b && pf_json_n(b) > 0)) {
        err = add_state(&job->diff, a, b);
    }
out:
    pf_json_free(a);
    pf_json_free(b);
    return err;
}

static int compare_step(struct diff_job *job)
{
    const struct pf_inspect_item item = {.kind = PF_INSPECT_STEP};
    const bool both = job->a->step >= 0 && job->b->step >= 0;

    return both && job->a->step != job->b->step ? add_item(&job->diff, &item) : 0;
}

/* All ---------------------------------------------------------------------------------------------
 */

static int run(struct diff_job *job, bool weights_only)
{
    PF_TRY(make_pairs(job));
    PF_TRY(diff_buffers_init(&job->buffers));
    for (int64_t i = 0; i < job->n_pairs; i++) {
        PF_TRY(compare_pair(job, &job->pairs[i]));
    }
    if (!weights_only) {
        PF_TRY(compare_step(job));
        PF_TRY(compare_state(job));
    }
    return 0;
}

int pf_inspect_diff(const struct pf_ckpt *a, const struct pf_ckpt *b, bool weights_only,
                    const struct pf_inspect_tolerance *tolerance,
                    const struct pf_inspect_progress *progress, struct pf_inspect_diff *diff_out)
{
    struct diff_job job = {.a = a,
                           .b = b,
                           .n_roles = weights_only ? PF_ROLE_WEIGHT + 1 : PF_ROLE_COUNT,
                           .tolerance = tolerance,
                           .progress = progress,
                           .diff = {.step_a = a->step, .step_b = b->step}};

    if (!isfinite(tolerance->rel) || !isfinite(tolerance->abs)) {
        return pf_fail(PF_EINVAL, "a tolerance is not finite");
    }
    const int err = run(&job, weights_only);
    pf_free(job.pairs);
    diff_buffers_release(&job.buffers);
    if (err) {
        pf_inspect_diff_release(&job.diff);
        return err;
    }
    *diff_out = job.diff;
    return 0;
}
