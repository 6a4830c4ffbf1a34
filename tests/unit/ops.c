/* SPDX-License-Identifier: Apache-2.0 */
/* ops.c - the op registry: what serves, how a choice is forced and recorded, what is refused. */
#include <pf/error.h>
#include <pf/file.h>
#include <pf/mem.h>
#include <pf/ops.h>

#include "tap.h"

#include <stdlib.h>
#include <string.h>

static struct pf_ops *opened(const struct pf_ops_options *options)
{
    struct pf_ops *ops = NULL;

    if (pf_ops_open(options, &ops) != 0) {
        ok(false, "the registry opens: %s", pf_error_message());
        exit(done());
    }
    return ops;
}

static void every_op_has_a_name_and_a_reference(void)
{
    struct pf_ops *ops = opened(&(struct pf_ops_options){.ref_only = true});
    bool all = true;

    for (int i = 0; i < PF_OP_COUNT; i++) {
        enum pf_op op = PF_OP_COUNT;
        all = all && pf_op_from_name(pf_op_name((enum pf_op)i), &op) == 0 && (int)op == i;
        for (int d = 0; d < 3; d++) {
            const enum pf_dtype dtypes[] = {PF_DTYPE_F32, PF_DTYPE_BF16, PF_DTYPE_F16};
            const struct pf_kernel_row *row = pf_ops_chosen(ops, op, dtypes[d]);
            all = all && row && strcmp(row->variant, "ref") == 0;
        }
    }
    enum pf_op op;
    ok(all, "every op has a name and a reference for F32, BF16 and F16");
    ok(pf_op_from_name("gem", &op) == PF_EINVAL, "an unknown name is refused");
    ok(pf_ops_chosen(ops, PF_OP_ADD, PF_DTYPE_I64) == NULL, "nothing serves I64");
    pf_ops_free(ops);
}

static void rows_come_in_falling_preference(void)
{
    struct pf_ops *ops = opened(NULL);
    struct pf_ops_row row;
    bool falling = true;
    int last = 1 << 30, n_chosen = 0, n = 0;

    for (; pf_ops_row(ops, PF_OP_GEMM, PF_DTYPE_F32, n, &row); n++) {
        falling = falling && row.kernel->preference <= last && row.why[0] != '\0';
        last = row.kernel->preference;
        n_chosen += row.chosen;
        if (row.chosen) {
            ok(row.usable && row.kernel == pf_ops_chosen(ops, PF_OP_GEMM, PF_DTYPE_F32),
               "the chosen row can be used");
        }
    }
    ok(falling && n_chosen == 1 && last == 0, "%d rows of gemm, one chosen, the reference last", n);
    pf_ops_free(ops);
}

static void a_choice_can_be_forced_and_recorded(void)
{
    struct pf_ops *ops = opened(&(struct pf_ops_options){.n_threads = 1});
    struct pf_ops *other = opened(&(struct pf_ops_options){.n_threads = 1});
    struct pf_ops *more = opened(&(struct pf_ops_options){.n_threads = 2});
    struct pf_ops *ref = opened(&(struct pf_ops_options){.n_threads = 1, .ref_only = true});

    ok(pf_ops_choices_digest(ops) == pf_ops_choices_digest(other), "equal choices, equal digests");
    ok(pf_ops_choices_digest(ops) != pf_ops_choices_digest(more), "threads enter the digest");
    ok(pf_ops_choose(ops, PF_OP_GEMM, PF_DTYPE_F32, "ref") == 0, "the reference can be chosen");
    ok(pf_ops_choices_digest(ops) != pf_ops_choices_digest(other), "a choice enters the digest");
    for (int i = 0; i < pf_ops_n_choices(other); i++) {
        const struct pf_ops_choice c = pf_ops_choice_at(other, i);
        if (pf_ops_choose(ops, c.op, c.dtype, c.variant) != 0) {
            ok(false, "a recorded choice serves: %s", pf_error_message());
        }
    }
    ok(pf_ops_choices_digest(ops) == pf_ops_choices_digest(other), "recorded choices restore it");
    ok(pf_ops_choose(ops, PF_OP_GEMM, PF_DTYPE_F32, "abacus") == PF_ENOTSUP &&
           strstr(pf_error_message(), "'abacus'"),
       "an unknown variant is not supported");
    ok(strcmp(pf_ops_chosen(ref, PF_OP_GEMM, PF_DTYPE_F32)->variant, "ref") == 0 &&
           pf_ops_choose(ref, PF_OP_GEMM, PF_DTYPE_F32, "generic") == PF_ENOTSUP,
       "with ref_only nothing else serves");
    pf_ops_free(ops);
    pf_ops_free(other);
    pf_ops_free(more);
    pf_ops_free(ref);
}

