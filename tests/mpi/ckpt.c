/* SPDX-License-Identifier: Apache-2.0 */
/* ranks: 1 2 3 */
/*
 * Checkpoints of many ranks: a piece that several hold is written once, the work is spread, what is in
 * the checkpoint does not depend on how many ranks wrote it, and a rank that fails fails the save
 * for all and leaves what was.
 */
#include <pf/ckpt.h>
#include <pf/error.h>

#include "scratch.h"
#include "world.h"

static int size;

static void share_scratch(void)
{
    if (rank == 0) {
        scratch_make();
    }
    if (pf_comm_broadcast(world, scratch_dir, sizeof scratch_dir, 0) != 0) {
        exit(6);
    }
}

/* State -------------------------------------------------------------------------------------------
 */

#define N_WEIGHTS 7
#define ROWS 8
#define COLS 5
#define COUNT (ROWS * COLS)

/* Weights that every rank holds whole; moments of which each rank holds a range; a matrix cut by
 * rows. Values follow from the place alone. */
struct state {
    float weight[N_WEIGHTS][COUNT], moment[COUNT], rows[COUNT];
    char name[N_WEIGHTS][32];
    struct pf_ckpt_live live[N_WEIGHTS + 2];
};

static int share(int n, int r)
{
    return n * r / size;
}

static void describe(struct state *s)
{
    for (int i = 0; i < N_WEIGHTS + 2; i++) {
        struct pf_ckpt_live *live = &s->live[i];
        *live = (struct pf_ckpt_live){.dtype = PF_DTYPE_F32, .n_dims = 2, .shape = {ROWS, COLS}};
        live->box = (struct pf_box){.n_dims = 2, .hi = {ROWS, COLS}};
    }
    for (int i = 0; i < N_WEIGHTS; i++) {
        snprintf(s->name[i], sizeof s->name[i], "w%d", i);
        s->live[i].name = s->name[i];
        s->live[i].data = s->weight[i];
        s->live[i].box.hi[0] = s->live[i].shape[0] = i + 1; /* of different sizes */
    }
    struct pf_ckpt_live *moment = &s->live[N_WEIGHTS], *rows = moment + 1;
    moment->name = "w0";
    moment->role = PF_ROLE_MOMENT1;
    moment->range_lo = share(COUNT, rank);
    moment->range_hi = share(COUNT, rank + 1);
    moment->data = s->moment;
    rows->name = "rows";
    rows->box.lo[0] = share(ROWS, rank);
    rows->box.hi[0] = share(ROWS, rank + 1);
    rows->data = s->rows;
}

static void fill(struct state *s, float base)
{
    for (int i = 0; i < N_WEIGHTS; i++) {
        for (int e = 0; e < COUNT; e++) {
            s->weight[i][e] = base + (float)(100 * i + e);
        }
    }
    for (int e = 0; e < COUNT; e++) {
        s->moment[e] = base + (float)(share(COUNT, rank) + e);
        s->rows[e] = base + (float)(share(ROWS, rank) * COLS + e);
    }
}

static int save(const char *dir, int64_t step, const struct pf_ckpt_live *live)
{
    const struct pf_ckpt_save options = {
        .output_dir = dir, .step = step, .state_json = "{\"position\":1}"};

    return pf_ckpt_save(world, &options, live, N_WEIGHTS + 2, NULL);
}

/* Claims ------------------------------------------------------------------------------------------
 */

static void each_piece_is_written_once(void)
{
    struct state s;
    struct pf_ckpt *ckpt = NULL;
    struct pf_ckpt_saved saved = {0};
    const struct pf_ckpt_save options = {.output_dir = at("once"), .step = 1};
    uint64_t lo = UINT64_MAX, hi = 0, total = 0;
    int64_t pieces = 0;

    describe(&s);
    fill(&s, 0);
    all_ok(pf_ckpt_save(world, &options, s.live, N_WEIGHTS + 2, &saved) == 0, "all ranks save");
    all_ok(pf_ckpt_open(at("once"), &ckpt) == 0, "all ranks open it");
    for (int64_t i = 0; ckpt && i < ckpt->n_tensors; i++) {
        pieces += ckpt->tensors[i].n_pieces;
    }
    all_ok(pieces == N_WEIGHTS + 2 * size,
           "whole weights have one piece, slices one for each rank");
    for (int64_t i = 0; ckpt && i < ckpt->n_files; i++) {
        const uint64_t bytes = ckpt->files[i].bytes;
        total += bytes;
        if (pf_str_starts_with(ckpt->files[i].name, "weights")) {
            lo = bytes < lo ? bytes : lo;
            hi = bytes > hi ? bytes : hi;
        }
    }
    all_ok(ckpt && ckpt->n_files == 2 * size, "every rank writes a file of weights and of moments");
    all_ok(saved.bytes == total, "all ranks know the bytes written");
    /* 28 rows of weights and 8 of rows: no rank is more than the largest weight above another. */
    all_ok(hi - lo <= 7 * COLS * sizeof(float) + 300, "and the work is spread");
    pf_ckpt_free(ckpt);
}

