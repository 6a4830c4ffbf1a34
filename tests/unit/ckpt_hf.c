/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hugging Face directories: every kind that transformers writes is read, every way in which index and
 * shards can disagree is refused by open and listed by verify, and what is written reads back.
 */
#include <pf/ckpt.h>
#include <pf/error.h>
#include <pf/safetensors.h>

#include "scratch.h"
#include "tap.h"

#include <math.h>

#define HF "tests/fixtures/hf/"
#define SHARED_HF "../shared/fixtures/hf/"

/* Making directories ------------------------------------------------------------------------------
 */

/* A file with tensors of one element, the names separated by blanks; value v for all. */
static void put_tensors(const char *path, const char *names, float v)
{
    static const uint64_t one[1] = {1};
    struct pf_st_source sources[8];
    char copy[256], *next = copy;
    size_t n = 0;

    snprintf(copy, sizeof copy, "%s", names);
    for (char *name; (name = strsep(&next, " ")) != NULL && *name;) {
        sources[n++] = (struct pf_st_source){
            .name = name, .dtype = PF_DTYPE_F32, .n_dims = 1, .shape = one, .data = &v};
    }
    if (pf_st_save(path, NULL, 0, sources, n) != 0) {
        ok(false, "%s is made: %s", path, pf_error_message());
    }
}

#define ONE "model-00001-of-00002.safetensors"
#define TWO "model-00002-of-00002.safetensors"
#define INDEX                                                                                      \
    "{\"metadata\":{\"total_size\":12},\"weight_map\":{\"model.a\":\"" ONE "\",\"model.b\":\"" ONE \
    "\",\"model.c\":\"" TWO "\"}}"

/* A good sharded directory called `dir`: a, b in shard one, c in shard two. */
static void make_sharded(const char *dir, const char *index)
{
    (void)pf_rmtree(at("%s", dir));
    (void)pf_mkdirs(at("%s", dir));
    put_text(at("%s/config.json", dir), "{\"model_type\":\"llama\"}");
    put_tensors(at("%s/" ONE, dir), "model.a model.b", 1);
    put_tensors(at("%s/" TWO, dir), "model.c", 2);
    put_text(at("%s/model.safetensors.index.json", dir), index);
}

/* Claims -----------------------------------------------------------------------------------------
 */

static int open_code(const char *path)
{
    struct pf_ckpt *ckpt = NULL;
    const int err = pf_ckpt_open(path, &ckpt);

    if (err == 0) {
        pf_ckpt_free(ckpt);
    }
    return err;
}

/* Does verify find exactly these kinds, in this order? */
static void has_faults(const char *path, const char *kinds, const char *claim)
{
    struct pf_ckpt_fault *faults = NULL;
    char got[512] = "";
    int64_t n = 0;
    size_t len = 0;
    const int err = pf_ckpt_verify(path, &faults, &n);

    for (int64_t i = 0; i < n; i++) {
        len += (size_t)snprintf(got + len, sizeof got - len, "%s%s", i ? " " : "", faults[i].kind);
    }
    ok(err == 0 && strcmp(got, kinds) == 0, "%s: %s", claim, err ? pf_error_message() : got);
    for (int64_t i = 0; i < n && strcmp(got, kinds) != 0; i++) {
        printf("# %s\n", faults[i].message);
    }
    pf_ckpt_faults_free(faults, n);
}

/* Index and shards --------------------------------------------------------------------------------
 */