static void options_are_checked(void)
{
    struct pf_ops *ops = NULL;

    ok(pf_ops_open(&(struct pf_ops_options){.isa = "avx1024"}, &ops) == PF_EUSAGE && !ops,
       "an unknown instruction set is a usage error");
    ok(pf_ops_open(&(struct pf_ops_options){.n_threads = -1}, &ops) == PF_EINVAL && !ops,
       "a negative thread count is invalid");
    ops = opened(&(struct pf_ops_options){.isa = "generic"});
    bool none_above = true;
    for (int i = 0; i < pf_ops_n_choices(ops); i++) {
        none_above = none_above && strncmp(pf_ops_choice_at(ops, i).variant, "avx", 3) != 0;
    }
    ok(none_above && strcmp(pf_ops_isa(ops), "generic") == 0, "isa caps what serves");
    pf_ops_free(ops);
    ops = opened(NULL);
    ok(pf_ops_threads(ops) >= 1 && strcmp(pf_ops_isa(ops), pf_ops_best_isa()) == 0,
       "defaults are this machine's");
    pf_ops_free(ops);
}

static void the_environment_forces_the_reference(void)
{
    struct pf_ops *ops = NULL;

    (void)setenv("PF_KERNELS", "ref", 1);
    ops = opened(NULL);
    ok(strcmp(pf_ops_chosen(ops, PF_OP_ADD, PF_DTYPE_F32)->variant, "ref") == 0,
       "PF_KERNELS=ref forces the reference");
    pf_ops_free(ops);
    ops = NULL;
    (void)setenv("PF_KERNELS", "table", 1);
    ops = opened(NULL);
    const char *const by_table = pf_ops_chosen(ops, PF_OP_GEMM, PF_DTYPE_BF16)->variant;
    ok(strcmp(by_table, "ref") != 0 && pf_ops_measure(ops) == 0 &&
           pf_ops_chosen(ops, PF_OP_GEMM, PF_DTYPE_BF16)->variant == by_table,
       "PF_KERNELS=table measures nothing");
    pf_ops_free(ops);
    ops = NULL;
    (void)setenv("PF_KERNELS", "fast", 1);
    ok(pf_ops_open(NULL, &ops) == PF_EUSAGE && !ops, "another PF_KERNELS is a usage error");
    (void)unsetenv("PF_KERNELS");
}

#define REFUSED(call, words, claim)                                                                \
    ok((call) == PF_EINVAL && strstr(pf_error_message(), words), "%s is refused (%s)", claim,      \
       pf_error_message())

