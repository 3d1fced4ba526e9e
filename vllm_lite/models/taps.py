"""A decoder's forward pass that also gives what enters some of its layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vllm_lite.errors import UsageError
from vllm_lite.kernels.dispatch import ops
from vllm_lite.models.decoder import Decoder, DecoderForCausalLM
from vllm_lite.models.interfaces import CausalLM


class TappedForward:
    """`forward` of a plain decoder, with the residual stream at some layers."""

    def __init__(self, model: CausalLM, layers: Sequence[int]) -> None:
        """Raises UsageError for a decoder whose stream is more than a sum."""
        decoder: Any = model.model if isinstance(model, DecoderForCausalLM) else None
        is_plain = type(decoder) is Decoder and decoder.leave.is_plain
        if not is_plain or any(
            layer.last_norm is not None or layer.stream_scale != 1.0 or layer.renews_stream
            for layer in decoder.layers
        ):
            raise UsageError(
                f"--speculative-config.method eagle3 reads what enters layers of the model, which "
                f"{type(model).__name__} does not keep; use eagle or draft_model"
            )
        self._decoder, self._layers, self._add = decoder, tuple(layers), ops().scaled_add

    @torch.inference_mode()
    def __call__(self, input_ids: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        """[T] and [T] int64 -> hidden states [T, N], normalised, and those of each layer."""
        decoder, taps = self._decoder, {}
        hidden, residual = decoder.enter(input_ids, positions), None
        for i, layer in enumerate(decoder.layers):
            if i in self._layers:
                taps[i] = self._add(hidden, residual)
            hidden, residual = layer.forward(positions, hidden, residual)
        return decoder.leave.add_and_norm(hidden, residual)[0], *(taps[i] for i in self._layers)
