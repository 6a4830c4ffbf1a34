/* SPDX-License-Identifier: Apache-2.0 */
/* ranks: 8 */
/*
 * Row 2's matrix: what is saved under any of six layouts is, to the bit, what any of them loads and
 * saves again, and the next five losses are those of the run that was not broken off: equal where the
 * layouts add in the same order, else within 1e-5. In bf16, which has masters, the next loss within 1e-2.
 */
#include "train/train_internal.h"

#include "jobs.h"

#include <math.h>

enum { N_BEFORE = 2, N_AFTER = 5 };

static const struct layout {
    const char *name;
    int n_ranks, tp, pp;
} layouts[] = {{"single", 1, 1, 1}, {"dp=2", 2, 1, 1},      {"tp=2", 2, 2, 1},
               {"pp=2", 2, 1, 2},   {"dp=2,tp=2", 4, 2, 1}, {"dp=2,tp=2,pp=2", 8, 2, 2}};
enum { N_LAYOUTS = sizeof layouts / sizeof layouts[0] };

static int dp_of(const struct layout *l)
{
    return l->n_ranks / l->tp / l->pp;
}

/* Do two layouts add in the same order? Pipelines change none. */
static bool adds_alike(const struct layout *a, const struct layout *b)
{
    return a->tp == b->tp && dp_of(a) == dp_of(b);
}

/* A trainer of a layout, new or from a checkpoint. */
static int begin(const struct layout *l, const char *out, const char *resume, const char *dtype,
                 struct pf_config *config, struct pf_trainer **trainer_out)
{
    char words[5][300];
    const char *list[5];
    int n = 0;

    snprintf(words[n++], 300, "output_dir=%s", at("%s", out));
    snprintf(words[n++], 300, "tensor_model_parallel_size=%d", l->tp);
    snprintf(words[n++], 300, "pipeline_model_parallel_size=%d", l->pp);
    snprintf(words[n++], 300, "dtype=%s", dtype);
    if (resume) {
        snprintf(words[n++], 300, "resume_from_checkpoint=%s", at("%s/checkpoint-000002", resume));
    }
    for (int i = 0; i < n; i++) {
        list[i] = words[i];
    }
    PF_TRY(pf_config_read(at("config.json"), list, n, config));
    PF_TRY(pf_config_resolve(config, l->n_ranks));
    PF_TRY(pf_trainer_new(config, job_of(l->n_ranks), trainer_out));
    return pf_trainer_build(*trainer_out);
}

static int steps(struct pf_trainer *t, int n, double *losses_out)
{
    for (int i = 0; i < n; i++) {
        struct pf_step_report report;
        PF_TRY(pf_trainer_step(t, &report));
        losses_out[i] = report.loss;
    }
    return 0;
}

/* Train, save, go on. */
static int save(const struct layout *l, const char *out, const char *dtype, int n_after,
                double *losses_out)
{
    struct pf_config config = {0};
    struct pf_trainer *t = NULL;
    double before[N_BEFORE];
    int err = begin(l, out, NULL, dtype, &config, &t);

    err = err ? err : steps(t, N_BEFORE, before);
    err = err ? err : train_save(t);
    err = err ? err : steps(t, n_after, losses_out);
    pf_trainer_free(t);
    pf_config_release(&config);
    return err;
}

/* Load, save what was loaded, go on. */
static int load(const struct layout *l, const char *from, const char *out, const char *dtype,
                int n_after, double *losses_out)
{
    struct pf_config config = {0};
    struct pf_trainer *t = NULL;
    int err = begin(l, out, from, dtype, &config, &t);

    err = err ? err : train_save(t);
    err = err ? err : steps(t, n_after, losses_out);
    pf_trainer_free(t);
    pf_config_release(&config);
    return err;
}

static bool same_tensors(const char *a, const char *b)
{
    struct pf_ckpt *x = NULL, *y = NULL;
    bool same = pf_ckpt_open(at("%s", a), &x) == 0 && pf_ckpt_open(at("%s", b), &y) == 0 &&
                x->n_tensors > 0 && x->n_tensors == y->n_tensors &&
                strcmp(x->state_json, y->state_json) == 0;

    for (int64_t i = 0; same && i < x->n_tensors; i++) {
        char p[33] = "p", q[33] = "q";
        same = pf_ckpt_tensor_digest(x, &x->tensors[i], p) == 0 &&
               pf_ckpt_tensor_digest(y, &y->tensors[i], q) == 0 && strcmp(p, q) == 0;
    }
    pf_ckpt_free(x);
    pf_ckpt_free(y);
    return same;
}

static double worst(const double *a, const double *b, int n)
{
    double d = 0;

    for (int i = 0; i < n; i++) {
        d = fmax(d, fabs(a[i] - b[i]) / fabs(a[i]));
    }
    return d;
}

static void r2_saved_and_loaded_under_any_layout(const char *dtype, int n_after, double tolerance)
{
    for (int i = 0; i < N_LAYOUTS; i++) {
        const struct layout *const from = &layouts[i];
        double unbroken[N_AFTER] = {0}, resumed[N_AFTER] = {0};
        char saved[64], again[64];
        snprintf(saved, sizeof saved, "%s-%d", dtype, i);
        int err = rank < from->n_ranks ? save(from, saved, dtype, n_after, unbroken) : 0;
        all_ok(err == 0, "r2_saved_and_loaded_under_any_layout: %s, saved under %s", dtype,
               from->name);
        for (int k = 0; k < N_LAYOUTS; k++) {
            const struct layout *const to = &layouts[k];
            snprintf(again, sizeof again, "%s-%d-%d", dtype, i, k);
            err = rank < to->n_ranks ? load(to, saved, again, dtype, n_after, resumed) : 0;
            const bool same = rank != 0 || (!err && same_tensors(saved, again));
            all_ok(err == 0 && same,
                   "r2_saved_and_loaded_under_any_layout: %s, %s under %s: every tensor", dtype,
                   from->name, to->name);
            const double apart = rank == 0 ? worst(unbroken, resumed, n_after) : 0;
            all_ok(apart <= (adds_alike(from, to) ? 0 : tolerance),
                   "r2_saved_and_loaded_under_any_layout: %s, %s under %s: losses, %.1e apart",
                   dtype, from->name, to->name, apart);
        }
    }
}

int main(int argc, char **argv)
{
    jobs_begin(argc, argv);
    if (rank == 0) {
        put_text(
            at("config.json"),
            "{ \"model\": { \"model_type\": \"llama\", \"vocab_size\": 83, \"hidden_size\": 32,"
            " \"intermediate_size\": 48, \"num_hidden_layers\": 4, \"num_attention_heads\": 4,"
            " \"num_key_value_heads\": 2, \"tie_word_embeddings\": true },"
            " \"from_scratch\": true, \"input_dir\": \"synthetic:markov?vocab=64&order=1\","
            " \"max_steps\": 20, \"max_seq_length\": 8, \"learning_rate\": 1e-2,"
            " \"per_device_train_batch_size\": 1, \"global_train_batch_size\": 4,"
            " \"threads\": 1 }");
    }
    for (int i = 0; i < N_LAYOUTS; i++) {
        (void)job_of(layouts[i].n_ranks); /* with all ranks; later calls find it */
    }
    r2_saved_and_loaded_under_any_layout("float32", N_AFTER, 1e-5);
    r2_saved_and_loaded_under_any_layout("bfloat16", 1, 1e-2);
    return jobs_end();
}
