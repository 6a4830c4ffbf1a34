/* SPDX-License-Identifier: Apache-2.0 */
/* pack.c - which pieces of documents lie together in a window. */
#include "data_internal.h"

#include <pf/error.h>
#include <pf/mem.h>
#include <pf/rng.h>

#include <math.h>
#include <string.h>

/* Where epochs start is remembered for so many; what lies beyond is walked to. */
#define MAX_KNOWN 4096

struct pf_pack {
    int64_t seq;
    uint64_t key;
    bool shuffle;
    struct pf_pack_piece *pieces;
    int64_t n_pieces;
    /* the epoch that is laid out */
    int64_t epoch, n_windows;
    int32_t *starts;        /* [n_windows + 1]: window w holds items starts[w] .. starts[w+1]-1 */
    int32_t *items;         /* [n_pieces]: pieces, window by window */
    int64_t *firsts;        /* [n_known]: windows before epoch e; [0] is 0 */
    int64_t n_known, first; /* windows before the epoch that is laid out */
    /* work space of laying out */
    int32_t *order, *window_of; /* [n_pieces]: what is placed k-th, and where it goes */
    int32_t *room;              /* a tree over windows: each node has the largest room below it */
    int64_t n_leaves;
};

/* Pieces ---------------------------------------------------------------------------------------- */

/* How many pieces of documents [lo, hi) predict something; they go to `pieces` unless it is NULL. */
static int64_t cut(const struct pf_source *source, int64_t lo, int64_t hi,
                   struct pf_pack_piece *pieces)
{
    int64_t count = 0, first, end;

    for (int64_t d = lo; d < hi; d++) {
        source->ops->document(source, d, &first, &end);
        for (; end - first >= 2; first += source->seq) {
            const int64_t n = end - first < source->seq ? end - first : source->seq;
            if (pieces) {
                pieces[count] = (struct pf_pack_piece){
                    .first = first, .n = (int32_t)n, .goes_on = first + n < end};
            }
            count++;
        }
    }
    return count;
}

/* Laying out ------------------------------------------------------------------------------------ */

static void clear_room(struct pf_pack *pack)
{
    for (int64_t i = 1; i < 2 * pack->n_leaves; i++) {
        pack->room[i] = (int32_t)pack->seq;
    }
}

/* The first window with room for n tokens; they are taken from it. */
static int32_t place(struct pf_pack *pack, int32_t n)
{
    int32_t *const room = pack->room;
    int64_t i = 1;

    while (i < pack->n_leaves) {
        i = 2 * i + (room[2 * i] < n);
    }
    const int64_t window = i - pack->n_leaves;
    room[i] -= n;
    for (i /= 2; i > 0; i /= 2) {
        const int32_t a = room[2 * i], b = room[2 * i + 1];
        room[i] = a > b ? a : b;
    }
    return (int32_t)window;
}

/* From window_of to lists: the pieces of a window stay in the order in which they were placed. */
static void make_lists(struct pf_pack *pack)
{
    int32_t *const starts = pack->starts;

    memset(starts, 0, (size_t)(pack->n_windows + 1) * sizeof *starts);
    for (int64_t k = 0; k < pack->n_pieces; k++) {
        starts[pack->window_of[k] + 1]++;
    }
    for (int64_t w = 0; w < pack->n_windows; w++) {
        starts[w + 1] += starts[w];
    }
    for (int64_t k = 0; k < pack->n_pieces; k++) {
        pack->items[starts[pack->window_of[k]]++] = pack->order[k];
    }
    for (int64_t w = pack->n_windows; w > 0; w--) {
        starts[w] = starts[w - 1];
    }
    starts[0] = 0;
}

static uint64_t epoch_key(const struct pf_pack *pack, int64_t epoch)
{
    return pf_rng_derive(pack->key, (uint64_t)epoch);
}

static void lay_out(struct pf_pack *pack, int64_t epoch)
{
    const uint64_t key = epoch_key(pack, epoch), n = (uint64_t)pack->n_pieces;

    clear_room(pack);
    pack->n_windows = 0;
    for (int64_t k = 0; k < pack->n_pieces; k++) {
        const int64_t i = pack->shuffle ? (int64_t)pf_rng_permute(key, n, (uint64_t)k) : k;
        const int32_t window = place(pack, pack->pieces[i].n);
        pack->order[k] = (int32_t)i;
        pack->window_of[k] = window;
        pack->n_windows = window >= pack->n_windows ? window + 1 : pack->n_windows;
    }
    make_lists(pack);
    pack->epoch = epoch;
}

