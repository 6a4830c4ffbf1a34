/* SPDX-License-Identifier: Apache-2.0 */
/* Learning rates against values worked out by hand from the formulas of pf-config(5). */
#include "train/train_internal.h"

#include "tap.h"

#include <math.h>

static struct pf_config base(enum pf_lr_kind kind)
{
    return (struct pf_config){.learning_rate = 8,
                              .min_lr = 2,
                              .num_cycles = 0.5,
                              .lr_end = 1,
                              .power = 1,
                              .wsd_decay_start = -1,
                              .lr_scheduler_type = kind};
}

/* Is the rate of step t of n this, to rounding? */
static void is(const struct pf_config *c, int64_t t, int64_t n, double want, const char *what)
{
    const double got = train_learning_rate(c, t, n);

    if (!ok(fabs(got - want) <= 1e-14 * fabs(want) + 1e-300, "%s: step %lld of %lld is %g", what,
            (long long)t, (long long)n, want)) {
        printf("# got %.17g\n", got);
    }
}

static void test_warmup(void)
{
    struct pf_config c = base(PF_LR_LINEAR);

    c.warmup_steps = 4;
    is(&c, 1, 10, 2, "warm-up");
    is(&c, 3, 10, 6, "warm-up");
    is(&c, 4, 10, 8, "warm-up reaches the peak");
    is(&c, 7, 10, 5, "linear after it");
    is(&c, 10, 10, 2, "linear reaches min_lr in the last step");
    c.warmup_ratio = 0.9;
    ok(train_warmup_steps(&c, 10) == 4, "warmup_steps wins over warmup_ratio");
    c.warmup_steps = 0;
    c.warmup_ratio = 0.25;
    ok(train_warmup_steps(&c, 10) == 3, "a ratio is rounded up");
    c.warmup_ratio = 0;
    ok(train_warmup_steps(&c, 10) == 0, "no warm-up is none");
    is(&c, 1, 6, 7, "without warm-up the first step is one decay step below the peak");
    c.warmup_steps = 20;
    is(&c, 10, 10, 4, "a warm-up longer than the run is cut off by its end");
    c.warmup_steps = 10;
    is(&c, 10, 10, 8, "a warm-up as long as the run ends at the peak");
}

static void test_cosine(void)
{
    struct pf_config c = base(PF_LR_COSINE);

    is(&c, 2, 8, 5 + 3 * sqrt(0.5), "cosine at a quarter");
    is(&c, 4, 8, 5, "cosine half-way");
    is(&c, 8, 8, 2, "cosine reaches min_lr in the last step");
    c.num_cycles = 1;
    is(&c, 4, 8, 2, "one wave is down half-way");
    is(&c, 8, 8, 8, "and up at the end");
    c.warmup_steps = 2;
    c.num_cycles = 0.5;
    is(&c, 4, 8, 2 + 6 * (1 + cos(acos(-1.0) / 3)) / 2, "cosine counts from the end of warm-up");
}

static void test_constant_and_polynomial(void)
{
    struct pf_config c = base(PF_LR_CONSTANT);

    is(&c, 1, 9, 8, "constant");
    is(&c, 9, 9, 8, "constant");
    c.warmup_steps = 2;
    is(&c, 1, 9, 4, "constant warms up too");
    c = base(PF_LR_POLYNOMIAL);
    c.power = 2;
    c.min_lr = 0;
    is(&c, 5, 10, 1 + 7 * 0.25, "polynomial of power 2 half-way");
    is(&c, 10, 10, 1, "polynomial ends at lr_end");
    c.min_lr = 2;
    is(&c, 10, 10, 2, "but not below min_lr");
}

static void test_wsd(void)
{
    struct pf_config c = base(PF_LR_WSD);

    c.decay_function = PF_WSD_LINEAR;
    is(&c, 36, 40, 8, "wsd stays at the peak for nine tenths");
    is(&c, 38, 40, 5, "wsd linear half-way down");
    is(&c, 40, 40, 2, "wsd linear at the end");
    c.wsd_decay_start = 20;
    is(&c, 20, 40, 8, "wsd_decay_start is the last step at the peak");
    is(&c, 25, 40, 2 + 6 * 0.75, "wsd linear from there");
    c.decay_function = PF_WSD_ONE_MINUS_SQRT;
    is(&c, 25, 40, 2 + 6 * 0.5, "wsd 1-sqrt at a quarter");
    is(&c, 40, 40, 2, "wsd 1-sqrt at the end");
    c.decay_function = PF_WSD_HALF_LIFE;
    is(&c, 22, 40, 2 + 6 * 0.5, "wsd half_life after a tenth of the decay");
    is(&c, 40, 40, 2 + 6.0 / 1024, "wsd half_life at the end");
    c.wsd_decay_start = 40;
    is(&c, 40, 40, 8, "wsd without room to decay stays at the peak");
    c.wsd_decay_start = 20;
    c.warmup_steps = 4;
    is(&c, 2, 40, 4, "wsd warms up too");
}

static void test_table(void)
{
    double rates[] = {3, 1, 4};
    struct pf_config c = base(PF_LR_TABLE);

    c.lr_table = rates;
    c.n_lr_table = 3;
    c.warmup_steps = 3;
    is(&c, 1, 3, 3, "table");
    is(&c, 2, 3, 1, "table");
    is(&c, 3, 3, 4, "table, whatever the warm-up");
}

int main(void)
{
    test_warmup();
    test_cosine();
    test_constant_and_polynomial();
    test_wsd();
    test_table();
    return done();
}
