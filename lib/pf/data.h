/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data.h - token sources: which tokens stand at a global position.
 *
 * A training run consumes sequences number 0, 1, 2, ... (the position). What stands at a position is
 * a pure function of the options (sources, weights, seed, sequence length), never of the number of
 * ranks, of how far a run has come, or of an earlier read: so resuming needs the position alone, and
 * every layout sees the same order. The trainer deals positions to ranks and micro-batches.
 *
 * Sources, told by name (INTERFACE.md): .txt, .md or a folder of them (one document a file; tokens
 * are bytes); .bin/.idx (Megatron); .safetensors with fixed batches; synthetic:markov?...; or a mix
 * "0.7 a.bin 0.3 b.txt".
 *
 * Stream sources are cut into windows: window i of a source holds tokens [i*S, i*S+S] of its
 * documents laid end to end, so that window i predicts tokens i*S+1 ... i*S+S. An epoch visits every
 * window once, in an order drawn from (seed, epoch) by a keyed permutation; epochs follow each other
 * without a gap. Batches from .safetensors come in file order, whole.
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
    double epochs;         /* > 0: positions past the end are empty (all targets -1); <= 0: endless */
    const char *split;     /* "998,1,1" or NULL: everything is train. Parts are contiguous in the
                              windows of each source */
    enum pf_data_part part;
    bool shuffle;          /* false: windows in order (evaluation) */
    bool mask_documents;   /* tell first_key where documents start */
};

/*
 * Open all sources and check them (exist, readable, not shorter than one window, tokens in range
 * where that is cheap; a token id that is not below vocab_size is an error of the read that meets
 * it, naming source, position and id). Errors: PF_EUSAGE (unknown kind, bad mix), PF_EINVAL (too
 * short, fixed batches of another length), PF_EFORMAT, PF_EIO, PF_ENOTSUP (a kind that this build
 * does not read).
 */
int pf_data_open(const struct pf_data_options *options, struct pf_data **data_out);
void pf_data_free(struct pf_data *data);

/*
 * The sequence at a position: ids[S] and targets[S] (targets[s] is the token that position s
 * predicts, -1 where nothing counts), and first_key[S], the first position of the same document that
 * s may see (0 throughout unless mask_documents; may be NULL).
 */
int pf_data_read(struct pf_data *data, int64_t position, int32_t *ids, int32_t *targets,
                 int32_t *first_key);

/* Sequences in one epoch (of a mix: until every source has been seen once). */
int64_t pf_data_epoch_length(const struct pf_data *data);

/* Fixed batches: the global batch size B that the file demands, and how many steps it holds; 0 for
 * stream sources. */
int64_t pf_data_fixed_batch(const struct pf_data *data);
int64_t pf_data_fixed_steps(const struct pf_data *data);

/* One line for people about every source ("corpus.txt: 1.2 M tokens, 3 documents"); with the exact
 * entropy rate in nats for synthetic sources. Owned by data. */
const char *pf_data_describe(const struct pf_data *data);

/* Exact entropy rate in nats a token of a synthetic source, or a negative number. */
double pf_data_entropy(const struct pf_data *data);

/* Digest of everything that decides the order (sources' identity and size, seed, S, split): compared
 * on resume. hex_out has room for 33 bytes. */
void pf_data_digest(const struct pf_data *data, char *hex_out);

#endif
