"""GGUF's types by codebooks as `CodebookWeight`, exact to the bit.

Layouts of the blocks: the GGUF format's documents. Rows are made of whole blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from vllm_lite.kernels.codebook_weight import CodebookWeight, bits_of, pack_bits
from vllm_lite.kernels.gguf_books import book_of

_SUPER_GROUP = 256
_Q1_0 = 41


@dataclass(frozen=True, slots=True)
class _Entries:
    """Contents of blocks [M, B, bytes], [M, B, numbers] each."""

    indices: Tensor  # int
    scales: Tensor  # float16
    odds: Tensor | None = None  # uint8
    signs: Tensor | None = None  # uint8


def from_books(raw: Tensor, ggml_type: int, num_outputs: int) -> CodebookWeight:
    """The weight with `num_outputs` rows of blocks in `raw`."""
    elements, block_bytes, read = BOOK_FORMATS[ggml_type]
    entries = read(raw.view(torch.uint8).view(num_outputs, -1, block_bytes))
    books = _books(ggml_type, raw.device)
    indices = _turned(entries.indices)
    num_inputs = len(indices) * books.shape[2]
    high_bits = _HIGH_BITS.get(len(books[0]), 0)
    high = pack_bits((indices >> 8).to(torch.uint8), high_bits, 0)[None] if high_bits else None
    odds = None if entries.odds is None else _turned(entries.odds)
    return CodebookWeight(
        codes=indices.to(torch.uint8)[None],
        high_codes=high,
        signs=None if entries.signs is None else _turned(entries.signs),
        odds=None if odds is None else pack_bits(odds, 4, 0),
        scales=_turned(entries.scales),
        books=books,
        group_size=elements if odds is None else num_inputs // len(odds),
        num_outputs=num_outputs,
        num_inputs=num_inputs,
    )


# By an index's values.
_HIGH_BITS = {512: 1, 1024: 2, 4096: 4}


@cache
def _books(ggml_type: int, device: torch.device) -> Tensor:
    """The book [1, count, 4 or 8] float16, times what its type's scales have in common."""
    if ggml_type == _Q1_0:
        indices = torch.arange(256, dtype=torch.uint8, device="cpu")[:, None]
        book = 2 * bits_of(indices, 1, 1).float() - 1
    else:
        book = book_of(ggml_type).float()
        if int(book.min()) < 0:
            # Bit 11 of an index takes an eighth from all values; else it is added.
            book = torch.cat((book + 0.125, book - 0.125))
        else:
            book *= {18: 0.25, 21: 1.0}.get(ggml_type, 0.125)
    return book.half()[None].to(device)


def _turned(part: Tensor) -> Tensor:
    return part.flatten(1).T.contiguous()


def _halves(blocks: Tensor, at: int) -> Tensor:
    return blocks[..., at : at + 2].contiguous().view(torch.float16)


def _words(blocks: Tensor, dtype: torch.dtype) -> Tensor:
    """Little-endian words of bytes [..., n], as int64 without a sign."""
    words: Tensor = blocks.contiguous().view(dtype).long() & (2 ** (8 * dtype.itemsize) - 1)
    return words


def _fields(words: Tensor, width: int, count: int) -> Tensor:
    """Bits of words [..., n] as [..., n * count], lowest first."""
    parts = [(words >> width * i) & (2**width - 1) for i in range(count)]
    return torch.stack(parts, -1).flatten(-2)


def _even_signs(seven: Tensor) -> Tensor:
    """Seven signs and the eighth that makes the number of ones even."""
    parity = seven ^ seven >> 4
    parity = parity ^ parity >> 2
    return (seven | ((parity ^ parity >> 1) & 1) << 7).to(torch.uint8)


def _xxs(indices: Tensor, words: Tensor, scales: Tensor) -> _Entries:
    """Words of four times seven signs and, above them, a scale."""
    signs = _even_signs(_fields(words, 7, 4))
    return _Entries(indices.int(), scales, (words >> 28).to(torch.uint8), signs)


def _iq2_xxs(blocks: Tensor) -> _Entries:
    groups = blocks[..., 2:].reshape(*blocks.shape[:2], 8, 8)
    words = _words(groups[..., 4:], torch.int32).squeeze(-1)
    return _xxs(groups[..., :4].flatten(-2), words, _halves(blocks, 0))


def _iq3_xxs(blocks: Tensor) -> _Entries:
    return _xxs(blocks[..., 2:66], _words(blocks[..., 66:], torch.int32), _halves(blocks, 0))


def _iq2_xs(blocks: Tensor) -> _Entries:
    words = _words(blocks[..., 2:66], torch.int16)
    signs = _even_signs(words >> 9)
    return _Entries(words & 511, _halves(blocks, 0), _fields(blocks[..., 66:], 4, 2), signs)


def _iq2_s(blocks: Tensor) -> _Entries:
    indices = blocks[..., 2:34].int() | _fields(blocks[..., 66:74], 2, 4).int() << 8
    odds = _fields(blocks[..., 74:], 4, 2)
    return _Entries(indices, _halves(blocks, 0), odds, blocks[..., 34:66])


def _iq3_s(blocks: Tensor) -> _Entries:
    indices = blocks[..., 2:66].int() | _fields(blocks[..., 66:74], 1, 8).int() << 8
    odds = _fields(blocks[..., 106:], 4, 2)
    return _Entries(indices, _halves(blocks, 0), odds, blocks[..., 74:106])


def _iq1_s(blocks: Tensor) -> _Entries:
    rest = _words(blocks[..., 34:], torch.int16)
    takes = (rest >> 15).repeat_interleave(4, dim=-1)
    indices = blocks[..., 2:34].int() | _fields(rest, 3, 4) << 8 | takes << 11
    return _Entries(indices, _halves(blocks, 0), (rest >> 12 & 7).to(torch.uint8))


def _iq1_m(blocks: Tensor) -> _Entries:
    indices = blocks[..., :32].int() | _fields(blocks[..., 32:48], 4, 2).int() << 8
    words = _words(blocks[..., 48:], torch.int16)
    # The half float is in the highest four bits of four words.
    places = torch.tensor([0, 4, 8, 12], device=blocks.device)
    half = ((words >> 12) << places).sum(-1, keepdim=True).to(torch.int16).view(torch.float16)
    return _Entries(indices, half, _fields(words, 3, 4).to(torch.uint8))


def _q1_0(blocks: Tensor) -> _Entries:
    return _Entries(blocks[..., 2:].int(), _halves(blocks, 0))


# By GGUF type number: values and bytes of a block, and its reader.
BOOK_FORMATS: dict[int, tuple[int, int, Callable[[Tensor], _Entries]]] = {
    16: (_SUPER_GROUP, 66, _iq2_xxs),
    17: (_SUPER_GROUP, 74, _iq2_xs),
    18: (_SUPER_GROUP, 98, _iq3_xxs),
    19: (_SUPER_GROUP, 50, _iq1_s),
    21: (_SUPER_GROUP, 110, _iq3_s),
    22: (_SUPER_GROUP, 82, _iq2_s),
    29: (_SUPER_GROUP, 56, _iq1_m),
    _Q1_0: (128, 18, _q1_0),
}
