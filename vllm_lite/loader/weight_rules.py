"""Rules that map layers of a checkpoint to layers of a model: names and views, as plain data.

A view counts features, whatever the storage: the same rule serves weights, biases, packed weights
and their scales. A layer without a rule fills the layer of the same name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vllm_lite.errors import CheckpointError
from vllm_lite.layers.weights import WeightSlot


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The part of a checkpoint's layer that one layer of the model takes.

    `outputs` are the output features that it takes, in its order: a slice, or [n] int64; None is
    all of them. `is_transposed`: the checkpoint stores inputs by outputs. `transform` is applied
    to the values.
    """

    target: str
    outputs: slice | Tensor | None = None
    num_stored: int | None = None  # output features of the checkpoint's layer
    is_transposed: bool = False
    transform: Callable[[Tensor], Tensor] | None = None
    # The checkpoint's inputs in the model's order; None where it is the same.
    inputs: Tensor | None = None

    def shape_of(self, stored: Sequence[int], slot: WeightSlot) -> tuple[int, ...]:
        """The shape of the view of a tensor that is stored as `stored`."""
        shape = list(reversed(stored) if self.is_transposed else stored)
        if self.outputs is None or slot.output_dim is None or slot.output_dim >= len(shape):
            return tuple(shape)
        items = -(-(self.num_stored or 0) // slot.outputs_per_item)
        if shape[slot.output_dim] != items:
            return tuple(shape)  # the rule does not apply: the mismatch is an error elsewhere
        shape[slot.output_dim] = len(self._items(slot))
        return tuple(shape)

    def expected(self, slot: WeightSlot) -> list[int]:
        """The shape of the tensor as a checkpoint stores it, whose view `slot` takes."""
        shape = self._whole_shape(slot)
        if slot.unpacking is not None:
            return list(slot.unpacking.shape(shape))
        return shape[::-1] if self.is_transposed else shape

    def fits(self, stored: Sequence[int], slot: WeightSlot) -> bool:
        """Whether `slot` takes a view of a tensor that is stored as `stored`."""
        if slot.unpacking is not None:
            earlier, whole = slot.unpacking.earlier, self._whole_shape(slot)
            return list(stored) == self.expected(slot) or (
                earlier is not None and tuple(stored) == earlier.shape(whole)
            )
        if slot.full_shape == (1,):  # a single number, of however many dimensions
            return math.prod(stored) == 1
        return self.shape_of(stored, slot) == slot.full_shape

    def unpack(self, stored: Tensor, slot: WeightSlot) -> None:
        """Fill `slot` with its part of a packed tensor, read as a whole."""
        assert slot.unpacking is not None
        # Tools that pack have turned a layer with its inputs first.
        upright = replace(self, is_transposed=False)
        unpacking, whole = slot.unpacking, self._whole_shape(slot)
        if unpacking.earlier is not None and tuple(stored.shape) != unpacking.shape(whole):
            unpacking = unpacking.earlier
        if unpacking.fill is not None and self._is_taken_whole(slot):
            unpacking.fill(stored, slot.tensor)
            return
        taken = unpacking.values(stored, whole)
        for dim, chosen in enumerate(upright.region(slot)):
            if isinstance(chosen, slice):
                taken = taken.narrow(dim, chosen.start, chosen.stop - chosen.start)
            else:
                taken = taken.index_select(dim, chosen)
        slot.write(upright.values(taken))

    def _is_taken_whole(self, slot: WeightSlot) -> bool:
        """Whether `slot` takes all values of a packed tensor as they are."""
        is_plain = self.outputs is None and self.inputs is None and self.transform is None
        is_whole = list(slot.tensor.shape) == self._whole_shape(slot)
        return is_plain and is_whole and slot.packing is None and slot.tensor.device.type == "cpu"

    def _whole_shape(self, slot: WeightSlot) -> list[int]:
        shape = list(slot.full_shape)
        if self.num_stored is not None and slot.output_dim is not None:
            shape[slot.output_dim] = -(-self.num_stored // slot.outputs_per_item)
        return shape

    def region(self, slot: WeightSlot) -> tuple[slice | Tensor, ...]:
        """The indices that `slot` takes along each dimension of the stored tensor."""
        ranges = zip(slot.starts, slot.tensor.shape, strict=True)
        taken: list[slice | Tensor] = [slice(start, start + size) for start, size in ranges]
        if self.outputs is not None and slot.output_dim is not None:
            items = self._items(slot)
            start, size = slot.starts[slot.output_dim], slot.tensor.shape[slot.output_dim]
            if isinstance(items, range):
                part = items[start : start + size]
                taken[slot.output_dim] = slice(part.start, part.stop)
            else:
                taken[slot.output_dim] = items[start : start + size]
        if self.inputs is not None and len(taken) > 1:
            start, size = slot.starts[1], slot.tensor.shape[1]
            taken[1] = self.inputs[start : start + size]
        return tuple(reversed(taken) if self.is_transposed else taken)

    def values(self, part: Tensor) -> Tensor:
        """The model's weights from a stored region."""
        part = part.t() if self.is_transposed else part
        return part if self.transform is None else self.transform(part)

    def _items(self, slot: WeightSlot) -> range | Tensor:
        """The stored items that hold the outputs; raises CheckpointError where one would be cut."""
        per_item = slot.outputs_per_item
        if isinstance(self.outputs, slice):
            first, end = self.outputs.start, self.outputs.stop
            if first % per_item or (end % per_item and end != self.num_stored):
                raise _cut(self.target, per_item)
            return range(first // per_item, -(-end // per_item))
        assert self.outputs is not None
        if per_item == 1:
            return self.outputs
        if len(self.outputs) % per_item:
            raise _cut(self.target, per_item)
        runs = self.outputs.view(-1, per_item)
        is_whole = (runs == runs[:, :1] + torch.arange(per_item)).all() & (
            runs[:, 0] % per_item == 0
        ).all()
        if not is_whole:
            raise _cut(self.target, per_item)
        return runs[:, 0] // per_item


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """Maps a checkpoint's layer to the model's; `*` in names stands for a number.

    A source with the number itself comes before one with `*`.

    Without parts: tensors that the configuration implies, which are ignored.
    """

    source: str
    parts: tuple[Part, ...] = ()
    # Another layout of layers that the model's own names, or other rules, stand for in messages.
    is_alternative: bool = False


@dataclass(frozen=True, slots=True)
class Stack:
    """A tensor `source` whose slices [0], [1], ... are read as tensors of their own.

    The last `*` of `item`, their name, stands for a slice's number. With a `count` the tensor has
    that many slices of rows and no dimension for them. A single number is that of all `num_items`.
    """

    source: str
    item: str
    count: int | None = None
    num_items: int = 0


@dataclass(frozen=True, slots=True)
class Alias:
    """A tensor `source`, with its suffix, that is read under another name."""

    source: str
    name: str


def renamed(
    names: Mapping[str, str],
    *,
    is_transposed: bool = False,
    transform: Callable[[Tensor], Tensor] | None = None,
) -> list[Rule]:
    """Layers that are stored whole, under another name."""
    return [
        Rule(source, (Part(target, is_transposed=is_transposed, transform=transform),))
        for source, target in names.items()
    ]


def fused(
    source: str,
    parent: str,
    sizes: Mapping[str, int],
    *,
    is_transposed: bool = False,
    transforms: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
) -> Rule:
    """A layer that holds several of `parent`'s, of so many outputs each, one after another.

    `transforms` are those of parts, by their names.
    """
    parts, start, total = [], 0, sum(sizes.values())
    for name, size in sizes.items():
        taken = slice(start, start + size)
        transform = (transforms or {}).get(name)
        parts.append(Part(f"{parent}.{name}", taken, total, is_transposed, transform))
        start += size
    return Rule(source, tuple(parts))


def times(factor: float, bias: float | None = None) -> Callable[[Tensor], Tensor]:
    """The transform of a layer whose weight, or the scales of its codes, has a factor.

    So has its bias, or another one.
    """

    def multiply(stored: Tensor) -> Tensor:
        is_code = stored.dtype not in (torch.float32, torch.bfloat16, torch.float16)
        if is_code:
            return stored
        # A weight's scale may be one number.
        is_bias = stored.dim() == 1 < stored.numel()
        return stored.float() * (factor if bias is None or not is_bias else bias)

    return multiply


def by_head(source: str, parent: str, sizes: Mapping[str, int], num_heads: int) -> Rule:
    """A layer whose outputs of one head are those of several of `parent`'s, so many of each."""
    width = sum(sizes.values())
    order = torch.arange(num_heads * width).view(num_heads, width)
    taken = torch.split(order, list(sizes.values()), 1)
    parts = (
        Part(f"{parent}.{name}", outputs.reshape(-1), num_heads * width)
        for name, outputs in zip(sizes, taken, strict=True)
    )
    return Rule(source, tuple(parts))


def interleaved_heads(
    source: str, parent: str, num_kv_heads: int, head_size: int, *, shared: int = 1
) -> Rule:
    """For each key-value head, its `shared` queries, the key and the value: [K, shared + 2, D]."""
    sizes = {"q_proj": shared * head_size, "k_proj": head_size, "v_proj": head_size}
    return by_head(source, parent, sizes, num_kv_heads)


def plus_one(weight: Tensor) -> Tensor:
    """The rule of a norm whose checkpoint stores the weight minus 1."""
    return weight.float() + 1.0


def log_of_negative(decay: Tensor) -> Tensor:
    """The rule of decays that are stored as they are, where others store log(-decay)."""
    return decay.float().neg().log()


def interleaved_pairs(source: str, target: str, num_heads: int, head_size: int) -> Rule:
    """Heads whose rotated pairs are neighbours, as llama.cpp's converter leaves Llama's.

    The model's own order has an element's partner half a head away.
    """
    total = num_heads * head_size
    order = torch.arange(total).view(num_heads, -1, 2).transpose(1, 2).reshape(-1)
    return Rule(source, (Part(target, order, total),))


# In models of several media: what the text model's tensors begin with, and would by themselves.
_TEXT_MARKS = {
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "lm_head.": "lm_head.",
}
# Of decoders without a head: what their tensors begin with, where they have no root.
_ROOTS = {name: f"model.{name}" for name in ("layers.", "embed_tokens.", "norm.")}
# Where tools write the scales of cached keys and values, and of queries.
_CACHE_SCALE = re.compile(
    r"\.self_attn\.(?:(?:attn|[qkv]+_proj)\.([qkv])_scale|([qkv])_proj\.output_scale"
    r"|([qkv])(?:_cache)?\.scale)$"
)
_BOTH_CACHE_SCALES = ".self_attn.kv_scale"  # one for keys and values, in older files
# The view of a tensor that is taken unchanged.
WHOLE = Part("")


AnyRule = Rule | Stack | Alias


class WeightRules:
    """The rules of one checkpoint; a later rule for a layer replaces an earlier one."""

    def __init__(
        self,
        rules: Iterable[AnyRule],
        *,
        is_text_part: bool = False,
        may_lack_root: bool = False,
        marks: Mapping[str, str] | None = None,
        suffixes: Mapping[str, str] | None = None,
    ) -> None:
        """With is_text_part, rules are for names without what marks the text model's tensors.

        Else `marks` are what names may begin with, and what takes its place. `suffixes` are those
        of quantised layers' tensors that stand for others.
        """
        rules, self._suffixes = list(rules), suffixes or {}
        self._marks = dict(marks) if marks else (_TEXT_MARKS if is_text_part else {"": ""})
        if may_lack_root:
            self._marks = _ROOTS | self._marks
        self._stacks = {rule.source: rule for rule in rules if isinstance(rule, Stack)}
        self._ends_of_stacks = {source.rpartition(".")[2] for source in self._stacks}
        self._aliases = {rule.source: rule.name for rule in rules if isinstance(rule, Alias)}
        self._rules = {rule.source: rule for rule in rules if isinstance(rule, Rule)}
        self._sources = {
            part.target: rule.source
            for rule in self._rules.values()
            if not rule.is_alternative
            for part in rule.parts
        }

    def stack_of(self, name: str) -> Stack | None:
        """The rule of a tensor that is read in slices."""
        is_any = name.rpartition(".")[2] in self._ends_of_stacks  # far faster than the names
        return self._stacks.get(_pattern(self._unmarked(name))[0]) if is_any else None

    def slice_name(self, name: str, number: int) -> str:
        """The name of a slice of the tensor `name`, which has a stack_of."""
        pattern, numbers = _pattern(self._unmarked(name))
        return _numbered(self._stacks[pattern].item, [*numbers, str(number)])

    def name_of(self, name: str) -> str:
        """The name of a tensor that is read whole."""
        pattern, numbers = _pattern(self._unmarked(name))
        return _numbered(self._aliases.get(pattern, pattern), numbers)

    def has_place(self, name: str) -> bool:
        """Whether a checkpoint's tensor is of the model at all, and not of other media's parts."""
        return name.startswith(tuple(self._marks))

    def _unmarked(self, name: str) -> str:
        mark = next((mark for mark in self._marks if name.startswith(mark)), "")
        return self._marks.get(mark, "") + name[len(mark) :]

    def parts_of(self, name: str) -> list[tuple[str, Part]]:
        """The model's tensors that the tensor `name` fills, each with its view."""
        layer, _, suffix = name.rpartition(".")
        if name.endswith(_BOTH_CACHE_SCALES):
            return [(f"{layer}.{part}_scale", WHOLE) for part in "kv"]
        if suffix in self._suffixes and not _CACHE_SCALE.search(name):
            suffix = self._suffixes[suffix]
            name = f"{layer}.{suffix}"
        pattern, numbers = _pattern(layer)
        rule = self._rules.get(layer, self._rules.get(pattern))
        if rule is None:
            return [(_of_cache(name), WHOLE)]
        parts: Iterable[Part] = rule.parts
        if suffix == "input_scale":  # stays, whatever factor the weights have
            parts = (replace(part, transform=None) for part in parts)
        found = [(f"{_numbered(part.target, numbers)}.{suffix}", part) for part in parts]
        whole = {_of_cache(target): WHOLE for target, _ in found if _CACHE_SCALE.search(target)}
        return list(whole.items()) or found

    def source_of(self, layer: str) -> str:
        """The checkpoint's name of what goes to `layer` of the model."""
        pattern, numbers = _pattern(layer)
        source = self._sources.get(pattern)
        return layer if source is None else _numbered(source, numbers)

    def stored_name(self, name: str, suffixes: Collection[str]) -> str:
        """The checkpoint's name of the model's tensor `name`; its others have `suffixes`."""
        layer, _, suffix = name.rpartition(".")
        names = (suffix, *(other for other, own in self._suffixes.items() if own == suffix))
        stored = next((other for other in names if other in suffixes), suffix)
        return f"{self.source_of(layer)}.{stored}"


def _of_cache(name: str) -> str:
    return _CACHE_SCALE.sub(r".self_attn.\1\2\3_scale", name)


def _pattern(layer: str) -> tuple[str, list[str]]:
    parts = layer.split(".")
    numbers = [part for part in parts if part.isdigit()]
    return ".".join("*" if part.isdigit() else part for part in parts), numbers


def _numbered(pattern: str, numbers: Sequence[str]) -> str:
    left = iter(numbers)
    return ".".join(next(left) if part == "*" else part for part in pattern.split("."))


def _cut(target: str, per_item: int) -> CheckpointError:
    return CheckpointError(
        f"the weights of {target} are not whole groups of {per_item} outputs, as they are packed; "
        "use the unquantised checkpoint"
    )
