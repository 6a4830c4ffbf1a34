/* SPDX-License-Identifier: Apache-2.0 */
/* The options of a run: what is read, refused, derived, printed, and allowed to change on resume. */
#include <pf/config.h>
#include <pf/error.h>
#include <pf/exit.h>
#include <pf/json.h>
#include <pf/mem.h>

#include "scratch.h"
#include "tap.h"

#include <math.h>

/* A config that says the least, and more members after it. */
#define LEAST "{\"model_name_or_path\": \"m\", \"output_dir\": \"out\", \"input_dir\": \"a.txt\""
#define WITH(members) LEAST ",\n" members "}"

static int read_text(const char *text, const char *const *words, int n, struct pf_config *config)
{
    pf_error_clear();
    put_text(at("c.json"), text);
    return pf_config_read(at("c.json"), words, n, config);
}

static int read_one(const char *text, const char *word, struct pf_config *config)
{
    return read_text(text, &word, word ? 1 : 0, config);
}

/* The text, read, with overrides where there are any, parted by blanks, ends with this status and says this. */
static void fails(const char *what, const char *text, const char *word, int status,
                  const char *says)
{
    struct pf_config config;
    struct pf_str_list words = {0};
    int err = word ? pf_str_split(word, ' ', true, &words) : 0;

    err = err ? err : read_text(text, (const char *const *)words.items, (int)words.n, &config);
    pf_str_list_release(&words);
    const char *const message = pf_error_message();
    const bool holds = err && pf_error_exit_status(err) == status && strstr(message, says) &&
                       !strchr(message, '\n');

    ok(holds, "%s", what);
    if (!holds) {
        printf("# status %d, message: %s\n", pf_error_exit_status(err), message);
    }
    if (!err) {
        pf_config_release(&config);
    }
}

static void test_defaults(void)
{
    struct pf_config c;

    if (!ok(read_one(LEAST "}", NULL, &c) == 0, "a config of three keys is enough")) {
        return;
    }
    ok(c.per_device_train_batch_size == 8 && c.gradient_accumulation_steps == 1 &&
           c.learning_rate == 1e-5 && c.weight_decay == 0.1 && c.adam_beta1 == 0.9 &&
           c.adam_beta2 == 0.95 && c.adam_epsilon == 1e-8 && c.max_grad_norm == 1 &&
           c.num_train_epochs == 1 && c.max_steps == -1 && c.seed == 42 && c.logging_steps == 5 &&
           c.save_steps == 500 && c.save_total_limit == 0 && c.lr_scheduler_type == PF_LR_LINEAR &&
           c.num_cycles == 0.5 && c.lr_end == 1e-7 && c.power == 1 && c.pp_delay_scale_loss,
       "defaults are PaddleFormers'");
    ok(c.dtype == PF_DTYPE_F32 && c.comm_timeout == 300 && strcmp(c.device, "cpu") == 0 &&
           c.dump == (PF_DUMP_LOGITS | PF_DUMP_GRADS | PF_DUMP_HIDDEN) && !c.n_dump_steps &&
           c.wsd_decay_start == -1 && c.shuffle && !c.has_weight_decay_exclude,
       "and pf's own");
    pf_config_release(&c);
    pf_config_release(&c);
    ok(true, "releasing twice is fine");
}

