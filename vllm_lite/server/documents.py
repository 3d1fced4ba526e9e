"""Pages for browsers: /docs and /redoc from files of the package fastapi_offline, and this
package's own chat page.

Nothing is fetched from elsewhere. Invariant: a page runs scripts of this server only, none of
them inline, which its Content-Security-Policy says too.
"""

from __future__ import annotations

import hashlib
import html
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from vllm_lite.errors import NotFoundError

# The pages write styles and make workers and images themselves.
_POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "worker-src blob:; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}
_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>vllm-lite</title>
<link rel="icon" href="{root}/docs/favicon.png">
{head}
</head>
<body>
{body}
</body>
</html>
"""
_STYLES = '<link rel="stylesheet" href="{root}/docs/swagger-ui.css">'
_SWAGGER = """\
<div id="swagger-ui" data-url="{root}/openapi.json"></div>
<script src="{root}/docs/swagger-ui-bundle.js"></script>
<script src="{root}/docs/start.js"></script>"""
_REDOC = """\
<redoc spec-url="{root}/openapi.json"></redoc>
<script src="{root}/docs/redoc.standalone.js"></script>"""
_START = """\
const place = document.getElementById("swagger-ui")
SwaggerUIBundle({url: place.dataset.url, domNode: place, deepLinking: true})
"""
_TYPES = {"css": "text/css", "js": "text/javascript", "png": "image/png"}
_FOLDER = Path(__file__).parent / "web"
# No script may turn text into HTML: the page makes elements, whatever a model writes.
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_PAGE_HEADERS = {
    "Content-Security-Policy": _PAGE_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_PAGE_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class DocumentService:
    """The document, the pages that show it, and what they are made of."""

    def __init__(self, document: Callable[[], dict[str, object]]) -> None:
        """`document` gives the OpenAPI document."""
        self._document = document

    async def schema(self, request: Request) -> Response:
        """Describe the API."""
        return JSONResponse(self._document())

    async def swagger(self, request: Request) -> Response:
        """Show the API to a browser."""
        return _page(request, _STYLES, _SWAGGER)

    async def redoc(self, request: Request) -> Response:
        """Show the API to a browser, to read."""
        return _page(request, "", _REDOC)

    async def asset(self, request: Request) -> Response:
        """Give a script, style or image of these pages."""
        name: str = request.path_params["name"]
        if name == "start.js":
            return Response(_START, media_type=_TYPES["js"], headers=_HEADERS)
        folder = files("fastapi_offline") / "static"
        found = {one.name: one for one in folder.iterdir()}.get(name)
        if found is None:
            raise NotFoundError(f"There is no file {name!r:.200} in /docs", "name")
        kind = _TYPES[name.rpartition(".")[2]]
        return Response(found.read_bytes(), media_type=kind, headers=_HEADERS)


def _page(request: Request, head: str, body: str) -> Response:
    root = str(request.scope.get("root_path", "")).rstrip("/")
    text = _PAGE.replace("{head}", head).replace("{body}", body).replace("{root}", root)
    return HTMLResponse(text, headers=_HEADERS)


class WebPageService:
    """The page and the files it is made of, read once."""

    def __init__(self) -> None:
        self._page = (_FOLDER / "index.html").read_text(encoding="utf-8")
        self._files = {
            path.relative_to(_FOLDER).as_posix(): (path.read_bytes(), _PAGE_TYPES[path.suffix])
            for path in _FOLDER.rglob("*")
            if path.suffix in _PAGE_TYPES
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
    headers = {**_PAGE_HEADERS, "ETag": tag}
    if asked.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)
