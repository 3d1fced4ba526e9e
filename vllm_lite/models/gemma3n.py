"""Gemma 3n, text: several streams, of which layers compute one and correct the others (AltUp,
Baykal et al., 2023), own inputs, shared caches, and sparse gates in the first layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor, nn

from vllm_lite.config.facts import ModelFacts
from vllm_lite.distributed.groups import Shard
from vllm_lite.kernels.dispatch import ops
from vllm_lite.layers.activation import activation_name
from vllm_lite.layers.experts import SparseMLP
from vllm_lite.layers.linear import ParallelLinear, RowParallelLinear
from vllm_lite.layers.mlp import GatedMLP, PlainMLP
from vllm_lite.layers.norm import NormSpec, make_norm
from vllm_lite.layers.rotary import RotaryTables
from vllm_lite.layers.weights import NamedSlot, WeightedLayer, WeightSlot
from vllm_lite.loader.weight_rules import AnyRule, Part, Rule, renamed
from vllm_lite.models.decoder import Decoder, DecoderForCausalLM, DecoderLayer
from vllm_lite.models.ffn import make_mlp
from vllm_lite.models.gemma import FOUR_NORMS
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
from vllm_lite.models.spec import DecoderSpec, LayerSpec, MLPSpec, positive, rotary_settings, size
from vllm_lite.quantization.method import LinearKernel
from vllm_lite.quantization.unquantized import UnquantizedLinearMethod

# Least mean square of a stream that is scaled to the first one's.
_LEAST_SQUARE = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsSpec:
    """The streams of a token: their number, and the one that layers compute."""

    count: int
    active: int
    # Whether what makes use of the own input reads the stream times a weight.
    is_scaled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3nLayerSpec(LayerSpec):
    """A layer; its feed-forward block is `mlp`, and `ffn` is None."""

    mlp: MLPSpec
    # Gates are 0 up to so many standard deviations above their mean; None: they stay.
    cut: float | None
    laurel_rank: int
    streams: StreamsSpec
    own_input: OwnInputSpec


class SparseGatedMLP(nn.Module):
    """A gated MLP in which only gates far above their mean count.

    Every rank computes all gates, whose mean it needs.
    """

    def __init__(self, spec: MLPSpec, cut: float, hidden_size: int, options: BuildOptions) -> None:
        super().__init__()
        width = spec.intermediate_size
        own = Shard.even(width, "features")
        self.gate_up_proj = ParallelLinear(
            options.at("gate_up_proj").linear_method,
            Shard.whole(hidden_size),
            {"0": Shard.whole(width), "1": own},
        )
        self.down_proj = RowParallelLinear(
            options.at("down_proj").linear_method, width, hidden_size
        )
        self._sizes, self._cut = (width, own.size), cut
        # Of gates: other ranks' before its own, its own, and those after.
        self._own = (own.start, own.size, width - own.start - own.size)
        self._act, self._ops = activation_name(spec.act), ops()

    @property
    def first(self) -> LinearKernel:
        """[T, N] -> the input of `forward`."""
        return self.gate_up_proj.kernel

    def forward(self, projected: Tensor) -> Tensor:
        """Output of `first` -> [T, N]."""
        gate, up = projected.split_with_sizes(self._sizes, 1)
        gate = self._ops.keep_outliers(gate, self._cut, out=gate)
        gate = gate.split_with_sizes(self._own, 1)[1]
        return self.down_proj.kernel(self._ops.gated_product(up, gate, self._act))


class Laurel(nn.Module):
    """A learned augmented residual layer: a product of low rank (Menghani et al., 2024)."""

    def __init__(self, rank: int, decoder: DecoderSpec, options: BuildOptions) -> None:
        super().__init__()
        width = decoder.hidden_size
        self.linear_left = options.at("linear_left").whole_linear(width, rank)
        self.linear_right = options.at("linear_right").whole_linear(rank, width)
        self.post_laurel_norm = make_norm(decoder.norm, width, options.dtype)
        self._add = ops().scaled_add

    def forward(self, x: Tensor) -> Tensor:
        """[T, N] -> [T, N], a new tensor."""
        made = self.linear_right.kernel(self.linear_left.kernel(x))
        made = self.post_laurel_norm.forward(made, out=made)
        return self._add(made, x, out=made)


class AltUp(nn.Module, WeightedLayer):
    """Predicts a layer's output in all streams, and corrects them by that of the active one."""

    def __init__(self, spec: StreamsSpec, decoder: DecoderSpec, options: BuildOptions) -> None:
        super().__init__()
        width, count = decoder.hidden_size, spec.count
        self.router_norm = make_norm(decoder.norm, width, options.dtype)
        self.modality_router = options.at("modality_router").whole_linear(width, count)
        # Never quantised: a row has no block of numbers.
        plain, inputs = UnquantizedLinearMethod(options.dtype), Shard.whole(count)
        self.prediction_coefs, self.correction_coefs = (
            ParallelLinear(plain, inputs, {"": Shard.whole(outputs)})
            for outputs in (count**2, count)
        )
        self._output_scale = torch.ones(width, dtype=options.dtype)
        self._spec, self._ops, self._router_scale = spec, ops(), 1.0 / width

    def predict(self, streams: Tensor) -> Tensor:
        """Streams [T, K, N] -> the same after the layer, as far as they tell."""
        spec = self._spec
        factors = self.prediction_coefs.kernel(self._modalities(streams[:, spec.active]))
        factors = factors.view(-1, spec.count, spec.count)
        return self._ops.mix_rows(streams, factors, streams)

    def correct(self, predicted: Tensor, activated: Tensor) -> tuple[Tensor, Tensor]:
        """Correct predictions [T, K, N] in place by the layer's output [T, N].

        Returns them, and what reads the own input, [T, N].
        """
        spec, mix = self._spec, self._ops.mix_rows
        factors = self.correction_coefs.kernel(self._modalities(activated))
        active = predicted[:, spec.active]
        news = self._ops.scaled_add(activated, active, 1.0, -1.0, out=activated)
        factors = factors.view(-1, spec.count, 1)
        news = news.view(-1, 1, news.shape[1])
        streams = mix(news, factors, predicted, 1.0, out=predicted)
        first = streams[:, spec.active : spec.active + 1]
        scale = self._output_scale if spec.is_scaled else None
        return streams, mix(first, None, None, 1.0, scale)[:, 0]

    def _modalities(self, x: Tensor) -> Tensor:
        routed = self.modality_router.kernel(self.router_norm.forward(x))
        routed = self._ops.scaled_add(routed, None, self._router_scale, out=routed)
        return self._ops.activation(routed, "tanh", out=routed)

    def weight_slots(self) -> Iterator[NamedSlot]:
        yield NamedSlot("", "correct_output_scale", WeightSlot.whole(self._output_scale))


