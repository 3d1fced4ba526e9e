"""A batch's files over HTTP: GET for the input, PUT for the output, and which hosts they may name.

Both stream between a file and an allowed host. A URL is parsed and resolved once: the checked
addresses are the ones to connect to. No message shows a URL's query or password.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, unquote, urljoin, urlsplit

from vllm_lite import __version__
from vllm_lite.errors import UsageError
from vllm_lite.log import init_logger

logger = init_logger(__name__)

_PORTS = {"http": 80, "https": 443}
# Characters that stay as they are in a path or query; a percent sign is already an escape.
_TARGET_SAFE = "%/?:@!$&'()*+,;=~[]"
# Addresses that embed an IPv4 address in their last 32 bits (RFC 6052).
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
TRIES = 5
# Seconds between tries, of silence from a server, and of a whole download.
DELAY = 5.0
TIMEOUT = 300.0
MAX_SECONDS = 12 * 3600.0
MAX_INPUT_BYTES = 64 << 30
_CHUNK = 1 << 20
# The statuses below 500 that another try may change.
_PASSING = (408, 425, 429)


@dataclass(frozen=True, slots=True)
class HttpUrl:
    """An http(s) URL; `target` is its path and query, as in a request line."""

    scheme: str
    host: str
    port: int
    target: str
    # The Authorization header for a login in the URL.
    authorization: str | None = None

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def name(self) -> str:
        """The URL without login and query, which may be secret."""
        return f"{self.scheme}://{self.netloc}{self.target.partition('?')[0]}"


def is_url(location: str) -> bool:
    """Whether a file's location is an http(s) URL."""
    return location.lower().startswith(("http://", "https://"))


def parse_url(url: str) -> HttpUrl:
    """Parse a URL; raises a UsageError that does not repeat it."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
        port = parts.port
        host = host if ":" in host else host.encode("idna").decode("ascii")
    except ValueError as error:  # UnicodeError is one
        raise UsageError(f"a URL is not valid: {error}") from None
    if parts.scheme not in _PORTS:
        raise UsageError(f"a URL must begin with http:// or https://, not {parts.scheme!r:.20}")
    if not host or port == 0:
        raise UsageError(f"the URL {parts.scheme}://{parts.path} names no host")
    target = quote(parts.path or "/", safe=_TARGET_SAFE)
    if parts.query:
        target += "?" + quote(parts.query, safe=_TARGET_SAFE)
    login = None
    if parts.username is not None:
        text = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        login = "Basic " + base64.b64encode(text.encode()).decode("ascii")
    return HttpUrl(parts.scheme, host, port or _PORTS[parts.scheme], target, login)


class Reach:
    """The hosts that a batch may reach: `domains`, or without any, hosts with public addresses."""

    def __init__(self, domains: Sequence[str] = ()) -> None:
        self._domains = frozenset(domain.lower().strip("[]").rstrip(".") for domain in domains)

    def addresses(self, url: HttpUrl) -> list[tuple[Any, ...]]:
        """(family, socket address) of the host, in the order to try them.

        Raises UsageError if the host is not allowed, and OSError if it is unknown.
        """
        if self._domains and url.host not in self._domains:
            raise UsageError(f"{url.host} is not among the --allowed-url-domains")
        found = socket.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
        if not self._domains:
            private = [str(place[0]) for *_, place in found if not _is_public(str(place[0]))]
            if private:
                raise UsageError(
                    f"{url.host} has the private address {private[0]}; if it is meant, give "
                    f"--allowed-url-domains {url.host}"
                )
        return [(family, place) for family, _, _, _, place in found]


def _is_public(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        address = inner or address
    return address.is_global and not address.is_multicast


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
