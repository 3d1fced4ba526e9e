"""One error shape for every failure under every route.

`{"error": {"message", "type", "param", "code"}}`, `code` being the HTTP status. Owns the map
from exceptions to it. Invariant: the text of an unexpected exception never leaves the process;
the client gets a request id, the log has the rest.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from vllm_lite.errors import (
    EngineDeadError,
    EngineGenerateError,
    QueueFullError,
    RequestError,
    UnavailableError,
)
from vllm_lite.log import init_logger

logger = init_logger(__name__)
# What every error is logged to, its traceback included.
_stacks = init_logger(f"{__name__}.stacks")

_ROUTER_ERRORS = {
    404: ("NotFoundError", "There is no route {method} {path}"),
    405: ("MethodNotAllowedError", "The route {path} does not take {method}"),
    501: ("NotImplementedError", "This server has no route {path}, as it lacks {detail}"),
}


class AuthenticationError(RequestError):
    """The request brings no key, or a wrong one."""

    status = 401
    kind = "AuthenticationError"


MAX_BODY_BYTES = 12 << 20


class BodyTooLargeError(RequestError):
    """The request's body is larger than the server reads."""

    status = 413
    kind = "BodyTooLargeError"


class UnsupportedError(RequestError):
    """The request asks for something that this server cannot do yet."""

    kind = "NotImplementedError"


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as a client sees it."""

    status: int
    kind: str
    message: str
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        return msgspec.json.encode(
            {
                "error": {
                    "message": self.message,
                    "type": self.kind,
                    "param": self.param,
                    "code": self.status,
                }
            }
        )

    def response(self) -> Response:
        return Response(self.body(), self.status, self.headers, media_type="application/json")


def log_stacks(*, is_wanted: bool) -> None:
    """Log the traceback of every error, as --log-error-stack asks, or of none but our own.

    A level, unlike a disabled logger, outlives what uvicorn hands to dictConfig.
    """
    _stacks.setLevel(logging.NOTSET if is_wanted else logging.CRITICAL + 1)


def failure_of(error: BaseException, request_id: str) -> Failure:
    """The failure that a client sees for `error`; logs the details that it must not see."""
    _stacks.error("request %s is answered with an error", request_id, exc_info=error)
    if isinstance(error, RequestError):
        return _refusal(error)
    if isinstance(error, EngineDeadError):
        message = "The engine has stopped; the server is about to exit"
    elif isinstance(error, EngineGenerateError):
        logger.error("request %s failed in the engine: %s", request_id, error)
        message = f"The request failed inside the engine; its id is {request_id}"
    else:
        logger.error("request %s failed unexpectedly", request_id, exc_info=error)
        message = f"The server made an error; the request's id is {request_id}"
    return Failure(500, "InternalServerError", message)


def _refusal(error: RequestError) -> Failure:
    headers: dict[str, str] = {}
    if isinstance(error, QueueFullError):
        headers["Retry-After"] = str(error.retry_after)
    elif isinstance(error, UnavailableError):
        headers["Retry-After"] = "1"
    elif isinstance(error, AuthenticationError):
        headers["WWW-Authenticate"] = "Bearer"
    return Failure(error.status, error.kind, error.message, error.param, headers)


def router_failure(error: HTTPException, scope: dict[str, object]) -> Failure:
    """An error that the router raised: an unknown path or a wrong method."""
    headers = dict(error.headers or {})
    if error.status_code not in _ROUTER_ERRORS:
        return Failure(error.status_code, "BadRequestError", str(error.detail), headers=headers)
    kind, text = _ROUTER_ERRORS[error.status_code]
    message = text.format(method=scope["method"], path=scope["path"], detail=error.detail)
    return Failure(error.status_code, kind, message, headers=headers)
