"""The pool stays correct while it is resized, shared between threads, and forked."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import pytest
import torch

from vllm_lite import _cpu
from vllm_lite.kernels.cpu import ops as cpu

pytestmark = pytest.mark.usefixtures("threads")


def work() -> torch.Tensor:
    """Enough rows for many ranges."""
    return cpu.act_and_mul(torch.arange(400_000, dtype=torch.float32).view(2000, 200) / 4e5, "silu")


def test_any_thread_count_gives_the_same_result() -> None:
    _cpu.set_num_threads(1)
    expected = work()
    for _ in range(300):
        _cpu.set_num_threads(random.randint(1, 9))
        assert torch.equal(work(), expected)


def test_many_threads_call_while_another_resizes() -> None:
    expected, wrong, done = work(), [], threading.Event()

    def call() -> None:
        while not done.is_set():
            if not torch.equal(work(), expected):
                wrong.append(True)

    callers = [threading.Thread(target=call) for _ in range(3)]
    for caller in callers:
        caller.start()
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        _cpu.set_num_threads(random.randint(1, 6))
    done.set()
    for caller in callers:
        caller.join()
    assert not wrong


def test_a_forked_child_computes_with_as_many_threads() -> None:
    _cpu.set_num_threads(3)
    # Made and compared without torch's arithmetic: its OpenMP team does not survive a fork.
    x = torch.rand(2000, 200)
    expected = cpu.act_and_mul(x, "silu").numpy().tobytes()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        same = cpu.act_and_mul(x, "silu").numpy().tobytes() == expected and _cpu.num_threads() == 3
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert cpu.act_and_mul(x, "silu").numpy().tobytes() == expected


def test_an_idle_pool_uses_no_processor_time() -> None:
    _cpu.set_num_threads(4)
    work()
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.03


def test_thread_counts_out_of_range_are_refused() -> None:
    for count in (0, -1, 1025):
        with pytest.raises(ValueError, match="between 1 and 1024"):
            _cpu.set_num_threads(count)
