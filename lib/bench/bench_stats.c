/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of samples, and what they say about thresholds. */
#include <pf/bench.h>

#include <pf/error.h>
#include <pf/mem.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double quantile(const double *sorted, int n, double q)
{
    const double at = q * (n - 1);
    const int below = (int)at;
    const int above = below + 1 < n ? below + 1 : below;

    return sorted[below] + (at - below) * (sorted[above] - sorted[below]);
}

int pf_bench_stats(const double *values, int n, struct pf_bench_stats *stats_out)
{
    double *sorted;

    if (n <= 0) {
        *stats_out = (struct pf_bench_stats){0, NAN, NAN, NAN, NAN, NAN, NAN};
        return 0;
    }
    sorted = pf_calloc_array((size_t)n, sizeof *sorted);
    if (!sorted) {
        return PF_ENOMEM;
    }
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, compare_doubles);
    *stats_out = (struct pf_bench_stats){.n = n,
                                         .median = quantile(sorted, n, 0.5),
                                         .min = sorted[0],
                                         .max = sorted[n - 1],
                                         .q1 = quantile(sorted, n, 0.25),
                                         .q3 = quantile(sorted, n, 0.75)};
    stats_out->spread = (stats_out->q3 - stats_out->q1) / stats_out->median;
    pf_free(sorted);
    return 0;
}

const char *pf_bench_unit_name(enum pf_bench_unit unit)
{
    static const char *const names[] = {"flop", "byte", "token"};

    return names[unit];
}

const char *pf_bench_rate_name(enum pf_bench_unit unit, double *per_second_out)
{
    static const char *const names[] = {"GFLOP/s", "GB/s", "token/s"};

    *per_second_out = unit == PF_BENCH_TOKEN ? 1 : 1e9;
    return names[unit];
}

const char *pf_bench_verdict_name(enum pf_bench_verdict verdict)
{
    static const char *const names[] = {
        [PF_BENCH_NOT_COMPARED] = "not compared",
        [PF_BENCH_SAME] = "same",
        [PF_BENCH_FASTER] = "faster",
        [PF_BENCH_SLOWER] = "slower",
        [PF_BENCH_UNCLEAR] = "unclear",
        [PF_BENCH_NEW] = "new",
    };

    return names[verdict];
}

/* Is b slower than a by more than a factor, outside of what both spread? See pf/bench.h. */
static bool is_slower(const struct pf_bench_stats *a, const struct pf_bench_stats *b, double factor)
{
    const bool apart = b->q1 > factor * a->q3 || b->min > factor * a->median;

    return apart && b->min > factor * a->min;
}

static enum pf_bench_verdict judge(const struct pf_bench_stats *old,
                                   const struct pf_bench_stats *now, double max_slowdown)
{
    if (is_slower(old, now, max_slowdown)) {
        return PF_BENCH_SLOWER;
    }
    if (is_slower(now, old, max_slowdown)) {
        return PF_BENCH_FASTER;
    }
    return now->median > max_slowdown * old->median ? PF_BENCH_UNCLEAR : PF_BENCH_SAME;
}

static bool same_work(const struct pf_bench_case *a, const struct pf_bench_case *b)
{
    return a->unit == b->unit && fabs(a->work - b->work) <= 1e-9 * fabs(b->work);
}

static int compare_case(struct pf_bench_record *record, struct pf_bench_case *c,
                        const struct pf_bench_case *old, double max_slowdown)
{
    if (old->stats.n == 0 || c->stats.n == 0) {
        return pf_bench_fail(record, false, "%s has no samples in the %s record", c->name,
                             c->stats.n == 0 ? "new" : "old");
    }
    if (!same_work(c, old)) {
        return pf_bench_fail(record, false, "%s: the old record counts %g %s, this one %g %s",
                             c->name, old->work, pf_bench_unit_name(old->unit), c->work,
                             pf_bench_unit_name(c->unit));
    }
    c->baseline = old->stats;
    c->slowdown = c->stats.median / old->stats.median;
    c->verdict = judge(&old->stats, &c->stats, max_slowdown);
    return c->verdict != PF_BENCH_SLOWER
               ? 0
               : pf_bench_fail(record, false, "%s takes %.3g times as long as before", c->name,
                               c->slowdown);
}

/* Names of the fields of the fingerprint that differ, into text; false if none does. */
static bool differing(const struct pf_bench_env *a, const struct pf_bench_env *b, char text[160])
{
    const struct {
        const char *name;
        bool differs;
    } fields[] = {
        {"CPU", strcmp(a->cpu, b->cpu) != 0},
        {"its instruction sets", strcmp(a->cpu_isa, b->cpu_isa) != 0},
        {"device", strcmp(a->device, b->device) != 0},
        {"CPUs", a->n_cpus != b->n_cpus},
        {"threads", a->n_threads != b->n_threads},
        {"ranks", a->n_ranks != b->n_ranks},
    };
    size_t n = 0;

    text[0] = '\0';
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (fields[i].differs) {
            n += (size_t)snprintf(text + n, 160 - n, "%s%s", n ? ", " : "", fields[i].name);
        }
    }
    return n > 0;
}

int pf_bench_compare(struct pf_bench_record *record, const struct pf_bench_record *old,
                     double max_slowdown, bool force)
{
    char text[160];

    if (!force && differing(&old->env, &record->env, text)) {
        PF_TRY(pf_bench_fail(record, false,
                             "the old record is of another environment (%s); --force compares",
                             text));
    }
    if (old->n_cases == 0) {
        PF_TRY(pf_bench_fail(record, false, "the old record has no case"));
    }
    for (int i = 0; i < old->n_cases; i++) {
        const struct pf_bench_case *const o = &old->cases[i];
        if (!pf_bench_find(record, o->name)) {
            PF_TRY(pf_bench_fail(record, false, "%s is missing: the old record has it", o->name));
        }
        if (o->checked && !o->right) {
            PF_TRY(pf_bench_fail(record, false, "%s was wrong in the old record", o->name));
        }
    }
    for (int i = 0; i < record->n_cases; i++) {
        struct pf_bench_case *const c = &record->cases[i];
        const struct pf_bench_case *const o = pf_bench_find(old, c->name);
        c->verdict = PF_BENCH_NEW;
        if (o) {
            c->verdict = PF_BENCH_NOT_COMPARED;
            PF_TRY(compare_case(record, c, o, max_slowdown));
        }
    }
    return 0;
}

/* Standard error of a median, from the quartiles of what may be taken for a normal distribution. */
static double median_error(const struct pf_bench_stats *s)
{
    return 1.2533 * (s->q3 - s->q1) / 1.349 / sqrt(s->n);
}

int pf_bench_require_ratio(struct pf_bench_record *record, double least)
{
    int n = 0;

    for (int i = 0; i < record->n_cases; i++) {
        const struct pf_bench_case *const c = &record->cases[i];
        if (!c->rival[0] || c->ratio.n == 0) {
            continue;
        }
        n++;
        if (c->ratio.median + 2 * median_error(&c->ratio) < least) {
            PF_TRY(pf_bench_fail(record, false, "%s is %.3g times as fast as %s, less than %.3g",
                                 c->name, c->ratio.median, c->rival, least));
        }
    }
    return n > 0 ? 0 : pf_bench_fail(record, false, "no case has a rival");
}
