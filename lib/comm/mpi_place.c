/* SPDX-License-Identifier: Apache-2.0 */
/* Where ranks are: what each waits for, and, when a deadline has passed, who is to blame. */
#include "mpi_internal.h"

#include <pf/error.h>
#include <pf/time.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Is the operation between some ranks of the group, so that its number means nothing to others? */
static bool is_messages(int32_t kind)
{
    return kind == PF_COMM_SEND || kind == PF_COMM_RECV || kind == PF_COMM_GROUP;
}

void pf_mpi_set_place(struct mpi *c, enum pf_comm_kind kind, int peer, int tag)
{
    struct place *place = &c->job->place;

    place->uid = c->base.uid;
    place->sequence = c->base.sequence;
    place->kind = kind;
    place->peer = peer < 0 ? -1 : c->base.world_ranks[peer];
    place->tag = tag;
    c->job->at = c;
    if (!is_messages(kind)) {
        c->kinds[c->base.sequence % HISTORY] = (unsigned char)kind;
        c->sites[c->base.sequence % HISTORY] = c->base.site;
    }
    memcpy(place->kinds, c->kinds, sizeof place->kinds);
    snprintf(place->group, sizeof place->group, "%s", c->base.name);
}

static void copy_site(char to[SITE_BYTES], const char *site)
{
    const size_t n = site ? strlen(site) : 0;

    snprintf(to, SITE_BYTES, "%s", n < SITE_BYTES ? (site ? site : "") : site + n + 1 - SITE_BYTES);
}

/* Call sites are kept as pointers until somebody wants to know them. */
static void fill_sites(struct job *job)
{
    struct place *place = &job->place;

    if (!job->at) {
        return;
    }
    copy_site(place->site, job->at->base.site);
    for (int i = 0; i < HISTORY; i++) {
        copy_site(place->sites[i], job->at->sites[i]);
    }
}

static void tell(struct mpi *c, int to_world_rank, bool is_question)
{
    struct job *job = c->job;
    struct news *news = &job->outbox[to_world_rank];
    MPI_Request *busy = &job->outbox_busy[to_world_rank];
    int done = 1;

    if (*busy != MPI_REQUEST_NULL) {
        MPI_Test(busy, &done, MPI_STATUS_IGNORE);
    }
    if (!done) {
        return; /* the one on its way says the same, or its reader is gone */
    }
    fill_sites(job);
    *news = (struct news){
        .place = job->place,
        .world_rank = c->base.world->rank,
        .is_question = is_question,
        .yields = is_question && job->yields,
    };
    MPI_Isend(news, (int)sizeof *news, MPI_BYTE, to_world_rank, 0, job->news, busy);
}

/* Take in what other ranks say, answer those that ask. */
void pf_mpi_listen(struct mpi *c)
{
    struct job *job = c->job;
    const int size = c->base.world->size;
    int arrived = 0;

    while (MPI_Iprobe(MPI_ANY_SOURCE, 0, job->news, &arrived, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
           arrived) {
        struct news news;
        if (MPI_Recv(&news, (int)sizeof news, MPI_BYTE, MPI_ANY_SOURCE, 0, job->news,
                     MPI_STATUS_IGNORE) != MPI_SUCCESS ||
            news.world_rank < 0 || news.world_rank >= size) {
            return;
        }
        struct heard *heard = &job->heard[news.world_rank];
        heard->heard = true;
        heard->expired = heard->expired || (news.is_question && !news.yields);
        heard->place = news.place;
        if (news.is_question) {
            tell(c, news.world_rank, false);
        }
    }
}

static bool all_heard(const struct mpi *c)
{
    for (int r = 0; r < c->base.world->size; r++) {
        if (r != c->base.world->rank && !c->job->heard[r].heard) {
            return false;
        }
    }
    return true;
}

static void ask_all(struct mpi *c)
{
    const int size = c->base.world->size;
    const double until = pf_time_monotonic() + ANSWER_S;

    for (int r = 0; r < size; r++) {
        if (r != c->base.world->rank) {
            tell(c, r, true);
        }
    }
    while (!all_heard(c) && pf_time_monotonic() < until) {
        pf_mpi_listen(c);
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_MAX_NS}, NULL);
    }
    pf_mpi_listen(c);
}

