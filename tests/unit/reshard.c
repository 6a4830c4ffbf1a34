/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random pairs of layouts over all families: from A to B each element is where the placement says and
 * has the bits that its name, role and index give it; from B back to A every file is the same to the
 * byte; a rank of B that loads from A gets what a rank of B holds. RESHARD_PAIRS is how many (40).
 */
#include <pf/ckpt.h>
#include <pf/digest.h>
#include <pf/error.h>
#include <pf/placement.h>
#include <pf/reshard.h>
#include <fcntl.h>

#include "model_fixture.h"
#include "scratch.h"
#include "tap.h"

static const char *const folders[] = {"gpt2",        "llama",           "llama-tied",  "qwen2",
                                      "qwen3",       "ernie4_5",        "mixtral",     "qwen3_moe",
                                      "deepseek_v3", "qwen3_moe-mixed", "ernie4_5_moe"};
#define N_FOLDERS (sizeof folders / sizeof folders[0])

static const enum pf_role roles[] = {PF_ROLE_WEIGHT, PF_ROLE_MASTER, PF_ROLE_MOMENT1,
                                     PF_ROLE_MOMENT2};
#define N_ROLES 4

/* Random choices ------------------------------------------------------------------------------- */

static uint64_t state = 1;

static uint64_t random_u64(void)
{
    state += 0x9e3779b97f4a7c15u;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int random_below(int n)
{
    return (int)(random_u64() % (uint64_t)n);
}

static int pick(const int *values, int n)
{
    return values[random_below(n)];
}

/* Sizes that divide by nothing, other depths, tied or not. */
static struct pf_model_spec random_spec(const char *folder)
{
    struct pf_model_spec spec = fixture_spec(folder, "config.json"), changed = spec;

    changed.vocab_size = 11 + random_below(60);
    changed.padding_id = -1;
    changed.n_layers = 2 + random_below(6);
    for (int64_t l = spec.n_layers; l < changed.n_layers; l++) {
        changed.moe.layer_is_moe[l] = spec.moe.layer_is_moe[spec.n_layers - 1];
    }
    for (int64_t l = changed.n_layers; l < spec.n_layers; l++) {
        changed.moe.layer_is_moe[l] = 0;
    }
    changed.tied_head = random_below(2);
    return pf_spec_check(&changed) == 0 ? changed : spec;
}

/* A layout that the model can have, by trial. */
static struct pf_parallel random_layout(const struct pf_model_spec *spec, struct pf_mesh *mesh)
{
    struct pf_parallel par;
    int err;

    do {
        pf_parallel_init(&par);
        par.degree[PF_AXIS_TP] = pick((const int[]){1, 1, 2, 3, 4, 8}, 6);
        par.degree[PF_AXIS_PP] = pick((const int[]){1, 1, 2, 3}, 4);
        par.degree[PF_AXIS_SHARDING] = pick((const int[]){1, 2, 3, 4}, 4);
        par.degree[PF_AXIS_DP] = pick((const int[]){1, 1, 2}, 3);
        par.degree[PF_AXIS_CP] = pick((const int[]){1, 1, 1, 2}, 4);
        par.vpp = par.degree[PF_AXIS_PP] > 1 ? pick((const int[]){1, 1, 2}, 3) : 1;
        par.ep = spec->moe.n_experts > 0 ? pick((const int[]){1, 2, 3, 4}, 4) : 1;
        par.stage = par.degree[PF_AXIS_SHARDING] > 1 ? random_below(4) : 0;
        par.whole_params = (par.stage == 1 || par.stage == 2) && random_below(3) == 0;
        par.pp_first = random_below(4) == 0;
        par.bucket_bytes = pick((const int[]){0, 1 << 14, 1 << 16}, 3);
        if (par.degree[PF_AXIS_PP] > 1 && random_below(3) == 0) {
            par.first_layers = 1 + random_below(3);
        }
        err = pf_parallel_resolve(&par, spec, 0, mesh);
    } while (err != 0);
    pf_error_clear();
    return par;
}

/* Values --------------------------------------------------------------------------------------- */

static enum pf_dtype dtype_of(enum pf_role role)
{
    return role == PF_ROLE_WEIGHT ? PF_DTYPE_BF16 : PF_DTYPE_F32;
}

static uint64_t seed_of(const char *name, enum pf_role role)
{
    return pf_hash_string(name) * 8 + (uint64_t)role;
}

/* Any bits, NaNs too: nothing may convert them. */
static uint32_t bits_at(uint64_t seed, int64_t index)
{
    uint64_t z = seed + (uint64_t)index * 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 32)) * 0xd6e8feb86659fd93u;
    return (uint32_t)(z >> 32);
}

