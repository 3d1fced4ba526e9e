"""`chat` against real ports: what is sent, what is shown, and every way it can fail."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pseudo_terminal import CTRL_C, CTRL_D, PseudoTerminal
from tests.server.fake_client import FakeEngineClient
from tests.server.harness import app_of
from tests.unit.cli.served import HoldAfter, delta, piped, prompts, scripted, served
from vllm_lite.cli.main import main
from vllm_lite.errors import EngineGenerateError

ROOT = Path(__file__).resolve().parents[3]
# Nothing listens on it: binding it takes a privilege that tests do not use.
NOWHERE = "http://127.0.0.1:1/v1"
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_key_and_no_history(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "cache"))


@pytest.fixture
def engine() -> FakeEngineClient:
    return FakeEngineClient("Hello.", max_model_len=512)


@pytest.fixture
def url(engine: FakeEngineClient) -> Iterator[str]:
    with served(app_of(engine)) as url:
        yield url


def test_a_quick_question_prints_the_model_and_the_reply(url: str, capsys: Captured) -> None:
    assert main(["chat", "--url", url, "-q", "hi"]) == 0
    assert capsys.readouterr() == ("Using model: tiny\nHello.\n", "")


def test_lines_of_a_pipe_are_turns_of_one_conversation(
    url: str, engine: FakeEngineClient, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["chat", "--url", url, "--system-prompt", "Be brief.", "--model-name", "alias"]
    assert piped(monkeypatch, "one\ntwo", words) == 0
    assert capsys.readouterr() == ("Using model: alias\nHello.\nHello.\n", "")
    assert prompts(engine) == [
        "<system>Be brief.\n<user>one\n<assistant>",
        "<system>Be brief.\n<user>one\n<assistant>Hello.\n<user>two\n<assistant>",
    ]


def test_stats_count_the_server_s_tokens(url: str, capsys: Captured) -> None:
    assert main(["chat", "--url", url, "-q", "hi", "--stats"]) == 0
    # Six bytes and the end of text.
    assert re.search(
        r"\nTTFT: [\d.]+ ms\nTPS:  [\d.]+ tokens/s \(7 tokens in [\d.]+s\)\n$",
        capsys.readouterr().out,
    )


def test_reasoning_is_marked_and_not_remembered(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [delta(reasoning_content="so"), delta(content="Yes"), delta("stop"), "[DONE]"]
    with served(scripted(*events)) as url:
        assert piped(monkeypatch, "really?", ["chat", "--url", url]) == 0
    assert capsys.readouterr().out == "Using model: script\n<think>\nso\n</think>\nYes\n"


def test_reasoning_is_dim_on_a_terminal_and_stays_apart() -> None:
    events = [delta(reasoning="so"), delta(content="Yes"), delta("stop"), "[DONE]"]
    with served(scripted(*events)) as url, PseudoTerminal("chat", "--url", url) as terminal:
        terminal.wait_for("> ")
        terminal.type("really?\r")
        terminal.wait_for("<think>\nso\n</think>\nYes\n")
        assert "\x1b[2mso\x1b[0m" in terminal.raw and "\x1b[2mYes" not in terminal.raw
        terminal.type(CTRL_D)
        assert terminal.wait_end() == 0


def test_no_server_says_how_to_start_one(capsys: Captured) -> None:
    assert main(["chat", "--url", NOWHERE, "-q", "hi"]) == 1
    assert capsys.readouterr() == (
        "",
        f"vllm-lite chat: error: no server answers at {NOWHERE} (Connection refused); start one "
        "with `vllm-lite serve demo --port 1`, or give the --url of another\n",
    )


@pytest.mark.parametrize("url", ["localhost:8000", "http://", "http://host:port/v1", ""])
def test_an_impossible_address_is_named(url: str, capsys: Captured) -> None:
    assert main(["chat", "--url", url, "-q", "hi"]) == 1
    assert f"error: --url {url!r} is no address" in capsys.readouterr().err


def test_a_key_is_needed_where_the_server_asks_for_one(
    engine: FakeEngineClient, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(app_of(engine, api_key=["right"])) as url:
        assert main(["chat", "--url", url, "-q", "hi", "--api-key", "wrong"]) == 1
        assert capsys.readouterr().err == (
            f"vllm-lite chat: error: {url} refuses the API key; "
            "give --api-key or set OPENAI_API_KEY\n"
        )
        assert main(["chat", "--url", url, "-q", "hi", "--api-key", "right"]) == 0
        monkeypatch.setenv("OPENAI_API_KEY", "right")
        assert main(["chat", "--url", url, "-q", "hi"]) == 0


def test_an_unknown_model_lists_those_that_are_served(url: str, capsys: Captured) -> None:
    assert main(["chat", "--url", url, "-q", "hi", "--model-name", "gpt"]) == 1
    assert "has no model 'gpt'; --model-name may be tiny, alias\n" in capsys.readouterr().err


@pytest.mark.parametrize("name", [[], ["--model-name", "tiny"]])
def test_an_address_without_an_api_is_named(url: str, name: list[str], capsys: Captured) -> None:
    assert main(["chat", "--url", url.removesuffix("/v1"), "-q", "hi", *name]) == 1
    assert "there is no OpenAI API at" in capsys.readouterr().err


@pytest.mark.parametrize("events", [["die"], ["[DONE]"], []])
def test_a_server_that_dies_in_mid_answer(events: list[str], capsys: Captured) -> None:
    with served(scripted(delta(content="Half an"), *events)) as url:
        assert main(["chat", "--url", url, "-q", "hi"]) == 1
    out, err = capsys.readouterr()
    assert out == "Using model: script\nHalf an\n"
    assert err.startswith(f"vllm-lite chat: error: the server at {url} broke off its reply")
    assert err.count("\n") == 1


def test_a_failure_inside_the_stream_is_told(
    url: str, engine: FakeEngineClient, capsys: Captured
) -> None:
    engine.failure, engine.fail_after = EngineGenerateError("boom"), 3
    assert main(["chat", "--url", url, "-q", "hi"]) == 1
    out, err = capsys.readouterr()
    assert out.endswith("Hel\n")
    assert err.startswith("vllm-lite chat: error: the server failed: ")


def test_a_reply_that_is_no_json_is_one_line(capsys: Captured) -> None:
    with served(scripted("<html>")) as url:
        assert main(["chat", "--url", url, "-q", "hi"]) == 1
    err = capsys.readouterr().err
    assert f"the exchange with {url} failed" in err and err.count("\n") == 1


def test_ctrl_c_stops_a_quick_question(engine: FakeEngineClient) -> None:
    engine.gate = HoldAfter(3)
    with served(app_of(engine)) as url:
        child = subprocess.Popen(
            [sys.executable, "-m", "vllm_lite", "chat", "--url", url, "-q", "hi"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert child.stdout is not None
        shown = ""
        while not shown.endswith("Hel"):
            shown += child.stdout.read(1)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=10)
        assert (child.returncode, out, err) == (130, "\n", "")
        wait_until(lambda: not engine.running)
    assert len(engine.aborted) == 1


@pytest.mark.parametrize(
    ("redirection", "code", "error"),
    [
        (">&-", 1, "standard output is closed"),
        ("> /dev/full", 1, "cannot write: No space left on device"),
        ("<&-", 0, ""),
    ],
)
def test_broken_streams_are_one_line(url: str, redirection: str, code: int, error: str) -> None:
    command = f"{sys.executable} -m vllm_lite chat --url {url} -q hi {redirection}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == code
    assert done.stderr == "" if not error else done.stderr.count("\n") == 1
    assert error in done.stderr


def test_a_proxy_is_not_asked_for_this_machine(
    url: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", NOWHERE)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert main(["chat", "--url", url, "-q", "hi"]) == 0
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:port")
    assert main(["chat", "--url", "http://far.invalid/v1", "-q", "hi"]) == 1
    assert "check ALL_PROXY, HTTP_PROXY and SSL_CERT_FILE\n" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["a\nb", "schl\u00fcssel"])
def test_a_key_that_no_header_can_carry_is_named(
    key: str, url: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["chat", "--url", url, "-q", "hi", "--api-key", key]) == 1
    monkeypatch.setenv("OPENAI_API_KEY", key)
    assert main(["chat", "--url", url, "-q", "hi"]) == 1
    err = capsys.readouterr().err
    assert "--api-key holds" in err and "OPENAI_API_KEY holds" in err and key not in err


def test_a_server_without_tls_is_told_from_none(url: str, capsys: Captured) -> None:
    assert main(["chat", "--url", url.replace("http:", "https:"), "-q", "hi"]) == 1
    err = capsys.readouterr().err
    assert "no secure connection to" in err and err.count("\n") == 1


def test_a_terminated_command_gives_the_terminal_back(url: str) -> None:
    with PseudoTerminal("chat", "--url", url) as terminal:
        terminal.wait_for("> ")
        terminal.process.terminate()
        assert terminal.wait_end() == 128 + signal.SIGTERM
        assert "Traceback" not in terminal.shown


def test_a_closed_pipe_is_no_traceback(url: str) -> None:
    command = f"{sys.executable} -m vllm_lite chat --url {url} -q hi | true"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stderr == ""


def test_a_person_talks_stops_goes_on_and_leaves(engine: FakeEngineClient) -> None:
    engine.gate = HoldAfter(10)  # the first reply, its end, and a part of the second
    with served(app_of(engine)) as url, PseudoTerminal("chat", "--url", url) as terminal:
        terminal.wait_for("Please enter a message for the chat model:")
        terminal.wait_for("> ")
        terminal.type("onf\x7fe\r")
        terminal.wait_for("Hello.\n> ")
        terminal.type("two\r")
        terminal.wait_for("Hel", count=2)
        terminal.type(CTRL_C)
        terminal.wait_for("(stopped; Ctrl-C again leaves)")
        wait_until(lambda: not engine.running)
        engine.gate = None
        terminal.type("\x1b[A\r")  # what was typed last, once more
        terminal.wait_for("Hello.\n> ", count=2)
        terminal.type(CTRL_C)
        assert terminal.wait_end() == 0
        assert "Traceback" not in terminal.shown
    assert prompts(engine)[-1] == (
        "<user>one\n<assistant>Hello.\n<user>two\n<assistant>Hel\n<user>two\n<assistant>"
    )


def test_two_interrupts_in_a_row_leave(engine: FakeEngineClient) -> None:
    engine.gate = HoldAfter(3)
    with served(app_of(engine)) as url, PseudoTerminal("chat", "--url", url) as terminal:
        terminal.wait_for("> ")
        terminal.type("hi\r")
        terminal.wait_for("Hel")
        terminal.type(CTRL_C)
        # Before there is a prompt again.
        terminal.wait_for("(stopped; Ctrl-C again leaves)")
        terminal.type(CTRL_C)
        assert terminal.wait_end() in (0, 130)
        assert "Traceback" not in terminal.shown
        wait_until(lambda: not engine.running)


def test_a_refused_message_costs_only_itself(engine: FakeEngineClient) -> None:
    with served(app_of(engine)) as url, PseudoTerminal("chat", "--url", url) as terminal:
        terminal.wait_for("> ")
        terminal.type("x" * 600 + "\r")
        terminal.wait_for("error: ")
        assert "512" in terminal.shown
        terminal.type("short\r")
        terminal.wait_for("Hello.\n")
        terminal.type(CTRL_D)
        assert terminal.wait_end() == 0
    assert prompts(engine) == ["<user>short\n<assistant>"]


def test_a_terminal_hears_of_a_lost_server_and_stays(engine: FakeEngineClient) -> None:
    with served(app_of(engine)) as url:
        terminal = PseudoTerminal("chat", "--url", url)
        terminal.wait_for("> ")
    with terminal:
        terminal.type("hi\r")
        terminal.wait_for("error: no server answers at")
        terminal.type(CTRL_D)
        assert terminal.wait_end() == 0


def test_a_model_cannot_steer_the_terminal() -> None:
    events = [delta(content="a\x1b]0;title\x07b"), delta("stop"), "[DONE]"]
    with served(scripted(*events)) as url, PseudoTerminal("chat", "--url", url) as terminal:
        terminal.wait_for("> ")
        terminal.type("hi\r")
        terminal.wait_for("a\ufffd]0;title\ufffdb")
        terminal.type(CTRL_D)
        assert terminal.wait_end() == 0


def test_colours_can_be_switched_off(url: str) -> None:
    dim = "\x1b[2mUsing model"
    for environment, has_colours in (({}, True), ({"NO_COLOR": "1"}, False)):
        with PseudoTerminal("chat", "--url", url, **environment) as terminal:
            terminal.wait_for("> ")
            assert (dim in terminal.raw) is has_colours


@pytest.mark.parametrize("command", ["chat", "complete"])
def test_help_loads_no_client_and_shows_every_option(command: str) -> None:
    code = (
        "import sys; from vllm_lite.cli.main import main\n"
        f"try: main([{command!r}, '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'openai', 'prompt_toolkit', 'torch', 'numpy', 'pydantic', 'httpx'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    for flag in ("--url", "--model-name", "--api-key", "--quick, -q", "--stats", "--config"):
        assert f"  {flag} " in done.stdout or f"  {flag}, " in done.stdout


@pytest.mark.parametrize("words", [["hello"], ["--modle-name", "x"], ["-q"]])
def test_a_wrong_command_line_is_exit_code_2(words: list[str], capsys: Captured) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["chat", *words])
    assert leaving.value.code == 2
    assert capsys.readouterr().err.startswith("usage: vllm-lite chat [options]\n")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
