/* SPDX-License-Identifier: Apache-2.0 */
/* A model of a wanted size whose state lies in one piece of memory: weights alone, or all that a run has. */
#include "bench_internal.h"

#include <pf/error.h>
#include <pf/family.h>
#include <pf/json.h>
#include <pf/mem.h>

#include <stdio.h>
#include <string.h>

#define ALIGN ((size_t)64)

static const struct {
    enum pf_role role;
    enum pf_dtype dtype;
} kinds[] = {{PF_ROLE_WEIGHT, PF_DTYPE_BF16},
             {PF_ROLE_MASTER, PF_DTYPE_F32},
             {PF_ROLE_MOMENT1, PF_DTYPE_F32},
             {PF_ROLE_MOMENT2, PF_DTYPE_F32}};

/* A tied llama: 4 h^2 for attention, 12 h^2 for the feed-forward part, an embedding of 8 h^2. The widest
 * that has four layers, and an even number of them. */
static void choose_size(uint64_t bytes, uint64_t bytes_per_number, int64_t *width, int64_t *layers)
{
    const int64_t numbers = (int64_t)(bytes / bytes_per_number);

    *width = 2048;
    while (*width > 64 && 72 * *width * *width > numbers) {
        *width /= 2;
    }
    *layers = (numbers / (*width * *width) - 8) / 16 / 2 * 2;
    *layers = *layers < 4 ? 4 : *layers;
}

static int read_spec(struct bench_state *s, int64_t width, int64_t layers)
{
    struct pf_json *config = NULL;

    s->config_json = pf_asprintf(
        "{\"model_type\":\"llama\",\"vocab_size\":%lld,\"hidden_size\":%lld,"
        "\"intermediate_size\":%lld,\"num_hidden_layers\":%lld,\"num_attention_heads\":%lld,"
        "\"num_key_value_heads\":%lld,\"tie_word_embeddings\":true,\"torch_dtype\":\"bfloat16\"}",
        (long long)(8 * width), (long long)width, (long long)(4 * width), (long long)layers,
        (long long)(width / 16), (long long)(width / 16));
    PF_TRY(s->config_json ? 0 : PF_ENOMEM);
    PF_TRY(pf_json_parse_text_with(s->config_json, strlen(s->config_json),
                                   &(struct pf_json_options){.name = "config"}, &config));
    const int err = pf_family_read_config(config, &s->spec);
    pf_json_free(config);
    return err;
}

static size_t row_bytes(const struct pf_tensor_row *row, enum pf_dtype dtype)
{
    return (size_t)pf_tensor_row_count(row) * pf_dtype_bytes(dtype);
}

/* Every row once for each kind, one after the other. */
static void lay_out(struct bench_state *s, int n_kinds)
{
    for (int k = 0; k < n_kinds; k++) {
        for (int64_t i = 0; i < s->table->n_rows; i++) {
            const struct pf_tensor_row *const row = &s->table->rows[i];
            if (row->tied_to >= 0) {
                continue;
            }
            struct pf_ckpt_live *const live = &s->live[s->n_live++];
            *live = (struct pf_ckpt_live){.name = row->name,
                                          .role = kinds[k].role,
                                          .dtype = kinds[k].dtype,
                                          .n_dims = row->n_dims};
            live->box.n_dims = row->n_dims;
            for (int d = 0; d < row->n_dims; d++) {
                live->shape[d] = live->box.hi[d] = row->shape[d];
            }
            s->payload += row_bytes(row, kinds[k].dtype);
            s->bytes += (row_bytes(row, kinds[k].dtype) + ALIGN - 1) / ALIGN * ALIGN;
        }
    }
}

int bench_state_make(struct bench_state *s, uint64_t bytes, bool weights_only)
{
    const int n_kinds = weights_only ? 1 : (int)(sizeof kinds / sizeof kinds[0]);
    struct pf_parallel par;
    struct pf_mesh mesh;
    int64_t width, layers;

    choose_size(bytes, weights_only ? 2 : 14, &width, &layers);
    PF_TRY(read_spec(s, width, layers));
    PF_TRY(pf_parallel_parse("dp=1", &par));
    PF_TRY(pf_parallel_resolve(&par, &s->spec, 1, &mesh));
    PF_TRY(pf_table_new(&s->spec, &mesh, &s->table));
    s->live = pf_calloc_array((size_t)s->table->n_rows * (size_t)n_kinds, sizeof *s->live);
    PF_TRY(s->live ? 0 : PF_ENOMEM);
    lay_out(s, n_kinds);
    return 0;
}

void bench_state_point(struct bench_state *s, void *memory)
{
    size_t at = 0;

    for (int64_t i = 0; i < s->n_live; i++) {
        struct pf_ckpt_live *const live = &s->live[i];
        live->data = (char *)memory + at;
        const size_t n = (size_t)pf_box_count(&live->box) * pf_dtype_bytes(live->dtype);
        at += (n + ALIGN - 1) / ALIGN * ALIGN;
    }
}

void bench_state_release(struct bench_state *s)
{
    pf_free(s->live);
    pf_table_free(s->table);
    pf_free(s->config_json);
    *s = (struct bench_state){.n_live = 0};
}

int bench_layout_make(struct bench_layout *l, const struct bench_state *s, const char *text)
{
    struct pf_parallel par;
    struct pf_mesh mesh;

    PF_TRY(pf_parallel_parse(text, &par));
    PF_TRY(pf_parallel_resolve(&par, &s->spec, 0, &mesh));
    PF_TRY(pf_table_new(&s->spec, &mesh, &l->table));
    return pf_placement_new(l->table, &par, &l->place);
}

void bench_layout_release(struct bench_layout *l)
{
    pf_placement_free(l->place);
    pf_table_free(l->table);
    *l = (struct bench_layout){.table = NULL};
}

/* Bits without a pattern: neither a compressor nor the disk can make anything of them. */
void bench_fill_bits(void *memory, size_t bytes)
{
    uint64_t x = 0x9e3779b97f4a7c15u, *const words = memory;

    for (size_t i = 0; i < bytes / sizeof *words; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        words[i] = x;
    }
}
