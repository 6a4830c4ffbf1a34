/* SPDX-License-Identifier: Apache-2.0 */
/* data_sources.c - mixes, parts, fixed batches, Megatron's pairs, Markov chains. */
#include "data_test.h"

#include <pf/rng.h>
#include <pf/safetensors.h>

#include <math.h>

/* Mixes --------------------------------------------------------------------------------------- */

/* Which of the sources "aaaa…", "bbbb…", "cccc…" a sequence comes from. */
static int letter(const struct sequence *s)
{
    return s->ids[0] - 'a';
}

static void put_letters(void)
{
    char text[82] = {0};

    memset(text, 'a', 16);
    put("a.txt", text);
    memset(text, 'b', 40);
    put("b.txt", text);
    memset(text, 'c', 80);
    put("c.txt", text);
}

static void a_mix_keeps_its_ratios_at_every_prefix(void)
{
    const double weights[] = {5.0 / 8.3, 2.5 / 8.3, 0.8 / 8.3};
    char input[800];
    snprintf(input, sizeof input, "5 %s  2.5 %s 0.8 %s ", at("a.txt"), at("b.txt"), at("c.txt"));
    struct pf_data_options options = options_for(input, 4);
    options.shuffle = true;
    struct pf_data *data = open_data(&options);
    double counts[3] = {0}, worst = 0.0;

    for (int64_t p = 0; p < 5000; p++) {
        const struct sequence s = read_at(data, p);
        counts[letter(&s)]++;
        for (int i = 0; i < 3; i++) {
            worst = fmax(worst, fabs(counts[i] - weights[i] * (double)(p + 1)));
        }
    }
    ok(worst < 1.0, "at every prefix each source has its share to within one (%.3f)", worst);
    ok(pf_data_fixed_batch(data) == 0 && pf_data_entropy(data) < 0.0,
       "a mix has no fixed batch and no known entropy");
    ok(strstr(pf_data_describe(data), "0.602 ") && strstr(pf_data_describe(data), "; 0.301 "),
       "the normalised weights are described");
    pf_data_free(data);
}

static void sources_of_a_mix_run_through_their_own_epochs(void)
{
    put_numbers("few.txt", 5 * 8);
    put_numbers("many.txt", 40 * 8);
    char input[600], *few = read_text("few.txt"), *many = read_text("many.txt");
    snprintf(input, sizeof input, "0.5 %s 0.5 %s", at("few.txt"), at("many.txt"));
    struct pf_data_options options = options_for(input, 8);
    options.shuffle = true;
    struct pf_data *data = open_data(&options);
    int seen_few[5] = {0}, seen_many[40] = {0}, bad = 0;

    for (int64_t p = 0; p < 80; p++) {
        const struct sequence s = read_at(data, p);
        if (p % 2 == 0) {
            seen_few[window_of(&s, few, 8)]++;
        } else {
            seen_many[window_of(&s, many, 8)]++;
        }
        for (int i = 0; i < 5 && (p + 1) % 10 == 0; i++) {
            bad += seen_few[i] != (p + 1) / 10;
        }
    }
    for (int i = 0; i < 40; i++) {
        bad += seen_many[i] != 1;
    }
    ok(bad == 0, "a short source repeats in whole epochs while a long one goes on");
    ok(pf_data_epoch_length(data) == 80, "the epoch of a mix ends when every source was seen once");
    pf_free(few);
    pf_free(many);
    pf_data_free(data);
}

static void a_jump_in_a_mix_lands_where_walking_does(void)
{
    char input[800];
    snprintf(input, sizeof input, "0.37 %s 0.41 %s 0.22 %s", at("a.txt"), at("b.txt"), at("c.txt"));
    struct pf_data_options options = options_for(input, 4);
    options.shuffle = true;
    struct pf_data *walker = open_data(&options);
    const int64_t places[] = {300000, 131072, 131071, 64, 0, 65536, 299999, 250, 300001};
    struct sequence want[9];
    bool equal = true;

    for (int64_t p = 0; p <= 300001; p++) {
        const struct sequence s = read_at(walker, p);
        for (int i = 0; i < 9; i++) {
            want[i] = places[i] == p ? s : want[i];
        }
    }
    struct pf_data *jumper = open_data(&options);
    for (int i = 0; i < 9; i++) {
        const struct sequence s = read_at(jumper, places[i]), t = read_at(walker, places[i]);
        equal &= same(&s, &want[i], 4) && same(&t, &want[i], 4);
    }
    ok(equal, "jumps back and forth in a mix give what walking gave");
    pf_data_free(jumper);
    pf_data_free(walker);
}

