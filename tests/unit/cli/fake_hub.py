"""A hub of one repository on the loopback, as huggingface_hub asks one; it may lose connections."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

REPO, COMMIT, OTHER_COMMIT = "org/tiny", "a" * 40, "b" * 40


class FakeHub:
    """Files of a repository by branch; what is served is counted in `sent`, by file."""

    def __init__(self, files: dict[str, bytes], repo: str = REPO) -> None:
        self.repo = repo
        self.revisions = {"main": (COMMIT, files), "old": (OTHER_COMMIT, files)}
        # Bytes of a file after which its next download is cut off.
        self.cuts: dict[str, int] = {}
        # What is served in place of a file, of the same length.
        self.damaged: dict[str, bytes] = {}
        self.sent: dict[str, int] = {}
        self.ranges: list[str] = []
        self.url = ""

    def files(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        for name, (commit, files) in self.revisions.items():
            if revision in (name, commit):
                return commit, files
        return None


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve it from a thread."""

    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = urlsplit(self.path).path.strip("/").split("/")
        if parts[:4] == ["api", "models", *self.hub.repo.split("/")]:
            self._answer_api(parts[4:])
        elif parts[:3] == [*self.hub.repo.split("/"), "resolve"]:
            self._send_file(parts[3], "/".join(parts[4:]))
        else:
            self._refuse("RepoNotFound")

    def _refuse(self, code: str) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _answer_api(self, rest: list[str]) -> None:
        found = self.hub.files(rest[1] if len(rest) > 1 else "main")
        if found is None:
            self._refuse("RevisionNotFound")
            return
        commit, files = found
        if rest[:1] == ["tree"]:
            body: Any = [_entry(name, data) for name, data in files.items()]
        else:
            siblings = [{"rfilename": name} for name in files]
            body = {
                "id": self.hub.repo,
                "modelId": self.hub.repo,
                "sha": commit,
                "siblings": siblings,
            }
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _send_file(self, revision: str, name: str) -> None:
        found = self.hub.files(revision)
        if found is None or name not in found[1]:
            self._refuse("RevisionNotFound" if found is None else "EntryNotFound")
            return
        whole = found[1][name]
        served = self.hub.damaged.get(name, whole)
        first, last = 0, len(served) - 1
        if wanted := self.headers.get("Range"):
            self.hub.ranges.append(wanted)
            low, _, high = wanted.removeprefix("bytes=").partition("-")
            first, last = int(low), min(int(high or last), last)
        part = served[first : last + 1]
        self.send_response(206 if wanted else 200)
        self.send_header("ETag", f'"{_etag(name, whole)}"')
        self.send_header("X-Repo-Commit", found[0])
        self.send_header("Accept-Ranges", "bytes")
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(served)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = self.hub.cuts.pop(name, None)
        part = part if cut is None else part[:cut]
        self.wfile.write(part)
        self.hub.sent[name] = self.hub.sent.get(name, 0) + len(part)
        self.close_connection = cut is not None


def _is_large(name: str) -> bool:
    return name.endswith((".safetensors", ".gguf"))


def _etag(name: str, data: bytes) -> str:
    if _is_large(name):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _entry(name: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": name, "size": len(data)}
    entry["oid"] = _etag(name, data) if not _is_large(name) else "c" * 40
    if _is_large(name):
        entry["lfs"] = {"oid": _etag(name, data), "size": len(data), "pointerSize": 100}
    return entry
