/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of keys. Names and defaults are those of PaddleFormers where it has the key, except where
 * INTERFACE.md sets another rule. A row is enough for reading, checking, pf.json and pf-config(5).
 */
#include "config_internal.h"

#include <stddef.h>

#define AT(member) offsetof(struct pf_config, member)
#define NOWHERE CONFIG_NO_FIELD
#define ANY_COUNT 9007199254740992.0 /* 2^53: what JSON numbers hold exactly */
#define ANY_RATE 1e6
#define INT_COUNT 2147483647.0

static const char *const schedulers[] = {"linear", "cosine", "constant", "polynomial",
                                         "wsd",    "table",  NULL};
static const char *const wsd_decays[] = {"linear", "1-sqrt", "half_life", NULL};
static const char *const schedule_modes[] = {"1F1B", "FThenB", "VPP", "ZBH1", NULL};
static const char *const dtypes[] = {"float32", "bfloat16", "float16", NULL};
static const char *const optimizers[] = {"adamw", NULL};
static const char *const opt_levels[] = {"O0", "O1", "O2", NULL};
static const char *const granularities[] = {"none", "full", "full_attn", "core_attn", NULL};
static const char *const methods[] = {"uniform", "block", NULL};
static const char *const topo_orders[] = {"sharding_first", "pp_first", NULL};
static const char *const codecs[] = {"none", "zstd", NULL};
static const char *const formats[] = {"pf", "flex_checkpoint", "sharding_io", "unified_checkpoint",
                                      NULL};
static const char *const mixes[] = {"concat", "interleave_under", "interleave_over", NULL};
static const char *const comm_methods[] = {"auto", "broadcast", "parallel_broadcast", NULL};

#define NOT_PP "this build has one pipeline stage"
#define NOT_SHARDING "this build does not shard state over ranks"
#define NOT_RECOMPUTE "this build recomputes what recompute_granularity says, and nothing else"
#define NOT_MOE "this build has no mixture-of-experts layers"
#define NOT_ASYNC "this build saves synchronously"
#define NOT_FORMAT "this build reads and writes its own checkpoints and Hugging Face directories"
#define NOT_OFFLOAD "this build keeps all state in host memory"
#define IN_HOST_MEMORY "state lives in host memory, so there is nothing to choose"

