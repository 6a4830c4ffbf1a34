/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is read off the tensor table and the schedule: a run whose table gets one more row, or whose
 * schedule list is another, allocates, trains and saves accordingly without any other change. And
 * what a step may not do: allocate.
 */
#include <pf/ckpt.h>
#include <pf/error.h>
#include <pf/file.h>
#include <pf/mem.h>
#include <pf/str.h>
#include <pf/train.h>

#include "../unit/tap.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Every allocation of the process is counted here: pf's own, the libraries', the C library's. */
static volatile int64_t n_mallocs;
#if defined(__SANITIZE_ADDRESS__)
#define COUNTS_MALLOCS 0
#else
#define COUNTS_MALLOCS 1
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void *malloc(size_t n)
{
    __atomic_fetch_add(&n_mallocs, 1, __ATOMIC_RELAXED);
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t size)
{
    __atomic_fetch_add(&n_mallocs, 1, __ATOMIC_RELAXED);
    return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n)
{
    __atomic_fetch_add(&n_mallocs, 1, __ATOMIC_RELAXED);
    return __libc_realloc(p, n);
}
void *aligned_alloc(size_t align, size_t n)
{
    __atomic_fetch_add(&n_mallocs, 1, __ATOMIC_RELAXED);
    return __libc_memalign(align, n);
}
int posix_memalign(void **p, size_t align, size_t n)
{
    __atomic_fetch_add(&n_mallocs, 1, __ATOMIC_RELAXED);
    *p = __libc_memalign(align, n);
    return *p ? 0 : 12;
}
#endif

static char scratch[] = "/tmp/pf-edit-XXXXXX";

static const char base_config[] =
    "{\"model\":{\"model_type\":\"llama\",\"vocab_size\":64,\"hidden_size\":32,"
    "\"intermediate_size\":48,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"max_position_embeddings\":64},\"from_scratch\":true,"
    "\"input_dir\":\"synthetic:markov?vocab=64&order=1&seed=3\",\"max_seq_length\":16,"
    "\"per_device_train_batch_size\":2,\"learning_rate\":1e-2,\"save_steps\":-1,"
    "\"logging_steps\":1000,\"threads\":1}";

struct run {
    struct pf_config config; /* the trainer points to it */
    struct pf_trainer *trainer;
};

/* Resolve a run with extra key=value words; its trainer is NULL when that fails. */
static void begin(struct run *r, struct pf_comm *world, const char *name, const char *words)
{
    char path[256];
    struct pf_str_list list = {0};

    snprintf(path, sizeof path, "%s/config.json", scratch);
    ok(pf_file_write_atomic(path, base_config, strlen(base_config)) == 0, "%s: config is written",
       name);
    char *const all = pf_asprintf("%s output_dir=%s/%s", words, scratch, name);
    pf_str_split(all, ' ', true, &list);
    *r = (struct run){0};
    int err = pf_config_read(path, (const char *const *)list.items, (int)list.n, &r->config);
    err = err ? err : pf_config_resolve(&r->config, 1);
    err = err ? err : pf_trainer_new(&r->config, world, &r->trainer);
    ok(err == 0, "%s: the run is resolved %s", name, err ? pf_error_message() : "");
    pf_str_list_release(&list);
    pf_free(all);
}

static void finish(struct run *r)
{
    pf_trainer_free(r->trainer);
    pf_config_release(&r->config);
}

static bool build_and_run(struct run *r)
{
    int err = pf_trainer_build(r->trainer);

    err = err ? err : pf_trainer_run(r->trainer);
    if (err) {
        printf("# %s\n", pf_error_message());
    }
    return err == 0;
}

/* Give layer 0 of a llama model a bias behind its output projection. */
static void add_output_bias(struct pf_table *t)
{
    const int64_t at = pf_table_find(t, 0, PF_SLOT_O_W) - t->rows + 1;
    struct pf_tensor_row *const rows = pf_calloc_array((size_t)t->n_rows + 1, sizeof *rows);

    memcpy(rows, t->rows, (size_t)at * sizeof *rows);
    memcpy(rows + at + 1, t->rows + at, (size_t)(t->n_rows - at) * sizeof *rows);
    rows[at] = (struct pf_tensor_row){.name = "model.layers.0.self_attn.o_proj.bias",
                                      .slot = PF_SLOT_O_B,
                                      .layer = 0,
                                      .expert = -1,
                                      .n_dims = 1,
                                      .shape = {32},
                                      .tied_to = -1,
                                      .no_decay = true,
                                      .init = PF_INIT_ZEROS};
    pf_free(t->rows);
    t->rows = rows;
    t->n_rows++;
}

