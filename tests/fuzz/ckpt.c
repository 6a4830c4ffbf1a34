/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a manifest or as a Hugging Face index, beside real files. What opens can be read to the
 * last element; what does not open has a fault that verify lists. The first byte of an input says which
 * of the two it is, and whether a manifest gets a digest that fits.
 */
#define FUZZ_ROUNDS 6000

#include <pf/ckpt.h>
#include <pf/digest.h>
#include <pf/error.h>

#include "../unit/scratch.h"
#include "replay.h"

#include <stdbool.h>

static char pf_dir[300], hf_dir[300];

static void require(bool holds, const char *claim)
{
    if (!holds) {
        fprintf(stderr, "not true: %s (%s)\n", claim, pf_error_message());
        abort();
    }
}

/* A checkpoint of three tensors in two files, and a Hugging Face directory of two shards. */
static void make_dirs(void)
{
    static float data[24];
    const int64_t shape[2] = {6, 4};
    struct pf_ckpt_live live[4] = {
        {.name = "a", .role = PF_ROLE_WEIGHT},
        {.name = "b", .role = PF_ROLE_WEIGHT},
        {.name = "a", .role = PF_ROLE_MOMENT1, .range_hi = 10},
        {.name = "a", .role = PF_ROLE_MOMENT1, .range_lo = 10, .range_hi = 24},
    };

    scratch_make();
    atexit(scratch_remove);
    for (int i = 0; i < 4; i++) {
        live[i].dtype = PF_DTYPE_F32;
        live[i].n_dims = live[i].box.n_dims = 2;
        memcpy(live[i].shape, shape, sizeof shape);
        memcpy(live[i].box.hi, shape, sizeof shape);
        live[i].data = data;
    }
    const struct pf_ckpt_save save = {.output_dir = scratch_dir, .step = 1};
    require(pf_ckpt_save(NULL, &save, live, 4, NULL) == 0, "a checkpoint is saved");
    snprintf(pf_dir, sizeof pf_dir, "%s", at("checkpoint-000001"));
    snprintf(hf_dir, sizeof hf_dir, "%s", at("hf"));
    require(pf_hf_write(hf_dir, live, 2, PF_DTYPE_F32, "{\"model_type\":\"gpt2\"}", NULL, 100) == 0,
            "a directory is written");
}

static void give_digest(uint8_t *text, size_t n)
{
    char hex[PF_DIGEST_HEX_BYTES];

    if (n >= 58) {
        const struct pf_digest digest = pf_digest_of(text, n - 58);
        memcpy(text + n - 58 + 22, pf_digest_hex(&digest, hex), 32);
    }
}

static void read_all(const struct pf_ckpt *ckpt)
{
    for (int64_t i = 0; i < ckpt->n_tensors; i++) {
        char hex[33];
        require(pf_ckpt_tensor_digest(ckpt, &ckpt->tensors[i], hex) == 0, "a tensor is read");
        require(pf_ckpt_find(ckpt, ckpt->tensors[i].name, ckpt->tensors[i].role) != NULL,
                "a tensor is found");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    struct pf_ckpt_fault *faults = NULL;
    struct pf_ckpt *ckpt = NULL;
    int64_t n = 0;

    if (!scratch_dir[0]) {
        make_dirs();
    }
    if (n_bytes < 1) {
        return 0;
    }
    const char *dir = data[0] & 1 ? hf_dir : pf_dir;
    const size_t len = n_bytes - 1;
    uint8_t *text = pf_alloc(len + 1);
    memcpy(text, data + 1, len);
    if (data[0] & 2) {
        give_digest(text, len);
    }
    char *path = pf_path_join(dir, data[0] & 1 ? "model.safetensors.index.json" : "manifest.json");
    put(path, text, len);
    const int err = pf_ckpt_open(dir, &ckpt);
    if (err == 0) {
        read_all(ckpt);
        pf_ckpt_free(ckpt);
    }
    require(pf_ckpt_verify(dir, &faults, &n) == 0, "verify comes to an end");
    require(err == 0 || pf_ckpt_faults_count(faults, n) > 0, "what does not open has a fault");
    pf_ckpt_faults_free(faults, n);
    pf_free(path);
    pf_free(text);
    return 0;
}

#ifndef PF_LIBFUZZER

/* A file with a byte before it. */
static struct fuzz_seed seed_of(uint8_t first, const char *path)
{
    size_t n;
    char *text = get(path, &n);
    uint8_t *bytes = pf_alloc(n + 1);

    bytes[0] = first;
    memcpy(bytes + 1, text, n);
    pf_free(text);
    return (struct fuzz_seed){bytes, n + 1};
}

int main(int argc, char **argv)
{
    make_dirs();
    const struct fuzz_seed seeds[] = {
        seed_of(0, at("checkpoint-000001/manifest.json")),
        seed_of(2, at("checkpoint-000001/manifest.json")),
        seed_of(1, at("hf/model.safetensors.index.json")),
    };
    const int status = fuzz_main(argc, argv, seeds, 3);
    for (int i = 0; i < 3; i++) {
        pf_free((void *)(uintptr_t)seeds[i].bytes);
    }
    return status;
}

#endif
