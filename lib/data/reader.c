/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader.c - steps in a ring of slots.
 *
 * The caller holds at most one slot, the one that pf_reader_next gave last; up to n_ahead more are
 * filled, in the order of positions, by the one thread. `mutex` guards everything but the data handle
 * and the contents of slots: those belong to whoever holds the slot, the caller the one lent, the
 * thread the one being filled.
 */
#include <pf/reader.h>

#include <pf/error.h>
#include <pf/mem.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

struct slot {
    struct pf_reader_batch *batches; /* [n_micro] */
    int64_t first;
    int err; /* of reading it, with its message */
    char message[512];
};

struct pf_reader {
    struct pf_data *data;
    struct pf_reader_options options;
    int64_t stride;     /* positions of a step */
    struct slot *slots; /* n_ahead + 1 of them */
    int64_t n_slots;
    int32_t *arrays; /* of all batches */

    bool has_thread;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int64_t head, n_ready; /* filled slots, from `head` on round the ring */
    bool is_lent;          /* the slot before head is the caller's */
    int64_t next, end;     /* the step that is or will be read next; where reading ahead ends */
    uint64_t course;       /* grows when reading ahead starts anew elsewhere */
    bool is_ending;
};

/* Reading --------------------------------------------------------------------------------------- */

static int read_batch(struct pf_reader *r, int64_t first, struct pf_reader_batch *b)
{
    const int64_t seq = r->options.seq;

    b->first_sequence = first;
    b->n_targets = 0;
    for (int64_t i = 0; i < r->options.batch; i++) {
        const int64_t at = i * seq;
        int32_t *const first_key = b->first_key ? b->first_key + at : NULL;
        PF_TRY(pf_data_read(r->data, first + i, b->ids + at, b->targets + at, first_key));
        for (int64_t s = 0; s < seq; s++) {
            b->n_targets += b->targets[at + s] >= 0;
        }
        for (int64_t s = 0; first_key && s < seq; s++) {
            b->positions[at + s] = (int32_t)(s - first_key[s]);
        }
    }
    return 0;
}

static int read_step(struct pf_reader *r, int64_t first, struct slot *slot)
{
    const struct pf_reader_options *const o = &r->options;

    for (int64_t m = 0; m < o->n_micro; m++) {
        const int64_t from = first + (m * o->n_ranks + o->rank) * o->batch;
        PF_TRY(read_batch(r, from, &slot->batches[m]));
    }
    return 0;
}

/* Fill a slot from the thread: the record of an error is the thread's, so its text goes along. */
static void fill(struct pf_reader *r, int64_t first, struct slot *slot)
{
    slot->first = first;
    slot->err = read_step(r, first, slot);
    if (slot->err) {
        snprintf(slot->message, sizeof slot->message, "%s", pf_error_message());
    }
}

/* The thread ------------------------------------------------------------------------------------ */

/* Is there a free slot, and a step to read into it? */
static bool has_work(const struct pf_reader *r)
{
    return r->n_ready + r->is_lent < r->n_slots && r->next < r->end;
}

static void *run_thread(void *argument)
{
    struct pf_reader *const r = argument;

    pthread_mutex_lock(&r->mutex);
    while (!r->is_ending) {
        if (!has_work(r)) {
            pthread_cond_wait(&r->changed, &r->mutex);
            continue;
        }
        struct slot *const slot = &r->slots[(r->head + r->n_ready) % r->n_slots];
        const int64_t first = r->next;
        const uint64_t course = r->course;
        pthread_mutex_unlock(&r->mutex);
        fill(r, first, slot);
        pthread_mutex_lock(&r->mutex);
        if (course == r->course) {
            r->n_ready++;
            r->next += r->stride;
            pthread_cond_broadcast(&r->changed);
        }
    }
    pthread_mutex_unlock(&r->mutex);
    return NULL;
}

/* With all signals blocked: they are for the thread that trains. */
static int start_thread(struct pf_reader *r)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int err = pthread_create(&r->thread, NULL, run_thread, r);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err) {
        return pf_fail(PF_EIO, "cannot start a thread that reads ahead: %s", strerror(err));
    }
    r->has_thread = true;
    return 0;
}

/* Let reading ahead go on with the step at `first`. A slot that is being filled is filled again. */
static void change_course(struct pf_reader *r, int64_t first)
{
    r->n_ready = 0;
    r->next = first;
    r->course++;
}

