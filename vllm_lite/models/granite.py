"""Granite and its relatives: Llama whose embedding, blocks, scores and logits are scaled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import AnyRule, Rule, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.llama import LlamaForCausalLM, gguf_pairs
from vllm_lite.models.spec import DecoderSpec, positive, size, with_layers


class GraniteForCausalLM(DecoderForCausalLM):
    """Llama with multipliers; logits are divided."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return _scaled(facts, logit_scale=1 / positive(facts, "logits_scaling", 1))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        return gguf_pairs(facts)


class HyperCLOVAXForCausalLM(DecoderForCausalLM):
    """Granite's multipliers, but logits are multiplied; a further norm after each block."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        spec = _scaled(facts, logit_scale=positive(facts, "logits_scaling", 1))
        is_normed = bool(facts.hf_config.get("use_post_norm"))
        return with_layers(spec, {}, norms="both" if is_normed else "before")

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        layer = "model.layers.*"
        return renamed(
            {
                f"{layer}.post_norm1": f"{layer}.mixer_output_norm",
                f"{layer}.post_norm2": f"{layer}.ffn_output_norm",
            }
        )


class MiniCPMForCausalLM(DecoderForCausalLM):
    """Hu et al., 2024: scales that follow from the width and the depth."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        width = size(facts, "dim_model_base") / facts.hidden_size
        return replace(
            LlamaForCausalLM.spec(facts),
            embedding_scale=positive(facts, "scale_emb", 1),
            residual_scale=positive(facts, "scale_depth", 1) * facts.num_layers**-0.5,
            logit_scale=width,
        )

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        return gguf_pairs(facts)


def _scaled(facts: ModelFacts, logit_scale: float) -> DecoderSpec:
    spec = replace(
        LlamaForCausalLM.spec(facts),
        embedding_scale=positive(facts, "embedding_multiplier", 1),
        residual_scale=positive(facts, "residual_multiplier", 1),
        logit_scale=logit_scale,
    )
    scale = facts.hf_config.get("attention_multiplier")
    if scale is None:
        return spec
    return with_layers(spec, {"scale": positive(facts, "attention_multiplier", 1)})
