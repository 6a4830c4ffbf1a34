/* SPDX-License-Identifier: Apache-2.0 */
/* ranks: 1 2 4 */
/*
 * Checkpoints of real ranks in many layouts: what they save in a layout is, file for file, what a
 * change to that layout writes; they load what their layout gives them from a checkpoint of any other,
 * each file read once; and a change of layout that they share writes what one process alone writes.
 */
#include <pf/ckpt.h>
#include <pf/digest.h>
#include <pf/error.h>
#include <pf/placement.h>
#include <pf/reshard.h>

#include "model_fixture.h"
#include "scratch.h"
#include "tap.h"

static struct pf_comm *world;
static int rank, size;

static const enum pf_role roles[] = {PF_ROLE_WEIGHT, PF_ROLE_MASTER, PF_ROLE_MOMENT1,
                                     PF_ROLE_MOMENT2};
#define N_ROLES 4

/* Layouts of up to four ranks; those that need another number than there is are left out. */
static const char *const texts[] = {
    "dp=1",
    "tp=2",
    "pp=2",
    "dp=2",
    "sharding=2",
    "stage=3,sharding=2",
    "tp=2,pp=2",
    "dp=2,tp=2",
    "dp=2,pp=2",
    "tp=2,sharding=2,stage=1",
    "pp=2,sharding=2,stage=2,whole_params=true",
    "dp=4",
    "sharding=4,stage=3,bucket=16384",
    "tp=4",
};
#define N_TEXTS (sizeof texts / sizeof texts[0])

/* One line of TAP for all ranks: it holds if it holds on each. */
static void all_ok(bool holds, const char *claim, const char *of, const char *to)
{
    const int err =
        pf_comm_all_agree(world, holds ? 0 : pf_fail(PF_EDIFFER, "%s", pf_error_message()), NULL);

    if (rank == 0) {
        ok(err == 0, "%s: %s%s%s", claim, of, to ? " -> " : "", to ? to : "");
        if (err) {
            printf("# %s\n", pf_error_message());
        }
    }
}

struct layout {
    const char *text;
    struct pf_table *table;
    struct pf_placement *place;
    int n_ranks;
    struct pf_ckpt_live *live; /* this rank's, where the layout has as many ranks as there are */
    int64_t n;
};

static float value(const char *name, enum pf_role role, int64_t index)
{
    const float x = (float)(pf_hash_string(name) % 1000) * 16 + (float)role + (float)index * 0.25f;

    return role == PF_ROLE_WEIGHT ? pf_f32_from_bf16(pf_bf16_from_f32(x)) : x;
}

/* The index in its tensor of an element of a live piece. */
static int64_t index_of(const struct pf_ckpt_live *live, int64_t element)
{
    int64_t index = 0, stride = 1;

    for (int d = live->n_dims - 1; d >= 0; d--) {
        const int64_t extent = live->box.hi[d] - live->box.lo[d];
        index += (live->box.lo[d] + element % extent) * stride;
        element /= extent;
        stride *= live->shape[d];
    }
    return index;
}

static void fill(struct layout *l)
{
    for (int64_t i = 0; i < l->n; i++) {
        const struct pf_ckpt_live *p = &l->live[i];
        for (int64_t e = p->range_lo; e < p->range_hi; e++) {
            ((float *)p->data)[e - p->range_lo] = value(p->name, p->role, index_of(p, e));
        }
    }
}

static bool is_filled(const struct layout *l)
{
    for (int64_t i = 0; i < l->n; i++) {
        const struct pf_ckpt_live *p = &l->live[i];
        for (int64_t e = p->range_lo; e < p->range_hi; e++) {
            if (((float *)p->data)[e - p->range_lo] != value(p->name, p->role, index_of(p, e))) {
                return false;
            }
        }
    }
    return true;
}

static void clear(struct layout *l)
{
    for (int64_t i = 0; i < l->n; i++) {
        memset(l->live[i].data, 0, (size_t)(l->live[i].range_hi - l->live[i].range_lo) * 4);
    }
}

