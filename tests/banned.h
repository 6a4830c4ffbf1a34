/* SPDX-License-Identifier: Apache-2.0 */
/* banned.h - libc calls that have no safe use here; DEV=1 turns each into an error. */
#ifndef PF_BANNED_H
#define PF_BANNED_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#pragma GCC poison strcpy strcat strncpy strncat sprintf vsprintf gets atoi atol atoll atof strtok \
    asctime ctime gmtime localtime tmpnam mktemp

#endif
