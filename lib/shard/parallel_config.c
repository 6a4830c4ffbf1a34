/* SPDX-License-Identifier: Apache-2.0 */
/* The layout that a training config asks for. */
#include <pf/parallel.h>

#include <pf/error.h>
#include <pf/json.h>
#include <pf/parallelize.h>
#include <pf/str.h>

#include "shard_internal.h"

#include <stdio.h>
#include <string.h>

/* Keys that are numbers: what a layout calls them, and all their names, the canonical one first. */
static const struct number {
    const char *option;
    const char *names[4];
} numbers[] = {
    {"tp", {"tensor_model_parallel_size", "tensor_parallel_degree"}},
    {"pp", {"pipeline_model_parallel_size", "pipeline_parallel_degree"}},
    {"vpp", {"virtual_pipeline_model_parallel_size", "virtual_pp_degree"}},
    {"ep", {"expert_model_parallel_size", "expert_parallel_degree"}},
    {"sharding", {"sharding_parallel_size", "sharding_parallel_degree", "sharding_degree"}},
    {"cp", {"context_parallel_size"}},
    {"first_layers", {"num_layers_in_first_pipeline_stage"}},
    {"last_layers", {"num_layers_in_last_pipeline_stage"}},
};
#define N_NUMBERS (int)(sizeof numbers / sizeof numbers[0])

static bool is_given(const struct pf_json *node)
{
    return node && pf_json_type(node) != PF_JSON_NULL;
}

/* The member under any of its names; two of them are one too many. */
static int find_member(const struct pf_json *config, const char *const names[4],
                       const struct pf_json **node_out)
{
    *node_out = NULL;
    for (int i = 0; i < 4 && names[i]; i++) {
        const struct pf_json *const node = pf_json_get(config, names[i]);
        if (is_given(node) && *node_out) {
            return pf_json_fail(node, "is another name of '%s', which is given too",
                                pf_json_path(*node_out));
        }
        *node_out = is_given(node) ? node : *node_out;
    }
    return 0;
}

/* A number from 1 on; -1 is not given (0). */
static int read_number(const struct pf_json *node, int64_t *value_out)
{
    int64_t value = -1;

    if (node) {
        PF_TRY(pf_json_as_i64(node, &value));
    }
    if (value != -1 && (value < 1 || value > INT32_MAX)) {
        return pf_json_fail(node, "is %lld, must be -1 or from 1 to %d", (long long)value,
                            INT32_MAX);
    }
    *value_out = value == -1 ? 0 : value;
    return 0;
}

static int read_numbers(const struct pf_json *config, struct pf_parallel *par)
{
    const struct pf_json *node = NULL;
    int64_t value = 0;
    char text[32];

    for (int i = 0; i < N_NUMBERS; i++) {
        PF_TRY(find_member(config, numbers[i].names, &node));
        PF_TRY(read_number(node, &value));
        snprintf(text, sizeof text, "%lld", (long long)value);
        if (value > 0 && shard_parallel_set(numbers[i].option, text, par) != 0) {
            return pf_json_fail(node, "is %lld, which is too large", (long long)value);
        }
    }
    return 0;
}

/* Sequences cut by heads and by blocks share one axis of the mesh. */
static int read_sep(const struct pf_json *config, struct pf_parallel *par)
{
    const struct pf_json *const node = pf_json_get(config, "sep_parallel_size");
    int64_t sep = 0;

    PF_TRY(read_number(is_given(node) ? node : NULL, &sep));
    if (sep > 1 && par->degree[PF_AXIS_CP] > 1) {
        return pf_json_fail(node, "and 'context_parallel_size' share an axis: one of them is 1");
    }
    par->degree[PF_AXIS_CP] = sep > 1 ? (int)sep : par->degree[PF_AXIS_CP];
    return 0;
}

