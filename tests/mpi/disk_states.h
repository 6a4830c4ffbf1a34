/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk_states.h - what a loss of power can leave of what recorder.so wrote down (RECORD_LOG): for every
 * prefix of the operations the states that a disk may hold. What was synced is there; of the rest each
 * operation on a directory is kept or dropped, each write is kept, dropped, or torn at sectors, in any
 * combination.
 *
 *     read_log();                      of what the ranks recorded in at("log")
 *     check_states(judge, n_tries);    on all ranks, which share the prefixes
 *
 * A process says "done" by acknowledge(i), i from 1: a state knows how many of these came before it.
 */
#ifndef DISK_STATES_H
#define DISK_STATES_H

#include "../preload/recorded.h"

#include <pf/digest.h>
#include <pf/rng.h>

#include "jobs.h"

#include <errno.h>

#define SECTOR 512
#define MAX_ACKNOWLEDGED 8
#define MAX_NODES 400
#define MAX_ENTRIES 32
#define MAX_STATES 65536
#define NEVER INT64_MAX

/* An operation. What it is on is found by playing all of them in order: nodes are files and directories,
 * whatever their names. */
struct op {
    enum recorded_call call;
    int node; /* that is made, written, synced, or gets the name; of an exchange the first */
    int dir, other_dir; /* where the names are; -1: it is no operation on a directory */
    char name[64], other[64];
    int other_node;
    int64_t synced; /* the operation that makes it last */
    uint64_t offset;
    const char *data;
    size_t n;
};

static struct op *ops;
static int64_t n_ops, acknowledged_at[MAX_ACKNOWLEDGED];
static int n_acknowledged; /* in all */
static char *log_text;
static uint64_t key, draws;

/* What is on the disk --------------------------------------------------------------------------- */

struct node {
    bool is_dir;
    int n; /* entries */
    char names[MAX_ENTRIES][64];
    int nodes[MAX_ENTRIES];
    char *bytes;
    size_t size;
};

static struct node disk[MAX_NODES];
static int n_nodes;

static void disk_clear(void)
{
    for (int i = 0; i < n_nodes; i++) {
        pf_free(disk[i].bytes);
        disk[i] = (struct node){.is_dir = disk[i].is_dir};
    }
}

static int find(int dir, const char *name)
{
    for (int i = 0; i < disk[dir].n; i++) {
        if (strcmp(disk[dir].names[i], name) == 0) {
            return i;
        }
    }
    return -1;
}

static void set(int dir, const char *name, int node)
{
    struct node *const d = &disk[dir];
    int i = find(dir, name);

    if (i < 0) {
        i = d->n++;
        if (d->n > MAX_ENTRIES) {
            exit(8);
        }
        snprintf(d->names[i], sizeof d->names[i], "%s", name);
    }
    d->nodes[i] = node;
}

static void drop(int dir, const char *name)
{
    struct node *const d = &disk[dir];
    const int i = find(dir, name);

    if (i >= 0) {
        d->n--;
        memmove(d->names[i], d->names[d->n], sizeof d->names[i]);
        d->nodes[i] = d->nodes[d->n];
    }
}

static void resize(struct node *f, size_t size)
{
    if (size > f->size) {
        f->bytes = pf_realloc_array(f->bytes, size, 1);
        memset(f->bytes + f->size, 0, size - f->size);
    }
    f->size = size;
}

static void write_part(const struct op *op, size_t lo, size_t hi)
{
    struct node *const f = &disk[op->node];

    if (op->offset + hi > f->size) {
        resize(f, op->offset + hi);
    }
    memcpy(f->bytes + op->offset + lo, op->data + lo, hi - lo);
}

