"""A mixture of experts in place of a feed-forward block (Shazeer et al., 2017; Fedus et al., 2021).

A router chooses a few experts for each token; routing and computing are two operations. Experts
are loaded and packed one by one as their tensors arrive, in any storage format.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vllm_lite.distributed.groups import Shard, tp_group
from vllm_lite.kernels.dispatch import ops
from vllm_lite.kernels.reference.experts import ExpertForm, Routing
from vllm_lite.layers.linear import ColumnParallelLinear, MergedColumnParallelLinear, ParallelLinear
from vllm_lite.layers.mlp import GatedMLP, PlainMLP
from vllm_lite.layers.weights import NamedSlot, WeightedLayer, WeightSlot
from vllm_lite.quantization.experts import ExpertsKernel, check_experts, drop_bias, experts_kernel
from vllm_lite.quantization.method import LinearKernel, LinearMethod, as_they_are


class Router(ParallelLinear):
    """Maps rows to float32 logits of experts, on every rank."""

    def __init__(
        self,
        method: LinearMethod,
        hidden_size: int,
        num_experts: int,
        *,
        bias: bool = False,
        has_choice_bias: bool = False,
    ) -> None:
        outputs = {"": Shard.whole(num_experts)}
        super().__init__(method, Shard.whole(hidden_size), outputs, bias=bias)
        self._out_dtype = torch.float32
        # Added to scores to choose by; never rounded, as training moves it by tiny steps.
        self.choice_bias = (
            torch.empty(num_experts, dtype=torch.float32) if has_choice_bias else None
        )

    def weight_slots(self) -> Iterator[NamedSlot]:
        yield from super().weight_slots()
        if self.choice_bias is not None:
            yield NamedSlot("", "e_score_correction_bias", WeightSlot.whole(self.choice_bias))


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """The sizes of an expert's layers, and which parts they have."""

    hidden_size: int
    intermediate_size: int
    is_gated: bool = True
    bias: bool = False


class Expert(nn.Module):
    """One expert's weights; its sum over ranks follows the sum over experts."""

    def __init__(self, first: LinearMethod, down: LinearMethod, shape: ExpertShape) -> None:
        super().__init__()
        hidden, inner, bias = shape.hidden_size, shape.intermediate_size, shape.bias
        self.up_proj: ParallelLinear | None = None
        if shape.is_gated:
            self.gate_up_proj = MergedColumnParallelLinear(first, hidden, [inner] * 2, bias=bias)
        else:
            self.up_proj = ColumnParallelLinear(first, hidden, inner, bias=bias)
        inputs = Shard.even(inner, "features")
        self.down_proj = ParallelLinear(down, inputs, {"": Shard.whole(hidden)}, bias=bias)

    @property
    def first(self) -> LinearKernel:
        return self.gate_up_proj.kernel if self.up_proj is None else self.up_proj.kernel


class SharedExpert(nn.Module):
    """An MLP that every token passes beside its experts, perhaps scaled by a gate."""

    def __init__(self, mlp: GatedMLP | PlainMLP, gate: Router | None, scale: float) -> None:
        super().__init__()
        self.mlp = mlp
        self.gate = gate
        self._scale = scale
        self._add = ops().scaled_add

    def add_to(self, routed: Tensor, x: Tensor) -> Tensor:
        """Add its output for x [T, N] to `routed` [T, N] in place."""
        made = self.mlp.forward(self.mlp.first(x))
        gates = None if self.gate is None else self.gate.kernel(x)
        return self._add(routed, made, 1.0, self._scale, out=routed, gates=gates)


class SparseMLP(nn.Module, WeightedLayer):
    """The sum of down(act(gate(x)) * up(x)) over a token's experts, weighted by the router."""

    kernel: ExpertsKernel

    def __init__(
        self,
        gate: Router,
        experts: list[Expert],
        routing: Routing,
        form: ExpertForm,
        shared: SharedExpert | None = None,
    ) -> None:
        super().__init__()
        check_experts()
        self.gate = gate
        self.experts = nn.ModuleList(experts)
        self._routing = routing
        self._form = form
        self._route = ops().route_topk
        self._group = tp_group()
        self._sum_dtype = torch.float32 if self._group.size > 1 else None
        if shared is not None:
            self.shared_experts = shared.mlp
            self.shared_expert_gate = shared.gate
            self._add_shared = shared.add_to
            self.forward = self._forward_with_shared  # type: ignore[method-assign]

    @property
    def first(self) -> LinearKernel:
        """Return x itself: router and experts read the same rows."""
        return as_they_are

    def forward(self, x: Tensor) -> Tensor:
        """Normalised hidden states [T, N] -> [T, N]."""
        return self.mix(x, *self._route(self.gate.kernel(x), self._routing, self.gate.choice_bias))

    def mix(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """The sum of what the experts ids [T, K] make of x [T, N], weighted by weights [T, K]."""
        return self._group.all_reduce(self.kernel(x, ids, weights, self._sum_dtype), x.dtype)

    def _forward_with_shared(self, x: Tensor) -> Tensor:
        return self._add_shared(SparseMLP.forward(self, x), x)

    def process_weights_after_loading(self) -> None:
        experts = [expert for expert in self.experts if isinstance(expert, Expert)]
        self.experts = nn.ModuleList()
        if self._group.rank > 0:  # the sum over ranks must contain biases once
            for expert in experts:
                drop_bias(expert.down_proj.kernel)
        self.kernel = experts_kernel(
            [expert.first for expert in experts],
            [expert.down_proj.kernel for expert in experts],
            self._form,
        )
