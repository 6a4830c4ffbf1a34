/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The native checkpoint on one process: what is saved is what is loaded, whatever the pieces; no bit
 * of it can change unseen; a commit is all or nothing; the newest whole one is found.
 */
#include <pf/ckpt.h>
#include <pf/digest.h>
#include <pf/error.h>

#include "scratch.h"
#include "tap.h"

#include <math.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>

/* Live state --------------------------------------------------------------------------------------
 */

#define N_LIVE 6

struct state {
    float weight[6 * 4], moment1[6 * 4], moment2[6 * 4];
    uint16_t bias[5];
    int64_t count;
    struct pf_ckpt_live live[N_LIVE];
};

static struct pf_ckpt_live whole(const char *name, enum pf_role role, enum pf_dtype dtype,
                                 int n_dims, const int64_t *shape, void *data)
{
    struct pf_ckpt_live live = {
        .name = name, .role = role, .dtype = dtype, .n_dims = n_dims, .data = data};

    live.box.n_dims = n_dims;
    for (int d = 0; d < n_dims; d++) {
        live.shape[d] = live.box.hi[d] = shape[d];
    }
    return live;
}

/* A weight whose moments are cut in two ranges and two boxes, a bias, a scalar, an empty tensor. */
static void make_state(struct state *s, int seed)
{
    const int64_t matrix[2] = {6, 4};

    for (int i = 0; i < 24; i++) {
        s->weight[i] = (float)(seed + i);
        s->moment1[i] = (float)(1000 + seed + i);
        s->moment2[i] = (float)(2000 + seed + i);
    }
    for (int i = 0; i < 5; i++) {
        s->bias[i] = (uint16_t)(0x7f80 + seed + i); /* NaN payloads must survive */
    }
    s->count = seed;
    s->live[0] = whole("m.w", PF_ROLE_WEIGHT, PF_DTYPE_F32, 2, matrix, s->weight);
    s->live[1] = whole("m.b", PF_ROLE_WEIGHT, PF_DTYPE_BF16, 1, (int64_t[]){5}, s->bias);
    s->live[2] = whole("m.w", PF_ROLE_MOMENT1, PF_DTYPE_F32, 2, matrix, s->moment1);
    s->live[2].range_hi = 9;
    s->live[3] = whole("m.w", PF_ROLE_MOMENT1, PF_DTYPE_F32, 2, matrix, s->moment1 + 9);
    s->live[3].range_lo = 9;
    s->live[3].range_hi = 24;
    s->live[4] = whole("m.w", PF_ROLE_MOMENT2, PF_DTYPE_F32, 2, matrix, s->moment2);
    s->live[5] = whole("n", PF_ROLE_SCALAR, PF_DTYPE_I64, 0, NULL, &s->count);
}

static int save_to(const char *dir, int64_t step, const struct pf_ckpt_live *live, int64_t n,
                   int limit)
{
    const struct pf_ckpt_save save = {.output_dir = dir,
                                      .step = step,
                                      .config_json = "{\"model_type\": \"gpt2\", \"n\": 1.50}",
                                      .run_json = "{\"seed\": 18446744073709551615}",
                                      .state_json = "{\"position\": 7}",
                                      .mesh_json = "{\"dp\": 1}",
                                      .total_limit = limit};

    return pf_ckpt_save(NULL, &save, live, n, NULL);
}

static int save_step(const char *dir, int64_t step, int limit)
{
    struct state s;

    make_state(&s, (int)step);
    return save_to(dir, step, s.live, N_LIVE, limit);
}

static bool state_equal(const struct state *a, const struct state *b)
{
    return memcmp(a->weight, b->weight, sizeof a->weight) == 0 &&
           memcmp(a->moment1, b->moment1, sizeof a->moment1) == 0 &&
           memcmp(a->moment2, b->moment2, sizeof a->moment2) == 0 &&
           memcmp(a->bias, b->bias, sizeof a->bias) == 0 && a->count == b->count;
}

static void what_is_saved_is_loaded(void)
{
    struct pf_ckpt_saved saved = {0};
    struct state s, got;
    struct pf_ckpt *ckpt = NULL;
    const struct pf_ckpt_save save = {.output_dir = at("run/deep"), .step = 12};

    make_state(&s, 3);
    ok(pf_ckpt_save(NULL, &save, s.live, N_LIVE, &saved) == 0,
       "a first save makes its directories");
    ok(saved.bytes > 4 * 24 * 3 + 10 + 8, "the bytes written are counted");
    ok(pf_path_exists(at("run/deep/latest")), "latest is there");
    ok(save_step(at("run/deep"), 1234567, 0) == 0, "a step of seven digits is saved");
    ok(pf_ckpt_open(at("run/deep"), &ckpt) == 0 && ckpt->step == 1234567 &&
           strstr(ckpt->dir, "checkpoint-1234567"),
       "a run directory opens as its newest checkpoint");
    ok(ckpt && strcmp(ckpt->format, "pf") == 0 && ckpt->n_tensors == 5 && ckpt->n_files == 2 &&
           strlen(ckpt->digest) == 32 && strlen(ckpt->previous) == 32,
       "tensors, files and the predecessor are read back");
    ok(ckpt && strcmp(ckpt->config_json, "{\"model_type\":\"gpt2\",\"n\":1.50}") == 0 &&
           strcmp(ckpt->run_json, "{\"seed\":18446744073709551615}") == 0 &&
           strcmp(ckpt->state_json, "{\"position\":7}") == 0 &&
           strcmp(ckpt->mesh_json, "{\"dp\":1}") == 0,
       "JSON comes back with every digit");
    pf_ckpt_free(ckpt);
    ok(pf_ckpt_open(at("run/deep/checkpoint-000012"), &ckpt) == 0,
       "a checkpoint opens by its name");
    memset(&got, 0, sizeof got);
    make_state(&got, 99);
    ok(pf_ckpt_load(NULL, ckpt, got.live, N_LIVE, true) == 0 && state_equal(&s, &got),
       "every bit is loaded, NaN payloads too");
    pf_ckpt_free(ckpt);
}

