/* SPDX-License-Identifier: Apache-2.0 */
/* data.c - from a global position to a sequence: sources, parts, order, epochs, masks. */
#include "data_internal.h"

#include <pf/digest.h>
#include <pf/error.h>
#include <pf/file.h>
#include <pf/mem.h>
#include <pf/rng.h>
#include <pf/str.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A source and the share of it that this handle reads. */
struct part {
    struct pf_source *source;
    struct pf_pack *pack; /* NULL unless its documents are packed */
    double weight;        /* as written; 1 outside a mix */
    int64_t first;        /* its windows [first, first + n); packed, its documents start there */
    int64_t n;            /* windows of its first epoch */
    uint64_t key;         /* of its order */
};

struct pf_data {
    int64_t seq;
    int64_t end; /* positions from here on are empty; INT64_MAX: endless */
    bool shuffle, mask_documents;
    struct part *parts;
    int n_parts;
    struct pf_mix *mix; /* NULL for one source */
    char *summary;
    char digest[PF_DIGEST_HEX_BYTES];
};

/* Names and weights -------------------------------------------------------------------------- */

static bool is_fixed(const char *name)
{
    return pf_str_ends_with(name, ".safetensors") || strstr(name, ".safetensors#");
}

/* Is it what the two files of a Megatron pair have in common? */
static bool is_megatron_prefix(const char *name)
{
    char *const path = pf_asprintf("%s.idx", name);
    const bool is_prefix = path && pf_path_is_file(path);

    pf_free(path);
    return is_prefix;
}

static int open_source(const struct pf_data_options *options, const char *name,
                       struct pf_source **source_out)
{
    if (pf_str_starts_with(name, "synthetic:")) {
        return pf_markov_open(options, name, source_out);
    }
    if (pf_str_ends_with(name, ".txt") || pf_str_ends_with(name, ".md") || pf_path_is_dir(name)) {
        return pf_text_open(options, name, source_out);
    }
    if (is_fixed(name)) {
        return pf_fixed_open(options, name, source_out);
    }
    if (pf_str_ends_with(name, ".bin") || pf_str_ends_with(name, ".idx") ||
        is_megatron_prefix(name)) {
        return pf_megatron_open(options, name, source_out);
    }
    if (pf_str_ends_with(name, ".jsonl")) {
        return pf_jsonl_source_open(options, name, source_out);
    }
    if (!pf_path_exists(name)) {
        return pf_fail(PF_EIO, "no such file or directory: '%s'", name);
    }
    return pf_fail(PF_EUSAGE,
                   "cannot tell what '%s' holds: expected .txt, .md, a folder of them, .jsonl, "
                   ".bin, .idx, .safetensors or synthetic:markov",
                   name);
}

static int add_part(struct pf_data *data, const struct pf_data_options *options, double weight,
                    const char *name)
{
    struct part *const part = &data->parts[data->n_parts];
    const uint64_t key = pf_rng_derive_name(options->seed, "data order");

    PF_TRY(open_source(options, name, &part->source));
    part->weight = weight;
    part->key = pf_rng_derive(key, (uint64_t)data->n_parts);
    data->n_parts++;
    return 0;
}

static int parse_weight(const char *word, const char *input, double *weight_out)
{
    if (pf_parse_f64(word, weight_out) != 0) {
        return pf_fail(PF_EUSAGE, "expected a weight, not '%s', in '%s'", word, input);
    }
    if (!(*weight_out > 0.0)) {
        return pf_fail(PF_EUSAGE, "weight '%s' in '%s' is not positive", word, input);
    }
    return 0;
}

/* Words of the input without the blanks between them. */
static int split_words(const char *input, struct pf_str_list *words_out)
{
    static const char blanks[] = " \t\r\n";
    struct pf_str_list words = {0};
    int err = 0;

    for (const char *at = input + strspn(input, blanks); *at; at += strspn(at, blanks)) {
        const size_t n = strcspn(at, blanks);
        char *const word = pf_strndup(at, n);
        PF_TRY_GOTO(word ? 0 : PF_ENOMEM, out);
        err = pf_str_list_append(&words, word);
        pf_free(word);
        PF_TRY_GOTO(err, out);
        at += n;
    }
    *words_out = words;
    return 0;
out:
    pf_str_list_release(&words);
    return err;
}

