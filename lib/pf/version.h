/* SPDX-License-Identifier: Apache-2.0 */
/*
 * version.h - what this program is and what it was made of.
 *
 * lib/base knows its own version, compiler, flags and features. Layers above add rows (MPI library,
 * oneDNN, kernels chosen) before the program prints; base must not know them.
 */
#ifndef PF_VERSION_H
#define PF_VERSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Writes a value ("Open MPI 4.1.4") into buf. Called when the row is printed. */
typedef void pf_version_describe(char *buf, size_t buf_bytes);

#define PF_VERSION_MAX_ROWS 32

/* Add a row to the verbose form; name is kept, not copied. A name that is there already is
 * replaced. More than PF_VERSION_MAX_ROWS is a bug in pf. Not thread-safe: call from main. */
void pf_version_add_row(const char *name, pf_version_describe *describe);

/* "pf-train 0.1.0"; with verbose then a line each for features, compiler, flags and added rows. */
void pf_version_print(FILE *to, const char *program, bool verbose);

/* "0.1.0" */
const char *pf_version_string(void);

/* "0.1.0 MPI=1 DNNL=1 ..." one line of version, features, compiler and flags: ranks compare it. */
const char *pf_version_build(void);

#endif