static void loading_may_cut_differently(void)
{
    struct state s, got;
    struct pf_ckpt *ckpt = NULL;
    double wide[24];
    bool equal = true;

    make_state(&s, 5);
    ok(save_to(at("cut"), 1, s.live, N_LIVE, 0) == 0 && pf_ckpt_open(at("cut"), &ckpt) == 0,
       "a state with ranges is saved");
    make_state(&got, 6);
    got.live[2].range_hi = 14; /* saved 0..9, 9..24; loaded 0..14, 14..24 */
    got.live[3].range_lo = 14;
    got.live[3].data = got.moment1 + 14;
    ok(pf_ckpt_load(NULL, ckpt, got.live, N_LIVE, false) == 0 && state_equal(&s, &got),
       "ranges load into other ranges");
    struct pf_ckpt_live live =
        whole("m.w", PF_ROLE_MOMENT1, PF_DTYPE_F64, 2, (int64_t[]){6, 4}, wide);
    ok(pf_ckpt_load(NULL, ckpt, &live, 1, false) == 0, "F32 loads as F64");
    for (int i = 0; i < 24; i++) {
        equal = equal && wide[i] == (double)s.moment1[i];
    }
    ok(equal, "with the same values");

    live.name = "m.none";
    ok(pf_ckpt_load(NULL, ckpt, &live, 1, false) == PF_EINCOMPLETE &&
           strstr(pf_error_message(), "m.none"),
       "a tensor that is not there is named: %s", pf_error_message());
    live = whole("m.w", PF_ROLE_MOMENT1, PF_DTYPE_F32, 2, (int64_t[]){4, 6}, wide);
    ok(pf_ckpt_load(NULL, ckpt, &live, 1, false) == PF_EINVAL, "another shape is refused: %s",
       pf_error_message());
    live = whole("n", PF_ROLE_SCALAR, PF_DTYPE_F32, 0, NULL, wide);
    ok(pf_ckpt_load(NULL, ckpt, &live, 1, false) == PF_ENOTSUP, "an integer is never cast: %s",
       pf_error_message());
    pf_ckpt_free(ckpt);
}

/* Proofs come first on every tensor: what cannot be loaded whole is not begun. */
static void r7_a_load_that_fails_moves_nothing(void)
{
    struct state s, got, before;
    struct pf_ckpt *ckpt = NULL;
    size_t n;

    make_state(&s, 5);
    ok(save_to(at("r7"), 1, s.live, N_LIVE, 0) == 0 && pf_ckpt_open(at("r7"), &ckpt) == 0,
       "a state is saved");
    make_state(&got, 6);
    make_state(&before, 6);
    got.live[N_LIVE - 1].name = "absent";
    ok(pf_ckpt_load(NULL, ckpt, got.live, N_LIVE, true) == PF_EINCOMPLETE &&
           state_equal(&got, &before),
       "a tensor that is absent stops the load before the first byte");
    got.live[N_LIVE - 1].name = "n";
    char *path = pf_strdup(at("r7/checkpoint-000001/optim-00000.safetensors"));
    char *data = get(path, &n);
    data[n - 1] ^= 1;
    put(path, data, n);
    ok(pf_ckpt_load(NULL, ckpt, got.live, N_LIVE, true) == PF_EFORMAT &&
           strstr(pf_error_message(), "optim-00000.safetensors' was changed"),
       "a changed bit fails the load: %s", pf_error_message());
    pf_free(path);
    pf_free(data);
    pf_ckpt_free(ckpt);
}

/* Boxes -------------------------------------------------------------------------------------------
 */

#define D0 5
#define D1 7
#define D2 6
#define CUBE (D0 * D1 * D2)

