"""`vllm-lite show`: what a model is, the memory it takes, and whether it fits this machine.

Reads descriptions and headers, of a hub repository's too, and loads nothing. The arithmetic is
the engine's own.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from vllm_lite.cli.models.cache import gguf_type, shown_size, table
from vllm_lite.config.checkpoints.gguf_header import read_gguf
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.facts import UNLIMITED_POSITIONS
from vllm_lite.config.options.cli import OptionParser
from vllm_lite.config.options.option import config, option
from vllm_lite.config.sources import hub_errors
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.core.kv_plan import min_bytes
from vllm_lite.core.kv_spec import KVCacheSpec
from vllm_lite.errors import CheckpointError
from vllm_lite.loader.load import cache_spec
from vllm_lite.platform import free_memory
from vllm_lite.tokenizer.chat_template import shows_tools
from vllm_lite.tokenizer.tokenizer import load_tokenizer
from vllm_lite.worker.profile import activation_bytes

# Bits of a weight that a plain checkpoint's is rounded to, scales included.
_ROUNDED_BITS = {"int8": 9.0, "int4": 5.0}
_SHORTEST = 512
_MOST_OF_MEMORY = 0.9


@config
class ShowOptions:
    """Which model, and how it would be served."""

    GROUP = "options"

    revision: str | None = option(None, "Branch, tag or commit of a hub model.")
    download_dir: str | None = option(
        None, "Directory that hub downloads are kept in; default: the hub cache under HF_HOME."
    )


@dataclass(frozen=True)
class Footprint:
    """A served model's memory, by the options it would be served with."""

    config: VllmConfig
    num_weights: int
    # Of the files.
    stored_bytes: int

    @property
    def weights(self) -> int:
        method = self.config.model.quantization
        if method in (None, "dequantize"):
            return self.num_weights * (4 if self.config.model.dtype == "float32" else 2)
        bits = _ROUNDED_BITS.get(method or "")
        return self.stored_bytes if bits is None else int(self.num_weights * bits / 8)

    @cached_property
    def spec(self) -> KVCacheSpec:
        return cache_spec(self.config)

    def missing(self, free: int) -> int:
        """Bytes that `free` is too small by for one request of full length; 0 where it fits."""
        needed = min_bytes(self.config, self.spec) + activation_bytes(self.config)
        share = self.config.cache.gpu_memory_utilization
        granted = int(share * max(0, free - self.weights))
        return max(0, needed - granted, self.weights - free)


def parser() -> OptionParser:
    return OptionParser(
        "vllm-lite show",
        "MODEL [options]",
        "Describe MODEL (demo, a directory, a .gguf file or a hub id) and say whether it fits.\n"
        "Of a hub model that is not here, only the description is fetched.",
        (ShowOptions,),
        examples=("vllm-lite show demo", "vllm-lite show Qwen/Qwen3-0.6B"),
    )


def run(argv: Sequence[str]) -> int:
    words, (given,) = parser().parse_words(argv, 1, 1)
    options = ShowOptions(**given)
    # The weights stay where they are: random ones would be loaded.
    arguments = {"model": words[0], "load_format": "dummy", "revision": options.revision}
    arguments["download_dir"] = options.download_dir
    described = EngineArgs(**arguments).create_engine_config()
    count, size, stored = _weights(words[0], described, options)
    footprint = Footprint(described, count, size)
    sys.stdout.write(table([*_description(footprint, stored), *_fit(footprint, free_memory())]))
    return 0


def _weights(model: str, described: VllmConfig, options: ShowOptions) -> tuple[int, int, str]:
    """How many weights there are, their bytes in files, and what they are stored as."""
    path = Path(described.facts.path)
    if described.facts.format == "gguf":
        tensors = read_gguf(path).tensors.values()
        count = sum(math.prod(tensor.shape) for tensor in tensors)
        return count, sum(tensor.nbytes for tensor in tensors), f"gguf, {gguf_type(path)}"
    from huggingface_hub import HfApi, errors, get_local_safetensors_metadata

    try:
        if Path(model).expanduser().is_dir() or any(path.glob("*.safetensors")):
            found = get_local_safetensors_metadata(path)
        else:
            with hub_errors(model, options.revision):
                found = HfApi().get_safetensors_metadata(model, revision=options.revision)
    except (errors.NotASafetensorsRepoError, errors.SafetensorsParsingError, OSError) as error:
        raise CheckpointError(
            f"{model} has no safetensors weights that can be read ({error}); for a GGUF "
            "repository, pull one of its files and give its path"
        ) from None
    files = found.files_metadata.values()
    spans = [tensor.data_offsets for file in files for tensor in file.tensors.values()]
    size = sum(end - begin for begin, end in spans)
    method = described.facts.quantization or described.facts.dtype
    return sum(found.parameter_count.values()), size, f"safetensors, {method}"


