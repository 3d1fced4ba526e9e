"""Attention of encoders: to the tokens of a request in the step, in both directions."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from vllm_lite.kernels.dispatch import ops
from vllm_lite.kernels.metadata import current_metadata
from vllm_lite.layers.score_terms import ScoreTerms, check_arguments, per_head


class EncoderAttention(nn.Module):
    """Scaled dot-product attention in both directions, to the tokens of a request in the step."""

    def __init__(
        self,
        scale: float,
        sliding_window: int | None = None,
        terms: ScoreTerms | None = None,
        distance_terms: Tensor | None = None,
    ) -> None:
        """A window is how far a token sees, before and after itself.

        `distance_terms` are an argument of the operation, filled when they are loaded.
        """
        super().__init__()
        self._scale = scale
        self._window = sliding_window or 0
        self._softcap = 0.0 if terms is None else terms.softcap
        # Further arguments of the operation.
        self._terms: dict[str, Any] = {} if terms is None else {**per_head(terms)}
        if distance_terms is not None:
            self._terms["distance_terms"] = distance_terms
        self._attend = ops().encoder_attention
        check_arguments(self._attend, self._terms)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query [T, H, D], key [T, K, D], value [T, K, Dv], of any row stride -> [T, H, Dv]."""
        return self._attend(
            query,
            key,
            value,
            current_metadata().query_start_loc,
            self._scale,
            self._window,
            self._softcap,
            **self._terms,
        )
