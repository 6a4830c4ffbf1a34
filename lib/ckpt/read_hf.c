/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hugging Face directories and bare safetensors files. A directory is one file, or shards and an
 * index; index and shards must say the same, in both directions, since a program that believes only
 * one of them trains a model with stale or random tensors. Source: huggingface_hub,
 * serialization/_torch.py and _base.py (index), transformers' modeling files (names).
 */
#include "ckpt_internal.h"

#include <pf/file.h>
#include <pf/json.h>
#include <pf/mem.h>

#include <stdlib.h>
#include <string.h>

/* Names -------------------------------------------------------------------------------------------
 */

/* A model's body is an attribute of the whole model; old files hold the body alone, so its names
 * lack the attribute. */
static const struct {
    const char *model_type; /* NULL: all others */
    const char *prefix;
    const char *body[4]; /* what a name of the body begins with */
} families[] = {
    {"gpt2", "transformer.", {"wte.", "wpe.", "h.", "ln_f."}},
    {NULL, "model.", {"embed_tokens.", "layers.", "norm.", NULL}},
};

int pf_hf_canonical_name(const char *model_type, const char *name, char **name_out)
{
    const char *prefix = "";
    size_t f = 0;

    while (families[f].model_type &&
           (!model_type || strcmp(families[f].model_type, model_type) != 0)) {
        f++;
    }
    for (size_t i = 0; model_type && i < 4 && families[f].body[i]; i++) {
        if (pf_str_starts_with(name, families[f].body[i])) {
            prefix = families[f].prefix;
        }
    }
    char *canonical = pf_asprintf("%s%s", prefix, name);
    if (!canonical) {
        return PF_ENOMEM;
    }
    *name_out = canonical;
    return 0;
}

/* What old writers stored and nobody loads: rotary frequencies, causal masks. */
static enum pf_role role_of(const struct pf_st_tensor *t)
{
    const bool buffer = pf_str_ends_with(t->name, ".inv_freq") ||
                        pf_str_ends_with(t->name, ".attn.masked_bias") ||
                        (pf_str_ends_with(t->name, ".attn.bias") && t->n_dims == 4);

    return buffer ? PF_ROLE_BUFFER : PF_ROLE_WEIGHT;
}

/* The index ---------------------------------------------------------------------------------------
 */

/* A line of the weight map, and what was found of it. */
struct entry {
    const char *tensor; /* belongs to the JSON document */
    const char *file;
    int found_in; /* shard, -1 nowhere yet */
};

struct shard {
    const char *name;
    bool open_failed; /* missing or damaged */
};

struct hf {
    const char *dir;
    struct ckpt_report *report;
    struct pf_ckpt *ckpt;
    char *model_type;
    struct pf_json *index;
    struct entry *entries; /* sorted by tensor */
    size_t n_entries;
    struct shard *shards; /* sorted by name; each once */
    size_t n_shards;
};

static void release(struct hf *h)
{
    pf_ckpt_free(h->ckpt);
    pf_free(h->model_type);
    pf_json_free(h->index);
    pf_free(h->entries);
    pf_free(h->shards);
}

static int compare_entries(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;

    return strcmp(x->tensor, y->tensor);
}

static int compare_shards(const void *a, const void *b)
{
    const struct shard *x = a, *y = b;

    return strcmp(x->name, y->name);
}

static int read_entries(struct hf *h, const struct pf_json *map)
{
    const size_t n = pf_json_n(map);

    h->entries = pf_calloc_array(n, sizeof *h->entries);
    h->shards = pf_calloc_array(n, sizeof *h->shards);
    if (!h->entries || !h->shards) {
        return PF_ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        const char *file;
        PF_TRY(pf_json_as_string(pf_json_child(map, i), &file));
        h->entries[i] = (struct entry){pf_json_key(map, i), file, -1};
        h->shards[i].name = file;
    }
    h->n_entries = n;
    if (n > 0) {
        qsort(h->entries, n, sizeof *h->entries, compare_entries);
        qsort(h->shards, n, sizeof *h->shards, compare_shards);
    }
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || strcmp(h->shards[i].name, h->shards[h->n_shards - 1].name) != 0) {
            h->shards[h->n_shards++] = h->shards[i];
        }
    }
    return 0;
}

