/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule.h - a pipeline schedule is data: for each stage a list of small steps over
 * (micro-batch, chunk).
 *
 * A generator makes the lists, one executor (lib/train) runs any list, one checker proves what a
 * list must hold, and one clock computes its bubble. Switching the schedule changes no bit of a
 * result: each chunk adds the gradients of its micro-batches in their order, whatever else lies
 * between.
 *
 *     const struct pf_schedule_options o = {.kind = PF_SCHEDULE_INTERLEAVED, .n_stages = 4,
 *                                           .vpp = 2, .n_micro = 16};
 *     struct pf_sched_facts facts[4];
 *     PF_TRY(pf_schedule_new(&o, &schedule));
 *     PF_TRY_GOTO(pf_schedule_check(schedule, facts), out);
 *     out: pf_schedule_free(schedule);
 *
 * STAGES AND CHUNKS. The layers are cut into n_chunks = n_stages * vpp chunks, numbered in the order
 * of the model as in pf/parallel.h. Chunk c lies on stage c mod n_stages and is the stage's
 * (c / n_stages)-th. With one stage and vpp above 1 all chunks lie on it; with vpp above 1 the last
 * stage sends its activations to the first.
 *
 * STEPS. FORWARD, BACKWARD, BACKWARD_INPUT and BACKWARD_WEIGHT compute; BACKWARD is the last two in
 * one. SEND_FWD and RECV_FWD carry activations from a chunk to the next one, SEND_BWD and RECV_BWD
 * gradients to the one before. The chunk of a message is the chunk of the stage whose list it is in:
 * SEND_FWD of chunk c meets RECV_FWD of chunk c + 1. Between two chunks of one stage there is no
 * message: the first writes the buffer that the second reads.
 *
 * LIVE SLOTS. What backward needs of forward lies in a slot of the stage. FORWARD names a free slot;
 * BACKWARD or BACKWARD_WEIGHT of the same micro-batch and chunk names it again and frees it at its
 * end. BACKWARD_INPUT leaves in it what BACKWARD_WEIGHT needs. Chunks of a stage share its slots, so
 * a slot is as large as the largest of them needs. In a forward-only schedule (EVAL) the slot is
 * free again at the end of FORWARD.
 *
 * BUFFERS. Each stage has a pool of forward buffers, each with room for what crosses a boundary
 * forwards, and a pool of backward buffers for gradients. FORWARD reads buffer `in` (the chunk's
 * input) and writes buffer `out` (its output) of the forward pool; BACKWARD and BACKWARD_INPUT read
 * `in` (the gradient of its output) and write `out` (that of its input) of the backward pool; -1
 * where the model begins or ends. At the end of a computing step `in` is free: what backward needs
 * of it has gone into the slot. A SEND reads `in`, a RECV writes `out`.
 *
 * MESSAGES do not block. A SEND or RECV posts its transfer and the list goes on. A buffer has at most
 * one transfer under way, and this is the only rule of waiting:
 *
 *     a computing step first waits for the transfers of the buffers `in` and `out` that it names;
 *     SEND and RECV wait for nothing; at the end of the list all transfers are waited for.
 *
 * so a receive is waited for by the step that needs its data, a send by the step that writes its
 * buffer anew. A transfer need not end before both sides have posted it: the checker's proof does
 * not rely on any buffering by the library. Between two stages there are two channels in each
 * direction, one for activations and one for gradients (two tags; two stages with vpp above 1 use
 * all four). In each channel messages are posted in the same order on both sides, so matching in
 * order of posting is unambiguous and a tag per channel is enough. The channels must proceed
 * independently of each other: MPI_Isend and MPI_Irecv do, so does a stream for each channel.
 *
 * A plain loop is therefore the whole executor:
 *
 *     for each step: if it computes { wait in; wait out; compute } else post
 *
 * The kinds of steps will be appended to (offloading, bubble hooks, segments of layers).
 *
 * Local, no I/O, deterministic: the same options give the same lists on every rank.
 */
#ifndef PF_SCHEDULE_H
#define PF_SCHEDULE_H

#include <stdbool.h>

struct pf_json;
struct pf_str;

