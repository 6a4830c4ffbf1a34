/* SPDX-License-Identifier: Apache-2.0 */
/* data_packing.c - documents put whole into windows: each once, in an order of the seed alone. */
#include "data_test.h"

#include <pf/rng.h>

/* Packing ------------------------------------------------------------------------------------- */

/* Document d of packed.jsonl: so many bytes, of which two and more tell which document it is. */
enum { N_PACKED = 40, PACK_SEQ = 16 };
static int packed_length(int d)
{
    static const int lengths[] = {5, 9, 0, 1, 16, 2, 40, 7, 3, 33, 11, 4, 15};

    return lengths[d % 13];
}

static int packed_byte(int d, int k)
{
    return k % 2 == 0 ? 'A' + d % 20 : 'a' + d / 20 + k / 2 % 8;
}

static void put_packed(void)
{
    struct pf_str s;

    pf_str_init(&s);
    for (int d = 0; d < N_PACKED; d++) {
        pf_str_append(&s, "{\"text\": \"");
        for (int k = 0; k < packed_length(d); k++) {
            pf_str_append_char(&s, (char)packed_byte(d, k));
        }
        pf_str_append(&s, "\"}\n");
    }
    put("packed.jsonl", s.text);
    pf_str_release(&s);
}

static struct pf_data_options packed_options(void)
{
    struct pf_data_options options = options_for(at("packed.jsonl"), PACK_SEQ);

    options.vocab_size = 256; /* no token ends a document: lengths 0 and 1 stay what they are */
    options.packing = true;
    return options;
}

/* Does the window hold, from `at` on and alone, the piece of document d that starts at byte `from`
 * and was not seen yet? Its length, or 0. */
static int piece_at(const struct sequence *s, int at, int d, int from, int seen[N_PACKED][40])
{
    const int left = packed_length(d) - from, n = left < PACK_SEQ ? left : PACK_SEQ;

    for (int k = 0; k < n; k++) {
        if (at + k >= PACK_SEQ || seen[d][from + k] || s->ids[at + k] != packed_byte(d, from + k) ||
            s->first_key[at + k] != at ||
            s->targets[at + k] != (k + 1 < left ? packed_byte(d, from + k + 1) : -1)) {
            return 0;
        }
    }
    return n >= 2 && (at + n == PACK_SEQ || s->first_key[at + n] == at + n) ? n : 0;
}

/* The same for any piece of any document; counts what is seen of it. */
static int find_piece(const struct sequence *s, int at, int seen[N_PACKED][40], int *n_targets)
{
    for (int d = 0; d < N_PACKED; d++) {
        for (int from = 0; from < packed_length(d); from += PACK_SEQ) {
            const int n = piece_at(s, at, d, from, seen);
            for (int k = 0; k < n; k++) {
                seen[d][from + k]++;
                *n_targets += s->targets[at + k] >= 0;
            }
            if (n > 0) {
                return n;
            }
        }
    }
    return 0;
}

/* Is a window pieces and then padding? */
static bool check_packed(const struct sequence *s, int seen[N_PACKED][40], int *n_targets)
{
    int at = 0, n;

    while (at < PACK_SEQ && (n = find_piece(s, at, seen, n_targets)) > 0) {
        at += n;
    }
    bool right = at > 0;
    for (int k = at; k < PACK_SEQ; k++) {
        right &= s->ids[k] == 0 && s->targets[k] == -1 && s->first_key[k] == k;
    }
    return right;
}

static void r60_packing_holds_each_document_once_an_epoch(void)
{
    put_packed();
    struct pf_data_options options = packed_options();
    options.shuffle = true;
    options.epochs = 3.0;
    struct pf_data *data = open_data(&options), *first = NULL;
    int64_t p = 0;
    bool whole = true, right = true;
    int n_want = 0;

    for (int d = 0; d < N_PACKED; d++) {
        n_want += packed_length(d) > 1 ? packed_length(d) - 1 : 0;
    }
    for (int epoch = 0; epoch < 3; epoch++) {
        static int seen[N_PACKED][40];
        int n_targets = 0;
        memset(seen, 0, sizeof seen);
        while (n_targets < n_want && right) {
            const struct sequence s = read_at(data, p++);
            right &= check_packed(&s, seen, &n_targets);
        }
        whole &= n_targets == n_want;
    }
    ok(right, "r60_packing: windows are whole documents, none seen from another, and padding");
    ok(whole && p == pf_data_n_positions(data),
       "r60_packing: each token is predicted once an epoch, in %lld windows of three epochs",
       (long long)p);
    const struct sequence past = read_at(data, p);
    ok(past.targets[0] == -1 && past.targets[PACK_SEQ - 1] == -1,
       "r60_packing: and after the last epoch nothing counts");
    pf_data_free(data);
    options.epochs = 1.0;
    first = open_data(&options);
    ok(strstr(pf_data_describe(first), "packed into "), "described: %s", pf_data_describe(first));
    pf_data_free(first);
}

