"""JSON bodies: from bytes to a checked request model, with errors that name the field.

Knows no particular request. Invariant: what comes out holds finite numbers only, and is decoded
within the time that one request may hold the event loop.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from vllm_lite.errors import RequestError
from vllm_lite.log import init_logger
from vllm_lite.server.errors import MAX_BODY_BYTES, BodyTooLargeError
from vllm_lite.server.generation import note_user

logger = init_logger(__name__)

M = TypeVar("M", bound=BaseModel)

# Values in lists and objects, and among them names, lists and objects, which cost more.
MAX_VALUES = 1 << 18
MAX_NAMES = 3 << 14
MAX_DEPTH = 256

_ALL_BUT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_LONG_PART = 1 << 15
# Longer bodies that cannot be decoded are not read again to say where it is.
_MAX_EXPLAINED = 1 << 18
# Entries of a list or object of a field that is no prompt.
MAX_ENTRIES = 1 << 14
_MAX_WARNED = 256
_MAX_NAMED = 8
_MAX_REPORTED = 5
_warned: set[str] = set()
# What may have an entry for each token of a vocabulary or a context.
_TOKEN_FIELDS = frozenset({"prompt", "input", "tokens", "allowed_token_ids"})
_SURROGATE = re.compile("[\ud800-\udfff]")
# Where a request's scope has its body, once it was read.
_READ = "vllm_lite.body"


class BodyMeter:
    """Feed it every part of one body; raises RequestError as soon as that is too much."""

    def __init__(self, context_length: int = 0) -> None:
        """A prompt of `context_length` token ids may come, however long that is."""
        self._max_values = max(MAX_VALUES, context_length + MAX_NAMES)
        self._size = self._values = self._names = self._depth = 0
        self._is_in_text = False
        # A backslash at the end of a part belongs to what comes.
        self._rest = b""

    def feed(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > MAX_BODY_BYTES:
            raise BodyTooLargeError(f"The body is larger than {MAX_BODY_BYTES} bytes")
        data = self._rest + part
        plain = data.replace(b"\\\\", b"")
        self._rest = b"\\" if plain.endswith(b"\\") else b""
        pieces = plain.replace(b'\\"', b"").split(b'"')
        outside = b"".join(pieces[self._is_in_text :: 2])
        self._is_in_text ^= len(pieces) % 2 == 0
        brackets = outside.translate(None, _ALL_BUT_BRACKETS)
        self._values += outside.count(b",")
        self._names += outside.count(b":") + brackets.count(b"[") + brackets.count(b"{")
        self._follow(brackets)
        if self._values > self._max_values or self._names > MAX_NAMES:
            raise BodyTooLargeError(
                f"The body holds more than the {self._max_values} values that are read, or more "
                f"than {MAX_NAMES} names, lists and objects"
            )

    def _follow(self, brackets: bytes) -> None:
        """Track the depth; empty lists and objects are skipped at once."""
        for piece in brackets.replace(b"[]", b"").replace(b"{}", b""):
            self._depth += 1 if piece in b"[{" else -1
            if self._depth > MAX_DEPTH:
                raise RequestError("The body is nested too deeply")


async def read_json(request: Request) -> dict[str, object]:
    """The body as a JSON object, which several may read; raises RequestError."""
    found: dict[str, object] | None = request.scope.get(_READ)
    if found is None:
        found = request.scope[_READ] = await _read_json(request)
        note_user(found.get("user"))
    return found


async def _read_json(request: Request) -> dict[str, object]:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise RequestError("Send the body as JSON, with the header Content-Type: application/json")
    app = request.scope.get("app")  # a line of a batch comes without
    parts, meter = [], BodyMeter(app.state.context.max_model_len if app is not None else 0)
    async for part in request.stream():
        meter.feed(part)
        parts.append(part)
        if len(part) > _LONG_PART:
            await asyncio.sleep(0)
    raw = b"".join(parts)
    parts.clear()
    if len(raw) > _LONG_PART:
        await asyncio.sleep(0)
    value = decode_json(raw)
    if len(raw) > _LONG_PART:
        # What is made of a large body takes a turn of its own.
        await asyncio.sleep(0)
    if not isinstance(value, dict):
        raise RequestError("The body must be a JSON object")
    return value


def json_response(payload: Mapping[str, object]) -> Response:
    """A small reply; for large ones see LargeReplies."""
    return Response(msgspec.json.encode(payload), media_type="application/json")


def decode_json(raw: bytes) -> object:
    """Decode strict JSON; raises RequestError, naming the field that holds NaN or Infinity."""
    try:
        # What comes of it has no cycles to look for.
        gc.disable()
        return msgspec.json.decode(raw)
    except RecursionError:
        raise RequestError("The body is nested too deeply") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise _json_error(raw, str(error)) from None
    finally:
        gc.enable()


def _json_error(raw: bytes, reason: str) -> RequestError:
    """The cause of a failed decode, from Python's lenient decoder where that knows more."""
    if len(raw) > _MAX_EXPLAINED:
        return RequestError(f"The body is not valid JSON: {reason}")
    if not raw.strip():
        return RequestError("The body is empty; send a JSON object")
    try:
        value = json.loads(raw.decode())
    except UnicodeDecodeError:
        return RequestError("The body is not valid UTF-8")
    except RecursionError:
        return RequestError("The body is nested too deeply")
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        return RequestError(f"The body is not valid JSON: {error.msg} at {place}")
    except ValueError:
        return RequestError("The body holds a number with too many digits")
    try:
        path = _path_of(value, _is_not_finite)
        if path is not None:
            return RequestError.about(path, "must be a finite number")
        if _path_of(value, _is_no_text) is not None:
            return RequestError("The body holds half of a surrogate pair, which is no text")
    except RecursionError:
        return RequestError("The body is nested too deeply")
    return RequestError(f"The body is not valid JSON: {reason}")


