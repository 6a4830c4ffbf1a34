/* SPDX-License-Identifier: Apache-2.0 */
/* The fused buffers: allocation, first values, loading, saving, export. */
#include "train_internal.h"

#include <pf/digest.h>
#include <pf/error.h>
#include <pf/json.h>
#include <pf/log.h>
#include <pf/mem.h>
#include <pf/rng.h>

#include <errno.h>
#include <string.h>

static int allocate(struct pf_trainer *t, int64_t n, float **block_out)
{
    void *block;

    PF_TRY(pf_dev_mem_alloc(t->dev, (size_t)n * sizeof(float), &block));
    *block_out = block;
    return 0;
}

static bool narrow_dtype(const struct pf_trainer *t)
{
    return t->config->dtype != PF_DTYPE_F32;
}

int train_state_new(struct pf_trainer *t)
{
    PF_TRY(allocate(t, t->layout->param_elements, &t->master));
    if (narrow_dtype(t)) {
        void *block;
        PF_TRY(pf_dev_mem_alloc(t->dev, (size_t)t->layout->param_elements * sizeof *t->narrow,
                                &block));
        t->narrow = block;
    }
    if (t->config->eval_only) {
        return 0;
    }
    PF_TRY(allocate(t, t->layout->grad_elements, &t->grads));
    PF_TRY(allocate(t, t->layout->grad_reduced_elements, &t->moment1));
    return allocate(t, t->layout->grad_reduced_elements, &t->moment2);
}

void train_state_free(struct pf_trainer *t)
{
    if (!t->dev) {
        return;
    }
    void *const blocks[] = {t->master, t->narrow, t->grads, t->moment1, t->moment2};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        if (blocks[i]) {
            pf_dev_mem_free(t->dev, blocks[i]);
        }
    }
    pf_dev_close(t->dev);
    t->dev = NULL;
}

/* Round all masters into what the model computes with. */
static int narrow_all(struct pf_trainer *t)
{
    if (!t->narrow) {
        return 0;
    }
    return pf_dtype_convert(PF_DTYPE_F32, t->master, t->config->dtype, t->narrow,
                            (size_t)t->layout->param_elements);
}

static void initialise(struct pf_trainer *t)
{
    const uint64_t key = pf_rng_derive_name(t->config->seed, "init");

    for (int64_t i = 0; i < t->table->n_rows; i++) {
        const struct pf_tensor_row *const row = &t->table->rows[i];
        float *const p = t->master + t->layout->param_at[i];
        const size_t n = (size_t)t->layout->count[i];
        if (row->tied_to >= 0 || row->init == PF_INIT_ZEROS) {
            continue; /* fresh memory is zero */
        }
        if (row->init == PF_INIT_ONES) {
            for (size_t j = 0; j < n; j++) {
                p[j] = 1;
            }
        } else {
            pf_rng_fill_normal_f32(pf_rng_derive_name(key, row->name), 0, 0, 0, row->init_std, p,
                                   n);
        }
        if (row->slot == PF_SLOT_EMBED && t->spec.padding_id >= 0) {
            /* As nn.Embedding with a padding_idx. */
            memset(p + t->spec.padding_id * row->shape[1], 0, (size_t)row->shape[1] * sizeof *p);
        }
    }
}

static struct pf_ckpt_live live_of(const struct pf_tensor_row *row, enum pf_role role,
                                   enum pf_dtype dtype, void *data)
{
    struct pf_ckpt_live live = {
        .name = row->name, .role = role, .dtype = dtype, .n_dims = row->n_dims, .data = data};

    live.box.n_dims = row->n_dims;
    for (int d = 0; d < row->n_dims; d++) {
        live.shape[d] = row->shape[d];
        live.box.hi[d] = row->shape[d];
    }
    return live;
}