static void arguments_are_checked(void)
{
    struct pf_ops *ops = opened(&(struct pf_ops_options){.n_threads = 1});
    float x[16] = {0}, y[16] = {5};
    int32_t ids[2] = {0, 4}, positions[2] = {0, 3}, first[2] = {0, 2};
    struct pf_gemm_args g = {.m = 2, .n = 2, .k = 2, .a = x, .lda = 2, .b = x, .ldb = 2};
    struct pf_embed_fwd_args e = {2, 2, 4, 3, 2, 0, 0, ids, NULL, x, NULL, y};
    struct pf_attention_fwd_args a = {1, 2, 1,     1, 2,    2, 2, 2, 2, 2, x,
                                      x, x, first, 1, 0.0f, 0, 0, 0, 0, y, y + 8};

    g.c = y;
    g.ldc = 2;
    g.c_dtype = PF_DTYPE_F32;
    REFUSED(pf_op_embed_fwd(ops, PF_DTYPE_F32, &e), "token 4", "a token beyond the table");
    e.first_row = 1;
    REFUSED(pf_op_embed_fwd(ops, PF_DTYPE_F32, &e), "needs n_vocab", "a part of an unknown whole");
    e.n_vocab = 4;
    REFUSED(pf_op_embed_fwd(ops, PF_DTYPE_F32, &e), "token 4", "a token beyond the vocabulary");
    e.first_row = -1;
    REFUSED(pf_op_embed_fwd(ops, PF_DTYPE_F32, &e), "negative",
            "a part that begins before the whole");
    e.first_row = e.n_vocab = 0;
    ids[1] = 3;
    e.pos_table = x;
    e.positions = positions;
    REFUSED(pf_op_embed_fwd(ops, PF_DTYPE_F32, &e), "position 3", "a position beyond the table");
    REFUSED(pf_op_attention_fwd(ops, PF_DTYPE_F32, &a), "first_key", "a query that sees no key");
    first[1] = 1;
    a.first_head = 1;
    REFUSED(pf_op_attention_fwd(ops, PF_DTYPE_F32, &a), "not among 1", "a head beyond the last");
    a.first_head = 0;
    a.dropout_p = 1;
    REFUSED(pf_op_attention_fwd(ops, PF_DTYPE_F32, &a), "dropout_p", "dropout of everything");
    a.n_kv_heads = 2;
    REFUSED(pf_op_attention_fwd(ops, PF_DTYPE_F32, &a), "evenly", "more key heads than heads");
    g.lda = 1;
    REFUSED(pf_op_gemm(ops, PF_DTYPE_F32, &g), "overlap", "a leading dimension below the row");
    g.lda = 2;
    g.b = NULL;
    REFUSED(pf_op_gemm(ops, PF_DTYPE_F32, &g), "'b' is missing", "a missing matrix");
    g.b = (const char *)x + 1;
    REFUSED(pf_op_gemm(ops, PF_DTYPE_F32, &g), "aligned", "a crooked address");
    g.b = x;
    g.bias = x;
    g.accumulate = true;
    REFUSED(pf_op_gemm(ops, PF_DTYPE_F32, &g), "exclude", "a bias with accumulation");
    g.m = INT64_MAX / 2;
    g.bias = NULL;
    REFUSED(pf_op_gemm(ops, PF_DTYPE_F32, &g), "too large", "a size that overflows");
    g.m = -1;
    REFUSED(pf_op_gemm(ops, PF_DTYPE_F32, &g), "negative", "a negative size");
    ok(pf_op_gemm(ops, PF_DTYPE_I32, &g) == PF_ENOTSUP, "an op of integers is not supported");
    REFUSED(pf_op_vocab_ce_fwd(
                ops, PF_DTYPE_F32,
                &(struct pf_vocab_ce_fwd_args){2, 2, 2, 2, 4, (const int32_t[]){3, 4}, x, y}),
            "target 4", "a target beyond the vocabulary");
    REFUSED(pf_op_vocab_ce_bwd(
                ops, PF_DTYPE_F32,
                &(struct pf_vocab_ce_bwd_args){2, 2, 2, 2, 0, (const int32_t[]){0, 1}, y, x, 1}),
            "needs n_vocab", "a part of a vocabulary of unknown size");
    ok(y[0] == 5, "a refused call writes nothing");
    pf_ops_free(ops);
}

