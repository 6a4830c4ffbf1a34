/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jsonl.h - the texts of a .jsonl file: one JSON object a line, one document a line.
 *
 * Each line that is not blank holds one JSON object (RFC 8259, valid UTF-8) whose member "text" is a
 * string; other members are checked and ignored. Document d is the text of the d-th such line: its
 * bytes are those of the string in UTF-8, escapes resolved. A document may be empty. Laid end to end
 * the documents are one run of bytes, numbered from 0.
 *
 *     struct pf_jsonl *j;
 *     PF_TRY(pf_jsonl_open("corpus.jsonl", &j));
 *     PF_TRY_GOTO(pf_jsonl_read(j, d, 0, n, bytes), out);
 *     pf_jsonl_close(j);
 *
 * The file is read and checked once, when it is opened, through a buffer as long as its longest line
 * (at least 1 MiB, at most 1 GiB). What stays in memory is where texts start: 16 bytes a document,
 * and 16 more for each 64 KiB of a long one. Reading goes back to the file, at a cost that does not
 * grow with the place in it, and allocates nothing.
 *
 * Errors: PF_EFORMAT for a line that is no such object, naming file, line and byte; PF_ENOTSUP for
 * one that has "messages" and no "text"; PF_EIO, PF_ENOMEM. All functions are local; a handle is
 * read-only, so any number of threads may use one.
 *
 * Source: https://jsonlines.org; the data files of Hugging Face datasets' "json" builder.
 */
#ifndef PF_JSONL_H
#define PF_JSONL_H

#include <stddef.h>
#include <stdint.h>

struct pf_jsonl;

/* Open, check and index a regular file. Blocking: as long as reading it takes. */
int pf_jsonl_open(const char *path, struct pf_jsonl **j_out);
void pf_jsonl_close(struct pf_jsonl *j); /* NULL is fine */

int64_t pf_jsonl_n_documents(const struct pf_jsonl *j);

/* The number of the first byte of document d: the bytes of all before it. d may be n_documents,
 * which gives the bytes of all. */
int64_t pf_jsonl_start(const struct pf_jsonl *j, int64_t d);

/* Bytes [offset, offset + n) of document d, which must have them. PF_EFORMAT if the file changed
 * since it was opened so that they are not there any more. */
int pf_jsonl_read(const struct pf_jsonl *j, int64_t d, int64_t offset, size_t n,
                  unsigned char *bytes_out);

#endif
