/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a Hugging Face directory: aside, whole, then renamed. */
#include "plan_internal.h"

#include <pf/file.h>
#include <pf/json.h>
#include <pf/mem.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_SHARD_BYTES 5000000000u
#define CHUNK_ELEMENTS ((int64_t)1 << 18)

/* A tensor to be written. */
struct out_tensor {
    const struct pf_ckpt_live *live;
    enum pf_dtype dtype; /* in the file */
    int64_t count;
    uint64_t bytes;
    size_t shard;
};

struct hf_writer {
    const char *dir;
    char *staging; /* NULL: there is none */
    int lock_fd;   /* of it */
    const struct pf_ckpt_live *live;
    pf_hf_fetch *fetch;
    void *context;
    struct out_tensor *tensors; /* in the order of live */
    size_t n, n_shards;
    uint64_t total_bytes;
    int64_t total_elements;
};

/* What to write -----------------------------------------------------------------------------------
 */

/* Families whose router stays in F32 in memory and on disk, as transformers keeps it. */
static bool keeps_f32(const char *model_type, const char *name)
{
    const bool f32_router =
        strcmp(model_type, "deepseek_v3") == 0 || strcmp(model_type, "ernie4_5_moe") == 0;

    return pf_str_ends_with(name, "e_score_correction_bias") ||
           (f32_router && pf_str_ends_with(name, ".mlp.gate.weight"));
}

static enum pf_dtype choose_dtype(const struct pf_ckpt_live *live, enum pf_dtype asked,
                                  const char *model_type)
{
    const bool keep = asked == PF_DTYPE_COUNT || !pf_dtype_is_float(live->dtype) ||
                      keeps_f32(model_type, live->name);

    return keep ? live->dtype : asked;
}

static int add_tensor(struct hf_writer *w, const struct pf_ckpt_live *live, enum pf_dtype dtype)
{
    struct out_tensor *t = &w->tensors[w->n];
    struct ckpt_want want;
    size_t bytes;

    PF_TRY(ckpt_live_want(live, &want));
    int64_t count = 1;
    for (int d = 0; d < live->n_dims; d++) {
        count *= live->shape[d];
    }
    if (want.range_hi - want.range_lo != count) {
        return pf_fail(PF_EINVAL, "'%s' is not whole and cannot be exported", live->name);
    }
    if (pf_dtype_array_bytes(dtype, count, &bytes) != 0) {
        return pf_fail(PF_EINVAL, "'%s' is too large", live->name);
    }
    *t = (struct out_tensor){.live = live, .dtype = dtype, .count = count, .bytes = bytes};
    w->total_bytes += bytes;
    w->total_elements += count;
    w->n++;
    return 0;
}

/* Fill shards in order; one tensor above the limit has a shard to itself, before the one that is
 * being filled. */
static void cut_shards(struct hf_writer *w, uint64_t limit)
{
    uint64_t filled = 0;
    size_t first = 0, open = 0; /* tensors [first, i) of the open shard, less those on their own */

    w->n_shards = 0;
    for (size_t i = 0; i <= w->n; i++) {
        const bool end = i == w->n;
        if (!end && w->tensors[i].bytes > limit) {
            w->tensors[i].shard = ++w->n_shards;
            continue;
        }
        if (open > 0 && (end || filled + w->tensors[i].bytes > limit)) {
            w->n_shards++;
            for (size_t j = first; j < i; j++) {
                w->tensors[j].shard = w->tensors[j].shard ? w->tensors[j].shard : w->n_shards;
            }
            first = i;
            filled = 0;
            open = 0;
        }
        if (!end) {
            filled += w->tensors[i].bytes;
            open++;
        }
    }
}

static int compare_names(const void *a, const void *b)
{
    const struct out_tensor *const *x = a, *const *y = b;

    return strcmp((*x)->live->name, (*y)->live->name);
}

