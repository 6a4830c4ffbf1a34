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
#include <stddef.h>
#include <stdint.h>

struct pf_source;

struct pf_source_ops {
    const char *kind; /* a word, part of the digest */

    /* Sequence i into ids[seq] and targets[seq] (-1: does not count), ids checked against the
     * vocabulary. 0 <= i < n_windows, or any i >= 0 if endless. Allocates nothing. */
    int (*sequence)(struct pf_source *source, int64_t i, int32_t *ids, int32_t *targets);

    /* Tokens [first, first + n) of the stream, unchecked. NULL: the source is no stream. */
    int (*tokens)(struct pf_source *source, int64_t first, int64_t n, int32_t *tokens_out);

    /* Document d of n_documents is the tokens [*first_out, *end_out) of the stream; it may be empty,
     * and starts where the one before it ends. NULL: each sequence is one document. */
    void (*document)(const struct pf_source *source, int64_t d, int64_t *first_out,
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
    bool packs;     /* its documents are to be packed: it may be shorter than a window */
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
int pf_jsonl_source_open(const struct pf_data_options *options, const char *name,
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

/* The document that holds a token of a stream, which has a `document`. */
void pf_source_document_at(const struct pf_source *source, int64_t token, int64_t *first_out,
                           int64_t *end_out);

/*
 * A stream of documents that are bytes: token = byte, and where the vocabulary has room token 256
 * after each document. The kinds' own structs have it as first member and give `start` and `read`;
 * pf_bytes_init checks the tokenizer and sets up all but those two, pf_bytes_set_stream counts.
 */
struct pf_bytes {
    struct pf_source base;
    int64_t n_documents;
    int64_t eod; /* tokens after a document's bytes: 1, or 0 where the vocabulary has no room */

    /* Bytes of the documents before document d; d may be n_documents. */
    int64_t (*start)(const struct pf_bytes *bytes, int64_t d);

    /* Bytes [offset, offset + n) of document d, which has them. Allocates nothing. */
    int (*read)(struct pf_bytes *bytes, int64_t d, int64_t offset, size_t n, unsigned char *to);
};

int pf_bytes_init(struct pf_bytes *bytes, const struct pf_source_ops *ops,
                  const struct pf_data_options *options, const char *name);
int pf_bytes_set_stream(struct pf_bytes *bytes);
int pf_bytes_tokens(struct pf_source *source, int64_t first, int64_t n, int32_t *tokens_out);
void pf_bytes_document(const struct pf_source *source, int64_t d, int64_t *first_out,
                       int64_t *end_out);

/* PF_EINVAL unless 0 <= id < vocab_size. `position` is for the message. */
int pf_source_check_id(const struct pf_source *source, int64_t id, int64_t position);

/*
 * Packing: documents [lo, hi) of a source in windows of seq tokens. A document longer than seq is cut
 * into pieces of seq; what predicts nothing, fewer than two tokens, is left out. In each epoch the
 * pieces are taken in an order drawn from (key, epoch), or as they lie in the source, and each goes
 * to the first window that has room for it; then the windows are put in an order drawn likewise. So
 * epochs may differ in length. Takes at most 48 bytes a piece, all at the start; an epoch costs a
 * microsecond a piece when it is entered, and a jump as much for each epoch between.
 */
struct pf_pack;

struct pf_pack_piece {
    int64_t first; /* its first token in the stream */
    int32_t n;     /* its tokens */
    bool goes_on;  /* the document has a token after it, for the last one to predict */
};

/* PF_EINVAL if nothing is to be packed. */
int pf_pack_new(const struct pf_source *source, int64_t lo, int64_t hi, uint64_t key, bool shuffle,
                struct pf_pack **pack_out);
void pf_pack_free(struct pf_pack *pack); /* NULL is fine */

/* Windows of the first epoch; of so many epochs (from 4096 on, that many times the first's). */
int64_t pf_pack_n_windows(struct pf_pack *pack);
int64_t pf_pack_length(struct pf_pack *pack, double epochs);

/* Tokens of all pieces. */
int64_t pf_pack_n_tokens(const struct pf_pack *pack);

/* How many pieces window number `count` has, over all epochs, and the number of the first for
 * pf_pack_piece, whose results hold until the next call here. */
int64_t pf_pack_n_pieces_at(struct pf_pack *pack, int64_t count, int64_t *item_out);
const struct pf_pack_piece *pf_pack_piece(const struct pf_pack *pack, int64_t item);

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