static void disagreement_is_found(void)
{
    make_sharded("d", INDEX);
    ok(open_code(at("d")) == 0, "index and shards that agree open");
    has_faults(at("d"), "", "and have no fault");

    (void)unlink(at("d/" TWO));
    ok(open_code(at("d")) == PF_EINCOMPLETE, "a missing shard: %s", pf_error_message());
    has_faults(at("d"), "missing-file total-size", "a missing shard");

    make_sharded("d", INDEX);
    put_tensors(at("d/model-00003-of-00003.safetensors"), "model.a", 9);
    ok(open_code(at("d")) == 0, "a shard that the index does not name is not read");
    has_faults(at("d"), "extra-shard", "but reported");

    make_sharded("d", INDEX);
    put_tensors(at("d/" TWO), "model.c model.z", 2);
    ok(open_code(at("d")) == PF_EFORMAT, "a tensor only in a shard: %s", pf_error_message());
    has_faults(at("d"), "unlisted-tensor", "a tensor only in a shard");

    make_sharded("d", INDEX);
    put_tensors(at("d/" ONE), "model.a", 1);
    ok(open_code(at("d")) == PF_EFORMAT, "a tensor only in the index: %s", pf_error_message());
    has_faults(at("d"), "missing-tensor total-size", "a tensor only in the index");

    make_sharded("d", INDEX);
    put_tensors(at("d/" TWO), "model.c model.a", 1);
    ok(open_code(at("d")) == PF_EFORMAT, "a tensor in two shards: %s", pf_error_message());
    has_faults(at("d"), "duplicate", "a tensor in two shards, equal");
    put_tensors(at("d/" TWO), "model.c model.a", 5);
    has_faults(at("d"), "conflict", "a tensor in two shards, different");

    make_sharded("d", "{\"weight_map\":{\"model.a\":\"" ONE "\",\"model.b\":\"" TWO
                      "\",\"model.c\":\"" TWO "\"}}");
    ok(open_code(at("d")) == PF_EFORMAT, "the wrong shard: %s", pf_error_message());
    has_faults(at("d"), "wrong-shard", "the wrong shard; total_size may be absent");

    make_sharded("d", "{\"metadata\":{\"total_size\":13},\"weight_map\":{\"model.a\":\"" ONE
                      "\",\"model.b\":\"" ONE "\",\"model.c\":\"" TWO "\"}}");
    ok(open_code(at("d")) == 0, "reading does not depend on total_size");
    has_faults(at("d"), "total-size", "a wrong total_size");

    make_sharded("d", INDEX);
    put_tensors(at("d/model.safetensors"), "model.a model.b model.c", 1);
    ok(open_code(at("d")) == PF_EREFUSED, "a stale single file: %s", pf_error_message());
    has_faults(at("d"), "two-layouts", "a stale single file");
    put_text(at("d/model.safetensors.index.json"),
             "{\"weight_map\":{\"model.a\":\"model.safetensors\",\"model.b\":\"model.safetensors\","
             "\"model.c\":\"model.safetensors\"}}");
    ok(open_code(at("d")) == 0, "an index that names the single file is no contradiction");
    has_faults(at("d"), "extra-shard extra-shard", "the old shards are left over");

    make_sharded("d", "{\"weight_map\":{\"model.a\":\"model-00001-of-00003.safetensors\","
                      "\"model.c\":\"model-00003-of-00003.safetensors\"}}");
    (void)rename(at("d/" ONE), at("d/model-00001-of-00003.safetensors"));
    (void)rename(at("d/" TWO), at("d/model-00003-of-00003.safetensors"));
    put_tensors(at("d/model-00001-of-00003.safetensors"), "model.a", 1);
    has_faults(at("d"), "shard-gap", "a gap in the numbers");

    make_sharded("d", "{\"weight_map\":{}");
    ok(open_code(at("d")) == PF_EFORMAT, "an index cut short: %s", pf_error_message());
    has_faults(at("d"), "index", "an index cut short");
    put_text(at("d/model.safetensors.index.json"), "{\"weight_map\":{\"model.a\":1}}");
    has_faults(at("d"), "index", "a weight map of another type");

    make_sharded("d", INDEX);
    put_text(at("d/" ONE), "<!DOCTYPE html><html>");
    put_text(at("d/config.json"), "{");
    ok(open_code(at("d")) == PF_EFORMAT, "a config cut short: %s", pf_error_message());
    has_faults(at("d"), "config header total-size", "several faults are all listed");
}

static void paths_do_not_lead_out(void)
{
    static const char *const names[] = {
        "../x.safetensors", "/etc/passwd", "C:\\\\x", "a\\\\..\\\\b", "x/../../y", "", ".", "sub/",
        "a\\u0001b",        "\\u0000"};
    char index[512];

    put_tensors(at("x.safetensors"), "model.a", 1);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(index, sizeof index, "{\"weight_map\":{\"model.a\":\"%s\"}}", names[i]);
        make_sharded("p", index);
        ok(open_code(at("p")) == PF_EFORMAT, "%s", pf_error_message());
    }
    has_faults(at("p"), "index", "a NUL is no file name");
    make_sharded("p", "{\"weight_map\":{\"model.a\":\"sub/x.safetensors\"}}");
    (void)pf_mkdirs(at("elsewhere"));
    put_tensors(at("elsewhere/x.safetensors"), "model.a", 1);
    (void)symlink(at("elsewhere"), at("p/sub"));
    ok(open_code(at("p")) == PF_EFORMAT, "a linked directory: %s", pf_error_message());
    (void)unlink(at("p/sub"));
    (void)pf_mkdirs(at("p/sub"));
    (void)symlink(at("elsewhere/x.safetensors"), at("p/sub/x.safetensors"));
    ok(open_code(at("p")) == 0, "a shard may be a link to a regular file, as in hub caches");
    (void)unlink(at("p/sub/x.safetensors"));
    (void)symlink("/dev/zero", at("p/sub/x.safetensors"));
    ok(open_code(at("p")) == PF_EFORMAT, "but not to a device: %s", pf_error_message());
    (void)unlink(at("p/sub/x.safetensors"));
    (void)symlink("/nowhere/x", at("p/sub/x.safetensors"));
    ok(open_code(at("p")) == PF_EINCOMPLETE, "a dangling link is a missing shard: %s",
       pf_error_message());
}

