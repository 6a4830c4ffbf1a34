/* SPDX-License-Identifier: Apache-2.0 */
/* The clock: warm up, decide how many calls make a sample, take samples in turn. */
#include "bench_internal.h"

#include <pf/error.h>
#include <pf/mem.h>
#include <pf/time.h>

/* A sample lasts at least this long: ten thousand times what the clock may be off by. */
#define SAMPLE_SECONDS 5e-4

enum { MIN_SAMPLES = 3, MAX_SAMPLES = 64, MAX_CALLS = 1 << 20 };

int bench_add_sample(struct pf_bench_samples *samples, double seconds)
{
    if (samples->n == samples->capacity) {
        const int capacity = samples->capacity ? 2 * samples->capacity : 32;
        double *const grown = pf_realloc_array(samples->seconds, (size_t)capacity, sizeof *grown);
        if (!grown) {
            return PF_ENOMEM;
        }
        samples->seconds = grown;
        samples->capacity = capacity;
    }
    samples->seconds[samples->n++] = seconds;
    return 0;
}

/* The sets of arrays, used one after another. */
struct ring {
    const struct bench_op *op;
    const struct bench_call *sets;
    int n, at;
};

/* Seconds of one call, the mean of n. */
static int time_calls(struct ring *ring, const struct bench_runner *runner, int64_t n,
                      double *seconds_out)
{
    const struct bench_contestant *const c = &runner->contestant;
    const double started = pf_time_monotonic();

    for (int64_t i = 0; i < n; i++) {
        PF_TRY(c->run(c->state, ring->op, &ring->sets[ring->at]));
        ring->at = ring->at + 1 < ring->n ? ring->at + 1 : 0;
    }
    *seconds_out = (pf_time_monotonic() - started) / (double)n;
    return 0;
}

static int warm_up(struct ring *ring, const struct bench_runner *runner, int n)
{
    struct pf_bench_samples *const samples = runner->samples;
    double seconds = 0, fastest = 0;

    for (int i = 0; i < n; i++) {
        PF_TRY(time_calls(ring, runner, 1, &seconds));
        fastest = i == 0 || seconds < fastest ? seconds : fastest;
        samples->warmup_seconds += seconds;
    }
    samples->warmup_calls += n;
    if (samples->calls_per_sample == 0) {
        /* A later pass keeps the number, so that all samples are of a kind. */
        const double calls = n > 0 ? SAMPLE_SECONDS / (fastest + 1e-9) : 1;
        samples->calls_per_sample = calls < 1 ? 1 : calls > MAX_CALLS ? MAX_CALLS : (int64_t)calls;
    }
    return 0;
}

static int take_sample(struct ring *ring, const struct bench_runner *runner, bool settle,
                       double rest)
{
    double seconds;

    if (settle && rest > 0) {
        pf_time_sleep(rest);
        PF_TRY(time_calls(ring, runner, 1, &seconds)); /* wakes this one's threads */
    }
    PF_TRY(time_calls(ring, runner, runner->samples->calls_per_sample, &seconds));
    return bench_add_sample(runner->samples, seconds);
}

int bench_time(const struct bench_op *op, const struct bench_call *sets, int n_sets,
               const struct bench_runner *runners, int n_runners, const struct bench_pass *pass)
{
    struct ring ring = {.op = op, .sets = sets, .n = n_sets};

    for (int r = 0; r < n_runners; r++) {
        PF_TRY(warm_up(&ring, &runners[r], pass->warmup));
    }
    const double started = pf_time_monotonic();
    const int most = pass->n_samples > 0 ? pass->n_samples : MAX_SAMPLES;
    for (int i = 0; i < most; i++) {
        const double spent = pf_time_monotonic() - started;
        if (pass->n_samples == 0 && i >= MIN_SAMPLES && spent > pass->seconds * n_runners) {
            break;
        }
        for (int r = 0; r < n_runners; r++) {
            PF_TRY(take_sample(&ring, &runners[r], n_runners > 1, pass->rest));
        }
    }
    return 0;
}

int bench_pair_up(struct pf_bench_case *c)
{
    const int n = c->time.n < c->rival_time.n ? c->time.n : c->rival_time.n;
    double *const ratios = pf_calloc_array((size_t)n + 1, sizeof *ratios);

    if (!ratios) {
        return PF_ENOMEM;
    }
    for (int i = 0; i < n; i++) {
        ratios[i] = c->rival_time.seconds[i] / c->time.seconds[i];
    }
    const int err = pf_bench_stats(ratios, n, &c->ratio);
    pf_free(ratios);
    return err;
}
