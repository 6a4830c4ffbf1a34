/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt.h - the logical checkpoint: what any format becomes on reading and comes from on writing.
 *
 * A checkpoint is a set of logical tensors: (name, role), dtype, global shape, and pieces. A piece
 * is a box of the tensor, optionally only a range of the box's elements in row-major order (a
 * sharding slice), stored contiguously in a file at an offset, perhaps compressed. Names are Hugging Face names;
 * padding is never stored. A reader turns a directory or file into this; a writer takes it from
 * live state. Between them stands the copy: boxes are intersected, and every wanted element is
 * proved to be covered exactly once before the first byte moves.
 *
 * The native format ("pf", DESIGN section 4, pf-checkpoint(5)) is a directory
 *     manifest.json, weights-RRRRR.safetensors, optim-RRRRR.safetensors
 * committed by: staging directory beside it, files synced, manifest last, rename, parent synced,
 * then `latest` replaced.
 *
 *     struct pf_ckpt *ckpt;
 *     PF_TRY(pf_ckpt_open("out", &ckpt));
 *     const struct pf_ckpt_tensor *t = pf_ckpt_find(ckpt, "model.norm.weight", PF_ROLE_WEIGHT);
 *     struct pf_box whole = pf_ckpt_whole(t);
 *     if (t)
 *             err = pf_ckpt_read_box(ckpt, t, &whole, PF_DTYPE_F32, buffer);
 *     pf_ckpt_free(ckpt);
 *
 * An opened checkpoint is read-only and holds no open file: any number of threads may read it.
 * Limits: at most PF_BOX_MAX_DIMS dimensions; elements narrower than a byte (F4, F6) are listed and
 * verified but not read (PF_ENOTSUP).
 */
#ifndef PF_CKPT_H
#define PF_CKPT_H

#include <pf/box.h>
#include <pf/comm.h>
#include <pf/digest.h>
#include <pf/dtype.h>
#include <pf/role.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How the elements of a piece are stored. */
enum pf_ckpt_codec {
    PF_CKPT_PLAIN, /* as they are */
    PF_CKPT_ZSTD,  /* in blocks of byte planes, compressed (pf/planes.h) */
};

struct pf_ckpt_piece {
    struct pf_box box;
    int64_t range_lo, range_hi; /* elements of the box, row-major; whole box: 0, pf_box_count */
    int file;                   /* index into files */
    uint64_t offset;            /* absolute, of the first stored byte */
    enum pf_ckpt_codec codec;
    uint64_t stored_bytes; /* of a piece that is not plain; else 0 */
};

struct pf_ckpt_tensor {
    char *name;
    enum pf_role role;
    enum pf_dtype dtype;
    int n_dims;
    int64_t shape[PF_BOX_MAX_DIMS];
    int64_t n_pieces;
    struct pf_ckpt_piece *pieces;
};

struct pf_ckpt_file {
    char *name; /* relative to dir */
    uint64_t bytes;
    char digest[33]; /* XXH3-128, hex; "" where the format records none */
};

/* An opened checkpoint, read-only. Tensors are sorted by (role, name). */
struct pf_ckpt {
    const char *format; /* "pf", "hf", "safetensors" */
    char *dir;          /* directory of the files */
    int64_t n_tensors;
    struct pf_ckpt_tensor *tensors;
    int64_t n_files;
    struct pf_ckpt_file *files;
    struct pf_ckpt_file parity; /* name NULL: there is none; no reader needs it */
    char *state_json;  /* trainer state as one JSON object, NULL where the format has none */
    char *config_json; /* the model's config.json, NULL if absent */
    char *run_json;    /* the resolved options of the run (pf.json's object), NULL if absent */
    char *mesh_json;   /* the layout that wrote it, {"dp":2,...}; NULL if absent */
    int64_t step;      /* -1 where the format has none */
    char digest[33]; /* of the manifest, which identifies the checkpoint; "" where there is none */
    char previous[33]; /* digest of the one that `latest` named when this was written; "": none */
};

/*
 * Open PATH, whatever it is: a pf checkpoint directory (it has a manifest.json), a run directory
 * (its `latest` is followed as by pf_ckpt_latest), a Hugging Face directory (model.safetensors, or
 * shards with model.safetensors.index.json), a bare .safetensors file. Reads headers and manifests
 * only. Errors: PF_EIO, PF_EFORMAT, PF_EINCOMPLETE (an index names a shard that is missing; a file
 * is missing or of another length than the manifest says; nothing to read is there), PF_EREFUSED
 * (several readings are possible), PF_ENOTSUP (a format or schema that this build does not read,
 * named). Local.
 *
 * Hugging Face directories: a weight_map value that leaves the directory, by its text or through a
 * linked directory, a tensor in two shards, in a shard other than the index says, in the index only
 * or in a shard only, are PF_EFORMAT. A shard may itself be a link to a regular file (hub caches).
 * An index beside a model.safetensors that it does not name is PF_EREFUSED: one of the two is
 * stale. A shard on disk that the index does not name is ignored here (verify reports it). Names
 * are given in their canonical form (pf_hf_canonical_name); buffers of old files (inv_freq,
 * attn.bias, masked_bias) have the role PF_ROLE_BUFFER, all other tensors PF_ROLE_WEIGHT. In a bare
 * file names stay as they are, and config_json is NULL.
 */