class Gemma3nLayer(SharingLayer):
    """A layer of the active stream, between the prediction of all streams and their correction."""

    mlp: Any

    def __init__(
        self,
        spec: LayerSpec,
        decoder: DecoderSpec,
        options: BuildOptions,
        tables: RotaryTables,
        previous: DecoderLayer | None,
    ) -> None:
        super().__init__(spec, decoder, options, tables, None)
        assert isinstance(spec, Gemma3nLayerSpec)
        width = decoder.hidden_size
        self.ffn_norm, self.ffn_output_norm = (
            make_norm(decoder.norm, width, options.dtype) for _ in range(2)
        )
        self.mlp = _make_mlp(spec, width, options.at("mlp"))
        self.laurel = Laurel(spec.laurel_rank, decoder, options.at("laurel"))
        self.altup = AltUp(spec.streams, decoder, options.at("altup"))
        self.own_input = OwnInput(spec.own_input, decoder, options)
        self._active, self._mix = spec.streams.active, ops().mix_rows

    def forward_with(self, positions: Tensor, streams: Tensor, given: Tensor) -> Tensor:
        """Positions [T], streams [T, K, N] and the layer's own input [T, P] -> streams."""
        assert self.input_layernorm is not None
        assert self.mixer_output_norm is not None and self.ffn_output_norm is not None
        predicted = self.altup.predict(streams)
        active = predicted[:, self._active]
        normed = self.input_layernorm.forward(active)
        mixed = self._mixer.forward(positions, self._mixer.first(normed))
        mixed = self.mixer_output_norm.forward(mixed, out=mixed)
        mixed = self._add(mixed, active, out=mixed)
        half = 2.0**-0.5
        stream = self._add(mixed, self.laurel.forward(normed), half, half, out=mixed)
        fed = self.mlp.forward(self.mlp.first(self.ffn_norm.forward(stream)))
        fed = self.ffn_output_norm.forward(fed, out=fed)
        streams, first = self.altup.correct(predicted, self._add(fed, stream, out=fed))
        made, others = self.own_input.forward(first, given), streams[:, 1:]
        self._mix(made.view(-1, 1, made.shape[1]), None, others, 1.0, out=others)
        return streams


