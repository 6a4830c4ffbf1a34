/* SPDX-License-Identifier: Apache-2.0 */
/* ranks: 1 4 */
/*
 * What a loss of power can leave of a save. recorder.so writes down all that the ranks do to a run's
 * directory in four saves: a first, one with parity, a compressed one that removes the oldest, one that
 * goes back and replaces a step. Each state that a disk may then hold (disk_states.h) must load,
 * with its digests, as the save that was acknowledged last or the one under way, have nothing that
 * `verify` finds in it, and let the next save through.
 *   CRASH_STATES=N   random combinations at each prefix (make check-long: 100); 2 otherwise
 */
#include <pf/ckpt.h>
#include <pf/planes.h>

#include "disk_states.h"
#include "preloaded.h"
#include "small_state.h"

#define N_SAVES 4

/* Which of the saves loads: its number, 0 if there is none; -1, said why, if it is something else. */
static int loads(const char *out)
{
    struct small_state got, want;
    struct pf_ckpt *ckpt = NULL;
    struct pf_ckpt_fault *faults = NULL;
    int64_t n_faults = 0;
    char *path = NULL;
    int found = -1, err = pf_ckpt_latest(out, &path);

    if (!err && !path) {
        return 0;
    }
    small_state_make(&got, -1, 0, 1);
    err = err ? err : pf_ckpt_open(path, &ckpt);
    err = err ? err : pf_ckpt_load(NULL, ckpt, got.live, SMALL_N_LIVE, true);
    err = err ? err : pf_ckpt_verify(path, &faults, &n_faults);
    for (int seed = 1; !err && n_faults == 0 && seed <= N_SAVES; seed++) {
        small_state_make(&want, seed, 0, 1);
        if (memcmp(&got, &want, offsetof(struct small_state, live)) == 0) {
            found = seed;
        }
    }
    if (found < 0) {
        printf("# %s\n", err ? pf_error_message() : n_faults > 0 ? faults[0].message : "a mix");
    }
    pf_ckpt_faults_free(faults, n_faults);
    pf_ckpt_free(ckpt);
    pf_free(path);
    return found;
}

/* A run that is started on it goes on. */
static bool lets_a_save_through(const char *out)
{
    char *path = NULL;
    const bool saved = pf_ckpt_clean_staging(out) == 0 &&
                       small_state_save(NULL, out, 9, 9, PF_CKPT_PLAIN) == 0 &&
                       pf_ckpt_latest(out, &path) == 0 && path &&
                       strcmp(pf_path_base(path), "checkpoint-000009") == 0;

    pf_free(path);
    return saved;
}

static bool is_old_or_new(const char *root, int acknowledged)
{
    char *const out = pf_path_join(root, "run/out");
    const int found = loads(out);
    bool good = found == acknowledged || found == acknowledged + 1;

    if (!good) {
        printf("# save %d loads\n", found);
    } else if (!lets_a_save_through(out)) {
        printf("# no further save: %s\n", pf_error_message());
        good = false;
    }
    pf_free(out);
    return good;
}

static void each_state_is_the_old_or_the_new_one(void)
{
    const char *const tries = getenv("CRASH_STATES");
    const int n_tries = tries ? (int)strtol(tries, NULL, 10) : 2;

    const int64_t n_states = check_states(is_old_or_new, n_tries);

    all_ok(n_wrong == 0, "each of %lld states at %lld operations is the old save or the new one",
           (long long)n_states, (long long)n_ops);
    all_ok(n_states > (n_tries < 100 || pf_comm_size(world) < 4 ? n_ops : 5000),
           "and these are many");
}

/* Recording ------------------------------------------------------------------------------------- */

static int save(int64_t step, int seed, bool replace)
{
    const struct pf_ckpt_save options = {.output_dir = at("root/run/out"),
                                         .step = step,
                                         .state_json = "{\"position\":3}",
                                         .codec = seed == 3 && pf_planes_is_built() ? PF_CKPT_ZSTD
                                                                                    : PF_CKPT_PLAIN,
                                         .parity = seed == 2,
                                         .replace = replace,
                                         .total_limit = 2};
    const int err = small_state_save_as(world, &options, seed);

    acknowledge(seed);
    return err;
}

static void four_saves_are_recorded(void)
{
    begin_recording();
    const bool saved = save(1, 1, false) == 0 && save(2, 2, false) == 0 && save(3, 3, false) == 0 &&
                       save(2, 4, true) == 0;
    read_log();
    all_ok(saved, "four states are saved");
    all_ok(acknowledged_at[N_SAVES - 1] > 60, "%lld operations are recorded", (long long)n_ops);
}

int main(int argc, char **argv)
{
    const bool recorded = preloaded(argv, "recorder");

    jobs_begin(argc, argv);
    if (recorded) {
        four_saves_are_recorded();
        each_state_is_the_old_or_the_new_one();
    } else if (rank == 0) {
        skip("states after a loss of power",
             "a preloaded library and the sanitizer do not go together");
    }
    forget_log();
    return jobs_end();
}
