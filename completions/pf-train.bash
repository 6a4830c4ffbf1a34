# SPDX-License-Identifier: Apache-2.0
# bash completion of pf-train; made by scripts/make-completions.
_pf_train()
{
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
    local options='
        --plan --check --stop --compare-layout --steps --tolerance --launch --supervise --quiet -q
        --verbose -v --json --no-progress --version -V --help -h'
    local keys='
        model_name_or_path model from_scratch input_dir eval_input_dir split tokenizer
        max_seq_length mask_documents shuffle packing dataloader_num_workers prefetch_factor
        per_device_train_batch_size gradient_accumulation_steps global_train_batch_size
        per_device_eval_batch_size num_train_epochs max_steps seed eval_steps eval_iters eval_only
        logging_steps output_dir learning_rate weight_decay weight_decay_exclude adam_beta1
        adam_beta2 adam_epsilon max_grad_norm freeze lr_scheduler_type warmup_steps warmup_ratio
        min_lr num_cycles lr_end power wsd_decay_start decay_function lr_table pp_delay_scale_loss
        dtype bf16 fp16 scale_loss device threads kernels_from comm_timeout
        tensor_model_parallel_size pipeline_model_parallel_size
        virtual_pipeline_model_parallel_size sequence_parallel parallelize_plan
        pipeline_schedule_mode best_unbalanced_scheduler split_backward
        num_layers_in_first_pipeline_stage num_layers_in_last_pipeline_stage pp_seg_method
        mp_async_allreduce sp_async_reduce_scatter recompute_granularity recompute_method
        recompute_num_layers save_steps save_total_limit save_hf_steps save_compress save_parity
        resume_from_checkpoint ignore_data_skip skip_data_intervals dump_steps dump profile_steps
        trace_steps sample_steps sample_prompt sample_tokens sample_temperature
        pipeline_parallel_config sharding_parallel_config lr_scheduler'
    if [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur")
        return
    fi
    local key=
    [ "$prev" != = ] || key=${COMP_WORDS[COMP_CWORD - 2]}
    [ "$cur" != = ] || key=$prev cur=
    case $key in
    from_scratch | mask_documents | shuffle | packing | eval_only | pp_delay_scale_loss | bf16 | fp16 | sequence_parallel | best_unbalanced_scheduler | split_backward | mp_async_allreduce | sp_async_reduce_scatter | save_parity | ignore_data_skip)
        mapfile -t COMPREPLY < <(compgen -W 'true false' -- "$cur")
        return ;;
    lr_scheduler_type)
        mapfile -t COMPREPLY < <(compgen -W 'linear cosine constant polynomial wsd table' -- "$cur")
        return ;;
    decay_function)
        mapfile -t COMPREPLY < <(compgen -W 'linear 1-sqrt half_life' -- "$cur")
        return ;;
    dtype)
        mapfile -t COMPREPLY < <(compgen -W 'float32 bfloat16 float16' -- "$cur")
        return ;;
    pipeline_schedule_mode)
        mapfile -t COMPREPLY < <(compgen -W '1F1B FThenB VPP ZBH1' -- "$cur")
        return ;;
    recompute_granularity)
        mapfile -t COMPREPLY < <(compgen -W 'none full full_attn core_attn' -- "$cur")
        return ;;
    recompute_method)
        mapfile -t COMPREPLY < <(compgen -W 'uniform block' -- "$cur")
        return ;;
    save_compress)
        mapfile -t COMPREPLY < <(compgen -W 'none zstd' -- "$cur")
        return ;;
    esac
    if [ -z "$key" ] && [[ "${COMP_WORDS[*]:1:COMP_CWORD-1} " == *.json\ * ]]; then
        compopt -o nospace 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -W "$keys" -S = -- "$cur")
        return
    fi
    mapfile -t COMPREPLY < <(compgen -f -- "$cur")
}
complete -o filenames -F _pf_train pf-train
