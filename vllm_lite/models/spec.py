"""DecoderSpec: a decoder-only transformer as plain data, layer by layer.

A layer is a mixer and a feed-forward block, each described by a spec of its own. A field is here
when several families differ in it; a family's own specialty is a block class of its own. Read
from ModelFacts, which has the defaults of the family's configuration.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from vllm_lite.config.checkpoints.field_kinds import LARGEST_SIZE
from vllm_lite.config.facts import ModelFacts
from vllm_lite.core.kv_spec import CacheFormat, LayerCacheSpec
from vllm_lite.distributed.groups import head_shards
from vllm_lite.errors import CheckpointError, UsageError
from vllm_lite.kernels.reference.experts import Routing
from vllm_lite.layers.norm import NormSpec
from vllm_lite.layers.rotary import QueryScaling, RotarySettings
from vllm_lite.layers.state import StateSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Self-attention over one layer's cached keys and values."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    # Scores are multiplied by it.
    scale: float
    # Of values, if not head_size.
    value_size: int | None = None
    # None: no rotation.
    rotary: RotarySettings | None
    # How many tokens a query looks back, itself included; None is all of them. In both directions:
    # how far, itself not counted.
    window: int | None = None
    # Queries see later tokens too: a request's tokens are in one step, and nothing is cached.
    is_bidirectional: bool = False
    # The window is a chunk instead: a query looks back to the beginning of its own. The cache
    # keeps what a window would.
    is_chunked: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    # Projections are clamped to +-qkv_clip.
    qkv_clip: float | None = None
    # Of queries and of keys: each head by itself, with one weight for all heads or one for each,
    # or all heads as one row.
    qk_norm: NormSpec | None = None
    qk_norm_weight: Literal["shared", "by head", "one row"] = "shared"
    is_normed_after_rotation: bool = False
    query_scaling: QueryScaling | None = None
    # Scores become softcap * tanh(score / softcap); 0: they stay.
    softcap: float = 0.0
    # Of each head, see layers.score_terms.alibi_slopes.
    alibi_slopes: tuple[float, ...] = ()
    # What the heads give is multiplied by the logistic function of a further projection.
    has_output_gate: bool = False
    # self_attn.sinks, a score for each head, joins the softmax's sum.
    has_sinks: bool = False

    @property
    def has_cache(self) -> bool:
        """Whether its keys and values are cached, rather than another layer's read."""
        return not self.is_bidirectional

    def cache(self, stored: CacheFormat) -> LayerCacheSpec:
        return LayerCacheSpec(
            num_kv_heads=head_shards(self.num_heads, self.num_kv_heads)[1].size,
            head_size=self.head_size,
            dtype=stored.dtype,
            sliding_window=self.window,
            has_row_scales=stored.has_row_scales,
            value_size=self.value_size,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttentionSpec:
    """Self-attention whose keys and values are products of one cached latent (DeepSeek, 2024)."""

    num_heads: int
    # Numbers of a latent, and of the queries' one; None: queries are projected in one step.
    rank: int
    query_rank: int | None
    # Of a head: keys' parts from the latent and rotated, and values.
    key_size: int
    rotary_size: int
    value_size: int
    # Scores are multiplied by it.
    scale: float
    # None: no rotation.
    rotary: RotarySettings | None
    # Of both latents.
    norm: NormSpec
    # Of the projections to latents, and of the output.
    bias: bool = False

    def cache(self, stored: CacheFormat) -> LayerCacheSpec:
        """The layer's cache: a latent and the rotated part of the key that all heads share."""
        if stored.has_row_scales:
            raise UsageError(
                "--kv-cache-dtype with a scale for each row is not for latent attention, whose "
                "values are a part of the keys; use fp8 or auto"
            )
        return LayerCacheSpec(
            num_kv_heads=1,
            head_size=self.rank + self.rotary_size,
            dtype=stored.dtype,
            latent_size=self.rank,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MLPSpec:
    """down(act(gate(x)) * up(x)), or down(act(up(x))) where there is no gate."""

    intermediate_size: int
    act: str
    is_gated: bool = True
    bias: bool = False
    # Of down, if not as the others.
    down_bias: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsSpec:
    """Some of num_experts MLPs for each token, chosen and weighted by `routing`."""

    num_experts: int
    # Of one expert.
    intermediate_size: int
    act: str
    routing: Routing
    is_gated: bool = True
    bias: bool = False
    # Gates are at most the limit, factors no further from 0, and the shift is added to them.
    limit: float = math.inf
    shift: float = 0.0
    router_bias: bool = False
    # Whether each expert has a bias that is added to its score to choose by.
    has_choice_bias: bool = False
    # Whether weights scale experts' inputs rather than their outputs.
    scales_inputs: bool = False
    # An MLP for every token, whose output is scaled and added.
    shared: MLPSpec | None = None
    shared_scale: float = 1.0
    # Whether a logistic gate of the token scales it too.
    shared_is_gated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """A mixer and a feed-forward block, and how the residual stream runs through them."""

    # None: the feed-forward block is all of the layer.
    mixer: AttentionSpec | LatentAttentionSpec | StateSpec | None
    # None: the mixer is all of the layer.
    ffn: MLPSpec | ExpertsSpec | None
    # It reads what attention reads, and their outputs are summed.
    beside_attention: StateSpec | None = None
    # Before each block, after each, or both; a norm after a block precedes the residual sum,
    # and one of the sum becomes the stream, as does one before a block if "renewing".
    norms: Literal["before", "before ffn", "after", "both", "of the sum", "renewing"] = "before"
    # Of the stream in the sums after the mixer and after the feed-forward block.
    stream_scales: tuple[float, ...] = (1.0, 1.0)
    # Both blocks read the same stream: with a norm for each, or one for both.
    parallel: Literal["no", "two norms", "one norm"] = "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """Embedding, layers, last norm and output head."""

    vocab_size: int
    hidden_size: int
    norm: NormSpec
    layers: tuple[LayerSpec, ...]
    tie_word_embeddings: bool
    embedding_scale: float = 1.0
    # Of what a block adds to the residual stream.
    residual_scale: float = 1.0
    # Logits are multiplied by it, then become cap * tanh(x / cap).
    logit_scale: float = 1.0
    logit_cap: float = 0.0
    # Of the embedding and of the head, if not hidden_size.
    embedding_size: int = 0
    # Rows of a table of learned positions, which are added to the embedding.
    num_learned_positions: int = 0
    # Rows of an encoder's table of token types, which are added too.
    num_token_types: int = 0
    # The first layer reads the normalised embedding.
    has_embedding_norm: bool = False
    has_last_norm: bool = True
    head_bias: bool = False


def decoder_spec(
    facts: ModelFacts,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    has_qk_norm: bool = False,
) -> DecoderSpec:
    """Llama's shape: RMSNorm before each block, rotation, a gated MLP, windows as `facts` say."""
    norm = NormSpec(eps=positive(facts, "rms_norm_eps", 1e-6))
    ffn = mlp_spec(facts, bias=mlp_bias)
    plain = attention_spec(
        facts,
        rotary=rotary_settings(facts),
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        qk_norm=norm if has_qk_norm else None,
    )
    return spec_of(facts, norm, windowed(facts, plain, ffn))


def attention_spec(facts: ModelFacts, **other: Any) -> AttentionSpec:
    """Attention with the heads of `facts` and the usual scale."""
    own = {"num_kv_heads": facts.num_kv_heads, "scale": facts.head_size**-0.5, **other}
    return AttentionSpec(num_heads=facts.num_heads, head_size=facts.head_size, **own)


def windowed(facts: ModelFacts, mixer: AttentionSpec, ffn: MLPSpec) -> list[LayerSpec]:
    """Layers alike but for their windows, which are as `facts` say."""
    windows = facts.layer_windows
    return [LayerSpec(mixer=replace(mixer, window=window), ffn=ffn) for window in windows]


def spec_of(facts: ModelFacts, norm: NormSpec, layers: Iterable[LayerSpec]) -> DecoderSpec:
    """A decoder of these layers, and the sizes of its vocabulary and its stream as `facts` say."""
    return DecoderSpec(
        vocab_size=facts.vocab_size,
        hidden_size=facts.hidden_size,
        norm=norm,
        layers=tuple(layers),
        tie_word_embeddings=bool(facts.hf_config.get("tie_word_embeddings")),
    )


def mlp_spec(facts: ModelFacts, **other: Any) -> MLPSpec:
    """The MLP of the fields intermediate_size and, unless `other` has an act, hidden_act."""
    act = other.pop("act", None) or facts.hf_config.get("hidden_act", "silu")
    return MLPSpec(intermediate_size=size(facts, "intermediate_size"), act=act, **other)


def biased_spec(facts: ModelFacts, **other: bool) -> DecoderSpec:
    """decoder_spec, with biases of all attention's layers if attention_bias says so."""
    bias = bool(facts.hf_config.get("attention_bias"))
    return decoder_spec(facts, qkv_bias=bias, output_bias=bias, **other)


def gpt_spec(facts: ModelFacts, eps: str, *, bias: bool = True) -> DecoderSpec:
    """GPT's shape: LayerNorm before each block, an MLP without a gate, no rotation, biases.

    `eps` names the norms' field; windows are as `facts` say.
    """
    biases = {"qkv_bias": bias, "output_bias": bias}
    plain = attention_spec(facts, num_kv_heads=facts.num_heads, rotary=None, **biases)
    ffn = MLPSpec(
        intermediate_size=size(facts, "intermediate_size")
        if facts.hf_config.get("intermediate_size")
        else 4 * facts.hidden_size,
        act=facts.hf_config["hidden_act"],
        is_gated=False,
        bias=bias,
    )
    norm = NormSpec(kind="layer", eps=positive(facts, eps, 1e-5), bias=True)
    return spec_of(facts, norm, windowed(facts, plain, ffn))


def with_layers(spec: DecoderSpec, mixer: Mapping[str, Any], **layer: Any) -> DecoderSpec:
    """`spec`, whose layers all attend, with other fields in each layer and in its mixer."""
    changed = (replace(attention, **mixer) for attention in _attentions(spec))
    return with_mixers(spec, changed, **layer)


def with_mixers(spec: DecoderSpec, mixers: Iterable[Any], **layer: Any) -> DecoderSpec:
    """`spec` with these mixers, one for each layer, and other fields in each layer."""
    layers = (
        replace(old, mixer=new, **layer) for old, new in zip(spec.layers, mixers, strict=True)
    )
    return replace(spec, layers=tuple(layers))


def cached_layers(spec: DecoderSpec, stored: CacheFormat) -> tuple[LayerCacheSpec, ...]:
    """The caches of the layers that have one, on this rank."""
    mixers = [layer.mixer for layer in spec.layers]
    return tuple(
        mixer.cache(stored)
        for mixer in mixers
        if isinstance(mixer, LatentAttentionSpec)
        or (isinstance(mixer, AttentionSpec) and mixer.has_cache)
    )


def with_rotaries(spec: DecoderSpec, rotaries: Sequence[RotarySettings | None]) -> DecoderSpec:
    """`spec`, whose layers all attend, with another rotation in each."""
    layers = zip(_attentions(spec), rotaries, strict=True)
    return with_mixers(spec, [replace(old, rotary=rotary) for old, rotary in layers])


def rotated_where(spec: DecoderSpec, is_rotated: Iterable[bool]) -> DecoderSpec:
    """`spec`, whose layers all attend, without the rotation of some."""
    layers = zip(_attentions(spec), is_rotated, strict=True)
    return with_rotaries(spec, [old.rotary if here else None for old, here in layers])


def _attentions(spec: DecoderSpec) -> Iterator[AttentionSpec]:
    for layer in spec.layers:
        assert isinstance(layer.mixer, AttentionSpec)
        yield layer.mixer


def rotary_settings(facts: ModelFacts, kind: str = "full_attention") -> RotarySettings:
    """The rotation of layers of a `kind`, as layer_types calls them."""
    rope = facts.hf_config["rope_parameters"]
    return RotarySettings(
        head_size=facts.head_size,
        max_position_embeddings=facts.hf_config.get("max_position_embeddings", facts.max_position),
        parameters=rope.get(kind, rope),
        has_frequency_factors=facts.has_rope_freqs,
    )


def size(facts: ModelFacts, key: str) -> int:
    """The whole positive number `key` of the configuration; raises CheckpointError."""
    value = facts.hf_config.get(key)
    if not isinstance(value, int) or value > LARGEST_SIZE:
        raise _not_positive(facts, key, value)
    return int(positive(facts, key, 0))


def positive(facts: ModelFacts, key: str, default: float) -> float:
    """The positive number `key` of the configuration; raises CheckpointError."""
    value = facts.hf_config.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise _not_positive(facts, key, value)
    return value


def _not_positive(facts: ModelFacts, key: str, value: object) -> CheckpointError:
    return facts.error(f"{key} is {value!r} in its configuration, not a positive number")
