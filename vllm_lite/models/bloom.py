"""BLOOM: ALiBi instead of positions, and a norm after the embedding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.score_terms import alibi_slopes
from vllm_lite.loader.weight_rules import Rule, interleaved_heads, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import DecoderSpec, gpt_spec, with_layers


class BloomForCausalLM(DecoderForCausalLM):
    """Le Scao et al., 2022."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        spec = gpt_spec(facts, "layer_norm_epsilon")
        spec = with_layers(spec, {"alibi_slopes": alibi_slopes(facts.num_heads)})
        return replace(spec, has_embedding_norm=True)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        rules: list[Rule] = []
        # The first checkpoints leave the first word out.
        for root in ("transformer.", ""):
            old, new = f"{root}h.*", "model.layers.*"
            names = {
                f"{root}word_embeddings": "model.embed_tokens",
                f"{root}word_embeddings_layernorm": "model.embed_norm",
                f"{root}ln_f": "model.norm",
                f"{old}.input_layernorm": f"{new}.input_layernorm",
                f"{old}.post_attention_layernorm": f"{new}.post_attention_layernorm",
                f"{old}.self_attention.dense": f"{new}.self_attn.o_proj",
                f"{old}.mlp.dense_h_to_4h": f"{new}.mlp.up_proj",
                f"{old}.mlp.dense_4h_to_h": f"{new}.mlp.down_proj",
            }
            qkv = f"{old}.self_attention.query_key_value"
            heads = (facts.num_heads, facts.head_size)
            rules += [*renamed(names), interleaved_heads(qkv, f"{new}.self_attn", *heads)]
        return rules