static void mixes_that_make_no_sense_are_refused(void)
{
    static const struct {
        const char *input, *words;
    } cases[] = {
        {"0.7 a.txt 0.3", "weight '0.3'"},
        {"a.txt 0.3 b.txt 0.7", "expected a weight, not 'a.txt'"},
        {"0.7 synthetic:markov half b.txt", "expected a weight, not 'half'"},
        {"0 synthetic:markov 1 b.txt", "weight '0'"},
        {"-1 synthetic:markov 1 b.txt", "weight '-1'"},
        {"", "no data"},
        {"  ", "no data"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pf_data_options options = options_for(cases[i].input, 4);
        char input[600];
        if (i == 0) {
            snprintf(input, sizeof input, "0.7 %s 0.3", at("a.txt"));
            options.input = input;
        }
        refuses(&options, PF_EUSAGE, cases[i].words);
    }
    struct pf_data_options options = options_for(NULL, 4);
    refuses(&options, PF_EUSAGE, "no data");
}

static void a_path_with_blanks_is_one_source(void)
{
    put("0.5 of it.txt", "0123456789");
    struct pf_data_options options = options_for(at("0.5 of it.txt"), 5);
    struct pf_data *data = open_data(&options);

    ok(pf_data_epoch_length(data) == 2, "an input that exists under its whole name is one source");
    pf_data_free(data);
}

/* Parts --------------------------------------------------------------------------------------- */

static void parts_of_a_split_are_disjoint_and_complete(void)
{
    char *text = read_text("order.txt");
    struct pf_data_options options = options_for(at("order.txt"), 8);
    int seen[101] = {0}, bad = 0;
    int64_t lengths[3], last = -1;

    options.split = "90, 7,4";
    for (int part = 0; part < 3; part++) {
        options.part = (enum pf_data_part)part;
        options.shuffle = part == 0;
        struct pf_data *data = open_data(&options);
        lengths[part] = pf_data_epoch_length(data);
        int64_t highest = -1;
        for (int64_t p = 0; p < lengths[part]; p++) {
            const struct sequence s = read_at(data, p);
            const int64_t window = window_of(&s, text, 8);
            bad += window <= last;
            highest = window > highest ? window : highest;
            seen[window]++;
        }
        last = highest;
        pf_data_free(data);
    }
    for (int i = 0; i < 101; i++) {
        bad += seen[i] != 1;
    }
    ok(bad == 0, "train, valid and test are contiguous, disjoint, and together everything");
    ok(lengths[0] == 90 && lengths[1] == 7 && lengths[2] == 4, "their sizes follow the shares");
    pf_free(text);
}

static void splits_that_make_no_sense_are_refused(void)
{
    static const struct {
        const char *split, *words;
        enum pf_data_part part;
        int code;
    } cases[] = {
        {"998,x,1", "'x' in split", PF_DATA_TRAIN, PF_EUSAGE},
        {"-1,2", "'-1' in split", PF_DATA_TRAIN, PF_EUSAGE},
        {"1,1,1,1", "one to three shares", PF_DATA_TRAIN, PF_EUSAGE},
        {"0,0,0", "one to three shares", PF_DATA_TRAIN, PF_EUSAGE},
        {"1,,", "'' in split", PF_DATA_TRAIN, PF_EUSAGE},
        {"1000,1,0", "leaves no validation data of the 101 sequences", PF_DATA_VALID, PF_EINVAL},
        {"1", "leaves no test data", PF_DATA_TEST, PF_EINVAL},
        {NULL, "no split", PF_DATA_VALID, PF_EUSAGE},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pf_data_options options = options_for(at("order.txt"), 8);
        options.split = cases[i].split;
        options.part = cases[i].part;
        refuses(&options, cases[i].code, cases[i].words);
    }
}

/* Fixed batches ------------------------------------------------------------------------------- */

static void write_batches(const char *name, const char *ids_name, const char *labels_name,
                          const int32_t *ids, const int32_t *labels, int n_dims,
                          const uint64_t *shape)
{
    const struct pf_st_source tensors[] = {
        {ids_name, PF_DTYPE_I32, n_dims, shape, ids},
        {labels_name, PF_DTYPE_I32, n_dims, shape, labels},
    };

    if (pf_st_save(at(name), NULL, 0, tensors, labels_name ? 2 : 1) != 0) {
        ok(false, "write %s: %s", name, pf_error_message());
    }
}

static void fixed_batches_come_in_file_order(void)
{
    const uint64_t shape[] = {2, 2, 3};
    const int32_t ids[] = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21};
    const int32_t labels[] = {10, 1, -100, 13, 2, 3, -100, 4, 5, -100, -100, 6};
    const int32_t want[] = {1, -1, -1, 2, 3, -1, 4, 5, -1, -1, 6, -1};
    bool right = true;

    write_batches("fixed.safetensors", "input_ids", "labels", ids, labels, 3, shape);
    struct pf_data_options options = options_for(at("fixed.safetensors"), 3);
    options.shuffle = true;
    struct pf_data *data = open_data(&options);
    for (int64_t p = 0; p < 8; p++) {
        const struct sequence s = read_at(data, p);
        right &= memcmp(s.ids, ids + p % 4 * 3, sizeof(int32_t) * 3) == 0;
        right &= memcmp(s.targets, want + p % 4 * 3, sizeof(int32_t) * 3) == 0;
    }
    ok(right, "fixed batches come in file order, round and round; -100 and the last do not count");
    ok(pf_data_fixed_batch(data) == 2 && pf_data_fixed_steps(data) == 2 &&
           pf_data_epoch_length(data) == 4,
       "the batch size and the steps are told");
    pf_data_free(data);
    options.split = "1,1";
    options.part = PF_DATA_VALID;
    data = open_data(&options);
    const struct sequence s = read_at(data, 0);
    ok(s.ids[0] == 16 && pf_data_fixed_steps(data) == 1, "a split cuts between steps");
    pf_data_free(data);
}

