"""Heads that draft from the hidden states of the model that they were trained for: EAGLE's first.

A head reads a token's vector and the hidden state of the position before it. It lies between the
target's embedding and output head, unless its checkpoint has its own. Knows no scheduling.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vllm_lite.config.facts import ModelFacts
from vllm_lite.core.kv_spec import KVCacheSpec
from vllm_lite.layers.attention import Attention, LayerCache
from vllm_lite.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from vllm_lite.layers.norm import Norm, make_norm
from vllm_lite.layers.rotary import RotaryTables
from vllm_lite.layers.weights import NamedSlot, WeightSlot
from vllm_lite.loader.weight_rules import AnyRule
from vllm_lite.models.decoder import DecoderLayer, join_stream
from vllm_lite.models.llama import LlamaForCausalLM
from vllm_lite.models.options import BuildOptions
from vllm_lite.models.spec import DecoderSpec, cached_layers

# The field of a head's configuration that lists which of OPTIONAL its checkpoint has.
STORED = "stored_tensors"
EMBEDDING, OUTPUT, FUSION_BIAS = "embed_tokens.weight", "lm_head.weight", "model.fc.bias"
TOKEN_IDS = "token_ids.numbers"
OPTIONAL = (EMBEDDING, OUTPUT, FUSION_BIAS, TOKEN_IDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """How a token's vector and a hidden state become the first layer's input."""

    has_norms: bool = False
    bias: bool = False
    # The vector at the first position is zero.
    masks_first: bool = False


class HeadLayers(nn.Module):
    """The product that joins vectors and hidden states, then layers and maybe a norm."""

    def __init__(self, spec: DecoderSpec, fusion: Fusion, options: BuildOptions) -> None:
        super().__init__()
        size, self._masks_first = spec.hidden_size, fusion.masks_first

        def norm(is_here: bool) -> Norm | None:
            return make_norm(spec.norm, size, options.dtype) if is_here else None

        self.enorm, self.hnorm = norm(fusion.has_norms), norm(fusion.has_norms)
        self.fc = options.at("fc").whole_linear(2 * size, size, bias=fusion.bias)
        self.rotary_emb = RotaryTables(options.max_model_len)
        self.layers = nn.ModuleList()
        last: DecoderLayer | None = None
        for i, layer in enumerate(spec.layers):
            last = DecoderLayer(layer, spec, options.at(f"layers.{i}"), self.rotary_emb, last)
            self.layers.append(last)
        self.norm = norm(spec.has_last_norm)
        self._leave = join_stream(self.norm, last, spec.residual_scale)

    def forward(self, vectors: Tensor, positions: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normalised sum and the sum, [T, N] each, of tensors [T, N]."""
        if self._masks_first:
            vectors = vectors.masked_fill(positions[:, None] == 0, 0)
        if self.enorm is not None and self.hnorm is not None:
            vectors, hidden = self.enorm.forward(vectors), self.hnorm.forward(hidden)
        x = self.fc.kernel(torch.cat([vectors, hidden], 1))
        residual: Tensor | None = None
        for layer in self.layers:
            x, residual = layer.forward(positions, x, residual)
        return self._leave.add_and_norm(x, residual)


