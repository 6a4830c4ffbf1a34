/* SPDX-License-Identifier: Apache-2.0 */
/* json_internal.h - a parsed document, for the files of lib/base/json*.c. */
#ifndef JSON_INTERNAL_H
#define JSON_INTERNAL_H

#include <pf/json.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_NUMBER_LEN 63 /* what cJSON's buffer holds */
#define PF_JSON_NO_PARENT SIZE_MAX

struct pf_json {
    struct pf_json_doc *doc;
    const struct cJSON *item;
    size_t parent, position; /* node number, and which child of it this is */
    size_t offset, len;      /* of the value in the text */
    size_t key_offset;       /* of a member's key; else offset */
    size_t n_children;
    const struct pf_json **children; /* in the order of the text */
    const struct pf_json **by_key;   /* members sorted by key, then by position */
    int line;
};

struct pf_json_doc {
    struct pf_json *nodes; /* in the order of the text; [0] is the root */
    size_t n_nodes, capacity;
    const struct pf_json **links; /* what children and by_key point into */
    struct cJSON *root;
    char *text, *name;
    size_t len;
    int error_code;
    bool is_not_a_file;
};

/* json_scanner.c: check the grammar of doc->text, at most max_depth deep, and append a node for each
 * value; PF_ENOMEM, or doc->error_code with a record that names line and column. */
int pf_base_json_scan(struct pf_json_doc *doc, int max_depth);

/* Record what is wrong at a byte of the text, and return doc->error_code. */
int pf_base_json_bad_at(const struct pf_json_doc *doc, size_t at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* json.c: record that a node is no integer, or one that is out of range, and return its code. */
int pf_base_json_must_be_integer(const struct pf_json *node);

#endif