static void fixed_batches_go_by_the_names_asked_for(void)
{
    const uint64_t shape[] = {2, 3};
    const int32_t ids[] = {1, 2, 3, 4, 5, 6}, labels[] = {7, 8, 9, 10, 11, 12};
    char input[600];

    write_batches("x#1.safetensors", "t.input_ids", "L", ids, labels, 2, shape);
    snprintf(input, sizeof input, "%s#t", at("x#1.safetensors"));
    struct pf_data_options options = options_for(input, 3);
    struct pf_data *data = open_data(&options);
    struct sequence s = read_at(data, 1);
    ok(s.ids[0] == 4 && s.targets[0] == 5 && s.targets[1] == 6 && pf_data_fixed_batch(data) == 2 &&
           pf_data_fixed_steps(data) == 1,
       "#t reads t.input_ids; without labels the ids are the labels; [B,S] is one step");
    pf_data_free(data);
    snprintf(input, sizeof input, "%s#t.input_ids,L", at("x#1.safetensors"));
    data = open_data(&options);
    s = read_at(data, 0);
    ok(s.ids[2] == 3 && s.targets[0] == 8, "#IDS,LABELS names both");
    pf_data_free(data);
    snprintf(input, sizeof input, "%s#t.input_ids,M", at("x#1.safetensors"));
    refuses(&options, PF_EINVAL, "no tensor 'M'");
    snprintf(input, sizeof input, "%s", at("x#1.safetensors"));
    refuses(&options, PF_EINVAL, "no tensor 'input_ids'");
    snprintf(input, sizeof input, "%s#t", at("x#1.safetensors"));
    options.seq = 7;
    refuses(&options, PF_EINVAL, "sequences of 3 tokens, but the sequence length is 7");
    options.seq = 3;
    snprintf(input, sizeof input, "1 %s#t 1 %s", at("x#1.safetensors"), at("a.txt"));
    refuses(&options, PF_EUSAGE, "cannot be part of a mix");
}

