"""Who asks: the tenant, the trace and the id of the HTTP request that is being served.

Belongs to the task that serves it, so that whatever reaches the engine from there, by whichever
route, says the same. Invariant: a tenant is a hash; neither key nor user can be read from it.
"""

from __future__ import annotations

import hashlib
from contextvars import ContextVar
from dataclasses import replace

from starlette.datastructures import Headers

from vllm_lite.engine.client import NOBODY, Origin

# The context of a trace, by the W3C's recommendation.
_TRACE_HEADERS = ("traceparent", "tracestate")
_MAX_TRACE_HEADER = 512

_origin: ContextVar[Origin] = ContextVar("origin", default=NOBODY)
_request_id: ContextVar[str] = ContextVar("request_id", default="")


def tenant_of(name: str | bytes) -> str:
    """The tenant that a key or a user's name stands for."""
    return hashlib.sha256(name if isinstance(name, bytes) else name.encode()).hexdigest()[:32]


def begin(tenant: str, headers: Headers) -> None:
    """A request of `tenant` ("" where no key was asked for) is served from here on."""
    found = {name: headers[name] for name in _TRACE_HEADERS if name in headers}
    trace = {name: text for name, text in found.items() if len(text) <= _MAX_TRACE_HEADER}
    _origin.set(Origin(tenant, trace))


def note_user(user: object) -> None:
    """The body names its user: the tenant, unless the request came with a key."""
    origin = _origin.get()
    if isinstance(user, str) and user and not origin.tenant:
        _origin.set(replace(origin, tenant=tenant_of(user)))


def note_request_id(request_id: str) -> None:
    """The engine and the log know the request by this id."""
    _request_id.set(request_id)


def current_request_id() -> str:
    """The id of the request that this task serves; "" where it has none."""
    return _request_id.get()


def current_origin() -> Origin:
    """Whose request this task serves; NOBODY outside of any."""
    return _origin.get()
