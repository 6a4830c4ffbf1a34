/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dumps: whole tensors of a step under output_dir/dump/step-000001/, the same whatever the layout, for
 * comparison with another program: logits.safetensors (logits [B,S,V]), hidden.safetensors
 * (hidden.embed, hidden.layer.i, hidden.final_norm [B,S,H]), grads.safetensors (the mean gradient
 * before clipping under Hugging Face names). B is the global batch in its order. Rank 0 writes; the
 * others send it their micro-batches, and their pieces of gradients. A dump may allocate.
 */
#include "train_internal.h"

#include <pf/error.h>
#include <pf/mem.h>
#include <pf/safetensors.h>

#include <stdio.h>

/* Elements of a gradient that are divided at a time. */
enum { MEAN_CHUNK = 1 << 16 };

struct dump {
    char *dir, *final; /* where it is written, and what it is called when it is whole; rank 0 */
    struct pf_st_writer *logits, *hidden; /* NULL: not asked for, or not rank 0 */
    float *buffer; /* one micro-batch of the widest tensor; NULL for gradients alone */
};

bool train_dump_due(const struct pf_trainer *t)
{
    for (int64_t i = 0; i < t->config->n_dump_steps; i++) {
        if (t->config->dump_steps[i] == t->step) {
            return true;
        }
    }
    return false;
}

static int writer_begin(const char *dir, const char *name, struct pf_st_writer *w)
{
    char *const path = pf_path_join(dir, name);

    if (!path) {
        return PF_ENOMEM;
    }
    const int err = pf_st_writer_begin(w, path);
    pf_free(path);
    return err;
}

static int add(struct pf_trainer *t, struct pf_st_writer *w, const char *name, int64_t width)
{
    const uint64_t shape[] = {(uint64_t)t->config->global_train_batch_size,
                              (uint64_t)t->config->max_seq_length, (uint64_t)width};

    return pf_st_writer_add_tensor(w, name, PF_DTYPE_F32, 3, shape, NULL);
}

static int open_logits(struct pf_trainer *t, struct dump *d)
{
    PF_TRY(pf_st_writer_new(&d->logits));
    PF_TRY(add(t, d->logits, "logits", t->spec.vocab_size));
    return writer_begin(d->dir, "logits.safetensors", d->logits);
}

/* Tensor i of hidden.safetensors, in the order in which they are added. */
static void hidden_name(const struct pf_trainer *t, int64_t i, char name[64])
{
    if (i == 0) {
        snprintf(name, 64, "hidden.embed");
    } else if (i <= t->spec.n_layers) {
        snprintf(name, 64, "hidden.layer.%lld", (long long)i - 1);
    } else {
        snprintf(name, 64, "hidden.final_norm");
    }
}

static int open_hidden(struct pf_trainer *t, struct dump *d)
{
    PF_TRY(pf_st_writer_new(&d->hidden));
    for (int64_t i = 0; i < t->spec.n_layers + 2; i++) {
        char name[64];
        hidden_name(t, i, name);
        PF_TRY(add(t, d->hidden, name, t->spec.hidden));
    }
    return writer_begin(d->dir, "hidden.safetensors", d->hidden);
}

static void dump_free(struct dump *d)
{
    if (d) {
        pf_st_writer_free(d->logits);
        pf_st_writer_free(d->hidden);
        pf_free(d->buffer);
        pf_free(d->dir);
        pf_free(d->final);
        pf_free(d);
    }
}

int train_dump_begin(struct pf_trainer *t)
{
    struct dump *const d = pf_alloc(sizeof *d);
    int err = 0;

    if (!d) {
        return PF_ENOMEM;
    }
    t->dump = d;
    if (t->config->dump & (PF_DUMP_LOGITS | PF_DUMP_HIDDEN)) {
        const int64_t v = t->spec.vocab_size, h = t->spec.hidden;
        d->buffer = pf_calloc_array((size_t)(pf_model_n_tokens(t->model) * (v > h ? v : h)),
                                    sizeof *d->buffer);
        err = d->buffer ? 0 : PF_ENOMEM;
    }
    if (!err && pf_comm_rank(t->world) == 0) {
        d->dir = pf_asprintf("%s/dump/.step-%06lld", t->config->output_dir, (long long)t->step);
        d->final = pf_asprintf("%s/dump/step-%06lld", t->config->output_dir, (long long)t->step);
        err = d->dir && d->final ? pf_rmtree(d->dir) : PF_ENOMEM;
        err = err ? err : pf_mkdirs(d->dir);
        if (!err && (t->config->dump & PF_DUMP_LOGITS)) {
            err = open_logits(t, d);
        }
        if (!err && (t->config->dump & PF_DUMP_HIDDEN)) {
            err = open_hidden(t, d);
        }
    }
    return pf_comm_all_agree(t->world, err, NULL);
}

/* Every rank gives one micro-batch [b,S,width] of tensor `name`; rank 0 puts each where it belongs.
 * buffer may be data. */
