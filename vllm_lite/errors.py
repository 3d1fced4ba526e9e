"""The one exception tree.

VLLMLiteError
├── UsageError            a user's mistake in options or environment; one line: cause, fix
│   ├── NotInBuildError   an option, or a value of it, that this build does not have
│   └── CheckpointError   a model's files are missing, damaged or not supported
├── RequestError          one request is refused (HTTP 400), names the field in `param`
│   ├── NotFoundError     unknown model or object (404)
│   ├── QueueFullError    admission limit reached (429)
│   └── UnavailableError  not serving just now: draining (503)
├── EngineGenerateError   one request failed inside the engine (500)
└── EngineDeadError       the engine is gone; nothing more can be served (500, then exit)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self


class VLLMLiteError(Exception):
    """Root of every error that this package raises on purpose."""


class UsageError(VLLMLiteError, ValueError):
    """A user's mistake in options, environment or files; the message names the fix."""


class NotInBuildError(UsageError):
    """An option, or a value of it, that is right but not available in this build."""


class CheckpointError(UsageError):
    """A model's files are missing, damaged, or of a kind that is not supported."""


class RequestError(VLLMLiteError, ValueError):
    """One request is refused; `param` names the offending field where there is one."""

    status = 400
    kind = "BadRequestError"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    @classmethod
    def about(cls, field: str, rule: str) -> Self:
        """The refusal of a field by the rule that it breaks."""
        return cls(f"{field} {rule}", field)


class NotFoundError(RequestError):
    """The model or object that the request names does not exist."""

    status = 404
    kind = "NotFoundError"


class QueueFullError(RequestError):
    """The waiting queue is at its limit; the client should retry later."""

    status = 429
    kind = "TooManyRequestsError"

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class UnavailableError(RequestError):
    """The server takes no new requests just now, for example while it drains."""

    status = 503
    kind = "ServiceUnavailableError"


class EngineGenerateError(VLLMLiteError):
    """One request failed inside the engine; the others go on."""


class EngineDeadError(VLLMLiteError):
    """The engine core is gone; the message carries the cause it left behind."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The `known` word that a mistyped `word` is closest to, if any."""
    import difflib

    close = difflib.get_close_matches(word, list(known), n=1)
    return close[0] if close else None
