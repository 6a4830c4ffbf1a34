/* SPDX-License-Identifier: Apache-2.0 */
/* One training step: deal data, run the schedule, reduce, clip, update. */
#include "train_internal.h"

#include <pf/error.h>
#include <pf/mem.h>
#include <pf/time.h>

#include <math.h>
#include <string.h>

static struct pf_model_batch batch_of(const struct pf_reader_batch *m, float grad_scale,
                                      bool dropout)
{
    return (struct pf_model_batch){.ids = m->ids,
                                   .targets = m->targets,
                                   .first_key = m->first_key,
                                   .positions = m->positions,
                                   .first_sequence = m->first_sequence,
                                   .grad_scale = grad_scale,
                                   .dropout = dropout};
}

/* This rank's micro-batches of the step, and the number of targets over all ranks. */
static int read_step(struct pf_trainer *t, int64_t *tokens_out)
{
    int64_t tokens = 0;

    PF_TRY(pf_reader_next(t->reader, t->samples, &t->micro));
    for (int64_t m = 0; m < t->config->gradient_accumulation_steps; m++) {
        tokens += t->micro[m].n_targets;
    }
    PF_TRY(pf_comm_all_reduce(t->groups.data, &tokens, 1, PF_COMM_I64, PF_COMM_SUM));
    *tokens_out = tokens;
    return 0;
}

/* What runs of the schedule leave behind: losses, and dumps. */
struct gathered {
    struct pf_trainer *t;
    struct pf_exactsum *sum;
    size_t n_tokens;
};

static void mark_step(void *context, const struct pf_sched_step *step)
{
    const struct gathered *const g = context;

    train_mark(g->t, step->kind == PF_SCHED_FORWARD ? PHASE_FORWARD : PHASE_BACKWARD);
}

static int keep_forward(void *context, const struct pf_sched_step *step, int chunk)
{
    const struct gathered *const g = context;

    if (train_has_head(g->t, chunk)) {
        pf_exactsum_add_array_f32(g->sum, g->t->token_loss, g->n_tokens);
    }
    return g->t->dump ? train_dump_micro(g->t, step->micro, chunk, step->live) : 0;
}

/* Run this stage's list of the schedule; adds token losses to sum. */
static int run_schedule(struct pf_trainer *t, float grad_scale, struct pf_exactsum *sum)
{
    struct gathered g = {t, sum, (size_t)pf_model_n_tokens(t->model)};
    const struct train_pass pass = {.batches = t->batches,
                                    .with_grad = true,
                                    .token_loss = t->token_loss,
                                    .before = mark_step,
                                    .after_forward = keep_forward,
                                    .context = &g};

    for (int64_t m = 0; m < t->config->gradient_accumulation_steps; m++) {
        t->batches[m] = batch_of(&t->micro[m], grad_scale, true);
    }
    return train_pipe_run(t->pipe, &pass);
}

static int keep_loss(void *context, const struct pf_sched_step *step, int chunk)
{
    const struct gathered *const g = context;

    (void)step;
    if (train_has_head(g->t, chunk)) {
        pf_exactsum_add_array_f32(g->sum, g->t->token_loss, g->n_tokens);
    }
    return 0;
}

/* One micro-batch forward through all stages; adds its token losses to sum. */
static int run_eval(struct pf_trainer *t, const struct pf_reader_batch *m, struct pf_exactsum *sum)
{
    const struct pf_model_batch batch = batch_of(m, 0, false);
    struct gathered g = {t, sum, (size_t)pf_model_n_tokens(t->eval_model)};
    const struct train_pass pass = {
        .batches = &batch, .token_loss = t->token_loss, .after_forward = keep_loss, .context = &g};

    return train_pipe_run(t->eval_pipe, &pass);
}

static int all_reduce_sum(struct pf_comm *comm, struct pf_exactsum *sum)
{
    pf_exactsum_normalise(sum);
    return pf_comm_all_reduce(comm, sum, PF_EXACTSUM_N_WORDS, PF_COMM_I64, PF_COMM_SUM);
}

/* min(1, C / (norm + 1e-6)) as torch.nn.utils.clip_grad_norm_; 1 where clipping is off. */
static double clip_coefficient(const struct pf_config *c, double norm)
{
    const double coefficient = c->max_grad_norm / (norm + 1e-6);

    return c->max_grad_norm > 0 && coefficient < 1 ? coefficient : 1;
}

/* Steps without overflow after which the loss scale doubles (paddle.amp.GradScaler's default). */
#define SCALE_GROWS_AFTER 2000

/* Dynamic loss scaling, Source: Micikevicius et al. 2018. The gradients are those of all ranks, so
 * every rank comes to the same verdict. */
static bool overflowed(struct pf_trainer *t, double norm)
{
    if (t->config->dtype != PF_DTYPE_F16) {
        return false;
    }
    if (!isfinite(norm)) {
        t->loss_scale /= 2;
        t->scale_good_steps = 0;
        return true;
    }
    if (++t->scale_good_steps == SCALE_GROWS_AFTER) {
        t->loss_scale *= 2;
        t->scale_good_steps = 0;
    }
    return false;
}

