/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/parallel.h>

#include <pf/error.h>
#include <pf/mem.h>

#include "shard_internal.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define DEGREE_MAX (1 << 24)
#define DEFAULT_BUCKET_BYTES ((int64_t)256 << 20)

void pf_parallel_init(struct pf_parallel *par)
{
    memset(par, 0, sizeof *par); /* padding too: options are compared as bytes */
    par->stage = -1;
}

/* The text ------------------------------------------------------------------------------------- */

enum kind { KIND_INT, KIND_LAYERS, KIND_BOOL, KIND_ORDER, KIND_SEGMENTS, KIND_BYTES };

static const struct key {
    const char *name;
    enum kind kind;
    size_t field;
    int min, max;
} keys[] = {
#define AT(field) offsetof(struct pf_parallel, field)
    {"dp", KIND_INT, AT(degree[PF_AXIS_DP]), 1, DEGREE_MAX},
    {"sharding", KIND_INT, AT(degree[PF_AXIS_SHARDING]), 1, DEGREE_MAX},
    {"pp", KIND_INT, AT(degree[PF_AXIS_PP]), 1, DEGREE_MAX},
    {"cp", KIND_INT, AT(degree[PF_AXIS_CP]), 1, DEGREE_MAX},
    {"tp", KIND_INT, AT(degree[PF_AXIS_TP]), 1, DEGREE_MAX},
    {"vpp", KIND_INT, AT(vpp), 1, DEGREE_MAX},
    {"ep", KIND_INT, AT(ep), 1, DEGREE_MAX},
    {"stage", KIND_INT, AT(stage), 0, 3},
    {"order", KIND_ORDER, AT(pp_first), 0, 0},
    {"dual", KIND_BOOL, AT(dual), 0, 0},
    {"whole_params", KIND_BOOL, AT(whole_params), 0, 0},
    {"first_layers", KIND_LAYERS, AT(first_layers), 1, PF_SPEC_MAX_LAYERS},
    {"last_layers", KIND_LAYERS, AT(last_layers), 1, PF_SPEC_MAX_LAYERS},
    {"bucket", KIND_BYTES, AT(bucket_bytes), 0, 0},
    {"segments", KIND_SEGMENTS, AT(segments), 0, 0},
#undef AT
};
#define N_KEYS (sizeof keys / sizeof keys[0])

static int find_key(const char *name, size_t *index_out)
{
    const char *names[N_KEYS];

    for (size_t i = 0; i < N_KEYS; i++) {
        names[i] = keys[i].name;
        if (strcmp(name, keys[i].name) == 0) {
            *index_out = i;
            return 0;
        }
    }
    const char *const nearest = pf_nearest(name, names, N_KEYS);
    return pf_fail(PF_EUSAGE, "unknown word '%s' in a layout%s%s%s", name,
                   nearest ? ": did you mean '" : "", nearest ? nearest : "", nearest ? "'?" : "");
}

static int set_number(const struct key *key, const char *value, struct pf_parallel *par)
{
    char *const field = (char *)par + key->field;
    int64_t n = 0;

    if (pf_parse_i64(value, &n) != 0 || n < key->min || n > key->max) {
        return pf_fail(PF_EUSAGE, "'%s=%s' of a layout must be a number from %d to %d", key->name,
                       value, key->min, key->max);
    }
    if (key->kind == KIND_INT) {
        const int narrow = (int)n;
        memcpy(field, &narrow, sizeof narrow);
    } else {
        memcpy(field, &n, sizeof n);
    }
    return 0;
}

static int set_bytes(const struct key *key, const char *value, struct pf_parallel *par)
{
    size_t bytes = 0;

    if (pf_parse_bytes(value, &bytes) != 0 || bytes < 4 || bytes > (size_t)INT64_MAX) {
        return pf_fail(PF_EUSAGE, "'%s=%s' of a layout must be a size of at least 4 bytes",
                       key->name, value);
    }
    par->bucket_bytes = (int64_t)bytes;
    return 0;
}