/* Names and ties ----------------------------------------------------------------------------------
 */

static void canonical(const char *model_type, const char *name, const char *want)
{
    char *got = NULL;

    ok(pf_hf_canonical_name(model_type, name, &got) == 0 && strcmp(got, want) == 0, "%s: %s -> %s",
       model_type ? model_type : "no config", name, want);
    pf_free(got);
}

static void old_names_become_new(void)
{
    canonical("gpt2", "h.0.attn.c_attn.weight", "transformer.h.0.attn.c_attn.weight");
    canonical("gpt2", "transformer.h.0.ln_1.bias", "transformer.h.0.ln_1.bias");
    canonical("gpt2", "wte.weight", "transformer.wte.weight");
    canonical("gpt2", "lm_head.weight", "lm_head.weight");
    canonical("llama", "layers.3.mlp.up_proj.weight", "model.layers.3.mlp.up_proj.weight");
    canonical("qwen3", "norm.weight", "model.norm.weight");
    canonical("llama", "model.norm.weight", "model.norm.weight");
    canonical("llama", "normal.weight", "normal.weight");
    canonical(NULL, "norm.weight", "norm.weight");

    (void)pf_mkdirs(at("twice"));
    put_text(at("twice/config.json"), "{\"model_type\":\"llama\"}");
    put_tensors(at("twice/model.safetensors"), "norm.weight model.norm.weight", 1);
    ok(open_code(at("twice")) == PF_EFORMAT, "two spellings of one name: %s", pf_error_message());
}

static void tie(bool config_tied, const char *names, const char *from, bool tied)
{
    const char *embed = NULL, *head = NULL, *warning = NULL;
    bool is = false;
    char got[64];
    struct pf_ckpt *ckpt = NULL;

    put_tensors(at("tie.safetensors"), names, 3);
    (void)pf_ckpt_open(at("tie.safetensors"), &ckpt);
    const int err = pf_hf_resolve_tie(ckpt, "e", "h", config_tied, &embed, &head, &is, &warning);
    snprintf(got, sizeof got, "%s%s", err ? "-" : embed, err ? "-" : head);
    ok(strcmp(got, from) == 0 && is == tied && !warning && (!err || err == PF_EINCOMPLETE),
       "config %s, file has '%s': from %s, %s", config_tied ? "tied" : "untied", names, from,
       err    ? pf_error_message()
       : tied ? "tied"
              : "not tied");
    pf_ckpt_free(ckpt);
}

static void ties_follow_the_table(void)
{
    const char *embed, *head, *warning = NULL;
    float x[2] = {1, 2};
    const struct pf_st_source sources[2] = {
        {.name = "e", .n_dims = 1, .shape = (uint64_t[]){1}, .dtype = PF_DTYPE_F32, .data = x},
        {.name = "h", .n_dims = 1, .shape = (uint64_t[]){1}, .dtype = PF_DTYPE_F32, .data = x + 1},
    };
    struct pf_ckpt *ckpt = NULL;
    bool tied = true;

    tie(true, "e h", "ee", true);
    tie(true, "e", "ee", true);
    tie(true, "h", "hh", true);
    tie(true, "x", "--", false);
    tie(false, "e h", "eh", false);
    tie(false, "e", "--", false);
    tie(false, "h", "--", false);
    (void)pf_st_save(at("differ.safetensors"), NULL, 0, sources, 2);
    (void)pf_ckpt_open(at("differ.safetensors"), &ckpt);
    ok(pf_hf_resolve_tie(ckpt, "e", "h", true, &embed, &head, &tied, &warning) == 0 && !tied &&
           strcmp(embed, "e") == 0 && strcmp(head, "h") == 0 && warning,
       "two different tensors are not tied, whatever the config says: %s", warning);
    pf_ckpt_free(ckpt);
}

