/* SPDX-License-Identifier: Apache-2.0 */
/* Groups cut from a communicator, and the world's cache of them by their lists of ranks. */
#include "comm_internal.h"

#include <pf/digest.h>
#include <pf/error.h>
#include <pf/mem.h>

#include <stdio.h>
#include <string.h>

/* A list of ranks of a parent. Every rank of the parent remembers it, also those outside it, so that
 * all know alike which groups there are. */
struct group {
    uint64_t key; /* of parent and list */
    const struct pf_comm *parent;
    int *ranks;
    int n;
    struct pf_comm *comm; /* NULL on ranks outside the list */
};

struct pf_comm_groups {
    struct group *entries;
    size_t n, capacity;
};

/* The lists of one call: list i is ranks[starts[i]] up to ranks[starts[i + 1]]. */
struct lists {
    const int *starts, *ranks;
    int n;
};

struct pf_comm_groups *pf_comm_groups_new(void)
{
    return pf_alloc(sizeof(struct pf_comm_groups));
}

int pf_comm_groups_free(struct pf_comm_groups *groups)
{
    int first = 0;

    for (size_t i = groups->n; i-- > 0;) {
        struct group *group = &groups->entries[i];
        const int err = group->comm ? group->comm->ops->free(group->comm) : 0;
        first = first ? first : err;
        pf_free(group->ranks);
    }
    pf_free(groups->entries);
    pf_free(groups);
    return first;
}

static const int *list_at(const struct lists *lists, int i, int *n_out)
{
    *n_out = lists->starts[i + 1] - lists->starts[i];
    return lists->ranks + lists->starts[i];
}

static uint64_t list_key(const struct pf_comm *parent, const int *ranks, int n)
{
    const uint64_t parts[] = {parent->uid, pf_hash_bytes(ranks, (size_t)n * sizeof *ranks)};

    return pf_hash_bytes(parts, sizeof parts);
}

static struct group *find_group(const struct pf_comm *parent, const int *ranks, int n)
{
    struct pf_comm_groups *groups = parent->world->groups;
    const uint64_t key = list_key(parent, ranks, n);

    for (size_t i = 0; i < groups->n; i++) {
        struct group *group = &groups->entries[i];
        if (group->key == key && group->parent == parent && group->n == n &&
            memcmp(group->ranks, ranks, (size_t)n * sizeof *ranks) == 0) {
            return group;
        }
    }
    return NULL;
}

static int reserve_entries(struct pf_comm_groups *groups, size_t n_more)
{
    size_t capacity = groups->capacity ? groups->capacity : 16;

    while (capacity < groups->n + n_more) {
        capacity *= 2;
    }
    if (capacity == groups->capacity) {
        return 0;
    }
    struct group *entries = pf_realloc_array(groups->entries, capacity, sizeof *entries);
    if (!entries) {
        return PF_ENOMEM;
    }
    groups->entries = entries;
    groups->capacity = capacity;
    return 0;
}

/* Entries for the lists that are not known yet, behind the known ones but not yet counted. */
static int add_entries(struct pf_comm *parent, const struct lists *lists, size_t *n_new_out)
{
    struct pf_comm_groups *groups = parent->world->groups;
    size_t n_new = 0;
    int err;

    *n_new_out = 0;
    PF_TRY(reserve_entries(groups, (size_t)lists->n));
    for (int i = 0; i < lists->n; i++) {
        int n;
        const int *const ranks = list_at(lists, i, &n);
        if (find_group(parent, ranks, n)) {
            continue;
        }
        struct group *const group = &groups->entries[groups->n + n_new];
        *group = (struct group){.key = list_key(parent, ranks, n), .parent = parent, .n = n};
        group->ranks = pf_calloc_array((size_t)n, sizeof *ranks);
        PF_TRY_GOTO(group->ranks ? 0 : PF_ENOMEM, out);
        memcpy(group->ranks, ranks, (size_t)n * sizeof *ranks);
        n_new++;
    }
    *n_new_out = n_new;
    return 0;
out:
    while (n_new-- > 0) {
        pf_free(groups->entries[groups->n + n_new].ranks);
    }
    return err;
}

/* Everything that parent's ranks must agree on before they make groups. */
static uint64_t order_hash(const struct pf_comm *parent, const struct group *groups, size_t n,
                           const char *name)
{
    uint64_t hash = parent->order_hash;

    for (size_t i = 0; i < n; i++) {
        const uint64_t parts[] = {hash, groups[i].key, pf_hash_string(name)};
        hash = pf_hash_bytes(parts, sizeof parts);
    }
    return hash;
}

static bool has_rank(const struct group *group, int rank)
{
    for (int i = 0; i < group->n; i++) {
        if (group->ranks[i] == rank) {
            return true;
        }
    }
    return false;
}

