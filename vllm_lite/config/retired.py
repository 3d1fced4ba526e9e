"""Options of older releases: each warns, and sets what replaced it where there is something.

How a table is read is said in `rows`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_lite.config.option import Becomes
from vllm_lite.config.rows import rows

_TASKS: dict[str, dict[str, Any]] = {
    "auto": {},
    "generate": {"runner": "generate"},
    "transcription": {"runner": "generate"},
    "draft": {"runner": "draft"},
    "embed": {"runner": "pooling", "convert": "embed"},
    "embedding": {"runner": "pooling", "convert": "embed"},
    "classify": {"runner": "pooling", "convert": "classify"},
    "score": {"runner": "pooling", "convert": "classify"},
    "reward": {"runner": "pooling", "convert": "reward"},
}


def _if_true(target: str, value: Any) -> Becomes:
    """Where the switch is on, `target` is `value`."""
    return lambda is_on: {target: value} if is_on else {}


def _speculative_model(value: str) -> Mapping[str, Any]:
    if value == "[ngram]":
        return {"speculative_config.method": "ngram"}
    return {"speculative_config.model": value}


def _capture_sizes(value: list[int]) -> Mapping[str, Any]:
    # One number was the largest size; several were the sizes.
    if len(value) == 1:
        return {"max_cudagraph_capture_size": value[0]}
    return {"cudagraph_capture_sizes": value}


# What to use instead of an option, and what its value becomes.
_REPLACED: dict[str, tuple[str, Becomes]] = {
    "task": ("--runner and --convert", _TASKS.__getitem__),
    "enable_multimodal_encoder_data_parallel": (
        "--mm-encoder-tp-mode data",
        _if_true("mm_encoder_tp_mode", "data"),
    ),
    "worker_use_ray": (
        "--distributed-executor-backend ray",
        _if_true("distributed_executor_backend", "ray"),
    ),
    "disable_mm_preprocessor_cache": (
        "--mm-processor-cache-gb 0",
        _if_true("mm_processor_cache_gb", 0.0),
    ),
    "cuda_graph_sizes": ("--cudagraph-capture-sizes", _capture_sizes),
    "speculative_model": ("--speculative-config.model", _speculative_model),
    "disable_log_requests": (
        "--enable-log-requests, or nothing: requests are not logged by themselves",
        lambda is_off: {"enable_log_requests": not is_off},
    ),
}

RETIRED_ENGINE = rows(
    """
[ModelConfig, replaced]
task auto/generate/transcription/draft/embed/embedding/classify/score/reward | What the model is
  for.
rope_scaling json to:hf_overrides.rope_scaling | JSON that replaces the rotary scaling.
rope_theta float >0 to:hf_overrides.rope_theta | Rotary base frequency.
override_pooler_config json to:pooler_config | JSON of the pooler.
[ModelConfig, retired] a shared prefix is computed once and read by each request
disable_cascade_attn bool | Compute shared prefixes for each request.
[ModelConfig, retired] outputs are handled in a process of their own
disable_async_output_proc bool | Handle outputs between steps.
[ModelConfig, retired] no graphs are captured
max_seq_len_to_capture int | Longest context of captured graphs.
max_context_len_to_capture int | Longest context of captured graphs.
[ModelConfig, retired] there is no Neuron backend
override_neuron_config json | JSON for Neuron devices.
[LoadConfig, retired] none is loaded; serve a model it was merged into
qlora_adapter_name_or_path str | QLoRA adapter to load.
[StructuredOutputsConfig, replaced]
guided_decoding_backend auto/xgrammar/guidance/outlines/lm-format-enforcer
  to:structured_outputs_config.backend | What compiles grammars.
guided_decoding_disable_fallback bool to:structured_outputs_config.disable_fallback | Refuse what
  the chosen backend cannot do.
guided_decoding_disable_any_whitespace bool to:structured_outputs_config.disable_any_whitespace |
  Allow no free whitespace in JSON.
guided_decoding_disable_additional_properties bool
  to:structured_outputs_config.disable_additional_properties | Allow no keys in JSON that its
  schema does not name.
[ParallelConfig, replaced]
dcp_kv_cache_interleave_size int >=1 to:cp_kv_cache_interleave_size | Tokens in a row on a worker
  where context is shared.
