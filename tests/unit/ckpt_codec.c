/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compressed checkpoints: what is saved is what is loaded, every dtype, in any cut, by every way of
 * reading; digests of tensors do not depend on it; damage is found and hostile lengths are refused.
 */
#include <pf/ckpt.h>
#include <pf/digest.h>
#include <pf/error.h>
#include <pf/inspect.h>
#include <pf/planes.h>
#include <pf/safetensors.h>

#include "scratch.h"
#include "tap.h"

#include <math.h>

#define ROWS 1500
#define COLS 1001 /* a row ends inside a block */
#define SMALL 77
#define MAX_LIVE 40

struct state {
    uint16_t *big;
    float *moment;
    uint8_t small[PF_DTYPE_COUNT][SMALL * 8];
    double scalar;
    struct pf_ckpt_live live[MAX_LIVE];
    int64_t n;
};

static uint64_t random_state;

static uint32_t draw(void)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 32);
}

static void add(struct state *s, const char *name, enum pf_role role, enum pf_dtype dtype,
                int n_dims, const int64_t *shape, void *data)
{
    struct pf_ckpt_live *live = &s->live[s->n++];

    *live = (struct pf_ckpt_live){
        .name = name, .role = role, .dtype = dtype, .n_dims = n_dims, .data = data};
    live->box.n_dims = n_dims;
    for (int d = 0; d < n_dims; d++) {
        live->shape[d] = live->box.hi[d] = shape[d];
    }
}

/* A large weight, its moment in two ranges, a tensor of every dtype, a scalar, an empty one. */
static void make_state(struct state *s, uint64_t seed)
{
    const int64_t matrix[2] = {ROWS, COLS}, small[1] = {SMALL}, empty[2] = {0, 5};
    const int64_t cut = 1234567;

    *s = (struct state){.big = pf_alloc(ROWS * COLS * 2), .moment = pf_alloc(ROWS * COLS * 4)};
    random_state = seed;
    for (int64_t i = 0; i < ROWS * COLS; i++) {
        s->moment[i] = (float)(draw() % 2001 - 1000.0) * 1e-5F;
        s->big[i] = pf_bf16_from_f32(s->moment[i]);
    }
    s->big[5] = 0x7f81; /* NaN payloads, subnormals, -0 */
    s->big[6] = 0xffc3;
    s->big[7] = 1;
    s->big[8] = 0x8000;
    add(s, "m.big", PF_ROLE_WEIGHT, PF_DTYPE_BF16, 2, matrix, s->big);
    add(s, "m.big", PF_ROLE_MOMENT1, PF_DTYPE_F32, 2, matrix, s->moment);
    s->live[s->n - 1].range_hi = cut;
    add(s, "m.big", PF_ROLE_MOMENT1, PF_DTYPE_F32, 2, matrix, s->moment + cut);
    s->live[s->n - 1].range_lo = cut;
    s->live[s->n - 1].range_hi = (int64_t)ROWS * COLS;
    for (int d = 0; d < PF_DTYPE_COUNT; d++) {
        if (pf_dtype_bytes((enum pf_dtype)d) > 0) {
            for (size_t i = 0; i < sizeof s->small[d]; i++) {
                s->small[d][i] = (uint8_t)draw();
            }
            add(s, pf_dtype_name((enum pf_dtype)d), PF_ROLE_WEIGHT, (enum pf_dtype)d, 1, small,
                s->small[d]);
        }
    }
    s->scalar = (double)seed;
    add(s, "n", PF_ROLE_SCALAR, PF_DTYPE_F64, 0, NULL, &s->scalar);
    add(s, "empty", PF_ROLE_WEIGHT, PF_DTYPE_F32, 2, empty, NULL);
}

static void release(struct state *s)
{
    pf_free(s->big);
    pf_free(s->moment);
}

static bool is_equal(const struct state *a, const struct state *b)
{
    bool equal = memcmp(a->big, b->big, ROWS * COLS * 2) == 0 &&
                 memcmp(a->moment, b->moment, ROWS * COLS * 4) == 0 && a->scalar == b->scalar;

    for (int d = 0; equal && d < PF_DTYPE_COUNT; d++) {
        equal = memcmp(a->small[d], b->small[d], SMALL * pf_dtype_bytes((enum pf_dtype)d)) == 0;
    }
    return equal;
}