static void play(const struct op *op)
{
    switch (op->call) {
    case RECORDED_CREATE:
    case RECORDED_MKDIR:
    case RECORDED_LINK:
        set(op->dir, op->name, op->node);
        break;
    case RECORDED_RENAME:
        drop(op->dir, op->name);
        set(op->other_dir, op->other, op->node);
        break;
    case RECORDED_EXCHANGE:
        set(op->dir, op->name, op->other_node);
        set(op->other_dir, op->other, op->node);
        break;
    case RECORDED_UNLINK:
        drop(op->dir, op->name);
        break;
    case RECORDED_WRITE:
        write_part(op, 0, op->n);
        break;
    case RECORDED_TRUNCATE:
        resize(&disk[op->node], op->offset);
        break;
    case RECORDED_SYNC:
        break;
    }
}

/* Some of its sectors; perhaps the length is the new one all the same. */
static void play_torn(const struct op *op)
{
    const size_t first = SECTOR - op->offset % SECTOR;

    for (size_t lo = 0, hi; lo < op->n; lo = hi) {
        hi = lo == 0 ? first : lo + SECTOR;
        hi = hi < op->n ? hi : op->n;
        if (pf_rng_bounded(key, 0, draws++, 2)) {
            write_part(op, lo, hi);
        }
    }
    if (pf_rng_bounded(key, 0, draws++, 2) && op->offset + op->n > disk[op->node].size) {
        resize(&disk[op->node], op->offset + op->n);
    }
}

/* The record ------------------------------------------------------------------------------------ */

/* The node of a path, and where its name is. */
static int walk(const char *path, int *dir_out, char name_out[64])
{
    int dir = -1, node = 0;

    name_out[0] = '\0';
    while (*path == '/') {
        const size_t n = strcspn(path + 1, "/");
        snprintf(name_out, 64, "%.*s", (int)n, path + 1);
        dir = node;
        const int i = dir >= 0 ? find(dir, name_out) : -1;
        node = i >= 0 ? disk[dir].nodes[i] : -1;
        path += 1 + n;
    }
    *dir_out = dir;
    return node;
}

static int new_node(bool is_dir)
{
    if (n_nodes == MAX_NODES) {
        exit(8);
    }
    disk[n_nodes] = (struct node){.is_dir = is_dir};
    return n_nodes++;
}

/* Read one; false if it is not on anything that has a name (an unlinked file). */
static bool read_op(const struct recorded_head *head, const char *path, const char *other,
                    struct op *op)
{
    const int node = walk(path, &op->dir, op->name);

    op->other_node = op->other_dir = -1;
    if (other[0]) {
        op->other_node = walk(other, &op->other_dir, op->other);
    }
    op->call = head->call;
    op->offset = head->offset;
    op->n = head->data_bytes;
    op->node = op->call == RECORDED_CREATE || op->call == RECORDED_MKDIR
                   ? new_node(op->call == RECORDED_MKDIR)
                   : node;
    if (op->call == RECORDED_LINK) {
        op->dir = op->other_dir;
        memcpy(op->name, op->other, sizeof op->name);
    }
    if (op->call == RECORDED_WRITE || op->call == RECORDED_TRUNCATE || op->call == RECORDED_SYNC) {
        op->dir = -1;
    }
    return op->node >= 0;
}

/* Does a sync of this node make the operation last? */
static bool is_synced_by(const struct op *op, const struct op *sync)
{
    return op->dir >= 0 ? sync->node == op->dir : sync->node == op->node;
}

static void find_syncs(void)
{
    for (int64_t i = 0; i < n_ops; i++) {
        ops[i].synced = NEVER;
        for (int64_t k = i + 1; k < n_ops && ops[i].synced == NEVER; k++) {
            if (ops[k].call == RECORDED_SYNC && is_synced_by(&ops[i], &ops[k])) {
                ops[i].synced = k;
            }
        }
    }
}

/* What is done is told by a directory of this name. */
static bool is_acknowledgement(const char *path)
{
    if (!pf_str_starts_with(path, "/acknowledged-")) {
        return false;
    }
    acknowledged_at[n_acknowledged++] = n_ops;
    return true;
}

/* All ranks are done with number i. */
static inline void acknowledge(int i)
{
    (void)pf_comm_barrier(world);
    if (rank == 0) {
        (void)mkdir(at("root/acknowledged-%d", i), 0777);
    }
    (void)pf_comm_barrier(world);
}

