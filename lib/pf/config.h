/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.h - the options of a training run: one table of keys drives reading, checking, pf.json and
 * pf-config(5).
 *
 * A config is a JSON object; keys are PaddleFormers' names and pf's own. `key=value` words of the
 * command line override the file (the value is JSON where it parses as JSON, a string otherwise).
 * Old names of keys are accepted, and the canonical name is logged. A key is
 *     effective   it changes what the run does;
 *     satisfied   pf always does what it asks for, or what it chooses between is one thing in pf;
 *     refused     this build cannot do it: another value than the default is PF_ENOTSUP.
 *
 * Reading gives struct pf_config, every field set; pf_config_resolve then derives what depends on the
 * number of ranks. A config is plain data that owns its strings; nothing here knows ranks talk.
 *
 *     struct pf_config config;
 *     PF_TRY(pf_config_read("config.json", overrides, n, &config));
 *     PF_TRY_GOTO(pf_config_resolve(&config, world_size), out);
 *     out: pf_config_release(&config);
 *
 * All functions are local.
 */
#ifndef PF_CONFIG_H
#define PF_CONFIG_H

#include <pf/ckpt.h>
#include <pf/dtype.h>
#include <pf/mesh.h>
#include <pf/model.h>
#include <pf/parallel.h>
#include <pf/schedule.h>
#include <pf/str.h>

#include <stdbool.h>
#include <stdint.h>

enum pf_lr_kind {
    PF_LR_LINEAR,
    PF_LR_COSINE,
    PF_LR_CONSTANT,
    PF_LR_POLYNOMIAL,
    PF_LR_WSD,
    PF_LR_TABLE
};
enum pf_wsd_decay { PF_WSD_LINEAR, PF_WSD_ONE_MINUS_SQRT, PF_WSD_HALF_LIFE };

/* What dump_steps writes. */
enum { PF_DUMP_LOGITS = 1, PF_DUMP_GRADS = 2, PF_DUMP_HIDDEN = 4 };

struct pf_config {
    /* model and data */
    char *model_name_or_path; /* NULL if the model is inline */
    char *model_json;         /* the inline "model" object as text, or NULL */
    bool from_scratch;
    char *input_dir, *eval_input_dir, *tokenizer, *split;
    char *output_dir;
    int64_t max_seq_length;
    bool mask_documents, packing, shuffle;           /* packing implies mask_documents */
    int64_t dataloader_num_workers, prefetch_factor; /* 0: none; steps read ahead */
    /* batch and length of the run */
    int64_t per_device_train_batch_size, per_device_eval_batch_size;
    int64_t gradient_accumulation_steps; /* derived when the global batch is given */
    int64_t global_train_batch_size;     /* sequences a step over all ranks; derived */
    double num_train_epochs;
    int64_t max_steps;              /* -1: from the epochs */
    int64_t eval_steps, eval_iters; /* -1: never; -1: everything */
    bool eval_only;
    int64_t logging_steps, save_steps, save_total_limit, save_hf_steps;
    enum pf_ckpt_codec save_compress; /* PLAIN is "none" */
    bool save_parity;
    uint64_t seed;
    /* optimizer */
    double learning_rate, weight_decay, adam_beta1, adam_beta2, adam_epsilon, max_grad_norm;
    struct pf_str_list weight_decay_exclude; /* empty and not set: the default rule */
    bool has_weight_decay_exclude;
    struct pf_str_list freeze;
    enum pf_lr_kind lr_scheduler_type;
    double warmup_ratio;
    int64_t warmup_steps;
    double min_lr, num_cycles, lr_end, power;
    int64_t wsd_decay_start; /* -1: nine tenths of the run */
    enum pf_wsd_decay decay_function;
    double *lr_table;
    int64_t n_lr_table;
    bool pp_delay_scale_loss; /* false: 1/tokens is applied at the loss, not after accumulation */
    /* numbers and machine */
    enum pf_dtype dtype; /* of stored weights and activations: F32, BF16, F16 */
    double scale_loss;   /* F16: the first loss scale */
    enum pf_recompute recompute;
    enum pf_recompute_method recompute_method;
    int64_t recompute_num_layers; /* 0: the method's default */
    char *device;
    int64_t threads; /* 0: the CPUs this process may use, shared among the ranks of the host */
    char *kernels_from;
    double comm_timeout;
    /* layout */
    int degree[PF_AXIS_COUNT]; /* 0: not given; dp is derived */
    int expert_degree;
    bool pp_first;
    int vpp; /* -1: not given */
    bool sequence_parallel, sp_async_reduce_scatter, mp_async_allreduce;
    int64_t first_layers, last_layers; /* -1: not given */
    char *segments;                    /* NULL: evenly */
    char *parallelize_plan;            /* JSON, or NULL */
    enum pf_schedule_kind schedule;
    bool balanced, split_backward; /* ask for another schedule */
    /* resume and dumps */
    char *resume_from_checkpoint; /* NULL, a path, or "auto" */
    bool ignore_data_skip;
    int64_t *dump_steps;
    int64_t n_dump_steps;
    unsigned dump;                       /* bits PF_DUMP_* */
    int64_t sample_steps, sample_tokens; /* -1: at the end alone */
    char *sample_prompt;                 /* NULL: a newline */
    double sample_temperature;           /* 0: the most likely token */
    int64_t *profile_steps;
    int64_t n_profile_steps;
    int64_t *trace_steps;
    int64_t n_trace_steps;
    int64_t *skip_data_intervals;  /* first and last step of each interval in turn */
    int64_t n_skip_data_intervals; /* numbers, so twice the intervals */
    /* derived by pf_config_resolve */
    struct pf_mesh mesh;
    /* what reading remembers for resolving: which rows of pf_keys were
     * given, and lines to log */
    unsigned char *given; /* 0: no; 1: the default was; 2: another value was */
    struct pf_str_list notes;
};

