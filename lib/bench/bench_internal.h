/* SPDX-License-Identifier: Apache-2.0 */
/* bench_internal.h - the parts of a measurement of ops. For lib/bench alone. */
#ifndef BENCH_INTERNAL_H
#define BENCH_INTERNAL_H

#include <pf/bench.h>
#include <pf/ckpt.h>
#include <pf/config.h>
#include <pf/ops.h>
#include <pf/placement.h>
#include <pf/planes.h>
#include <pf/spec.h>
#include <pf/table.h>
#include <pf/train.h>

/* Shapes ---------------------------------------------------------------------------------------- */

#define BENCH_MAX_DIMS 5

struct bench_shape {
    int64_t d[BENCH_MAX_DIMS];
    bool trans_a, trans_b; /* gemm only */
    bool accumulate;       /* gemm only: a weight gradient, fp32 and added to */
    bool residual;         /* what ends a gemm, or what a norm begins with */
    bool activate;         /* gemm only */
    enum pf_act_kind act;
};

/* Calls ----------------------------------------------------------------------------------------- */

#define BENCH_MAX_BUFS 10

/* A dense array of a call. */
struct bench_buf {
    enum pf_dtype dtype;
    int64_t rows, width;
    bool is_output; /* compared with the reference */
    void *data;
};

/* The memory of all arrays of one call, filled, and its arguments. */
struct bench_call {
    enum pf_op op;
    enum pf_dtype dtype;
    int n_bufs;
    struct bench_buf bufs[BENCH_MAX_BUFS];
    union pf_op_args args;
    int err; /* the first failure while it was built */
};

void bench_call_release(struct bench_call *call);

/* Bytes of its arrays. */
double bench_call_bytes(const struct bench_call *call);

/* bench_fill.c: numbers in [lo, hi) that depend on stream and place alone; indices likewise. */
void bench_fill(enum pf_dtype dtype, void *to, int64_t n, uint32_t stream, float lo, float hi);
void bench_fill_indices(int32_t *to, int64_t n, uint32_t stream, int64_t lo, int64_t hi);

/* The part of a call that is compared: `narrow` is the shape of a smaller call whose arrays are
 * those of the whole one from (row[i], column[i]) of array i on. */
struct bench_slice {
    struct bench_shape narrow;
    int64_t row[BENCH_MAX_BUFS], column[BENCH_MAX_BUFS];
};

/* bench_cases.c: what is known of an op. */
struct bench_op {
    enum pf_op op;
    const char *form; /* of its shapes: "MxNxK[:nn|nt|tn]" */
    int n_dims;
    const char *defaults; /* shapes, separated by commas */
    enum pf_bench_unit unit;

    /* Make and fill the arrays, in an order that never changes. */
    void (*build)(struct bench_call *call, const struct bench_shape *shape);
    /* Elements in the longest sum, NULL: none is longer than what the tolerance is for. */
    int64_t (*sum_length)(const struct bench_shape *shape);
    /* Part i of what is compared, false when there are no more; NULL: the whole call. */
    bool (*slice)(const struct bench_shape *shape, int i, struct bench_slice *slice);
    /* Make inputs that are results of another op; NULL: none are. */
    int (*prepare)(struct pf_ops *ops, struct bench_call *call);
    /* Make the rest of the arrays not matter to a slice; NULL: it does not. */
    void (*isolate)(struct bench_call *call, const struct bench_slice *slice);
    int (*call)(struct pf_ops *ops, const struct bench_call *call);
};

extern const struct bench_op bench_ops[];
extern const int bench_n_ops;
const struct bench_op *bench_op_find(enum pf_op op);

/* Allocate, fill, prepare. Release the call also after an error. */
int bench_call_build(const struct bench_op *op, struct pf_ops *ops, enum pf_dtype dtype,
                     const struct bench_shape *shape, struct bench_call *call);

/* bench_check.c: call once through `run` and compare with the reference. *right_out, *error_out
 * (relative to the tolerance's kind) and *tolerance_out say how it went. */
struct bench_contestant {
    int (*run)(void *state, const struct bench_op *op, const struct bench_call *call);
    void *state;
};
struct bench_outcome {
    bool right;
    double error, tolerance;
};
int bench_check(const struct bench_op *op, enum pf_dtype dtype, const struct bench_shape *shape,
                struct pf_ops *ops, struct pf_ops *reference,
                const struct bench_contestant *contestant, struct bench_outcome *outcome_out);

/* bench_shapes.c: what is to be measured. */
struct bench_item {
    const struct bench_op *op;
    enum pf_dtype dtype;
    struct bench_shape shape;
    char shape_text[64];
};
struct bench_items {
    struct bench_item *items;
    int n, capacity;
};
/* Expand names, dtypes and shapes. Release the list also after an error. */
int bench_items_make(const struct pf_bench_ops_options *options, struct bench_items *items);
void bench_items_release(struct bench_items *items);
/* Add op at the shape, in each of the dtypes, unless it is there. */
int bench_items_add(struct bench_items *items, const struct pf_bench_ops_options *options,
                    const struct bench_op *op, const struct bench_shape *shape);
bool bench_wants(const struct pf_bench_ops_options *options, enum pf_op op);

