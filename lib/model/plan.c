/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and addresses of a decoder's buffers: one walk, run with and without memory. */
#include "model_internal.h"

#include <pf/error.h>
#include <pf/mem.h>

/* Logits held at once: about this many, which is enough for a GEMM to run at full speed. */
/* Of a chunk of logits: enough rows that the head's weight is not fetched for few, 64 MiB in fp32. */
#define LOGITS_ELEMENTS ((int64_t)1 << 24)
#define LOSS_CHUNK_MIN 256

struct cursor {
    char *base; /* NULL: only count */
    size_t at;
    bool overflow;
};

static void *take_bytes(struct cursor *c, int64_t n, size_t element)
{
    size_t bytes, padded, end;

    if (n < 0 || !pf_mul_size((size_t)n, element, &bytes) ||
        !pf_add_size(bytes, PF_MEM_ALIGN - 1, &padded) ||
        !pf_add_size(c->at, padded / PF_MEM_ALIGN * PF_MEM_ALIGN, &end)) {
        c->overflow = true;
        return NULL;
    }
    void *const p = c->base ? c->base + c->at : NULL;
    c->at = end;
    return p;
}

static float *take(struct cursor *c, int64_t n)
{
    return take_bytes(c, n, sizeof(float));
}

struct pf_model_chunk model_chunk(const struct pf_model_spec *spec,
                                  const struct pf_model_options *o, int chunk)
{
    const struct pf_model_chunk whole = {0, spec->n_layers, true, true};

    return o->chunks ? o->chunks[chunk] : whole;
}

int64_t model_layers_max(const struct pf_model_spec *spec, const struct pf_model_options *o)
{
    int64_t most = 0;

    for (int c = 0; c < (o->chunks ? o->n_chunks : 1); c++) {
        const struct pf_model_chunk chunk = model_chunk(spec, o, c);
        const int64_t n = chunk.end_layer - chunk.first_layer;
        most = n > most ? n : most;
    }
    return most;
}

static bool has_head(const struct pf_model_spec *spec, const struct pf_model_options *o)
{
    return model_chunk(spec, o, (o->chunks ? o->n_chunks : 1) - 1).head;
}

int model_dims(const struct pf_model_spec *spec, const struct pf_model_options *o,
               struct dims *dims_out)
{
    const int64_t n_tp = o->n_tp > 0 ? o->n_tp : 1, rank = o->tp_rank, d = spec->head_dim,
                  v = spec->vocab_size, n_tokens = o->batch * o->seq;
    struct dims n = {.d = d,
                     .n_heads = spec->n_heads / n_tp,
                     .n_kv_heads = n_tp < spec->n_kv_heads ? spec->n_kv_heads / n_tp : 1,
                     .first_head = rank * (spec->n_heads / n_tp),
                     .ffn = spec->ffn / n_tp,
                     .vocab_room = (v + n_tp - 1) / n_tp};

    n.first_vocab = rank * n.vocab_room < v ? rank * n.vocab_room : v;
    n.vocab = v - n.first_vocab < n.vocab_room ? v - n.first_vocab : n.vocab_room;
    n.n_q = n.n_heads * d;
    n.n_k = n.n_kv_heads * d;
    n.width = n.n_q + 2 * n.n_k;
    n.n_rows = o->sequence_parallel ? n_tokens / n_tp : n_tokens;
    n.first_row = o->sequence_parallel ? rank * n.n_rows : 0;
    if (o->sequence_parallel && n_tokens % n_tp != 0) {
        return pf_fail(
            PF_EINVAL,
            "sequence_parallel: %lld tokens of a micro-batch (%lld sequences x %lld) are "
            "no multiple of %lld tensor-parallel ranks",
            (long long)n_tokens, (long long)o->batch, (long long)o->seq, (long long)n_tp);
    }
    *dims_out = n;
    return 0;
}

/* What a model needs to know of itself to lay buffers out. */
struct shape {
    const struct pf_model_spec *spec;
    const struct pf_model_options *options;
    struct dims dims;
    int64_t n_tokens, n_layers; /* of the largest chunk */
    size_t element;
    bool head;
};

static int shape_of(const struct pf_model_spec *spec, const struct pf_model_options *o,
                    struct shape *shape_out)
{
    *shape_out = (struct shape){.spec = spec,
                                .options = o,
                                .n_tokens = o->batch * o->seq,
                                .n_layers = model_layers_max(spec, o),
                                .element = pf_dtype_bits(o->dtype) / 8,
                                .head = has_head(spec, o)};
    return model_dims(spec, o, &shape_out->dims);
}

