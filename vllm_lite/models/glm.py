"""GLM: neighbouring pairs of a part of each head are rotated; GLM-4.5: experts as DeepSeek-V3's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import AnyRule, Rule, fused, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.mixtures import FILE_NORMS, expert_rules, with_biased_experts
from vllm_lite.models.spec import DecoderSpec, decoder_spec, rotary_settings, size, with_layers


class GlmForCausalLM(DecoderForCausalLM):
    """GLM Team, 2024."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        plain = decoder_spec(facts, qkv_bias=bool(facts.hf_config["attention_bias"]))
        rotary = replace(rotary_settings(facts), is_interleaved=True)
        return with_layers(plain, {"rotary": rotary})

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        layer, up = "model.layers.*", size(facts, "intermediate_size")
        halves = {"gate_proj": up, "up_proj": up}
        source = "blk.*.ffn_up" if facts.format == "gguf" else f"{layer}.mlp.gate_up_proj"
        return (fused(source, f"{layer}.mlp", halves),)


class Glm4ForCausalLM(GlmForCausalLM):
    """GLM-4-0414: norms after both blocks as well."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return with_layers(GlmForCausalLM.spec(facts), {}, norms="both")

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        layer = "model.layers.*"
        names = {"post_self_attn_layernorm": "mixer", "post_mlp_layernorm": "ffn"}
        norms = {f"{layer}.{old}": f"{layer}.{new}_output_norm" for old, new in names.items()}
        return (*GlmForCausalLM.weight_rules(facts), *renamed(norms))


class Glm4MoeForCausalLM(DecoderForCausalLM):
    """Zhipu AI, 2025."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        bias = bool(facts.hf_config.get("attention_bias"))
        is_normed = bool(facts.hf_config.get("use_qk_norm"))
        dense = decoder_spec(facts, qkv_bias=bias, has_qk_norm=is_normed)
        return with_biased_experts(facts, dense)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        return [*FILE_NORMS, *expert_rules(size(facts, "moe_intermediate_size"))]