static void test_values(void)
{
    struct pf_config c;

    if (ok(read_one(
               WITH("\"dtype\": \"bfloat16\", \"freeze\": [\"a*\", \"b\"], \"dump_steps\": [1, 5],"
                    "\"dump\": \"grads hidden\", \"lr_scheduler_type\": \"table\","
                    "\"lr_table\": [1e-3, 2e-3], \"seed\": 18446744073709551615,"
                    "\"weight_decay_exclude\": [], \"skip_data_intervals\": [[2, 3], [7, 7]],"
                    "\"pipeline_schedule_mode\": \"FThenB\", \"max_steps\": 2"),
               NULL, &c) == 0,
           "values of every type are read")) {
        ok(c.dtype == PF_DTYPE_BF16 && c.freeze.n == 2 && strcmp(c.freeze.items[1], "b") == 0 &&
               c.n_dump_steps == 2 && c.dump_steps[1] == 5 &&
               c.dump == (PF_DUMP_GRADS | PF_DUMP_HIDDEN) && c.n_lr_table == 2 &&
               c.lr_table[1] == 2e-3 && c.seed == UINT64_MAX && c.has_weight_decay_exclude &&
               c.weight_decay_exclude.n == 0 && c.n_skip_data_intervals == 4 &&
               c.skip_data_intervals[3] == 7 && c.schedule == PF_SCHEDULE_F_THEN_B,
           "and end up in their fields");
        pf_config_release(&c);
    }
    if (ok(read_one("{\"model\": {\"model_type\": \"llama\", \"x\": [1, 2]}, \"output_dir\": \"o\","
                    "\"input_dir\": \"a\", \"max_steps\": null, \"split\": null}",
                    NULL, &c) == 0,
           "a model may stand in the config, null means not given")) {
        ok(strcmp(c.model_json, "{\"model_type\":\"llama\",\"x\":[1,2]}") == 0 && c.max_steps == -1,
           "its text is kept");
        pf_config_release(&c);
    }
    if (ok(read_one(WITH("\"fp16\": true"), NULL, &c) == 0, "fp16 is read")) {
        ok(c.dtype == PF_DTYPE_F16, "as dtype float16");
        pf_config_release(&c);
    }
}

static void test_bad_values(void)
{
    fails("a file that is missing is a system error", LEAST, NULL, PF_EXIT_USAGE, "line 1 column");
    struct pf_config c;
    ok(pf_error_exit_status(pf_config_read(at("none.json"), NULL, 0, &c)) == PF_EXIT_SYSTEM,
       "a missing config ends with status 4");
    fails("bad JSON names line and column", "{\n  \"a\": 1,,\n}", NULL, PF_EXIT_USAGE,
          "line 2 column 10");
    fails("a key given twice is refused", WITH("\"seed\": 1, \"seed\": 1"), NULL, PF_EXIT_USAGE,
          "seed");
    fails("an unknown key names line and nearest", WITH("\"max_step\": 3"), NULL, PF_EXIT_USAGE,
          "'max_step' is not known; did you mean 'max_steps'?");
    fails("and the line", WITH("\"max_step\": 3"), NULL, PF_EXIT_USAGE, "line 2");
    fails("a string for an integer", WITH("\"max_steps\": \"3\""), NULL, PF_EXIT_USAGE,
          "'max_steps' must be an integer, not a string");
    fails("a fraction for an integer", WITH("\"max_steps\": 2.5"), NULL, PF_EXIT_USAGE,
          "'max_steps' must be an integer");
    fails("a number for a boolean", WITH("\"from_scratch\": 1"), NULL, PF_EXIT_USAGE, "boolean");
    fails("a number for a string", WITH("\"split\": 1"), NULL, PF_EXIT_USAGE, "string");
    fails("a string for an object", WITH("\"model\": \"x\""), NULL, PF_EXIT_USAGE, "object");
    fails("a negative seed", WITH("\"seed\": -1"), NULL, PF_EXIT_USAGE, "'seed'");
    fails("an element of the wrong type names its index", WITH("\"dump_steps\": [1, \"x\"]"), NULL,
          PF_EXIT_USAGE, "'dump_steps[1]'");
    fails("a value outside its range", WITH("\"weight_decay\": -0.5"), NULL, PF_EXIT_USAGE,
          "'weight_decay' must be");
    fails("a batch of nothing", WITH("\"per_device_train_batch_size\": 0"), NULL, PF_EXIT_USAGE,
          "must be at least 1");
    fails("a word that is no choice", WITH("\"lr_scheduler_type\": \"cosin\""), NULL, PF_EXIT_USAGE,
          "'cosine'");
    fails("a dump of something else", WITH("\"dump\": \"weights\""), NULL, PF_EXIT_USAGE,
          "not 'weights'");
    fails("an interval that ends before it starts", WITH("\"skip_data_intervals\": [[3, 2]]"), NULL,
          PF_EXIT_USAGE, "ends before it starts");
    fails("an array as the whole config", "[]", NULL, PF_EXIT_USAGE, "object");
    fails("beta must be below 1", WITH("\"adam_beta1\": 1"), NULL, PF_EXIT_USAGE, "below 1");
    fails("no steps at all", WITH("\"max_steps\": 0"), NULL, PF_EXIT_USAGE, "-1 or at least 1");
}

