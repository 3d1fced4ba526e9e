"""Storage shared by AWQ and GPTQ: matrices with inputs first, packed in words."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_lite.config.quantized.schemes import PackedIntegers
from vllm_lite.errors import CheckpointError
from vllm_lite.quantization.method import StoredTensor


def group_size_of(form: PackedIntegers, input_size: int) -> int:
    """Inputs that share a scale; raises CheckpointError if the layer's size does not fit."""
    group = input_size if form.group_size is None else form.group_size
    if input_size % group or group % 32:
        raise CheckpointError(f"{input_size} inputs of a layer are no groups of {group}")
    return group


def packed(input_size: int, output_size: int, per_item: tuple[int, int]) -> StoredTensor:
    """Unfilled int32 words in host memory, each with per_item inputs."""
    shape = input_size // per_item[0], output_size // per_item[1]
    data = torch.empty(shape, dtype=torch.int32, device="cpu")
    return _by_inputs(data, *per_item)


def scales_of(input_size: int, output_size: int, group: int) -> StoredTensor:
    """Unfilled float32 scales in host memory, for each group of inputs and each output."""
    data = torch.empty(input_size // group, output_size, dtype=torch.float32, device="cpu")
    return _by_inputs(data, group, 1)


def smallest(scales: Tensor) -> Tensor:
    """Convert scales to float16 if that is exact."""
    half = scales.half()
    return half if torch.equal(half.float(), scales) else scales


def _by_inputs(data: Tensor, inputs_per_item: int, outputs_per_item: int) -> StoredTensor:
    return StoredTensor(
        data,
        output_dim=1,
        input_dim=0,
        device=torch.get_default_device(),
        outputs_per_item=outputs_per_item,
        inputs_per_item=inputs_per_item,
    )