/* Activations of a row of the residual stream of n elements each. */
static void *take_stream(struct cursor *c, const struct shape *s, int64_t n)
{
    return take_bytes(c, s->dims.n_rows * n, s->element);
}

/* Activations of a token row of n elements each. */
static void *take_rows(struct cursor *c, const struct shape *s, int64_t n)
{
    return take_bytes(c, s->n_tokens * n, s->element);
}

/* Parts of a layer's saved activations that are recomputed, and so shared, together. */
enum {
    PART_INPUT = 1,
    PART_ATTENTION = 2, /* norm, projections, rotation */
    PART_CORE = 4,      /* the attention's output */
    PART_FFN = 8,
    PART_ALL = 15
};

static void take_attention(struct cursor *c, const struct shape *s, struct layer_saved *l)
{
    const struct pf_model_spec *const spec = s->spec;
    const struct dims *const n = &s->dims;

    l->h1 = take_stream(c, s, spec->hidden);
    l->mean1 = spec->norm == PF_NORM_LAYER ? take(c, n->n_rows) : NULL;
    l->rstd1 = take(c, n->n_rows);
    l->qkv = take_rows(c, s, n->width);
    if (spec->qk_norm) {
        l->qk_raw = take_rows(c, s, n->n_q + n->n_k);
        l->q_rstd = take(c, s->n_tokens * n->n_heads);
        l->k_rstd = take(c, s->n_tokens * n->n_kv_heads);
    }
}

static void take_ffn(struct cursor *c, const struct shape *s, struct layer_saved *l)
{
    const struct pf_model_spec *const spec = s->spec;
    const struct dims *const n = &s->dims;

    l->x_mid = take_stream(c, s, spec->hidden);
    l->h2 = take_stream(c, s, spec->hidden);
    l->mean2 = spec->norm == PF_NORM_LAYER ? take(c, n->n_rows) : NULL;
    l->rstd2 = take(c, n->n_rows);
    l->gate = spec->gated ? take_rows(c, s, n->ffn) : NULL;
    l->up = take_rows(c, s, n->ffn);
    l->act = take_rows(c, s, n->ffn);
}

/* The gradients that the weights' part of a backward reads. */
static void take_gradients(struct cursor *c, const struct shape *s, struct layer_saved *l)
{
    l->dqkv = take_rows(c, s, s->dims.width);
    l->dact = take_rows(c, s, s->dims.ffn);
    if (s->options->split_backward) {
        l->dattn_y = take_stream(c, s, s->spec->hidden);
        l->dffn_y = take_stream(c, s, s->spec->hidden);
    }
}

static void take_parts(struct cursor *c, const struct shape *s, unsigned parts,
                       struct layer_saved *l)
{
    if (parts & PART_INPUT) {
        l->x = take_stream(c, s, s->spec->hidden);
    }
    if (parts & PART_ATTENTION) {
        take_attention(c, s, l);
    }
    if (parts & PART_CORE) {
        l->attn = take_rows(c, s, s->dims.n_q);
        l->lse = take(c, s->n_tokens * s->dims.n_heads);
    }
    if (parts & PART_FFN) {
        take_ffn(c, s, l);
    }
}

/* Use the shared buffers for the parts that are not saved. */
static void borrow_parts(unsigned parts, const struct layer_saved *from, struct layer_saved *l)
{
    const struct layer_saved own = *l;

    *l = *from;
    l->x = parts & PART_INPUT ? from->x : own.x;
    if (!(parts & PART_ATTENTION)) {
        l->h1 = own.h1, l->mean1 = own.mean1, l->rstd1 = own.rstd1, l->qkv = own.qkv;
        l->qk_raw = own.qk_raw, l->q_rstd = own.q_rstd, l->k_rstd = own.k_rstd;
    }
    if (!(parts & PART_CORE)) {
        l->attn = own.attn, l->lse = own.lse;
    }
    if (!(parts & PART_FFN)) {
        l->x_mid = own.x_mid, l->h2 = own.h2, l->mean2 = own.mean2, l->rstd2 = own.rstd2;
        l->gate = own.gate, l->up = own.up, l->act = own.act;
    }
}

