/* SPDX-License-Identifier: Apache-2.0 */
/* config_internal.h - what the files of the config share. For lib/train/config*.c alone. */
#ifndef CONFIG_INTERNAL_H
#define CONFIG_INTERNAL_H

#include <pf/config.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* In a row of the table: the key has no field. */
#define CONFIG_NO_FIELD SIZE_MAX

/* The words of the key dump and their bits, in the order of config_dump_words. */
struct config_dump_word {
    const char *word;
    unsigned bit;
};
extern const struct config_dump_word config_dump_words[];
extern const size_t config_n_dump_words;

/* Index of a key in the table, or -1; and for names that must be there. */
int config_key_find(const char *name);
size_t config_key_index(const char *name);

/* Where a key's value is kept. */
void *config_field(const struct pf_config *config, const struct pf_key *key);

/* Does a list of strings stand for bits of config->dump? Is a field a pointer and a count? */
bool config_is_dump(const struct pf_key *key);
bool config_is_number_list(const struct pf_key *key);

/* Which choice of an ENUM key with a field is set; -1: none (null). */
int config_choice(const struct pf_config *config, const struct pf_key *key);

/* Any value of a key; what is used depends on its type. */
struct config_value {
    bool b;
    int choice;
    int64_t i64;
    uint64_t u64;
    double f64;
    char *text;
    struct pf_str_list words;
    void *items;
    int64_t n;
};
void config_value_release(struct config_value *v);

/* Check type, choices and range of a node that is not null. *v is released by the caller, always. */
struct pf_json;
int config_value_read(const struct pf_key *key, const struct pf_json *node, struct config_value *v);

/* The words of a string or of an array of strings. */
int config_value_read_words(const struct pf_json *node, struct config_value *v);

/* Put a value where its key says; what is stored is taken out of *v. */
int config_value_store(struct pf_config *config, const struct pf_key *key,
                       const struct pf_json *node, struct config_value *v);

/* Append a line to what pf_config_resolve logs. */
int config_note(struct pf_config *config, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Note each key that was given and cannot matter in this run, with the reason. */
int config_note_idle(struct pf_config *config);

#endif
