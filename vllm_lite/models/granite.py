"""Granite and its relatives: Llama whose embedding, blocks, scores and logits are scaled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.kernels.reference.experts import Routing
from vllm_lite.loader.weight_rules import AnyRule, fused, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.hybrid import hybrid_mamba2, layer_kinds, with_states
from vllm_lite.models.latent_attention import with_latents
from vllm_lite.models.llama import LlamaForCausalLM, gguf_pairs
from vllm_lite.models.mamba import mamba2_rules
from vllm_lite.models.mixtures import (
    LAYERS,
    MLP,
    expert_rules,
    expert_size,
    routed_experts,
    stacked_experts,
    with_experts,
)
from vllm_lite.models.spec import DecoderSpec, ExpertsSpec, MLPSpec, positive, size, with_layers


class GraniteForCausalLM(LlamaForCausalLM):
    """Llama with multipliers; logits are divided."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return _scaled(facts, logit_scale=1 / positive(facts, "logits_scaling", 1))


class HyperCLOVAXForCausalLM(DecoderForCausalLM):
    """Granite's multipliers, but logits are multiplied; a further norm after each block."""

    rules = renamed(
        {
            f"{LAYERS}.post_norm1": f"{LAYERS}.mixer_output_norm",
            f"{LAYERS}.post_norm2": f"{LAYERS}.ffn_output_norm",
        }
    )

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        spec = _scaled(facts, logit_scale=positive(facts, "logits_scaling", 1))
        is_normed = bool(facts.hf_config.get("use_post_norm"))
        return with_layers(spec, {}, norms="both" if is_normed else "before")


class MiniCPMForCausalLM(LlamaForCausalLM):
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


class GraniteMoeForCausalLM(GraniteForCausalLM):
    """IBM, 2024."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return with_experts(GraniteForCausalLM.spec(facts), granite_experts(facts))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        return [*gguf_pairs(facts), *granite_rules(facts)]


def granite_experts(facts: ModelFacts) -> ExpertsSpec:
    """Experts whose weights are the softmax of the chosen logits, and the MLP beside them."""
    routed = routed_experts(facts, Routing(top_k=size(facts, "num_experts_per_tok")))
    if not facts.hf_config.get("shared_intermediate_size"):
        return routed
    width = size(facts, "shared_intermediate_size")
    return replace(routed, shared=MLPSpec(intermediate_size=width, act=routed.act))


def granite_rules(facts: ModelFacts) -> list[AnyRule]:
    """Granite's names: experts in one tensor, gates and factors as one matrix."""
    width, old = expert_size(facts), f"{LAYERS}.block_sparse_moe"
    shared = facts.hf_config.get("shared_intermediate_size") or 0
    sizes = {"gate_proj": shared, "up_proj": shared}
    stored = ("input_linear.weight", "output_linear.weight")
    return [
        *expert_rules(width, old),
        *stacked_experts(old, f"{MLP}.experts.*", width, suffixes=stored),
        fused(f"{LAYERS}.shared_mlp.input_linear", f"{MLP}.shared_experts", sizes),
        *renamed(
            {
                f"{old}.router": f"{MLP}.gate",
                f"{old}.router.layer": f"{MLP}.gate",
                f"{LAYERS}.shared_mlp.output_linear": f"{MLP}.shared_experts.down_proj",
            }
        ),
    ]


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
        is_rotated = hf.get("position_embedding_type") == "rope"
        attending = with_layers(plain, {} if is_rotated else {"rotary": None}, ffn=ffn)
        return with_states(attending, mamba, kinds)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        mamba = mamba2_rules(f"{LAYERS}.mamba", f"{LAYERS}.mixer", hybrid_mamba2(facts))
        mamba += gguf_pairs(facts)
        if facts.hf_config.get("num_experts"):
            return *granite_rules(facts), *mamba
        width = size(facts, "shared_intermediate_size")
        return (
            *renamed({f"{LAYERS}.shared_mlp.output_linear": f"{LAYERS}.mlp.down_proj"}),
            fused(
                f"{LAYERS}.shared_mlp.input_linear",
                f"{LAYERS}.mlp",
                {"gate_proj": width, "up_proj": width},
            ),
            *mamba,
        )


class MiniCPM3ForCausalLM(DecoderForCausalLM):
    """OpenBMB, 2024."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return with_latents(MiniCPMForCausalLM.spec(facts), facts)