/* From here on what the ranks do below at("root") is recorded. */
static inline void begin_recording(void)
{
    if (rank == 0) {
        (void)pf_rmtree(at("root"));
        (void)mkdir(at("root"), 0777);
    }
    (void)pf_comm_barrier(world);
    setenv("RECORD_LOG", at("log"), 1);
    setenv("RECORD_ROOT", at("root"), 1);
}

/* It is over: read what was recorded. */
static inline void read_log(void)
{
    size_t len, at_byte = 0, room = 0;

    unsetenv("RECORD_ROOT");
    (void)pf_comm_barrier(world);
    log_text = get(at("log"), &len);
    (void)new_node(true); /* the root */
    while (at_byte < len) {
        struct recorded_head head;
        char path[512], other[512];
        memcpy(&head, log_text + at_byte, sizeof head);
        const char *p = log_text + at_byte + sizeof head;
        snprintf(path, sizeof path, "%.*s", (int)head.path_bytes, p);
        snprintf(other, sizeof other, "%.*s", (int)head.other_bytes, p + head.path_bytes);
        at_byte += sizeof head + head.path_bytes + head.other_bytes + head.data_bytes;
        if (is_acknowledgement(path)) {
            continue;
        }
        if ((size_t)n_ops == room) {
            room = room ? 2 * room : 64;
            ops = pf_realloc_array(ops, room, sizeof *ops);
        }
        struct op *const op = &ops[n_ops];
        *op = (struct op){.data = p + head.path_bytes + head.other_bytes};
        if (read_op(&head, path, other, op)) {
            play(op);
            n_ops++;
        }
    }
    find_syncs();
}

/* States ---------------------------------------------------------------------------------------- */

enum { KEEP, DROP, RANDOM };

/* The disk after the first k operations: of what is not synced, operations on directories as bits of
 * `names` say (those after the 64th at random), writes in this way. */
static void make_state(int64_t k, uint64_t names, int writes)
{
    int n = 0;

    disk_clear();
    for (int64_t i = 0; i < k; i++) {
        const struct op *const op = &ops[i];
        if (op->call == RECORDED_SYNC) {
            continue;
        }
        if (op->synced < k) {
            play(op);
        } else if (op->dir >= 0) {
            const uint64_t bit = n < 64 ? names >> n & 1 : pf_rng_bounded(key, 0, draws++, 2);
            n++;
            if (bit) {
                play(op);
            }
        } else if (writes == KEEP ||
                   (writes == RANDOM && pf_rng_bounded(key, 0, draws++, 3) == 0)) {
            play(op);
        } else if (writes == RANDOM && op->call == RECORDED_WRITE) {
            play_torn(op);
        }
    }
}

static int count_pending(int64_t k, bool of_dirs)
{
    int n = 0;

    for (int64_t i = 0; i < k; i++) {
        n += ops[i].call != RECORDED_SYNC && ops[i].synced >= k && (ops[i].dir >= 0) == of_dirs;
    }
    return n;
}

static void put_tree(int node, const char *path)
{
    const struct node *const d = &disk[node];

    if (!d->is_dir) {
        put(path, d->bytes ? d->bytes : "", d->size);
        return;
    }
    if (mkdir(path, 0777) != 0 && errno != EEXIST) {
        perror(path);
        exit(4);
    }
    for (int i = 0; i < d->n; i++) {
        char *const below = pf_path_join(path, d->names[i]);
        put_tree(d->nodes[i], below);
        pf_free(below);
    }
}

static void hash_tree(int node, struct pf_digest_state *state)
{
    const struct node *const d = &disk[node];

    pf_digest_update(state, &d->is_dir, sizeof d->is_dir);
    pf_digest_update(state, &d->size, sizeof d->size);
    pf_digest_update(state, d->bytes, d->size);
    for (int i = 0; i < d->n; i++) {
        pf_digest_update(state, d->names[i], strlen(d->names[i]) + 1);
        hash_tree(d->nodes[i], state);
    }
    pf_digest_update(state, "", 1);
}

