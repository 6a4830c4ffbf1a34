/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and addresses of a decoder's buffers: one walk, run with and without memory. */
#include "model_internal.h"

#include <pf/error.h>
#include <pf/mem.h>

/* Logits held at once: about this many floats, which is enough for a GEMM to run at full speed. */
#define LOGITS_FLOATS ((int64_t)1 << 22)
#define LOSS_CHUNK_MIN 64

struct cursor {
    char *base; /* NULL: only count */
    size_t at;
    bool overflow;
};

static float *take(struct cursor *c, int64_t n)
{
    size_t bytes, padded, end;

    if (n < 0 || !pf_mul_size((size_t)n, sizeof(float), &bytes) ||
        !pf_add_size(bytes, PF_MEM_ALIGN - 1, &padded) ||
        !pf_add_size(c->at, padded / PF_MEM_ALIGN * PF_MEM_ALIGN, &end)) {
        c->overflow = true;
        return NULL;
    }
    float *const p = c->base ? (float *)(void *)(c->base + c->at) : NULL;
    c->at = end;
    return p;
}

static void plan_layer(struct cursor *c, const struct pf_model_spec *spec, int64_t n_tokens,
                       struct layer_saved *s)
{
    const int64_t h = spec->hidden, d = spec->head_dim, heads = spec->n_heads,
                  kv = spec->n_kv_heads;
    const bool layer_norm = spec->norm == PF_NORM_LAYER;

    s->x = take(c, n_tokens * h);
    s->h1 = take(c, n_tokens * h);
    s->mean1 = layer_norm ? take(c, n_tokens) : NULL;
    s->rstd1 = take(c, n_tokens);
    s->qkv = take(c, n_tokens * (heads + 2 * kv) * d);
    if (spec->qk_norm) {
        s->qk_raw = take(c, n_tokens * (heads + kv) * d);
        s->q_rstd = take(c, n_tokens * heads);
        s->k_rstd = take(c, n_tokens * kv);
    }
    s->attn = take(c, n_tokens * heads * d);
    s->lse = take(c, n_tokens * heads);
    s->x_mid = take(c, n_tokens * h);
    s->h2 = take(c, n_tokens * h);
    s->mean2 = layer_norm ? take(c, n_tokens) : NULL;
    s->rstd2 = take(c, n_tokens);
    s->gate = spec->gated ? take(c, n_tokens * spec->ffn) : NULL;
    s->up = take(c, n_tokens * spec->ffn);
    s->act = take(c, n_tokens * spec->ffn);
}

static void plan_live(struct cursor *c, const struct pf_model_spec *spec,
                      const struct pf_model_options *o, struct live_saved *live)
{
    const int64_t n_tokens = o->batch * o->seq;

    for (int64_t i = 0; i < spec->n_layers; i++) {
        struct layer_saved unused = {0};
        plan_layer(c, spec, n_tokens, live ? &live->layers[i] : &unused);
    }
    struct live_saved unused = {0}, *const l = live ? live : &unused;
    l->x_out = take(c, n_tokens * spec->hidden);
    l->final_h = take(c, n_tokens * spec->hidden);
    l->final_mean = spec->norm == PF_NORM_LAYER ? take(c, n_tokens) : NULL;
    l->final_rstd = take(c, n_tokens);
    l->dfinal_h = o->train ? take(c, n_tokens * spec->hidden) : NULL;
}

static void plan_work(struct cursor *c, const struct pf_model_spec *spec,
                      const struct pf_model_options *o, struct work *w)
{
    const int64_t n_tokens = o->batch * o->seq, d = spec->head_dim;

    w->dh = take(c, n_tokens * spec->hidden);
    if (o->train) {
        w->dx = take(c, n_tokens * spec->hidden);
        w->dqkv = take(c, n_tokens * (spec->n_heads + 2 * spec->n_kv_heads) * d);
        w->dattn = take(c, n_tokens * spec->n_heads * d);
        w->delta = take(c, n_tokens * spec->n_heads);
        w->dact = take(c, n_tokens * spec->ffn);
    }
}

int64_t model_loss_chunk(const struct pf_model_spec *spec, const struct pf_model_options *options)
{
    const int64_t n_tokens = options->batch * options->seq;
    int64_t chunk = options->loss_chunk;

    if (chunk <= 0) {
        chunk = LOGITS_FLOATS / spec->vocab_size;
        chunk = chunk < LOSS_CHUNK_MIN ? LOSS_CHUNK_MIN : chunk;
    }
    return chunk < n_tokens ? chunk : n_tokens;
}

int pf_model_plan(const struct pf_model_spec *spec, const struct pf_model_options *options,
                  struct pf_model_plan *plan_out)
{
    struct cursor live = {0}, work = {0}, logits = {0};
    struct work unused = {0};

    for (int i = 0; i < options->n_live; i++) {
        plan_live(&live, spec, options, NULL);
    }
    plan_work(&work, spec, options, &unused);
    take(&logits, model_loss_chunk(spec, options) * spec->vocab_size);
    if (live.overflow || work.overflow || logits.overflow) {
        return pf_fail(PF_ENOMEM, "the activations of this batch do not fit any memory");
    }
    *plan_out = (struct pf_model_plan){live.at, work.at, logits.at};
    return 0;
}

int model_allocate(struct pf_model *model)
{
    const struct pf_model_spec *const spec = model->spec;
    const struct pf_model_options *const o = &model->options;
    struct pf_model_plan plan;

    PF_TRY(pf_model_plan(spec, o, &plan));
    model->arena = pf_alloc(plan.activation_bytes + plan.work_bytes + plan.logits_bytes);
    model->live = pf_calloc_array((size_t)o->n_live, sizeof *model->live);
    if (!model->arena || !model->live) {
        return PF_ENOMEM;
    }
    struct cursor c = {.base = model->arena};
    for (int i = 0; i < o->n_live; i++) {
        model->live[i].layers =
            pf_calloc_array((size_t)spec->n_layers, sizeof *model->live[i].layers);
        if (!model->live[i].layers) {
            return PF_ENOMEM;
        }
        plan_live(&c, spec, o, &model->live[i]);
    }
    plan_work(&c, spec, o, &model->work);
    model->work.logits = take(&c, model_loss_chunk(spec, o) * spec->vocab_size);
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
