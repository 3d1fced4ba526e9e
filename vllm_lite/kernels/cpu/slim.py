"""Bfloat16 weights in 12 bits each, without loss; part of `cpu`.

The weights of a matrix have few different exponents: fifteen of them and that of zeros have codes,
and the weights that have others are kept apart (csrc/cpu/kernels/slim_panel.h). Products are the
same bit for bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_lite import _cpu
from vllm_lite.kernels.cpu.arguments import row_stride
from vllm_lite.kernels.cpu.mapped_memory import packed_weights
from vllm_lite.kernels.reference.ops import PackedLinear

# One weight in so many may be kept apart: with more of them, products take longer than they save.
WEIGHTS_OF_AN_EXCEPTION = 128
# What csrc's SlimPlan holds.
_NUMBERS_OF_A_PLAN = 3


def pack_slim(
    weight: Tensor, weights_of_an_exception: int = WEIGHTS_OF_AN_EXCEPTION
) -> PackedLinear | None:
    """Weight [M, N] in slim panels; None where its type or its exponents do not suit them."""
    if weight.dtype != torch.bfloat16 or not weight.numel():
        return None
    num_outputs, num_inputs = weight.shape
    num_panels = -(-num_outputs // _cpu.PANEL)
    size = num_outputs, num_inputs, row_stride("pack_linear", weight)
    plans = torch.empty(num_panels, _NUMBERS_OF_A_PLAN, dtype=torch.int64)
    num_exceptions = _cpu.plan_slim(weight.data_ptr(), plans.data_ptr(), *size)
    if num_exceptions * weights_of_an_exception > weight.numel():
        return None
    data = packed_weights.take(_cpu.slim_bytes(num_outputs, num_inputs, num_exceptions))
    _cpu.pack_slim(weight.data_ptr(), plans.data_ptr(), data.data_ptr(), *size)
    return PackedLinear(data, weight.dtype, num_outputs, num_inputs, is_slim=True)
