"""GPT-2: learned positions, layer norms, and weights that are stored inputs by outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import Rule, fused, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import AttentionSpec, DecoderSpec, gpt_spec


class GPT2LMHeadModel(DecoderForCausalLM):
    """Radford et al., 2019."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf = facts.hf_config
        scale = facts.head_size**-0.5 if hf["scale_attn_weights"] else 1.0
        by_layer = bool(hf.get("scale_attn_by_inverse_layer_idx"))
        spec = gpt_spec(facts, "layer_norm_epsilon")
        layers = []
        for i, layer in enumerate(spec.layers):
            assert isinstance(layer.mixer, AttentionSpec)
            mixer = replace(layer.mixer, scale=scale / (i + 1) if by_layer else scale)
            layers.append(replace(layer, mixer=mixer))
        return replace(spec, layers=tuple(layers), num_learned_positions=facts.max_position)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        qkv = dict.fromkeys(("q_proj", "k_proj", "v_proj"), facts.hidden_size)
        rules: list[Rule] = []
        # The oldest checkpoints leave the first word out.
        for root in ("transformer.", ""):
            old, new = f"{root}h.*", "model.layers.*"
            rules += renamed(
                {
                    f"{root}wte": "model.embed_tokens",
                    f"{root}wpe": "model.embed_positions",
                    f"{root}ln_f": "model.norm",
                    f"{old}.ln_1": f"{new}.input_layernorm",
                    f"{old}.ln_2": f"{new}.post_attention_layernorm",
                }
            )
            rules += renamed(
                {
                    f"{old}.attn.c_proj": f"{new}.self_attn.o_proj",
                    f"{old}.mlp.c_fc": f"{new}.mlp.up_proj",
                    f"{old}.mlp.c_proj": f"{new}.mlp.down_proj",
                },
                is_transposed=True,
            )
            rules.append(fused(f"{old}.attn.c_attn", f"{new}.self_attn", qkv, is_transposed=True))
            rules.append(Rule(f"{old}.attn"))  # masks
        return rules
