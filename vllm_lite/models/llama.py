"""Llama and the many models of its shape: the plain decoder, biases as its config says."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import Rule, interleaved_pairs, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import DecoderSpec, decoder_spec


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
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
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
