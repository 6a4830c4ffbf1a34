/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys of man/pf-config.5 are those of the table: name, type, default, unit, status, meaning.
 *
 *     build/release/tests/unit/config_page             compares
 *     build/release/tests/unit/config_page --write     puts the table into the page
 *
 * The page holds two marks, `.\" keys begin` and `.\" keys end`; what stands between them is made here.
 */
#include <pf/config.h>
#include <pf/error.h>
#include <pf/file.h>
#include <pf/mem.h>

#include "tap.h"

#include <ctype.h>
#include <string.h>

#define PAGE "man/pf-config.5"
#define BEGIN ".\\\" keys begin\n"
#define END ".\\\" keys end\n"
#define LINE_WIDTH 78

/* The heading above a key: the table is in the order of the page. */
static const struct {
    const char *first_key, *heading;
} sections[] = {
    {"model_name_or_path", "Model and data"},
    {"per_device_train_batch_size", "Batch and length of the run"},
    {"optim", "Optimizer"},
    {"dtype", "Precision"},
    {"device", "Machine"},
    {"tensor_model_parallel_size", "Layout"},
    {"sharding_comm_buffer_size_MB", "Sharding and fused buffers"},
    {"pipeline_schedule_mode", "Pipeline"},
    {"replace_with_c_embedding", "Tensor parallel"},
    {"recompute_granularity", "Recompute"},
    {"moe_token_dispatcher_type", "Experts"},
    {"save_steps", "Saving and resuming"},
    {"dump_steps", "Looking inside"},
    {"pipeline_parallel_config", "Old forms"},
};

static const char *type_name(enum pf_key_type type)
{
    static const char *const names[] = {
        [PF_KEY_BOOL] = "boolean",
        [PF_KEY_I64] = "integer",
        [PF_KEY_U64] = "integer",
        [PF_KEY_INT] = "integer",
        [PF_KEY_F64] = "number",
        [PF_KEY_STRING] = "string",
        [PF_KEY_STRING_LIST] = "list of strings, or one string of words",
        [PF_KEY_I64_LIST] = "list of integers",
        [PF_KEY_F64_LIST] = "list of numbers",
        [PF_KEY_ENUM] = "string",
        [PF_KEY_OBJECT] = "object",
        [PF_KEY_I64_PAIRS] = "list of pairs of integers",
    };
    return names[type];
}

static const char *status_name(enum pf_key_status status)
{
    return status == PF_KEY_EFFECTIVE ? "effective"
           : status == PF_KEY_REFUSED ? "refused"
                                      : "satisfied by design";
}

/* Text for mdoc: minus signs, no line that looks like a macro, a line break after a sentence. */
static void add_text(struct pf_str *page, const char *text)
{
    size_t column = 0;

    while (*text) {
        const size_t n = strcspn(text, " ");
        if (column > 0 && column + 1 + n > LINE_WIDTH) {
            pf_str_append(page, "\n");
            column = 0;
        }
        pf_str_append(page, column > 0 ? " " : "");
        pf_str_append(page, column == 0 && (*text == '.' || *text == '\'') ? "\\&" : "");
        for (size_t i = 0; i < n; i++) {
            const bool is_minus =
                text[i] == '-' && i + 1 < n && isdigit((unsigned char)text[i + 1]);
            pf_str_append(page, is_minus ? "\\" : "");
            pf_str_append_char(page, text[i]);
        }
        column += n + 1;
        if (n > 1 && text[n - 1] == '.' && text[n] == ' ') {
            pf_str_append(page, "\n");
            column = 0;
        }
        text += n + (text[n] == ' ');
    }
    pf_str_append(page, "\n");
}

static void add_facts(const struct pf_key *key, struct pf_str *page)
{
    struct pf_str line;

    pf_str_init(&line);
    pf_str_append(&line, type_name(key->type));
    for (int i = 0; key->choices && key->choices[i]; i++) {
        pf_str_appendf(&line, "%s%s", i ? " | " : " ", key->choices[i]);
    }
    if (key->unit) {
        pf_str_appendf(&line, ", in %s", key->unit);
    }
    pf_str_appendf(&line, "; default %s; %s", key->by_default, status_name(key->status));
    if (key->n_supported) {
        pf_str_appendf(&line, ", of its values the first %s only",
                       key->n_supported == 1 ? "one" : "two");
    }
    if (key->same_as_default) {
        pf_str_append(&line, ", except for the default and");
        pf_str_appendf(&line, " %.*s", (int)strlen(key->same_as_default) - 2,
                       key->same_as_default + 1);
    }
    pf_str_appendf(&line, "%s.", key->may_change_on_resume ? "; may change on resume" : "");
    add_text(page, line.text);
    pf_str_release(&line);
}

static void add_key(const struct pf_key *key, struct pf_str *page)
{
    struct pf_str help;

    pf_str_appendf(page, ".It Ic %s\n", key->name);
    add_facts(key, page);
    pf_str_init(&help);
    pf_str_appendf(&help, "%c%s.", toupper((unsigned char)key->help[0]), key->help + 1);
    if (key->why) {
        pf_str_appendf(&help, " %c%s.", toupper((unsigned char)key->why[0]), key->why + 1);
    }
    add_text(page, help.text);
    pf_str_release(&help);
}

static void add_aliases(struct pf_str *page)
{
    pf_str_append(page, ".It Xo\nOld names:\n.Xc\n");
    for (size_t i = 0; i < pf_n_key_aliases; i++) {
        pf_str_appendf(page, ".Ic %s\nis\n.Ic %s %s\n", pf_key_aliases[i].old,
                       pf_key_aliases[i].name, i + 1 < pf_n_key_aliases ? "," : ".");
    }
}

static void add_keys(struct pf_str *page)
{
    size_t section = 0;

    for (size_t i = 0; i < pf_n_keys; i++) {
        if (section < sizeof sections / sizeof sections[0] &&
            strcmp(pf_keys[i].name, sections[section].first_key) == 0) {
            pf_str_appendf(page, "%s.Ss %s\n.Bl -tag -width Ds\n", section ? ".El\n" : "",
                           sections[section].heading);
            section++;
        }
        add_key(&pf_keys[i], page);
    }
    add_aliases(page);
    pf_str_append(page, ".El\n");
    ok(section == sizeof sections / sizeof sections[0], "every heading stands above its key");
}

int main(int argc, char **argv)
{
    struct pf_str page;
    char *text = NULL;
    size_t len;

    if (!ok(pf_file_read_all(PAGE, (size_t)1 << 20, &text, &len) == 0, "there is %s", PAGE)) {
        return done();
    }
    const char *const begin = strstr(text, BEGIN), *const end = strstr(text, END);
    if (ok(begin && end && begin < end, "it says where its keys begin and end")) {
        pf_str_init(&page);
        pf_str_append_bytes(&page, text, (size_t)(begin - text) + strlen(BEGIN));
        add_keys(&page);
        pf_str_append(&page, end);
        if (argc > 1 && strcmp(argv[1], "--write") == 0) {
            ok(pf_file_write_atomic(PAGE, page.text, page.len) == 0, "the page was written");
        } else {
            ok(page.len == len && memcmp(page.text, text, len) == 0,
               "each of the %zu keys stands there as in the table (else: %s --write)", pf_n_keys,
               argv[0]);
        }
        pf_str_release(&page);
    }
    pf_free(text);
    return done();
}
