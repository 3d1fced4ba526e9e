"""Checkpoints of int8 or fp8 weights with scales: `fp8` and `compressed-tensors` (W8A8).

A GPU's operations multiply the stored values and quantise activations as the checkpoint says.
Elsewhere weights are dequantised as they are loaded, and activations are not quantised.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vllm_lite.config.quantized.schemes import ScaledCodes
from vllm_lite.kernels.dispatch import gpu_only_ops
from vllm_lite.kernels.reference.scaled_linear import SCALE_BLOCK
from vllm_lite.log import init_logger
from vllm_lite.quantization.method import (
    LinearKernel,
    StoredTensor,
)
from vllm_lite.quantization.scaled import ScaledKernel
from vllm_lite.quantization.unquantized import UnquantizedLinearMethod, plain_kernel

logger = init_logger(__name__)

_NUMBERS = {"int8": torch.int8, "float8_e4m3fn": torch.float8_e4m3fn}


class ScaledCheckpointMethod(UnquantizedLinearMethod):
    """Multiplies by a checkpoint's values and scales; embedding and output head are plain."""

    def __init__(self, form: ScaledCodes, dtype: torch.dtype, keeps_codes: bool = True) -> None:
        """Unless `keeps_codes`, weights are dequantised to dtype as they are loaded."""
        self._form = form
        super().__init__(dtype)
        self._ops = gpu_only_ops() if keeps_codes else None
        if keeps_codes and self._ops is None:
            logger.info(
                "Weights are expanded to %s: %s is multiplied on a GPU alone",
                str(dtype).removeprefix("torch."),
                form.number,
            )

    def create_weights(self, input_size: int, output_size: int) -> dict[str, StoredTensor]:
        codes = torch.empty(
            output_size, input_size, dtype=_NUMBERS[self._form.number], device="cpu"
        )
        weights = {"weight": StoredTensor.on_host(codes, 0, 1)}
        if self._form.scales_of == "block":
            weights["weight_scale_inv"] = _block_scales(input_size, output_size)
        elif self._form.scales_of == "channel":
            scales = torch.empty(output_size, 1, dtype=torch.float32, device="cpu")
            weights["weight_scale"] = StoredTensor.on_host(scales, 0, None)
        else:
            weights["weight_scale"] = _one_number(output_size)
        if self._form.has_input_scale:
            weights["input_scale"] = _one_number(output_size)
        return weights

    def process_weights_after_loading(
        self,
        weights: Mapping[str, StoredTensor],
        bias: Tensor | None,
        out_dtype: torch.dtype | None = None,
    ) -> LinearKernel:
        loaded = {name: stored.on_device(stored.data) for name, stored in weights.items()}
        codes = loaded.pop("weight")
        is_block = self._form.scales_of == "block"
        scales = loaded.pop("weight_scale_inv" if is_block else "weight_scale")
        scales = scales if scales.dim() == 2 else scales[:, None]
        # The operation's groups are whole.
        is_cut = is_block and codes.shape[1] % SCALE_BLOCK > 0
        if self._ops is None or is_cut:
            return plain_kernel(_expanded(codes, scales).to(self._dtype), bias, out_dtype)
        # Parts of a fused layer read the same inputs: the largest scale covers all.
        input_scale = loaded["input_scale"].max().view(1) if "input_scale" in loaded else None
        group = SCALE_BLOCK if is_block and scales.shape[1] > 1 else 0
        return ScaledKernel(codes, scales, bias, out_dtype, self._ops, input_scale, group)


def _one_number(output_size: int) -> StoredTensor:
    data = torch.empty(output_size, dtype=torch.float32, device="cpu")
    device = torch.get_default_device()
    return StoredTensor(data, output_dim=0, input_dim=None, device=device, is_one_number=True)


def _block_scales(input_size: int, output_size: int) -> StoredTensor:
    shape = (-(-output_size // SCALE_BLOCK), -(-input_size // SCALE_BLOCK))
    return StoredTensor(
        torch.empty(shape, dtype=torch.float32, device="cpu"),
        output_dim=0,
        input_dim=1,
        device=torch.get_default_device(),
        outputs_per_item=SCALE_BLOCK,
        inputs_per_item=SCALE_BLOCK,
    )


def _expanded(codes: Tensor, scales: Tensor) -> Tensor:
    """Dequantise codes with scales [M or M / 128, 1 or N / 128] to float32 [M, N]."""
    num_outputs, num_inputs = codes.shape
    if len(scales) != num_outputs:
        scales = scales.repeat_interleave(SCALE_BLOCK, dim=0)[:num_outputs]
    if scales.shape[1] > 1:
        scales = scales.repeat_interleave(SCALE_BLOCK, dim=1)
    return codes.float() * scales[:, :num_inputs]
