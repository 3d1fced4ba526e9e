"""EAGLE-3 (Li et al., 2025): a head that reads what enters three layers of the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vllm_lite.config.checkpoints.field_kinds import LARGEST_SIZE
from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.norm import make_norm
from vllm_lite.layers.rotary import RotaryTables
from vllm_lite.models.decoder import DecoderLayer, SelfAttention, join_stream
from vllm_lite.models.draft_head import STORED, TOKEN_IDS, DraftHead, TokenIds
from vllm_lite.models.llama import LlamaForCausalLM
from vllm_lite.models.options import BuildOptions
from vllm_lite.models.spec import AttentionSpec, DecoderSpec, LayerSpec

NUM_TAPS = 3


def tapped_layers(facts: ModelFacts, num_layers: int) -> tuple[int, ...]:
    """The layers of a target of so many whose inputs a head reads; none of one that needs none."""
    hf = facts.hf_config
    nested = hf.get("eagle_config") or {}
    if not nested.get("use_aux_hidden_state", True):
        return ()
    name = "eagle_aux_hidden_state_layer_ids"
    told = hf.get(name) or nested.get(name) or (2, num_layers // 2, num_layers - NUM_TAPS)
    if len(told) != NUM_TAPS or not all(0 <= number < num_layers for number in told):
        raise facts.error(
            f"{name} is {list(told)}, and not {NUM_TAPS} of the model's {num_layers} layers"
        )
    return tuple(told)


class FirstLayer(DecoderLayer):
    """A decoder layer that attends by a token's vector and a hidden state, side by side."""

    def __init__(
        self, layer: LayerSpec, spec: DecoderSpec, options: BuildOptions, tables: RotaryTables
    ) -> None:
        super().__init__(layer, spec, options, tables, None)
        self.hidden_norm = make_norm(spec.norm, spec.hidden_size, options.dtype)

    def _make_mixer(
        self, spec: LayerSpec, hidden_size: int, options: BuildOptions, tables: RotaryTables
    ) -> SelfAttention:
        assert isinstance(spec.mixer, AttentionSpec)
        at = options.at("self_attn")
        mixer = SelfAttention(spec.mixer, hidden_size, at, tables, 2 * hidden_size)
        self.self_attn = mixer
        return mixer

    def join(
        self, vectors: Tensor, positions: Tensor, hidden: Tensor, *, renews: bool
    ) -> tuple[Tensor, Tensor]:
        """The layer's output and the stream, [T, N] each; with `renews` that begins normalised."""
        assert self.input_layernorm is not None
        normed = self.hidden_norm.forward(hidden)
        both = torch.cat([self.input_layernorm.forward(vectors), normed], 1)
        mixed = self.self_attn.forward(positions, self.self_attn.first(both))
        stream = normed if renews else hidden.clone()
        projected, stream = self._between.normed_product(mixed, stream, self.mlp.first)
        return self.mlp.forward(projected), stream


class Eagle3Layers(nn.Module):
    """The product of the three hidden states, layers and a norm."""

    def __init__(
        self, spec: DecoderSpec, options: BuildOptions, target_size: int, *, renews: bool
    ) -> None:
        super().__init__()
        self._renews = renews
        self.fc = None
        if target_size:
            self.fc = options.at("fc").whole_linear(NUM_TAPS * target_size, spec.hidden_size)
        self.rotary_emb = RotaryTables(options.max_model_len)
        at = options.at("layers.0")
        last: DecoderLayer = FirstLayer(spec.layers[0], spec, at, self.rotary_emb)
        self.layers = nn.ModuleList([last])
        for i, layer in enumerate(spec.layers[1:], 1):
            last = DecoderLayer(layer, spec, options.at(f"layers.{i}"), self.rotary_emb, last)
            self.layers.append(last)
        self.norm = make_norm(spec.norm, spec.hidden_size, options.dtype)
        self._leave = join_stream(self.norm, last, spec.residual_scale)

    def forward(self, vectors: Tensor, positions: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normalised sum and the sum, [T, N] each, of tensors [T, N]."""
        layers: list[Any] = list(self.layers)
        first, *others = layers
        x, stream = first.join(vectors, positions, hidden, renews=self._renews)
        for layer in others:
            x, stream = layer.forward(positions, x, stream)
        return self._leave.add_and_norm(x, stream)


class Eagle3LlamaForCausalLM(DraftHead):
    """A head of Llama's layers, which may know a part of the vocabulary."""

    def __init__(self, facts: ModelFacts, options: BuildOptions) -> None:
        super().__init__(facts, options)
        if TOKEN_IDS in (facts.hf_config.get(STORED) or ()):
            self.token_ids = TokenIds(self.num_drafted(facts), are_offsets=True)

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return LlamaForCausalLM.spec(facts)

    @staticmethod
    def marks(facts: ModelFacts) -> Mapping[str, str]:
        names = {name: f"model.{name}" for name in ("layers.", "fc.", "norm.")}
        names |= {"midlayer.": "model.layers.0.", "embed_tokens.": "embed_tokens."}
        marked = {f"model.{old}": new for old, new in names.items()}
        return names | marked | {"lm_head.": "lm_head.", "d2t": TOKEN_IDS}

    @staticmethod
    def num_drafted(facts: ModelFacts) -> int:
        return int(facts.hf_config.get("draft_vocab_size") or facts.vocab_size)

    def make_layers(
        self, facts: ModelFacts, spec: DecoderSpec, options: BuildOptions
    ) -> Eagle3Layers:
        hf = facts.hf_config
        target_size = int(hf.get("target_hidden_size") or spec.hidden_size)
        target_size *= bool(tapped_layers(facts, LARGEST_SIZE))
        return Eagle3Layers(spec, options, target_size, renews=bool(hf.get("norm_before_residual")))

    def hidden_of(self, hidden: Tensor, taps: Sequence[Tensor]) -> Tensor:
        if self.model.fc is None:
            return hidden
        joined: Tensor = self.model.fc.kernel(torch.cat(list(taps), 1))
        return joined

    def greedy_tokens(self, hidden: Tensor) -> Tensor:
        tokens = super().greedy_tokens(hidden)
        return self.token_ids.numbers[tokens] if hasattr(self, "token_ids") else tokens