/* Cut the cube at random into boxes, and some of them into ranges; element = its index. */
static int64_t random_live(unsigned *seed, float *store, struct pf_ckpt_live *live)
{
    const int64_t shape[3] = {D0, D1, D2};
    int64_t n = 1, used = 0;

    live[0] = whole("cube", PF_ROLE_WEIGHT, PF_DTYPE_F32, 3, shape, NULL);
    for (int cuts = rand_r(seed) % 6; cuts > 0; cuts--) {
        struct pf_ckpt_live *from = &live[rand_r(seed) % n];
        const int d = rand_r(seed) % 3;
        const int64_t extent = from->box.hi[d] - from->box.lo[d];
        const int64_t where = from->box.lo[d] + rand_r(seed) % (extent + 1);
        live[n] = *from;
        live[n++].box.lo[d] = where;
        from->box.hi[d] = where;
    }
    for (int64_t i = 0, boxes = n; i < boxes; i++) {
        const int64_t count = pf_box_count(&live[i].box);
        if (count > 1 && rand_r(seed) % 2) {
            live[n] = live[i];
            live[i].range_hi = live[n].range_lo = 1 + rand_r(seed) % (count - 1);
            live[n++].range_hi = count;
        }
    }
    for (int64_t i = 0; i < n; i++) {
        const struct pf_box *b = &live[i].box;
        const int64_t lo = live[i].range_lo,
                      hi = live[i].range_hi ? live[i].range_hi : pf_box_count(b);
        live[i].data = store + used;
        for (int64_t e = lo; e < hi; e++) {
            const int64_t e2 = b->hi[2] - b->lo[2], e1 = b->hi[1] - b->lo[1];
            const int64_t x = b->lo[0] + e / (e1 * e2), y = b->lo[1] + e / e2 % e1;
            store[used++] = (float)((x * D1 + y) * D2 + b->lo[2] + e % e2);
        }
    }
    return n;
}

static bool box_is_right(const struct pf_ckpt *ckpt, unsigned *seed)
{
    const struct pf_ckpt_tensor *t = pf_ckpt_find(ckpt, "cube", PF_ROLE_WEIGHT);
    struct pf_box box = pf_ckpt_whole(t);
    double got[CUBE];
    int64_t i = 0;

    for (int d = 0; d < 3; d++) {
        box.lo[d] = rand_r(seed) % (t->shape[d] + 1);
        box.hi[d] = box.lo[d] + rand_r(seed) % (t->shape[d] - box.lo[d] + 1);
    }
    if (pf_ckpt_read_box(ckpt, t, &box, PF_DTYPE_F64, got) != 0) {
        return false;
    }
    for (int64_t x = box.lo[0]; x < box.hi[0]; x++) {
        for (int64_t y = box.lo[1]; y < box.hi[1]; y++) {
            for (int64_t z = box.lo[2]; z < box.hi[2]; z++) {
                if (got[i++] != (double)((x * D1 + y) * D2 + z)) {
                    return false;
                }
            }
        }
    }
    return true;
}

static void any_cut_reads_as_any_box(void)
{
    unsigned seed = 7;
    int wrong = 0, digests = 0;
    char first[33] = "", hex[33];

    for (int round = 0; round < 25; round++) {
        struct pf_ckpt_live live[16];
        struct pf_ckpt *ckpt = NULL;
        float store[CUBE];
        const int64_t n = random_live(&seed, store, live);
        if (save_to(at("cube"), round, live, n, 1) != 0 || pf_ckpt_open(at("cube"), &ckpt) != 0) {
            printf("# %s\n", pf_error_message());
            wrong++;
            continue;
        }
        for (int i = 0; i < 30; i++) {
            wrong += !box_is_right(ckpt, &seed);
        }
        wrong += pf_ckpt_tensor_digest(ckpt, &ckpt->tensors[0], hex) != 0;
        memcpy(first, first[0] ? first : hex, sizeof first);
        digests += strcmp(first, hex) == 0;
        pf_ckpt_free(ckpt);
    }
    ok(wrong == 0, "25 random cuts, 30 random boxes of each, read as F64: %d wrong", wrong);
    ok(digests == 25, "the digest of a tensor does not depend on its pieces");
}

static void columns_of_a_large_tensor(void)
{
    enum { ROWS = 1100, COLS = 900 };
    float *data = pf_alloc((size_t)ROWS * COLS * sizeof *data);
    uint16_t *column = pf_alloc((size_t)ROWS * 300 * sizeof *column);
    struct pf_ckpt_live live =
        whole("large", PF_ROLE_WEIGHT, PF_DTYPE_F32, 2, (int64_t[]){ROWS, COLS}, data);
    struct pf_ckpt *ckpt = NULL;
    int wrong = 0;

    for (int i = 0; i < ROWS * COLS; i++) {
        data[i] = (float)(i % 251);
    }
    ok(save_to(at("large"), 1, &live, 1, 0) == 0 && pf_ckpt_open(at("large"), &ckpt) == 0,
       "a tensor larger than every buffer is saved");
    for (int64_t lo = 0; lo < COLS; lo += 300) {
        struct pf_box box = {.n_dims = 2, .lo = {0, lo}, .hi = {ROWS, lo + 300}};
        wrong += pf_ckpt_read_box(ckpt, &ckpt->tensors[0], &box, PF_DTYPE_BF16, column) != 0;
        for (int64_t i = 0; i < ROWS * 300; i++) {
            const float want = data[i / 300 * COLS + lo + i % 300];
            wrong += pf_f32_from_bf16(column[i]) != want;
        }
    }
    struct pf_box all = pf_ckpt_whole(&ckpt->tensors[0]);
    float *again = pf_alloc((size_t)ROWS * COLS * sizeof *again);
    wrong += pf_ckpt_read_box(ckpt, &ckpt->tensors[0], &all, PF_DTYPE_F32, again) != 0 ||
             memcmp(again, data, (size_t)ROWS * COLS * sizeof *data) != 0;
    ok(wrong == 0, "its columns as BF16, and all of it, are right");
    pf_ckpt_free(ckpt);
    pf_free(again);
    pf_free(data);
    pf_free(column);
}