/* Fixtures ----------------------------------------------------------------------------------------
 */

/* Every tensor of `a` is in `b` with the same digest; buffers and (where the config ties) the head
 * apart. Returns how many were compared, -1 at the first difference. */
static int64_t same_tensors(const struct pf_ckpt *a, const struct pf_ckpt *b)
{
    int64_t n = 0;

    for (int64_t i = 0; i < a->n_tensors; i++) {
        const struct pf_ckpt_tensor *t = &a->tensors[i];
        const struct pf_ckpt_tensor *u = pf_ckpt_find(b, t->name, t->role);
        char x[33] = "x", y[33] = "y";
        if (t->role != PF_ROLE_WEIGHT) {
            continue;
        }
        if (!u || pf_ckpt_tensor_digest(a, t, x) != 0 || pf_ckpt_tensor_digest(b, u, y) != 0 ||
            strcmp(x, y) != 0) {
            printf("# %s\n", t->name);
            return -1;
        }
        n++;
    }
    return n;
}

/* A variant of a family holds the same model as the family's folder. */
static void variant_is_same(const char *folder, const char *variant)
{
    char plain[256], other[256], claim[256];
    struct pf_ckpt *a = NULL, *b = NULL;

    snprintf(plain, sizeof plain, SHARED_HF "%s", folder);
    snprintf(other, sizeof other, SHARED_HF "%s/%s", folder, variant);
    snprintf(claim, sizeof claim, "%s/%s holds the same tensors under the same names", folder,
             variant);
    if (!pf_path_exists(other)) {
        skip(claim, "no shared fixtures");
        return;
    }
    const int err = pf_ckpt_open(plain, &a) || pf_ckpt_open(other, &b);
    ok(!err && same_tensors(a, b) == a->n_tensors, "%s%s%s", claim, err ? ": " : "",
       err ? pf_error_message() : "");
    has_faults(other, "", "and verify finds nothing");
    pf_ckpt_free(a);
    pf_ckpt_free(b);
}

static void legacy_buffers_are_set_aside(void)
{
    struct pf_ckpt *ckpt = NULL;
    int64_t buffers = 0;

    if (!pf_path_exists(SHARED_HF "gpt2/legacy")) {
        skip("mask buffers of old gpt2 files are buffers", "no shared fixtures");
        return;
    }
    ok(pf_ckpt_open(SHARED_HF "gpt2/legacy", &ckpt) == 0, "an old gpt2 file opens");
    for (int64_t i = 0; i < ckpt->n_tensors; i++) {
        buffers += ckpt->tensors[i].role == PF_ROLE_BUFFER;
    }
    ok(buffers > 0 && !pf_ckpt_find(ckpt, "transformer.h.0.attn.bias", PF_ROLE_WEIGHT) &&
           pf_ckpt_find(ckpt, "transformer.h.0.attn.bias", PF_ROLE_BUFFER),
       "its %lld masks are buffers", (long long)buffers);
    pf_ckpt_free(ckpt);
}

static void fixture_is_read(const char *folder)
{
    char claim[256];
    struct pf_ckpt *ckpt = NULL;

    snprintf(claim, sizeof claim, "%s is read", folder);
    if (!pf_path_exists(folder)) {
        skip(claim, "no shared fixtures");
        return;
    }
    const int err = pf_ckpt_open(folder, &ckpt);
    ok(!err && ckpt->n_tensors > 5 && ckpt->config_json && strcmp(ckpt->format, "hf") == 0 &&
           ckpt->step == -1,
       "%s%s%s", claim, err ? ": " : "", err ? pf_error_message() : "");
    has_faults(folder, "", "and has no fault");
    pf_ckpt_free(ckpt);
}

static void every_fixture_is_read(void)
{
    fixture_is_read(HF "gpt2");
    fixture_is_read(HF "qwen2");
    fixture_is_read(HF "qwen3");
    fixture_is_read(HF "ernie4_5");
    fixture_is_read(SHARED_HF "mixtral/fused");
    fixture_is_read(SHARED_HF "qwen3_moe");
    fixture_is_read(SHARED_HF "qwen3_moe/fused");
    fixture_is_read(SHARED_HF "qwen3_moe-mixed");
    fixture_is_read(SHARED_HF "deepseek_v3/bf16");
    fixture_is_read(SHARED_HF "deepseek_v3-yarn");
    fixture_is_read(SHARED_HF "ernie4_5_moe/fused");
    fixture_is_read(SHARED_HF "ernie4_5_moe/bf16");
    fixture_is_read(SHARED_HF "llama-tied/legacy");
    fixture_is_read(SHARED_HF "extra-gemma");
    fixture_is_read(SHARED_HF "extra-olmoe");
    variant_is_same("llama", "sharded");
    variant_is_same("qwen3_moe", "sharded");
    variant_is_same("ernie4_5_moe", "sharded");
    variant_is_same("gpt2", "legacy");
    variant_is_same("llama-tied", "legacy");
}