static void other_ranks_find_the_same(void)
{
    struct state s, got;
    struct pf_ckpt *many = NULL, *one = NULL;
    bool same = true;

    describe(&s);
    fill(&s, 7);
    all_ok(save(at("many"), 3, s.live) == 0, "a state is saved by all");
    /* The same state, put together by hand and saved by rank 0 alone. */
    if (rank == 0) {
        struct state all = s;
        for (int i = 0; i < N_WEIGHTS + 2; i++) {
            all.live[i].box.lo[0] = 0;
            all.live[i].box.hi[0] = all.live[i].shape[0];
            all.live[i].range_lo = all.live[i].range_hi = 0;
        }
        all.live[N_WEIGHTS].data = all.moment;
        all.live[N_WEIGHTS + 1].data = all.rows;
        for (int e = 0; e < COUNT; e++) {
            all.moment[e] = all.rows[e] = 7 + (float)e;
        }
        const struct pf_ckpt_save options = {
            .output_dir = at("one"), .step = 3, .state_json = "{\"position\":1}"};
        same = pf_ckpt_save(NULL, &options, all.live, N_WEIGHTS + 2, NULL) == 0;
    }
    all_ok(same, "and by one");
    same = pf_ckpt_open(at("many"), &many) == 0 && pf_ckpt_open(at("one"), &one) == 0 &&
           many->n_tensors == one->n_tensors && strcmp(many->state_json, one->state_json) == 0;
    for (int64_t i = 0; same && i < one->n_tensors; i++) {
        char x[33] = "x", y[33] = "y";
        same = pf_ckpt_tensor_digest(one, &one->tensors[i], x) == 0 &&
               pf_ckpt_tensor_digest(many, &many->tensors[i], y) == 0 && strcmp(x, y) == 0;
    }
    all_ok(same, "digests do not depend on the number of ranks");

    describe(&got);
    memset(got.weight, 0, sizeof got.weight);
    memset(got.moment, 0, sizeof got.moment);
    memset(got.rows, 0, sizeof got.rows);
    const int err = one ? pf_ckpt_load(world, one, got.live, N_WEIGHTS + 2, true) : PF_EIO;
    same = err == 0 && memcmp(got.weight[6], s.weight[6], sizeof(float) * 7 * COLS) == 0 &&
           memcmp(got.moment, s.moment,
                  sizeof(float) * (size_t)(share(COUNT, rank + 1) - share(COUNT, rank))) == 0;
    all_ok(same, "many ranks load what one rank wrote");
    pf_ckpt_free(many);
    pf_ckpt_free(one);
}

/* This rank's rows of every tensor of a directory, as live state that owns its bytes. */
static struct pf_ckpt_live *read_rows(const struct pf_ckpt *hf, bool all, int *err_out)
{
    struct pf_ckpt_live *live = pf_calloc_array((size_t)hf->n_tensors, sizeof *live);

    for (int64_t i = 0; i < hf->n_tensors; i++) {
        const struct pf_ckpt_tensor *t = &hf->tensors[i];
        live[i] = (struct pf_ckpt_live){
            .name = t->name, .role = t->role, .dtype = t->dtype, .n_dims = t->n_dims};
        memcpy(live[i].shape, t->shape, sizeof t->shape);
        live[i].box = pf_ckpt_whole(t);
        if (!all) {
            live[i].box.lo[0] = share((int)t->shape[0], rank);
            live[i].box.hi[0] = share((int)t->shape[0], rank + 1);
        }
        live[i].data = pf_alloc((size_t)pf_box_count(&live[i].box) * pf_dtype_bytes(t->dtype));
        *err_out |= pf_ckpt_read_box(hf, t, &live[i].box, t->dtype, live[i].data);
    }
    return live;
}

