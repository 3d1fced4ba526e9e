"""Options of vLLM that have no effect in this build: absent ones are refused, idle ones told of.

How a table is read is said in `rows`.
"""

from __future__ import annotations

from vllm_lite.config.option import JsonOption, json_option
from vllm_lite.config.rows import rows

_ENGINE = """
[ModelConfig, after revision] leave it out: no model code of a repository runs here
code_revision str? | Branch, tag or commit of the model code in a hub repository.
[ModelConfig, after override_generation_config] leave it out: with --runner pooling a vector is
  the last token's hidden state
pooler_config json? | JSON: how hidden states become an embedding or a class.
io_processor_plugin str? | Plugin that converts inputs and outputs of pooling models.
[ModelConfig] leave it out: models read text here
allowed_local_media_path str | Directory that requests may read media files from.
allowed_media_domains list? | Hosts that media may be fetched from.
[ModelConfig] send text or token ids
enable_prompt_embeds bool | Take embeddings in place of prompts.
[ModelConfig] use logit_bias, bad_words or allowed_token_ids of a request
logits_processors list? | Import paths of logits processors for every request.
[ModelConfig] leave it out: requests cannot bring code here
logits_processor_pattern str? | Expression that import paths of a request's logits processors must
  match.
[ModelConfig] use --dtype: attention computes in its numbers
override_attention_dtype str? | Numbers that attention is computed in.
[ModelConfig] use a checkpoint that is quantised as you want it
quantization_config json? | JSON: how each part of the model is quantised.
[ModelConfig, idle] no method here is deprecated
allow_deprecated_quantization bool | Take methods that are deprecated.
[ModelConfig] leave it out: models are this package's own
model_class_overrides json | JSON: import paths of classes for architectures.
[ModelConfig, idle] long texts are tokenised in as many threads as are needed; for more processes
  use --api-server-count
renderer_num_workers int >=1 =1 | Threads that make prompts out of requests.
[ModelConfig] leave it out: the experts of tokens stay in the worker
enable_return_routed_experts bool | Tell the experts of each token.
[ModelConfig] ask for logprobs with --logprobs-mode processed_logprobs
return_sampling_mask bool | Tell the tokens that each draw was among.
[ModelConfig] use prompt_logprobs of a request with those tokens
enable_trace_replay bool | Generate given tokens again.
[ModelConfig, idle] a token is drawn as exactly as its probabilities are
use_fp64_gumbel bool | Draw tokens with noise of double precision.
[ModelConfig] stop the server and start it again
sleep_mode_offload_cudagraph bool | Give the memory of captured graphs back too.
sleep_preserve_parameter_names list | Weights that stay while the engine sleeps.
[ModelConfig] leave it out: the engine keeps its memory until it ends
enable_cumem_allocator bool | Allocate GPU memory so that it can be given back.
[ModelConfig] stop the server and start it again
enable_nccl_comm_suspend bool | Give the memory of NCCL back too.
[LoadConfig, after safetensors_load_strategy] use safetensors or GGUF weights: pickled ones are
  not read here
pt_load_map_location str,json =cpu | Device of pickled checkpoints' tensors.
[LoadConfig] leave it out: the loaders here have no further settings
model_loader_extra_config json | JSON for the loader that --load-format names.
[LoadConfig, idle, after use_tqdm_on_load] weight files are mapped into memory and read as they
  are used
safetensors_prefetch_num_threads int >=1 =8 | Threads that read weight files ahead.
safetensors_prefetch_block_size int >=1 human =16777216 | Bytes of one such read.
[VllmConfig] leave it out: engines share no cache here
kv_transfer_config json? | JSON: how cached blocks travel between engines.
kv_events_config json? | JSON: where changes of the cache are published.
ec_transfer_config json? | JSON: how encoder outputs travel between engines.
[VllmConfig] leave it out and use a profiler from outside, such as py-spy or perf
profiler_config json | JSON: what profiles steps and where it writes.
[VllmConfig] leave it out: no platform here has further settings
additional_config json,str | JSON for a platform of its own.
[VllmConfig] leave it out: models here generate one token after another
diffusion_config json? -dc | JSON: how a model that denoises text generates.
[VllmConfig] leave it out: text carries no mark here
watermark_config json? | JSON: a mark in the choice of tokens that tells generated text.
[VllmConfig] leave it out: models read text here
ec_manager_config json | JSON: what keeps the outputs of media encoders.
[VllmConfig] leave it out: no model here has such a table
engram_config json? | JSON: where a model's table of phrases is kept.
[VllmConfig] leave it out: a step tells tokens and their log-probabilities
aux_output_config json ={"enable_return_routed_experts": false} | JSON: what else of a step is
  told.
[VllmConfig] start a server with the new weights
weight_transfer_config json? | JSON: how new weights come while the engine runs.
[ParallelConfig, first] leave it out: every worker has a part of each expert
enable_expert_parallel bool | Give each worker whole experts.
all2all_backend allgather_reducescatter/deepep_high_throughput/deepep_low_latency/deepep_v2/
  flashinfer_all2allv/flashinfer_nvlink_one_sided/flashinfer_nvlink_two_sided/moonep/
  mori_high_throughput/mori_low_latency/naive/nixl_ep/pplx =allgather_reducescatter | How tokens
  travel between experts.
enable_eplb bool | Move experts between workers while serving.
eplb_config json ={"window_size": 1000, "step_interval": 3000, "num_redundant_experts": 0,
  "log_balancedness": false} | JSON: how experts are moved.
expert_placement_strategy linear/round_robin =linear | How experts are laid out.
enable_ep_weight_filter bool | Read a worker's own experts alone.
enable_elastic_ep bool | Add and take away workers of experts.
elastic_ep_max_dp_size int? >=1 | Most engines of those.
[ParallelConfig, after distributed_executor_backend] leave it out: an engine runs on one machine
nnodes int >=1 -n =1 | Machines that one engine runs on.
node_rank int >=0 -r | Index of this machine among them.
master_addr str =127.0.0.1 | Address at which the machines meet.
master_port int >=0 <=65535 =29501 | Port at which the machines meet.
[ParallelConfig] leave it out and run several servers behind a balancer
data_parallel_rank int? >=0 -dpn | Index of this engine, where a balancer of yours divides
  requests.
data_parallel_start_rank int? >=0 -dpr | Index of the first engine on this machine.
data_parallel_size_local int? >=0 -dpl works:1 | Engines on this machine.
data_parallel_address str? -dpa | Address of the machine that coordinates the engines.
data_parallel_rpc_port int? >=0 <=65535 -dpp | Port of the coordinator.
[ParallelConfig] leave it out: Ray is not used
data_parallel_backend mp/ray -dpb =mp | What starts the engines.
[ParallelConfig] leave it out and run several servers behind a balancer
data_parallel_hybrid_lb bool -dph | Balance among the engines of each machine, yourself among
  machines.
data_parallel_external_lb bool -dpe | Give every engine an address of its own, for a balancer of
  yours.
[ParallelConfig] leave it at 1: the model runs on one device
decode_context_parallel_size int >=1 -dcp =1 | Workers that share the cached context of a request.
prefill_context_parallel_size int >=1 -pcp =1 | Workers that share the prefill of a prompt.
cp_kv_cache_interleave_size int >=1 =1 | Tokens in a row on a worker where context is shared.
[ParallelConfig] leave it out: workers here do all of each step together
enable_dbo bool | Compute one half of a batch while the other communicates.
ubatch_size int >=0 | Parts of a batch where they overlap.
dbo_decode_token_threshold int >=0 =32 | Fewest tokens of a batch of decodes to divide.
dbo_prefill_token_threshold int >=0 =512 | Fewest tokens of a batch with prefills to divide.
[ParallelConfig] leave it out and run several servers behind a balancer
disable_nccl_for_dp_synchronization bool | Coordinate engines over the CPU.
[ParallelConfig] leave it out: workers here do all of each step together
max_parallel_loading_workers int? >=1 works:1 | Workers that load weights at a time.
[ParallelConfig] leave it out: Ray is not used
ray_workers_use_nsight bool | Profile Ray workers with Nsight.
[ParallelConfig] leave it at auto: the worker is this package's own
worker_cls str =auto | Import path of a worker class.
[ParallelConfig] leave it out: the worker is this package's own
worker_extension_cls str | Import path of a class whose methods the worker gets.
[ParallelConfig] use CUDA_VISIBLE_DEVICES: an engine runs on the first GPU that it sees
device_ids str? works:0 | Devices to use, by index.
[ParallelConfig] set VLLM_CPU_OMP_THREADS_BIND to the CPUs of the engine
numa_bind bool | Keep workers on the CPUs near their GPU.
numa_bind_nodes ints? | NUMA node of each worker.
numa_bind_cpus list? | CPUs of each worker.
[ParallelConfig, idle] a worker that does not answer is known by what its process does
distributed_timeout_seconds int? >=1 | Seconds that workers wait for each other.
cpu_distributed_timeout_seconds int? >=1 | The same for groups over the CPU.
[ParallelConfig] leave it at 1: the model runs on one device
dcp_comm_backend a2a/ag_rs? | How workers that share context talk.
dcp_q_replicate bool? | Give each of them all queries.
[ParallelConfig] leave it out and run several servers behind a balancer
data_parallel_multi_port_external_lb bool -dpm | Give every engine a port of its own, for a
  balancer of yours.
dp_sync_interval int >=1 =16 | Steps between two agreements of engines.
[ParallelConfig] leave it out: workers here do all of each step together
enable_hc_sp bool | Divide hyper-connections among workers.
enable_batch_sharded_sampling bool? | Divide sampling among workers.
enable_shm_tensor_arena bool | Send tensors to workers in shared memory.
[ParallelConfig] leave it out: a server whose engine dies ends, for a supervisor to start it again
enable_fault_tolerance bool | Start an engine that died again.
fault_tolerance_config json ={"engine_recovery_timeout_sec": 120} | JSON: how that is done.
[CacheConfig, after cpu_offload_gb] leave it out, and use --kv-cache-dtype fp8_per_token_head or
  int8 for scales that do not depend on which prompt came first
calculate_kv_scales bool | Derive the scales of an fp8 cache while running.
[CacheConfig] leave it out: the cache has one tier
kv_offloading_size float? >=0 works:0 | GiB of host memory as a second tier of the cache.
kv_offloading_backend native/lmcache =native | What keeps the second tier.
[CacheConfig] leave it out: every layer has a cache of its own
kv_sharing_fast_prefill bool | Skip the prefill of layers that share a cache.
[CacheConfig, idle, after mamba_block_size] prefix caching keeps states where blocks end, and
  nothing else does
mamba_cache_mode align/none =none | Which states are kept for later requests.
[CacheConfig] use --mamba-block-size: states are kept every so many tokens
enable_mamba_shared_prefix_checkpoint bool | Keep the state where prompts part, too.
[CacheConfig] leave it out: states are kept, not the inputs that led to them
use_replayssm bool | Keep inputs in place of states.
replayssm_buffer_len int >=1 =16 | How many inputs.
[CacheConfig] leave it out: the cache of all layers is of one kind
kv_cache_dtype_skip_layers list | Layers whose cache keeps the numbers of --dtype.
[CacheConfig] use --block-size: a cached prefix ends where a block does
prefix_match_unit int? >=1 | Tokens after which a cached prefix may end.
[CacheConfig] leave it out: every full block is kept until its memory is wanted
prefix_cache_retention_interval int? >=0 works:0 | Tokens between two places at which a cached
  prefix of sliding windows may end.
[CacheConfig, idle] windows are cached as they are
swa_bounded_replay bool =true | Compute a hit's last window again instead of keeping it.
[MambaConfig] leave it out: each device has one set of kernels for state-space layers
mamba_backend triton/flashinfer/cpu =triton | Library of the state's update.
mamba_ssu_algorithm auto/horizontal/simple/vertical? | How FlashInfer updates the state.
[MambaConfig] leave it out: states are float32 and never rounded
enable_mamba_cache_stochastic_rounding bool | Round the stored state at random.
mamba_cache_philox_rounds int >=0 | Rounds of the generator of that randomness.
[options, first] leave it out: no model here has delta layers
gdn_prefill_backend flashinfer/triton/cutedsl/aiter_flydsl? | Library of gated delta layers'
  prefill.
kda_prefill_backend auto/triton/flashkda/flashinfer/fused? works:auto | Library of Kimi delta
  layers' prefill.
kda_decode_backend auto/native/flashinfer/triton? works:auto | Library of their decoding.
[options, after disable_log_stats] leave it out: there is one engine, with one line
aggregate_engine_logging bool | Print one line of statistics for all engines.
[MultiModalConfig] leave it out: models read text here
limit_mm_per_prompt json | JSON: most items of each kind in a prompt.
enable_mm_embeds bool | Take embeddings in place of media.
media_io_kwargs json | JSON: how each kind of media is read.
mm_processor_kwargs json? | JSON for the model's media processor.
mm_processor_cache_gb float >=0 works:0 =4.0 | GiB of processed media to keep; 0: none.
mm_processor_cache_type lru/shm =lru | Where processed media are kept.
mm_shm_cache_max_object_size_mb int >=0 =128 | Largest item of the shared cache, in MiB.
mm_encoder_tp_mode weights/data =weights | What of a media encoder is divided among workers.
mm_encoder_attn_backend str? | Attention kernel of media encoders.
interleave_mm_strings bool | Keep media where they stand in the text.
skip_mm_profiling bool | Reserve no memory for media encoders.
video_pruning_rate float? >=0 <=1 works:0 | Share of a video's tokens to drop.
video_pruning_method evs/vidcom2 =evs | How they are chosen.
[MultiModalConfig, idle] models read text alone here
language_model_only bool | Take no media, though the model could.
[MultiModalConfig] leave it out: models read text here
mm_encoder_only bool | Run the media encoder alone.
mm_encoder_attn_dtype fp8/? | Numbers that media encoders attend in.
mm_encoder_fp8_scale_path str? | File of their scales.
mm_encoder_fp8_scale_save_path str? | File to write found scales to.
mm_encoder_fp8_scale_save_margin float >0 =1.5 | Factor of safety of those.
mm_hasher_algorithm blake3/sha256/sha512 =blake3 | Hash that identifies a media item.
mm_tensor_ipc direct_rpc/torch_shm =direct_rpc | How media travel to the engine.
[MultiModalConfig, idle] models read text alone here
mm_processor_device auto/cpu =auto | Where media are processed.
[MultiModalConfig] leave it out: models read text here
mm_ipc_gpu_memory_gb float >=0 | GiB of GPU memory for media on their way.
mm_device_do_normalize bool? | Normalise images on the device.
[OffloadConfig] leave it out: weights are where they are computed
offload_backend auto/prefetch/uva =auto | How weights come to the device.
cpu_offload_params list | Parts of the names of weights that --cpu-offload-gb may move.
offload_group_size int >=0 | Layers in a group whose last ones are moved.
offload_num_in_group int >=1 =1 | Layers of each group that are moved.
offload_prefetch_step int >=0 =1 | Layers that are fetched ahead.
offload_params list | Parts of the names of weights to move in those layers.
[LoRAConfig] leave it out and serve a model that the adapter was merged into
enable_lora bool | Let requests choose an adapter.
max_loras int >=1 =1 | Most adapters in one step.
max_lora_rank 1/8/16/32/64/128/256/320/512 =16 | Highest rank of an adapter.
lora_dtype auto/float16/bfloat16/float32 =auto | Numbers of adapter weights.
max_cpu_loras int? >=1 | Adapters to keep in host memory.
fully_sharded_loras bool | Divide the adapters' whole computation among workers.
default_mm_loras json? | JSON: the adapter of each kind of media.
lora_target_modules list? | Layers that adapters change.
enable_tower_connector_lora bool | Let adapters change media encoders.
specialize_active_lora bool | Capture graphs for each number of adapters.
enable_mixed_moe_lora_format bool | Take adapters of experts in both layouts.
enable_moe_shared_loras bool | Share the adapters of experts.
max_lora_cls_labels int? >=1 | Most classes of an adapter that classifies.
[ObservabilityConfig, first] leave it out: no metric is hidden
show_hidden_metrics_for_version str? | Show metrics that were hidden since a version.
[ObservabilityConfig, after otlp_traces_endpoint] leave it out: --otlp-traces-endpoint sends spans
  of requests, not of the engine
collect_detailed_traces list:model/worker/all/model,worker/model,all/worker,model/worker,all/
  all,model/all,worker? | Parts of the engine to trace.
[ObservabilityConfig] leave it out; /metrics has the cache's use and hits
kv_cache_metrics bool | Measure how long cache blocks live and are reused.
kv_cache_metrics_sample float >0 <=1 =0.01 | Share of blocks to measure.
[ObservabilityConfig] leave it out: no graphs are captured here
cudagraph_metrics bool | Measure how steps fit captured graphs.
[ObservabilityConfig] leave it out and use nsys from outside: steps are not marked
enable_layerwise_nvtx_tracing bool | Mark each layer for NVIDIA's profilers.
[ObservabilityConfig] leave it out: use `vllm-lite bench`
enable_mfu_metrics bool | Estimate the use of computing power and bandwidth.
[ObservabilityConfig, idle] drafts are counted for the engine as a whole, in its metrics and its
  log
per_request_spec_decode_metrics none/summary/detailed =none | Report a request's own drafts in its
  reply.
[ObservabilityConfig, idle, after enable_logging_iteration_details] no kernel is compiled while
  serving
jit_monitor_mode error/warn =warn | What a kernel compiled while serving causes.
jit_monitor_verbose bool | Log every kernel compiled while serving.
[SchedulerConfig, after watermark] leave it at 1: there is one engine
prefill_schedule_interval int >=1 =1 | Steps between two that begin prompts, alike in all engines.
[SchedulerConfig, after async_scheduling] leave it out: blocks past a window are given back
disable_hybrid_kv_cache_manager bool | Keep as much of every layer's cache, whatever its window.
[SchedulerConfig] leave it out: models read text here
disable_chunked_mm_input bool | Compute a media item in one step.
[SchedulerConfig] leave it out: the scheduler is this package's own
scheduler_cls str? works:vllm.core.scheduler.Scheduler/vllm.v1.core.sched.scheduler.Scheduler |
  Import path of a scheduler class.
"""

