/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the model writes: at the steps of sample_steps and at the end the ranks that hold rank 0's model
 * let it continue sample_prompt, byte by byte. Each token takes one forward of a small model of its own,
 * of one sequence as long as the finished text (or the training sequence, which then slides along);
 * nothing is cached. The rank with the head draws a token and tells the others. Which one depends on the
 * weights, the seed and the step alone.
 */
#include "train_internal.h"

#include <pf/error.h>
#include <pf/log.h>
#include <pf/mem.h>
#include <pf/rng.h>
#include <pf/time.h>

#include <math.h>
#include <string.h>

struct sampler {
    struct pf_model *model;
    struct train_pipe *pipe;
    int drawer;             /* of the model's ranks, the one that draws */
    int32_t *ids, *targets; /* [seq] */
    float *token_loss;      /* [seq], of no interest */
    float *logits;          /* [V] */
    int64_t seq, n_context; /* tokens of ids that are set */
    struct pf_str bytes, text;
};

bool train_wants_sample(const struct pf_config *c)
{
    return c->sample_steps > 0 || c->sample_prompt;
}

/* A model must have something to continue. */
static const char *prompt_of(const struct pf_config *c)
{
    return c->sample_prompt && *c->sample_prompt ? c->sample_prompt : "\n";
}

int64_t train_sample_seq(const struct pf_trainer *t)
{
    const int64_t whole = (int64_t)strlen(prompt_of(t->config)) + t->config->sample_tokens - 1;

    return whole < t->config->max_seq_length ? whole : t->config->max_seq_length;
}

/* Of this rank's part of the model. One sequence need not be cut among tensor-parallel ranks. */
static struct pf_model_options model_options(const struct pf_trainer *t)
{
    struct pf_model_options options = {.batch = 1,
                                       .seq = train_sample_seq(t),
                                       .n_live = t->eval_facts.n_slots,
                                       .dtype = t->config->dtype};

    train_part_options(t, &options);
    options.sequence_parallel = false;
    return options;
}

int train_sample_bytes(const struct pf_trainer *t, const struct pf_model_chunk *chunks,
                       int n_chunks, const struct pf_sched_facts *facts, size_t *bytes_out)
{
    struct pf_model_options options = model_options(t);
    struct pf_model_plan plan = {0};

    *bytes_out = 0;
    if (!train_wants_sample(t->config)) {
        return 0;
    }
    options.chunks = chunks;
    options.n_chunks = n_chunks;
    options.n_live = facts->n_slots;
    PF_TRY(pf_model_plan(&t->spec, &options, &plan));
    *bytes_out = plan.activation_bytes + plan.work_bytes + plan.logits_bytes +
                 train_pipe_bytes(facts, (size_t)(options.seq * t->spec.hidden) *
                                             pf_dtype_bytes(options.dtype)) +
                 (size_t)(3 * options.seq + t->spec.vocab_size) * sizeof(float);
    return 0;
}

double train_sample_flops(const struct pf_trainer *t)
{
    return (double)t->config->sample_tokens *
           pf_model_step_flops(&t->spec, 1, train_sample_seq(t)) / 3;
}

static int check_prompt(const struct pf_trainer *t)
{
    for (const char *p = prompt_of(t->config); *p; p++) {
        if ((unsigned char)*p >= t->spec.vocab_size) {
            return pf_fail(PF_EINVAL,
                           "sample_prompt has byte %d, but the model's vocabulary is %lld tokens",
                           (int)(unsigned char)*p, (long long)t->spec.vocab_size);
        }
    }
    return 0;
}

