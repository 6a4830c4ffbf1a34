/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parallel.h - the parallel options of a layout, and the one place that says which layouts a model
 * can have.
 *
 * Options come from the text of pf-reshard's --to or from a config; they are completed and judged
 * by pf_parallel_resolve, which also gives the mesh. What each rank then holds is pf/placement.h.
 *
 *     struct pf_parallel par;
 *     struct pf_mesh mesh;
 *     PF_TRY(pf_parallel_parse("tp=2,pp=2,vpp=2,sharding=2,stage=3", &par));
 *     PF_TRY(pf_parallel_resolve(&par, &spec, 0, &mesh));     8 ranks
 *
 * Sharding stages: 1 cuts the state of the optimizer (masters, moments) over the sharding axis, 2
 * also the gradients, which lie in no checkpoint, 3 the weights as well. In stage 0 the axis holds
 * copies, like dp.
 *
 * Plain values, all functions local.
 */
#ifndef PF_PARALLEL_H
#define PF_PARALLEL_H

#include <pf/mesh.h>
#include <pf/spec.h>
#include <pf/str.h>

#include <stdbool.h>
#include <stdint.h>

struct pf_json;
struct pf_json_out;

#define PF_PARALLEL_SEGMENTS_MAX 1024

struct pf_parallel {
    int degree[PF_AXIS_COUNT]; /* 0: not given */
    int vpp;                   /* chunks of layers at each pipeline stage; 0: not given */
    int ep;                    /* 0: not given */
    int stage;                 /* 0..3; -1: not given */
    bool pp_first;             /* order of the mesh: dp, pp, sharding, cp, tp */
    bool dual;                 /* DualPipeV: stage s has the chunks s and 2 pp - 1 - s */
    bool whole_params;         /* stages 1 and 2: a parameter's state lies whole at one rank */
    int64_t first_layers, last_layers;       /* layers of the first, last stage; 0: not given */
    int64_t bucket_bytes;                    /* fp32 bytes of a fused buffer; 0: 256 MiB */
    char segments[PF_PARALLEL_SEGMENTS_MAX]; /* how layers become chunks; "": evenly */
};

/* Nothing given. */
void pf_parallel_init(struct pf_parallel *par);

/*
 * Read "tp=2,pp=2,...". Keys: the degrees dp tp pp vpp cp ep sharding; stage; order=pp_first or
 * sharding_first; first_layers, last_layers; segments; dual and whole_params, each true or false;
 * bucket, a size ("64M"). An empty text gives nothing. Errors: PF_EUSAGE for an unknown key (with
 * the nearest), a key given twice, a value that is no number or out of range.
 */
int pf_parallel_parse(const char *text, struct pf_parallel *par_out);

/*
 * Read the layout keys of a config, a JSON object, by PaddleFormers' names and their old ones:
 * tensor_model_parallel_size (or tensor_parallel_degree), pipeline_model_parallel_size,
 * virtual_pipeline_model_parallel_size, expert_model_parallel_size, context_parallel_size or
 * sep_parallel_size, sharding_parallel_size, sharding, split_param, sharding_comm_buffer_size_MB,
 * hybrid_parallel_topo_order, pp_seg_method, num_layers_in_first_pipeline_stage and ..._last_...,
 * use_dualpipev, and of parallelize_plan the options (its cuts: pf/parallelize.h). -1 and null mean not given; other keys are not looked at. PF_EUSAGE names the key and
 * the line.
 */
int pf_parallel_read(const struct pf_json *config, struct pf_parallel *par_out);

/*
 * Complete the options for `world` ranks (0: as many as the degrees make) and decide whether a
 * model can be laid out so; the mesh of it is returned. What was not given becomes: dp what is left
 * of the world; sharding 1, or all that is left where a stage was asked for; the stage 1 where there
 * is sharding, else 0; the others 1. Errors: PF_EINVAL with the arithmetic ("ep=3 does not divide 8
 * experts"), after which *par is as it was.
 */
int pf_parallel_resolve(struct pf_parallel *par, const struct pf_model_spec *spec, int world,
                        struct pf_mesh *mesh_out);

/* Append all options as the text that pf_parallel_parse reads, "dp=1,sharding=2,..."; those that
 * say nothing are left out, degrees never. */
int pf_parallel_print(const struct pf_parallel *par, struct pf_str *text);

/* Resolved options as one object of numbers: the degrees by axis, ep, vpp, and the sharding stage. */
void pf_parallel_json(const struct pf_parallel *par, struct pf_json_out *out);

/*
 * The layers of each chunk, in the order of the model: chunk c of the pp * vpp has layers
 * [starts_out[c], starts_out[c + 1]); the embedding goes with the first chunk, the final norm and
 * the head with the last. `par` is resolved; starts_out has room for PF_PARALLEL_MAX_CHUNKS + 1.
 * Returns how many chunks, or PF_EINVAL with the arithmetic.
 *
 * par->segments says how:
 *   ""             equal numbers of layers; first_layers and last_layers set those of the first and
 *                  the last stage (all their chunks together), the stages between share the rest
 *   "layer:REGEX"  equal numbers of what the POSIX extended regular expression finds, case ignored,
 *                  among the items Embedding, DecoderLayer of each layer, RMSNorm, LMHead, all with
 *                  the family's name in front ("Qwen2DecoderLayer")
 *   "uniform"      equal numbers of these items, the last chunks one more where it does not divide;
 *                  without vpp only
 *   "0:3:8"        the first layer of each chunk
 * A chunk without layers is refused unless it is the first or the last.
 *
 * Source: PaddlePaddle's SegmentLayers (uniform, layer:) and Megatron-LM's
 * get_transformer_layer_offset (first and last stage).
 */
#define PF_PARALLEL_MAX_CHUNKS (PF_SPEC_MAX_LAYERS + 2)
int pf_parallel_chunks(const struct pf_parallel *par, const struct pf_model_spec *spec,
                       int64_t *starts_out);

/* The pipeline stage of a chunk: c mod pp, or, dual, there and back. */
int pf_parallel_stage_of(const struct pf_parallel *par, int chunk);

#endif
