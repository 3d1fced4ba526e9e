"""Embeddings and linear layers by plain weights, for a row or for each head, in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_lite.kernels.reference.elementwise import act_and_mul
from vllm_lite.kernels.reference.norm import InputNorm, fused_add_rms_norm, rms_norm
from vllm_lite.kernels.reference.sampling import greedy_tokens


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A weight [M, N] in the layout of the implementation that packed it."""

    data: Tensor
    dtype: torch.dtype
    num_outputs: int  # M
    num_inputs: int  # N
    # The magnitude of the rows packed last; NaN if one of their numbers is.
    largest: float = 0.0


@dataclass(frozen=True, slots=True)
class PackedHeads:
    """Weights [H, M, N] in the layout of the implementation that packed them."""

    data: Tensor
    dtype: torch.dtype
    num_heads: int  # H
    num_outputs: int  # M
    num_inputs: int  # N


def embedding(ids: Tensor, rows: Tensor, first_row: int | None = None) -> Tensor:
    """Return rows [V, N] of ids [T] int64: [T, N]. An id outside 0..V-1 raises IndexError.

    With `first_row`, the id of the first row, ids without a row get zeros.
    """
    look_up = torch.nn.functional.embedding
    return look_up_range(lambda i: look_up(i, rows), ids, first_row, len(rows))


def look_up_range(
    look_up: Callable[[Tensor], Tensor], ids: Tensor, first_row: int | None, num_rows: int
) -> Tensor:
    """Look up `ids` [T] in a table whose first row is that of id `first_row`.

    Ids without a row get zeros. Without `first_row`, rows begin with id 0 and all ids have one.
    """
    if first_row is None:
        return look_up(ids)
    rows = ids - first_row
    elsewhere = (rows < 0) | (rows >= num_rows)
    return look_up(rows.masked_fill_(elsewhere, 0)).masked_fill_(elsewhere.unsqueeze(1), 0)


def pack_linear(
    weight: Tensor,
    num_outputs: int | None = None,
    first: int = 0,
    data: Tensor | None = None,
) -> PackedLinear:
    """Prepare weight [M, N] for `linear`; the result holds a copy.

    With `num_outputs`, these are that many outputs' rows from `first` on; `data` is the result's
    of rows packed before, if any.
    """
    count, num_inputs = weight.shape
    total = count if num_outputs is None else num_outputs
    data = weight.new_empty(total, num_inputs) if data is None else data
    data[first : first + count] = weight
    largest = float(weight.abs().amax()) if weight.numel() else 0.0
    return PackedLinear(data, weight.dtype, total, num_inputs, largest)


def linear(
    x: Tensor,
    weight: PackedLinear,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Return x [T, N] times the weight [M, N] transposed, plus bias [M] in float32: [T, M].

    Sums are float32 and rounded once, to out_dtype (default: x's own type). `out` has dense rows.
    """
    wide = None if bias is None else bias.float()
    product = torch.nn.functional.linear(x.float(), weight.data.float(), wide)
    product = product.to(x.dtype if out_dtype is None else out_dtype)
    return product if out is None else out.copy_(product)


def gated_linear(
    x: Tensor, weight: PackedLinear, bias: Tensor | None = None, name: str = "silu"
) -> Tensor:
    """Return act_and_mul(linear(x, weight, bias), name): [T, I], of a weight [2I, N]."""
    return act_and_mul(linear(x, weight, bias), name)


def linear_argmax(
    x: Tensor, weight: PackedLinear, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return greedy_tokens(linear(x, weight, bias, float32)), using less memory."""
    return greedy_tokens(linear(x, weight, bias, torch.float32))


def plain_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    activation: str = "",
) -> Tensor:
    """Return x [T, N] times weight [M, N] transposed, plus bias [M]: [T, M] in `out_dtype`.

    With an activation, act_and_mul follows: [T, M / 2].
    """
    product = fixed_linear(x, weight, bias, out_dtype)
    return act_and_mul(product, activation) if activation else product


def normed_plain_linear(
    x: Tensor,
    norm: InputNorm,
    weight: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
    activation: str = "",
) -> tuple[Tensor, Tensor]:
    """Return (plain_linear of the normalised sum, sum), for the norm's rows x [T, N].

    Both x and the norm's residual may be overwritten.
    """
    normed, total = norm.apply(x, rms_norm, fused_add_rms_norm)
    return plain_linear(normed, weight, bias, out_dtype, activation), total


def fixed_linear(x: Tensor, weight: Tensor, bias: Tensor | None, out_dtype: torch.dtype) -> Tensor:
    """Return x [T, N] times weight [M, N] transposed, plus bias [M]: [T, M] in `out_dtype`.

    Sums are float32, and a row's depend on the row and the weight alone: GPUs otherwise use
    torch's library, which picks the order of sums by the number of rows.
    """
    total = x.float() @ weight.float().T
    return (total if bias is None else total + bias.float()).to(out_dtype)


def pack_heads(weights: Tensor) -> PackedHeads:
    """Prepare weights [H, M, N] for `head_linear`; the result holds a copy."""
    copied = weights.clone(memory_format=torch.contiguous_format)
    return PackedHeads(copied, weights.dtype, *weights.shape)


def head_linear(x: Tensor, weights: PackedHeads) -> Tensor:
    """Multiply each head of x [T, H, N + R] by its weight [M, N] transposed: [T, H, M + R].

    The R numbers after a weight's inputs follow its outputs, unchanged. Sums are float32, rounded
    once.
    """
    inputs, rest = x.tensor_split((weights.num_inputs,), dim=2)
    product = torch.einsum("thn,hmn->thm", inputs.float(), weights.data.float())
    return torch.cat([product.to(x.dtype), rest], dim=2)