_KERNEL_KEYS = """
[KernelConfig] leave it out: the fastest kernels of this package are chosen at start
ir_op_priority json alone | JSON: for each small operation, libraries in order of preference.
[KernelConfig] leave it at auto: the fastest kernels of this package are chosen at start
linear_backend aiter/auto/b12x/conch/cutlass/deep_gemm/emulation/exllama/fbgemm/flashinfer_b12x/
  flashinfer_cudnn/flashinfer_cutedsl/flashinfer_cutlass/flashinfer_trtllm/humming/machete/marlin/
  torch/triton/xpu/xpu_woq alone =auto | Library of quantised matrix products.
[KernelConfig] leave it out: the fastest kernels of this package are chosen at start
linear_backend_per_quant json? | The same for each way of quantising.
[KernelConfig] leave it at auto: each device has one implementation of experts
moe_backend aiter/aiter_mega_moe/aiter_triton_mxfp4_bf16/auto/b12x/batched_triton/cutlass/
  deep_gemm/deep_gemm_mega_moe/emulation/flashinfer_b12x/flashinfer_cutedsl/flashinfer_cutlass/
  flashinfer_moe_ep_cutedsl/flashinfer_moe_ep_mega_deep_gemm/flashinfer_trtllm/flydsl/hpc/humming/
  marlin/rdna3/triton/triton_unfused alone =auto | Library of experts' products.
[KernelConfig] leave it at auto: no model here has sparse attention
sparse_indexer_topk_backend aiter/auto/cooperative/deep_select/flashinfer/per_row/persistent/torch
  alone =auto | What picks the tokens of sparse attention.
[KernelConfig, idle] the kernels of this package need no tuning
enable_flashinfer_autotune bool? alone | Tune FlashInfer's kernels at start.
enable_rocm_segmented_attn_autotune bool | Tune attention on ROCm at start.
[KernelConfig, idle] nothing is compiled at start
enable_cutedsl_warmup bool =true | Compile CuTe kernels at start.
enable_jit_warmup bool =true | Compile what is compiled late at start.
"""
_KERNEL = JsonOption(
    "kernel_config", "JSON: which library computes what, and what is tuned at start."
)