/* The number, among the ranks of one model, of the first that has the head. */
static int find_drawer(const struct pf_trainer *t, int *drawer_out)
{
    const struct pf_mesh *const mesh = &t->table->mesh;
    int *const ranks = pf_calloc_array((size_t)pf_mesh_size(mesh), sizeof *ranks);
    int coord[PF_AXIS_COUNT], n = 0;

    if (!ranks) {
        return PF_ENOMEM;
    }
    pf_mesh_coords(mesh, pf_comm_rank(t->world), coord);
    coord[PF_AXIS_TP] = 0;
    coord[PF_AXIS_PP] = pf_parallel_stage_of(&t->par, t->par.degree[PF_AXIS_PP] * t->par.vpp - 1);
    const int drawer = pf_mesh_rank(mesh, coord);
    (void)pf_mesh_group(mesh, drawer, 1u << PF_AXIS_TP | 1u << PF_AXIS_PP, ranks);
    while (ranks[n] != drawer) {
        n++;
    }
    *drawer_out = n;
    pf_free(ranks);
    return 0;
}

static int make_model(struct pf_trainer *t, struct sampler *s)
{
    const struct pf_model_options options = model_options(t);

    s->seq = options.seq;
    PF_TRY(pf_model_new(&t->spec, t->table, t->layout, t->ops, &options, &s->model));
    pf_model_bind(s->model, train_weights(t), NULL);
    return train_pipe_new(t, s->model, t->eval_schedule, &t->eval_facts, &s->pipe);
}

int train_sample_new(struct pf_trainer *t)
{
    if (!train_wants_sample(t->config)) {
        return 0;
    }
    PF_TRY(check_prompt(t));
    if (t->dp_rank != 0) {
        return 0;
    }
    struct sampler *const s = pf_alloc(sizeof *s);
    if (!s) {
        return PF_ENOMEM;
    }
    t->sampler = s;
    pf_str_init(&s->bytes);
    pf_str_init(&s->text);
    PF_TRY(find_drawer(t, &s->drawer));
    PF_TRY(make_model(t, s));
    s->ids = pf_calloc_array((size_t)s->seq, sizeof *s->ids);
    s->targets = pf_calloc_array((size_t)s->seq, sizeof *s->targets);
    s->token_loss = pf_calloc_array((size_t)s->seq, sizeof *s->token_loss);
    s->logits = pf_calloc_array((size_t)t->spec.vocab_size, sizeof *s->logits);
    if (!s->ids || !s->targets || !s->token_loss || !s->logits) {
        return PF_ENOMEM;
    }
    memset(s->targets, 0xff, (size_t)s->seq * sizeof *s->targets); /* -1: no loss */
    return 0;
}

void train_sample_free(struct pf_trainer *t)
{
    struct sampler *const s = t->sampler;

    if (!s) {
        return;
    }
    train_pipe_free(s->pipe);
    pf_model_free(s->model);
    pf_free(s->ids);
    pf_free(s->targets);
    pf_free(s->token_loss);
    pf_free(s->logits);
    pf_str_release(&s->bytes);
    pf_str_release(&s->text);
    pf_free(s);
    t->sampler = NULL;
}

/* Add a token to what the model sees; the oldest leaves when there is no room. */
static void push(struct sampler *s, int32_t id)
{
    if (s->n_context == s->seq) {
        memmove(s->ids, s->ids + 1, (size_t)(s->seq - 1) * sizeof *s->ids);
        s->n_context--;
    }
    s->ids[s->n_context++] = id;
}

