"""Stand-ins that behave: what the real thing promises, small enough to read.

`ScriptedExecutor` is a model in miniature with a paged cache. What it samples depends on
every token that its requests' block tables let it see, so a wrong table shows as a wrong token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_lite.core.kv_group import cache_groups
from vllm_lite.core.kv_plan import KVCachePlan
from vllm_lite.core.kv_spec import KVCacheSpec, alike_layers
from vllm_lite.core.pending import DoneOutput
from vllm_lite.core.step import (
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
    TokenLogprobs,
)

_MASK = (1 << 64) - 1
_LOGPROB = -0.5


def _mix(*values: int) -> int:
    """A 64-bit hash, the same in every process."""
    state = 0x9E3779B97F4A7C15
    for value in values:
        state = ((state ^ value) * 0xBF58476D1CE4E5B9) & _MASK
        state ^= state >> 29
    return state


def scripted_tokens(
    prompt: list[int],
    count: int,
    *,
    vocab_size: int = 101,
    windows: Sequence[int | None] = (None,),
) -> list[int]:
    """What a ScriptedExecutor generates after `prompt`, without any cache or scheduler.

    `windows`: of its groups of layers.
    """
    tokens, cache = list(prompt), list[int]()
    for position in range(len(prompt) + count - 1):
        cache.append(_mix(tokens[position], position, _sum(cache, windows, position, position)))
        if position >= len(prompt) - 1:
            tokens.append(_mix(_sum(cache, windows, position, position + 1)) % vocab_size)
    return tokens[len(prompt) :]


def _sum(cache: list[int], windows: Sequence[int | None], position: int, end: int) -> int:
    """Of what the groups see at `position`, of entries before `end`."""
    starts = (max(0, position - window + 1) if window else 0 for window in windows)
    return sum(sum(cache[start:end]) for start in starts) & _MASK


@dataclass(slots=True)
class _Sequence:
    """What the worker side keeps of one request."""

    data: NewRequestData
    token_ids: list[int]
    block_ids: list[list[int]]


class ScriptedExecutor:
    """An Executor without tensors.

    The default "model" caches mix(token, position, sum of what it sees) and samples from the
    sum of what the last position sees. `next_token(request_id, token_ids)` replaces the sampling
    alone. `raise_next` is raised by the next step, `lose_next` by the next that ran to its end;
    `fail_next` makes single requests fail.
    """

    def __init__(
        self,
        config: Any = None,
        *,
        spec: KVCacheSpec | None = None,
        available_bytes: int = 1 << 24,
        vocab_size: int = 101,
        next_token: Callable[[str, list[int]], int] | None = None,
    ) -> None:
        self.config = config
        self.vocab_size = vocab_size
        self.next_token = next_token
        self.raise_next: BaseException | None = None
        self.lose_next: BaseException | None = None
        self.fail_next: dict[str, str] = {}
        self.steps: list[SchedulerOutput] = []
        self.is_shut_down = False
        self._spec = spec or alike_layers(1, 1, 8, "float32")
        self._available_bytes = available_bytes
        self._block_size = 0
        self._cache: list[int | None] = []
        self._sequences: dict[str, _Sequence] = {}
        self._computed: dict[str, int] = {}

    def kv_cache_spec(self) -> KVCacheSpec:
        return self._spec

    def available_memory(self) -> int:
        return self._available_bytes

    def initialize_cache(self, plan: KVCachePlan) -> None:
        self._block_size = plan.block_size
        self._cache = [None] * (plan.num_blocks * plan.block_size)

    def submit(self, step: SchedulerOutput) -> DoneOutput:
        return DoneOutput(self.execute_model(step))

    def execute_model(self, step: SchedulerOutput) -> ModelRunnerOutput:
        if self.raise_next is not None:
            error, self.raise_next = self.raise_next, None
            raise error
        self.steps.append(step)
        self._update_sequences(step)
        output = ModelRunnerOutput(sampled_token_ids={})
        assert self._computed.keys() == step.num_scheduled_tokens.keys()
        for request_id, num_scheduled in step.num_scheduled_tokens.items():
            self._run(request_id, num_scheduled, output)
            if request_id in self.fail_next:
                output.errors[request_id] = self.fail_next.pop(request_id)
                output.sampled_token_ids.pop(request_id, None)
        if self.lose_next is not None:
            error, self.lose_next = self.lose_next, None
            raise error
        return output

    def describe(self) -> str:
        return "a script, no kernels"

    def shutdown(self) -> None:
        self.is_shut_down = True

    @property
    def num_known_requests(self) -> int:
        """Requests whose state the worker side keeps."""
        return len(self._sequences)

    def _update_sequences(self, step: SchedulerOutput) -> None:
        for request_id in step.dropped_request_ids:
            self._sequences.pop(request_id, None)
        for new in step.new_requests:
            known = new.prompt_token_ids + new.output_token_ids
            tables = [list(table) for table in new.block_ids]
            self._sequences[new.request_id] = _Sequence(new, known, tables)
        for cached in step.cached_requests:
            for table, new_ids in zip(
                self._sequences[cached.request_id].block_ids, cached.new_block_ids, strict=False
            ):
                table += new_ids
        self._computed = {new.request_id: new.num_computed_tokens for new in step.new_requests}
        for cached in step.cached_requests:
            self._computed[cached.request_id] = cached.num_computed_tokens

    def _run(self, request_id: str, num_scheduled: int, output: ModelRunnerOutput) -> None:
        sequence = self._sequences[request_id]
        tokens, start = sequence.token_ids, self._computed[request_id]
        end = start + num_scheduled
        assert 0 < num_scheduled <= len(tokens) - start, "tokens that nobody knows"
        windows = [group.sliding_window or end for group in cache_groups(self._spec)]
        seen = [
            [self._read(sequence, group, p) for p in range(max(0, start - window + 1), start)]
            for group, window in enumerate(windows)
        ]
        for position in range(start, end):
            visible = sum(
                sum(values[-(window - 1) :]) if window > 1 else 0
                for values, window in zip(seen, windows, strict=True)
            )
            value = _mix(tokens[position], position, visible & _MASK)
            for group, values in enumerate(seen):
                self._cache[self._slot(sequence, group, position)] = value
                values.append(value)
        params = sequence.data.sampling_params
        prompt = sequence.data.prompt_token_ids
        if params.prompt_logprobs is not None and start < len(prompt) - 1:
            output.prompt_logprobs[request_id] = [
                self._logprobs(tokens[p + 1], params.prompt_logprobs)
                for p in range(start, min(end, len(prompt) - 1))
            ]
        if end < len(tokens):
            return
        if self.next_token is not None:
            token_id = self.next_token(request_id, list(tokens))
        else:
            visible = sum(sum(v[-window:]) for v, window in zip(seen, windows, strict=True))
            token_id = _mix(visible & _MASK) % self.vocab_size
        tokens.append(token_id)
        output.sampled_token_ids[request_id] = token_id
        if params.logprobs is not None:
            output.logprobs[request_id] = self._logprobs(token_id, params.logprobs)

    def _logprobs(self, token_id: int, num_candidates: int) -> TokenLogprobs:
        others = [(token_id + i) % self.vocab_size for i in range(num_candidates)]
        return TokenLogprobs([token_id, *others], [_LOGPROB] * (1 + len(others)), 1)

    def _slot(self, sequence: _Sequence, group: int, position: int) -> int:
        block_id = sequence.block_ids[group][position // self._block_size]
        assert block_id != 0, "the null block is in use"
        return block_id * self._block_size + position % self._block_size

    def _read(self, sequence: _Sequence, group: int, position: int) -> int:
        value = self._cache[self._slot(sequence, group, position)]
        assert value is not None, "a slot is read that was never written"
        return value
