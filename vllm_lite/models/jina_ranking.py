"""Jina's reranker: Qwen3, which reads the documents and the query at once (Wang et al., 2025)."""

from __future__ import annotations

from collections.abc import Mapping

from vllm_lite.config.facts import ModelFacts
from vllm_lite.models.heads import Dense, HeadSpec
from vllm_lite.models.qwen3 import Qwen3ForCausalLM

_SIZE = 512


class JinaForRanking(Qwen3ForCausalLM):
    """Vectors of the tokens behind each document and behind the query."""

    @classmethod
    def heads_of(cls, facts: ModelFacts) -> Mapping[str, HeadSpec]:
        first = Dense(name="projector.0", size=facts.hidden_size // 2, bias=False)
        return {"token_embed": (first, "relu", Dense(name="projector.2", size=_SIZE, bias=False))}
