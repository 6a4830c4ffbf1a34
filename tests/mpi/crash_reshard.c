/* SPDX-License-Identifier: Apache-2.0 */
/* ranks: 1 4 */
/*
 * What a loss of power can leave of a change of layout, of an export, and of a repair (disk_states.h):
 * under the final name there is nothing or all of it; what is left beside it is gone on with, or done
 * again, and gives the same bytes; what was acknowledged is there.
 *   CRASH_STATES=N   random combinations at each prefix (make check-long: 100); 1 otherwise
 */
#include <pf/ckpt.h>
#include <pf/log.h>
#include <pf/placement.h>
#include <pf/planes.h>
#include <pf/reshard.h>

#include "disk_states.h"
#include "model_fixture.h"
#include "preloaded.h"
#include "small_state.h"

static int n_tries(void)
{
    const char *const tries = getenv("CRASH_STATES");

    return tries ? (int)strtol(tries, NULL, 10) : 1;
}

static bool has_name(const struct pf_str_list *names, const char *name)
{
    for (size_t i = 0; i < names->n; i++) {
        if (strcmp(names->items[i], name) == 0) {
            return true;
        }
    }
    return false;
}

static bool same_bytes(const char *dir_a, const char *dir_b, const char *name)
{
    char *const path_a = pf_path_join(dir_a, name), *const path_b = pf_path_join(dir_b, name);
    size_t n_a, n_b;
    char *const a = get(path_a, &n_a), *const b = get(path_b, &n_b);
    const bool same = n_a == n_b && memcmp(a, b, n_a) == 0;

    pf_free(a);
    pf_free(b);
    pf_free(path_a);
    pf_free(path_b);
    return same;
}

/* The same files with the same bytes, and no others? */
static bool same_dirs(const char *a, const char *b)
{
    struct pf_str_list in_a = {0}, in_b = {0};
    bool same = pf_dir_list(a, &in_a) == 0 && pf_dir_list(b, &in_b) == 0 && in_a.n == in_b.n;

    for (size_t i = 0; same && i < in_a.n; i++) {
        same = has_name(&in_b, in_a.items[i]) && same_bytes(a, b, in_a.items[i]);
    }
    pf_str_list_release(&in_a);
    pf_str_list_release(&in_b);
    return same;
}

/* A state that is wrong, and why. */
static bool wrong(const char *what)
{
    printf("# %s: %s\n", what, pf_error_message());
    return false;
}

/* A change of layout -----------------------------------------------------------------------------
 */

static struct pf_table *table;
static struct pf_placement *place;
static enum pf_ckpt_codec codec;

static int reshard(struct pf_comm *comm, const char *dst, bool resume)
{
    const struct pf_reshard job = {.table = table,
                                   .place = place,
                                   .dst = dst,
                                   .dtype = PF_DTYPE_COUNT,
                                   .codec = codec,
                                   .max_memory = (size_t)1 << 30,
                                   .threads = 1,
                                   .resume = resume};
    struct pf_reshard_report report;
    struct pf_ckpt *src = NULL;
    int err = pf_ckpt_open(at("source"), &src);

    err = err ? err : pf_reshard_run(comm, src, &job, &report);
    pf_ckpt_free(src);
    return err;
}

/* All weights and first moments of the model, with values of no meaning, as one rank's files. */
static int save_source(void)
{
    static const enum pf_role roles[] = {PF_ROLE_WEIGHT, PF_ROLE_MOMENT1};
    const struct pf_ckpt_save save = {.output_dir = at("sources"), .step = 3};
    struct pf_ckpt_live *const live = pf_calloc_array(2 * (size_t)table->n_rows, sizeof *live);
    int64_t n = 0;

    for (int64_t i = 0; i < 2 * table->n_rows; i++) {
        const struct pf_tensor_row *const row = &table->rows[i / 2];
        if (row->tied_to >= 0) {
            continue;
        }
        struct pf_ckpt_live *const l = &live[n++];
        *l = (struct pf_ckpt_live){.name = row->name,
                                   .role = roles[i % 2],
                                   .dtype = PF_DTYPE_F32,
                                   .n_dims = row->n_dims,
                                   .box = {.n_dims = row->n_dims}};
        for (int d = 0; d < row->n_dims; d++) {
            l->shape[d] = l->box.hi[d] = row->shape[d];
        }
        const int64_t count = pf_box_count(&l->box);
        float *const values = pf_calloc_array((size_t)count, sizeof *values);
        for (int64_t e = 0; e < count; e++) {
            values[e] = (float)(i + 7 * e);
        }
        l->data = values;
    }
    const int err = pf_ckpt_save(NULL, &save, live, n, NULL);
    for (int64_t i = 0; i < n; i++) {
        pf_free(live[i].data);
    }
    pf_free(live);
    return err ? err : rename(at("sources/checkpoint-000003"), at("source"));
}

/* Nothing or all; where nothing, the work is gone on with, and the end is the same. */
static bool is_nothing_or_all(const char *root, int acknowledged)
{
    char *const dst = pf_path_join(root, "out/dst"), *const staging =
                                                         pf_path_join(root, "out/.staging-dst");
    bool good = true;

    if (!pf_path_exists(dst)) {
        good = acknowledged == 0 || wrong("what was acknowledged is gone");
        good = good && (reshard(NULL, dst, pf_path_exists(staging)) == 0 || wrong("not resumed"));
    }
    good = good && (same_dirs(dst, at("root/out/dst")) || wrong("something else is there"));
    good = good && (!pf_path_exists(staging) || wrong("the staging directory stays"));
    pf_free(dst);
    pf_free(staging);
    return good;
}

