"""State-space operations equal the reference, on every instruction set and under Triton."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from vllm_lite import _cpu
from vllm_lite.kernels.cpu import ops as cpu
from vllm_lite.kernels.reference.ops import Ops as reference

DTYPES = [torch.float32, torch.bfloat16]
# Tokens of each request: one, several requests, one without tokens, no request at all.
LENGTHS = [(1,), (3, 1, 12), (7,), (1, 1, 1, 1), (0, 5), ()]
SLOTS = 12
# channels, size of a kernel
CONVS = [(130, 4), (3, 2), (300, 7)]
# heads, size of a head, groups, size of a state
SCANS = [(4, 16, 2, 8), (6, 5, 1, 3), (2, 70, 2, 33), (1, 1, 1, 1)]
# channels, size of a state
CHANNEL_SCANS = [(130, 16), (5, 3), (1, 1)]
# heads, heads of keys, sizes of keys and of values; whether each key has a decay
DELTAS = [(4, 2, 16, 70, False), (3, 1, 5, 9, False), (2, 2, 9, 33, True), (1, 1, 1, 1, True)]


class Places(NamedTuple):
    """Positions of requests in a step, and the states they read and write."""

    query_start_loc: Tensor
    state_in: Tensor
    state_out: Tensor


def make_places(lengths: tuple[int, ...], padding: int = 2) -> Places:
    """Every other request begins with zeros; all but short ones store a snapshot on the way."""
    bounds = [sum(lengths[:r]) for r in range(len(lengths) + 1)]
    state_in = [-1 if r % 2 else r for r in range(len(lengths))]
    state_out = [-1] * (bounds[-1] + padding)
    for r, length in enumerate(lengths):
        if length:
            state_out[bounds[r + 1] - 1] = r
        if length > 2:
            state_out[bounds[r] + 1] = SLOTS - 1 - r
    return Places(*(torch.tensor(given).int() for given in (bounds, state_in, state_out)))


class Conv:
    """A convolution of some tokens."""

    def __init__(self, num_tokens: int, sizes: tuple[int, ...], dtype: torch.dtype) -> None:
        channels, size = sizes
        self.x = torch.randn(num_tokens, channels + 5).to(dtype)[:, 3 : 3 + channels]
        self.weight = torch.randn(size, channels)
        self.bias = None if size == 2 else torch.randn(channels)
        self.act = "gelu" if size == 2 else "silu"
        self.shape = (size - 1, channels)

    def run(self, ops: Any, states: Tensor, places: Places, tokens: slice = slice(None)) -> Tensor:
        x = self.x[tokens]
        result: Tensor = ops.causal_conv1d(x, self.weight, self.bias, states, *places, self.act)
        return result


class Scan:
    """A scan of some tokens, which are views of one tensor, as in a layer."""

    def __init__(self, num_tokens: int, sizes: tuple[int, ...], dtype: torch.dtype) -> None:
        heads, head_size, groups, state_size = sizes
        self.widths = [heads * head_size, groups * state_size, groups * state_size, heads]
        self.mixed = torch.randn(num_tokens, sum(self.widths)).to(dtype)
        self.views = [(heads, head_size), (groups, state_size), (groups, state_size), (heads,)]
        self.numbers = {name: torch.randn(heads) for name in ("d", "dt_bias")}
        self.numbers["a"] = -torch.rand(heads) * 4
        self.shape = (heads, state_size, head_size)

    def run(self, ops: Any, states: Tensor, places: Places, tokens: slice = slice(None)) -> Tensor:
        parts = self.mixed[tokens].split(self.widths, 1)
        x, b, c, dt = (
            part.unflatten(1, view) for part, view in zip(parts, self.views, strict=True)
        )
        result: Tensor = ops.selective_scan(
            x, dt, b, c, states, *places, **self.numbers, dt_limit=(0.05, 2.0)
        )
        return result


class GatedConv:
    """A convolution without an activation, between two factors."""

    def __init__(self, num_tokens: int, sizes: tuple[int, ...], dtype: torch.dtype) -> None:
        channels, size = sizes
        self.mixed = torch.randn(num_tokens, 3 * channels).to(dtype)
        self.weight = torch.randn(size, channels)
        self.shape = (size - 1, channels)

    def run(self, ops: Any, states: Tensor, places: Places, tokens: slice = slice(None)) -> Tensor:
        before, after, x = self.mixed[tokens].chunk(3, 1)
        result: Tensor = ops.causal_conv1d(
            x, self.weight, None, states, *places, None, before=before, after=after
        )
        return result


class ChannelScan:
    """A scan of channels, each with a state of its own."""

    def __init__(self, num_tokens: int, sizes: tuple[int, ...], dtype: torch.dtype) -> None:
        channels, state_size = sizes
        self.widths = [channels, channels, channels, state_size, state_size]
        self.mixed = torch.randn(num_tokens, sum(self.widths)).to(dtype)
        self.mixed[::5] *= 8
        self.numbers = {"a": -torch.rand(state_size, channels) * 4, "d": torch.randn(channels)}
        self.shape = (state_size, channels)

    def run(self, ops: Any, states: Tensor, places: Places, tokens: slice = slice(None)) -> Tensor:
        x, dt, gate, b, c = self.mixed[tokens].split(self.widths, 1)
        result: Tensor = ops.channel_scan(x, dt, b, c, gate, states, *places, **self.numbers)
        return result


class Delta:
    """The gated delta rule on some tokens, which are views of one tensor."""

    def __init__(self, num_tokens: int, sizes: tuple[int, ...], dtype: torch.dtype) -> None:
        heads, key_heads, keys, values, is_per_key = sizes
        self.views = [(key_heads, keys), (key_heads, keys), (heads, values)]
        self.views += [(heads, keys) if is_per_key else (heads,), (heads,)]
        self.mixed = torch.randn(num_tokens, sum(map(math.prod, self.views))).to(dtype)
        self.numbers = {"a": -torch.rand(heads) * 4, "dt_bias": torch.randn(self.views[3])}
        self.shape = (heads, keys, values)
        self.beta_scale = 2.0 if is_per_key else 1.0

    def run(self, ops: Any, states: Tensor, places: Places, tokens: slice = slice(None)) -> Tensor:
        parts = self.mixed[tokens].split([*map(math.prod, self.views)], 1)
        given = [part.unflatten(1, view) for part, view in zip(parts, self.views, strict=True)]
        result: Tensor = ops.delta_rule(
            *given, states, *places, **self.numbers, beta_scale=self.beta_scale
        )
        return result


class Recurrence:
    """The gated recurrence of channels, some of which decay by next to nothing."""

    def __init__(self, num_tokens: int, sizes: tuple[int, ...], dtype: torch.dtype) -> None:
        (channels,) = self.shape = sizes
        self.mixed = torch.randn(num_tokens, 3 * channels).to(dtype)
        self.numbers = {name: torch.randn(channels) for name in ("gate_bias", "decay_bias")}
        self.numbers["rate"] = -8 * torch.rand(channels) ** 8

    def run(self, ops: Any, states: Tensor, places: Places, tokens: slice = slice(None)) -> Tensor:
        x, gate, decay = self.mixed[tokens].chunk(3, 1)
        result: Tensor = ops.gated_recurrence(x, gate, decay, states, *places, **self.numbers)
        return result


Case = Conv | GatedConv | Scan | ChannelScan | Delta | Recurrence
KINDS: list[tuple[type[Case], Sequence[tuple[int, ...]]]] = [
    (Conv, CONVS),
    (GatedConv, CONVS),
    (Scan, SCANS),
    (ChannelScan, CHANNEL_SCANS),
    (Delta, DELTAS),
    (Recurrence, [(130,), (5,), (1,)]),
]


def cases(num_tokens: int, dtype: torch.dtype) -> list[Case]:
    return [kind(num_tokens, sizes, dtype) for kind, given in KINDS for sizes in given]


def random_states(shape: tuple[int, ...]) -> Tensor:
    """States in slots that are not adjacent."""
    return torch.randn(SLOTS, 2, *shape)[:, 1]


def compare(ops: Any, places: Places, dtype: torch.dtype) -> None:
    """The output and every state, those that nobody writes among them."""
    for case in cases(len(places.state_out), dtype):
        states = random_states(case.shape)
        expected_states = states.clone()
        expected = case.run(reference, expected_states, places)
        actual = case.run(ops, states, places)
        tolerance = 1e-5 if dtype is torch.float32 else 2e-2
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(states, expected_states, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("isa", "threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_states_match_the_reference(lengths: tuple[int, ...], dtype: torch.dtype) -> None:
    _cpu.set_num_threads(3)
    compare(cpu, make_places(lengths), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("lengths", LENGTHS[:2])
def test_states_under_triton(lengths: tuple[int, ...], dtype: torch.dtype) -> None:
    pytest.importorskip("triton")
    from vllm_lite.kernels.gpu.triton import ops

    compare(ops, make_places(lengths), dtype)


@pytest.mark.usefixtures("isa", "threads")
@pytest.mark.parametrize("dtype", DTYPES)
def test_splits_into_steps_never_change_a_bit(dtype: torch.dtype) -> None:
    """Splits pass the state on through changing slots, beside another request."""
    whole = make_places((40,), padding=0)._replace(state_in=torch.tensor([-1]).int())
    for case in cases(40, dtype):
        _cpu.set_num_threads(1)
        expected_states = random_states(case.shape)
        expected = case.run(cpu, expected_states, whole)
        _cpu.set_num_threads(3)
        for cut in (1, 13, 39):
            states = random_states(case.shape)
            first = make_places((cut,), padding=0)._replace(state_in=torch.tensor([-1]).int())
            first.state_out[-1] = 5
            assert torch.equal(case.run(cpu, states, first, slice(cut)), expected[:cut])
            # The rest, and as another request the first tokens again.
            order = torch.tensor([*range(cut, 40), *range(cut)])
            places = Places(
                torch.tensor([0, 40 - cut, 40]).int(),
                torch.tensor([5, -1]).int(),
                torch.full((40,), -1).int(),
            )
            places.state_out[40 - cut - 1] = 0
            mixed = case.run(cpu, states, places, order)  # type: ignore[arg-type]
            assert torch.equal(mixed, expected[order])
            assert torch.equal(states[0], expected_states[0])


@pytest.mark.usefixtures("isa")
def test_non_finite_values_propagate() -> None:
    case = Scan(3, (2, 8, 1, 4), torch.float32)
    case.mixed[1, -1] = torch.nan
    states = random_states(case.shape)
    out = case.run(cpu, states, make_places((3,), padding=0))
    assert out[0].isfinite().all() and out[:, 0].isfinite().all() and out[1:, 1].isnan().all()
    channels = ChannelScan(3, (40, 3), torch.float32)
    channels.mixed[1, 47] = torch.nan  # the step of a channel
    out = channels.run(cpu, random_states(channels.shape), make_places((3,), padding=0))
    assert out[0].isfinite().all() and out[1:, 7].isnan().all()
    assert out[:, [i for i in range(40) if i != 7]].isfinite().all()


# size of a row, and of a group
ROWS = [(96, 32), (35, 7), (70, 70), (1, 1)]


def compare_gated(ops: Any, num_rows: int, dtype: torch.dtype) -> None:
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    for size, group_size in ROWS:
        x, gate = torch.randn(2, num_rows, size + 3).to(dtype)[..., 1 : 1 + size]
        norm = (x, gate, torch.randn(size).to(dtype), 1e-5, group_size)
        for arguments in (norm, (*norm, "sigmoid", True)):
            expected, actual = (each.gated_rms_norm(*arguments) for each in (reference, ops))
            torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
        expected, actual = (each.gated_product(x, gate, "sigmoid") for each in (reference, ops))
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("isa", "threads")
@pytest.mark.parametrize("dtype", DTYPES)
def test_gated_rows(dtype: torch.dtype) -> None:
    _cpu.set_num_threads(3)
    for num_rows in (0, 1, 33):
        compare_gated(cpu, num_rows, dtype)


def test_gated_rows_under_triton() -> None:
    pytest.importorskip("triton")
    from vllm_lite.kernels.gpu.triton import ops

    compare_gated(ops, 3, torch.float32)


def test_what_does_not_fit_is_refused() -> None:
    sizes = [(8, 4), (8, 4), (4, 8, 2, 4), (8, 4), (4, 2, 8, 4, False), (8,)]
    places = make_places((5,), padding=0)
    for (kind, _), given_sizes in zip(KINDS, sizes, strict=True):
        case = kind(5, given_sizes, torch.float32)
        states = random_states(case.shape)
        for wrong in (
            places._replace(state_in=torch.tensor([SLOTS]).int()),
            places._replace(state_out=torch.full((5,), SLOTS).int()),
            places._replace(query_start_loc=torch.tensor([0, 6]).int()),
            places._replace(query_start_loc=torch.tensor([1, 5]).int()),
        ):
            before = states.clone()
            with pytest.raises(IndexError):
                case.run(cpu, states, wrong)
            assert torch.equal(states, before)
        for given, wrong in (
            (states.bfloat16(), places),
            (states[:, :1], places),
            (states.repeat_interleave(2, -1)[..., ::2], places),
            (states, places._replace(state_in=places.state_in.long())),
            (states, places._replace(state_out=places.state_out[:4])),
        ):
            with pytest.raises(ValueError, match=r"causal_conv1d|_scan|_recurrence|delta_rule"):
                case.run(cpu, given, wrong)
    with pytest.raises(ValueError, match="gated_rms_norm: rows must be whole groups"):
        cpu.gated_rms_norm(torch.ones(2, 6), torch.ones(2, 6), torch.ones(6), 1e-5, 4)
