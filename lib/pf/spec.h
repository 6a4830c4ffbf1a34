/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spec.h - what a decoder-only language model is, as plain data.
 *
 * lib/model reads a Hugging Face config.json into a spec; lib/shard turns a spec, a mesh and
 * options into the tensor table. The spec says what the mathematics is; it holds no pointer and no
 * policy, so it can be copied, compared and hashed. Families that pf trains today leave the groups
 * moe and mla empty; the fields are there so that the families of later steps add values, not
 * structure.
 *
 * All widths count elements. Source of every field: the Hugging Face configuration of the family,
 * as stated in the fixtures' README and in FORMATS.md section 2.
 */
#ifndef PF_SPEC_H
#define PF_SPEC_H

#include <stdbool.h>
#include <stdint.h>

#define PF_SPEC_MAX_LAYERS 1024

enum pf_family {
    PF_FAMILY_GPT2,
    PF_FAMILY_LLAMA,
    PF_FAMILY_QWEN2,
    PF_FAMILY_QWEN3,
    PF_FAMILY_ERNIE4_5,
    PF_FAMILY_MIXTRAL,
    PF_FAMILY_QWEN3_MOE,
    PF_FAMILY_DEEPSEEK_V3,
    PF_FAMILY_ERNIE4_5_MOE,
    PF_FAMILY_COUNT
};

enum pf_norm_kind { PF_NORM_RMS, PF_NORM_LAYER };

enum pf_spec_act {
    PF_SPEC_ACT_SILU,
    PF_SPEC_ACT_GELU_TANH,
    PF_SPEC_ACT_GELU_ERF,
    PF_SPEC_ACT_RELU
};

enum pf_rope_kind { PF_ROPE_NONE, PF_ROPE_DEFAULT, PF_ROPE_LINEAR, PF_ROPE_LLAMA3, PF_ROPE_YARN };

struct pf_rope_spec {
    enum pf_rope_kind kind;
    bool pairs_adjacent; /* (2i,2i+1) turn together; otherwise (i, i + dim/2) */
    int64_t dim;         /* elements of a head that turn */
    double theta;
    double factor;                            /* linear, llama3, yarn */
    double low_freq_factor, high_freq_factor; /* llama3 */
    int64_t original_max_positions;           /* llama3, yarn */
    double beta_fast, beta_slow;              /* yarn */
    double attention_factor;       /* yarn: on cos and sin; 0: derived from factor and mscale */
    double mscale, mscale_all_dim; /* yarn; 0: absent */
    bool truncate;                 /* yarn: ramp bounds are floored and ceiled */
};

/* Scores of a router before the choice. */
enum pf_router_score { PF_ROUTER_SOFTMAX, PF_ROUTER_SIGMOID };

struct pf_moe_spec {
    int64_t n_experts; /* 0: no layer has experts */
    int64_t top_k, expert_ffn, n_shared_experts;
    int64_t n_groups, top_groups;
    enum pf_router_score score;
    bool normalise_top_k, correction_bias;
    double scaling_factor, normalise_floor, aux_loss_coef;
    uint8_t layer_is_moe[PF_SPEC_MAX_LAYERS];
};

struct pf_mla_spec {
    int64_t q_rank, kv_rank; /* kv_rank 0: not an MLA model */
    int64_t nope_dim, rope_dim, v_dim;
};

struct pf_model_spec {
    enum pf_family family;
    int64_t vocab_size, hidden, n_layers, n_heads, n_kv_heads, head_dim, ffn, max_positions;
    enum pf_norm_kind norm;
    double norm_eps;
    enum pf_spec_act act;
    bool gated;         /* act(gate) * up instead of act(fc) */
    bool fused_qkv;     /* one weight holds q, k, v column blocks (gpt2's c_attn) */
    bool linear_in_out; /* linear weights are stored [in, out] (gpt2's Conv1D) */
    bool q_bias, k_bias, v_bias, o_bias, mlp_bias, head_bias;
    bool qk_norm; /* RMS over head_dim, before the rotation */
    bool learned_positions;
    bool tied_head; /* the head is the embedding */
    struct pf_rope_spec rope;
    double attention_scale; /* on q.k; 1/sqrt(head_dim) unless the family says otherwise */
    double embed_dropout, attention_dropout, residual_dropout;
    double init_std;
    int64_t padding_id; /* embedding row whose input gradient is dropped; -1: none */
    struct pf_moe_spec moe;
    struct pf_mla_spec mla;
};

/* The `model_type` of a family: "gpt2", "qwen3_moe". Static. */
const char *pf_family_name(enum pf_family family);

/*
 * Is this a model at all? Sizes are in range and fit each other, probabilities are probabilities,
 * the rotated part fits the head. Returns 0, or PF_EINVAL with one line that gives the numbers and
 * calls them by their keys in the family's config.json. It does not ask whether pf can train it.
 */
int pf_spec_check(const struct pf_model_spec *spec);

#endif
