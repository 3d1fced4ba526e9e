"""How a module of transformers attends, learnt from trial passes, and its way to our cache.

A module reaches attention by the function that its configuration names. During trial passes
that function notes what each layer asks for and answers as if each token saw itself alone;
afterwards it is a layer's own paged attention. What that cannot give is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    # Scores of keys without values, one for each head.
    sinks: Tensor | None


# The name under which a layer has its paged attention.
_OWN = "_paged_attention"


def bound_attention(module: nn.Module) -> Any:
    """The attention that was made for `module` after its trial."""
    return getattr(module, _OWN)


def use_attention(model: nn.Module, config: Any, name: str) -> None:
    """Have all modules of `model`, whose whole has `config`, attend by the function `name`."""
    configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    for own in (config, *configs.values()):
        own._attn_implementation = name


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, None]:
    """query [1, H, T, D], key [1, K, T, D], value [1, K, T, V] -> ([1, T, H, V], no weights)."""
    padding = key.shape[-1] - value.shape[-1]
    if padding:
        value = F.pad(value, (0, padding))
    rows = [x[0].transpose(0, 1).contiguous() for x in (query, key, value)]
    mixed = bound_attention(module).forward(*rows)
    return (mixed[..., :-padding] if padding else mixed)[None], None


def _compare(seen: Sequence[Tensor], other: Sequence[Tensor], reason: str) -> None:
    for one, two in zip(seen, other, strict=True):
        largest = float(one.abs().max())
        if not torch.allclose(one, two, rtol=1e-2, atol=1e-2 * largest):
            raise CheckpointError(reason)


# Less than any model's trained length, beyond which some rotate in another way.
_SHORT = 31
# Of words: the first ids are mostly those of special tokens, as padding.
_IDS = (5, 6, 7)
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

    def run(self, forward: Callable[[Tensor, Tensor | None], Tensor], device: torch.device) -> None:
        """Fill `layers`; raises CheckpointError where a paged cache would give other results.

        `forward` maps ids and positions, or its module's own, to rows. Between tokens only
        attention may carry anything, here and in any other step: where each token sees itself
        alone, one at its position has the same rows whatever stands before it.
        """
        far = self.length - 1
        middle = min(far // 2, _SHORT)
        first = self._last_rows(forward, device, _IDS, (1, far, middle))
        _compare(
            first,
            self._last_rows(forward, device, (6, 5, 7), (0, 0, middle)),
            "its tokens depend on others by more than attention",
        )
        _compare(
            self._last_rows(forward, device, _IDS, None),
            self._last_rows(forward, device, _IDS, (0, 1, 2)),
            "its positions are not 0, 1, 2, ...",
        )
        for layer in self.layers:
            setattr(layer.module, _OWN, self.make_attention(layer))

    def _last_rows(
        self,
        forward: Callable[[Tensor, Tensor | None], Tensor],
        device: torch.device,
        ids: Sequence[int],
        positions: Sequence[int] | None,
    ) -> list[Tensor]:
        self.layers, self.rows, self._masks = [], [], []
        where = None if positions is None else torch.tensor(positions, device=device)
        token = _running.set(self)
        try:
            result = forward(torch.tensor(ids, device=device), where)
        finally:
            _running.reset(token)
        if not self.layers:
            raise CheckpointError("it does not attend by transformers' attention interface")
        if len({id(layer.module) for layer in self.layers}) < len(self.layers):
            raise CheckpointError("one of its modules attends several times in a pass")
        return [*self.rows, result[-1]]

    def make_attention(self, layer: AttendingLayer) -> nn.Module:
        """The attention that takes the place of a layer's own."""
        sinks = layer.sinks
        terms = ScoreTerms(
            heads=Shard.whole(layer.num_heads),
            softcap=layer.softcap,
            has_sinks=sinks is not None,
        )
        made = attention(layer.scale, layer.window, terms)
        if sinks is not None:
            for _, _, slot in made.weight_slots():
                slot.tensor.copy_(sinks.flatten())
        return made

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """Note the layer; each token is answered with its own value."""
        unknown = [k for k, v in options.items() if v is not None and k not in self.harmless]
        if unknown:
            raise CheckpointError(f"its attention has {unknown[0]}")
        if key.shape[2] != query.shape[2] or value.shape[-1] > key.shape[-1]:
            raise CheckpointError("it does not attend to its own tokens alone")
        head_size = query.shape[-1]
        scale = head_size**-0.5 if scaling is None else float(scaling)
        window = self._window(module, attention_mask, options.get("sliding_window"))
        sizes = (query.shape[1], key.shape[1], head_size)
        self.layers.append(AttendingLayer(module, *sizes, scale, window, softcap or 0.0, s_aux))
        self.rows += [x[0, :, -1] for x in (query, key, value)]
        answer = value.repeat_interleave(query.shape[1] // key.shape[1], 1).transpose(1, 2)
        return answer.contiguous(), None

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
