"""Applies a step's token masks to its logits: forbidden tokens cannot be sampled.

One operation for all constrained rows of a batch. Knows bits, no grammar.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vllm_lite.kernels.dispatch import ops
from vllm_lite.kernels.transfer import to_device


class TokenMask:
    """The masks of some rows of one batch."""

    def __init__(
        self, rows: Sequence[int], bits: npt.NDArray[np.int32], device: torch.device
    ) -> None:
        """`bits` [M, W] are those of the batch's `rows` [M]; 1 allows a token."""
        self._rows = to_device(np.array(rows, np.int64), device)
        self._bits = to_device(bits, device)

    def apply(self, logits: Tensor) -> None:
        """Ban in `logits` [R, V] in place."""
        ops().apply_token_mask(logits, self._rows, self._bits)


def masked_rows(sampling_ids: Sequence[str], masked_ids: Sequence[str]) -> list[int]:
    """The row of each mask, given the request of each row [S] and of each mask [M].

    Of a request's masks the first belongs to its first row, and so on.
    """
    row_of: dict[str, int] = {}
    for row, request_id in enumerate(sampling_ids):
        row_of.setdefault(request_id, row)
    rows: list[int] = []
    last = None
    for request_id in masked_ids:
        rows.append(rows[-1] + 1 if request_id == last else row_of[request_id])
        last = request_id
    return rows
