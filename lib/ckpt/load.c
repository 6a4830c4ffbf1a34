/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading: live state as a writer. First proofs, on all ranks; then bytes.
 *
 * Every file has one rank that reads it, forwards and once, in chunks. The walk through a file is over
 * its bytes, or, where pieces in it are compressed, over the bytes of all their elements, one piece after
 * the other. All ranks know from each other's
 * descriptions which chunk whom concerns, so they walk through the same rounds: in a round each reader
 * reads a chunk, then one reader's after the other's goes to the ranks that want anything of it, and
 * each takes out what it wants. Nobody holds more than the chunk it has read and one that it was sent.
 */
#include "engine_internal.h"
#include "load_internal.h"
#include "plan_internal.h"

#include <pf/digest.h>
#include <pf/file.h>
#include <pf/mem.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES ((uint64_t)4 << 20)

/* The same wanted by one or more ranks. */
struct group {
    struct ckpt_want want; /* dtype and dst unset */
    const struct ckpt_item *items;
    size_t n;
};

/* A stored piece in the order of the files. */
struct ref {
    const struct pf_ckpt_tensor *tensor;
    const struct pf_ckpt_piece *piece;
    uint64_t bytes, at; /* of its elements; where they begin in the walk through the file */
    size_t first_group, n_groups; /* of its tensor */
    bool wanted;
};

/* The way through a file. */
struct walk {
    uint64_t length;
    bool coded; /* over elements, not over the file's bytes */
};

/* A part of a walk; file -1: none. */
struct chunk {
    int file;
    uint64_t lo, hi;
};

struct loader {
    struct pf_comm *comm;
    int rank, size;
    const struct pf_ckpt *ckpt;
    struct pf_ckpt_live *live;
    bool verify;
    struct ckpt_items items;
    struct group *groups;
    size_t n_groups;
    struct ref *refs;
    size_t n_refs;
    size_t *first_ref;    /* by file, one more than there are files */
    int *reader;          /* by file */
    struct walk *walks;   /* by file */
    struct chunk *next;   /* by rank: the chunk of this round, then where to go on */
    bool *concerned;      /* by rank */
    uint8_t *mine, *sent; /* chunks */
    int fd;
    char *path;
    struct pf_digest_state *digest;
    uint64_t hashed; /* bytes of the file */
    struct ckpt_frames frames;
    int err; /* of reading: told at the end, as the others cannot know */
};

/* Proof -------------------------------------------------------------------------------------------
 */

static int find(const struct pf_ckpt *ckpt, const struct pf_ckpt_live *live,
                const struct pf_ckpt_tensor **tensor_out, struct ckpt_want *want_out)
{
    const struct pf_ckpt_tensor *tensor = pf_ckpt_find(ckpt, live->name, live->role);

    if (!tensor) {
        return pf_fail(PF_EINCOMPLETE, "'%s' has no '%s' (%s)", ckpt->dir, live->name,
                       pf_role_name(live->role));
    }
    if (tensor->n_dims != live->n_dims ||
        memcmp(tensor->shape, live->shape, (size_t)live->n_dims * sizeof live->shape[0]) != 0) {
        return pf_fail(PF_EINVAL, "'%s' (%s) has another shape in '%s' than here", live->name,
                       pf_role_name(live->role), ckpt->dir);
    }
    PF_TRY(ckpt_live_want(live, want_out));
    *tensor_out = tensor;
    return 0;
}

static int prove(const struct pf_ckpt *ckpt, const struct pf_ckpt_live *live, int64_t n_live)
{
    for (int64_t i = 0; i < n_live; i++) {
        const struct pf_ckpt_tensor *tensor = NULL;
        struct ckpt_want want;
        PF_TRY(find(ckpt, &live[i], &tensor, &want));
        PF_TRY(ckpt_prove(ckpt, tensor, &want));
    }
    return 0;
}

/* Who wants what ----------------------------------------------------------------------------------
 */

