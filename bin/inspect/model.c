/* SPDX-License-Identifier: Apache-2.0 */
/* The model that a checkpoint's config.json describes. */
#include "command.h"

#include <pf/error.h>

#include <stdio.h>
#include <string.h>

int model_read(const struct pf_ckpt *ckpt, struct model *m)
{
    const struct pf_json_options options = {.name = "config.json", .error_code = PF_EFORMAT};
    const char *json = ckpt->config_json;

    *m = (struct model){.architecture = NULL};
    if (!json || strcmp(json, "{}") == 0) {
        return 0;
    }
    PF_TRY(pf_json_parse_text_with(json, strlen(json), &options, &m->config));
    const struct pf_json *first = pf_json_find(m->config, "architectures[0]");
    if (pf_json_string(m->config, "model_type", NULL, &m->type) != 0 ||
        (first && pf_json_as_string(first, &m->architecture) != 0)) {
        pf_error_clear();
    }
    m->understood = pf_family_read_config(m->config, &m->spec) == 0;
    if (m->understood) {
        const char *class = pf_family_architecture(m->spec.family);
        m->architecture = m->architecture ? m->architecture : class;
        m->causal_lm = strcmp(m->architecture, class) == 0;
    } else {
        snprintf(m->why_not, sizeof m->why_not, "%s", pf_error_message());
        pf_error_clear();
    }
    return 0;
}
