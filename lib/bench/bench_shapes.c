/* SPDX-License-Identifier: Apache-2.0 */
/* From names, dtypes and shapes, as they are typed, to a list of what is to be measured. */
#include "bench_internal.h"

#include <pf/error.h>
#include <pf/mem.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_EXTENT (INT64_C(1) << 31)

static int bad_shape(const struct bench_op *op, const char *text)
{
    return pf_fail(PF_EUSAGE, "'%s' is no shape of %s, which has %s", text, pf_op_name(op->op),
                   op->form);
}

static const char *const act_names[] = {[PF_ACT_SILU] = "silu",
                                        [PF_ACT_GELU_TANH] = "gelu_tanh",
                                        [PF_ACT_GELU_ERF] = "gelu_erf",
                                        [PF_ACT_RELU] = "relu"};

/* What ends a product, after its plus. */
static int parse_end(const struct bench_op *op, const char *text, const char *end,
                     struct bench_shape *shape)
{
    shape->residual = strcmp(end, "residual") == 0;
    for (int act = PF_ACT_SILU; act <= PF_ACT_RELU; act++) {
        if (strcmp(end, act_names[act]) == 0) {
            shape->activate = true;
            shape->act = (enum pf_act_kind)act;
        }
    }
    return shape->accumulate || !(shape->residual || shape->activate) ? bad_shape(op, text) : 0;
}

/* The letters after the colon of a product, and what follows them. */
static int parse_transposes(const struct bench_op *op, const char *text, const char *letters,
                            struct bench_shape *shape)
{
    if (op->op != PF_OP_GEMM || strspn(letters, "nt") != 2 || strncmp(letters, "tt", 2) == 0 ||
        (letters[2] != '\0' && letters[2] != '+')) {
        return bad_shape(op, text);
    }
    shape->trans_a = letters[0] == 't';
    shape->trans_b = letters[1] == 't';
    shape->accumulate = shape->trans_a;
    return letters[2] ? parse_end(op, text, letters + 3, shape) : 0;
}

static bool is_norm(enum pf_op op)
{
    return op == PF_OP_RMSNORM_FWD || op == PF_OP_RMSNORM_BWD || op == PF_OP_LAYERNORM_FWD ||
           op == PF_OP_LAYERNORM_BWD;
}

/* What follows the extents, with the character before it. */
static int parse_suffix(const struct bench_op *op, const char *text, const char *suffix,
                        struct bench_shape *shape)
{
    if (*suffix == ':') {
        return parse_transposes(op, text, suffix + 1, shape);
    }
    shape->residual = is_norm(op->op) && strcmp(suffix, "+residual") == 0;
    return *suffix && !shape->residual ? bad_shape(op, text) : 0;
}

/* "1024x384x1536:nt"; *is_whole_out: transposes were given, or there are none to give. */
static int parse_shape(const struct bench_op *op, const char *text, struct bench_shape *shape_out,
                       bool *is_whole_out)
{
    struct bench_shape shape = {.trans_a = false};
    struct pf_str_list parts = {0};
    const char *const suffix = text + strcspn(text, ":+");
    char *extents = NULL;
    int err = 0;

    extents = pf_strndup(text, (size_t)(suffix - text));
    PF_TRY_GOTO(extents ? 0 : PF_ENOMEM, out);
    PF_TRY_GOTO(pf_str_split(extents, 'x', true, &parts), out);
    PF_TRY_GOTO((int)parts.n == op->n_dims ? 0 : bad_shape(op, text), out);
    for (int i = 0; i < op->n_dims; i++) {
        if (pf_parse_i64(parts.items[i], &shape.d[i]) != 0 || shape.d[i] < 1 ||
            shape.d[i] > MAX_EXTENT) {
            pf_error_clear();
            err = bad_shape(op, text);
            goto out;
        }
    }
    PF_TRY_GOTO(parse_suffix(op, text, suffix, &shape), out);
    *is_whole_out = *suffix || op->op != PF_OP_GEMM;
    *shape_out = shape;
out:
    pf_str_list_release(&parts);
    pf_free(extents);
    return err;
}

static void print_shape(const struct bench_op *op, const struct bench_shape *s, char text[64])
{
    size_t n = 0;

    for (int i = 0; i < op->n_dims; i++) {
        n += (size_t)snprintf(text + n, 64 - n, "%s%" PRId64, i ? "x" : "", s->d[i]);
    }
    if (op->op == PF_OP_GEMM) {
        (void)snprintf(text + n, 64 - n, ":%c%c%s%s%s", s->trans_a ? 't' : 'n',
                       s->trans_b ? 't' : 'n', s->accumulate || !s->trans_a ? "" : "=",
                       s->residual || s->activate ? "+" : "",
                       s->residual   ? "residual"
                       : s->activate ? act_names[s->act]
                                     : "");
    } else if (s->residual) {
        (void)snprintf(text + n, 64 - n, "+residual");
    }
}

