"""A mixture of experts whose weights are narrow, in plain torch; part of `reference`.

Pairs and their order are those of `reference_experts`; the weights of E experts lie one after
another: codes [E, M, N] with scales [E, M], or a grouped weight of E * M outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_lite.kernels.grouped_weight import GroupedWeight
from vllm_lite.kernels.reference_experts import experts_mlp
from vllm_lite.kernels.reference_grouped import expand_grouped
from vllm_lite.kernels.reference_quantized import quantize_rows, scaled_linear
from vllm_lite.kernels.reference_quantized_gated import act_and_mul_quantized

__all__ = ["grouped_experts_mlp", "scaled_experts_mlp"]


def scaled_experts_mlp(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    gate_up_scales: Tensor,
    down: Tensor,
    down_scales: Tensor,
) -> Tensor:
    """experts_mlp of x [T, N], ids and weights [T, K], by codes that have a scale an output.

    gate_up [E, 2I, N] and down [E, N, I] are int8 or an 8-bit float; x and each pair's hidden row
    are rounded to the same numbers, with a scale for each row.
    """
    codes, scales = quantize_rows(x, gate_up.dtype)
    total = torch.zeros(x.shape, dtype=torch.float32)
    for token, choices in enumerate(ids.tolist()):
        for choice, expert in enumerate(choices):
            row = slice(token, token + 1)
            columns = gate_up_scales[expert, :, None]
            hidden = scaled_linear(codes[row], scales[row], gate_up[expert], columns, None, x.dtype)
            inner, inner_scales = act_and_mul_quantized(hidden, "silu", gate_up.dtype)
            columns = down_scales[expert, :, None]
            wide = scaled_linear(inner, inner_scales, down[expert], columns, None, torch.float32)
            total[token] += (wide[0] * weights[token, choice]).to(x.dtype).float()
    return total.to(x.dtype)


def grouped_experts_mlp(
    x: Tensor, ids: Tensor, weights: Tensor, gate_up: GroupedWeight, down: GroupedWeight
) -> Tensor:
    """experts_mlp by grouped weights of E * 2I and E * N outputs, their values in x's type.

    Neither has a permutation: experts that order their inputs differently share no row of x.
    """
    num_experts = gate_up.num_outputs // (2 * down.num_inputs)
    values = [
        expand_grouped(weight, x.dtype).view(num_experts, -1, weight.num_inputs)
        for weight in (gate_up, down)
    ]
    return experts_mlp(x, ids, weights, values[0], values[1])
