"""GPT-Neo: GPT-2 with windows in some layers and scores that are not scaled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import Rule, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import DecoderSpec, gpt_spec, with_layers


class GPTNeoForCausalLM(DecoderForCausalLM):
    """Black et al., 2021."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        mixer = {"scale": 1.0, "qkv_bias": False}
        spec = with_layers(gpt_spec(facts, "layer_norm_epsilon"), mixer)
        return replace(spec, num_learned_positions=facts.max_position)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        old, new = "transformer.h.*", "model.layers.*"
        names = {
            "transformer.wte": "model.embed_tokens",
            "transformer.wpe": "model.embed_positions",
            "transformer.ln_f": "model.norm",
            f"{old}.ln_1": f"{new}.input_layernorm",
            f"{old}.ln_2": f"{new}.post_attention_layernorm",
            f"{old}.attn.attention.out_proj": f"{new}.self_attn.o_proj",
            f"{old}.mlp.c_fc": f"{new}.mlp.up_proj",
            f"{old}.mlp.c_proj": f"{new}.mlp.down_proj",
        }
        for name in ("q_proj", "k_proj", "v_proj"):
            names[f"{old}.attn.attention.{name}"] = f"{new}.self_attn.{name}"
        return (*renamed(names), Rule(f"{old}.attn.attention"))  # masks
