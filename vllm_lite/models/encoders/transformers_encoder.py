"""An encoder by transformers' own module, for what has no family here.

As in transformers_model, linear layers and attention are ours and the rest runs in torch, so that a
step is not recorded. What stands behind the encoder, for classes, is the module's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.modeling_outputs import BaseModelOutputWithPooling

from vllm_lite.config.facts import ModelFacts
from vllm_lite.core.kv_spec import KVCacheSpec
from vllm_lite.distributed.groups import Shard
from vllm_lite.errors import CheckpointError
from vllm_lite.layers.attention import LayerCache
from vllm_lite.layers.encoder_attention import EncoderAttention
from vllm_lite.layers.score_terms import ScoreTerms
from vllm_lite.layers.state import StateCache
from vllm_lite.loader.weight_rules import Rule
from vllm_lite.models.heads import Heads, HeadSpec
from vllm_lite.models.options import BuildOptions
from vllm_lite.models.transformers_attention import (
    TRIAL,
    AttendingLayer,
    Trial,
    attend,
    use_attention,
)
from vllm_lite.models.transformers_layers import make_parameters, replace_layers
from vllm_lite.models.transformers_model import arguments, build, refusal

PACKED = "vllm_lite_encoder"


class TransformersEncoder(nn.Module):
    """Any encoder that attends by transformers' attention interface, with its head for classes."""

    def __init__(self, facts: ModelFacts, options: BuildOptions) -> None:
        super().__init__()
        self._facts, self._options = facts, options
        self._device = torch.get_default_device()
        self._vocab_size = facts.vocab_size
        whole = build(facts, options.dtype, PACKED)
        base, name = whole.base_model, whole.base_model_prefix
        taken = arguments(base.forward)
        if "position_ids" not in taken or whole.config.is_encoder_decoder:
            raise refusal(facts, "it is no encoder that takes positions")
        self._config, self._base_forward = whole.config, base.forward
        self._has_types = "token_type_ids" in taken
        replace_layers(base, "" if base is whole else name, options)
        self._classes: Callable[..., Any] | None = None
        if base is not whole:
            setattr(whole, name, _Given(getattr(base, "pooler", None)))
            self._classes = whole.forward
        for child_name, child in whole.named_children():
            self.add_module(child_name, base if isinstance(child, _Given) else child)
        make_parameters(self, base, self._device)
        kind = facts.pooling and facts.pooling.head_dtype
        if self._classes is not None and kind not in (None, "model"):
            raise refusal(facts, f"its head is the module's own, which has no head_dtype {kind}")
        self.heads = Heads({}, facts.hidden_size, options.dtype, facts.pooling)
        self._is_tried = False

    @staticmethod
    def heads_of(facts: ModelFacts) -> Mapping[str, HeadSpec]:
        """Return none: what the module has is its own."""
        return {}

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        """Tensors have the names of the module; older files have numbers of positions too."""
        prefix = facts.hf_config.get("model_type", "")
        return [Rule("embeddings"), Rule(f"{prefix}.embeddings")]

    @torch.inference_mode()
    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """All sequences of a step in one row: attention tells them apart."""
        return self._run(input_ids, positions)

    def _run(self, input_ids: Tensor, positions: Tensor | None, **more: Any) -> Tensor:
        if self._has_types:
            more["token_type_ids"] = (input_ids // self._vocab_size)[None]
            input_ids = input_ids % self._vocab_size
        if positions is not None:
            more["position_ids"] = positions[None]
        result = self._base_forward(input_ids=input_ids[None], **more)
        hidden: Tensor = result[0][0]
        return hidden

    @torch.inference_mode()
    def pooled(self, task: str, rows: Tensor) -> Tensor:
        """One row after the other: torch's products of several may have other bits."""
        if self._classes is None:
            return self.heads.forward(task, rows)
        parts = [self._classes(inputs_embeds=row[None, None]).logits.view(1, -1) for row in rows]
        return torch.cat(parts).float()

    def kv_cache_spec(self) -> KVCacheSpec:
        """Nothing; from trial passes, the first time, how each layer attends."""
        if self._device.type != "meta" and not self._is_tried:
            self._try()
        return KVCacheSpec(())

    def bind_kv_cache(
        self, caches: Sequence[LayerCache], states: Sequence[StateCache] = ()
    ) -> None:
        """Do nothing: there is no cache."""

    @torch.inference_mode()
    def _try(self) -> None:
        def run(input_ids: Tensor, positions: Tensor | None) -> Tensor:
            try:
                return self._run(
                    input_ids, positions, attention_mask=torch.ones_like(input_ids)[None]
                )
            except CheckpointError:
                raise
            except Exception as error:
                raise CheckpointError(f"its module fails: {error}") from error

        use_attention(self, self._config, TRIAL)
        try:
            _EncoderTrial(self._options.max_model_len).run(run, self._device)
        except CheckpointError as error:
            raise refusal(self._facts, str(error)) from None
        use_attention(self, self._config, PACKED)
        self._is_tried = True


class _Given(nn.Module):
    """Stands for the encoder: its last hidden state is what the caller gives."""

    def __init__(self, pooler: nn.Module | None) -> None:
        super().__init__()
        # Of one, so that it is no submodule here.
        self._pooler = (pooler,)

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> BaseModelOutputWithPooling:
        (pooler,) = self._pooler
        return BaseModelOutputWithPooling(
            last_hidden_state=inputs_embeds,
            pooler_output=None if pooler is None else pooler(inputs_embeds),
        )


class _EncoderTrial(Trial):
    """A trial of an encoder, whose layers see later tokens too."""

    # Where it is said it is what the module says.
    harmless: ClassVar[frozenset[str]] = Trial.harmless | {"is_causal"}

    def make_attention(self, layer: AttendingLayer) -> nn.Module:
        heads = Shard.whole(layer.num_heads)
        terms = ScoreTerms(heads=heads, softcap=layer.softcap) if layer.softcap else None
        return EncoderAttention(layer.scale, layer.window, terms)

    def is_wrong_way(self, module: nn.Module) -> str:
        return "it attends to earlier tokens alone" if getattr(module, "is_causal", False) else ""

    def reach(self, sees: Callable[..., Tensor]) -> int | None:
        """How far a query sees on each side by the rule `sees`; None is everything."""
        middle = self.length
        tokens = torch.arange(2 * middle + 1, device="cpu")
        seen = sees(0, 0, torch.tensor(middle, device="cpu"), tokens).expand(len(tokens)).nonzero()
        far, rest = divmod(len(seen) - 1, 2)
        if rest or not torch.equal(seen.flatten(), tokens[middle - far : middle + far + 1]):
            raise CheckpointError("its masks are not those of attention in both directions")
        return None if far == middle else far


AttentionInterface.register(PACKED, attend)
