"""Cases of state-space layers for check_kernels.py; see kernel_cases.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from kernel_cases import ROUNDING, Case
from torch import Tensor

from vllm_lite.kernels.reference import state as reference_state


def state_cases(dtype: torch.dtype) -> Iterator[Case]:
    """Prompts and single tokens, states of every kind of slot.

    No slot is read by one request and written by another: they run side by side.
    """
    lengths = [1, 1, 40, 0, 3]
    bounds = torch.tensor([0, *lengths]).cumsum(0).int()
    state_in = torch.tensor([0, -1, 5, 7, 8]).int()
    state_out = torch.full((sum(lengths),), -1).int()
    for slot, request in enumerate([0, 1, 2, 4]):
        state_out[bounds[request + 1] - 1] = slot
    state_out[20] = 6
    places = [bounds, state_in, state_out]

    def conv(o: Any, t: Sequence[Any], _: torch.dtype) -> list[Tensor]:
        return [o.causal_conv1d(*t), t[3]]

    weight, bias, states = torch.randn(4, 300), torch.randn(300), torch.randn(9, 3, 300)
    x = torch.randn(sum(lengths), 300).to(dtype)
    arguments = [x, weight, bias, states, *places]
    yield Case(f"causal_conv1d {dtype}", reference_state, conv, arguments, dtype, ROUNDING[dtype])

    def scan(o: Any, t: Sequence[Any], _: torch.dtype) -> list[Tensor]:
        numbers = dict(zip(("a", "d", "dt_bias"), t[8:], strict=True))
        return [o.selective_scan(*t[:8], **numbers, dt_limit=(0.0, 5.0)), t[4]]

    shapes = [(6, 64), (6,), (2, 100), (2, 100)]
    tensors = [torch.randn(sum(lengths), *shape).to(dtype) for shape in shapes]
    numbers = [-torch.rand(6), torch.randn(6), torch.randn(6)]
    arguments = [*tensors, torch.randn(9, 6, 100, 64), *places, *numbers]
    yield Case(f"selective_scan {dtype}", reference_state, scan, arguments, dtype, ROUNDING[dtype])

    def channels(o: Any, t: Sequence[Any], _: torch.dtype) -> list[Tensor]:
        return [o.channel_scan(*t[:9], a=t[9], d=t[10]), t[5]]

    widths = [300, 300, 16, 16, 300]
    tensors = [torch.randn(sum(lengths), width).to(dtype) for width in widths]
    numbers = [-torch.rand(16, 300), torch.randn(300)]
    arguments = [*tensors, torch.randn(9, 16, 300), *places, *numbers]
    yield Case(
        f"channel_scan {dtype}", reference_state, channels, arguments, dtype, ROUNDING[dtype]
    )

    def recurrence(o: Any, t: Sequence[Any], _: torch.dtype) -> list[Tensor]:
        numbers = dict(zip(("rate", "gate_bias", "decay_bias"), t[7:], strict=True))
        return [o.gated_recurrence(*t[:7], **numbers), t[3]]

    tensors = [torch.randn(sum(lengths), 300).to(dtype) for _ in range(3)]
    numbers = [-torch.rand(300), torch.randn(300), torch.randn(300)]
    arguments = [*tensors, torch.randn(9, 300), *places, *numbers]
    yield Case(
        f"gated_recurrence {dtype}", reference_state, recurrence, arguments, dtype, ROUNDING[dtype]
    )

    def delta(o: Any, t: Sequence[Any], _: torch.dtype) -> list[Tensor]:
        return [o.delta_rule(*t[:9], a=t[9], dt_bias=t[10]), t[5]]

    for decays in ((6,), (6, 100)):
        shapes = [(2, 100), (2, 100), (6, 64), decays, (6,)]
        tensors = [torch.randn(sum(lengths), *shape).to(dtype) for shape in shapes]
        numbers = [-torch.rand(6), torch.randn(decays)]
        arguments = [*tensors, torch.randn(9, 6, 100, 64), *places, *numbers]
        yield Case(f"delta_rule {dtype}", reference_state, delta, arguments, dtype, ROUNDING[dtype])
    rows = torch.randn(2, 9, 384).to(dtype)
    yield Case(
        f"gated_rms_norm {dtype}",
        reference_state,
        lambda o, t, _: o.gated_rms_norm(*t, 1e-5, 128),
        [*rows, torch.randn(384).to(dtype)],
        dtype,
        ROUNDING[dtype],
    )
