"""Damaged settings and tensors of quantised checkpoints: one line and a refusal, or logits.

FORMAT_MUTANTS is how many of each format are tried, 20 by default. The first are the mistakes that
people make: five bits, groups that are none, a scale that is not there, a table that is too short.
"""

from __future__ import annotations

import json
import os
import random
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.attack.mutate_checkpoints import damaged_bytes, write_gguf
from tests.models.quantized_checkpoints import write_pair
from tests.models.runner import PagedRunner, load
from tests.models.test_aqlm import FORMS as AQLM
from tests.models.test_aqlm import written
from tests.models.test_experts import write_float4_experts
from tests.models.test_fp_quant import FORMS as FP_QUANT
from tests.models.test_fp_quant import written as fp_quant
from tests.models.test_integer_checkpoints import FORMATS
from tests.models.test_quantized_checkpoints import CODES, SIZES, SQUARE, TERNARY, logits
from tests.models.test_quantized_experts import SIZES as MIXTURE
from tests.models.test_stored_codes import CASES
from vllm_lite.config.checkpoints.gguf_header import read_gguf
from vllm_lite.errors import CheckpointError, UsageError

MUTANTS = int(os.environ.get("FORMAT_MUTANTS", "20"))
VALUES: list[Any] = [0, -7, 4, 5, 6, 48, 10**9, "x", "", None, [], {}, True, 2.5, ["x"], {"x": 0}]
VALUES += ["*(", "int", "float", "token", "tensor", "group", "dynamic"]
ALL = FORMATS | {name: (*CODES[name], SQUARE if "blocks" in name else SIZES) for name in CODES}
ALL |= {name: (*CASES[name][:2], SQUARE if "blocks" in name else SIZES) for name in CASES}
ALL |= {f"bitnet {name}": (*TERNARY[name], SIZES) for name in TERNARY}
ALL |= {f"aqlm {name}": (AQLM[name], written(AQLM[name]["num_codebooks"]), SIZES) for name in AQLM}
ALL |= {name: (FP_QUANT[name], fp_quant(FP_QUANT[name]), SQUARE) for name in FP_QUANT}
BITS = ("bits", "w_bit", "wbits", "nbits", "num_bits")
GROUP_SIZES = ("group_size", "q_group_size", "groupsize", "hadamard_group_size")
BLOCK_SIZES = ("weight_block_size", "block_structure")
# Formats of experts.
EXPERTS = ("awq", "gptq", "fp8 blocks", "2:4 float", "W4A16", "NVFP4", "MXFP4")
EXPERTS += ("fp8 blocks with fp4",)
Tensors = dict[str, torch.Tensor]
# Refusals that no file of weights and no tensor is to blame for, since a setting is wrong.
OF_SETTINGS = (
    r" is quantised by .* this build (reads|cannot run)",  # a value or a method that is not known
    r" has a quantization_config with a value of another kind",
    r" inputs of a layer are no (groups|vectors) of ",  # a size that divides no layer
    r" a fused layer has parts of no whole \d+ outputs",
)
# What was done, by the name of a tensor after a space where it was done to one; and the result.
Mutant = tuple[str, dict[str, Any], Tensors]


def write(name: str, directory: Path) -> Path:
    """A good checkpoint."""
    if name == "gpt-oss":
        write_float4_experts(directory / "packed")
        return directory / "packed"
    name, _, of_experts = name.partition(" experts")
    settings, quantise, sizes = ALL[name]
    if of_experts:
        return write_pair(directory, settings, quantise, "qwen3_moe", **MIXTURE)[0]
    return write_pair(directory, settings, quantise, **sizes)[0]


@pytest.mark.parametrize(
    "name", [*ALL, *(f"{name} experts of a mixture" for name in EXPERTS), "gpt-oss"]
)
def test_damaged_checkpoints_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    packed = write(name, tmp_path)
    config = json.loads((packed / "config.json").read_text())
    tensors = load_file(packed / "model.safetensors")
    rng = random.Random(zlib.crc32(name.encode()))
    mutants = chain(common_mistakes(config, tensors), damaged(rng, config, tensors))
    stored = tensors
    for what, settings, held in islice(mutants, MUTANTS):
        (packed / "config.json").write_text(json.dumps(settings))
        if held is not stored:
            save_file(held, packed / "model.safetensors", {"format": "pt"})
            stored = held
        try:
            model = load(packed)
        except (CheckpointError, UsageError) as error:
            _check(what, str(error), packed)
        else:
            assert logits(model).isfinite().all(), what


def _check(what: str, message: str, packed: Path) -> None:
    """One line that names the checkpoint and, where one is damaged, the tensor and its file."""
    assert "\n" not in message, f"{what}: {message}"
    assert str(packed) in message, f"{what}: {message}"
    tensor = what.partition(" of ")[2]
    if tensor or not any(re.search(reason, message) for reason in OF_SETTINGS):
        file = str(packed / "model.safetensors")
        shown = repr(tensor) if tensor else "'model.layers."
        if "the experts of a mixture cannot" in message:  # as one alone is unlike the others
            shown = tensor.partition("_proj")[0]
        assert file in message and shown in message, f"{what}: {message}"


def common_mistakes(config: dict[str, Any], tensors: Tensors) -> Iterator[Mutant]:
    """Faults that people make to files, rather than chance."""
    settings = config["quantization_config"]
    blocks = ([0, 128], [128], "128")
    for keys, values in ((BITS, (5,)), (GROUP_SIZES, (0, 160)), (BLOCK_SIZES, blocks)):
        for value in values:
            if any(key in keys for _, key in _leaves(settings)):
                changed = json.loads(json.dumps(config))
                for place, key in list(_leaves(changed["quantization_config"])):
                    if key in keys:
                        place[key] = value
                yield f"{keys[0]} {value}", changed, tensors
    for part, change in MISTAKES.items():
        name = next((name for name in tensors if name.partition("_proj")[2].endswith(part)), None)
        if name is not None:
            yield f"{part} of {name}", config, change(tensors, name)