/* n = 0 is no error, and needs no arrays. */
static void empty_shapes_do_nothing(void)
{
    struct pf_ops *ops = opened(&(struct pf_ops_options){.n_threads = 1});
    struct pf_rmsnorm_fwd_args norm = {.n_rows = 0, .width = 4, .ldx = 4, .ldy = 4};
    struct pf_attention_fwd_args at = {.batch = 0, .seq = 4, .n_heads = 1, .n_kv_heads = 1};
    float weight[4] = {1, 1, 1, 1};

    norm.weight = weight;
    at.head_dim = at.v_head_dim = at.ldq = at.ldk = at.ldv = at.ldo = 4;
    ok(pf_op_add(ops, PF_DTYPE_F32, &(struct pf_add_args){.n = 0}) == 0 &&
           pf_op_adamw(ops, PF_DTYPE_F32, &(struct pf_adamw_args){.n = 0}) == 0 &&
           pf_op_gemm(ops, PF_DTYPE_F32, &(struct pf_gemm_args){.c_dtype = PF_DTYPE_F32}) == 0 &&
           pf_op_rmsnorm_fwd(ops, PF_DTYPE_F32, &norm) == 0 &&
           pf_op_attention_fwd(ops, PF_DTYPE_F32, &at) == 0,
       "empty shapes succeed");
    pf_ops_free(ops);
}

/* Scratch is kept: the second call of a shape allocates nothing. */
static void scratch_only_grows(void)
{
    struct pf_ops *ops = opened(&(struct pf_ops_options){.n_threads = 1});
    float dy[64] = {0}, dbias[32] = {0};

    ok(pf_op_bias_grad(ops, PF_DTYPE_F32, &(struct pf_bias_grad_args){2, 32, 32, dy, dbias}) == 0,
       "a call that needs scratch succeeds");
    const size_t bytes = pf_ops_scratch_bytes(ops);
    ok(pf_op_bias_grad(ops, PF_DTYPE_F32, &(struct pf_bias_grad_args){2, 8, 8, dy, dbias}) == 0 &&
           bytes > 0 && pf_ops_scratch_bytes(ops) == bytes,
       "a smaller one uses what is there");
    pf_ops_free(ops);
}

struct seen {
    int n;
    struct pf_ops_call last;
    struct pf_op_work work;
};

static void see(void *context, const struct pf_ops_call *call)
{
    struct seen *const seen = context;

    seen->n++;
    seen->last = *call;
    seen->work = pf_op_work(call->op, call->dtype, call->args);
}

static void calls_can_be_watched(void)
{
    struct pf_ops *ops = opened(&(struct pf_ops_options){.n_threads = 1});
    float a[6] = {1, 2, 3, 4, 5, 6}, b[12] = {1}, c[8] = {0};
    const struct pf_gemm_args gemm = {.m = 2,
                                      .n = 4,
                                      .k = 3,
                                      .a = a,
                                      .lda = 3,
                                      .b = b,
                                      .ldb = 4,
                                      .c = c,
                                      .ldc = 4,
                                      .c_dtype = PF_DTYPE_F32};
    const struct pf_add_args add = {.n = 6, .a = a, .b = a, .y = a};
    struct seen seen = {0};

    pf_ops_observe(ops, see, &seen);
    int err = pf_op_gemm(ops, PF_DTYPE_F32, &gemm);
    ok(err == 0 && seen.n == 1 && seen.last.op == PF_OP_GEMM && seen.last.args == &gemm &&
           seen.last.kernel == pf_ops_chosen(ops, PF_OP_GEMM, PF_DTYPE_F32) &&
           seen.last.ended >= seen.last.started && seen.last.started > 0,
       "an observer sees op, kernel, arguments and time of a call");
    ok(seen.work.flop == 48 && seen.work.bytes == 4 * (6 + 12 + 8),
       "a product of 2x4x3: %g flop, %g bytes", seen.work.flop, seen.work.bytes);
    err = pf_op_add(ops, PF_DTYPE_F32, &add);
    ok(err == 0 && seen.n == 2 && seen.work.flop == 0 && seen.work.bytes == 72,
       "a sum of six: no product, three arrays");
    err = pf_op_add(ops, PF_DTYPE_F32, &(struct pf_add_args){.n = 0});
    ok(err == 0 && seen.n == 2, "an empty call is no call");
    pf_ops_observe(ops, NULL, NULL);
    err = pf_op_add(ops, PF_DTYPE_F32, &add);
    ok(err == 0 && seen.n == 2, "nobody watches any more");
    pf_ops_free(ops);
}

