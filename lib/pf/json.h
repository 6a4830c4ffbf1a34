/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json.h - reading JSON with errors that a person can act on, and writing it.
 *
 * Reading. A document is parsed whole; every value is a node that knows its key path
 * ("tensors[3].shape"), and the line it stands on. A node belongs to its document and lives until
 * pf_json_free; nothing that a getter returns is freed by itself. The grammar is RFC 8259 exactly:
 * valid UTF-8 without a byte order mark, one value, no comments, no trailing commas, no NaN. Beyond
 * that an object may not hold one key twice (after unescaping; can be allowed), a string may not hold
 * \u0000, a number has at most 63 characters and fits a double, and values nest at most max_depth
 * deep.
 *
 *     struct pf_json *doc = NULL;
 *     int64_t steps;
 *     PF_TRY(pf_json_parse_file("config.json", &doc));
 *     PF_TRY_GOTO(pf_json_i64(doc, "max_steps", 100, &steps), out);
 *     out: pf_json_free(doc);
 *
 * Errors name file, place and fault: "bad JSON in 'config.json' at line 3 column 7: expected ','",
 * "'model.heads' must be an integer, not a string ('config.json' line 9)". Their code is PF_EUSAGE,
 * or the one given in pf_json_options (PF_EFORMAT for a file that a program wrote).
 *
 * Writing. struct pf_json_out appends to a struct pf_str and takes care of commas, escapes, and
 * digits: a double or float is written with the fewest digits that read back to the same bits, in
 * the C locale; what is not finite becomes null.
 *
 *     struct pf_json_out j;
 *     pf_json_out_init(&j, &text, 2);
 *     pf_json_out_object_begin(&j);
 *     pf_json_out_key(&j, "step");
 *     pf_json_out_i64(&j, step);
 *     pf_json_out_object_end(&j);
 *     PF_TRY(pf_json_out_finish(&j));
 *
 * All functions are local. A document may be read by any number of threads.
 */
#ifndef PF_JSON_H
#define PF_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <pf/str.h>

struct pf_json;

enum pf_json_type {
    PF_JSON_NULL,
    PF_JSON_BOOL,
    PF_JSON_NUMBER,
    PF_JSON_STRING,
    PF_JSON_ARRAY,
    PF_JSON_OBJECT,
};

struct pf_json_options {
    const char *name;      /* for messages; NULL: "text" */
    int error_code;        /* of every error of this document; 0: PF_EUSAGE */
    int max_depth;         /* nested arrays and objects; 0: 128; at most 900 */
    size_t max_bytes;      /* of a file; 0: 256 MiB */
    bool allow_duplicates; /* keep all; pf_json_get then finds the last */
    bool is_not_a_file;    /* the name stands for itself: pf_json_place gives it without a line */
};

/*
 * Parse a file or a text (which need not end in NUL and is not kept). On success *doc_out is the
 * root node, to be freed with pf_json_free. Errors: PF_EIO (the file cannot be read), PF_ENOMEM, else
 * options->error_code. options may be NULL.
 */
int pf_json_parse_file(const char *path, struct pf_json **doc_out);
int pf_json_parse_text(const char *text, size_t len, const char *name_for_messages,
                       struct pf_json **doc_out);
int pf_json_parse_file_with(const char *path, const struct pf_json_options *options,
                            struct pf_json **doc_out);
int pf_json_parse_text_with(const char *text, size_t len, const struct pf_json_options *options,
                            struct pf_json **doc_out);

/* Free a document, given its root. NULL is fine; errno is preserved. */
void pf_json_free(struct pf_json *doc);

enum pf_json_type pf_json_type(const struct pf_json *node);

/* "null", "a boolean", "a number", "a string", "an array", "an object". */
const char *pf_json_type_name(enum pf_json_type type);

/* Is it a number without fraction, written without '.' or exponent? */
bool pf_json_is_integer(const struct pf_json *node);

/* The member of an object, or NULL if there is none or node is NULL or no object. Case counts. */
const struct pf_json *pf_json_get(const struct pf_json *node, const char *key);

/* Follow keys and indices: pf_json_find(doc, "rope_parameters.factor"), "shards[2].file". */
const struct pf_json *pf_json_find(const struct pf_json *node, const char *path);

/* Members of an object or elements of an array, in the order of the text. n is 0 for other types.
 * pf_json_key gives the key of member i of an object; pf_json_child needs i < n, else NULL. A NULL node
 * has none. */
size_t pf_json_n(const struct pf_json *node);
const char *pf_json_key(const struct pf_json *node, size_t i);
const struct pf_json *pf_json_child(const struct pf_json *node, size_t i);

/* Line (from 1) where the node starts; for a member of an object, where its key does. */
int pf_json_line(const struct pf_json *node);

/* Key path from the root ("" for the root): "mesh.tp", "shards[2].file". Belongs to the calling
 * thread and lasts until eight more calls there. */
const char *pf_json_path(const struct pf_json *node);