/* The index in its tensor of an element of a box. */
static int64_t index_at(const int64_t *shape, const struct pf_box *box, int64_t element)
{
    int64_t index = 0, stride = 1;

    for (int d = box->n_dims - 1; d >= 0; d--) {
        const int64_t extent = box->hi[d] - box->lo[d];
        index += (box->lo[d] + element % extent) * stride;
        element /= extent;
        stride *= shape[d];
    }
    return index;
}

/* Do the dense bytes hold elements lo..hi of the box? */
static bool holds(const char *name, enum pf_role role, const int64_t *shape,
                  const struct pf_box *box, int64_t lo, int64_t hi, const void *bytes)
{
    const uint64_t seed = seed_of(name, role);

    for (int64_t i = lo; i < hi; i++) {
        const uint32_t want = bits_at(seed, index_at(shape, box, i));
        const bool same = role == PF_ROLE_WEIGHT
                              ? ((const uint16_t *)bytes)[i - lo] == (uint16_t)want
                              : ((const uint32_t *)bytes)[i - lo] == want;
        if (!same) {
            return false;
        }
    }
    return true;
}

static void fill(const char *name, enum pf_role role, int64_t n, void *bytes)
{
    for (int64_t i = 0; i < n; i++) {
        const uint32_t value = bits_at(seed_of(name, role), i);
        if (role == PF_ROLE_WEIGHT) {
            ((uint16_t *)bytes)[i] = (uint16_t)value;
        } else {
            ((uint32_t *)bytes)[i] = value;
        }
    }
}

/* Checkpoints ---------------------------------------------------------------------------------- */

static struct pf_ckpt_live live_row(const struct pf_tensor_row *row, enum pf_role role)
{
    struct pf_ckpt_live live = {
        .name = row->name, .role = role, .dtype = dtype_of(role), .n_dims = row->n_dims};

    live.box.n_dims = row->n_dims;
    for (int d = 0; d < row->n_dims; d++) {
        live.shape[d] = live.box.hi[d] = row->shape[d];
    }
    return live;
}

/* Everything whole, by one process, and a number that no row places. */
static int save_source(const struct pf_table *table, const char *dir)
{
    struct pf_ckpt_live *live = pf_calloc_array((size_t)table->n_rows * N_ROLES + 1, sizeof *live);
    int64_t n = 0, count = 4711;

    for (int64_t i = 0; i < table->n_rows; i++) {
        for (int r = 0; r < N_ROLES && table->rows[i].tied_to < 0; r++) {
            const int64_t elements = pf_tensor_row_count(&table->rows[i]);
            live[n] = live_row(&table->rows[i], roles[r]);
            live[n].data = pf_alloc((size_t)elements * 4);
            fill(live[n].name, roles[r], elements, live[n].data);
            n++;
        }
    }
    live[n] = (struct pf_ckpt_live){
        .name = "count", .role = PF_ROLE_SCALAR, .dtype = PF_DTYPE_I64, .data = &count};
    const struct pf_ckpt_save save = {.output_dir = dir, .step = 3, .state_json = "{\"x\":[1]}"};
    const int err = pf_ckpt_save(NULL, &save, live, n + 1, NULL);
    for (int64_t i = 0; i < n; i++) {
        pf_free(live[i].data);
    }
    pf_free(live);
    return err;
}

/* A layout of a model. */
struct layout {
    struct pf_parallel par;
    struct pf_table *table;
    struct pf_placement *place;
};

static struct layout layout_new(const struct pf_model_spec *spec)
{
    struct pf_mesh mesh;
    struct layout l = {.par = random_layout(spec, &mesh)};

    if (pf_table_new(spec, &mesh, &l.table) != 0 ||
        pf_placement_new(l.table, &l.par, &l.place) != 0) {
        ok(false, "a layout is made: %s", pf_error_message());
        exit(1);
    }
    return l;
}

static void layout_free(struct layout *l)
{
    pf_placement_free(l->place);
    pf_table_free(l->table);
}

