/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inspect.h - what can be said of opened checkpoints: sums, digests, values, differences.
 *
 * Everything here looks at the logical checkpoint only, so it gives the same answer for the same
 * tensors in any format and any layout. Tensors are read in slices of a few MiB; no tensor is ever
 * held whole, and what is kept grows with the number of tensors, not with their size.
 *
 *     struct pf_inspect_diff diff;
 *     const struct pf_inspect_tolerance exact = PF_INSPECT_EXACT;
 *     PF_TRY(pf_inspect_diff(a, b, false, &exact, NULL, &diff));
 *     if (diff.n_items > 0)
 *             ... they differ: diff.items says where ...
 *     pf_inspect_diff_release(&diff);
 *
 * All functions are local and deterministic. Errors of those that read tensors are the ones of
 * pf_ckpt_read_box, among them PF_ENOTSUP for elements narrower than a byte.
 */
#ifndef PF_INSPECT_H
#define PF_INSPECT_H

#include <pf/ckpt.h>
#include <pf/digest.h>
#include <pf/spec.h>

#include <stdbool.h>
#include <stdint.h>

/* Called now and then while bytes are read; a NULL pointer to it means that nobody asks. */
struct pf_inspect_progress {
    void (*report)(void *context, uint64_t done_bytes, uint64_t total_bytes);
    void *context;
};

/* pf_ckpt_verify, telling how far it is; progress may be NULL. The total grows with each checkpoint
 * of a run's directory. */
int pf_inspect_verify(const char *path, const struct pf_inspect_progress *progress,
                      struct pf_ckpt_fault **faults_out, int64_t *n_faults_out);

/*
 * Are the weights those of the model that the config describes? For a checkpoint in which verify
 * found nothing; spec is what pf_family_read_config makes of its config_json. Kinds:
 *
 *   model-missing    the model has a tensor that is not there (of a tied pair one is enough)
 *   model-extra      a weight that the model does not have
 *   model-shape      a weight with another shape than the model's
 *
 * A family that this build does not train is not checked: no faults. They are appended to those that
 * pf_ckpt_verify gave, which stay the caller's, also after an error. Reads nothing.
 */
int pf_inspect_check_model(const struct pf_ckpt *ckpt, const struct pf_model_spec *spec,
                           struct pf_ckpt_fault **faults, int64_t *n_faults);

/* Bytes of a tensor's elements as they are stored, without headers. */
uint64_t pf_inspect_tensor_bytes(const struct pf_ckpt_tensor *tensor);

/* Sums --------------------------------------------------------------------------------------------
 */

struct pf_inspect_sum {
    int64_t n_tensors, n_elements;
    uint64_t bytes;
};

struct pf_inspect_summary {
    struct pf_inspect_sum all;
    struct pf_inspect_sum by_role[PF_ROLE_COUNT];
    struct pf_inspect_sum by_dtype[PF_DTYPE_COUNT];
    int64_t n_pieces;
    uint64_t file_bytes; /* of the files, headers included */
};

/* Reads nothing. A parameter that is stored once under two names of a model counts once. */
void pf_inspect_summarise(const struct pf_ckpt *ckpt, struct pf_inspect_summary *summary_out);

/* Digests -----------------------------------------------------------------------------------------
 */

struct pf_inspect_digest {
    const struct pf_ckpt_tensor *tensor; /* belongs to the checkpoint */
    char hex[PF_DIGEST_HEX_BYTES];
};

struct pf_inspect_digests {
    int64_t n;
    struct pf_inspect_digest *lines; /* in the order of the checkpoint: role, name */
    char overall[PF_DIGEST_HEX_BYTES];
};

/*
 * The digest of every tensor (pf_ckpt_tensor_digest), and one of all: XXH3-128 over the lines, each
 * 32 digits and a newline. weights_only takes the tensors of PF_ROLE_WEIGHT alone, so that a
 * checkpoint with an optimizer and its export have the same overall digest. Release what it gives.
 */
int pf_inspect_hash(const struct pf_ckpt *ckpt, bool weights_only,
                    const struct pf_inspect_progress *progress,
                    struct pf_inspect_digests *digests_out);
void pf_inspect_digests_release(struct pf_inspect_digests *digests);

/* Values ------------------------------------------------------------------------------------------
 */

