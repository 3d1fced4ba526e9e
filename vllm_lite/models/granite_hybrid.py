"""Granite 4: Granite's multipliers over layers of Mamba 2 and of attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import AnyRule, fused, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.granite import GraniteForCausalLM
from vllm_lite.models.granite_moe import granite_experts, granite_rules
from vllm_lite.models.hybrid import hybrid_mamba2, layer_kinds
from vllm_lite.models.llama import gguf_pairs
from vllm_lite.models.mamba2 import mamba2_rules
from vllm_lite.models.spec import AttentionSpec, DecoderSpec, ExpertsSpec, LayerSpec, MLPSpec, size


class GraniteMoeHybridForCausalLM(DecoderForCausalLM):
    """IBM, 2025."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf = facts.hf_config
        plain, mamba = GraniteForCausalLM.spec(facts), hybrid_mamba2(facts)
        ffn: MLPSpec | ExpertsSpec = MLPSpec(
            intermediate_size=size(facts, "shared_intermediate_size"), act=hf["hidden_act"]
        )
        if hf.get("num_experts"):
            ffn = granite_experts(facts)
        kinds = (
            layer_kinds(facts)
            if hf.get("layer_types") is not None
            else ["state"] * len(plain.layers)
        )

        def layer(old: LayerSpec, kind: str) -> LayerSpec:
            if kind == "state":
                return replace(old, mixer=mamba, ffn=ffn)
            assert isinstance(old.mixer, AttentionSpec)
            is_rotated = hf.get("position_embedding_type") == "rope"
            rotary = old.mixer.rotary if is_rotated else None
            return replace(old, mixer=replace(old.mixer, rotary=rotary), ffn=ffn)

        return replace(plain, layers=tuple(map(layer, plain.layers, kinds)))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        layer = "model.layers.*"
        mamba = mamba2_rules(f"{layer}.mamba", f"{layer}.mixer", hybrid_mamba2(facts))
        mamba += gguf_pairs(facts)
        if facts.hf_config.get("num_experts"):
            return *granite_rules(facts), *mamba
        width = size(facts, "shared_intermediate_size")
        return (
            *renamed({f"{layer}.shared_mlp.output_linear": f"{layer}.mlp.down_proj"}),
            fused(
                f"{layer}.shared_mlp.input_linear",
                f"{layer}.mlp",
                {"gate_proj": width, "up_proj": width},
            ),
            *mamba,
        )
