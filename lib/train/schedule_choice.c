/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule that a config asks for. */
#include <pf/error.h>
#include <pf/json.h>
#include <pf/schedule.h>
#include <pf/str.h>

#include <string.h>

static int read_mode(const struct pf_json *config, struct pf_schedule_keys *keys)
{
    const struct pf_json *const node = pf_json_get(config, "pipeline_schedule_mode");
    const char *name;

    if (!node || pf_json_type(node) == PF_JSON_NULL) {
        return 0;
    }
    PF_TRY(pf_json_as_string(node, &name));
    for (int kind = PF_SCHEDULE_1F1B; kind <= PF_SCHEDULE_ZERO_BUBBLE; kind++) {
        if (strcmp(name, pf_schedule_name((enum pf_schedule_kind)kind)) == 0) {
            keys->mode = (enum pf_schedule_kind)kind;
            return 0;
        }
    }
    return pf_json_fail(node, "is '%s', must be one of 1F1B, FThenB, VPP, ZBH1", name);
}

/* A switch by its name; NULL for words that say nothing about schedules. */
static bool *switch_of(struct pf_schedule_keys *keys, const char *name)
{
    const struct {
        const char *name;
        bool *field;
    } switches[] = {
        {"best_unbalanced_scheduler", &keys->best_unbalanced_scheduler},
        {"split_backward", &keys->split_backward},
        {"use_dualpipev", &keys->use_dualpipev},
        {"forward_backward_overlap_scheduler", &keys->forward_backward_overlap_scheduler},
    };

    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++) {
        if (strcmp(name, switches[i].name) == 0) {
            return switches[i].field;
        }
    }
    return NULL;
}

static int read_words(const char *text, struct pf_schedule_keys *keys)
{
    struct pf_str_list words = {0};

    PF_TRY(pf_str_split(text, ' ', true, &words));
    for (size_t i = 0; i < words.n; i++) {
        const char *const word = words.items[i];
        const bool off = pf_str_starts_with(word, "disable_");
        bool *const field = switch_of(keys, off                                   ? word + 8
                                            : pf_str_starts_with(word, "enable_") ? word + 7
                                                                                  : word);
        if (field) {
            *field = !off;
        }
    }
    pf_str_list_release(&words);
    return 0;
}

/* A string of words, or a list of them. */
static int read_option_string(const struct pf_json *config, struct pf_schedule_keys *keys)
{
    const struct pf_json *const node = pf_json_get(config, "pipeline_parallel_config");
    const bool list = node && pf_json_type(node) == PF_JSON_ARRAY;
    const char *text;

    if (!node || pf_json_type(node) == PF_JSON_NULL) {
        return 0;
    }
    for (size_t i = 0; i < (list ? pf_json_n(node) : 1); i++) {
        PF_TRY(pf_json_as_string(list ? pf_json_child(node, i) : node, &text));
        PF_TRY(read_words(text, keys));
    }
    return 0;
}

int pf_schedule_read_keys(const struct pf_json *config, struct pf_schedule_keys *keys_out)
{
    static const char *const names[] = {"best_unbalanced_scheduler", "split_backward",
                                        "use_dualpipev", "forward_backward_overlap_scheduler"};
    struct pf_schedule_keys keys = {.mode = PF_SCHEDULE_1F1B};

    PF_TRY(pf_json_expect(config, PF_JSON_OBJECT));
    PF_TRY(read_mode(config, &keys));
    PF_TRY(read_option_string(config, &keys));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        bool *const field = switch_of(&keys, names[i]);
        PF_TRY(pf_json_bool(config, names[i], *field, field));
    }
    *keys_out = keys;
    return 0;
}

/* Another schedule than the mode's was asked for. */
static int check_mode(const struct pf_schedule_keys *keys, const char *key,
                      enum pf_schedule_kind also)
{
    return keys->mode == PF_SCHEDULE_1F1B || keys->mode == also
               ? 0
               : pf_fail(PF_EUSAGE,
                         "'%s' asks for another schedule than 'pipeline_schedule_mode' %s: give "
                         "one of them",
                         key, pf_schedule_name(keys->mode));
}

int pf_schedule_choose(const struct pf_schedule_keys *keys, int vpp,
                       enum pf_schedule_kind *kind_out)
{
    if (keys->use_dualpipev) {
        return pf_fail(PF_ENOTSUP, "this build has no DualPipeV schedule ('use_dualpipev')");
    }
    if (keys->forward_backward_overlap_scheduler) {
        return pf_fail(PF_ENOTSUP, "this build does not pair forwards with backwards "
                                   "('forward_backward_overlap_scheduler')");
    }
    if (keys->best_unbalanced_scheduler && keys->split_backward) {
        return pf_fail(PF_EUSAGE, "'best_unbalanced_scheduler' and 'split_backward' ask for two "
                                  "schedules: give one of them");
    }
    if (keys->best_unbalanced_scheduler) {
        PF_TRY(check_mode(keys, "best_unbalanced_scheduler", PF_SCHEDULE_INTERLEAVED));
        *kind_out = PF_SCHEDULE_BALANCED;
        return 0;
    }
    if (keys->split_backward) {
        PF_TRY(check_mode(keys, "split_backward", PF_SCHEDULE_ZERO_BUBBLE));
        *kind_out = PF_SCHEDULE_ZERO_BUBBLE;
        return 0;
    }
    *kind_out = keys->mode == PF_SCHEDULE_1F1B && vpp > 1 ? PF_SCHEDULE_INTERLEAVED : keys->mode;
    return 0;
}
