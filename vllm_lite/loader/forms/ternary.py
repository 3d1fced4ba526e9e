"""Weights of -1, 0 and 1 times one number for a layer (BitNet b1.58, arXiv:2402.17764).

Checkpoints hold four codes in a byte, or floats that are rounded when they are read. Where rows
can be GGUF's blocks of two bits, which hold these values exactly, they are kept so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from vllm_lite.config.quantized.schemes import Scheme, Ternary
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.reference.quantized import QuantizedRows
from vllm_lite.layers.weights import WeightSlot
from vllm_lite.loader.stored import JoinedTensor, StoredTensor, part_of
from vllm_lite.loader.weight_rules import Part, WeightRules
from vllm_lite.log import init_logger

logger = init_logger(__name__)

# GGUF's type and the inputs of its block: scale * code - minimum, in sixteenths of a block.
_Q2_K, _BLOCK = 10, 256
_LEAST_SCALE = 1e-5


@dataclass(frozen=True, slots=True)
class TernaryTensor(JoinedTensor):
    """A matrix; `scale` is None where it is stored as floats."""

    stored: StoredTensor
    scale: StoredTensor | None
    form: Ternary

    @property
    def name(self) -> str:
        return self.stored.name

    @property
    def parts(self) -> tuple[StoredTensor, ...]:
        return (self.stored,) if self.scale is None else (self.stored, self.scale)

    @property
    def shape(self) -> tuple[int, ...]:
        rows, *others = self.stored.shape
        return (rows if self.scale is None else 4 * rows, *others)

    def slices(self, rules: WeightRules) -> Iterator[TernaryTensor]:
        for stored in self.stored.slices(rules):
            yield replace(self, stored=stored)

    def fill(self, slot: WeightSlot, part: Part) -> None:
        codes, scale = self._read()
        taken = codes
        for dim, chosen in enumerate(part.region(slot)):
            taken = taken[(slice(None),) * dim + (chosen,)]
        is_kept = slot.keep is not None and part.transform is None and not part.is_transposed
        if is_kept and taken.shape[1] % _BLOCK == 0:
            assert slot.keep is not None
            slot.keep(QuantizedRows(as_blocks(taken, scale), _Q2_K, taken.shape[1]))
        else:
            if slot.keep is not None:
                _warn_of_floats(taken.shape[1], slot.tensor.dtype)
            slot.write(part.values((taken.float() - 1) * scale))

    def _read(self) -> tuple[Tensor, float]:
        """Codes [M, N] uint8 of 0, 1 and 2, and what one of them is worth."""
        stored = self.stored.read()
        if self.scale is None:
            worth = stored.float().abs().mean().clamp(min=_LEAST_SCALE)
            if not worth.isfinite():
                raise CheckpointError(
                    f"{self.shown} holds numbers that are not finite; fetch it again"
                )
            return (stored.float() / worth).round().clamp(-1, 1).add(1).byte(), worth.item()
        numbers = self.scale.read().float().flatten().tolist()
        is_scale = len(numbers) == 1 and 0 < abs(numbers[0]) < math.inf
        if stored.dtype is not torch.uint8 or not is_scale:
            raise CheckpointError(
                f"{self.shown} has to be bytes and one finite number that is not zero; "
                "fetch them again"
            )
        (scale,) = numbers
        codes = torch.cat([stored >> 2 * place & 3 for place in range(4)])
        return codes, 1 / scale if self.form.is_divided else scale


@cache
def _warn_of_floats(num_inputs: int, dtype: torch.dtype) -> None:
    """Say once in a process which layers take more memory than their codes."""
    logger.warning(
        "weights with %d inputs, which are not kept in blocks of %d, are dequantised to %s as they "
        "are loaded",
        num_inputs,
        _BLOCK,
        str(dtype).removeprefix("torch."),
    )


def as_blocks(codes: Tensor, scale: float) -> Tensor:
    """[M, N] uint8 -> [M, bytes of a row] uint8: scale * code - scale as GGUF's Q2_K."""
    places = codes.view(len(codes), -1, 2, 4, 32)
    bits = sum(places[..., i, :] << 2 * i for i in range(4))
    assert isinstance(bits, Tensor)
    blocks = bits.flatten(2)
    ones = torch.full((*blocks.shape[:2], 16), 0x11, dtype=torch.uint8)
    scales = torch.full((*blocks.shape[:2], 2), scale, dtype=torch.float16).view(torch.uint8)
    return torch.cat([ones, blocks, scales], 2).flatten(1)


def join_ternary(
    tensors: Iterable[StoredTensor], scheme: Scheme, rules: WeightRules
) -> Iterator[StoredTensor | TernaryTensor]:
    """The tensors, codes with their scales as one; raises CheckpointError where one lacks."""
    stored = {tensor.name: tensor for tensor in tensors}
    for name, tensor in stored.items():
        scale = stored.get(f"{name}_scale")
        form = scheme.form_of(name.removesuffix(".weight"))
        targets = [target for target, _ in rules.parts_of(rules.name_of(name))]
        is_matrix = targets[0].endswith("_proj.weight")
        if not isinstance(form, Ternary):
            yield tensor
        elif form.is_rounded:
            yield TernaryTensor(tensor, None, form) if is_matrix else tensor
        elif scale is not None:
            yield TernaryTensor(tensor, scale, form)
        elif is_matrix and tensor.nbytes == math.prod(tensor.shape):
            part_of(stored, f"{name}_scale", tensor)
        elif not name.endswith(".weight_scale"):
            yield tensor
