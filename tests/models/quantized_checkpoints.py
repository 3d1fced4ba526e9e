"""Tiny quantised checkpoints in their published layouts, each beside the plain one it stands for.

Written number by number from the formats' descriptions, independently of the readers under test.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import pad

from tests.models.checkpoints import make_model, save

Stored = dict[str, Tensor]
# The name and values of a weight to what is stored for it and what that is worth.
Quantise = Callable[[str, Tensor], tuple[Stored, Tensor]]
_MATRIX = re.compile(r"(_proj|_with_mqa|in_proj_qkvz|_linear|experts\.\d+\.w[123])\.weight$")
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def write_pair(
    directory: Path,
    settings: dict[str, Any],
    quantise: Quantise,
    family: str = "llama",
    left_plain: str = " ",
    heads: bool = False,
    embeddings: bool = False,
    **sizes: Any,
) -> tuple[Path, Path]:
    """(quantised, plain): the layers' matrices stored by `quantise`, and their worth.

    Routers, and those whose names hold `left_plain`, are stored as they are, and so is the head
    unless `heads`, and the embedding unless `embeddings`.
    """
    plain, packed = directory / "plain", directory / "packed"
    save(make_model(family, **sizes), plain)
    state, stored = load_file(plain / "model.safetensors"), {}
    for name, tensor in list(state.items()):
        is_head = heads and name == "lm_head.weight"
        is_table = embeddings and name == "model.embed_tokens.weight"
        if is_head or is_table or (_MATRIX.search(name) and left_plain not in name):
            parts, worth = quantise(name, tensor)
            stored |= {_beside(name, suffix): part.contiguous() for suffix, part in parts.items()}
            state[name] = worth.contiguous()
        else:
            stored[name] = tensor
    save_file(state, plain / "model.safetensors", {"format": "pt"})
    packed.mkdir()
    save_file(stored, packed / "model.safetensors", {"format": "pt"})
    config = json.loads((plain / "config.json").read_text())
    config["quantization_config"] = settings
    (packed / "config.json").write_text(json.dumps(config))
    return packed, plain


def _beside(name: str, suffix: str) -> str:
    """The name of a weight's part; one that begins with ../ is of the module above."""
    module = name.removesuffix(".weight")
    if suffix.startswith("../"):
        return module.rpartition(".")[0] + "." + suffix.removeprefix("../")
    return f"{module}.{suffix}"


def rounded(
    weight: Tensor, groups: Tensor, bits: int, is_symmetric: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes [M, N], zeros [M, G] and half scales [M, G] of a weight, and what they are worth."""
    count, top = int(groups.max()) + 1, 2**bits - 1
    codes = torch.empty(weight.shape, dtype=torch.int64)
    zeros = torch.empty(len(weight), count, dtype=torch.int64)
    scales = torch.empty(len(weight), count, dtype=torch.float16)
    for group in range(count):
        part = weight[:, groups == group]
        low, high = part.amin(1), part.amax(1)
        if is_symmetric:
            high = torch.maximum(high, -low)
            low = -high
        scale = ((high - low) / top).half()
        zero = torch.full_like(low, 2 ** (bits - 1)) if is_symmetric else -low / scale.float()
        zeros[:, group] = zero.round().clamp(1, top).long()
        near = (part / scale.float()[:, None]).round().long() + zeros[:, group, None]
        codes[:, groups == group] = near.clamp(0, top)
        scales[:, group] = scale
    worth = (codes - zeros[:, groups]).float() * scales.float()[:, groups]
    return codes, zeros, scales, worth


def words(numbers: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Numbers along the last dimension as int32; of each word, place i holds number order[i]."""
    count = 32 // bits
    order = order or tuple(range(count))
    grouped = numbers.reshape(*numbers.shape[:-1], -1, count)
    packed = sum(grouped[..., number] << (bits * place) for place, number in enumerate(order))
    assert isinstance(packed, Tensor)
    return (packed & 0xFFFFFFFF).where(packed < 2**31, packed - 2**32).int()


def awq(group: int) -> Quantise:
    def quantise(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        size = weight.shape[1]
        groups = torch.arange(size) // (group if group > 0 else size)
        codes, zeros, scales, worth = rounded(weight, groups, 4, is_symmetric=False)
        stored = {
            "qweight": words(codes.T, 4, AWQ_ORDER),
            "qzeros": words(zeros.T, 4, AWQ_ORDER),
            "scales": scales.T,
        }
        return stored, worth

    return quantise


def gptq(group: int, bits: int, is_symmetric: bool, is_ordered: bool, less_by: int = 1) -> Quantise:
    def quantise(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        size = weight.shape[1]
        groups = torch.arange(size) // (group if group > 0 else size)
        if not is_ordered:  # the same for all that read the same inputs
            groups = groups[torch.randperm(size, generator=torch.Generator().manual_seed(size))]
        codes, zeros, scales, worth = rounded(weight, groups, bits, is_symmetric)
        stored = {
            "qweight": words(codes, bits).T,
            "qzeros": words(zeros.T - less_by, bits),
            "scales": scales.T,
            "g_idx": groups.int(),
        }
        if name.endswith("o_proj.weight"):
            stored["bias"] = torch.zeros(len(weight)).half()
        return stored, worth

    return quantise


def ternary(is_divided: bool, is_rounded: bool) -> Quantise:
    """BitNet's codes, four rows in a byte; or the floats that are worth them when rounded."""

    def quantise(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        mean = weight.abs().mean()
        scale = mean if is_rounded else mean.bfloat16()
        codes = (weight / scale).round().clamp(-1, 1)
        if is_rounded:
            return {"weight": weight}, codes * scale
        quarters = (codes + 1).byte().chunk(4)
        packed = quarters[0] | quarters[1] << 2 | quarters[2] << 4 | quarters[3] << 6
        shown = 1 / scale.float() if is_divided else scale
        return {"weight": packed, "weight_scale": shown.view(1)}, codes * scale.float()

    return quantise


def scaled(number: torch.dtype, per: str, has_input_scale: bool) -> Quantise:
    largest = 127.0 if number is torch.int8 else 448.0

    def quantise(name: str, weight: Tensor) -> tuple[Stored, Tensor]:
        suffix = "weight_scale"
        if per == "block":
            suffix = "weight_scale_inv"
            rows, columns = weight.shape
            whole = pad(weight, (0, -columns % 128, 0, -rows % 128))
            blocks = whole.unflatten(0, (-1, 128)).unflatten(2, (-1, 128))
            scales = blocks.abs().amax((1, 3)) / largest
            wide = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :columns]
        elif per == "channel":
            wide = scales = weight.abs().amax(1, keepdim=True) / largest
        else:
            wide = scales = weight.abs().amax() / largest
        numbers = weight / wide
        codes = (numbers.round() if number is torch.int8 else numbers).to(number)
        stored = {"weight": codes, suffix: scales}
        if has_input_scale:
            stored["input_scale"] = torch.tensor([0.04 if "q_proj" in name else 0.05])
        return stored, codes.float() * wide

    return quantise