static void free_rows(struct pf_ckpt_live *live, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        pf_free(live[i].data);
    }
    pf_free(live);
}

static bool files_equal(const char *a, const char *b)
{
    size_t n, m;
    char *x = get(a, &n), *y = get(b, &m);
    const bool equal = n == m && memcmp(x, y, n) == 0;

    pf_free(x);
    pf_free(y);
    return equal;
}

static void r14_hugging_face_through_ranks_and_back(void)
{
    const char *fixture = "tests/fixtures/hf/qwen3";
    struct pf_ckpt *hf = NULL, *many = NULL;
    int err = pf_ckpt_open(fixture, &hf);
    struct pf_ckpt_live *live = err ? NULL : read_rows(hf, false, &err);
    const struct pf_ckpt_save options = {.output_dir = at("r14"), .step = 0};

    all_ok(err == 0, "each rank reads its rows of a Hugging Face directory");
    all_ok(pf_ckpt_save(world, &options, live, hf->n_tensors, NULL) == 0, "the ranks save them");
    free_rows(live, hf->n_tensors);
    all_ok(pf_ckpt_open(at("r14"), &many) == 0 && many->n_tensors == hf->n_tensors, "it opens");
    if (rank == 0) {
        live = read_rows(many, true, &err);
        err = err ? err
                  : pf_hf_write(at("back"), live, many->n_tensors, PF_DTYPE_F32, hf->config_json,
                                NULL, 0);
        free_rows(live, many->n_tensors);
    }
    all_ok(err == 0, "and is written as a Hugging Face directory again");
    all_ok(rank != 0 || files_equal("tests/fixtures/hf/qwen3/model.safetensors",
                                    at("back/model.safetensors")),
           "of which every byte is as it was");
    pf_ckpt_free(many);
    pf_ckpt_free(hf);
}

/* Bytes that this process has read by system calls; 0 where the system does not tell. */
static uint64_t bytes_read(void)
{
    FILE *f = fopen("/proc/self/io", "r");
    unsigned long long n = 0;

    if (!f || fscanf(f, "rchar: %llu", &n) != 1) {
        n = 0;
    }
    if (f) {
        fclose(f);
    }
    return n;
}

#define LARGE 700001 /* elements, more than a chunk of the loader, and no multiple of one */

/* Every rank wants all of a, by halves from different places, and a slice of b. */
static void r2_each_file_is_read_once(void)
{
    float *a = pf_alloc(LARGE * sizeof *a), *b = pf_alloc(LARGE * sizeof *b);
    const int64_t lo = share(LARGE, rank), hi = share(LARGE, rank + 1);
    struct pf_ckpt_live live[2] = {
        {.name = "a", .dtype = PF_DTYPE_F32, .n_dims = 1, .shape = {LARGE}, .data = a},
        {.name = "b", .dtype = PF_DTYPE_F32, .n_dims = 1, .shape = {LARGE}, .data = b + lo},
    };
    const struct pf_ckpt_save options = {.output_dir = at("large"), .step = 1};
    struct pf_ckpt *ckpt = NULL;
    bool same = true;

    for (int i = 0; i < 2; i++) {
        live[i].box = (struct pf_box){.n_dims = 1, .hi = {LARGE}};
    }
    live[1].box = (struct pf_box){.n_dims = 1, .lo = {lo}, .hi = {hi}};
    for (int64_t i = 0; i < LARGE; i++) {
        a[i] = (float)i;
        b[i] = -(float)i;
    }
    all_ok(pf_ckpt_save(world, &options, live, 2, NULL) == 0, "two long tensors are saved");
    all_ok(pf_ckpt_open(at("large"), &ckpt) == 0, "and opened");
    memset(a, 0, LARGE * sizeof *a);
    memset(b, 0, LARGE * sizeof *b);
    /* b in other parts than it was saved in */
    const int64_t from = share(LARGE, size - 1 - rank) / 2;
    live[1].box = (struct pf_box){.n_dims = 1, .lo = {from}, .hi = {LARGE - from}};
    live[1].data = b + from;
    uint64_t n = bytes_read();
    all_ok(pf_ckpt_load(world, ckpt, live, 2, true) == 0, "and loaded in other parts");
    n = bytes_read() - n;
    for (int64_t i = 0; i < LARGE; i++) {
        same =
            same && a[i] == (float)i && b[i] == (i >= from && i < LARGE - from ? -(float)i : 0.f);
    }
    all_ok(same, "r2_each_file_is_read_once: every element is where it belongs");
    const int err = pf_comm_all_reduce(world, &n, 1, PF_COMM_U64, PF_COMM_SUM);
    all_ok(err == 0 && (n == 0 || n < 2 * LARGE * sizeof *a + 100000),
           "r2_each_file_is_read_once: all ranks together read the files once");
    pf_ckpt_free(ckpt);
    pf_free(a);
    pf_free(b);
}

