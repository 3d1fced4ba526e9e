"""StableLM: Llama with LayerNorm and part of each head rotated, blocks maybe side by side."""

from __future__ import annotations

from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.norm import NormSpec
from vllm_lite.loader.weight_rules import renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import DecoderSpec, decoder_spec, positive, with_layers


class StableLmForCausalLM(DecoderForCausalLM):
    """Bellagente et al., 2024."""

    rules = renamed(
        {
            f"model.layers.*.self_attn.{name}_layernorm.norms.*": (
                f"model.layers.*.self_attn.{name}_norm.norms.*"
            )
            for name in "qk"
        }
    )

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf = facts.hf_config
        plain = decoder_spec(facts, qkv_bias=bool(hf["use_qkv_bias"]))
        norm = NormSpec(kind="layer", eps=positive(facts, "layer_norm_eps", 1e-5), bias=True)
        mixer = {}
        if hf["qk_layernorm"]:
            mixer = {
                "qk_norm": replace(norm, bias=False, is_stored_by_head=facts.format == "hf"),
                "qk_norm_weight": "by head",
            }
        parallel = "one norm" if hf["use_parallel_residual"] else "no"
        return replace(with_layers(plain, mixer, parallel=parallel), norm=norm)