static void the_cover_is_proved_before_reading(void)
{
    struct pf_ckpt_piece pieces[2] = {
        {.box = {2, {0, 0}, {4, 2}}, .range_hi = 8},
        {.box = {2, {0, 2}, {4, 4}}, .range_hi = 8, .offset = 32},
    };
    char name[] = "t", raw_name[] = "raw";
    struct pf_ckpt_tensor tensor = {.name = name,
                                    .dtype = PF_DTYPE_F32,
                                    .n_dims = 2,
                                    .shape = {4, 4},
                                    .n_pieces = 2,
                                    .pieces = pieces};
    struct pf_ckpt_file file = {.name = raw_name, .bytes = 64};
    struct pf_ckpt ckpt = {
        .dir = scratch_dir, .tensors = &tensor, .n_tensors = 1, .files = &file, .n_files = 1};
    const struct pf_box all = pf_ckpt_whole(&tensor), left = {2, {0, 0}, {4, 2}};
    float raw[16], got[16];

    for (int i = 0; i < 16; i++) {
        raw[i] = (float)i;
    }
    put(at("raw"), raw, sizeof raw);
    ok(pf_ckpt_read_box(&ckpt, &tensor, &all, PF_DTYPE_F32, got) == 0 && got[2] == 8 && got[4] == 2,
       "two halves make a whole");
    pieces[1].range_lo = 3;
    got[0] = -1;
    ok(pf_ckpt_read_box(&ckpt, &tensor, &all, PF_DTYPE_F32, got) == PF_EFORMAT && got[0] == -1 &&
           strstr(pf_error_message(), "[0,2] of 't'"),
       "a hole is named and nothing is written: %s", pf_error_message());
    ok(pf_ckpt_read_box(&ckpt, &tensor, &left, PF_DTYPE_F32, got) == 0,
       "a hole elsewhere does not matter");
    pieces[1].range_lo = 0;
    pieces[0].box.hi[1] = 3;
    pieces[0].range_hi = 12;
    ok(pf_ckpt_read_box(&ckpt, &tensor, &all, PF_DTYPE_F32, got) == PF_EFORMAT &&
           strstr(pf_error_message(), "[0,2] of 't' (weight) is twice"),
       "an overlap is named: %s", pf_error_message());
    pieces[0].box.hi[1] = 2;
    pieces[0].range_hi = 8;
    pieces[1].offset = 36;
    ok(pf_ckpt_read_box(&ckpt, &tensor, &all, PF_DTYPE_F32, got) == PF_EFORMAT &&
           strstr(pf_error_message(), "ends"),
       "a file that is too short is an error, not zeros: %s", pf_error_message());
}

/* Damage ------------------------------------------------------------------------------------------
 */

/* How many faults verify finds, and notes; whether one of them is of this kind. -1: verify itself failed. */
static int64_t faults_of(const char *path, const char *kind, bool *found_out)
{
    struct pf_ckpt_fault *faults;
    int64_t n;

    *found_out = false;
    if (pf_ckpt_verify(path, &faults, &n) != 0) {
        return -1;
    }
    for (int64_t i = 0; i < n; i++) {
        *found_out |= kind && strcmp(faults[i].kind, kind) == 0;
    }
    pf_ckpt_faults_free(faults, n);
    return n;
}

static int64_t count_faults(const char *path)
{
    bool found;

    return faults_of(path, NULL, &found);
}

static void has_fault(const char *path, const char *kind, const char *claim)
{
    bool found;
    const int64_t n = faults_of(path, kind, &found);

    ok(found, "%s: '%s' among %lld faults", claim, kind, (long long)n);
}

static void no_change_goes_unseen(void)
{
    static const char *const files[] = {"manifest.json", "optim-00000.safetensors",
                                        "weights-00000.safetensors"};
    const char *dir = "flip/checkpoint-000001";

    ok(save_step(at("flip"), 1, 0) == 0 && count_faults(at("%s", dir)) == 0,
       "verify finds nothing in what was saved");
    for (int f = 0; f < 3; f++) {
        char *path = pf_strdup(at("%s/%s", dir, files[f]));
        int64_t unseen = 0, opened = 0;
        size_t n;
        char *data = get(path, &n);
        for (size_t i = 0; i < n; i++) {
            data[i] = (char)(data[i] ^ (1 << i % 8));
            put(path, data, n);
            unseen += count_faults(at("%s", dir)) == 0;
            struct pf_ckpt *ckpt = NULL;
            opened += f == 0 && pf_ckpt_open(at("%s", dir), &ckpt) == 0;
            pf_ckpt_free(ckpt);
            data[i] = (char)(data[i] ^ (1 << i % 8));
        }
        ok(unseen == 0, "each of %zu flips in %s is found", n, files[f]);
        ok(opened == 0, "a changed manifest does not open");
        for (size_t i = 0; i < n; i++) {
            put(path, data, i);
            unseen += count_faults(at("%s", dir)) == 0;
        }
        ok(unseen == 0, "each of %zu truncations of %s is found", n, files[f]);
        put(path, data, n);
        pf_free(data);
        pf_free(path);
    }
    ok(count_faults(at("%s", dir)) == 0, "restored, it is whole again");
}

