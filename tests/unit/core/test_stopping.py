"""How a sequence ends: vLLM's finish and stop reasons."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import request
from vllm_lite.core.stopping import check_stop
from vllm_lite.request import RequestStatus

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


def test_the_context_ends_what_max_tokens_would_not() -> None:
    r = request(3, max_tokens=None)
    r.max_total_tokens = 4
    r.append_token(OTHER)
    assert check_stop(r) is RequestStatus.FINISHED_LENGTH_CAPPED
