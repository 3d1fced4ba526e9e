"""What `bench throughput` gives an engine to do, and what it has done: the same for each engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_lite.bench.options import ThroughputOptions


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt to generate from: its text or ids, and how many tokens."""

    prompt: str | list[int]
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Work:
    """What a run has done, and how long it took."""

    num_requests: int
    num_prompt: int
    num_output: int
    seconds: float


def warmups(options: ThroughputOptions, jobs: Sequence[Job]) -> list[Job]:
    """What to generate first that does not count."""
    return [jobs[index % len(jobs)] for index in range(options.num_warmups)]