static void add_row(struct layout *l, int64_t i, enum pf_role role)
{
    const struct pf_tensor_row *row = &l->table->rows[i];
    struct pf_local_shard local[PF_TABLE_MAX_BOXES];
    const int n = pf_placement_local(l->place, i, role, rank, local);

    for (int k = 0; k < n; k++) {
        struct pf_ckpt_live *live = &l->live[l->n++];
        *live = (struct pf_ckpt_live){
            .name = row->name, .role = role, .dtype = PF_DTYPE_F32, .n_dims = row->n_dims};
        for (int d = 0; d < row->n_dims; d++) {
            live->shape[d] = row->shape[d];
        }
        live->box = local[k].box;
        live->range_lo = local[k].range_lo;
        live->range_hi = local[k].range_hi;
        live->data = pf_alloc((size_t)(live->range_hi - live->range_lo) * 4);
    }
}

static bool layout_make(struct layout *l, const char *text, const struct pf_model_spec *spec)
{
    struct pf_parallel par;
    struct pf_mesh mesh;

    *l = (struct layout){.text = text};
    if (pf_parallel_parse(text, &par) != 0 || pf_parallel_resolve(&par, spec, 0, &mesh) != 0 ||
        pf_table_new(spec, &mesh, &l->table) != 0 ||
        pf_placement_new(l->table, &par, &l->place) != 0) {
        return false;
    }
    l->n_ranks = pf_mesh_size(&mesh);
    l->live =
        pf_calloc_array((size_t)l->table->n_rows * N_ROLES * PF_TABLE_MAX_BOXES, sizeof *l->live);
    for (int64_t i = 0; i < l->table->n_rows && l->n_ranks == size; i++) {
        for (int r = 0; r < N_ROLES && l->table->rows[i].tied_to < 0; r++) {
            add_row(l, i, roles[r]);
        }
    }
    return true;
}

static void layout_release(struct layout *l)
{
    for (int64_t i = 0; i < l->n; i++) {
        pf_free(l->live[i].data);
    }
    pf_free(l->live);
    pf_placement_free(l->place);
    pf_table_free(l->table);
}

static int reshard(struct pf_comm *comm, const char *from, const char *to, const struct layout *l)
{
    const struct pf_reshard job = {.table = l->table,
                                   .place = l->place,
                                   .dst = to,
                                   .dtype = PF_DTYPE_COUNT,
                                   .max_memory = (size_t)1 << 30,
                                   .threads = 2};
    struct pf_reshard_report report;
    struct pf_ckpt *src = NULL;
    int err = pf_ckpt_open(from, &src);

    err = err ? err : pf_reshard_run(comm, src, &job, &report);
    pf_ckpt_free(src);
    return err;
}

