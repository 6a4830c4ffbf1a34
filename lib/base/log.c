/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/log.h>

#include <pf/str.h>
#include <pf/time.h>

#include "base_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_BYTES 4096

static const char *program = "pf";
static int rank_of_this, n_ranks = 1;
static enum pf_log_level level = PF_LOG_INFO;

/* From the environment, read once. */
static bool level_is_forced;
static char subsystems[256]; /* ",comm,ckpt,": empty for all */
static int file_fd = -1;

void pf_base_copy_printable(char *to, size_t to_bytes, const char *from)
{
    size_t n = 0;

    for (; *from && n + 5 < to_bytes; from++) {
        const unsigned char c = (unsigned char)*from;
        if (c < 0x20 || c == 0x7f) {
            n += (size_t)snprintf(to + n, to_bytes - n, "\\x%02x", c);
        } else {
            to[n++] = (char)c;
        }
    }
    to[n] = '\0';
}

/* There is nowhere to report a failure to write the report. */
static void write_line(int fd, const char *line, size_t n)
{
    while (n > 0) {
        const ssize_t put = write(fd, line, n);
        if (put < 0 && errno != EINTR) {
            return;
        }
        line += put > 0 ? put : 0;
        n -= put > 0 ? (size_t)put : 0;
    }
}

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};

static void read_level(void)
{
    const char *const name = getenv("PF_LOG");

    for (size_t i = 0; name && i < sizeof level_names / sizeof level_names[0]; i++) {
        if (strcmp(name, level_names[i]) == 0) {
            level = (enum pf_log_level)i;
            level_is_forced = true;
            return;
        }
    }
    if (name && *name) {
        fprintf(stderr, "%s: warning: PF_LOG='%.40s' is not error, warn, info, debug or trace\n",
                program, name);
    }
}

/* Replace %h, %p and %% in the pattern of PF_LOG_FILE. */
static void expand_file_name(const char *pattern, char *path, size_t path_bytes)
{
    char host[HOST_NAME_MAX + 1] = "";
    size_t n = 0;

    if (gethostname(host, sizeof host) != 0) {
        snprintf(host, sizeof host, "unknown");
    }
    for (; *pattern && n + 1 < path_bytes; pattern++) {
        int written = 1;
        if (pattern[0] == '%' && pattern[1] == 'h') {
            written = snprintf(path + n, path_bytes - n, "%s", host);
            pattern++;
        } else if (pattern[0] == '%' && pattern[1] == 'p') {
            written = snprintf(path + n, path_bytes - n, "%ld", (long)getpid());
            pattern++;
        } else {
            pattern += pattern[0] == '%' && pattern[1] == '%';
            path[n] = *pattern;
        }
        n = (size_t)written < path_bytes - n ? n + (size_t)written : path_bytes - 1;
    }
    path[n] = '\0';
}

static void open_file(void)
{
    const char *const pattern = getenv("PF_LOG_FILE");
    char path[PATH_MAX];

    if (!pattern || !*pattern) {
        return;
    }
    expand_file_name(pattern, path, sizeof path);
    file_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file_fd < 0) {
        fprintf(stderr, "%s: warning: cannot open PF_LOG_FILE '%s': %s\n", program, path,
                strerror(errno));
    }
}

static void read_environment(void)
{
    const char *const names = getenv("PF_LOG_SUBSYS");

    read_level();
    if (names && *names) {
        snprintf(subsystems, sizeof subsystems, ",%s,", names);
    }
    open_file();
}

static void start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, read_environment);
}

void pf_log_set_program(const char *name)
{
    program = name;
}

const char *pf_log_program(void)
{
    return program;
}

void pf_log_set_rank(int rank, int size)
{
    rank_of_this = rank;
    n_ranks = size;
}

void pf_log_set_level(enum pf_log_level new_level)
{
    start();
    if (!level_is_forced) {
        level = new_level;
    }
}

