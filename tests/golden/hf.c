/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pf-train against transformers and torch: logits, hidden states, gradients, ten steps of AdamW of the
 * Hugging Face fixtures, obtained as a user obtains them: a config, pf-train, dump_steps, metrics.jsonl,
 * the exported model. The tolerances are those that the fixtures' README derives.
 *
 * A folder is taken from ../shared/fixtures/hf where that is there, else from tests/fixtures/hf, which
 * holds a part; what is missing is skipped aloud.
 */
#include <pf/ckpt.h>
#include <pf/error.h>
#include <pf/file.h>
#include <pf/json.h>
#include <pf/mem.h>
#include <pf/safetensors.h>
#include <pf/str.h>

#include "../unit/tap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TOLERANCE_LOSS 1e-6   /* relative */
#define TOLERANCE_LOGITS 5e-5 /* absolute */
#define TOLERANCE_GRAD 2e-5   /* relative L2, per tensor */
#define TOLERANCE_LOG 5e-6    /* relative, loss and norm of ten steps */
#define TOLERANCE_HIDDEN 5e-5 /* of the largest magnitude */

static char scratch[] = "/tmp/pf-golden-XXXXXX";
static const char *root; /* of the fixtures in use */

/* Reading -------------------------------------------------------------------------------------- */

struct array {
    float *x;
    int64_t n;
};

static struct pf_box whole(const struct pf_ckpt_tensor *t)
{
    struct pf_box box = {.n_dims = t->n_dims};

    memcpy(box.hi, t->shape, sizeof box.hi);
    return box;
}

/* A tensor of a checkpoint or safetensors file as floats; n < 0 if it cannot be read. */
static struct array load(const char *path, const char *name)
{
    struct array a = {NULL, -1};
    struct pf_ckpt *c = NULL;

    if (pf_ckpt_open(path, &c) != 0) {
        printf("# %s\n", pf_error_message());
        return a;
    }
    const struct pf_ckpt_tensor *const t = pf_ckpt_find(c, name, PF_ROLE_WEIGHT);
    if (t) {
        const struct pf_box box = whole(t);
        a.n = pf_box_count(&box);
        a.x = pf_calloc_array((size_t)a.n + 1, sizeof *a.x);
        if (pf_ckpt_read_box(c, t, &box, PF_DTYPE_F32, a.x) != 0) {
            printf("# %s\n", pf_error_message());
            a.n = -1;
        }
    }
    pf_ckpt_free(c);
    return a;
}

static double max_abs_difference(const char *pa, const char *na, const char *pb, const char *nb)
{
    struct array a = load(pa, na), b = load(pb, nb);
    double most = a.n >= 0 && a.n == b.n ? 0 : HUGE_VAL;

    for (int64_t i = 0; most < HUGE_VAL && i < a.n; i++) {
        most = fmax(most, fabs((double)a.x[i] - b.x[i]));
    }
    pf_free(a.x);
    pf_free(b.x);
    return most;
}