/* Everything that a checkpoint holds, as pieces of this rank; up to four a row. */
static int64_t live_state(struct pf_trainer *t, struct pf_ckpt_live *live)
{
    int64_t n = 0;

    for (int64_t i = 0; i < t->table->n_rows; i++) {
        const struct pf_tensor_row *const row = &t->table->rows[i];
        const int64_t p = t->layout->param_at[i], g = t->layout->grad_at[i];
        if (row->tied_to >= 0) {
            continue;
        }
        if (t->narrow) {
            live[n++] = live_of(row, PF_ROLE_WEIGHT, t->config->dtype, t->narrow + p);
            live[n++] = live_of(row, PF_ROLE_MASTER, PF_DTYPE_F32, t->master + p);
        } else {
            live[n++] = live_of(row, PF_ROLE_WEIGHT, PF_DTYPE_F32, t->master + p);
        }
        if (g >= 0 && t->moment1) {
            live[n++] = live_of(row, PF_ROLE_MOMENT1, PF_DTYPE_F32, t->moment1 + g);
            live[n++] = live_of(row, PF_ROLE_MOMENT2, PF_DTYPE_F32, t->moment2 + g);
        }
    }
    return n;
}

static struct pf_ckpt_live *live_new(const struct pf_trainer *t)
{
    return pf_calloc_array(4 * (size_t)t->table->n_rows + 1, sizeof(struct pf_ckpt_live));
}

/* The name under which a row stands in the Hugging Face files that were opened. */
static const char *source_name(const struct pf_trainer *t, const struct pf_tensor_row *row)
{
    if (row->slot == PF_SLOT_EMBED) {
        return t->embed_from;
    }
    return row->slot == PF_SLOT_HEAD_W ? t->head_from : row->name;
}

/* Are name and shape of a row in the files that were opened? */
static int check_row(const struct pf_trainer *t, const struct pf_tensor_row *row, const char *name)
{
    const struct pf_ckpt_tensor *const tensor = pf_ckpt_find(t->weights, name, PF_ROLE_WEIGHT);

    if (!tensor) {
        return pf_fail(PF_EINCOMPLETE, "'%s' has no tensor '%s'", t->config->model_name_or_path,
                       name);
    }
    bool same = tensor->n_dims == row->n_dims;
    for (int d = 0; same && d < row->n_dims; d++) {
        same = tensor->shape[d] == row->shape[d];
    }
    return same ? 0
                : pf_fail(PF_EFORMAT,
                          "'%s': tensor '%s' does not have the shape that config.json says",
                          t->config->model_name_or_path, name);
}

/* A tensor that the model does not know would be lost without a word. */
static int refuse_unexpected(struct pf_trainer *t)
{
    for (int64_t i = 0; i < t->weights->n_tensors; i++) {
        const struct pf_ckpt_tensor *const tensor = &t->weights->tensors[i];
        const bool known = tensor->role != PF_ROLE_WEIGHT ||
                           pf_table_find_name(t->table, tensor->name) ||
                           (t->spec.tied_head && strcmp(tensor->name, "lm_head.weight") == 0);
        if (!known) {
            return pf_fail(PF_EFORMAT, "'%s': tensor '%s' is not part of this model",
                           t->config->model_name_or_path, tensor->name);
        }
    }
    return 0;
}

/* All rows that own storage, under the names that the files have for them. */
static int wanted_weights(struct pf_trainer *t, struct pf_ckpt_live *live, int64_t *n_out)
{
    int64_t n = 0;

    for (int64_t i = 0; i < t->table->n_rows; i++) {
        const struct pf_tensor_row *const row = &t->table->rows[i];
        if (row->tied_to < 0) {
            live[n] =
                live_of(row, PF_ROLE_WEIGHT, PF_DTYPE_F32, t->master + t->layout->param_at[i]);
            live[n].name = source_name(t, row);
            PF_TRY(check_row(t, row, live[n++].name));
        }
    }
    *n_out = n;
    return 0;
}

