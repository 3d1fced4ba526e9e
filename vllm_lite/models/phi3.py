"""Phi-3 and Phi-4: Llama whose checkpoints hold fused projections."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import Rule, fused
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import DecoderSpec, decoder_spec, size


class Phi3ForCausalLM(DecoderForCausalLM):
    """Llama without biases; qkv_proj and gate_up_proj are stored whole, in GGUF files too."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return decoder_spec(facts)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        layer = "model.layers.*"
        query, key = (n * facts.head_size for n in (facts.num_heads, facts.num_kv_heads))
        up = size(facts, "intermediate_size")
        qkv = {"q_proj": query, "k_proj": key, "v_proj": key}
        gate_up = {"gate_proj": up, "up_proj": up}
        is_gguf = facts.format == "gguf"
        return (
            fused(f"{layer}.self_attn.qkv_proj", f"{layer}.self_attn", qkv),
            fused(
                "blk.*.ffn_up" if is_gguf else f"{layer}.mlp.gate_up_proj", f"{layer}.mlp", gate_up
            ),
        )
