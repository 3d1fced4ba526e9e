"""The operations by the compiled CPU kernels: addresses and sizes go in, nothing is copied.

Shapes, types and strides are checked here, block and slot ids in C++; neither trusts a caller with
memory. Meaning and shapes of each operation: `reference`. What a model's step is made of can be
recorded instead of run (`cpu_program`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vllm_lite import _cpu
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.cpu.arguments import DTYPES as _DTYPES
from vllm_lite.kernels.cpu.arguments import check_index, check_product, result_of
from vllm_lite.kernels.cpu.arguments import dtype_number as _dtype
from vllm_lite.kernels.cpu.arguments import refuse as _refuse
from vllm_lite.kernels.cpu.arguments import row_stride as _rows
from vllm_lite.kernels.cpu.attention import paged_attention as paged_attention
from vllm_lite.kernels.cpu.attention import reshape_and_cache as reshape_and_cache
from vllm_lite.kernels.cpu.calls import calls
from vllm_lite.kernels.cpu.elementwise import act_and_mul as act_and_mul
from vllm_lite.kernels.cpu.elementwise import activation as activation
from vllm_lite.kernels.cpu.elementwise import fused_add_layer_norm as fused_add_layer_norm
from vllm_lite.kernels.cpu.elementwise import fused_add_rms_norm as fused_add_rms_norm
from vllm_lite.kernels.cpu.elementwise import layer_norm as layer_norm
from vllm_lite.kernels.cpu.elementwise import rms_norm as rms_norm
from vllm_lite.kernels.cpu.elementwise import scaled_add as scaled_add
from vllm_lite.kernels.cpu.experts import experts_mlp as experts_mlp
from vllm_lite.kernels.cpu.experts import pack_experts as pack_experts
from vllm_lite.kernels.cpu.experts import route_topk as route_topk
from vllm_lite.kernels.cpu.head import linear_argmax as linear_argmax
from vllm_lite.kernels.cpu.head import quantized_linear_argmax as quantized_linear_argmax
from vllm_lite.kernels.cpu.mapped_memory import packed_weights
from vllm_lite.kernels.cpu.quantized import pack_quantized as pack_quantized
from vllm_lite.kernels.cpu.quantized import quantized_linear as quantized_linear
from vllm_lite.kernels.cpu.quantized import quantized_lookup as quantized_lookup
from vllm_lite.kernels.cpu.sampling import draw_tokens as draw_tokens
from vllm_lite.kernels.cpu.sampling import greedy_tokens as greedy_tokens
from vllm_lite.kernels.cpu.sampling import token_logprobs as token_logprobs
from vllm_lite.kernels.cpu.state import causal_conv1d as causal_conv1d
from vllm_lite.kernels.cpu.state import gated_rms_norm as gated_rms_norm
from vllm_lite.kernels.cpu.state import selective_scan as selective_scan
from vllm_lite.kernels.reference.ops import PackedLinear


def embedding(ids: Tensor, rows: Tensor, first_row: int | None = None) -> Tensor:
    num_rows, size = rows.shape
    if not rows.is_contiguous():
        raise _refuse("embedding", "takes dense rows")
    check_index("embedding", ids, torch.int64, len(ids))
    out = rows.new_empty((len(ids), size))
    row_bytes = size * rows.element_size()
    calls.get().embedding(
        ids.data_ptr(),
        rows.data_ptr(),
        out.data_ptr(),
        len(ids),
        num_rows,
        row_bytes,
        -1 if first_row is None else first_row,
    )
    return out


def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, cos_sin_cache: Tensor, is_neox: bool = True
) -> None:
    num_tokens, num_heads, head_size = query.shape
    num_kv_heads = key.shape[1]
    num_positions, rot_dim = cos_sin_cache.shape
    if key.shape[0] != num_tokens or key.shape[2] != head_size or rot_dim > head_size:
        raise _refuse("rotary_embedding", "query, key and cos_sin_cache do not fit together")
    if query.stride(2) != 1 or key.stride(2) != 1 or rot_dim % 2:
        raise _refuse("rotary_embedding", "takes dense heads and an even rotary size")
    if cos_sin_cache.dtype != torch.float32 or not cos_sin_cache.is_contiguous():
        raise _refuse("rotary_embedding", "cos_sin_cache must be dense float32")
    check_index("rotary_embedding", positions, torch.int64, num_tokens)
    calls.get().rotary_embedding(
        positions.data_ptr(),
        query.data_ptr(),
        key.data_ptr(),
        cos_sin_cache.data_ptr(),
        _dtype("rotary_embedding", query, key),
        num_tokens,
        num_heads,
        num_kv_heads,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        num_positions,
        rot_dim,
        is_neox,
    )


def apply_token_mask(logits: Tensor, rows: Tensor, bits: Tensor) -> None:
    num_rows, vocab_size = logits.shape
    num_masks, num_words = bits.shape
    if logits.dtype != torch.float32 or bits.dtype != torch.int32:
        raise _refuse("apply_token_mask", "takes float32 logits and int32 masks")
    if num_words * 32 < vocab_size:
        raise _refuse("apply_token_mask", f"{num_words} words do not cover {vocab_size} tokens")
    check_index("apply_token_mask", rows, torch.int64, num_masks)
    _cpu.apply_token_mask(
        logits.data_ptr(),
        rows.data_ptr(),
        bits.data_ptr(),
        num_rows,
        num_masks,
        _rows("apply_token_mask", logits),
        _rows("apply_token_mask", bits),
        vocab_size,
    )


def dequantize_gguf(
    raw: memoryview | Tensor, ggml_type: int, shape: Sequence[int], dtype: torch.dtype
) -> Tensor:
    storage = raw.numpy() if isinstance(raw, Tensor) else np.frombuffer(raw, np.uint8)
    try:
        block_elements, block_bytes = _cpu.ggml_block(ggml_type)
    except ValueError as error:
        raise CheckpointError(f"{error}; convert the model to Q4_K, Q8_0 or BF16") from None
    size = math.prod(shape)
    divisible = block_elements == 16  # plain floats are only grouped for speed
    if not divisible and size and shape[-1] % block_elements:
        raise CheckpointError(f"a row of {shape[-1]} values is not made of whole GGUF blocks")
    if storage.nbytes * block_elements != size * block_bytes or not storage.flags.c_contiguous:
        raise CheckpointError(
            f"a GGUF tensor of shape {tuple(shape)} has {storage.nbytes} bytes of storage, "
            f"not {size * block_bytes // block_elements}: the file is damaged"
        )
    output = torch.empty(tuple(shape), dtype=dtype)
    _cpu.dequantize(
        storage.ctypes.data, output.data_ptr(), ggml_type, _dtype("dequantize_gguf", output), size
    )
    return output


def pack_linear(weight: Tensor) -> PackedLinear:
    num_outputs, num_inputs = weight.shape
    stride = _rows("pack_linear", weight)
    dtype = _dtype("pack_linear", weight)
    size = _cpu.packed_bytes(dtype, num_outputs, num_inputs)
    data = packed_weights.take(size)
    _cpu.pack_linear(weight.data_ptr(), data.data_ptr(), dtype, num_outputs, num_inputs, stride)
    return PackedLinear(data, weight.dtype, num_outputs, num_inputs)


def linear(
    x: Tensor,
    weight: PackedLinear,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    _check_product("linear", x, weight, bias)
    num_rows, num_inputs = x.shape
    out = result_of("linear", out, (num_rows, weight.num_outputs), out_dtype or x.dtype)
    calls.get().linear(
        x.data_ptr(),
        weight.data.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        out.data_ptr(),
        _DTYPES[x.dtype],
        _DTYPES[out.dtype],
        num_rows,
        weight.num_outputs,
        num_inputs,
        _rows("linear", x),
        _rows("linear", out),
    )
    return out


def gated_linear(
    x: Tensor, weight: PackedLinear, bias: Tensor | None = None, name: str = "silu"
) -> Tensor:
    _check_product("gated_linear", x, weight, bias)
    num_rows, num_inputs = x.shape
    size = weight.num_outputs // 2
    if name != "silu" or weight.num_outputs % (2 * _cpu.PANEL):
        # The product ends in no other activation; or a panel has outputs of both halves.
        return act_and_mul(linear(x, weight, bias), name)
    out = torch.empty(num_rows, size, dtype=x.dtype)
    calls.get().gated_linear(
        x.data_ptr(),
        weight.data.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        out.data_ptr(),
        _DTYPES[x.dtype],
        num_rows,
        size,
        num_inputs,
        _rows("gated_linear", x),
        size,
    )
    return out


def _check_product(operation: str, x: Tensor, weight: PackedLinear, bias: Tensor | None) -> None:
    check_product(operation, x, bias, weight.num_outputs, weight.num_inputs)
    if x.dtype != weight.dtype:
        raise _refuse(operation, f"x {x.dtype} does not fit the weight")