int64_t model_group_size(const struct pf_model_spec *spec, const struct pf_model_options *o)
{
    const bool groups =
        o->recompute == PF_RECOMPUTE_FULL && o->recompute_method == PF_RECOMPUTE_UNIFORM;
    const int64_t n = groups && o->recompute_layers > 0 ? o->recompute_layers : 1;

    const int64_t most = model_layers_max(spec, o);

    return n < most ? n : most > 0 ? most : 1;
}

bool model_recomputes(const struct pf_model_spec *spec, const struct pf_model_options *o, int64_t i)
{
    const int64_t n_block =
        o->recompute_layers > 0 ? o->recompute_layers : model_layers_max(spec, o);

    return o->train && o->recompute != PF_RECOMPUTE_NONE &&
           (o->recompute_method == PF_RECOMPUTE_UNIFORM || i < n_block);
}

/* Which parts of a layer lie in shared buffers. */
static unsigned shared_parts(const struct shape *s, int64_t layer)
{
    if (!model_recomputes(s->spec, s->options, layer)) {
        return 0;
    }
    switch (s->options->recompute) {
    case PF_RECOMPUTE_FULL_ATTN:
        return PART_ATTENTION | PART_CORE;
    case PF_RECOMPUTE_CORE_ATTN:
        return PART_CORE;
    case PF_RECOMPUTE_FULL:
        return layer % model_group_size(s->spec, s->options) == 0 ? PART_ALL & ~PART_INPUT
                                                                  : PART_ALL;
    case PF_RECOMPUTE_NONE:
        break;
    }
    return 0;
}

static int64_t n_shared(const struct shape *s)
{
    return s->options->train && s->options->recompute != PF_RECOMPUTE_NONE
               ? model_group_size(s->spec, s->options)
               : 0;
}

/* live: NULL to count only. */
static void plan_live(struct cursor *c, const struct shape *s, struct live_saved *live)
{
    struct live_saved unused = {0}, *const l = live ? live : &unused;
    const struct pf_model_options *const o = s->options;

    for (int64_t i = 0; i < s->n_layers; i++) {
        struct layer_saved one = {0}, *const layer = live ? &live->layers[i] : &one;
        take_parts(c, s, PART_ALL & ~shared_parts(s, i), layer);
        if (o->train && o->split_backward) {
            take_gradients(c, s, layer);
        }
    }
    l->x_out = take_stream(c, s, s->spec->hidden);
    if (s->head) {
        l->final_h = take_stream(c, s, s->spec->hidden);
        l->final_mean = s->spec->norm == PF_NORM_LAYER ? take(c, s->dims.n_rows) : NULL;
        l->final_rstd = take(c, s->dims.n_rows);
        l->dfinal_h = o->train ? take_stream(c, s, s->spec->hidden) : NULL;
    }
}

bool model_sums_overlap(const struct pf_model_spec *spec, const struct pf_model_options *o)
{
    return o->train && o->overlap_sums && o->n_tp > 1 && o->n_tp <= PF_COMM_SUM_RANKS &&
           o->batch * o->seq * spec->hidden % o->n_tp == 0;
}

static void plan_work(struct cursor *c, const struct shape *s, struct work *w)
{
    const struct pf_model_options *const o = s->options;

    w->dh = take_rows(c, s, s->spec->hidden);
    w->staging =
        model_sums_overlap(s->spec, o)
            ? take_bytes(c, s->n_tokens * s->spec->hidden / o->n_tp * (o->n_tp - 1), s->element)
            : NULL;
    w->full = o->sequence_parallel ? take_rows(c, s, s->spec->hidden) : NULL;
    if (o->train) {
        w->dx = take_stream(c, s, s->spec->hidden);
        w->dattn = take_rows(c, s, s->dims.n_q);
        w->delta = take(c, s->n_tokens * s->dims.n_heads);
    }
    if (o->train && !o->split_backward) {
        take_gradients(c, s, &w->backward);
    }
    for (int64_t i = 0; i < n_shared(s); i++) {
        struct layer_saved one = {0};
        take_parts(c, s, shared_parts(s, i), w->shared ? &w->shared[i] : &one);
    }
}

/* Logits of a chunk of tokens, and what ranks tell each other of them. */
static void plan_logits(struct cursor *c, const struct shape *s, struct work *w)
{
    const int64_t chunk = model_loss_chunk(s->spec, s->options), n_tp = s->options->n_tp;

    if (s->head) {
        w->logits = take_bytes(c, chunk * model_logits_stride(&s->dims), s->element);
        w->stats = n_tp > 1 ? take(c, 3 * chunk * (1 + n_tp)) : NULL;
    }
}

