"""How a module of transformers attends, learnt from trial passes, and its way to our cache.

A module reaches attention by the function that its configuration names. During trial passes
that function notes what each layer asks for and answers with zeros; afterwards it is a layer's own
paged attention. What cannot be had from a paged cache is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from vllm_lite.distributed.groups import Shard
from vllm_lite.errors import CheckpointError
from vllm_lite.layers.attention import attention
from vllm_lite.layers.score_terms import ScoreTerms

PAGED, TRIAL = "vllm_lite", "vllm_lite_trial"
_HARMLESS = frozenset(
    (
        *("dropout", "position_ids", "position_embeddings", "cache_position", "use_cache"),
        *("output_attentions", "output_hidden_states", "output_router_logits", "return_dict"),
        *("sliding_window", "logits_to_keep", "deterministic", "layer_idx"),
    )
)


@dataclass(frozen=True, slots=True)
class AttendingLayer:
    """A layer and what it asks of attention, on this rank."""

    module: nn.Module
    num_heads: int
    num_kv_heads: int
    # Of keys; shorter values are padded.
    head_size: int
    scale: float
    window: int | None
    softcap: float


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, None]:
    """query [1, H, T, D], key [1, K, T, D], value [1, K, T, V] -> ([1, T, H, V], no weights)."""
    padding = key.shape[-1] - value.shape[-1]
    if padding:
        value = F.pad(value, (0, padding))
    rows = [x[0].transpose(0, 1).contiguous() for x in (query, key, value)]
    mixed = module.attn.forward(*rows)  # type: ignore[union-attr]
    return (mixed[..., :-padding] if padding else mixed)[None], None


# Less than any model's trained length, beyond which some rotate in another way.
_SHORT = 31
_running: ContextVar[Trial] = ContextVar("trial")
AttentionInterface.register(PAGED, attend)
AttentionInterface.register(TRIAL, lambda *x, **options: _running.get().attend(*x, **options))
AttentionMaskInterface.register(TRIAL, lambda *x, **options: _running.get().mask(*x, **options))


@dataclass(slots=True)
class Trial:
    """Notes of trial passes over three tokens of one sequence of up to `length` positions."""

    # Arguments of the interface that change nothing which is computed here.
    harmless: ClassVar[frozenset[str]] = _HARMLESS

    length: int
    layers: list[AttendingLayer] = field(default_factory=list)
    # Of the pass that runs: the last token's query, key and value in each layer.
    rows: list[Tensor] = field(default_factory=list)
    # Masks that models only pass on, and how far back each one looks.
    _masks: list[tuple[Tensor, int | None]] = field(default_factory=list)

    def run(self, forward: Callable[[Tensor, Tensor], Tensor], device: torch.device) -> None:
        """Fill `layers`; raises CheckpointError where a paged cache would give other results.

        Between tokens only attention may carry anything, here and in any other step: with
        attention silenced, a token at its position has the same rows whatever stands before it.
        """
        token = _running.set(self)
        far = self.length - 1
        middle = min(far // 2, _SHORT)
        seen = []
        for ids, positions in (((0, 1, 2), (1, far, middle)), ((1, 0, 2), (0, 0, middle))):
            self.layers, self.rows = [], []
            given = [torch.tensor(numbers, device=device) for numbers in (ids, positions)]
            hidden = forward(*given)
            seen.append([*self.rows, hidden[-1]])
        _running.reset(token)
        if not self.layers:
            raise CheckpointError("it does not attend by transformers' attention interface")
        modules = {id(layer.module) for layer in self.layers}
        if len(modules) < len(self.layers):
            raise CheckpointError("one of its modules attends several times in a pass")
        for one, other in zip(*seen, strict=True):
            largest = float(one.abs().max())
            if not torch.allclose(one, other, rtol=1e-2, atol=1e-2 * largest):
                raise CheckpointError("its tokens depend on others by more than attention")
        for layer in self.layers:
            layer.module.attn = self.make_attention(layer)

    def make_attention(self, layer: AttendingLayer) -> nn.Module:
        """The attention that takes the place of a layer's own."""
        heads = Shard.whole(layer.num_heads)
        terms = ScoreTerms(heads=heads, softcap=layer.softcap) if layer.softcap else None
        return attention(layer.scale, layer.window, terms)

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        softcap: float | None = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """Note the layer; the answer is 0."""
        unknown = [k for k, v in options.items() if v is not None and k not in self.harmless]
        if unknown:
            raise CheckpointError(f"its attention has {unknown[0]}")
        if key.shape[2] != query.shape[2] or value.shape[-1] > key.shape[-1]:
            raise CheckpointError("it does not attend to its own tokens alone")
        if hasattr(module, "attn"):
            raise CheckpointError("its attention has a part called attn")
        head_size = query.shape[-1]
        scale = head_size**-0.5 if scaling is None else float(scaling)
        window = self._window(module, attention_mask, options.get("sliding_window"))
        sizes = (query.shape[1], key.shape[1], head_size)
        self.layers.append(AttendingLayer(module, *sizes, scale, window, softcap or 0.0))
        self.rows += [x[0, :, -1] for x in (query, key, value)]
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[-1]), None

    def _window(
        self, module: nn.Module, attention_mask: Tensor | None, window: int | None
    ) -> int | None:
        if attention_mask is not None:
            for mask, reach in self._masks:
                if mask.data_ptr() == attention_mask.data_ptr():
                    return reach
            raise CheckpointError("it makes masks of its own")
        if reason := self.is_wrong_way(module):
            raise CheckpointError(reason)
        return window

    def is_wrong_way(self, module: nn.Module) -> str:
        """The reason why a layer without a mask cannot run; "" where it can."""
        return "" if getattr(module, "is_causal", True) else "it attends to later tokens"

    def mask(
        self, q_length: int, kv_length: int, mask_function: Callable[..., Tensor], **_: Any
    ) -> Tensor:
        """A mask that stands for `mask_function`."""
        mask = torch.zeros(1, 1, q_length, kv_length)
        self._masks.append((mask, self.reach(mask_function)))
        return mask

    def reach(self, sees: Callable[..., Tensor]) -> int | None:
        """How many tokens a query looks back by the rule `sees`, itself included; None is all.

        Two queries beyond every position tell windows from chunks.
        """
        counts, length = [], self.length
        for query in (length + 1, length + 2):
            tokens = torch.arange(query + 2, device="cpu")
            seen = (
                sees(0, 0, torch.tensor(query, device="cpu"), tokens).expand(len(tokens)).nonzero()
            )
            count = len(seen)
            if not torch.equal(seen.flatten(), tokens[query + 1 - count : query + 1]):
                raise CheckpointError("its masks are not those of causal attention")
            counts.append(count)
        if counts == [length + 2, length + 3]:
            return None
        if counts[0] != counts[1]:
            raise CheckpointError("it attends in chunks")
        return counts[0]
