"""Damaged settings and tensors of quantised checkpoints: one line and a refusal, or logits."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models.quantized_checkpoints import write_pair
from tests.models.runner import load
from tests.models.test_integer_checkpoints import FORMATS
from tests.models.test_quantized_checkpoints import CODES, SIZES, SQUARE, logits
from tests.models.test_stored_codes import CASES
from vllm_lite.errors import CheckpointError, UsageError

MUTANTS = 20
VALUES: list[Any] = [0, -7, 5, 48, 10**9, "x", "", None, [], {}, True, 2.5, ["x"], {"x": 0}, "*("]
ALL = FORMATS | {name: (*CODES[name], SQUARE if "blocks" in name else SIZES) for name in CODES}
ALL |= {name: (*CASES[name][:2], SQUARE if "blocks" in name else SIZES) for name in CASES}


@pytest.mark.parametrize("name", ALL)
def test_damaged_checkpoints_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    settings, quantise, sizes = ALL[name]
    packed, _ = write_pair(tmp_path, settings, quantise, **sizes)
    config = json.loads((packed / "config.json").read_text())
    tensors = load_file(packed / "model.safetensors")
    rng = random.Random(zlib.crc32(name.encode()))
    for number in range(MUTANTS):
        if number % 2:
            what = _damage_settings(rng, config, packed)
        else:
            what = _damage_tensor(rng, tensors, packed)
        try:
            model = load(packed)
        except (CheckpointError, UsageError) as error:
            assert "\n" not in str(error), f"{what}: {error}"
            assert str(packed) in str(error), f"{what}: {error}"
            # A tensor is named, or those that lack.
            assert number % 2 or "lacks" in what or _names(what, str(error)), f"{what}: {error}"
        else:
            assert logits(model).isfinite().all(), what
        (packed / "config.json").write_text(json.dumps(config))
        save_file(tensors, packed / "model.safetensors", {"format": "pt"})


def _damage_settings(rng: random.Random, config: dict[str, Any], packed: Path) -> str:
    changed = json.loads(json.dumps(config))
    place, key = rng.choice(list(_leaves(changed["quantization_config"])))
    place[key] = rng.choice(VALUES)
    (packed / "config.json").write_text(json.dumps(changed))
    return f"{key} = {place[key]!r}"


def _leaves(tree: Any) -> Iterator[tuple[Any, Any]]:
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield tree, key
        if isinstance(value, dict | list):
            yield from _leaves(value)


def _damage_tensor(rng: random.Random, tensors: dict[str, torch.Tensor], packed: Path) -> str:
    changed = dict(tensors)
    name = rng.choice([name for name in tensors if "_proj." in name and not name.endswith("bias")])
    tensor = tensors[name]
    how = rng.choice(["lacks", "short", "long", "turned", "type", "values"])
    if how == "lacks":
        del changed[name]
    elif how == "short":
        changed[name] = tensor.flatten()[:-1].contiguous()
    elif how == "long":
        changed[name] = torch.cat([tensor, tensor]) if tensor.dim() else tensor.repeat(3)
    elif how == "turned":
        changed[name] = tensor.t().contiguous() if tensor.dim() == 2 else tensor[None]
    elif how == "type":
        changed[name] = tensor.to(torch.float64 if not tensor.is_floating_point() else torch.int64)
    elif tensor.is_floating_point() and tensor.element_size() > 1:
        changed[name] = torch.full_like(tensor, rng.choice([float("nan"), float("inf")]))
    else:
        wide = torch.randint(-(2**7), 2**7, tensor.shape)
        changed[name] = (
            wide.to(torch.int8).view(tensor.dtype)
            if tensor.element_size() == 1
            else (wide * 2**24 + wide).to(tensor.dtype)
        )
    save_file(changed, packed / "model.safetensors", {"format": "pt"})
    return f"{how} {name}"


def _names(what: str, message: str) -> bool:
    layer = what.split()[1].rpartition(".")[0].removesuffix(".weight")
    return layer in message or "a quantised layer" in message