static int gather(struct pf_trainer *t, struct pf_st_writer *w, size_t tensor, int micro,
                  const float *data, int64_t width)
{
    const size_t bytes = (size_t)(pf_model_n_tokens(t->model) * width) * sizeof(float);

    if (t->dp_rank != 0) {
        return pf_comm_send(t->groups.data, data, bytes, 0, 0);
    }
    for (int r = 0; r < t->dp_size; r++) {
        const uint64_t at = ((uint64_t)micro * (uint64_t)t->dp_size + (uint64_t)r) * bytes;
        if (r > 0) {
            PF_TRY(pf_comm_recv(t->groups.data, t->dump->buffer, bytes, r, 0));
        }
        PF_TRY(pf_st_writer_write(w, tensor, at, r > 0 ? t->dump->buffer : data, bytes));
    }
    return 0;
}

int train_dump_micro(struct pf_trainer *t, int micro, int chunk, int live)
{
    struct dump *const d = t->dump;

    if (t->config->dump & PF_DUMP_LOGITS) {
        PF_TRY(pf_model_logits(t->model, live, d->buffer));
        PF_TRY(gather(t, d->logits, 0, micro, d->buffer, t->spec.vocab_size));
    }
    if (t->config->dump & PF_DUMP_HIDDEN) {
        for (int64_t i = 0; i < t->spec.n_layers + 2; i++) {
            PF_TRY(pf_model_hidden(t->model, chunk, live, i, d->buffer));
            PF_TRY(gather(t, d->hidden, (size_t)i, micro, d->buffer, t->spec.hidden));
        }
    }
    return 0;
}

/* Rows that have a gradient of their own. */
static bool has_gradient(const struct pf_tensor_row *row)
{
    return row->tied_to < 0 && !row->frozen;
}

static int describe_grads(const struct pf_trainer *t, struct pf_st_writer *w)
{
    for (int64_t i = 0; i < t->table->n_rows; i++) {
        const struct pf_tensor_row *const row = &t->table->rows[i];
        uint64_t shape[PF_TENSOR_MAX_DIMS];
        for (int d = 0; d < row->n_dims; d++) {
            shape[d] = (uint64_t)row->shape[d];
        }
        if (has_gradient(row)) {
            PF_TRY(pf_st_writer_add_tensor(w, row->name, PF_DTYPE_F32, row->n_dims, shape, NULL));
        }
    }
    return 0;
}

/* The mean of a gradient's sum, which stays as it is. */
static int write_mean(struct pf_st_writer *w, size_t tensor, const float *sum, int64_t n,
                      double scale, float mean[MEAN_CHUNK])
{
    for (int64_t at = 0; at < n; at += MEAN_CHUNK) {
        const int64_t m = n - at < MEAN_CHUNK ? n - at : MEAN_CHUNK;
        for (int64_t j = 0; j < m; j++) {
            mean[j] = (float)(sum[at + j] * scale);
        }
        PF_TRY(pf_st_writer_write(w, tensor, (uint64_t)at * sizeof *mean, mean,
                                  (uint64_t)m * sizeof *mean));
    }
    return 0;
}

static int write_grads(struct pf_trainer *t, struct train_gather *g, struct pf_st_writer *w,
                       double scale)
{
    float *const mean = pf_calloc_array(MEAN_CHUNK, sizeof *mean);
    size_t n_added = 0;
    int err = mean ? describe_grads(t, w) : PF_ENOMEM;

    err = err ? err : writer_begin(t->dump->dir, "grads.safetensors", w);
    for (int64_t i = 0; !err && i < t->table->n_rows; i++) {
        const struct pf_tensor_row *const row = &t->table->rows[i];
        const void *sum;
        if (has_gradient(row)) {
            err = train_gather_fetch(g, i, &sum);
            err = err ? err : write_mean(w, n_added++, sum, pf_tensor_row_count(row), scale, mean);
        }
    }
    pf_free(mean);
    return err ? err : pf_st_writer_finish(w, false);
}

int train_dump_grads(struct pf_trainer *t, double scale)
{
    /* Gradients lie where the weights would. */
    const struct train_buffer from = {PF_ROLE_WEIGHT, PF_DTYPE_F32, t->grads};
    struct pf_st_writer *w = NULL;
    struct train_gather g;
    int err, end;

    if (!(t->config->dump & PF_DUMP_GRADS)) {
        return 0;
    }
    train_gather_init(&g, t, &from);
    if (pf_comm_rank(t->world) == 0) {
        err = pf_st_writer_new(&w);
        err = err ? err : write_grads(t, &g, w, scale);
        end = train_gather_end(&g);
        err = err ? err : end;
    } else {
        err = train_gather_serve(&g);
    }
    pf_st_writer_free(w);
    train_gather_release(&g);
    return pf_comm_all_agree(t->world, err, NULL);
}

int train_dump_end(struct pf_trainer *t)
{
    struct dump *const d = t->dump;
    int err = 0;

    if (d && d->logits) {
        err = pf_st_writer_finish(d->logits, false);
    }
    if (d && d->hidden && !err) {
        err = pf_st_writer_finish(d->hidden, false);
    }
    if (d && d->final && !err) {
        err = pf_rmtree(d->final); /* of a run that was resumed before this step */
        err = err ? err : pf_rename_durable(d->dir, d->final);
    }
    train_dump_abandon(t);
    return err;
}

void train_dump_abandon(struct pf_trainer *t)
{
    dump_free(t->dump);
    t->dump = NULL;
}