static void test_contradictions(void)
{
    fails("r48_contradictory_config_one_line: two models", WITH("\"model\": {}"), NULL,
          PF_EXIT_USAGE, "'model' contradicts model_name_or_path of line 1");
    fails("no model", "{\"output_dir\": \"o\", \"input_dir\": \"a\"}", NULL, PF_EXIT_USAGE,
          "which model");
    fails("no output", "{\"model_name_or_path\": \"o\", \"input_dir\": \"a\"}", NULL, PF_EXIT_USAGE,
          "output_dir");
    fails("no data", "{\"model_name_or_path\": \"o\", \"output_dir\": \"a\"}", NULL, PF_EXIT_USAGE,
          "input_dir");
    fails("bf16 with another dtype", WITH("\"bf16\": true, \"dtype\": \"float32\""), NULL,
          PF_EXIT_USAGE, "'bf16' contradicts dtype 'float32' of line 2");
    fails("bf16 with fp16", WITH("\"bf16\": true, \"fp16\": true"), NULL, PF_EXIT_USAGE,
          "'fp16' contradicts bf16");
    fails("packing without masks", WITH("\"packing\": true, \"mask_documents\": false"), NULL,
          PF_EXIT_USAGE, "'mask_documents' is false, but packing keeps documents apart");
    fails("a table without entries", WITH("\"lr_scheduler_type\": \"table\""), NULL, PF_EXIT_USAGE,
          "lr_table must be given");
    fails("a minimum above the peak", WITH("\"min_lr\": 1, \"learning_rate\": 0.5"), NULL,
          PF_EXIT_USAGE, "above learning_rate");
    fails("an old name with another value than the new one",
          WITH("\"sharding_degree\": 1,\n\"sharding_parallel_size\": -1"), NULL, PF_EXIT_USAGE,
          "'sharding_parallel_size' contradicts what line 2 says");
    fails("an option string against its key",
          WITH("\"pp_delay_scale_loss\": false,\n"
               "\"pipeline_parallel_config\": \"enable_delay_scale_loss\""),
          NULL, PF_EXIT_USAGE, "'pipeline_parallel_config' contradicts what line 2 says");
    fails("wsd:N against another scheduler",
          WITH("\"lr_scheduler_type\": \"cosine\", \"lr_scheduler\": \"wsd:5\""), NULL,
          PF_EXIT_USAGE, "contradicts");
}

static void test_overrides(void)
{
    static const char *const words[] = {"max_steps=20",        "output_dir=x=y", "dump_steps=[3]",
                                        "learning_rate=1e-3",  "max_steps=30",   "input_dir=null",
                                        "input_dir=\"b.txt\"", "split=998,1,1"};
    struct pf_config c;

    if (ok(read_text(WITH("\"max_steps\": 10"), words, 8, &c) == 0, "words win over the file")) {
        ok(c.max_steps == 30 && strcmp(c.output_dir, "x=y") == 0 && c.n_dump_steps == 1 &&
               c.learning_rate == 1e-3 && strcmp(c.input_dir, "b.txt") == 0 &&
               strcmp(c.split, "998,1,1") == 0,
           "as JSON where they are JSON, else as strings; the last one counts");
        pf_config_release(&c);
    }
    if (ok(read_one(WITH("\"bf16\": true"), "dtype=float16", &c) == 0,
           "dtype on the command line silences bf16 of the file")) {
        ok(c.dtype == PF_DTYPE_F16, "and counts");
        pf_config_release(&c);
    }
    if (ok(read_one(WITH("\"max_steps\": 3"), "max_steps=null", &c) == 0, "null takes back")) {
        ok(c.max_steps == -1, "what the file says");
        pf_config_release(&c);
    }
    fails("a wrong type there", LEAST "}", "max_steps=x", PF_EXIT_USAGE,
          "'max_steps' must be an integer, not a string (command line)");
    fails("an unknown key there", LEAST "}", "max_step=3", PF_EXIT_USAGE, "(command line)");
    fails("no equals sign", LEAST "}", "max_steps", PF_EXIT_USAGE, "'max_steps' is not key=value");
    fails("no key", LEAST "}", "=3", PF_EXIT_USAGE, "is not key=value");
    fails("no model left", LEAST "}", "model_name_or_path=null", PF_EXIT_USAGE, "which model");
}

