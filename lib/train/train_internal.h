/* SPDX-License-Identifier: Apache-2.0 */
/* train_internal.h - the parts of a training run. For lib/train alone. */
#ifndef TRAIN_INTERNAL_H
#define TRAIN_INTERNAL_H

#include <pf/ckpt.h>
#include <pf/comm.h>
#include <pf/config.h>
#include <pf/data.h>
#include <pf/dev.h>
#include <pf/exactsum.h>
#include <pf/file.h>
#include <pf/grad_norm.h>
#include <pf/groups.h>
#include <pf/layout.h>
#include <pf/model.h>
#include <pf/ops.h>
#include <pf/progress.h>
#include <pf/reader.h>
#include <pf/schedule.h>
#include <pf/str.h>
#include <pf/tfevents.h>
#include <pf/train.h>

/* What one step measured, equal on all ranks. */
struct step_result {
    double loss, grad_norm, learning_rate, seconds;
    int64_t peak_bytes; /* the most that a rank has held at once */
    bool overflow;      /* fp16: a gradient was not finite; no weight was changed */
    int64_t tokens;
};

struct metrics {
    struct pf_line_file file;
    struct pf_str line; /* kept, so that a step allocates nothing */
    bool enabled;       /* rank 0 */
    FILE *copy;         /* NULL, or where each line goes as well */
    struct pf_tfevents *events;
    bool shows_progress;
    int64_t first_step; /* done before this process started */
    struct pf_progress progress;
    double pace; /* seconds a step, smoothed */
    double paced_at;
    int64_t n_paced;
};

/* An open dump of one step, on rank 0. */
struct dump;

/* What writes text from the model, on the ranks of rank 0's model. */
struct sampler;

/* What profile_steps and trace_steps measure. */
struct profile;

/* A rank's chunks of layers, and whose gradients must be summed with whose. */
struct train_part;

/* A stage's executor. */
struct train_pipe;

struct pf_trainer {
    const struct pf_config *config;
    struct pf_comm *world;
    struct pf_groups groups;
    int dp_rank, dp_size; /* among the ranks that see other data */

    /* decided by pf_trainer_new */
    struct pf_model_spec spec;
    char *config_json;       /* the model's, with dtype and tie as trained */
    char *model_dir;         /* Hugging Face directory, NULL for a bare or inline config */
    struct pf_ckpt *weights; /* opened Hugging Face weights, NULL when not loaded */
    const char *embed_from, *head_from;
    struct pf_ckpt *resume; /* opened checkpoint, NULL for a fresh start */
    char *resume_path;
    struct pf_table *table;
    struct pf_parallel par;     /* resolved */
    struct pf_placement *place; /* of the table's rows on the ranks */
    struct train_part *part;
    enum pf_schedule_kind schedule_kind;
    struct pf_schedule *schedule;
    struct pf_sched_facts facts;
    struct pf_ops *ops;
    char *run_json;

    /* built by pf_trainer_build */
    struct pf_dev *dev;
    struct pf_layout *layout;
    struct pf_grad_norm *norm;           /* what this rank counts of the gradient */
    struct pf_model *model, *eval_model; /* the same object where the batch is the same */
    float *master;                       /* fp32 parameters, which AdamW updates */
    uint16_t *narrow; /* the same as stored and computed with, in bf16 or fp16; NULL in fp32 */
    float *grads, *moment1, *moment2;
    struct pf_data *data, *eval_data;
    struct pf_reader *reader, *eval_reader;
    const struct pf_reader_batch *micro; /* [accumulation], of the step, from reader */
    struct pf_model_batch *batches;      /* [accumulation], the same for the model */
    struct pf_schedule *eval_schedule;   /* one micro-batch forward */
    struct pf_sched_facts eval_facts;
    struct train_pipe *pipe, *eval_pipe;
    float *token_loss; /* [b,S] of the larger batch */
    double peak_flops; /* GEMM rate of this rank, measured at start */

    /* progress */
    int64_t step, total_steps;
    int64_t updates; /* steps that changed weights: all but those of skip_data_intervals */
    int64_t samples; /* sequences consumed: the global position of the next step */
    int64_t tokens_seen;
    double loss_scale;        /* fp16: factor on the loss, 1 otherwise */
    int64_t scale_good_steps; /* since it last changed */
    int64_t saved_step;
    bool stopping;
    char *stop_path; /* the file of pf-train --stop */
    int output_lock; /* rank 0: output_dir, held against other runs; -1: not held */
    struct metrics metrics;
    struct dump *dump;
    struct sampler *sampler; /* NULL where no text is asked for, or not of rank 0's model */
    struct profile *profile; /* NULL where no step is watched */
};

/* trainer.c: is this one process that plans for the many ranks of its mesh? It has no groups but the
 * world, and the coordinates of rank 0. */
bool train_plans_alone(const struct pf_trainer *t);

/* trainer.c: facts about a run that its plan shares: is there evaluation data, does evaluation have a
 * model of its own, and what a model and a reader are made for. */
