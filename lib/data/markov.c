/* SPDX-License-Identifier: Apache-2.0 */
/*
 * markov.c - synthetic:markov: paths of a Markov chain whose entropy rate is known exactly.
 *
 * A context is the number whose digits to the base `vocab` are the last `order` tokens, the latest
 * one lowest. Probabilities are whole multiples of 2^-32, so that drawing a token is a comparison
 * of integers and the entropy is that of what is drawn. The table is made with +, * and / alone:
 * its bits are the same on every machine.
 */
#include "data_internal.h"

#include <pf/error.h>
#include <pf/mem.h>
#include <pf/rng.h>
#include <pf/str.h>

#include <math.h>
#include <string.h>

#define PREFIX "synthetic:"
#define MAX_CONTEXTS (INT64_C(1) << 20)
#define MAX_ENTRIES (INT64_C(1) << 25)
#define MAX_ITERATIONS 20000
#define TOLERANCE 1e-13

struct chain {
    int64_t vocab, order;
    int64_t n_contexts;   /* vocab^order */
    uint32_t *thresholds; /* [n_contexts][vocab]: token t is drawn by words from its threshold up to
                             the next one's; the first is 0 */
    double *up_to;        /* [n_contexts]: stationary probability of all contexts up to this one */
};

struct markov {
    struct pf_source base;
    struct chain chain;
    uint64_t key; /* of the windows */
};

static double probability(const uint32_t *row, int64_t vocab, int64_t t)
{
    const double next = t + 1 < vocab ? (double)row[t + 1] : 0x1p32;

    return (next - (double)row[t]) * 0x1p-32;
}

static double power16(double x)
{
    const double x2 = x * x, x4 = x2 * x2, x8 = x4 * x4;

    return x8 * x8;
}

/* Draw the distribution after one context. The uniform share keeps every probability positive (the
 * chain is ergodic) and makes the power iteration quick. */
static void fill_row(uint64_t key, int64_t context, int64_t vocab, double *weights, uint32_t *row)
{
    double sum = 0.0, before = 0.0;

    for (int64_t t = 0; t < vocab; t++) {
        weights[t] = power16(1.0 - pf_rng_uniform_f64(key, (uint64_t)context, (uint64_t)t));
        sum += weights[t];
    }
    for (int64_t t = 0; t < vocab; t++) {
        row[t] = (uint32_t)(before * 0x1p32);
        before += 15.0 / 16.0 * (weights[t] / sum) + 1.0 / 16.0 / (double)vocab;
    }
}

static int fill_table(struct chain *chain, uint64_t seed)
{
    const uint64_t key = pf_rng_derive_name(seed, "markov chain");
    double *weights = pf_calloc_array((size_t)chain->vocab, sizeof *weights);

    if (!weights) {
        return PF_ENOMEM;
    }
    for (int64_t c = 0; c < chain->n_contexts; c++) {
        fill_row(key, c, chain->vocab, weights, chain->thresholds + c * chain->vocab);
    }
    pf_free(weights);
    return 0;
}

/* One step of the distribution over contexts; returns how far it moved (L1). */
static double power_step(const struct chain *chain, const double *from, double *to)
{
    double moved = 0.0;

    memset(to, 0, (size_t)chain->n_contexts * sizeof *to);
    for (int64_t c = 0; c < chain->n_contexts; c++) {
        const uint32_t *const row = chain->thresholds + c * chain->vocab;
        double *const into = to + c * chain->vocab % chain->n_contexts;
        for (int64_t t = 0; t < chain->vocab; t++) {
            into[t] += from[c] * probability(row, chain->vocab, t);
        }
    }
    for (int64_t c = 0; c < chain->n_contexts; c++) {
        moved += fabs(to[c] - from[c]);
    }
    return moved;
}

/* The stationary distribution into pi, which with `other` is the working space. */
static int find_stationary(const struct chain *chain, double *pi, double *other)
{
    const size_t n_bytes = (size_t)chain->n_contexts * sizeof *pi;
    double moved = INFINITY;

    for (int64_t c = 0; c < chain->n_contexts; c++) {
        pi[c] = 1.0 / (double)chain->n_contexts;
    }
    for (int i = 0; i < MAX_ITERATIONS && moved > TOLERANCE; i++) {
        moved = power_step(chain, pi, other);
        memcpy(pi, other, n_bytes);
    }
    if (moved > TOLERANCE) {
        return pf_fail(PF_ENUMERIC,
                       "the stationary distribution of the chain was not found: after "
                       "%d iterations it still moves by %g",
                       MAX_ITERATIONS, moved);
    }
    return 0;
}