int64_t model_loss_chunk(const struct pf_model_spec *spec, const struct pf_model_options *options)
{
    const int64_t n_tokens = options->batch * options->seq;
    int64_t chunk = options->loss_chunk;

    if (chunk <= 0) {
        chunk = LOGITS_ELEMENTS * (options->n_tp > 1 ? options->n_tp : 1) / spec->vocab_size;
        chunk = chunk < LOSS_CHUNK_MIN ? LOSS_CHUNK_MIN : chunk;
        /* The same number of chunks, as equal as they can be. */
        const int64_t n_chunks = (n_tokens + chunk - 1) / chunk;
        chunk = n_chunks > 0 ? (n_tokens + n_chunks - 1) / n_chunks : chunk;
    }
    return chunk < n_tokens ? chunk : n_tokens;
}

int64_t model_logits_stride(const struct dims *dims)
{
    return (dims->vocab_room + 31) / 32 * 32;
}

int pf_model_plan(const struct pf_model_spec *spec, const struct pf_model_options *options,
                  struct pf_model_plan *plan_out)
{
    struct cursor live = {0}, work = {0}, logits = {0};
    struct work unused = {0};
    struct shape s;

    PF_TRY(shape_of(spec, options, &s));
    for (int i = 0; i < options->n_live; i++) {
        plan_live(&live, &s, NULL);
    }
    plan_work(&work, &s, &unused);
    plan_logits(&logits, &s, &unused);
    if (live.overflow || work.overflow || logits.overflow) {
        return pf_fail(PF_ENOMEM, "the activations of this batch do not fit any memory");
    }
    *plan_out = (struct pf_model_plan){live.at, work.at, logits.at};
    return 0;
}

/* A backward that is not split uses the same gradients for every layer. */
static void borrow_gradients(const struct layer_saved *from, struct layer_saved *l)
{
    l->dqkv = from->dqkv;
    l->dact = from->dact;
}

static int place_live(struct pf_model *model, struct cursor *c, const struct shape *s,
                      struct live_saved *live)
{
    live->layers = pf_calloc_array((size_t)s->n_layers + 1, sizeof *live->layers);
    if (!live->layers) {
        return PF_ENOMEM;
    }
    plan_live(c, s, live);
    for (int64_t i = 0; i < s->n_layers; i++) {
        const unsigned parts = shared_parts(s, i);
        if (parts) {
            borrow_parts(parts, &model->work.shared[i % model->work.n_shared], &live->layers[i]);
        }
        if (!s->options->split_backward) {
            borrow_gradients(&model->work.backward, &live->layers[i]);
        }
    }
    return 0;
}

int model_allocate(struct pf_model *model)
{
    struct pf_model_plan plan;
    struct shape s;

    PF_TRY(shape_of(model->spec, &model->options, &s));
    PF_TRY(pf_model_plan(s.spec, s.options, &plan));
    model->arena = pf_alloc(plan.activation_bytes + plan.work_bytes + plan.logits_bytes);
    model->live = pf_calloc_array((size_t)s.options->n_live, sizeof *model->live);
    model->work.n_shared = n_shared(&s);
    model->work.shared =
        pf_calloc_array((size_t)model->work.n_shared + 1, sizeof *model->work.shared);
    if (!model->arena || !model->live || !model->work.shared) {
        return PF_ENOMEM;
    }
    struct cursor c = {.base = model->arena};
    plan_work(&c, &s, &model->work);
    for (int i = 0; i < s.options->n_live; i++) {
        PF_TRY(place_live(model, &c, &s, &model->live[i]));
    }
    plan_logits(&c, &s, &model->work);
    return 0;
}

double pf_model_step_flops(const struct pf_model_spec *spec, int64_t batch, int64_t seq)
{
    const double h = (double)spec->hidden, d = (double)spec->head_dim,
                 heads = (double)spec->n_heads, kv = (double)spec->n_kv_heads,
                 tokens = (double)batch * (double)seq;
    const double matrices =
        h * d * (2 * heads + 2 * kv) + (spec->gated ? 3 : 2) * h * (double)spec->ffn;
    /* A causal query sees (seq + 1)/2 keys on average; two products of width d each. */
    const double attention = heads * d * ((double)seq + 1);
    const double forward =
        tokens * 2 *
        ((double)spec->n_layers * (matrices + attention) + h * (double)spec->vocab_size);

    return 3 * forward;
}
