"""Nemotron, Arcee's AFM and Apertus: Llama's attention, MLPs without gates."""

from __future__ import annotations

from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.norm import NormSpec
from vllm_lite.loader.weight_rules import renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.llama import LlamaForCausalLM
from vllm_lite.models.spec import DecoderSpec, biased_spec, mlp_spec, positive, with_layers


class ArceeForCausalLM(LlamaForCausalLM):
    """Llama without gates."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return without_gates(facts, LlamaForCausalLM.spec(facts))


def without_gates(facts: ModelFacts, spec: DecoderSpec) -> DecoderSpec:
    """`spec` with an MLP that has no gate in each layer."""
    act, bias = facts.hf_config.get("hidden_act", "relu2"), bool(facts.hf_config.get("mlp_bias"))
    ffn = mlp_spec(facts, act=act, is_gated=False, bias=bias)
    return with_layers(spec, {}, ffn=ffn)


class NemotronForCausalLM(DecoderForCausalLM):
    """Parmar et al., 2024: layer norms, whose weights are stored minus 1."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        norm = NormSpec(
            kind="layer",
            eps=positive(facts, "norm_eps", 1e-5),
            bias=True,
            in_float32=True,
            weight_offset=1.0 if facts.format == "hf" else 0.0,
        )
        return replace(ArceeForCausalLM.spec(facts), norm=norm)


class ApertusForCausalLM(DecoderForCausalLM):
    """Apertus Team, 2025; its activation is xIELU."""

    rules = renamed(
        {
            "model.layers.*.attention_layernorm": "model.layers.*.input_layernorm",
            "model.layers.*.feedforward_layernorm": "model.layers.*.post_attention_layernorm",
        }
    )

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        plain = biased_spec(facts, has_qk_norm=True)
        return without_gates(facts, plain)
