"""Operations fused in a recorded step give the same bits as one after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from gguf import GGMLQuantizationType as GGML
from torch import Tensor

from tests.kernels.test_dequantize import random_storage
from vllm_lite import _cpu
from vllm_lite.kernels.cpu import ops as cpu
from vllm_lite.kernels.cpu.program import RecordedStep, StepTensors, record_step
from vllm_lite.kernels.reference.quantized import QuantizedRows

EPS = 1e-6
BLOCK = 16
WIDE = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# What a cache's numbers are, and how many of them a row has beside the head's.
CACHES = {
    "as computed": (None, 0),
    "float8_e4m3fn": (torch.float8_e4m3fn, 0),
    "float8_e5m2 with scales": (torch.float8_e5m2, 4),
    "int8 with scales": (torch.int8, 4),
}
Product = Callable[[Tensor], Tensor]


def step_of(*lengths: int) -> StepTensors:
    """A step of several prompts with some tokens that are not cached."""
    width = -(-max(lengths) // BLOCK)
    table = torch.arange(len(lengths) * width, dtype=torch.int32).view(len(lengths), width)
    positions = torch.cat([torch.arange(length) for length in lengths])
    rows = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    slots = table[rows, positions // BLOCK].long() * BLOCK + positions % BLOCK
    slots[3::7] = -1
    starts = torch.tensor([0, *lengths]).cumsum(0)
    return {
        "input_ids": torch.randint(0, 50, (len(positions),)),
        "positions": positions,
        "slot_mapping": slots,
        "block_table": table,
        "query_start_loc": starts.int(),
        "seq_lens": torch.tensor(lengths, dtype=torch.int32),
    }


@dataclass
class Layer:
    """A decoder layer with all operations around its linear layers."""

    dtype: torch.dtype
    is_quantized: bool = False
    # Of queries, and of keys and values.
    heads: tuple[int, int] = (6, 2)
    head_size: int = 64
    size: int = 96
    inner: int = 160
    has_bias: bool = True
    norms_heads: bool = False
    is_neox: bool = True
    cache: str = "as computed"

    def __post_init__(self) -> None:
        queries, keys = self.heads
        self.embedding = torch.randn(50, self.size).to(self.dtype)
        self.qkv = self._product(self.size, (queries + 2 * keys) * self.head_size)
        self.o = self._product(queries * self.head_size, self.size)
        self.gate_up = self._product(self.size, 2 * self.inner)
        self.down = self._product(self.inner, self.size)
        self.norms = [torch.randn(self.size).to(self.dtype) for _ in range(3)]
        self.head_norm = torch.randn(self.head_size).to(self.dtype)
        self.turns = torch.randn(300, self.head_size // 2 * 2)
        number, more = CACHES[self.cache]
        shape = (40, keys, BLOCK, self.head_size + more)
        self.caches = [torch.zeros(shape, dtype=number or self.dtype) for _ in range(2)]

    def _product(self, inputs: int, outputs: int) -> Product:
        bias = torch.randn(outputs) if self.has_bias else None
        if not self.is_quantized:
            weight = torch.randn(outputs, inputs) / inputs**0.5
            packed = cpu.pack_linear(weight.to(self.dtype))
            return lambda x: cpu.linear(x, packed, bias)
        kinds = {GGML.Q4_1: outputs // 2, GGML.Q8_0: outputs - outputs // 2}
        rows = [
            QuantizedRows(random_storage(kind, count, inputs), int(kind), inputs)
            for kind, count in kinds.items()
        ]
        weight = cpu.pack_quantized(rows)
        return lambda x: cpu.quantized_linear(x, weight, bias)

    def forward(self, step: StepTensors) -> Tensor:
        queries, keys = self.heads
        residual = cpu.embedding(step["input_ids"], self.embedding)
        qkv = self.qkv(cpu.rms_norm(residual, self.norms[0], EPS))
        heads = qkv.view(-1, queries + 2 * keys, self.head_size)
        query, key, value = heads.split_with_sizes([queries, keys, keys], 1)
        if self.norms_heads:
            cpu.rms_norm(query, self.head_norm, EPS, out=query)
            cpu.rms_norm(key, self.head_norm, EPS, out=key)
        cpu.rotary_embedding(step["positions"], query, key, self.turns, self.is_neox)
        cpu.reshape_and_cache(key, value, *self.caches, step["slot_mapping"])
        mixed = cpu.paged_attention(
            query, *self.caches, step["block_table"], step["query_start_loc"], step["seq_lens"], 0.1
        )
        hidden = self.o(mixed.view(-1, queries * self.head_size))
        hidden, residual = cpu.fused_add_rms_norm(hidden, residual, self.norms[1], EPS)
        hidden = self.down(cpu.act_and_mul(self.gate_up(hidden), "silu"))
        return cpu.fused_add_rms_norm(hidden, residual, self.norms[2], EPS)[0]

    def kept(self) -> list[Tensor]:
        """The caches' bytes."""
        return [cache.view(torch.uint8).clone() for cache in self.caches]

    def clear(self) -> None:
        for cache in self.caches:
            cache.view(torch.uint8).zero_()


