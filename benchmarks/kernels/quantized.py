"""Linear layers by quantised GGUF weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from kernels.case import Case, Shape, copies
from kernels.linear import ROWS, layer_sizes
from vllm_lite import _cpu
from vllm_lite.kernels.dispatch import ops
from vllm_lite.kernels.reference.quantized import QuantizedRows

TYPES = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14}
# Instructions of the pipes that multiply, for 32 inputs of a row and a vector of outputs, where
# bytes are multiplied four at a time (VNNI): 8 products of bytes, one product by each factor that
# scales them, and one by a minimum.
PRODUCTS = 8
COUNTED = {"Q4_0": 10, "Q4_1": 11, "Q8_0": 10, "Q4_K": 11, "Q6_K": 11}
VNNI = ("avx512_vnni", "avx512_bf16")


def cases(shape: Shape) -> Iterator[Case]:
    for type_name, ggml_type in TYPES.items():
        block_elements, block_bytes = _cpu.ggml_block(ggml_type)
        for name, (num_inputs, num_outputs) in layer_sizes(shape).items():
            # The formats of 256 values a block need layers that they divide.
            if num_inputs % block_elements or name not in ("gate and up", "down", "logits"):
                continue
            row_bytes = num_inputs // block_elements * block_bytes
            for rows in ROWS[:-1] if name == "logits" else ROWS:
                kernel = f"product, {name} {type_name}"
                case = _case(kernel, ggml_type, (rows, num_inputs, num_outputs), row_bytes)
                if _cpu.selected_isa() in VNNI:
                    counted = case.num_operations * COUNTED[type_name] / PRODUCTS
                    case = replace(case, num_counted=counted)
                yield case


def _case(kernel: str, ggml_type: int, size: tuple[int, int, int], row_bytes: int) -> Case:
    rows, num_inputs, num_outputs = size
    weight_bytes = num_outputs * row_bytes

    def make() -> Sequence[Callable[[], object]]:
        x = torch.randn(rows, num_inputs, dtype=torch.bfloat16)
        # Random bytes: the time does not depend on values.
        blocks = torch.randint(0, 60, (num_outputs, row_bytes), dtype=torch.uint8)
        stored = QuantizedRows(blocks, ggml_type, num_inputs)
        packed = [ops().pack_quantized([stored]) for _ in range(copies(weight_bytes))]
        product = ops().quantized_linear
        return [lambda w=w: product(x, w) for w in packed]  # type: ignore[misc]

    moved = weight_bytes + 2 * rows * (num_inputs + num_outputs)
    operations = 2.0 * rows * num_inputs * num_outputs
    return Case(kernel, f"{rows} x {num_inputs} -> {num_outputs}", make, moved, operations, "int8")