static int read_index(struct hf *h, const char *path)
{
    const struct pf_json_options options = {.name = path, .error_code = PF_EFORMAT};
    const struct pf_json *map;

    PF_TRY(pf_json_parse_file_with(path, &options, &h->index));
    PF_TRY(pf_json_expect(h->index, PF_JSON_OBJECT));
    PF_TRY(pf_json_need(h->index, "weight_map", &map));
    PF_TRY(pf_json_expect(map, PF_JSON_OBJECT));
    return read_entries(h, map);
}

/* Shards ------------------------------------------------------------------------------------------
 */

static int open_member(struct hf *h, const char *name, const char *named_by, struct pf_st **st_out)
{
    bool there;
    const int64_t n_before = h->report ? h->report->n : 0;

    *st_out = NULL;
    PF_TRY(ckpt_check_member(h->report, h->dir, name, named_by, &there));
    if (!there) {
        return h->report && h->report->n > n_before
                   ? 0
                   : ckpt_fault(h->report, PF_EINCOMPLETE, "missing-file",
                                "'%s' names '%s', which is missing", named_by, name);
    }
    char *path = pf_path_join(h->dir, name);
    int err = path ? pf_st_open(path, st_out) : PF_ENOMEM;
    pf_free(path);
    if (err != 0) {
        *st_out = NULL;
        err = ckpt_fault_from(h->report, err, "header");
    }
    return err;
}

static int add_tensor(struct hf *h, const struct pf_st *st, const struct pf_st_tensor *t, int file)
{
    char *name;

    PF_TRY(pf_hf_canonical_name(h->model_type, t->name, &name));
    const int err = ckpt_add_entry(h->ckpt, h->report, st, t, name, role_of(t), file);
    pf_free(name);
    return err;
}

/* Are two stored tensors the same, bit for bit? */
static int same_bytes(const struct pf_st *a, const struct pf_st_tensor *x, const struct pf_st *b,
                      const struct pf_st_tensor *y, bool *same_out)
{
    enum { CHUNK = 1 << 18 };
    const uint64_t bytes = x->end - x->begin;
    uint8_t *two = pf_alloc((size_t)2 * CHUNK);
    bool same = x->dtype == y->dtype && x->n_dims == y->n_dims && bytes == y->end - y->begin &&
                memcmp(x->shape, y->shape, (size_t)x->n_dims * sizeof x->shape[0]) == 0;
    int err = two ? 0 : PF_ENOMEM;

    for (uint64_t at = 0; !err && same && at < bytes; at += CHUNK) {
        const uint64_t n = bytes - at < CHUNK ? bytes - at : CHUNK;
        PF_TRY_GOTO(pf_st_read(a, x, at, n, two), out);
        PF_TRY_GOTO(pf_st_read(b, y, at, n, two + CHUNK), out);
        same = memcmp(two, two + CHUNK, (size_t)n) == 0;
    }
    *same_out = same;
out:
    pf_free(two);
    return err;
}

static int report_twice(struct hf *h, const struct entry *e, const struct pf_st *st,
                        const struct pf_st_tensor *t, const char *name)
{
    const char *first = h->shards[e->found_in].name;
    struct pf_st *other;
    bool same = false;

    PF_TRY(open_member(h, first, CKPT_HF_INDEX, &other));
    const struct pf_st_tensor *u = other ? pf_st_find(other, t->name) : NULL;
    const int err = u ? same_bytes(other, u, st, t, &same) : 0;
    pf_st_close(other);
    PF_TRY(err);
    return ckpt_fault(h->report, PF_EFORMAT, same ? "duplicate" : "conflict",
                      "'%s' is in '%s' and in '%s', with %s bytes", t->name, first, name,
                      same ? "equal" : "different");
}

static int match_tensor(struct hf *h, int shard, const struct pf_st *st,
                        const struct pf_st_tensor *t)
{
    const struct entry key = {.tensor = t->name};
    const char *name = h->shards[shard].name;
    struct entry *e = h->n_entries > 0 ? bsearch(&key, h->entries, h->n_entries, sizeof *h->entries,
                                                 compare_entries)
                                       : NULL;

    if (!e) {
        return ckpt_fault(h->report, PF_EFORMAT, "unlisted-tensor",
                          "'%s' is in '%s' but not in the index", t->name, name);
    }
    if (e->found_in >= 0) {
        return report_twice(h, e, st, t, name);
    }
    e->found_in = shard;
    if (strcmp(e->file, name) != 0) {
        PF_TRY(ckpt_fault(h->report, PF_EFORMAT, "wrong-shard",
                          "'%s' is in '%s', the index says '%s'", t->name, name, e->file));
    }
    return add_tensor(h, st, t, (int)h->ckpt->n_files - 1);
}

