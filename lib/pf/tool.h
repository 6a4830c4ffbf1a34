/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tool.h - how a pf program starts and ends. Only bin/ uses it.
 *
 *     int main(int argc, char **argv)
 *     {
 *             pf_tool_start("pf-inspect");
 *             return pf_tool_finish(run(argc, argv));
 *     }
 */
#ifndef PF_TOOL_H
#define PF_TOOL_H

#include <pf/opts.h>

#include <stdbool.h>
#include <stddef.h>

/* Name the program, make a broken pipe an error instead of a signal. */
void pf_tool_start(const char *program);

/*
 * Parse the command line; answer --help and --version; set the log level from -q and -v. Returns 0
 * and *done_out true when it was help or version and the program is to end, else what pf_opts_parse
 * returned. `shared` is the struct that the table's shared rows point to.
 */
int pf_tool_options(const struct pf_opt *table, size_t n, const char *usage_lines,
                    const struct pf_opts_shared *shared, int *argc, char **argv, bool *done_out);

/*
 * Which of a program's n commands is this? PF_EUSAGE for none of them, with a record that names the
 * nearest and "PROGRAM --help".
 */
int pf_tool_find_command(const char *name, const char *const *names, size_t n, size_t *i_out);

/*
 * The end of main: closes stdout, checking that all output arrived, prints this thread's record once
 * as "program: message" if err is not 0, and returns the exit status of err. PF_EDIFFER without a
 * record is silent: the output said it. An output that nobody reads any more (EPIPE) is silent.
 */
int pf_tool_finish(int err);

#endif
