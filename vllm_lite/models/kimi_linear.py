"""Kimi Linear: Kimi Delta Attention, some layers of latent attention, and mixtures of experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.config.values import JsonView
from vllm_lite.layers.states.key_delta import KeyDeltaSpec
from vllm_lite.loader.weight_rules import AnyRule, log_of_negative, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.hybrid import layer_kinds, with_states
from vllm_lite.models.latent_attention import with_latents
from vllm_lite.models.mixtures import (
    LAYERS,
    MLP,
    check_field,
    expert_rules,
    expert_size,
    renamed_mlp,
    with_biased_experts,
)
from vllm_lite.models.spec import DecoderSpec, decoder_spec, positive, size

# In linear_attn_config, and beside it.
_SIZES = {
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
# Layers of GGUF files, beside the usual ones.
_FILES = {
    "ssm_dt": "",
    "ssm_norm": ".o_norm",
    "ssm_beta": ".b_proj",
    **{f"ssm_{gate}_{part}": f".{gate}_{part}_proj" for gate in "fg" for part in "ab"},
    **{f"ssm_conv1d_{part}": f".{part}_conv" for part in "qkv"},
}
_LISTS = {"full_attn_layers": "full_attention", "kda_layers": "linear_attention"}


class KimiLinearForCausalLM(DecoderForCausalLM):
    """Moonshot AI, 2025 (arXiv:2510.26692): no layer knows positions but by its state."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        check_field(facts, "mla_use_nope", True)
        check_field(facts, "moe_router_activation_func", "sigmoid")
        check_field(facts, "topk_method", "noaux_tc")
        check_field(facts, "moe_layer_freq", 1)
        facts = _with_linear_fields(facts)
        mixer = KeyDeltaSpec(
            num_heads=size(facts, "linear_num_heads"),
            head_size=size(facts, "linear_head_dim"),
            conv_kernel=size(facts, "linear_conv_kernel_dim"),
            act=facts.hf_config["hidden_act"],
            norm_eps=positive(facts, "rms_norm_eps", 1e-5),
        )
        attending = with_latents(decoder_spec(facts), facts, is_rotated=False)
        return with_biased_experts(facts, with_states(attending, mixer, layer_kinds(facts)))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        attention, sparse = f"{LAYERS}.self_attn", f"{LAYERS}.block_sparse_moe"
        names = {f"{attention}.{part}_conv1d": f"{attention}.{part}_conv" for part in "qkv"}
        return (
            *expert_rules(expert_size(facts), sparse),
            *renamed_mlp(f"{sparse}.shared_experts", f"{MLP}.shared_experts"),
            # So transformers writes layers without experts.
            *(replace(rule, is_alternative=True) for rule in renamed_mlp(sparse, MLP)),
            *renamed({f"blk.*.{name}": f"{attention}{own}" for name, own in _FILES.items()}),
            *renamed({"blk.*.ssm_a": attention}, transform=log_of_negative),
            *renamed({**names, f"{sparse}.gate": f"{MLP}.gate"}),
        )


def _with_linear_fields(facts: ModelFacts) -> ModelFacts:
    """`facts` with linear_attn_config's fields under their names beside it, and layer_types."""
    hf = facts.hf_config
    nested = hf.get("linear_attn_config") or {}
    fields = {own: nested[name] for name, own in _SIZES.items() if name in nested}
    kinds = hf.get("layer_types")
    if kinds is None and nested.keys() >= _LISTS.keys():
        for name in _LISTS:
            if not isinstance(nested[name] or [], list):
                raise facts.error(f"{name} is {nested[name]!r}, no list of layers")
        # Layers count from 1 there.
        told = {str(i): kind for name, kind in _LISTS.items() for i in _listed(facts, nested, name)}
        kinds = [told.get(str(i + 1)) for i in range(facts.num_layers)]
    elif kinds is None:
        kinds = [
            "linear_attention" if i % 4 or not i else "full_attention"
            for i in range(facts.num_layers)
        ]
    return replace(facts, hf_config={**hf, **fields, "layer_types": kinds})


def _listed(facts: ModelFacts, fields: JsonView, name: str) -> list[object]:
    if not isinstance(fields[name], list):
        raise facts.error(f"{name} of linear_attn_config is {fields[name]!r}, no list")
    return list(fields[name])
