/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/train.h>

#include "train_internal.h"

#include <pf/error.h>
#include <pf/json.h>
#include <pf/log.h>
#include <pf/mem.h>
#include <pf/parallelize.h>
#include <pf/version.h>

#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>

/* Is the checkpoint that is resumed one of output_dir's own? Links on the way do not matter. */
static int is_own(const struct pf_trainer *t, bool *own_out)
{
    char *const parent = pf_path_join(t->resume->dir, "..");
    struct stat a, b;

    if (!parent) {
        return PF_ENOMEM;
    }
    *own_out = stat(parent, &a) == 0 && stat(t->config->output_dir, &b) == 0 &&
               a.st_dev == b.st_dev && a.st_ino == b.st_ino;
    pf_free(parent);
    return 0;
}

/* Find what is to be resumed: nothing, a path, or the newest whole checkpoint of output_dir. */
static int find_resume(struct pf_trainer *t)
{
    const char *const wanted = t->config->resume_from_checkpoint;

    if (!wanted) {
        return 0;
    }
    if (strcmp(wanted, "auto") == 0) {
        PF_TRY(pf_ckpt_latest(t->config->output_dir, &t->resume_path));
    } else {
        t->resume_path = pf_strdup(wanted);
        PF_TRY(t->resume_path ? 0 : PF_ENOMEM);
    }
    return t->resume_path ? pf_ckpt_open(t->resume_path, &t->resume) : 0;
}

/* An output_dir that holds checkpoints is not written to by a run that resumes none of them: a fresh
 * one, or one that begins from another directory's. A run may go back to an earlier one of its own.
 * Only a plan, which writes nothing, is made all the same. */
static int refuse_used(const struct pf_trainer *t)
{
    const char *const wanted = t->config->resume_from_checkpoint;
    char *newest = NULL;
    bool own = false;

    if (wanted && strcmp(wanted, "auto") == 0) {
        return 0;
    }
    PF_TRY(pf_ckpt_latest(t->config->output_dir, &newest));
    const bool used = newest != NULL;
    pf_free(newest);
    if (used && wanted) {
        PF_TRY(is_own(t, &own));
    }
    return !used || own
               ? 0
               : pf_fail(PF_EREFUSED,
                         "'%s' already holds checkpoints: %s, or choose another output_dir",
                         t->config->output_dir,
                         wanted ? "set resume_from_checkpoint to one of them or to auto"
                                : "set resume_from_checkpoint");
}

/* Only what this build writes can be resumed: state, options and model in one. */
static int check_resume(struct pf_trainer *t)
{
    char *note = NULL;

    if (!t->resume) {
        return 0;
    }
    if (!t->resume->state_json || !t->resume->run_json) {
        return pf_fail(PF_EREFUSED,
                       "'%s' is no checkpoint of a training run: use it as "
                       "model_name_or_path to start from its weights",
                       t->resume_path);
    }
    PF_TRY(pf_config_check_resume(t->config, t->resume->run_json, &note));
    if (note) {
        pf_log_warn0("train", "%s", note);
    }
    pf_free(note);
    return 0;
}

static void warn_unmatched(const char *key, const struct pf_str_list *globs, const int *n_met)
{
    for (size_t i = 0; i < globs->n; i++) {
        if (n_met[i] == 0) {
            pf_log_warn0("train", "%s: '%s' matches no tensor", key, globs->items[i]);
        }
    }
}

typedef int mark_rows(struct pf_table *table, const char *const *globs, int n_globs,
                      int *n_met_out);

static int apply_globs(struct pf_trainer *t, const char *key, const struct pf_str_list *globs,
                       mark_rows *mark)
{
    int *const n_met = pf_calloc_array(globs->n + 1, sizeof *n_met);

    if (!n_met) {
        return PF_ENOMEM;
    }
    const int err = mark(t->table, (const char *const *)globs->items, (int)globs->n, n_met);
    if (!err) {
        warn_unmatched(key, globs, n_met);
    }
    pf_free(n_met);
    return err;
}

