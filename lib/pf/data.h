/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data.h - token sources: which tokens stand at a global position.
 *
 * A training run consumes sequences number 0, 1, 2, ... (the position). What stands at a position
 * is a pure function of the options (sources, weights, seed, sequence length), never of the number
 * of ranks, of how far a run has come, or of an earlier read: so resuming needs the position alone,
 * and every layout sees the same order. The trainer deals positions to ranks and micro-batches.
 *
 * Sources, told by name (INTERFACE.md): .txt, .md or a folder of them (one document a file; tokens
 * are bytes); .jsonl (one document a line, pf/jsonl.h); .bin/.idx or their common prefix (Megatron); .safetensors with fixed batches; synthetic:markov?...; or a mix
 * "0.7 a.bin 0.3 b.txt" (names without blanks; an input that exists under its whole name is that
 * one source).
 *
 * Stream sources are cut into windows: window i of a source holds tokens [i*S, i*S+S] of its
 * documents laid end to end, so that window i predicts tokens i*S+1 ... i*S+S; what does not fill
 * a window at the end is never read. An epoch visits every window once, in an order drawn from
 * (seed, source, epoch) by a keyed permutation; epochs follow each other without a gap. Batches
 * from .safetensors come in file order, whole, again from the start after the last.
 *
 * Masks. With mask_documents a position sees its own document only, from where the window cuts into
 * it, and the last token of a document predicts nothing: that the next document follows is chance.
 *
 * Packing. Documents of stream sources are not laid end to end: in each epoch they are taken in an
 * order drawn from (seed, source, epoch), without `shuffle` as they lie in the source, and each goes
 * whole into the first window of S tokens that has room for it. One longer than S is cut every S
 * tokens, each piece a document of its own but that its last token still predicts the next one; one
 * of fewer than two tokens, which predicts nothing, is left out. What is left of a window holds id 0,
 * predicts nothing, and sees itself alone. The windows then come in an order drawn likewise. A
 * position is still a pure function of the options; epochs may differ in their number of windows. A
 * split cuts between documents. Other sources are as without packing: their sequences are documents.
 *
 * Text. Token = byte; the documents of a folder are its .txt and .md files in the byte order of
 * their names (folders inside it are not entered), those of a .jsonl its lines in turn. Where vocab_size is above 256, token 256 stands
 * after each document.
 *
 * Megatron. Sequences in the order of the index, as stored: what the file has as an end-of-document
 * token is a token like others. Documents are those of the index.
 *
 * Fixed batches. FILE.safetensors holds input_ids [steps,B,S] and labels; FILE.safetensors#P reads
 * P.input_ids and P.labels, #IDS,LABELS names both. I64 or I32; [B,S] is one step; without labels
 * they are the ids. Labels are not shifted in the file: targets[s] = labels[s+1], the last position
 * predicts nothing, -100 counts for nothing. Position step*B + b is row b of that step. They cannot
 * be part of a mix; a split cuts between steps.
 *
 * synthetic:markov?vocab=64&order=2&seed=1&tokens=1048576&stream=0 (the defaults): a Markov chain
 * of that order. In context c (the last `order` tokens as a number to the base vocab, the latest one
 * lowest) token t has the probability 15/16 * w_t / sum(w) + 1/16 / vocab, rounded to multiples of
 * 2^-32, where w_t = u^16 and u in (0,1] is 1 - pf_rng_uniform_f64(k, c, t) with k =
 * pf_rng_derive_name(seed, "markov chain"). Each window is a path of its own: its first `order` tokens are
 * drawn from the stationary distribution, the rest by the chain, as a function of (seed, stream,
 * window) alone, so another `stream` of the same chain is fresh data for evaluation. `tokens` is
 * only the length of an epoch: windows never repeat, the next epoch has new ones. Targets whose
 * context is not whole (the first order-1 positions of a window) are -1, so that the floor of the
 * loss is exactly the entropy rate. vocab^order <= 2^20, vocab^(order+1) <= 2^25 (128 MiB for the
 * table).
 *
 * Mixes. Weights are divided by their sum. Position p goes to the source with the largest deficit
 * w_i*(p+1) - count_i, the first of equals, where count_i is what source i has had before; a source
 * then gives its own sequence number count_i, in epochs of its own. So each prefix has the wanted
 * ratios to within one sequence for two or three sources, and about one for more. Going on costs
 * nothing; a jump costs time in proportion to the distance from the nearest of some remembered
 * positions (the first jump to position 10^8 of ten sources: a few seconds).
 *
 *     PF_TRY(pf_data_open(&options, &data));
 *     PF_TRY(pf_data_read(data, position, ids, targets, first_key));
 *     pf_data_free(data);
 *
 * Local functions; one thread at a time for one handle.
 */
