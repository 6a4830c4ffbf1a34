/* SPDX-License-Identifier: Apache-2.0 */
/* Verdicts of measurements. No clock is read: samples are drawn from a model of a noisy machine. */
#include <pf/bench.h>
#include <pf/error.h>
#include <pf/file.h>
#include <pf/mem.h>
#include <pf/rng.h>

#include "scratch.h"
#include "tap.h"

#include <math.h>
#include <string.h>

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-6 * fabs(b);
}

static void test_stats(void)
{
    const double values[] = {4, 1, 3, 2, 5};
    struct pf_bench_stats s;

    ok(pf_bench_stats(values, 5, &s) == 0 && s.n == 5 && near(s.median, 3) && near(s.min, 1) &&
           near(s.max, 5) && near(s.q1, 2) && near(s.q3, 4) && near(s.spread, 2.0 / 3),
       "median, extremes, quartiles and spread of five numbers");
    ok(pf_bench_stats(values, 2, &s) == 0 && near(s.median, 2.5) && near(s.q1, 1.75),
       "quartiles of two numbers lie between them");
    ok(pf_bench_stats(values, 0, &s) == 0 && s.n == 0 && isnan(s.median),
       "no number has no median");
}

/* A record of one case whose samples are those of a machine that is disturbed: each pass of ten
 * samples has its own pace, each sample its own, and one in ten is interrupted. */
static void draw(struct pf_bench_record *r, uint64_t seed, double mean)
{
    enum { PASSES = 3, EACH = 10 };
    const uint64_t key = pf_rng_derive_name(seed, "samples");
    struct pf_bench_case *c;

    (void)pf_bench_record_init(r, "ops", 2);
    (void)pf_bench_add_case(r, &c);
    snprintf(c->name, sizeof c->name, "gemm F32 1x1x1:nn");
    snprintf(c->what, sizeof c->what, "gemm");
    snprintf(c->dtype, sizeof c->dtype, "F32");
    snprintf(c->shape, sizeof c->shape, "1x1x1:nn");
    c->work = 1e9;
    c->checked = c->right = true;
    c->time.seconds = pf_calloc_array(PASSES * EACH, sizeof *c->time.seconds);
    c->time.n = c->time.capacity = PASSES * EACH;
    c->time.calls_per_sample = 1;
    for (uint64_t i = 0; i < PASSES * EACH; i++) {
        const double pace = 1 + 0.04 * fabs(pf_rng_normal(key, 1, i / EACH));
        const double own = 1 + 0.05 * fabs(pf_rng_normal(key, 2, i));
        const bool interrupted = pf_rng_bounded(key, 3, i, 10) == 0;
        c->time.seconds[i] = mean * pace * own * (interrupted ? 3 : 1);
    }
    (void)pf_bench_stats(c->time.seconds, c->time.n, &c->stats);
}

/* How often a run that takes `factor` times as long is found slower, in so many pairs of runs. */
static int count_slower(double factor, int n_pairs)
{
    int n_slower = 0;

    for (int i = 0; i < n_pairs; i++) {
        struct pf_bench_record old, now;
        draw(&old, (uint64_t)(2 * i), 1e-3);
        draw(&now, (uint64_t)(2 * i + 1), 1e-3 * factor);
        (void)pf_bench_compare(&now, &old, 1.05, false);
        n_slower += pf_bench_verdict(&now) == PF_EDIFFER;
        pf_error_clear();
        pf_bench_record_release(&old);
        pf_bench_record_release(&now);
    }
    return n_slower;
}

static void test_noise(void)
{
    const int same = count_slower(1, 1000), twice = count_slower(2, 200);

    ok(same <= 10, "two identical runs agree in 99 of 100 (%d of 1000 did not)", same);
    ok(twice == 200, "a run of twice the time is always found slower (%d of 200)", twice);
    ok(count_slower(1.3, 200) >= 190, "one of 1.3 times nearly always");
    ok(count_slower(0.5, 50) == 0, "a faster one never");
}

/* Compare two records after a change to one of them; the message must have these words. */
static bool fails_with(const char *words,
                       void (*change)(struct pf_bench_record *now, struct pf_bench_record *old),
                       bool force)
{
    struct pf_bench_record old, now;

    draw(&old, 1, 1e-3);
    draw(&now, 2, 1e-3);
    change(&now, &old);
    (void)pf_bench_compare(&now, &old, 1.5, force);
    const bool failed = pf_bench_verdict(&now) == PF_EDIFFER;
    const bool said = failed && words && strstr(pf_error_message(), words);
    if (words && !said) {
        printf("# '%s'\n", pf_error_message());
    }
    pf_error_clear();
    pf_bench_record_release(&old);
    pf_bench_record_release(&now);
    return words ? said : !failed;
}

