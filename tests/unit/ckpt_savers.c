/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes at once on one directory: two that save, one that reads while another saves. What a saver
 * says it has saved is there, whole, and what a reader gets is one save, never a mix. And large ones:
 * ten thousand tensors, a header of the greatest length.
 */
#include <pf/ckpt.h>
#include <pf/error.h>
#include <pf/safetensors.h>

#include "scratch.h"
#include "small_state.h"
#include "tap.h"

#include <sys/wait.h>

/* The seed that a checkpoint or run directory holds; negative: the error; 99: a mix. */
static int load(const char *path, int n_seeds)
{
    struct small_state got, want;
    struct pf_ckpt *ckpt = NULL;
    int err = pf_ckpt_open(path, &ckpt);

    small_state_make(&got, -1, 0, 1);
    err = err ? err : pf_ckpt_load(NULL, ckpt, got.live, SMALL_N_LIVE, true);
    pf_ckpt_free(ckpt);
    for (int seed = 1; !err && seed <= n_seeds; seed++) {
        small_state_make(&want, seed, 0, 1);
        if (memcmp(&got, &want, offsetof(struct small_state, live)) == 0) {
            return seed;
        }
    }
    return err ? err : 99;
}

static int64_t count_faults(const char *dir)
{
    struct pf_ckpt_fault *faults = NULL;
    int64_t n = -1;

    (void)pf_ckpt_verify(dir, &faults, &n);
    for (int64_t i = 0; i < n; i++) {
        printf("# %s\n", faults[i].message);
    }
    pf_ckpt_faults_free(faults, n > 0 ? n : 0);
    return n;
}

/* A process that saves; its exit status is the number of the error. */
static pid_t saver(const char *dir, int64_t step, int seed)
{
    fflush(stdout);
    const pid_t child = fork();

    if (child == 0) {
        _exit(-small_state_save(NULL, dir, step, seed, PF_CKPT_PLAIN));
    }
    return child;
}

static int error_of(pid_t child)
{
    int status = -1;

    (void)waitpid(child, &status, 0);
    return WIFEXITED(status) ? -WEXITSTATUS(status) : -1000;
}

/* Only one of them can have the step: the other is refused, and the directory has what the one saved. */
static void two_savers_of_one_step(void)
{
    int bad = 0, n_saved = 0;

    for (int round = 0; round < 100; round++) {
        const char *const dir = at("both-%d", round);
        (void)small_state_save(NULL, dir, 1, 1, PF_CKPT_PLAIN);
        const pid_t a = saver(dir, 2, 2), b = saver(dir, 2, 3);
        const int err_a = error_of(a), err_b = error_of(b);
        const int want = err_a == 0 ? 2 : err_b == 0 ? 3 : 1, got = load(dir, 3);
        const bool refused = (err_a == 0 || err_a == PF_EREFUSED) &&
                             (err_b == 0 || err_b == PF_EREFUSED) && (err_a != 0 || err_b != 0);
        n_saved += err_a == 0 || err_b == 0;
        if (!refused || got != want || count_faults(dir) != 0) {
            printf("# round %d: they say %d and %d, seed %d loads\n", round, err_a, err_b, got);
            bad++;
        }
    }
    ok(bad == 0 && n_saved > 0, "of two savers of one step one is refused (%d of 100 saved)",
       n_saved);
}

static void two_savers_of_two_steps(void)
{
    int bad = 0;

    for (int round = 0; round < 30; round++) {
        const char *const dir = at("two-%d", round);
        const pid_t a = saver(dir, 2, 2), b = saver(dir, 3, 3);
        const bool saved = error_of(a) == 0 && error_of(b) == 0;
        bad += !saved || load(at("two-%d/checkpoint-000002", round), 3) != 2 ||
               load(at("two-%d/checkpoint-000003", round), 3) != 3 || count_faults(dir) != 0;
    }
    ok(bad == 0, "two savers of two steps do not disturb each other");
}

#define N_STEPS 60

