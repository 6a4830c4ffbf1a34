/* SPDX-License-Identifier: Apache-2.0 */
/* data.c - what stands at a position: text, order, the end, and every refusal. */
#include "data_test.h"

#include <pf/rng.h>

#include <math.h>

/* Text ---------------------------------------------------------------------------------------- */

static void text_is_bytes_in_windows_that_overlap_by_one(void)
{
    put("ten.txt", "abcdefghij");
    struct pf_data_options options = options_for(at("ten.txt"), 5);
    struct pf_data *data = open_data(&options);
    const struct sequence a = read_at(data, 0), b = read_at(data, 1);

    ok(pf_data_epoch_length(data) == 2, "ten bytes and an end of document are two windows of five");
    ok(a.ids[0] == 'a' && a.ids[4] == 'e' && a.targets[0] == 'b' && a.targets[4] == 'f',
       "a window predicts each next byte");
    ok(b.ids[0] == 'f' && b.targets[4] == 256, "token 256 ends the document");
    pf_data_free(data);
    options.vocab_size = 256;
    data = open_data(&options);
    ok(pf_data_epoch_length(data) == 1, "a vocabulary of 256 has no end of document");
    pf_data_free(data);
}

static void a_folder_is_its_text_files_in_order_of_name(void)
{
    pf_mkdirs(at("folder/sub.txt"));
    put("folder/b.md", "BBBB");
    put("folder/a.txt", "AA");
    put("folder/c.txt", "");
    put("folder/d.txt", "DDD");
    put("folder/other.bin", "xxxx");
    struct pf_data_options options = options_for(at("folder"), 6);
    options.mask_documents = true;
    struct pf_data *data = open_data(&options);
    const int32_t want[] = {'A', 'A', 256, 'B', 'B', 'B', 'B', 256, 256, 'D', 'D', 'D', 256};
    const int32_t want_keys[] = {0, 0, 0, 3, 3, 3, 0, 0, 2, 3, 3, 3};
    const int32_t want_next[] = {'A', 256, -1, 'B', 'B', 'B', 256, -1, -1, 'D', 'D', 256};
    bool ids = true, targets = true, keys = true;

    for (int p = 0; p < 2; p++) {
        const struct sequence s = read_at(data, p);
        for (int k = 0; k < 6; k++) {
            ids &= s.ids[k] == want[p * 6 + k];
            targets &= s.targets[k] == want_next[p * 6 + k];
            keys &= s.first_key[k] == want_keys[p * 6 + k];
        }
    }
    ok(ids, "files of a folder are documents in the order of their names");
    ok(targets, "with mask_documents the last token of a document predicts nothing");
    ok(keys, "with mask_documents a position sees no further back than its document");
    ok(strstr(pf_data_describe(data), "folder: 13 tokens, 4 documents"), "described: %s",
       pf_data_describe(data));
    pf_data_free(data);
    options.mask_documents = false;
    data = open_data(&options);
    const struct sequence s = read_at(data, 0);
    ok(s.first_key[5] == 0 && s.targets[2] == 'B', "without it a position sees the whole window");
    pf_data_free(data);
}

static void a_long_file_is_read_where_asked(void)
{
    put_numbers("long.txt", 70000);
    struct pf_data_options options = options_for(at("long.txt"), 50);
    struct pf_data *data = open_data(&options);
    char *text = read_text("long.txt");
    const struct sequence s = read_at(data, 1399), t = read_at(data, 3);

    ok(pf_data_epoch_length(data) == 1400 && window_of(&s, text, 50) == 1399 &&
           window_of(&t, text, 50) == 3 && s.targets[49] == 256,
       "any window of a file is read by its offset");
    pf_free(text);
    pf_data_free(data);
}

/* Lines --------------------------------------------------------------------------------------- */