int pf_ckpt_open(const char *path, struct pf_ckpt **ckpt_out);
void pf_ckpt_free(struct pf_ckpt *ckpt);

/* The tensor with this name and role, or NULL. Logarithmic time. */
const struct pf_ckpt_tensor *pf_ckpt_find(const struct pf_ckpt *ckpt, const char *name,
                                          enum pf_role role);

/* The box of all its elements. */
struct pf_box pf_ckpt_whole(const struct pf_ckpt_tensor *tensor);

/*
 * Read a box of a tensor into dst, row-major and dense, converted to dtype (F32, BF16, F16, F64
 * among each other; otherwise dtype must be the tensor's). Proves first that the pieces cover the
 * box exactly: PF_EFORMAT names the tensor and the first element that is missing or stored twice.
 * Memory besides dst: bounded by a few MiB. Local.
 */
int pf_ckpt_read_box(const struct pf_ckpt *ckpt, const struct pf_ckpt_tensor *tensor,
                     const struct pf_box *box, enum pf_dtype dtype, void *dst);

/* One problem found by verify. */
struct pf_ckpt_fault {
    int code;         /* PF_EFORMAT, PF_EINCOMPLETE, PF_EIO; 0: a note, which hurts no reader */
    const char *kind; /* stable word, static */
    char *message;
};

/*
 * Everything that can be wrong, all of it, not the first only. Reads every byte. PATH as for
 * pf_ckpt_open, but of a run directory every checkpoint is verified. Kinds:
 *
 *   unreadable       the system does not let it be read (PF_EIO)
 *   manifest         no JSON, a member missing, unknown or of the wrong type, an unknown role or dtype
 *   manifest-digest  the manifest's bytes are not those that were written
 *   missing-file     a file of the manifest, or a shard of the index, is not there
 *   extra-file       a file of the directory that the manifest does not name: a note
 *   extra-shard      a .safetensors shard that the index does not name
 *   size             a file has another length than the manifest says
 *   digest           a file's bytes are not those that were written
 *   header           a file is not valid safetensors
 *   piece            a piece has no entry in its file, or one of another dtype or shape
 *   frame            a compressed piece does not decode, though its file is as it was written
 *   parity           the parity file is missing or damaged, so nothing can be restored from it
 *   restorable       one file is missing or damaged and the parity file is good: a note
 *   extra-entry      an entry of a file that no piece names, or that two name
 *   hole, overlap, outside   the pieces of a tensor do not tile it
 *   duplicate        a tensor listed or stored twice (in two shards: with equal bytes)
 *   weight-not-master  a weight is not its master rounded to the weight's dtype, to nearest, ties to
 *                    even; looked for where nothing else is wrong with the checkpoint
 *   conflict         a tensor in two shards with different bytes
 *   index            the index is no JSON or of the wrong form
 *   unsafe-path      a file name of the index or manifest leads out of the directory
 *   wrong-shard      a tensor is in another shard than the index says
 *   missing-tensor   a tensor is in the index and in no shard
 *   unlisted-tensor  a tensor is in a shard and not in the index
 *   total-size       the index's metadata.total_size is not the sum of the tensors
 *   shard-gap        shard numbers -0000I-of-0000N do not run from 1 to N
 *   two-layouts      a model.safetensors beside an index that does not name it
 *   config           config.json is no JSON
 *   latest           `latest` names what is not there or not whole, or is no file
 *   unsupported      a format, schema or tensor that this build does not read (PF_ENOTSUP)
 *
 * *faults_out is freed with pf_ckpt_faults_free. Returns 0 also when faults were found; an error
 * only where PATH itself is not there (PF_EIO), is no checkpoint at all, or memory is out. Local.
 */
int pf_ckpt_verify(const char *path, struct pf_ckpt_fault **faults_out, int64_t *n_faults_out);
void pf_ckpt_faults_free(struct pf_ckpt_fault *faults, int64_t n_faults);

/* How many of them are more than notes. */
int64_t pf_ckpt_faults_count(const struct pf_ckpt_fault *faults, int64_t n_faults);

