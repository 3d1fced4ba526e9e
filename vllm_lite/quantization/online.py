"""Online quantisation of any checkpoint to GGUF's blocks as it is loaded, for the same kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

from vllm_lite.config.checkpoints.gguf_header import GGML_TYPES
from vllm_lite.config.quantized.in_flight import BLOCKS
from vllm_lite.errors import UsageError
from vllm_lite.kernels.pieces import rows_at_once
from vllm_lite.kernels.reference.quantized import QuantizedRows
from vllm_lite.log import init_logger
from vllm_lite.quantization.ggml_blocks import CONVERTERS
from vllm_lite.quantization.method import EmbeddingTable, LinearKernel, LinearMethod, StoredTensor
from vllm_lite.quantization.quantized import QuantizedTable, quantized_kernel
from vllm_lite.quantization.unquantized import InFlightMethod, PlainTable, plain_kernel

logger = init_logger(__name__)

_CACHED_VALUES = 1 << 16
# For layers whose inputs are no multiple of 256.
OTHERS = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
_NUMBERS = {kind.name: number for number, kind in GGML_TYPES.items()}


class OnlineLinearMethod(InFlightMethod):
    """Plain weights until they are filled, then blocks of few bits a value.

    Layers whose inputs are no whole blocks take another type as llama.cpp's do, or stay plain. The
    embedding and the output head always take 8 bits, for accuracy.
    """

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        """`name` is one of BLOCKS: of groups of 32 inputs, or of 256 (K)."""
        self._name = name
        super().__init__(dtype)
        # Layers by what they take: a type, or "" for none.
        self._counts: Counter[str] = Counter()

    def create_weights(self, input_size: int, output_size: int) -> dict[str, StoredTensor]:
        self._counts[_type_for(self._name, input_size)] += 1
        return super().create_weights(input_size, output_size)

    def process_weights_after_loading(
        self,
        weights: Mapping[str, StoredTensor],
        bias: Tensor | None,
        out_dtype: torch.dtype | None = None,
    ) -> LinearKernel:
        rows = self._rows(weights["weight"])
        if isinstance(rows, Tensor):
            return plain_kernel(rows, bias, out_dtype)
        return quantized_kernel([rows], bias, out_dtype)

    def for_vocabulary(self) -> LinearMethod:
        return OnlineLinearMethod("int8", self._dtype)

    def make_table(self, weights: Mapping[str, StoredTensor]) -> EmbeddingTable:
        rows = self._rows(weights["weight"])
        return PlainTable(rows) if isinstance(rows, Tensor) else QuantizedTable(rows, self._dtype)

    def check(self) -> None:
        """Warn of layers that take another type; raises UsageError if none takes any."""
        others = {kind: n for kind, n in self._counts.items() if kind != BLOCKS[self._name]}
        if others.keys() == self._counts.keys() == {""}:
            raise UsageError(
                f"rounding to {self._name} needs layers whose inputs are multiples of 32, which "
                "this model has none of; leave it out"
            )
        if others:
            shown = (
                f"{n} {f'take {kind}' if kind else 'stay plain'}" for kind, n in others.items()
            )
            _warn(self._name, ", ".join(shown))

    def _rows(self, stored: StoredTensor) -> QuantizedRows | Tensor:
        weight = stored.placed()
        kind = _type_for(self._name, weight.shape[1])
        if not kind:
            return weight
        convert = CONVERTERS[kind]
        count = rows_at_once(weight.shape[1], weight.device, _CACHED_VALUES)
        blocks = torch.cat([convert(rows) for rows in torch.split(weight, count)])
        return QuantizedRows(blocks, _NUMBERS[kind], weight.shape[1])


def _type_for(name: str, num_inputs: int) -> str:
    """The type of a layer's blocks; "" if there is none for so many inputs."""
    wanted = BLOCKS[name]
    kinds = (wanted, OTHERS.get(wanted, wanted))
    fitting = (kind for kind in kinds if num_inputs % GGML_TYPES[_NUMBERS[kind]].block_size == 0)
    return next(fitting, "")


@cache
def _warn(name: str, others: str) -> None:
    """Say once in a process which layers are no whole blocks."""
    logger.warning("%s does not divide the inputs of all layers: of these %s", name, others)
