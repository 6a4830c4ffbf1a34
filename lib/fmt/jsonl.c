/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/jsonl.h>

#include "json_scan.h"

#include <pf/file.h>
#include <pf/mem.h>

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define MEMBER "text"
#define FIRST_BUFFER ((size_t)1 << 20)
#define MAX_LINE ((size_t)1 << 30)
#define MARK_BYTES (64 * 1024)
#define MAX_UNIT 12 /* bytes of the longest escape, a surrogate pair */

/* A place in a text that reading may start from: byte number `first` of the documents laid end to
 * end stands at this offset of the file. */
struct place {
    int64_t first;
    uint64_t offset;
};

struct places {
    struct place *items;
    size_t n, capacity;
};

struct pf_jsonl {
    char *path;
    int fd;
    uint64_t n_file_bytes;
    struct places documents; /* the start of each */
    struct places marks;     /* inside long ones, ascending */
    int64_t n_bytes;         /* of all texts */
};

static int add_place(struct places *places, int64_t first, uint64_t offset)
{
    if (places->n == places->capacity) {
        const size_t capacity = places->capacity ? 2 * places->capacity : 64;
        struct place *const items = pf_realloc_array(places->items, capacity, sizeof *items);
        if (!items) {
            return PF_ENOMEM;
        }
        places->items = items;
        places->capacity = capacity;
    }
    places->items[places->n++] = (struct place){first, offset};
    return 0;
}

/* Strings --------------------------------------------------------------------------------------- */

static int hex_digit(unsigned char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The code unit of "\uXXXX" at p, or -1. */
static int32_t code_unit(const unsigned char *p, size_t n)
{
    int32_t value = 0;

    if (n < 6 || p[0] != '\\' || p[1] != 'u') {
        return -1;
    }
    for (int i = 2; i < 6; i++) {
        const int digit = hex_digit(p[i]);
        if (digit < 0) {
            return -1;
        }
        value = value * 16 + digit;
    }
    return value;
}

static size_t put_utf8(uint32_t c, unsigned char to[4])
{
    static const unsigned char leads[] = {0, 0, 0xc0, 0xe0, 0xf0};
    const size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

    for (size_t i = n; i-- > 1;) {
        to[i] = (unsigned char)(0x80 | (c & 0x3f));
        c >>= 6;
    }
    to[0] = (unsigned char)(leads[n] | c);
    return n;
}

/*
 * The escape at p, of which n bytes are there: what it stands for into to[4], and how many bytes that
 * is and the escape has. False if it is none: the scanner has seen the text, but the file may have
 * changed since.
 */
static bool resolve_escape(const unsigned char *p, size_t n, unsigned char to[4], size_t *n_to_out,
                           size_t *n_escape_out)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char *const name = n >= 2 && p[1] ? strchr(names, p[1]) : NULL;
    const int32_t unit = code_unit(p, n);
    uint32_t c = (uint32_t)unit;

    *n_escape_out = name ? 2 : 6;
    if (name) {
        to[0] = (unsigned char)values[name - names];
        *n_to_out = 1;
        return true;
    }
    if (unit < 0) {
        return false;
    }
    if (unit >= 0xd800 && unit < 0xe000) {
        const int32_t low = code_unit(p + 6, n - 6);
        if (unit >= 0xdc00 || low < 0xdc00 || low >= 0xe000) {
            return false;
        }
        c = 0x10000 + (((uint32_t)unit - 0xd800) << 10) + ((uint32_t)low - 0xdc00);
        *n_escape_out = 12;
    }
    *n_to_out = put_utf8(c, to);
    return true;
}

/* Lines ----------------------------------------------------------------------------------------- */

struct text_found {
    bool has_text, has_messages;
    size_t raw; /* where its first byte stands in the line */
    size_t n_bytes;
};

/* Marks in a text longer than the distance between two; raw is its first byte. */
static int add_marks(struct pf_jsonl *j, const unsigned char *raw, uint64_t offset, size_t n_bytes)
{
    const unsigned char *p = raw;
    size_t done = 0, last = 0;

    while (n_bytes - last > MARK_BYTES) {
        unsigned char unit[4];
        size_t n_unit = 1, n_raw = 1;
        if (*p == '\\' && !resolve_escape(p, MAX_UNIT, unit, &n_unit, &n_raw)) {
            return pf_fail(PF_EBUG, "'%s': a checked text has a bad escape", j->path);
        }
        p += n_raw;
        done += n_unit;
        if (done - last >= MARK_BYTES) {
            PF_TRY(add_place(&j->marks, j->n_bytes + (int64_t)done, offset + (uint64_t)(p - raw)));
            last = done;
        }
    }
    return 0;
}

