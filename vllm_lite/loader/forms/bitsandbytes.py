"""bitsandbytes' scales of blocks, which a checkpoint may hold as codes of eight bits themselves.

Beside X.weight lie X.weight.absmax, X.weight.quant_map, settings as JSON and, where scales are
quantised too, X.weight.nested_absmax and X.weight.nested_quant_map. X.absmax is made of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vllm_lite.config.quantized.schemes import FlatBlocks
from vllm_lite.layers.weights import WeightSlot
from vllm_lite.loader.stored import JoinedTensor, StoredTensor, damaged, part_of
from vllm_lite.loader.weight_rules import Part, WeightRules
from vllm_lite.quantization.layouts.flat_blocks import BLOCK
from vllm_lite.quantization.layouts.numbers import values_of

_SETTINGS = ".weight.quant_state.bitsandbytes__"
_PARTS = (".weight.absmax", ".weight.quant_map", ".weight.nested_absmax")
_BESIDE = (*_PARTS, ".weight.nested_quant_map")


@dataclass(frozen=True, slots=True)
class BlockScales(JoinedTensor):
    """The scales of a layer's blocks of 64 values, [blocks] float32."""

    name: str
    absmax: StoredTensor
    block: int
    # Codes, values of codes, values in a block, and what is added to all; None: plain numbers.
    nested: tuple[StoredTensor, StoredTensor, int, float] | None

    @property
    def parts(self) -> tuple[StoredTensor, ...]:
        return (self.absmax, *self.nested[:2]) if self.nested else (self.absmax,)

    @property
    def shape(self) -> tuple[int, ...]:
        return (math.prod(self.absmax.shape) * (self.block // BLOCK),)

    def slices(self, rules: WeightRules) -> Iterator[BlockScales]:
        yield replace(self, name=rules.name_of(self.name))

    def fill(self, slot: WeightSlot, part: Part) -> None:
        part.unpack(self.read(), slot)

    def read(self) -> Tensor:
        """All scales; raises CheckpointError."""
        scales = self.absmax.read().flatten()
        if self.nested is not None:
            magnitudes, values, size, offset = self.nested
            wide = magnitudes.read().float().repeat_interleave(size)[: len(scales)]
            if len(wide) < len(scales):
                raise damaged(magnitudes, f"scales of {len(scales)} codes")
            scales = values.read().float()[scales.long()] * wide + offset
        return scales.float().repeat_interleave(self.block // BLOCK)


def join_blocks(
    tensors: Iterable[StoredTensor], form: FlatBlocks
) -> Iterator[StoredTensor | BlockScales]:
    """The tensors, all that belongs to a layer's scales as one; raises CheckpointError."""
    stored = {tensor.name: tensor for tensor in tensors}
    for name, tensor in stored.items():
        layer, mark, kind = name.partition(_SETTINGS)
        if mark:
            yield _scales(stored, layer, tensor, kind, form)
        elif name.endswith(_PARTS[0]):
            layer = name.removesuffix(_PARTS[0])
            part_of(stored, f"{layer}{_SETTINGS}{form.number}", tensor)
        elif not name.endswith(_BESIDE):
            yield tensor


def _scales(
    stored: dict[str, StoredTensor], layer: str, tensor: StoredTensor, kind: str, form: FlatBlocks
) -> BlockScales:
    if kind != form.number:
        raise damaged(tensor, f"settings of {form.number}, as the configuration says")
    settings = _settings(tensor)
    block = settings.get("blocksize")
    if type(block) is not int or block < BLOCK or block % BLOCK:
        raise damaged(tensor, f"settings with a blocksize of whole {BLOCK}s")
    absmax, table = (part_of(stored, f"{layer}{suffix}", tensor) for suffix in _PARTS[:2])
    if table.shape != (16,) or not torch.equal(table.read().float(), values_of(form.number)):
        raise damaged(table, f"the values of {form.number}")
    nested = None
    if absmax.file.entry(absmax.stored)[0] == "U8":
        magnitudes = part_of(stored, f"{layer}{_PARTS[2]}", absmax)
        values = part_of(stored, f"{layer}{_BESIDE[3]}", tensor)
        size, offset = settings.get("nested_blocksize"), settings.get("nested_offset")
        if type(size) is not int or size < 1 or type(offset) is not float:
            raise damaged(tensor, "settings with nested_blocksize and nested_offset")
        if values.shape != (256,):
            raise damaged(values, "256 values")
        nested = magnitudes, values, size, offset
    elif f"{layer}{_PARTS[2]}" in stored:
        raise damaged(absmax, "codes where there are nested scales")
    return BlockScales(f"{layer}.absmax", absmax, block, nested)


def _settings(tensor: StoredTensor) -> dict[str, Any]:
    try:
        settings = json.loads(bytes(tensor.read().to(torch.uint8).flatten().tolist()))
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise damaged(tensor, "settings in JSON")
    return settings