static uint64_t *seen; /* a table of hashes; 0: free */
static int64_t n_seen;

/* Is it the first time that this state is met where so much is acknowledged, and this rank's to judge? All
 * ranks meet the same states in the same order. */
static bool is_new(int acknowledged)
{
    struct pf_digest_state *state;
    uint64_t hash;

    if (pf_digest_new(&state) != 0) {
        exit(4);
    }
    pf_digest_update(state, &acknowledged, sizeof acknowledged);
    hash_tree(0, state);
    const struct pf_digest digest = pf_digest_result(state);
    memcpy(&hash, &digest, sizeof hash);
    pf_digest_free(state);
    size_t i = hash % (2 * MAX_STATES);
    while (seen[i] != 0 && seen[i] != hash) {
        i = (i + 1) % (2 * MAX_STATES);
    }
    if (seen[i] == hash || n_seen == MAX_STATES) {
        return false;
    }
    seen[i] = hash;
    n_seen++;
    return hash % (uint64_t)pf_comm_size(world) == (uint64_t)rank;
}

/* Is this state, which stands below `root`, as it may be after so many acknowledgements? Says why not.
 * It may change it. */
typedef bool judge_fn(const char *root, int acknowledged);

static judge_fn *judge;
static int64_t n_wrong;

static void check_state(int64_t k, uint64_t names, int writes)
{
    int acknowledged = 0;
    char *const root = pf_strdup(at("state-%d", rank));

    make_state(k, names, writes);
    while (acknowledged < n_acknowledged && acknowledged_at[acknowledged] <= k) {
        acknowledged++;
    }
    if (is_new(acknowledged)) {
        put_tree(0, root);
        if (!judge(root, acknowledged) && n_wrong++ < 5) {
            printf("# after operation %lld of %lld, names %llx, writes %d, %d acknowledged\n",
                   (long long)k, (long long)n_ops, (unsigned long long)names, writes, acknowledged);
        }
        (void)pf_rmtree(root);
    }
    pf_free(root);
}

/* All combinations of names where there are few, else some; with writes as they are, without them, and
 * torn. */
static void check_prefix(int64_t k, int tries)
{
    const int n_names = count_pending(k, true), n_writes = count_pending(k, false);
    const int few = tries < 10 ? 3 : 6;
    const uint64_t all = n_names < 64 ? ((uint64_t)1 << n_names) - 1 : UINT64_MAX;
    const uint64_t n = n_names <= few ? all + 1 : (uint64_t)1 << few;

    for (uint64_t i = 0; i < n; i++) {
        const uint64_t draw = pf_rng_derive(key, draws++) & all;
        const uint64_t names = n_names <= few ? i : i == 0 ? 0 : i == 1 ? all : draw;
        check_state(k, names, KEEP);
        if (n_writes > 0) {
            check_state(k, names, DROP);
        }
        for (int t = 0; n_writes > 0 && t < tries; t++) {
            check_state(k, names, RANDOM);
        }
    }
}

/* All of them, shared among the ranks; this many random combinations of each choice of names. Returns how
 * many different states there were; n_wrong is this rank's. */
static inline int64_t check_states(judge_fn *how, int tries)
{
    judge = how;
    seen = pf_calloc_array(2 * MAX_STATES, sizeof *seen);
    n_seen = n_wrong = 0;
    key = pf_rng_derive(1, 0);
    for (int64_t k = 0; k <= n_ops; k++) {
        check_prefix(k, tries);
    }
    pf_free(seen);
    return n_seen;
}

static inline void forget_log(void)
{
    (void)pf_comm_barrier(world);
    disk_clear();
    pf_free(ops);
    pf_free(log_text);
    ops = NULL;
    log_text = NULL;
    n_ops = n_nodes = n_acknowledged = 0;
    if (rank == 0) {
        (void)unlink(at("log"));
    }
}

#endif
