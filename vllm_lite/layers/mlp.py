"""The gated feed-forward block: down(act(gate(x)) * up(x))."""

from __future__ import annotations

from torch import Tensor, nn

from vllm_lite.layers.activation import get_gated_product
from vllm_lite.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from vllm_lite.quantization.method import LinearMethod


class GatedMLP(nn.Module):
    """SwiGLU (Shazeer, 2020) and its kin; gate and up are one product."""

    def __init__(
        self,
        method: LinearMethod,
        hidden_size: int,
        intermediate_size: int,
        hidden_act: str,
        *,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.gate_up_proj = MergedColumnParallelLinear(
            method, hidden_size, [intermediate_size] * 2, bias=bias
        )
        self.down_proj = RowParallelLinear(method, intermediate_size, hidden_size, bias=bias)
        self._activated_product = get_gated_product(hidden_act)

    def forward(self, gate_up: Tensor) -> Tensor:
        """What gate_up_proj made of the normalised stream -> [T, N]."""
        return self._activated_product(gate_up, self.down_proj.kernel)
