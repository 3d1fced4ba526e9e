"""A batch's files over HTTP: the input comes with GET, the output goes with PUT.

Both go through files, never through memory. No message shows a URL's query or password, which
may be what gives access.
"""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from vllm_lite.errors import UsageError
from vllm_lite.log import init_logger

logger = init_logger(__name__)

TRIES = 5
# Seconds from one try to the next, and until a silent server is given up.
DELAY = 5.0
TIMEOUT = 300.0
_CHUNK = 1 << 20
# Of what is below 500 only these may be mended by another try.
_PASSING = (408, 425, 429)


def is_url(location: str) -> bool:
    """Whether a file is meant to come or go over HTTP."""
    return location.lower().startswith(("http://", "https://"))


def public_name(url: str) -> str:
    """The URL without its password, query and fragment; raises UsageError without a host."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError as error:
        raise UsageError(f"a URL is not valid: {error}") from None
    if not parts.hostname:
        raise UsageError(f"the URL {parts.scheme}://{parts.path} names no host")
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"


def fetch(url: str, path: Path) -> None:
    """Put what is at `url` into the file; raises UsageError after TRIES tries."""

    def attempt() -> None:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
            expected = response.headers.get("Content-Length")
            size = _copy(response, path)
        if expected is not None and size != int(expected):
            raise ConnectionError(f"the connection ended after {size} of {expected} bytes")

    _try_often(f"GET {public_name(url)}", attempt)


def upload(path: Path, url: str) -> None:
    """Put the file to `url`; raises UsageError after TRIES tries."""

    def attempt() -> None:
        size = path.stat().st_size
        headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        with path.open("rb") as file:
            request = urllib.request.Request(url, data=file, headers=headers, method="PUT")
            urllib.request.urlopen(request, timeout=TIMEOUT).close()

    _try_often(f"PUT {public_name(url)}", attempt)


def _copy(response: http.client.HTTPResponse, path: Path) -> int:
    size = 0
    try:
        file = path.open("wb", buffering=0)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    with file:
        while chunk := response.read(_CHUNK):
            size += len(chunk)
            rest = memoryview(chunk)
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError as error:
                # Not the server's fault: trying again cannot help.
                raise UsageError(f"cannot write {path}: {error.strerror}") from None
    return size


def _try_often(what: str, attempt: Callable[[], None]) -> None:
    for number in range(1, TRIES + 1):
        try:
            return attempt()
        except urllib.error.HTTPError as error:
            cause = f"HTTP {error.code} {error.reason}"
            is_last = error.code < 500 and error.code not in _PASSING
        except (OSError, http.client.HTTPException) as error:
            cause = str(getattr(error, "reason", None) or error or type(error).__name__)
            is_last = False
        if is_last or number == TRIES:
            raise UsageError(f"{what} failed: {cause} (try {number} of {TRIES})")
        logger.warning("%s failed: %s; trying again in %g s", what, cause, DELAY)
        time.sleep(DELAY)
