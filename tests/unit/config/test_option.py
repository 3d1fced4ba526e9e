"""@config and option(): frozen, checked, and every refusal names the flag."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import pytest

from vllm_lite.config.options.option import config, option, option_table, options
from vllm_lite.errors import UsageError


@config
class Sample:
    """A sample."""

    max_things: int = option(4, "Most things.", ge=1, le=8)
    share: float = option(0.5, "A share.", gt=0, le=1)
    mode: Literal["slow", "fast"] | None = option(None, "A mode.", works=("slow",), remedy="wait")
    names: list[str] = option([], "Names.")
    extra: dict[str, Any] = option({}, "More.")
    length: int = option(16, "A length.", auto="from elsewhere")
    password: str = option("", "Hidden.", secret=True)


@config
class Tree:
    """A tree."""

    sample: Sample = dataclasses.field(default_factory=Sample)
    root: bool = option(False, "Its own option.")


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        ({"max_things": 0}, "--max-things must be at least 1 and at most 8, not 0"),
        ({"max_things": 9}, "--max-things must be at least 1 and at most 8, not 9"),
        ({"max_things": True}, "--max-things must be a whole number, not True"),
        ({"max_things": "4"}, "--max-things must be a whole number, not '4'"),
        ({"share": 0}, "--share must be greater than 0 and at most 1, not 0"),
        ({"share": float("nan")}, "--share must be a number, not nan"),
        ({"mode": "medium"}, "--mode must be one of slow, fast, not 'medium'"),
        ({"mode": "fast"}, "--mode fast is not available in this build; wait"),
        ({"names": ["a", 1]}, "--names must be a list"),
        ({"extra": []}, "--extra must be a JSON object"),
    ],
)
def test_a_bad_value_is_one_line_that_names_the_option(given: Any, cause: str) -> None:
    with pytest.raises(UsageError) as caught:
        Sample(**given)
    assert cause in str(caught.value)


def test_good_values_pass_and_nothing_can_be_changed() -> None:
    sample = Sample(max_things=8, share=1, mode="slow", names=["a"], extra={"b": 1})
    with pytest.raises(dataclasses.FrozenInstanceError):
        sample.max_things = 1  # type: ignore[misc]


def test_container_defaults_are_not_shared() -> None:
    assert Sample().names is not Sample().names


def test_secrets_are_not_shown() -> None:
    assert "hunter2" not in repr(Sample(password="hunter2"))


def test_the_table_holds_the_whole_tree_and_derived_defaults_are_none() -> None:
    assert list(option_table(Tree)) == [entry.name for entry in options(Sample)] + ["root"]
    assert option_table(Tree)["length"].flat_default is None
    assert option_table(Tree)["length"].default == 16
    assert option_table(Tree)["max_things"].flag == "--max-things"


def test_one_name_stands_once_in_a_tree() -> None:
    @config
    class Twice:
        sample: Sample = dataclasses.field(default_factory=Sample)
        share: float = option(0.1, "Again.")

    Twice.__annotations__["sample"] = Sample
    with pytest.raises(TypeError, match="share is declared twice"):
        option_table(Twice)


def test_infinity_is_for_options_that_say_so() -> None:
    @config
    class Rates:
        """Rates."""

        limit: float = option(1.0, "A rate.", gt=0, infinite=True)
        share: float = option(1.0, "A share.", gt=0)

    assert Rates(limit=float("inf")).limit == float("inf")
    for given in ({"limit": float("-inf")}, {"limit": float("nan")}, {"share": float("inf")}):
        with pytest.raises(UsageError, match="must be a number"):
            Rates(**given)