/* Writing -----------------------------------------------------------------------------------------
 */

/* The tensors of an opened checkpoint as live state that owns its bytes. */
static struct pf_ckpt_live *to_live(const struct pf_ckpt *ckpt)
{
    struct pf_ckpt_live *live = pf_calloc_array((size_t)ckpt->n_tensors, sizeof *live);

    for (int64_t i = 0; i < ckpt->n_tensors; i++) {
        const struct pf_ckpt_tensor *t = &ckpt->tensors[i];
        live[i] = (struct pf_ckpt_live){
            .name = t->name, .role = t->role, .dtype = t->dtype, .n_dims = t->n_dims};
        live[i].box = pf_ckpt_whole(t);
        memcpy(live[i].shape, t->shape, sizeof t->shape);
        live[i].data = pf_alloc((size_t)pf_box_count(&live[i].box) * pf_dtype_bytes(t->dtype));
        if (pf_ckpt_read_box(ckpt, t, &live[i].box, t->dtype, live[i].data) != 0) {
            ok(false, "%s is read: %s", t->name, pf_error_message());
        }
    }
    return live;
}

static void free_live(struct pf_ckpt_live *live, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        pf_free(live[i].data);
    }
    pf_free(live);
}

static void what_is_written_reads_back(void)
{
    struct pf_ckpt *source = NULL, *copy = NULL;
    int64_t total = 0;

    (void)pf_ckpt_open(HF "qwen3", &source);
    struct pf_ckpt_live *live = to_live(source);
    for (int64_t i = 0; i < source->n_tensors; i++) {
        total += 4 * pf_box_count(&live[i].box);
    }
    (void)pf_mkdirs(at("source"));
    put_text(at("source/tokenizer.json"), "{\"t\":1}");
    put_text(at("source/notes.txt"), "private");

    ok(pf_hf_write(at("out/hf/"), live, source->n_tensors, PF_DTYPE_F32, source->config_json,
                   at("source"), 0) == 0,
       "a directory is written");
    ok(pf_ckpt_open(at("out/hf"), &copy) == 0 && copy->n_files == 1 &&
           same_tensors(source, copy) == source->n_tensors &&
           strcmp(copy->config_json, source->config_json) == 0,
       "the same tensors and the same config are in it");
    ok(pf_path_exists(at("out/hf/tokenizer.json")) && !pf_path_exists(at("out/hf/notes.txt")) &&
           !pf_path_exists(at("out/.staging-hf")),
       "the tokenizer came along, other files and staging did not");
    pf_ckpt_free(copy);
    ok(pf_hf_write(at("out/hf"), live, source->n_tensors, PF_DTYPE_F32, source->config_json, NULL,
                   0) == PF_EREFUSED,
       "a directory in use is refused: %s", pf_error_message());

    ok(pf_hf_write(at("out/sharded"), live, source->n_tensors, PF_DTYPE_F32, source->config_json,
                   NULL, (uint64_t)total / 4) == 0,
       "shards are written");
    has_faults(at("out/sharded"), "", "index, numbers and total_size agree");
    ok(pf_ckpt_open(at("out/sharded"), &copy) == 0 && copy->n_files >= 4 &&
           same_tensors(source, copy) == source->n_tensors,
       "the same tensors are in four shards or more");
    pf_ckpt_free(copy);

    ok(pf_hf_write(at("out/bf16"), live, source->n_tensors, PF_DTYPE_BF16, source->config_json,
                   NULL, 0) == 0 &&
           pf_ckpt_open(at("out/bf16"), &copy) == 0 && copy->tensors[0].dtype == PF_DTYPE_BF16,
       "F32 is written as BF16");
    pf_ckpt_free(copy);
    free_live(live, source->n_tensors);
    pf_ckpt_free(source);
}