static double entropy_rate(const struct chain *chain, const double *pi)
{
    double total = 0.0;

    for (int64_t c = 0; c < chain->n_contexts; c++) {
        const uint32_t *const row = chain->thresholds + c * chain->vocab;
        double sum = 0.0;
        for (int64_t t = 0; t < chain->vocab; t++) {
            const double p = probability(row, chain->vocab, t);
            sum -= p * log(p);
        }
        total += pi[c] * sum;
    }
    return total;
}

static int chain_init(struct chain *chain, uint64_t seed, double *entropy_out)
{
    const size_t n = (size_t)chain->n_contexts;
    double *other = pf_calloc_array(n, sizeof *other);
    double sum = 0.0;
    int err = 0;

    chain->thresholds = pf_calloc_array(n * (size_t)chain->vocab, sizeof *chain->thresholds);
    chain->up_to = pf_calloc_array(n, sizeof *chain->up_to);
    PF_TRY_GOTO(other && chain->thresholds && chain->up_to ? 0 : PF_ENOMEM, out);
    PF_TRY_GOTO(fill_table(chain, seed), out);
    PF_TRY_GOTO(find_stationary(chain, chain->up_to, other), out);
    *entropy_out = entropy_rate(chain, chain->up_to);
    for (size_t c = 0; c < n; c++) {
        sum += chain->up_to[c];
        chain->up_to[c] = sum;
    }
out:
    pf_free(other);
    return err;
}