class Gemma3nDecoder(Decoder):
    """Embedding, own inputs, streams made of it, layers, the streams' mean and the last norm."""

    layer_class = Gemma3nLayer

    def __init__(self, spec: DecoderSpec, options: BuildOptions) -> None:
        super().__init__(spec, options)
        connect_caches(self, spec)
        first = spec.layers[0]
        assert isinstance(first, Gemma3nLayerSpec)
        self.own_inputs = OwnInputs(first.own_input, spec, options)
        self._count, width = first.streams.count, spec.hidden_size
        self.altup_projections, self.altup_unembed_projections = (
            nn.ModuleList(
                options.at(f"{name}.{i}").whole_linear(width, width) for i in range(self._count - 1)
            )
            for name in ("altup_projections", "altup_unembed_projections")
        )
        self._ops = ops()

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        hidden = self.enter(input_ids, positions)
        given = self.own_inputs.forward(input_ids, hidden)
        streams = hidden.new_empty(len(hidden), self._count, hidden.shape[1])
        self._ops.scaled_add(hidden, out=streams[:, 0])
        self._fill(streams, self.altup_projections, [hidden] * (self._count - 1))
        for layer, own in zip(self.layers, given, strict=True):
            assert isinstance(layer, Gemma3nLayer)
            streams = layer.forward_with(positions, streams, own)
        self._fill(
            streams, self.altup_unembed_projections, [streams[:, i] for i in range(1, self._count)]
        )
        assert self.norm is not None
        mean = self._ops.mix_rows(streams, None, None, 1.0 / self._count)
        return self.norm.forward(mean[:, 0])

    def _fill(self, streams: Tensor, projections: nn.ModuleList, rows: Sequence[Tensor]) -> None:
        """Put products of `rows` into the streams after the first, which they are scaled to."""
        for i, (projection, x) in enumerate(zip(projections, rows, strict=True), 1):
            assert isinstance(projection, ParallelLinear)
            made = projection.kernel(x)
            self._ops.match_rms(made, streams[:, 0], _LEAST_SQUARE, out=streams[:, i])