/* The first tensor that a plan cuts otherwise than the model computes, or NULL. */
static const char *find_other_cut(const struct pf_table *own, const struct pf_table *planned)
{
    for (int64_t i = 0; i < own->n_rows; i++) {
        for (int d = 0; d < own->rows[i].n_dims; d++) {
            if (own->rows[i].cut[d].view != planned->rows[i].cut[d].view) {
                return own->rows[i].name;
            }
        }
    }
    return NULL;
}

static int judge_plan(struct pf_trainer *t, const struct pf_json *plan, struct pf_table *planned)
{
    struct pf_str_list notes = {0};
    int err = pf_parallelize_table(plan, planned, &notes);
    const char *const other = err ? NULL : find_other_cut(t->table, planned);

    for (size_t i = 0; i < notes.n && !err; i++) {
        pf_log_warn0("train", "parallelize_plan: %s", notes.items[i]);
    }
    pf_str_list_release(&notes);
    if (other && t->table->mesh.degree[PF_AXIS_TP] > 1) {
        return pf_fail(PF_ENOTSUP,
                       "parallelize_plan: '%s' is cut otherwise than this build computes with",
                       other);
    }
    return err;
}

/* A plan is a second way to say the cuts that the model has. */
static int check_plan(struct pf_trainer *t)
{
    const char *const text = t->config->parallelize_plan;
    struct pf_table *planned = NULL;
    struct pf_json *plan = NULL;
    int err;

    if (!text) {
        return 0;
    }
    if (strstr(text, "\"SequenceParallel") && !t->config->sequence_parallel) {
        pf_log_warn0("train",
                     "parallelize_plan: SequenceParallel says how to compute, which is the key "
                     "sequence_parallel here; it is not set");
    }
    PF_TRY(pf_json_parse_text(text, strlen(text), "parallelize_plan", &plan));
    PF_TRY_GOTO(pf_table_new(&t->spec, &t->table->mesh, &planned), out);
    err = judge_plan(t, plan, planned);
out:
    pf_table_free(planned);
    pf_json_free(plan);
    return err;
}

static int make_table(struct pf_trainer *t)
{
    const struct pf_config *const c = t->config;

    struct pf_mesh mesh;

    PF_TRY(pf_model_check(&t->spec));
    PF_TRY(pf_config_parallel(c, &t->par));
    PF_TRY(pf_parallel_resolve(&t->par, &t->spec, pf_mesh_size(&c->mesh), &mesh));
    if (t->par.stage > 0) {
        return pf_fail(PF_ENOTSUP, "this build does not shard state over ranks (stage %d)",
                       t->par.stage);
    }
    PF_TRY(pf_table_new(&t->spec, &mesh, &t->table));
    PF_TRY(check_plan(t));
    PF_TRY(apply_globs(t, "freeze", &c->freeze, pf_table_freeze));
    if (c->has_weight_decay_exclude) {
        PF_TRY(apply_globs(t, "weight_decay_exclude", &c->weight_decay_exclude,
                           pf_table_exclude_decay));
    }
    return pf_placement_new(t->table, &t->par, &t->place);
}

/* The resolved run, as pf.json holds it: all options, then what was decided. */
static int make_run_json(struct pf_trainer *t)
{
    struct pf_str options, text;
    struct pf_json *doc = NULL;
    struct pf_json_out out;
    int err;

    pf_str_init(&options);
    pf_str_init(&text);
    PF_TRY_GOTO(pf_config_print(t->config, &options), out);
    PF_TRY_GOTO(pf_json_parse_text(options.text, options.len, "options", &doc), out);
    pf_json_out_init(&out, &text, 2);
    pf_json_out_object_begin(&out);
    pf_json_out_member_i64(&out, "schema", 1);
    pf_json_out_member_string(&out, "version", pf_version_build());
    pf_json_out_member_i64(&out, "world_size", pf_mesh_size(&t->table->mesh));
    pf_json_out_key(&out, "kernels");
    train_print_kernels(t, &out);
    pf_json_out_key(&out, "options");
    pf_json_out_node(&out, doc);
    pf_json_out_object_end(&out);
    PF_TRY_GOTO(pf_json_out_finish(&out), out);
    t->run_json = pf_str_steal(&text);
    err = t->run_json ? 0 : PF_ENOMEM;
out:
    pf_json_free(doc);
    pf_str_release(&text);
    pf_str_release(&options);
    return err;
}

