/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer for measuring: of a user's config, but writing to a scratch directory that goes. */
#include "bench_internal.h"

#include <pf/error.h>
#include <pf/file.h>
#include <pf/mem.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIR_BYTES = 4096 };

/* A directory of rank 0's choice: one config for all. */
static int make_dir(struct pf_comm *world, char **dir_out)
{
    const char *const tmp = getenv("TMPDIR");
    char *const dir = pf_alloc(DIR_BYTES);
    int err = dir ? 0 : PF_ENOMEM;

    if (!err && pf_comm_rank(world) == 0) {
        (void)snprintf(dir, DIR_BYTES, "%s/pf-bench-XXXXXX", tmp && *tmp ? tmp : "/tmp");
        err = mkdtemp(dir) ? 0 : pf_fail_errno(PF_EIO, "cannot make directory '%s'", dir);
    }
    err = pf_comm_all_agree(world, err, NULL);
    err = err ? err : pf_comm_broadcast(world, dir, DIR_BYTES, 0);
    if (err) {
        pf_free(dir);
        return err;
    }
    *dir_out = dir;
    return 0;
}

/* What would save, evaluate, resume or dump, taken back. */
static const char *const quiet[] = {
    "resume_from_checkpoint=null",
    "save_steps=-1",
    "save_hf_steps=-1",
    "eval_steps=-1",
    "eval_input_dir=null",
    "split=null",
    "dump_steps=null",
    "skip_data_intervals=null",
    "eval_only=false",
    "logging_steps=1",
};
enum { N_QUIET = (int)(sizeof quiet / sizeof quiet[0]) };

static int read_config(const char *config, const char *const *overrides, int n_overrides,
                       struct bench_trainer *t)
{
    const int n = n_overrides + N_QUIET + 1;
    const char **const all = pf_calloc_array((size_t)n, sizeof *all);
    char *const out = pf_asprintf("output_dir=%s", t->dir);
    int err = all && out ? 0 : PF_ENOMEM;

    if (!err) {
        for (int i = 0; i < n_overrides; i++) {
            all[i] = overrides[i];
        }
        memcpy(all + n_overrides, quiet, sizeof quiet);
        all[n - 1] = out;
        err = pf_config_read(config, all, n, &t->config);
    }
    pf_free(all);
    pf_free(out);
    return err;
}

int bench_trainer_open(const char *config, const char *const *overrides, int n_overrides,
                       struct pf_comm *world, struct bench_trainer *t)
{
    *t = (struct bench_trainer){.world = world};
    if (!world) {
        PF_TRY(pf_comm_init(NULL, NULL, &(struct pf_comm_options){.backend = "self"}, &t->own));
        t->world = t->own;
    }
    PF_TRY(make_dir(t->world, &t->dir));
    PF_TRY(pf_comm_all_agree(t->world, read_config(config, overrides, n_overrides, t), NULL));
    PF_TRY(
        pf_comm_all_agree(t->world, pf_config_resolve(&t->config, pf_comm_size(t->world)), NULL));
    return pf_trainer_new(&t->config, t->world, &t->trainer);
}

void bench_trainer_close(struct bench_trainer *t)
{
    pf_trainer_free(t->trainer);
    pf_config_release(&t->config);
    if (t->dir && pf_comm_rank(t->world) == 0) {
        (void)pf_rmtree(t->dir);
    }
    if (t->own) {
        (void)pf_comm_finalize(t->own);
    }
    pf_free(t->dir);
    *t = (struct bench_trainer){.dir = NULL};
}
