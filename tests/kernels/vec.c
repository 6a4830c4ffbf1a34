/* SPDX-License-Identifier: Apache-2.0 */
/* vec.h's functions against libm in double, over every exponent and both signs: the error bounds
 * that it states. Compiled here without vector flags: the form whose v_fma rounds twice. */
#include "../../kernels/cpu/vec.h"

#include "tap.h"

#include <math.h>
#include <stdbool.h>

/* One float in so many is tried; prime, so that all low bits occur. */
#define STRIDE 20011u

typedef double (*exact_fn)(double x);

static vf apply(char which, vf x)
{
    switch (which) {
    case 'e':
        return v_exp(x);
    default:
        for (int i = 0; i < VL; i++) {
            x[i] = s_log(x[i]);
        }
        return x;
    }
}

static float from_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/* In units of the last place of r; results too small or large for that are skipped. */
static double error_in_ulp(float got, double r)
{
    const float nearest = fabsf((float)r);

    if (nearest < 0x1p-126f || nearest > 0x1.fffffep127f) {
        return 0;
    }
    return fabs((double)got - r) / ((double)nextafterf(nearest, INFINITY) - (double)nearest);
}

static double worst_error(char which, exact_fn exact, uint32_t sign)
{
    double worst = 0;

    for (uint32_t bits = 0; bits < 0x7f800000u; bits += STRIDE) {
        const float x = from_bits(bits | sign);
        const double error = error_in_ulp(apply(which, v_set(x))[0], exact((double)x));
        worst = error > worst || error != error ? error : worst;
    }
    return worst;
}

static void errors_are_as_stated(void)
{
    const double e = fmax(worst_error('e', exp, 0), worst_error('e', exp, 0x80000000u));
    const double l = worst_error('l', log, 0);

    ok(e < 1.1, "v_exp is within 1.1 ulp (%.3f)", e);
    ok(l < 0.5001, "s_log is within 0.5001 ulp (%.4f)", l);
}

static void ends_of_the_range(void)
{
    const float inf = INFINITY;

    ok(v_exp(v_set(inf))[0] == inf && v_exp(v_set(89.0f))[0] == inf, "exp overflows to infinity");
    ok(v_exp(v_set(-inf))[0] == 0 && v_exp(v_set(-104.0f))[0] == 0, "exp underflows to 0");
    ok(v_exp(v_set(-100.0f))[0] > 0, "exp has subnormal results");
    ok(s_log(0) == -inf && s_log(inf) == inf && isnan(s_log(-1)), "log at its ends");
    ok(isnan(v_exp(v_set(NAN))[0]) && isnan(s_log(NAN)), "NaN goes through");
}

/* A lane's result does not depend on its place or its neighbours. */
static void lanes_are_apart(void)
{
    float x[2 * VL], y[2 * VL];
    bool same = true;

    for (int i = 0; i < 2 * VL; i++) {
        x[i] = (float)(i * i - 20) / 3;
    }
    for (int n = 1; n <= VL; n++) {
        for (int at = 0; at < VL; at++) {
            memset(y, 0x55, sizeof y);
            v_store_n(y + at, v_exp(v_load_n(x + at, n)), n);
            for (int i = 0; i < 2 * VL; i++) {
                const float want =
                    i >= at && i < at + n ? v_exp(v_set(x[i]))[0] : from_bits(0x55555555u);
                same = same && memcmp(&y[i], &want, sizeof want) == 0;
            }
        }
    }
    ok(same, "tails of every length at every place give the bits of whole vectors, and no more");
}

int main(void)
{
    errors_are_as_stated();
    ends_of_the_range();
    lanes_are_apart();
    return done();
}