static void each_line_of_a_jsonl_is_a_document(void)
{
    put("lines.jsonl", "{\"text\":\"AA\"}\n\n \t\r\n{\"id\":[1,{\"text\":2}], \"text\" : "
                       "\"B\\n\\u00e4\\ud83d\\ude00\"}\r\n{\"text\":\"\"}\n{\"text\":\"DD\"}");
    static const int32_t want[] = {'A',  'A',  256,  'B', '\n', 0xc3, 0xa4, 0xf0,
                                   0x9f, 0x98, 0x80, 256, 256,  'D',  'D',  256};
    struct pf_data_options options = options_for(at("lines.jsonl"), 3);
    struct pf_data *data = open_data(&options);
    bool right = pf_data_epoch_length(data) == 5;

    for (int64_t p = 0; p < 5; p++) {
        const struct sequence s = read_at(data, p);
        for (int k = 0; k < 3; k++) {
            right &= s.ids[k] == want[p * 3 + k] && s.targets[k] == want[p * 3 + k + 1];
        }
    }
    ok(right, "lines are documents, escapes are resolved, blank lines are passed over");
    ok(strstr(pf_data_describe(data), "lines.jsonl: 16 tokens, 4 documents"), "described: %s",
       pf_data_describe(data));
    pf_data_free(data);
}

static void lines_that_hold_no_text_are_refused(void)
{
    static const struct {
        const char *text, *words;
        int code;
    } cases[] = {
        {"{\"text\":\"a\"}\n\n{\"txt\":\"b\"}\n", "bad.jsonl': line 3 has no 'text'", PF_EFORMAT},
        {"{\"text\":\"a\"}\n{\"text\":\"b\"\n", "bad.jsonl': line 2 byte 11: expected ','",
         PF_EFORMAT},
        {"{\"text\":null}\n", "line 1 byte 8: expected a string", PF_EFORMAT},
        {"{\"text\":\"a\",\"text\":\"b\"}\n", "line 1 byte 19: 'text' stands twice", PF_EFORMAT},
        {"{\"text\":\"\xff\"}\n", "line 1 byte 9: not valid UTF-8", PF_EFORMAT},
        {"{\"text\":\"a\"}{}\n", "line 1 byte 12: text after the end", PF_EFORMAT},
        {"[]\n", "line 1 byte 0: expected an object", PF_EFORMAT},
        {"{\"messages\":[{\"role\":\"user\"}]}\n", "line 1 holds 'messages'", PF_ENOTSUP},
        {"\n\n", "holds 0 tokens", PF_EINVAL},
        {"", "holds 0 tokens", PF_EINVAL},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pf_data_options options = options_for(at("bad.jsonl"), 8);
        put("bad.jsonl", cases[i].text);
        refuses(&options, cases[i].code, cases[i].words);
    }
}

/* Order --------------------------------------------------------------------------------------- */

static void r47_each_epoch_visits_every_window_once_in_its_own_order(void)
{
    put_numbers("order.txt", 101 * 8);
    struct pf_data_options options = options_for(at("order.txt"), 8);
    options.shuffle = true;
    struct pf_data *data = open_data(&options);
    char *text = read_text("order.txt");
    int64_t order[2][101], n = pf_data_epoch_length(data);
    int seen[101] = {0}, moved = 0, differ = 0;

    for (int64_t p = 0; p < 2 * 101; p++) {
        const struct sequence s = read_at(data, p);
        order[p / 101][p % 101] = window_of(&s, text, 8);
    }
    for (int e = 0; e < 2; e++) {
        for (int i = 0; i < 101; i++) {
            seen[order[e][i]]++;
            moved += order[e][i] != i;
            differ += order[0][i] != order[1][i];
        }
    }
    bool twice = n == 101;
    for (int i = 0; i < 101; i++) {
        twice &= seen[i] == 2;
    }
    ok(twice, "r47: two epochs in a row both yield every window");
    ok(moved > 150 && differ > 150, "r47: the order is shuffled, and differs between epochs");
    pf_free(text);
    pf_data_free(data);
}

static void r47_order_depends_on_the_seed(void)
{
    struct pf_data_options options = options_for(at("order.txt"), 8), other = options;
    options.shuffle = other.shuffle = true;
    other.seed = 43;
    struct pf_data *a = open_data(&options), *b = open_data(&other);
    int differ = 0;

    for (int64_t p = 0; p < 101; p++) {
        const struct sequence s = read_at(a, p), t = read_at(b, p);
        differ += !same(&s, &t, 8);
    }
    ok(differ > 80, "r47: another seed gives another order");
    pf_data_free(a);
    pf_data_free(b);
}

