"""GPT-2, and GPT-BigCode and GPT-Neo, which differ little: learned positions, layer norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import Rule, fused, interleaved_heads, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import AttentionSpec, DecoderSpec, gpt_spec, with_layers

_OLD, _NEW = "transformer.h.*", "model.layers.*"


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
            old, new = f"{root}h.*", _NEW
            rules += renamed(_around(root))
            rules += renamed(_linear(old, "attn.c_proj"), is_transposed=True)
            rules.append(fused(f"{old}.attn.c_attn", f"{new}.self_attn", qkv, is_transposed=True))
            rules.append(Rule(f"{old}.attn"))  # masks
        return rules


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
        names = _around() | _linear(_OLD, "attn.c_proj")
        source, parent, size = f"{_OLD}.attn.c_attn", f"{_NEW}.self_attn", facts.head_size
        if facts.hf_config["multi_query"]:
            sizes = {"q_proj": facts.num_heads * size, "k_proj": size, "v_proj": size}
            qkv = fused(source, parent, sizes)
        else:
            qkv = interleaved_heads(source, parent, facts.num_heads, size)
        return (*renamed(names), qkv, Rule(f"{_OLD}.attn"))  # masks


class GPTNeoForCausalLM(DecoderForCausalLM):
    """Black et al., 2021."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        mixer = {"scale": 1.0, "qkv_bias": False}
        spec = with_layers(gpt_spec(facts, "layer_norm_epsilon"), mixer)
        return replace(spec, num_learned_positions=facts.max_position)

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        old = f"{_OLD}.attn.attention"
        names = _around() | _linear(_OLD, "attn.attention.out_proj")
        names |= {f"{old}.{x}_proj": f"{_NEW}.self_attn.{x}_proj" for x in "qkv"}
        return (*renamed(names), Rule(old))  # masks


def _around(root: str = "transformer.") -> dict[str, str]:
    """The names of embeddings and norms."""
    return {
        f"{root}wte": "model.embed_tokens",
        f"{root}wpe": "model.embed_positions",
        f"{root}ln_f": "model.norm",
        f"{root}h.*.ln_1": f"{_NEW}.input_layernorm",
        f"{root}h.*.ln_2": f"{_NEW}.post_attention_layernorm",
    }


def _linear(layer: str, output: str) -> dict[str, str]:
    """The names of linear layers but queries, keys and values; `output` is attention's last."""
    return {
        f"{layer}.{output}": f"{_NEW}.self_attn.o_proj",
        f"{layer}.mlp.c_fc": f"{_NEW}.mlp.up_proj",
        f"{layer}.mlp.c_proj": f"{_NEW}.mlp.down_proj",
    }
