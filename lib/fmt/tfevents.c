/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/tfevents.h>

#include <pf/error.h>
#include <pf/file.h>
#include <pf/mem.h>
#include <pf/str.h>
#include <pf/time.h>

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX "events.out.tfevents."
#define VERSION "brain.Event:2"
#define MAX_TAG_BYTES 64

/* Field numbers of event.proto and summary.proto. */
enum {
    EVENT_WALL_TIME = 1,
    EVENT_STEP = 2,
    EVENT_VERSION = 3,
    EVENT_SUMMARY = 5,
    EVENT_SESSION = 7
};
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2 };
enum { SESSION_STATUS = 1, SESSION_START = 1 };

enum wire { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

/* A scalar: tag and value with their keys and lengths, then a key and a length around both. */
#define VALUE_BYTES (MAX_TAG_BYTES + 16)
#define MESSAGE_BYTES (96 + PF_TFEVENTS_MAX_SCALARS * VALUE_BYTES)

struct pf_tfevents {
    int fd;
    char *path;
};

/* Checksums -------------------------------------------------------------------------------------- */

uint32_t pf_crc32c(const void *data, size_t n)
{
    const unsigned char *const bytes = data;
    uint32_t crc = 0xffffffffu;

    /* Bit by bit: an event is a few hundred bytes. The polynomial is 0x1EDC6F41, reflected. */
    for (size_t i = 0; i < n; i++) {
        crc ^= bytes[i];
        for (int k = 0; k < 8; k++) {
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
        }
    }
    return ~crc;
}

uint32_t pf_tfevents_masked_crc(const void *data, size_t n)
{
    const uint32_t crc = pf_crc32c(data, n);

    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Protobuf --------------------------------------------------------------------------------------- */

/* Bytes being written; the callers' sizes are bounded, so nothing overflows. */
struct message {
    unsigned char bytes[MESSAGE_BYTES];
    size_t n;
};

static void add_bytes(struct message *m, const void *bytes, size_t n)
{
    PF_ASSERT(n <= sizeof m->bytes - m->n);
    memcpy(m->bytes + m->n, bytes, n);
    m->n += n;
}

static void add_little_endian(struct message *m, uint64_t value, int n)
{
    unsigned char bytes[8];

    for (int i = 0; i < n; i++) {
        bytes[i] = (unsigned char)(value >> 8 * i);
    }
    add_bytes(m, bytes, (size_t)n);
}

static void add_varint(struct message *m, uint64_t value)
{
    unsigned char byte;

    do {
        byte = (unsigned char)(value & 0x7f) | (value > 0x7f ? 0x80 : 0);
        add_bytes(m, &byte, 1);
        value >>= 7;
    } while (value);
}

static void add_key(struct message *m, int field, enum wire wire)
{
    add_varint(m, (uint64_t)field << 3 | (uint64_t)wire);
}

static void add_string(struct message *m, int field, const void *bytes, size_t n)
{
    add_key(m, field, WIRE_BYTES);
    add_varint(m, n);
    add_bytes(m, bytes, n);
}

static void event_begin(struct message *m, int64_t step)
{
    const double now = pf_time_wall();
    uint64_t bits;

    m->n = 0;
    memcpy(&bits, &now, sizeof bits);
    add_key(m, EVENT_WALL_TIME, WIRE_64);
    add_little_endian(m, bits, 8);
    add_key(m, EVENT_STEP, WIRE_VARINT);
    add_varint(m, (uint64_t)step);
}

static void add_scalar(struct message *m, const struct pf_tfevents_scalar *s)
{
    const size_t n_tag = strlen(s->tag);
    const float value = (float)s->value;
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    /* The tag's key, length and bytes; the value's key and four bytes. Lengths stay below 128. */
    add_key(m, SUMMARY_VALUE, WIRE_BYTES);
    add_varint(m, 2 + n_tag + 5);
    add_string(m, VALUE_TAG, s->tag, n_tag);
    add_key(m, VALUE_SIMPLE, WIRE_32);
    add_little_endian(m, bits, 4);
}

/* Records ---------------------------------------------------------------------------------------- */

static int write_record(struct pf_tfevents *events, const struct message *event)
{
    struct message record = {.n = 0};

    add_little_endian(&record, event->n, 8);
    add_little_endian(&record, pf_tfevents_masked_crc(record.bytes, 8), 4);
    add_bytes(&record, event->bytes, event->n);
    add_little_endian(&record, pf_tfevents_masked_crc(event->bytes, event->n), 4);
    return pf_write_full(events->fd, record.bytes, record.n, events->path);
}

int pf_tfevents_add(struct pf_tfevents *events, int64_t step,
                    const struct pf_tfevents_scalar *scalars, size_t n)
{
    struct message event, summary = {.n = 0};

    if (n > PF_TFEVENTS_MAX_SCALARS) {
        return pf_fail(PF_EINVAL, "%zu scalars are too many for one event", n);
    }
    for (size_t i = 0; i < n; i++) {
        if (strlen(scalars[i].tag) > MAX_TAG_BYTES) {
            return pf_fail(PF_EINVAL, "tag '%s' is too long", scalars[i].tag);
        }
        add_scalar(&summary, &scalars[i]);
    }
    event_begin(&event, step);
    add_string(&event, EVENT_SUMMARY, summary.bytes, summary.n);
    return write_record(events, &event);
}

static int write_version(struct pf_tfevents *events)
{
    struct message event;

    event_begin(&event, 0);
    add_string(&event, EVENT_VERSION, VERSION, strlen(VERSION));
    return write_record(events, &event);
}

static int write_session_start(struct pf_tfevents *events, int64_t step)
{
    struct message event, session = {.n = 0};

    add_key(&session, SESSION_STATUS, WIRE_VARINT);
    add_varint(&session, SESSION_START);
    event_begin(&event, step);
    add_string(&event, EVENT_SESSION, session.bytes, session.n);
    return write_record(events, &event);
}

/* Files ------------------------------------------------------------------------------------------ */

/* The seconds of the newest file in dir, 0 where there is none. */
static int newest(const char *dir, long long *seconds_out)
{
    struct pf_str_list names;
    long long seconds = 0;

    PF_TRY(pf_dir_list(dir, &names));
    for (size_t i = 0; i < names.n; i++) {
        if (pf_str_starts_with(names.items[i], PREFIX)) {
            const long long s = strtoll(names.items[i] + strlen(PREFIX), NULL, 10);
            seconds = s > seconds ? s : seconds;
        }
    }
    pf_str_list_release(&names);
    *seconds_out = seconds;
    return 0;
}

static int make_path(const char *dir, char **path_out)
{
    char host[HOST_NAME_MAX + 1] = "";
    long long seconds, now = (long long)pf_time_wall();

    PF_TRY(newest(dir, &seconds));
    if (gethostname(host, sizeof host - 1) != 0 || !pf_path_is_safe_member(host)) {
        snprintf(host, sizeof host, "localhost");
    }
    *path_out = pf_asprintf("%s/" PREFIX "%010lld.%s.%ld", dir, now > seconds ? now : seconds + 1,
                            host, (long)getpid());
    return *path_out ? 0 : PF_ENOMEM;
}

int pf_tfevents_open(const char *dir, int64_t purge_step, struct pf_tfevents **events_out)
{
    struct pf_tfevents *events = pf_alloc(sizeof *events);
    int err = events ? 0 : PF_ENOMEM;

    if (err) {
        return err;
    }
    events->fd = -1;
    PF_TRY_GOTO(pf_mkdirs(dir), out);
    PF_TRY_GOTO(make_path(dir, &events->path), out);
    PF_TRY_GOTO(pf_open(events->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND, &events->fd), out);
    PF_TRY_GOTO(write_version(events), out);
    if (purge_step > 0) {
        PF_TRY_GOTO(write_session_start(events, purge_step), out);
    }
    *events_out = events;
    events = NULL;
out:
    pf_tfevents_close(events);
    return err;
}

const char *pf_tfevents_path(const struct pf_tfevents *events)
{
    return events->path;
}

void pf_tfevents_close(struct pf_tfevents *events)
{
    if (!events) {
        return;
    }
    pf_close(events->fd, NULL);
    pf_free(events->path);
    pf_free(events);
}

int pf_tfevents_clean(const char *dir)
{
    struct pf_str_list names;
    int err = 0;

    if (!pf_path_is_dir(dir)) {
        return 0;
    }
    PF_TRY(pf_dir_list(dir, &names));
    for (size_t i = 0; !err && i < names.n; i++) {
        char *const path =
            pf_str_starts_with(names.items[i], PREFIX) ? pf_path_join(dir, names.items[i]) : NULL;
        if (path && unlink(path) != 0) {
            err = pf_fail_errno(PF_EIO, "cannot remove '%s'", path);
        }
        pf_free(path);
    }
    pf_str_list_release(&names);
    return err;
}