ATTENTION_KEYS = rows(
    """
[AttentionConfig] leave it out: it tunes kernels of other packages, which choose for themselves
  here
flash_attn_version 2/3/4? | Version of FlashAttention.
use_cudnn_prefill bool | Compute prefills with cuDNN.
use_trtllm_attention bool? | Use the kernels of TensorRT-LLM.
""",
    parent="--attention-config",
)

SPECULATIVE_KEYS = rows(
    """
[VllmConfig] leave it out and set method to ngram, which drafts from the text itself
model str? alone:spec_model | Model that drafts tokens.
""",
    parent="--speculative-config",
)

COMPILATION_KEYS = rows(
    """
[CompilationConfig, idle, first] models are not compiled, as kernels are written for what they do
mode int,str? | Compilation mode, 0 to 3 or by name.
level int? >=0 <=3 | Compilation mode, as releases before 0.11 called it.
backend str | Compiler backend.
custom_ops list | Operations to turn on (+name) or off (-name).
splitting_ops list? | Operations at which graphs are divided.
use_inductor bool? | Compile with Inductor.
compile_sizes items? | Batch sizes to compile for.
inductor_compile_config json | Settings of Inductor.
cache_dir str | Directory for compiled code.
pass_config json | Passes over the compiled graph.
[CompilationConfig, idle] decode steps are captured whole, and nothing else is captured
full_cuda_graph bool? | Capture whole steps.
[CompilationConfig, idle, after cudagraph_mode] each size is run once before it is captured
cudagraph_num_of_warmups int >=0 | Runs before capture.
""",
    parent="--compilation-config",
)