/*
 * p stages, v chunks on each, m micro-batches, stage r:
 *
 * 1F1B           min(m, p-r-1) forwards, then a forward and a backward in turn, then the backwards
 *                left. v = 1. At most min(m, p-r) alive.
 *                Source: Narayanan et al. 2019, PipeDream-Flush (arXiv 2006.09503, section 2.2).
 * F_THEN_B       all forwards, then all backwards. m v alive.
 *                Source: Huang et al. 2018, GPipe (arXiv 1811.06965).
 * INTERLEAVED    micro-batches in groups of at least p; a group goes through all chunks of the stage
 *                before the next begins. 2(p-r-1) + (v-1)g forwards, g being the largest group, then
 *                1F1B. With p dividing m the groups are of p: Megatron-LM's order. Otherwise the rest
 *                is spread over the groups, for a group smaller than p would stall, and Megatron's
 *                order then deadlocks (p=4, v=3, m=5). m below p: one group. v = 1 gives 1F1B.
 *                Source: Narayanan et al. 2021 (arXiv 2104.04473, section 2.2); Megatron-LM
 *                schedules.py; PaddlePaddle also makes a group larger, the first.
 * ZERO_BUBBLE    ZB-H1: 1F1B with split backwards; the weight gradients of stage r follow r backwards
 *                behind. v = 1. At most min(m, p) alive on each stage.
 *                Source: Qi et al. 2023, Zero Bubble Pipeline Parallelism (arXiv 2401.10241, 2.2).
 * BALANCED       all micro-batches through a chunk before the next chunk: m(v-1) + min(m, p-r-1)
 *                forwards, then 1F1B. m(v-1) + min(m, p-r) alive: nearly the same on all stages, and
 *                less than F_THEN_B. v = 1 gives 1F1B. The first stage queues what comes back to it.
 *                Source: PaddlePaddle's VPPFhenBInBalancedMemory (best_unbalanced_scheduler).
 * EVAL           forwards alone, in the order of INTERLEAVED.
 *
 * The first four are values of the config key pipeline_schedule_mode, in its order.
 */
enum pf_schedule_kind {
    PF_SCHEDULE_1F1B,
    PF_SCHEDULE_F_THEN_B,
    PF_SCHEDULE_INTERLEAVED,
    PF_SCHEDULE_ZERO_BUBBLE,
    PF_SCHEDULE_BALANCED,
    PF_SCHEDULE_EVAL,
    PF_SCHEDULE_COUNT
};

/* "1F1B", "FThenB", "VPP", "ZBH1", "balanced", "eval". */
const char *pf_schedule_name(enum pf_schedule_kind kind);

enum pf_sched_kind {
    PF_SCHED_FORWARD,
    PF_SCHED_BACKWARD,
    PF_SCHED_BACKWARD_INPUT,
    PF_SCHED_BACKWARD_WEIGHT,
    PF_SCHED_SEND_FWD,
    PF_SCHED_RECV_FWD,
    PF_SCHED_SEND_BWD,
    PF_SCHED_RECV_BWD,
    PF_SCHED_KIND_COUNT
};

/* "forward", "backward", "backward_input", "backward_weight", "send_fwd", ... */
const char *pf_sched_kind_name(enum pf_sched_kind kind);

struct pf_sched_step {
    enum pf_sched_kind kind;
    int micro;   /* micro-batch, from 0 */
    int chunk;   /* of the whole model */
    int live;    /* computing steps: the slot of the activations; else -1 */
    int in, out; /* buffers of the pool of its direction; -1: none */
};

struct pf_sched_list {
    int n_steps;
    struct pf_sched_step *steps;
};

struct pf_schedule {
    int n_stages, vpp, n_micro;
    bool forward_only;
    struct pf_sched_list *stages; /* [n_stages] */
};

struct pf_schedule_options {
    enum pf_schedule_kind kind;
    int n_stages, vpp; /* vpp: chunks on each stage; 0 means 1 */
    int n_micro;
};

/* Most of (chunks of the model) * (micro-batches) in one schedule. */
#define PF_SCHEDULE_MAX_PIECES (1 << 24)

/*
 * Errors: PF_EINVAL for degrees or micro-batches below 1, for vpp above 1 with 1F1B or ZERO_BUBBLE,
 * for more than PF_SCHEDULE_MAX_PIECES; PF_ENOMEM.
 */
int pf_schedule_new(const struct pf_schedule_options *options, struct pf_schedule **schedule_out);
void pf_schedule_free(struct pf_schedule *schedule);

int pf_schedule_n_chunks(const struct pf_schedule *schedule);

/* The stage of a chunk of the model, from 0 to n_chunks - 1. */
int pf_schedule_stage_of(const struct pf_schedule *schedule, int chunk);

/* A message's other end: the stage that a SEND goes to or a RECV comes from. -1 for computing
 * steps. */
int pf_schedule_peer(const struct pf_schedule *schedule, const struct pf_sched_step *step);

/* What a stage must have to run its list. */
struct pf_sched_facts {
    int peak_live;   /* most (micro-batch, chunk) alive at once */
    int n_slots;     /* live slots used: 1 + the highest */
    int peak_split;  /* most that wait between BACKWARD_INPUT and BACKWARD_WEIGHT */
    int fwd_buffers; /* of the two pools: 1 + the highest */
    int bwd_buffers;
};

/*
 * Prove that a schedule can run and gives the agreed sums. Of each stage alone: every micro-batch has
 * in every chunk one forward and one whole backward (forward-only: none), in legal order; forwards,
 * backwards and weight gradients of a chunk each come in micro-batch order; no slot or buffer is
 * overwritten before its last use; each output is handed on and each input is there. Of all stages
 * together: in every channel both sides post the same messages in the same order, and the lists run
 * to their ends though no transfer ends before both sides posted it. A step's waiting depends on
 * nothing but posts, which only become more, so the one run that is tried stands for all orders in
 * which the stages may proceed.
 *
 * facts_out: [n_stages], set on success. Errors: PF_EINVAL with stage, step and fault ("schedule of
 * stage 1, step 4: ..."; steps from 0, n_steps for the end of the list); PF_ENOMEM.
 */
