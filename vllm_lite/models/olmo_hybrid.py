"""OLMo Hybrid: the gated delta rule, and some layers of OLMo 3's attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import Rule, renamed
from vllm_lite.models.decoder import DecoderForCausalLM, DecoderLayer
from vllm_lite.models.hybrid import layer_kinds
from vllm_lite.models.olmo import Olmo2ForCausalLM
from vllm_lite.models.options import BuildOptions
from vllm_lite.models.qwen3_next import delta_rules, delta_spec
from vllm_lite.models.spec import AttentionSpec, DecoderSpec


class OlmoHybridForCausalLM(DecoderForCausalLM):
    """OLMo Team, 2026: norms stand after the blocks of attention, and before the others."""

    def __init__(self, facts: ModelFacts, options: BuildOptions) -> None:
        super().__init__(facts, options)
        # One name for both, since it is one in checkpoints.
        for layer in self.model.layers:
            assert isinstance(layer, DecoderLayer)
            if layer.mixer_output_norm is None:
                layer.mixer_output_norm = layer.post_attention_layernorm
                del layer.post_attention_layernorm

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        plain, hf = Olmo2ForCausalLM.spec(facts), facts.hf_config
        scale = 2.0 if hf.get("linear_allow_neg_eigval") else 1.0
        delta = replace(delta_spec(facts), norm_eps=1e-5, beta_scale=scale)
        layers = []
        for layer, kind in zip(plain.layers, layer_kinds(facts), strict=True):
            assert isinstance(layer.mixer, AttentionSpec)
            is_rotated = hf.get("rope_parameters", {}).get("rope_theta") is not None
            rotary = layer.mixer.rotary if is_rotated else None
            attention = replace(layer, mixer=replace(layer.mixer, rotary=rotary))
            state = replace(layer, mixer=delta, norms="before")
            layers.append(attention if kind == "attention" else state)
        return replace(plain, layers=tuple(layers))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        layer, delta = "model.layers.*", delta_spec(facts)
        old, new = f"{layer}.linear_attn", f"{layer}.mixer"
        names = {
            f"{layer}.attention_layer_norm": f"{layer}.input_layernorm",
            f"{layer}.feedforward_layer_norm": f"{layer}.mixer_output_norm",
            f"{layer}.post_attention_layernorm": f"{layer}.mixer_output_norm",
            f"{layer}.post_feedforward_layernorm": f"{layer}.ffn_output_norm",
            f"{old}.g_proj": f"{new}.z_proj",
            f"{old}.a_proj": f"{new}.decay_proj",
            f"{old}.b_proj": f"{new}.beta_proj",
            f"{old}.o_norm": f"{new}.norm",
            f"{old}.o_proj": f"{new}.out_proj",
        }
        names |= {f"{old}.{part}_proj": f"{new}.{part}_proj" for part in "qkv"}
        names |= {f"{old}.{part}_conv1d": f"{new}.{part}_conv" for part in "qkv"}
        return *delta_rules(old, new, delta), *renamed(names)
