/* SPDX-License-Identifier: Apache-2.0 */
/* What follows from a config once the number of ranks is known. */
#include "config_internal.h"

#include <pf/error.h>
#include <pf/json.h>
#include <pf/log.h>
#include <pf/mem.h>
#include <pf/planes.h>

static bool was_given(const struct pf_config *config, const char *key)
{
    return config->given && config->given[config_key_index(key)] != 0;
}

static int resolve_mesh(struct pf_config *c, int world_size)
{
    int degree[PF_AXIS_COUNT];

    for (int a = 0; a < PF_AXIS_COUNT; a++) {
        degree[a] = c->degree[a] > 0 ? c->degree[a] : a == PF_AXIS_DP ? 0 : 1;
    }
    return pf_mesh_init(&c->mesh, world_size, degree, c->expert_degree > 0 ? c->expert_degree : 1,
                        c->pp_first);
}

/* Accumulation from a global batch that was given. */
static int derive_accumulation(struct pf_config *c, int64_t per_round)
{
    const int64_t global = c->global_train_batch_size, dp = c->mesh.degree[PF_AXIS_DP];

    if (global % per_round != 0) {
        return pf_fail(
            PF_EINVAL,
            "global_train_batch_size %lld is not a multiple of per_device_train_batch_size "
            "%lld x %lld data-parallel ranks",
            (long long)global, (long long)c->per_device_train_batch_size, (long long)dp);
    }
    if (was_given(c, "gradient_accumulation_steps") &&
        c->gradient_accumulation_steps != global / per_round) {
        return pf_fail(
            PF_EINVAL,
            "global_train_batch_size %lld contradicts per_device_train_batch_size %lld x "
            "gradient_accumulation_steps %lld x %lld data-parallel ranks: leave one out",
            (long long)global, (long long)c->per_device_train_batch_size,
            (long long)c->gradient_accumulation_steps, (long long)dp);
    }
    c->gradient_accumulation_steps = global / per_round;
    return 0;
}

static int resolve_batch(struct pf_config *c)
{
    int64_t per_round, global;

    if (!pf_mul_i64(c->per_device_train_batch_size, c->mesh.degree[PF_AXIS_DP], &per_round) ||
        !pf_mul_i64(per_round, c->gradient_accumulation_steps, &global) || global > INT32_MAX) {
        return pf_fail(PF_EINVAL, "a step of more than %d sequences is too large", INT32_MAX);
    }
    if (was_given(c, "global_train_batch_size")) {
        return derive_accumulation(c, per_round);
    }
    c->global_train_batch_size = global;
    return 0;
}

int pf_config_ranks(const struct pf_config *config)
{
    int64_t n = 1;

    for (int a = 0; a < PF_AXIS_COUNT && n <= INT32_MAX; a++) {
        n *= config->degree[a] > 0 ? config->degree[a] : 1;
    }
    return n <= INT32_MAX ? (int)n : INT32_MAX;
}

int pf_config_parallel(const struct pf_config *config, struct pf_parallel *par_out)
{
    struct pf_str text;
    struct pf_json *options = NULL;
    int err;

    pf_str_init(&text);
    PF_TRY_GOTO(pf_config_print(config, &text), out);
    PF_TRY_GOTO(pf_json_parse_text(text.text, text.len, "options", &options), out);
    err = pf_parallel_read(options, par_out);
out:
    pf_json_free(options);
    pf_str_release(&text);
    return err;
}

int pf_config_resolve(struct pf_config *config, int world_size)
{
    PF_TRY(resolve_mesh(config, world_size));
    PF_TRY(resolve_batch(config));
    if (config->save_compress == PF_CKPT_ZSTD && !pf_planes_is_built()) {
        return pf_fail(PF_ENOTSUP, "'save_compress' = zstd cannot be done: this build has no zstd");
    }
    for (size_t i = 0; i < config->notes.n; i++) {
        pf_log_info0(NULL, "%s", config->notes.items[i]);
    }
    pf_str_list_release(&config->notes);
    return 0;
}
