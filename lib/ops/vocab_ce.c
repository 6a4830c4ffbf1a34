/* SPDX-License-Identifier: Apache-2.0 */
/* vocab_ce.c - what the parts of a vocabulary know of its cross-entropy, put together. */
#include <pf/ops.h>

#include <math.h>

/* Of row r, what part p knows. */
static const float *stats_of(const float *stats, int p, int64_t n_rows, int64_t r)
{
    return stats + (p * n_rows + r) * 3;
}

static void combine_row(const float *stats, int n_parts, int64_t n_rows, int64_t r, float *whole,
                        float *loss)
{
    double m = -INFINITY, s = 0, target = 0;

    for (int p = 0; p < n_parts; p++) {
        m = fmax(m, (double)stats_of(stats, p, n_rows, r)[0]);
    }
    for (int p = 0; p < n_parts; p++) {
        const float *const part = stats_of(stats, p, n_rows, r);
        /* A part without a logit has no maximum either, and minus infinity less itself is NaN. */
        s += part[1] == 0 ? 0 : (double)part[1] * exp((double)part[0] - m);
        target += (double)part[2];
    }
    whole[0] = (float)m;
    whole[1] = (float)s;
    /* s is 0 only where all logits are minus infinity: the loss is NaN then, as of a whole row. */
    /* cppcheck-suppress invalidFunctionArg */
    *loss = (float)(log(s) + (m - target));
}

void pf_vocab_ce_combine(const float *stats, int n_parts, int64_t n_rows, const int32_t *targets,
                         float *whole, float *loss)
{
    for (int64_t r = 0; r < n_rows; r++) {
        if (targets[r] < 0) {
            whole[2 * r] = 0;
            whole[2 * r + 1] = 1;
            loss[r] = 0;
        } else {
            combine_row(stats, n_parts, n_rows, r, &whole[2 * r], &loss[r]);
        }
    }
}
