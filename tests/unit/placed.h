/* SPDX-License-Identifier: Apache-2.0 */
/* Small models of every family, placed in a layout. */
#ifndef PLACED_H
#define PLACED_H

#include <pf/error.h>
#include <pf/placement.h>

#include "model_fixture.h"

#include <string.h>

/* A model in a layout. */
struct placed {
    struct pf_model_spec spec;
    struct pf_parallel par;
    struct pf_mesh mesh;
    struct pf_table *table;
    struct pf_placement *place;
};

static inline int place_spec(const struct pf_model_spec *spec, const char *layout, struct placed *p)
{
    memset(p, 0, sizeof *p);
    p->spec = *spec;
    PF_TRY(pf_parallel_parse(layout, &p->par));
    PF_TRY(pf_parallel_resolve(&p->par, spec, 0, &p->mesh));
    PF_TRY(pf_table_new(spec, &p->mesh, &p->table));
    return pf_placement_new(p->table, &p->par, &p->place);
}

static inline void release(struct placed *p)
{
    pf_placement_free(p->place);
    pf_table_free(p->table);
    p->place = NULL;
    p->table = NULL;
}

/* Every family, small: 8 heads, so that 8 ranks have one each; sizes that leave rests. */
static inline struct pf_model_spec small(const char *folder, int64_t kv_heads, int64_t layers)
{
    struct pf_model_spec s = fixture_spec(folder, "config.json");

    s.hidden = 16;
    s.vocab_size = 13;
    s.max_positions = 5;
    s.n_heads = 8;
    s.head_dim = s.family == PF_FAMILY_GPT2 ? 2 : 4;
    s.n_kv_heads = s.fused_qkv || s.mla.kv_rank > 0 ? 8 : kv_heads;
    s.ffn = 24;
    s.rope.dim = 2;
    s.padding_id = -1;
    s.n_layers = layers;
    if (s.moe.n_experts > 0) {
        s.moe.n_experts = 8;
        s.moe.top_k = s.moe.n_groups = s.moe.top_groups = 1;
        s.moe.expert_ffn = s.moe.n_shared_experts > 0 ? 8 : 3;
        for (int64_t i = 1; i < layers; i++) {
            s.moe.layer_is_moe[i] = 1;
        }
    }
    if (s.mla.kv_rank > 0) {
        s.mla.kv_rank = 5;
        s.mla.q_rank = 3;
        s.mla.nope_dim = 2;
        s.mla.rope_dim = 2;
        s.mla.v_dim = 3;
    }
    return s;
}

#endif
