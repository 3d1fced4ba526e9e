"""Detects text that repeats itself, with vLLM's RepetitionDetectionParams.

A token costs as many steps as it has earlier occurrences within the longest pattern.
"""

from __future__ import annotations

import msgspec

from vllm_lite.errors import RequestError

MAX_PATTERN_SIZE = 512
MAX_COUNT = 2**31 - 1


class RepetitionDetectionParams(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """End a text whose last tokens are one pattern `min_count` times.

    A pattern has `min_pattern_size` (0 is read as 1) to `max_pattern_size` tokens; a
    `max_pattern_size` of 0 is off. Raises RequestError that names the field.
    """

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    def __post_init__(self) -> None:
        _check("max_pattern_size", self.max_pattern_size, 0, MAX_PATTERN_SIZE)
        _check("min_pattern_size", self.min_pattern_size, 0, self.max_pattern_size)
        _check("min_count", self.min_count, 2 if self.max_pattern_size else 0, MAX_COUNT)


def _check(field: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        name = f"repetition_detection.{field}"
        raise RequestError(f"{name} must be an integer in [{low}, {high}], got {value!r:.40}", name)


class RepetitionDetector:
    """Watches the tokens of one sequence."""

    def __init__(self, params: RepetitionDetectionParams) -> None:
        self._shortest = max(params.min_pattern_size, 1)
        self._longest = params.max_pattern_size
        self._num_repeats = params.min_count - 1
        self._num_tokens = 0
        # The positions of each token, in order.
        self._places: dict[int, list[int]] = {}
        # Period -> how many tokens up to the last one equal the token a period before them.
        self._runs: dict[int, int] = {}

    def append(self, token_id: int) -> bool:
        """Add the next token; returns whether the text now ends in enough repeats."""
        places = self._places.setdefault(token_id, [])
        runs: dict[int, int] = {}
        is_repeating = False
        for place in reversed(places):
            period = self._num_tokens - place
            if period > self._longest:
                break
            if period >= self._shortest:
                runs[period] = run = self._runs.get(period, 0) + 1
                is_repeating = is_repeating or run >= period * self._num_repeats
        places.append(self._num_tokens)
        self._num_tokens += 1
        self._runs = runs
        return is_repeating
