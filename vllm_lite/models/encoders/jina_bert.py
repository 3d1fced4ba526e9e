"""Jina's second generation of BERT: ALiBi on both sides and gated MLPs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.score_terms import alibi_slopes
from vllm_lite.loader.weight_rules import AnyRule, fused
from vllm_lite.models.encoders.bert import EMBEDDING, LAYER, BertModel
from vllm_lite.models.encoders.encoder import encoder_rules, encoder_spec
from vllm_lite.models.spec import DecoderSpec, MLPSpec, size, with_layers

_NAMES = {
    **{old: new for old, new in EMBEDDING.items() if "position" not in old},
    **{
        f"encoder.layer.*.{old}": f"model.layers.*.{new}"
        for old, new in {
            **{old: new for old, new in LAYER.items() if old.startswith("attention")},
            "mlp.wo": "mlp.down_proj",
            "mlp.layernorm": "ffn_output_norm",
        }.items()
    },
}


class JinaBertModel(BertModel):
    """Guenther et al., 2023."""

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        ffn = MLPSpec(
            intermediate_size=size(facts, "intermediate_size"),
            act=facts.hf_config["hidden_act"],
            down_bias=True,
        )
        mixer = {"alibi_slopes": alibi_slopes(facts.num_heads)}
        spec = with_layers(encoder_spec(facts), mixer, ffn=ffn)
        return replace(spec, num_learned_positions=0)

    @classmethod
    def weight_rules(cls, facts: ModelFacts) -> Sequence[AnyRule]:
        halves = dict.fromkeys(("gate_proj", "up_proj"), size(facts, "intermediate_size"))
        gated = "encoder.layer.*.mlp.gated_layers"
        of_gguf = fused("blk.*.ffn_up", "model.layers.*.mlp", halves)
        return [
            replace(of_gguf, is_alternative=True),
            *super().weight_rules(facts),
            *encoder_rules(cls.roots, _NAMES),
            *(fused(f"{root}{gated}", "model.layers.*.mlp", halves) for root in cls.roots),
        ]
