"""EngineArgs: the options of an engine by name, flat, as users write them.

Derived from the fields of VllmConfig's tree, so it repeats none of them. Holds only what was
set; `create_engine_config` resolves the rest.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from vllm_lite import envs
from vllm_lite.config.cache import cpu_cache_bytes
from vllm_lite.config.checkpoints.architectures import ARCHITECTURES
from vllm_lite.config.checkpoints.checkpoint import check_sizes, read_facts, with_generation_config
from vllm_lite.config.demo import DEMO_QUANTIZATION, DEMO_SAMPLING, is_demo
from vllm_lite.config.draft import find_draft, served_speculator
from vllm_lite.config.facts import ASSUMED_LENGTH, UNLIMITED_POSITIONS, ModelFacts
from vllm_lite.config.logging import apply_logging
from vllm_lite.config.machine import cuda_obstacle, has_cuda_device, has_native_bfloat16
from vllm_lite.config.model import DTYPE_WORDS
from vllm_lite.config.options.deprecation import warn_of_idle, without_deprecated
from vllm_lite.config.options.option import make, option_table
from vllm_lite.config.pooler import with_pooling
from vllm_lite.config.sources import resolve_model_source
from vllm_lite.config.values import Json, JsonView
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.errors import UsageError, nearest
from vllm_lite.log import init_logger

logger = init_logger(__name__)

UsageContext = Literal["server", "llm"]
# (device, usage) -> tokens and requests of a step. A CPU takes no longer for a token among 256 than
# among 2,048; a step of more only keeps the others' next tokens waiting.
_STEP_SIZES = {
    ("cpu", "server"): (256, 128),
    ("cpu", "llm"): (4096, 256),
    ("cuda", "server"): (2048, 256),
    ("cuda", "llm"): (8192, 256),
}
_MEMORY_SHARE = {"cpu": 0.5, "cuda": 0.9}


class EngineArgs:
    """`EngineArgs(model="demo", max_num_seqs=4)`; any option of the command line is a field.

    Reading an option that was not set gives its default, or None where it is derived.
    Raises TypeError for a name that is no option.
    """

    def __init__(self, **given: Any) -> None:
        table = option_table(VllmConfig)
        for name in given:
            if name not in table:
                close = nearest(name, table)
                hint = f"; did you mean {close}?" if close else ""
                raise TypeError(f"EngineArgs has no option {name!r}{hint}")
        if isinstance(given.get("served_model_name"), str):
            given["served_model_name"] = [given["served_model_name"]]
        self._given = given

    @property
    def given(self) -> JsonView:
        return self._given

    def __getattr__(self, name: str) -> Any:
        entry = option_table(VllmConfig).get(name)
        if entry is None or name.startswith("_"):
            raise AttributeError(f"EngineArgs has no option {name!r}")
        return self._given.get(name, entry.flat_default)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EngineArgs) and self._given == other._given

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._given)))

    def __repr__(self) -> str:
        table = option_table(VllmConfig)
        shown = {
            name: "***" if table[name].rules.get("secret") else value
            for name, value in self._given.items()
        }
        return f"EngineArgs({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def configure_logging(self) -> None:
        """Have this process log as the options say; raises UsageError."""
        apply_logging(self._given)

    def create_engine_config(self, usage_context: UsageContext = "server") -> VllmConfig:
        """Find the model, derive what was not set, and check it all; raises UsageError."""
        return resolve(self._given, usage_context)

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> EngineArgs:
        """The engine's part of a namespace that a parser of this package made."""
        table = option_table(VllmConfig)
        return cls(**{name: value for name, value in vars(args).items() if name in table})


AsyncEngineArgs = EngineArgs


def resolve(given: JsonView, usage: UsageContext = "server") -> VllmConfig:
    """The engine that the options `given` (by field name) describe; raises UsageError.

    Downloads the model if it is not on this machine.
    """
    apply_logging(given)
    table = option_table(VllmConfig)
    values = without_deprecated(given, table)
    values = {name: value for name, value in values.items() if value is not None}
    for name, value in values.items():
        table[name].check(_checkable(name, value))
    warn_of_idle(values, table)
    _check_environment(is_strict=values.get("fail_on_environ_validation", False))
    device = _device(values)
    if device == "cpu":
        warn_of_idle(values, table, gpu_only=True)
    facts, draft = _find_model(values)
    _derive_model(values, facts, device)
    _derive_reasoning(values, facts)
    _derive_cache(values, device)
    if facts.pooling is not None and not facts.pooling.is_causal:
        _derive_whole_prompts(values)
    _derive_scheduler(values, facts, device, usage)
    values.setdefault("disable_log_stats", usage == "llm")
    values["device"] = device
    return make(VllmConfig, values, facts=facts, draft=draft)


