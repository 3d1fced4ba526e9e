"""Gemma 4, text: own inputs of layers, shared caches, and experts beside the MLPs of some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vllm_lite.config.facts import ModelFacts
from vllm_lite.kernels.dispatch import ops
from vllm_lite.kernels.reference.experts import Routing
from vllm_lite.layers.norm import NormSpec, make_norm
from vllm_lite.layers.rotary import RotaryTables
from vllm_lite.layers.weights import NamedSlot, WeightSlot
from vllm_lite.loader.weight_rules import AnyRule, renamed
from vllm_lite.models.decoder import Decoder, DecoderForCausalLM, DecoderLayer
from vllm_lite.models.ffn import make_experts
from vllm_lite.models.gemma import FOUR_NORMS
from vllm_lite.models.mixtures import expert_rules, expert_size, routed_experts
from vllm_lite.models.options import BuildOptions
from vllm_lite.models.per_layer_inputs import (
    OWN_INPUT_NAMES,
    OwnInput,
    OwnInputs,
    OwnInputSpec,
    SharingAttentionSpec,
    SharingLayer,
    connect_caches,
    shared_caches,
)
from vllm_lite.models.spec import (
    DecoderSpec,
    ExpertsSpec,
    LayerSpec,
    MLPSpec,
    decoder_spec,
    positive,
    rotary_settings,
    size,
)

_LAYER = "model.layers.*"
_MIXTURE = f"{_LAYER}.mixture"
_NORMS = {
    "pre_feedforward_layernorm_2": "input_norm",
    "post_feedforward_layernorm_1": "dense_norm",
    "post_feedforward_layernorm_2": "output_norm",
}
# The same in GGUF files; numbers of the mixture itself are named by gguf_layout.
_FILE_NAMES = {
    "pre_ffw_norm_2": "input_norm",
    "post_ffw_norm_1": "dense_norm",
    "post_ffw_norm_2": "output_norm",
    "ffn_gate_inp": "mlp.gate",
    "ffn_down_exps.*": "mlp.experts.*.down_proj",
    "mixture": "",
}


class Gemma4Mixture(nn.Module):
    """Experts that read the stream, chosen by its rows without the norm's weight."""

    def __init__(self, spec: ExpertsSpec, decoder: DecoderSpec, options: BuildOptions) -> None:
        super().__init__()
        width = decoder.hidden_size
        self.mlp = make_experts(spec, width, options.at("mlp"))
        self.input_norm, self.dense_norm, self.output_norm = (
            make_norm(decoder.norm, width, options.dtype) for _ in range(3)
        )
        # Of the router's rows, and of a choice's weight by its expert.
        self._scale = torch.empty(width, dtype=torch.float32)
        self._factors = torch.empty(spec.num_experts, dtype=torch.float32)
        self._routing, self._eps, self._ops = spec.routing, decoder.norm.eps, ops()

    def add_to(self, fed: Tensor, stream: Tensor) -> Tensor:
        """The MLP's output `fed` [T, N], which is overwritten, and that of the experts, summed."""
        read = self._ops.rms_norm(stream, self._scale, self._eps)
        logits = self.mlp.gate.kernel(read)
        weights, ids = self._ops.route_topk(logits, self._routing, None, self._factors)
        made = self.mlp.mix(self.input_norm.forward(stream), weights, ids)
        made = self.output_norm.forward(made, out=made)
        fed = self.dense_norm.forward(fed, out=fed)
        return self._ops.scaled_add(fed, made, out=fed)

    def weight_slots(self) -> Iterator[NamedSlot]:
        yield NamedSlot("", "scale", WeightSlot.whole(self._scale))
        yield NamedSlot("", "per_expert_scale", WeightSlot.whole(self._factors))

    def process_weights_after_loading(self) -> None:
        self._scale.mul_(len(self._scale) ** -0.5)


def mixture(facts: ModelFacts) -> ExpertsSpec | None:
    """The experts of each layer; None where there are none."""
    if not facts.hf_config.get("enable_moe_block"):
        return None
    return routed_experts(facts, Routing(top_k=size(facts, "num_experts_per_tok")))