/* The tensors by name; two of one name are refused. Free with pf_free. */
static int sort_names(struct hf_writer *w, const struct out_tensor ***sorted_out)
{
    const struct out_tensor **sorted = pf_calloc_array(w->n, sizeof *sorted);

    if (!sorted) {
        return PF_ENOMEM;
    }
    for (size_t i = 0; i < w->n; i++) {
        sorted[i] = &w->tensors[i];
    }
    if (w->n > 0) {
        qsort(sorted, w->n, sizeof *sorted, compare_names);
    }
    for (size_t i = 1; i < w->n; i++) {
        if (compare_names(&sorted[i - 1], &sorted[i]) == 0) {
            const int err =
                pf_fail(PF_EINVAL, "'%s' is to be written twice", sorted[i]->live->name);
            pf_free(sorted);
            return err;
        }
    }
    *sorted_out = sorted;
    return 0;
}

/* Shards ------------------------------------------------------------------------------------------
 */

static void shard_name(const struct hf_writer *w, size_t shard, char name[64])
{
    if (w->n_shards <= 1) {
        snprintf(name, 64, "%s", CKPT_HF_SINGLE);
    } else {
        snprintf(name, 64, "model-%05zu-of-%05zu.safetensors", shard, w->n_shards);
    }
}

static int write_tensor(const struct hf_writer *w, struct pf_st_writer *st, size_t i,
                        const struct out_tensor *t, void *buffer)
{
    const size_t from = pf_dtype_bytes(t->live->dtype), to = pf_dtype_bytes(t->dtype);
    const void *fetched;

    PF_TRY(w->fetch(w->context, t->live - w->live, &fetched));
    const uint8_t *const data = fetched;
    if (t->dtype == t->live->dtype) {
        return pf_st_writer_write(st, i, 0, data, t->bytes);
    }
    for (int64_t at = 0; at < t->count; at += CHUNK_ELEMENTS) {
        const size_t n = (size_t)(t->count - at < CHUNK_ELEMENTS ? t->count - at : CHUNK_ELEMENTS);
        PF_TRY(pf_dtype_convert(t->live->dtype, data + (size_t)at * from, t->dtype, buffer, n));
        PF_TRY(pf_st_writer_write(st, i, (uint64_t)at * to, buffer, n * to));
    }
    return 0;
}

static int describe(const struct hf_writer *w, struct pf_st_writer *st, size_t shard)
{
    PF_TRY(pf_st_writer_add_metadata(st, "format", "pt"));
    for (size_t i = 0; i < w->n; i++) {
        const struct out_tensor *t = &w->tensors[i];
        uint64_t shape[PF_BOX_MAX_DIMS];
        if (t->shard != shard) {
            continue;
        }
        for (int d = 0; d < t->live->n_dims; d++) {
            shape[d] = (uint64_t)t->live->shape[d];
        }
        PF_TRY(pf_st_writer_add_tensor(st, t->live->name, t->dtype, t->live->n_dims, shape, NULL));
    }
    return 0;
}

static int write_shard(const struct hf_writer *w, size_t shard)
{
    char name[64];
    shard_name(w, shard, name);
    char *path = pf_path_join(w->staging, name);
    void *buffer = pf_alloc((size_t)CHUNK_ELEMENTS * 8);
    struct pf_st_writer *st = NULL;
    size_t number = 0;
    int err = path && buffer ? pf_st_writer_new(&st) : PF_ENOMEM;

    err = err ? err : describe(w, st, shard);
    err = err ? err : pf_st_writer_begin(st, path);
    for (size_t i = 0; !err && i < w->n; i++) {
        if (w->tensors[i].shard == shard) {
            err = write_tensor(w, st, number++, &w->tensors[i], buffer);
        }
    }
    err = err ? err : pf_st_writer_finish(st, true);
    pf_st_writer_free(st);
    pf_free(buffer);
    pf_free(path);
    return err;
}

/* The small files ---------------------------------------------------------------------------------
 */

static int write_text(const struct hf_writer *w, const char *name, struct pf_str *text)
{
    char *path = pf_path_join(w->staging, name);
    int err = path ? pf_str_append_char(text, '\n') : PF_ENOMEM;

    err = err ? err : pf_str_error(text);
    err = err ? err : pf_file_write_atomic(path, text->text, text->len);
    pf_free(path);
    return err;
}

