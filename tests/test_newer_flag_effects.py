"""Effects of the flags that vLLM 0.32 has and releases before it had not."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from uvicorn.config import LOGGING_CONFIG

from tests.builders import message
from tests.checkpoints import write_hf
from tests.server.fake_client import FakeEngineClient, fake_config
from tests.server.harness import HI, app_of, post
from tests.unit.engine.engines import Scripted, engine_config
from vllm_lite.config.engine_args import EngineArgs
from vllm_lite.config.logging import LoggingConfig
from vllm_lite.config.observability import ObservabilityConfig
from vllm_lite.config.server import ServerConfig
from vllm_lite.config.structured_outputs import ReasoningConfig
from vllm_lite.config.vllm import VllmConfig
from vllm_lite.engine.core.engine_core import EngineCore
from vllm_lite.errors import UsageError
from vllm_lite.log import JsonFormatter, reconfigure_logging
from vllm_lite.metrics.prometheus import EngineCollector
from vllm_lite.parsers.registry import bind_parsers
from vllm_lite.server.process.http_server import http_server

CHAT = "/v1/chat/completions"
PARAMETERS = {"type": "object", "properties": {"a": {"const": "only"}}, "required": ["a"]}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}]
OWN = "vllm_lite"


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(write_hf(tmp_path / "model", max_position_embeddings=4096))


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(logging.getLogger(OWN), "propagate", True)
    caplog.set_level(logging.INFO, logger=OWN)
    yield lambda: caplog.text


@pytest.fixture
def own_log() -> Iterator[logging.Logger]:
    """This package's logger, set back afterwards."""
    logger = logging.getLogger(OWN)
    before = logger.level, logger.propagate, list(logger.handlers)
    formatters = [handler.formatter for handler in logger.handlers]
    yield logger
    level, logger.propagate, logger.handlers = before
    logger.setLevel(level)
    for handler, formatter in zip(logger.handlers, formatters, strict=True):
        handler.setFormatter(formatter)


def resolved(**options: Any) -> VllmConfig:
    return EngineArgs(**options).create_engine_config()


@pytest.mark.parametrize("level", ["DEBUG", "ERROR"])
def test_the_log_is_as_fine_as_said(model: str, own_log: logging.Logger, level: str) -> None:
    config = resolved(model=model, log_level=level)
    assert own_log.level == getattr(logging, level)
    # The engine core's process sets its log up by what it is sent.
    assert config.logging.log_level == level


def test_the_log_can_be_objects_or_the_applications(own_log: logging.Logger) -> None:
    EngineArgs(logging_config={"formatter": "json", "log_level": "INFO"}).configure_logging()
    (handler,) = [one for one in own_log.handlers if isinstance(one.formatter, JsonFormatter)]
    record = own_log.makeRecord(OWN, logging.INFO, "f.py", 3, "two\nlines %s", ("x",), None)
    record.request_id = "cmpl-1"
    line = handler.format(record)
    found = json.loads(line)
    assert found["request_id"] == "cmpl-1"
    assert "\n" not in line and found["message"] == "two\nlines x"
    assert (found["levelname"], found["name"], found["lineno"]) == ("INFO", OWN, 3)
    reconfigure_logging(form="text")
    EngineArgs(log_format="json").configure_logging()
    assert isinstance(handler.formatter, JsonFormatter)
    EngineArgs(logging_config={"configure_logging": False}).configure_logging()
    assert handler not in own_log.handlers and own_log.propagate
    with pytest.raises(UsageError, match="needs logging to be set up"):
        LoggingConfig(configure_logging=False, pylogging_config_file=__file__)
    with pytest.raises(UsageError, match="--log-config-file: there is no file nowhere"):
        LoggingConfig(pylogging_config_file="nowhere")


def test_the_http_server_logs_objects_too() -> None:
    names = ("uvicorn", "uvicorn.error", "uvicorn.access")
    loggers = [logging.getLogger(name) for name in names]
    before = [(one, one.level, one.propagate, list(one.handlers)) for one in loggers]
    try:
        http_server(app_of(), ServerConfig(), None, LoggingConfig(formatter="json"))
        (handler,) = logging.getLogger("uvicorn.access").handlers
        assert isinstance(handler.formatter, JsonFormatter)
        assert LOGGING_CONFIG["formatters"]["access"]["()"] != "vllm_lite.log.JsonFormatter"
    finally:
        for one, level, one.propagate, one.handlers in before:
            one.setLevel(level)


async def test_parts_of_a_streamed_text_are_logged_unless_they_are_not_wanted(log: Any) -> None:
    options = {"enable_log_requests": True, "enable_log_outputs": True}
    body = {"messages": HI, "stream": True}
    await post(CHAT, body, FakeEngineClient("abc"), enable_log_deltas=False, **options)
    await post(CHAT, {"messages": HI}, FakeEngineClient("abc"), **options)
    assert "'abc'" in log() and "Streamed for" not in log()
    await post(CHAT, body, FakeEngineClient("abc"), **options)
    lines = [line for line in log().splitlines() if "Streamed for" in line]
    assert [line.rpartition(": ")[2] for line in lines] == ["'a'", "'b'", "'c'"]


