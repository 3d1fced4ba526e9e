"""The routes that rows of batches may name."""

from __future__ import annotations

from vllm_lite.server.context import ServingContext
from vllm_lite.server.openai.chat_service import ChatService
from vllm_lite.server.openai.completion_service import CompletionService
from vllm_lite.server.openapi import Endpoint
from vllm_lite.server.pooling.routes import batched_routes


def batch_services(context: ServingContext) -> dict[str, Endpoint]:
    """The routes for rows, by the tasks of the engine, and what answers them."""
    facts = context.client.config.facts.pooling
    if facts is not None:
        return batched_routes(context, facts)
    return {
        "/v1/chat/completions": ChatService(context).create,
        "/v1/completions": CompletionService(context).create,
    }
