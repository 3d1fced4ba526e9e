"""The HTTP client against answers of every framing, and against servers that misbehave."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from tests.unit.bench.servers import chunked, scripted_server
from vllm_lite.bench.http_client import HttpClient, TransportError
from vllm_lite.errors import UsageError


def sized(status: str, body: bytes, extra: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{extra}\r\n".encode() + body


async def post(client: HttpClient, body: bytes = b"{}") -> tuple[int, bytes, bytes]:
    pieces: list[bytes] = []
    status, refusal = await client.post("/v1/completions", body, pieces.append, {"x-id": "7"})
    return status, b"".join(pieces), refusal


@pytest.mark.parametrize(
    "answer",
    [
        chunked(b"one ", b"two ", b"three"),
        sized("200 OK", b"one two three"),
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\none two three",
        b"HTTP/1.1 100 Continue\r\n\r\n" + sized("200 OK", b"one two three"),
    ],
)
async def test_every_framing_gives_the_body_however_it_is_cut(answer: bytes) -> None:
    async def reply(head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        for at in range(0, len(answer), 11):
            writer.write(answer[at : at + 11])
            await writer.drain()
            await asyncio.sleep(0)
        if b"connection: close" in answer:
            writer.close()

    async with scripted_server(reply) as server:
        client = HttpClient(server.url + "/base/", {"authorization": "Bearer k"})
        for _ in range(2):
            assert await post(client, b'{"a":1}') == (200, b"one two three", b"")
        client.close()
    head = server.heads[0].lower()
    assert head.startswith("post /base/v1/completions http/1.1\r\n")
    assert "authorization: bearer k\r\n" in head and "x-id: 7\r\n" in head
    assert "content-length: 7\r\n" in head
    assert server.num_connections == (2 if b"connection: close" in answer else 1)


async def test_a_refusal_comes_back_with_its_body() -> None:
    async def reply(head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(sized("404 Not Found", b"no such route"))

    async with scripted_server(reply) as server:
        client = HttpClient(server.url, {})
        assert await post(client) == (404, b"", b"no such route")
        assert await client.get("/v1/models") == (404, b"no such route")
        client.close()


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (chunked(b"one", b"two")[:-7], "broke off"),
        (sized("200 OK", b"one two")[:-1], "broke off"),
        (b"SSH-2.0-OpenSSH\r\n", "not HTTP"),
        (b"", "closed the connection"),
    ],
)
async def test_a_broken_answer_is_an_error_of_that_request(answer: bytes, cause: str) -> None:
    async def reply(head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with scripted_server(reply) as server:
        client = HttpClient(server.url, {})
        with pytest.raises(TransportError, match=cause):
            await post(client)
        client.close()


async def test_a_kept_connection_that_the_server_closed_is_replaced() -> None:
    async def reply(head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if server.num_connections == 1 and len(server.heads) == 2:
            writer.close()  # takes the request and answers nothing
        else:
            writer.write(sized("200 OK", b"fine"))

    async with scripted_server(reply) as server:
        client = HttpClient(server.url, {})
        assert [await post(client) for _ in range(3)] == [(200, b"fine", b"")] * 3
        assert server.num_connections == 2
        client.close()


async def test_requests_at_the_same_time_have_connections_of_their_own() -> None:
    gate = asyncio.Event()

    async def reply(head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if len(server.heads) == 5:
            gate.set()
        await gate.wait()
        writer.write(sized("200 OK", body))

    async with scripted_server(reply) as server:
        client = HttpClient(server.url, {})
        bodies = [b'"%d"' % index for index in range(5)]
        answers = await asyncio.gather(*(post(client, body) for body in bodies))
        assert [answer[1] for answer in answers] == bodies
        client.close()


async def test_nobody_there_is_one_line() -> None:
    async def reply(head: str, body: bytes, writer: asyncio.StreamWriter) -> None: ...

    async with scripted_server(reply) as server:
        pass
    with pytest.raises(TransportError, match=r"cannot connect to http://127\.0\.0\.1:\d+: ") as e:
        await HttpClient(server.url, {}).get("/v1/models")
    assert "\n" not in str(e.value)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl for a certificate")
async def test_https_checks_the_certificate_unless_told_not_to(tmp_path: Path) -> None:
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-keyout", key, "-out", certificate, "-subj", "/CN=localhost"]
    subprocess.run(command, check=True, capture_output=True)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)

    async def reply(head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(chunked(b"secret"))

    async with scripted_server(reply, tls) as server:
        strict, lax = HttpClient(server.url, {}), HttpClient(server.url, {}, verify_tls=False)
        with pytest.raises(TransportError, match="certificate verify failed"):
            await post(strict)
        for _ in range(2):
            assert await post(lax) == (200, b"secret", b"")
        lax.close()


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://", "http://h:x"])
def test_a_wrong_url_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError, match="not the URL"):
        HttpClient(url, {})


def test_a_header_cannot_smuggle_another() -> None:
    with pytest.raises(UsageError, match="line break"):
        HttpClient("http://host", {"a": "b\r\nc: d"})
