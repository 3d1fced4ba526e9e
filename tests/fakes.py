"""Stand-ins that behave: what the real thing promises, small enough to read.

`ScriptedExecutor` is a model in miniature with a paged cache. What it samples depends on
every token that its requests' block tables let it see, and on its state where it has one, so a
wrong table or slot shows as a wrong token.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count as count_from
from itertools import islice
from random import Random
from typing import Any

from tests.builders import alike_layers
from vllm_lite.core.kv_group import cache_groups
from vllm_lite.core.kv_plan import KVCachePlan
from vllm_lite.core.kv_spec import KVCacheSpec
from vllm_lite.core.pending import DoneOutput
from vllm_lite.core.step import (
    LateMasks,
    ModelRunnerOutput,
    NewRequestData,
    Pooled,
    SchedulerOutput,
    StateSlots,
    TokenLogprobs,
)
from vllm_lite.executor.executor import Executor
from vllm_lite.pooling_params import PoolingParams
from vllm_lite.worker.interface import MemoryTag

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
    has_state: bool = False,
) -> list[int]:
    """The tokens that a ScriptedExecutor generates after `prompt`, without any cache or scheduler.

    `windows`: of its groups of layers.
    """
    script = _script(prompt, vocab_size, windows, has_state)
    return [_mix(seen) % vocab_size for seen in islice(script, count)]


def scripted_vector(
    prompt: list[int], *, windows: Sequence[int | None] = (None,), has_state: bool = False
) -> bytes:
    """The vector that a ScriptedExecutor gives for `prompt`."""
    return next(_script(prompt, 1, windows, has_state)).to_bytes(8, "little")


def _script(
    prompt: list[int], vocab_size: int, windows: Sequence[int | None], has_state: bool
) -> Iterator[int]:
    """The sum of what is seen at the prompt's last token, and at each that is sampled."""
    tokens, cache, state = list(prompt), list[int](), 0
    for position in count_from(0):
        seen = _sum(cache, windows, position, position) + state
        cache.append(_mix(tokens[position], position, seen & _MASK))
        state = _mix(state, tokens[position]) if has_state else 0
        if position >= len(prompt) - 1:
            seen = (_sum(cache, windows, position, position + 1) + state) & _MASK
            yield seen
            tokens.append(_mix(seen) % vocab_size)


def _sum(cache: list[int], windows: Sequence[int | None], position: int, end: int) -> int:
    """Of what the groups see at `position`, of entries before `end`."""
    starts = (max(0, position - window + 1) if window else 0 for window in windows)
    return sum(sum(cache[start:end]) for start in starts) & _MASK


@dataclass(slots=True)
class _Sequence:
    """A request as the worker side keeps it."""

    data: NewRequestData
    token_ids: list[int]
    block_ids: list[list[int]]
    num_computed: int
    state: int = 0


