"""AWQ checkpoints (`gemm`): 4-bit codes, eight outputs to a word, with scales and zero points."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from vllm_lite.config.quantized.schemes import PackedIntegers
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.grouped_weight import GroupedWeight, from_awq
from vllm_lite.quantization.layouts.packed_tensors import group_size_of, packed, scales_of, smallest
from vllm_lite.quantization.method import StoredTensor

_PER_WORD = 8


class AWQLayout:
    """qweight [N, M / 8] and qzeros [G, M / 8] int32, scales [G, M]."""

    def __init__(self, form: PackedIntegers) -> None:
        self._form = form

    def create_weights(self, input_size: int, output_size: int) -> dict[str, StoredTensor]:
        group = group_size_of(self._form, input_size)
        if output_size % _PER_WORD:
            raise CheckpointError(f"{output_size} outputs are no whole words of {_PER_WORD}")
        return {
            "qweight": packed(input_size, output_size, per_item=(1, _PER_WORD)),
            "qzeros": packed(input_size, output_size, per_item=(group, _PER_WORD)),
            "scales": scales_of(input_size, output_size, group),
        }

    def read(self, weights: Mapping[str, Tensor]) -> GroupedWeight:
        return from_awq(weights["qweight"], weights["qzeros"], smallest(weights["scales"]))
