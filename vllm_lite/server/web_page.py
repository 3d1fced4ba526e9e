"""The page at /: a chat and the API's routes for a browser, out of the files in web/.

The files hold no data, so they are open; what they fetch is not. Invariant: the page runs, shows
and reaches this server's own files and routes only, which its Content-Security-Policy says too.
"""

from __future__ import annotations

import hashlib
import html
from collections.abc import Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from vllm_lite.errors import NotFoundError

_FOLDER = Path(__file__).parent / "web"
# No script may turn text into HTML: the page makes elements, whatever a model writes.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class WebPageService:
    """The page and the files it is made of, read once."""

    def __init__(self) -> None:
        self._page = (_FOLDER / "index.html").read_text(encoding="utf-8")
        self._files = {
            path.relative_to(_FOLDER).as_posix(): (path.read_bytes(), _TYPES[path.suffix])
            for path in _FOLDER.rglob("*")
            if path.suffix in _TYPES
        }

    async def page(self, request: Request) -> Response:
        """Show a page to chat with the model and to try the API."""
        root = str(request.scope.get("root_path", "")).rstrip("/")
        text = self._page.replace("{root}", html.escape(root))
        return _reply(text.encode(), "text/html", request.headers)

    async def asset(self, request: Request) -> Response:
        """Give a script, style or image of this page."""
        name: str = request.path_params["name"]
        if name not in self._files:
            raise NotFoundError(f"There is no file {name!r:.200} in /web", "name")
        return _reply(*self._files[name], request.headers)


def _reply(content: bytes, kind: str, asked: Mapping[str, str]) -> Response:
    """The file, or 304 where the browser has it already."""
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {**_HEADERS, "ETag": tag}
    if asked.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)
