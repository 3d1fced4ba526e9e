"""Linear layers by weights in groups: integers, 8-bit floats and NVFP4."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from kernels.case import Case, Shape, copies
from kernels.limits import Arithmetic
from kernels.linear import layer_sizes
from vllm_lite.kernels.grouped_weight import GroupedWeight, make_grouped
from vllm_lite.kernels.reference.rounding import ActivationRounding
from vllm_lite.quantization.grouped import grouped_kernel, is_fast_in_groups
from vllm_lite.quantization.layouts.numbers import values_of

ROWS = (1, 8, 64)
E4M3 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class Form:
    """How weights are stored; a group of 0 is all inputs. Codes without a table are integers."""

    name: str
    bits: int
    group: int
    table: str | None = None
    scales: torch.dtype = torch.float16
    rounding: ActivationRounding | None = None

    def make(self, num_outputs: int, num_inputs: int) -> GroupedWeight:
        """Random codes: the time does not depend on values."""
        codes = torch.randint(0, 2**self.bits, (num_outputs, num_inputs), dtype=torch.uint8)
        if self.table and self.bits == 8:
            codes &= 0xBF  # no NaN
        scales = torch.rand(num_outputs, num_inputs // (self.group or num_inputs)) + 0.1
        return make_grouped(
            codes,
            scales.to(self.scales),
            self.bits,
            0 if self.table else 2 ** (self.bits - 1),
            super_scales=torch.full((num_outputs, 1), 0.01) if self.scales is E4M3 else None,
            table=self.table and values_of(self.table),
        )

    @property
    def arithmetic(self) -> Arithmetic:
        """The multiplication's, where groups' activations may be rounded to bytes."""
        if self.rounding is not None:
            return "int8" if self.rounding.number is torch.int8 else "bfloat16"
        return "bfloat16" if self.table or is_fast_in_groups(torch.bfloat16) else "int8"


FORMS = (
    Form("int4 g128", 4, 128),
    Form("int8 channel", 8, 0),
    Form("W8A8", 8, 0, rounding=ActivationRounding(torch.int8)),
    Form("fp8 channel", 8, 0, "float8_e4m3fn", torch.float32, ActivationRounding(E4M3)),
    Form("NVFP4", 4, 16, "float4_e2m1", E4M3),
)


def cases(shape: Shape) -> Iterator[Case]:
    for form in FORMS:
        for name, (num_inputs, num_outputs) in layer_sizes(shape).items():
            if num_inputs % max(form.group, 16) or name not in ("gate and up", "down", "logits"):
                continue
            for rows in ROWS:
                yield _case(f"product, {name} {form.name}", form, rows, num_inputs, num_outputs)


def _case(kernel: str, form: Form, rows: int, num_inputs: int, num_outputs: int) -> Case:
    groups = num_inputs // form.group if form.group else 1
    weight_bytes = num_outputs * (num_inputs * form.bits / 8 + groups * form.scales.itemsize)

    def make() -> Sequence[Callable[[], object]]:
        x = torch.randn(rows, num_inputs, dtype=torch.bfloat16)
        weight = form.make(num_outputs, num_inputs)
        is_exact = is_fast_in_groups(x.dtype)
        packed = [
            grouped_kernel(weight, None, None, form.rounding, is_exact)
            for _ in range(copies(weight_bytes))
        ]
        return [lambda product=product: product(x) for product in packed]  # type: ignore[misc]

    moved = weight_bytes + 2 * rows * (num_inputs + num_outputs)
    operations = 2.0 * rows * num_inputs * num_outputs
    size = f"{rows} x {num_inputs} -> {num_outputs}"
    return Case(kernel, size, make, moved, operations, form.arithmetic)
