"""Decoders with heads: reward models, and Jina's reranker."""

from __future__ import annotations

from collections.abc import Mapping

from vllm_lite.config.facts import ModelFacts
from vllm_lite.models.heads import Dense, HeadSpec, classifier
from vllm_lite.models.internlm2 import InternLM2ForCausalLM
from vllm_lite.models.llama import Qwen2ForCausalLM
from vllm_lite.models.qwen3 import Qwen3ForCausalLM

_SIZE = 512


class Qwen2ForRewardModel(Qwen2ForCausalLM):
    """Qwen2.5-Math-RM: a score of two layers."""

    @classmethod
    def heads_of(cls, facts: ModelFacts) -> Mapping[str, HeadSpec]:
        first = Dense(name="score.0", size=facts.hidden_size)
        return {"token_classify": (first, "relu", classifier(facts, "score.2"))}


class Qwen2ForProcessRewardModel(Qwen2ForRewardModel):
    """Qwen2.5-Math-PRM: the classes of each step, good the second."""


class InternLM2ForRewardModel(InternLM2ForCausalLM):
    """InternLM2-Reward: a linear score."""

    @classmethod
    def heads_of(cls, facts: ModelFacts) -> Mapping[str, HeadSpec]:
        return {"token_classify": (classifier(facts, "v_head", bias=False),)}


class JinaForRanking(Qwen3ForCausalLM):
    """Vectors of the tokens behind each document and behind the query."""

    @classmethod
    def heads_of(cls, facts: ModelFacts) -> Mapping[str, HeadSpec]:
        first = Dense(name="projector.0", size=facts.hidden_size // 2, bias=False)
        return {"token_embed": (first, "relu", Dense(name="projector.2", size=_SIZE, bias=False))}