static int read_shard(struct hf *h, int shard)
{
    const char *name = h->shards[shard].name;
    struct pf_st *st;
    int err = 0;

    PF_TRY(open_member(h, name, CKPT_HF_INDEX, &st));
    if (!st) {
        h->shards[shard].open_failed = true;
        return 0;
    }
    PF_TRY_GOTO(ckpt_add_file(h->ckpt, name, pf_st_file_bytes(st), NULL, NULL), out);
    for (size_t i = 0; !err && i < pf_st_n_tensors(st); i++) {
        err = match_tensor(h, shard, st, pf_st_tensor(st, i));
    }
out:
    pf_st_close(st);
    return err;
}

/* A tensor that the index puts into a missing or damaged shard has been accounted for. */
static bool shard_failed(const struct hf *h, const char *file)
{
    const struct shard key = {.name = file};
    const struct shard *s =
        bsearch(&key, h->shards, h->n_shards, sizeof *h->shards, compare_shards);

    return s && s->open_failed;
}

static int check_all_found(struct hf *h)
{
    for (size_t i = 0; i < h->n_entries; i++) {
        const struct entry *e = &h->entries[i];
        if (e->found_in < 0 && !shard_failed(h, e->file)) {
            PF_TRY(ckpt_fault(h->report, PF_EFORMAT, "missing-tensor",
                              "the index puts '%s' into '%s', which does not have it", e->tensor,
                              e->file));
        }
    }
    return 0;
}

/* What only verify looks at ----------------------------------------------------------------------
 */

static int check_total_size(struct hf *h)
{
    const struct pf_json *total = pf_json_find(h->index, "metadata.total_size");
    uint64_t says, sum = 0;

    if (!total || pf_json_type(total) == PF_JSON_NULL) {
        return 0;
    }
    for (int64_t i = 0; i < h->ckpt->n_tensors; i++) {
        const struct pf_box box = pf_ckpt_whole(&h->ckpt->tensors[i]);
        size_t bytes = 0;
        (void)pf_dtype_array_bytes(h->ckpt->tensors[i].dtype, pf_box_count(&box), &bytes);
        sum += bytes;
    }
    const int err = pf_json_as_u64(total, &says);
    if (err != 0) {
        return ckpt_fault_from(h->report, err, "index");
    }
    return says == sum ? 0
                       : ckpt_fault(h->report, PF_EFORMAT, "total-size",
                                    "the index says %llu bytes of tensors, there are %llu",
                                    (unsigned long long)says, (unsigned long long)sum);
}

/* "model-00002-of-00005.safetensors" -> 2, 5. */
static bool parse_shard_name(const char *name, long *i_out, long *n_out)
{
    const char *of = strstr(name, "-of-"), *number = strchr(name, '-');

    if (!pf_glob_match("*-[0-9]*-of-[0-9]*.safetensors", name) || !of || number >= of) {
        return false;
    }
    while (of > number + 1 && of[-1] >= '0' && of[-1] <= '9') {
        of--;
    }
    *i_out = strtol(of, NULL, 10);
    *n_out = strtol(strstr(of, "-of-") + 4, NULL, 10);
    return true;
}

static int check_numbers(struct hf *h)
{
    long n = 0, i, of;

    for (size_t s = 0; s < h->n_shards; s++) {
        if (!parse_shard_name(h->shards[s].name, &i, &of)) {
            return 0;
        }
        if (s == 0) {
            n = of;
        }
        if (i != (long)s + 1 || of != n) {
            return ckpt_fault(h->report, PF_EFORMAT, "shard-gap",
                              "'%s' is shard number %zu of the index, which has %zu",
                              h->shards[s].name, s + 1, h->n_shards);
        }
    }
    return n == (long)h->n_shards
               ? 0
               : ckpt_fault(h->report, PF_EFORMAT, "shard-gap",
                            "the index names %zu shards, their names say %ld", h->n_shards, n);
}

static int check_extra(struct hf *h)
{
    struct pf_str_list names = {0};
    int err = 0;

    PF_TRY(pf_dir_list(h->dir, &names));
    for (size_t i = 0; !err && i < names.n; i++) {
        const struct shard key = {.name = names.items[i]};
        const bool single = strcmp(key.name, CKPT_HF_SINGLE) == 0; /* told as two-layouts */
        if (!single && pf_str_ends_with(key.name, ".safetensors") &&
            (h->n_shards == 0 ||
             !bsearch(&key, h->shards, h->n_shards, sizeof *h->shards, compare_shards))) {
            err = ckpt_fault(h->report, PF_EFORMAT, "extra-shard",
                             "'%s' is there but the index does not name it", key.name);
        }
    }
    pf_str_list_release(&names);
    return err;
}

