/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every layout trains the same model: runs of pf-train under mpirun against one of one process with the
 * same samples. Losses and norms of all steps, all gradients of the first: equal within 1e-5 in float32
 * and 1e-2 else (DESIGN section 5), and equal to the bit where no sum is cut differently: pipelines of
 * any schedule, recomputation.
 *
 * The list covers every pair of an axis and a degree, of a schedule and a number of chunks, of a dtype
 * and an axis. With PF_LAYOUTS=N, N random legal layouts instead (PF_LAYOUTS_SEED; make check-long).
 */
#include <pf/compare.h>
#include <pf/error.h>

#include "scratch.h"
#include "tap.h"

#include <stdlib.h>
#include <sys/wait.h>

enum { N_STEPS = 10, MICRO = 4 }; /* micro-batches of a step, over all data-parallel ranks */

static const struct family {
    const char *name, *config;
} families[] = {
    {"gpt2", "{\"model_type\":\"gpt2\",\"vocab_size\":131,\"n_embd\":32,\"n_layer\":8,\"n_head\":4,"
             "\"n_positions\":32}"},
    {"llama", "{\"model_type\":\"llama\",\"vocab_size\":131,\"hidden_size\":32,"
              "\"intermediate_size\":48,\"num_hidden_layers\":8,\"num_attention_heads\":4,"
              "\"num_key_value_heads\":2,\"max_position_embeddings\":32}"},
    {"qwen2", "{\"model_type\":\"qwen2\",\"vocab_size\":131,\"hidden_size\":32,"
              "\"intermediate_size\":48,\"num_hidden_layers\":8,\"num_attention_heads\":4,"
              "\"num_key_value_heads\":1,\"max_position_embeddings\":32,"
              "\"tie_word_embeddings\":true}"},
    {"qwen3", "{\"model_type\":\"qwen3\",\"vocab_size\":131,\"hidden_size\":32,"
              "\"intermediate_size\":48,\"num_hidden_layers\":8,\"num_attention_heads\":8,"
              "\"num_key_value_heads\":2,\"head_dim\":8,\"max_position_embeddings\":32,"
              "\"tie_word_embeddings\":true}"},
    {"ernie4_5", "{\"model_type\":\"ernie4_5\",\"vocab_size\":131,\"hidden_size\":32,"
                 "\"intermediate_size\":48,\"num_hidden_layers\":8,\"num_attention_heads\":4,"
                 "\"num_key_value_heads\":2,\"head_dim\":8,\"max_position_embeddings\":32,"
                 "\"use_bias\":true,\"tie_word_embeddings\":true}"},
};
#define N_FAMILIES (int)(sizeof families / sizeof families[0])

enum { GPT2, LLAMA, QWEN2, QWEN3, ERNIE };

static const char *const dtypes[] = {"float32", "bfloat16", "float16"};
enum { F32, BF16, F16 };

struct layout {
    int family, dtype, dp, tp, sp, pp, vpp;
    const char *schedule; /* NULL: 1F1B; "balanced" is a key of its own */
    const char *more;     /* further words, which the run of one process gets too */
};