static int open_mix(struct pf_data *data, const struct pf_data_options *options,
                    const struct pf_str_list *words)
{
    double weight;

    for (size_t i = 0; i < words->n; i += 2) {
        PF_TRY(parse_weight(words->items[i], options->input, &weight));
        if (i + 1 == words->n) {
            return pf_fail(PF_EUSAGE, "weight '%s' in '%s' has no source", words->items[i],
                           options->input);
        }
        PF_TRY(add_part(data, options, weight, words->items[i + 1]));
        if (words->n > 2 && data->parts[data->n_parts - 1].source->in_order) {
            return pf_fail(PF_EUSAGE, "'%s' holds fixed batches and cannot be part of a mix",
                           words->items[i + 1]);
        }
    }
    return 0;
}

static int open_sources(struct pf_data *data, const struct pf_data_options *options)
{
    struct pf_str_list words = {0};
    int err = 0;

    if (!options->input || options->input[strspn(options->input, " \t\r\n")] == '\0') {
        return pf_fail(PF_EUSAGE, "no data: input is empty");
    }
    PF_TRY(split_words(options->input, &words));
    data->parts = pf_calloc_array(words.n, sizeof *data->parts);
    PF_TRY_GOTO(data->parts ? 0 : PF_ENOMEM, out);
    if (words.n == 1 || pf_path_exists(options->input)) {
        PF_TRY_GOTO(add_part(data, options, 1.0, words.n == 1 ? words.items[0] : options->input),
                    out);
    } else {
        PF_TRY_GOTO(open_mix(data, options, &words), out);
    }
out:
    pf_str_list_release(&words);
    return err;
}

/* Parts -------------------------------------------------------------------------------------- */

/* shares_out[0..2] of train, valid and test, which sum to more than 0. */
static int parse_split(const char *split, double *shares_out)
{
    struct pf_str_list items = {0};
    double sum = 0.0;
    int err = 0;

    PF_TRY(pf_str_split(split, ',', true, &items));
    for (size_t i = 0; i < 3; i++) {
        shares_out[i] = 0.0;
        if (i < items.n &&
            (pf_parse_f64(items.items[i], &shares_out[i]) != 0 || shares_out[i] < 0.0)) {
            err = pf_fail(PF_EUSAGE, "'%s' in split '%s' is not a share", items.items[i], split);
            goto out;
        }
        sum += shares_out[i];
    }
    if (items.n > 3 || !(sum > 0.0)) {
        err = pf_fail(PF_EUSAGE, "split '%s' is not one to three shares, such as 998,1,1", split);
    }
out:
    pf_str_list_release(&items);
    return err;
}

/* The border after a share of n units: the parts' borders are computed by one formula, so that they
 * meet. */
static int64_t border(double share, double sum, int64_t n)
{
    return share >= sum ? n : (int64_t)floor(share / sum * (double)n + 0.5);
}

static int set_part(struct part *part, const struct pf_data_options *options, const double *shares)
{
    static const char *const names[] = {"training", "validation", "test"};
    const struct pf_source *const source = part->source;
    const int64_t group = source->group;
    const int64_t n = source->packs ? source->n_documents : source->n_windows / group;
    const double before[] = {0.0, shares[0], shares[0] + shares[1],
                             shares[0] + shares[1] + shares[2]};
    const int64_t lo = border(before[options->part], before[3], n);
    const int64_t hi = border(before[options->part + 1], before[3], n);

    part->first = lo * group;
    part->n = (hi - lo) * group;
    if (part->n <= 0) {
        return pf_fail(PF_EINVAL, "split '%s' leaves no %s data of the %lld %s in '%s'",
                       options->split ? options->split : "1", names[options->part], (long long)n,
                       source->packs ? "documents"
                       : group > 1   ? "steps"
                                     : "sequences",
                       source->name);
    }
    if (source->packs) {
        PF_TRY(pf_pack_new(source, lo, hi, part->key, options->shuffle, &part->pack));
        part->n = pf_pack_n_windows(part->pack);
    }
    return 0;
}

static int set_parts(struct pf_data *data, const struct pf_data_options *options)
{
    double shares[3] = {1.0, 0.0, 0.0};

    if (options->split && options->split[0]) {
        PF_TRY(parse_split(options->split, shares));
    } else if (options->part != PF_DATA_TRAIN) {
        return pf_fail(PF_EUSAGE, "no split says which part of '%s' is for evaluation",
                       options->input);
    }
    for (int i = 0; i < data->n_parts; i++) {
        PF_TRY(set_part(&data->parts[i], options, shares));
    }
    return 0;
}

