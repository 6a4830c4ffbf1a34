/* SPDX-License-Identifier: Apache-2.0 */
/* The logical checkpoint as a value: faults, building, finding, and telling what a path is. */
#include "ckpt_internal.h"

#include <pf/digest.h>
#include <pf/file.h>
#include <pf/mem.h>

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Faults ------------------------------------------------------------------------------------------
 */

static int add_fault(struct ckpt_report *report, int code, const char *kind, const char *message)
{
    struct pf_ckpt_fault *grown =
        pf_realloc_array(report->faults, (size_t)report->n + 1, sizeof *grown);

    if (!grown) {
        return PF_ENOMEM;
    }
    report->faults = grown;
    char *text = pf_strdup(message);
    if (!text) {
        return PF_ENOMEM;
    }
    grown[report->n++] = (struct pf_ckpt_fault){code, kind, text};
    return 0;
}

int ckpt_fault(struct ckpt_report *report, int code, const char *kind, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    char *message = pf_vasprintf(format, args);
    va_end(args);
    if (!message) {
        return PF_ENOMEM;
    }
    const int err = report ? add_fault(report, code, kind, message) : pf_fail(code, "%s", message);
    pf_free(message);
    return err;
}

int ckpt_fault_from(struct ckpt_report *report, int err, const char *kind)
{
    if (!report || err == PF_ENOMEM || err == PF_EBUG) {
        return err;
    }
    const char *word = err == PF_EIO ? "unreadable" : err == PF_ENOTSUP ? "unsupported" : kind;
    const int noted = add_fault(report, err, word, pf_error_message());
    if (noted == 0) {
        pf_error_clear();
    }
    return noted;
}

void pf_ckpt_faults_free(struct pf_ckpt_fault *faults, int64_t n_faults)
{
    for (int64_t i = 0; i < n_faults; i++) {
        pf_free(faults[i].message);
    }
    pf_free(faults);
}

int64_t pf_ckpt_faults_count(const struct pf_ckpt_fault *faults, int64_t n_faults)
{
    int64_t n = 0;

    for (int64_t i = 0; i < n_faults; i++) {
        n += faults[i].code != 0;
    }
    return n;
}

/* Building ----------------------------------------------------------------------------------------
 */

struct pf_ckpt *ckpt_new(const char *format, const char *dir)
{
    struct pf_ckpt *ckpt = pf_alloc(sizeof *ckpt);

    if (!ckpt) {
        return NULL;
    }
    *ckpt = (struct pf_ckpt){.format = format, .step = -1, .dir = pf_strdup(dir)};
    if (!ckpt->dir) {
        pf_free(ckpt);
        return NULL;
    }
    return ckpt;
}

void pf_ckpt_free(struct pf_ckpt *ckpt)
{
    const int saved = errno;

    if (!ckpt) {
        return;
    }
    for (int64_t i = 0; i < ckpt->n_tensors; i++) {
        pf_free(ckpt->tensors[i].name);
        pf_free(ckpt->tensors[i].pieces);
    }
    for (int64_t i = 0; i < ckpt->n_files; i++) {
        pf_free(ckpt->files[i].name);
    }
    pf_free(ckpt->tensors);
    pf_free(ckpt->files);
    pf_free(ckpt->parity.name);
    pf_free(ckpt->dir);
    pf_free(ckpt->state_json);
    pf_free(ckpt->config_json);
    pf_free(ckpt->run_json);
    pf_free(ckpt->mesh_json);
    pf_free(ckpt);
    errno = saved;
}

/* Make room for one more in an array that grows by doubling from its count alone. */
static void *grow(void *array, int64_t n, size_t size)
{
    const bool full = n == 0 || (n & (n - 1)) == 0;

    return full ? pf_realloc_array(array, n > 0 ? 2 * (size_t)n : 1, size) : array;
}

