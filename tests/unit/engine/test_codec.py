"""Whatever is let in travels to the core as it is; what cannot be read ends one request."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import hypothesis
import msgspec
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from tests.unit.engine.engines import async_engine, byte_tokenizer, engine_config, says
from vllm_lite.config.structured_outputs import StructuredOutputsConfig
from vllm_lite.engine.front.admission import fan_out
from vllm_lite.engine.front.input_processor import InputProcessor
from vllm_lite.engine.link.channel import decode_to_core, message_encoder
from vllm_lite.engine.link.messages import AddRequests, Call, Prepare, ToCore, Undecodable
from vllm_lite.errors import EngineGenerateError, RequestError
from vllm_lite.sampling_params import (
    RepetitionDetectionParams,
    SamplingParams,
    StructuredOutputsParams,
)

REGEX = SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"))


class Word(str):
    """A text of a type that only Python knows."""


_texts = st.one_of(st.text(max_size=8), st.just("\ud800"), st.builds(Word, st.just("a")))
_numbers = st.one_of(
    st.integers(-3, 300),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.floats(0, 2),
    st.booleans(),
    st.builds(np.float64, st.floats(0, 1)),
    st.builds(np.int64, st.integers(0, 9)),
)
_anything = st.recursive(
    st.one_of(st.none(), _numbers, _texts),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(_texts, st.integers(0, 9)), inner, max_size=3),
    ),
    max_leaves=4,
)
_likely = st.one_of(_numbers, _texts, st.lists(_numbers, max_size=3), st.lists(_texts, max_size=3))


def _some_of(struct: type[msgspec.Struct], values: st.SearchStrategy[Any]) -> Any:
    names = st.sampled_from(struct.__struct_fields__)
    return st.dictionaries(names, values, max_size=4)


@cache
def _processor() -> InputProcessor:
    config = engine_config(generation_config={})
    outputs = StructuredOutputsConfig(reasoning_parser="deepseek_r1")
    return InputProcessor(dataclasses.replace(config, structured_outputs=outputs), byte_tokenizer())


@hypothesis.given(
    fields=_some_of(SamplingParams, st.one_of(_likely, _anything)),
    constraint=st.one_of(st.none(), _some_of(StructuredOutputsParams, _anything)),
    repetition=st.one_of(st.none(), _some_of(RepetitionDetectionParams, _numbers)),
    prompt=st.one_of(_texts, st.lists(st.integers(-1, 256), max_size=4), _anything),
    salt=st.one_of(st.none(), _texts),
)
@hypothesis.example({"bad_words_token_ids": 0.5}, None, None, "a", None)
@hypothesis.example({"bad_words_token_ids": [["a"]]}, None, None, "a", None)
@settings(max_examples=1500, deadline=None, database=None, derandomize=True)
def test_accepted_requests_arrive_unchanged(
    fields: dict[str, Any],
    constraint: dict[str, Any] | None,
    repetition: dict[str, Any] | None,
    prompt: Any,
    salt: Any,
) -> None:
    try:
        if constraint is not None:
            fields["structured_outputs"] = StructuredOutputsParams(**constraint)
        if repetition is not None:
            fields["repetition_detection"] = RepetitionDetectionParams(**repetition)
        processed = _processor().process(prompt, SamplingParams(**fields), salt)
    except RequestError:
        return
    messages: list[ToCore] = [AddRequests(fan_out("r", processed, 0.5, 0))]
    if processed.params.structured_outputs is not None:
        messages.append(Call(1, Prepare(processed.params)))
    for message in messages:
        assert decode_to_core(message_encoder().encode(message)) == message


@pytest.mark.parametrize("value", [np.float64(0.5), 1, 0.0])
def test_numbers_of_other_types_are_taken(value: Any) -> None:
    given = _processor().process("a", SamplingParams(temperature=value)).params
    assert given.temperature == value


def _damaged(message: ToCore) -> bytes:
    plain = msgspec.msgpack.decode(message_encoder().encode(message))
    if isinstance(message, AddRequests):
        for request in plain["requests"]:
            request["task"]["top_k"] = "many"
    else:
        plain["command"]["params"]["structured_outputs"] = {"regex": {"type": "object"}}
    return msgspec.msgpack.encode(plain)


def _unconstrained(message: ToCore) -> bytes:
    plain = msgspec.msgpack.decode(message_encoder().encode(message))
    plain["command"]["params"] = {}
    return msgspec.msgpack.encode(plain)


def test_unreadable_message_names_its_requests() -> None:
    processed = _processor().process("a", SamplingParams(n=2))
    found = decode_to_core(_damaged(AddRequests(fan_out("r", processed, 0.5, 0))))
    assert isinstance(found, Undecodable) and found.request_ids == ["0_r", "1_r"]
    for damaged in (_damaged(Call(9, Prepare(REGEX))), _unconstrained(Call(9, Prepare(REGEX)))):
        found = decode_to_core(damaged)
        assert isinstance(found, Undecodable) and found.call_id == 9


async def test_an_unreadable_message_ends_its_request_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with async_engine(says("hello")) as (engine, _):
        await engine.check_health()
        channel = engine._core._handle.channel
        encode, state = channel.encode, {"damages": True}

        def damage(message: ToCore) -> bytes:
            is_hit = state["damages"] and isinstance(message, AddRequests | Call)
            return _damaged(message) if is_hit else encode(message)

        monkeypatch.setattr(channel, "encode", damage)
        params = SamplingParams(max_tokens=9)
        with pytest.raises(EngineGenerateError, match="cannot read the request"):
            async for _ in engine.generate("say>", params, "bad"):
                raise AssertionError("nothing can have come")
        with pytest.raises(RequestError, match="cannot read the constraint"):
            await engine.prepare(
                SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"))
            )
        state["damages"] = False
        outputs = [output async for output in engine.generate("say>", params, "good")]
        assert outputs[-1].outputs[0].text == "hello"
        assert not engine.errored


async def test_unencodable_message_expects_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core that waits for nothing must not count as stuck."""
    async with async_engine(says("hello")) as (engine, _):
        await engine.check_health()
        client = engine._core
        with pytest.raises(OverflowError):
            client._send(Call(2**70, Prepare(REGEX)))
        assert client._handle.heartbeat.stamp == 0
