/* SPDX-License-Identifier: Apache-2.0 */
/* preloaded.h - for a test that puts a library of tests/preload under itself. */
#ifndef PRELOADED_H
#define PRELOADED_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Start the program again with the library, where it is not there yet: to be called first of all. False
 * where that cannot be: under a sanitizer, which wants to be the first library itself, or outside of
 * scripts/run-tests. */
static inline bool preloaded(char **argv, const char *library)
{
    const char *const build = getenv("PF_BUILD");
    char path[4096];

    if (getenv("TEST_PRELOADED")) {
        unsetenv("LD_PRELOAD"); /* not for what the test starts */
        return true;
    }
    if (!build || strstr(build, "/san-")) {
        return false;
    }
    snprintf(path, sizeof path, "%s/tests/preload/%s.so", build, library);
    setenv("LD_PRELOAD", path, 1);
    setenv("TEST_PRELOADED", "1", 1);
    execv(argv[0], argv);
    perror(argv[0]);
    exit(4);
}

#endif