/* Is a line about this noted? */
static bool notes(const struct pf_config *c, const char *part)
{
    for (size_t i = 0; i < c->notes.n; i++) {
        if (strstr(c->notes.items[i], part)) {
            return true;
        }
    }
    return false;
}

static void test_old_forms(void)
{
    struct pf_config c;
    char text[512];
    int n_good = 0;

    for (size_t i = 0; i < pf_n_key_aliases; i++) {
        const char *const value =
            strcmp(pf_key_aliases[i].old, "offload_optimizer") == 0 ? "false" : "1";
        snprintf(text, sizeof text, WITH("\"%s\": %s"), pf_key_aliases[i].old, value);
        if (read_one(text, NULL, &c) == 0) {
            n_good += notes(&c, pf_key_aliases[i].name);
            pf_config_release(&c);
        }
    }
    ok(n_good == (int)pf_n_key_aliases, "each old name is taken, and its canonical name is noted");
    if (ok(read_one(WITH("\"lr_scheduler\": \"wsd:900\", \"decay_function\": \"1-sqrt\""), NULL,
                    &c) == 0,
           "lr_scheduler wsd:900 is read")) {
        ok(c.lr_scheduler_type == PF_LR_WSD && c.wsd_decay_start == 900 &&
               c.decay_function == PF_WSD_ONE_MINUS_SQRT,
           "as type, start and shape");
        pf_config_release(&c);
    }
    if (ok(read_one(WITH("\"lr_scheduler\": \"cosine\""), NULL, &c) == 0, "a bare lr_scheduler")) {
        ok(c.lr_scheduler_type == PF_LR_COSINE, "is a type");
        pf_config_release(&c);
    }
    if (ok(read_one(
               WITH("\"pipeline_parallel_config\": \"disable_delay_scale_loss  "
                    "enable_p2p_cache_shape\","
                    "\"sharding_parallel_config\": \"split_param enable_fuse_optimizer_states\""),
               NULL, &c) == 0,
           "both option strings are read")) {
        ok(!c.pp_delay_scale_loss, "and switch what they name");
        pf_config_release(&c);
    }
    fails("a word that is no switch",
          WITH("\"sharding_parallel_config\": \"enable_stage1_overlp\""), NULL, PF_EXIT_USAGE,
          "did you mean");
    fails("a word that this build cannot do",
          WITH("\"sharding_parallel_config\": \"enable_stage1_overlap\""), NULL,
          PF_EXIT_UNSUPPORTED, "stage1_overlap");
    fails("release_grads is the pipeline's in one string",
          WITH("\"pipeline_parallel_config\": \"enable_release_grads\""), NULL, PF_EXIT_UNSUPPORTED,
          "pp_release_grads");
    fails("and the sharding's in the other",
          WITH("\"sharding_parallel_config\": \"enable_release_grads\""), NULL, PF_EXIT_UNSUPPORTED,
          "sd_release_grads");
    fails("wsd without a number", WITH("\"lr_scheduler\": \"wsd:x\""), NULL, PF_EXIT_USAGE,
          "wsd:N");
}

/* A value of a key's type that is not its default. */
static const char *other_value(const struct pf_key *key)
{
    switch (key->type) {
    case PF_KEY_BOOL:
        return strcmp(key->by_default, "true") == 0 ? "false" : "true";
    case PF_KEY_I64:
    case PF_KEY_INT:
    case PF_KEY_U64:
        return "2";
    case PF_KEY_F64:
        return "0.25";
    case PF_KEY_STRING:
        return "\"other\"";
    case PF_KEY_STRING_LIST:
        return "[\"stage1\"]";
    case PF_KEY_I64_LIST:
    case PF_KEY_F64_LIST:
        return "[2]";
    case PF_KEY_I64_PAIRS:
        return "[[2, 2]]";
    case PF_KEY_OBJECT:
        return "{\"a\": 1}";
    case PF_KEY_ENUM:
        return NULL;
    }
    return NULL;
}

