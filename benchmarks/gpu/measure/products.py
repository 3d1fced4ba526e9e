"""Section `few_rows`: products of few rows against reading their weights, in each way there is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from unittest.mock import patch

import torch

from measure.place import Place
from measure.report import Row
from measure.timing import Work, graphed, medians

# Outputs and inputs of Llama-3.1-8B's products of a layer.
SHAPES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
GROUP = 32  # inputs that share a scale, of int4
# Rows that are multiplied without tiles too, whether a step would be or not.
_FEW = 4
Way = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Product:
    """A product of one shape, and within which contexts it is done in which way."""

    num_bytes: int  # of its weight
    work: Callable[[], object]
    ways: dict[str, Way]


def few_rows(place: Place) -> None:
    """A layer's products of some rows by plain, fp8 and int4 weights."""
    kinds = {
        "bfloat16": (_plain, (1, 2, 4, 64)),
        "fp8": (_fp8, (1, 2, 16, 64)),
        "int4": (_int4, (1, 4, 16, 64, 256)),
    }
    shapes = place.either(SHAPES, ((24, 64),))
    for kind, (make, counts) in kinds.items():
        for rows in place.either(counts, (2,)):
            products = [make(place.device, rows, shape) for shape in shapes]
            works = dict[str, Work]()
            for i, product in enumerate(products):
                for name, way in product.ways.items():
                    with way():
                        works[f"{name} {i}"] = graphed(place, product.work)
            # On the stand-in nothing was recorded, so that all ways are one.
            found = medians(place, works, max_seconds=0.6)
            num_bytes = sum(product.num_bytes for product in products)
            speeds = {
                name: num_bytes / sum(found[f"{name} {i}"] for i in range(len(products)))
                for name in products[0].ways
            }
            first, *others = speeds
            place.tell(
                Row(
                    "few_rows",
                    f"{rows} rows by {kind} weights of a layer, {first}",
                    speeds[first] / 1e12,
                    "TB/s",
                    speeds[first] / place.known_limits().bytes_per_s,
                    note=", ".join(f"{name}: {speeds[name] / 1e12:.3g} TB/s" for name in others),
                    details={
                        f"{outputs} x {inputs}": {name: found[f"{name} {i}"] for name in speeds}
                        for i, (outputs, inputs) in enumerate(shapes)
                    },
                )
            )


def _plain(device: torch.device, rows: int, shape: tuple[int, int]) -> Product:
    from vllm_lite.kernels.gpu.triton import ops, row_products

    weight = torch.randn(shape, device=device).bfloat16()
    x = torch.randn(rows, shape[1], device=device).bfloat16()
    work = partial(ops.plain_linear, x, weight, None, torch.bfloat16)

    def way(most: int) -> AbstractContextManager[object]:
        return patch.object(row_products, "MOST_ROWS", most)

    ours: dict[str, Way] = {"without tiles": partial(way, rows)} if rows <= _FEW else {}
    return Product(weight.nbytes, work, ours | {"torch": partial(way, 0)})


def _fp8(device: torch.device, rows: int, shape: tuple[int, int]) -> Product:
    from vllm_lite.kernels.gpu.triton import ops

    weight = torch.randn(shape, device=device).to(torch.float8_e4m3fn)
    x = torch.randn(rows, shape[1], device=device).to(torch.float8_e4m3fn)
    scales = torch.ones(shape[0], 1, device=device)
    work = partial(ops.scaled_linear, x, scales[:rows], weight, scales, None, torch.bfloat16)
    return Product(weight.nbytes, work, {"tiles": nullcontext})


def _int4(device: torch.device, rows: int, shape: tuple[int, int]) -> Product:
    from vllm_lite.kernels.gpu.triton import grouped_linear, small_products
    from vllm_lite.kernels.grouped_weight import make_grouped

    codes = torch.randint(0, 16, shape, dtype=torch.uint8, device=device)
    scales, minimums = torch.rand(2, shape[0], shape[1] // GROUP, device=device).half()
    weight = make_grouped(codes, scales, 4, minimums=minimums)
    x = torch.randn(rows, shape[1], device=device).bfloat16()
    most = partial(patch.object, small_products, "MOST_ROWS")
    ways: dict[str, Way] = {
        "tiles": partial(patch.multiple, grouped_linear, takes=_takes_none, MANY_ROWS=1 << 30)
    }
    if rows <= _FEW:
        ways = {"without tiles": partial(most, rows)} | ways
    else:
        ways["expanded"] = partial(patch.object, grouped_linear, "MANY_ROWS", 1)
    num_bytes = weight.codes.nbytes + scales.nbytes + minimums.nbytes
    return Product(num_bytes, partial(grouped_linear.grouped_linear, x, weight), ways)


def _takes_none(*_: object) -> bool:
    return False
