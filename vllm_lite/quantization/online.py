"""Online quantisation of any checkpoint as it is loaded: `int8` on a CPU, and `int4`.

Groups of 32 inputs share a scale, and in int4 a minimum too. Weights are stored as GGUF's types
Q8_0 and Q4_1, so that the same kernels multiply by them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor

from vllm_lite.errors import UsageError
from vllm_lite.kernels.reference.quantized import GROUP, QuantizedRows
from vllm_lite.quantization.method import LinearKernel, LinearMethod, StoredTensor
from vllm_lite.quantization.quantized import QuantizedTable, quantized_kernel
from vllm_lite.quantization.unquantized import UnquantizedLinearMethod

_Q4_1: Final = 3
_Q8_0: Final = 8
# Values converted at a time: their copy stays in a core's cache.
_VALUES_AT_ONCE = 1 << 16


class OnlineLinearMethod(UnquantizedLinearMethod):
    """Plain weights until they are filled, then 8 or 4 bits a value.

    The embedding and the output head always take 8 bits, for accuracy.
    """

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        """`name` is int8 or int4."""
        self._name = name
        super().__init__(dtype)

    def create_weights(self, input_size: int, output_size: int) -> dict[str, StoredTensor]:
        if input_size % GROUP:
            raise UsageError(
                f"--quantization {self._name} needs layers whose inputs are multiples of {GROUP}; "
                f"this model has one of {input_size}: leave the option out"
            )
        data = torch.empty(output_size, input_size, dtype=self._dtype, device="cpu")
        return {"weight": StoredTensor.on_host(data, 0, 1)}

    def process_weights_after_loading(
        self,
        weights: Mapping[str, StoredTensor],
        bias: Tensor | None,
        out_dtype: torch.dtype | None = None,
    ) -> LinearKernel:
        return quantized_kernel([self._rows(weights["weight"])], bias, out_dtype)

    def for_vocabulary(self) -> LinearMethod:
        return OnlineLinearMethod("int8", self._dtype)

    def make_table(self, weights: Mapping[str, StoredTensor]) -> QuantizedTable:
        return QuantizedTable(self._rows(weights["weight"]), self._dtype)

    def _rows(self, stored: StoredTensor) -> QuantizedRows:
        weight = stored.on_device(stored.data)
        convert, kind = (to_q8_0, _Q8_0) if self._name == "int8" else (to_q4_1, _Q4_1)
        return QuantizedRows(_by_rows(convert, weight), kind, weight.shape[1])


def _by_rows(convert: Callable[[Tensor], Tensor], weight: Tensor) -> Tensor:
    count = max(1, _VALUES_AT_ONCE // weight.shape[1])
    return torch.cat([convert(rows) for rows in torch.split(weight, count)])


def to_q8_0(weight: Tensor) -> Tensor:
    """Quantise rows [M, N] to blocks [M, N / 32 * 34] uint8: a float16 scale and 32 int8."""
    groups = weight.float().reshape(weight.shape[0], -1, GROUP)
    scale = (groups.abs().amax(2, keepdim=True) / 127).half()
    codes = _divided(groups, scale).round_().clamp_(-127, 127).to(torch.int8)
    return torch.cat([scale.view(torch.uint8), codes.view(torch.uint8)], 2).flatten(1)


def to_q4_1(weight: Tensor) -> Tensor:
    """Quantise rows [M, N] to blocks [M, N / 32 * 20] uint8: scale, minimum, and 4 bits a value.

    Both are float16; a byte holds values i and i + 16 of a group.
    """
    groups = weight.float().reshape(weight.shape[0], -1, GROUP)
    low, high = groups.aminmax(dim=2, keepdim=True)
    minimum = low.half()
    scale = ((high - minimum.float()) / 15).half()
    codes = _divided(groups - minimum.float(), scale).round_().clamp_(0, 15).to(torch.uint8)
    pairs = codes[..., :16] | codes[..., 16:] << 4
    return torch.cat([scale.view(torch.uint8), minimum.view(torch.uint8), pairs], 2).flatten(1)


def _divided(groups: Tensor, scale: Tensor) -> Tensor:
    wide = scale.float()
    return torch.where(wide == 0, 0.0, groups / wide)