class DraftHead(nn.Module, ABC):
    """Layers of their own that guess the token after next; families say which."""

    embed_tokens: VocabParallelEmbedding
    lm_head: ParallelLMHead
    # Whether its next step reads the normalised sum.
    chains_normed = False

    def __init__(self, facts: ModelFacts, options: BuildOptions) -> None:
        super().__init__()
        spec, stored = self.spec(facts), facts.hf_config.get(STORED) or ()
        self.model = self.make_layers(facts, spec, options.at("model"))
        if EMBEDDING in stored:
            self.embed_tokens = VocabParallelEmbedding(
                options.at("embed_tokens").linear_method, spec.vocab_size, spec.hidden_size
            )
        if OUTPUT in stored:
            self.lm_head = ParallelLMHead(
                options.at("lm_head").linear_method, self.num_drafted(facts), spec.hidden_size
            )
        self._cache_spec = KVCacheSpec(cached_layers(spec, options.cache_format))

    @staticmethod
    @abstractmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        """The layers' spec."""

    @staticmethod
    @abstractmethod
    def marks(facts: ModelFacts) -> Mapping[str, str]:
        """Beginnings of the tensors' names to those of the names here; others are passed over."""

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        """Further rules, for names as `marks` make them."""
        return ()

    @staticmethod
    def num_drafted(facts: ModelFacts) -> int:
        """Tokens that its own output head knows."""
        return facts.vocab_size

    @abstractmethod
    def make_layers(self, facts: ModelFacts, spec: DecoderSpec, options: BuildOptions) -> Any:
        """The module between embedding and output head."""

    def share(self, target: nn.Module) -> None:
        """Take the embedding and the output head of `target` that the checkpoint does not have."""
        own: Any = target
        if not hasattr(self, "embed_tokens"):
            self.embed_tokens = own.model.embed_tokens
        if not hasattr(self, "lm_head"):
            self.lm_head = own.lm_head

    def hidden_of(self, hidden: Tensor, taps: Sequence[Tensor]) -> Tensor:
        """The [T, N] that the head reads of a step of the target."""
        return hidden

    def forward(
        self, input_ids: Tensor, positions: Tensor, hidden: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Tokens [T] behind positions [T], whose hidden states are [T, N].

        Returns the inputs of `greedy_tokens` and of the next token's pass, [T, N] each.
        """
        vectors = self.embed_tokens.forward(input_ids)
        normed, total = self.model.forward(vectors, positions, hidden)
        return normed, normed if self.chains_normed else total

    def greedy_tokens(self, hidden: Tensor) -> Tensor:
        """[R, N] -> the likeliest tokens [R] int64."""
        return self.lm_head.greedy_tokens(hidden)[0]

    def kv_cache_spec(self) -> KVCacheSpec:
        return self._cache_spec

    def bind_kv_cache(self, caches: Sequence[LayerCache]) -> None:
        layers = [module for module in self.model.modules() if isinstance(module, Attention)]
        for layer, cache in zip(layers, caches, strict=True):
            layer.bind_kv_cache(cache)


class EagleForCausalLM(DraftHead):
    """EAGLE (Li et al., 2024): layers of Llama's, the first without its first norm."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        spec = LlamaForCausalLM.spec(facts)
        first, *others = spec.layers
        layers = (replace(first, norms="before ffn"), *others)
        return replace(spec, layers=layers, has_last_norm=False)

    @staticmethod
    def marks(facts: ModelFacts) -> Mapping[str, str]:
        names = {
            "embedding_layernorm.": "model.enorm.",
            "hidden_states_layernorm.": "model.hnorm.",
            "layers.": "model.layers.",
            "fc.": "model.fc.",
            "embed_tokens.": "embed_tokens.",
        }
        return (
            names | {f"model.{old}": new for old, new in names.items()} | {"lm_head.": "lm_head."}
        )

    def make_layers(
        self, facts: ModelFacts, spec: DecoderSpec, options: BuildOptions
    ) -> HeadLayers:
        bias = FUSION_BIAS in (facts.hf_config.get(STORED) or ())
        has_norms = bool(facts.hf_config.get("add_para_norm"))
        return HeadLayers(spec, Fusion(has_norms=has_norms, bias=bias), options)


class TokenIds(nn.Module):
    """Ids of the D tokens that a head may draft, or how far they are beyond their places."""

    def __init__(self, count: int, *, are_offsets: bool = False) -> None:
        super().__init__()
        self.numbers = torch.zeros(count, dtype=torch.int64)
        self._are_offsets = are_offsets

    def weight_slots(self) -> Iterator[NamedSlot]:
        yield NamedSlot("", "numbers", WeightSlot.whole(self.numbers))

    def process_weights_after_loading(self) -> None:
        if self._are_offsets:
            self.numbers += torch.arange(len(self.numbers), device=self.numbers.device)