static void r47_a_read_does_not_depend_on_earlier_ones(void)
{
    char input[600];
    snprintf(input, sizeof input, "0.6 %s 0.3 %s 0.1 synthetic:markov?vocab=8&order=1",
             at("order.txt"), at("long.txt"));
    struct pf_data_options options = options_for(input, 8);
    options.shuffle = true;
    struct pf_data *forward = open_data(&options), *anyhow = open_data(&options);
    static struct sequence sequences[3000];
    bool equal = true;

    for (int64_t p = 0; p < 3000; p++) {
        sequences[p] = read_at(forward, p);
    }
    for (uint64_t i = 0; i < 3000; i++) {
        const int64_t p = (int64_t)pf_rng_permute(7, 3000, i);
        const struct sequence s = read_at(anyhow, p);
        equal &= same(&s, &sequences[p], 8);
    }
    ok(equal, "r47: two handles agree at every position, in whatever order they are asked");
    pf_data_free(forward);
    pf_data_free(anyhow);
}

/* Deal the positions of a step to ranks and micro-batches as a trainer does: rank r of n takes the
 * r-th block of the global batch. Returns a hash for each step that ignores who read what, and
 * counts each window. */
static uint64_t deal_step(const struct pf_data_options *options, int n_ranks, int64_t step,
                          int64_t batch)
{
    static struct sequence sequences[24];
    const int64_t share = batch / n_ranks;

    for (int r = n_ranks - 1; r >= 0; r--) {
        struct pf_data *data = open_data(options);
        for (int64_t b = 0; b < share; b++) {
            const int64_t row = r * share + b;
            memset(&sequences[row], 0, sizeof sequences[row]);
            pf_data_read(data, step * batch + row, sequences[row].ids, sequences[row].targets,
                         NULL);
        }
        pf_data_free(data);
    }
    uint64_t hash = 1469598103934665603u;
    const unsigned char *bytes = (const unsigned char *)sequences;
    for (size_t i = 0; i < sizeof sequences[0] * (size_t)batch; i++) {
        hash = (hash ^ bytes[i]) * 1099511628211u;
    }
    return hash;
}

static void r47_order_does_not_depend_on_ranks(void)
{
    struct pf_data_options options = options_for(at("order.txt"), 8);
    options.shuffle = true;
    bool equal = true;

    for (int64_t step = 0; step < 10; step++) {
        const uint64_t one = deal_step(&options, 1, step, 24);
        for (int n = 2; n <= 8; n *= 2) {
            equal &= deal_step(&options, n, step, 24) == one;
        }
        equal &= deal_step(&options, 3, step, 24) == one;
    }
    ok(equal, "r47: 1, 2, 3, 4 and 8 ranks together read the same sequences at each step");
}

static void r47_ranks_read_disjoint_windows_that_make_the_whole(void)
{
    put_numbers("ranks.txt", 96 * 8);
    struct pf_data_options options = options_for(at("ranks.txt"), 8);
    options.shuffle = true;
    char *text = read_text("ranks.txt");
    int owner[96], n_twice = 0, n_missing = 0;

    memset(owner, -1, sizeof owner);
    for (int r = 0; r < 4; r++) {
        struct pf_data *data = open_data(&options);
        for (int64_t step = 0; step < 12; step++) {
            for (int64_t b = 0; b < 2; b++) {
                const struct sequence s = read_at(data, step * 8 + r * 2 + b);
                const int64_t window = window_of(&s, text, 8);
                n_twice += owner[window] >= 0;
                owner[window] = r;
            }
        }
        pf_data_free(data);
    }
    for (int i = 0; i < 96; i++) {
        n_missing += owner[i] < 0;
    }
    ok(n_twice == 0, "r47: over an epoch four ranks read disjoint windows");
    ok(n_missing == 0, "r47: and together they read all of them");
    pf_free(text);
}

