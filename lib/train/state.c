/* SPDX-License-Identifier: Apache-2.0 */
/* The fused buffers: allocation, first values, loading, saving. */
#include "train_internal.h"

#include <pf/digest.h>
#include <pf/error.h>
#include <pf/json.h>
#include <pf/log.h>
#include <pf/mem.h>
#include <pf/rng.h>

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

/* What lies in the fused buffers, as what it is placed and stored; at most four. */
static int buffers(struct pf_trainer *t, struct train_buffer out[4])
{
    int n = 0;

    out[n++] = train_weight_buffer(t);
    if (t->narrow) {
        out[n++] = (struct train_buffer){PF_ROLE_MASTER, PF_DTYPE_F32, t->master};
    }
    if (t->moment1) {
        out[n++] = (struct train_buffer){PF_ROLE_MOMENT1, PF_DTYPE_F32, t->moment1};
        out[n++] = (struct train_buffer){PF_ROLE_MOMENT2, PF_DTYPE_F32, t->moment2};
    }
    return n;
}

/* The fp32 parameters, which stored weights are rounded from or which are the weights themselves. */
static struct train_buffer master_buffer(const struct pf_trainer *t)
{
    return (struct train_buffer){t->narrow ? PF_ROLE_MASTER : PF_ROLE_WEIGHT, PF_DTYPE_F32,
                                 t->master};
}

struct train_buffer train_weight_buffer(const struct pf_trainer *t)
{
    return t->narrow ? (struct train_buffer){PF_ROLE_WEIGHT, t->config->dtype, t->narrow}
                     : master_buffer(t);
}

/* Elements [at, at + n) of a whole tensor. As of a nn.Embedding with a padding_idx, that row of the
 * embedding is zero. */
static void draw(const struct pf_trainer *t, const struct pf_tensor_row *row, uint64_t key,
                 int64_t at, float *p, int64_t n)
{
    const bool pads = row->slot == PF_SLOT_EMBED && t->spec.padding_id >= 0;
    const int64_t pad_lo = pads ? t->spec.padding_id * row->shape[1] : 0;
    const int64_t pad_hi = pads ? pad_lo + row->shape[1] : 0;

    if (row->init == PF_INIT_NORMAL) {
        pf_rng_fill_normal_f32(key, 0, (uint64_t)at, 0, row->init_std, p, (size_t)n);
    }
    for (int64_t i = 0; row->init == PF_INIT_ONES && i < n; i++) {
        p[i] = 1;
    }
    for (int64_t i = pad_lo > at ? pad_lo : at; i < pad_hi && i < at + n; i++) {
        p[i - at] = 0;
    }
}

static void draw_part(const struct pf_trainer *t, const struct pf_tensor_row *row, uint64_t key,
                      const struct pf_local_shard *part)
{
    int64_t at, n;

    for (int64_t i = part->range_lo; i < part->range_hi; i += n) {
        n = pf_box_run(&part->box, row->shape, i, &at);
        n = n < part->range_hi - i ? n : part->range_hi - i;
        draw(t, row, key, at, t->master + part->at + i - part->range_lo, n);
    }
}

/* The elements that this rank has, each as it would be in any other layout. Fresh memory is zero. */
static void initialise(struct pf_trainer *t)
{
    const uint64_t all = pf_rng_derive_name(t->config->seed, "init");
    const enum pf_role role = master_buffer(t).role;
    struct pf_local_shard parts[PF_TABLE_MAX_BOXES];

    for (int64_t i = 0; i < t->table->n_rows; i++) {
        const struct pf_tensor_row *const row = &t->table->rows[i];
        const uint64_t key = pf_rng_derive_name(all, row->name);
        const int n = pf_placement_local(t->place, i, role, pf_comm_rank(t->world), parts);
        for (int k = 0; k < n && row->init != PF_INIT_ZEROS; k++) {
            draw_part(t, row, key, &parts[k]);
        }
    }
}

struct pf_ckpt_live train_live_whole(const struct pf_tensor_row *row, enum pf_role role,
                                     enum pf_dtype dtype)
{
    struct pf_ckpt_live live = {
        .name = row->name, .role = role, .dtype = dtype, .n_dims = row->n_dims};

    live.box.n_dims = row->n_dims;
    for (int d = 0; d < row->n_dims; d++) {
        live.shape[d] = row->shape[d];
        live.box.hi[d] = row->shape[d];
    }
    return live;
}

/* The pieces of a row that this rank has in a buffer; none of a tied row, which has no storage. Returns
 * how many; live NULL counts. */
