"""Products with weights that stay as few bits as their checkpoint has, in plain torch.

The specification of the quantised operations: `reference` offers them as its own. A quantised
value is scale * code + minimum, its numbers those of a GGUF type; activations are rounded to
bytes in groups of 32 inputs. Knows no threads and no layouts but the file's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from vllm_lite.kernels.reference.gguf import dequantize_gguf

# Inputs of a row of activations that share a scale.
GROUP = 32
# A group whose largest magnitude is below this counts as zero.
_TINY = 2.0**-100


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Rows of a weight [M, N] as GGUF stores them: `blocks` [M, bytes of a row] uint8."""

    blocks: Tensor
    ggml_type: int
    num_inputs: int  # N

    @property
    def num_outputs(self) -> int:
        return self.blocks.shape[0]


class PackedPart(Protocol):
    """Some outputs of a packed weight, all of one type."""

    @property
    def data(self) -> Tensor: ...

    @property
    def ggml_type(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


class PackedRows(Protocol):
    """A weight as the implementation that packed it multiplies by it."""

    @property
    def parts(self) -> Sequence[PackedPart]: ...

    @property
    def nbytes(self) -> int: ...


class QuantizedPart(NamedTuple):
    """Some outputs of a weight, all of one type, in the layout of whoever packed them."""

    data: Tensor
    ggml_type: int
    num_outputs: int

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A weight [M, N] whose outputs are those of its parts, one after another.

    `table` [parts, 4] int64 says where the parts lie, in the words of the kernels' QuantizedPart:
    type, address, first output, number of outputs.
    """

    parts: tuple[QuantizedPart, ...]
    table: Tensor
    num_outputs: int  # M
    num_inputs: int  # N

    @property
    def nbytes(self) -> int:
        return sum(part.data.nbytes for part in self.parts)


def make_quantized_weight(parts: Sequence[QuantizedPart], num_inputs: int) -> QuantizedWeight:
    """Join packed parts side by side."""
    rows, first = [], 0
    for part in parts:
        rows.append((part.ggml_type, part.data.data_ptr(), first, part.num_outputs))
        first += part.num_outputs
    table = torch.tensor(rows, dtype=torch.int64)
    return QuantizedWeight(tuple(parts), table, first, num_inputs)


def pack_quantized(parts: Sequence[QuantizedRows]) -> QuantizedWeight:
    """Prepare rows, whose types may differ, for `quantized_linear` and `quantized_lookup`.

    The result holds copies. Raises CheckpointError for a type that cannot be multiplied.
    """
    kept = [QuantizedPart(p.blocks.clone(), p.ggml_type, p.num_outputs) for p in parts]
    return make_quantized_weight(kept, parts[0].num_inputs)


def round_activations(x: Tensor) -> Tensor:
    """x [T, N], each group of 32 inputs rounded to 255 steps of its largest magnitude: float32.

    A group with a value that is not finite becomes NaN.
    """
    groups = x.float().reshape(x.shape[0], -1, GROUP)
    largest = groups.abs().amax(2, keepdim=True)
    is_finite = groups.isfinite().all(2, keepdim=True)
    is_zero = largest < _TINY
    # A number divided by a tensor would be that times a reciprocal, rounded twice.
    factors = torch.full_like(largest, 127.0) / largest
    codes = torch.where(is_zero | ~is_finite, 0.0, (groups * factors).round())
    scales = torch.where(is_zero, 0.0, largest / 127.0).masked_fill(~is_finite, torch.nan)
    return (codes * scales).reshape(x.shape)


def quantized_linear(
    x: Tensor,
    weight: QuantizedWeight,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Return rounded x [T, N] times the weight [M, N] transposed, plus bias [M]: [T, M].

    A row's result does not depend on the others. Sums are float32 and rounded once, to out_dtype
    (default: x's own type).
    """
    rounded = round_activations(x)
    columns = [rounded @ _expand(part, weight.num_inputs, torch.float32).T for part in weight.parts]
    product = torch.cat(columns, 1)
    if bias is not None:
        product += bias.float()
    return product.to(x.dtype if out_dtype is None else out_dtype)


def quantized_lookup(
    weight: QuantizedWeight, ids: Tensor, dtype: torch.dtype, first_row: int | None = None
) -> Tensor:
    """Rows `ids` [T] int64 of a weight of one part, exactly as the format says: [T, N] of dtype.

    An id beyond M raises IndexError. With `first_row`: see `look_up_range`.
    """
    (part,) = weight.parts

    def look_up(rows: Tensor) -> Tensor:
        taken = part._replace(data=part.data[rows], num_outputs=rows.shape[0])
        return _expand(taken, weight.num_inputs, dtype)

    return look_up_range(look_up, ids, first_row, part.num_outputs)


def look_up_range(
    look_up: Callable[[Tensor], Tensor], ids: Tensor, first_row: int | None, num_rows: int
) -> Tensor:
    """The rows of `ids` [T] in a table that begins with that of the id `first_row`.

    Ids that have no row there get zeros. Without `first_row` all ids have rows, from id 0 on.
    """
    if first_row is None:
        return look_up(ids)
    rows = ids - first_row
    elsewhere = (rows < 0) | (rows >= num_rows)
    return look_up(rows.masked_fill_(elsewhere, 0)).masked_fill_(elsewhere.unsqueeze(1), 0)


def _expand(part: QuantizedPart, num_inputs: int, dtype: torch.dtype) -> Tensor:
    shape = (part.num_outputs, num_inputs)
    return dequantize_gguf(part.data.reshape(-1), part.ggml_type, shape, dtype)
