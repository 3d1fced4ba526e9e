"""Options of vLLM without effect in this build: one table of flags and what to do instead.

`[OWNER GROUP LEVEL]` opens the rows of a command, a part of one or a JSON option, in a help group;
the default level is absent. A row is options and a remedy or reason; for `replaced`, the option
that is set instead. An option is `name/-alias@alone:type?=default~passing`: alone is the flag of a
key of a JSON option, passing is a further accepted value. A bare name is a switch that is off.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any, cast

from vllm_lite.config.options.option import Becomes, Kind, Option, Rules
from vllm_lite.config.values import Json

_TABLE = """
[engine ModelConfig]
code_revision:str? | leave it out: code from a model repository is never run
allowed_local_media_path:str allowed_media_domains:list? | leave it out: models take text only
enable_prompt_embeds | send text or token ids
logits_processors:list? | use logit_bias, bad_words or allowed_token_ids of a request
logits_processor_pattern:str? | leave it out: code from requests is never run
override_attention_dtype:str? | use --dtype: attention computes in that dtype
model_class_overrides:json | leave it out: model classes are built in
enable_return_routed_experts | leave it out: routed experts are not returned
return_sampling_mask | ask for logprobs with --logprobs-mode processed_logprobs
enable_trace_replay | send those tokens with prompt_logprobs
sleep_mode_offload_cudagraph sleep_preserve_parameter_names:list enable_nccl_comm_suspend | restart
  the server instead
enable_cumem_allocator | leave it out: memory is released when the engine ends
[engine ModelConfig idle]
allow_deprecated_quantization | no quantization method is deprecated
renderer_num_workers:int=1 | use --api-server-count for more tokenizing processes
use_fp64_gumbel | sampling is exact without it
[engine ModelConfig replaced]
task:auto/generate/transcription/draft/embed/embedding/classify/score/reward
  | --runner and --convert
rope_scaling:json | --hf-overrides.rope_scaling
rope_theta:float | --hf-overrides.rope_theta
override_pooler_config:json | --pooler-config
[engine ModelConfig retired]
disable_cascade_attn | a shared prefix is computed once
disable_async_output_proc | outputs are handled outside the engine's process
max_seq_len_to_capture:int max_context_len_to_capture:int | --cudagraph-capture-sizes limits graphs
override_neuron_config:json | there is no Neuron backend
[engine LoadConfig retired]
qlora_adapter_name_or_path:str | adapters are not loaded
[engine VllmConfig]
kv_transfer_config:json? ec_transfer_config:json? | caches are not shared
profiler_config:json | use an external profiler such as py-spy or perf
additional_config:json,str diffusion_config/-dc:json? watermark_config:json? engram_config:json? |
  leave it out: nothing here uses it
ec_manager_config:json | leave it out: models take text only
aux_output_config:json={"enable_return_routed_experts":false} | leave it out: steps return tokens
weight_transfer_config:json? | restart the server with the new weights
[engine ParallelConfig]
enable_expert_parallel all2all_backend:str=allgather_reducescatter enable_eplb
  eplb_config:json={"window_size":1000,"step_interval":3000,"num_redundant_experts":0,
  "log_balancedness":false} expert_placement_strategy:str=linear enable_ep_weight_filter
  enable_elastic_ep elastic_ep_max_dp_size:int? | leave it out: workers share each expert
nnodes/-n:int=1 node_rank/-r:int master_addr:str=127.0.0.1 master_port:int=29501 | leave it out
data_parallel_rank/-dpn:int? data_parallel_start_rank/-dpr:int? data_parallel_size_local/-dpl:int?~1
  data_parallel_address/-dpa:str? data_parallel_rpc_port/-dpp:int? data_parallel_hybrid_lb/-dph
  data_parallel_external_lb/-dpe disable_nccl_for_dp_synchronization
  data_parallel_multi_port_external_lb/-dpm dp_sync_interval:int=16 | run several servers
data_parallel_backend/-dpb:str=mp ray_workers_use_nsight | leave it out: Ray is not used
decode_context_parallel_size/-dcp:int=1 prefill_context_parallel_size/-pcp:int=1
  cp_kv_cache_interleave_size:int=1 dcp_comm_backend:str? dcp_q_replicate:bool? | leave it at 1
