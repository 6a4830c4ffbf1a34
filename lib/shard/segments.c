/* SPDX-License-Identifier: Apache-2.0 */
/* How the layers of a model become the chunks of a pipeline. */
#include <pf/parallel.h>

#include <pf/error.h>
#include <pf/mem.h>

#include "shard_internal.h"

#include <limits.h>
#include <regex.h>
#include <stdio.h>
#include <string.h>

/* What is counted besides the layers: the embedding before them, norm and head behind. */
enum { ITEMS_BEFORE = 1, ITEMS_BEHIND = 2 };

static const char *const class_names[PF_FAMILY_COUNT] = {
    [PF_FAMILY_GPT2] = "GPT2",
    [PF_FAMILY_LLAMA] = "Llama",
    [PF_FAMILY_QWEN2] = "Qwen2",
    [PF_FAMILY_QWEN3] = "Qwen3",
    [PF_FAMILY_ERNIE4_5] = "Ernie4_5_",
    [PF_FAMILY_MIXTRAL] = "Mixtral",
    [PF_FAMILY_QWEN3_MOE] = "Qwen3Moe",
    [PF_FAMILY_DEEPSEEK_V3] = "DeepseekV3",
    [PF_FAMILY_ERNIE4_5_MOE] = "Ernie4_5_Moe",
};

static const char *item_name(const struct pf_model_spec *spec, int64_t item, char name[64])
{
    const char *const what = item < ITEMS_BEFORE                     ? "Embedding"
                             : item < ITEMS_BEFORE + spec->n_layers  ? "DecoderLayer"
                             : item == ITEMS_BEFORE + spec->n_layers ? "RMSNorm"
                                                                     : "LMHead";

    snprintf(name, 64, "%s%s", class_names[spec->family], what);
    return name;
}

static bool is_layer_pattern(const char *segments)
{
    return strncmp(segments, "layer:", 6) == 0;
}

int shard_compile(const char *pattern, int flags, void *regex_out, char why_out[128])
{
    const int err = regcomp(regex_out, pattern, REG_EXTENDED | flags);

    if (err != 0) {
        regerror(err, NULL, why_out, 128);
        return err == REG_ESPACE ? pf_fail(PF_ENOMEM, "out of memory for a pattern") : PF_EUSAGE;
    }
    return 0;
}

static int compile(const char *segments, regex_t *regex_out)
{
    char why[128];
    const int err = shard_compile(segments + 6, REG_ICASE | REG_NOSUB, regex_out, why);

    return err == PF_EUSAGE ? pf_fail(err, "segments '%s': %s", segments, why) : err;
}

/* The next number of "0:3:8"; *at moves behind it and its colon. */
static int next_start(const char *segments, const char **at, int64_t *start_out)
{
    int64_t n = 0;
    const char *p = *at;

    for (; *p >= '0' && *p <= '9' && n <= PF_SPEC_MAX_LAYERS; p++) {
        n = 10 * n + (*p - '0');
    }
    if (p == *at || (*p != ':' && *p != '\0') || (*p == ':' && p[1] == '\0')) {
        return pf_fail(PF_EUSAGE,
                       "segments '%s' are none of uniform, layer:PATTERN, and first layers '0:3:8'",
                       segments);
    }
    *at = *p ? p + 1 : p;
    *start_out = n;
    return 0;
}

int shard_segments_check(const char *segments)
{
    int64_t start = 0;

    if (!segments[0] || strcmp(segments, "uniform") == 0) {
        return 0;
    }
    if (is_layer_pattern(segments)) {
        regex_t regex;
        PF_TRY(compile(segments, &regex));
        regfree(&regex);
        return 0;
    }
    for (const char *at = segments; *at;) {
        PF_TRY(next_start(segments, &at, &start));
    }
    return 0;
}

/* The layer at which the items from `item` on begin: the embedding belongs to layer 0, what is
 * behind the layers to their end. */
static int64_t layer_of_item(const struct pf_model_spec *spec, int64_t item)
{
    const int64_t layer = item - ITEMS_BEFORE;

    return layer < 0 ? 0 : layer > spec->n_layers ? spec->n_layers : layer;
}

static int by_number(const struct pf_parallel *par, const struct pf_model_spec *spec, int n,
                     int64_t *starts)
{
    const int64_t items = ITEMS_BEFORE + spec->n_layers + ITEMS_BEHIND, each = items / n;
    int64_t item = 0;

    if (par->vpp > 1) {
        return pf_fail(PF_EINVAL, "uniform segments need vpp=1, not %d", par->vpp);
    }
    for (int c = 0; c < n; c++) {
        starts[c] = layer_of_item(spec, item);
        item += each + (c >= n - items % n);
    }
    return 0;
}

/* Which items does the pattern meet? */
static int count_items(const struct pf_parallel *par, const struct pf_model_spec *spec, bool *met,
                       int64_t *n_met_out)
{
    const int64_t items = ITEMS_BEFORE + spec->n_layers + ITEMS_BEHIND;
    regex_t regex;
    char name[64];

    PF_TRY(compile(par->segments, &regex));
    *n_met_out = 0;
    for (int64_t i = 0; i < items; i++) {
        met[i] = regexec(&regex, item_name(spec, i, name), 0, NULL, 0) == 0;
        *n_met_out += met[i];
    }
    regfree(&regex);
    return 0;
}