static int save(const char *dir, const struct state *s, enum pf_ckpt_codec codec)
{
    const struct pf_ckpt_save job = {.output_dir = dir, .step = 1, .codec = codec};

    return pf_ckpt_save(NULL, &job, s->live, s->n, NULL);
}

static int64_t count_faults(const char *dir, const char *kind)
{
    struct pf_ckpt_fault *faults = NULL;
    int64_t n = 0, found = 0;

    if (pf_ckpt_verify(dir, &faults, &n) != 0) {
        return -1;
    }
    for (int64_t i = 0; i < n; i++) {
        found += !kind || strcmp(faults[i].kind, kind) == 0;
    }
    pf_ckpt_faults_free(faults, n);
    return found;
}

/* Whole state -------------------------------------------------------------------------------------
 */

static void what_is_saved_is_loaded(void)
{
    struct state s, got;
    struct pf_ckpt *ckpt = NULL;

    make_state(&s, 3);
    ok(save(at("zip"), &s, PF_CKPT_ZSTD) == 0, "a compressed save");
    ok(pf_ckpt_open(at("zip"), &ckpt) == 0, "it opens: %s", pf_error_message());
    const struct pf_ckpt_tensor *const t = pf_ckpt_find(ckpt, "m.big", PF_ROLE_WEIGHT);
    ok(t && t->pieces[0].codec == PF_CKPT_ZSTD && t->pieces[0].stored_bytes > 0 &&
           t->pieces[0].stored_bytes < (uint64_t)ROWS * COLS * 2,
       "its large piece is shorter than its elements");
    for (int verify = 0; verify < 2; verify++) {
        make_state(&got, 99);
        ok(pf_ckpt_load(NULL, ckpt, got.live, got.n, verify != 0) == 0 && is_equal(&s, &got),
           "every bit of every dtype is loaded, digests %schecked", verify ? "" : "not ");
        release(&got);
    }
    ok(count_faults(at("zip"), NULL) == 0, "verify finds nothing");
    pf_ckpt_free(ckpt);
    release(&s);
}

static void digests_do_not_depend_on_it(void)
{
    struct pf_inspect_digests plain = {.n = 0}, zip = {.n = 0};
    struct pf_ckpt *a = NULL, *b = NULL;
    struct state s;

    make_state(&s, 3);
    ok(save(at("plain"), &s, PF_CKPT_PLAIN) == 0 && pf_ckpt_open(at("plain"), &a) == 0 &&
           pf_ckpt_open(at("zip"), &b) == 0,
       "the same state plain and compressed");
    ok(pf_inspect_hash(a, false, NULL, &plain) == 0 && pf_inspect_hash(b, false, NULL, &zip) == 0 &&
           strcmp(plain.overall, zip.overall) == 0,
       "the digests of tensors are the same");
    pf_inspect_digests_release(&plain);
    pf_inspect_digests_release(&zip);
    pf_ckpt_free(a);
    pf_ckpt_free(b);
    release(&s);
}

static void files_are_safetensors(void)
{
    char *const path = pf_strdup(at("zip/checkpoint-000001/weights-00000.safetensors"));
    struct pf_st *st = NULL;

    ok(pf_st_open(path, &st) == 0, "a compressed file is a safetensors file: %s",
       pf_error_message());
    const struct pf_st_tensor *const t = st ? pf_st_find(st, "m.big") : NULL;
    ok(t && t->dtype == PF_DTYPE_U8 && t->n_dims == 1 && pf_st_find_metadata(st, "format"),
       "with an entry of bytes for each piece");
    pf_st_close(st);
    pf_free(path);
}

/* Parts -------------------------------------------------------------------------------------------
 */