/* What differs between ranks here would differ in every result. */
static int check_ranks_agree(struct pf_trainer *t)
{
    const char *const build = pf_version_build();
    const uint64_t choices = pf_ops_choices_digest(t->ops);
    const char *const resumed = t->resume ? t->resume->digest : "";
    struct pf_str options;
    int err;

    PF_TRY(pf_comm_same(t->world, build, strlen(build), "the pf build"));
    pf_str_init(&options);
    err = pf_config_print(t->config, &options);
    if (!err) {
        err = pf_comm_same(t->world, options.text, options.len, "the config");
    }
    pf_str_release(&options);
    PF_TRY(err);
    PF_TRY(pf_comm_same(t->world, t->config_json, strlen(t->config_json), "the model's config"));
    /* A rank whose view of a shared directory is old would go on from another step. */
    PF_TRY(pf_comm_same(t->world, resumed, strlen(resumed), "the checkpoint that is resumed"));
    return pf_comm_same(t->world, &choices, sizeof choices, "the choice of kernels");
}

bool train_plans_alone(const struct pf_trainer *t)
{
    return pf_comm_size(t->world) == 1 && pf_mesh_size(&t->table->mesh) > 1;
}

static int make_groups(struct pf_trainer *t)
{
    const int *const degree = t->table->mesh.degree;

    t->dp_size = degree[PF_AXIS_DP] * degree[PF_AXIS_SHARDING];
    if (train_plans_alone(t)) {
        t->groups = (struct pf_groups){.world = t->world, .n_stages = degree[PF_AXIS_PP]};
    } else {
        PF_TRY(pf_groups_new(t->world, &t->table->mesh, &t->groups));
        t->dp_rank = pf_comm_rank(t->groups.data);
    }
    return train_part_new(t);
}

static int make_schedules(struct pf_trainer *t)
{
    const struct pf_config *const c = t->config;
    const struct pf_schedule_keys keys = {.mode = c->schedule,
                                          .best_unbalanced_scheduler = c->balanced,
                                          .split_backward = c->split_backward};
    struct pf_schedule_options options = {.n_stages = t->par.degree[PF_AXIS_PP],
                                          .vpp = t->par.vpp,
                                          .n_micro = (int)c->gradient_accumulation_steps};

    PF_TRY(pf_schedule_choose(&keys, t->par.vpp, &t->schedule_kind));
    options.kind = t->schedule_kind;
    if (options.kind == PF_SCHEDULE_ZERO_BUBBLE && t->config->recompute != PF_RECOMPUTE_NONE) {
        return pf_fail(PF_EINVAL, "recompute_granularity and a split backward exclude each other: "
                                  "what was computed again is gone when the weights' turn comes");
    }
    PF_TRY(pf_schedule_new(&options, &t->schedule));
    options.kind = PF_SCHEDULE_EVAL;
    options.n_micro = 1;
    return pf_schedule_new(&options, &t->eval_schedule);
}

static int stage_facts(const struct pf_schedule *schedule, int stage, struct pf_sched_facts *out)
{
    struct pf_sched_facts *const facts = pf_calloc_array((size_t)schedule->n_stages, sizeof *facts);

    if (!facts) {
        return PF_ENOMEM;
    }
    const int err = pf_schedule_check(schedule, facts);
    *out = facts[stage];
    pf_free(facts);
    return err;
}

int train_schedule_facts(struct pf_trainer *t, int stage, struct pf_sched_facts *train_out,
                         struct pf_sched_facts *eval_out)
{
    PF_TRY(stage_facts(t->schedule, stage, train_out));
    return stage_facts(t->eval_schedule, stage, eval_out);
}

