/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/tolerance.h>

const struct pf_tolerance pf_tolerances[PF_OP_COUNT] = {
    [PF_OP_GEMM] = {2e-6, 1e-5, 4e-3, 8e-3},
    [PF_OP_EMBED_FWD] = {1e-7, 2e-7, 4e-3, 8e-3},
    [PF_OP_EMBED_BWD] = {1e-7, 2e-7, 1e-7, 2e-7},
    [PF_OP_RMSNORM_FWD] = {3e-7, 1e-6, 4e-3, 8e-3},
    [PF_OP_RMSNORM_BWD] = {1e-6, 5e-6, 4e-3, 8e-3},
    [PF_OP_LAYERNORM_FWD] = {5e-7, 2e-6, 4e-3, 8e-3},
    [PF_OP_LAYERNORM_BWD] = {1e-6, 5e-6, 4e-3, 8e-3},
    [PF_OP_ROPE] = {1e-7, 3e-7, 4e-3, 8e-3},
    [PF_OP_ATTENTION_FWD] = {1e-6, 5e-6, 4e-3, 8e-3},
    [PF_OP_ATTENTION_BWD] = {3e-6, 1e-5, 4e-3, 1.2e-2},
    [PF_OP_GLU_FWD] = {3e-7, 1e-6, 4e-3, 8e-3},
    [PF_OP_GLU_BWD] = {5e-7, 2e-6, 4e-3, 8e-3},
    [PF_OP_ACT_FWD] = {3e-7, 1e-6, 4e-3, 8e-3},
    [PF_OP_ACT_BWD] = {5e-7, 2e-6, 4e-3, 8e-3},
    [PF_OP_BIAS_GRAD] = {1e-6, 3e-6, 1e-6, 3e-6},
    [PF_OP_ADD] = {1e-7, 2e-7, 4e-3, 8e-3},
    [PF_OP_SCALE] = {1e-7, 2e-7, 4e-3, 8e-3},
    [PF_OP_DROPOUT] = {1e-7, 2e-7, 4e-3, 8e-3},
    [PF_OP_CROSS_ENTROPY] = {5e-7, 2e-6, 4e-3, 8e-3},
    [PF_OP_VOCAB_CE_FWD] = {5e-7, 2e-6, 4e-3, 8e-3},
    [PF_OP_VOCAB_CE_BWD] = {5e-7, 2e-6, 4e-3, 8e-3},
    [PF_OP_ADAMW] = {3e-7, 1e-6, 4e-3, 8e-3},
};
