/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/tool.h>

#include <pf/error.h>
#include <pf/exit.h>
#include <pf/log.h>
#include <pf/str.h>
#include <pf/version.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void pf_tool_start(const char *program)
{
    pf_log_set_program(program);
    /* Both then come back as errors of write(2), which are told and cleaned up after. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

int pf_tool_options(const struct pf_opt *table, size_t n, const char *usage_lines,
                    const struct pf_opts_shared *shared, int *argc, char **argv, bool *done_out)
{
    PF_TRY(pf_opts_parse(table, n, argc, argv));
    if (shared->help) {
        pf_opts_print_help(stdout, usage_lines, table, n);
    } else if (shared->version) {
        pf_version_print(stdout, pf_log_program(), shared->verbose > 0);
    }
    if (shared->quiet > 0) {
        pf_log_set_level(PF_LOG_ERROR);
    } else if (shared->verbose > 0) {
        pf_log_set_level(shared->verbose > 1 ? PF_LOG_TRACE : PF_LOG_DEBUG);
    }
    *done_out = shared->help || shared->version;
    return 0;
}

int pf_tool_find_command(const char *name, const char *const *names, size_t n, size_t *i_out)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(name, names[i]) == 0) {
            *i_out = i;
            return 0;
        }
    }
    const char *const nearest = pf_nearest(name, names, n);
    return pf_fail(PF_EUSAGE, "unknown command '%s'%s%s%s; see '%s --help'", name,
                   nearest ? "; did you mean '" : "", nearest ? nearest : "", nearest ? "'?" : "",
                   pf_log_program());
}

/* Output that was lost (a full disk) must not look like success. */
static int close_stdout(int err, bool *reader_left)
{
    const bool failed_before = ferror(stdout) != 0;

    errno = 0;
    /* Not fclose: a library that still prints at exit would touch a freed stream. */
    const bool failed = fflush(stdout) != 0 || close(STDOUT_FILENO) != 0 || failed_before;
    *reader_left = failed && errno == EPIPE;
    if (!failed || err) {
        return err;
    }
    return errno ? pf_fail_errno(PF_EIO, "cannot write standard output")
                 : pf_fail(PF_EIO, "cannot write standard output");
}

int pf_tool_finish(int err)
{
    bool reader_left;
    const int outcome = close_stdout(err, &reader_left);
    const char *const message = pf_error_message();
    const bool is_silent = (outcome == PF_EDIFFER && !*message) || (!err && reader_left);

    if (outcome && !is_silent) {
        pf_log_error(NULL, "%s", *message ? message : pf_error_kind(outcome));
    }
    return pf_error_exit_status(outcome);
}