int pf_schedule_check(const struct pf_schedule *schedule, struct pf_sched_facts *facts_out);

/* Times in any unit. */
struct pf_sched_cost {
    double forward, backward, backward_input, backward_weight; /* 0 or more, not all 0 */
};

struct pf_sched_costs {
    const struct pf_sched_cost *chunks; /* [n_chunks] */
    double message;                     /* from the later of the two posts to the end */
};

/* When a step computes, or a message is posted (start = end). */
struct pf_sched_span {
    double start, end;
};

struct pf_sched_timeline {
    double total;  /* from 0 to the end of the last step */
    double bubble; /* part of n_stages * total in which no stage computes, 0..1 */
    int n_stages;
    double *busy;                 /* [n_stages] time that the stage computes */
    struct pf_sched_span **spans; /* [n_stages][n_steps] */
};

/*
 * When everything happens if each step starts as soon as its stage and its waits allow. With equal
 * costs of all chunks, B = I + W (gradients of inputs and of weights), and messages that take no
 * time, all m, p, v give
 *
 *     1F1B, F_THEN_B, INTERLEAVED, BALANCED   total = (F + B) (v max(m, p) + min(m, p) - 1)
 *     EVAL                                    the same with F alone
 *     ZERO_BUBBLE (W <= F, I)   total = m (F + B) + (p - 1)(F + I) - (min(m, p) - 1) W
 *
 * For m >= p these are the published bubbles: (p - 1)(F + B) over v m (F + B), and ZB-H1's
 * (p - 1)(F + I - W).
 * Source: arXiv 2104.04473 and 2401.10241. Errors: those of pf_schedule_check.
 */
int pf_schedule_time(const struct pf_schedule *schedule, const struct pf_sched_costs *costs,
                     struct pf_sched_timeline **timeline_out);
void pf_sched_timeline_free(struct pf_sched_timeline *timeline);

/* The bubble where all chunks cost the same, backward takes twice as long as forward, half of it for the
 * weights' gradients, and messages take no time. Errors as of pf_schedule_time. */
int pf_schedule_bubble(const struct pf_schedule *schedule, double *bubble_out);

/*
 * Which schedule a config asks for. Keys by PaddleFormers' names; pipeline_schedule_mode by
 * PaddlePaddle's (auto-parallel) names.
 */
struct pf_schedule_keys {
    enum pf_schedule_kind mode; /* pipeline_schedule_mode: 1F1B (the default), FThenB, VPP, ZBH1 */
    bool best_unbalanced_scheduler, split_backward, use_dualpipev,
        forward_backward_overlap_scheduler;
};

/*
 * Read them from a config, a JSON object; also as words of pipeline_parallel_config
 * ("enable_split_backward", "best_unbalanced_scheduler", "disable_..."). Other keys are not looked
 * at. PF_EUSAGE names the key and the line.
 */
int pf_schedule_read_keys(const struct pf_json *config, struct pf_schedule_keys *keys_out);

/*
 * The schedule of the keys where each stage has vpp chunks: best_unbalanced_scheduler is BALANCED,
 * split_backward is ZERO_BUBBLE, otherwise the mode decides, and 1F1B with several chunks is
 * INTERLEAVED. Errors: PF_EUSAGE where two keys ask for different schedules; PF_ENOTSUP for
 * use_dualpipev and forward_backward_overlap_scheduler.
 */
int pf_schedule_choose(const struct pf_schedule_keys *keys, int vpp,
                       enum pf_schedule_kind *kind_out);

struct pf_sched_style {
    int width;   /* characters of a line, at least 24 */
    bool colour; /* by ANSI escapes */
};

/*
 * Append a timeline as lines of text, a line for each stage from left to right in time. Where a
 * step is wide enough it carries its name: F, B, I (input gradients) or W (weight gradients), the
 * micro-batch, and with several chunks a letter for the stage's chunk ("F3b"); '.' is idle. What does
 * not fit in the width goes on in further blocks of lines; of long schedules an overview is drawn,
 * with a letter for each column and no numbers.
 */
int pf_schedule_draw(const struct pf_schedule *schedule, const struct pf_sched_timeline *timeline,
                     const struct pf_sched_style *style, struct pf_str *to);

/*
 * Append the timeline as an SVG document that stands alone: a row for each stage, a rectangle for
 * each computing step, with what it is and when as its tooltip.
 * Source: Scalable Vector Graphics 1.1, W3C.
 */
int pf_schedule_svg(const struct pf_schedule *schedule, const struct pf_sched_timeline *timeline,
                    const char *title, struct pf_str *to);

#endif
