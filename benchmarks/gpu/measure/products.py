"""Section `few_rows`: products of few rows against reading their weights, each in both ways."""

from __future__ import annotations

from functools import partial
from unittest.mock import patch

import torch

from measure.place import Place
from measure.report import Row
from measure.timing import Work, graphed, medians

# Outputs and inputs of Llama-3.1-8B's products of a layer.
SHAPES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
# A type of weights, and what multiplies more rows than are few.
OTHERS = {torch.bfloat16: "torch", torch.float8_e4m3fn: "tiles"}


def few_rows(place: Place) -> None:
    """1 to 8 rows by plain and by fp8 weights, without tiles and otherwise."""
    from vllm_lite.kernels.gpu.triton import ops, row_products

    def multiply(most: int, x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> None:
        with patch.dict(row_products.MOST_ROWS_OF, {weight.dtype: most}):
            if weight.dtype is torch.bfloat16:
                ops.plain_linear(x, weight, None, torch.bfloat16)
            else:
                ops.scaled_linear(x, scales[: len(x)], weight, scales, None, torch.bfloat16)

    for outputs, inputs in place.either(SHAPES, ((24, 64),)):
        for dtype, other in OTHERS.items():
            weight = torch.randn(outputs, inputs, device=place.device).to(dtype)
            scales = torch.ones(outputs, 1, device=place.device)
            for rows in place.either((1, 2, 4, 8), (2,)):
                x = torch.randn(rows, inputs, device=place.device).to(dtype)
                works: dict[str, Work] = {
                    name: graphed(place, partial(multiply, most, x, weight, scales))
                    for name, most in (("ours", rows), (other, 0))
                }
                for name, seconds in medians(place, works, max_seconds=0.3).items():
                    speed = weight.nbytes / seconds
                    kind = str(dtype).removeprefix("torch.")
                    work = f"{rows} rows by {outputs} x {inputs} of {kind}, {name}"
                    share = speed / place.known_limits().bytes_per_s
                    place.tell(Row("few_rows", work, speed / 1e12, "TB/s", share))