static void fixed_batches_of_another_kind_are_refused(void)
{
    const uint64_t flat[] = {6}, none[] = {0, 2, 3}, two[] = {2, 3}, other[] = {3, 2};
    const float floats[6] = {0};
    const int32_t ids[] = {1, 2, 300, 4, -5, 6}, label[] = {1, 2, 3, 4, -7, 6};
    struct pf_data_options options = options_for(at("odd.safetensors"), 3);
    const struct pf_st_source as_floats = {"input_ids", PF_DTYPE_F32, 2, two, floats};
    const struct pf_st_source differ[] = {{"input_ids", PF_DTYPE_I32, 2, two, ids},
                                          {"labels", PF_DTYPE_I32, 2, other, ids}};
    char *const path = pf_strdup(options.input);

    options.input = path;
    pf_st_save(path, NULL, 0, &as_floats, 1);
    refuses(&options, PF_EINVAL, "is F32, not I64 or I32");
    pf_st_save(path, NULL, 0, differ, 2);
    refuses(&options, PF_EINVAL, "differ in shape");
    write_batches("odd.safetensors", "input_ids", NULL, ids, NULL, 1, flat);
    refuses(&options, PF_EINVAL, "has 1 dimensions");
    write_batches("odd.safetensors", "input_ids", NULL, ids, NULL, 3, none);
    refuses(&options, PF_EINVAL, "holds no sequence");
    write_batches("odd.safetensors", "input_ids", NULL, ids, NULL, 2, two);
    refuses(&options, PF_EINVAL, "token id 300 at position 2 of");
    options.vocab_size = 1000;
    refuses(&options, PF_EINVAL, "token id -5 at position 4 of");
    write_batches("odd.safetensors", "input_ids", "labels", label + 0, label, 2, two);
    refuses(&options, PF_EINVAL, "token id -7 at position 4 of");
    put("odd.safetensors", "not a file of tensors");
    refuses(&options, PF_EFORMAT, "odd.safetensors");
    pf_free(path);
}

/* The batches of a Hugging Face fixture against a second reading of the file. */
static void check_hf(const char *path)
{
    struct pf_st *st = NULL;
    char input[400];
    bool right = pf_st_open(path, &st) == 0;
    const struct pf_st_tensor *ids = pf_st_find(st, "train.input_ids"),
                              *labels = pf_st_find(st, "train.labels");
    const int64_t n_steps = (int64_t)ids->shape[0], n_batch = (int64_t)ids->shape[1],
                  seq = (int64_t)ids->shape[2];
    int64_t wide[MAX_SEQ], n_masked = 0;

    snprintf(input, sizeof input, "%s#train", path);
    struct pf_data_options options = options_for(input, seq);
    options.vocab_size = 1 << 20;
    struct pf_data *data = open_data(&options);
    right &= pf_data_fixed_batch(data) == n_batch && pf_data_fixed_steps(data) == n_steps;
    for (int64_t p = 0; right && p < n_steps * n_batch; p++) {
        const struct sequence s = read_at(data, p);
        const uint64_t n_bytes = (uint64_t)seq * 8;
        right &= pf_st_read(st, ids, (uint64_t)p * n_bytes, n_bytes, wide) == 0;
        for (int64_t k = 0; k < seq; k++) {
            right &= s.ids[k] == wide[k];
        }
        right &= pf_st_read(st, labels, (uint64_t)p * n_bytes, n_bytes, wide) == 0;
        for (int64_t k = 0; k + 1 < seq; k++) {
            right &= s.targets[k] == (wide[k + 1] == -100 ? -1 : wide[k + 1]);
            n_masked += wide[k + 1] == -100;
        }
        right &= s.targets[seq - 1] == -1;
    }
    ok(right && n_masked > 0, "the training batches of %s are read as stored", path);
    pf_data_free(data);
    pf_st_close(st);
}

static void fixed_batches_of_hugging_face_fixtures(void)
{
    static const char *const families[] = {"gpt2",  "llama", "llama-tied",
                                           "qwen2", "qwen3", "ernie4_5"};
    char name[100];

    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        snprintf(name, sizeof name, "hf/%s/golden.safetensors", families[i]);
        if (fixture(name)) {
            check_hf(fixture(name));
        } else {
            skip(name, "no fixture");
        }
    }
}

/* Megatron ------------------------------------------------------------------------------------ */

static int64_t *read_expected(struct pf_st *st, const char *name, int64_t *n_out)
{
    const struct pf_st_tensor *t = pf_st_find(st, name);
    int64_t *values = malloc(t->end - t->begin + 8);

    *n_out = (int64_t)t->shape[0];
    if (pf_st_read(st, t, 0, t->end - t->begin, values) != 0) {
        ok(false, "read %s: %s", name, pf_error_message());
    }
    return values;
}

