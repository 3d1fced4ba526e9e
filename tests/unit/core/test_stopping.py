"""How a sequence ends: vLLM's finish and stop reasons."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import request
from vllm_lite.core.request import RequestStatus
from vllm_lite.core.stopping import check_stop
from vllm_lite.errors import RequestError
from vllm_lite.repetition import RepetitionDetectionParams

EOS, STOP, OTHER = 7, 8, 9


def end_of(tokens: list[int], **options: Any) -> tuple[str | None, int | str | None]:
    options = {"max_tokens": 100, "stop_token_ids": [STOP], **options}
    r = request(3, eos=(EOS,), **options)
    for token in tokens[:-1]:
        r.append_token(token)
        assert check_stop(r) is None
    r.append_token(tokens[-1])
    status = check_stop(r)
    return (status.finish_reason if status else None, r.stop_reason)


@pytest.mark.parametrize(
    ("tokens", "options", "expected"),
    [
        ([OTHER], {}, (None, None)),
        ([OTHER, EOS], {}, ("stop", None)),
        ([OTHER, STOP], {}, ("stop", STOP)),
        ([EOS], {"ignore_eos": True}, (None, None)),
        ([EOS], {"ignore_eos": True, "stop_token_ids": [EOS]}, ("stop", EOS)),
        ([EOS], {"stop_token_ids": [EOS]}, ("stop", None)),
        ([OTHER, OTHER], {"max_tokens": 2}, ("length", None)),
        ([OTHER, EOS], {"max_tokens": 2}, ("stop", None)),
        ([EOS, STOP, EOS], {"min_tokens": 3}, ("stop", None)),
        ([EOS, STOP], {"min_tokens": 2, "max_tokens": 2}, ("stop", STOP)),
        ([OTHER] * 50, {"max_tokens": None}, (None, None)),
    ],
)
def test_the_last_token_decides(tokens: list[int], options: dict[str, Any], expected: Any) -> None:
    assert end_of(tokens, **options) == expected


def test_context_length_ends_a_request() -> None:
    r = request(3, max_tokens=None)
    r.max_total_tokens = 4
    r.append_token(OTHER)
    assert check_stop(r) is RequestStatus.FINISHED_LENGTH_CAPPED


def ends_at(tokens: list[int], detection: dict[str, int], **options: Any) -> int | None:
    """How many tokens it takes until repeats end the text."""
    params = RepetitionDetectionParams(**detection)
    r = request(3, eos=(EOS,), max_tokens=None, repetition_detection=params, **options)
    for count, token in enumerate(tokens, 1):
        r.append_token(token)
        if (status := check_stop(r)) is not None:
            assert status.finish_reason == "repetition"
            assert r.stop_reason == "repetition_detected"
            return count
    return None


@pytest.mark.parametrize(
    ("tokens", "detection", "expected"),
    [
        ([1, 2, 3, 3, 3], {"max_pattern_size": 1, "min_count": 3}, 5),
        ([1, 2, 1, 2, 1, 2], {"max_pattern_size": 2, "min_count": 3}, 6),
        ([9, 1, 2, 1, 2, 3, 1, 2], {"max_pattern_size": 4, "min_count": 3}, None),
        ([1, 1, 1, 1, 1, 1], {"max_pattern_size": 3, "min_pattern_size": 2, "min_count": 3}, 6),
        ([1, 2, 3] * 4, {"max_pattern_size": 2, "min_count": 2}, None),
        ([5] * 9, {}, None),
    ],
)
def test_repeats_end_the_text(
    tokens: list[int], detection: dict[str, int], expected: int | None
) -> None:
    assert ends_at(tokens, detection) == expected


def test_repeats_before_min_tokens_count_but_do_not_end_the_text() -> None:
    assert ends_at([5] * 9, {"max_pattern_size": 1, "min_count": 2}, min_tokens=7) == 7


@given(
    st.lists(st.integers(0, 2), max_size=40),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(2, 4),
)
def test_repeats_are_those_that_a_look_at_the_whole_text_finds(
    tokens: list[int], shortest: int, longest: int, count: int
) -> None:
    longest = max(shortest, longest)
    found = None
    for end in range(1, len(tokens) + 1):
        for size in range(shortest, longest + 1):
            tail = tokens[max(end - size * count, 0) : end]
            if len(tail) == size * count and tail == tail[:size] * count:
                found = found or end
    detection = {"max_pattern_size": longest, "min_pattern_size": shortest, "min_count": count}
    assert ends_at(tokens, detection) == found


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_pattern_size": 513, "min_count": 2}, "max_pattern_size"),
        ({"max_pattern_size": 2, "min_pattern_size": 3, "min_count": 2}, "min_pattern_size"),
        ({"max_pattern_size": 2}, "min_count"),
        ({"max_pattern_size": -1}, "max_pattern_size"),
    ],
)
def test_a_detection_that_makes_no_sense_is_refused(fields: dict[str, int], param: str) -> None:
    with pytest.raises(RequestError) as error:
        RepetitionDetectionParams(**fields)
    assert error.value.param == f"repetition_detection.{param}"