def _check_environment(*, is_strict: bool) -> None:
    """Warn of variables without effect; strictly, raise for them."""
    lines = envs.complaints()
    if lines and is_strict:
        raise UsageError(f"--fail-on-environ-validation: {'; '.join(lines)}; unset them")
    for line in lines:
        logger.warning("%s", line)


def _checkable(name: str, value: Any) -> Any:
    """`value`, with spellings that only the derivation understands made plain."""
    if name == "max_model_len" and value in (-1, "auto"):
        return 1
    return str(value).removeprefix("torch.") if name == "dtype" else value


def _find_model(values: Json) -> tuple[ModelFacts, ModelFacts | None]:
    """The facts of the model and of its draft model; their files are here afterwards."""
    table = option_table(VllmConfig)
    name = values.setdefault("model", table["model"].default)
    source: Json = {
        "revision": values.get("revision"),
        "download_dir": values.get("download_dir"),
        "hf_token": values.get("hf_token", envs.HF_TOKEN),
        "trust_remote_code": values.get("trust_remote_code", False),
        "ignore_patterns": values.get("ignore_patterns", table["ignore_patterns"].default),
    }
    overrides = dict(values.get("hf_overrides", {}))
    # The description comes first: an unsupported model is refused before its weights are fetched.
    path = resolve_model_source(name, weights=False, **source)
    if told := served_speculator(path):
        drafts = {"model": name, "revision": values.pop("revision", None)}
        drafts["num_speculative_tokens"] = told["num_speculative_tokens"]
        values["speculative_config"] = {**drafts, **(values.get("speculative_config") or {})}
        values.setdefault("served_model_name", [name])
        values["model"] = name = told["model"]
        source["revision"] = None
        path = resolve_model_source(name, weights=False, **source)
    facts = read_facts(
        path,
        hf_overrides=overrides,
        hf_config_path=values.get("hf_config_path"),
        config_format=values.get("config_format", "auto"),
        disable_sliding_window=values.get("disable_sliding_window", False),
        model_impl=values.get("model_impl", "auto"),
    )
    facts = replace(facts, trusts_code=values.get("trust_remote_code", False))
    if values.get("load_format") != "dummy":
        resolve_model_source(name, **source, load_format=values.get("load_format", "auto"))
        check_sizes(facts)
    values.pop("hf_token", None)  # of no use from here on, so it goes no further
    values["hf_overrides"] = overrides
    if not all(values.setdefault("served_model_name", [name])):
        raise UsageError("--served-model-name must not be empty")
    values["tokenizer"] = _find_tokenizer(values, facts, source)
    facts = with_pooling(facts, values)
    values["runner"] = "generate" if facts.pooling is None else "pooling"
    draft = find_draft(values, facts, source)
    return _with_generation_config(facts, values.get("generation_config", "auto")), draft


def _find_tokenizer(values: Json, facts: ModelFacts, source: Json) -> str:
    """A local directory or .gguf file."""
    name: str = values.get("tokenizer") or values["model"]
    revision = values.get("tokenizer_revision")
    is_own = name == values["model"] and revision is None
    if is_own or values.get("skip_tokenizer_init", False):
        return facts.path
    return resolve_model_source(name, **{**source, "revision": revision, "weights": False})


def _with_generation_config(facts: ModelFacts, choice: str) -> ModelFacts:
    if choice == "auto":
        return replace(facts, generation_config=DEMO_SAMPLING) if is_demo(facts.path) else facts
    if choice == "vllm":
        return replace(facts, generation_config={})
    return with_generation_config(facts, Path(choice))


def _device(values: Json) -> str:
    """The model's device; decided or refused before the model is fetched."""
    device = values.get("device", "auto")
    if device not in ("auto", "cuda"):
        return str(device)
    obstacle = cuda_obstacle()
    if device == "cuda" and obstacle is not None:
        raise UsageError(f"--device cuda: {obstacle}, or use --device cpu")
    if obstacle is not None and has_cuda_device():
        logger.warning("The model runs on the CPU, not on the GPU: %s", obstacle)
    return "cuda" if obstacle is None else "cpu"