static int scan_members(struct pf_scan *s, struct text_found *found)
{
    struct pf_scan_text key, text;
    size_t n_items = 0;
    bool more;

    PF_TRY(pf_scan_enter(s, '{'));
    for (;;) {
        PF_TRY(pf_scan_item(s, '{', &n_items, &more));
        if (!more) {
            return pf_scan_finish(s);
        }
        PF_TRY(pf_scan_key(s, &key));
        if (key.n_bytes != strlen(MEMBER) || memcmp(key.at, MEMBER, key.n_bytes) != 0) {
            found->has_messages |= strcmp(key.at, "messages") == 0;
            PF_TRY(pf_scan_skip(s));
            continue;
        }
        if (found->has_text) {
            return PF_SCAN_FAIL(s, "'" MEMBER "' stands twice");
        }
        found->has_text = true;
        (void)pf_scan_sees(s, '"'); /* skips blanks */
        found->raw = (size_t)(s->at - s->start) + 1;
        PF_TRY(pf_scan_string(s, &text));
        found->n_bytes = text.n_bytes;
    }
}

/* A line of the file: its bytes without the '\n', room for its strings, its place and number. */
struct line {
    const unsigned char *bytes;
    size_t n;
    char *strings;
    uint64_t offset;
    int64_t number;
};

static bool is_blank(const struct line *line)
{
    for (size_t i = 0; i < line->n; i++) {
        if (!strchr(" \t\r", line->bytes[i]) || line->bytes[i] == '\0') {
            return false;
        }
    }
    return true;
}

static int add_line(struct pf_jsonl *j, const struct line *line)
{
    struct text_found found = {0};
    struct pf_scan scan;
    char where[40];

    if (is_blank(line)) {
        return 0;
    }
    snprintf(where, sizeof where, "line %lld", (long long)line->number);
    PF_TRY(pf_scan_init(&scan, j->path, where, line->bytes, line->n, line->strings));
    PF_TRY(scan_members(&scan, &found));
    if (!found.has_text && found.has_messages) {
        return pf_fail(PF_ENOTSUP,
                       "'%s': line %lld holds 'messages' to fine-tune on, which this build does "
                       "not: it reads 'text'",
                       j->path, (long long)line->number);
    }
    if (!found.has_text) {
        return pf_fail(PF_EFORMAT, "'%s': line %lld has no 'text'", j->path,
                       (long long)line->number);
    }
    PF_TRY(add_place(&j->documents, j->n_bytes, line->offset + found.raw));
    PF_TRY(add_marks(j, line->bytes + found.raw, line->offset + found.raw, found.n_bytes));
    j->n_bytes += (int64_t)found.n_bytes;
    return 0;
}

/* A piece of the file in memory, made longer when a line does not fit. */
struct window {
    unsigned char *bytes;
    char *strings;
    size_t capacity, n;
    uint64_t offset; /* of bytes[0] in the file */
};

/* Let bytes[0] be what was at `at`, and fill up from the file. */
static int refill(const struct pf_jsonl *j, struct window *w, size_t at, int64_t line)
{
    if (at == 0 && w->n == w->capacity) {
        if (w->capacity >= MAX_LINE) {
            return pf_fail(PF_EFORMAT, "'%s': line %lld is longer than 1 GiB", j->path,
                           (long long)line);
        }
        const size_t first =
            j->n_file_bytes < FIRST_BUFFER ? (size_t)j->n_file_bytes : FIRST_BUFFER;
        const size_t capacity = w->capacity ? 2 * w->capacity : first;
        unsigned char *const bytes = pf_realloc_array(w->bytes, capacity, 1);
        w->bytes = bytes ? bytes : w->bytes;
        char *const strings = bytes ? pf_realloc_array(w->strings, capacity + 1, 1) : NULL;
        w->strings = strings ? strings : w->strings;
        if (!strings) {
            return PF_ENOMEM;
        }
        w->capacity = capacity;
    }
    memmove(w->bytes, w->bytes + at, w->n - at);
    w->n -= at;
    w->offset += at;
    const uint64_t from = w->offset + w->n, left = j->n_file_bytes - from;
    const size_t room = w->capacity - w->n, n = left < room ? (size_t)left : room;
    PF_TRY(pf_pread_full(j->fd, w->bytes + w->n, n, from, j->path));
    w->n += n;
    return 0;
}

