"""URLs of a batch: how they are parsed and which addresses are refused."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from vllm_lite.batch.transfer import HttpUrl, Reach, parse_url
from vllm_lite.errors import UsageError


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("HTTP://Host.Example", HttpUrl("http", "host.example", 80, "/")),
        ("https://a.example./x?y=1#z", HttpUrl("https", "a.example", 443, "/x?y=1")),
        ("http://[::1]:81/%20 \u00e4", HttpUrl("http", "::1", 81, "/%20%20%C3%A4")),
        ("http://b\u00fccher.example/", HttpUrl("http", "xn--bcher-kva.example", 80, "/")),
        ("http://me:p%40ss@h/", HttpUrl("http", "h", 80, "/", "Basic bWU6cEBzcw==")),
    ],
)
def test_a_url_has_one_reading(text: str, url: HttpUrl) -> None:
    assert parse_url(text) == url


def test_what_is_shown_gives_no_access() -> None:
    assert parse_url("https://me:pw@h:444/x?signature=s").name == "https://h:444/x"
    assert parse_url("http://[::1]/x").name == "http://[::1]/x"


@pytest.mark.parametrize(
    "text",
    ["http://", "http://h:99999/", "http://h:0/", "http://[::1/", "ftp://h/x", "http://a..b/"],
)
def test_what_is_no_address_is_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "::1",
        "::",
        "fe80::1%eth0",
        "fc00::1",
        "::ffff:10.0.0.1",
        "2002:7f00:1::",
        "64:ff9b::a9fe:a9fe",
    ],
)
def test_a_name_for_a_private_address_is_refused_unless_it_is_named(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve(monkeypatch, "8.8.8.8", address)
    url = parse_url("http://files.example/x")
    with pytest.raises(UsageError, match=r"give --allowed-url-domains files\.example"):
        Reach().addresses(url)
    assert [place[0] for _, place in Reach(["Files.example."]).addresses(url)] == [
        "8.8.8.8",
        address,
    ]


def test_public_addresses_are_those_that_are_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve(monkeypatch, "8.8.8.8", "2001:4860:4860::8888")
    found = Reach().addresses(parse_url("https://files.example/x"))
    assert found == [
        (socket.AF_INET, ("8.8.8.8", 443)),
        (socket.AF_INET6, ("2001:4860:4860::8888", 443, 0, 0)),
    ]


def test_a_list_of_domains_shuts_out_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve(monkeypatch, "8.8.8.8")
    for host in ("other.example", "x.files.example", "files.example.evil.example"):
        with pytest.raises(UsageError, match="not among the --allowed-url-domains"):
            Reach(["files.example"]).addresses(parse_url(f"http://{host}/"))


def resolve(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Have every name mean these addresses."""

    def getaddrinfo(host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        for address in addresses:
            if ":" in address:
                found.append((socket.AF_INET6, 1, 6, "", (address, port, 0, 0)))
            else:
                found.append((socket.AF_INET, 1, 6, "", (address, port)))
        return found

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
