/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt_internal.h - what the readers, the writers and the engine of lib/ckpt share.
 *
 * A reader builds a struct pf_ckpt with ckpt_new, ckpt_add_*, and ckpt_finish. Every fault it meets
 * goes to ckpt_fault with a report or NULL: without a report the first fault is the error of the
 * open; with one (verify) it is noted and the reader goes on. So there is one set of checks.
 */
#ifndef CKPT_INTERNAL_H
#define CKPT_INTERNAL_H

#include <pf/ckpt.h>
#include <pf/error.h>
#include <pf/safetensors.h>
#include <pf/str.h>

#define CKPT_SCHEMA 1
#define CKPT_MANIFEST "manifest.json"
#define CKPT_PARITY "parity.safetensors"
#define CKPT_LATEST "latest"
#define CKPT_PREFIX "checkpoint-"
#define CKPT_STAGING_PREFIX ".staging-"
#define CKPT_REMOVING_PREFIX ".removing-"
#define CKPT_HF_SINGLE "model.safetensors"
#define CKPT_HF_INDEX "model.safetensors.index.json"

/* The manifest ends in exactly these bytes; the digest covers all bytes before them. */
#define CKPT_TAIL_BEFORE "\"manifest_xxh3_128\": \""
#define CKPT_TAIL_AFTER "\"\n}\n"
#define CKPT_TAIL_BYTES (sizeof CKPT_TAIL_BEFORE - 1 + 32 + sizeof CKPT_TAIL_AFTER - 1)

/* Faults ------------------------------------------------------------------------------------------
 */

struct ckpt_report {
    struct pf_ckpt_fault *faults;
    int64_t n;
};

/* Without a report: record the fault and return code. With one: note it and return 0 (PF_ENOMEM if
 * that fails). kind is static. */