static int reshard(const char *from, const char *to, const struct layout *l)
{
    const struct pf_reshard job = {.table = l->table,
                                   .place = l->place,
                                   .dst = to,
                                   .dtype = PF_DTYPE_COUNT,
                                   .max_memory = (size_t)1 << 30,
                                   .threads = 1 + random_below(3)};
    struct pf_reshard_report report;
    struct pf_ckpt *src = NULL;
    int err = pf_ckpt_open(from, &src);

    err = err ? err : pf_reshard_run(NULL, src, &job, &report);
    pf_ckpt_free(src);
    return err;
}

/* Claims --------------------------------------------------------------------------------------- */

static bool read_piece(const struct pf_ckpt *ckpt, const struct pf_ckpt_tensor *t,
                       const struct pf_ckpt_piece *p)
{
    const size_t n = (size_t)(p->range_hi - p->range_lo) * pf_dtype_bytes(t->dtype);
    char *path = pf_path_join(ckpt->dir, ckpt->files[p->file].name);
    void *bytes = pf_alloc(n);
    int fd = -1;
    bool same = false;

    if (pf_open(path, O_RDONLY, &fd) == 0 && pf_pread_full(fd, bytes, n, p->offset, path) == 0) {
        same = holds(t->name, t->role, t->shape, &p->box, p->range_lo, p->range_hi, bytes);
    }
    pf_close(fd, NULL);
    pf_free(bytes);
    pf_free(path);
    return same;
}

static bool same_piece(const struct pf_ckpt_piece *p, const struct pf_shard *s)
{
    const size_t n = (size_t)p->box.n_dims * sizeof p->box.lo[0];

    return p->range_lo == s->range_lo && p->range_hi == s->range_hi &&
           memcmp(p->box.lo, s->box.lo, n) == 0 && memcmp(p->box.hi, s->box.hi, n) == 0;
}

/* Are the pieces of a tensor those of the placement, each in the file of a rank that holds it? */
static bool is_placed(const struct pf_ckpt *ckpt, const struct pf_ckpt_tensor *t,
                      const struct pf_mesh *mesh, const struct pf_shard_list *shards)
{
    int64_t n_found = 0;

    for (int64_t p = 0; p < t->n_pieces; p++) {
        for (int64_t s = 0; s < shards->n; s++) {
            const char *digits = strchr(ckpt->files[t->pieces[p].file].name, '-') + 1;
            n_found +=
                same_piece(&t->pieces[p], &shards->items[s]) &&
                pf_rank_set_has(mesh, &shards->items[s].holders, (int)strtol(digits, NULL, 10));
        }
    }
    return n_found == shards->n && t->n_pieces == shards->n;
}

/* What is wrong with a checkpoint that should be of a layout; NULL: nothing. */
static const char *wrong(const char *dir, const struct layout *l)
{
    struct pf_shard_list shards = {0};
    struct pf_ckpt *ckpt = NULL;
    const char *what = pf_ckpt_open(dir, &ckpt) != 0 ? "it does not open" : NULL;
    int64_t n_tensors = 1;

    for (int64_t i = 0; i < l->table->n_rows && !what; i++) {
        for (int r = 0; r < N_ROLES && l->table->rows[i].tied_to < 0 && !what; r++, n_tensors++) {
            const struct pf_ckpt_tensor *t = pf_ckpt_find(ckpt, l->table->rows[i].name, roles[r]);
            what = t ? NULL : "a tensor is missing";
            if (t && (pf_placement_shards(l->place, i, roles[r], &shards) != 0 ||
                      !is_placed(ckpt, t, &l->table->mesh, &shards))) {
                what = "a piece is not where the placement says";
            }
            for (int64_t p = 0; t && p < t->n_pieces && !what; p++) {
                what = read_piece(ckpt, t, &t->pieces[p]) ? NULL : "an element is wrong";
            }
        }
    }
    if (!what && (ckpt->n_tensors != n_tensors || !pf_ckpt_find(ckpt, "count", PF_ROLE_SCALAR) ||
                  ckpt->step != 3 || strcmp(ckpt->state_json, "{\"x\":[1]}") != 0)) {
        what = "tensors, step or state are not those of the source";
    }
    pf_shard_list_release(&shards);
    pf_ckpt_free(ckpt);
    return what;
}

