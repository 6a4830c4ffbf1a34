/* SPDX-License-Identifier: Apache-2.0 */
/* pf-bench compare: one record against an older one. */
#include "command.h"

#include <pf/error.h>

#include <stdio.h>

int command_compare(struct options *o, int n, char **operands)
{
    struct pf_bench_record record;

    (void)n;
    o->baseline = operands[0];
    int err = pf_bench_read(operands[1], &record);
    if (!err) {
        (void)snprintf(record.command, sizeof record.command, "compare");
        err = finish_record(o, &record, 0);
    }
    pf_bench_record_release(&record);
    return err;
}
