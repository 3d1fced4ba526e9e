"""Section `few_rows`: products of few rows against reading their weights, in each way there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from unittest.mock import patch

import torch
from torch import Tensor

from measure.place import Place
from measure.report import Row
from measure.timing import MOST_CALLS, Work, can_run, graphed, medians

# Outputs and inputs of Llama-3.1-8B's products of a layer.
SHAPES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
GROUP = 32  # inputs that share a scale, of int4
# Rows that are multiplied without tiles too, whether a step would be or not.
_FEW = 8
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class Way:
    """`work` multiplies by each copy of a weight, within `context` in this way."""

    work: Work
    context: Callable[[], AbstractContextManager[object]] = nullcontext


@dataclass(frozen=True, slots=True)
class Product:
    """A product by weights of one shape."""

    num_bytes: int  # of a weight
    ways: Callable[[int], dict[str, Way]]  # of so many rows, ours first


def few_rows(place: Place) -> None:
    """A layer's products of some rows by plain, fp8 and int4 weights."""
    kinds = {
        "bfloat16": (_plain, (1, 2, 4, 8, 64)),
        "fp8": (_fp8, (1, 2, 8, 16, 64)),
        "int4": (_int4, (1, 4, 8, 16, 64, 256)),
    }
    shapes = place.either(SHAPES, ((24, 64),))
    for kind, (make, counts) in kinds.items():
        products = [make(place, shape) for shape in shapes]
        for rows in place.either(counts, (2, 8)):
            place.tell(_row(place, kind, rows, dict(zip(shapes, products, strict=True))))


def _row(place: Place, kind: str, rows: int, products: dict[tuple[int, int], Product]) -> Row:
    """The fastest way to multiply by all of a layer's weights of one kind, and each way."""
    works = dict[tuple[str, tuple[int, int]], Work]()
    for shape, product in products.items():
        for name, way in product.ways(rows).items():
            with way.context():
                works[name, shape] = graphed(place, way.work)
    # On the stand-in nothing was recorded, so that all ways are one.
    found = medians(place, works, max_seconds=0.6)
    ways = dict.fromkeys(name for name, _ in works)
    names = [name for name in ways if all((name, shape) in works for shape in products)]
    num_bytes = _calls(place) * sum(product.num_bytes for product in products.values())
    speeds = {name: num_bytes / sum(found[name, shape] for shape in products) for name in names}
    best = max(speeds.values())
    return Row(
        "few_rows",
        f"fastest products by {kind} weights of a layer, rows",
        best / 1e12,
        "TB/s",
        best / place.known_limits().bytes_per_s,
        details={
            f"{shape[0]} x {shape[1]}": {name: found[name, shape] / _calls(place) for name in names}
            for shape in products
        },
        column=str(rows),
        beside={name: speed / 1e12 for name, speed in speeds.items()},
    )


def _calls(place: Place) -> int:
    return place.either(MOST_CALLS, 2)


def _copies(place: Place, weight: W) -> list[W]:
    """Weights for all calls of a graph, so that none is read from the device's cache."""
    return [weight, *(deepcopy(weight) for _ in range(_calls(place) - 1))]


def _each(weights: Sequence[W], multiply: Callable[[W], object]) -> Work:
    def work() -> None:
        for weight in weights:
            multiply(weight)

    return work


def _plain(place: Place, shape: tuple[int, int]) -> Product:
    from vllm_lite.kernels.gpu.triton import ops
    from vllm_lite.kernels.gpu.triton.products import row_products

    weights = _copies(place, torch.randn(shape, device=place.device).bfloat16())

    def ways(rows: int) -> dict[str, Way]:
        x = torch.randn(rows, shape[1], device=place.device).bfloat16()
        work = _each(weights, lambda weight: ops.plain_linear(x, weight, None, torch.bfloat16))
        most = partial(patch.object, row_products, "MOST_ROWS")
        ours = {"without tiles": Way(work, partial(most, rows))} if rows <= _FEW else {}
        return ours | {"torch": Way(work, partial(most, 0))}

    return Product(weights[0].nbytes, ways)


def _fp8(place: Place, shape: tuple[int, int]) -> Product:
    from vllm_lite.kernels.gpu.triton import ops

    device, out = place.device, torch.bfloat16
    weights = _copies(place, torch.randn(shape, device=device).to(torch.float8_e4m3fn))
    scales = torch.ones(shape[0], 1, device=device)

    def ways(rows: int) -> dict[str, Way]:
        x = torch.randn(rows, shape[1], device=device).to(torch.float8_e4m3fn)
        by_row = torch.ones(rows, 1, device=device)

        def by_ours(weight: Tensor) -> Tensor:
            return ops.scaled_linear(x, by_row, weight, scales, None, out)

        def by_torch(weight: Tensor) -> Tensor:
            product: Tensor = torch._scaled_mm(x, weight.T, by_row, scales.T, out_dtype=out)
            return product

        found = {"ours": Way(_each(weights, by_ours))}
        torchs = _each(weights, by_torch)
        return found | ({"torch": Way(torchs)} if can_run("torch's fp8", torchs) else {})

    return Product(weights[0].nbytes, ways)


def _int4(place: Place, shape: tuple[int, int]) -> Product:
    from vllm_lite.kernels.gpu.triton.products import grouped_linear, small_products
    from vllm_lite.kernels.grouped_weight import make_grouped

    codes = torch.randint(0, 16, shape, dtype=torch.uint8, device=place.device)
    size = shape[0], shape[1] // GROUP
    scales, minimums = torch.rand(2, *size, device=place.device).half()
    weights = _copies(place, make_grouped(codes, scales, 4, minimums=minimums))
    tiles = partial(patch.multiple, grouped_linear, takes=_takes_none, MANY_ROWS=1 << 30)

    def ways(rows: int) -> dict[str, Way]:
        x = torch.randn(rows, shape[1], device=place.device).bfloat16()
        work = _each(weights, partial(grouped_linear.grouped_linear, x))
        found = dict[str, Way]()
        if rows <= _FEW:
            most = partial(patch.object, small_products, "MOST_ROWS", rows)
            found["without tiles"] = Way(work, most)
        found["tiles"] = Way(work, tiles)
        if rows >= _FEW:
            found["expanded for torch"] = Way(
                work, partial(patch.object, grouped_linear, "MANY_ROWS", 1)
            )
        return found

    return Product(weights[0].nbytes, ways)


def _takes_none(*_: object) -> bool:
    return False