/* Each file is read by one rank, and what it holds is sent to the others. */
static int load_weights(struct pf_trainer *t)
{
    struct pf_ckpt_live *const live = live_new(t);
    int64_t n = 0;
    int err = live ? refuse_unexpected(t) : PF_ENOMEM;

    err = err ? err : wanted_weights(t, live, &n);
    err = pf_comm_all_agree(t->world, err, NULL);
    err = err ? err : pf_ckpt_load(t->world, t->weights, live, n, false);
    pf_free(live);
    return err;
}

static int read_trainer_state(struct pf_trainer *t)
{
    struct pf_json_options options = {.name = t->resume_path, .error_code = PF_EFORMAT};
    struct pf_json *doc = NULL;
    const char *digest;
    char now[PF_DIGEST_HEX_BYTES];
    int err;

    PF_TRY(pf_json_parse_text_with(t->resume->state_json, strlen(t->resume->state_json), &options,
                                   &doc));
    PF_TRY_GOTO(pf_json_need_i64(doc, "step", &t->step), out);
    if (t->step != t->resume->step) {
        err = pf_fail(PF_EFORMAT, "'%s' is of step %lld, but its state of step %lld",
                      t->resume_path, (long long)t->resume->step, (long long)t->step);
        goto out;
    }
    PF_TRY_GOTO(pf_json_i64(doc, "updates", t->step, &t->updates), out);
    PF_TRY_GOTO(pf_json_f64(doc, "loss_scale", t->loss_scale, &t->loss_scale), out);
    PF_TRY_GOTO(pf_json_i64(doc, "loss_scale_good_steps", 0, &t->scale_good_steps), out);
    PF_TRY_GOTO(pf_json_need_i64(doc, "samples", &t->samples), out);
    PF_TRY_GOTO(pf_json_need_i64(doc, "tokens_seen", &t->tokens_seen), out);
    PF_TRY_GOTO(pf_json_need_string(doc, "data_digest", &digest), out);
    pf_data_digest(t->data, now);
    if (strcmp(now, digest) != 0) {
        pf_log_warn0("train",
                     "the data is not what step %lld was trained on: from here on the order "
                     "is that of the new data",
                     (long long)t->step);
    }
    if (t->config->ignore_data_skip) {
        t->samples = 0;
    }
    t->saved_step = t->step;
    pf_log_info0(NULL, "resuming from '%s', after step %lld", t->resume_path, (long long)t->step);
out:
    pf_json_free(doc);
    return err;
}

static int resume_state(struct pf_trainer *t)
{
    struct pf_ckpt_live *const live = live_new(t);

    if (!live) {
        return PF_ENOMEM;
    }
    int err = pf_ckpt_load(t->world, t->resume, live, live_state(t, live), true);
    pf_free(live);
    return err ? err : read_trainer_state(t);
}

int train_state_fill(struct pf_trainer *t)
{
    if (t->resume) {
        return resume_state(t);
    }
    if (t->weights) {
        PF_TRY(load_weights(t));
    } else {
        initialise(t);
    }
    return narrow_all(t);
}

static int state_json(const struct pf_trainer *t, struct pf_str *text)
{
    struct pf_json_out out;
    char digest[PF_DIGEST_HEX_BYTES];

    pf_data_digest(t->data, digest);
    pf_json_out_init(&out, text, 0);
    pf_json_out_object_begin(&out);
    pf_json_out_member_i64(&out, "step", t->step);
    pf_json_out_member_i64(&out, "updates", t->updates);
    pf_json_out_member_f64(&out, "loss_scale", t->loss_scale);
    pf_json_out_member_i64(&out, "loss_scale_good_steps", t->scale_good_steps);
    pf_json_out_member_i64(&out, "samples", t->samples);
    pf_json_out_member_i64(&out, "tokens_seen", t->tokens_seen);
    pf_json_out_member_i64(&out, "total_steps", t->total_steps);
    pf_json_out_member_string(&out, "data_digest", digest);
    pf_json_out_object_end(&out);
    return pf_json_out_finish(&out);
}