static void a_reader_during_saves(void)
{
    const char *const dir = at("read");
    int last = 1, mixed = 0, n = 0, status;

    (void)small_state_save(NULL, dir, 1, 1, PF_CKPT_PLAIN);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        int err = 0;
        for (int step = 2; !err && step <= N_STEPS; step++) {
            err = small_state_save(NULL, dir, step, step, PF_CKPT_PLAIN);
        }
        _exit(-err);
    }
    while (waitpid(child, &status, WNOHANG) == 0) {
        const int seed = load(dir, N_STEPS);
        if (seed < last || seed == 99) {
            printf("# after step %d: %d: %s\n", last, seed, pf_error_message());
            mixed++;
        }
        last = seed > last ? seed : last;
        n++;
    }
    ok(mixed == 0 && n > 0 && status == 0,
       "a reader gets a save each time, and never an older one (%d times)", n);
    ok(load(dir, N_STEPS) == N_STEPS, "at the end the last");
}

#define N_TENSORS 10000

static void ten_thousand_tensors(void)
{
    struct pf_ckpt_live *const live = pf_calloc_array(N_TENSORS, sizeof *live);
    float *const values = pf_calloc_array(N_TENSORS, sizeof *values);
    const struct pf_ckpt_save save = {.output_dir = at("many"), .step = 1};
    struct pf_ckpt *ckpt = NULL;
    bool same = true;

    for (int i = 0; i < N_TENSORS; i++) {
        values[i] = (float)i;
        live[i] = (struct pf_ckpt_live){.name = pf_asprintf("layer.%d.w", i),
                                        .dtype = PF_DTYPE_F32,
                                        .n_dims = 1,
                                        .shape = {1},
                                        .box = {.n_dims = 1, .hi = {1}},
                                        .data = &values[i]};
    }
    ok(pf_ckpt_save(NULL, &save, live, N_TENSORS, NULL) == 0, "ten thousand tensors are saved");
    memset(values, 0, N_TENSORS * sizeof *values);
    ok(pf_ckpt_open(at("many"), &ckpt) == 0 && ckpt->n_tensors == N_TENSORS &&
           pf_ckpt_load(NULL, ckpt, live, N_TENSORS, true) == 0,
       "and loaded");
    for (int i = 0; i < N_TENSORS; i++) {
        same = same && values[i] == (float)i;
        pf_free((void *)(uintptr_t)live[i].name);
    }
    ok(same && count_faults(at("many")) == 0, "with their values, and verify finds nothing");
    pf_ckpt_free(ckpt);
    pf_free(live);
    pf_free(values);
}

/* One tensor behind a header of so many bytes, most of them blanks. */
static void put_headed(const char *path, uint64_t header_bytes)
{
    const char text[] = "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    const size_t n = sizeof header_bytes + header_bytes + sizeof(float);
    char *const bytes = pf_alloc(n);
    const float value = 7;

    memset(bytes, ' ', n);
    memcpy(bytes, &header_bytes, sizeof header_bytes);
    memcpy(bytes + sizeof header_bytes, text, sizeof text - 1);
    memcpy(bytes + n - sizeof value, &value, sizeof value);
    put(path, bytes, n);
    pf_free(bytes);
}

static void a_header_of_100_megabytes(void)
{
    struct pf_ckpt *ckpt = NULL;
    float value = 0;

    put_headed(at("large.safetensors"), PF_ST_HEADER_MAX_BYTES);
    ok(pf_ckpt_open(at("large.safetensors"), &ckpt) == 0 && ckpt->n_tensors == 1,
       "a header of 100 MB opens");
    const struct pf_box whole = pf_ckpt_whole(&ckpt->tensors[0]);
    ok(pf_ckpt_read_box(ckpt, &ckpt->tensors[0], &whole, PF_DTYPE_F32, &value) == 0 && value == 7,
       "and what is behind it is read");
    pf_ckpt_free(ckpt);
    put_headed(at("large.safetensors"), PF_ST_HEADER_MAX_BYTES + 8);
    ok(pf_ckpt_open(at("large.safetensors"), &ckpt) == PF_EFORMAT, "a longer one is refused: %s",
       pf_error_message());
}

int main(void)
{
    scratch_make();
    two_savers_of_one_step();
    two_savers_of_two_steps();
    a_reader_during_saves();
    ten_thousand_tensors();
    a_header_of_100_megabytes();
    scratch_remove();
    return done();
}
