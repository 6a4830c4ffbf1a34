/* SPDX-License-Identifier: Apache-2.0 */
/* fixed.c - batches of a .safetensors file, in file order: another trainer's run, reproduced. */
#include "data_internal.h"

#include <pf/error.h>
#include <pf/mem.h>
#include <pf/safetensors.h>

#include <string.h>

#define IGNORED_LABEL (-100)
#define SUFFIX ".safetensors"

struct fixed {
    struct pf_source base;
    struct pf_st *file;
    const struct pf_st_tensor *ids, *labels; /* the same where the file has no labels */
    char *row;                               /* one sequence as it is stored */
    int64_t *wide;                           /* and as integers */
};

/* Row i of a tensor into fixed->wide. */
static int read_row(struct fixed *fixed, const struct pf_st_tensor *tensor, int64_t i)
{
    const size_t width = pf_dtype_bytes(tensor->dtype);
    const uint64_t row_bytes = (uint64_t)fixed->base.seq * width;

    PF_TRY(pf_st_read(fixed->file, tensor, (uint64_t)i * row_bytes, row_bytes, fixed->row));
    for (int64_t s = 0; s < fixed->base.seq; s++) {
        const char *const at = fixed->row + (size_t)s * width;
        if (width == sizeof(int64_t)) {
            memcpy(&fixed->wide[s], at, sizeof(int64_t));
        } else {
            int32_t value;
            memcpy(&value, at, sizeof value);
            fixed->wide[s] = value;
        }
    }
    return 0;
}

static int fixed_sequence(struct pf_source *source, int64_t i, int32_t *ids, int32_t *targets)
{
    struct fixed *fixed = (struct fixed *)source;
    const int64_t seq = source->seq, *wide = fixed->wide;

    PF_TRY(read_row(fixed, fixed->ids, i));
    for (int64_t s = 0; s < seq; s++) {
        PF_TRY(pf_source_check_id(source, wide[s], i * seq + s));
        ids[s] = (int32_t)wide[s];
    }
    if (fixed->labels != fixed->ids) {
        PF_TRY(read_row(fixed, fixed->labels, i));
    }
    for (int64_t s = 1; s < seq; s++) {
        if (wide[s] == IGNORED_LABEL) {
            targets[s - 1] = -1;
            continue;
        }
        PF_TRY(pf_source_check_id(source, wide[s], i * seq + s));
        targets[s - 1] = (int32_t)wide[s];
    }
    targets[seq - 1] = -1;
    return 0;
}

static void fixed_free(struct pf_source *source)
{
    struct fixed *fixed = (struct fixed *)source;

    pf_st_close(fixed->file);
    pf_free(fixed->row);
    pf_free(fixed->wide);
    pf_free(fixed);
}

static const struct pf_source_ops fixed_ops = {
    .kind = "fixed",
    .sequence = fixed_sequence,
    .free = fixed_free,
};

/* A tensor of integers by name. */
static int find_integers(const struct fixed *fixed, const char *name,
                         const struct pf_st_tensor **tensor_out)
{
    const struct pf_st_tensor *tensor = pf_st_find(fixed->file, name);

    if (!tensor) {
        return pf_fail(PF_EINVAL, "no tensor '%s' in '%s'", name, pf_st_path(fixed->file));
    }
    if (tensor->dtype != PF_DTYPE_I64 && tensor->dtype != PF_DTYPE_I32) {
        return pf_fail(PF_EINVAL, "tensor '%s' in '%s' is %s, not I64 or I32", name,
                       pf_st_path(fixed->file), pf_dtype_name(tensor->dtype));
    }
    *tensor_out = tensor;
    return 0;
}

/* The two names that the text after '#' (NULL if there is none) asks for, and whether the second
 * must be there. */
static int tensor_names(const char *fragment, char **ids_out, char **labels_out, bool *must_out)
{
    const char *const comma = fragment ? strchr(fragment, ',') : NULL;

    *must_out = comma != NULL;
    if (comma) {
        *ids_out = pf_strndup(fragment, (size_t)(comma - fragment));
        *labels_out = pf_strdup(comma + 1);
    } else {
        *ids_out = pf_asprintf("%s%sinput_ids", fragment ? fragment : "", fragment ? "." : "");
        *labels_out = pf_asprintf("%s%slabels", fragment ? fragment : "", fragment ? "." : "");
    }
    return *ids_out && *labels_out ? 0 : PF_ENOMEM;
}

