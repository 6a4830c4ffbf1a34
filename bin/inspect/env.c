/* SPDX-License-Identifier: Apache-2.0 */
/* What this machine and this build offer, what of it is slow or missing, and how to mend that. */
#include "command.h"

#include <pf/environment.h>
#include <pf/error.h>

#include <stdio.h>

static void print_env(const struct pf_env *env)
{
    for (int i = 0; i < env->n; i++) {
        const struct pf_env_row *const row = &env->rows[i];
        struct pf_str line;
        pf_str_init(&line);
        append_printable(&line, row->found);
        printf("%-8s %-18s %s\n", pf_env_verdict_name(row->verdict), row->name, line.text);
        if (row->mend) {
            printf("%27s-> %s\n", "", row->mend);
        }
        pf_str_release(&line);
    }
    printf("%d ok, %d slow, %d missing\n", env->n_of[PF_ENV_OK], env->n_of[PF_ENV_SLOW],
           env->n_of[PF_ENV_MISSING]);
}

static int env_json(struct options *o, const struct pf_env *env)
{
    struct document d;

    document_begin(&d, o, 0);
    for (int v = PF_ENV_OK; v <= PF_ENV_MISSING; v++) {
        char key[24];
        (void)snprintf(key, sizeof key, "rows_%s", pf_env_verdict_name((enum pf_env_verdict)v));
        pf_json_out_member_i64(&d.out, key, env->n_of[v]);
    }
    pf_json_out_key(&d.out, "rows");
    pf_json_out_array_begin(&d.out);
    for (int i = 0; i < env->n; i++) {
        pf_json_out_object_begin(&d.out);
        pf_json_out_member_string(&d.out, "name", env->rows[i].name);
        pf_json_out_member_string(&d.out, "verdict", pf_env_verdict_name(env->rows[i].verdict));
        pf_json_out_member_string(&d.out, "found", env->rows[i].found);
        pf_json_out_member_string(&d.out, "mend", env->rows[i].mend);
        pf_json_out_object_end(&d.out);
    }
    pf_json_out_array_end(&d.out);
    return document_end(&d, o);
}

int command_env(struct options *o, char **operands)
{
    const struct pf_env_options options = {.disk_dir = operands[0]};
    struct pf_env env;
    int err = 0;

    PF_TRY(pf_env_look(&options, &env));
    if (o->shared.json) {
        err = env_json(o, &env);
    } else {
        print_env(&env);
    }
    pf_env_release(&env);
    return err;
}