static void one_more_row(struct pf_comm *world)
{
    struct pf_ckpt *c = NULL;
    struct run r;
    char path[256];
    int moved = 0;

    begin(&r, world, "row", "max_steps=3 save_steps=3");
    add_output_bias(pf_trainer_table(r.trainer));
    ok(build_and_run(&r), "a run with a row that its family does not have");
    const float *const bias =
        pf_trainer_param(r.trainer, pf_table_find(pf_trainer_table(r.trainer), 0, PF_SLOT_O_B));
    for (int i = 0; i < 32; i++) {
        moved += bias[i] != 0;
    }
    ok(moved == 32, "the new bias is allocated and trained");
    snprintf(path, sizeof path, "%s/row/checkpoint-000003", scratch);
    ok(pf_ckpt_open(path, &c) == 0, "its checkpoint opens");
    ok(c && pf_ckpt_find(c, "model.layers.0.self_attn.o_proj.bias", PF_ROLE_WEIGHT) &&
           pf_ckpt_find(c, "model.layers.0.self_attn.o_proj.bias", PF_ROLE_MOMENT2),
       "the new bias is saved, with its moments");
    pf_ckpt_free(c);
    finish(&r);
}

/* All parameters of a finished run, copied; *n_out of them. */
static float *parameters(struct run *r, int64_t *n_out)
{
    struct pf_table *const t = pf_trainer_table(r->trainer);
    float *all = NULL;
    int64_t n = 0;

    for (int64_t i = 0; i < t->n_rows; i++) {
        const int64_t k = pf_tensor_row_count(&t->rows[i]);
        all = pf_realloc_array(all, (size_t)(n + k), sizeof *all);
        memcpy(all + n, pf_trainer_param(r->trainer, &t->rows[i]), (size_t)k * sizeof *all);
        n += k;
    }
    *n_out = n;
    return all;
}

static void another_list(struct pf_comm *world)
{
    const char *const words = "max_steps=3 gradient_accumulation_steps=2";
    struct run a, b;
    int64_t na, nb;

    begin(&a, world, "list-a", words);
    begin(&b, world, "list-b", words);
    struct pf_sched_list *const list = &pf_trainer_schedule(b.trainer)->stages[0];
    list->steps[1] = (struct pf_sched_step){PF_SCHED_FORWARD, 1, 0, 1, -1, -1};
    list->steps[2] = (struct pf_sched_step){PF_SCHED_BACKWARD, 0, 0, 0, -1, -1};
    list->steps[3] = (struct pf_sched_step){PF_SCHED_BACKWARD, 1, 0, 1, -1, -1};
    const size_t before = pf_mem_live_bytes();
    ok(build_and_run(&a), "a run as generated");
    const size_t between = pf_mem_live_bytes();
    ok(build_and_run(&b), "a run whose list was changed to forward, forward, backward, backward");
    const size_t after = pf_mem_live_bytes();
    ok(after - between > between - before, "the second live micro-batch is allocated (%zu, %zu)",
       after - between, between - before);
    float *const pa = parameters(&a, &na), *const pb = parameters(&b, &nb);
    ok(na == nb && memcmp(pa, pb, (size_t)na * sizeof *pa) == 0,
       "r31_another_schedule_same_bits: another schedule of the one stage gives the same %lld bits",
       (long long)na * 32);
    pf_free(pa);
    pf_free(pb);
    finish(&a);
    finish(&b);
}

static void a_list_that_cannot_run(struct pf_comm *world)
{
    struct run r;

    begin(&r, world, "bad-list", "max_steps=1 gradient_accumulation_steps=2");
    pf_trainer_schedule(r.trainer)->stages[0].steps[0].kind = PF_SCHED_BACKWARD;
    ok(pf_trainer_build(r.trainer) == PF_EINVAL, "a list that cannot run is refused: %s",
       pf_error_message());
    finish(&r);
}

struct counts {
    int64_t pf, all; /* pf's own allocations; those of every library too */
};

static struct counts count_of(struct pf_comm *world, const char *name, int steps)
{
    struct run r;
    char words[256];

    snprintf(words, sizeof words,
             "max_steps=%d max_grad_norm=0.5 logging_steps=1 gradient_accumulation_steps=2", steps);
    begin(&r, world, name, words);
    ok(pf_trainer_build(r.trainer) == 0, "%s: built", name);
    const struct counts before = {pf_mem_n_allocs(), n_mallocs};
    ok(pf_trainer_run(r.trainer) == 0, "%s: trained", name);
    const struct counts n = {pf_mem_n_allocs() - before.pf, n_mallocs - before.all};
    finish(&r);
    return n;
}

