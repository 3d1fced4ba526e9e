"""The application: every route, who may use it, and what a failure looks like.

Owns the table of routes. Knows an engine only as an EngineClient. Invariant: a route is guarded
unless the table says that it is open, and no failure leaves in another shape than errors.py's.
"""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.routing import compile_path
from starlette.types import Receive, Scope, Send

from vllm_lite import __version__, envs
from vllm_lite.config.server import ServerConfig
from vllm_lite.engine.client import EngineClient
from vllm_lite.errors import RequestError
from vllm_lite.server.absent_routes import missing_for
from vllm_lite.server.anthropic.messages_protocol import CountTokensRequest, MessagesRequest
from vllm_lite.server.anthropic.messages_service import MessagesService, error_response
from vllm_lite.server.context import ServingContext
from vllm_lite.server.dev_service import DevService
from vllm_lite.server.documents import DocumentService, WebPageService
from vllm_lite.server.errors import failure_of, router_failure
from vllm_lite.server.generation import ApiKeys, ClientLeftError, begin_request
from vllm_lite.server.health import HealthService, LiveService, add_load_report
from vllm_lite.server.middleware import Cors, CountRequests, RequestIdHeader, RootPath
from vllm_lite.server.openai.batches.service import (
    BatchesService,
    BatchRequest,
    FilesService,
    FileUpload,
)
from vllm_lite.server.openai.batches.store import BatchStore
from vllm_lite.server.openai.chat_batch import ChatBatchRequest, ChatBatchService
from vllm_lite.server.openai.chat_protocol import ChatCompletionRequest
from vllm_lite.server.openai.chat_service import ChatService
from vllm_lite.server.openai.completion_protocol import CompletionRequest
from vllm_lite.server.openai.completion_service import CompletionService, InvocationsService
from vllm_lite.server.openai.models_service import ModelsService
from vllm_lite.server.openai.responses.protocol import ResponsesRequest
from vllm_lite.server.openai.responses.service import ResponsesService
from vllm_lite.server.openai.tokenize_service import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeRequest,
    TokenizeService,
)
from vllm_lite.server.openapi import Route, openapi_document
from vllm_lite.server.pooling.routes import generation_refusals, pooling_refusals, pooling_routes
from vllm_lite.server.process.peers import Peers
from vllm_lite.server.startup_checks import load_middleware

# Whole, or as events where the request asks for a stream.
_STREAMED: dict[str, Any] = {"media": ("application/json", "text/event-stream")}
_REPORTING: dict[str, Any] = {**_STREAMED, "reports_load": True}
_ANTHROPIC: dict[str, Any] = {"refuse": error_response}
# The status for a client that has left; it is never read.
_CLIENT_CLOSED_REQUEST = 499


def build_app(
    client: EngineClient, server_config: ServerConfig, *, peers: Peers | None = None
) -> FastAPI:
    """The application that serves `client`; raises UsageError for an unusable option.

    `app.state.context` is its ServingContext, for whoever drains it. `peers` are the other
    processes of the same server.
    """
    # FastAPI's own routes to its documents would know no keys.
    app = FastAPI(title="vllm-lite", version=__version__, openapi_url=None, redirect_slashes=False)
    context = ServingContext(client, server_config)
    context.peers = peers or Peers()
    app.state.context = context
    keys = ApiKeys(server_config.api_key)
    table = _watching_routes(context) + _routes(context)
    if server_config.batch_storage_dir:
        table += _storage_routes(context, server_config.batch_storage_dir)
    if envs.VLLM_SERVER_DEV_MODE:
        table += _dev_routes(context)
    if not server_config.disable_fastapi_docs:
        table += _document_routes(DocumentService(lambda: app.openapi()))
    if not server_config.disable_web_page:
        table += _page_routes(WebPageService(), LiveService(context))
    for route in table:
        # FastAPI's own would solve dependencies that no endpoint has.
        served = StarletteRoute(
            route.path, ServedRoute(route, keys, client), methods=[route.method], name=route.path
        )
        served.methods = {route.method}
        app.routes.append(served)
    app.add_exception_handler(HTTPException, _on_router_error(keys, table))
    app.add_exception_handler(Exception, _on_middleware_error)
    _describe(app, table)
    _add_middleware(app, context)
    return app


