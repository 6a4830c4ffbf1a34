/* SPDX-License-Identifier: Apache-2.0 */
/* The model that a checkpoint's config.json describes, or the config of a run names. */
#include "command.h"

#include <pf/config.h>
#include <pf/error.h>
#include <pf/mem.h>

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

static int read_spec(const char *text, const char *name, struct pf_model_spec *spec_out)
{
    struct pf_json *doc = NULL;
    int err;

    PF_TRY(pf_json_parse_text(text, strlen(text), name, &doc));
    err = pf_family_read_config(doc, spec_out);
    pf_json_free(doc);
    return err;
}

static int read_named_model(const char *path, struct pf_model_spec *spec_out)
{
    char *text = NULL, *name = NULL;
    int err = pf_model_config_text(path, &text, &name);

    if (!err) {
        err = read_spec(text, name, spec_out);
    }
    pf_free(text);
    pf_free(name);
    return err;
}

int config_model(const struct pf_json *config, struct pf_model_spec *spec_out)
{
    const struct pf_json *const model = pf_json_get(config, "model");
    const char *path = NULL;

    if (pf_json_get(config, "model_type")) {
        return pf_family_read_config(config, spec_out);
    }
    if (model && pf_json_type(model) == PF_JSON_OBJECT) {
        return pf_family_read_config(model, spec_out);
    }
    PF_TRY(pf_json_string(config, "model_name_or_path", NULL, &path));
    if (!path) {
        return pf_fail(PF_EUSAGE, "'%s' does not say which model: give model_name_or_path or model",
                       pf_json_name(config));
    }
    return read_named_model(path, spec_out);
}
