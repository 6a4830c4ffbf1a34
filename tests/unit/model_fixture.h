/* SPDX-License-Identifier: Apache-2.0 */
/* The model configurations under tests/fixtures/hf, as specs. Tests run in the repository's root.
 */
#ifndef MODEL_FIXTURE_H
#define MODEL_FIXTURE_H

#include <pf/error.h>
#include <pf/family.h>
#include <pf/json.h>

#include "tap.h"

#include <string.h>

#define HF_FIXTURES "tests/fixtures/hf/"

/* Read tests/fixtures/hf/FOLDER/FILE. A spec of zeros if that fails, which also fails a claim. */
static inline struct pf_model_spec fixture_spec(const char *folder, const char *file)
{
    struct pf_json *config = NULL;
    struct pf_model_spec spec;
    char path[256];

    memset(&spec, 0, sizeof spec);
    snprintf(path, sizeof path, HF_FIXTURES "%s/%s", folder, file);
    int err = pf_json_parse_file(path, &config);
    if (!err) {
        err = pf_family_read_config(config, &spec);
    }
    if (err) {
        ok(false, "%s is read: %s", path, pf_error_message());
    }
    pf_json_free(config);
    return spec;
}

#endif