enum pf_key_status { PF_KEY_EFFECTIVE, PF_KEY_SATISFIED, PF_KEY_REFUSED };

enum pf_key_type {
    PF_KEY_BOOL,
    PF_KEY_I64,
    PF_KEY_U64,
    PF_KEY_INT,
    PF_KEY_F64,
    PF_KEY_STRING,
    PF_KEY_STRING_LIST, /* a list, or a string of words */
    PF_KEY_I64_LIST,
    PF_KEY_F64_LIST,
    PF_KEY_ENUM,      /* one of `choices` */
    PF_KEY_OBJECT,    /* kept as JSON text */
    PF_KEY_I64_PAIRS, /* a list of lists of two integers */
};

/* One row of the table, for reading, for documentation and for tests. */
struct pf_key {
    const char *name;
    enum pf_key_type type;
    enum pf_key_status status;
    const char *by_default;     /* as JSON text; "null" where there is none */
    const char *const *choices; /* ENUM: NULL-terminated */
    int n_supported;            /* ENUM: so many of the choices work in this build; 0: all */
    const char
        *same_as_default; /* refused: JSON array of values that mean the same as by_default */
    double min, max;      /* range of a number, and of each in a list, where min < max */
    const char *unit;     /* "tokens", "seconds", NULL */
    bool may_change_on_resume;
    const char *help; /* what it means */
    const char *why;  /* satisfied, refused: why; NULL for effective */
    size_t field; /* offset in struct pf_config, SIZE_MAX where there is none. A list is a pointer
                         followed by an int64_t count */
};

/* The whole table, in the order of pf-config(5). */
extern const struct pf_key pf_keys[];
extern const size_t pf_n_keys;

/* Old names: pf_key_aliases[i].old means .name. */
struct pf_key_alias {
    const char *old, *name;
};
extern const struct pf_key_alias pf_key_aliases[];
extern const size_t pf_n_key_aliases;

/*
 * Read a file and overrides ("max_steps=20"). Errors: PF_EUSAGE for bad JSON (line and column), an
 * unknown key (nearest name, line), a wrong type or value out of range (key, line), a contradiction
 * between keys; PF_ENOTSUP for a refused key; PF_EIO. *config_out is set only on success; free its
 * parts with pf_config_release.
 */
int pf_config_read(const char *path, const char *const *overrides, int n_overrides,
                   struct pf_config *config_out);
void pf_config_release(struct pf_config *config);

/*
 * Derive mesh, accumulation and global batch for a number of ranks. Errors: PF_EINVAL with the
 * arithmetic ("global_train_batch_size 10 is not a multiple of per_device_train_batch_size 4 x 2
 * data-parallel ranks"), PF_ENOTSUP for a layout that this build does not train.
 */
int pf_config_resolve(struct pf_config *config, int world_size);

/* The least number of ranks that the degrees of a config make: their product, 1 for what is not given.
 */
int pf_config_ranks(const struct pf_config *config);

/* The parallel options of a config, not yet resolved for a model: as pf_parallel_read finds them in the
 * printed options. */
int pf_config_parallel(const struct pf_config *config, struct pf_parallel *par_out);

/* Append the resolved options as one JSON object with every effective key, in table order. */
int pf_config_print(const struct pf_config *config, struct pf_str *json);

/*
 * Compare with the options of the run that a checkpoint came from (pf_config_print's text): a key
 * that may not change on resume and did is PF_EREFUSED, naming key and both values; a changed data
 * path is allowed and returned in *note_out (owned by the caller, NULL if nothing to say).
 */
int pf_config_check_resume(const struct pf_config *config, const char *old_json, char **note_out);

/*
 * The text of the model configuration that a model_name_or_path leads to, and where it stands, for
 * messages: of a Hugging Face directory config.json, of a checkpoint what it keeps, or a bare file.
 * Errors: PF_EIO, those of opening a checkpoint, PF_ENOMEM. Free both with pf_free, also after an error.
 */
int pf_model_config_text(const char *path, char **text_out, char **name_out);

#endif
