"""A GPU's context is made ahead of torch, and no more than that where there is no GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest

from vllm_lite.executor import cuda_context


class Driver:
    """libcuda with one answer to each call."""

    def __init__(self, answers: dict[str, int]) -> None:
        self.answers = answers
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> object:
        def call(*_: object) -> int:
            self.calls.append(name)
            return self.answers.get(name, 0)

        return call


@pytest.fixture(autouse=True)
def context_of_this_test() -> Iterator[None]:
    cuda_context.begin_context.cache_clear()
    yield
    cuda_context.begin_context.cache_clear()


@pytest.mark.parametrize(
    ("answers", "calls"),
    [
        ({}, ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]),
        ({"cuInit": 100}, ["cuInit"]),
        ({"cuDeviceGet": 101}, ["cuInit", "cuDeviceGet"]),
    ],
)
def test_the_driver_is_asked_until_it_refuses(
    answers: dict[str, int], calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(answers)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    for _ in range(2):
        cuda_context.begin_context().join(5)
    assert driver.calls == calls


def test_a_missing_driver_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_context, "DRIVER", "libcuda-that-is-not-there.so")
    thread = cuda_context.begin_context()
    thread.join(5)
    assert not thread.is_alive()
