"""`complete`: each text is continued by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.server.fake_client import FakeEngineClient
from tests.server.harness import app_of
from tests.unit.cli.served import piped, prompts, served
from vllm_lite.cli.main import main

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def engine() -> FakeEngineClient:
    return FakeEngineClient(" and so on")


@pytest.fixture
def url(engine: FakeEngineClient) -> Iterator[str]:
    with served(app_of(engine)) as url:
        yield url


def test_a_quick_text_is_continued(url: str, engine: FakeEngineClient, capsys: Captured) -> None:
    assert main(["complete", "--url", url, "-q", "one"]) == 0
    assert capsys.readouterr() == ("Using model: tiny\n and so on\n", "")
    ((_, params, _),) = engine.seen
    assert params.max_tokens == 16  # the server's own


def test_lines_of_a_pipe_know_nothing_of_each_other(
    url: str, engine: FakeEngineClient, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["complete", "--url", url, "--max-tokens", "4", "--stats"]
    assert piped(monkeypatch, "one\ntwo\n", words) == 0
    out = capsys.readouterr().out
    assert out.count("\n and\nTTFT: ") == 2
    assert len(re.findall(r"\(4 tokens in [\d.]+s\)", out)) == 2
    assert prompts(engine) == ["one", "two"]


def test_failures_name_the_command(url: str, capsys: Captured) -> None:
    assert main(["complete", "--url", url, "-q", "one", "--model-name", "gpt"]) == 1
    assert capsys.readouterr().err == (
        f"vllm-lite complete: error: {url} has no model 'gpt'; --model-name may be tiny, alias\n"
    )
    assert main(["complete", "--url", url, "-q", "one", "--max-tokens", "0"]) == 1
    assert "--max-tokens must be at least 1" in capsys.readouterr().err