enable_dbo ubatch_size:int dbo_decode_token_threshold:int=32 dbo_prefill_token_threshold:int=512
  enable_hc_sp enable_batch_sharded_sampling:bool? enable_shm_tensor_arena | leave it out: workers
  run each step together
worker_cls:str=auto worker_extension_cls:str | leave it out: the worker is built in
device_ids:str?~0 | use CUDA_VISIBLE_DEVICES: the engine runs on the first visible GPU
numa_bind numa_bind_nodes:ints? numa_bind_cpus:list? | set VLLM_CPU_OMP_THREADS_BIND instead
enable_fault_tolerance fault_tolerance_config:json={"engine_recovery_timeout_sec":120} | leave it
  out: a server whose engine dies exits; let a supervisor restart it
[engine ParallelConfig idle]
distributed_timeout_seconds:int? cpu_distributed_timeout_seconds:int? | dead workers are detected
[engine ParallelConfig replaced]
dcp_kv_cache_interleave_size:int | --cp-kv-cache-interleave-size
num_redundant_experts:int | --eplb-config.num_redundant_experts
eplb_window_size:int | --eplb-config.window_size
eplb_step_interval:int | --eplb-config.step_interval
eplb_log_balancedness | --eplb-config.log_balancedness
enable_multimodal_encoder_data_parallel | --mm-encoder-tp-mode data
worker_use_ray | --distributed-executor-backend ray
[engine ParallelConfig retired]
disable_custom_all_reduce | there is one all-reduce
[engine CacheConfig]
calculate_kv_scales | use --kv-cache-dtype fp8_per_token_head or int8, which scale each token
kv_offloading_size:float?~0 kv_offloading_backend:str=native | leave it out: the cache has one tier
kv_sharing_fast_prefill | leave it out: every layer has a cache of its own
enable_mamba_shared_prefix_checkpoint | use --mamba-block-size
use_replayssm replayssm_buffer_len:int=16 | leave it out: states are kept, not their inputs
kv_cache_dtype_skip_layers:list | leave it out: all layers share one cache dtype
prefix_match_unit:int? | use --block-size: a cached prefix ends at a block boundary
prefix_cache_retention_interval:int?~0 | leave it out: full blocks are kept until they are evicted
[engine CacheConfig idle]
mamba_cache_mode:str=none | prefix caching keeps states at block boundaries
swa_bounded_replay=true | sliding windows are cached as they are
[engine CacheConfig retired]
swap_space:float | preempted requests are recomputed
use_v2_block_manager | there is one block manager
quantization_param_path:str | scales come from the checkpoint
[engine MambaConfig]
mamba_backend:str=triton mamba_ssu_algorithm:str? | leave it out: there is one backend
enable_mamba_cache_stochastic_rounding mamba_cache_philox_rounds:int | states stay float32
[engine options]
gdn_prefill_backend:str? kda_prefill_backend:str?~auto kda_decode_backend:str?~auto | leave it out
aggregate_engine_logging | leave it out: there is one engine
[engine MultiModalConfig]
limit_mm_per_prompt:json enable_mm_embeds media_io_kwargs:json mm_processor_kwargs:json?
  mm_processor_cache_gb:float=4.0~0 mm_processor_cache_type:str=lru
  mm_shm_cache_max_object_size_mb:int=128 mm_encoder_tp_mode:str=weights
  mm_encoder_attn_backend:str? interleave_mm_strings skip_mm_profiling video_pruning_rate:float?~0
  video_pruning_method:str=evs mm_encoder_only mm_encoder_attn_dtype:str?
  mm_encoder_fp8_scale_path:str? mm_encoder_fp8_scale_save_path:str?
  mm_encoder_fp8_scale_save_margin:float=1.5 mm_hasher_algorithm:str=blake3
  mm_tensor_ipc:str=direct_rpc mm_ipc_gpu_memory_gb:float mm_device_do_normalize:bool? | send text
[engine MultiModalConfig idle]
language_model_only mm_processor_device:str=auto | models take text only
[engine MultiModalConfig replaced]
disable_mm_preprocessor_cache | --mm-processor-cache-gb 0
[engine MultiModalConfig retired]
image_feature_size:int image_input_shape:str image_token_id:int image_input_type:str | send text
[engine OffloadConfig]
offload_backend:str=auto cpu_offload_params:list offload_group_size:int offload_num_in_group:int=1
  offload_prefetch_step:int=1 offload_params:list | leave it out: weights stay on the device