/* A tensor, and a box of it. */
struct pf_inspect_selection {
    const struct pf_ckpt_tensor *tensor; /* belongs to the checkpoint */
    struct pf_box box;
    bool single[PF_BOX_MAX_DIMS]; /* given as one index: a dimension that a reader need not see */
};

/*
 * Find what text names: "NAME" or "NAME:box". NAME is a weight's name, or that of a tensor of
 * another role where no weight is called so; "NAME.ROLE" (model.norm.weight.moment1) says which. The
 * box has an item for each dimension, apart from last ones that are left out and taken whole:
 * "lo:hi" (either may be missing), or one index; numbers below 0 count from the end, as in Python. A
 * name that itself holds ':' is found whole first.
 *
 * Errors: PF_EDIFFER (no such tensor; the nearest name is offered), PF_EREFUSED (NAME is there in
 * several roles, none of them weight), PF_EUSAGE (the box: syntax, too many items, reversed, outside
 * the tensor). Reads nothing.
 */
int pf_inspect_select(const struct pf_ckpt *ckpt, const char *text,
                      struct pf_inspect_selection *selection_out);

/*
 * Give the elements of a selection in row-major order, as they are stored, in slices of at most 1 MiB:
 * take(context, data, n) for each, n elements of the tensor's dtype; a value other than 0 ends it
 * and is returned. Proves first that the pieces cover the box. PF_ENOTSUP for F4 and F6.
 */
int pf_inspect_each_value(const struct pf_ckpt *ckpt, const struct pf_inspect_selection *selection,
                          int (*take)(void *context, const void *data, int64_t n), void *context);

#define PF_INSPECT_TEXT_BYTES 72

/* An element as text, with digits enough to give it back: "0.25", "-7", "true", "nan", "-inf",
 * "1-0.5i". element: of a dtype that fills whole bytes, of any alignment. Returns text_out. */
const char *pf_inspect_format(enum pf_dtype dtype, const void *element,
                              char text_out[PF_INSPECT_TEXT_BYTES]);

/* Scan --------------------------------------------------------------------------------------------
 */

/* What storing a tensor in a narrower dtype (rounding to nearest) would do to its finite elements. */
struct pf_inspect_cast {
    int64_t n_changed;   /* the value does not come back */
    int64_t n_overflow;  /* of those: become infinite */
    int64_t n_underflow; /* of those: were not zero and become it */
    double max_rel;      /* |cast - x| / |x|, largest over the other elements */
};

/*
 * Of one tensor. Numbers are those of the dtype, F8 decoded; a C64 counts as two, BOOL as 0 and 1.
 * min, max, absmax and rms are over finite elements (NAN where there are none) and are doubles:
 * integers beyond 2^53 are rounded.
 */
struct pf_inspect_scan {
    const struct pf_ckpt_tensor *tensor; /* belongs to the checkpoint */
    bool was_read; /* false for elements narrower than a byte; then only n_elements is set below */
    int64_t n_elements;
    int64_t n_nan, n_inf;               /* infinities of both signs */
    int64_t n_zero;                     /* of both signs */
    int64_t n_denormal;                 /* below the dtype's least normal number, not zero */
    bool is_constant;                   /* more than one element, all with the same bits */
    int64_t first_bad[PF_BOX_MAX_DIMS]; /* index of the first NaN or infinity, if there is one */
    double min, max, absmax, rms;
    bool has_casts; /* floating dtypes, F8 and C64 too */
    struct pf_inspect_cast to_bf16, to_f16;
};

struct pf_inspect_scans {
    int64_t n;
    struct pf_inspect_scan *lines; /* in the order of the checkpoint: role, name */
    int64_t n_nan, n_inf, n_bad_tensors;
};

/*
 * Scan every tensor whose name the glob matches (NULL: all), of weights alone if weights_only. The
 * result does not depend on pieces, nor on the number of threads that look. Release what it gives.
 */
int pf_inspect_scan(const struct pf_ckpt *ckpt, const char *glob, bool weights_only,
                    const struct pf_inspect_progress *progress, struct pf_inspect_scans *scans_out);
void pf_inspect_scans_release(struct pf_inspect_scans *scans);

/* Differences -------------------------------------------------------------------------------------
 */

enum pf_inspect_nan {
    PF_INSPECT_NAN_BITS,   /* two NaNs are equal if their bits are */
    PF_INSPECT_NAN_EQUAL,  /* any two NaNs are equal */
    PF_INSPECT_NAN_DIFFER, /* a NaN equals nothing, not even itself */
};

