"""The name of a quantization method, or what a checkpoint is stored as, to its object.

A checkpoint may leave layers as they are: the method is chosen by the layer's path.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vllm_lite.config.quantized_checkpoint import ScaledCodes, StoredForm
from vllm_lite.errors import CheckpointError, UsageError
from vllm_lite.kernels.dispatch import is_compiled, is_deterministic, narrow_ops
from vllm_lite.quantization.awq import AWQLayout
from vllm_lite.quantization.gguf import GGUFLinearMethod
from vllm_lite.quantization.gptq import GPTQLayout
from vllm_lite.quantization.grouped import GroupedLinearMethod
from vllm_lite.quantization.method import LinearMethod
from vllm_lite.quantization.online import OnlineLinearMethod
from vllm_lite.quantization.scaled import SCALED_NUMBERS, ScaledLinearMethod
from vllm_lite.quantization.scaled_checkpoint import ScaledCheckpointMethod
from vllm_lite.quantization.unquantized import UnquantizedLinearMethod


class LinearMethods:
    """How each linear layer of a model stores its weights."""

    def __init__(
        self, quantization: str | None, dtype: torch.dtype, form: StoredForm | None
    ) -> None:
        self._method = get_linear_method(quantization, dtype, form)
        self._plain = UnquantizedLinearMethod(dtype)
        self._is_plain = form.is_plain if form is not None else _is_router

    def of(self, layers: Sequence[str]) -> LinearMethod:
        """The method of `layers`, by the checkpoint's names, that are one product here."""
        plain = [layer for layer in layers if self._is_plain(layer)]
        if plain and len(plain) < len(layers):
            raise CheckpointError(
                f"{plain[0]} is not quantised and is one product with layers that are: "
                f"{', '.join(layer for layer in layers if layer not in plain)}"
            )
        return self._plain if plain else self._method


def _is_router(layer: str) -> bool:
    """Whether it chooses experts: small, and a rounded one would choose others."""
    return layer.endswith(".mlp.gate")


def get_linear_method(
    quantization: str | None, dtype: torch.dtype, form: StoredForm | None = None
) -> LinearMethod:
    """The method for `quantization` of a checkpoint in `form`; None is plain.

    A quantised checkpoint is kept as it is, or with "dequantize" expanded as it is loaded.
    """
    keeps = quantization != "dequantize"
    if quantization is not None and keeps and is_deterministic() and not is_compiled():
        raise UsageError(
            "--deterministic (VLLM_BATCH_INVARIANT) cannot be kept on a GPU by --quantization "
            f"{quantization}, whose tiles follow from the number of rows; leave one of them out"
        )
    if isinstance(form, ScaledCodes):
        return ScaledCheckpointMethod(form, dtype, keeps)
    if form is not None:
        layout = AWQLayout(form) if form.layout == "awq" else GPTQLayout(form)
        return GroupedLinearMethod(layout, dtype, keeps)
    if quantization in (None, "dequantize"):
        return UnquantizedLinearMethod(dtype)
    if quantization == "gguf":
        return GGUFLinearMethod(dtype)
    narrow = narrow_ops()
    if quantization in SCALED_NUMBERS and narrow is not None:
        return ScaledLinearMethod(SCALED_NUMBERS[quantization], dtype, narrow)
    if quantization in ("int8", "int4"):
        return OnlineLinearMethod(quantization, dtype)
    if quantization == "fp8":
        raise UsageError("--quantization fp8 multiplies on a GPU alone; use int8 or int4 on a CPU")
    raise UsageError(
        f"--quantization {quantization} is not supported; use int8, int4 or fp8, or a checkpoint "
        "that is quantised"
    )
