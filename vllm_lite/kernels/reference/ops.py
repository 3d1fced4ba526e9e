"""Every operation in plain torch: the specification that all faster twins are tested against.

Knows nothing of threads or instruction sets. Arithmetic is float32 whatever the storage type;
a result is rounded to its storage type where the unfused operations would round it.
Shapes: T tokens, R requests, N hidden, H heads, K kv-heads, D head size, B blocks, S block size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_lite.kernels.reference import cached_rows
from vllm_lite.kernels.reference.activation import ACTIVATIONS
from vllm_lite.kernels.reference.experts import experts_mlp as experts_mlp
from vllm_lite.kernels.reference.experts import route_topk as route_topk
from vllm_lite.kernels.reference.gguf import dequantize_gguf as dequantize_gguf
from vllm_lite.kernels.reference.quantized import look_up_range
from vllm_lite.kernels.reference.quantized import pack_quantized as pack_quantized
from vllm_lite.kernels.reference.quantized import quantized_linear as quantized_linear
from vllm_lite.kernels.reference.quantized import quantized_lookup as quantized_lookup
from vllm_lite.kernels.reference.sampling import draw_tokens as draw_tokens
from vllm_lite.kernels.reference.sampling import greedy_tokens as greedy_tokens
from vllm_lite.kernels.reference.sampling import token_logprobs as token_logprobs
from vllm_lite.kernels.reference.state import causal_conv1d as causal_conv1d
from vllm_lite.kernels.reference.state import gated_rms_norm as gated_rms_norm
from vllm_lite.kernels.reference.state import selective_scan as selective_scan


def embedding(ids: Tensor, rows: Tensor, first_row: int | None = None) -> Tensor:
    """Return rows [V, N] of ids [T] int64: [T, N]. An id outside 0..V-1 raises IndexError.

    With `first_row`, the id of the first row, other ids than those of the rows get zeros.
    """
    look_up = torch.nn.functional.embedding
    return look_up_range(lambda i: look_up(i, rows), ids, first_row, len(rows))


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """Scale rows of x to unit root mean square, then by weight [N] (arXiv:1910.07467).

    x is [T, N], or [T, H, N]: then each head is a row. `out` may be x itself. A weight of x's own
    type multiplies rounded rows; a float32 weight multiplies before the one rounding.
    """
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    normed = (wide.to(weight.dtype) * weight).to(x.dtype)
    return normed if out is None else out.copy_(normed)


def fused_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return (rms_norm(x + residual), x + residual), both [T, N], written over x and residual."""
    residual.add_(x)
    return rms_norm(residual, weight, eps, out=x), residual


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor | None = None
) -> Tensor:
    """Take rows' mean away, scale them to unit variance, then by weight, and add bias, both [N]
    (arXiv:1607.06450). All is float32 and rounded once; otherwise as `rms_norm`."""
    wide = x.float()
    wide = wide - wide.mean(-1, keepdim=True)
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()
    normed = (wide if bias is None else wide + bias.float()).to(x.dtype)
    return normed if out is None else out.copy_(normed)


