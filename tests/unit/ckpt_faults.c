/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every allocation and every system call of a save and of a load fails once, each in a process of its
 * own: nothing crashes or hangs, the error is one of the system's with one line that says what, and
 * what was saved before is whole. Reads and writes that do half, and calls that a signal interrupts,
 * are not noticed.
 *   CKPT_FAULTS=all for every one (make check-long); a sample otherwise
 */
#include <pf/ckpt.h>
#include <pf/error.h>
#include <pf/planes.h>

#include "preloaded.h"
#include "scratch.h"
#include "small_state.h"
#include "tap.h"

#include <sys/wait.h>

#define NOT_HIT 77 /* status of a process in which the fault did not come up */
#define SYSTEM_CALLS                                                                               \
    "open write pwrite fsync rename exchange mkdir close read pread ftruncate unlink"

/* What is done with a fault under it; in a directory with a save of step 1 and seed 1 (the load: also
 * step 2). Returns what it says. */
typedef int action_fn(const char *dir);

static enum pf_ckpt_codec codec;

static int save_second(const char *dir)
{
    return small_state_save(NULL, dir, 2, 2, codec);
}

/* A state that is in place of the first one. */
static int save_again(const char *dir)
{
    const struct pf_ckpt_save save = {.output_dir = dir,
                                      .step = 1,
                                      .state_json = "{\"position\":3}",
                                      .codec = codec,
                                      .parity = true,
                                      .replace = true,
                                      .total_limit = 1};

    return small_state_save_as(NULL, &save, 2);
}

/* Which seed is loaded; negative: the error. */
static int load(const char *dir)
{
    struct small_state got, want;
    struct pf_ckpt *ckpt = NULL;
    int err = pf_ckpt_open(dir, &ckpt);

    small_state_make(&got, -1, 0, 1);
    err = err ? err : pf_ckpt_load(NULL, ckpt, got.live, SMALL_N_LIVE, true);
    pf_ckpt_free(ckpt);
    for (int seed = 1; !err && seed <= 2; seed++) {
        small_state_make(&want, seed, 0, 1);
        if (memcmp(&got, &want, offsetof(struct small_state, live)) == 0) {
            return seed;
        }
    }
    return err ? err : 99;
}

static int load_newest(const char *dir)
{
    const int seed = load(dir);

    return seed == 2 ? 0 : seed;
}

/* After the fault ------------------------------------------------------------------------------- */

static const char *judge_message(int err)
{
    const char *const message = pf_error_message();

    return err != PF_EIO && err != PF_ENOMEM ? "another error than one of the system"
           : !message || !message[0]         ? "no message"
           : strchr(message, '\n')           ? "a message of many lines"
                                             : NULL;
}

static bool has_leftovers(const char *dir)
{
    struct pf_str_list names = {0};
    bool has = pf_dir_list(dir, &names) != 0;

    for (size_t i = 0; i < names.n; i++) {
        has = has || names.items[i][0] == '.' || strstr(names.items[i], ".tmp");
    }
    pf_str_list_release(&names);
    return has;
}

static int64_t count_faults(const char *dir)
{
    struct pf_ckpt_fault *faults = NULL;
    int64_t n = -1;

    (void)pf_ckpt_verify(dir, &faults, &n);
    pf_ckpt_faults_free(faults, n > 0 ? n : 0);
    return n;
}

/* What is not as it must be after the action said err; NULL: all is. */
static const char *judge(action_fn *act, const char *dir, int err, bool must_succeed)
{
    if (err != 0 && must_succeed) {
        return "it was noticed";
    }
    const char *const wrong = err != 0 ? judge_message(err) : NULL;
    if (wrong || act == load_newest) {
        return wrong;
    }
    if (load(dir) != (err ? 1 : 2)) {
        return "another state is there than it says";
    }
    return count_faults(dir) != 0                        ? "verify finds faults"
           : (err || must_succeed) && has_leftovers(dir) ? "something is left"
           : pf_ckpt_clean_staging(dir) != 0             ? "it cannot be cleaned"
           : small_state_save(NULL, dir, 5, 2, codec) != 0 || load(dir) != 2
               ? "the next save does not go through"
               : NULL;
}