int ckpt_add_file(struct pf_ckpt *ckpt, const char *name, uint64_t bytes, const char *digest,
                  int *i_out)
{
    struct pf_ckpt_file *files = grow(ckpt->files, ckpt->n_files, sizeof *files);
    char *copy = files ? pf_strdup(name) : NULL;
    int i;

    if (files) {
        ckpt->files = files;
    }
    if (!copy || pf_to_int(ckpt->n_files, &i) != 0) {
        pf_free(copy);
        return PF_ENOMEM;
    }
    files[i] = (struct pf_ckpt_file){.name = copy, .bytes = bytes};
    if (digest) {
        memcpy(files[i].digest, digest, strnlen(digest, sizeof files[i].digest - 1));
    }
    ckpt->n_files++;
    if (i_out) {
        *i_out = i;
    }
    return 0;
}

int ckpt_add_tensor(struct pf_ckpt *ckpt, const char *name, enum pf_role role, enum pf_dtype dtype,
                    int n_dims, const int64_t *shape, struct pf_ckpt_tensor **tensor_out)
{
    struct pf_ckpt_tensor *tensors = grow(ckpt->tensors, ckpt->n_tensors, sizeof *tensors);
    char *copy = tensors ? pf_strdup(name) : NULL;

    if (tensors) {
        ckpt->tensors = tensors;
    }
    if (!copy) {
        return PF_ENOMEM;
    }
    struct pf_ckpt_tensor *t = &tensors[ckpt->n_tensors++];
    *t = (struct pf_ckpt_tensor){.name = copy, .role = role, .dtype = dtype, .n_dims = n_dims};
    for (int d = 0; d < n_dims; d++) {
        t->shape[d] = shape[d];
    }
    *tensor_out = t;
    return 0;
}

int ckpt_add_piece(struct pf_ckpt_tensor *tensor, const struct pf_ckpt_piece *piece)
{
    struct pf_ckpt_piece *pieces = grow(tensor->pieces, tensor->n_pieces, sizeof *pieces);

    if (!pieces) {
        return PF_ENOMEM;
    }
    tensor->pieces = pieces;
    pieces[tensor->n_pieces++] = *piece;
    return 0;
}

/* The shape of an entry in pf's own types; false where it does not fit them. */
static bool convert_shape(const struct pf_st_tensor *t, int64_t shape_out[PF_BOX_MAX_DIMS])
{
    const int64_t zero[PF_BOX_MAX_DIMS] = {0};
    struct pf_box box;

    if (t->n_dims > PF_BOX_MAX_DIMS) {
        return false;
    }
    for (int d = 0; d < t->n_dims; d++) {
        if (t->shape[d] > INT64_MAX) {
            return false;
        }
        shape_out[d] = (int64_t)t->shape[d];
    }
    return pf_box_init(&box, t->n_dims, zero, shape_out) == 0;
}

int ckpt_add_entry(struct pf_ckpt *ckpt, struct ckpt_report *report, const struct pf_st *st,
                   const struct pf_st_tensor *t, const char *name, enum pf_role role, int file)
{
    int64_t shape[PF_BOX_MAX_DIMS];
    struct pf_ckpt_tensor *tensor;

    if (strlen(t->name) != t->name_bytes) {
        return ckpt_fault(report, PF_EFORMAT, "unsupported", "'%s' in '%s' has a NUL in its name",
                          t->name, pf_st_path(st));
    }
    if (!convert_shape(t, shape)) {
        return ckpt_fault(report, PF_ENOTSUP, "unsupported",
                          "'%s' in '%s' has more than %d dimensions or too many elements", t->name,
                          pf_st_path(st), PF_BOX_MAX_DIMS);
    }
    PF_TRY(ckpt_add_tensor(ckpt, name, role, t->dtype, t->n_dims, shape, &tensor));
    struct pf_ckpt_piece piece = {
        .box = pf_ckpt_whole(tensor), .file = file, .offset = pf_st_data_offset(st) + t->begin};
    piece.range_hi = pf_box_count(&piece.box);
    return ckpt_add_piece(tensor, &piece);
}

