/* SPDX-License-Identifier: Apache-2.0 */
/* pf-bench ckpt: checkpoints written, read and re-laid. */
#include "command.h"

#include <pf/error.h>

int command_ckpt(struct options *o, int n, char **operands)
{
    const struct pf_bench_ckpt_options options = {.names = (const char *const *)operands,
                                                  .n_names = n,
                                                  .dir = o->dir,
                                                  .bytes = o->bytes,
                                                  .against = o->against,
                                                  .n_threads = o->threads > 0 ? (int)o->threads : 0,
                                                  .effort = effort_of(o),
                                                  .list = o->list,
                                                  .progress = show_progress,
                                                  .context = o};
    struct pf_bench_record record;

    int err = pf_bench_record_init(&record, "ckpt", 0);
    err = err ? err : pf_bench_ckpt(&options, &record);
    err = finish_record(o, &record, err);
    pf_bench_record_release(&record);
    return err;
}
