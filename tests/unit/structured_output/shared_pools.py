"""Compile processes that several engines of a test module share: each start takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from vllm_lite.config.vllm import VllmConfig
from vllm_lite.engine.core import constraints
from vllm_lite.structured_output.compile_pool import CompilePool


class _Shared(CompilePool):
    """Stays open when an engine ends."""

    def close(self) -> None:
        pass


@contextmanager
def shared_pools() -> Iterator[None]:
    """Engines of the same tokenizer and constraint options get the same pool."""
    pools: dict[str, _Shared] = {}

    def pool_of(config: VllmConfig) -> _Shared:
        name = repr((config.model.model, config.structured_outputs, config.reasoning))
        return pools.setdefault(name, _Shared(config))

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(constraints, "CompilePool", pool_of)
            yield
    finally:
        for pool in pools.values():
            CompilePool.close(pool)
