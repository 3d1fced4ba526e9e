"""A batch's files over HTTP: GET for the input, PUT for the output.

Both stream between a file and an allowed host. No message shows a URL's query or password.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urljoin

from vllm_lite import __version__
from vllm_lite.batch.urls import HttpUrl, Reach, parse_url
from vllm_lite.errors import UsageError
from vllm_lite.log import init_logger

logger = init_logger(__name__)

TRIES = 5
# Seconds between tries, of silence from a server, and of a whole download.
DELAY = 5.0
TIMEOUT = 300.0
MAX_SECONDS = 12 * 3600.0
MAX_INPUT_BYTES = 64 << 30
_CHUNK = 1 << 20
# The statuses below 500 that another try may change.
_PASSING = (408, 425, 429)


class _RefusedError(Exception):
    """A reply other than success."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        super().__init__(f"HTTP {response.status} {response.reason}")
        self.is_final = response.status < 500 and response.status not in _PASSING


def fetch(url: HttpUrl, path: Path, reach: Reach) -> None:
    """Download `url` to the file; raises UsageError after TRIES tries."""

    def attempt() -> None:
        with _reply("GET", url, reach) as response:
            expected = response.getheader("Content-Length")
            size = _copy(response, path)
        if expected is not None and size != int(expected):
            raise ConnectionError(f"the connection ended after {size} of {expected} bytes")

    _try_often(f"GET {url.name}", attempt)


def upload(path: Path, url: HttpUrl, reach: Reach) -> None:
    """Upload the file to `url`; raises UsageError after TRIES tries."""

    def attempt() -> None:
        with path.open("rb") as file, _reply("PUT", url, reach, file):
            pass

    _try_often(f"PUT {url.name}", attempt)


@contextlib.contextmanager
def _reply(
    method: str, url: HttpUrl, reach: Reach, body: BinaryIO | None = None
) -> Iterator[http.client.HTTPResponse]:
    """A successful reply; raises _RefusedError, OSError and, on a redirect, UsageError."""
    with contextlib.closing(_Connection(url, reach.addresses(url))) as connection:
        response = _send(connection, method, url, body)
        location = response.getheader("Location")
        if location and 300 <= response.status < 400:
            there = parse_url(urljoin(url.name, location)).name
            raise UsageError(f"{url.name} redirects to {there}; give the address that it leads to")
        if not 200 <= response.status < 300:
            raise _RefusedError(response)
        yield response


def _send(
    connection: http.client.HTTPConnection, method: str, url: HttpUrl, body: BinaryIO | None
) -> http.client.HTTPResponse:
    headers = {"Host": url.netloc, "User-Agent": f"vllm-lite/{__version__}", "Connection": "close"}
    if url.authorization is not None:
        headers["Authorization"] = url.authorization
    if body is not None:
        headers["Content-Type"] = "application/octet-stream"
        headers["Content-Length"] = str(body.seek(0, 2))
        body.seek(0)
    try:
        connection.request(method, url.target, body=body, headers=headers)
    except (BrokenPipeError, ConnectionResetError):
        # The server may have refused early, with a reply that says why.
        if connection.sock is None:
            raise
    return connection.getresponse()


class _Connection(http.client.HTTPConnection):
    """A connection to one of the checked addresses, under the URL's host name."""

    def __init__(self, url: HttpUrl, addresses: list[tuple[Any, ...]]) -> None:
        super().__init__(url.host, url.port, timeout=TIMEOUT, blocksize=_CHUNK)
        self._url = url
        self._addresses = addresses

    def connect(self) -> None:
        """Try the addresses in turn; raises the last one's OSError."""
        failure = OSError("no address")
        for family, place in self._addresses:
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.settimeout(TIMEOUT)
            try:
                sock.connect(place)
                if self._url.scheme == "https":
                    context = ssl.create_default_context()
                    sock = context.wrap_socket(sock, server_hostname=self._url.host)
            except OSError as error:
                sock.close()
                failure = error
            else:
                self.sock = sock
                return
        raise failure


def _copy(response: http.client.HTTPResponse, path: Path) -> int:
    size = 0
    deadline = time.monotonic() + MAX_SECONDS
    try:
        file = path.open("wb", buffering=0)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    with file:
        # read1 returns what has arrived, so that a slow download meets the deadline too.
        while chunk := response.read1(_CHUNK):
            size += len(chunk)
            if size > MAX_INPUT_BYTES:
                raise UsageError(f"the input is longer than {MAX_INPUT_BYTES >> 30} GiB; split it")
            if time.monotonic() > deadline:
                raise UsageError(f"the input did not arrive within {MAX_SECONDS / 3600:g} hours")
            rest = memoryview(chunk)
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError as error:
                # Trying again cannot help.
                raise UsageError(f"cannot write {path}: {error.strerror}") from None
    return size


def _try_often(what: str, attempt: Callable[[], None]) -> None:
    for number in range(1, TRIES + 1):
        try:
            return attempt()
        except _RefusedError as error:
            cause, is_last = str(error), error.is_final
        except ssl.SSLCertVerificationError as error:
            cause, is_last = f"certificate: {error.verify_message}", True
        except socket.gaierror as error:
            cause, is_last = str(error.strerror), error.errno == socket.EAI_NONAME
        except (OSError, http.client.HTTPException) as error:
            cause = str(getattr(error, "strerror", None) or error or type(error).__name__)
            is_last = False
        if is_last or number == TRIES:
            raise UsageError(f"{what} failed: {cause} (try {number} of {TRIES})")
        logger.warning("%s failed: %s; trying again in %g s", what, cause, DELAY)
        time.sleep(DELAY)