/* One fault in a process: its status; and what it says is printed. */
static int run_faulted(action_fn *act, const char *variable, long n, bool must_succeed)
{
    char number[32];

    (void)pf_rmtree(at("run"));
    if (small_state_save(NULL, at("run"), 1, 1, codec) != 0 ||
        (act == load_newest && small_state_save(NULL, at("run"), 2, 2, codec) != 0)) {
        return 1;
    }
    (void)unlink(at("hit"));
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        const char *const dir = strdup(at("run"));
        alarm(60);
        if (n > 0) {
            snprintf(number, sizeof number, "%ld", n);
        }
        setenv("FAULT_PATHS", dir, 1); /* not before: calls are counted from now on */
        setenv(variable, n > 0 ? number : "some", 1);
        const int err = act(dir);
        const bool hit = getenv("FAULT_MEMORY") || pf_path_exists(at("hit"));
        unsetenv("FAULT_AT");
        unsetenv("FAULT_PATHS");
        unsetenv("FAULT_MEMORY");
        const char *const wrong = judge(act, dir, err, must_succeed);
        if (wrong) {
            printf("# %s=%ld: %s: error %d: %s\n", variable, n, wrong, err, pf_error_message());
            fflush(stdout);
        }
        _exit(wrong ? 1 : hit ? 0 : NOT_HIT);
    }
    int status = 1;
    (void)waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) {
        printf("# %s=%ld: ended by signal %d\n", variable, n, WTERMSIG(status));
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static const struct {
    action_fn *act;
    const char *name;
} actions[] = {{save_second, "a save"},
               {save_again, "a save with parity that replaces one"},
               {load_newest, "a load"}};
#define N_ACTIONS (sizeof actions / sizeof actions[0])

/* How many allocations an action makes. */
static long count_allocations(action_fn *act)
{
    long n = 0;

    (void)pf_rmtree(at("run"));
    (void)small_state_save(NULL, at("run"), 1, 1, codec);
    if (act == load_newest) {
        (void)small_state_save(NULL, at("run"), 2, 2, codec);
    }
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        setenv("FAULT_COUNT", at("count"), 1);
        exit(act(at("run")) != 0);
    }
    (void)waitpid(child, NULL, 0);
    char *const text = get(at("count"), NULL);
    n = strtol(text, NULL, 10);
    pf_free(text);
    return n;
}

static void each_allocation_fails(long stride)
{
    for (size_t a = 0; a < N_ACTIONS; a++) {
        const long total = count_allocations(actions[a].act);
        int bad = 0;
        for (long n = 1; n <= total; n += stride) {
            bad += run_faulted(actions[a].act, "FAULT_MEMORY", n, false) != 0;
        }
        ok(bad == 0 && total > 50, "%s: one of %ld allocations fails", actions[a].name, total);
    }
}

static void each_call_fails(const char *how, long stride)
{
    setenv("FAULT_HOW", how, 1);
    for (size_t a = 0; a < N_ACTIONS; a++) {
        int bad = 0, n = 0, status = 0;
        for (n = 1; status != NOT_HIT && n < 10000; n += (int)stride) {
            status = run_faulted(actions[a].act, "FAULT_AT", n, false);
            bad += status != 0 && status != NOT_HIT;
        }
        ok(bad == 0 && n > 10, "%s: %s at one of %d calls", actions[a].name, how, n - 1);
    }
}

static void calls_do_half(const char *how)
{
    setenv("FAULT_HOW", how, 1);
    for (size_t a = 0; a < N_ACTIONS; a++) {
        ok(run_faulted(actions[a].act, "FAULT_AT", 0, true) == 0, "%s does not notice %s",
           actions[a].name, how);
    }
}

int main(int argc, char **argv)
{
    const char *const all = getenv("CKPT_FAULTS");
    const bool is_all = all && strcmp(all, "all") == 0;

    (void)argc;
    if (!preloaded(argv, "faults")) {
        skip("faults of saves and loads",
             "a preloaded library and the sanitizer do not go together");
        return done();
    }
    scratch_make();
    for (int c = 0; c <= (pf_planes_is_built() ? 1 : 0); c++) {
        codec = c ? PF_CKPT_ZSTD : PF_CKPT_PLAIN;
        each_allocation_fails(is_all ? 1 : 47);
        setenv("FAULT_CALLS", SYSTEM_CALLS, 1);
        setenv("FAULT_LOG", at("hit"), 1);
        each_call_fails("EIO", is_all ? 1 : 4);
        each_call_fails("ENOSPC", is_all ? 1 : 4);
        calls_do_half("short");
        calls_do_half("EINTR");
    }
    scratch_remove();
    return done();
}