static const struct layout listed[] = {
    /* each axis alone */
    {GPT2, F32, 2, 1, 0, 1, 1, NULL, ""},
    {LLAMA, F32, 4, 1, 0, 1, 1, NULL, ""},
    {GPT2, F32, 1, 2, 0, 1, 1, NULL, ""},
    {LLAMA, F32, 1, 4, 0, 1, 1, NULL, ""},
    {QWEN3, F32, 1, 8, 0, 1, 1, NULL, ""},
    {QWEN2, F32, 1, 4, 1, 1, 1, NULL, ""},
    {GPT2, F32, 1, 4, 1, 1, 1, NULL, ""},
    {ERNIE, F32, 1, 2, 1, 1, 1, NULL, ""},
    {GPT2, F32, 1, 1, 0, 2, 1, NULL, ""},
    {LLAMA, F32, 1, 1, 0, 4, 1, NULL, ""},
    {QWEN2, F32, 1, 1, 0, 8, 1, NULL, ""},
    /* each schedule, each number of chunks */
    {QWEN3, F32, 1, 1, 0, 2, 1, "FThenB", ""},
    {ERNIE, F32, 1, 1, 0, 4, 1, "ZBH1", ""},
    {GPT2, F32, 1, 1, 0, 2, 1, "ZBH1", ""},
    {QWEN2, F32, 1, 1, 0, 2, 2, "VPP", ""},
    {LLAMA, F32, 1, 1, 0, 2, 4, NULL, ""},
    {GPT2, F32, 1, 1, 0, 4, 2, NULL, ""},
    {QWEN3, F32, 1, 1, 0, 2, 2, "FThenB", ""},
    {LLAMA, F32, 1, 1, 0, 2, 2, "balanced", ""},
    {ERNIE, F32, 1, 1, 0, 2, 4, "balanced", ""},
    /* two and three axes */
    {GPT2, F32, 2, 2, 0, 1, 1, NULL, ""},
    {QWEN3, F32, 2, 2, 1, 1, 1, NULL, ""},
    {LLAMA, F32, 2, 1, 0, 2, 1, NULL, ""},
    {QWEN2, F32, 2, 1, 0, 4, 1, NULL, ""},
    {LLAMA, F32, 1, 2, 0, 2, 1, NULL, ""},
    {GPT2, F32, 1, 2, 1, 2, 2, NULL, ""},
    {QWEN2, F32, 1, 4, 1, 2, 1, "ZBH1", ""},
    {QWEN3, F32, 1, 2, 0, 4, 2, NULL, ""},
    {ERNIE, F32, 2, 2, 1, 2, 1, NULL, ""},
    {GPT2, F32, 2, 2, 0, 2, 1, "FThenB", ""},
    {LLAMA, F32, 2, 2, 1, 2, 2, "balanced", ""},
    /* dtypes */
    {GPT2, BF16, 2, 1, 0, 1, 1, NULL, ""},
    {LLAMA, BF16, 1, 2, 0, 1, 1, NULL, ""},
    {QWEN2, BF16, 1, 2, 1, 1, 1, NULL, ""},
    {QWEN3, BF16, 1, 1, 0, 2, 2, NULL, ""},
    {ERNIE, BF16, 1, 1, 0, 2, 1, "ZBH1", ""},
    {LLAMA, F16, 2, 1, 0, 1, 1, NULL, ""},
    {GPT2, F16, 1, 2, 0, 1, 1, NULL, ""},
    {QWEN3, F16, 1, 2, 1, 2, 1, NULL, ""},
    {LLAMA, F16, 1, 1, 0, 2, 2, NULL, ""},
    /* recomputation, uneven stages, frozen tensors, documents */
    {GPT2, F32, 1, 2, 0, 2, 1, NULL, "recompute_granularity=full"},
    {LLAMA, F32, 1, 1, 0, 2, 2, NULL, "recompute_granularity=core_attn"},
    {QWEN3, F32, 1, 2, 1, 2, 1, NULL, "recompute_granularity=full_attn"},
    {LLAMA, F32, 1, 4, 0, 1, 1, NULL, "mp_async_allreduce=true"},
    {GPT2, F32, 1, 2, 1, 2, 1, NULL, "sp_async_reduce_scatter=true"},
    {QWEN2, BF16, 1, 4, 1, 1, 1, NULL, "sp_async_reduce_scatter=true"},
    {QWEN2, F32, 1, 1, 0, 2, 1, NULL, "num_layers_in_first_pipeline_stage=3"},
    {LLAMA, F32, 1, 1, 0, 3, 1, NULL, "pp_seg_method=0:1:7"},
    {QWEN2, F32, 1, 1, 0, 2, 1, NULL, "pp_seg_method=0:0"}, /* nothing but the embedding */
    {GPT2, F32, 1, 2, 1, 2, 1, NULL, "num_layers_in_first_pipeline_stage=8"}, /* but the head */
    {QWEN3, F32, 1, 2, 0, 2, 1, NULL, "'freeze=[\"*.layers.1.*\",\"*embed*\"]'"},
    {LLAMA, F32, 1, 2, 1, 2, 1, NULL, "pp_delay_scale_loss=false weight_decay=0.1"},
};
#define N_LISTED (int)(sizeof listed / sizeof listed[0])

