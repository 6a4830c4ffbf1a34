/* SPDX-License-Identifier: Apache-2.0 */
/* data.c - what stands at a position: sources, order, mixes, parts, and every refusal. */
#include <pf/data.h>

#include <pf/error.h>
#include <pf/file.h>
#include <pf/mem.h>
#include <pf/rng.h>
#include <pf/safetensors.h>
#include <pf/str.h>

#include "tap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_SEQ 64

static char scratch[] = "/tmp/pf-data-XXXXXX";

/* Helpers ------------------------------------------------------------------------------------- */

/* A path below the scratch directory; valid until the next but seven. */
static const char *at(const char *name)
{
    static char paths[8][256];
    static int next;
    char *const path = paths[next++ % 8];

    snprintf(path, sizeof paths[0], "%s/%s", scratch, name);
    return path;
}

static void put(const char *name, const char *text)
{
    if (pf_file_write_atomic(at(name), text, strlen(text)) != 0) {
        ok(false, "write %s: %s", name, pf_error_message());
    }
}

/* A text file of n bytes that never repeats a pair of neighbouring 4-byte groups soon. */
static void put_numbers(const char *name, int n)
{
    struct pf_str s;

    pf_str_init(&s);
    for (int i = 0; s.len < (size_t)n; i++) {
        pf_str_appendf(&s, "%06d ", i);
    }
    s.text[n] = '\0';
    put(name, s.text);
    pf_str_release(&s);
}

static struct pf_data_options options_for(const char *input, int64_t seq)
{
    return (struct pf_data_options){
        .input = input, .tokenizer = "bytes", .seq = seq, .vocab_size = 259, .seed = 42};
}

static struct pf_data *open_data(const struct pf_data_options *options)
{
    struct pf_data *data = NULL;

    if (pf_data_open(options, &data) != 0) {
        ok(false, "open '%s': %s", options->input, pf_error_message());
        printf("Bail out! no data\n");
        exit(1);
    }
    return data;
}

struct sequence {
    int32_t ids[MAX_SEQ], targets[MAX_SEQ], first_key[MAX_SEQ];
};

static struct sequence read_at(struct pf_data *data, int64_t position)
{
    struct sequence s;

    memset(&s, 0xee, sizeof s);
    if (pf_data_read(data, position, s.ids, s.targets, s.first_key) != 0) {
        ok(false, "read %lld: %s", (long long)position, pf_error_message());
    }
    return s;
}

static bool same(const struct sequence *a, const struct sequence *b, int64_t seq)
{
    const size_t n = (size_t)seq * sizeof(int32_t);

    return memcmp(a->ids, b->ids, n) == 0 && memcmp(a->targets, b->targets, n) == 0 &&
           memcmp(a->first_key, b->first_key, n) == 0;
}

/* Which window of a numbers file a sequence is: its bytes are found in the text. */
static int64_t window_of(const struct sequence *s, const char *text, int64_t seq)
{
    for (int64_t i = 0; text[i * seq]; i++) {
        bool equal = true;
        for (int64_t k = 0; k < seq && equal; k++) {
            equal = s->ids[k] == (unsigned char)text[i * seq + k];
        }
        if (equal) {
            return i;
        }
    }
    return -1;
}

static char *read_text(const char *name)
{
    char *text = NULL;
    size_t n;

    if (pf_file_read_all(at(name), 0, &text, &n) != 0) {
        ok(false, "read %s", name);
    }
    return text;
}

/* Opening must fail with that code and a message that has these words. */
static void refuses(const struct pf_data_options *options, int code, const char *words)
{
    struct pf_data *data = NULL;
    const int err = pf_data_open(options, &data);
    const bool right = err == code && !data && strstr(pf_error_message(), words);

    if (!ok(right, "'%s' is refused: %s", options->input ? options->input : "NULL", words)) {
        printf("# code %d, message: %s\n", err, pf_error_message());
    }
    pf_data_free(data);
}

static const char *fixture(const char *name)
{
    static const char *const roots[] = {"tests/fixtures", "../shared/fixtures"};
    static char path[256];

    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", roots[i], name);
        if (pf_path_exists(path)) {
            return path;
        }
    }
    return NULL;
}

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
    if (!mkdtemp(scratch)) {
        printf("Bail out! no scratch directory\n");
        return 1;
    }
    text_is_bytes_in_windows_that_overlap_by_one();
    a_folder_is_its_text_files_in_order_of_name();
    a_long_file_is_read_where_asked();
    each_line_of_a_jsonl_is_a_document();
    lines_that_hold_no_text_are_refused();
    r60_packing_holds_each_document_once_an_epoch();
    r60_packing_takes_the_first_window_with_room();
    r60_packed_order_is_a_function_of_the_seed_alone();
    r60_packing_respects_splits_and_mixes();
    r47_each_epoch_visits_every_window_once_in_its_own_order();
    r47_order_depends_on_the_seed();
    r47_a_read_does_not_depend_on_earlier_ones();
    r47_order_does_not_depend_on_ranks();
    r47_ranks_read_disjoint_windows_that_make_the_whole();
    r47_reading_allocates_nothing();
    r40_a_short_last_batch_counts_each_token_once();
    past_the_end_nothing_counts();
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
    inputs_that_cannot_be_read_are_refused();
    a_token_beyond_the_vocabulary_is_named();
    a_file_that_shrinks_is_an_error();
    the_digest_tells_what_decides_the_order();
    if (pf_rmtree(scratch) != 0) {
        printf("# %s stays behind\n", scratch);
    }
    return done();
}
