/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/progress.h>

#include <pf/log.h>
#include <pf/str.h>
#include <pf/time.h>

#include "base_internal.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define REDRAW_SECONDS 0.2
#define PLAIN_SECONDS 30.0
#define LINE_BYTES 256
#define RATE_SECONDS 10.0 /* what lies longer back counts little */
#define BAR_MAX 30
#define BAR_MIN 8

/* A log line may come from any thread; it must not be glued to a drawn one. */
static atomic_bool line_is_drawn;

void pf_base_progress_hide(void)
{
    if (atomic_exchange(&line_is_drawn, false)) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
}

/* A job in the background keeps its terminal, but the terminal is someone else's then. */
static bool is_foreground_terminal(void)
{
    return isatty(STDERR_FILENO) && tcgetpgrp(STDERR_FILENO) == getpgrp();
}

void pf_progress_init(struct pf_progress *p, const char *title, enum pf_progress_unit unit,
                      uint64_t total, bool enabled)
{
    *p = (struct pf_progress){
        .title = title,
        .unit = unit,
        .total = total,
        .enabled = enabled,
        .on_terminal = enabled && isatty(STDERR_FILENO),
        .started = pf_time_monotonic(),
        .plain_interval = PLAIN_SECONDS,
    };
    p->shown = p->started;
    p->rated = p->started;
}

void pf_progress_rate(struct pf_progress *p, double now)
{
    const double seconds = now - p->rated;

    if (seconds < REDRAW_SECONDS || p->done == p->rated_done) {
        return;
    }
    const double rate = ((double)p->done - (double)p->rated_done) / seconds;
    /* Until RATE_SECONDS have passed the mean says more than the last moment. */
    const double past = p->rated - p->started;
    const double window = past < RATE_SECONDS ? past + seconds : RATE_SECONDS;
    const double weight = past < RATE_SECONDS ? seconds / window : 1 - exp(-seconds / window);
    p->rate += weight * (rate - p->rate);
    p->rated = now;
    p->rated_done = p->done;
}

static void format_amount(const struct pf_progress *p, double amount, char buf[24])
{
    if (p->unit == PF_PROGRESS_BYTES) {
        pf_format_bytes(amount, buf);
    } else {
        snprintf(buf, 24, amount < 100 && amount != (double)(int)amount ? "%.1f" : "%.0f", amount);
    }
}

/* " 1:02:03 left", or nothing where it cannot be known. */
static void format_time_left(double seconds, char *buf, size_t buf_bytes)
{
    if (seconds < 0 || seconds > 1e7) {
        buf[0] = '\0';
        return;
    }
    const int s = (int)(seconds + 0.5);
    if (s >= 3600) {
        snprintf(buf, buf_bytes, ", %d:%02d:%02d left", s / 3600, s / 60 % 60, s % 60);
    } else {
        snprintf(buf, buf_bytes, ", %d:%02d left", s / 60, s % 60);
    }
}

void pf_progress_format(const struct pf_progress *p, double now, char *buf, int buf_bytes)
{
    const double seconds = now - p->started, done = (double)p->done, total = (double)p->total;
    const double mean = seconds > 0 ? done / seconds : 0, rate = p->rate > 0 ? p->rate : mean;
    char amount[24], whole[24], speed[24], left[32] = "";

    format_amount(p, done, amount);
    format_amount(p, total, whole);
    format_amount(p, rate, speed);
    if (p->total > 0) {
        format_time_left(rate > 0 ? (total - done) / rate : -1, left, sizeof left);
        snprintf(buf, (size_t)buf_bytes, "%s: %3.0f%% %s of %s, %s/s%s", p->title,
                 100 * done / total, amount, whole, speed, left);
    } else {
        snprintf(buf, (size_t)buf_bytes, "%s: %s, %s/s", p->title, amount, speed);
    }
}

void pf_progress_format_bar(const struct pf_progress *p, double now, int columns, char *buf,
                            int buf_bytes)
{
    static const char full[] = "##############################",
                      empty[] = "..............................";
    char line[LINE_BYTES];
    const int n_title = (int)strlen(p->title);

    pf_progress_format(p, now, line, sizeof line);
    int width = columns - (int)strlen(line) - 2; /* " [" and "]" for ":" */
    width = width > BAR_MAX ? BAR_MAX : width;
    if (p->total == 0 || width < BAR_MIN) {
        snprintf(buf, (size_t)buf_bytes, "%s", line);
        return;
    }
    const double part = (double)p->done / (double)p->total;
    const int n = part < 1 ? (int)(part * width) : width;
    /* "title: 42% ..." becomes "title [####......] 42% ..." */
    snprintf(buf, (size_t)buf_bytes, "%s [%.*s%.*s]%s", p->title, n, full, width - n, empty,
             line + n_title + 1);
}

static int terminal_columns(void)
{
    struct winsize size;

    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

static void draw(struct pf_progress *p, double now)
{
    char line[LINE_BYTES];

    const int columns = terminal_columns() - 1;
    pf_progress_format_bar(p, now, columns, line, sizeof line);
    fprintf(stderr, "\r%.*s\033[K", columns, line);
    fflush(stderr);
    p->drawn = true;
    atomic_store(&line_is_drawn, true);
}

static void print_plain(struct pf_progress *p, double now)
{
    char line[LINE_BYTES];

    pf_progress_format(p, now, line, sizeof line);
    fprintf(stderr, "%s: %s\n", pf_log_program(), line);
    fflush(stderr);
    p->drawn = true;
}

void pf_progress_update(struct pf_progress *p, uint64_t done)
{
    p->done = done;
    if (!p->enabled) {
        return;
    }
    const double now = pf_time_monotonic();
    pf_progress_rate(p, now);
    if (now - p->shown < (p->on_terminal ? REDRAW_SECONDS : p->plain_interval)) {
        return;
    }
    p->shown = now;
    if (!p->on_terminal) {
        print_plain(p, now);
    } else if (is_foreground_terminal()) {
        draw(p, now);
    }
}

void pf_progress_clear(struct pf_progress *p)
{
    if (p->on_terminal && p->drawn) {
        pf_base_progress_hide();
        p->shown = 0;
    }
}

void pf_progress_finish(struct pf_progress *p)
{
    if (!p->enabled || !p->drawn) {
        return;
    }
    if (p->on_terminal) {
        pf_base_progress_hide();
    } else {
        print_plain(p, pf_time_monotonic());
    }
    p->drawn = false;
}
