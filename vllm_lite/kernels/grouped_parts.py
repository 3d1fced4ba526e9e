"""GGUF rows as grouped weights for a GPU's linear kernels; neighbours of one type are joined.

Knows the storage types by number and no kernel; values stay exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.codebook_weight import PackedWeight
from vllm_lite.kernels.grouped_gguf import block_of, from_gguf, is_supported
from vllm_lite.kernels.reference.quantized import QuantizedRows


@dataclass(frozen=True, slots=True)
class GroupedPart:
    """Some outputs of a weight, all of one storage type."""

    weight: PackedWeight
    ggml_type: int

    @property
    def data(self) -> Tensor:
        """The plane of codes, most of the weight."""
        return self.weight.codes

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes


@dataclass(frozen=True, slots=True)
class GroupedParts:
    """A weight [M, N] whose outputs are those of its parts, one after another."""

    parts: tuple[GroupedPart, ...]
    num_outputs: int  # M
    num_inputs: int  # N

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


def pack_quantized(parts: Sequence[QuantizedRows]) -> GroupedParts:
    """Pack rows, whose types may differ, on their own device.

    Raises CheckpointError for a type that cannot be multiplied, and for damaged rows.
    """
    packed = []
    for kind, group in groupby(parts, key=lambda rows: rows.ggml_type):
        blocks = [_checked(rows) for rows in group]
        whole = blocks[0].contiguous() if len(blocks) == 1 else torch.cat(blocks)
        packed.append(GroupedPart(from_gguf(whole.flatten(), kind, len(whole)), kind))
    num_outputs = sum(rows.num_outputs for rows in parts)
    return GroupedParts(tuple(packed), num_outputs, parts[0].num_inputs)


def _checked(rows: QuantizedRows) -> Tensor:
    if not is_supported(rows.ggml_type):
        raise CheckpointError(
            f"GGUF's type {rows.ggml_type} cannot be multiplied by on a GPU; use --quantization "
            "dequantize, or convert the model to Q4_K or Q8_0"
        )
    elements, size = block_of(rows.ggml_type)
    if rows.blocks.shape[1] * elements != rows.num_inputs * size:
        raise CheckpointError(
            f"GGUF rows of {rows.num_inputs} values have {rows.blocks.shape[1]} bytes of storage, "
            f"not {rows.num_inputs * size // elements}: the file is damaged"
        )
    return rows.blocks
