/* SPDX-License-Identifier: Apache-2.0 */
/* Curves as text and SVG, and what a terminal is asked. */
#include "tap.h"

#include <pf/chart.h>
#include <pf/term.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int count(const char *text, const char *word)
{
    int n = 0;

    for (; (text = strstr(text, word)); text += strlen(word)) {
        n++;
    }
    return n;
}

static void columns(void)
{
    const double x[] = {0, 1, 2, 3, 4, 5, 6, 7, 100}, y[] = {1, 3, 5, 7, NAN, 9, 2, 4, 8};
    const struct pf_chart_curve curve = {.title = "c", .n = 9, .x = x, .y = y};
    struct pf_chart_column c[10];

    pf_chart_columns(&curve, 10, c);
    ok(c[0].n == 7 && c[0].min == 1 && c[0].max == 9 && fabs(c[0].mean - 31.0 / 7) < 1e-15,
       "points of one column: mean and range, without the gap");
    ok(c[9].n == 1 && c[9].mean == 8, "the last point is in the last column");
    ok(c[1].n == 0 && c[5].n == 0 &&
           fabs(c[5].mean - (c[0].mean + 5 * (8 - c[0].mean) / 9)) < 1e-12,
       "empty columns lie between their neighbours");
    const struct pf_chart_curve one = {.title = "c", .n = 1, .x = x + 1, .y = y + 1};
    pf_chart_columns(&one, 10, c);
    ok(c[0].mean == 3 && c[9].mean == 3, "one point fills all");
    const struct pf_chart_curve none = {.title = "c", .n = 1, .x = x, .y = y + 4};
    pf_chart_columns(&none, 2, c);
    ok(isnan(c[0].mean) && isnan(c[1].mean), "no point, no mean");
    const struct pf_chart_curve log = {.title = "c", .n = 2, .x = x, .y = x, .log = true};
    pf_chart_columns(&log, 1, c);
    ok(c[0].n == 1 && c[0].mean == 0, "a logarithm has no place for 0");
}

static void scales(void)
{
    const double flat[] = {1, 2, 3, 4, 49}, steep[] = {1, 2, 3, 4, 151}, zero[] = {0, 1, 1, 1, 999};
    double t[PF_CHART_MAX_TICKS];

    ok(!pf_chart_wants_log(flat, 5) && pf_chart_wants_log(steep, 5) && !pf_chart_wants_log(zero, 5),
       "a logarithm where the largest is far above the median, and all above 0");
    ok(pf_chart_ticks(0, 1, 6, t) == 6 && t[1] == 0.2 && t[5] == 1, "0 to 1 in fifths");
    ok(pf_chart_ticks(1, 400, 9, t) == 8 && t[0] == 50 && t[7] == 400, "1 to 400 in fifties");
    ok(pf_chart_ticks(-0.003, 0.0021, 6, t) == 6 && fabs(t[0] + 0.003) < 1e-12 && t[3] == 0,
       "through 0");
    ok(pf_chart_ticks(2, 2, 6, t) == 0 && pf_chart_ticks(NAN, 1, 6, t) == 0, "no range, no ticks");
    int bad = 0;
    for (int e = -30; e <= 30; e++) {
        for (int m = 2; m <= PF_CHART_MAX_TICKS; m++) {
            const double lo = 1.37 * pow(10, e), hi = lo * 2.9;
            const int n = pf_chart_ticks(lo, hi, m, t);
            bad += n > m || (m >= 6 && n < 2) ||
                   (n > 0 && (t[0] < lo * 0.999 || t[n - 1] > hi * 1.001));
        }
    }
    ok(bad == 0, "at most as many as asked, inside the range, for every power of ten");
}

/* A curve of 0 to 3, 24 columns wide. */
static const char *drawn(int height, bool unicode, double scale)
{
    static struct pf_str s;
    const double x[] = {1, 2, 3, 4}, y[] = {0, scale, 2 * scale, 3 * scale};
    const struct pf_chart_curve curve = {.title = "up", .n = 4, .x = x, .y = y};

    pf_str_release(&s);
    pf_str_init(&s);
    return pf_chart_text(&s, &curve, &(struct pf_chart_style){24, height, unicode}) == 0 ? s.text
                                                                                         : "error";
}

