/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data_internal.h - what lib/data's files share: the table of a source kind, and the mix.
 *
 * A source is a numbered set of sequences of one length. A kind implements struct pf_source_ops;
 * the front (data.c) owns everything that is common: splitting, shuffling, epochs, mixing, masks. A
 * kind whose sequences are windows of one long stream gives `tokens` and takes
 * pf_source_stream_sequence as its `sequence`.
 */
#ifndef PF_DATA_INTERNAL_H
#define PF_DATA_INTERNAL_H

#include <pf/data.h>

#include <stdbool.h>
#include <stdint.h>

struct pf_source;

struct pf_source_ops {
    const char *kind; /* a word, part of the digest */

    /* Sequence i into ids[seq] and targets[seq] (-1: does not count), ids checked against the
     * vocabulary. 0 <= i < n_windows, or any i >= 0 if endless. Allocates nothing. */
    int (*sequence)(struct pf_source *source, int64_t i, int32_t *ids, int32_t *targets);

    /* Tokens [first, first + n) of the stream, unchecked. NULL: the source is no stream. */
    int (*tokens)(struct pf_source *source, int64_t first, int64_t n, int32_t *tokens_out);

    /* The document [*first_out, *end_out), in tokens of the stream, that holds a token. NULL: each
     * sequence is one document. */
    void (*document)(const struct pf_source *source, int64_t token, int64_t *first_out,
                     int64_t *end_out);

    /* Free the source and what it owns except what struct pf_source says; never NULL. */
    void (*free)(struct pf_source *source);
};

/* The base of every source. The kinds' own structs have it as first member. */
struct pf_source {
    const struct pf_source_ops *ops;
    char *name;         /* as the user wrote it; owned, freed by pf_source_free */
    char *summary;      /* what it holds, for people; likewise */
    int32_t *scratch;   /* seq + 1 tokens; likewise */
    int64_t seq;        /* tokens in a sequence */
    int64_t vocab_size; /* ids must be below it */
    int64_t n_windows;  /* sequences of one epoch, before a split */
    int64_t n_tokens;   /* of the stream, or of all sequences */
    int64_t n_documents;
    int64_t group;  /* sequences that a split keeps together: B of fixed batches, else 1 */
    bool in_order;  /* never shuffled, never mixed: fixed batches */
    bool endless;   /* sequences beyond n_windows exist and are new */
    double entropy; /* nats a token; negative if unknown */
};

/* Open one source of each kind. */
int pf_text_open(const struct pf_data_options *options, const char *name,
                 struct pf_source **source_out);
int pf_megatron_open(const struct pf_data_options *options, const char *name,
                     struct pf_source **source_out);
int pf_fixed_open(const struct pf_data_options *options, const char *name,
                  struct pf_source **source_out);
int pf_markov_open(const struct pf_data_options *options, const char *name,
                   struct pf_source **source_out);

/* Set the base up: ops, name, seq, vocab_size, scratch; group 1, entropy unknown. On failure too,
 * the source can be given to pf_source_free. */
int pf_source_init(struct pf_source *source, const struct pf_source_ops *ops,
                   const struct pf_data_options *options, const char *name);
void pf_source_free(struct pf_source *source); /* NULL is fine */

/* Count the windows of a stream of n_tokens; PF_EINVAL if there is none. */
int pf_source_set_stream(struct pf_source *source, int64_t n_tokens, int64_t n_documents);

/* The `sequence` of stream kinds: window i holds tokens [i*seq, i*seq + seq]. */
int pf_source_stream_sequence(struct pf_source *source, int64_t i, int32_t *ids, int32_t *targets);

/* PF_EINVAL unless 0 <= id < vocab_size. `position` is for the message. */
int pf_source_check_id(const struct pf_source *source, int64_t id, int64_t position);

/*
 * Whose turn it is in a mix: position p belongs to the source with the largest deficit
 * weight*(p+1) - count (the lowest of equals), where count is what it had before p. A cursor walks
 * forward; marks at multiples of a stride, thinned out as the walk gets long, let it jump back.
 */
struct pf_mix {
    int n;
    double *weights;    /* normalised */
    int64_t *n_windows; /* of each source's epoch */
    int64_t *counts;    /* of the positions before `position` */
    int64_t position;   /* the cursor */
    int64_t *marks;     /* PF_MIX_MARKS rows of n counts; row j is at position j * stride */
    int64_t stride;     /* a power of two */
    int64_t n_marks;    /* rows in use, from row 0 */
    int64_t length;     /* what pf_mix_length found; 0 before */
};

#define PF_MIX_MARKS 1024

/* A mix of n sources with weights > 0 and epochs of n_windows > 0; both arrays are copied. */
int pf_mix_new(const double *weights, const int64_t *n_windows, int n, struct pf_mix **mix_out);
void pf_mix_free(struct pf_mix *mix); /* NULL is fine */

/* The source of a position >= 0, and how many earlier positions it had. Allocates nothing. */
void pf_mix_at(struct pf_mix *mix, int64_t position, int *source_out, int64_t *count_out);

/* Positions until every source has had an epoch. Found by walking there, or, where that may be more
 * than 2^28 positions, bounded from above by the largest (n_windows + 2) / weight. */
int64_t pf_mix_length(struct pf_mix *mix);

#endif
