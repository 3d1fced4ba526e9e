"""Activations and scaled sums equal the reference, close to the last bit of float32."""

from __future__ import annotations

import pytest
import torch

from vllm_lite.kernels.cpu import ops as cpu
from vllm_lite.kernels.reference.elementwise import ACTIVATIONS
from vllm_lite.kernels.reference.ops import Ops as reference

DTYPES = [torch.float32, torch.bfloat16]


def sweep() -> torch.Tensor:
    """All exponents of both signs, and dense where activations bend."""
    magnitudes = torch.logspace(-38, 4, 5000)
    return torch.cat([magnitudes, -magnitudes, torch.linspace(-14, 14, 20001), torch.zeros(3)])


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_accurate_to_a_few_ulps(name: str) -> None:
    x = sweep()
    wide = x.double()
    # As torch has them, these two cancel out far below zero.
    whole = {
        "gelu": 0.5 * wide * torch.special.erfc(-wide * 0.5**0.5),
        "gelu_tanh": wide * torch.sigmoid((8 / torch.pi) ** 0.5 * (wide + 0.044715 * wide**3)),
    }
    exact = whole.get(name, ACTIVATIONS[name](wide))
    error = (cpu.activation(x[None], name)[0].double() - exact).abs()
    unit = torch.finfo(torch.float32).eps
    assert (error <= 2 * unit * torch.maximum(wide.abs(), exact.abs()) + 1e-36).all()
    # Down to where its power of e is bounded, or the exponent itself rounded: of the result alone.
    lowest = {"gelu": -12.5, "silu": -80.0}.get(name, -3.0)
    assert (error <= 7 * unit * exact.abs() + 1e-36)[x > lowest].all()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 40, 1536])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_plain_and_gated(name: str, size: int, dtype: torch.dtype) -> None:
    x = (torch.randn(33, 2 * size + 3) * 5).to(dtype)[:, : 2 * size]
    gate, up = x.chunk(2, -1)
    plain, gated = cpu.activation(gate, name), cpu.act_and_mul(x, name)
    tolerance = 1e-5 if dtype is torch.float32 else 8e-3
    for actual, expected in (
        (plain, reference.activation(gate, name)),
        (gated, reference.act_and_mul(x, name)),
    ):
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=5e-5)
    # Rounded to its type in between, and no row looks at another.
    assert torch.equal(gated, plain * up)
    assert torch.equal(torch.cat([cpu.act_and_mul(row[None], name) for row in x]), gated)
    assert torch.equal(cpu.activation(gate, name, out=gate), plain)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_keep_infinities_and_nan(name: str) -> None:
    x = torch.tensor([[torch.nan, torch.inf, -0.0, 0.0, 1e4, -1e4]])
    result = cpu.activation(x, name)[0]
    assert result[0].isnan()
    want = reference.activation(x, name)[0]
    assert result[1] == (1.0 if name in ("sigmoid", "tanh") else torch.inf)
    assert torch.equal(result[2:4], want[2:4])
    # e^88 is bounded, so the far negative end is a tiny number where the exact result is 0.
    torch.testing.assert_close(result[4:], want[4:], atol=1e-30, rtol=0)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("curve", [(0.8, 0.8, 0.5, -1e-6), (1.3, 2.1, 0.25, -0.75)])
def test_xielu(curve: tuple[float, float, float, float]) -> None:
    x = sweep()[None]
    exact = reference.xielu(x.double(), *curve)
    got = cpu.xielu(x, *curve)
    # In units of its largest term.
    unit = torch.finfo(torch.float32).eps * torch.maximum(x.abs(), exact.abs()) * 4
    assert ((got.double() - exact).abs() <= unit + 1e-36).all()
    rows = (torch.randn(33, 40) * 5).bfloat16()[:, 3:]
    want = reference.xielu(rows, *curve)
    plain = cpu.xielu(rows, *curve)
    torch.testing.assert_close(plain, want, rtol=8e-3, atol=5e-5)
    assert torch.equal(cpu.xielu(rows, *curve, out=rows), plain)
    nan = torch.tensor([[torch.nan, 0.0, -0.0]])
    assert cpu.xielu(nan, *curve)[0].isnan().tolist() == [True, False, False]
    with pytest.raises(ValueError, match="more than 0"):
        cpu.xielu(x, 0.8, 0.8, 0.5, 1.0)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 40, 1000])
@pytest.mark.parametrize("num_rows", [0, 1, 70])
def test_scaled_add(dtype: torch.dtype, size: int, num_rows: int) -> None:
    x, y = (torch.randn(num_rows, size + 3).to(dtype)[:, 1 : 1 + size] for _ in range(2))
    for other, scales in ((y, (0.5, 3.0)), (y, (0.22, -0.7)), (None, (24.0, 1.0))):
        actual = cpu.scaled_add(x, other, *scales)
        expected = reference.scaled_add(x, other, *scales)
        tolerance = 1e-6 if dtype is torch.float32 else 8e-3
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=1e-6)
        limited = cpu.scaled_add(x, other, *scales, limit=0.75)
        assert torch.equal(limited, actual.clamp(-0.75, 0.75))
    # Plain sums are those of torch, to the bit, and may go to either.
    assert torch.equal(cpu.scaled_add(x, y), x + y)
    gates = torch.randn(num_rows, 3)[:, :1]
    gated = cpu.scaled_add(x, y, 0.5, -2.0, gates=gates)
    expected = reference.scaled_add(x, y, 0.5, -2.0, gates=gates)
    torch.testing.assert_close(gated, expected)
    total = x + y
    assert cpu.scaled_add(x, y, out=y) is y
    assert torch.equal(y, total)


def test_what_does_not_fit_is_refused() -> None:
    x = torch.randn(4, 8)
    with pytest.raises(ValueError, match=r"got torch\.float64"):
        cpu.act_and_mul(x.double(), "silu")
    with pytest.raises(ValueError, match="'swiglu' is unknown; known: silu, gelu"):
        cpu.activation(x, "swiglu")
    with pytest.raises(ValueError, match="even size"):
        cpu.act_and_mul(x[:, :7], "silu")
    with pytest.raises(ValueError, match="dense rows"):
        cpu.act_and_mul(x.t(), "silu")
    for wrong in (x[:3], x[:, :7]):
        with pytest.raises(ValueError, match="must match x"):
            cpu.scaled_add(x, wrong)
        with pytest.raises(ValueError, match="must match x"):
            cpu.activation(x, "relu", out=wrong)
    with pytest.raises(ValueError, match=r"float32 and torch\.bfloat16"):
        cpu.scaled_add(x, x.bfloat16())
