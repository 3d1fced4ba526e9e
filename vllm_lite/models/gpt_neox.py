"""GPT-NeoX and Pythia: both blocks side by side, layer norms, a part of each head rotated."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import Rule, interleaved_heads, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import DecoderSpec, gpt_spec, rotary_settings, with_layers


class GPTNeoXForCausalLM(DecoderForCausalLM):
    """Black et al., 2022."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        bias = bool(facts.hf_config["attention_bias"])
        mixer = {"rotary": rotary_settings(facts), "qkv_bias": bias, "output_bias": bias}
        parallel = "two norms" if facts.hf_config["use_parallel_residual"] else "no"
        return with_layers(gpt_spec(facts, "layer_norm_eps"), mixer, parallel=parallel)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        old, new = "gpt_neox.layers.*", "model.layers.*"
        names = {
            "gpt_neox.embed_in": "model.embed_tokens",
            "gpt_neox.final_layer_norm": "model.norm",
            "embed_out": "lm_head",
            f"{old}.input_layernorm": f"{new}.input_layernorm",
            f"{old}.post_attention_layernorm": f"{new}.post_attention_layernorm",
            f"{old}.attention.dense": f"{new}.self_attn.o_proj",
            f"{old}.mlp.dense_h_to_4h": f"{new}.mlp.up_proj",
            f"{old}.mlp.dense_4h_to_h": f"{new}.mlp.down_proj",
        }
        return (
            *renamed(names),
            interleaved_heads(
                f"{old}.attention.query_key_value",
                f"{new}.self_attn",
                facts.num_heads,
                facts.head_size,
            ),
            Rule(f"{old}.attention"),  # masks
            Rule(f"{old}.attention.rotary_emb"),
        )