static void any_box_is_read(void)
{
    struct pf_ckpt *ckpt = NULL;
    struct state s;
    bool weights = true, moments = true;
    uint16_t *const got = pf_alloc(ROWS * COLS * 2);
    double *const wide = pf_alloc(ROWS * COLS * sizeof *wide);

    make_state(&s, 3);
    ok(pf_ckpt_open(at("zip"), &ckpt) == 0, "opened");
    const struct pf_ckpt_tensor *const w = pf_ckpt_find(ckpt, "m.big", PF_ROLE_WEIGHT);
    const struct pf_ckpt_tensor *const m = pf_ckpt_find(ckpt, "m.big", PF_ROLE_MOMENT1);
    for (int round = 0; w && m && round < 60; round++) {
        struct pf_box box = {.n_dims = 2};
        for (int d = 0; d < 2; d++) {
            const int64_t size = d == 0 ? ROWS : COLS;
            box.lo[d] = draw() % size;
            box.hi[d] = box.lo[d] + 1 + draw() % (round % 3 == 0 ? 3 : size - box.lo[d]);
            box.hi[d] = box.hi[d] < size ? box.hi[d] : size;
        }
        weights = weights && pf_ckpt_read_box(ckpt, w, &box, PF_DTYPE_BF16, got) == 0;
        moments = moments && pf_ckpt_read_box(ckpt, m, &box, PF_DTYPE_F64, wide) == 0;
        int64_t k = 0;
        for (int64_t i = box.lo[0]; i < box.hi[0]; i++) {
            for (int64_t j = box.lo[1]; j < box.hi[1]; j++, k++) {
                weights = weights && got[k] == s.big[i * COLS + j];
                moments = moments && wide[k] == (double)s.moment[i * COLS + j];
            }
        }
    }
    ok(weights, "60 boxes of a piece of several blocks");
    ok(moments, "60 boxes of a tensor in two ranges, converted on the way");
    pf_free(got);
    pf_free(wide);
    pf_ckpt_free(ckpt);
    release(&s);
}

/* Only what a box touches is read: damage elsewhere in the piece goes unseen. */
static void one_block_is_read_for_one_row(void)
{
    struct pf_ckpt *ckpt = NULL;
    const struct pf_box first = {.n_dims = 2, .lo = {0, 0}, .hi = {1, COLS}};
    const struct pf_box last = {.n_dims = 2, .lo = {ROWS - 1, 0}, .hi = {ROWS, COLS}};
    uint16_t row[COLS];
    struct state s;

    make_state(&s, 3);
    ok(save(at("part"), &s, PF_CKPT_ZSTD) == 0 && pf_ckpt_open(at("part"), &ckpt) == 0, "opened");
    const struct pf_ckpt_tensor *const w = pf_ckpt_find(ckpt, "m.big", PF_ROLE_WEIGHT);
    char *const path = pf_strdup(at("part/checkpoint-000001/weights-00000.safetensors"));
    size_t n;
    char *const bytes = get(path, &n);
    memset(bytes + w->pieces[0].offset, 0, 64);
    put(path, bytes, n);
    ok(pf_ckpt_read_box(ckpt, w, &last, PF_DTYPE_BF16, row) == 0 &&
           memcmp(row, s.big + (ROWS - 1) * COLS, sizeof row) == 0,
       "the last row is read past a damaged first block");
    ok(pf_ckpt_read_box(ckpt, w, &first, PF_DTYPE_BF16, row) == PF_EFORMAT &&
           strstr(pf_error_message(), "'m.big' (weight)") &&
           strstr(pf_error_message(), "weights-00000.safetensors"),
       "the first is refused by tensor and file: %s", pf_error_message());
    pf_free(bytes);
    pf_free(path);
    pf_ckpt_free(ckpt);
    release(&s);
}

/* Damage ------------------------------------------------------------------------------------------
 */

/* Give a manifest that was edited its digest. */
static void seal(char *text, size_t n)
{
    char hex[PF_DIGEST_HEX_BYTES];
    const struct pf_digest digest = pf_digest_of(text, n - 58);

    memcpy(text + n - 58 + 22, pf_digest_hex(&digest, hex), 32);
}

/* Change bytes of the file of weights, and let the manifest agree with them. */
static void damage(uint64_t offset, const void *with, size_t n_with)
{
    char *const path = pf_strdup(at("bad/checkpoint-000001/weights-00000.safetensors"));
    char *const list = pf_strdup(at("bad/checkpoint-000001/manifest.json"));
    char was[PF_DIGEST_HEX_BYTES], now[PF_DIGEST_HEX_BYTES];
    size_t n, n_list;
    char *const bytes = get(path, &n);
    char *const text = get(list, &n_list);
    struct pf_digest digest = pf_digest_of(bytes, n);

    pf_digest_hex(&digest, was);
    memcpy(bytes + offset, with, n_with);
    digest = pf_digest_of(bytes, n);
    put(path, bytes, n);
    pf_digest_hex(&digest, now);
    for (size_t i = 0; i + 32 <= n_list; i++) {
        if (memcmp(text + i, was, 32) == 0) {
            memcpy(text + i, now, 32);
        }
    }
    seal(text, n_list);
    put(list, text, n_list);
    pf_free(bytes);
    pf_free(text);
    pf_free(path);
    pf_free(list);
}

