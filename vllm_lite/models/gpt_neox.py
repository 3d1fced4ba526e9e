"""GPT-NeoX and Pythia: both blocks side by side, layer norms, a part of each head rotated."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.norm import NormSpec
from vllm_lite.loader.weight_rules import Rule, interleaved_heads, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import (
    AttentionSpec,
    DecoderSpec,
    LayerSpec,
    MLPSpec,
    positive,
    rotary_settings,
    size,
)


class GPTNeoXForCausalLM(DecoderForCausalLM):
    """Black et al., 2022."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf = facts.hf_config
        layer = LayerSpec(
            mixer=AttentionSpec(
                num_heads=facts.num_heads,
                num_kv_heads=facts.num_heads,
                head_size=facts.head_size,
                scale=facts.head_size**-0.5,
                rotary=rotary_settings(facts),
                qkv_bias=bool(hf["attention_bias"]),
                output_bias=bool(hf["attention_bias"]),
            ),
            ffn=MLPSpec(
                intermediate_size=size(facts, "intermediate_size"),
                act=hf["hidden_act"],
                is_gated=False,
                bias=True,
            ),
            parallel="two norms" if hf["use_parallel_residual"] else "no",
        )
        return DecoderSpec(
            vocab_size=facts.vocab_size,
            hidden_size=facts.hidden_size,
            norm=NormSpec(kind="layer", eps=positive(facts, "layer_norm_eps", 1e-5), bias=True),
            layers=(layer,) * facts.num_layers,
            tie_word_embeddings=bool(hf.get("tie_word_embeddings")),
        )

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