#ifndef PF_DATA_H
#define PF_DATA_H

#include <stdbool.h>
#include <stdint.h>

struct pf_data;

enum pf_data_part { PF_DATA_TRAIN, PF_DATA_VALID, PF_DATA_TEST };

struct pf_data_options {
    const char *input;     /* one source, or weights and sources in turn */
    const char *tokenizer; /* "bytes"; needed by text */
    int64_t seq;           /* S, tokens that predict; > 0 */
    int64_t vocab_size;    /* ids must be below it */
    uint64_t seed;
    double epochs;     /* > 0: positions past the end are empty (all targets -1); <= 0: endless */
    const char *split; /* "998,1,1" or NULL: everything is train. Parts are contiguous in the
                          windows of each source */
    enum pf_data_part part;
    bool shuffle;        /* false: windows in order (evaluation) */
    bool mask_documents; /* keep each position to its document */
    bool packing;        /* whole documents in windows; mask_documents then holds, given or not */
};

/*
 * Open all sources and check them: exist, readable, not shorter than one window, tokens of the
 * first and last window in range; elsewhere a token id that is not below vocab_size is a PF_EINVAL
 * of the read that meets it, naming source, position and id. *options is not needed afterwards.
 * Errors: PF_EUSAGE (unknown kind, bad mix), PF_EINVAL (too short, fixed batches of another
 * length), PF_EFORMAT, PF_EIO, PF_ENOTSUP (a kind that this build does not read).
 */
int pf_data_open(const struct pf_data_options *options, struct pf_data **data_out);
void pf_data_free(struct pf_data *data);

/*
 * The sequence at a position: ids[S] and targets[S] (targets[s] is the token that position s
 * predicts, -1 where nothing counts), and first_key[S], the first position of the same document
 * that s may see (0 throughout unless mask_documents or packing; may be NULL). After a failure the
 * three hold anything.
 */
int pf_data_read(struct pf_data *data, int64_t position, int32_t *ids, int32_t *targets,
                 int32_t *first_key);

/* Positions that hold data, those before the end of the epochs asked for; INT64_MAX if endless. */
int64_t pf_data_n_positions(const struct pf_data *data);

/* Sequences in one epoch, packed the first (of a mix: until every source has been seen once; where that may be more
 * than 2^28 positions, an upper bound, the largest (n + 2) / w over the sources). The first call for
 * a mix walks through the epoch. */
int64_t pf_data_epoch_length(const struct pf_data *data);

/* Fixed batches: the global batch size B that the file demands, and how many steps it holds; 0 for
 * stream sources. */
int64_t pf_data_fixed_batch(const struct pf_data *data);
int64_t pf_data_fixed_steps(const struct pf_data *data);

/* One line for people about every source ("corpus.txt: 1.2 M tokens, 3 documents"); with the exact
 * entropy rate in nats for synthetic sources. Owned by data. */
const char *pf_data_describe(const struct pf_data *data);

/*
 * Exact entropy rate of a synthetic source in nats a token, or a negative number for any other
 * input (also for a mix): H = -sum_c pi(c) sum_t p(t|c) ln p(t|c), with the chain's probabilities
 * as they are sampled and its stationary distribution pi, found by power iteration until it moves
 * by less than 1e-13. No model can have a lower expected loss. Source: Cover and Thomas, Elements
 * of Information Theory, theorem 4.2.4.
 */
double pf_data_entropy(const struct pf_data *data);

/* Digest of everything that decides the order (of each source its kind, weight, base name, sizes
 * and the tokens of its first and last window; whether it is packed; seed, S, split, part, shuffle): compared on resume.
 * It does not change when data move to another directory. hex_out has room for 33 bytes. */
void pf_data_digest(const struct pf_data *data, char *hex_out);

#endif
