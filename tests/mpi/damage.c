/* SPDX-License-Identifier: Apache-2.0 */
/* ranks: 1 4 */
/*
 * Saved files damaged at random: bits flipped, bytes zeroed, files cut short or made longer, exchanged
 * with others of the same checkpoint, replaced by those of an older save. `verify` must find each,
 * name the file, and no other. Every rank does its share on a copy of its own.
 *   DAMAGES=100000 for the long proof (make check-long); 2000 otherwise. DAMAGE_SEED=1
 */
#include <pf/ckpt.h>
#include <pf/planes.h>
#include <pf/rng.h>

#include "jobs.h"
#include "small_state.h"

#define MAX_FILES 16

/* A file of the checkpoint as it was written, and as an older save wrote it. */
struct file {
    char name[64], *path;
    char *bytes, *old;
    size_t n, n_old;
};

static struct file files[MAX_FILES];
static int n_files;
static char dir[512]; /* of the checkpoint that this rank damages */
static uint64_t key, draws;

static size_t below(size_t n)
{
    return (size_t)pf_rng_bounded(key, 0, draws++, n);
}

static void read_files(const char *old_dir)
{
    struct pf_str_list names = {0};

    n_files = 0;
    if (pf_dir_list(dir, &names) != 0 || names.n > MAX_FILES) {
        exit(4);
    }
    for (size_t i = 0; i < names.n; i++) {
        struct file *f = &files[n_files++];
        snprintf(f->name, sizeof f->name, "%s", names.items[i]);
        f->path = pf_path_join(dir, f->name);
        char *const old_path = pf_path_join(old_dir, f->name);
        f->bytes = get(f->path, &f->n);
        f->old = get(old_path, &f->n_old);
        pf_free(old_path);
    }
    pf_str_list_release(&names);
}

static void release_files(void)
{
    for (int i = 0; i < n_files; i++) {
        pf_free(files[i].path);
        pf_free(files[i].bytes);
        pf_free(files[i].old);
    }
}

/* One damage: what is said of it, and the files that must be named. */
struct damage {
    char what[200];
    struct file *hit[2];
};

/* Another content for a file, in `to`, which has room for twice as much. Returns its length. */
typedef size_t change_fn(const struct file *f, char *to, struct damage *d);

static size_t flip(const struct file *f, char *to, struct damage *d)
{
    const size_t i = below(f->n);
    const int bit = (int)below(8);

    snprintf(d->what, sizeof d->what, "bit %d of byte %zu of '%s' flipped", bit, i, f->name);
    to[i] = (char)(to[i] ^ (1 << bit));
    return f->n;
}

static size_t cut(const struct file *f, char *to, struct damage *d)
{
    (void)to;
    const size_t n = below(f->n);

    snprintf(d->what, sizeof d->what, "'%s' cut to %zu of %zu bytes", f->name, n, f->n);
    return n;
}

static size_t lengthen(const struct file *f, char *to, struct damage *d)
{
    const size_t n = 1 + below(f->n);

    snprintf(d->what, sizeof d->what, "%zu bytes behind the end of '%s'", n, f->name);
    memset(to + f->n, below(2) ? 'x' : 0, n);
    return f->n + n;
}

/* As where a sector was never written. */
static size_t blank(const struct file *f, char *to, struct damage *d)
{
    const size_t lo = below(f->n), hi = lo + 1 + below(f->n - lo);

    snprintf(d->what, sizeof d->what, "bytes %zu to %zu of '%s' zeroed", lo, hi, f->name);
    memset(to + lo, 0, hi - lo);
    return f->n;
}

static size_t stale(const struct file *f, char *to, struct damage *d)
{
    snprintf(d->what, sizeof d->what, "'%s' of the older save", f->name);
    memcpy(to, f->old, f->n_old);
    return f->n_old;
}

/* Damage one file; false where nothing came of it. */
static bool change(change_fn *how, struct file *f, struct damage *d)
{
    char *const to = pf_alloc(2 * f->n + f->n_old);

    memcpy(to, f->bytes, f->n);
    const size_t n = how(f, to, d);
    const bool changed = n != f->n || memcmp(to, f->bytes, n) != 0;
    if (changed) {
        put(f->path, to, n);
        d->hit[0] = f;
    }
    pf_free(to);
    return changed;
}

/* Exchange two files. */
static bool swap(struct damage *d)
{
    struct file *a = &files[below((size_t)n_files)], *b = &files[below((size_t)n_files)];

    if (a == b) {
        return false;
    }
    put(a->path, b->bytes, b->n);
    put(b->path, a->bytes, a->n);
    d->hit[0] = a;
    d->hit[1] = b;
    snprintf(d->what, sizeof d->what, "'%s' and '%s' exchanged", a->name, b->name);
    return true;
}

