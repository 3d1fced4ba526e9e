"""Steps of a layer between its projections and its attention: norms, rotation, query scales.

On a GPU the usual ones, and the write to the cache, are one operation.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vllm_lite.core.kv_spec import CacheFormat
from vllm_lite.distributed.groups import head_shards, tp_size
from vllm_lite.errors import CheckpointError
from vllm_lite.kernels.dispatch import gpu_only_ops
from vllm_lite.layers.norm import Norm, RMSNorm, make_norm
from vllm_lite.layers.rotary import RotaryTables
from vllm_lite.models.options import BuildOptions
from vllm_lite.models.spec import AttentionSpec

# Changes queries and keys in place.
Step = Callable[[Tensor, Tensor, Tensor], None]
# Norms of queries and keys.
HeadNorms = tuple[Norm, Norm]
# Of positions, heads, and an attention layer's destination.
RotatedWrite = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]


def head_norms(spec: AttentionSpec, dtype: torch.dtype) -> HeadNorms | None:
    """Build the norms of queries and keys; CheckpointError for those that ranks cannot divide."""
    if spec.qk_norm is None:
        return None
    if spec.qk_norm_weight == "one row" and tp_size() > 1:
        raise CheckpointError(
            "tensor parallelism does not divide a model that normalises all heads as one row; "
            "use --tensor-parallel-size 1"
        )
    shards = head_shards(spec.num_heads, spec.num_kv_heads)
    own = [heads if spec.qk_norm_weight == "by head" else None for heads in shards]
    q_norm, k_norm = (
        make_norm(spec.qk_norm, width, dtype, heads)
        for width, heads in zip(_widths(spec), own, strict=True)
    )
    return q_norm, k_norm


def head_steps(spec: AttentionSpec, norms: HeadNorms | None, tables: RotaryTables) -> list[Step]:
    """Functions of positions [T], queries and keys [T, heads, D], in their order."""
    steps = [] if norms is None else [_norm_step(spec, norms)]
    if spec.rotary is not None:
        rotate = tables.of(spec.rotary).forward
        steps.insert(0 if spec.is_normed_after_rotation else len(steps), rotate)
    if spec.query_scaling is not None:
        scale = tables.scale_of(spec.query_scaling, spec.head_size).forward
        steps.append(lambda positions, query, key: scale(positions, query))
    return steps


def rotated_write(
    spec: AttentionSpec, options: BuildOptions, norms: HeadNorms | None, tables: RotaryTables
) -> RotatedWrite | None:
    """All steps and the write to the cache in one operation, or None where there is none.

    It takes positions [T], heads [T, H + 2K, D] and what `Attention.destination` returns, and
    leaves rotated queries; keys become unspecified.
    """
    gpu = gpu_only_ops()
    if gpu is None or spec.rotary is None or not _is_usual(spec, options):
        return None
    rotary, weights, eps = tables.of(spec.rotary), None, 0.0
    if norms is not None:
        q_norm, k_norm = norms
        assert spec.qk_norm is not None
        assert isinstance(q_norm, RMSNorm) and isinstance(k_norm, RMSNorm)
        weights, eps = (q_norm.weight, k_norm.weight), spec.qk_norm.eps
    operate, table, is_neox = gpu.rotate_and_cache, rotary.table, rotary.is_neox

    def write(
        positions: Tensor, heads: Tensor, keys: Tensor, values: Tensor, slots: Tensor
    ) -> None:
        operate(heads, positions, table, is_neox, keys, values, slots, weights, eps)

    return write


def _is_usual(spec: AttentionSpec, options: BuildOptions) -> bool:
    """Whether heads are at most normalised one by one, then rotated, then cached as they are."""
    norm = spec.qk_norm
    return (
        spec.has_cache
        and options.cache_scales is None
        and options.cache_format == CacheFormat(str(options.dtype).removeprefix("torch."))
        and spec.value_size in (None, spec.head_size)
        and spec.query_scaling is None
        and (norm is None or norm.kind == "rms")
        and (norm is None or spec.qk_norm_weight == "shared")
        and (norm is None or not spec.is_normed_after_rotation)
    )


def _norm_step(spec: AttentionSpec, norms: HeadNorms) -> Step:
    q_norm, k_norm = norms
    is_one_row, widths = spec.qk_norm_weight == "one row", _widths(spec)

    def apply(positions: Tensor, query: Tensor, key: Tensor) -> None:
        if is_one_row:
            query, key = query.view(-1, widths[0]), key.view(-1, widths[1])
        q_norm.norm_heads(query)
        k_norm.norm_heads(key)

    return apply


def _widths(spec: AttentionSpec) -> list[int]:
    """Numbers that are normalised together, of queries and of keys."""
    shards = head_shards(spec.num_heads, spec.num_kv_heads)
    is_one_row = spec.qk_norm_weight == "one row"
    return [spec.head_size * (heads.size if is_one_row else 1) for heads in shards]
