"""CompilationConfig: compiled and captured steps; nothing is compiled in this build."""

from __future__ import annotations

from typing import Any, ClassVar

from vllm_lite.config.option import JsonOption, config, option

_NOTHING_COMPILED = "nothing is compiled and no graphs are captured"


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
        why=_NOTHING_COMPILED,
    )
    use_cudagraph: bool | None = option(
        None,
        "Capture graphs.",
        level="idle",
        why=_NOTHING_COMPILED,
    )
    cudagraph_mode: str | None = option(
        None,
        "What is captured: NONE, PIECEWISE, FULL or a mixture.",
        level="idle",
        why=_NOTHING_COMPILED,
    )
    cudagraph_num_of_warmups: int = option(
        0,
        "Runs before capture.",
        ge=0,
        level="idle",
        why=_NOTHING_COMPILED,
    )
    cudagraph_capture_sizes: list[int] | None = option(
        None,
        "Batch sizes to capture.",
        alone="cudagraph_capture_sizes",
        level="idle",
        why=_NOTHING_COMPILED,
    )
    max_cudagraph_capture_size: int | None = option(
        None,
        "Largest batch size to capture.",
        ge=0,
        alone="max_cudagraph_capture_size",
        level="idle",
        why=_NOTHING_COMPILED,
    )