def recorded(forward: Callable[[StepTensors], Tensor]) -> RecordedStep:
    with torch.inference_mode():
        return record_step(forward, step_of(3), 300)


def check(layer: Layer, *steps: StepTensors) -> None:
    program = recorded(layer.forward)
    for step in steps:
        layer.clear()
        want, kept = layer.forward(step), layer.kept()
        layer.clear()
        assert torch.equal(program.run(step).view(torch.uint8), want.view(torch.uint8))
        assert all(map(torch.equal, layer.kept(), kept))
        assert want.isfinite().all() and any(cache.any() for cache in kept)


ATTENTION = "rotary_embedding + reshape_and_cache"


@pytest.mark.usefixtures("isa", "threads")
@pytest.mark.parametrize("dtype", WIDE.values(), ids=WIDE)
@pytest.mark.parametrize("is_quantized", [False, True])
def test_fused_operations_give_the_same_bits(is_quantized: bool, dtype: torch.dtype) -> None:
    make = partial(Layer, dtype, is_quantized)
    _cpu.set_num_threads(3)
    # More rows than go through a product together, and few.
    check(make(), step_of(150, 70), step_of(5, 1))
    check(make(norms_heads=True, has_bias=False), step_of(101), step_of(1))
    check(make(heads=(9, 3), head_size=32, is_neox=False), step_of(40, 3))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("is_quantized", [False, True])
@pytest.mark.parametrize("cache", CACHES)
def test_caches_of_all_types(cache: str, is_quantized: bool) -> None:
    _cpu.set_num_threads(3)
    for head_size in (64, 80):
        layer = Layer(torch.bfloat16, is_quantized, (4, 1), head_size, cache=cache)
        check(layer, step_of(200), step_of(2, 1))


def test_heads_that_are_not_whole_panels() -> None:
    check(Layer(torch.float32, heads=(3, 1), head_size=6, size=20, inner=30), step_of(9, 4))


def names_of(program: RecordedStep, step: StepTensors) -> list[str]:
    return [name for name, _ in program.profile(step)]


@pytest.mark.parametrize("is_quantized", [False, True])
def test_which_operations_are_fused(is_quantized: bool) -> None:
    product = "quantized_linear" if is_quantized else "linear"
    layer, other = (Layer(torch.bfloat16, is_quantized, norms_heads=own) for own in (False, True))
    assert names_of(recorded(layer.forward), step_of(4)) == [
        "embedding",
        f"rms_norm + {product} + {ATTENTION}",
        "paged_attention",
        product,
        f"rms_norm + {product}",
        f"act_and_mul + {product}",
        "rms_norm",
    ]
    with_norms = names_of(recorded(other.forward), step_of(4))
    assert with_norms[1] == f"rms_norm + {product} + rms_norm + rms_norm + {ATTENTION}"


def test_a_norm_is_fused_with_a_gated_linear() -> None:
    rows, norm = torch.randn(50, 40), torch.randn(40)
    packed = cpu.pack_linear(torch.randn(128, 40))

    def forward(step: StepTensors) -> Tensor:
        hidden = cpu.embedding(step["input_ids"], rows)
        return cpu.gated_linear(cpu.rms_norm(hidden, norm, EPS), packed)

    step, program = step_of(230), recorded(forward)
    assert torch.equal(program.run(step), forward(step))
    assert names_of(program, step)[1] == "rms_norm + gated_linear"


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", WIDE.values(), ids=WIDE)
@pytest.mark.parametrize("in_place", [False, True])
def test_other_layers_are_fused_too(in_place: bool, dtype: torch.dtype) -> None:
    rows, norm, bias = torch.randn(50, 96).to(dtype), *torch.randn(2, 96)
    up, down = (
        cpu.pack_linear(torch.randn(shape).mul(0.1).to(dtype)) for shape in ((160, 96), (96, 160))
    )

    def forward(step: StepTensors) -> Tensor:
        hidden = cpu.scaled_add(cpu.embedding(step["input_ids"], rows), None, 9.8)
        inner = cpu.linear(cpu.layer_norm(hidden, norm, bias, EPS), up)
        inner = cpu.activation(inner, "gelu", out=inner if in_place else None)
        delta = cpu.linear(inner, down)
        cpu.scaled_add(delta, hidden, 0.5, 2.0, out=delta if in_place else hidden)
        return cpu.fused_add_layer_norm(delta, hidden, norm, None, EPS)[0]

    program = recorded(forward)
    for step in (step_of(230), step_of(3, 1)):
        assert torch.equal(program.run(step), forward(step))
    middle = (
        ["layer_norm + linear + activation", "linear + scaled_add"]
        if in_place
        else ["layer_norm + linear", "activation + linear", "scaled_add"]
    )
    assert names_of(program, step) == ["embedding", "scaled_add", *middle, "layer_norm"]