static int compare_key(const struct pf_ckpt_tensor *a, const char *name, enum pf_role role)
{
    if (a->role != role) {
        return a->role < role ? -1 : 1;
    }
    return strcmp(a->name, name);
}

static int compare_tensors(const void *a, const void *b)
{
    const struct pf_ckpt_tensor *y = b;

    return compare_key(a, y->name, y->role);
}

int ckpt_finish(struct pf_ckpt *ckpt, struct ckpt_report *report)
{
    if (ckpt->n_tensors > 0) {
        qsort(ckpt->tensors, (size_t)ckpt->n_tensors, sizeof *ckpt->tensors, compare_tensors);
    }
    for (int64_t i = 1; i < ckpt->n_tensors; i++) {
        if (compare_tensors(&ckpt->tensors[i - 1], &ckpt->tensors[i]) == 0) {
            PF_TRY(ckpt_fault(report, PF_EFORMAT, "duplicate", "'%s' (%s) is in '%s' twice",
                              ckpt->tensors[i].name, pf_role_name(ckpt->tensors[i].role),
                              ckpt->dir));
        }
    }
    return 0;
}

char *ckpt_file_path(const struct pf_ckpt *ckpt, int file)
{
    return pf_path_join(ckpt->dir, ckpt->files[file].name);
}

/* Is a directory on the way from dir to its member a link? */
static int leads_through_link(const char *dir, const char *name, bool *links_out)
{
    *links_out = false;
    for (const char *slash = strchr(name, '/'); slash; slash = strchr(slash + 1, '/')) {
        struct stat st;
        char *path = pf_asprintf("%s/%.*s", dir, (int)(slash - name), name);
        if (!path) {
            return PF_ENOMEM;
        }
        *links_out |= lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
        pf_free(path);
    }
    return 0;
}

int ckpt_check_member(struct ckpt_report *report, const char *dir, const char *name,
                      const char *named_by, bool *there_out)
{
    bool links = false;

    *there_out = false;
    if (!pf_path_is_safe_member(name)) {
        return ckpt_fault(report, PF_EFORMAT, "unsafe-path",
                          "'%s' names the file '%s', which is no plain name in its directory",
                          named_by, name);
    }
    PF_TRY(leads_through_link(dir, name, &links));
    if (links) {
        return ckpt_fault(report, PF_EFORMAT, "unsafe-path",
                          "'%s' names the file '%s', which leads through a linked directory",
                          named_by, name);
    }
    char *path = pf_path_join(dir, name);
    if (!path) {
        return PF_ENOMEM;
    }
    int err = 0;
    if (pf_path_is_file(path)) {
        *there_out = true;
    } else if (pf_path_exists(path)) {
        struct stat st;
        const bool dangling = stat(path, &st) != 0;
        err = dangling ? 0
                       : ckpt_fault(report, PF_EFORMAT, "unsafe-path",
                                    "'%s' names '%s', which is not a regular file", named_by, name);
    }
    pf_free(path);
    return err;
}

/* Use ---------------------------------------------------------------------------------------------
 */

const struct pf_ckpt_tensor *pf_ckpt_find(const struct pf_ckpt *ckpt, const char *name,
                                          enum pf_role role)
{
    int64_t lo = 0, hi = ckpt->n_tensors;

