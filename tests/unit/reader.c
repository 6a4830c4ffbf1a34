/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader.c - a thread that reads ahead changes nothing but the time: order, bits, errors, skips.
 * Also built with -fsanitize=thread (make check-threads): nothing here runs OpenMP.
 */
#include <pf/reader.h>

#include <pf/error.h>
#include <pf/str.h>

#include "scratch.h"
#include "tap.h"

enum { SEQ = 8, BATCH = 2, N_MICRO = 3, N_RANKS = 2, STRIDE = BATCH * N_MICRO * N_RANKS };

static const char *const inputs[] = {"lines.jsonl", "numbers.txt"};

static void put_inputs(void)
{
    struct pf_str s;

    pf_str_init(&s);
    for (int i = 0; i < 300; i++) {
        pf_str_appendf(&s, "{\"text\":\"%0*d\\n\"}\n", i % 23, i);
    }
    put_text(at("lines.jsonl"), s.text);
    pf_str_clear(&s);
    for (int i = 0; i < 300; i++) {
        pf_str_appendf(&s, "%05d\n", i);
    }
    put_text(at("numbers.txt"), s.text);
    pf_str_release(&s);
}

static struct pf_data *open_data(const char *input, bool packing, int64_t vocab_size)
{
    struct pf_data *data = NULL;
    const struct pf_data_options options = {.input = input,
                                            .tokenizer = "bytes",
                                            .seq = SEQ,
                                            .vocab_size = vocab_size,
                                            .seed = 1,
                                            .shuffle = packing,
                                            .mask_documents = true,
                                            .packing = packing};

    if (pf_data_open(&options, &data) != 0) {
        printf("Bail out! '%s': %s\n", input, pf_error_message());
        exit(1);
    }
    return data;
}

static struct pf_reader *open_reader(struct pf_data *data, int rank, int64_t n_ahead)
{
    struct pf_reader *reader = NULL;
    const struct pf_reader_options options = {.seq = SEQ,
                                              .batch = BATCH,
                                              .n_micro = N_MICRO,
                                              .rank = rank,
                                              .n_ranks = N_RANKS,
                                              .mask_documents = true,
                                              .n_ahead = n_ahead};

    if (pf_reader_new(data, &options, &reader) != 0) {
        printf("Bail out! no reader: %s\n", pf_error_message());
        exit(1);
    }
    return reader;
}

/* Are the micro-batches what stands at the positions that the header deals to the rank? */
static bool is_dealt(struct pf_data *data, const struct pf_reader_batch *b, int64_t first, int rank)
{
    bool right = true;

    for (int64_t m = 0; m < N_MICRO; m++) {
        const int64_t from = first + (m * N_RANKS + rank) * BATCH;
        int64_t n_targets = 0;
        right &= b[m].first_sequence == from;
        for (int64_t i = 0; i < BATCH; i++) {
            int32_t ids[SEQ], targets[SEQ], first_key[SEQ];
            right &= pf_data_read(data, from + i, ids, targets, first_key) == 0;
            right &= memcmp(ids, b[m].ids + i * SEQ, sizeof ids) == 0;
            right &= memcmp(targets, b[m].targets + i * SEQ, sizeof targets) == 0;
            right &= memcmp(first_key, b[m].first_key + i * SEQ, sizeof first_key) == 0;
            for (int32_t s = 0; s < SEQ; s++) {
                n_targets += targets[s] >= 0;
                right &= b[m].positions[i * SEQ + s] == s - first_key[s];
            }
        }
        right &= b[m].n_targets == n_targets;
    }
    return right;
}

static void read_ahead(const char *name, int64_t n_ahead)
{
    const struct pf_reader_batch *b;
    bool right = true;

    for (int rank = 0; rank < N_RANKS; rank++) {
        struct pf_data *data = open_data(at("%s", name), true, 300),
                       *alone = open_data(at("%s", name), true, 300);
        struct pf_reader *reader = open_reader(data, rank, n_ahead);
        right &= pf_reader_start(reader, 5 * STRIDE, 150 * STRIDE) == 0;
        const int64_t before = pf_mem_n_allocs();
        for (int64_t step = 5; step < 150; step++) {
            right &= pf_reader_next(reader, step * STRIDE, &b) == 0 &&
                     is_dealt(alone, b, step * STRIDE, rank);
        }
        ok(pf_mem_n_allocs() == before, "%s, %lld ahead: a step allocates nothing", name,
           (long long)n_ahead);
        pf_reader_free(reader);
        pf_data_free(data);
        pf_data_free(alone);
    }
    ok(right, "%s, %lld ahead: each rank gets its share, in order", name, (long long)n_ahead);
}