/* Each section starts where the manual page has a heading. */
const struct pf_key pf_keys[] = {
    /* model and data */
    {"model_name_or_path", PF_KEY_STRING, PF_KEY_EFFECTIVE, "null", .may_change_on_resume = true,
     .field = AT(model_name_or_path),
     .help = "a Hugging Face directory, a checkpoint of pf, or a bare config.json: the "
             "architecture, and "
             "the weights to start from unless from_scratch. A resumed run takes both from its "
             "checkpoint"},
    {"model", PF_KEY_OBJECT, PF_KEY_EFFECTIVE, "null", .field = AT(model_json),
     .help = "a model configuration written inline, with the keys of a Hugging Face config.json; "
             "instead of model_name_or_path"},
    {"from_scratch", PF_KEY_BOOL, PF_KEY_EFFECTIVE, "false", .may_change_on_resume = true,
     .field = AT(from_scratch),
     .help = "initialise the weights from the seed instead of loading them"},
    {"input_dir", PF_KEY_STRING, PF_KEY_EFFECTIVE, "null", .may_change_on_resume = true,
     .field = AT(input_dir),
     .help = "the training data: one source, or weights and sources in turn, as in "
             "\"0.7 a.bin 0.3 b.bin\""},
    {"eval_input_dir", PF_KEY_STRING, PF_KEY_EFFECTIVE, "null", .may_change_on_resume = true,
     .field = AT(eval_input_dir), .help = "the evaluation data, in the form of input_dir"},
    {"split", PF_KEY_STRING, PF_KEY_EFFECTIVE, "null", .may_change_on_resume = true,
     .field = AT(split),
     .help = "one to three weights such as \"998,1,1\": the parts of input_dir for training, "
             "evaluation "
             "and test. Unset, all of it is for training"},
    {"tokenizer", PF_KEY_STRING, PF_KEY_EFFECTIVE, "null", .field = AT(tokenizer),
     .help = "how text becomes tokens: bytes in this build; text sources need it"},
    {"max_seq_length", PF_KEY_I64, PF_KEY_EFFECTIVE, "2048", .unit = "tokens", .min = 1,
     .max = INT_COUNT, .field = AT(max_seq_length), .help = "tokens of a sequence that predict"},
    {"mask_documents", PF_KEY_BOOL, PF_KEY_EFFECTIVE, "false", .field = AT(mask_documents),
     .help =
         "attention does not cross the start of a document, positions count from there, and the "
         "last token of a document predicts nothing"},
    {"shuffle", PF_KEY_BOOL, PF_KEY_EFFECTIVE, "true", .field = AT(shuffle),
     .help =
         "draw the order of the windows of an epoch from the seed; false: as they lie in the file"},
    {"mix_strategy", PF_KEY_ENUM, PF_KEY_SATISFIED, "\"concat\"", .choices = mixes,
     .n_supported = 1, .help = "how the sources of a mix share an epoch", .field = NOWHERE,
     .why = "a mix goes by the weights of input_dir, and its epoch ends when every source has been "
            "seen once; there is no second strategy"},
    {"packing", PF_KEY_BOOL, PF_KEY_EFFECTIVE, "false", .field = AT(packing),
     .help =
         "put whole documents into sequences, as many as have room, instead of cutting a stream "
         "of them; mask_documents then holds. What is left of a sequence predicts nothing"},
    {"dataloader_num_workers", PF_KEY_I64, PF_KEY_EFFECTIVE, "0", .min = 0, .max = INT_COUNT,
     .may_change_on_resume = true, .field = AT(dataloader_num_workers),
     .help =
         "0: a step's data are read when it begins; 1 or more: a thread of each rank reads them "
         "ahead, one thread whatever the number. The data and their order are the same"},
    {"prefetch_factor", PF_KEY_I64, PF_KEY_EFFECTIVE, "2", .unit = "steps", .min = 1, .max = 4096,
     .may_change_on_resume = true, .field = AT(prefetch_factor),
     .help = "how far that thread reads ahead"},
    {"distributed_dataloader", PF_KEY_BOOL, PF_KEY_SATISFIED, "false",
     .help = "each rank reads its own share of the data", .field = NOWHERE,
     .why = "each rank reads only its own share, always"},
    /* batch and length of the run */
    {"per_device_train_batch_size", PF_KEY_I64, PF_KEY_EFFECTIVE, "8", .unit = "sequences",
     .min = 1, .max = INT_COUNT, .may_change_on_resume = true,
     .field = AT(per_device_train_batch_size), .help = "sequences of one micro-batch on one rank"},
    {"gradient_accumulation_steps", PF_KEY_I64, PF_KEY_EFFECTIVE, "1", .unit = "micro-batches",
     .min = 1, .max = INT_COUNT, .may_change_on_resume = true,
     .field = AT(gradient_accumulation_steps),
     .help = "micro-batches of a step on one rank; derived where global_train_batch_size is given"},
    {"global_train_batch_size", PF_KEY_I64, PF_KEY_EFFECTIVE, "null", .unit = "sequences", .min = 1,
     .max = INT_COUNT, .field = AT(global_train_batch_size),
     .help = "sequences of a step over all ranks: per_device_train_batch_size times "
             "gradient_accumulation_steps times the data-parallel ranks; derived where not given"},
    {"per_device_eval_batch_size", PF_KEY_I64, PF_KEY_EFFECTIVE, "8", .unit = "sequences", .min = 1,
     .max = INT_COUNT, .may_change_on_resume = true, .field = AT(per_device_eval_batch_size),
     .help = "sequences that one rank evaluates at a time"},
    {"num_train_epochs", PF_KEY_F64, PF_KEY_EFFECTIVE, "1", .unit = "epochs", .min = 1e-9,
     .max = 1e9, .may_change_on_resume = true, .field = AT(num_train_epochs),
     .help = "length of the run where max_steps is -1; the last step may be ragged"},
    {"max_steps", PF_KEY_I64, PF_KEY_EFFECTIVE, "-1", .unit = "steps", .min = -1, .max = ANY_COUNT,
     .may_change_on_resume = true, .field = AT(max_steps),
     .help = "length of the run; -1: num_train_epochs decides"},
    {"seed", PF_KEY_U64, PF_KEY_EFFECTIVE, "42", .field = AT(seed),
     .help = "of the initial weights, the order of the data, and dropout"},
    {"eval_steps", PF_KEY_I64, PF_KEY_EFFECTIVE, "-1", .unit = "steps", .min = -1, .max = ANY_COUNT,
     .may_change_on_resume = true, .field = AT(eval_steps),
     .help = "evaluate every so many steps; -1: at the end only"},
    {"eval_iters", PF_KEY_I64, PF_KEY_EFFECTIVE, "-1", .unit = "batches", .min = -1,
     .max = ANY_COUNT, .may_change_on_resume = true, .field = AT(eval_iters),
     .help = "batches of all ranks in one evaluation; -1: all of the evaluation data"},
    {"eval_only", PF_KEY_BOOL, PF_KEY_EFFECTIVE, "false", .may_change_on_resume = true,
     .field = AT(eval_only),
     .help = "evaluate once and end: on eval_input_dir, on the second part of split, or else on "
             "input_dir"},
    {"logging_steps", PF_KEY_I64, PF_KEY_EFFECTIVE, "5", .unit = "steps", .min = -1,
     .max = ANY_COUNT, .may_change_on_resume = true, .field = AT(logging_steps),
     .help = "log every so many steps, besides the first and the last; -1 or 0: those two only"},
    {"output_dir", PF_KEY_STRING, PF_KEY_EFFECTIVE, "null", .may_change_on_resume = true,
     .field = AT(output_dir), .help = "where all results go; must be given"},
    /* optimizer */
    {"optim", PF_KEY_ENUM, PF_KEY_SATISFIED, "\"adamw\"", .choices = optimizers,
     .help = "the optimizer", .field = NOWHERE, .why = "AdamW is the one optimizer"},
    {"learning_rate", PF_KEY_F64, PF_KEY_EFFECTIVE, "1e-5", .min = 0, .max = ANY_RATE,
     .may_change_on_resume = true, .field = AT(learning_rate),
     .help = "the peak, reached at the end of warm-up"},
    {"weight_decay", PF_KEY_F64, PF_KEY_EFFECTIVE, "0.1", .min = 0, .max = ANY_RATE,
     .field = AT(weight_decay),
     .help = "decoupled: each step first multiplies a weight by 1 - learning rate x weight_decay"},
    {"weight_decay_exclude", PF_KEY_STRING_LIST, PF_KEY_EFFECTIVE, "null",
     .field = AT(weight_decay_exclude),
     .help = "globs of tensor names that do not decay, instead of the rule that tensors of one "
             "dimension do not"},
    {"adam_beta1", PF_KEY_F64, PF_KEY_EFFECTIVE, "0.9", .min = 0, .max = 1, .field = AT(adam_beta1),
     .help = "decay of the first moment; below 1"},
    {"adam_beta2", PF_KEY_F64, PF_KEY_EFFECTIVE, "0.95", .min = 0, .max = 1,
     .field = AT(adam_beta2), .help = "decay of the second moment; below 1"},
    {"adam_epsilon", PF_KEY_F64, PF_KEY_EFFECTIVE, "1e-8", .min = 0, .max = 1,
     .field = AT(adam_epsilon), .help = "added to the root of the second moment"},
    {"max_grad_norm", PF_KEY_F64, PF_KEY_EFFECTIVE, "1.0", .min = 0, .max = 1e30,
     .field = AT(max_grad_norm),
     .help = "gradients of a larger norm are scaled down to it; 0: never"},
    {"freeze", PF_KEY_STRING_LIST, PF_KEY_EFFECTIVE, "[]", .field = AT(freeze),
     .help = "globs of tensor names that are not trained"},
    {"lr_scheduler_type", PF_KEY_ENUM, PF_KEY_EFFECTIVE, "\"linear\"", .choices = schedulers,
     .may_change_on_resume = true, .field = AT(lr_scheduler_type),
     .help = "the rate after warm-up; the formulas stand below"},
    {"warmup_steps", PF_KEY_I64, PF_KEY_EFFECTIVE, "0", .unit = "steps", .min = 0, .max = ANY_COUNT,
     .may_change_on_resume = true, .field = AT(warmup_steps),
     .help =
         "the rate grows in equal steps from 0 to its peak; where above 0 it is used instead of "
         "warmup_ratio"},
    {"warmup_ratio", PF_KEY_F64, PF_KEY_EFFECTIVE, "0", .unit = "of the run", .min = 0, .max = 1,
     .may_change_on_resume = true, .field = AT(warmup_ratio),
     .help = "warm-up as a part of all steps, rounded up"},
    {"min_lr", PF_KEY_F64, PF_KEY_EFFECTIVE, "0", .min = 0, .max = ANY_RATE,
     .may_change_on_resume = true, .field = AT(min_lr), .help = "the lowest rate of a decay"},
    {"num_cycles", PF_KEY_F64, PF_KEY_EFFECTIVE, "0.5", .min = 0, .max = ANY_RATE,
     .may_change_on_resume = true, .field = AT(num_cycles),
     .help = "cosine: waves in the decay; half a wave goes from the peak to min_lr"},
    {"lr_end", PF_KEY_F64, PF_KEY_EFFECTIVE, "1e-7", .min = 0, .max = ANY_RATE,
     .may_change_on_resume = true, .field = AT(lr_end), .help = "polynomial: the rate at the end"},
    {"power", PF_KEY_F64, PF_KEY_EFFECTIVE, "1", .min = 0, .max = 1e3, .may_change_on_resume = true,
     .field = AT(power), .help = "polynomial: the exponent"},
    {"wsd_decay_start", PF_KEY_I64, PF_KEY_EFFECTIVE, "-1", .unit = "steps", .min = -1,
     .max = ANY_COUNT, .may_change_on_resume = true, .field = AT(wsd_decay_start),
     .help = "wsd: the last step at the peak rate; -1: all but the last tenth of the run"},
    {"decay_function", PF_KEY_ENUM, PF_KEY_EFFECTIVE, "\"linear\"", .choices = wsd_decays,
     .may_change_on_resume = true, .field = AT(decay_function),
     .help = "wsd: the shape of the decay"},
    {"lr_table", PF_KEY_F64_LIST, PF_KEY_EFFECTIVE, "[]", .min = 0, .max = ANY_RATE,
     .may_change_on_resume = true, .field = AT(lr_table), .help = "table: the rate of each step"},
    {"pp_delay_scale_loss", PF_KEY_BOOL, PF_KEY_EFFECTIVE, "true", .field = AT(pp_delay_scale_loss),
     .help = "multiply by 1/tokens once, when gradients are complete; false: at the loss of each "
             "micro-batch. The two round differently"},
    /* precision */
    {"dtype", PF_KEY_ENUM, PF_KEY_EFFECTIVE, "\"float32\"", .choices = dtypes, .field = AT(dtype),
     .help = "how weights and activations are stored; masters, moments, weight gradients and sums "
             "are float32, and so is the arithmetic between one store and the next"},
    {"bf16", PF_KEY_BOOL, PF_KEY_EFFECTIVE, "false", .field = NOWHERE,
     .help = "true: dtype is bfloat16"},
    {"fp16", PF_KEY_BOOL, PF_KEY_EFFECTIVE, "false", .field = NOWHERE,
     .help = "true: dtype is float16"},
    {"fp16_opt_level", PF_KEY_ENUM, PF_KEY_SATISFIED, "\"O1\"", .choices = opt_levels,
     .help = "how much of the model is computed in 16 bits", .field = NOWHERE,
     .why = "weights are kept twice at every level: in dtype for the model (O2), and as float32 "
            "masters, which the optimizer updates (O1)"},
    {"amp_master_grad", PF_KEY_BOOL, PF_KEY_SATISFIED, "true", .help = "keep gradients in float32",
     .field = NOWHERE, .why = "gradients are always float32"},
    {"scale_loss", PF_KEY_F64, PF_KEY_EFFECTIVE, "32768", .min = 1e-30, .max = 1e30,
     .may_change_on_resume = true, .field = AT(scale_loss),
     .help = "float16: the first factor on the loss. It halves when a gradient overflows, which "
             "skips the step on all ranks, and doubles after 2000 steps without one; a checkpoint "
             "keeps it"},
    {"deterministic_mode", PF_KEY_BOOL, PF_KEY_SATISFIED, "false",
     .help = "use only algorithms that give the same bits again", .field = NOWHERE,
     .why = "a rerun gives the same bits, always"},
    {"fp8", PF_KEY_STRING, PF_KEY_REFUSED, "null",
     .help = "the fp8 format of matrix products, such as e4m3", .field = NOWHERE,
     .why = "this build has no fp8 arithmetic"},
    {"fp8_wgrad", PF_KEY_BOOL, PF_KEY_REFUSED, "true", .help = "use it for weight gradients too",
     .field = NOWHERE, .why = "this build has no fp8 arithmetic"},
    {"fa_version", PF_KEY_I64, PF_KEY_SATISFIED, "null", .min = 2, .max = 4,
     .help = "which FlashAttention computes attention", .field = NOWHERE,
     .why = "it chooses among GPU kernels; the CPU has one attention, in tiles like theirs"},
    /* machine */
    {"device", PF_KEY_STRING, PF_KEY_EFFECTIVE, "\"cpu\"", .may_change_on_resume = true,
     .field = AT(device), .help = "where the model runs; this build knows cpu"},
    {"devices_dir", PF_KEY_STRING, PF_KEY_REFUSED, "null", .help = "a directory of device plug-ins",
     .field = NOWHERE, .why = "this build does not load devices from files"},
    {"threads", PF_KEY_I64, PF_KEY_EFFECTIVE, "0", .unit = "threads", .min = 0, .max = 4096,
     .may_change_on_resume = true, .field = AT(threads),
     .help = "of each rank; 0: the CPUs that it may use, shared among the ranks of its host"},
    {"kernels_from", PF_KEY_STRING, PF_KEY_EFFECTIVE, "null", .may_change_on_resume = true,
     .field = AT(kernels_from), .help = "a pf.json whose choice of kernels is used again"},
    {"comm_timeout", PF_KEY_F64, PF_KEY_EFFECTIVE, "300", .unit = "seconds", .min = 1e-3,
     .max = 1e9, .may_change_on_resume = true, .field = AT(comm_timeout),
     .help = "a rank that does not arrive within it is named, and the run ends with status 6"},
    {"memory_limit", PF_KEY_STRING, PF_KEY_REFUSED, "null",
     .help = "the memory of a device that a run may take", .field = NOWHERE,
     .why = "this build plans memory (--plan) but does not choose by it"},
    /* layout */
    {"tensor_model_parallel_size", PF_KEY_INT, PF_KEY_EFFECTIVE, "-1", .unit = "ranks", .min = -1,
     .max = INT_COUNT, .may_change_on_resume = true, .field = AT(degree[PF_AXIS_TP]),
     .help =
         "ranks that share each layer's matrices: heads, columns of the feed-forward part, rows "
         "of the vocabulary; -1 is 1"},
    {"pipeline_model_parallel_size", PF_KEY_INT, PF_KEY_EFFECTIVE, "-1", .unit = "ranks", .min = -1,
     .max = INT_COUNT, .may_change_on_resume = true, .field = AT(degree[PF_AXIS_PP]),
     .help = "stages that the layers are dealt to; -1 is 1"},
    {"virtual_pipeline_model_parallel_size", PF_KEY_INT, PF_KEY_EFFECTIVE, "1", .unit = "chunks",
     .min = -1, .max = INT_COUNT, .may_change_on_resume = true, .field = AT(vpp),
     .help = "chunks of layers of each stage: chunk c of the model is stage c mod the number of "
             "stages's; -1 is 1"},
    {"sharding", PF_KEY_STRING_LIST, PF_KEY_REFUSED, "null", .same_as_default = "[\"\", []]",
     .help = "which state the sharding ranks share: stage1, stage2, stage3, with offload",
     .field = NOWHERE, .why = NOT_SHARDING "; unset it means plain data parallel"},
    {"sharding_parallel_size", PF_KEY_INT, PF_KEY_REFUSED, "-1", .same_as_default = "[1]",
     .unit = "ranks", .min = -1, .max = INT_COUNT,
     .help = "ranks that share optimizer state, gradients or parameters",
     .field = AT(degree[PF_AXIS_SHARDING]), .why = NOT_SHARDING},
    {"sep_parallel_size", PF_KEY_INT, PF_KEY_REFUSED, "-1", .same_as_default = "[1]",
     .unit = "ranks", .min = -1, .max = INT_COUNT, .help = "ranks that share a sequence by heads",
     .field = NOWHERE, .why = "this build does not cut sequences"},
    {"context_parallel_size", PF_KEY_INT, PF_KEY_REFUSED, "-1", .same_as_default = "[1]",
     .unit = "ranks", .min = -1, .max = INT_COUNT, .help = "ranks that share a sequence by blocks",
     .field = AT(degree[PF_AXIS_CP]), .why = "this build does not cut sequences"},
    {"cp_balance_mode", PF_KEY_STRING, PF_KEY_REFUSED, "\"dualchunk_allgather\"",
     .help = "how those blocks are dealt", .field = NOWHERE,
     .why = "this build does not cut sequences"},
    {"expert_model_parallel_size", PF_KEY_INT, PF_KEY_REFUSED, "-1", .same_as_default = "[1]",
     .unit = "ranks", .min = -1, .max = INT_COUNT, .help = "ranks that share the experts",
     .field = AT(expert_degree), .why = NOT_MOE},
    {"moe_group", PF_KEY_STRING, PF_KEY_REFUSED, "null",
     .help = "an old way to name the ranks that share the experts", .field = NOWHERE,
     .why = NOT_MOE "; the modern key is expert_model_parallel_size"},
    {"sequence_parallel", PF_KEY_BOOL, PF_KEY_EFFECTIVE, "false", .may_change_on_resume = true,
     .field = AT(sequence_parallel),
     .help = "tensor-parallel ranks share the tokens of norms, dropout and residuals, which makes "
             "these activations smaller by their number"},
    {"hybrid_parallel_topo_order", PF_KEY_ENUM, PF_KEY_SATISFIED, "null", .choices = topo_orders,
     .help = "the order of the axes of the mesh; null is sharding_first", .field = AT(pp_first),
     .why = "without sharding both orders are one mesh"},
    {"reorder_pipeline_priority", PF_KEY_BOOL, PF_KEY_REFUSED, "false",
     .help = "put neighbouring ranks into one pipeline", .field = NOWHERE, .why = NOT_PP},
    {"nccl_comm_group_config", PF_KEY_STRING, PF_KEY_REFUSED, "null",
     .help = "a file with options of NCCL groups", .field = NOWHERE,
     .why = "this build does not use NCCL"},
    {"parallelize_plan", PF_KEY_OBJECT, PF_KEY_EFFECTIVE, "null", .may_change_on_resume = true,
     .field = AT(parallelize_plan),
     .help =
         "the layout as PaddlePaddle's parallelize() says it: mp_config.parallelize_plan, which "
         "layers are cut by columns and which by rows; pp_config.split_spec, where the pipeline "
         "is split. Degrees are keys of their own. A plan that cuts a tensor otherwise than this "
         "build computes with is refused (status 7)"},
    /* sharding */
    {"sharding_comm_buffer_size_MB", PF_KEY_I64, PF_KEY_REFUSED, "-1", .unit = "MiB", .min = -1,
     .max = INT_COUNT, .help = "size of the buffers that sharding exchanges; -1 is 256",
     .field = NOWHERE, .why = NOT_SHARDING},
    {"split_param", PF_KEY_BOOL, PF_KEY_SATISFIED, "true",
     .help = "cut parameters anywhere, not between tensors", .field = NOWHERE,
     .why = "parameters lie in one fused buffer that may be cut at any element, always"},
    {"stage1_tensor_fusion", PF_KEY_BOOL, PF_KEY_SATISFIED, "false",
     .help = "stage 1: exchange fused buffers", .field = NOWHERE,
     .why = "gradients lie in one fused buffer that is reduced by one call, always"},
    {"stage1_overlap", PF_KEY_BOOL, PF_KEY_REFUSED, "false",
     .help = "stage 1: reduce gradients during backward", .field = NOWHERE, .why = NOT_SHARDING},
    {"stage1_broadcast_overlap", PF_KEY_BOOL, PF_KEY_REFUSED, "false",
     .help = "stage 1: give parameters out during the next forward", .field = NOWHERE,
     .why = NOT_SHARDING},
    {"stage1_allgather_overlap", PF_KEY_BOOL, PF_KEY_REFUSED, "false",
     .help = "stage 1: gather parameters during the next forward", .field = NOWHERE,
     .why = NOT_SHARDING},
    {"stage1_reduce_avg", PF_KEY_BOOL, PF_KEY_SATISFIED, "true",
     .help = "stage 1: average gradients in the reduction", .field = NOWHERE,
     .why = "gradients are summed and scaled once by 1/tokens, which needs no average of ranks"},
    {"stage2_overlap", PF_KEY_BOOL, PF_KEY_REFUSED, "false",
     .help = "stage 2: reduce gradients during backward", .field = NOWHERE, .why = NOT_SHARDING},
    {"fuse_optimizer_states", PF_KEY_BOOL, PF_KEY_SATISFIED, "false",
     .help = "keep moments in fused buffers", .field = NOWHERE,
     .why = "each moment is one fused buffer, always"},
    {"sd_release_grads", PF_KEY_BOOL, PF_KEY_REFUSED, "false",
     .help = "sharding frees gradient buffers between steps", .field = NOWHERE,
     .why = "this build keeps its gradient buffer between steps"},
    {"pp_release_grads", PF_KEY_BOOL, PF_KEY_REFUSED, "false",
     .help = "the pipeline frees gradient buffers between steps", .field = NOWHERE,
     .why = "this build keeps its gradient buffer between steps"},
    {"release_grads", PF_KEY_BOOL, PF_KEY_REFUSED, "false",
     .help = "free gradient buffers between steps", .field = NOWHERE,
     .why = "this build keeps its gradient buffer between steps"},
    {"split_norm_comm", PF_KEY_BOOL, PF_KEY_REFUSED, "false",
     .help = "reduce the norm group by group", .field = NOWHERE, .why = NOT_SHARDING},
    {"hybrid_parallel_expert_grad_scale", PF_KEY_F64, PF_KEY_REFUSED, "null",
     .help = "a factor on the gradients of experts", .field = NOWHERE, .why = NOT_MOE},
    {"tensorwise_offload_optimizer", PF_KEY_BOOL, PF_KEY_REFUSED, "false",
     .help = "move moments and masters out of device memory between steps", .field = NOWHERE,
     .why = NOT_OFFLOAD},
    {"replicate_saved_into_local", PF_KEY_BOOL, PF_KEY_REFUSED, "false",
     .help = "copy each checkpoint to every host", .field = NOWHERE,
     .why = "this build writes one copy of a checkpoint"},
    /* pipeline */
    {"pipeline_schedule_mode", PF_KEY_ENUM, PF_KEY_EFFECTIVE, "\"1F1B\"", .choices = schedule_modes,
     .may_change_on_resume = true, .field = AT(schedule),
     .help = "the order of forward and backward of a step's micro-batches, with the same results "
             "to the "
             "bit. FThenB keeps the activations of all micro-batches; VPP, which 1F1B means where "
             "stages "
             "have several chunks, interleaves chunks; ZBH1 fills bubbles with the gradients of "
             "weights "
             "(no recompute, one chunk a stage)"},
    {"overlap_p2p_comm", PF_KEY_BOOL, PF_KEY_REFUSED, "true",
     .help = "send and receive while computing", .field = NOWHERE, .why = NOT_PP},
    {"batch_p2p_comm", PF_KEY_BOOL, PF_KEY_REFUSED, "null", .help = "send and receive in one batch",
     .field = NOWHERE, .why = NOT_PP},
    {"p2p_cache_shape", PF_KEY_BOOL, PF_KEY_REFUSED, "true",
     .help = "tell the shape of activations once", .field = NOWHERE, .why = NOT_PP},
    {"partial_send_recv", PF_KEY_BOOL, PF_KEY_REFUSED, "true",
     .help = "tensor-parallel ranks each send a part", .field = NOWHERE, .why = NOT_PP},
    {"variable_seq_lengths", PF_KEY_BOOL, PF_KEY_REFUSED, "false",
     .help = "micro-batches may differ in length", .field = NOWHERE, .why = NOT_PP},
    {"best_unbalanced_scheduler", PF_KEY_BOOL, PF_KEY_EFFECTIVE, "false",
     .may_change_on_resume = true, .field = AT(balanced),
     .help =
         "with several chunks a stage: all micro-batches go through a chunk before the next, so "
         "that the stages hold nearly the same number of activations"},
    {"offload_queue", PF_KEY_BOOL, PF_KEY_REFUSED, "false",
     .help = "move waiting activations out of device memory", .field = NOWHERE, .why = NOT_PP},
    {"use_dualpipev", PF_KEY_BOOL, PF_KEY_REFUSED, "false", .help = "the DualPipeV schedule",
     .field = NOWHERE, .why = NOT_PP},
    {"forward_backward_overlap_scheduler", PF_KEY_BOOL, PF_KEY_REFUSED, "false",
     .help = "pair forwards with backwards so that exchanges hide", .field = NOWHERE,
     .why = NOT_PP},
    {"split_backward", PF_KEY_BOOL, PF_KEY_EFFECTIVE, "false", .may_change_on_resume = true,
     .field = AT(split_backward),
     .help = "compute the gradients of inputs and of weights apart: pipeline_schedule_mode ZBH1"},
    {"num_layers_in_first_pipeline_stage", PF_KEY_I64, PF_KEY_EFFECTIVE, "-1", .unit = "layers",
     .min = -1, .max = INT_COUNT, .may_change_on_resume = true, .field = AT(first_layers),
     .help =
         "layers of the first stage, all its chunks together; the stages without a number share "
         "the rest. -1: not given"},
    {"num_layers_in_last_pipeline_stage", PF_KEY_I64, PF_KEY_EFFECTIVE, "-1", .unit = "layers",
     .min = -1, .max = INT_COUNT, .may_change_on_resume = true, .field = AT(last_layers),
     .help = "layers of the last stage, likewise"},
    {"pp_seg_method", PF_KEY_STRING, PF_KEY_EFFECTIVE, "null", .may_change_on_resume = true,
     .field = AT(segments),
     .help =
         "how layers become chunks: null, equal numbers of layers; layer:REGEX, equal numbers of "
         "the items that it finds among Embedding, DecoderLayer, RMSNorm and LMHead; uniform, "
         "equal numbers of all these; 0:3:8, the first layer of each chunk"},
    {"pp_recompute_interval", PF_KEY_I64, PF_KEY_REFUSED, "1", .unit = "layers",
     .help = "recompute each so many layers of a stage", .field = NOWHERE, .why = NOT_RECOMPUTE},
    /* tensor parallel */
    {"replace_with_c_embedding", PF_KEY_BOOL, PF_KEY_SATISFIED, "false",
     .help = "a fused embedding whose rows are cut", .field = NOWHERE,
     .why = "tensor-parallel ranks cut the rows of the embedding in one operation, always"},
    {"replace_with_parallel_cross_entropy", PF_KEY_BOOL, PF_KEY_SATISFIED, "false",
     .help = "a loss over a vocabulary that is cut", .field = NOWHERE,
     .why = "tensor-parallel ranks cut the vocabulary of the loss and never gather logits"},
    {"mp_async_allreduce", PF_KEY_BOOL, PF_KEY_EFFECTIVE, "false", .may_change_on_resume = true,
     .field = AT(mp_async_allreduce),
     .help = "without sequence_parallel: compute weight gradients while tensor-parallel ranks sum "
             "the gradients of inputs. Same bits, more memory"},
    {"mp_skip_c_identity", PF_KEY_BOOL, PF_KEY_SATISFIED, "false",
     .help = "leave out copies before a cut layer", .field = NOWHERE,
     .why = "nothing is copied there"},
    {"sp_async_reduce_scatter", PF_KEY_BOOL, PF_KEY_EFFECTIVE, "false",
     .may_change_on_resume = true, .field = AT(sp_async_reduce_scatter),
     .help = "with sequence_parallel: compute weight gradients while tensor-parallel ranks sum and "
             "scatter the gradients of inputs. Same bits, more memory"},
    /* recompute */
    {"recompute_granularity", PF_KEY_ENUM, PF_KEY_EFFECTIVE, "\"none\"", .choices = granularities,
     .may_change_on_resume = true, .field = AT(recompute),
     .help = "what backward computes again instead of finding it saved: full, whole layers; "
             "full_attn, the attention half of a layer; core_attn, the attention itself. Less "
             "memory, more time, the same bits"},
    {"recompute_method", PF_KEY_ENUM, PF_KEY_EFFECTIVE, "\"uniform\"", .choices = methods,
     .may_change_on_resume = true, .field = AT(recompute_method),
     .help = "uniform: all layers; with full in groups of recompute_num_layers (1), of which the "
             "first one's input is kept. block: the first recompute_num_layers layers (all) only"},
    {"recompute_num_layers", PF_KEY_I64, PF_KEY_EFFECTIVE, "null", .unit = "layers", .min = 1,
     .max = ANY_COUNT, .may_change_on_resume = true, .field = AT(recompute_num_layers),
     .help = "the number that recompute_method speaks of"},
    {"recompute_modules", PF_KEY_STRING_LIST, PF_KEY_REFUSED, "null", .same_as_default = "[[]]",
     .help = "which modules are", .field = NOWHERE, .why = NOT_RECOMPUTE},
    {"offload_recompute_inputs", PF_KEY_BOOL, PF_KEY_REFUSED, "false",
     .help = "move the inputs of such layers out of device memory", .field = NOWHERE,
     .why = NOT_OFFLOAD},
    /* experts */
    {"moe_token_dispatcher_type", PF_KEY_STRING, PF_KEY_REFUSED, "\"deepep\"",
     .help = "how tokens reach their experts: deepep or alltoall", .field = NOWHERE,
     .why = NOT_MOE},
    {"moe_expert_capacity_factor", PF_KEY_F64, PF_KEY_REFUSED, "0",
     .help = "most tokens of an expert over the mean; 0: all", .field = NOWHERE, .why = NOT_MOE},
    {"moe_token_drop_policy", PF_KEY_BOOL, PF_KEY_REFUSED, "false",
     .help = "which tokens a full expert drops; false: none", .field = NOWHERE, .why = NOT_MOE},
    {"moe_pad_expert_input_to_capacity", PF_KEY_BOOL, PF_KEY_REFUSED, "false",
     .help = "pad the tokens of an expert to its capacity", .field = NOWHERE, .why = NOT_MOE},
    {"router_aux_loss_coef", PF_KEY_F64, PF_KEY_REFUSED, "null",
     .help = "weight of the loss that balances experts", .field = NOWHERE, .why = NOT_MOE},
    {"router_z_loss_coef", PF_KEY_F64, PF_KEY_REFUSED, "null",
     .help = "weight of the loss that keeps router logits small", .field = NOWHERE, .why = NOT_MOE},
    {"moe_router_load_balancing_type", PF_KEY_STRING, PF_KEY_REFUSED, "\"seq_aux_loss\"",
     .help = "over what experts are balanced", .field = NOWHERE, .why = NOT_MOE},
    {"moe_router_bias_update_rate", PF_KEY_F64, PF_KEY_REFUSED, "1e-3",
     .help = "step of the bias that balances experts without a loss", .field = NOWHERE,
     .why = NOT_MOE},
    {"moe_grouped_gemm", PF_KEY_BOOL, PF_KEY_REFUSED, "false",
     .help = "multiply for all experts in one call", .field = NOWHERE, .why = NOT_MOE},
    {"moe_expert_fusion", PF_KEY_BOOL, PF_KEY_REFUSED, "true",
     .help = "keep the weights of experts in one tensor", .field = NOWHERE, .why = NOT_MOE},
    {"moe_shared_expert_overlap", PF_KEY_BOOL, PF_KEY_REFUSED, "true",
     .help = "compute shared experts during the exchange", .field = NOWHERE, .why = NOT_MOE},
    {"num_nextn_predict_layers", PF_KEY_I64, PF_KEY_REFUSED, "0", .unit = "layers",
     .help = "layers that predict further tokens", .field = NOWHERE,
     .why = "this build predicts the next token only"},
    {"moe_group_orthogonal_loss", PF_KEY_BOOL, PF_KEY_REFUSED, "false",
     .help = "ERNIE: the orthogonal loss of routers by group", .field = NOWHERE, .why = NOT_MOE},
    {"moe_orthogonal_loss_lambda", PF_KEY_F64, PF_KEY_REFUSED, "null", .same_as_default = "[0]",
     .help = "ERNIE: weight of that loss", .field = NOWHERE, .why = NOT_MOE},
    {"moe_norm_gate_logits", PF_KEY_BOOL, PF_KEY_REFUSED, "null",
     .help = "ERNIE: normalise router logits", .field = NOWHERE, .why = NOT_MOE},
    {"moe_use_aux_free", PF_KEY_BOOL, PF_KEY_REFUSED, "false",
     .help = "ERNIE: balance experts by a bias instead of a loss", .field = NOWHERE,
     .why = NOT_MOE},
    {"use_quant_before_a2a", PF_KEY_BOOL, PF_KEY_REFUSED, "false",
     .help = "ERNIE: quantise tokens before the exchange", .field = NOWHERE, .why = NOT_MOE},
    /* saving and resuming */
    {"save_steps", PF_KEY_I64, PF_KEY_EFFECTIVE, "500", .unit = "steps", .min = -1,
     .max = ANY_COUNT, .may_change_on_resume = true, .field = AT(save_steps),
     .help = "save a checkpoint every so many steps and at the end; -1 or 0: only when the run is "
             "stopped"},
    {"save_total_limit", PF_KEY_I64, PF_KEY_EFFECTIVE, "null", .unit = "checkpoints", .min = 1,
     .max = INT_COUNT, .may_change_on_resume = true, .field = AT(save_total_limit),
     .help = "keep so many of the newest checkpoints; null: all"},
    {"save_hf_steps", PF_KEY_I64, PF_KEY_EFFECTIVE, "-1", .unit = "steps", .min = -1,
     .max = ANY_COUNT, .may_change_on_resume = true, .field = AT(save_hf_steps),
     .help =
         "export a Hugging Face directory hf-STEP every so many steps, besides hf at the end; -1 "
         "or 0: at the end only"},
    {"save_compress", PF_KEY_ENUM, PF_KEY_EFFECTIVE, "\"none\"", .choices = codecs,
     .may_change_on_resume = true, .field = AT(save_compress),
     .help = "store the tensors of checkpoints compressed, without loss: none, zstd"},
    {"save_parity", PF_KEY_BOOL, PF_KEY_EFFECTIVE, "false", .may_change_on_resume = true,
     .field = AT(save_parity),
     .help = "write a parity file with each checkpoint, as long as its longest file, from which "
             "pf-inspect repair restores one file that is lost or damaged"},
    {"save_checkpoint_format", PF_KEY_ENUM, PF_KEY_REFUSED, "\"pf\"", .choices = formats,
     .help = "the format of checkpoints", .field = NOWHERE, .why = NOT_FORMAT},
    {"load_checkpoint_format", PF_KEY_ENUM, PF_KEY_REFUSED, "\"pf\"", .choices = formats,
     .help = "the format that is resumed from", .field = NOWHERE, .why = NOT_FORMAT},
    {"resume_from_checkpoint", PF_KEY_STRING, PF_KEY_EFFECTIVE, "null",
     .may_change_on_resume = true, .field = AT(resume_from_checkpoint),
     .help =
         "a checkpoint directory to go on from, or auto: the newest complete one in output_dir, "
         "else a fresh start. Without it an output_dir that holds checkpoints is refused"},
    {"ignore_data_skip", PF_KEY_BOOL, PF_KEY_EFFECTIVE, "false", .may_change_on_resume = true,
     .field = AT(ignore_data_skip),
     .help = "a resumed run reads its data from the start again instead of where it was"},
    {"skip_data_intervals", PF_KEY_I64_PAIRS, PF_KEY_EFFECTIVE, "[]", .unit = "steps", .min = 1,
     .max = ANY_COUNT, .may_change_on_resume = true, .field = AT(skip_data_intervals),
     .help =
         "a list of [first, last]: these steps pass their data over and change no weight, while "
         "the step number and the learning rate go on"},
    {"save_rng_states", PF_KEY_BOOL, PF_KEY_SATISFIED, "true",
     .help = "save the state of random generators", .field = NOWHERE,
     .why =
         "every draw is a function of seed, step, tensor and position: there is no state to save"},
    {"load_via_cpu", PF_KEY_BOOL, PF_KEY_SATISFIED, "true",
     .help = "load a checkpoint through host memory", .field = NOWHERE, .why = IN_HOST_MEMORY},
    {"aoa_config", PF_KEY_OBJECT, PF_KEY_REFUSED, "null",
     .help = "rules that rename and reshape tensors while loading and saving", .field = NOWHERE,
     .why = "this build renames no tensors"},
    {"unified_checkpoint", PF_KEY_BOOL, PF_KEY_REFUSED, "false",
     .help = "an old switch for the unified format", .field = NOWHERE, .why = NOT_FORMAT},
    {"unified_checkpoint_config", PF_KEY_STRING_LIST, PF_KEY_REFUSED, "null",
     .same_as_default = "[\"\", []]", .help = "options of the unified format", .field = NOWHERE,
     .why = NOT_FORMAT},
    {"ckpt_quant_stage", PF_KEY_STRING, PF_KEY_REFUSED, "\"O0\"",
     .help = "quantise saved moments: O0 no, O1 to 8 bits, O2 to 4", .field = NOWHERE,
     .why = "this build saves optimizer state in full"},
    {"use_async_save", PF_KEY_BOOL, PF_KEY_REFUSED, "false", .help = "save while training goes on",
     .field = NOWHERE, .why = NOT_ASYNC},
    {"use_flex_async_save", PF_KEY_BOOL, PF_KEY_REFUSED, "false",
     .help = "save while training goes on, in the flex format", .field = NOWHERE, .why = NOT_ASYNC},
    {"flex_ckpt_comm_method", PF_KEY_ENUM, PF_KEY_SATISFIED, "null", .choices = comm_methods,
     .help = "how ranks hand each other what they read", .field = NOWHERE,
     .why = "each rank reads what it needs from the files itself"},
    {"flex_ckpt_load_num_workers", PF_KEY_I64, PF_KEY_SATISFIED, "1", .min = 1, .max = INT_COUNT,
     .help = "threads that read a checkpoint", .field = NOWHERE,
     .why = "each rank reads what it needs from the files itself"},
    {"enable_zero_cost_checkpoint", PF_KEY_BOOL, PF_KEY_REFUSED, "false",
     .help = "save through processes that watch the state", .field = NOWHERE, .why = NOT_ASYNC},
    {"zcc_workers_num", PF_KEY_I64, PF_KEY_REFUSED, "3", .help = "so many of them",
     .field = NOWHERE, .why = NOT_ASYNC},
    {"zcc_pipeline_hooks_capacity_usage", PF_KEY_F64, PF_KEY_REFUSED, "0.6",
     .help = "the part of pipeline bubbles that copying may take", .field = NOWHERE,
     .why = NOT_ASYNC},
    {"zcc_save_ema_coef", PF_KEY_F64, PF_KEY_REFUSED, "null",
     .help = "decay of the moving average that they keep", .field = NOWHERE, .why = NOT_ASYNC},
    {"zcc_ema_interval", PF_KEY_I64, PF_KEY_REFUSED, "1", .help = "steps between its updates",
     .field = NOWHERE, .why = NOT_ASYNC},
    {"zcc_ema_loss_threshold", PF_KEY_F64, PF_KEY_REFUSED, "null",
     .help = "no update where the loss is above it", .field = NOWHERE, .why = NOT_ASYNC},
    {"flash_device_save_steps", PF_KEY_I64, PF_KEY_REFUSED, "0", .unit = "steps",
     .help = "save to a memory file system every so many steps; 0: never", .field = NOWHERE,
     .why = NOT_ASYNC},
    {"pdc_download_ckpt", PF_KEY_BOOL, PF_KEY_REFUSED, "false",
     .help = "fetch the checkpoint to be resumed", .field = NOWHERE,
     .why = "this build does not download checkpoints"},
    {"pdc_download_timeout", PF_KEY_I64, PF_KEY_REFUSED, "300", .unit = "seconds",
     .help = "give up fetching after so long", .field = NOWHERE,
     .why = "this build does not download checkpoints"},
    {"tiers", PF_KEY_OBJECT, PF_KEY_REFUSED, "null",
     .help = "further places that checkpoints are copied to", .field = NOWHERE,
     .why = "this build saves to output_dir only"},
    {"ema", PF_KEY_F64, PF_KEY_REFUSED, "null",
     .help = "decay of a moving average of the weights that is saved too", .field = NOWHERE,
     .why = "this build keeps no moving average of the weights"},
    {"sdc", PF_KEY_BOOL, PF_KEY_REFUSED, "false", .help = "look for silent corruption of results",
     .field = NOWHERE, .why = "this build does not look for silent corruption"},
    {"elastic", PF_KEY_BOOL, PF_KEY_REFUSED, "false",
     .help = "go on with fewer ranks after a fault", .field = NOWHERE,
     .why = "this build does not change its ranks while it runs"},
    /* looking inside */
    {"dump_steps", PF_KEY_I64_LIST, PF_KEY_EFFECTIVE, "[]", .unit = "steps", .min = 1,
     .max = ANY_COUNT, .may_change_on_resume = true, .field = AT(dump_steps),
     .help = "steps of which whole tensors are written under output_dir/dump"},
    {"dump", PF_KEY_STRING_LIST, PF_KEY_EFFECTIVE, "[\"logits\",\"grads\",\"hidden\"]",
     .may_change_on_resume = true, .field = AT(dump),
     .help = "what dump_steps writes: any of logits, grads, hidden"},
    {"profile_steps", PF_KEY_I64_LIST, PF_KEY_EFFECTIVE, "[]", .unit = "steps", .min = 1,
     .max = ANY_COUNT, .may_change_on_resume = true, .field = AT(profile_steps),
     .help =
         "steps of which rank 0 prints where their time went, by op and by phase, against limits "
         "measured at start, and writes profile-STEP.json"},
    {"trace_steps", PF_KEY_I64_LIST, PF_KEY_EFFECTIVE, "[]", .unit = "steps", .min = 1,
     .max = ANY_COUNT, .may_change_on_resume = true, .field = AT(trace_steps),
     .help = "steps of which each rank writes a time line, trace-STEP.rankN.json, and rank 0 that "
             "of several ranks together, trace-STEP.json, which Perfetto opens"},
    {"sample_steps", PF_KEY_I64, PF_KEY_EFFECTIVE, "-1", .unit = "steps", .min = -1,
     .max = ANY_COUNT, .may_change_on_resume = true, .field = AT(sample_steps),
     .help =
         "print what the model writes every so many steps and at the end; -1 or 0: at the end if "
         "sample_prompt is given, else never. The tokenizer must be bytes"},
    {"sample_prompt", PF_KEY_STRING, PF_KEY_EFFECTIVE, "null", .may_change_on_resume = true,
     .field = AT(sample_prompt), .help = "what it is to continue; null: a newline"},
    {"sample_tokens", PF_KEY_I64, PF_KEY_EFFECTIVE, "120", .unit = "tokens", .min = 1,
     .max = 1 << 20, .may_change_on_resume = true, .field = AT(sample_tokens),
     .help = "how much it writes at most; each token takes one forward of the whole text"},
    {"sample_temperature", PF_KEY_F64, PF_KEY_EFFECTIVE, "0.8", .min = 0, .max = 1e3,
     .may_change_on_resume = true, .field = AT(sample_temperature),
     .help = "logits are divided by it before a token is drawn; 0: always the most likely token"},
    /* old option strings */
    {"pipeline_parallel_config", PF_KEY_STRING_LIST, PF_KEY_EFFECTIVE, "null", .field = NOWHERE,
     .help = "words enable_KEY and disable_KEY, each a switch of this page; their status is the "
             "switch's. delay_scale_loss stands for pp_delay_scale_loss, release_grads for "
             "pp_release_grads, sharding_comm_overlap for stage1_overlap"},
    {"sharding_parallel_config", PF_KEY_STRING_LIST, PF_KEY_EFFECTIVE, "null", .field = NOWHERE,
     .help = "the same; here release_grads stands for sd_release_grads"},
    {"lr_scheduler", PF_KEY_STRING, PF_KEY_EFFECTIVE, "null", .field = NOWHERE,
     .help = "an old form: \"wsd:N\" means lr_scheduler_type wsd with wsd_decay_start N; any other "
             "word is an lr_scheduler_type"},
};
const size_t pf_n_keys = sizeof pf_keys / sizeof pf_keys[0];

const struct pf_key_alias pf_key_aliases[] = {
    {"tensor_parallel_degree", "tensor_model_parallel_size"},
    {"pipeline_parallel_degree", "pipeline_model_parallel_size"},
    {"sharding_parallel_degree", "sharding_parallel_size"},
    {"sharding_degree", "sharding_parallel_size"},
    {"expert_parallel_degree", "expert_model_parallel_size"},
    {"virtual_pp_degree", "virtual_pipeline_model_parallel_size"},
    {"sep_parallel_degree", "sep_parallel_size"},
    {"context_parallel_degree", "context_parallel_size"},
    {"offload_optimizer", "tensorwise_offload_optimizer"},
};
const size_t pf_n_key_aliases = sizeof pf_key_aliases / sizeof pf_key_aliases[0];
