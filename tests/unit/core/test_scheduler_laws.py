"""Whatever comes, goes, fails or runs short: tokens stay right and no block is lost.

Requests arrive, leave and fail at random moments under tiny caches, steps are planned before or
after the one before is answered, drafts come true or do not, some requests want a vector, and
some leave blocks behind that are freed later. The model is scripted: it reads its past through the
block tables, so any wrong block shows as a wrong token.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.builders import core_config, request
from tests.fakes import ScriptedExecutor, scripted_tokens, scripted_vector
from vllm_lite.core.block_events import AllBlocksCleared, BlockEvents, BlockStored
from vllm_lite.core.kv_plan import min_states, plan_kv_cache
from vllm_lite.core.kv_spec import KVCacheSpec, LayerCacheSpec, StateCacheSpec
from vllm_lite.core.request import Request, RequestStatus
from vllm_lite.core.scheduler import Scheduler
from vllm_lite.core.state_pool import StatePool
from vllm_lite.core.step import EngineCoreOutput, SchedulerOutput, TokenLogprobs
from vllm_lite.pooling_params import PoolingParams

SIZE, CONTEXT = 8, 72
EOS, STOP, VOCAB = 3, 5, 150

# Of the layers: one rule, or several that share pages.
# Layers with states: slots more than a request needs, and tokens between two that are kept.
STATES = st.tuples(st.integers(0, 8), st.sampled_from([None, SIZE, 3 * SIZE]))
STATE = StateCacheSpec(((1, 3), (1, 1, 1)))
WINDOWS: list[tuple[int | None, ...]] = [
    *[(None,)] * 3,
    *((1,), (7,), (20,)),
    (None, 7),
    (None, 20, 20),
    (7, None, 7, 1),
]
CONFIGS = st.fixed_dictionaries(
    {
        "max_num_seqs": st.sampled_from([1, 3, 4, 6, 8]),
        "max_num_batched_tokens": st.sampled_from([8, 9, 16, 21, 40, 80]),
        "enable_prefix_caching": st.sampled_from([True, True, False]),
        "scheduling_policy": st.sampled_from(["fcfs", "priority", "fair"]),
        "long_prefill_token_threshold": st.sampled_from([0, 0, 0, 1, 8, 20]),
        "max_num_partial_prefills": st.sampled_from([1, 1, 2, 3]),
        "num_speculative_tokens": st.sampled_from([None, None, 1, 3, 12]),
        "num_speculative_tokens_per_batch_size": st.sampled_from([None, [[1, 99, 12]]]),
    }
)
# Few beginnings, so that prefixes are shared; blocks of one content after different ones, too.
PROMPTS = st.tuples(
    st.integers(10, 11),
    st.integers(0, 1),
    st.one_of(st.integers(1, 24), st.integers(9, CONTEXT - 1)),
).map(lambda drawn: [drawn[0], *(20 + i * drawn[1] for i in range(drawn[2] - 1))])
ARRIVALS = st.fixed_dictionaries(
    {
        "prompt": PROMPTS,
        "max_tokens": st.sampled_from([1, 7, 30, 60]),
        "min_tokens": st.sampled_from([0, 1, 6]),
        "priority": st.integers(0, 2),
        "cache_salt": st.sampled_from([None, None, "salt"]),
        "prompt_logprobs": st.sampled_from([None, None, None, 0]),
        "runs_ahead": st.sampled_from([True, True, False]),
        "tenant": st.sampled_from(["", "a", "b"]),
        # Nothing, or whether what is cached may be used for its vector.
        "pools": st.sampled_from([None, None, True, False]),
    }
)


class SchedulerMachine(RuleBasedStateMachine):
    """The engine core's loop, with a scripted model and a hostile world."""

    @initialize(
        options=CONFIGS,
        chunked=st.sampled_from([True, True, True, False]),
        windows=st.sampled_from(WINDOWS),
        spare=st.integers(0, 8),
        max_in_flight=st.sampled_from([1, 2]),
        states=st.one_of(st.none(), STATES),
        attends=st.sampled_from([True, True, False]),
    )
    def start(
        self,
        options: dict[str, Any],
        chunked: bool,
        windows: tuple[int | None, ...],
        spare: int,
        max_in_flight: int,
        states: tuple[int, int | None] | None,
        attends: bool,
    ) -> None:
        if not chunked:
            options["max_num_batched_tokens"] = CONTEXT
        if states is not None and not attends:
            windows = ()
        layers = tuple(LayerCacheSpec(1, 8, "float32", window) for window in windows)
        spec = KVCacheSpec(layers, () if states is None else (STATE,))
        options |= {"max_model_len": CONTEXT, "enable_chunked_prefill": chunked}
        if states is not None:  # no draft can be taken back
            options["num_speculative_tokens"] = None
        options["method"] = "ngram" if options["num_speculative_tokens"] else None
        if options["method"] is None:
            del options["num_speculative_tokens_per_batch_size"]
        # The smallest cache that is allowed, and a little more.
        least = plan_kv_cache(core_config(**options | {"max_num_seqs": 1}), spec, 1 << 40)
        blocks = {"num_gpu_blocks_override": least.num_blocks + spare} if windows else {}
        config = core_config(**options, **blocks)
        plan = plan_kv_cache(config, spec, 1 << 40)
        if states is not None:
            count = min_states(config) + states[0]
            plan = replace(plan, num_states=count, state_interval=states[1])
        self.has_state = states is not None
        self.groups = plan.groups
        self.max_in_flight = max_in_flight
        self.in_flight: deque[SchedulerOutput] = deque()
        self.events = BlockEvents()
        # The blocks that the events tell of.
        self.told: set[int] = set()
        self.scheduler = Scheduler(config, plan, self.events)
        self.scheduler.pace.least_tokens = 2
        self.seconds: Callable[[int], float] = lambda tokens: 1.0 + tokens
        self.executor = ScriptedExecutor(spec=spec, vocab_size=VOCAB)
        self.executor.initialize_cache(plan)
        self.withdrawn: set[int] = set()
        # What was computed, by the names of its blocks.
        self.computed: set[bytes] = set()
        self.requests: dict[str, Request] = {}
        self.outputs: dict[str, list[EngineCoreOutput]] = {}

    @rule(arrivals=st.lists(ARRIVALS, min_size=1, max_size=6), count=st.integers(0, 3))
    def add_and_run(self, arrivals: list[dict[str, Any]], count: int) -> None:
        for options in arrivals:
            options["min_tokens"] = min(options["min_tokens"], options["max_tokens"])
            runs_ahead, pools = options.pop("runs_ahead"), options.pop("pools")
            if pools is not None:
                options["task"] = PoolingParams(skip_reading_prefix_cache=not pools)
                # Nothing is to follow: it may fill the context.
                if len(options["prompt"]) == CONTEXT - 1:
                    options["prompt"] = [*options["prompt"], 9]
            r = request(stop_token_ids=[STOP], eos=(EOS,), **options)
            r.can_run_ahead = runs_ahead
            self.requests[r.request_id] = r
            self.outputs[r.request_id] = []
            self.scheduler.add_request(r)
        self.run(count)

    @rule(count=st.integers(1, 12))
    def run(self, count: int) -> None:
        for _ in range(count):
            self.step()

    @rule(data=st.data(), trouble=st.sampled_from(["abort", "within", "fail", "raise", "lose"]))
    def disturb(self, data: st.DataObject, trouble: str) -> None:
        ids = [*self.scheduler.requests, "nobody"]
        chosen = data.draw(st.lists(st.sampled_from(ids), max_size=3, unique=True))
        if trouble == "abort":
            self.finish(chosen)
        elif trouble == "within":
            self.step(leave=chosen)
        elif trouble == "fail":
            # What others share with a broken request they keep, though nobody may hit it any more.
            tables = (self.scheduler.kv_manager.block_ids(r) for r in self.scheduler.running)
            held = zip(self.scheduler.running, tables, strict=True)
            self.withdrawn.update(
                *(ids for r, tables in held if r.request_id in chosen for ids in tables)
            )
            self.executor.fail_next = dict.fromkeys(chosen, "broken")
            self.step()
            self.executor.fail_next = {}
        elif trouble == "lose":
            # The next that preempts is lost, and a step planned on it may admit whom it preempted.
            for _ in range(20):
                while self.in_flight:
                    self.answer()
                if self.plan().preempted_request_ids:
                    break
            self.finish(chosen or [r.request_id for r in self.scheduler.running[:1]])
            if self.max_in_flight > 1 and self.scheduler.can_plan_ahead:
                self.plan()
            self.executor.lose_next = RuntimeError("lost")
            self.answer()
        else:
            while self.in_flight:
                self.answer()
            step = self.plan()
            self.executor.raise_next = RuntimeError("broken")
            self.answer()
            assert not self.executor.raise_next, step

    @rule(alone=st.floats(0, 1), each=st.floats(0, 1))
    def change_speed(self, alone: float, each: float) -> None:
        self.seconds = lambda tokens: alone + each * tokens

    @rule()
    def reset(self) -> None:
        assert self.scheduler.reset_prefix_cache() == (not self.scheduler.running)

    @invariant()
    def books_balance(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        manager, stats = self.scheduler.kv_manager, self.scheduler.make_stats()
        running = self.scheduler.running
        tables = {r.request_id: manager.block_ids(r) for r in running}
        held = [ids for of_request in tables.values() for ids in of_request]
        owners = Counter(block for ids in held for block in ids if block)
        total = stats.num_free_blocks + stats.num_cached_blocks + stats.num_used_blocks
        assert total == stats.num_total_blocks == len(manager.pool.blocks) - 1
        assert stats.num_used_blocks == len(owners)
        assert stats.num_running == len(running) <= self.scheduler.config.scheduler.max_num_seqs
        assert stats.num_running + stats.num_waiting == len(self.scheduler.requests)
        assert {name[:32] for name in manager.pool._by_hash} <= self.computed
        for block_id, count in owners.items():
            assert manager.pool.blocks[block_id].ref_count == count
        for r in running:
            num_full = r.num_computed_tokens // SIZE
            for group, table in enumerate(tables[r.request_id]):
                suffix = group.to_bytes(2, "little") if group else b""
                for index, block_id in enumerate(table):
                    block = manager.pool.blocks[block_id]
                    if block_id and block.content_hash is not None:
                        # Only what is computed is shared, under the name of its content.
                        assert index < num_full
                        assert block.content_hash == r.block_hashes[index] + suffix
                    else:
                        assert owners[block_id] <= 1 or block_id in self.withdrawn

    @invariant()
    def events_tell_what_can_be_hit(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for event in self.events.take():
            if isinstance(event, AllBlocksCleared):
                self.told.clear()
            elif isinstance(event, BlockStored):
                assert len(event.token_ids) == SIZE * len(event.block_hashes)
                assert event.parent_block_hash is None or event.parent_block_hash in self.named()
                self.told.update(event.block_hashes)
            else:
                self.told.difference_update(event.block_hashes)
        names = self.scheduler.kv_manager.pool._by_hash
        assert self.told == {int.from_bytes(n[-8:], "big") for n in names if len(n) == 32}

    def named(self) -> set[int]:
        return {int.from_bytes(name[-8:], "big") for name in self.computed}

    @invariant()
    def states_balance(self) -> None:
        states = self.scheduler.kv_manager.states if hasattr(self, "scheduler") else None
        if not isinstance(states, StatePool):
            return
        pool = states.pool
        assert pool.num_free + pool.num_cached + pool.num_used == len(pool.blocks) - 1
        # A slot to work in, one that is read, one that will be, and what is not yet computed.
        in_flight = [state for step in self.in_flight for state in step.states.values()]
        most = 3 * len(self.scheduler.running) + sum(len(state.writes) for state in in_flight)
        assert len(self.scheduler.running) <= pool.num_used <= most
        assert all(block.content_hash is None or block.block_id for block in pool.blocks)
        assert pool._by_hash.keys() <= self.computed

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(5000):
            if not (self.scheduler.has_requests() or self.in_flight):
                break
            self.step()
        assert not self.scheduler.requests, "a request starves"
        assert not self.scheduler.running and not self.scheduler.waiting
        assert self.executor.num_known_requests == 0
        stats = self.scheduler.make_stats()
        assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_total_blocks
        assert self.scheduler.kv_manager.usage == 0
        for request_id, r in self.requests.items():
            self.check_outcome(r, self.outputs[request_id])

    def step(self, leave: Sequence[str] = ()) -> None:
        """Step as the core does: plan if possible, answer the step that is due."""
        can_plan = not self.in_flight or self.scheduler.can_plan_ahead
        if can_plan:
            self.plan()
        if len(self.in_flight) == self.max_in_flight or not can_plan:
            self.answer(leave)

    def plan(self) -> SchedulerOutput:
        for r in self.scheduler.requests.values():
            # A constraint has drafts of its own.
            if not (r.can_run_ahead or self.has_state):
                r.drafts = (0,) * (len(r.token_ids) % 4)
        step = self.scheduler.schedule()
        note(f"step {step.num_scheduled_tokens} preempted {step.preempted_request_ids}")
        limit = self.scheduler.config.scheduler.max_num_batched_tokens
        assert sum(step.num_scheduled_tokens.values()) == step.total_num_scheduled_tokens <= limit
        if not self.in_flight:
            is_idle = not self.scheduler.requests
            assert step.total_num_scheduled_tokens > 0 or is_idle
        elif step.preempted_request_ids:
            raise AssertionError("a step that is under way may lose no request")
        self.in_flight.append(step)
        return step

    def answer(self, leave: Sequence[str] = ()) -> None:
        """Execute the oldest step only now: whoever planned on it knew nothing of its tokens."""
        step = self.in_flight.popleft()
        try:
            result = self.executor.execute_model(step)
        except RuntimeError as error:
            outputs = self.scheduler.fail_step(step, str(error))
        else:
            self.finish(leave)
            planned = [self.scheduler.requests.get(i) for i in step.num_scheduled_tokens]
            outputs = self.scheduler.update_from_output(step, result)
            seconds = sum(map(self.seconds, step.num_scheduled_tokens.values()))
            self.scheduler.learn(step, result, seconds)
            for r in planned:
                if r is not None:
                    self.computed.update(r.block_hashes[: r.num_computed_tokens // SIZE])
        for output in outputs:
            self.outputs[output.request_id].append(output)

    def finish(self, ids: Sequence[str]) -> None:
        self.scheduler.finish_requests(ids, RequestStatus.FINISHED_ABORTED)
        assert not self.scheduler.requests.keys() & set(ids)

    def check_outcome(self, r: Request, outputs: list[EngineCoreOutput]) -> None:
        """The tokens are those of an unhurried model, and each was told once, in order."""
        tokens = [token for output in outputs for token in output.new_token_ids]
        if not r.is_sampling:
            self.check_vector(r, outputs)
            return
        wanted = r.sampling_params.max_tokens or 0
        ideal = scripted_tokens(
            r.prompt_token_ids,
            min(wanted, CONTEXT - r.num_prompt_tokens),
            vocab_size=VOCAB,
            windows=[group.sliding_window for group in self.groups],
            has_state=self.has_state,
        )
        for count, token in enumerate(ideal, 1):
            if token in (EOS, STOP) and count >= r.sampling_params.min_tokens:
                ideal = ideal[:count]
                break
        assert tokens == ideal[: len(tokens)] == r.output_token_ids
        reasons = [output.finish_reason for output in outputs]
        assert not any(reasons[:-1])
        assert [output.num_cached_tokens is not None for output in outputs[:2]] in (
            [],
            [True],
            [True, False],
        )
        if r.status in (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED):
            assert tokens == ideal
            assert reasons[-1] == r.status.finish_reason
            stopped = r.status is RequestStatus.FINISHED_STOPPED
            assert r.stop_reason == (STOP if stopped and tokens[-1] == STOP else None)
            self.check_prompt_logprobs(r, outputs)
        else:
            assert r.status.is_finished
            assert bool(reasons and reasons[-1]) == (r.status is RequestStatus.FINISHED_ERROR)

    def check_vector(self, r: Request, outputs: list[EngineCoreOutput]) -> None:
        """It is told once, with the end, of a request that was not aborted and did not fail."""
        windows = [group.sliding_window for group in self.groups]
        ideal = scripted_vector(r.prompt_token_ids, windows=windows, has_state=self.has_state)
        assert r.token_ids == r.prompt_token_ids and r.status.is_finished
        told = [(output.finish_reason, output.pooled) for output in outputs]
        if r.status is RequestStatus.FINISHED_STOPPED:
            assert told == [("stop", (ideal, 2))]
            assert r.can_read_prefix_cache or not outputs[0].num_cached_tokens
        else:
            failed = r.status is RequestStatus.FINISHED_ERROR
            assert told == [("error", None)] * failed

    def check_prompt_logprobs(self, r: Request, outputs: list[EngineCoreOutput]) -> None:
        told: list[TokenLogprobs] = []
        for output in outputs:
            told += output.new_prompt_logprobs or []
        if r.sampling_params.prompt_logprobs is None:
            assert not told
        else:
            assert [p.token_ids[0] for p in told] == r.prompt_token_ids[1:]


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=75, stateful_step_count=25, deadline=None)


@pytest.mark.slow
class TestSchedulerAtLength(SchedulerMachine.TestCase):
    settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
