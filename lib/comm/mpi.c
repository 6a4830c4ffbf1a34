/* SPDX-License-Identifier: Apache-2.0 */
/* How a job begins and ends over MPI, its groups, and the table. */
#include "mpi_internal.h"

#include <pf/error.h>
#include <pf/log.h>
#include <pf/mem.h>
#include <pf/time.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int pf_mpi_fault(struct mpi *c, int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0, class = 0;

    c->base.world->broken = true;
    MPI_Error_string(code, text, &n);
    MPI_Error_class(code, &class);
    if (class == MPI_ERR_TRUNCATE) {
        return pf_fail(PF_EDISAGREE, "ranks disagree on the size of %s in group '%s'", what,
                       c->base.name);
    }
    return pf_fail(PF_ECOMM, "%s in group '%s': %s", what, c->base.name, text);
}

static bool mpi_probe(void)
{
    static const char *const signs[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"};

    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++) {
        if (getenv(signs[i])) {
            return true;
        }
    }
    return false;
}

static int mpi_reserve(struct pf_comm *comm, size_t bytes)
{
    struct job *job = mpi_of(comm)->job;
    const size_t least = MIN_STAGING_BYTES_PER_RANK * (size_t)comm->world->size;

    if (bytes < least) {
        bytes = least;
    }
    if (bytes <= job->staging_bytes) {
        return 0;
    }
    unsigned char *staging = pf_alloc(bytes);
    if (!staging) {
        return PF_ENOMEM;
    }
    pf_free(job->staging);
    job->staging = staging;
    job->staging_bytes = bytes;
    return 0;
}

static int allocate_job(struct job *job, int size)
{
    const size_t n = (size_t)size;

    job->capacity = 2 * n + PF_COMM_MAX_IN_FLIGHT;
    job->heard = pf_calloc_array(n, sizeof *job->heard);
    job->outbox = pf_calloc_array(n, sizeof *job->outbox);
    job->outbox_busy = pf_calloc_array(n, sizeof *job->outbox_busy);
    job->requests = pf_calloc_array(job->capacity, sizeof *job->requests);
    job->info = pf_calloc_array(job->capacity, sizeof *job->info);
    job->statuses = pf_calloc_array(job->capacity, sizeof *job->statuses);
    job->sources = pf_calloc_array(n, sizeof *job->sources);
    if (!job->heard || !job->outbox || !job->outbox_busy || !job->requests || !job->info ||
        !job->statuses || !job->sources) {
        return PF_ENOMEM;
    }
    for (size_t r = 0; r < n; r++) {
        job->outbox_busy[r] = MPI_REQUEST_NULL;
    }
    pf_mpi_flights_init(job);
    return 0;
}

static void free_job(struct job *job)
{
    pf_free(job->heard);
    pf_free(job->outbox);
    pf_free(job->outbox_busy);
    pf_free(job->requests);
    pf_free(job->info);
    pf_free(job->statuses);
    pf_free(job->sources);
    pf_free(job->staging);
    pf_free(job);
}

static int new_instance(struct pf_comm *world, struct job *job, const char *name, int rank,
                        int size, const int *world_ranks, struct mpi **c_out)
{
    struct mpi *c = pf_alloc(sizeof *c);

    if (!c) {
        return PF_ENOMEM;
    }
    const int err =
        pf_comm_base_init(&c->base, &pf_comm_ops_mpi, world, name, rank, size, world_ranks);
    if (err) {
        pf_free(c);
        return err;
    }
    c->job = job;
    c->comm = MPI_COMM_NULL;
    *c_out = c;
    return 0;
}

static int new_world(struct mpi **c_out)
{
    int rank, size;

    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int *ranks = pf_calloc_array((size_t)size, sizeof *ranks);
    struct job *job = pf_alloc(sizeof *job);
    int err = ranks && job ? allocate_job(job, size) : PF_ENOMEM;
    for (int r = 0; !err && r < size; r++) {
        ranks[r] = r;
    }
    if (!err) {
        err = new_instance(NULL, job, "world", rank, size, ranks, c_out);
    }
    if (err && job) {
        free_job(job);
    }
    pf_free(ranks);
    return err;
}