int ckpt_fault(struct ckpt_report *report, int code, const char *kind, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The same for a call that failed with err and left a record: err itself without a report and for
 * PF_ENOMEM; else its message is noted. PF_EIO is noted as "unreadable" whatever kind says. */
int ckpt_fault_from(struct ckpt_report *report, int err, const char *kind);

/* Building ----------------------------------------------------------------------------------------
 */

/* dir is copied. NULL with a record when memory is out. */
struct pf_ckpt *ckpt_new(const char *format, const char *dir);

/* Append a file; *i_out is its index. Strings are copied; digest may be NULL. */
int ckpt_add_file(struct pf_ckpt *ckpt, const char *name, uint64_t bytes, const char *digest,
                  int *i_out);

/* Append a tensor without pieces and give it. The pointer is good until the next call. */
int ckpt_add_tensor(struct pf_ckpt *ckpt, const char *name, enum pf_role role, enum pf_dtype dtype,
                    int n_dims, const int64_t *shape, struct pf_ckpt_tensor **tensor_out);
int ckpt_add_piece(struct pf_ckpt_tensor *tensor, const struct pf_ckpt_piece *piece);

/* Add a whole safetensors entry as a tensor of one piece. Tensors that pf cannot hold (a NUL in the
 * name, too many dimensions, a count beyond int64_t) are faults and left out. */
int ckpt_add_entry(struct pf_ckpt *ckpt, struct ckpt_report *report, const struct pf_st *st,
                   const struct pf_st_tensor *t, const char *name, enum pf_role role, int file);

/* Sort the tensors; two of one name and role are a fault. */
int ckpt_finish(struct pf_ckpt *ckpt, struct ckpt_report *report);

/* The path of a file of the checkpoint; free with pf_free. */
char *ckpt_file_path(const struct pf_ckpt *ckpt, int file);

/*
 * May this member of dir, named by data, be opened? The text must be a safe relative name, no
 * directory on the way a link, and what is there a regular file, perhaps through a link. Sets
 * *there_out to whether the file exists; a missing one is left to the caller. Returns what
 * ckpt_fault returns for an unsafe name ("unsafe-path"), *there_out then false.
 */
int ckpt_check_member(struct ckpt_report *report, const char *dir, const char *name,
                      const char *named_by, bool *there_out);

/* Readers -----------------------------------------------------------------------------------------
 */

/* What open and verify may read PATH as. */
enum ckpt_layout {
    CKPT_LAYOUT_PF,
    CKPT_LAYOUT_RUN,
    CKPT_LAYOUT_HF,
    CKPT_LAYOUT_FILE,
};
int ckpt_detect(const char *path, enum ckpt_layout *layout_out);

/* With a report *ckpt_out holds what could be read, perhaps nothing. */
int ckpt_read_pf(const char *dir, struct ckpt_report *report, struct pf_ckpt **ckpt_out);
int ckpt_read_hf(const char *dir, struct ckpt_report *report, struct pf_ckpt **ckpt_out);
int ckpt_read_file(const char *path, struct ckpt_report *report, struct pf_ckpt **ckpt_out);

/* The first half of ckpt_read_pf, enough to trust a directory: the manifest is whole and every file
 * there with its size. Pieces have no offsets yet. */
int ckpt_read_manifest(const char *dir, struct ckpt_report *report, struct pf_ckpt **ckpt_out);

/* The manifest only, whatever files are there. */
int ckpt_read_manifest_alone(const char *dir, struct pf_ckpt **ckpt_out);

/* Is dir a complete checkpoint? Leaves no record. */
bool ckpt_is_complete(const char *dir);

/* "checkpoint-000500" -> 500; false for any other name. */
bool ckpt_parse_step_name(const char *name, int64_t *step_out);
void ckpt_step_name(int64_t step, char name_out[48]);

/* Names of the checkpoint-* directories under dir, ascending by step. */
int ckpt_list_steps(const char *dir, struct pf_str_list *names_out);

/* A complete checkpoint by its name in a run directory; NULL (and 0) if it is not one. */
int ckpt_open_named(const char *output_dir, const char *name, struct pf_ckpt **ckpt_out);

/* What `latest` says, NULL if there is none; without the newline; free with pf_free. */
int ckpt_read_latest_name(const char *output_dir, char **name_out);

/* "NAME", or "NAME@lo:hi,lo:hi#lo:hi", with ".ROLE" after NAME unless it is a weight: what a piece
 * is called in its safetensors file. Appends to *to. */
int ckpt_entry_name(struct pf_str *to, const char *name, enum pf_role role,
                    const struct pf_box *box, const int64_t *shape, int64_t range_lo,
                    int64_t range_hi);

/* Engine ------------------------------------------------------------------------------------------
 */

/* A range of a box's elements as boxes of consecutive elements, at most this many. */
#define CKPT_MAX_ATOMS (2 * PF_BOX_MAX_DIMS)

struct ckpt_atom {
    struct pf_box box;
    int64_t at; /* of its first element, counted from range_lo */
};

/* Cut a range; 0 <= lo <= hi <= pf_box_count(box). Returns how many atoms, in row-major order. */
int ckpt_atoms(const struct pf_box *box, int64_t lo, int64_t hi,
               struct ckpt_atom atoms_out[CKPT_MAX_ATOMS]);

/* What is wanted of a tensor. */
struct ckpt_want {
    struct pf_box box;
    int64_t range_lo, range_hi;
    enum pf_dtype dtype;
    void *dst;
};

/* Prove that every wanted element is stored exactly once, and that the dtype can be had. */
int ckpt_prove(const struct pf_ckpt *ckpt, const struct pf_ckpt_tensor *tensor,
               const struct ckpt_want *want);

/* Copy after a proof. */
int ckpt_copy(const struct pf_ckpt *ckpt, const struct pf_ckpt_tensor *tensor,
              const struct ckpt_want *want);

/* Do the pieces tile the whole tensor? Faults "hole", "overlap", "outside". where: for messages. */
int ckpt_check_tiling(struct ckpt_report *report, const struct pf_ckpt_tensor *tensor, int code,
                      const char *where);

/* Is any of its pieces stored other than plainly? */
bool ckpt_tensor_is_coded(const struct pf_ckpt_tensor *tensor);
bool ckpt_is_coded(const struct pf_ckpt *ckpt);

/* The row-major bytes of a tensor, in order, in slices of bounded size. */
int ckpt_each_slice(const struct pf_ckpt *ckpt, const struct pf_ckpt_tensor *tensor,
                    int (*slice)(void *context, const void *data, size_t bytes), void *context);

/* Files -------------------------------------------------------------------------------------------
 */

/* The manifest up to the files: can be made, and refused, before a byte is written. Appends. */
int ckpt_manifest_head(struct pf_str *text, const struct pf_ckpt_save *save, const char *previous);

/* Append files and tensors of ckpt to the head, write it all into dir, and sync both. */
int ckpt_manifest_write(struct pf_str *head, const struct pf_ckpt *ckpt, const char *dir);

/* Remove a directory with all in it, or a link to one and nothing behind it; a missing one is fine. */
int ckpt_remove(const char *path);

/*
 * Make an empty directory for staging beside the final place, and lock it: until *lock_out is closed
 * nobody else makes or removes one of that name. An old one that nobody holds is removed. PF_EREFUSED
 * when another run holds it.
 */
int ckpt_make_staging(const char *path, int *lock_out);

/* Remove a staging directory that a run has left; PF_EREFUSED if one holds it. A missing one is fine. */
int ckpt_remove_staging(const char *path);

#endif
