"""GET /tokenizer_info, with --enable-tokenizer-info-endpoint: what clients template with."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from vllm_lite.server.context import ServingContext


class TokenizerInfoService:
    """The model's tokenizer, described; that does not change, so it is written once."""

    def __init__(self, context: ServingContext) -> None:
        self._context = context
        self._body = b""

    async def describe(self, request: Request) -> Response:
        """Describe the tokenizer and its chat template."""
        if not self._body:
            described = self._context.tokenizer.describe()
            if self._context.chat_template is not None:
                described["chat_template"] = self._context.chat_template
            self._body = msgspec.json.encode(described)
        return Response(self._body, media_type="application/json")