/* |a - b| / |b| over the first n elements of both. */
static double distance(const float *a, const float *b, int64_t n)
{
    double d = 0, norm = 0;

    for (int64_t i = 0; i < n; i++) {
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return norm > 0 ? sqrt(d / norm) : sqrt(d);
}

static double relative_l2(const char *pa, const char *pb, const char *name)
{
    struct array a = load(pa, name), b = load(pb, name);
    const double d = a.n >= 0 && a.n == b.n ? distance(a.x, b.x, a.n) : HUGE_VAL;

    pf_free(a.x);
    pf_free(b.x);
    return d;
}

static double number(const struct pf_json *doc, const char *path)
{
    const struct pf_json *const node = pf_json_find(doc, path);
    double x = NAN;

    return node && pf_json_as_f64(node, &x) == 0 ? x : NAN;
}

static bool exists(const char *folder, const char *file)
{
    char path[512];

    snprintf(path, sizeof path, "%s/%s/%s", root, folder, file);
    return pf_path_exists(path);
}

/* Running -------------------------------------------------------------------------------------- */

/* Run pf-train on `ranks` ranks with key=value words; returns its exit status. Output to a log. */
static int run_train(int ranks, const char *out, const char *words)
{
    char command[4096], launch[64] = "";
    const char *const bin = getenv("PF_BIN") ? getenv("PF_BIN") : "bin";

    if (ranks > 1) {
        snprintf(launch, sizeof launch, "scripts/mpirun-here -n %d ", ranks);
    }
    snprintf(command, sizeof command,
             "rm -rf %s/%s; echo '{\"logging_steps\":1,\"save_steps\":-1,\"threads\":1}' >"
             "%s/base.json; %s%s/pf-train %s/base.json output_dir=%s/%s %s >%s/log 2>&1",
             scratch, out, scratch, launch, bin, scratch, scratch, out, words, scratch);
    const int status = system(command);
    if (status != 0) {
        printf("# %s\n", command);
        snprintf(command, sizeof command, "tail -n 5 %s/log | sed 's/^/# /'", scratch);
        printf("%s", system(command) == 0 ? "" : "# no log\n");
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Value `key` of the line of step `step` in a run's metrics. */
static double metric(const char *out, int step, const char *key)
{
    char path[512], *text = NULL;
    size_t len;
    double value = NAN;

    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", scratch, out);
    if (pf_file_read_all(path, 0, &text, &len) != 0) {
        return NAN;
    }
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        struct pf_json *doc = NULL;
        int64_t at = -1;
        if (pf_json_parse_text(line, (size_t)(end - line), path, &doc) == 0 &&
            !pf_json_get(doc, "event") && pf_json_i64(doc, "step", -1, &at) == 0 && at == step) {
            value = number(doc, key);
        }
        pf_json_free(doc);
    }
    pf_free(text);
    return value;
}

static bool near(double got, double want, double relative)
{
    if (fabs(got - want) <= relative * fabs(want)) {
        return true;
    }
    printf("# got %.9g, want %.9g, off by %.2e relative\n", got, want, fabs(got / want - 1));
    return false;
}

/* What is compared ------------------------------------------------------------------------------ */

static void check_grads(const char *folder, const char *file, const char *out, const char *what)
{
    char want[512], got[512], worst_name[128] = "";
    struct pf_st *st = NULL;
    double worst = 0;
    size_t n = 0;

    snprintf(want, sizeof want, "%s/%s/%s", root, folder, file);
    snprintf(got, sizeof got, "%s/%s/dump/step-000001/grads.safetensors", scratch, out);
    if (!pf_path_exists(want)) {
        skip(what, "these gradients are not in this clone");
        return;
    }
    if (pf_st_open(want, &st) == 0) {
        for (; n < pf_st_n_tensors(st); n++) {
            const char *const name = pf_st_tensor(st, n)->name;
            const double d = relative_l2(got, want, name);
            if (!(d <= worst)) {
                worst = d;
                snprintf(worst_name, sizeof worst_name, "%s", name);
            }
        }
        pf_st_close(st);
    }
    ok(n > 0 && worst <= TOLERANCE_GRAD, "%s %s: %zu gradients, worst %.1e (%s)", folder, what, n,
       worst, worst_name);
}

static void check_hidden(const char *folder, const char *out)
{
    char want[512], got[512], name[64];
    double worst = 0;
    int n = 0;

    snprintf(want, sizeof want, "%s/%s/golden.safetensors", root, folder);
    snprintf(got, sizeof got, "%s/%s/dump/step-000001/hidden.safetensors", scratch, out);
    for (int i = -2; i < 8; i++) {
        if (i >= 0) {
            snprintf(name, sizeof name, "hidden.layer.%d", i);
        } else {
            snprintf(name, sizeof name, "%s", i == -1 ? "hidden.final_norm" : "hidden.embed");
        }
        struct array a = load(want, name);
        double most = 1;
        for (int64_t j = 0; j < a.n; j++) {
            most = fmax(most, fabs(a.x[j]));
        }
        if (a.n > 0) {
            worst = fmax(worst, max_abs_difference(want, name, got, name) / most);
            n++;
        }
        pf_free(a.x);
    }
    ok(n >= 4 && worst <= TOLERANCE_HIDDEN, "%s: %d hidden states, worst %.1e", folder, n, worst);
}

static void check_logits(const char *folder, const char *golden_name, const char *out,
                         const char *what)
{
    char want[512], got[512];

    snprintf(want, sizeof want, "%s/%s/golden.safetensors", root, folder);
    snprintf(got, sizeof got, "%s/%s/dump/step-000001/logits.safetensors", scratch, out);
    const double d = max_abs_difference(want, golden_name, got, "logits");
    ok(d <= TOLERANCE_LOGITS, "%s %s: logits within %.1e", folder, what, d);
}

static long long seq_of(const char *folder)
{
    char path[512];
    struct pf_st *st = NULL;
    long long s = 0;

    snprintf(path, sizeof path, "%s/%s/golden.safetensors", root, folder);
    if (pf_st_open(path, &st) == 0) {
        s = (long long)pf_st_find(st, "input_ids")->shape[1];
        pf_st_close(st);
    }
    return s;
}

/* Words of one step on the golden batch. */
static void batch_words(const char *folder, const char *model, const char *ids, int b, char *words,
                        size_t n)
{
    snprintf(words, n,
             "model_name_or_path=%s input_dir=%s/%s/golden.safetensors#%s max_seq_length=%lld "
             "per_device_train_batch_size=%d max_steps=1 dump_steps=[1] dump=logits,grads,hidden "
             "learning_rate=1e-3",
             model, root, folder, ids, seq_of(folder), b);
}

static void plain(const char *folder, const struct pf_json *g, int ranks)
{
    const char *const what = ranks == 1 ? "plain" : "2 ranks";
    char words[2048], model[512];

    snprintf(model, sizeof model, "%s/%s", root, folder);
    batch_words(folder, model, "input_ids,labels", 2 / ranks, words, sizeof words);
    ok(run_train(ranks, "plain", words) == 0, "%s %s: a step", folder, what);
    ok(near(metric("plain", 1, "loss"), number(g, "plain.loss_f64"), TOLERANCE_LOSS), "%s %s: loss",
       folder, what);
    ok(near(metric("plain", 1, "grad_norm"), number(g, "plain.grad_norm_f64"), TOLERANCE_LOG),
       "%s %s: gradient norm", folder, what);
    ok(metric("plain", 1, "tokens") == number(g, "plain.tokens"), "%s %s: tokens", folder, what);
    check_logits(folder, "logits", "plain", what);
    check_hidden(folder, "plain");
    check_grads(folder, "grads.safetensors", "plain", what);
}

static void masked(const char *folder, const struct pf_json *g)
{
    char words[2048], model[512];

    snprintf(model, sizeof model, "%s/%s", root, folder);
    batch_words(folder, model, "input_ids,labels_masked", 2, words, sizeof words);
    ok(run_train(1, "masked", words) == 0, "%s masked: a step", folder);
    ok(near(metric("masked", 1, "loss"), number(g, "masked.loss_f64"), TOLERANCE_LOSS),
       "%s masked: loss", folder);
    ok(near(metric("masked", 1, "grad_norm"), number(g, "masked.grad_norm_f64"), TOLERANCE_LOG),
       "%s masked: gradient norm", folder);
    ok(metric("masked", 1, "tokens") == number(g, "masked.tokens"), "%s masked: tokens", folder);
}

/* The same model in other clothes. */
static void variant(const char *folder, const char *sub, const char *golden_name)
{
    char words[2048], model[512];

    if (!exists(folder, sub)) {
        return;
    }
    snprintf(model, sizeof model, "%s/%s/%s", root, folder, sub);
    batch_words(folder, model, "input_ids,labels", 2, words, sizeof words);
    ok(run_train(1, "variant", words) == 0, "%s/%s: a step", folder, sub);
    check_logits(folder, golden_name, "variant", sub);
}

/* bf16 weights and activations: as far from fp32 as torch's bf16 is, give or take a half. */
static void bfloat16(const char *folder, const struct pf_json *g)
{
    char words[2048], model[512], want[512], got[512];
    double sum = 0, most = 0;

    snprintf(model, sizeof model, "%s/%s", root, folder);
    snprintf(want, sizeof want, "%s/%s/golden.safetensors", root, folder);
    snprintf(got, sizeof got, "%s/bf16/dump/step-000001/logits.safetensors", scratch);
    batch_words(folder, model, "input_ids,labels", 2, words, sizeof words);
    const size_t len = strlen(words);
    snprintf(words + len, sizeof words - len, " dtype=bfloat16");
    ok(run_train(1, "bf16", words) == 0, "%s bf16: a step", folder);
    struct array a = load(got, "logits"), b = load(want, "logits");
    for (int64_t i = 0; i < a.n && a.n == b.n; i++) {
        const double d = fabs((double)a.x[i] - b.x[i]);
        sum += d;
        most = fmax(most, d);
    }
    const double mean = a.n > 0 ? sum / (double)a.n : HUGE_VAL;
    ok(mean > 0 && mean <= 1.5 * number(g, "bf16.logits_mean_abs_diff") &&
           most <= 1.5 * number(g, "bf16.clean_logits_max_abs_diff"),
       "%s bf16: logits off by %.4f in the mean (torch %.4f), %.3f at most (torch %.3f)", folder,
       mean, number(g, "bf16.logits_mean_abs_diff"), most,
       number(g, "bf16.clean_logits_max_abs_diff"));
    ok(near(metric("bf16", 1, "loss"), number(g, "plain.loss_f64"), 1e-2), "%s bf16: loss", folder);
    pf_free(a.x);
    pf_free(b.x);
}

static void old_config(const char *folder)
{
    char words[2048], model[512], command[4096];

    snprintf(model, sizeof model, "%s/v4", scratch);
    snprintf(command, sizeof command,
             "rm -rf %s; mkdir %s; cp %s/%s/model.safetensors %s; cp %s/%s/config.v4.json "
             "%s/config.json",
             model, model, root, folder, model, root, folder, model);
    ok(system(command) == 0, "%s: the older config is put in place", folder);
    batch_words(folder, model, "input_ids,labels", 2, words, sizeof words);
    ok(run_train(1, "v4-run", words) == 0, "%s config.v4.json: a step", folder);
    check_logits(folder, "logits", "v4-run", "config.v4.json");
}

static void check_log(const char *folder, const struct pf_json *g, const char *out, int ranks)
{
    double worst = 0;

    for (int i = 0; i < 10; i++) {
        char loss[64], norm[64], lr[64];
        snprintf(loss, sizeof loss, "train.log[%d].loss_f64", i);
        snprintf(norm, sizeof norm, "train.log[%d].grad_norm_f64", i);
        snprintf(lr, sizeof lr, "train.log[%d].lr", i);
        const double dl = fabs(metric(out, i + 1, "loss") / number(g, loss) - 1);
        const double dn = fabs(metric(out, i + 1, "grad_norm") / number(g, norm) - 1);
        const double dr = fabs(metric(out, i + 1, "learning_rate") / number(g, lr) - 1);
        worst = !(dl <= worst) ? dl : worst;
        worst = !(dn <= worst) ? dn : worst;
        worst = !(dr <= 1e-12) ? HUGE_VAL : worst;
    }
    ok(worst <= TOLERANCE_LOG, "%s: losses and norms of ten steps on %d ranks, worst %.1e", folder,
       ranks, worst);
}

static void check_final(const char *folder, const struct pf_json *g, const char *out, int ranks)
{
    char want[512], got[512], worst_name[128] = "";
    const struct pf_json *const bounds = pf_json_find(g, "train.f32_vs_f64.final_max_abs");
    double worst = 0;

    snprintf(want, sizeof want, "%s/%s/final.safetensors", root, folder);
    snprintf(got, sizeof got, "%s/%s/hf/model.safetensors", scratch, out);
    if (!pf_path_exists(want)) {
        skip("final weights", "those of this folder are not in this clone");
        return;
    }
    for (size_t i = 0; i < pf_json_n(bounds); i++) {
        const char *const name = pf_json_key(bounds, i);
        double bound = 0;
        pf_json_as_f64(pf_json_child(bounds, i), &bound);
        const double d = max_abs_difference(got, name, want, name) / (20 * bound + 5e-6);
        if (!(d <= worst)) {
            worst = d;
            snprintf(worst_name, sizeof worst_name, "%s", name);
        }
    }
    ok(pf_json_n(bounds) > 0 && worst <= 1,
       "%s: final weights on %d ranks, worst at %.2f of the bound (%s)", folder, ranks, worst,
       worst_name);
}

static double moment_distance(const struct pf_ckpt *c, const struct pf_ckpt_tensor *t,
                              const char *want)
{
    const struct pf_box box = whole(t);
    char name[256];
    double d = HUGE_VAL;

    snprintf(name, sizeof name, "%s.%s", t->name,
             t->role == PF_ROLE_MOMENT1 ? "exp_avg" : "exp_avg_sq");
    struct array a = load(want, name);
    float *const mine = pf_calloc_array((size_t)pf_box_count(&box), sizeof *mine);
    if (a.n == pf_box_count(&box) && pf_ckpt_read_box(c, t, &box, PF_DTYPE_F32, mine) == 0) {
        d = distance(mine, a.x, a.n);
    }
    pf_free(mine);
    pf_free(a.x);
    return d;
}

static void moments(const char *folder, const char *out)
{
    char want[512], got[512];
    struct pf_ckpt *c = NULL;
    double worst = 0;
    int n = 0;

    snprintf(want, sizeof want, "%s/%s/final_moments.safetensors", root, folder);
    snprintf(got, sizeof got, "%s/%s/checkpoint-000010", scratch, out);
    if (!pf_path_exists(want)) {
        skip("AdamW's moments", "the golden moments are not in this clone");
        return;
    }
    ok(pf_ckpt_open(got, &c) == 0, "%s: the checkpoint of step 10 opens", folder);
    for (int64_t i = 0; c && i < c->n_tensors; i++) {
        if (c->tensors[i].role == PF_ROLE_MOMENT1 || c->tensors[i].role == PF_ROLE_MOMENT2) {
            worst = fmax(worst, moment_distance(c, &c->tensors[i], want));
            n++;
        }
    }
    pf_ckpt_free(c);
    ok(n > 0 && worst <= TOLERANCE_GRAD, "%s: %d moments after ten steps, worst %.1e", folder, n,
       worst);
}

static void ten_steps(const char *folder, const struct pf_json *g, int ranks)
{
    char words[2048];

    snprintf(
        words, sizeof words,
        "model_name_or_path=%s/%s input_dir=%s/%s/golden.safetensors#train max_seq_length=%lld "
        "per_device_train_batch_size=%d max_steps=10 learning_rate=1e-3 min_lr=1e-4 "
        "lr_scheduler_type=cosine warmup_steps=3 weight_decay=0.1 max_grad_norm=1.0 "
        "save_steps=10",
        root, folder, root, folder, seq_of(folder), 2 / ranks);
    ok(run_train(ranks, "train", words) == 0, "%s: ten steps of AdamW on %d ranks", folder, ranks);
    check_log(folder, g, "train", ranks);
    check_final(folder, g, "train", ranks);
    if (strcmp(folder, "qwen3") == 0) {
        moments(folder, "train");
    }
}

/* Two micro-batches of two sequences as one step of four: the golden's [2,B,S] is read as [1,4,S]. */
static bool write_batch_of_four(const char *folder, const char *kind, const char *path)
{
    char source[512], labels[64];
    struct pf_st *st = NULL;

    snprintf(source, sizeof source, "%s/%s/golden.safetensors", root, folder);
    snprintf(labels, sizeof labels, "accum.%s.labels", kind);
    if (pf_st_open(source, &st) != 0) {
        return false;
    }
    const struct pf_st_tensor *const t = pf_st_find(st, "accum.input_ids");
    const uint64_t s = t->shape[2], bytes = 4 * s * 8, shape[] = {1, 4, s};
    int64_t *const ids = pf_alloc(bytes), *const targets = pf_alloc(bytes);
    const struct pf_st_source sources[] = {{"input_ids", PF_DTYPE_I64, 3, shape, ids},
                                           {"labels", PF_DTYPE_I64, 3, shape, targets}};
    unlink(path);
    const bool fine = pf_st_read(st, t, 0, bytes, ids) == 0 &&
                      pf_st_read(st, pf_st_find(st, labels), 0, bytes, targets) == 0 &&
                      pf_st_save(path, NULL, 0, sources, 2) == 0;
    pf_st_close(st);
    pf_free(ids);
    pf_free(targets);
    return fine;
}

static void accumulation(const char *folder, const struct pf_json *g, const char *kind, int ranks,
                         int batch)
{
    char path[512], file[64], words[2048], field[64];

    snprintf(path, sizeof path, "%s/accum.safetensors", scratch);
    ok(write_batch_of_four(folder, kind, path), "%s: the batch of four is written", folder);
    snprintf(words, sizeof words,
             "model_name_or_path=%s/%s input_dir=%s max_seq_length=%lld global_train_batch_size=4 "
             "per_device_train_batch_size=%d max_steps=1 dump_steps=[1] dump=grads",
             root, folder, path, seq_of(folder), batch);
    ok(run_train(ranks, "accum", words) == 0, "%s: %s accumulation, %d ranks of %d", folder, kind,
       ranks, batch);
    snprintf(field, sizeof field, "accumulation.%s.loss_as_one_batch", kind);
    ok(near(metric("accum", 1, "loss"), number(g, field), TOLERANCE_LOSS),
       "%s: %s accumulation: loss", folder, kind);
    snprintf(file, sizeof file, "grads_accum_%s.safetensors", kind);
    check_grads(folder, file, "accum", kind);
}

/* torch's padding_idx: row 0 gets no gradient from the input side, only from the tied head. */
static void padding_row(const char *folder)
{
    char words[2048], model[512], want[512], got[512];

    snprintf(model, sizeof model, "%s/%s", root, folder);
    snprintf(want, sizeof want, "%s/%s/golden.safetensors", root, folder);
    snprintf(got, sizeof got, "%s/pad/dump/step-000001/grads.safetensors", scratch);
    batch_words(folder, model, "pad.input_ids,pad.input_ids", 2, words, sizeof words);
    ok(run_train(1, "pad", words) == 0, "%s: a step with padding tokens", folder);
    struct array a = load(got, "model.embed_tokens.weight"),
                 b = load(want, "pad.embed_grad_row0.as_is");
    const double d = b.n > 0 && a.n >= b.n ? distance(a.x, b.x, b.n) : HUGE_VAL;
    ok(d <= TOLERANCE_GRAD, "%s: gradient of the padding row, off by %.1e", folder, d);
    pf_free(a.x);
    pf_free(b.x);
}

static void family(const char *folder)
{
    char path[512];
    struct pf_json *g = NULL;

    root = "../shared/fixtures/hf";
    if (!exists(folder, "golden.safetensors")) {
        root = "tests/fixtures/hf";
    }
    if (!exists(folder, "golden.safetensors")) {
        skip(folder, "the goldens of this family are not in this clone");
        return;
    }
    snprintf(path, sizeof path, "%s/%s/golden.json", root, folder);
    ok(pf_json_parse_file(path, &g) == 0, "%s: golden.json is read", folder);
    plain(folder, g, 1);
    plain(folder, g, 2);
    masked(folder, g);
    bfloat16(folder, g);
    old_config(folder);
    variant(folder, "sharded", "logits");
    variant(folder, "legacy", "logits");
    variant(folder, "bf16", "bf16_weights_f32_math.logits");
    ten_steps(folder, g, 1);
    ten_steps(folder, g, 2);
    if (pf_json_find(g, "accumulation.even")) {
        accumulation(folder, g, "even", 1, 2);
        accumulation(folder, g, "uneven", 1, 2);
        accumulation(folder, g, "even", 2, 1);
        accumulation(folder, g, "uneven", 2, 1);
    }
    if (strcmp(folder, "ernie4_5") == 0) {
        padding_row(folder);
    }
    pf_json_free(g);
}

int main(int argc, char **argv)
{
    static const char *const folders[] = {"gpt2",  "llama", "llama-tied",
                                          "qwen2", "qwen3", "ernie4_5"};

    if (!mkdtemp(scratch)) {
        return 4;
    }
    for (int i = 1; i < argc; i++) {
        family(argv[i]);
    }
    for (size_t i = 0; argc == 1 && i < sizeof folders / sizeof folders[0]; i++) {
        family(folders[i]);
    }
    ok(pf_rmtree(scratch) == 0, "the scratch directory is removed");
    return done();
}
