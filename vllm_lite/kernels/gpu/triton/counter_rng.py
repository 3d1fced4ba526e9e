"""Random numbers by Triton, bit by bit those of the reference."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_lite.kernels.gpu.sizes import cdiv
from vllm_lite.kernels.gpu.triton.chained import chained, wait_for_inputs
from vllm_lite.kernels.reference.counter_rng import GAMMA, MULTIPLIERS

_GAMMA = tl.constexpr(GAMMA)
_MULTIPLIER_1, _MULTIPLIER_2 = (tl.constexpr(number) for number in MULTIPLIERS)
_ROWS = 32


@triton.jit(do_not_specialize=["num_rows"])
def uniforms_kernel(
    chances_ptr, keys_ptr, positions_ptr, num_rows, ROWS: tl.constexpr, IS_CHAINED: tl.constexpr
):
    wait_for_inputs(IS_CHAINED)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = rows < num_rows
    keys = tl.load(keys_ptr + rows, mask=is_row, other=0).to(tl.uint64, bitcast=True)
    positions = tl.load(positions_ptr + rows, mask=is_row, other=0).to(tl.uint64, bitcast=True)
    x = keys + (positions + 1) * _GAMMA
    x = (x ^ (x >> 30)) * _MULTIPLIER_1
    x = (x ^ (x >> 27)) * _MULTIPLIER_2
    x = x ^ (x >> 31)
    tl.store(chances_ptr + rows, (x >> 11).to(tl.float64) * (2.0**-53), mask=is_row)


def uniforms(keys: Tensor, positions: Tensor) -> Tensor:
    chances = keys.new_empty(len(keys), dtype=torch.float64)
    uniforms_kernel[(cdiv(len(keys), _ROWS),)](
        chances, keys, positions, len(keys), ROWS=_ROWS, num_warps=1, **chained(keys.device)
    )
    return chances