/* Replace text in a manifest and give it a digest that fits. */
static void forge(const char *dir, const char *from, const char *to)
{
    char *path = pf_path_join(dir, "manifest.json"), hex[PF_DIGEST_HEX_BYTES];
    size_t n, i = 0;
    char *text = get(path, &n);
    struct pf_str s;

    while (i < n && strncmp(text + i, from, strlen(from)) != 0) {
        i++;
    }
    pf_str_init(&s);
    pf_str_append_bytes(&s, text, i);
    pf_str_append(&s, to);
    pf_str_append(&s, i < n ? text + i + strlen(from) : "");
    if (i < n) {
        const struct pf_digest digest = pf_digest_of(s.text, s.len - 58);
        memcpy(s.text + s.len - 58 + 22, pf_digest_hex(&digest, hex), 32);
        put(path, s.text, s.len);
    } else {
        ok(false, "the manifest has '%s'", from);
    }
    pf_str_release(&s);
    pf_free(text);
    pf_free(path);
}

static void lies_with_a_good_digest_are_found(void)
{
    static const struct {
        const char *from, *to, *kind;
    } lies[] = {
        {"\"range\":[0,9]", "\"range\":[0,8]", "hole"},
        {"\"range\":[0,9]", "\"range\":[0,10]", "overlap"},
        {"\"range\":[0,9]", "\"range\":[0,24]", "manifest"},
        {"\"range\":[0,9],", "", "piece"},
        {"\"box\":[[0,5]]", "\"box\":[[0,4]]", "hole"},
        {"\"box\":[[0,5]]", "\"box\":[[0,6]]", "manifest"},
        {"\"box\":[[0,5]]", "\"box\":[[0,5],[0,1]]", "manifest"},
        {"\"box\":[[0,5]]", "\"box\":[[3,2]]", "manifest"},
        {"\"shape\":[5]", "\"shape\":[6]", "hole"},
        {"\"shape\":[5]", "\"shape\":[5.5]", "manifest"},
        {"\"shape\":[5]", "\"shape\":[9223372036854775807,5]", "manifest"},
        {"\"BF16\"", "\"F16\"", "piece"},
        {"\"BF16\"", "\"bf16\"", "manifest"},
        {"\"role\":\"scalar\"", "\"role\":\"other\"", "manifest"},
        {"\"tensor\":\"m.b\"", "\"tensor\":\"m.w\"", "extra-entry"},
        {"\"tensor\":\"m.b\"", "\"tensor\":\"m.x\"", "piece"},
        {"\"name\":\"m.b\"", "\"name\":\"m.w\"", "duplicate"},
        {"\"step\": 1", "\"step\": 2", "manifest"},
        {"\"step\": 1", "\"step\": -1", "manifest"},
        {"\"schema\": 1", "\"schema\": 2", "unsupported"},
        {"pf-checkpoint", "pf-chequepoint", "manifest"},
        {"\"state\":", "\"State\":", "manifest"},
        {"\"mesh\": {", "\"more\": 1, \"mesh\": {", "manifest"},
        {"\"mesh\": {", "\"step\": 1, \"mesh\": {", "manifest"},
        {"[\n    {\"name\":\"optim-00000", "[\n    {\"name\":\"../ptim-00000", "unsafe-path"},
        {"[\n    {\"name\":\"optim-00000", "[\n    {\"name\":\"sub/im-00000", "unsafe-path"},
        {"\"bytes\":", "\"bytes\":1", "size"},
        {"\"xxh3_128\":\"", "\"xxh3_128\":\"x", "manifest"},
    };

    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        (void)pf_rmtree(at("lie"));
        (void)save_step(at("lie"), 1, 0);
        forge(at("lie/checkpoint-000001"), lies[i].from, lies[i].to);
        has_fault(at("lie"), lies[i].kind, lies[i].to);
        struct pf_ckpt *ckpt = NULL;
        const bool step_only = strstr(lies[i].to, "\"step\": 2") != NULL;
        ok((pf_ckpt_open(at("lie/checkpoint-000001"), &ckpt) != 0) == !step_only,
           "and open refuses it%s", step_only ? " not: names are not its matter" : "");
        pf_ckpt_free(ckpt);
    }
}

static void faults_are_all_listed(void)
{
    char *dir = pf_strdup(at("many/checkpoint-000001"));

    (void)save_step(at("many"), 1, 0);
    put_text(at("many/checkpoint-000001/notes.txt"), "hello");
    has_fault(dir, "extra-file", "a file that nobody lists");
    struct pf_ckpt_fault *notes = NULL;
    int64_t n_notes = 0;
    ok(pf_ckpt_verify(dir, &notes, &n_notes) == 0 && n_notes == 1 &&
           pf_ckpt_faults_count(notes, n_notes) == 0,
       "which is noted, and no fault");
    pf_ckpt_faults_free(notes, n_notes);
    (void)unlink(at("many/checkpoint-000001/weights-00000.safetensors"));
    has_fault(dir, "missing-file", "a file that is gone");
    struct pf_ckpt *ckpt = NULL;
    ok(pf_ckpt_open(dir, &ckpt) == PF_EINCOMPLETE, "which is incomplete: %s", pf_error_message());
    size_t n;
    char *data = get(at("many/checkpoint-000001/optim-00000.safetensors"), &n);
    data[n - 1]++;
    put(at("many/checkpoint-000001/optim-00000.safetensors"), data, n);
    pf_free(data);
    has_fault(at("many"), "digest", "a changed file");
    has_fault(at("many"), "latest", "latest names what is not whole");
    ok(count_faults(at("many")) == 4, "all four are listed: %lld",
       (long long)count_faults(at("many")));
    pf_free(dir);
}

