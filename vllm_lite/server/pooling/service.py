"""POST /v1/embeddings, /v2/embed, /pooling and /classify: inputs in, a vector or classes each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from vllm_lite.errors import RequestError
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.server.body import read_json
from vllm_lite.server.context import ServingContext
from vllm_lite.server.pooling.encoding import as_base64, as_bytes, packed_bits
from vllm_lite.server.pooling.inputs import prompts_of, text_prompts
from vllm_lite.server.pooling.processed import processed
from vllm_lite.server.pooling.protocol import (
    ClassifyRequest,
    CohereEmbedRequest,
    EmbeddingRequest,
    PoolingRequest,
    VectorBody,
    parts_text,
    read,
)
from vllm_lite.server.pooling.run import Pooled, begin, facts_of, naming, pool

# Numbers that are written in a few milliseconds; more are written by a thread.
_FEW_NUMBERS = 1 << 14
# Longer headers are refused by many clients.
_MAX_HEADER = 1 << 15
# Types of Cohere's API, and the prompts that models have for them under other names.
_INPUT_TYPES = {
    "search_query": ("query",),
    "search_document": ("document", "passage"),
    "classification": (),
    "clustering": (),
}


class VectorService:
    """Embeddings and /pooling."""

    def __init__(self, context: ServingContext) -> None:
        self._context = context

    async def embed(self, request: Request) -> Response:
        """Embed texts, token ids or conversations."""
        body = read(EmbeddingRequest, await read_json(request))
        return await self._answer(body, "embed", ("embd-", "embedding"), request)

    async def pool(self, request: Request) -> Response:
        """Give the result of any of the model's tasks, also for each token."""
        body = read(PoolingRequest, await read_json(request))
        if body.data is not None:
            return await processed(self._context, body, request)
        facts = facts_of(self._context)
        if body.task is not None and body.task not in facts.tasks:
            raise RequestError.about(
                "task", f"must be {' or '.join(facts.tasks)} here, not {body.task!r:.40}"
            )
        task = body.task or facts.default_task
        return await self._answer(body, task, ("pooling-", "data"), request)

    async def _answer(
        self, body: VectorBody, task: str, names: tuple[str, str], request: Request
    ) -> Response:
        """`names` are what ids begin with and the key of a vector."""
        context = self._context
        request_id = begin(context, body, names[0], request)
        params = PoolingParams(
            task=task, dimensions=body.dimensions, use_activation=body.use_activation
        )
        with naming(body.texts_field):
            prompts = await prompts_of(context, body)
            pooled = await pool(context, body, request, request_id, prompts, params)
        if body.encoding_format in ("bytes", "bytes_only"):
            return self._bytes(body, pooled)
        return await written(context, pooled, lambda: self._payload(body, pooled, names[1]))

    def _payload(self, body: VectorBody, pooled: Pooled, key: str) -> dict[str, object]:
        kind = "embedding" if key == "embedding" else "pooling"
        data: list[dict[str, Any]] = []
        for index, vector in enumerate(pooled.vectors):
            value: object = vector.tolist()
            if body.encoding_format == "base64":
                value = as_base64(vector, body.embed_dtype, body.endianness)
            data.append({"index": index, "object": kind, key: value})
        identity = self._context.identity(pooled.request_id, "list")
        return {**identity, "data": data, "usage": pooled.usage}

    def _bytes(self, body: VectorBody, pooled: Pooled) -> Response:
        dtype, endianness = body.embed_dtype, body.endianness
        pieces = [as_bytes(vector, dtype, endianness) for vector in pooled.vectors]
        headers = {}
        if body.encoding_format == "bytes":
            items, start = [], 0
            for index, (piece, vector) in enumerate(zip(pieces, pooled.vectors, strict=True)):
                item = {"index": index, "embed_dtype": dtype, "endianness": endianness}
                places = {"start": start, "end": start + len(piece), "shape": vector.shape}
                items.append({**item, **places})
                start += len(piece)
            identity = self._context.identity(pooled.request_id, "list")
            metadata = {**identity, "data": items, "usage": pooled.usage}
            headers["metadata"] = json.dumps(metadata)
            if len(headers["metadata"]) > _MAX_HEADER:
                raise RequestError(
                    f"the header for {len(items)} vectors is longer than clients read; send fewer "
                    "inputs, or encoding_format bytes_only",
                    "encoding_format",
                )
        return Response(b"".join(pieces), media_type="application/octet-stream", headers=headers)


