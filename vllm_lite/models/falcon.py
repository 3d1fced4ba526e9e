"""Falcon: one key for all queries, one for each group of them, or (RW) ALiBi and one for each.

The first two have both blocks side by side, after one norm or after one each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.score_terms import alibi_slopes
from vllm_lite.loader.weight_rules import Rule, interleaved_heads, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import DecoderSpec, gpt_spec, rotary_settings, size, with_layers

Parallel = Literal["no", "two norms", "one norm"]


class FalconForCausalLM(DecoderForCausalLM):
    """Almazrouei et al., 2023."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf = facts.hf_config
        mixer = {"num_kv_heads": _num_kv_heads(facts), "rotary": rotary_settings(facts)}
        if hf["alibi"]:
            # They join the scores before these are scaled.
            slopes = (slope * facts.head_size**-0.5 for slope in alibi_slopes(facts.num_heads))
            mixer |= {"rotary": None, "alibi_slopes": tuple(slopes)}
        spec = gpt_spec(facts, "layer_norm_epsilon", bias=bool(hf["bias"]))
        return with_layers(spec, mixer, parallel=_parallel(facts))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        old, new = "transformer.h.*", "model.layers.*"
        names = {
            "transformer.word_embeddings": "model.embed_tokens",
            "transformer.ln_f": "model.norm",
            f"{old}.input_layernorm": f"{new}.input_layernorm",
            f"{old}.post_attention_layernorm": f"{new}.post_attention_layernorm",
            f"{old}.self_attention.dense": f"{new}.self_attn.o_proj",
            f"{old}.mlp.dense_h_to_4h": f"{new}.mlp.up_proj",
            f"{old}.mlp.dense_4h_to_h": f"{new}.mlp.down_proj",
        }
        if _parallel(facts) == "two norms":
            names[f"{old}.ln_attn"] = f"{new}.input_layernorm"
            names[f"{old}.ln_mlp"] = f"{new}.post_attention_layernorm"
            names["blk.*.attn_norm_2"] = f"{new}.input_layernorm"
            names["blk.*.attn_norm"] = f"{new}.post_attention_layernorm"
        source, groups = f"{old}.self_attention.query_key_value", _num_kv_heads(facts)
        heads, shared = (groups, facts.head_size), facts.num_heads // groups
        qkv = interleaved_heads(source, f"{new}.self_attn", *heads, shared=shared)
        return (*renamed(names), qkv)


def _num_kv_heads(facts: ModelFacts) -> int:
    hf = facts.hf_config
    if hf["multi_query"] and not hf["new_decoder_architecture"]:
        return 1
    count = facts.num_heads if hf.get("num_kv_heads") is None else size(facts, "num_kv_heads")
    if facts.num_heads % count:
        raise facts.error(f"{facts.num_heads} attention heads cannot share {count} key-value heads")
    return count


def _parallel(facts: ModelFacts) -> Parallel:
    hf = facts.hf_config
    if not hf["new_decoder_architecture"]:
        return "one norm" if hf["parallel_attn"] else "no"
    return "one norm" if hf.get("num_ln_in_parallel_attn") == 1 else "two norms"