def _watching_routes(context: ServingContext) -> list[Route]:
    health = HealthService(context)
    return [
        Route("GET", "/health", health.health, media=(), is_open=True),
        Route("GET", "/ping", health.health, media=(), is_open=True),
        Route("POST", "/ping", health.health, media=(), is_open=True),
        Route("GET", "/version", health.version, is_open=True),
        Route("GET", "/metrics", health.metrics, media=("text/plain",), is_open=True),
        Route("GET", "/load", health.load),
    ]


def _routes(context: ServingContext) -> list[Route]:
    """Those for any model, and those that its tasks decide on."""
    models, tokens = ModelsService(context), TokenizeService(context)
    table = [
        Route("GET", "/v1/models", models.list),
        Route("GET", "/v1/models/{model:path}", models.retrieve),
    ]
    generation = _generation_routes(context)
    facts = context.client.config.facts.pooling
    if facts is None:
        table += generation + pooling_refusals()
    else:
        own = pooling_routes(context, facts)
        answered = {route.path for route in own}
        table += own
        table += generation_refusals([one for one in generation if one.path not in answered])
    table += [
        Route("POST", "/tokenize", tokens.tokenize, (TokenizeRequest, TokenizeChatRequest)),
        Route("POST", "/detokenize", tokens.detokenize, DetokenizeRequest),
    ]
    if context.server_config.enable_tokenizer_info_endpoint:
        table.append(Route("GET", "/tokenizer_info", tokens.describe))
    return table


def _generation_routes(context: ServingContext) -> list[Route]:
    chat, completion = ChatService(context), CompletionService(context)
    batch = ChatBatchService(context)
    responses, messages = ResponsesService(context), MessagesService(context)
    return [
        Route("POST", "/v1/chat/completions", chat.create, ChatCompletionRequest, **_REPORTING),
        Route("POST", "/v1/chat/completions/batch", batch.create, ChatBatchRequest),
        Route("POST", "/v1/completions", completion.create, CompletionRequest, **_REPORTING),
        Route("POST", "/v1/responses", responses.create, ResponsesRequest, **_STREAMED),
        Route("GET", "/v1/responses/{response_id}", responses.retrieve, **_STREAMED),
        Route("DELETE", "/v1/responses/{response_id}", responses.delete),
        Route("GET", "/v1/responses/{response_id}/input_items", responses.input_items),
        Route("POST", "/v1/responses/{response_id}/cancel", responses.cancel),
        Route("POST", "/v1/messages", messages.create, MessagesRequest, **_STREAMED, **_ANTHROPIC),
        Route(
            "POST",
            "/v1/messages/count_tokens",
            messages.count_tokens,
            CountTokensRequest,
            **_ANTHROPIC,
        ),
        Route(
            "POST",
            "/invocations",
            InvocationsService(chat, completion).create,
            (ChatCompletionRequest, CompletionRequest),
            **_REPORTING,
        ),
    ]


def _storage_routes(context: ServingContext, folder: str) -> list[Route]:
    store = BatchStore(Path(folder), context.server_config.batch_storage_limit)
    files, batches = FilesService(store), BatchesService(context, store)
    return [
        Route("POST", "/v1/files", files.create, FileUpload, body_media="multipart/form-data"),
        Route("GET", "/v1/files", files.list),
        Route("GET", "/v1/files/{file_id}", files.retrieve),
        Route("DELETE", "/v1/files/{file_id}", files.delete),
        Route("GET", "/v1/files/{file_id}/content", files.content, media=("*/*",)),
        Route("POST", "/v1/batches", batches.create, BatchRequest),
        Route("GET", "/v1/batches", batches.list),
        Route("GET", "/v1/batches/{batch_id}", batches.retrieve),
        Route("POST", "/v1/batches/{batch_id}/cancel", batches.cancel),
    ]


def _dev_routes(context: ServingContext) -> list[Route]:
    dev = DevService(context)
    return [
        Route("POST", "/pause", dev.pause),
        Route("POST", "/resume", dev.resume),
        Route("GET", "/is_paused", dev.is_paused),
        Route("POST", "/sleep", dev.sleep),
        Route("POST", "/wake_up", dev.wake_up),
        Route("GET", "/is_sleeping", dev.is_sleeping),
        Route("POST", "/abort_requests", dev.abort_requests),
        Route("POST", "/reset_prefix_cache", dev.reset_prefix_cache),
        Route("GET", "/server_info", dev.server_info),
    ]


