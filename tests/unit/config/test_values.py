"""Human-readable integers and JSON values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_lite.config.values import human_int, json_of, json_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("-1", -1),
        ("1k", 1000),
        ("1K", 1024),
        ("25.6k", 25600),
        ("2G", 2**31),
        ("2g", 2 * 10**9),
        ("1.5m", 1_500_000),
        ("3T", 3 * 2**40),
        ("0.001k", 1),
    ],
)
def test_small_letters_are_thousands_and_capitals_1024s(text: str, value: int) -> None:
    assert human_int(text) == value


@pytest.mark.parametrize("text", ["1.5K", "1.0001k", "k", "", "1e3", "1.5", "four", "1 k", "1kk"])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="whole number"):
        human_int(text)


def test_a_fraction_of_1024s_suggests_thousands() -> None:
    with pytest.raises(ValueError, match=r"did you mean 1\.5k"):
        human_int("1.5K")


def test_words_stand_for_numbers() -> None:
    assert human_int("auto", {"auto": -1}) == -1


@given(st.integers(-(10**20), 10**20))
def test_every_plain_integer_is_itself(number: int) -> None:
    assert human_int(str(number)) == number


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("null", None), ("1k", 1000), ("abc", "abc"), ('{"a":1}', {"a": 1})],
)
def test_a_dotted_value_is_json_or_a_human_integer_or_text(text: str, value: Any) -> None:
    assert json_value(text) == value


def test_json_of_the_wrong_kind_is_refused() -> None:
    assert json_of('["a"]', list) == ["a"]
    with pytest.raises(ValueError, match="not a JSON object"):
        json_of('["a"]', dict)
    with pytest.raises(ValueError, match="not a JSON list"):
        json_of("a,b", list)
