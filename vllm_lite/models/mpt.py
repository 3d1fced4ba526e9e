"""MPT: ALiBi instead of positions, projections that may be clamped, and maybe no biases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.score_terms import alibi_slopes
from vllm_lite.loader.weight_rules import Rule, fused, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import DecoderSpec, MLPSpec, gpt_spec, size, with_layers

# What must be so, in attn_config or beside it.
_NEEDED = {
    "norm_type": "layernorm",
    "attn_type": "multihead_attention",
    "alibi": True,
    "prefix_lm": False,
    "qk_ln": False,
    "qk_gn": False,
    "rope": False,
    "sliding_window_size": -1,
}
_NUMBERS = ("alibi_bias_max", "softmax_scale", "clip_qkv")


class MptForCausalLM(DecoderForCausalLM):
    """MosaicML, 2023."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        attention = _attn_config(facts)
        bias = not facts.hf_config["no_bias"]
        largest = attention.get("alibi_bias_max") or 8
        mixer = {
            "alibi_slopes": alibi_slopes(facts.num_heads, largest),
            "scale": attention.get("softmax_scale") or facts.head_size**-0.5,
            "qkv_clip": attention.get("clip_qkv") or None,
        }
        ffn = MLPSpec(
            intermediate_size=size(facts, "expansion_ratio") * facts.hidden_size,
            act="gelu",
            is_gated=False,
            bias=bias,
        )
        spec = with_layers(gpt_spec(facts, "layer_norm_epsilon", bias=bias), mixer, ffn=ffn)
        return replace(spec, norm=replace(spec.norm, bias=bias))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        old, new = "transformer.blocks.*", "model.layers.*"
        names = {
            "transformer.wte": "model.embed_tokens",
            "transformer.norm_f": "model.norm",
            f"{old}.norm_1": f"{new}.input_layernorm",
            f"{old}.norm_2": f"{new}.post_attention_layernorm",
            f"{old}.attn.out_proj": f"{new}.self_attn.o_proj",
            f"{old}.ffn.up_proj": f"{new}.mlp.up_proj",
            f"{old}.ffn.down_proj": f"{new}.mlp.down_proj",
        }
        sizes = dict.fromkeys(("q_proj", "k_proj", "v_proj"), facts.hidden_size)
        return (*renamed(names), fused(f"{old}.attn.Wqkv", f"{new}.self_attn", sizes))


def _attn_config(facts: ModelFacts) -> dict[str, Any]:
    """The configuration's attn_config; raises CheckpointError for what cannot be run."""
    told = facts.hf_config.get("attn_config") or {}
    stated = {"norm_type": str(facts.hf_config["norm_type"]).removeprefix("low_precision_"), **told}
    for name, needed in _NEEDED.items():
        if (value := stated.get(name, needed)) != needed:
            raise facts.error(
                f"{name} is {value!r} in its configuration; MPT runs here with {needed!r}"
            )
    for name in _NUMBERS:
        value = told.get(name) or 1.0
        if not isinstance(value, int | float) or not 0 < value < 2**20:
            raise facts.error(f"{name} is {value!r}, not a positive number")
    return told
