"""Nemotron-H: each layer is one block, of Mamba 2, of attention without positions, an MLP
or a mixture of experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.norm import NormSpec
from vllm_lite.layers.states.mamba2 import Mamba2Spec
from vllm_lite.loader.weight_rules import Rule, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.hybrid import KINDS, hybrid_mamba2, layer_kinds
from vllm_lite.models.mamba import mamba2_rules
from vllm_lite.models.mixtures import biased_routing
from vllm_lite.models.spec import (
    DecoderSpec,
    ExpertsSpec,
    LayerSpec,
    MLPSpec,
    attention_spec,
    mlp_spec,
    positive,
    size,
    spec_of,
)

_PATTERN = {"M": "state", "*": "attention", "-": "mlp", "E": "moe"}


class NemotronHForCausalLM(DecoderForCausalLM):
    """NVIDIA, 2025."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf = facts.hf_config
        eps = positive(facts, "layer_norm_epsilon", 1e-5)
        bias = bool(hf.get("mlp_bias"))
        mlp = mlp_spec(facts, act=hf["mlp_hidden_act"], is_gated=False, bias=bias)
        layers = {
            "attention": LayerSpec(mixer=attention_spec(facts, rotary=None), ffn=None),
            "state": LayerSpec(mixer=_mixer(facts), ffn=None),
            "mlp": LayerSpec(mixer=None, ffn=mlp),
        }
        kinds = _kinds(facts)
        if "moe" in kinds:
            layers["moe"] = LayerSpec(mixer=None, ffn=_experts(facts, mlp))
        spec = spec_of(facts, NormSpec(eps=eps), [layers[kind] for kind in kinds])
        # The field ties nothing in the programs that wrote other files.
        return spec if facts.format == "gguf" else replace(spec, tie_word_embeddings=False)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        files = {"attn_norm": "input_layernorm", "ffn_norm": "input_layernorm"}
        rules = renamed({f"blk.*.{old}": f"model.layers.*.{own}" for old, own in files.items()})
        for root in ("backbone", "model"):
            old, new = f"{root}.layers.*", "model.layers.*"
            names = {
                f"{root}.embeddings": "model.embed_tokens",
                f"{root}.norm_f": "model.norm",
                f"{old}.norm": f"{new}.input_layernorm",
            }
            parts = {
                "self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"),
                "mlp": (
                    *("up_proj", "down_proj", "gate", "experts.*.up_proj", "experts.*.down_proj"),
                    *("shared_experts.up_proj", "shared_experts.down_proj"),
                ),
            }
            names |= {
                f"{old}.mixer.{part}": f"{new}.{block}.{part}"
                for block, held in parts.items()
                for part in held
            }
            mixer = _mixer(facts)
            rules += [*renamed(names), *mamba2_rules(f"{old}.mixer", f"{new}.mixer", mixer)]
        return rules


def _experts(facts: ModelFacts, mlp: MLPSpec) -> ExpertsSpec:
    """A mixture of MLPs without gates; raises CheckpointError for one behind a narrower stream."""
    hf = facts.hf_config
    if hf.get("moe_latent_size"):
        raise facts.error(
            f"moe_latent_size is {hf['moe_latent_size']}; experts behind a narrower stream are not "
            "supported"
        )
    width = size(facts, "moe_shared_expert_intermediate_size")
    return ExpertsSpec(
        num_experts=size(facts, "n_routed_experts"),
        intermediate_size=size(facts, "moe_intermediate_size"),
        act=mlp.act,
        routing=biased_routing(facts),
        is_gated=False,
        has_choice_bias=True,
        shared=replace(mlp, intermediate_size=width),
    )


def _mixer(facts: ModelFacts) -> Mamba2Spec:
    """The state mixer, which is as wide as its heads, whatever `expand` says."""
    bias = bool(facts.hf_config.get("use_bias"))
    width = size(facts, "mamba_n_heads") * size(facts, "mamba_d_head")
    told = replace(facts, hf_config={**facts.hf_config, "mamba_d_ssm": width})
    return replace(hybrid_mamba2(told, "layer_norm_epsilon"), bias=bias, out_bias=bias)


def _kinds(facts: ModelFacts) -> list[str]:
    """The kind of each layer, by its name or by its letter in a pattern."""
    pattern = facts.hf_config.get("hybrid_override_pattern")
    if facts.hf_config.get("layer_types") is None and isinstance(pattern, str):
        return layer_kinds(facts, _PATTERN, list(pattern))
    return layer_kinds(facts, KINDS | {"mlp": "mlp", "moe": "moe"})
