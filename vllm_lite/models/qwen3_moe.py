"""Qwen3-MoE: Qwen3 whose feed-forward blocks are mixtures of experts, in all or some layers."""

from __future__ import annotations

from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import DecoderSpec, ExpertsSpec, decoder_spec, size


class Qwen3MoeForCausalLM(DecoderForCausalLM):
    """Qwen3's attention; the shares of a token's experts sum to 1 where norm_topk_prob says so."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf = facts.hf_config
        bias = bool(hf.get("attention_bias"))
        dense = decoder_spec(facts, qkv_bias=bias, output_bias=bias, has_qk_norm=True)
        if not hf.get("num_experts"):
            return dense
        experts = ExpertsSpec(
            num_experts=size(facts, "num_experts"),
            top_k=size(facts, "num_experts_per_tok"),
            intermediate_size=size(facts, "moe_intermediate_size"),
            act=hf.get("hidden_act", "silu"),
            is_renormalized=bool(hf.get("norm_topk_prob")),
        )
        period, dense_layers = size(facts, "decoder_sparse_step"), hf.get("mlp_only_layers") or ()
        layers = tuple(
            layer if (i + 1) % period or i in dense_layers else replace(layer, ffn=experts)
            for i, layer in enumerate(dense.layers)
        )
        return replace(dense, layers=layers)
