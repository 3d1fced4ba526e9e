"""OPT: learned positions, an MLP with ReLU, and in one size norms after the residual sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from vllm_lite.config.facts import ModelFacts
from vllm_lite.layers.norm import NormSpec
from vllm_lite.loader.weight_rules import Part, Rule, renamed
from vllm_lite.models.decoder import DecoderForCausalLM
from vllm_lite.models.options import BuildOptions
from vllm_lite.models.spec import DecoderSpec, gpt_spec, size, with_layers

# Rows of the table of positions before the first position's.
_OFFSET = 2
_OUTER = "word_embed_proj_dim"


class OPTForCausalLM(DecoderForCausalLM):
    """Zhang et al., 2022."""

    def __init__(self, facts: ModelFacts, options: BuildOptions) -> None:
        super().__init__(facts, options)
        inner, outer = facts.hidden_size, self.spec(facts).embedding_size
        self.project_out = None
        if outer != inner:
            enter = self.project_in = options.at("project_in").whole_linear(outer, inner)
            self.project_out = options.at("project_out").whole_linear(inner, outer)
            self.model.entering.insert(0, lambda hidden, _: enter.kernel(hidden))

    @torch.inference_mode()
    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        hidden = self.model.forward(input_ids, positions)
        return hidden if self.project_out is None else self.project_out.kernel(hidden)

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        hf = facts.hf_config
        outer = hf.get(_OUTER)
        is_before = bool(hf["do_layer_norm_before"])
        spec = gpt_spec(facts, "layer_norm_eps", bias=bool(hf["enable_bias"]))
        spec = with_layers(spec, {}, norms="before" if is_before else "of the sum")
        has_weight = bool(hf["layer_norm_elementwise_affine"])
        return replace(
            spec,
            norm=NormSpec(kind="layer", eps=1e-5, has_weight=has_weight, bias=has_weight),
            embedding_size=facts.hidden_size if outer is None else size(facts, _OUTER),
            num_learned_positions=facts.max_position,
            has_last_norm=is_before and not hf.get("_remove_final_layer_norm"),
        )

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[Rule]:
        rows = facts.max_position + _OFFSET
        after_attention, after_ffn = "input_layernorm", "post_attention_layernorm"
        if not facts.hf_config["do_layer_norm_before"]:
            after_attention, after_ffn = "post_attention_layernorm", "ffn_output_norm"
        rules: list[Rule] = []
        # The oldest checkpoints leave the first word out.
        for root in ("model.decoder", "decoder"):
            old, new = f"{root}.layers.*", "model.layers.*"
            names = {
                f"{root}.embed_tokens": "model.embed_tokens",
                f"{root}.project_in": "project_in",
                f"{root}.project_out": "project_out",
                f"{root}.final_layer_norm": "model.norm",
                f"{old}.self_attn_layer_norm": f"{new}.{after_attention}",
                f"{old}.final_layer_norm": f"{new}.{after_ffn}",
                f"{old}.self_attn.out_proj": f"{new}.self_attn.o_proj",
                f"{old}.fc1": f"{new}.mlp.up_proj",
                f"{old}.fc2": f"{new}.mlp.down_proj",
            }
            for name in ("q_proj", "k_proj", "v_proj"):
                names[f"{old}.self_attn.{name}"] = f"{new}.self_attn.{name}"
            positions = Part("model.embed_positions", slice(_OFFSET, rows), rows)
            rules += [*renamed(names), Rule(f"{root}.embed_positions", (positions,))]
        return rules