/*
 * Digest of a tensor that does not depend on layout or format: XXH3-128 over the name, the role's
 * name and the dtype's name, each with a NUL after it, the number of dimensions and then the shape
 * as little-endian u64, and the row-major little-endian bytes. Memory bounded. Proves the cover
 * first.
 */
int pf_ckpt_tensor_digest(const struct pf_ckpt *ckpt, const struct pf_ckpt_tensor *tensor,
                          char hex_out[33]);

/*
 * Restore one file of a pf checkpoint that is lost or damaged, from its parity file and the others, or
 * the parity file itself. Hashes every file first. The file is made aside and put in place when its
 * digest is that of the manifest. *restored_out is its name, freed with pf_free, or NULL: nothing was
 * damaged. Errors: PF_EINCOMPLETE (the checkpoint has no parity), PF_EFORMAT (more than one file is
 * damaged, the manifest is, or what comes out is not the file), PF_EUSAGE (dir is something else),
 * PF_EIO, PF_ENOMEM. Local.
 */
int pf_ckpt_repair(const char *dir, char **restored_out);

/*
 * Live state: what a rank holds of a tensor, to be saved or to be filled by a load. A box, or of
 * that box's elements in row-major order only those from range_lo up to range_hi (the slice of a
 * sharded optimizer); both 0 means the whole box.
 */
struct pf_ckpt_live {
    const char *name; /* not owned */
    enum pf_role role;
    enum pf_dtype dtype;
    int n_dims;
    int64_t shape[PF_BOX_MAX_DIMS]; /* global */
    struct pf_box box;
    int64_t range_lo, range_hi;
    void *data; /* the elements of the box or range, dense */
};

struct pf_ckpt_save {
    const char *output_dir;
    int64_t step;
    const char *config_json; /* the model's, one JSON object */
    const char *run_json;    /* resolved options, one JSON object */
    const char *state_json;  /* trainer state, one JSON object */
    const char *mesh_json;   /* {"dp":2,...}; any of the four may be NULL, which is written as {} */
    enum pf_ckpt_codec codec; /* how pieces are stored */
    bool parity;     /* write a parity file too, from which one lost file can be restored */
    bool replace;    /* a complete checkpoint of this step is replaced: for a run that went back */
    int total_limit; /* keep at most so many checkpoints; <= 0: all. The one just written and
                        the newest whole one before a failure are never removed */
};

struct pf_ckpt_saved {
    double seconds; /* on this rank */
    uint64_t bytes; /* of all tensor files together */
};

/*
 * Save live state as output_dir/checkpoint-SSSSSS (six digits or more). Collective over comm (NULL:
 * this process alone); every rank passes the pieces that it holds, whose union must tile each
 * tensor. A piece (same name, role, box and range) held by several ranks is written once, by the
 * holder that has the fewest bytes so far (tie: lowest rank), after the pieces that one rank alone
 * holds, large ones first: the same decision on every rank. output_dir and step are the same on all
 * ranks; the JSON texts and total_limit are rank 0's. Ranks agree on the outcome: all return the
 * same code, and after a failure neither the new name nor `latest` has changed and the staging
 * directory is gone where it could be removed. When it returns 0 the checkpoint survives a loss of
 * power (files and directories are synced). Older checkpoints beyond total_limit are removed after
 * that (those of later steps first: they are of a past that the run has left); where one cannot be
 * removed the save is good all the same and a warning is logged.
 *
 * An incomplete checkpoint of this step is replaced; with replace a complete one too: the two
 * exchange their names in one step, so that a kill at any instant leaves the old or the new one whole
 * under the final name.
 *
 * Errors: PF_EREFUSED (without replace a complete checkpoint of this step is there; a file or link
 * has its name; another process is saving this step), PF_EIO also where the filesystem cannot exchange
 * two directories (renameat2), PF_EINVAL (pieces leave a hole, overlap, or lie outside; JSON that is no
 * object), PF_EDISAGREE (ranks give one tensor different shapes or dtypes), PF_ENOTSUP (a codec that is
 * not in this build), PF_EIO, PF_ENOMEM.
 */
int pf_ckpt_save(struct pf_comm *comm, const struct pf_ckpt_save *save,
                 const struct pf_ckpt_live *live, int64_t n_live, struct pf_ckpt_saved *saved_out);

/*
 * Fill live state from a checkpoint, whatever layout wrote it: every live piece must be in it
 * (PF_EINCOMPLETE), with the same global shape (PF_EINVAL), and be covered exactly (PF_EFORMAT). All
 * of that is proved on every rank before the first byte moves. A live dtype other than the stored one
 * is converted to as by pf_ckpt_read_box. Each file is read once, by one rank (one that alone wants
 * anything of it, else the rank with the fewest bytes so far), and what others want of it is sent to
 * them. verify_digests: files are hashed as they are read, the parts that nobody wants too, and
 * compared with the manifest. Collective over comm (NULL: this process alone): ranks agree on the
 * outcome. After an error while bytes move (PF_EIO, PF_EFORMAT for a digest) live data is undefined.
 * Memory besides the live data: some 8 MiB and the descriptions of all live pieces; alone, 50 MiB.
 * Alone files are read by several threads, past the page cache where they are not in it
 * (PF_DIRECT_IO=0: never).
 */
