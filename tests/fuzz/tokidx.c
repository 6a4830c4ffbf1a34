/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a Megatron index: refused, or an index that keeps its promises. The first eight bytes
 * of an input are the length of the .bin, the rest is the .idx. */
#include <pf/tokidx.h>

#include "replay.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void require(bool holds, const char *claim)
{
    if (!holds) {
        fprintf(stderr, "not true: %s\n", claim);
        abort();
    }
}

static void check_promises(const struct pf_tokidx *t)
{
    const int64_t n = pf_tokidx_n_sequences(t), n_tokens = pf_tokidx_n_tokens(t);
    int64_t at = 0, token = 0;

    for (int64_t i = 0; i < n; i++) {
        const int64_t start = pf_tokidx_sequence_start(t, i);
        require(start >= token, "starts do not decrease");
        token = start;
        if (start < pf_tokidx_sequence_start(t, i + 1)) {
            require(pf_tokidx_sequence_of(t, start) == i, "a first token leads to its sequence");
        }
    }
    require(token <= n_tokens, "no sequence starts behind the last token");
    for (int64_t d = 0; d < pf_tokidx_n_documents(t); d++) {
        int64_t first, end;
        pf_tokidx_document(t, d, &first, &end);
        require(first == at && end >= first, "documents follow each other");
        at = end;
    }
    require(at == n, "documents hold all sequences");
    require(pf_tokidx_read(t, 0, n_tokens, NULL) != 0, "an index alone gives no tokens");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    uint64_t bin_bytes;
    struct pf_tokidx *t;

    if (n_bytes < sizeof bin_bytes) {
        return 0;
    }
    memcpy(&bin_bytes, data, sizeof bin_bytes);
    if (pf_tokidx_parse(data + 8, n_bytes - 8, bin_bytes, "input", &t) == 0) {
        check_promises(t);
        pf_tokidx_close(t);
    }
    return 0;
}

#ifndef PF_LIBFUZZER

#define U64(low) low "\0\0\0\0\0\0\0"
#define I32(low) low "\0\0\0"

int main(int argc, char **argv)
{
    static const char one[] = U64("\x0c") "MMIDIDX\0\0" U64("\1") "\4" U64("\2") U64("\3") I32("\2")
        I32("\1") U64("\0") U64("\x08") U64("\0") U64("\1") U64("\2"),
                      modes[] = U64("\x06") "MMIDIDX\0\0" U64("\1") "\x08" U64("\3") U64("\2")
                          I32("\2") I32("\0") I32("\1") U64("\0") U64("\4") U64("\4") U64("\0")
                              U64("\3") "\0\1\0",
                      none[] = U64("\0") "MMIDIDX\0\0" U64("\1") "\5" U64("\0") U64("\1") U64("\0");
    static const struct fuzz_seed seeds[] = {
        {one, sizeof one - 1}, {modes, sizeof modes - 1}, {none, sizeof none - 1}};

    return fuzz_main(argc, argv, seeds, sizeof seeds / sizeof seeds[0]);
}

#endif
