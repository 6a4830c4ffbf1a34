/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a .jsonl file: refused, or documents that can be read. */
#include <pf/jsonl.h>

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

static void check_promises(const struct pf_jsonl *j)
{
    static unsigned char whole[FUZZ_MAX_BYTES], part[FUZZ_MAX_BYTES];
    int64_t at = 0;

    for (int64_t d = 0; d < pf_jsonl_n_documents(j); d++) {
        const int64_t n = pf_jsonl_start(j, d + 1) - at, half = n / 2;
        require(pf_jsonl_start(j, d) == at && n >= 0, "documents follow each other");
        require(n < FUZZ_MAX_BYTES, "a text is no longer than its line");
        require(pf_jsonl_read(j, d, 0, (size_t)n, whole) == 0, "a document can be read");
        require(pf_jsonl_read(j, d, half, (size_t)(n - half), part) == 0, "from anywhere");
        require(memcmp(part, whole + half, (size_t)(n - half)) == 0, "with the same bytes");
        at += n;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    static int fd = -1;
    char path[64];
    struct pf_jsonl *j;

    if (fd < 0) {
        fd = memfd_create("lines", 0);
    }
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, n_bytes, 0) != (ssize_t)n_bytes) {
        return 0;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (pf_jsonl_open(path, &j) == 0) {
        check_promises(j);
        pf_jsonl_close(j);
    }
    return 0;
}

#ifndef PF_LIBFUZZER

int main(int argc, char **argv)
{
    static const char plain[] = "{\"text\":\"one\"}\n{\"text\": \"two \\u00e4\\n\"}\n",
                      nested[] =
                          "\n {\"id\":[1.5e3,{\"a\":null}],\"text\":\"\\ud83d\\ude00x\"} \r\n",
                      other[] = "{\"messages\":[]}\n{\"text\":\"\"}";
    static const struct fuzz_seed seeds[] = {
        {plain, sizeof plain - 1}, {nested, sizeof nested - 1}, {other, sizeof other - 1}};

    return fuzz_main(argc, argv, seeds, sizeof seeds / sizeof seeds[0]);
}

#endif
