/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Documents packed into windows against the same documents one at a time: losses of every token and
 * the sum of gradients, for every way in which families place and rotate positions, for windows cut
 * by hand (documents of 0, 1 and 2 tokens, whole tiles, odd ends) and for those that the data give.
 */
#include <pf/family.h>
#include <pf/json.h>
#include <pf/model.h>
#include <pf/reader.h>
#include <pf/rng.h>

#include "model_fixture.h"
#include "scratch.h"

#include <math.h>

enum { SEQ = 200, BATCH = 2, MAX_DOCUMENTS = 12 };

/* Sums of up to 200 terms in another order, in fp32. */
#define TOLERANCE_LOSS 1e-6 /* of a token's loss, relative to the largest */
#define TOLERANCE_GRAD 2e-6 /* relative L2 of all gradients */

static struct pf_ops *ops;

/* A model of one shape, and the buffers that all shapes of a family share. */
struct family {
    const char *name;
    struct pf_model_spec spec;
    struct pf_table *table;
    struct pf_placement *place;
    struct pf_layout *layout;
    float *params, *packed_grads, *separate_grads;
};

static void must(int err)
{
    if (err) {
        printf("Bail out! %s\n", pf_error_message());
        exit(1);
    }
}

static void family_init(const char *name, const struct pf_model_spec *spec, struct family *f)
{
    struct pf_parallel par;
    struct pf_mesh mesh;

    *f = (struct family){.name = name, .spec = *spec};
    pf_parallel_init(&par);
    must(pf_parallel_resolve(&par, &f->spec, 1, &mesh));
    must(pf_table_new(&f->spec, &mesh, &f->table));
    must(pf_placement_new(f->table, &par, &f->place));
    must(pf_layout_new(f->place, 0, &f->layout));
    f->params = pf_calloc_array((size_t)f->layout->param_elements, sizeof(float));
    f->packed_grads = pf_calloc_array((size_t)f->layout->grad_elements, sizeof(float));
    f->separate_grads = pf_calloc_array((size_t)f->layout->grad_elements, sizeof(float));
    pf_rng_fill_normal_f32(3, 0, 0, 0.3, 0.5, f->params, (size_t)f->layout->param_elements);
}

static void family_release(struct family *f)
{
    pf_free(f->params);
    pf_free(f->packed_grads);
    pf_free(f->separate_grads);
    pf_layout_free(f->layout);
    pf_placement_free(f->place);
    pf_table_free(f->table);
}

/* Forward and backward of a batch of that shape; gradients add up in grads. */
static void run_model(const struct family *f, int64_t batch, int64_t seq,
                      const struct pf_reader_batch *b, float *grads, float *token_loss)
{
    const struct pf_model_options options = {
        .batch = batch, .seq = seq, .n_live = 1, .train = true, .dtype = PF_DTYPE_F32};
    const struct pf_model_batch input = {.ids = b->ids,
                                         .targets = b->targets,
                                         .first_key = b->first_key,
                                         .positions = b->positions,
                                         .grad_scale = 1.0f};
    struct pf_model *model = NULL;

    must(pf_model_new(&f->spec, f->table, f->layout, ops, &options, &model));
    pf_model_bind(model, f->params, grads);
    must(pf_model_forward(model, 0, 0, &input, true, token_loss));
    must(pf_model_backward(model, 0, 0, &input));
    pf_model_free(model);
}