/* Shards of tensors of 4, 40, 4, 8 and 4 bytes with a limit of 12, as huggingface_hub cuts them. */
static void shards_are_cut_as_the_hub_does(void)
{
    static const int64_t lengths[] = {1, 10, 1, 2, 1};
    float zeros[10] = {0};
    struct pf_ckpt_live live[5];
    char name[5][8], got[64] = "";
    struct pf_st *st;

    for (int i = 0; i < 5; i++) {
        snprintf(name[i], sizeof name[i], "t%d", i);
        live[i] = (struct pf_ckpt_live){.name = name[i],
                                        .dtype = PF_DTYPE_F32,
                                        .n_dims = 1,
                                        .shape = {lengths[i]},
                                        .data = zeros};
        live[i].box = (struct pf_box){.n_dims = 1, .hi = {lengths[i]}};
    }
    ok(pf_hf_write(at("hub"), live, 5, PF_DTYPE_COUNT, "{}", NULL, 12) == 0,
       "five tensors, limit 12");
    for (int i = 0; i < 5; i++) {
        for (int s = 1; s <= 3; s++) {
            if (pf_st_open(at("hub/model-%05d-of-00003.safetensors", s), &st) == 0) {
                const bool has = pf_st_find(st, name[i]) != NULL;
                snprintf(got + strlen(got), has ? sizeof got - strlen(got) : 1, "%d", s);
                pf_st_close(st);
            }
        }
    }
    ok(strcmp(got, "21233") == 0, "shards: %s", got);
}

static void what_must_stay_f32_does(void)
{
    float x[4] = {1.0009765625f, 2, 3, 4};
    int64_t count = 7;
    struct pf_ckpt_live live[4] = {
        {.name = "model.layers.3.mlp.gate.e_score_correction_bias", .n_dims = 1, .shape = {4}},
        {.name = "model.layers.3.mlp.gate.weight", .n_dims = 1, .shape = {4}},
        {.name = "model.norm.weight", .n_dims = 1, .shape = {4}},
        {.name = "model.count", .n_dims = 0},
    };
    struct pf_ckpt *ckpt = NULL;

    for (int i = 0; i < 4; i++) {
        live[i].dtype = i < 3 ? PF_DTYPE_F32 : PF_DTYPE_I64;
        live[i].box = (struct pf_box){.n_dims = live[i].n_dims, .hi = {live[i].shape[0]}};
        live[i].data = i < 3 ? (void *)x : &count;
    }
    ok(pf_hf_write(at("keep"), live, 4, PF_DTYPE_BF16, "{\"model_type\":\"deepseek_v3\"}", NULL,
                   0) == 0 &&
           pf_ckpt_open(at("keep"), &ckpt) == 0,
       "a deepseek_v3 is written as BF16");
    ok(pf_ckpt_find(ckpt, live[0].name, PF_ROLE_WEIGHT)->dtype == PF_DTYPE_F32 &&
           pf_ckpt_find(ckpt, live[1].name, PF_ROLE_WEIGHT)->dtype == PF_DTYPE_F32 &&
           pf_ckpt_find(ckpt, live[2].name, PF_ROLE_WEIGHT)->dtype == PF_DTYPE_BF16 &&
           pf_ckpt_find(ckpt, live[3].name, PF_ROLE_WEIGHT)->dtype == PF_DTYPE_I64,
       "its correction bias and router stay F32, integers stay what they are");
    pf_ckpt_free(ckpt);
    live[1].name = live[0].name;
    ok(pf_hf_write(at("keep2"), live, 4, PF_DTYPE_F32, "{}", NULL, 0) == PF_EINVAL,
       "one name twice is refused: %s", pf_error_message());
    live[1].name = "x";
    live[1].range_hi = 2;
    ok(pf_hf_write(at("keep2"), live, 4, PF_DTYPE_F32, "{}", NULL, 0) == PF_EINVAL,
       "half a tensor is refused: %s", pf_error_message());
    live[1].range_hi = 0;
    ok(pf_hf_write(at("keep2"), live, 4, PF_DTYPE_F32, "[]", NULL, 0) == PF_EINVAL,
       "a config that is no object is refused: %s", pf_error_message());
    ok(!pf_path_exists(at("keep2")) && !pf_path_exists(at(".staging-keep2")), "nothing is left");
}

int main(void)
{
    scratch_make();
    disagreement_is_found();
    paths_do_not_lead_out();
    old_names_become_new();
    ties_follow_the_table();
    every_fixture_is_read();
    legacy_buffers_are_set_aside();
    what_is_written_reads_back();
    shards_are_cut_as_the_hub_does();
    what_must_stay_f32_does();
    scratch_remove();
    return done();
}
