/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a config: refused with one line, or options that print to a text which reads back to
 * the same options. Up to a first NUL the input is the file, what follows is one override. */
#include <pf/config.h>
#include <pf/error.h>
#include <pf/mem.h>

#include "replay.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void require(bool holds, const char *claim)
{
    if (!holds) {
        fprintf(stderr, "not true: %s\n", claim);
        abort();
    }
}

/* A file in memory, made once. */
static const char *file_of(const void *bytes, size_t n)
{
    static char path[64];
    static int fd = -1;

    if (fd < 0) {
        fd = memfd_create("config", 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    require(fd >= 0 && ftruncate(fd, 0) == 0 && pwrite(fd, bytes, n, 0) == (ssize_t)n,
            "the input can be put into a file");
    return path;
}

static int read_again(const char *text, struct pf_str *again)
{
    struct pf_config config;

    PF_TRY(pf_config_read(file_of(text, strlen(text)), NULL, 0, &config));
    require(pf_config_print(&config, again) == 0, "it prints");
    pf_config_release(&config);
    return 0;
}

static void check_promises(struct pf_config *config)
{
    struct pf_str text, again;
    char *note = NULL;

    pf_str_init(&text);
    pf_str_init(&again);
    require(pf_config_print(config, &text) == 0, "options print");
    const int err = read_again(text.text, &again);
    if (err) {
        fprintf(stderr, "%s\n%s\n", pf_error_message(), text.text);
    }
    require(err == 0, "what was printed reads again");
    require(strcmp(text.text, again.text) == 0, "and prints the same");
    require(pf_config_check_resume(config, text.text, &note) == 0 && !note,
            "and may resume itself");
    pf_str_release(&text);
    pf_str_release(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    const uint8_t *const nul = n_bytes ? memchr(data, 0, n_bytes) : NULL;
    const size_t n_file = nul ? (size_t)(nul - data) : n_bytes;
    char *const word = nul ? pf_strndup((const char *)nul + 1, n_bytes - n_file - 1) : NULL;
    const char *words[] = {word};
    struct pf_config config;

    pf_error_clear();
    const int err = pf_config_read(file_of(data, n_file), words, word ? 1 : 0, &config);
    if (err) {
        require(*pf_error_message() && !strchr(pf_error_message(), '\n'), "an error is one line");
        require(err == PF_EUSAGE || err == PF_ENOTSUP, "and of the kinds that config.h names");
    } else {
        check_promises(&config);
        pf_config_release(&config);
    }
    pf_free(word);
    return 0;
}

#ifndef PF_LIBFUZZER

int main(int argc, char **argv)
{
    static const char
        least[] = "{\"model_name_or_path\":\"m\",\"output_dir\":\"o\",\"input_dir\":\"a\"}",
        more[] =
            "{\"model\":{\"a\":[1]},\"output_dir\":\"o\",\"input_dir\":\"a\",\"max_steps\":9,"
            "\"bf16\":true,\"lr_scheduler\":\"wsd:5\",\"dump_steps\":[1],\"freeze\":\"a b\","
            "\"skip_data_intervals\":[[1,2]],\"seed\":18446744073709551615}\0learning_rate=1e-3",
        old[] = "{\"model_name_or_path\":\"m\",\"output_dir\":\"o\",\"input_dir\":\"a\","
                "\"pipeline_parallel_config\":\"enable_delay_scale_loss\",\"sharding_degree\":1,"
                "\"lr_scheduler_type\":\"table\",\"lr_table\":[1e-3,2]}\0dump=[\"grads\"]";
    static const struct fuzz_seed seeds[] = {
        {least, sizeof least - 1}, {more, sizeof more - 1}, {old, sizeof old - 1}};

    return fuzz_main(argc, argv, seeds, sizeof seeds / sizeof seeds[0]);
}

#endif
