/* SPDX-License-Identifier: Apache-2.0 */
/* The executor: runs this stage's list of any schedule (pf/schedule.h) on a model. */
#include "train_internal.h"

#include <pf/error.h>
#include <pf/mem.h>

#include <string.h>

/* Tags of the two channels between neighbouring stages. */
enum { TAG_ACTIVATIONS, TAG_GRADIENTS };

/* Buffers of one direction, and the transfer that each is part of. */
struct pool {
    int n, tag;
    char *memory;
    struct pf_comm_message *transfers; /* [n] */
};

struct train_pipe {
    struct pf_model *model;
    struct pf_comm *pp;
    const struct pf_schedule *schedule;
    const struct pf_sched_list *list; /* of this stage */
    size_t bytes;                     /* of what crosses a boundary */
    struct pool forward, backward;
    int *local; /* [chunks of the model] number of the chunk among this stage's */
};

static int pool_new(struct train_pipe *pipe, int n, int tag, struct pool *pool)
{
    *pool = (struct pool){.n = n, .tag = tag};
    pool->memory = pf_alloc((size_t)n * pipe->bytes + 1);
    pool->transfers = pf_calloc_array((size_t)n + 1, sizeof *pool->transfers);
    return pool->memory && pool->transfers ? 0 : PF_ENOMEM;
}

size_t train_pipe_bytes(const struct pf_sched_facts *facts, size_t boundary_bytes)
{
    return (size_t)(facts->fwd_buffers + facts->bwd_buffers) * boundary_bytes;
}

int train_pipe_new(struct pf_trainer *t, struct pf_model *model, const struct pf_schedule *schedule,
                   const struct pf_sched_facts *facts, struct train_pipe **pipe_out)
{
    const int stage = t->groups.stage, n_chunks = pf_schedule_n_chunks(schedule);
    struct train_pipe *const pipe = pf_alloc(sizeof *pipe);
    int n_mine = 0, err;

    if (!pipe) {
        return PF_ENOMEM;
    }
    *pipe = (struct train_pipe){.model = model,
                                .pp = t->groups.pp,
                                .schedule = schedule,
                                .list = &schedule->stages[stage],
                                .bytes = (size_t)(pf_model_n_rows(model) * t->spec.hidden) *
                                         pf_dtype_bytes(t->config->dtype)};
    pipe->local = pf_calloc_array((size_t)n_chunks, sizeof *pipe->local);
    err = pipe->local ? 0 : PF_ENOMEM;
    for (int c = 0; c < n_chunks && !err; c++) {
        pipe->local[c] = n_mine;
        n_mine += pf_schedule_stage_of(schedule, c) == stage;
    }
    err = err ? err : pool_new(pipe, facts->fwd_buffers, TAG_ACTIVATIONS, &pipe->forward);
    err = err ? err : pool_new(pipe, facts->bwd_buffers, TAG_GRADIENTS, &pipe->backward);
    if (err) {
        train_pipe_free(pipe);
        return err;
    }
    *pipe_out = pipe;
    return 0;
}

void train_pipe_free(struct train_pipe *pipe)
{
    if (pipe) {
        pf_free(pipe->forward.memory);
        pf_free(pipe->forward.transfers);
        pf_free(pipe->backward.memory);
        pf_free(pipe->backward.transfers);
        pf_free(pipe->local);
        pf_free(pipe);
    }
}

static void *buffer(const struct train_pipe *pipe, const struct pool *pool, int i)
{
    return i < 0 ? NULL : pool->memory + (size_t)i * pipe->bytes;
}

static int wait_for(struct pool *pool, int i)
{
    return i < 0 ? 0 : pf_comm_wait(&pool->transfers[i]);
}

/* Forward of a chunk: its input comes from a buffer into the slot, its output goes into another. */
static int forward(struct train_pipe *pipe, const struct pf_sched_step *step,
                   const struct train_pass *pass)
{
    const int chunk = pipe->local[step->chunk];
    void *const in = buffer(pipe, &pipe->forward, step->in), *const out = buffer(
                                                                 pipe, &pipe->forward, step->out);

    if (in) {
        memcpy(pf_model_input(pipe->model, step->live), in, pipe->bytes);
    }
    PF_TRY(pf_model_forward(pipe->model, chunk, step->live, &pass->batches[step->micro],
                            pass->with_grad, pass->token_loss));
    if (out) {
        memcpy(out, pf_model_output(pipe->model, chunk, step->live), pipe->bytes);
    }
    return pass->after_forward ? pass->after_forward(pass->context, step, chunk) : 0;
}

static int backward(struct train_pipe *pipe, const struct pf_sched_step *step,
                    const struct train_pass *pass)
{
    void *const in = buffer(pipe, &pipe->backward, step->in),
                *const out = buffer(pipe, &pipe->backward, step->out),
                *const gradient = pf_model_gradient(pipe->model);

    if (in) {
        memcpy(gradient, in, pipe->bytes);
    }
    PF_TRY(pf_model_backward(pipe->model, pipe->local[step->chunk], step->live,
                             &pass->batches[step->micro]));
    if (out) {
        memcpy(out, gradient, pipe->bytes);
    }
    return 0;
}

static int compute(struct train_pipe *pipe, const struct pf_sched_step *step, struct pool *pool,
                   const struct train_pass *pass)
{
    PF_TRY(wait_for(pool, step->in));
    PF_TRY(wait_for(pool, step->out));
    if (pass->before) {
        pass->before(pass->context, step);
    }
    switch (step->kind) {
    case PF_SCHED_FORWARD:
        return forward(pipe, step, pass);
    case PF_SCHED_BACKWARD_WEIGHT:
        return pf_model_backward_weights(pipe->model, pipe->local[step->chunk], step->live);
    default:
        return backward(pipe, step, pass);
    }
}

static int post(struct train_pipe *pipe, const struct pf_sched_step *step, struct pool *pool,
                bool sends)
{
    const int i = sends ? step->in : step->out, peer = pf_schedule_peer(pipe->schedule, step);
    void *const data = buffer(pipe, pool, i);

    return sends ? pf_comm_isend(pipe->pp, data, pipe->bytes, peer, pool->tag, &pool->transfers[i])
                 : pf_comm_irecv(pipe->pp, data, pipe->bytes, peer, pool->tag, &pool->transfers[i]);
}

static int run_step(struct train_pipe *pipe, const struct pf_sched_step *step,
                    const struct train_pass *pass)
{
    switch (step->kind) {
    case PF_SCHED_FORWARD:
        return compute(pipe, step, &pipe->forward, pass);
    case PF_SCHED_SEND_FWD:
    case PF_SCHED_RECV_FWD:
        return post(pipe, step, &pipe->forward, step->kind == PF_SCHED_SEND_FWD);
    case PF_SCHED_SEND_BWD:
    case PF_SCHED_RECV_BWD:
        return post(pipe, step, &pipe->backward, step->kind == PF_SCHED_SEND_BWD);
    default:
        return compute(pipe, step, &pipe->backward, pass);
    }
}

int train_pipe_run(struct train_pipe *pipe, const struct train_pass *pass)
{
    for (int i = 0; i < pipe->list->n_steps; i++) {
        PF_TRY(run_step(pipe, &pipe->list->steps[i], pass));
    }
    for (int i = 0; i < pipe->forward.n; i++) {
        PF_TRY(wait_for(&pipe->forward, i));
    }
    for (int i = 0; i < pipe->backward.n; i++) {
        PF_TRY(wait_for(&pipe->backward, i));
    }
    return 0;
}