bool train_wants_eval(const struct pf_config *config);
bool train_has_eval_model(const struct pf_config *config);
struct pf_model_options train_model_options(const struct pf_trainer *t, bool train);
struct pf_reader_options train_reader_options(const struct pf_trainer *t, bool train);

/* What the models compute with. */
const void *train_weights(const struct pf_trainer *t);

/* lr.c: the rate of step t = 1..n, and the number of warm-up steps. */
double train_learning_rate(const struct pf_config *config, int64_t t, int64_t n);
int64_t train_warmup_steps(const struct pf_config *config, int64_t n);

/* source.c: read the model's configuration (and find its weights); fill spec, config_json, weights. */
int train_read_model(struct pf_trainer *t);

/* A fused buffer of this rank: where elements lie in it is where the placement puts them in that role.
 */
struct train_buffer {
    enum pf_role role;
    enum pf_dtype dtype;
    void *data;
};

/* state.c: allocate the fused buffers; initialise, load or resume them; give back; save. */
int train_state_new(struct pf_trainer *t);
int train_state_fill(struct pf_trainer *t);
void train_state_free(struct pf_trainer *t);
int train_save(struct pf_trainer *t);
/* The weights that the models compute with; and a row as a whole tensor, without data. */
struct train_buffer train_weight_buffer(const struct pf_trainer *t);
struct pf_ckpt_live train_live_whole(const struct pf_tensor_row *row, enum pf_role role,
                                     enum pf_dtype dtype);

/* export.c: write the weights as a Hugging Face directory of this name. Collective. */
int train_export(struct pf_trainer *t, const char *name);

/*
 * gather.c: whole tensors of a buffer at rank 0, one at a time, from all ranks of the world.
 *
 *     train_gather_init(&g, t, &from);
 *     if (rank == 0) {
 *             err = train_gather_fetch(&g, row, &data);           as often as is needed
 *             end = train_gather_end(&g);                         always, after an error too
 *     } else {
 *             err = train_gather_serve(&g);
 *     }
 *     train_gather_release(&g);
 *
 * What fetch gives is the whole tensor, row-major, in the dtype of the buffer, and good until the next
 * fetch or release. Memory: the largest tensor that is fetched, on rank 0 where it does not hold it
 * whole, and a message of 4 MiB. A row that owns storage; in the roles that the placement has pieces
 * of. Every rank gets the error of a fetch that fails, after which nothing is to be fetched.
 */
struct train_gather {
    struct pf_trainer *t;
    struct train_buffer from;
    struct pf_shard_list pieces; /* of the row that is fetched */
    uint8_t *whole, *chunk;      /* rank 0 */
    size_t whole_bytes;
    bool over; /* the others serve no more */
};
void train_gather_init(struct train_gather *g, struct pf_trainer *t,
                       const struct train_buffer *from);
int train_gather_fetch(struct train_gather *g, int64_t row, const void **data_out);
int train_gather_end(struct train_gather *g);
int train_gather_serve(struct train_gather *g);
void train_gather_release(struct train_gather *g);

/* signals.c: while a run listens, the first SIGINT asks it to stop instead of ending the process; has a
 * signal asked for that since the last look? (SIGINT: since ever.) */
void train_signals_listen(bool on);
bool train_signals_came(void);

/* output.c. All of these are rank 0's alone, and local. Take output_dir, if it is there, for this run. */
int train_output_lock(struct pf_trainer *t);
/* Make and take it, refuse to replace what is no run's, write pf.json and config.json. */
int train_output_begin(struct pf_trainer *t);
void train_output_end(struct pf_trainer *t);

/* kernels.c: open the op registry as all ranks agree; the "kernels" object of pf.json; the GEMM rate
 * of this rank, for mfu. */
struct pf_json_out;
int train_open_kernels(struct pf_trainer *t);
void train_print_kernels(const struct pf_trainer *t, struct pf_json_out *out);
int train_measure_peak(struct pf_trainer *t);
/* What measuring that rate holds for a moment. */
size_t train_peak_bytes(const struct pf_trainer *t);

/* step.c: is the data of the next step to be skipped? then let it pass; one training step; and the mean loss of the evaluation data. */
bool train_skip_due(const struct pf_trainer *t);
void train_skip(struct pf_trainer *t);
int train_step(struct pf_trainer *t, struct step_result *result_out);
int train_evaluate(struct pf_trainer *t, double *loss_out, int64_t *tokens_out);

/* part.c: this rank's part of the model. Its chunks, once the placement is known; what its gradients
 * need, once the layout is; the options of a model of it; after the last backward, gradients summed over
 * the uses of a tied weight and over all ranks that have a part of them. _new and _reduce_grads are
 * collective over the world. */
int train_part_new(struct pf_trainer *t);
/* The chunks of any stage, in the order of the model; room for par.vpp. Returns how many. */
int train_stage_chunks(const struct pf_trainer *t, int stage, struct pf_model_chunk *chunks_out);
int train_part_build(struct pf_trainer *t);
void train_part_free(struct pf_trainer *t);
void train_part_options(const struct pf_trainer *t, struct pf_model_options *options);
int train_reduce_grads(struct pf_trainer *t);

