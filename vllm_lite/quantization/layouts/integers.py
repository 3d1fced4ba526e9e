"""Layouts of integers in groups: which tensors a layer has, and what they stand for.

Each tensor is unpacked to rows of outputs as it is read, so that any part of it can be cut out;
together they become a GroupedWeight. A layout is a function from the form to its tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import torch
from torch import Tensor

from vllm_lite.config.quantized.schemes import PackedIntegers
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.grouped_weight import GroupedWeight, make_grouped
from vllm_lite.quantization.layouts.tiles import (
    Kind,
    from_tiled_scales,
    from_tiles,
    pairs_of,
    spread,
)
from vllm_lite.quantization.layouts.words import (
    awq_numbers,
    fast_numbers,
    numbers,
    padded_groups,
    stacked_numbers,
)
from vllm_lite.quantization.method import StoredTensor, Unpacking

# Codes and places of codes are numbers of inputs; `order` is an input's group; `channels` are
# factors of the scales; the others belong to groups. `zeros` may be floats.
Role = Literal["codes", "pairs", "order", "channels", "zeros", "scales", "negated_minimums"]


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


class IntegerLayout:
    """The tensors of a layer in the layout of a form."""

    def __init__(self, form: PackedIntegers) -> None:
        self._form = form
        self._tensors = LAYOUTS[form.layout](form)

    def create_weights(self, input_size: int, output_size: int) -> dict[str, StoredTensor]:
        """Unfilled tensors by suffix; raises CheckpointError for sizes that do not fit."""
        group = self._form.group_size or input_size
        if input_size % group or (group != 16 and group % 32):
            raise CheckpointError(f"{input_size} inputs of a layer are no groups of {group}")
        return {
            suffix: _unfilled(packed, input_size, output_size, self._form.group_size)
            for suffix, packed in self._tensors.items()
        }

    def read(self, weights: Mapping[str, Tensor]) -> GroupedWeight:
        """Read the weight of filled tensors; ValueError if they contradict each other."""
        form = self._form
        held = {self._tensors[suffix].role: tensor for suffix, tensor in weights.items()}
        codes, scales, middle = held["codes"], held["scales"], 2 ** (form.bits - 1)
        if "pairs" in held:
            codes = spread(codes, held["pairs"], middle)
        if "channels" in held:
            scales = scales * held["channels"]
        zeros, minimums = held.get("zeros"), held.get("negated_minimums")
        offset = int(form.zeros_are_less_by_one) if zeros is not None else middle
        if zeros is not None and zeros.is_floating_point():
            zeros, minimums = _split_zeros(zeros, scales)
            offset = 0
        if zeros is not None and torch.equal(zeros, zeros[:1, :1].expand_as(zeros)):
            offset, zeros = offset + int(zeros[0, 0]), None
        if minimums is not None and "negated_minimums" in held:
            minimums, offset = -minimums, middle if form.is_symmetric else 0
        codes, permutation = _by_group(codes, held.get("order"), scales.shape[1])
        return make_grouped(
            codes,
            smallest(scales),
            form.bits,
            offset,
            zeros=zeros,
            minimums=None if minimums is None else smallest(minimums),
            permutation=permutation,
        )


def smallest(scales: Tensor) -> Tensor:
    """Convert scales to float16 if that is exact."""
    half = scales.half()
    return half if torch.equal(half.float(), scales) else scales


def _unfilled(packed: Packed, inputs: int, outputs: int, group_size: int | None) -> StoredTensor:
    device, host = torch.get_default_device(), "cpu"
    dtype = torch.uint8
    if packed.role in ("scales", "channels", "negated_minimums") or packed.dtype is None:
        dtype = torch.float32
    per_item = packed.inputs_per_item
    input_dim: int | None = 1
    if packed.role == "order":
        shape: tuple[int, ...] = (inputs,)
        dtype, input_dim = torch.int32, 0
    elif packed.role in ("codes", "pairs"):
        shape = (outputs, inputs // per_item)
    elif packed.role == "channels" or group_size is None:
        shape, input_dim = (outputs, 1), None
    else:
        shape, per_item = (outputs, inputs // group_size), group_size
    if packed.default is None:
        data = torch.empty(shape, dtype=dtype, device=host)
    else:
        data = torch.full(shape, packed.default, dtype=dtype, device=host)
    return StoredTensor(
        data,
        output_dim=None if packed.role == "order" else 0,
        input_dim=input_dim,
        device=device,
        inputs_per_item=per_item,
        unpacking=_unpacking(packed),
        is_optional=packed.default is not None,
    )


def _unpacking(packed: Packed) -> Unpacking:
    def values(stored: Tensor, shape: Sequence[int]) -> Tensor:
        rows, columns = _two(shape)
        unpacked = packed.values(stored, rows, columns)
        return unpacked[tuple(slice(size) for size in shape)]

    return Unpacking(packed.dtype, lambda shape: packed.shape(*_two(shape)), values)


def _two(shape: Sequence[int]) -> tuple[int, int]:
    return (1, shape[0]) if len(shape) == 1 else (shape[0], shape[1])


def _split_zeros(zeros: Tensor, scales: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Zero points as bytes if they are such, else as minimums: (zeros, minimums)."""
    whole = zeros.clamp(0, 255).to(torch.uint8)
    if torch.equal(whole.float(), zeros):
        return whole, None
    return None, zeros * scales


def _by_group(codes: Tensor, groups: Tensor | None, count: int) -> tuple[Tensor, Tensor | None]:
    """Codes [M, N] with the inputs of each group together, and the inputs' order if it changed.

    `groups` [N] are the inputs' groups; zeros for all mean that they are in order.
    """
    if groups is None or not bool(groups.any()):
        return codes, None
    size = codes.shape[1] // count
    in_order = torch.arange(len(groups), device=groups.device) // size
    # A rank has the scales of its own inputs' groups.
    groups = groups.long() - groups.min()
    if torch.equal(groups, in_order):
        return codes, None
    permutation = groups.argsort(stable=True)
    if not torch.equal(groups[permutation], in_order):
        raise ValueError(
            "g_idx does not name each group as often as the others; with act-order use "
            "--tensor-parallel-size 1"
        )
    return codes[:, permutation], permutation


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
        return awq_numbers(stored).T

    def shape(rows: int, columns: int) -> tuple[int, int]:
        return columns, _words(rows, 4)

    return {
        "qweight": Packed("codes", torch.int32, shape, values),
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
        return numbers(stored.T, form.bits)

    def zeros(stored: Tensor, rows: int, columns: int) -> Tensor:
        return numbers(stored, form.bits).T

    bits = form.bits
    return {
        "qweight": Packed("codes", torch.int32, lambda m, n: (_words(n, bits), m), codes),
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
    "marlin": partial(_tiled, "marlin"),
    "marlin_24": partial(_tiled, "marlin_24"),
    "marlin_24_packed": _tiled_pairs,
    "qqq": _qqq,
    "hqq": _hqq,
    "llm_int8": _llm_int8,
    "torchao_int4": _torchao_int4,
}
