"""Which host a URL names, and whether a batch may go there.

A URL is parsed once, and the addresses that were checked are those that are connected to, so
that no second look-up can lead elsewhere. Knows no transfer.
"""

from __future__ import annotations

import base64
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from vllm_lite.errors import UsageError

_PORTS = {"http": 80, "https": 443}
# What may stand in a path or query as it is; a percent sign is an escape already.
_TARGET_SAFE = "%/?:@!$&'()*+,;=~[]"
# Addresses whose last 32 bits are an IPv4 address that a gateway goes to (RFC 6052).
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class HttpUrl:
    """The parts of an http(s) URL. `target` is path and query, as a request line has them."""

    scheme: str
    host: str
    port: int
    target: str
    # The value of an Authorization header, from a login in the URL.
    authorization: str | None = None

    @property
    def netloc(self) -> str:
        """Host and port, as a Host header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def name(self) -> str:
        """The URL without login and query, which may be what gives access."""
        return f"{self.scheme}://{self.netloc}{self.target.partition('?')[0]}"


def is_url(location: str) -> bool:
    """Whether a file is meant to come or go over HTTP."""
    return location.lower().startswith(("http://", "https://"))


def parse_url(url: str) -> HttpUrl:
    """The URL's parts; raises UsageError, which does not repeat the URL."""
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
    """The hosts that a batch may go to.

    Those of `domains`, whatever their addresses; without any, hosts with public addresses.
    """

    def __init__(self, domains: Sequence[str] = ()) -> None:
        self._domains = frozenset(domain.lower().strip("[]").rstrip(".") for domain in domains)

    def addresses(self, url: HttpUrl) -> list[tuple[Any, ...]]:
        """(family, socket address) of the host, in the order to try them.

        Raises UsageError where the host may not be reached, and OSError where it is unknown.
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

    def redirected(self, url: HttpUrl, location: str) -> HttpUrl:
        """Where a reply of `url` points to; raises UsageError where that is out of reach."""
        there = parse_url(urljoin(f"{url.scheme}://{url.netloc}{url.target}", location))
        if url.scheme == "https" and there.scheme == "http":
            raise UsageError(f"{url.name} redirects to {there.name}, which is not encrypted")
        if there.host == url.host:
            is_same = (there.scheme, there.port) == (url.scheme, url.port)
            login = url.authorization if is_same else None
        elif there.host in self._domains:
            login = None
        else:
            raise UsageError(
                f"{url.name} redirects to {there.netloc}; if that is meant, give "
                f"--allowed-url-domains {url.host} {there.host}"
            )
        return HttpUrl(there.scheme, there.host, there.port, there.target, login)

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