/* One weight in bf16 with its master, of which an element is wrong. */
static int64_t faults_of_master(float master, uint16_t weight, bool *found_out)
{
    const int64_t shape[1] = {3};
    float masters[3] = {1.0f, master, -2.0f};
    uint16_t weights[3] = {0x3f80, weight, 0xc000};
    const struct pf_ckpt_live live[2] = {
        whole("m.w", PF_ROLE_WEIGHT, PF_DTYPE_BF16, 1, shape, weights),
        whole("m.w", PF_ROLE_MASTER, PF_DTYPE_F32, 1, shape, masters)};

    (void)pf_rmtree(at("master"));
    (void)save_to(at("master"), 1, live, 2, 0);
    return faults_of(at("master"), "weight-not-master", found_out);
}

static void weights_are_rounded_masters(void)
{
    bool found;

    ok(faults_of_master(1 + 0x1p-12f, 0x3f80, &found) == 0, "1 + 2^-12 is 1 in bf16");
    ok(faults_of_master(1 + 3 * 0x1p-8f, 0x3f82, &found) == 0, "a tie goes to the even one");
    ok(faults_of_master(NAN, 0x7fc1, &found) == 0, "NaN is NaN, whatever its payload");
    ok(faults_of_master(1 + 0x1p-12f, 0x3f81, &found) == 1 && found, "another weight is found");
    ok(faults_of_master(1 + 3 * 0x1p-8f, 0x3f81, &found) == 1 && found, "a cut-off one too");
    ok(faults_of_master(0.0f, 0x8000, &found) == 1 && found, "-0 is not 0");
}

/* Runs --------------------------------------------------------------------------------------------
 */

static bool newest_is(const char *dir, const char *name)
{
    char *path = NULL;
    const int err = pf_ckpt_latest(dir, &path);
    const bool is = !err && (name ? path && strcmp(pf_path_base(path), name) == 0 : !path);

    if (!is) {
        printf("# newest: %s\n", err ? pf_error_message() : path ? path : "none");
    }
    pf_free(path);
    return is;
}

static void old_checkpoints_are_removed(void)
{
    ok(newest_is(at("prune"), NULL), "where nothing is, nothing is newest");
    for (int step = 1; step <= 5; step++) {
        (void)save_step(at("prune"), step * 10, 2);
    }
    ok(!pf_path_exists(at("prune/checkpoint-000030")) &&
           pf_path_exists(at("prune/checkpoint-000040")) &&
           pf_path_exists(at("prune/checkpoint-000050")),
       "the last two stay");
    ok(newest_is(at("prune"), "checkpoint-000050"), "latest is the last");
    put_text(at("prune/checkpoint-000040/manifest.json"), "{}");
    (void)save_step(at("prune"), 60, 2);
    ok(pf_path_exists(at("prune/checkpoint-000040")) &&
           pf_path_exists(at("prune/checkpoint-000050")),
       "what is not whole neither counts nor goes");
    (void)save_step(at("prune"), 5, 1);
    ok(pf_path_exists(at("prune/checkpoint-000005")) &&
           !pf_path_exists(at("prune/checkpoint-000060")),
       "the one just written stays, whatever its step");
}

static void the_newest_whole_one_is_found(void)
{
    for (int step = 1; step <= 3; step++) {
        (void)save_step(at("new"), step, 0);
    }
    ok(newest_is(at("new"), "checkpoint-000003"), "latest is believed");
    char *manifest = get(at("new/checkpoint-000003/manifest.json"), NULL);
    put(at("new/checkpoint-000003/manifest.json"), manifest, strlen(manifest) / 2);
    ok(newest_is(at("new"), "checkpoint-000002"), "unless what it names is cut short");
    put_text(at("new/checkpoint-000003/manifest.json"), manifest);
    pf_free(manifest);
    put_text(at("new/latest"), "checkpoint-000002\n");
    ok(newest_is(at("new"), "checkpoint-000003"),
       "a save killed between its rename and latest is found");
    put_text(at("new/latest"), "checkpoint-000001\n");
    ok(newest_is(at("new"), "checkpoint-000002"), "by what it says came before it");
    put_text(at("new/latest"), "checkpoint-000003\n");
    (void)pf_rmtree(at("new/checkpoint-000002"));
    (void)save_step(at("new"), 2, 0);
    ok(newest_is(at("new"), "checkpoint-000002"), "a run that went back is followed");
    put_text(at("new/latest"), "../../etc\n");
    ok(newest_is(at("new"), "checkpoint-000003"), "a latest that leads elsewhere is not followed");
    (void)unlink(at("new/latest"));
    ok(newest_is(at("new"), "checkpoint-000003"), "without latest the highest step");
}

