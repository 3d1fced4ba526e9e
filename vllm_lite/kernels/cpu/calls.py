"""The current target of a step's operations: the compiled module, or a recorder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import vllm_lite._cpu as _cpu

# A program has methods of the same names as the module's functions.
calls: ContextVar[Any] = ContextVar("calls", default=_cpu)


@contextmanager
def recorded_by(program: Any) -> Iterator[None]:
    """Record operations into `program` in the `with` block, without running them."""
    token = calls.set(program)
    try:
        yield
    finally:
        calls.reset(token)
