/* SPDX-License-Identifier: Apache-2.0 */
/* command.h - what the commands of pf-inspect share. One command is one file, named after it. */
#ifndef INSPECT_COMMAND_H
#define INSPECT_COMMAND_H

#include <pf/ckpt.h>
#include <pf/family.h>
#include <pf/inspect.h>
#include <pf/json.h>
#include <pf/opts.h>
#include <pf/progress.h>
#include <pf/str.h>

#include <stdbool.h>
#include <stdint.h>

#define SEE_HELP "; see 'pf-inspect --help'"

struct options {
    struct pf_opts_shared shared;
    const char *command;
    const char *paths[2]; /* as they were given */
    double rel, abs;      /* NAN: not given */
    int64_t ulp;          /* INT64_MIN: not given */
    const char *nan;
    bool weights_only;
    const char *html;                             /* NULL: not given */
    int64_t world;                                /* 0: not given */
    const char *layout;                           /* NULL: not given */
    const char *schedule, *costs, *factors, *svg; /* NULL: not given */
    int64_t micro_batches;                        /* 0: not given */
    bool answered;                                /* the JSON document is out */
};

/* Each gives the error code that the program ends with; PF_EDIFFER without a record is a plain no. */
int command_show(struct options *o, char **operands);
int command_ls(struct options *o, char **operands);
int command_verify(struct options *o, char **operands);
int command_repair(struct options *o, char **operands);
int command_hash(struct options *o, char **operands);
int command_diff(struct options *o, char **operands);
int command_scan(struct options *o, char **operands);
int command_cat(struct options *o, char **operands);
int command_run(struct options *o, char **operands);
int command_env(struct options *o, char **operands);
int command_ops(struct options *o, char **operands);
int command_plan(struct options *o, char **operands);
int command_schedule(struct options *o, char **operands);

/* Text --------------------------------------------------------------------------------------------
 */

/* Names come from files: nothing in them may move the cursor or end a line. */
int append_printable(struct pf_str *to, const char *text);

/* "[48,64]", "[3,0]" */
int append_shape(struct pf_str *to, const struct pf_ckpt_tensor *t);
int append_index(struct pf_str *to, const int64_t *at, int n_dims);

/* "path          out\n" */
void print_field(const char *name, const char *text);

/* Cells of a table, row by row, printed in columns; the last one is not padded. */
struct table {
    const char *columns; /* 'l' or 'r' for each */
    struct pf_str_list cells;
    struct pf_str cell; /* the one being made */
};

void table_init(struct table *t, const char *columns);
int table_end_cell(struct table *t); /* after appends to t->cell */
int table_add_text(struct table *t, const char *text);
int table_add_i64(struct table *t, int64_t value);
void table_print(const struct table *t);
void table_release(struct table *t);

/* JSON --------------------------------------------------------------------------------------------
 */

struct document {
    struct pf_str text;
    struct pf_json_out out;
};

/* Open the document; err says how the program will end. */
void document_begin(struct document *d, const struct options *o, int err);
int document_end(struct document *d, struct options *o);

/* Print what there is of a long document, which is then the answer, whatever happens later. */
int document_flush(struct document *d, struct options *o);

void member_u64(struct pf_json_out *out, const char *key, uint64_t value);
void member_raw(struct pf_json_out *out, const char *key, const char *json); /* NULL: null */
void member_count(struct pf_json_out *out, const char *key, int64_t value);  /* -1: null */
void member_integers(struct pf_json_out *out, const char *key, const int64_t *values, int n);

/* Which checkpoint it is; the directory may be another than the path that was given. */
void member_checkpoint(struct pf_json_out *out, const char *path, const struct pf_ckpt *ckpt);

/* Long work ---------------------------------------------------------------------------------------
 */

struct pf_inspect_progress progress_start(struct pf_progress *p, const struct options *o,
                                          const char *title);

/* The model ---------------------------------------------------------------------------------------
 */

/* The configuration, as far as pf understands it. */
struct model {
    struct pf_json *config; /* NULL: none */
    const char *architecture, *type;
    bool understood, causal_lm; /* the class is the one whose tensors pf knows */
    struct pf_model_spec spec;
    char why_not[256];
};

/* The caller frees m->config, also after an error. */
int model_read(const struct pf_ckpt *ckpt, struct model *m);

/* The model of a config: a model's own config.json, or a run's, which names one or holds it. PF_EUSAGE
 * where it says none. */
int config_model(const struct pf_json *config, struct pf_model_spec *spec_out);

#endif
