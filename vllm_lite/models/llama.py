"""Llama and the many models of its shape: the plain decoder, biases as its config says."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_lite.config.checkpoints.family_config import rotated_layers
from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.rotary import QueryScaling
from vllm_lite.loader.weight_rules import AnyRule, Rule, interleaved_pairs, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import (
    DecoderSpec,
    decoder_spec,
    rotary_settings,
    rotated_where,
    with_layers,
)


class LlamaForCausalLM(DecoderForCausalLM):
    """The plain decoder (Touvron et al., 2023)."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        bias = bool(facts.hf_config.get("attention_bias"))
        return decoder_spec(
            facts,
            qkv_bias=bias,
            output_bias=bool(facts.hf_config.get("attention_out_bias", bias)),
            mlp_bias=bool(facts.hf_config.get("mlp_bias")),
        )

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        return gguf_pairs(facts)


class SeedOssForCausalLM(LlamaForCausalLM):
    """Llama that GGUF files keep in its own order."""

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        own = "model.layers.*.post_attention_layernorm"
        return renamed({"blk.*.post_attention_norm": own}) if facts.format == "gguf" else ()


def gguf_pairs(facts: ModelFacts) -> Sequence[Rule]:
    """The order of queries and keys after llama.cpp's converter, for Llama and Mistral."""
    if facts.format != "gguf":
        return ()
    heads = {"q": facts.num_heads, "k": facts.num_kv_heads}
    return [
        interleaved_pairs(
            f"blk.*.attn_{name}", f"model.layers.*.self_attn.{name}_proj", count, facts.head_size
        )
        for name, count in heads.items()
    ]


class Qwen2ForCausalLM(DecoderForCausalLM):
    """Qwen2 and Qwen2.5: biases of queries, keys and values, which no configuration states."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return decoder_spec(facts, qkv_bias=True)


class SmolLM3ForCausalLM(LlamaForCausalLM):
    """One layer in so many, or those marked 0 by no_rope_layers, attends without positions."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        is_rotated = rotated_layers(facts.path, facts.hf_config, facts.num_layers)
        return rotated_where(LlamaForCausalLM.spec(facts), is_rotated)


class MistralForCausalLM(LlamaForCausalLM):
    """Without biases; windows in every layer or in those that layer_types names (Ministral)."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return decoder_spec(facts)


class Ministral3ForCausalLM(MistralForCausalLM):
    """Queries grow with their positions, beyond the length of the first training."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        spec, rope = decoder_spec(facts), rotary_settings(facts)
        if not rope.parameters.get("llama_4_scaling_beta"):
            return spec
        scaling = QueryScaling(
            strength=rope.number("llama_4_scaling_beta"),
            period=rope.number("original_max_position_embeddings"),
        )
        return with_layers(spec, {"query_scaling": scaling})