int pf_ckpt_load(struct pf_comm *comm, const struct pf_ckpt *ckpt, struct pf_ckpt_live *live,
                 int64_t n_live, bool verify_digests);

/* The same alone, with the digest of every file as it was read, whether the format records one or not:
 * to digests_out, by file. PF_ENOTSUP for a checkpoint with compressed pieces. */
int pf_ckpt_load_hashed(const struct pf_ckpt *ckpt, struct pf_ckpt_live *live, int64_t n_live,
                        char (*digests_out)[PF_DIGEST_HEX_BYTES]);

/*
 * The newest complete checkpoint under output_dir: the one that `latest` names, if its manifest is
 * whole and every file is there with its size; or the whole one that a save had already renamed when
 * it was killed before it could replace `latest` (its `previous` tells; of several, the highest
 * step). Where
 * `latest` is missing or names nothing whole: the highest step that is. NULL in *path_out (and 0)
 * when there is none. Caller frees with pf_free. Local.
 */
int pf_ckpt_latest(const char *output_dir, char **path_out);

/* Remove what an earlier, killed run left: staging directories, checkpoints half removed, a `latest`
 * half written. Call it on rank 0 alone, while nothing saves. A directory that does not exist is
 * fine. */
int pf_ckpt_clean_staging(const char *output_dir);

/*
 * Write live weights (whole tensors; those of another role than PF_ROLE_WEIGHT are left out) as a
 * Hugging Face directory: config.json (config_json), model.safetensors, or shards with index when
 * the tensors take more than shard_bytes (decimal; 5 GB when 0), metadata {"format":"pt"}. dtype
 * F32, BF16 or F16 converts floating tensors on the way, PF_DTYPE_COUNT keeps every dtype; what
 * must stay F32 whatever is asked (FORMATS: e_score_correction_bias, and the router of deepseek_v3
 * and ernie4_5_moe) is written as it is. Tensors go to shards in the order of live. Files of
 * source_dir (may be NULL) that belong to the tokenizer or to generation are copied through. dir
 * must not exist or be empty (PF_EREFUSED); it is written aside and renamed. Local: called on the
 * rank that holds everything. Source: huggingface_hub/serialization/_base.py
 * (split_state_dict_into_shards_factory).
 */
int pf_hf_write(const char *dir, const struct pf_ckpt_live *live, int64_t n_live,
                enum pf_dtype dtype, const char *config_json, const char *source_dir,
                uint64_t shard_bytes);

/* The whole of live tensor i, row-major, in its live dtype; good until the next call. */
typedef int pf_hf_fetch(void *context, int64_t i, const void **data_out);

/* The same for tensors that are not held whole: live[i].data is not looked at, each tensor is asked for
 * once, when it is written, in any order. An error of fetch is that of the write. */
int pf_hf_write_from(const char *dir, const struct pf_ckpt_live *live, int64_t n_live,
                     enum pf_dtype dtype, const char *config_json, const char *source_dir,
                     uint64_t shard_bytes, pf_hf_fetch *fetch, void *context);

/*
 * The name that transformers 5 gives a tensor: old gpt2 files lack "transformer.", old files of
 * other families "model.". model_type is config.json's, NULL leaves the name as it is. *name_out is
 * freed with pf_free. Source: base_model_prefix of the families' modeling files. Local, pure.
 */
int pf_hf_canonical_name(const char *model_type, const char *name, char **name_out);

/*
 * Which tensors of an opened checkpoint serve as embedding and as output head, and whether the two
 * are one parameter:
 *
 *   config says   present            embedding from   head from   tied
 *   tied          both, equal        embed            embed       yes
 *   tied          both, different    embed            head        no, and *warning_out says so
 *   tied          embed only         embed            embed       yes
 *   tied          head only          head             head        yes
 *   not tied      both               embed            head        no
 *   otherwise                        PF_EINCOMPLETE
 *
 * Equal means the same shape, dtype and bits. *embed_from and *head_from are embed_name or
 * head_name; *warning_out (may be NULL) is NULL or static text. Reads both tensors in pieces.
 * Local. Source: transformers, PreTrainedModel.tie_weights of version 5.
 */
int pf_hf_resolve_tie(const struct pf_ckpt *ckpt, const char *embed_name, const char *head_name,
                      bool config_tied, const char **embed_from, const char **head_from,
                      bool *tied_out, const char **warning_out);

#endif