static int start_mix(struct pf_data *data)
{
    const size_t n = (size_t)data->n_parts;
    double *weights = pf_calloc_array(n, sizeof *weights);
    int64_t *n_windows = pf_calloc_array(n, sizeof *n_windows);
    int err = 0;

    PF_TRY_GOTO(weights && n_windows ? 0 : PF_ENOMEM, out);
    for (size_t i = 0; i < n; i++) {
        weights[i] = data->parts[i].weight;
        n_windows[i] = data->parts[i].n;
    }
    PF_TRY_GOTO(pf_mix_new(weights, n_windows, data->n_parts, &data->mix), out);
out:
    pf_free(weights);
    pf_free(n_windows);
    return err;
}

static int set_end(struct pf_data *data, double epochs)
{
    struct pf_pack *const pack = data->mix ? NULL : data->parts[0].pack;
    double end = INFINITY;

    if (isnan(epochs)) {
        return pf_fail(PF_EINVAL, "the number of epochs is not a number");
    }
    if (epochs > 0.0) {
        end = pack ? (double)pf_pack_length(pack, epochs)
                   : ceil(epochs * (double)pf_data_epoch_length(data));
    }
    data->end = end < 0x1p62 ? (int64_t)end : INT64_MAX;
    return 0;
}

/* Sequences ---------------------------------------------------------------------------------- */

/* The window that stands at a position of its source: in each epoch every window of the part once.
 * An endless source has other windows in each epoch. */
static int64_t window_at(const struct pf_data *data, const struct part *part, int64_t count)
{
    const int64_t epoch = count / part->n, at = count % part->n;
    const uint64_t key = pf_rng_derive(part->key, (uint64_t)epoch);
    const bool shuffle = data->shuffle && !part->source->in_order;
    const int64_t window =
        part->first +
        (shuffle ? (int64_t)pf_rng_permute(key, (uint64_t)part->n, (uint64_t)at) : at);

    return part->source->endless ? epoch * part->source->n_windows + window : window;
}

/* Keep each position of a window to its document: what it sees, and what it predicts. */
static void mask_window(const struct pf_source *source, int64_t window, int32_t *targets,
                        int32_t *first_key)
{
    const int64_t origin = window * source->seq;
    int64_t first, end = origin;

    for (int64_t s = 0, key = 0; s < source->seq; s++) {
        if (origin + s >= end) {
            pf_source_document_at(source, origin + s, &first, &end);
            key = first > origin ? first - origin : 0;
        }
        if (first_key) {
            first_key[s] = (int32_t)key;
        }
        if (origin + s + 1 == end) {
            targets[s] = -1;
        }
    }
}

static void fill_empty(int64_t seq, int32_t *ids, int32_t *targets)
{
    for (int64_t s = 0; s < seq; s++) {
        ids[s] = 0;
        targets[s] = -1;
    }
}

/* A piece of a document into the positions from `at` on. */
static int read_piece(struct pf_source *source, const struct pf_pack_piece *piece, int64_t at,
                      int32_t *ids, int32_t *targets, int32_t *first_key)
{
    const int64_t n = piece->n, n_read = n + piece->goes_on;

    PF_TRY(source->ops->tokens(source, piece->first, n_read, source->scratch));
    for (int64_t k = 0; k < n_read; k++) {
        PF_TRY(pf_source_check_id(source, source->scratch[k], piece->first + k));
    }
    for (int64_t k = 0; k < n; k++) {
        ids[at + k] = source->scratch[k];
        targets[at + k] = k + 1 < n_read ? source->scratch[k + 1] : -1;
        if (first_key) {
            first_key[at + k] = (int32_t)at;
        }
    }
    return 0;
}

/* Sequence number `count` of a packed part. What no piece fills sees itself alone. */
static int read_packed(const struct part *part, int64_t count, int32_t *ids, int32_t *targets,
                       int32_t *first_key)
{
    struct pf_source *const source = part->source;
    int64_t item, at = 0;
    const int64_t n_pieces = pf_pack_n_pieces_at(part->pack, count, &item);

    for (int64_t i = 0; i < n_pieces; i++) {
        const struct pf_pack_piece *const piece = pf_pack_piece(part->pack, item + i);
        PF_TRY(read_piece(source, piece, at, ids, targets, first_key));
        at += piece->n;
    }
    fill_empty(source->seq - at, ids + at, targets + at);
    for (; first_key && at < source->seq; at++) {
        first_key[at] = (int32_t)at;
    }
    return 0;
}