enum pf_log_level pf_log_level(void)
{
    start();
    return level;
}

bool pf_log_enabled(enum pf_log_level of, const char *subsys)
{
    char name[64];

    start();
    if (of > level) {
        return false;
    }
    if (of < PF_LOG_DEBUG || !subsystems[0] || !subsys) {
        return true;
    }
    snprintf(name, sizeof name, ",%s,", subsys);
    return strstr(subsystems, name) != NULL;
}

/* What stands between the program's name and the message. */
static void format_label(enum pf_log_level of, const char *subsys, bool names_rank, char *buf,
                         size_t buf_bytes)
{
    char rank[32] = "";

    if (names_rank && n_ranks > 1) {
        snprintf(rank, sizeof rank, "rank %d: ", rank_of_this);
    }
    if (of >= PF_LOG_DEBUG) {
        snprintf(buf, buf_bytes, "%s%s: %s%s", rank, of == PF_LOG_DEBUG ? "debug" : "trace",
                 subsys ? subsys : "", subsys ? ": " : "");
    } else {
        snprintf(buf, buf_bytes, "%s%s", rank, of == PF_LOG_WARN ? "warning: " : "");
    }
}

static void put(enum pf_log_level of, const char *subsys, bool names_rank, const char *format,
                va_list args)
{
    const int saved = errno;
    char text[LINE_BYTES], message[LINE_BYTES], label[128], line[LINE_BYTES + 256];

    vsnprintf(text, sizeof text, format, args);
    pf_base_copy_printable(message, sizeof message, text);
    format_label(of, subsys, names_rank, label, sizeof label);
    if (of < PF_LOG_DEBUG || file_fd < 0) {
        const int n = snprintf(line, sizeof line, "%.64s: %s%s\n", program, label, message);
        if (of == PF_LOG_ERROR) {
            fflush(stdout);
        }
        fflush(stderr);
        pf_base_progress_hide();
        write_line(STDERR_FILENO, line, (size_t)n);
    }
    if (file_fd >= 0) {
        char now[PF_TIME_ISO_BYTES];
        const int n = snprintf(line, sizeof line, "%s %.64s: %s%s\n", pf_time_iso(now), program,
                               label, message);
        write_line(file_fd, line, (size_t)n);
    }
    errno = saved;
}

#define PUT(of, names_rank, condition)                                                             \
    do {                                                                                           \
        if ((condition) && pf_log_enabled((of), subsys)) {                                         \
            va_list args;                                                                          \
            va_start(args, format);                                                                \
            put((of), subsys, (names_rank), format, args);                                         \
            va_end(args);                                                                          \
        }                                                                                          \
    } while (0)

void pf_log_error(const char *subsys, const char *format, ...)
{
    PUT(PF_LOG_ERROR, true, true);
}

void pf_log_error_shared(const char *subsys, const char *format, ...)
{
    PUT(PF_LOG_ERROR, false, true);
}

void pf_log_warn(const char *subsys, const char *format, ...)
{
    PUT(PF_LOG_WARN, true, true);
}

void pf_log_info(const char *subsys, const char *format, ...)
{
    PUT(PF_LOG_INFO, true, true);
}

void pf_log_debug(const char *subsys, const char *format, ...)
{
    PUT(PF_LOG_DEBUG, true, true);
}

void pf_log_trace(const char *subsys, const char *format, ...)
{
    PUT(PF_LOG_TRACE, true, true);
}

void pf_log_warn0(const char *subsys, const char *format, ...)
{
    PUT(PF_LOG_WARN, false, rank_of_this == 0);
}

void pf_log_info0(const char *subsys, const char *format, ...)
{
    PUT(PF_LOG_INFO, false, rank_of_this == 0);
}

void pf_log_debug0(const char *subsys, const char *format, ...)
{
    PUT(PF_LOG_DEBUG, false, rank_of_this == 0);
}