static void leftovers_do_no_harm(void)
{
    (void)save_step(at("left"), 1, 0);
    (void)pf_mkdirs(at("left/.staging-checkpoint-000002/deep"));
    put_text(at("left/.staging-checkpoint-000002/weights-00007.safetensors"), "half");
    (void)pf_mkdirs(at("left/.removing-checkpoint-000000"));
    (void)pf_mkdirs(at("left/.staging-other"));
    ok(count_faults(at("left")) == 0, "leftovers of a killed save are no damage");
    ok(save_step(at("left"), 2, 0) == 0 && count_faults(at("left")) == 0,
       "a save of that step takes nothing from them");
    (void)pf_mkdirs(at("left/.staging-checkpoint-000009"));
    ok(pf_ckpt_clean_staging(at("left")) == 0 &&
           !pf_path_exists(at("left/.staging-checkpoint-000009")) &&
           !pf_path_exists(at("left/.removing-checkpoint-000000")) &&
           pf_path_exists(at("left/.staging-other")),
       "cleaning removes them and nothing else");
    ok(pf_ckpt_clean_staging(at("nowhere")) == 0, "cleaning nowhere is fine");
}

static void a_step_is_saved_once(void)
{
    struct pf_ckpt *ckpt = NULL;

    (void)save_step(at("once"), 1, 0);
    ok(save_step(at("once"), 1, 0) == PF_EREFUSED, "a whole checkpoint is not replaced: %s",
       pf_error_message());
    put_text(at("once/checkpoint-000001/manifest.json"), "{}");
    ok(save_step(at("once"), 1, 0) == 0 && pf_ckpt_open(at("once"), &ckpt) == 0,
       "one that is not whole is");
    ok(!pf_path_exists(at("once/.removing-checkpoint-000001")), "and goes");
    pf_ckpt_free(ckpt);
    put_text(at("once/checkpoint-000002"), "a file");
    ok(save_step(at("once"), 2, 0) == PF_EREFUSED, "a file in the way is refused");
    ok(newest_is(at("once"), "checkpoint-000001"), "and nothing has changed");
}

static int replace_step(const char *dir, int64_t step, int seed, int limit)
{
    struct state s;
    const struct pf_ckpt_save save = {
        .output_dir = dir, .step = step, .replace = true, .total_limit = limit};

    make_state(&s, seed);
    return pf_ckpt_save(NULL, &save, s.live, N_LIVE, NULL);
}

/* Does a checkpoint hold the state of this seed? */
static bool holds_state(const char *path, int seed)
{
    struct state want, got;
    struct pf_ckpt *ckpt = NULL;

    make_state(&want, seed);
    make_state(&got, 0);
    const bool same = pf_ckpt_open(path, &ckpt) == 0 &&
                      pf_ckpt_load(NULL, ckpt, got.live, N_LIVE, true) == 0 &&
                      state_equal(&want, &got);
    pf_ckpt_free(ckpt);
    return same;
}

static void a_run_that_went_back_replaces(void)
{
    for (int step = 1; step <= 3; step++) {
        (void)save_step(at("back"), step, 0);
    }
    ok(replace_step(at("back"), 2, 72, 0) == 0 && holds_state(at("back/checkpoint-000002"), 72),
       "a whole checkpoint is replaced where that is asked");
    ok(newest_is(at("back"), "checkpoint-000002"), "and is the newest, before a later one");
    ok(count_faults(at("back")) == 0 && !pf_path_exists(at("back/.staging-checkpoint-000002")),
       "nothing of the old one is left");
    put_text(at("back/latest"), "checkpoint-000003\n");
    ok(newest_is(at("back"), "checkpoint-000002"),
       "a save of an earlier step killed before latest is found too");
    (void)save_step(at("back"), 4, 0);
    ok(replace_step(at("back"), 3, 73, 2) == 0 && pf_path_exists(at("back/checkpoint-000002")) &&
           !pf_path_exists(at("back/checkpoint-000004")),
       "of two to be kept, the one that the run left goes before the one it comes from");
    ok(rename(at("back/checkpoint-000002"), at("back/elsewhere")) == 0 &&
           symlink("elsewhere", at("back/checkpoint-000002")) == 0 &&
           replace_step(at("back"), 2, 1, 0) == PF_EREFUSED,
       "a link to a checkpoint is not replaced: %s", pf_error_message());
    ok(save_step(at("back"), 5, 1) == 0 && !pf_path_exists(at("back/checkpoint-000002")) &&
           holds_state(at("back/elsewhere"), 72),
       "where it is too many, the link goes and what it leads to stays");
}

static void a_full_disk_leaves_the_old_state(void)
{
    struct rlimit old, small;
    struct state s;
    int failed = 0, dirty = 0;

    (void)save_step(at("full"), 1, 0);
    make_state(&s, 2);
    (void)signal(SIGXFSZ, SIG_IGN);
    (void)getrlimit(RLIMIT_FSIZE, &old);
    for (rlim_t limit = 0; limit < 1500; limit += 50) {
        small = old;
        small.rlim_cur = limit;
        (void)setrlimit(RLIMIT_FSIZE, &small);
        const int err = save_to(at("full"), 2, s.live, N_LIVE, 1);
        (void)setrlimit(RLIMIT_FSIZE, &old);
        if (err == 0) {
            break;
        }
        failed += err == PF_EIO;
        dirty += pf_path_exists(at("full/.staging-checkpoint-000002")) ||
                 pf_path_exists(at("full/checkpoint-000002")) ||
                 !newest_is(at("full"), "checkpoint-000001") || count_faults(at("full")) != 0;
    }
    ok(failed > 10 && dirty == 0, "%d saves that ran out of space left what was", failed);
    ok(newest_is(at("full"), "checkpoint-000002"), "with space enough the save goes through");
}