static bool refuses(const struct pf_key *key, const char *value)
{
    struct pf_config c;
    char text[512];

    snprintf(text, sizeof text, WITH("\"%s\": %s"), key->name, value);
    const int err = read_one(text, NULL, &c);
    if (!err) {
        pf_config_release(&c);
    }
    const bool is_named = strstr(pf_error_message(), key->name) != NULL;
    if (err != PF_ENOTSUP || !is_named) {
        printf("# %s = %s: %d %s\n", key->name, value, err, pf_error_message());
    }
    return err == PF_ENOTSUP && is_named;
}

static void test_refused(void)
{
    int n = 0, n_refused = 0, n_default = 0;
    struct pf_config c;
    char text[512];

    for (size_t i = 0; i < pf_n_keys; i++) {
        const struct pf_key *const key = &pf_keys[i];
        if (key->status != PF_KEY_REFUSED) {
            continue;
        }
        char quoted[64];
        snprintf(quoted, sizeof quoted, "\"%s\"", key->choices ? key->choices[1] : "");
        n++;
        n_refused += refuses(key, key->choices ? quoted : other_value(key));
        snprintf(text, sizeof text, WITH("\"%s\": %s"), key->name, key->by_default);
        if (read_one(text, NULL, &c) == 0) {
            n_default++;
            pf_config_release(&c);
        }
    }
    ok(n_refused == n, "each of the %d refused keys ends with status 7, named, at another value",
       n);
    ok(n_default == n, "and is fine at its default");
    fails("a refused key of a wrong type is a usage error", WITH("\"zcc_workers_num\": \"x\""),
          NULL, PF_EXIT_USAGE, "zcc_workers_num");
    fails("a schedule that is none", WITH("\"pipeline_schedule_mode\": \"2F2B\""), NULL,
          PF_EXIT_USAGE, "2F2B");
    ok(read_one(WITH("\"tensor_model_parallel_size\": 1, \"context_parallel_size\": 1,"
                     "\"sharding\": \"\", \"virtual_pipeline_model_parallel_size\": 1"),
                NULL, &c) == 0,
       "a degree of 1 is as good as none");
    pf_config_release(&c);
}

/* The table describes itself well enough to be read by its own reader. */
static void test_table(void)
{
    struct pf_config c;
    char text[512];
    int n_read = 0, n_once = 0, n_why = 0;

    for (size_t i = 0; i < pf_n_keys; i++) {
        const struct pf_key *const key = &pf_keys[i];
        const bool is_model = strcmp(key->name, "model_name_or_path") == 0 ||
                              strcmp(key->name, "output_dir") == 0 ||
                              strcmp(key->name, "input_dir") == 0;
        snprintf(text, sizeof text, "{\"%s\": %s}", key->name, key->by_default);
        struct pf_json *doc = NULL;
        n_read += pf_json_parse_text(text, strlen(text), "default", &doc) == 0;
        pf_json_free(doc);
        snprintf(text, sizeof text, WITH("\"%s\": %s"), key->name, key->by_default);
        if (!is_model && read_one(text, NULL, &c) != 0) {
            n_read--;
            printf("# %s\n", pf_error_message());
        } else if (!is_model) {
            pf_config_release(&c);
        }
        size_t n_same = 0;
        for (size_t k = 0; k < pf_n_keys; k++) {
            n_same += strcmp(pf_keys[k].name, key->name) == 0;
        }
        n_once += n_same == 1;
        n_why += (key->status == PF_KEY_EFFECTIVE) == (key->why == NULL) && key->help != NULL;
    }
    ok(n_read == (int)pf_n_keys, "every default is a value of its key");
    ok(n_once == (int)pf_n_keys, "every key stands once in the table");
    ok(n_why == (int)pf_n_keys, "satisfied and refused keys say why, effective ones need not");
}