class ScriptedExecutor(Executor):
    """An Executor without tensors.

    The default "model" caches mix(token, position, sum of what it sees) and samples from the
    sum of what the last position sees, which is the vector where it pools; a state,
    mix(state, token), is added to such sums.
    `next_token(request_id, token_ids)` replaces the sampling alone. Where a step allows drafts,
    some are made up, right or wrong. `raise_next` is raised by the next step, `lose_next` by the
    next that ran to its end; `fail_next` makes single requests fail.
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
        if config is not None and config.scheduler.async_scheduling:
            self.max_in_flight = 2
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
        self._states: list[int | None] = []
        self._sequences: dict[str, _Sequence] = {}
        self._chance = Random(0)

    def kv_cache_spec(self) -> KVCacheSpec:
        return self._spec

    def available_memory(self) -> int:
        return self._available_bytes

    def initialize_cache(self, plan: KVCachePlan) -> float:
        self._block_size = plan.block_size
        self._cache = [None] * (plan.num_blocks * plan.block_size)
        self._states = [None] * plan.num_states
        return 0.0

    def submit(self, step: SchedulerOutput, masks: LateMasks | None = None) -> DoneOutput:
        return DoneOutput(self.execute_model(step))

    def execute_model(self, step: SchedulerOutput) -> ModelRunnerOutput:
        if self.raise_next is not None:
            error, self.raise_next = self.raise_next, None
            raise error
        self.steps.append(step)
        self._update_sequences(step)
        output = ModelRunnerOutput(sampled_token_ids={})
        assert list(step.num_scheduled_tokens) == list(step.num_verified)
        self._check_states(step)
        for request_id, num_scheduled in step.num_scheduled_tokens.items():
            state = step.states.get(request_id)
            self._run(request_id, num_scheduled, step.num_verified[request_id], state, output)
            if request_id in self.fail_next:
                output.errors[request_id] = self.fail_next.pop(request_id)
                output.sampled_token_ids.pop(request_id, None)
                output.pooled.pop(request_id, None)
        if self.lose_next is not None:
            error, self.lose_next = self.lose_next, None
            raise error
        return output

    def call(self, method: Callable[..., Any], *args: Any) -> list[Any]:
        return [getattr(self, method.__name__)(*args)]

    def refill_weights(self) -> None: ...

    def save_sharded_state(self, directory: str, pattern: str, max_size: int) -> str:
        return ""

    def release(self, tags: Collection[MemoryTag]) -> int:
        self._cache = [0] * len(self._cache)
        return len(self._cache)

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
            sequence = _Sequence(new, known, tables, new.num_computed_tokens)
            self._sequences[new.request_id] = sequence
        for request_id, added in step.new_block_ids.items():
            for table, new_ids in zip(self._sequences[request_id].block_ids, added, strict=True):
                table += new_ids

    def _check_states(self, step: SchedulerOutput) -> None:
        """No slot is written by two requests of a step, or written by one and read by another."""
        assert set(step.states) == (set(step.num_scheduled_tokens) if self._states else set())
        users: dict[int, str] = {}
        for request_id, state in step.states.items():
            for _, slot in state.writes:
                assert users.setdefault(slot, request_id) == request_id
        for request_id, state in step.states.items():
            assert users.get(state.read, request_id) == request_id

    def _run(
        self,
        request_id: str,
        num_scheduled: int,
        num_verified: int,
        slots: StateSlots | None,
        output: ModelRunnerOutput,
    ) -> None:
        sequence = self._sequences[request_id]
        tokens, start = sequence.token_ids, sequence.num_computed
        most_drafts = max(num_verified - 1, 0)
        end = start + num_scheduled - most_drafts
        assert start < end <= len(tokens), "tokens that nobody knows"
        params = sequence.data.task
        pools = isinstance(params, PoolingParams)
        assert bool(num_verified) == (end == len(tokens) and not pools)
        windows = [group.sliding_window or 1 << 30 for group in cache_groups(self._spec)]
        seen = [
            [self._read(sequence, group, p) for p in range(max(0, start - window + 1), start)]
            for group, window in enumerate(windows)
        ]
        if slots is not None:
            assert (slots.read < 0) == (start == 0)
            state = self._states[slots.read] if start else 0
            assert state is not None, "a state is read that was never written"
            sequence.state = state
        for position in range(start, end):
            self._compute(sequence, seen, windows, position, tokens[position])
            for offset, slot in () if slots is None else slots.writes:
                if start + offset == position:
                    self._states[slot] = sequence.state
        prompt = sequence.data.prompt_token_ids
        if isinstance(params, PoolingParams):
            if end == len(tokens):
                vector = self._visible(sequence, seen, windows)
                output.pooled[request_id] = Pooled(vector.to_bytes(8, "little"), 2)
            sequence.num_computed = end
            return
        if params.prompt_logprobs is not None and start < len(prompt) - 1:
            output.prompt_logprobs[request_id] = [
                self._logprobs(tokens[p + 1], params.prompt_logprobs)
                for p in range(start, min(end, len(prompt) - 1))
            ]
        if not num_verified:
            sequence.num_computed = end
            return
        sampled = [self._next_token(sequence, tokens, seen, windows)]
        num_drafts, is_right = self._chance.randint(0, most_drafts), True
        for position in range(end, end + num_drafts):
            # A wrong draft, and all after it, leave in the cache what nobody may read.
            is_right &= self._chance.random() < 0.6
            draft = sampled[-1] if is_right else self._chance.randrange(self.vocab_size)
            self._compute(sequence, seen, windows, position, draft)
            if is_right:
                known = tokens + sampled
                sampled.append(self._next_token(sequence, known, seen, windows))
        if num_drafts:
            output.num_draft_tokens[request_id] = num_drafts
        tokens += sampled
        sequence.num_computed = end + len(sampled) - 1
        output.sampled_token_ids[request_id] = sampled
        if params.logprobs is not None:
            output.logprobs[request_id] = [self._logprobs(t, params.logprobs) for t in sampled]

    def _compute(
        self,
        sequence: _Sequence,
        seen: list[list[int]],
        windows: list[int],
        position: int,
        token_id: int,
    ) -> None:
        visible = sequence.state + sum(
            sum(values[-(window - 1) :]) if window > 1 else 0
            for values, window in zip(seen, windows, strict=True)
        )
        value = _mix(token_id, position, visible & _MASK)
        if self._states:
            sequence.state = _mix(sequence.state, token_id)
        for group, values in enumerate(seen):
            self._cache[self._slot(sequence, group, position)] = value
            values.append(value)

    def _next_token(
        self, sequence: _Sequence, tokens: list[int], seen: list[list[int]], windows: list[int]
    ) -> int:
        if self.next_token is not None:
            return self.next_token(sequence.data.request_id, list(tokens))
        return _mix(self._visible(sequence, seen, windows)) % self.vocab_size

    def _visible(self, sequence: _Sequence, seen: list[list[int]], windows: list[int]) -> int:
        """The sum of what the last position sees."""
        visible = sum(sum(v[-window:]) for v, window in zip(seen, windows, strict=True))
        return (visible + sequence.state) & _MASK

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
