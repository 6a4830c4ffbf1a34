/* SPDX-License-Identifier: Apache-2.0 */
/*
 * small_state.h - a state for tests of what happens to saved files: a matrix in bf16 cut by rows among
 * the ranks, its master and moments in ranges, a vector that every rank has whole, a number. Every
 * value follows from a seed and its place, so that no two states have a file in common.
 */
#ifndef SMALL_STATE_H
#define SMALL_STATE_H

#include <pf/ckpt.h>

#include <stdint.h>
#include <string.h>

#define SMALL_ROWS 24
#define SMALL_COLS 10
#define SMALL_COUNT (SMALL_ROWS * SMALL_COLS)
#define SMALL_N_LIVE 7

struct small_state {
    uint16_t weight[SMALL_COUNT];
    float master[SMALL_COUNT], moment1[SMALL_COUNT], moment2[SMALL_COUNT];
    float norm[SMALL_COLS], norm_moment[SMALL_COLS];
    int64_t count;
    struct pf_ckpt_live live[SMALL_N_LIVE];
};

static inline struct pf_ckpt_live small_matrix(enum pf_role role, enum pf_dtype dtype, void *data)
{
    return (struct pf_ckpt_live){.name = "m.w",
                                 .role = role,
                                 .dtype = dtype,
                                 .n_dims = 2,
                                 .shape = {SMALL_ROWS, SMALL_COLS},
                                 .box = {.n_dims = 2, .hi = {SMALL_ROWS, SMALL_COLS}},
                                 .data = data};
}

/* Of a tensor of floats: this rank's range. */
static inline struct pf_ckpt_live small_range(enum pf_role role, float *data, int r, int size)
{
    struct pf_ckpt_live live = small_matrix(role, PF_DTYPE_F32, data);

    if (size > 1) {
        live.range_lo = SMALL_COUNT * r / size;
        live.range_hi = SMALL_COUNT * (r + 1) / size;
        live.data = data + live.range_lo;
    }
    return live;
}

static inline struct pf_ckpt_live small_vector(enum pf_role role, float *data)
{
    return (struct pf_ckpt_live){.name = "m.n",
                                 .role = role,
                                 .dtype = PF_DTYPE_F32,
                                 .n_dims = 1,
                                 .shape = {SMALL_COLS},
                                 .box = {.n_dims = 1, .hi = {SMALL_COLS}},
                                 .data = data};
}

/* What a rank of `size` holds. */
static inline void small_state_make(struct small_state *s, int seed, int r, int size)
{
    for (int i = 0; i < SMALL_COUNT; i++) {
        s->master[i] = (float)seed + (float)i / 7.0f;
        s->moment1[i] = (float)(1000 + seed + i);
        s->moment2[i] = (float)(2000 + seed + i);
    }
    for (int i = 0; i < SMALL_COLS; i++) {
        s->norm[i] = (float)(3000 + seed + i);
        s->norm_moment[i] = (float)(4000 + seed + i);
    }
    s->count = seed;
    (void)pf_dtype_convert(PF_DTYPE_F32, s->master, PF_DTYPE_BF16, s->weight, SMALL_COUNT);
    s->live[0] = small_matrix(PF_ROLE_WEIGHT, PF_DTYPE_BF16, NULL);
    s->live[0].box.lo[0] = SMALL_ROWS * r / size;
    s->live[0].box.hi[0] = SMALL_ROWS * (r + 1) / size;
    s->live[0].data = s->weight + s->live[0].box.lo[0] * SMALL_COLS;
    s->live[1] = small_range(PF_ROLE_MASTER, s->master, r, size);
    s->live[2] = small_range(PF_ROLE_MOMENT1, s->moment1, r, size);
    s->live[3] = small_range(PF_ROLE_MOMENT2, s->moment2, r, size);
    s->live[4] = small_vector(PF_ROLE_WEIGHT, s->norm);
    s->live[5] = small_vector(PF_ROLE_MOMENT1, s->norm_moment);
    s->live[6] = (struct pf_ckpt_live){
        .name = "n", .role = PF_ROLE_SCALAR, .dtype = PF_DTYPE_I64, .data = &s->count};
}

/* Save it, in whole, as these options say; collective over comm. */
static inline int small_state_save_as(struct pf_comm *comm, const struct pf_ckpt_save *save,
                                      int seed)
{
    struct small_state s;

    small_state_make(&s, seed, comm ? pf_comm_rank(comm) : 0, comm ? pf_comm_size(comm) : 1);
    return pf_ckpt_save(comm, save, s.live, SMALL_N_LIVE, NULL);
}

/* The same, as this step of dir. */
static inline int small_state_save(struct pf_comm *comm, const char *dir, int64_t step, int seed,
                                   enum pf_ckpt_codec codec)
{
    const struct pf_ckpt_save save = {
        .output_dir = dir, .step = step, .state_json = "{\"position\":3}", .codec = codec};

    return small_state_save_as(comm, &save, seed);
}

#endif
