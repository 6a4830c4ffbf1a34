/* SPDX-License-Identifier: Apache-2.0 */
/* environment_internal.h - rows of pf_env_look: how they are made, and who makes them. */
#ifndef ENVIRONMENT_INTERNAL_H
#define ENVIRONMENT_INTERNAL_H

#include <pf/environment.h>

#include <stdbool.h>
#include <stdint.h>

struct env_look {
    const char *root;
    struct pf_env *env;
    int n_cpus; /* that this process may use */
};

/* Append a row. mend: NULL, or what to do; it makes no difference whether the verdict is ok. */
int env_add(struct env_look *look, const char *name, enum pf_env_verdict verdict, const char *mend,
            const char *format, ...) __attribute__((format(printf, 5, 6)));

/* A small file below the root, without blanks at its end; NULL if it cannot be read. pf_free. */
char *env_read(const struct env_look *look, const char *path);

/* The number after "key" at the start of a line of a text ("MemTotal:  123 kB"), or -1. */
int64_t env_number_after(const char *text, const char *key);

/* The rows of the machine, of what runs on it, and of variables. */
int env_add_host(struct env_look *look);
int env_add_software(struct env_look *look);
int env_add_variables(struct env_look *look);
int env_add_disk(struct env_look *look, const char *dir);

#endif