/* bench_model.c: items of a training config. */
int bench_items_of_model(const struct pf_bench_ops_options *options, struct bench_items *items);

/* bench_time.c: one pass over one case: samples of each contestant in turn. rest: seconds to wait
 * where the contestant changes, so that the threads of one do not spin beside those of the other. */
struct bench_runner {
    struct bench_contestant contestant;
    struct pf_bench_samples *samples;
};
struct bench_pass {
    int warmup, n_samples; /* n_samples 0: until `seconds` are over, at least 3, at most 64 */
    double seconds, rest;
};
int bench_time(const struct bench_op *op, const struct bench_call *sets, int n_sets,
               const struct bench_runner *runners, int n_runners, const struct bench_pass *pass);
int bench_add_sample(struct pf_bench_samples *samples, double seconds);

/* bench_rival.c */
struct bench_rival;
int bench_rival_open(const char *name, const struct pf_ops *ops, struct bench_rival **rival_out);
void bench_rival_free(struct bench_rival *rival);
const char *bench_rival_name(const struct bench_rival *rival);
void bench_rival_describe(const struct bench_rival *rival, char *text, size_t bytes);
bool bench_rival_serves(const struct bench_rival *rival, const struct bench_item *item);
struct bench_contestant bench_rival_contestant(struct bench_rival *rival);
double bench_rival_rest(const struct bench_rival *rival);

/* bench_gemm.c: raise *flops_inout to the best rate of a few large products of this dtype, by any
 * kernel that may serve with the threads and instruction set of `like`. */
int bench_measure_gemm(const struct pf_ops *like, enum pf_dtype dtype, double *flops_inout);

/* bench_trainer.c: a trainer of a config that leaves nothing behind. */
struct bench_trainer {
    struct pf_config config;
    struct pf_trainer *trainer;
    struct pf_comm *world, *own; /* own: the communicator made here, or NULL */
    char *dir;
};
int bench_trainer_open(const char *config, const char *const *overrides, int n_overrides,
                       struct pf_comm *world, struct bench_trainer *t);
void bench_trainer_close(struct bench_trainer *t);

/* The ratio of each pair of samples that were taken one after the other, into c->ratio. */
int bench_pair_up(struct pf_bench_case *c);

/* Checkpoints ----------------------------------------------------------------------------------- */

/* bench_state.c: pieces of a model's state, one after the other. */
struct bench_state {
    char *config_json;
    struct pf_model_spec spec;
    struct pf_table *table;
    struct pf_ckpt_live *live;
    int64_t n_live;
    uint64_t payload; /* bytes of all pieces */
    size_t bytes;     /* and with what aligns them */
};

/* About so many bytes. Release it also after an error. */
int bench_state_make(struct bench_state *s, uint64_t bytes, bool weights_only);
void bench_state_release(struct bench_state *s);

/* Where they are: in s->bytes from here on. */
void bench_state_point(struct bench_state *s, void *memory);
void bench_fill_bits(void *memory, size_t bytes);

struct bench_layout {
    struct pf_table *table;
    struct pf_placement *place;
};
int bench_layout_make(struct bench_layout *l, const struct bench_state *s, const char *text);
void bench_layout_release(struct bench_layout *l);

/* bench_disk.c: seconds to read so much of one file, to write another, or both at once (NULL: not that
 * one), until it is on the disk; past the page cache. */
int bench_disk(const char *from, const char *to, uint64_t bytes, double *seconds_out);

/* The same by fio, of whose block sizes and depths the fastest are kept. */
struct bench_fio_way {
    const char *block, *depth;
};
struct bench_fio {
    struct bench_fio_way read, write;
};
int bench_fio_open(const char *scratch, uint64_t bytes, struct bench_fio *fio_out);
int bench_fio(const struct bench_fio *fio, const char *from, const char *to, uint64_t bytes,
              double *seconds_out);
int bench_fio_describe(const struct bench_fio *fio, char *text, size_t bytes);

/* bench_python.c: seconds of load_file on every file of a directory, and a touch of every page. */
struct bench_python {
    const char *name, *touch; /* touch: "read" or "write"; NULL: it is no rival */
};
int bench_python_load(const struct bench_python *python, const char *dir, double *seconds_out);
int bench_python_describe(const struct bench_python *python, char *text_out, size_t bytes);

/* bench_codec.c: made-up weights and what pf/planes.h makes of them. */
struct bench_codec {
    struct pf_planes *planes;
    uint8_t *raw, *coded, *back;
    size_t raw_bytes, coded_bytes, room; /* room: of a coded block */
    size_t *lengths;                     /* by block */
};
int bench_codec_open(struct bench_codec *c); /* encoded already; close it also after an error */
int bench_codec_encode(struct bench_codec *c);
int bench_codec_decode(struct bench_codec *c);
bool bench_codec_is_right(struct bench_codec *c);
void bench_codec_close(struct bench_codec *c);

/* bench_process.c: run a program and append what it prints. PF_ENOTSUP where it is not here or ends
 * with 7, PF_EIO where it fails. argv ends in NULL. */
int bench_run(const char *const *argv, struct pf_str *text);

#endif
