/* SPDX-License-Identifier: Apache-2.0 */
/*
 * role.h - what a logical tensor of a checkpoint is to its parameter: the weight itself, its fp32
 * master, the optimizer's moments, and so on. (name, role) identifies a tensor; which roles lie cut
 * in slices on which rank is read off a placement (pf/placement.h).
 */
#ifndef PF_ROLE_H
#define PF_ROLE_H

enum pf_role {
    PF_ROLE_WEIGHT,
    PF_ROLE_MASTER,
    PF_ROLE_MOMENT1,
    PF_ROLE_MOMENT2,
    PF_ROLE_EMA,
    PF_ROLE_BUFFER,
    PF_ROLE_SCALAR,
    PF_ROLE_COUNT
};

/* "weight", "master", "moment1", ... as written in manifests. */
const char *pf_role_name(enum pf_role role);

/* Returns 0, or PF_EINVAL (no record) where there is no such role. */
int pf_role_parse(const char *name, enum pf_role *role_out);

#endif