def _document_routes(documents: DocumentService) -> list[Route]:
    return [
        Route("GET", "/openapi.json", documents.schema),
        Route("GET", "/docs", documents.swagger, media=("text/html",)),
        Route("GET", "/docs/{name}", documents.asset, media=("*/*",)),
        Route("GET", "/redoc", documents.redoc, media=("text/html",)),
    ]


def _page_routes(web: WebPageService, live: LiveService) -> list[Route]:
    return [
        Route("GET", "/web/live", live.stream, media=("text/event-stream",), is_public=False),
        Route("GET", "/", web.page, media=("text/html",), is_open=True),
        Route("GET", "/web/{name:path}", web.asset, media=("*/*",), is_open=True),
    ]


class ServedRoute:
    """A route's endpoint behind its guard, as an ASGI application; errors become responses."""

    def __init__(self, route: Route, keys: ApiKeys, client: EngineClient) -> None:
        self.route = route
        self._keys = keys
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(Request(scope, receive))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        route = self.route
        try:
            if not route.is_open:
                begin_request(self._keys.check(request.headers), request.headers)
            response = await route.endpoint(request)
            if route.reports_load:
                add_load_report(request, response, self._client.registry)
            return response
        except (ClientLeftError, ClientDisconnect):
            return Response(status_code=_CLIENT_CLOSED_REQUEST)
        except Exception as error:
            return route.refuse(failure_of(error, _error_id(request)))


def _on_router_error(
    keys: ApiKeys, table: list[Route]
) -> Callable[[Request, Any], Awaitable[Response]]:
    """Unknown paths and wrong methods; without a key, which of them exist stays hidden."""
    methods: dict[str, list[str]] = {}
    for route in table:
        methods.setdefault(route.path, []).append(route.method)
    takes = [(compile_path(path)[0], sorted(found)) for path, found in methods.items()]
    has_storage = "/v1/batches" in methods

    async def answer(request: Request, error: HTTPException) -> Response:
        try:
            keys.check(request.headers)
        except RequestError as refusal:
            return failure_of(refusal, "").response()
        path = request.scope["path"].removeprefix(request.scope["root_path"])
        need = missing_for(path, has_storage=has_storage, is_dev_mode=envs.VLLM_SERVER_DEV_MODE)
        if need is not None:
            error = HTTPException(501, need)
        elif error.status_code == 405:
            # The router names the methods of one of the path's routes.
            allowed = next(found for pattern, found in takes if pattern.match(path))
            error = HTTPException(405, headers={"Allow": ", ".join(allowed)})
        return router_failure(error, dict(request.scope)).response()

    return answer


async def _on_middleware_error(request: Request, error: Exception) -> Response:
    """The response to an error of the user's own middleware; Starlette logs it too."""
    return failure_of(error, _error_id(request)).response()


def _error_id(request: Request) -> str:
    return (request.headers.get("x-request-id") or uuid.uuid4().hex)[:256]


def _describe(app: FastAPI, table: list[Route]) -> None:
    """Have the OpenAPI document name the bodies, which endpoints read by themselves."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = openapi_document(app, [one for one in table if one.is_public])
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _add_middleware(app: FastAPI, context: ServingContext) -> None:
    """The last one added is the outermost."""
    server_config = context.server_config
    app.add_middleware(CountRequests, metrics=context.metrics)
    if server_config.allowed_origins:
        app.add_middleware(
            Cors,
            allow_origins=server_config.allowed_origins,
            allow_credentials=server_config.allow_credentials,
            allow_methods=server_config.allowed_methods,
            allow_headers=server_config.allowed_headers,
        )
    if server_config.root_path:
        app.add_middleware(RootPath, root_path=server_config.root_path)
    if server_config.enable_request_id_headers:
        app.add_middleware(RequestIdHeader)
    for custom in load_middleware(server_config.middleware):
        wrap: Any = app.add_middleware if inspect.isclass(custom) else app.middleware("http")
        wrap(custom)
