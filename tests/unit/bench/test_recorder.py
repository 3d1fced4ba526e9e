"""The stream recorder gives the same answer however its bytes are cut."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from vllm_lite.bench.recorder import (
    RequestResult,
    ResponsesRecorder,
    StreamRecorder,
    WholeRecorder,
    error_text,
)


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields, ensure_ascii=False).encode() + b"\n\n"


def choice(text: str) -> bytes:
    return event(id="x", choices=[{"index": 0, "text": text, "finish_reason": None}])


TEXTS = ["Hé", "llo", " wörld 世"]
USAGE = event(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 7})
STREAM = b"".join(map(choice, TEXTS)) + b": ping\r\n\r\n" + USAGE + b"data: [DONE]\n\n"


def record(pieces: list[bytes]) -> tuple[StreamRecorder, RequestResult]:
    recorder, result = StreamRecorder(), RequestResult(prompt_tokens=3)
    for piece in pieces:
        recorder.on_body(piece)
    recorder.finish(result)
    return recorder, result


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_any_cut_gives_the_same_result(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    recorder, result = record([STREAM[a:b] for a, b in pairwise(edges)])
    assert recorder.is_done
    assert (result.text, result.output_tokens, result.error) == ("".join(TEXTS), 7, "")
    assert len(result.itls) == len(TEXTS) - 1
    assert result.latency >= result.ttft > 0


def test_the_last_chunk_with_choices_ends_the_clock() -> None:
    recorder = StreamRecorder()
    recorder.on_body(choice("a"))
    recorder.on_body(choice("b"))
    result = RequestResult(prompt_tokens=1)
    recorder.on_body(USAGE)
    recorder.finish(result)
    assert result.latency == result.ttft + result.itls[0]


def test_chat_chunks_carry_their_text_in_a_delta() -> None:
    chunks = [{"role": "assistant"}, {"content": "Hi"}, {"content": None}, {"content": " you"}]
    _, result = record([event(choices=[{"delta": chunk}]) for chunk in chunks])
    assert (result.text, len(result.itls), result.output_tokens) == ("Hi you", 3, None)


def test_an_error_in_mid_stream_fails_the_request() -> None:
    _, result = record([choice("a"), event(error={"message": "engine\ndied", "code": 500})])
    assert result.error == "engine died"
    _, result = record([b"data: {nonsense\n\n"])
    assert "not as OpenAI's" in result.error


def test_a_stream_without_tokens_is_a_failure() -> None:
    assert record([USAGE, b"data: [DONE]\n\n"])[1].error == "the answer has no tokens"


def test_error_bodies_of_any_shape_have_a_text() -> None:
    assert error_text(b'{"error": {"message": "no such model"}}') == "no such model"
    assert error_text(b'{"message": "flat"}') == "flat"
    assert error_text(b'{"error": "short"}') == "short"
    assert error_text(b"<html>\n502</html>") == "<html> 502</html>"
    assert error_text(b"[1]") == "[1]"


DONE = event(type="response.completed", response={"usage": {"input_tokens": 5, "output_tokens": 2}})
RESPONSE = b"".join(
    [
        event(type="response.created", response={"usage": None}),
        event(type="response.reasoning_text.delta", delta="hm"),
        event(type="response.output_text.delta", delta="Hé"),
        event(type="response.output_text.delta", delta="llo"),
        DONE,
    ]
)


def record_response(pieces: list[bytes]) -> RequestResult:
    recorder, result = ResponsesRecorder(), RequestResult(prompt_tokens=3)
    for piece in pieces:
        recorder.on_body(piece)
    recorder.finish(result)
    return result


@given(st.lists(st.integers(0, len(RESPONSE)), max_size=8))
def test_any_cut_of_a_response_gives_the_same_result(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(RESPONSE)]
    result = record_response([RESPONSE[a:b] for a, b in pairwise(edges)])
    assert (result.text, result.output_tokens, result.error) == ("Héllo", 2, "")
    assert result.prompt_tokens == 5, "the server's count"
    assert len(result.itls) == 2, "reasoning is timed"


def test_a_response_needs_its_last_event() -> None:
    broken = RESPONSE.removesuffix(DONE)
    assert "before its last event" in record_response([broken]).error
    failed = event(type="response.failed", response={"error": {"message": "out of memory"}})
    assert record_response([broken, failed]).error == "out of memory"
    assert record_response([event(type="error", message="too long")]).error == "too long"


def test_what_is_not_streamed_is_timed_as_a_whole() -> None:
    body = json.dumps({"data": [{"embedding": [0.1] * 9}], "usage": {"prompt_tokens": 7}}).encode()
    recorder, result = WholeRecorder(), RequestResult(prompt_tokens=3)
    for piece in (body[:5], body[5:]):
        recorder.on_body(piece)
    recorder.finish(result)
    assert (result.prompt_tokens, result.output_tokens, result.error) == (7, 0, "")
    assert result.ttft == result.latency > 0 and not result.itls
    chat = {"choices": [{"message": {"content": "Hi"}}], "usage": {"completion_tokens": 4}}
    recorder, result = WholeRecorder(), RequestResult(prompt_tokens=3)
    recorder.on_body(json.dumps(chat).encode())
    recorder.finish(result)
    assert (result.text, result.output_tokens, result.prompt_tokens) == ("Hi", 4, 3)
    nothing = RequestResult(prompt_tokens=3)
    WholeRecorder().finish(nothing)
    assert nothing.error == "the answer is empty"