static void r47_reading_allocates_nothing(void)
{
    char input[600];
    snprintf(input, sizeof input, "0.6 %s 0.4 synthetic:markov?vocab=8&order=1", at("order.txt"));
    struct pf_data_options options = options_for(input, 8);
    struct pf_data *data = open_data(&options);
    struct sequence s = read_at(data, 0);
    const int64_t before = pf_mem_n_allocs();

    for (int64_t p = 1; p < 500; p++) {
        s = read_at(data, p);
    }
    ok(pf_mem_n_allocs() == before && s.ids[0] >= 0, "r47: reading allocates nothing");
    pf_data_free(data);
}

/* The end ------------------------------------------------------------------------------------- */

/* Targets that count in an epoch and a quarter, and their weighted sum, read in whole batches. */
static void count_targets(const struct pf_data_options *options, int64_t batch, int64_t *n_out,
                          int64_t *sum_out)
{
    struct pf_data *data = open_data(options);

    *n_out = *sum_out = 0;
    for (int64_t step = 0; step * batch < 13; step++) {
        for (int64_t b = 0; b < batch; b++) {
            const struct sequence s = read_at(data, step * batch + b);
            for (int k = 0; k < 8; k++) {
                *n_out += s.targets[k] >= 0;
                *sum_out += s.targets[k] >= 0 ? s.targets[k] * (k + 1) : 0;
            }
        }
    }
    pf_data_free(data);
}

static void r40_a_short_last_batch_counts_each_token_once(void)
{
    put_numbers("ragged.txt", 10 * 8);
    struct pf_data_options options = options_for(at("ragged.txt"), 8);
    int64_t n, sum, n_one, sum_one;
    bool equal = true;

    options.shuffle = true;
    options.epochs = 1.25;
    count_targets(&options, 1, &n_one, &sum_one);
    for (int64_t batch = 2; batch <= 9; batch++) {
        count_targets(&options, batch, &n, &sum);
        equal &= n == n_one && sum == sum_one;
    }
    ok(n_one == 13 * 8, "r40: 1.25 epochs of ten windows are 13 sequences");
    ok(equal, "r40: with a short last batch the same targets count, whatever the batch size");
}

static void past_the_end_nothing_counts(void)
{
    struct pf_data_options options = options_for(at("ragged.txt"), 8);
    options.epochs = 1.0;
    struct pf_data *data = open_data(&options);
    const struct sequence last = read_at(data, 9), past = read_at(data, 10),
                          far = read_at(data, INT64_MAX);
    bool empty = true;

    for (int k = 0; k < 8; k++) {
        empty &= past.ids[k] == 0 && past.targets[k] == -1 && past.first_key[k] == 0;
        empty &= far.ids[k] == 0 && far.targets[k] == -1;
    }
    ok(last.targets[0] >= 0 && empty, "positions past the epochs have id 0 and no targets");
    ok(pf_data_read(data, -1, NULL, NULL, NULL) == PF_EINVAL, "a negative position is refused");
    pf_data_free(data);
}

/* Refusals and identity ----------------------------------------------------------------------- */

static void inputs_that_cannot_be_read_are_refused(void)
{
    put("short.txt", "abc");
    put("what.csv", "1,2\n");
    pf_mkdirs(at("empty"));
    struct pf_data_options options = options_for(at("short.txt"), 8);

    refuses(&options, PF_EINVAL, "holds 4 tokens, but one sequence needs 9");
    options.input = at("none.txt");
    refuses(&options, PF_EIO, "none.txt");
    options.input = at("none");
    refuses(&options, PF_EIO, "no such file");
    options.input = at("what.csv");
    refuses(&options, PF_EUSAGE, "cannot tell what");
    options.input = at("empty");
    refuses(&options, PF_EINVAL, "no .txt or .md file");
    options.input = at("order.txt");
    options.tokenizer = "some/tokenizer";
    refuses(&options, PF_ENOTSUP, "tokenizer 'some/tokenizer'");
    options.tokenizer = NULL;
    refuses(&options, PF_EUSAGE, "needs a tokenizer");
    options = options_for(at("order.txt"), 0);
    refuses(&options, PF_EINVAL, "sequence length 0");
    options = options_for(at("order.txt"), 8);
    options.vocab_size = 0;
    refuses(&options, PF_EINVAL, "vocab_size 0");
    options.vocab_size = 259;
    options.epochs = NAN;
    refuses(&options, PF_EINVAL, "number of epochs");
}