/* trainer.c: what a stage needs to run its lists. */
int train_schedule_facts(struct pf_trainer *t, int stage, struct pf_sched_facts *train_out,
                         struct pf_sched_facts *eval_out);

/* Is the head in this chunk (of this stage's, counted from 0)? */
bool train_has_head(const struct pf_trainer *t, int chunk);

/* pipe.c: what runs this stage's list of a schedule on a model; what it allocates for boundaries of so
 * many bytes. A run is collective over the pipeline, and over tensor-parallel ranks. */
struct train_pass {
    const struct pf_model_batch *batches; /* [micro-batches] */
    bool with_grad;
    float *token_loss; /* of one micro-batch, on the stage with the head */
    void (*before)(void *context, const struct pf_sched_step *step); /* a computation, or NULL */
    /* after a forward of a chunk of this stage, counted from 0, whose slot still holds it; or NULL */
    int (*after_forward)(void *context, const struct pf_sched_step *step, int chunk);
    void *context;
};
int train_pipe_new(struct pf_trainer *t, struct pf_model *model, const struct pf_schedule *schedule,
                   const struct pf_sched_facts *facts, struct train_pipe **pipe_out);
void train_pipe_free(struct train_pipe *pipe);
size_t train_pipe_bytes(const struct pf_sched_facts *facts, size_t boundary_bytes);
int train_pipe_run(struct train_pipe *pipe, const struct train_pass *pass);

/* optim.c: norm of the reduced gradients (of their sum times scale), and the update. */
int train_grad_norm(struct pf_trainer *t, double scale, double *norm_out);
int train_update(struct pf_trainer *t, double lr, double grad_scale);

/* dump.c: whole tensors of a step for comparison with other programs. */
bool train_dump_due(const struct pf_trainer *t);
int train_dump_begin(struct pf_trainer *t);
int train_dump_micro(struct pf_trainer *t, int micro, int chunk, int live);
int train_dump_grads(struct pf_trainer *t, double scale);
int train_dump_end(struct pf_trainer *t);
void train_dump_abandon(struct pf_trainer *t); /* a step that failed: nothing gets a final name */

/* sample.c: is text asked for; its cost: tokens of a forward, bytes held by a rank with these chunks of
 * the model, arithmetic of one text; and write one at this step: the ranks of rank 0's model together, the
 * others do nothing. */
bool train_wants_sample(const struct pf_config *config);
int64_t train_sample_seq(const struct pf_trainer *t);
int train_sample_bytes(const struct pf_trainer *t, const struct pf_model_chunk *chunks,
                       int n_chunks, const struct pf_sched_facts *facts, size_t *bytes_out);
double train_sample_flops(const struct pf_trainer *t);
int train_sample_new(struct pf_trainer *t);
void train_sample_free(struct pf_trainer *t);
int train_sample(struct pf_trainer *t);

/* profile.c: parts of a step, for a table and a time line. Marks do nothing outside watched steps. */
enum train_phase {
    PHASE_OTHER,
    PHASE_READ,
    PHASE_CLEAR,
    PHASE_FORWARD,
    PHASE_BACKWARD,
    PHASE_REDUCE,
    PHASE_NORM,
    PHASE_OPTIMIZER,
    PHASE_EVALUATE,
    PHASE_SAVE,
    PHASE_SAMPLE,
    PHASE_COUNT
};
int train_profile_new(struct pf_trainer *t);
void train_profile_free(struct pf_trainer *t);
/* What it holds, and what measuring the limits holds for a moment at build. */
size_t train_profile_bytes(const struct pf_trainer *t);
size_t train_profile_measuring_bytes(const struct pf_trainer *t);
/* Before the next step; when the training step is done; when all that follows a step is done. */
void train_profile_begin(struct pf_trainer *t);
void train_profile_step(struct pf_trainer *t, const struct step_result *result);
int train_profile_end(struct pf_trainer *t);
/* The phase before ends now, this one begins. */
void train_mark(struct pf_trainer *t, enum train_phase phase);

/* metrics.c: metrics.jsonl and the lines on stderr; all do nothing above rank 0. */
int train_metrics_open(struct pf_trainer *t);
void train_metrics_close(struct pf_trainer *t);
int train_metrics_start(struct pf_trainer *t);
void train_metrics_progress(struct pf_trainer *t);
/* A step has ended: what the time left is told from. */
void train_metrics_pace(struct pf_trainer *t);
/* Arithmetic of a step that took so long, as a part of what all ranks' gemm could have done. */
double train_mfu(struct pf_trainer *t, double seconds);
int train_metrics_step(struct pf_trainer *t, const struct step_result *result);
int train_metrics_eval(struct pf_trainer *t, double loss, int64_t tokens, double seconds);
int train_metrics_sample(struct pf_trainer *t, const char *prompt, const char *text,
                         int64_t n_tokens, double seconds);
int train_metrics_save(struct pf_trainer *t, double seconds, uint64_t bytes);
int train_metrics_event(struct pf_trainer *t, const char *event, const char *key, const char *text);

#endif
