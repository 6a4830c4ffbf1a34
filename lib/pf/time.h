/* SPDX-License-Identifier: Apache-2.0 */
/* time.h - clocks. All functions are local and safe to call from any thread. */
#ifndef PF_TIME_H
#define PF_TIME_H

#include <stddef.h>

#define PF_TIME_ISO_BYTES 21

/* Seconds since some instant; never goes back. For durations. */
double pf_time_monotonic(void);

/* Seconds since 1970-01-01 UTC, with fraction. */
double pf_time_wall(void);

/* "2026-11-30T18:47:35Z", ISO 8601 in UTC; returns buf. */
const char *pf_time_iso(char buf[PF_TIME_ISO_BYTES]);
const char *pf_time_iso_at(double wall_seconds, char buf[PF_TIME_ISO_BYTES]);

/* Sleep that long, through signals. */
void pf_time_sleep(double seconds);

#endif
