"""A mixture of experts in place of a feed-forward block (Shazeer et al., 2017; Fedus et al., 2021).

A router chooses a few experts for each token; routing and computing are two operations. Experts
are loaded and packed one by one as their tensors arrive, in any storage format.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from vllm_lite.distributed.groups import Shard, tp_group
from vllm_lite.kernels.dispatch import ops
from vllm_lite.layers.activation import activation_name
from vllm_lite.layers.linear import MergedColumnParallelLinear, ParallelLinear
from vllm_lite.layers.weights import NamedSlot
from vllm_lite.quantization.experts import ExpertsKernel, check_experts, experts_kernel
from vllm_lite.quantization.method import LinearKernel, LinearMethod


class Router(ParallelLinear):
    """Maps rows to float32 logits of experts, on every rank."""

    def __init__(self, method: LinearMethod, hidden_size: int, num_experts: int) -> None:
        super().__init__(method, Shard.whole(hidden_size), {"": Shard.whole(num_experts)})
        self._out_dtype = torch.float32


class Expert(nn.Module):
    """One expert's weights; its sum over ranks follows the sum over experts."""

    def __init__(
        self, gate_up: LinearMethod, down: LinearMethod, hidden_size: int, intermediate_size: int
    ) -> None:
        super().__init__()
        self.gate_up_proj = MergedColumnParallelLinear(
            gate_up, hidden_size, [intermediate_size] * 2
        )
        inputs = Shard.even(intermediate_size, "features")
        self.down_proj = ParallelLinear(down, inputs, {"": Shard.whole(hidden_size)})


class SparseMLP(nn.Module):
    """The sum of down(act(gate(x)) * up(x)) over a token's experts, weighted by the router."""

    kernel: ExpertsKernel

    def __init__(
        self,
        gate: Router,
        experts: list[Expert],
        top_k: int,
        hidden_act: str,
        is_renormalized: bool,
    ) -> None:
        super().__init__()
        check_experts()
        self.gate = gate
        self.experts = nn.ModuleList(experts)
        self._top_k = top_k
        self._act = activation_name(hidden_act)
        self._is_renormalized = is_renormalized
        self._route = ops().route_topk
        self._group = tp_group()
        self._sum_dtype = torch.float32 if self._group.size > 1 else None

    @property
    def first(self) -> LinearKernel:
        """Return x itself: router and experts read the same rows."""
        return _as_they_are

    def forward(self, x: Tensor) -> Tensor:
        """Normalised hidden states [T, N] -> [T, N]."""
        weights, ids = self._route(self.gate.kernel(x), self._top_k, self._is_renormalized)
        return self._group.all_reduce(self.kernel(x, ids, weights, self._sum_dtype), x.dtype)

    def weight_slots(self) -> Iterator[NamedSlot]:
        yield from ()

    def process_weights_after_loading(self) -> None:
        """Pack all experts into one kernel."""
        experts = [expert for expert in self.experts if isinstance(expert, Expert)]
        self.experts = nn.ModuleList()
        self.kernel = experts_kernel(
            [expert.gate_up_proj.kernel for expert in experts],
            [expert.down_proj.kernel for expert in experts],
            self._act,
        )


def _as_they_are(x: Tensor) -> Tensor:
    return x
