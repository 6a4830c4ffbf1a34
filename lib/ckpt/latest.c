/* SPDX-License-Identifier: Apache-2.0 */
/* A run's directory: which checkpoint is the newest, which are too many, what is left over. */
#include "ckpt_internal.h"

#include <pf/file.h>
#include <pf/mem.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_STEP_DIGITS 18

bool ckpt_parse_step_name(const char *name, int64_t *step_out)
{
    const char *digits = name + sizeof CKPT_PREFIX - 1;

    if (!pf_str_starts_with(name, CKPT_PREFIX)) {
        return false;
    }
    const size_t n = strspn(digits, "0123456789");
    if (n == 0 || n > MAX_STEP_DIGITS || digits[n] != '\0') {
        return false;
    }
    *step_out = strtoll(digits, NULL, 10);
    return true;
}

void ckpt_step_name(int64_t step, char name_out[48])
{
    snprintf(name_out, 48, CKPT_PREFIX "%06lld", (long long)step);
}

static int compare_steps(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    int64_t step_x = 0, step_y = 0;

    ckpt_parse_step_name(*x, &step_x);
    ckpt_parse_step_name(*y, &step_y);
    if (step_x != step_y) {
        return step_x < step_y ? -1 : 1;
    }
    return strcmp(*x, *y);
}

static int keep_step_dirs(const char *dir, const struct pf_str_list *all, struct pf_str_list *kept)
{
    int64_t step;

    for (size_t i = 0; i < all->n; i++) {
        if (!ckpt_parse_step_name(all->items[i], &step)) {
            continue;
        }
        char *path = pf_path_join(dir, all->items[i]);
        if (!path) {
            return PF_ENOMEM;
        }
        const bool is_dir = pf_path_is_dir(path);
        pf_free(path);
        if (is_dir) {
            PF_TRY(pf_str_list_append(kept, all->items[i]));
        }
    }
    return 0;
}

int ckpt_list_steps(const char *dir, struct pf_str_list *names_out)
{
    struct pf_str_list all = {0}, kept = {0};
    int err;

    PF_TRY(pf_dir_list(dir, &all));
    err = keep_step_dirs(dir, &all, &kept);
    pf_str_list_release(&all);
    if (err != 0) {
        pf_str_list_release(&kept);
        return err;
    }
    if (kept.n > 0) {
        qsort(kept.items, kept.n, sizeof *kept.items, compare_steps);
    }
    *names_out = kept;
    return 0;
}

int ckpt_read_latest_name(const char *output_dir, char **name_out)
{
    char *path = pf_path_join(output_dir, CKPT_LATEST), *text = NULL;
    size_t len;
    int err = path ? 0 : PF_ENOMEM;

    *name_out = NULL;
    if (!err && pf_path_is_file(path)) {
        err = pf_file_read_all(path, 4096, &text, &len);
    }
    pf_free(path);
    if (err == PF_EINVAL) { /* far too long to be a name */
        pf_error_clear();
        err = 0;
    }
    if (text) {
        text[strcspn(text, "\r\n")] = '\0';
        *name_out = text;
    }
    return err;
}

int ckpt_open_named(const char *output_dir, const char *name, struct pf_ckpt **ckpt_out)
{
    char *path = pf_path_join(output_dir, name);
    int err;

    *ckpt_out = NULL;
    if (!path) {
        return PF_ENOMEM;
    }
    err = ckpt_read_manifest(path, NULL, ckpt_out);
    pf_free(path);
    if (err != 0 && err != PF_ENOMEM) {
        pf_error_clear();
        err = 0;
    }
    return err;
}

/* The highest step that is complete and, if after is not NULL, was saved when `latest` named the
 * checkpoint of that digest. A run that went back saves lower steps than the one that `latest`
 * names, so all are looked at. */
static int find_highest(const char *output_dir, const struct pf_str_list *names, const char *after,
                        const char **name_out)
{
    *name_out = NULL;
    for (size_t i = names->n; i-- > 0 && !*name_out;) {
        struct pf_ckpt *ckpt;
        PF_TRY(ckpt_open_named(output_dir, names->items[i], &ckpt));
        if (ckpt && (!after || strcmp(ckpt->previous, after) == 0)) {
            *name_out = names->items[i];
        }
        pf_ckpt_free(ckpt);
    }
    return 0;
}