static double distance(const float *a, const float *b, int64_t n)
{
    double d = 0, norm = 0;

    for (int64_t i = 0; i < n; i++) {
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return norm > 0 ? sqrt(d / norm) : HUGE_VAL;
}

static bool predicts(const int32_t *targets, int n)
{
    for (int i = 0; i < n; i++) {
        if (targets[i] >= 0) {
            return true;
        }
    }
    return false;
}

/* Run the windows of a batch, and each run of one first_key in them that predicts something alone,
 * without a mask: the others, of one token or of padding, must have added nothing. */
static void compare(struct family *f, const struct pf_reader_batch *b, const char *what)
{
    static float packed[BATCH * SEQ], separate[SEQ];
    double worst = 0, largest = 0;
    int n_documents = 0, n_targets = 0;

    memset(f->packed_grads, 0, (size_t)f->layout->grad_elements * sizeof(float));
    memset(f->separate_grads, 0, (size_t)f->layout->grad_elements * sizeof(float));
    run_model(f, BATCH, SEQ, b, f->packed_grads, packed);
    for (int at = 0, end; at < BATCH * SEQ; at = end) {
        for (end = at + 1; end % SEQ != 0 && b->first_key[end] == b->first_key[at]; end++) {
        }
        if (!predicts(b->targets + at, end - at)) {
            continue;
        }
        const struct pf_reader_batch alone = {.ids = b->ids + at, .targets = b->targets + at};
        run_model(f, 1, end - at, &alone, f->separate_grads, separate);
        for (int s = at; s < end; s++) {
            worst = fmax(worst, fabs((double)packed[s] - separate[s - at]));
            largest = fmax(largest, separate[s - at]);
            n_targets += b->targets[s] >= 0;
        }
        n_documents++;
    }
    ok(n_targets > 0 && worst <= TOLERANCE_LOSS * largest,
       "r60_packed_as_separate: %s, %s: %d losses of %d documents, worst %.1e apart", f->name, what,
       n_targets, n_documents, worst / largest);
    const double d = distance(f->packed_grads, f->separate_grads, f->layout->grad_elements);
    ok(d <= TOLERANCE_GRAD, "r60_packed_as_separate: %s, %s: gradients, %.1e apart", f->name, what,
       d);
}

/* The same windows without masks and places are another thing: the claims above can fail. */
static void compare_unmasked(struct family *f, const struct pf_reader_batch *b)
{
    static float masked[BATCH * SEQ], unmasked[BATCH * SEQ];
    const struct pf_reader_batch plain = {.ids = b->ids, .targets = b->targets};
    double worst = 0;

    run_model(f, BATCH, SEQ, b, f->packed_grads, masked);
    run_model(f, BATCH, SEQ, &plain, f->packed_grads, unmasked);
    for (int i = 0; i < BATCH * SEQ; i++) {
        worst = fmax(worst, fabs((double)masked[i] - unmasked[i]));
    }
    ok(worst > 0.01, "r60_packed_as_separate: %s: without masks they are %.2f apart", f->name,
       worst);
}

/* Windows of documents of these lengths, of any tokens; what the lengths leave is padding. */
static void cut_by_hand(struct family *f, const int lengths[BATCH][MAX_DOCUMENTS], const char *what)
{
    static int32_t ids[BATCH * SEQ], targets[BATCH * SEQ], first_key[BATCH * SEQ],
        positions[BATCH * SEQ];
    const struct pf_reader_batch b = {
        .ids = ids, .targets = targets, .first_key = first_key, .positions = positions};

    for (int i = 0; i < BATCH * SEQ; i++) {
        ids[i] = (int32_t)pf_rng_bounded(9, 0, (uint64_t)i, (uint64_t)f->spec.vocab_size);
        targets[i] = -1;
        first_key[i] = i % SEQ;
        positions[i] = 0;
    }
    for (int w = 0; w < BATCH; w++) {
        for (int d = 0, at = 0; d < MAX_DOCUMENTS; at += lengths[w][d++]) {
            for (int k = 0; k < lengths[w][d]; k++) {
                const int i = w * SEQ + at + k;
                targets[i] = k + 1 < lengths[w][d] ? ids[i + 1] : -1;
                first_key[i] = at;
                positions[i] = k;
            }
        }
    }
    compare(f, &b, what);
    compare_unmasked(f, &b);
}

static void check_family(const char *name, const struct pf_model_spec *spec)
{
    static const int short_ones[BATCH][MAX_DOCUMENTS] = {{7, 1, 0, 16, 1, 1, 22, 2, 0, 31, 64, 55},
                                                         {0, 1, 63, 64, 65, 2, 0, 0, 1, 3}},
                     long_ones[BATCH][MAX_DOCUMENTS] = {{200}, {129, 71}};
    struct family f;

    family_init(name, spec, &f);
    cut_by_hand(&f, short_ones, "short documents, lengths 0 and 1 among them");
    cut_by_hand(&f, long_ones, "long documents");
    family_release(&f);
}

/* Documents of these many bytes in a .jsonl, packed by the data. */
static struct pf_data *open_packed(void)
{
    static const int lengths[] = {50, 0, 1, 120, 199, 450, 7, 33, 2, 80, 60, 14};
    const struct pf_data_options options = {.input = at("docs.jsonl"),
                                            .tokenizer = "bytes",
                                            .seq = SEQ,
                                            .vocab_size = 257,
                                            .seed = 5,
                                            .shuffle = true,
                                            .packing = true};
    struct pf_data *data = NULL;
    struct pf_str s;

    pf_str_init(&s);
    for (int d = 0; d < 12; d++) {
        pf_str_append(&s, "{\"text\":\"");
        for (int k = 0; k < lengths[d]; k++) {
            pf_str_append_char(&s, (char)('a' + pf_rng_bounded(1, (uint64_t)d, (uint64_t)k, 26)));
        }
        pf_str_append(&s, "\"}\n");
    }
    put_text(at("docs.jsonl"), s.text);
    pf_str_release(&s);
    must(pf_data_open(&options, &data));
    return data;
}

static void check_data(void)
{
    static const char text[] =
        "{\"model_type\":\"llama\",\"vocab_size\":257,\"hidden_size\":64,\"intermediate_size\":96,"
        "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
        "\"max_position_embeddings\":256}";
    const struct pf_reader_options options = {
        .seq = SEQ, .batch = BATCH, .n_micro = 1, .n_ranks = 1, .mask_documents = true};
    const struct pf_reader_batch *b;
    struct pf_json *doc = NULL;
    struct pf_model_spec spec;
    struct pf_reader *reader = NULL;
    struct pf_data *data = open_packed();
    struct family f;
    char what[64];

    must(pf_json_parse_text(text, sizeof text - 1, "model", &doc));
    must(pf_family_read_config(doc, &spec));
    pf_json_free(doc);
    family_init("llama of bytes", &spec, &f);
    must(pf_reader_new(data, &options, &reader));
    for (int64_t p = 0; p < pf_data_epoch_length(data); p += BATCH) {
        must(pf_reader_next(reader, p, &b));
        snprintf(what, sizeof what, "what data packed at %d", (int)p);
        compare(&f, b, what);
    }
    pf_reader_free(reader);
    pf_data_free(data);
    family_release(&f);
}

int main(void)
{
    static const char *const families[] = {"gpt2", "llama", "llama-tied", "qwen3", "ernie4_5"};

    must(pf_ops_open(&(struct pf_ops_options){.n_threads = 1}, &ops));
    scratch_make();
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        struct pf_model_spec spec = fixture_spec(families[i], "config.json");
        if (spec.max_positions < SEQ) {
            spec.max_positions = SEQ;
        }
        check_family(families[i], &spec);
    }
    check_data();
    scratch_remove();
    pf_ops_free(ops);
    return done();
}
