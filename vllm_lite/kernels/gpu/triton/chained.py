"""Kernels that begin before the one in front of them has ended: programmatic dependent launch.

From compute capability 9.0 on. A kernel's programs are placed, and read what no kernel of a layer
writes, such as weights, positions and tables, while those of kernels in front still run. Then they
wait for all of the one in front; as each waits, what came still earlier has ended too.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from vllm_lite.kernels.gpu import tuning

OLDEST_TARGET = 90


@triton.jit
def wait_for_inputs(IS_CHAINED: tl.constexpr):
    """Wait for the kernel in front, and let the next one begin; every program must call it."""
    if IS_CHAINED:
        # In the other order the next kernel's programs take room that this one's still need: an
        # H200 took 4.41 ms a step of an 8B model then, 4.28 so, and 4.44 without chains.
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def begin_next_and_wait(IS_CHAINED: tl.constexpr):
    """As `wait_for_inputs`, of a kernel so short that the next one may begin beside it at once.

    The next one waits for this one's end, which comes after all that this one waits for.
    """
    if IS_CHAINED:
        # An H200 took 4.22 ms a step of an 8B model by `wait_for_inputs` everywhere, and 4.08 so.
        # Kernels that round rows or add parts of sums must not: by fp8 that took 15 % longer.
        gdc_launch_dependents()
        gdc_wait()


def chained(device: torch.device) -> dict[str, bool]:
    """Arguments of the launch of a kernel that calls either of these."""
    is_chained = tuning.target(device) >= OLDEST_TARGET
    return {"IS_CHAINED": True, "launch_pdl": True} if is_chained else {"IS_CHAINED": False}