/* How many ranks of the job are on this host, and which of them is this one. */
static int find_local(struct mpi *c)
{
    MPI_Comm local;

    PF_MPI(c, MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, c->base.rank, MPI_INFO_NULL,
                                  &local));
    MPI_Comm_rank(local, &c->base.local_rank);
    MPI_Comm_size(local, &c->base.local_size);
    PF_MPI(c, MPI_Comm_free(&local));
    return 0;
}

static int open_world(struct mpi *c, const struct pf_comm_options *options)
{
    PF_MPI(c, MPI_Comm_dup(MPI_COMM_WORLD, &c->comm));
    PF_MPI(c, MPI_Comm_dup(MPI_COMM_WORLD, &c->job->news));
    PF_TRY(find_local(c));
    c->job->spin_s = (options->spin_us > 0 ? options->spin_us : DEFAULT_SPIN_US) * 1e-6;
    return mpi_reserve(&c->base,
                       options->staging_bytes > 0 ? options->staging_bytes : PF_COMM_STAGING_BYTES);
}

/*
 * Until the world is there MPI waits for all ranks without end, and cannot be asked to give up. A
 * thread that makes no call of MPI looks at the clock, and ends this process if the start takes longer
 * than any other wait may; mpirun then ends the others.
 */
struct start_watch {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    double timeout_s;
    bool up, running;
};

/* This rank as the launcher numbers it; 0 where it does not say. */
static long launcher_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *const text = getenv(names[i]);
        if (text) {
            return strtol(text, NULL, 10);
        }
    }
    return 0;
}

static void *watch_start(void *arg)
{
    struct start_watch *const w = arg;
    const long rank = launcher_rank();
    /* One after the other, so that only the first one speaks. */
    const double end = pf_time_wall() + w->timeout_s +
                       0.5 * (double)(rank < 0    ? 0
                                      : rank < 20 ? rank
                                                  : 20);
    const struct timespec until = {.tv_sec = (time_t)end,
                                   .tv_nsec = (long)((end - (double)(time_t)end) * 1e9)};
    int code = 0;

    pthread_mutex_lock(&w->mutex);
    while (!w->up && code == 0) {
        code = pthread_cond_timedwait(&w->changed, &w->mutex, &until);
    }
    const bool late = !w->up;
    pthread_mutex_unlock(&w->mutex);
    if (late) {
        /* Who sees it much too late was stopped himself; the others have told of it. */
        if (pf_time_wall() - end < 0.4) {
            pf_log_error(NULL, "not all ranks have started within %g s", w->timeout_s);
        }
        _exit(pf_error_exit_status(PF_ETIMEOUT));
    }
    return NULL;
}

static void watch_begin(struct start_watch *w, double timeout_s)
{
    *w = (struct start_watch){.timeout_s = timeout_s > 0 ? timeout_s : COMM_DEFAULT_TIMEOUT_S};
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->changed, NULL);
    /* Beyond a year (or where there are no threads) nobody waits to see it. */
    w->running = w->timeout_s < 3e7 && pthread_create(&w->thread, NULL, watch_start, w) == 0;
}

static void watch_end(struct start_watch *w)
{
    pthread_mutex_lock(&w->mutex);
    w->up = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    if (w->running) {
        pthread_join(w->thread, NULL);
    }
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
}

static int start_mpi(int *argc, char ***argv, const struct pf_comm_options *options,
                     struct mpi **c_out)
{
    int provided = 0;
    struct mpi *c;
    const int code = MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);

    if (code != MPI_SUCCESS || provided < MPI_THREAD_FUNNELED) {
        return pf_fail(PF_ECOMM, "MPI does not start (code %d, thread level %d)", code, provided);
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    PF_TRY(new_world(&c));
    PF_TRY(open_world(c, options));
    *c_out = c;
    return 0;
}

static int mpi_init(int *argc, char ***argv, const struct pf_comm_options *options,
                    struct pf_comm **world_out)
{
    struct start_watch watch;
    struct mpi *c = NULL;
    int is_up = 0;

    MPI_Initialized(&is_up);
    if (is_up) {
        return pf_fail(PF_EINVAL, "MPI can be started only once in a process");
    }
    watch_begin(&watch, options->timeout_s);
    const int err = start_mpi(argc, argv, options, &c);
    watch_end(&watch);
    PF_TRY(err);
    *world_out = &c->base;
    return 0;
}