/* Tokens and document starts of a pair against what megatron-core read. */
static void check_megatron(const char *prefix)
{
    char name[200], path[300];
    struct pf_st *st = NULL;
    int64_t n, n_sequences, n_entries, n_targets = 0;

    snprintf(name, sizeof name, "megatron-data/%s.expected.safetensors", prefix);
    if (!fixture(name)) {
        skip(prefix, "no fixture");
        return;
    }
    if (pf_st_open(fixture(name), &st) != 0) {
        ok(false, "%s: %s", name, pf_error_message());
        return;
    }
    int64_t *tokens = read_expected(st, "tokens", &n);
    int64_t *lengths = read_expected(st, "sequence_lengths", &n_sequences);
    int64_t *documents = read_expected(st, "document_indices", &n_entries);
    int64_t *starts = calloc((size_t)n + 1, sizeof *starts); /* of each token's document */
    for (int64_t d = 0, at_token = 0; d + 1 < n_entries; d++) {
        const int64_t start = at_token;
        for (int64_t i = documents[d]; i < documents[d + 1]; i++) {
            for (int64_t k = 0; k < lengths[i]; k++) {
                starts[at_token++] = start;
            }
        }
    }
    snprintf(name, sizeof name, "megatron-data/%s.idx", prefix);
    snprintf(path, sizeof path, "%s", fixture(name));
    struct pf_data_options options = options_for(path, 16);
    options.vocab_size = INT32_MAX;
    options.mask_documents = true;
    struct pf_data *data = open_data(&options);
    bool right = pf_data_epoch_length(data) == (n - 1) / 16, keys = true;
    for (int64_t p = 0; p < (n - 1) / 16; p++) {
        const struct sequence s = read_at(data, p);
        for (int64_t k = 0; k < 16; k++) {
            const int64_t t = p * 16 + k, first = starts[t] - p * 16;
            const bool ends = starts[t + 1] != starts[t];
            right &= s.ids[k] == tokens[t] && s.targets[k] == (ends ? -1 : tokens[t + 1]);
            keys &= s.first_key[k] == (first > 0 ? first : 0);
            n_targets++;
        }
    }
    ok(right && n_targets > 0, "%s: windows are the sequences laid end to end", prefix);
    ok(keys, "%s: masks start where the index starts documents", prefix);
    pf_data_free(data);
    path[strlen(path) - 4] = '\0';
    data = open_data(&options);
    ok(pf_data_epoch_length(data) == (n - 1) / 16, "%s: the prefix is enough", prefix);
    pf_data_free(data);
    free(tokens);
    free(lengths);
    free(documents);
    free(starts);
    pf_st_close(st);
}

static void megatron_pairs_that_cannot_be_read_are_refused(void)
{
    static const struct {
        const char *name, *words;
        int code;
    } cases[] = {
        {"megatron-data/none.idx", "holds 0 tokens", PF_EINVAL},
        {"megatron-data/broken/bad_magic.bin", "bad_magic", PF_ENOTSUP},
        {"megatron-data/broken/bin_short.bin", "bin_short", PF_EFORMAT},
        {"megatron-data/broken/bin_missing.idx", "bin_missing", PF_EINCOMPLETE},
    };
    char path[300];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!fixture(cases[i].name)) {
            skip(cases[i].name, "no fixture");
            continue;
        }
        snprintf(path, sizeof path, "%s", fixture(cases[i].name));
        struct pf_data_options options = options_for(path, 16);
        options.vocab_size = INT32_MAX;
        refuses(&options, cases[i].code, cases[i].words);
    }
}

/* Markov -------------------------------------------------------------------------------------- */

enum { V = 5, CONTEXTS = V * V };

/* The chain by its definition in data.h. */
static void define_chain(uint64_t seed, double p[CONTEXTS][V])
{
    const uint64_t key = pf_rng_derive_name(seed, "markov chain");

    for (uint64_t c = 0; c < CONTEXTS; c++) {
        double sum = 0.0;
        for (uint64_t t = 0; t < V; t++) {
            p[c][t] = pow(1.0 - pf_rng_uniform_f64(key, c, t), 16.0);
            sum += p[c][t];
        }
        for (int t = 0; t < V; t++) {
            p[c][t] = p[c][t] / sum * 15.0 / 16.0 + 1.0 / 16.0 / V;
        }
    }
}