@pytest.mark.parametrize("level", ["auto", "function", "parameter"])
async def test_a_call_that_the_model_chooses_is_enforced_as_far_as_said(level: str) -> None:
    client = FakeEngineClient("x")
    options = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    await post(CHAT, {"messages": HI, "tools": TOOLS}, client, tool_strict_level=level, **options)
    constraint = client.seen[0][1].structured_outputs
    if level == "auto":
        assert constraint is None
        return
    assert constraint is not None and constraint.structural_tag is not None
    assert "triggered_tags" in constraint.structural_tag
    assert ("only" in constraint.structural_tag) is (level == "parameter")


@pytest.mark.parametrize(("effort", "told"), [("auto", "none"), ("low", "low")])
async def test_thinking_that_is_off_is_told_with_the_effort_said(effort: str, told: str) -> None:
    client = FakeEngineClient("x")
    body = {"model": "tiny", "max_tokens": 3, "messages": HI, "thinking": {"type": "disabled"}}
    options = {"chat_template": "{{ reasoning_effort }}"}
    reply = await post(
        "/v1/messages", body, client, anthropic_disabled_thinking_effort=effort, **options
    )
    assert reply.status_code == 200, reply.text
    assert client.seen[0][0]["prompt"] == told  # type: ignore[index, call-overload]


def test_a_family_of_histograms_has_the_bounds_said() -> None:
    custom = {"request_latency": [0.5, 2], "request_tokens": [7]}
    observability = ObservabilityConfig(custom_histogram_buckets=custom)
    collector = EngineCollector(replace(engine_config(), observability=observability), 9)
    bounds = {
        family.name: [
            sample.labels["le"] for sample in family.samples if sample.name.endswith("_bucket")
        ]
        for family in collector.collect()
    }
    assert bounds["vllm:e2e_request_latency_seconds"] == ["0.5", "2.0", "+Inf"]
    assert bounds["vllm:request_prompt_tokens"] == ["7.0", "+Inf"]
    assert len(bounds["vllm:time_to_first_token_seconds"]) > 10


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"nothing": [1]}, "is no family; choose from request_latency"),
        ({"request_latency": []}, "needs a list"),
        ({"request_latency": 3}, "needs a list"),
        ({"request_latency": [1, True]}, "not a number above 0"),
        ({"request_latency": [0]}, "not a number above 0"),
        ({"request_latency": [2, 1]}, "greater than the one before"),
    ],
)
def test_bounds_that_make_no_histogram_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ObservabilityConfig(custom_histogram_buckets=given)


@pytest.mark.parametrize("asked", [True, False])
def test_every_step_is_told_where_asked(asked: bool, log: Any) -> None:
    observability = ObservabilityConfig(enable_logging_iteration_details=asked)
    core = EngineCore(replace(engine_config(), observability=observability), Scripted())
    core.add_requests([message(5, max_tokens=2), message(7, max_tokens=2)])
    while core.has_work():
        core.step()
    core.shutdown()
    assert ("Step 1: 2 prompts with 12 tokens, 0 requests with a token each" in log()) is asked
    assert ("Step 2: 0 prompts with 0 tokens, 2 requests" in log()) is asked


def test_a_mode_chooses_the_sizes_of_a_step_that_are_not_given(model: str) -> None:
    def sizes(**options: Any) -> tuple[int, int]:
        scheduler = resolved(model=model, **options).scheduler
        return scheduler.max_num_batched_tokens, scheduler.max_num_seqs

    tokens, seqs = sizes()
    assert sizes(performance_mode="balanced") == (tokens, seqs)
    assert sizes(performance_mode="throughput") == (2 * tokens, 2 * seqs)
    assert sizes(performance_mode="interactivity") == (tokens // 2, seqs)
    assert sizes(performance_mode="throughput", max_num_seqs=3) == (2 * tokens, 3)


def test_variables_without_effect_are_refused_where_asked(
    model: str, monkeypatch: pytest.MonkeyPatch, log: Any
) -> None:
    monkeypatch.setenv("VLLM_USE_V1", "1")
    resolved(model=model)
    assert "VLLM_USE_V1 changes nothing here" in log()
    with pytest.raises(UsageError, match="--fail-on-environ-validation: VLLM_USE_V1 changes"):
        resolved(model=model, fail_on_environ_validation=True)


def test_the_reasoning_of_a_model_can_be_described_in_one_place(model: str) -> None:
    config = resolved(model=model, reasoning_config={"reasoning_parser": "qwen3"})
    assert config.structured_outputs.reasoning_parser == "qwen3"
    with pytest.raises(UsageError, match="are one thing"):
        resolved(
            model=model, reasoning_parser="glm45", reasoning_config={"reasoning_parser": "qwen3"}
        )


@pytest.mark.parametrize(
    ("parser", "end", "words"),
    [
        ("", "</think>", "needs a --reasoning-parser"),
        ("qwen3", "enough", "does not hold '</think>'"),
    ],
)
def test_a_forced_end_must_end_the_reasoning(parser: str, end: str, words: str) -> None:
    config = fake_config(reasoning_parser=parser)
    with pytest.raises(UsageError, match=words):
        bind_parsers(replace(config, reasoning=ReasoningConfig(reasoning_end_str=end)))