/* Directories -------------------------------------------------------------------------------------
 */

static int check_single(struct hf *h)
{
    const struct shard key = {.name = CKPT_HF_SINGLE};
    char *path = pf_path_join(h->dir, CKPT_HF_SINGLE);
    const bool there = path && pf_path_exists(path);

    pf_free(path);
    if (!there || (h->n_shards > 0 &&
                   bsearch(&key, h->shards, h->n_shards, sizeof *h->shards, compare_shards))) {
        return 0;
    }
    return ckpt_fault(h->report, PF_EREFUSED, "two-layouts",
                      "'%s' has a '%s' beside an index that does not name it: one of them is stale",
                      h->dir, CKPT_HF_SINGLE);
}

static int read_sharded(struct hf *h, const char *index_path)
{
    int err = read_index(h, index_path);

    if (err != 0) {
        return ckpt_fault_from(h->report, err, "index");
    }
    PF_TRY(check_single(h));
    for (size_t s = 0; s < h->n_shards; s++) {
        PF_TRY(read_shard(h, (int)s));
    }
    PF_TRY(check_all_found(h));
    if (h->report) {
        PF_TRY(check_total_size(h));
        PF_TRY(check_numbers(h));
        PF_TRY(check_extra(h));
    }
    return 0;
}

static int read_single(struct hf *h, const char *name)
{
    struct pf_st *st;
    int err;

    PF_TRY(open_member(h, name, h->dir, &st));
    if (!st) {
        return 0;
    }
    err = ckpt_add_file(h->ckpt, name, pf_st_file_bytes(st), NULL, NULL);
    for (size_t i = 0; !err && i < pf_st_n_tensors(st); i++) {
        err = add_tensor(h, st, pf_st_tensor(st, i), 0);
    }
    pf_st_close(st);
    return err;
}

static int read_config(struct hf *h)
{
    char *path = pf_path_join(h->dir, "config.json");
    const struct pf_json_options options = {.name = path, .error_code = PF_EFORMAT};
    struct pf_json *doc = NULL;
    const char *model_type;
    int err = path ? 0 : PF_ENOMEM;

    if (err || !pf_path_exists(path)) {
        goto out;
    }
    PF_TRY_GOTO(pf_json_parse_file_with(path, &options, &doc), out);
    PF_TRY_GOTO(pf_json_expect(doc, PF_JSON_OBJECT), out);
    PF_TRY_GOTO(pf_json_string(doc, "model_type", NULL, &model_type), out);
    h->ckpt->config_json = pf_json_print(doc);
    h->model_type = pf_strdup(model_type);
    err = h->ckpt->config_json && (h->model_type || !model_type) ? 0 : PF_ENOMEM;
out:
    pf_json_free(doc);
    pf_free(path);
    return err;
}

static int read_dir(struct hf *h)
{
    char *index = pf_path_join(h->dir, CKPT_HF_INDEX);
    int err = index ? read_config(h) : PF_ENOMEM;

    if (err != 0) {
        PF_TRY_GOTO(ckpt_fault_from(h->report, err, "config"), out);
    }
    err = pf_path_exists(index) ? read_sharded(h, index) : read_single(h, CKPT_HF_SINGLE);
    err = err ? err : ckpt_finish(h->ckpt, h->report);
out:
    pf_free(index);
    return err;
}

int ckpt_read_hf(const char *dir, struct ckpt_report *report, struct pf_ckpt **ckpt_out)
{
    struct hf h = {.dir = dir, .report = report, .ckpt = ckpt_new("hf", dir)};
    const int err = h.ckpt ? read_dir(&h) : PF_ENOMEM;

    if (err == 0) {
        *ckpt_out = h.ckpt;
        h.ckpt = NULL;
    }
    release(&h);
    return err;
}

