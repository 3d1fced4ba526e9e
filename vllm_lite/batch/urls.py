"""URLs of a batch's files, and which hosts they may name.

A URL is parsed and resolved once: the checked addresses are the ones to connect to.
"""

from __future__ import annotations

import base64
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from vllm_lite.errors import UsageError

_PORTS = {"http": 80, "https": 443}
# Characters that stay as they are in a path or query; a percent sign is already an escape.
_TARGET_SAFE = "%/?:@!$&'()*+,;=~[]"
# Addresses that embed an IPv4 address in their last 32 bits (RFC 6052).
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


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
        """Host and port, as in a Host header."""
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
        self._check(url)
        found = socket.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
        if not self._domains:
            private = [str(place[0]) for *_, place in found if not _is_public(str(place[0]))]
            if private:
                raise UsageError(
                    f"{url.host} has the private address {private[0]}; if it is meant, give "
                    f"--allowed-url-domains {url.host}"
                )
        return [(family, place) for family, _, _, _, place in found]

    def _check(self, url: HttpUrl) -> None:
        if self._domains and url.host not in self._domains:
            raise UsageError(f"{url.host} is not among the --allowed-url-domains")


def _is_public(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        address = inner or address
    return address.is_global and not address.is_multicast
