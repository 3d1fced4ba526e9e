"""MiniMax-Text-01 and M1 (arXiv:2501.08313): lightning attention, and full in some layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.kernels.reference.experts import Routing
from vllm_lite.layers.states.lightning import LightningSpec
from vllm_lite.loader.weight_rules import AnyRule, Rule, interleaved_heads, renamed, times
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.hybrid import layer_kinds
from vllm_lite.models.mixtral import mixtral_rules
from vllm_lite.models.mixtures import LAYERS, check_field, routed_experts, with_experts
from vllm_lite.models.spec import DecoderSpec, decoder_spec, positive, size

_KINDS = {"full_attention": "full", "linear_attention": "linear"}


class MiniMaxForCausalLM(DecoderForCausalLM):
    """The stream goes on from its norms; each sum has factors of the stream and of the block."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf = facts.hf_config
        check_field(facts, "postnorm", True)
        if hf.get("sliding_window") is not None:
            raise facts.error("sliding_window is not supported by MiniMax here")
        plain = decoder_spec(facts)
        layers = []
        for number, (layer, kind) in enumerate(zip(plain.layers, _kinds(facts), strict=True)):
            factors = (f"{kind}_attn_alpha_factor", "mlp_alpha_factor")
            changed = replace(
                layer,
                mixer=layer.mixer if kind == "full" else _lightning(facts, number),
                norms="renewing",
                stream_scales=tuple(positive(facts, name, 1.0) for name in factors),
            )
            layers.append(changed)
        routing = Routing(
            top_k=size(facts, "num_experts_per_tok"), scale=positive(facts, "mlp_beta_factor", 1.0)
        )
        dense = replace(plain, layers=tuple(layers))
        return with_experts(dense, routed_experts(facts, routing))

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        old, new = f"{LAYERS}.self_attn", f"{LAYERS}.mixer"
        outputs = {"full": (f"{old}.o_proj",) * 2, "linear": (f"{old}.out_proj", f"{new}.out_proj")}
        return [
            *mixtral_rules(facts),
            interleaved_heads(f"{old}.qkv_proj", new, facts.num_heads, facts.head_size),
            *renamed({f"{old}.output_gate": f"{new}.z_proj", f"{old}.norm": f"{new}.norm"}),
            *(
                rule
                for kind, (source, target) in outputs.items()
                for rule in renamed(
                    {source: target},
                    transform=times(positive(facts, f"{kind}_attn_beta_factor", 1.0)),
                )
            ),
            # Decays, which the configuration implies.
            Rule(old),
        ]


def _kinds(facts: ModelFacts) -> list[str]:
    """The kind of each layer; attn_type_list marks lightning attention by 0."""
    marks = facts.hf_config.get("attn_type_list")
    if not isinstance(marks, list):
        return layer_kinds(facts, _KINDS)
    kinds = ["full_attention" if mark else "linear_attention" for mark in marks]
    return layer_kinds(facts, _KINDS, kinds)


def _lightning(facts: ModelFacts, number: int) -> LightningSpec:
    """The mixer of layer `number`; later layers forget more slowly."""
    share = 1 - number / (facts.num_layers - 1 + 1e-5) + 1e-5
    heads = range(1, facts.num_heads + 1)
    return LightningSpec(
        head_size=facts.head_size,
        rates=tuple(2 ** (-8 / facts.num_heads * i) * share for i in heads),
        act=facts.hf_config["hidden_act"],
        # Whatever the other norms have.
        norm_eps=1e-6,
    )
