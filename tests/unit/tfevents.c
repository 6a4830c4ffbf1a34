/* SPDX-License-Identifier: Apache-2.0 */
/* Event files: every record is framed and summed as TFRecord says, and every event reads back from its
 * protobuf encoding by a reader that knows the wire format alone. */
#include <pf/error.h>
#include <pf/tfevents.h>

#include "scratch.h"
#include "tap.h"

#include <math.h>

/* One event as a reader finds it. */
struct event {
    double wall_time;
    int64_t step;
    char version[32];
    int session_status; /* -1: none */
    int n;
    char tags[PF_TFEVENTS_MAX_SCALARS][72];
    float values[PF_TFEVENTS_MAX_SCALARS];
};

static uint64_t little_endian(const unsigned char *p, int n)
{
    uint64_t value = 0;

    for (int i = 0; i < n; i++) {
        value |= (uint64_t)p[i] << 8 * i;
    }
    return value;
}

/* One field of a message: number, wire type, and its value or its bytes. */
struct field {
    int number, wire;
    uint64_t value;
    const unsigned char *bytes;
    size_t n;
};

static bool read_varint(const unsigned char **at, const unsigned char *end, uint64_t *value_out)
{
    uint64_t value = 0;

    for (int shift = 0; *at < end && shift < 64; shift += 7) {
        const unsigned char byte = *(*at)++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *value_out = value;
            return true;
        }
    }
    return false;
}

static bool read_field(const unsigned char **at, const unsigned char *end, struct field *f)
{
    uint64_t key, n;

    if (!read_varint(at, end, &key)) {
        return false;
    }
    *f = (struct field){.number = (int)(key >> 3), .wire = (int)(key & 7)};
    if (f->wire == 0) {
        return read_varint(at, end, &f->value);
    }
    if (f->wire == 2) {
        if (!read_varint(at, end, &n) || n > (uint64_t)(end - *at)) {
            return false;
        }
        f->n = n;
    } else {
        f->n = f->wire == 1 ? 8 : 4;
        if ((size_t)(end - *at) < f->n) {
            return false;
        }
        f->value = little_endian(*at, (int)f->n);
    }
    f->bytes = *at;
    *at += f->n;
    return true;
}

static bool read_value(const struct field *value, struct event *e)
{
    const unsigned char *at = value->bytes, *const end = at + value->n;
    struct field f;

    while (at < end && read_field(&at, end, &f)) {
        if (f.number == 1 && f.wire == 2) {
            snprintf(e->tags[e->n], sizeof e->tags[0], "%.*s", (int)f.n, (const char *)f.bytes);
        } else if (f.number == 2 && f.wire == 5) {
            const uint32_t bits = (uint32_t)f.value;
            memcpy(&e->values[e->n], &bits, sizeof bits);
        } else {
            return false;
        }
    }
    e->n++;
    return at == end;
}

static bool read_summary(const struct field *summary, struct event *e)
{
    const unsigned char *at = summary->bytes, *const end = at + summary->n;
    struct field f;
    bool good = true;

    while (good && at < end && read_field(&at, end, &f)) {
        good = f.number == 1 && f.wire == 2 && e->n < PF_TFEVENTS_MAX_SCALARS && read_value(&f, e);
    }
    return good && at == end;
}

static bool read_event(const unsigned char *at, size_t n, struct event *e)
{
    const unsigned char *const end = at + n;
    struct field f;
    bool good = true;

    *e = (struct event){.session_status = -1};
    while (good && at < end && read_field(&at, end, &f)) {
        if (f.number == 1 && f.wire == 1) {
            memcpy(&e->wall_time, &f.value, 8);
        } else if (f.number == 2 && f.wire == 0) {
            e->step = (int64_t)f.value;
        } else if (f.number == 3 && f.wire == 2) {
            snprintf(e->version, sizeof e->version, "%.*s", (int)f.n, (const char *)f.bytes);
        } else if (f.number == 5 && f.wire == 2) {
            good = read_summary(&f, e);
        } else if (f.number == 7 && f.wire == 2) {
            good = f.n == 2 && f.bytes[0] == 0x08;
            e->session_status = f.bytes[1];
        } else {
            good = false;
        }
    }
    return good && at == end;
}

/* All events of a file; -1: it is not one. */
static int read_file(const char *path, struct event *events, int max)
{
    size_t len;
    unsigned char *const data = (unsigned char *)get(path, &len);
    int n = 0;

    for (size_t at = 0; n >= 0 && at < len;) {
        const uint64_t length = len - at >= 16 ? little_endian(data + at, 8) : UINT64_MAX;
        if (length > len - at - 16 || n == max ||
            little_endian(data + at + 8, 4) != pf_tfevents_masked_crc(data + at, 8) ||
            little_endian(data + at + 12 + length, 4) !=
                pf_tfevents_masked_crc(data + at + 12, length) ||
            !read_event(data + at + 12, length, &events[n])) {
            n = -1;
        } else {
            n++;
            at += 16 + length;
        }
    }
    pf_free(data);
    return n;
}