/* One word of "stage2 offload". Where state lies in memory is no matter of its layout. */
static int read_stage(const struct pf_json *node, const char *word, struct pf_parallel *par)
{
    static const char *const stages[] = {"", "stage1", "stage2", "stage3"};

    for (int i = 1; i <= 3; i++) {
        if (strcmp(word, stages[i]) == 0) {
            if (par->stage >= 0) {
                return pf_json_fail(node, "names two stages");
            }
            par->stage = i;
            return 0;
        }
    }
    return *word == '\0' || strcmp(word, "offload") == 0
               ? 0
               : pf_json_fail(node, "'%s' is none of stage1, stage2, stage3, offload", word);
}

static int read_words(const struct pf_json *node, struct pf_parallel *par)
{
    struct pf_str_list words = {0};
    const char *text = "";
    int err = 0;

    PF_TRY(pf_json_as_string(node, &text));
    PF_TRY(pf_str_split(text, ' ', true, &words));
    for (size_t i = 0; i < words.n && !err; i++) {
        err = read_stage(node, words.items[i], par);
    }
    pf_str_list_release(&words);
    return err;
}

/* A string of words, or a list of them. */
static int read_sharding(const struct pf_json *config, struct pf_parallel *par)
{
    const struct pf_json *const node = pf_json_get(config, "sharding");

    if (!is_given(node)) {
        return 0;
    }
    if (pf_json_type(node) != PF_JSON_ARRAY) {
        return read_words(node, par);
    }
    for (size_t i = 0; i < pf_json_n(node); i++) {
        PF_TRY(read_words(pf_json_child(node, i), par));
    }
    return 0;
}

static int read_buffer(const struct pf_json *config, struct pf_parallel *par)
{
    const struct pf_json *const node = pf_json_get(config, "sharding_comm_buffer_size_MB");
    int64_t mib = 0;

    PF_TRY(read_number(is_given(node) ? node : NULL, &mib));
    par->bucket_bytes = mib << 20;
    return 0;
}

/* A string that is an option of a layout as it stands. */
static int read_string(const struct pf_json *config, const char *key, const char *option,
                       struct pf_parallel *par)
{
    const struct pf_json *const node = pf_json_get(config, key);
    const char *text = "";

    if (!is_given(node)) {
        return 0;
    }
    PF_TRY(pf_json_as_string(node, &text));
    if (shard_parallel_set(option, text, par) != 0) {
        return pf_json_fail(node, "is '%s', which is no such option", text);
    }
    return 0;
}

int pf_parallel_read(const struct pf_json *config, struct pf_parallel *par_out)
{
    struct pf_parallel par;
    bool split = true;

    pf_parallel_init(&par);
    PF_TRY(pf_json_expect(config, PF_JSON_OBJECT));
    PF_TRY(read_numbers(config, &par));
    PF_TRY(read_sep(config, &par));
    PF_TRY(read_sharding(config, &par));
    PF_TRY(read_buffer(config, &par));
    PF_TRY(read_string(config, "hybrid_parallel_topo_order", "order", &par));
    PF_TRY(read_string(config, "pp_seg_method", "segments", &par));
    PF_TRY(pf_json_bool(config, "split_param", true, &split));
    PF_TRY(pf_json_bool(config, "use_dualpipev", false, &par.dual));
    const struct pf_json *const plan = pf_json_get(config, "parallelize_plan");
    if (is_given(plan)) {
        PF_TRY(pf_parallelize_options(plan, &par));
    }
    par.whole_params = !split && (par.stage == 1 || par.stage == 2);
    memcpy(par_out, &par, sizeof par);
    return 0;
}

void pf_parallel_json(const struct pf_parallel *par, struct pf_json_out *out)
{
    pf_json_out_object_begin(out);
    for (int a = 0; a < PF_AXIS_COUNT; a++) {
        pf_json_out_member_i64(out, pf_axis_name((enum pf_axis)a), par->degree[a]);
    }
    pf_json_out_member_i64(out, "ep", par->ep);
    pf_json_out_member_i64(out, "vpp", par->vpp);
    pf_json_out_member_i64(out, "stage", par->stage);
    pf_json_out_object_end(out);
}
