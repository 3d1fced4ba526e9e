"""Linear layers and look-ups by quantised GGUF weights, in plain torch.

A quantised value is scale * code + minimum in a GGUF type; activations are rounded to int8 in
groups of 32 inputs. Knows no threads and no layouts but the file's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vllm_lite.kernels.reference.gguf import dequantize_gguf
from vllm_lite.kernels.reference.linear import look_up_range
from vllm_lite.kernels.reference.sampling import greedy_tokens

# Inputs of an activation row that share a scale.
GROUP = 32
# A group whose largest magnitude is below this counts as zero.
_TINY = 2.0**-100
# GGUF's types without blocks that weights have.
_PLAIN = {0: torch.float32, 1: torch.float16, 30: torch.bfloat16}


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Rows of a weight [M, N] as GGUF stores them: `blocks` [M, bytes of a row] uint8.

    They may be of a type without blocks, plain numbers.
    """

    blocks: Tensor
    ggml_type: int
    num_inputs: int  # N

    @property
    def num_outputs(self) -> int:
        return self.blocks.shape[0]

    @property
    def plain(self) -> Tensor | None:
        """The numbers [M, N] of a type without blocks."""
        dtype = _PLAIN.get(self.ggml_type)
        return None if dtype is None else self.blocks.view(dtype)


def plain_rows(values: Tensor) -> QuantizedRows:
    """Numbers [M, N], which are not copied if rows are dense, as rows."""
    kind = next(kind for kind, dtype in _PLAIN.items() if dtype is values.dtype)
    dense = values if values.stride(1) == 1 else values.contiguous()
    return QuantizedRows(dense.view(torch.uint8), kind, values.shape[1])


class QuantizedPart(NamedTuple):
    """Outputs of one type, in the layout of the implementation that packed them."""

    data: Tensor
    ggml_type: int
    num_outputs: int

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A weight [M, N] whose outputs are those of its parts, one after another.

    `table` [parts, 4] int64 is the C++ kernels' array of QuantizedPart:
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
    """Concatenate packed parts along outputs."""
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
    """Round each group of 32 inputs of x [T, N] to 255 steps of its largest magnitude: float32.

    A group with a value that is not finite becomes NaN.
    """
    groups = x.float().reshape(x.shape[0], -1, GROUP)
    largest = groups.abs().amax(2, keepdim=True)
    is_finite = groups.isfinite().all(2, keepdim=True)
    is_zero = largest < _TINY
    # Scalar / tensor would multiply by a reciprocal and round twice.
    factors = torch.full_like(largest, 127.0) / largest
    codes = torch.where(is_zero | ~is_finite, 0.0, (groups * factors).round())
    scales = torch.where(is_zero, 0.0, largest / 127.0).masked_fill(~is_finite, torch.nan)
    return (codes * scales).reshape(x.shape)


def quantized_linear(
    x: Tensor,
    weight: QuantizedWeight,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Return rounded x [T, N] times the weight [M, N] transposed, plus bias [M]: [T, M].

    A row's result does not depend on the others. Sums are float32 and rounded once, to out_dtype
    (default: x's own type). `out` has dense rows.
    """
    rounded = round_activations(x)
    columns = [rounded @ _expand(part, weight.num_inputs, torch.float32).T for part in weight.parts]
    product = torch.cat(columns, 1)
    if bias is not None:
        product += bias.float()
    product = product.to(x.dtype if out_dtype is None else out_dtype)
    return product if out is None else out.copy_(product)


def quantized_lookup(
    weight: QuantizedWeight, ids: Tensor, dtype: torch.dtype, first_row: int | None = None
) -> Tensor:
    """Dequantise rows `ids` [T] int64 of a weight of one part: [T, N] of dtype.

    An id beyond M raises IndexError. With `first_row`: see `look_up_range`.
    """
    (part,) = weight.parts

    def look_up(rows: Tensor) -> Tensor:
        taken = part._replace(data=part.data[rows], num_outputs=rows.shape[0])
        return _expand(taken, weight.num_inputs, dtype)

    return look_up_range(look_up, ids, first_row, part.num_outputs)


def _expand(part: QuantizedPart, num_inputs: int, dtype: torch.dtype) -> Tensor:
    shape = (part.num_outputs, num_inputs)
    return dequantize_gguf(part.data.reshape(-1), part.ggml_type, shape, dtype)


def quantized_linear_argmax(
    x: Tensor, weight: QuantizedWeight, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return greedy_tokens(quantized_linear(x, weight, bias, float32)), using less memory."""
    return greedy_tokens(quantized_linear(x, weight, bias, torch.float32))