static int write_index(const struct hf_writer *w, const struct out_tensor *const *sorted)
{
    struct pf_json_out j;
    struct pf_str text;

    pf_str_init(&text);
    pf_json_out_init(&j, &text, 2);
    pf_json_out_object_begin(&j);
    pf_json_out_key(&j, "metadata");
    pf_json_out_object_begin(&j);
    pf_json_out_member_i64(&j, "total_parameters", w->total_elements);
    pf_json_out_key(&j, "total_size");
    pf_json_out_u64(&j, w->total_bytes);
    pf_json_out_object_end(&j);
    pf_json_out_key(&j, "weight_map");
    pf_json_out_object_begin(&j);
    for (size_t i = 0; i < w->n; i++) {
        char name[64];
        shard_name(w, sorted[i]->shard, name);
        pf_json_out_member_string(&j, sorted[i]->live->name, name);
    }
    pf_json_out_object_end(&j);
    pf_json_out_object_end(&j);
    int err = pf_json_out_finish(&j);
    err = err ? err : write_text(w, CKPT_HF_INDEX, &text);
    pf_str_release(&text);
    return err;
}

static int write_config(const struct hf_writer *w, const struct pf_json *config)
{
    struct pf_json_out j;
    struct pf_str text;

    pf_str_init(&text);
    pf_json_out_init(&j, &text, 2);
    pf_json_out_node(&j, config);
    int err = pf_json_out_finish(&j);
    err = err ? err : write_text(w, "config.json", &text);
    pf_str_release(&text);
    return err;
}

/* Files that a tokenizer or generation needs and training does not touch. */
static const char *const companions[] = {"generation_config.json",
                                         "tokenizer.json",
                                         "tokenizer_config.json",
                                         "tokenizer.model",
                                         "vocab.json",
                                         "vocab.txt",
                                         "merges.txt",
                                         "added_tokens.json",
                                         "special_tokens_map.json",
                                         "spiece.model",
                                         "chat_template.json",
                                         "chat_template.jinja",
                                         "sentencepiece.bpe.model"};

static int copy_companions(const struct hf_writer *w, const char *source_dir)
{
    int err = 0;

    for (size_t i = 0; source_dir && !err && i < sizeof companions / sizeof companions[0]; i++) {
        char *from = pf_path_join(source_dir, companions[i]);
        char *to = pf_path_join(w->staging, companions[i]);
        err = from && to ? 0 : PF_ENOMEM;
        if (!err && pf_path_is_file(from)) {
            err = pf_file_copy(from, to);
            err = err ? err : pf_fsync_path(to);
        }
        pf_free(from);
        pf_free(to);
    }
    return err;
}

/* The directory -----------------------------------------------------------------------------------
 */

static int refuse_used(const char *dir)
{
    struct pf_str_list names = {0};

    if (!pf_path_exists(dir)) {
        return 0;
    }
    if (!pf_path_is_dir(dir)) {
        return pf_fail(PF_EREFUSED, "'%s' exists and is not a directory", dir);
    }
    PF_TRY(pf_dir_list(dir, &names));
    const size_t n = names.n;
    pf_str_list_release(&names);
    return n == 0 ? 0 : pf_fail(PF_EREFUSED, "'%s' is not empty", dir);
}

static int stage(struct hf_writer *w)
{
    char *parent = pf_path_dir(w->dir);
    int err = parent ? pf_mkdirs(parent) : PF_ENOMEM;

    if (!err) {
        w->staging = pf_asprintf("%s/" CKPT_STAGING_PREFIX "%s", parent, pf_path_base(w->dir));
        err = w->staging ? ckpt_make_staging(w->staging, &w->lock_fd) : PF_ENOMEM;
    }
    if (err) {
        pf_free(w->staging);
        w->staging = NULL;
    }
    pf_free(parent);
    return err;
}