/* The first context whose share reaches beyond u of the whole. */
static int64_t draw_context(const struct chain *chain, double u)
{
    const double at = u * chain->up_to[chain->n_contexts - 1];
    int64_t lo = 0, hi = chain->n_contexts - 1;

    while (lo < hi) {
        const int64_t mid = lo + (hi - lo) / 2;
        if (chain->up_to[mid] > at) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    return lo;
}

/* The last token whose threshold is not above the word. */
static int64_t draw_token(const struct chain *chain, int64_t context, uint32_t word)
{
    const uint32_t *const row = chain->thresholds + context * chain->vocab;
    int64_t lo = 0, hi = chain->vocab - 1;

    while (lo < hi) {
        const int64_t mid = lo + (hi - lo + 1) / 2;
        if (row[mid] <= word) {
            lo = mid;
        } else {
            hi = mid - 1;
        }
    }
    return lo;
}

/* Window i of a path: block 0 of its random stream draws the first context, the others four tokens
 * each. */
static void draw_path(const struct markov *markov, int64_t i, int64_t n, int32_t *tokens_out)
{
    const struct chain *const chain = &markov->chain;
    uint32_t words[4];
    int64_t context, rest;

    pf_rng_block(markov->key, (uint64_t)i, 0, words);
    context =
        draw_context(chain, ((double)(words[0] >> 5) * 0x1p26 + (double)(words[1] >> 6)) * 0x1p-53);
    rest = context;
    for (int64_t s = chain->order - 1; s >= 0; s--) {
        if (s < n) {
            tokens_out[s] = (int32_t)(rest % chain->vocab);
        }
        rest /= chain->vocab;
    }
    for (int64_t s = chain->order, drawn = 0; s < n; s++, drawn++) {
        if (drawn % 4 == 0) {
            pf_rng_block(markov->key, (uint64_t)i, (uint64_t)(1 + drawn / 4), words);
        }
        const int64_t token = draw_token(chain, context, words[drawn % 4]);
        tokens_out[s] = (int32_t)token;
        context = (context * chain->vocab + token) % chain->n_contexts;
    }
}

static int markov_sequence(struct pf_source *source, int64_t i, int32_t *ids, int32_t *targets)
{
    const struct markov *markov = (const struct markov *)source;

    draw_path(markov, i, source->seq + 1, source->scratch);
    for (int64_t s = 0; s < source->seq; s++) {
        ids[s] = source->scratch[s];
        targets[s] = s + 1 < markov->chain.order ? -1 : source->scratch[s + 1];
    }
    return 0;
}

static void markov_free(struct pf_source *source)
{
    struct markov *markov = (struct markov *)source;

    pf_free(markov->chain.thresholds);
    pf_free(markov->chain.up_to);
    pf_free(markov);
}

static const struct pf_source_ops markov_ops = {
    .kind = "markov",
    .sequence = markov_sequence,
    .free = markov_free,
};

struct parameters {
    int64_t vocab, order, tokens;
    uint64_t seed, stream;
};

/* One "key=value". */
static int take_parameter(const char *name, char *item, struct parameters *p)
{
    static const char *const keys[] = {"vocab", "order", "tokens", "seed", "stream"};
    int64_t *const whole[] = {&p->vocab, &p->order, &p->tokens};
    char *const equals = strchr(item, '=');
    const char *nearest;

    if (!equals) {
        return pf_fail(PF_EUSAGE, "expected key=value, not '%s', in '%s'", item, name);
    }
    *equals = '\0';
    for (int k = 0; k < 3; k++) {
        if (strcmp(item, keys[k]) == 0) {
            PF_TRY(pf_parse_i64(equals + 1, whole[k]));
            return *whole[k] > 0 ? 0
                                 : pf_fail(PF_EUSAGE, "%s must be positive in '%s'", item, name);
        }
    }
    if (strcmp(item, "seed") == 0) {
        return pf_parse_u64(equals + 1, &p->seed);
    }
    if (strcmp(item, "stream") == 0) {
        return pf_parse_u64(equals + 1, &p->stream);
    }
    nearest = pf_nearest(item, keys, sizeof keys / sizeof *keys);
    return pf_fail(PF_EUSAGE, "unknown parameter '%s' in '%s'%s%s%s", item, name,
                   nearest ? "; did you mean '" : "", nearest ? nearest : "", nearest ? "'?" : "");
}

static int parse_name(const char *name, struct parameters *p)
{
    const char *const query = strchr(name, '?');
    struct pf_str_list items = {0};
    int err = 0;

    if (!query) {
        return 0;
    }
    PF_TRY(pf_str_split(query + 1, '&', false, &items));
    for (size_t i = 0; i < items.n; i++) {
        PF_TRY_GOTO(take_parameter(name, items.items[i], p), out);
    }
out:
    pf_str_list_release(&items);
    return err;
}

/* Sizes against the limits; sets chain->n_contexts. */
static int check_size(struct chain *chain, const struct pf_source *source)
{
    int64_t n = 1;

    for (int64_t k = 0; k < chain->order && n <= MAX_CONTEXTS; k++) {
        n = chain->vocab <= MAX_CONTEXTS ? n * chain->vocab : MAX_CONTEXTS + 1;
    }
    if (chain->vocab < 2 || n > MAX_CONTEXTS || n * chain->vocab > MAX_ENTRIES) {
        return pf_fail(
            PF_EINVAL,
            "'%s': vocab must be at least 2, vocab^order at most 2^20 and vocab^(order+1) "
            "at most 2^25",
            source->name);
    }
    if (chain->vocab > source->vocab_size) {
        return pf_fail(PF_EINVAL, "'%s' has %lld tokens, but vocab_size is %lld", source->name,
                       (long long)chain->vocab, (long long)source->vocab_size);
    }
    if (chain->order > source->seq) {
        return pf_fail(PF_EINVAL, "'%s' is of order %lld, but a sequence has %lld tokens",
                       source->name, (long long)chain->order, (long long)source->seq);
    }
    chain->n_contexts = n;
    return 0;
}

static int set_up(struct markov *markov, const char *name)
{
    struct parameters p = {.vocab = 64, .order = 2, .tokens = 1 << 20, .seed = 1};
    struct pf_source *const source = &markov->base;

    PF_TRY(parse_name(name, &p));
    markov->chain.vocab = p.vocab;
    markov->chain.order = p.order;
    PF_TRY(check_size(&markov->chain, source));
    PF_TRY(chain_init(&markov->chain, p.seed, &source->entropy));
    markov->key = pf_rng_derive(pf_rng_derive_name(p.seed, "markov windows"), p.stream);
    source->n_windows = p.tokens / source->seq;
    source->n_tokens = source->n_windows * source->seq;
    source->n_documents = source->n_windows;
    if (source->n_windows == 0) {
        return pf_fail(PF_EINVAL,
                       "'%s': an epoch of %lld tokens is shorter than one sequence of "
                       "%lld",
                       name, (long long)p.tokens, (long long)source->seq);
    }
    source->summary = pf_asprintf("%lld tokens an epoch, entropy %.9g nats a token",
                                  (long long)source->n_tokens, source->entropy);
    return source->summary ? 0 : PF_ENOMEM;
}

int pf_markov_open(const struct pf_data_options *options, const char *name,
                   struct pf_source **source_out)
{
    const char *const kind = name + strlen(PREFIX);
    struct markov *markov;
    int err = 0;

    if (strcmp(kind, "markov") != 0 && !pf_str_starts_with(kind, "markov?")) {
        return pf_fail(PF_EUSAGE, "unknown synthetic source '%s'; there is synthetic:markov", name);
    }
    markov = pf_alloc(sizeof *markov);
    if (!markov) {
        return PF_ENOMEM;
    }
    markov->base.endless = true;
    PF_TRY_GOTO(pf_source_init(&markov->base, &markov_ops, options, name), out);
    PF_TRY_GOTO(set_up(markov, name), out);
    *source_out = &markov->base;
    return 0;
out:
    pf_source_free(&markov->base);
    return err;
}