static int make_groups(struct loader *l)
{
    const struct ckpt_item *all = l->items.all;
    size_t end;

    l->groups = pf_calloc_array(l->items.n, sizeof *l->groups);
    if (!l->groups) {
        return PF_ENOMEM;
    }
    for (size_t i = 0; i < l->items.n; i = end) {
        end = i + 1;
        while (end < l->items.n && ckpt_compare_tensor(&all[i], &all[end]) == 0 &&
               ckpt_compare_piece(&all[i], &all[end]) == 0) {
            end++;
        }
        l->groups[l->n_groups++] = (struct group){
            {.box = *all[i].box, .range_lo = all[i].range_lo, .range_hi = all[i].range_hi},
            &all[i],
            end - i};
    }
    return 0;
}

static bool meets(const struct group *g, const struct pf_ckpt_piece *p)
{
    struct pf_box common;

    return pf_box_intersect(&g->want.box, &p->box, &common);
}

static bool is_wanted(const struct loader *l, const struct ref *ref)
{
    for (size_t g = 0; g < ref->n_groups; g++) {
        if (meets(&l->groups[ref->first_group + g], ref->piece)) {
            return true;
        }
    }
    return false;
}

/* Groups and tensors have one order, so both are gone through once. */
static void add_refs(struct loader *l)
{
    size_t g = 0;

    for (int64_t t = 0; t < l->ckpt->n_tensors; t++) {
        const struct pf_ckpt_tensor *tensor = &l->ckpt->tensors[t];
        const struct ckpt_item key = {.name = tensor->name, .role = tensor->role};
        while (g < l->n_groups && ckpt_compare_tensor(l->groups[g].items, &key) < 0) {
            g++;
        }
        size_t end = g;
        while (end < l->n_groups && ckpt_compare_tensor(l->groups[end].items, &key) == 0) {
            end++;
        }
        for (int64_t p = 0; p < tensor->n_pieces; p++) {
            const struct pf_ckpt_piece *piece = &tensor->pieces[p];
            struct ref *ref = &l->refs[l->n_refs++];
            *ref = (struct ref){.tensor = tensor, .piece = piece};
            ref->bytes = ckpt_piece_bytes(tensor, piece);
            ref->first_group = g;
            ref->n_groups = end - g;
            ref->wanted = is_wanted(l, ref);
        }
        g = end;
    }
}