static void r60_packing_takes_the_first_window_with_room(void)
{
    put("fit.jsonl", "{\"text\":\"aaaaa\"}\n{\"text\":\"bbbb\"}\n{\"text\":\"cc\"}\n"
                     "{\"text\":\"ddd\"}\n{\"text\":\"eeeeeeeeee\"}\n{\"text\":\"f\"}\n");
    static const char want[4][9] = {"aaaaacc", "bbbbddd", "eeeeeeee", "ee"};
    struct pf_data_options options = options_for(at("fit.jsonl"), 8);
    options.vocab_size = 256;
    options.packing = true;
    struct pf_data *data = open_data(&options);
    bool right = pf_data_epoch_length(data) == 4;

    for (int64_t p = 0; p < 8; p++) {
        const struct sequence s = read_at(data, p);
        for (int k = 0; k < 8; k++) {
            right &= s.ids[k] == want[p % 4][k];
        }
        right &= p % 4 != 2 || s.targets[7] == 'e';
    }
    ok(right, "r60_packing: without shuffle documents go in their order to the first window that "
              "has room");
    pf_data_free(data);
}

static void r60_packed_order_is_a_function_of_the_seed_alone(void)
{
    struct pf_data_options options = packed_options();
    options.shuffle = true;
    struct pf_data *a = open_data(&options), *b = open_data(&options);
    static struct sequence s[400];
    bool equal = true;
    int differ = 0, moved = 0;

    for (int64_t p = 0; p < 400; p++) {
        s[p] = read_at(a, p);
    }
    const int64_t before = pf_mem_n_allocs();
    for (uint64_t i = 0; i < 400; i++) {
        const int64_t p = (int64_t)pf_rng_permute(7, 400, i);
        const struct sequence t = read_at(b, p);
        equal &= same(&t, &s[p], PACK_SEQ);
    }
    ok(equal, "r60_packing: a read does not depend on earlier ones, 20 epochs up and down");
    ok(pf_mem_n_allocs() == before, "r60_packing: reading allocates nothing");
    pf_data_free(b);
    options.seed = 43;
    b = open_data(&options);
    const int64_t n = pf_data_epoch_length(a);
    for (int64_t p = 0; p < n; p++) {
        const struct sequence t = read_at(b, p);
        differ += !same(&t, &s[p], PACK_SEQ);
        moved += !same(&s[n + p], &s[p], PACK_SEQ);
    }
    ok(differ > n / 2 && moved > n / 2, "r60_packing: another seed, and another epoch, differ");
    pf_data_free(a);
    pf_data_free(b);
}

static void r60_packing_respects_splits_and_mixes(void)
{
    struct pf_data_options options = packed_options();
    static int seen[N_PACKED][40];
    int n_targets = 0;
    bool right = true;
    char input[600];

    memset(seen, 0, sizeof seen);
    options.split = "3,1";
    for (int part = 0; part < 2; part++) {
        options.part = (enum pf_data_part)part;
        struct pf_data *data = open_data(&options);
        for (int64_t p = 0; p < pf_data_epoch_length(data); p++) {
            const struct sequence s = read_at(data, p);
            right &= check_packed(&s, seen, &n_targets);
        }
        right &= seen[30][0] == part && seen[27][0] == 1;
        pf_data_free(data);
    }
    ok(right, "r60_packing: a split cuts between documents");
    snprintf(input, sizeof input, "0.5 %s 0.5 synthetic:markov?vocab=8&order=1", options.input);
    options.input = input;
    options.split = NULL;
    options.part = PF_DATA_TRAIN;
    struct pf_data *data = open_data(&options);
    const struct sequence a = read_at(data, 0), b = read_at(data, 1);
    ok(a.ids[0] == 'A' && b.ids[0] < 8 && b.targets[PACK_SEQ - 1] >= 0 &&
           b.first_key[PACK_SEQ - 1] == 0,
       "r60_packing: sources of a mix are packed each for itself, sequences stay as they are");
    pf_data_free(data);
    put("single.jsonl", "{\"text\":\"a\"}\n{\"text\":\"\"}\n");
    options.input = at("single.jsonl");
    refuses(&options, PF_EINVAL, "no documents of two tokens or more");
}

int main(void)
{
    scratch_begin();
    r60_packing_holds_each_document_once_an_epoch();
    r60_packing_takes_the_first_window_with_room();
    r60_packed_order_is_a_function_of_the_seed_alone();
    r60_packing_respects_splits_and_mixes();
    scratch_end();
    return done();
}