static int64_t add_pieces(const struct pf_trainer *t, int64_t row, const struct train_buffer *from,
                          struct pf_ckpt_live *live)
{
    struct pf_local_shard parts[PF_TABLE_MAX_BOXES];
    const int n = pf_placement_local(t->place, row, from->role, pf_comm_rank(t->world), parts);

    for (int k = 0; live && k < n; k++) {
        live[k] = train_live_whole(&t->table->rows[row], from->role, from->dtype);
        live[k].box = parts[k].box;
        live[k].range_lo = parts[k].range_lo;
        live[k].range_hi = parts[k].range_hi;
        live[k].data = (uint8_t *)from->data + (size_t)parts[k].at * pf_dtype_bytes(from->dtype);
    }
    return n;
}

/* Everything that a checkpoint holds, as pieces of this rank. Returns how many; live NULL counts. */
static int64_t list_state(struct pf_trainer *t, struct pf_ckpt_live *live)
{
    struct train_buffer from[4];
    const int n_from = buffers(t, from);
    int64_t n = 0;

    for (int64_t i = 0; i < t->table->n_rows; i++) {
        for (int k = 0; k < n_from; k++) {
            const bool moment = from[k].role == PF_ROLE_MOMENT1 || from[k].role == PF_ROLE_MOMENT2;
            if (!moment || !t->table->rows[i].frozen) {
                n += add_pieces(t, i, &from[k], live ? live + n : NULL);
            }
        }
    }
    return n;
}

/* The list, which is freed with pf_free. */
static int live_state(struct pf_trainer *t, struct pf_ckpt_live **live_out, int64_t *n_out)
{
    const int64_t n = list_state(t, NULL);
    struct pf_ckpt_live *const live = pf_calloc_array((size_t)n + 1, sizeof *live);

    if (!live) {
        return PF_ENOMEM;
    }
    *n_out = list_state(t, live);
    *live_out = live;
    return 0;
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

/* What this rank holds of the parameters, under the names that the files have for them. All rows are
 * looked for: what is missing is missed by every rank. */
static int wanted_weights(struct pf_trainer *t, struct pf_ckpt_live *live, int64_t *n_out)
{
    const struct train_buffer to = master_buffer(t);
    int64_t n = 0;

    for (int64_t i = 0; i < t->table->n_rows; i++) {
        const struct pf_tensor_row *const row = &t->table->rows[i];
        if (row->tied_to >= 0) {
            continue;
        }
        const char *const name = source_name(t, row);
        PF_TRY(check_row(t, row, name));
        for (int64_t end = n + add_pieces(t, i, &to, live + n); n < end; n++) {
            live[n].role = PF_ROLE_WEIGHT;
            live[n].name = name;
        }
    }
    *n_out = n;
    return 0;
}

/* Each file is read by one rank, and what it holds is sent to the others. */
static int load_weights(struct pf_trainer *t)
{
    struct pf_ckpt_live *const live =
        pf_calloc_array(PF_TABLE_MAX_BOXES * (size_t)t->table->n_rows, sizeof *live);
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
    struct pf_ckpt_live *live = NULL;
    int64_t n = 0;
    int err = pf_comm_all_agree(t->world, live_state(t, &live, &n), NULL);

    err = err ? err : pf_ckpt_load(t->world, t->resume, live, n, true);
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
    pf_parallel_json(&t->par, &out);
    return pf_json_out_finish(&out);
}

int train_save(struct pf_trainer *t)
{
    struct pf_ckpt_live *live = NULL;
    struct pf_str state, mesh;
    struct pf_ckpt_saved saved = {0};
    int64_t n = 0;
    int err;

    pf_str_init(&state);
    pf_str_init(&mesh);
    err = live_state(t, &live, &n);
    err = err ? err : state_json(t, &state);
    err = err ? err : mesh_json(t, &mesh);
    PF_TRY_GOTO(pf_comm_all_agree(t->world, err, NULL), out);
    const struct pf_ckpt_save save = {.output_dir = t->config->output_dir,
                                      .step = t->step,
                                      .config_json = t->config_json,
                                      .run_json = t->run_json,
                                      .state_json = state.text,
                                      .mesh_json = mesh.text,
                                      .codec = t->config->save_compress,
                                      .parity = t->config->save_parity,
                                      .replace = t->resume != NULL,
                                      .total_limit = (int)t->config->save_total_limit};
    PF_TRY_GOTO(pf_ckpt_save(t->world, &save, live, n, &saved), out);
    t->saved_step = t->step;
    err = train_metrics_save(t, saved.seconds, saved.bytes);
out:
    pf_str_release(&state);
    pf_str_release(&mesh);
    pf_free(live);
    return err;
}
