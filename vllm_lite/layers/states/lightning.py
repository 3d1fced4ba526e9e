"""Lightning attention: linear attention whose heads forget at fixed rates (arXiv:2401.04658)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_lite.distributed.groups import Shard, tp_size
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.dispatch import ops
from vllm_lite.layers.activation import activation_name
from vllm_lite.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from vllm_lite.layers.state import GatedNorm, MixerParts, StateMixer, StateSpec, state_places
from vllm_lite.quantization.method import LinearKernel


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningSpec(StateSpec):
    """A state of each head maps keys to values; with each token e^-rate of it is left."""

    head_size: int
    rates: tuple[float, ...]
    act: str
    norm_eps: float

    def make(self, parts: MixerParts) -> LightningMixer:
        return LightningMixer(self, parts)


class LightningMixer(StateMixer):
    """out(norm(scan(act(qkv))) * sigmoid(z)): a scan of Mamba 2 whose time steps are all 1."""

    def __init__(self, spec: LightningSpec, parts: MixerParts) -> None:
        if tp_size() > 1:
            raise CheckpointError(
                "tensor parallelism does not divide lightning attention, which normalises all "
                "heads as one row; use --tensor-parallel-size 1"
            )
        count, size = len(spec.rates), spec.head_size
        super().__init__((count, size, size))
        self._width = count * size
        self.qkvz_proj = MergedColumnParallelLinear(
            parts.methods("qkvz_proj"), parts.hidden_size, [self._width] * 4
        )
        self.out_proj = RowParallelLinear(parts.methods("out_proj"), self._width, parts.hidden_size)
        self.norm = GatedNorm(Shard.whole(self._width), parts.dtype)
        self._shape = (-1, count, size)
        self._a = -torch.tensor(spec.rates, dtype=torch.float32)
        self._zeros = torch.zeros(count, dtype=torch.float32)
        self._spec, self._act, self._ops = spec, activation_name(spec.act), ops()

    @property
    def first(self) -> LinearKernel:
        return self.qkvz_proj.kernel

    def forward(self, positions: Tensor, projected: Tensor) -> Tensor:
        width, ops = self._width, self._ops
        qkv, gate = projected.split_with_sizes([3 * width, width], 1)
        qkv = ops.activation(qkv, self._act)
        q, k, v = (part.view(self._shape) for part in qkv.split_with_sizes([width] * 3, 1))
        y = ops.selective_scan(
            v,
            # Whatever they are, the limits make them 1.
            qkv[:, : len(self._zeros)],
            k,
            q,
            self._states[0],
            *state_places(),
            a=self._a,
            d=self._zeros,
            dt_bias=self._zeros,
            dt_limit=(1.0, 1.0),
        )
        weight, eps = self.norm.weight, self._spec.norm_eps
        normed = ops.gated_rms_norm(
            y.view(-1, width), gate, weight, eps, width, "sigmoid", norm_first=True
        )
        return self.out_proj.kernel(normed)
