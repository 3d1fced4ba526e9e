"""VllmConfig: the one description of an engine, resolved and checked across its parts.

Plain frozen data, so that it travels between processes as msgpack. Readers ask it where they
need it (`config.scheduler.max_num_seqs`); nobody writes to it.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

from vllm_lite import envs
from vllm_lite.config.cache import CacheConfig
from vllm_lite.config.facts import ModelFacts
from vllm_lite.config.load import LoadConfig
from vllm_lite.config.model import ModelConfig
from vllm_lite.config.observability import ObservabilityConfig
from vllm_lite.config.option import config, option
from vllm_lite.config.parallel import ParallelConfig
from vllm_lite.config.scheduler import SchedulerConfig
from vllm_lite.errors import UsageError


@config
class VllmConfig:
    """The engine as a whole: where it runs, its parts and its checkpoint."""

    facts: ModelFacts
    model: ModelConfig = field(default_factory=ModelConfig)
    load: LoadConfig = field(default_factory=LoadConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    observability: ObservabilityConfig = field(default_factory=ObservabilityConfig)
    device: Literal["cpu", "cuda"] = option(
        "cpu",
        "Where the model runs.",
        auto="cpu: there is no GPU backend yet",
        choices=("auto", "cpu", "cuda"),
        works=("auto", "cpu"),
        remedy="there is no GPU backend yet, so add --device cpu",
    )

    def __post_init__(self) -> None:
        self._check_lengths()
        if self.device == "cpu" and self.model.dtype == "float16":
            raise UsageError(
                "--dtype float16 is not available on CPU in this build; use bfloat16 or float32"
            )
        wanted = "gguf" if self.facts.format == "gguf" else "safetensors"
        if self.load.load_format not in ("auto", "dummy", wanted):
            raise UsageError(
                f"--load-format {self.load.load_format} does not fit the {wanted} weights of "
                f"{self.facts.path}; use auto"
            )
        if self.model.quantization == "gguf" and self.facts.format != "gguf":
            raise UsageError("--quantization gguf needs a .gguf file as the model")

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
        if not scheduler.enable_chunked_prefill and scheduler.max_num_batched_tokens < length:
            raise UsageError(
                f"--max-num-batched-tokens {scheduler.max_num_batched_tokens} is less than "
                f"--max-model-len {length}, which needs chunked prefill; raise it or drop "
                "--no-enable-chunked-prefill"
            )

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """SamplingParams fields that the generation config sets for requests that do not."""
        chosen = {**self.facts.generation_config, **self.model.override_generation_config}
        if "max_new_tokens" in chosen:
            chosen["max_tokens"] = chosen.pop("max_new_tokens")
        return {key: chosen[key] for key in _SAMPLING_KEYS if chosen.get(key) is not None}


# What vLLM takes over from a generation config.
_SAMPLING_KEYS = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p", "max_tokens")
