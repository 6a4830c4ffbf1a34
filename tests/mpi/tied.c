/* SPDX-License-Identifier: Apache-2.0 */
/* ranks: 4 */
/*
 * A tied weight lies on the first and on the last stage, each of which updates its copy: after every one
 * of 50 steps weight, master and moments are the same bits on both, and in the end those of one process.
 */
#include "train/train_internal.h"

#include <pf/digest.h>

#include "jobs.h"

enum { N_STEPS = 50 };

/* Does the other end have the same elements of the tied weight in a buffer? Collective over the ends. */
static int compare(struct pf_trainer *t, const struct train_buffer *buffer, int64_t row,
                   bool *same_out)
{
    struct pf_local_shard parts[PF_TABLE_MAX_BOXES];
    struct pf_digest both[2];
    const int n = pf_placement_local(t->place, row, buffer->role, rank, parts);
    const size_t size = pf_dtype_bytes(buffer->dtype);

    PF_TRY(n == 1 ? 0 : pf_fail(PF_EDIFFER, "an end of the pipeline has no tied weight"));
    const struct pf_digest mine =
        pf_digest_of((const uint8_t *)buffer->data + (size_t)parts[0].at * size,
                     (size_t)(parts[0].range_hi - parts[0].range_lo) * size);
    PF_TRY(pf_comm_all_gather(t->groups.ends, &mine, both, sizeof mine));
    *same_out = pf_digest_equal(&both[0], &both[1]);
    return 0;
}

static int compare_ends(struct pf_trainer *t, int64_t row)
{
    const struct train_buffer buffers[] = {{PF_ROLE_WEIGHT, t->config->dtype, t->narrow},
                                           {PF_ROLE_MASTER, PF_DTYPE_F32, t->master},
                                           {PF_ROLE_MOMENT1, PF_DTYPE_F32, t->moment1},
                                           {PF_ROLE_MOMENT2, PF_DTYPE_F32, t->moment2}};
    bool same = true;

    for (int i = 0; t->groups.ends && t->groups.n_stages > 1 && i < 4; i++) {
        bool one;
        PF_TRY(compare(t, &buffers[i], row, &one));
        same = same && one;
    }
    return same ? 0 : pf_fail(PF_EDIFFER, "after step %lld the ends differ", (long long)t->step);
}

/* Train as a job; rank 0 also gets the digest of the tied weight. */
static int train(struct pf_comm *job, const char *layout, struct pf_digest *digest_out)
{
    struct pf_config config = {0};
    struct pf_trainer *t = NULL;
    struct pf_str_list words = {0};
    int err = pf_str_split(layout, ' ', true, &words);

    err = err ? err
              : pf_config_read(at("config.json"), (const char *const *)words.items, (int)words.n,
                               &config);
    pf_str_list_release(&words);
    err = err ? err : pf_config_resolve(&config, pf_comm_size(job));
    err = err ? err : pf_trainer_new(&config, job, &t);
    err = err ? err : pf_trainer_build(t);
    const int64_t row = err ? 0 : pf_table_find(t->table, -1, PF_SLOT_EMBED) - t->table->rows;
    for (int i = 0; i < N_STEPS && !err; i++) {
        struct pf_step_report report;
        err = pf_trainer_step(t, &report);
        /* All learn of a difference before any goes on. */
        err = err ? err : pf_comm_all_agree(job, compare_ends(t, row), NULL);
    }
    if (!err && rank == 0 && t->layout->count[row] == pf_tensor_row_count(&t->table->rows[row])) {
        *digest_out = pf_digest_of(t->narrow + t->layout->param_at[row],
                                   (size_t)t->layout->count[row] * sizeof *t->narrow);
    }
    pf_trainer_free(t);
    pf_config_release(&config);
    return err;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *words;
        bool as_one; /* micro-batches and sums are those of one process */
    } layouts[] = {
        {"pipeline_model_parallel_size=4", true},
        {"pipeline_model_parallel_size=2 tensor_model_parallel_size=2 sequence_parallel=true",
         false},
        {"pipeline_model_parallel_size=2 virtual_pipeline_model_parallel_size=2", false},
        {"pipeline_model_parallel_size=4 freeze=[\"model.layers.1.*\"]", false}};
    struct pf_digest one = {{0}}, many = {{0}};

    jobs_begin(argc, argv);
    if (rank == 0) {
        put_text(
            at("config.json"),
            "{ \"model\": { \"model_type\": \"llama\", \"vocab_size\": 83, \"hidden_size\": 32,"
            " \"intermediate_size\": 48, \"num_hidden_layers\": 4, \"num_attention_heads\": 4,"
            " \"num_key_value_heads\": 2, \"tie_word_embeddings\": true },"
            " \"from_scratch\": true, \"input_dir\": \"synthetic:markov?vocab=64&order=1\","
            " \"max_steps\": 99, \"max_seq_length\": 8, \"learning_rate\": 1e-2,"
            " \"per_device_train_batch_size\": 1, \"global_train_batch_size\": 4,"
            " \"dtype\": \"bfloat16\", \"threads\": 1, \"output_dir\": \"out\" }");
    }
    (void)pf_comm_barrier(world);
    struct pf_comm *const alone = job_of(1);
    char words[400];
    snprintf(words, sizeof words, "output_dir=%s", at("one"));
    all_ok(!alone || train(alone, words, &one) == 0, "one process trains");
    for (int i = 0; i < 4; i++) {
        snprintf(words, sizeof words, "output_dir=%s %s", at("out-%d", i), layouts[i].words);
        const int err = train(world, words, &many);
        all_ok(err == 0, "r39_tied_copies_are_equal: after each of %d steps, %s", N_STEPS,
               layouts[i].words);
        if (layouts[i].as_one) {
            all_ok(rank != 0 || pf_digest_equal(&one, &many),
                   "r39_tied_copies_are_equal: and those of one process");
        }
    }
    return jobs_end();
}