[engine LoRAConfig]
enable_lora max_loras:int=1 max_lora_rank:int=16 lora_dtype:str=auto max_cpu_loras:int?
  fully_sharded_loras default_mm_loras:json? lora_target_modules:list? enable_tower_connector_lora
  specialize_active_lora enable_mixed_moe_lora_format enable_moe_shared_loras
  max_lora_cls_labels:int? | serve a model with the adapter merged in
[engine LoRAConfig retired]
enable_lora_bias lora_extra_vocab_size:int long_lora_scaling_factors:str | adapters are not loaded
[engine ObservabilityConfig]
show_hidden_metrics_for_version:str? | leave it out: no metric is hidden
collect_detailed_traces:list? | leave it out: --otlp-traces-endpoint traces requests only
kv_cache_metrics kv_cache_metrics_sample:float=0.01 | leave it out: see /metrics
cudagraph_metrics | leave it out: graphs have no metrics
enable_layerwise_nvtx_tracing | run nsys from outside; steps are not marked
enable_mfu_metrics | use `vllm-lite bench`
[engine ObservabilityConfig idle]
jit_monitor_mode:str=warn jit_monitor_verbose | no kernels are compiled while serving
[engine SchedulerConfig]
prefill_schedule_interval:int=1 | leave it at 1: there is one engine
disable_hybrid_kv_cache_manager | leave it out: blocks outside a window are freed
disable_chunked_mm_input | leave it out: models take text only
scheduler_cls:str?~vllm.core.scheduler.Scheduler/vllm.v1.core.sched.scheduler.Scheduler | leave it
  out
[engine SchedulerConfig replaced]
cuda_graph_sizes:ints | --cudagraph-capture-sizes
[engine SchedulerConfig retired]
num_lookahead_slots:int | it follows from --speculative-config
multi_step_stream_outputs:bare num_scheduler_steps:int | steps are scheduled one at a time
preemption_mode:str | preempted requests are recomputed
scheduler_delay_factor:float | prompts are scheduled without delay
[engine StructuredOutputsConfig replaced]
guided_decoding_backend:str | --structured-outputs-config.backend
guided_decoding_disable_fallback | --structured-outputs-config.disable_fallback
guided_decoding_disable_any_whitespace | --structured-outputs-config.disable_any_whitespace
guided_decoding_disable_additional_properties |
  --structured-outputs-config.disable_additional_properties
[engine SpeculativeConfig replaced]
speculative_model:str | --speculative-config.model
num_speculative_tokens:int | --speculative-config.num_speculative_tokens
ngram_prompt_lookup_max:int | --speculative-config.prompt_lookup_max
ngram_prompt_lookup_min:int | --speculative-config.prompt_lookup_min
speculative_disable_by_batch_size:int |
  --speculative-config.num_speculative_tokens_per_batch_size
speculative_max_model_len:int | --speculative-config.max_model_len
speculative_model_quantization:str | --speculative-config.quantization
speculative_draft_tensor_parallel_size/-spec-draft-tp:int |
  --speculative-config.draft_tensor_parallel_size
[engine SpeculativeConfig retired]
speculative_disable_mqa_scorer spec_decoding_acceptance_method:str
  typical_acceptance_sampler_posterior_alpha:float
  typical_acceptance_sampler_posterior_threshold:float | drafts are compared with samples
disable_logprobs_during_spec_decoding:bare | logprobs are returned on request
[engine PromptAdapterConfig retired]
enable_prompt_adapter max_prompt_adapters:int max_prompt_adapter_token:int | there are none
[engine TokenizerPoolConfig retired]
tokenizer_pool_size:int tokenizer_pool_type:str tokenizer_pool_extra_config:json | threads tokenize
[--kernel-config KernelConfig]
ir_op_priority@:json linear_backend_per_quant:json? | leave it out: kernels are built in
linear_backend@:str=auto moe_backend@:str=auto sparse_indexer_topk_backend@:str=auto | leave it out
[--kernel-config KernelConfig idle]
enable_flashinfer_autotune@:bool? enable_rocm_segmented_attn_autotune | kernels need no tuning
enable_cutedsl_warmup=true enable_jit_warmup=true | nothing is compiled
[--attention-config AttentionConfig]
flash_attn_version:int? use_cudnn_prefill use_trtllm_attention:bool? | leave it out
[--speculative-config VllmConfig]
use_heterogeneous_vocab | use a draft model with the same vocabulary
parallel_drafting | leave it out: drafts are made one after another
code_revision:str? | leave it out: code from a model repository is never run
tensor_parallel_size:int? | use draft_tensor_parallel_size
kv_cache_dtype:str? | leave it out: draft models share the cache of --kv-cache-dtype
enforce_eager:bool? attention_backend:str? moe_backend:str? | leave it out: draft models run as the
  model does
