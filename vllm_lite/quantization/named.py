"""A layer's LinearMethod whose refusals name the layer, or those that are fused in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_lite.errors import CheckpointError
from vllm_lite.quantization.method import EmbeddingTable, LinearKernel, LinearMethod, StoredTensor


@dataclass(frozen=True, slots=True)
class NamedMethod:
    """Does what `method` does for the checkpoint's `layers`."""

    method: LinearMethod
    layers: tuple[str, ...]

    def create_weights(self, input_size: int, output_size: int) -> dict[str, StoredTensor]:
        with self._refusals_name_layers():
            return self.method.create_weights(input_size, output_size)

    def create_bias(self, output_size: int) -> Tensor:
        return self.method.create_bias(output_size)

    def process_weights_after_loading(
        self,
        weights: Mapping[str, StoredTensor],
        bias: Tensor | None,
        out_dtype: torch.dtype | None = None,
    ) -> LinearKernel:
        with self._refusals_name_layers():
            return self.method.process_weights_after_loading(weights, bias, out_dtype)

    def for_vocabulary(self) -> LinearMethod:
        return NamedMethod(self.method.for_vocabulary(), self.layers)

    def make_table(self, weights: Mapping[str, StoredTensor]) -> EmbeddingTable:
        with self._refusals_name_layers():
            return self.method.make_table(weights)

    @contextmanager
    def _refusals_name_layers(self) -> Iterator[None]:
        try:
            yield
        except CheckpointError as error:
            raise CheckpointError(f"{', '.join(self.layers)}: {error}") from None
