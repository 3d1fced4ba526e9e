"""The routes of an engine that pools, and refusals of routes for other tasks than the engine's.

An engine's tasks decide which routes answer; the others refuse with 400 and what would help.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from vllm_lite.config.pooling import PoolingFacts
from vllm_lite.errors import RequestError
from vllm_lite.server.body import read_json
from vllm_lite.server.context import ServingContext
from vllm_lite.server.openapi import Endpoint, Route
from vllm_lite.server.pooling.protocol import (
    ClassifyRequest,
    CohereEmbedRequest,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)
from vllm_lite.server.pooling.score_service import ScoreService
from vllm_lite.server.pooling.service import ClassifyService, CohereService, VectorService

_EMBED = ("/v1/embeddings", "/v2/embed")
_SCORE, _RERANK = ("/score", "/v1/score"), ("/rerank", "/v1/rerank", "/v2/rerank")
# Path -> what a model of it does, and how a server gets one.
_NEEDS = {
    "/pooling": ("embeds, classifies or scores", "--runner pooling"),
    **dict.fromkeys(_EMBED, ("embeds", "--convert embed")),
    "/classify": ("classifies", "--convert classify"),
    **dict.fromkeys((*_SCORE, *_RERANK), ("scores pairs of texts", "--convert embed or classify")),
}
_BATCHED = (_EMBED[0], *_SCORE, *_RERANK)
_BODIES = (EmbeddingRequest, ClassifyRequest, RerankRequest, ScoreRequest, PoolingRequest)
_ANY_MEDIA = ("application/json", "application/octet-stream")


def pooling_routes(context: ServingContext, facts: PoolingFacts) -> list[Route]:
    """The routes for an engine's tasks, and refusals of the others for pooling."""
    vectors = VectorService(context)
    table = []
    if "classify" in facts.tasks:
        classify = ClassifyService(context).classify
        table.append(Route("POST", "/classify", classify, ClassifyRequest))
    if "embed" in facts.tasks:
        table += [
            Route("POST", _EMBED[0], vectors.embed, EmbeddingRequest, media=_ANY_MEDIA),
            Route("POST", _EMBED[1], CohereService(context).embed, CohereEmbedRequest),
        ]
    table += [
        Route("POST", "/pooling", vectors.pool, PoolingRequest, media=_ANY_MEDIA),
        Route("POST", "/invocations", Invocations(context, facts).create, _BODIES),
    ]
    if facts.score_type is not None:
        scores = ScoreService(context)
        table += [Route("POST", path, scores.score, ScoreRequest) for path in _SCORE]
        table += [Route("POST", path, scores.rerank, RerankRequest) for path in _RERANK]
    answered = {route.path for route in table}
    tasks = " and ".join(facts.tasks)
    for path, (verb, _) in _NEEDS.items():
        if path not in answered:
            reason = f"{path} needs a model that {verb}; this one answers {tasks}: use /pooling"
            table.append(_refused(path, reason))
    return table


def pooling_refusals() -> list[Route]:
    """Routes for pooling, refused by an engine that generates text."""
    return [
        _refused(
            path,
            f"This server generates text; {path} needs one that {verb}: start it with {option} "
            "(or with a model that is made for it)",
        )
        for path, (verb, option) in _NEEDS.items()
    ]


def generation_refusals(routes: Iterable[Route]) -> list[Route]:
    """The routes for text, refused by an engine that pools."""
    refuse = _refusal(
        "This server was started with a model that embeds, classifies or scores texts "
        "(--runner pooling) and generates none; see /v1/models for its task"
    )
    return [replace(one, endpoint=refuse, is_public=False, reports_load=False) for one in routes]


def _refused(path: str, reason: str) -> Route:
    return Route("POST", path, _refusal(reason), is_public=False)


def _refusal(reason: str) -> Endpoint:
    async def refuse(request: Request) -> Response:
        raise RequestError(reason)

    return refuse


def batched_routes(context: ServingContext, facts: PoolingFacts) -> dict[str, Endpoint]:
    """The routes that a line of a batch file may name."""
    table = pooling_routes(context, facts)
    return {
        route.path: route.endpoint for route in table if route.path in _BATCHED and route.is_public
    }


class Invocations:
    """POST /invocations: the body's fields say which route is meant."""

    def __init__(self, context: ServingContext, facts: PoolingFacts) -> None:
        vectors = VectorService(context)
        self._answer: dict[str, Endpoint] = {"pooling": vectors.pool}
        if facts.default_task == "embed":
            self._answer["input"] = vectors.embed
        elif facts.default_task == "classify":
            self._answer["input"] = ClassifyService(context).classify
        if facts.score_type is not None:
            scores = ScoreService(context)
            self._answer |= {"rerank": scores.rerank, "score": scores.score}

    async def create(self, request: Request) -> Response:
        """Answer as the route that has such a body."""
        fields = (await read_json(request)).keys()
        kind = "pooling" if fields & {"task", "data"} else "input"
        if {"query", "documents"} <= fields:
            kind = "rerank"
        elif any(set(names) <= fields for names in ScoreRequest.NAMES):
            kind = "score"
        elif not fields & {"input", "messages", "data"}:
            raise RequestError(
                "The body has neither input or messages, nor query and documents, nor text_1 and "
                "text_2"
            )
        if kind == "input" and kind not in self._answer:
            kind = "pooling"
        if kind not in self._answer:
            raise RequestError("This model scores no pairs of texts")
        return await self._answer[kind](request)
