"""GPT-BigCode (SantaCoder, StarCoder): GPT-2 whose queries share one key and one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import Rule, fused, interleaved_heads, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import DecoderSpec, gpt_spec, with_layers


class GPTBigCodeForCausalLM(DecoderForCausalLM):
    """Li et al., 2023 (arXiv:2305.06161)."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf = facts.hf_config
        mixer = {
            "num_kv_heads": 1 if hf["multi_query"] else facts.num_heads,
            "scale": facts.head_size**-0.5 if hf["scale_attn_weights"] else 1.0,
        }
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
            f"{old}.attn.c_proj": f"{new}.self_attn.o_proj",
            f"{old}.mlp.c_fc": f"{new}.mlp.up_proj",
            f"{old}.mlp.c_proj": f"{new}.mlp.down_proj",
        }
        source, parent, size = f"{old}.attn.c_attn", f"{new}.self_attn", facts.head_size
        if facts.hf_config["multi_query"]:
            sizes = {"q_proj": facts.num_heads * size, "k_proj": size, "v_proj": size}
            qkv = fused(source, parent, sizes)
        else:
            qkv = interleaved_heads(source, parent, facts.num_heads, size)
        return (*renamed(names), qkv, Rule(f"{old}.attn"))  # masks