ENGINE = (
    *rows(_ENGINE),
    *json_option(
        _KERNEL, "VllmConfig", rows(_KERNEL_KEYS, parent="--kernel-config"), "reasoning_config"
    ),
)

REPLIES = rows("""
[Frontend, after anthropic_disabled_thinking_effort] leave it out: models read text here
trust_request_mm_kwargs bool | Let requests say how media are processed.
[Frontend, idle] there is no /cohere/v2/chat
cohere_format str =cmd4 | Prompt format of --tokenizer-mode cohere.
cohere_is_reasoning_model bool =true | Reasoning is a part of its own at /cohere/v2/chat.
[Frontend] send token ids as prompt to /v1/completions, with return_token_ids
tokens_only bool | Serve the routes that take and give token ids alone.
enable_scale_out bool | Serve routes that render prompts and generate from token ids.
[Frontend] serve a model that the adapter was merged into
lora_modules list | Adapters to serve, as NAME=PATH.
[Frontend] leave it out: clients run the tools that are called
tool_server str? | Servers of tools for the Responses API.
""")

SERVER = rows("""
[Frontend, idle] /docs and /redoc never load anything from elsewhere
enable_offline_docs bool | Serve docs pages that load nothing from elsewhere.
[Frontend, idle] no model here scores
enable_flash_late_interaction bool =true | Score late interaction on a GPU.
[options, after disable_log_requests] leave it out and use the HTTP API
grpc bool | Serve gRPC in place of HTTP.
[Frontend] leave it out and use the HTTP API
grpc_port int? >=0 <=65535 | Port of gRPC beside HTTP.
[Frontend] leave it out and run several servers behind a balancer
data_parallel_supervisor_port int >=0 <=65535 =9256 | Port that tells of the health of all
  engines.
dp_supervisor_probe_interval_s float >0 =5.0 | Seconds between two looks at it.
dp_supervisor_probe_timeout_s float >0 =5.0 | Seconds before an engine is asked again.
dp_supervisor_probe_failure_threshold int >=1 =3 | Failures after which it counts as ill.
[options] leave it out: an engine runs on one machine
headless bool | Run engines on a further machine, without HTTP.
""")

BATCH = rows("""
[Frontend, idle] a batch has no /load; --enable-metrics tells of running requests
enable_server_load_tracking bool | Report running requests at /load.
[Frontend, idle] a batch has no such route
enable_tokenizer_info_endpoint bool | Publish the tokenizer's configuration.
[Frontend, idle] a batch streams nothing
sse_keep_alive_interval int >=0 | Seconds after which a silent stream sends a comment.
[options, idle] a batch that is interrupted continues with --resume
shutdown_timeout int >=0 | Seconds that running requests may take to finish after SIGTERM.
""")