class CohereService:
    def __init__(self, context: ServingContext) -> None:
        self._context = context

    async def embed(self, request: Request) -> Response:
        """Embed texts as Cohere's API does."""
        context = self._context
        body = read(CohereEmbedRequest, await read_json(request))
        texts = self._texts(body)
        request_id = begin(context, body, "embd-", request)
        prefix = self._prompt(body.input_type)
        _set_truncation(body)
        with naming(name := body.texts_field, "output_dimension"):
            params = PoolingParams(
                task="embed",
                dimensions=body.output_dimension,
                num_uncounted_tokens=await self._num_uncounted(body, prefix),
            )
            texts = [prefix + text for text in texts]
            prompts = await text_prompts(context, body, name, texts, special=True)
            if body.truncate == "NONE" and body.max_tokens is not None:
                _check_lengths([len(one["prompt_token_ids"]) for one in prompts], body.max_tokens)
            pooled = await pool(context, body, request, request_id, prompts, params)
        return await written(context, pooled, lambda: _cohere_payload(body, pooled))

    def _texts(self, body: CohereEmbedRequest) -> list[str]:
        if (body.texts is None) == (body.inputs is None):
            raise RequestError("The body needs either texts or inputs", "texts")
        name, texts = body.texts_field, body.texts or []
        if body.inputs is not None:
            texts = [
                parts_text(one.get("content"), f"inputs.{index}.content")
                for index, one in enumerate(body.inputs)
            ]
        for index, text in enumerate(texts):
            if not text:
                raise RequestError.about(f"{name}.{index}", "must not be empty")
        if not texts:
            raise RequestError.about(name, "must not be empty")
        return texts

    def _prompt(self, input_type: str | None) -> str:
        """The text before those of `input_type`; raises RequestError for an unknown one."""
        if input_type is None:
            return ""
        prompts = facts_of(self._context).prompts
        for name in (input_type, *_INPUT_TYPES.get(input_type, ())):
            if name in prompts:
                return prompts[name]
        if input_type not in _INPUT_TYPES:
            known = ", ".join(sorted({*prompts, *_INPUT_TYPES}))
            raise RequestError.about(
                "input_type", f"must be one of {known}, not {input_type!r:.40}"
            )
        return ""

    async def _num_uncounted(self, body: CohereEmbedRequest, prefix: str) -> int:
        """The tokens of `prefix`, and before it, that the model leaves out of its vectors.

        As sentence-transformers counts them. Raises RequestError.
        """
        if not prefix or facts_of(self._context).counts_prompts:
            return 0
        if body.truncation_side == "left":
            raise RequestError.about(
                "truncate", "must not be START: the model leaves the beginning out of its vectors"
            )
        ids = await self._context.encode(prefix, "input_type", special=True, cut=False)
        ends = bool(ids) and ids[-1] in self._context.tokenizer.all_special_ids
        return len(ids) - ends


def _set_truncation(body: CohereEmbedRequest) -> None:
    """Say in vLLM's fields what Cohere's ask to be cut."""
    if body.truncate != "NONE":
        body.truncate_prompt_tokens = body.max_tokens or -1
        body.truncation_side = "left" if body.truncate == "START" else None


def _check_lengths(lengths: list[int], most: int) -> None:
    if max(lengths) > most:
        raise RequestError(
            f"a text has {max(lengths)} tokens, more than the {most} of max_tokens; shorten it or "
            "send truncate END",
            "max_tokens",
        )


def _cohere_payload(body: CohereEmbedRequest, pooled: Pooled) -> dict[str, object]:
    writers: dict[str, Callable[[Any], object]] = {
        "float": lambda vector: vector.tolist(),
        "base64": lambda vector: as_base64(vector, endianness="little"),
        "binary": lambda vector: packed_bits(vector, signed=True),
        "ubinary": lambda vector: packed_bits(vector, signed=False),
    }
    types = body.embedding_types or ["float"]
    units = {"input_tokens": pooled.num_tokens, "image_tokens": 0}
    payload: dict[str, object] = {
        "id": pooled.request_id,
        "embeddings": {kind: [writers[kind](one) for one in pooled.vectors] for kind in types},
    }
    if body.texts is not None:
        payload["texts"] = body.texts
    payload["meta"] = {"api_version": {"version": "2"}, "billed_units": units}
    payload["response_type"] = "embeddings_by_type"
    return payload


class ClassifyService:
    def __init__(self, context: ServingContext) -> None:
        self._context = context

    async def classify(self, request: Request) -> Response:
        """Give the classes of texts, token ids or conversations."""
        context = self._context
        body = read(ClassifyRequest, await read_json(request))
        request_id = begin(context, body, "classify-", request)
        params = PoolingParams(task="classify", use_activation=body.use_activation)
        with naming(body.texts_field):
            prompts = await prompts_of(context, body)
            pooled = await pool(context, body, request, request_id, prompts, params)
        labels = facts_of(context).id2label
        data = []
        for index, vector in enumerate(pooled.vectors):
            best = int(np.argmax(vector))
            label = labels[best] if best < len(labels) else None
            found = {"label": label, "probs": vector.tolist(), "num_classes": len(vector)}
            data.append({"index": index, **found})
        identity = context.identity(request_id, "list")
        payload = {**identity, "data": data, "usage": pooled.usage}
        return await written(context, pooled, lambda: payload)


async def written(
    context: ServingContext, pooled: Pooled, write: Callable[[], dict[str, object]]
) -> Response:
    """The reply whose content is `write()`; of many numbers it is made by a thread."""
    if pooled.num_numbers <= _FEW_NUMBERS:
        return context.large_replies.json(write())
    async with context.large_replies.making():
        body = await asyncio.to_thread(lambda: msgspec.json.encode(write()))
        return context.large_replies.response(body)
