/* SPDX-License-Identifier: Apache-2.0 */
/* load_internal.h - the two ways to load: by ranks that exchange what they read, and alone. */
#ifndef LOAD_INTERNAL_H
#define LOAD_INTERNAL_H

#include "ckpt_internal.h"

#include <pf/digest.h>

/* Load what was proved to be there, into live pieces that are all this process's. The digest of each
 * file, by file, to digests_out unless it is NULL. */
int ckpt_load_alone(const struct pf_ckpt *ckpt, const struct pf_ckpt_live *live, int64_t n_live,
                    bool verify, char (*digests_out)[PF_DIGEST_HEX_BYTES]);

#endif
