/* SPDX-License-Identifier: Apache-2.0 */
/* Parallel options: read from a text and from a config, completed, judged, and how they deal layers
 * to chunks. */
#include <pf/error.h>
#include <pf/json.h>
#include <pf/mem.h>
#include <pf/parallel.h>

#include "model_fixture.h"
#include "tap.h"

#include <string.h>

static struct pf_model_spec llama; /* 8 heads, 4 key heads */

static bool says(const char *message)
{
    const bool same = strcmp(pf_error_message(), message) == 0;

    if (!same) {
        printf("# said: %s\n", pf_error_message());
    }
    return same;
}

/* Text ----------------------------------------------------------------------------------------- */

static void text_comes_back(const char *text)
{
    struct pf_parallel par;
    struct pf_str again;

    pf_str_init(&again);
    ok(pf_parallel_parse(text, &par) == 0 && pf_parallel_print(&par, &again) == 0 &&
           strcmp(again.text, text) == 0,
       "'%s' is read and printed", text);
    pf_str_release(&again);
}

static void is_refused(const char *text, const char *message)
{
    struct pf_parallel par = {.vpp = 77};

    ok(pf_parallel_parse(text, &par) == PF_EUSAGE && par.vpp == 77 && says(message), "%s", message);
}

static void texts_are_read(void)
{
    struct pf_parallel par;

    ok(pf_parallel_parse("", &par) == 0 && par.stage == -1 && par.degree[PF_AXIS_TP] == 0 &&
           par.vpp == 0 && par.ep == 0,
       "an empty text gives nothing");
    ok(pf_parallel_parse("tp=2, pp=2,vpp=2,ep=2,cp=1,sharding=2,stage=3", &par) == 0 &&
           par.degree[PF_AXIS_TP] == 2 && par.degree[PF_AXIS_PP] == 2 && par.vpp == 2 &&
           par.ep == 2 && par.degree[PF_AXIS_CP] == 1 && par.degree[PF_AXIS_SHARDING] == 2 &&
           par.degree[PF_AXIS_DP] == 0 && par.stage == 3,
       "the words of pf-reshard --to are read");
    text_comes_back("dp=3,sharding=2,pp=4,cp=5,tp=6,vpp=7,ep=8,stage=0");
    text_comes_back("pp=2,vpp=2,order=pp_first,dual=true,first_layers=3,last_layers=4");
    text_comes_back("sharding=2,stage=1,whole_params=true,bucket=4096,segments=layer:Decoder");
    is_refused("tp", "'tp' in a layout is not of the form key=value");
    is_refused("tp=2,tp=2", "'tp' stands twice in a layout");
    is_refused("shardin=2", "unknown word 'shardin' in a layout: did you mean 'sharding'?");
    is_refused("tp=0", "'tp=0' of a layout must be a number from 1 to 16777216");
    is_refused("tp=two", "'tp=two' of a layout must be a number from 1 to 16777216");
    is_refused("stage=4", "'stage=4' of a layout must be a number from 0 to 3");
    is_refused("order=tp_first", "'order=tp_first' of a layout must be pp_first or sharding_first");
    is_refused("dual=maybe", "'dual=maybe' of a layout must be true or false");
    is_refused("bucket=3", "'bucket=3' of a layout must be a size of at least 4 bytes");
    is_refused("segments=0:x", "segments '0:x' are none of uniform, layer:PATTERN, and first "
                               "layers '0:3:8'");
    ok(pf_parallel_parse("segments=layer:[", &par) == PF_EUSAGE, "%s", pf_error_message());
}

/* A config ------------------------------------------------------------------------------------- */

static int read_text(const char *json, struct pf_parallel *par)
{
    struct pf_json *doc = NULL;
    int err = pf_json_parse_text(json, strlen(json), "run.json", &doc);

    err = err ? err : pf_parallel_read(doc, par);
    pf_json_free(doc);
    return err;
}

static void config_means(const char *json, const char *text)
{
    struct pf_parallel par;
    struct pf_str printed;

    pf_str_init(&printed);
    if (ok(read_text(json, &par) == 0 && pf_parallel_print(&par, &printed) == 0 &&
               strcmp(printed.text ? printed.text : "", text) == 0,
           "%s is '%s'", json, text) == false) {
        printf("# %s %s\n", printed.text, pf_error_message());
    }
    pf_str_release(&printed);
}

