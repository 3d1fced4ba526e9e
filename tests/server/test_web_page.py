"""The page at / as a server gives it: its files, who may have them, and what they may do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.server.harness import error_of, http
from vllm_lite.server import documents

FOLDER = Path(documents.__file__).parent / "web"
MOST_BYTES = 150_000


@pytest.mark.parametrize("root", ["", "/api"])
async def test_the_shell_and_all_its_files_are_open(root: str) -> None:
    async with http(root_path=root, api_key=["secret"]) as session:
        page = await session.get(root + "/")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        found = re.findall('(?:src|href)="([^"]*)"', page.text)
        assert len(found) > 3 and "{root}" not in page.text
        for path in [*found, f"{root}/web/vendor/marked.js"]:
            assert path.startswith(f"{root}/web/"), path
            assert (await session.get(path)).status_code == 200, path
        assert (await session.get(root + "/v1/models")).status_code == 401
        for name in ("none.js", "../documents.py", "%2e%2e/documents.py", "vendor/README.md", ""):
            missing = await session.get(f"{root}/web/{name}")
            assert missing.status_code in (401, 404) and error_of(missing), name


async def test_modules_import_only_files_that_are_there() -> None:
    async with http() as session:
        for file in FOLDER.rglob("*.js"):
            for name in re.findall(r'^import .*?"([^"]+)"$', file.read_text(), re.MULTILINE):
                path = (file.parent / name).resolve().relative_to(FOLDER)
                answer = await session.get(f"/web/{path}")
                assert answer.headers["content-type"].startswith("text/javascript"), name


async def test_nothing_inline_runs_and_nothing_elsewhere_is_reached() -> None:
    async with http() as session:
        page = await session.get("/")
    rules = dict(one.strip().partition(" ")[::2] for one in _policy(page.headers).split(";"))
    assert rules["default-src"] == "'none'" and rules["trusted-types"] == "'none'"
    for kind in ("script-src", "style-src", "img-src", "connect-src"):
        assert rules[kind] == "'self'"
    assert re.findall("<script[^>]*>(?!</script>)", page.text) == []
    assert not re.search(r"<style|\sstyle=|\son\w+=|://", page.text)


def _policy(headers: object) -> str:
    policy: str = headers["content-security-policy"]  # type: ignore[index]
    return policy


async def test_a_browser_that_has_a_file_is_sent_none() -> None:
    async with http() as session:
        first = await session.get("/web/app.js")
        again = await session.get("/web/app.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("off", [True, False])
async def test_the_page_is_served_unless_it_is_off(off: bool) -> None:
    async with http(disable_web_page=off) as session:
        for path in ("/", "/web/app.js"):
            assert (await session.get(path)).status_code == (404 if off else 200)


def test_page_is_small_and_carries_third_party_licences() -> None:
    served = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in served) < MOST_BYTES
    for path in (FOLDER / "vendor").glob("*.js"):
        assert "Permission is hereby granted" in path.with_suffix(".LICENSE").read_text()
