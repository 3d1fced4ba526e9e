"""Online quantisation of any checkpoint to codes with scales, as `config/quantized/in_flight` says.

Activations stay as they are, unless the form rounds them. The embedding and the output head stay
plain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from vllm_lite.config.quantized.schemes import StoredCodes
from vllm_lite.kernels.grouped_weight import GROUP_MULTIPLE
from vllm_lite.quantization.grouped import grouped_kernel
from vllm_lite.quantization.layouts.codes import CodesLayout
from vllm_lite.quantization.layouts.rounding import encode
from vllm_lite.quantization.method import LinearKernel, StoredTensor
from vllm_lite.quantization.stored_codes import activation_rounding
from vllm_lite.quantization.unquantized import InFlightMethod


class RoundedLinearMethod(InFlightMethod):
    """Plain weights until they are filled, then codes.

    `name` is what users call the form. The last group of a row may be shorter than the others,
    except for rtn: its groups shrink to 64, 32 or 16 inputs where one of these divides a layer's.
    """

    def __init__(self, name: str, form: StoredCodes, dtype: torch.dtype) -> None:
        super().__init__(dtype)
        self._name = name
        self._form = form

    def process_weights_after_loading(
        self,
        weights: Mapping[str, StoredTensor],
        bias: Tensor | None,
        out_dtype: torch.dtype | None = None,
    ) -> LinearKernel:
        weight, rounding = weights["weight"].placed(), self._form.rounding
        rounded = None
        if rounding is not None:
            rounded = activation_rounding(rounding, weight.device, weight.shape[1])
        form = self._form_of(weight.shape[1])
        tensors = encode(weight, form)
        return grouped_kernel(CodesLayout(form).read(tensors), bias, out_dtype, rounded)

    def _form_of(self, num_inputs: int) -> StoredCodes:
        rows, columns = self._form.block
        if self._name != "rtn" or columns is None:
            return self._form
        size = math.gcd(num_inputs, columns)
        return replace(self._form, block=(rows, size if size >= GROUP_MULTIPLE else columns))
