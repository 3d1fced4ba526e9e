"""Encoders: decoders whose tokens see later ones too, with heads in place of a vocabulary's.

Nothing is cached, so that a request's tokens are all in one step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from vllm_lite.config.facts import ModelFacts
from vllm_lite.core.kv_spec import KVCacheSpec
from vllm_lite.layers.attention import LayerCache
from vllm_lite.layers.embedding import EncoderEmbedding
from vllm_lite.layers.state import StateCache
from vllm_lite.loader.weight_rules import Alias, AnyRule, Rule, renamed
from vllm_lite.models.decoder import Decoder
from vllm_lite.models.heads import Heads, HeadSpec
from vllm_lite.models.options import BuildOptions
from vllm_lite.models.spec import DecoderSpec, gpt_spec, size, with_layers


class Encoder(Decoder):
    """Embedding and layers; the embedding is a sum of up to three tables."""

    def _make_entrance(self, spec: DecoderSpec, options: BuildOptions) -> None:
        width, tables = (
            spec.embedding_size or spec.hidden_size,
            (spec.vocab_size, spec.num_learned_positions, spec.num_token_types),
        )
        self.embeddings = EncoderEmbedding(tables, width, spec.norm, options.dtype)
        self.embed_project = None
        if width != spec.hidden_size:
            at = options.at("embed_project")
            self.embed_project = at.whole_linear(width, spec.hidden_size, bias=True)

    def enter(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """[T] of word + type * number of words, and [T] -> the first layer's input [T, N]."""
        hidden = self.embeddings.forward(input_ids, positions)
        return hidden if self.embed_project is None else self.embed_project.kernel(hidden)


class EncoderModel(nn.Module):
    """An encoder with a head for each task; families override `spec`, and tasks `heads_of`."""

    def __init__(self, facts: ModelFacts, options: BuildOptions) -> None:
        super().__init__()
        spec = self.spec(facts)
        self.model = Encoder(spec, options.at("model"))
        heads = self.heads_of(facts)
        self.heads = Heads(heads, spec.hidden_size, options.dtype, facts.pooling)

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return encoder_spec(facts)

    @classmethod
    def heads_of(cls, facts: ModelFacts) -> Mapping[str, HeadSpec]:
        """The head of each task; tasks without one answer hidden states."""
        return {}

    @classmethod
    def weight_rules(cls, facts: ModelFacts) -> Sequence[AnyRule]:
        return ()

    @torch.inference_mode()
    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        return self.model.forward(input_ids, positions)

    def pooled(self, task: str, rows: Tensor) -> Tensor:
        return self.heads.forward(task, rows)

    def kv_cache_spec(self) -> KVCacheSpec:
        return KVCacheSpec(())

    def bind_kv_cache(
        self, caches: Sequence[LayerCache], states: Sequence[StateCache] = ()
    ) -> None:
        """Do nothing: there is no cache."""


def encoder_spec(facts: ModelFacts, *, bias: bool = True) -> DecoderSpec:
    """BERT's shape: norms of the sums, learned positions and token types."""
    spec = gpt_spec(facts, "layer_norm_eps", bias=bias)
    return replace(
        with_layers(spec, {"is_bidirectional": True}, norms="of the sum"),
        has_last_norm=False,
        num_learned_positions=facts.max_position,
        num_token_types=num_token_types(facts),
    )


def num_token_types(facts: ModelFacts) -> int:
    """Rows of the table of token types; 0 where there is none."""
    return size(facts, "type_vocab_size") if facts.hf_config.get("type_vocab_size") else 0


def encoder_rules(
    roots: Iterable[str], names: Mapping[str, str], *, unused: Iterable[str] = ()
) -> list[AnyRule]:
    """Rules for layers `names`, before which checkpoints may write one of `roots`, the usual last.

    Layers in `unused`, with all below them of that name, are of other tasks and passed over.
    """
    rules: list[AnyRule] = []
    *others, usual = roots
    for root in (*others, usual):
        own = renamed({f"{root}{old}": new for old, new in names.items()})
        rules += own if root == usual else [replace(rule, is_alternative=True) for rule in own]
        rules += (Rule(f"{root}{name}") for name in unused)
        rules += (alias for old in names for alias in _old_names(f"{root}{old}"))
    return rules


def _old_names(norm: str) -> Iterator[Alias]:
    """The tensors of TensorFlow's layer norms, whose names are in the oldest checkpoints."""
    if norm.endswith("LayerNorm"):
        yield Alias(f"{norm}.gamma", f"{norm}.weight")
        yield Alias(f"{norm}.beta", f"{norm}.bias")
