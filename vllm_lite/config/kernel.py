"""KernelConfig: which library computes what on a GPU; the kernels here are chosen by themselves."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from vllm_lite.config.option import JsonOption, config, option

_OWN = "leave it at auto: the fastest kernels of this package are chosen at start"
_NO_EXPERTS = "leave it at auto: each device has one implementation of experts"
_NO_INDEXER = "leave it at auto: no model here has sparse attention"
_NO_TUNING = "the kernels of this package need no tuning"


@config
class KernelConfig:
    """Kernels of matrix products, experts and small operations."""

    JSON_OPTION: ClassVar[JsonOption] = JsonOption(
        "kernel_config", "JSON: which library computes what, and what is tuned at start."
    )

    ir_op_priority: dict[str, Any] = option(
        {},
        "JSON: for each small operation, libraries in order of preference.",
        alone="ir_op_priority",
        level="absent",
        remedy="leave it out: the fastest kernels of this package are chosen at start",
    )
    linear_backend: Literal[
        "aiter",
        "auto",
        "b12x",
        "conch",
        "cutlass",
        "deep_gemm",
        "emulation",
        "exllama",
        "fbgemm",
        "flashinfer_b12x",
        "flashinfer_cudnn",
        "flashinfer_cutedsl",
        "flashinfer_cutlass",
        "flashinfer_trtllm",
        "humming",
        "machete",
        "marlin",
        "torch",
        "triton",
        "xpu",
        "xpu_woq",
    ] = option(
        "auto",
        "Library of quantised matrix products.",
        alone="linear_backend",
        level="absent",
        remedy=_OWN,
    )
    linear_backend_per_quant: dict[str, Any] | None = option(
        None,
        "The same for each way of quantising.",
        level="absent",
        remedy="leave it out: the fastest kernels of this package are chosen at start",
    )
    moe_backend: Literal[
        "aiter",
        "aiter_mega_moe",
        "aiter_triton_mxfp4_bf16",
        "auto",
        "b12x",
        "batched_triton",
        "cutlass",
        "deep_gemm",
        "deep_gemm_mega_moe",
        "emulation",
        "flashinfer_b12x",
        "flashinfer_cutedsl",
        "flashinfer_cutlass",
        "flashinfer_moe_ep_cutedsl",
        "flashinfer_moe_ep_mega_deep_gemm",
        "flashinfer_trtllm",
        "flydsl",
        "hpc",
        "humming",
        "marlin",
        "rdna3",
        "triton",
        "triton_unfused",
    ] = option(
        "auto",
        "Library of experts' products.",
        alone="moe_backend",
        level="absent",
        remedy=_NO_EXPERTS,
    )
    sparse_indexer_topk_backend: Literal[
        "aiter",
        "auto",
        "cooperative",
        "deep_select",
        "flashinfer",
        "per_row",
        "persistent",
        "torch",
    ] = option(
        "auto",
        "What picks the tokens of sparse attention.",
        alone="sparse_indexer_topk_backend",
        level="absent",
        remedy=_NO_INDEXER,
    )
    enable_flashinfer_autotune: bool | None = option(
        None,
        "Tune FlashInfer's kernels at start.",
        alone="enable_flashinfer_autotune",
        level="idle",
        why=_NO_TUNING,
    )
    enable_rocm_segmented_attn_autotune: bool = option(
        False, "Tune attention on ROCm at start.", level="idle", why=_NO_TUNING
    )
    enable_cutedsl_warmup: bool = option(
        True, "Compile CuTe kernels at start.", level="idle", why="nothing is compiled at start"
    )
    enable_jit_warmup: bool = option(
        True,
        "Compile what is compiled late at start.",
        level="idle",
        why="nothing is compiled at start",
    )