static void checksums(void)
{
    unsigned char zeros[32] = {0}, ones[32], rising[32];

    for (int i = 0; i < 32; i++) {
        ones[i] = 0xff;
        rising[i] = (unsigned char)i;
    }
    ok(pf_crc32c("", 0) == 0 && pf_crc32c("123456789", 9) == 0xe3069283u,
       "CRC-32C of nothing and of \"123456789\"");
    ok(pf_crc32c(zeros, 32) == 0x8a9136aau && pf_crc32c(ones, 32) == 0x62a8ab43u &&
           pf_crc32c(rising, 32) == 0x46dd794eu,
       "CRC-32C of the vectors of RFC 3720 B.4");
    /* rotate right by 15, add 0xa282ead8 */
    ok(pf_tfevents_masked_crc(zeros, 32) == (0x6d551522u + 0xa282ead8u), "masked: 0x%08x",
       (unsigned)pf_tfevents_masked_crc(zeros, 32));
}

static void events_read_back(void)
{
    static struct event e[8];
    const struct pf_tfevents_scalar two[] = {{"train/loss", 2.5}, {"eval/loss", -1e-3}};
    struct pf_tfevents *events = NULL;
    char path[512];

    ok(pf_tfevents_open(at("tb"), 0, &events) == 0, "a file is made, and its directory");
    snprintf(path, sizeof path, "%s", pf_tfevents_path(events));
    int err = pf_tfevents_add(events, 1, two, 2);
    const int64_t allocs = pf_mem_n_allocs();
    err = err ? err : pf_tfevents_add(events, (int64_t)1 << 40, two, 1);
    ok(err == 0 && pf_mem_n_allocs() == allocs, "events are added without an allocation");
    pf_tfevents_close(events);

    ok(read_file(path, e, 8) == 3, "its records have the right lengths and checksums");
    ok(strcmp(e[0].version, "brain.Event:2") == 0 && e[0].n == 0, "the first says the version");
    ok(e[1].step == 1 && e[1].n == 2 && strcmp(e[1].tags[0], "train/loss") == 0 &&
           e[1].values[0] == 2.5f && strcmp(e[1].tags[1], "eval/loss") == 0 &&
           e[1].values[1] == -1e-3f && e[1].session_status == -1,
       "two scalars of a step come back");
    ok(e[2].step == (int64_t)1 << 40 && e[2].n == 1, "so does a large step");
    ok(e[1].wall_time > 1.7e9 && e[1].wall_time <= e[2].wall_time, "with the time");
}

static void a_resume_starts_a_session(void)
{
    static struct event e[8];
    struct pf_tfevents *events = NULL;
    struct pf_str_list names;

    ok(pf_tfevents_open(at("tb"), 101, &events) == 0, "a second file in the same second");
    const char *const second = pf_path_base(pf_tfevents_path(events));
    ok(pf_dir_list(at("tb"), &names) == 0 && names.n == 2 && strcmp(names.items[1], second) == 0,
       "has a name that comes after the first one's");
    pf_str_list_release(&names);
    ok(read_file(pf_tfevents_path(events), e, 8) == 2 && e[1].session_status == 1 &&
           e[1].step == 101 && e[1].n == 0,
       "begins with the start of a session at the step that is new");
    pf_tfevents_close(events);
}

static void faults(void)
{
    char tag[80] = "";
    const struct pf_tfevents_scalar s = {tag, NAN};
    struct pf_tfevents *events = NULL;
    static struct event e[8];

    memset(tag, 'x', 65);
    ok(pf_tfevents_open(at("faults"), 0, &events) == 0 &&
           pf_tfevents_add(events, 1, &s, 1) == PF_EINVAL,
       "a tag of 65 bytes is refused");
    tag[64] = '\0';
    ok(pf_tfevents_add(events, 1, &s, 1) == 0 && read_file(pf_tfevents_path(events), e, 8) == 2 &&
           isnan(e[1].values[0]) && strlen(e[1].tags[0]) == 64,
       "one of 64 is stored, and so is what is not a number");
    ok(pf_tfevents_add(events, 1, &s, PF_TFEVENTS_MAX_SCALARS + 1) == PF_EINVAL,
       "too many scalars are refused");
    pf_tfevents_close(events);
    put_text(at("faults/notes.txt"), "mine");
    put_text(at("file"), "");
    ok(pf_tfevents_clean(at("faults")) == 0 && pf_path_exists(at("faults/notes.txt")) &&
           pf_tfevents_clean(at("missing")) == 0,
       "cleaning removes event files alone");
    struct pf_str_list names;
    ok(pf_dir_list(at("faults"), &names) == 0 && names.n == 1, "and all of them");
    pf_str_list_release(&names);
    events = NULL;
    ok(pf_tfevents_open(at("file"), 0, &events) == PF_EIO && !events, "no directory: PF_EIO");
    pf_tfevents_close(NULL);
}

int main(void)
{
    scratch_make();
    checksums();
    events_read_back();
    a_resume_starts_a_session();
    faults();
    scratch_remove();
    return done();
}
