"""Stand-ins for packages of attention kernels, after their documentation, in plain torch.

Names, arguments, shapes and checks are those of flash-attn 2 and flashinfer; undocumented use is
refused.
"""

from __future__ import annotations

import math
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor


def _attend(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, left: int, soft_cap: float
) -> Tensor:
    """query [Q, H, D] over keys and values [L, K, D], whose last row the last query sees."""
    group = query.shape[1] // keys.shape[1]
    keys, values = (rows.float().repeat_interleave(group, 1) for rows in (keys, values))
    scores = torch.einsum("qhd,lhd->hql", query.float(), keys) * scale
    if soft_cap > 0:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    ends = torch.arange(len(keys) - len(query), len(keys))[:, None]
    distances = ends - torch.arange(len(keys))
    hidden = (distances < 0) | ((distances > left) if left >= 0 else False)
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
    return torch.einsum("hql,lhd->qhd", weights, values).to(query.dtype)


def flash_attn() -> ModuleType:
    """The package flash-attn, version 2."""

    def flash_attn_varlen_func(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        block_table: Tensor | None = None,
    ) -> Tensor:
        assert causal and softmax_scale is not None and block_table is not None
        assert block_table.dtype == cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
        assert k.shape[1] % 256 == 0 and k.stride(-1) == v.stride(-1) == q.stride(-1) == 1
        assert cu_seqlens_k.is_contiguous() and cu_seqlens_q.is_contiguous()
        queries, contexts = cu_seqlens_q.tolist(), cu_seqlens_k.diff().tolist()
        assert cu_seqlens_q.diff().max() <= max_seqlen_q and max(contexts) <= max_seqlen_k
        assert window_size[1] == (0 if window_size[0] >= 0 else -1)
        output = torch.empty_like(q)
        for r, length in enumerate(contexts):
            rows = slice(queries[r], queries[r + 1])
            keys, values = (cache[block_table[r]].flatten(0, 1)[:length] for cache in (k, v))
            output[rows] = _attend(q[rows], keys, values, softmax_scale, window_size[0], softcap)
        return output

    module = ModuleType("flash_attn")
    vars(module)["flash_attn_varlen_func"] = flash_attn_varlen_func
    return module


def flashinfer(plans: list[Any]) -> ModuleType:
    """The package flashinfer; every plan is added to `plans`."""

    class BatchPrefillWithPagedKVCacheWrapper:
        def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD") -> None:
            assert float_workspace_buffer.dtype == torch.uint8 and kv_layout == "HND"

        def plan(
            self,
            qo_indptr: Tensor,
            paged_kv_indptr: Tensor,
            paged_kv_indices: Tensor,
            paged_kv_last_page_len: Tensor,
            num_qo_heads: int,
            num_kv_heads: int,
            head_dim_qk: int,
            page_size: int,
            *,
            causal: bool = False,
            sm_scale: float | None = None,
            window_left: int = -1,
            logits_soft_cap: float | None = None,
            q_data_type: torch.dtype = torch.float16,
            kv_data_type: torch.dtype | None = None,
        ) -> None:
            tables = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
            assert causal and all(table.dtype == torch.int32 for table in tables)
            assert paged_kv_indices.shape == (int(paged_kv_indptr[-1]),)
            assert ((paged_kv_last_page_len >= 1) & (paged_kv_last_page_len <= page_size)).all()
            plans.append(SimpleNamespace(**{k: v for k, v in locals().items() if k != "self"}))

        def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
            plan = plans[-1]
            assert q.shape[1:] == (plan.num_qo_heads, plan.head_dim_qk)
            assert q.dtype == plan.q_data_type and paged_kv_cache[0].dtype == plan.kv_data_type
            assert paged_kv_cache[0].shape[1:3] == (plan.num_kv_heads, plan.page_size)
            output = torch.empty_like(q)
            queries, pages = plan.qo_indptr.tolist(), plan.paged_kv_indptr.tolist()
            for r, last in enumerate(plan.paged_kv_last_page_len.tolist()):
                rows = slice(queries[r], queries[r + 1])
                used = plan.paged_kv_indices[pages[r] : pages[r + 1]].long()
                length = max(0, (len(used) - 1) * plan.page_size + last)
                keys, values = (
                    cache[used].transpose(1, 2).flatten(0, 1)[:length] for cache in paged_kv_cache
                )
                output[rows] = _attend(
                    q[rows], keys, values, plan.sm_scale, plan.window_left, plan.logits_soft_cap
                )
            return output

    module = ModuleType("flashinfer")
    vars(module)["BatchPrefillWithPagedKVCacheWrapper"] = BatchPrefillWithPagedKVCacheWrapper
    return module
