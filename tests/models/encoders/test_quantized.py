"""Encoders of rounded weights: in flight, in quantised checkpoints and in GGUF files.

Each beside a plain model whose weights are what the stored ones are worth.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gguf.constants import GGMLQuantizationType as GGML
from gguf.quants import dequantize, quantize
from safetensors.torch import save_file
from torch import Tensor

from tests.models.encoders.test_encoders import expected, hidden_states, prompts
from tests.models.encoders.test_gguf import (
    IDS,
    JINA,
    is_rounded,
    jina_hidden_states,
    jina_tensors,
    stored,
    write,
)
from tests.models.quantized_checkpoints import Quantise, gptq, scaled
from tests.models.runner import load
from tests.models.test_quantized import linear_layers
from tests.models.test_quantized_checkpoints import CHANNELS, GPTQ, INTEGERS, TOKENS, compressed
from vllm_lite.kernels.reference import rounding
from vllm_lite.kernels.reference.quantized import round_activations
from vllm_lite.quantization.ggml_blocks import CONVERTERS

Rounds = Callable[[Tensor], Tensor]
SIZES = {"hidden_size": 64, "intermediate_size": 96}
_MATRIX = re.compile(r"encoder\.layer\.\d+\..*(query|key|value|dense)\.weight$")


def worth(blocks: Any, kind: GGML) -> Tensor:
    """Numbers that GGUF's blocks stand for."""
    return torch.from_numpy(np.array(dequantize(np.asarray(blocks), kind)))


def in_blocks(kind: GGML) -> Quantise:
    """Blocks as layers are rounded to in flight; how near they are is tested with the formats."""
    return lambda _, weight: ({}, worth(CONVERTERS[kind.name](weight), kind))


def write_pair(path: Path, quantise: Quantise, settings: dict[str, Any] | None = None) -> Any:
    """Write a BERT whose layers `quantise` stores, plainly without `settings`; their worth."""
    reference, config, tensors = stored("BertModel", path, **SIZES)
    kept = dict(tensors)
    for name in filter(_MATRIX.match, tensors):
        parts, worth = quantise(name, tensors[name])
        reference.get_parameter(name).data.copy_(worth)
        if settings is not None:
            del kept[name]
            kept |= {f"{name.removesuffix('weight')}{k}": x for k, x in parts.items()}
    if settings is not None:
        save_file({k: x.contiguous() for k, x in kept.items()}, path / "model.safetensors")
        (path / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    return reference


def assert_computes_as(kept: Any, plain: Any, rounds: Rounds) -> None:
    """Fail unless each layer is the plain one of inputs that `rounds` changes, in any batch."""
    layers, others = linear_layers(kept), linear_layers(plain)
    assert layers.keys() == others.keys()
    for name, layer in layers.items():
        x = torch.randn(7, SIZES["intermediate_size" if "down" in name else "hidden_size"])
        want = others[name].kernel(rounds(x))
        torch.testing.assert_close(layer.kernel(x), want, rtol=1e-4, atol=1e-4 * want.abs().max())
    together = hidden_states(kept, prompts())
    for ids, found in zip(prompts()[:5], together, strict=False):
        assert torch.equal(hidden_states(kept, [ids])[0], found)
        (want,) = hidden_states(plain, [ids])
        assert F.cosine_similarity(found, want, dim=1).min() > 0.99


def as_given(x: Tensor) -> Tensor:
    return x


def by_token(x: Tensor) -> Tensor:
    scales = x.abs().amax(1, keepdim=True) / 127
    return (x / scales).round() * scales


def from_least_to_greatest(x: Tensor) -> Tensor:
    return rounding.round_activations(x, rounding.ActivationRounding(torch.int8, is_shifted=True))


@pytest.mark.parametrize(
    ("name", "quantise", "rounds"),
    [
        ("int8_per_channel", scaled(torch.int8, "channel", False), from_least_to_greatest),
        ("int8", in_blocks(GGML.Q8_0), round_activations),
        ("int4", in_blocks(GGML.Q4_1), round_activations),
        ("fp8", scaled(torch.float8_e4m3fn, "channel", False), as_given),
    ],
)
def test_layers_rounded_in_flight(
    name: str, quantise: Quantise, rounds: Rounds, tmp_path: Path
) -> None:
    reference = write_pair(tmp_path, quantise)
    kept = load(tmp_path, runner="pooling", quantization=name)
    reference.save_pretrained(tmp_path / "plain")
    assert_computes_as(kept, load(tmp_path / "plain", runner="pooling"), rounds)


@pytest.mark.parametrize(
    ("settings", "quantise", "rounds"),
    [
        (GPTQ, gptq(32, 4, True, True), round_activations),
        (
            compressed(CHANNELS | INTEGERS, TOKENS | INTEGERS),
            scaled(torch.int8, "channel", False),
            by_token,
        ),
    ],
    ids=["gptq", "compressed-tensors"],
)
def test_quantised_checkpoints(
    settings: dict[str, Any], quantise: Quantise, rounds: Rounds, tmp_path: Path
) -> None:
    reference = write_pair(tmp_path, quantise, settings)
    plain = load(tmp_path, runner="pooling", quantization="dequantize")
    want, _ = expected(reference, IDS)
    torch.testing.assert_close(hidden_states(plain, [IDS])[0], want, atol=1e-4, rtol=0)
    assert_computes_as(load(tmp_path, runner="pooling"), plain, rounds)


@pytest.mark.parametrize("kind", [GGML.Q8_0, GGML.Q4_0], ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    ("name", "fields"),
    [("bert", {}), ("nomic-bert", {"rope__freq_base": 1000.0}), ("jina-bert-v2", {})],
)
def test_blocks_in_files(name: str, fields: dict[str, Any], kind: GGML, tmp_path: Path) -> None:
    if name == "jina-bert-v2":
        config = JINA | SIZES | {"num_attention_heads": 4}
        tensors = jina_tensors(*SIZES.values())
    else:
        case = {"bert": "BertModel", "nomic-bert": "NomicBertModel"}[name]
        reference, config, tensors = stored(case, tmp_path, **SIZES)
    path = write(tmp_path / "model.gguf", name, config, tensors, kind=kind, **fields)
    for key, tensor in tensors.items():
        if is_rounded(key, tensor):
            tensors[key] = worth(quantize(tensor.numpy(), kind), kind)
    if name == "jina-bert-v2":
        want = jina_hidden_states(tensors, IDS, heads=4)
    else:
        save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
        want, _ = expected(type(reference).from_pretrained(tmp_path).eval(), IDS)
    plain = load(path, runner="pooling", quantization="dequantize")
    torch.testing.assert_close(hidden_states(plain, [IDS])[0], want, atol=1e-4, rtol=0)
    assert_computes_as(load(path, runner="pooling", quantization="gguf"), plain, round_activations)
