/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/time.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static double seconds_of(const struct timespec *t)
{
    return (double)t->tv_sec + (double)t->tv_nsec * 1e-9;
}

double pf_time_monotonic(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return seconds_of(&t);
}

double pf_time_wall(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return seconds_of(&t);
}

const char *pf_time_iso(char buf[PF_TIME_ISO_BYTES])
{
    return pf_time_iso_at(pf_time_wall(), buf);
}

const char *pf_time_iso_at(double wall_seconds, char buf[PF_TIME_ISO_BYTES])
{
    const time_t t = (time_t)wall_seconds;
    struct tm parts;

    if (!gmtime_r(&t, &parts) ||
        strftime(buf, PF_TIME_ISO_BYTES, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0) {
        snprintf(buf, PF_TIME_ISO_BYTES, "%s", "0000-00-00T00:00:00Z");
    }
    return buf;
}

void pf_time_sleep(double seconds)
{
    struct timespec left = {.tv_sec = (time_t)seconds};

    left.tv_nsec = (long)((seconds - (double)left.tv_sec) * 1e9);
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}
