"""Linear layers and look-ups of grouped weights, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_lite.kernels.codebook_weight import CodebookWeight, PackedWeight, expand_books
from vllm_lite.kernels.grouped_parts import GroupedParts
from vllm_lite.kernels.grouped_parts import pack_quantized as pack_quantized
from vllm_lite.kernels.grouped_weight import expand, expand_rows
from vllm_lite.kernels.reference.elementwise import act_and_mul
from vllm_lite.kernels.reference.linear import look_up_range
from vllm_lite.kernels.reference.rounding import ActivationRounding, round_activations


def expand_grouped(weight: PackedWeight, dtype: torch.dtype) -> Tensor:
    """All values [M, N] of a weight, rounded once to dtype."""
    if isinstance(weight, CodebookWeight):
        return expand_books(weight).to(dtype)
    return expand(weight).to(dtype)


def pack_grouped(weight: PackedWeight) -> PackedWeight:
    """Prepare a weight for `grouped_linear` and `grouped_lookup`."""
    return weight


def grouped_linear(
    x: Tensor,
    weight: PackedWeight,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    rounding: ActivationRounding | None = None,
) -> Tensor:
    """Return x [T, N] times the weight [M, N] transposed, plus bias [M]: [T, M].

    With `rounding`, x is rounded by it. Else the weight's values are rounded to x's type, except by
    CPUs. Sums are float32 and rounded once, to out_dtype (default: x's own type). `out` has dense
    rows.
    """
    out_dtype = out_dtype or x.dtype
    if rounding is not None:
        x = round_activations(x, rounding)
    wide = None if bias is None else bias.float()
    values = expand_grouped(weight, x.dtype).float()
    product = torch.nn.functional.linear(x.float(), values, wide)
    product = product.to(out_dtype)
    return product if out is None else out.copy_(product)


def gated_grouped_linear(
    x: Tensor, weight: PackedWeight, bias: Tensor | None, activation: str
) -> Tensor:
    """Return act_and_mul(grouped_linear(x, weight, bias), activation): [T, M / 2]."""
    return act_and_mul(grouped_linear(x, weight, bias), activation)


def grouped_lookup(
    weight: PackedWeight, ids: Tensor, dtype: torch.dtype, first_row: int | None = None
) -> Tensor:
    """Dequantise rows `ids` [T] int64, rounded once to dtype: [T, N].

    An id beyond M raises IndexError. With `first_row`: see `look_up_range`.
    """

    def look_up(rows: Tensor) -> Tensor:
        if isinstance(weight, CodebookWeight):
            return expand_books(weight.of_outputs(rows)).to(dtype)
        return expand_rows(weight, rows).to(dtype)

    return look_up_range(look_up, ids, first_row, weight.num_outputs)


def quantized_linear(
    x: Tensor,
    weight: GroupedParts,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Concatenate grouped_linear of each part; activations are not quantised."""
    columns = [grouped_linear(x, part.weight, None, torch.float32) for part in weight.parts]
    product = torch.cat(columns, 1)
    if bias is not None:
        product += bias.float()
    product = product.to(x.dtype if out_dtype is None else out_dtype)
    return product if out is None else out.copy_(product)


def quantized_lookup(
    weight: GroupedParts, ids: Tensor, dtype: torch.dtype, first_row: int | None = None
) -> Tensor:
    """Dequantise rows `ids` [T] int64 of a weight of one part, rounded once to dtype: [T, N]."""
    (part,) = weight.parts
    rows = expand_grouped(part.weight, dtype)
    return look_up_range(rows.__getitem__, ids, first_row, len(rows))
