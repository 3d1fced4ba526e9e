"""Fair shares: what each tenant is served, whoever asks for how much."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import message, request
from tests.builders import scheduler as make_scheduler
from tests.fakes import ScriptedExecutor
from vllm_lite.core.kv_plan import plan_kv_cache
from vllm_lite.core.queue import MAX_IDLE_TENANTS, OUTPUT_WEIGHT, FairQueue
from vllm_lite.core.request import Request, RequestStatus


class Server:
    """Runs a few requests at a time and generates for all of them at once."""

    def __init__(self, slots: int) -> None:
        self.queue = FairQueue()
        self.slots = slots
        self.running: list[tuple[Request, int]] = []
        self.served: Counter[str] = Counter()
        self.order: list[Request] = []

    def step(self) -> None:
        """Fill the slots, then give each request a token."""
        while self.queue and len(self.running) < self.slots:
            chosen = self.queue.peek()
            self.queue.remove(chosen)
            chosen.status = RequestStatus.RUNNING
            chosen.num_cached_tokens = 0
            self.served[chosen.tenant] += chosen.num_prompt_tokens
            self.running.append((chosen, chosen.max_total_tokens))
            self.order.append(chosen)
        assert len(self.running) == self.slots or not self.queue
        for one, limit in self.running:
            one.append_token(1)
            self.served[one.tenant] += int(OUTPUT_WEIGHT)
            if one.num_tokens >= limit:
                one.status = RequestStatus.FINISHED_LENGTH_CAPPED
        self.running = [entry for entry in self.running if not entry[0].status.is_finished]


SIZES = st.tuples(st.integers(1, 30), st.integers(1, 12))


@given(st.lists(SIZES, min_size=20, max_size=60), st.integers(1, 4), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_tenants_who_always_wait_are_served_alike(
    sizes: list[tuple[int, int]], slots: int, ratio: int
) -> None:
    server = Server(slots)
    for index, (prompt, output) in enumerate(sizes * 4):
        # One asks `ratio` times as often as the other.
        tenant = "b" if index % (ratio + 1) == 0 else "a"
        server.queue.add(request(prompt, tenant=tenant, max_tokens=output))
    while len(server.queue._waiting) == 2:
        server.step()
        gap = abs(server.served["a"] - server.served["b"])
        assert gap <= 2 * (30 + OUTPUT_WEIGHT * 12 * slots)


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 4))
def test_new_tenant_does_not_wait_for_others_queues(flood: int, served: int, slots: int) -> None:
    server = Server(slots)
    for _ in range(flood + served + 2 * slots):
        server.queue.add(request(10, tenant="flood", max_tokens=5))
    while len(server.order) < served:
        server.step()
    late = request(10, tenant="late", max_tokens=5)
    server.queue.add(late)
    before = len(server.order)
    while late not in server.order:
        server.step()
    # At most those whom equal counters put first.
    assert server.order.index(late) - before <= 1


@given(st.lists(st.tuples(st.sampled_from("abcd"), SIZES, st.booleans()), max_size=60))
@settings(deadline=None)
def test_no_tenant_starves_and_no_slot_idles(
    entries: list[tuple[str, tuple[int, int], bool]],
) -> None:
    server, waits = Server(2), []
    for tenant, (prompt, output), leaves in entries:
        one = request(prompt, tenant=tenant, max_tokens=output)
        server.queue.add(one)
        waits.append(one)
        server.step()
        if leaves and one not in server.order:
            server.queue.remove(one)
            one.status = RequestStatus.FINISHED_ABORTED
            waits.remove(one)
    for _ in range(20 * len(entries) + 20):
        if server.queue:
            assert server.queue.peek() in waits
        server.step()
    assert len(server.queue) == 0
    assert Counter(id(one) for one in server.order) == Counter(id(one) for one in waits)


def test_time_away_earns_nothing() -> None:
    server = Server(1)
    server.queue.add(request(1, tenant="idle", max_tokens=1))
    server.step()
    for _ in range(30):
        server.queue.add(request(10, tenant="busy", max_tokens=5))
    for _ in range(60):
        server.step()
    for _ in range(10):
        server.queue.add(request(10, tenant="idle", max_tokens=5))
    start = len(server.order)
    for _ in range(40):
        server.step()
    turns = [one.tenant for one in server.order[start + 1 :]]
    assert turns[:6] in (["idle", "busy"] * 3, ["busy", "idle"] * 3)


def test_unrun_and_cached_tokens_cost_nothing() -> None:
    for cached, status, cost in (
        (None, RequestStatus.FINISHED_ABORTED, 0),
        (48, RequestStatus.RUNNING, 2),
        (0, RequestStatus.FINISHED_STOPPED, 50),
    ):
        queue, one = FairQueue(), request(50, tenant="a")
        queue.add(one)
        queue.remove(one)
        one.num_cached_tokens, one.status = cached, status
        queue.add(request(1, tenant="b"))
        assert queue._counters["a"] == cost


def test_tenants_who_left_are_forgotten_in_time() -> None:
    queue = FairQueue()
    for index in range(3 * MAX_IDLE_TENANTS):
        one = request(1, tenant=f"t{index}")
        queue.add(one)
        queue.remove(one)
        one.status = RequestStatus.FINISHED_ABORTED
    assert len(queue._counters) <= MAX_IDLE_TENANTS + 2
    assert len(queue._given) == len(queue._charged) == 1


def test_the_scheduler_gives_the_free_place_to_who_was_served_least() -> None:
    scheduler = make_scheduler(scheduling_policy="fair", max_num_seqs=2)
    executor = ScriptedExecutor()
    executor.initialize_cache(plan_kv_cache(scheduler.config, executor.kv_cache_spec(), 0))
    for _ in range(6):
        scheduler.add_request(Request.from_message(message(20, tenant="flood", max_tokens=4)))
    begun: list[str] = []
    for turn in range(40):
        if turn == 1:
            scheduler.add_request(
                Request.from_message(message(3, tenant="small", max_tokens=2, request_id="s"))
            )
        step = scheduler.schedule()
        begun += [new.request_id for new in step.new_requests]
        scheduler.update_from_output(step, executor.execute_model(step))
    assert len(begun) == 7
    assert begun.index("s") == 2, "the flood's two ran already; nobody else goes before it"
