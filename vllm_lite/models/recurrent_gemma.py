"""RecurrentGemma: Griffin's gated recurrences, and some layers of attention in a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.norm import NormSpec
from vllm_lite.layers.states.recurrence import RecurrenceSpec
from vllm_lite.loader.weight_rules import Rule, plus_one, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.hybrid import with_states
from vllm_lite.models.mixtures import LAYERS, renamed_mlp
from vllm_lite.models.spec import DecoderSpec, decoder_spec, size

_KINDS = ("recurrent", "attention")


class RecurrentGemmaForCausalLM(DecoderForCausalLM):
    """Botev et al., 2024 (arXiv:2404.07839)."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf, mixer = facts.hf_config, _mixer(facts)
        # The configuration counts gates and factors together.
        narrow = {**hf, "intermediate_size": size(facts, "intermediate_size") // 2}
        plain = decoder_spec(
            replace(facts, hf_config=narrow),
            qkv_bias=bool(hf.get("attention_bias")),
            output_bias=True,
            mlp_bias=True,
        )
        # Rounded, whatever the embedding's own type.
        scale = torch.tensor(facts.hidden_size**0.5, dtype=torch.bfloat16, device="cpu")
        return replace(
            with_states(plain, mixer, _kinds(facts)),
            norm=NormSpec(eps=plain.norm.eps, in_float32=True),
            embedding_scale=scale.item(),
            logit_cap=float(hf.get("logits_soft_cap") or 0),
        )

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        old, attention, mixer = f"{LAYERS}.temporal_block", f"{LAYERS}.self_attn", f"{LAYERS}.mixer"
        norms = {
            "model.final_norm": "model.norm",
            f"{LAYERS}.temporal_pre_norm": f"{LAYERS}.input_layernorm",
            f"{LAYERS}.channel_pre_norm": f"{LAYERS}.post_attention_layernorm",
        }
        names = {
            f"{old}.rg_lru": mixer,
            f"{old}.conv_1d": f"{mixer}.x_conv",
            f"{old}.linear_y": f"{mixer}.z_proj",
            f"{old}.linear_x": f"{mixer}.x_proj",
            f"{old}.linear_out": f"{mixer}.out_proj",
        }
        names |= {f"{old}.{part}_proj": f"{attention}.{part}_proj" for part in "qkvo"}
        mlp = renamed_mlp(f"{LAYERS}.mlp_block", f"{LAYERS}.mlp")
        return *renamed(names), *mlp, *renamed(norms, transform=plus_one)


def _mixer(facts: ModelFacts) -> RecurrenceSpec:
    has_own = facts.hf_config.get("lru_width") is not None
    width = size(facts, "lru_width" if has_own else "hidden_size")
    if width % facts.num_heads:
        raise facts.error(
            f"a recurrence of {width} channels does not divide into {facts.num_heads} heads "
            "(num_attention_heads)"
        )
    return RecurrenceSpec(
        num_heads=facts.num_heads,
        head_size=width // facts.num_heads,
        conv_kernel=size(facts, "conv1d_width"),
        act=facts.hf_config["hidden_act"],
    )


def _kinds(facts: ModelFacts) -> list[str]:
    """The kind of each layer, of block_types one after another; raises CheckpointError."""
    period = facts.hf_config.get("block_types")
    if not isinstance(period, list) or not period or not {*map(str, period)} <= {*_KINDS}:
        raise facts.error(
            f"block_types is {period!r} in its configuration, not a list of {' and '.join(_KINDS)}"
        )
    return [period[i % len(period)] for i in range(facts.num_layers)]