/* Half of all are flips. */
static void damage(struct damage *d)
{
    static change_fn *const hows[] = {flip, flip, flip, flip, flip, cut, lengthen, blank, stale};
    const size_t n = sizeof hows / sizeof hows[0];
    bool done;

    do {
        *d = (struct damage){.what = ""};
        const size_t i = below(n + 1);
        done = i == n ? swap(d) : change(hows[i], &files[below((size_t)n_files)], d);
    } while (!done);
}

static void restore(const struct damage *d)
{
    for (int i = 0; i < 2 && d->hit[i]; i++) {
        put(d->hit[i]->path, d->hit[i]->bytes, d->hit[i]->n);
    }
}

static bool is_named(const struct file *f, const struct pf_ckpt_fault *faults, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (faults[i].code != 0 && strstr(faults[i].message, f->name)) {
            return true;
        }
    }
    return false;
}

/* Without its own manifest a checkpoint has nothing to compare its other files with: they may be named or
 * not. */
static bool has_its_manifest(const struct damage *d)
{
    for (int i = 0; i < 2 && d->hit[i]; i++) {
        if (strcmp(d->hit[i]->name, "manifest.json") == 0) {
            return false;
        }
    }
    return true;
}

/* Is what the faults say of this file wrong? */
static bool is_wrong(const struct file *f, const struct damage *d,
                     const struct pf_ckpt_fault *faults, int64_t n)
{
    const bool damaged = d->hit[0] == f || d->hit[1] == f;

    return is_named(f, faults, n) != damaged &&
           (has_its_manifest(d) || strcmp(f->name, "manifest.json") == 0);
}

/* What verify says of it is not as it must be. */
static bool is_misjudged(const struct damage *d)
{
    struct pf_ckpt_fault *faults = NULL;
    int64_t n = 0;
    bool wrong = pf_ckpt_verify(dir, &faults, &n) != 0 || pf_ckpt_faults_count(faults, n) == 0;

    for (int i = 0; i < n_files; i++) {
        wrong = wrong || is_wrong(&files[i], d, faults, n);
    }
    if (wrong) {
        printf("# rank %d: %s: %lld faults%s%s\n", rank, d->what, (long long)n,
               n > 0 ? ", the first: " : "", n > 0 ? faults[0].message : "");
    }
    pf_ckpt_faults_free(faults, n);
    return wrong;
}

static int save(struct pf_ckpt_save how, const char *name, int step)
{
    how.output_dir = at("%s", name);
    how.step = step;
    return small_state_save_as(world, &how, step);
}

static void every_damage_is_found(struct pf_ckpt_save how, const char *name)
{
    const char *const n_text = getenv("DAMAGES"), *const seed = getenv("DAMAGE_SEED");
    const char *const build = getenv("PF_BUILD");
    const long usual = build && strstr(build, "/san-") ? 200 : 2000; /* a sanitizer is slow */
    const long total = (n_text ? strtol(n_text, NULL, 10) : usual) / pf_comm_size(world);
    long misjudged = 0;
    struct damage d = {.what = "nothing"};

    snprintf(dir, sizeof dir, "%s", at("%s-%d/checkpoint-000002", name, rank));
    key = pf_rng_derive(seed ? strtoull(seed, NULL, 10) : 1, (uint64_t)rank);
    const bool saved = save(how, name, 1) == 0 && save(how, name, 2) == 0;
    all_ok(saved, "two states are saved (%s)", name);
    copy_dir(at("%s/checkpoint-000002", name), dir);
    read_files(at("%s/checkpoint-000001", name));
    for (long i = 0; saved && i < total && misjudged < 10; i++) {
        damage(&d);
        misjudged += is_misjudged(&d);
        restore(&d);
    }
    all_ok(misjudged == 0, "each of %ld random damages of %d files is found, and the file named",
           total * pf_comm_size(world), n_files);
    struct pf_ckpt_fault *faults = NULL;
    int64_t n = -1;
    all_ok(pf_ckpt_verify(dir, &faults, &n) == 0 && n == 0, "restored, all is whole");
    pf_ckpt_faults_free(faults, n);
    release_files();
}

int main(int argc, char **argv)
{
    jobs_begin(argc, argv);
    every_damage_is_found((struct pf_ckpt_save){.codec = PF_CKPT_PLAIN}, "plain");
    every_damage_is_found((struct pf_ckpt_save){.parity = true}, "parity");
    if (pf_planes_is_built()) {
        every_damage_is_found((struct pf_ckpt_save){.codec = PF_CKPT_ZSTD}, "zstd");
    }
    return jobs_end();
}
