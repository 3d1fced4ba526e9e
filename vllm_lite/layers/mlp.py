"""The gated feed-forward block: down(act(gate(x)) * up(x))."""

from __future__ import annotations

from torch import Tensor, nn

from vllm_lite.layers.activation import get_gated_product
from vllm_lite.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from vllm_lite.layers.norm import RMSNorm
from vllm_lite.quantization.method import LinearMethod
from vllm_lite.quantization.unquantized import gated_kernel


class GatedMLP(nn.Module):
    """SwiGLU (Shazeer, 2020) and its kin; gate and up are one product."""

    def __init__(
        self,
        gate_up: LinearMethod,
        down: LinearMethod,
        hidden_size: int,
        intermediate_size: int,
        hidden_act: str,
        *,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.gate_up_proj = MergedColumnParallelLinear(
            gate_up, hidden_size, [intermediate_size] * 2, bias=bias
        )
        self.down_proj = RowParallelLinear(down, intermediate_size, hidden_size, bias=bias)
        self._activated_product = get_gated_product(hidden_act)

    def forward(self, norm: RMSNorm, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """(what the block makes of the normalised sum, sum), of what norm.add_and_norm takes."""
        kernel = self.gate_up_proj.kernel
        # It ends in silu, which is the one activation that get_gated_product knows.
        fused = gated_kernel(kernel)
        if fused is not None:
            activated, total = norm.normed_product(x, residual, fused)
            return self.down_proj.kernel(activated), total
        gate_up, total = norm.normed_product(x, residual, kernel)
        return self._activated_product(gate_up, self.down_proj.kernel), total