/* Move to the epoch that holds window number `count` of all. */
static void go_to(struct pf_pack *pack, int64_t count)
{
    if (!pack->shuffle) { /* all epochs are laid out alike */
        pack->epoch = count / pack->n_windows;
        pack->first = pack->epoch * pack->n_windows;
        return;
    }
    if (count < pack->first) {
        int64_t e = pack->n_known - 1;
        while (pack->firsts[e] > count) {
            e--;
        }
        pack->first = pack->firsts[e];
        lay_out(pack, e);
    }
    while (count - pack->first >= pack->n_windows) {
        pack->first += pack->n_windows;
        if (pack->epoch + 1 == pack->n_known && pack->n_known < MAX_KNOWN) {
            pack->firsts[pack->n_known++] = pack->first;
        }
        lay_out(pack, pack->epoch + 1);
    }
}

/* The handle ------------------------------------------------------------------------------------ */

static int allocate(struct pf_pack *pack)
{
    const size_t n = (size_t)pack->n_pieces;

    for (pack->n_leaves = 1; pack->n_leaves < pack->n_pieces;) {
        pack->n_leaves *= 2;
    }
    pack->pieces = pf_calloc_array(n, sizeof *pack->pieces);
    pack->starts = pf_calloc_array(n + 1, sizeof *pack->starts);
    pack->items = pf_calloc_array(n, sizeof *pack->items);
    pack->order = pf_calloc_array(n, sizeof *pack->order);
    pack->window_of = pf_calloc_array(n, sizeof *pack->window_of);
    pack->room = pf_calloc_array(2 * (size_t)pack->n_leaves, sizeof *pack->room);
    pack->firsts = pf_calloc_array(MAX_KNOWN, sizeof *pack->firsts);
    return pack->pieces && pack->starts && pack->items && pack->order && pack->window_of &&
                   pack->room && pack->firsts
               ? 0
               : PF_ENOMEM;
}

int pf_pack_new(const struct pf_source *source, int64_t lo, int64_t hi, uint64_t key, bool shuffle,
                struct pf_pack **pack_out)
{
    struct pf_pack *const pack = pf_alloc(sizeof *pack);
    int err = 0;

    if (!pack) {
        return PF_ENOMEM;
    }
    *pack = (struct pf_pack){.seq = source->seq, .key = key, .shuffle = shuffle, .n_known = 1};
    pack->n_pieces = cut(source, lo, hi, NULL);
    if (pack->n_pieces == 0 || pack->n_pieces >= INT32_MAX) {
        err = pf_fail(PF_EINVAL, "'%s' has %s documents of two tokens or more to pack",
                      source->name, pack->n_pieces == 0 ? "no" : "2^31 or more");
        goto out;
    }
    PF_TRY_GOTO(allocate(pack), out);
    (void)cut(source, lo, hi, pack->pieces);
    lay_out(pack, 0);
    *pack_out = pack;
    return 0;
out:
    pf_pack_free(pack);
    return err;
}

void pf_pack_free(struct pf_pack *pack)
{
    if (!pack) {
        return;
    }
    pf_free(pack->pieces);
    pf_free(pack->starts);
    pf_free(pack->items);
    pf_free(pack->order);
    pf_free(pack->window_of);
    pf_free(pack->room);
    pf_free(pack->firsts);
    pf_free(pack);
}

int64_t pf_pack_n_windows(struct pf_pack *pack)
{
    go_to(pack, 0);
    return pack->n_windows;
}

int64_t pf_pack_length(struct pf_pack *pack, double epochs)
{
    const double whole = floor(epochs);
    int64_t count = 0;

    if (!(epochs < MAX_KNOWN)) {
        return (int64_t)fmin(ceil(epochs * (double)pf_pack_n_windows(pack)), 0x1p62);
    }
    for (int64_t e = 0; e < (int64_t)whole; e++) {
        go_to(pack, count);
        count += pack->n_windows;
    }
    if (epochs > whole) {
        go_to(pack, count);
        count += (int64_t)ceil((epochs - whole) * (double)pack->n_windows);
    }
    return count;
}

int64_t pf_pack_n_tokens(const struct pf_pack *pack)
{
    int64_t n = 0;

    for (int64_t i = 0; i < pack->n_pieces; i++) {
        n += pack->pieces[i].n;
    }
    return n;
}

int64_t pf_pack_n_pieces_at(struct pf_pack *pack, int64_t count, int64_t *item_out)
{
    go_to(pack, count);
    const uint64_t key = pf_rng_derive_name(epoch_key(pack, pack->epoch), "order of windows");
    const int64_t at = count - pack->first;
    const int64_t window =
        pack->shuffle ? (int64_t)pf_rng_permute(key, (uint64_t)pack->n_windows, (uint64_t)at) : at;

    *item_out = pack->starts[window];
    return pack->starts[window + 1] - pack->starts[window];
}

const struct pf_pack_piece *pf_pack_piece(const struct pf_pack *pack, int64_t item)
{
    return &pack->pieces[pack->items[item]];
}
