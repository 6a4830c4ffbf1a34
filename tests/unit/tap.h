/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tap.h - the Test Anything Protocol for unit programs: ok() a claim, skip() aloud, done() at the
 * end of main. A program is one or more claims; its exit status is 1 if one failed.
 */
#ifndef TAP_H
#define TAP_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

static int tap_count, tap_failed;

static inline bool tap_ok(bool holds, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static inline bool tap_ok(bool holds, const char *file, int line, const char *format, ...)
{
    va_list args;

    printf("%sok %d - ", holds ? "" : "not ", ++tap_count);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    if (!holds) {
        tap_failed++;
        printf("# failed at %s:%d\n", file, line);
    }
    fflush(stdout);
    return holds;
}

/* State a claim in words; returns whether it holds. */
#define ok(holds, ...) tap_ok((holds), __FILE__, __LINE__, __VA_ARGS__)

/* Count a claim as skipped, with the reason a reader needs. */
static inline void skip(const char *claim, const char *reason)
{
    printf("ok %d - %s # SKIP %s\n", ++tap_count, claim, reason);
}

/* Print the plan; the value to return from main. */
static inline int done(void)
{
    printf("1..%d\n", tap_count);
    return tap_failed != 0;
}

#endif
