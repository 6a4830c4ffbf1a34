/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress.h - how far a long job is, on stderr.
 *
 * On a terminal whose foreground job is this one: one line redrawn at most five times a second, with
 * a bar, done, total, rate and time left (at the rate of the last ten seconds or so). Elsewhere (a log, a batch job): a plain line every 30 seconds, so
 * that short jobs print none. Off when the caller says so (--no-progress, -q, ranks above 0).
 *
 *     struct pf_progress p;
 *     pf_progress_init(&p, "copying", PF_PROGRESS_BYTES, total, shared.no_progress ? false : true);
 *     pf_progress_update(&p, done);        // as often as is convenient: it is cheap
 *     pf_progress_finish(&p);
 *
 * All functions are local; one struct is used by one thread.
 */
#ifndef PF_PROGRESS_H
#define PF_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

enum pf_progress_unit {
    PF_PROGRESS_BYTES,
    PF_PROGRESS_COUNT,
};

struct pf_progress {
    const char *title; /* borrowed */
    enum pf_progress_unit unit;
    uint64_t total; /* 0: not known; no percentage, no time left */
    uint64_t done;
    bool enabled;
    bool on_terminal;
    bool drawn;
    double started, shown; /* monotonic seconds */
    double plain_interval; /* seconds between plain lines; 30 after init */
    double rate;           /* a second, smoothed; 0: not known yet, the mean is told */
    double rated;          /* when, and of how much, the rate was last looked at */
    uint64_t rated_done;
};

void pf_progress_init(struct pf_progress *p, const char *title, enum pf_progress_unit unit,
                      uint64_t total, bool enabled);

/* `done` so far, out of total. Draws when it is time to. */
void pf_progress_update(struct pf_progress *p, uint64_t done);

/* Take a drawn line away, so that a message can be written; the next update draws it again. */
void pf_progress_clear(struct pf_progress *p);

/* The end: clears the line on a terminal, or ends a series of plain lines with a last one. */
void pf_progress_finish(struct pf_progress *p);

/* The line itself, without control characters, as of `now` seconds. For tests and other displays. */
void pf_progress_format(const struct pf_progress *p, double now, char *buf, int buf_bytes);

/* The same with a bar where a line of so many columns has room for one and the total is known. */
void pf_progress_format_bar(const struct pf_progress *p, double now, int columns, char *buf,
                            int buf_bytes);

/* Take note of what is done as of `now` seconds: the smoothed rate follows. pf_progress_update does it. */
void pf_progress_rate(struct pf_progress *p, double now);

#endif
