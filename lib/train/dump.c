/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dumps: whole tensors of a step under output_dir/dump/step-000001/, the same whatever the layout, for
 * comparison with another program: logits.safetensors (logits [B,S,V]), hidden.safetensors
 * (hidden.embed, hidden.layer.i, hidden.final_norm [B,S,H]), grads.safetensors (the mean gradient
 * before clipping under Hugging Face names). B is the global batch in its order. Rank 0 writes; the
 * others send it their micro-batches, and their pieces of gradients. Where there are pipeline stages
 * micro-batches wait in memory until the schedule has run: a stage must not wait for rank 0 in the
 * middle of it. A dump may allocate.
 */
#include "train_internal.h"

#include <pf/error.h>
#include <pf/mem.h>
#include <pf/safetensors.h>

#include <stdio.h>
#include <string.h>

/* Elements of a gradient that are divided at a time. */
enum { MEAN_CHUNK = 1 << 16 };

struct dump {
    char *dir, *final; /* where it is written, and what it is called when it is whole; rank 0 */
    struct pf_st_writer *logits, *hidden; /* NULL: not asked for, or not rank 0 */
    struct pf_model_chunk *chunks;        /* of this stage */
    float *buffer; /* one micro-batch of the widest tensor; NULL for gradients alone */
    float **kept;  /* [tensors, micro-batches] what this rank is to send; NULL: nothing */
    int err;       /* rank 0: why a write failed; the others send all the same */
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

/* Tensors of activations: the logits, then the hidden states from the embedding on. */
static int64_t n_tensors(const struct pf_trainer *t)
{
    return t->spec.n_layers + 3;
}

static bool is_wanted(const struct pf_trainer *t, int64_t tensor)
{
    return (t->config->dump & (tensor == 0 ? PF_DUMP_LOGITS : PF_DUMP_HIDDEN)) != 0;
}

static int64_t width_of(const struct pf_trainer *t, int64_t tensor)
{
    return tensor == 0 ? t->spec.vocab_size : t->spec.hidden;
}

/* The rank that has a tensor of data rank r's micro-batches: of the stage whose chunk has the layer, or
 * the head, the first of the tensor-parallel ranks, which all have the whole. */
static int holder_of(const struct pf_trainer *t, int64_t tensor, int r)
{
    const int64_t *const starts = pf_placement_starts(t->place);
    const struct pf_mesh *const mesh = &t->table->mesh;
    const int n_sharding = mesh->degree[PF_AXIS_SHARDING];
    int coord[PF_AXIS_COUNT] = {0}, chunk = t->par.degree[PF_AXIS_PP] * t->par.vpp - 1;

    while (tensor > 0 && tensor <= t->spec.n_layers && starts[chunk] > tensor - 1) {
        chunk--;
    }
    coord[PF_AXIS_DP] = r / n_sharding;
    coord[PF_AXIS_SHARDING] = r % n_sharding;
    coord[PF_AXIS_PP] = pf_parallel_stage_of(&t->par, chunk);
    return pf_mesh_rank(mesh, coord);
}

static void dump_free(const struct pf_trainer *t, struct dump *d)
{
    const int64_t n = n_tensors(t) * t->config->gradient_accumulation_steps;

    if (d) {
        for (int64_t i = 0; d->kept && i < n; i++) {
            pf_free(d->kept[i]);
        }
        pf_free(d->kept);
        pf_free(d->chunks);
        pf_st_writer_free(d->logits);
        pf_st_writer_free(d->hidden);
        pf_free(d->buffer);
        pf_free(d->dir);
        pf_free(d->final);
        pf_free(d);
    }
}

static int allocate(struct pf_trainer *t, struct dump *d)
{
    const int64_t v = t->spec.vocab_size, h = t->spec.hidden,
                  n = n_tensors(t) * t->config->gradient_accumulation_steps;

    if (!(t->config->dump & (PF_DUMP_LOGITS | PF_DUMP_HIDDEN))) {
        return 0;
    }
    d->buffer =
        pf_calloc_array((size_t)(pf_model_n_tokens(t->model) * (v > h ? v : h)), sizeof *d->buffer);
    d->kept = pf_calloc_array((size_t)n, sizeof *d->kept);
    d->chunks = pf_calloc_array((size_t)t->par.vpp, sizeof *d->chunks);
    if (!d->buffer || !d->kept || !d->chunks) {
        return PF_ENOMEM;
    }
    (void)train_stage_chunks(t, t->groups.stage, d->chunks);
    return 0;
}

static int open_files(struct pf_trainer *t, struct dump *d)
{
    d->dir = pf_asprintf("%s/dump/.step-%06lld", t->config->output_dir, (long long)t->step);
    d->final = pf_asprintf("%s/dump/step-%06lld", t->config->output_dir, (long long)t->step);
    PF_TRY(d->dir && d->final ? 0 : PF_ENOMEM);
    PF_TRY(pf_rmtree(d->dir));
    PF_TRY(pf_mkdirs(d->dir));
    PF_TRY(t->config->dump & PF_DUMP_LOGITS ? open_logits(t, d) : 0);
    return t->config->dump & PF_DUMP_HIDDEN ? open_hidden(t, d) : 0;
}

int train_dump_begin(struct pf_trainer *t)
{
    struct dump *const d = pf_alloc(sizeof *d);
    int err = d ? 0 : PF_ENOMEM;

    t->dump = d;
    err = err ? err : allocate(t, d);
    if (!err && pf_comm_rank(t->world) == 0) {
        err = open_files(t, d);
    }
    return pf_comm_all_agree(t->world, err, NULL);
}

/* Every data rank's micro-batch [b,S,width] of a tensor goes to rank 0, which puts each where it belongs.
 * mine: this rank's, where it holds one; it may be the buffer. */
static int hand_over(struct pf_trainer *t, int64_t tensor, int64_t micro, const float *mine)
{
    struct dump *const d = t->dump;
    const size_t bytes =
        (size_t)(pf_model_n_tokens(t->model) * width_of(t, tensor)) * sizeof(float);
    const int rank = pf_comm_rank(t->world);

    for (int r = 0; r < t->dp_size; r++) {
        const int holder = holder_of(t, tensor, r);
        if (rank != 0) {
            PF_TRY(rank == holder ? pf_comm_send(t->world, mine, bytes, 0, 0) : 0);
            continue;
        }
        PF_TRY(holder != 0 ? pf_comm_recv(t->world, d->buffer, bytes, holder, 0) : 0);
        if (!d->err) {
            d->err = pf_st_writer_write(
                tensor == 0 ? d->logits : d->hidden, tensor == 0 ? 0 : (size_t)tensor - 1,
                (uint64_t)(micro * t->dp_size + r) * bytes, holder != 0 ? d->buffer : mine, bytes);
        }
    }
    return 0;
}

/* What is in the buffer goes to rank 0, now or when the schedule has run. */
static int keep(struct pf_trainer *t, int64_t tensor, int64_t micro)
{
    struct dump *const d = t->dump;
    const int64_t n = pf_model_n_tokens(t->model) * width_of(t, tensor);

    if (t->groups.n_stages == 1) {
        return hand_over(t, tensor, micro, d->buffer);
    }
    if (pf_comm_rank(t->world) != holder_of(t, tensor, t->dp_rank)) {
        return 0;
    }
    float *const copy = pf_calloc_array((size_t)n, sizeof *copy);
    if (!copy) {
        return PF_ENOMEM;
    }
    memcpy(copy, d->buffer, (size_t)n * sizeof *copy);
    d->kept[tensor * t->config->gradient_accumulation_steps + micro] = copy;
    return 0;
}

int train_dump_micro(struct pf_trainer *t, int micro, int chunk, int live)
{
    const int64_t n = t->spec.n_layers;
    struct dump *const d = t->dump;

    if (!d->chunks) {
        return 0; /* gradients alone */
    }
    const struct pf_model_chunk *const c = &d->chunks[chunk];
    if (c->head && is_wanted(t, 0)) {
        PF_TRY(pf_model_logits(t->model, live, d->buffer));
        PF_TRY(keep(t, 0, micro));
    }
    for (int64_t i = c->first_layer; is_wanted(t, 1) && i < (c->head ? n + 2 : c->end_layer); i++) {
        PF_TRY(pf_model_hidden(t->model, chunk, live, i, d->buffer));
        PF_TRY(keep(t, 1 + i, micro));
    }
    return 0;
}

/* What the stages have kept. */
static int hand_over_kept(struct pf_trainer *t)
{
    const int64_t n_micro = t->config->gradient_accumulation_steps;

    if (!t->dump->kept || t->groups.n_stages == 1) {
        return 0;
    }
    for (int64_t k = 0; k < n_tensors(t); k++) {
        for (int64_t m = 0; is_wanted(t, k) && m < n_micro; m++) {
            PF_TRY(hand_over(t, k, m, t->dump->kept[k * n_micro + m]));
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

static int finish(struct dump *d)
{
    PF_TRY(d->err);
    PF_TRY(d->logits ? pf_st_writer_finish(d->logits, false) : 0);
    PF_TRY(d->hidden ? pf_st_writer_finish(d->hidden, false) : 0);
    PF_TRY(pf_rmtree(d->final)); /* of a run that was resumed before this step */
    return pf_rename_durable(d->dir, d->final);
}

int train_dump_end(struct pf_trainer *t)
{
    int err = hand_over_kept(t);

    if (!err && pf_comm_rank(t->world) == 0) {
        err = finish(t->dump);
    }
    err = pf_comm_all_agree(t->world, err, NULL);
    train_dump_abandon(t);
    return err;
}

void train_dump_abandon(struct pf_trainer *t)
{
    dump_free(t, t->dump);
    t->dump = NULL;
}
