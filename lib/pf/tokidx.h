/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokidx.h - Megatron token files: PREFIX.bin holds tokens, PREFIX.idx says where they are.
 *
 * A data set is n sequences of tokens, numbered from 0, and documents, each a run of consecutive
 * sequences. Seen as one stream, its tokens are numbered from 0 in the order of the sequences;
 * sequence i holds the tokens [start(i), start(i + 1)). Sequences and documents may be empty.
 *
 *     struct pf_tokidx *t;
 *     PF_TRY(pf_tokidx_open("corpus/train", &t));
 *     PF_TRY_GOTO(pf_tokidx_read(t, 0, pf_tokidx_n_tokens(t), tokens), out);
 *     pf_tokidx_close(t);
 *
 * Everything in the index is checked before a handle exists: counts against the length of the file
 * (nothing is allocated on the word of a count), lengths, pointers inside the .bin and aligned to a
 * token, document entries from 0 to n without decrease. The index lies in memory (16 bytes a
 * sequence); tokens are read with pread where asked for.
 *
 * .idx: 9 bytes "MMIDIDX\0\0", u64 version 1, u8 dtype, u64 n, u64 m, i32 lengths[n], i64
 * pointers[n] (bytes into the .bin), i64 documents[m], and in multimodal files i8 modes[n], which
 * are checked for size and not used. Document d is the sequences [documents[d], documents[d+1]), so
 * m is the number of documents plus one. Little endian, nothing aligned. dtypes: 1 u8, 2 i8, 3 i16,
 * 4 i32, 5 i64, 8 u16, 9 u32, 10 u64; 6 f64 and 7 f32 exist but are not tokens. Pointers need not
 * be the running sum of the lengths, and bytes of the .bin may go unused.
 *
 * Errors: PF_EFORMAT for a fault of the files, PF_EINCOMPLETE if one of the two is missing,
 * PF_ENOTSUP for the older TNTIDX layout, PF_EIO, PF_ENOMEM. All functions are local; a handle is
 * read-only, so any number of threads may use one.
 *
 * Source: megatron-core 0.16 megatron/core/datasets/indexed_dataset.py; dtypes 9 and 10 after
 * PaddleNLP paddlenlp/data/indexed_dataset.py.
 */
#ifndef PF_TOKIDX_H
#define PF_TOKIDX_H

#include <stddef.h>
#include <stdint.h>

struct pf_tokidx;

/* Open by prefix, or by the name of either file. Blocking. */
int pf_tokidx_open(const char *path, struct pf_tokidx **t_out);
void pf_tokidx_close(struct pf_tokidx *t);

/*
 * Parse and check an index of idx_bytes bytes against a .bin of bin_bytes. Pure; keeps no pointer
 * to `bytes`. The handle has no .bin behind it: reading tokens fails with PF_EINVAL.
 */
int pf_tokidx_parse(const void *bytes, size_t idx_bytes, uint64_t bin_bytes, const char *path,
                    struct pf_tokidx **t_out);

int64_t pf_tokidx_n_sequences(const struct pf_tokidx *t);
int64_t pf_tokidx_n_documents(const struct pf_tokidx *t);
int64_t pf_tokidx_n_tokens(const struct pf_tokidx *t);

/* Bytes of a stored token: 1, 2, 4 or 8. */
int pf_tokidx_token_bytes(const struct pf_tokidx *t);

/* The number of the first token of sequence i; i may be n_sequences, giving n_tokens. */
int64_t pf_tokidx_sequence_start(const struct pf_tokidx *t, int64_t i);

/* The sequences [*first_out, *end_out) of document d < n_documents. */
void pf_tokidx_document(const struct pf_tokidx *t, int64_t d, int64_t *first_out, int64_t *end_out);

/* The sequence that holds a token < n_tokens. */
int64_t pf_tokidx_sequence_of(const struct pf_tokidx *t, int64_t token);

/*
 * Read the tokens [first, end) of the stream into tokens_out, widened. PF_EINVAL if the range
 * reaches outside the stream; PF_EFORMAT if a value does not fit (u64 above 2^63, or for the second
 * function anything outside int32) or the .bin has become shorter; tokens_out is then unspecified.
 * Negative values are handed on: a range check against the vocabulary is the caller's. Blocking.
 */
int pf_tokidx_read(const struct pf_tokidx *t, int64_t first, int64_t end, int64_t *tokens_out);
int pf_tokidx_read_i32(const struct pf_tokidx *t, int64_t first, int64_t end, int32_t *tokens_out);

/*
 * Write a pair: create both files (which must not exist: PF_EREFUSED), add sequences, end
 * documents, finish. token_bytes 2 stores u16, 4 stores i32; PF_EINVAL if a token does not fit, so
 * that a file never holds a wrapped value. The index is written by finish, last, so an interrupted
 * run leaves a .bin without .idx, which nothing opens.
 */
struct pf_tokidx_writer;

int pf_tokidx_writer_new(const char *prefix, int token_bytes, struct pf_tokidx_writer **w_out);
int pf_tokidx_writer_add(struct pf_tokidx_writer *w, const int64_t *tokens, size_t n_tokens);
int pf_tokidx_writer_end_document(struct pf_tokidx_writer *w);
/* Write the index and fsync both files. PF_EINVAL if sequences follow the last document. */
int pf_tokidx_writer_finish(struct pf_tokidx_writer *w);
/* Frees; an unfinished .bin is removed. */
void pf_tokidx_writer_free(struct pf_tokidx_writer *w);

#endif