static void damage_is_refused(void)
{
    static const uint8_t nothing[4] = {0}, much[4] = {0xff, 0xff, 0xff, 0xff};
    struct state s, got;
    struct pf_ckpt *ckpt = NULL;
    int64_t where[2];

    make_state(&s, 3);
    for (int round = 0; round < 4; round++) {
        ok(pf_rmtree(at("bad")) == 0 && save(at("bad"), &s, PF_CKPT_ZSTD) == 0 &&
               pf_ckpt_open(at("bad"), &ckpt) == 0,
           "a checkpoint to be damaged");
        const struct pf_ckpt_piece *const p =
            &pf_ckpt_find(ckpt, "m.big", PF_ROLE_WEIGHT)->pieces[0];
        where[0] = (int64_t)p->offset;                         /* the length of a plane */
        where[1] = (int64_t)(p->offset + p->stored_bytes - 4); /* that of a block */
        pf_ckpt_free(ckpt);
        damage((uint64_t)where[round / 2], round % 2 ? much : nothing, 4);
        ok(pf_ckpt_open(at("bad"), &ckpt) == 0, "headers do not show it");
        make_state(&got, 4);
        ok(pf_ckpt_load(NULL, ckpt, got.live, got.n, true) == PF_EFORMAT, "a load is refused: %s",
           pf_error_message());
        ok(count_faults(at("bad"), "frame") > 0, "verify finds a fault of the kind frame");
        release(&got);
        pf_ckpt_free(ckpt);
    }
    release(&s);
}

/* A shape that the entry cannot hold is refused at the header, before anything is allocated for it. */
static void lies_are_refused(void)
{
    char *const list = pf_strdup(at("zip/checkpoint-000001/manifest.json"));
    struct pf_ckpt *ckpt = NULL;
    size_t n;
    char *const text = get(list, &n);
    char *const bad = pf_strdup(text);
    char *at_codec = strstr(bad, "\"zstd\"");

    memcpy(at_codec, "\"lzma\"", 6);
    seal(bad, n);
    put(list, bad, n);
    ok(pf_ckpt_open(at("zip"), &ckpt) != 0 && count_faults(at("zip"), "manifest") > 0,
       "an unknown codec is a fault of the manifest: %s", pf_error_message());
    const char *const says = "\"shape\":[77],\"pieces\":[{\"box\":[[0,77]]";
    const char *const at_shape = strstr(text, says);
    char *const more =
        pf_asprintf("%.*s\"shape\":[99999999999],\"pieces\":[{\"box\":[[0,99999999999]]%s",
                    (int)(at_shape - text), text, at_shape + strlen(says));
    seal(more, strlen(more));
    put(list, more, strlen(more));
    ok(pf_ckpt_open(at("zip"), &ckpt) != 0 && count_faults(at("zip"), "piece") > 0,
       "more elements than the entry can hold: %s", pf_error_message());
    pf_free(more);
    put(list, text, n);
    ok(pf_ckpt_open(at("zip"), &ckpt) == 0, "and whole again");
    pf_ckpt_free(ckpt);
    pf_free(text);
    pf_free(bad);
    pf_free(list);
}

int main(void)
{
    scratch_make();
    if (!pf_planes_is_built()) {
        struct state s;
        make_state(&s, 3);
        ok(save(at("zip"), &s, PF_CKPT_ZSTD) == PF_ENOTSUP && !pf_path_exists(at("zip/latest")),
           "without zstd a compressed save is refused and leaves nothing");
        skip("compressed checkpoints", "this build has no zstd");
        release(&s);
        scratch_remove();
        return done();
    }
    what_is_saved_is_loaded();
    digests_do_not_depend_on_it();
    files_are_safetensors();
    any_box_is_read();
    one_block_is_read_for_one_row();
    damage_is_refused();
    lies_are_refused();
    scratch_remove();
    return done();
}