static void test_notes(void)
{
    static const struct {
        const char *members, *key, *reason;
    } cases[] = {
        {"\"lr_table\": [1]", "'lr_table'", "not table"},
        {"\"num_cycles\": 2", "'num_cycles'", "not cosine"},
        {"\"power\": 2", "'power'", "not polynomial"},
        {"\"lr_end\": 0", "'lr_end'", "not polynomial"},
        {"\"wsd_decay_start\": 2", "'wsd_decay_start'", "not wsd"},
        {"\"decay_function\": \"1-sqrt\"", "'decay_function'", "not wsd"},
        {"\"min_lr\": 1e-6, \"lr_scheduler_type\": \"constant\"", "'min_lr'", "no decay"},
        {"\"warmup_ratio\": 0.1, \"warmup_steps\": 5", "'warmup_ratio'", "warmup_steps is given"},
        {"\"num_train_epochs\": 2, \"max_steps\": 5", "'num_train_epochs'", "max_steps is given"},
        {"\"eval_steps\": 5", "'eval_steps'", "no evaluation data"},
        {"\"per_device_eval_batch_size\": 5", "'per_device_eval_batch_size'", "no evaluation data"},
        {"\"dump\": \"logits\"", "'dump'", "dump_steps is empty"},
        {"\"ignore_data_skip\": true", "'ignore_data_skip'", "nothing is resumed"},
        {"\"deterministic_mode\": true", "'deterministic_mode'", "always"},
        {"\"prefetch_factor\": 4", "'prefetch_factor'", "dataloader_num_workers is 0"},
        {"\"eval_only\": true, \"max_steps\": 7", "'max_steps'", "trains nothing"},
        {"\"scale_loss\": 8", "'scale_loss'", "not float16"},
        {"\"recompute_method\": \"block\"", "'recompute_method'", "recompute_granularity is none"},
        {"\"recompute_num_layers\": 2", "'recompute_num_layers'", "recompute_granularity is none"},
        {"\"recompute_num_layers\": 2, \"recompute_granularity\": \"core_attn\"",
         "'recompute_num_layers'", "full alone"},
        {"\"eval_only\": true, \"eval_input_dir\": \"b.txt\"", "'input_dir'", "eval_input_dir"},
        {"\"weight_decay\": 0, \"weight_decay_exclude\": [\"x\"]", "'weight_decay_exclude'",
         "is 0"},
    };
    struct pf_config c;
    char text[512];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(text, sizeof text, LEAST ", %s}", cases[i].members);
        if (!ok(read_one(text, NULL, &c) == 0, "%s is read", cases[i].members)) {
            continue;
        }
        ok(c.notes.n == 1 && notes(&c, cases[i].key) && notes(&c, cases[i].reason),
           "and named once, with the reason");
        pf_config_release(&c);
    }
    if (ok(read_one(WITH("\"power\": 1, \"lr_table\": [], \"deterministic_mode\": false"), NULL,
                    &c) == 0,
           "keys at their defaults are read")) {
        ok(c.notes.n == 0, "and not named");
        pf_config_release(&c);
    }
}

static void resolves(const char *what, const char *members, int world, int64_t accumulation,
                     int64_t global)
{
    struct pf_config c;
    char text[512];

    snprintf(text, sizeof text, LEAST ", %s}", members);
    if (!ok(read_one(text, NULL, &c) == 0, "%s: read", what)) {
        return;
    }
    const int err = pf_config_resolve(&c, world);
    ok(err == 0 && c.gradient_accumulation_steps == accumulation &&
           c.global_train_batch_size == global && c.mesh.degree[PF_AXIS_DP] == world,
       "%s", what);
    pf_config_release(&c);
}

static void fails_to_resolve(const char *members, int world, const char *says)
{
    struct pf_config c;
    char text[512];

    snprintf(text, sizeof text, LEAST ", %s}", members);
    if (!ok(read_one(text, NULL, &c) == 0, "%s: read", members)) {
        return;
    }
    pf_error_clear();
    const int err = pf_config_resolve(&c, world);
    ok(pf_error_exit_status(err) == PF_EXIT_INPUT && strstr(pf_error_message(), says),
       "on %d ranks: %s", world, pf_error_message());
    pf_config_release(&c);
}

