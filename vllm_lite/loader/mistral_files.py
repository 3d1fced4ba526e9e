"""A file in Mistral's layout, seen as one in Hugging Face's: names, and the order of rotated pairs.

Mistral keeps a rotated pair's two outputs beside each other; Hugging Face's have half a head
between them. Encoders of pictures are left out: the text part is run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from vllm_lite.config.checkpoints.mistral_config import PARAMS
from vllm_lite.config.json_file import read_json
from vllm_lite.errors import CheckpointError
from vllm_lite.loader.stored import TensorFile

_LAYER = re.compile(r"(layers\.\d+)\.(.+)\.([^.]+)")
_TOP = {"tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head"}
_MLP = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
_IN_LAYER = {
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate",
    **{f"attention.w{name}": f"self_attn.{name}_proj" for name in "qkvo"},
    **{f"feed_forward.{name}": f"mlp.{own}" for name, own in _MLP.items()},
}
_EXPERT = re.compile(r"feed_forward\.(experts\.\d+)\.(w[123])")
_SUFFIXES = {"qscale_weight": "weight_scale", "qscale_act": "input_scale"}
_OF_PICTURES = ("vision_encoder.", "vision_language_adapter.", "patch_merger.", "pre_mm_projector")
# Of an 8-bit cache, whose numbers have no scale where their checkpoint is in fp8.
_CACHE_SCALES = "_fake_quantizer."
# The layers whose outputs are rotated, and the field that counts their heads.
_ROTATED: Final = {"attention.wq": "n_heads", "attention.wk": "n_kv_heads"}


def hf_name(name: str) -> str | None:
    """Hugging Face's name of a tensor, which is its own where it is not known; None: left out."""
    if name.startswith(_OF_PICTURES) or _CACHE_SCALES in name:
        return None
    layer, _, suffix = name.rpartition(".")
    suffix = _SUFFIXES.get(suffix, suffix)
    if layer in _TOP:
        return f"{_TOP[layer]}.{suffix}"
    found = _LAYER.fullmatch(name)
    if found is None:
        return name
    part = _EXPERT.sub(lambda match: f"mlp.{match[1]}.{_MLP[match[2]]}", found[2])
    return f"model.{found[1]}.{_IN_LAYER.get(part, part)}.{suffix}"


@dataclass(frozen=True, slots=True)
class MistralFile:
    """`file` under Hugging Face's names; `heads`: how many of queries and keys params.json says."""

    file: TensorFile
    # By Hugging Face's names.
    stored: dict[str, str]
    heads: dict[str, int]

    @property
    def path(self) -> Path:
        return self.file.path

    def names(self) -> list[str]:
        return list(self.stored)

    def entry(self, name: str) -> tuple[str, tuple[int, ...]]:
        return self.file.entry(self.stored[name])

    def read(self, name: str, region: tuple[slice, ...]) -> Tensor:
        """A region of a tensor, its rows in Hugging Face's order."""
        own = self.stored[name]
        rows = self._rows(own)
        if rows is None or not region:
            return self.file.read(own, region)
        chosen = rows[region[0]]
        first, end = int(chosen.min()), int(chosen.max()) + 1
        part = self.file.read(own, (slice(first, end), *region[1:]))
        # 8-bit floats are moved as bytes.
        kind = torch.uint8 if part.element_size() == 1 else part.dtype
        return part.view(kind).index_select(0, chosen - first).view(part.dtype)

    def _rows(self, own: str) -> Tensor | None:
        """The stored rows in the other order; None where that is the same."""
        layer = ".".join(own.split(".")[2:-1])
        shape = self.file.entry(own)[1]
        heads = self.heads.get(layer)
        if heads is None or not shape or shape[0] == 1:
            return None
        if shape[0] % (2 * heads):
            raise CheckpointError(
                f"{self.path}: the tensor {own!r} has {shape[0]} outputs, which are not "
                f"{heads} heads ({_ROTATED[layer]}) of pairs"
            )
        return torch.arange(shape[0]).view(heads, -1, 2).transpose(1, 2).reshape(-1)


def as_hugging_face(file: TensorFile) -> MistralFile:
    """`file`, beside which params.json lies; raises CheckpointError."""
    params = read_json(file.path.parent / PARAMS)
    heads = {layer: params.get(field) for layer, field in _ROTATED.items()}
    for layer, count in heads.items():
        if type(count) is not int or count < 1:
            raise CheckpointError(
                f"{file.path.parent / PARAMS}: {_ROTATED[layer]} is {count!r}, no positive number"
            )
    names: Sequence[tuple[str | None, str]] = [(hf_name(name), name) for name in file.names()]
    stored = {name: own for name, own in names if name is not None}
    return MistralFile(file, stored, {layer: int(count or 0) for layer, count in heads.items()})