static int compare_refs(const void *a, const void *b)
{
    const struct ref *x = a, *y = b;

    if (x->piece->file != y->piece->file) {
        return x->piece->file < y->piece->file ? -1 : 1;
    }
    if (x->piece->offset != y->piece->offset) {
        return x->piece->offset < y->piece->offset ? -1 : 1;
    }
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static bool is_coded(const struct loader *l, int64_t file)
{
    for (size_t i = l->first_ref[file]; i < l->first_ref[file + 1]; i++) {
        if (l->refs[i].piece->codec != PF_CKPT_PLAIN) {
            return true;
        }
    }
    return false;
}

/* Where everything is in the walks. */
static void lay_out(struct loader *l)
{
    for (int64_t f = 0; f < l->ckpt->n_files; f++) {
        const bool coded = is_coded(l, f);
        uint64_t at = 0;
        for (size_t i = l->first_ref[f]; i < l->first_ref[f + 1]; i++) {
            l->refs[i].at = coded ? at : l->refs[i].piece->offset;
            at += l->refs[i].bytes;
        }
        l->walks[f].coded = coded;
        l->walks[f].length = coded ? at : l->ckpt->files[f].bytes;
    }
}

static int make_refs(struct loader *l)
{
    size_t n = 0, at = 0;

    for (int64_t t = 0; t < l->ckpt->n_tensors; t++) {
        n += (size_t)l->ckpt->tensors[t].n_pieces;
    }
    l->refs = pf_calloc_array(n, sizeof *l->refs);
    l->first_ref = pf_calloc_array((size_t)l->ckpt->n_files + 1, sizeof *l->first_ref);
    if (!l->refs || !l->first_ref) {
        return PF_ENOMEM;
    }
    add_refs(l);
    if (n > 0) {
        qsort(l->refs, n, sizeof *l->refs, compare_refs);
    }
    for (int64_t f = 0; f <= l->ckpt->n_files; f++) {
        while (at < n && l->refs[at].piece->file < f) {
            at++;
        }
        l->first_ref[f] = at;
    }
    lay_out(l);
    return 0;
}

/* Who reads what ----------------------------------------------------------------------------------
 */

/* Mark the ranks that want anything of a piece; tells how many there are and the last of them. */
static void mark_concerned(const struct loader *l, const struct ref *ref)
{
    for (size_t g = 0; g < ref->n_groups; g++) {
        const struct group *group = &l->groups[ref->first_group + g];
        for (size_t i = 0; i < group->n && meets(group, ref->piece); i++) {
            l->concerned[group->items[i].rank] = true;
        }
    }
}

static int count_concerned(const struct loader *l, int *last_out)
{
    int n = 0;

    for (int r = 0; r < l->size; r++) {
        n += l->concerned[r];
        *last_out = l->concerned[r] ? r : *last_out;
    }
    return n;
}

static bool checks_file(const struct loader *l, int64_t file)
{
    return l->verify && l->ckpt->files[file].digest[0] != '\0';
}

/* A file that concerns one rank alone is that one's; the others go, in their order, to the rank that
 * has the fewest bytes so far. */
static int assign(struct loader *l)
{
    uint64_t *load = pf_calloc_array((size_t)l->size, sizeof *load);

    if (!load) {
        return PF_ENOMEM;
    }
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t f = 0; f < l->ckpt->n_files; f++) {
            int only = 0;
            memset(l->concerned, 0, (size_t)l->size * sizeof *l->concerned);
            for (size_t i = l->first_ref[f]; i < l->first_ref[f + 1]; i++) {
                mark_concerned(l, &l->refs[i]);
            }
            const int n = count_concerned(l, &only);
            if (n == 0 && !checks_file(l, f)) {
                l->reader[f] = -1;
                continue;
            }
            if ((n == 1) != (pass == 0)) {
                continue;
            }
            for (int r = 0; n != 1 && r < l->size; r++) {
                only = r == 0 || load[r] < load[only] ? r : only;
            }
            l->reader[f] = only;
            load[only] += l->ckpt->files[f].bytes;
        }
    }
    pf_free(load);
    return 0;
}

/* Chunks ------------------------------------------------------------------------------------------
 */

