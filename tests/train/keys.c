/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every effective key changes something: for each, two runs that differ in that key alone, and a look
 * at what must differ between them (the steps' numbers, the trained weights, the files, the plan, the
 * exit status). A key that becomes effective without an entry here fails.
 */
#include <pf/config.h>
#include <pf/mem.h>

#include "scratch.h"
#include "tap.h"

#include <sys/wait.h>

/* Numbers of all steps and events, without what the clock says. */
#define STEPS                                                                                      \
    "sed -E 's/,?\"(tokens_per_second|step_seconds|mfu|peak_memory_bytes|seconds|stall_seconds|"   \
    "bytes)\":[^,}]*//g' out/metrics.jsonl"
#define WEIGHTS "sha256sum <out/hf/model.safetensors"
#define FILES "cd out && find . ! -name 'events.out.tfevents.*' | sort"
#define PLAN "cat plan.txt"
#define STATUS "echo $status" /* the one look that a failing run may have */

#define EVAL "'eval_input_dir=synthetic:markov?vocab=64&order=1&seed=3&stream=1&tokens=512'"

/* Four layers, which two stages can have two chunks of. */
#define DEEP " model_name_or_path=deep.json gradient_accumulation_steps=4"

static const struct flip {
    const char *key, *common, *a, *b, *look;
} flips[] = {
    {"model_name_or_path", "", "", "model_name_or_path=wide.json", STEPS},
    {"model", "model_name_or_path=null", "model=\"$(cat model.json)\"",
     "model=\"$(cat wide.json)\"", STEPS},
    {"from_scratch", "model_name_or_path=before/hf", "from_scratch=true", "from_scratch=false",
     STEPS},
    {"input_dir", "", "'input_dir=synthetic:markov?vocab=64&order=1&seed=8'",
     "'input_dir=synthetic:markov?vocab=64&order=1&seed=9'", STEPS},
    {"eval_input_dir", "", "", EVAL, STEPS},
    {"split", "", "", "split=900,100,0 eval_iters=2", STEPS},
    {"tokenizer", "input_dir=text", "tokenizer=bytes", "tokenizer=null", STATUS},
    {"max_seq_length", "", "max_seq_length=16", "max_seq_length=8", STEPS},
    {"mask_documents", "input_dir=text tokenizer=bytes", "mask_documents=false",
     "mask_documents=true", STEPS},
    {"packing", "input_dir=text tokenizer=bytes max_seq_length=60", "packing=false", "packing=true",
     STEPS},
    {"dataloader_num_workers", "--plan --json", "dataloader_num_workers=0",
     "dataloader_num_workers=1", PLAN},
    {"prefetch_factor", "--plan --json dataloader_num_workers=1", "prefetch_factor=2",
     "prefetch_factor=3", PLAN},
    {"shuffle", "input_dir=text tokenizer=bytes", "shuffle=true", "shuffle=false", STEPS},
    {"per_device_train_batch_size", "", "per_device_train_batch_size=2",
     "per_device_train_batch_size=3", STEPS},
    {"gradient_accumulation_steps", "", "gradient_accumulation_steps=1",
     "gradient_accumulation_steps=2", STEPS},
    {"global_train_batch_size", "gradient_accumulation_steps=null", "global_train_batch_size=2",
     "global_train_batch_size=4", STEPS},
    {"per_device_eval_batch_size", EVAL " eval_iters=1", "per_device_eval_batch_size=1",
     "per_device_eval_batch_size=3", STEPS},
    {"num_train_epochs",
     "max_steps=-1 'input_dir=synthetic:markov?vocab=64&order=1&seed=3&tokens=128'",
     "num_train_epochs=1", "num_train_epochs=2", STEPS},
    {"max_steps", "", "max_steps=2", "max_steps=3", STEPS},
    {"seed", "", "seed=1", "seed=2", STEPS},
    {"eval_steps", EVAL, "eval_steps=-1", "eval_steps=1", STEPS},
    {"eval_iters", EVAL, "eval_iters=1", "eval_iters=2", STEPS},
    {"eval_only", EVAL, "eval_only=false", "eval_only=true", STEPS},
    {"logging_steps", "", "logging_steps=1", "logging_steps=3", STEPS},
    {"output_dir", "", "output_dir=here", "output_dir=there",
     "ls -d here/hf there/hf; rm -rf here there"},
    {"learning_rate", "", "learning_rate=1e-3", "learning_rate=2e-3", WEIGHTS},
    {"weight_decay", "", "weight_decay=0.1", "weight_decay=0.2", WEIGHTS},
    {"weight_decay_exclude", "weight_decay=0.5", "weight_decay_exclude=null",
     "'weight_decay_exclude=[\"*embed*\"]'", WEIGHTS},
    {"adam_beta1", "", "adam_beta1=0.9", "adam_beta1=0.8", WEIGHTS},
    {"adam_beta2", "", "adam_beta2=0.95", "adam_beta2=0.9", WEIGHTS},
    {"adam_epsilon", "", "adam_epsilon=1e-8", "adam_epsilon=1e-3", WEIGHTS},
    {"max_grad_norm", "", "max_grad_norm=0", "max_grad_norm=0.01", WEIGHTS},
    {"freeze", "", "'freeze=[]'", "'freeze=[\"*embed*\"]'", WEIGHTS},
    {"lr_scheduler_type", "", "lr_scheduler_type=linear", "lr_scheduler_type=cosine", STEPS},
    {"warmup_steps", "", "warmup_steps=0", "warmup_steps=2", STEPS},
    {"warmup_ratio", "", "warmup_ratio=0", "warmup_ratio=0.5", STEPS},
    {"min_lr", "", "min_lr=0", "min_lr=1e-4", STEPS},
    {"num_cycles", "lr_scheduler_type=cosine", "num_cycles=0.5", "num_cycles=1", STEPS},
    {"lr_end", "lr_scheduler_type=polynomial", "lr_end=0", "lr_end=1e-4", STEPS},
    {"power", "lr_scheduler_type=polynomial", "power=1", "power=2", STEPS},
    {"wsd_decay_start", "lr_scheduler_type=wsd", "wsd_decay_start=1", "wsd_decay_start=2", STEPS},
    {"decay_function", "lr_scheduler_type=wsd wsd_decay_start=1", "decay_function=linear",
     "decay_function=1-sqrt", STEPS},
    {"lr_table", "lr_scheduler_type=table", "'lr_table=[1e-3,1e-3,1e-3]'",
     "'lr_table=[1e-3,2e-3,1e-3]'", STEPS},
    /* not a power of two: there scaling early or late is the same */
    {"pp_delay_scale_loss", "max_seq_length=15", "pp_delay_scale_loss=true",
     "pp_delay_scale_loss=false", WEIGHTS},
    {"dtype", "", "dtype=float32", "dtype=bfloat16", WEIGHTS},
    {"bf16", "", "bf16=false", "bf16=true", WEIGHTS},
    {"fp16", "", "fp16=false", "fp16=true", WEIGHTS},
    {"scale_loss", "dtype=float16", "scale_loss=32768", "scale_loss=1e9", STEPS},
    {"recompute_granularity", "--plan --json", "recompute_granularity=none",
     "recompute_granularity=full", PLAN},
    {"recompute_method",
     "--plan --json model_name_or_path=wide.json recompute_granularity=full recompute_num_layers=1",
     "recompute_method=uniform", "recompute_method=block", PLAN},
    {"recompute_num_layers",
     "--plan --json model_name_or_path=wide.json recompute_granularity=full recompute_method=block",
     "recompute_num_layers=1", "recompute_num_layers=2", PLAN},
    {"device", "", "device=cpu", "device=cuda", STATUS},
    {"threads", "--plan --json", "threads=1", "threads=2", PLAN},
    {"kernels_from", "--plan --json", "kernels_from=null", "kernels_from=reference/pf.json", PLAN},
    {"pipeline_schedule_mode", "--plan --json gradient_accumulation_steps=2",
     "pipeline_schedule_mode=1F1B", "pipeline_schedule_mode=FThenB", PLAN},
    {"tensor_model_parallel_size", "--plan --json", "tensor_model_parallel_size=1",
     "tensor_model_parallel_size=2", PLAN},
    {"sequence_parallel", "--plan --json tensor_model_parallel_size=2", "sequence_parallel=false",
     "sequence_parallel=true", PLAN},
    {"sp_async_reduce_scatter", "--plan --json tensor_model_parallel_size=2 sequence_parallel=true",
     "sp_async_reduce_scatter=false", "sp_async_reduce_scatter=true", PLAN},
    {"mp_async_allreduce", "--plan --json tensor_model_parallel_size=2", "mp_async_allreduce=false",
     "mp_async_allreduce=true", PLAN},
    {"pipeline_model_parallel_size", "--plan --json" DEEP, "pipeline_model_parallel_size=1",
     "pipeline_model_parallel_size=2", PLAN},
    {"virtual_pipeline_model_parallel_size", "--plan --json pipeline_model_parallel_size=2" DEEP,
     "virtual_pipeline_model_parallel_size=1", "virtual_pipeline_model_parallel_size=2", PLAN},
    {"num_layers_in_first_pipeline_stage", "--plan --json pipeline_model_parallel_size=2" DEEP,
     "num_layers_in_first_pipeline_stage=-1", "num_layers_in_first_pipeline_stage=1", PLAN},
    {"num_layers_in_last_pipeline_stage", "--plan --json pipeline_model_parallel_size=2" DEEP,
     "num_layers_in_last_pipeline_stage=-1", "num_layers_in_last_pipeline_stage=1", PLAN},
    {"pp_seg_method", "--plan --json pipeline_model_parallel_size=2" DEEP, "pp_seg_method=null",
     "pp_seg_method=0:1", PLAN},
    {"parallelize_plan", "--plan --json pipeline_model_parallel_size=2" DEEP,
     "parallelize_plan=null",
     "'parallelize_plan={\"pp_config\":{\"split_spec\":{\"model.layers.0\":\"END\"}}}'", PLAN},
    {"best_unbalanced_scheduler",
     "--plan --json pipeline_model_parallel_size=2 virtual_pipeline_model_parallel_size=2" DEEP,
     "best_unbalanced_scheduler=false", "best_unbalanced_scheduler=true", PLAN},
    {"split_backward", "--plan --json pipeline_model_parallel_size=2" DEEP, "split_backward=false",
     "split_backward=true", PLAN},
    {"save_steps", "", "save_steps=-1", "save_steps=1", FILES},
    {"save_total_limit", "save_steps=1", "save_total_limit=null", "save_total_limit=1", FILES},
    {"save_compress", "save_steps=2", "save_compress=none", "save_compress=zstd",
     "wc -c <out/checkpoint-000002/optim-00000.safetensors"},
    {"save_parity", "save_steps=2", "save_parity=false", "save_parity=true", FILES},
    {"save_hf_steps", "", "save_hf_steps=-1", "save_hf_steps=2", FILES},
    {"resume_from_checkpoint", "", "", "resume_from_checkpoint=before/checkpoint-000002", STEPS},
    {"ignore_data_skip", "resume_from_checkpoint=before/checkpoint-000002",
     "ignore_data_skip=false", "ignore_data_skip=true", STEPS},
    {"skip_data_intervals", "", "'skip_data_intervals=[]'", "'skip_data_intervals=[[2,2]]'", STEPS},
    {"dump_steps", "", "'dump_steps=[]'", "'dump_steps=[2]'", FILES},
    {"dump", "'dump_steps=[2]'", "dump=logits", "'dump=grads hidden'", FILES},
    {"sample_steps", "tokenizer=bytes sample_tokens=3", "sample_steps=-1", "sample_steps=2", STEPS},
    {"sample_prompt", "tokenizer=bytes sample_tokens=3 sample_steps=2", "sample_prompt=a",
     "sample_prompt=b", STEPS},
    {"sample_tokens", "tokenizer=bytes sample_prompt=a", "sample_tokens=3", "sample_tokens=4",
     STEPS},
    {"sample_temperature", "tokenizer=bytes sample_prompt=a sample_tokens=20",
     "sample_temperature=0", "sample_temperature=1", STEPS},
    {"profile_steps", "", "'profile_steps=[]'", "'profile_steps=[2]'", FILES},
    {"trace_steps", "", "'trace_steps=[]'", "'trace_steps=[2]'", FILES},
    {"pipeline_parallel_config", "max_seq_length=15",
     "pipeline_parallel_config=enable_delay_scale_loss",
     "pipeline_parallel_config=disable_delay_scale_loss", WEIGHTS},
    {"sharding_parallel_config", "", "sharding_parallel_config=split_param",
     "'sharding_parallel_config=split_param enable_stage1_overlap'", STATUS},
    {"lr_scheduler", "", "lr_scheduler=wsd:1", "lr_scheduler=wsd:2", STEPS},
};
#define N_FLIPS (sizeof flips / sizeof flips[0])