/* "all_reduce number 17 of group 'world' (lib/train/step.c:12)" */
void pf_mpi_describe(const struct place *place, char *text, size_t text_bytes)
{
    const char *kind = pf_comm_kind_name((enum pf_comm_kind)place->kind);
    const char *open = place->site[0] ? " (" : "", *close = place->site[0] ? ")" : "";

    if (place->kind == PF_COMM_SEND || place->kind == PF_COMM_RECV) {
        snprintf(text, text_bytes, "%s %s rank %d with tag %d in group '%s'%s%s%s", kind,
                 place->kind == PF_COMM_SEND ? "to" : "from", place->peer, place->tag, place->group,
                 open, place->site, close);
    } else if (place->kind == PF_COMM_GROUP) {
        snprintf(text, text_bytes, "%s of group '%s'%s%s%s", kind, place->group, open, place->site,
                 close);
    } else {
        snprintf(text, text_bytes, "%s number %" PRIu64 " of group '%s'%s%s%s", kind,
                 place->sequence, place->group, open, place->site, close);
    }
}

void pf_mpi_describe_own(struct mpi *c, char *text, size_t text_bytes)
{
    fill_sites(c->job);
    pf_mpi_describe(&c->job->place, text, text_bytes);
}

/* Does this rank wait for that one? In a collective for all that are not past it; otherwise for the
 * peers of requests that are still open. */
static bool awaits(const struct mpi *c, int world_rank)
{
    const struct job *job = c->job;

    if (!is_messages(job->place.kind)) {
        for (int i = 0; i < c->base.size; i++) {
            if (c->base.world_ranks[i] == world_rank) {
                return world_rank != c->base.world->rank;
            }
        }
        return false;
    }
    for (size_t i = 0; i < job->n_requests; i++) {
        if (job->requests[i] != MPI_REQUEST_NULL && job->info[i].peer == world_rank) {
            return true;
        }
    }
    return false;
}

static bool is_at(const struct place *theirs, const struct place *mine)
{
    return theirs->uid == mine->uid && theirs->sequence >= mine->sequence;
}

/* Do two ranks remember the latest collective that both have begun as different ones? Its number is
 * *number_out. */
static bool contradicts(const struct place *theirs, const struct place *mine, uint64_t *number_out)
{
    const uint64_t n = theirs->sequence < mine->sequence ? theirs->sequence : mine->sequence;

    *number_out = n;
    return theirs->uid == mine->uid && n > 0 && theirs->sequence - n < HISTORY &&
           mine->sequence - n < HISTORY && theirs->kinds[n % HISTORY] != mine->kinds[n % HISTORY];
}

/* "rank 2", "ranks 2, 3 and 7", at most eight by name. Counts only those for which `silent` says
 * how they answered; awaited restricts to the ranks that this one waits for. */
static int list_silent(const struct mpi *c, bool awaited, char *text, size_t text_bytes)
{
    const int size = c->base.world->size;
    size_t used = 0;
    int n = 0;

    text[0] = '\0';
    for (int r = 0; r < size; r++) {
        if (r == c->base.world->rank || c->job->heard[r].heard || (awaited && !awaits(c, r))) {
            continue;
        }
        if (n < 8 && used + 16 < text_bytes) {
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%d", n ? ", " : "", r);
        }
        n++;
    }
    if (n > 8 && used + 24 < text_bytes) {
        snprintf(text + used, text_bytes - used, " and %d more", n - 8);
    }
    return n;
}

/*
 * Where two ranks first called a collective of one number at different places, of those that both
 * remember, before number `end`: "; number 7 was called at a.c:1 on rank 0, at b.c:2 on rank 1". Ranks
 * may do so rightly, as where the root has a line of its own, so this is added to a fault and never is
 * one.
 */
static void describe_fork(const struct mpi *c, int other, uint64_t end, char *text,
                          size_t text_bytes)
{
    const struct place *mine = &c->job->place, *theirs = &c->job->heard[other].place;
    const uint64_t last = mine->sequence > theirs->sequence ? mine->sequence : theirs->sequence;
    const int me = c->base.world->rank;
    const bool is_lower = me < other;

    text[0] = '\0';
    for (uint64_t n = last < HISTORY ? 1 : last - HISTORY + 1; n < end; n++) {
        const char *my_site = mine->sites[n % HISTORY], *their_site = theirs->sites[n % HISTORY];
        if (strcmp(my_site, their_site) != 0) {
            snprintf(text, text_bytes,
                     "; number %" PRIu64 " was called at %s on rank %d, at %s on rank %d", n,
                     is_lower ? my_site : their_site, is_lower ? me : other,
                     is_lower ? their_site : my_site, is_lower ? other : me);
            return;
        }
    }
}