def _description(footprint: Footprint, stored: str) -> Iterator[tuple[str, str]]:
    described = footprint.config
    facts = described.facts
    yield "Architecture", facts.architecture
    yield "Weights", f"{footprint.num_weights / 1e6:,.1f} million, {stored}"
    yield "Size of files", shown_size(footprint.stored_bytes)
    yield "Layers", f"{facts.num_layers}, hidden size {facts.hidden_size}"
    yield "Vocabulary", f"{facts.vocab_size:,} tokens"
    is_limited = facts.max_position < UNLIMITED_POSITIONS
    yield "Context", f"{facts.max_position:,} tokens" if is_limited else "without limit"
    yield "Chat template", _template(described)
    defaults = ", ".join(f"{key} {value}" for key, value in described.sampling_defaults.items())
    yield "Sampling defaults", defaults or "none"
    numbers = described.model.quantization or described.model.dtype
    yield "Memory of weights", f"{shown_size(footprint.weights)} ({numbers})"
    spec = footprint.spec
    if spec.states:
        yield "State of a request", shown_size(spec.bytes_per_state)
    if spec.layers:
        yield "KV cache of a token", shown_size(spec.bytes_per_token)


def _template(described: VllmConfig) -> str:
    try:
        tokenizer = load_tokenizer(described)
    except CheckpointError:
        return "no tokenizer"
    if tokenizer.chat is not None:
        return "none: mistral-common writes chats"
    templates = tokenizer.chat_templates
    if not templates:
        return "none: completions only"
    return "shows tools" if any(map(shows_tools, templates.values())) else "shows no tools"


def _fit(footprint: Footprint, free: int) -> Iterator[tuple[str, str]]:
    """Whether one request of full length fits, and what makes it fit where it does not."""
    described = footprint.config
    if described.device != "cpu":
        yield "Fits", "known at start: the GPU's memory is read then"
        return
    length = described.model.max_model_len
    if not footprint.missing(free):
        yield "Fits this machine", f"yes, {length:,} tokens ({shown_size(free)} of memory are free)"
        return
    fix = fitting_flags(footprint, free)
    lack = f"no: {shown_size(footprint.missing(free))} are missing ({shown_size(free)} are free)"
    yield "Fits this machine", lack
    yield "It fits with", fix or "a smaller model, or one with fewer bits a weight"


def fitting_flags(footprint: Footprint, free: int) -> str | None:
    """The flags of least harm with which one request fits into `free` bytes, None without any."""
    facts = footprint.config.facts
    if facts.format == "gguf":
        kept: tuple[str | None, ...] = (None, "gguf")
    else:
        kept = (None,) if facts.quantization else (None, "int8", "int4")
    for method in kept:
        for is_greedy in (False, True):
            for length in _lengths(footprint.config.model.max_model_len):
                trial, flags = _changed(footprint, method, is_greedy, length)
                if not trial.missing(free):
                    return " ".join(flags)
    return None


def _lengths(longest: int) -> Iterator[int]:
    """The whole context, then halves of it."""
    while longest >= _SHORTEST:
        yield longest
        longest //= 2


def _changed(
    footprint: Footprint, method: str | None, is_greedy: bool, length: int
) -> tuple[Footprint, list[str]]:
    """`footprint` with other options, and the flags that set them."""
    described = footprint.config
    flags = [f"--quantization {method}"] if method else []
    model: dict[str, Any] = {"max_model_len": length}
    model |= {"quantization": method} if method else {}
    cache = described.cache
    if is_greedy:
        cache = replace(cache, gpu_memory_utilization=_MOST_OF_MEMORY)
        flags.append(f"--gpu-memory-utilization {_MOST_OF_MEMORY:g}")
    if length < described.model.max_model_len:
        flags.append(f"--max-model-len {length}")
    changed = replace(described, model=replace(described.model, **model), cache=cache)
    return replace(footprint, config=changed), flags
