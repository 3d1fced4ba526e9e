"""AttentionConfig: which kernel computes attention."""

from __future__ import annotations

from typing import ClassVar, Literal

from vllm_lite.config.option import JsonOption, config, option

_NOT_OURS = "leave it out: it tunes kernels of other packages, which choose for themselves here"


@config
class AttentionConfig:
    """The attention kernel."""

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
        "The kernel, by vLLM's name. On a GPU TRITON_ATTN, the default; CUDA, this package's own "
        "in CUDA C++ for decode steps, where it was built; FLASH_ATTN and FLASHINFER, where the "
        "packages flash-attn and flashinfer-python are installed, the latter without graphs; "
        "TORCH_SDPA, slow and without graphs. On a CPU CPU_ATTN.",
        alone="attention_backend",
        works=("CPU_ATTN", "TRITON_ATTN", "CUDA", "TORCH_SDPA", "FLASH_ATTN", "FLASHINFER"),
        remedy="use TRITON_ATTN, CUDA, FLASH_ATTN, FLASHINFER or TORCH_SDPA on a GPU and CPU_ATTN "
        "on a CPU",
    )
    flash_attn_version: Literal[2, 3, 4] | None = option(
        None,
        "Version of FlashAttention.",
        level="absent",
        remedy=_NOT_OURS,
    )
    use_cudnn_prefill: bool = option(
        False,
        "Compute prefills with cuDNN.",
        level="absent",
        remedy=_NOT_OURS,
    )
    use_trtllm_attention: bool | None = option(
        None,
        "Use the kernels of TensorRT-LLM.",
        level="absent",
        remedy=_NOT_OURS,
    )