static void a_change_of_layout(const char *name)
{
    begin_recording();
    const int err = reshard(world, at("root/out/dst"), false);
    acknowledge(1);
    read_log();
    all_ok(err == 0, "a change of layout is recorded (%s)", name);
    const int64_t n = check_states(is_nothing_or_all, n_tries());
    all_ok(n_wrong == 0 && n > n_ops,
           "each of %lld states at %lld operations is nothing or all, and leads to the same end",
           (long long)n, (long long)n_ops);
    forget_log();
}

/* An export --------------------------------------------------------------------------------------
 */

static int export_to(const char *dir)
{
    struct small_state s;

    small_state_make(&s, 1, 0, 1);
    return pf_hf_write(dir, s.live, SMALL_N_LIVE, PF_DTYPE_COUNT, "{\"model_type\":\"llama\"}",
                       at("companions"), 200);
}

static bool is_no_export_or_all(const char *root, int acknowledged)
{
    char *const dir = pf_path_join(root, "models/hf");
    bool good = true;

    if (!pf_path_exists(dir)) {
        good = acknowledged == 0 || wrong("an export that was acknowledged is gone");
        good = good && (export_to(dir) == 0 || wrong("no further export"));
    }
    good = good && (same_dirs(dir, at("root/models/hf")) || wrong("something else is there"));
    pf_free(dir);
    return good;
}

static void an_export(void)
{
    int err = 0;

    if (rank == 0) {
        (void)pf_mkdirs(at("companions"));
        put_text(at("companions/tokenizer.json"), "{}");
    }
    begin_recording();
    err = rank == 0 ? export_to(at("root/models/hf")) : 0;
    acknowledge(1);
    read_log();
    all_ok(err == 0, "an export is recorded");
    const int64_t n = check_states(is_no_export_or_all, n_tries());
    all_ok(n_wrong == 0 && n > n_ops,
           "each of %lld states at %lld operations is nothing or all of it", (long long)n,
           (long long)n_ops);
    forget_log();
}

/* A repair ---------------------------------------------------------------------------------------
 */

#define STEP "run/checkpoint-000001"
#define LOST STEP "/optim-00000.safetensors"

/* Nothing is damaged, and nothing there that does not belong there. */
static bool is_whole(const char *dir)
{
    struct pf_ckpt_fault *faults = NULL;
    int64_t n = -1;
    const bool whole = pf_ckpt_verify(dir, &faults, &n) == 0 && n == 0;

    pf_ckpt_faults_free(faults, n > 0 ? n : 0);
    return whole;
}

/* One file is lost once the save was acknowledged; at any instant it can be restored. */
static bool can_be_repaired(const char *root, int acknowledged)
{
    char *const dir = pf_path_join(root, STEP);
    char *restored = NULL;
    bool good = true;

    if (acknowledged > 0) {
        good = acknowledged < 2 || is_whole(dir) || wrong("what was repaired is not whole");
        good = good && (pf_ckpt_repair(dir, &restored) == 0 || wrong("it cannot be repaired"));
        good = good && (same_dirs(dir, at("root/" STEP)) || wrong("repaired, it differs"));
    }
    pf_free(restored);
    pf_free(dir);
    return good;
}

static void a_repair(void)
{
    char *restored = NULL;
    const struct pf_ckpt_save save = {.output_dir = at("root/run"), .step = 1, .parity = true};

    begin_recording();
    int err = small_state_save_as(world, &save, 1);
    acknowledge(1);
    if (rank == 0 && !err) {
        (void)unlink(at("root/" LOST));
        err = pf_fsync_path(at("root/" STEP));
        err = err ? err : pf_ckpt_repair(at("root/" STEP), &restored);
    }
    acknowledge(2);
    read_log();
    all_ok(err == 0 && (rank != 0 || restored), "a repair is recorded");
    pf_free(restored);
    const int64_t n = check_states(can_be_repaired, n_tries());
    all_ok(n_wrong == 0 && n > n_ops, "each of %lld states at %lld operations can be repaired",
           (long long)n, (long long)n_ops);
    forget_log();
}

static int layout(const char *text)
{
    struct pf_model_spec spec = fixture_spec("llama-tied", "config.json");
    struct pf_parallel par;
    struct pf_mesh mesh;

    spec.vocab_size = 24;
    PF_TRY(pf_parallel_parse(text, &par));
    PF_TRY(pf_parallel_resolve(&par, &spec, 0, &mesh));
    PF_TRY(pf_table_new(&spec, &mesh, &table));
    return pf_placement_new(table, &par, &place);
}

int main(int argc, char **argv)
{
    const bool recorded = preloaded(argv, "recorder");

    jobs_begin(argc, argv);
    pf_log_set_level(PF_LOG_ERROR); /* files that are made again are told by warnings */
    if (recorded) {
        const int err = layout("tp=2,sharding=2");
        all_ok(err == 0 && (rank != 0 || save_source() == 0), "a source is saved");
        a_change_of_layout("plain");
        codec = PF_CKPT_ZSTD;
        if (pf_planes_is_built() && pf_comm_size(world) == 1) {
            a_change_of_layout("compressed");
        }
        an_export();
        a_repair();
        pf_placement_free(place);
        pf_table_free(table);
    } else if (rank == 0) {
        skip("states after a loss of power",
             "a preloaded library and the sanitizer do not go together");
    }
    return jobs_end();
}
