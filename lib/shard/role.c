/* SPDX-License-Identifier: Apache-2.0 */
#include <pf/role.h>

#include <pf/error.h>

#include <string.h>

static const char *const role_names[PF_ROLE_COUNT] = {
    [PF_ROLE_WEIGHT] = "weight",   [PF_ROLE_MASTER] = "master", [PF_ROLE_MOMENT1] = "moment1",
    [PF_ROLE_MOMENT2] = "moment2", [PF_ROLE_EMA] = "ema",       [PF_ROLE_BUFFER] = "buffer",
    [PF_ROLE_SCALAR] = "scalar",
};

const char *pf_role_name(enum pf_role role)
{
    return role_names[role];
}

int pf_role_parse(const char *name, enum pf_role *role_out)
{
    for (int i = 0; i < PF_ROLE_COUNT; i++) {
        if (strcmp(name, role_names[i]) == 0) {
            *role_out = (enum pf_role)i;
            return 0;
        }
    }
    return PF_EINVAL;
}
