/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors.h - read and write safetensors files.
 *
 * A file is a u64 length N (little endian), N bytes of JSON that name every tensor with its dtype,
 * shape and byte range, and the data. Nothing of a file is believed: a handle exists only if the
 * header is strict JSON in strict UTF-8, every range has the size that shape and dtype demand, and
 * the ranges tile the data section, whose end is the end of the file, without hole or overlap. So
 * whoever holds a handle needs no further check before reading.
 *
 *     struct pf_st *st;
 *     PF_TRY(pf_st_open(path, &st));
 *     const struct pf_st_tensor *t = pf_st_find(st, "model.norm.weight");
 *     if (t && t->dtype == PF_DTYPE_F32) {
 *             err = pf_st_read(st, t, 0, t->end - t->begin, buffer);
 *     }
 *     pf_st_close(st);
 *
 * Files are read with pread, never mapped: a file that shrinks while it is read gives an error and
 * no signal. Reading a header needs memory of a few times its length; tensors are read only where
 * asked for.
 *
 * Names may be any Unicode text: empty, "../../x", with NUL inside. Never use one as a path.
 *
 * Accepts what the reference implementation accepts, except, on purpose: two tensors of one name
 * (after unescaping), a tensor entry written as an array, and a dtype written as an object. At most
 * INT_MAX dimensions. Values are not looked at: a BOOL byte may be 2.
 *
 * Errors: PF_EFORMAT for any fault of the file (the message names the file and, where lengths
 * disagree, the expected and the actual one; a zip, pickle, HTML page, ... is named as such),
 * PF_EIO, PF_ENOMEM. All functions are local; a pf_st is read-only, so any number of threads may
 * use one.
 *
 * Source: the safetensors format description (huggingface/safetensors README.md, "Format") and its
 * reference parser safetensors/src/tensor.rs.
 */
#ifndef PF_SAFETENSORS_H
#define PF_SAFETENSORS_H

#include <pf/dtype.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The longest header that any reader accepts. */
#define PF_ST_HEADER_MAX_BYTES 100000000

struct pf_st_tensor {
    const char *name; /* UTF-8, NUL-terminated; may hold NUL inside too */
    size_t name_bytes;
    enum pf_dtype dtype;
    int n_dims;            /* 0 is a scalar */
    const uint64_t *shape; /* n_dims of them; slowest first; the product is below 2^64 */
    uint64_t begin, end;   /* bytes, relative to the start of the data section */
};

struct pf_st_metadata {
    const char *key, *value; /* UTF-8, NUL-terminated; may hold NUL inside too */
    size_t key_bytes, value_bytes;
};

struct pf_st; /* a checked header, and usually an open file */

/*
 * Check the start of a file. prefix: its first n_prefix bytes, as many as there are up to 64 (fewer
 * than 8 only if the file is that short); file_bytes: the length of the whole file. Sets
 * *header_bytes_out to N with N <= PF_ST_HEADER_MAX_BYTES and 8 + N <= file_bytes. path is only for
 * messages. Pure.
 */
int pf_st_check_prefix(const void *prefix, size_t n_prefix, uint64_t file_bytes, const char *path,
                       size_t *header_bytes_out);

/*
 * Parse and check the JSON of a header: the header_bytes bytes that follow the length, of a file of
 * file_bytes bytes in all. Pure; keeps no pointer to `bytes`. The handle has no file behind it:
 * pf_st_read fails with PF_EINVAL. Free with pf_st_close.
 */
int pf_st_parse(const void *bytes, size_t header_bytes, uint64_t file_bytes, const char *path,
                struct pf_st **st_out);

/* Open a regular file and check its header. Free with pf_st_close. Blocking. */
int pf_st_open(const char *path, struct pf_st **st_out);
void pf_st_close(struct pf_st *st);

/* Tensors, in the order of their data. i < pf_st_n_tensors; pointers live as long as st. */
size_t pf_st_n_tensors(const struct pf_st *st);
const struct pf_st_tensor *pf_st_tensor(const struct pf_st *st, size_t i);

/* The tensor of that name, NULL if there is none. Constant time. */
const struct pf_st_tensor *pf_st_find(const struct pf_st *st, const char *name);
const struct pf_st_tensor *pf_st_find_bytes(const struct pf_st *st, const char *name,
                                            size_t name_bytes);

/* Where the data section starts in the file (8 + N), and the length of the file. */
uint64_t pf_st_data_offset(const struct pf_st *st);
uint64_t pf_st_file_bytes(const struct pf_st *st);
const char *pf_st_path(const struct pf_st *st);

/*
 * Read n_bytes bytes of tensor t, from offset_bytes after its begin, into dst. PF_EINVAL if the
 * range reaches outside the tensor; PF_EFORMAT if the file has become shorter. Blocking.
 */
int pf_st_read(const struct pf_st *st, const struct pf_st_tensor *t, uint64_t offset_bytes,
               uint64_t n_bytes, void *dst);