/* Steps left out, asked for again, and beyond the end that was told. */
static void steps_out_of_order_are_found(int64_t n_ahead)
{
    static const int64_t steps[] = {0, 1, 2, 9, 10, 30, 29, 29, 3, 4, 40, 0, 41, 42, 39};
    struct pf_data *data = open_data(at("numbers.txt"), true, 300),
                   *alone = open_data(at("numbers.txt"), true, 300);
    struct pf_reader *reader = open_reader(data, 1, n_ahead);
    const struct pf_reader_batch *b;
    bool right = pf_reader_start(reader, 0, 40 * STRIDE) == 0;

    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        right &= pf_reader_next(reader, steps[i] * STRIDE, &b) == 0 &&
                 is_dealt(alone, b, steps[i] * STRIDE, 1);
    }
    ok(right, "%lld ahead: skipped and repeated steps are found", (long long)n_ahead);
    pf_reader_free(reader);
    pf_data_free(data);
    pf_data_free(alone);
}

/* 0xc3 stands in window 100 of rank 0's micro-batch 1 of step 8. */
static void a_fault_is_told_by_its_step_alone(int64_t n_ahead)
{
    char text[2401];
    const struct pf_reader_batch *b;
    int err[12] = {0};

    memset(text, 'a', 2400);
    text[2400] = '\0';
    text[100 * SEQ + 3] = (char)0xc3;
    put_text(at("wide.txt"), text);
    struct pf_data *data = open_data(at("wide.txt"), false, 128);
    struct pf_reader *reader = open_reader(data, 0, n_ahead);
    int started = pf_reader_start(reader, 0, 12 * STRIDE);
    for (int64_t step = 0; step < 12; step++) {
        err[step] = pf_reader_next(reader, step * STRIDE, &b);
        if (step == 8) {
            ok(err[8] == PF_EINVAL && strstr(pf_error_message(), "token id 195 at position 803"),
               "%lld ahead: the fault is told by the step that needs the data: %s",
               (long long)n_ahead, pf_error_message());
        }
        started |= step == 8 ? 0 : err[step];
    }
    ok(started == 0, "%lld ahead: and by no other", (long long)n_ahead);
    const int again = pf_reader_next(reader, 7 * STRIDE, &b);
    ok(again == 0, "%lld ahead: what can be read is read after it", (long long)n_ahead);
    pf_reader_free(reader);
    pf_data_free(data);
}

static void a_reader_ends_at_any_time(void)
{
    struct pf_data *data = open_data(at("numbers.txt"), true, 300);
    const struct pf_reader_batch *b;
    bool right = true;

    for (int i = 0; i < 60; i++) {
        struct pf_reader *reader = open_reader(data, 0, 1 + i % 4);
        right &= pf_reader_start(reader, i, INT64_MAX) == 0;
        for (int k = 0; k < i % 5; k++) {
            right &= pf_reader_next(reader, i + k * STRIDE, &b) == 0;
        }
        pf_reader_free(reader);
    }
    struct pf_reader *idle = open_reader(data, 0, 2);
    pf_reader_free(idle);
    pf_reader_free(NULL);
    ok(right, "a reader ends whenever it is freed, started or not");
    pf_data_free(data);
}

static void memory_is_as_told(void)
{
    const struct pf_reader_options options = {
        .seq = 100, .batch = 3, .n_micro = 2, .n_ranks = 1, .mask_documents = true, .n_ahead = 4};

    ok(pf_reader_bytes(&options) == 100 * 3 * 2 * 4 * 5 * sizeof(int32_t),
       "the bytes are those of one step and the steps ahead");
}

int main(void)
{
    scratch_make();
    put_inputs();
    for (int i = 0; i < 2; i++) {
        read_ahead(inputs[i], 0);
        read_ahead(inputs[i], 1);
        read_ahead(inputs[i], 3);
    }
    for (int64_t n_ahead = 0; n_ahead < 4; n_ahead++) {
        steps_out_of_order_are_found(n_ahead);
        a_fault_is_told_by_its_step_alone(n_ahead);
    }
    a_reader_ends_at_any_time();
    memory_is_as_told();
    scratch_remove();
    return done();
}