/* Name, length and digest of every file. */
static bool same_files(const char *dir_a, const char *dir_b)
{
    struct pf_ckpt *a = NULL, *b = NULL;
    bool same =
        pf_ckpt_open(dir_a, &a) == 0 && pf_ckpt_open(dir_b, &b) == 0 && a->n_files == b->n_files;

    for (int64_t f = 0; same && f < a->n_files; f++) {
        same = strcmp(a->files[f].name, b->files[f].name) == 0 &&
               a->files[f].bytes == b->files[f].bytes &&
               strcmp(a->files[f].digest, b->files[f].digest) == 0;
    }
    pf_ckpt_free(a);
    pf_ckpt_free(b);
    return same;
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

/* Loading what this rank holds in layout `to` from the checkpoint of another. */
static void loads(const char *dir, const char *from, struct layout *to)
{
    struct pf_ckpt *ckpt = NULL;
    uint64_t n, all = 0;
    int err = pf_ckpt_open(dir, &ckpt);

    for (int64_t f = 0; !err && f < ckpt->n_files; f++) {
        all += ckpt->files[f].bytes;
    }
    clear(to);
    n = bytes_read();
    err = err ? err : pf_ckpt_load(world, ckpt, to->live, to->n, true);
    n = bytes_read() - n;
    all_ok(err == 0 && is_filled(to), "r2_any_layout_into_any", from, to->text);
    err = pf_comm_all_reduce(world, &n, 1, PF_COMM_U64, PF_COMM_SUM);
    all_ok(err == 0 && n < all + 20000, "r2_any_layout_into_any: files are read once", from,
           to->text);
    pf_ckpt_free(ckpt);
}

/* A layout of as many ranks as there are: saved by them, it is what a change of layout writes. */
static void direct_write(struct layout *l, int number)
{
    const struct pf_ckpt_save save = {.output_dir = at("direct-%d", number), .step = 1};

    fill(l);
    all_ok(pf_ckpt_save(world, &save, l->live, l->n, NULL) == 0, "the ranks save", l->text, NULL);
    if (rank == 0) {
        const int err = reshard(NULL, at("source"), at("alone-%d", number), l);
        ok(err == 0 &&
               same_files(at("direct-%d/checkpoint-000001", number), at("alone-%d", number)),
           "r1_direct_write: what a change of layout writes is what the ranks save: %s %s", l->text,
           err ? pf_error_message() : "");
    }
    (void)pf_comm_barrier(world);
}

static void every_layout(struct layout *layouts, size_t n)
{
    for (size_t a = 0; a < n; a++) {
        if (layouts[a].n_ranks == size) {
            direct_write(&layouts[a], (int)a);
        }
        all_ok(reshard(world, at("source"), at("a-%d", (int)a), &layouts[a]) == 0,
               "the ranks share a change of layout", layouts[a].text, NULL);
        if (layouts[a].n_ranks == size && rank == 0) {
            ok(same_files(at("a-%d", (int)a), at("alone-%d", (int)a)),
               "they write what one process writes: %s", layouts[a].text);
        }
        for (size_t b = 0; b < n; b++) {
            if (layouts[b].n_ranks == size) {
                loads(at("a-%d", (int)a), layouts[a].text, &layouts[b]);
            }
        }
    }
}

/* State that all ranks hold alike: each piece once, and no file has more than one piece more than
 * another. */
static void replicated_state(void)
{
    enum { N_TENSORS = 13, N_ELEMENTS = 5 };
    struct pf_ckpt_live live[N_TENSORS];
    float data[N_ELEMENTS] = {0};
    char names[N_TENSORS][8];
    const struct pf_ckpt_save save = {.output_dir = at("replicated"), .step = 1};
    struct pf_ckpt *ckpt = NULL;
    int64_t n_in_file[8] = {0}, lo = INT64_MAX, hi = 0;

    for (int i = 0; i < N_TENSORS; i++) {
        snprintf(names[i], sizeof names[i], "w%d", i);
        live[i] = (struct pf_ckpt_live){.name = names[i],
                                        .dtype = PF_DTYPE_F32,
                                        .n_dims = 1,
                                        .shape = {N_ELEMENTS},
                                        .box = {.n_dims = 1, .hi = {N_ELEMENTS}},
                                        .data = data};
    }
    bool holds = pf_ckpt_save(world, &save, live, N_TENSORS, NULL) == 0 &&
                 pf_ckpt_open(at("replicated"), &ckpt) == 0 && ckpt->n_files == size;
    for (int i = 0; holds && i < N_TENSORS; i++) {
        holds = ckpt->tensors[i].n_pieces == 1;
        n_in_file[ckpt->tensors[i].pieces[0].file]++;
    }
    for (int f = 0; f < size; f++) {
        lo = n_in_file[f] < lo ? n_in_file[f] : lo;
        hi = n_in_file[f] > hi ? n_in_file[f] : hi;
    }
    all_ok(holds && hi - lo <= 1, "r1_balanced: what all hold is written once, by each as much",
           "13 equal tensors", NULL);
    pf_ckpt_free(ckpt);
}

/* Memory of a load besides what is loaded: chunks, not the tensor. One process that loads for itself has
 * windows in flight (pf/ckpt.h). */
static void load_in_little_memory(void)
{
    const bool alone = pf_comm_size(world) == 1;
    const int64_t n = (int64_t)(alone ? 48 : 12) << 20;
    const size_t allowed = (size_t)(alone ? 50 : 10) << 20;
    float *const data = pf_alloc((size_t)n * sizeof *data);
    struct pf_ckpt_live live = {.name = "w",
                                .dtype = PF_DTYPE_F32,
                                .n_dims = 1,
                                .shape = {n},
                                .box = {.n_dims = 1, .hi = {n}},
                                .data = data};
    const struct pf_ckpt_save save = {.output_dir = at("memory"), .step = 1};
    struct pf_ckpt *ckpt = NULL;
    int err;

    for (int64_t i = 0; i < n; i++) {
        data[i] = (float)(i % 1000003);
    }
    err = pf_ckpt_save(world, &save, &live, 1, NULL);
    err = err ? err : pf_ckpt_open(at("memory"), &ckpt);
    memset(data, 0, (size_t)n * sizeof *data);
    pf_mem_reset_peak();
    const size_t before = pf_mem_live_bytes();
    err = err ? err : pf_ckpt_load(world, ckpt, &live, 1, true);
    const size_t more = pf_mem_peak_bytes() - before;
    bool same = err == 0;
    for (int64_t i = 0; same && i < n; i++) {
        same = data[i] == (float)(i % 1000003);
    }
    all_ok(same && more < allowed,
           "r8_load_in_little_memory: loading takes chunks besides the tensor",
           alone ? "50 MiB of 192" : "10 MiB of 48", NULL);
    pf_ckpt_free(ckpt);
    pf_free(data);
}

/* The source: everything whole, saved by rank 0 alone. */
static int save_source(const struct pf_model_spec *spec)
{
    const int real_size = size;
    struct layout l;
    int err;

    size = 1;
    const bool made = layout_make(&l, "dp=1", spec);
    size = real_size;
    if (!made) {
        return PF_EBUG;
    }
    fill(&l);
    const struct pf_ckpt_save save = {.output_dir = at("first"), .step = 1};
    err = pf_ckpt_save(NULL, &save, l.live, l.n, NULL);
    layout_release(&l);
    return err ? err : pf_rename_durable(at("first/checkpoint-000001"), at("source"));
}

int main(int argc, char **argv)
{
    const struct pf_comm_options options = {.timeout_s = 60};
    struct layout layouts[N_TEXTS];

    if (pf_comm_init(&argc, &argv, &options, &world) != 0) {
        fprintf(stderr, "%s\n", pf_error_message());
        return 6;
    }
    rank = pf_comm_rank(world);
    size = pf_comm_size(world);
    if (rank == 0) {
        scratch_make();
    }
    if (pf_comm_broadcast(world, scratch_dir, sizeof scratch_dir, 0) != 0) {
        return 6;
    }
    struct pf_model_spec spec = fixture_spec("llama-tied", "config.json");
    spec.n_layers = 4;
    all_ok(rank != 0 || save_source(&spec) == 0, "a source is saved", "dp=1", NULL);
    for (size_t i = 0; i < N_TEXTS; i++) {
        if (!layout_make(&layouts[i], texts[i], &spec)) {
            fprintf(stderr, "%s: %s\n", texts[i], pf_error_message());
            return 1;
        }
    }
    every_layout(layouts, N_TEXTS);
    replicated_state();
    load_in_little_memory();
    for (size_t i = 0; i < N_TEXTS; i++) {
        layout_release(&layouts[i]);
    }
    (void)pf_comm_barrier(world);
    int status = 0;
    if (rank == 0) {
        scratch_remove();
        status = done();
    }
    return pf_comm_finalize(world) != 0 ? 6 : status;
}
