"""Linear methods for AQLM's checkpoints, whose layers have books of vectors of their own.

Parts of a fused layer keep theirs: each is multiplied by itself. Embeddings and heads may, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from vllm_lite.config.quantized.schemes import Codebooks
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.codebook_weight import CodebookWeight, expand_books
from vllm_lite.kernels.dispatch import has_bfloat16_pairs, ops
from vllm_lite.quantization.gguf import SideBySide
from vllm_lite.quantization.grouped import GroupedKernel, GroupedTable
from vllm_lite.quantization.method import (
    EmbeddingTable,
    LinearKernel,
    LinearMethod,
    StoredTensor,
    Unpacking,
)
from vllm_lite.quantization.unquantized import PlainTable, UnquantizedLinearMethod, plain_kernel

_VECTOR = 8


@dataclass(frozen=True, slots=True)
class _Parts(SideBySide):
    """Grouped kernels that write their own outputs: by `cat` no step could be recorded."""

    kernels: tuple[GroupedKernel, ...]

    def __call__(self, x: Tensor) -> Tensor:
        sizes = [kernel.weight.num_outputs for kernel in self.kernels]
        out = x.new_empty((len(x), sum(sizes)), dtype=self.kernels[0].out_dtype or x.dtype)
        for kernel, part in zip(self.kernels, torch.split(out, sizes, 1), strict=True):
            kernel(x, part)
        return out


class CodebookMethod(UnquantizedLinearMethod):
    """Multiplies by vectors that indices stand for; activations stay as they are."""

    def __init__(self, form: Codebooks, dtype: torch.dtype, keeps_packed: bool = True) -> None:
        """Unless `keeps_packed`, weights are dequantised to dtype as they are loaded."""
        super().__init__(dtype)
        self._form = form
        self._keeps_packed = keeps_packed
        # Books that are read, by the numbers that layers hold until they are finished.
        self._books: dict[int, Tensor] = {}
        self._numbers = count()

    def create_weights(self, input_size: int, output_size: int) -> dict[str, StoredTensor]:
        if input_size % _VECTOR:
            raise CheckpointError(f"{input_size} inputs of a layer are no vectors of {_VECTOR}")
        device = torch.get_default_device()

        def stored(width: int, dtype: torch.dtype, unpacking: Unpacking) -> StoredTensor:
            data = torch.empty(output_size, width, dtype=dtype, device="cpu")
            return StoredTensor(data, 0, None, device=device, unpacking=unpacking)

        books, bits = self._form.num_books, self._form.bits
        number = torch.int16 if bits > 8 else torch.int8
        indices = torch.empty(output_size, input_size // _VECTOR, dtype=torch.int32, device="cpu")
        packed = Unpacking(number, lambda shape: (*shape, books), self._joined)
        spread = Unpacking(None, lambda shape: (shape[0], 1, 1, 1), lambda s, full: s.view(*full))
        book = Unpacking(None, lambda _: (books, 2**bits, 1, _VECTOR), self._kept)
        return {
            "codes": StoredTensor(
                indices, 0, 1, device=device, inputs_per_item=_VECTOR, unpacking=packed
            ),
            "scales": stored(1, torch.float32, spread),
            "codebooks": stored(1, torch.int32, book),
        }

    def for_vocabulary(self) -> LinearMethod:
        return self

    def make_table(self, weights: Mapping[str, StoredTensor]) -> EmbeddingTable:
        (part,) = self._parts(weights)
        if self._keeps_packed:
            return GroupedTable(part, self._dtype)
        return PlainTable(expand_books(part).to(self._dtype))

    def process_weights_after_loading(
        self,
        weights: Mapping[str, StoredTensor],
        bias: Tensor | None,
        out_dtype: torch.dtype | None = None,
    ) -> LinearKernel:
        parts = self._parts(weights)
        if not self._keeps_packed:
            values = torch.cat([expand_books(part) for part in parts])
            return plain_kernel(values.to(self._dtype), bias, out_dtype)
        kernels, first = [], 0
        for part in parts:
            end = first + part.num_outputs
            wide = None if bias is None else bias[first:end].float()
            kernels.append(GroupedKernel(ops().pack_grouped(part), wide, out_dtype, ops()))
            first = end
        return kernels[0] if len(kernels) == 1 else _Parts(tuple(kernels))

    def _joined(self, stored: Tensor, _: Sequence[int]) -> Tensor:
        """Indices of all books in one number, the first book's lowest."""
        bits = self._form.bits
        indices = stored.int() & (2**bits - 1)
        places = torch.arange(0, 16, bits, dtype=torch.int32)
        joined: Tensor = (indices << places).sum(-1, dtype=torch.int32)
        return joined

    def _kept(self, book: Tensor, shape: Sequence[int]) -> Tensor:
        """The number of a part's book, for each of its outputs."""
        number, half = next(self._numbers), book.squeeze(2).half()
        if not half.isfinite().all():
            raise CheckpointError(
                "holds numbers that are not finite, or beyond 65,504; fetch the weights again"
            )
        # A CPU multiplies bfloat16 by bfloat16, as the package does.
        is_brief = self._keeps_packed and self._dtype is torch.bfloat16 and has_bfloat16_pairs()
        self._books[number] = half.bfloat16() if is_brief else half
        return torch.full(tuple(shape), number, dtype=torch.int32)

    def _parts(self, weights: Mapping[str, StoredTensor]) -> list[CodebookWeight]:
        codes = weights["codes"].placed()
        scales = weights["scales"].placed()
        numbers, counts = torch.unique_consecutive(
            weights["codebooks"].data[:, 0], return_counts=True
        )
        parts, first = [], 0
        for number, size in zip(numbers.tolist(), counts.tolist(), strict=True):
            rows = slice(first, first + size)
            low, high = (codes[rows] & 255).to(torch.uint8).T, (codes[rows] >> 8).to(torch.uint8).T
            is_one = self._form.num_books == 1
            parts.append(
                CodebookWeight(
                    codes=low[None].contiguous() if is_one else torch.stack((low, high)),
                    high_codes=high[None].contiguous() if is_one else None,
                    signs=None,
                    odds=None,
                    scales=scales[rows].T.contiguous(),
                    books=weights["codebooks"].on_device(self._books.pop(number)),
                    group_size=_VECTOR * codes.shape[1],
                    num_outputs=size,
                    num_inputs=_VECTOR * codes.shape[1],
                )
            )
            first += size
        return parts