num_redundant_experts int to:eplb_config.num_redundant_experts | Spare experts.
eplb_window_size int to:eplb_config.window_size | Steps whose use of experts counts.
eplb_step_interval int to:eplb_config.step_interval | Steps between two moves of experts.
eplb_log_balancedness bool to:eplb_config.log_balancedness | Log how evenly experts are used.
[ParallelConfig, retired] one worker has nothing to add up
disable_custom_all_reduce bool | Add up workers' results with the stock library.
[ParallelConfig, replaced]
enable_multimodal_encoder_data_parallel bool | Divide media among workers.
worker_use_ray bool | Run workers under Ray.
[CacheConfig, retired] preempted requests are computed again
swap_space float >=0 | GiB of host memory for preempted requests.
[CacheConfig, retired] there is one block manager
use_v2_block_manager bool | Use the second block manager.
[CacheConfig, retired] scales come from the checkpoint
quantization_param_path str | File of fp8 cache scales.
[MultiModalConfig, replaced]
disable_mm_preprocessor_cache bool | Keep no processed media.
[MultiModalConfig, retired] the model's processor decides
image_feature_size int | Tokens of an image.
image_input_shape str | Largest shape of an image.
image_token_id int | Token that stands for an image.
image_input_type pixel_values/image_features | What an image is given as.
[LoRAConfig, retired] adapters have no biases
enable_lora_bias bool | Load the biases of adapters.
[LoRAConfig, retired] adapters add no tokens
lora_extra_vocab_size int | Most tokens that an adapter adds.
[LoRAConfig, retired] rotary scaling is the model's
long_lora_scaling_factors str | Rotary scaling of adapters for long contexts.
[SchedulerConfig, replaced]
cuda_graph_sizes ints | Batch sizes to capture.
[SchedulerConfig, retired] they follow from --speculative-config
num_lookahead_slots int >=0 | Cache slots for drafted tokens.
[SchedulerConfig, retired] one step is planned at a time
multi_step_stream_outputs bare | Stream within several steps.
num_scheduler_steps int >=1 | Steps planned at a time.
[SchedulerConfig, retired] preempted requests are computed again
preemption_mode str | How requests are preempted.
[SchedulerConfig, retired] prompts are scheduled at once
scheduler_delay_factor float >=0 | Wait before a prompt is scheduled.
[SpeculativeConfig, replaced]
speculative_model str | Model that drafts tokens.
num_speculative_tokens int >=1 to:speculative_config.num_speculative_tokens | Tokens to draft.
ngram_prompt_lookup_max int >=1 to:speculative_config.prompt_lookup_max | Longest n-gram to look
  for.
ngram_prompt_lookup_min int >=1 to:speculative_config.prompt_lookup_min | Shortest n-gram to look
  for.
speculative_disable_by_batch_size int >=1 to:speculative_config.disable_by_batch_size | Batch size
  from which nothing is drafted.
speculative_max_model_len int >=1 to:speculative_config.max_model_len | Longest text of the
  drafting model.
speculative_model_quantization str to:speculative_config.quantization | How the drafting model's
  weights are stored.
speculative_draft_tensor_parallel_size int >=1 -spec-draft-tp
  to:speculative_config.draft_tensor_parallel_size | Workers of the drafting model.
[SpeculativeConfig, retired] a draft is kept where it is the very token that is sampled
speculative_disable_mqa_scorer bool | Check drafts one by one.
spec_decoding_acceptance_method rejection_sampler/typical_acceptance_sampler | How drafts are
  checked.
typical_acceptance_sampler_posterior_alpha float | Alpha of typical acceptance.
typical_acceptance_sampler_posterior_threshold float | Threshold of typical acceptance.
[SpeculativeConfig, retired] logprobs are given when they are asked for
disable_logprobs_during_spec_decoding bare | Give no logprobs with drafts.
[PromptAdapterConfig, retired] there are no prompt adapters
enable_prompt_adapter bool | Let requests choose a soft prompt.
max_prompt_adapters int | Most soft prompts in one step.
max_prompt_adapter_token int | Most tokens of a soft prompt.
[TokenizerPoolConfig, retired] texts are tokenised in threads
tokenizer_pool_size int | Workers that tokenise.
tokenizer_pool_type str | Kind of those workers.
tokenizer_pool_extra_config json | JSON for those workers.
""",
    _REPLACED,
)

RETIRED_REPLIES = rows(
    """
[options, replaced, after enable_log_requests]
disable_log_requests bool | Log no requests.
""",
    _REPLACED,
)

RETIRED_SERVER = rows("""
[options, retired, after api_server_count] the engine has a process of its own
engine_use_ray bool | Run the engine under Ray.
""")