static int find_tensors(struct fixed *fixed, const char *fragment)
{
    char *ids = NULL, *labels = NULL;
    bool must;
    int err = 0;

    PF_TRY_GOTO(tensor_names(fragment, &ids, &labels, &must), out);
    PF_TRY_GOTO(find_integers(fixed, ids, &fixed->ids), out);
    fixed->labels = fixed->ids;
    if (must || pf_st_find(fixed->file, labels)) {
        PF_TRY_GOTO(find_integers(fixed, labels, &fixed->labels), out);
    }
    const struct pf_st_tensor *const a = fixed->ids, *const b = fixed->labels;
    if (a->n_dims != b->n_dims ||
        memcmp(a->shape, b->shape, (size_t)a->n_dims * sizeof *a->shape) != 0) {
        err = pf_fail(PF_EINVAL, "'%s' and '%s' in '%s' differ in shape", ids, labels,
                      pf_st_path(fixed->file));
    }
out:
    pf_free(ids);
    pf_free(labels);
    return err;
}

/* Steps, batch size and length from the shape [steps,B,S] or [B,S]. */
static int take_shape(struct fixed *fixed)
{
    const struct pf_st_tensor *const ids = fixed->ids;
    const uint64_t *const shape = ids->shape + (ids->n_dims == 3);
    struct pf_source *const source = &fixed->base;
    int64_t n_steps, n_batch, seq;

    if (ids->n_dims != 2 && ids->n_dims != 3) {
        return pf_fail(PF_EINVAL, "'%s' in '%s' has %d dimensions, not [steps,B,S] or [B,S]",
                       ids->name, pf_st_path(fixed->file), ids->n_dims);
    }
    PF_TRY(pf_u64_to_i64(ids->n_dims == 3 ? ids->shape[0] : 1, &n_steps));
    PF_TRY(pf_u64_to_i64(shape[0], &n_batch));
    PF_TRY(pf_u64_to_i64(shape[1], &seq));
    if (seq != source->seq) {
        return pf_fail(PF_EINVAL,
                       "'%s' holds sequences of %lld tokens, but the sequence length is %lld",
                       source->name, (long long)seq, (long long)source->seq);
    }
    if (n_steps == 0 || n_batch == 0) {
        return pf_fail(PF_EINVAL, "'%s' holds no sequence", source->name);
    }
    source->group = n_batch;
    source->n_windows = n_steps * n_batch;
    source->n_documents = source->n_windows;
    source->n_tokens = source->n_windows * seq;
    source->summary = pf_asprintf("%lld steps of %lld sequences of %lld tokens", (long long)n_steps,
                                  (long long)n_batch, (long long)seq);
    return source->summary ? 0 : PF_ENOMEM;
}

static int open_file(struct fixed *fixed, const char *name)
{
    const char *const marked = strstr(name, SUFFIX "#"); /* other '#' belong to the path */
    const char *const hash = marked ? marked + strlen(SUFFIX) : NULL;
    char *path;
    int err = 0;

    path = pf_strndup(name, hash ? (size_t)(hash - name) : strlen(name));
    PF_TRY_GOTO(path ? 0 : PF_ENOMEM, out);
    PF_TRY_GOTO(pf_st_open(path, &fixed->file), out);
    PF_TRY_GOTO(find_tensors(fixed, hash ? hash + 1 : NULL), out);
    PF_TRY_GOTO(take_shape(fixed), out);
out:
    pf_free(path);
    return err;
}

int pf_fixed_open(const struct pf_data_options *options, const char *name,
                  struct pf_source **source_out)
{
    struct fixed *fixed = pf_alloc(sizeof *fixed);
    int err = 0;

    if (!fixed) {
        return PF_ENOMEM;
    }
    fixed->base.in_order = true;
    PF_TRY_GOTO(pf_source_init(&fixed->base, &fixed_ops, options, name), out);
    PF_TRY_GOTO(open_file(fixed, name), out);
    fixed->row = pf_calloc_array((size_t)options->seq, sizeof(int64_t));
    fixed->wide = pf_calloc_array((size_t)options->seq, sizeof *fixed->wide);
    PF_TRY_GOTO(fixed->row && fixed->wide ? 0 : PF_ENOMEM, out);
    *source_out = &fixed->base;
    return 0;
out:
    pf_source_free(&fixed->base);
    return err;
}
