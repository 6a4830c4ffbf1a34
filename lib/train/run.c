/* SPDX-License-Identifier: Apache-2.0 */
/* The loop: steps, evaluation, saving, stopping. */
#include "train_internal.h"

#include <pf/error.h>
#include <pf/log.h>
#include <pf/time.h>

#include <stdio.h>

/* A stop file is another shell's wish; rank 0 looks for it, takes it away, and tells the others. */
static int agree_on_stop(struct pf_trainer *t)
{
    int64_t stop = train_signals_came();

    if (pf_comm_rank(t->world) == 0 && remove(t->stop_path) == 0) {
        stop = 1;
    }
    PF_TRY(pf_comm_all_reduce(t->world, &stop, 1, PF_COMM_I64, PF_COMM_MAX));
    t->stopping = stop != 0;
    return 0;
}

static bool every(int64_t step, int64_t interval)
{
    return interval > 0 && step % interval == 0;
}

static int evaluate(struct pf_trainer *t)
{
    const double started = pf_time_monotonic();
    double loss;
    int64_t tokens;

    if (!t->eval_data) {
        return 0;
    }
    train_mark(t, PHASE_EVALUATE);
    PF_TRY(train_evaluate(t, &loss, &tokens));
    return train_metrics_eval(t, loss, tokens, pf_time_monotonic() - started);
}

static int log_step(struct pf_trainer *t, const struct step_result *result)
{
    const bool due =
        every(t->step, t->config->logging_steps) || t->step == 1 || t->step == t->total_steps;

    return due ? train_metrics_step(t, result) : 0;
}

static int after_step(struct pf_trainer *t)
{
    const struct pf_config *const c = t->config;

    if (every(t->step, c->eval_steps) && t->step < t->total_steps) {
        PF_TRY(evaluate(t));
    }
    if (every(t->step, c->sample_steps) && t->step < t->total_steps) {
        PF_TRY(train_sample(t));
    }
    if (every(t->step, c->save_steps)) {
        train_mark(t, PHASE_SAVE);
        PF_TRY(train_save(t));
    }
    if (every(t->step, c->save_hf_steps)) {
        char name[64];
        snprintf(name, sizeof name, "hf-%06lld", (long long)t->step);
        train_mark(t, PHASE_SAVE);
        PF_TRY(train_export(t, name));
    }
    train_mark(t, PHASE_OTHER);
    return agree_on_stop(t);
}

static int skip_step(struct pf_trainer *t)
{
    train_skip(t);
    train_metrics_pace(t);
    pf_log_info0(NULL, "step %6lld/%lld  skipped, as skip_data_intervals says", (long long)t->step,
                 (long long)t->total_steps);
    return train_metrics_event(t, "warning", "text", "data skipped");
}

static int tell_overflow(struct pf_trainer *t)
{
    char text[96];

    snprintf(text, sizeof text, "a gradient overflowed: step skipped, loss scale now %g",
             t->loss_scale);
    pf_log_warn0("train", "step %lld: %s", (long long)t->step, text);
    return train_metrics_event(t, "warning", "text", text);
}

static int one_step(struct pf_trainer *t)
{
    struct step_result result;

    if (train_skip_due(t)) {
        PF_TRY(skip_step(t));
    } else {
        train_profile_begin(t);
        PF_TRY(train_step(t, &result));
        train_profile_step(t, &result);
        train_metrics_pace(t);
        PF_TRY(log_step(t, &result));
        if (result.overflow) {
            PF_TRY(tell_overflow(t));
        }
    }
    train_metrics_progress(t);
    PF_TRY(after_step(t));
    return train_profile_end(t);
}

static int finish(struct pf_trainer *t)
{
    if (t->stopping && t->step < t->total_steps) {
        if (t->saved_step != t->step) {
            PF_TRY(train_save(t));
        }
        pf_log_info0(NULL, "stopped after step %lld of %lld", (long long)t->step,
                     (long long)t->total_steps);
        return train_metrics_event(t, "end", "reason", "signal");
    }
    PF_TRY(evaluate(t));
    PF_TRY(train_sample(t));
    if (t->config->save_steps > 0 && t->saved_step != t->step) {
        PF_TRY(train_save(t));
    }
    PF_TRY(train_export(t, "hf"));
    return train_metrics_event(t, "end", "reason", "done");
}

/* From here on, where a resume has put the run, data are read ahead if that is wanted. */
static int start_reading(struct pf_trainer *t)
{
    const int64_t left = t->total_steps - t->step;

    return pf_reader_start(t->reader, t->samples,
                           t->samples + left * t->config->global_train_batch_size);
}

static int train_all(struct pf_trainer *t)
{
    PF_TRY(train_metrics_start(t));
    if (t->step >= t->total_steps) {
        pf_log_warn0("train", "step %lld of %lld is done already: nothing is trained",
                     (long long)t->step, (long long)t->total_steps);
    }
    PF_TRY(pf_comm_all_agree(t->world, start_reading(t), NULL));
    while (t->step < t->total_steps && !t->stopping) {
        PF_TRY(one_step(t));
    }
    return finish(t);
}

static int evaluate_only(struct pf_trainer *t)
{
    PF_TRY(train_metrics_start(t));
    PF_TRY(evaluate(t));
    PF_TRY(train_sample(t));
    return train_metrics_event(t, "end", "reason", "done");
}

int pf_trainer_run(struct pf_trainer *t)
{
    if (t->config->eval_only) {
        return evaluate_only(t);
    }
    train_signals_listen(true);
    const int err = train_all(t);
    train_signals_listen(false);
    return err;
}

int pf_trainer_step(struct pf_trainer *t, struct pf_step_report *report_out)
{
    struct step_result r;

    PF_TRY(train_step(t, &r));
    *report_out = (struct pf_step_report){
        .loss = r.loss, .grad_norm = r.grad_norm, .seconds = r.seconds, .tokens = r.tokens};
    return 0;
}

struct pf_ops *pf_trainer_ops(struct pf_trainer *t)
{
    return t->ops;
}
