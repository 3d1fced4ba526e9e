"""DecoderSpec: what sets one decoder-only transformer apart from another, as plain data.

A field is here when real families differ in it; what only one family does is a block class of
its own. Read from ModelFacts, with the defaults of the family's configuration.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_lite.config.facts import ModelFacts
from vllm_lite.errors import CheckpointError
from vllm_lite.layers.rotary import RotarySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A pre-norm decoder with rotary attention and a gated MLP."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    hidden_act: str
    norm_eps: float
    rotary: RotarySettings
    tie_word_embeddings: bool
    # Of each layer: how many tokens it looks back, itself included; None is all of them.
    sliding_windows: tuple[int | None, ...]
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    # Each head of the queries and of the keys is normalised before it is rotated.
    qk_norm: bool = False

    @property
    def num_layers(self) -> int:
        return len(self.sliding_windows)


def decoder_spec(facts: ModelFacts) -> DecoderSpec:
    """The plain decoder of `facts`: full attention, and biases where the config asks for them."""
    hf = facts.hf_config
    attention_bias = bool(hf.get("attention_bias", False))
    return DecoderSpec(
        vocab_size=facts.vocab_size,
        hidden_size=facts.hidden_size,
        intermediate_size=_size(facts, "intermediate_size"),
        num_heads=facts.num_heads,
        num_kv_heads=facts.num_kv_heads,
        head_size=facts.head_size,
        hidden_act=hf.get("hidden_act", "silu"),
        norm_eps=_positive(facts, "rms_norm_eps", 1e-6),
        rotary=RotarySettings(
            head_size=facts.head_size,
            max_position_embeddings=hf.get("max_position_embeddings", facts.max_position),
            parameters=hf["rope_parameters"],
            has_frequency_factors=facts.has_rope_freqs,
        ),
        tie_word_embeddings=bool(hf.get("tie_word_embeddings", False)),
        sliding_windows=(None,) * facts.num_layers,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=bool(hf.get("mlp_bias", False)),
    )


def windows_by_layer(facts: ModelFacts) -> tuple[int | None, ...]:
    """Windows where a config switches them on and names the layers (Qwen2 and Qwen3)."""
    hf = facts.hf_config
    window = hf.get("sliding_window") if hf.get("use_sliding_window") else None
    kinds = hf.get("layer_types")
    if not window:
        return (None,) * facts.num_layers
    if kinds is None:
        first = hf.get("max_window_layers", 28)
        return tuple(window if i >= first else None for i in range(facts.num_layers))
    if len(kinds) != facts.num_layers:
        raise CheckpointError(
            f"{facts.path}: layer_types names {len(kinds)} layers of {facts.num_layers}"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _size(facts: ModelFacts, key: str) -> int:
    value = facts.hf_config.get(key)
    if not isinstance(value, int):
        raise _not_positive(facts, key, value)
    return int(_positive(facts, key, 0))


def _positive(facts: ModelFacts, key: str, default: float) -> float:
    value = facts.hf_config.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise _not_positive(facts, key, value)
    return value


def _not_positive(facts: ModelFacts, key: str, value: object) -> CheckpointError:
    return CheckpointError(
        f"{facts.path}: {key} is {value!r} in its configuration, not a positive number"
    )
