/* SPDX-License-Identifier: Apache-2.0 */
/* Export: the weights as a Hugging Face directory, gathered tensor by tensor as they are written. */
#include "train_internal.h"

#include <pf/error.h>
#include <pf/mem.h>

#include <errno.h>

/* Put a whole directory in the place of an older one: in one step, or, where the filesystem cannot
 * exchange names, with an instant in which there is none. */
static int replace_dir(const char *aside, const char *dir)
{
    char *parent;

    if (!pf_path_exists(dir)) {
        return pf_rename_durable(aside, dir);
    }
    errno = 0;
    if (pf_rename_exchange(aside, dir) != 0) {
        if (errno != EINVAL && errno != ENOSYS) {
            return PF_EIO;
        }
        pf_error_clear();
        PF_TRY(pf_rmtree(dir));
        return pf_rename_durable(aside, dir);
    }
    parent = pf_path_dir(dir);
    const int err = parent ? pf_fsync_path(parent) : PF_ENOMEM;
    pf_free(parent);
    return err ? err : pf_rmtree(aside);
}

/* The rows of the tensors that are written. */
struct source {
    struct train_gather *gather;
    int64_t *rows;
};

static int fetch(void *context, int64_t i, const void **data_out)
{
    const struct source *const source = context;

    return train_gather_fetch(source->gather, source->rows[i], data_out);
}

static int write_hf(struct pf_trainer *t, struct train_gather *g, const char *aside)
{
    const struct train_buffer from = train_weight_buffer(t);
    const size_t n_rows = (size_t)t->table->n_rows;
    struct pf_ckpt_live *const live = pf_calloc_array(n_rows, sizeof *live);
    struct source source = {.gather = g, .rows = pf_calloc_array(n_rows, sizeof *source.rows)};
    int64_t n = 0;
    int err = live && source.rows ? 0 : PF_ENOMEM;

    for (int64_t i = 0; !err && i < t->table->n_rows; i++) {
        if (t->table->rows[i].tied_to < 0) {
            live[n] = train_live_whole(&t->table->rows[i], PF_ROLE_WEIGHT, from.dtype);
            source.rows[n++] = i;
        }
    }
    err = err ? err
              : pf_hf_write_from(aside, live, n, t->config->dtype, t->config_json, t->model_dir, 0,
                                 fetch, &source);
    pf_free(source.rows);
    pf_free(live);
    return err;
}

/* The old export stays until the new one is whole: the run may even have started from it. */
static int export_to(struct pf_trainer *t, struct train_gather *g, const char *name)
{
    char *const dir = pf_path_join(t->config->output_dir, name);
    char *const aside = pf_asprintf("%s/.new-%s", t->config->output_dir, name);
    int err = dir && aside ? pf_rmtree(aside) : PF_ENOMEM;

    err = err ? err : write_hf(t, g, aside);
    err = err ? err : replace_dir(aside, dir);
    pf_free(aside);
    pf_free(dir);
    return err;
}

/* Rank 0 writes what the others send; they learn of its outcome. */
int train_export(struct pf_trainer *t, const char *name)
{
    const struct train_buffer from = train_weight_buffer(t);
    struct train_gather g;
    int err, end;

    train_gather_init(&g, t, &from);
    if (pf_comm_rank(t->world) == 0) {
        err = export_to(t, &g, name);
        end = train_gather_end(&g);
        err = err ? err : end;
        err = err ? err : train_metrics_event(t, "export", "path", name);
    } else {
        err = train_gather_serve(&g);
    }
    train_gather_release(&g);
    return pf_comm_all_agree(t->world, err, NULL);
}
