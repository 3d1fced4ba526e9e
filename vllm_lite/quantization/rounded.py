"""Online quantisation of any checkpoint to codes with scales, as `config/quantized/in_flight` says.

Activations stay as they are, unless the form rounds them. The embedding and the output head stay
plain.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vllm_lite.config.quantized.schemes import StoredCodes
from vllm_lite.errors import UsageError
from vllm_lite.quantization.grouped import grouped_kernel
from vllm_lite.quantization.layouts.codes import CodesLayout
from vllm_lite.quantization.layouts.rounding import encode
from vllm_lite.quantization.method import LinearKernel, StoredTensor
from vllm_lite.quantization.stored_codes import activation_rounding
from vllm_lite.quantization.unquantized import UnquantizedLinearMethod


class RoundedLinearMethod(UnquantizedLinearMethod):
    """Plain weights until they are filled, then codes."""

    def __init__(self, form: StoredCodes, dtype: torch.dtype) -> None:
        super().__init__(dtype)
        self._form = form
        self._layout = CodesLayout(form)

    def create_weights(self, input_size: int, output_size: int) -> dict[str, StoredTensor]:
        rows, columns = self._form.block
        if rows == 1 and columns and input_size % columns:
            raise UsageError(
                f"--quantization by {self._form.number} needs layers whose inputs are multiples "
                f"of {columns}; this model has one of {input_size}: use fp8 or int8"
            )
        data = torch.empty(output_size, input_size, dtype=self._dtype, device="cpu")
        return {"weight": StoredTensor.on_host(data, 0, 1)}

    def process_weights_after_loading(
        self,
        weights: Mapping[str, StoredTensor],
        bias: Tensor | None,
        out_dtype: torch.dtype | None = None,
    ) -> LinearKernel:
        stored = weights["weight"]
        weight, rounding = stored.on_device(stored.data), self._form.rounding
        rounded = None
        if rounding is not None:
            rounded = activation_rounding(rounding, weight.device, weight.shape[1])
        tensors = encode(weight, self._form)
        return grouped_kernel(self._layout.read(tensors), bias, out_dtype, rounded)
