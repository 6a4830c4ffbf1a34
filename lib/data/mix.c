/* SPDX-License-Identifier: Apache-2.0 */
/* mix.c - which source of a mix a position belongs to. */
#include "data_internal.h"

#include <pf/error.h>
#include <pf/mem.h>

#include <math.h>
#include <string.h>

/* The longest walk that pf_mix_length makes: a second or so for each four sources. */
#define MAX_WALK (INT64_C(1) << 28)

static int64_t *mark(const struct pf_mix *mix, int64_t j)
{
    return mix->marks + j * mix->n;
}

/* Remember the counts at the cursor if it stands at the next mark's place. When the rows are used
 * up every other one goes and the stride doubles, so that memory stays the same. */
static void keep_mark(struct pf_mix *mix)
{
    const size_t row_bytes = (size_t)mix->n * sizeof *mix->counts;

    if (mix->position != mix->n_marks * mix->stride) {
        return;
    }
    if (mix->n_marks == PF_MIX_MARKS) {
        for (int64_t j = 1; j < PF_MIX_MARKS / 2; j++) {
            memcpy(mark(mix, j), mark(mix, 2 * j), row_bytes);
        }
        mix->n_marks = PF_MIX_MARKS / 2;
        mix->stride *= 2;
    }
    memcpy(mark(mix, mix->n_marks++), mix->counts, row_bytes);
}

/* The source of the position at the cursor. */
static int choose(const struct pf_mix *mix)
{
    double largest = -INFINITY;
    int best = 0;

    for (int i = 0; i < mix->n; i++) {
        const double deficit =
            mix->weights[i] * (double)(mix->position + 1) - (double)mix->counts[i];
        if (deficit > largest) {
            largest = deficit;
            best = i;
        }
    }
    return best;
}

static void step(struct pf_mix *mix)
{
    mix->counts[choose(mix)]++;
    mix->position++;
    keep_mark(mix);
}

int pf_mix_new(const double *weights, const int64_t *n_windows, int n, struct pf_mix **mix_out)
{
    struct pf_mix *mix = pf_alloc(sizeof *mix);
    double sum = 0.0;

    if (!mix) {
        return PF_ENOMEM;
    }
    mix->n = n;
    mix->stride = 64;
    mix->weights = pf_calloc_array((size_t)n, sizeof *mix->weights);
    mix->n_windows = pf_calloc_array((size_t)n, sizeof *mix->n_windows);
    mix->counts = pf_calloc_array((size_t)n, sizeof *mix->counts);
    mix->marks = pf_calloc_array((size_t)n * PF_MIX_MARKS, sizeof *mix->marks);
    if (!mix->weights || !mix->n_windows || !mix->counts || !mix->marks) {
        pf_mix_free(mix);
        return PF_ENOMEM;
    }
    for (int i = 0; i < n; i++) {
        sum += weights[i];
    }
    for (int i = 0; i < n; i++) {
        mix->weights[i] = weights[i] / sum;
        mix->n_windows[i] = n_windows[i];
    }
    keep_mark(mix);
    *mix_out = mix;
    return 0;
}

void pf_mix_free(struct pf_mix *mix)
{
    if (!mix) {
        return;
    }
    pf_free(mix->weights);
    pf_free(mix->n_windows);
    pf_free(mix->counts);
    pf_free(mix->marks);
    pf_free(mix);
}

/* Put the cursor on mark j. */
static void go_to_mark(struct pf_mix *mix, int64_t j)
{
    memcpy(mix->counts, mark(mix, j), (size_t)mix->n * sizeof *mix->counts);
    mix->position = j * mix->stride;
}

void pf_mix_at(struct pf_mix *mix, int64_t position, int *source_out, int64_t *count_out)
{
    const int64_t wanted = position / mix->stride;
    const int64_t nearest = wanted < mix->n_marks ? wanted : mix->n_marks - 1;

    if (position < mix->position || nearest * mix->stride > mix->position) {
        go_to_mark(mix, nearest);
    }
    while (mix->position < position) {
        step(mix);
    }
    *source_out = choose(mix);
    *count_out = mix->counts[*source_out];
}

static bool all_seen(const struct pf_mix *mix)
{
    for (int i = 0; i < mix->n; i++) {
        if (mix->counts[i] < mix->n_windows[i]) {
            return false;
        }
    }
    return true;
}

int64_t pf_mix_length(struct pf_mix *mix)
{
    double bound = 0.0;

    if (mix->length > 0) {
        return mix->length;
    }
    for (int i = 0; i < mix->n; i++) {
        bound = fmax(bound, ceil(((double)mix->n_windows[i] + 2.0) / mix->weights[i]));
    }
    if (bound > (double)MAX_WALK) {
        mix->length = bound < 0x1p62 ? (int64_t)bound : INT64_C(1) << 62;
        return mix->length;
    }
    go_to_mark(mix, 0);
    while (!all_seen(mix)) {
        step(mix);
    }
    mix->length = mix->position;
    return mix->length;
}
