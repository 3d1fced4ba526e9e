"""VllmConfig: the one description of an engine, resolved and checked across its parts.

Plain frozen data that travels between processes as msgpack. Readers ask it where they
need it (`config.scheduler.max_num_seqs`); nobody writes to it.
"""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal

from vllm_lite import envs
from vllm_lite.config.attention import AttentionConfig, check_device
from vllm_lite.config.cache import CacheConfig
from vllm_lite.config.checkpoints.architectures import ARCHITECTURES
from vllm_lite.config.compilation import NO_GRAPHS_ON_CPU, CompilationConfig, capture_sizes
from vllm_lite.config.facts import ModelFacts
from vllm_lite.config.kv_events import KVEventsConfig
from vllm_lite.config.logging import LoggingConfig
from vllm_lite.config.model import LoadConfig, ModelConfig
from vllm_lite.config.observability import ObservabilityConfig
from vllm_lite.config.options.absent import rows
from vllm_lite.config.options.option import JsonOption, Option, config, json_option, option
from vllm_lite.config.parallel import ParallelConfig
from vllm_lite.config.pooler import PoolerConfig
from vllm_lite.config.quantized.registry import check_quantization
from vllm_lite.config.scheduler import SchedulerConfig
from vllm_lite.config.speculative import SpeculativeConfig
from vllm_lite.config.structured_outputs import ReasoningConfig, StructuredOutputsConfig
from vllm_lite.config.values import Json
from vllm_lite.errors import UsageError

_KERNELS = JsonOption("kernel_config", "JSON: which library computes what.")


