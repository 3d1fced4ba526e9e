"""GPT-NeoX, Pythia, GPT-J and CodeGen: both blocks side by side, a part of each head rotated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import AnyRule, Part, Rule, interleaved_heads, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.spec import DecoderSpec, gpt_spec, rotary_settings, size, with_layers

_OLD, _NEW = "transformer.h.*", "model.layers.*"
_GPTJ_NAMES = {
    "transformer.wte": "model.embed_tokens",
    "transformer.ln_f": "model.norm",
    f"{_OLD}.ln_1": f"{_NEW}.input_layernorm",
    f"{_OLD}.attn.out_proj": f"{_NEW}.self_attn.o_proj",
    **{f"{_OLD}.attn.{x}_proj": f"{_NEW}.self_attn.{x}_proj" for x in "qkv"},
    f"{_OLD}.mlp.fc_in": f"{_NEW}.mlp.up_proj",
    f"{_OLD}.mlp.fc_out": f"{_NEW}.mlp.down_proj",
}


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


class GPTJForCausalLM(DecoderForCausalLM):
    """Wang and Komatsuzaki, 2021."""

    rules = (*renamed(_GPTJ_NAMES), Rule(f"{_OLD}.attn"))  # masks

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        plain = rotary_settings(facts)
        rotary = replace(
            plain,
            parameters={**plain.parameters, "rotary_dim": size(facts, "rotary_dim")},
            is_interleaved=True,
        )
        mixer = {"rotary": rotary, "qkv_bias": False, "output_bias": False}
        spec = with_layers(gpt_spec(facts, "layer_norm_epsilon"), mixer, parallel="one norm")
        return replace(spec, head_bias=True)


class CodeGenForCausalLM(GPTJForCausalLM):
    """Nijkamp et al., 2022: GPT-J whose projections are stored as four processors held them."""

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        num_parts, width = 4, facts.num_heads * facts.head_size
        if facts.num_heads % num_parts:
            raise facts.error(
                f"{facts.num_heads} heads are not the {num_parts} equal parts that CodeGen's "
                "projections are stored in"
            )
        order = torch.arange(3 * width).view(num_parts, 3, -1)
        parts = (
            Part(f"{_NEW}.self_attn.{name}", order[:, i].reshape(-1), 3 * width)
            for i, name in enumerate(("q_proj", "v_proj", "k_proj"))
        )
        fused = Rule(f"{_OLD}.attn.qkv_proj", tuple(parts))
        return (*GPTJForCausalLM.rules, fused)