static void work_is_counted(void)
{
    struct pf_attention_bwd_args attention = {0};

    attention.fwd = (struct pf_attention_fwd_args){
        .batch = 2, .seq = 3, .n_heads = 4, .n_kv_heads = 2, .head_dim = 8, .v_head_dim = 8};
    /* 2 sequences x 4 heads x 6 visible pairs; two products of 8 forward, five backward. */
    const struct pf_op_work fwd = pf_op_work(PF_OP_ATTENTION_FWD, PF_DTYPE_BF16, &attention.fwd),
                            bwd = pf_op_work(PF_OP_ATTENTION_BWD, PF_DTYPE_BF16, &attention);
    ok(fwd.flop == 48 * 2 * 16 && bwd.flop == 48 * 2 * 40 && fwd.bytes == 6 * (2 * 96 + 4 * 4),
       "causal attention: %g and %g flop, %g bytes", fwd.flop, bwd.flop, fwd.bytes);
    float x[10];
    const struct pf_adamw_args adamw = {.n = 10, .weight_out = x};
    ok(pf_op_work(PF_OP_ADAMW, PF_DTYPE_BF16, &adamw).bytes == 10 * (7 * 4 + 2),
       "AdamW reads four arrays, writes three and the rounded weight");
}

/* The one file of the cache directory, for the caller to free; NULL without. */
static char *cached_file(const char *cache)
{
    char *const dir = pf_path_join(cache, "pf");
    struct pf_str_list names = {0};
    char *path = NULL;

    if (pf_dir_list(dir, &names) == 0 && names.n == 1) {
        path = pf_path_join(dir, names.items[0]);
    }
    pf_str_list_release(&names);
    pf_free(dir);
    return path;
}

static const char *measured(const char *cache, enum pf_dtype dtype)
{
    struct pf_ops *ops = opened(&(struct pf_ops_options){.n_threads = 1});
    const char *variant = "failed";

    (void)setenv("XDG_CACHE_HOME", cache, 1);
    if (pf_ops_measure(ops) == 0) {
        variant = pf_ops_chosen(ops, PF_OP_GEMM, dtype)->variant;
    }
    pf_ops_free(ops); /* variants are static text */
    return variant;
}

