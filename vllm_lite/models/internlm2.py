"""InternLM 2: Llama under other names, queries beside the keys and values that they share."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import Rule, interleaved_heads, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.llama import gguf_pairs
from vllm_lite.models.mixtures import LAYERS, NUMBERED, renamed_mlp
from vllm_lite.models.spec import DecoderSpec, biased_spec


class InternLM2ForCausalLM(DecoderForCausalLM):
    """Cai et al., 2024; its bias is that of queries, keys, values and the output."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return biased_spec(facts)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        names = {
            "model.tok_embeddings": "model.embed_tokens",
            "output": "lm_head",
            f"{LAYERS}.attention_norm": f"{LAYERS}.input_layernorm",
            f"{LAYERS}.ffn_norm": f"{LAYERS}.post_attention_layernorm",
            f"{LAYERS}.attention.wo": f"{LAYERS}.self_attn.o_proj",
        }
        mlp = renamed_mlp(f"{LAYERS}.feed_forward", f"{LAYERS}.mlp", NUMBERED)
        heads, shared = (facts.num_kv_heads, facts.head_size), facts.num_heads // facts.num_kv_heads
        source, attention = f"{LAYERS}.attention.wqkv", f"{LAYERS}.self_attn"
        qkv = interleaved_heads(source, attention, *heads, shared=shared)
        return (*renamed(names), *mlp, qkv, *gguf_pairs(facts))