static int write_all(struct hf_writer *w, const struct out_tensor *const *sorted,
                     const struct pf_json *config, const char *source_dir)
{
    PF_TRY(stage(w));
    for (size_t s = 1; s <= w->n_shards; s++) {
        PF_TRY(write_shard(w, s));
    }
    if (w->n_shards > 1) {
        PF_TRY(write_index(w, sorted));
    }
    PF_TRY(write_config(w, config));
    PF_TRY(copy_companions(w, source_dir));
    PF_TRY(pf_fsync_path(w->staging));
    return pf_rename_durable(w->staging, w->dir);
}

static int choose(struct hf_writer *w, const struct pf_ckpt_live *live, int64_t n_live,
                  enum pf_dtype dtype, const struct pf_json *config, uint64_t shard_bytes)
{
    const char *model_type;

    PF_TRY(pf_json_expect(config, PF_JSON_OBJECT));
    PF_TRY(pf_json_string(config, "model_type", "", &model_type));
    w->tensors = pf_calloc_array((size_t)n_live, sizeof *w->tensors);
    if (!w->tensors) {
        return PF_ENOMEM;
    }
    for (int64_t i = 0; i < n_live; i++) {
        if (live[i].role == PF_ROLE_WEIGHT) {
            PF_TRY(add_tensor(w, &live[i], choose_dtype(&live[i], dtype, model_type)));
        }
    }
    if (w->n == 0) {
        return pf_fail(PF_EINVAL, "there are no weights to write to '%s'", w->dir);
    }
    cut_shards(w, shard_bytes > 0 ? shard_bytes : DEFAULT_SHARD_BYTES);
    return 0;
}

/* A path without the slashes at its end. */
static char *trim(const char *dir)
{
    size_t n = strlen(dir);

    while (n > 1 && dir[n - 1] == '/') {
        n--;
    }
    return pf_strndup(dir, n);
}

int pf_hf_write_from(const char *dir, const struct pf_ckpt_live *live, int64_t n_live,
                     enum pf_dtype dtype, const char *config_json, const char *source_dir,
                     uint64_t shard_bytes, pf_hf_fetch *fetch, void *context)
{
    const struct pf_json_options options = {.name = "config.json", .error_code = PF_EINVAL};
    char *trimmed = trim(dir);
    struct hf_writer w = {
        .dir = trimmed, .live = live, .fetch = fetch, .context = context, .lock_fd = -1};
    const struct out_tensor **sorted = NULL;
    struct pf_json *config = NULL;
    int err = 0;

    PF_TRY_GOTO(trimmed ? refuse_used(trimmed) : PF_ENOMEM, out);
    PF_TRY_GOTO(pf_json_parse_text_with(config_json, strlen(config_json), &options, &config), out);
    PF_TRY_GOTO(choose(&w, live, n_live, dtype, config, shard_bytes), out);
    PF_TRY_GOTO(sort_names(&w, &sorted), out);
    err = write_all(&w, sorted, config, source_dir);
    if (err != 0 && w.staging) {
        char *message = pf_strdup(pf_error_message());
        if (pf_rmtree(w.staging) != 0 && message) {
            (void)pf_fail(err, "%s", message);
        }
        pf_free(message);
    }
out:
    (void)pf_close(w.lock_fd, NULL);
    pf_free(w.staging);
    pf_free(w.tensors);
    pf_free(sorted);
    pf_json_free(config);
    pf_free(trimmed);
    return err;
}

static int give_live(void *context, int64_t i, const void **data_out)
{
    const struct pf_ckpt_live *const live = context;

    *data_out = live[i].data;
    return 0;
}

int pf_hf_write(const char *dir, const struct pf_ckpt_live *live, int64_t n_live,
                enum pf_dtype dtype, const char *config_json, const char *source_dir,
                uint64_t shard_bytes)
{
    return pf_hf_write_from(dir, live, n_live, dtype, config_json, source_dir, shard_bytes,
                            give_live, (void *)(uintptr_t)live);
}
