"""The constraint on one request's text: vLLM's StructuredOutputsParams, validated once.

Whether a constraint can be compiled shows when the engine core compiles it. Invariant: an instance
has exactly one constraint, within the bounds below.
"""

from __future__ import annotations

from typing import Any

import msgspec

from vllm_lite.errors import RequestError

MAX_CONSTRAINT_CHARACTERS = 1 << 18  # of one schema, expression, grammar or tag; of all choices
MAX_CHOICES = 4096
MAX_WHITESPACE_PATTERN = 256

_FLAGS = ("disable_any_whitespace", "disable_additional_properties", "enable_in_reasoning")
CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


class StructuredOutputsParams(
    msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True, weakref=True
):
    """See vLLM's StructuredOutputsParams; field names are the same.

    Raises RequestError, with `structured_outputs` or a field under it in `param`.
    """

    # A JSON schema, as text or as the object itself.
    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    # EBNF (`root ::= ...`) or Lark (`start: ...`).
    grammar: str | None = None
    # Any JSON object; False is the same as not given.
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    # A regular expression for the whitespace between JSON's tokens.
    whitespace_pattern: str | None = None
    # Constrain a reasoning model from its first token, not from the end of its reasoning.
    enable_in_reasoning: bool = False

    def __post_init__(self) -> None:
        given = [name for name in CONSTRAINTS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            found = f"has {' and '.join(given)}" if given else "has none"
            raise RequestError(
                f"structured_outputs needs exactly one of {', '.join(CONSTRAINTS)}; it {found}",
                "structured_outputs",
            )
        if not isinstance(self.json, (str, dict, type(None))):
            raise refused("json", "must be a JSON schema: an object, or its text")
        if not isinstance(self.json_object, (bool, type(None))):
            raise refused("json_object", "must be true or false")
        for name in ("json", "regex", "grammar", "structural_tag"):
            value = getattr(self, name)
            if name != "json" or not isinstance(value, dict):
                _check_text(name, value, MAX_CONSTRAINT_CHARACTERS)
        _check_text("whitespace_pattern", self.whitespace_pattern, MAX_WHITESPACE_PATTERN)
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise refused(name, "must be true or false")
        if self.choice is not None:
            _check_choices(self.choice)

    @property
    def constraint(self) -> str:
        """The name of the one constraint that is set."""
        return next(name for name in CONSTRAINTS if getattr(self, name) not in (None, False))


def refused(field: str, rule: str) -> RequestError:
    """The error of a request whose constraint's `field` does not keep `rule`."""
    name = f"structured_outputs.{field}"
    return RequestError(f"{name} {rule}", name)


def _check_text(name: str, value: object, limit: int) -> None:
    if value is None:
        return
    if not isinstance(value, str) or not value:
        raise refused(name, "must be a text that is not empty")
    if len(value) > limit:
        raise refused(name, f"must have at most {limit} characters, got {len(value)}")


def _check_choices(choices: object) -> None:
    if not isinstance(choices, list) or not choices:
        raise refused("choice", "must be a list of at least one text")
    if len(choices) > MAX_CHOICES:
        raise refused("choice", f"must have at most {MAX_CHOICES} entries, got {len(choices)}")
    for choice in choices:
        if not isinstance(choice, str) or not choice:
            raise refused("choice", "must hold only texts that are not empty")
    if sum(map(len, choices)) > MAX_CONSTRAINT_CHARACTERS:
        rule = f"must have at most {MAX_CONSTRAINT_CHARACTERS} characters in all"
        raise refused("choice", rule)
