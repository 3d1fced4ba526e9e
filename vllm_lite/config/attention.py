"""AttentionConfig: which kernel computes attention."""

from __future__ import annotations

from typing import ClassVar, Literal

from vllm_lite.config.option import JsonOption, config, option

_FOR_GPU = "leave it out: it tunes GPU kernels, and there is no GPU backend yet"


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
        "The kernel, by vLLM's name; CPU_ATTN: this package's for CPU, CUDA: its own for GPUs.",
        alone="attention_backend",
        works=("CPU_ATTN",),
        remedy="use CPU_ATTN or leave it out",
    )
    flash_attn_version: Literal[2, 3, 4] | None = option(
        None,
        "Version of FlashAttention.",
        level="absent",
        remedy=_FOR_GPU,
    )
    use_cudnn_prefill: bool = option(
        False,
        "Compute prefills with cuDNN.",
        level="absent",
        remedy=_FOR_GPU,
    )
    use_trtllm_attention: bool | None = option(
        None,
        "Use the kernels of TensorRT-LLM.",
        level="absent",
        remedy=_FOR_GPU,
    )