/* The last rank fails; every rank gets the code, and nothing is left. */
static void fails(const char *dir, int code, const struct state *s, const char *claim)
{
    char *path = NULL;
    const int err = save(dir, 2, s->live);
    bool holds = err == code && pf_error_message()[0] != '\0';

    holds = holds && pf_ckpt_latest(dir, &path) == 0 && path &&
            strcmp(pf_path_base(path), "checkpoint-000001") == 0;
    holds = holds && !pf_path_exists(at("fail/.staging-checkpoint-000002")) &&
            !pf_path_exists(at("fail/checkpoint-000002"));
    all_ok(holds, "%s", claim);
    pf_free(path);
}

static void one_failure_is_everybodys(void)
{
    struct state s;

    describe(&s);
    fill(&s, 1);
    all_ok(save(at("fail"), 1, s.live) == 0, "a first save is good");
    if (rank == size - 1) {
        s.live[N_WEIGHTS].range_hi--;
    }
    fails(at("fail"), PF_EINVAL, &s, "a hole on one rank");
    describe(&s);
    if (rank == size - 1) {
        s.live[N_WEIGHTS + 1].box.hi[0]++;
    }
    fails(at("fail"), PF_EINVAL, &s, "a box outside its tensor on one rank");
    describe(&s);
    if (size > 1) {
        s.live[2].dtype = rank == size - 1 ? PF_DTYPE_I32 : PF_DTYPE_F32;
        fails(at("fail"), PF_EDISAGREE, &s, "another dtype on one rank");
        describe(&s);
    }
    all_ok(save(at("fail"), 2, s.live) == 0, "and the next good save goes through");
    all_ok(save(at("fail"), 2, s.live) == PF_EREFUSED, "once");

    struct pf_ckpt *ckpt = NULL;
    all_ok(pf_ckpt_open(at("fail"), &ckpt) == 0, "it opens");
    s.live[3].name = rank == size - 1 ? "nobody" : "w3";
    all_ok(pf_ckpt_load(world, ckpt, s.live, N_WEIGHTS + 2, false) == PF_EINCOMPLETE,
           "a tensor that one rank misses fails the load of all");
    pf_ckpt_free(ckpt);
}

static void damage_is_found_by_the_rank_that_hashes(void)
{
    struct state s;
    struct pf_ckpt *ckpt = NULL;

    describe(&s);
    all_ok(save(at("damage"), 1, s.live) == 0, "a state is saved");
    if (rank == 0) {
        char *path = pf_strdup(at("damage/checkpoint-000001/weights-%05d.safetensors", size - 1));
        size_t n;
        char *data = get(path, &n);
        data[n - 1] ^= 1;
        put(path, data, n);
        pf_free(data);
        pf_free(path);
    }
    (void)pf_comm_barrier(world);
    all_ok(pf_ckpt_open(at("damage"), &ckpt) == 0, "a flipped weight does not stop an open");
    all_ok(pf_ckpt_load(world, ckpt, s.live, N_WEIGHTS + 2, true) == PF_EFORMAT,
           "but a load with digests, on every rank");
    pf_ckpt_free(ckpt);
}

int main(int argc, char **argv)
{
    world_begin(argc, argv);
    size = pf_comm_size(world);
    share_scratch();
    each_piece_is_written_once();
    other_ranks_find_the_same();
    r14_hugging_face_through_ranks_and_back();
    r2_each_file_is_read_once();
    one_failure_is_everybodys();
    damage_is_found_by_the_rank_that_hashes();
    (void)pf_comm_barrier(world);
    int status = 0;
    if (rank == 0) {
        scratch_remove();
        status = done();
    }
    return pf_comm_finalize(world) != 0 ? 6 : status;
}