enable_adaptive_verification dspark_draft_topk:int? index_share_for_mtp_iteration:bool? | leave it
  out: they are for methods that are not available
[--speculative-config VllmConfig idle]
disable_padded_drafter_batch disable_eagle_block_drop use_local_argmax_reduction | drafts are
  neither padded nor dropped
[--compilation-config CompilationConfig idle]
mode:int,str? level:int? backend:str custom_ops:list splitting_ops:list? use_inductor:bool?
  compile_sizes:items? inductor_compile_config:json cache_dir:str pass_config:json | not compiled
full_cuda_graph:bool? | only whole decode steps are captured
cudagraph_num_of_warmups:int | each size runs once before capture
[replies Frontend]
trust_request_mm_kwargs | leave it out: models take text only
tokens_only enable_scale_out | send token ids to /v1/completions with return_token_ids
lora_modules:list | serve a model with the adapter merged in
tool_server:str? | leave it out: clients run tools themselves
[replies Frontend idle]
cohere_format:str=cmd4 cohere_is_reasoning_model=true | there is no /cohere/v2/chat
[replies options replaced]
disable_log_requests | --enable-log-requests, or nothing: requests are not logged by default
[server Frontend idle]
enable_offline_docs | /docs and /redoc are always self-contained
enable_flash_late_interaction=true | scores are computed outside the engine
[server Frontend]
grpc_port:int? | use the HTTP API
data_parallel_supervisor_port:int=9256 dp_supervisor_probe_interval_s:float=5.0
  dp_supervisor_probe_timeout_s:float=5.0 dp_supervisor_probe_failure_threshold:int=3 | leave it out
[server options]
grpc | use the HTTP API
headless | leave it out: an engine runs on one machine
[server options retired]
engine_use_ray | the engine has a process of its own
[run-batch Frontend idle]
enable_server_load_tracking | a batch has no /load; use --enable-metrics
enable_tokenizer_info_endpoint | a batch serves no such route
sse_keep_alive_interval:int | a batch streams nothing
[run-batch options idle]
shutdown_timeout:int | continue an interrupted batch with --resume
[chat options]
image:str? | leave it out: models take text only
[bench options idle]
shutdown_timeout:int | an interrupted benchmark ends at once
[latency options]
profile | use an external profiler such as py-spy or perf
[throughput options]
enable_log_requests | leave it out: all requests of a benchmark have the same parameters
hf_max_batch_size:int? hf_enable_torch_compile | time other engines with bench serve
lora_path:str? | measure a model with the adapter merged in
profile | use an external profiler such as py-spy or perf
[throughput options idle]
lora_assignment:str=random | there is no --lora-path
[datasets dataset]
hf_subset:str? hf_split:str? hf_name:str? hf_output_len:int? stream=true blazedit_min_distance:float
  blazedit_max_distance:float=1.0 bfcl_categories:str? speed_bench_dataset_subset:str=qualitative
  speed_bench_output_len:int=4096 speed_bench_category:str? | use --dataset-name custom with a file
enable_multimodal_chat custom_ensure_client_side_data random_mm_base_items_per_request:int=1
  random_mm_num_mm_items_range_ratio:float
  random_mm_limit_mm_per_prompt:json={"image":255,"video":1} random_mm_bucket_config:str={(256, 256,
  1): 0.5, (720, 1280, 1): 0.5, (720, 1280, 16): 0.0} asr_min_audio_len_sec:float
  asr_max_audio_len_sec:float? | only text is sent: use --dataset-name random or custom