/* The first piece of a file that ends after an offset. */
static size_t ref_after(const struct loader *l, int file, uint64_t offset)
{
    size_t lo = l->first_ref[file], hi = l->first_ref[file + 1];

    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (l->refs[mid].at + l->refs[mid].bytes <= offset) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* No element is cut in two. */
static uint64_t whole_elements(const struct loader *l, int file, uint64_t hi)
{
    const size_t i = ref_after(l, file, hi);

    if (i == l->first_ref[file + 1] || l->refs[i].at >= hi) {
        return hi;
    }
    return hi - (hi - l->refs[i].at) % pf_dtype_bytes(l->refs[i].tensor->dtype);
}

/* The part of a file, from an offset on, that comes next: all of it where its digest is to be checked,
 * else what lies between the first and the last wanted byte. False at its end. */
static bool chunk_of(const struct loader *l, int file, uint64_t from, struct chunk *chunk_out)
{
    const size_t end = l->first_ref[file + 1];
    uint64_t lo = from, hi = 0;

    if (checks_file(l, file)) {
        hi = l->walks[file].length;
        hi = hi - lo > CHUNK_BYTES ? lo + CHUNK_BYTES : hi;
    } else {
        size_t i = ref_after(l, file, from);
        while (i < end && !l->refs[i].wanted) {
            i++;
        }
        if (i == end) {
            return false;
        }
        lo = l->refs[i].at > from ? l->refs[i].at : from;
        for (; i < end && l->refs[i].at < lo + CHUNK_BYTES; i++) {
            const uint64_t stop = l->refs[i].at + l->refs[i].bytes;
            hi = l->refs[i].wanted ? (stop < lo + CHUNK_BYTES ? stop : lo + CHUNK_BYTES) : hi;
        }
    }
    *chunk_out = (struct chunk){file, lo, whole_elements(l, file, hi)};
    return lo < hi;
}

/* Go on to a reader's next chunk: in its file, or in the next file that is his. */
static void advance(const struct loader *l, int reader)
{
    struct chunk *c = &l->next[reader];

    if (c->file >= 0 && chunk_of(l, c->file, c->hi, c)) {
        return;
    }
    for (int64_t f = c->file + 1; f < l->ckpt->n_files; f++) {
        if (l->reader[f] == reader && chunk_of(l, (int)f, 0, c)) {
            return;
        }
    }
    *c = (struct chunk){.file = (int)l->ckpt->n_files};
}

static bool is_over(const struct loader *l, int reader)
{
    return l->next[reader].file == (int)l->ckpt->n_files;
}

/* Reading -----------------------------------------------------------------------------------------
 */

static void close_file(struct loader *l)
{
    (void)pf_close(l->fd, NULL);
    pf_free(l->path);
    l->fd = -1;
    l->path = NULL;
}

static int open_file(struct loader *l, const struct chunk *c)
{
    close_file(l);
    l->path = ckpt_file_path(l->ckpt, c->file);
    if (!l->path) {
        return PF_ENOMEM;
    }
    pf_digest_reset(l->digest);
    l->hashed = 0;
    PF_TRY(pf_open(l->path, O_RDONLY, &l->fd));
    (void)posix_fadvise(l->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    return 0;
}

static int check_digest(const struct loader *l, int file)
{
    const struct pf_digest digest = pf_digest_result(l->digest);
    char hex[PF_DIGEST_HEX_BYTES];

    if (strcmp(pf_digest_hex(&digest, hex), l->ckpt->files[file].digest) != 0) {
        return pf_fail(PF_EFORMAT, "'%s' was changed: its digest is %s, the manifest says %s",
                       l->path, hex, l->ckpt->files[file].digest);
    }
    return 0;
}

/* Hash what has not been, up to an offset. */
static int hash_up_to(struct loader *l, uint64_t offset)
{
    while (l->hashed < offset) {
        uint8_t part[16384];
        const uint64_t left = offset - l->hashed;
        const size_t n = left < sizeof part ? (size_t)left : sizeof part;
        PF_TRY(pf_pread_full(l->fd, part, n, l->hashed, l->path));
        pf_digest_update(l->digest, part, n);
        l->hashed += n;
    }
    return 0;
}

/* Bytes of the file, hashed on the way with those before them, unless they are out of turn. */
static int read_bytes(void *context, void *dst, size_t n, uint64_t offset, bool ahead)
{
    struct loader *const l = context;
    const bool hash = !ahead && checks_file(l, l->next[l->rank].file);

    PF_TRY(hash ? hash_up_to(l, offset) : 0);
    PF_TRY(pf_pread_full(l->fd, dst, n, offset, l->path));
    if (hash) {
        pf_digest_update(l->digest, dst, n);
        l->hashed = offset + n;
    }
    return 0;
}

/* Bytes lo..hi of a piece's elements. */
static int read_piece(struct loader *l, const struct ref *ref, uint64_t lo, uint64_t hi,
                      uint8_t *dst)
{
    if (ref->piece->codec == PF_CKPT_PLAIN) {
        return read_bytes(l, dst, (size_t)(hi - lo), ref->piece->offset + lo, false);
    }
    while (lo < hi) {
        const size_t in = (size_t)(lo % PF_PLANES_BLOCK_BYTES);
        const uint8_t *block;
        size_t n;
        PF_TRY(ckpt_frames_block(&l->frames, l->ckpt, ref->tensor, ref->piece,
                                 (size_t)(lo / PF_PLANES_BLOCK_BYTES), read_bytes, l, &block, &n));
        n = n - in < hi - lo ? n - in : (size_t)(hi - lo);
        memcpy(dst, block + in, n);
        dst += n;
        lo += n;
    }
    return 0;
}

static int read_pieces(struct loader *l, const struct chunk *c)
{
    for (size_t i = ref_after(l, c->file, c->lo);
         i < l->first_ref[c->file + 1] && l->refs[i].at < c->hi; i++) {
        const struct ref *ref = &l->refs[i];
        const uint64_t lo = ref->at > c->lo ? ref->at : c->lo;
        const uint64_t hi = ref->at + ref->bytes < c->hi ? ref->at + ref->bytes : c->hi;
        PF_TRY(read_piece(l, ref, lo - ref->at, hi - ref->at, l->mine + (lo - c->lo)));
    }
    return 0;
}

static int read_chunk(struct loader *l, const struct chunk *c, bool first)
{
    if (first) {
        PF_TRY(open_file(l, c));
    }
    if (l->walks[c->file].coded) {
        PF_TRY(read_pieces(l, c));
    } else {
        PF_TRY(read_bytes(l, l->mine, (size_t)(c->hi - c->lo), c->lo, false));
        /* While the chunk is on its way to the others, the next one may come from the disk. */
        (void)posix_fadvise(l->fd, (off_t)c->hi, (off_t)CHUNK_BYTES, POSIX_FADV_WILLNEED);
    }
    if (checks_file(l, c->file) && c->hi == l->walks[c->file].length) {
        PF_TRY(hash_up_to(l, l->ckpt->files[c->file].bytes));
        return check_digest(l, c->file);
    }
    return 0;
}

/* Giving out --------------------------------------------------------------------------------------
 */

/* What this rank wants of one piece, of whose elements a part is in a chunk. */
static int take_piece(struct loader *l, const struct ref *ref, const struct ckpt_want *part,
                      const uint8_t *bytes)
{
    for (size_t g = 0; g < ref->n_groups; g++) {
        const struct group *group = &l->groups[ref->first_group + g];
        for (size_t i = 0; i < group->n; i++) {
            const struct ckpt_item *item = &group->items[i];
            if (item->rank != l->rank) {
                continue;
            }
            struct ckpt_want want = group->want;
            want.dtype = item->dtype;
            want.dst = l->live[item->live].data;
            PF_TRY(ckpt_scatter(ref->tensor, part, bytes, &want));
        }
    }
    return 0;
}

static int take_chunk(struct loader *l, const struct chunk *c, const uint8_t *bytes)
{
    for (size_t i = ref_after(l, c->file, c->lo); i < l->first_ref[c->file + 1]; i++) {
        const struct ref *ref = &l->refs[i];
        const uint64_t at = ref->at, size = pf_dtype_bytes(ref->tensor->dtype);
        const uint64_t lo = at > c->lo ? at : c->lo;
        const uint64_t hi = at + ref->bytes < c->hi ? at + ref->bytes : c->hi;
        if (at >= c->hi) {
            break;
        }
        const struct ckpt_want part = {
            .box = ref->piece->box,
            .range_lo = ref->piece->range_lo + (int64_t)((lo - at) / size),
            .range_hi = ref->piece->range_lo + (int64_t)((hi - at) / size)};
        if (lo < hi) {
            PF_TRY(take_piece(l, ref, &part, bytes + (lo - c->lo)));
        }
    }
    return 0;
}

static int send_chunk(struct loader *l, int reader, const struct chunk *c, uint8_t *bytes)
{
    const size_t n = (size_t)(c->hi - c->lo);
    int last = 0;

    const int n_concerned = count_concerned(l, &last);
    if (n_concerned == 0 || (n_concerned == 1 && l->concerned[reader])) {
        return 0;
    }
    if (n_concerned == l->size || (n_concerned == l->size - 1 && !l->concerned[reader])) {
        return pf_comm_broadcast(l->comm, bytes, n, reader);
    }
    if (l->rank != reader) {
        return l->concerned[l->rank] ? pf_comm_recv(l->comm, bytes, n, reader, 0) : 0;
    }
    for (int r = 0; r < l->size; r++) {
        if (r != reader && l->concerned[r]) {
            PF_TRY(pf_comm_send(l->comm, bytes, n, r, 0));
        }
    }
    return 0;
}

/* One reader's chunk to all whom it concerns. A reader that has failed sends what it has: the others
 * learn of it at the end. */
static int give_out(struct loader *l, int reader)
{
    const struct chunk *c = &l->next[reader];
    uint8_t *bytes = reader == l->rank ? l->mine : l->sent;

    memset(l->concerned, 0, (size_t)l->size * sizeof *l->concerned);
    for (size_t i = ref_after(l, c->file, c->lo);
         i < l->first_ref[c->file + 1] && l->refs[i].at < c->hi; i++) {
        mark_concerned(l, &l->refs[i]);
    }
    PF_TRY(send_chunk(l, reader, c, bytes));
    return l->concerned[l->rank] && !(reader == l->rank && l->err) ? take_chunk(l, c, bytes) : 0;
}

static int rounds(struct loader *l)
{
    bool over = false;
    int file = -1;

    for (int r = 0; r < l->size; r++) {
        l->next[r] = (struct chunk){.file = -1};
    }
    while (!over) {
        over = true;
        for (int r = 0; r < l->size; r++) {
            if (!is_over(l, r)) {
                advance(l, r);
            }
            over = over && is_over(l, r);
        }
        const struct chunk *c = &l->next[l->rank];
        if (!is_over(l, l->rank) && !l->err) {
            l->err = read_chunk(l, c, c->file != file);
            file = c->file;
        }
        for (int r = 0; r < l->size; r++) {
            PF_TRY(is_over(l, r) ? 0 : give_out(l, r));
        }
    }
    return 0;
}

/* All of it ---------------------------------------------------------------------------------------
 */

static int allocate(struct loader *l)
{
    const size_t size = (size_t)l->size;

    l->reader = pf_calloc_array((size_t)l->ckpt->n_files, sizeof *l->reader);
    l->walks = pf_calloc_array((size_t)l->ckpt->n_files, sizeof *l->walks);
    l->next = pf_calloc_array(size, sizeof *l->next);
    l->concerned = pf_calloc_array(size, sizeof *l->concerned);
    l->mine = pf_alloc((size_t)CHUNK_BYTES);
    l->sent = pf_alloc(l->size > 1 ? (size_t)CHUNK_BYTES : 1);
    PF_TRY(pf_digest_new(&l->digest));
    return l->reader && l->walks && l->next && l->concerned && l->mine && l->sent ? 0 : PF_ENOMEM;
}

static int make_plan(struct loader *l)
{
    PF_TRY(allocate(l));
    PF_TRY(make_groups(l));
    PF_TRY(make_refs(l));
    return assign(l);
}

static void release(struct loader *l)
{
    close_file(l);
    ckpt_items_release(&l->items);
    pf_free(l->groups);
    pf_free(l->refs);
    pf_free(l->first_ref);
    pf_free(l->reader);
    pf_free(l->walks);
    ckpt_frames_release(&l->frames);
    pf_free(l->next);
    pf_free(l->concerned);
    pf_free(l->mine);
    pf_free(l->sent);
    pf_digest_free(l->digest);
}

int pf_ckpt_load(struct pf_comm *comm, const struct pf_ckpt *ckpt, struct pf_ckpt_live *live,
                 int64_t n_live, bool verify_digests)
{
    struct loader l = {.comm = comm,
                       .rank = ckpt_comm_rank(comm),
                       .size = ckpt_comm_size(comm),
                       .ckpt = ckpt,
                       .live = live,
                       .verify = verify_digests,
                       .fd = -1};
    int err;

    PF_TRY(ckpt_agree(comm, prove(ckpt, live, n_live)));
    if (l.size == 1 && !ckpt_is_coded(ckpt)) {
        return ckpt_load_alone(ckpt, live, n_live, verify_digests, NULL);
    }
    PF_TRY_GOTO(ckpt_items_gather(comm, live, n_live, &l.items), out);
    PF_TRY_GOTO(ckpt_agree(comm, make_plan(&l)), out);
    err = rounds(&l);
    err = err ? err : ckpt_agree(comm, l.err);
out:
    release(&l);
    return err;
}

int pf_ckpt_load_hashed(const struct pf_ckpt *ckpt, struct pf_ckpt_live *live, int64_t n_live,
                        char (*digests_out)[PF_DIGEST_HEX_BYTES])
{
    if (ckpt_is_coded(ckpt)) {
        return pf_fail(PF_ENOTSUP,
                       "'%s' is compressed: its files are not hashed as they are loaded",
                       ckpt->dir);
    }
    PF_TRY(prove(ckpt, live, n_live));
    return ckpt_load_alone(ckpt, live, n_live, true, digests_out);
}