@pytest.mark.parametrize("is_quantized", [False, True])
@pytest.mark.parametrize("fault", ["position", "slot"])
def test_a_refused_step_writes_nothing(fault: str, is_quantized: bool) -> None:
    layer = Layer(torch.float32, is_quantized)
    program, step = recorded(layer.forward), step_of(5)
    if fault == "position":
        step["positions"][4] = 300
    else:
        step["slot_mapping"][4] = 40 * BLOCK
    with pytest.raises(IndexError, match=fault):
        program.run(step)
    assert not any(cache.any() for cache in layer.kept())


def test_overwriting_the_input_of_a_norm_is_not_fused() -> None:
    rows, norm = torch.randn(50, 40), torch.randn(40)
    packed = cpu.pack_linear(torch.randn(40, 40))

    def forward(step: StepTensors) -> Tensor:
        hidden = cpu.embedding(step["input_ids"], rows)
        return cpu.linear(cpu.rms_norm(hidden, norm, EPS), packed, out=hidden)

    step, program = step_of(230), recorded(forward)
    assert torch.equal(program.run(step), forward(step))
    assert names_of(program, step) == ["embedding", "rms_norm", "linear"]


@pytest.mark.usefixtures("isa", "threads")
@pytest.mark.parametrize("dtype", WIDE.values(), ids=WIDE)
@pytest.mark.parametrize("is_quantized", [False, True])
def test_chains_of_rows_give_the_same_bits(is_quantized: bool, dtype: torch.dtype) -> None:
    layer = Layer(dtype, is_quantized, heads=(4, 1))
    with torch.inference_mode():
        program = record_step(layer.forward, step_of(3), 620)
        for num_threads in (1, 2):
            _cpu.set_num_threads(num_threads)
            for step in (step_of(290, 300), step_of(19)):
                want = layer.forward(step)
                assert torch.equal(program.run(step).view(torch.uint8), want.view(torch.uint8))


@pytest.mark.usefixtures("threads")
def test_chains_of_many_threads() -> None:
    rows, norm, bias = torch.randn(50, 96), *torch.randn(2, 96)
    up, down = (cpu.pack_linear(torch.randn(shape) * 0.1) for shape in ((160, 96), (96, 160)))
    _cpu.set_num_threads(4)

    def forward(step: StepTensors) -> Tensor:
        hidden = cpu.embedding(step["input_ids"], rows)
        for _ in range(3):
            inner = cpu.linear(hidden, up)
            delta = cpu.linear(cpu.activation(inner, "gelu", out=inner), down)
            hidden, _ = cpu.fused_add_layer_norm(delta, hidden, norm, bias, EPS)
        return hidden

    with torch.inference_mode():
        program = record_step(forward, step_of(3), 5000)
        for lengths in ((4900,), (1537,), (2, 1)):
            step = step_of(*lengths)
            assert torch.equal(program.run(step), forward(step))


@pytest.mark.usefixtures("threads")
def test_other_row_counts_are_not_fused() -> None:
    rows, packed = torch.randn(50, 40), cpu.pack_linear(torch.randn(40, 40))
    norm = torch.randn(20)

    def forward(step: StepTensors) -> Tensor:
        pairs = torch.empty(2 * len(step["input_ids"]), 20)
        out = pairs.view(-1, 40)
        cpu.linear(cpu.embedding(step["input_ids"], rows), packed, out=out)
        # The first halves of pairs: rows of half the stride.
        half = pairs[: len(step["input_ids"])]
        cpu.rms_norm(half, norm, EPS, out=half)
        return out

    _cpu.set_num_threads(4)
    with torch.inference_mode():
        program = record_step(forward, step_of(3), 2000)
    step = step_of(1990)
    assert torch.equal(program.run(step), forward(step))
    assert names_of(program, step) == ["embedding", "linear", "rms_norm"]


def test_rows_that_two_linears_read_are_computed_once() -> None:
    rows, norm = torch.randn(50, 40), torch.randn(40)
    first, second = (cpu.pack_linear(torch.randn(40, 40)) for _ in range(2))

    def forward(step: StepTensors) -> Tensor:
        normed = cpu.rms_norm(cpu.embedding(step["input_ids"], rows), norm, EPS)
        residual = cpu.linear(normed, first)
        return cpu.fused_add_rms_norm(cpu.linear(normed, second), residual, norm, EPS)[0]

    step, program = step_of(230), recorded(forward)
    assert torch.equal(program.run(step), forward(step))
    assert names_of(program, step) == ["embedding", "rms_norm + linear", "linear", "rms_norm"]