static void config_is_refused(const char *json, const char *message)
{
    struct pf_parallel par;

    ok(read_text(json, &par) == PF_EUSAGE && says(message), "%s", message);
}

static void configs_are_read(void)
{
    config_means("{\"tensor_model_parallel_size\": 2, \"pipeline_parallel_degree\": 4, "
                 "\"virtual_pp_degree\": 2, \"expert_parallel_degree\": 8}",
                 "pp=4,tp=2,vpp=2,ep=8");
    config_means("{\"sharding\": \"stage2 offload\", \"sharding_degree\": 4, \"seed\": 1}",
                 "sharding=4,stage=2");
    config_means("{\"sharding\": [\"stage1\"], \"split_param\": false, "
                 "\"sharding_comm_buffer_size_MB\": 1}",
                 "stage=1,whole_params=true,bucket=1048576");
    config_means("{\"sep_parallel_size\": 2, \"context_parallel_size\": -1, \"sharding\": null, "
                 "\"hybrid_parallel_topo_order\": \"pp_first\", \"use_dualpipev\": true}",
                 "cp=2,order=pp_first,dual=true");
    config_means("{\"pp_seg_method\": \"layer:LlamaDecoderLayer\", "
                 "\"num_layers_in_first_pipeline_stage\": 3, "
                 "\"num_layers_in_last_pipeline_stage\": 2}",
                 "first_layers=3,last_layers=2,segments=layer:LlamaDecoderLayer");
    config_is_refused("{\"tensor_model_parallel_size\": 2, \"tensor_parallel_degree\": 2}",
                      "'tensor_parallel_degree' is another name of 'tensor_model_parallel_size', "
                      "which is given too ('run.json' line 1)");
    config_is_refused("{\"pipeline_model_parallel_size\": 0}",
                      "'pipeline_model_parallel_size' is 0, must be -1 or from 1 to 2147483647 "
                      "('run.json' line 1)");
    config_is_refused("{\"sharding\": \"stage4\"}",
                      "'sharding' 'stage4' is none of stage1, stage2, "
                      "stage3, offload ('run.json' line 1)");
    config_is_refused("{\"sharding\": \"stage1 stage2\"}",
                      "'sharding' names two stages ('run.json' line 1)");
    config_is_refused("{\"sep_parallel_size\": 2, \"context_parallel_size\": 2}",
                      "'sep_parallel_size' and 'context_parallel_size' share an axis: one of them "
                      "is 1 ('run.json' line 1)");
    config_is_refused("{\"pp_seg_method\": \"even\"}",
                      "'pp_seg_method' is 'even', which is no such option ('run.json' line 1)");
}

/* Resolving ------------------------------------------------------------------------------------ */

static void resolves_to(const char *text, int world, const char *want)
{
    struct pf_parallel par;
    struct pf_mesh mesh;
    struct pf_str printed;

    pf_str_init(&printed);
    const int err = pf_parallel_parse(text, &par) || pf_parallel_resolve(&par, &llama, world, &mesh)
                        ? 1
                        : pf_parallel_print(&par, &printed);
    ok(err == 0 && strcmp(printed.text, want) == 0 && (world == 0 || pf_mesh_size(&mesh) == world),
       "'%s' on %d ranks is %s", text, world, err ? pf_error_message() : printed.text);
    pf_str_release(&printed);
}

static void options_are_completed(void)
{
    resolves_to("", 0, "dp=1,sharding=1,pp=1,cp=1,tp=1,vpp=1,ep=1,stage=0");
    resolves_to("", 6, "dp=6,sharding=1,pp=1,cp=1,tp=1,vpp=1,ep=1,stage=0");
    resolves_to("tp=2,sharding=2", 8, "dp=2,sharding=2,pp=1,cp=1,tp=2,vpp=1,ep=1,stage=1");
    resolves_to("tp=2,stage=3", 8, "dp=1,sharding=4,pp=1,cp=1,tp=2,vpp=1,ep=1,stage=3");
    resolves_to("dp=2,stage=2", 8, "dp=2,sharding=4,pp=1,cp=1,tp=1,vpp=1,ep=1,stage=2");
    resolves_to("dp=2,sharding=4,stage=0", 0, "dp=2,sharding=4,pp=1,cp=1,tp=1,vpp=1,ep=1,stage=0");
}