static void a_token_beyond_the_vocabulary_is_named(void)
{
    put("wide.txt", "aaaaaaaaaaaa\xc3\xa4"
                    "aaaaaaaaaaaaaaaaaa");
    struct pf_data_options options = options_for(at("wide.txt"), 5);
    options.vocab_size = 128;
    struct pf_data *data = open_data(&options);
    int32_t ids[5], targets[5];
    const int before = pf_data_read(data, 1, ids, targets, NULL);
    const int err = pf_data_read(data, 2, ids, targets, NULL);

    ok(before == 0 && err == PF_EINVAL &&
           strstr(pf_error_message(), "token id 195 at position 12 of '") &&
           strstr(pf_error_message(), "wide.txt' is not below vocab_size 128"),
       "a token beyond the vocabulary is named: %s", pf_error_message());
    pf_data_free(data);
}

static void a_file_that_shrinks_is_an_error(void)
{
    put_numbers("shrinks.txt", 800);
    struct pf_data_options options = options_for(at("shrinks.txt"), 8);
    struct pf_data *data = open_data(&options);
    int32_t ids[8], targets[8];
    const int cut = truncate(at("shrinks.txt"), 100);
    const int err = pf_data_read(data, 50, ids, targets, NULL);

    ok(cut == 0 && err == PF_EFORMAT, "a file that became shorter is an error, not zeros");
    pf_data_free(data);
}

static void digest_of(struct pf_data_options options, char *hex)
{
    struct pf_data *data = open_data(&options);

    pf_data_digest(data, hex);
    pf_data_free(data);
}

static void the_digest_tells_what_decides_the_order(void)
{
    char base[33], other[33];
    struct pf_data_options options = options_for(at("order.txt"), 8), changed;
    char *const path = pf_strdup(options.input);
    int equal = 0;

    options.input = path;
    digest_of(options, base);
    digest_of(options, other);
    ok(strlen(base) == 32 && strcmp(base, other) == 0, "equal options have equal digests");
    changed = options, changed.seed = 1;
    digest_of(changed, other), equal += strcmp(base, other) == 0;
    changed = options, changed.seq = 16;
    digest_of(changed, other), equal += strcmp(base, other) == 0;
    changed = options, changed.split = "9,1";
    digest_of(changed, other), equal += strcmp(base, other) == 0;
    changed = options, changed.shuffle = true;
    digest_of(changed, other), equal += strcmp(base, other) == 0;
    changed = options, changed.vocab_size = 256;
    digest_of(changed, other), equal += strcmp(base, other) == 0;
    changed = options, changed.input = at("ranks.txt");
    digest_of(changed, other), equal += strcmp(base, other) == 0;
    ok(equal == 0, "seed, length, split, shuffling, vocabulary's end and source change it");
    pf_mkdirs(at("moved"));
    put_numbers("moved/order.txt", 101 * 8);
    changed = options, changed.input = at("moved/order.txt");
    digest_of(changed, other);
    ok(strcmp(base, other) == 0, "the same file in another directory does not");
    pf_free(path);
}

int main(void)
{
    scratch_begin();
    text_is_bytes_in_windows_that_overlap_by_one();
    a_folder_is_its_text_files_in_order_of_name();
    a_long_file_is_read_where_asked();
    each_line_of_a_jsonl_is_a_document();
    lines_that_hold_no_text_are_refused();
    r47_each_epoch_visits_every_window_once_in_its_own_order();
    r47_order_depends_on_the_seed();
    r47_a_read_does_not_depend_on_earlier_ones();
    r47_order_does_not_depend_on_ranks();
    r47_ranks_read_disjoint_windows_that_make_the_whole();
    r47_reading_allocates_nothing();
    r40_a_short_last_batch_counts_each_token_once();
    past_the_end_nothing_counts();
    inputs_that_cannot_be_read_are_refused();
    a_token_beyond_the_vocabulary_is_named();
    a_file_that_shrinks_is_an_error();
    the_digest_tells_what_decides_the_order();
    scratch_end();
    return done();
}