static int blame_contradiction(const struct mpi *c, int other, uint64_t number)
{
    const struct place *mine = &c->job->place, *theirs = &c->job->heard[other].place;
    const int me = c->base.world->rank;
    const bool is_lower = me < other;
    const struct place *low = is_lower ? mine : theirs, *high = is_lower ? theirs : mine;
    const uint64_t at = number % HISTORY;
    char fork[200];

    describe_fork(c, other, number, fork, sizeof fork);
    return pf_fail(PF_EDISAGREE,
                   "ranks disagree: number %" PRIu64 " of group '%s' is %s on rank %d (%s), %s on "
                   "rank %d (%s)%s",
                   number, mine->group, pf_comm_kind_name(low->kinds[at]), is_lower ? me : other,
                   low->sites[at], pf_comm_kind_name(high->kinds[at]), is_lower ? other : me,
                   high->sites[at], fork);
}

/* `other` answers, but from elsewhere; it may itself be waiting for a rank that is silent. */
static int blame_elsewhere(const struct mpi *c, int other)
{
    const struct place *mine = &c->job->place, *theirs = &c->job->heard[other].place;
    char mine_text[192], their_text[192], silent[96], tail[128] = "", fork[200] = "";

    pf_mpi_describe(&c->job->place, mine_text, sizeof mine_text);
    pf_mpi_describe(&c->job->heard[other].place, their_text, sizeof their_text);
    const int n_silent = list_silent(c, false, silent, sizeof silent);
    if (n_silent > 0) {
        snprintf(tail, sizeof tail, "; no answer from rank%s %s", n_silent > 1 ? "s" : "", silent);
    }
    if (mine->uid == theirs->uid) {
        const bool behind = theirs->sequence < mine->sequence;
        describe_fork(c, other, (behind ? theirs : mine)->sequence + 1, fork, sizeof fork);
    }
    return pf_fail(PF_ETIMEOUT, "rank %d did not arrive at %s within %g s: it waits at %s%s%s",
                   other, mine_text, c->base.world->timeout_s, their_text, fork, tail);
}

static int blame(const struct mpi *c)
{
    const struct job *job = c->job;
    char mine_text[192], silent[96];
    uint64_t number;
    int elsewhere = -1;

    for (int r = 0; r < c->base.world->size; r++) {
        const struct heard *heard = &job->heard[r];
        if (!heard->heard || !awaits(c, r)) {
            continue;
        }
        if (contradicts(&heard->place, &job->place, &number)) {
            return blame_contradiction(c, r, number);
        }
        if (elsewhere < 0 && (is_messages(job->place.kind) || !is_at(&heard->place, &job->place))) {
            elsewhere = r;
        }
    }
    pf_mpi_describe(&job->place, mine_text, sizeof mine_text);
    const int n_silent = list_silent(c, true, silent, sizeof silent);
    if (n_silent > 0) {
        return pf_fail(PF_ETIMEOUT, "rank%s %s did not arrive at %s within %g s",
                       n_silent > 1 ? "s" : "", silent, mine_text, c->base.world->timeout_s);
    }
    if (elsewhere >= 0) {
        return blame_elsewhere(c, elsewhere);
    }
    return pf_fail(PF_ETIMEOUT, "all ranks arrived at %s but it did not end within %g s", mine_text,
                   c->base.world->timeout_s);
}

static bool any_expired(const struct mpi *c, int n_ranks)
{
    for (int r = 0; r < n_ranks; r++) {
        if (c->job->heard[r].expired) {
            return true;
        }
    }
    return false;
}

/*
 * Several ranks may find out at nearly the same time, and one of them speaks. Whoever had been asked
 * before its own deadline passed leaves it to those that asked. Of the others, which asked before
 * they had heard of each other, the lowest speaks: a rank's question reaches each of them before the
 * answers that it waits for.
 */
int pf_mpi_expire(struct mpi *c)
{
    struct job *job = c->job;

    pf_mpi_listen(c);
    job->yields = any_expired(c, c->base.world->size);
    ask_all(c);
    for (size_t i = 0; i < job->n_requests; i++) {
        int done; /* MPI_Testall leaves all as they are until the last is done */
        MPI_Test(&job->requests[i], &done, MPI_STATUS_IGNORE);
    }
    fill_sites(job);
    const int err = blame(c);
    c->base.world->broken = true;
    pf_comm_shared_fault(!job->yields && !any_expired(c, c->base.world->rank));
    return err;
}
