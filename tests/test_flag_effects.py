"""Effects of flags that no test of their feature's own sees; tests/flag_effects.py has them all."""

from __future__ import annotations

import json
import logging
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import write_hf
from tests.server.fake_client import FakeEngineClient
from tests.server.harness import HI, app_of, http, post
from tests.unit.engine.engines import byte_tokenizer, engine_config
from vllm_lite.config import engine_args
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.logging import LoggingConfig
from vllm_lite.config.model import LoadConfig
from vllm_lite.config.options.option import make
from vllm_lite.config.server import ServerConfig
from vllm_lite.config.structured_outputs import StructuredOutputsConfig
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.engine.front.input_processor import InputProcessor
from vllm_lite.errors import RequestError, UsageError
from vllm_lite.sampling_params import SamplingParams, StructuredOutputsParams
from vllm_lite.server.process import launch
from vllm_lite.server.process.http_server import http_server
from vllm_lite.server.process.listen import tls_context
from vllm_lite.structured_output.canonical import canonical
from vllm_lite.tokenizer import hf_tokenizer
from vllm_lite.tokenizer.tokenizer import load_tokenizer

CHAT = "/v1/chat/completions"
PARTS = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    """The lines of this package's log, as one text."""
    monkeypatch.setattr(logging.getLogger("vllm_lite"), "propagate", True)
    caplog.set_level(logging.INFO, logger="vllm_lite")
    yield lambda: caplog.text


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(write_hf(tmp_path / "model", max_position_embeddings=4096))


def resolved(**options: Any) -> VllmConfig:
    return EngineArgs(**options).create_engine_config()


async def test_requests_and_texts_are_logged_as_far_as_asked(log: Any) -> None:
    body = {"prompt": "a long prompt", "max_tokens": 3}
    await post("/v1/completions", body, FakeEngineClient("an answer"))
    assert "Received request" not in log()
    options = {"enable_log_requests": True, "max_log_len": 6}
    await post("/v1/completions", body, FakeEngineClient("an answer"), **options)
    assert "prompt: 'a long'" in log() and "an answ" not in log()
    await post("/v1/completions", body, FakeEngineClient("out"), enable_log_outputs=True, **options)
    assert "'out'" in log()


async def test_stacks_of_refusals_are_logged_where_asked(log: Any) -> None:
    for asked in (False, True):
        reply = await post(CHAT, {"messages": HI, "n": 0}, log_error_stack=asked)
        assert reply.status_code == 400
        assert ("Traceback" in log()) is asked
    app_of()  # leaves the log as it is by default


@pytest.mark.parametrize("level", ["error", "debug"])
def test_the_http_servers_log_has_a_level_of_its_own(level: str) -> None:
    loggers = [logging.getLogger(name) for name in ("uvicorn", "uvicorn.error", "uvicorn.access")]
    before = [(logger, logger.level) for logger in loggers]
    try:
        config = ServerConfig(uvicorn_log_level=level)  # type: ignore[arg-type]
        http_server(app_of(), config, None, LoggingConfig())
        assert logging.getLogger("uvicorn.error").level == getattr(logging, level.upper())
    finally:
        for logger, old in before:
            logger.setLevel(old)


async def test_browsers_may_send_what_is_allowed() -> None:
    asked = {
        "Origin": "http://page",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "x-mine",
    }
    options: dict[str, Any] = {
        "allowed_methods": ["GET", "POST"],
        "allowed_headers": ["x-mine"],
        "allow_credentials": True,
    }
    async with http(**options) as session:
        reply = await session.options(CHAT, headers=asked)
        other = await session.options(
            CHAT, headers={**asked, "Access-Control-Request-Method": "PUT"}
        )
        foreign = await session.options(
            CHAT, headers={**asked, "Access-Control-Request-Headers": "x-other"}
        )
    assert (reply.status_code, other.status_code, foreign.status_code) == (200, 400, 400)
    assert reply.headers["access-control-allow-methods"] == "GET, POST"
    assert reply.headers["access-control-allow-credentials"] == "true"
    async with http() as session:
        plain = await session.options(CHAT, headers=asked)
    assert "access-control-allow-credentials" not in plain.headers


@pytest.mark.parametrize(("shape", "prompt"), [("string", "a"), ("openai", "[a]")])
async def test_content_reaches_the_template_in_the_form_asked_for(shape: str, prompt: str) -> None:
    template = (
        "{% set c = messages[0].content %}"
        "{% if c is string %}{{ c }}{% else %}[{{ c[0].text }}]{% endif %}"
    )
    client = FakeEngineClient()
    options = {"chat_template": template, "chat_template_content_format": shape}
    await post(CHAT, {"messages": PARTS}, client, **options)
    assert client.seen[0][0]["prompt"] == prompt


