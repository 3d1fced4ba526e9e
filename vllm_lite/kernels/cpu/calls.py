"""Who takes the calls of a step's operations: the compiled module, or a program that notes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from vllm_lite import _cpu

# A program has methods of the same names as the module's functions.
calls: ContextVar[Any] = ContextVar("calls", default=_cpu)


@contextmanager
def recorded_by(program: _cpu.Program) -> Iterator[None]:
    """Let `program` note the operations that are called inside; none is carried out."""
    token = calls.set(program)
    try:
        yield
    finally:
        calls.reset(token)
