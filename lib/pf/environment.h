/* SPDX-License-Identifier: Apache-2.0 */
/*
 * environment.h - what this machine, its settings and this build offer to a run, what of it is slow or
 * missing, and how to mend that.
 *
 *     struct pf_env env;
 *     PF_TRY(pf_env_look(NULL, &env));
 *     for (int i = 0; i < env.n; i++)
 *             ... env.rows[i].name, .found, .mend ...
 *     pf_env_release(&env);
 *
 * Looking changes nothing: it reads /proc, /sys and variables, opens the kernels for a moment, and
 * lets a child of this process read some of its memory. Only where a directory is given is a file
 * written and removed. What the system does not tell is left out or said to be unknown.
 */
#ifndef PF_ENVIRONMENT_H
#define PF_ENVIRONMENT_H

#define PF_ENV_MAX_ROWS 64

enum pf_env_verdict {
    PF_ENV_OK,
    PF_ENV_SLOW,    /* it works, but slower than this machine could */
    PF_ENV_MISSING, /* something cannot be done at all */
};

struct pf_env_row {
    const char *name; /* "cpu", "huge pages", or the name of a variable; static */
    enum pf_env_verdict verdict;
    char *found; /* owned */
    char *mend;  /* NULL where there is nothing to mend; owned */
};

struct pf_env {
    int n;
    struct pf_env_row rows[PF_ENV_MAX_ROWS];
    int n_of[3]; /* rows of each verdict */
};

struct pf_env_options {
    const char *root; /* /proc, /sys and /dev are looked for below it; NULL: the machine's own */
    const char *disk_dir; /* measure how fast files are written here (64 MiB); NULL: do not */
};

/* "ok", "slow", "missing". Static. */
const char *pf_env_verdict_name(enum pf_env_verdict verdict);

/* options may be NULL. Errors: PF_EIO (disk_dir cannot be written), PF_ENOMEM. Local; not to be
 * called by two threads at once. */
int pf_env_look(const struct pf_env_options *options, struct pf_env *env_out);
void pf_env_release(struct pf_env *env);

#endif