@pytest.mark.parametrize(("excluded", "shown"), [(True, ""), (False, "[1 tools]")])
async def test_tools_that_may_not_be_called_are_left_out_where_asked(
    excluded: bool, shown: str
) -> None:
    client = FakeEngineClient()
    body = {"messages": HI, "tools": TOOLS, "tool_choice": "none"}
    await post(CHAT, body, client, exclude_tools_when_tool_choice_none=excluded)
    assert client.seen[0][0]["prompt"] == f"<user>hi\n{shown}<assistant>"


async def test_calls_are_read_by_the_parser_where_the_model_may_choose() -> None:
    body = {"messages": HI, "tools": TOOLS}
    options = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    reply = (await post(CHAT, body, FakeEngineClient(CALL), **options)).json()
    (call,) = reply["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": "{}"}
    assert (await post(CHAT, body, FakeEngineClient(CALL))).status_code == 400


@pytest.mark.usefixtures("parser_names")
async def test_reasoning_is_told_from_the_answer_by_the_parser_named(tmp_path: Path) -> None:
    plugin = tmp_path / "thoughts.py"
    plugin.write_text(
        "from vllm_lite.parsers import registry\n"
        "registry.register_reasoning_parser('flag-test', registry.reasoning_format('qwen3'))\n"
    )

    async def message(**options: Any) -> dict[str, Any]:
        client = FakeEngineClient("<think>why</think>so")
        structured = make(StructuredOutputsConfig, options)
        client.config = replace(client.config, structured_outputs=structured)
        reply: dict[str, Any] = (await post(CHAT, {"messages": HI}, client)).json()
        found: dict[str, Any] = reply["choices"][0]["message"]
        return found

    assert (await message())["content"] == "<think>why</think>so"
    with pytest.raises(UsageError, match="flag-test"):
        await message(reasoning_parser="flag-test")
    for options in (
        {"reasoning_parser": "qwen3"},
        {"structured_outputs_config": {"reasoning_parser": "qwen3"}},
        {"reasoning_parser": "flag-test", "reasoning_parser_plugin": str(plugin)},
    ):
        found = await message(**options)
        assert (found["reasoning"], found["content"]) == ("why", "so")


