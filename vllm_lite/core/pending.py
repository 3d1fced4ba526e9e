"""Answers to submitted steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from vllm_lite.core.step import ModelRunnerOutput


class PendingOutput(Protocol):
    """The answer to a step that was submitted."""

    def get(self) -> ModelRunnerOutput:
        """Wait for the step. Raises where it failed as a whole."""


@dataclass(frozen=True, slots=True)
class DoneOutput:
    """The answer to a step that ran before `submit` returned."""

    output: ModelRunnerOutput

    def get(self) -> ModelRunnerOutput:
        return self.output


@dataclass(frozen=True, slots=True)
class FailedOutput:
    """The answer to a step that could not be submitted."""

    error: Exception

    def get(self) -> ModelRunnerOutput:
        raise self.error