/* Everything that a rank decides by itself, before ranks compare. */
static int resolve_locally(struct pf_trainer *t)
{
    PF_TRY(pf_dev_open(t->config->device, &t->dev));
    PF_TRY(find_resume(t));
    PF_TRY(check_resume(t));
    PF_TRY(train_read_model(t));
    PF_TRY(make_table(t));
    return make_schedules(t);
}

int pf_trainer_new(const struct pf_config *config, struct pf_comm *world,
                   struct pf_trainer **trainer_out)
{
    struct pf_trainer *const t = pf_alloc(sizeof *t);
    int err = 0;

    if (!t) {
        return PF_ENOMEM;
    }
    t->config = config;
    t->world = world;
    t->saved_step = -1;
    t->output_lock = -1;
    t->loss_scale = config->dtype == PF_DTYPE_F16 ? config->scale_loss : 1;
    PF_TRY_GOTO(pf_comm_all_agree(world, resolve_locally(t), NULL), out);
    PF_TRY_GOTO(make_groups(t), out);
    PF_TRY_GOTO(pf_comm_all_agree(world, train_open_kernels(t), NULL), out);
    PF_TRY_GOTO(pf_comm_all_agree(world, make_run_json(t), NULL), out);
    PF_TRY_GOTO(check_ranks_agree(t), out);
    *trainer_out = t;
    return 0;
out:
    pf_trainer_free(t);
    return err;
}

const struct pf_model_spec *pf_trainer_spec(const struct pf_trainer *trainer)
{
    return &trainer->spec;
}

struct pf_table *pf_trainer_table(struct pf_trainer *trainer)
{
    return trainer->table;
}

struct pf_schedule *pf_trainer_schedule(struct pf_trainer *trainer)
{
    return trainer->schedule;
}

const float *pf_trainer_param(const struct pf_trainer *trainer, const struct pf_tensor_row *row)
{
    const int64_t at = trainer->master ? trainer->layout->param_at[row - trainer->table->rows] : -1;

    return at >= 0 ? trainer->master + at : NULL;
}

void pf_trainer_free(struct pf_trainer *t)
{
    if (!t) {
        return;
    }
    train_metrics_close(t);
    train_dump_abandon(t);
    train_profile_free(t);
    train_sample_free(t);
    train_output_end(t);
    pf_reader_free(t->reader);
    pf_reader_free(t->eval_reader);
    pf_free(t->token_loss);
    if (t->eval_model != t->model) {
        pf_model_free(t->eval_model);
    }
    pf_model_free(t->model);
    train_state_free(t);
    train_part_free(t);
    train_pipe_free(t->pipe);
    train_pipe_free(t->eval_pipe);
    pf_free(t->batches);
    pf_grad_norm_free(t->norm);
    pf_layout_free(t->layout);
    pf_data_free(t->data);
    pf_data_free(t->eval_data);
    pf_ops_free(t->ops);
    pf_schedule_free(t->schedule);
    pf_schedule_free(t->eval_schedule);
    pf_placement_free(t->place);
    pf_table_free(t->table);
    pf_ckpt_free(t->weights);
    pf_ckpt_free(t->resume);
    pf_free(t->resume_path);
    pf_free(t->config_json);
    pf_free(t->model_dir);
    pf_free(t->run_json);
    pf_free(t->stop_path);
    pf_free(t);
}

/* Data ------------------------------------------------------------------------------------------ */

static struct pf_data_options data_options(const struct pf_trainer *t)
{
    const struct pf_config *const c = t->config;

    /* An evaluation of other data opens nothing else, whatever is named for training. */
    const bool other = c->eval_input_dir && (c->eval_only || !c->input_dir);

    return (struct pf_data_options){.input = other ? c->eval_input_dir : c->input_dir,
                                    .tokenizer = c->tokenizer,
                                    .seq = c->max_seq_length,
                                    .vocab_size = t->spec.vocab_size,
                                    .seed = c->seed,
                                    .epochs = c->max_steps > 0 ? -1 : c->num_train_epochs,
                                    .split = other ? NULL : c->split,
                                    .part = PF_DATA_TRAIN,
                                    .shuffle = c->shuffle,
                                    .mask_documents = c->mask_documents,
                                    .packing = c->packing};
}

