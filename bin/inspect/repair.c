/* SPDX-License-Identifier: Apache-2.0 */
/* One file of a checkpoint, restored from its parity. */
#include "command.h"

#include <pf/error.h>
#include <pf/mem.h>

#include <stdio.h>

int command_repair(struct options *o, char **operands)
{
    struct document d;
    char *restored = NULL;

    PF_TRY(pf_ckpt_repair(operands[0], &restored));
    if (o->shared.json) {
        document_begin(&d, o, 0);
        pf_json_out_member_string(&d.out, "path", operands[0]);
        pf_json_out_member_string(&d.out, "restored", restored);
        const int err = document_end(&d, o);
        pf_free(restored);
        return err;
    }
    if (restored) {
        printf("restored %s/%s\n", operands[0], restored);
    } else {
        printf("nothing to restore in %s\n", operands[0]);
    }
    pf_free(restored);
    return 0;
}