    while (lo < hi) {
        const int64_t mid = lo + (hi - lo) / 2;
        const int order = compare_key(&ckpt->tensors[mid], name, role);
        if (order == 0) {
            return &ckpt->tensors[mid];
        }
        if (order < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return NULL;
}

struct pf_box pf_ckpt_whole(const struct pf_ckpt_tensor *tensor)
{
    struct pf_box box = {.n_dims = tensor->n_dims};

    for (int d = 0; d < tensor->n_dims; d++) {
        box.hi[d] = tensor->shape[d];
    }
    return box;
}

static int update_digest(void *context, const void *data, size_t bytes)
{
    pf_digest_update(context, data, bytes);
    return 0;
}

int pf_ckpt_tensor_digest(const struct pf_ckpt *ckpt, const struct pf_ckpt_tensor *tensor,
                          char hex_out[33])
{
    struct pf_digest_state *state;
    const char *role = pf_role_name(tensor->role), *dtype = pf_dtype_name(tensor->dtype);

    PF_TRY(pf_digest_new(&state));
    pf_digest_update(state, tensor->name, strlen(tensor->name) + 1);
    pf_digest_update(state, role, strlen(role) + 1);
    pf_digest_update(state, dtype, strlen(dtype) + 1);
    for (int d = -1; d < tensor->n_dims; d++) {
        uint64_t value = (uint64_t)(d < 0 ? tensor->n_dims : tensor->shape[d]);
        uint8_t bytes[8];
        for (int i = 0; i < 8; i++, value >>= 8) {
            bytes[i] = (uint8_t)(value & 0xff);
        }
        pf_digest_update(state, bytes, sizeof bytes);
    }
    const int err = ckpt_each_slice(ckpt, tensor, update_digest, state);
    if (err == 0) {
        const struct pf_digest digest = pf_digest_result(state);
        pf_digest_hex(&digest, hex_out);
    }
    pf_digest_free(state);
    return err;
}

/* Opening -----------------------------------------------------------------------------------------
 */

/* Formats that other steps of pf read, told by a file that only they have. */
static const struct {
    const char *pattern;
    const char *format;
} foreign[] = {
    {"latest_checkpointed_iteration.txt", "a Megatron checkpoint"},
    {"latest_universal", "a DeepSpeed universal checkpoint"},
    {"*model_states.pt", "a DeepSpeed checkpoint"},
    {"zero_to_fp32.py", "a DeepSpeed checkpoint"},
    {"model_meta.json", "a Paddle checkpoint"},
    {"*.pdparams", "a Paddle checkpoint"},
    {".metadata", "a PyTorch distributed checkpoint"},
    {"*.metadata", "a Paddle FlexCheckpoint"},
    {"*.distcp", "a distributed checkpoint"},
    {"pytorch_model*.bin*", "a PyTorch checkpoint"},
    {"consolidated.*.pth", "a PyTorch checkpoint"},
    {"*.gguf", "a GGUF file"},
};

static int refuse_foreign(const char *path, const struct pf_str_list *names)
{
    bool shards = false;

    for (size_t f = 0; f < sizeof foreign / sizeof foreign[0]; f++) {
        for (size_t i = 0; i < names->n; i++) {
            if (pf_glob_match(foreign[f].pattern, names->items[i])) {
                return pf_fail(PF_ENOTSUP, "'%s' holds %s, which this build does not read", path,
                               foreign[f].format);
            }
        }
    }
    for (size_t i = 0; i < names->n; i++) {
        shards |= pf_glob_match("model-*-of-*.safetensors", names->items[i]);
    }
    return shards ? pf_fail(PF_EINCOMPLETE, "'%s' holds shards but no '%s'", path, CKPT_HF_INDEX)
                  : pf_fail(PF_EINCOMPLETE,
                            "no checkpoint in '%s': no '%s', '%s', '%s' or '" CKPT_PREFIX "*'",
                            path, CKPT_MANIFEST, CKPT_HF_SINGLE, CKPT_HF_INDEX);
}

static int detect_in(const char *path, const struct pf_str_list *names,
                     enum ckpt_layout *layout_out)
{
    bool manifest = false, hf = false, run = false, has_latest = false;
    int64_t step;

    for (size_t i = 0; i < names->n; i++) {
        manifest |= strcmp(names->items[i], CKPT_MANIFEST) == 0;
        hf |= strcmp(names->items[i], CKPT_HF_SINGLE) == 0;
        hf |= strcmp(names->items[i], CKPT_HF_INDEX) == 0;
        has_latest |= strcmp(names->items[i], CKPT_LATEST) == 0;
        run |= ckpt_parse_step_name(names->items[i], &step);
    }
    if (has_latest) {
        char *name;
        PF_TRY(ckpt_read_latest_name(path, &name));
        /* Another program's `latest` (DeepSpeed has one) does not make a run of pf. */
        has_latest = name && ckpt_parse_step_name(name, &step);
        pf_free(name);
    }
    /* transformers' Trainer keeps its own checkpoint-N beside the model: only `latest` is pf's. */
    run = hf ? has_latest : run || has_latest;
    if (manifest + hf + run > 1) {
        return pf_fail(PF_EREFUSED, "'%s' can be read as %s and as %s: name one of them", path,
                       manifest ? "a pf checkpoint" : "a Hugging Face directory",
                       run ? "a run directory" : "a Hugging Face directory");
    }
    if (manifest + hf + run == 0) {
        return refuse_foreign(path, names);
    }
    *layout_out = manifest ? CKPT_LAYOUT_PF : hf ? CKPT_LAYOUT_HF : CKPT_LAYOUT_RUN;
    return 0;
}

/* A file that is not called .safetensors: name what it is where its first bytes tell. */
static int sniff_file(const char *path)
{
    uint8_t head[4] = {0};
    uint64_t bytes;
    int fd, err;

    PF_TRY(pf_file_size(path, &bytes));
    PF_TRY(pf_open(path, O_RDONLY, &fd));
    err = bytes >= sizeof head ? pf_pread_full(fd, head, sizeof head, 0, path) : 0;
    pf_close(fd, path);
    PF_TRY(err);
    const char *what = memcmp(head, "GGUF", 4) == 0        ? "a GGUF file"
                       : memcmp(head, "PK\3\4", 4) == 0    ? "a PyTorch zip file"
                       : head[0] == 0x80 && head[1] < 0x08 ? "a pickle"
                       : head[0] == '{'                    ? "JSON"
                                                           : NULL;
    return what ? pf_fail(PF_ENOTSUP, "'%s' is %s, which this build does not read", path, what) : 0;
}

int ckpt_detect(const char *path, enum ckpt_layout *layout_out)
{
    struct pf_str_list names = {0};
    int err;

    if (!pf_path_is_dir(path)) {
        if (!pf_path_exists(path)) {
            errno = ENOENT;
            return pf_fail_errno(PF_EIO, "cannot open '%s'", path);
        }
        if (!pf_str_ends_with(path, ".safetensors")) {
            PF_TRY(sniff_file(path));
        }
        *layout_out = CKPT_LAYOUT_FILE;
        return 0;
    }
    PF_TRY(pf_dir_list(path, &names));
    err = detect_in(path, &names, layout_out);
    pf_str_list_release(&names);
    return err;
}

static int open_run(const char *path, struct pf_ckpt **ckpt_out)
{
    char *newest = NULL;

    PF_TRY(pf_ckpt_latest(path, &newest));
    if (!newest) {
        return pf_fail(PF_EINCOMPLETE, "no complete checkpoint in '%s'", path);
    }
    const int err = ckpt_read_pf(newest, NULL, ckpt_out);
    pf_free(newest);
    return err;
}

int pf_ckpt_open(const char *path, struct pf_ckpt **ckpt_out)
{
    enum ckpt_layout layout;

    PF_TRY(ckpt_detect(path, &layout));
    switch (layout) {
    case CKPT_LAYOUT_PF:
        return ckpt_read_pf(path, NULL, ckpt_out);
    case CKPT_LAYOUT_RUN:
        return open_run(path, ckpt_out);
    case CKPT_LAYOUT_HF:
        return ckpt_read_hf(path, NULL, ckpt_out);
    case CKPT_LAYOUT_FILE:
        return ckpt_read_file(path, NULL, ckpt_out);
    }
    return pf_fail(PF_EBUG, "unknown layout of '%s'", path);
}