static int64_t most_likely(const float *logits, int64_t n)
{
    int64_t best = 0;

    for (int64_t i = 1; i < n; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}

/* The token at which the sum of exp(logit / temperature) passes a share u of the whole. */
static int64_t draw(const float *logits, int64_t n, double temperature, double u)
{
    const double top = logits[most_likely(logits, n)];
    double sum = 0, at = 0;
    int64_t last = 0;

    for (int64_t i = 0; i < n; i++) {
        sum += exp((logits[i] - top) / temperature);
    }
    for (int64_t i = 0; i < n; i++) {
        const double part = exp((logits[i] - top) / temperature);
        at += part;
        last = part > 0 ? i : last;
        if (at > u * sum) {
            return i;
        }
    }
    return last;
}

static int64_t choose(const struct pf_trainer *t, int64_t i)
{
    const uint64_t key = pf_rng_derive_name(t->config->seed, "sample");
    const double temperature = t->config->sample_temperature;
    const float *const logits = t->sampler->logits;
    const int64_t v = t->spec.vocab_size;

    return temperature == 0 ? most_likely(logits, v)
                            : draw(logits, v, temperature,
                                   pf_rng_uniform_f64(key, (uint64_t)t->step, (uint64_t)i));
}

/* What follows the context, where the head is. */
static int read_logits(void *context, const struct pf_sched_step *step, int chunk)
{
    struct pf_trainer *const t = context;
    struct sampler *const s = t->sampler;

    return train_has_head(t, chunk)
               ? pf_model_token_logits(s->model, step->live, s->n_context - 1, s->logits)
               : 0;
}

static int next_token(struct pf_trainer *t, int64_t i, int64_t *token_out)
{
    struct sampler *const s = t->sampler;
    const struct pf_model_batch batch = {.ids = s->ids, .targets = s->targets};
    const struct train_pass pass = {
        .batches = &batch, .token_loss = s->token_loss, .after_forward = read_logits, .context = t};
    int64_t token = 0;

    PF_TRY(train_pipe_run(s->pipe, &pass));
    if (pf_comm_rank(t->groups.model) == s->drawer) {
        token = choose(t, i);
    }
    PF_TRY(pf_comm_broadcast(t->groups.model, &token, sizeof token, s->drawer));
    *token_out = token;
    return 0;
}

/* Bytes as UTF-8: what is none becomes U+FFFD, and so does a zero. */
static int make_text(const struct pf_str *bytes, struct pf_str *text)
{
    const unsigned char *p = (const unsigned char *)bytes->text;
    size_t left = bytes->len;

    while (left > 0) {
        const size_t n = *p ? pf_utf8_length(p, left) : 0;
        pf_str_append_bytes(text, n ? (const char *)p : "\xef\xbf\xbd", n ? n : 3);
        p += n ? n : 1;
        left -= n ? n : 1;
    }
    return pf_str_error(text);
}

static int generate(struct pf_trainer *t, int64_t *n_tokens_out)
{
    struct sampler *const s = t->sampler;
    int64_t n = 0, token = 0;

    s->n_context = 0;
    memset(s->ids, 0, (size_t)s->seq * sizeof *s->ids);
    pf_str_clear(&s->bytes);
    pf_str_clear(&s->text);
    for (const char *p = prompt_of(t->config); *p; p++) {
        push(s, (unsigned char)*p);
    }
    for (; n < t->config->sample_tokens; n++) {
        PF_TRY(next_token(t, n, &token));
        if (token > 255) {
            break; /* the document ends */
        }
        PF_TRY(pf_str_append_char(&s->bytes, (char)token));
        push(s, (int32_t)token);
    }
    *n_tokens_out = n;
    return make_text(&s->bytes, &s->text);
}

/* Prompt and text as one, a line of the log for each of its lines. */
static int print_text(const struct pf_trainer *t)
{
    struct pf_str_list lines = {0};
    char *const whole = pf_asprintf("%s%s", prompt_of(t->config), t->sampler->text.text);
    int err = whole ? pf_str_split(whole, '\n', false, &lines) : PF_ENOMEM;

    pf_log_info0(NULL, "sample at step %lld", (long long)t->step);
    for (size_t i = 0; i < lines.n; i++) {
        pf_log_info0(NULL, "  | %s", lines.items[i]);
    }
    pf_str_list_release(&lines);
    pf_free(whole);
    return err;
}

int train_sample(struct pf_trainer *t)
{
    const double started = pf_time_monotonic();
    int64_t n_tokens;

    if (!t->sampler) {
        return 0;
    }
    train_mark(t, PHASE_SAMPLE);
    PF_TRY(generate(t, &n_tokens));
    PF_TRY(train_metrics_sample(t, prompt_of(t->config), t->sampler->text.text, n_tokens,
                                pf_time_monotonic() - started));
    return print_text(t);
}
