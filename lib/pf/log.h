/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.h - messages to people on stderr.
 *
 * Levels by volume: error (the job ends or a result is wrong), warn (something will surprise), info
 * (a few lines a run), debug (a few lines a phase), trace (lines a step). The default is info.
 *
 *     PF_LOG=debug                 level
 *     PF_LOG_SUBSYS=comm,ckpt      debug and trace of these subsystems only
 *     PF_LOG_FILE=run.%h.%p        a copy of everything, with times; %h host, %p process id. Debug
 *                                  and trace then go to the file only
 *
 * A line is "pf-train: message", or "pf-train: rank 3: message" once a rank above 0 is set, with
 * "warning: " or "debug: SUBSYS: " before the message where it is one. Each line is one write, so
 * lines of ranks do not mix; control characters are escaped. stdout is flushed before an error.
 * Messages are lower case without a final stop.
 *
 * All functions are local and safe to call from any thread, except the setters: call those from
 * main before threads start. errno is preserved.
 */
#ifndef PF_LOG_H
#define PF_LOG_H

#include <stdbool.h>

enum pf_log_level {
    PF_LOG_ERROR,
    PF_LOG_WARN,
    PF_LOG_INFO,
    PF_LOG_DEBUG,
    PF_LOG_TRACE,
};

/* The name before each message ("pf-train"); kept, not copied. "pf" before the first call. */
void pf_log_set_program(const char *name);
const char *pf_log_program(void);

/* This process's rank and the number of ranks. Lines of ranks name theirs when size > 1, except
 * those of the *0 variants. */
void pf_log_set_rank(int rank, int size);

/* What -q (error) and -v (debug) ask for; PF_LOG, where set, wins. */
void pf_log_set_level(enum pf_log_level level);
enum pf_log_level pf_log_level(void);

/* Would a line of this level and subsystem be written? For messages that are dear to make. */
bool pf_log_enabled(enum pf_log_level level, const char *subsys);

/* Write a line. subsys is a short word ("comm", "ckpt"), NULL for none. */
void pf_log_error(const char *subsys, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void pf_log_warn(const char *subsys, const char *format, ...) __attribute__((format(printf, 2, 3)));
void pf_log_info(const char *subsys, const char *format, ...) __attribute__((format(printf, 2, 3)));
void pf_log_debug(const char *subsys, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void pf_log_trace(const char *subsys, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* An error that ranks share, written by the one of them that speaks (pf/comm.h); it does not name
 * itself. */
void pf_log_error_shared(const char *subsys, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The same for what concerns all ranks: only rank 0 writes, without naming itself. */
void pf_log_warn0(const char *subsys, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void pf_log_info0(const char *subsys, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void pf_log_debug0(const char *subsys, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