/* __metadata__, sorted by key, of a repeated key the last value; none if absent or null. */
size_t pf_st_n_metadata(const struct pf_st *st);
const struct pf_st_metadata *pf_st_metadata(const struct pf_st *st, size_t i);
/* The value of a key, NULL if there is none. */
const char *pf_st_find_metadata(const struct pf_st *st, const char *key);

/*
 * Writing. Describe every tensor, then begin, then write the data in any order and in any pieces,
 * from any number of threads, then finish. The layout follows from the description alone, so equal
 * contents give equal files: metadata first, sorted by key; tensors by dtype (in the order of the
 * reference's list, last first, which puts wide ones first and so aligns everything), then by name;
 * compact JSON padded with spaces to a multiple of 8. Byte for byte what the reference writes,
 * which leaves the order of metadata to chance.
 *
 *     struct pf_st_writer *w;
 *     size_t weight;
 *     PF_TRY(pf_st_writer_new(&w));
 *     PF_TRY_GOTO(pf_st_writer_add_metadata(w, "format", "pt"), out);
 *     PF_TRY_GOTO(pf_st_writer_add_tensor(w, "w", PF_DTYPE_F32, 1, (uint64_t[]){2}, &weight), out);
 *     PF_TRY_GOTO(pf_st_writer_begin(w, path), out);
 *     PF_TRY_GOTO(pf_st_writer_write(w, weight, 0, data, 8), out);
 *     PF_TRY_GOTO(pf_st_writer_finish(w, true), out);
 * out:
 *     pf_st_writer_free(w);
 *
 * The length at the very start is written by finish, after everything else: an unfinished file
 * begins with zeros and no reader takes it. It still lies under its name: whoever wants all or
 * nothing writes into a staging directory, or calls pf_st_save.
 */
struct pf_st_writer;

int pf_st_writer_new(struct pf_st_writer **w_out);
/* Frees; closes the file if begin opened it. An unfinished file is left as it is. */
void pf_st_writer_free(struct pf_st_writer *w);

/* Add a metadata entry; strings are copied. PF_EINVAL: not UTF-8. A repeated key is found by the
 * layout. */
int pf_st_writer_add_metadata(struct pf_st_writer *w, const char *key, const char *value);

/*
 * Add a tensor; name and shape are copied. Sets *i_out (may be NULL) to its number, which counts
 * from 0 in the order of adding and names it below. PF_EINVAL: name not UTF-8 or "__metadata__",
 * a size that overflows or is not whole bytes. A repeated name is found by the layout.
 */
int pf_st_writer_add_tensor(struct pf_st_writer *w, const char *name, enum pf_dtype dtype,
                            int n_dims, const uint64_t *shape, size_t *i_out);

/*
 * Lay the file out, if that has not been done, and give its total length. Nothing can be added
 * afterwards. PF_EINVAL: a name or key was added twice, or the header would be longer than
 * PF_ST_HEADER_MAX_BYTES (store fewer tensors in a file).
 */
int pf_st_writer_file_bytes(struct pf_st_writer *w, uint64_t *file_bytes_out);

/*
 * Lay out, and give the bytes that come before the data: the length and the header. For whoever
 * writes the file himself instead of by the calls below. *head_out is freed with pf_free.
 */
int pf_st_writer_head(struct pf_st_writer *w, uint8_t **head_out, size_t *bytes_out);

/*
 * Lay out and write the header. `begin` creates path, which must not exist (PF_EREFUSED);
 * `begin_fd` writes into an empty file open for writing that the caller owns, path being its name
 * for messages. Nothing is created or written if the layout fails.
 */
int pf_st_writer_begin(struct pf_st_writer *w, const char *path);
int pf_st_writer_begin_fd(struct pf_st_writer *w, int fd, const char *path);

/* Where tensor i starts in the file, and how long it is, in bytes; after the layout. */
uint64_t pf_st_writer_offset(const struct pf_st_writer *w, size_t i);
uint64_t pf_st_writer_tensor_bytes(const struct pf_st_writer *w, size_t i);

/* Write n bytes of tensor i from offset_bytes after its start. PF_EINVAL: outside the tensor. Safe
 * to call from several threads at once. */
int pf_st_writer_write(struct pf_st_writer *w, size_t i, uint64_t offset_bytes, const void *data,
                       uint64_t n_bytes);

/*
 * Check that each tensor received as many bytes as it has (else PF_EBUG, naming it; which bytes is
 * not recorded), write the length, if `sync` fsync, and close a file that begin opened.
 */
int pf_st_writer_finish(struct pf_st_writer *w, bool sync);

/* A tensor in memory, for pf_st_save. */
struct pf_st_source {
    const char *name;
    enum pf_dtype dtype;
    int n_dims;
    const uint64_t *shape;
    const void *data;
};

/*
 * Write a whole file: aside, in the directory of path, fsynced, then renamed over path, so that
 * path holds the old file or the new one. metadata: only key and value are read. Nothing is left
 * behind on failure.
 */
int pf_st_save(const char *path, const struct pf_st_metadata *metadata, size_t n_metadata,
               const struct pf_st_source *tensors, size_t n_tensors);

#endif
