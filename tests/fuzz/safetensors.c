/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a safetensors file: refused, or a header that keeps its promises. */
#include <pf/safetensors.h>

#include "replay.h"

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

static void check_promises(const struct pf_st *st)
{
    uint64_t at = 0;

    for (size_t i = 0; i < pf_st_n_tensors(st); i++) {
        const struct pf_st_tensor *t = pf_st_tensor(st, i);
        require(t->begin == at && t->end >= t->begin, "ranges tile the data");
        require(strlen(t->name) <= t->name_bytes, "names are terminated");
        require(pf_st_find_bytes(st, t->name, t->name_bytes) == t, "names are found and unique");
        uint64_t n_bits = (uint64_t)pf_dtype_bits(t->dtype);
        for (int d = 0; d < t->n_dims; d++) {
            n_bits *= t->shape[d];
        }
        require(n_bits == 8 * (t->end - t->begin), "sizes follow from shapes");
        at = t->end;
    }
    require(at == pf_st_file_bytes(st) - pf_st_data_offset(st), "the data ends with the file");
    for (size_t i = 0; i < pf_st_n_metadata(st); i++) {
        const struct pf_st_metadata *m = pf_st_metadata(st, i);
        const char *found = pf_st_find_metadata(st, m->key);
        require(strlen(m->key) < m->key_bytes || found == m->value, "metadata is found");
    }
}

static void parse(const uint8_t *header, size_t header_bytes, uint64_t file_bytes)
{
    struct pf_st *st;

    if (pf_st_parse(header, header_bytes, file_bytes, "input", &st) == 0) {
        check_promises(st);
        pf_st_close(st);
    }
}

/* As a file; and as a header alone with as much data behind it as the seeds have, so that damage to
 * the length does not hide the parser from the rest. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    size_t header_bytes;

    if (pf_st_check_prefix(data, n_bytes < 64 ? n_bytes : 64, n_bytes, "input", &header_bytes) ==
        0) {
        parse(data + 8, header_bytes, n_bytes);
    }
    if (n_bytes >= 8) {
        parse(data + 8, n_bytes - 8, n_bytes + 24);
    }
    return 0;
}

#ifndef PF_LIBFUZZER

/* Eight bytes that stand for the length, then a header whose tensors have 24 bytes. */
#define SEED(header)                                                                               \
    {                                                                                              \
        "\x40\0\0\0\0\0\0\0" header, 8 + sizeof header - 1                                         \
    }

int main(int argc, char **argv)
{
    static const struct fuzz_seed seeds[] = {
        SEED("{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}"),
        SEED("{\"__metadata__\":{\"format\":\"pt\",\"k\\u00e9\":\"v\\n\"},\"b.weight\":{\"dtype\":"
             "\"BF16\",\"shape\":[4],\"data_offsets\":[16,24]},\"a\":{\"data_offsets\":[0,16],"
             "\"shape\":[],\"dtype\":\"I64\",\"x\":[1.5e3,{\"y\":[null,true]}]}}"),
        SEED(
            "{\"z\":{\"dtype\":\"F4\",\"shape\":[0,9],\"data_offsets\":[24,24]},\"\\ud83d\\ude00\":"
            "{\"dtype\":\"F6_E2M3\",\"shape\":[32],\"data_offsets\":[0,24]}}   "),
        SEED("{\"a\":{\"dtype\":\"U8\",\"shape\":[24],\"data_offsets\":[0,24],\"deep\":[[[[[[[[[[[["
             "[["
             "[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]],\"n\":-0.1e-307}}"),
    };

    return fuzz_main(argc, argv, seeds, sizeof seeds / sizeof seeds[0]);
}

#endif
