/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parallelize.h - a layout said by a plan, as PaddlePaddle's parallelize() takes it: which layers are cut
 * by columns and which by rows, where the pipeline is split, what is sharded. It ends in the same options
 * (pf/parallel.h) and the same table (pf/table.h) as everything else.
 *
 *     { "dp_config": { "sharding_level": 1 },
 *       "mp_config": { "parallelize_plan": {
 *           "model.embed_tokens": "RowWiseParallel",
 *           "model.layers.*.self_attn.[qkv]_proj": "ColWiseParallel",
 *           "model.layers.*.self_attn.o_proj": ["RowWiseParallel", "SequenceParallelEnd"],
 *           "lm_head.weight": { "ColWiseParallel": { "gather_output": false } } } },
 *       "pp_config": { "split_spec": "model.layers" } }
 *
 * An object without any of the three members is the inner plan alone. Degrees are not part of a plan.
 *
 * A pattern is a POSIX extended regular expression that meets the whole name of a layer (a tensor's
 * Hugging Face name without .weight and .bias), or of a tensor where it ends in weight or bias. Of several
 * that meet a tensor the last one in the text counts.
 *   ColWiseParallel   cuts what a linear layer gives out, its bias too; of an embedding the width
 *   RowWiseParallel   cuts what a linear layer takes in; its bias is not cut; of an embedding the vocabulary
 * Where the model's own cut is along that dimension it keeps its view (whole heads, padded vocabulary),
 * elsewhere blocks of elements are cut. A tensor that no pattern meets is held whole by every rank of tp.
 * SequenceParallelBegin, -End, -Enable, -Disable and the arguments of the others (gather_output,
 * is_input_parallel) say how to compute and place no weight. PrepareLayerInput and -Output hold Python
 * functions: refused.
 *
 * split_spec: the name of the layers' list, which is dealt evenly, or the layers to split at, each with
 * BEGINNING or END.
 *
 * Source: PaddlePaddle documentation, paddle.distributed.parallelize.
 * All functions local.
 */
#ifndef PF_PARALLELIZE_H
#define PF_PARALLELIZE_H

#include <pf/parallel.h>
#include <pf/str.h>
#include <pf/table.h>

struct pf_json;

/*
 * Set the options that a plan says: the stage and the segments. PF_EUSAGE for another form of plan, with
 * key and line; PF_EREFUSED where options that are given already say another thing; PF_ENOTSUP for what
 * this build cannot do.
 */
int pf_parallelize_options(const struct pf_json *plan, struct pf_parallel *par);

/*
 * Cut the rows of a table as a plan says instead of as the model would be. Before the table is placed;
 * whether ranks have parts of one size is judged there. Appends a line to *notes for each pattern that
 * meets nothing, and for each tensor that patterns of both kinds meet. Errors as above; PF_EINVAL for a
 * split at what is no layer of the model.
 */
int pf_parallelize_table(const struct pf_json *plan, struct pf_table *table,
                         struct pf_str_list *notes);

/* The same with the plan that a config has under parallelize_plan, if it has one; pf_parallel_read has
 * read its options. */
int pf_parallelize_config(const struct pf_json *config, struct pf_table *table,
                          struct pf_str_list *notes);

#endif