/* What it is --------------------------------------------------------------------------------- */

static const char *format_count(double n, char buffer[24])
{
    static const char units[] = " KMGT";
    int unit = 0;

    while (n >= 10000.0 && units[unit + 1]) {
        n /= 1000.0;
        unit++;
    }
    if (unit == 0) {
        snprintf(buffer, 24, "%.0f", n);
    } else {
        snprintf(buffer, 24, "%.1f %c", n, units[unit]);
    }
    return buffer;
}

static void describe_part(const struct pf_data *data, const struct part *part, struct pf_str *s)
{
    const struct pf_source *const source = part->source;
    char count[24];

    if (data->mix) {
        pf_str_appendf(s, "%.3f ", data->mix->weights[part - data->parts]);
    }
    pf_str_appendf(s, "%s: ", source->name);
    if (source->summary) {
        pf_str_append(s, source->summary);
    } else {
        pf_str_appendf(s, "%s tokens, %lld document%s",
                       format_count((double)source->n_tokens, count),
                       (long long)source->n_documents, source->n_documents == 1 ? "" : "s");
    }
    if (part->pack) {
        pf_str_appendf(s, ", packed into %lld sequences, %.1f %% full", (long long)part->n,
                       100.0 * (double)pf_pack_n_tokens(part->pack) /
                           ((double)part->n * (double)data->seq));
    } else if (part->n < source->n_windows) {
        pf_str_appendf(s, ", sequences %lld to %lld of %lld", (long long)part->first,
                       (long long)(part->first + part->n - 1), (long long)source->n_windows);
    }
}

static int describe(struct pf_data *data)
{
    struct pf_str s;
    int err = 0;

    pf_str_init(&s);
    for (int i = 0; i < data->n_parts; i++) {
        pf_str_append(&s, i > 0 ? "; " : "");
        describe_part(data, &data->parts[i], &s);
    }
    data->summary = pf_str_steal(&s);
    PF_TRY_GOTO(data->summary ? 0 : PF_ENOMEM, out);
out:
    pf_str_release(&s);
    return err;
}

/* Sequence i of a part, as it decides the digest: of a source's windows, or of what is packed. */
static int digest_sequence(const struct part *part, int64_t i, int32_t *ids, int32_t *targets,
                           struct pf_digest_state *state)
{
    struct pf_source *const source = part->source;
    const size_t n_bytes = (size_t)source->seq * sizeof *ids;

    PF_TRY(part->pack ? read_packed(part, i, ids, targets, NULL)
                      : source->ops->sequence(source, i, ids, targets));
    pf_digest_update(state, ids, n_bytes);
    pf_digest_update(state, targets, n_bytes);
    return 0;
}

static int digest_part(const struct part *part, int32_t *ids, struct pf_digest_state *state)
{
    const struct pf_source *const source = part->source;
    char *const line = pf_asprintf(
        "%s%s %.17g %s %lld %lld %lld %lld %lld %lld\n", part->pack ? "packed " : "",
        source->ops->kind, part->weight, pf_path_base(source->name), (long long)source->n_tokens,
        (long long)source->n_documents, (long long)source->n_windows, (long long)source->group,
        (long long)part->first, (long long)part->n);

    if (!line) {
        return PF_ENOMEM;
    }
    pf_digest_update(state, line, strlen(line));
    pf_free(line);
    const int64_t last = (part->pack ? part->n : source->n_windows) - 1;
    PF_TRY(digest_sequence(part, 0, ids, ids + source->seq, state));
    return digest_sequence(part, last, ids, ids + source->seq, state);
}

/* The digest, and with it the check of the first and last window of each source. */
static int digest(struct pf_data *data, const struct pf_data_options *options)
{
    struct pf_digest_state *state = NULL;
    int32_t *ids = pf_calloc_array((size_t)data->seq, 2 * sizeof *ids);
    char *line =
        pf_asprintf("pf data 1 %lld %llu %d %d\n", (long long)data->seq,
                    (unsigned long long)options->seed, (int)options->part, (int)options->shuffle);
    struct pf_digest result;
    int err = 0;

    PF_TRY_GOTO(ids && line ? 0 : PF_ENOMEM, out);
    PF_TRY_GOTO(pf_digest_new(&state), out);
    pf_digest_update(state, line, strlen(line));
    for (int i = 0; i < data->n_parts; i++) {
        PF_TRY_GOTO(digest_part(&data->parts[i], ids, state), out);
    }
    result = pf_digest_result(state);
    pf_digest_hex(&result, data->digest);
out:
    pf_digest_free(state);
    pf_free(line);
    pf_free(ids);
    return err;
}