def _lacking(tensors: Tensors, name: str) -> Tensors:
    return {other: tensor for other, tensor in tensors.items() if other != name}


def _halved(tensors: Tensors, name: str) -> Tensors:
    return tensors | {name: tensors[name].flatten()[: tensors[name].numel() // 2].clone()}


def _all_ones(tensors: Tensors, name: str) -> Tensors:
    """The largest codes, or the largest numbers that are one."""
    tensor = tensors[name]
    largest = torch.finfo(tensor.dtype).max if tensor.is_floating_point() else -1
    return tensors | {name: torch.full_like(tensor, largest)}


# By the last part of a tensor's name.
MISTAKES: dict[str, Callable[[Tensors, str], Tensors]] = {
    **dict.fromkeys((".scales", "weight_scale", "_scale", ".s", ".scale", ".SCB"), _lacking),
    **dict.fromkeys((".absmax", "_scale_inv", "_scales", "scale_packed"), _lacking),
    **dict.fromkeys(("qweight", ".weight", "W_q", "_qdata", "weight_packed", ".B"), _halved),
    **dict.fromkeys(("_blocks", "quant_map", "nested_quant_map", "_global_scale"), _halved),
    **dict.fromkeys((".codes", ".codebooks", ".B_24", ".compressed", ".bitmask"), _halved),
    **dict.fromkeys((".shape", "s_channel", "s_group", ".zeros", "_scale_2"), _lacking),
    **dict.fromkeys(("weight_global_scale", "state.bitsandbytes__fp4"), _lacking),
    **dict.fromkeys((".nested_absmax", "_state.bitsandbytes__nf4"), _halved),
    **dict.fromkeys(("qzeros", "zero_point", ".zero", "g_idx", "meta", ".B_meta"), _all_ones),
}


def damaged(rng: random.Random, config: dict[str, Any], tensors: Tensors) -> Iterator[Mutant]:
    """Settings and tensors by turns, for ever."""
    while True:
        changed = json.loads(json.dumps(config))
        place, key = rng.choice(list(_leaves(changed["quantization_config"])))
        place[key] = rng.choice(VALUES)
        yield f"{key} = {place[key]!r}", changed, tensors
        yield _damaged_tensor(rng, config, tensors)


def _leaves(tree: Any) -> Iterator[tuple[Any, Any]]:
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield tree, key
        if isinstance(value, dict | list):
            yield from _leaves(value)


def _damaged_tensor(rng: random.Random, config: dict[str, Any], tensors: Tensors) -> Mutant:
    changed = dict(tensors)
    name = rng.choice([name for name in tensors if "_proj" in name and not name.endswith("bias")])
    tensor = tensors[name]
    how = rng.choice(["lack", "short", "long", "turned", "type", "values"])
    if how == "lack":
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
    return f"{how} of {name}", config, changed


def gguf_mistakes(data: bytes, name: str) -> Iterator[tuple[str, bytes]]:
    """A file whose entry of a matrix says something else of it."""
    at = data.index(struct.pack("<Q", len(name)) + name.encode()) + 8 + len(name)
    kind, offset = at + 20, at + 24
    for what, place, value in (
        ("three dimensions", at, struct.pack("<I", 3)),
        ("no inputs", at + 4, struct.pack("<Q", 0)),
        ("fewer inputs", at + 4, struct.pack("<Q", 32)),
        ("more inputs than memory", at + 4, struct.pack("<Q", 2**62)),
        ("fewer outputs", at + 12, struct.pack("<Q", 1)),
        ("blocks of 256", kind, struct.pack("<I", 12)),
        ("integers", kind, struct.pack("<I", 26)),
        ("an unknown type", kind, struct.pack("<I", 999)),
        ("a place between two", offset, struct.pack("<Q", 1)),
        ("a place after the end", offset, struct.pack("<Q", len(data) // 32 * 32)),
        ("another name", at - 1, b"?"),
    ):
        yield what, data[:place] + value + data[place + len(value) :]
    yield "half a file", data[: len(data) // 2]


def test_mistakes_in_gguf_files_name_the_tensor(tmp_path: Path) -> None:
    base, name = tmp_path / "base.gguf", "blk.1.ffn_down.weight"
    write_gguf(base)
    for what, changed in gguf_mistakes(base.read_bytes(), name):
        path = tmp_path / "mutant.gguf"
        path.write_bytes(changed)
        for quantization in ("gguf", "dequantize"):
            with pytest.raises((CheckpointError, UsageError)) as caught:
                load(path, quantization=quantization)
            message = str(caught.value)
            assert "\n" not in message and str(path) in message, f"{what}: {message}"
            if what not in ("half a file", "three dimensions"):  # of which others suffer first
                assert name[:-1] in message, f"{what}: {message}"


def test_damaged_headers_of_gguf_files_are_refused_in_one_line(tmp_path: Path) -> None:
    """A file's numbers are checked as an engine starts, which tests/attack does."""
    base = tmp_path / "base.gguf"
    write_gguf(base)
    data = base.read_bytes()
    start = min(tensor.offset for tensor in read_gguf(base).tensors.values())
    rng = random.Random(0)
    for number in range(MUTANTS):
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(damaged_bytes(rng, data[:start], start) + data[start:])
        try:
            model = load(path)
        except (CheckpointError, UsageError) as error:
            assert "\n" not in str(error), f"{path}: {error}"
            assert str(path) in str(error), f"{path}: {error}"
        else:
            PagedRunner(model).step({"a": [1, 2]})