static void test_resolve(void)
{
    resolves("the global batch is the product",
             "\"per_device_train_batch_size\": 4,"
             "\"gradient_accumulation_steps\": 3",
             2, 3, 24);
    resolves("accumulation follows from the global batch",
             "\"per_device_train_batch_size\": 4,"
             "\"global_train_batch_size\": 48",
             3, 4, 48);
    resolves("all three may be given where they agree",
             "\"per_device_train_batch_size\": 4,"
             "\"gradient_accumulation_steps\": 2, \"global_train_batch_size\": 16",
             2, 2, 16);
    fails_to_resolve(
        "\"per_device_train_batch_size\": 4, \"global_train_batch_size\": 10", 2,
        "global_train_batch_size 10 is not a multiple of per_device_train_batch_size 4 x "
        "2 data-parallel ranks");
    fails_to_resolve("\"per_device_train_batch_size\": 4, \"gradient_accumulation_steps\": 1,"
                     "\"global_train_batch_size\": 16",
                     2, "contradicts");
    fails_to_resolve("\"per_device_train_batch_size\": 2147483647", 2, "too large");
}

/* The printed options of a config, read again, are the same: pf.json can be fed back. */
static void test_print(void)
{
    struct pf_str first, second;
    struct pf_config c;

    pf_str_init(&first);
    pf_str_init(&second);
    if (ok(read_one(WITH("\"bf16\": true, \"freeze\": [\"x\"], \"dump_steps\": [1], "
                         "\"save_total_limit\": 2,"
                         "\"skip_data_intervals\": [[1, 2]], \"lr_scheduler\": \"wsd:5\","
                         "\"global_train_batch_size\": 32"),
                    NULL, &c) == 0 &&
               pf_config_resolve(&c, 2) == 0 && pf_config_print(&c, &first) == 0,
           "a resolved config is printed")) {
        pf_config_release(&c);
        ok(strstr(first.text, "\"dtype\": \"bfloat16\"") &&
               strstr(first.text, "\"save_total_limit\": 2") &&
               strstr(first.text, "\"gradient_accumulation_steps\": 2"),
           "with what was derived");
        if (ok(read_one(first.text, NULL, &c) == 0, "and read again")) {
            ok(pf_config_resolve(&c, 2) == 0 && pf_config_print(&c, &second) == 0 &&
                   strcmp(first.text, second.text) == 0,
               "it prints the same");
            pf_config_release(&c);
        }
    }
    pf_str_release(&first);
    pf_str_release(&second);
}

static int compare_with(const char *old_text, const char *new_members, char **note)
{
    struct pf_config c;
    char text[512];

    *note = NULL;
    snprintf(text, sizeof text, LEAST ", %s}", new_members);
    if (read_one(text, NULL, &c) != 0 || pf_config_resolve(&c, 2) != 0) {
        return -1;
    }
    const int err = pf_config_check_resume(&c, old_text, note);
    pf_config_release(&c);
    return err;
}

