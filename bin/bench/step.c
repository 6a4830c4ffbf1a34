/* SPDX-License-Identifier: Apache-2.0 */
/* pf-bench step: whole training steps, alone or under mpirun. */
#include "command.h"

#include <pf/comm.h>
#include <pf/error.h>
#include <pf/log.h>

static int run(struct options *o, int n, char **operands, struct pf_comm *world,
               struct pf_bench_record *record)
{
    const struct pf_bench_step_options options = {.config = operands[0],
                                                  .overrides = (const char *const *)operands + 1,
                                                  .n_overrides = n - 1,
                                                  .n_steps = o->steps > 0 ? (int)o->steps : 0,
                                                  .effort = effort_of(o),
                                                  .list = o->list,
                                                  .progress = show_progress,
                                                  .context = o};

    PF_TRY(pf_bench_record_init(record, "step", 0));
    return pf_bench_step(&options, world, record);
}

/* The first rank compares and prints, and all end as it does. */
static int finish(struct options *o, struct pf_comm *world, struct pf_bench_record *record, int err)
{
    if (pf_comm_rank(world) == 0) {
        err = finish_record(o, record, err);
    }
    return pf_comm_all_agree(world, err, NULL);
}

int command_step(struct options *o, int n, char **operands)
{
    struct pf_bench_record record = {.n_cases = 0};
    struct pf_comm *world;

    PF_TRY(pf_comm_init(NULL, NULL, &(struct pf_comm_options){.timeout_s = 300}, &world));
    pf_log_set_rank(pf_comm_rank(world), pf_comm_size(world));
    o->shared.no_progress |= pf_comm_rank(world) > 0;
    int err = pf_comm_all_agree(world, run(o, n, operands, world, &record), NULL);
    err = finish(o, world, &record, err);
    pf_bench_record_release(&record);
    if (err && pf_comm_size(world) > 1) {
        if (pf_comm_speaks(world)) {
            pf_log_error(NULL, "%s", pf_error_message());
        }
        pf_comm_fail(world, err);
    }
    const int ended = pf_comm_finalize(world);
    return err ? err : ended;
}