static int add_lines(struct pf_jsonl *j, struct window *w)
{
    size_t at = 0;

    for (int64_t number = 1; w->offset + at < j->n_file_bytes; number++) {
        const unsigned char *end = w->n > at ? memchr(w->bytes + at, '\n', w->n - at) : NULL;
        while (!end && w->offset + w->n < j->n_file_bytes) {
            PF_TRY(refill(j, w, at, number));
            at = 0;
            end = memchr(w->bytes, '\n', w->n);
        }
        const size_t n = end ? (size_t)(end - w->bytes) - at : w->n - at;
        const struct line line = {.bytes = w->bytes + at,
                                  .n = n,
                                  .strings = w->strings,
                                  .offset = w->offset + at,
                                  .number = number};
        PF_TRY(add_line(j, &line));
        at += n + (end != NULL);
    }
    return 0;
}

/* The handle ------------------------------------------------------------------------------------ */

int pf_jsonl_open(const char *path, struct pf_jsonl **j_out)
{
    struct pf_jsonl *const j = pf_alloc(sizeof *j);
    struct window window = {0};
    int err = 0;

    if (!j) {
        return PF_ENOMEM;
    }
    j->fd = -1;
    j->path = pf_strdup(path);
    PF_TRY_GOTO(j->path ? 0 : PF_ENOMEM, out);
    PF_TRY_GOTO(pf_file_size(path, &j->n_file_bytes), out);
    PF_TRY_GOTO(pf_open(path, O_RDONLY, &j->fd), out);
    PF_TRY_GOTO(add_lines(j, &window), out);
    *j_out = j;
out:
    pf_free(window.bytes);
    pf_free(window.strings);
    if (err) {
        pf_jsonl_close(j);
    }
    return err;
}

void pf_jsonl_close(struct pf_jsonl *j)
{
    if (!j) {
        return;
    }
    (void)pf_close(j->fd, NULL);
    pf_free(j->path);
    pf_free(j->documents.items);
    pf_free(j->marks.items);
    pf_free(j);
}

int64_t pf_jsonl_n_documents(const struct pf_jsonl *j)
{
    return (int64_t)j->documents.n;
}

int64_t pf_jsonl_start(const struct pf_jsonl *j, int64_t d)
{
    return (size_t)d < j->documents.n ? j->documents.items[d].first : j->n_bytes;
}

/* The last place at or before byte number `first`: a mark, or the start of its document. */
static struct place place_before(const struct pf_jsonl *j, int64_t d, int64_t first)
{
    const struct place start = j->documents.items[d];
    size_t lo = 0, hi = j->marks.n;

    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (j->marks.items[mid].first <= first) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo > 0 && j->marks.items[lo - 1].first > start.first ? j->marks.items[lo - 1] : start;
}

/* Where a reader is in the string, and what it still has to drop and to give. */
struct cursor {
    uint64_t offset;
    int64_t n_skip;
    size_t n;
    unsigned char *to;
};

/* Take bytes of the text: the first n_skip are dropped. */
static void give(struct cursor *c, const unsigned char *bytes, size_t n)
{
    for (size_t i = 0; i < n && c->n > 0; i++) {
        if (c->n_skip > 0) {
            c->n_skip--;
        } else {
            *c->to++ = bytes[i];
            c->n--;
        }
    }
}

/* As much of a piece of the file as can be resolved: an escape at its end may be cut. */
static int take_piece(struct cursor *c, const unsigned char *piece, size_t n_piece, bool is_last)
{
    size_t at = 0;

    while (c->n > 0 && at < n_piece && (is_last || n_piece - at >= MAX_UNIT)) {
        unsigned char unit[4] = {piece[at]};
        size_t n_unit = 1, n_raw = 1;
        if (piece[at] < 0x20 || piece[at] == '"' ||
            (piece[at] == '\\' &&
             !resolve_escape(piece + at, n_piece - at, unit, &n_unit, &n_raw))) {
            return PF_EFORMAT;
        }
        give(c, unit, n_unit);
        at += n_raw;
    }
    c->offset += at;
    return 0;
}

int pf_jsonl_read(const struct pf_jsonl *j, int64_t d, int64_t offset, size_t n,
                  unsigned char *bytes_out)
{
    const int64_t first = pf_jsonl_start(j, d) + offset;
    const struct place from = place_before(j, d, first);
    struct cursor c = {
        .offset = from.offset, .n_skip = first - from.first, .n = n, .to = bytes_out};
    unsigned char piece[4096];

    while (c.n > 0) {
        const uint64_t left = j->n_file_bytes - c.offset;
        const bool is_last = left <= sizeof piece;
        const size_t n_piece = is_last ? (size_t)left : sizeof piece;
        PF_TRY(pf_pread_full(j->fd, piece, n_piece, c.offset, j->path));
        if (n_piece == 0 || take_piece(&c, piece, n_piece, is_last) != 0) {
            return pf_fail(PF_EFORMAT, "'%s' changed while it was in use", j->path);
        }
    }
    return 0;
}
