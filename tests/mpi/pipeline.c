/* SPDX-License-Identifier: Apache-2.0 */
/* ranks: 4 */
/* A pipeline as it runs: what is alive at once is what the schedule's checker counted. */
#include "train/train_internal.h"

#include "jobs.h"

#include <string.h>

static const char model[] =
    "{\"model_type\":\"qwen2\",\"vocab_size\":67,\"hidden_size\":16,\"intermediate_size\":24,"
    "\"num_hidden_layers\":8,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
    "\"max_position_embeddings\":32,\"tie_word_embeddings\":true}";

struct job {
    struct pf_config config;
    struct pf_trainer *trainer;
};

static int begin(struct pf_comm *comm, const char *out, const char *const *more, int n_more,
                 struct job *job)
{
    const char *words[16] = {pf_asprintf("output_dir=%s", at("%s", out))};
    int n = 1;

    for (int i = 0; i < n_more; i++) {
        words[n++] = more[i];
    }
    int err = pf_config_read(at("config.json"), words, n, &job->config);
    pf_free((void *)(uintptr_t)words[0]);
    err = err ? err : pf_config_resolve(&job->config, pf_comm_size(comm));
    err = err ? err : pf_trainer_new(&job->config, comm, &job->trainer);
    return err ? err : pf_trainer_build(job->trainer);
}

static void end(struct job *job)
{
    pf_trainer_free(job->trainer);
    pf_config_release(&job->config);
}

/* Slots that are taken between two steps of a list, watched from outside. */
struct watch {
    struct pf_trainer *t;
    int alive, most, split, most_split;
};

static void watch_step(void *context, const struct pf_sched_step *step)
{
    struct watch *const w = context;

    w->alive += step->kind == PF_SCHED_FORWARD;
    w->most = w->alive > w->most ? w->alive : w->most;
    w->alive -= step->kind == PF_SCHED_BACKWARD || step->kind == PF_SCHED_BACKWARD_WEIGHT;
    w->split += step->kind == PF_SCHED_BACKWARD_INPUT;
    w->most_split = w->split > w->most_split ? w->split : w->most_split;
    w->split -= step->kind == PF_SCHED_BACKWARD_WEIGHT;
}

static int watch_run(struct job *job, struct watch *w)
{
    struct pf_trainer *const t = job->trainer;
    const int64_t n = t->config->gradient_accumulation_steps;

    *w = (struct watch){.t = t};
    PF_TRY(pf_reader_next(t->reader, 0, &t->micro));
    for (int64_t m = 0; m < n; m++) {
        t->batches[m] = (struct pf_model_batch){
            .ids = t->micro[m].ids, .targets = t->micro[m].targets, .grad_scale = 1};
    }
    const struct train_pass pass = {.batches = t->batches,
                                    .with_grad = true,
                                    .token_loss = t->token_loss,
                                    .before = watch_step,
                                    .context = w};
    return train_pipe_run(t->pipe, &pass);
}

/* r33, r34: what the checker counted is what a stage has. */
static void live_peaks(void)
{
    static const struct {
        const char *name, *words[4];
        int n;
    } cases[] = {
        {"r33_1f1b", {"pipeline_model_parallel_size=4"}, 1},
        {"r33_f_then_b", {"pipeline_model_parallel_size=4", "pipeline_schedule_mode=FThenB"}, 2},
        {"r33_interleaved",
         {"pipeline_model_parallel_size=4", "virtual_pipeline_model_parallel_size=2"},
         2},
        {"r34_balanced",
         {"pipeline_model_parallel_size=4", "virtual_pipeline_model_parallel_size=2",
          "best_unbalanced_scheduler=true"},
         3},
        {"r35_zero_bubble", {"pipeline_model_parallel_size=4", "split_backward=true"}, 2},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *words[8] = {"gradient_accumulation_steps=8"};
        struct job job = {0};
        struct watch w = {0};
        int64_t least, most;
        memcpy(words + 1, cases[i].words, sizeof cases[i].words);
        int err = begin(world, cases[i].name, words, 1 + cases[i].n, &job);
        err = err ? err : watch_run(&job, &w);
        const struct pf_sched_facts facts = err ? (struct pf_sched_facts){0} : job.trainer->facts;
        least = most = w.most;
        err = err ? err : pf_comm_all_reduce(world, &least, 1, PF_COMM_I64, PF_COMM_MIN);
        err = err ? err : pf_comm_all_reduce(world, &most, 1, PF_COMM_I64, PF_COMM_MAX);
        all_ok(err == 0 && w.alive == 0 && w.split == 0 && w.most == facts.peak_live &&
                   w.most_split == facts.peak_split,
               "%s_peaks: alive at most as the checker says, from %d to %d over the stages",
               cases[i].name, (int)least, (int)most);
        end(&job);
    }
}

int main(int argc, char **argv)
{
    jobs_begin(argc, argv);
    if (rank == 0) {
        put_text(at("model.json"), model);
        char *const config = pf_asprintf(
            "{\"model_name_or_path\":\"%s\",\"from_scratch\":true,\"output_dir\":\"out\","
            "\"input_dir\":\"synthetic:markov?vocab=64&order=1&seed=3\",\"max_seq_length\":8,"
            "\"per_device_train_batch_size\":1,\"max_steps\":60,\"learning_rate\":1e-2,"
            "\"save_steps\":-1,\"threads\":1}",
            at("model.json"));
        put_text(at("config.json"), config);
        pf_free(config);
    }
    (void)pf_comm_barrier(world);
    live_peaks();
    return jobs_end();
}
