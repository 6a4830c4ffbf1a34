/* SPDX-License-Identifier: Apache-2.0 */
/*
 * error.h - how a pf function fails.
 *
 * A function that can fail returns int: 0, or one of the negative codes below. The numbers are
 * spaced by family and frozen: scripts never see them, but they cross process boundaries when ranks
 * agree on an outcome.
 *
 * The function that first detects a fault writes one record (code, message, place) into storage of
 * its thread; callers pass the code up and leave the record alone. The library never prints an
 * error, never exits: a tool's main does, once, with pf_error_exit_status.
 *
 *     int pf_thing_open(const char *path, struct pf_thing **thing_out)
 *     {
 *             int fd = open(path, O_RDONLY);
 *             if (fd < 0)
 *                     return pf_fail_errno(PF_EIO, "cannot open '%s'", path);
 *             PF_TRY_GOTO(read_header(fd, ...), out);
 *
 * Messages follow git: lower case, no final stop, problem first, names in single quotes. They are
 * one line: control characters in arguments are shown as escapes.
 *
 * All functions are local (not collective) and safe to call from any thread.
 */
#ifndef PF_ERROR_H
#define PF_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

enum pf_error {
    PF_OK = 0,
    /* exit 1: the answer is no */
    PF_EDIFFER = -10, /* a comparison found differences, a threshold was missed */
    /* exit 2: usage */
    PF_EUSAGE = -20,   /* option, JSON syntax, unknown key, wrong type */
    PF_EREFUSED = -21, /* would overwrite or have to guess; an option allows it */
    /* exit 3: bad input */
    PF_EINVAL = -30,      /* impossible layout, batch, shape; argument out of range */
    PF_EFORMAT = -31,     /* damaged or lying file */
    PF_EINCOMPLETE = -32, /* a part of a set of files is missing */
    /* exit 4: system */
    PF_EIO = -40,    /* open, read, write, sync, rename, space */
    PF_ENOMEM = -41, /* host memory */
    /* exit 5: device or math library */
    PF_EDEVICE = -50,
    /* exit 6: communication */
    PF_ECOMM = -60,     /* the transport failed, a rank failed or is missing */
    PF_EDISAGREE = -61, /* ranks disagree: config, version, collective */
    PF_ETIMEOUT = -62,  /* a rank did not arrive in time */
    /* exit 7 */
    PF_ENOTSUP = -70, /* not in this build or not on this machine */
    /* exit 8 */
    PF_EBUG = -80, /* pf itself is wrong */
    /* exit 9 */
    PF_ENUMERIC = -90, /* non-finite loss, proven silent corruption */
};

/* Record a fault (replacing this thread's record) and return code, so that a function can end with
 * `return pf_fail(...)`. Only the function that detects a fault calls it; whoever merely passes a
 * code up must not, or the cause is lost. */
#define pf_fail(code, ...) pf_error_set((code), __FILE__, __LINE__, __VA_ARGS__)

/* The same, with ": " and the text of errno at the time of the call appended. */
#define pf_fail_errno(code, ...) pf_error_set_errno((code), __FILE__, __LINE__, __VA_ARGS__)

/* Return the code of a failed call to the caller / go to a clean-up label with `err` set. */
#define PF_TRY(expr)                                                                               \
    do {                                                                                           \
        int pf_try_err_ = (expr);                                                                  \
        if (pf_try_err_ != 0) {                                                                    \
            return pf_try_err_;                                                                    \
        }                                                                                          \
    } while (0)
#define PF_TRY_GOTO(expr, label)                                                                   \
    do {                                                                                           \
        err = (expr);                                                                              \
        if (err != 0) {                                                                            \
            goto label;                                                                            \
        }                                                                                          \
    } while (0)

/* A claim about pf itself. Where it fails the job ends with exit status 8 through the hook that
 * lib/comm installs (pf_error_set_abort), so that no rank waits for this one. Always active. */
#define PF_ASSERT(claim) ((claim) ? (void)0 : pf_error_assert_failed(#claim, __FILE__, __LINE__))

int pf_error_set(int code, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
int pf_error_set_errno(int code, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The message of this thread's record, "" when there is none. Valid until the next call here. */
const char *pf_error_message(void);

/* Where the record was written ("lib/fmt/safetensors.c:120"), "" when there is none. */
const char *pf_error_place(void);

/* Forget this thread's record: called by whoever handles a fault and goes on. */
void pf_error_clear(void);

/* Exit status (0..9, the table of pf/exit.h) of an error code. */
int pf_error_exit_status(int code);

/* A short stable word for scripts (JSON `error.kind`): "usage", "refused", "invalid", "corrupt",
 * "incomplete", "io", "memory", "device", "comm", "disagree", "timeout", "unsupported", "bug",
 * "numeric", "differ". */
const char *pf_error_kind(int code);

/* Called once by PF_ASSERT after the line is on stderr; must not return. NULL restores _exit(8). */
void pf_error_set_abort(void (*abort_job)(int exit_status));

void pf_error_assert_failed(const char *claim, const char *file, int line)
    __attribute__((noreturn));

#ifdef __cplusplus
}
#endif

#endif