/* The MPI part of the group that this rank is in; ranks in none get MPI_COMM_NULL. Collective. */
static int create(struct mpi *parent, const int *ranks, int n, MPI_Comm *comm_out)
{
    MPI_Group all, some;

    PF_MPI(parent, MPI_Comm_group(parent->comm, &all));
    PF_MPI(parent, MPI_Group_incl(all, n, ranks, &some));
    PF_MPI(parent, MPI_Comm_create(parent->comm, some, comm_out));
    if (n > 0) { /* the empty group is MPI's own */
        PF_MPI(parent, MPI_Group_free(&some));
    }
    PF_MPI(parent, MPI_Group_free(&all));
    return 0;
}

static int new_group(struct mpi *parent, const int *ranks, int n, MPI_Comm comm, const char *name,
                     struct pf_comm **group_out)
{
    int *world_ranks = pf_calloc_array((size_t)n, sizeof *world_ranks);
    struct mpi *c = NULL;
    int mine = -1;

    if (!world_ranks) {
        return PF_ENOMEM;
    }
    for (int i = 0; i < n; i++) {
        world_ranks[i] = parent->base.world_ranks[ranks[i]];
        mine = ranks[i] == parent->base.rank ? i : mine;
    }
    const int err = new_instance(parent->base.world, parent->job, name, mine, n, world_ranks, &c);
    pf_free(world_ranks);
    PF_TRY(err);
    c->comm = comm;
    *group_out = &c->base;
    return 0;
}

/* Groups of one need nothing of MPI's. */
static int mpi_split(struct pf_comm *parent, const int *ranks, int n, int largest, const char *name,
                     struct pf_comm **group_out)
{
    MPI_Comm comm = MPI_COMM_NULL;

    *group_out = NULL;
    if (largest > 1) {
        PF_TRY(create(mpi_of(parent), ranks, n > 1 ? n : 0, &comm));
    }
    if (n == 1) {
        return pf_comm_self_new(parent->world, name, parent->world_ranks[parent->rank], group_out);
    }
    return n > 1 ? new_group(mpi_of(parent), ranks, n, comm, name, group_out) : 0;
}

static int close_world(struct mpi *c)
{
    for (int r = 0; r < c->base.size; r++) {
        if (c->job->outbox_busy[r] != MPI_REQUEST_NULL) {
            MPI_Request_free(&c->job->outbox_busy[r]);
        }
    }
    PF_MPI(c, MPI_Comm_free(&c->job->news));
    PF_MPI(c, MPI_Comm_free(&c->comm));
    PF_MPI(c, MPI_Finalize());
    free_job(c->job);
    return 0;
}

static int mpi_free(struct pf_comm *comm)
{
    struct mpi *c = mpi_of(comm);

    if (comm->world == comm) {
        PF_TRY(close_world(c));
    } else {
        PF_MPI(c, MPI_Comm_free(&c->comm));
    }
    pf_comm_base_release(comm);
    pf_free(c);
    return 0;
}

static void mpi_abort(struct pf_comm *comm, int exit_status)
{
    (void)comm;
    MPI_Abort(MPI_COMM_WORLD, exit_status);
    _exit(exit_status);
}

static void mpi_version(char *text_out, size_t text_bytes)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int n = 0;

    MPI_Get_library_version(text, &n);
    text[strcspn(text, ",\n")] = '\0'; /* the rest is who built it */
    snprintf(text_out, text_bytes, "%s", text);
}

const struct pf_comm_ops pf_comm_ops_mpi = {
    .name = "mpi",
    .probe = mpi_probe,
    .init = mpi_init,
    .all_reduce = pf_mpi_all_reduce,
    .broadcast = pf_mpi_broadcast,
    .reduce = pf_mpi_reduce,
    .all_gather = pf_mpi_all_gather,
    .reduce_scatter = pf_mpi_reduce_scatter,
    .all_to_all = pf_mpi_all_to_all,
    .send = pf_mpi_send,
    .recv = pf_mpi_recv,
    .group_start = pf_mpi_group_start,
    .group_end = pf_mpi_group_end,
    .isend = pf_mpi_isend,
    .irecv = pf_mpi_irecv,
    .wait = pf_mpi_wait,
    .progress = pf_mpi_progress,
    .barrier = pf_mpi_barrier,
    .split = mpi_split,
    .reserve = mpi_reserve,
    .free = mpi_free,
    .abort = mpi_abort,
    .version = mpi_version,
};
