"""A real Chromium at a server in the test's own process."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.server.fake_client import FakeEngineClient
from tests.server.running import Running, running

playwright = pytest.importorskip(
    "playwright.async_api", reason="playwright is not installed", exc_type=ImportError
)
_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, _NAMES)), None)


class Steps:
    """A gate of FakeEngineClient that lets as many tokens pass as it is told."""

    def __init__(self) -> None:
        self._allowed = asyncio.Semaphore(0)

    async def wait(self) -> None:
        await self._allowed.acquire()

    def allow(self, tokens: int) -> None:
        for _ in range(tokens):
            self._allowed.release()

    def set(self) -> None:
        """Let all pass."""
        self.allow(10_000)


class Visit:
    """One page of a browser, and what it complained of and asked for."""

    def __init__(self, page: Any, server: Running) -> None:
        self.page = page
        self.server = server
        self.complaints: list[str] = []
        self.requested: list[str] = []
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requested.append(request.url))
        page.on("dialog", lambda dialog: asyncio.ensure_future(dialog.accept()))

    async def open(self, path: str = "/") -> None:
        await self.page.goto(self.server.listener.url + path)

    async def say(self, text: str) -> None:
        await self.page.fill("#prompt", text)
        await self.page.press("#prompt", "Enter")

    async def reply(self) -> Any:
        """The last reply, once it has ended."""
        await self.page.wait_for_selector("#send:has-text('Send')")
        return self.page.locator(".message.assistant").last

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)


@asynccontextmanager
async def visiting(
    client: FakeEngineClient,
    *,
    view: dict[str, Any] | None = None,
    complaints: str = "",
    **options: Any,
) -> AsyncIterator[Visit]:
    """The page over `client`; afterwards nothing was complained of but `complaints`."""
    if CHROMIUM is None:
        pytest.skip(f"no Chromium is installed (looked for {', '.join(_NAMES)})")
    async with running(client, **options) as server, playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = await browser.new_context(**(view or {}))
        context.set_default_timeout(60_000)
        visit = Visit(await context.new_page(), server)
        await visit.open()
        yield visit
        await browser.close()
        others = [one for one in visit.complaints if not complaints or complaints not in one]
        assert others == []
        # A download is a blob, which the page itself holds.
        here = (server.listener.url, "blob:" + server.listener.url)
        assert [url for url in visit.requested if not url.startswith(here)] == []