@config
class VllmConfig:
    """The engine: device, parts and checkpoint."""

    ROWS: ClassVar[tuple[Option, ...]] = (
        *rows("engine"),
        *json_option(_KERNELS, "VllmConfig", rows("--kernel-config")),
    )

    facts: ModelFacts
    # Of the model that drafts, if there is one.
    draft: ModelFacts | None = None
    model: ModelConfig = field(default_factory=ModelConfig)
    pooler: PoolerConfig = field(default_factory=PoolerConfig)
    load: LoadConfig = field(default_factory=LoadConfig)
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    structured_outputs: StructuredOutputsConfig = field(default_factory=StructuredOutputsConfig)
    reasoning: ReasoningConfig = field(default_factory=ReasoningConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    observability: ObservabilityConfig = field(default_factory=ObservabilityConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    speculative: SpeculativeConfig = field(default_factory=SpeculativeConfig)
    kv_events: KVEventsConfig = field(default_factory=KVEventsConfig)
    compilation: CompilationConfig = field(default_factory=CompilationConfig)
    device: Literal["cpu", "cuda"] = option(
        "cpu",
        "Where the model runs.",
        auto="cuda with a usable NVIDIA GPU, else cpu",
        choices=("auto", "cpu", "cuda", "hpu", "neuron", "openvino", "tpu", "xpu"),
        works=("auto", "cpu", "cuda"),
        remedy="use cuda, cpu or auto",
        group="DeviceConfig",
    )
    optimization_level: Literal[0, 1, 2, 3] = option(
        2,
        "CUDA graphs to capture, also written -O0 to -O3: 0 none, 1 to 3 those of "
        "--compilation-config.cudagraph_mode. Nothing is compiled.",
        on_cpu=NO_GRAPHS_ON_CPU,
    )
    performance_mode: Literal["balanced", "interactivity", "throughput"] = option(
        "balanced",
        "Default sizes of a step: throughput doubles them; interactivity halves its "
        "tokens, so that long prompts delay others less.",
    )
    fail_on_environ_validation: bool = option(
        False,
        "Refuse to start with environment variables of vLLM that have no effect here.",
        group="options",
    )

    def __post_init__(self) -> None:
        self._check_lengths()
        if self.device == "cpu" and self.model.dtype == "float16":
            raise UsageError(
                "--dtype float16 is not available on CPU in this build; use bfloat16 or float32"
            )
        is_gguf, named = self.facts.format == "gguf", self.load.load_format
        if named not in ("auto", "dummy") and (named == "gguf") != is_gguf:
            raise UsageError(
                f"--load-format {named} does not fit {self.facts.path}, which is "
                f"{'a' if is_gguf else 'no'} GGUF file; use auto"
            )
        self._check_quantization()
        self._check_states()
        if self.model.deterministic and self.facts.implementation == "transformers":
            raise UsageError(
                "--deterministic cannot be kept by --model-impl transformers, which computes in "
                "torch; leave one of them out"
            )
        if self.model.runner == "pooling" and self.speculative.method is not None:
            raise UsageError(
                "--speculative-config: --runner pooling makes vectors of prompts and generates "
                "nothing to draft; leave one of them out"
            )
        check_device(self.device, self.attention, self.cache, self.model, self.facts.head_size)
        if self.device != "cpu":
            _ = self.capture_sizes
        self.parallel.check(self.device)
        ranks, divided = self.parallel.tensor_parallel_size, self.speculative
        if divided.draft_tensor_parallel_size not in (None, ranks):
            raise UsageError(
                f"--speculative-config.draft_tensor_parallel_size "
                f"{divided.draft_tensor_parallel_size}: a draft model is divided as the model is; "
                f"set it to {ranks}, or leave it out"
            )

    def _check_quantization(self) -> None:
        name, stored = self.model.quantization, self.facts.quantization
        same = ("bitsandbytes", "dequantize" if stored == "bitsandbytes" else "nf4")
        if self.load.load_format == "bitsandbytes" and name not in same:
            raise UsageError(
                f"--load-format bitsandbytes contradicts --quantization {name}; leave one of them "
                "out"
            )
        check_quantization(name, self.facts, self.model.quantization_config)

    @property
    def has_states(self) -> bool:
        """Whether layers keep states, which only go forward."""
        return self._mixer != "attention"

    @property
    def _mixer(self) -> str:
        row = ARCHITECTURES.get(self.facts.architecture)
        return "attention" if row is None else row.mixer

    def _check_states(self) -> None:
        cache, mixer, has_states = self.cache, self._mixer, self.has_states
        if mixer == "state" and cache.kv_cache_dtype != "auto":
            raise UsageError(
                f"--kv-cache-dtype {cache.kv_cache_dtype}: {self.facts.architecture} caches states "
                "in float32, and neither keys nor values; leave it out"
            )
        interval = cache.mamba_block_size
        if interval is None:
            return
        if not has_states:
            raise UsageError(
                f"--mamba-block-size {interval}: {self.facts.architecture} has no state-space "
                "layers; leave it out"
            )
        if interval % cache.block_size or not cache.enable_prefix_caching:
            raise UsageError(
                f"--mamba-block-size {interval} needs prefix caching, and has to be a multiple of "
                f"--block-size {cache.block_size}"
            )

    def _check_lengths(self) -> None:
        length, derived = self.model.max_model_len, self.facts.max_position
        if length > derived and not envs.VLLM_ALLOW_LONG_MAX_MODEL_LEN:
            raise UsageError(
                f"--max-model-len {length} is more than the {derived} tokens the model was made "
                "for; lower it, or set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 if you know it to work"
            )
        scheduler = self.scheduler
        if scheduler.long_prefill_token_threshold > length:
            raise UsageError(
                f"--long-prefill-token-threshold {scheduler.long_prefill_token_threshold} is more "
                f"than --max-model-len {length}; lower it"
            )
        if not scheduler.enable_chunked_prefill and scheduler.step_tokens < length:
            is_own = scheduler.step_tokens == scheduler.max_num_batched_tokens
            flag = "--max-num-batched-tokens" if is_own else "--max-num-scheduled-tokens"
            raise UsageError(
                f"{flag} {scheduler.step_tokens} is less than "
                f"--max-model-len {length}, which needs chunked prefill; raise it or drop "
                "--no-enable-chunked-prefill"
            )

    @property
    def capture_sizes(self) -> tuple[int, ...]:
        """Numbers of requests of the decode steps to capture, ascending. Raises UsageError."""
        if self.facts.implementation == "transformers":
            return ()  # whose code may ask the device for numbers
        level, most = self.optimization_level, self.scheduler.max_num_seqs
        return capture_sizes(self.compilation, level, self.model, self.attention, most)

    @property
    def sampling_defaults(self) -> Json:
        """SamplingParams fields that the generation config sets for requests that do not."""
        return self._sampling_fields(self.facts.generation_config)

    @property
    def max_tokens_cap(self) -> int | None:
        """Most tokens that a request may ask a server for: what the user's own config says.

        The checkpoint's is a default and no more.
        """
        is_own = self.model.generation_config not in ("auto", "vllm")
        cap: int | None = self._sampling_fields(self.facts.generation_config if is_own else {}).get(
            "max_tokens"
        )
        return cap

    def _sampling_fields(self, generation_config: Json) -> Json:
        chosen = {**generation_config, **self.model.override_generation_config}
        if "max_new_tokens" in chosen:
            chosen["max_tokens"] = chosen.pop("max_new_tokens")
        return {key: chosen[key] for key in _SAMPLING_KEYS if chosen.get(key) is not None}


# What vLLM takes over from a generation config.
_SAMPLING_KEYS = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p", "max_tokens")