/* The name that messages use for the document. */
const char *pf_json_name(const struct pf_json *node);

/* Where a node stands, for messages: "'run.json' line 3". Kept as pf_json_path's result is. */
const char *pf_json_place(const struct pf_json *node);

/* The text of the node as it stands in the source (numbers: every digit), not NUL-terminated. */
const char *pf_json_source(const struct pf_json *node, size_t *len_out);

/*
 * The value of a node. Errors (wrong type, out of range, node NULL is a bug) carry the document's
 * code and are recorded. as_i64 takes a number that is integral with |x| <= 2^53, also "2e3";
 * as_u64 takes plain digits of any value below 2^64 exactly. Strings belong to the document.
 */
int pf_json_as_i64(const struct pf_json *node, int64_t *value_out);
int pf_json_as_u64(const struct pf_json *node, uint64_t *value_out);
int pf_json_as_f64(const struct pf_json *node, double *value_out);
int pf_json_as_bool(const struct pf_json *node, bool *value_out);
int pf_json_as_string(const struct pf_json *node, const char **value_out);

/*
 * A member of an object by key. Absent and null give the default; a wrong type is an error.
 */
int pf_json_i64(const struct pf_json *object, const char *key, int64_t by_default, int64_t *out);
int pf_json_int(const struct pf_json *object, const char *key, int by_default, int *out);
int pf_json_f64(const struct pf_json *object, const char *key, double by_default, double *out);
int pf_json_bool(const struct pf_json *object, const char *key, bool by_default, bool *out);
int pf_json_string(const struct pf_json *object, const char *key, const char *by_default,
                   const char **out);

/* The same where the member must be there: absent or null is an error that names it. */
int pf_json_need(const struct pf_json *object, const char *key, const struct pf_json **child_out);
int pf_json_need_i64(const struct pf_json *object, const char *key, int64_t *out);
int pf_json_need_f64(const struct pf_json *object, const char *key, double *out);
int pf_json_need_bool(const struct pf_json *object, const char *key, bool *out);
int pf_json_need_string(const struct pf_json *object, const char *key, const char **out);

/* Refuse a node that is not of this type, with the message of the getters. */
int pf_json_expect(const struct pf_json *node, enum pf_json_type type);

/* Record an error about a node ("'mesh.tp' WHAT ('config.json' line 3)") and return the code of its
 * document. */
int pf_json_fail(const struct pf_json *node, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Refuse the first member of an object whose key is not among known[0..n), naming it, its line, and
 * the nearest known key. */
int pf_json_refuse_unknown(const struct pf_json *object, const char *const *known, size_t n);

/* The node as compact text (its source without blanks), to be freed with pf_free; NULL with a record when
 * memory is out. */
char *pf_json_print(const struct pf_json *node);

#define PF_JSON_OUT_MAX_DEPTH 1024

struct pf_json_out {
    struct pf_str *to; /* borrowed */
    int indent;        /* blanks a level; 0: all on one line without blanks */
    int depth;
    bool has_items[PF_JSON_OUT_MAX_DEPTH]; /* of each open level, outermost first */
    bool is_object[PF_JSON_OUT_MAX_DEPTH];
    bool after_key;
};

void pf_json_out_init(struct pf_json_out *out, struct pf_str *to, int indent);
void pf_json_out_object_begin(struct pf_json_out *out);
void pf_json_out_object_end(struct pf_json_out *out);
void pf_json_out_array_begin(struct pf_json_out *out);
void pf_json_out_array_end(struct pf_json_out *out);
void pf_json_out_key(struct pf_json_out *out, const char *key);

/* A string must be valid UTF-8; a byte that is not becomes U+FFFD. NULL is written as null. */
void pf_json_out_string(struct pf_json_out *out, const char *text);
void pf_json_out_i64(struct pf_json_out *out, int64_t value);
void pf_json_out_u64(struct pf_json_out *out, uint64_t value);
void pf_json_out_f64(struct pf_json_out *out, double value);
void pf_json_out_f32(struct pf_json_out *out, float value);
void pf_json_out_bool(struct pf_json_out *out, bool value);
void pf_json_out_null(struct pf_json_out *out);

/* Valid JSON text, put in as it is. */
void pf_json_out_raw(struct pf_json_out *out, const char *json);

/* A parsed node, re-indented. */
void pf_json_out_node(struct pf_json_out *out, const struct pf_json *node);

/* Key and value in one call. */
void pf_json_out_member_string(struct pf_json_out *out, const char *key, const char *text);
void pf_json_out_member_i64(struct pf_json_out *out, const char *key, int64_t value);
void pf_json_out_member_f64(struct pf_json_out *out, const char *key, double value);
void pf_json_out_member_f32(struct pf_json_out *out, const char *key, float value);
void pf_json_out_member_bool(struct pf_json_out *out, const char *key, bool value);

/* All levels are closed (PF_ASSERTed) and no append failed: 0 or PF_ENOMEM. */
int pf_json_out_finish(struct pf_json_out *out);

#endif
