/* SPDX-License-Identifier: Apache-2.0 */
/* base_internal.h - what the files of lib/base share. */
#ifndef PF_BASE_INTERNAL_H
#define PF_BASE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>

/* strtod in the C locale, whatever the program's. */
double pf_base_strtod(const char *text, char **end_out);

/* The fewest significant digits that read back to the same bits, "%g" style, in the C locale. x is
 * finite. */
void pf_base_format_f64(double x, char *buf, size_t buf_bytes);
void pf_base_format_f32(float x, char *buf, size_t buf_bytes);

/* Copy text as it may be shown on a terminal: control characters become "\x1b". */
void pf_base_copy_printable(char *to, size_t to_bytes, const char *from);

/* Take a progress line off the terminal, if one is drawn, before something else is written. */
void pf_base_progress_hide(void);

/*
 * The squares of a block of floats as three doubles whose exact sum is theirs, or false: the block
 * holds infinities, NaNs, subnormals or too wide a range, and sums_out is undefined.
 */
#define PF_BASE_SQUARES_BLOCK 4096
bool pf_base_squares(const float *x, double sums_out[3]);

#endif
