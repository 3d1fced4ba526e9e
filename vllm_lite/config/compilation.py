"""CompilationConfig: captured steps of a GPU; nothing is compiled in this build.

`graphs` derives the capture sizes.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from vllm_lite.config.absent import rows
from vllm_lite.config.option import JsonOption, Option, config, option

# The warning for GPU-only keys on a CPU.
NO_GRAPHS_ON_CPU = "nothing is compiled and no graphs are captured on a CPU"


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
        "Steps to capture on a GPU. FULL_DECODE_ONLY: steps with one token of each request; FULL "
        "and FULL_AND_PIECEWISE: the same; NONE: none. Other steps run eagerly.",
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
