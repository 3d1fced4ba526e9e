"""One request of a load, what datasets are made with, and how their files are read."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_lite.bench.options.datasets import DatasetOptions
from vllm_lite.bench.prompts import PromptMaker
from vllm_lite.errors import UsageError
from vllm_lite.progress import progress_bar

# Seconds after which people want to know what goes on.
_PATIENCE = 1.0
# A text, its token ids, or several texts in one request.
Prompt = str | list[int] | list[str]


@dataclass(frozen=True, slots=True)
class Sample:
    """One request: its prompt, and prompt and output length in tokens.

    `at` is when a trace says that it comes, in seconds from the trace's first one.
    """

    prompt: Prompt
    prompt_tokens: int
    output_tokens: int
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Source:
    """Inputs of a dataset; `as_chat` renders a prompt as the first turn of a chat.

    With `shows_progress`, slow generation of prompts draws a bar.
    """

    options: DatasetOptions
    maker: PromptMaker
    seed: int
    as_chat: Callable[[str], str] | None = None
    shows_progress: bool = False

    @property
    def path(self) -> Path:
        return Path(self.options.dataset_path or "").expanduser()

    def numbers(self) -> Iterable[int]:
        """0, 1, ... for each prompt that was asked for."""
        return progress_bar(
            range(self.options.num_prompts),
            desc="Making prompts",
            leave=False,
            delay=_PATIENCE,
            is_shown=self.shows_progress,
        )

    def text_sample(self, prompt: str, output_tokens: int) -> Sample:
        """A sample of a text, as a chat where that is asked for."""
        # A template writes itself what the tokenizer would add to a bare text.
        text = self.as_chat(prompt) if self.as_chat else prompt
        added = 0 if self.as_chat else self.maker.num_added
        return Sample(text, self.maker.count(text) + added, output_tokens)

    def fill_up(self, samples: Sequence[Sample]) -> list[Sample]:
        """As many samples as were asked for, some of them repeated at random; UsageError."""
        if not samples:
            raise UsageError(f"{self.path} holds no prompt that can be used")
        missing = self.options.num_prompts - len(samples)
        if missing <= 0 or not self.options.oversample:
            return list(samples)
        return [*samples, *random.Random(self.seed).choices(samples, k=missing)]

    def shuffled(self, rows: list[Any]) -> list[Any]:
        """`rows` in an order of the seed's, or their own where that is asked for."""
        if not self.options.disable_shuffle:
            random.Random(self.seed).shuffle(rows)
        return rows


def read_text(path: Path) -> str:
    """The whole of a dataset's file; raises UsageError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"--dataset-path {path}: {reason}") from None


def read_json(path: Path) -> Any:
    """The value of a JSON file; raises UsageError."""
    try:
        return json.loads(read_text(path))
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from None


def read_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSON-lines file, each with where it stands; raises UsageError."""
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{where} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise UsageError(f"{where} is not a JSON object")
        yield where, row


def whole_number(row: dict[str, Any], key: str, where: str) -> int:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f'{where} has no whole number under "{key}"')
    return value