/* Make the groups of n new entries. */
static int make_groups(const char *at, struct pf_comm *parent, struct group *entries, size_t n,
                       const char *name)
{
    const uint64_t hash = order_hash(parent, entries, n, name);
    struct group *mine = NULL;
    int largest = 0;
    struct pf_comm *comm;
    char what[160];

    snprintf(what, sizeof what, "the list of ranks of group '%s'", name);
    PF_TRY(pf_comm_same_at(at, parent, &hash, sizeof hash, what));
    for (size_t i = 0; i < n; i++) {
        largest = entries[i].n > largest ? entries[i].n : largest;
        mine = has_rank(&entries[i], parent->rank) ? &entries[i] : mine;
    }
    PF_TRY(parent->ops->split(parent, mine ? mine->ranks : NULL, mine ? mine->n : 0, largest, name,
                              &comm));
    parent->order_hash = hash;
    if (mine) {
        const uint64_t parts[] = {hash, mine->key};
        mine->comm = comm;
        comm->uid = pf_hash_bytes(parts, sizeof parts);
    }
    return 0;
}

/* Make what is new of the lists. */
static int make_new(const char *at, struct pf_comm *parent, const struct lists *lists,
                    const char *name)
{
    struct pf_comm_groups *groups = parent->world->groups;
    size_t n_new = 0;
    const int local = add_entries(parent, lists, &n_new);
    int err = pf_comm_all_agree_at(at, parent, local, NULL);

    struct group *const entries = groups->entries + groups->n;
    err = err ? err : make_groups(at, parent, entries, n_new, name);
    if (err) {
        for (size_t i = 0; i < n_new; i++) {
            pf_free(entries[i].ranks);
        }
        return err;
    }
    groups->n += n_new;
    return 0;
}

/* This rank's group of the lists: made, or found. */
static int split(const char *at, struct pf_comm *parent, const struct lists *lists,
                 const char *name, struct pf_comm **group_out)
{
    struct pf_comm *mine = NULL;
    bool known = true;

    for (int i = 0; i < lists->n && known; i++) {
        int n;
        const int *const ranks = list_at(lists, i, &n);
        known = find_group(parent, ranks, n) != NULL;
    }
    if (!known) {
        PF_TRY(make_new(at, parent, lists, name));
    }
    for (int i = 0; i < lists->n && !mine; i++) {
        int n;
        const int *const ranks = list_at(lists, i, &n);
        mine = find_group(parent, ranks, n)->comm;
    }
    *group_out = mine;
    return 0;
}

static int check_list(const struct pf_comm *parent, const int *ranks, int n, const char *name)
{
    if (n < 1 || n > parent->size) {
        return pf_fail(PF_EINVAL, "group '%s' of %d ranks cut from '%s' of %d", name, n,
                       parent->name, parent->size);
    }
    for (int i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= parent->size) {
            return pf_fail(PF_EINVAL, "group '%s' has rank %d, '%s' has ranks 0 to %d", name,
                           ranks[i], parent->name, parent->size - 1);
        }
        for (int j = 0; j < i; j++) {
            if (ranks[i] == ranks[j]) {
                return pf_fail(PF_EINVAL, "group '%s' has rank %d twice", name, ranks[i]);
            }
        }
    }
    return 0;
}

int pf_comm_split_at(const char *at, struct pf_comm *parent, const int *ranks, int n,
                     const char *name, struct pf_comm **group_out)
{
    const int starts[2] = {0, n};

    PF_TRY(check_list(parent, ranks, n, name));
    return split(at, parent, &(struct lists){.starts = starts, .ranks = ranks, .n = 1}, name,
                 group_out);
}

/* Sort the ranks by their part, in parent->parts: first the starts, then the ranks. */
static int sort_parts(struct pf_comm *parent, const int *part, const char *name,
                      struct lists *lists_out)
{
    const int size = parent->size;
    int *const starts = parent->parts, *const ranks = starts + size + 1;
    int n_lists = 0, at = 0;

    for (int r = 0; r < size; r++) {
        if (part[r] < -1 || part[r] >= size) {
            return pf_fail(PF_EINVAL, "rank %d of '%s' is to be in part %d of '%s', which has %d",
                           r, parent->name, part[r], name, size);
        }
    }
    memset(starts, 0, (size_t)(size + 1) * sizeof *starts);
    for (int r = 0; r < size; r++) {
        starts[part[r] + 1]++; /* those in no part count in starts[0] */
    }
    starts[0] = 0;
    for (int p = 0; p < size; p++) {
        starts[p + 1] += starts[p];
    }
    for (int r = 0; r < size; r++) {
        if (part[r] >= 0) {
            ranks[starts[part[r]]++] = r;
        }
    }
    /* Each start has moved to its end. Keep the starts of parts that have ranks. */
    for (int p = 0; p < size; p++) {
        const int end = starts[p];
        if (end > at) {
            starts[n_lists++] = at;
            at = end;
        }
    }
    starts[n_lists] = at;
    *lists_out = (struct lists){.starts = starts, .ranks = ranks, .n = n_lists};
    return 0;
}

int pf_comm_partition_at(const char *at, struct pf_comm *parent, const int *part, const char *name,
                         struct pf_comm **group_out)
{
    struct lists lists;

    PF_TRY(sort_parts(parent, part, name, &lists));
    return split(at, parent, &lists, name, group_out);
}

int pf_comm_count(const struct pf_comm *comm)
{
    const struct pf_comm_groups *groups = comm->world->groups;
    int n = 1;

    for (size_t i = 0; i < groups->n; i++) {
        n += groups->entries[i].comm != NULL;
    }
    return n;
}

uint64_t pf_comm_order_hash(const struct pf_comm *parent)
{
    return parent->order_hash;
}
