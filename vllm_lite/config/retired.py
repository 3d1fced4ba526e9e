"""Options of older releases: each warns, and sets what replaced it where there is something.

Only what users write is here; what it became is in the other sections. Every value is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from vllm_lite.config.option import config, option

Becomes = Callable[[Any], Mapping[str, Any]]


def _if_true(target: str, value: Any) -> Becomes:
    """Where the switch is on, `target` is `value`."""
    return lambda is_on: {target: value} if is_on else {}


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


def _speculative_model(value: str) -> Mapping[str, Any]:
    if value == "[ngram]":
        return {"speculative_config.method": "ngram"}
    return {"speculative_config.model": value}


def _capture_sizes(value: list[int]) -> Mapping[str, Any]:
    # One number was the largest size; several were the sizes.
    if len(value) == 1:
        return {"max_cudagraph_capture_size": value[0]}
    return {"cudagraph_capture_sizes": value}


_NO_STEPS = "one step is planned at a time"
_NO_POOL = "texts are tokenised in threads"
_NO_ADAPTERS = "there are no prompt adapters"
_BY_PROCESSOR = "the model's processor decides"
_NO_CAPTURE = "no graphs are captured"
_ONE_RULE = "a draft is kept where it is the very token that is sampled"
_MODEL = "ModelConfig"
_PARALLEL = "ParallelConfig"
_CACHE = "CacheConfig"
_SCHEDULER = "SchedulerConfig"
_LORA = "LoRAConfig"
_MEDIA = "MultiModalConfig"
_PROMPT_ADAPTERS = "PromptAdapterConfig"
_TOKENIZER_POOL = "TokenizerPoolConfig"
_SPECULATIVE = "SpeculativeConfig"
_OUTPUTS = "StructuredOutputsConfig"


def _gone(help: str, group: str, why: str, **rules: Any) -> Any:
    """An option that changes nothing any more."""
    return option(None, help, group=group, retired=why, **rules)


def _moved(help: str, group: str, target: str, **rules: Any) -> Any:
    """An option whose value goes, as it is, to an option or to a key of one."""
    name, dot, key = target.partition(".")
    use = f"--{name.replace('_', '-')}{dot}{key}"
    return _replaced(help, group, use, lambda value: {target: value}, **rules)


def _replaced(help: str, group: str, use: str, becomes: Becomes, **rules: Any) -> Any:
    """An option whose value sets something else."""
    return option(None, help, group=group, deprecated=use, becomes=becomes, **rules)


@config
class RetiredOptions:
    """What older releases had."""

    task: (
        Literal[
            "auto",
            "generate",
            "transcription",
            "draft",
            "embed",
            "embedding",
            "classify",
            "score",
            "reward",
        ]
        | None
    ) = _replaced("What the model is for.", _MODEL, "--runner and --convert", _TASKS.__getitem__)
    rope_scaling: dict[str, Any] | None = _moved(
        "JSON that replaces the rotary scaling.", _MODEL, "hf_overrides.rope_scaling"
    )
    rope_theta: float | None = _moved(
        "Rotary base frequency.", _MODEL, "hf_overrides.rope_theta", gt=0
    )
    override_pooler_config: dict[str, Any] | None = _moved(
        "JSON of the pooler.", _MODEL, "pooler_config"
    )
    disable_cascade_attn: bool | None = _gone(
        "Compute shared prefixes for each request.",
        _MODEL,
        "a shared prefix is computed once and read by each request",
    )
    disable_async_output_proc: bool | None = _gone(
        "Handle outputs between steps.", _MODEL, "outputs are handled in a process of their own"
    )
    max_seq_len_to_capture: int | None = _gone(
        "Longest context of captured graphs.", _MODEL, _NO_CAPTURE
    )
    max_context_len_to_capture: int | None = _gone(
        "Longest context of captured graphs.", _MODEL, _NO_CAPTURE
    )
    override_neuron_config: dict[str, Any] | None = _gone(
        "JSON for Neuron devices.", _MODEL, "there is no Neuron backend"
    )
    qlora_adapter_name_or_path: str | None = _gone(
        "QLoRA adapter to load.", "LoadConfig", "none is loaded; serve a model it was merged into"
    )
    guided_decoding_backend: (
        Literal["auto", "xgrammar", "guidance", "outlines", "lm-format-enforcer"] | None
    ) = _moved("What compiles grammars.", _OUTPUTS, "structured_outputs_config.backend")
    guided_decoding_disable_fallback: bool | None = _moved(
        "Refuse what the chosen backend cannot do.",
        _OUTPUTS,
        "structured_outputs_config.disable_fallback",
    )
    guided_decoding_disable_any_whitespace: bool | None = _moved(
        "Allow no free whitespace in JSON.",
        _OUTPUTS,
        "structured_outputs_config.disable_any_whitespace",
    )
    guided_decoding_disable_additional_properties: bool | None = _moved(
        "Allow no keys in JSON that its schema does not name.",
        _OUTPUTS,
        "structured_outputs_config.disable_additional_properties",
    )
    dcp_kv_cache_interleave_size: int | None = _moved(
        "Tokens in a row on a worker where context is shared.",
        _PARALLEL,
        "cp_kv_cache_interleave_size",
        ge=1,
    )
    num_redundant_experts: int | None = _moved(
        "Spare experts.", _PARALLEL, "eplb_config.num_redundant_experts"
    )
    eplb_window_size: int | None = _moved(
        "Steps whose use of experts counts.", _PARALLEL, "eplb_config.window_size"
    )
    eplb_step_interval: int | None = _moved(
        "Steps between two moves of experts.", _PARALLEL, "eplb_config.step_interval"
    )
    eplb_log_balancedness: bool | None = _moved(
        "Log how evenly experts are used.", _PARALLEL, "eplb_config.log_balancedness"
    )
    disable_custom_all_reduce: bool | None = _gone(
        "Add up workers' results with the stock library.",
        _PARALLEL,
        "one worker has nothing to add up",
    )
    enable_multimodal_encoder_data_parallel: bool | None = _replaced(
        "Divide media among workers.",
        _PARALLEL,
        "--mm-encoder-tp-mode data",
        _if_true("mm_encoder_tp_mode", "data"),
    )
    worker_use_ray: bool | None = _replaced(
        "Run workers under Ray.",
        _PARALLEL,
        "--distributed-executor-backend ray",
        _if_true("distributed_executor_backend", "ray"),
    )
    swap_space: float | None = _gone(
        "GiB of host memory for preempted requests.",
        _CACHE,
        "preempted requests are computed again",
        ge=0,
    )
    use_v2_block_manager: bool | None = _gone(
        "Use the second block manager.", _CACHE, "there is one block manager"
    )
    quantization_param_path: str | None = _gone(
        "File of fp8 cache scales.", _CACHE, "scales come from the checkpoint"
    )
    disable_mm_preprocessor_cache: bool | None = _replaced(
        "Keep no processed media.",
        _MEDIA,
        "--mm-processor-cache-gb 0",
        _if_true("mm_processor_cache_gb", 0.0),
    )
    image_feature_size: int | None = _gone("Tokens of an image.", _MEDIA, _BY_PROCESSOR)
    image_input_shape: str | None = _gone("Largest shape of an image.", _MEDIA, _BY_PROCESSOR)
    image_token_id: int | None = _gone("Token that stands for an image.", _MEDIA, _BY_PROCESSOR)
    image_input_type: Literal["pixel_values", "image_features"] | None = _gone(
        "What an image is given as.", _MEDIA, _BY_PROCESSOR
    )
    enable_lora_bias: bool | None = _gone(
        "Load the biases of adapters.", _LORA, "adapters have no biases"
    )
    lora_extra_vocab_size: int | None = _gone(
        "Most tokens that an adapter adds.", _LORA, "adapters add no tokens"
    )
    long_lora_scaling_factors: str | None = _gone(
        "Rotary scaling of adapters for long contexts.", _LORA, "rotary scaling is the model's"
    )
    cuda_graph_sizes: list[int] | None = _replaced(
        "Batch sizes to capture.", _SCHEDULER, "--cudagraph-capture-sizes", _capture_sizes
    )
    num_lookahead_slots: int | None = _gone(
        "Cache slots for drafted tokens.", _SCHEDULER, "they follow from --speculative-config", ge=0
    )
    multi_step_stream_outputs: bool | str | None = _gone(
        "Stream within several steps.",
        _SCHEDULER,
        _NO_STEPS,
        bare=True,
        choices=(True, "true", "True", "false", "False"),
    )
    num_scheduler_steps: int | None = _gone("Steps planned at a time.", _SCHEDULER, _NO_STEPS, ge=1)
    preemption_mode: str | None = _gone(
        "How requests are preempted.", _SCHEDULER, "preempted requests are computed again"
    )
    scheduler_delay_factor: float | None = _gone(
        "Wait before a prompt is scheduled.", _SCHEDULER, "prompts are scheduled at once", ge=0
    )
    speculative_model: str | None = _replaced(
        "Model that drafts tokens.", _SPECULATIVE, "--speculative-config.model", _speculative_model
    )
    num_speculative_tokens: int | None = _moved(
        "Tokens to draft.", _SPECULATIVE, "speculative_config.num_speculative_tokens", ge=1
    )
    ngram_prompt_lookup_max: int | None = _moved(
        "Longest n-gram to look for.", _SPECULATIVE, "speculative_config.prompt_lookup_max", ge=1
    )
    ngram_prompt_lookup_min: int | None = _moved(
        "Shortest n-gram to look for.", _SPECULATIVE, "speculative_config.prompt_lookup_min", ge=1
    )
    speculative_disable_by_batch_size: int | None = _moved(
        "Batch size from which nothing is drafted.",
        _SPECULATIVE,
        "speculative_config.disable_by_batch_size",
        ge=1,
    )
    speculative_max_model_len: int | None = _moved(
        "Longest text of the drafting model.",
        _SPECULATIVE,
        "speculative_config.max_model_len",
        ge=1,
    )
    speculative_model_quantization: str | None = _moved(
        "How the drafting model's weights are stored.",
        _SPECULATIVE,
        "speculative_config.quantization",
    )
    speculative_draft_tensor_parallel_size: int | None = _moved(
        "Workers of the drafting model.",
        _SPECULATIVE,
        "speculative_config.draft_tensor_parallel_size",
        aliases=("-spec-draft-tp",),
        ge=1,
    )
    speculative_disable_mqa_scorer: bool | None = _gone(
        "Check drafts one by one.", _SPECULATIVE, _ONE_RULE
    )
    spec_decoding_acceptance_method: (
        Literal["rejection_sampler", "typical_acceptance_sampler"] | None
    ) = _gone("How drafts are checked.", _SPECULATIVE, _ONE_RULE)
    typical_acceptance_sampler_posterior_alpha: float | None = _gone(
        "Alpha of typical acceptance.", _SPECULATIVE, _ONE_RULE
    )
    typical_acceptance_sampler_posterior_threshold: float | None = _gone(
        "Threshold of typical acceptance.", _SPECULATIVE, _ONE_RULE
    )
    disable_logprobs_during_spec_decoding: bool | str | None = _gone(
        "Give no logprobs with drafts.",
        _SPECULATIVE,
        "logprobs are given when they are asked for",
        bare=True,
        choices=(True, "true", "True", "false", "False"),
    )
    enable_prompt_adapter: bool | None = _gone(
        "Let requests choose a soft prompt.", _PROMPT_ADAPTERS, _NO_ADAPTERS
    )
    max_prompt_adapters: int | None = _gone(
        "Most soft prompts in one step.", _PROMPT_ADAPTERS, _NO_ADAPTERS
    )
    max_prompt_adapter_token: int | None = _gone(
        "Most tokens of a soft prompt.", _PROMPT_ADAPTERS, _NO_ADAPTERS
    )
    tokenizer_pool_size: int | None = _gone("Workers that tokenise.", _TOKENIZER_POOL, _NO_POOL)
    tokenizer_pool_type: str | None = _gone("Kind of those workers.", _TOKENIZER_POOL, _NO_POOL)
    tokenizer_pool_extra_config: dict[str, Any] | None = _gone(
        "JSON for those workers.", _TOKENIZER_POOL, _NO_POOL
    )