static int check_fixed_batch(const struct pf_trainer *t)
{
    const int64_t b = pf_data_fixed_batch(t->data);

    if (b == 0 || b == t->config->global_train_batch_size) {
        return 0;
    }
    return pf_fail(PF_EINVAL,
                   "'%s' holds %lld sequences a step, but per_device_train_batch_size %lld x "
                   "gradient_accumulation_steps %lld x %d data-parallel ranks is %lld",
                   t->config->input_dir, (long long)b,
                   (long long)t->config->per_device_train_batch_size,
                   (long long)t->config->gradient_accumulation_steps, t->dp_size,
                   (long long)t->config->global_train_batch_size);
}

bool train_wants_eval(const struct pf_config *c)
{
    return c->eval_input_dir || c->split || c->eval_only;
}

static int open_data(struct pf_trainer *t)
{
    const struct pf_config *const c = t->config;
    struct pf_data_options options = data_options(t);

    PF_TRY(pf_data_open(&options, &t->data));
    if (!c->eval_only) {
        PF_TRY(check_fixed_batch(t));
    }
    t->total_steps = c->max_steps;
    if (c->max_steps <= 0) {
        t->total_steps = (pf_data_n_positions(t->data) - 1) / c->global_train_batch_size + 1;
    }
    if (c->lr_scheduler_type == PF_LR_TABLE && c->n_lr_table < t->total_steps) {
        return pf_fail(PF_EINVAL, "lr_table has %lld entries, but the run has %lld steps",
                       (long long)c->n_lr_table, (long long)t->total_steps);
    }
    if (!train_wants_eval(c)) {
        return 0;
    }
    options.epochs = 1;
    options.shuffle = false;
    if (c->eval_input_dir) {
        options.input = c->eval_input_dir;
        options.split = NULL;
    } else if (c->split) {
        options.part = PF_DATA_VALID;
    }
    return pf_data_open(&options, &t->eval_data);
}

/* Build ----------------------------------------------------------------------------------------- */

struct pf_reader_options train_reader_options(const struct pf_trainer *t, bool train)
{
    const struct pf_config *const c = t->config;
    const bool ahead = train && c->dataloader_num_workers > 0 && !c->eval_only;

    return (struct pf_reader_options){.seq = c->max_seq_length,
                                      .batch = train ? c->per_device_train_batch_size
                                                     : c->per_device_eval_batch_size,
                                      .n_micro = train ? c->gradient_accumulation_steps : 1,
                                      .rank = t->dp_rank,
                                      .n_ranks = t->dp_size,
                                      .mask_documents = c->mask_documents,
                                      .n_ahead = ahead ? c->prefetch_factor : 0};
}

static int make_readers(struct pf_trainer *t)
{
    const struct pf_config *const c = t->config;
    const int64_t widest = c->per_device_train_batch_size > c->per_device_eval_batch_size
                               ? c->per_device_train_batch_size
                               : c->per_device_eval_batch_size;
    const struct pf_reader_options train = train_reader_options(t, true),
                                   eval = train_reader_options(t, false);

    t->token_loss = pf_calloc_array((size_t)(widest * c->max_seq_length), sizeof *t->token_loss);
    if (!t->token_loss) {
        return PF_ENOMEM;
    }
    PF_TRY(pf_reader_new(t->data, &train, &t->reader));
    return t->eval_data ? pf_reader_new(t->eval_data, &eval, &t->eval_reader) : 0;
}

struct pf_model_options train_model_options(const struct pf_trainer *t, bool train)
{
    const struct pf_config *const c = t->config;

    struct pf_model_options options = {.batch = train ? c->per_device_train_batch_size
                                                      : c->per_device_eval_batch_size,
                                       .seq = c->max_seq_length,
                                       .n_live = train ? t->facts.n_slots : t->eval_facts.n_slots,
                                       .split_backward = train && t->facts.peak_split > 0,
                                       .train = train,
                                       .dtype = c->dtype,
                                       .recompute = c->recompute,
                                       .recompute_method = c->recompute_method,
                                       .recompute_layers = c->recompute_num_layers,
                                       .seed = c->seed};
    train_part_options(t, &options);
    return options;
}