@pytest.mark.usefixtures("parser_names")
async def test_a_plugin_brings_parsers(tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "from vllm_lite.parsers import registry\n"
        "registry.register_tool_parser('flag-test', registry.tool_format('hermes'))\n"
    )
    options = {"enable_auto_tool_choice": True, "tool_call_parser": "flag-test"}
    with pytest.raises(UsageError, match="flag-test"):
        app_of(**options)
    body = {"messages": HI, "tools": TOOLS}
    options["tool_parser_plugin"] = str(plugin)
    reply = (await post(CHAT, body, FakeEngineClient(CALL), **options)).json()
    assert reply["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("asked", [True, False])
def test_the_engine_runs_in_the_servers_process_where_asked(
    asked: bool, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    class Asked(Exception):
        """Says how the core would be launched."""

    def refuse(config: VllmConfig, *, in_process: bool = False, **_: Any) -> None:
        raise Asked(in_process)

    monkeypatch.setattr(launch, "launch_core", refuse)
    server_config = ServerConfig(host="127.0.0.1", port=0, disable_frontend_multiprocessing=asked)
    with pytest.raises(Asked) as caught:
        launch.run_server(EngineArgs(model=model), server_config)
    assert caught.value.args == (asked,)


def test_a_logging_configuration_counts_from_the_start(tmp_path: Path) -> None:
    file = tmp_path / "log.json"
    loggers = {"flag_test": {"level": "ERROR"}}
    text = {"version": 1, "disable_existing_loggers": False, "loggers": loggers}
    file.write_text(json.dumps(text))
    with pytest.raises(UsageError, match="nowhere"):
        launch.run_server(
            EngineArgs(model=str(tmp_path / "nowhere"), log_config_file=str(file)), ServerConfig()
        )
    assert logging.getLogger("flag_test").level == logging.ERROR


def test_client_certificates_are_asked_for_as_said(tmp_path: Path) -> None:
    key, certificate = str(tmp_path / "k.pem"), str(tmp_path / "c.pem")
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=a"]
    subprocess.run(
        ["openssl", "req", "-x509", *made, "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    own = {"ssl_certfile": certificate, "ssl_keyfile": key}
    plain = tls_context(ServerConfig(**own))  # type: ignore[arg-type]
    assert plain is not None and plain.verify_mode == ssl.CERT_NONE
    strict = tls_context(
        ServerConfig(ssl_ca_certs=certificate, ssl_cert_reqs=2, **own)  # type: ignore[arg-type]
    )
    assert strict is not None and strict.verify_mode == ssl.CERT_REQUIRED
    assert strict.cert_store_stats()["x509"] == 1


def test_models_are_fetched_as_said(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def fetch(name: str, **options: Any) -> str:
        asked.append((name, options))
        return model

    monkeypatch.setattr(engine_args, "resolve_model_source", fetch)
    resolved(
        model="org/model",
        revision="v1",
        tokenizer="org/tokenizer",
        tokenizer_revision="v2",
        download_dir="/cache",
        hf_token="token",
        ignore_patterns=["*.bin"],
    )
    both = {"download_dir": "/cache", "hf_token": "token", "ignore_patterns": ["*.bin"]}
    assert [name for name, _ in asked] == ["org/model", "org/model", "org/tokenizer"]
    assert [options["revision"] for _, options in asked] == ["v1", "v1", "v2"]
    assert all(both.items() <= options.items() for _, options in asked)


def test_a_configuration_may_lie_elsewhere(model: str, tmp_path: Path) -> None:
    other = write_hf(tmp_path / "other", max_position_embeddings=128)
    assert resolved(model=model).facts.max_position == 4096
    assert resolved(model=model, hf_config_path=str(other)).facts.max_position == 128


def test_code_of_a_tokenizer_runs_only_where_trusted(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def read(path: Path, templates: Any, *, trust_remote_code: bool) -> Any:
        asked.append(trust_remote_code)
        raise UsageError("enough")

    monkeypatch.setattr(hf_tokenizer, "tokenizer_from_transformers", read)
    for trusted in (False, True):
        with pytest.raises(UsageError, match="enough"):
            load_tokenizer(resolved(model=model, trust_remote_code=trusted))
    assert asked == [False, True]


def test_names_of_the_model_are_those_that_are_served(model: str) -> None:
    assert resolved(model=model).model.served_model_name == [model]
    assert resolved(model=model, served_model_name="a").model.served_model_name == ["a"]
    with pytest.raises(UsageError, match="--served-model-name must not be empty"):
        resolved(model=model, served_model_name=["a", ""])


def test_a_context_is_as_long_as_said(model: str) -> None:
    config = resolved(model=model, max_model_len=64)
    assert config.model.max_model_len == 64
    # A step need not hold more than its requests can.
    assert (
        resolved(model=model, max_model_len=64, max_num_seqs=2).scheduler.max_num_batched_tokens
        == 128
    )


def test_logprobs_are_limited_as_said() -> None:
    def process(limit: int) -> None:
        processor = InputProcessor(engine_config(max_logprobs=limit), byte_tokenizer())
        processor.process("a", SamplingParams(logprobs=3))

    for enough in (3, -1):
        process(enough)
    with pytest.raises(RequestError, match="logprobs"):
        process(2)


def test_without_a_tokenizer_ids_are_all_there_is(model: str) -> None:
    config = resolved(model=model, tokenizer="org/unfetched", skip_tokenizer_init=True)
    assert config.model.tokenizer == model  # nothing was fetched
    processor = InputProcessor(config, None)
    params = SamplingParams(detokenize=False)
    assert processor.process([1, 2], params).prompt_token_ids == [1, 2]
    with pytest.raises(RequestError):
        processor.process("text", params)


def test_the_engines_word_on_json_is_in_every_constraint(model: str) -> None:
    asked = StructuredOutputsParams(json={"type": "object"})
    config = resolved(
        model=model,
        structured_outputs_config={"disable_additional_properties": True},
        guided_decoding_disable_any_whitespace=True,
    )
    strict = canonical(asked, config.structured_outputs)
    assert strict.disable_any_whitespace and strict.disable_additional_properties
    free = canonical(asked, resolved(model=model).structured_outputs)
    assert not free.disable_any_whitespace and not free.disable_additional_properties


def test_steps_run_layer_by_layer_where_asked(model: str) -> None:
    assert resolved(model=model, enforce_eager=True).model.enforce_eager
    assert not resolved(model=model).model.enforce_eager


def test_the_bar_of_a_load_can_be_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from tqdm import tqdm

    from vllm_lite.loader import load

    shown: list[bool] = []

    def bar(*, is_shown: bool, **settings: Any) -> Any:
        """A progress bar that only says whether it is on."""
        shown.append(is_shown)
        return tqdm(disable=True)

    monkeypatch.setattr(load, "progress_bar", bar)
    for asked in (True, False):
        load._run_jobs([], LoadConfig(use_tqdm_on_load=asked))
    assert shown == [True, False]
