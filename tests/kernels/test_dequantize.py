"""GGUF storage dequantises exactly as in the format's own package."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from tests.ggml_types import GGML_BLOCKS, Newer
from vllm_lite.config.checkpoints.checkpoint import LOADABLE_GGML_TYPES
from vllm_lite.config.checkpoints.gguf_header import GGML_TYPES
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.cpu import ops as cpu
from vllm_lite.kernels.grouped_gguf import from_gguf
from vllm_lite.kernels.reference import grouped_linear as reference_grouped
from vllm_lite.kernels.reference.ops import Ops as reference
from vllm_lite.kernels.reference.quantized import QuantizedRows

# Where a block holds its half-precision scales.
SCALE_OFFSETS: dict[str, list[int]] = {
    "F32": [],
    "F16": [],
    "BF16": [],
    "Q4_0": [0],
    "IQ4_NL": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ1_S": [0],
    "IQ1_M": [],
    "IQ2_XXS": [0],
    "IQ2_XS": [0],
    "IQ2_S": [0],
    "IQ3_XXS": [0],
    "IQ3_S": [0],
    "IQ4_XS": [0],
    "MXFP4": [],
    "NVFP4": [],
    "Q1_0": [0],
    "Q2_0": [0],
    "TQ1_0": [52],
    "TQ2_0": [64],
}
KINDS: list[GGMLQuantizationType] = [
    Newer[name] if name in Newer.__members__ else GGMLQuantizationType[name]
    for name in SCALE_OFFSETS
]


def random_storage(kind: GGMLQuantizationType, rows: int, columns: int) -> torch.Tensor:
    """Random bytes, which cover every quant and packed scale; the block scales are sane."""
    elements, size = GGML_QUANT_SIZES[kind]
    generator = np.random.default_rng(int(kind))
    if kind.name in ("F32", "F16"):
        values = generator.standard_normal((rows, columns))
        return torch.from_numpy(values.astype("f4" if kind.name == "F32" else "f2").view(np.uint8))
    storage = generator.integers(0, 256, (rows, columns // elements, size), dtype=np.uint8)
    for offset in SCALE_OFFSETS[kind.name]:
        scales = generator.standard_normal((rows, columns // elements, 1)).astype(np.float16)
        storage[..., offset : offset + 2] = scales.view(np.uint8)
    if kind.name == "BF16":
        storage[..., 1::2] &= 0xBF  # no infinities
    if kind.name == "IQ1_M":
        storage[..., 55] &= 0x3F  # four of its scale's bits
    if kind.name == "MXFP4":
        storage[..., 0] = 120 + storage[..., 0] % 16
    return torch.from_numpy(storage.reshape(rows, -1))


def written_blocks(kind: GGMLQuantizationType) -> tuple[torch.Tensor, torch.Tensor]:
    """Three rows by llama.cpp's quantiser, one of them zeros, and the numbers that it reads."""
    with np.load(GGML_BLOCKS) as stored:
        return tuple(torch.from_numpy(stored[f"{kind.name} {x}"]) for x in ("blocks", "values"))


def test_every_loadable_type_is_tested() -> None:
    assert set(LOADABLE_GGML_TYPES) == set(SCALE_OFFSETS)


def test_every_type_of_weights_is_loadable() -> None:
    """Of gguf's types, but wide numbers, and Q8_1 and Q8_K, which are of activations."""
    others = {"F64", "I8", "I16", "I32", "I64", "Q8_1", "Q8_K"}
    assert {kind.name for kind in GGMLQuantizationType} - set(LOADABLE_GGML_TYPES) <= others
    for kind in KINDS:
        assert GGML_TYPES[kind] == (kind.name, *GGML_QUANT_SIZES[kind])


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 3, 200])
def test_dequantisation_is_exact(kind: GGMLQuantizationType, dtype: torch.dtype, rows: int) -> None:
    raw = random_storage(kind, rows, 768)
    actual = cpu.dequantize_gguf(raw, int(kind), (rows, 768), dtype)
    assert torch.equal(actual, reference.dequantize_gguf(raw, int(kind), (rows, 768), dtype))


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("kind", KINDS[3:], ids=lambda kind: kind.name)
def test_blocks_by_llama_cpp_are_its_numbers(kind: GGMLQuantizationType) -> None:
    blocks, values = written_blocks(kind)
    shape = tuple(values.shape)
    for ops in (cpu, reference):
        assert torch.equal(ops.dequantize_gguf(blocks, int(kind), shape, torch.float32), values)
    grouped = from_gguf(blocks, int(kind), len(blocks))
    assert torch.equal(reference_grouped.expand_grouped(grouped, torch.float32), values)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("kind", KINDS[:3], ids=lambda kind: kind.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 15, 16, 17, 100])
def test_plain_floats_of_any_length(
    kind: GGMLQuantizationType, dtype: torch.dtype, size: int
) -> None:
    raw = random_storage(kind, 1, size).reshape(-1)
    actual = cpu.dequantize_gguf(raw, int(kind), (size,), dtype)
    assert torch.equal(actual, reference.dequantize_gguf(raw, int(kind), (size,), dtype))


@pytest.mark.usefixtures("isa")
def test_every_half_precision_value() -> None:
    raw = np.arange(1 << 16, dtype=np.uint16)
    actual = cpu.dequantize_gguf(memoryview(raw.tobytes()), 1, (1 << 16,), torch.float32)
    torch.testing.assert_close(
        actual, torch.from_numpy(raw.view(np.float16)).float(), rtol=0, atol=0, equal_nan=True
    )


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize(("kind", "place"), [("MXFP4", 0), ("NVFP4", 3)])
def test_every_scale_of_one_byte(kind: str, place: int) -> None:
    number = int(GGMLQuantizationType[kind])
    elements, size = GGML_QUANT_SIZES[number]
    raw = torch.randint(256, (256, size), dtype=torch.uint8)
    raw[:, place] = torch.arange(256)
    shape = (256, elements)
    with np.errstate(over="ignore"):
        expected = reference.dequantize_gguf(raw, number, shape, torch.float32)
    assert torch.equal(cpu.dequantize_gguf(raw, number, shape, torch.float32), expected)
    packed = cpu.pack_quantized([QuantizedRows(raw, number, elements)])
    assert torch.equal(cpu.quantized_lookup(packed, torch.arange(256), torch.float32), expected)


def test_damaged_and_unknown_storage_is_refused() -> None:
    with pytest.raises(CheckpointError, match="the file is damaged"):
        cpu.dequantize_gguf(torch.zeros(17, dtype=torch.uint8), 2, (32,), torch.float32)
    with pytest.raises(CheckpointError, match="not made of whole GGUF blocks"):
        cpu.dequantize_gguf(torch.zeros(18, dtype=torch.uint8), 2, (2, 16), torch.float32)
    with pytest.raises(CheckpointError, match="type 99 is not supported"):
        cpu.dequantize_gguf(torch.zeros(18, dtype=torch.uint8), 99, (32,), torch.float32)
