"""MiMo-V2-Flash: windows with sinks and more heads of keys; values narrower than keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.errors import CheckpointError
from vllm_lite.loader.weight_rules import Alias, AnyRule, renamed, times
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.mixtures import LAYERS, check_field, expert_rules, with_biased_experts
from vllm_lite.models.spec import AttentionSpec, DecoderSpec, decoder_spec, rotary_settings, size


class MiMoV2FlashForCausalLM(DecoderForCausalLM):
    """Xiaomi, 2025."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf, kinds = facts.hf_config, facts.hf_config.get("layer_types")
        for name, own in (("num_attention_heads", facts.num_heads), ("head_dim", facts.head_size)):
            check_field(facts, f"swa_{name}", own)
        check_field(facts, "swa_v_head_dim", hf["v_head_dim"])
        if kinds is None:
            raise CheckpointError(f"{facts.path} has neither layer_types nor hybrid_layer_pattern")
        dense = decoder_spec(facts, qkv_bias=bool(hf.get("attention_bias")))
        layers = []
        for layer, kind in zip(dense.layers, kinds, strict=True):
            assert isinstance(layer.mixer, AttentionSpec)
            is_local = kind == "sliding_attention"
            place = "swa" if is_local else "full"
            attention = replace(
                layer.mixer,
                value_size=size(facts, "v_head_dim"),
                rotary=rotary_settings(facts, kind),
                has_sinks=bool(hf.get(f"add_{place}_attention_sink_bias", is_local)),
            )
            if is_local:
                num_kv_heads = hf.get("swa_num_key_value_heads") or 2 * facts.num_kv_heads
                attention = replace(attention, num_kv_heads=num_kv_heads)
            layers.append(replace(layer, mixer=attention))
        return with_biased_experts(facts, replace(dense, layers=tuple(layers)))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        value, scale = f"{LAYERS}.self_attn.v_proj", facts.hf_config.get("attention_value_scale")
        stored = "blk.*.attn_v" if facts.format == "gguf" else value
        return [
            *expert_rules(size(facts, "moe_intermediate_size")),
            *renamed({stored: value}, transform=times(1.0 if scale is None else scale)),
            Alias(f"{LAYERS}.self_attn.attention_sink_bias", f"{LAYERS}.self_attn.sinks"),
        ]
