"""GPTQ checkpoints: 4- or 8-bit codes, several inputs to a word.

With act-order `g_idx` names each input's group; the parts of a fused layer, which read the same
inputs, share it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vllm_lite.config.quantized.schemes import PackedIntegers
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.grouped_weight import GroupedWeight, from_gptq
from vllm_lite.quantization.layouts.packed_tensors import group_size_of, packed, scales_of, smallest
from vllm_lite.quantization.method import StoredTensor


class GPTQLayout:
    """qweight [N / W, M] and qzeros [G, M / W] int32, scales [G, M] and g_idx [N]."""

    def __init__(self, form: PackedIntegers) -> None:
        self._form = form

    def create_weights(self, input_size: int, output_size: int) -> dict[str, StoredTensor]:
        group = group_size_of(self._form, input_size)
        per_word = 32 // self._form.bits
        if output_size % per_word:
            raise CheckpointError(f"{output_size} outputs are no whole words of {per_word}")
        order = torch.empty(input_size, dtype=torch.int32, device="cpu")
        return {
            "qweight": packed(input_size, output_size, per_item=(per_word, 1)),
            "qzeros": packed(input_size, output_size, per_item=(group, per_word)),
            "scales": scales_of(input_size, output_size, group),
            "g_idx": StoredTensor.on_host(order, None, 0),
        }

    def read(self, weights: Mapping[str, Tensor]) -> GroupedWeight:
        return from_gptq(
            weights["qweight"],
            weights["qzeros"],
            smallest(weights["scales"]),
            # A rank has the scales of its own inputs' groups.
            weights["g_idx"] - weights["g_idx"].min(),
            self._form.bits,
            zeros_are_less_by_one=self._form.zeros_are_less_by_one,
        )
