"""The batch sizes of decode steps that are captured as CUDA graphs.

`-O` and `--compilation-config` switch capture; sizes are given or vLLM's defaults.
Only whole decode steps are captured; all other steps run eagerly.
"""

from __future__ import annotations

from vllm_lite.config.attention import AttentionConfig
from vllm_lite.config.compilation import CompilationConfig
from vllm_lite.config.model import ModelConfig
from vllm_lite.errors import UsageError

# Launch overhead no longer matters in larger steps.
_LARGEST_BY_DEFAULT = 512
# Their attention synchronizes on context lengths, which a graph cannot.
_WITHOUT_GRAPHS = ("TORCH_SDPA", "FLASHINFER")


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
