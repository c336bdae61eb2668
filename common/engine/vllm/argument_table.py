"""Which of vLLM's engine arguments work under `[engine.args]`, as data.

Theory of operation: vLLM 0.32 has some 230 engine arguments. Few were tried together with a
handoff (`WORKS`: tests/e2e/engine/test_arguments.py). Some cannot work, and vLLM finds out 10 to
45 s later in words of its own, or never (`REFUSED`). Some have a key of the fleet file
(`OWN_KEYS`). The others are passed on with a warning (`UNTESTED`). A test compares the four tables
with the fields of vLLM's class, so that an upgrade cannot add an argument that nobody classified.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from common.model.adapters import RANKS

#: Python types by the word that the tables use; a whole number is a number, too.
KINDS: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "list": (list,),
    "dict": (dict,),
    "any": (object,),
}


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


class Works(NamedTuple):
    """An argument that was tried with a handoff."""

    kind: str
    sentence: str
    #: The values that work; empty if all do.
    values: tuple[Any, ...] = ()
    #: The least number that works; None if all do.
    least: int | None = None


class Refused(NamedTuple):
    """An argument that cannot work."""

    #: Why not, and what to do instead.
    sentence: str
    #: Values that change nothing and are taken all the same, vLLM's default first.
    harmless: tuple[Any, ...] = ()


WORKS: dict[str, Works] = {
    "attention_backend": Works("str", "Kernels of attention; the fingerprint has it."),
    "disable_log_stats": Works("bool", "Switches the engine's own log of statistics off."),
    "enable_chunked_prefill": Works("bool", "Whether long prompts are computed in several steps."),
    "enable_lora": Works(
        "bool", "Serves LoRA adapters; the default is whether the file has any of the model."
    ),
    "enforce_eager": Works("bool", "Runs uncompiled: a faster start, slower steps."),
    "generation_config": Works(
        "str",
        "Folder of the sampling defaults; `\"vllm\"` takes vLLM's and not the model's. The gateway "
        "reads them.",
    ),
    "gpu_memory_utilization": Works("float", "Share of a GPU's memory that one worker takes."),
    "hf_overrides": Works(
        "dict", "Overrides keys of the model's config.json, such as `rope_parameters`."
    ),
    "load_format": Works(
        "str",
        "How weights are read; `dummy` makes random ones.",
        ("auto", "hf", "safetensors", "pt", "mistral", "dummy"),
    ),
    "logprobs_mode": Works(
        "str",
        "What logprobs are of. With `processed_...` seeded streams cannot move to another worker.",
        ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits"),
    ),
    "long_prefill_token_threshold": Works(
        "int", "Tokens above which a prompt counts as long; 0 is none.", least=0
    ),
    "max_cpu_loras": Works(
        "int",
        "LoRA adapters that stay in a worker's memory, `max_loras` at least; the default is all "
        "that the file has of the model.",
        least=1,
    ),
    "max_logprobs": Works(
        "int", "Most logprobs for each token that a request may ask for; -1 is all.", least=-1
    ),
    "max_lora_rank": Works("int", "Highest rank of a LoRA adapter; the default is 16.", RANKS),
    "max_loras": Works("int", "Different LoRA adapters in one batch; the default is 4.", least=1),
    "num_gpu_blocks_override": Works(
        "int", "KV blocks, instead of what fits `kv_cache_mib`.", least=1
    ),
    "optimization_level": Works("int", "How much vLLM compiles, from 0 to 3.", (0, 1, 2, 3)),
    "override_generation_config": Works("dict", "Sampling defaults above those of the model."),
    "revision": Works("str", "Revision of a model that `model.path` names by its Hugging Face id."),
    "scheduling_policy": Works("str", "How the engine orders what waits.", ("fcfs", "priority")),
    "seed": Works("int", "Seed of what the engine draws by itself, such as dummy weights."),
    "tensor_parallel_size": Works("int", "Processes over which each layer is split.", least=1),
    "tokenizer": Works("str", "Folder or cached id of the tokenizer, if it is not the model's."),
    "tokenizer_mode": Works(
        "str",
        "Which tokenizer classes are used. Others than these have no tokenizer.json.",
        ("auto", "hf"),
    ),
    "trust_remote_code": Works(
        "bool", "Runs code that comes with the model, in workers and gateways. Read it first."
    ),
}

#: Names by the type of their values.
UNTESTED_BY_KIND = {
    "any": """
        mamba_backend mm_encoder_attn_backend pt_load_map_location scheduler_cls
    """,
    "bool": """
        aggregate_engine_logging allow_deprecated_quantization async_scheduling cudagraph_metrics
        disable_cascade_attn disable_chunked_mm_input disable_custom_all_reduce
        disable_sliding_window enable_batch_sharded_sampling enable_cumem_allocator enable_dbo
        enable_ep_weight_filter enable_eplb enable_expert_parallel enable_flashinfer_autotune
        enable_hc_sp enable_layerwise_nvtx_tracing enable_logging_iteration_details
        enable_mamba_cache_stochastic_rounding enable_mamba_shared_prefix_checkpoint
        enable_mfu_metrics enable_mm_embeds enable_mm_processor_stats enable_nccl_comm_suspend
        enable_return_routed_experts enable_shm_tensor_arena enable_trace_replay
        fail_on_environ_validation interleave_mm_strings jit_monitor_verbose kv_cache_metrics
        language_model_only long_prefill_token_threshold_adaptive mm_device_do_normalize
        mm_encoder_only numa_bind return_sampling_mask scheduler_reserve_full_isl skip_mm_profiling
        swa_bounded_replay use_fp64_gumbel use_replayssm
    """,
    "dict": """
        additional_config attention_config aux_output_config compilation_config
        custom_histogram_buckets ec_manager_config engram_config eplb_config ir_op_priority
        kernel_config limit_mm_per_prompt logging_config mamba_config media_io_kwargs
        mm_processor_kwargs model_class_overrides model_loader_extra_config profiler_config
        quantization_config reasoning_config structured_outputs_config
        watermark_config
    """,
    "float": """
        cpu_offload_gb kv_cache_metrics_sample mm_encoder_fp8_scale_save_margin mm_ipc_gpu_memory_gb
        video_pruning_rate watermark
    """,
    "int": """
        cpu_distributed_timeout_seconds dbo_decode_token_threshold dbo_prefill_token_threshold
        distributed_timeout_seconds mamba_block_size mamba_cache_philox_rounds
        max_cudagraph_capture_size max_num_active_seqs max_num_queued_reqs max_num_queued_tokens
        max_num_scheduled_tokens max_parallel_loading_workers mm_shm_cache_max_object_size_mb
        offload_group_size offload_num_in_group offload_prefetch_step prefill_schedule_interval
        prefix_cache_retention_interval prefix_match_unit renderer_num_workers replayssm_buffer_len
        safetensors_prefetch_block_size safetensors_prefetch_num_threads shutdown_timeout
        stream_interval ubatch_size
    """,
    "list": """
        collect_detailed_traces cpu_offload_params cudagraph_capture_sizes device_ids
        kv_cache_dtype_skip_layers logits_processors numa_bind_cpus numa_bind_nodes offload_params
    """,
    "str": """
        config_format expert_placement_strategy gdn_prefill_backend hf_config_path jit_monitor_mode
        kda_decode_backend kda_prefill_backend kv_cache_dtype linear_backend log_config_file
        log_level mamba_cache_dtype mamba_cache_mode mamba_ssm_cache_dtype mamba_ssu_algorithm
        mm_encoder_attn_dtype mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_path
        mm_encoder_tp_mode mm_hasher_algorithm mm_processor_cache_type mm_processor_device
        mm_tensor_ipc model_impl moe_backend offload_backend otlp_traces_endpoint performance_mode
        prefix_caching_hash_algo quantization safetensors_load_strategy
        show_hidden_metrics_for_version sparse_indexer_topk_backend video_pruning_method worker_cls
        worker_extension_cls
    """,
}
UNTESTED = {name: kind for kind, names in UNTESTED_BY_KIND.items() for name in names.split()}

_DATA_PARALLEL = "the router spreads requests over workers; add [decode.NAME] tables instead"
_CONTEXT = "splits the KV of one token run over ranks, which no handoff knows; leave it out"
_ONE_HOST = "a worker runs on one host; split it with tensor_parallel_size there"
_POOLING = "`task` of the model says what it is for, and Baton sets the rest"
_SPECULATION = "use [speculation], which decode workers take"
_LORA = "adapters were tried without it; see `[adapters.NAME]`"
_OFFLOADING = "vLLM takes one connector for KV, which is Baton's; raise [engine] kv_cache_mib"
_FETCHING = "nothing is downloaded; fetch the model with `hf download` and name its folder"
_TOKENIZER = "requests with grammars need the tokenizer in the engine; leave it out"
_SLEEP = 'Baton wakes only workers that are `state = "warm"`, and sets it there; leave it out'

REFUSED: dict[str, Refused] = {
    "data_parallel_size": Refused(_DATA_PARALLEL, (1,)),
    "data_parallel_backend": Refused(_DATA_PARALLEL, ("mp",)),
    "data_parallel_hybrid_lb": Refused(_DATA_PARALLEL, (False,)),
    "data_parallel_external_lb": Refused(_DATA_PARALLEL, (False,)),
    "data_parallel_multi_port_external_lb": Refused(_DATA_PARALLEL, (False,)),
    "enable_elastic_ep": Refused(_DATA_PARALLEL, (False,)),
    "enable_fault_tolerance": Refused(_DATA_PARALLEL, (False,)),
    **dict.fromkeys(
        (
            "data_parallel_rank",
            "data_parallel_start_rank",
            "data_parallel_size_local",
            "data_parallel_address",
            "data_parallel_rpc_port",
            "dp_sync_interval",
            "disable_nccl_for_dp_synchronization",
            "elastic_ep_max_dp_size",
            "fault_tolerance_config",
            "all2all_backend",
        ),
        Refused(_DATA_PARALLEL),
    ),
    "pipeline_parallel_size": Refused(
        "KV is handed over by engines of one stage; use tensor_parallel_size", (1,)
    ),
    "prefill_context_parallel_size": Refused(_CONTEXT, (1,)),
    "decode_context_parallel_size": Refused(_CONTEXT, (1,)),
    "dcp_kv_cache_interleave_size": Refused(_CONTEXT, (1,)),
    "cp_kv_cache_interleave_size": Refused(_CONTEXT),
    "dcp_comm_backend": Refused(_CONTEXT),
    "dcp_q_replicate": Refused(_CONTEXT),
    "nnodes": Refused(_ONE_HOST, (1,)),
    "node_rank": Refused(_ONE_HOST, (0,)),
    "master_addr": Refused(_ONE_HOST),
    "master_port": Refused(_ONE_HOST),
    "ray_workers_use_nsight": Refused(_ONE_HOST, (False,)),
    "runner": Refused(_POOLING, ("auto", "generate")),
    "convert": Refused(_POOLING, ("auto", "none")),
    "pooler_config": Refused(_POOLING),
    "io_processor_plugin": Refused(_POOLING),
    "max_lora_cls_labels": Refused(_POOLING),
    "speculative_config": Refused(_SPECULATION),
    "spec_method": Refused(_SPECULATION),
    "spec_model": Refused(_SPECULATION),
    "spec_tokens": Refused(_SPECULATION),
    "per_request_spec_decode_metrics": Refused(_SPECULATION, ("none",)),
    **dict.fromkeys(
        (
            "default_mm_loras",
            "fully_sharded_loras",
            "lora_dtype",
            "lora_target_modules",
            "enable_tower_connector_lora",
            "specialize_active_lora",
            "enable_mixed_moe_lora_format",
            "enable_moe_shared_loras",
        ),
        Refused(_LORA),
    ),
    "kv_offloading_size": Refused(_OFFLOADING),
    "kv_offloading_backend": Refused(_OFFLOADING),
    "ec_transfer_config": Refused("encoders run where the prompt is computed; leave it out"),
    "kv_sharing_fast_prefill": Refused(
        "it leaves KV of the prompt out that the next worker needs; leave it out", (False,)
    ),
    "download_dir": Refused(_FETCHING),
    "hf_token": Refused(_FETCHING),
    "ignore_patterns": Refused(_FETCHING),
    "code_revision": Refused(_FETCHING),
    "tokenizer_revision": Refused("name the folder of that revision as `tokenizer`"),
    "model_weights": Refused("weights and config.json must be in one folder: `model.path`", ("",)),
    "skip_tokenizer_init": Refused(_TOKENIZER, (False,)),
    "tokens_only": Refused(_TOKENIZER, (False,)),
    "enable_prompt_embeds": Refused("prompts travel as tokens; leave it out", (False,)),
    "enable_sleep_mode": Refused(_SLEEP, (False,)),
    "sleep_mode_offload_cudagraph": Refused(_SLEEP, (False,)),
    "sleep_preserve_parameter_names": Refused(_SLEEP),
    "weight_transfer_config": Refused("weights do not change in a running worker; restart it"),
    "diffusion_config": Refused("Baton serves models that generate token by token; leave it out"),
    "reasoning_parser_plugin": Refused("name a parser that vLLM has: `model.reasoning_parser`"),
    "allowed_local_media_path": Refused(
        "the gateway reads no files for clients; leave it out", ("",)
    ),
    "allowed_media_domains": Refused("name the hosts of images in gateway.media_domains"),
    "_api_process_count": Refused("is for vLLM's own processes; leave it out", (1,)),
    "_api_process_rank": Refused("is for vLLM's own processes; leave it out", (0,)),
}

#: By argument, the key of the fleet file that sets it; empty if it is not for users.
OWN_KEYS: dict[str, str] = {
    "model": "model.path",
    "served_model_name": "model.name",
    "dtype": "model.dtype",
    "max_model_len": "model.max_model_len",
    "reasoning_parser": "model.reasoning_parser",
    "block_size": "engine.block_tokens",
    "kv_cache_memory_bytes": "engine.kv_cache_mib",
    "max_num_seqs": "engine.max_num_seqs",
    "max_num_batched_tokens": "engine.max_num_batched_tokens",
    "enable_prefix_caching": "engine.prefix_caching",
    "kv_events_config": "engine.kv_events",
    "kv_transfer_config": "kv",
    "distributed_executor_backend": "",
    "mm_processor_cache_gb": "",
    "disable_hybrid_kv_cache_manager": "",
    "use_tqdm_on_load": "",
}

#: Arguments that change what KV means, or how it lies in memory: they are in the fingerprint, and
#: alike on all workers.
KV_ARGUMENTS = _names(
    """
    attention_backend attention_config config_format disable_sliding_window engram_config
    hf_config_path hf_overrides kv_cache_dtype kv_cache_dtype_skip_layers language_model_only
    load_format mamba_block_size mamba_cache_dtype mamba_cache_mode mamba_config
    mamba_ssm_cache_dtype mm_encoder_attn_dtype mm_encoder_fp8_scale_path mm_processor_kwargs
    model_class_overrides model_impl model_loader_extra_config prefix_match_unit quantization
    quantization_config revision trust_remote_code use_replayssm video_pruning_method
    video_pruning_rate
    """
)

#: Arguments that change how text becomes tokens and back, what a request may ask for and what it
#: gets where it asks for nothing: the gateway's text classes get them, too, and they are alike on
#: all workers.
TEXT_ARGUMENTS = _names(
    """
    config_format generation_config hf_config_path hf_overrides interleave_mm_strings
    language_model_only limit_mm_per_prompt logprobs_mode max_logprobs media_io_kwargs
    mm_processor_kwargs model_class_overrides model_impl override_generation_config
    reasoning_config structured_outputs_config tokenizer tokenizer_mode trust_remote_code
    video_pruning_method video_pruning_rate
    """
)
