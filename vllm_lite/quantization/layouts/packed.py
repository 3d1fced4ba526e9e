"""The tensors in which tools pack integers in groups, by the names of their layouts.

Each is unpacked to rows of outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import torch
from torch import Tensor

from vllm_lite.config.quantized.schemes import PackedIntegers
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.dispatch import ops
from vllm_lite.kernels.reference.words import numbers
from vllm_lite.quantization.layouts.tiles import Kind, from_tiled_scales, from_tiles, pairs_of
from vllm_lite.quantization.layouts.words import (
    fast_numbers,
    padded_groups,
    paired_numbers,
    stacked_numbers,
)

# Codes and places of codes are numbers of inputs; `order` is an input's group; `channels` are
# factors of the scales; the others belong to groups. `zeros` may be floats.
Role = Literal[
    "codes",
    "pairs",
    "order",
    "channels",
    "zeros",
    "scales",
    "negated_minimums",
]


@dataclass(frozen=True, slots=True)
class Packed:
    """A tensor of a layer: how it is stored, and whose values it holds."""

    role: Role
    # None: floating-point numbers.
    dtype: torch.dtype | None
    shape: Callable[[int, int], tuple[int, ...]]
    values: Callable[[Tensor, int, int], Tensor]
    inputs_per_item: int = 1
    # The value where a checkpoint leaves the tensor out.
    default: int | None = None
    # Writes all values to a tensor [rows, columns] on the host.
    fill: Callable[[Tensor, Tensor], None] | None = None


def _flipped(stored: Tensor, rows: int, columns: int) -> Tensor:
    return stored.T


def _floats(role: Role, inputs_first: bool = True) -> Packed:
    """Floats of groups, or of outputs alone."""
    if inputs_first:
        return Packed(role, None, lambda rows, groups: (groups, rows), _flipped)
    return Packed(role, None, lambda rows, groups: (rows, groups), lambda stored, *_: stored)


def _words(count: int, bits: int) -> int:
    return -(-count * bits // 32)


def _awq(form: PackedIntegers) -> dict[str, Packed]:
    def values(stored: Tensor, rows: int, columns: int) -> Tensor:
        return ops().unpack_words(stored, 4, are_outputs=True)

    def fill(stored: Tensor, out: Tensor) -> None:
        ops().unpack_words(stored, 4, True, out)

    def shape(rows: int, columns: int) -> tuple[int, int]:
        return columns, _words(rows, 4)

    return {
        "qweight": Packed("codes", torch.int32, shape, values, fill=fill),
        "qzeros": Packed("zeros", torch.int32, shape, values, default=_middle(form)),
        "scales": _floats("scales"),
    }


def _middle(form: PackedIntegers) -> int | None:
    """The zero point of a layer without any."""
    return 2 ** (form.bits - 1) - form.zeros_are_less_by_one if form.is_symmetric else None


def _awq_gemv(form: PackedIntegers) -> dict[str, Packed]:
    def groups(count: int) -> int:
        return padded_groups(count, form.group_size or 128)

    def values(stored: Tensor, rows: int, columns: int) -> Tensor:
        return numbers(stored, 4)

    return {
        "qweight": Packed("codes", torch.int32, lambda m, n: (m, _words(n, 4)), values),
        "qzeros": Packed(
            "zeros",
            torch.int32,
            lambda m, g: (m, groups(g) // 8),
            values,
            default=_middle(form),
        ),
        "scales": Packed("scales", None, lambda m, g: (m, groups(g)), lambda stored, *_: stored),
    }


def _awq_gemv_fast(form: PackedIntegers) -> dict[str, Packed]:
    def shape(rows: int, count: int) -> tuple[int, int]:
        return padded_groups(count, form.group_size or 128), rows

    def values(stored: Tensor, rows: int, columns: int) -> Tensor:
        return fast_numbers(stored)

    return {
        "qweight": Packed("codes", torch.int16, lambda m, n: (m // 4, n), values),
        "qzeros": Packed("negated_minimums", None, shape, _flipped),
        "scales": Packed("scales", None, shape, _flipped),
    }


def _gptq(form: PackedIntegers) -> dict[str, Packed]:
    def codes(stored: Tensor, rows: int, columns: int) -> Tensor:
        return ops().unpack_words(stored.T, form.bits)

    def fill(stored: Tensor, out: Tensor) -> None:
        ops().unpack_words(stored.T, form.bits, out=out)

    def zeros(stored: Tensor, rows: int, columns: int) -> Tensor:
        return numbers(stored, form.bits).T

    bits = form.bits
    return {
        "qweight": Packed(
            "codes", torch.int32, lambda m, n: (_words(n, bits), m), codes, fill=fill
        ),
        "qzeros": Packed(
            "zeros",
            torch.int32,
            lambda m, g: (g, _words(m, bits)),
            zeros,
            default=_middle(form),
        ),
        "scales": _floats("scales"),
        "g_idx": Packed(
            "order", torch.int32, lambda _, n: (n,), lambda stored, *_: stored, default=0
        ),
    }


def _bitblas(form: PackedIntegers) -> dict[str, Packed]:
    """BitBLAS's bytes: rows of outputs, with codes in the order in which its kernels take them.

    It writes no zero points where they are all the middle. Such bytes of eight bits may be signed.
    """
    bits = form.bits

    def zeros(stored: Tensor, rows: int, columns: int) -> Tensor:
        return numbers(stored, bits).T

    def codes(stored: Tensor, rows: int, columns: int) -> Tensor:
        if bits == 8:
            return _codes_around_128(stored) if form.is_symmetric else stored.view(torch.uint8)
        return paired_numbers(stored, bits) if form.is_paired else numbers(stored, bits)

    def scales(stored: Tensor, rows: int, columns: int) -> Tensor:
        if stored.dtype is not (torch.float16 if form.is_paired else torch.bfloat16):
            raise CheckpointError(
                f"scales of {stored.dtype} are of no type for which BitBLAS packs, or not of that "
                "of the others; use a GPTQ checkpoint"
            )
        return stored

    tensors = {
        "qweight": Packed("codes", torch.int8, lambda m, n: (m, n * bits // 8), codes),
        "scales": Packed("scales", None, lambda m, g: (m, g), scales),
    }
    if not form.is_symmetric:
        tensors[form.zeros] = Packed("zeros", torch.int8, lambda m, g: (g, m * bits // 8), zeros)
    return tensors


def _codes_around_128(stored: Tensor) -> Tensor:
    """Signed bytes or codes as codes: most of a matrix lies within half the range of nothing."""
    found = stored.view(torch.uint8)
    share = ((found >= 64) & (found < 192)).float().mean()
    if 0.45 < share < 0.55:
        raise CheckpointError(
            "bytes that are neither signed numbers nor codes around 128, as far as they tell; use "
            "a GPTQ checkpoint"
        )
    return found if share > 0.5 else found ^ 128


def _tiled(kind: Kind, form: PackedIntegers) -> dict[str, Packed]:
    """Marlin's tiles of 16 inputs; of the 2:4 sparse one those that are left."""

    def codes(stored: Tensor, rows: int, columns: int) -> Tensor:
        return from_tiles(stored, form.bits, kind)

    def scales(stored: Tensor, rows: int, columns: int) -> Tensor:
        return from_tiled_scales(stored, kind)

    is_sparse = kind == "marlin_24"
    tiles = Packed(
        "codes",
        torch.int32,
        lambda m, n: (n // 16, m * form.bits // 2),
        codes,
        inputs_per_item=2 if is_sparse else 1,
    )
    tensors = {"B_24" if is_sparse else "B": tiles}
    tensors["s"] = Packed("scales", None, lambda m, g: (g, m), scales)
    if is_sparse:
        tensors["B_meta"] = Packed(
            "pairs",
            torch.int16,
            lambda m, quads: (quads // 8, 2 * m),
            lambda stored, *_: pairs_of(stored),
            inputs_per_item=4,
        )
    return tensors


def _tiled_pairs(form: PackedIntegers) -> dict[str, Packed]:
    """compressed-tensors' names of Marlin's 2:4 sparse tiles."""
    names = {"B_24": "weight_packed", "s": "scale_packed", "B_meta": "meta"}
    return {names[name]: packed for name, packed in _tiled("marlin_24", form).items()}


def _awq_marlin(form: PackedIntegers) -> dict[str, Packed]:
    """AutoAWQ's names of Marlin's tiles."""
    tiles, scales = _tiled("marlin", form).values()
    return {"qweight": tiles, "scales": scales}


def _qqq(form: PackedIntegers) -> dict[str, Packed]:
    """QQQ's tiles. Codes of whole rows are signed; their scales are a sixteenth, as it shifts."""
    is_whole = form.group_size is None
    kind: Kind = "qqq_whole" if is_whole else "qqq"

    def codes(stored: Tensor, rows: int, columns: int) -> Tensor:
        found = from_tiles(stored, 4, kind)
        return found ^ 8 if is_whole else found

    def channels(stored: Tensor, rows: int, columns: int) -> Tensor:
        found = from_tiled_scales(stored, "marlin")
        return found * 16 if is_whole else found

    def groups(stored: Tensor, rows: int, columns: int) -> Tensor:
        return from_tiled_scales(stored, "marlin")

    tensors = {"B": Packed("codes", torch.int32, lambda m, n: (n // 16, 2 * m), codes)}
    role: Role = "scales" if is_whole else "channels"
    tensors["s_channel"] = Packed(role, None, lambda m, _: (1, m), channels)
    if not is_whole:
        tensors["s_group"] = Packed("scales", None, lambda m, g: (g, m), groups)
    return tensors


def _hqq(form: PackedIntegers) -> dict[str, Packed]:
    """HQQ's rows of a group each, stacked in words."""
    per_word, dtype = (10, torch.int32) if form.bits == 3 else (8 // form.bits, torch.uint8)

    def width(columns: int) -> int:
        return form.group_size or columns

    def shape(rows: int, columns: int) -> tuple[int, int]:
        return -(-rows * columns // width(columns) // per_word), width(columns)

    def codes(stored: Tensor, rows: int, columns: int) -> Tensor:
        count = rows * columns // width(columns)
        return stacked_numbers(stored, form.bits, count).view(rows, columns)

    def floats(role: Role) -> Packed:
        return Packed(role, None, lambda m, g: (m * g, 1), lambda stored, m, g: stored.view(m, g))

    tensors = {"W_q": Packed("codes", dtype, shape, codes)}
    return tensors | {"scale": floats("scales"), "zero": floats("zeros")}


def _signed(stored: Tensor, rows: int, columns: int) -> Tensor:
    """Signed bytes [M, N] as codes with 128 for nothing."""
    return stored.view(torch.uint8) ^ 128


def _llm_int8(form: PackedIntegers) -> dict[str, Packed]:
    """bitsandbytes' LLM.int8: the largest magnitude of each row stands for 127."""
    return {
        "weight": Packed("codes", torch.int8, lambda m, n: (m, n), _signed),
        "SCB": Packed(
            "scales", None, lambda m, _: (m,), lambda stored, *_: stored.float()[:, None] / 127
        ),
    }


def _torchao_int4(form: PackedIntegers) -> dict[str, Packed]:
    """Signed halves of bytes, with what their zero is worth."""

    def codes(stored: Tensor, rows: int, columns: int) -> Tensor:
        return numbers(stored, 4) ^ 8

    return {
        "_weight_qdata": Packed("codes", torch.int8, lambda m, n: (m, n // 2), codes),
        "_weight_scale": _floats("scales"),
        "_weight_zero_point": _floats("negated_minimums"),
    }


LAYOUTS: Final[Mapping[str, Callable[[PackedIntegers], dict[str, Packed]]]] = {
    "awq": _awq,
    "awq_gemv": _awq_gemv,
    "awq_gemv_fast": _awq_gemv_fast,
    "awq_marlin": _awq_marlin,
    "gptq": _gptq,
    "bitblas": _bitblas,
    "marlin": partial(_tiled, "marlin"),
    "marlin_24": partial(_tiled, "marlin_24"),
    "marlin_24_packed": _tiled_pairs,
    "qqq": _qqq,
    "hqq": _hqq,
    "llm_int8": _llm_int8,
    "torchao_int4": _torchao_int4,
}
