"""The feed-forward block: down(act(gate(x)) * up(x)), or down(act(up(x))).

`first` is separate from `forward`, so that the preceding norm can be fused with it.
"""

from __future__ import annotations

from functools import cached_property

from torch import Tensor, nn

from vllm_lite.layers.activation import (
    XIELU,
    ActivatedProduct,
    activation_name,
    gated_product,
    plain_product,
)
from vllm_lite.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    RowParallelLinear,
)
from vllm_lite.quantization.method import LinearKernel, LinearMethod
from vllm_lite.quantization.unquantized import gated_kernel


class GatedMLP(nn.Module):
    """SwiGLU (Shazeer, 2020) and its relatives; gate and up are one GEMM."""

    def __init__(
        self,
        gate_up: LinearMethod,
        down: LinearMethod,
        hidden_size: int,
        intermediate_size: int,
        hidden_act: str,
        *,
        bias: bool = False,
        down_bias: bool | None = None,
    ) -> None:
        super().__init__()
        self.gate_up_proj = MergedColumnParallelLinear(
            gate_up, hidden_size, [intermediate_size] * 2, bias=bias
        )
        self.down_proj = RowParallelLinear(
            down, intermediate_size, hidden_size, bias=bias if down_bias is None else down_bias
        )
        self._name = activation_name(hidden_act)
        self._activated_product = gated_product(self._name)

    @cached_property
    def _activating(self) -> LinearKernel | None:
        """The first linear layer fused with the activation, if its kernel supports that."""
        return gated_kernel(self.gate_up_proj.kernel, self._name)

    @property
    def first(self) -> LinearKernel:
        """[T, N] -> the input of `forward`."""
        return self._activating or self.gate_up_proj.kernel

    def forward(self, projected: Tensor) -> Tensor:
        """Output of `first` -> [T, N]."""
        if self._activating is not None:
            return self.down_proj.kernel(projected)
        return self._activated_product(projected, self.down_proj.kernel)


class PlainMLP(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(
        self,
        up: LinearMethod,
        down: LinearMethod,
        hidden_size: int,
        intermediate_size: int,
        hidden_act: str,
        *,
        bias: bool = False,
        down_bias: bool | None = None,
    ) -> None:
        super().__init__()
        self.up_proj = ColumnParallelLinear(up, hidden_size, intermediate_size, bias=bias)
        self.down_proj = RowParallelLinear(
            down, intermediate_size, hidden_size, bias=bias if down_bias is None else down_bias
        )
        if hidden_act == "xielu":
            self.act_fn = XIELU()
            product: ActivatedProduct = self.act_fn.product
        else:
            product = plain_product(activation_name(hidden_act))
        self._activated_product = product

    @property
    def first(self) -> LinearKernel:
        """[T, N] -> the input of `forward`."""
        return self.up_proj.kernel

    def forward(self, projected: Tensor) -> Tensor:
        """Output of `first` -> [T, N]."""
        return self._activated_product(projected, self.down_proj.kernel)