/* Its stationary distribution, by squaring the matrix of contexts until its rows agree. */
static void find_stationary(double p[CONTEXTS][V], double pi[CONTEXTS])
{
    static double m[CONTEXTS][CONTEXTS], square[CONTEXTS][CONTEXTS];

    memset(m, 0, sizeof m);
    for (int c = 0; c < CONTEXTS; c++) {
        for (int t = 0; t < V; t++) {
            m[c][c % V * V + t] = p[c][t];
        }
    }
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < CONTEXTS; i++) {
            for (int j = 0; j < CONTEXTS; j++) {
                square[i][j] = 0.0;
                for (int k = 0; k < CONTEXTS; k++) {
                    square[i][j] += m[i][k] * m[k][j];
                }
            }
        }
        memcpy(m, square, sizeof m);
    }
    memcpy(pi, m[0], sizeof m[0]);
}

static void the_entropy_of_a_chain_is_exact(void)
{
    static double p[CONTEXTS][V], pi[CONTEXTS];
    struct pf_data_options options = options_for("synthetic:markov?vocab=5&order=2&seed=9", 64);
    struct pf_data *data = open_data(&options);
    double entropy = 0.0;

    define_chain(9, p);
    find_stationary(p, pi);
    for (int c = 0; c < CONTEXTS; c++) {
        for (int t = 0; t < V; t++) {
            entropy -= pi[c] * p[c][t] * log(p[c][t]);
        }
    }
    ok(fabs(entropy - pf_data_entropy(data)) < 1e-7, "the entropy rate is the chain's (%.9f)",
       entropy);
    ok(strstr(pf_data_describe(data), "entropy "), "it is described: %s", pf_data_describe(data));
    pf_data_free(data);
}

static void a_chain_draws_what_it_defines(void)
{
    static double p[CONTEXTS][V], pi[CONTEXTS], n[CONTEXTS][V], first[CONTEXTS];
    struct pf_data_options options = options_for("synthetic:markov?vocab=5&order=2&seed=9", 64);
    struct pf_data *data = open_data(&options);
    double worst = 0.0, worst_first = 0.0, loss = 0.0, counted = 0.0;
    const int n_windows = 20000;
    bool masked = true;

    define_chain(9, p);
    find_stationary(p, pi);
    for (int64_t w = 0; w < n_windows; w++) {
        const struct sequence s = read_at(data, w);
        masked &= s.targets[0] == -1;
        first[s.ids[0] * V + s.ids[1]]++;
        for (int k = 1; k < 64; k++) {
            const int c = s.ids[k - 1] * V + s.ids[k];
            n[c][s.targets[k]]++;
            loss -= log(p[c][s.targets[k]]);
            counted++;
        }
    }
    for (int c = 0; c < CONTEXTS; c++) {
        double total = 0.0;
        for (int t = 0; t < V; t++) {
            total += n[c][t];
        }
        for (int t = 0; t < V; t++) {
            worst = fmax(worst,
                         fabs(n[c][t] - total * p[c][t]) / sqrt(total * p[c][t] * (1.0 - p[c][t])));
        }
        worst_first = fmax(worst_first, fabs(first[c] - n_windows * pi[c]) /
                                            sqrt(n_windows * pi[c] * (1.0 - pi[c])));
    }
    ok(worst < 4.5, "each token follows each context as often as it should (%.1f sigma)", worst);
    ok(worst_first < 4.5, "windows start from the stationary distribution (%.1f sigma)",
       worst_first);
    ok(fabs(loss / counted / pf_data_entropy(data) - 1.0) < 0.005,
       "whoever knows the chain has its entropy as loss (%.5f, %.5f)", loss / counted,
       pf_data_entropy(data));
    ok(masked, "a target whose context is not whole does not count");
    pf_data_free(data);
}

