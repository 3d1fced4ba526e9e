"""POST /score and /rerank: how well texts fit, by a reranker or by vectors of each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from vllm_lite.engine.client import PromptDict
from vllm_lite.errors import RequestError
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.scoring import (
    PairEncoder,
    check_counts,
    list_prompts,
    list_scores,
    pair_messages,
    score_vectors,
)
from vllm_lite.server.body import read_json
from vllm_lite.server.context import ServingContext
from vllm_lite.server.pooling.inputs import most_tokens, text_prompts
from vllm_lite.server.pooling.protocol import (
    RerankRequest,
    ScoreRequest,
    ScoringBody,
    read,
    texts_of,
)
from vllm_lite.server.pooling.run import Pooled, begin, facts_of, naming, pool
from vllm_lite.tokenizer.fitting import PairLimits, cut_text

# Pairs that a thread tokenises at a time.
_PAIRS_A_TURN = 16


class ScoreService:
    """Knows which kind of scores the model gives."""

    def __init__(self, context: ServingContext) -> None:
        self._context = context
        self._json = context.large_replies.json
        self._kind = facts_of(context).score_type

    async def score(self, request: Request) -> Response:
        """Score pairs of texts."""
        body = read(ScoreRequest, await read_json(request))
        names = body.names
        firsts, seconds = (texts_of(getattr(body, name), name) for name in names)
        check_counts(len(firsts), len(seconds), names)
        with naming(body.texts_field):
            found, pooled = await self._scored(body, request, firsts, seconds)
        data = [
            {"index": index, "object": "score", "score": one} for index, one in enumerate(found)
        ]
        identity = self._context.identity(pooled.request_id, "list")
        return self._json({**identity, "data": data, "usage": pooled.usage})

    async def rerank(self, request: Request) -> Response:
        """Sort documents by how well they fit a query."""
        body = read(RerankRequest, await read_json(request))
        query, documents = texts_of(body.query, "query"), texts_of(body.documents, "documents")
        if len(query) != 1:
            raise RequestError.about("query", "must be one text")
        check_counts(1, len(documents), ("query", "documents"))
        with naming(body.texts_field):
            found, pooled = await self._scored(body, request, query, documents)
        best = sorted(range(len(found)), key=lambda index: -found[index])
        results: list[dict[str, object]] = []
        for index in best[: body.top_n or None]:
            result: dict[str, object] = {"index": index}
            if body.return_documents:
                result["document"] = {"text": documents[index], "multi_modal": None}
            results.append({**result, "relevance_score": found[index]})
        usage = {"prompt_tokens": pooled.num_tokens, "total_tokens": pooled.num_tokens}
        identity = {"id": pooled.request_id, "model": self._context.model_name, "usage": usage}
        return self._json({**identity, "results": results})

    async def _scored(
        self,
        body: ScoringBody,
        request: Request,
        firsts: list[str],
        seconds: list[str],
    ) -> tuple[list[float], Pooled]:
        """The score of each pair, and what it was made of; raises RequestError."""
        request_id = begin(self._context, body, "score-", request)
        context, limits = self._context, self._limits(body)
        if self._kind == "cross-encoder":
            prompts, params = await self._pairs(body, limits, firsts, seconds)
            pooled = await pool(context, body, request, request_id, prompts, params)
            return [float(vector[0]) for vector in pooled.vectors], pooled
        firsts = await self._cut(firsts, limits.first)
        seconds = await self._cut(seconds, limits.second)
        is_list = self._kind == "listwise"
        instruction = _instruction(body, is_list=is_list)
        texts = list_prompts(firsts, seconds, instruction) if is_list else firsts + seconds
        found = await text_prompts(context, body, "documents", texts, special=True)
        task = "embed" if self._kind == "bi-encoder" else "token_embed"
        own = PoolingParams(task=task, use_activation=body.use_activation)
        pooled = await pool(context, body, request, request_id, found, own)
        if is_list:
            return list_scores(pooled.vectors, len(seconds)), pooled
        facts = context.client.config.facts
        scores = await asyncio.to_thread(score_vectors, pooled.vectors, len(firsts), facts)
        return scores, pooled

    def _limits(self, body: ScoringBody) -> PairLimits:
        for name in ("max_tokens_per_query", "max_tokens_per_doc"):
            if getattr(body, name) >= self._context.max_model_len:
                raise RequestError.about(
                    name, f"must be less than this model's context of {self._context.max_model_len}"
                )
        return PairLimits(
            body.max_tokens_per_query or None,
            body.max_tokens_per_doc or None,
            most_tokens(self._context, body),
            body.truncation_side,
        )

    async def _pairs(
        self, body: ScoringBody, limits: PairLimits, firsts: list[str], seconds: list[str]
    ) -> tuple[list[PromptDict], list[PoolingParams]]:
        """A cross-encoder's prompts, and their parameters; raises RequestError."""
        context = self._context
        encoder = PairEncoder(context.tokenizer, context.client.config.facts)
        pairs = list(zip(firsts * (len(seconds) // len(firsts)), seconds, strict=True))
        is_cut = limits.prompt is not None or limits.second is not None
        for name, texts in (("query", firsts), ("documents", seconds)):
            for text in texts:
                context.check_characters(text, name, cut=is_cut)
        if context.chat_template is None and body.template_kwargs:
            raise RequestError(
                "instruction and chat_template_kwargs need a server with a --chat-template that "
                "shows them",
                "instruction",
            )
        found: list[tuple[list[int], int | None]] = []
        for at in range(0, len(pairs), _PAIRS_A_TURN):
            some = pairs[at : at + _PAIRS_A_TURN]
            if context.chat_template is None:
                found += await asyncio.to_thread(_encoded, encoder, some, limits)
                continue
            for pair in some:
                text = await self._rendered(encoder.cut(*pair, limits), body)
                found.append((encoder.encode_text(text, limits), None))
        prompts: list[PromptDict] = [{"prompt_token_ids": ids} for ids, _ in found]
        return prompts, [_params(body, start) for _, start in found]

    async def _cut(self, texts: list[str], most: int | None) -> list[str]:
        """The beginnings of `texts` that have at most `most` tokens."""
        if most is None:
            return texts
        tokenizer = self._context.tokenizer
        return [await asyncio.to_thread(cut_text, tokenizer, text, most) for text in texts]

    async def _rendered(self, pair: tuple[str, str], body: ScoringBody) -> str:
        context = self._context
        return await context.render(
            messages=pair_messages(*pair),
            chat_template=context.chat_template,
            add_generation_prompt=False,
            chat_template_kwargs={
                **context.server_config.default_chat_template_kwargs,
                **body.template_kwargs,
            },
        )


def _encoded(
    encoder: PairEncoder, pairs: Sequence[tuple[str, str]], limits: PairLimits
) -> list[tuple[list[int], int | None]]:
    return [encoder.encode(*pair, limits) for pair in pairs]


def _instruction(body: ScoringBody, *, is_list: bool) -> str | None:
    """The instruction in a list's prompt; raises RequestError for what no prompt would show."""
    given = body.template_kwargs
    if given and not is_list:
        raise RequestError(
            "instruction and chat_template_kwargs are for models that read both texts at once",
            "instruction",
        )
    found = given.pop("instruction", None)
    if given or not isinstance(found, str | None):
        raise RequestError.about(
            "chat_template_kwargs", "may have instruction alone here, a text: no template is used"
        )
    return found


def _params(body: ScoringBody, start: int | None) -> PoolingParams:
    """The parameters of a pair; from `start` on its tokens are of type 1."""
    extra = None if start is None else {"compressed_token_type_ids": start}
    return PoolingParams(task="classify", use_activation=body.use_activation, extra_kwargs=extra)