/* One model serves both where their batches are alike. */
static bool shares_model(const struct pf_config *c)
{
    return !c->eval_only && c->per_device_train_batch_size == c->per_device_eval_batch_size;
}

bool train_has_eval_model(const struct pf_config *c)
{
    return train_wants_eval(c) && !shares_model(c);
}

const void *train_weights(const struct pf_trainer *t)
{
    return t->narrow ? (const void *)t->narrow : t->master;
}

static int make_models(struct pf_trainer *t)
{
    const struct pf_config *const c = t->config;
    const struct pf_model_options train = train_model_options(t, true),
                                  eval = train_model_options(t, false);

    if (!c->eval_only) {
        PF_TRY(pf_model_new(&t->spec, t->table, t->layout, t->ops, &train, &t->model));
        pf_model_bind(t->model, train_weights(t), t->grads);
        PF_TRY(train_pipe_new(t, t->model, t->schedule, &t->facts, &t->pipe));
    }
    if (shares_model(c)) {
        t->eval_model = t->model;
    } else if (t->eval_data) {
        PF_TRY(pf_model_new(&t->spec, t->table, t->layout, t->ops, &eval, &t->eval_model));
        pf_model_bind(t->eval_model, train_weights(t), NULL);
    }
    if (t->eval_data) {
        PF_TRY(train_pipe_new(t, t->eval_model, t->eval_schedule, &t->eval_facts, &t->eval_pipe));
    }
    t->batches = pf_calloc_array((size_t)c->gradient_accumulation_steps, sizeof *t->batches);
    return t->batches ? 0 : PF_ENOMEM;
}

/* Whoever made the trainer may have edited its table since. */
static int place_again(struct pf_trainer *t)
{
    pf_placement_free(t->place);
    t->place = NULL;
    return pf_placement_new(t->table, &t->par, &t->place);
}

static int allocate_all(struct pf_trainer *t)
{
    t->stop_path = pf_path_join(t->config->output_dir, PF_STOP_FILE);
    if (!t->stop_path) {
        return PF_ENOMEM;
    }
    PF_TRY(train_schedule_facts(t, t->groups.stage, &t->facts, &t->eval_facts));
    PF_TRY(place_again(t));
    PF_TRY(pf_layout_new(t->place, pf_comm_rank(t->world), &t->layout));
    PF_TRY(pf_grad_norm_new(t->place, PF_ROLE_WEIGHT, pf_comm_rank(t->world), false, &t->norm));
    PF_TRY(train_part_build(t));
    PF_TRY(open_data(t));
    PF_TRY(make_readers(t));
    PF_TRY(train_state_new(t));
    PF_TRY(make_models(t));
    PF_TRY(train_sample_new(t));
    PF_TRY(train_measure_peak(t));
    return train_profile_new(t);
}

int pf_trainer_build(struct pf_trainer *t)
{
    PF_ASSERT(!train_plans_alone(t));
    const bool rank0 = pf_comm_rank(t->world) == 0;

    PF_TRY(pf_comm_all_agree(t->world, refuse_used(t), NULL));
    PF_TRY(pf_comm_all_agree(t->world, rank0 ? train_output_lock(t) : 0, NULL));
    PF_TRY(pf_comm_all_agree(t->world, allocate_all(t), NULL));
    PF_TRY(pf_comm_all_agree(t->world, train_state_fill(t), NULL));
    PF_TRY(pf_comm_all_agree(t->world, rank0 ? train_output_begin(t) : 0, NULL));
    PF_TRY(pf_comm_all_agree(t->world, train_metrics_open(t), NULL));
    pf_log_info0(NULL, "data: %s", pf_data_describe(t->config->eval_only ? t->eval_data : t->data));
    return 0;
}

int pf_trainer_check(struct pf_trainer *t)
{
    const int err = refuse_used(t);

    return pf_comm_all_agree(t->world, err ? err : open_data(t), NULL);
}