static int run(const char *command)
{
    const int status = system(command);

    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool is_for_layout(const char *more)
{
    return strstr(more, "pipeline_stage") || strstr(more, "pp_seg");
}

static char *config_words(const struct layout *l, const char *dir)
{
    /* A loss scale at which no gradient overflows. */
    return pf_asprintf("'%s' model_name_or_path='%s' output_dir='%s' dtype=%s%s %s",
                       at("config.json"), at("%s.json", families[l->family].name), dir,
                       dtypes[l->dtype], l->dtype == F16 ? " scale_loss=1024" : "",
                       is_for_layout(l->more) ? "" : l->more);
}

/* The run of one process of this family, dtype and further words, made once. */
static bool make_one(const struct layout *l, char dir_out[512])
{
    unsigned hash = 5381;

    for (const char *p = l->more; *p && !is_for_layout(l->more); p++) {
        hash = 33 * hash + (unsigned char)*p;
    }
    snprintf(dir_out, 512, "%s",
             at("one-%s-%s-%u", families[l->family].name, dtypes[l->dtype], hash));
    if (access(dir_out, F_OK) == 0) {
        return true;
    }
    char *const words = config_words(l, dir_out),
                *const command =
                    pf_asprintf("\"$PF_BIN/pf-train\" -q %s gradient_accumulation_steps=%d "
                                ">/dev/null 2>'%s'",
                                words, MICRO, at("err.txt"));
    const int status = run(command);

    pf_free(words);
    pf_free(command);
    return status == 0;
}

static int n_ranks(const struct layout *l)
{
    return l->dp * l->tp * l->pp;
}

static void describe(const struct layout *l, char text[256])
{
    snprintf(text, 256, "%s %s: dp=%d tp=%d%s pp=%d vpp=%d %s%s%s", families[l->family].name,
             dtypes[l->dtype], l->dp, l->tp, l->sp ? "+sp" : "", l->pp, l->vpp,
             l->schedule ? l->schedule : "1F1B", *l->more ? " " : "", l->more);
}

static bool make_two(const struct layout *l, const char *dir)
{
    const bool balanced = l->schedule && strcmp(l->schedule, "balanced") == 0;
    char *const words = config_words(l, dir);
    char *const command = pf_asprintf(
        "\"$PF_ROOT/scripts/mpirun-here\" -n %d \"$PF_BIN/pf-train\" -q %s "
        "gradient_accumulation_steps=%d tensor_model_parallel_size=%d sequence_parallel=%s "
        "pipeline_model_parallel_size=%d virtual_pipeline_model_parallel_size=%d "
        "best_unbalanced_scheduler=%s pipeline_schedule_mode=%s %s >/dev/null 2>'%s'",
        n_ranks(l), words, MICRO / l->dp, l->tp, l->sp ? "true" : "false", l->pp, l->vpp,
        balanced ? "true" : "false", balanced || !l->schedule ? "1F1B" : l->schedule,
        is_for_layout(l->more) ? l->more : "", at("err.txt"));
    const int status = run(command);

    pf_free(words);
    pf_free(command);
    return status == 0;
}

static void show_error(void)
{
    char *const command =
        pf_asprintf("grep -v '^ *$' '%s' | head -5 | sed 's/^/# /'", at("err.txt"));

    (void)run(command);
    pf_free(command);
}

/* Where no sum is cut differently, nothing differs. */
static bool is_exact(const struct layout *l)
{
    return l->dp == 1 && l->tp == 1;
}

static void compare(const struct layout *l)
{
    struct pf_compare report = {0};
    char one[512], name[256];
    const char *const two = at("two");

    describe(l, name);
    if (l->sp) {
        printf("# r43_sequence_parallel:\n");
    }
    if (!make_one(l, one) || !make_two(l, two)) {
        ok(false, "%s runs", name);
        show_error();
        return;
    }
    const int err =
        pf_compare_runs(one, two, l->dtype == F32 ? 1e-5 : 1e-2, l->dtype == F32, &report);
    const bool exact = is_exact(l);
    ok(err == 0 && report.steps == N_STEPS && report.within && (!exact || report.identical),
       "%s: losses %.1e, norms %.1e, gradients %.1e and %.1e%s", name,
       report.rows[PF_COMPARE_LOSS].difference, report.rows[PF_COMPARE_NORM].difference,
       report.rows[PF_COMPARE_ALL_GRADIENTS].difference,
       report.rows[PF_COMPARE_GRADIENTS].difference, report.identical ? ", identical" : "");
    if (err) {
        printf("# %s\n", pf_error_message());
    }
    (void)pf_rmtree(two);
}

/* Random layouts ------------------------------------------------------------------------------- */

static unsigned long long seed_state;

static int pick(int n)
{
    seed_state = seed_state * 6364136223846793005ull + 1442695040888963407ull;
    return (int)((seed_state >> 33) % (unsigned)n);
}

static struct layout draw(void)
{
    static const char *const schedules[] = {NULL, "FThenB", "ZBH1", "VPP", "balanced"};
    static const char *const more[] = {"",
                                       "",
                                       "",
                                       "recompute_granularity=full",
                                       "recompute_granularity=full_attn",
                                       "weight_decay=0.1",
                                       "'freeze=[\"*.layers.1.*\"]'"};
    struct layout l;

    do {
        l = (struct layout){.family = pick(N_FAMILIES),
                            .dtype = pick(3) ? F32 : pick(3),
                            .dp = 1 << pick(3),
                            .tp = 1 << pick(3),
                            .sp = pick(2),
                            .pp = 1 << pick(4),
                            .vpp = 1 << pick(3),
                            .schedule = schedules[pick(5)],
                            .more = more[pick(7)]};
        l.vpp = l.pp > 1 ? l.vpp : 1;
        if (l.schedule && strcmp(l.schedule, "ZBH1") == 0) {
            l.vpp = 1;
            l.more = strstr(l.more, "recompute") ? "" : l.more;
        }
    } while (n_ranks(&l) > 8 || n_ranks(&l) < 2 || l.pp * l.vpp > 8);
    return l;
}

static void prepare(void)
{
    char text[1024];

    for (int f = 0; f < N_FAMILIES; f++) {
        put_text(at("%s.json", families[f].name), families[f].config);
    }
    snprintf(text, sizeof text,
             "{\"from_scratch\":true,\"input_dir\":\"synthetic:markov?vocab=64&order=1&seed=3\","
             "\"output_dir\":\"out\",\"max_seq_length\":16,\"per_device_train_batch_size\":2,"
             "\"max_steps\":%d,\"learning_rate\":1e-3,\"logging_steps\":1,\"save_steps\":-1,"
             "\"threads\":1,\"dump\":\"grads\",\"dump_steps\":[1]}",
             N_STEPS);
    put_text(at("config.json"), text);
}

int main(void)
{
    const char *const random = getenv("PF_LAYOUTS"), *const seed = getenv("PF_LAYOUTS_SEED");
    char root[4096];

    if (!getenv("PF_BIN")) {
        setenv("PF_BIN", realpath("bin", root) ? root : "bin", 1);
        setenv("PF_ROOT", realpath(".", root) ? root : ".", 1);
    }
    scratch_make();
    prepare();
    seed_state = seed ? strtoull(seed, NULL, 10) : 1;
    for (int i = 0; i < (random ? (int)strtol(random, NULL, 10) : N_LISTED); i++) {
        const struct layout l = random ? draw() : listed[i];
        compare(&l);
    }
    scratch_remove();
    return done();
}