/*
 * When are two elements x (of A) and y (of B) the same? If their bits are (so +0 and -0 are not),
 * or if one of the tolerances that were given admits them:
 *
 *     |x - y| <= abs + rel * max(|x|, |y|)
 *     ulp distance <= ulp
 *
 * The ulp distance counts the floating numbers of the dtype from x to y (-0 and +0 are one number).
 * An infinity is near nothing but itself; NaNs go by `nan`. Tolerances apply to F16, BF16, F32 and
 * F64; everything else is compared by its bits. Two floating dtypes are compared as numbers, NaNs
 * then without their payload, and never by ulp. A field below 0 is a tolerance that was not given.
 */
struct pf_inspect_tolerance {
    double rel, abs;
    int64_t ulp;
    enum pf_inspect_nan nan;
};
#define PF_INSPECT_EXACT                                                                           \
    {                                                                                              \
        .rel = -1, .abs = -1, .ulp = -1, .nan = PF_INSPECT_NAN_BITS                                \
    }

enum pf_inspect_kind {
    PF_INSPECT_ONLY_A, /* the tensor is in A alone */
    PF_INSPECT_ONLY_B,
    PF_INSPECT_ROLE,   /* one name, in A with one role and in B with another */
    PF_INSPECT_SHAPE,  /* (its values are not compared) */
    PF_INSPECT_DTYPE,  /* (its values are compared as numbers, where both are floating) */
    PF_INSPECT_VALUES, /* elements differ */
    PF_INSPECT_STEP,   /* the two were saved at different steps */
    PF_INSPECT_STATE,  /* a member of the trainer state, by its path */
};

/* "only-a", "role", "values", ...: stable words. Static. */
const char *pf_inspect_kind_name(enum pf_inspect_kind kind);

/* What was found of the elements of a tensor that is in both. */
struct pf_inspect_values {
    bool compared;
    int64_t n_elements, n_differ; /* n_differ: beyond the tolerances */
    int64_t n_nan;                /* of those that differ: a NaN on one side at least */
    int n_dims;
    int64_t first[PF_BOX_MAX_DIMS]; /* index of the first that differs; set if n_differ > 0 */
    char first_a[64], first_b[64];  /* its values: "0.25", "-7", "nan (0x7fc00001)", "0x3f" */
    /*
     * Largest over all elements that are not NaN, admitted ones too: |x - y|, that over max(|x|,
     * |y|) (0 for two zeros), and the ulp distance (at most INT64_MAX). The first two are infinite
     * where an infinity meets another number. measured is false for dtypes that are compared by
     * their bits alone; max_ulp is -1 where the dtypes differ.
     */
    bool measured;
    double max_abs, max_rel;
    int64_t max_ulp;
};

/* One difference: of a tensor the first kind that holds, in the order of the enum. */
struct pf_inspect_item {
    enum pf_inspect_kind kind;
    const struct pf_ckpt_tensor *a, *b; /* NULL where it is not there; both for step and state */
    struct pf_inspect_values values;
    char *path;            /* state only: "samples", "data.position[2]", "" for the whole; owned */
    char *text_a, *text_b; /* state only: the JSON there, NULL where nothing is; owned */
};

struct pf_inspect_diff {
    int64_t n_items; /* 0: the two are identical, or the same within the tolerances */
    struct pf_inspect_item *items;
    int64_t n_tensors_a, n_tensors_b; /* looked at */
    int64_t n_same;                   /* tensors without a difference */
    int64_t n_within;                 /* of those: not bit for bit, but within the tolerances */
    int64_t step_a, step_b;
    bool state_compared;
};

/*
 * Compare two opened checkpoints: every tensor, and unless weights_only (tensors of PF_ROLE_WEIGHT
 * alone) also the step, where both have one, and the trainer state, where both have one. What only
 * tells how or when something was written (files, pieces, mesh, options, `previous`) is not
 * compared: pf-checkpoint(5), IDENTITY. A state that only one side has is a difference unless it is
 * empty. PF_EINVAL for a tolerance that is not finite. Release what it gives, before the two
 * checkpoints are freed.
 */
int pf_inspect_diff(const struct pf_ckpt *a, const struct pf_ckpt *b, bool weights_only,
                    const struct pf_inspect_tolerance *tolerance,
                    const struct pf_inspect_progress *progress, struct pf_inspect_diff *diff_out);
void pf_inspect_diff_release(struct pf_inspect_diff *diff);

#endif