static void a_measurement_is_kept(void)
{
    char cache[] = "/tmp/pf-ops-XXXXXX";
    char *before = NULL, *after = NULL;
    size_t n_before = 0, n_after = 0;

    if (!mkdtemp(cache)) {
        ok(false, "a directory for the cache");
        return;
    }
    const char *first = measured(cache, PF_DTYPE_BF16);
    char *path = cached_file(cache);
    for (int i = 0; i < 8 && !path; i++) { /* nothing is kept while others use the machine */
        first = measured(cache, PF_DTYPE_BF16);
        path = cached_file(cache);
    }
    if (!path) {
        skip("a measurement is kept", "nothing to choose from, or a busy machine");
        (void)pf_rmtree(cache);
        return;
    }
    ok(strcmp(first, "failed") != 0 && strcmp(first, "ref") != 0, "%s serves BF16 products", first);
    ok(strcmp(measured(cache, PF_DTYPE_BF16), first) == 0, "the next process chooses the same");

    (void)pf_file_read_all(path, 0, &before, &n_before);
    (void)pf_file_write_atomic(path, "{\"gemm\": {}", 11);
    ok(strcmp(measured(cache, PF_DTYPE_F32), "failed") != 0, "a damaged file is not believed");
    for (int i = 0; i < 8 && n_after <= 11; i++) {
        pf_free(after);
        after = NULL;
        (void)measured(cache, PF_DTYPE_F32);
        (void)pf_file_read_all(path, 0, &after, &n_after);
    }
    if (n_after > 11) {
        ok(n_before > 11, "but replaced");
    } else {
        skip("but replaced", "a busy machine");
    }

    char *const slow = before ? strstr(before, "\"BF16\": \"") : NULL;
    if (slow) {
        memcpy(slow + 9, "re", 2); /* a variant that is not there */
        (void)pf_file_write_atomic(path, before, n_before);
    }
    ok(slow && strncmp(measured(cache, PF_DTYPE_BF16), "re", 2) != 0,
       "nor is one that names what does not serve");
    ok(strcmp(measured("/proc/none", PF_DTYPE_F32), "failed") != 0,
       "a cache that cannot be written is no error");
    pf_free(before);
    pf_free(after);
    pf_free(path);
    (void)pf_rmtree(cache);
}

static double fake_time, fake_step;

static double fake_clock(void)
{
    return fake_time += fake_step;
}

/* By a clock that goes on by one step at each look, every product takes a step, and as much again
 * passes before the next. */
static void a_measurement_keeps_within_its_time(void)
{
    static const double steps[] = {1e-4, 1e-3, 0.02, 0.1, 10};

    (void)setenv("XDG_CACHE_HOME", "/proc/none", 1);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        struct pf_ops *ops = opened(&(struct pf_ops_options){.n_threads = 1});
        struct seen seen = {0};
        struct pf_ops_row row;
        int n_usable = 0;
        for (int r = 0; pf_ops_row(ops, PF_OP_GEMM, PF_DTYPE_F32, r, &row); r++) {
            n_usable += row.usable && strncmp(row.kernel->variant, "dnnl", 4) == 0;
        }
        fake_step = steps[i];
        fake_time = 0;
        pf_ops_observe(ops, see, &seen);
        const int err = pf_ops_measure_by(ops, fake_clock);
        if (n_usable == 0) {
            skip("a measurement keeps within its time", "nothing to choose from");
        } else {
            const double busy = seen.n * fake_step;
            const bool has_begun =
                seen.n > 0 || fake_step > PF_OPS_MEASURE_SECONDS / (3 * PF_OPS_PRODUCT_COUNT);
            ok(err == 0 && has_begun && busy <= PF_OPS_MEASURE_SECONDS + fake_step,
               "%d products of %g s: at most the last ends after the limit", seen.n, fake_step);
        }
        pf_ops_free(ops);
    }
}

static void products_are_of_kinds(void)
{
    struct pf_gemm_args g = {.m = 7, .n = 100, .k = 199, .c_dtype = PF_DTYPE_F32};
    enum pf_ops_product product;
    bool named = true;

    ok(pf_ops_product_of(&g) == PF_OPS_PRODUCT_INPUT, "b as it lies: the gradient of an input");
    g.k = 200;
    ok(pf_ops_product_of(&g) == PF_OPS_PRODUCT_INPUT_LONG, "k twice n is long");
    g.trans_b = true;
    ok(pf_ops_product_of(&g) == PF_OPS_PRODUCT_LONG, "of a forward product too");
    g.m = 70000;
    ok(pf_ops_product_of(&g) == PF_OPS_PRODUCT_LONG, "the number of tokens does not matter");
    g.k = 199;
    ok(pf_ops_product_of(&g) == PF_OPS_PRODUCT_OTHER, "others are plain");
    g.trans_b = false;
    g.trans_a = true;
    ok(pf_ops_product_of(&g) == PF_OPS_PRODUCT_OTHER, "a transposed alone is no gradient");
    g.accumulate = true;
    ok(pf_ops_product_of(&g) == PF_OPS_PRODUCT_GRADIENT, "added to fp32 it is one");
    for (int p = 0; p < PF_OPS_PRODUCT_COUNT; p++) {
        named =
            named &&
            pf_ops_product_from_name(pf_ops_product_name((enum pf_ops_product)p), &product) == 0 &&
            product == (enum pf_ops_product)p;
    }
    ok(named && pf_ops_product_from_name("wide", &product) == PF_EINVAL, "kinds have names");
}