static int set_segments(const char *value, struct pf_parallel *par)
{
    const size_t n = strlen(value);

    if (n >= sizeof par->segments) {
        return pf_fail(PF_EUSAGE, "the segments of a layout have more than %d characters",
                       PF_PARALLEL_SEGMENTS_MAX - 1);
    }
    PF_TRY(shard_segments_check(value));
    memcpy(par->segments, value, n + 1);
    return 0;
}

static int set_flag(const struct key *key, const char *value, struct pf_parallel *par)
{
    bool *const field = (bool *)((char *)par + key->field);

    if (key->kind == KIND_BOOL && pf_parse_bool(value, field) == 0) {
        return 0;
    }
    if (key->kind == KIND_ORDER &&
        (strcmp(value, "pp_first") == 0 || !strcmp(value, "sharding_first"))) {
        *field = value[0] == 'p';
        return 0;
    }
    return pf_fail(PF_EUSAGE, "'%s=%s' of a layout must be %s", key->name, value,
                   key->kind == KIND_ORDER ? "pp_first or sharding_first" : "true or false");
}

static int set_key(const struct key *key, const char *value, struct pf_parallel *par)
{
    switch (key->kind) {
    case KIND_INT:
    case KIND_LAYERS:
        return set_number(key, value, par);
    case KIND_BYTES:
        return set_bytes(key, value, par);
    case KIND_SEGMENTS:
        return set_segments(value, par);
    case KIND_BOOL:
    case KIND_ORDER:
        break;
    }
    return set_flag(key, value, par);
}

int shard_parallel_set(const char *name, const char *value, struct pf_parallel *par)
{
    size_t i = 0;

    PF_TRY(find_key(name, &i));
    return set_key(&keys[i], value, par);
}

/* One word "key=value"; `seen` are the keys before it. It is cut at its '='. */
static int parse_word(char *word, bool seen[N_KEYS], struct pf_parallel *par)
{
    char *const equals = strchr(word, '=');
    size_t i = 0;

    if (!equals) {
        return pf_fail(PF_EUSAGE, "'%s' in a layout is not of the form key=value", word);
    }
    *equals = '\0';
    PF_TRY(find_key(word, &i));
    if (seen[i]) {
        return pf_fail(PF_EUSAGE, "'%s' stands twice in a layout", word);
    }
    seen[i] = true;
    return set_key(&keys[i], equals + 1, par);
}

int pf_parallel_parse(const char *text, struct pf_parallel *par_out)
{
    struct pf_str_list words = {0};
    bool seen[N_KEYS] = {false};
    struct pf_parallel par;
    int err = 0;

    pf_parallel_init(&par);
    PF_TRY(pf_str_split(text, ',', true, &words));
    for (size_t i = 0; i < words.n && !err; i++) {
        err = parse_word(words.items[i], seen, &par);
    }
    pf_str_list_release(&words);
    PF_TRY(err);
    memcpy(par_out, &par, sizeof par);
    return 0;
}

/* One more word; `begin`: where the first one starts. */
static void print_word(struct pf_str *text, size_t begin, const char *key, const char *value)
{
    pf_str_appendf(text, "%s%s=%s", text->len > begin ? "," : "", key, value);
}

static void print_number(struct pf_str *text, size_t begin, const char *key, int64_t value)
{
    char digits[32];

    snprintf(digits, sizeof digits, "%lld", (long long)value);
    print_word(text, begin, key, digits);
}

static void print_optional(const struct pf_parallel *par, struct pf_str *text, size_t begin)
{
    if (par->pp_first) {
        print_word(text, begin, "order", "pp_first");
    }
    if (par->dual) {
        print_word(text, begin, "dual", "true");
    }
    if (par->whole_params) {
        print_word(text, begin, "whole_params", "true");
    }
    if (par->first_layers > 0) {
        print_number(text, begin, "first_layers", par->first_layers);
    }
    if (par->last_layers > 0) {
        print_number(text, begin, "last_layers", par->last_layers);
    }
    if (par->bucket_bytes > 0 && par->bucket_bytes != DEFAULT_BUCKET_BYTES) {
        print_number(text, begin, "bucket", par->bucket_bytes);
    }
    if (par->segments[0]) {
        print_word(text, begin, "segments", par->segments);
    }
}