static void change_nothing(struct pf_bench_record *now, struct pf_bench_record *old)
{
    (void)now;
    (void)old;
}
static void change_name(struct pf_bench_record *now, struct pf_bench_record *old)
{
    (void)old;
    snprintf(now->cases[0].name, sizeof now->cases[0].name, "another");
}
static void change_unit(struct pf_bench_record *now, struct pf_bench_record *old)
{
    (void)old;
    now->cases[0].unit = PF_BENCH_BYTE;
}
static void change_work(struct pf_bench_record *now, struct pf_bench_record *old)
{
    (void)old;
    now->cases[0].work *= 2;
}
static void empty_new(struct pf_bench_record *now, struct pf_bench_record *old)
{
    (void)old;
    now->cases[0].stats.n = 0;
}
static void empty_old(struct pf_bench_record *now, struct pf_bench_record *old)
{
    (void)now;
    old->cases[0].stats.n = 0;
}
static void no_old_case(struct pf_bench_record *now, struct pf_bench_record *old)
{
    (void)now;
    pf_free(old->cases[0].time.seconds);
    old->n_cases = 0;
}
static void wrong_old(struct pf_bench_record *now, struct pf_bench_record *old)
{
    (void)now;
    old->cases[0].right = false;
}
static void other_cpu(struct pf_bench_record *now, struct pf_bench_record *old)
{
    (void)now;
    snprintf(old->env.cpu, sizeof old->env.cpu, "another");
}
static void other_threads(struct pf_bench_record *now, struct pf_bench_record *old)
{
    (void)now;
    old->env.n_threads++;
}
static void other_build(struct pf_bench_record *now, struct pf_bench_record *old)
{
    (void)now;
    snprintf(old->env.build, sizeof old->env.build, "another");
    snprintf(old->env.library, sizeof old->env.library, "another");
}
static void wrong_and_missing(struct pf_bench_record *now, struct pf_bench_record *old)
{
    change_name(now, old);
    (void)pf_bench_fail(now, true, "wrong result: all of it");
}

static void test_comparing(void)
{
    ok(fails_with(NULL, change_nothing, false), "like and like pass");
    ok(fails_with("missing", change_name, false), "a missing case fails");
    ok(fails_with("counts", change_unit, false), "another unit fails");
    ok(fails_with("counts", change_work, false), "another amount of work fails");
    ok(fails_with("no samples in the new", empty_new, false), "an empty case fails");
    ok(fails_with("no samples in the old", empty_old, false), "an empty old case fails");
    ok(fails_with("no case", no_old_case, false), "an empty old record fails");
    ok(fails_with("was wrong", wrong_old, false), "a wrong old result fails");
    ok(fails_with("environment (CPU)", other_cpu, false), "another CPU fails, and is named");
    ok(fails_with("environment (threads)", other_threads, false), "another thread count fails");
    ok(fails_with(NULL, other_cpu, true), "--force compares them all the same");
    ok(fails_with(NULL, other_build, false), "another build and library is what is compared");
    ok(fails_with("wrong result", wrong_and_missing, false), "a wrong result is told first");
}

static void test_empty(void)
{
    struct pf_bench_record r;

    (void)pf_bench_record_init(&r, "ops", 1);
    ok(pf_bench_verdict(&r) == PF_EDIFFER, "a record without cases fails");
    pf_error_clear();
    pf_bench_record_release(&r);
}

static void set_ratio(struct pf_bench_record *r, double low, double middle, double high)
{
    const double values[] = {low, low, middle, middle, middle, high, high};

    snprintf(r->cases[0].rival, sizeof r->cases[0].rival, "onednn");
    (void)pf_bench_stats(values, 7, &r->cases[0].ratio);
}

static bool ratio_fails(double low, double middle, double high)
{
    struct pf_bench_record r;

    draw(&r, 1, 1e-3);
    set_ratio(&r, low, middle, high);
    (void)pf_bench_require_ratio(&r, 1.2);
    const bool failed = pf_bench_verdict(&r) == PF_EDIFFER;
    pf_error_clear();
    pf_bench_record_release(&r);
    return failed;
}

static void test_ratio(void)
{
    struct pf_bench_record r;

    ok(ratio_fails(0.99, 1.0, 1.01), "a ratio below the least fails");
    ok(!ratio_fails(1.3, 1.31, 1.32), "one above passes");
    ok(!ratio_fails(0.7, 1.18, 1.6), "one that is below by less than its own error passes");
    draw(&r, 1, 1e-3);
    (void)pf_bench_require_ratio(&r, 1.2);
    ok(pf_bench_verdict(&r) == PF_EDIFFER, "a least ratio without a rival fails");
    pf_error_clear();
    pf_bench_record_release(&r);
}

static void test_document(void)
{
    const char *const path = at("record.json");
    struct pf_bench_record r, back;
    struct pf_str text;

    pf_str_init(&text);
    draw(&r, 1, 1e-3);
    set_ratio(&r, 1, 1, 1);
    ok(pf_bench_print_json(&r, 0, &text) == 0 &&
           pf_file_write_atomic(path, text.text, text.len) == 0 && pf_bench_read(path, &back) == 0,
       "a record is written and read back");
    ok(back.n_cases == 1 && strcmp(back.cases[0].name, r.cases[0].name) == 0 &&
           back.cases[0].time.n == r.cases[0].time.n && back.cases[0].checked &&
           near(back.cases[0].stats.median, r.cases[0].stats.median) &&
           near(back.cases[0].work, 1e9) && strcmp(back.env.cpu, r.env.cpu) == 0,
       "with its case, samples and environment");
    ok(pf_bench_compare(&r, &back, 1.05, false) == 0 && pf_bench_verdict(&r) == 0,
       "and is a baseline for itself");
    pf_bench_record_release(&back);

    put(path, "{\"schema\":2,\"program\":\"pf-bench\"}", 33);
    ok(pf_bench_read(path, &back) == PF_EFORMAT, "another schema is refused");
    pf_bench_record_release(&back);
    put(path, "[1,2", 4);
    ok(pf_bench_read(path, &back) == PF_EFORMAT, "and what is no JSON");
    pf_bench_record_release(&back);
    pf_bench_record_release(&r);
    pf_str_release(&text);
}

int main(void)
{
    test_stats();
    test_noise();
    test_comparing();
    test_empty();
    test_ratio();
    scratch_make();
    test_document();
    scratch_remove();
    return done();
}