/* Shown by something else than two runs of one process. */
static const char *const elsewhere[] = {"comm_timeout"};

/* Run a command in the scratch directory; its output in buf. Returns its exit status. */
static int shell(const char *command, char *buf, size_t n_buf)
{
    char *const line = pf_asprintf("cd '%s' && { %s; } 2>err.txt", scratch_dir, command);
    FILE *const p = line ? popen(line, "r") : NULL;
    size_t n = 0;

    if (p) {
        n = fread(buf, 1, n_buf - 1, p);
    }
    buf[n] = '\0';
    pf_free(line);
    const int status = p ? pclose(p) : -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* One run and a look at it: "status N" and what was seen. */
static void run(const struct flip *f, const char *words, char *seen, size_t n_seen)
{
    char *const command = pf_asprintf(
        "rm -rf out; \"$PF_BIN/pf-train\" config.json output_dir=out %s %s >plan.txt; status=$?; "
        "echo status $status; %s",
        f->common, words, f->look);

    seen[0] = '\0';
    if (command) {
        (void)shell(command, seen, n_seen);
    }
    pf_free(command);
}

static bool succeeded(const char *seen)
{
    return strncmp(seen, "status 0\n", 9) == 0 && seen[9] != '\0';
}

static void flip(const struct flip *f)
{
    static char a[1 << 16], b[1 << 16], err[1 << 12];
    const bool may_fail = strcmp(f->look, STATUS) == 0;

    run(f, f->a, a, sizeof a);
    run(f, f->b, b, sizeof b);
    const bool ran = succeeded(a) && (may_fail || succeeded(b));
    if (!ok(ran && strcmp(a, b) != 0, "%s: %s and %s differ", f->key, *f->a ? f->a : "without",
            f->b)) {
        (void)shell("tail -n 3 err.txt", err, sizeof err);
        printf("# A: %.300s\n# B: %.300s\n# %s\n", a, b, err);
    }
}

static void prepare(void)
{
    static const char model[] =
        "{\"model_type\":\"llama\",\"vocab_size\":257,\"hidden_size\":16,\"intermediate_size\":24,"
        "\"num_hidden_layers\":%d,\"num_attention_heads\":2,\"num_key_value_heads\":1,"
        "\"max_position_embeddings\":64}";
    static const char config[] =
        "{\"model_name_or_path\":\"model.json\",\"from_scratch\":true,"
        "\"input_dir\":\"synthetic:markov?vocab=64&order=1&seed=3\",\"output_dir\":\"out\","
        "\"max_seq_length\":16,\"per_device_train_batch_size\":2,\"max_steps\":3,"
        "\"gradient_accumulation_steps\":2,\"per_device_eval_batch_size\":2,"
        "\"learning_rate\":1e-3,\"logging_steps\":1,\"save_steps\":-1,\"threads\":1}";
    char text[512], seen[256];

    snprintf(text, sizeof text, model, 1);
    put_text(at("model.json"), text);
    snprintf(text, sizeof text, model, 2);
    put_text(at("wide.json"), text);
    snprintf(text, sizeof text, model, 4);
    put_text(at("deep.json"), text);
    put_text(at("config.json"), config);
    int status = shell("mkdir text; for i in 1 2 3 4 5 6 7 8 9; do "
                       "echo \"text number $i, which says $i and no more\" >text/$i.txt; done",
                       seen, sizeof seen);
    ok(status == 0, "documents are written");
    status =
        shell("\"$PF_BIN/pf-train\" config.json output_dir=before save_steps=2", seen, sizeof seen);
    ok(status == 0, "a run to go on from is made");
    status = shell("PF_KERNELS=ref \"$PF_BIN/pf-train\" config.json output_dir=reference", seen,
                   sizeof seen);
    ok(status == 0, "and one with other kernels");
}

static bool has_entry(const char *key)
{
    for (size_t i = 0; i < N_FLIPS; i++) {
        if (strcmp(flips[i].key, key) == 0) {
            return true;
        }
    }
    for (size_t i = 0; i < sizeof elsewhere / sizeof elsewhere[0]; i++) {
        if (strcmp(elsewhere[i], key) == 0) {
            return true;
        }
    }
    return false;
}

/* What a run needs to be looked at for its key: the same words twice look the same. */
static void test_looks(void)
{
    static const char *const looks[] = {STEPS, WEIGHTS, FILES};
    static char a[1 << 16], b[1 << 16];

    for (size_t i = 0; i < sizeof looks / sizeof looks[0]; i++) {
        const struct flip f = {"", "save_steps=2", "", "", looks[i]};
        run(&f, "", a, sizeof a);
        run(&f, "", b, sizeof b);
        ok(succeeded(a) && strcmp(a, b) == 0, "without a change nothing differs by: %.20s",
           looks[i]);
    }
}

/* Ranks wait comm_timeout seconds for one that reads its model from a pipe, where it comes late. */
static void test_timeout(void)
{
    static const char command[] =
        "rm -rf out; printf '%%s\\n' '#!/usr/bin/env bash' "
        "'if [ \"$OMPI_COMM_WORLD_RANK\" = 0 ]; then exec 9<model.json' "
        "'else exec 9< <(sleep 4; cat model.json); fi' "
        "'exec \"$PF_BIN/pf-train\" \"$@\"' >rank.sh; chmod +x rank.sh; "
        "\"$PF_ROOT/scripts/mpirun-here\" -n 2 ./rank.sh config.json output_dir=$PWD/out "
        "max_steps=1 model_name_or_path=/dev/fd/9 comm_timeout=%d; "
        "s=$?; grep -c '^pf-train:.*rank 1' err.txt; exit $s";
    char text[1024], seen[256];

    snprintf(text, sizeof text, command, 1);
    int status = shell(text, seen, sizeof seen);
    ok(status == 6 && strcmp(seen, "0\n") != 0,
       "comm_timeout: a rank that is late by more is named, status 6");
    snprintf(text, sizeof text, command, 60);
    status = shell(text, seen, sizeof seen);
    ok(status == 0, "comm_timeout: one that is late by less is waited for");
}

int main(void)
{
    char root[4096];
    int n_effective = 0, n_entries = 0;

    if (!getenv("PF_BIN")) {
        setenv("PF_BIN", realpath("bin", root) ? root : "bin", 1);
        setenv("PF_ROOT", realpath(".", root) ? root : ".", 1);
    }
    scratch_make();
    prepare();
    test_looks();
    for (size_t i = 0; i < pf_n_keys; i++) {
        const bool is_effective = pf_keys[i].status == PF_KEY_EFFECTIVE;
        n_effective += is_effective;
        n_entries += is_effective && has_entry(pf_keys[i].name);
        if (is_effective && !has_entry(pf_keys[i].name)) {
            printf("# no entry for %s\n", pf_keys[i].name);
        }
    }
    ok(n_entries == n_effective, "each of the %d effective keys has an entry", n_effective);
    for (size_t i = 0; i < N_FLIPS; i++) {
        flip(&flips[i]);
    }
    test_timeout();
    scratch_remove();
    return done();
}
