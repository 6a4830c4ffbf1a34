/* SPDX-License-Identifier: Apache-2.0 */
/* Keys that were given and cannot matter in this run: each is named once, with the reason. */
#include "config_internal.h"

#include <pf/error.h>

#include <string.h>

typedef bool is_idle(const struct pf_config *c);

static bool not_table(const struct pf_config *c)
{
    return c->lr_scheduler_type != PF_LR_TABLE;
}

static bool is_table(const struct pf_config *c)
{
    return c->lr_scheduler_type == PF_LR_TABLE;
}

static bool no_minimum(const struct pf_config *c)
{
    return is_table(c) || c->lr_scheduler_type == PF_LR_CONSTANT;
}

static bool not_cosine(const struct pf_config *c)
{
    return c->lr_scheduler_type != PF_LR_COSINE;
}

static bool not_polynomial(const struct pf_config *c)
{
    return c->lr_scheduler_type != PF_LR_POLYNOMIAL;
}

static bool not_wsd(const struct pf_config *c)
{
    return c->lr_scheduler_type != PF_LR_WSD;
}

static bool has_warmup_steps(const struct pf_config *c)
{
    return c->warmup_steps > 0;
}

static bool has_max_steps(const struct pf_config *c)
{
    return c->max_steps > 0;
}

static bool no_eval_data(const struct pf_config *c)
{
    return !c->eval_input_dir && !c->split && !c->eval_only;
}

static bool no_dump_steps(const struct pf_config *c)
{
    return c->n_dump_steps == 0;
}

static bool no_resume(const struct pf_config *c)
{
    return !c->resume_from_checkpoint;
}

static bool only_evaluates(const struct pf_config *c)
{
    return c->eval_only;
}

static bool no_decay(const struct pf_config *c)
{
    return c->weight_decay == 0;
}

static bool no_workers(const struct pf_config *c)
{
    return c->dataloader_num_workers == 0;
}

static bool writes_nothing(const struct pf_config *c)
{
    return c->sample_steps <= 0 && !c->sample_prompt;
}

static bool not_float16(const struct pf_config *c)
{
    return c->dtype != PF_DTYPE_F16;
}

static bool no_recompute(const struct pf_config *c)
{
    return c->recompute == PF_RECOMPUTE_NONE;
}

static bool no_groups(const struct pf_config *c)
{
    return c->recompute != PF_RECOMPUTE_FULL && c->recompute_method == PF_RECOMPUTE_UNIFORM;
}

static bool evaluates_other_data(const struct pf_config *c)
{
    return c->eval_only && c->eval_input_dir;
}

static const struct {
    const char *key;
    is_idle *idle;
    const char *why;
} idle_keys[] = {
    {"learning_rate", is_table, "lr_table gives every rate"},
    {"warmup_steps", is_table, "lr_table gives every rate"},
    {"warmup_ratio", is_table, "lr_table gives every rate"},
    {"warmup_ratio", has_warmup_steps, "warmup_steps is given"},
    {"min_lr", no_minimum, "this lr_scheduler_type has no decay"},
    {"lr_table", not_table, "lr_scheduler_type is not table"},
    {"num_cycles", not_cosine, "lr_scheduler_type is not cosine"},
    {"lr_end", not_polynomial, "lr_scheduler_type is not polynomial"},
    {"power", not_polynomial, "lr_scheduler_type is not polynomial"},
    {"wsd_decay_start", not_wsd, "lr_scheduler_type is not wsd"},
    {"decay_function", not_wsd, "lr_scheduler_type is not wsd"},
    {"weight_decay_exclude", no_decay, "weight_decay is 0"},
    {"num_train_epochs", has_max_steps, "max_steps is given"},
    {"eval_steps", no_eval_data, "there is no evaluation data"},
    {"eval_iters", no_eval_data, "there is no evaluation data"},
    {"per_device_eval_batch_size", no_eval_data, "there is no evaluation data"},
    {"prefetch_factor", no_workers, "dataloader_num_workers is 0"},
    {"scale_loss", not_float16, "dtype is not float16"},
    {"recompute_method", no_recompute, "recompute_granularity is none"},
    {"recompute_num_layers", no_recompute, "recompute_granularity is none"},
    {"recompute_num_layers", no_groups, "recompute_method uniform has groups with full alone"},
    {"input_dir", evaluates_other_data, "eval_only measures eval_input_dir"},
    {"split", evaluates_other_data, "eval_only measures eval_input_dir"},
    {"dump", no_dump_steps, "dump_steps is empty"},
    {"sample_tokens", writes_nothing, "no text is asked for"},
    {"sample_temperature", writes_nothing, "no text is asked for"},
    {"ignore_data_skip", no_resume, "nothing is resumed"},
    {"learning_rate", only_evaluates, "eval_only trains nothing"},
    {"max_steps", only_evaluates, "eval_only trains nothing"},
    {"num_train_epochs", only_evaluates, "eval_only trains nothing"},
    {"gradient_accumulation_steps", only_evaluates, "eval_only trains nothing"},
    {"save_steps", only_evaluates, "eval_only trains nothing"},
    {"save_hf_steps", only_evaluates, "eval_only trains nothing"},
    {"save_compress", only_evaluates, "eval_only trains nothing"},
    {"save_parity", only_evaluates, "eval_only trains nothing"},
    {"logging_steps", only_evaluates, "eval_only trains nothing"},
    {"dataloader_num_workers", only_evaluates, "eval_only trains nothing"},
    {"dump_steps", only_evaluates, "eval_only trains nothing"},
    {"profile_steps", only_evaluates, "eval_only trains nothing"},
    {"trace_steps", only_evaluates, "eval_only trains nothing"},
};

int config_note_idle(struct pf_config *config)
{
    for (size_t i = 0; i < pf_n_keys; i++) {
        const struct pf_key *const key = &pf_keys[i];
        const char *why = key->status == PF_KEY_SATISFIED ? key->why : NULL;
        for (size_t k = 0; !why && k < sizeof idle_keys / sizeof idle_keys[0]; k++) {
            if (strcmp(idle_keys[k].key, key->name) == 0 && idle_keys[k].idle(config)) {
                why = idle_keys[k].why;
            }
        }
        if (why && config->given[i] == 2) {
            PF_TRY(config_note(config, "'%s' changes nothing in this run: %s", key->name, why));
        }
    }
    return 0;
}
