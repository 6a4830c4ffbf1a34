/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/error.h>

#include "base_internal.h"

#include <pf/exit.h>

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MESSAGE_MAX 1024
#define PLACE_MAX 96

static _Thread_local struct {
    char message[MESSAGE_MAX];
    char place[PLACE_MAX];
} record;

static void (*abort_hook)(int exit_status);

static void set_record(const char *file, int line, const char *cause, const char *format,
                       va_list args)
{
    char text[MESSAGE_MAX];
    int n = vsnprintf(text, sizeof text, format, args);

    if (cause && n >= 0 && (size_t)n < sizeof text) {
        snprintf(text + n, sizeof text - (size_t)n, ": %s", cause);
    }
    /* One line: control characters would let a file name rewrite the screen. */
    pf_base_copy_printable(record.message, sizeof record.message, text);
    snprintf(record.place, sizeof record.place, "%s:%d", file, line);
}

int pf_error_set(int code, const char *file, int line, const char *format, ...)
{
    const int saved = errno;
    va_list args;

    va_start(args, format);
    set_record(file, line, NULL, format, args);
    va_end(args);
    errno = saved;
    return code;
}

int pf_error_set_errno(int code, const char *file, int line, const char *format, ...)
{
    const int saved = errno;
    va_list args;

    va_start(args, format);
    set_record(file, line, strerror(saved), format, args);
    va_end(args);
    errno = saved;
    return code;
}

const char *pf_error_message(void)
{
    return record.message;
}

const char *pf_error_place(void)
{
    return record.place;
}

void pf_error_clear(void)
{
    record.message[0] = '\0';
    record.place[0] = '\0';
}

static const struct {
    int code;
    int exit_status;
    const char *kind;
} codes[] = {
    {PF_OK, PF_EXIT_DONE, "ok"},
    {PF_EDIFFER, PF_EXIT_NO, "differ"},
    {PF_EUSAGE, PF_EXIT_USAGE, "usage"},
    {PF_EREFUSED, PF_EXIT_USAGE, "refused"},
    {PF_EINVAL, PF_EXIT_INPUT, "invalid"},
    {PF_EFORMAT, PF_EXIT_INPUT, "corrupt"},
    {PF_EINCOMPLETE, PF_EXIT_INPUT, "incomplete"},
    {PF_EIO, PF_EXIT_SYSTEM, "io"},
    {PF_ENOMEM, PF_EXIT_SYSTEM, "memory"},
    {PF_EDEVICE, PF_EXIT_DEVICE, "device"},
    {PF_ECOMM, PF_EXIT_COMM, "comm"},
    {PF_EDISAGREE, PF_EXIT_COMM, "disagree"},
    {PF_ETIMEOUT, PF_EXIT_COMM, "timeout"},
    {PF_ENOTSUP, PF_EXIT_UNSUPPORTED, "unsupported"},
    {PF_EBUG, PF_EXIT_BUG, "bug"},
    {PF_ENUMERIC, PF_EXIT_NUMERIC, "numeric"},
};

int pf_error_exit_status(int code)
{
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        if (codes[i].code == code) {
            return codes[i].exit_status;
        }
    }
    return PF_EXIT_BUG;
}

const char *pf_error_kind(int code)
{
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        if (codes[i].code == code) {
            return codes[i].kind;
        }
    }
    return "bug";
}

void pf_error_set_abort(void (*abort_job)(int exit_status))
{
    abort_hook = abort_job;
}

void pf_error_assert_failed(const char *claim, const char *file, int line)
{
    fflush(stdout);
    fprintf(stderr, "pf: bug: '%s' does not hold at %s:%d\n", claim, file, line);
    fflush(stderr);
    if (abort_hook) {
        abort_hook(PF_EXIT_BUG);
    }
    _exit(PF_EXIT_BUG);
}