/* The handle --------------------------------------------------------------------------------- */

static int check_options(const struct pf_data_options *options)
{
    if (options->seq <= 0 || options->seq >= INT32_MAX) {
        return pf_fail(PF_EINVAL, "sequence length %lld is out of range", (long long)options->seq);
    }
    if (options->vocab_size <= 0 || options->vocab_size > INT32_MAX) {
        return pf_fail(PF_EINVAL, "vocab_size %lld is out of range",
                       (long long)options->vocab_size);
    }
    return 0;
}

int pf_data_open(const struct pf_data_options *options, struct pf_data **data_out)
{
    struct pf_data *data;
    int err = 0;

    PF_TRY(check_options(options));
    data = pf_alloc(sizeof *data);
    if (!data) {
        return PF_ENOMEM;
    }
    data->seq = options->seq;
    data->shuffle = options->shuffle;
    data->mask_documents = options->mask_documents;
    PF_TRY_GOTO(open_sources(data, options), out);
    PF_TRY_GOTO(set_parts(data, options), out);
    if (data->n_parts > 1) {
        PF_TRY_GOTO(start_mix(data), out);
    }
    PF_TRY_GOTO(set_end(data, options->epochs), out);
    PF_TRY_GOTO(digest(data, options), out);
    PF_TRY_GOTO(describe(data), out);
    *data_out = data;
    return 0;
out:
    pf_data_free(data);
    return err;
}

void pf_data_free(struct pf_data *data)
{
    if (!data) {
        return;
    }
    for (int i = 0; i < data->n_parts; i++) {
        pf_pack_free(data->parts[i].pack);
        pf_source_free(data->parts[i].source);
    }
    pf_free(data->parts);
    pf_mix_free(data->mix);
    pf_free(data->summary);
    pf_free(data);
}

int pf_data_read(struct pf_data *data, int64_t position, int32_t *ids, int32_t *targets,
                 int32_t *first_key)
{
    int64_t count = position;
    int i = 0;

    if (position < 0) {
        return pf_fail(PF_EINVAL, "position %lld is negative", (long long)position);
    }
    if (first_key) {
        memset(first_key, 0, (size_t)data->seq * sizeof *first_key);
    }
    if (position >= data->end) {
        fill_empty(data->seq, ids, targets);
        return 0;
    }
    if (data->mix) {
        pf_mix_at(data->mix, position, &i, &count);
    }
    if (data->parts[i].pack) {
        return read_packed(&data->parts[i], count, ids, targets, first_key);
    }
    struct pf_source *const source = data->parts[i].source;
    const int64_t window = window_at(data, &data->parts[i], count);
    PF_TRY(source->ops->sequence(source, window, ids, targets));
    if (data->mask_documents && source->ops->document) {
        mask_window(source, window, targets, first_key);
    }
    return 0;
}

int64_t pf_data_n_positions(const struct pf_data *data)
{
    return data->end;
}

int64_t pf_data_epoch_length(const struct pf_data *data)
{
    return data->mix ? pf_mix_length(data->mix) : data->parts[0].n;
}

static bool is_fixed_batches(const struct pf_data *data)
{
    return data->n_parts == 1 && data->parts[0].source->in_order;
}

int64_t pf_data_fixed_batch(const struct pf_data *data)
{
    return is_fixed_batches(data) ? data->parts[0].source->group : 0;
}

int64_t pf_data_fixed_steps(const struct pf_data *data)
{
    return is_fixed_batches(data) ? data->parts[0].n / data->parts[0].source->group : 0;
}

const char *pf_data_describe(const struct pf_data *data)
{
    return data->summary;
}

double pf_data_entropy(const struct pf_data *data)
{
    return data->n_parts == 1 ? data->parts[0].source->entropy : -1.0;
}

void pf_data_digest(const struct pf_data *data, char *hex_out)
{
    memcpy(hex_out, data->digest, sizeof data->digest);
}
