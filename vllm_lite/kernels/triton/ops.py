"""The operations of `reference` on an NVIDIA GPU: Triton kernels, and torch's matrix products.

Weights are read and dequantised on the host, by the CPU's kernels. Tokens are chosen by torch.
"""

from __future__ import annotations

from vllm_lite.kernels.reference import dequantize_gguf, linear, pack_linear
from vllm_lite.kernels.reference_sampling import draw_tokens, greedy_tokens, token_logprobs
from vllm_lite.kernels.triton.activation import silu_and_mul
from vllm_lite.kernels.triton.attention import paged_attention
from vllm_lite.kernels.triton.cache import reshape_and_cache
from vllm_lite.kernels.triton.mask import apply_token_mask
from vllm_lite.kernels.triton.norm import fused_add_rms_norm, rms_norm
from vllm_lite.kernels.triton.rotary import rotary_embedding

__all__ = [
    "apply_token_mask",
    "dequantize_gguf",
    "draw_tokens",
    "fused_add_rms_norm",
    "greedy_tokens",
    "linear",
    "pack_linear",
    "paged_attention",
    "reshape_and_cache",
    "rms_norm",
    "rotary_embedding",
    "silu_and_mul",
    "token_logprobs",
]
