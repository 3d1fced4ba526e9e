"""InternLM 2: Llama under other names, queries beside the keys and values that they share."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import Part, Rule, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.llama import gguf_pairs
from vllm_lite.models.spec import DecoderSpec, biased_spec


class InternLM2ForCausalLM(DecoderForCausalLM):
    """Cai et al., 2024; its bias is that of queries, keys, values and the output."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        return biased_spec(facts)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        layer = "model.layers.*"
        names = {
            "model.tok_embeddings": "model.embed_tokens",
            "output": "lm_head",
            f"{layer}.attention_norm": f"{layer}.input_layernorm",
            f"{layer}.ffn_norm": f"{layer}.post_attention_layernorm",
            f"{layer}.attention.wo": f"{layer}.self_attn.o_proj",
            f"{layer}.feed_forward.w1": f"{layer}.mlp.gate_proj",
            f"{layer}.feed_forward.w3": f"{layer}.mlp.up_proj",
            f"{layer}.feed_forward.w2": f"{layer}.mlp.down_proj",
        }
        # Of each key-value head: its queries, the key, the value.
        groups, size = facts.num_kv_heads, facts.head_size
        shared = facts.num_heads // groups
        total = groups * (shared + 2) * size
        order = torch.arange(total).view(groups, shared + 2, size)
        parts = {"q_proj": order[:, :shared], "k_proj": order[:, shared], "v_proj": order[:, -1]}
        fused = Rule(
            f"{layer}.attention.wqkv",
            tuple(
                Part(f"{layer}.self_attn.{name}", outputs.reshape(-1), total)
                for name, outputs in parts.items()
            ),
        )
        return (*renamed(names), fused, *gguf_pairs(facts))