def _derive_model(values: Json, facts: ModelFacts, device: str) -> None:
    dtype = str(values.get("dtype", "auto")).removeprefix("torch.")
    if dtype == "auto" and device == "cuda":
        dtype = facts.dtype if facts.dtype in ("bfloat16", "float16") else "bfloat16"
    elif dtype == "auto":
        dtype = "bfloat16" if has_native_bfloat16() else "float32"
    values["dtype"] = DTYPE_WORDS.get(dtype, dtype)
    if values.get("max_model_len", -1) in (-1, "auto"):
        most = None if facts.pooling is None else facts.pooling.max_seq_length
        values["max_model_len"] = min(most or facts.max_position, facts.max_position)
        if facts.max_position == UNLIMITED_POSITIONS:
            values["max_model_len"] = ASSUMED_LENGTH
            logger.warning(
                "The model's context has no limit; --max-model-len is %d unless set", ASSUMED_LENGTH
            )
    values.setdefault("deterministic", envs.VLLM_BATCH_INVARIANT)
    if facts.format == "gguf":
        stored = DEMO_QUANTIZATION if is_demo(facts.path) else "gguf"
        values["quantization"] = values.get("quantization") or stored
    elif values.get("load_format") == "bitsandbytes":
        values["quantization"] = values.get("quantization") or "bitsandbytes"
    elif facts.quantization:
        values["quantization"] = values.get("quantization") or facts.quantization


def _derive_reasoning(values: Json, facts: ModelFacts) -> None:
    """The parser of --reasoning-config is that of --reasoning-parser, else it is the family's."""
    named = (values.get("reasoning_config") or {}).get("reasoning_parser")
    if not named:
        row = ARCHITECTURES.get(facts.architecture)
        values["reasoning_parser"] = values.get("reasoning_parser") or (
            row.reasoning_parser if row is not None else ""
        )
        return
    if values.setdefault("reasoning_parser", named) != named:
        raise UsageError(
            f"--reasoning-parser {values['reasoning_parser']} and --reasoning-config."
            f"reasoning_parser {named} are one thing; give one of them"
        )


def _derive_cache(values: Json, device: str) -> None:
    values.setdefault("gpu_memory_utilization", _MEMORY_SHARE[device])
    space = cpu_cache_bytes() if device == "cpu" else None
    if space is not None:
        values.setdefault("kv_cache_memory_bytes", space)


def _derive_scheduler(values: Json, facts: ModelFacts, device: str, usage: UsageContext) -> None:
    # A prompt that is pooled keeps no one's next token waiting.
    tokens, seqs = _STEP_SIZES[device, usage if facts.pooling is None else "llm"]
    match values.get("performance_mode"):
        case "throughput":
            tokens, seqs = 2 * tokens, 2 * seqs
        case "interactivity":
            tokens //= 2
    values.setdefault("async_scheduling", device == "cuda")
    if (device, usage) != ("cpu", "server"):
        values.setdefault("scheduler_target_itl_ms", 0)
    length = values["max_model_len"]
    if "max_num_seqs" not in values:
        values["max_num_seqs"] = min(seqs, values.get("max_num_batched_tokens", seqs))
    seqs = values["max_num_seqs"]
    if "max_num_batched_tokens" not in values:
        if not values.get("enable_chunked_prefill", True):
            tokens = max(tokens, length)
        values["max_num_batched_tokens"] = max(min(tokens, seqs * length), seqs)
    if usage == "server":
        values.setdefault("max_num_queued_reqs", max(2048, 16 * seqs))
        values.setdefault("max_num_queued_tokens", max(4_000_000, 4 * length))


def _derive_whole_prompts(values: Json) -> None:
    """Each prompt is in one step, and nothing is cached: its tokens see later ones."""
    values |= {"enable_chunked_prefill": False, "enable_prefix_caching": False}
    length = values["max_model_len"]
    for name in ("max_num_batched_tokens", "max_num_scheduled_tokens"):
        if (values.get(name) or length) < length:
            flag = f"--{name.replace('_', '-')}"
            logger.warning("%s %s is raised to %s, a whole prompt's", flag, values[name], length)
            values[name] = length
