"""Batch files over HTTP."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.batch.batches import chat, free_port, run, write
from vllm_lite.batch import transfer
from vllm_lite.errors import UsageError


class Store(http.server.BaseHTTPRequestHandler):
    """Serves `content`, keeps uploads, and first sends the failures and redirects listed."""

    content = b""
    failures: list[int]
    redirects: list[str]
    put: list[bytes]

    def do_GET(self) -> None:
        if not self._fails():
            self._answer(200, self.content)

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not self._fails():
            self.put.append(body)
            self._answer(201, b"")

    def _fails(self) -> bool:
        if self.redirects:
            self.send_response(307)
            self.send_header("Location", self.redirects.pop(0))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return True
        if self.failures:
            self._answer(self.failures.pop(0), b"")
            return True
        return False

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


LOOPBACK = {"allowed_url_domains": ["127.0.0.1"]}


class TestUrls:
    """Input and output over HTTP."""

    @pytest.fixture
    def url(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
        monkeypatch.setattr(transfer, "DELAY", 0.0)
        Store.content = (json.dumps(chat("a")) + "\n").encode()
        Store.failures, Store.redirects, Store.put = [], [], []
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}/file?signature=secret"
            server.shutdown()

    def test_both_ways_with_patience(self, url: str, tmp_path: Path) -> None:
        Store.failures = [503, 500, 429]
        run(url, tmp_path / "out", **LOOPBACK)
        Store.failures = [503, 502, 503, 500]
        run(tmp_path / "out", url, output_tmp_dir=str(tmp_path / "tmp"), **LOOPBACK)
        (body,) = Store.put
        # An output is no input, and is refused line by line.
        assert json.loads(body)["error"]["error"]["line"] == 1
        assert list((tmp_path / "tmp").iterdir()) == []

    def test_a_refused_upload_can_be_repeated(
        self, url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        source, tmp = write(tmp_path / "in", chat("a")), str(tmp_path / "tmp")
        Store.failures = [403]
        with pytest.raises(UsageError, match=r"PUT http://127\S+/file failed: HTTP 403") as caught:
            run(source, url, output_tmp_dir=tmp, **LOOPBACK)
        assert "--resume" in str(caught.value)
        assert "secret" not in str(caught.value) + caplog.text
        again = url.replace("secret", "another")
        assert not run(source, again, output_tmp_dir=tmp, resume=True, **LOOPBACK).seen
        assert json.loads(Store.put[0])["custom_id"] == "a"

    def test_five_tries_and_no_more(self, url: str, output: Path) -> None:
        Store.failures = [500] * 6
        with pytest.raises(UsageError, match=r"GET .* failed: HTTP 500 .*\(try 5 of 5\)"):
            run(url, output, **LOOPBACK)
        assert len(Store.failures) == 1

    def test_nobody_there(self, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(transfer, "DELAY", 0.0)
        with pytest.raises(UsageError, match=r"GET http://127.0.0.1:\d+/x failed: .*refused"):
            run(f"http://127.0.0.1:{free_port()}/x", output, **LOOPBACK)
        with pytest.raises(UsageError, match="names no host"):
            run("http:///x", output)

    def test_both_ends_are_checked_before_anything_is_done(
        self, url: str, tmp_path: Path, output: Path
    ) -> None:
        Store.failures = [500]
        for source, target, flag in ((url, output, "--input-file"), ("in", url, "--output-file")):
            with pytest.raises(UsageError, match=f"{flag}: 127.0.0.1 has the private address"):
                run(source, target, output_tmp_dir=str(tmp_path / "tmp"))
        assert Store.failures == [500]

    def test_a_redirect_is_refused_without_its_secrets(self, url: str, output: Path) -> None:
        Store.redirects = ["https://user:secret@other.example/file?secret"]
        with pytest.raises(UsageError, match=r"redirects to https://other\.example/file; give"):
            run(url, output, **LOOPBACK)
        Store.redirects = ["/there"]
        with pytest.raises(UsageError, match=r"redirects to http://127\.0\.0\.1:\d+/there; give"):
            run(write(output, chat("a")), url, output_tmp_dir=str(output.parent), **LOOPBACK)

    def test_an_endless_input_is_cut_off(
        self, url: str, output: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transfer, "MAX_INPUT_BYTES", 10)
        with pytest.raises(UsageError, match="the input is longer than"):
            run(url, output, **LOOPBACK)
