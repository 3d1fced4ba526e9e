"""Sizes of the pieces in which weights are converted as they are loaded."""

from __future__ import annotations

import torch

# Some hundred megabytes of copies: few launches convert a layer.
_VALUES_OF_LAUNCH = 1 << 26


def rows_at_once(num_columns: int, device: torch.device, cached_values: int) -> int:
    """Rows of num_columns values that are converted together.

    On a CPU they are as many as `cached_values`, whose copies stay in a core's cache.
    """
    values = cached_values if device.type == "cpu" else _VALUES_OF_LAUNCH
    return max(1, values // num_columns)
