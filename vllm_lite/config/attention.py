"""AttentionConfig: which kernel computes attention."""

from __future__ import annotations

from typing import ClassVar, Literal

from vllm_lite.config.absent import rows
from vllm_lite.config.option import JsonOption, Option, config, option


@config
class AttentionConfig:
    """The attention kernel."""

    ROWS: ClassVar[tuple[Option, ...]] = rows("--attention-config")

    JSON_OPTION: ClassVar[JsonOption] = JsonOption(
        "attention_config", "JSON: the attention kernel and its settings.", ("-ac",)
    )

    backend: (
        Literal[
            "CPU_ATTN",
            "CUDA",
            "FLASH_ATTN",
            "FLASHINFER",
            "FLEX_ATTENTION",
            "TORCH_SDPA",
            "TRITON_ATTN",
            "XFORMERS",
        ]
        | None
    ) = option(
        None,
        "The kernel, by vLLM's name. On a GPU: TRITON_ATTN, the default; CUDA, this package's own "
        "for decode steps, if it was built; FLASH_ATTN and FLASHINFER, if the "
        "packages flash-attn and flashinfer-python are installed, the latter without graphs; "
        "TORCH_SDPA, slow and without graphs. On a CPU: CPU_ATTN.",
        alone="attention_backend",
        works=("CPU_ATTN", "TRITON_ATTN", "CUDA", "TORCH_SDPA", "FLASH_ATTN", "FLASHINFER"),
        remedy="use TRITON_ATTN, CUDA, FLASH_ATTN, FLASHINFER or TORCH_SDPA on a GPU and CPU_ATTN "
        "on a CPU",
    )
