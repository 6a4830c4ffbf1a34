/* SPDX-License-Identifier: Apache-2.0 */
/* pf-bench ops: single ops. */
#include "command.h"

#include <pf/dtype.h>
#include <pf/error.h>

#include <string.h>

enum { MAX_DTYPES = 8 };

/* "float32", "bf16", "BF16": names of torch, of safetensors, and their short forms. */
static int parse_dtype(const char *name, enum pf_dtype *dtype_out)
{
    static const struct {
        const char *name;
        enum pf_dtype dtype;
    } names[] = {{"fp32", PF_DTYPE_F32},  {"f32", PF_DTYPE_F32},   {"F32", PF_DTYPE_F32},
                 {"bf16", PF_DTYPE_BF16}, {"BF16", PF_DTYPE_BF16}, {"fp16", PF_DTYPE_F16},
                 {"f16", PF_DTYPE_F16},   {"F16", PF_DTYPE_F16}};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i].name, name) == 0) {
            *dtype_out = names[i].dtype;
            return 0;
        }
    }
    if (pf_dtype_from_torch_name(name, dtype_out) == 0 &&
        (*dtype_out == PF_DTYPE_F32 || *dtype_out == PF_DTYPE_BF16 || *dtype_out == PF_DTYPE_F16)) {
        return 0;
    }
    pf_error_clear();
    return pf_fail(PF_EUSAGE, "--dtype is float32, bfloat16 or float16, not '%s'" SEE_HELP, name);
}

int command_ops(struct options *o, int n, char **operands)
{
    enum pf_dtype dtypes[MAX_DTYPES];
    struct pf_bench_ops_options options = {.names = (const char *const *)operands,
                                           .n_names = n,
                                           .device = o->device,
                                           .dtypes = dtypes,
                                           .shapes = o->shape,
                                           .model = o->model,
                                           .against = o->against,
                                           .kernel = o->kernel,
                                           .n_threads = o->threads > 0 ? (int)o->threads : 0,
                                           .effort = effort_of(o),
                                           .list = o->list,
                                           .progress = show_progress,
                                           .context = o};
    struct pf_bench_record record;

    for (size_t i = 0; i < o->dtypes.n && options.n_dtypes < MAX_DTYPES; i++) {
        PF_TRY(parse_dtype(o->dtypes.items[i], &dtypes[options.n_dtypes]));
        options.n_dtypes++;
    }
    int err = pf_bench_record_init(&record, "ops", options.n_threads);
    err = err ? err : pf_bench_ops(&options, &record);
    err = finish_record(o, &record, err);
    pf_bench_record_release(&record);
    return err;
}