int pf_parallel_print(const struct pf_parallel *par, struct pf_str *text)
{
    const size_t begin = text->len;

    for (size_t i = 0; i < N_KEYS && keys[i].kind == KIND_INT; i++) {
        int value;
        memcpy(&value, (const char *)par + keys[i].field, sizeof value);
        if (value >= keys[i].min) {
            print_number(text, begin, keys[i].name, value);
        }
    }
    print_optional(par, text, begin);
    return pf_str_error(text);
}

/* What a model allows -------------------------------------------------------------------------- */

static int must_divide(const char *degree, int64_t d, int64_t n, const char *what)
{
    if (n % d != 0) {
        return pf_fail(PF_EINVAL, "%s=%lld does not divide %lld %s", degree, (long long)d,
                       (long long)n, what);
    }
    return 0;
}

/* Does the model have a layer with, or without, experts? */
static bool has_layer(const struct pf_model_spec *spec, bool moe)
{
    for (int64_t i = 0; i < spec->n_layers; i++) {
        if ((spec->moe.n_experts > 0 && spec->moe.layer_is_moe[i]) == moe) {
            return true;
        }
    }
    return false;
}

/* A rank has whole query heads, and the key heads that these look at. */
static int check_heads(const struct pf_parallel *par, const struct pf_model_spec *spec)
{
    const int64_t tp = par->degree[PF_AXIS_TP], kv = spec->n_kv_heads;

    PF_TRY(must_divide("tp", tp, spec->n_heads, "attention heads"));
    if (spec->mla.kv_rank == 0 && kv % tp != 0 && tp % kv != 0) {
        return pf_fail(PF_EINVAL,
                       "tp=%lld neither divides %lld key heads nor is a multiple of them",
                       (long long)tp, (long long)kv);
    }
    return 0;
}

static int check_widths(const struct pf_parallel *par, const struct pf_model_spec *spec)
{
    const int64_t tp = par->degree[PF_AXIS_TP];

    if (has_layer(spec, false)) {
        PF_TRY(must_divide("tp", tp, spec->ffn, "columns of the feed-forward part"));
    }
    if (has_layer(spec, true) && spec->moe.n_shared_experts > 0) {
        PF_TRY(must_divide("tp", tp, spec->moe.expert_ffn * spec->moe.n_shared_experts,
                           "columns of the shared experts"));
    }
    return 0;
}

static int check_experts(const struct pf_parallel *par, const struct pf_model_spec *spec)
{
    if (par->ep > 1 && !has_layer(spec, true)) {
        return pf_fail(PF_EINVAL, "ep=%d needs experts, and this %s model has none", par->ep,
                       pf_family_name(spec->family));
    }
    return par->ep > 1 ? must_divide("ep", par->ep, spec->moe.n_experts, "experts") : 0;
}

static int check_pipeline(const struct pf_parallel *par)
{
    const int pp = par->degree[PF_AXIS_PP];

    if (par->vpp > 1 && pp == 1) {
        return pf_fail(PF_EINVAL, "vpp=%d needs pp of at least 2", par->vpp);
    }
    if (par->dual && (par->vpp != 2 || pp == 1)) {
        return pf_fail(PF_EINVAL, "dual stages have two chunks each: pp=%d vpp=%d cannot be dual",
                       pp, par->vpp);
    }
    if ((par->first_layers > 0 || par->last_layers > 0) && (pp == 1 || par->segments[0])) {
        return pf_fail(PF_EINVAL, "first_layers and last_layers need pp of at least 2 and no "
                                  "segments");
    }
    return 0;
}

