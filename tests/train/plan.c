/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan of a run says what the run needs: its total is within 2 MiB or 5 % of the peak that the
 * first step reports, for every purpose of memory that options switch on, and does not change when the
 * run is built.
 */
#include <pf/comm.h>
#include <pf/error.h>
#include <pf/json.h>
#include <pf/mem.h>
#include <pf/train.h>

#include "scratch.h"
#include "tap.h"

#include <math.h>

static const char base_config[] =
    "{\"model\":{\"model_type\":\"llama\",\"vocab_size\":512,\"hidden_size\":256,"
    "\"intermediate_size\":704,\"num_hidden_layers\":4,\"num_attention_heads\":8,"
    "\"num_key_value_heads\":4,\"max_position_embeddings\":256},\"from_scratch\":true,"
    "\"input_dir\":\"synthetic:markov?vocab=64&order=1&seed=3&tokens=65536\","
    "\"max_seq_length\":128,\"per_device_train_batch_size\":4,\"per_device_eval_batch_size\":4,"
    "\"max_steps\":1,\"save_steps\":-1,\"logging_steps\":1,\"threads\":1}";

/* What a plan says, and the text itself where it is wanted. */
static bool plan_of(struct pf_trainer *t, const char *path, int64_t *total_out)
{
    struct pf_json *doc = NULL;
    FILE *const f = fopen(path, "w");
    int err = f ? pf_trainer_print_plan(t, true, f) : PF_EIO;

    if (f) {
        fclose(f);
    }
    err = err ? err : pf_json_parse_file(path, &doc);
    err = err ? err : pf_json_need_i64(pf_json_get(doc, "memory"), "total_bytes", total_out);
    pf_json_free(doc);
    return err == 0;
}

/* peak_memory_bytes of the one step of a run; -1: it logged none. */
static int64_t peak_of(const char *dir)
{
    long long peak = -1;
    char path[600], line[4096];

    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    FILE *const f = fopen(path, "r");
    while (f && peak < 0 && fgets(line, sizeof line, f)) {
        const char *const found = strstr(line, "\"peak_memory_bytes\":");
        if (found) {
            peak = strtoll(found + strlen("\"peak_memory_bytes\":"), NULL, 10);
        }
    }
    if (f) {
        fclose(f);
    }
    return peak;
}

static void compare(const char *what, const char *words, struct pf_comm *world)
{
    struct pf_config config;
    struct pf_str_list list = {0};
    struct pf_trainer *t = NULL;
    int64_t planned = 0, after = 0;

    put_text(at("config.json"), base_config);
    (void)pf_rmtree(at("out"));
    char *const all = pf_asprintf("output_dir=%s/out %s", scratch_dir, words);
    pf_str_split(all, ' ', true, &list);
    pf_free(all);
    pf_mem_reset_peak();
    int err =
        pf_config_read(at("config.json"), (const char *const *)list.items, (int)list.n, &config);
    pf_str_list_release(&list);
    if (!ok(err == 0, "%s: the config is read", what)) {
        printf("# %s\n", pf_error_message());
        return;
    }
    err = pf_config_resolve(&config, 1);
    err = err ? err : pf_trainer_new(&config, world, &t);
    ok(err == 0 && plan_of(t, at("plan.json"), &planned), "%s: there is a plan", what);
    err = err ? err : pf_trainer_build(t);
    const bool has_plan = err == 0 && plan_of(t, at("plan.json"), &after);
    ok(has_plan && llabs(after - planned) <= planned / 20 + (2 << 20),
       "%s: which building the run does not change: %lld and %lld", what, (long long)planned,
       (long long)after);
    err = err ? err : pf_trainer_run(t);
    if (!ok(err == 0, "%s: the run ends well", what)) {
        printf("# %s\n", pf_error_message());
    }
    const int64_t peak = config.eval_only ? (int64_t)pf_mem_peak_bytes() : peak_of(at("out"));
    const double apart = (double)llabs(planned - peak);
    ok(peak > 0 && (apart <= 0.05 * (double)peak || apart <= 2 << 20),
       "%s: the plan says %lld bytes, the peak is %lld", what, (long long)planned, (long long)peak);
    pf_trainer_free(t);
    pf_config_release(&config);
}

int main(void)
{
    static const char eval[] =
        "eval_input_dir=synthetic:markov?vocab=64&order=1&stream=2&tokens=2048";
    struct pf_comm *world = NULL;
    char words[256];

    if (!ok(pf_comm_init(NULL, NULL, &(struct pf_comm_options){.backend = "self"}, &world) == 0,
            "one rank")) {
        return done();
    }
    scratch_make();
    compare("float32", "seed=1", world);
    compare("bfloat16 has masters", "dtype=bfloat16", world);
    compare("all micro-batches alive",
            "gradient_accumulation_steps=3 pipeline_schedule_mode=FThenB", world);
    compare("one micro-batch alive", "gradient_accumulation_steps=3", world);
    compare("steps watched", "profile_steps=[1] trace_steps=[1]", world);
    compare("text is written", "tokenizer=bytes sample_prompt=Once", world);
    compare("documents masked", "mask_documents=true", world);
    compare("a frozen embedding", "freeze=model.embed_tokens.weight", world);
    snprintf(words, sizeof words, "%s per_device_eval_batch_size=8", eval);
    compare("evaluation with a batch of its own", words, world);
    compare("evaluation with the batch of training", eval, world);
    snprintf(words, sizeof words, "%s eval_only=true", eval);
    compare("evaluation alone", words, world);
    scratch_remove();
    ok(pf_comm_finalize(world) == 0, "the rank ends");
    return done();
}
