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
