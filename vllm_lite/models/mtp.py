"""Multi-token prediction: layers after the last one, in the model's own checkpoint.

DeepSeek-AI, 2024 (arXiv:2412.19437); a layout is the names that a family stores them by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from vllm_lite.config.draft import TARGET
from vllm_lite.config.facts import ModelFacts
from vllm_lite.loader.weight_rules import AnyRule
from vllm_lite.models.draft_head import DraftHead, Fusion, HeadLayers
from vllm_lite.models.options import BuildOptions
from vllm_lite.models.registry import get_model_class
from vllm_lite.models.spec import DecoderSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Names of the parts, where {} stands for the number of layers of the model."""

    names: Mapping[str, str]
    # Which of the model's layers it is like.
    like: int = -1
    has_last_norm: bool = True
    # The norm of the sum comes before the next pass, too, and the first vector counts.
    is_normed: bool = False


# A longer name comes before one that it begins with.
_AFTER_THE_LAST = Layout(
    names={
        "model.layers.{}.embed_tokens.": "embed_tokens.",
        "model.layers.{}.enorm.": "model.enorm.",
        "model.layers.{}.hnorm.": "model.hnorm.",
        "model.layers.{}.eh_proj.": "model.fc.",
        "model.layers.{}.shared_head.norm.": "model.norm.",
        "model.layers.{}.shared_head.head.": "lm_head.",
        "model.layers.{}.": "model.layers.0.",
    }
)
_BESIDE = Layout(
    names={
        "mtp.pre_fc_norm_embedding.": "model.enorm.",
        "mtp.pre_fc_norm_hidden.": "model.hnorm.",
        "mtp.fc.": "model.fc.",
        "mtp.norm.": "model.norm.",
        "mtp.layers.0.": "model.layers.0.",
    },
    is_normed=True,
)
_ERNIE = Layout(
    names={
        "model.mtp_emb_norm.0.": "model.enorm.",
        "model.mtp_hidden_norm.0.": "model.hnorm.",
        "model.mtp_linear_proj.0.": "model.fc.",
        "model.mtp_block.0.": "model.layers.0.",
    },
    like=0,
    has_last_norm=False,
)
LAYOUTS = {
    **dict.fromkeys(("DeepseekV3ForCausalLM", "Glm4MoeForCausalLM"), _AFTER_THE_LAST),
    "Glm4MoeLiteForCausalLM": _AFTER_THE_LAST,
    **dict.fromkeys(("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"), _BESIDE),
    "Ernie4_5_MoeForCausalLM": _ERNIE,
}


class MultiTokenPredictor(DraftHead):
    """The first of these layers, which is applied again for each further token."""

    def __init__(self, facts: ModelFacts, options: BuildOptions) -> None:
        super().__init__(facts, options)
        self.chains_normed = _layout(facts).is_normed

    @staticmethod
    def spec(facts: ModelFacts) -> DecoderSpec:
        layout, own = _layout(facts), _own(facts)
        spec = get_model_class(own.architecture).spec(own)  # type: ignore[union-attr]
        layers = (spec.layers[layout.like],)
        return replace(spec, layers=layers, has_last_norm=layout.has_last_norm)

    @staticmethod
    def marks(facts: ModelFacts) -> Mapping[str, str]:
        names = _layout(facts).names
        return {old.format(facts.num_layers): new for old, new in names.items()}

    @staticmethod
    def weight_rules(facts: ModelFacts) -> Sequence[AnyRule]:
        own = _own(facts)
        return get_model_class(own.architecture).weight_rules(own)

    def make_layers(
        self, facts: ModelFacts, spec: DecoderSpec, options: BuildOptions
    ) -> HeadLayers:
        masks_first = not _layout(facts).is_normed
        return HeadLayers(spec, Fusion(has_norms=True, masks_first=masks_first), options)


def _own(facts: ModelFacts) -> ModelFacts:
    """The facts of the model whose layers these are."""
    return replace(facts, architecture=facts.hf_config[TARGET])


def _layout(facts: ModelFacts) -> Layout:
    return LAYOUTS[facts.hf_config[TARGET]]