/* Runs that differ only in their number of steps allocate as often: whatever a run allocates besides
 * (its export, the first use of a library) is the same in both. oneDNN's execute makes some ten small
 * allocations a call that no setting avoids, so everything is counted with the reference kernels, and
 * pf's own allocations with the fast ones. */
static void nothing_is_allocated(struct pf_comm *world)
{
    count_of(world, "warm", 2);
    const struct counts few = count_of(world, "few", 2), many = count_of(world, "many", 12);
    ok(many.pf == few.pf, "pf allocates nothing in a step after the second (%lld and %lld in all)",
       (long long)few.pf, (long long)many.pf);
    if (!COUNTS_MALLOCS) {
        skip("nothing at all is allocated in a step", "the sanitizer has malloc");
        return;
    }
    setenv("PF_KERNELS", "ref", 1);
    count_of(world, "ref-warm", 2);
    const struct counts a = count_of(world, "ref-few", 2), b = count_of(world, "ref-many", 12);
    unsetenv("PF_KERNELS");
    ok(a.all == b.all, "with pf's own kernels nothing at all is (%lld and %lld in all)",
       (long long)a.all, (long long)b.all);
}

/* Row 63: whatever is recomputed, with dropout too, no bit changes and activations shrink. */
static void r63_recompute_changes_no_bit(struct pf_comm *world)
{
    static const char *const modes[] = {
        "recompute_granularity=full",
        "recompute_granularity=full recompute_num_layers=2",
        "recompute_granularity=full recompute_num_layers=3",
        "recompute_granularity=full recompute_method=block recompute_num_layers=1",
        "recompute_granularity=full_attn",
        "recompute_granularity=full_attn recompute_method=block recompute_num_layers=2",
        "recompute_granularity=core_attn",
    };
    const char *const words =
        "model={\"model_type\":\"gpt2\",\"vocab_size\":64,\"n_embd\":32,\"n_layer\":4,\"n_head\":4,"
        "\"n_positions\":64} max_steps=3 gradient_accumulation_steps=2 "
        "pipeline_schedule_mode=FThenB";
    struct run base;
    int64_t n_base, n;

    begin(&base, world, "saved", words);
    const size_t start = pf_mem_live_bytes();
    ok(build_and_run(&base), "r63_recompute_changes_no_bit: a run that saves everything");
    const size_t all = pf_mem_live_bytes() - start;
    float *const want = parameters(&base, &n_base);
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        char name[32], both[512];
        struct run r;
        snprintf(name, sizeof name, "recompute%zu", i);
        snprintf(both, sizeof both, "%s %s", words, modes[i]);
        begin(&r, world, name, both);
        const size_t before = pf_mem_live_bytes();
        ok(build_and_run(&r), "r63_recompute_changes_no_bit: %s", modes[i]);
        const size_t less = pf_mem_live_bytes() - before;
        float *const got = parameters(&r, &n);
        ok(n == n_base && memcmp(got, want, (size_t)n * sizeof *got) == 0,
           "r63_recompute_changes_no_bit: the same %lld parameters", (long long)n);
        ok(less < all, "r63_recompute_changes_no_bit: %zu bytes instead of %zu", less, all);
        pf_free(got);
        finish(&r);
    }
    pf_free(want);
    finish(&base);
}

/* The plan tells what each stage holds; with one stage, everything. */
static void r31_segments_are_printed(struct pf_comm *world)
{
    struct run r;
    char *text = NULL;
    size_t n = 0;

    begin(&r, world, "plan", "max_steps=1");
    FILE *const to = open_memstream(&text, &n);
    ok(pf_trainer_print_plan(r.trainer, false, to) == 0,
       "r31_segments_are_printed: the plan prints");
    fclose(to);
    ok(strstr(text, "stage 0: embedding, layers 0 to 1, final norm, head") != NULL,
       "r31_segments_are_printed: a stage and its layers");
    free(text);
    finish(&r);
}

int main(void)
{
    struct pf_comm *world = NULL;

    if (!mkdtemp(scratch) || pf_comm_init(NULL, NULL, &(struct pf_comm_options){0}, &world) != 0) {
        return 4;
    }
    nothing_is_allocated(world);
    one_more_row(world);
    another_list(world);
    a_list_that_cannot_run(world);
    r31_segments_are_printed(world);
    r63_recompute_changes_no_bit(world);
    ok(pf_rmtree(scratch) == 0, "the scratch directory is removed");
    pf_comm_finalize(world);
    return done();
}