class Gemma3nForCausalLM(DecoderForCausalLM):
    """Gemma Team, 2025."""

    decoder_class = Gemma3nDecoder

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf = facts.hf_config
        norm = NormSpec(eps=positive(facts, "rms_norm_eps", 1e-6), in_float32=True)
        caches = shared_caches(facts, facts.local_layers)
        count, active = size(facts, "altup_num_inputs"), hf["altup_active_idx"]
        if count < 2 or type(active) is not int or not 0 <= active < count:
            raise facts.error(
                f"altup_active_idx is {active!r} and altup_num_inputs {count} in its configuration"
            )
        streams = StreamsSpec(
            count=count, active=active, is_scaled=bool(hf.get("altup_correct_scale"))
        )
        own_input = OwnInputSpec(
            size=size(facts, "hidden_size_per_layer_input"),
            rows=max(facts.vocab_size, size(facts, "vocab_size_per_layer_input")),
            act=hf["hidden_act"],
        )
        mixers = [_mixer(facts, norm, i, cache) for i, cache in enumerate(caches)]
        capped = hf.get("final_logit_softcapping") is not None
        return DecoderSpec(
            vocab_size=facts.vocab_size,
            hidden_size=facts.hidden_size,
            norm=norm,
            layers=tuple(
                Gemma3nLayerSpec(
                    mixer=mixer,
                    ffn=None,
                    norms="both",
                    mlp=MLPSpec(intermediate_size=width, act=hf["hidden_act"]),
                    cut=cut,
                    laurel_rank=size(facts, "laurel_rank"),
                    streams=streams,
                    own_input=own_input,
                )
                for mixer, width, cut in zip(mixers, _widths(facts), _cuts(facts), strict=True)
            ),
            tie_word_embeddings=bool(hf.get("tie_word_embeddings")),
            embedding_scale=facts.hidden_size**0.5,
            logit_cap=positive(facts, "final_logit_softcapping", 30) if capped else 0.0,
        )

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        layer = "model.layers.*"
        norms = FOUR_NORMS | {"pre_feedforward_layernorm": "ffn_norm"}
        names = {"blk.*.ffn_norm": f"{layer}.ffn_norm"}
        names |= {f"{layer}.{old}": f"{layer}.{new}" for old, new in norms.items()}
        rules = renamed(names | OWN_INPUT_NAMES)
        rows, more = size(facts, "vocab_size_per_layer_input"), facts.vocab_size
        if rows < more:
            # Later tokens, which stand for pictures and sounds, have the row of the first.
            order = torch.cat([torch.arange(rows), torch.zeros(more - rows, dtype=torch.int64)])
            table = Part("model.own_inputs.table", order, rows)
            rules.append(Rule("model.embed_tokens_per_layer", (table,)))
        return rules


def _make_mlp(
    spec: Gemma3nLayerSpec, hidden_size: int, options: BuildOptions
) -> GatedMLP | PlainMLP | SparseMLP | SparseGatedMLP:
    if spec.cut is None:
        return make_mlp(spec.mlp, hidden_size, options)
    return SparseGatedMLP(spec.mlp, spec.cut, hidden_size, options)


def _mixer(facts: ModelFacts, norm: NormSpec, i: int, cache: int | None) -> SharingAttentionSpec:
    has_bias = bool(facts.hf_config.get("attention_bias"))
    kind = "sliding_attention" if facts.local_layers[i] else "full_attention"
    return SharingAttentionSpec(
        num_heads=facts.num_heads,
        num_kv_heads=facts.num_kv_heads,
        head_size=facts.head_size,
        scale=1.0,
        rotary=rotary_settings(facts, kind),
        window=facts.layer_windows[i],
        qkv_bias=has_bias,
        output_bias=has_bias,
        qk_norm=norm,
        cache_of=cache,
    )


def _cuts(facts: ModelFacts) -> list[float | None]:
    """Of each layer, how many standard deviations above the mean its gates begin to count."""
    told, count = facts.hf_config.get("activation_sparsity_pattern"), facts.num_layers
    if told is None:
        told = [0.95 if i < 10 < count else 0.0 for i in range(count)]
    shares = _of_layers(facts, "activation_sparsity_pattern", told)
    if not all(isinstance(share, int | float) and 0 <= share < 1 for share in shares):
        raise facts.error(
            f"activation_sparsity_pattern is {told} in its configuration, not shares of gates"
        )
    return [NormalDist().inv_cdf(share) if share else None for share in shares]


def _widths(facts: ModelFacts) -> list[int]:
    told = facts.hf_config.get("intermediate_size")
    widths = _of_layers(facts, "intermediate_size", told)
    if not all(type(width) is int and width > 0 for width in widths):
        raise facts.error(
            f"intermediate_size is {told} in its configuration, not a size for each layer"
        )
    return widths


def _of_layers(facts: ModelFacts, key: str, told: Any) -> list[Any]:
    """The value of each layer, where a configuration may have one for all of them."""
    if not isinstance(told, list):
        return [told] * facts.num_layers
    if len(told) != facts.num_layers:
        raise facts.error(
            f"{key} has {len(told)} values for {facts.num_layers} layers in its configuration"
        )
    return told
