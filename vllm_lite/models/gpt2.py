"""GPT-2: learned positions, layer norms, and weights that are stored inputs by outputs."""

from __future__ import annotations

from collections.abc import Sequence

from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.norm import NormSpec
from vllm_lite.loader.weight_rules import Rule, fused, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import AttentionSpec, DecoderSpec, LayerSpec, MLPSpec, positive


class GPT2LMHeadModel(DecoderForCausalLM):
    """Radford et al., 2019."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf = facts.hf_config
        scale = facts.head_size**-0.5 if hf["scale_attn_weights"] else 1.0
        by_layer = bool(hf.get("scale_attn_by_inverse_layer_idx"))
        ffn = MLPSpec(
            intermediate_size=hf.get("intermediate_size") or 4 * facts.hidden_size,
            act=hf["hidden_act"],
            is_gated=False,
            bias=True,
        )
        layers = tuple(
            LayerSpec(
                mixer=AttentionSpec(
                    num_heads=facts.num_heads,
                    num_kv_heads=facts.num_heads,
                    head_size=facts.head_size,
                    scale=scale / (i + 1) if by_layer else scale,
                    rotary=None,
                    qkv_bias=True,
                    output_bias=True,
                ),
                ffn=ffn,
            )
            for i in range(facts.num_layers)
        )
        return DecoderSpec(
            vocab_size=facts.vocab_size,
            hidden_size=facts.hidden_size,
            norm=NormSpec(kind="layer", eps=positive(facts, "layer_norm_epsilon", 1e-5), bias=True),
            layers=layers,
            tie_word_embeddings=bool(hf["tie_word_embeddings"]),
            num_learned_positions=facts.max_position,
        )

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