static int check_finite(const struct pf_trainer *t, double loss, double norm)
{
    if (isfinite(loss) && isfinite(norm)) {
        return 0;
    }
    return pf_fail(PF_ENUMERIC, "step %lld: the %s is not finite; no weight was changed by it",
                   (long long)t->step, isfinite(loss) ? "gradient norm" : "loss");
}

/* Update, or where a gradient overflowed in fp16, do not. */
static int finish_step(struct pf_trainer *t, double grad_scale, struct step_result *r)
{
    const struct pf_config *const c = t->config;

    r->learning_rate = train_learning_rate(c, t->step, t->total_steps);
    r->overflow = isfinite(r->loss) && overflowed(t, r->grad_norm);
    if (!r->overflow) {
        PF_TRY(check_finite(t, r->loss, r->grad_norm));
        t->updates++;
        PF_TRY(train_update(t, r->learning_rate, grad_scale * clip_coefficient(c, r->grad_norm)));
    }
    t->samples += c->global_train_batch_size;
    t->tokens_seen += r->tokens;
    return 0;
}

bool train_skip_due(const struct pf_trainer *t)
{
    const struct pf_config *const c = t->config;

    for (int64_t i = 0; i < c->n_skip_data_intervals; i += 2) {
        if (t->step + 1 >= c->skip_data_intervals[i] &&
            t->step + 1 <= c->skip_data_intervals[i + 1]) {
            return true;
        }
    }
    return false;
}

void train_skip(struct pf_trainer *t)
{
    t->step++;
    t->samples += t->config->global_train_batch_size;
}

int train_step(struct pf_trainer *t, struct step_result *result_out)
{
    const struct pf_config *const c = t->config;
    const double started = pf_time_monotonic();
    struct step_result r = {0};
    struct pf_exactsum sum;

    t->step++;
    train_mark(t, PHASE_READ);
    PF_TRY(read_step(t, &r.tokens));
    train_mark(t, PHASE_OTHER);
    if (train_dump_due(t)) {
        PF_TRY(train_dump_begin(t));
    }
    const double per_token = r.tokens > 0 ? 1.0 / (double)r.tokens : 0;
    const double at_loss = (c->pp_delay_scale_loss ? 1 : per_token) * t->loss_scale;
    const double at_end = (c->pp_delay_scale_loss ? per_token : 1) / t->loss_scale;

    train_mark(t, PHASE_CLEAR);
    if (t->layout->grad_elements > 0) { /* a stage may have nothing to train */
        memset(t->grads, 0, (size_t)t->layout->grad_elements * sizeof *t->grads);
    }
    pf_exactsum_init(&sum);
    PF_TRY(run_schedule(t, (float)at_loss, &sum));
    train_mark(t, PHASE_REDUCE);
    PF_TRY(all_reduce_sum(t->groups.loss, &sum));
    PF_TRY(train_reduce_grads(t));
    train_mark(t, PHASE_OTHER);
    if (t->dump) {
        PF_TRY(train_dump_grads(t, at_end));
        PF_TRY(train_dump_end(t));
    }
    r.loss = pf_exactsum_round(&sum) * per_token;
    train_mark(t, PHASE_NORM);
    PF_TRY(train_grad_norm(t, at_end, &r.grad_norm));
    train_mark(t, PHASE_OPTIMIZER);
    PF_TRY(finish_step(t, at_end, &r));
    r.peak_bytes = (int64_t)pf_mem_peak_bytes();
    PF_TRY(pf_comm_all_reduce(t->world, &r.peak_bytes, 1, PF_COMM_I64, PF_COMM_MAX));
    r.seconds = pf_time_monotonic() - started;
    *result_out = r;
    return 0;
}

int train_evaluate(struct pf_trainer *t, double *loss_out, int64_t *tokens_out)
{
    const struct pf_config *const c = t->config;
    const int64_t b = c->per_device_eval_batch_size, per_round = b * t->dp_size;
    const int64_t n = pf_data_epoch_length(t->eval_data);
    int64_t n_rounds = (n + per_round - 1) / per_round, tokens = 0;
    struct pf_exactsum sum;

    n_rounds = c->eval_iters >= 0 && c->eval_iters < n_rounds ? c->eval_iters : n_rounds;
    pf_exactsum_init(&sum);
    for (int64_t i = 0; i < n_rounds; i++) {
        const struct pf_reader_batch *m;
        PF_TRY(pf_reader_next(t->eval_reader, i * per_round, &m));
        PF_TRY(run_eval(t, m, &sum));
        tokens += m->n_targets;
    }
    PF_TRY(all_reduce_sum(t->groups.loss, &sum));
    PF_TRY(pf_comm_all_reduce(t->groups.data, &tokens, 1, PF_COMM_I64, PF_COMM_SUM));
    *loss_out = tokens > 0 ? pf_exactsum_round(&sum) / (double)tokens : 0;
    *tokens_out = tokens;
    return 0;
}
