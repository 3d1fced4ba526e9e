"""The commands of a chat, and what a terminal makes of keys and Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pseudo_terminal import CTRL_C, CTRL_D, PseudoTerminal
from tests.server.fake_client import FakeEngineClient
from tests.server.harness import app_of
from tests.unit.cli.served import HoldAfter, delta, piped, prompts, scripted, served
from vllm_lite.cli.main import main

ALT_ENTER = "\x1b\r"


@pytest.fixture(autouse=True)
def no_history(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "cache"))


@pytest.fixture
def engine() -> FakeEngineClient:
    return FakeEngineClient("Hello.", max_model_len=512)


@pytest.fixture
def url(engine: FakeEngineClient) -> Iterator[str]:
    with served(app_of(engine)) as url:
        yield url


@pytest.fixture
def terminal(url: str) -> Iterator[PseudoTerminal]:
    with PseudoTerminal("chat", "--url", url, "--system-prompt", "Be brief.") as terminal:
        terminal.wait_for("> ")
        yield terminal


def test_commands_change_the_conversation(
    terminal: PseudoTerminal, engine: FakeEngineClient, tmp_path: Path
) -> None:
    def enter(text: str, shown: str, count: int = 1) -> None:
        terminal.type(text + "\r")
        terminal.wait_for(shown, count)

    file = tmp_path / "talk.json"
    enter("/help", "/retry", 1)
    enter("/retry", "error: nothing was asked yet")
    enter("one", "Hello.\n")
    enter("/set temperature 0.3", "temperature 0.3, top_p (default)")
    enter("/set top_p 7", "error: ")
    enter("/set tempreature 1", "error: /set knows temperature, top_p")
    enter("/retry", "Hello.\n", 2)
    enter("/tokens", " of 512 tokens)")
    enter(f"/save {file}", f"(3 messages are in {file})")
    enter("/clear", "(the conversation is empty)")
    enter("/system Be long.", "(the instructions are set)")
    enter("two", "Hello.\n", 3)
    enter("/set temperature", "temperature (default)")
    enter(f"/load {file}", "(the conversation has 3 messages)")
    enter("three", "Hello.\n", 4)
    enter("/model alias", "Using model: alias")
    enter("/model nobody", "serves tiny, alias, not nobody")
    enter("/hlep", "there is no command /hlep; did you mean /help?")
    terminal.type("/bye\r")
    assert terminal.wait_end() == 0
    first = "<system>Be brief.\n<user>one\n<assistant>"
    assert prompts(engine) == [
        first,
        first,
        "<system>Be long.\n<user>two\n<assistant>",
        first + "Hello.\n<user>three\n<assistant>",
    ]
    assert [params.temperature for _, params, _ in engine.seen] == [1.0, 0.3, 0.3, 1.0]
    assert [one["role"] for one in json.loads(file.read_text())["messages"]] == [
        "system",
        "user",
        "assistant",
    ]


def test_several_lines_are_one_message(terminal: PseudoTerminal, engine: FakeEngineClient) -> None:
    terminal.type('"""one\rtwo"""\r')
    terminal.wait_for("Hello.\n")
    terminal.type(f"three{ALT_ENTER}four\r")
    terminal.wait_for("Hello.\n", 2)
    assert "<user>one\ntwo\n" in prompts(engine)[0]
    assert "<user>three\nfour\n" in prompts(engine)[1]


def test_ctrl_c_clears_a_line_that_is_begun(
    terminal: PseudoTerminal, engine: FakeEngineClient
) -> None:
    terminal.type("half a li")
    terminal.wait_for("half a li")
    terminal.type(CTRL_C + "hi\r")
    terminal.wait_for("Hello.\n")
    terminal.type(CTRL_D)
    assert terminal.wait_end() == 0
    assert prompts(engine) == ["<system>Be brief.\n<user>hi\n<assistant>"]


def test_history_outlives_the_session(url: str, engine: FakeEngineClient, tmp_path: Path) -> None:
    for keys in ("first\r", "\x1b[A\r"):
        with PseudoTerminal("chat", "--url", url) as terminal:
            terminal.wait_for("> ")
            terminal.type(keys)
            terminal.wait_for("Hello.\n")
            terminal.type(CTRL_D)
            assert terminal.wait_end() == 0
    assert prompts(engine) == ["<user>first\n<assistant>"] * 2
    assert (tmp_path / "cache" / "chat_history").stat().st_mode & 0o077 == 0


def test_a_stopped_reply_has_its_figures_too(engine: FakeEngineClient) -> None:
    engine.gate = HoldAfter(3)
    with served(app_of(engine)) as url, PseudoTerminal("chat", "--url", url, "--stats") as terminal:
        terminal.wait_for("> ")
        terminal.type("hi\r")
        terminal.wait_for("Hel")
        terminal.type(CTRL_C)
        terminal.wait_for("TPS:  ")
        terminal.wait_for("(stopped; Ctrl-C again leaves)")


def test_markdown_is_shown_as_such_where_there_are_colours() -> None:
    code = "```python\nx = 1\n```\n"
    parts = ("# Ti", "tle\n\nsome *wo", "rds*\n\n- a\n- b\n\n" + code, "\n| c |\n|-|")
    events = [*(delta(content=part) for part in parts), delta("stop"), "[DONE]"]
    for environment, is_plain in (({}, False), ({"NO_COLOR": "1"}, True)):
        with (
            served(scripted(*events)) as url,
            PseudoTerminal("chat", "--url", url, **environment) as terminal,
        ):
            terminal.wait_for("> ")
            terminal.type("hi\r")
            terminal.wait_for("x = 1\n")
            terminal.wait_for("\n> ", 2)
            assert ("*words*" in terminal.shown) is is_plain
            assert (" \u2022 a\n \u2022 b\n" in terminal.shown) is not is_plain
            assert terminal.shown.count("Title") == 1


def test_sampling_is_sent_as_asked(url: str, engine: FakeEngineClient, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    words = ["--temperature", "0.5", "--top-p", "0.8", "--max-tokens", "9", "--seed", "7"]
    assert main(["chat", "--url", url, "-q", "hi", *words, "--json-schema", str(schema)]) == 0
    ((_, params, _),) = engine.seen
    assert (params.temperature, params.top_p, params.max_tokens, params.seed) == (0.5, 0.8, 9, 7)
    assert params.structured_outputs.json == {"type": "object"}


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["--json-schema", "/none"], 1, "the JSON schema /none cannot be read"),
        (["--top-p", "2"], 1, "--top-p"),
        (["--image", "cat.png"], 2, "--image"),
    ],
)
def test_what_cannot_be_is_one_line(
    url: str, words: list[str], code: int, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        ended = main(["chat", "--url", url, "-q", "hi", *words])
    except SystemExit as leaving:
        ended = int(str(leaving.code))
    assert ended == code
    assert error in capsys.readouterr().err.splitlines()[-1]


def test_a_slash_in_a_pipe_is_no_command(
    url: str, engine: FakeEngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert piped(monkeypatch, "/bye\n", ["chat", "--url", url]) == 0
    assert prompts(engine) == ["<user>/bye\n<assistant>"]
