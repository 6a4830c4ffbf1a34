/* SPDX-License-Identifier: Apache-2.0 */
/* ranks: 1 4 */
/*
 * What a loss of power can leave of a save. recorder.so writes down all that the ranks do to a run's
 * directory in four saves: a first, one with parity, a compressed one that removes the oldest, one that
 * goes back and replaces a step. Then for every prefix of that the states are made that a disk may hold: what was
 * synced is there; of the rest each operation on a directory is kept or dropped, each write is kept,
 * dropped, or torn at sectors, in any combination. Each state must load, with its digests, as the save
 * that was acknowledged last or the one under way, have nothing that `verify` finds in it, and let the
 * next save through.
 *   CRASH_STATES=N   random combinations at each prefix (make check-long: 100); 2 otherwise
 */
#include "../preload/recorded.h"

#include <pf/ckpt.h>
#include <pf/digest.h>
#include <pf/planes.h>
#include <pf/rng.h>

#include "jobs.h"
#include "preloaded.h"
#include "small_state.h"

#include <errno.h>

#define SECTOR 512
#define N_SAVES 4
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
static int64_t n_ops, acknowledged_at[N_SAVES];
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

/* Saves say that they are done by a directory of this name. */
static bool is_acknowledgement(const char *path)
{
    if (!pf_str_starts_with(path, "/acknowledged-")) {
        return false;
    }
    acknowledged_at[strtol(path + 14, NULL, 10) - 1] = n_ops;
    return true;
}

static void read_log(void)
{
    size_t len, at_byte = 0, room = 0;

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

/* Is it the first time that this state is met where so many saves are acknowledged? */
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
    return true;
}

/* Which of the saves loads: its number, 0 if there is none; -1, said why, if it is something else. */
static int loads(const char *out)
{
    struct small_state got, want;
    struct pf_ckpt *ckpt = NULL;
    struct pf_ckpt_fault *faults = NULL;
    int64_t n_faults = 0;
    char *path = NULL;
    int found = -1, err = pf_ckpt_latest(out, &path);

    if (!err && !path) {
        return 0;
    }
    small_state_make(&got, -1, 0, 1);
    err = err ? err : pf_ckpt_open(path, &ckpt);
    err = err ? err : pf_ckpt_load(NULL, ckpt, got.live, SMALL_N_LIVE, true);
    err = err ? err : pf_ckpt_verify(path, &faults, &n_faults);
    for (int seed = 1; !err && n_faults == 0 && seed <= N_SAVES; seed++) {
        small_state_make(&want, seed, 0, 1);
        if (memcmp(&got, &want, offsetof(struct small_state, live)) == 0) {
            found = seed;
        }
    }
    if (found < 0) {
        printf("# %s\n", err ? pf_error_message() : n_faults > 0 ? faults[0].message : "a mix");
    }
    pf_ckpt_faults_free(faults, n_faults);
    pf_ckpt_free(ckpt);
    pf_free(path);
    return found;
}

/* A run that is started on it goes on. */
static bool lets_a_save_through(const char *out)
{
    char *path = NULL;
    const bool saved = pf_ckpt_clean_staging(out) == 0 &&
                       small_state_save(NULL, out, 9, 9, PF_CKPT_PLAIN) == 0 &&
                       pf_ckpt_latest(out, &path) == 0 && path &&
                       strcmp(pf_path_base(path), "checkpoint-000009") == 0;

    pf_free(path);
    return saved;
}

static int64_t n_wrong;

static void check_state(int64_t k, uint64_t names, int writes)
{
    int acknowledged = 0;
    char *const root = pf_strdup(at("state-%d", rank)), *const out = pf_path_join(root, "run/out");

    make_state(k, names, writes);
    while (acknowledged < N_SAVES && acknowledged_at[acknowledged] <= k) {
        acknowledged++;
    }
    if (is_new(acknowledged)) {
        put_tree(0, root);
        const int found = loads(out);
        bool good = found == acknowledged || found == acknowledged + 1;
        if (good && !lets_a_save_through(out)) {
            printf("# no further save: %s\n", pf_error_message());
            good = false;
        }
        if (!good && n_wrong++ < 5) {
            printf(
                "# after operation %lld of %lld, names %llx, writes %d: save %d was acknowledged, "
                "%d loads\n",
                (long long)k, (long long)n_ops, (unsigned long long)names, writes, acknowledged,
                found);
        }
        (void)pf_rmtree(root);
    }
    pf_free(root);
    pf_free(out);
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

static int64_t sum(int64_t n)
{
    (void)pf_comm_all_reduce(world, &n, 1, PF_COMM_I64, PF_COMM_SUM);
    return n;
}

static void each_state_is_the_old_or_the_new_one(void)
{
    const char *const tries = getenv("CRASH_STATES");
    const int n_tries = tries ? (int)strtol(tries, NULL, 10) : 2;

    seen = pf_calloc_array(2 * MAX_STATES, sizeof *seen);
    key = pf_rng_derive(1, (uint64_t)rank);
    for (int64_t k = rank; k <= n_ops; k += pf_comm_size(world)) {
        check_prefix(k, n_tries);
    }
    const int64_t n_states = sum(n_seen);
    all_ok(n_wrong == 0, "each of %lld states at %lld operations is the old save or the new one",
           (long long)n_states, (long long)n_ops);
    all_ok(n_states > (n_tries < 100 || pf_comm_size(world) < 4 ? n_ops : 5000),
           "and these are many");
    pf_free(seen);
}

/* Recording ------------------------------------------------------------------------------------- */

static void acknowledge(int i)
{
    (void)pf_comm_barrier(world);
    if (rank == 0) {
        (void)mkdir(at("root/acknowledged-%d", i), 0777);
    }
    (void)pf_comm_barrier(world);
}

static int save(int64_t step, int seed, bool replace)
{
    const struct pf_ckpt_save options = {.output_dir = at("root/run/out"),
                                         .step = step,
                                         .state_json = "{\"position\":3}",
                                         .codec = seed == 3 && pf_planes_is_built() ? PF_CKPT_ZSTD
                                                                                    : PF_CKPT_PLAIN,
                                         .parity = seed == 2,
                                         .replace = replace,
                                         .total_limit = 2};
    const int err = small_state_save_as(world, &options, seed);

    acknowledge(seed);
    return err;
}

static void four_saves_are_recorded(void)
{
    if (rank == 0) {
        (void)mkdir(at("root"), 0777);
    }
    (void)pf_comm_barrier(world);
    setenv("RECORD_LOG", at("log"), 1);
    setenv("RECORD_ROOT", at("root"), 1);
    const bool saved = save(1, 1, false) == 0 && save(2, 2, false) == 0 && save(3, 3, false) == 0 &&
                       save(2, 4, true) == 0;
    unsetenv("RECORD_ROOT");
    all_ok(saved, "four states are saved");
    read_log();
    all_ok(acknowledged_at[N_SAVES - 1] > 60, "%lld operations are recorded", (long long)n_ops);
}

int main(int argc, char **argv)
{
    const bool recorded = preloaded(argv, "recorder");

    jobs_begin(argc, argv);
    if (recorded) {
        four_saves_are_recorded();
        each_state_is_the_old_or_the_new_one();
    } else if (rank == 0) {
        skip("states after a loss of power",
             "a preloaded library and the sanitizer do not go together");
    }
    disk_clear();
    pf_free(ops);
    pf_free(log_text);
    return jobs_end();
}
