/* SPDX-License-Identifier: Apache-2.0 */
/* Learning-rate schedules. Source: the formulas of pf-config(5); the cosine with cycles is that of
 * transformers' get_cosine_schedule_with_warmup. */
#include "train_internal.h"

#include <math.h>

static double decay_of(const struct pf_config *c, double progress)
{
    switch (c->decay_function) {
    case PF_WSD_ONE_MINUS_SQRT:
        return 1 - sqrt(progress);
    case PF_WSD_HALF_LIFE:
        /* Ten half-lives over the decay. */
        return pow(0.5, 10 * progress);
    case PF_WSD_LINEAR:
        break;
    }
    return 1 - progress;
}

static double wsd(const struct pf_config *c, int64_t t, int64_t n)
{
    const int64_t start = c->wsd_decay_start >= 0 ? c->wsd_decay_start : n - n / 10;

    if (t <= start || start >= n) {
        return c->learning_rate;
    }
    const double progress = (double)(t - start) / (double)(n - start);
    return c->min_lr + (c->learning_rate - c->min_lr) * decay_of(c, progress);
}

double train_learning_rate(const struct pf_config *c, int64_t t, int64_t n)
{
    const int64_t w = train_warmup_steps(c, n);
    const double peak = c->learning_rate;

    if (c->lr_scheduler_type == PF_LR_TABLE) {
        return c->lr_table[t - 1 < c->n_lr_table ? t - 1 : c->n_lr_table - 1];
    }
    if (t <= w) {
        return peak * (double)t / (double)w;
    }
    const double progress = n > w ? (double)(t - w) / (double)(n - w) : 1;
    switch (c->lr_scheduler_type) {
    case PF_LR_LINEAR:
        return c->min_lr + (peak - c->min_lr) * (1 - progress);
    case PF_LR_COSINE:
        return c->min_lr +
               (peak - c->min_lr) * (1 + cos(2 * acos(-1.0) * c->num_cycles * progress)) / 2;
    case PF_LR_POLYNOMIAL:
        return fmax(c->min_lr, c->lr_end + (peak - c->lr_end) * pow(1 - progress, c->power));
    case PF_LR_WSD:
        return wsd(c, t, n);
    case PF_LR_CONSTANT:
    case PF_LR_TABLE:
        break;
    }
    return peak;
}

int64_t train_warmup_steps(const struct pf_config *c, int64_t n)
{
    return c->warmup_steps > 0 ? c->warmup_steps : (int64_t)ceil(c->warmup_ratio * (double)n);
}
