"""What the attention layers need to know of the step that is running.

The runner builds one AttentionMetadata for a step and enters `attention_metadata(...)` around
the model's forward pass; layers read `current_metadata()`. It holds no cache and no sizes of
the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class StateIndices(NamedTuple):
    """Slots of states that a step reads and writes; see kernels/reference/state.py."""

    # [R] int32: of the state that each request's tokens begin with; -1: zeros.
    state_in: Tensor
    # [T] int32: where the state behind each token goes; -1: nowhere.
    state_out: Tensor


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """T tokens of R requests, request by request; see kernels/reference/ops.py for their use."""

    # [R + 1] int32: request r's tokens are query_start_loc[r] : query_start_loc[r + 1].
    query_start_loc: Tensor
    # [R] int32: tokens of each request once this step is computed.
    seq_lens: Tensor
    # Of each group of layers, [R, M] int32: ids of each request's cache blocks, in order; what is
    # past its end is 0.
    block_tables: tuple[Tensor, ...]
    # Of each group, [T] int64: block * block_size + offset where each token's key goes; < 0 writes
    # nothing.
    slot_mappings: tuple[Tensor, ...]
    num_tokens: int
    num_requests: int
    max_query_len: int
    max_seq_len: int
    # Of models with state-space layers.
    states: StateIndices | None = None


_current: ContextVar[AttentionMetadata] = ContextVar("attention_metadata")


@contextmanager
def attention_metadata(metadata: AttentionMetadata) -> Iterator[None]:
    """Make `metadata` current for the forward pass inside."""
    token = _current.set(metadata)
    try:
        yield
    finally:
        _current.reset(token)


def current_metadata() -> AttentionMetadata:
    """The running step's metadata; LookupError outside `attention_metadata`."""
    return _current.get()
