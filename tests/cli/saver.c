/* SPDX-License-Identifier: Apache-2.0 */
/*
 * saver.c - for writer_faults.sh: save a small fixed state, cut into boxes and ranges, with every role
 * and several dtypes, as step 7 of a run.
 *
 *     saver OUTPUT_DIR
 */
#include <pf/ckpt.h>
#include <pf/error.h>

#include <stdio.h>

#define ROWS 8
#define COLS 6
#define COUNT (ROWS * COLS)

static float weight[COUNT], moment1[COUNT], moment2[COUNT], master[COUNT];
static uint16_t half[COUNT];
static int64_t count = 1234567;

/* Rows lo to hi of a matrix; data begins at its first element. */
static struct pf_ckpt_live rows(const char *name, enum pf_role role, enum pf_dtype dtype,
                                int64_t lo, int64_t hi, void *data)
{
    const size_t skip = (size_t)(lo * COLS) * pf_dtype_bytes(dtype);

    return (struct pf_ckpt_live){.name = name,
                                 .role = role,
                                 .dtype = dtype,
                                 .n_dims = 2,
                                 .shape = {ROWS, COLS},
                                 .box = {.n_dims = 2, .lo = {lo, 0}, .hi = {hi, COLS}},
                                 .data = (char *)data + skip};
}

int main(int argc, char **argv)
{
    struct pf_ckpt_live live[] = {
        rows("model.w", PF_ROLE_WEIGHT, PF_DTYPE_F32, 0, 3, weight),
        rows("model.w", PF_ROLE_WEIGHT, PF_DTYPE_F32, 3, ROWS, weight),
        rows("model.w", PF_ROLE_MOMENT1, PF_DTYPE_F32, 0, ROWS, moment1),
        rows("model.w", PF_ROLE_MOMENT2, PF_DTYPE_F32, 0, ROWS, moment2),
        rows("model.h", PF_ROLE_WEIGHT, PF_DTYPE_BF16, 0, ROWS, half),
        rows("model.h", PF_ROLE_MASTER, PF_DTYPE_F32, 0, ROWS, master),
        rows("model.h", PF_ROLE_MASTER, PF_DTYPE_F32, 0, ROWS, master + 17),
        {.name = "steps", .role = PF_ROLE_SCALAR, .dtype = PF_DTYPE_I64, .data = &count},
    };
    const struct pf_ckpt_save save = {.output_dir = argc == 2 ? argv[1] : "",
                                      .step = 7,
                                      .config_json = "{\"model_type\":\"llama\"}",
                                      .state_json = "{\"position\":3}"};

    live[5].range_hi = live[6].range_lo = 17;
    live[6].range_hi = COUNT;
    for (int i = 0; i < COUNT; i++) {
        weight[i] = (float)i;
        moment1[i] = (float)(100 + i);
        moment2[i] = (float)(200 + i);
        master[i] = (float)(300 + i);
        half[i] = (uint16_t)(0x3f80 + i);
    }
    if (argc != 2) {
        fprintf(stderr, "usage: saver OUTPUT_DIR\n");
        return 2;
    }
    const int err = pf_ckpt_save(NULL, &save, live, sizeof live / sizeof live[0], NULL);
    if (err != 0) {
        fprintf(stderr, "saver: %s\n", pf_error_message());
    }
    return pf_error_exit_status(err);
}
