/* SPDX-License-Identifier: Apache-2.0 */
/* output_dir: taken for this run alone, and guarded against losing what is not a run's. All functions
 * are rank 0's. */
#include "train_internal.h"

#include <pf/error.h>
#include <pf/log.h>
#include <pf/mem.h>

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What was killed may still be on its way out when the next run starts. The other ranks wait too. */
static double lock_wait(const struct pf_config *c)
{
    return c->comm_timeout < 20 ? c->comm_timeout / 2 : 10;
}

static int is_there(const char *dir, const char *name, bool *there_out)
{
    char *const path = pf_path_join(dir, name);
    struct stat st;

    if (!path) {
        return PF_ENOMEM;
    }
    *there_out = lstat(path, &st) == 0;
    pf_free(path);
    return 0;
}

/* Files and directories of these names belong to a run only where a run has been. */
static int refuse_foreign(const char *dir)
{
    static const char *const marks[] = {"pf.json", "latest"};
    static const char *const written[] = {"config.json", "metrics.jsonl", "hf", "dump", "tb"};
    bool there;

    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        PF_TRY(is_there(dir, marks[i], &there));
        if (there) {
            return 0;
        }
    }
    for (size_t i = 0; i < sizeof written / sizeof written[0]; i++) {
        PF_TRY(is_there(dir, written[i], &there));
        if (there) {
            return pf_fail(PF_EREFUSED,
                           "'%s' holds a '%s' that is of no run: choose another output_dir", dir,
                           written[i]);
        }
    }
    return 0;
}

/* Is a name taken by something of another kind, which would be found when the run ends, or be waited
 * for? An export takes the place of what is there, never goes through a link; a file may be one. */
static int refuse_in_the_way(const char *dir, const char *name, mode_t kind)
{
    char *const path = pf_path_join(dir, name);
    struct stat st;
    int err = path ? 0 : PF_ENOMEM;

    if (!err && (kind == S_IFDIR ? lstat(path, &st) : stat(path, &st)) == 0 &&
        (st.st_mode & S_IFMT) != kind) {
        err = pf_fail(PF_EREFUSED, "'%s' is in the way of a %s: remove it", path,
                      kind == S_IFDIR ? "directory" : "file");
    }
    pf_free(path);
    return err;
}

static int write_file(const char *dir, const char *name, const char *text)
{
    char *const path = pf_path_join(dir, name);
    int err = path ? pf_file_clean_aside(path) : PF_ENOMEM;

    err = err ? err : pf_file_write_atomic(path, text, strlen(text));
    pf_free(path);
    return err;
}

int train_output_lock(struct pf_trainer *t)
{
    const char *const dir = t->config->output_dir;

    if (t->output_lock >= 0 || !pf_path_is_dir(dir)) {
        return 0;
    }
    return pf_dir_lock(dir, lock_wait(t->config), &t->output_lock);
}

int train_output_begin(struct pf_trainer *t)
{
    const char *const dir = t->config->output_dir;

    PF_TRY(pf_mkdirs(dir));
    PF_TRY(train_output_lock(t));
    PF_TRY(refuse_foreign(dir));
    PF_TRY(refuse_in_the_way(dir, "hf", S_IFDIR));
    PF_TRY(refuse_in_the_way(dir, "latest", S_IFREG));
    PF_TRY(refuse_in_the_way(dir, "metrics.jsonl", S_IFREG));
    PF_TRY(pf_ckpt_clean_staging(dir));
    (void)unlink(t->stop_path); /* a wish that an earlier run did not live to see */
    PF_TRY(write_file(dir, "pf.json", t->run_json)); /* first: it marks output_dir as a run's */
    return write_file(dir, "config.json", t->config_json);
}

int pf_trainer_ask_stop(const char *output_dir)
{
    enum pf_lock_state lock = PF_LOCK_FREE;
    char *stop = NULL;
    bool is_run;

    PF_TRY(is_there(output_dir, "pf.json", &is_run));
    if (!is_run) {
        return pf_fail(PF_EUSAGE, "'%s' is not the output_dir of a run", output_dir);
    }
    PF_TRY(pf_dir_lock_state(output_dir, &lock));
    if (lock == PF_LOCK_FREE) {
        return pf_fail(PF_EREFUSED, "no run is active in '%s'", output_dir);
    }
    stop = pf_path_join(output_dir, PF_STOP_FILE);
    const int err = stop ? pf_file_write_atomic(stop, "", 0) : PF_ENOMEM;
    pf_free(stop);
    return err;
}

void train_output_end(struct pf_trainer *t)
{
    (void)pf_close(t->output_lock, NULL);
    t->output_lock = -1;
}
