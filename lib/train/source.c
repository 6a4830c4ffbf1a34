/* SPDX-License-Identifier: Apache-2.0 */
/* Where a run's model comes from: a Hugging Face directory, a checkpoint of pf, a bare config.json, an
 * inline config, or the checkpoint that is resumed. */
#include "train_internal.h"

#include <pf/error.h>
#include <pf/family.h>
#include <pf/json.h>
#include <pf/log.h>
#include <pf/mem.h>

#include <string.h>

static int read_spec(const char *text, const char *name, struct pf_model_spec *spec_out)
{
    struct pf_json *doc = NULL;
    int err;

    PF_TRY(pf_json_parse_text(text, strlen(text), name, &doc));
    err = pf_family_read_config(doc, spec_out);
    pf_json_free(doc);
    return err;
}

/* Is this a checkpoint of pf? It keeps the model's configuration in its manifest. */
static int is_checkpoint(const char *dir, bool *is_out)
{
    char *const config = pf_path_join(dir, "config.json"), *const manifest =
                                                               pf_path_join(dir, "manifest.json");
    const int err = config && manifest ? 0 : PF_ENOMEM;

    *is_out = !err && !pf_path_exists(config) && pf_path_exists(manifest);
    pf_free(config);
    pf_free(manifest);
    return err;
}

static int read_checkpoint_config(const char *dir, char **text_out)
{
    struct pf_ckpt *ckpt = NULL;

    PF_TRY(pf_ckpt_open(dir, &ckpt));
    *text_out = ckpt->config_json ? pf_strdup(ckpt->config_json) : NULL;
    pf_ckpt_free(ckpt);
    return *text_out ? 0 : PF_ENOMEM;
}

int pf_model_config_text(const char *path, char **text_out, char **name_out)
{
    bool checkpoint = false;
    size_t len;

    *text_out = *name_out = NULL;

    if (!pf_path_is_dir(path)) {
        *name_out = pf_strdup(path);
    } else {
        PF_TRY(is_checkpoint(path, &checkpoint));
        *name_out = checkpoint ? pf_strdup(path) : pf_path_join(path, "config.json");
    }
    PF_TRY(*name_out ? 0 : PF_ENOMEM);
    return checkpoint ? read_checkpoint_config(path, text_out)
                      : pf_file_read_all(*name_out, (size_t)1 << 26, text_out, &len);
}

/* The text of the model's configuration, and where it stands. */
static int read_config_text(struct pf_trainer *t, char **text_out, char **name_out)
{
    const struct pf_config *const c = t->config;

    if (t->resume) {
        if (!t->resume->config_json) {
            return pf_fail(PF_EFORMAT, "'%s' does not say which model it holds", t->resume_path);
        }
        *text_out = pf_strdup(t->resume->config_json);
        *name_out = pf_strdup(t->resume_path);
    } else if (c->model_json) {
        *text_out = pf_strdup(c->model_json);
        *name_out = pf_strdup("model");
    } else {
        return pf_model_config_text(c->model_name_or_path, text_out, name_out);
    }
    return *text_out && *name_out ? 0 : PF_ENOMEM;
}

/* The names under which a family's file keeps embedding and head. */
static void embed_names(enum pf_family family, const char **embed_out, const char **head_out)
{
    *embed_out = family == PF_FAMILY_GPT2 ? "transformer.wte.weight" : "model.embed_tokens.weight";
    *head_out = "lm_head.weight";
}

static int open_weights(struct pf_trainer *t)
{
    const struct pf_config *const c = t->config;
    const char *embed, *head, *warning = NULL;
    bool tied;

    if (c->model_json || !pf_path_is_dir(c->model_name_or_path)) {
        return pf_fail(
            PF_EUSAGE,
            "there are no weights beside %s: give a model directory, or set from_scratch",
            c->model_json ? "an inline model" : c->model_name_or_path);
    }
    PF_TRY(pf_ckpt_open(c->model_name_or_path, &t->weights));
    embed_names(t->spec.family, &embed, &head);
    PF_TRY(pf_hf_resolve_tie(t->weights, embed, head, t->spec.tied_head, &t->embed_from,
                             &t->head_from, &tied, &warning));
    if (warning) {
        pf_log_warn0("train", "'%s': %s", c->model_name_or_path, warning);
    }
    t->spec.tied_head = tied;
    return 0;
}

int train_read_model(struct pf_trainer *t)
{
    const struct pf_config *const c = t->config;
    char *text = NULL, *name = NULL;
    int err;

    PF_TRY_GOTO(read_config_text(t, &text, &name), out);
    PF_TRY_GOTO(read_spec(text, name, &t->spec), out);
    if (!t->resume && !c->from_scratch) {
        PF_TRY_GOTO(open_weights(t), out);
    }
    if (!c->model_json && pf_path_is_dir(c->model_name_or_path)) {
        t->model_dir = pf_strdup(c->model_name_or_path);
    }
    if (c->max_seq_length > t->spec.max_positions && !t->spec.learned_positions) {
        pf_log_warn0("train", "max_seq_length %lld is beyond the model's %lld positions",
                     (long long)c->max_seq_length, (long long)t->spec.max_positions);
    }
    PF_TRY_GOTO(pf_family_rewrite_config(text, c->dtype, t->spec.tied_head, &t->config_json), out);
out:
    pf_free(text);
    pf_free(name);
    return err;
}