static void is_impossible(const struct pf_model_spec *spec, const char *text, int world,
                          const char *message)
{
    struct pf_mesh mesh = {.ep = -7};
    struct pf_parallel par, before;

    if (!ok(pf_parallel_parse(text, &par) == 0, "'%s' is read", text)) {
        return;
    }
    before = par;
    ok(pf_parallel_resolve(&par, spec, world, &mesh) == PF_EINVAL && mesh.ep == -7 &&
           memcmp(&par, &before, sizeof par) == 0 && says(message),
       "'%s': %s", text, message);
}

static void r56_impossible_layouts_show_the_arithmetic(void)
{
    const struct pf_model_spec moe = fixture_spec("qwen3_moe", "config.json"); /* 8 experts */
    struct pf_model_spec spec = llama;

    is_impossible(&moe, "ep=3", 0, "ep=3 does not divide 8 experts");
    is_impossible(&moe, "ep=2", 0, "ep 2 does not divide sharding 1 * tp 1");
    is_impossible(&moe, "ep=8,tp=2,sharding=2", 0, "ep 8 does not divide sharding 2 * tp 2");
    is_impossible(&llama, "ep=2,sharding=2", 0,
                  "ep=2 needs experts, and this llama model has none");
    is_impossible(&llama, "tp=3", 0, "tp=3 does not divide 8 attention heads");
    spec.n_heads = spec.n_kv_heads = 6;
    spec.n_kv_heads = 3;
    is_impossible(&spec, "tp=2", 0, "tp=2 neither divides 3 key heads nor is a multiple of them");
    spec = llama;
    spec.ffn = 6; /* gate and up together have 12 columns, which 4 divides: not enough */
    is_impossible(&spec, "tp=4", 0, "tp=4 does not divide 6 columns of the feed-forward part");
    spec = fixture_spec("deepseek_v3", "config.json");
    spec.moe.expert_ffn = 5;
    is_impossible(&spec, "tp=2", 0, "tp=2 does not divide 5 columns of the shared experts");
    is_impossible(&llama, "dp=2,tp=2", 8,
                  "dp 2 * sharding 1 * pp 1 * cp 1 * tp 2 is not the number of ranks, 8");
    is_impossible(&llama, "tp=4", 6,
                  "sharding 1 * pp 1 * cp 1 * tp 4 does not divide the number of ranks, 6");
    is_impossible(&llama, "stage=3", 0, "stage=3 needs a degree of sharding");
    is_impossible(&llama, "sharding=2,stage=3,whole_params=true", 0,
                  "stage=3 cannot give whole parameters to ranks");
    is_impossible(&llama, "whole_params=true", 0, "stage=0 cannot give whole parameters to ranks");
    is_impossible(&llama, "dp=16777216,cp=16777216", 0,
                  "the degrees of the layout make more than 2147483647 ranks");
    is_impossible(&llama, "vpp=2", 0, "vpp=2 needs pp of at least 2");
}

/* Chunks --------------------------------------------------------------------------------------- */

/* "0 2 4 7": the first layer of each chunk, and the end. */
static void chunks_are(int64_t n_layers, const char *text, const char *want)
{
    struct pf_model_spec spec = llama;
    int64_t starts[PF_PARALLEL_MAX_CHUNKS + 1];
    struct pf_parallel par;
    struct pf_mesh mesh;
    struct pf_str got;
    int n = -1;

    spec.n_layers = n_layers;
    pf_str_init(&got);
    if (pf_parallel_parse(text, &par) == 0 && pf_parallel_resolve(&par, &spec, 0, &mesh) == 0) {
        n = pf_parallel_chunks(&par, &spec, starts);
    }
    for (int c = 0; c <= n; c++) {
        pf_str_appendf(&got, "%s%lld", c > 0 ? " " : "", (long long)starts[c]);
    }
    ok(n > 0 && strcmp(got.text, want) == 0, "%lld layers in '%s' begin at %s", (long long)n_layers,
       text, n > 0 ? got.text : pf_error_message());
    pf_str_release(&got);
}

