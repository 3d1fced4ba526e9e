"""Falcon H1: attention and Mamba 2 side by side in each layer, and factors all over.

Factors of what linear layers read and write are multiplied into their weights when loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.states.mamba2 import Mamba2Spec
from vllm_lite.loader.weight_rules import Rule, renamed, times
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.hybrid import hybrid_mamba2
from vllm_lite.models.mamba import mamba2_rules
from vllm_lite.models.spec import DecoderSpec, biased_spec, positive


class FalconH1ForCausalLM(DecoderForCausalLM):
    """Falcon-LLM Team, 2025."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        mixer = _mixer(facts)
        plain = biased_spec(facts, mlp_bias=bool(facts.hf_config.get("mlp_bias")))
        layers = (replace(layer, beside_attention=mixer) for layer in plain.layers)
        return replace(
            plain,
            layers=tuple(layers),
            embedding_scale=positive(facts, "embedding_multiplier", 1.0),
            logit_scale=positive(facts, "lm_head_multiplier", 1.0),
        )

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        layer, into = "model.layers.*", positive(facts, "ssm_in_multiplier", 1.0)
        names = {
            "model.final_layernorm": "model.norm",
            f"{layer}.pre_ff_layernorm": f"{layer}.post_attention_layernorm",
            f"{layer}.feed_forward.up_proj": f"{layer}.mlp.up_proj",
        }
        gate, down = _factors(facts, "mlp_multipliers", 2)
        parts = ("z_proj", "x_proj", "b_proj", "c_proj", "dt_proj")
        factors = dict(zip(parts, _factors(facts, "ssm_multipliers", 5), strict=True))
        attended = positive(facts, "attention_in_multiplier", 1.0)
        key = positive(facts, "key_multiplier", 1.0)
        scaled = {
            f"{layer}.feed_forward.gate_proj": (f"{layer}.mlp.gate_proj", times(gate)),
            f"{layer}.feed_forward.down_proj": (f"{layer}.mlp.down_proj", times(down)),
            f"{layer}.self_attn.q_proj": (f"{layer}.self_attn.q_proj", times(attended, 1.0)),
            f"{layer}.self_attn.k_proj": (f"{layer}.self_attn.k_proj", times(attended * key, key)),
            f"{layer}.self_attn.v_proj": (f"{layer}.self_attn.v_proj", times(attended, 1.0)),
            f"{layer}.self_attn.o_proj": (
                f"{layer}.self_attn.o_proj",
                times(positive(facts, "attention_out_multiplier", 1.0)),
            ),
            f"{layer}.mamba.out_proj": (
                f"{layer}.mixer.out_proj",
                times(positive(facts, "ssm_out_multiplier", 1.0)),
            ),
        }
        inputs = {part: times(into * factor, factor) for part, factor in factors.items()}
        return (
            *renamed(names),
            *mamba2_rules(f"{layer}.mamba", f"{layer}.mixer", _mixer(facts), inputs),
            *(
                rule
                for old, (new, transform) in scaled.items()
                for rule in renamed({old: new}, transform=transform)
            ),
        )


def _mixer(facts: ModelFacts) -> Mamba2Spec:
    hf = facts.hf_config
    if not hf.get("mamba_rms_norm"):
        return replace(hybrid_mamba2(facts), norm="none")
    is_last = hf.get("mamba_norm_before_gate", True)
    return replace(hybrid_mamba2(facts), norm="gated last" if is_last else "gated first")


def _factors(facts: ModelFacts, key: str, count: int) -> list[float]:
    """`count` numbers, each 1 where the configuration has none; raises CheckpointError."""
    factors = facts.hf_config.get(key) or [1.0] * count
    if not isinstance(factors, list) or len(factors) != count:
        raise facts.error(f"{key} is {factors!r} in its configuration, not {count} numbers")
    return [float(factor) for factor in factors]