static int mesh_json(const struct pf_trainer *t, struct pf_str *text)
{
    struct pf_json_out out;

    pf_json_out_init(&out, text, 0);
    pf_json_out_object_begin(&out);
    for (int a = 0; a < PF_AXIS_COUNT; a++) {
        pf_json_out_member_i64(&out, pf_axis_name((enum pf_axis)a), t->table->mesh.degree[a]);
    }
    pf_json_out_member_i64(&out, "ep", t->table->mesh.ep);
    pf_json_out_object_end(&out);
    return pf_json_out_finish(&out);
}

int train_save(struct pf_trainer *t)
{
    struct pf_ckpt_live *const live = live_new(t);
    struct pf_str state, mesh;
    struct pf_ckpt_saved saved = {0};
    int err = live ? 0 : PF_ENOMEM;

    pf_str_init(&state);
    pf_str_init(&mesh);
    if (err) {
        goto out;
    }
    PF_TRY_GOTO(state_json(t, &state), out);
    PF_TRY_GOTO(mesh_json(t, &mesh), out);
    const struct pf_ckpt_save save = {.output_dir = t->config->output_dir,
                                      .step = t->step,
                                      .config_json = t->config_json,
                                      .run_json = t->run_json,
                                      .state_json = state.text,
                                      .mesh_json = mesh.text,
                                      .replace = t->resume != NULL,
                                      .total_limit = (int)t->config->save_total_limit};
    PF_TRY_GOTO(pf_ckpt_save(t->world, &save, live, live_state(t, live), &saved), out);
    t->saved_step = t->step;
    err = train_metrics_save(t, saved.seconds, saved.bytes);
out:
    pf_str_release(&state);
    pf_str_release(&mesh);
    pf_free(live);
    return err;
}

/* Put a whole directory in the place of an older one: in one step, or, where the filesystem cannot
 * exchange names, with an instant in which there is none. */
static int replace_dir(const char *aside, const char *dir)
{
    char *parent;

    if (!pf_path_exists(dir)) {
        return pf_rename_durable(aside, dir);
    }
    errno = 0;
    if (pf_rename_exchange(aside, dir) != 0) {
        if (errno != EINVAL && errno != ENOSYS) {
            return PF_EIO;
        }
        pf_error_clear();
        PF_TRY(pf_rmtree(dir));
        return pf_rename_durable(aside, dir);
    }
    parent = pf_path_dir(dir);
    const int err = parent ? pf_fsync_path(parent) : PF_ENOMEM;
    pf_free(parent);
    return err ? err : pf_rmtree(aside);
}

/* The old export stays until the new one is whole: the run may even have started from it. */
static int export_to(struct pf_trainer *t, const char *aside, const char *dir)
{
    struct pf_ckpt_live *const live = live_new(t);

    if (!live) {
        return PF_ENOMEM;
    }
    int err = pf_rmtree(aside);
    if (!err) {
        const int64_t n = live_state(t, live);
        err = pf_hf_write(aside, live, n, t->config->dtype, t->config_json, t->model_dir, 0);
    }
    pf_free(live);
    return err ? err : replace_dir(aside, dir);
}

/* Rank 0 holds everything that is exported; the others wait for its outcome. */
int train_export(struct pf_trainer *t, const char *name)
{
    int err = 0;

    if (pf_comm_rank(t->world) == 0) {
        char *const dir = pf_path_join(t->config->output_dir, name);
        char *const aside = pf_asprintf("%s/.new-%s", t->config->output_dir, name);
        err = dir && aside ? export_to(t, aside, dir) : PF_ENOMEM;
        err = err ? err : train_metrics_event(t, "export", "path", name);
        pf_free(aside);
        pf_free(dir);
    }
    return pf_comm_all_agree(t->world, err, NULL);
}
