"""CompilationConfig: captured steps of a GPU; nothing is compiled in this build.

What the keys that count come to is worked out in `graphs`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from vllm_lite.config.option import JsonOption, config, option

_NOTHING_COMPILED = "models are not compiled, as kernels are written for what they do"
_WHOLE_STEPS = "decode steps are captured whole, and nothing else is captured"
# What is said of a key that counts on a GPU where the model runs on a CPU.
NO_GRAPHS_ON_CPU = "nothing is compiled and no graphs are captured on a CPU"


@config
class CompilationConfig:
    """Compilation and graph capture."""

    JSON_OPTION: ClassVar[JsonOption] = JsonOption(
        "compilation_config", "JSON: what is compiled and captured at start.", ("-cc",)
    )

    mode: int | str | None = option(
        None,
        "Compilation mode, 0 to 3 or by name.",
        level="idle",
        why=_NOTHING_COMPILED,
    )
    level: int | None = option(
        None,
        "Compilation mode, as releases before 0.11 called it.",
        ge=0,
        le=3,
        level="idle",
        why=_NOTHING_COMPILED,
    )
    backend: str = option(
        "",
        "Compiler backend.",
        level="idle",
        why=_NOTHING_COMPILED,
    )
    custom_ops: list[str] = option(
        [],
        "Operations to turn on (+name) or off (-name).",
        level="idle",
        why=_NOTHING_COMPILED,
    )
    splitting_ops: list[str] | None = option(
        None,
        "Operations at which graphs are divided.",
        level="idle",
        why=_NOTHING_COMPILED,
    )
    use_inductor: bool | None = option(
        None,
        "Compile with Inductor.",
        level="idle",
        why=_NOTHING_COMPILED,
    )
    compile_sizes: list[Any] | None = option(
        None,
        "Batch sizes to compile for.",
        level="idle",
        why=_NOTHING_COMPILED,
    )
    inductor_compile_config: dict[str, Any] = option(
        {},
        "Settings of Inductor.",
        level="idle",
        why=_NOTHING_COMPILED,
    )
    cache_dir: str = option(
        "",
        "Directory for compiled code.",
        level="idle",
        why=_NOTHING_COMPILED,
    )
    pass_config: dict[str, Any] = option(
        {},
        "Passes over the compiled graph.",
        level="idle",
        why=_NOTHING_COMPILED,
    )
    full_cuda_graph: bool | None = option(
        None,
        "Capture whole steps.",
        level="idle",
        why=_WHOLE_STEPS,
    )
    use_cudagraph: bool | None = option(
        None,
        "Capture graphs, as releases before cudagraph_mode said it.",
        on_cpu=NO_GRAPHS_ON_CPU,
    )
    cudagraph_mode: (
        Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"] | None
    ) = option(
        None,
        "What is captured on a GPU. FULL_DECODE_ONLY: steps with one token of each request; FULL "
        "and FULL_AND_PIECEWISE: the same, other steps run as they are; NONE: nothing.",
        works=(None, "NONE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"),
        remedy="use FULL_DECODE_ONLY, which captures decode steps whole, or NONE",
        on_cpu=NO_GRAPHS_ON_CPU,
    )
    cudagraph_num_of_warmups: int = option(
        0,
        "Runs before capture.",
        ge=0,
        level="idle",
        why="each size is run once before it is captured",
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
        "Capture a size when a step first has it, not at start.",
        on_cpu=NO_GRAPHS_ON_CPU,
    )
