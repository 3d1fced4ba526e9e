"""Every field's range and normalisation, and that decoding an instance changes nothing."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from vllm_lite.errors import RequestError
from vllm_lite.sampling_params import (
    RequestOutputKind,
    SamplingParams,
    SamplingType,
)

BAD_VALUES: list[tuple[str, list[Any]]] = [
    ("n", [0, -1, 10_000, 1.5, "1", True]),
    ("presence_penalty", [-2.1, 2.1]),
    ("frequency_penalty", [-2.1, 2.1]),
    ("repetition_penalty", [0, -1, 1e9]),
    ("temperature", [-1, 2.01, 1e9, 10**400]),
    ("top_p", [0, -0.1, 1.1]),
    ("top_k", [-2, 2**40, 1.0]),
    ("min_p", [-0.1, 1.1]),
    ("seed", [2**63, -(2**63) - 1, 1.5]),
    ("stop", ["", [""], ["a", 1], ["x"] * 65, ["x" * 1025], 7]),
    ("stop_token_ids", [[-1], ["a"], [1.5], list(range(5000)), 3]),
    ("bad_words", [[""], [3], ["x"] * 1025, "word"]),
    ("ignore_eos", [1, "yes", None]),
    ("detokenize", [0]),
    ("max_tokens", [0, -1, 2**40, 1.5, math.nan]),
    ("min_tokens", [-1, 17, None]),
    ("logprobs", [-2, 2**40, "5"]),
    ("prompt_logprobs", [-2, 1.0]),
    ("truncate_prompt_tokens", [0, -2]),
    ("output_kind", [3, "delta"]),
    ("logit_bias", [{-1: 0.0}, {"a": 0.0}, {1: math.nan}, {1: 101.0}, {1: "x"}, [1]]),
    ("allowed_token_ids", [[], [-1], [True], 3]),
]
FLOATS = [
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "temperature",
    "top_p",
    "min_p",
]


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD_VALUES for value in values]
)
def test_a_value_outside_its_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as error:
        SamplingParams(**{name: value})
    assert error.value.param == name
    assert name in error.value.message
    assert len(error.value.message) < 200


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_float_must_be_finite(name: str, value: float) -> None:
    with pytest.raises(RequestError) as error:
        SamplingParams(**{name: value})
    assert error.value.param == name


def test_defaults_are_vllms() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k) == (1, 1.0, 1.0, 0)
    assert (params.max_tokens, params.min_tokens, params.seed) == (16, 0, None)
    assert params.stop == [] and params.stop_token_ids == [] and params.bad_words == []
    assert params.sampling_type == SamplingType.RANDOM


def test_values_at_the_edges_of_their_ranges_are_taken() -> None:
    for value in ({"temperature": 2}, {"top_p": 1}, {"top_k": -1}, {"min_p": 1}, {"n": 64}):
        SamplingParams(**value)
    for value in ({"seed": 2**63 - 1}, {"seed": -(2**63)}, {"min_tokens": 16}, {"logprobs": -1}):
        SamplingParams(**value)


def test_greedy_resets_the_filters_and_needs_n_of_one() -> None:
    params = SamplingParams(temperature=0, top_p=0.5, top_k=3, min_p=0.2, seed=4)
    assert (params.top_p, params.top_k, params.min_p) == (1.0, 0, 0.0)
    assert params.sampling_type == SamplingType.GREEDY
    with pytest.raises(RequestError) as error:
        SamplingParams(temperature=0, n=2)
    assert error.value.param == "n"


def test_a_tiny_temperature_is_raised_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    import logging

    root = logging.getLogger("vllm_lite")
    root.addHandler(caplog.handler)
    try:
        assert SamplingParams(temperature=0.001).temperature == 0.01
    finally:
        root.removeHandler(caplog.handler)
    assert "temperature 0.001" in caplog.text


def test_off_values_become_none_or_zero() -> None:
    assert SamplingParams(seed=-1).seed is None
    assert SamplingParams(top_k=-1).top_k == 0
    assert SamplingParams(seed=0).sampling_type == SamplingType.RANDOM_SEED


def test_stop_is_a_list_and_needs_text() -> None:
    assert SamplingParams(stop="END").stop == ["END"]
    with pytest.raises(RequestError) as error:
        SamplingParams(stop="END", detokenize=False)
    assert error.value.param == "stop"


def test_min_tokens_may_exceed_nothing_when_max_tokens_is_open() -> None:
    assert SamplingParams(max_tokens=None, min_tokens=500).min_tokens == 500


def test_from_optional_fills_in_for_none_and_clamps_the_bias() -> None:
    params = SamplingParams.from_optional(
        temperature=None, top_p=0.5, max_tokens=None, logit_bias={"7": 1e6, 8: -101}
    )
    assert params.temperature == 1.0 and params.top_p == 0.5 and params.max_tokens is None
    assert params.logit_bias == {7: 100.0, 8: -100.0}
    for bias in ({"x": 1.0}, {"1": math.inf}, {"1": math.nan}, {"-1": 0.0}):
        with pytest.raises(RequestError) as error:
            SamplingParams.from_optional(logit_bias=bias)
        assert error.value.param == "logit_bias"


def test_a_clone_shares_nothing_mutable() -> None:
    params = SamplingParams(stop=["a"], logit_bias={1: 2.0}, bad_words_token_ids=[[1]], n=2)
    copy = params.clone(n=1, seed=5)
    assert isinstance(copy.stop, list) and copy.logit_bias and copy.bad_words_token_ids
    copy.stop.append("b")
    copy.logit_bias[2] = 1.0
    copy.bad_words_token_ids[0].append(2)
    assert params == SamplingParams(stop=["a"], logit_bias={1: 2.0}, bad_words_token_ids=[[1]], n=2)
    assert (copy.n, copy.seed) == (1, 5)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.005, "seed": -1, "top_k": -1},
        {"temperature": 0.0, "stop": "x", "output_kind": RequestOutputKind.DELTA},
        {"logit_bias": {3: -1.5}, "allowed_token_ids": [1, 2], "max_tokens": None},
    ],
)
def test_an_instance_survives_the_wire_unchanged(fields: dict[str, Any]) -> None:
    params = SamplingParams(**fields)
    wire = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(wire, type=SamplingParams) == params


def test_unknown_fields_are_type_errors() -> None:
    with pytest.raises(TypeError):
        SamplingParams(best_of=2)  # type: ignore[call-arg]
