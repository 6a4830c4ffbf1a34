/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt.h - the logical checkpoint: what any format becomes on reading and comes from on writing.
 *
 * A checkpoint is a set of logical tensors: (name, role), dtype, global shape, and pieces. A piece
 * is a box of the tensor, optionally only a range of the box's elements in row-major order (a
 * sharding slice), stored contiguously in a file at an offset. Names are Hugging Face names; padding
 * is never stored. A reader turns a directory or file into this; a writer takes it from live state.
 * Between them stands the copy: boxes are intersected, and every wanted element is proved to be
 * covered exactly once before the first byte moves.
 *
 * The native format ("pf", DESIGN section 4, pf-checkpoint(5)) is a directory
 *     manifest.json, weights-RRRRR.safetensors, optim-RRRRR.safetensors
 * committed by: staging directory beside it, files synced, manifest last, rename, parent synced, then
 * `latest` replaced.
 */
#ifndef PF_CKPT_H
#define PF_CKPT_H

#include <pf/box.h>
#include <pf/comm.h>
#include <pf/dtype.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pf_role {
    PF_ROLE_WEIGHT,
    PF_ROLE_MASTER,
    PF_ROLE_MOMENT1,
    PF_ROLE_MOMENT2,
    PF_ROLE_EMA,
    PF_ROLE_BUFFER,
    PF_ROLE_SCALAR,
    PF_ROLE_COUNT
};

/* "weight", "master", "moment1", ... as written in manifests. */
const char *pf_role_name(enum pf_role role);
int pf_role_parse(const char *name, enum pf_role *role_out);

struct pf_ckpt_piece {
    struct pf_box box;
    int64_t range_lo, range_hi; /* elements of the box, row-major; whole box: 0, pf_box_count */
    int file;                   /* index into files */
    uint64_t offset;            /* absolute, of the first stored element */
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
    char *state_json;   /* trainer state as one JSON object, NULL where the format has none */
    char *config_json;  /* the model's config.json, NULL if absent */
    char *run_json;     /* the resolved options of the run (pf.json's object), NULL if absent */
    int64_t step;       /* -1 where the format has none */
    void *private_;     /* the reader's */
};

/*
 * Open PATH, whatever it is: a pf checkpoint directory, a run directory (its `latest` is followed),
 * a Hugging Face directory (single or sharded; index checked against shards, see below), a bare
 * .safetensors file. Reads headers and manifests only. Errors: PF_EIO, PF_EFORMAT, PF_EINCOMPLETE
 * (an index names a shard that is missing; a file is shorter than the manifest says), PF_EREFUSED
 * (several readings possible), PF_ENOTSUP (a format that this build does not read, named).
 *
 * Hugging Face directories: a weight_map value that leaves the directory, a tensor in two shards, in
 * a shard other than the index says, or in the index only, are PF_EFORMAT; a shard on disk that the
 * index does not name is ignored here (verify reports it). Buffers of old files (inv_freq,
 * attn.bias, masked_bias, rotary_emb) are given the role PF_ROLE_BUFFER. Local.
 */
int pf_ckpt_open(const char *path, struct pf_ckpt **ckpt_out);
void pf_ckpt_free(struct pf_ckpt *ckpt);

/* The tensor with this name and role, or NULL. */
const struct pf_ckpt_tensor *pf_ckpt_find(const struct pf_ckpt *ckpt, const char *name,
                                          enum pf_role role);

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
    int code;          /* PF_EFORMAT, PF_EINCOMPLETE, PF_EIO */
    const char *kind;  /* stable word: "missing-file", "digest", "size", "extra-file", "hole", ... */
    char *message;
};

/* Everything that can be wrong, all of it, not the first only: files missing, extra, of another
 * size or digest, index against shards, cover of every tensor, manifest schema, latest. Reads every
 * byte. *faults_out is freed with pf_ckpt_faults_free. Returns 0 also when faults were found. */
int pf_ckpt_verify(const char *path, struct pf_ckpt_fault **faults_out, int64_t *n_faults_out);
void pf_ckpt_faults_free(struct pf_ckpt_fault *faults, int64_t n_faults);

/*
 * Digest of a tensor that does not depend on layout or format: XXH3-128 over name, role, dtype,
 * shape and the row-major little-endian bytes. Memory bounded.
 */
int pf_ckpt_tensor_digest(const struct pf_ckpt *ckpt, const struct pf_ckpt_tensor *tensor,
                          char hex_out[33]);

/* Live state: what a rank holds of a tensor, to be saved or to be filled by a load. */
struct pf_ckpt_live {
    const char *name; /* not owned */
    enum pf_role role;
    enum pf_dtype dtype;
    int n_dims;
    int64_t shape[PF_BOX_MAX_DIMS]; /* global */
    struct pf_box box;              /* what data holds, dense row-major */
    void *data;
};

struct pf_ckpt_save {
    const char *output_dir;
    int64_t step;
    const char *config_json; /* the model's, one JSON object */
    const char *run_json;    /* resolved options, one JSON object */
    const char *state_json;  /* trainer state, one JSON object */
    const char *mesh_json;   /* {"dp":2,...} */
    int total_limit;         /* keep at most so many checkpoints; <= 0: all. The one just written and
                                the newest whole one before a failure are never removed */
};

struct pf_ckpt_saved {
    double seconds;
    uint64_t bytes;
};

/*
 * Save live state as output_dir/checkpoint-SSSSSS (six digits or more). Collective over comm; every
 * rank passes the pieces that it holds. A piece (same name, role and box) held by several ranks is
 * written once, by the holder that has the fewest bytes so far (tie: lowest rank), the same decision
 * on every rank. Ranks agree on the outcome: all return the same code, and after a failure neither
 * the new name nor `latest` has changed and the staging directory is gone where it could be removed.
 * When it returns 0 the checkpoint survives a loss of power (files and directories are synced).
 */
int pf_ckpt_save(struct pf_comm *comm, const struct pf_ckpt_save *save,
                 const struct pf_ckpt_live *live, int64_t n_live, struct pf_ckpt_saved *saved_out);

/*
 * Fill live state from a checkpoint: every live piece must be covered exactly. Collective (ranks
 * agree on the outcome). verify_digests: the bytes of each file that are read are hashed against the
 * manifest first. missing_ok: a live tensor whose (name, role) is absent is left alone and counted.
 */
int pf_ckpt_load(struct pf_comm *comm, const struct pf_ckpt *ckpt, struct pf_ckpt_live *live,
                 int64_t n_live, bool verify_digests);

/* The newest complete checkpoint under output_dir: `latest` if what it names is whole, else the
 * highest step that is. NULL in *path_out (and 0) when there is none. Caller frees with pf_free. */
int pf_ckpt_latest(const char *output_dir, char **path_out);

/* Remove staging directories that an earlier, killed run left. Rank 0 only. */
int pf_ckpt_clean_staging(const char *output_dir);

/*
 * Write live weights (role PF_ROLE_WEIGHT, whole tensors) as a Hugging Face directory: config.json
 * (config_json), model.safetensors or shards with index above shard_bytes (decimal, 5 GB when 0),
 * metadata {"format":"pt"}; dtype PF_DTYPE_F32/BF16/F16 converts on the way. Files of source_dir
 * (may be NULL) that belong to the tokenizer or to generation are copied through. Written aside and
 * renamed. Local: called on the rank that holds everything.
 */
int pf_hf_write(const char *dir, const struct pf_ckpt_live *live, int64_t n_live,
                enum pf_dtype dtype, const char *config_json, const char *source_dir,
                uint64_t shard_bytes);

#endif
