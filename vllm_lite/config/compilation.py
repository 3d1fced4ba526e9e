"""CompilationConfig: captured steps of a GPU, and their batch sizes; nothing is compiled here.

`-O` and `--compilation-config` switch capture; sizes are given or vLLM's defaults. Decode steps are
captured, and short ones with parts of prompts; all others run eagerly.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from vllm_lite.config.attention import AttentionConfig
from vllm_lite.config.model import ModelConfig
from vllm_lite.config.options.absent import rows
from vllm_lite.config.options.option import JsonOption, Option, config, option
from vllm_lite.errors import UsageError

# The warning for GPU-only keys on a CPU.
NO_GRAPHS_ON_CPU = "nothing is compiled and no graphs are captured on a CPU"
# Launch overhead no longer matters in larger steps.
_LARGEST_BY_DEFAULT = 512
# Their attention synchronizes on context lengths, which a graph cannot.
_WITHOUT_GRAPHS = ("TORCH_SDPA", "FLASHINFER")


@config
class CompilationConfig:
    """Compilation and graph capture."""

    ROWS: ClassVar[tuple[Option, ...]] = rows("--compilation-config")

    JSON_OPTION: ClassVar[JsonOption] = JsonOption(
        "compilation_config", "JSON: capture of CUDA graphs.", ("-cc",)
    )

    use_cudagraph: bool | None = option(
        None,
        "Capture graphs; the older spelling of cudagraph_mode.",
        on_cpu=NO_GRAPHS_ON_CPU,
    )
    cudagraph_mode: (
        Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"] | None
    ) = option(
        None,
        "Steps to capture on a GPU. FULL_DECODE_ONLY: steps with one token of each request, or "
        "with its drafts; FULL and FULL_AND_PIECEWISE, the default: steps of up to 512 tokens with "
        "parts of prompts, too; NONE: none. Other steps run eagerly.",
        works=(None, "NONE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"),
        remedy="use FULL_DECODE_ONLY, which captures decode steps whole, or NONE",
        on_cpu=NO_GRAPHS_ON_CPU,
    )
    cudagraph_capture_sizes: list[int] | None = option(
        None,
        "Numbers of requests whose decode steps are captured; others are padded to the next.",
        alone="cudagraph_capture_sizes",
        on_cpu=NO_GRAPHS_ON_CPU,
    )
    max_cudagraph_capture_size: int | None = option(
        None,
        "Largest number of requests to capture; by default --max-num-seqs, at most 512.",
        ge=0,
        alone="max_cudagraph_capture_size",
        on_cpu=NO_GRAPHS_ON_CPU,
    )
    cudagraph_capture_lazily: bool = option(
        False,
        "Capture a size when a step first needs it, not at start.",
        on_cpu=NO_GRAPHS_ON_CPU,
    )


def capture_sizes(
    compilation: CompilationConfig,
    optimization_level: int,
    model: ModelConfig,
    attention: AttentionConfig,
    max_num_seqs: int,
) -> tuple[int, ...]:
    """Numbers of requests, ascending; empty where nothing is captured. Raises UsageError."""
    if model.enforce_eager or attention.backend in _WITHOUT_GRAPHS:
        return ()
    if not _captures(compilation, optimization_level):
        return ()
    given, largest = (
        compilation.cudagraph_capture_sizes,
        compilation.max_cudagraph_capture_size,
    )
    if given is None:
        if largest is None:
            largest = min(max_num_seqs, _LARGEST_BY_DEFAULT)
        return _default_sizes(largest)
    sizes = sorted(set(given))
    if any(size < 1 for size in sizes):
        raise UsageError(f"--cudagraph-capture-sizes must be at least 1, unlike {sizes[0]}")
    if largest is not None and largest != max(sizes, default=0):
        raise UsageError(
            f"--max-cudagraph-capture-size {largest} is not the largest of "
            f"--cudagraph-capture-sizes, {max(sizes, default=0)}; give one of them"
        )
    return tuple(sizes)


def _captures(compilation: CompilationConfig, optimization_level: int) -> bool:
    if compilation.cudagraph_mode is not None:
        return compilation.cudagraph_mode != "NONE"
    if compilation.use_cudagraph is not None:
        return compilation.use_cudagraph
    return optimization_level > 0


def _default_sizes(largest: int) -> tuple[int, ...]:
    """1, 2, 4, multiples of 8 to 256 and of 16 beyond, and `largest` itself."""
    steps = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    sizes = {size for size in steps if size <= largest}
    return tuple(sorted(sizes | ({largest} if largest > 0 else set())))
