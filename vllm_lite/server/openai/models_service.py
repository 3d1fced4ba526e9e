"""GET /v1/models and /v1/models/{id}: what is served, under which names."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from vllm_lite.server.body import json_response
from vllm_lite.server.context import ServingContext


class ModelsService:
    def __init__(self, context: ServingContext) -> None:
        self._context = context

    async def list(self, request: Request) -> Response:
        """List the served models."""
        data = [self._entry(name) for name in self._context.model_names]
        return json_response({"object": "list", "data": data})

    async def retrieve(self, request: Request) -> Response:
        """Describe one served model."""
        name = request.path_params["model"]
        self._context.check_model(name)
        return json_response(self._entry(name))

    def _entry(self, name: str) -> dict[str, object]:
        context = self._context
        pooling = context.client.config.facts.pooling
        return {
            "id": name,
            "object": "model",
            "created": context.started,
            "owned_by": "vllm-lite",
            "root": context.client.config.model.model,
            "parent": None,
            "max_model_len": context.max_model_len,
            "task": "generate" if pooling is None else pooling.default_task,
            "permission": [
                {
                    "id": f"modelperm-{name}",
                    "object": "model_permission",
                    "created": context.started,
                    "allow_create_engine": False,
                    "allow_sampling": True,
                    "allow_logprobs": True,
                    "allow_search_indices": False,
                    "allow_view": True,
                    "allow_fine_tuning": False,
                    "organization": "*",
                    "group": None,
                    "is_blocking": False,
                }
            ],
        }