static void bad_states_are_refused(void)
{
    struct state s;
    struct pf_ckpt_save save = {.output_dir = at("bad"), .step = 1, .state_json = "[1]"};

    make_state(&s, 1);
    s.live[3].range_lo = 10;
    ok(save_to(at("bad"), 1, s.live, N_LIVE, 0) == PF_EINVAL, "a hole: %s", pf_error_message());
    s.live[3].range_lo = 8;
    ok(save_to(at("bad"), 1, s.live, N_LIVE, 0) == PF_EINVAL, "an overlap: %s", pf_error_message());
    s.live[3].range_lo = 9;
    s.live[3].range_hi = 25;
    ok(save_to(at("bad"), 1, s.live, N_LIVE, 0) == PF_EINVAL, "a range outside: %s",
       pf_error_message());
    s.live[3].range_hi = 24;
    s.live[4].box.hi[0] = 7;
    ok(save_to(at("bad"), 1, s.live, N_LIVE, 0) == PF_EINVAL, "a box outside: %s",
       pf_error_message());
    s.live[4].box.hi[0] = 6;
    s.live[3].dtype = PF_DTYPE_I32;
    ok(save_to(at("bad"), 1, s.live, N_LIVE, 0) == PF_EDISAGREE, "two dtypes: %s",
       pf_error_message());
    s.live[3].dtype = PF_DTYPE_F32;
    ok(pf_ckpt_save(NULL, &save, s.live, N_LIVE, NULL) == PF_EINVAL, "state that is no object: %s",
       pf_error_message());
    save.state_json = "{";
    ok(pf_ckpt_save(NULL, &save, s.live, N_LIVE, NULL) == PF_EINVAL, "state that is no JSON: %s",
       pf_error_message());
    save.state_json = NULL;
    save.step = -1;
    ok(pf_ckpt_save(NULL, &save, s.live, N_LIVE, NULL) == PF_EINVAL, "a negative step");
    ok(!pf_path_exists(at("bad/latest")) && newest_is(at("bad"), NULL), "and none leaves a trace");
    save.step = 0;
    ok(pf_ckpt_save(NULL, &save, NULL, 0, NULL) == 0 && count_faults(at("bad")) == 0,
       "nothing at all is a checkpoint too");
    float none;
    struct pf_ckpt_live empty =
        whole("e", PF_ROLE_WEIGHT, PF_DTYPE_F32, 2, (int64_t[]){0, 3}, &none);
    save.step = 1;
    ok(pf_ckpt_save(NULL, &save, &empty, 1, NULL) == 0 && count_faults(at("bad")) == 0,
       "and so is a tensor without elements");
}

static void what_is_no_checkpoint_is_named(void)
{
    static const struct {
        const char *name, *content, *word;
    } files[] = {
        {"x.gguf", "GGUF\3\0\0\0\0\0\0\0", "GGUF"},
        {"x.pt", "PK\3\4aaaaaaaa", "zip"},
        {"x.bin", "\x80\2}q\1.aaaaa", "pickle"},
        {"x.json", "{\"weight_map\":{}}", "JSON"},
    };
    struct pf_ckpt *ckpt = NULL;

    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        put(at("%s", files[i].name), files[i].content, 12);
        ok(pf_ckpt_open(at("%s", files[i].name), &ckpt) == PF_ENOTSUP &&
               strstr(pf_error_message(), files[i].word),
           "%s", pf_error_message());
    }
    put_text(at("t.safetensors"), "<!DOCTYPE html>");
    ok(pf_ckpt_open(at("t.safetensors"), &ckpt) == PF_EFORMAT, "%s", pf_error_message());
    ok(pf_ckpt_open(at("nothing"), &ckpt) == PF_EIO, "%s", pf_error_message());
    (void)pf_mkdirs(at("empty"));
    ok(pf_ckpt_open(at("empty"), &ckpt) == PF_EINCOMPLETE, "%s", pf_error_message());
    (void)pf_mkdirs(at("dcp"));
    put_text(at("dcp/.metadata"), "x");
    ok(pf_ckpt_open(at("dcp"), &ckpt) == PF_ENOTSUP, "%s", pf_error_message());
    (void)pf_mkdirs(at("ds/global_step10"));
    put_text(at("ds/latest"), "global_step10");
    put_text(at("ds/zero_to_fp32.py"), "x");
    ok(pf_ckpt_open(at("ds"), &ckpt) == PF_ENOTSUP, "%s", pf_error_message());
    (void)pf_mkdirs(at("run1/checkpoint-000001"));
    ok(pf_ckpt_open(at("run1"), &ckpt) == PF_EINCOMPLETE, "%s", pf_error_message());
}

int main(void)
{
    scratch_make();
    what_is_saved_is_loaded();
    loading_may_cut_differently();
    r7_a_load_that_fails_moves_nothing();
    any_cut_reads_as_any_box();
    columns_of_a_large_tensor();
    the_cover_is_proved_before_reading();
    no_change_goes_unseen();
    lies_with_a_good_digest_are_found();
    faults_are_all_listed();
    weights_are_rounded_masters();
    old_checkpoints_are_removed();
    the_newest_whole_one_is_found();
    leftovers_do_no_harm();
    a_step_is_saved_once();
    a_run_that_went_back_replaces();
    a_full_disk_leaves_the_old_state();
    bad_states_are_refused();
    what_is_no_checkpoint_is_named();
    scratch_remove();
    return done();
}