static void text(void)
{
    struct pf_str s;

    /* Heights by hand: thirteen columns, 1 + round(15 c / 12) eighths. */
    ok(strcmp(drawn(2, true, 1), "up\n"
                                 "        3 ┤      ▁▂▃▄▆▇█\n"
                                 "        0 ┤▁▂▄▅▆▇███████\n"
                                 "          └─────────────\n"
                                 "           1           4\n") == 0,
       "eighths of a block");
    ok(strcmp(drawn(2, false, 1), "up\n"
                                  "        3 |      ..::###\n"
                                  "        0 |..::#########\n"
                                  "          +-------------\n"
                                  "           1           4\n") == 0,
       "the same in ASCII");
    ok(strstr(drawn(3, true, 1e5), "   300000 ┤") && strstr(drawn(3, true, 1e-7), "    3e-07 ┤"),
       "large and small numbers are labelled");
    ok(strstr(drawn(3, true, 0), "┤▁▁▁") == NULL && strstr(drawn(3, true, 0), "│▅▅▅▅▅") != NULL,
       "a constant runs through the middle");
    pf_str_init(&s);
    const struct pf_chart_curve none = {.title = "nothing"};
    ok(pf_chart_text(&s, &none, &(struct pf_chart_style){24, 2, true}) == 0 &&
           strcmp(s.text, "nothing: no values\n") == 0,
       "no points");
    pf_str_release(&s);
}

static void svg(void)
{
    enum { N = 5000 };
    static double x[N], y[N];
    const struct pf_chart_mark marks[] = {
        {PF_CHART_DOT, 100, 7, "a <&> 'b'"},
        {PF_CHART_TICK, 200, 0, "t"},
        {PF_CHART_LINE, 300, 0, "l"},
        {PF_CHART_DOT, N + 1, 1, "beyond"},
    };
    struct pf_chart_curve curve = {.title = "a<b", .n = N, .x = x, .y = y};
    struct pf_str s;

    for (int i = 0; i < N; i++) {
        x[i] = i;
        y[i] = i % 7;
    }
    pf_str_init(&s);
    ok(pf_chart_svg(&s, &curve, marks, 4) == 0, "an SVG of 5000 points");
    ok(count(s.text, "class=\"band\"") == 1 && count(s.text, "class=\"line\"") == 1 &&
           s.len < 40000,
       "many points are a line and a band, in %zu bytes", s.len);
    ok(count(s.text, "class=\"dot\"") == 1 && count(s.text, "class=\"tick\"") == 1 &&
           count(s.text, "class=\"break\"") == 1,
       "marks inside are drawn, the others not");
    ok(strstr(s.text, "a &lt;&amp;&gt; &#39;b&#39;") && strstr(s.text, "<title>a&lt;b</title>"),
       "text is escaped");
    pf_str_clear(&s);
    curve.n = 6;
    y[3] = NAN;
    ok(pf_chart_svg(&s, &curve, NULL, 0) == 0 && !strstr(s.text, "band") && !strstr(s.text, "nan"),
       "few points are drawn as they are");
    const char *const line = strstr(s.text, "class=\"line\"");
    ok(line && strchr(strchr(line, 'M') + 1, 'M') != NULL, "with a gap where there is none");
    pf_str_clear(&s);
    curve.n = 0;
    ok(pf_chart_svg(&s, &curve, marks, 4) == 0 && strstr(s.text, "no values") &&
           !strstr(s.text, "dot"),
       "no points");
    pf_str_release(&s);
}

static void terminals(void)
{
    unsetenv("NO_UNICODE");
    unsetenv("LC_CTYPE");
    setenv("LC_ALL", "", 1);
    setenv("LANG", "de_DE.UTF-8", 1);
    ok(pf_term_is_unicode(), "LANG names UTF-8");
    setenv("LC_ALL", "C.utf8", 1);
    setenv("LANG", "C", 1);
    ok(pf_term_is_unicode(), "LC_ALL comes first");
    setenv("NO_UNICODE", "1", 1);
    ok(!pf_term_is_unicode(), "NO_UNICODE forbids it");
    unsetenv("NO_UNICODE");
    setenv("LC_ALL", "C", 1);
    ok(!pf_term_is_unicode(), "the C locale has none");
    setenv("COLUMNS", "57", 1);
    ok(pf_term_width(stdout) == 57, "COLUMNS says the width");
    setenv("COLUMNS", "wide", 1);
    ok(pf_term_width(stdout) >= 1, "or not");
}

int main(void)
{
    columns();
    scales();
    text();
    svg();
    terminals();
    return done();
}