def fused_add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Return (layer_norm(x + residual), x + residual), both [T, N], written over x and residual."""
    residual.add_(x)
    return layer_norm(residual, weight, bias, eps, out=x), residual


def scaled_add(
    x: Tensor,
    y: Tensor | None = None,
    x_scale: float = 1.0,
    y_scale: float = 1.0,
    out: Tensor | None = None,
) -> Tensor:
    """Return x * x_scale + y * y_scale, or x * x_scale alone, [T, N], in float32 and rounded once.

    `out` may be x or y.
    """
    wide = x.float() * x_scale
    if y is not None:
        wide = wide + y.float() * y_scale
    return wide.to(x.dtype) if out is None else out.copy_(wide)


def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, cos_sin_cache: Tensor, is_neox: bool = True
) -> None:
    """Rotate query [T, H, D] and key [T, K, D] in place by their positions [T] (arXiv:2104.09864).

    cos_sin_cache [P, rot_dim] float32 holds rot_dim/2 cosines, then as many sines; only the first
    rot_dim of D are rotated. Pairs are (i, i + rot_dim/2), or (2i, 2i + 1) if not is_neox.
    """
    cos, sin = cos_sin_cache[positions].unsqueeze(1).chunk(2, dim=-1)
    rot_dim = cos_sin_cache.shape[-1]
    for heads in (query, key):
        rotated = heads[..., :rot_dim].float()
        if is_neox:
            first, second = rotated.chunk(2, dim=-1)
        else:
            first, second = rotated[..., 0::2], rotated[..., 1::2]
        pair = (first * cos - second * sin, second * cos + first * sin)
        result = torch.cat(pair, dim=-1) if is_neox else torch.stack(pair, dim=-1).flatten(-2)
        heads[..., :rot_dim] = result.to(heads.dtype)


def activation(x: Tensor, name: str, out: Tensor | None = None) -> Tensor:
    """Return the activation of `activations.ACTIVATIONS` of x [T, N]. `out` may be x itself."""
    activated = ACTIVATIONS[name](x.float())
    return activated.to(x.dtype) if out is None else out.copy_(activated)


def act_and_mul(x: Tensor, name: str) -> Tensor:
    """Return activation(gate, name) * up [T, I] of x [T, 2I], whose halves are gate and up."""
    gate, up = x.chunk(2, dim=-1)
    return activation(gate, name) * up


def reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> None:
    """Write key and value [T, K, D] into caches [B, K, S, row] at slots [T] = block * S + offset.

    Values may have another D, and their cache may be a part of the keys' rows. A row is D numbers,
    and their scale where `cached_rows` says so. A negative slot is skipped; a slot beyond the cache
    raises IndexError.
    """
    block_size = key_cache.shape[2]
    if slot_mapping.numel() and int(slot_mapping.max()) >= key_cache.shape[0] * block_size:
        raise IndexError(f"slot_mapping holds {int(slot_mapping.max())}, beyond the cache")
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    if not slots.numel():
        return
    blocks, offsets = slots // block_size, slots % block_size
    for rows, cache in ((key, key_cache), (value, value_cache)):
        encoded = cached_rows.encode(rows[kept], cache)
        # torch indexes no 8-bit floats, so that numbers of one byte are moved as bytes.
        if cache.dtype.itemsize == 1:
            encoded, cache = encoded.view(torch.uint8), cache.view(torch.uint8)
        cache[blocks, :, offsets] = encoded


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    scale: float,
    sliding_window: int = 0,
    logits_soft_cap: float = 0.0,
    *,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    lse: Tensor | None = None,
) -> Tensor:
    """Causal attention of query [T, H, D] over caches [B, K, S, row]; returns [T, H, D of values].

    Request r owns queries query_start_loc[r] : query_start_loc[r + 1] ([R + 1] int32); they are the
    last of its seq_lens[r] positions ([R] int32). Position j lies in block block_table[r, j // S]
    ([R, M] int32). Key j is visible to the query at position p iff j <= p and, with a window w,
    p - j < w. A soft cap c bends scores to c * tanh(score / c). Tokens of no request become 0.
    alibi_slopes [H] float32 add slope * (j - p) to a score (arXiv:2108.12409); sinks [H] float32
    are scores of one more key that all queries see and that has no value (arXiv:2309.17453).
    The logarithm of the sum of e^score, a sink's too, goes to lse [T, H] float32; that of tokens of
    no request is -inf.
    """
    num_heads, head_size = query.shape[1:]
    value_size = cached_rows.value_size_of(key_cache, value_cache, head_size)
    output = query.new_zeros((*query.shape[:2], value_size))
    if lse is not None:
        lse.fill_(-math.inf)
    block_size = key_cache.shape[2]
    bounds = query_start_loc.tolist()
    for r, seq_len in enumerate(seq_lens.tolist()):
        start, end = bounds[r], bounds[r + 1]
        if start == end:
            continue
        blocks = block_table[r, : math.ceil(seq_len / block_size)].long()
        keys = _gather(key_cache, blocks, seq_len, num_heads, head_size)
        values = _gather(value_cache, blocks, seq_len, num_heads, value_size)
        scores = torch.einsum("thd,hjd->htj", query[start:end].float(), keys) * scale
        if logits_soft_cap > 0:
            scores = logits_soft_cap * torch.tanh(scores / logits_soft_cap)
        position = torch.arange(seq_len - (end - start), seq_len).unsqueeze(1)
        key_position = torch.arange(seq_len).unsqueeze(0)
        visible = key_position <= position
        if sliding_window > 0:
            visible &= position - key_position < sliding_window
        if alibi_slopes is not None:
            scores = scores + alibi_slopes[:, None, None] * (key_position - position)
        scores = scores.masked_fill(~visible, -math.inf)
        if sinks is not None:
            sink = sinks.float()[:, None, None].expand(num_heads, end - start, 1)
            scores = torch.cat([scores, sink], dim=-1)
        if lse is not None:
            lse[start:end] = torch.logsumexp(scores, -1).t()
        weights = torch.softmax(scores, dim=-1)[..., :seq_len]
        output[start:end] = torch.einsum("htj,hjd->thd", weights, values).to(query.dtype)
    return output


def _gather(cache: Tensor, blocks: Tensor, seq_len: int, num_heads: int, head_size: int) -> Tensor:
    """A request's keys or values [H, seq_len, D] float32, each kv-head repeated for its group."""
    num_kv_heads = cache.shape[1]
    narrow = cache.dtype.itemsize == 1
    stored = cache.view(torch.uint8)[blocks].view(cache.dtype) if narrow else cache[blocks]
    rows = cached_rows.decode(stored, head_size)
    rows = rows.transpose(0, 1).reshape(num_kv_heads, -1, head_size)
    return rows[:, :seq_len].repeat_interleave(num_heads // num_kv_heads, dim=0)


def apply_token_mask(logits: Tensor, rows: Tensor, bits: Tensor) -> None:
    """Set logits [R, V] float32 to -inf where a mask has a 0, in place.

    bits [M, W] int32, 32 * W >= V, least significant bit first, are the masks of rows [M] int64;
    the other rows stay as they are. A row beyond R raises IndexError.
    """
    places = torch.arange(logits.shape[1], device=logits.device)
    allowed = (bits[:, places >> 5] >> (places & 31)) & 1
    logits[rows] = logits[rows].masked_fill_(allowed == 0, float("-inf"))


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A weight [M, N] in whatever layout the implementation that packed it multiplies best."""

    data: Tensor
    dtype: torch.dtype
    num_outputs: int  # M
    num_inputs: int  # N


def pack_linear(weight: Tensor) -> PackedLinear:
    """Prepare weight [M, N] for `linear`; the result holds a copy, so that it may be freed."""
    return PackedLinear(weight.clone(), weight.dtype, *weight.shape)


def linear(
    x: Tensor,
    weight: PackedLinear,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Return x [T, N] times the weight [M, N] transposed, plus bias [M] in float32: [T, M].

    Sums are float32 and rounded once, to out_dtype (default: x's own type).
    """
    wide = None if bias is None else bias.float()
    product = torch.nn.functional.linear(x.float(), weight.data.float(), wide)
    return product.to(x.dtype if out_dtype is None else out_dtype)


def gated_linear(
    x: Tensor, weight: PackedLinear, bias: Tensor | None = None, name: str = "silu"
) -> Tensor:
    """Return act_and_mul(linear(x, weight, bias), name): [T, I], of a weight [2I, N]."""
    return act_and_mul(linear(x, weight, bias), name)


def pack_experts(weights: Sequence[PackedLinear]) -> Tensor:
    """Prepare weights [M, N] of E experts, which pack_linear made, for `experts_mlp`."""
    return torch.stack([weight.data for weight in weights])