bool bench_wants(const struct pf_bench_ops_options *options, enum pf_op op)
{
    for (int i = 0; i < options->n_names; i++) {
        if (pf_glob_match(options->names[i], pf_op_name(op))) {
            return true;
        }
    }
    return options->n_names == 0;
}

static int append(struct bench_items *items, const struct bench_op *op, enum pf_dtype dtype,
                  const struct bench_shape *shape)
{
    struct bench_item item = {.op = op, .dtype = dtype, .shape = *shape};

    print_shape(op, shape, item.shape_text);
    for (int i = 0; i < items->n; i++) {
        const struct bench_item *const old = &items->items[i];
        if (old->op == op && old->dtype == dtype && strcmp(old->shape_text, item.shape_text) == 0) {
            return 0;
        }
    }
    if (items->n == items->capacity) {
        const int capacity = items->capacity ? 2 * items->capacity : 64;
        struct bench_item *const grown =
            pf_realloc_array(items->items, (size_t)capacity, sizeof *grown);
        if (!grown) {
            return PF_ENOMEM;
        }
        items->items = grown;
        items->capacity = capacity;
    }
    items->items[items->n++] = item;
    return 0;
}

int bench_items_add(struct bench_items *items, const struct pf_bench_ops_options *options,
                    const struct bench_op *op, const struct bench_shape *shape)
{
    static const enum pf_dtype both[] = {PF_DTYPE_F32, PF_DTYPE_BF16};
    const enum pf_dtype *const dtypes = options->n_dtypes ? options->dtypes : both;
    const int n = options->n_dtypes ? options->n_dtypes : 2;

    for (int i = 0; i < n; i++) {
        PF_TRY(append(items, op, dtypes[i], shape));
    }
    return 0;
}

/* The three products of a layer whose output is [m, n] with k inputs: forward with a weight [n, k],
 * the gradient of its input with a weight [k, n], and that of such a weight. */
static int add_transposes(struct bench_items *items, const struct pf_bench_ops_options *options,
                          const struct bench_op *op, const struct bench_shape *shape)
{
    for (int i = 0; i < 3; i++) {
        struct bench_shape s = *shape;
        s.trans_b = i == 0;
        s.trans_a = s.accumulate = i == 2;
        PF_TRY(bench_items_add(items, options, op, &s));
    }
    return 0;
}

static int add_shapes(struct bench_items *items, const struct pf_bench_ops_options *options,
                      const struct bench_op *op)
{
    struct pf_str_list list = {0};
    int err = 0;

    PF_TRY_GOTO(pf_str_split(options->shapes ? options->shapes : op->defaults, ',', true, &list),
                out);
    for (size_t i = 0; i < list.n; i++) {
        struct bench_shape shape;
        bool is_whole = false;
        PF_TRY_GOTO(parse_shape(op, list.items[i], &shape, &is_whole), out);
        PF_TRY_GOTO(is_whole ? bench_items_add(items, options, op, &shape)
                             : add_transposes(items, options, op, &shape),
                    out);
    }
out:
    pf_str_list_release(&list);
    return err;
}

/* A name that no op has is a mistake. */
static int check_names(const struct pf_bench_ops_options *options)
{
    const char *known[PF_OP_COUNT];

    for (int op = 0; op < PF_OP_COUNT; op++) {
        known[op] = pf_op_name((enum pf_op)op);
    }
    for (int i = 0; i < options->n_names; i++) {
        bool found = false;
        for (int j = 0; j < bench_n_ops; j++) {
            found |= pf_glob_match(options->names[i], pf_op_name(bench_ops[j].op));
        }
        if (!found) {
            const char *const nearest = pf_nearest(options->names[i], known, PF_OP_COUNT);
            return pf_fail(PF_EUSAGE, "no op is named '%s'%s%s%s; --list names all",
                           options->names[i], nearest ? "; did you mean '" : "",
                           nearest ? nearest : "", nearest ? "'?" : "");
        }
    }
    return 0;
}

int bench_items_make(const struct pf_bench_ops_options *options, struct bench_items *items)
{
    PF_TRY(check_names(options));
    if (options->model && options->shapes) {
        return pf_fail(PF_EUSAGE, "--model and --shape exclude each other");
    }
    if (options->model) {
        return bench_items_of_model(options, items);
    }
    for (int i = 0; i < bench_n_ops; i++) {
        if (bench_wants(options, bench_ops[i].op)) {
            PF_TRY(add_shapes(items, options, &bench_ops[i]));
        }
    }
    return 0;
}

void bench_items_release(struct bench_items *items)
{
    pf_free(items->items);
    *items = (struct bench_items){.items = NULL};
}