static void test_resume(void)
{
    struct pf_str old;
    struct pf_config c;
    char *note;

    pf_str_init(&old);
    if (!ok(read_one(WITH("\"seed\": 3, \"per_device_train_batch_size\": 4,"
                          "\"gradient_accumulation_steps\": 2"),
                     NULL, &c) == 0 &&
                pf_config_resolve(&c, 2) == 0 && pf_config_print(&c, &old) == 0,
            "the options of a first run")) {
        return;
    }
    pf_config_release(&c);
    const char *const same = "\"seed\": 3, \"per_device_train_batch_size\": 4, "
                             "\"gradient_accumulation_steps\": 2";
    char members[512];
    ok(compare_with(old.text, same, &note) == 0 && !note, "the same options may resume it");
    snprintf(members, sizeof members,
             "%s, \"max_steps\": 90, \"learning_rate\": 1, \"save_steps\": 7", same);
    ok(compare_with(old.text, members, &note) == 0 && !note, "length, rate and saving may change");
    ok(compare_with(old.text,
                    "\"seed\": 3, \"per_device_train_batch_size\": 8,"
                    "\"gradient_accumulation_steps\": 1",
                    &note) == 0 &&
           !note,
       "the global batch may be dealt otherwise");
    ok(compare_with(old.text, "\"seed\": 3", &note) == 0, "a batch of 8 x 1 is that");
    ok(compare_with(old.text, "\"seed\": 3, \"per_device_train_batch_size\": 4", &note) ==
               PF_EREFUSED &&
           strstr(pf_error_message(), "'global_train_batch_size' is 8") &&
           strstr(pf_error_message(), "has 16"),
       "but not be another, which is refused with both values");
    snprintf(members, sizeof members, "%s, \"weight_decay\": 0.2", same);
    ok(compare_with(old.text, members, &note) == PF_EREFUSED &&
           pf_error_exit_status(PF_EREFUSED) == PF_EXIT_USAGE,
       "nor may what decides an update");
    snprintf(members, sizeof members, "%s, \"split\": \"9,1,0\"", same);
    ok(compare_with(old.text, members, &note) == 0 && note && strstr(note, "'split'"),
       "other data are allowed and worth a word");
    pf_free(note);
    struct pf_str nested;
    pf_str_init(&nested);
    pf_str_appendf(&nested, "{\"schema\": 1, \"options\": %s}", old.text);
    ok(compare_with(nested.text, "\"seed\": 4", &note) == PF_EREFUSED,
       "the options are found inside a pf.json");
    pf_str_release(&nested);
    ok(compare_with("{\"seed\": 3}", "\"seed\": 3, \"weight_decay\": 0.2", &note) == 0,
       "a key that an older version did not record is not compared");
    ok(compare_with("nonsense", same, &note) == PF_EFORMAT,
       "text that is no JSON is a damaged file");
    pf_str_release(&old);
}

/* The promise of the release: keys of what it builds are never refused. */
static void test_scope(void)
{
    static const char *const built[] = {
        "input_dir",
        "split",
        "max_seq_length",
        "packing",
        "dataloader_num_workers",
        "prefetch_factor",
        "distributed_dataloader",
        "mix_strategy",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "learning_rate",
        "weight_decay",
        "adam_beta1",
        "adam_beta2",
        "adam_epsilon",
        "max_grad_norm",
        "num_train_epochs",
        "max_steps",
        "optim",
        "lr_scheduler_type",
        "warmup_ratio",
        "warmup_steps",
        "min_lr",
        "num_cycles",
        "lr_end",
        "power",
        "seed",
        "logging_steps",
        "save_steps",
        "save_total_limit",
        "bf16",
        "fp16",
        "fp16_opt_level",
        "amp_master_grad",
        "scale_loss",
        "deterministic_mode",
        "fa_version",
        "pp_delay_scale_loss",
        "save_hf_steps",
        "save_compress",
        "save_parity",
        "resume_from_checkpoint",
        "ignore_data_skip",
        "skip_data_intervals",
        "save_rng_states",
        "load_via_cpu",
        "eval_steps",
        "eval_only",
        "freeze",
        "dump_steps",
        "mask_documents",
        "kernels_from",
        "comm_timeout",
        "threads",
        "device",
        "split_param",
        "fuse_optimizer_states",
    };
    int n = 0;
    const int n_built = (int)(sizeof built / sizeof built[0]);

    for (int k = 0; k < n_built; k++) {
        for (size_t i = 0; i < pf_n_keys; i++) {
            n += strcmp(pf_keys[i].name, built[k]) == 0 && pf_keys[i].status != PF_KEY_REFUSED;
        }
    }
    ok(n == n_built, "no key of batch, optimizer, precision, data or checkpoints is refused");
}

int main(void)
{
    scratch_make();
    test_defaults();
    test_values();
    test_bad_values();
    test_contradictions();
    test_overrides();
    test_old_forms();
    test_refused();
    test_table();
    test_notes();
    test_resolve();
    test_print();
    test_resume();
    test_scope();
    scratch_remove();
    return done();
}
