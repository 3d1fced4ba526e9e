"""Packed weights of a mixture's experts as one weight: the outputs of one after those of another.

Every value stays exact. Knows no kernel and no layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vllm_lite.kernels.codebook_weight import CodebookWeight, PackedWeight
from vllm_lite.kernels.grouped_weight import GroupedWeight
from vllm_lite.kernels.reference.rounding import ActivationRounding, join_roundings


@dataclass(frozen=True, slots=True)
class QuantizedStack:
    """A linear layer of E experts whose outputs are those of parts, one after another.

    A part has E * M outputs, expert after expert. Its `books` are [E * B, 2**bits, V], or
    [B, 2**bits, V] for all.
    """

    parts: tuple[PackedWeight, ...]
    bias: Tensor | None  # [E, M] float32
    # Which input an expert's column multiplies, [E, N] int64; None: they are in order.
    orders: Tensor | None
    num_experts: int
    rounding: ActivationRounding | None = None  # by `join_roundings`

    @property
    def num_outputs(self) -> int:
        """Outputs of an expert."""
        return sum(part.num_outputs for part in self.parts) // self.num_experts

    @property
    def num_inputs(self) -> int:
        """Inputs of an expert's row."""
        part = self.parts[0]
        return part.row_size if isinstance(part, GroupedWeight) else part.num_inputs


def stack_weights(
    experts: Sequence[tuple[PackedWeight, ...]],
    biases: Sequence[Tensor] | None,
    roundings: Sequence[ActivationRounding | None] = (),
) -> QuantizedStack:
    """Join the parts of all experts; raises ValueError for those that are unlike each other."""
    parts = []
    for alike in zip(*experts, strict=True):
        if len({(type(part), part.num_outputs, part.num_inputs) for part in alike}) > 1:
            raise ValueError("experts must be of one form and size")
        of_books = [part for part in alike if isinstance(part, CodebookWeight)]
        parts.append(
            _stacked_books(of_books)
            if of_books
            else _stacked_groups([part for part in alike if isinstance(part, GroupedWeight)])
        )
    orders = [of_expert[0].permutation for of_expert in experts]
    bias = None if biases is None else torch.stack(list(biases))
    ordered = _stacked_orders(orders, parts[0])
    return QuantizedStack(tuple(parts), bias, ordered, len(experts), join_roundings(roundings))


def _stacked_orders(orders: list[Tensor | None], part: PackedWeight) -> Tensor | None:
    if all(order is None for order in orders):
        return None
    usual = torch.arange(part.num_inputs, device=part.codes.device)
    return torch.stack([usual if order is None else order for order in orders])


def _joined(planes: Sequence[Tensor | None]) -> Tensor | None:
    """Planes side by side by outputs, the last dimension but of codes the second."""
    held = [plane for plane in planes if plane is not None]
    if not held:
        return None
    if len(held) < len(planes):
        raise ValueError("experts must have the same planes")
    if len({plane.dtype for plane in held}) > 1:
        held = [plane.float() for plane in held]
    return torch.cat(held, 1)


def _stacked_groups(weights: list[GroupedWeight]) -> GroupedWeight:
    first = weights[0]
    if len({(weight.bits, weight.group_size) for weight in weights}) > 1:
        raise ValueError("experts must have groups of one size")
    # Those of 8-bit floats have NaN.
    tables = [weight.table.nan_to_num() for weight in weights if weight.table is not None]
    if tables and not all(torch.equal(table, tables[0]) for table in tables):
        raise ValueError("experts must have one table")
    if len({(weight.offset, weight.zeros is None) for weight in weights}) > 1:
        weights = [_with_zeros(weight) for weight in weights]
    if any(weight.minimums is not None for weight in weights):
        weights = [_with_minimums(weight) for weight in weights]
    return replace(
        first,
        codes=torch.cat([weight.codes for weight in weights], 1),
        high_codes=_joined([weight.high_codes for weight in weights]),
        scales=torch.cat([weight.scales for weight in _of_one_type(weights)], 1),
        minimums=_joined([weight.minimums for weight in weights]),
        zeros=_joined([weight.zeros for weight in weights]),
        super_scales=_joined([weight.super_scales for weight in weights]),
        super_minimums=_joined([weight.super_minimums for weight in weights]),
        permutation=None,
        offset=weights[0].offset,
        num_outputs=len(weights) * first.num_outputs,
    )


def _with_zeros(weight: GroupedWeight) -> GroupedWeight:
    """The weight with zero points of its own in place of an offset."""
    zeros = torch.full_like(weight.scales, weight.offset, dtype=torch.float32)
    if weight.zeros is not None:
        zeros += weight.zeros.float()
    narrow = zeros.clamp(0, 255).to(torch.uint8)
    is_narrow = torch.equal(narrow.float(), zeros)
    return replace(weight, offset=0, zeros=narrow if is_narrow else zeros)


def _with_minimums(weight: GroupedWeight) -> GroupedWeight:
    if weight.minimums is not None:
        return weight
    return replace(weight, minimums=torch.zeros_like(weight.scales))


def _of_one_type(weights: list[GroupedWeight]) -> list[GroupedWeight]:
    if len({weight.scales.dtype for weight in weights}) == 1:
        return weights
    return [replace(weight, scales=weight.scales.float()) for weight in weights]


def _stacked_books(weights: list[CodebookWeight]) -> CodebookWeight:
    first = weights[0]
    books = [weight.books for weight in weights]
    is_one = all(book is books[0] or torch.equal(book, books[0]) for book in books)
    return replace(
        first,
        codes=torch.cat([weight.codes for weight in weights], 2),
        high_codes=_joined_last([weight.high_codes for weight in weights]),
        signs=_joined([weight.signs for weight in weights]),
        odds=_joined([weight.odds for weight in weights]),
        scales=torch.cat([weight.scales for weight in weights], 1),
        books=books[0] if is_one else torch.cat(books),
        num_outputs=len(weights) * first.num_outputs,
    )


def _joined_last(planes: list[Tensor | None]) -> Tensor | None:
    held = [plane for plane in planes if plane is not None]
    return torch.cat(held, 2) if held else None