static int by_pattern(const struct pf_parallel *par, const struct pf_model_spec *spec, int n,
                      int64_t *starts)
{
    bool met[ITEMS_BEFORE + PF_SPEC_MAX_LAYERS + ITEMS_BEHIND];
    int64_t n_met = 0, seen = 0;
    char name[64];
    int c = 1;

    PF_TRY(count_items(par, spec, met, &n_met));
    if (n_met == 0) {
        return pf_fail(PF_EINVAL, "segments '%s' meet nothing, not even '%s'", par->segments,
                       item_name(spec, ITEMS_BEFORE, name));
    }
    if (n_met % n != 0) {
        return pf_fail(PF_EINVAL, "pp=%d x vpp=%d does not divide the %lld items that '%s' meets",
                       par->degree[PF_AXIS_PP], par->vpp, (long long)n_met, par->segments);
    }
    starts[0] = 0;
    for (int64_t i = 0; c < n; i++) {
        seen += met[i];
        if (seen == c * (n_met / n)) {
            starts[c++] = layer_of_item(spec, i + 1);
        }
    }
    return 0;
}

static int by_list(const struct pf_parallel *par, const struct pf_model_spec *spec, int n,
                   int64_t *starts)
{
    const char *at = par->segments;
    int64_t start = 0, last = 0;
    int c = 0;

    for (; *at; c++) {
        PF_TRY(next_start(par->segments, &at, &start));
        if (start < last || start > spec->n_layers || (c == 0 && start != 0)) {
            return pf_fail(PF_EINVAL, "segments '%s' must rise from 0 to at most %lld layers",
                           par->segments, (long long)spec->n_layers);
        }
        last = start;
        if (c < n) {
            starts[c] = start;
        }
    }
    if (c != n) {
        return pf_fail(PF_EINVAL, "segments '%s' are %d chunks, pp=%d x vpp=%d are %d",
                       par->segments, c, par->degree[PF_AXIS_PP], par->vpp, n);
    }
    return 0;
}

static int fail_even(const struct pf_parallel *par, const struct pf_model_spec *spec)
{
    return pf_fail(PF_EINVAL,
                   "pp=%d x vpp=%d does not divide %lld layers (first_layers, last_layers or "
                   "segments make chunks of different lengths)",
                   par->degree[PF_AXIS_PP], par->vpp, (long long)spec->n_layers);
}

/* Layers of each chunk of the stages in between, when the first and last have theirs. */
static int share_rest(const struct pf_parallel *par, const struct pf_model_spec *spec,
                      int64_t *each_out)
{
    const int64_t first = par->first_layers, last = par->last_layers, vpp = par->vpp;
    const int64_t between = par->degree[PF_AXIS_PP] - (first > 0) - (last > 0);
    const int64_t rest = spec->n_layers - first - last;

    if (first % vpp != 0 || last % vpp != 0) {
        return pf_fail(PF_EINVAL, "vpp=%lld does not divide first_layers=%lld, last_layers=%lld",
                       (long long)vpp, (long long)first, (long long)last);
    }
    if (rest < 0 || (between == 0 ? rest != 0 : rest % (between * vpp) != 0)) {
        return pf_fail(PF_EINVAL,
                       "%lld layers less first_layers=%lld and last_layers=%lld are %lld, which "
                       "%lld stages with vpp=%lld cannot share",
                       (long long)spec->n_layers, (long long)first, (long long)last,
                       (long long)rest, (long long)between, (long long)vpp);
    }
    *each_out = between > 0 ? rest / (between * vpp) : 0;
    return 0;
}

static int evenly(const struct pf_parallel *par, const struct pf_model_spec *spec, int n,
                  int64_t *starts)
{
    const int pp = par->degree[PF_AXIS_PP];
    int64_t each = spec->n_layers / n, at = 0;

    if (par->first_layers > 0 || par->last_layers > 0) {
        PF_TRY(share_rest(par, spec, &each));
    } else if (spec->n_layers % n != 0) {
        return fail_even(par, spec);
    }
    for (int c = 0; c < n; c++) {
        const int stage = pf_parallel_stage_of(par, c);
        starts[c] = at;
        at += stage == 0 && par->first_layers > 0       ? par->first_layers / par->vpp
              : stage == pp - 1 && par->last_layers > 0 ? par->last_layers / par->vpp
                                                        : each;
    }
    return 0;
}

static int check_chunks(const struct pf_parallel *par, const struct pf_model_spec *spec, int n,
                        const int64_t *starts)
{
    for (int c = 1; c < n - 1; c++) {
        if (starts[c] == starts[c + 1]) {
            return pf_fail(PF_EINVAL, "pp=%d x vpp=%d leaves chunk %d of %lld layers empty",
                           par->degree[PF_AXIS_PP], par->vpp, c, (long long)spec->n_layers);
        }
    }
    return 0;
}

int pf_parallel_chunks(const struct pf_parallel *par, const struct pf_model_spec *spec,
                       int64_t *starts_out)
{
    const int64_t n_chunks = (int64_t)par->degree[PF_AXIS_PP] * par->vpp;
    const int n = n_chunks > PF_PARALLEL_MAX_CHUNKS ? 0 : (int)n_chunks;

    if (n == 0) {
        return fail_even(par, spec);
    }
    if (par->segments[0] == '\0') {
        PF_TRY(evenly(par, spec, n, starts_out));
    } else if (strcmp(par->segments, "uniform") == 0) {
        PF_TRY(by_number(par, spec, n, starts_out));
    } else if (is_layer_pattern(par->segments)) {
        PF_TRY(by_pattern(par, spec, n, starts_out));
    } else {
        PF_TRY(by_list(par, spec, n, starts_out));
    }
    starts_out[n] = spec->n_layers;
    PF_TRY(check_chunks(par, spec, n, starts_out));
    return n;
}

int pf_parallel_stage_of(const struct pf_parallel *par, int chunk)
{
    const int pp = par->degree[PF_AXIS_PP];

    return par->dual && chunk >= pp ? 2 * pp - 1 - chunk : chunk % pp;
}
