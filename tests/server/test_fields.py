"""Every field of chat and completions does what it says: in the engine, and in the reply."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.server.fake_client import VOCAB_SIZE, FakeEngineClient
from tests.server.harness import HI, chat, chunks, complete, http, post
from tests.server.test_openai_client import openai_client
from vllm_lite.config.server import ServerConfig
from vllm_lite.errors import UsageError
from vllm_lite.outputs import RequestMetrics, RequestOutput, RequestSpecDecodeMetrics
from vllm_lite.sampling_params import SamplingParams

BOTH = pytest.mark.parametrize("send", [chat, complete])
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


async def params_of(send: Any, **body: Any) -> SamplingParams:
    """The parameters that the engine received."""
    client = FakeEngineClient(reasoning_parser="deepseek_r1")
    response = await send(client, **body)
    assert response.status_code == 200, response.text
    return client.seen[0][1]


@BOTH
@pytest.mark.parametrize(
    ("body", "constraint"),
    [
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            {"json": SCHEMA},
        ),
        ({"response_format": {"type": "text"}}, None),
        ({"structured_outputs": {"json": SCHEMA}}, {"json": SCHEMA}),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, {"json": json.dumps(SCHEMA)}),
        ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
        ({"structured_outputs": {"choice": ["a", "b"]}}, {"choice": ["a", "b"]}),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, {"grammar": 'root ::= "a"'}),
        ({"structured_outputs": {"json_object": True}}, {"json_object": True}),
        ({"structured_outputs": {"regex": "a", "strange": 1}}, {"regex": "a"}),
        (
            {"structured_outputs": {"json_object": True, "whitespace_pattern": " ?"}},
            {"json_object": True, "whitespace_pattern": " ?"},
        ),
    ],
)
async def test_a_format_becomes_a_constraint(
    send: Any, body: dict[str, Any], constraint: dict[str, Any] | None
) -> None:
    found = (await params_of(send, **body)).structured_outputs
    assert constraint == (found and {name: getattr(found, name) for name in constraint or {}})
    assert found is None or found.constraint in (constraint or {})


async def test_a_completion_has_no_reasoning_that_a_constraint_could_wait_for() -> None:
    for send, expected in ((chat, False), (complete, True)):
        found = (await params_of(send, structured_outputs={"regex": "a"})).structured_outputs
        assert found is not None and found.enable_in_reasoning is expected


@BOTH
@pytest.mark.parametrize(
    "given",
    [
        {"format": {"type": "json_schema", "json_schema": SCHEMA}},
        {"structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}], "triggers": ["<a>"]},
    ],
)
async def test_a_structural_tag_is_handed_on_whole(send: Any, given: dict[str, Any]) -> None:
    given = {"type": "structural_tag", **given}
    found = (await params_of(send, response_format=given)).structured_outputs
    assert found is not None and json.loads(found.structural_tag or "") == given


@BOTH
async def test_vllm_s_own_fields_reach_the_engine(send: Any) -> None:
    params = await params_of(
        send,
        repetition_detection={"max_pattern_size": 8, "min_count": 3},
        thinking_token_budget=7,
        stream_interval=5,
        truncation_side="right",
        truncate_prompt_tokens=3,
    )
    detection = params.repetition_detection
    assert detection is not None
    assert (detection.max_pattern_size, detection.min_count) == (8, 3)
    assert (params.thinking_token_budget, params.stream_interval) == (7, 5)
    assert (params.truncation_side, params.truncate_prompt_tokens) == ("right", 3)


@pytest.mark.parametrize("name", ["guided_json", "guided_regex", "guided_choice"])
async def test_fields_that_vllm_dropped_are_logged_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    where = "vllm_lite.server.openai.sampling_protocol"
    monkeypatch.setattr(f"{where}.logger.warning", lambda text, *words: lines.append(text % words))
    monkeypatch.setattr(f"{where}._told_of", set())
    for _ in range(2):
        assert (await params_of(chat, **{name: "x"})).structured_outputs is None
    assert lines == [f"the request field {name} is ignored: use structured_outputs"]


async def test_logprob_token_ids_replace_the_likeliest_tokens() -> None:
    ids = {"logprob_token_ids": [90, 65, 91], "max_tokens": 1}
    reply = (await chat(FakeEngineClient("A"), logprobs=True, top_logprobs=2, **ids)).json()
    (entry,) = reply["choices"][0]["logprobs"]["content"]
    assert entry["token"] == "A"
    assert [top["token"] for top in entry["top_logprobs"]] == ["A", "Z", "["]
    body = {"logprobs": 1, **ids, "stream": True}
    response = await complete(FakeEngineClient("B"), **body)
    shown = chunks(response.text)[0]["choices"][0]["logprobs"]
    assert list(shown["top_logprobs"][0]) == ["B", "Z", "A", "["]


async def test_the_token_itself_is_always_among_the_chosen_ones() -> None:
    ids = {"logprob_token_ids": [90, 91], "max_tokens": 1}
    reply = (await chat(FakeEngineClient("A"), logprobs=True, **ids)).json()
    (entry,) = reply["choices"][0]["logprobs"]["content"]
    assert [top["token"] for top in entry["top_logprobs"]] == ["A", "Z", "["]


@pytest.mark.parametrize("most", [-1, VOCAB_SIZE])
async def test_all_candidates_are_shown_where_that_many_are_allowed(most: int) -> None:
    client = FakeEngineClient("A", max_logprobs=most)
    reply = await chat(client, logprobs=True, top_logprobs=-1, max_tokens=1)
    assert reply.status_code == 200, reply.text
    assert client.seen[0][1].logprobs == -1
    (entry,) = reply.json()["choices"][0]["logprobs"]["content"]
    assert len(entry["top_logprobs"]) == 256  # as many as the stand-in knows


async def test_logprobs_without_candidates_still_score_the_token() -> None:
    reply = (await chat(logprobs=True, max_tokens=1)).json()
    (entry,) = reply["choices"][0]["logprobs"]["content"]
    assert entry["top_logprobs"] == [] and entry["logprob"] == -0.25


async def test_an_echo_with_logprobs_scores_the_prompt_of_a_chat() -> None:
    messages = [*HI, {"role": "assistant", "content": "So"}]
    body = {"messages": messages, "echo": True, "add_generation_prompt": False}
    reply = (await chat(**body, logprobs=True, top_logprobs=1)).json()
    assert reply["choices"][0]["message"]["content"] == "SoHello"
    assert len(reply["prompt_logprobs"]) == reply["usage"]["prompt_tokens"]


async def test_the_prompts_text_can_be_asked_for() -> None:
    for stream in (False, True):
        response = await chat(return_prompt_text=True, stream=stream)
        reply = chunks(response.text)[0] if stream else response.json()
        assert reply["prompt_text"] == "<user>hi\n<assistant>"


@BOTH
@pytest.mark.parametrize(
    ("stream_options", "expected"),
    [(None, "none"), ({"include_usage": True}, "last"), ({"include_usage": False}, "none")],
)
async def test_usage_comes_last_where_asked_for(
    send: Any, stream_options: Any, expected: str
) -> None:
    told = chunks((await send(stream=True, stream_options=stream_options)).text)
    assert [("usage" in chunk) for chunk in told[:-1]] == [False] * (len(told) - 1)
    assert ("usage" in told[-1]) == (expected == "last")


@BOTH
async def test_usage_in_every_chunk_counts_up(send: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    told = chunks((await send(stream=True, stream_options=options)).text)
    counts = [chunk["usage"]["completion_tokens"] for chunk in told]
    assert counts == sorted(counts) and counts[-1] == 6


class Timed(FakeEngineClient):
    """An engine whose requests take known times."""

    async def _run(self, *request: Any) -> Any:
        async for output in super()._run(*request):
            times = RequestMetrics(1.0, 1.5, 2.0, 3.0)
            yield RequestOutput(
                output.request_id,
                output.prompt,
                output.prompt_token_ids,
                output.outputs,
                output.finished,
                metrics=times,
            )


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_request_reports_its_timings_where_enabled(path: str) -> None:
    expected = {
        "time_to_first_token_ms": 500.0,
        "generation_time_ms": 1000.0,
        "queue_time_ms": 500.0,
        "mean_itl_ms": 200.0,
        "tokens_per_second": 4.0,
    }
    body: dict[str, Any] = {"messages": HI, "prompt": "a"}
    async with http(Timed(), enable_per_request_metrics=True) as session:
        whole = (await session.post(path, json=body)).json()
        assert whole["metrics"] == {**expected, "speculative_decoding": None}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        streamed = await session.post(path, json=body)
        assert chunks(streamed.text)[-1]["metrics"] == expected
        several = await session.post(path, json={"messages": HI, "prompt": "a", "n": 2})
        assert several.json()["metrics"] is None
    assert (await post(path, {"messages": HI, "prompt": "a"}, Timed())).json()["metrics"] is None


class Drafted(FakeEngineClient):
    """An engine that counts the drafts of its choices: of 3 one came true, then both of 2."""

    async def _run(self, *request: Any) -> Any:
        drafts = RequestSpecDecodeMetrics(3, steps=[])
        drafts.observe(3, 1)
        drafts.observe(2, 2)
        async for output in super()._run(*request):
            for choice in output.outputs:
                choice.spec_decode_metrics = drafts
            yield output


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
async def test_request_reports_its_drafts_where_they_are_counted(path: str) -> None:
    expected = {
        "mean_acceptance_length": 2.5,
        "draft_acceptance_rate": 0.6,
        "acceptance_histogram": [0, 1, 1, 0],
        "acceptance_histogram_by_draft_length": {"2": [0, 0, 1], "3": [0, 1, 0, 0]},
        "num_spec_steps": 2,
        "num_accepted_draft_tokens": 3,
        "num_draft_tokens": 5,
        "num_spec_tokens": 3,
        "per_step_accepted": [1, 2],
        "per_step_drafted": [3, 2],
    }
    body: dict[str, Any] = {"messages": HI, "prompt": "a"}
    if path == "/v1/responses":
        body = {"input": "a"}
    async with http(Drafted()) as session:
        whole = (await session.post(path, json=body)).json()["metrics"]
        assert whole.pop("speculative_decoding") == expected
        assert len(whole) == 5 and set(whole.values()) == {None}
        if "input" in body:
            return
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        streamed = await session.post(path, json=body)
        assert chunks(streamed.text)[-1]["metrics"] == {"speculative_decoding": expected}
        several = await session.post(path, json={"messages": HI, "prompt": "a", "n": 2})
        assert several.json()["metrics"] is None


async def test_openai_client_sends_vllm_s_fields_as_extra_body() -> None:
    engine = FakeEngineClient("AB")
    async with openai_client(engine) as client:
        reply = await client.chat.completions.create(
            model="tiny",
            messages=HI,
            response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
            extra_body={"top_k": 3, "return_token_ids": True, "min_p": 0.1},
        )
    params = engine.seen[0][1]
    assert (params.top_k, params.min_p) == (3, 0.1)
    assert params.structured_outputs is not None and params.structured_outputs.json == SCHEMA
    assert reply.choices[0].model_extra["token_ids"] == [65, 66, 256]


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({}, r"vllm-lite-[\d.]+\S*-[0-9a-f]{8}"),
        ({"fingerprint_mode": "hash"}, r"[0-9a-f]{8}"),
        ({"fingerprint_mode": "custom", "fingerprint_value": "mine"}, "mine"),
        ({"fingerprint_mode": "none"}, "None"),
    ],
)
async def test_fingerprint_follows_the_server_option(options: dict[str, Any], pattern: str) -> None:
    for path in ("/v1/chat/completions", "/v1/completions"):
        body = {"messages": HI, "prompt": "a"}
        whole = (await post(path, body, **options)).json()
        assert re.fullmatch(pattern, str(whole["system_fingerprint"]))
        streamed = await post(path, {**body, "stream": True}, **options)
        assert chunks(streamed.text)[-1]["system_fingerprint"] == whole["system_fingerprint"]


def test_a_fingerprint_of_ones_own_needs_its_mode() -> None:
    for options in ({"fingerprint_mode": "custom"}, {"fingerprint_value": "mine"}):
        with pytest.raises(UsageError, match="need each other"):
            ServerConfig(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_the_priority_header_goes_before_the_field(path: str) -> None:
    client = FakeEngineClient()
    body = {"messages": HI, "prompt": "a", "priority": 3}
    async with http(client) as session:
        for value, status in (("7", 200), ("soon", 400)):
            headers = {"X-Vllm-Priority": value}
            response = await session.post(path, json=body, headers=headers)
            assert response.status_code == status
    assert [options["priority"] for options in client.options] == [7]


@BOTH
@pytest.mark.parametrize("stream", [False, True])
async def test_texts_are_logged_where_enabled(
    send: Any, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    where = "vllm_lite.server.context.logger.info"
    monkeypatch.setattr(where, lambda text, *words, **_: lines.append(text % words))
    path = "/v1/chat/completions" if send is chat else "/v1/completions"
    body = {"messages": HI, "prompt": "a", "n": 2, "stream": stream}
    options = {"enable_log_requests": True, "enable_log_outputs": True}
    await post(path, body, FakeEngineClient("Hello", "Bye"), **options)
    told = sorted(line for line in lines if line.startswith("Generated"))
    assert len(told) == 2 and "'Bye'" in told[0] and "'Hello'" in told[1]
