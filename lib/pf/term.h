/* SPDX-License-Identifier: Apache-2.0 */
/*
 * term.h - what a terminal can show. All functions are local and read the environment.
 */
#ifndef PF_TERM_H
#define PF_TERM_H

#include <stdbool.h>
#include <stdio.h>

/* Columns of a line: what COLUMNS says, else the terminal behind the stream, else 80. */
int pf_term_width(FILE *stream);

/*
 * May characters beyond ASCII be written? No if NO_UNICODE is set and not empty; else if the locale
 * (the first of LC_ALL, LC_CTYPE, LANG that is set and not empty) names UTF-8.
 */
bool pf_term_is_unicode(void);

/* Does the stream show colours? Only a terminal does, unless TERM is "dumb" or NO_COLOR is set and not
 * empty (no-color.org). */
bool pf_term_has_colour(FILE *stream);

#endif