/* Name, length and digest of every file. */
static bool same_files(const char *dir_a, const char *dir_b)
{
    struct pf_ckpt *a = NULL, *b = NULL;
    bool same =
        pf_ckpt_open(dir_a, &a) == 0 && pf_ckpt_open(dir_b, &b) == 0 && a->n_files == b->n_files;

    for (int64_t f = 0; same && f < a->n_files; f++) {
        same = strcmp(a->files[f].name, b->files[f].name) == 0 &&
               strcmp(a->files[f].digest, b->files[f].digest) == 0;
    }
    pf_ckpt_free(a);
    pf_ckpt_free(b);
    return same;
}

/* What one rank of a layout holds, loaded from a checkpoint of any. */
static bool loads(const char *dir, const struct layout *l, int rank)
{
    const size_t room = (size_t)l->table->n_rows * N_ROLES * PF_TABLE_MAX_BOXES;
    struct pf_ckpt_live *live = pf_calloc_array(room, sizeof *live);
    struct pf_ckpt *ckpt = NULL;
    int64_t n = 0;

    for (int64_t i = 0; i < l->table->n_rows; i++) {
        for (int r = 0; r < N_ROLES && l->table->rows[i].tied_to < 0; r++) {
            struct pf_local_shard local[PF_TABLE_MAX_BOXES];
            const int n_local = pf_placement_local(l->place, i, roles[r], rank, local);
            for (int k = 0; k < n_local; k++, n++) {
                live[n] = live_row(&l->table->rows[i], roles[r]);
                live[n].box = local[k].box;
                live[n].range_lo = local[k].range_lo;
                live[n].range_hi = local[k].range_hi;
                live[n].data = pf_alloc((size_t)(local[k].range_hi - local[k].range_lo) * 4);
            }
        }
    }
    bool same = pf_ckpt_open(dir, &ckpt) == 0 && pf_ckpt_load(NULL, ckpt, live, n, true) == 0;
    for (int64_t i = 0; i < n; i++) {
        same = same && holds(live[i].name, live[i].role, live[i].shape, &live[i].box,
                             live[i].range_lo, live[i].range_hi, live[i].data);
        pf_free(live[i].data);
    }
    pf_ckpt_free(ckpt);
    pf_free(live);
    return same;
}

static void one_pair(int number, const struct pf_model_spec *spec, const char *folder)
{
    struct layout a = layout_new(spec), b = layout_new(spec);
    struct pf_str text_a, text_b;

    pf_str_init(&text_a);
    pf_str_init(&text_b);
    pf_parallel_print(&a.par, &text_a);
    pf_parallel_print(&b.par, &text_b);
    for (int i = 0; i < 3; i++) {
        (void)pf_rmtree(at("%s", (const char *[]){"a", "b", "back"}[i]));
    }
    const int err = reshard(at("source/checkpoint-000003"), at("a"), &a) ||
                    reshard(at("a"), at("b"), &b) || reshard(at("b"), at("back"), &a);
    const char *what = err ? pf_error_message() : wrong(at("a"), &a);
    what = what ? what : wrong(at("b"), &b);
    what = what || same_files(at("a"), at("back")) ? what : "there and back is not the same";
    const int rank = random_below(pf_mesh_size(&b.table->mesh));
    what = what || loads(at("a"), &b, rank) ? what : "a rank of B loads something else from A";
    ok(!what, "r2_random_pairs: %d: %s: %s -> %s -> back%s%s", number, folder, text_a.text,
       text_b.text, what ? ": " : "", what ? what : "");
    pf_str_release(&text_a);
    pf_str_release(&text_b);
    layout_free(&a);
    layout_free(&b);
}

int main(void)
{
    const char *given = getenv("RESHARD_PAIRS"), *seed = getenv("RESHARD_SEED");
    const int n = given ? (int)strtol(given, NULL, 10) : 40;
    const struct pf_mesh alone = {.degree = {1, 1, 1, 1, 1}, .ep = 1};

    state = seed ? strtoull(seed, NULL, 10) : 1;
    scratch_make();
    for (int i = 0; i < n; i++) {
        const char *folder = folders[(size_t)i % N_FOLDERS];
        const struct pf_model_spec spec = random_spec(folder);
        struct pf_table *table = NULL;
        (void)pf_rmtree(at("source"));
        if (pf_table_new(&spec, &alone, &table) != 0 || save_source(table, at("source")) != 0) {
            ok(false, "%s: a source is written: %s", folder, pf_error_message());
        } else {
            one_pair(i, &spec, folder);
        }
        pf_table_free(table);
    }
    scratch_remove();
    return done();
}
