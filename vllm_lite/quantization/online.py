"""Online quantisation of any checkpoint to GGUF's blocks as it is loaded, for the same kernels."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vllm_lite.config.checkpoints.gguf_header import GGML_TYPES
from vllm_lite.config.quantized.in_flight import BLOCKS
from vllm_lite.errors import UsageError
from vllm_lite.kernels.pieces import rows_at_once
from vllm_lite.kernels.reference.quantized import QuantizedRows
from vllm_lite.quantization.ggml_blocks import CONVERTERS
from vllm_lite.quantization.method import LinearKernel, LinearMethod, StoredTensor
from vllm_lite.quantization.quantized import QuantizedTable, quantized_kernel
from vllm_lite.quantization.unquantized import UnquantizedLinearMethod

_CACHED_VALUES = 1 << 16
_NUMBERS = {kind.name: number for number, kind in GGML_TYPES.items()}


class OnlineLinearMethod(UnquantizedLinearMethod):
    """Plain weights until they are filled, then blocks of few bits a value.

    The embedding and the output head always take 8 bits, for accuracy.
    """

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        """`name` is one of BLOCKS: of groups of 32 inputs, or of 256 (K)."""
        self._name = name
        super().__init__(dtype)
        self._number = _NUMBERS[BLOCKS[name]]
        self._size = GGML_TYPES[self._number].block_size

    def create_weights(self, input_size: int, output_size: int) -> dict[str, StoredTensor]:
        if input_size % self._size:
            raise UsageError(
                f"--quantization {self._name} needs layers whose inputs are multiples of "
                f"{self._size}; this model has one of {input_size}: leave the option out"
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
        convert = CONVERTERS[BLOCKS[self._name]]
        count = rows_at_once(weight.shape[1], weight.device, _CACHED_VALUES)
        blocks = torch.cat([convert(rows) for rows in torch.split(weight, count)])
        return QuantizedRows(blocks, self._number, weight.shape[1])