def mixture_rules(facts: ModelFacts) -> list[AnyRule]:
    if not facts.hf_config.get("enable_moe_block"):
        return []
    names = {f"{_LAYER}.{old}": f"{_MIXTURE}.{new}" for old, new in _NORMS.items()}
    names |= {f"{_LAYER}.router": _MIXTURE, f"{_LAYER}.router.proj": f"{_MIXTURE}.mlp.gate"}
    names |= {f"blk.*.{old}": f"{_MIXTURE}.{new}".rstrip(".") for old, new in _FILE_NAMES.items()}
    return [*renamed(names), *expert_rules(expert_size(facts), _LAYER, f"{_MIXTURE}.mlp")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4LayerSpec(LayerSpec):
    """A layer; its own input, and experts beside its MLP, if it has them."""

    own_input: OwnInputSpec | None = None
    mixture: ExpertsSpec | None = None


class Gemma4Layer(SharingLayer):
    """A layer whose output as a whole is scaled by a number of its own."""

    def __init__(
        self,
        spec: LayerSpec,
        decoder: DecoderSpec,
        options: BuildOptions,
        tables: RotaryTables,
        previous: DecoderLayer | None,
    ) -> None:
        super().__init__(spec, decoder, options, tables, previous)
        assert isinstance(spec, Gemma4LayerSpec)
        told = spec.own_input
        self.own_input = None if told is None else OwnInput(told, decoder, options)
        self.mixture = None
        if spec.mixture is not None:
            self.mixture = Gemma4Mixture(spec.mixture, decoder, options.at("mixture"))
        # Read once, on the host: kernels take it as a float.
        self._stored_scale = torch.ones(1, dtype=torch.float32, device="cpu")
        self._scale = 1.0

    def forward_with(self, positions: Tensor, hidden: Tensor, given: Tensor | None) -> Tensor:
        """Positions [T], the stream [T, N] and the layer's own input [T, P] -> the stream."""
        made, stream = self.forward(positions, hidden, None)
        if self.mixture is not None:
            made = self.mixture.add_to(made, stream)
        assert self.ffn_output_norm is not None
        made, scale = self.ffn_output_norm.forward(made, out=made), self._scale
        if self.own_input is not None and given is not None:
            stream = self._add(made, stream, out=stream)
            made = self.own_input.forward(stream, given)
        return self._add(made, stream, scale, scale, out=stream)

    def weight_slots(self) -> Iterator[NamedSlot]:
        yield NamedSlot("", "layer_scalar", WeightSlot.whole(self._stored_scale))

    def process_weights_after_loading(self) -> None:
        self._scale = self._stored_scale.item()


class Gemma4Decoder(Decoder):
    """Embedding, own inputs, layers and the last norm."""

    layer_class = Gemma4Layer

    def __init__(self, spec: DecoderSpec, options: BuildOptions) -> None:
        super().__init__(spec, options)
        connect_caches(self, spec)
        first = spec.layers[0]
        assert isinstance(first, Gemma4LayerSpec)
        told = first.own_input
        self.own_inputs = None if told is None else OwnInputs(told, spec, options)

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        hidden = self.enter(input_ids, positions)
        given: Sequence[Tensor | None] = [None] * len(self.layers)
        if self.own_inputs is not None:
            given = self.own_inputs.forward(input_ids, hidden)
        for layer, own in zip(self.layers, given, strict=True):
            assert isinstance(layer, Gemma4Layer)
            hidden = layer.forward_with(positions, hidden, own)
        assert self.norm is not None
        return self.norm.forward(hidden)


class Gemma4ForCausalLM(DecoderForCausalLM):
    """Gemma Team, 2026."""

    decoder_class = Gemma4Decoder

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf = facts.hf_config
        if hf.get("use_bidirectional_attention") not in (None, "vision"):
            raise facts.error(
                f"use_bidirectional_attention is {hf['use_bidirectional_attention']!r} in its "
                "configuration, so that tokens see later ones; such a model does not write"
            )
        plain = decoder_spec(facts)
        norm = NormSpec(eps=plain.norm.eps, in_float32=True)
        # The last layer is never local, whatever the pattern.
        is_local = [*facts.local_layers[:-1], False]
        caches = shared_caches(facts, is_local)
        sizes = _head_sizes(facts, is_local)
        own_input, experts = _own_input(facts), mixture(facts)
        layers = []
        for i, local in enumerate(is_local):
            head_size, num_kv_heads = sizes[i]
            kind = "sliding_attention" if local else "full_attention"
            mixer = SharingAttentionSpec(
                num_heads=facts.num_heads,
                num_kv_heads=num_kv_heads,
                head_size=head_size,
                scale=1.0,
                rotary=replace(rotary_settings(facts, kind), head_size=head_size),
                window=facts.layer_windows[i] if local else None,
                qkv_bias=bool(hf.get("attention_bias")),
                output_bias=bool(hf.get("attention_bias")),
                qk_norm=norm,
                cache_of=caches[i],
                has_values_of_keys=bool(hf.get("attention_k_eq_v")) and not local,
            )
            is_wide = bool(hf.get("use_double_wide_mlp")) and caches[i] is not None
            width = size(facts, "intermediate_size") * (2 if is_wide else 1)
            ffn = MLPSpec(intermediate_size=width, act=hf["hidden_act"])
            layer = Gemma4LayerSpec(mixer=mixer, ffn=ffn, norms="both", own_input=own_input)
            layers.append(replace(layer, mixture=experts))
        capped = hf.get("final_logit_softcapping") is not None
        return replace(
            plain,
            norm=norm,
            layers=tuple(layers),
            embedding_scale=facts.hidden_size**0.5,
            logit_cap=positive(facts, "final_logit_softcapping", 30) if capped else 0.0,
        )

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        names = {f"{_LAYER}.{old}": f"{_LAYER}.{new}" for old, new in FOUR_NORMS.items()}
        return [*renamed(names | OWN_INPUT_NAMES), *mixture_rules(facts)]


def _own_input(facts: ModelFacts) -> OwnInputSpec | None:
    if not facts.hf_config.get("hidden_size_per_layer_input"):
        return None
    rows = size(facts, "vocab_size_per_layer_input")
    if rows < facts.vocab_size:
        raise facts.error(
            f"vocab_size_per_layer_input is {rows} in its configuration, fewer than its "
            f"{facts.vocab_size} tokens"
        )
    return OwnInputSpec(
        size=size(facts, "hidden_size_per_layer_input"),
        rows=rows,
        act=facts.hf_config["hidden_act"],
    )


def _head_sizes(facts: ModelFacts, is_local: Sequence[bool]) -> list[tuple[int, int]]:
    hf = facts.hf_config
    told = hf.get("per_layer_config")
    if told is None:
        wide: dict[str, Any] = {"head_dim": hf.get("global_head_dim", 512)}
        if hf.get("attention_k_eq_v") and hf.get("num_global_key_value_heads") is not None:
            wide["num_key_value_heads"] = hf["num_global_key_value_heads"]
        told = {str(i): wide for i, local in enumerate(is_local) if not local}
    found = []
    for i in range(facts.num_layers):
        own = told.get(str(i), {}) if isinstance(told, dict) else None
        if not isinstance(own, dict) or not set(own) <= {"head_dim", "num_key_value_heads"}:
            raise facts.error(
                f"per_layer_config says of layer {i} more than head_dim and num_key_value_heads"
            )
        pair = (
            own.get("head_dim", facts.head_size),
            own.get("num_key_value_heads", facts.num_kv_heads),
        )
        if not all(type(number) is int and number > 0 for number in pair) or (
            facts.num_heads % pair[1]
        ):
            raise facts.error(
                f"layer {i} has num_key_value_heads {pair[1]!r} and head_dim {pair[0]!r} for "
                f"{facts.num_heads} heads in its configuration"
            )
        found.append(pair)
    return found