reranker=true | leave it out: a query counts with each document, as cross-encoders read it
"""

_ITEMS = {"list": str, "ints": int, "items": Any}
_TYPES = {"int": int, "size": int, "float": float, "str": str, "json": dict, "bool": bool}
_REASONS = {"absent": "remedy", "idle": "why", "retired": "retired", "replaced": "deprecated"}
_SPEC = re.compile(r"(\w+)(?:/(-[\w-]+))?(@\w*)?(?::([\w,/]+))?(\?)?(?:=([^~]*))?(?:~(.*))?")


def _task(value: str) -> Json:
    if value in ("auto", "generate", "transcription", "draft"):
        return {} if value == "auto" else {"runner": value.replace("transcription", "generate")}
    return {"runner": "pooling", "convert": _CONVERSIONS.get(value, value)}


def _draft_model(value: str) -> Json:
    is_ngram = value == "[ngram]"
    return (
        {"speculative_config.method": "ngram"} if is_ngram else {"speculative_config.model": value}
    )


def _graph_sizes(value: list[int]) -> Json:
    # One number was the largest size; several were the sizes.
    if len(value) == 1:
        return {"max_cudagraph_capture_size": value[0]}
    return {"cudagraph_capture_sizes": value}


_CONVERSIONS = {"embedding": "embed", "score": "classify"}
# Replaced options whose value does not simply move.
_BECOMES: dict[str, Becomes] = {
    "task": _task,
    "speculative_model": _draft_model,
    "speculative_disable_by_batch_size": lambda most: {
        "speculative_config.num_speculative_tokens_per_batch_size": [[most + 1, 1 << 20, 0]]
    },
    "cuda_graph_sizes": _graph_sizes,
    "disable_log_requests": lambda is_off: {"enable_log_requests": not is_off},
}


@cache
def rows(owner: str) -> tuple[Option, ...]:
    """The options without effect of one owner, with `--` the keys of a JSON option."""
    found: list[Option] = []
    for line in _TABLE.strip().replace("\n  ", " ").splitlines():
        if line.startswith("["):
            whose, group, level = (*line.strip("[]").split(), "absent")[:3]
        elif whose == owner:
            specs, _, reason = line.rpartition(" | ")
            names = re.findall(r"(?:\{.*?\}|\S)+", specs)
            found += [_row(name, owner, group, level, reason) for name in names]
    return tuple(found)


def _row(spec: str, owner: str, group: str, level: str, reason: str) -> Option:
    match = _SPEC.fullmatch(spec)
    assert match is not None, spec
    name, alias, alone, types, optional, default, passing = match.groups()
    is_old = level in ("retired", "replaced")
    kind = _kind(types or "bool", is_optional=is_old or optional is not None)
    rules: Json = {_REASONS[level]: reason, "aliases": (alias,) if alias else ()}
    rules |= {"bare": types == "bare", "human": types == "size"}
    rules |= {} if is_old else {"level": level}
    rules |= {"alone": alone[1:] or name} if alone else {}
    rules |= {"works": tuple(_value(word, kind) for word in passing.split("/"))} if passing else {}
    if level == "replaced":
        rules["becomes"] = _BECOMES.get(name) or _moved(reason)
    value = _value(default, kind) if default else None if kind.optional else kind.types[0]()
    parent = owner if owner.startswith("--") else ""
    return Option(name, group, "", kind, value, value, cast(Rules, rules), parent=parent)


def _kind(word: str, *, is_optional: bool) -> Kind:
    if word == "bare":
        return Kind((bool, str), None, True, (True, "true", "True", "false", "False"))
    if "/" in word:
        return Kind((str,), None, is_optional, tuple(word.split("/")))
    types = tuple(list if item in _ITEMS else _TYPES[item] for item in word.split(","))
    return Kind(types, _ITEMS.get(word), is_optional, ())


def _value(text: str, kind: Kind) -> Any:
    return text if kind.types[0] is str else json.loads(text)


def _moved(target: str) -> Becomes:
    """A value moves to `--flag.key`; a switch that is on sets `--flag value`."""
    flag, _, setting = target.removeprefix("--").partition(" ")
    name, dot, key = flag.partition(".")
    whole = name.replace("-", "_") + dot + key
    if not setting:
        return lambda value: {whole: value}
    new = float(setting) if setting.isdigit() else setting
    return lambda is_on: {whole: new} if is_on else {}