static void layers_are_dealt(void)
{
    struct pf_model_spec seven = llama;

    seven.n_layers = 7;
    chunks_are(8, "pp=2", "0 4 8");
    chunks_are(8, "pp=2,vpp=2", "0 2 4 6 8");
    /* Megatron-LM: 7 layers, 3 on the first stage of 3; 2 on each other. */
    chunks_are(7, "pp=3,first_layers=3", "0 3 5 7");
    chunks_are(7, "pp=2,first_layers=3,last_layers=4", "0 3 7");
    chunks_are(7, "pp=3,first_layers=1,last_layers=2", "0 1 5 7");
    /* With chunks: 2 layers on the first stage are 1 in each of its 2 chunks; 8 layers are left for
     * two stages of two chunks. A round of all stages takes 1 + 2 + 2 layers. */
    chunks_are(10, "pp=3,vpp=2,first_layers=2", "0 1 3 5 6 8 10");
    /* PaddlePaddle: 7 layers with embedding, norm and head are 10 items: 3, 3 and 4. */
    chunks_are(7, "pp=3,segments=uniform", "0 2 5 7");
    chunks_are(1, "pp=3,segments=uniform", "0 0 1 1");
    chunks_are(6, "pp=3,segments=layer:DecoderLayer", "0 2 4 6");
    chunks_are(6, "pp=2,vpp=3,segments=layer:^llamadecoder", "0 1 2 3 4 5 6");
    /* embedding and 7 layers are 8 */
    chunks_are(7, "pp=4,segments=layer:Embedding|Decoder", "0 1 3 5 7");
    chunks_are(7, "pp=2,vpp=2,segments=0:1:4:7", "0 1 4 7 7");
    is_impossible(
        &seven, "pp=2", 0,
        "pp=2 x vpp=1 does not divide 7 layers (first_layers, last_layers or segments make "
        "chunks of different lengths)");
    is_impossible(
        &seven, "pp=7,vpp=2", 0,
        "pp=7 x vpp=2 does not divide 7 layers (first_layers, last_layers or segments make "
        "chunks of different lengths)");
    is_impossible(&seven, "pp=3,first_layers=2", 0,
                  "7 layers less first_layers=2 and last_layers=0 are 5, which 2 stages with vpp=1 "
                  "cannot share");
    is_impossible(&seven, "pp=2,vpp=2,first_layers=3", 0,
                  "vpp=2 does not divide first_layers=3, last_layers=0");
    is_impossible(
        &seven, "pp=2,first_layers=4,last_layers=4", 0,
        "7 layers less first_layers=4 and last_layers=4 are -1, which 0 stages with vpp=1 "
        "cannot share");
    is_impossible(&seven, "first_layers=4", 0,
                  "first_layers and last_layers need pp of at least 2 and no segments");
    is_impossible(&seven, "pp=2,vpp=2,segments=uniform", 0, "uniform segments need vpp=1, not 2");
    is_impossible(&seven, "pp=2,segments=layer:Decoder", 0,
                  "pp=2 x vpp=1 does not divide the 7 items that 'layer:Decoder' meets");
    is_impossible(&seven, "pp=2,segments=layer:Qwen2", 0,
                  "segments 'layer:Qwen2' meet nothing, not even 'LlamaDecoderLayer'");
    is_impossible(&seven, "pp=2,segments=0:3:5", 0,
                  "segments '0:3:5' are 3 chunks, pp=2 x vpp=1 are 2");
    is_impossible(&seven, "pp=2,segments=0:8", 0,
                  "segments '0:8' must rise from 0 to at most 7 layers");
    is_impossible(&seven, "pp=3,segments=0:3:3", 0,
                  "pp=3 x vpp=1 leaves chunk 1 of 7 layers empty");
    is_impossible(&seven, "pp=2,vpp=4,dual=true,segments=uniform", 0,
                  "dual stages have two chunks each: pp=2 vpp=4 cannot be dual");
}

static void chunks_go_round_or_back(void)
{
    struct pf_parallel par;
    int wrong = 0;

    pf_parallel_parse("pp=3,vpp=2", &par);
    for (int c = 0; c < 6; c++) {
        wrong += pf_parallel_stage_of(&par, c) != (int[]){0, 1, 2, 0, 1, 2}[c];
    }
    ok(wrong == 0, "chunks go round the stages");
    par.dual = true;
    for (int c = 0; c < 6; c++) {
        wrong += pf_parallel_stage_of(&par, c) != (int[]){0, 1, 2, 2, 1, 0}[c];
    }
    ok(wrong == 0, "dual: there and back");
}

int main(void)
{
    llama = fixture_spec("llama", "config.json");
    texts_are_read();
    configs_are_read();
    options_are_completed();
    r56_impossible_layouts_show_the_arithmetic();
    layers_are_dealt();
    chunks_go_round_or_back();
    return done();
}
