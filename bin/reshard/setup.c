/* SPDX-License-Identifier: Apache-2.0 */
/* From the options and the source's own config to a placement. */
#include "command.h"

#include <pf/error.h>
#include <pf/family.h>
#include <pf/json.h>
#include <pf/mem.h>
#include <pf/log.h>
#include <pf/parallelize.h>

#include <string.h>

static int parse_dtype(const char *name, enum pf_dtype *dtype_out)
{
    enum pf_dtype dtype;

    if (pf_dtype_from_torch_name(name, &dtype) != 0 ||
        (dtype != PF_DTYPE_F32 && dtype != PF_DTYPE_BF16 && dtype != PF_DTYPE_F16)) {
        return pf_fail(PF_EUSAGE, "--dtype is float32, bfloat16 or float16, not '%s'", name);
    }
    *dtype_out = dtype;
    return 0;
}

int setup_check(const struct options *o)
{
    enum pf_dtype dtype;

    if (o->compress && strcmp(o->compress, "zstd") != 0 && strcmp(o->compress, "none") != 0) {
        return pf_fail(PF_EUSAGE, "--compress is zstd or none, not '%s'", o->compress);
    }
    if (!o->to == !o->config) {
        return pf_fail(PF_EUSAGE, "give the layout by one of --to and --config" SEE_HELP);
    }
    if (o->world < 0 || o->world > 1 << 20) {
        return pf_fail(PF_EUSAGE, "--world is from 1 to %d" SEE_HELP, 1 << 20);
    }
    if (o->config && o->world == 0) {
        return pf_fail(PF_EUSAGE, "--config needs --world, the number of ranks" SEE_HELP);
    }
    if (o->threads != THREADS_UNSET && (o->threads < 1 || o->threads > 256)) {
        return pf_fail(PF_EUSAGE, "--threads is from 1 to 256" SEE_HELP);
    }
    return o->dtype ? parse_dtype(o->dtype, &dtype) : 0;
}

static int read_layout(const struct options *o, struct setup *s)
{
    if (o->to) {
        return pf_parallel_parse(o->to, &s->par);
    }
    PF_TRY(pf_json_parse_file(o->config, &s->config));
    return pf_parallel_read(s->config, &s->par);
}

/* The cuts of the config's parallelize_plan, with a warning for what of it meets nothing. */
static int apply_cuts(struct setup *s)
{
    struct pf_str_list notes = {0};
    const int err = pf_parallelize_config(s->config, s->table, &notes);

    for (size_t i = 0; i < notes.n && !err; i++) {
        pf_log_warn0("reshard", "%s", notes.items[i]);
    }
    pf_str_list_release(&notes);
    return err;
}

static int read_spec(const struct pf_ckpt *src, struct pf_model_spec *spec_out)
{
    const struct pf_json_options options = {.name = src->dir, .error_code = PF_EFORMAT};
    const char *const text = src->config_json;
    struct pf_json *config = NULL;
    int err;

    if (!text || strcmp(text, "{}") == 0) {
        return pf_fail(PF_EINCOMPLETE, "'%s' does not say which model it holds", src->dir);
    }
    PF_TRY(pf_json_parse_text_with(text, strlen(text), &options, &config));
    err = pf_family_read_config(config, spec_out);
    pf_json_free(config);
    return err;
}

/* A Hugging Face directory may hold a tied head once, twice, or under the other name. */
static int resolve_tie(struct setup *s, const struct pf_model_spec *spec)
{
    const struct pf_tensor_row *const embed = pf_table_find(s->table, -1, PF_SLOT_EMBED);
    const struct pf_tensor_row *const head = pf_table_find(s->table, -1, PF_SLOT_HEAD_W);
    const char *embed_from, *head_from, *warning = NULL;
    bool tied = false;

    if (!spec->tied_head || !embed || !head || strcmp(s->src->format, "pf") == 0) {
        return 0;
    }
    PF_TRY(pf_hf_resolve_tie(s->src, embed->name, head->name, true, &embed_from, &head_from, &tied,
                             &warning));
    if (!tied) {
        return pf_fail(PF_EFORMAT,
                       "the config of '%s' ties '%s' to '%s', but the two are there and differ",
                       s->src->dir, head->name, embed->name);
    }
    s->embed_from = strcmp(embed_from, embed->name) != 0 ? embed_from : NULL;
    s->drop = s->embed_from ? NULL : head->name;
    return 0;
}

int setup_make(const struct options *o, struct setup *s)
{
    struct pf_model_spec spec;
    struct pf_mesh mesh;

    s->dtype = PF_DTYPE_COUNT;
    if (o->dtype) {
        PF_TRY(parse_dtype(o->dtype, &s->dtype));
    }
    PF_TRY(read_layout(o, s));
    PF_TRY(pf_ckpt_open(o->src, &s->src));
    PF_TRY(read_spec(s->src, &spec));
    PF_TRY(pf_parallel_resolve(&s->par, &spec, (int)o->world, &mesh));
    PF_TRY(pf_table_new(&spec, &mesh, &s->table));
    PF_TRY(resolve_tie(s, &spec));
    if (o->dtype) {
        PF_TRY(pf_family_rewrite_config(s->src->config_json, s->dtype, spec.tied_head,
                                        &s->config_json));
    }
    PF_TRY(apply_cuts(s));
    return pf_placement_new(s->table, &s->par, &s->place);
}

void setup_release(struct setup *s)
{
    pf_placement_free(s->place);
    pf_table_free(s->table);
    pf_json_free(s->config);
    pf_ckpt_free(s->src);
    pf_free(s->config_json);
}