static struct slot *wait_for(struct pf_reader *r, int64_t first)
{
    pthread_mutex_lock(&r->mutex);
    r->is_lent = false;
    if ((r->n_ready > 0 ? r->slots[r->head].first : r->next) != first) {
        change_course(r, first);
    }
    if (first >= r->end) {
        r->end = first + 1;
    }
    pthread_cond_broadcast(&r->changed);
    while (r->n_ready == 0) {
        pthread_cond_wait(&r->changed, &r->mutex);
    }
    struct slot *const slot = &r->slots[r->head];
    r->head = (r->head + 1) % r->n_slots;
    r->n_ready--;
    r->is_lent = true;
    pthread_mutex_unlock(&r->mutex);
    return slot;
}

/* The handle ------------------------------------------------------------------------------------ */

static int64_t arrays_of_batch(const struct pf_reader_options *o)
{
    return o->mask_documents ? 4 : 2;
}

static bool count_elements(const struct pf_reader_options *o, size_t *n_out)
{
    size_t n = (size_t)o->seq;

    return pf_mul_size(n, (size_t)o->batch, &n) && pf_mul_size(n, (size_t)o->n_micro, &n) &&
           pf_mul_size(n, (size_t)arrays_of_batch(o), &n) &&
           pf_mul_size(n, (size_t)(o->n_ahead + 1), n_out);
}

/* Cut the arrays into batches. */
static void set_batch(const struct pf_reader *r, int64_t number, struct pf_reader_batch *b)
{
    const int64_t n = r->options.seq * r->options.batch;
    int32_t *const at = r->arrays + number * n * arrays_of_batch(&r->options);

    b->ids = at;
    b->targets = at + n;
    if (r->options.mask_documents) {
        b->first_key = at + 2 * n;
        b->positions = at + 3 * n;
    }
}

static int make_slots(struct pf_reader *r)
{
    const int64_t n_micro = r->options.n_micro;
    size_t n_elements;

    if (!count_elements(&r->options, &n_elements)) {
        return pf_fail(PF_ENOMEM, "the batches of %lld steps do not fit into memory",
                       (long long)r->n_slots);
    }
    r->arrays = pf_calloc_array(n_elements, sizeof *r->arrays);
    r->slots = pf_calloc_array((size_t)r->n_slots, sizeof *r->slots);
    if (!r->arrays || !r->slots) {
        return PF_ENOMEM;
    }
    for (int64_t i = 0; i < r->n_slots; i++) {
        struct slot *const slot = &r->slots[i];
        slot->batches = pf_calloc_array((size_t)n_micro, sizeof *slot->batches);
        for (int64_t m = 0; slot->batches && m < n_micro; m++) {
            set_batch(r, i * n_micro + m, &slot->batches[m]);
        }
        if (!slot->batches) {
            return PF_ENOMEM;
        }
    }
    return 0;
}

int pf_reader_new(struct pf_data *data, const struct pf_reader_options *options,
                  struct pf_reader **reader_out)
{
    struct pf_reader *const r = pf_alloc(sizeof *r);

    if (!r) {
        return PF_ENOMEM;
    }
    r->data = data;
    r->options = *options;
    r->stride = options->batch * options->n_micro * options->n_ranks;
    r->n_slots = options->n_ahead + 1;
    pthread_mutex_init(&r->mutex, NULL);
    pthread_cond_init(&r->changed, NULL);
    const int err = make_slots(r);
    if (err) {
        pf_reader_free(r);
        return err;
    }
    *reader_out = r;
    return 0;
}

void pf_reader_free(struct pf_reader *r)
{
    if (!r) {
        return;
    }
    if (r->has_thread) {
        pthread_mutex_lock(&r->mutex);
        r->is_ending = true;
        pthread_cond_broadcast(&r->changed);
        pthread_mutex_unlock(&r->mutex);
        pthread_join(r->thread, NULL);
    }
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->mutex);
    for (int64_t i = 0; r->slots && i < r->n_slots; i++) {
        pf_free(r->slots[i].batches);
    }
    pf_free(r->slots);
    pf_free(r->arrays);
    pf_free(r);
}

int pf_reader_start(struct pf_reader *reader, int64_t first, int64_t end)
{
    if (reader->options.n_ahead == 0) {
        return 0;
    }
    reader->next = first;
    reader->end = end;
    return start_thread(reader);
}

int pf_reader_next(struct pf_reader *reader, int64_t first,
                   const struct pf_reader_batch **batches_out)
{
    struct slot *slot = &reader->slots[0];

    if (reader->has_thread) {
        slot = wait_for(reader, first);
        if (slot->err) {
            return pf_fail(slot->err, "%s", slot->message);
        }
    } else {
        PF_TRY(read_step(reader, first, slot));
    }
    *batches_out = slot->batches;
    return 0;
}

size_t pf_reader_bytes(const struct pf_reader_options *options)
{
    size_t n = 0;

    return count_elements(options, &n) ? n * sizeof(int32_t) : SIZE_MAX;
}