static void windows_of_a_chain_never_repeat(void)
{
    struct pf_data_options options = options_for("synthetic:markov?vocab=8&order=1&tokens=640", 32);
    struct pf_data_options other = options, valid = options;
    other.input = "synthetic:markov?vocab=8&order=1&tokens=640&stream=1";
    valid.split = "1,1";
    valid.part = PF_DATA_VALID;
    struct pf_data *data = open_data(&options), *fresh = open_data(&other),
                   *held_out = open_data(&valid);
    static struct sequence s[60];
    int repeats = 0, wrong = 0;

    for (int64_t i = 0; i < 40; i++) {
        s[i] = read_at(data, i);
    }
    for (int64_t i = 0; i < 20; i++) {
        s[40 + i] = read_at(fresh, i);
        const struct sequence v = read_at(held_out, i);
        wrong += !same(&v, &s[i < 10 ? 10 + i : 20 + i], 32);
    }
    for (int i = 0; i < 60; i++) {
        for (int j = 0; j < i; j++) {
            repeats += same(&s[i], &s[j], 32);
        }
    }
    ok(pf_data_epoch_length(data) == 20, "tokens=640 is an epoch of 20 windows of 32");
    ok(repeats == 0, "neither the next epoch nor another stream repeats a window");
    ok(wrong == 0, "the part held out by a split stays held out in later epochs");
    ok(pf_data_entropy(data) == pf_data_entropy(fresh), "another stream is of the same chain");
    pf_data_free(data);
    pf_data_free(fresh);
    pf_data_free(held_out);
}

static void the_default_chain_is_far_from_noise(void)
{
    struct pf_data_options options = options_for("synthetic:markov", 32);
    struct pf_data *data = open_data(&options);
    const double entropy = pf_data_entropy(data);

    ok(entropy > 1.5 && entropy < 0.75 * log(64.0), "of log 64 = %.2f nats it has %.4f", log(64.0),
       entropy);
    pf_data_free(data);
}

static void chains_that_make_no_sense_are_refused(void)
{
    static const struct {
        const char *input, *words;
        int code;
    } cases[] = {
        {"synthetic:noise", "unknown synthetic source", PF_EUSAGE},
        {"synthetic:markovian", "unknown synthetic source", PF_EUSAGE},
        {"synthetic:markov?vocap=3", "did you mean 'vocab'?", PF_EUSAGE},
        {"synthetic:markov?vocab", "expected key=value, not 'vocab'", PF_EUSAGE},
        {"synthetic:markov?vocab=x", "x", PF_EUSAGE},
        {"synthetic:markov?order=0", "order must be positive", PF_EUSAGE},
        {"synthetic:markov?vocab=1", "vocab must be at least 2", PF_EINVAL},
        {"synthetic:markov?vocab=64&order=4", "at most 2^20", PF_EINVAL},
        {"synthetic:markov?vocab=9999999999999&order=9", "at most 2^20", PF_EINVAL},
        {"synthetic:markov?vocab=300&order=1", "300 tokens, but vocab_size is 259", PF_EINVAL},
        {"synthetic:markov?vocab=2&order=12", "order 12, but a sequence has 8", PF_EINVAL},
        {"synthetic:markov?vocab=4&tokens=7", "epoch of 7 tokens", PF_EINVAL},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pf_data_options options = options_for(cases[i].input, 8);
        refuses(&options, cases[i].code, cases[i].words);
    }
}

int main(void)
{
    scratch_begin();
    put_numbers("order.txt", 101 * 8);
    put_letters();
    a_mix_keeps_its_ratios_at_every_prefix();
    sources_of_a_mix_run_through_their_own_epochs();
    a_jump_in_a_mix_lands_where_walking_does();
    mixes_that_make_no_sense_are_refused();
    a_path_with_blanks_is_one_source();
    parts_of_a_split_are_disjoint_and_complete();
    splits_that_make_no_sense_are_refused();
    fixed_batches_come_in_file_order();
    fixed_batches_go_by_the_names_asked_for();
    fixed_batches_of_another_kind_are_refused();
    fixed_batches_of_hugging_face_fixtures();
    check_megatron("u16");
    check_megatron("i32");
    check_megatron("u16-modes");
    check_megatron("small");
    megatron_pairs_that_cannot_be_read_are_refused();
    the_entropy_of_a_chain_is_exact();
    a_chain_draws_what_it_defines();
    windows_of_a_chain_never_repeat();
    the_default_chain_is_far_from_noise();
    chains_that_make_no_sense_are_refused();
    scratch_end();
    return done();
}