static int check_sharding(const struct pf_parallel *par)
{
    if (par->whole_params && (par->stage == 0 || par->stage == 3)) {
        return pf_fail(PF_EINVAL, "stage=%d cannot give whole parameters to ranks", par->stage);
    }
    return 0;
}

/* Completing ----------------------------------------------------------------------------------- */

static void fill_in(struct pf_parallel *par)
{
    for (int a = PF_AXIS_DP + 1; a < PF_AXIS_COUNT; a++) {
        if (a != PF_AXIS_SHARDING && par->degree[a] == 0) {
            par->degree[a] = 1;
        }
    }
    par->vpp = par->vpp > 0 ? par->vpp : par->dual ? 2 : 1;
    par->ep = par->ep > 0 ? par->ep : 1;
    par->bucket_bytes = par->bucket_bytes > 0 ? par->bucket_bytes : DEFAULT_BUCKET_BYTES;
}

/* Sharding that was not given: nothing, or with a stage what is left of the world. */
static int derive_sharding(struct pf_parallel *par, int world)
{
    int *const degree = par->degree;

    if (degree[PF_AXIS_SHARDING] > 0 || par->stage <= 0) {
        degree[PF_AXIS_SHARDING] = degree[PF_AXIS_SHARDING] > 0 ? degree[PF_AXIS_SHARDING] : 1;
    } else if (world == 0) {
        return pf_fail(PF_EINVAL, "stage=%d needs a degree of sharding", par->stage);
    } else {
        int64_t others = degree[PF_AXIS_DP] > 0 ? degree[PF_AXIS_DP] : 1;
        for (int a = PF_AXIS_PP; a < PF_AXIS_COUNT && others <= world; a++) {
            others *= degree[a];
        }
        degree[PF_AXIS_SHARDING] = others < world ? (int)(world / others) : 1;
        degree[PF_AXIS_DP] = degree[PF_AXIS_DP] > 0 ? degree[PF_AXIS_DP] : 1;
    }
    par->stage = par->stage >= 0 ? par->stage : degree[PF_AXIS_SHARDING] > 1;
    return 0;
}

/* As many ranks as the degrees make. */
static int derive_world(struct pf_parallel *par, int *world)
{
    int64_t product = 1;

    par->degree[PF_AXIS_DP] = par->degree[PF_AXIS_DP] > 0 ? par->degree[PF_AXIS_DP] : 1;
    for (int a = 0; a < PF_AXIS_COUNT && product <= INT32_MAX; a++) {
        product *= par->degree[a];
    }
    if (product > INT32_MAX) {
        return pf_fail(PF_EINVAL, "the degrees of the layout make more than %d ranks", INT32_MAX);
    }
    *world = (int)product;
    return 0;
}

static int judge(const struct pf_parallel *par, const struct pf_model_spec *spec)
{
    int64_t starts[PF_PARALLEL_MAX_CHUNKS + 1];

    PF_TRY(check_heads(par, spec));
    PF_TRY(check_widths(par, spec));
    PF_TRY(check_experts(par, spec));
    PF_TRY(check_pipeline(par));
    const int n = pf_parallel_chunks(par, spec, starts);
    return n < 0 ? n : 0;
}

int pf_parallel_resolve(struct pf_parallel *par, const struct pf_model_spec *spec, int world,
                        struct pf_mesh *mesh_out)
{
    struct pf_parallel full = *par;

    fill_in(&full);
    PF_TRY(judge(&full, spec));
    PF_TRY(derive_sharding(&full, world));
    PF_TRY(check_sharding(&full));
    if (world == 0) {
        PF_TRY(derive_world(&full, &world));
    }
    PF_TRY(pf_mesh_init(mesh_out, world, full.degree, full.ep, full.pp_first));
    full.degree[PF_AXIS_DP] = mesh_out->degree[PF_AXIS_DP];
    *par = full;
    return 0;
}