static int find_newest(const char *output_dir, const struct pf_str_list *names, const char *latest,
                       const char **name_out)
{
    struct pf_ckpt *ckpt = NULL;
    int64_t step;

    if (latest && ckpt_parse_step_name(latest, &step)) {
        PF_TRY(ckpt_open_named(output_dir, latest, &ckpt));
    }
    if (!ckpt) {
        return find_highest(output_dir, names, NULL, name_out);
    }
    const int err = find_highest(output_dir, names, ckpt->digest, name_out);
    pf_ckpt_free(ckpt);
    *name_out = *name_out ? *name_out : latest;
    return err;
}

int pf_ckpt_latest(const char *output_dir, char **path_out)
{
    struct pf_str_list names = {0};
    char *latest = NULL, *path = NULL;
    const char *newest = NULL;
    int err = 0;

    if (!pf_path_exists(output_dir)) {
        *path_out = NULL;
        return 0;
    }
    PF_TRY_GOTO(ckpt_list_steps(output_dir, &names), out);
    PF_TRY_GOTO(ckpt_read_latest_name(output_dir, &latest), out);
    PF_TRY_GOTO(find_newest(output_dir, &names, latest, &newest), out);
    if (newest) {
        path = pf_path_join(output_dir, newest);
        err = path ? 0 : PF_ENOMEM;
    }
out:
    pf_str_list_release(&names);
    pf_free(latest);
    if (err == 0) {
        *path_out = path;
    }
    return err;
}

int ckpt_remove(const char *path)
{
    struct stat st;

    if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode)) {
        return unlink(path) == 0 ? 0 : pf_fail_errno(PF_EIO, "cannot remove '%s'", path);
    }
    return pf_rmtree(path);
}

int ckpt_remove_staging(const char *path)
{
    int lock_fd = -1, err = 0;

    if (!pf_path_exists(path)) {
        return 0;
    }
    if (pf_path_is_dir(path)) {
        err = pf_dir_lock(path, 0, &lock_fd);
    }
    if (err == PF_EIO && !pf_path_exists(path)) { /* renamed or removed by another just now */
        pf_error_clear();
        return 0;
    }
    err = err ? err : ckpt_remove(path);
    (void)pf_close(lock_fd, NULL);
    return err;
}

static bool is_same_dir(int fd, const char *path)
{
    struct stat a, b;

    return fstat(fd, &a) == 0 && stat(path, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

int ckpt_make_staging(const char *path, int *lock_out)
{
    int lock_fd = -1;

    PF_TRY(ckpt_remove_staging(path));
    if (mkdir(path, 0777) != 0) {
        return errno == EEXIST ? pf_fail(PF_EREFUSED, "'%s' is in use by another run", path)
                               : pf_fail_errno(PF_EIO, "cannot make the directory '%s'", path);
    }
    int err = pf_dir_lock(path, 0, &lock_fd);
    /* Before it was locked another run may have taken it for one that was left. */
    if ((err == PF_EIO && !pf_path_exists(path)) || (!err && !is_same_dir(lock_fd, path))) {
        (void)pf_close(lock_fd, NULL);
        return pf_fail(PF_EREFUSED, "'%s' is in use by another run", path);
    }
    if (err) {
        (void)(err == PF_EREFUSED ? 0 : rmdir(path));
        return err;
    }
    *lock_out = lock_fd;
    return 0;
}

static int clean_latest(const char *output_dir)
{
    char *path = pf_path_join(output_dir, CKPT_LATEST);
    const int err = path ? pf_file_clean_aside(path) : PF_ENOMEM;

    pf_free(path);
    return err;
}

int pf_ckpt_clean_staging(const char *output_dir)
{
    struct pf_str_list names = {0};
    int err = 0;

    if (!pf_path_exists(output_dir)) {
        return 0;
    }
    PF_TRY(pf_dir_list(output_dir, &names));
    for (size_t i = 0; !err && i < names.n; i++) {
        const char *name = names.items[i];
        if (!pf_str_starts_with(name, CKPT_STAGING_PREFIX CKPT_PREFIX) &&
            !pf_str_starts_with(name, CKPT_REMOVING_PREFIX CKPT_PREFIX)) {
            continue;
        }
        char *path = pf_path_join(output_dir, name);
        err = path ? ckpt_remove(path) : PF_ENOMEM;
        pf_free(path);
    }
    pf_str_list_release(&names);
    return err ? err : clean_latest(output_dir);
}