static void gradients_may_have_another_row(void)
{
    struct pf_ops *ops = opened(&(struct pf_ops_options){.n_threads = 1});
    struct pf_ops *other = opened(&(struct pf_ops_options){.n_threads = 1});
    const int n = pf_ops_n_choices(ops);
    float x[4] = {1, 2, 3, 4}, c[4] = {0};
    struct pf_gemm_args g = {.m = 2, .n = 2, .k = 2, .a = x, .lda = 2, .b = x, .ldb = 2};
    struct seen seen = {0};
    bool there = false;

    g.c = c;
    g.ldc = 2;
    g.c_dtype = PF_DTYPE_F32;
    ok(pf_ops_choose_product(ops, PF_DTYPE_F32, PF_OPS_PRODUCT_GRADIENT, "ref") == 0 &&
           pf_ops_n_choices(ops) == n + 1,
       "a row for weight gradients is one choice more");
    pf_ops_observe(ops, see, &seen);
    ok(pf_op_gemm(ops, PF_DTYPE_F32, &g) == 0 && strcmp(seen.last.kernel->variant, "ref") != 0,
       "it does not serve the other products");
    g.trans_a = g.accumulate = true;
    ok(pf_op_gemm(ops, PF_DTYPE_F32, &g) == 0 && strcmp(seen.last.kernel->variant, "ref") == 0,
       "it serves the gradients");
    ok(pf_ops_choices_digest(ops) != pf_ops_choices_digest(other), "it enters the digest");
    for (int i = 0; i < pf_ops_n_choices(ops); i++) {
        const struct pf_ops_choice choice = pf_ops_choice_at(ops, i);
        there = there || (choice.product && choice.op == PF_OP_GEMM);
        if ((choice.product
                 ? pf_ops_choose_product(other, choice.dtype, choice.product, choice.variant)
                 : pf_ops_choose(other, choice.op, choice.dtype, choice.variant)) != 0) {
            ok(false, "a recorded choice serves: %s", pf_error_message());
        }
    }
    ok(there && pf_ops_choices_digest(ops) == pf_ops_choices_digest(other), "and is restored");
    ok(pf_ops_choose(ops, PF_OP_GEMM, PF_DTYPE_F32, "generic") == 0 && pf_ops_n_choices(ops) == n,
       "a choice for gemm is one for its gradients too");
    ok(pf_ops_choose_product(ops, PF_DTYPE_F32, PF_OPS_PRODUCT_GRADIENT, "abacus") == PF_ENOTSUP,
       "an unknown row is refused for them too");
    pf_ops_free(ops);
    pf_ops_free(other);
}

int main(void)
{
    (void)unsetenv("PF_KERNELS");
    every_op_has_a_name_and_a_reference();
    rows_come_in_falling_preference();
    a_choice_can_be_forced_and_recorded();
    options_are_checked();
    the_environment_forces_the_reference();
    arguments_are_checked();
    empty_shapes_do_nothing();
    scratch_only_grows();
    calls_can_be_watched();
    work_is_counted();
    pf_ops_free(NULL);
    products_are_of_kinds();
    gradients_may_have_another_row();
    a_measurement_keeps_within_its_time();
    a_measurement_is_kept();
    return done();
}