def _is_not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _is_no_text(value: object) -> bool:
    return isinstance(value, str) and _SURROGATE.search(value) is not None


def _path_of(value: object, is_bad: Callable[[object], bool]) -> str | None:
    """Dotted path of the first key or value under `value` that `is_bad`."""
    if is_bad(value):
        return ""
    entries: Iterable[tuple[object, object]] = ()
    if isinstance(value, dict):
        entries = value.items()
    elif isinstance(value, list):
        entries = enumerate(value)
    for key, item in entries:
        rest = "" if is_bad(key) else _path_of(item, is_bad)
        if rest is not None:
            return f"{key}.{rest}".rstrip(".")
    return None


def parse(model: type[M], body: dict[str, object], ignored: frozenset[str] = frozenset()) -> M:
    """Check `body` against `model`; raises RequestError.

    Unknown fields are dropped, with a log line for those not met before; those in `ignored`
    without.
    """
    _check_sizes(model, body)
    try:
        checked = model.model_validate(body)
    except ValidationError as error:
        raise _schema_error(error) from None
    _check_flags(checked, body, "")
    warn_unknown(body.keys() - model.model_fields.keys() - ignored)
    return checked


def _check_sizes(model: type[BaseModel], body: dict[str, object]) -> None:
    """Refuse long lists and objects before a model looks at each entry, and complains of it."""
    for name in body.keys() & model.model_fields.keys():
        value = body[name]
        if not isinstance(value, list | dict) or len(value) <= MAX_ENTRIES:
            continue
        if not (name in _TOKEN_FIELDS and isinstance(value, list) and are_tokens(value)):
            raise RequestError.about(
                name, f"must have at most {MAX_ENTRIES} entries, got {len(value)}"
            )


def _check_flags(checked: BaseModel, body: Mapping[str, object], path: str) -> None:
    """Refuse flags for numbers and numbers for flags, which pydantic takes for each other."""
    for name in checked.model_fields_set & body.keys():
        given, read = body[name], getattr(checked, name)
        is_flag = isinstance(given, bool) and type(read) in (int, float)
        if is_flag or (_has_flag(given) and not _has_flag(read)):
            raise RequestError(f"{path}{name}: Input should be a number, not a flag", path + name)
        if isinstance(read, bool) and type(given) in (int, float):
            raise RequestError(f"{path}{name}: Input should be true or false", path + name)
        if isinstance(read, BaseModel) and isinstance(given, dict):
            _check_flags(read, given, f"{path}{name}.")


def _has_flag(values: object) -> bool:
    """Whether `values` is a list with true or false in it."""
    return isinstance(values, list) and bool in set(map(type, values))


def are_tokens(values: list[object]) -> bool:
    """Whether `values` are whole numbers and nothing else; True where there are none."""
    try:
        msgspec.convert(values, list[int])
    except msgspec.ValidationError:
        return False
    return True


def warn_unknown(names: set[str]) -> None:
    """Log the fields that no request had before; what they ask for is ignored."""
    new = sorted(names - _warned)[: _MAX_WARNED - len(_warned)]
    if new:
        _warned.update(new)
        shown = ", ".join(repr(name[:64]) for name in new[:_MAX_NAMED])
        more = f" and {len(new) - _MAX_NAMED} more" if len(new) > _MAX_NAMED else ""
        logger.warning("unknown fields of a request are ignored: %s%s", shown, more)


def _schema_error(error: ValidationError) -> RequestError:
    reasons: dict[str, str] = {}
    for entry in error.errors(include_url=False, include_context=False, include_input=False):
        reasons.setdefault(_field(entry["loc"]), entry["msg"])
    shown = list(reasons.items())[:_MAX_REPORTED]
    text = "; ".join(f"{name}: {reason}" for name, reason in shown)
    return RequestError(text, shown[0][0])


def _field(location: tuple[int | str, ...]) -> str:
    """Dotted path of a field, without the names that pydantic gives to a union's members."""
    first, *rest = location
    named = [str(part) for part in rest if isinstance(part, int)]
    return ".".join([str(first), *named])