int ckpt_read_file(const char *path, struct ckpt_report *report, struct pf_ckpt **ckpt_out)
{
    char *dir = pf_path_dir(path);
    struct hf h = {.dir = dir, .report = report};
    struct pf_st *st;
    int err = 0;

    h.ckpt = dir ? ckpt_new("safetensors", dir) : NULL;
    PF_TRY_GOTO(h.ckpt ? 0 : PF_ENOMEM, out);
    err = pf_st_open(path, &st);
    if (err != 0) {
        err = ckpt_fault_from(report, err, "header");
    } else {
        err = ckpt_add_file(h.ckpt, pf_path_base(path), pf_st_file_bytes(st), NULL, NULL);
        for (size_t i = 0; !err && i < pf_st_n_tensors(st); i++) {
            const struct pf_st_tensor *t = pf_st_tensor(st, i);
            err = ckpt_add_entry(h.ckpt, report, st, t, t->name, PF_ROLE_WEIGHT, 0);
        }
        pf_st_close(st);
    }
    err = err ? err : ckpt_finish(h.ckpt, report);
    if (err == 0) {
        *ckpt_out = h.ckpt;
        h.ckpt = NULL;
    }
out:
    release(&h);
    pf_free(dir);
    return err;
}

/* Ties --------------------------------------------------------------------------------------------
 */

/* Both tensors' digests would carry their names: compare slice by slice instead. */
struct comparison {
    const struct pf_ckpt *ckpt;
    const struct pf_ckpt_tensor *other;
    int64_t at; /* elements done */
    uint8_t *buffer;
    size_t room;
    bool equal;
};

static int compare_slice(void *context, const void *data, size_t bytes)
{
    struct comparison *c = context;
    struct ckpt_want want = {.box = pf_ckpt_whole(c->other), .dtype = c->other->dtype};

    if (!c->equal) {
        return 0;
    }
    if (bytes > c->room) {
        uint8_t *grown = pf_realloc_array(c->buffer, bytes, 1);
        if (!grown) {
            return PF_ENOMEM;
        }
        c->buffer = grown;
        c->room = bytes;
    }
    want.range_lo = c->at;
    want.range_hi = c->at + (int64_t)(bytes / pf_dtype_bytes(c->other->dtype));
    want.dst = c->buffer;
    PF_TRY(ckpt_copy(c->ckpt, c->other, &want));
    c->at = want.range_hi;
    c->equal = memcmp(c->buffer, data, bytes) == 0;
    return 0;
}

static int tensors_equal(const struct pf_ckpt *ckpt, const struct pf_ckpt_tensor *a,
                         const struct pf_ckpt_tensor *b, bool *equal_out)
{
    struct comparison c = {.ckpt = ckpt, .other = b, .equal = true};
    struct ckpt_want all = {.box = pf_ckpt_whole(b), .dtype = b->dtype};

    all.range_hi = pf_box_count(&all.box);
    if (a->dtype != b->dtype || a->n_dims != b->n_dims ||
        memcmp(a->shape, b->shape, (size_t)a->n_dims * sizeof a->shape[0]) != 0) {
        *equal_out = false;
        return 0;
    }
    PF_TRY(ckpt_prove(ckpt, b, &all));
    const int err = ckpt_each_slice(ckpt, a, compare_slice, &c);
    pf_free(c.buffer);
    *equal_out = c.equal;
    return err;
}

int pf_hf_resolve_tie(const struct pf_ckpt *ckpt, const char *embed_name, const char *head_name,
                      bool config_tied, const char **embed_from, const char **head_from,
                      bool *tied_out, const char **warning_out)
{
    const struct pf_ckpt_tensor *embed = pf_ckpt_find(ckpt, embed_name, PF_ROLE_WEIGHT);
    const struct pf_ckpt_tensor *head = pf_ckpt_find(ckpt, head_name, PF_ROLE_WEIGHT);
    bool equal = false;

    if ((!config_tied && !(embed && head)) || (!embed && !head)) {
        return pf_fail(PF_EINCOMPLETE, "'%s' has no '%s'%s", ckpt->dir,
                       embed ? head_name : embed_name,
                       config_tied ? "" : ", and its config does not tie the two");
    }
    if (config_tied && embed && head) {
        PF_TRY(tensors_equal(ckpt, embed, head, &equal));
    }
    *tied_out = config_tied && (equal || !embed || !head);
    *embed_from = embed ? embed_name : head_name;
    *head_from = head && !(embed && *tied_out) ? head_name : embed_name;
    if (warning_out) {
        *warning_out = config_tied && embed && head && !equal
                           ? "the config ties embedding and head, but the file has two different "
                             "tensors: they are not tied"
                           : NULL;
    }
    return 0;
}
